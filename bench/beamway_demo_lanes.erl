%% SPDX-License-Identifier: Apache-2.0
%% @doc The demo's line on lanes: what a small call takes while messages of 10 MB go both ways between the same two nodes, by stock
%% distribution and by lanes. The two nodes are those of the demo's stock cluster: lanes need no other distribution.
-module(beamway_demo_lanes).

-export([run/1, text/1]).

-type outcome() :: #{stock := {P50 :: float(), P99 :: float()}, lane := {P50 :: float(), P99 :: float()}, mb := float()}.

-define(BYTES, 10000000).
-define(CAPACITY_MS, 500).
-define(MS, 1500).

%% @doc Under 10 s: stock's maximum, then a call about each millisecond beside streams at 60 % of it, by each way.
-spec run(beamway_bench_nodes:cluster()) -> outcome().
run(#{members := [One, Two | _]} = Cluster) ->
    Pair = [One, Two],
    [First, Second | _] = beamway_bench_nodes:names(Cluster),
    Ebins = [filename:join([beamway_bench_nodes:root(), "apps", App, "ebin"]) || App <- ["beamway", "teleport"]],
    _ = beamway_bench_nodes:all(Pair, code, add_pathsa, [Ebins]),
    _ = [beamway_bench_nodes:all(Pair, beamway_bench_lanes, Step, Args)
         || {Step, Args} <- [{start, []}, {start_server, []}, {start_sink, []}, {prime, [[First, Second]]}]],
    Rate = 0.6 * beamway_bench_nodes:call(One, beamway_bench_lanes, capacity, [Second, ?BYTES, ?CAPACITY_MS]) / 2,
    Figures = maps:from_list([{Way, beside(Way, {One, Second}, {Two, First}, Rate)} || Way <- [stock, lane]]),
    _ = beamway_bench_nodes:all(Pair, application, stop, [teleport]),
    Figures#{mb => 2 * Rate * ?BYTES / 1.0e6}.

beside(Way, {One, Second}, {Two, First}, Rate) ->
    _ = [beamway_bench_nodes:call(Member, beamway_bench_lanes, start_streams, [Way, Node, ?BYTES, Rate]) || {Member, Node} <- [{One, Second}, {Two, First}]],
    Beats = [Ns / 1000 || Ns <- beamway_bench_nodes:call(One, beamway_bench_lanes, heartbeat, [Way, Second, 1, ?MS])],
    _ = [beamway_bench_nodes:call(Member, beamway_bench_lanes, stop, []) || Member <- [One, Two]],
    {beamway_bench_stats:percentile(50, Beats), beamway_bench_stats:percentile(99, Beats)}.

%% @doc What to show of it.
-spec text(outcome()) -> unicode:chardata().
text(#{stock := {_, Stock}, lane := {_, Lane}, mb := Mb}) ->
    io_lib:format("Lanes: beside ~b MB/s of 10 MB messages the 99th percentile of a small call is ~.1f ms, by stock distribution ~.1f ms.~n",
                  [round(Mb), Lane / 1000, Stock / 1000]).
