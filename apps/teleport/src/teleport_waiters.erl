%% SPDX-License-Identifier: Apache-2.0
%% @doc The senders that wait for room in a lane's queue, in the order in which they came. Pure.
%%
%% A sender whose time is over says so and is removed. A sender that was killed says nothing: it is passed over when its turn comes, and all
%% such are removed when there are twice as many waiters as there were alive the last time. So there are never many more than senders that live.
-module(teleport_waiters).

-export([new/0, in/4, out/2, told/4, size/1]).
-export_type([waiters/0, waiter/0, room/0]).

-type room() :: {Messages :: integer(), Bytes :: integer()}.
-type waiter() :: {reference(), pid(), Bytes :: non_neg_integer()}.
-type is_alive() :: fun((pid()) -> boolean()).

%% Below this number nobody looks for the dead.
-define(FEW, 64).

-record(waiters, {next = 0 :: non_neg_integer(),
                  queue = gb_trees:empty() :: gb_trees:tree(non_neg_integer(), waiter()),
                  refs = #{} :: #{reference() => non_neg_integer()},
                  %% with so many the dead are looked for
                  many = ?FEW :: pos_integer()}).
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
                        case IsAlive(Pid) of true -> Acc; false -> out(Ref, Acc) end
                end, Waiters, gb_trees:to_list(Queue)).

%% @doc This one does not wait any more.
-spec out(reference(), waiters()) -> waiters().
out(Ref, #waiters{queue = Queue, refs = Refs} = Waiters) ->
    case maps:take(Ref, Refs) of
        {Place, Rest} -> Waiters#waiters{queue = gb_trees:delete(Place, Queue), refs = Rest};
        error -> Waiters
    end.

%% @doc Who may be told that there is room, the first to come first. A message that is larger than all room may go when nothing else waits.
-spec told(room(), IsEmpty :: boolean(), is_alive(), waiters()) -> {[waiter()], waiters()}.
told({Messages, Bytes}, IsEmpty, IsAlive, #waiters{queue = Queue} = Waiters) ->
    case gb_trees:is_empty(Queue) of
        true -> {[], Waiters};
        false ->
            {_, {Ref, Pid, Needs} = Waiter} = gb_trees:smallest(Queue),
            case IsAlive(Pid) of
                false -> told({Messages, Bytes}, IsEmpty, IsAlive, out(Ref, Waiters));
                true when Messages > 0, Needs =< Bytes orelse IsEmpty ->
                    {More, Rest} = told({Messages - 1, Bytes - Needs}, false, IsAlive, out(Ref, Waiters)),
                    {[Waiter | More], Rest};
                true -> {[], Waiters}
            end
    end.

%% @doc How many wait.
-spec size(waiters()) -> non_neg_integer().
size(#waiters{refs = Refs}) -> map_size(Refs).
