%% SPDX-License-Identifier: Apache-2.0
%% @doc The graph that {@link placement_map} uses: vertices 1 to N with loads, and their neighbours with weights.
%%
%% Weights and loads are integers that fit into `atomics'. A coarser graph has one vertex for each matched pair of
%% vertices. Vertices with small loads and much traffic between them are preferred for matching. If all neighbours of a
%% vertex are already matched, the vertex is matched with another one that has the same first neighbour, so that stars
%% shrink as quickly as meshes.
-module(placement_map_graph).

-export([size/1, scale/3, levels/3, part/2, sorted_at_random/1]).

-export_type([graph/0, arcs/0, level/0]).

-compile({no_auto_import, [size/1]}).

-type arcs() :: [integer()].
%% Neighbour, weight, neighbour, weight, ...: this takes half as much memory as pairs.
-type graph() :: {Arcs :: tuple(), Loads :: tuple()}.
-type level() :: {graph(), Coarse :: tuple()}.
%% A graph and, for each of its vertices, the vertex of the next coarser graph into which it was merged.

%% @doc Returns the number of vertices.
-spec size(graph()) -> non_neg_integer().
size({Arcs, _}) -> tuple_size(Arcs).

%% @doc Returns a factor by which to multiply these numbers so that `Largest', which is the largest of them or their sum,
%% becomes at most `Most'. The factor is 1 if the numbers are already whole and small enough.
-spec scale([number()], Largest :: number(), Most :: pos_integer()) -> number().
scale(Numbers, Largest, Most) ->
    case lists:all(fun erlang:is_integer/1, Numbers) andalso Largest =< Most of
        true -> 1;
        false when Largest > 0 -> Most / Largest;
        false -> 1
    end.

%% @doc Returns the numbers 1 to N in random order, using the random number state of the process.
-spec sorted_at_random(non_neg_integer()) -> [pos_integer()].
sorted_at_random(Count) -> [V || {_, V} <- lists:sort([{rand:uniform(1 bsl 30), V} || V <- lists:seq(1, Count)])].

%% @doc Coarsens a graph until it has at most `Most' vertices or no longer shrinks. Returns the coarsest graph, and the
%% levels from coarsest to finest.
-spec levels(graph(), Most :: pos_integer(), MaxLoad :: pos_integer()) -> {graph(), [level()]}.
levels(Graph, Most, MaxLoad) -> levels(Graph, Most, MaxLoad, []).

levels(Graph, Most, MaxLoad, Levels) ->
    Count = size(Graph),
    case Count > Most andalso coarser(Graph, MaxLoad) of
        {Coarser, Coarse} when tuple_size(element(1, Coarser)) * 20 =< Count * 19 -> levels(Coarser, Most, MaxLoad, [{Graph, Coarse} | Levels]);
        _ -> {Graph, Levels}
    end.

-spec coarser(graph(), MaxLoad :: pos_integer()) -> {graph(), Coarse :: tuple()}.
coarser({Arcs, Loads} = Graph, MaxLoad) ->
    Count = size(Graph),
    Mates = atomics:new(Count, []),
    Alone = matched(sorted_at_random(Count), Arcs, Loads, MaxLoad, Mates, []),
    ok = match_by_neighbour(Alone, Arcs, Loads, MaxLoad, Mates, #{}),
    Numbers = atomics:new(Count, []),
    Pairs = numbered(1, Count, 1, Mates, Numbers, []),
    %% Uses a tuple, because every arc is looked up here and reading a tuple is several times as fast as reading atomics.
    Coarse = list_to_tuple([atomics:get(Numbers, V) || V <- lists:seq(1, Count)]),
    {{list_to_tuple([merged_arcs(Pair, Arcs, Coarse) || Pair <- Pairs]), list_to_tuple([lists:sum([element(V, Loads) || V <- Pair]) || Pair <- Pairs])}, Coarse}.

matched([V | Rest], Arcs, Loads, MaxLoad, Mates, Alone) ->
    case atomics:get(Mates, V) of
        0 ->
            Room = MaxLoad - element(V, Loads),
            case best_mate(element(V, Arcs), Loads, Room, Mates, 0, 0.0) of
                0 ->
                    matched(Rest, Arcs, Loads, MaxLoad, Mates, [V | Alone]);
                U ->
                    ok = atomics:put(Mates, V, U),
                    ok = atomics:put(Mates, U, V),
                    matched(Rest, Arcs, Loads, MaxLoad, Mates, Alone)
            end;
        _ -> matched(Rest, Arcs, Loads, MaxLoad, Mates, Alone)
    end;
matched([], _, _, _, _, Alone) -> Alone.

%% Prefers heavy edges between light vertices.
best_mate([U, Weight | Rest], Loads, Room, Mates, Best, Rating) ->
    Load = element(U, Loads),
    New = Weight / Load * Weight,
    case New > Rating andalso Load =< Room andalso atomics:get(Mates, U) =:= 0 of
        true -> best_mate(Rest, Loads, Room, Mates, U, New);
        false -> best_mate(Rest, Loads, Room, Mates, Best, Rating)
    end;
best_mate([], _, _, _, Best, _) -> Best.

match_by_neighbour([V | Rest], Arcs, Loads, MaxLoad, Mates, Waiting) ->
    Key = case element(V, Arcs) of [U | _] -> U; [] -> none end,
    Free = atomics:get(Mates, V) =:= 0,
    case Waiting of
        #{Key := W} when Free, W =/= V ->
            case element(V, Loads) + element(W, Loads) =< MaxLoad of
                true ->
                    ok = atomics:put(Mates, V, W),
                    ok = atomics:put(Mates, W, V),
                    match_by_neighbour(Rest, Arcs, Loads, MaxLoad, Mates, maps:remove(Key, Waiting));
                false -> match_by_neighbour(Rest, Arcs, Loads, MaxLoad, Mates, Waiting)
            end;
        #{} when Free -> match_by_neighbour(Rest, Arcs, Loads, MaxLoad, Mates, Waiting#{Key => V});
        #{} -> match_by_neighbour(Rest, Arcs, Loads, MaxLoad, Mates, Waiting)
    end;
match_by_neighbour([], _, _, _, _, _) -> ok.

numbered(V, Count, _, _, _, Pairs) when V > Count -> lists:reverse(Pairs);
numbered(V, Count, Next, Mates, Coarse, Pairs) ->
    case atomics:get(Mates, V) of
        0 ->
            ok = atomics:put(Coarse, V, Next),
            numbered(V + 1, Count, Next + 1, Mates, Coarse, [[V] | Pairs]);
        U when U > V ->
            ok = atomics:put(Coarse, V, Next),
            ok = atomics:put(Coarse, U, Next),
            numbered(V + 1, Count, Next + 1, Mates, Coarse, [[V, U] | Pairs]);
        _ -> numbered(V + 1, Count, Next, Mates, Coarse, Pairs)
    end.

merged_arcs([V | _] = Pair, Arcs, Coarse) ->
    Own = element(V, Coarse),
    summed(lists:sort(lists:foldl(fun(Member, Acc) -> renamed(element(Member, Arcs), Own, Coarse, Acc) end, [], Pair))).

renamed([U, Weight | Rest], Own, Coarse, Acc) ->
    case element(U, Coarse) of
        Own -> renamed(Rest, Own, Coarse, Acc);
        New -> renamed(Rest, Own, Coarse, [{New, Weight} | Acc])
    end;
renamed([], _, _, Acc) -> Acc.

summed([{U, One}, {U, Other} | Rest]) -> summed([{U, One + Other} | Rest]);
summed([{U, Weight} | Rest]) -> [U, Weight | summed(Rest)];
summed([]) -> [].

%% @doc Returns the subgraph of some vertices, in the order of the list, with the arcs between them.
-spec part(graph(), [pos_integer()]) -> graph().
part({Arcs, Loads} = Graph, Vertices) ->
    New = atomics:new(max(1, size(Graph)), []),
    _ = lists:foldl(fun(V, Next) -> ok = atomics:put(New, V, Next), Next + 1 end, 1, Vertices),
    {list_to_tuple([kept(element(V, Arcs), New) || V <- Vertices]), list_to_tuple([element(V, Loads) || V <- Vertices])}.

kept([U, Weight | Rest], New) ->
    case atomics:get(New, U) of
        0 -> kept(Rest, New);
        V -> [V, Weight | kept(Rest, New)]
    end;
kept([], _) -> [].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

scale_test_() ->
    [?_assertEqual(1, scale([3, 4], 7, 10)), ?_assertEqual(2.0, scale([2.5, 2.5], 5.0, 10)), ?_assertEqual(0.5, scale([20], 20, 10)), ?_assertEqual(1, scale([0.0], 0.0, 10))].
-endif.
