%% SPDX-License-Identifier: Apache-2.0
%% @doc Hierarchical agglomerative clustering into a binary tree, by average or complete linkage.
%%
%% Uses the nearest-neighbour chain algorithm (F. Murtagh, "A survey of recent advances in hierarchical clustering
%% algorithms", The Computer Journal 26, 1983) with the Lance-Williams update formula. The algorithm starts with any
%% cluster and follows nearest neighbours until it finds two clusters that are each other's nearest neighbour, and merges
%% these. The tree does not depend on the order of the merges. The algorithm takes n^2 steps and never searches for the
%% closest of all pairs. `make test-scipy' compares heights and cophenetic distances with those from scipy.
%%
%% Values are fixed-point integers (`?SCALE' means 1.0), because reading an integer from a tuple does not allocate memory.
%% With 40 fractional bits the rounding error stays below 1.0e-9. A tuple cannot be changed in place, so a new cluster
%% gets its own row, and the distance between two clusters is in the row of the cluster that was created later.
-module(placement_linkage).

-export([link/3, table/2, heights/1, cophenetic/2]).

-export_type([binary_tree/0, method/0, table/0]).

-type method() :: average | complete.
-type table() :: tuple().
%% A row of integers for each node.
-type binary_tree() :: pos_integer() | {binary_tree(), binary_tree(), Height :: float()}.
%% A leaf is the position of a node, counted from 1.

-define(SCALE, 1099511627776).

%% @doc Returns the table that results from applying a function, such as the logarithm, to the times of a matrix. The
%% function must return values between -10000 and 10000.
-spec table(placement_matrix:matrix(), fun((float()) -> float())) -> table().
table(Matrix, Fun) -> placement_matrix:mapped(fun(Value) -> round(Fun(Value) * ?SCALE) end, Matrix).

%% @doc Returns the tree for a table with `Count' nodes.
-spec link(method(), table(), Count :: pos_integer()) -> binary_tree().
link(_, _, 1) -> 1;
link(Method, Table, Count) ->
    Active = [{I, element(I, Table)} || I <- lists:seq(1, Count)],
    Clusters = maps:from_list([{I, {I, 1, 0}} || {I, _} <- Active]),
    chain([], Active, Clusters, {Method, Count}).

%% Each cluster has a tree, a size and a height; its number is the position of one of its members. `Active' contains the
%% remaining clusters with their rows, starting with the most recent. Each element of the chain contains its distance from
%% the previous element.
chain(_, [{Last, _}], Clusters, _) ->
    {Tree, _, _} = maps:get(Last, Clusters),
    Tree;
chain([], [{First, _} | _] = Active, Clusters, Setting) -> chain([{First, none, infinity}], Active, Clusters, Setting);
chain([{I, From, Distance} | Before] = Chain, Active, Clusters, Setting) ->
    %% In a tie the previous cluster in the chain is used, because otherwise the chain could contain a cycle. `infinity'
    %% sorts after all numbers.
    case nearest(Active, I, From, Distance) of
        {From, Height} ->
            {Left, Merged} = merged(I, From, Height, Active, Clusters, Setting),
            chain(tl(Before), Left, Merged, Setting);
        {J, Height} ->
            chain([{J, I, Height} | Chain], Active, Clusters, Setting)
    end.

%% The distances to clusters that were created after I are in the rows of these clusters; all others are in I's row.
nearest([{I, Row} | Older], I, J, Least) -> nearest_older(Older, Row, J, Least);
nearest([{K, Row} | Rest], I, J, Least) ->
    case element(I, Row) of
        Less when Less < Least -> nearest(Rest, I, K, Less);
        _ -> nearest(Rest, I, J, Least)
    end.

nearest_older([{K, _} | Rest], Row, J, Least) ->
    case element(K, Row) of
        Less when Less < Least -> nearest_older(Rest, Row, K, Less);
        _ -> nearest_older(Rest, Row, J, Least)
    end;
nearest_older([], _, J, Least) -> {J, Least}.

merged(I, J, Distance, Active, Clusters, {Method, Count}) ->
    #{I := {TreeI, SizeI, HeightI}, J := {TreeJ, SizeJ, HeightJ}} = Clusters,
    Height = max(Distance, max(HeightI, HeightJ)),
    Joined = joined(Method, SizeI, SizeJ),
    {Left, Row} = newest(Active, I, J, Joined, [], []),
    {[{I, erlang:make_tuple(Count, 0, Row)} | Left],
     maps:remove(J, Clusters#{I := {{TreeI, TreeJ, Height / ?SCALE}, SizeI + SizeJ, Height}})}.

joined(average, SizeI, SizeJ) -> Sum = SizeI + SizeJ, fun(I, J) -> (SizeI * I + SizeJ * J) div Sum end;
joined(complete, _, _) -> fun erlang:max/2.

%% Returns the remaining clusters, and the distance of each from the cluster that results from merging I and J: first the
%% clusters that were created after both, then those created between the two, then those created before both.
newest([{I, Row} | Rest], I, J, Joined, Left, Far) -> between(Rest, Row, J, Joined, Left, Far);
newest([{J, Row} | Rest], I, J, Joined, Left, Far) -> between(Rest, Row, I, fun(OfJ, OfI) -> Joined(OfI, OfJ) end, Left, Far);
newest([{K, Row} = Other | Rest], I, J, Joined, Left, Far) ->
    newest(Rest, I, J, Joined, [Other | Left], [{K, Joined(element(I, Row), element(J, Row))} | Far]).

between([{J, RowJ} | Rest], RowI, J, Joined, Left, Far) -> oldest(Rest, RowI, RowJ, Joined, Left, Far);
between([{K, Row} = Other | Rest], RowI, J, Joined, Left, Far) ->
    between(Rest, RowI, J, Joined, [Other | Left], [{K, Joined(element(K, RowI), element(J, Row))} | Far]).

oldest(Rest, RowI, RowJ, Joined, Left, Far) ->
    {lists:reverse(Left, Rest), [{K, Joined(element(K, RowI), element(K, RowJ))} || {K, _} <- Rest] ++ Far}.

%% @doc Returns the heights of all merges, sorted.
-spec heights(binary_tree()) -> [float()].
heights(Tree) -> lists:sort(heights(Tree, [])).

heights({One, Other, Height}, Rest) -> heights(One, heights(Other, [Height | Rest]));
heights(_, Rest) -> Rest.

%% @doc Returns the cophenetic distances: for each pair of positions `I < J', the height at which the two are merged. They
%% are in the order of {@link placement_matrix:pairs/1}.
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
