%% SPDX-License-Identifier: Apache-2.0
%% @doc The examples in docs/guide/faults.md, as a user's suite would contain them, and how beamway_ct reports incorrect use.
-module(beamway_ct_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_testcase/2, end_per_testcase/2]).
-export([partition/1, slow_link/1, connection_dies/1, by_name/1, wrong_use/1]).

suite() -> [{timetrap, {minutes, 1}}].

all() -> [partition, slow_link, connection_dies, by_name, wrong_use].

init_per_testcase(_Case, Config) ->
    {A, NodeA} = beamway_ct:start("a"),
    {B, NodeB} = beamway_ct:start("b"),
    true = peer:call(A, net_kernel, connect_node, [NodeB]),
    [{a, A}, {b, B}, {node_a, NodeA}, {node_b, NodeB} | Config].

end_per_testcase(_Case, Config) ->
    [beamway_ct:stop(proplists:get_value(Peer, Config)) || Peer <- [a, b]].

%% The nodes lose each other, and find each other when the partition has been healed.
partition(Config) ->
    [A, B, NodeA, NodeB] = [proplists:get_value(Key, Config) || Key <- [a, b, node_a, node_b]],
    ok = beamway_ct:partition(A, B),
    ok = until(fun() -> peer:call(A, erlang, nodes, []) =:= [] andalso peer:call(B, erlang, nodes, []) =:= [] end),
    pang = peer:call(B, net_adm, ping, [NodeA]),
    ok = beamway_ct:heal(A),
    ok = until(fun() -> peer:call(A, net_adm, ping, [NodeB]) =:= pong end).

%% A call takes at least as long as the delay of the path, and a call with a shorter timeout fails.
slow_link(Config) ->
    [A, B, NodeB] = [proplists:get_value(Key, Config) || Key <- [a, b, node_b]],
    ok = beamway_ct:slow(A, B, 200),
    {Us, NodeB} = timer:tc(peer, call, [A, erpc, call, [NodeB, erlang, node, []]]),
    true = Us >= 400000,
    {badrpc, timeout} = peer:call(A, rpc, call, [NodeB, erlang, node, [], 100]),
    ok = beamway_ct:heal(A).

%% Neither node notices that a connection is lost, because the link continues over a new connection.
connection_dies(Config) ->
    [A, B, NodeB] = [proplists:get_value(Key, Config) || Key <- [a, b, node_b]],
    ok = beamway_ct:disconnect(A, B),
    NodeB = peer:call(A, erpc, call, [NodeB, erlang, node, []]),
    ok = until(fun() -> {ok, Link} = peer:call(A, beamway, info, [NodeB]), maps:get(resumes, Link, 0) =:= 1 end).

until(Holds) -> until(Holds, 400).

until(Holds, Left) ->
    case Holds() of
        true -> ok;
        false when Left > 0 -> receive after 50 -> until(Holds, Left - 1) end
    end.

%% ---- cases beyond the examples ----

%% A third node separates two others, which it identifies by their names.
by_name(Config) ->
    [A, B, NodeA, NodeB] = [proplists:get_value(Key, Config) || Key <- [a, b, node_a, node_b]],
    {C, _} = beamway_ct:start("c", ["-hidden"]),
    true = peer:call(C, net_kernel, connect_node, [NodeA]),
    ok = peer:call(C, beamway_ct, partition, [[NodeA], [NodeB]]),
    ok = until(fun() -> peer:call(A, erlang, nodes, []) =:= [] andalso peer:call(B, erlang, nodes, []) =:= [] end),
    ok = peer:call(C, beamway_ct, heal, [NodeA]),
    ok = until(fun() -> peer:call(B, net_adm, ping, [NodeA]) =:= pong end),
    ok = beamway_ct:stop(C).

wrong_use(Config) ->
    [A, B] = [proplists:get_value(Key, Config) || Key <- [a, b]],
    {C, NodeC} = beamway_ct:start("c", [{env, "BEAMWAY_ALLOW_FAULTS", "false"}]),
    ?assertError({not_connected, _, NodeC, "this node has no link to" ++ _}, beamway_ct:partition(A, C)),
    ?assertError({not_allowed, NodeC, _, "this node was started without" ++ _}, beamway_ct:slow(C, A, 1)),
    ?assertMatch({'EXIT', {{badarg, {fault, {delay_ms, -1}, _}}, _}}, catch beamway_ct:slow(A, B, -1)),
    ok = beamway_ct:stop(C).
