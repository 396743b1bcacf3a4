%% SPDX-License-Identifier: Apache-2.0
%% @doc TLS: server names and certificates, session tickets, and the effect of reloads on them.
-module(yucan_tls_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([tls/1, plain_on_tls/1, silent_on_tls/1, too_many/1, sni/1, client_certificate/1, resumed_elsewhere/1, renegotiation/1, only_tls_1_3/1, tls_reload/1, tls_renewed/1, tls_tickets/1, tls_refused/1, tls_drain/1, tls_on_a_port/1]).

-import(yucan_test_server, [answered/1, handler/0, server_side/1, tls_one/2, wait_for/1]).

-include_lib("common_test/include/ct.hrl").

-define(GET(Path), ["GET ", Path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"]).
-define(WAIT_MS, (20000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [tls, plain_on_tls, silent_on_tls, too_many, sni, client_certificate, resumed_elsewhere, renegotiation, only_tls_1_3, tls_reload, tls_renewed, tls_tickets, tls_refused, tls_drain, tls_on_a_port].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

end_per_testcase(_, _) -> yucan_test_server:stop_all().

start(Options) -> yucan_test_server:start(yucan_server_test, Options).

%% Tests keep-alive, a body that spans many TLS records, and ALPN (RFC 7301).
tls(Config) ->
    Port = start(#{listen => [#{port => 0, tls => yucan_test_server:certificate("localhost", ?config(priv_dir, Config))}]}),
    {ok, Socket} = yucan_test_server:tls_connect(Port, [{alpn_advertised_protocols, [<<"spdy/1">>, <<"http/1.1">>]}]),
    {ok, <<"http/1.1">>} = ssl:negotiated_protocol(Socket),
    Body = crypto:strong_rand_bytes(500000),
    [begin
         ok = ssl:send(Socket, ["POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n", Body]),
         {200, _, Body} = tls_one(Socket, <<>>),
         ok = ssl:send(Socket, ?GET("/scheme")),
         {200, _, <<"https">>} = tls_one(Socket, <<>>)
     end || _ <- [1, 2]],
    ok = ssl:send(Socket, [?GET("/scheme"), "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"]),
    [{200, _, _}, {200, _, _}] = yucan_client:parse(tls_all(Socket, []), <<"GET">>).

tls_all(Socket, Done) ->
    case ssl:recv(Socket, 0, ?WAIT_MS) of
        {ok, Data} -> tls_all(Socket, [Done | Data]);
        {error, closed} -> iolist_to_binary(Done)
    end.

%% A client that sends plain HTTP to a TLS port gets an HTTP response that explains the error. A client that starts TLS slowly is served.
plain_on_tls(Config) ->
    Port = start(#{listen => [#{port => 0, tls => yucan_test_server:certificate("localhost", ?config(priv_dir, Config))}]}),
    [{400, _, Page}] = yucan_client:exchange(Port, ?GET("/")),
    {_, _} = binary:match(Page, <<"This port speaks TLS: the address begins with https:">>),
    Broken = yucan_client:connect(Port),
    ok = gen_tcp:send(Broken, <<22, 3, 1, 0, 5, "hello">>),
    <<21, _/binary>> = yucan_client:until_closed(Broken),
    {ok, Socket} = yucan_test_server:tls_connect(Port, []),
    ok = ssl:send(Socket, ?GET("/scheme")),
    {ok, <<"HTTP/1.1 200 ", _/binary>>} = ssl:recv(Socket, 0, ?WAIT_MS),
    #{schemes := [https]} = yucan:info(yucan_server_test).

%% A client that disconnects before it sends a byte, such as a port check, does not cause a crash.
silent_on_tls(Config) ->
    Port = start(#{listen => [#{port => 0, tls => yucan_test_server:certificate("localhost", ?config(priv_dir, Config))}], limits => #{tls_ms => ?WAIT_MS}}),
    Socket = yucan_client:connect(Port),
    wait_for(fun() -> #{metrics := #{open_connections := Open}} = yucan:info(yucan_server_test), Open =:= 1 end),
    {Pid, _} = server_side(Socket),
    Monitor = monitor(process, Pid),
    %% ERTS may delay the monitor signal until this process sends another signal or is scheduled out, but the connection process must receive it
    %% before the client disconnects.
    true = is_process_alive(Pid),
    ok = gen_tcp:close(Socket),
    receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason after ?WAIT_MS -> error(connection_stays) end.

%% A surplus connection is closed without sending any bytes outside TLS.
too_many(Config) ->
    Listen = [#{port => 0, tls => yucan_test_server:certificate("localhost", ?config(priv_dir, Config))}],
    [begin
         Port = start(#{listen => Listen, limits => #{Limit => 1}}),
         {ok, Served} = yucan_test_server:tls_connect(Port, []),
         <<>> = yucan_client:until_closed(yucan_client:connect(Port)),
         #{metrics := #{refused_connections := 1}} = yucan:info(yucan_server_test),
         ok = ssl:close(Served),
         yucan_test_server:stop_all()
     end || Limit <- [connections, address_connections]].

%% RFC 6066, 3. A certificate for one name does not give access to the pages of another (RFC 9110, 7.4).
sni(Config) ->
    Dir = ?config(priv_dir, Config),
    Port = start(#{listen => [#{port => 0, tls => yucan_test_server:certificate("default", Dir)}],
                   hosts => [#{names => ["a.org"], handler => handler(), tls => yucan_test_server:certificate("a.org", Dir)},
                             #{names => ["*.b.org"], handler => handler(), tls => yucan_test_server:certificate("b.org", Dir)}]}),
    [begin
         {ok, Socket} = yucan_test_server:tls_connect(Port, [{server_name_indication, Name}]),
         {Name, Subject} = {Name, yucan_test_server:subject(Socket)},
         ssl:close(Socket)
     end || {Name, Subject} <- [{"a.org", "a.org"}, {"x.b.org", "b.org"}, {"A.org", "a.org"}, {"other.org", "default"}]],
    {ok, Socket} = yucan_test_server:tls_connect(Port, [{server_name_indication, "a.org"}]),
    [begin
         ok = ssl:send(Socket, ["GET /host HTTP/1.1\r\nHost: ", Host, "\r\n\r\n"]),
         {200, _, <<"a.org">>} = tls_one(Socket, <<>>)
     end || Host <- ["a.org", "a.org."]],
    ok = ssl:send(Socket, "GET /host HTTP/1.1\r\nHost: x.b.org\r\n\r\n"),
    {421, _, _} = tls_one(Socket, <<>>).

%% A host that requires a client certificate cannot be reached through a handshake that did not require one, whether without SNI or with an unknown
%% name.
client_certificate(Config) ->
    Dir = ?config(priv_dir, Config),
    Public = yucan_test_server:certificate("public.org", Dir),
    {Authorities, Own} = client(),
    Secret = Public#{verify => verify_peer, fail_if_no_peer_cert => true, cacerts => Authorities},
    Host = fun(Name, More) -> maps:merge(#{names => [Name], handler => handler()}, More) end,
    Hosts = [Host("secret.org", #{tls => Secret}), Host("public.org", #{tls => Public#{verify => verify_none, fail_if_no_peer_cert => false}}), Host("bare.org", #{})],
    Options = #{listen => [#{port => 0, tls => Public}], hosts => Hosts},
    Port = start(Options),
    Status = fun(Client, Name) ->
        {ok, Socket} = yucan_test_server:tls_connect(Port, Client),
        ok = ssl:send(Socket, ["GET /host HTTP/1.1\r\nHost: ", Name, "\r\n\r\n"]),
        {Code, _, _} = tls_one(Socket, <<>>),
        ok = ssl:close(Socket),
        Code
    end,
    No = {server_name_indication, disable},
    Named = fun(Name) -> {server_name_indication, Name} end,
    200 = Status([Named("secret.org") | Own], "secret.org"),
    [{421, _, _} = {Status(Client, Name), Client, Name} || {Client, Name} <- [{[No], "secret.org"}, {[No | Own], "secret.org"},
        {[No], "nobody.org"}, {[Named("nobody.org")], "nobody.org"}, {[Named("public.org")], "secret.org"}]],
    [{200, _, _} = {Status(Client, Name), Client, Name} || {Client, Name} <- [{[No], "public.org"}, {[No], "bare.org"}, {[Named("public.org")], "public.org"}]],
    %% If all hosts have the same requirements, the name in the handshake does not matter.
    ok = yucan:reload(yucan_server_test, Options#{listen := [#{port => 0, tls => Secret}]}),
    200 = Status([No | Own], "secret.org"),
    %% bare.org only has the listener's own requirements, which the handshake met, and public.org requires less.
    200 = Status([No | Own], "bare.org"),
    [Open] = [element(2, {ok, _} = yucan_test_server:tls_connect(Port, [Named("public.org")]))],
    ok = yucan:reload(yucan_server_test, Options#{hosts := [Host("public.org", #{tls => Secret})]}),
    ok = ssl:send(Open, "GET /host HTTP/1.1\r\nHost: public.org\r\n\r\n"),
    {421, _, _} = tls_one(Open, <<>>).

%% A TLS 1.2 session that was verified against one host's certificate authority is not valid for a host with a different authority.
resumed_elsewhere(Config) ->
    Dir = ?config(priv_dir, Config),
    Own = yucan_test_server:certificate("server.org", Dir),
    {One, Client} = client(),
    {Two, _} = client(),
    Wants = fun(Authorities) -> Own#{verify => verify_peer, fail_if_no_peer_cert => true, cacerts => Authorities} end,
    Host = fun(Name, Authorities) -> #{names => [Name], handler => handler(), tls => Wants(Authorities)} end,
    Start = fun(Authorities) -> start(#{listen => [#{port => 0, tls => Wants(One)}], hosts => [Host("one.org", One), Host("two.org", Authorities)]}) end,
    Connect = fun(Port, Name, More) -> yucan_test_server:tls_connect(Port, [{versions, ['tlsv1.2']}, {server_name_indication, Name} | More] ++ Client) end,
    Session = fun(Port) ->
        {ok, Socket} = Connect(Port, "one.org", []),
        {ok, [{session_id, Id}, {session_data, Data}]} = ssl:connection_information(Socket, [session_id, session_data]),
        ok = ssl:send(Socket, "GET /host HTTP/1.1\r\nHost: one.org\r\n\r\n"),
        {200, _, _} = tls_one(Socket, <<>>),
        ok = ssl:close(Socket),
        {Id, Data}
    end,
    Same = Start(One),
    {Id, _} = Kept = Session(Same),
    {ok, Resumed} = Connect(Same, "two.org", [{reuse_session, Kept}]),
    {ok, [{session_id, Id}]} = ssl:connection_information(Resumed, [session_id]),
    yucan_test_server:stop_all(),
    Other = Start(Two),
    {error, _} = Connect(Other, "two.org", []),
    {error, _} = Connect(Other, "two.org", [{reuse_session, Session(Other)}]).

%% A renegotiation costs the server a signature, and HTTP/2 forbids it (RFC 9113, 9.2.1).
renegotiation(Config) ->
    Port = start(#{listen => [#{port => 0, tls => yucan_test_server:certificate("localhost", ?config(priv_dir, Config))}]}),
    [begin
         {ok, Socket} = yucan_test_server:tls_connect(Port, [{versions, ['tlsv1.2']}, {alpn_advertised_protocols, [Protocol]}]),
         {error, renegotiation_rejected} = ssl:renegotiate(Socket),
         ok = ssl:close(Socket)
     end || Protocol <- [<<"h2">>, <<"http/1.1">>]].

%% ssl rejects options for older versions if a listener uses only TLS 1.3.
only_tls_1_3(Config) ->
    Own = (yucan_test_server:certificate("localhost", ?config(priv_dir, Config)))#{versions => ['tlsv1.3']},
    {Authorities, Client} = client(),
    Peer = Own#{verify => verify_peer, fail_if_no_peer_cert => true, cacerts => Authorities},
    [begin
         Port = start(#{listen => [#{port => 0, tls => Tls}]}),
         {ok, Socket} = yucan_test_server:tls_connect(Port, [{versions, ['tlsv1.3']} | Options]),
         {ok, [{protocol, 'tlsv1.3'}]} = ssl:connection_information(Socket, [protocol]),
         ok = ssl:send(Socket, ?GET("/scheme")),
         {200, _, <<"https">>} = tls_one(Socket, <<>>),
         ok = ssl:close(Socket),
         {error, _} = yucan_test_server:tls_connect(Port, [{versions, ['tlsv1.2']} | Options]),
         yucan_test_server:stop_all()
     end || {Tls, Options} <- [{Own, []}, {Peer, Client}]],
    %% Options that ssl rejects are reported when the server starts, rather than when the first client connects.
    [begin
         {error, Why} = yucan:start(#{name => yucan_server_test, listen => [#{port => 0, tls => Tls#{client_renegotiation => false}}], handler => handler()}),
         {_, _} = binary:match(iolist_to_binary(Why), <<"client_renegotiation">>)
     end || Tls <- [Own, Peer]].

%% Returns the certificate authorities that a server trusts, and a client certificate that one of them has signed.
client() ->
    One = [{key, {namedCurve, secp256r1}}, {digest, sha256}],
    Chain = #{root => One, intermediates => [], peer => One},
    #{server_config := Server, client_config := Client} = public_key:pkix_test_data(#{server_chain => Chain, client_chain => Chain}),
    {proplists:get_value(cacerts, Server), [Option || {Key, _} = Option <- Client, Key =/= cacerts]}.

%% Returns the subject of the certificate that the server presents to a client.
shown(Port, Name) ->
    {ok, Socket} = yucan_test_server:tls_connect(Port, [{server_name_indication, Name}]),
    Subject = yucan_test_server:subject(Socket),
    ok = ssl:send(Socket, ["GET /host HTTP/1.1\r\nHost: ", Name, "\r\n\r\n"]),
    Name1 = list_to_binary(Name),
    {200, _, Name1} = tls_one(Socket, <<>>),
    ssl:close(Socket),
    Subject.

%% A listener that stays open across a reload presents the certificate of the new configuration.
tls_reload(Config) ->
    Dir = ?config(priv_dir, Config),
    Listen = [#{port => 0, tls => yucan_test_server:certificate("default", Dir)}],
    Host = fun(Name, Own) -> #{names => [Name], handler => handler(), tls => yucan_test_server:certificate(Own, Dir)} end,
    Port = start(#{listen => Listen, hosts => [Host("a.org", "a.org")]}),
    "a.org" = shown(Port, "a.org"),
    ok = yucan:reload(yucan_server_test, #{listen => Listen, hosts => [Host("a.org", "new.a.org"), Host("b.org", "b.org")]}),
    Port = yucan:port(yucan_server_test),
    "b.org" = shown(Port, "b.org"),
    "new.a.org" = shown(Port, "a.org").

%% The file name stays the same but the certificate in the file changes, as after a renewal.
tls_renewed(Config) ->
    Dir = ?config(priv_dir, Config),
    #{certfile := Certificate, keyfile := Key} = Old = yucan_test_server:certificate("old.org", Dir),
    #{certfile := Renewed, keyfile := NewKey} = yucan_test_server:certificate("renewed.org", Dir),
    Options = #{listen => [#{port => 0, tls => Old}], handler => handler()},
    Port = start(Options),
    "old.org" = shown(Port, "x.org"),
    {ok, _} = file:copy(Renewed, Certificate),
    {ok, _} = file:copy(NewKey, Key),
    ok = yucan:reload(yucan_server_test, Options),
    "renewed.org" = shown(Port, "x.org").

%% A ticket resumes a session (TLS 1.3), even after a reload that does not change TLS, but not if clients must present a certificate.
tls_tickets(Config) ->
    Dir = ?config(priv_dir, Config),
    #{certfile := Certificate} = Own = yucan_test_server:certificate("default", Dir),
    Options = #{listen => [#{port => 0, tls => Own}], handler => handler(), hosts => []},
    Hosts = fun(More) -> [#{names => ["a.org"], handler => handler(), tls => maps:merge(yucan_test_server:certificate("a.org", Dir), More)}] end,
    Start = maps:remove(handler, Options),
    Port = start(Start#{hosts => Hosts(#{})}),
    {false, Ticket} = ticket(Port, []),
    {true, _} = ticket(Port, [{use_ticket, [Ticket]}]),
    ok = yucan:reload(yucan_server_test, Start#{hosts => Hosts(#{})}),
    {false, Second} = ticket(Port, []),
    {true, _} = ticket(Port, [{use_ticket, [Second]}]),
    {false, Third} = ticket(Port, []),
    %% From OTP 26 on, verify_peer alone is enough to reject a client without a certificate.
    ok = yucan:reload(yucan_server_test, Start#{hosts => Hosts(#{verify => verify_peer, fail_if_no_peer_cert => false, cacertfile => Certificate})}),
    {false, none} = ticket(Port, [{use_ticket, [Third]}]).

%% Returns whether the session was resumed, and the ticket that the client received.
ticket(Port, Options) ->
    {ok, Socket} = yucan_test_server:tls_connect(Port, [{session_tickets, manual}, {versions, ['tlsv1.3']}, {server_name_indication, "a.org"} | Options]),
    {ok, [{session_resumption, Resumed}]} = ssl:connection_information(Socket, [session_resumption]),
    ok = ssl:send(Socket, "GET /host HTTP/1.1\r\nHost: a.org\r\n\r\n"),
    {200, _, <<"a.org">>} = tls_one(Socket, <<>>),
    ssl:close(Socket),
    {Resumed, last_ticket(none)}.

last_ticket(Last) -> receive {ssl, session_ticket, Ticket} -> last_ticket(Ticket) after 0 -> Last end.

%% Errors in other options are found before ssl gets any of the new options, so tickets issued under the old options stay valid.
tls_refused(Config) ->
    Dir = ?config(priv_dir, Config),
    [Old, New] = [#{port => 0, tls => yucan_test_server:certificate(Name, Dir)} || Name <- ["old.org", "new.org"]],
    Before = ticket_processes(),
    Port = start(#{listen => [Old], hosts => [#{handler => handler()}]}),
    Now = [_ | _] = ticket_processes() -- Before,
    {false, Ticket} = ticket(Port, []),
    Wrong = New#{tls := (maps:get(tls, New))#{verify => verify_pear}},
    [begin
         {error, _} = yucan:reload(yucan_server_test, maps:merge(#{listen => [New], handler => handler()}, Refused)),
         Now = ticket_processes() -- Before
     end || Refused <- [#{access_log => "/no/such/folder/log"}, #{handler => {yucan_file, #{root => "/no/such/folder"}}}, #{listen => [New, Wrong]}]],
    {true, _} = ticket(Port, [{use_ticket, [Ticket]}]).

%% Returns the processes in which OTP's ssl keeps the tickets of listening sockets.
ticket_processes() -> [Pid || {_, Pid, _, _} <- supervisor:which_children(tls_server_session_ticket_sup)].

%% A client that connected before a drain, and starts or completes its handshake afterwards, is served. A client that does neither does not delay the
%% drain.
tls_drain(Config) ->
    Options = #{listen => [#{port => 0, tls => yucan_test_server:certificate("localhost", ?config(priv_dir, Config))}], limits => #{tls_ms => ?WAIT_MS}},
    Hello = fun(Version) ->
        fun(Port) ->
            %% OTP 27.3.4 cannot continue after a ClientHello without a server name unless it is told explicitly that there is none.
            {ok, Tls, _} = ssl:connect({127, 0, 0, 1}, Port, [{verify, verify_none}, {active, false}, binary, {handshake, hello}, {versions, [Version]},
                                                              {server_name_indication, disable}], ?WAIT_MS),
            Tls
        end
    end,
    Continue = fun(Tls) -> ssl:handshake_continue(Tls, [], ?WAIT_MS) end,
    [begin
         Socket = Begin(start(Options)),
         wait_for(fun() -> #{metrics := #{open_connections := Open}} = yucan:info(yucan_server_test), Open =:= 1 end),
         %% The pool would disconnect clients that are silent for a second, so it is suspended.
         [Pool] = [Pid || {_, Pid, _, _} <- supervisor:which_children(yucan_server_test_listeners)],
         true = erlang:suspend_process(Pool),
         {error, {still_open, 1}} = yucan:drain(yucan_server_test, 0),
         {ok, Tls} = Finish(Socket),
         ok = ssl:send(Tls, ?GET("/scheme")),
         {200, Headers, <<"https">>} = tls_one(Tls, <<>>),
         <<"close">> = proplists:get_value(<<"connection">>, Headers),
         true = erlang:resume_process(Pool),
         yucan_test_server:stop_all(),
         wait_for(fun() -> ticket_processes() =:= [] andalso supervisor:which_children(ssl_listen_tracker_sup) =:= [] end)
     end || {Begin, Finish} <- [{fun yucan_client:connect/1, fun(Socket) -> ssl:connect(Socket, [{verify, verify_none}, {active, false}, binary], ?WAIT_MS) end},
                                {Hello('tlsv1.2'), Continue}, {Hello('tlsv1.3'), Continue}]],
    _ = (Hello('tlsv1.3'))(start(Options)),
    ok = yucan:drain(yucan_server_test, ?WAIT_MS div 2).

%% The port stays open throughout, and new connections use the new options.
tls_on_a_port(Config) ->
    Dir = ?config(priv_dir, Config),
    Port = test_support:free_port(),
    Options = fun(Tls) -> #{listen => [maps:merge(#{port => Port}, Tls)], handler => handler()} end,
    Port = start(Options(#{})),
    Open = yucan_client:connect(Port),
    answered(Open),
    ok = yucan:reload(yucan_server_test, Options(#{tls => yucan_test_server:certificate("one.org", Dir)})),
    "one.org" = shown(Port, "x.org"),
    ok = yucan:reload(yucan_server_test, Options(#{tls => yucan_test_server:certificate("two.org", Dir)})),
    "two.org" = shown(Port, "x.org"),
    answered(Open),
    ok = yucan:reload(yucan_server_test, Options(#{proxy_protocol => true})),
    [{200, _, <<"{{10,1,2,3},5555}">>}] = yucan_client:exchange(Port, ["PROXY TCP4 10.1.2.3 10.9.9.9 5555 80\r\n", ?GET("/peer")]),
    ok = yucan:reload(yucan_server_test, Options(#{})),
    {200, _, <<"OK">>} = yucan_client:get(Port, "/").
