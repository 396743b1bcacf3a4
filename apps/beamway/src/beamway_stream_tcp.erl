%% SPDX-License-Identifier: Apache-2.0
%% @doc A plain TCP socket as stream: OTP's own inet port, with better options when it carries data.
%%
%% Packets have a length of two bytes in the handshake and of four afterwards, as everywhere in Erlang
%% distribution. The port itself is the distribution controller.
-module(beamway_stream_tcp).
-behaviour(beamway_stream).

-include_lib("kernel/include/net_address.hrl").

-export([listen/3, accept_loop/2]).
-export([connect/4, accept/1, kind/1, send/2, recv/2, peername/1, setopts/2, getopts/2,
         carry/2, activate/1, start/3, tick/2, stats/1, keep/1, give/2, watch/1]).

-define(PACKETS, 100).

%% @doc Opens a listening socket and tells epmd.
-spec listen(beamway_stream:family(), atom(), string()) ->
          {ok, {port(), #net_address{}, integer()}} | {error, term()}.
listen(Family, Name, Host) ->
    inet_tcp_dist:gen_listen(Family, Name, Host).

%% @doc Starts the process that accepts for the calling net_kernel.
-spec accept_loop(beamway_stream:family(), port()) -> pid().
accept_loop(Family, Listen) ->
    inet_tcp_dist:gen_accept(Family, Listen).

%% @private
-spec connect(beamway_stream:family(), inet:ip_address(), inet:port_number(), string()) ->
          {ok, port()} | {error, inet:posix()}.
connect(Family, Ip, TcpPort, _Host) ->
    Family:connect(Ip, TcpPort, application:get_env(kernel, inet_dist_connect_options, [])
                                    ++ [{active, false}, {packet, 2}]).

%% @private
-spec accept(port()) -> {ok, port()}.
accept(Socket) -> {ok, Socket}.

%% @private
-spec kind(port()) -> tcp.
kind(_Socket) -> tcp.

%% @private
-spec send(port(), iodata()) -> ok | {error, inet:posix() | closed}.
send(Socket, Packet) -> inet_tcp:send(Socket, Packet).

%% @private
-spec recv(port(), timeout()) -> {ok, string()} | {error, inet:posix() | closed | timeout}.
recv(Socket, TimeoutMs) -> inet_tcp:recv(Socket, 0, TimeoutMs).

%% @private
-spec peername(port()) -> {ok, {inet:ip_address(), inet:port_number()}} | {error, term()}.
peername(Socket) -> inet:peername(Socket).

%% @private
-spec setopts(port(), [inet:socket_setopt()]) -> ok | {error, inet:posix()}.
setopts(Socket, Options) -> inet:setopts(Socket, Options).

%% @private
-spec getopts(port(), [inet:socket_getopt()]) ->
          {ok, [inet:socket_setopt()]} | {error, inet:posix()}.
getopts(Socket, Options) -> inet:getopts(Socket, Options).

%% @private
-spec carry(port(), connecting | accepting) -> {ok, port()} | {error, inet:posix()}.
carry(Socket, Role) ->
    case inet:setopts(Socket, [{active, false}, {packet, 4}, nodelay() | tuned(Role)]) of
        ok -> {ok, Socket};
        {error, Reason} -> {error, Reason}
    end.

nodelay() ->
    {nodelay, application:get_env(kernel, dist_nodelay, true) =/= false}.

%% Many messages a write, and few reads for large ones. What the user sets for kernel comes first.
tuned(Role) ->
    User = application:get_env(kernel, user_options(Role), []),
    [Tuned || {Name, _} = Tuned <- [{delay_send, true}, {buffer, 262144}],
              not lists:keymember(Name, 1, User)].

user_options(connecting) -> inet_dist_connect_options;
user_options(accepting) -> inet_dist_listen_options.

%% @private
-spec activate(port()) -> ok | {error, inet:posix()}.
activate(Socket) ->
    inet:setopts(Socket, [{active, true}, {deliver, port}, {packet, 4}, binary, nodelay()]).

%% @private
-spec start(port(), port(), term()) -> ok.
start(_Socket, _Controller, _DHandle) -> ok.

%% @private
-spec tick(port(), port()) -> term().
tick(Socket, _Controller) -> inet_tcp_dist:tick(inet_tcp, Socket).

%% @private
-spec stats(port()) -> {ok, beamway_stream:stats()} | {error, inet:posix()}.
stats(Socket) ->
    case inet:getstat(Socket, [recv_oct, send_oct, recv_cnt, send_cnt, send_pend]) of
        {ok, Stats} -> {ok, beamway_stream:named(Stats)};
        {error, Reason} -> {error, Reason}
    end.

%% @private
-spec keep(port()) -> ok | {error, inet:posix()}.
keep(Socket) ->
    inet:setopts(Socket, [{active, false}, {packet, 4}, nodelay() | beamway_watchdog:socket_options()]).

%% @private
-spec give(port(), pid()) -> ok | {error, inet:posix() | closed | badarg}.
give(Socket, Pid) -> inet_tcp:controlling_process(Socket, Pid).

%% @private
-spec watch(port()) -> ok | {error, inet:posix()}.
watch(Socket) -> inet:setopts(Socket, [{active, ?PACKETS}]).
