%% SPDX-License-Identifier: Apache-2.0
%% @doc Moves a connection from the processes of OTP's ssl into the driver, without opening a new connection.
%%
%% ssl has authenticated both sides, and the handshake of the distribution has taken place inside the TLS connection. There, both sides send 32 random
%% bytes, and derive a key from these and from the names and challenges that they have exchanged. Then both let ssl close its part of the connection
%% (`close_notify' in both directions, ssl:close/2), which leaves the plain socket. On that socket the driver starts TLS 1.3 again, with libssl and
%% that key (native/link/tls). None of this reveals anything to an outsider, or opens anything that an outsider could use.
%%
%% ssl reads everything that arrives, and returns only part of what it has read after the peer's `close_notify', or nothing at all. So nothing may
%% be sent to a side whose ssl still reads. Once the accepting side's ssl has released the socket, that side therefore only sends a known byte, and
%% repeats it. If the calling side's ssl has not released its socket yet, some of these bytes are lost, which does no harm. When the calling side
%% receives the byte, its own ssl has released the socket, and it knows that the other side's ssl has as well, so it begins.
%%
%% All of this runs in the connection process of the distribution. If something fails before the keys have been exchanged, the connection stays with
%% ssl. A later failure closes it. {@link beamway_resumption} does the same with a later connection of the link, for which both sides already have a key.
-module(beamway_tls_takeover).

-export([run/4, take_over/5, accept/3]).

-include_lib("kernel/include/logger.hrl").

-import(beamway_result, [then/2]).

-define(SECRET_BYTES, 32).
-define(RING_BYTES, 262144).
-define(READY, $B). % as in native/link/tls/tls.h
-define(READY_FIRST_MS, 2).
-define(READY_LAST_MS, 100).

%% @doc Moves the connection into the driver. `Said' is data that only these two sides have exchanged. The socket stays open for its options, and
%% the port carries packets. Only the two sides know `Secret'. Returns within `TimeoutMs', or terminates the calling process. `stream' means that
%% ssl's processes continue.
-spec run(connecting | accepting, ssl:sslsocket(), Said :: iodata(), TimeoutMs :: pos_integer()) ->
          {ok, Socket :: port(), Controller :: port(), Cipher :: binary(), Secret :: binary()} | {stream, Reason :: binary()}.
run(Role, Tls, Said, TimeoutMs) ->
    Deadline = erlang:monotonic_time(millisecond) + TimeoutMs,
    Stream = {beamway_stream_tls, Tls},
    try exchange(Role, Stream, Deadline, crypto:strong_rand_bytes(?SECRET_BYTES), beamway_links:reserve(tls, ?RING_BYTES)) of
        {ok, Secrets, RingBytes} ->
            taken_over(take_over(Role, Tls, key(Secrets, Said), RingBytes, Deadline), crypto:hash(sha256, [<<"beamway secret 1">>, Secrets]));
        {stream, Reason} ->
            ok = beamway_links:release(),
            {stream, Reason}
    catch
        throw:{no_agreement, Reason} -> beamway_agreement:give_up_connection(Reason)
    end.

%% ---- the key ----

%% The answering side reads first, because unread bytes would become the first packet of the distribution.
exchange(connecting, Stream, _Deadline, _Mine, {error, Reason}) ->
    refuse(Stream, Reason);
exchange(connecting, Stream, Deadline, Mine, {ok, RingBytes}) ->
    beamway_agreement:send(Stream, {secret, Mine}),
    answered(beamway_agreement:recv(Stream, Deadline), fun(Theirs) -> {ok, [Mine, Theirs], RingBytes} end);
exchange(accepting, Stream, Deadline, Mine, Granted) ->
    answered(beamway_agreement:recv(Stream, Deadline), fun(Theirs) -> answer(Stream, Theirs, Mine, Granted) end).

answer(Stream, Theirs, Mine, {ok, RingBytes}) ->
    beamway_agreement:send(Stream, {secret, Mine}),
    {ok, [Theirs, Mine], RingBytes};
answer(Stream, _Theirs, _Mine, {error, Reason}) ->
    refuse(Stream, Reason).

refuse(Stream, Reason) ->
    beamway_agreement:send(Stream, {nack, Reason}),
    {stream, Reason}.

answered({secret, Theirs}, Go) -> Go(Theirs);
answered({nack, Reason}, _Go) -> {stream, <<"the peer says: ", Reason/binary>>};
answered(_Other, _Go) -> throw({no_agreement, <<"no secret for TLS in the driver">>}).

key(Secrets, Said) ->
    crypto:mac(hmac, sha256, Secrets, [<<"beamway tls 1">>, crypto:hash(sha256, Said)]).

%% ---- the socket ----

%% Old copies of the key remain only in the garbage of this process, which continues as the connection's ticker, so the garbage is collected.
taken_over({ok, Socket, Port, Cipher}, Secret) ->
    ok = beamway_port:packets(Port, <<>>),
    true = erlang:garbage_collect(),
    {ok, Socket, Port, Cipher, Secret};
taken_over({error, Reason}, _Secret) ->
    beamway_agreement:give_up_connection(<<"TLS was not taken over into the driver: ", (text(Reason))/binary>>).

text(Reason) when is_binary(Reason) -> Reason;
text(Reason) -> unicode:characters_to_binary(io_lib:format("~0tp", [Reason])).

%% @doc Moves the connection into the driver, under a key that only the two sides know. Afterwards the port carries bytes. After an error the
%% connection is lost.
-spec take_over(connecting | accepting, ssl:sslsocket(), Key :: <<_:256>>, RingBytes :: pos_integer(), Deadline :: integer()) ->
          {ok, Socket :: port(), Port :: port(), Cipher :: binary()} | {error, Reason :: term()}.
take_over(Role, Tls, Key, RingBytes, Deadline) ->
    then(let_go(close(Tls, Deadline)),
         fun(Socket, Read) ->
                 Nodelay = beamway_stream_tcp:nodelay(),
                 case {inet:setopts(Socket, [binary, {active, false}, {packet, raw}]), prim_inet:getfd(Socket)} of
                     {ok, {ok, Fd}} ->
                         Linked = meet(Role, Socket, Read, beamway_encrypt:place(Fd, [{<<0:64>>, Key}], <<>>), RingBytes, Deadline),
                         _ = inet:setopts(Socket, [Nodelay]),
                         ok = beamway_stream_tcp:bound(Socket, Role),
                         then(Linked, fun(Port, Cipher) -> {ok, Socket, Port, Cipher} end);
                     {_, _} ->
                         {error, closed}
                 end
         end).

%% ssl restarts its timeout whenever anything arrives, such as half a record, so a separate process enforces the deadline. When this process exits,
%% ssl's side of the connection is closed as well.
close(Tls, Deadline) ->
    Self = self(),
    {Closer, Monitor} = spawn_monitor(fun() -> Self ! {closed, self(), ssl:close(Tls, {Self, left(Deadline)})} end),
    receive
        {closed, Closer, Closed} ->
            _ = demonitor(Monitor, [flush]),
            Closed;
        {'DOWN', Monitor, process, Closer, Reason} -> {error, Reason}
    after left(Deadline) ->
        exit(Closer, kill),
        _ = demonitor(Monitor, [flush]),
        {error, timeout}
    end.

let_go({ok, Socket}) -> {ok, Socket, <<>>};
let_go({ok, Socket, Read}) -> {ok, Socket, Read};
let_go({error, Reason}) -> {error, Reason};
let_go(ok) -> {error, closed}.

%% The calling side acts as the TLS client.
meet(connecting, Socket, Read, Place, RingBytes, Deadline) ->
    then(await_ready(Socket, Read, Deadline), fun() -> beamway_establish:connect(tls, Place, <<0:128>>, RingBytes, max(1, left(Deadline))) end);
meet(accepting, Socket, <<>>, Place, RingBytes, Deadline) ->
    %% If the socket's port still held a ready byte, that byte would arrive after the driver's first record.
    then(await_hello(Socket, ?READY_FIRST_MS, Deadline),
         fun(Hello) -> then(beamway_stream_tcp:sent(Socket, left(Deadline)), fun() -> accept(<<Place/binary, Hello/binary>>, RingBytes, Deadline) end) end);
meet(accepting, _Socket, _Read, _Place, _RingBytes, _Deadline) ->
    {error, <<"the peer went on before this node was ready">>}.

%% @private Listens, and waits for the client.
-spec accept(Place :: binary(), RingBytes :: pos_integer(), Deadline :: integer()) -> {ok, port(), Cipher :: binary()} | {error, Reason :: binary()}.
accept(Place, RingBytes, Deadline) ->
    then(beamway_establish:listen(tls, Place, RingBytes),
         fun(Port, _Listener) ->
                 case beamway_establish:accept(tls, Port, Deadline) of
                     {ok, Cipher} -> {ok, Port, Cipher};
                     {error, Reason} -> beamway_port:close(Port), {error, Reason}
                 end
         end).

await_ready(Socket, <<>>, Deadline) ->
    then(gen_tcp:recv(Socket, 0, left(Deadline)), fun(Read) -> await_ready(Socket, Read, Deadline) end);
await_ready(_Socket, Read, _Deadline) ->
    case << <<Byte>> || <<Byte>> <= Read, Byte =/= ?READY >> of
        <<>> -> ok;
        _ -> {error, <<"something else than the word that begins it">>}
    end.

await_hello(Socket, WaitMs, Deadline) ->
    case {gen_tcp:send(Socket, [?READY]), left(Deadline)} of
        {ok, Left} ->
            case gen_tcp:recv(Socket, 0, min(WaitMs, Left)) of
                {error, timeout} when Left > WaitMs -> await_hello(Socket, min(2 * WaitMs, ?READY_LAST_MS), Deadline);
                Received -> Received
            end;
        {{error, Reason}, _Left} ->
            {error, Reason}
    end.

left(Deadline) -> max(0, Deadline - erlang:monotonic_time(millisecond)).
