%% SPDX-License-Identifier: Apache-2.0
%% @doc Properties of the node tree, tested with random trees.
-module(placement_tree_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

%% placement:topology() returns `none' if there is no tree.
none_holds_no_node_test() ->
    ?assertEqual({[], 0, false, 0, 0.0}, {placement_tree:nodes(none), placement_tree:size(none), placement_tree:is_member(none, a), placement_tree:depth(none), placement_tree:diameter(none, [a, b])}),
    [?assertEqual(unknown, Answer) || Answer <- [placement_tree:distance(none, a, b), placement_tree:distance(none, a, a), placement_tree:shared(none, a, b), placement_tree:disc(none, a, 1),
                                                 placement_tree:rank(none, a, b), placement_tree:latency(none, a, b), placement_tree:basis(none, a, 1), placement_tree:ancestors(none, a), placement_tree:way(none, a, 1), placement_tree:branch(none, a)]].

laws_test_() ->
    [{timeout, 120, ?_assert(proper:quickcheck(Law, [quiet, {numtests, 100}, {to_file, user}]))}
     || Law <- [prop_ultrametric(), prop_network_terms_come_back(), prop_diameter(), prop_branches(), prop_changes()]].

network() -> ?SIZED(Size, network(min(Size, 12) + 1)).

network(Size) when Size =< 1 -> {node, leaf};
network(Size) -> ?LET(Parts, vector(3, ?LAZY(oneof([{node, leaf}, network(Size div 3)]))), {network, n, Parts}).

%% Gives names to the leaves, one after another.
named(Network) ->
    {Named, _} = named(Network, 1),
    {ok, Tree} = placement_tree:from_network(Named),
    Tree.

named({node, leaf}, N) -> {{node, list_to_atom("n" ++ integer_to_list(N))}, N + 1};
named({network, Name, Parts}, N) ->
    {Named, Next} = lists:mapfoldl(fun named/2, N, Parts),
    {{network, Name, Named}, Next}.

prop_ultrametric() ->
    ?FORALL(Network, network(),
            begin
                Tree = named(Network),
                D = fun(X, Y) -> {ok, Distance} = placement_tree:distance(Tree, X, Y), Distance end,
                All = lists:sublist(placement_tree:nodes(Tree), 7),
                lists:all(fun({X, Y, Z}) ->
                                  D(X, Z) =< max(D(X, Y), D(Y, Z)) andalso D(X, Y) =:= D(Y, X)
                                      andalso (D(X, Y) == 0) =:= (X =:= Y)
                          end, [{X, Y, Z} || X <- All, Y <- All, Z <- All])
            end).

prop_network_terms_come_back() ->
    ?FORALL(Network, network(),
            begin
                Tree = named(Network),
                {ok, Again} = placement_tree:from_network(placement_tree:to_network(Tree)),
                Again =:= Tree
            end).

%% The diameter, which is computed from the first and the last path, is the largest distance between any two nodes.
prop_diameter() ->
    ?FORALL(Network, network(),
            begin
                Tree = named(Network),
                Some = lists:sublist(placement_tree:nodes(Tree), 6),
                Pairs = [D || X <- Some, Y <- Some, {ok, D} <- [placement_tree:distance(Tree, X, Y)]],
                placement_tree:diameter(Tree, Some) =:= lists:max([0.0 | Pairs])
            end).

%% Two nodes are in the same branch if their paths from the root share a step.
prop_branches() ->
    ?FORALL(Network, network(),
            begin
                Tree = named(Network),
                Some = lists:sublist(placement_tree:nodes(Tree), 8),
                lists:all(fun({X, Y}) ->
                                  {ok, Shared} = placement_tree:shared(Tree, X, Y),
                                  (placement_tree:branch(Tree, X) =:= placement_tree:branch(Tree, Y)) =:= (Shared > 0)
                                      andalso [placement_tree:way(Tree, X, Levels) =:= placement_tree:way(Tree, Y, Levels) || Levels <- lists:seq(0, 5)]
                                          =:= [Shared >= Levels || Levels <- lists:seq(0, 5)]
                          end, [{X, Y} || X <- Some, Y <- Some, X =/= Y])
            end).

one_node_is_in_no_branch_test() ->
    {ok, Tree} = placement_tree:from_paths([{a, "/site/rack"}]),
    ?assertEqual(unknown, placement_tree:branch(Tree, a)).

%% A node that joins or leaves does not change the distances between the other nodes.
prop_changes() ->
    ?FORALL({Network, Path}, {network(), list(oneof([n, x, y]))},
            begin
                Tree = named(Network),
                {ok, More} = placement_tree:insert(Tree, new, Path),
                Less = placement_tree:remove(More, new),
                All = lists:sublist(placement_tree:nodes(Tree), 8),
                placement_tree:is_member(More, new)
                    andalso not placement_tree:is_member(Less, new)
                    andalso placement_tree:epoch(Less) =:= placement_tree:epoch(Tree) + 2
                    andalso [placement_tree:distance(Less, X, Y) || X <- All, Y <- All]
                        =:= [placement_tree:distance(Tree, X, Y) || X <- All, Y <- All]
            end).
