%% SPDX-License-Identifier: Apache-2.0
%% @doc Decides whether a metric stayed flat during a long run. The functions are pure.
%%
%% The samples after the warm-up are divided into equal intervals, of which only the medians count, so that single peaks (a garbage collection, a
%% stall) do not matter. A Theil-Sen line is fitted to the medians: its slope is the median of the slopes of all pairs, which does not change even if
%% up to 29 % of the points are outliers. Its 95 % interval is Sen's, from Kendall's statistic. A metric `grows' if the line rises by more than the
%% limit over the judged time and the interval lies above zero, so that the rise is both large and not due to chance. A metric that falls is not a
%% leak.
-module(beamway_soak_verdict).

-export([judge/3, warm_up_s/1]).
-export_type([limit/0, finding/0, points/0]).

-type points() :: [{TimeS :: number(), Value :: number()}].
-type limit() :: {Absolute :: number(), Share :: number(), NeedsS :: number()}.
%% The allowed rise over the judged time is an absolute value or a fraction of the median, whichever is larger. If the judged time is shorter than
%% `NeedsS', there is no verdict.
-type finding() :: #{verdict := flat | grows | too_short,
                     median := float(), growth := float(), low := float(), high := float(),
                     limit := float(), judged_s := float()}.
%% `growth', `low' and `high' refer to the whole judged time.

-define(STRETCHES, 40).
-define(STRETCHES_MIN, 8).

%% @doc Returns how much time at the beginning of a run is ignored.
-spec warm_up_s(DurationS :: number()) -> float().
warm_up_s(DurationS) ->
    min(300.0, DurationS * 0.2).

%% @doc Judges the samples of one metric, ignoring those before `WarmUpS'.
-spec judge(points(), WarmUpS :: number(), limit()) -> finding().
judge(Points, WarmUpS, {Absolute, Share, NeedsS}) ->
    Judged = [Point || {TimeS, _} = Point <- Points, TimeS >= WarmUpS],
    Medians = medians(Judged, ?STRETCHES),
    case length(Medians) >= ?STRETCHES_MIN of
        true ->
            JudgedS = span(Judged),
            Median = median([Value || {_, Value} <- Judged]),
            {Slope, Low, High} = line(Medians),
            Limit = float(max(Absolute, Share * Median)),
            #{verdict => verdict(JudgedS < NeedsS, Slope * JudgedS > Limit andalso Low > 0),
              median => Median, growth => Slope * JudgedS, low => Low * JudgedS, high => High * JudgedS,
              limit => Limit, judged_s => JudgedS};
        false ->
            #{verdict => too_short, median => 0.0, growth => 0.0, low => 0.0, high => 0.0,
              limit => float(Absolute), judged_s => span(Judged)}
    end.

verdict(true, _) -> too_short;
verdict(false, true) -> grows;
verdict(false, false) -> flat.

span([]) -> 0.0;
span(Points) ->
    Times = [TimeS || {TimeS, _} <- Points],
    float(lists:max(Times) - lists:min(Times)).

%% Divides the time into at most `Count' intervals, and returns the medians of the times and of the values in each interval.
-spec medians(points(), Count :: pos_integer()) -> [{float(), float()}].
medians(Points, Count) when length(Points) =< Count ->
    [{float(TimeS), float(Value)} || {TimeS, Value} <- Points];
medians(Points, Count) ->
    First = lists:min([TimeS || {TimeS, _} <- Points]),
    Width = span(Points) / Count,
    Stretch = fun(TimeS) -> min(Count - 1, trunc((TimeS - First) / Width)) end,
    Stretches = lists:foldl(fun({TimeS, _} = Point, Acc) ->
                                    maps:update_with(Stretch(TimeS), fun(Others) -> [Point | Others] end, [Point], Acc)
                            end, #{}, Points),
    [{median([TimeS || {TimeS, _} <- Some]), median([Value || {_, Value} <- Some])}
     || {_, Some} <- lists:sort(maps:to_list(Stretches))].

median(Values) -> beamway_bench_stats:median(Values).

%% Returns the Theil-Sen slope and its 95 % interval.
-spec line([{float(), float()}, ...]) -> {Slope :: float(), Low :: float(), High :: float()}.
line(Points) ->
    Slopes = lists:sort(slopes(Points)),
    Pairs = length(Slopes),
    Count = length(Points),
    Half = 1.96 * math:sqrt(Count * (Count - 1) * (2 * Count + 5) / 18),
    At = fun(Place) -> lists:nth(max(1, min(Pairs, round(Place))), Slopes) end,
    {median(Slopes), At((Pairs - Half) / 2), At((Pairs + Half) / 2 + 1)}.

slopes([]) -> [];
slopes([{TimeS, Value} | Later]) ->
    [(OtherValue - Value) / (OtherS - TimeS) || {OtherS, OtherValue} <- Later, OtherS /= TimeS] ++ slopes(Later).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Returns twenty minutes of samples, one per second, with noise that is the same each time.
samples(Value) ->
    _ = rand:seed(exsss, 42),
    [{T, Value(T)} || T <- lists:seq(0, 1200)].

verdict_of(Value) ->
    #{verdict := Verdict} = judge(samples(Value), warm_up_s(1200), {8, 0.05, 300}),
    Verdict.

noise(Width) -> (rand:uniform() - 0.5) * Width.

flat_test_() ->
    [{Name, ?_assertEqual(flat, verdict_of(Value))}
     || {Name, Value} <-
            [{"a constant", fun(_) -> 100 end},
             {"nothing at all", fun(_) -> 0 end},
             {"noise", fun(_) -> 100 + noise(60) end},
             {"garbage that is collected each minute", fun(T) -> 100 + 50 * (T rem 60) / 60 + noise(20) end},
             {"peaks", fun(T) -> case T rem 10 of 0 -> 5000; _ -> 100 end end},
             {"one long peak", fun(T) when T > 600, T < 660 -> 900; (_) -> 100 + noise(5) end},
             {"a rise in the warm-up", fun(T) -> 100 + min(T, 200) / 2 + noise(5) end},
             {"a fall", fun(T) -> 500 - T / 4 + noise(5) end},
             {"less than the limit", fun(T) -> 100 + 7 * T / 1200 + noise(2) end},
             {"much noise, little rise", fun(T) -> 1000 + 9 * T / 1200 + noise(900) end}]].

made_up_leaks_are_caught_test_() ->
    [{Name, ?_assertEqual(grows, verdict_of(Value))}
     || {Name, Value} <-
            [{"steady", fun(T) -> 100 + T / 60 end},
             {"steady under noise", fun(T) -> 100 + T / 60 + noise(30) end},
             {"under collected garbage", fun(T) -> 100 + T / 40 + 50 * (T rem 60) / 60 + noise(20) end},
             {"one step each two minutes", fun(T) -> 100 + 3 * (T div 120) + noise(3) end},
             {"with peaks", fun(T) -> case T rem 10 of 0 -> 5000; _ -> 100 + T / 60 end end},
             {"faster and faster", fun(T) -> 100 + T * T / 40000 end}]].

%% One descriptor leaks every minute.
a_lost_descriptor_a_minute_test() ->
    Points = samples(fun(T) -> 30 + T div 60 + rand:uniform(3) - 2 end),
    ?assertMatch(#{verdict := grows}, judge(Points, 240, {2, 0, 0})).

short_runs_test_() ->
    Points = [{T, 100 + T} || T <- lists:seq(0, 60)],
    [?_assertMatch(#{verdict := too_short}, judge(Points, 12, {8, 0.05, 300})),
     ?_assertMatch(#{verdict := grows}, judge(Points, 12, {8, 0.05, 0})),
     ?_assertMatch(#{verdict := too_short}, judge(lists:sublist(Points, 5), 0, {8, 0.05, 0})),
     ?_assertMatch(#{verdict := too_short, judged_s := Judged} when Judged == 0, judge([], 0, {8, 0.05, 0}))].

line_test_() ->
    {Slope, Low, High} = line([{float(T), 3.0 * T + 1} || T <- lists:seq(1, 20)]),
    [?_assert(abs(Slope - 3) < 1.0e-9), ?_assert(abs(Low - 3) < 1.0e-9), ?_assert(abs(High - 3) < 1.0e-9)].

%% For about 95 of a hundred noisy lines, the interval must contain the true slope.
interval_holds_the_slope_test() ->
    _ = rand:seed(exsss, 7),
    Holds = [held || _ <- lists:seq(1, 100),
                     {Slope, Low, High} <- [line([{float(T), 2.0 * T + 20 * rand:normal()} || T <- lists:seq(1, 40)])],
                     Low =< Slope, Slope =< High, Low =< 2, 2 =< High],
    ?assert(length(Holds) >= 88),
    ?assert(length(Holds) < 100).

medians_test_() ->
    Points = [{T, T} || T <- lists:seq(0, 999)],
    [?_assertEqual(40, length(medians(Points, 40))),
     ?_assertEqual([{1.0, 5.0}], medians([{1, 5}], 40)),
     ?_assertEqual([], medians([], 40))].
-endif.
