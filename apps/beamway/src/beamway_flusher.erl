%% SPDX-License-Identifier: Apache-2.0
%% @doc Sends what a port of the driver has gathered, once a round of the run queue, and holds senders that fill the link.
%%
%% What processes send to a peer is gathered in the port, which sends one message to this process. It has normal priority, so it
%% runs when those have run that were to run before it, and what they have sent goes out by one system call.
%% One flusher a link, linked to the connection process.
%%
%% A sender with more than 1 MB beyond its message under way is held: suspended here, and resumed when half of that is left. A
%% port that stays busy would suspend all senders, also those of small messages. But only a sender that the VM itself suspends is held: the
%% port becomes busy for some milliseconds, and a short-lived process checks whether the VM suspends the sender meanwhile. A process that sends with
%% `nosuspend' or has `async_dist' set is not suspended, so it continues. When the flusher ends, ERTS resumes the processes that it suspended.
%%
%% As {@link beamway_poller}: it calls this module anew for each message, and waits hibernated if it waits long, so it does not
%% hold the code that it was started with.
-module(beamway_flusher).

-export([start/1, of_this/0, end_with/2]).
-export([init/2, wait/1, ask/4]).

-define(START_MS, 2000).
-define(IDLE_MS, 1000).
-define(WATCH_MS, 50).
-define(LOOK_MS, 1).

%% @doc Starts the flusher of the calling connection process' port.
-spec start(port()) -> {ok, pid()} | {error, no_flusher}.
start(Port) ->
    Flusher = spawn_opt(?MODULE, init, [self(), Port], [link]),
    receive
        {Flusher, active} ->
            _ = put(?MODULE, Flusher),
            {ok, Flusher}
    after ?START_MS ->
        {error, no_flusher}
    end.

%% @doc The flusher that the calling connection process has started.
-spec of_this() -> pid().
of_this() -> get(?MODULE).

%% @doc Whoever closes that socket, which the flusher owns, ends the connection, as if OTP's own port carried it.
-spec end_with(pid(), port()) -> ok.
end_with(Flusher, Socket) ->
    Flusher ! {end_with, Socket},
    ok.

%% @private
-spec init(pid(), port()) -> no_return().
init(Connection, Port) ->
    ok = beamway_port:flush(Port),
    Connection ! {self(), active},
    wait(Port).

%% @private The connection's end ends this.
-spec wait(port()) -> no_return().
wait(Port) ->
    receive
        Message -> ok = handle(Message, Port), ?MODULE:wait(Port)
    after idle_ms() ->
        _ = put(slept_at_ms, erlang:monotonic_time(millisecond)),
        erlang:hibernate(?MODULE, wait, [Port])
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

%% A port that is closed gives badarg: the connection ends.
handle(Message, Port) ->
    try handle_open(Message, Port) of
        _ -> ok
    catch
        error:badarg -> exit(normal)
    end.

handle_open(flush, Port) -> beamway_port:flush(Port);
handle_open({ask, Sender, Key, Patience}, _) -> begin_asking(Sender, Key, Patience);
handle_open({answer, Sender, Key, Answer}, Port) -> answer(Port, Sender, Key, Answer);
handle_open({hold, Sender}, _) -> hold(Sender);
handle_open({release, Sender}, _) -> release(Sender);
handle_open(watch, _) -> _ = erlang:send_after(?WATCH_MS, self(), look), ok;
handle_open(look, Port) -> beamway_port:watch(Port) andalso handle_open(watch, Port);
handle_open(Message, Port) -> beamway_resume:handle(Message, Port) =:= gave_up andalso exit(connection_closed).

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
ask(Flusher, Sender, Key, Looks) ->
    case process_info(Sender, status) of
        {status, suspended} -> Flusher ! {answer, Sender, Key, suspended}, ok;
        undefined -> Flusher ! {answer, Sender, Key, gone}, ok;
        _ when Looks > 0 -> receive after ?LOOK_MS -> ask(Flusher, Sender, Key, Looks - 1) end;
        _ -> Flusher ! {answer, Sender, Key, not_suspended}, ok
    end.
