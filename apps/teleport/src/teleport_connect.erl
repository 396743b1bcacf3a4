%% SPDX-License-Identifier: Apache-2.0
%% @doc How two nodes come to have a lane: the caller asks the peer over the distribution connection where its port is, both prove over a
%% socket that they know the cookie ({@link teleport_handshake}), then they agree on what carries the lane.
%%
%% Runs in the lane's process on either side, and ends at its deadline.
-module(teleport_connect).

-include_lib("kernel/include/net_address.hrl").

-export([connect/3, accept/2, host_id/0, boot_id/0, limited/2]).

-type fate() :: fatal | retry.
%% `fatal': another attempt would fail, too, as long as nobody changes something.

-define(MAX_WORD, 1024).
-define(NO_SHM, <<"shm is not among the kinds">>).

%% @doc The caller's side.
-spec connect(node(), teleport_config:class(), non_neg_integer()) ->
          {ok, teleport_link:link(), teleport_link:kind(), Why :: binary()} | {error, fate(), Reason :: term()}.
connect(Node, Class, Index) ->
    #{open_ms := OpenMs} = Config = teleport_config:of_node(Node),
    Deadline = teleport_deadline:in(OpenMs),
    Ours = teleport_handshake:version(),
    case offer(Node, teleport_deadline:left(Deadline)) of
        {ok, #{version := Version}} when Version =/= Ours -> {error, fatal, {no_lane, teleport_handshake:other_version(Version)}};
        {ok, Offer} -> open(Offer, Config, {Node, Class, Index}, Deadline);
        {error, Fate, Reason} -> {error, Fate, Reason}
    end.

offer(Node, TimeoutMs) ->
    try erpc:call(Node, teleport_listener, offer, [node(), host_id()], TimeoutMs) of
        {ok, Offer} -> {ok, Offer};
        {error, Reason} -> {error, fatal, {no_lane, Reason}}
    catch
        error:{erpc, noconnection} -> {error, fatal, {nodedown, Node}};
        error:{erpc, timeout} -> {error, retry, {no_lane, <<"the peer did not tell its port in time">>}};
        error:{exception, undef, _} -> {error, fatal, {no_teleport, Node}};
        exit:{exception, {noproc, _}} -> {error, fatal, {no_teleport, Node}};
        _:Reason -> {error, retry, {no_lane, Reason}}
    end.

open(#{ip := Ip, port := Port, tls := HasTls} = Offer, #{tls := Tls} = Config, {Node, _, _} = Id, Deadline) ->
    Meet = fun(With) -> connected(gen_tcp:connect(Ip, Port, socket_options(Ip), teleport_deadline:left(Deadline)), With, Id, Deadline) end,
    case {HasTls, Tls} of
        {true, none} -> {error, fatal, {no_lane, <<"the peer has lanes over TLS only, this node has no option tls">>}};
        {false, Tls} when Tls =/= none -> {error, fatal, {no_lane, <<"this node has lanes over TLS only, the peer has no option tls">>}};
        _ ->
            case limited(Node, Config) of
                no when not map_get(guarded, Offer) -> Meet(Config);
                {refused, Reason} -> {error, fatal, {no_lane, Reason}};
                _ -> shm_only(Offer, Config, Meet)
            end
    end.

%% What cannot end well is not begun: the words by which the cookie is proved do not pass the network either.
shm_only(#{boot := Boot}, #{kinds := Kinds} = Config, Meet) ->
    case {of_one_host(Kinds), Boot =:= boot_id()} of
        {[], _} -> {error, fatal, {no_lane, in_clear(?NO_SHM)}};
        {_, false} -> {error, fatal, {no_lane, in_clear(<<"the peer is on another host">>)}};
        {Allowed, true} ->
            case Meet(Config#{kinds := Allowed}) of
                {error, _, {no_lane, Reason}} when is_binary(Reason) -> {error, fatal, {no_lane, in_clear(Reason)}};
                Other -> Other
            end
    end.

%% @doc Where the distribution to a node goes over TLS, nothing of a lane passes the network in clear, unless that is asked for.
-spec limited(node(), teleport_config:config()) -> no | shm_only | {refused, Reason :: binary()}.
limited(Node, #{tls := none, plaintext := false, kinds := Kinds}) ->
    case {net_kernel:node_info(Node, address), of_one_host(Kinds)} of
        {{ok, #net_address{protocol = tls}}, []} -> {refused, in_clear(?NO_SHM)};
        {{ok, #net_address{protocol = tls}}, _} -> shm_only;
        _ -> no
    end;
limited(_, _) ->
    no.

of_one_host(Kinds) -> [Kind || Kind <- Kinds, beamway_kind:needs_same_host(Kind)].

in_clear(Reason) ->
    text("the distribution goes over TLS, so without the option tls of teleport lanes are over shared memory only (~ts): "
         "set tls on both nodes, or plaintext => true on both", [Reason]).

socket_options(Ip) ->
    Family = case tuple_size(Ip) of 4 -> inet; 8 -> inet6 end,
    [Family, binary, {active, false}, {packet, raw}, {nodelay, true}, {keepalive, true}, {send_timeout, 5000}].

connected({ok, Socket}, Config, Id, Deadline) ->
    case secured(caller, Socket, Config, Deadline) of
        {ok, Secured} -> introduce(Secured, Config, Id, Deadline);
        {error, Fate, Reason} -> {error, Fate, {no_lane, Reason}}
    end;
connected({error, Reason}, _, _, _) ->
    {error, retry, {no_lane, Reason}}.

secured(_, Socket, #{tls := none}, _) ->
    {ok, {gen_tcp, Socket}};
secured(Role, Socket, #{tls := Options}, Deadline) ->
    {ok, _} = application:ensure_all_started(ssl),
    Upgraded = case Role of
                   caller -> ssl:connect(Socket, tls_options(caller, Options), teleport_deadline:left(Deadline));
                   acceptor -> ssl:handshake(Socket, tls_options(acceptor, Options), teleport_deadline:left(Deadline))
               end,
    case Upgraded of
        {ok, Tls} -> {ok, {ssl, Tls}};
        {error, {tls_alert, _} = Alert} -> {error, fatal, text("TLS: ~0tp", [Alert])};
        %% The peer was late, or has too many connections without proof.
        {error, Reason} when is_atom(Reason) -> {error, retry, text("TLS: ~0tp", [Reason])};
        {error, Reason} -> {error, fatal, text("TLS: ~0tp", [Reason])}
    end.

%% Peers are verified unless the options say otherwise. Which node it is, is proved by the cookie: the certificate's name is not compared.
tls_options(Role, Options) ->
    Verified = case proplists:is_defined(verify, Options) of true -> Options; false -> [{verify, verify_peer} | Options] end,
    case {Role, proplists:get_value(verify, Verified)} of
        {caller, _} -> [{server_name_indication, disable} | Verified];
        {acceptor, verify_peer} -> [{fail_if_no_peer_cert, true} | Verified];
        {acceptor, _} -> Verified
    end.

introduce(Socket, Config, {Node, Class, Index}, Deadline) ->
    Hello = #{caller => atom_to_binary(node()), acceptor => atom_to_binary(Node), class => Class, index => Index,
              nonce => teleport_handshake:nonce()},
    Cookie = cookie(Node),
    try
        ok = say(Socket, teleport_handshake:hello(Hello)),
        {challenge, Nonce} = hear(Socket, Deadline),
        ok = say(Socket, teleport_handshake:proof(Cookie, Hello, Nonce)),
        {welcome, Mac} = hear(Socket, Deadline),
        teleport_handshake:is_proof(Mac, acceptor, {Cookie, Hello}, Nonce) orelse throw({fatal, <<"the peer does not know the cookie">>}),
        agree(Socket, caller, Config, Deadline)
    of
        {ok, Link, Kind, Why} -> {ok, Link, Kind, Why};
        {error, Reason} -> {error, retry, {no_lane, Reason}}
    catch
        throw:{Fate, Reason} -> close(Socket), {error, Fate, {no_lane, Reason}};
        error:{badmatch, Word} -> close(Socket), {error, fatal, {no_lane, text("the peer said something else than expected: ~0tP", [Word, 5])}}
    end.

%% @doc The acceptor's side. `Known' is called once the caller has proved that it knows the cookie.
-spec accept(gen_tcp:socket(), Known :: fun(() -> ok)) ->
          {ok, teleport_lane:id(), teleport_link:link(), teleport_link:kind()} | {error, Reason :: term()}.
accept(Socket, Known) ->
    #{stranger_ms := Ms} = Config = teleport_config:of_node(node()),
    Deadline = teleport_deadline:in(Ms),
    case secured(acceptor, Socket, Config, Deadline) of
        {ok, Secured} -> greet(Secured, Config, Known, Deadline);
        {error, _, Reason} -> {error, Reason}
    end.

greet(Socket, Config, Known, Deadline) ->
    try
        {Hello, Node} = caller(Socket, Deadline),
        Nonce = teleport_handshake:nonce(),
        Cookie = cookie(Node),
        ok = say(Socket, teleport_handshake:challenge(Nonce)),
        is_proved(hear(Socket, Deadline), Cookie, Hello, Nonce) orelse refuse(Socket, <<"another cookie">>),
        ok = say(Socket, teleport_handshake:welcome(Cookie, Hello, Nonce)),
        ok = Known(),
        {Hello, Node, agree(Socket, acceptor, for_caller(Node, Config), teleport_deadline:in(maps:get(open_ms, Config)))}
    of
        {#{class := Class, index := Index}, From, {ok, Link, Kind, _}} -> {ok, {From, Class, Index}, Link, Kind};
        {_, _, {error, Reason}} -> {error, Reason}
    catch
        throw:{_, Reason} -> close(Socket), {error, Reason};
        error:{badmatch, Word} -> close(Socket), {error, Word}
    end.

for_caller(Node, #{kinds := Kinds} = Config) ->
    case limited(Node, Config) of
        no -> Config;
        shm_only -> Config#{kinds := of_one_host(Kinds)};
        {refused, Reason} -> throw({fatal, Reason})
    end.

%% Only nodes that are connected to this one: no atom is made of what a stranger says.
caller(Socket, Deadline) ->
    {hello, #{caller := Caller, acceptor := Acceptor} = Hello} = hear(Socket, Deadline),
    case [Node || Node <- nodes(connected), atom_to_binary(Node) =:= Caller] of
        [Node] -> Acceptor =:= atom_to_binary(node()) orelse refuse(Socket, <<"another node was called">>), {Hello, Node};
        [] -> refuse(Socket, <<"not connected to this node">>)
    end.

is_proved({proof, Mac}, Cookie, Hello, Nonce) -> teleport_handshake:is_proof(Mac, caller, {Cookie, Hello}, Nonce);
is_proved(_, _, _, _) -> false.

-spec refuse(teleport_link:socket(), binary()) -> no_return().
refuse(Socket, Reason) ->
    _ = say(Socket, teleport_handshake:refused(Reason)),
    throw({fatal, Reason}).

cookie(Node) -> atom_to_binary(erlang:get_cookie(Node)).

agree(Socket, Role, Config, Deadline) -> teleport_link:agree(Socket, Role, Config, Deadline).

say({gen_tcp, Socket}, Word) -> said(gen_tcp:send(Socket, [<<(byte_size(Word)):16>>, Word]));
say({ssl, Socket}, Word) -> said(ssl:send(Socket, [<<(byte_size(Word)):16>>, Word])).

said(ok) -> ok;
said({error, Reason}) -> failed(Reason).

%% The peer did not take our certificate: with TLS 1.3 that is heard of only now.
-spec failed(term()) -> no_return().
failed({tls_alert, Alert}) -> throw({fatal, text("TLS: ~0tp", [Alert])});
failed(Reason) -> throw({retry, Reason}).

hear(Socket, Deadline) ->
    <<Size:16>> = read(Socket, 2, Deadline),
    Size =< ?MAX_WORD orelse throw({fatal, <<"the other side does not speak the protocol of the lanes">>}),
    case teleport_handshake:decode(read(Socket, Size, Deadline)) of
        {ok, {refused, Reason}} -> throw({fatal, <<"the peer refuses: ", Reason/binary>>});
        {ok, Word} -> Word;
        {error, Reason} -> throw({fatal, Reason})
    end.

read(_, 0, _) -> <<>>;
read(Socket, Size, Deadline) ->
    Read = case Socket of
               {gen_tcp, Tcp} -> gen_tcp:recv(Tcp, Size, teleport_deadline:left(Deadline));
               {ssl, Tls} -> ssl:recv(Tls, Size, teleport_deadline:left(Deadline))
           end,
    case Read of
        {ok, Bytes} -> Bytes;
        {error, Reason} -> failed(Reason)
    end.

close({gen_tcp, Socket}) -> gen_tcp:close(Socket);
close({ssl, Socket}) -> _ = ssl:close(Socket), ok.

text(Format, Args) -> unicode:characters_to_binary(io_lib:format(Format, Args)).

%% @doc The same for two nodes that reach each other by the loopback interface: one kernel, one network namespace. A digest.
-spec host_id() -> binary().
host_id() -> erlang:md5(term_to_binary({boot(), file:read_link_all("/proc/self/ns/net")})).

%% @doc The same for two nodes on one kernel. A digest.
-spec boot_id() -> binary().
boot_id() -> erlang:md5(term_to_binary({kernel, boot()})).

boot() ->
    case beamway_host:boot_id() of
        {ok, BootId} -> {ok, BootId};
        {error, _} -> {make_ref(), os:getpid()}
    end.
