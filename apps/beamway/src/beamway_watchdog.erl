%% SPDX-License-Identifier: Apache-2.0
%% @doc Tells a connection over a ring that its peer is gone.
%%
%% The handshake's TCP socket stays open as long as the connection; nothing is sent on it. A
%% watchdog owns it, reads and discards. When the socket closes the peer may have left last words in
%% the ring: they are delivered first, for at most a second, and only then the connection process
%% is ended with the reason `connection_closed', which nodedown shows for a stock connection in
%% every release. (dist_util would give that for a message `{tcp_closed, Socket}' in OTP 25, but
%% `tcp_closed' in OTP 27.)
%%
%% It is linked to the connection process: neither outlives the other, and the socket closes with
%% them, which is how the peer hears of it.
%%
%% It waits hibernated: so it does not hold the code that it was started with, which a later load of this
%% module would purge, and the link with it.
-module(beamway_watchdog).

-export([start/2]).
-export([init/3, discard/2]).

-define(DRAIN_MS, 1000).
-define(SILENCE_MS, 50).
-define(LOOK_MS, 5).
-define(PACKETS, 100).

%% @doc Gives the socket of the calling connection process to a new watchdog.
-spec start(Socket :: port(), Port :: port()) -> ok | {error, inet:posix() | closed | badarg}.
start(Socket, Port) ->
    Watchdog = spawn_opt(?MODULE, init, [self(), Socket, Port], [link, {priority, max}]),
    case inet_tcp:controlling_process(Socket, Watchdog) of
        ok ->
            Watchdog ! {self(), go},
            ok;
        {error, Reason} ->
            %% The caller ends now, and the watchdog with it.
            {error, Reason}
    end.

%% @private
-spec init(pid(), port(), port()) -> no_return().
init(Connection, Socket, Port) ->
    receive
        {Connection, go} -> watch(Socket, Port)
    end.

watch(Socket, Port) ->
    case inet:setopts(Socket, [{active, ?PACKETS}]) of
        ok -> wait(Socket, Port);
        {error, _} -> peer_gone(Port)
    end.

%% No timeout: the socket's end and the connection's end both end this.
-spec wait(port(), port()) -> no_return().
wait(Socket, Port) ->
    erlang:hibernate(?MODULE, discard, [Socket, Port]).

%% @private Wakes with a message.
-spec discard(port(), port()) -> no_return().
discard(Socket, Port) ->
    receive
        {tcp_passive, Socket} -> watch(Socket, Port);
        {tcp_closed, Socket} -> peer_gone(Port);
        _ -> wait(Socket, Port)
    end.

peer_gone(Port) ->
    Now = erlang:monotonic_time(millisecond),
    drain(Port, -1, Now + ?DRAIN_MS, Now + ?SILENCE_MS),
    exit(connection_closed).

%% A peer that ends in order finishes its ring, maybe a little after its socket. One that was killed
%% never does: then silence is the end, also in the middle of a frame.
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
