%% SPDX-License-Identifier: Apache-2.0
%% @doc A stream over a plain TCP socket. If it carries data, the socket is read and written by a port of our driver or, if the driver must not or
%% cannot do that, by OTP's own inet port with better options.
%%
%% Packets have a two-byte length in the handshake and a four-byte length afterwards, as everywhere in Erlang distribution. The port of either
%% driver is the distribution controller.
-module(beamway_stream_tcp).
-behaviour(beamway_stream).

-include_lib("kernel/include/logger.hrl").
-include_lib("kernel/include/net_address.hrl").

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-export([listen/3, accept_loop/2, connect_options/0, keepalive_options/0, sent/2, bound/2, let_go/1, nodelay/0]).
-export([connect/4, accept/1, kind/1, send/2, recv/2, peername/1, setopts/2, getopts/2,
         carry/3, activate/2, start/3, tick/2, stats/2, keep/1, give/2, watch/1]).

-import(beamway_result, [then/2]).

-define(PACKETS, 100).
-define(KEEPALIVE_MAX_S, 15).
-define(RING_BYTES, 262144).
-define(SENT_MS, 5000).

%% These are Linux's numbers, because Beamway runs only on Linux.
-define(IPPROTO_TCP, 6).
-define(TCP_KEEPIDLE, 4).
-define(TCP_KEEPINTVL, 5).
%% The number of bytes that the kernel accepts in addition to those in transit.
-define(TCP_NOTSENT_LOWAT, 25).
%% SO_RCVBUF is set directly, because `recbuf' would also enlarge the port's `buffer'.
-define(SOL_SOCKET, 1).
-define(SO_RCVBUF, 8).
-define(UNSENT_BYTES, 262144).
-define(RECEIVED_BYTES, 196608).
-define(QUEUED_BYTES, 4194304).

%% @doc Opens a listening socket and registers with epmd. If the node has to encrypt and cannot, this fails, and so does the start of the node.
-spec listen(beamway_stream:family(), atom(), string()) ->
          {ok, {port(), #net_address{}, integer()}} | {error, term()}.
listen(Family, Name, Host) ->
    case beamway_encrypt:check() of
        ok ->
            then(inet_tcp_dist:gen_listen(Family, Name, Host),
                 fun({_Listen, #net_address{address = {_, Port}}, _Creation} = Listening) ->
                         _ = [ok = beamway_links:listens(Kind, Port) || Kind <- kinds(beamway_encrypt:mode())],
                         {ok, Listening}
                 end);
        {error, Problem} ->
            ?LOG_ERROR("beamway: encrypt: ~ts; the distribution is not started", [Problem]),
            {error, {encrypt, unicode:characters_to_list(Problem)}}
    end.

%% Both kinds of connections are accepted on the same port.
kinds(false) -> [tcp];
kinds(_Encrypts) -> [tcp, tls].

%% @doc Starts the process that accepts connections for the calling net_kernel.
-spec accept_loop(beamway_stream:family(), port()) -> pid().
accept_loop(Family, Listen) ->
    inet_tcp_dist:gen_accept(Family, Listen).

%% @private
-spec connect(beamway_stream:family(), inet:ip_address(), inet:port_number(), string()) ->
          {ok, port()} | {error, inet:posix()}.
connect(Family, Ip, TcpPort, _Host) ->
    Family:connect(Ip, TcpPort, connect_options()).

%% @doc Returns the same options as OTP's carrier uses.
-spec connect_options() -> [gen_tcp:connect_option()].
connect_options() ->
    application:get_env(kernel, inet_dist_connect_options, []) ++ [{active, false}, {packet, 2}].

%% @doc Returns the options for the stream of a link with a ring. Ticks go through the ring, so the socket carries nothing. The kernel sends keepalive
%% probes as often as ticks would be sent, because otherwise a firewall drops the connection from its table and its end goes unnoticed. How many
%% unanswered probes close the socket is a setting of the system (9 by default).
-spec keepalive_options() -> [inet:socket_setopt()].
keepalive_options() ->
    Seconds = <<(keepalive_s(beamway_config:of_kernel(net_ticktime, 60), beamway_config:of_kernel(net_tickintensity, 4))):32/native>>,
    [{keepalive, true}, {raw, ?IPPROTO_TCP, ?TCP_KEEPIDLE, Seconds}, {raw, ?IPPROTO_TCP, ?TCP_KEEPINTVL, Seconds}].

keepalive_s(TickTimeS, Intensity) ->
    max(1, min(?KEEPALIVE_MAX_S, TickTimeS div Intensity)).

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

%% @private Our driver's link carries the data if possible, and otherwise the socket's own port does.
-spec carry(port(), connecting | accepting, beamway_stream:wish()) ->
          {ok, port()} | {resumes, port()} | {ok, port(), WhyNotOurs :: binary()} | {error, inet:posix() | closed | binary()}.
carry(Socket, Role, Wish) ->
    case beamway_links:drives_tcp() of
        true ->
            case adopt(Socket) of
                {ok, Port, _Device} ->
                    resuming(both_resume(resumes, Socket, Wish), hand_over(Socket, Port, Role));
                {error, Reason} ->
                    _ = both_resume({nack, Reason}, Socket, Wish),
                    ok = beamway_links:release(),
                    %% A peer that has already disconnected has no address, which is not a fault of the driver.
                    _ = [?LOG(Level, "beamway: no link of the driver with ~ts, using OTP's own port: ~ts", [Peer, Reason])
                         || Peer <- [beamway_stream:peer_text(Socket)], Peer =/= <<>>, Level <- [beamway_links:level_of(Reason)]],
                    carry_itself(Socket, Role, Reason)
            end;
        {false, Reason} ->
            carry_itself(Socket, Role, Reason)
    end.

%% One side may only find out during the agreement that its driver cannot carry the data. The other side must then not send the messages of a session
%% to OTP's own port.
both_resume(_Ours, _Socket, none) ->
    false;
both_resume(Ours, Socket, {resume, SetupMs}) ->
    try
        ok = beamway_agreement:send(Socket, Ours),
        {Ours, beamway_agreement:recv(Socket, erlang:monotonic_time(millisecond) + SetupMs)} =:= {resumes, resumes}
    catch
        throw:{no_agreement, Reason} -> beamway_agreement:give_up_connection(Reason)
    end.

resuming(true, {ok, Port}) -> {resumes, Port};
resuming(_Resumes, Carried) -> Carried.

adopt(Socket) ->
    case {inet:getopts(Socket, [buffer, linger]), prim_inet:getfd(Socket)} of
        {{ok, [{buffer, Buffer}, Linger]}, {ok, Fd}} ->
            then(adopt(Fd, Buffer), fun(Port, Device) ->
                                            %% Creating a link turns this option off, although the user may have turned it on.
                                            _ = inet:setopts(Socket, [Linger]), % a closed socket is noticed when it is handed over
                                            {ok, Port, Device}
                                    end);
        {_, _} -> {error, <<"the socket is closed">>}
    end.

%% The bytes that the socket's port has read ahead must fit into the ring.
adopt(Fd, Buffer) ->
    case beamway_links:reserve(tcp, power_of_two(Buffer, ?RING_BYTES)) of
        {ok, RingBytes} when RingBytes >= Buffer -> beamway_establish:connect(tcp, <<Fd:32>>, <<0:128>>, RingBytes, 1);
        {ok, _Smaller} -> {error, <<"no ring memory for the socket's option buffer">>};
        {error, Reason} -> {error, Reason}
    end.

power_of_two(Bytes, Power) when Power >= Bytes -> Power;
power_of_two(Bytes, Power) -> power_of_two(Bytes, 2 * Power).

%% From now on the driver reads and writes the connection through its own descriptor. The socket stays open for its options; it is closed when the
%% keeper exits, which happens when the connection is closed. Its port does not touch a passive socket, and the bytes that it has read ahead are
%% handed over.
hand_over(Socket, Port, Role) ->
    case then(let_go(Socket), fun(Read) -> ok = bound(Socket, Role), beamway_port:packets(Port, Read) end) of
        ok -> {ok, Port};
        {error, Reason} -> beamway_port:close(Port), {error, Reason}
    end.

%% @doc Makes the socket's port stop reading, and returns what it has read ahead.
-spec let_go(port()) -> {ok, binary()} | {error, inet:posix() | closed}.
let_go(Socket) ->
    case {sent(Socket, ?SENT_MS), inet:setopts(Socket, [binary, {active, false}, {packet, raw}, nodelay()])} of
        {ok, ok} -> read_ahead(inet_tcp:recv(Socket, 0, 0));
        {{error, Reason}, _} -> {error, Reason};
        {ok, {error, Reason}} -> {error, Reason}
    end.

%% @doc Waits until the socket's port has nothing to send. With the option `delay_send', the last message of the handshake may still be queued in the
%% port, and it must not arrive after what the driver sends.
-spec sent(port(), Ms :: non_neg_integer()) -> ok | {error, inet:posix()}.
sent(Socket, Ms) ->
    case inet:getstat(Socket, [send_pend]) of
        {ok, [{send_pend, 0}]} -> ok;
        {ok, _} when Ms > 0 -> receive after 1 -> sent(Socket, Ms - 1) end;
        {ok, _} -> {error, etimedout};
        {error, Reason} -> {error, Reason}
    end.

%% @doc Limits the kernel's buffers, because data in them cannot be overtaken. On a network path the kernel buffers what the path needs, and little
%% more. A local peer has no such path, so its kernel need not buffer megabytes either. The user's settings for kernel have priority.
-spec bound(port(), connecting | accepting) -> ok.
bound(Socket, Role) ->
    _ = inet:setopts(Socket, bounds(Socket, Role)), % old kernels do not know all of them
    ok.

bounds(Socket, Role) ->
    User = application:get_env(kernel, user_options(Role), []),
    [{raw, ?IPPROTO_TCP, ?TCP_NOTSENT_LOWAT, <<?UNSENT_BYTES:32/native>>}
     || not lists:any(fun is_unsent/1, User)]
        ++ [{raw, ?SOL_SOCKET, ?SO_RCVBUF, <<?RECEIVED_BYTES:32/native>>} || is_of_this_host(Socket), not lists:keymember(recbuf, 1, User)].

is_unsent({raw, ?IPPROTO_TCP, ?TCP_NOTSENT_LOWAT, _}) -> true;
is_unsent(_) -> false.

is_of_this_host(Socket) ->
    case {inet:sockname(Socket), inet:peername(Socket)} of
        {{ok, {Ip, _}}, {ok, {Ip, _}}} -> true;
        {_, {ok, {{127, _, _, _}, _}}} -> true;
        {_, {ok, {Ip, _}}} -> is_own(Ip, inet:getifaddrs());
        {_, {error, _}} -> false
    end.

is_own(Ip, {ok, Interfaces}) -> lists:any(fun({_Name, Options}) -> lists:member({addr, Ip}, Options) end, Interfaces);
is_own(_Ip, {error, _}) -> false.

read_ahead({ok, Read}) -> {ok, Read};
read_ahead({error, timeout}) -> {ok, <<>>};
read_ahead({error, Reason}) -> {error, Reason}.

carry_itself(Socket, Role, Reason) ->
    then(inet:setopts(Socket, [{active, false}, {packet, 4}, nodelay() | tuned(Role)]), fun() -> {ok, Socket, <<"OTP's own port: ", Reason/binary>>} end).

%% @doc Returns the option that kernel's `dist_nodelay' specifies.
-spec nodelay() -> {nodelay, boolean()}.
nodelay() ->
    {nodelay, application:get_env(kernel, dist_nodelay, true) =/= false}.

%% Lets one write send many messages, and a large message arrive in few reads. Gathered data is queued in the port, which OTP marks as busy at 8 KB.
%% Further data stays in a queue of ERTS, which halt() drops. The user's settings for kernel have priority.
tuned(Role) ->
    User = application:get_env(kernel, user_options(Role), []),
    [Tuned || {Name, _} = Tuned <- [{delay_send, true}, {high_watermark, ?QUEUED_BYTES}, {buffer, 262144}],
              not lists:keymember(Name, 1, User)].

user_options(connecting) -> inet_dist_connect_options;
user_options(accepting) -> inet_dist_listen_options.

%% @private
-spec activate(port(), port()) -> ok | {error, inet:posix()}.
activate(Socket, Socket) ->
    inet:setopts(Socket, [{active, true}, {deliver, port}, {packet, 4}, binary, nodelay()]).

%% @private
-spec start(port(), port(), term()) -> ok.
start(_Socket, _Controller, _DHandle) -> ok.

%% @private
-spec tick(port(), port()) -> term().
tick(Socket, Socket) -> inet_tcp_dist:tick(inet_tcp, Socket);
tick(_Socket, Port) -> beamway_port:tick(Port).

%% @private
-spec stats(port(), port()) -> {ok, beamway_stream:stats()} | {error, inet:posix()}.
stats(Socket, Socket) ->
    then(inet:getstat(Socket, [recv_oct, send_oct, recv_cnt, send_cnt, send_pend]), fun(Stats) -> {ok, beamway_stream:named(Stats)} end);
stats(_Socket, Port) ->
    {ok, beamway_port:stats(Port)}.

%% @private
-spec keep(port()) -> ok | {error, inet:posix()}.
keep(Socket) ->
    inet:setopts(Socket, [{active, false}, {packet, 4}, nodelay() | keepalive_options()]).

%% @private
-spec give(port(), pid()) -> ok | {error, inet:posix() | closed | badarg}.
give(Socket, Pid) -> inet_tcp:controlling_process(Socket, Pid).

%% @private
-spec watch(port()) -> ok | {error, inet:posix()}.
watch(Socket) -> inet:setopts(Socket, [{active, ?PACKETS}]).

-ifdef(TEST).

keepalive_s_test_() ->
    [?_assertEqual(Want, keepalive_s(TickTime, Intensity))
     || {Want, TickTime, Intensity} <- [{15, 60, 4}, {15, 600, 4}, {2, 8, 4}, {1, 1, 4}, {1, 40, 40}, {1, 5, 1000}]].

a_socket_is_kept_alive_test() ->
    {ok, Listen} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    ok = inet:setopts(Listen, keepalive_options()),
    ?assertEqual({ok, [{keepalive, true}, {raw, 6, 4, <<15:32/native>>}, {raw, 6, 5, <<15:32/native>>}]},
                 inet:getopts(Listen, [keepalive, {raw, 6, 4, 4}, {raw, 6, 5, 4}])),
    ok = gen_tcp:close(Listen).

%% At first the peer does not read, so the system leaves most of the data in the port. The waits may exceed the 5 s that eunit allows for a test.
what_the_port_has_queued_goes_first_test_() -> {timeout, 60, fun what_the_port_has_queued_goes_first/0}.

what_the_port_has_queued_goes_first() ->
    Bytes = 30000000,
    {ok, Listen} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, binary, {active, false}]),
    {ok, Number} = inet:port(Listen),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Number, [binary, {active, false}]),
    {ok, Peer} = gen_tcp:accept(Listen),
    ?assertEqual(ok, sent(Socket, 0)),
    ok = gen_tcp:send(Socket, binary:copy(<<1>>, Bytes)),
    ?assertEqual({error, etimedout}, sent(Socket, 10)),
    ?assertMatch({ok, <<_:Bytes/binary>>}, gen_tcp:recv(Peer, Bytes, 20000)),
    ?assertEqual(ok, sent(Socket, 20000)),
    [ok = gen_tcp:close(Closed) || Closed <- [Socket, Peer, Listen]],
    ?assertMatch({error, _}, sent(Socket, 0)).

-endif.
