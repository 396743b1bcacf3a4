%% SPDX-License-Identifier: Apache-2.0
%% @doc Maps a graph of communicating processes onto the nodes of a tree. Called by {@link placement:map/3}.
%%
%% The cost of a mapping is the sum of weight times distance over all pairs that communicate. The first step is recursive
%% multisection down the tree: the graph is cut into parts for the children of the root, in proportion to their
%% capacities, and each part is cut again for the children below ({@link placement_map_bisect}). The cost of traffic
%% between two children of a group does not depend on the nodes within these children, so each cut can be made
%% independently. Then moves and swaps refine the whole mapping ({@link placement_map_refine}).
%% `docs/guide/placement.md' names the sources. The module is pure except for its helper processes: the same seed gives
%% the same mapping.
-module(placement_map).

-export([map/3, cost/4, distance/4, expected/3, pairs/1, format_error/1]).

-export_type([graph/0, name/0, options/0, mapping/0, error/0]).

-type name() :: term().
%% A process is named by a pid, a registered name or any other term.
-type graph() :: [{name(), name(), Weight :: number()}] | #{{name(), name()} => Weight :: number()}.
%% The order of the two processes in a pair does not matter. If a pair is listed twice, its weights are added.
-type options() :: #{processes => [name()] | #{name() => Load :: pos_integer()}, %% includes processes that do not communicate; default: those of the graph, each with load 1
                     nodes => [node()],                  %% default: all nodes of the tree
                     capacity => #{node() => non_neg_integer()}, %% the maximum load of each node; default: equal shares plus `imbalance'
                     imbalance => number(),              %% the fraction by which a node may exceed its equal share; default: 0.03
                     distances => tree | latency | [number()], %% the report's distance, measured times, or one number per level, root first; default: tree
                     seed => integer(),                  %% default: 1
                     tries => pos_integer()}.            %% how often the cuts between the root's children are tried; the best result is used; default: 2
-type mapping() :: #{places := #{name() => node()}, cost := number(), loads := #{node() => non_neg_integer()}}.
-type error() :: {bad_graph, term(), Expected :: string()} | {bad_option, {atom(), term()}, Expected :: string()} | no_nodes | {no_room, Load :: pos_integer(), Capacity :: non_neg_integer()} | {does_not_fit, name()}.

-define(DEFAULTS, #{imbalance => 0.03, distances => tree, seed => 1, tries => 2}).
%% The limit keeps sums of weights times distances within small integers; the limit on distances is in
%% placement_map_distances.
-define(MOST_WEIGHT, (1 bsl 38)).
-define(PASSES, 6).
-define(SMALL, 300).
-define(SMALL_TRIES, 6).
%% With more vertices than this, starting a second process pays off.
-define(LARGE, 2000).

%% @doc Returns a mapping with a low cost, together with its cost and the load of each node.
-spec map(graph(), placement_tree:tree() | none, options()) -> {ok, mapping()} | {error, error()}.
map(Graph, none, Options) -> map(Graph, placement_tree:empty(), Options);
map(Graph, Tree, Options) ->
    try
        Setting = checked(Options, Tree),
        Weights = pairs(Graph),
        Loads = process_loads(Setting, Weights),
        Capacity = capacity(Setting, lists:sum(maps:values(Loads))),
        {ok, mapped(Weights, Loads, Capacity, Tree, Setting)}
    catch
        throw:Error -> {error, Error}
    end.

%%% Options and the graph

checked(Options, Tree) when is_map(Options) ->
    Setting = maps:merge(?DEFAULTS, Options),
    _ = [throw({bad_option, {Key, Value}, Expected}) || {Key, Value} <- maps:to_list(Setting), Expected <- [expected(Key, Value, Tree)], Expected =/= ok],
    Nodes = maps:get(nodes, Setting, placement_tree:leaf_order(Tree)),
    Nodes =:= [] andalso throw(no_nodes),
    Wanted = maps:from_keys(Nodes, true),
    Setting#{nodes => [Node || Node <- placement_tree:leaf_order(Tree), is_map_key(Node, Wanted)]};
checked(Options, _) -> throw({bad_option, {options, Options}, "a map of options"}).

%% @doc Returns `ok' if the value of an option is valid, and otherwise a description of the valid values.
-spec expected(Option :: term(), Value :: term(), placement_tree:tree()) -> ok | string().
expected(processes, Value, _) when is_map(Value) ->
    when_all(fun(Load) -> is_integer(Load) andalso Load > 0 end, maps:values(Value), "loads that are whole numbers above 0");
expected(processes, Value, _) when is_list(Value) -> ok;
expected(processes, _, _) -> "a list of processes, or a map of their loads";
expected(nodes, Value, Tree) when is_list(Value) -> when_all(fun(Node) -> placement_tree:is_member(Tree, Node) end, Value, "nodes that the tree holds");
expected(nodes, _, _) -> "a list of nodes";
expected(capacity, Value, Tree) when is_map(Value) ->
    when_all(fun({Node, Most}) -> placement_tree:is_member(Tree, Node) andalso is_integer(Most) andalso Most >= 0 end, maps:to_list(Value),
             "a whole number from 0 for each node, all of the tree");
expected(capacity, _, _) -> "a map of nodes to whole numbers";
expected(imbalance, Value, _) -> when_all(fun(V) -> is_number(V) andalso V >= 0 end, [Value], "a number from 0, such as 0.03");
expected(distances, Value, _) when Value =:= tree; Value =:= latency -> ok;
expected(distances, [_ | _] = Value, Tree) ->
    when_all(fun(D) -> is_number(D) andalso D >= 0 andalso length(Value) >= placement_tree:depth(Tree) end, Value,
             "a number from 0 for each level of the tree, the root's first");
expected(distances, _, _) -> "tree, latency or a list of a number for each level";
expected(seed, Value, _) -> when_all(fun erlang:is_integer/1, [Value], "a whole number");
expected(tries, Value, _) -> when_all(fun(V) -> is_integer(V) andalso V >= 1 andalso V =< 100 end, [Value], "a whole number from 1 to 100");
expected(_, _, _) -> "one of processes, nodes, capacity, imbalance, distances, seed, tries".

when_all(Is, Values, Expected) ->
    case lists:all(Is, Values) of
        true -> ok;
        false -> Expected
    end.

%% @doc Returns the pairs of a graph, sorted. Both orders of a pair count as the same pair, and the weights of repeated
%% pairs are added. Throws an error that {@link format_error/1} can format.
-spec pairs(graph()) -> [{name(), name(), Weight :: number()}].
pairs(Graph) when is_map(Graph) -> pairs([edge(Key, Weight) || {Key, Weight} <- maps:to_list(Graph)]);
pairs(Graph) when is_list(Graph), length(Graph) >= 0 -> summed(lists:sort([ordered(Edge) || Edge <- Graph]));
pairs(Graph) -> throw({bad_graph, Graph, "a list of {Process, Process, Weight}, or a map of {Process, Process} to weights"}).

edge({A, B}, Weight) -> {A, B, Weight};
edge(Key, Weight) -> throw({bad_graph, {Key, Weight}, "{Process, Process} => Weight"}).

ordered({A, B, Weight}) when is_number(Weight), Weight >= 0, A =< B -> {A, B, Weight};
ordered({A, B, Weight}) when is_number(Weight), Weight >= 0 -> {B, A, Weight};
ordered(Other) -> throw({bad_graph, Other, "{Process, Process, Weight} with a weight from 0"}).

summed([{A, B, One}, {A, B, Other} | Rest]) -> summed([{A, B, One + Other} | Rest]);
summed([Edge | Rest]) -> [Edge | summed(Rest)];
summed([]) -> [].

process_loads(Setting, Weights) ->
    Given = case Setting of
                #{processes := Processes} when is_list(Processes) -> maps:from_keys(Processes, 1);
                #{processes := Processes} -> Processes;
                #{} -> #{}
            end,
    maps:merge(maps:from_keys([Process || {A, B, _} <- Weights, Process <- [A, B]], 1), Given).

%% The capacities are in the order of the nodes.
capacity(#{nodes := Nodes} = Setting, Load) ->
    Each = case Setting of
               #{capacity := Given} -> [maps:get(Node, Given, 0) || Node <- Nodes];
               #{imbalance := Imbalance} ->
                   %% The result is rounded up, but not if the exact product is a whole number: with floats, 100 * 1.1 is
                   %% more than 110.
                   Share = (Load + length(Nodes) - 1) div length(Nodes),
                   [ceil(Share * (1 + Imbalance) - 1.0e-6) || _ <- Nodes]
           end,
    Load > lists:sum(Each) andalso throw({no_room, Load, lists:sum(Each)}),
    Each.

%%% The mapping

mapped(Weights, ProcessLoads, Capacity, Tree, #{nodes := Nodes, distances := Kind} = Setting) ->
    Names = lists:sort(maps:keys(ProcessLoads)),
    Most = list_to_tuple(Capacity),
    Graph = numbered(Weights, Names, ProcessLoads),
    ByNumber = list_to_tuple(Nodes),
    Parts = parts(placement_tree:packed(Tree), maps:from_list(lists:zip(Nodes, lists:seq(1, length(Nodes))))),
    Distances = distances(Parts, ByNumber, Tree, Kind),
    Blocks = in_own_process(fun() -> blocks(Graph, Parts, Most, Distances, Setting) end),
    case misfit(Blocks, Graph, Most) of
        none -> ok;
        Vertex -> throw({does_not_fit, lists:nth(Vertex, Names)})
    end,
    Places = maps:from_list(lists:zip(Names, [element(Block, ByNumber) || Block <- Blocks])),
    Loads = maps:fold(fun(Name, Node, Acc) -> maps:update_with(Node, fun(Sum) -> Sum + map_get(Name, ProcessLoads) end, Acc) end, maps:from_keys(Nodes, 0), Places),
    #{places => Places, cost => cost(Weights, Places, Tree, Kind), loads => Loads}.

%% @doc Returns the sum of weight times distance over all pairs. `Places' must contain both processes of each pair.
-spec cost(graph(), Places :: #{name() => node()}, placement_tree:tree(), tree | latency | [number()]) -> number().
cost(Graph, Places, Tree, Kind) when is_map(Graph) -> cost([{A, B, Weight} || {{A, B}, Weight} <- maps:to_list(Graph)], Places, Tree, Kind);
cost(Graph, Places, Tree, Kind) ->
    lists:sum([Weight * distance(Kind, Tree, maps:get(A, Places), maps:get(B, Places)) || {A, B, Weight} <- Graph]).

%% @doc Returns the distance between two nodes; the first argument is the kind of distance.
-spec distance(tree | latency | [number()], placement_tree:tree(), node(), node()) -> number().
distance(_, _, Node, Node) -> 0;
distance(tree, Tree, One, Other) ->
    {ok, Distance} = placement_tree:distance(Tree, One, Other),
    Distance;
distance(latency, Tree, One, Other) ->
    case placement_tree:latency(Tree, One, Other) of
        {ok, #{median_us := Us}} -> Us;
        {ok, _} -> throw({bad_option, {distances, latency}, "a tree that was measured; this one has no times"})
    end;
distance(Levels, Tree, One, Other) ->
    {ok, Level} = placement_tree:shared(Tree, One, Other),
    lists:nth(Level + 1, Levels).

%% Numbers the processes in the order of their names, and converts the weights to whole numbers.
numbered(Weights, Names, ProcessLoads) ->
    Numbers = maps:from_list(lists:zip(Names, lists:seq(1, length(Names)))),
    Scale = placement_map_graph:scale([Weight || {_, _, Weight} <- Weights], lists:sum([Weight || {_, _, Weight} <- Weights]), ?MOST_WEIGHT),
    Arcs = lists:foldl(fun({A, A, _}, Acc) -> Acc;
                          ({A, B, Weight}, Acc) ->
                               case round(Weight * Scale) of
                                   0 -> Acc;
                                   W ->
                                       #{A := V, B := U} = Numbers,
                                       [{V, U, W}, {U, V, W} | Acc]
                               end
                       end, [], Weights),
    {list_to_tuple(grouped(1, length(Names), lists:sort(Arcs))), list_to_tuple([maps:get(Name, ProcessLoads) || Name <- Names])}.

grouped(V, Count, _) when V > Count -> [];
grouped(V, Count, Arcs) ->
    {Own, Rest} = own(V, Arcs, []),
    [Own | grouped(V + 1, Count, Rest)].

own(V, [{V, U, Weight} | Rest], Own) -> own(V, Rest, [U, Weight | Own]);
own(_, Rest, Own) -> {Own, Rest}.

distances(Parts, ByNumber, Tree, Kind) ->
    placement_map_distances:new(Parts, fun(One, Other) -> distance(Kind, Tree, element(One, ByNumber), element(Other, ByNumber)) end).

%% Returns the tree with block numbers as leaves, without the nodes that are not used.
parts({leaf, Node}, Numbers) ->
    case Numbers of
        #{Node := Number} -> Number;
        #{} -> none
    end;
parts({group, _, _, Children}, Numbers) ->
    case [Part || Child <- Children, Part <- [parts(Child, Numbers)], Part =/= none] of
        [] -> none;
        [Only] -> Only;
        Parts -> Parts
    end.

%% Uses a separate process, so that the caller's random number state and heap do not change.
in_own_process(Fun) ->
    {Pid, Monitor} = helper(Fun),
    receive
        {'DOWN', Monitor, process, Pid, {result, Result}} -> Result;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    end.

%% Dialyzer would warn that the process's fun never returns, because its result is the exit reason.
-dialyzer({nowarn_function, helper/1}).
helper(Fun) ->
    {Pid, _} = Helper = spawn_opt(fun() -> exit({result, Fun()}) end, [monitor, {min_heap_size, 1 bsl 20}]),
    _ = guard(Pid),
    Helper.

guard(Pid) ->
    Caller = self(),
    spawn(fun() ->
                  Of = monitor(process, Caller),
                  Own = monitor(process, Pid),
                  receive
                      {'DOWN', Of, process, Caller, _} -> exit(Pid, kill);
                      {'DOWN', Own, process, Pid, _} -> ok
                  end
          end).

%% Small graphs take little time, so they are mapped several times and the cheapest mapping is used. Half of the attempts
%% fill the nodes one after another.
blocks({Arcs, _} = Graph, Parts, Most, Distances, #{seed := Seed, tries := Tries}) ->
    Ways = case tuple_size(Arcs) =< ?SMALL of
               true -> [{Fill, Number} || Number <- lists:seq(1, ?SMALL_TRIES), Fill <- [even, filled]];
               false -> [{even, 1}]
           end,
    {_, Blocks} = lists:min([once(Graph, Parts, Most, Distances, {Tries, Fill, {Seed, Number}}) || {Fill, Number} <- Ways]),
    Blocks.

once({Arcs, _} = Graph, Parts, Most, Distances, How) ->
    Count = tuple_size(Arcs),
    Blocks = atomics:new(max(1, Count), []),
    ok = multisected(Graph, lists:seq(1, Count), Parts, Most, How, Blocks),
    ok = fitted(Graph, Blocks, Most, Distances),
    ok = placement_map_refine:refined(Graph, Blocks, Most, Distances, ?PASSES),
    Found = [atomics:get(Blocks, V) || V <- lists:seq(1, Count)],
    {{misfit(Found, Graph, Most) =/= none, lists:sum([cost_at(element(V, Arcs), placement_map_distances:from(Block, Distances), Blocks, 0) || {V, Block} <- lists:enumerate(Found)])}, Found}.

%% Bisects the graph until each part is assigned to a single node. Traffic between the root's children costs most, so
%% the cuts between these are made several times and the best result is used. After the first cut both sides continue
%% concurrently. Each side's random number generator is seeded from its position in the tree, so the result does not
%% depend on which side is faster.
multisected(_, Vertices, Block, _, _, Blocks) when is_integer(Block) -> lists:foreach(fun(V) -> atomics:put(Blocks, V, Block) end, Vertices);
multisected(Graph, Vertices, [Only], Most, {_, Fill, Seed}, Blocks) -> multisected(Graph, Vertices, Only, Most, {1, Fill, Seed}, Blocks);
multisected({_, Loads} = Graph, Vertices, Part, Most, {Tries, Fill, Seed} = How, Blocks) ->
    _ = rand:seed(exsss, erlang:phash2({Seed, hd(blocks(Part)), length(Vertices)}, 1 bsl 32)),
    {One, Other} = halves(Part, Most),
    Load = lists:sum(tuple_to_list(Loads)),
    {InOne, InOther} = placement_map_bisect:sides(Graph, bound(Fill, Load, One, Other, Part, Most), bound(Fill, Load, Other, One, Part, Most), Tries),
    Names = list_to_tuple(Vertices),
    Left = fun() -> multisected(placement_map_graph:part(Graph, InOne), [element(V, Names) || V <- InOne], One, Most, How, Blocks) end,
    Right = fun() -> multisected(placement_map_graph:part(Graph, InOther), [element(V, Names) || V <- InOther], Other, Most, How, Blocks) end,
    case length(Vertices) =:= map_get(size, atomics:info(Blocks)) andalso length(Vertices) > ?LARGE of
        true -> beside(Left, Right);
        false -> Left(), Right()
    end.

beside(Here, There) ->
    {Pid, Monitor} = helper(There),
    ok = Here(),
    {result, ok} = receive {'DOWN', Monitor, process, Pid, Reason} -> Reason end,
    ok.

halves(Parts, Most) ->
    Half = capacity_of(Parts, Most) / 2,
    split(Parts, [], 0, Half, Most).

split([Part, Last], [], _, _, _) -> {[Part], [Last]};
split([Part | Rest], Before, Sum, Half, Most) ->
    Own = capacity_of(Part, Most),
    case Before =/= [] andalso (Rest =:= [] orelse Sum + Own / 2 > Half) of
        true -> {lists:reverse(Before), [Part | Rest]};
        false -> split(Rest, [Part | Before], Sum + Own, Half, Most)
    end.

capacity_of(Part, Most) -> lists:sum([element(Block, Most) || Block <- blocks(Part)]).

blocks(Part) -> lists:flatten([Part]).

%% Each cut may use only part of the spare capacity, so that some remains for the last cuts.
bound(filled, Load, Own, _, _, Most) ->
    Capacity = capacity_of(Own, Most),
    {min(Load, Capacity), Capacity};
bound(even, Load, Own, Other, Part, Most) ->
    Capacity = capacity_of(Own, Most),
    All = max(1, Capacity + capacity_of(Other, Most)),
    Target = Load * Capacity / All,
    Slack = math:pow(max(1.0, All / max(1, Load)), 1 / math:ceil(math:log2(length(blocks(Part))))),
    {Target, min(Capacity, max(ceil(Target), trunc(Target * Slack)))}.

%% If processes have different loads, some nodes may be overloaded after the cuts. The excess processes are then moved to
%% nodes with spare capacity, each to the node where it costs least. If that is not enough, all processes are placed from
%% scratch, starting with the largest.
fitted({Arcs, Loads} = Graph, Blocks, Most, Distances) ->
    Count = tuple_size(Arcs),
    Full = placement_map_refine:loads(Graph, Blocks, tuple_size(Most)),
    Largest = [V || {_, V} <- lists:sort([{-element(V, Loads), V} || V <- lists:seq(1, Count)])],
    Out = taken_out(lists:reverse(Largest), Loads, Blocks, Full, Most, []),
    case put_in(Out, Arcs, Loads, Blocks, Full, Most, Distances) of
        ok -> ok;
        full ->
            Empty = atomics:new(tuple_size(Most), []),
            _ = put_in(Largest, Arcs, Loads, Blocks, Empty, Most, Distances),
            ok
    end.

taken_out([V | Rest], Loads, Blocks, Full, Most, Out) ->
    Block = atomics:get(Blocks, V),
    case atomics:get(Full, Block) > element(Block, Most) of
        true ->
            ok = atomics:sub(Full, Block, element(V, Loads)),
            taken_out(Rest, Loads, Blocks, Full, Most, [V | Out]);
        false -> taken_out(Rest, Loads, Blocks, Full, Most, Out)
    end;
taken_out([], _, _, _, _, Out) -> Out.

put_in([V | Rest], Arcs, Loads, Blocks, Full, Most, Distances) ->
    Load = element(V, Loads),
    case [{cost_at(element(V, Arcs), placement_map_distances:from(Block, Distances), Blocks, 0), Block} || Block <- lists:seq(1, tuple_size(Most)), atomics:get(Full, Block) + Load =< element(Block, Most)] of
        [] -> full;
        Open ->
            {_, Block} = lists:min(Open),
            ok = atomics:put(Blocks, V, Block),
            ok = atomics:add(Full, Block, Load),
            put_in(Rest, Arcs, Loads, Blocks, Full, Most, Distances)
    end;
put_in([], _, _, _, _, _, _) -> ok.

cost_at([U, Weight | Rest], Row, Blocks, Sum) -> cost_at(Rest, Row, Blocks, Sum + Weight * placement_map_distances:to(atomics:get(Blocks, U), Row));
cost_at([], _, _, Sum) -> Sum.

%% Returns the first process that is in an overloaded block.
misfit(Blocks, {_, Loads}, Most) ->
    Full = lists:foldl(fun({Block, Load}, Acc) -> maps:update_with(Block, fun(Sum) -> Sum + Load end, Load, Acc) end, #{}, lists:zip(Blocks, tuple_to_list(Loads))),
    case [V || {V, Block} <- lists:enumerate(Blocks), maps:get(Block, Full) > element(Block, Most)] of
        [] -> none;
        [V | _] -> V
    end.

%% @doc Formats an error as text for users.
-spec format_error(error()) -> unicode:chardata().
format_error({bad_graph, Value, Expected}) -> io_lib:format("the graph has ~0tP; expected ~ts", [Value, 12, Expected]);
format_error({bad_option, {Key, Value}, Expected}) -> io_lib:format("the option ~0tp is ~0tP; expected ~ts", [Key, Value, 12, Expected]);
format_error(no_nodes) -> "there are no nodes to map to; pass a tree with nodes, or name nodes with the option nodes";
format_error({no_room, Load, Capacity}) -> io_lib:format("the processes have a load of ~b, and the nodes have room for ~b; add nodes or raise capacity", [Load, Capacity]);
format_error({does_not_fit, Name}) -> io_lib:format("no mapping was found in which ~0tP and what shares its node fit; raise capacity or imbalance", [Name, 12]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% The distances are the same as when each pair of nodes is looked up, even if some nodes of the tree are not used.
distances_test_() ->
    Paths = [{list_to_atom("n" ++ integer_to_list(N)), [{a, N rem 3}, {b, N rem 7}] ++ [{c, x} || N rem 5 =:= 0]} || N <- lists:seq(1, 200)],
    {ok, Tree} = placement_tree:from_paths(Paths),
    [?_test(begin
         Nodes = [Node || {Node, true} <- lists:zip(placement_tree:leaf_order(Tree), [N rem Used =:= 0 || N <- lists:seq(1, 200)])],
         Blocks = lists:seq(1, length(Nodes)),
         Parts = parts(placement_tree:packed(Tree), maps:from_list(lists:zip(Nodes, Blocks))),
         Distances = distances(Parts, list_to_tuple(Nodes), Tree, Kind),
         Table = [[distance(Kind, Tree, One, Other) || Other <- Nodes] || One <- Nodes],
         Scale = placement_map_graph:scale(lists:append(Table), lists:max(lists:append(Table)), 1 bsl 18),
         ?assertEqual([[round(Distance * Scale) || Distance <- Row] || Row <- Table],
                      [[placement_map_distances:to(Block, placement_map_distances:from(Own, Distances)) || Block <- Blocks] || Own <- Blocks])
     end) || Kind <- [tree, [7, 3, 2, 1], [0.5, 0.25, 0.1, 0]], Used <- [1, 2, 9]].

halves_test_() ->
    [?_assertEqual(Want, halves(Parts, {1, 1, 1, 1, 8}))
     || {Want, Parts} <- [{{[1], [2]}, [1, 2]}, {{[1, 2], [3, 4]}, [1, 2, 3, 4]}, {{[1, [2, 3]], [5]}, [1, [2, 3], 5]}, {{[5], [1, 2]}, [5, 1, 2]}]].

bound_test() ->
    ?assertEqual({50.0, 50}, bound(even, 100, 1, 2, [1, 2], {50, 50})),
    ?assertEqual({50.0, 60}, bound(even, 100, 1, 2, [1, 2], {60, 60})).
-endif.
