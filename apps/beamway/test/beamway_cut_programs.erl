%% SPDX-License-Identifier: Apache-2.0
%% @doc Small programs for beamway_cut_apps_SUITE, which run on every node of a cluster: `global' names, and presences maintained as in
%% Phoenix.Tracker.
%%
%% Each node counts the names and presences that have disappeared on it ({@link gone/0}). These programs never connect nodes.
-module(beamway_cut_programs).

-export([start/1, known/0, gone/0]).
-export([own/2]).

-define(TABLE, ?MODULE).
-define(SCOPE, beamway_cut_trackers).
-define(HEARTBEAT_MS, 20).
-define(SILENT_MS, 1500).
-define(PRESENCES, 100).

%% @doc Starts a program among these nodes.
-spec start({names | presences, [node()]}) -> ok.
start(Program) ->
    {Pid, Monitor} = spawn_monitor(?MODULE, own, [self(), Program]),
    receive
        {Pid, started} -> demonitor(Monitor, [flush]), ok;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    end.

%% @private
-spec own(pid(), {names | presences, [node()]}) -> no_return().
own(Parent, {Program, Nodes}) ->
    ?TABLE = ets:new(?TABLE, [named_table, public]),
    true = ets:insert(?TABLE, {known, 0}),
    ok = net_kernel:monitor_nodes(true),
    _ = spawn_link(fun() -> true = register(beamway_cut_chat, self()), chat() end),
    Parent ! {self(), started},
    case Program of
        names -> yes = global:register_name({?MODULE, node()}, self()), names(Nodes, []);
        presences ->
            {ok, _} = pg:start(?SCOPE),
            ok = pg:join(?SCOPE, trackers, self()),
            presences(#{}, now_ms())
    end.

%% Keeps messages in flight, so that a cut hits one of them.
chat() ->
    [erlang:send({beamway_cut_chat, Node}, chat, [noconnect]) || Node <- nodes()],
    hear().

hear() ->
    receive chat -> hear() after 1 -> chat() end.

%% @doc Returns the number of names or presences that this node knows.
-spec known() -> non_neg_integer().
known() -> ets:lookup_element(?TABLE, known, 2).

%% @doc Returns what has disappeared so far, and how often.
-spec gone() -> [{{nodedown | name | presences, node()}, pos_integer()}].
gone() -> ets:tab2list(?TABLE) -- [{known, known()}].

lost(What, Node) -> ets:update_counter(?TABLE, {What, Node}, 1, {{What, Node}, 0}).

%% ---- names ----

%% Looks up all names repeatedly.
names(Nodes, Before) ->
    Known = [{Node, Pid} || Node <- Nodes, Pid <- [global:whereis_name({?MODULE, Node})], is_pid(Pid)],
    _ = [lost(name, Node) || {Node, _} <- Before -- Known],
    true = ets:insert(?TABLE, {known, length(Known)}),
    receive
        {nodedown, Node} -> lost(nodedown, Node), names(Nodes, Known);
        {nodeup, _} -> names(Nodes, Known)
    after 1 -> names(Nodes, Known)
    end.

%% ---- presences ----

%% Every tracker repeatedly sends the others its own presences, and drops those of a node that is down or silent.
presences(Others, BeatMs) ->
    true = ets:insert(?TABLE, {known, ?PRESENCES + lists:sum([length(List) || {List, _} <- maps:values(Others)])}),
    receive
        {heartbeat, Node, List} -> presences(Others#{Node => {List, now_ms()}}, BeatMs);
        {nodedown, Node} -> lost(nodedown, Node), presences(dropped(Node, Others), BeatMs);
        {nodeup, _} -> presences(Others, BeatMs)
    after max(0, BeatMs - now_ms()) ->
        Own = [{user, node(), N} || N <- lists:seq(1, ?PRESENCES)],
        _ = [Pid ! {heartbeat, node(), Own} || Pid <- pg:get_members(?SCOPE, trackers), node(Pid) =/= node()],
        Silent = [Node || {Node, {_, HeardMs}} <- maps:to_list(Others), now_ms() - HeardMs > ?SILENT_MS],
        presences(lists:foldl(fun dropped/2, Others, Silent), now_ms() + ?HEARTBEAT_MS)
    end.

dropped(Node, Others) ->
    _ = is_map_key(Node, Others) andalso lost(presences, Node),
    maps:remove(Node, Others).

now_ms() -> erlang:monotonic_time(millisecond).
