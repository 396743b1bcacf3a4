%% SPDX-License-Identifier: Apache-2.0
%% @doc Groups with many members: a node informs the others of the groups for which it has members, but not of the
%% members themselves. A broadcast goes only to nodes with members.
%%
%% ```
%% ok = teleport_listeners:join({room, 7}),                     %% the calling process is a member until it leaves or exits
%% #{sent := _} = teleport_listeners:broadcast({room, 7}, hello)'''
%%
%% `pg' reports each member to every node. Here a node sends messages to the other nodes only when its first member joins
%% and when its last member leaves; members in between cost nothing. {@link teleport_interest} decides what each node must
%% be sent. This process, one on each node, sends and receives these messages and monitors the members.
-module(teleport_listeners).
-behaviour(gen_server).

-export([join/1, join/2, leave/1, leave/2, broadcast/2, broadcast/3, members/1, nodes/1]).
-export([start_link/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(TABLE, ?MODULE).
-define(CALL_MS, 5000).
%% Changes that follow another change within this time are sent together.
-define(GATHER_MS, 20).
-define(IS_HASHES(Hashes), is_binary(Hashes), byte_size(Hashes) rem 4 =:= 0).

-record(listeners, {interest :: teleport_interest:state(),
                    is_gathering = false :: boolean(),
                    members = #{} :: #{pid() => {Monitor :: reference(), Groups :: #{term() => []}}}}).

%% @private Called by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Adds the calling process to a group, which can be any term. Joining twice has the same effect as joining once.
-spec join(Group :: term()) -> ok.
join(Group) -> join(Group, self()).

%% @doc Adds another process on this node to a group.
-spec join(Group :: term(), pid()) -> ok.
join(Group, Pid) when is_pid(Pid), node(Pid) =:= node() -> call({join, Group, Pid});
join(_, Other) -> error({bad_member, Other, "expected a process of this node"}).

%% @doc Ends the calling process's membership in the group. Messages that were sent to it before may still arrive.
-spec leave(Group :: term()) -> ok.
leave(Group) -> leave(Group, self()).

%% @doc Ends the membership of another process on this node.
-spec leave(Group :: term(), pid()) -> ok.
leave(Group, Pid) when is_pid(Pid), node(Pid) =:= node() -> call({leave, Group, Pid});
leave(_, Other) -> error({bad_member, Other, "expected a process of this node"}).

call(Request) ->
    try gen_server:call(?MODULE, Request, ?CALL_MS)
    catch exit:{noproc, _} -> error({not_started, teleport})
    end.

%% @doc Sends a message to all members on all nodes, as {@link teleport:broadcast/2} does for groups of `pg'.
-spec broadcast(Group :: term(), Message :: term()) -> teleport_groups:result().
broadcast(Group, Message) -> broadcast(Group, Message, #{}).

%% @doc Broadcasts with options. For a few milliseconds after two nodes have connected, each gets the other's broadcasts even if it has no members.
%% In that case the result lists it under `sent' or, with `confirm', under `sent' or `skipped'.
-spec broadcast(Group :: term(), Message :: term(), teleport_groups:options()) -> teleport_groups:result().
broadcast(Group, Message, Options) ->
    case teleport_groups:broadcast(?MODULE, Group, Message, Options) of
        {error, {no_scope, _}} -> error({not_started, teleport});
        Result -> Result
    end.

%% @doc Returns the members on this node.
-spec members(Group :: term()) -> [pid()].
members(Group) -> teleport_interest:members(?TABLE, Group).

%% @doc Returns the other nodes that have members, as far as this node knows.
-spec nodes(Group :: term()) -> [node()].
nodes(Group) -> teleport_interest:known_nodes(?TABLE, Group).

%% @private The members stay in the table if the server crashes.
-spec init([]) -> {ok, #listeners{}}.
init([]) ->
    State = #listeners{interest = teleport_interest:new(?TABLE, node())},
    Members = ets:select(?TABLE, [{{{member, '_', '$1', '$2'}}, [], [{{'$1', '$2'}}]}]),
    ok = net_kernel:monitor_nodes(true, [{node_type, all}]),
    {ok, lists:foldl(fun ask/2, lists:foldl(fun({Pid, Group}, Acc) -> watched(Pid, Group, Acc) end, State, Members), erlang:nodes(connected))}.

%% A monitor serves as the question, because it also fires if there is no server to answer. Setting up the monitor and
%% sending the message would block on a full connection, but a new connection is never full. The question must not open
%% a connection.
ask(Node, #listeners{interest = Interest} = State) ->
    Question = case lists:member(Node, erlang:nodes(connected)) of
                   true -> question(Node);
                   false -> make_ref()
               end,
    State#listeners{interest = teleport_interest:asking(Node, Question, Interest)}.

question(Node) ->
    try
        Question = monitor(process, {?MODULE, Node}),
        _ = erlang:send({?MODULE, Node}, {ask, self(), Question}, [noconnect]),
        Question
    catch
        %% A C node does not have monitors.
        error:badarg ->
            Nobody = make_ref(),
            self() ! {'DOWN', Nobody, process, {?MODULE, Node}, noproc},
            Nobody
    end.

%% @private
-spec handle_call(term(), gen_server:from(), #listeners{}) -> {reply, ok | {error, badarg}, #listeners{}}.
handle_call({join, Group, Pid}, _From, #listeners{interest = Interest} = State) ->
    {reply, ok, told(watched(Pid, Group, State#listeners{interest = teleport_interest:join(Group, Pid, Interest)}))};
handle_call({leave, Group, Pid}, _From, #listeners{interest = Interest} = State) ->
    {reply, ok, told(unwatched(Pid, Group, State#listeners{interest = teleport_interest:leave(Group, Pid, Interest)}))};
handle_call(_Request, _From, State) -> {reply, {error, badarg}, State}.

watched(Pid, Group, #listeners{members = Members} = State) ->
    {Monitor, Groups} = case Members of
                            #{Pid := Known} -> Known;
                            #{} -> {monitor(process, Pid), #{}}
                        end,
    State#listeners{members = Members#{Pid => {Monitor, Groups#{Group => []}}}}.

unwatched(Pid, Group, #listeners{members = Members} = State) ->
    case Members of
        #{Pid := {Monitor, #{Group := _} = Only}} when map_size(Only) =:= 1 ->
            true = demonitor(Monitor, [flush]),
            State#listeners{members = maps:remove(Pid, Members)};
        #{Pid := {Monitor, Groups}} -> State#listeners{members = Members#{Pid := {Monitor, maps:remove(Group, Groups)}}};
        #{} -> State
    end.

%% @private
-spec handle_cast(term(), State) -> {noreply, State}.
handle_cast(_Request, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #listeners{}) -> {noreply, #listeners{}}.
handle_info(gathered, State) ->
    {noreply, told(State#listeners{is_gathering = false})};
handle_info({nodeup, Node, _}, State) ->
    {noreply, ask(Node, State)};
handle_info({nodedown, Node, _}, #listeners{interest = Interest} = State) ->
    {noreply, State#listeners{interest = teleport_interest:gone(Node, Interest)}};
handle_info({ask, Pid, Question}, #listeners{interest = Interest} = State) when is_pid(Pid), is_reference(Question) ->
    {IsToAsk, Next} = teleport_interest:asked(node(Pid), Pid, Question, fun is_sent/2, Interest),
    {noreply, told(asked_again(IsToAsk, node(Pid), State#listeners{interest = Next}))};
handle_info({all, Node, Question, Hashes}, #listeners{interest = Interest} = State) when ?IS_HASHES(Hashes) ->
    {noreply, State#listeners{interest = teleport_interest:all(Node, Question, Hashes, Interest)}};
handle_info({change, Node, Joined, Left}, #listeners{interest = Interest} = State) when ?IS_HASHES(Joined), ?IS_HASHES(Left) ->
    {noreply, State#listeners{interest = teleport_interest:change(Node, Joined, Left, Interest)}};
handle_info({'DOWN', Question, process, {?MODULE, Node}, Reason}, #listeners{interest = Interest} = State) ->
    {IsToAsk, Next} = teleport_interest:unanswered(Node, Question, Reason, Interest),
    {noreply, asked_again(IsToAsk, Node, State#listeners{interest = Next})};
handle_info({'DOWN', _, process, Pid, _}, #listeners{interest = Interest, members = Members} = State) ->
    case maps:take(Pid, Members) of
        {{_, Groups}, Rest} ->
            Next = lists:foldl(fun(Group, Acc) -> teleport_interest:leave(Group, Pid, Acc) end, Interest, maps:keys(Groups)),
            {noreply, told(State#listeners{interest = Next, members = Rest})};
        error -> {noreply, State}
    end;
handle_info(_Info, State) ->
    {noreply, State}.

asked_again(true, Node, State) -> ask(Node, State);
asked_again(false, _, State) -> State.

%% A change is sent immediately unless it follows another one too closely. Sending to peers without room is retried at
%% the same interval.
told(#listeners{is_gathering = true} = State) -> State;
told(#listeners{interest = Interest} = State) ->
    case teleport_interest:is_changed(Interest) orelse teleport_interest:is_behind(Interest) of
        true ->
            %% A message from a traced process may have set a trace context in this process.
            _ = teleport_trace:set(none),
            _ = erlang:send_after(?GATHER_MS, self(), gathered),
            State#listeners{interest = teleport_interest:flush(fun is_sent/2, Interest), is_gathering = true};
        false -> State
    end.

is_sent(Pid, Message) -> erlang:send(Pid, Message, [noconnect, nosuspend]) =/= nosuspend.
