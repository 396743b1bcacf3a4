%% SPDX-License-Identifier: Apache-2.0
%% @doc A connected socket, plain or TLS, behind one set of functions. All of them are called by the owner.
-module(yucan_socket).

-export([accept/1, accepted/3, peer/1, recv/3, unrecv/2, send/2, setopts/2, arm/2, pause/2, is_closed/1, shutdown_write/1, close/1, port/1, tls_info/1, opening/2, linger/3, guarded/3]).
-export_type([socket/0, accepting/0]).

-type socket() :: port() | {tls, ssl:sslsocket()}.
-opaque accepting() :: none | non_neg_integer().
-type reason() :: closed | timeout | inet:posix().

-define(SILENCE_MS, 5000).
-define(LINGER_BUFFER, 131072).

%% @doc Asks a listening socket for a connection; accepted/3 has it. gen_tcp:accept would copy options one by one, about ten system
%% calls; the driver and the kernel have passed all on that a listener of ours sets.
-spec accept(gen_tcp:socket()) -> {ok, accepting()} | {error, closed | system_limit | inet:posix()}.
accept(Listening) when is_port(Listening) ->
    case prim_inet:async_accept(Listening, -1) of
        {error, einval} -> {error, closed};
        Result -> Result
    end;
accept(_) ->
    {ok, none}.

%% @doc Waits for that connection; after a timeout it may be called again. An error ends the asking.
-spec accepted(gen_tcp:socket(), accepting(), TimeoutMs :: pos_integer()) ->
    {ok, gen_tcp:socket()} | timeout | {error, closed | system_limit | inet:posix()}.
accepted(Listening, none, Timeout) ->
    case gen_tcp:accept(Listening, Timeout) of
        {error, timeout} -> timeout;
        Result -> Result
    end;
accepted(Listening, Reference, Timeout) ->
    receive
        {inet_async, Listening, Reference, {ok, Socket}} ->
            {ok, Module} = inet_db:lookup_socket(Listening),
            true = inet_db:register_socket(Socket, Module),
            {ok, Socket};
        {inet_async, Listening, Reference, Error} -> Error
    after Timeout -> timeout
    end.

%% @doc The other end; an address of zeros if it has gone already.
-spec peer(socket()) -> yucan_req:address().
peer({tls, Socket}) -> peer_of(ssl:peername(Socket));
peer(Socket) -> peer_of(inet:peername(Socket)).

peer_of({ok, {Ip, Port}}) when is_tuple(Ip) -> {Ip, Port};
peer_of({ok, _}) -> {local, <<>>};
peer_of({error, _}) -> {{0, 0, 0, 0}, 0}.

%% @doc `Length' 0: what is there.
-spec recv(socket(), Length :: non_neg_integer(), TimeoutMs :: timeout()) -> {ok, binary()} | {error, reason()}.
recv({tls, Socket}, Length, Timeout) ->
    case ssl:recv(Socket, Length, Timeout) of
        {error, Reason} when not is_atom(Reason) -> {error, closed};
        Result -> Result
    end;
recv(Socket, Length, Timeout) when is_port(Socket) ->
    %% What gen_tcp:recv and gen_tcp:send come to, after two more look-ups.
    prim_inet:recv(Socket, Length, Timeout);
recv(Socket, Length, Timeout) ->
    gen_tcp:recv(Socket, Length, Timeout).

%% @doc Gives bytes back, for the next read. Only for plain sockets.
-spec unrecv(gen_tcp:socket(), binary()) -> ok | {error, reason()}.
unrecv(_, <<>>) -> ok;
unrecv(Socket, Data) -> prim_inet:unrecv(Socket, Data).

%% @doc How a client begins: with a letter, as requests of HTTP do, or with anything else, such as the byte 22 of TLS. What was read goes back.
-spec opening(gen_tcp:socket(), TimeoutMs :: pos_integer()) -> letter | other | nothing.
opening(Socket, Timeout) when is_port(Socket) ->
    case recv(Socket, 1, Timeout) of
        {ok, <<C>>} when C >= $A, C =< $Z -> letter;
        {ok, Byte} -> _ = unrecv(Socket, Byte), other;
        {error, _} -> nothing
    end;
opening(_, _) -> other.

%% @doc Blocks until the system has taken all, at most `send_ms' (yucan_config) without progress.
-spec send(socket(), iodata()) -> ok | {error, reason()}.
send({tls, Socket}, Data) ->
    case ssl:send(Socket, Data) of
        {error, Reason} when not is_atom(Reason) -> {error, closed};
        Result -> Result
    end;
send(Socket, Data) when is_port(Socket) ->
    prim_inet:send(Socket, Data);
send(Socket, Data) ->
    gen_tcp:send(Socket, Data).

%% @doc As inet:setopts/2; a socket that is gone is found by the next read.
-spec setopts(socket(), list()) -> ok.
setopts({tls, Socket}, Options) -> _ = ssl:setopts(Socket, Options), ok;
setopts(Socket, Options) -> _ = inet:setopts(Socket, Options), ok.

%% @doc Lets data come as messages: `Count' of them on TCP, one on TLS.
-spec arm(socket(), Count :: pos_integer()) -> ok | {error, reason()}.
arm({tls, Socket}, _) ->
    case ssl:setopts(Socket, [{active, once}]) of
        ok -> ok;
        {error, _} -> {error, closed}
    end;
arm(Socket, Count) ->
    inet:setopts(Socket, [{active, Count}]).

%% @doc Back to reading by recv: what has come as messages meanwhile is appended to `Buffer'.
-spec pause(socket(), Buffer :: binary()) -> binary().
pause({tls, Socket}, Buffer) ->
    _ = ssl:setopts(Socket, [{active, false}]),
    flush_tls(Socket, Buffer);
pause(Socket, Buffer) ->
    _ = inet:setopts(Socket, [{active, false}]),
    flush(Socket, Buffer).

flush(Socket, Buffer) ->
    receive
        {tcp, Socket, Data} -> flush(Socket, <<Buffer/binary, Data/binary>>);
        {tcp_passive, Socket} -> flush(Socket, Buffer);
        {tcp_closed, Socket} -> flush(Socket, Buffer);
        {tcp_error, Socket, _} -> flush(Socket, Buffer)
    after 0 -> Buffer
    end.

flush_tls(Socket, Buffer) ->
    receive
        {ssl, Socket, Data} -> flush_tls(Socket, <<Buffer/binary, Data/binary>>);
        {ssl_closed, Socket} -> flush_tls(Socket, Buffer);
        {ssl_error, Socket, _} -> flush_tls(Socket, Buffer)
    after 0 -> Buffer
    end.

%% @doc Has the other end gone? Known only while data comes as messages; what has come stays for its reader.
-spec is_closed(socket()) -> boolean().
is_closed({tls, Socket}) ->
    ssl:peername(Socket) =/= {ok, nothing} andalso element(1, ssl:peername(Socket)) =:= error;
is_closed(Socket) ->
    %% A socket of which the other end is gone for good has an error, or no peer any more.
    case inet:peername(Socket) of
        {error, _} -> true;
        {ok, _} -> has_hung_up(Socket)
    end.

%% TCP_INFO's first byte is the state: established is 1; the peer has closed in 7 (close) and 8 (close_wait).
has_hung_up(Socket) ->
    case inet:getopts(Socket, [{raw, 6, 11, 1}]) of
        {ok, [{raw, 6, 11, <<State>>}]} -> State =/= 1;
        _ -> false
    end.

%% @doc No more comes from this side.
-spec shutdown_write(socket()) -> ok.
shutdown_write({tls, Socket}) -> _ = ssl:shutdown(Socket, write), ok;
shutdown_write(Socket) -> _ = gen_tcp:shutdown(Socket, write), ok.

%% @doc Closes it, whatever its state.
-spec close(socket()) -> ok.
close({tls, Socket}) -> _ = ssl:close(Socket), ok;
close(Socket) when is_port(Socket) ->
    %% What gen_tcp:close does first is to wait until the driver has passed all on.
    case erlang:port_info(Socket, queue_size) of
        {queue_size, 0} -> try erlang:port_close(Socket), ok catch error:badarg -> ok end;
        _ -> _ = gen_tcp:close(Socket), ok
    end;
close(Socket) -> _ = gen_tcp:close(Socket), ok.

%% @doc Closes without destroying the last answer: a close with unread bytes resets the connection, and the client or the proxy that
%% still sends could lose what it has not read yet (RFC 9112, 9.6). So it reads and drops until the other end closes. The bounds are: `Ms' for all
%% of it, 5 s of silence, and after these 5 s `Rate' bytes per second.
-spec linger(socket(), Ms :: non_neg_integer(), Rate :: non_neg_integer()) -> ok.
linger(Socket, Ms, Rate) ->
    Early = byte_size(pause(Socket, <<>>)),
    half_close(Socket),
    ok = setopts(Socket, [{buffer, ?LINGER_BUFFER}]),
    discard(Socket, Early, erlang:monotonic_time(millisecond), Ms, Rate),
    close(Socket).

%% After the end of TLS many clients, OTP's among them, neither send nor read any more.
half_close({tls, _}) -> ok;
half_close(Socket) -> shutdown_write(Socket).

discard(Socket, Dropped, Started, Ms, Rate) ->
    Elapsed = erlang:monotonic_time(millisecond) - Started,
    TooSlow = Elapsed > ?SILENCE_MS andalso Dropped * 1000 < Rate * Elapsed,
    case not TooSlow andalso Elapsed < Ms andalso recv(Socket, 0, min(?SILENCE_MS, Ms - Elapsed)) of
        {ok, Data} -> discard(Socket, Dropped + byte_size(Data), Started, Ms, Rate);
        _ -> ok
    end.

%% @doc Runs what writes to a socket without a limit of time of its own, as sendfile does. If the other end takes nothing for so long the calling
%% process ends, and the connection with it: it waits for a message of the driver that does not come even if the socket is closed. On systems
%% that do not say what was taken there is no limit.
-spec guarded(port(), Ms :: pos_integer(), fun(() -> Result)) -> Result.
guarded(Socket, Ms, Function) ->
    Owner = self(),
    {Guard, Monitor} = spawn_opt(fun() -> guard(Owner, Socket, Ms, taken(Socket)) end, [link, monitor]),
    try
        Function()
    after
        %% It is gone before the process goes on: it may neither end what comes next nor be found among the links.
        true = unlink(Guard),
        Guard ! done,
        receive {'DOWN', Monitor, process, Guard, _} -> ok end
    end.

guard(Owner, Socket, Ms, Before) ->
    receive
        done -> ok
    after Ms ->
        case taken(Socket) of
            Before when is_integer(Before) -> exit(Owner, {shutdown, send_timeout});
            Now -> guard(Owner, Socket, Ms, Now)
        end
    end.

%% TCP_INFO of Linux: how many bytes the other end has acknowledged, at byte 120.
taken(Socket) ->
    case inet:getopts(Socket, [{raw, 6, 11, 128}]) of
        {ok, [{raw, 6, 11, <<_:120/binary, Acknowledged:64/native>>}]} -> Acknowledged;
        _ -> unknown
    end.

%% @doc The port below, none for TLS.
-spec port(socket()) -> port() | none.
port({tls, _}) -> none;
port(Socket) -> Socket.

%% @doc Protocol, cipher and name of a TLS connection.
-spec tls_info(socket()) -> none | #{atom() => term()}.
tls_info({tls, Socket}) ->
    case ssl:connection_information(Socket, [protocol, selected_cipher_suite, sni_hostname]) of
        {ok, Info} -> maps:from_list(Info);
        {error, _} -> #{}
    end;
tls_info(_) ->
    none.
