%% SPDX-License-Identifier: Apache-2.0
%% @doc The queue of a pool connection, and the process that writes its messages to the socket.
%%
%% The messages are in the process's mailbox, and a counter contains their total size. A sender adds the size of its
%% message before it sends the message to the process, which subtracts the size after the write.
%%
%% It is a separate process because a write blocks while the peer reads slowly, and the connection's process must
%% continue to read replies. Messages that arrive during a write are sent together, in packets of about 64 KB.
-module(teleport_pool_queue).
-behaviour(gen_server).

-export([start_link/2, add/2, remove/2, put/3, close/1, has_room/1]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2]).
-export_type([queue/0]).

-type queue() :: {Writer :: pid(), Counter :: atomics:atomics_ref()}.

-record(writer, {connection :: pid(), socket :: gen_tcp:socket(), counter :: atomics:atomics_ref()}).

-define(MAX_BYTES, 4194304).
%% Added to the count when the queue is closed, so that it never has room again.
-define(CLOSED, (1 bsl 60)).
-define(QUEUED, 1).
-define(WAITING, 2).
-define(PACKET_BYTES, 65536).
-define(LARGE_BYTES, 1048576).
-define(IDLE_MS, 5000).
%% The process waits this long, this many times, for a sender that has counted its message but not queued it yet.
-define(SENDER_MS, 20).
-define(SENDER_TRIES, 50).

%% @doc Started by the connection's process, which owns the socket.
-spec start_link(pid(), gen_tcp:socket()) -> queue().
start_link(Connection, Socket) ->
    Counter = atomics:new(2, []),
    Writer = #writer{connection = Connection, socket = Socket, counter = Counter},
    {ok, Pid} = gen_server:start_link(?MODULE, Writer, [{spawn_opt, [{fullsweep_after, 0}]}]),
    {Pid, Counter}.

%% @doc Adds the size of a message unless the queue is full or closed; the message may have any size.
-spec add(queue(), Bytes :: pos_integer()) -> boolean().
add({_, Counter} = Queue, Bytes) ->
    case atomics:add_get(Counter, ?QUEUED, Bytes) - Bytes < ?MAX_BYTES of
        true -> true;
        false -> ok = remove(Queue, Bytes), false
    end.

%% @doc Subtracts the size of a message that is not sent after all.
-spec remove(queue(), Bytes :: pos_integer()) -> ok.
remove({_, Counter}, Bytes) -> atomics:sub(Counter, ?QUEUED, Bytes).

%% @doc Queues a message whose size has been added.
-spec put(queue(), Bytes :: pos_integer(), Frame :: iodata()) -> ok.
put({Writer, _}, Bytes, Frame) ->
    Writer ! {frame, Bytes, Frame},
    ok.

%% @doc Closes the queue for senders. The process writes the messages that are still queued, shuts
%% down the socket for writing and exits.
-spec close(queue()) -> ok.
close({Writer, Counter}) ->
    ok = atomics:add(Counter, ?QUEUED, ?CLOSED),
    Writer ! {drain, ?SENDER_TRIES},
    ok.

%% @doc Returns whether there is enough room to wake waiting senders. If not, the connection's process gets the message
%% `room' once there is. This function sets the flag before it reads the count, and the writer reads the flag after it
%% has changed the count, so at least one of them sees what the other did.
-spec has_room(queue()) -> boolean().
has_room({Writer, Counter}) ->
    %% The message makes a sleeping writer check whether a killed sender has left bytes in the count.
    _ = atomics:exchange(Counter, ?WAITING, 1) =:= 0 andalso (Writer ! look),
    case is_half_empty(Counter) of
        true -> ok = atomics:put(Counter, ?WAITING, 0), true;
        false -> false
    end.

is_half_empty(Counter) -> atomics:get(Counter, ?QUEUED) < ?MAX_BYTES div 2.

%% @private
-spec init(#writer{}) -> {ok, #writer{}, timeout()}.
init(Writer) -> {ok, Writer, ?IDLE_MS}.

%% @private
-spec handle_call(term(), gen_server:from(), #writer{}) -> {reply, {error, badarg}, #writer{}, timeout()}.
handle_call(_Request, _From, State) -> {reply, {error, badarg}, State, ?IDLE_MS}.

%% @private
-spec handle_cast(term(), #writer{}) -> {noreply, #writer{}, timeout()}.
handle_cast(_Request, State) -> {noreply, State, ?IDLE_MS}.

%% @private Collects garbage, because the message is no longer needed.
-spec handle_continue(collect, #writer{}) -> {noreply, #writer{}, timeout()}.
handle_continue(collect, State) ->
    true = erlang:garbage_collect(),
    {noreply, State, ?IDLE_MS}.

%% @private
-spec handle_info(term(), #writer{}) ->
          {noreply, #writer{}, timeout() | hibernate | {continue, collect}} | {stop, term(), #writer{}}.
handle_info({frame, Bytes, Frame}, State) ->
    case write(Bytes, Frame, State) of
        ok when Bytes >= ?LARGE_BYTES -> {noreply, State, {continue, collect}};
        ok -> {noreply, State, ?IDLE_MS};
        {error, Reason} -> {stop, {shutdown, Reason}, State}
    end;
handle_info({drain, Tries}, #writer{socket = Socket, counter = Counter} = State) ->
    case atomics:get(Counter, ?QUEUED) > ?CLOSED andalso Tries > 0 of
        true ->
            _ = erlang:send_after(?SENDER_MS, self(), {drain, Tries - 1}),
            {noreply, State, ?IDLE_MS};
        false ->
            _ = gen_tcp:shutdown(Socket, write),
            {stop, normal, State}
    end;
%% Nothing is queued, so the rest of the count was left by a sender that was killed before it had queued its message.
handle_info(timeout, #writer{counter = Counter, connection = Connection} = State) ->
    Left = atomics:get(Counter, ?QUEUED),
    _ = Left < ?CLOSED div 2 andalso atomics:sub(Counter, ?QUEUED, Left),
    Connection ! room,
    {noreply, State, hibernate};
handle_info(_Info, State) ->
    {noreply, State, ?IDLE_MS}.

%% Takes everything from the mailbox first, because gen_tcp:send/2 searches the mailbox each time.
write(Bytes, Frame, State) -> sent(lists:reverse(packets(Bytes, Frame, [])), State).

packets(Bytes, Packet, Full) ->
    receive
        {frame, More, Frame} when Bytes < ?PACKET_BYTES -> packets(Bytes + More, [Packet | Frame], Full);
        {frame, More, Frame} -> packets(More, Frame, [{Bytes, Packet} | Full])
    after 0 -> [{Bytes, Packet} | Full]
    end.

sent([], _) -> ok;
sent([{Bytes, Packet} | Packets], #writer{connection = Connection, socket = Socket, counter = Counter} = State) ->
    case gen_tcp:send(Socket, Packet) of
        ok ->
            ok = atomics:sub(Counter, ?QUEUED, Bytes),
            _ = is_half_empty(Counter) andalso atomics:get(Counter, ?WAITING) =:= 1 andalso (Connection ! room),
            sent(Packets, State);
        {error, Reason} -> {error, Reason}
    end.
