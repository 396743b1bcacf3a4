%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures how much nearness a choice based on the tree alone misses, that is, nearness inside the smallest groups
%% that the tree does not show. Pure.
%%
%% A tree can explain most of the variance and still be too coarse: it may group cities by continent but say nothing
%% about distances within a continent. A comparison with the nearest node would prove nothing, because the smallest of
%% many noisy times is always small. So a near node is selected without using its own time: by the bounds that third
%% nodes of the group give ({@link placement_gaps}). If there is only noise, this node is as far away as the median
%% node, and the ratio is 1. If it is nearer, a choice by the tree misses that nearness.
-module(placement_regret).

-export([regret/2, of_group/1, surely_of_group/1]).

%% At most this many nodes are examined, and at most this many members of a group are considered; they are picked at
%% even intervals.
-define(JUDGED, 48).
-define(MEMBERS, 96).

%% @doc Returns how many times as far away the median node of the same smallest group is as the near one (the median of
%% this ratio over the nodes). Returns 1.0 if all groups have fewer than four nodes.
-spec regret(placement_tree:tree(), placement_matrix:matrix()) -> float().
regret(Tree, Matrix) ->
    Places = maps:from_list(lists:zip(placement_matrix:nodes(Matrix), lists:seq(1, placement_matrix:size(Matrix)))),
    Groups = [[maps:get(Node, Places) || {leaf, Node} <- Children] || {group, _, _, Children} <- groups(placement_tree:packed(Tree))],
    typical(ratios(Groups, Matrix)).

%% @doc Returns the same if all nodes of the matrix are one group.
-spec of_group(placement_matrix:matrix()) -> float().
of_group(Matrix) -> typical(of_all(Matrix)).

%% @doc Returns the part of the regret that noise does not explain: the ratio that half of the n nodes and `sqrt(n)'
%% more reach. Noise puts the near node below the median as often as above. It rarely puts this many below, which is two
%% standard deviations more than half, and far more rarely do they all reach a ratio well above 1.
-spec surely_of_group(placement_matrix:matrix()) -> float().
surely_of_group(Matrix) ->
    Ratios = of_all(Matrix),
    case length(Ratios) of
        Few when Few < 4 -> 1.0;
        Count -> max(1.0, lists:nth(Count + 1 - ceil(Count / 2 + math:sqrt(Count)), Ratios))
    end.

typical([]) -> 1.0;
typical(Ratios) -> max(1.0, middle(Ratios)).

of_all(Matrix) -> ratios([lists:seq(1, placement_matrix:size(Matrix))], Matrix).

%% Returns the ratios, sorted.
ratios(Groups, Matrix) ->
    Judged = some([{I, Group} || Group <- Groups, length(Group) >= 4, I <- Group], ?JUDGED),
    Rows = placement_matrix:rows(Matrix),
    lists:sort([Ratio || {I, Group} <- Judged, Ratio <- ratio(I, some(Group, ?MEMBERS) -- [I], Rows)]).

groups({leaf, _}) -> [];
groups({group, _, _, Children} = Group) -> [Group | lists:append([groups(Child) || Child <- Children])].

some(List, Most) ->
    Step = max(1, ceil(length(List) / Most)),
    [Element || {N, Element} <- lists:zip(lists:seq(0, length(List) - 1), List), N rem Step =:= 0].

middle(Sorted) -> lists:nth((length(Sorted) + 1) div 2, Sorted).

ratio(I, Members, Rows) ->
    Row = element(I, Rows),
    Known = lists:sort([{Us, J} || J <- Members, Us <- [element(J, Row)], is_float(Us)]),
    case [{Bound, Us} || {Us, J} <- Known, Bound <- bound(J, Known, element(J, Rows))] of
        Bounds when length(Bounds) < 3 -> [];
        Bounds ->
            {Least, _} = lists:min(Bounds),
            [middle([Us || {Us, _} <- Known]) / mean([Us || {Bound, Us} <- Bounds, Bound == Least])]
    end.

%% Often several nodes are equally near by the bound, namely those that are nearer to the same third node. Selecting the
%% one with the smallest time of its own would favour noise.
mean([Us]) -> Us;
mean(Times) -> math:exp(lists:sum([math:log(Us) || Us <- Times]) / length(Times)).

%% Third nodes are sorted, the nearest first; `infinity' sorts after all numbers.
bound(J, Known, RowJ) ->
    case lists:foldl(fun({Us, K}, Least) when K =/= J, Us < Least ->
                             case element(K, RowJ) of
                                 Other when is_float(Other) -> min(Least, max(Us, Other));
                                 _ -> Least
                             end;
                        (_, Least) -> Least
                     end, infinity, Known) of
        infinity -> [];
        Least -> [Least]
    end.
