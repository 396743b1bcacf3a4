%% SPDX-License-Identifier: Apache-2.0
%% @doc Estimates the times between nodes that were not measured. All functions are pure.
%%
%% In a hierarchy, the two longest of the three times between any three nodes are equal (the three-point condition of an
%% ultrametric; J.-P. Barthelemy and A. Guenoche, "Trees and Proximity Representations", 1991). So if the times from both
%% nodes of a pair to a third node `k' were measured, the longer of these two times is an upper bound for the pair, and is
%% exact if `k' is in the smallest group that contains both nodes. The lowest such bound is the level of that group.
%% Because measured times are noisy, the estimate is the median of the bounds that are at most 16 % above the lowest;
%% {@link placement_mdl} does not distinguish levels that are closer than this.
-module(placement_gaps).

-export([filled/1, refined/3, symmetric/1]).

-define(NEAR, 1.16).

%% @doc Returns the rows with each `undefined' replaced by an estimate.
-spec filled(Rows :: tuple()) -> tuple().
filled(Rows) ->
    Places = lists:seq(1, tuple_size(Rows)),
    %% The measured times of each node, shortest first.
    Known = list_to_tuple([lists:sort([{Value, J} || J <- Places, J =/= I, Value <- [element(J, element(I, Rows))], is_float(Value)]) || I <- Places]),
    Most = lists:max([Value || [_ | _] = Row <- tuple_to_list(Known), {Value, _} <- [lists:last(Row)]]),
    symmetric(list_to_tuple([list_to_tuple([case element(J, element(I, Rows)) of
                                                undefined when I < J -> estimate(I, J, Rows, Known, Most);
                                                Value -> Value
                                            end || J <- Places]) || I <- Places])).

%% @private Makes rows symmetric. Uses the direction that was measured, or the smaller time if both were measured. A gap
%% is an atom, which sorts after all numbers.
-spec symmetric(tuple()) -> tuple().
symmetric(Rows) ->
    list_to_tuple([list_to_tuple(symmetric_row(tuple_to_list(element(I, Rows)), I, 1, Rows)) || I <- lists:seq(1, tuple_size(Rows))]).

symmetric_row([_ | Row], I, I, Rows) -> [0.0 | symmetric_row(Row, I, I + 1, Rows)];
symmetric_row([Value | Row], I, J, Rows) ->
    case element(I, element(J, Rows)) of
        Other when Other < Value -> [Other | symmetric_row(Row, I, J + 1, Rows)];
        _ -> [Value | symmetric_row(Row, I, J + 1, Rows)]
    end;
symmetric_row([], _, _, _) -> [].

%% If there is no third node to which the times from both nodes were measured, the two nodes are assumed to be far apart.
estimate(I, J, Rows, Known, Most) ->
    case bounds(element(I, Known), element(J, Rows), infinity, []) of
        {infinity, []} -> Most;
        {Least, Bounds} ->
            Near = lists:sort([Bound || Bound <- Bounds, Bound =< ?NEAR * Least]),
            lists:nth((length(Near) + 1) div 2, Near)
    end.

%% The search ends when a time from node I is far above the lowest bound so far, because all following bounds are at least
%% as large as that time. `infinity' sorts after all numbers.
bounds([{Value, _} | _], _, Least, Bounds) when is_float(Least), Value > ?NEAR * Least -> {Least, Bounds};
bounds([{Value, K} | Known], RowJ, Least, Bounds) ->
    case element(K, RowJ) of
        undefined -> bounds(Known, RowJ, Least, Bounds);
        Other ->
            case max(Value, Other) of
                Bound when Bound < Least -> bounds(Known, RowJ, Bound, [Bound | Bounds]);
                Bound when Bound =< ?NEAR * Least -> bounds(Known, RowJ, Least, [Bound | Bounds]);
                _ -> bounds(Known, RowJ, Least, Bounds)
            end
    end;
bounds([], _, Least, Bounds) -> {Least, Bounds}.

%% @doc Improves the estimates with a binary tree that was built from the previous estimates. The new estimate for a
%% missing pair is the median of the values measured between the two branches that contain its nodes. If no value was
%% measured between these, the pair keeps its previous estimate.
-spec refined(placement_linkage:binary_tree(), Former :: tuple(), Measured :: tuple()) -> tuple().
refined(Tree, Former, Measured) ->
    list_to_tuple([refined_row(element(I, Measured), Medians, element(I, Former)) || {I, Medians} <- lists:sort(medians(with_members(Tree), Measured, [], []))]).

refined_row(Measured, Medians, Former) ->
    list_to_tuple(lists:zipwith3(fun refined_value/3, tuple_to_list(Measured), tuple_to_list(Medians), tuple_to_list(Former))).

refined_value(undefined, none, Former) -> Former;
refined_value(undefined, Median, _) -> Median;
refined_value(Value, _, _) -> Value.

with_members({One, Other, _}) ->
    {_, Left} = First = with_members(One),
    {_, Right} = Second = with_members(Other),
    {{First, Second}, Left ++ Right};
with_members(Leaf) -> {Leaf, [Leaf]}.

%% Returns a row for each node: for every other node, the median between the two branches that separate them. `Path'
%% contains the sibling branches that were passed on the way down, each as its positions and the median.
medians({{{_, Left} = One, {_, Right} = Other}, _}, Measured, Path, Rows) ->
    Median = case [Value || I <- Left, Row <- [element(I, Measured)], J <- Right, Value <- [element(J, Row)], is_integer(Value)] of
                 [] -> none;
                 Values -> placement_quantiles:median(Values)
             end,
    medians(One, Measured, [{Right, Median} | Path], medians(Other, Measured, [{Left, Median} | Path], Rows));
medians({Leaf, _}, Measured, Path, Rows) ->
    [{Leaf, erlang:make_tuple(tuple_size(Measured), none, [{J, Median} || {Places, Median} <- Path, J <- Places])} | Rows].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

a_level_is_found_test() ->
    Rows = {{0.0, undefined, 10.0, 101.0}, {undefined, 0.0, 104.0, 10.0}, {10.0, 104.0, 0.0, 100.0}, {101.0, 10.0, 100.0, 0.0}},
    Filled = filled(Rows),
    ?assertEqual([101.0, 101.0], [element(2, element(1, Filled)), element(1, element(2, Filled))]),
    ?assertEqual(element(3, Rows), element(3, Filled)).

refined_test() ->
    Measured = {{0, 1, 8, 9}, {1, 0, undefined, undefined}, {8, undefined, 0, 2}, {9, undefined, 2, 0}},
    ?assertEqual({{0, 1, 8, 9}, {1, 0, 8, 8}, {8, 8, 0, 2}, {9, 8, 2, 0}}, refined({{1, 2, 1.0}, {3, 4, 2.0}, 9.0}, setelement(2, Measured, {1, 0, 77, 77}), Measured)).

without_a_third_test() ->
    Rows = {{0.0, 5.0, undefined, undefined}, {5.0, 0.0, 50.0, undefined}, {undefined, 50.0, 0.0, 7.0}, {undefined, undefined, 7.0, 0.0}},
    ?assertEqual({0.0, 5.0, 50.0, 50.0}, element(1, filled(Rows))).
-endif.
