%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures the values in the demo's line on small calls during large transfers: how long a small call takes while 10 MB messages are sent in
%% both directions between the same two nodes, once over stock distribution and once over Beamway.
-module(beamway_demo_beside).

-export([run/2, text/1]).

-type outcome() :: #{stock | beamway := {P50 :: float(), P99 :: float()}, mb := float()}.

-define(BYTES, 10000000).
-define(CAPACITY_MS, 500).
-define(MS, 1500).

%% @doc Takes less than 10 s. First it measures the maximum rate of stock distribution. Then, over each carrier, it makes a call about every
%% millisecond while streams run at 60 percent of that maximum.
-spec run(Stock :: beamway_bench_nodes:cluster(), Beamway :: beamway_bench_nodes:cluster()) -> outcome().
run(#{members := [One, Two | _]} = Stock, Beamway) ->
    _ = [beamway_bench_nodes:all([One, Two], beamway_bench_messages, Step, []) || Step <- [start_server, start_sink]],
    [_, Second | _] = beamway_bench_nodes:names(Stock),
    Rate = 0.6 * beamway_bench_nodes:call(One, beamway_bench_messages, capacity, [Second, ?BYTES, ?CAPACITY_MS]) / 2,
    #{stock => plain(Stock, Rate), beamway => plain(Beamway, Rate), mb => 2 * Rate * ?BYTES / 1.0e6}.

plain(#{members := [One, Two | _]} = Cluster, Rate) ->
    [First, Second | _] = beamway_bench_nodes:names(Cluster),
    _ = [beamway_bench_nodes:all([One, Two], beamway_bench_messages, Step, []) || Step <- [start_server, start_sink]],
    beside(stock, {One, Second}, {Two, First}, Rate).

beside(Way, {One, Second}, {Two, First}, Rate) ->
    _ = [beamway_bench_nodes:call(Member, beamway_bench_messages, start_streams, [Way, Node, ?BYTES, Rate]) || {Member, Node} <- [{One, Second}, {Two, First}]],
    Beats = [Ns / 1000 || Ns <- beamway_bench_nodes:call(One, beamway_bench_messages, heartbeat, [Way, Second, 1, ?MS])],
    _ = [beamway_bench_nodes:call(Member, beamway_bench_messages, stop, []) || Member <- [One, Two]],
    {beamway_bench_stats:percentile(50, Beats), beamway_bench_stats:percentile(99, Beats)}.

%% @doc Returns the line that the demo prints.
-spec text(outcome()) -> unicode:chardata().
text(#{stock := {_, Stock}, beamway := {_, Own}, mb := Mb}) ->
    io_lib:format("Beside ~b MB/s of 10 MB messages the 99th percentile of a small call is ~.1f ms over stock distribution, ~.1f ms over Beamway.~n",
                  [round(Mb), Stock / 1000, Own / 1000]).
