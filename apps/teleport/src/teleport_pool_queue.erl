%% SPDX-License-Identifier: Apache-2.0
%% @doc The count of the bytes in a connection's queue, which its senders, its writer and its own process share.
%%
%% The messages themselves are in the writer's mailbox. A sender adds its bytes before it sends the message there, and
%% {@link teleport_pool_writer} subtracts them after the write.
-module(teleport_pool_queue).

-export([new/0, add/2, remove/2, written/2, bytes/1, close/1, is_empty/1, reset/1, set_waiting/2, has_room/1]).

-define(MAX_BYTES, 4194304).
%% The count of a closed queue: so high that the queue never has room.
-define(CLOSED, (1 bsl 60)).
-define(QUEUED, 1).
-define(WAITING, 2).

%% @doc Returns an empty queue.
-spec new() -> atomics:atomics_ref().
new() -> atomics:new(2, []).

%% @doc Adds a message unless the queue is already full; the message may have any size.
-spec add(atomics:atomics_ref(), Bytes :: pos_integer()) -> boolean().
add(Queue, Bytes) ->
    case atomics:add_get(Queue, ?QUEUED, Bytes) - Bytes < ?MAX_BYTES of
        true -> true;
        false -> ok = remove(Queue, Bytes), false
    end.

%% @doc Subtracts a message that has not been sent.
-spec remove(atomics:atomics_ref(), Bytes :: pos_integer()) -> ok.
remove(Queue, Bytes) -> atomics:sub(Queue, ?QUEUED, Bytes).

%% @doc Subtracts what the writer has written. Returns whether waiting senders should be woken.
-spec written(atomics:atomics_ref(), Bytes :: pos_integer()) -> boolean().
written(Queue, Bytes) ->
    ok = remove(Queue, Bytes),
    has_room(Queue) andalso atomics:get(Queue, ?WAITING) =:= 1.

%% @doc Returns how many bytes are in the queue, which may be closed.
-spec bytes(atomics:atomics_ref()) -> integer().
bytes(Queue) -> atomics:get(Queue, ?QUEUED) rem ?CLOSED.

%% @doc Closes the queue, so that no sender finds room from now on.
-spec close(atomics:atomics_ref()) -> ok.
close(Queue) -> atomics:add(Queue, ?QUEUED, ?CLOSED).

%% @doc Returns whether everything in a closed queue has been written.
-spec is_empty(atomics:atomics_ref()) -> boolean().
is_empty(Queue) -> atomics:get(Queue, ?QUEUED) =< ?CLOSED.

%% @doc Called when nothing is queued, so any remaining count was left by a sender that was killed.
-spec reset(atomics:atomics_ref()) -> ok.
reset(Queue) ->
    case atomics:get(Queue, ?QUEUED) of
        Left when Left > 0, Left < ?CLOSED div 2 -> remove(Queue, Left);
        _ -> ok
    end.

%% @doc Records whether senders wait. The connection's process sets this before it looks for room ({@link has_room/1}),
%% and the writer makes room before it reads this, so at least one of them sees what the other did.
-spec set_waiting(atomics:atomics_ref(), boolean()) -> ok.
set_waiting(Queue, true) -> atomics:put(Queue, ?WAITING, 1);
set_waiting(Queue, false) -> atomics:put(Queue, ?WAITING, 0).

%% @doc Returns whether there is enough room to wake senders.
-spec has_room(atomics:atomics_ref()) -> boolean().
has_room(Queue) -> atomics:get(Queue, ?QUEUED) < ?MAX_BYTES div 2.
