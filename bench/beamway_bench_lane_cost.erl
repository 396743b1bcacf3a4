%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench lane-cost': what does a message or a call cost over lanes, and what by `!' and gen_server over Beamway's own carrier?
%%
%% Both go over shared memory between two nodes of one host. Processor time is user and system time of both nodes, divided by the messages
%% that were confirmed or the calls that were answered. Lanes stand beside stock distribution, which is idle meanwhile.
-module(beamway_bench_lane_cost).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).
%% For the benchmark of casts.
-export([cost/4, cpu_key/1, rate_key/1]).

-define(BESIDE, <<"call of 64 B beside 10 MB messages">>).
-define(STREAMS, <<"those 10 MB messages">>).
-define(STREAM_BYTES, 10000000).
-define(STREAM_RATE, 100.0).

%% The name of the metric, what it is, the load, and how many processes make it. The last two numbers of a message: a batch, and the
%% batches that a sender may have open.
cases() ->
    [{"m100_s1", "message of 100 B, 1 sender", {message, {binary, 100}, 512, 16}, 1},
     {"m100_s100", "message of 100 B, 100 senders", {message, {binary, 100}, 32, 4}, 100},
     {"m4k_s1", "message of 4 KB, 1 sender", {message, {binary, 4096}, 256, 8}, 1},
     {"m4k_s100", "message of 4 KB, 100 senders", {message, {binary, 4096}, 16, 4}, 100},
     {"list_4k", "list of 4 KB, 1 sender", {message, {list, 4000}, 64, 4}, 1},
     {"map_5000", "map of 5,000 keys, 1 sender", {message, {map, 5000}, 8, 4}, 1},
     {"m200k", "binary of 200 KB, 1 sender", {message, {binary, 200000}, 8, 4}, 1},
     {"m10m", "binary of 10 MB, 1 sender", {message, {binary, ?STREAM_BYTES}, 1, 4}, 1},
     {"calls_c1", "call, 1 caller", call, 1},
     {"calls_c100", "call, 100 callers", call, 100},
     {"calls_c1000", "call, 1,000 callers", call, 1000}].

%% @private
-spec options() -> [getopt:option_spec()].
options() -> [].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()}.
prepare(_, quick) -> {ok, #{warm_ms => 100, window_ms => 250, beside_ms => 800}};
prepare(_, full) -> {ok, #{warm_ms => 200, window_ms => 500, beside_ms => 2000}}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(Settings) ->
    [#{nodes => 2, contenders => [beamway, lanes], directions => [forward], measure => fun(Cluster) -> measure(Cluster, Settings) end}].

measure(Cluster, #{beside_ms := BesideMs} = Settings) ->
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_lanes, start_server, []),
    Way = beamway_bench_lanes:open(Cluster, beamway_bench_nodes:names(Cluster)),
    maps:from_list(lists:append([cost(Cluster, Way, Case, Settings) || Case <- cases()]) ++ beside(Cluster, Way, BesideMs)).

%% @doc The processor time of an operation, and the operations of a second.
-spec cost(beamway_bench_nodes:cluster(), beamway_bench_lanes:way(), Case, Settings :: map()) -> [{Key :: binary(), float()}]
              when Case :: {Name :: string(), What :: string(), beamway_bench_lanes:load(), Processes :: pos_integer()}.
cost(#{members := [One, Two]} = Cluster, Way, {_, What, Load, Processes}, #{warm_ms := WarmMs, window_ms := Ms}) ->
    [_, Second] = beamway_bench_nodes:names(Cluster),
    %% A new one has an empty mailbox.
    _ = beamway_bench_nodes:call(Two, beamway_bench_lanes, start_sink, [Way]),
    ok = beamway_bench_nodes:call(One, beamway_bench_lanes, start_load, [Way, Second, Load, Processes]),
    receive after WarmMs -> ok end,
    Before = sample(Cluster),
    receive after Ms -> ok end,
    After = sample(Cluster),
    _ = beamway_bench_nodes:call(One, beamway_bench_lanes, stop, []),
    figures(What, Before, After).

sample(#{members := [One | _]} = Cluster) ->
    Times = [beamway_bench_os:cpu_us(OsPid) || OsPid <- beamway_bench_nodes:os_pids(Cluster)],
    {beamway_bench_nodes:call(One, beamway_bench_lanes, done, []), lists:sum([User + Kernel || #{user := User, kernel := Kernel} <- Times])}.

figures(What, {{Before, From}, Earlier}, {{After, Until}, Later}) when After > Before ->
    [{cpu_key(What), (Later - Earlier) / (After - Before)}, {rate_key(What), (After - Before) * 1.0e6 / (Until - From)}];
figures(What, _, _) -> error({nothing_done, What}).

%% Four streams, together at a pace that both contenders can keep.
beside(#{members := [One, Two]} = Cluster, Way, Ms) ->
    [_, Second] = beamway_bench_nodes:names(Cluster),
    _ = beamway_bench_nodes:call(Two, beamway_bench_lanes, start_sink, [Way]),
    ok = beamway_bench_nodes:call(One, beamway_bench_lanes, start_streams, [Way, Second, ?STREAM_BYTES, ?STREAM_RATE]),
    Us = [Ns / 1000 || Ns <- beamway_bench_nodes:call(One, beamway_bench_lanes, heartbeat, [Way, Second, 1, Ms], Ms + 60000)],
    Rate = beamway_bench_nodes:call(One, beamway_bench_lanes, stop, []),
    [{beside_key("p50"), beamway_bench_stats:percentile(50, Us)}, {beside_key("p99"), beamway_bench_stats:percentile(99, Us)},
     {?STREAMS, Rate * ?STREAM_BYTES / 1.0e6}].

%% @doc The key of the processor time.
-spec cpu_key(What :: string()) -> binary().
cpu_key(What) -> iolist_to_binary([What, ": processor time"]).

%% @doc The key of the operations of a second.
-spec rate_key(What :: string()) -> binary().
rate_key(What) -> iolist_to_binary([What, ": rate"]).

beside_key(What) -> iolist_to_binary([?BESIDE, ", ", What]).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{}) ->
    lists:append([[metric([Name, "_cpu"], <<"us/op">>, lower, cpu_key(What)), metric([Name, "_rate"], <<"1/s">>, higher, rate_key(What))]
                  || {Name, What, _, _} <- cases()])
        ++ [metric(["beside_10m_", What], <<"us">>, lower, beside_key(What)) || What <- ["p50", "p99"]]
        ++ [metric("beside_10m_streams", <<"MB/s">>, higher, ?STREAMS)].

metric(Name, Unit, Better, Key) ->
    #{name => iolist_to_binary(["lane_", Name]), unit => Unit, better => Better, key => Key, contender => lanes, baselines => [beamway]}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

figures_test() ->
    ?assertEqual(#{<<"x: processor time">> => 2.5, <<"x: rate">> => 400.0}, maps:from_list(figures("x", {{100, 0}, 1000}, {{300, 500000}, 1500}))).

%% Real nodes: both ways give all figures that the metrics name.
real_nodes_test_() ->
    {timeout, 120, fun() ->
        Settings = #{warm_ms => 20, window_ms => 400, beside_ms => 100},
        {ok, Samples} = beamway_bench_run:in_a_process(fun() -> beamway_bench_run:run(groups(Settings), run_options()) end),
        ?assertEqual([], [{Name, Key} || #{key := Key} <- metrics(#{}), Name <- [beamway, lanes], not is_map_key({Name, Key}, Samples)])
    end}.

run_options() ->
    #{repeats => 1, fresh => true, budget_ms => infinity, progress => fun(_, _) -> ok end,
      contenders => beamway_bench_contender:all(beamway_bench_nodes:root(), 50)}.

%% Calls of a dead server would be cheap ones.
a_dead_server_fails_the_load_test_() ->
    {timeout, 60, fun() ->
        Measure = fun(#{members := [One, Two]} = Cluster) ->
                          [_, Second] = beamway_bench_nodes:names(Cluster),
                          _ = beamway_bench_nodes:call(Two, beamway_bench_lanes, start_server, []),
                          ok = beamway_bench_nodes:call(One, beamway_bench_lanes, start_load, [stock, Second, call, 2]),
                          Server = beamway_bench_nodes:call(Two, erlang, whereis, [beamway_bench_server]),
                          true = beamway_bench_nodes:call(Two, erlang, exit, [Server, kill]),
                          until_it_fails(One)
                  end,
        Group = #{nodes => 2, contenders => [tcp], directions => [forward], measure => Measure},
        ?assertMatch({error, {error, _, _}}, beamway_bench_run:in_a_process(fun() -> beamway_bench_run:run([Group], run_options()) end))
    end}.

%% If the load went on, the deadline of the test would end this.
until_it_fails(One) ->
    _ = beamway_bench_nodes:call(One, beamway_bench_lanes, done, []),
    until_it_fails(One).

nothing_done_is_no_figure_test() ->
    ?assertError({nothing_done, "x"}, figures("x", {{7, 0}, 0}, {{7, 1}, 10})).

metrics_test() ->
    Names = [Name || #{name := Name} <- metrics(#{})],
    ?assertEqual([], [<<"lane_m100_s1_cpu">>, <<"lane_calls_c1000_rate">>, <<"lane_beside_10m_p99">>] -- Names),
    ?assertEqual(length(Names), length(lists:usort(Names))).
-endif.
