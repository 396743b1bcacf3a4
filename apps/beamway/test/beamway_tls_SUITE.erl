%% SPDX-License-Identifier: Apache-2.0
%% @doc The TLS carriers: everything that works over TCP must also work over TLS. {@link beamway_tls_entry_SUITE} tests which certificates are
%% accepted.
%%
%% The data cases are those of every carrier ({@link beamway_signals_SUITE}, {@link beamway_messages_SUITE}). Each case here starts its own nodes. The
%% certificates are created for each run.
-module(beamway_tls_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([shm_between_nodes_of_one_host/1, tls_where_shm_is_off/1, sockets_that_are_no_ports/1, with_stock_tls/1, ipv6/1, ip_hosts/1, long_boot/1,
         wrong_cookie_is_refused/1,
         plain_nodes_are_refused/1, silent_callers_keep_nobody_waiting/1,
         another_certificate_without_restart/1, another_certificate_in_place/1, connections_are_renewed/1, files_are_watched/1, other_links_stay/1, options_without_file/1, options_beside_file/1, verify_fun_without_file/1,
         socket_options/1, name_in_use/1, distribution_stopped_and_started/1, no_ssl/1, no_descriptor_to_accept/1, link_server_hangs/1, invalid_options_end_the_start/1,
         killed_peer/1, stopped_peer/1, silent_peer_stays/1, last_words/1, reconnects_leave_nothing/1,
         nothing_readable_on_the_wire/1]).
%% Called on the nodes.
-export([verify/3, seen/3]).

-define(NODEDOWN_MS, 30000).
-define(ANSWER_MS, 30000).
-define(SILENT_MS, 12000).
-define(RENEWED_MS, 40000).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [shm_between_nodes_of_one_host, tls_where_shm_is_off, sockets_that_are_no_ports, with_stock_tls, ipv6, ip_hosts, long_boot,
     wrong_cookie_is_refused,
     plain_nodes_are_refused, silent_callers_keep_nobody_waiting,
     another_certificate_without_restart, another_certificate_in_place, connections_are_renewed, files_are_watched, other_links_stay, options_without_file, options_beside_file, verify_fun_without_file,
     socket_options, name_in_use, distribution_stopped_and_started, no_ssl, no_descriptor_to_accept, link_server_hangs, invalid_options_end_the_start,
     killed_peer, stopped_peer, silent_peer_stays, last_words, reconnects_leave_nothing,
     nothing_readable_on_the_wire].

init_per_suite(Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    Config.

end_per_suite(_Config) -> ok.

end_per_testcase(_Case, _Config) ->
    beamway_peer:stop_started().

%% ---- kinds of links ----

shm_between_nodes_of_one_host(_Config) ->
    {One, _, Other, _} = pair(beamway_tls_shm),
    ok = is_connected(One, Other).

%% The driver carries the data, or ssl's processes if one of the two nodes requests that.
tls_where_shm_is_off(_Config) ->
    [begin
         {ok, One, _} = beamway_peer:start(Carrier),
         {ok, Other, OtherNode} = beamway_peer:start(OtherCarrier),
         true = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
         ok = beamway_peer:assert_link(One, OtherNode, Kind),
         ok = is_connected(One, Other),
         {ok, #{link := tls, reason := <<"shared memory is off on this node; ", Why/binary>>, bytes_in := In}} =
             beamway_peer:call(One, beamway, info, [OtherNode]),
         Said = binary:part(Why, 0, byte_size(Said)),
         true = In > 0,
         Text = unicode:characters_to_list(beamway_peer:call(One, beamway, metrics, [])),
         true = string:find(Text, "link=\"tls\"") =/= nomatch,
         ok = beamway_peer:stop_all([One, Other])
     end || {Carrier, OtherCarrier, Kind, Said} <- [{beamway_tls, beamway_tls, tls, <<"TLS_">>},
                                                    {beamway_tls, beamway_ssl, ssl, <<"ssl's processes: the peer's driver has no TLS">>},
                                                    {beamway_ssl, beamway_tls, ssl, <<"ssl's processes: this node's driver has no TLS">>}]].

%% The driver cannot take over sockets of gen_tcp's other backend, so ssl's processes keep the connection.
sockets_that_are_no_ports(_Config) ->
    {ok, Odd, OddNode} = beamway_peer:start(beamway_tls, #{args => ["-kernel", "inet_backend", "socket"]}),
    {ok, Other, OtherNode} = beamway_peer:start(beamway_tls),
    ssl_both_ways({Odd, OddNode}, {Other, OtherNode}).

%% Either side may call, and both use the same protocol.
with_stock_tls(_Config) ->
    {ok, Ours, OurNode} = beamway_peer:start(beamway_tls_shm),
    {ok, Stock, StockNode} = beamway_peer:start(inet_tls),
    ssl_both_ways({Ours, OurNode}, {Stock, StockNode}).

ssl_both_ways({One, OneNode}, {Other, OtherNode}) ->
    [begin
         true = beamway_peer:call(Caller, net_kernel, connect_node, [Called]),
         ok = beamway_peer:assert_link(One, OtherNode, ssl),
         ok = is_connected(One, Other),
         true = beamway_peer:call(Caller, erlang, disconnect_node, [Called]),
         ok = beamway_peer:wait_disconnected(One, OtherNode),
         ok = beamway_peer:wait_disconnected(Other, OneNode)
     end || {Caller, Called} <- [{One, OtherNode}, {Other, OneNode}]].

ipv6(_Config) ->
    case test_support:has_ipv6() of
        true ->
            Options = #{host => "::1", flags => tls_flags("beamway6_tls", beamway_certificates:good())},
            {One, _, Other, OtherNode} = beamway_peer:connected_pair(beamway_tls_shm, Options),
            ok = is_connected(One, Other),
            %% This node does not listen.
            {ok, Third, _} = beamway_peer:start(beamway_tls_shm, Options#{args => ["-dist_listen", "false"]}),
            ok = beamway_peer:connect(beamway_tls_shm, Third, OtherNode);
        false ->
            {skip, "this host has no IPv6"}
    end.

%% The host part of the node name is an address, and so is the name in the certificate.
ip_hosts(_Config) ->
    {One, _, Other, _} = beamway_peer:connected_pair(beamway_tls, #{host => "127.0.0.1"}),
    ok = is_connected(One, Other).

%% A node is called while it boots, before ssl can start: the caller waits, and is then connected.
long_boot(_Config) ->
    {ok, One, _} = beamway_peer:start(beamway_tls),
    Name = beamway_peer:unique_name("bwboot"),
    Node = list_to_atom(Name ++ "@" ++ host()),
    Call = beamway_peer:async(
             fun() ->
                     beamway_peer:wait_until(
                       fun() -> beamway_peer:call(One, net_kernel, connect_node, [Node]) end, 20000)
             end),
    {ok, _Other, Node} = beamway_peer:start(beamway_tls, #{name => Name}),
    true = beamway_peer:await(Call).

%% ---- access control ----

wrong_cookie_is_refused(_Config) ->
    {ok, Good, GoodNode} = beamway_peer:start(beamway_tls_shm),
    {ok, Stranger, StrangerNode} = beamway_peer:start(beamway_tls_shm, #{cookie => "another"}),
    false = beamway_peer:call(Stranger, net_kernel, connect_node, [GoodNode]),
    false = beamway_peer:call(Good, net_kernel, connect_node, [StrangerNode]),
    [] = beamway_peer:maps(beamway_peer:os_pid(Good)).

%% A node of a TLS cluster rejects a node without TLS, and vice versa.
plain_nodes_are_refused(Config) ->
    [begin
         {ok, Good, GoodNode, Log} = start_logging(Config, Name, beamway_certificates:good()),
         {ok, Plain, PlainNode} = beamway_peer:start(Carrier),
         false = beamway_peer:call(Plain, net_kernel, connect_node, [GoodNode]),
         false = beamway_peer:call(Good, net_kernel, connect_node, [PlainNode]),
         ok = logs(Log, "beamway: no TLS connection", "the peer speaks no TLS")
     end || {Carrier, Name} <- [{inet_tcp, "stock"}, {beamway_shm, "plain"}]],
    {ok, Good, _} = beamway_peer:start(beamway_tls_shm),
    {ok, Other, _} = beamway_peer:start(beamway_tls_shm),
    ok = beamway_peer:connect_both(beamway_tls_shm, Other, Good).

silent_callers_keep_nobody_waiting(_Config) ->
    {ok, Good, GoodNode} = beamway_peer:start(beamway_tls),
    {ok, Other, _} = beamway_peer:start(beamway_tls),
    Port = listening_port(GoodNode),
    Sockets = [begin
                   {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [{active, false}]),
                   Socket
               end || _ <- lists:seq(1, 50)],
    ok = beamway_peer:connect_both(beamway_tls, Other, Good),
    %% The node closes these connections after net_setuptime, as it does for any caller.
    [closed = read_to_end(Socket) || Socket <- Sockets].

%% ssl of OTP 27 sends an alert before it closes a connection.
read_to_end(Socket) ->
    case gen_tcp:recv(Socket, 0, 20000 * beamway_runner:slowness()) of
        {ok, [21 | _]} -> read_to_end(Socket);
        {error, Reason} -> Reason
    end.

%% ---- options ----

%% The file is read for each connection.
another_certificate_without_restart(Config) ->
    {ok, Good, GoodNode} = beamway_peer:start(beamway_tls, #{args => ["-hidden"]}),
    File = beamway_certificates:optfile("renewed", expired),
    {ok, Renewed, RenewedNode, Log} = start_logging(Config, "renewed", File),
    false = beamway_peer:call(Good, net_kernel, connect_node, [RenewedNode]),
    true = certificate_end(Renewed) < os:system_time(second),
    {ok, Fresh} = file:read_file(beamway_certificates:good()),
    ok = file:write_file(File, Fresh),
    ok = beamway_peer:call(Renewed, beamway, reload_certificates, []),
    true = certificate_end(Renewed) > os:system_time(second),
    true = beamway_peer:call(Good, net_kernel, connect_node, [RenewedNode]),
    ok = is_connected(Good, Renewed),
    true = beamway_peer:call(Good, erlang, disconnect_node, [RenewedNode]),
    ok = beamway_peer:wait_disconnected(Good, RenewedNode),
    ok = beamway_peer:wait_disconnected(Renewed, GoodNode),
    %% A file that cannot be read is reported, whichever side calls; the node survives.
    ok = file:write_file(File, "[{server, [}]."),
    false = beamway_peer:call(Good, net_kernel, connect_node, [RenewedNode]),
    false = beamway_peer:call(Renewed, net_kernel, connect_node, [GoodNode]),
    ok = logs(Log, "beamway: no TLS connection", "expected [{server, Options}, {client, Options}]"),
    ok = file:write_file(File, Fresh),
    true = beamway_peer:call(Good, net_kernel, connect_node, [RenewedNode]).

%% A new certificate replaces the old one in its file; ssl's cache would use the old one for two minutes.
another_certificate_in_place(_Config) ->
    {ok, Good, _} = beamway_peer:start(beamway_tls, #{args => ["-hidden"]}),
    File = beamway_certificates:optfile("in_place", good),
    {ok, Renewed, RenewedNode} = beamway_peer:start(beamway_tls, #{flags => ["-proto_dist", "beamway_tls", "-ssl_dist_optfile", File]}),
    true = beamway_peer:call(Good, net_kernel, connect_node, [RenewedNode]),
    true = beamway_peer:call(Good, erlang, disconnect_node, [RenewedNode]),
    ok = beamway_peer:wait_disconnected(Renewed, beamway_peer:call(Good, erlang, node, [])),
    File = beamway_certificates:optfile("in_place", expired),
    ok = beamway_peer:call(Renewed, beamway, reload_certificates, []),
    false = beamway_peer:call(Good, net_kernel, connect_node, [RenewedNode]).

%% With the option, a link moves to a connection on which its peer sees the new certificate, while calls continue. If the peer rejects the
%% certificate, the link stays on its old connection, and the next valid certificate is used. It does not matter which side called.
connections_are_renewed(Config) ->
    [renewed(Config, Caller, Connections) || {Caller, Connections} <- [{renews, "1"}, {other, "1"}, {renews, "2"}]],
    ok.

renewed(Config, Caller, Connections) ->
    Name = lists:concat(["renew-", Caller, "-", Connections]),
    {One, OneNode, Log, Other, OtherNode} = pair_with_option(Config, Name, beamway_tls, [{"BEAMWAY_CONNECTIONS", Connections}]),
    {From, To} = case Caller of renews -> {One, OtherNode}; other -> {Other, OneNode} end,
    true = beamway_peer:call(From, net_kernel, connect_node, [To]),
    First = certificate(Name),
    true = beamway_peer:wait_until(fun() -> shown_to(Other) =:= First end, ?RENEWED_MS),
    ok = beamway_peer:assert_link(One, OtherNode, tls),
    Controllers = [beamway_peer:controller(Peer, Node) || {Peer, Node} <- [{One, OtherNode}, {Other, OneNode}]],
    Load = beamway_peer:async(fun() -> beamway_peer:run(One, fun() -> called_until_told(OtherNode, 0) end, 120000) end),
    _ = beamway_certificates:optfile(Name, expired),
    ok = beamway_peer:call(One, beamway, reload_certificates, []),
    ok = logs(Log, "beamway: no TLS connection", ""),
    ok = logs(Log, "has not moved to a connection with the current certificates", atom_to_list(OtherNode)),
    0 = renewals(One, OtherNode),
    _ = beamway_certificates:optfile(Name, good),
    Second = certificate(Name),
    false = Second =:= First,
    ok = beamway_peer:call(One, beamway, reload_certificates, []),
    true = beamway_peer:wait_until(fun() -> renewals(One, OtherNode) > 0 andalso renewals(Other, OneNode) > 0 end, ?RENEWED_MS),
    Second = shown_to(Other),
    ok = is_connected(One, Other),
    ok = beamway_peer:run(One, fun() -> load ! stop, ok end),
    Calls = beamway_peer:await(Load),
    io:format(user, "~ts: ~b calls, none failed~n", [Name, Calls]),
    true = Calls > 0,
    Controllers = [beamway_peer:controller(Peer, Node) || {Peer, Node} <- [{One, OtherNode}, {Other, OneNode}]],
    beamway_peer:stop_all([One, Other]).

%% The node notices new files by itself.
files_are_watched(Config) ->
    {One, OneNode, _, Other, OtherNode} = pair_with_option(Config, "watched", beamway_tls, []),
    true = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
    First = shown_to(Other),
    _ = beamway_certificates:optfile("watched", good),
    true = beamway_peer:wait_until(fun() -> renewals(One, OtherNode) > 0 andalso renewals(Other, OneNode) > 0 end, ?RENEWED_MS),
    Second = certificate("watched"),
    Second = shown_to(Other),
    false = First =:= Second.

%% Rings and links without a session keep their connections, while a link with a session moves.
other_links_stay(_Config) ->
    File = beamway_certificates:optfile("stays", good),
    {ok, One, _} = beamway_peer:start(beamway_tls_shm, #{flags => tls_flags("beamway_tls", File), env => [{"BEAMWAY_RENEW_CONNECTIONS", "true"}]}),
    [Ring, Ssl, Moves] = [begin
                              {ok, _, Node} = beamway_peer:start(Carrier),
                              true = beamway_peer:call(One, net_kernel, connect_node, [Node]),
                              ok = beamway_peer:assert_link(One, Node, Kind),
                              Node
                          end || {Carrier, Kind} <- [{beamway_tls_shm, shm}, {beamway_ssl, ssl}, {beamway_tls, tls}]],
    Connections = fun() -> [{Pid, Stream} || Node <- [Ring, Ssl], #{node := Of, connection := Pid, stream := Stream} <- beamway_peer:call(One, beamway_links, all, []), Of =:= Node] end,
    [_, _] = Before = Connections(),
    _ = beamway_certificates:optfile("stays", good),
    ok = beamway_peer:call(One, beamway, reload_certificates, []),
    true = beamway_peer:wait_until(fun() -> renewals(One, Moves) > 0 end, ?RENEWED_MS),
    Before = Connections().

%% Starts a node with the option and a certificate of its own, and a second node that records its peer's certificate.
pair_with_option(Config, Name, Carrier, Environment) ->
    File = beamway_certificates:optfile(Name, good),
    Log = filename:join(proplists:get_value(priv_dir, Config), Name ++ ".log"),
    {ok, One, OneNode} = beamway_peer:start(Carrier, #{log => Log, flags => tls_flags("beamway_tls", File), env => [{"BEAMWAY_RENEW_CONNECTIONS", "true"} | Environment]}),
    Observes = beamway_certificates:optfile(
                 Name ++ "-observer", good,
                 fun(#{certificate := Certificate, key := Key, authorities := Authorities}) ->
                         Options = [{certfile, Certificate}, {keyfile, Key}, {cacertfile, Authorities}, {verify_fun, {?MODULE, seen, none}}],
                         [{server, Options}, {client, Options}]
                 end),
    {ok, Other, OtherNode} = beamway_peer:start(Carrier, #{flags => tls_flags("beamway_tls", Observes), env => Environment}),
    {One, OneNode, Log, Other, OtherNode}.

%% Called by ssl on the observing node.
seen(_Certificate, {extension, _}, State) -> {unknown, State};
seen(_Certificate, {bad_cert, _} = Reason, _State) -> {fail, Reason};
seen(_Certificate, valid, State) -> {valid, State};
seen(Certificate, valid_peer, State) ->
    ok = persistent_term:put(?MODULE, fingerprint(public_key:pkix_encode('OTPCertificate', Certificate, otp))),
    {valid, State}.

shown_to(Peer) -> beamway_peer:call(Peer, persistent_term, get, [?MODULE, none]).

certificate(Name) ->
    {ok, [[{server, Options}, _]]} = file:consult(filename:join(filename:dirname(beamway_certificates:good()), "tls-" ++ Name ++ ".opt")),
    {ok, Pem} = file:read_file(proplists:get_value(certfile, Options)),
    [{'Certificate', Der, _}] = public_key:pem_decode(Pem),
    fingerprint(Der).

fingerprint(Der) -> crypto:hash(sha256, Der).

renewals(Peer, Node) ->
    case beamway_peer:call(Peer, beamway, info, [Node]) of
        {ok, #{resumes := Resumes, last_resume := #{cause := certificates}}} -> Resumes;
        {ok, _} -> 0
    end.

called_until_told(Node, Count) ->
    _ = Count =:= 0 andalso register(load, self()),
    Node = erpc:call(Node, erlang, node, [], 15000),
    receive stop -> Count + 1 after 1 -> called_until_told(Node, Count + 1) end.

certificate_end(Peer) ->
    Text = iolist_to_binary(beamway_peer:call(Peer, beamway, metrics, [])),
    {match, [Seconds]} = re:run(Text, "beamway_certificate_expiry_seconds{side=\"server\"} ([0-9]+)", [{capture, all_but_first, binary}]),
    binary_to_integer(Seconds).

options_without_file(_Config) ->
    {ok, One, _} = start_with_arguments(["server_depth", "2", "server_fail_if_no_peer_cert", "true", "server_hibernate_after", "500",
                                         "server_secure_renegotiate", "true", "client_crl_check", "false", "server_crl_check", "best_effort",
                                         "server_verify", "verify_none"]),
    {ok, Other, _} = beamway_peer:start(beamway_tls),
    ok = beamway_peer:connect_both(beamway_tls, One, Other).

start_with_arguments(More) ->
    {ok, [[{server, Server}, {client, _}]]} = file:consult(beamway_certificates:good()),
    Arguments = lists:append([[Side ++ atom_to_list(Name), Value] || Side <- ["server_", "client_"],
                                                                     {Name, Value} <- Server]),
    beamway_peer:start(beamway_tls, #{flags => ["-proto_dist", "beamway_tls", "-ssl_dist_opt" | Arguments ++ More]}).

%% The file has no certificate for outgoing connections, so it comes from the command line. If an option is in both, the file's value is used.
options_beside_file(_Config) ->
    {ok, _, OtherNode} = beamway_peer:start(beamway_tls),
    {ok, [[_, {client, Client}]]} = file:consult(beamway_certificates:good()),
    File = beamway_certificates:optfile(
             "beside", good, fun(#{certificate := Certificate, key := Key, authorities := Authorities}) ->
                                     [{server, [{certfile, Certificate}, {keyfile, Key}, {cacertfile, Authorities}]}, {client, [{cacertfile, Authorities}]}]
                             end),
    Arguments = ["-ssl_dist_opt", "client_cacertfile", "/no/such.pem"
                 | lists:append([["client_" ++ atom_to_list(Name), proplists:get_value(Name, Client)] || Name <- [certfile, keyfile]])],
    [begin
         {ok, One, _} = beamway_peer:start(beamway_tls, #{flags => tls_flags("beamway_tls", File) ++ More}),
         {More, Connected} = {More, beamway_peer:call(One, net_kernel, connect_node, [OtherNode])},
         ok = beamway_peer:stop(One)
     end || {More, Connected} <- [{[], false}, {Arguments, true}]].

%% The user's function decides whether to accept a certificate.
verify_fun_without_file(_Config) ->
    {ok, _, OtherNode} = beamway_peer:start(beamway_tls),
    [begin
         {ok, One, _} = start_with_arguments(["client_verify_fun", "{" ++ ?MODULE_STRING ++ ",verify," ++ Verdict ++ "}"]),
         {Verdict, Connected} = {Verdict, beamway_peer:call(One, net_kernel, connect_node, [OtherNode])},
         ok = beamway_peer:stop(One)
     end || {Verdict, Connected} <- [{"accept", true}, {"refuse", false}]].

%% Called by ssl.
verify(_Certificate, {extension, _}, Verdict) -> {unknown, Verdict};
verify(_Certificate, valid_peer, refuse) -> {fail, not_today};
verify(_Certificate, {bad_cert, _} = Reason, _Verdict) -> {fail, Reason};
verify(_Certificate, _Valid, Verdict) -> {valid, Verdict}.

socket_options(_Config) ->
    {One, _, _, OtherNode} = pair(beamway_tls),
    ok = beamway_peer:call(One, net_kernel, setopts, [OtherNode, [{priority, 4}]]),
    {ok, [{priority, 4}]} = beamway_peer:call(One, net_kernel, getopts, [OtherNode, [priority]]),
    {error, {badopts, [{packet, 2}]}} = beamway_peer:call(One, net_kernel, setopts, [OtherNode, [{packet, 2}]]),
    %% The kernel buffers as little as over TCP: TCP_NOTSENT_LOWAT, and a receive buffer that does not grow (SO_BUF_LOCK).
    {ok, [{raw, 6, 25, <<262144:32/native>>}, {raw, 1, 72, <<Lock:32/native>>}]} =
        beamway_peer:call(One, net_kernel, getopts, [OtherNode, [{raw, 6, 25, 4}, {raw, 1, 72, 4}]]),
    2 = Lock band 2,
    OtherNode = beamway_peer:call(One, erpc, call, [OtherNode, erlang, node, []]),
    ok.

name_in_use(_Config) ->
    {ok, _, Node} = beamway_peer:start(beamway_tls),
    [Name, _] = string:split(atom_to_list(Node), "@"),
    Text = start_text(Name, "-ssl_dist_optfile " ++ beamway_certificates:good()),
    true = string:find(Text, "seems to be in use by another Erlang node") =/= nomatch.

distribution_stopped_and_started(_Config) ->
    [begin
         {ok, Other, OtherNode} = beamway_peer:start(beamway_tls, #{host => Host, flags => Flags}),
         {ok, Peer, _} = peer:start(#{connection => standard_io, exec => {hd(beamway_peer:erl()), tl(beamway_peer:erl())},
                                      env => beamway_peer:environment(beamway_tls),
                                      args => ["-pa" | [filename:dirname(filename:absname(code:which(M))) || M <- [?MODULE, beamway_peer, beamway_dist]]] ++ Flags}),
         [begin
              Node = list_to_atom(beamway_peer:unique_name("bwtls") ++ "@" ++ Host),
              {ok, _} = beamway_peer:call(Peer, net_kernel, start, [Node, #{name_domain => longnames}]),
              true = beamway_peer:call(Peer, erlang, set_cookie, [beamway_test]),
              ok = beamway_peer:call(Peer, net_kernel, setopts, [new, [{priority, 3}]]),
              Port = listening_port(Node),
              ok = beamway_peer:connect(beamway_tls, Peer, OtherNode),
              ok = beamway_peer:call(Peer, net_kernel, stop, []),
              ok = beamway_peer:wait_disconnected(Other, Node),
              _ = beamway_peer:wait_until(fun() -> {error, econnrefused} =:= gen_tcp:connect(Host, Port, [Family], 1000) end, 5000)
          end || _ <- [1, 2]],
         ok = beamway_peer:stop_all([Peer, Other])
     end || {Carrier, Host, Family} <- [{"beamway_tls", "127.0.0.1", inet}] ++ [{"beamway6_tls", "::1", inet6} || test_support:has_ipv6()],
            Flags <- [tls_flags(Carrier, beamway_certificates:good())]].

%% A node without a free descriptor for new callers logs this once and tries again, at most ten times a second. The callers wait.
no_descriptor_to_accept(Config) ->
    Log = filename:join(proplists:get_value(priv_dir, Config), "no_descriptor.log"),
    {ok, Full, FullNode} = beamway_peer:start(beamway_tls, #{log => Log, before_exec => "ulimit -n 256;"}),
    {ok, Other, OtherNode} = beamway_peer:start(beamway_tls),
    %% Connects once and logs one line, so that the code for both is loaded.
    ok = beamway_peer:connect(beamway_tls, Other, FullNode),
    ok = beamway_peer:call(Full, logger, warning, ["~ts has all that it needs", [FullNode]]),
    _ = beamway_peer:wait_until(fun() -> string:find(beamway_peer:log_text(Log), "has all that it needs") =/= nomatch end, 15000),
    true = beamway_peer:call(Other, net_kernel, disconnect, [FullNode]),
    ok = beamway_peer:wait_disconnected(Full, OtherNode),
    [Acceptor] = acceptors(Full),
    Holder = beamway_peer:run(Full, fun() -> hold_all_descriptors() end),
    1 = beamway_peer:call(Full, erlang, trace_pattern, [{inet_tcp, accept, 2}, true, [call_count]]),
    Call = beamway_peer:async(fun() -> beamway_peer:call(Other, net_kernel, connect_node, [FullNode]) end),
    Begun = erlang:monotonic_time(millisecond),
    _ = beamway_peer:wait_until(fun() -> accepts(Full) >= 5 end, 15000),
    {Count, Ms} = {accepts(Full), erlang:monotonic_time(millisecond) - Begun},
    {true, _} = {Count =< 2 + Ms div 100, {Count, Ms}},
    [Acceptor] = acceptors(Full),
    true = beamway_peer:run(Full, fun() -> exit(Holder, kill) end),
    true = beamway_peer:await(Call),
    [Acceptor] = acceptors(Full),
    Told = fun() -> [Line || Line <- string:lexemes(beamway_peer:log_text(Log), "\n"), string:find(Line, "cannot accept connections: emfile") =/= nomatch] end,
    [_] = beamway_peer:wait_until(fun() -> case Told() of [] -> false; Lines -> Lines end end, 15000).

accepts(Peer) ->
    {call_count, Count} = beamway_peer:call(Peer, erlang, trace_info, [{inet_tcp, accept, 2}, call_count]),
    Count.

acceptors(Peer) ->
    beamway_peer:run(Peer, fun() ->
        [Pid || Pid <- processes(), {initial_call, {beamway_tls_acceptor, loop, _}} <- [process_info(Pid, initial_call)]]
    end).

hold_all_descriptors() ->
    Self = self(),
    Holder = spawn(fun() -> open_all([]), Self ! {self(), full}, receive forever -> ok end end),
    receive {Holder, full} -> Holder end.

open_all(Files) ->
    case prim_file:open("/dev/null", [read]) of
        {ok, File} -> open_all([File | Files]);
        {error, emfile} -> put(files, Files)
    end.

%% The node cannot find ssl, so it gets no connection until it can.
no_ssl(Config) ->
    Log = filename:join(proplists:get_value(priv_dir, Config), "no_ssl.log"),
    {ok, One, OneNode} = beamway_peer:start(beamway_tls, #{log => Log, args => ["-kernel", "net_setuptime", "2"]}),
    {ok, Other, OtherNode} = beamway_peer:start(beamway_tls),
    Path = beamway_peer:call(One, code, lib_dir, [ssl]),
    true = beamway_peer:call(One, code, del_path, [ssl]),
    false = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
    false = beamway_peer:call(Other, net_kernel, connect_node, [OneNode]),
    ok = logs(Log, "beamway: no TLS connection", "the ssl application does not start"),
    true = beamway_peer:call(One, code, add_pathz, [filename:join(Path, "ebin")]),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:call(Other, net_kernel, connect_node, [OneNode]) end, 20000),
    ok = is_connected(One, Other).

%% The server that grants memory to the driver does not answer in time, so ssl's processes keep the connection, whichever side has called.
link_server_hangs(_Config) ->
    [{ok, One, OneNode}, {ok, Odd, OddNode}] = [beamway_peer:start(beamway_tls, #{args => ["-kernel", "dist_auto_connect", "never"]}) || _ <- [one, odd]],
    [begin
         ok = beamway_peer:call(Odd, sys, suspend, [beamway_links]),
         true = beamway_peer:call(Caller, net_kernel, connect_node, [Called]),
         ok = beamway_peer:assert_link(Odd, OneNode, ssl),
         ok = is_connected(One, Odd),
         ok = beamway_peer:assert_reason(Odd, OneNode, "the link server does not answer"),
         ok = beamway_peer:assert_reason(One, OddNode, "the peer says: the link server does not answer"),
         ok = beamway_peer:call(Odd, sys, resume, [beamway_links]),
         true = beamway_peer:call(Odd, net_kernel, disconnect, [OneNode]),
         ok = beamway_peer:wait_disconnected(Odd, OneNode),
         ok = beamway_peer:wait_disconnected(One, OddNode),
         _ = beamway_peer:wait_until(fun() -> beamway_peer:call(Odd, beamway, links, []) =:= [] end, 5000)
     end || {Caller, Called} <- [{Odd, OneNode}, {One, OddNode}]],
    ok.

%% A node that is configured to use TLS does not start without it, and reports what is wrong.
invalid_options_end_the_start(Config) ->
    Broken = filename:join(proplists:get_value(priv_dir, Config), "broken.opt"),
    ok = file:write_file(Broken, "[{server, [}]."),
    Lacking = beamway_certificates:optfile("lacking", good, fun(_) -> [{server, []}, {client, []}] end),
    Client = beamway_certificates:optfile(
               "client", good, fun(#{certificate := Certificate, key := Key, authorities := Authorities}) ->
                                       [{server, [{certfile, Certificate}, {keyfile, Key}, {cacertfile, Authorities}]}, {client, []}]
                               end),
    Missing = beamway_certificates:optfile(
                "missing", good, fun(#{authorities := Authorities}) ->
                                         [{server, [{certfile, "/no/such.pem"}, {cacertfile, Authorities}]},
                                          {client, [{cacertfile, Authorities}]}]
                                 end),
    [begin
         Text = start_text(beamway_peer:unique_name("bwbad"), Flags),
         [{true, Flags, Part} = {string:find(Text, Part) =/= nomatch, Flags, Part} || Part <- Parts]
     end || {Flags, Parts} <- [{"", ["no TLS options", "-ssl_dist_optfile"]},
                               {"-ssl_dist_optfile /no/such.opt", ["cannot read /no/such.opt"]},
                               {"-ssl_dist_optfile tls.opt", ["cannot read tls.opt", "expected an absolute name"]},
                               {"-ssl_dist_optfile " ++ Broken, [Broken, "expected [{server"]},
                               {"-ssl_dist_optfile " ++ Lacking, ["lack", "certfile"]},
                               {"-ssl_dist_optfile " ++ Client, ["of the client lack", "cacertfile"]},
                               {"-ssl_dist_optfile " ++ Missing, ["cannot read certfile", "/no/such.pem"]},
                               {"-ssl_dist_opt server_colour red", ["server_colour", "not valid"]}]].

start_text(Name, Flags) ->
    Erl = lists:join(" ", beamway_peer:erl()),
    Command = lists:flatten(io_lib:format("~ts -noinput -proto_dist beamway_tls ~ts -pa ~ts -sname ~ts -eval 'io:put_chars(\"came up\"), halt().' 2>&1",
                                          [Erl, Flags, beamway_peer:ebin(), Name])),
    Text = os:cmd(Command),
    nomatch = string:find(Text, "came up"),
    Text.

%% ---- life and death of a connection ----

killed_peer(_Config) ->
    [begin
         {One, _, Other, OtherNode} = pair(Carrier),
         Watcher = beamway_peer:watch_nodedown(One),
         ok = beamway_peer:kill9(Other),
         {connection_closed, _} = beamway_peer:nodedown(One, Watcher, OtherNode, ?NODEDOWN_MS),
         ok = beamway_peer:stop(One)
     end || Carrier <- [beamway_tls, beamway_tls_shm]].

%% Only ticks detect a stopped peer.
stopped_peer(_Config) ->
    {One, _, Other, OtherNode} = beamway_peer:connected_pair(beamway_tls, #{args => ["-kernel", "net_ticktime", "4"]}),
    Watcher = beamway_peer:watch_nodedown(One),
    ok = beamway_peer:sigstop(Other),
    {net_tick_timeout, _} = beamway_peer:nodedown(One, Watcher, OtherNode, ?NODEDOWN_MS).

%% Ticks keep a silent connection alive; without them net_ticktime 4 would close it after 5 s.
silent_peer_stays(_Config) ->
    {One, _, Other, OtherNode} = beamway_peer:connected_pair(beamway_tls, #{args => ["-kernel", "net_ticktime", "4"]}),
    Connection = beamway_peer:controller(One, OtherNode),
    receive after ?SILENT_MS -> ok end,
    Connection = beamway_peer:controller(One, OtherNode),
    ok = is_connected(One, Other).

%% Messages that a node sends right before it disconnects arrive over the ring. (A process as controller, here
%% as in stock TLS, may still hold some of them.)
last_words(_Config) ->
    {One, _, Other, _} = pair(beamway_tls_shm),
    Listener = beamway_peer:run(One, fun() -> spawn(fun() -> listen([]) end) end),
    ok = beamway_peer:run(Other, fun() ->
                                         [Listener ! {word, N} || N <- lists:seq(1, 500)],
                                         ok
                                 end),
    true = beamway_peer:run(Other, fun() -> erlang:disconnect_node(node(Listener)) end),
    Words = beamway_peer:wait_until(
              fun() ->
                      Heard = beamway_peer:run(One, fun() -> Listener ! {report, self()}, receive {heard, H} -> H after ?ANSWER_MS -> error(no_report) end end),
                      length(Heard) =:= 500 andalso Heard
              end, 10000),
    Words = lists:seq(1, 500).

listen(Words) ->
    receive
        {word, N} -> listen([N | Words]);
        {report, To} -> To ! {heard, lists:reverse(Words)}, listen(Words)
    after 60000 -> ok
    end.

reconnects_leave_nothing(_Config) ->
    [begin
         {One, OneNode, Other, OtherNode} = pair(Carrier),
         Again = fun() ->
                         true = beamway_peer:call(One, erlang, disconnect_node, [OtherNode]),
                         ok = beamway_peer:wait_disconnected(One, OtherNode),
                         ok = beamway_peer:wait_disconnected(Other, OneNode),
                         ok = beamway_peer:connect_both(Carrier, One, Other)
                 end,
         [Again() || _ <- lists:seq(1, 3)],
         Before = [held(Peer) || Peer <- [One, Other]],
         Rounds = beamway_carrier:scale(20, 200),
         [Again() || _ <- lists:seq(1, Rounds)],
         _ = beamway_peer:wait_until(
               fun() ->
                       Now = [held(Peer) || Peer <- [One, Other]],
                       ct:log("~0p, before: ~0p", [Now, Before]),
                       lists:all(fun({Was, Is}) -> no_more(Was, Is, Rounds div 4) end, lists:zip(Before, Now))
               end, 15000),
         ok = beamway_peer:stop_all([One, Other])
     end || Carrier <- [beamway_tls, beamway_tls_shm]].

held(Peer) ->
    OsPid = beamway_peer:os_pid(Peer),
    #{descriptors => length(beamway_peer:fds(OsPid)),
      maps => length(beamway_peer:maps(OsPid)),
      ports => beamway_peer:call(Peer, erlang, system_info, [port_count]),
      processes => beamway_peer:call(Peer, erlang, system_info, [process_count])}.

%% The number of ssl's processes, and of the resources that they hold, varies anyway. A leak in each round would be four times the slack.
no_more(Was, Is, Slack) ->
    lists:all(fun(Name) -> maps:get(Name, Is) =< maps:get(Name, Was) + Slack end, maps:keys(Was)).

%% A relay between the two nodes sees every byte. Over plain TCP it finds the node's name and the
%% message; over TLS it finds neither.
nothing_readable_on_the_wire(Config) ->
    Secret = "a message that nobody shall read",
    [begin
         Dir = filename:join(proplists:get_value(priv_dir, Config), Carrier),
         ok = filelib:ensure_dir(filename:join(Dir, "x")),
         Options = #{args => ["-start_epmd", "false", "-epmd_module", "beamway_compat_epmd",
                              "-compat_epmd", "directory", Dir]},
         {ok, One, OneNode} = beamway_peer:start(Carrier, Options),
         {ok, Other, OtherNode} = beamway_peer:start(Carrier, Options),
         Relay = relay(filename:join(Dir, hd(string:split(atom_to_list(OtherNode), "@")))),
         ok = beamway_peer:connect_both(Carrier, One, Other),
         Secret = beamway_peer:run(One, fun() -> erpc:call(OtherNode, lists, append, [[Secret, ""]]) end),
         Seen = seen(Relay),
         Words = [Secret, atom_to_list(OneNode)],
         {Carrier, Readable} = {Carrier, length([Word || Word <- Words, binary:match(Seen, list_to_binary(Word)) =/= nomatch])},
         ok = beamway_peer:stop_all([One, Other])
     end || {Carrier, Readable} <- [{beamway_tcp, 2}, {beamway_tls, 0}]].

%% Puts the relay's port into the file where the other nodes look for the node's port.
relay(File) ->
    Owner = self(),
    {Relay, Monitor} = spawn_monitor(
                         fun() ->
                                 {ok, Text} = file:read_file(File),
                                 [Port, Family] = string:split(unicode:characters_to_list(Text), " "),
                                 {ok, Listen} = gen_tcp:listen(0, [binary, {active, true}, {ip, {127, 0, 0, 1}}]),
                                 {ok, Own} = inet:port(Listen),
                                 ok = file:write_file(File, [integer_to_list(Own), " ", Family]),
                                 Owner ! {self(), relaying},
                                 {ok, Near} = gen_tcp:accept(Listen, 20000),
                                 {ok, Far} = gen_tcp:connect({127, 0, 0, 1}, list_to_integer(Port), [binary, {active, true}]),
                                 relay(Near, Far, [])
                         end),
    receive
        {Relay, relaying} -> Relay;
        {'DOWN', Monitor, process, Relay, Reason} -> error(Reason)
    after ?ANSWER_MS -> error(no_relay)
    end.

relay(Near, Far, Seen) ->
    receive
        {tcp, Near, Bytes} -> ok = gen_tcp:send(Far, Bytes), relay(Near, Far, [Bytes | Seen]);
        {tcp, Far, Bytes} -> ok = gen_tcp:send(Near, Bytes), relay(Near, Far, [Bytes | Seen]);
        {seen, To} -> To ! {self(), iolist_to_binary(lists:reverse(Seen))}, relay(Near, Far, Seen);
        {tcp_closed, _} -> ok
    end.

seen(Relay) ->
    Relay ! {seen, self()},
    receive {Relay, Bytes} -> Bytes after ?ANSWER_MS -> error(no_relay) end.

%% ---- helpers ----

pair(Carrier) -> beamway_peer:connected_pair(Carrier, #{}).

%% Waits for a line with both parts.
logs(Log, Part, Other) ->
    _ = beamway_peer:wait_until(
          fun() ->
                  lists:any(fun(Line) -> string:find(Line, Part) =/= nomatch andalso string:find(Line, Other) =/= nomatch end,
                            string:lexemes(beamway_peer:log_text(Log), "\n"))
          end, 10000),
    ok.

start_logging(Config, Name, File) ->
    Log = filename:join(proplists:get_value(priv_dir, Config), Name ++ ".log"),
    {ok, Peer, Node} = beamway_peer:start(beamway_tls, #{log => Log, flags => tls_flags("beamway_tls", File)}),
    {ok, Peer, Node, Log}.

tls_flags(Carrier, File) -> ["-proto_dist", Carrier, "-ssl_dist_optfile", File].

%% Makes calls in both directions with more data than fits into a record.
is_connected(One, Other) ->
    [begin
         Node = beamway_peer:call(To, erlang, node, []),
         Text = binary:copy(<<"abcdefg">>, 30000),
         Text = beamway_peer:run(From, fun() -> erpc:call(Node, binary, copy, [Text]) end)
     end || {From, To} <- [{One, Other}, {Other, One}]],
    ok.

listening_port(Node) ->
    [Name, _] = string:split(atom_to_list(Node), "@"),
    {port, Port, _} = erl_epmd:port_please(Name, {127, 0, 0, 1}),
    Port.

host() ->
    {ok, Host} = inet:gethostname(),
    Host.
