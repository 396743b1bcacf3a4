%% SPDX-License-Identifier: Apache-2.0
%% @doc Sends what a port of the driver has gathered, once a round of the run queue, and holds senders that fill the link.
%%
%% What processes send to a peer is gathered in the port, which sends one message to this process. It has normal priority, so it
%% runs when those have run that were to run before it, and what they have sent goes out by one system call.
%% One flusher a link, linked to the connection process.
%%
%% A sender with more than 1 MB beyond its message under way is suspended here, and resumed when half of that is left: a
%% busy port would suspend all senders, also those of small messages. When this process ends, ERTS resumes whom it suspended.
%%
%% As {@link beamway_poller}: it calls this module anew for each message, and waits hibernated if it waits long, so it does not
%% hold the code that it was started with.
-module(beamway_flusher).

-export([start/1, end_with/2]).
-export([init/2, wait/1]).

-define(START_MS, 2000).
-define(IDLE_MS, 1000).

%% @doc Starts the flusher of the calling connection process' port.
-spec start(port()) -> {ok, pid()} | {error, no_flusher}.
start(Port) ->
    Flusher = spawn_opt(?MODULE, init, [self(), Port], [link]),
    receive
        {Flusher, active} -> {ok, Flusher}
    after ?START_MS ->
        {error, no_flusher}
    end.

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
        flush -> flush(Port);
        {hold, Sender} -> _ = hold(Sender), ?MODULE:wait(Port);
        {release, Sender} -> _ = release(Sender), ?MODULE:wait(Port);
        {end_with, Socket} -> _ = monitor(port, Socket), ?MODULE:wait(Port);
        {'DOWN', _, port, _, _} -> exit(connection_closed);
        _ -> ?MODULE:wait(Port)
    after ?IDLE_MS ->
        erlang:hibernate(?MODULE, wait, [Port])
    end.

flush(Port) ->
    try beamway_port:flush(Port) of
        ok -> ?MODULE:wait(Port)
    catch
        error:badarg -> exit(normal) % the port is closed: the connection ends
    end.

%% The sender may have ended. Asynchronous: it may be running, and this process has others to serve.
hold(Sender) ->
    try erlang:suspend_process(Sender, [asynchronous, unless_suspending])
    catch error:badarg -> false
    end.

release(Sender) ->
    try erlang:resume_process(Sender)
    catch error:badarg -> false
    end.
