%% SPDX-License-Identifier: Apache-2.0
%% @doc Groups of real nodes and the names in them: members join, leave, lose their connections, reconnect and restart, and
%% forget what was removed.
-module(placement_group_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([groups/1, names_in_groups/1, groups_meet_again/1, names_after_a_restart/1, groups_forget/1, names_leave_nothing/1]).

-import(placement_two_sites, [call/5, on/3, node_of/2, nodes_of/1, chosen/2]).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [groups, names_in_groups, groups_meet_again, names_after_a_restart, groups_forget, names_leave_nothing].

init_per_suite(Config) -> placement_two_sites:start(Config).

end_per_suite(Config) -> placement_two_sites:stop(Config).

groups(Config) ->
    [A, B, C, D | _] = nodes_of(Config),
    ok = call(Config, "b", placement_group, new_group, [left, [B, A]]),
    ok = call(Config, "b", placement_group, new_group, [right, [B, C]]),
    {error, exists} = call(Config, "b", placement_group, new_group, [left, [B]]),
    {error, not_a_member} = call(Config, "b", placement_group, new_group, [other, [A]]),
    {error, {bad_nodes, _}} = call(Config, "b", placement_group, new_group, [other, foo]),
    await_groups(Config, "a", [left]),
    await_groups(Config, "c", [right]),
    ?assertEqual([left, right], call(Config, "b", placement_group, own_groups, [])),
    ?assertEqual(lists:sort([A, B, C]), call(Config, "b", placement_group, own_nodes, [])),
    ?assertEqual(["b"], chosen(Config, [{group, left}, {size, gt, 1}])),
    {ok, Nodes, _} = call(Config, "a", placement, choose_nodes, [{group, left}, []]),
    ?assertEqual(lists:sort([A, B]), lists:sort(Nodes)),
    %% The group does not connect nodes that have no group in common.
    ?assertNot(lists:member(node_of(Config, "e"), call(Config, "c", erlang, nodes, [connected]))),
    %% Only a member may change the group.
    {error, no_such_group} = call(Config, "c", placement_group, add_nodes, [left, [D]]),
    ok = call(Config, "a", placement_group, add_nodes, [left, [D]]),
    await_groups(Config, "d", [left]),
    ok = call(Config, "d", placement_group, remove_nodes, [left, [A]]),
    await_groups(Config, "a", []),
    %% The stamp of a member's next change is based on the changes that it has received.
    _ = beamway_peer:wait_until(fun() -> lists:sort([B, D]) =:= call(Config, "b", placement_group, own_nodes, [left]) end, 10000),
    ?assertEqual({error, no_such_group}, call(Config, "a", placement_group, members, [left])),
    ok = call(Config, "b", placement_group, delete_group, [left]),
    ok = call(Config, "b", placement_group, delete_group, [right]),
    [await_groups(Config, Name, []) || Name <- ["b", "c", "d"]].

await_groups(Config, Name, Groups) ->
    beamway_peer:wait_until(fun() -> Groups =:= call(Config, Name, placement_group, own_groups, []) end, 10000).

names_in_groups(Config) ->
    [A, B | _] = nodes_of(Config),
    [ok = call(Config, "a", placement_group, new_group, [Group, [A, B]]) || Group <- [g1, g2]],
    await_groups(Config, "b", [g1, g2]),
    Waiter = fun() -> spawn(fun() -> receive {From, ping} -> From ! pong, wait() end end) end,
    [P1, P2] = [on(Config, Name, Waiter) || Name <- ["a", "b"]],
    yes = on(Config, "a", fun() -> placement_group:register_name(g1, worker, P1) end),
    yes = on(Config, "b", fun() -> placement_group:register_name(g2, worker, P2) end),
    _ = beamway_peer:wait_until(fun() -> P1 =:= call(Config, "b", placement_group, whereis_name, [g1, worker]) end, 10000),
    no = on(Config, "b", fun() -> placement_group:register_name(g1, worker, P2) end),
    pong = on(Config, "b", fun() -> P1 = placement_group:send(g1, worker, {self(), ping}), receive pong -> pong after 10000 -> none end end),
    {badarg, {g1, nobody}} = call(Config, "b", placement_group, send, [g1, nobody, hello]),
    on(Config, "a", fun() -> exit(P1, kill) end),
    _ = beamway_peer:wait_until(fun() -> undefined =:= call(Config, "b", placement_group, whereis_name, [g1, worker]) end, 10000),
    ?assertEqual(P2, call(Config, "b", placement_group, whereis_name, [g2, worker])),
    ok = call(Config, "b", placement_group, unregister_name, [g2, worker]),
    [] = call(Config, "b", placement_group, names, [g2]),
    [ok = call(Config, "a", placement_group, delete_group, [Group]) || Group <- [g1, g2]],
    await_groups(Config, "b", []).

%% Members that were disconnected agree again after they have reconnected. If two processes have the same name, one of them
%% is informed that it has lost the name.
groups_meet_again(Config) ->
    [_, B, C, D | _] = nodes_of(Config),
    ok = call(Config, "b", placement_group, new_group, [apart, [B, C]]),
    await_groups(Config, "c", [apart]),
    Reporter = fun() -> spawn(fun() -> receive {placement_group, _, name_lost, Name} -> persistent_term:put(lost, Name), wait() end end) end,
    true = call(Config, "b", erlang, disconnect_node, [C]),
    _ = beamway_peer:wait_until(fun() -> not lists:member(B, call(Config, "c", erlang, nodes, [connected])) end, 10000),
    %% Sending a change to the other members reconnects the nodes. So both sides make their changes right away, and then
    %% exchange them.
    [P1, P2] = [on(Config, Name, Reporter) || Name <- ["b", "c"]],
    yes = on(Config, "b", fun() -> placement_group:register_name(apart, one, P1) end),
    case on(Config, "c", fun() -> placement_group:register_name(apart, one, P2) end) of
        yes -> _ = beamway_peer:wait_until(fun() -> one =:= call(Config, "b", persistent_term, get, [lost, none]) orelse one =:= call(Config, "c", persistent_term, get, [lost, none]) end, 10000);
        no -> ok
    end,
    _ = beamway_peer:wait_until(fun() ->
        Found = call(Config, "b", placement_group, whereis_name, [apart, one]),
        is_pid(Found) andalso Found =:= call(Config, "c", placement_group, whereis_name, [apart, one])
    end, 10000),
    %% A server that is killed on a member and restarts finds its group in its supervisor's table.
    true = on(Config, "c", fun() -> exit(whereis(placement_group), kill) end),
    ok = call(Config, "b", placement_group, add_nodes, [apart, [D]]),
    _ = beamway_peer:wait_until(fun() -> {ok, lists:sort([B, C, D])} =:= try call(Config, "c", placement_group, members, [apart]) catch _:_ -> false end end, 10000),
    ok = call(Config, "b", placement_group, delete_group, [apart]),
    await_groups(Config, "c", []).

%% After a node has been killed and restarted, the names of its old processes are free.
names_after_a_restart(_Config) ->
    Name = beamway_peer:unique_name("again"),
    Start = fun() ->
        {ok, Peer, Node} = beamway_peer:start(inet_tcp, #{name => Name, host => "127.0.0.1", args => ["-connect_all", "false"]}),
        {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [placement]),
        {Peer, Node}
    end,
    [{_, Other, OtherNode}] = Extra = beamway_placement_nodes:start(["other"]),
    {First, Node} = Start(),
    ok = beamway_peer:call(First, placement_group, new_group, [lasting, [Node, OtherNode]]),
    Old = beamway_peer:run(First, fun() -> spawn(fun wait/0) end),
    yes = beamway_peer:call(First, placement_group, register_name, [lasting, worker, Old]),
    Found = fun(Peer) -> beamway_peer:call(Peer, placement_group, whereis_name, [lasting, worker]) end,
    _ = beamway_peer:wait_until(fun() -> Old =:= Found(Other) end, 10000),
    ok = beamway_peer:kill9(First),
    ok = beamway_peer:wait_disconnected(Other, Node),
    {Second, Node} = Start(),
    true = beamway_peer:call(Other, net_kernel, connect_node, [Node]),
    %% The other member informs the restarted node about the group.
    _ = beamway_peer:wait_until(fun() -> [lasting] =:= beamway_peer:call(Second, placement_group, own_groups, []) end, 10000),
    [_ = beamway_peer:wait_until(fun() -> undefined =:= Found(Peer) end, 10000) || Peer <- [Second, Other]],
    New = beamway_peer:run(Second, fun() -> spawn(fun wait/0) end),
    yes = beamway_peer:call(Second, placement_group, register_name, [lasting, worker, New]),
    _ = beamway_peer:wait_until(fun() -> New =:= Found(Other) end, 10000),
    %% The name survives a lost connection.
    true = beamway_peer:call(Other, erlang, disconnect_node, [Node]),
    ok = beamway_peer:wait_disconnected(Second, OtherNode),
    undefined = Found(Other),
    true = beamway_peer:call(Other, net_kernel, connect_node, [Node]),
    _ = beamway_peer:wait_until(fun() -> New =:= Found(Other) end, 10000),
    ok = beamway_peer:stop(Second),
    ok = beamway_placement_nodes:stop(Extra).

%% Removed names and groups leave no data behind, and a change is sent without the rest of the state.
groups_forget(_Config) ->
    [{_, A, NodeA}, {_, B, NodeB}] = Extra = beamway_placement_nodes:start(["a", "b"], #{args => ["-placement", "group_memory", "1000"]}),
    Table = fun(Peer) -> beamway_peer:call(Peer, ets, tab2list, [placement_groups]) end,
    Until = fun(Is) -> [_ = beamway_peer:wait_until(fun() -> Is(Table(Peer)) end, 30000) || Peer <- [A, B]] end,
    true = beamway_peer:call(A, net_kernel, connect_node, [NodeB]),
    ok = beamway_peer:call(A, placement_group, new_group, [large, [NodeA, NodeB]]),
    Owner = beamway_peer:run(A, fun() -> spawn(fun wait/0) end),
    [yes = beamway_peer:call(A, placement_group, register_name, [large, {name, N}, Owner]) || N <- lists:seq(1, 100)],
    Size = fun(All) -> [map_size(maps:get(names, State)) || {large, State} <- All] end,
    Until(fun(All) -> [100] =:= Size(All) end),
    %% Only the new name is sent.
    Tracer = beamway_peer:run(B, fun() -> spawn(fun() -> 1 = erlang:trace(whereis(placement_group), true, ['receive']), merged() end) end),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:run(B, fun() -> {tracer, Tracer} =:= erlang:trace_info(whereis(placement_group), tracer) end) end, 10000),
    yes = beamway_peer:call(A, placement_group, register_name, [large, one_more, Owner]),
    Told = fun() -> beamway_peer:run(B, fun() -> persistent_term:get(merged, []) end) end,
    _ = beamway_peer:wait_until(fun() -> Told() =/= [] end, 10000),
    ?assertMatch([#{names := #{one_more := _} = Names}] when map_size(Names) =:= 1, Told()),
    %% A member still gets the changes that it has missed.
    true = beamway_peer:run(B, fun() ->
        [{large, #{names := Known} = State}] = ets:lookup(placement_groups, large),
        ets:insert(placement_groups, {large, State#{names := maps:without([{name, N} || N <- lists:seq(1, 50)], Known)}})
    end),
    Until(fun(All) -> [101] =:= Size(All) end),
    %% Names are unregistered, processes exit, and groups are deleted.
    [ok = beamway_peer:call(A, placement_group, unregister_name, [large, {name, N}]) || N <- lists:seq(1, 40)],
    ?assertEqual(61, length(beamway_peer:call(A, placement_group, names, [large]))),
    beamway_peer:run(A, fun() -> exit(Owner, kill) end),
    [ok = beamway_peer:call(A, placement_group, new_group, [{small, N}, [NodeA, NodeB]]) || N <- lists:seq(1, 20)],
    Until(fun(All) -> 21 =:= length(All) end),
    [ok = beamway_peer:call(A, placement_group, delete_group, [{small, N}]) || N <- lists:seq(1, 20)],
    Until(fun(All) -> [{large, 0}] =:= [{Group, map_size(Names)} || {Group, #{names := Names}} <- All] end),
    ok = beamway_placement_nodes:stop(Extra).

%% Records what the group's server on this node received.
merged() ->
    receive
        {trace, _, 'receive', {'$gen_cast', {merge, large, State}}} -> persistent_term:put(merged, persistent_term:get(merged, []) ++ [State]);
        _ -> ok
    end,
    merged().

%% Names that are removed while their process is alive leave no data behind. The process's node informs members that
%% missed the removal.
names_leave_nothing(_Config) ->
    [{_, A, NodeA}, {_, B, NodeB}, {_, C, NodeC}] = Extra = beamway_placement_nodes:start(["a", "b", "c"]),
    [true = beamway_peer:call(Peer, net_kernel, connect_node, [Node]) || {Peer, Node} <- [{A, NodeB}, {A, NodeC}, {B, NodeC}]],
    ok = beamway_peer:call(A, placement_group, new_group, [many, [NodeA, NodeB, NodeC]]),
    Names = fun(Peer) -> beamway_peer:call(Peer, placement_group, names, [many]) end,
    Until = fun(Wanted) -> [_ = beamway_peer:wait_until(fun() -> Wanted =:= Names(Peer) end, 30000) || Peer <- [A, B, C]] end,
    Owner = beamway_peer:run(A, fun() -> spawn(fun wait/0) end),
    Give = fun(Name) -> yes = beamway_peer:call(A, placement_group, register_name, [many, Name, Owner]) end,
    Give(stays),
    Until([stays]),
    %% B and C do not know about the removal yet.
    Give(taken),
    Until([stays, taken]),
    [Stale] = beamway_peer:call(B, ets, lookup, [placement_groups, many]),
    %% Any member may remove a name.
    ok = beamway_peer:call(B, placement_group, unregister_name, [many, taken]),
    ?assertEqual([stays], Names(B)),
    Until([stays]),
    [true = beamway_peer:call(Peer, ets, insert, [placement_groups, Stale]) || Peer <- [B, C]],
    ?assertEqual([stays, taken], Names(C)),
    true = beamway_peer:run(C, fun() -> erlang:disconnect_node(NodeA) andalso net_kernel:connect_node(NodeA) end),
    Until([stays]),
    %% The server finds its table when it restarts, so it still knows which names it has registered.
    true = beamway_peer:run(A, fun() -> exit(whereis(placement_group), kill) end),
    [true = beamway_peer:call(Peer, ets, insert, [placement_groups, Stale]) || Peer <- [B, C]],
    true = beamway_peer:run(C, fun() -> erlang:disconnect_node(NodeA) andalso net_kernel:connect_node(NodeA) end),
    Until([stays]),
    Memory = fun() -> [beamway_peer:call(Peer, ets, info, [placement_groups, memory]) || Peer <- [A, B, C]] end,
    Before = Memory(),
    ok = beamway_peer:run(A, fun() -> lists:foreach(fun(N) -> yes = placement_group:register_name(many, N, Owner), ok = placement_group:unregister_name(many, N) end, lists:seq(1, 10000)) end),
    Until([stays]),
    %% Messages in flight to another member take up a few words; 10,000 names would take up more than 100,000 words.
    ?assertEqual([], [Grown || {Now, Was} <- lists:zip(Memory(), Before), Grown <- [Now - Was], Grown > 1000]),
    ok = beamway_placement_nodes:stop(Extra).

wait() -> receive stop -> ok end.
