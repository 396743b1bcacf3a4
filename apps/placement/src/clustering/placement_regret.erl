%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures the regret of a choice that is based only on the tree: how much nearer a node in the same smallest group
%% can be, which the tree does not show. All functions are pure.
%%
%% A tree can explain most of the variance and still be too coarse: it may group cities by continent but contain no
%% information about distances within a continent. A comparison with the nearest node would prove nothing, because the
%% smallest of many noisy times is always small. So the near node is chosen without looking at the time to it, from the
%% bounds implied by the times to other nodes in the group ({@link placement_gaps}). If there is only noise, this node is
%% as far away as the median node, and the ratio is 1. If the node is nearer, a choice based on the tree misses it.
-module(placement_regret).

-export([regret/2, of_group/1, surely_of_group/1]).

%% The maximum number of nodes that are examined, and the maximum number of members of a group that are considered. They are
%% picked at regular intervals.
-define(JUDGED, 48).
-define(MEMBERS, 96).

%% @doc Returns the median, over all nodes, of this ratio: the time to the median node of the same smallest group,
%% divided by the time to the near node. Returns 1.0 if all groups have fewer than four nodes.
-spec regret(placement_tree:tree(), placement_matrix:matrix()) -> float().
regret(Tree, Matrix) ->
    Places = maps:from_list(lists:zip(placement_matrix:nodes(Matrix), lists:seq(1, placement_matrix:size(Matrix)))),
    Groups = [[maps:get(Node, Places) || {leaf, Node} <- Children] || {group, _, _, Children} <- groups(placement_tree:packed(Tree))],
    typical(ratios(Groups, Matrix)).

%% @doc Like {@link regret/2}, but treats all nodes of the matrix as a single group.
-spec of_group(placement_matrix:matrix()) -> float().
of_group(Matrix) -> typical(of_all(Matrix)).

%% @doc Returns the part of the regret that noise does not explain: the ratio that is reached by half of the n nodes plus
%% `sqrt(n)' more nodes. With noise alone, the near node is below the median as often as above it. It is rarely below the
%% median for that many nodes, which is two standard deviations more than half, and even more rarely do all of these nodes
%% have a ratio well above 1.
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

%% Often several nodes have the same bound, because they are near the same third node. Selecting the one with the smallest
%% measured time would favour noise.
mean([Us]) -> Us;
mean(Times) -> math:exp(lists:sum([math:log(Us) || Us <- Times]) / length(Times)).

%% Third nodes are sorted, nearest first. `infinity' sorts after all numbers.
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
