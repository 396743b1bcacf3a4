%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures how much a choice that is based only on a tree misses because some nodes in a
%% smallest group are nearer to each other than the tree shows (the regret), and splits such groups.
%% All functions are pure.
%%
%% A tree can explain most of the variance and still be too coarse: it may group cities by continent but contain no
%% information about distances within a continent. A comparison with the nearest node would prove nothing, because the
%% smallest of many noisy times is always small. So the near node is chosen without looking at the time to it, from the
%% bounds implied by the times to other nodes in the group ({@link placement_gaps}). If there is only noise, this node is
%% as far away as the median node, and the ratio is 1. If the node is nearer, a choice based on the tree misses it.
%%
%% The shortest description of the times ({@link placement_mdl}) finds levels. The cities of a continent do not form
%% levels, because all distances occur, so the continent stays a single group. A choice based on this tree would treat
%% every city on the continent as near. So each group whose regret is too high is split: the average linkage of its times is
%% followed down until the times have halved, and the resulting parts are treated in the same way.
%%
%% Noise must not cause a split, but the median of 18 noisy ratios is sometimes as far from 1 as that of a group that is
%% too coarse. So a group of the shortest description is split only if far more than half of its nodes have near
%% neighbours. This proves that the times are not a single level with noise, so for the parts, which may be small, the
%% ratio alone decides.
-module(placement_refine).

-export([regret/2, refined/2]).

%% At most this many nodes are examined, and at most this many members of each group are considered.
%% Both are picked at regular intervals.
-define(JUDGED, 48).
-define(MEMBERS, 96).
%% A group is split if its ratio is at least this.
-define(REGRET, 1.2).
%% Groups with fewer nodes than this are not examined.
-define(LEAST, 4).

%% @doc Returns the median, over all nodes, of this ratio: the time to the median node of the same smallest group,
%% divided by the time to the near node. Returns 1.0 if all groups have fewer than four nodes.
-spec regret(placement_tree:tree(), placement_matrix:matrix()) -> float().
regret(Tree, Matrix) ->
    Places = maps:from_list(lists:zip(placement_matrix:nodes(Matrix), lists:seq(1, placement_matrix:size(Matrix)))),
    Groups = [[maps:get(Node, Places) || {leaf, Node} <- Children] || {group, _, _, Children} <- placement_tree:groups(placement_tree:packed(Tree))],
    typical(ratios(Groups, Matrix)).

%% @doc Splits the groups whose regret is too high, and gives all groups new names and labels.
%% Returns the same tree if no group is split.
-spec refined(placement_tree:vertex(), placement_matrix:matrix()) -> placement_tree:vertex().
refined(Root, Matrix) ->
    case finer(Root, fun surely/1, Matrix, placement_matrix:filled(Matrix)) of
        Root -> Root;
        Finer -> placement_labels:ordered(placement_labels:measured(Finer, Matrix))
    end.

%% Only measured pairs are used for the ratio; estimates only fill the gaps in the table for the linkage.
finer({leaf, _} = Leaf, _, _, _) -> Leaf;
finer({group, Name, Labels, Children}, Regret, Matrix, Filled) ->
    {Leaves, Groups} = lists:partition(fun(Child) -> element(1, Child) =:= leaf end, Children),
    {group, Name, Labels, [finer(Group, Regret, Matrix, Filled) || Group <- Groups] ++ parts(Leaves, Regret, Matrix, Filled)}.

parts(Leaves, _, _, _) when length(Leaves) < ?LEAST -> Leaves;
parts(Leaves, Regret, Matrix, Filled) ->
    Nodes = [Node || {leaf, Node} <- Leaves],
    case Regret(ratios([lists:seq(1, length(Nodes))], placement_matrix:sub(Matrix, Nodes))) < ?REGRET of
        true -> Leaves;
        false ->
            Own = placement_matrix:sub(Filled, Nodes),
            %% Divides by the shortest time, because heights must not be negative.
            Least = lists:min([Us || {_, _, Us} <- placement_matrix:pairs(Own)]),
            Tree = {_, _, Height} = placement_linkage:link(average, placement_linkage:table(Own, fun(Us) -> math:log(Us / Least) end), length(Nodes)),
            Names = list_to_tuple(Nodes),
            [finer(vertex([element(Place, Names) || Place <- Places]), fun typical/1, Matrix, Filled) || Places <- cut(Tree, Height - math:log(2))]
    end.

%% Always separates the two halves.
cut({One, Other, _}, Height) -> below(One, Height) ++ below(Other, Height).

below({One, Other, Own}, Height) when Own > Height -> below(One, Height) ++ below(Other, Height);
below(Tree, _) -> [places(Tree)].

places({One, Other, _}) -> places(One) ++ places(Other);
places(Leaf) -> [Leaf].

vertex([Node]) -> {leaf, Node};
vertex(Nodes) -> {group, part, #{}, [{leaf, Node} || Node <- Nodes]}.

%% Returns the part of the regret that noise does not explain: the ratio that half of the n nodes
%% plus `sqrt(n)' more nodes reach. With noise alone, the near node is below the median as often as
%% above it. So many nodes, two standard deviations more than half, rarely have a near node below
%% the median, and even more rarely do all of them have a ratio well above 1.
surely(Ratios) ->
    case length(Ratios) of
        Few when Few < ?LEAST -> 1.0;
        Count -> max(1.0, lists:nth(Count + 1 - ceil(Count / 2 + math:sqrt(Count)), Ratios))
    end.

typical([]) -> 1.0;
typical(Ratios) -> max(1.0, middle(Ratios)).

%% Returns the ratios, sorted.
ratios(Groups, Matrix) ->
    Judged = some([{I, Group} || Group <- Groups, length(Group) >= ?LEAST, I <- Group], ?JUDGED),
    Rows = placement_matrix:rows(Matrix),
    lists:sort([Ratio || {I, Group} <- Judged, Ratio <- ratio(I, some(Group, ?MEMBERS) -- [I], Rows)]).

some(List, Most) ->
    Step = max(1, ceil(length(List) / Most)),
    [Element || {N, Element} <- lists:enumerate(0, List), N rem Step =:= 0].

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

bound(J, Known, RowJ) ->
    case [max(Us, Other) || {Us, K} <- Known, K =/= J, Other <- [element(K, RowJ)], is_float(Other)] of
        [] -> [];
        Bounds -> [lists:min(Bounds)]
    end.
