%% SPDX-License-Identifier: Apache-2.0
%% @doc Samples the traffic between processes on two nodes, and checks the moves that are derived from it.
-module(placement_observe_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([nobody_counts/1, bytes_of_pairs/1, what_cannot_be_traced/1, stopped_nodes/1, nothing_stays/1, bad_input/1]).
%% These functions run on the nodes.
-export([talker/2, listener/0]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [nobody_counts, bytes_of_pairs, what_cannot_be_traced, stopped_nodes, nothing_stays, bad_input].

init_per_suite(Config) ->
    Peers = [begin
                 {ok, Peer, Node} = beamway_peer:start(inet_tcp, #{name => beamway_peer:unique_name(Name), host => "127.0.0.1"}),
                 ok = beamway_peer:call(Peer, attr, start, []),
                 {Peer, Node}
             end || Name <- ["one", "two"]],
    [{First, _}, {_, Other}] = Peers,
    true = beamway_peer:call(First, net_kernel, connect_node, [Other]),
    [{peers, Peers} | Config].

end_per_suite(_Config) -> beamway_peer:stop_started().

%% @private Sends a binary of `Size' bytes to each of these processes every ten milliseconds.
-spec talker([pid() | {atom(), node()}], Size :: non_neg_integer()) -> no_return().
talker(To, Size) ->
    _ = [Each ! binary:copy(<<1>>, Size) || Each <- To],
    receive after 10 -> talker(To, Size) end.

%% @private
-spec listener() -> no_return().
listener() -> receive _ -> listener() end.

%% Stock distribution does not count bytes, so the advice lists these nodes as nodes with unknown traffic.
nobody_counts(Config) ->
    [{First, One}, {_, Two}] = proplists:get_value(peers, Config),
    {ok, Tree} = placement_tree:from_paths([{One, "/a/x"}, {Two, "/b/y"}, {third, "/b/y"}, {fourth, "/a/x"}]),
    {ok, _} = beamway_peer:call(First, placement, set_topology, [Tree]),
    ?assertEqual({ok, [], lists:sort([One, Two])}, beamway_peer:call(First, placement, advise, [[One, Two]])),
    ok.

%% A process on the first node sends messages to a second one there. It sends ten times as much to a process on the
%% other node, which it addresses by name.
bytes_of_pairs(Config) ->
    [{First, One}, {Second, Two}] = proplists:get_value(peers, Config),
    Near = beamway_peer:call(First, erlang, spawn, [?MODULE, listener, []]),
    Far = beamway_peer:call(Second, erlang, spawn, [?MODULE, listener, []]),
    true = beamway_peer:call(Second, erlang, register, [far, Far]),
    Loud = beamway_peer:call(First, erlang, spawn, [?MODULE, talker, [[{far, Two}], 10000]]),
    Soft = beamway_peer:call(First, erlang, spawn, [?MODULE, talker, [[Near], 1000]]),
    {ok, Graph, #{unseen := [], messages := Messages}} = beamway_peer:call(First, placement, observe, [[Near, Far, Loud, Soft], 3000], 60000),
    ?assert(Messages > 10),
    [{Loud, Far, Much}, {Soft, Near, Little}] = lists:sort(fun({_, _, A}, {_, _, B}) -> A >= B end, Graph),
    ?assert(Much > 4 * Little andalso Much < 25 * Little),
    %% The tree puts the nodes in different sites, so the talker should move to the other node.
    {ok, Tree} = placement_tree:from_paths([{One, "/a"}, {Two, "/b"}]),
    {ok, _} = beamway_peer:call(First, placement, set_topology, [Tree]),
    %% The talker's node has no capacity for another process.
    ?assertMatch({ok, [#{process := Loud, from := One, to := Two, less := [{_, Much}], more := []}]}, beamway_peer:call(First, placement, advise, [Graph, #{}])),
    Busiest = beamway_peer:call(First, placement_observe, busiest, [[One, Two], 10000], 30000),
    ?assertEqual([Loud, Far], [Pid || Pid <- [Loud, Far], lists:member(Pid, Busiest)]),
    ?assertNot(lists:member(beamway_peer:call(First, erlang, whereis, [net_kernel]), Busiest)),
    _ = [exit(Pid, kill) || Pid <- [Near, Far, Loud, Soft]],
    ok.

what_cannot_be_traced(Config) ->
    [{First, _}, _] = proplists:get_value(peers, Config),
    Ended = beamway_peer:call(First, erlang, spawn, [lists, seq, [1, 2]]),
    Traced = beamway_peer:call(First, erlang, spawn, [?MODULE, listener, []]),
    Tracer = beamway_peer:call(First, erlang, spawn, [?MODULE, listener, []]),
    1 = beamway_peer:call(First, erlang, trace, [Traced, true, [send, {tracer, Tracer}]]),
    {ok, [], #{unseen := Unseen}} = beamway_peer:call(First, placement, observe, [[Ended, Traced], 100], 30000),
    ?assertEqual(lists:sort([{Ended, noproc}, {Traced, traced_by_another}]), lists:sort(Unseen)).

%% The call waits for all suspended nodes at the same time, for five seconds more than the requested time.
stopped_nodes(Config) ->
    [{First, _}, _] = proplists:get_value(peers, Config),
    Cluster = beamway_placement_nodes:start(["three", "four", "five", "six"]),
    [true = beamway_peer:call(First, net_kernel, connect_node, [Node]) || Node <- beamway_placement_nodes:nodes(Cluster)],
    Pids = beamway_placement_nodes:all(Cluster, erlang, whereis, [init]),
    [ok = beamway_peer:sigstop(Peer) || Peer <- beamway_placement_nodes:peers(Cluster)],
    {Us, {ok, [], #{unseen := Unseen}}} = beamway_peer:run(First, fun() -> timer:tc(fun() -> placement:observe(Pids, 100) end) end),
    ok = beamway_placement_nodes:stop(Cluster),
    ?assertEqual(lists:sort([{Pid, timeout} || Pid <- Pids]), lists:sort(Unseen)),
    %% Waiting for one node after another would take 20 s.
    ?assert(Us < 15000000, Us).

%% No process is traced after the call, even if the caller was killed during the call.
nothing_stays(Config) ->
    [{First, _}, _] = proplists:get_value(peers, Config),
    Talker = beamway_peer:call(First, erlang, spawn, [?MODULE, talker, [[], 1]]),
    {ok, [], #{unseen := []}} = beamway_peer:call(First, placement, observe, [[Talker], 200], 30000),
    ?assertEqual({flags, []}, beamway_peer:call(First, erlang, trace_info, [Talker, flags])),
    Asking = beamway_peer:call(First, erlang, spawn, [placement_observe, local, [[Talker], 60000]]),
    until(fun() -> beamway_peer:call(First, erlang, trace_info, [Talker, flags]) =:= {flags, [send]} end),
    true = beamway_peer:call(First, erlang, exit, [Asking, kill]),
    %% Each window is a fifth of the time. So if several consecutive checks find no tracing, it has ended.
    until(fun() -> lists:all(fun(_) -> ok = timer:sleep(10), beamway_peer:call(First, erlang, trace_info, [Talker, flags]) =:= {flags, []} end, lists:seq(1, 30)) end).

until(Holds) -> true = beamway_peer:wait_until(Holds, 30000).

bad_input(_Config) ->
    ?assertEqual({error, {bad_pids, none}}, placement:observe(none, 100)),
    ?assertEqual({error, {bad_pids, me}}, placement:observe([self(), me], 100)),
    ?assertEqual({error, {bad_ms, 0}}, placement:observe([self()], 0)).
