%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench tune-tcp': with which options does stock TCP distribution perform best? It tries all combinations of buffer sizes, delayed sending,
%% socket buffers and `+zdbbl', and compares each with stock within the same repeats.
%%
%% The candidates are compared in calls, a round trip and three streams. In all other benchmarks, the contender `tcp_tuned' is the best of them; see
%% {@link beamway_bench_tuned}.
-module(beamway_bench_tune).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1, finish/2]).

-define(STREAMS, [{64, 64, 65536}, {4096, 16, 4096}, {1 bsl 20, 1, 16}]).
-define(CALLERS, 100).

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()}.
prepare(_, Speed) ->
    All = beamway_bench_contender:all(beamway_bench_checkout:root(), 200),
    #{tcp := Stock} = All,
    {Chosen, Times} = case Speed of
                          quick -> {lists:sublist(beamway_bench_tuned:candidates(), 4), #{warm_ms => 50, window_ms => 150}};
                          full -> {beamway_bench_tuned:candidates(), #{warm_ms => 200, window_ms => 600}}
                      end,
    Candidates = [Stock#{name := Name, title := "stock TCP", args := Args} || {Name, Args} <- Chosen],
    {ok, Times#{candidates => [Name || #{name := Name} <- Candidates],
                contenders => maps:merge(All, maps:from_list([{Name, Candidate} || #{name := Name} = Candidate <- Candidates]))}}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{candidates := Names} = Settings) ->
    [#{nodes => 2, contenders => Names, directions => [forward], measure => fun(Cluster) -> measure(Cluster, Settings) end}].

measure(#{members := [One, _]} = Cluster, #{warm_ms := WarmMs, window_ms := Ms} = Settings) ->
    [First, Second] = beamway_bench_nodes:names(Cluster),
    Both = load(Cluster, [First, Second], ?CALLERS, rpc, 16, Settings),
    {Rate, _} = beamway_bench_hist:rate_and_p99(Both),
    [#{counts := Counts}] = load(Cluster#{members := [One]}, [Second], 1, echo, 64, Settings),
    Streams = [begin
                   Stream = #{target => Second, bytes => Bytes, ms => Ms, batch => Batch, window => Window},
                   _ = beamway_bench_nodes:call(One, beamway_bench_load, stream, [Stream#{ms := WarmMs}], 60000),
                   #{messages := Messages, elapsed_ns := Ns} = beamway_bench_nodes:call(One, beamway_bench_load, stream, [Stream], 60000),
                   {key(Bytes), Messages * 1.0e9 / Ns}
               end || {Bytes, Batch, Window} <- ?STREAMS],
    maps:from_list([{key(calls), Rate}, {key(rtt), beamway_bench_hist:percentile(50, Counts) / 1000} | Streams]).

load(Cluster, Targets, Callers, Kind, Bytes, #{warm_ms := WarmMs, window_ms := Ms}) ->
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, start, [#{kind => Kind, callers => Callers, targets => Targets, bytes => Bytes}]),
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, window, [WarmMs], WarmMs + 30000),
    Windows = beamway_bench_nodes:all(Cluster, beamway_bench_load, window, [Ms], Ms + 30000),
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, stop, []),
    Windows.

key(calls) -> <<"calls, 2 nodes">>;
key(rtt) -> <<"round trip 64 B">>;
key(Bytes) -> unicode:characters_to_binary(["messages of ", beamway_bench_text:size_words(Bytes)]).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{candidates := Names}) ->
    [#{name => iolist_to_binary(["tune_", What, "_", atom_to_list(Name)]), unit => Unit, better => Better, key => key(Key), contender => Name, baselines => [tcp]}
     || Name <- Names, Name =/= tcp,
        {What, Key, Unit, Better} <- [{"calls", calls, <<"calls/s">>, higher}, {"rtt", rtt, <<"us">>, lower}
                                      | [{integer_to_list(Bytes), Bytes, <<"messages/s">>, higher} || {Bytes, _, _} <- ?STREAMS]]].

%% @private Prints the candidates, best first.
-spec finish(beamway_bench_report:result(), map()) -> ok.
finish(Result, #{json := false}) ->
    Object = jiffy:decode(jiffy:encode(beamway_bench_report:to_json(Result)), [return_maps]),
    io:format("~n~ts", [beamway_bench_text:table([["candidate", "score"] | [[Name, io_lib:format("~.3f", [Score])] || {Score, Name} <- beamway_bench_tuned:scores(Object)]])]);
finish(_, _) -> ok.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% The number of repeats is the same for all benchmarks, as documented in --help.
repeats_test_() ->
    [?_assertNot(is_map_key(repeats, Settings)) || Speed <- [quick, full], {ok, Settings} <- [prepare([], Speed)]].
-endif.
