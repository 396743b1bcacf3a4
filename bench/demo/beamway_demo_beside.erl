%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures the values for the demo's line about small calls during large transfers: how long a small call takes while 10 MB messages are
%% sent in both directions between the same two nodes, once over stock distribution and once over Beamway.
-module(beamway_demo_beside).

-export([run/2, text/1]).

-type outcome() :: #{stock | beamway := [P99Us :: float()], mb := float()}.
%% The 99th percentile latency in each round.

-define(BYTES, 10000000).
-define(CAPACITY_MS, 500).
-define(ROUNDS, 7).
-define(MS, 400).

%% @doc Measures for less than 10 s. It first determines the maximum rate of stock distribution.
%% Then, in each round and over each carrier, it makes a call about every millisecond while streams
%% run at 60 percent of that maximum.
-spec run(Stock :: beamway_bench_nodes:cluster(), Beamway :: beamway_bench_nodes:cluster()) -> outcome().
run(#{members := [One, Two | _]} = Stock, Beamway) ->
    _ = [beamway_bench_nodes:all([One, Two], beamway_bench_messages, Step, []) || Step <- [start_server, start_sink]],
    [_, Second | _] = beamway_bench_nodes:names(Stock),
    Rate = 0.6 * beamway_bench_nodes:call(One, beamway_bench_messages, capacity, [Second, ?BYTES, ?CAPACITY_MS]) / 2,
    Turns = [{Name, plain(Cluster, Rate)} || _ <- lists:seq(1, ?ROUNDS), {Name, Cluster} <- beamway_bench_run:shuffled([{stock, Stock}, {beamway, Beamway}])],
    #{stock => proplists:get_all_values(stock, Turns), beamway => proplists:get_all_values(beamway, Turns), mb => 2 * Rate * ?BYTES / 1.0e6}.

plain(#{members := [One, Two | _]} = Cluster, Rate) ->
    [First, Second | _] = beamway_bench_nodes:names(Cluster),
    _ = [beamway_bench_nodes:all([One, Two], beamway_bench_messages, Step, []) || Step <- [start_server, start_sink]],
    beside(stock, {One, Second}, {Two, First}, Rate).

beside(Way, {One, Second}, {Two, First}, Rate) ->
    _ = [beamway_bench_nodes:call(Member, beamway_bench_messages, start_streams, [Way, Node, ?BYTES, Rate]) || {Member, Node} <- [{One, Second}, {Two, First}]],
    Beats = [Ns / 1000 || Ns <- beamway_bench_nodes:call(One, beamway_bench_messages, heartbeat, [Way, Second, 1, ?MS])],
    _ = [beamway_bench_nodes:call(Member, beamway_bench_messages, stop, []) || Member <- [One, Two]],
    beamway_bench_stats:percentile(99, Beats).

%% @doc Returns the line that the demo prints.
-spec text(outcome()) -> unicode:chardata().
text(#{stock := Stock, beamway := Own, mb := Mb}) ->
    [StockMs, OwnMs] = [beamway_bench_stats:median(Us) / 1000 || Us <- [Stock, Own]],
    io_lib:format("While ~b MB/s of 10 MB messages are sent, the 99th percentile of a small call is ~.1f ms over Beamway, ~.1f ms over stock distribution: ~ts.~n",
                  [round(Mb), OwnMs, StockMs, beamway_bench_report:paired(lower, Own, Stock)]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

text_test_() ->
    Shown = fun(Own) -> lists:flatten(text(#{stock => lists:duplicate(?ROUNDS, 20000.0), beamway => Own, mb => 1000.0})) end,
    [?_assertNotEqual(nomatch, string:find(Shown(lists:duplicate(?ROUNDS, 2000.0)), "is 2.0 ms over Beamway, 20.0 ms over stock distribution: 0.10.")),
     ?_assertNotEqual(nomatch, string:find(Shown([10000.0, 30000.0, 20000.0, 5000.0, 40000.0, 20000.0, 25000.0]), ": even."))].
-endif.
