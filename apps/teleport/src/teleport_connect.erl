%% SPDX-License-Identifier: Apache-2.0
%% @doc How two nodes come to have a lane: the caller asks the peer over the distribution connection where its port is, both prove over a
%% socket that they know the cookie ({@link teleport_handshake}), then they agree on what carries the lane.
%%
%% Runs in the lane's process on either side, and ends at its deadline.
-module(teleport_connect).

-export([connect/3, accept/3, host_id/0, boot_id/0]).

-type fate() :: fatal | retry.
%% `fatal': another attempt would fail, too, as long as nobody changes something.

-define(MAX_WORD, 1024).
-define(TLS, 22).

%% @doc The caller's side. `MaxMessageBytes': the smaller limit of both nodes. `Takes': what the acceptor takes and that of version 0.2.0 does not: frames
%% with several messages; the group leader of what is applied.
-spec connect(node(), teleport_config:class(), non_neg_integer()) ->
          {ok, teleport_link:link(), teleport_link:kind(), Why :: binary(), teleport_references:state(), MaxMessageBytes :: pos_integer(), Takes :: [batches | leaders]}
          | {error, fate(), Reason :: term()}.
connect(Node, Class, Index) ->
    #{open_ms := OpenMs} = Config = teleport_config:of_node(Node),
    Deadline = teleport_deadline:in(OpenMs),
    Ours = teleport_handshake:version(),
    case offer(Node, Deadline) of
        {ok, #{version := Version}} when Version =/= Ours -> {error, fatal, {no_lane, teleport_handshake:other_version(Version)}};
        {ok, Offer} ->
            #{max_message_bytes := Max} = Limited = limited(Offer, Config),
            case open(Offer, Limited, {Node, Class, Index}, Deadline) of
                {ok, Link, Kind, Why} -> {ok, Link, Kind, Why, references(Kind, Offer, Config), Max, [Name || Name <- [batches, leaders], maps:get(Name, Offer, false)]};
                Error -> Error
            end;
        {error, Fate, Reason} -> {error, Fate, Reason}
    end.

%% What one of them would send and the other does not take would end the lane. An older peer does not tell its limit.
limited(#{max_message_bytes := Theirs}, #{max_message_bytes := Ours} = Config) -> Config#{max_message_bytes := min(Ours, Theirs)};
limited(_, Config) -> Config.

%% Whoever has shared memory with the peer may have blocks with it.
references(Kind, #{blocks := Address}, #{by_reference := true}) ->
    case beamway_kind:is_ring(Kind) andalso beamway_kind:needs_same_host(Kind) of
        true -> teleport_references:to(Address);
        false -> teleport_references:none()
    end;
references(_, _, _) -> teleport_references:none().

offer(Node, Deadline) -> offer(Node, [true], Deadline).

%% An older version does not know of announced TLS.
offer(Node, Announces, Deadline) ->
    try erpc:call(Node, teleport_listener, offer, [node(), host_id() | Announces], teleport_deadline:left(Deadline)) of
        {ok, Offer} -> {ok, Offer};
        {error, Reason} -> {error, fatal, {no_lane, Reason}}
    catch
        error:{erpc, noconnection} -> {error, fatal, {nodedown, Node}};
        %% A C node, a Java node, or a node of an OTP before 23.
        error:{erpc, notsup} -> {error, fatal, {no_teleport, Node}};
        error:{erpc, timeout} -> {error, retry, {no_lane, <<"the peer did not tell its port in time">>}};
        error:{exception, undef, [{teleport_listener, offer, _, _} | _]} when Announces =/= [] -> offer(Node, [], Deadline);
        error:{exception, undef, _} -> {error, fatal, {no_teleport, Node}};
        exit:{exception, {noproc, _}} -> {error, fatal, {no_teleport, Node}};
        _:Reason -> {error, retry, {no_lane, Reason}}
    end.

open(Offer, Config, {Node, _, _} = Id, Deadline) ->
    Ways = teleport_ways:of_node(Node, Config),
    Place = teleport_ways:place(maps:get(kinds, Config), maps:get(boot, Offer, none) =:= boot_id()),
    case teleport_ways:choose(Ways, teleport_ways:of_offer(Offer), Place) of
        {ok, [First | Rest]} -> by(First, Rest, {Ways, Offer}, Config, Id, Deadline);
        {error, Reason} -> {error, fatal, {no_lane, Reason}}
    end.

by(tls, _, {#{tls := Tls}, Offer}, Config, Id, Deadline) ->
    meet(Offer, Tls, Config, Id, Deadline);
by(plain, [], {_, Offer}, Config, Id, Deadline) ->
    meet(Offer, none, Config, Id, Deadline);
by(local, Rest, {Ways, Offer}, #{kinds := Kinds} = Config, Id, Deadline) ->
    case {meet(Offer, none, Config#{kinds := teleport_ways:plain_kinds(Ways#{plain := one_host}, Kinds)}, Id, Deadline), Rest} of
        {{error, _, {no_lane, Reason}}, [tls]} when is_binary(Reason) ->
            because(Reason, by(tls, [], {Ways, Offer}, Config, Id, Deadline));
        {{error, _, {no_lane, Reason}}, []} when is_binary(Reason) ->
            {error, fatal, {no_lane, text("the distribution goes over TLS, so lanes without TLS are over shared memory only: ~ts", [Reason])}};
        {Met, _} -> Met
    end.

%% Why it is not shared memory.
because(Reason, {ok, Link, Kind, Why}) -> {ok, Link, Kind, text("~ts; ~ts", [Why, Reason])};
because(_, {error, Fate, Failed}) -> {error, Fate, Failed}.

meet(#{ip := Ip, port := Port} = Offer, Tls, Config, Id, Deadline) ->
    Connected = gen_tcp:connect(Ip, Port, socket_options(Ip), teleport_deadline:left(Deadline)),
    connected(announced(Connected, Tls, Offer), Tls, {Config, Offer}, Id, Deadline).

announced({ok, Socket}, Tls, #{announce := true}) when Tls =/= none ->
    case gen_tcp:send(Socket, framed(teleport_handshake:tls_follows())) of
        ok -> {ok, Socket};
        {error, Reason} -> gen_tcp:close(Socket), {error, Reason}
    end;
announced(Connected, _, _) -> Connected.

%% A lane is made of a port, whatever kernel's `inet_backend' says; gen_tcp wants that option first.
socket_options(Ip) ->
    Family = case tuple_size(Ip) of 4 -> inet; 8 -> inet6 end,
    [{inet_backend, inet}, Family, binary, {active, false}, {packet, raw}, {nodelay, true}, {keepalive, true}, {send_timeout, 5000}].

connected({ok, Socket}, Tls, Met, {Node, _, _} = Id, Deadline) ->
    case secured({caller, Node}, Socket, Tls, Deadline) of
        {ok, Secured} -> introduce(Secured, Met, Id, Deadline);
        {error, Fate, Reason} -> ok = gen_tcp:close(Socket), {error, Fate, {no_lane, Reason}}
    end;
connected({error, Reason}, _, _, _, _) ->
    {error, retry, {no_lane, Reason}}.

secured(_, Socket, none, _) ->
    {ok, {gen_tcp, Socket}};
secured(Role, Socket, Tls, Deadline) ->
    case tls_options(Role, Tls, inet:peername(Socket)) of
        {ok, Options} -> upgraded(upgrade(Role, Socket, Options, teleport_deadline:left(Deadline)));
        {error, Problem} -> {error, fatal, text("TLS: ~ts", [Problem])}
    end.

upgrade(Role, Socket, Options, TimeoutMs) ->
    {ok, _} = application:ensure_all_started(ssl),
    case Role of
        {caller, _} -> ssl:connect(Socket, Options, TimeoutMs);
        acceptor -> ssl:handshake(Socket, Options, TimeoutMs)
    end.

upgraded({ok, Tls}) -> {ok, {ssl, Tls}};
upgraded({error, {tls_alert, _} = Alert}) -> {error, fatal, text("TLS: ~0tp", [Alert])};
%% The peer was late, or has too many connections without proof.
upgraded({error, Reason}) when is_atom(Reason) -> {error, retry, text("TLS: ~0tp", [Reason])};
upgraded({error, Reason}) -> {error, fatal, text("TLS: ~0tp", [Reason])}.

%% With the distribution's certificates everything is as there. With its own, peers are verified unless the options say otherwise; which node it is, is proved by
%% the cookie: the certificate's name is not compared.
tls_options(_, _, {error, Reason}) -> {error, inet:format_error(Reason)};
tls_options({caller, Node}, distribution, _) -> beamway_tls_options:beside(client, lists:last(string:split(atom_to_list(Node), "@")));
tls_options(acceptor, distribution, {ok, {Ip, _}}) -> beamway_tls_options:beside(server, Ip);
tls_options(Role, {own, Options}, _) ->
    Verified = case proplists:is_defined(verify, Options) of true -> Options; false -> [{verify, verify_peer} | Options] end,
    case {Role, proplists:get_value(verify, Verified)} of
        {{caller, _}, _} -> {ok, [{server_name_indication, disable} | Verified]};
        {acceptor, verify_peer} -> {ok, [{fail_if_no_peer_cert, true} | Verified]};
        {acceptor, _} -> {ok, Verified}
    end.

introduce(Socket, {Config, Offer}, {Node, Class, Index}, Deadline) ->
    Own = #{caller => atom_to_binary(node()), acceptor => atom_to_binary(Node), class => Class, index => Index, nonce => teleport_handshake:nonce()},
    Hello = case Offer of #{max_message_bytes := _} -> Own#{max_message_bytes => maps:get(max_message_bytes, Config)}; _ -> Own end,
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

%% @doc The acceptor's side. `Known' is called once the caller has proved that it knows the cookie. `Word' was read already. `Turn' is less than that of every lane
%% that the caller opens after it has this one.
-spec accept(gen_tcp:socket(), Word :: binary() | none, Known :: fun(() -> ok)) ->
          {ok, teleport_lane:id(), Turn :: integer(), teleport_link:link(), teleport_link:kind(), Why :: binary(), MaxMessageBytes :: pos_integer()} | {error, Reason :: term()}.
accept(Socket, Word, Known) ->
    #{stranger_ms := Ms} = Config = teleport_config:of_node(node()),
    Deadline = teleport_deadline:in(Ms),
    IsTls = Word =:= teleport_handshake:tls_follows(),
    case came(Socket, Word, IsTls, Config, Deadline) of
        {ok, Secured} when IsTls; Word =:= none -> greet(fun() -> hear(Secured, Deadline) end, Secured, Known, Deadline);
        {ok, Secured} -> greet(fun() -> understood(Word) end, Secured, Known, Deadline);
        {error, _, Reason} -> {error, Reason}
    end.

came(Socket, none, _, Config, Deadline) -> came(Socket, Config, Deadline);
came(Socket, _, _IsTls = false, _, _) -> {ok, {gen_tcp, Socket}};
came(Socket, _, _, #{tls := none}, _) -> close({gen_tcp, Socket}), {error, fatal, no_tls};
came(Socket, _, _, #{tls := auto}, Deadline) -> secured(acceptor, Socket, distribution, Deadline);
came(Socket, _, _, #{tls := Own}, Deadline) -> secured(acceptor, Socket, {own, Own}, Deadline).

came(Socket, #{tls := none}, _) -> {ok, {gen_tcp, Socket}};
came(Socket, #{tls := auto}, Deadline) ->
    %% TLS begins with the byte 22; a word of ours with its length, which is at most ?MAX_WORD. What was read goes back.
    case gen_tcp:recv(Socket, 1, teleport_deadline:left(Deadline)) of
        {ok, Byte} ->
            ok = gen_tcp:unrecv(Socket, Byte),
            secured(acceptor, Socket, case Byte of <<?TLS>> -> distribution; _ -> none end, Deadline);
        {error, Reason} -> {error, retry, Reason}
    end;
came(Socket, #{tls := Own}, Deadline) -> secured(acceptor, Socket, {own, Own}, Deadline).

greet(First, Socket, Known, Deadline) ->
    try
        {Hello, Node} = caller(First(), Socket),
        Nonce = teleport_handshake:nonce(),
        Cookie = cookie(Node),
        ok = say(Socket, teleport_handshake:challenge(Nonce)),
        is_proved(hear(Socket, Deadline), Cookie, Hello, Nonce) orelse refuse(Socket, <<"another cookie">>),
        Turn = erlang:unique_integer([monotonic]),
        ok = say(Socket, teleport_handshake:welcome(Cookie, Hello, Nonce)),
        ok = Known(),
        #{max_message_bytes := Max, open_ms := OpenMs} = Own = limited(Hello, teleport_config:of_caller(Node)),
        Agreed = agree(Socket, acceptor, for_caller(Node, Socket, Own), teleport_deadline:in(OpenMs)),
        {Hello, Node, Turn, Max, Agreed}
    of
        {#{class := Class, index := Index}, From, Its, Most, {ok, Link, Kind, Why}} -> {ok, {From, Class, Index}, Its, Link, Kind, Why, Most};
        {_, _, _, _, {error, Reason}} -> {error, Reason}
    catch
        throw:{_, Reason} -> close(Socket), {error, Reason};
        error:{badmatch, Word} -> close(Socket), {error, Word}
    end.

for_caller(_, {ssl, _}, Config) ->
    Config;
for_caller(Node, {gen_tcp, _}, #{kinds := Kinds} = Config) ->
    case teleport_ways:plain_kinds(teleport_ways:of_node(Node, Config), Kinds) of
        [] -> throw({fatal, <<"the caller is not allowed to come without TLS">>});
        Allowed -> Config#{kinds := Allowed}
    end.

%% Only nodes that are connected to this one: no atom is made of what a stranger says.
caller({hello, #{caller := Caller, acceptor := Acceptor} = Hello}, Socket) ->
    case [Node || Node <- nodes(connected), atom_to_binary(Node) =:= Caller] of
        [Node] -> Acceptor =:= atom_to_binary(node()) orelse refuse(Socket, <<"another node was called">>), {Hello, Node};
        [] -> refuse(Socket, <<"not connected to this node">>)
    end;
caller(Word, _) -> error({badmatch, Word}).

is_proved({proof, Mac}, Cookie, Hello, Nonce) -> teleport_handshake:is_proof(Mac, caller, {Cookie, Hello}, Nonce);
is_proved(_, _, _, _) -> false.

-spec refuse(teleport_link:socket(), binary()) -> no_return().
refuse(Socket, Reason) ->
    _ = say(Socket, teleport_handshake:refused(Reason)),
    throw({fatal, Reason}).

cookie(Node) -> atom_to_binary(erlang:get_cookie(Node)).

agree(Socket, Role, Config, Deadline) -> teleport_link:agree(Socket, Role, Config, Deadline).

say({gen_tcp, Socket}, Word) -> said(gen_tcp:send(Socket, framed(Word)));
say({ssl, Socket}, Word) -> said(ssl:send(Socket, framed(Word))).

framed(Word) -> [<<(byte_size(Word)):16>>, Word].

said(ok) -> ok;
said({error, Reason}) -> failed(Reason).

%% The peer did not take our certificate: with TLS 1.3 that is heard of only now.
-spec failed(term()) -> no_return().
failed({tls_alert, Alert}) -> throw({fatal, text("TLS: ~0tp", [Alert])});
failed(Reason) -> throw({retry, Reason}).

hear(Socket, Deadline) ->
    <<Size:16>> = read(Socket, 2, Deadline),
    Size =< ?MAX_WORD orelse throw({fatal, <<"the other side does not speak the protocol of the lanes">>}),
    understood(read(Socket, Size, Deadline)).

understood(Bytes) ->
    case teleport_handshake:decode(Bytes) of
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
