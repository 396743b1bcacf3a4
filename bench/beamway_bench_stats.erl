%% SPDX-License-Identifier: Apache-2.0
%% @doc The arithmetic of the benchmarks: medians, percentiles, spreads and ratios. Pure.
%%
%% All figures of a run are medians over repeats. `spread' is the middle half of the repeats as a
%% share of the median, so that one odd repeat does not hide nor make a difference. The error of a
%% ratio is estimated from both spreads; two figures whose ratio lies within it of 1 are even.
-module(beamway_bench_stats).

-export([median/1, percentile/2, spread/1, standard_error/1, ratio/2, worse/2, verdict/3]).

-export_type([better/0, verdict/0]).

-type better() :: higher | lower.
%% Which way a figure is good: calls a second are better higher, round trips lower.
-type verdict() :: wins | even | loses.

%% @doc The value in the middle; of an even number of values the mean of the two in the middle.
-spec median(Values :: [number(), ...]) -> float().
median(Values) ->
    percentile(50, Values).

%% @doc The P-th percentile, with a straight line between neighbours.
-spec percentile(P :: number(), Values :: [number(), ...]) -> float().
percentile(P, [_ | _] = Values) when P >= 0, P =< 100 ->
    Sorted = lists:sort(Values),
    Place = P / 100 * (length(Sorted) - 1),
    Below = trunc(Place),
    between(lists:nthtail(Below, Sorted), Place - Below).

between([Last], _) -> float(Last);
between([Low, High | _], Share) -> Low + Share * (High - Low).

%% @doc The middle half of the values as a share of their median; 0 where there is nothing to share.
-spec spread(Values :: [number(), ...]) -> float().
spread(Values) ->
    share(percentile(75, Values) - percentile(25, Values), median(Values)).

share(_, Whole) when Whole == 0 -> 0.0;
share(Part, Whole) -> Part / Whole.

%% @doc The standard error of the median, as a share of it.
%% For values that scatter normally the middle half is 1.349 standard deviations wide, and the
%% median's error is 1.2533 times the mean's.
-spec standard_error(Values :: [number(), ...]) -> float().
standard_error(Values) ->
    1.2533 * spread(Values) / 1.349 / math:sqrt(length(Values)).

%% @doc The ratio of two medians and its error (two standard errors); `none' over a baseline of 0.
%% From single values nobody can tell how far off they are: the error is `unknown'.
-spec ratio(Values :: [number(), ...], Baseline :: [number(), ...]) ->
          {Ratio :: float(), Error :: float() | unknown} | none.
ratio(Values, Baseline) ->
    case median(Baseline) of
        Zero when Zero == 0 -> none;
        Median when tl(Values) =:= []; tl(Baseline) =:= [] -> {median(Values) / Median, unknown};
        Median ->
            Ratio = median(Values) / Median,
            {Ratio, 2 * Ratio * math:sqrt(square(standard_error(Values))
                                          + square(standard_error(Baseline)))}
    end.

square(X) -> X * X.

%% @doc Of several lists of values (one a direction of connecting) the one with the worse median.
-spec worse(better(), [{Tag, Values :: [number(), ...]}, ...]) -> {Tag, [number(), ...]}.
worse(Better, Lists) ->
    Ordered = lists:sort([{median(Values), Tag, Values} || {Tag, Values} <- Lists]),
    {_, Tag, Values} = case Better of
                           higher -> hd(Ordered);
                           lower -> lists:last(Ordered)
                       end,
    {Tag, Values}.

%% @doc What a ratio means, given which way is good and how sure it is.
%% Less than 2 % is even in any case: two runs of the same thing differ by more.
-spec verdict(better(), Ratio :: float(), Error :: float() | unknown) -> verdict() | unknown.
verdict(_, _, unknown) -> unknown;
verdict(_, Ratio, Error) when abs(Ratio - 1) =< Error; abs(Ratio - 1) =< 0.02 -> even;
verdict(higher, Ratio, _) when Ratio > 1 -> wins;
verdict(lower, Ratio, _) when Ratio < 1 -> wins;
verdict(_, _, _) -> loses.

-ifdef(TEST).
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
     %% one wild repeat in nine does not move it
     ?_assertEqual(0.0, spread([5, 5, 5, 5, 5, 5, 5, 5, 900]))].

ratio_test_() ->
    {Wide, Error} = ratio([90, 100, 110], [40, 50, 60]),
    [?_assertEqual({2.0, 0.0}, ratio([2, 2, 2], [1, 1, 1])),
     ?_assertEqual(none, ratio([1], [0])), ?_assertEqual({2.0, unknown}, ratio([2], [1])),
     ?_assertEqual(2.0, Wide), ?_assert(Error > 0.4 andalso Error < 0.6)].

more_repeats_are_surer_test() ->
    Few = [8, 9, 10, 11, 12],
    ?assert(standard_error(Few ++ Few ++ Few) < standard_error(Few)).

worse_test_() ->
    Lists = [{forward, [1, 2, 3]}, {reverse, [2, 3, 4]}],
    [?_assertMatch({forward, [1, 2, 3]}, worse(higher, Lists)),
     ?_assertMatch({reverse, [2, 3, 4]}, worse(lower, Lists))].

verdict_test_() ->
    [?_assertEqual(Want, verdict(Better, Ratio, Error))
     || {Want, Better, Ratio, Error} <-
            [{wins, higher, 2.0, 0.1}, {loses, higher, 0.8, 0.1}, {even, higher, 0.95, 0.1},
             {wins, lower, 0.7, 0.1}, {loses, lower, 1.2, 0.1}, {even, lower, 1.05, 0.1},
             {even, higher, 1.0, 0.0}, {even, lower, 1.015, 0.0}, {loses, lower, 1.025, 0.0},
             {unknown, lower, 3.0, unknown}]].
-endif.
