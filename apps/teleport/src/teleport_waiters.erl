%% SPDX-License-Identifier: Apache-2.0
%% @doc The senders that wait for room in a lane's queue, in the order in which they came, and the places of those that were told. Pure:
%% {@link teleport_lane} does the effects.
%%
%% A sender whose time is over says so and is removed. A sender that was killed says nothing: it is passed over when its turn comes, and all
%% such are removed when there are twice as many waiters as there were alive the last time. So there are never many more than senders that live.
-module(teleport_waiters).

-export([new/0, in/4, out/2, took/3, room/4, look/2, size/1, is_none_told/1]).
-export_type([waiters/0, room/0, effect/0]).

-type room() :: {Messages :: integer(), Bytes :: integer()}.
-type is_alive() :: fun((pid()) -> boolean()).
-type effect() :: {enqueued | dequeued, Bytes :: non_neg_integer()} | {tell, reference()} | {look_in, Ms :: pos_integer()}.
%% The places of those that were told are counted as messages of the queue. `look_in': call {@link look/2} then.

%% Below this number nobody looks for the dead.
-define(FEW, 64).
%% How often one looks for room again while somebody waits: the one that was told may have been killed.
-define(LOOK_MS, 20).

-type waiter() :: {reference(), pid(), Bytes :: non_neg_integer()}.
-record(waiters, {next = 0 :: non_neg_integer(),
                  queue = gb_trees:empty() :: gb_trees:tree(non_neg_integer(), waiter()),
                  refs = #{} :: #{reference() => non_neg_integer()},
                  %% with so many the dead are looked for
                  many = ?FEW :: pos_integer(),
                  %% those that were told
                  told = #{} :: #{reference() => {pid(), Bytes :: non_neg_integer()}},
                  looking = false :: boolean()}).
-opaque waiters() :: #waiters{}.

%% @doc Nobody waits.
-spec new() -> waiters().
new() -> #waiters{}.

%% @doc A sender waits for room for so many bytes.
-spec in({reference(), pid()}, Bytes :: non_neg_integer(), is_alive(), waiters()) -> waiters().
in(Who, Bytes, IsAlive, #waiters{refs = Refs, many = Many} = Waiters) when map_size(Refs) >= Many ->
    #waiters{refs = Left} = Living = living(IsAlive, Waiters),
    in(Who, Bytes, IsAlive, Living#waiters{many = max(?FEW, 2 * map_size(Left) + 1)});
in({Ref, Pid}, Bytes, _, #waiters{next = Next, queue = Queue, refs = Refs} = Waiters) ->
    Waiters#waiters{next = Next + 1, queue = gb_trees:insert(Next, {Ref, Pid, Bytes}, Queue), refs = Refs#{Ref => Next}}.

living(IsAlive, #waiters{queue = Queue} = Waiters) ->
    lists:foldl(fun({_, {Ref, Pid, _}}, Acc) ->
                        case IsAlive(Pid) of true -> Acc; false -> removed(Ref, Acc) end
                end, Waiters, gb_trees:to_list(Queue)).

removed(Ref, #waiters{queue = Queue, refs = Refs} = Waiters) ->
    case maps:take(Ref, Refs) of
        {Place, Rest} -> Waiters#waiters{queue = gb_trees:delete(Place, Queue), refs = Rest};
        error -> Waiters
    end.

%% @doc This one does not wait any more. It may have been told just then.
-spec out(reference(), waiters()) -> {[effect()], waiters()}.
out(Ref, Waiters) -> released(Ref, removed(Ref, Waiters)).

released(Ref, #waiters{told = Told} = Waiters) ->
    case maps:take(Ref, Told) of
        {{_, Bytes}, Rest} -> {[{dequeued, Bytes}], Waiters#waiters{told = Rest}};
        error -> {[], Waiters}
    end.

%% @doc The message of one that was told has come. Its place may have been given back: it had come before its sender was killed.
-spec took(reference(), Bytes :: non_neg_integer(), waiters()) -> {[effect()], waiters()}.
took(Ref, Bytes, #waiters{told = Told} = Waiters) ->
    case maps:take(Ref, Told) of
        {_, Rest} -> {[], Waiters#waiters{told = Rest}};
        error -> {[{enqueued, Bytes}], Waiters}
    end.

%% @doc There is so much room: as many are told, the first to come first. A message that is larger than all room may go when nothing else waits.
-spec room(room(), IsEmpty :: boolean(), is_alive(), waiters()) -> {[effect()], waiters()}.
room(_, _, _, #waiters{refs = Refs, told = Told} = Waiters) when map_size(Refs) + map_size(Told) =:= 0 -> {[], Waiters};
room(Room, IsEmpty, IsAlive, Waiters) ->
    case tell(Room, IsEmpty, IsAlive, Waiters) of
        {Effects, #waiters{looking = false} = Next} when map_size(Next#waiters.refs) + map_size(Next#waiters.told) > 0 ->
            {Effects ++ [{look_in, ?LOOK_MS}], Next#waiters{looking = true}};
        Told -> Told
    end.

tell({Messages, Bytes}, IsEmpty, IsAlive, #waiters{queue = Queue, refs = Refs, told = Told} = Waiters) when map_size(Refs) > 0 ->
    {_, {Ref, Pid, Needs}} = gb_trees:smallest(Queue),
    case IsAlive(Pid) of
        false -> tell({Messages, Bytes}, IsEmpty, IsAlive, removed(Ref, Waiters));
        true when Messages > 0, Needs =< Bytes orelse IsEmpty ->
            One = removed(Ref, Waiters#waiters{told = Told#{Ref => {Pid, Needs}}}),
            {More, Rest} = tell({Messages - 1, Bytes - Needs}, false, IsAlive, One),
            {[{enqueued, Needs}, {tell, Ref} | More], Rest};
        true -> {[], Waiters}
    end;
tell(_, _, _, Waiters) ->
    {[], Waiters}.

%% @doc The time of `look_in' is over: the places of those that were told and are dead are given back.
-spec look(is_alive(), waiters()) -> {[effect()], waiters()}.
look(IsAlive, #waiters{told = Told} = Waiters) ->
    lists:foldl(fun(Ref, {Effects, Acc}) -> {More, Next} = released(Ref, Acc), {More ++ Effects, Next} end,
                {[], Waiters#waiters{looking = false}}, [Ref || {Ref, {Pid, _}} <- maps:to_list(Told), not IsAlive(Pid)]).

%% @doc How many wait.
-spec size(waiters()) -> non_neg_integer().
size(#waiters{refs = Refs}) -> map_size(Refs).

%% @doc Whether no message of one that was told is on its way.
-spec is_none_told(waiters()) -> boolean().
is_none_told(#waiters{told = Told}) -> map_size(Told) =:= 0.
