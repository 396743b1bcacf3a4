%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench beside': how long does a small call, or a 100 KB message, take while four streams of large messages use the same connection with plain
%% `!'?
%%
%% Every millisecond a `gen_server:call' with 64 B starts, whether or not the previous calls have returned (open loop). Its time is measured from
%% its planned start, so that a delay of the sender counts in full. The streams send as fast as the connection permits. The nodes run on the
%% loopback interface, on hosts that are joined by veth, and on hosts that are joined by emulated paths with 1 Gbit/s. On loopback, the benchmark
%% then also sends a 100 KB message every 10 ms in the same manner, and measures the time until an answer of a few bytes arrives. The benchmark needs
%% root.
%%
%% Tuned TCP does not take part, because it was tuned for calls and streams that run alone: its large buffers are the wrong choice here.
-module(beamway_bench_beside).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).
%% Called by beamway_bench_between_hosts.
-export([measure/3, key/2]).

-define(PATHS, [loopback, veth, path_1ms, path_20ms]).
-define(BYTES, 10000000).
-define(MEDIUM, 100000).
-define(MEDIUM_EVERY_MS, 10).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{path, undefined, "path", string, "only this one: loopback, veth, path_1ms or path_20ms"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case beamway_bench_net:chosen_or_loopback(proplists:get_value(path, Given, all), ?PATHS) of
        {error, Why} -> {error, Why};
        {ok, Paths, Nets} -> {ok, (settings(Paths, Speed))#{facts => beamway_bench_net:facts(Nets)}}
    end.

settings(Paths, quick) -> #{paths => Paths, warm_ms => 300, ms => 1000, budget_ms => 36000 * length(Paths)};
settings(Paths, full) -> #{paths => Paths, warm_ms => 1000, ms => 5000}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{paths := Paths} = Settings) ->
    [maps:merge(case Path of loopback -> #{}; _ -> #{net => Path} end,
                #{nodes => 2, contenders => contenders(Path), directions => [forward], measure => fun(Cluster) -> measure(Path, Cluster, Settings) end})
     || Path <- Paths].

contenders(loopback) -> [tcp, tls, beamway, beamway_tcp, beamway_tls];
contenders(_) -> [tcp, tls, beamway_tcp, beamway_tls].

%% @doc Measures the calls and the streams on this path.
-spec measure(loopback | beamway_bench_net:name(), beamway_bench_nodes:cluster(), #{warm_ms := pos_integer(), ms := pos_integer(), _ => _}) -> beamway_bench_run:figures().
measure(Path, #{members := [One, Two]} = Cluster, #{warm_ms := WarmMs, ms := Ms}) ->
    [_, Second] = Names = beamway_bench_nodes:names(Cluster),
    _ = [beamway_bench_nodes:call(Two, beamway_bench_messages, Start, []) || Start <- [start_server, start_sink]],
    Way = beamway_bench_messages:open(Cluster, Names),
    ok = beamway_bench_nodes:call(One, beamway_bench_messages, start_streams, [Way, Second, ?BYTES, infinity]),
    _ = beamway_bench_nodes:call(One, beamway_bench_messages, planned_calls, [Way, Second, WarmMs], WarmMs + 90000),
    {Sent, From} = beamway_bench_nodes:call(One, beamway_bench_messages, done, []),
    Times = beamway_bench_nodes:call(One, beamway_bench_messages, planned_calls, [Way, Second, Ms], Ms + 90000),
    {SentThen, Until} = beamway_bench_nodes:call(One, beamway_bench_messages, done, []),
    Medium = medium(Path, One, [Way, Second, ?MEDIUM, ?MEDIUM_EVERY_MS, Ms], Ms + 90000),
    _ = beamway_bench_nodes:call(One, beamway_bench_messages, stop, []),
    Us = [Time / 1000 || Time <- Times],
    Medium#{key(Path, p50) => beamway_bench_stats:percentile(50, Us), key(Path, p99) => beamway_bench_stats:percentile(99, Us), key(Path, max) => lists:max(Us),
            key(Path, rate) => (SentThen - Sent) * ?BYTES / (Until - From)}.

medium(loopback, One, Args, TimeoutMs) ->
    Us = [Time / 1000 || Time <- beamway_bench_nodes:call(One, beamway_bench_messages, planned_messages, Args, TimeoutMs)],
    #{medium_key(p50) => beamway_bench_stats:percentile(50, Us), medium_key(p99) => beamway_bench_stats:percentile(99, Us)};
medium(_Path, _One, _Args, _TimeoutMs) ->
    #{}.

medium_key(What) -> unicode:characters_to_binary([words(loopback), ": message of 100 KB beside 10 MB, ", atom_to_list(What)]).

%% @doc Returns the table row's label: the percentiles of the calls, their maximum, or the rate of
%% the streams.
-spec key(loopback | beamway_bench_net:name(), p50 | p99 | max | rate) -> beamway_bench_run:key().
key(Path, rate) -> unicode:characters_to_binary([words(Path), ": messages of 10 MB beside the call"]);
key(Path, What) -> unicode:characters_to_binary([words(Path), ": call of 64 B beside 10 MB, ", atom_to_list(What)]).

words(loopback) -> "loopback";
words(Path) -> beamway_bench_net:title(Path).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{paths := Paths}) ->
    [(metric(What))#{name => iolist_to_binary(["beside_", Name, "_", atom_to_list(What)]), key => key(Path, What), contender => Own, baselines => Others}
     || {Path, Name, Own, Others} <- compared(), lists:member(Path, Paths), What <- [p50, p99, max, rate]]
        ++ [(metric(What))#{name => iolist_to_binary(["beside_100k_", Name, "_", atom_to_list(What)]), key => medium_key(What), contender => Own,
                            baselines => Others}
            || lists:member(loopback, Paths), {loopback, Name, Own, Others} <- compared(), lists:member(Name, ["shm", "tcp"]), What <- [p50, p99]].

compared() ->
    [{loopback, "shm", beamway, [tcp]}, {loopback, "tcp", beamway_tcp, [tcp]}, {loopback, "tls", beamway_tls, [tls, beamway_tcp]}
     | [{Path, Name ++ Tag, Own, Others} || {Path, Name} <- [{veth, "veth"}, {path_1ms, "path"}, {path_20ms, "path_20ms"}],
                                            {Tag, Own, Others} <- [{"", beamway_tcp, [tcp]}, {"_tls", beamway_tls, [tls, beamway_tcp]}]]].

metric(rate) -> #{unit => <<"MB/s">>, better => higher};
metric(_) -> #{unit => <<"us">>, better => lower}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Checks that every metric named on the pages exists, and that every contender that takes part in a comparison is also measured.
metrics_test() ->
    Metrics = metrics(settings(?PATHS, full)),
    [?assert(lists:member(Name, [N || #{name := N} <- Metrics]))
     || Name <- [<<"beside_shm_p99">>, <<"beside_tcp_p99">>, <<"beside_path_p99">>, <<"beside_veth_p99">>, <<"beside_path_20ms_tls_p99">>, <<"beside_shm_rate">>, <<"beside_path_rate">>,
                 <<"beside_100k_shm_p99">>, <<"beside_100k_tcp_p50">>]],
    [?assert(lists:member(Name, contenders(Path))) || {Path, _, Own, Others} <- compared(), Name <- [Own | Others]].

one_path_test() ->
    ?assertEqual([], [N || #{name := <<"beside_path", _/binary>> = N} <- metrics(settings([loopback], quick))]).
-endif.
