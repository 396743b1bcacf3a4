%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench calls': how many small calls per second does a server on another node answer? The benchmark compares `gen_server:call' over the
%% distribution with `teleport:call' over the same distribution, which does not create a monitor on the other node. With stock TCP, teleport uses its
%% own connections.
-module(beamway_bench_calls).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{callers, undefined, "callers", {string, "1,100"}, "processes that call"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case beamway_bench_text:numbers("--callers", proplists:get_value(callers, Given), 1, 10000) of
        {ok, Callers} -> {ok, #{callers => Callers, window => case Speed of quick -> {200, 500}; full -> {500, 2000} end}};
        {error, Why} -> {error, Why}
    end.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{speed := Speed} = Settings) ->
    [#{nodes => 2, contenders => [beamway, tcp, tcp_tuned, unix, beamway_tcp, direct, direct_tcp, direct_stock],
       directions => case Speed of quick -> [forward]; full -> [forward, reverse] end,
       measure => fun(Cluster) -> measure(Cluster, Settings) end}].

measure(#{members := [One, Two]} = Cluster, #{callers := Callers, window := {WarmMs, Ms} = Window}) ->
    [_, Second] = Names = beamway_bench_nodes:names(Cluster),
    _ = beamway_bench_nodes:call(Two, beamway_bench_messages, start_server, []),
    Way = beamway_bench_messages:open(Cluster, Names),
    maps:from_list([{key(Count), beamway_bench_nodes:call(One, beamway_bench_messages, calls, [Way, Second, Count, Window], WarmMs + Ms + 60000)}
                    || Count <- Callers]).

key(Count) -> iolist_to_binary(["calls of a server, ", integer_to_list(Count), " callers"]).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{callers := Callers}) ->
    [#{name => iolist_to_binary([Name, integer_to_list(Count)]), unit => <<"calls/s">>, better => higher, key => key(Count), contender => Contender,
       baselines => Baselines}
     || Count <- Callers, {Name, Contender, Baselines} <- contests()].

contests() ->
    [{"calls_c", direct, [beamway, tcp, tcp_tuned, unix]},
     {"calls_tcp_c", direct_tcp, [tcp_tuned, beamway_tcp, tcp]},
     {"calls_stock_c", direct_stock, [tcp, tcp_tuned]}].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

prepare_test_() ->
    [?_assertMatch({ok, #{callers := [1, 100]}}, prepare([{callers, "1,100"}], quick)), ?_assertMatch({error, _}, prepare([{callers, "x"}], full))].

metrics_test() ->
    ?assertEqual([], [<<"calls_c1">>, <<"calls_c100">>, <<"calls_tcp_c100">>, <<"calls_stock_c100">>] -- [Name || #{name := Name} <- metrics(#{callers => [1, 100]})]).
-endif.
