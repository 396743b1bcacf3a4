%% SPDX-License-Identifier: Apache-2.0
%% @doc Writes the messages that senders queue for one pool connection. {@link teleport_pool_connection} starts this process
%% and is linked to it.
%%
%% It is a separate process because a write blocks while the peer reads slowly, and the connection's process must
%% continue to read replies. Messages that arrive during a write are sent together, in packets of about 64 KB. Senders
%% add their bytes to the queue's count ({@link teleport_pool_queue}); the writer subtracts them after the write.
-module(teleport_pool_writer).
-behaviour(gen_server).

-export([start_link/3, drain/1]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2]).

-record(writer, {connection :: pid(), socket :: gen_tcp:socket(), queue :: atomics:atomics_ref()}).

-define(PACKET_BYTES, 65536).
-define(LARGE_BYTES, 1048576).
-define(IDLE_MS, 5000).
%% The writer waits this long, this many times, for a sender that has counted its message but not queued it yet.
-define(SENDER_MS, 20).
-define(SENDER_TRIES, 50).

%% @doc Started by the connection's process, which owns the socket.
-spec start_link(pid(), gen_tcp:socket(), atomics:atomics_ref()) -> {ok, pid()}.
start_link(Connection, Socket, Queue) ->
    {ok, _} = gen_server:start_link(?MODULE, {Connection, Socket, Queue}, [{spawn_opt, [{fullsweep_after, 0}]}]).

%% @doc Tells the writer that the queue is closed ({@link teleport_pool_queue:close/1}). The writer writes the rest,
%% shuts down the socket for writing and exits.
-spec drain(pid()) -> ok.
drain(Writer) -> gen_server:cast(Writer, drain).

%% @private
-spec init({pid(), gen_tcp:socket(), atomics:atomics_ref()}) -> {ok, #writer{}, timeout()}.
init({Connection, Socket, Queue}) ->
    {ok, #writer{connection = Connection, socket = Socket, queue = Queue}, ?IDLE_MS}.

%% @private
-spec handle_call(term(), gen_server:from(), #writer{}) -> {reply, {error, badarg}, #writer{}}.
handle_call(_Request, _From, State) -> {reply, {error, badarg}, State}.

%% @private
-spec handle_cast(term(), #writer{}) -> {noreply, #writer{}, timeout()} | {stop, term(), #writer{}}.
handle_cast(drain, #writer{socket = Socket} = State) ->
    case rest(State, ?SENDER_TRIES) of
        ok ->
            _ = gen_tcp:shutdown(Socket, write),
            {stop, normal, State};
        {error, Reason} -> {stop, {shutdown, Reason}, State}
    end;
handle_cast(_Request, State) -> {noreply, State, ?IDLE_MS}.

rest(#writer{queue = Queue} = State, Tries) ->
    receive
        {frame, Bytes, Frame} ->
            case write(Bytes, Frame, State) of
                ok -> rest(State, ?SENDER_TRIES);
                Error -> Error
            end
    after 0 ->
        case teleport_pool_queue:is_empty(Queue) orelse Tries =:= 0 of
            true -> ok;
            false -> receive after ?SENDER_MS -> rest(State, Tries - 1) end
        end
    end.

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
%% A sender that was killed between counting and queueing its message has left bytes in the count.
handle_info(timeout, #writer{queue = Queue, connection = Connection} = State) ->
    ok = teleport_pool_queue:reset(Queue),
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
sent([{Bytes, Packet} | Packets], #writer{connection = Connection, socket = Socket, queue = Queue} = State) ->
    case gen_tcp:send(Socket, Packet) of
        ok ->
            teleport_pool_queue:written(Queue, Bytes) andalso (Connection ! room),
            sent(Packets, State);
        {error, Reason} -> {error, Reason}
    end.
