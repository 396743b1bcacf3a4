%% SPDX-License-Identifier: Apache-2.0
%% @doc Cuts a graph into two sides with bounded loads and little traffic between them. This is multilevel bisection: the
%% graph is coarsened, several attempts grow one side of the coarsest graph from a single vertex, and the best cut is
%% refined on each finer level (by the method of Fiduccia and Mattheyses, with the gains of both sides in queues).
-module(placement_map_bisect).

-export([sides/4]).

-define(COARSEST, 60).
-define(TRIES, 5).
-define(PASSES, 8).

-type bound() :: {Target :: number(), Most :: non_neg_integer()}.

%% @doc Returns the vertices of both sides, from the best of `Tries' attempts. The load of a side exceeds its bound only if
%% no move could prevent that.
-spec sides(placement_map_graph:graph(), bound(), bound(), Tries :: pos_integer()) -> {[pos_integer()], [pos_integer()]}.
sides({_, Loads} = Graph, {Target, Most0}, {_, Most1}, Tries) ->
    Total = lists:sum(tuple_to_list(Loads)),
    MaxLoad = max(lists:max([1 | tuple_to_list(Loads)]), round(1.5 * Total / ?COARSEST)),
    [{_, Sides} | _] = lists:keysort(1, [once(Graph, MaxLoad, {Target, Most0, Most1}) || _ <- lists:seq(1, Tries)]),
    lists:partition(fun(V) -> atomics:get(Sides, V) =:= 0 end, lists:seq(1, placement_map_graph:size(Graph))).

once(Graph, MaxLoad, Bounds) ->
    {Coarsest, Levels} = placement_map_graph:levels(Graph, ?COARSEST, MaxLoad),
    lists:foldl(fun({Finer, Coarse}, {_, Above}) ->
                        Sides = projected(Coarse, Above),
                        {refined(Finer, Sides, Bounds), Sides}
                end, best_of(?TRIES, Coarsest, Bounds), Levels).

%% Puts each vertex on the side of the coarser vertex that contains it.
projected(Coarse, Above) ->
    Sides = atomics:new(tuple_size(Coarse), []),
    ok = lists:foreach(fun({V, Merged}) -> atomics:put(Sides, V, atomics:get(Above, Merged)) end, lists:enumerate(tuple_to_list(Coarse))),
    Sides.

best_of(Tries, Graph, Bounds) -> hd(lists:keysort(1, [grown(Graph, Bounds) || _ <- lists:seq(1, Tries)])).

%% Grows one side from a vertex, adding the best neighbour in each step.
grown(Graph, {Target, _, _} = Bounds) ->
    Count = placement_map_graph:size(Graph),
    Sides = atomics:new(max(1, Count), []),
    ok = lists:foreach(fun(V) -> atomics:put(Sides, V, 1) end, lists:seq(1, Count)),
    {Gains, _, _} = gains(Graph, Sides),
    Order = placement_map_graph:sorted_at_random(Count),
    ok = grow(Order, placement_map_heap:empty(), 0, Target, Graph, Sides, Gains),
    {refined(Graph, Sides, Bounds), Sides}.

grow(Order, Heap, Load, Target, {Arcs, Loads} = Graph, Sides, Gains) when Load < Target ->
    case placement_map_heap:pop(Heap) of
        empty ->
            case Order of
                [] -> ok;
                [V | Rest] -> grow(Rest, placement_map_heap:push(atomics:get(Gains, V), V, Heap), Load, Target, Graph, Sides, Gains)
            end;
        {_, V, Rest} ->
            Size = element(V, Loads),
            %% A vertex is not added if the load would then exceed the target by more than it is below the target now.
            case atomics:get(Sides, V) =:= 1 andalso 2 * (Load + Size - Target) =< Size of
                true ->
                    ok = atomics:put(Sides, V, 0),
                    grow(Order, moved_away(element(V, Arcs), 1, Sides, Gains, Rest), Load + Size, Target, Graph, Sides, Gains);
                false -> grow(Order, Rest, Load, Target, Graph, Sides, Gains)
            end
    end;
grow(_, _, _, _, _, _, _) -> ok.

%% Moving becomes more profitable for the vertex's neighbours on the old side, and less for those on the new one.
moved_away([U, Weight | Rest], From, Sides, Gains, Heap) ->
    case atomics:get(Sides, U) of
        From -> moved_away(Rest, From, Sides, Gains, placement_map_heap:push(atomics:add_get(Gains, U, 2 * Weight), U, Heap));
        _ ->
            ok = atomics:sub(Gains, U, 2 * Weight),
            moved_away(Rest, From, Sides, Gains, Heap)
    end;
moved_away([], _, _, _, Heap) -> Heap.

%% Returns each vertex's gain from changing sides, the vertices with neighbours on the other side, and the cut's weight.
gains({Arcs, _}, Sides) ->
    Count = tuple_size(Arcs),
    Gains = atomics:new(max(1, Count), []),
    {Boundary, Twice} = gains(Count, Arcs, Sides, Gains, [], 0),
    {Gains, Boundary, Twice div 2}.

gains(0, _, _, _, Boundary, Sum) -> {Boundary, Sum};
gains(V, Arcs, Sides, Gains, Boundary, Sum) ->
    {Inner, Outer} = weights(element(V, Arcs), atomics:get(Sides, V), Sides, 0, 0),
    ok = atomics:put(Gains, V, Outer - Inner),
    case Outer of
        0 -> gains(V - 1, Arcs, Sides, Gains, Boundary, Sum);
        _ -> gains(V - 1, Arcs, Sides, Gains, [V | Boundary], Sum + Outer)
    end.

weights([U, Weight | Rest], Side, Sides, Inner, Outer) ->
    case atomics:get(Sides, U) of
        Side -> weights(Rest, Side, Sides, Inner + Weight, Outer);
        _ -> weights(Rest, Side, Sides, Inner, Outer + Weight)
    end;
weights([], _, _, Inner, Outer) -> {Inner, Outer}.

%% Returns the excess load of the sides and the weight of the cut, by which attempts are compared.
refined({Arcs, Loads} = Graph, Sides, {_, Most0, Most1}) ->
    {Gains, Boundary, Cut} = gains(Graph, Sides),
    Count = tuple_size(Arcs),
    Widest = lists:max([0 | tuple_to_list(Loads)]),
    {Load0, Load1} = loads(Count, Loads, Sides, 0, 0),
    Context = {Arcs, Loads, Sides, Gains, none, Most0, Most1, Widest, 100 + Count div 20},
    passes(?PASSES, Boundary, Load0, Load1, {excess(Load0, Load1, Most0, Most1), Cut}, Context).

passes(0, _, _, _, Best, _) -> Best;
passes(Left, Boundary, Load0, Load1, {Excess, Cut} = Start, {Arcs, Loads, Sides, Gains, _, _, _, _, _} = Context) ->
    %% Inner vertices are moved only if a side is overloaded.
    Movable = case Excess of
                  0 -> Boundary;
                  _ -> lists:seq(1, tuple_size(Arcs))
              end,
    Heaps = filled(Movable, Sides, Gains, placement_map_heap:empty(), placement_map_heap:empty()),
    Locked = atomics:new(max(1, tuple_size(Arcs)), []),
    {Best, Kept, Undo} = pass(Heaps, Load0, Load1, Cut, Start, [], [], 0, setelement(5, Context, Locked)),
    ok = undone(Undo, Arcs, Sides, Gains),
    case Best < Start of
        false -> Best;
        true ->
            {New0, New1} = loads_after(Kept, Loads, Sides, Load0, Load1),
            passes(Left - 1, boundary(Boundary, Kept, Arcs, Sides), New0, New1, Best, Context)
    end.

loads_after([V | Rest], Loads, Sides, Load0, Load1) ->
    Load = element(V, Loads),
    case atomics:get(Sides, V) of
        0 -> loads_after(Rest, Loads, Sides, Load0 + Load, Load1 - Load);
        1 -> loads_after(Rest, Loads, Sides, Load0 - Load, Load1 + Load)
    end;
loads_after([], _, _, Load0, Load1) -> {Load0, Load1}.

%% Only the moved vertices and their neighbours can have joined or left the boundary.
boundary(Boundary, Moved, Arcs, Sides) ->
    Near = lists:foldl(fun(V, Acc) -> neighbours(element(V, Arcs), [V | Acc]) end, Boundary, Moved),
    [V || V <- lists:usort(Near), is_at_boundary(element(V, Arcs), atomics:get(Sides, V), Sides)].

neighbours([U, _ | Rest], Acc) -> neighbours(Rest, [U | Acc]);
neighbours([], Acc) -> Acc.

is_at_boundary([U, _ | Rest], Side, Sides) -> atomics:get(Sides, U) =/= Side orelse is_at_boundary(Rest, Side, Sides);
is_at_boundary([], _, _) -> false.

loads(0, _, _, Load0, Load1) -> {Load0, Load1};
loads(V, Loads, Sides, Load0, Load1) ->
    case atomics:get(Sides, V) of
        0 -> loads(V - 1, Loads, Sides, Load0 + element(V, Loads), Load1);
        1 -> loads(V - 1, Loads, Sides, Load0, Load1 + element(V, Loads))
    end.

excess(Load0, Load1, Most0, Most1) -> max(0, Load0 - Most0) + max(0, Load1 - Most1).

filled([V | Rest], Sides, Gains, Heap0, Heap1) ->
    Gain = atomics:get(Gains, V),
    case atomics:get(Sides, V) of
        0 -> filled(Rest, Sides, Gains, placement_map_heap:push(Gain, V, Heap0), Heap1);
        1 -> filled(Rest, Sides, Gains, Heap0, placement_map_heap:push(Gain, V, Heap1))
    end;
filled([], _, _, Heap0, Heap1) -> {Heap0, Heap1}.

undone(Undo, Arcs, Sides, Gains) ->
    lists:foreach(fun(V) ->
                          From = atomics:get(Sides, V),
                          ok = atomics:put(Sides, V, 1 - From),
                          ok = atomics:put(Gains, V, -atomics:get(Gains, V)),
                          moved_back(element(V, Arcs), From, Sides, Gains)
                  end, Undo).

moved_back([U, Weight | Rest], From, Sides, Gains) ->
    ok = case atomics:get(Sides, U) of
             From -> atomics:add(Gains, U, 2 * Weight);
             _ -> atomics:sub(Gains, U, 2 * Weight)
         end,
    moved_back(Rest, From, Sides, Gains);
moved_back([], _, _, _) -> ok.

%% Moves the best vertex that may be moved, even at a loss, and records which moves were made after the best state.
pass(_, _, _, _, Best, Kept, Since, Count, {_, _, _, _, _, _, _, _, Patience}) when Count > Patience -> {Best, Kept, Since};
pass({Heap0, Heap1}, Load0, Load1, Cut, Best, Kept, Since, Count, {_, Loads, Sides, Gains, Locked, Most0, Most1, Widest, _} = Context) ->
    Top0 = top(Heap0, 0, Sides, Gains, Locked),
    Top1 = top(Heap1, 1, Sides, Gains, Locked),
    Over0 = Load0 > Most0,
    Over1 = Load1 > Most1,
    May0 = Top0 =/= empty andalso not Over1 andalso (Over0 orelse Load1 + element(element(2, Top0), Loads) =< Most1 + Widest),
    May1 = Top1 =/= empty andalso not Over0 andalso (Over1 orelse Load0 + element(element(2, Top1), Loads) =< Most0 + Widest),
    case {May0, May1} of
        {false, false} when Top0 =:= empty, Top1 =:= empty -> {Best, Kept, Since};
        %% The first vertices in the queues do not fit, but later ones may.
        {false, false} -> pass({rest(Top0, Locked), rest(Top1, Locked)}, Load0, Load1, Cut, Best, Kept, Since, Count + 1, Context);
        {true, true} ->
            {Gain0, _, _} = Top0,
            {Gain1, _, _} = Top1,
            case Gain0 > Gain1 orelse Gain0 =:= Gain1 andalso Load0 * max(1, Most1) > Load1 * max(1, Most0) of
                true -> move(Top0, 0, back(Top1), Load0, Load1, Cut, Best, Kept, Since, Count, Context);
                false -> move(Top1, 1, back(Top0), Load0, Load1, Cut, Best, Kept, Since, Count, Context)
            end;
        {true, false} -> move(Top0, 0, back(Top1), Load0, Load1, Cut, Best, Kept, Since, Count, Context);
        {false, true} -> move(Top1, 1, back(Top0), Load0, Load1, Cut, Best, Kept, Since, Count, Context)
    end.

%% Returns the first entry that is still valid.
top(Heap, Side, Sides, Gains, Locked) ->
    case placement_map_heap:pop(Heap) of
        empty -> empty;
        {Gain, V, Rest} = Top ->
            case atomics:get(Locked, V) =:= 0 andalso atomics:get(Sides, V) =:= Side of
                false -> top(Rest, Side, Sides, Gains, Locked);
                true ->
                    case atomics:get(Gains, V) of
                        Gain -> Top;
                        Now when Now < Gain -> top(placement_map_heap:push(Now, V, Rest), Side, Sides, Gains, Locked);
                        %% This entry is outdated, and the vertex has another one with its current gain.
                        _ -> top(Rest, Side, Sides, Gains, Locked)
                    end
            end
    end.

rest(empty, _) -> placement_map_heap:empty();
rest({_, V, Rest}, Locked) ->
    ok = atomics:put(Locked, V, 1),
    Rest.

back(empty) -> placement_map_heap:empty();
back({Gain, V, Rest}) -> placement_map_heap:push(Gain, V, Rest).

move({Gain, V, Rest}, Side, Other, Load0, Load1, Cut, Best, Kept, Since, Count, {Arcs, Loads, Sides, Gains, Locked, Most0, Most1, _, _} = Context) ->
    ok = atomics:put(Sides, V, 1 - Side),
    ok = atomics:put(Locked, V, 1),
    ok = atomics:put(Gains, V, -Gain),
    Heap = moved_away(element(V, Arcs), Side, Sides, Gains, Rest),
    Load = element(V, Loads),
    {New0, New1, Heaps} = case Side of
                              0 -> {Load0 - Load, Load1 + Load, {Heap, Other}};
                              1 -> {Load0 + Load, Load1 - Load, {Other, Heap}}
                          end,
    NewCut = Cut - Gain,
    case {excess(New0, New1, Most0, Most1), NewCut} of
        Now when Now < Best -> pass(Heaps, New0, New1, NewCut, Now, [V | Since] ++ Kept, [], 0, Context);
        _ -> pass(Heaps, New0, New1, NewCut, Best, Kept, [V | Since], Count + 1, Context)
    end.
