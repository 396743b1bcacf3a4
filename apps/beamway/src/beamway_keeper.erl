%% SPDX-License-Identifier: Apache-2.0
%% @doc The process that serves a link of the driver, in addition to the connection process, to which it is linked. It flushes what the port has
%% gathered, polls the port, suspends senders that fill the link, and owns the socket.
%%
%% Sending: messages to a peer are gathered in the port, which sends `flush' to this process. This process has normal priority, so it runs after the
%% processes that were already scheduled, and everything that they have sent leaves in a single system call.
%%
%% Polling (option `poll_us'): for a short time this process polls the port instead of letting the node sleep. The driver decides when that is
%% worthwhile (native/link/spin.h) and sends `look'. Each poll is a short port command. Between two polls, the other runnable processes on this
%% scheduler run first.
%%
%% Suspending: a sender with more than 1 MB queued in addition to its message in progress is suspended here, and resumed once its queue has drained to
%% half of that. If the port instead stayed busy, all senders would be suspended, including those of small messages. But a sender is only suspended
%% here if the VM itself would suspend it: the port becomes busy for a few milliseconds, and a short-lived process checks whether the VM suspends the
%% sender in the meantime. A process that sends with `nosuspend' or has set `async_dist' is not suspended, so it continues. When the keeper exits,
%% ERTS resumes the processes that it had suspended.
%%
%% The socket: closing the socket of a connection that carries the data closes the connection, just as if OTP's own port carried it. The stream of a
%% link with a ring stays open as long as the connection. Nothing is sent on it except the kernel's keepalive probes, so data that arrives is dropped.
%% When the stream closes, the ring may still contain the peer's last messages, which are delivered first, for at most a second. Only then does the
%% connection process exit with the reason `connection_closed', which is what nodedown reports for a stock connection in every release. (dist_util
%% would give that reason for a message `{tcp_closed, Stream}' in OTP 25, but `tcp_closed' in OTP 27.) {@link beamway_resume} gives the link a new
%% connection.
%%
%% For each message this process makes a fully qualified call to its module, and it hibernates during long waits. It therefore does not keep running
%% the code that it was started with, which a later load of this module would purge together with the link.
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

%% @doc Starts the keeper for the link of the calling connection process, hands it the stream, and makes it activate the port.
-spec start(beamway_resume:link(), beamway_stream:stream(), PollUs :: non_neg_integer()) -> ok | {error, Reason :: term()}.
start(Link, Stream, PollUs) ->
    Keeper = spawn_opt(?MODULE, init, [self(), Link, Stream, PollUs], [link, {message_queue_data, off_heap}]),
    %% After an error the caller exits, and the keeper with it.
    beamway_result:then(beamway_stream:give(Stream, Keeper),
                        fun() ->
                                Keeper ! {self(), go},
                                _ = put(?MODULE, Keeper),
                                receive {Keeper, active} -> ok after ?START_MS -> {error, no_keeper} end
                        end).

%% @doc Returns the keeper that the calling connection process has started.
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

%% @private This process exits with the connection.
-spec wait(beamway_resume:link(), beamway_stream:stream() | none) -> no_return().
wait(Link, Stream) ->
    receive
        look -> poll(Link, Stream);
        Message -> ?MODULE:wait(Link, handled(Message, Link, Stream))
    after idle_ms() ->
        _ = put(slept_at_ms, erlang:monotonic_time(millisecond)),
        erlang:hibernate(?MODULE, wait, [Link, Stream])
    end.

%% Returns how long this process waits before it hibernates. If it is rarely needed, it hibernates again immediately, because otherwise it would be
%% scheduled a second time one second after each message. The value is in the process dictionary, so that an older or newer version of this module can
%% continue from any state.
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

%% A call with a closed port raises badarg. The connection is then closed as well, so this process exits.
handled(Message, Link, Stream) ->
    try handle(Message, Link, Stream)
    catch error:badarg -> exit(normal)
    end.

handle(flush, Link, Stream) -> ok = beamway_port:flush(port(Link)), Stream;
handle(look, _, Stream) -> Stream; % it is already being polled
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

%% Suspends the sender before it answers the port. The port stays busy until then, so the VM does not resume the sender in between.
answer(Port, Sender, Key, Answer) ->
    _ = Answer =:= suspended andalso hold(Sender),
    beamway_port:answer(Port, Key, Answer) orelse release(Sender).

%% The sender may have exited. The call is asynchronous, because the sender may be running, and this process must not wait for it.
hold(Sender) ->
    try erlang:suspend_process(Sender, [asynchronous, unless_suspending])
    catch error:badarg -> false
    end.

release(Sender) ->
    try erlang:resume_process(Sender)
    catch error:badarg -> false
    end.

%% The check runs in a separate process, because `process_info' has to wait for a sender that is running. If no process can be spawned, the check is
%% skipped.
begin_asking(Sender, Key, Patience) ->
    try
        spawn_link(?MODULE, ask, [self(), Sender, Key, Patience])
    catch
        error:system_limit -> erlang:send_after(?LOOK_MS * Patience, self(), {answer, Sender, Key, not_suspended})
    end.

%% @private Checks whether the VM suspends the sender while the port is busy.
-spec ask(pid(), pid(), non_neg_integer(), non_neg_integer()) -> ok.
ask(Keeper, Sender, Key, Looks) ->
    case process_info(Sender, status) of
        {status, suspended} -> Keeper ! {answer, Sender, Key, suspended}, ok;
        undefined -> Keeper ! {answer, Sender, Key, gone}, ok;
        _ when Looks > 0 -> receive after ?LOOK_MS -> ask(Keeper, Sender, Key, Looks - 1) end;
        _ -> Keeper ! {answer, Sender, Key, not_suspended}, ok
    end.

%% ---- the socket ----

watched({ring, Port}, Stream) ->
    case beamway_stream:watch(Stream) of
        ok -> Stream;
        {error, _} -> peer_gone(Port)
    end;
watched(_Port, Socket) ->
    ok = beamway_resume:watch(Socket),
    none.

%% Handles a message about the stream of a link with a ring.
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
            %% It may be that only the stream is lost: the ring still carries the data, and beamway_resume finds out whether the peer is alive.
            ok = close(Stream),
            self() ! look_at_peer,
            resumed(beamway_resume:handle({lost, connection_finished}, Link), Link, none)
    end;
beside(other, Message, Link, Stream) ->
    resumed(beamway_resume:handle(Message, Link), Link, Stream).

%% Returns whether the message is from this stream, because a message from an older one may arrive late.
is_of_stream({tcp_closed, Socket}, Stream) -> Socket =:= Stream;
is_of_stream(_OfTls, Stream) -> not is_port(Stream).

resumed(gave_up, {ring, Port}, _Stream) -> peer_gone(Port);
resumed(gave_up, _Port, _Stream) -> exit(connection_closed);
resumed(detached, {ring, _}, Stream) -> ok = close(Stream), none;
resumed(_, _Link, Stream) -> Stream.

%% Closing a TLS connection may block until the peer reacts.
close(Socket) when is_port(Socket) ->
    beamway_port:close(Socket);
close({beamway_stream_tls, Tls}) ->
    _ = spawn(ssl, close, [Tls]),
    ok;
close(none) ->
    ok.

%% Over shared memory the driver detects that the peer's process has exited.
is_over(Port) -> lists:member(beamway_port:receive_some(Port), [finished, exited]).

-spec peer_gone(port()) -> no_return().
peer_gone(Port) ->
    Now = erlang:monotonic_time(millisecond),
    case drain(Port, -1, Now + ?DRAIN_MS, Now + ?SILENCE_MS) of
        exited -> beamway_resume:exited();
        ok -> ok
    end,
    exit(connection_closed).

%% A peer that exits normally marks its ring as finished, perhaps slightly after its socket closes. A peer that was killed never does, but if the
%% driver sees that the process is gone, the ring is finished once it is empty. Otherwise silence marks the end, even in the middle of a frame.
drain(Port, Known, Deadline, Silent) ->
    Now = erlang:monotonic_time(millisecond),
    try beamway_port:receive_some(Port) of
        finished ->
            ok;
        exited ->
            exited;
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
