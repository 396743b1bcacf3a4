%% SPDX-License-Identifier: Apache-2.0
%% @doc The demo's line on small calls beside large messages: what a small call takes while messages of 10 MB go both ways between the same two nodes, by
%% stock distribution, by Beamway's, and by lanes. Lanes run in the demo's stock cluster: they need no other distribution.
-module(beamway_demo_lanes).

-export([run/2, text/1]).

-type outcome() :: #{stock | beamway | lane := {P50 :: float(), P99 :: float()}, mb := float()}.

-define(BYTES, 10000000).
-define(CAPACITY_MS, 500).
-define(MS, 1500).

%% @doc Under 10 s: stock's maximum, then a call about each millisecond beside streams at 60 % of it, by each way.
-spec run(Stock :: beamway_bench_nodes:cluster(), Beamway :: beamway_bench_nodes:cluster()) -> outcome().
run(#{members := [One, Two | _]} = Cluster, Own) ->
    Pair = [One, Two],
    [First, Second | _] = beamway_bench_nodes:names(Cluster),
    Ebins = [filename:join([beamway_bench_nodes:root(), "apps", App, "ebin"]) || App <- ["beamway", "teleport"]],
    _ = beamway_bench_nodes:all(Pair, code, add_pathsa, [Ebins]),
    _ = [beamway_bench_nodes:all(Pair, beamway_bench_lanes, Step, Args)
         || {Step, Args} <- [{start, []}, {start_server, []}, {start_sink, []}, {prime, [[First, Second]]}]],
    Rate = 0.6 * beamway_bench_nodes:call(One, beamway_bench_lanes, capacity, [Second, ?BYTES, ?CAPACITY_MS]) / 2,
    Figures = maps:from_list([{Way, beside(Way, {One, Second}, {Two, First}, Rate)} || Way <- [stock, lane]]),
    _ = beamway_bench_nodes:all(Pair, application, stop, [teleport]),
    Figures#{beamway => plain(Own, Rate), mb => 2 * Rate * ?BYTES / 1.0e6}.

%% The same plain messages, over the other distribution.
plain(#{members := [One, Two | _]} = Cluster, Rate) ->
    [First, Second | _] = beamway_bench_nodes:names(Cluster),
    _ = [beamway_bench_nodes:all([One, Two], beamway_bench_lanes, Step, []) || Step <- [start_server, start_sink]],
    beside(stock, {One, Second}, {Two, First}, Rate).

beside(Way, {One, Second}, {Two, First}, Rate) ->
    _ = [beamway_bench_nodes:call(Member, beamway_bench_lanes, start_streams, [Way, Node, ?BYTES, Rate]) || {Member, Node} <- [{One, Second}, {Two, First}]],
    Beats = [Ns / 1000 || Ns <- beamway_bench_nodes:call(One, beamway_bench_lanes, heartbeat, [Way, Second, 1, ?MS])],
    _ = [beamway_bench_nodes:call(Member, beamway_bench_lanes, stop, []) || Member <- [One, Two]],
    {beamway_bench_stats:percentile(50, Beats), beamway_bench_stats:percentile(99, Beats)}.

%% @doc What to show of it.
-spec text(outcome()) -> unicode:chardata().
text(#{stock := {_, Stock}, beamway := {_, Own}, lane := {_, Lane}, mb := Mb}) ->
    io_lib:format("Beside ~b MB/s of 10 MB messages the 99th percentile of a small call is ~.1f ms by stock distribution, ~.1f ms by Beamway, ~.1f ms by lanes.~n",
                  [round(Mb), Stock / 1000, Own / 1000, Lane / 1000]).
