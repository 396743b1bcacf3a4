%% SPDX-License-Identifier: Apache-2.0
%% @doc The code shared by the two parts of `bench placement' that run ants (examples/ml_aco). Both use the same instance, make one run with a kind of
%% placement and one without it for each number of ants, report the same metrics, and draw a figure like Figures 2 and 3 of the RELEASE report.
-module(beamway_bench_ants).

-export([metrics/1, repeats/1, compared/4, instance/0, options/2, picture/2]).

-export_type([kind/0]).

-type kind() :: attributes | distances.

-define(ANTS, [1, 10, 20, 40, 80]).
-define(JOBS, 40).

%% @doc Returns the metrics: first the speed-ups, and then the times in seconds.
-spec metrics(kind()) -> [map()].
metrics(Kind) ->
    [#{name => name(Kind, Ants), unit => <<"times">>, better => higher, key => ratio_key(Kind, Ants)} || Ants <- lists:reverse(?ANTS)]
        ++ [#{name => seconds_name(Kind, Which, Ants), unit => <<"s">>, better => lower, key => key(Kind, Which, Ants)} || Ants <- ?ANTS, Which <- [with, without]].

name(Kind, 80) -> short(Kind);
name(Kind, Ants) -> iolist_to_binary([short(Kind), "_", integer_to_list(Ants)]).

seconds_name(Kind, Which, Ants) -> iolist_to_binary(io_lib:format("~s_~s_s_~b", [short(Kind), Which, Ants])).

short(attributes) -> <<"mlaco_attr">>;
short(distances) -> <<"mlaco_dist">>.

ratio_key(Kind, Ants) -> text("ML-ACO, ~b ants: time without ~s over time with", [Ants, Kind]).
key(Kind, Which, Ants) -> text("ML-ACO, ~b ants: time ~s ~s", [Ants, Which, Kind]).

text(Format, Arguments) -> iolist_to_binary(io_lib:format(Format, Arguments)).

%% @doc Returns the number of repeats; a full run has five, as in the RELEASE report.
-spec repeats(full | quick) -> pos_integer().
repeats(full) -> 5;
repeats(quick) -> 1.

%% @doc Makes one run with the given kind of placement and one without it, for each number of ants (in a quick run, for only one number), and returns
%% the measurements. The cost of the solution must not depend on where the processes run.
-spec compared(kind(), full | quick, Repeat :: pos_integer(), fun((with | without, Ants :: pos_integer()) -> {Cost :: number(), Seconds :: float()})) -> #{binary() => float()}.
compared(Kind, Speed, Repeat, Solve) ->
    All = case Speed of full -> ?ANTS; quick -> [80] end,
    %% The two runs take turns at going first.
    Order = case Repeat rem 2 of 0 -> [with, without]; 1 -> [without, with] end,
    lists:foldl(fun(Ants, Acc) ->
                        Solved = [{Which, Solve(Which, Ants)} || Which <- Order],
                        [_] = lists:usort([Cost || {_, {Cost, _}} <- Solved]),
                        [{_, With}, {_, Without}] = [proplists:get_value(Which, Solved) || Which <- [with, without]],
                        ok = beamway_bench_text:note("bench placement: ML-ACO with ~b ants: ~.2f s with ~s, ~.2f s without", [Ants, With, Kind, Without]),
                        Acc#{ratio_key(Kind, Ants) => Without / With, key(Kind, with, Ants) => With, key(Kind, without, Ants) => Without}
                end, #{}, All).

%% @doc Returns the instance that every run solves.
-spec instance() -> ml_aco_instance:instance().
instance() -> ml_aco_instance:make(?JOBS, 1).

%% @doc Returns the options of a run. All runs make the same number of iterations, but where most of the time is spent on messages, colonies exchange
%% results twice as often.
-spec options(kind(), Ants :: pos_integer()) -> ml_aco_tree:options().
options(attributes, Ants) -> #{seed => 1, ants => Ants, rounds => 3, iterations => 4};
options(distances, Ants) -> #{seed => 1, ants => Ants, rounds => 6, iterations => 2}.

%% @doc Returns the picture of a stored result's numbers, and the numbers in it: the times and their ratio as functions of the number of ants, with the
%% smallest and the largest run.
-spec picture(kind(), Figures :: [#{binary() => term()}]) -> {Data :: unicode:chardata(), Svg :: unicode:chardata()}.
picture(Kind, Figures) ->
    Line = fun(Key) -> [point(Ants, Samples) || Ants <- ?ANTS, #{<<"key">> := K, <<"samples">> := Samples} <- Figures, K =:= Key(Ants)] end,
    [With, Without, Ratio] = Lines = [Line(fun(Ants) -> key(Kind, with, Ants) end), Line(fun(Ants) -> key(Kind, without, Ants) end), Line(fun(Ants) -> ratio_key(Kind, Ants) end)],
    Svg = beamway_bench_panels:draw(
            #{title => "ML-ACO, five runs each", legend => [io_lib:format("with ~s", [Kind]), io_lib:format("without ~s", [Kind])], spread => {bars, "fastest to slowest run"},
              x => #{scale => linear, from => 0, to => 84, unit => "ants", ticks => [{Ants, integer_to_list(Ants)} || Ants <- ?ANTS]}, height => 300,
              panels => [#{title => "seconds", lines => [With, Without]}, #{title => "time without over time with", lines => [Ratio]}]}),
    {[[Name, "\n", [row(Point) || Point <- Points]] || {Name, Points} <- lists:zip(["with", "without", "ratio"], Lines)], Svg}.

point(Ants, Samples) -> {Ants, float(lists:min(Samples)), float(beamway_bench_stats:median(Samples)), float(lists:max(Samples))}.

row({Ants, Low, Middle, High}) -> io_lib:format("~b ~f ~f ~f\n", [Ants, Middle, Low, High]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

picture_test() ->
    Figures = [#{<<"key">> => ratio_key(attributes, 80), <<"samples">> => [4.0, 9.0, 5.0]}],
    {Data, Svg} = picture(attributes, Figures),
    ?assertEqual(<<"with\nwithout\nratio\n80 5.000000 4.000000 9.000000\n">>, iolist_to_binary(Data)),
    ?assertEqual(1, length(string:split(unicode:characters_to_binary(Svg), "<circle", all)) - 1).

names_are_unique_test() ->
    Names = [Name || Kind <- [attributes, distances], #{name := Name} <- metrics(Kind)],
    ?assertEqual(lists:sort(Names), lists:usort(Names)).

compared_test() ->
    Figures = compared(attributes, quick, 1, fun(with, 80) -> {7, 2.0}; (without, 80) -> {7, 9.0} end),
    ?assertEqual(4.5, maps:get(ratio_key(attributes, 80), Figures)),
    ?assertError({badmatch, [7, 8]}, compared(attributes, quick, 1, fun(with, 80) -> {7, 2.0}; (without, 80) -> {8, 9.0} end)).
-endif.
