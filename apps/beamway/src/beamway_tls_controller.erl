%% SPDX-License-Identifier: Apache-2.0
%% @doc Carries distribution over TLS if shared memory is not available. The controller process fetches what the VM wants to send and writes it, and
%% a reader process passes incoming data to the VM.
%%
%% Both are linked to the connection process and to each other. When one of them exits, the connection is closed, and so is the socket, which the
%% reader owns. Writes are batched: the data queued in the VM is sent in one record stream, up to a limit, and the rest stays in the VM, so senders
%% are suspended at the VM's own limit (`+zdbbl').
%%
%% Both switch to the newest code with each message, and hibernate soon when there are no messages. They therefore do not keep running the code that
%% they were started with, which a later load of this module would purge together with the link.
-module(beamway_tls_controller).

-export([start/1, connected/3, tick/1]).
-export([init/2, init_reader/2, write/2, read/3]).

-define(BATCH_BYTES, 131072).
-define(MESSAGES, 100).
-define(START_MS, 5000).
-define(IDLE_MS, 500).
%% The data only passes through, so it must not be copied into the old generation of the heap or kept alive by references to it.
-define(SPAWN_OPTIONS, [link, {message_queue_data, off_heap}, {fullsweep_after, 0}]).

%% @doc Starts a controller, linked to the calling connection process. It waits for {@link connected/3}.
-spec start(ssl:sslsocket()) -> pid().
start(Socket) ->
    spawn_opt(?MODULE, init, [self(), Socket], ?SPAWN_OPTIONS).

%% @doc Lets the controller start, because the VM knows it now. Called by the connection process, which owns the socket.
-spec connected(pid(), ssl:sslsocket(), DHandle :: term()) -> ok | {error, term()}.
connected(Controller, Socket, DHandle) ->
    Controller ! {self(), connected, DHandle},
    receive
        {Controller, reader, Reader} ->
            beamway_result:then(ssl:setopts(Socket, [{packet, raw}]), fun() -> hand_over(Controller, Socket, Reader) end)
    after ?START_MS ->
        {error, timeout}
    end.

hand_over(Controller, Socket, Reader) ->
    beamway_result:then(ssl:controlling_process(Socket, Reader), fun() -> Reader ! {self(), go, Controller, Socket}, ok end).

%% @doc Asks the controller to send a tick, and returns immediately.
-spec tick(pid()) -> ok.
tick(Controller) ->
    Controller ! tick,
    ok.

%% @private There are no timeouts here and below, because the connection process is linked and has one.
-spec init(pid(), ssl:sslsocket()) -> no_return().
init(Connection, Socket) ->
    receive
        {Connection, connected, DHandle} ->
            Reader = spawn_opt(?MODULE, init_reader, [Connection, DHandle], ?SPAWN_OPTIONS),
            ok = erlang:dist_ctrl_input_handler(DHandle, Reader),
            false = erlang:dist_ctrl_set_opt(DHandle, get_size, true),
            Connection ! {self(), reader, Reader},
            receive {Reader, reading} -> ok end,
            ok = erlang:dist_ctrl_get_data_notification(DHandle),
            write(DHandle, Socket)
    end.

%% @private
-spec write(DHandle :: term(), ssl:sslsocket()) -> no_return().
write(DHandle, Socket) ->
    receive
        dist_data -> write_all(DHandle, Socket);
        tick -> send(Socket, <<0:32>>);
        _ -> ok
    after ?IDLE_MS ->
        erlang:hibernate(?MODULE, write, [DHandle, Socket])
    end,
    ?MODULE:write(DHandle, Socket).

write_all(DHandle, Socket) ->
    case gather(DHandle, 0) of
        [] ->
            erlang:dist_ctrl_get_data_notification(DHandle);
        Packets ->
            send(Socket, Packets),
            write_all(DHandle, Socket)
    end.

gather(_DHandle, Bytes) when Bytes >= ?BATCH_BYTES ->
    [];
gather(DHandle, Bytes) ->
    case erlang:dist_ctrl_get_data(DHandle) of
        none -> [];
        {Size, Packet} -> [<<Size:32>>, Packet | gather(DHandle, Bytes + Size)]
    end.

send(Socket, Data) ->
    case ssl:send(Socket, Data) of
        ok -> ok;
        {error, _} -> exit(connection_closed)
    end.

%% @private
-spec init_reader(pid(), DHandle :: term()) -> no_return().
init_reader(Connection, DHandle) ->
    receive
        {Connection, go, Controller, Socket} ->
            Controller ! {self(), reading},
            listen(DHandle, Socket, beamway_tls_packets:new())
    end.

listen(DHandle, Socket, Packets) ->
    case ssl:setopts(Socket, [{active, ?MESSAGES}]) of
        ok -> read(DHandle, Socket, Packets);
        {error, _} -> exit(connection_closed)
    end.

%% @private
-spec read(DHandle :: term(), ssl:sslsocket(), beamway_tls_packets:state()) -> no_return().
read(DHandle, Socket, Packets) ->
    receive
        {ssl, _, Data} ->
            {Whole, Rest} = beamway_tls_packets:add(Data, Packets),
            lists:foreach(fun(Packet) -> erlang:dist_ctrl_put_data(DHandle, Packet) end, Whole),
            ?MODULE:read(DHandle, Socket, Rest);
        {ssl_passive, _} ->
            listen(DHandle, Socket, Packets);
        {ssl_closed, _} ->
            exit(connection_closed);
        {ssl_error, _, _} ->
            exit(connection_closed);
        _ ->
            ?MODULE:read(DHandle, Socket, Packets)
    after ?IDLE_MS ->
        erlang:hibernate(?MODULE, read, [DHandle, Socket, Packets])
    end.
