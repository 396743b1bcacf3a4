%% SPDX-License-Identifier: Apache-2.0
%% @doc Accepts TCP connections for a TLS carrier and offers each to net_kernel, as `tls'.
%%
%% The connection process that net_kernel starts does the TLS handshake, so a slow or hostile peer delays nobody, and net_setuptime limits its
%% time like that of every connection.
-module(beamway_tls_acceptor).

-include_lib("kernel/include/logger.hrl").

-export([start/2]).
-export([loop/3]).

%% How often it calls the newest code while no caller arrives, so that a later load does not end it.
-define(RENEW_MS, 2000).
%% Errors that pass when something else ends. If this process ended because of them, net_kernel would start the next one at once, in an endless loop.
-define(PASSES(Reason), Reason =:= emfile; Reason =:= enfile; Reason =:= system_limit; Reason =:= enobufs; Reason =:= enomem).
-define(PAUSE_MS, 100).

%% @doc For net_kernel, which is linked and starts another process when this one ends.
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

%% Logged once until a connection is accepted. The reason is not translated to text, because the module for that may not be loaded, and no
%% descriptor is left to load it.
tell(Reason) ->
    ?LOG_WARNING("beamway: cannot accept connections: ~ts; callers wait, and this node tries again ten times a second", [Reason]).

%% Needs no timeout, because net_kernel is linked and answers every offer.
hand_over(Kernel, Socket) ->
    receive
        {Kernel, controller, Connection} ->
            _ = inet_tcp:controlling_process(Socket, Connection), % if this fails, the connection process finds the socket closed
            Connection ! {self(), controller},
            ok;
        {Kernel, unsupported_protocol} ->
            exit(unsupported_protocol)
    end.
