%% SPDX-License-Identifier: Apache-2.0
%% @doc A stream over a TLS connection, through the public interface of the ssl application.
%%
%% Packets always have a four-byte length, as in OTP's `inet_tls'. When the stream carries the data, the distribution controller is a process,
%% {@link beamway_tls_controller}.
%%
%% A node's distribution starts before its applications can, so the first connection starts ssl. While the node boots, this has to wait until kernel
%% is up.
-module(beamway_stream_tls).
-behaviour(beamway_stream).

-include_lib("kernel/include/logger.hrl").
-include_lib("kernel/include/net_address.hrl").

-export([listen/3, accept_loop/2, allowed/2]).
-export([connect/4, accept/1, kind/1, send/2, recv/2, peername/1, setopts/2, getopts/2,
         carry/3, activate/2, start/3, tick/2, stats/2, keep/1, give/2, watch/1]).

-import(beamway_result, [then/2]).

-define(PACKETS, 100).
-define(LOOK_MS, 20).
-define(LAST_MS, 500).
%% The key in the process dictionary of a calling connection process. Its value is the peer's address, which stays there until something has arrived
%% from the peer.
-define(UNHEARD, {?MODULE, unheard}).

-type stream() :: {?MODULE, ssl:sslsocket()}.

%% @doc Fails, and with it the start of the node, if the options are invalid: such a node must not run without TLS.
-spec listen(beamway_stream:family(), atom(), string()) ->
          {ok, {port(), #net_address{}, integer()}} | {error, term()}.
listen(Family, Name, Host) ->
    case beamway_tls_options:check() of
        ok ->
            then(inet_tcp_dist:gen_listen(Family, Name, Host),
                 fun({Listen, #net_address{address = {_, Port}} = Address, Creation}) ->
                         ok = beamway_links:listens(tls, Port),
                         {ok, {Listen, Address#net_address{protocol = tls}, Creation}}
                 end);
        {error, Problem} ->
            ?LOG_ERROR("beamway: ~ts; the distribution is not started", [Problem]),
            {error, {ssl_dist_options, unicode:characters_to_list(Problem)}}
    end.

%% @doc Starts the process that accepts connections for the calling net_kernel.
-spec accept_loop(beamway_stream:family(), port()) -> pid().
accept_loop(Family, Listen) ->
    beamway_tls_acceptor:start(Family, Listen).

%% @private
-spec connect(beamway_stream:family(), inet:ip_address(), inet:port_number(), string()) ->
          {ok, stream()} | {error, term()}.
connect(Family, Ip, TcpPort, Host) ->
    Peer = [inet:ntoa(Ip), $:, integer_to_list(TcpPort)],
    _ = put(?UNHEARD, Peer),
    secured(Peer, client,
            fun(Options, TimeoutMs) ->
                    ssl:connect(Ip, TcpPort,
                                application:get_env(kernel, inet_dist_connect_options, [])
                                    ++ [Family:family() | socket_options()]
                                    ++ beamway_tls_options:for_host(Host, Options),
                                TimeoutMs)
            end).

%% @private
-spec accept(port()) -> {ok, stream()} | {error, term()}.
accept(Socket) ->
    secured(beamway_stream:peer_text(Socket), server,
            fun(Options, TimeoutMs) ->
                    %% ssl uses the mode and the packet size of the socket.
                    then(then(inet:setopts(Socket, socket_options()), fun() -> inet:peername(Socket) end),
                         fun({Ip, _}) -> ssl:handshake(Socket, beamway_tls_options:for_caller(Ip, Options), TimeoutMs) end)
            end).

%% @doc Returns the nodes allowed by net_kernel for whose host the caller's certificate is valid, or all of them if this node's options do not
%% require a certificate.
-spec allowed(stream(), [node() | string()]) -> [node() | string()].
allowed({?MODULE, Socket}, Allowed) ->
    case ssl:peercert(Socket) of
        {ok, Certificate} -> beamway_tls_options:of_certificate(Certificate, Allowed);
        {error, no_peercert} -> Allowed;
        {error, _} -> []
    end.

socket_options() ->
    [binary, {active, false}, {packet, 4},
     beamway_stream_tcp:nodelay()].

%% Failing to reach a peer is not worth a warning, but rejecting an insecure one is.
secured(Peer, Role, Secure) ->
    TimeoutMs = net_kernel:connecttime(),
    %% When the time allowed for the whole connection setup has passed, dist_util kills this process without reporting why.
    WaitMs = TimeoutMs - min(?LAST_MS, TimeoutMs div 4),
    Deadline = erlang:monotonic_time(millisecond) + WaitMs,
    case ssl_is_up(Deadline) of
        true ->
            case beamway_tls_options:read(Role) of
                {ok, Options} -> ok = beamway_links:certificate_ends(Role, beamway_tls_options:expiry(Options)), stream(Peer, Role, Secure(Options, max(1, Deadline - erlang:monotonic_time(millisecond))));
                {error, Problem} -> refused(Peer, Problem)
            end;
        false ->
            refused(Peer, <<"the ssl application does not start">>)
    end.

stream(_Peer, _Role, {ok, Socket}) -> {ok, {?MODULE, Socket}};
stream(Peer, _Role, {error, Reason}) when not is_atom(Reason) -> refused(Peer, ssl:format_error({error, Reason}));
%% A node without TLS mistakes the handshake for the beginning of a long packet, and waits for the rest.
stream(Peer, client, {error, timeout}) -> refused(Peer, <<"no answer to the TLS handshake: the peer speaks no TLS, is stopped, or cannot be reached">>);
stream(_Peer, _Role, {error, Reason}) -> {error, Reason}.

refused(Peer, Reason) ->
    ?LOG_WARNING("beamway: no TLS connection with ~ts: ~ts", [Peer, Reason]),
    {error, tls}.

%% An application that needs kernel cannot start before kernel is up.
ssl_is_up(Deadline) ->
    case application:ensure_all_started(ssl) of
        {ok, _} ->
            true;
        {error, _} ->
            erlang:monotonic_time(millisecond) < Deadline andalso
                begin
                    receive after ?LOOK_MS -> ok end,
                    ssl_is_up(Deadline)
                end
    end.

%% @private
-spec kind(stream()) -> tls.
kind(_Stream) -> tls.

%% @private
-spec send(stream(), iodata()) -> ok | {error, term()}.
send({?MODULE, Socket}, Packet) ->
    case ssl:send(Socket, Packet) of
        ok -> ok;
        {error, Reason} -> failed(Reason, Socket)
    end.

%% @private
-spec recv(stream(), timeout()) -> {ok, string()} | {error, term()}.
recv({?MODULE, Socket}, TimeoutMs) ->
    case ssl:recv(Socket, 0, TimeoutMs) of
        {ok, Packet} -> _ = erase(?UNHEARD), {ok, binary_to_list(Packet)};
        {error, timeout} -> {error, timeout};
        {error, Reason} -> failed(Reason, Socket)
    end.

%% With TLS 1.3 a caller learns only now that its certificate was rejected. The alert may be lost, because ssl's processes exit with it, and the
%% peer's socket is closed while our first packet is on its way.
failed(Reason, Socket) ->
    case {Reason, erase(?UNHEARD)} of
        {{tls_alert, _}, undefined} -> refused(beamway_stream:peer_text({?MODULE, Socket}), ssl:format_error({error, Reason}));
        {_, undefined} -> {error, Reason};
        {{tls_alert, _}, Peer} -> refused(Peer, ssl:format_error({error, Reason}));
        {_, Peer} -> refused(Peer, <<"it ended after the TLS handshake, as when the peer refuses this node's certificate: its log has the reason">>)
    end.

%% @private
-spec peername(stream()) -> {ok, {inet:ip_address(), inet:port_number()}} | {error, term()}.
peername({?MODULE, Socket}) -> ssl:peername(Socket).

%% @private
-spec setopts(stream(), [inet:socket_setopt()]) -> ok | {error, term()}.
setopts({?MODULE, Socket}, Options) -> ssl:setopts(Socket, Options).

%% @private
-spec getopts(stream(), [inet:socket_getopt()]) -> {ok, [inet:socket_setopt()]} | {error, term()}.
getopts({?MODULE, Socket}, Options) -> ssl:getopts(Socket, Options).

%% @private
-spec carry(stream(), connecting | accepting, beamway_stream:wish()) -> {ok, pid()}.
carry({?MODULE, Socket}, _Role, _Wish) -> {ok, beamway_tls_controller:start(Socket)}.

%% @private
-spec activate(stream(), pid()) -> ok.
activate(_Stream, _Controller) -> ok.

%% @private
-spec start(stream(), pid(), term()) -> ok | {error, term()}.
start({?MODULE, Socket}, Controller, DHandle) ->
    beamway_tls_controller:connected(Controller, Socket, DHandle).

%% @private
-spec tick(stream(), pid()) -> term().
tick(_Stream, Controller) -> beamway_tls_controller:tick(Controller).

%% @private Counters of the underlying socket, for everything that is written and read, including record headers.
-spec stats(stream(), pid()) -> {ok, beamway_stream:stats()} | {error, term()}.
stats({?MODULE, Socket}, _Controller) ->
    then(ssl:getstat(Socket, [recv_oct, send_oct, recv_cnt, send_cnt, send_pend]), fun(Stats) -> {ok, beamway_stream:named(Stats)} end).

%% @private
-spec keep(stream()) -> ok | {error, term()}.
keep({?MODULE, Socket}) -> ssl:setopts(Socket, beamway_stream_tcp:keepalive_options()).

%% @private
-spec give(stream(), pid()) -> ok | {error, term()}.
give({?MODULE, Socket}, Pid) -> ssl:controlling_process(Socket, Pid).

%% @private
-spec watch(stream()) -> ok | {error, term()}.
watch({?MODULE, Socket}) -> ssl:setopts(Socket, [{active, ?PACKETS}]).
