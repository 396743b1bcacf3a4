%% SPDX-License-Identifier: Apache-2.0
%% @doc Generates networks whose true tree is known, for `bench placement' and for tests of the clustering. The time between two nodes depends on the
%% level of the tree at which their branches join, with log-normal noise, slow nodes and outliers; the nodes are in random order. The same seed always
%% produces the same table.
-module(beamway_bench_planted).

-export([shapes/0, make/2, make_spec/2, with_gaps/3, clusters/1, score/2, agreement/2]).

-export_type([shape/0, spec/0]).

-type shape() :: atom().
-type part() :: pos_integer() | {LevelUs :: number(), Noise :: number(), [part()]}.
%% A part is either a number of nodes or a group. A group consists of the time between any two of its parts, the standard deviation of that time's
%% logarithm, and the parts.
-type spec() :: #{tree := part(),
                  outliers => float(),     %% the share of pairs whose measured time is 3 to 12 times too long
                  slow => float()}.        %% standard deviation of the nodes' own slowness, in logarithms

%% @doc Returns the fourteen shapes.
-spec shapes() -> [{shape(), spec()}].
shapes() ->
    [{flat_16, #{tree => {100, 0.10, [16]}}},
     {flat_64, #{tree => {100, 0.15, [64]}}},
     {flat_256_noisy, #{tree => {100, 0.30, [256]}}},
     {sockets_8, #{tree => {60, 0.05, [{40, 0.05, [4]}, {40, 0.05, [4]}]}}},
     {numa_48, #{tree => {88, 0.05, copies(2, {67.6, 0.05, copies(2, {52, 0.05, copies(2, {40, 0.05, [6]})})})}}},
     {close_levels_60, #{tree => {127, 0.05, [{100, 0.05, [N]} || N <- [5, 10, 20, 25]]}}},
     {pairs_16, #{tree => {100, 0.12, copies(16, {45, 0.12, [2]})}}},
     {department_39, #{tree => {260, 0.10, [{100, 0.10, [34]}, 5]}}},
     {athos_256, #{tree => {800, 0.10, athos_groups()}}},
     {uneven_90, #{tree => {900, 0.10, [{400, 0.10, [{150, 0.10, [{60, 0.10, [12]}, {60, 0.10, [8]}]}, {150, 0.10, [20]}]},
                                        {300, 0.10, [40]}, 10]}}},
     {outliers_64, #{tree => {400, 0.10, copies(4, {100, 0.10, [16]})}, outliers => 0.02}},
     {slow_nodes_64, #{tree => {400, 0.10, copies(4, {100, 0.10, [16]})}, slow => 0.25}},
     {racks_128, #{tree => {250, 0.20, copies(8, {90, 0.20, [16]})}}},
     {three_levels_216, #{tree => {400, 0.15, copies(6, {200, 0.15, copies(6, {100, 0.15, [6]})})}}}].

copies(Count, Part) -> lists:duplicate(Count, Part).

%% Returns EDF's cluster as described in the RELEASE report: ten clusters in three groups, with a lot of noise inside the clusters.
athos_groups() ->
    [{450, 0.10, [{60, 0.35, [Size]} || Size <- Sizes]} || Sizes <- [[18, 36, 30, 24], [36, 22, 26], [18, 28, 18]]].

%% @doc Returns a table of this shape, and the clusters that the clustering must find.
-spec make(shape(), Seed :: integer()) -> {placement_matrix:matrix(), Clusters :: [[node()]]}.
make(Shape, Seed) ->
    {Shape, Spec} = lists:keyfind(Shape, 1, shapes()),
    make_spec(Spec, Seed).

%% @doc Like {@link make/2}, but for a shape that the caller specifies.
-spec make_spec(spec(), Seed :: integer()) -> {placement_matrix:matrix(), Clusters :: [[node()]]}.
make_spec(#{tree := Tree} = Spec, Seed) ->
    Random0 = rand:seed_s(exsss, {Seed, 271828, 314159}),
    Count = count(Tree),
    {Names, Random1} = shuffled([list_to_atom(lists:flatten(io_lib:format("n~4..0b@planted", [N]))) || N <- lists:seq(1, Count)], Random0),
    {Slowness, Random2} = lists:mapfoldl(fun(Name, R) -> slowness(Name, maps:get(slow, Spec, 0.0), R) end, Random1, Names),
    {Vertex, []} = planted(Tree, Names),
    {Pairs, _} = lists:mapfoldl(fun(Pair, R) -> measured(Pair, maps:from_list(Slowness), maps:get(outliers, Spec, 0.0), R) end,
                                Random2, levels(Vertex)),
    {ok, Matrix} = placement_matrix:from_pairs(Pairs),
    {Matrix, lists:sort([lists:sort(names(Group)) || Group <- groups(Vertex)])}.

count({_, _, Parts}) -> lists:sum([count(Part) || Part <- Parts]);
count(Nodes) -> Nodes.

shuffled(List, Random0) ->
    {Keyed, Random} = lists:mapfoldl(fun(Element, R0) -> {Key, R} = rand:uniform_s(R0), {{Key, Element}, R} end, Random0, List),
    {[Element || {_, Element} <- lists:sort(Keyed)], Random}.

slowness(Name, Deviation, Random0) ->
    {Normal, Random} = rand:normal_s(Random0),
    {{Name, max(0.0, Deviation * Normal)}, Random}.

%% Parts become vertices. A vertex is a node's name or {Level, Noise, [Vertex]}.
planted({Level, Noise, Parts}, Names) ->
    {Vertices, Rest} = lists:mapfoldl(fun planted_part/2, Names, Parts),
    {{Level, Noise, lists:append(Vertices)}, Rest}.

planted_part(Nodes, Names) when is_integer(Nodes) -> lists:split(Nodes, Names);
planted_part(Group, Names) ->
    {Vertex, Rest} = planted(Group, Names),
    {[Vertex], Rest}.

names({_, _, Vertices}) -> lists:append([names(Vertex) || Vertex <- Vertices]);
names(Name) -> [Name].

groups({_, _, Vertices} = Group) -> [Group | lists:append([groups(Vertex) || Vertex <- Vertices])];
groups(_) -> [].

levels({Level, Noise, Vertices}) ->
    Lists = [names(Vertex) || Vertex <- Vertices],
    lists:append([[{A, B, Level, Noise} || A <- One, B <- lists:append(Others)] || [One | Others] <- tails(Lists)])
        ++ lists:append([levels(Vertex) || Vertex <- Vertices]);
levels(_) -> [].

tails([]) -> [];
tails([_ | Rest] = List) -> [List | tails(Rest)].

measured({A, B, Level, Noise}, Slowness, Outliers, Random0) ->
    {Normal, Random1} = rand:normal_s(Random0),
    {Factor, Random} = outlier(Outliers, Random1),
    {{A, B, Level * Factor * math:exp(Noise * Normal + max(maps:get(A, Slowness), maps:get(B, Slowness)))}, Random}.

outlier(Share, Random0) ->
    {Chance, Random1} = rand:uniform_s(Random0),
    {Size, Random} = rand:uniform_s(Random1),
    {case Chance < Share of true -> 3 + 9 * Size; false -> 1 end, Random}.

%% @doc Removes a random fraction of the matrix's pairs.
-spec with_gaps(placement_matrix:matrix(), Share :: float(), Seed :: integer()) -> placement_matrix:matrix().
with_gaps(Matrix, Share, Seed) ->
    {Left, _} = lists:foldl(fun(Pair, {Kept, R0}) ->
                                    {Chance, R} = rand:uniform_s(R0),
                                    {[Pair || Chance >= Share] ++ Kept, R}
                            end, {[], rand:seed_s(exsss, {Seed, 161803, 398874})}, placement_matrix:pairs(Matrix)),
    {ok, Gappy} = placement_matrix:from_pairs(Left),
    Gappy.

%% @doc Returns how well two trees of the same nodes agree: for each level of the first tree, the adjusted Rand index of the two partitions (L. Hubert
%% and P. Arabie, "Comparing partitions", Journal of Classification 2, 1985). 1.0 means that they are equal, and 0.0 that they agree only by chance.
-spec agreement(placement_tree:tree(), placement_tree:tree()) -> [float()].
agreement(One, Other) ->
    {Ones, Others} = {partitions(One), partitions(Other)},
    lists:zipwith(fun adjusted_rand/2, Ones, lists:sublist(Others ++ lists:duplicate(length(Ones), lists:last(Others)), length(Ones))).

%% Returns the group of each node at each level below the root, in the order of the nodes. A node with a shorter path counts as part of its lowest
%% group on the deeper levels.
partitions(Tree) ->
    Paths = [Path || {_, Path} <- lists:sort(paths(placement_tree:packed(Tree), []))],
    [[lists:sublist(Path, Level) || Path <- Paths] || Level <- lists:seq(2, max(2, lists:max([length(Path) || Path <- Paths])))].

paths({leaf, Node}, Path) -> [{Node, lists:reverse(Path)}];
paths({group, Name, _, Children}, Path) -> lists:append([paths(Child, [Name | Path]) || Child <- Children]).

adjusted_rand(One, Other) ->
    [Both, First, Second, All] = [same_pairs(List) || List <- [lists:zip(One, Other), One, Other, [all || _ <- One]]],
    Chance = First * Second / All,
    case (First + Second) / 2 - Chance of
        Most when abs(Most) < 1.0e-9 -> 1.0;
        Most -> (Both - Chance) / Most
    end.

same_pairs(Labels) ->
    Counts = lists:foldl(fun(Label, Acc) -> maps:update_with(Label, fun(N) -> N + 1 end, 1, Acc) end, #{}, Labels),
    lists:sum([N * (N - 1) div 2 || N <- maps:values(Counts)]).

%% @doc Returns a tree's clusters, each as a sorted list of its nodes.
-spec clusters(placement_tree:tree()) -> [[node()]].
clusters(Tree) ->
    lists:sort(vertex_clusters(placement_tree:packed(Tree))).

vertex_clusters({leaf, _}) -> [];
vertex_clusters({group, _, _, Children} = Group) ->
    [lists:sort(placement_tree:members(Group)) | lists:append([vertex_clusters(Child) || Child <- Children])].

%% @doc Returns how well the clusters that were found match the planted ones: the harmonic mean of recall (the fraction of the planted clusters that
%% was found) and precision (the fraction of the found clusters that is correct). 1.0 is an exact match.
-spec score(Found :: [[node()]], Planted :: [[node()]]) -> float().
score(Found, Planted) ->
    Right = length([Cluster || Cluster <- Found, lists:member(Cluster, Planted)]),
    2 * Right / (length(Found) + length(Planted)).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

same_seed_same_table_test() ->
    ?assertEqual(make(numa_48, 3), make(numa_48, 3)),
    ?assertNotEqual(make(numa_48, 3), make(numa_48, 4)).

there_are_fourteen_test() ->
    ?assertEqual(14, length(lists:ukeysort(1, shapes()))).

clusters_of_a_shape_test() ->
    {Matrix, Clusters} = make(department_39, 1),
    ?assertEqual([34, 39], lists:sort([length(C) || C <- Clusters])),
    ?assertEqual(39, placement_matrix:size(Matrix)).

agreement_test() ->
    Tree = fun(Paths) -> {ok, Made} = placement_tree:from_paths(Paths), Made end,
    Two = Tree([{a, [x]}, {b, [x]}, {c, [y]}, {d, [y]}]),
    ?assertEqual([1.0], agreement(Two, Two)),
    ?assertMatch([Low] when Low < -0.49, agreement(Two, Tree([{a, [x]}, {c, [x]}, {b, [y]}, {d, [y]}]))),
    ?assertEqual([0.0], agreement(Two, Tree([{N, []} || N <- [a, b, c, d]]))).

gaps_are_drawn_test() ->
    {Matrix, _} = make(racks_128, 1),
    Gappy = with_gaps(Matrix, 0.3, 1),
    ?assert(abs(placement_matrix:gaps(Gappy) / (128 * 127 / 2) - 0.3) < 0.02),
    ?assertEqual(lists:sort(placement_matrix:nodes(Matrix)), placement_matrix:nodes(Gappy)).

score_test_() ->
    [?_assertEqual(1.0, score([[a], [b]], [[a], [b]])), ?_assertEqual(0.5, score([[a], [b]], [[a], [c]])), ?_assertEqual(0.0, score([[a]], [[b]]))].
-endif.
