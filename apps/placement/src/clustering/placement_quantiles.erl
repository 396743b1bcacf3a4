%% SPDX-License-Identifier: Apache-2.0
%% @doc Computes quantiles of integers quickly. All functions are pure.
%%
%% Short lists are sorted. For long lists, the range of the values is divided into 4096 intervals, the values in each are
%% counted, and the result is the middle of an interval. Sorting half a million values would take longer than clustering
%% them, and with a sample the result would depend on their order.
-module(placement_quantiles).

-export([quantiles/2, quantiles/3, median/1, sums/1]).

-export_type([sums/0]).

-type sums() :: {Count :: pos_integer(), Sum :: integer(), Squares :: non_neg_integer(), Least :: integer(), Most :: integer()}.

-define(SORTED, 512).
-define(STEPS, 4096).

%% @doc Returns the count, the sum, the sum of squares, the minimum and the maximum of some values.
-spec sums([integer(), ...]) -> sums().
sums([First | _] = Values) -> sums(Values, 0, 0, 0, First, First).

sums([Value | Values], Count, Sum, Squares, Least, Most) when Value < Least ->
    sums(Values, Count + 1, Sum + Value, Squares + Value * Value, Value, Most);
sums([Value | Values], Count, Sum, Squares, Least, Most) when Value > Most ->
    sums(Values, Count + 1, Sum + Value, Squares + Value * Value, Least, Value);
sums([Value | Values], Count, Sum, Squares, Least, Most) ->
    sums(Values, Count + 1, Sum + Value, Squares + Value * Value, Least, Most);
sums([], Count, Sum, Squares, Least, Most) -> {Count, Sum, Squares, Least, Most}.

%% @doc Returns the quantiles of some values for these fractions, which must be in ascending order.
-spec quantiles(Shares :: [float()], Values :: [integer(), ...]) -> [integer()].
quantiles(Shares, Values) -> quantiles(Shares, Values, sums(Values)).

%% @doc Like {@link quantiles/2}, for callers that already have the {@link sums/1}.
-spec quantiles(Shares :: [float()], Values :: [integer(), ...], sums()) -> [integer()].
quantiles(Shares, Values, {Length, _, _, _, _}) when Length =< ?SORTED ->
    Sorted = list_to_tuple(lists:sort(Values)),
    [element(place(Share, Length), Sorted) || Share <- Shares];
quantiles(Shares, Values, {Length, _, _, Least, Most}) ->
    Width = (Most - Least) div ?STEPS + 1,
    Steps = counters:new(?STEPS, []),
    ok = lists:foreach(fun(Value) -> counters:add(Steps, (Value - Least) div Width + 1, 1) end, Values),
    read_off([place(Share, Length) || Share <- Shares], 1, counters:get(Steps, 1), Steps, {Least, Width}).

place(Share, Length) -> max(1, ceil(Share * Length)).

read_off([Place | Places], Step, Sum, Steps, {Least, Width} = Scale) when Place =< Sum ->
    [Least + (Step - 1) * Width + Width div 2 | read_off(Places, Step, Sum, Steps, Scale)];
read_off([], _, _, _, _) -> [];
read_off(Places, Step, Sum, Steps, Scale) -> read_off(Places, Step + 1, Sum + counters:get(Steps, Step + 1), Steps, Scale).

%% @doc Returns the median.
-spec median([integer(), ...]) -> integer().
median(Values) -> hd(quantiles([0.5], Values)).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

short_test_() ->
    [?_assertEqual(3, median([5, 1, 3])), ?_assertEqual([1, 2, 4], quantiles([0.25, 0.5, 1.0], [4, 3, 2, 1])),
     ?_assertEqual(7, median([7]))].

%% The result differs by at most one interval from that of sorting, and does not depend on the order of the values.
long_test() ->
    Values = [N * N || N <- lists:seq(1, 3000)],
    Answer = quantiles([0.1, 0.5, 0.95], Values),
    ?assertEqual(Answer, quantiles([0.1, 0.5, 0.95], lists:reverse(Values))),
    [?assert(abs(Got - Want * Want) =< 9000000 div 4096 + 1) || {Got, Want} <- lists:zip(Answer, [300, 1500, 2850])].

sums_test() -> ?assertEqual({4, 4, 46, -4, 5}, sums([1, -4, 2, 5])).

all_equal_test() -> ?assertEqual(9, median(lists:duplicate(1000, 9))).
-endif.
