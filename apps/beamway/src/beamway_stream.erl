%% SPDX-License-Identifier: Apache-2.0
%% @doc The byte stream under a connection. It carries the handshake and the offers, reports when the peer has exited, and also carries the data if
%% the nodes have no better link.
%%
%% There are three kinds: {@link beamway_stream_tcp}, {@link beamway_stream_tls} and {@link beamway_stream_psk}, which becomes a TCP stream once a
%% link carries the data. A TCP stream is the plain socket, because dist_util waits for `{tcp_closed, Socket}' from it. Any other stream is a pair
%% of its module and that module's state. The functions here dispatch to the module.
%%
%% A stream is passive and delivers whole packets until {@link carry/3} or {@link keep/1} is called.
-module(beamway_stream).

-export([kind/1, send/2, recv/2, peername/1, peer_text/1, setopts/2, getopts/2]).
-export([carry/3, activate/2, start/3, tick/2, stats/2]).
-export([keep/1, give/2, watch/1, event/1]).
-export([named/1, fd/1]).
-export_type([stream/0, family/0, controller/0, wish/0, stats/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type family() :: inet_tcp | inet6_tcp.
-type stream() :: port() | {module(), term()}.
-type controller() :: port() | pid().
%% The distribution controller of the connection, to which the VM sends.
-type stats() :: #{bytes_in | bytes_out | frames_in | frames_out | queue_bytes := non_neg_integer()}.
%% Counters of the socket. `frames_out' increases by one with each tick.

-type wish() :: none | {resume, SetupMs :: pos_integer()}.
%% Specifies whether both sides want the link to outlive its connection, and how long they may take to find out whether it can.

%% Calls a peer. `Host' is the part of its name after the @.
-callback connect(family(), inet:ip_address(), inet:port_number(), Host :: string()) ->
    {ok, stream()} | {error, Reason :: term()}.
%% Turns an accepted TCP socket, which the calling process owns, into a stream.
-callback accept(port()) -> {ok, stream()} | {clear, port(), Why :: binary()} | {error, Reason :: term()}.
-callback kind(stream()) -> tcp | tls.
-callback send(stream(), iodata()) -> ok | {error, Reason :: term()}.
-callback recv(stream(), timeout()) -> {ok, string()} | {error, Reason :: term()}.
-callback peername(stream()) -> {ok, {inet:ip_address(), inet:port_number()}} | {error, term()}.
-callback setopts(stream(), [inet:socket_setopt()]) -> ok | {error, Reason :: term()}.
-callback getopts(stream(), [inet:socket_getopt()]) ->
    {ok, [inet:socket_setopt()]} | {error, Reason :: term()}.
-callback carry(stream(), connecting | accepting, wish()) ->
    {ok, controller()} | {resumes, controller()} | {ok, controller(), WhyNotBetter :: binary()} | {error, Reason :: term()}.
-callback activate(stream(), controller()) -> ok | {error, Reason :: term()}.
-callback start(stream(), controller(), DHandle :: term()) -> ok | {error, Reason :: term()}.
-callback tick(stream(), controller()) -> term().
-callback stats(stream(), controller()) -> {ok, stats()} | {error, Reason :: term()}.
-callback keep(stream()) -> ok | {error, Reason :: term()}.
-callback give(stream(), pid()) -> ok | {error, Reason :: term()}.
-callback watch(stream()) -> ok | {error, Reason :: term()}.
-optional_callbacks([connect/4, activate/2, start/3, tick/2, stats/2, give/2, watch/1]).

module(Socket) when is_port(Socket) -> beamway_stream_tcp;
module({Module, _}) -> Module.

%% @doc Returns the kind of link that a stream becomes when it carries the data.
-spec kind(stream()) -> tcp | tls.
kind(Stream) -> (module(Stream)):kind(Stream).

%% @doc Sends one packet.
-spec send(stream(), iodata()) -> ok | {error, Reason :: term()}.
send(Stream, Packet) -> (module(Stream)):send(Stream, Packet).

%% @doc Receives one packet.
-spec recv(stream(), timeout()) -> {ok, string()} | {error, Reason :: term()}.
recv(Stream, TimeoutMs) -> (module(Stream)):recv(Stream, TimeoutMs).

%% @doc Returns the peer's address.
-spec peername(stream()) -> {ok, {inet:ip_address(), inet:port_number()}} | {error, term()}.
peername(Stream) -> (module(Stream)):peername(Stream).

%% @doc Returns the peer's address as text; empty if it is no longer known.
-spec peer_text(stream()) -> binary().
peer_text(Stream) ->
    case peername(Stream) of
        {ok, {Ip, Port}} -> iolist_to_binary([inet:ntoa(Ip), $:, integer_to_binary(Port)]);
        {error, _} -> <<>>
    end.

%% @doc Sets options for net_kernel:setopts/2. Options on which the carrier relies are rejected.
-spec setopts(stream(), [inet:socket_setopt()]) -> ok | {error, Reason :: term()}.
setopts(Stream, Options) ->
    case [Option || {Name, _} = Option <- Options, lists:member(Name, [active, deliver, packet])] of
        [] -> (module(Stream)):setopts(Stream, Options);
        Bad -> {error, {badopts, Bad}}
    end.

%% @doc Returns options for net_kernel:getopts/2.
-spec getopts(stream(), [inet:socket_getopt()]) -> {ok, [inet:socket_setopt()]} | {error, term()}.
getopts(Stream, Options) -> (module(Stream)):getopts(Stream, Options).

%% ---- a stream that carries the data, in this order ----

%% @doc Lets the stream carry the data. Returns the controller for the VM and, if a better one failed, the reason. `resumes' means that the drivers
%% of both nodes carry the data, so the link can outlive its connection.
-spec carry(stream(), connecting | accepting, wish()) ->
          {ok, controller()} | {resumes, controller()} | {ok, controller(), WhyNotBetter :: binary()} | {error, Reason :: term()}.
carry(Stream, Role, Wish) -> (module(Stream)):carry(Stream, Role, Wish).

%% @doc Called once the VM has the controller, if that is not a port of our driver.
-spec activate(stream(), controller()) -> ok | {error, Reason :: term()}.
activate(Stream, Controller) -> (module(Stream)):activate(Stream, Controller).

%% @doc Called when the handshake is complete.
-spec start(stream(), controller(), DHandle :: term()) -> ok | {error, Reason :: term()}.
start(Stream, Controller, DHandle) -> (module(Stream)):start(Stream, Controller, DHandle).

%% @doc Sends a tick without blocking.
-spec tick(stream(), controller()) -> term().
tick(Stream, Controller) -> (module(Stream)):tick(Stream, Controller).

%% @doc Returns the counters since the connection was established.
-spec stats(stream(), controller()) -> {ok, stats()} | {error, Reason :: term()}.
stats(Stream, Controller) -> (module(Stream)):stats(Stream, Controller).

%% ---- the stream while another link carries the data ----

%% @doc Called if another link carries the data. The stream then stays open only to report when the peer exits.
-spec keep(stream()) -> ok | {error, Reason :: term()}.
keep(Stream) -> (module(Stream)):keep(Stream).

%% @doc Makes another process the owner. The stream is closed when that process exits.
-spec give(stream(), pid()) -> ok | {error, Reason :: term()}.
give(Stream, Pid) -> (module(Stream)):give(Stream, Pid).

%% @doc Requests messages ({@link event/1}) for the owner, until `passive' arrives.
-spec watch(stream()) -> ok | {error, Reason :: term()}.
watch(Stream) -> (module(Stream)):watch(Stream).

%% @doc Returns the meaning of a message to the owner of a stream.
-spec event(Message :: term()) -> data | passive | closed | other.
event({tcp, _, _}) -> data;
event({ssl, _, _}) -> data;
event({tcp_passive, _}) -> passive;
event({ssl_passive, _}) -> passive;
event({tcp_closed, _}) -> closed;
event({ssl_closed, _}) -> closed;
event({ssl_error, _, _}) -> closed; % no `ssl_closed' follows; after `tcp_error' comes `tcp_closed'
event(_) -> other.

%% @private Returns the counters of a socket under our names.
-spec named([{inet:stat_option(), integer()}]) -> stats().
named(Stats) ->
    maps:from_list([{name(Name), Value} || {Name, Value} <- Stats]).

name(recv_oct) -> bytes_in;
name(send_oct) -> bytes_out;
name(recv_cnt) -> frames_in;
name(send_cnt) -> frames_out;
name(send_pend) -> queue_bytes.

%% @doc Returns the descriptor of the stream's socket, if that is a port on this node. The socket below ssl is found through the peer's address.
-spec fd(stream()) -> {ok, non_neg_integer()} | error.
fd(Socket) when is_port(Socket) ->
    case prim_inet:getfd(Socket) of
        {ok, Fd} -> {ok, Fd};
        {error, _} -> error
    end;
fd(Stream) ->
    case peername(Stream) of
        {ok, _} = Peer -> fd_of([Port || Port <- erlang:ports(), erlang:port_info(Port, name) =:= {name, "tcp_inet"}, inet:peername(Port) =:= Peer]);
        {error, _} -> error
    end.

fd_of([Socket | _]) -> fd(Socket);
fd_of([]) -> error.

-ifdef(TEST).

%% Tests the messages that a real socket sends to its owner: first the peer sends unexpected data until the socket becomes passive, and then it
%% closes the connection.
events_test() ->
    {ok, Listen} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {active, false}, {packet, 4}]),
    {ok, Port} = inet:port(Listen),
    {ok, Peer} = gen_tcp:connect({127, 0, 0, 1}, Port, [{packet, 4}]),
    {ok, Socket} = gen_tcp:accept(Listen),
    ok = watch(Socket),
    [ok = gen_tcp:send(Peer, <<"x">>) || _ <- lists:seq(1, 100)],
    ?assertEqual(lists:duplicate(100, data) ++ [passive], [next_event() || _ <- lists:seq(1, 101)]),
    ok = watch(Socket),
    ok = gen_tcp:close(Peer),
    ?assertEqual(closed, next_event()),
    ?assertEqual(other, event({'EXIT', self(), normal})),
    ok = gen_tcp:close(Listen).

next_event() ->
    receive Message -> event(Message) after 5000 -> nothing end.

-endif.
