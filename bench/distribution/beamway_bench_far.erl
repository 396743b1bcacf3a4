%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench far': what does compression save between sites, and what does it cost?
%%
%% The two nodes run in network namespaces that are joined by an emulated path with 100 Mbit/s or 1 Gbit/s and a round trip of 20 ms. One node
%% replicates generated data to the other ({@link beamway_bench_far_load}). An operation is one record, message or delta, and ends when the other
%% node's confirmation arrives. In the first part, an operation starts every millisecond, whether or not earlier ones have ended, and its duration
%% is measured from that time. Stock distribution sustains this rate on both paths. In the second part, many processes replicate as fast as they
%% can.
%%
%% The bytes are those that the first node's network interface sends and receives, and the CPU time is that of both nodes. The benchmark needs root.
-module(beamway_bench_far).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).
%% Also used by beamway_bench_apps, which measures other loads of beamway_bench_far_load.
-export([with_mnesia/1, at_pace/4, at_full_rate/4, on_near/4]).

-define(PATHS, [path_100m_20ms, path_20ms]).
-define(LOADS, [mnesia, json, presence]).
-define(FIGURES, [rate, bytes, bytes_full, p99, cpu, share]).
-define(WAIT_MS, 90000).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{path, undefined, "path", string, "only this one: path_100m_20ms or path_20ms"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case {beamway_bench_net:chosen(proplists:get_value(path, Given, all), ?PATHS), beamway_bench_net:check()} of
        {{error, Why}, _} -> {error, Why};
        {_, {error, Why}} -> {error, Why};
        {{ok, Paths}, ok} -> with_mnesia(settings(Paths, Speed))
    end.

%% @doc Returns the settings, or an error if mnesia is not installed.
-spec with_mnesia(Settings :: map()) -> {ok, map()} | {error, string()}.
with_mnesia(Settings) ->
    case code:lib_dir(mnesia) of
        {error, bad_name} -> {error, "missing: erlang-mnesia. Run: scripts/install-packages bench"};
        _ -> {ok, Settings}
    end.

%% A TCP stream needs several round trips to fill the path, and the compressor first spends the CPU time that it has saved up while the link was
%% idle.
settings(Paths, quick) -> (settings(Paths))#{warm_ms => 200, ms => 500, budget_ms => 30000 * length(Paths)};
settings(Paths, full) -> (settings(Paths))#{warm_ms => 2000, ms => 3000}.

settings(Paths) -> #{paths => Paths, facts => beamway_bench_net:facts(Paths)}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{paths := Paths} = Settings) ->
    [#{net => Path, nodes => 2, contenders => contenders(), directions => [forward], measure => fun(Cluster) -> measure(Path, Cluster, Settings) end}
     || Path <- Paths].

contenders() -> [tcp, tcp_tuned, beamway_tcp, beamway_far, beamway_far_10].

%% ---- a turn ----

measure(Path, #{contender := #{name := Name}} = Cluster, Settings) ->
    [_, Far] = beamway_bench_nodes:names(Cluster),
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_far_load, start, []),
    ok = on_near(Cluster, beamway_bench_far_load, connect, [Far]),
    Before = sample(Cluster),
    Figures = [{key(Path, Load, What), Figure} || Load <- ?LOADS, {What, Figure} <- paced(Load, Cluster, Settings) ++ full(Load, Cluster, Settings)],
    is_compressed(Name) =:= (compressed(Before, sample(Cluster)) > 0) orelse error({wrong_compression, Name}),
    maps:from_list(Figures).

is_compressed(Name) -> lists:member(Name, [beamway_far, beamway_far_10]).

paced(Load, Cluster, Settings) ->
    {Times, Before, After} = at_pace(Load, Cluster, Settings, fun() -> sample(Cluster) end),
    Each = fun(What) -> (maps:get(What, After) - maps:get(What, Before)) / length(Times) end,
    [{bytes, Each(bytes)}, {cpu, Each(cpu)}, {p99, beamway_bench_stats:percentile(99, Times) / 1000}].

%% @doc Starts operations at the load's fixed rate. Returns their times in nanoseconds, and what the function returned before and after them.
-spec at_pace(beamway_bench_far_load:load(), beamway_bench_nodes:cluster(), #{warm_ms := pos_integer(), ms := pos_integer(), _ => _}, fun(() -> Sample)) ->
          {[non_neg_integer(), ...], Before :: Sample, After :: Sample}.
at_pace(Load, Cluster, #{warm_ms := WarmMs, ms := Ms}, Sample) ->
    ok = on_near(Cluster, beamway_bench_far_load, once, [Load]),
    _ = on_near(Cluster, beamway_bench_far_load, paced, [Load, WarmMs]),
    Before = Sample(),
    Times = on_near(Cluster, beamway_bench_far_load, paced, [Load, Ms]),
    {Times, Before, Sample()}.

full(Load, Cluster, Settings) ->
    {{Done, Us}, Before, After} = at_full_rate(Load, Cluster, Settings, fun() -> sample(Cluster) end),
    Done > 0 orelse error({nothing_replicated, Load}),
    [{rate, Done * 1.0e6 / Us}, {bytes_full, (maps:get(bytes, After) - maps:get(bytes, Before)) / Done}
     | [{share, 100 * compressed(Before, After) / sent(Before, After)} || sent(Before, After) > 0]].

%% @doc Lets many processes perform operations as fast as they can. Returns how many they performed, in how many microseconds, and what the function
%% returned just before and just after.
-spec at_full_rate(beamway_bench_far_load:load(), beamway_bench_nodes:cluster(), #{warm_ms := pos_integer(), ms := pos_integer(), _ => _}, fun(() -> Sample)) ->
          {{Done :: non_neg_integer(), Us :: pos_integer()}, Before :: Sample, After :: Sample}.
at_full_rate(Load, Cluster, #{warm_ms := WarmMs, ms := Ms}, Sample) ->
    ok = on_near(Cluster, beamway_bench_far_load, start_callers, [Load]),
    receive after WarmMs -> ok end,
    {Before, {Done, From}} = {Sample(), on_near(Cluster, beamway_bench_messages, done, [])},
    receive after Ms -> ok end,
    {After, {DoneThen, Until}} = {Sample(), on_near(Cluster, beamway_bench_messages, done, [])},
    _ = on_near(Cluster, beamway_bench_messages, stop, []),
    ok = on_near(Cluster, beamway_bench_far_load, once, [Load]),
    {{DoneThen - Done, Until - From}, Before, After}.

%% @doc Calls a function on the first of two nodes.
-spec on_near(beamway_bench_nodes:cluster(), module(), atom(), [term()]) -> term().
on_near(#{members := [Near, _]}, Module, Function, Args) -> beamway_bench_nodes:call(Near, Module, Function, Args, ?WAIT_MS).

%% Returns the bytes and the CPU time used so far, and how many of the sent bytes had been compressed just before these were read.
sample(Cluster) ->
    maps:merge(of_link(Cluster), #{bytes => on_near(Cluster, beamway_bench_os, interface_bytes, []), cpu => beamway_bench_nodes:cpu_us(Cluster)}).

of_link(#{contender := #{link := stock}}) -> #{sent => 0, compressed => 0};
of_link(Cluster) ->
    [_, Far] = beamway_bench_nodes:names(Cluster),
    {ok, #{bytes_out := Out} = Info} = on_near(Cluster, beamway, info, [Far]),
    Compressed = maps:get(uncompressed_out, Info, 0),
    #{sent => Out + Compressed - maps:get(compressed_out, Info, 0), compressed => Compressed}.

compressed(#{compressed := Before}, #{compressed := After}) -> After - Before.

sent(#{sent := Before}, #{sent := After}) -> After - Before.

%% ---- what is reported ----

key(Path, Load, What) -> iolist_to_binary([beamway_bench_net:title(Path), ", ", words(Load), ": ", words(What)]).

words(mnesia) -> "writes of mnesia";
words(json) -> "messages of JSON";
words(presence) -> "deltas of Presence";
words(rate) -> "as many as possible";
words(bytes) -> "bytes on the path for each, 1000 a second";
words(bytes_full) -> "bytes on the path for each, as many as possible";
words(p99) -> "p99, 1000 a second";
words(cpu) -> "processor time for each, 1000 a second";
words(share) -> "compressed part of the bytes, as many as possible".

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{paths := Paths}) ->
    [(metric(What))#{name => iolist_to_binary(["far_", short(Path), "_", atom_to_list(Load), "_", atom_to_list(What), Suffix]), key => key(Path, Load, What), contender => Own,
                     baselines => case What of share -> []; _ -> [tcp, tcp_tuned, beamway_tcp] end}
     || Path <- Paths, Load <- ?LOADS, {Own, Suffix} <- [{beamway_far, ""}, {beamway_far_10, "_10"}], What <- ?FIGURES].

metric(rate) -> #{unit => <<"1/s">>, better => higher};
metric(share) -> #{unit => <<"%">>, better => higher};
metric(What) when What =:= p99; What =:= cpu -> #{unit => <<"us">>, better => lower};
metric(_) -> #{unit => <<"B">>, better => lower}.

short(path_100m_20ms) -> "100m";
short(path_20ms) -> "1g".

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics_test() ->
    Names = [Name || #{name := Name} <- metrics(settings(?PATHS, full))],
    ?assertEqual([], [<<"far_100m_mnesia_bytes">>, <<"far_100m_json_rate">>, <<"far_1g_presence_p99">>, <<"far_1g_json_cpu_10">>, <<"far_100m_json_share">>] -- Names),
    ?assertEqual(72, length(lists:usort(Names))),
    [?assert(lists:member(Name, contenders())) || #{contender := Own, baselines := Others} <- metrics(settings(?PATHS, full)), Name <- [Own | Others]].

one_path_test() ->
    ?assertEqual([], [Name || #{name := <<"far_1g_", _/binary>> = Name} <- metrics(settings([path_100m_20ms], quick))]).

%% 1000 operations per second must need only a fraction of the slower path; otherwise the part with the fixed rate would measure a queue.
stock_sustains_the_pace_test() ->
    #{paths := #{path_100m_20ms := #{rate_bits := Bits}}} = beamway_bench_net:facts(?PATHS),
    [?assert(byte_size(term_to_binary(beamway_bench_far_data:items(Load, 1000))) * 8 < Bits div 3) || Load <- ?LOADS].
-endif.
