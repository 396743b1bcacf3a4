%% SPDX-License-Identifier: Apache-2.0
%% @doc Reduces the cost of a mapping by moving and swapping vertices. Called by {@link placement_map}.
%%
%% A pass repeatedly takes the vertex with the greatest gain from a queue and moves it to the block
%% where its traffic costs least. It continues for a while even if moves increase the cost, and then
%% undoes the moves that were made after the best state. If the better block is full, the vertex is
%% swapped with the vertex of that block that makes the swap cheapest. Each vertex moves at most
%% once per pass.
-module(placement_map_refine).

-export([refined/5, loads/3]).

-record(context, {arcs :: tuple(), loads :: tuple(), blocks :: atomics:atomics_ref(), full :: atomics:atomics_ref(), most :: tuple(),
                  distances :: placement_map_distances:distances(), locked :: atomics:atomics_ref(), patience :: pos_integer()}).

%% @doc Changes the blocks in place. `Most' contains the maximum load of each block.
-spec refined(placement_map_graph:graph(), Blocks :: atomics:atomics_ref(), Most :: tuple(), placement_map_distances:distances(), Passes :: pos_integer()) -> ok.
refined({Arcs, Loads} = Graph, Blocks, Most, Distances, Passes) ->
    Count = tuple_size(Arcs),
    Context = #context{arcs = Arcs, loads = Loads, blocks = Blocks, full = loads(Graph, Blocks, tuple_size(Most)), most = Most, distances = Distances,
                       locked = atomics:new(max(1, Count), []), patience = 200 + Count div 20},
    Heap = lists:foldr(fun(V, Above) -> pushed(V, any, Context, Above) end, placement_map_heap:empty(), lists:seq(1, Count)),
    Members = maps:groups_from_list(fun(V) -> atomics:get(Blocks, V) end, lists:seq(1, Count)),
    {Gain, Undo} = pass(Heap, Members, 0, 0, [], 0, Context),
    ok = lists:foreach(fun({V, Block}) -> atomics:put(Blocks, V, Block) end, Undo),
    case Gain > 0 andalso Passes > 1 of
        true -> refined(Graph, Blocks, Most, Distances, Passes - 1);
        false -> ok
    end.

%% @doc Returns the load of each block.
-spec loads(placement_map_graph:graph(), Blocks :: atomics:atomics_ref(), Count :: pos_integer()) -> atomics:atomics_ref().
loads({_, Loads}, Blocks, Count) ->
    Full = atomics:new(Count, []),
    ok = lists:foreach(fun({V, Load}) -> atomics:add(Full, atomics:get(Blocks, V), Load) end, lists:enumerate(tuple_to_list(Loads))),
    Full.

pushed(V, How, Context, Heap) ->
    case best(V, How, Context) of
        none -> Heap;
        {Gain, _, _} -> placement_map_heap:push(Gain, {V, How}, Heap)
    end.

%% Returns the best move of a vertex: its gain, the target block, and whether that block has enough capacity left. With
%% `room' only blocks with enough capacity are considered.
best(V, How, #context{arcs = Arcs, blocks = Blocks} = Context) ->
    From = atomics:get(Blocks, V),
    case by_block(element(V, Arcs), Blocks, From, []) of
        [] -> none;
        Others ->
            Sums = summed(lists:sort(Others)),
            #context{loads = Loads, distances = Distances} = Context,
            best_of(Sums, Sums, cost(Sums, placement_map_distances:from(From, Distances), 0), From, element(V, Loads), How, Context, none)
    end.

%% Groups the neighbours by block. The result is empty if all of them are in the vertex's own block.
by_block([U, Weight | Rest], Blocks, From, Others) -> by_block(Rest, Blocks, From, [{atomics:get(Blocks, U), Weight} | Others]);
by_block([], _, From, Others) ->
    case lists:all(fun({Block, _}) -> Block =:= From end, Others) of
        true -> [];
        false -> Others
    end.

summed([{B, One}, {B, Other} | Rest]) -> summed([{B, One + Other} | Rest]);
summed([First | Rest]) -> [First | summed(Rest)];
summed([]) -> [].

cost([{Block, Weight} | Rest], Row, Sum) -> cost(Rest, Row, Sum + Weight * placement_map_distances:to(Block, Row));
cost([], _, Sum) -> Sum.

best_of([{From, _} | Rest], Sums, Now, From, Load, How, Context, Best) -> best_of(Rest, Sums, Now, From, Load, How, Context, Best);
best_of([{Block, _} | Rest], Sums, Now, From, Load, How, #context{distances = Distances} = Context, Best) ->
    Gain = Now - cost(Sums, placement_map_distances:from(Block, Distances), 0),
    Better = case Best of none -> true; {Known, _, _} -> Gain > Known end,
    case Better andalso {has_room(Block, Load, Context), How} of
        false -> best_of(Rest, Sums, Now, From, Load, How, Context, Best);
        {false, room} -> best_of(Rest, Sums, Now, From, Load, How, Context, Best);
        {Room, _} -> best_of(Rest, Sums, Now, From, Load, How, Context, {Gain, Block, Room})
    end;
best_of([], _, _, _, _, _, _, Best) -> Best.

has_room(Block, Load, #context{full = Full, most = Most}) -> atomics:get(Full, Block) + Load =< element(Block, Most).

pass(_, _, _, Best, Since, Count, #context{patience = Patience}) when Count > Patience -> {Best, Since};
pass(Heap, Members, Gained, Best, Since, Count, #context{locked = Locked} = Context) ->
    case placement_map_heap:pop(Heap) of
        empty -> {Best, Since};
        {Gain, {V, How}, Rest} ->
            case atomics:get(Locked, V) =:= 0 andalso best(V, How, Context) of
                false -> pass(Rest, Members, Gained, Best, Since, Count, Context);
                none -> pass(Rest, Members, Gained, Best, Since, Count, Context);
                {Gain, Block, true} -> moved(V, Block, Gain, Rest, Members, Gained, Best, Since, Count, Context);
                {Gain, Block, false} when Gain > 0 -> swapped(V, Block, Gain, Rest, Members, Gained, Best, Since, Count, Context);
                {Gain, _, false} -> pass(pushed(V, room, Context, Rest), Members, Gained, Best, Since, Count, Context);
                %% The gain has changed, because other vertices have moved in the meantime.
                {Now, _, _} -> pass(placement_map_heap:push(Now, {V, How}, Rest), Members, Gained, Best, Since, Count, Context)
            end
    end.

moved(V, Block, Gain, Heap, Members, Gained, Best, Since, Count, Context) ->
    From = put_into(V, Block, Context),
    NewHeap = around(V, Context, Heap),
    went_on(NewHeap, Members#{Block => [V | maps:get(Block, Members, [])]}, Gained + Gain, Best, [{V, From} | Since], Count, Context).

went_on(Heap, Members, Gained, Best, _, _, Context) when Gained > Best -> pass(Heap, Members, Gained, Gained, [], 0, Context);
went_on(Heap, Members, Gained, Best, Since, Count, Context) -> pass(Heap, Members, Gained, Best, Since, Count + 1, Context).

put_into(V, Block, #context{blocks = Blocks, full = Full, loads = Loads, locked = Locked}) ->
    From = atomics:get(Blocks, V),
    Load = element(V, Loads),
    ok = atomics:put(Blocks, V, Block),
    ok = atomics:sub(Full, From, Load),
    ok = atomics:add(Full, Block, Load),
    ok = atomics:put(Locked, V, 1),
    From.

around(V, #context{arcs = Arcs} = Context, Heap) -> neighbours(element(V, Arcs), Context, Heap).

neighbours([U, _ | Rest], #context{locked = Locked} = Context, Heap) ->
    case atomics:get(Locked, U) of
        0 -> neighbours(Rest, Context, pushed(U, any, Context, Heap));
        _ -> neighbours(Rest, Context, Heap)
    end;
neighbours([], _, Heap) -> Heap.

%% Swaps a vertex with one in a full block. The other vertex must gain, or lose less than this
%% vertex gains.
swapped(V, Block, Gain, Heap, Members, Gained, Best, Since, Count, #context{blocks = Blocks, loads = Loads, full = Full, most = Most} = Context) ->
    From = atomics:get(Blocks, V),
    Load = element(V, Loads),
    Least = atomics:get(Full, Block) + Load - element(Block, Most),
    Room = element(From, Most) - atomics:get(Full, From) + Load,
    Living = [U || U <- lists:usort(maps:get(Block, Members, [])), atomics:get(Blocks, U) =:= Block],
    NewMembers = Members#{Block => Living},
    case partner(Living, V, From, Block, Least, Room, Context, 0, -Gain) of
        0 -> pass(pushed(V, room, Context, Heap), NewMembers, Gained, Best, Since, Count, Context);
        {U, Other} ->
            From = put_into(V, Block, Context),
            Block = put_into(U, From, Context),
            NewHeap = around(U, Context, around(V, Context, Heap)),
            went_on(NewHeap, NewMembers#{Block := [V | Living], From => [U | maps:get(From, NewMembers, [])]}, Gained + Gain + Other, Best, [{U, Block}, {V, From} | Since], Count, Context)
    end.

partner([U | Rest], V, From, Block, Least, Room, #context{loads = Loads, locked = Locked} = Context, Best, BestGain) ->
    Load = element(U, Loads),
    case Load >= Least andalso Load =< Room andalso atomics:get(Locked, U) =:= 0 of
        false -> partner(Rest, V, From, Block, Least, Room, Context, Best, BestGain);
        true ->
            case gain(U, Block, From, V, Context) of
                Gain when Gain > BestGain -> partner(Rest, V, From, Block, Least, Room, Context, {U, Gain}, Gain);
                _ -> partner(Rest, V, From, Block, Least, Room, Context, Best, BestGain)
            end
    end;
partner([], _, _, _, _, _, _, Best, _) -> Best.

%% Returns the gain of U if V moves in the opposite direction. The distance between the two vertices does not change, but
%% both gains include the traffic between them as saved, so that part is subtracted.
gain(U, Block, From, V, #context{arcs = Arcs, blocks = Blocks, distances = Distances}) ->
    Here = placement_map_distances:from(Block, Distances),
    There = placement_map_distances:from(From, Distances),
    gain(element(U, Arcs), Blocks, Here, There, V, 2 * placement_map_distances:to(From, Here), 0).

gain([V, Weight | Rest], Blocks, Here, There, V, Apart, Sum) ->
    Block = atomics:get(Blocks, V),
    gain(Rest, Blocks, Here, There, V, Apart, Sum + Weight * (placement_map_distances:to(Block, Here) - placement_map_distances:to(Block, There) - Apart));
gain([U, Weight | Rest], Blocks, Here, There, V, Apart, Sum) ->
    Block = atomics:get(Blocks, U),
    gain(Rest, Blocks, Here, There, V, Apart, Sum + Weight * (placement_map_distances:to(Block, Here) - placement_map_distances:to(Block, There)));
gain([], _, _, _, _, _, Sum) -> Sum.
