%% SPDX-License-Identifier: Apache-2.0
%% @doc A priority queue of gains, implemented as a pairing heap; the greatest gain comes first. All functions are pure.
%%
%% An entry is never changed. To change a gain, a caller pushes another entry. So after each pop the caller must check
%% whether the entry is still valid, as {@link placement_map_bisect} and {@link placement_map_refine} do.
-module(placement_map_heap).

-export([empty/0, push/3, pop/1]).

-export_type([heap/0]).

-opaque heap() :: nil | {Gain :: number(), Value :: term(), [heap()]}.

%% @doc Returns the empty queue.
-spec empty() -> heap().
empty() -> nil.

%% @doc Adds an entry to the queue.
-spec push(Gain :: number(), Value :: term(), heap()) -> heap().
push(Gain, Value, nil) -> {Gain, Value, []};
push(Gain, Value, {Top, _, _} = Heap) when Gain >= Top -> {Gain, Value, [Heap]};
push(Gain, Value, {Top, First, Below}) -> {Top, First, [{Gain, Value, []} | Below]}.

%% @doc Returns the entry with the greatest gain, and the remaining queue.
-spec pop(heap()) -> empty | {Gain :: number(), Value :: term(), heap()}.
pop(nil) -> empty;
pop({Gain, Value, Below}) -> {Gain, Value, paired(Below, nil)}.

%% Merges neighbours in pairs, then the pairs into one heap.
paired([One, Other | Rest], Merged) -> paired(Rest, merge(merge(One, Other), Merged));
paired([One], Merged) -> merge(One, Merged);
paired([], Merged) -> Merged.

merge(Heap, nil) -> Heap;
merge({Gain, Value, Below}, {Top, _, _} = Other) when Gain > Top -> {Gain, Value, [Other | Below]};
merge(Heap, {Top, First, Below}) -> {Top, First, [Heap | Below]}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

order_test() ->
    Gains = [7, -3, 0, 7, 12, 5.5, -3],
    ?assertEqual(lists:reverse(lists:sort(Gains)), drained(lists:foldl(fun(Gain, Heap) -> push(Gain, x, Heap) end, empty(), Gains))).

drained(Heap) ->
    case pop(Heap) of
        empty -> [];
        {Gain, x, Rest} -> [Gain | drained(Rest)]
    end.
-endif.
