%% SPDX-License-Identifier: Apache-2.0
%% @doc Looks at a ring for a short while instead of letting the node sleep (option `poll_us').
%%
%% The driver decides when that is worth it (native/link/spin.h) and sends `look'; each look is one
%% short port command. Between two looks whoever else can run on this scheduler runs first.
%% One looker a shm link, linked to the connection process.
%%
%% Between two looks it calls this module anew, and it waits hibernated: so it does not hold the code that it
%% was started with, which a later load of this module would purge, and the link with it.
-module(beamway_looker).

-export([start/2]).
-export([init/3, woken/1, look/1]).

-define(START_MS, 2000).

%% @doc Activates the port of the calling connection process, with a looker if `PollUs' is above 0.
-spec start(port(), PollUs :: non_neg_integer()) -> ok | {error, no_looker}.
start(Port, 0) ->
    beamway_port:activate(Port, 0);
start(Port, PollUs) ->
    Looker = spawn_opt(?MODULE, init, [self(), Port, PollUs], [link, {message_queue_data, off_heap}]),
    receive
        {Looker, active} -> ok
    after ?START_MS ->
        {error, no_looker}
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
        look -> look(Port);
        _ -> wait(Port)
    end.

%% @private
-spec look(port()) -> no_return().
look(Port) ->
    try beamway_port:look(Port) of
        again ->
            erlang:yield(),
            ?MODULE:look(Port);
        asleep ->
            wait(Port)
    catch
        error:badarg -> exit(normal) % the port is closed: the connection ends
    end.
