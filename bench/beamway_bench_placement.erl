%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench placement': parts that each measure something of the application `placement'; a part is a module with `metrics/0' and `measure/1'.
%%
%% There is no other carrier or library to compare with, so the figures stand alone or compare policies with each other within a part.
-module(beamway_bench_placement).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1, finish/2]).

%% Name of a part and its module.
parts() ->
    [{"herd", beamway_bench_herd},
     {"cluster", beamway_bench_cluster},
     {"mlaco", beamway_bench_mlaco},
     {"nodes", beamway_bench_placement_nodes}].

%% @private
options() ->
    [{part, undefined, "part", string, "measure only these parts: " ++ lists:flatten(lists:join(", ", [Name || {Name, _} <- parts()]))}].

%% @private
prepare(Given, Speed) ->
    Names = string:lexemes(proplists:get_value(part, Given, lists:flatten(lists:join(",", [Name || {Name, _} <- parts()]))), ","),
    case [Name || Name <- Names, not lists:keymember(Name, 1, parts())] of
        [] when Names =/= [] -> {ok, #{parts => [Module || {Name, Module} <- parts(), lists:member(Name, Names)], speed => Speed,
                                       repeats => proplists:get_value(repeats, Given, case Speed of full -> 3; quick -> 1 end)}};
        Unknown -> {error, io_lib:format("--part ~ts: there is no such part; there are: ~ts", [lists:join(",", Unknown), lists:join(", ", [Name || {Name, _} <- parts()])])}
    end.

%% @private
groups(#{parts := Parts, speed := Speed}) ->
    [#{nodes => 0, contenders => [beamway], directions => [forward], measure => fun(none) -> Module:measure(Speed) end} || Module <- Parts].

%% @private
metrics(#{parts := Parts}) ->
    [Metric#{contender => beamway, baselines => []} || Module <- Parts, Metric <- Module:metrics()].

%% @private
finish(_, _) -> ok.
