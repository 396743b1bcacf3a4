%% SPDX-License-Identifier: Apache-2.0
%% @doc What the two ends of a pool's connection have in common: the socket's options, the text of its errors, and how
%% a connection ends.
-module(teleport_pool_socket).

-export([options/1, text/1, handled/2, last/3, close/2]).

-define(BUFFER_BYTES, 65536).
%% No packet of the handshake is longer ({@link teleport_pool_handshake}).
-define(HANDSHAKE_BYTES, 1024).
-define(LARGE_BYTES, 1048576).
-define(TCP, 6).
-define(TCP_USER_TIMEOUT, 18).

%% @doc Returns the socket options for both ends. A connection to a silent peer is closed after net_ticktime, as in the
%% distribution, and keepalive probes are sent as often as ticks, so that firewalls do not drop the connection.
-spec options(inet:ip_address()) -> [gen_tcp:option()].
options(Ip) ->
    %% gen_tcp requires this option to come first.
    [{inet_backend, inet}, case tuple_size(Ip) of 4 -> inet; 8 -> inet6 end, binary, {active, false}, {packet, 4},
     {packet_size, ?HANDSHAKE_BYTES}, {nodelay, true}, {buffer, ?BUFFER_BYTES}, {show_econnreset, true}]
        ++ case os:type() of
               {unix, linux} ->
                   SilentMs = 1000 * beamway_config:of_kernel(net_ticktime, 60),
                   [{raw, ?TCP, ?TCP_USER_TIMEOUT, <<SilentMs:32/native>>} | beamway_stream_tcp:keepalive_options()];
               _ -> [{keepalive, true}]
           end.

%% @doc Returns inet's text for a failure, or our own if inet has none.
-spec text(atom()) -> binary().
text(timeout) -> <<"no answer in time">>;
text(Reason) ->
    case inet:format_error(Reason) of
        "unknown POSIX error" ++ _ -> atom_to_binary(Reason);
        Text -> iolist_to_binary(Text)
    end.

%% @doc Returns the result of `handle_info/2' after this packet. After a large packet the process
%% hibernates, which frees the packet's memory.
-spec handled(Packet :: binary(), State) -> {noreply, State} | {noreply, State, hibernate}.
handled(Packet, State) when byte_size(Packet) >= ?LARGE_BYTES -> {noreply, State, hibernate};
handled(_, State) -> {noreply, State}.

%% @doc Runs in the process of either end after that process was told to stop: handles further messages until its
%% connection closes or the deadline passes. Returns the reason for {@link close/2}.
-spec last(fun((Info :: term(), State) -> tuple()), State, teleport_deadline:deadline()) -> Reason :: term().
last(HandleInfo, State, Deadline) ->
    receive
        Info ->
            case HandleInfo(Info, State) of
                {noreply, Next} -> last(HandleInfo, Next, Deadline);
                {noreply, Next, _} -> last(HandleInfo, Next, Deadline);
                {stop, Reason, _} -> Reason
            end
    after teleport_deadline:left(Deadline) -> too_late
    end.

%% @doc Closes a connection's socket. `Reason' is the reason for which the connection's process exits. Unless the peer
%% has closed it, unsent data is discarded, because it would keep the socket open if the peer hangs.
-spec close(gen_tcp:socket(), Reason :: term()) -> ok.
close(Socket, {shutdown, closed}) -> gen_tcp:close(Socket);
close(Socket, _) ->
    _ = inet:setopts(Socket, [{linger, {true, 0}}]),
    gen_tcp:close(Socket).
