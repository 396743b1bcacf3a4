%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench casts': what does `teleport:cast' cost compared with sending the same message with plain `!'?
%%
%% For both contenders, the distribution uses Beamway's carrier over shared memory; the second contender also runs teleport. The CPU time is the
%% total of both nodes, divided by the number of messages that the receiver has confirmed ({@link beamway_bench_message_cost}).
-module(beamway_bench_casts).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1]).

%% Returns the name of each metric, its description, the load, and the number of processes that produce it.
cases() ->
    [{"c1", "cast of 100 B, 1 sender", {cast, {binary, 100}, 512, 16}, 1},
     {"name_c1", "cast of 100 B to a name, 1 sender", {cast_name, {binary, 100}, 512, 16}, 1},
     {"c100", "cast of 100 B, 100 senders", {cast, {binary, 100}, 32, 4}, 100},
     {"4k", "cast of 4 KB, 1 sender", {cast, {binary, 4096}, 256, 8}, 1}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()}.
prepare(_, quick) -> {ok, #{warm_ms => 200, window_ms => 500}};
prepare(_, full) -> {ok, #{warm_ms => 300, window_ms => 1500}}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(Settings) ->
    [#{nodes => 2, contenders => [beamway, teleport], directions => [forward], measure => fun(Cluster) -> measure(Cluster, Settings) end}].

measure(Cluster, Settings) ->
    Way = beamway_bench_messages:open(Cluster, beamway_bench_nodes:names(Cluster)),
    maps:from_list(lists:append([beamway_bench_message_cost:cost(Cluster, Way, Case, Settings) || Case <- cases()])).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{}) ->
    lists:append([[metric([Name], <<"1/s">>, higher, beamway_bench_message_cost:rate_key(What)),
                   metric([Name, "_cpu"], <<"us">>, lower, beamway_bench_message_cost:cpu_key(What))] || {Name, What, _, _} <- cases()]).

metric(Name, Unit, Better, Key) ->
    #{name => iolist_to_binary(["casts_" | Name]), unit => Unit, better => Better, key => Key, contender => teleport, baselines => [beamway]}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics_test() ->
    ?assertEqual([], [<<"casts_c1">>, <<"casts_c100_cpu">>, <<"casts_4k">>] -- [Name || #{name := Name} <- metrics(#{})]).

%% Runs real nodes, and checks that both contenders report every value that the metrics need.
real_nodes_test_() ->
    {timeout, 120, fun() ->
        {ok, Samples} = beamway_bench_run:in_a_process(fun() -> beamway_bench_run:run(groups(#{warm_ms => 20, window_ms => 400}), run_options()) end),
        ?assertEqual([], [{Name, Key} || #{key := Key} <- metrics(#{}), Name <- [beamway, teleport], not is_map_key({Name, Key}, Samples)])
    end}.

run_options() ->
    #{repeats => 1, fresh => true, budget_ms => infinity, progress => fun(_, _) -> ok end,
      contenders => beamway_bench_contender:all(beamway_bench_checkout:root(), 50)}.
-endif.
