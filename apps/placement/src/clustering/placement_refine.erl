%% SPDX-License-Identifier: Apache-2.0
%% @doc Splits the smallest groups of a tree if some of their nodes are nearer to each other than the tree shows. All functions
%% are pure.
%%
%% The shortest description of the times ({@link placement_mdl}) finds levels. The cities of a continent do not form
%% levels, because all distances occur, so the continent stays a single group. A choice based on this tree would treat
%% every city on the continent as near. So each group that is too coarse according to {@link placement_regret} is split:
%% the average linkage of its times is followed down until the times have halved, and the resulting parts are treated in
%% the same way.
%%
%% Noise must not cause a split, but the median of 18 noisy ratios is sometimes as far from 1 as that of a group that is
%% too coarse. So a group of the shortest description is split only if far more than half of its nodes have near
%% neighbours. This proves that the times are not a single level with noise, so for the parts, which may be small, the
%% ratio alone decides.
-module(placement_refine).

-export([refined/2]).

%% A group is split if its ratio is at least this.
-define(REGRET, 1.2).
%% Groups with fewer nodes than this are not examined.
-define(LEAST, 4).

%% @doc Returns the tree with such groups split and with new names and labels, or the same tree if there are none.
-spec refined(placement_tree:vertex(), placement_matrix:matrix()) -> placement_tree:vertex().
refined(Root, Matrix) ->
    case finer(Root, fun placement_regret:surely_of_group/1, Matrix, placement_matrix:filled(Matrix)) of
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
    case Regret(placement_matrix:sub(Matrix, Nodes)) < ?REGRET of
        true -> Leaves;
        false ->
            Own = placement_matrix:sub(Filled, Nodes),
            %% Divides by the shortest time, because heights must not be negative.
            Least = lists:min([Us || {_, _, Us} <- placement_matrix:pairs(Own)]),
            Tree = {_, _, Height} = placement_linkage:link(average, placement_linkage:table(Own, fun(Us) -> math:log(Us / Least) end), length(Nodes)),
            Names = list_to_tuple(Nodes),
            [finer(vertex([element(Place, Names) || Place <- Places]), fun placement_regret:of_group/1, Matrix, Filled) || Places <- cut(Tree, Height - math:log(2))]
    end.

%% Always separates the two halves.
cut({One, Other, _}, Height) -> below(One, Height) ++ below(Other, Height).

below({One, Other, Own}, Height) when Own > Height -> below(One, Height) ++ below(Other, Height);
below(Tree, _) -> [places(Tree)].

places({One, Other, _}) -> places(One) ++ places(Other);
places(Leaf) -> [Leaf].

vertex([Node]) -> {leaf, Node};
vertex(Nodes) -> {group, part, #{}, [{leaf, Node} || Node <- Nodes]}.
