%% SPDX-License-Identifier: Apache-2.0
%% @doc Properties of the clustering, and tests with trees that beamway_bench_planted generates from a few seeds;
%% `bench placement' runs all seeds. The case `large_planted_trees' of placement_topology_SUITE tests large trees.
-module(placement_cluster_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

-export([small/0, planted/2, gaps/3, some_rounds/2, noise_is_no_regret/1, colonies/1]).

small() -> [flat_16, flat_64, sockets_8, numa_48, close_levels_60, pairs_16, department_39, uneven_90, outliers_64, slow_nodes_64].

planted_test_() -> [{timeout, 120, {atom_to_list(Shape), fun() -> planted(Shape, Seed) end}} || Shape <- small(), Seed <- [1, 2]].

planted(Shape, Seed) ->
    {Matrix, Planted} = beamway_bench_planted:make(Shape, Seed),
    ?assertEqual(Planted, beamway_bench_planted:clusters(tree_of(Matrix))).

%% The shape pairs_16 is left out, because in it no other measurement can replace the one between the nodes of a pair.
gaps_test_() ->
    [{timeout, 120, {lists:concat([Shape, " without ", Share]), fun() -> gaps(Method, Shape, Share) end}}
     || {Method, Shape, Share} <- [{mdl, Shape, 0.3} || Shape <- small(), Shape =/= pairs_16] ++ [{{alpha, 1.3}, sockets_8, 0.1}]].

%% If 30 % of the pairs are missing, no node is lost, and the levels are the same as with all pairs.
gaps(Method, Shape, Share) ->
    {Matrix, _} = beamway_bench_planted:make(Shape, 1),
    {ok, #{tree := Full}} = placement_cluster:cluster(Matrix, Method),
    {ok, #{tree := Tree}} = placement_cluster:cluster(beamway_bench_planted:with_gaps(Matrix, Share, 1), Method),
    ?assertEqual(placement_tree:nodes(Full), placement_tree:nodes(Tree)),
    agree(Full, Tree).

agree(Full, Tree) ->
    Agreement = beamway_bench_planted:agreement(Full, Tree),
    ?assert(lists:min(Agreement) >= 0.95, Agreement).

some_rounds_test_() -> {timeout, 120, fun() -> some_rounds(department_39, 0.3) end}.

%% The same must be true of the pairs that `topology measure --pairs' measures.
some_rounds(Shape, Share) ->
    {Matrix, _} = beamway_bench_planted:make(Shape, 1),
    Drawn = maps:from_list([{Pair, drawn} || Pair <- lists:append(placement_probe:drawn_rounds(placement_matrix:nodes(Matrix), Share))]),
    {ok, Some} = placement_matrix:from_pairs([{A, B, Us} || {A, B, Us} <- placement_matrix:pairs(Matrix), is_map_key({min(A, B), max(A, B)}, Drawn)]),
    agree(tree_of(Matrix), tree_of(Some)).

noise_is_no_regret_test_() -> [{timeout, 60, {atom_to_list(Shape), fun() -> noise_is_no_regret(Shape) end}} || Shape <- small()].

%% Noise inside the groups must not cause a regret: the generated trees have no structure inside their smallest groups.
noise_is_no_regret(Shape) ->
    {Matrix, _} = beamway_bench_planted:make(Shape, 3),
    #{regret := Regret} = placement_cluster:cluster(Matrix),
    ?assert(Regret < 1.2, Regret).

%% Noise does not split a group either. This is tested with the small groups of athos_256, which are a single level with a
%% lot of noise.
noise_splits_no_group_test_() ->
    {timeout, 60, fun() ->
        [begin
             {Matrix, _} = beamway_bench_planted:make_spec(#{tree => {60, 0.35, [18]}}, Seed),
             Group = {group, "network", #{}, [{leaf, Node} || Node <- placement_matrix:nodes(Matrix)]},
             ?assertEqual({Seed, Group}, {Seed, placement_refine:refined(Group, Matrix)})
         end || Seed <- lists:seq(1, 100)]
    end}.

%% For each node there are three nodes with the same bound, 20. The times measured to these nodes are 10, 20 and 20, and must
%% not decide which of the nodes is selected.
equal_bounds_test() ->
    Us = fun(4) -> 10; (2) -> 20; (_) -> 30 end,
    Places = lists:seq(0, 7),
    {ok, Matrix} = placement_matrix:from_rows([name(I) || I <- Places], [[Us(min(abs(I - J), 8 - abs(I - J))) || J <- Places] || I <- Places]),
    {ok, Tree} = placement_tree:from_vertex({group, "network", #{}, [{leaf, name(I)} || I <- Places]}),
    ?assert(abs(placement_refine:regret(Tree, Matrix) - 30 / math:pow(10 * 20 * 20, 1 / 3)) < 1.0e-9).

%% Generates cities on four continents, without any level between the continents and the cities.
cities(Count) ->
    Random0 = rand:seed_s(exsss, {1, 2, 3}),
    {Cities, _} = lists:mapfoldl(fun(N, R0) ->
        {{CX, CY}, Wide} = {element(N rem 4 + 1, {{0, 0}, {900, 0}, {0, 900}, {900, 900}}), 60},
        {X, R1} = rand:normal_s(R0),
        {Y, R} = rand:normal_s(R1),
        {{CX + Wide * X, CY + Wide * Y}, R}
    end, Random0, lists:seq(1, Count)),
    Time = fun({X1, Y1}, {X2, Y2}) -> 5 + math:sqrt((X1 - X2) * (X1 - X2) + (Y1 - Y2) * (Y1 - Y2)) end,
    {ok, Matrix} = placement_matrix:from_rows([name(N) || N <- lists:seq(1, Count)], [[Time(A, B) || B <- Cities] || A <- Cities]),
    Matrix.

%% A tree of continents explains most of the times but does not show which cities on a continent are near each other.
coarse_tree_test_() ->
    {timeout, 60, fun() ->
        {ok, #{verdict := Verdict, explained := Explained, regret := Regret, advice := Advice}} = placement_cluster:cluster(cities(160), {alpha, 2.0}),
        ?assertEqual({fair, true, true}, {Verdict, Explained >= 0.8, Regret >= 1.5}),
        ?assertNotEqual(nomatch, string:find(unicode:characters_to_list(Advice), "times nearer than the others"))
    end}.

%% The smallest groups are split until they show which nodes are near. Points on a plane do not form a hierarchy, so the
%% nearest node is still a little nearer than the groups show.
near_nodes_share_a_group_test_() ->
    [{timeout, 60, {integer_to_list(Count), fun() ->
        #{verdict := Verdict, regret := Regret, tree := Tree} = placement_cluster:cluster(cities(Count)),
        ?assertEqual({good, true}, {Verdict, Regret < 1.2}),
        ?assert(from_nearest(Tree, cities(Count)) =< 1.3, from_nearest(Tree, cities(Count)))
    end}} || Count <- [160, 235]].

%% Returns the median, over all nodes, of this ratio: the time to the median node of the smallest group, divided by the
%% time to the nearest node.
from_nearest(Tree, Matrix) ->
    Pairs = placement_matrix:pairs(Matrix),
    Times = lists:foldl(fun({A, B, Us}, Acc) -> Acc#{A => [{Us, B} | maps:get(A, Acc, [])], B => [{Us, A} | maps:get(B, Acc, [])]} end, #{}, Pairs),
    middle([middle([Us || {Us, Other} <- maps:get(Node, Times), lists:member(Other, Members)]) / element(1, lists:min(maps:get(Node, Times)))
            || {group, _, _, Children} = Group <- groups(placement_tree:packed(Tree)), Members <- [placement_tree:members(Group)], {leaf, Node} <- Children]).

middle(Values) -> lists:nth((length(Values) + 1) div 2, lists:sort(Values)).

%% The report's algorithm also finds the clear structures.
alpha_test_() ->
    [{timeout, 60, fun() ->
          {Matrix, Planted} = beamway_bench_planted:make(Shape, 101),
          {ok, #{tree := Tree}} = placement_cluster:cluster(Matrix, {alpha, Alpha}),
          ?assertEqual(Planted, beamway_bench_planted:clusters(Tree))
      end} || {Shape, Alpha} <- [{flat_16, 2.0}, {department_39, 1.6}, {sockets_8, 1.3}]].

laws_test_() ->
    [{timeout, 300, ?_assert(proper:quickcheck(Law, [quiet, {numtests, 40}, {to_file, user}]))}
     || Law <- [prop_order(), prop_scale(), prop_labels(), prop_linkage(), prop_alpha_of_one()]].

times() ->
    ?LET({Count, Seed}, {choose(2, 24), integer()},
         begin
             Random = rand:seed_s(exsss, {Seed, Count, 1}),
             {Values, _} = lists:mapfoldl(fun(_, R0) -> {U, R} = rand:uniform_s(R0), {10 * math:exp(3 * U), R} end, Random, lists:seq(1, Count * (Count - 1) div 2)),
             {Count, Values}
         end).

matrix({Count, Values}, Order) ->
    Pairs = [{name(I), name(J)} || I <- lists:seq(1, Count), J <- lists:seq(I + 1, Count)],
    Known = maps:from_list(lists:zip(Pairs, Values)),
    Nodes = [name(I) || I <- Order],
    {ok, Matrix} = placement_matrix:from_rows(Nodes, [[maps:get({min(A, B), max(A, B)}, Known, 0) || B <- Nodes] || A <- Nodes]),
    Matrix.

name(I) -> list_to_atom(lists:flatten(io_lib:format("n~3..0b", [I]))).

tree_of(Matrix) ->
    #{tree := Tree} = placement_cluster:cluster(Matrix),
    Tree.

%% The tree, including all labels, does not depend on the order of the nodes, and is the same when it is built again.
prop_order() ->
    ?FORALL({Count, _} = Times, times(),
            begin
                Straight = tree_of(matrix(Times, lists:seq(1, Count))),
                Straight =:= tree_of(matrix(Times, lists:reverse(lists:seq(1, Count))))
                    andalso Straight =:= tree_of(matrix(Times, lists:seq(1, Count)))
            end).

%% The clusters do not depend on the unit of the times.
prop_scale() ->
    ?FORALL({{Count, Values}, Factor}, {times(), oneof([0.001, 0.5, 2, 1000])},
            beamway_bench_planted:clusters(tree_of(matrix({Count, Values}, lists:seq(1, Count))))
            =:= beamway_bench_planted:clusters(tree_of(matrix({Count, [Factor * V || V <- Values]}, lists:seq(1, Count))))).

%% No time in a group exceeds the group's diameter, no group's diameter is exceeded by that of a group inside it, and each
%% pair is counted once.
prop_labels() ->
    ?FORALL({Count, _} = Times, times(),
            begin
                Matrix = matrix(Times, lists:seq(1, Count)),
                Tree = tree_of(Matrix),
                All = groups(placement_tree:packed(Tree)),
                lists:sum([Pairs || {group, _, #{pairs := Pairs}, _} <- All]) =:= Count * (Count - 1) div 2
                    andalso lists:all(fun({A, B, Us}) ->
                                              {ok, #{max_us := Most, median_us := Median}} = placement_tree:latency(Tree, A, B),
                                              Us =< Most andalso Median =< Most
                                      end, placement_matrix:pairs(Matrix))
            end).

groups({leaf, _}) -> [];
groups({group, _, _, Children} = Group) -> [Group | lists:append([groups(Child) || Child <- Children])].

%% The nearest-neighbour chain finds the same tree as repeated searches for the closest of all pairs.
prop_linkage() ->
    ?FORALL({{Count, _} = Times, Method}, {times(), oneof([average, complete])},
            begin
                Matrix = matrix(Times, lists:seq(1, Count)),
                Heights = placement_linkage:heights(placement_linkage:link(Method, placement_linkage:table(Matrix, fun math:log/1), Count)),
                Slow = slow_heights(Method, [[I] || I <- lists:seq(1, Count)], Matrix),
                lists:all(fun({One, Other}) -> abs(One - Other) < 1.0e-6 end, lists:zip(Heights, Slow))
            end).

slow_heights(_, [_], _) -> [];
slow_heights(Method, Clusters, Matrix) ->
    {Height, One, Other} = lists:min([{between(Method, A, B, Matrix), A, B} || A <- Clusters, B <- Clusters, A < B]),
    lists:sort([Height | slow_heights(Method, [One ++ Other | Clusters -- [One, Other]], Matrix)]).

between(Method, One, Other, Matrix) ->
    Values = [math:log(placement_matrix:value(Matrix, I, J)) || I <- One, J <- Other],
    case Method of
        average -> lists:sum(Values) / length(Values);
        complete -> lists:max(Values)
    end.

%% With alpha 1.0 the report's algorithm is complete linkage: every group has two parts and the same diameters.
prop_alpha_of_one() ->
    ?FORALL({Count, _} = Times, times(),
            begin
                Matrix = matrix(Times, lists:seq(1, Count)),
                {ok, #{tree := Tree}} = placement_cluster:cluster(Matrix, {alpha, 1.0}),
                All = groups(placement_tree:packed(Tree)),
                Heights = placement_linkage:heights(placement_linkage:link(complete, placement_linkage:table(Matrix, fun math:log/1), Count)),
                Diameters = lists:sort([math:log(Most) || {group, _, #{max_us := Most}, _} <- All]),
                lists:all(fun({group, _, _, Children}) -> length(Children) =:= 2 end, All)
                    andalso lists:all(fun({One, Other}) -> abs(One - Other) < 1.0e-6 end, lists:zip(Diameters, Heights))
            end).

%% ---- plans ----

plan_laws_test_() ->
    [{timeout, 120, ?_assert(proper:quickcheck(Law, [quiet, {numtests, 100}, {to_file, user}]))} || Law <- [prop_plan(), prop_fan_out()]].

paths() ->
    ?LET(Places, non_empty(list({choose(1, 3), choose(1, 3), choose(1, 2)})),
         [{name(I), [{site, S}, {rack, R}, {host, H}]} || {I, {S, R, H}} <- lists:zip(lists:seq(1, length(Places)), Places)]).

%% Without a limit on the number of children, each path crosses every level at most once, and each node has one worker.
prop_plan() ->
    ?FORALL(Paths, paths(),
            begin
                {ok, Tree} = placement_tree:from_paths(Paths),
                {ok, Plan} = placement_plan:plan(Tree, #{}),
                placement_plan:crossings(Tree, Plan) =< 1
                    andalso lists:sort([Node || {worker, Node} <- placement_plan:to_list(Plan)]) =:= placement_tree:nodes(Tree)
            end).

prop_fan_out() ->
    ?FORALL({Paths, FanOut}, {paths(), choose(2, 5)},
            begin
                {ok, Tree} = placement_tree:from_paths(Paths),
                {ok, Plan} = placement_plan:plan(Tree, #{fan_out => FanOut}),
                widest(Plan) =< FanOut andalso placement_plan:crossings(Tree, Plan) =< 1
                    andalso lists:sort([Node || {worker, Node} <- placement_plan:to_list(Plan)]) =:= placement_tree:nodes(Tree)
            end).

widest({_, _, Children}) -> lists:max([length(Children) | [widest(Child) || Child <- Children]]).

%% In the report's cluster, the worst path from the master to a colony takes at most a third of the time of the worst
%% path in a tree of degree 2 over a random list.
colonies(Shape) ->
    {Matrix, _} = beamway_bench_planted:make(Shape, 7),
    Nodes = placement_matrix:nodes(Matrix),
    Places = maps:from_list(lists:zip(Nodes, lists:seq(1, length(Nodes)))),
    Way = fun(Path) -> lists:sum([placement_matrix:value(Matrix, maps:get(A, Places), maps:get(B, Places)) || {A, B} <- lists:zip(lists:droplast(Path), tl(Path)), A =/= B]) end,
    {ok, Plan} = placement_plan:plan(tree_of(Matrix), #{}),
    Own = lists:max([Way(Path) || Path <- placement_plan:paths(Plan)]),
    %% The order of the names is random here. The 64 colonies form a tree with six levels and degree 2.
    Random = lists:max([Way(Path) || Path <- binary_paths(list_to_tuple(lists:sort(Nodes)), 1, 7)]),
    ?assert(Own =< Random / 3).

binary_paths(Nodes, Place, 1) -> [[element(Place, Nodes)]];
binary_paths(Nodes, Place, Levels) -> [[element(Place, Nodes) | Path] || Child <- [2 * Place, 2 * Place + 1], Path <- binary_paths(Nodes, Child, Levels - 1)].
