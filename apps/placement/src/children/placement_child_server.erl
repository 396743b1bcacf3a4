%% SPDX-License-Identifier: Apache-2.0
%% @doc The voter for the children of {@link placement_child}, registered under that module's name on each node.
%%
%% It also chooses the next node when no node holds the lease. This is done by the connected voter whose name sorts
%% first, or by the next voter if the first hangs or does not know the child. The server also knows the processes of
%% children for which its node is a candidate but not a voter, because the keepers inform all candidates.
%%
%% The tables belong to {@link placement_sup}, so promises survive if this server crashes. When the server exits, the
%% keepers ({@link placement_child_keeper}) exit with it, and so do their children.
-module(placement_child_server).
-behaviour(gen_server).

-include("placement_child.hrl").

-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(SERVER, placement_child).
-define(TICK_MS, 100).
%% How long this node remembers deleted children and failed calls. For the same time, a candidate remembers a child that
%% is not running anywhere, together with its voters.
-define(REMEMBERED_MS, 3600000).
-define(FORGET_MS, 5000).
%% The maximum number of concurrent choices. Each choice sends requests to other nodes, and if a
%% node that ran thousands of children goes down, a new node must be chosen for each of them.
-define(CHOOSERS_MAX, 64).

%% `made': the time (ms) at which the table was created. `due': when to check each child, which is at the latest when its
%% promise expires. `choosing': the monitor of the running chooser, or the time before which no other choice may start.
-record(state, {made :: integer(), keepers = #{} :: #{pid() => placement_child:name()}, kept = #{} :: #{placement_child:name() => pid()},
                due = placement_due:new() :: placement_due:due(),
                choosers = #{} :: #{reference() => {placement_child:name(), PauseMs :: non_neg_integer()}}, choosing = #{} :: #{placement_child:name() => reference() | integer()}}).

%% @doc Starts the server; `MadeMs' is the time at which its table was created.
-spec start_link(MadeMs :: integer()) -> {ok, pid()} | {error, term()}.
start_link(MadeMs) -> gen_server:start_link({local, ?SERVER}, ?MODULE, MadeMs, []).

%% @private
-spec init(integer()) -> {ok, #state{}}.
init(Made) ->
    _ = process_flag(trap_exit, true),
    ok = later(tick, ?TICK_MS),
    ok = later(forget, ?FORGET_MS),
    ok = net_kernel:monitor_nodes(true, #{node_type => all}),
    %% The tables may still contain children from before this server was restarted.
    Known = ets:select(?CHILDREN, [{{'$1', '$2', '_'}, [{is_map, '$2'}], ['$1']}]),
    Names = [{Spec, Pid} || {_, Pid, Spec, _} <- ets:tab2list(?NAMES), is_pid(Pid)],
    true = ets:delete_all_objects(?NAMES),
    true = ets:delete_all_objects(?COUNTS),
    true = ets:delete_all_objects(?KEPT),
    true = ets:delete_all_objects(?PEERS),
    abcast = gen_server:abcast(nodes(connected), ?SERVER, {here, node(), new}),
    ok = lists:foreach(fun({Spec, Pid}) -> named(Spec, Pid) end, Names),
    {ok, lists:foldl(fun noted/2, #state{made = Made}, Known)}.

%% Handles a keeper's announcement of its child. Messages may arrive out of order, so an outdated one is ignored.
named(#{name := Name} = Spec, Pid) ->
    ok = changed(Name, fun(Row) -> placement_voter:told(Spec, Row) end),
    case ets:lookup(?NAMES, Name) of
        [{_, _, Newer, _}] when map_get(fence, Newer) > map_get(fence, Spec) -> ok;
        [{_, Pid, _, Monitor}] ->
            true = ets:insert(?NAMES, {Name, Pid, Spec, Monitor}),
            ok;
        Before ->
            ok = lists:foreach(fun ends/1, Before),
            true = ets:insert(?NAMES, {Name, Pid, Spec, monitor(process, Pid, [{tag, {named, Name}}])}),
            counted(Spec, Pid, 1)
    end.

%% Stops monitoring and counting the process in this row, because the name no longer refers to that process.
ends({_, none, _, _}) -> ok;
ends({_, Pid, Spec, Monitor}) ->
    true = demonitor(Monitor, [flush]),
    counted(Spec, Pid, -1).

counted(#{scope := {Scope, _, _, _}}, Pid, More) ->
    _ = ets:update_counter(?COUNTS, {Scope, node(Pid)}, More, {{Scope, node(Pid)}, 0}),
    ok;
counted(_, _, _) -> ok.

changed(Name, Fun) -> answered(Name, fun(Row) -> {ok, Fun(Row)} end).

answered(Name, Fun) ->
    Row = placement_child:row(Name),
    case Fun(Row) of
        {Answer, Row} -> Answer;
        {Answer, {Spec, Promise}} -> true = ets:insert(?CHILDREN, {Name, Spec, Promise}), Answer
    end.

%% Must be called after each change of a child's row.
noted(Name, #state{due = Due} = State) ->
    case ets:lookup(?CHILDREN, Name) of
        [{_, #{}, {_, _, Until}}] -> State#state{due = placement_due:at(Name, Until, Due)};
        _ -> State
    end.

now_ms() -> erlang:monotonic_time(millisecond).

later(Message, Ms) ->
    _ = erlang:send_after(Ms, self(), Message),
    ok.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({put, #{name := Name} = Spec}, _, #state{made = Made} = State) ->
    Answer = answered(Name, fun(Row) -> placement_voter:put(Spec, {Row, placement_child:whereis_name(Name)}, now_ms(), Made) end),
    {reply, Answer, noted(Name, State)};
handle_call({look, Name}, _, State) ->
    Config = case placement_child:look(Name) of
                 {Spec, _, _} -> placement_voter:config(Spec);
                 _ -> none
             end,
    {reply, {known, placement_child:whereis_name(Name), Config}, State};
handle_call({delete, Name, Version}, _, State) ->
    case placement_child:row(Name) of
        %% This voter has been replaced by another one.
        {#{term := _} = Spec, _} -> {reply, case lists:member(node(), placement_voter:asked(Spec)) of true -> deleted(Name, Version, State); false -> {config, placement_voter:config(Spec)} end, State};
        _ -> {reply, deleted(Name, Version, State), State}
    end;
handle_call(Other, _, State) -> {reply, {error, {unknown_request, Other}}, State}.

-spec deleted(placement_child:name(), placement_child:version(), #state{}) -> ok | {newer, placement_child:spec()}.
deleted(Name, Version, #state{kept = Kept}) ->
    case answered(Name, fun(Row) -> placement_voter:delete(Version, Row, now_ms()) end) of
        ok ->
            _ = [Keeper ! {?SERVER, delete} || {ok, Keeper} <- [maps:find(Name, Kept)]],
            ok;
        Other -> Other
    end.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({ask, Alias, #{name := Name} = Spec, Holder, Pid}, #state{made = Made} = State) ->
    Late = case Spec of
               #{late := SentMs} -> Spec#{late := max(0, erlang:system_time(millisecond) - SentMs)};
               #{} -> Spec
           end,
    Alias ! {Alias, answered(Name, fun(Row) -> placement_voter:ask(Late, {Holder, Pid}, Row, now_ms(), Made) end)},
    {noreply, noted(Name, State)};
handle_cast({delete, Name, Version}, State) ->
    _ = deleted(Name, Version, State),
    {noreply, State};
handle_cast({withdraw, Name, Given}, State) ->
    ok = changed(Name, fun(Row) -> placement_voter:withdraw(Given, Row) end),
    {noreply, State};
handle_cast({release, Name, Holder}, State) ->
    ok = changed(Name, fun(Row) -> placement_voter:release(Holder, Row, now_ms()) end),
    {noreply, noted(Name, State)};
handle_cast({pass, Name, Holder, Next}, State) ->
    ok = changed(Name, fun(Row) -> placement_voter:pass(Holder, Next, Row) end),
    {noreply, State};
handle_cast({named, Spec, Pid}, State) ->
    ok = named(Spec, Pid),
    {noreply, State};
handle_cast({forget, Name, Version}, State) ->
    case ets:lookup(?NAMES, Name) of
        [{_, _, #{version := Known}, _} = Row] when Known =< Version ->
            true = ets:delete(?NAMES, Name),
            ok = ends(Row);
        _ -> ok
    end,
    {noreply, State};
%% Another node, or the server there, has started. The answer informs it that placement runs on this node, which it may
%% not know yet.
handle_cast({here, Node, Is}, State) when is_atom(Node) ->
    true = ets:insert(?PEERS, {Node}),
    _ = [gen_server:cast({?SERVER, Node}, {here, node(), old}) || Is =:= new],
    ok = tell(Node),
    {noreply, State};
%% A chooser on this node or another one has chosen this node.
handle_cast({try_start, #{name := Name} = Spec, Given}, #state{keepers = Keepers, kept = Kept} = State) ->
    Keeper = maps:get(Name, Kept, none),
    case is_pid(Keeper) andalso is_process_alive(Keeper) of
        false ->
            New = placement_child_keeper:start_link(Spec, Given),
            {noreply, State#state{keepers = Keepers#{New => Name}, kept = Kept#{Name => New}}};
        true ->
            ok = placement_child_keeper:give(Keeper, Spec, Given),
            {noreply, State}
    end;
%% The child now runs elsewhere. It may return to this node while the old process is still forwarding messages here.
handle_cast({moved, Keeper}, State) -> {noreply, without(Keeper, State)};
handle_cast(_, State) -> {noreply, State}.

tell(Node) ->
    _ = [gen_server:cast({?SERVER, Node}, {named, Spec, Pid}) || {Spec, _, Pid} <- placement_child:kept(), lists:member(Node, placement_child:candidates(Spec)) orelse lists:member(Node, placement_voter:asked(Spec))],
    %% The node may have been disconnected when a child was deleted.
    _ = [gen_server:cast({?SERVER, Node}, {forget, Name, Version}) || [Name, Version] <- ets:select(?CHILDREN, [{{'$1', {deleted, '$2'}, '_'}, [], [['$1', '$2']]}])],
    ok.

without(Keeper, #state{keepers = Keepers, kept = Kept} = State) ->
    _ = [placement_child:keeps_no_more(Name, Keeper) || {ok, Name} <- [maps:find(Keeper, Keepers)]],
    case maps:take(Keeper, Keepers) of
        {Name, Others} when map_get(Name, Kept) =:= Keeper -> State#state{keepers = Others, kept = maps:remove(Name, Kept)};
        {_, Others} -> State#state{keepers = Others};
        error -> State
    end.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(forget, State) ->
    ok = later(forget, ?FORGET_MS),
    Until = now_ms() - ?REMEMBERED_MS,
    _ = ets:select_delete(?CHILDREN, [{{'_', Gone, {'_', '_', '$1'}}, [{'<', '$1', Until}], [true]} || Gone <- [{deleted, '_'}, unknown]]),
    _ = ets:select_delete(?NAMES, [{{'_', none, '_', '$1'}, [{'<', '$1', Until}], [true]}]),
    {noreply, State};
handle_info(tick, #state{due = Due} = State) ->
    ok = later(tick, ?TICK_MS),
    Now = now_ms(),
    {Names, Left} = placement_due:pop(Now, Due),
    {noreply, lists:foldl(fun(Name, Before) -> looked_at(Name, Now, Before) end, State#state{due = Left}, Names)};
handle_info({'EXIT', Keeper, _}, State) -> {noreply, without(Keeper, State)};
handle_info({nodeup, Node, _}, State) ->
    ok = gen_server:cast({?SERVER, Node}, {here, node(), old}),
    {noreply, State};
handle_info({nodedown, Node, _}, State) ->
    true = ets:delete(?PEERS, Node),
    {noreply, State};
handle_info({{named, Name}, Monitor, process, _, _}, State) ->
    case ets:lookup(?NAMES, Name) of
        [{_, _, Spec, Monitor} = Row] ->
            true = ets:insert(?NAMES, {Name, none, Spec, now_ms()}),
            ok = ends(Row);
        _ -> ok
    end,
    {noreply, State};
handle_info({'DOWN', Monitor, process, _, _}, #state{choosers = Choosers, choosing = Choosing} = State) when is_map_key(Monitor, Choosers) ->
    {{Name, Pause}, Others} = maps:take(Monitor, Choosers),
    {noreply, State#state{choosers = Others, choosing = Choosing#{Name := now_ms() + Pause}}};
handle_info(_, State) -> {noreply, State}.

looked_at(Name, Now, State) ->
    #state{due = Due} = Rested = rested(Name, Now, State),
    case ets:lookup(?CHILDREN, Name) of
        [{_, #{}, {_, _, Until}}] when Until > Now -> Rested#state{due = placement_due:at(Name, Until, Due)};
        [{_, #{} = Spec, {Holder, Pid, Until}}] -> chosen(Spec, Now - Until, Holder, Pid, Rested#state{due = placement_due:at(Name, Now + ?TICK_MS, Due)});
        _ -> Rested
    end.

rested(Name, Now, #state{choosing = Choosing} = State) ->
    case Choosing of
        #{Name := Until} when is_integer(Until), Until =< Now -> State#state{choosing = maps:remove(Name, Choosing)};
        #{} -> State
    end.

%% Each voter runs at most one chooser per name, and the next voter takes over after half a grace period. It is harmless
%% if two nodes choose at the same time, because both chosen nodes must request the lease from the same voters.
chosen(#{name := Name, grace := Grace} = Spec, SinceMs, Holder, Pid, #state{choosers = Choosers, choosing = Choosing, kept = Kept} = State) ->
    Here = [node() | nodes(connected)],
    Connected = [Node || Node <- placement_voter:asked(Spec), lists:member(Node, Here)],
    Before = length(lists:takewhile(fun(Node) -> Node =/= node() end, Connected)),
    case placement_voter:is_majority(Spec, Connected) andalso SinceMs >= Before * (Grace div 2) + for_the_giver(Holder, Pid, Grace)
         andalso not is_map_key(Name, Choosing) andalso not is_map_key(Name, Kept) andalso map_size(Choosers) < ?CHOOSERS_MAX andalso lists:member(node(), Connected) of
        true ->
            Candidates = [Node || Node <- placement_child:candidates(Spec), lists:member(Node, Here)],
            {_, Monitor} = spawn_monitor(fun() -> choose(Spec, Candidates) end),
            %% The pause gives the chosen node time to request the lease, so that this voter does not choose again too
            %% early. It is longer for voters that come later in the order, so that not all of them retry constantly when
            %% no node is suitable.
            State#state{choosers = Choosers#{Monitor => {Name, min(Grace div 4, 1000) * (Before + 1)}}, choosing = Choosing#{Name => Monitor}};
        false -> State
    end.

%% If a child was being moved and its new node goes down, the node that tried to hand the child over still has the child's
%% state, so that node gets more time to get the promises back.
for_the_giver(Holder, Pid, Grace) when is_pid(Pid), Holder =/= nobody, node(Pid) =/= Holder ->
    case lists:member(node(Pid), [node() | nodes(connected)]) of
        true -> Grace;
        false -> 0
    end;
for_the_giver(_, _, _) -> 0.

choose(#{query := Query} = Spec, Candidates) ->
    case placement_choose:ranked(Candidates, {Query, 1}) of
        {ok, [Node | _], Plan} ->
            ok = placement_choose:placed([Node], Plan),
            gen_server:cast({?SERVER, Node}, {try_start, maps:remove(heard, Spec), none});
        {error, _} -> ok
    end.
