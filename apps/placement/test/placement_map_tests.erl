%% SPDX-License-Identifier: Apache-2.0
%% @doc Properties of mappings, tested with random graphs on random trees, including uneven ones.
-module(placement_map_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

laws_test_() ->
    [{timeout, 120, ?_assert(proper:quickcheck(Law, [quiet, {numtests, Count}, {to_file, user}]))}
     || {Law, Count} <- [{prop_capacities(), 200}, {prop_cost(), 100}, {prop_near_the_best(), 100}, {prop_same_seed(), 30}]].

%% Generates the place of each node in the tree, as a path of groups. The paths differ in depth.
places() -> ?LET(Paths, ?SUCHTHAT(Ps, resize(8, list(path())), Ps =/= []), [{list_to_atom("n" ++ integer_to_list(N)), Path} || {N, Path} <- lists:zip(lists:seq(1, length(Paths)), Paths)]).

path() -> resize(3, list(oneof([x, y, z]))).

edges(Most) -> list({integer(1, Most), integer(1, Most), oneof([integer(0, 20), float(0.0, 3.0)])}).

tree(Places) ->
    {ok, Tree} = placement_tree:from_paths(Places),
    Tree.

%% No node exceeds its capacity, each process has one place, and graphs that cannot fit give an error.
prop_capacities() ->
    ?FORALL({Places, Edges, Loads, Room}, {places(), edges(25), list({integer(1, 30), integer(1, 5)}), integer(0, 12)},
            begin
                Tree = tree(Places),
                Sizes = maps:from_list(Loads),
                Capacity = maps:from_list([{Node, (Room + erlang:phash2(Node, 7))} || {Node, _} <- Places]),
                All = lists:usort(maps:keys(Sizes) ++ [V || {A, B, _} <- Edges, V <- [A, B]]),
                Load = fun(V) -> maps:get(V, Sizes, 1) end,
                case placement:map(Edges, Tree, #{capacity => Capacity, processes => Sizes}) of
                    {ok, #{places := Found, loads := Full}} ->
                        Sums = maps:fold(fun(V, Node, Acc) -> maps:update_with(Node, fun(Sum) -> Sum + Load(V) end, Load(V), Acc) end, #{}, Found),
                        lists:sort(maps:keys(Found)) =:= All andalso Sums =:= maps:filter(fun(_, Sum) -> Sum > 0 end, Full)
                            andalso lists:all(fun({Node, Sum}) -> Sum =< maps:get(Node, Capacity) end, maps:to_list(Sums));
                    {error, {no_room, Wanted, There}} -> Wanted > There;
                    %% With loads above 1, some capacity may remain unused although a process does not fit.
                    {error, {does_not_fit, V}} -> lists:member(V, All) andalso lists:any(fun(Size) -> Size > 1 end, maps:values(Sizes))
                end
            end).

%% The cost is the sum that is computed directly from the paths, without the tree.
prop_cost() ->
    ?FORALL({Places, Edges}, {places(), edges(25)},
            begin
                Levels = [100, 30, 9, 4, 1],
                {ok, #{places := Found, cost := Cost}} = placement:map(Edges, tree(Places), #{distances => Levels}),
                abs(naive(Edges, Found, packed(Places), Levels) - Cost) < 1.0e-6 * max(1, Cost)
            end).

naive(Edges, Found, Paths, Levels) ->
    lists:sum([W * apart(maps:get(A, Found), maps:get(B, Found), Paths, Levels) || {A, B, W} <- Edges]).

apart(Node, Node, _, _) -> 0;
apart(A, B, Paths, Levels) -> lists:nth(1 + shared(maps:get(A, Paths), maps:get(B, Paths)), Levels).

shared([X | A], [X | B]) -> 1 + shared(A, B);
shared(_, _) -> 0.

%% A group that contains all nodes of its parent group does not count.
packed(Places) -> maps:from_list([{Node, steps(Path, Node, Places)} || {Node, Path} <- Places]).

steps(Path, Node, Places) ->
    Below = fun(Count) -> [N || {N, P} <- Places, lists:prefix(lists:sublist(Path, Count), P)] end,
    [lists:sublist(Path, Count) || Count <- lists:seq(1, length(Path)), Below(Count) =/= Below(Count - 1), Below(Count) =/= [Node]].

%% In small cases the cost is at most 25 % higher than that of the best possible mapping.
prop_near_the_best() ->
    ?FORALL({Places, Edges}, {places(), non_empty(edges(6))},
            ?IMPLIES(length(Places) =< 4,
                     begin
                         Tree = tree(Places),
                         Nodes = [Node || {Node, _} <- Places],
                         {ok, #{cost := Cost}} = placement:map(Edges, Tree, #{capacity => maps:from_list([{Node, 2} || Node <- Nodes] ++ [{hd(Nodes), 6}]), distances => [100, 30, 9, 4, 1]}),
                         Names = lists:usort([V || {A, B, _} <- Edges, V <- [A, B]]),
                         Best = lists:min([naive(Edges, maps:from_list(lists:zip(Names, Chosen)), packed(Places), [100, 30, 9, 4, 1])
                                           || Chosen <- choices(length(Names), Nodes), fits(Chosen, hd(Nodes))]),
                         Cost =< 1.25 * Best + 1.0e-6
                     end)).

choices(0, _) -> [[]];
choices(Count, Nodes) -> [[Node | Rest] || Rest <- choices(Count - 1, Nodes), Node <- Nodes].

fits(Chosen, Large) -> lists:all(fun(Node) -> Node =:= Large orelse length([N || N <- Chosen, N =:= Node]) =< 2 end, Chosen).

prop_same_seed() ->
    ?FORALL({Places, Edges, Seed}, {places(), edges(200), integer()},
            begin
                Map = fun() -> placement:map(Edges, tree(Places), #{seed => Seed}) end,
                Map() =:= Map()
            end).

%% The graph is large enough for two worker processes. The best mapping costs 0, because every node can run four whole
%% cliques. The cost of the result is at most 3 % of the total weight.
planted_test_() ->
    {timeout, 60, fun() ->
        Cliques = [{C * 100 + A, C * 100 + B, 1} || C <- lists:seq(1, 64), A <- lists:seq(1, 40), B <- lists:seq(A + 1, 40)],
        Tree = tree([{list_to_atom("n" ++ integer_to_list(N)), [{rack, N div 4}]} || N <- lists:seq(0, 15)]),
        {ok, #{cost := Cost} = Found} = placement:map(Cliques, Tree, #{}),
        ?assert(Cost =< 0.03 * length(Cliques)),
        ?assertEqual({ok, Found}, placement:map(Cliques, Tree, #{}))
    end}.

%% A table of the distances between all pairs of these nodes would take 3 GB. The process is killed if it needs more than
%% a twentieth of that.
large_tree_test_() ->
    {timeout, 60, fun() ->
        Leaf = fun(N) -> {leaf, list_to_atom("n" ++ integer_to_list(N))} end,
        {ok, Tree} = placement_tree:from_vertex({group, root, #{}, [{group, Rack, #{}, [Leaf(Rack * 20 + N) || N <- lists:seq(1, 20)]} || Rack <- lists:seq(1, 1000)]}),
        {_, Monitor} = spawn_opt(fun() -> exit(placement:map([{V, V + 1, 1} || V <- lists:seq(1, 999)], Tree, #{distances => [10, 1]})) end,
                                 [monitor, {max_heap_size, #{size => 20000000, kill => true, error_logger => false}}]),
        receive {'DOWN', Monitor, process, _, Result} -> ?assertMatch({ok, #{places := #{1 := _, 1000 := _}}}, Result) end
    end}.

latency_test() ->
    {ok, Tree} = placement_tree:from_vertex({group, top, #{median_us => 90.0}, [{group, low, #{median_us => 2.0}, [{leaf, a}, {leaf, b}]}, {leaf, c}]}),
    ?assertMatch({ok, #{cost := 12.0, places := #{1 := _}}}, placement:map([{1, 2, 6}], Tree, #{distances => latency, capacity => #{a => 1, b => 1, c => 1}})),
    ?assertMatch({error, {bad_option, {distances, latency}, _}}, placement:map([{1, 2, 6}], tree([{a, "/x"}, {b, "/y"}]), #{distances => latency})).

no_tree_test() -> ?assertEqual({error, no_nodes}, placement:map([{1, 2, 6}], none, #{})).

%% For each invalid input there is a clear error that contains the value.
bad_input_test_() ->
    Tree = tree([{a, "/x"}, {b, "/y"}]),
    [?_test(begin
                {error, Error} = placement:map(Graph, Tree, Options),
                ?assertNotEqual(nomatch, string:find(unicode:characters_to_list(placement:format_error(Error)), Says))
            end)
     || {Graph, Options, Says} <- [{[{1, 2}], #{}, "{1,2}"}, {[{1, 2, -3}], #{}, "-3"}, {[{1, 2, heavy}], #{}, "heavy"}, {#{one => 1}, #{}, "one"}, {none, #{}, "none"},
                                   {[{1, 2, 3} | 4], #{}, "list of"}, {[], [], "map of options"}, {[], #{colour => red}, "colour"}, {[], #{nodes => [z]}, "that the tree holds"},
                                   {[], #{nodes => []}, "no node"}, {[], #{capacity => #{a => -1}}, "whole number"}, {[], #{capacity => #{z => 1}}, "all of the tree"},
                                   {[], #{imbalance => -1}, "imbalance"}, {[], #{distances => []}, "distances"}, {[], #{distances => [far]}, "far"},
                                   {[], #{seed => 1.5}, "seed"}, {[], #{tries => 0}, "tries"}, {[], #{processes => #{p => 0}}, "processes"},
                                   {[{1, 2, 3}], #{capacity => #{a => 1}}, "raise capacity"}, {[], #{processes => #{p => 2, q => 2, r => 2}, capacity => #{a => 3, b => 3}}, "fit"}]].

empty_test() ->
    ?assertEqual({ok, #{places => #{}, cost => 0, loads => #{a => 0}}}, placement:map([], tree([{a, "/x"}]), #{})),
    ?assertEqual({error, no_nodes}, placement:map([], placement_tree:empty(), #{})),
    ?assertMatch({ok, #{places := #{p := a, q := a}, cost := 0}}, placement:map(#{{p, q} => 3}, tree([{a, "/x"}, {b, "/x"}]), #{nodes => [a]})).
