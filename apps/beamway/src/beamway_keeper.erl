%% SPDX-License-Identifier: Apache-2.0
%% @doc The process of a link of the driver, beside the connection process, to which it is linked. It sends what the port has gathered, polls the
%% port, holds senders that fill the link, and owns the socket.
%%
%% Sending: what processes send to a peer is gathered in the port, which sends `flush' to this process. It has normal priority, so it
%% runs when those have run that were to run before it, and what they have sent goes out by one system call.
%%
%% Polling (option `poll_us'): for a short while the port is polled instead of letting the node sleep. The driver decides when that is worth it
%% (native/link/spin.h) and sends `look'; each poll is one short port command. Between two polls whoever else can run on this scheduler runs first.
%%
%% Holding: a sender with more than 1 MB beyond its message under way is suspended here, and resumed when half of that is left. A
%% port that stays busy would suspend all senders, also those of small messages. But only a sender that the VM itself suspends is held: the
%% port becomes busy for some milliseconds, and a short-lived process checks whether the VM suspends the sender meanwhile. A process that sends with
%% `nosuspend' or has `async_dist' set is not suspended, so it continues. When the keeper ends, ERTS resumes the processes that it suspended.
%%
%% The socket: whoever closes the socket of a connection that carries the data ends the connection, as if OTP's own port carried it. The stream
%% beside a ring stays open as long as the connection; nothing is sent on it but the kernel's keepalive, so what comes is thrown away. When it closes, the peer
%% may have left last words in the ring: they are delivered first, for at most a second, and only then the connection process
%% is ended with the reason `connection_closed', which nodedown shows for a stock connection in every release. (dist_util would give that for a
%% message `{tcp_closed, Stream}' in OTP 25, but `tcp_closed' in OTP 27.) {@link beamway_resume} gives the link another connection.
%%
%% It calls this module anew for each message, and waits hibernated if it waits long. So it does not hold the code that it was started with, which
%% a later load of this module would purge, and the link with it.
-module(beamway_keeper).

-export([start/3, of_this/0]).
-export([init/4, wait/2, poll/2, ask/4]).

-define(START_MS, 2000).
-define(IDLE_MS, 1000).
-define(WATCH_MS, 50).
-define(LOOK_MS, 1).
-define(PEER_LOOK_MS, 5).
-define(DRAIN_MS, 1000).
-define(SILENCE_MS, 500).

%% @doc Starts the keeper of the calling connection process' link, gives it the stream, and has it activate the port.
-spec start(beamway_resume:link(), beamway_stream:stream(), PollUs :: non_neg_integer()) -> ok | {error, Reason :: term()}.
start(Link, Stream, PollUs) ->
    Keeper = spawn_opt(?MODULE, init, [self(), Link, Stream, PollUs], [link, {message_queue_data, off_heap}]),
    case beamway_stream:give(Stream, Keeper) of
        ok ->
            Keeper ! {self(), go},
            _ = put(?MODULE, Keeper),
            receive {Keeper, active} -> ok after ?START_MS -> {error, no_keeper} end;
        {error, Reason} ->
            %% The caller ends now, and the keeper with it.
            {error, Reason}
    end.

%% @doc The keeper that the calling connection process has started.
-spec of_this() -> pid().
of_this() -> get(?MODULE).

%% @private
-spec init(pid(), beamway_resume:link(), beamway_stream:stream(), PollUs :: non_neg_integer()) -> no_return().
init(Connection, Link, Stream, PollUs) ->
    receive {Connection, go} -> ok end,
    ok = beamway_port:flush(port(Link)),
    ok = beamway_port:activate(port(Link), PollUs),
    Connection ! {self(), active},
    wait(Link, watched(Link, Stream)).

port({ring, Port}) -> Port;
port(Port) -> Port.

%% @private The connection's end ends this.
-spec wait(beamway_resume:link(), beamway_stream:stream() | none) -> no_return().
wait(Link, Stream) ->
    receive
        look -> poll(Link, Stream);
        Message -> ?MODULE:wait(Link, handled(Message, Link, Stream))
    after idle_ms() ->
        _ = put(slept_at_ms, erlang:monotonic_time(millisecond)),
        erlang:hibernate(?MODULE, wait, [Link, Stream])
    end.

%% How long this process waits awake. If it is rarely needed it sleeps again at once, because otherwise a second turn would follow each message
%% after a second. In the process dictionary, so that an older or newer version of this module can go on from any state.
idle_ms() ->
    case erase(slept_at_ms) of
        undefined ->
            case get(idle_ms) of undefined -> ?IDLE_MS; Ms -> Ms end;
        SleptAtMs ->
            Ms = case erlang:monotonic_time(millisecond) - SleptAtMs < ?IDLE_MS of true -> ?IDLE_MS; false -> 0 end,
            _ = put(idle_ms, Ms),
            Ms
    end.

%% @private
-spec poll(beamway_resume:link(), beamway_stream:stream() | none) -> no_return().
poll(Link, Stream) ->
    try beamway_port:look(port(Link)) of
        asleep ->
            ?MODULE:wait(Link, Stream);
        again ->
            erlang:yield(),
            receive
                Message -> ?MODULE:poll(Link, handled(Message, Link, Stream))
            after 0 ->
                ?MODULE:poll(Link, Stream)
            end
    catch
        error:badarg -> exit(normal)
    end.

%% A port that is closed gives badarg: the connection ends.
handled(Message, Link, Stream) ->
    try handle(Message, Link, Stream)
    catch error:badarg -> exit(normal)
    end.

%% The stream after the message.
handle(flush, Link, Stream) -> ok = beamway_port:flush(port(Link)), Stream;
handle(look, _, Stream) -> Stream; % it is polled already
handle({ask, Sender, Key, Patience}, _, Stream) -> _ = begin_asking(Sender, Key, Patience), Stream;
handle({answer, Sender, Key, Answer}, Link, Stream) -> _ = answer(port(Link), Sender, Key, Answer), Stream;
handle({hold, Sender}, _, Stream) -> _ = hold(Sender), Stream;
handle({release, Sender}, _, Stream) -> _ = release(Sender), Stream;
handle(watch, _, Stream) -> _ = erlang:send_after(?WATCH_MS, self(), watch_now), Stream;
handle(watch_now, Link, Stream) -> _ = beamway_port:watch(port(Link)) andalso handle(watch, Link, Stream), Stream;
handle({stream, Socket}, {ring, _} = Link, _) -> watched(Link, Socket);
handle(look_at_peer, {ring, Port}, none) ->
    _ = is_over(Port) andalso peer_gone(Port),
    _ = erlang:send_after(?PEER_LOOK_MS, self(), look_at_peer),
    none;
handle(Message, {ring, _} = Link, Stream) -> beside(beamway_stream:event(Message), Message, Link, Stream);
handle(Message, Link, Stream) -> resumed(beamway_resume:handle(Message, Link), Link, Stream).

%% ---- senders ----

%% Held before the port is told: it is busy until then, so the VM does not resume the sender in between.
answer(Port, Sender, Key, Answer) ->
    _ = Answer =:= suspended andalso hold(Sender),
    beamway_port:answer(Port, Key, Answer) orelse release(Sender).

%% The sender may have ended. Asynchronous: it may be running, and this process has others to serve.
hold(Sender) ->
    try erlang:suspend_process(Sender, [asynchronous, unless_suspending])
    catch error:badarg -> false
    end.

release(Sender) ->
    try erlang:resume_process(Sender)
    catch error:badarg -> false
    end.

%% In a process of its own, because a sender that runs answers late. Without room for a process nobody looks.
begin_asking(Sender, Key, Patience) ->
    try
        spawn_link(?MODULE, ask, [self(), Sender, Key, Patience])
    catch
        error:system_limit -> erlang:send_after(?LOOK_MS * Patience, self(), {answer, Sender, Key, not_suspended})
    end.

%% @private Whether the VM suspends the sender while the port is busy.
-spec ask(pid(), pid(), non_neg_integer(), non_neg_integer()) -> ok.
ask(Keeper, Sender, Key, Looks) ->
    case process_info(Sender, status) of
        {status, suspended} -> Keeper ! {answer, Sender, Key, suspended}, ok;
        undefined -> Keeper ! {answer, Sender, Key, gone}, ok;
        _ when Looks > 0 -> receive after ?LOOK_MS -> ask(Keeper, Sender, Key, Looks - 1) end;
        _ -> Keeper ! {answer, Sender, Key, not_suspended}, ok
    end.

%% ---- the socket ----

%% What is kept of the stream.
watched({ring, Port}, Stream) ->
    case beamway_stream:watch(Stream) of
        ok -> Stream;
        {error, _} -> peer_gone(Port)
    end;
watched(_Port, Socket) ->
    ok = beamway_resume:watch(Socket),
    none.

%% The stream beside a ring.
beside(data, _, _, Stream) ->
    Stream;
beside(passive, _, Link, Stream) ->
    watched(Link, Stream);
beside(closed, Message, {ring, Port} = Link, Stream) ->
    case {is_of_stream(Message, Stream), get(session)} of
        {false, _} ->
            Stream;
        {true, undefined} ->
            peer_gone(Port);
        {true, _} ->
            %% The stream alone is lost, maybe: the ring still carries the data, and beamway_resume finds out whether the peer lives.
            ok = close(Stream),
            self() ! look_at_peer,
            resumed(beamway_resume:handle({lost, connection_finished}, Link), Link, none)
    end;
beside(other, Message, Link, Stream) ->
    resumed(beamway_resume:handle(Message, Link), Link, Stream).

%% An older one may have told of its end late.
is_of_stream({tcp_closed, Socket}, Stream) -> Socket =:= Stream;
is_of_stream(_OfTls, Stream) -> not is_port(Stream).

resumed(gave_up, {ring, Port}, _Stream) -> peer_gone(Port);
resumed(gave_up, _Port, _Stream) -> exit(connection_closed);
resumed(detached, {ring, _}, Stream) -> ok = close(Stream), none;
resumed(_, _Link, Stream) -> Stream.

%% The end of TLS may wait for the peer.
close(Socket) when is_port(Socket) ->
    beamway_port:close(Socket);
close({beamway_stream_tls, Tls}) ->
    _ = spawn(ssl, close, [Tls]),
    ok;
close(none) ->
    ok.

%% Over shared memory the driver sees that the peer's process has ended.
is_over(Port) -> beamway_port:receive_some(Port) =:= finished.

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
