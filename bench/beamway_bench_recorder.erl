%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench recorder': what does it cost to observe a link from inside? It measures the CPU time of both nodes per call of 100 callers,
%% and that of idle nodes, with and without the flight recorder; it also measures the CPU time per call if the messages carry a trace
%% context.
%%
%% The contenders without the recorder set `record_s' to 0, and their recorder is suspended, so that nothing is sampled. The driver updates
%% its per-message counters in both cases.
-module(beamway_bench_recorder).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(CALL, <<"processor time, 100 callers">>).
-define(REST, <<"processor time at rest">>).
-define(CALLERS, 100).
-define(NODES, 8). % 28 links

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()}.
prepare(_, quick) -> {ok, #{warm_ms => 500, window_ms => 1000, rest_ms => 3000}};
prepare(_, full) -> {ok, #{warm_ms => 1000, window_ms => 3000, rest_ms => 10000}}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(Settings) ->
    [#{nodes => 2, contenders => [beamway, beamway_unrecorded, beamway_tcp, beamway_tcp_unrecorded, teleport], directions => [forward], measure => fun(Cluster) -> of_call(Cluster, Settings) end},
     #{nodes => ?NODES, contenders => [beamway_tcp, beamway_tcp_unrecorded], directions => [forward], measure => fun(Cluster) -> at_rest(Cluster, Settings) end}].

%% Suspends the recorder for contenders that must run without it.
suspended(#{contender := #{env := Env}} = Cluster) ->
    _ = [beamway_bench_nodes:all(Cluster, sys, suspend, [beamway_recorder]) || lists:member({"BEAMWAY_RECORD_S", "0"}, Env)],
    ok.

of_call(Cluster, #{warm_ms := WarmMs, window_ms := Ms}) ->
    ok = suspended(Cluster),
    Kind = case Cluster of #{contender := #{name := teleport}} -> traced; _ -> echo end,
    Load = #{kind => Kind, callers => ?CALLERS, targets => beamway_bench_nodes:names(Cluster), bytes => 64},
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, start, [Load]),
    receive after WarmMs -> ok end,
    Before = beamway_bench_cost:sample(Cluster),
    receive after Ms -> ok end,
    After = beamway_bench_cost:sample(Cluster),
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, stop, []),
    #{?CALL => beamway_bench_cost:per_call(fun(#{user := User, kernel := Kernel}) -> User + Kernel end, Before, After)}.

%% The CPU time per node and second. It waits first because a link is not idle in the first seconds after connecting.
at_rest(Cluster, #{rest_ms := Ms}) ->
    ok = suspended(Cluster),
    receive after Ms -> ok end,
    Before = cpu_us(Cluster),
    receive after Ms -> ok end,
    #{?REST => max(1, cpu_us(Cluster) - Before) * 1000 / (Ms * ?NODES)}.

cpu_us(Cluster) -> beamway_bench_os:sum_cpu_us(beamway_bench_nodes:os_pids(Cluster)).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{}) ->
    [#{name => Name, unit => <<"us">>, better => lower, key => Key, contender => Own, baselines => [Without]}
     || {Name, Key, Own, Without} <- [{<<"recorder_shm_call">>, ?CALL, beamway, beamway_unrecorded}, {<<"recorder_tcp_call">>, ?CALL, beamway_tcp, beamway_tcp_unrecorded},
                                      {<<"recorder_rest">>, ?REST, beamway_tcp, beamway_tcp_unrecorded},
                                      {<<"trace_call">>, ?CALL, teleport, beamway}]].

-ifdef(TEST).

%% The recorder runs for one contender and is suspended for the other.
one_is_suspended_test_() ->
    {timeout, 60, fun() ->
        Status = fun(#{contender := #{name := Name}} = Cluster) ->
                         ok = suspended(Cluster),
                         #{atom_to_binary(Name) => length([running || {status, _, _, [_, running | _]} <- beamway_bench_nodes:all(Cluster, sys, get_status, [beamway_recorder])]) * 1.0}
                 end,
        Group = #{nodes => 2, contenders => [beamway, beamway_unrecorded], directions => [forward], measure => Status},
        Options = #{repeats => 1, fresh => true, budget_ms => infinity, progress => fun(_, _) -> ok end, contenders => beamway_bench_contender:all(beamway_bench_nodes:root(), 50)},
        {ok, Samples} = beamway_bench_run:in_a_process(fun() -> beamway_bench_run:run([Group], Options) end),
        ?assertEqual([0.0, 2.0], lists:sort([Value || #{forward := [Value]} <- maps:values(Samples)]))
    end}.

-endif.
