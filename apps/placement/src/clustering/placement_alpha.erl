%% SPDX-License-Identifier: Apache-2.0
%% @doc The clustering of the RELEASE report D3.5, section 4.5, with its threshold alpha. All functions are pure.
%%
%% Initially every node is a cluster. The two closest clusters are merged into a cluster K (by complete linkage: the
%% distance between two clusters is the largest distance between their nodes). Then every cluster x with
%% `d(x, K) =< alpha * diam(K)' is merged into K, nearest first; the diameter is always that of the current K. These steps
%% are repeated until one cluster is left. With alpha 1.0 the result is the usual binary tree.
%%
%% Related methods are the multidendrograms of A. Fernandez and S. Gomez, "Solving non-uniqueness in agglomerative
%% hierarchical clustering using multidendrograms", Journal of Classification 25, 2008, and the way in which hwloc groups
%% objects by distance. A single alpha does not suit all scales, which is why {@link placement_mdl} is the default.
-module(placement_alpha).

-export([cluster/2]).

%% @doc Returns the tree for a matrix and an alpha, which must be at least 1.0.
-spec cluster(placement_matrix:matrix(), Alpha :: number()) -> placement_tree:vertex().
cluster(Matrix, Alpha) when Alpha >= 1 ->
    Rows = lists:enumerate(tuple_to_list(placement_matrix:rows(placement_matrix:filled(Matrix)))),
    Distances = maps:from_list([{I, maps:remove(I, maps:from_list(lists:enumerate(tuple_to_list(Row))))} || {I, Row} <- Rows]),
    Clusters = maps:from_list([{I, {{leaf, Name}, 0.0}} || {I, Name} <- lists:enumerate(placement_matrix:nodes(Matrix))]),
    Vertex = rounds(Clusters, Distances, maps:map(fun(_, Row) -> nearest(Row) end, Distances), Alpha),
    placement_labels:ordered(placement_labels:measured(Vertex, Matrix)).

nearest(Row) -> maps:fold(fun(J, Distance, Best) -> min({Distance, J}, Best) end, {infinity, none}, Row).

%% Each cluster has a number, a tree and a diameter. `Nearest' maps each cluster to the cluster closest to it.
rounds(Clusters, _, _, _) when map_size(Clusters) =:= 1 ->
    [{Vertex, _}] = maps:values(Clusters),
    Vertex;
rounds(Clusters, Distances, Nearest, Alpha) ->
    {{Diameter, J}, I} = maps:fold(fun(I, Best, Least) -> min({Best, I}, Least) end, {{infinity, none}, none}, Nearest),
    #{I := {VertexI, _}, J := {VertexJ, _}} = Clusters,
    {Row, Distances1} = joined(I, J, Distances),
    {Parts, Final, Distances2, Gone} = expanded([VertexI, VertexJ], Diameter, I, Row, Distances1, Clusters, Alpha, [J]),
    Left = (maps:without(Gone, Clusters))#{I := {{group, cluster, #{}, Parts}, Final}},
    rounds(Left, Distances2, renewed(I, Gone, Nearest, Distances2), Alpha).

%% Merges two clusters by complete linkage; I represents both from now on.
joined(I, J, Distances) ->
    {RowJ, Others} = maps:take(J, Distances),
    Row = maps:map(fun(K, Distance) -> max(Distance, maps:get(K, RowJ)) end, maps:remove(J, maps:get(I, Others))),
    {Row, maps:map(fun(K, _) when K =:= I -> Row;
                      (K, RowK) -> (maps:remove(J, RowK))#{I := maps:get(K, Row)}
                   end, Others)}.

expanded(Parts, Diameter, I, Row, Distances, Clusters, Alpha, Gone) ->
    case nearest(Row) of
        {Distance, J} when is_number(Distance), Distance =< Alpha * Diameter ->
            #{J := {Vertex, Inner}} = Clusters,
            {Next, Fewer} = joined(I, J, Distances),
            expanded([Vertex | Parts], max(Diameter, max(Distance, Inner)), I, Next, Fewer, Clusters, Alpha, [J | Gone]);
        _ -> {Parts, Diameter, Distances, Gone}
    end.

%% A merger can only increase distances, so the nearest cluster changes only for clusters whose nearest one was merged.
renewed(I, Gone, Nearest, Distances) ->
    Touched = [I | Gone],
    maps:map(fun(K, {_, J} = Best) ->
                     case K =:= I orelse lists:member(J, Touched) of
                         true -> nearest(maps:get(K, Distances));
                         false -> Best
                     end
             end, maps:without(Gone, Nearest)).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

matrix() ->
    Racks = #{a => 1, b => 1, c => 1, d => 2, e => 2, f => 2, g => 3},
    Nodes = lists:sort(maps:keys(Racks)),
    Time = fun(X, Y) when X =:= Y -> 0; (X, Y) -> case {maps:get(X, Racks), maps:get(Y, Racks)} of {R, R} -> 10; _ -> 100 end end,
    {ok, Matrix} = placement_matrix:from_rows(Nodes, [[Time(X, Y) || Y <- Nodes] || X <- Nodes]),
    Matrix.

racks_test() ->
    {group, _, #{max_us := 100.0}, Children} = cluster(matrix(), 1.5),
    ?assertEqual([[a, b, c], [d, e, f], [g]], [placement_tree:members(Child) || Child <- Children]).

%% Alpha 1.0 merges only exact ties; a large alpha puts all nodes on one level.
extremes_test() ->
    {ok, Uneven} = placement_matrix:from_rows([a, b, c, d], [[0, 1, 4, 9], [1, 0, 5, 8], [4, 5, 0, 7], [9, 8, 7, 0]]),
    ?assertMatch({group, _, _, [{group, _, _, [{group, _, _, [_, _]}, _]}, _]}, cluster(Uneven, 1.0)),
    ?assertMatch({group, _, _, [_, _, _, _]}, cluster(Uneven, 5.0)),
    {ok, One} = placement_matrix:from_rows([a], [[0]]),
    ?assertEqual({leaf, a}, cluster(One, 1.6)).
-endif.
