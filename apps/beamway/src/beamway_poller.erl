%% SPDX-License-Identifier: Apache-2.0
%% @doc Polls a ring or a socket for a short while instead of letting the node sleep (option `poll_us').
%%
%% The driver decides when that is worth it (native/link/spin.h) and sends `look'; each poll is one
%% short port command. Between two polls whoever else can run on this scheduler runs first.
%% One poller per link of the driver, linked to the connection process.
%%
%% Between two polls it calls this module anew, and it waits hibernated: so it does not hold the code that it
%% was started with, which a later load of this module would purge, and the link with it.
-module(beamway_poller).

-export([start/2]).
-export([init/3, woken/1, poll/1]).

-define(START_MS, 2000).

%% @doc Activates the port of the calling connection process, with a poller if `PollUs' is above 0.
-spec start(port(), PollUs :: non_neg_integer()) -> ok | {error, no_poller}.
start(Port, 0) ->
    beamway_port:activate(Port, 0);
start(Port, PollUs) ->
    Poller = spawn_opt(?MODULE, init, [self(), Port, PollUs], [link, {message_queue_data, off_heap}]),
    receive
        {Poller, active} -> ok
    after ?START_MS ->
        {error, no_poller}
    end.

%% @private
-spec init(pid(), port(), pos_integer()) -> no_return().
init(Connection, Port, PollUs) ->
    ok = beamway_port:activate(Port, PollUs),
    Connection ! {self(), active},
    wait(Port).

%% No timeout: the connection's end ends this.
-spec wait(port()) -> no_return().
wait(Port) ->
    erlang:hibernate(?MODULE, woken, [Port]).

%% @private
-spec woken(port()) -> no_return().
woken(Port) ->
    receive
        look -> poll(Port);
        _ -> wait(Port)
    end.

%% @private
-spec poll(port()) -> no_return().
poll(Port) ->
    try beamway_port:look(Port) of
        again ->
            erlang:yield(),
            ?MODULE:poll(Port);
        asleep ->
            wait(Port)
    catch
        error:badarg -> exit(normal) % the port is closed: the connection ends
    end.
