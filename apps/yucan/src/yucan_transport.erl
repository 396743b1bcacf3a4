%% SPDX-License-Identifier: Apache-2.0
%% @doc What carries a connection: the behaviour of yucan_tcp, yucan_tls and yucan_h2_stream, and the functions by which all others use a socket,
%% whatever it is. All of them are called by the owner of the socket.
%%
%% Each connection begins as one of yucan_tcp; yucan_conn takes up TLS if the listener has it.
-module(yucan_transport).

-export([peer/1, recv/3, recv_whole/4, send/2, send_large/2, send_file/6, setopts/2, arm/2, used/3, pause/2, event/2, next/2, is_closed/1, close/1, info/1, tls/1,
         hold/1, release/1, linger/3]).
-export_type([socket/0, reason/0]).

-type raw() :: term().
-type socket() :: {Transport :: module(), raw()}.
-type reason() :: closed | timeout | inet:posix().
-type event() :: {data, binary()} | {last, binary()} | passive | closed.
%% What a message is to a socket. `last': data, and the socket is silent from then on, as after `passive'. Both are as old as the messages before them.

-callback peer(raw()) -> {ok, term()} | {error, term()}.
-callback recv(raw(), Length :: non_neg_integer(), timeout()) -> {ok, binary()} | {error, reason()}.
-callback recv_whole(raw(), Before :: binary(), Length :: pos_integer(), timeout()) ->
    {ok, binary()} | {partial, binary()} | unsupported | {error, reason()}.
-callback send(raw(), iodata()) -> ok | {error, reason()}.
-callback send_large(raw(), iodata()) -> ok | {error, reason()}.
-callback send_file(raw(), Head :: iodata(), file:fd(), Offset :: non_neg_integer(), Length :: pos_integer(), SendMs :: pos_integer()) ->
    {ok, Sent :: non_neg_integer()} | {error, reason()}.
-callback setopts(raw(), list()) -> ok.
-callback arm(raw(), Count :: pos_integer()) -> ok | {error, reason()}.
-callback pause(raw(), Buffer :: binary()) -> binary().
-callback event(Message :: term(), raw()) -> event() | other.
-callback next(raw(), timeout()) -> event() | timeout.
-callback is_closed(raw()) -> boolean().
-callback half_close(raw()) -> ok.
-callback close(raw()) -> ok.
-callback info(raw()) -> none | #{atom() => term()}.

%% Of the process of a connection: what it sends is held.
-define(HELD, '$yucan_held').
-define(SILENCE_MS, 5000).
-define(LINGER_BUFFER, 131072).

%% @doc The other end; an address of zeros if it has gone already.
-spec peer(socket()) -> yucan_req:address().
peer({Transport, Raw}) ->
    case Transport:peer(Raw) of
        {ok, {Ip, Port}} when is_tuple(Ip) -> {Ip, Port};
        {ok, _} -> {local, <<>>};
        {error, _} -> {{0, 0, 0, 0}, 0}
    end.

%% @doc `Length' 0: what is there.
-spec recv(socket(), Length :: non_neg_integer(), TimeoutMs :: timeout()) -> {ok, binary()} | {error, reason()}.
recv({Transport, Raw}, Length, Timeout) -> Transport:recv(Raw, Length, Timeout).

%% @doc So many bytes, those read `Before' among them, in the place where they stay. `partial': only these came in that time. `unsupported': read
%% them by recv/3.
-spec recv_whole(socket(), Before :: binary(), Length :: pos_integer(), TimeoutMs :: timeout()) ->
    {ok, binary()} | {partial, binary()} | unsupported | {error, reason()}.
recv_whole({Transport, Raw}, Before, Length, Timeout) -> Transport:recv_whole(Raw, Before, Length, Timeout).

%% @doc Blocks until the transport has taken all, for at most `send_ms' (yucan_config).
-spec send(socket(), iodata()) -> ok | {error, reason()}.
send({Transport, Raw}, Data) -> Transport:send(Raw, Data).

%% @doc The same for much: it takes as long as the other end likes, if that takes something of it in each `send_ms'.
-spec send_large(socket(), iodata()) -> ok | {error, reason()}.
send_large({Transport, Raw}, Data) -> Transport:send_large(Raw, Data).

%% @doc A head and a part of a file: how much of the file has gone out. If the other end takes nothing for `SendMs' the calling process may end.
-spec send_file(socket(), Head :: iodata(), file:fd(), Offset :: non_neg_integer(), Length :: pos_integer(), SendMs :: pos_integer()) ->
    {ok, Sent :: non_neg_integer()} | {error, reason()}.
send_file({Transport, Raw}, Head, Handle, Offset, Length, SendMs) -> Transport:send_file(Raw, Head, Handle, Offset, Length, SendMs).

%% @doc As inet:setopts/2; a socket that is gone is found by the next read.
-spec setopts(socket(), list()) -> ok.
setopts({Transport, Raw}, Options) -> Transport:setopts(Raw, Options).

%% @doc Lets data come as messages: `Count' of them at most.
-spec arm(socket(), Count :: pos_integer()) -> ok | {error, reason()}.
arm({Transport, Raw}, Count) -> Transport:arm(Raw, Count).

%% @doc One of the messages that may come has come, with data: how many still may. TCP is allowed `Count' again once half of them are used, before the
%% socket falls silent: one that has been silent leaves the scheduler's own set of descriptors. A client that sends faster than it is served makes it silent all
%% the same. So `passive' is no news while more than one message may come: the socket has been armed since.
-spec used(socket(), Left :: non_neg_integer(), Count :: pos_integer()) -> pos_integer().
used({yucan_tcp, _} = Socket, Left, Count) when Left =:= Count div 2 + 1 ->
    _ = arm(Socket, Count div 2),
    Count;
used(_, Left, _) -> max(1, Left - 1).

%% @doc Back to reading by recv: what has come as messages meanwhile is appended to `Buffer'.
-spec pause(socket(), Buffer :: binary()) -> binary().
pause({Transport, Raw}, Buffer) -> Transport:pause(Raw, Buffer).

%% @doc What a message to this process says of the socket.
-spec event(Message :: term(), socket()) -> event() | other.
event(Message, {Transport, Raw}) -> Transport:event(Message, Raw).

%% @doc Waits for the next message of the socket; others stay.
-spec next(socket(), timeout()) -> event() | timeout.
next({Transport, Raw}, Timeout) -> Transport:next(Raw, Timeout).

%% @doc Has the other end gone? Known only while data comes as messages; what has come stays for its reader.
-spec is_closed(socket()) -> boolean().
is_closed({Transport, Raw}) -> Transport:is_closed(Raw).

%% @doc Closes it, whatever its state.
-spec close(socket()) -> ok.
close({Transport, Raw}) -> Transport:close(Raw).

%% @doc Protocol, cipher and name of a TLS connection.
-spec info(socket()) -> none | #{atom() => term()}.
info({Transport, Raw}) -> Transport:info(Raw).

%% @doc The connection for functions of ssl, such as ssl:peercert/1.
-spec tls(socket()) -> none | ssl:sslsocket().
tls({yucan_tls, Tls}) -> Tls;
tls({yucan_h2_stream, Stream}) -> tls(yucan_h2_stream:below(Stream));
tls(_) -> none.

%% @doc What is sent from now on waits for what is sent behind it, so that several answers go out as one. The system waits 200 ms at most, whatever
%% this process does meanwhile.
-spec hold(socket()) -> ok.
hold({yucan_tcp, Raw}) ->
    case put(?HELD, true) of
        true -> ok;
        undefined -> yucan_tcp:setopts(Raw, [{nopush, true}])
    end;
hold(_) -> ok.

%% @doc Nothing waits any more.
-spec release(socket()) -> ok.
release({yucan_tcp, Raw}) ->
    case erase(?HELD) of
        true -> yucan_tcp:setopts(Raw, [{nopush, false}]);
        undefined -> ok
    end;
release(_) -> ok.

%% @doc Closes without destroying the last answer: a close with unread bytes resets the connection, and the client or the proxy that
%% still sends could lose what it has not read yet (RFC 9112, 9.6). So it reads and drops until the other end closes. The bounds are: `Ms' for all
%% of it, 5 s of silence, and after these 5 s `Rate' bytes per second.
-spec linger(socket(), Ms :: non_neg_integer(), Rate :: non_neg_integer()) -> ok.
linger({Transport, Raw} = Socket, Ms, Rate) ->
    Early = byte_size(pause(Socket, <<>>)),
    ok = Transport:half_close(Raw),
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
