%% SPDX-License-Identifier: Apache-2.0
%% @doc Accepts TCP connections for a TLS carrier and offers each to net_kernel, as `tls'.
%%
%% The connection process that net_kernel starts performs the TLS handshake, so a slow or hostile peer does not delay any other, and net_setuptime
%% limits the handshake as for every connection.
-module(beamway_tls_acceptor).

-include_lib("kernel/include/logger.hrl").

-export([start/2]).
-export([loop/3]).

%% How often this process switches to the newest code while no caller arrives, so that loading new code does not kill it.
-define(RENEW_MS, 2000).
%% Errors that go away once another process releases resources. If this process exited because of them, net_kernel would immediately start the next
%% one, in an endless loop.
-define(PASSES(Reason), Reason =:= emfile; Reason =:= enfile; Reason =:= system_limit; Reason =:= enobufs; Reason =:= enomem).
-define(PAUSE_MS, 100).

%% @doc Starts the process for net_kernel, which is linked to it and starts another one when it exits.
-spec start(beamway_stream:family(), Listen :: port()) -> pid().
start(Family, Listen) ->
    spawn_opt(?MODULE, loop, [self(), Family, Listen], [link, {priority, max}]).

%% @private
-spec loop(pid(), beamway_stream:family(), port()) -> no_return().
loop(Kernel, Family, Listen) ->
    case Family:accept(Listen, ?RENEW_MS) of
        {ok, Socket} ->
            _ = erase(?MODULE),
            Kernel ! {accept, self(), Socket, Family:family(), tls},
            hand_over(Kernel, Socket),
            ?MODULE:loop(Kernel, Family, Listen);
        {error, timeout} ->
            ?MODULE:loop(Kernel, Family, Listen);
        {error, Reason} when ?PASSES(Reason) ->
            _ = put(?MODULE, told) =:= told orelse tell(Reason),
            receive after ?PAUSE_MS -> ?MODULE:loop(Kernel, Family, Listen) end;
        {error, Reason} ->
            exit({accept, Reason})
    end.

%% Logs the error once, until a connection is accepted again. The reason is not translated into text, because the module for that may not be loaded,
%% and there is no descriptor left for loading it.
tell(Reason) ->
    ?LOG_WARNING("beamway: cannot accept connections: ~ts; callers wait, and this node tries again ten times a second", [Reason]).

%% Needs no timeout, because net_kernel is linked and answers every offer.
hand_over(Kernel, Socket) ->
    receive
        {Kernel, controller, Connection} ->
            _ = inet_tcp:controlling_process(Socket, Connection), % if this fails, the connection process will find the socket closed
            Connection ! {self(), controller},
            ok;
        {Kernel, unsupported_protocol} ->
            exit(unsupported_protocol)
    end.
