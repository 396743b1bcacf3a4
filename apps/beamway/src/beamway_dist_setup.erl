%% SPDX-License-Identifier: Apache-2.0
%% @doc The process of a connection: it performs the handshake over TCP or TLS with OTP's dist_util, agrees with the peer on a link, hands the link
%% to the VM, and then stays as the connection's ticker.
%%
%% dist_util calls back into this process throughout, and passes the stream as the only argument. The state shared by the callbacks (such as the
%% peer's extension and the agreed link) is therefore in the process dictionary, under the keys of {@link put_state/2}, each of which is written
%% only once.
%%
%% ARCHITECTURE.md explains how nodes agree on a link. The agreement runs once the peer is authenticated. By then dist_util has cancelled its timer,
%% so the agreement has its own deadline.
-module(beamway_dist_setup).

-include_lib("kernel/include/dist.hrl").
-include_lib("kernel/include/dist_util.hrl").
-include_lib("kernel/include/net_address.hrl").
-include_lib("kernel/include/logger.hrl").

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-export([connect/6, accept/6]).
-export([init_connect/7, init_accept/7]).
-export([send/2, recv/3, pre_nodeup/1, post_nodeup/1, getll/1, handshake_complete/3, tick/1,
         getstat/1, setopts/2, getopts/2]).

-type carrier() :: {beamway_stream:family(), Stream :: module()}.
%% The first packet of a resumption begins with one of these letters (beamway_session).
-define(BEGINS_RESUMPTION(Letter), Letter =:= $R orelse Letter =:= $S orelse Letter =:= $J).

-type stream() :: beamway_stream:stream().

%% @doc Starts a connection process that calls `Node'. Called by net_kernel; returns immediately.
-spec connect(carrier(), node(), normal | hidden, node(), longnames | shortnames, timeout()) ->
          pid().
connect(Carrier, Node, Type, MyNode, LongOrShortNames, SetupTime) ->
    spawn_opt(?MODULE, init_connect,
              [Carrier, self(), Node, Type, MyNode, LongOrShortNames, SetupTime],
              dist_util:net_ticker_spawn_options()).

%% @doc Starts a connection process for an accepted socket. Called by net_kernel; returns immediately.
-spec accept(carrier(), pid(), port(), node(), Allowed :: [node() | string()], timeout()) -> pid().
accept(Carrier, AcceptPid, Socket, MyNode, Allowed, SetupTime) ->
    spawn_opt(?MODULE, init_accept,
              [Carrier, self(), AcceptPid, Socket, MyNode, Allowed, SetupTime],
              dist_util:net_ticker_spawn_options()).

%% ---- the calling side ----

%% @private
-spec init_connect(carrier(), pid(), node(), normal | hidden, node(), longnames | shortnames,
                   timeout()) -> no_return().
init_connect({Family, Stream}, Kernel, Node, Type, MyNode, LongOrShortNames, SetupTime) ->
    {Name, Host} = split_name(Family, Node, LongOrShortNames),
    Timer = dist_util:start_timer(SetupTime),
    ok = beamway_fault_path:pass(Node, infinity), % the setup timer kills this process if that takes too long
    {Ip, TcpPort, Version} = find_peer(Family, Node, Name, Host),
    dist_util:reset_timer(Timer),
    case connected(mode(Stream), Stream, Node, Family, Ip, TcpPort, Host) of
        {ok, Connected} ->
            put_state(role, connecting),
            put_state(target, {Family, {Ip, TcpPort}}),
            put_state(setup_ms, SetupTime),
            Address = #net_address{address = {Ip, TcpPort}, host = Host,
                                   protocol = beamway_stream:kind(Connected),
                                   family = Family:family()},
            dist_util:handshake_we_started(
              (callbacks(fun(_, _) -> address(Connected, Node, Address) end))#hs_data{
                kernel_pid = Kernel, other_node = Node, this_node = MyNode, socket = Connected,
                timer = Timer, this_flags = 0, other_version = Version, request_type = Type});
        {error, _} ->
            %% The peer may have exited since epmd was asked.
            ?shutdown(Node)
    end.

%% The option `encrypt' applies only to the carrier over TCP, because the TLS carrier uses certificates.
mode(beamway_stream_tcp) -> beamway_encrypt:mode();
mode(beamway_stream_tls) -> false.

connected(false, Stream, _Node, Family, Ip, TcpPort, Host) ->
    Stream:connect(Family, Ip, TcpPort, Host);
connected(Mode, _Stream, Node, Family, Ip, TcpPort, _Host) ->
    maybe_clear(beamway_stream_psk:connect(Mode, Node, Family, Ip, TcpPort)).

maybe_clear({clear, Socket, Why}) ->
    put_state(in_clear, Why),
    {ok, Socket};
maybe_clear(Made) ->
    Made.

split_name(Family, Node, LongOrShortNames) ->
    {node, Name, Host} = dist_util:split_node(Node), % the carrier's select/1 has rejected all other names
    check_host(Family, Node, Host, lists:member($., Host), LongOrShortNames),
    {Name, Host}.

check_host(_Family, Node, Host, true, shortnames) ->
    ?LOG_ERROR("** System NOT running to use fully qualified hostnames **~n"
               "** Hostname ~ts is illegal **~n", [Host]),
    ?shutdown(Node);
check_host(Family, Node, Host, false, longnames) ->
    case Family:parse_address(Host) of
        {ok, _} ->
            ok;
        _ ->
            ?LOG_ERROR("** System running to use fully qualified hostnames **~n"
                       "** Hostname ~ts is illegal **~n", [Host]),
            ?shutdown(Node)
    end;
check_host(_Family, _Node, _Host, _HasDot, _LongOrShortNames) ->
    ok.

find_peer(Family, Node, Name, Host) ->
    case beamway_epmd:peer_of(net_kernel:epmd_module(), Family, Name, Host) of
        error -> ?shutdown(Node);
        Found -> Found
    end.

%% ---- the accepting side ----

%% @private
-spec init_accept(carrier(), pid(), pid(), port(), node(), [node() | string()], timeout()) ->
          no_return().
init_accept({Family, Stream}, Kernel, AcceptPid, Socket, MyNode, Allowed, SetupTime) ->
    receive
        {AcceptPid, controller} ->
            Timer = dist_util:start_timer(SetupTime),
            check_ip(Family, Socket),
            put_state(role, accepting),
            put_state(target, {Family, undefined}),
            put_state(setup_ms, SetupTime),
            _ = Stream =:= beamway_stream_tls andalso answer_resume(Socket),
            Accepted = accepted(mode(Stream), Stream, Socket),
            dist_util:reset_timer(Timer),
            AllowedHere = allowed(Accepted, Allowed),
            ok = first_packet(Accepted),
            Address = fun(_, Node) -> address(Accepted, Node, remote_address(Family, Accepted, Node)) end,
            dist_util:handshake_other_started(
              (callbacks(Address))#hs_data{
                kernel_pid = Kernel, this_node = MyNode, socket = Accepted, timer = Timer,
                this_flags = 0, allowed = AllowedHere})
    end.

accepted(Mode, Stream, Socket) ->
    Made = case Mode of
               false -> Stream:accept(Socket);
               _ -> maybe_clear(beamway_stream_psk:accept(Socket))
           end,
    case Made of
        {ok, Accepted} -> Accepted;
        {error, _} -> ?shutdown(no_node)
    end.

%% dist_util only compares the name that the caller claims. Over TLS the caller's certificate must also be valid for the host of an allowed node, as
%% with OTP's carrier.
allowed({beamway_stream_tls, _} = Stream, [_ | _] = Allowed) ->
    case beamway_stream_tls:allowed(Stream, Allowed) of
        [] ->
            ?LOG_ERROR("** Connection attempt from ~ts rejected: its certificate is for no host of the nodes that are allowed **",
                       [beamway_stream:peer_text(Stream)]),
            ?shutdown(no_node);
        OfThatHost ->
            OfThatHost
    end;
allowed(_Stream, Allowed) ->
    Allowed.

%% The flags are fixed once dist_util has read the caller's first packet. So this process reads the packet itself, and the first recv/3 hands it to
%% dist_util.
first_packet(Stream) ->
    case beamway_stream:recv(Stream, infinity) of
        {ok, [First | _] = Packet} when ?BEGINS_RESUMPTION(First) ->
            beamway_resumption:answer(Stream, Packet);
        {ok, Packet} ->
            check_first(Stream, Packet),
            ok = beamway_fault_path:pass_by_name(beamway_wire:name(Packet), infinity),
            check_caller_waits(Stream),
            Peer = beamway_wire:find_extension(name, Packet),
            put_state(first_packet, Packet),
            note_said(Packet),
            put_state(peer, Peer),
            ok;
        {error, _} ->
            ?shutdown(no_node)
    end.

answer_resume(Socket) ->
    case beamway_resumption:asked(Socket) of
        {ok, [First | _] = Packet} when ?BEGINS_RESUMPTION(First) ->
            beamway_resumption:answer(Socket, Packet);
        {ok, _} ->
            ?LOG_WARNING("beamway: no TLS connection with ~ts: it speaks no TLS", [beamway_stream:peer_text(Socket)]),
            ?shutdown(no_node);
        no ->
            ok
    end.

check_first(Stream, Packet) ->
    case beamway_wire:check_name(Packet) of
        ok ->
            ok;
        {error, Reason} ->
            ?LOG_ERROR("** Connection attempt from ~ts rejected: not a distribution handshake: ~ts **",
                       [beamway_stream:peer_text(Stream), Reason]),
            ?shutdown(no_node)
    end.

%% A caller that has sent its name waits for an answer. But if the two nodes have called each other at the same time, this caller may have given way
%% and exited while its connection was in the listen backlog. net_kernel must not be told about that connection, because net_kernel would mistake it
%% for the one being set up, and processes that wait for the connection would get `false'.
check_caller_waits(Stream) ->
    case beamway_stream:recv(Stream, 0) of
        {error, timeout} -> ok;
        _ -> ?shutdown(no_node)
    end.

remote_address(Family, Stream, Node) ->
    case {beamway_stream:peername(current(Stream)), dist_util:split_node(Node)} of
        {{ok, Address}, {node, _Name, Host}} ->
            #net_address{address = Address, host = Host, protocol = beamway_stream:kind(Stream),
                         family = Family:family()};
        _ ->
            ?shutdown(no_node)
    end.

%% kernel's `check_ip' only admits peers from networks in which this host has an interface.
check_ip(Family, Socket) ->
    case application:get_env(kernel, check_ip) of
        {ok, true} -> check_network(Family, inet:peername(Socket), inet:getif(Socket));
        _ -> ok
    end.

check_network(Family, {ok, {Ip, _}}, {ok, Interfaces}) ->
    case [own || {Own, _, Mask} <- Interfaces, Family:mask(Mask, Ip) =:= Family:mask(Mask, Own)] of
        [] ->
            ?LOG_ERROR("** Connection attempt from disallowed IP ~w ** ~n", [Ip]),
            ?shutdown(no_node);
        _ ->
            ok
    end;
check_network(_Family, _Gone, _Interfaces) ->
    ?shutdown(no_node).

%% ---- callbacks of dist_util ----

callbacks(Address) ->
    #hs_data{f_send = fun ?MODULE:send/2,
             f_recv = fun ?MODULE:recv/3,
             f_setopts_pre_nodeup = fun ?MODULE:pre_nodeup/1,
             f_setopts_post_nodeup = fun ?MODULE:post_nodeup/1,
             f_getll = fun ?MODULE:getll/1,
             f_handshake_complete = fun ?MODULE:handshake_complete/3,
             f_address = Address,
             mf_tick = fun ?MODULE:tick/1,
             mf_getstat = fun ?MODULE:getstat/1,
             mf_setopts = fun ?MODULE:setopts/2,
             mf_getopts = fun ?MODULE:getopts/2}.

%% @private Our extension is in the `N' message of the handshake; the acceptor sends it only if the caller has sent one.
-spec send(stream(), iodata()) -> ok | {error, term()}.
send(Stream, Data) ->
    case {iolist_to_binary(Data), get_state(role), get_state(peer)} of
        {<<$N, _/binary>> = Name, connecting, _} -> send_extended(Stream, Name);
        {Other, accepting, none} -> beamway_stream:send(Stream, Other);
        {<<$N, _/binary>> = Challenge, accepting, _} -> send_extended(Stream, Challenge);
        {Other, _, _} -> beamway_stream:send(Stream, Other)
    end.

send_extended(Stream, Message) ->
    Extended = [Message, beamway_wire:encode_extension(own_extension(Stream))],
    note_said(Extended),
    beamway_stream:send(Stream, Extended).

%% Records the caller's name message and the answer with the challenge, which are the same on both sides.
note_said(Message) ->
    Before = case get_state(said) of undefined -> []; Said -> Said end,
    put_state(said, [Before, Message]).

%% @private
-spec recv(stream(), non_neg_integer(), timeout()) -> {ok, string()} | {error, term()}.
recv(Stream, _Length, Timeout) ->
    case take_state(first_packet) of
        undefined -> recv_more(Stream, Timeout);
        Packet -> {ok, Packet}
    end.

recv_more(Stream, Timeout) ->
    Received = beamway_stream:recv(Stream, Timeout),
    case {Received, get_state(role)} of
        {{ok, [$N | _] = Challenge}, connecting} ->
            note_said(Challenge),
            put_state(peer, beamway_wire:find_extension(challenge, Challenge));
        _ ->
            ok
    end,
    Received.

%% @private The peer is now authenticated, so the two sides agree on the link.
-spec pre_nodeup(stream()) -> ok | {error, term()}.
pre_nodeup(Stream) ->
    case beamway_choice:choose(own_extension(Stream), get_state(peer)) of
        {stream, Reason} ->
            _ = [beamway_agreement:tell_without(Kind, Stream, Reason) || Kind <- beamway_choice:missed(own_extension(Stream), get_state(peer))],
            carry(Stream, Reason);
        Kind ->
            case beamway_agreement:run(Kind, get_state(role), Stream, get_state(setup_ms)) of
                {ring, Port, Why} ->
                    put_state(link, {Kind, Port, Why}),
                    ok = tell_load(Port),
                    put_state(resume_ms, resume_ms(Stream)),
                    ok = note_socket(Stream),
                    beamway_stream:keep(Stream);
                {stream, Reason} ->
                    carry(Stream, Reason)
            end
    end.

%% Returns the same extension until this process exits, because the choice of the link depends on what the peer has received.
own_extension(Stream) ->
    case get_state(extension) of
        undefined ->
            Extension = beamway_links:extension(beamway_stream:kind(Stream)),
            put_state(extension, Extension),
            Extension;
        Extension ->
            Extension
    end.

carry({beamway_stream_tls, _} = Stream, Reason) ->
    case get_state(peer) of
        {ok, _} = Peer -> carry_tls(Stream, Reason, beamway_choice:takes_tls_over(own_extension(Stream), Peer));
        _ -> carry_itself(Stream, Reason)
    end;
carry({beamway_stream_psk, _} = Stream, Reason) ->
    ok = note_socket(Stream),
    carry_itself(Stream, <<Reason/binary, "; ", (beamway_stream_psk:why(Stream))/binary>>);
carry(Socket, Reason) ->
    carry_itself(Socket, Reason).

%% Records the socket, which is the stream from now on.
note_socket({beamway_stream_psk, _} = Stream) -> put_state(socket, beamway_stream_psk:socket(Stream));
note_socket(_Stream) -> ok.

carry_tls({_, Tls} = Stream, Reason, true) ->
    case beamway_tls_takeover:run(get_state(role), Tls, get_state(said), get_state(setup_ms)) of
        {ok, Socket, Controller, Cipher, Secret} ->
            put_state(socket, Socket),
            put_state(said, [Secret, get_state(said)]),
            begin_session(Stream, Controller, resume_ms(Stream)),
            put_state(link, {tls, Controller, <<Reason/binary, "; ", Cipher/binary>>});
        {stream, Why} ->
            ?LOG_WARNING("beamway: no TLS in the driver with ~ts, its data pass through ssl's processes: ~ts", [beamway_stream:peer_text(Stream), Why]),
            carry_tls(Stream, Reason, {false, Why})
    end;
carry_tls(Stream, Reason, {false, Why}) ->
    carry_itself(Stream, <<Reason/binary, "; ssl's processes: ", Why/binary>>).

carry_itself(Stream, Reason) ->
    ResumeMs = resume_ms(Stream),
    Wish = case ResumeMs of 0 -> none; _ -> {resume, get_state(setup_ms)} end,
    case beamway_stream:carry(Stream, get_state(role), Wish) of
        {resumes, Controller} ->
            begin_session(Stream, Controller, ResumeMs),
            put_state(link, {label(Stream, Controller), Controller, Reason});
        {ok, Controller} -> put_state(link, {label(Stream, Controller), Controller, Reason});
        {ok, Controller, Why} -> put_state(link, {label(Stream, Controller), Controller, <<Reason/binary, "; ", Why/binary>>});
        {error, Failed} -> {error, Failed}
    end.

resume_ms(Stream) -> beamway_choice:resume_ms(own_extension(Stream), get_state(peer)).

%% Called if the data is carried by the drivers of both nodes.
begin_session(_Stream, _Port, 0) ->
    ok;
begin_session(Stream, Port, ResumeMs) ->
    ok = beamway_port:session(Port, maps:get(resume_bytes, beamway_links:config()), ResumeMs),
    ok = tell_load(Port),
    ok = compress(Port, beamway_choice:compresses(own_extension(Stream), get_state(peer)), beamway_links:config()),
    put_state(resume_ms, ResumeMs).

compress(_Port, false, _Config) -> ok;
compress(Port, true, #{compress := When, compress_percent := Percent}) -> beamway_port:compress(Port, When, Percent).

tell_load(Port) ->
    case beamway_choice:hears_load(get_state(peer)) of
        true -> beamway_port:tell_load(Port);
        false -> ok
    end.

%% The keeper and the table have the key. This process becomes the ticker, so it runs a garbage collection to discard its own copy.
complete_session(Stream, Node) ->
    {Family, Address} = take_state(target),
    case {take_state(resume_ms), take_state(said)} of
        {Without, _} when Without =:= undefined; Without =:= 0 ->
            ok;
        {ResumeMs, Said} ->
            {Kind, RingBytes, Keeper} = keeper(get_state(link)),
            {Called, From} = whereabouts(Address, Node, Stream),
            Key = beamway_session:key(auth:get_cookie(Node), Said),
            ok = beamway_resume:begin_session(Keeper,
                                              #{kind => Kind, ring_bytes => RingBytes, key => Key, id => beamway_session:id(Key), node => Node, role => get_state(role),
                                                encrypted => is_encrypted(Stream), renews => Kind =:= tls andalso not is_encrypted(Stream) andalso beamway_choice:renews(get_state(peer)), family => Family, address => Called, from => From, resume_ms => ResumeMs,
                                                connections => case Kind of ring -> 1; _ -> beamway_choice:connections(own_extension(Stream), get_state(peer)) end,
                                                refused_ms => maps:get(resume_refused_ms, beamway_links:config()),
                                                connection => self()}),
            true = erlang:garbage_collect(),
            ok
    end.

is_encrypted({beamway_stream_psk, _}) -> true;
is_encrypted(_Stream) -> false.

keeper({Kind, Port, _Reason}) ->
    case beamway_kind:is_ring(Kind) of
        true -> {ring, 0, beamway_keeper:of_this()};
        false -> {Kind, maps:get(ring_bytes, beamway_port:stats(Port)), beamway_keeper:of_this()}
    end.

%% The called node knows only the host in the caller's name and the port that the caller announces. The connection itself may come from a router's
%% address.
whereabouts(undefined, Node, Stream) ->
    {listens(Node, get_state(peer)), from(beamway_stream:peername(current(Stream)))};
whereabouts(Called, _Node, _Stream) ->
    {Called, called}.

from({ok, {Ip, _Port}}) -> Ip;
from({error, _}) -> unknown.

listens(_Node, {ok, #{listens := 0}}) ->
    undefined;
listens(Node, {ok, #{listens := Port}}) ->
    {node, _Name, Host} = dist_util:split_node(Node),
    {Host, Port}.

%% Once the driver has taken over TLS, what remains is ssl's socket, which is itself a stream. A link that has outlived its connection has a different
%% socket.
current(Stream) ->
    case {beamway_links:stream(), get_state(socket)} of
        {{ok, Current}, _} -> Current;
        {error, undefined} -> Stream;
        {error, Socket} -> Socket
    end.

%% OTP's own port is the stream itself.
label(Stream, Stream) -> inet;
label(Stream, _Controller) -> beamway_stream:kind(Stream).

%% @private
-spec getll(stream()) -> {ok, beamway_stream:controller()}.
getll(_Stream) ->
    {_Kind, Controller, _Reason} = get_state(link),
    {ok, Controller}.

%% @private The VM has the controller, so frames may arrive from now on.
-spec post_nodeup(stream()) -> ok | {error, term()}.
post_nodeup(Stream) ->
    case {controller(get_state(link)), driven(Stream)} of
        {{ring, _Port} = Link, _} -> keep(Link, Stream);
        {_, {true, Port}} -> keep(Port, Stream);
        {_, {false, Controller}} -> beamway_stream:activate(current(Stream), Controller)
    end.

%% The keeper owns the socket, because RabbitMQ expects the connection's process to own exactly one port, that of the connection.
keep(Link, Stream) ->
    beamway_keeper:start(Link, current(Stream), maps:get(poll_us, beamway_links:config())).

%% @private This is the last callback before this process becomes the ticker.
-spec handshake_complete(stream(), node(), DHandle :: term()) -> ok.
handshake_complete(Stream, Node, DHandle) ->
    ok = complete_session(Stream, Node),
    case controller(get_state(link)) of
        {ring, _Port} ->
            ok;
        {stream, Controller} ->
            case beamway_stream:start(current(Stream), Controller, DHandle) of
                ok -> ok;
                {error, Reason} -> ?shutdown2(Node, Reason)
            end
    end.

%% This is the last callback before net_kernel announces the node. It inserts the link into the table and announces it to the other servers, so any
%% process that sees the node also sees its link.
address(Handshaken, Node, Address) ->
    Stream = current(Handshaken),
    {Kind, Controller, Reason} = get_state(link),
    {Family, Called} = get_state(target),
    Link = (key(Handshaken))#{node => Node, link => Kind, reason => Reason, hidden => lists:member(Node, nodes(hidden)),
                              address => beamway_stream:peer_text(Stream), family => Family, peer_port => peer_port(Called, get_state(peer)), since => os:system_time(second), resume_ms => resume_ms(Handshaken),
                              connection => self(), controller => Controller, stream => Stream},
    ok = beamway_links:up(Link),
    ok = beamway_recorder:up(Link),
    ok = beamway_fault:link_is_up(Link),
    _ = [beamway_classes:link_is_up(Port) || {ok, Port} <- [beamway_links:driven(Link)]],
    ok = tell_clear(Node, get_state(in_clear)),
    kernel_address(Controller =:= Stream orelse is_pid(Controller), Address).

peer_port({_Ip, Port}, _Peer) -> Port;
peer_port(undefined, {ok, #{listens := Port}}) -> Port;
peer_port(undefined, _Peer) -> 0.

key({beamway_stream_psk, _} = Stream) -> #{key => beamway_stream_psk:key(Stream)};
key(_Stream) -> #{}.

tell_clear(_Node, undefined) -> ok;
tell_clear(Node, Why) -> ?LOG_WARNING("beamway: the link to ~ts is in clear (encrypt prefer): ~ts", [Node, Why]).

%% Returns the address for net_kernel:nodes_info/0. Monitoring tools look for the socket connected to that peer and show its counters as those of the
%% connection. If our driver carries the data, these counters do not change, so the address gets port 0, which no socket has.
kernel_address(_OfStream = false, #net_address{address = {Ip, _}} = Address) ->
    Address#net_address{address = {Ip, 0}};
kernel_address(_OfStream = true, Address) ->
    Address.

%% @private
-spec tick(stream()) -> term().
tick(Stream) ->
    case driven(Stream) of
        {true, Port} -> of_port(fun beamway_port:tick/1, Port);
        {false, Controller} -> of_port(fun(Alive) -> beamway_stream:tick(current(Stream), Alive) end, Controller)
    end.

%% @private Counts messages for net_kernel:node_info/1. dist_util interprets a count that does not increase as silence, so part of a long message
%% counts as well. Only whole messages are counted as written, because dist_util counts its own tick as one.
-spec getstat(stream()) ->
          {ok, Read :: integer(), Written :: integer(), Pending :: integer()} | {error, term()}.
getstat(Stream) ->
    beamway_result:then(stats(Stream, driven(Stream)),
                        fun(#{bytes_in := Bytes, frames_in := Frames, frames_out := Out, queue_bytes := Pending}) ->
                                {_, Told} = Heard = heard(Bytes, Frames, get_state(heard)),
                                put_state(heard, Heard),
                                {ok, Told, Out, Pending}
                        end).

%% Returns the number of messages, but at least one more than last time if any bytes have arrived since then, even if they do not complete a message.
%% The first call returns at least one, because dist_util never gives up on a connection whose count has never changed, so a peer that fell silent
%% immediately would stay connected forever.
heard(Bytes, Frames, undefined) -> {Bytes, max(1, Frames)};
heard(Bytes, _Frames, {Bytes, Told}) -> {Bytes, Told};
heard(Bytes, Frames, {_Before, Told}) -> {Bytes, max(Frames, Told + 1)}.

stats(_Stream, {true, Port}) -> of_port(fun(Alive) -> {ok, beamway_port:stats(Alive)} end, Port);
stats(Stream, {false, Controller}) -> of_port(fun(Alive) -> beamway_stream:stats(current(Stream), Alive) end, Controller).

%% Returns whether a port of our driver carries the data. This avoids reading the link's row in the table, because the row is large and a node with
%% many links would read all of the rows at once.
driven(Stream) ->
    {_Kind, Controller, _Reason} = get_state(link),
    {is_port(Controller) andalso Controller =/= Stream, Controller}.

controller({Kind, Controller, _Reason}) ->
    case beamway_kind:is_ring(Kind) of
        true -> {ring, Controller};
        false -> {stream, Controller}
    end.

%% The port may have just exited. In that case its exit signal, with the reason, is on its way to this process.
of_port(Command, Port) ->
    try Command(Port)
    catch error:badarg -> {error, closed}
    end.

%% @private
-spec setopts(stream(), [inet:socket_setopt()]) -> ok | {error, term()}.
setopts(Stream, Options) ->
    beamway_stream:setopts(current(Stream), Options).

%% @private
-spec getopts(stream(), [inet:socket_getopt()]) -> {ok, [inet:socket_setopt()]} | {error, term()}.
getopts(Stream, Options) ->
    beamway_stream:getopts(current(Stream), Options).

%% ---- state of this process ----

-type key() :: role           %% connecting | accepting
             | setup_ms       %% net_setuptime in milliseconds
             | peer           %% beamway_wire:found()
             | extension      %% beamway_wire:extension() of this node
             | heard          %% {Bytes, Told}: what getstat/1 last read, and the count that it returned
             | target         %% {Family, Address}: where the peer listens; undefined if the peer called this node
             | resume_ms      %% how long the link may be without a connection
             | said           %% data that only these two nodes have exchanged
             | socket         %% of a TLS connection that the driver has taken over or set up
             | in_clear       %% why the connection is not encrypted although it should be
             | first_packet   %% the packet that the acceptor has read ahead for dist_util
             | link.          %% {beamway_kind:label(), Controller, Reason}

-spec put_state(key(), term()) -> ok.
put_state(Key, Value) ->
    _ = put({?MODULE, Key}, Value),
    ok.

-spec get_state(key()) -> term().
get_state(Key) ->
    get({?MODULE, Key}).

-spec take_state(key()) -> term().
take_state(Key) ->
    erase({?MODULE, Key}).

-ifdef(TEST).

%% The calls find 0 bytes, half a message, a whole one, nothing new, three more, and one in many parts followed by more messages.
messages_are_counted_and_parts_are_life_test() ->
    Looks = [{0, 0}, {50, 0}, {100, 1}, {100, 1}, {130, 4}, {200, 4}, {300, 4}, {400, 5}, {450, 9}],
    {Told, _} = lists:mapfoldl(fun({Bytes, Frames}, Before) ->
                                       {_, Count} = After = heard(Bytes, Frames, Before),
                                       {Count, After}
                               end, undefined, Looks),
    ?assertEqual([1, 2, 3, 3, 4, 5, 6, 7, 9], Told).

a_port_that_has_just_ended_test() ->
    Port = open_port({spawn, "cat"}, []),
    true = port_close(Port),
    put_state(link, {shm, Port, <<>>}),
    ?assertEqual([{error, closed}, {error, closed}], [tick(none), getstat(none)]),
    take_state(link).

-endif.
