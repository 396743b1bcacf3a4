%% SPDX-License-Identifier: Apache-2.0
%% @doc Accepts TCP connections for a TLS carrier and offers each to net_kernel, as `tls'.
%%
%% The TLS handshake is left to the connection process that net_kernel starts: a slow or hostile peer
%% keeps nobody waiting, and its time is limited by net_setuptime like that of every connection.
-module(beamway_tls_acceptor).

-export([start/2]).
-export([loop/3]).

%% How often it calls the newest code while nobody calls: so a later load does not end it.
-define(RENEW_MS, 2000).

%% @doc For net_kernel, which is linked and starts another when this one ends.
-spec start(beamway_stream:family(), Listen :: port()) -> pid().
start(Family, Listen) ->
    spawn_opt(?MODULE, loop, [self(), Family, Listen], [link, {priority, max}]).

%% @private
-spec loop(pid(), beamway_stream:family(), port()) -> no_return().
loop(Kernel, Family, Listen) ->
    case Family:accept(Listen, ?RENEW_MS) of
        {ok, Socket} ->
            Kernel ! {accept, self(), Socket, Family:family(), tls},
            hand_over(Kernel, Socket),
            ?MODULE:loop(Kernel, Family, Listen);
        {error, timeout} ->
            ?MODULE:loop(Kernel, Family, Listen);
        {error, Reason} ->
            exit({accept, Reason})
    end.

%% No timeout: net_kernel is linked, and answers every offer.
hand_over(Kernel, Socket) ->
    receive
        {Kernel, controller, Connection} ->
            _ = inet_tcp:controlling_process(Socket, Connection), % else it finds the socket closed
            Connection ! {self(), controller},
            ok;
        {Kernel, unsupported_protocol} ->
            exit(unsupported_protocol)
    end.
