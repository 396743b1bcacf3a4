%% SPDX-License-Identifier: Apache-2.0
%% @doc Tells a connection over a ring that its peer is gone.
%%
%% The handshake's stream stays open as long as the connection; nothing is sent on it but the
%% kernel's keepalive, so that no firewall on the way forgets it ({@link socket_options/0}). A
%% watchdog owns it, reads and discards. When it closes the peer may have left last words in
%% the ring: they are delivered first, for at most a second, and only then the connection process
%% is ended with the reason `connection_closed', which nodedown shows for a stock connection in
%% every release. (dist_util would give that for a message `{tcp_closed, Stream}' in OTP 25, but
%% `tcp_closed' in OTP 27.)
%%
%% It is linked to the connection process: neither outlives the other, and the stream closes with
%% them, which is how the peer hears of it.
%%
%% It waits hibernated: so it does not hold the code that it was started with, which a later load of this
%% module would purge, and the link with it.
-module(beamway_watchdog).

-export([start/2, of_this/0, socket_options/0]).
-export([init/3, discard/2]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(DRAIN_MS, 1000).
-define(SILENCE_MS, 500).
-define(LOOK_MS, 1).
-define(PEER_LOOK_MS, 5).

%% Of Linux, as everything about shared memory.
-define(IPPROTO_TCP, 6).
-define(TCP_KEEPIDLE, 4).
-define(TCP_KEEPINTVL, 5).
-define(KEEPALIVE_MAX_S, 15).

%% @doc Gives the stream of the calling connection process to a new watchdog.
-spec start(beamway_stream:stream(), Port :: port()) -> ok | {error, Reason :: term()}.
start(Stream, Port) ->
    Watchdog = spawn_opt(?MODULE, init, [self(), Stream, Port], [link, {priority, max}]),
    case beamway_stream:give(Stream, Watchdog) of
        ok ->
            Watchdog ! {self(), go},
            _ = put(?MODULE, Watchdog),
            ok;
        {error, Reason} ->
            %% The caller ends now, and the watchdog with it.
            {error, Reason}
    end.

%% @doc The watchdog that the calling connection process has started.
-spec of_this() -> pid().
of_this() -> get(?MODULE).

%% @doc Ticks go through the ring, so the socket carries nothing. The kernel sends keepalive probes as often
%% as a tick would come, or a firewall forgets the connection and nobody hears it close. The number of
%% unanswered probes that end the socket is the system's (9).
-spec socket_options() -> [inet:socket_setopt()].
socket_options() ->
    Seconds = <<(keepalive_s(kernel_env(net_ticktime, 60), kernel_env(net_tickintensity, 4))):32/native>>,
    [{keepalive, true}, {raw, ?IPPROTO_TCP, ?TCP_KEEPIDLE, Seconds}, {raw, ?IPPROTO_TCP, ?TCP_KEEPINTVL, Seconds}].

kernel_env(Name, Default) ->
    case application:get_env(kernel, Name) of
        {ok, Value} when is_integer(Value), Value > 0 -> Value;
        _ -> Default
    end.

keepalive_s(TickTimeS, Intensity) ->
    max(1, min(?KEEPALIVE_MAX_S, TickTimeS div Intensity)).

%% @private
-spec init(pid(), beamway_stream:stream(), port()) -> no_return().
init(Connection, Stream, Port) ->
    receive
        {Connection, go} -> watch(Stream, Port)
    end.

watch(Stream, Port) ->
    case beamway_stream:watch(Stream) of
        ok -> wait(Stream, Port);
        {error, _} -> peer_gone(Port)
    end.

%% No timeout: the stream's end and the connection's end both end this.
-spec wait(beamway_stream:stream() | none, port()) -> no_return().
wait(Stream, Port) ->
    erlang:hibernate(?MODULE, discard, [Stream, Port]).

%% @private Wakes with a message.
-spec discard(beamway_stream:stream() | none, port()) -> no_return().
discard(Stream, Port) ->
    receive
        Message ->
            case beamway_stream:event(Message) of
                closed -> closed(Message, Stream, Port);
                passive -> watch(Stream, Port);
                data -> wait(Stream, Port);
                other -> handle(Message, Stream, Port)
            end
    end.

%% The stream alone is lost, maybe: the ring still carries the data, and {@link beamway_resume} finds out whether the peer lives.
closed(Message, Stream, Port) ->
    case {of_stream(Message, Stream), get(session)} of
        {false, _} ->
            wait(Stream, Port);
        {true, undefined} ->
            peer_gone(Port);
        {true, _} ->
            ok = close(Stream),
            self() ! look,
            handle({lost, connection_finished}, none, Port)
    end.

%% An older one may have told of its end late.
of_stream({tcp_closed, Socket}, Stream) -> Socket =:= Stream;
of_stream(_OfTls, Stream) -> not is_port(Stream).

handle({stream, Socket}, _Stream, Port) ->
    watch(Socket, Port);
handle(look, none, Port) ->
    case is_over(Port) of
        true -> peer_gone(Port);
        false -> erlang:send_after(?PEER_LOOK_MS, self(), look), wait(none, Port)
    end;
handle(look, Stream, Port) ->
    wait(Stream, Port);
handle({'DOWN', _, port, _, _}, Stream, Port) ->
    wait(Stream, Port);
handle(Message, Stream, Port) ->
    case beamway_resume:handle(Message, {ring, Port}) of
        gave_up -> peer_gone(Port);
        detached -> ok = close(Stream), wait(none, Port);
        _ -> wait(Stream, Port)
    end.

%% The end of TLS may wait for the peer.
close(Socket) when is_port(Socket) ->
    beamway_port:close(Socket);
close({beamway_stream_tls, Tls}) ->
    _ = spawn(ssl, close, [Tls]),
    ok;
close(none) ->
    ok.

%% Over shared memory the driver sees that the peer's process has ended.
is_over(Port) ->
    try beamway_port:receive_some(Port) =:= finished
    catch error:badarg -> true
    end.

-spec peer_gone(port()) -> no_return().
peer_gone(Port) ->
    Now = erlang:monotonic_time(millisecond),
    drain(Port, -1, Now + ?DRAIN_MS, Now + ?SILENCE_MS),
    exit(connection_closed).

%% A peer that ends in order finishes its ring, maybe a little after its socket. One that was killed never does, but
%% where the driver sees that the process is gone the ring is finished when it is empty. Elsewhere silence is the end, also
%% in the middle of a frame.
drain(Port, Known, Deadline, Silent) ->
    Now = erlang:monotonic_time(millisecond),
    try beamway_port:receive_some(Port) of
        finished ->
            ok;
        {read, _} when Now >= Deadline ->
            ok;
        {read, Known} when Now >= Silent ->
            ok;
        {read, Known} ->
            receive after ?LOOK_MS -> ok end,
            drain(Port, Known, Deadline, Silent);
        {read, More} ->
            drain(Port, More, Deadline, Now + ?SILENCE_MS)
    catch
        error:badarg -> ok
    end.

-ifdef(TEST).

keepalive_s_test_() ->
    [?_assertEqual(Want, keepalive_s(TickTime, Intensity))
     || {Want, TickTime, Intensity} <- [{15, 60, 4}, {15, 600, 4}, {2, 8, 4}, {1, 1, 4}, {1, 40, 40}, {1, 5, 1000}]].

%% What the kernel then says of a real socket.
a_socket_has_them_test() ->
    {ok, Listen} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    ok = inet:setopts(Listen, socket_options()),
    ?assertEqual({ok, [{keepalive, true}, {raw, 6, 4, <<15:32/native>>}, {raw, 6, 5, <<15:32/native>>}]},
                 inet:getopts(Listen, [keepalive, {raw, 6, 4, 4}, {raw, 6, 5, 4}])),
    ok = gen_tcp:close(Listen).

%% Another attempt was faster: the connection of now is not touched.
a_late_attempt_leaves_the_stream_alone_test() ->
    {ok, Listen} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {active, false}]),
    {ok, Number} = inet:port(Listen),
    {ok, Stream} = gen_tcp:connect({127, 0, 0, 1}, Number, [{active, false}, {packet, 4}]),
    {ok, Peer} = gen_tcp:accept(Listen),
    Port = open_port({spawn, "cat"}, []),
    ok = start(Stream, Port),
    Watchdog = of_this(),
    Watchdog ! {session, #{}},
    Watchdog ! {detach, {self(), late}, 0},
    ?assertEqual({error, superseded}, receive {late, Reply} -> Reply after 5000 -> nothing end),
    ?assertEqual({error, timeout}, gen_tcp:recv(Peer, 0, 100)),
    unlink(Watchdog),
    exit(Watchdog, kill),
    ?assertEqual({error, closed}, gen_tcp:recv(Peer, 0, 5000)),
    true = port_close(Port),
    ok = gen_tcp:close(Listen).

-endif.
