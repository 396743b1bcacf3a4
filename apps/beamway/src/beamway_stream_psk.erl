%% SPDX-License-Identifier: Apache-2.0
%% @doc A stream over a connection that uses TLS 1.3 with a pre-shared key from its first byte (option `encrypt').
%%
%% The driver's link over TLS (native/link/tls) is created before anything else is sent. It first carries the handshake of the distribution as
%% bytes, in packets with a four-byte length, and then the frames. If the nodes agree on a ring, the link gives up the connection, which then
%% carries nothing. After {@link carry/3} or {@link keep/1} the stream is the plain socket, so this module does not implement the later functions
%% of {@link beamway_stream}.
%%
%% A caller's first packet is read completely before a link is created for it, so an unauthenticated client that sends nothing only costs a process
%% and a socket.
-module(beamway_stream_psk).
-behaviour(beamway_stream).

-export([connect/5, dial/6, accept/1, of_link/3, socket/1, key/1, why/1]).
-export([kind/1, send/2, recv/2, peername/1, setopts/2, getopts/2, carry/3, keep/1]).
-export_type([stream/0]).

-import(beamway_result, [then/2]).

-define(RING_BYTES, 262144).
-define(PACKET_BYTES, 65535).
%% When the time allowed for the whole connection setup has passed, dist_util kills the process without reporting why.
-define(LAST_MS, 500).
%% With `prefer', TLS gets this long, because an unencrypted peer mistakes the TLS handshake for the beginning of a long packet and waits for the
%% rest.
-define(PREFERS_MS, 1000).
%% An unauthenticated client has this long for its first packet, and then for the rest of the handshake.
-define(HELLO_MS, 2000).
-define(SHAKE_MS, 3000).
%% The first byte of a handshake record of TLS. An unencrypted connection starts with the high byte of a packet's length.
-define(HANDSHAKE, 22).
-define(RECORD_BYTES, 16640).
-define(CLEAR_LAST, 19).

-type stream() :: {?MODULE, #{socket := port(), port := port(), cipher := binary(), key => binary()}}.
%% `key' names the key of the cluster; it is missing if the connection uses a key that only the two nodes have.
-type result() :: {ok, stream()} | {clear, port(), Why :: binary()} | {error, Reason :: term()}.
%% `clear' is returned if `prefer' allows it.

%% ---- creating a stream ----

%% @doc Calls a peer as the option `encrypt' requires.
-spec connect(true | prefer, node(), beamway_stream:family(), inet:ip_address(), inet:port_number()) -> result().
connect(Mode, Node, Family, Ip, TcpPort) ->
    TimeoutMs = net_kernel:connecttime(),
    Ms = case Mode of prefer -> ?PREFERS_MS; true -> TimeoutMs - min(?LAST_MS, TimeoutMs div 4) end,
    case {dial(Node, Family, Ip, TcpPort, reserved(), Ms), Mode} of
        {{error, Reason}, prefer} when is_binary(Reason) ->
            then(Family:connect(Ip, TcpPort, beamway_stream_tcp:connect_options()), fun(Socket) -> {clear, Socket, Reason} end);
        {{error, Reason}, true} when is_binary(Reason) ->
            ok = beamway_half_open:refused([inet:ntoa(Ip), $:, integer_to_list(TcpPort)], Reason),
            {error, tls};
        {Dialed, _} -> Dialed
    end.

%% @doc Calls a peer over an encrypted connection. If the reason is an atom, no connection was established at all.
-spec dial(node(), beamway_stream:family(), inet:ip_address(), inet:port_number(), RingBytes :: pos_integer(), Ms :: pos_integer()) ->
          {ok, stream()} | {error, inet:posix() | binary()}.
dial(Node, Family, Ip, TcpPort, RingBytes, Ms) ->
    Deadline = now_ms() + Ms,
    Connect = fun(Place) -> beamway_establish:connect(tls, Place, <<0:128>>, RingBytes, max(1, left(Deadline))) end,
    then(beamway_encrypt:keys(auth:get_cookie(Node)),
         fun(Keys) -> then(Family:connect(Ip, TcpPort, beamway_stream_tcp:connect_options(), Ms), fun(Socket) -> secured(Socket, Keys, <<>>, Connect) end) end).

reserved() ->
    case beamway_links:reserve(tls, ?RING_BYTES) of
        {ok, RingBytes} -> RingBytes;
        {error, _} -> ?RING_BYTES
    end.

%% @doc Turns an accepted socket into a stream, as the option `encrypt' requires.
-spec accept(port()) -> result().
accept(Socket) ->
    Entry = beamway_half_open:enter(Socket),
    Peer = beamway_stream:peer_text(Socket),
    Accepted = then(inet:setopts(Socket, [binary, {packet, raw}]),
                    fun() -> begun(inet_tcp:recv(Socket, 5, ?HELLO_MS), Socket, now_ms() + ?HELLO_MS, beamway_encrypt:mode()) end),
    ok = beamway_half_open:leave(Entry),
    told(Accepted, Peer).

%% If a caller disconnected or sent nothing, there is nothing to log, because two nodes that call each other at the same time give up one
%% connection.
told({error, <<"the peer closed the connection", _/binary>>}, _Peer) ->
    {error, closed};
told({error, Reason}, Peer) when is_binary(Reason) ->
    ok = beamway_half_open:refused(Peer, Reason),
    {error, tls};
told(Accepted, _Peer) ->
    Accepted.

begun({ok, <<?HANDSHAKE, 3, _, Length:16>> = Head}, Socket, Deadline, _Mode) when Length > 0, Length =< ?RECORD_BYTES ->
    then(inet_tcp:recv(Socket, Length, left(Deadline)),
         fun(Rest) -> then(beamway_encrypt:keys(erlang:get_cookie()), fun(Keys) -> answered(Socket, Keys, <<Head/binary, Rest/binary>>) end) end);
begun({ok, <<First, _/binary>> = Head}, Socket, _Deadline, prefer) when First =< ?CLEAR_LAST ->
    ok = inet_tcp:unrecv(Socket, Head),
    then(inet:setopts(Socket, [list, {packet, 2}]), fun() -> {clear, Socket, <<"the peer has called in clear">>} end);
begun({ok, <<First, _/binary>>}, _Socket, _Deadline, true) when First =< ?CLEAR_LAST ->
    {error, <<"it calls in clear, and this node has encrypt true">>};
begun({ok, _Head}, _Socket, _Deadline, _Mode) ->
    {error, <<"it speaks no TLS">>};
begun({error, Reason}, _Socket, _Deadline, _Mode) ->
    {error, Reason}.

answered(Socket, Keys, Hello) ->
    RingBytes = reserved(),
    secured(Socket, Keys, Hello,
            fun(Place) -> beamway_tls_takeover:accept(Place, RingBytes, now_ms() + ?SHAKE_MS) end).

%% The driver reads and writes through its own descriptor, and the socket's port no longer does.
secured(Socket, Keys, Read, Establish) ->
    case {inet:setopts(Socket, [binary, {packet, raw}, beamway_stream_tcp:nodelay()]), prim_inet:getfd(Socket)} of
        {ok, {ok, Fd}} -> stream(Socket, Keys, Establish(beamway_encrypt:place(Fd, [{Label, Key} || #{label := Label, key := Key} <- Keys], Read)));
        {_, _} -> {error, closed}
    end.

stream(Socket, Keys, {ok, Port, Device}) ->
    [Cipher, Label] = binary:split(Device, <<" ">>),
    {ok, {?MODULE, #{socket => Socket, port => Port, cipher => Cipher, key => beamway_encrypt:name(Keys, Label)}}};
stream(Socket, [#{label := Label} | _] = Keys, {error, Reason}) ->
    ok = beamway_port:close(Socket),
    {error, iolist_to_binary([string:replace(Reason, "tls: ", ""), " (this node's key: ", beamway_encrypt:name(Keys, Label), ")"])}.

%% @doc Returns a stream over a link that the caller has set up on this socket, with a key that only the two nodes have.
-spec of_link(Socket :: port(), Port :: port(), Cipher :: binary()) -> stream().
of_link(Socket, Port, Cipher) -> {?MODULE, #{socket => Socket, port => Port, cipher => Cipher}}.

%% @doc Returns the underlying socket.
-spec socket(stream()) -> port().
socket({?MODULE, #{socket := Socket}}) -> Socket.

%% @doc Returns text that identifies the key of which both sides have proved possession.
-spec key(stream()) -> binary().
key({?MODULE, #{key := Key}}) -> Key.

%% @doc Returns text that names the cipher and the key.
-spec why(stream()) -> binary().
why({?MODULE, #{cipher := Cipher, key := Key}}) -> <<Cipher/binary, ", ", Key/binary>>.

%% ---- the handshake over it ----

%% @private
-spec kind(stream()) -> tls.
kind(_Stream) -> tls.

%% @private
-spec send(stream(), iodata()) -> ok | {error, closed}.
send({?MODULE, #{port := Port}}, Packet) ->
    case of_port(fun() -> beamway_port:say(Port, [<<(iolist_size(Packet)):32>>, Packet]) end) of
        ok -> ok;
        {error, _} -> {error, closed}
    end.

%% @private
-spec recv(stream(), timeout()) -> {ok, string()} | {error, closed | timeout | emsgsize}.
recv({?MODULE, #{port := Port}}, TimeoutMs) ->
    Deadline = case TimeoutMs of infinity -> infinity; _ -> now_ms() + TimeoutMs end,
    case heard(Port, 4, Deadline) of
        {ok, <<Length:32>>} when Length =< ?PACKET_BYTES -> packet(Port, Length, Deadline, []);
        {ok, _} -> {error, emsgsize};
        {error, Reason} -> {error, Reason}
    end.

packet(_Port, 0, _Deadline, Pieces) ->
    {ok, binary_to_list(iolist_to_binary(Pieces))};
packet(Port, Missing, Deadline, Pieces) ->
    Count = min(256, Missing),
    then(heard(Port, Count, Deadline), fun(Piece) -> packet(Port, Missing - Count, Deadline, [Pieces, Piece]) end).

%% Needs no deadline, because the handshake's own timer kills this process.
heard(Port, Count, Deadline) ->
    case of_port(fun() -> beamway_port:hear(Port, Count) end) of
        wait ->
            receive {link, Port} -> heard(Port, Count, Deadline)
            after left(Deadline) -> {error, timeout}
            end;
        {ok, Bytes} -> {ok, Bytes};
        {error, _} -> {error, closed}
    end.

%% The port may have just closed.
of_port(Command) ->
    try Command()
    catch error:badarg -> {error, closed}
    end.

%% @private
-spec peername(stream()) -> {ok, {inet:ip_address(), inet:port_number()}} | {error, term()}.
peername(Stream) -> inet:peername(socket(Stream)).

%% @private
-spec setopts(stream(), [inet:socket_setopt()]) -> ok | {error, inet:posix()}.
setopts(Stream, Options) -> inet:setopts(socket(Stream), Options).

%% @private
-spec getopts(stream(), [inet:socket_getopt()]) -> {ok, [inet:socket_setopt()]} | {error, inet:posix()}.
getopts(Stream, Options) -> inet:getopts(socket(Stream), Options).

%% ---- after the handshake ----

%% @private Both sides have a link of the driver, so both know without exchanging a message that it can outlive its connection.
-spec carry(stream(), connecting | accepting, beamway_stream:wish()) -> {ok, port()} | {resumes, port()} | {error, binary()}.
carry({?MODULE, #{socket := Socket, port := Port}}, Role, Wish) ->
    _ = reserved(), % the attempt to set up a ring has released the reservation
    ok = beamway_stream_tcp:bound(Socket, Role),
    ok = forget(Port),
    case of_port(fun() -> beamway_port:packets(Port, <<>>) end) of
        ok when Wish =:= none -> {ok, Port};
        ok -> {resumes, Port};
        {error, Reason} -> {error, Reason}
    end.

%% @private
-spec keep(stream()) -> ok | {error, inet:posix()}.
keep({?MODULE, #{socket := Socket, port := Port}}) ->
    _ = of_port(fun() -> beamway_port:leave(Port) end),
    ok = beamway_port:close(Port),
    ok = forget(Port),
    inet:setopts(Socket, [binary, {active, false}, {packet, raw} | beamway_stream_tcp:keepalive_options()]).

%% Discards events from the port, and runs a garbage collection to discard old copies of keys, because this process may continue as the connection's
%% ticker.
forget(Port) ->
    receive {link, Port} -> forget(Port)
    after 0 -> true = erlang:garbage_collect(), ok
    end.

left(infinity) -> infinity;
left(Deadline) -> max(0, Deadline - now_ms()).

now_ms() -> erlang:monotonic_time(millisecond).
