%% SPDX-License-Identifier: Apache-2.0
%% @doc The behaviour of a transport, which yucan_tcp, yucan_tls and yucan_h2_stream implement, and the functions through which all other modules use
%% any of these sockets. Only the owner of a socket may call them.
%%
%% Each connection begins with yucan_tcp. If the listener uses TLS, yucan_conn then starts TLS.
-module(yucan_transport).

-export([peer/1, recv/3, recv_whole/4, read/2, send/2, send_large/2, send_file/6, finish/2, setopts/2, arm/2, used/3, pause/2, event/2, next/2, is_closed/1,
         close/1, info/1, tls/1, hold/1, release/1, linger/3, copy/4]).
-export_type([socket/0, reason/0]).

-type raw() :: term().
-type socket() :: {Transport :: module(), raw()}.
-type reason() :: closed | timeout | inet:posix().
-type event() :: {data, binary()} | {last, binary()} | passive | closed.
%% What a message from a socket means. `last' contains data and, like `passive', says that the
%% socket sends no more messages until it is armed again. Either of these may already be outdated,
%% because arm/2 may have been called after the socket sent it.

-callback peer(raw()) -> {ok, term()} | {error, term()}.
-callback recv(raw(), Length :: non_neg_integer(), timeout()) -> {ok, binary()} | {error, reason()}.
-callback read(raw(), timeout()) -> {ok, binary()} | {eof, Trailers :: [{binary(), binary()}]} | {error, reason()}.
-callback send(raw(), iodata()) -> ok | {error, reason()}.
-callback send_large(raw(), iodata()) -> ok | {error, reason()}.
-callback send_file(raw(), Head :: iodata(), file:fd(), Offset :: non_neg_integer(), Length :: pos_integer(), SendMs :: pos_integer()) ->
    {ok, Sent :: non_neg_integer()} | {error, reason()}.
-callback finish(raw(), iodata()) -> ok | {error, reason()}.
-callback setopts(raw(), list()) -> ok.
-callback arm(raw(), Count :: pos_integer()) -> ok | {error, reason()}.
-callback event(Message :: term(), raw()) -> event() | other.
-callback next(raw(), timeout()) -> event() | timeout.
-callback is_closed(raw()) -> boolean().
-callback close(raw()) -> ok.
-callback info(raw()) -> none | #{atom() => term()}.
-callback tls(raw()) -> none | ssl:sslsocket().
-optional_callbacks([finish/2]).

%% A key in the process dictionary of a connection process. It is set while data that the process sends is buffered.
-define(HELD, '$yucan_held').
-define(SILENCE_MS, 5000).
-define(LINGER_BUFFER, 131072).
-define(PART_BYTES, 65536).

%% @doc Returns the address of the peer, or zeros if the peer has already disconnected.
-spec peer(socket()) -> yucan_req:address().
peer({Transport, Raw}) ->
    case Transport:peer(Raw) of
        {ok, {Ip, Port}} when is_tuple(Ip) -> {Ip, Port};
        {ok, _} -> {local, <<>>};
        {error, _} -> {{0, 0, 0, 0}, 0}
    end.

%% @doc Receives exactly `Length' bytes or, if `Length' is 0, the bytes that have arrived.
-spec recv(socket(), Length :: non_neg_integer(), TimeoutMs :: timeout()) -> {ok, binary()} | {error, reason()}.
recv({Transport, Raw}, Length, Timeout) -> Transport:recv(Raw, Length, Timeout).

%% @doc Receives data directly into the final binary until it has `Length' bytes, including those in `Before'. `partial' means that only the returned
%% bytes had arrived by the timeout, and `unsupported' that the caller has to use recv/3.
-spec recv_whole(socket(), Before :: binary(), Length :: pos_integer(), TimeoutMs :: timeout()) ->
    {ok, binary()} | {partial, binary()} | unsupported | {error, reason()}.
recv_whole({yucan_tcp, Raw}, Before, Length, Timeout) -> yucan_tcp:recv_whole(Raw, Before, Length, Timeout);
recv_whole(_, _, _, _) -> unsupported.

%% @doc Receives the bytes of a request's body that have arrived. `eof' is returned at the end of a body if the transport itself marks it.
-spec read(socket(), TimeoutMs :: timeout()) -> {ok, binary()} | {eof, Trailers :: [{binary(), binary()}]} | {error, reason()}.
read({Transport, Raw}, Timeout) -> Transport:read(Raw, Timeout).

%% @doc Blocks until the transport has accepted everything, for at most `send_ms' (yucan_config).
-spec send(socket(), iodata()) -> ok | {error, reason()}.
send({Transport, Raw}, Data) -> Transport:send(Raw, Data).

%% @doc Like send/2, for large data. There is no limit on the total time, provided that the peer accepts some data in each period of `send_ms'.
-spec send_large(socket(), iodata()) -> ok | {error, reason()}.
send_large({Transport, Raw}, Data) -> Transport:send_large(Raw, Data).

%% @doc Returns how much of the file was sent. If the peer accepts nothing for `SendMs', the calling process may exit.
-spec send_file(socket(), Head :: iodata(), file:fd(), Offset :: non_neg_integer(), Length :: pos_integer(), SendMs :: pos_integer()) ->
    {ok, Sent :: non_neg_integer()} | {error, reason()}.
send_file({Transport, Raw}, Head, Handle, Offset, Length, SendMs) -> Transport:send_file(Raw, Head, Handle, Offset, Length, SendMs).

%% @doc Like send/2, but also marks the end of a response. Only a transport with its own framing has this function.
-spec finish(socket(), iodata()) -> ok | {error, reason()}.
finish({Transport, Raw}, Data) -> Transport:finish(Raw, Data).

%% @doc Like inet:setopts/2. If the socket is closed, the next read returns the error.
-spec setopts(socket(), list()) -> ok.
setopts({Transport, Raw}, Options) -> Transport:setopts(Raw, Options).

%% @doc Lets data arrive as messages, at most `Count' of them.
-spec arm(socket(), Count :: pos_integer()) -> ok | {error, reason()}.
arm({Transport, Raw}, Count) -> Transport:arm(Raw, Count).

%% @doc Accounts for a data message, and returns how many more may arrive. Over TCP, the allowance is topped up once
%% half of it has been used, because a passive socket is removed from the scheduler's own set of descriptors. While more
%% than one message may still arrive, a `passive' event is outdated, because the socket has been armed since.
-spec used(socket(), Left :: non_neg_integer(), Count :: pos_integer()) -> pos_integer().
used({yucan_tcp, _} = Socket, Left, Count) when Left =:= Count div 2 + 1 ->
    _ = arm(Socket, Count div 2),
    Count;
used(_, Left, _) -> max(1, Left - 1).

%% @doc Switches back to reading with recv. Data that has arrived as messages in the meantime is appended to `Buffer'.
-spec pause(socket(), Buffer :: binary()) -> binary().
pause(Socket, Buffer) ->
    ok = setopts(Socket, [{active, false}]),
    flush(Socket, Buffer).

flush({Transport, Raw} = Socket, Buffer) ->
    case Transport:next(Raw, 0) of
        {_, Data} -> flush(Socket, <<Buffer/binary, Data/binary>>);
        %% Over TCP, the message that the peer has closed its side arrives only once, so it is put
        %% back.
        closed when Transport =:= yucan_tcp -> self() ! {tcp_closed, Raw}, Buffer;
        closed -> flush(Socket, Buffer);
        passive -> flush(Socket, Buffer);
        timeout -> Buffer
    end.

%% @doc Returns the socket event that a message to this process represents.
-spec event(Message :: term(), socket()) -> event() | other.
event(Message, {Transport, Raw}) -> Transport:event(Message, Raw).

%% @doc Waits for the next message of the socket. Other messages stay in the mailbox.
-spec next(socket(), timeout()) -> event() | timeout.
next({Transport, Raw}, Timeout) -> Transport:next(Raw, Timeout).

%% @doc Returns whether the peer has disconnected. This is known only while data arrives as messages. Data that has arrived stays available to read.
-spec is_closed(socket()) -> boolean().
is_closed({Transport, Raw}) -> Transport:is_closed(Raw).

%% @doc Closes the socket, whatever state it is in.
-spec close(socket()) -> ok.
close({Transport, Raw}) -> Transport:close(Raw).

%% @doc Returns the protocol, cipher and server name of a TLS connection.
-spec info(socket()) -> none | #{atom() => term()}.
info({Transport, Raw}) -> Transport:info(Raw).

%% @doc Returns the ssl socket, for functions such as ssl:peercert/1.
-spec tls(socket()) -> none | ssl:sslsocket().
tls({Transport, Raw}) -> Transport:tls(Raw).

%% @doc Buffers data until release/1 is called, so that several responses are sent together, but for at most 200 ms.
-spec hold(socket()) -> ok.
hold({yucan_tcp, Raw}) ->
    case put(?HELD, true) of
        true -> ok;
        undefined -> yucan_tcp:setopts(Raw, [{nopush, true}])
    end;
hold(_) -> ok.

%% @doc Sends the buffered data, and stops buffering.
-spec release(socket()) -> ok.
release({yucan_tcp, Raw}) ->
    case erase(?HELD) of
        true -> yucan_tcp:setopts(Raw, [{nopush, false}]);
        undefined -> ok
    end;
release(_) -> ok.

%% @doc Closes the connection without losing the last response. Closing a socket that has unread
%% bytes resets the connection, so a peer that is still sending could lose data that it has not read
%% yet (RFC 9112, 9.6). This function therefore reads and drops data until the peer closes, for at
%% most `Ms' in total. It gives up after 5 s of silence or if, after the first 5 s, fewer than
%% `Rate' bytes arrive per second.
-spec linger(socket(), Ms :: non_neg_integer(), Rate :: non_neg_integer()) -> ok.
linger({Transport, Raw} = Socket, Ms, Rate) ->
    Early = byte_size(pause(Socket, <<>>)),
    %% TLS's closure alert is not sent, because many clients, including OTP's, then stop both sending and reading.
    _ = case Transport of yucan_tcp -> gen_tcp:shutdown(Raw, write); _ -> ok end,
    ok = setopts(Socket, [{buffer, ?LINGER_BUFFER}]),
    discard(Socket, Early, erlang:monotonic_time(millisecond), Ms, Rate),
    close(Socket).

discard(Socket, Dropped, Started, Ms, Rate) ->
    Elapsed = erlang:monotonic_time(millisecond) - Started,
    TooSlow = Elapsed > ?SILENCE_MS andalso Dropped * 1000 < Rate * Elapsed,
    case not TooSlow andalso Elapsed < Ms andalso recv(Socket, 0, min(?SILENCE_MS, Ms - Elapsed)) of
        {ok, Data} -> discard(Socket, Dropped + byte_size(Data), Started, Ms, Rate);
        _ -> ok
    end.

%% @doc Sends a part of a file. `Send' gets each piece, and whether it is the last one. Returns the number of bytes that
%% were not sent because the file or the connection ended early.
-spec copy(fun((binary(), Last :: boolean()) -> ok | {error, reason()}), file:fd(), At :: non_neg_integer(), Left) -> Left when Left :: non_neg_integer().
copy(_, _, _, 0) -> 0;
copy(Send, Handle, At, Left) ->
    case file:pread(Handle, At, min(Left, ?PART_BYTES)) of
        {ok, Data} ->
            case Send(Data, byte_size(Data) =:= Left) of
                ok -> copy(Send, Handle, At + byte_size(Data), Left - byte_size(Data));
                _ -> Left
            end;
        _ -> Left
    end.
