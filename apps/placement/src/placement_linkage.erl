%% SPDX-License-Identifier: Apache-2.0
%% @doc Hierarchical agglomerative clustering into a binary tree, by average or complete linkage.
%%
%% The nearest-neighbour chain (F. Murtagh, "A survey of recent advances in hierarchical clustering
%% algorithms", The Computer Journal 26, 1983; Lance and Williams' update formula): from any cluster go
%% to its nearest, from there to its nearest, until two are each other's nearest; these are merged,
%% in whichever order the merges come the tree is the same. It takes n^2 steps and no search for the
%% closest pair of all. `make test-scipy' compares heights and cophenetic distances with scipy's.
%%
%% Values lie in an `atomics' table as whole numbers ({@link scale/0} for 1.0), since it is the only
%% table of numbers in the VM that can be changed in place; with 40 bits behind the point the rounding
%% stays under 1.0e-9. The table is used up.
-module(placement_linkage).

-export([link/3, scale/0, table/2, heights/1, cophenetic/2]).

-export_type([binary_tree/0, method/0]).

-type method() :: average | complete.
-type binary_tree() :: pos_integer() | {binary_tree(), binary_tree(), Height :: float()}.
%% A leaf is the place of a node, counted from 1.

-define(SCALE, 1099511627776).

%% @doc What stands for 1.0 in a table.
-spec scale() -> pos_integer().
scale() -> ?SCALE.

%% @doc A table of some function of the matrix's times, such as the logarithm: its values may go up to
%% a million on both sides of 0.
-spec table(placement_matrix:matrix(), fun((float()) -> float())) -> atomics:atomics_ref().
table(Matrix, Fun) ->
    Count = placement_matrix:size(Matrix),
    Table = atomics:new(Count * Count, [{signed, true}]),
    Rows = placement_matrix:rows(Matrix),
    _ = [fill(Table, Count, I, element(I, Rows), I + 1, Fun) || I <- lists:seq(1, Count)],
    Table.

fill(Table, Count, I, Row, J, Fun) when J =< Count ->
    Value = round(Fun(element(J, Row)) * ?SCALE),
    ok = atomics:put(Table, (I - 1) * Count + J, Value),
    ok = atomics:put(Table, (J - 1) * Count + I, Value),
    fill(Table, Count, I, Row, J + 1, Fun);
fill(_, _, _, _, _, _) -> ok.

%% @doc The tree of a table of `Count' nodes.
-spec link(method(), atomics:atomics_ref(), Count :: pos_integer()) -> binary_tree().
link(_, _, 1) -> 1;
link(Method, Table, Count) ->
    Active = lists:seq(1, Count),
    Clusters = maps:from_list([{I, {I, 1, 0}} || I <- Active]),
    chain([1], Active, Clusters, {Method, Table, Count}).

%% A cluster is its tree, its size and its height; it lives at the place of one of its members.
chain(_, [Last], Clusters, _) ->
    {Tree, _, _} = maps:get(Last, Clusters),
    Tree;
chain([], [First | _] = Active, Clusters, Setting) ->
    chain([First], Active, Clusters, Setting);
chain([I | Before] = Chain, Active, Clusters, {_, Table, Count} = Setting) ->
    %% On a tie the one that we came from wins, or the chain would go round in circles.
    {Start, Least} = came_from(I, Before, Table, Count),
    case nearest(Active, I, (I - 1) * Count, Table, Start, Least) of
        {J, Height} when Before =/= [], J =:= hd(Before) ->
            Left = lists:delete(J, Active),
            chain(tl(Before), Left, merged(I, J, Height, Left, Clusters, Setting), Setting);
        {J, _} ->
            chain([J | Chain], Active, Clusters, Setting)
    end.

came_from(_, [], _, _) -> {none, infinity};
came_from(I, [J | _], Table, Count) -> {J, atomics:get(Table, (I - 1) * Count + J)}.

%% `infinity' sorts after all numbers.
nearest([I | Rest], I, Base, Table, J, Least) ->
    nearest(Rest, I, Base, Table, J, Least);
nearest([K | Rest], I, Base, Table, J, Least) ->
    case atomics:get(Table, Base + K) of
        Less when Less < Least -> nearest(Rest, I, Base, Table, K, Less);
        _ -> nearest(Rest, I, Base, Table, J, Least)
    end;
nearest([], _, _, _, J, Least) -> {J, Least}.

merged(I, J, Distance, Left, Clusters, {Method, Table, Count}) ->
    #{I := {TreeI, SizeI, HeightI}, J := {TreeJ, SizeJ, HeightJ}} = Clusters,
    Height = max(Distance, max(HeightI, HeightJ)),
    update(Left, I, (I - 1) * Count, (J - 1) * Count, SizeI, SizeJ, Method, Table, Count),
    maps:remove(J, Clusters#{I := {{TreeI, TreeJ, Height / ?SCALE}, SizeI + SizeJ, Height}}).

update([I | Rest], I, BaseI, BaseJ, SizeI, SizeJ, Method, Table, Count) ->
    update(Rest, I, BaseI, BaseJ, SizeI, SizeJ, Method, Table, Count);
update([K | Rest], I, BaseI, BaseJ, SizeI, SizeJ, Method, Table, Count) ->
    Value = joined(Method, SizeI, atomics:get(Table, BaseI + K), SizeJ, atomics:get(Table, BaseJ + K)),
    ok = atomics:put(Table, BaseI + K, Value),
    ok = atomics:put(Table, (K - 1) * Count + I, Value),
    update(Rest, I, BaseI, BaseJ, SizeI, SizeJ, Method, Table, Count);
update([], _, _, _, _, _, _, _, _) -> ok.

joined(average, SizeI, I, SizeJ, J) -> (SizeI * I + SizeJ * J) div (SizeI + SizeJ);
joined(complete, _, I, _, J) -> max(I, J).

%% @doc The heights of all merges, sorted.
-spec heights(binary_tree()) -> [float()].
heights(Tree) ->
    lists:sort(heights(Tree, [])).

heights({One, Other, Height}, Rest) -> heights(One, heights(Other, [Height | Rest]));
heights(_, Rest) -> Rest.

%% @doc The cophenetic distances: of each pair of places `I < J' the height at which they meet, in
%% the order of {@link placement_matrix:pairs/1}.
-spec cophenetic(binary_tree(), Count :: pos_integer()) -> [float()].
cophenetic(Tree, Count) ->
    {_, Pairs} = meets(Tree, []),
    Found = maps:from_list(Pairs),
    [maps:get({I, J}, Found) || I <- lists:seq(1, Count), J <- lists:seq(I + 1, Count)].

meets({One, Other, Height}, Pairs) ->
    {Left, Pairs1} = meets(One, Pairs),
    {Right, Pairs2} = meets(Other, Pairs1),
    {Left ++ Right, [{{min(I, J), max(I, J)}, Height} || I <- Left, J <- Right] ++ Pairs2};
meets(Leaf, Pairs) -> {[Leaf], Pairs}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

matrix() ->
    {ok, Matrix} = placement_matrix:from_rows([a, b, c, d], [[0, 2, 6, 10], [2, 0, 5, 9], [6, 5, 0, 4], [10, 9, 4, 0]]),
    Matrix.

same(Value) -> Value.

by_hand_test_() ->
    [?_assertEqual(Want, heights(link(Method, table(matrix(), fun same/1), 4)))
     || {Method, Want} <- [{average, [2.0, 4.0, 7.5]}, {complete, [2.0, 4.0, 10.0]}]].

cophenetic_test() ->
    ?assertEqual([2.0, 10.0, 10.0, 10.0, 10.0, 4.0], cophenetic(link(complete, table(matrix(), fun same/1), 4), 4)).

small_test() ->
    {ok, One} = placement_matrix:from_rows([a], [[0]]),
    ?assertEqual(1, link(average, table(One, fun same/1), 1)),
    {ok, Two} = placement_matrix:from_rows([a, b], [[0, 3], [3, 0]]),
    ?assertEqual([3.0], heights(link(average, table(Two, fun same/1), 2))).

all_equal_test() ->
    Nodes = [a, b, c, d, e],
    {ok, Matrix} = placement_matrix:from_rows(Nodes, [[7 || _ <- Nodes] || _ <- Nodes]),
    [?assertEqual([7.0, 7.0, 7.0, 7.0], heights(link(Method, table(Matrix, fun same/1), 5))) || Method <- [average, complete]].
-endif.
