%% SPDX-License-Identifier: Apache-2.0
%% @doc The arithmetic of the benchmarks: medians, percentiles, spreads and ratios. All functions are pure.
%%
%% Every value of a run is a median over its repeats. `spread' is the range of the middle half of the repeats, relative to the median, so that a
%% single outlier can neither hide a difference nor cause one.
%%
%% A ratio compares two contenders within each repeat, because disturbances on the machine affect both. Its value is the median of the repeats'
%% ratios. Its interval is based on order statistics: whatever the distribution of the ratios, it contains their true median with a probability of at
%% least 95 % if the repeats are independent. (H. A. David, H. N. Nagaraja: Order Statistics, 3rd ed., section 7.1.) Such an interval needs at least
%% six ratios; we require seven. With fewer, only the range is reported.
-module(beamway_bench_stats).

-export([median/1, percentile/2, spread/1, ratio/2, sign/2, worse/2, verdict/2, significant/1, least_repeats/0]).

-export_type([better/0, interval/0, verdict/0]).

-type better() :: higher | lower.
%% Whether high or low values are better: high for calls per second, low for round-trip times.
-type interval() :: {Low :: float(), High :: float()} | {range, Least :: float(), Most :: float()} | unknown.
%% With two to six repeats there is a range instead of an interval. With one repeat there is neither.
-type verdict() :: wins | even | loses | unknown.

-define(LEAST_REPEATS, 7).
-define(DOUBT, 0.05).
%% Even if each run is steady, two runs of the same code can differ by this much.
-define(EVEN, 0.02).

%% @doc Returns how many repeats a verdict needs.
-spec least_repeats() -> pos_integer().
least_repeats() -> ?LEAST_REPEATS.

%% @doc Returns the middle value, or the mean of the two middle values if their number is even.
-spec median(Values :: [number(), ...]) -> float().
median(Values) ->
    percentile(50, Values).

%% @doc Returns the P-th percentile, interpolated linearly between neighbours.
-spec percentile(P :: number(), Values :: [number(), ...]) -> float().
percentile(P, [_ | _] = Values) when P >= 0, P =< 100 ->
    Sorted = lists:sort(Values),
    Place = P / 100 * (length(Sorted) - 1),
    Below = trunc(Place),
    between(lists:nthtail(Below, Sorted), Place - Below).

between([Last], _) -> float(Last);
between([Low, High | _], Share) -> Low + Share * (High - Low).

%% @doc Returns the range of the middle half of the values, relative to their median, or 0 if the median is 0.
-spec spread(Values :: [number(), ...]) -> float().
spread(Values) ->
    share(percentile(75, Values) - percentile(25, Values), median(Values)).

share(_, Whole) when Whole == 0 -> 0.0;
share(Part, Whole) -> Part / Whole.

%% @doc Returns the median of the repeats' ratios, and its interval; `none' for a baseline of 0. Both lists are in the order of the repeats. If their
%% lengths differ, the values do not form pairs, so only the ratio of the medians is known.
-spec ratio(Values :: [number(), ...], Baseline :: [number(), ...]) -> {Ratio :: float(), interval()} | none.
ratio(Values, Baseline) ->
    case ratios(Values, Baseline) of
        {ok, Ratios} -> {median(Ratios), interval(Ratios)};
        none ->
            case median(Baseline) of
                Zero when Zero == 0 -> none;
                Median -> {median(Values) / Median, unknown}
            end
    end.

%% Returns the ratio for each repeat, smallest first.
ratios(Values, Baseline) ->
    case length(Values) =:= length(Baseline) andalso not lists:any(fun(Value) -> Value == 0 end, Baseline) of
        true -> {ok, lists:sort([Value / Base || {Value, Base} <- lists:zip(Values, Baseline)])};
        false -> none
    end.

-spec interval(Ratios :: [float(), ...]) -> interval().
interval([_]) -> unknown;
interval(Ratios) when length(Ratios) < ?LEAST_REPEATS -> {range, hd(Ratios), lists:last(Ratios)};
interval(Ratios) ->
    Size = length(Ratios),
    Outside = length(lists:takewhile(fun(Few) -> 2 * at_most(Few, Size) =< ?DOUBT end, lists:seq(0, Size div 2))),
    {lists:nth(Outside, Ratios), lists:nth(Size + 1 - Outside, Ratios)}.

%% Returns the probability of at most `Few' heads in `Throws' coin tosses.
at_most(Few, Throws) -> lists:sum([choose(Throws, Heads) || Heads <- lists:seq(0, Few)]) / (1 bsl Throws).

choose(_, 0) -> 1;
choose(Of, Some) -> choose(Of - 1, Some - 1) * Of div Some.

%% @doc Returns the probability that this many ratios lie on the same side of 1, by more than 2 %, although the true median does not (the two-sided
%% sign test); `none' if the values do not form pairs.
-spec sign(Values :: [number(), ...], Baseline :: [number(), ...]) -> float() | none.
sign(Values, Baseline) ->
    case ratios(Values, Baseline) of
        none -> none;
        {ok, Ratios} ->
            Most = max(length([Ratio || Ratio <- Ratios, Ratio > 1 + ?EVEN]), length([Ratio || Ratio <- Ratios, Ratio < 1 - ?EVEN])),
            min(1.0, 2 * at_most(length(Ratios) - Most, length(Ratios)))
    end.

%% @doc Returns the largest of these probabilities that is still significant, or 0 if none is. The threshold is chosen so that at most 5 % of all
%% verdicts are expected to be false. (Y. Benjamini, Y. Hochberg: Controlling the false discovery rate, 1995.)
-spec significant([float()]) -> float().
significant(Probabilities) ->
    Count = length(Probabilities),
    Ranked = lists:zip(lists:seq(1, Count), lists:sort(Probabilities)),
    lists:max([0.0 | [P || {Rank, P} <- Ranked, P =< ?DOUBT * Rank / Count]]).

%% @doc Returns the list with the worse median out of several lists of values (one for each direction of connecting).
-spec worse(better(), [{Tag, Values :: [number(), ...]}, ...]) -> {Tag, [number(), ...]}.
worse(Better, Lists) ->
    Ordered = lists:sort([{median(Values), Tag, Values} || {Tag, Values} <- Lists]),
    {_, Tag, Values} = case Better of
                           higher -> hd(Ordered);
                           lower -> lists:last(Ordered)
                       end,
    {Tag, Values}.

%% @doc Returns the verdict for an interval: a win or a loss if the whole interval lies on one side of 1, by more than 2 %; otherwise the two are
%% even.
-spec verdict(better(), interval()) -> verdict().
verdict(_, unknown) -> unknown;
verdict(_, {range, _, _}) -> unknown;
verdict(Better, {Low, _}) when Low > 1 + ?EVEN -> case Better of higher -> wins; lower -> loses end;
verdict(Better, {_, High}) when High < 1 - ?EVEN -> case Better of higher -> loses; lower -> wins end;
verdict(_, _) -> even.

-ifdef(TEST).
-define(PROPER_NO_IMPORTS, true).
-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

median_test_() ->
    [?_assertEqual(Want, median(Values))
     || {Want, Values} <- [{3.0, [3]}, {2.5, [4, 1, 2, 3]}, {2.0, [9, 1, 2]}, {-1.0, [-1, -1, 5]}]].

percentile_test_() ->
    Values = lists:seq(1, 101),
    [?_assertEqual(1.0, percentile(0, Values)), ?_assertEqual(101.0, percentile(100, Values)),
     ?_assertEqual(100.0, percentile(99, Values)), ?_assertEqual(1.5, percentile(25, [1, 2, 3])),
     ?_assertError(function_clause, percentile(50, [])),
     ?_assertError(function_clause, percentile(101, [1]))].

spread_test_() ->
    [?_assertEqual(0.0, spread([7])), ?_assertEqual(0.0, spread([0, 0, 0])),
     ?_assertEqual(0.5, spread([1, 2, 3])),
     %% A single outlier among nine repeats does not change the spread.
     ?_assertEqual(0.0, spread([5, 5, 5, 5, 5, 5, 5, 5, 900]))].

ratio_test_() ->
    [?_assertEqual({2.0, {2.0, 2.0}}, ratio([2 || _ <- lists:seq(1, 7)], [1 || _ <- lists:seq(1, 7)])),
     ?_assertEqual({2.0, {range, 1.0, 3.0}}, ratio([2, 3, 1, 2, 2, 2], [1, 1, 1, 1, 1, 1])),
     ?_assertEqual(none, ratio([1], [0])),
     ?_assertEqual({2.0, unknown}, ratio([2], [1])),
     ?_assertEqual({2.0, {range, 2.0, 2.0}}, ratio([2, 2], [1, 1])),
     %% A repeat whose baseline is 0 does not have a ratio, but the others do.
     ?_assertEqual({2.0, unknown}, ratio([2, 2, 2], [0, 1, 1])),
     ?_assertEqual({2.0, unknown}, ratio([2, 2, 2], [1, 1]))].

%% The numbers come from tables of the sign test: 1, 1, 2, 2, 3, 4 and 6 ratios are left out at each end.
interval_test_() ->
    [?_assertEqual({7.0, {float(Cut), float(Size + 1 - Cut)}}, setelement(1, ratio(lists:seq(1, Size), [1 || _ <- lists:seq(1, Size)]), 7.0))
     || {Size, Cut} <- [{7, 1}, {8, 1}, {9, 2}, {11, 2}, {12, 3}, {15, 4}, {20, 6}]].

sign_test_() ->
    Ones = [1 || _ <- lists:seq(1, 7)],
    [?_assertEqual(2 / 128, sign([2 || _ <- Ones], Ones)), ?_assertEqual(16 / 128, sign([2, 2, 2, 2, 2, 2, 1], Ones)),
     ?_assertEqual(2 / 128, sign([0.5 || _ <- Ones], Ones)), ?_assertEqual(1.0, sign(Ones, Ones)), ?_assertEqual(none, sign([1, 2], [1])),
     ?_assertEqual(none, sign([1], [0]))].

significant_test_() ->
    [?_assertEqual(0.0, significant([])), ?_assertEqual(0.0, significant([0.06])), ?_assertEqual(0.05, significant([0.05])),
     %% One comparison in a hundred with p = 0.004 is not significant, but ninety of them are.
     ?_assertEqual(0.0, significant([0.004 | lists:duplicate(99, 0.9)])), ?_assertEqual(0.004, significant(lists:duplicate(90, 0.004) ++ lists:duplicate(10, 0.9)))].

%% The machine's speed varies by a factor of up to ten, but the ratio is two in every repeat.
what_meets_both_cancels_out_test() ->
    Machine = [1, 10, 2, 7, 3, 9, 4, 8, 5],
    ?assertEqual({2.0, {2.0, 2.0}}, ratio([2 * M || M <- Machine], Machine)).

%% The first contender is better in five of nine repeats, but never by much, so its good median must not make it win.
the_steadier_does_not_win_test() ->
    Steady = lists:duplicate(9, 100),
    Wild = [60, 150, 70, 140, 98, 130, 90, 97, 120],
    {_, Interval} = ratio(Wild, Steady),
    ?assertEqual(even, verdict(higher, Interval)),
    ?assertEqual(even, verdict(lower, Interval)).

samples() ->
    ?LET(N, proper_types:integer(7, 16), list_to_tuple([proper_types:vector(N, proper_types:float(1.0, 1000.0)) || _ <- [values, baseline]])).

properties() ->
    [{"the ratio lies in its interval, and that among the ratios of the repeats",
      ?FORALL({Values, Base}, samples(),
              begin
                  {Ratio, {Low, High}} = ratio(Values, Base),
                  Ratios = [V / B || {V, B} <- lists:zip(Values, Base)],
                  lists:min(Ratios) =< Low andalso Low =< Ratio andalso Ratio =< High andalso High =< lists:max(Ratios)
              end)},
     {"the order of the repeats says nothing",
      ?FORALL({Values, Base}, samples(), ratio(Values, Base) =:= ratio(lists:reverse(Values), lists:reverse(Base)))},
     {"what is beside itself is even", ?FORALL({Values, _}, samples(), begin {_, I} = ratio(Values, Values), verdict(higher, I) =:= even end)},
     {"what wins one way round loses the other way",
      ?FORALL({{Values, Base}, Better}, {samples(), proper_types:oneof([higher, lower])},
              begin
                  {_, I} = ratio(Values, Base),
                  Opposite = case Better of higher -> lower; lower -> higher end,
                  lists:sort([verdict(Better, I), verdict(Opposite, I)]) =/= [wins, wins]
                      andalso (verdict(Better, I) =:= wins) =:= (verdict(Opposite, I) =:= loses)
              end)}].

properties_test_() ->
    [{timeout, 60, {Name, ?_assert(proper:quickcheck(Property, [quiet, {to_file, user}, {numtests, 50}]))}} || {Name, Property} <- properties()].

worse_test_() ->
    Lists = [{forward, [1, 2, 3]}, {reverse, [2, 3, 4]}],
    [?_assertMatch({forward, [1, 2, 3]}, worse(higher, Lists)),
     ?_assertMatch({reverse, [2, 3, 4]}, worse(lower, Lists))].

verdict_test_() ->
    [?_assertEqual(Want, verdict(Better, Interval))
     || {Want, Better, Interval} <-
            [{wins, higher, {1.9, 2.1}}, {loses, higher, {0.7, 0.9}}, {even, higher, {0.9, 1.1}},
             {wins, lower, {0.6, 0.9}}, {loses, lower, {1.1, 1.4}}, {even, lower, {0.9, 1.3}},
             {even, higher, {1.0, 1.0}}, {even, lower, {1.015, 1.2}}, {loses, lower, {1.025, 1.03}},
             {unknown, lower, unknown}, {unknown, lower, {range, 0.1, 0.2}}]].
-endif.
