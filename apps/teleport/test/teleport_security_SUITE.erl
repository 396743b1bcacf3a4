%% SPDX-License-Identifier: Apache-2.0
%% @doc What a lane's port says to those who are no peer, and what a lane does when its peer sends what no peer sends.
-module(teleport_security_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2]).
-export([wrong_proofs/1, replayed_proof/1, reflected_words/1, unknown_versions/1, nonsense/1, strangers_make_no_atoms/1, only_so_many_strangers/1,
         silence_ends/1, other_cookies/1, frames_that_no_peer_sends/1, the_cookie_is_never_sent/1, plain_and_tls/1, wrong_certificates/1,
         beside_tls/1, nothing_readable_beside_tls/1, without_shm_beside_tls/1, not_encrypted_beside_tls/1, other_certificate_beside_tls/1,
         no_options_beside_tls/1, host_is_an_address/1, older_version_beside_tls/1, one_port/1, another_backend/1]).
-export([rogue/4, listeners/0, older_teleport/1]).

suite() -> [{timetrap, {minutes, 3}}].

-define(PLAIN, [wrong_proofs, replayed_proof, reflected_words, unknown_versions, nonsense, strangers_make_no_atoms, only_so_many_strangers,
                silence_ends, other_cookies, frames_that_no_peer_sends, the_cookie_is_never_sent]).

-define(BESIDE_TLS, [beside_tls, nothing_readable_beside_tls, without_shm_beside_tls, not_encrypted_beside_tls]).

all() -> [{group, tcp}, {group, shared_port}, {group, tls}, {group, inet_tls}, {group, beamway_tls_shm}].

groups() ->
    [{tcp, [], ?PLAIN ++ [another_backend]}, {shared_port, [], ?PLAIN ++ [one_port, another_backend]},
     {tls, [], [plain_and_tls, wrong_certificates]}, {inet_tls, [], ?BESIDE_TLS},
     {beamway_tls_shm, [], ?BESIDE_TLS ++ [other_certificate_beside_tls, no_options_beside_tls, host_is_an_address, older_version_beside_tls, one_port]}].

%% These have TLS as their distribution.
init_per_group(Carrier, Config) when Carrier =:= inet_tls; Carrier =:= beamway_tls_shm ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    [{carrier, Carrier} | Config];
init_per_group(Kind, Config) -> teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)).

end_per_group(Carrier, _Config) when Carrier =:= inet_tls; Carrier =:= beamway_tls_shm -> ok;
end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

%% Where the second node listens for the first.
port(Config) ->
    {ok, #{ip := Ip, port := Port}} =
        beamway_peer:call(teleport_nodes:second(Config), teleport_listener, offer, [first_node(Config), teleport_connect:host_id(), true]),
    {Ip, Port}.

first_node(Config) -> element(2, proplists:get_value(pair, Config)).

connect(Config) -> connect_at(port(Config)).

connect_at({Ip, Port}) ->
    {ok, Socket} = gen_tcp:connect(Ip, Port, [binary, {active, false}, {packet, 2}], 10000),
    Socket.

hello(Config) ->
    #{caller => atom_to_binary(first_node(Config)), acceptor => atom_to_binary(teleport_nodes:second_node(Config)), class => normal, index => 9,
      nonce => teleport_handshake:nonce()}.

say(Socket, Word) -> ok = gen_tcp:send(Socket, Word).

hear(Socket) ->
    case gen_tcp:recv(Socket, 0, 20000) of
        {ok, Word} -> teleport_handshake:decode(Word);
        {error, Reason} -> Reason
    end.

challenged(Socket, Hello) ->
    say(Socket, teleport_handshake:hello(Hello)),
    {ok, {challenge, Nonce}} = hear(Socket),
    Nonce.

refused(Socket) ->
    Said = hear(Socket),
    %% What was said and not read makes of a close a reset.
    true = lists:member(Said, [closed, econnreset]) orelse is_refusal(Said) andalso lists:member(hear(Socket), [closed, econnreset]),
    no_lane.

is_refusal({ok, {refused, _}}) -> true;
is_refusal(_) -> false.

%% The cookie of the nodes of the tests.
cookie() -> <<"beamway_test">>.

wrong_proofs(Config) ->
    Hello = hello(Config),
    [begin
         Socket = connect(Config),
         Nonce = challenged(Socket, Hello),
         say(Socket, Proof(Nonce)),
         no_lane = refused(Socket)
     end || Proof <- [fun(Nonce) -> teleport_handshake:proof(<<"another">>, Hello, Nonce) end,
                      fun(_) -> teleport_handshake:proof(cookie(), Hello, teleport_handshake:nonce()) end,
                      fun(Nonce) -> teleport_handshake:proof(cookie(), Hello#{index := 8}, Nonce) end,
                      fun(Nonce) -> teleport_handshake:proof(cookie(), Hello#{caller := <<"another@host">>}, Nonce) end,
                      fun(Nonce) -> teleport_handshake:welcome(cookie(), Hello, Nonce) end,
                      fun(Nonce) -> teleport_handshake:challenge(Nonce) end]],
    %% Who may not even try: nodes that are not connected, calls for another node.
    [begin
         Socket = connect(Config),
         say(Socket, teleport_handshake:hello(Bad)),
         no_lane = refused(Socket)
     end || Bad <- [Hello#{caller := <<"stranger@host">>}, Hello#{acceptor := <<"another@host">>}, Hello#{caller := maps:get(acceptor, Hello)}]],
    no_lanes(Config),
    %% The right words get in.
    Socket = connect(Config),
    Nonce = challenged(Socket, Hello),
    say(Socket, teleport_handshake:proof(cookie(), Hello, Nonce)),
    {ok, {welcome, Mac}} = hear(Socket),
    true = teleport_handshake:is_proof(Mac, acceptor, {cookie(), Hello}, Nonce).

no_lanes(Config) ->
    [] = [L || #{index := 9} = L <- beamway_peer:call(teleport_nodes:second(Config), teleport, lanes, [])].

%% All words of a conversation that has succeeded, said again.
replayed_proof(Config) ->
    Hello = hello(Config),
    First = connect(Config),
    Proof = teleport_handshake:proof(cookie(), Hello, challenged(First, Hello)),
    say(First, Proof),
    {ok, {welcome, _}} = hear(First),
    Second = connect(Config),
    _ = challenged(Second, Hello),
    say(Second, Proof),
    no_lane = refused(Second).

%% A stranger makes the node its own oracle: with the challenge of one conversation as its nonce in another.
reflected_words(Config) ->
    One = connect(Config),
    Hello = hello(Config),
    Nonce = challenged(One, Hello),
    Other = connect(Config),
    Theirs = challenged(Other, Hello#{nonce := Nonce}),
    say(Other, teleport_handshake:challenge(Theirs)),
    no_lane = refused(Other),
    say(One, teleport_handshake:hello(Hello)),
    no_lane = refused(One).

unknown_versions(Config) ->
    <<Magic:4/binary, Version, Rest/binary>> = teleport_handshake:hello(hello(Config)),
    [begin
         Socket = connect(Config),
         say(Socket, <<Magic/binary, Other, Rest/binary>>),
         no_lane = refused(Socket)
     end || Other <- [0, Version + 1, 255]].

nonsense(Config) ->
    [begin
         {Ip, Port} = port(Config),
         {ok, Socket} = gen_tcp:connect(Ip, Port, [binary, {active, false}], 10000),
         ok = gen_tcp:send(Socket, Bytes),
         %% It may have hung up by then.
         _ = gen_tcp:shutdown(Socket, write),
         closed = closed(Socket)
     end || Bytes <- [<<>>, <<0>>, <<0:16>>, <<"GET / HTTP/1.1\r\n\r\n">>, <<(1 bsl 40):64, 0:64>>, <<16#ffff:16, 0:800>>, <<4:16, "BWTP">>,
                      <<1025:16, 0:8200>>, term_to_binary(lists:seq(1, 1000)), rand:bytes(5000)]].

closed(Socket) ->
    case gen_tcp:recv(Socket, 0, 20000) of
        {ok, _} -> closed(Socket);
        {error, _} -> closed
    end.

strangers_make_no_atoms(Config) ->
    Peer = teleport_nodes:second(Config),
    Attempts = beamway_carrier:scale(1000, 1000000),
    _ = ct:timetrap({minutes, beamway_carrier:scale(3, 30)}),
    Hello = hello(Config),
    At = port(Config),
    Try = fun(N) ->
        Socket = connect_at(At),
        Name = <<"stranger", (integer_to_binary(N))/binary, "@host">>,
        Word = case N rem 3 of
                   0 -> teleport_handshake:hello(Hello#{caller := Name});
                   1 -> teleport_handshake:hello(Hello#{acceptor := Name});
                   2 -> <<131, 100, (byte_size(Name)):16, Name/binary>>
               end,
        say(Socket, Word),
        no_lane = refused(Socket),
        ok = gen_tcp:close(Socket)
    end,
    [Try(N) || N <- lists:seq(1, 30)],
    Memory = beamway_peer:call(Peer, erlang, memory, [processes]),
    Numbers = lists:seq(100, 100 + Attempts),
    lists:foreach(Try, Numbers),
    [] = beamway_peer:run(Peer, fun() -> [N || N <- Numbers, is_atom_of(<<"stranger", (integer_to_binary(N))/binary, "@host">>)] end),
    true = beamway_peer:call(Peer, erlang, memory, [processes]) - Memory < 20000000,
    no_lanes(Config).

is_atom_of(Name) ->
    try is_atom(binary_to_existing_atom(Name)) catch error:badarg -> false end.

only_so_many_strangers(Config) ->
    {PeerA, NodeA} = teleport_nodes:start(teleport_nodes:kind(Config)),
    {PeerB, NodeB} = teleport_nodes:start(teleport_nodes:kind(Config), #{teleport => #{max_strangers => 5, stranger_ms => 2000}}),
    ok = teleport_nodes:connect(PeerA, NodeB),
    Pair = [{pair, {PeerA, NodeA, PeerB, NodeB}} | Config],
    {At, Hello} = {port(Pair), teleport_handshake:hello(hello(Pair))},
    %% At the port of the distribution a lane begins with its first word. At one of its own some are turned away before they can say it.
    Strangers = [begin Socket = connect_at(At), _ = gen_tcp:send(Socket, Hello), Socket end || _ <- lists:seq(1, 30)],
    Challenged = [Socket || Socket <- Strangers, {ok, {challenge, _}} <- [hear(Socket)]],
    true = length(beamway_peer:call(PeerB, supervisor, which_children, [teleport_lane_sup])) =< 5,
    true = Challenged =/= [] andalso length(Challenged) < length(Strangers),
    %% A peer that comes meanwhile is turned away at first; it tries again, and gets in when they have been shown out.
    ok = beamway_peer:call(PeerA, teleport, prime, [NodeB, infinity]),
    [closed = closed(Socket) || Socket <- Strangers],
    beamway_peer:stop_all([PeerA, PeerB]).

silence_ends(Config) ->
    ok = beamway_peer:call(teleport_nodes:second(Config), teleport, configure, [all, #{stranger_ms => 1500 * beamway_runner:slowness()}]),
    Before = connect(Config),
    Middle = connect(Config),
    _ = challenged(Middle, hello(Config)),
    [no_lane = refused(Socket) || Socket <- [Before, Middle]],
    ok = beamway_peer:call(teleport_nodes:second(Config), teleport, configure, [all, #{stranger_ms => 5000}]).

%% The distribution connection is up, and one side has another cookie since.
other_cookies(Config) ->
    {PeerA, _} = teleport_nodes:start(teleport_nodes:kind(Config)),
    {PeerB, NodeB} = teleport_nodes:start(teleport_nodes:kind(Config)),
    ok = teleport_nodes:connect(PeerA, NodeB),
    ok = beamway_peer:run(PeerA, fun() ->
        true = erlang:set_cookie(NodeB, another),
        {error, {no_lane, Why}} = teleport:send({x, NodeB}, x),
        true = string:find(Why, "another cookie") =/= nomatch,
        {'EXIT', {{no_lane, Why}, {teleport, call, _}}} = (catch teleport:call({x, NodeB}, x)),
        true = erlang:set_cookie(NodeB, beamway_test),
        ok = teleport:send({x, NodeB}, x)
    end),
    beamway_peer:stop_all([PeerA, PeerB]).

%% From a real lane whose caller is a rogue: this lane ends, everything else goes on.
frames_that_no_peer_sends(Config) ->
    PeerB = teleport_nodes:second(Config),
    Frames = [<<>>, <<0>>, <<99, 1, 2>>,
              teleport_frame:announce(1, message, [1 bsl 40]), teleport_frame:announce(1, message, [1 bsl 63, 1 bsl 63]),
              teleport_frame:announce(1, reply, [10]) , teleport_frame:piece(5, 13, <<"not announced">>), teleport_frame:piece(5, 3, <<"more than that">>),
              teleport_frame:piece(5, 1 bsl 40, <<"too large">>),
              teleport_frame:small(message, <<"no term">>), teleport_frame:small(message, term_to_binary(no_pair)),
              teleport_frame:small(call, term_to_binary([not_a_ref, self(), x | y])), teleport_frame:small(call, term_to_binary([make_ref(), no_pid, x | y])),
              teleport_frame:small(call, term_to_binary([make_ref(), self(), "name" | y])),
              teleport_frame:small(cancel, term_to_binary(x)), teleport_frame:small(apply, term_to_binary([make_ref(), self(), m, f | no_list])),
              teleport_frame:small(reply, term_to_binary([make_ref() | reply])), teleport_frame:ack(5),
              teleport_frame:batch([{message, <<"no term">>, 7}]), teleport_frame:batch([{reply, term_to_binary(x), byte_size(term_to_binary(x))}]),
              <<131, 119, 255>>, binary:copy(<<1>>, 20000000)],
    [begin
         {Ip, Port} = port(Config),
         {closed, _} = {beamway_peer:call(teleport_nodes:first(Config), ?MODULE, rogue, [{Ip, Port}, cookie(), hello(Config), iolist_to_binary(Frame)]), Number}
     end || {Number, Frame} <- lists:zip(lists:seq(1, length(Frames)), Frames)],
    _ = beamway_peer:wait_until(fun() -> [] =:= [L || #{index := 9} = L <- beamway_peer:call(PeerB, teleport, lanes, [])] end, 10000),
    %% Only announced, nothing came: nothing was allocated for it.
    true = beamway_peer:call(PeerB, erlang, memory, [total]) < 200000000,
    teleport_nodes:on_first(Config, fun(Node) -> Node = teleport:erpc_call(Node, erlang, node, []) end).

%% @private A caller that knows the cookie, sends one frame and waits for the lane's end.
rogue({Ip, Port}, Cookie, Hello, Frame) ->
    {ok, Socket} = gen_tcp:connect(Ip, Port, [binary, {active, false}, {packet, raw}], 10000),
    Tell = fun(Word) -> ok = gen_tcp:send(Socket, [<<(byte_size(Word)):16>>, Word]) end,
    Listen = fun() -> {ok, <<Size:16>>} = gen_tcp:recv(Socket, 2, 10000), {ok, Word} = gen_tcp:recv(Socket, Size, 10000), teleport_handshake:decode(Word) end,
    Tell(teleport_handshake:hello(Hello)),
    {ok, {challenge, Nonce}} = Listen(),
    Tell(teleport_handshake:proof(Cookie, Hello, Nonce)),
    {ok, {welcome, _}} = Listen(),
    {ok, Lane, _} = beamway_lane:agree(Socket, caller, #{kinds => [tcp]}),
    ok = beamway_lane:credit(Lane, 1000, 1000000),
    _ = beamway_lane:send_wait(Lane, Frame),
    lane_end(Lane).

lane_end(Lane) ->
    receive
        {Lane, {data, _}} -> lane_end(Lane);
        {Lane, closed, _, _} -> closed
    after 20000 -> still_open
    end.

%% What goes over the wire when a lane is opened holds it nowhere.
the_cookie_is_never_sent(Config) ->
    Hello = hello(Config),
    Nonce = teleport_handshake:nonce(),
    [nomatch = binary:match(iolist_to_binary(Word), cookie())
     || Word <- [teleport_handshake:hello(Hello), teleport_handshake:proof(cookie(), Hello, Nonce), teleport_handshake:welcome(cookie(), Hello, Nonce)]].

%% Nodes of which one has TLS lanes say so, and a plain caller gets nothing from a TLS port.
plain_and_tls(Config) ->
    {Plain, PlainNode} = teleport_nodes:start(tcp),
    true = beamway_peer:call(Plain, net_kernel, connect_node, [teleport_nodes:second_node(Config)]),
    Node = teleport_nodes:second_node(Config),
    {error, {no_lane, <<"the peer has lanes over TLS only", _/binary>>}} = beamway_peer:call(Plain, teleport, prime, [Node]),
    {error, {no_lane, <<"this node has lanes over TLS only", _/binary>>}} = beamway_peer:call(teleport_nodes:second(Config), teleport, prime, [PlainNode]),
    {Ip, Port} = port(Config),
    {ok, Socket} = gen_tcp:connect(Ip, Port, [binary, {active, false}, {packet, 2}], 10000),
    say(Socket, teleport_handshake:hello(hello(Config))),
    closed = closed(Socket),
    beamway_peer:stop(Plain).

wrong_certificates(Config) ->
    Base = filename:rootname(beamway_certificates:optfile("lane-stranger", other_authority)),
    Options = #{teleport => #{tls => [{certfile, Base ++ ".pem"}, {keyfile, Base ++ ".key"}, {cacertfile, Base ++ ".ca"}]}},
    {Peer, _} = teleport_nodes:start(tls, Options),
    Node = teleport_nodes:second_node(Config),
    true = beamway_peer:call(Peer, net_kernel, connect_node, [Node]),
    {error, {no_lane, <<"TLS: ", _/binary>>}} = beamway_peer:call(Peer, teleport, prime, [Node]),
    ok = beamway_peer:call(teleport_nodes:first(Config), teleport, prime, [Node]),
    beamway_peer:stop(Peer).

%% Where the distribution goes over TLS, lanes do, too: with its certificates and without an option. On one host they are over shared memory, as its data.
beside_tls(Config) ->
    {PeerA, PeerB, NodeB} = Pair = tls_pair(Config, []),
    Both = [PeerA, PeerB],
    [{shm, <<"same host">>}] = lanes(Pair),
    NodeB = beamway_peer:call(PeerA, teleport, erpc_call, [NodeB, erlang, node, []]),
    [begin
         ok = configure(Both, #{kinds => [shm, rdma, tcp]}),
         ok = configure(Peers, #{kinds => [tcp, rdma]}),
         [{tls, <<"the distribution goes over TLS", _/binary>>}] = lanes(Pair),
         NodeB = beamway_peer:call(PeerA, teleport, erpc_call, [NodeB, erlang, node, []])
     end || Peers <- [Both, [PeerA], [PeerB]]],
    %% One side alone does not get plain lanes, whichever calls.
    ok = configure(Both, #{kinds => [tcp, rdma]}),
    [begin
         ok = configure([Peer], #{plaintext => true}),
         [{tls, _}] = lanes(Pair),
         ok = configure([Peer], #{plaintext => false})
     end || Peer <- Both],
    %% Nor where the called node forbids them for this caller alone.
    ok = configure(Both, #{plaintext => true}),
    [{tcp, _}] = lanes(Pair),
    ok = beamway_peer:call(PeerB, teleport, configure, [beamway_peer:call(PeerA, erlang, node, []), #{plaintext => false}]),
    [{tls, _}] = lanes(Pair),
    ok = configure(Both, #{plaintext => false}),
    %% With certificates of their own, on both sides or on one.
    Base = filename:rootname(beamway_certificates:good()),
    ok = configure([PeerA], #{tls => [{certfile, Base ++ ".pem"}, {keyfile, Base ++ ".key"}, {cacertfile, Base ++ ".ca"}]}),
    [{tls, <<"the option tls">>}] = lanes(Pair),
    ok = configure([PeerB], #{tls => [{certfile, Base ++ ".pem"}, {keyfile, Base ++ ".key"}, {cacertfile, Base ++ ".ca"}]}),
    [{tls, <<"the option tls">>}] = lanes(Pair),
    beamway_peer:stop_all(Both).

%% No other listener than the distribution's, whatever the lanes go over. Where lanes shall come elsewhere, it has one.
one_port(Config) ->
    {PeerA, PeerB, NodeB} = Pair =
        case proplists:get_value(carrier, Config) of
            undefined ->
                [{One, _}, {Other, Node}] = [teleport_nodes:start(shared_port) || _ <- [a, b]],
                ok = teleport_nodes:connect(One, Node),
                {One, Other, Node};
            _ -> tls_pair(Config, [])
        end,
    Listeners = fun(Peer) -> length(beamway_peer:call(Peer, ?MODULE, listeners, [])) end,
    [begin
         ok = configure([PeerA, PeerB], #{kinds => Kinds}),
         [{_, _}] = lanes(Pair),
         NodeB = beamway_peer:call(PeerA, teleport, erpc_call, [NodeB, erlang, node, []]),
         {1, 1} = {Listeners(PeerA), Listeners(PeerB)}
     end || Kinds <- [[shm, tcp], [tcp]]],
    ok = beamway_peer:stop_all([PeerA, PeerB]),
    {PeerC, _} = teleport_nodes:start(shared_port),
    {PeerD, NodeD} = teleport_nodes:start(shared_port, #{teleport => #{ports => {20000, 30000}}}),
    ok = teleport_nodes:connect(PeerC, NodeD),
    [{tcp, _}] = lanes({PeerC, PeerD, NodeD}),
    {1, 2} = {Listeners(PeerC), Listeners(PeerD)},
    beamway_peer:stop_all([PeerC, PeerD]).

%% The node's other sockets of gen_tcp are no ports.
another_backend(Config) ->
    [{PeerA, _}, {PeerB, NodeB}] =
        [teleport_nodes:start(teleport_nodes:kind(Config), #{args => ["-kernel", "inet_backend", "socket"]}) || _ <- [a, b]],
    ok = teleport_nodes:connect(PeerA, NodeB),
    false = beamway_peer:run(PeerA, fun() -> {ok, Socket} = gen_tcp:listen(0, []), is_port(Socket) end),
    [{tcp, _}] = lanes({PeerA, PeerB, NodeB}),
    NodeB = beamway_peer:call(PeerA, teleport, erpc_call, [NodeB, erlang, node, []]),
    beamway_peer:stop_all([PeerA, PeerB]).

%% @private
-spec listeners() -> [port()].
listeners() ->
    [Port || Port <- erlang:ports(), erlang:port_info(Port, name) =:= {name, "tcp_inet"}, {ok, Flags} <- [prim_inet:getstatus(Port)], lists:member(listen, Flags)].

%% The same message is found where plain lanes were asked for.
nothing_readable_beside_tls(Config) ->
    Secret = <<"a message of lanes that nobody shall read">>,
    {PeerA, PeerB, NodeB} = Pair = tls_pair(Config, []),
    ok = configure([PeerA, PeerB], #{kinds => [tcp]}),
    Captured = [begin
                    ok = configure([PeerA, PeerB], #{plaintext => Plaintext}),
                    [{Kind, _}] = lanes(Pair),
                    Say = fun() -> beamway_peer:call(PeerA, teleport, erpc_call, [NodeB, binary, copy, [Secret]]) end,
                    {Kind, beamway_capture:during(Say)}
                end || {Plaintext, Kind} <- [{true, tcp}, {false, tls}]],
    ok = beamway_peer:stop_all([PeerA, PeerB]),
    case Captured of
        [{tcp, {Secret, Clear}}, {tls, {Secret, Encrypted}}] ->
            {true, nomatch} = {binary:match(Clear, Secret) =/= nomatch, binary:match(Encrypted, Secret)};
        [{_, {skip, Reason}} | _] ->
            {skip, Reason}
    end.

%% Shared memory is allowed but not available: TLS takes its place, and says why.
without_shm_beside_tls(Config) ->
    {PeerA, PeerB, NodeB} = Pair = tls_pair(Config, [{"BEAMWAY_LINKS", "inet"}]),
    [{tls, Why}] = lanes(Pair),
    [true = binary:match(Why, Part) =/= nomatch || Part <- [<<"the distribution goes over TLS">>, <<"shared memory is off">>]],
    NodeB = beamway_peer:call(PeerA, teleport, erpc_call, [NodeB, erlang, node, []]),
    beamway_peer:stop_all([PeerA, PeerB]).

%% The option tls is none: over shared memory or not at all, until both ask for plain lanes. Without the option on one side that decides, too.
not_encrypted_beside_tls(Config) ->
    {PeerA, PeerB, _} = Pair = tls_pair(Config, []),
    Both = [PeerA, PeerB],
    [begin
         ok = configure(Both, #{tls => auto, kinds => [tcp, rdma]}),
         ok = configure(Peers, #{tls => none}),
         ok = is_refused(Pair, <<"shm is not among the">>)
     end || Peers <- [Both, [PeerA], [PeerB]]],
    ok = configure(Both, #{tls => none}),
    [begin
         ok = configure([Peer], #{plaintext => true}),
         ok = is_refused(Pair, <<"shm is not among the">>),
         ok = configure([Peer], #{plaintext => false})
     end || Peer <- Both],
    ok = configure(Both, #{plaintext => true}),
    [{tcp, _}] = lanes(Pair),
    ok = configure(Both, #{plaintext => false, kinds => [shm, rdma, tcp]}),
    [{shm, _}] = lanes(Pair),
    beamway_peer:stop_all(Both).

%% A lane's peer must have what the distribution's must: the options are read again for each lane.
other_certificate_beside_tls(Config) ->
    [begin
         File = beamway_certificates:optfile("lane-" ++ atom_to_list(Kind), good),
         {PeerA, PeerB, NodeB} = Pair = tls_pair(Config, [], ["-proto_dist", "beamway_tls", "-ssl_dist_optfile", File]),
         ok = configure([PeerA, PeerB], #{kinds => [tcp]}),
         File = beamway_certificates:optfile("lane-" ++ atom_to_list(Kind), Kind),
         [ok = beamway_peer:call(Peer, ssl, clear_pem_cache, []) || Peer <- [PeerA, PeerB]],
         {Kind, {error, {no_lane, <<"TLS: ", Why/binary>>}}} = {Kind, beamway_peer:call(PeerA, teleport, prime, [NodeB, teleport_nodes:wait_ms()])},
         {Kind, true} = {Kind, binary:match(Why, Alert) =/= nomatch},
         [] = beamway_peer:call(PeerB, teleport, lanes, []),
         File = beamway_certificates:optfile("lane-" ++ atom_to_list(Kind), good),
         [ok = beamway_peer:call(Peer, ssl, clear_pem_cache, []) || Peer <- [PeerA, PeerB]],
         [{tls, _}] = lanes(Pair),
         beamway_peer:stop_all([PeerA, PeerB])
     end || {Kind, Alert} <- [{expired, <<"certificate_expired">>}, {other_host, <<"handshake_failure">>}, {self_signed, <<"bad_certificate">>}]].

%% The distribution is connected, and then the options cannot be read any more.
no_options_beside_tls(Config) ->
    File = beamway_certificates:optfile("lane-lost", good),
    {PeerA, PeerB, NodeB} = Pair = tls_pair(Config, [], ["-proto_dist", "beamway_tls", "-ssl_dist_optfile", File]),
    ok = configure([PeerA, PeerB], #{kinds => [tcp]}),
    ok = file:rename(File, File ++ ".away"),
    {error, {no_lane, <<"TLS: -ssl_dist_optfile: cannot read ", _/binary>>}} = beamway_peer:call(PeerA, teleport, prime, [NodeB, teleport_nodes:wait_ms()]),
    ok = file:rename(File ++ ".away", File),
    [{tls, _}] = lanes(Pair),
    beamway_peer:stop_all([PeerA, PeerB]).

%% Lanes of one host go by the loopback interface. What the certificate must have is the address in the node's name.
host_is_an_address(Config) ->
    [begin
         File = beamway_certificates:optfile(Name, Kind),
         Flags = ["-proto_dist", "beamway_tls", "-ssl_dist_optfile", File],
         [{PeerA, _}, {PeerB, NodeB}] = [with_teleport(Config, #{host => "127.0.0.2", flags => Flags}) || _ <- [a, b]],
         ok = teleport_nodes:connect(PeerA, NodeB),
         ok = configure([PeerA, PeerB], #{kinds => [tcp]}),
         [{tls, _}] = lanes({PeerA, PeerB, NodeB}),
         %% One for another address.
         _ = beamway_certificates:optfile(Name, good),
         [ok = beamway_peer:call(Peer, ssl, clear_pem_cache, []) || Peer <- [PeerA, PeerB]],
         {error, {no_lane, <<"TLS: ", _/binary>>}} = lanes({PeerA, PeerB, NodeB}),
         beamway_peer:stop_all([PeerA, PeerB])
     end || {Name, Kind} <- [{"lane-address", {address, {127, 0, 0, 2}}}]].

%% The version before lanes took the distribution's certificates: plain lanes are shm only, as there, and one message says what keeps the others away.
older_version_beside_tls(Config) ->
    case older_teleport(proplists:get_value(priv_dir, Config)) of
        {ok, Ebin} ->
            [begin
                 Ours = {PeerA, NodeA} = with_teleport(Config, #{}),
                 Older = {PeerB, NodeB} = with_teleport(Config, #{args => ["-pa", Ebin]}),
                 false = beamway_peer:call(PeerB, code, is_loaded, [teleport_ways]),
                 ok = teleport_nodes:connect(PeerA, NodeB),
                 {Caller, Called} = case Who of ours -> {PeerA, NodeB}; older -> {PeerB, NodeA} end,
                 Pair = {Caller, none, Called},
                 [{shm, _}] = lanes(Pair),
                 ok = configure([PeerA, PeerB], #{kinds => [tcp]}),
                 {error, {no_lane, Why}} = lanes(Pair),
                 {Who, true} = {Who, binary:match(Why, Says) =/= nomatch},
                 _ = {Ours, Older},
                 beamway_peer:stop_all([PeerA, PeerB])
             end || {Who, Says} <- [{ours, <<"set tls on both nodes, or plaintext => true on both">>}, {older, <<"this node has no option tls">>}]],
            ok;
        Skip -> Skip
    end.

%% @private The commit before the one that brought teleport_ways, built. Its teleport is that of 0.1.0.
older_teleport(Folder) ->
    Git = "git -C '" ++ test_support:checkout() ++ "' ",
    Say = fun(Arguments) -> string:trim(os:cmd(Git ++ Arguments ++ " 2>/dev/null")) end,
    case Say("log -1 --format=%H --diff-filter=A -- apps/teleport/src/teleport_ways.erl") of
        "" -> {skip, "the history of the repository is not here"};
        Commit ->
            case Say("rev-parse --verify --quiet " ++ Commit ++ "^") of
                "" -> {skip, "the repository is a shallow clone"};
                Before -> built(Say, Before, Folder)
            end
    end.

built(Say, Commit, Folder) ->
    "" = Say("archive " ++ Commit ++ " apps/teleport | tar -x -C '" ++ Folder ++ "'"),
    Ebin = filename:join(Folder, "apps/teleport/ebin"),
    ok = filelib:ensure_dir(filename:join(Ebin, "x")),
    [{ok, _} = compile:file(Source, [report_errors, {outdir, Ebin}])
     || Source <- filelib:wildcard(filename:join(Folder, "apps/teleport/src/*.erl"))],
    {ok, _} = file:copy(filename:join(Folder, "apps/teleport/src/teleport.app.src"), filename:join(Ebin, "teleport.app")),
    {ok, Ebin}.

tls_pair(Config, Environment) -> tls_pair(Config, Environment, none).

tls_pair(Config, Environment, Flags) ->
    Options = case Flags of none -> #{env => Environment}; _ -> #{env => Environment, flags => Flags} end,
    [{PeerA, _}, {PeerB, NodeB}] = [with_teleport(Config, Options) || _ <- [a, b]],
    ok = teleport_nodes:connect(PeerA, NodeB),
    {PeerA, PeerB, NodeB}.

with_teleport(Config, Options) ->
    {ok, Peer, Node} = beamway_peer:start(proplists:get_value(carrier, Config), Options),
    {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [teleport]),
    {Peer, Node}.

configure(Peers, Options) ->
    [ok = beamway_peer:call(Peer, teleport, configure, [all, Options]) || Peer <- Peers],
    ok.

%% The error names the reason, and what to do.
is_refused({PeerA, PeerB, NodeB} = Pair, Reason) ->
    ok = no_lanes_yet(Pair),
    {error, {no_lane, Why}} = beamway_peer:call(PeerA, teleport, prime, [NodeB, teleport_nodes:wait_ms()]),
    {error, {no_lane, Why}} = beamway_peer:call(PeerA, teleport, send, [{x, NodeB}, x, #{timeout => teleport_nodes:wait_ms()}]),
    [true = binary:match(Why, Part) =/= nomatch
     || Part <- [<<"the distribution goes over TLS">>, <<"set tls => auto on both nodes, or plaintext => true on both">>, Reason]],
    [] = beamway_peer:call(PeerB, teleport, lanes, []),
    ok.

%% Of lanes that are opened now.
lanes({PeerA, _, NodeB} = Pair) ->
    ok = no_lanes_yet(Pair),
    case beamway_peer:call(PeerA, teleport, prime, [NodeB, teleport_nodes:wait_ms()]) of
        ok -> lists:usort([{Kind, maps:get(reason, Lane, older)} || #{kind := Kind} = Lane <- beamway_peer:call(PeerA, teleport, lanes, [])]);
        Error -> Error
    end.

%% Options hold for lanes that are opened after.
no_lanes_yet({PeerA, _, _}) ->
    Given = beamway_peer:call(PeerA, teleport_config, of_node, [node()]),
    ok = beamway_peer:call(PeerA, application, stop, [teleport]),
    ok = beamway_peer:call(PeerA, application, start, [teleport]),
    ok = configure([PeerA], Given).
