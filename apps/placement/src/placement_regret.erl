%% SPDX-License-Identifier: Apache-2.0
%% @doc What a choice by the tree alone gives away: is there nearness inside the smallest groups that the tree does not show? Pure.
%%
%% A tree can explain most of the variance and still be too coarse: cities fall into continents, and within a continent the tree may say nothing. To compare with the nearest node
%% would be no judgement, since of many noisy times the least is always small. So the near one is picked without its own time: by the bounds that third nodes of the
%% group give ({@link placement_gaps}). Where there is only noise it is as far as the median node, and the ratio is 1. Where it is nearer the tree gives that away.
-module(placement_regret).

-export([regret/2, of_group/1, surely_of_group/1]).

%% Nodes that are judged, and members of a group that are looked at, at most; evenly taken.
-define(JUDGED, 48).
-define(MEMBERS, 96).

%% @doc How many times as far as the near one the median node of the same smallest group is; the median over the nodes. 1.0 where groups have fewer than four nodes.
-spec regret(placement_tree:tree(), placement_matrix:matrix()) -> float().
regret(Tree, Matrix) ->
    Places = maps:from_list(lists:zip(placement_matrix:nodes(Matrix), lists:seq(1, placement_matrix:size(Matrix)))),
    Groups = [[maps:get(Node, Places) || {leaf, Node} <- Children] || {group, _, _, Children} <- groups(placement_tree:packed(Tree))],
    typical(ratios(Groups, Matrix)).

%% @doc The same where all nodes of the matrix are one group.
-spec of_group(placement_matrix:matrix()) -> float().
of_group(Matrix) -> typical(of_all(Matrix)).

%% @doc The part of it that noise does not explain: the ratio that half of the n nodes and `sqrt(n)' more reach.
%% Noise puts the near node below the median as often as above. So many below, two standard deviations more than half, are rare, and it is far rarer that they all reach a ratio well over 1.
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

%% Sorted.
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

%% Several are often equally near by the bound, as all that are nearer to the same third node. To take the one whose own time is least would favour noise.
mean([Us]) -> Us;
mean(Times) -> math:exp(lists:sum([math:log(Us) || Us <- Times]) / length(Times)).

%% Third nodes, the nearest first; `infinity' sorts after all numbers.
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
