%% SPDX-License-Identifier: Apache-2.0
%% @doc The process that handles requests from other nodes: it confirms that a message has arrived, and delivers
%% broadcasts to the members on its node.
%%
%% The servers of connected nodes send each other `hello', so the table has a row for each node that runs this version of
%% teleport. A node without a row gets broadcasts as separate messages to each member. The rows `{{late, Node}, Until}' are
%% those of {@link teleport_groups}. The table belongs to the supervisor.
%%
%% The server never blocks: if there is no room for a message to another node, this is counted or reported.
-module(teleport_server).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, is_at/1, is_scope/1, members/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% A broadcast is `{broadcast, Scope, Group, Encoded, ReplyTo}', where `ReplyTo' is an alias or `none'. The answer is
%% `{ReplyTo, Node, ok | no_members | {error, Reason}}'.

%% When the server was started (`erlang:monotonic_time(millisecond)'), and for each monitor the row to delete when the
%% monitor fires.
-type state() :: #{started := integer(), reference() => {node(), pid()}}.

-define(TABLE, ?MODULE).
-define(VERSION, 1).
-define(IS_BROADCAST(Scope, Encoded, ReplyTo), is_atom(Scope), is_binary(Encoded), is_reference(ReplyTo) orelse ReplyTo =:= none).

%% @doc Started by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], [{spawn_opt, [{message_queue_data, off_heap}, {fullsweep_after, 10}]}]).

%% @doc Returns whether there is a server on this node.
-spec is_at(node()) -> boolean().
is_at(Node) ->
    try ets:member(?TABLE, Node)
    catch error:badarg -> error({not_started, teleport})
    end.

%% @doc Returns whether this is a scope of pg that runs on this node.
-spec is_scope(term()) -> boolean().
is_scope(Scope) -> is_atom(Scope) andalso is_pid(whereis(Scope)).

%% @doc Returns the members on this node, each once. It asks pg only for local members, because most groups have far
%% more members elsewhere, and removes duplicates, because a process may join several times.
-spec members(Scope :: atom(), Group :: term()) -> [pid()].
members(teleport_listeners, Group) -> teleport_interest:members(teleport_listeners, Group);
members(Scope, Group) -> lists:usort(pg:get_local_members(Scope, Group)).

%% @private
-spec init([]) -> {ok, state()}.
init([]) ->
    Started = erlang:monotonic_time(millisecond),
    true = ets:delete_all_objects(?TABLE),
    ok = net_kernel:monitor_nodes(true, [{node_type, all}]),
    lists:foreach(fun hello/1, nodes(connected)),
    {ok, #{started => Started}}.

hello(Node) -> erlang:send({?MODULE, Node}, {hello, self(), ?VERSION}, [noconnect, nosuspend]).

%% @private
-spec handle_call(term(), gen_server:from(), State) -> {reply, {error, badarg}, State}.
handle_call(_Request, _From, State) -> {reply, {error, badarg}, State}.

%% @private
-spec handle_cast(term(), State) -> {noreply, State}.
handle_cast(_Request, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), state()) -> {noreply, state()}.
handle_info({confirm, Waiter, Ref, To}, State) when is_pid(Waiter), is_pid(To) orelse is_atom(To) ->
    ok = told(Waiter, {Ref, case is_there(To) of true -> confirmed; false -> {unconfirmed, noproc} end}),
    {noreply, State};
handle_info({age, Waiter, Ref}, #{started := Started} = State) when is_pid(Waiter) ->
    ok = told(Waiter, {Ref, age, erlang:monotonic_time(millisecond) - Started}),
    {noreply, State};
handle_info({broadcast, Scope, Group, Encoded, ReplyTo}, State) when ?IS_BROADCAST(Scope, Encoded, ReplyTo) ->
    ok = answer(ReplyTo, node(), delivered(Scope, Group, Encoded)),
    {noreply, State};
handle_info({relay, Leaves, {broadcast, Scope, _, Encoded, ReplyTo} = Broadcast}, State) when is_list(Leaves), ?IS_BROADCAST(Scope, Encoded, ReplyTo) ->
    lists:foreach(fun(Leaf) -> passed_on(Leaf, Broadcast) end, Leaves),
    handle_info(Broadcast, State);
handle_info({nodeup, Node, _}, State) ->
    _ = hello(Node),
    {noreply, State};
handle_info({nodedown, Node, _}, State) ->
    true = ets:delete(?TABLE, {late, Node}),
    {noreply, State};
handle_info({hello, Pid, _}, State) when is_pid(Pid) ->
    {noreply, met(Pid, State)};
handle_info({'DOWN', Monitor, process, _, _}, State) ->
    case maps:take(Monitor, State) of
        {Row, Rest} -> true = ets:delete_object(?TABLE, Row), {noreply, Rest};
        error -> {noreply, State}
    end;
handle_info(_Info, State) ->
    {noreply, State}.

%% The server replies to `hello' with its own, because it may have been started after the other server had sent its `hello'.
met(Pid, State) ->
    Row = {node(Pid), Pid},
    case ets:lookup(?TABLE, node(Pid)) of
        [Row] -> State;
        _ ->
            Monitor = monitor(process, Pid),
            true = ets:insert(?TABLE, Row),
            _ = hello(node(Pid)),
            State#{Monitor => Row}
    end.

%% The waiting process has no timeout, so it must get an answer. If the connection is full, another
%% process waits until the answer can be sent.
told(Waiter, Message) ->
    case erlang:send(Waiter, Message, [noconnect, nosuspend]) of
        nosuspend -> _ = spawn(fun() -> Waiter ! Message end), ok;
        _ -> ok
    end.

is_there(Pid) when is_pid(Pid), node(Pid) =:= node() -> is_process_alive(Pid);
is_there(Pid) when is_pid(Pid) -> false;
is_there(Name) -> whereis(Name) =/= undefined.

delivered(Scope, Group, Encoded) ->
    case is_scope(Scope) andalso members(Scope, Group) of
        [_ | _] = Pids ->
            try binary_to_term(Encoded) of
                Message -> lists:foreach(fun(Pid) -> Pid ! Message end, Pids)
            catch error:badarg ->
                ?LOG_WARNING("teleport: a broadcast to ~0tp is not a term; it is dropped", [Group]),
                {error, bad_message}
            end;
        _ -> no_members
    end.

passed_on(Leaf, {broadcast, Scope, Group, _, ReplyTo} = Broadcast) ->
    case teleport_message:transmit(Leaf, ?MODULE, {Scope, Group}, Broadcast, error, infinity) of
        ok -> teleport_metrics:count(relayed);
        {error, Reason} -> answer(ReplyTo, Leaf, {error, Reason})
    end.

answer(none, _, _) -> ok;
answer(ReplyTo, Node, Outcome) ->
    _ = erlang:send(ReplyTo, {ReplyTo, Node, Outcome}, [noconnect, nosuspend]),
    ok.
