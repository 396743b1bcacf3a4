%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench heartbeat': how long does a 64-byte call take while large messages are sent in both directions between the same two nodes?
%%
%% It first measures, once for all contenders, the maximum throughput of four streams of 10 MB messages in each direction over stock distribution.
%% Then four streams in each direction run at 60 % of that maximum, with a call about every millisecond. Over Beamway's carrier the caller has the
%% class `control'; the streams use plain `!'. The contender `direct_stock' uses stock distribution, but makes the call over teleport's own
%% connections. Tuned TCP does not take part; see beamway_bench_beside.
-module(beamway_bench_heartbeat).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).

-define(BYTES, 10000000).
-define(KEY, <<"call of 64 B beside 10 MB">>).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{share, undefined, "share", {integer, 60}, "percent of stock's maximum at which the streams are paced"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case proplists:get_value(share, Given) of
        Share when Share >= 1, Share =< 100 ->
            {ok, case Speed of
                     quick -> #{share => Share / 100, capacity_ms => 600, ms => 1500};
                     full -> #{share => Share / 100, capacity_ms => 1500, ms => 5000}
                 end};
        Share -> {error, io_lib:format("--share ~b: expected a number from 1 to 100", [Share])}
    end.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(Settings) ->
    [#{nodes => 2, contenders => [tcp, beamway, beamway_tcp, direct_stock], directions => [forward], measure => fun(Cluster) -> measure(Cluster, Settings) end}].

measure(#{members := [One, _]} = Cluster, #{ms := Ms} = Settings) ->
    [_, Second] = Names = beamway_bench_nodes:names(Cluster),
    _ = [beamway_bench_nodes:all(Cluster, beamway_bench_messages, Start, []) || Start <- [start_server, start_sink]],
    Way = beamway_bench_messages:open(Cluster, Names),
    _ = both(Cluster, start_streams, [stock], [?BYTES, rate(Settings)]),
    Beats = beamway_bench_nodes:call(One, beamway_bench_messages, heartbeat, [Way, Second, 1, Ms], Ms + 60000),
    Real = beamway_bench_nodes:all(Cluster, beamway_bench_messages, stop, []),
    Us = [Beat / 1000 || Beat <- Beats],
    #{<<?KEY/binary, ", p50">> => beamway_bench_stats:percentile(50, Us), <<?KEY/binary, ", p99">> => beamway_bench_stats:percentile(99, Us),
      <<?KEY/binary, ", max">> => lists:max(Us), <<"streams beside the call">> => lists:sum(Real) / 2 * ?BYTES / 1.0e6}.

%% All contenders and repeats use the same rate, which is derived from the maximum throughput of stock nodes, measured before the first repeat.
rate(#{share := Share, capacity_ms := CapacityMs, contenders := #{tcp := Stock}}) ->
    case get(?MODULE) of
        undefined ->
            Epmd = beamway_bench_nodes:start_epmd(),
            Cluster = beamway_bench_nodes:start(Epmd, Stock, #{count => 2}),
            ok = beamway_bench_nodes:connect(Cluster, forward),
            _ = beamway_bench_nodes:all(Cluster, beamway_bench_messages, start_sink, []),
            Rate = Share * lists:min(both(Cluster, capacity, [], [?BYTES, CapacityMs])),
            ok = beamway_bench_nodes:stop(Cluster),
            ok = beamway_bench_nodes:stop_epmd(Epmd),
            _ = put(?MODULE, Rate),
            Rate;
        Rate -> Rate
    end.

%% Calls the function on both nodes at the same time, each with the other node as the target.
both(#{members := Members} = Cluster, Function, Before, After) ->
    Others = lists:reverse(beamway_bench_nodes:names(Cluster)),
    beamway_bench_nodes:each([{Member, beamway_bench_messages, Function, Before ++ [Other | After]} || {Member, Other} <- lists:zip(Members, Others)], 60000).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{}) ->
    [metric(iolist_to_binary([Name, "_", What]), <<"us">>, lower, iolist_to_binary([?KEY, ", ", What]), Contender, [tcp])
     || {Name, Contender} <- [{"heartbeat", beamway}, {"heartbeat_tcp", beamway_tcp}, {"heartbeat_stock", direct_stock}], What <- ["p50", "p99", "max"]]
        ++ [metric(<<"heartbeat_streams">>, <<"MB/s">>, higher, <<"streams beside the call">>, beamway, [tcp])].

metric(Name, Unit, Better, Key, Contender, Baselines) ->
    #{name => Name, unit => Unit, better => Better, key => Key, contender => Contender, baselines => Baselines}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

prepare_test_() ->
    [?_assertMatch({ok, #{share := 0.6}}, prepare([{share, 60}], quick)), ?_assertMatch({error, _}, prepare([{share, 0}], full))].

metrics_test() ->
    ?assertEqual([], [<<"heartbeat_p99">>, <<"heartbeat_stock_p99">>] -- [Name || #{name := Name} <- metrics(#{})]).
-endif.
