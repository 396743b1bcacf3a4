%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench placement': consists of several parts, each of which measures an aspect of the application `placement'. A part is a module with
%% `metrics/0', `repeats/1' and `measure/2'.
%%
%% There is no other carrier or library to compare with, so the results either have no rival or compare policies within a part. Each part is stored
%% separately, because all parts together take a quarter of an hour.
-module(beamway_bench_placement).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).

%% Returns the name of each part and its module.
parts() ->
    [{"herd", beamway_bench_herd},
     {"cluster", beamway_bench_cluster},
     {"attributes", beamway_bench_mlaco},
     {"distances", beamway_bench_mlaco_net},
     {"nodes", beamway_bench_placement_nodes},
     {"map", beamway_bench_map}].

names() -> [Name || {Name, _} <- parts()].

%% @private
options() ->
    [{part, undefined, "part", string, "measure only these parts: " ++ lists:flatten(lists:join(", ", names()))}].

%% @private
prepare(Given, Speed) ->
    Names = string:lexemes(proplists:get_value(part, Given, lists:flatten(lists:join(",", names()))), ","),
    case [Name || Name <- Names, not lists:keymember(Name, 1, parts())] of
        [] when Names =/= [] ->
            Modules = [Module || {Name, Module} <- parts(), lists:member(Name, Names)],
            Own = maps:from_list([{Module, Module:repeats(Speed)} || Module <- Modules]),
            %% A picture is drawn from the values of each repeat.
            Facts = maps:from_list([{drawn, true} || Module <- Modules, lists:member(Module, [beamway_bench_mlaco, beamway_bench_mlaco_net])]),
            {ok, #{parts => Modules, speed => Speed, budget_ms => infinity, own_repeats => Own, facts => Facts,
                   repeats => proplists:get_value(repeats, Given, lists:max(maps:values(Own)))}};
        Unknown -> {error, io_lib:format("--part ~ts: there is no such part; there are: ~ts", [lists:join(",", Unknown), lists:join(", ", names())])}
    end.

%% @private
groups(#{parts := Parts, speed := Speed, own_repeats := Own}) ->
    [#{nodes => 0, contenders => [beamway], directions => [forward], measure => fun(none) -> measured(Module, Speed, maps:get(Module, Own)) end} || Module <- Parts].

%% A part whose result would be the same each time is measured only in the first repeat.
measured(Module, Speed, Repeats) ->
    Repeat = case get(Module) of undefined -> 1; Before -> Before + 1 end,
    _ = put(Module, Repeat),
    case Repeat =< Repeats of
        true -> Module:measure(Speed, Repeat);
        false -> #{}
    end.

%% @private
metrics(#{parts := Parts}) ->
    [Metric#{contender => beamway, baselines => []} || Module <- Parts, Metric <- Module:metrics()].
