%% SPDX-License-Identifier: Apache-2.0
%% @doc A server of yucan as a whole: options, hosts, routes, TLS, proxies, log, figures, reload, drain, descriptors.
-module(yucan_server_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([bad_options/1, hosts/1, select_host/1, routes/1, middleware/1, tls/1, sni/1, proxy_protocol/1, forwarded_for/1, forwarded/1, request_ids/1, address_connections/1, address_requests/1, events/1, unix_socket/1, stale_unix_socket/1, plain_on_tls/1, access_log/1, access_log_json/1,
         access_log_rotates/1, access_log_folder/1, access_log_reloads/1, access_log_bounded/1, metrics/1, reload_under_load/1, reload_errors/1, drain/1, drain_at_sigterm/1, descriptors_used_up/1, without_flags/1, hot_code/1, hot_server/1,
         supervised/1, address_in_use/1, idle_memory/1,
         one_for_each/1, stock_log/1, one_path/1, bad_paths/1, tls_reload/1, tls_renewed/1, tls_tickets/1, tls_refused/1, tls_on_a_port/1]).
-export([tag/2]).

-include_lib("common_test/include/ct.hrl").

-define(GET(Path), ["GET ", Path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"]).
-define(WAIT_MS, (20000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [bad_options, hosts, select_host, routes, middleware, tls, sni, proxy_protocol, forwarded_for, forwarded, request_ids, address_connections, address_requests, events, unix_socket, stale_unix_socket, plain_on_tls, access_log, access_log_json, access_log_rotates, access_log_folder, access_log_reloads,
     access_log_bounded, metrics, reload_under_load, reload_errors, drain, drain_at_sigterm, descriptors_used_up, without_flags, hot_code, hot_server, supervised, address_in_use, idle_memory,
     one_for_each, stock_log, one_path, bad_paths, tls_reload, tls_renewed, tls_tickets, tls_refused, tls_on_a_port].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

end_per_testcase(_, _) -> yucan_test_server:stop_all().

start(Options) -> yucan_test_server:start(yucan_server_test, Options).

handler() -> yucan_test_server:handler().

%% The value, what was expected; nothing is started.
bad_options(_) ->
    Cases = [{#{handler => {no_such_module, x}}, "no_such_module"}, {#{}, "handler or routes"}, {#{handler => handler(), colour => red}, "colour"},
             {#{handler => {lists, x}}, "handle/2"}, {#{handler => handler(), limits => #{headers => -1}}, "headers is -1"},
             {#{handler => handler(), limits => #{heders => 1}}, "heders"}, {#{handler => handler(), listen => [#{port => 70000}]}, "70000"},
             {#{handler => handler(), listen => [#{ip => "localhost"}]}, "localhost"}, {#{routes => [{"no_slash", yucan_test_handler, x}]}, "slash"},
             {#{routes => [{"/*a/b", yucan_test_handler, x}]}, "last"},
             {#{routes => [{"/a//b", yucan_test_handler, x}]}, "empty"}, {#{routes => [{"/a/../b", yucan_test_handler, x}]}, ". or .."}, {#{handler => handler(), trusted_proxies => [<<"10.0.0.0/99">>]}, "10.0.0.0/99"},
             {#{handler => handler(), forwarded => [<<"x-real-ip">>]}, "x-real-ip"}, {#{handler => handler(), forwarded => [<<"forwarded">>, <<"x-forwarded-for">>]}, "stands alone"},
             {#{handler => handler(), request_id => <<"Content-Length">>}, "Content-Length"}, {#{handler => handler(), request_id => <<"host">>}, "host"},
             {#{handler => handler(), on_event => fun() -> ok end}, "on_event"}, {#{handler => handler(), limits => #{address_requests => 0}}, "address_requests is 0"},
             {#{handler => handler(), listen => [#{tls => #{certfile => "/no/such/file"}}]}, "/no/such/file"}, {not_a_map, "not_a_map"}],
    process_flag(trap_exit, true),
    [begin
         {error, {bad_options, Text}} = yucan:start_link(Options),
         {true, Text} = {string:find(Text, Part) =/= nomatch, Text}
     end || {Options, Part} <- Cases],
    {error, Text} = yucan:start_link(#{name => yucan_x, handler => handler(), listen => [#{port => 0}], access_log => "/no/such/folder/log"}),
    {true, Text} = {string:find(Text, "/no/such/folder/log") =/= nomatch, Text}.

%% @doc Middleware that answers itself.
tag(Req, Next) ->
    {Status, Headers, Body} = Next(yucan_req:assign(tagged, yes, Req)),
    {Status, [{"x-tag", "one"} | Headers], Body}.

ask(Port, Host) ->
    [{Status, _, Body}] = yucan_client:exchange(Port, ["GET /host HTTP/1.1\r\nHost: ", Host, "\r\n\r\n"]),
    {Status, Body}.

file_host(Names, Root) -> #{names => Names, handler => {yucan_file, #{root => Root, index => [<<"host">>], listing => true}}}.

hosts(Config) ->
    Roots = [begin
                 Root = filename:join(?config(priv_dir, Config), Name),
                 ok = filelib:ensure_dir(filename:join(Root, "x")),
                 ok = file:write_file(filename:join(Root, "host"), Name),
                 Root
             end || Name <- ["default", "one", "many", "www"]],
    Hosts = lists:zipwith(fun file_host/2, [["default.org"], ["one.org", "ein.org"], ["*.one.org"], ["w??.one.org"]], Roots),
    Port = start(#{hosts => Hosts}),
    Bodies = [{"default.org", <<"default">>}, {"one.org", <<"one">>}, {"ONE.org:8080", <<"one">>}, {"ein.org", <<"one">>}, {"x.one.org", <<"many">>},
              {"a.b.one.org", <<"many">>}, {"www.one.org", <<"www">>}, {"w...one.org", <<"many">>}, {"unknown.org", <<"default">>}, {"", <<"default">>}],
    [{200, Body} = ask(Port, Host) || {Host, Body} <- Bodies],
    %% On one connection, which remembers what the last Host header meant: each twice, and between them a target that counts instead.
    Get = fun(Target, Host) -> ["GET ", Target, " HTTP/1.1\r\nHost: ", Host, "\r\n\r\n"] end,
    Requests = [[Get("/host", Host), Get("http://ein.org/host", Host), Get("/host", Host)] || {Host, _} <- Bodies],
    Expected = lists:append([[{200, Body}, {200, <<"one">>}, {200, Body}] || {_, Body} <- Bodies]) ++ [400],
    Expected = [case Status of 200 -> {200, Body}; _ -> Status end || {Status, _, Body} <- yucan_client:exchange(Port, [Requests, Get("/host", "bad host")])],
    ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], hosts => Hosts, default_host => none}),
    Port1 = yucan:port(yucan_server_test),
    {400, _} = ask(Port1, "unknown.org"),
    {200, <<"one">>} = ask(Port1, "one.org").

select_host(_) ->
    Port = start(#{hosts => [#{handler => handler()}, #{names => ["x"], handler => handler(), middleware => [fun ?MODULE:tag/2]}],
                   select_host => fun(<<"second">>, _) -> 1; (_, _) -> default end}),
    [{200, Second, _}] = yucan_client:exchange(Port, "GET / HTTP/1.1\r\nHost: second\r\n\r\n"),
    <<"one">> = proplists:get_value(<<"x-tag">>, Second),
    [{200, First, _}] = yucan_client:exchange(Port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    undefined = proplists:get_value(<<"x-tag">>, First).

routes(_) ->
    Port = start(#{routes => [{"/", yucan_routes_handler, root}, {"/users/:id", [<<"GET">>], yucan_routes_handler, show}, {"/users/:id", [<<"PUT">>, <<"DELETE">>], yucan_routes_handler, change},
                              {"/users/me/x", yucan_routes_handler, me}, {"/files/*rest", yucan_routes_handler, files}]}),
    Ask = fun(Method, Path) ->
        [{Status, Headers, Body}] = yucan_client:exchange(Port, [Method, " ", Path, " HTTP/1.1\r\nHost: a\r\n\r\n"]),
        {Status, proplists:get_value(<<"allow">>, Headers), Body}
    end,
    {200, _, <<"{root,#{}}">>} = Ask("GET", "/"),
    {200, _, <<"{show,#{<<\"id\">> => <<\"a/b\">>}}">>} = Ask("GET", "/users/a%2fb?q"),
    {200, _, <<"{change,#{<<\"id\">> => <<\"7\">>}}">>} = Ask("DELETE", "/users/7"),
    {405, <<"DELETE, GET, HEAD, OPTIONS, PUT">>, _} = Ask("POST", "/users/7"),
    {204, <<"DELETE, GET, HEAD, OPTIONS, PUT">>, _} = Ask("OPTIONS", "/users/7"),
    {200, _, <<"{me,#{}}">>} = Ask("GET", "/users/%6de/x"),
    {200, _, <<"{files,#{<<\"rest\">> => <<\"a/b\">>}}">>} = Ask("GET", "/files/a/b"),
    {200, _, <<"{files,#{<<\"rest\">> => <<>>}}">>} = Ask("GET", "/files/"),
    [{404, undefined, _} = Ask("GET", Path) || Path <- ["/users/", "/users/7/8", "/files", "/nothing"]].

%% RFC 3986, 6.2.2: however a path is written, one route takes it, and the handler sees one form.
one_path(_) ->
    Port = start(#{routes => [{"/private/*rest", yucan_routes_handler, guarded}, {"/exact", yucan_routes_handler, exact}, {"/*rest", yucan_routes_handler, open}]}),
    Ask = fun(Path) -> {Status, _, Body} = yucan_client:get(Port, Path), {Path, Status, Body} end,
    [{Path, 200, <<"{guarded,#{<<\"rest\">> => <<\"s\">>}}">>} = Ask(Path)
     || Path <- ["/private/s", "//private/s", "/./private/s", "/x/../private/s", "/x//../private/s", "/private//s", "/private/./s", "/private/x/../s", "///private///s",
                 "/%70rivate/s", "/%2e/private/s", "/x/%2E%2e/private/s", "/x/.%2e//private/%73", "http://localhost//private/s", "//private/s?a=//b"]],
    [{Path, 200, <<"{exact,#{}}">>} = Ask(Path) || Path <- ["/exact", "//exact", "/x/../exact", "/%65xact", "/./exact?../private"]],
    [{Path, 200, <<"{guarded,#{<<\"rest\">> => <<>>}}">>} = Ask(Path) || Path <- ["/private/", "/private//", "/private/s/..", "/private/."]].

%% Paths that leave the root, and bindings of several segments that would hold a slash or `..' of their own.
bad_paths(_) ->
    Port = start(#{routes => [{"/users/:id", yucan_routes_handler, user}, {"/*rest", yucan_routes_handler, open}]}),
    [{Path, 400} = {Path, element(1, yucan_client:get(Port, Path))}
     || Path <- ["/..", "/../private/s", "/x/../../private/s", "/%2e%2e/x", "//../x", "/private%2fs", "/private%2Fs", "/..%2fprivate/s", "/users/..%2f..%2fetc", "/users/..%5c..%5cetc",
                 "/x/%2e%2e%2f", "/%zz", "/%", "/%2", "/x%00", "http://localhost/../x"]],
    {200, _, <<"{user,#{<<\"id\">> => <<\"a/b\">>}}">>} = yucan_client:get(Port, "/users/a%2fb").

middleware(_) ->
    Stop = fun(Req, Next) -> case yucan_req:path(Req) of <<"/stop">> -> {403, [], <<"stopped">>}; _ -> Next(Req) end end,
    Port = start(#{middleware => [fun ?MODULE:tag/2, Stop]}),
    {200, Headers, <<"OK">>} = yucan_client:get(Port, "/"),
    <<"one">> = proplists:get_value(<<"x-tag">>, Headers),
    {403, _, <<"stopped">>} = yucan_client:get(Port, "/stop").

%% Keep-alive, a body of many records, ALPN (RFC 7301).
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

%% Whoever speaks HTTP to a port for TLS is told so in HTTP; who begins slowly with TLS is served.
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

tls_one(Socket, Bytes) ->
    case yucan_client:parse(Bytes, <<"GET">>) of
        [Response] -> Response;
        _ ->
            {ok, Data} = ssl:recv(Socket, 0, ?WAIT_MS),
            tls_one(Socket, <<Bytes/binary, Data/binary>>)
    end.

tls_all(Socket, Done) ->
    case ssl:recv(Socket, 0, ?WAIT_MS) of
        {ok, Data} -> tls_all(Socket, [Done | Data]);
        {error, closed} -> iolist_to_binary(Done)
    end.

%% RFC 6066, 3; and a certificate for one name does not serve another's pages (RFC 9110, 7.4).
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
    ok = ssl:send(Socket, "GET /host HTTP/1.1\r\nHost: a.org\r\n\r\n"),
    {200, _, <<"a.org">>} = tls_one(Socket, <<>>),
    ok = ssl:send(Socket, "GET /host HTTP/1.1\r\nHost: x.b.org\r\n\r\n"),
    {421, _, _} = tls_one(Socket, <<>>).

%% Whose certificate a client is shown.
shown(Port, Name) ->
    {ok, Socket} = yucan_test_server:tls_connect(Port, [{server_name_indication, Name}]),
    Subject = yucan_test_server:subject(Socket),
    ok = ssl:send(Socket, ["GET /host HTTP/1.1\r\nHost: ", Name, "\r\n\r\n"]),
    Name1 = list_to_binary(Name),
    {200, _, Name1} = tls_one(Socket, <<>>),
    ssl:close(Socket),
    Subject.

%% A listener that stays shows what the new configuration says.
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

%% The same file with another certificate in it, as a renewal leaves it.
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

%% A ticket resumes a session (TLS 1.3), also after a reload that changes nothing of TLS, and nothing where clients must show a certificate.
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
    ok = yucan:reload(yucan_server_test, Start#{hosts => Hosts(#{verify => verify_peer, cacertfile => Certificate})}),
    {false, none} = ticket(Port, [{use_ticket, [Third]}]).

%% Whether the connection was a resumed one, and the ticket that it brought.
ticket(Port, Options) ->
    {ok, Socket} = yucan_test_server:tls_connect(Port, [{session_tickets, manual}, {versions, ['tlsv1.3']}, {server_name_indication, "a.org"} | Options]),
    {ok, [{session_resumption, Resumed}]} = ssl:connection_information(Socket, [session_resumption]),
    ok = ssl:send(Socket, "GET /host HTTP/1.1\r\nHost: a.org\r\n\r\n"),
    {200, _, <<"a.org">>} = tls_one(Socket, <<>>),
    ssl:close(Socket),
    {Resumed, last_ticket(none)}.

last_ticket(Last) -> receive {ssl, session_ticket, Ticket} -> last_ticket(Ticket) after 0 -> Last end.

%% What else is wrong is found out before ssl has anything of the new options; tickets of the old ones stay valid.
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

%% Where OTP's ssl keeps what belongs to the tickets of a listening socket.
ticket_processes() -> [Pid || {_, Pid, _, _} <- supervisor:which_children(tls_server_session_ticket_sup)].

%% The port stays open meanwhile; new connections get what is new.
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

proxy_protocol(Config) ->
    Dir = ?config(priv_dir, Config),
    Port = start(#{listen => [#{port => 0, proxy_protocol => true}, #{port => 0, proxy_protocol => true, tls => yucan_test_server:certificate("localhost", Dir)}]}),
    Ask = fun(Header) -> yucan_client:exchange(Port, [Header, ?GET("/peer")]) end,
    V2 = fun(Command, Family, Data) -> [<<13, 10, 13, 10, 0, 13, 10, "QUIT", 10, 2:4, Command:4, Family, (iolist_size(Data)):16>>, Data] end,
    [{200, _, <<"{{10,1,2,3},5555}">>}] = Ask("PROXY TCP4 10.1.2.3 10.9.9.9 5555 80\r\n"),
    [{200, _, <<"{{8193,0,0,0,0,0,0,1},1}">>}] = Ask("PROXY TCP6 2001::1 2001::2 1 80\r\n"),
    [{200, _, <<"{{127,0,0,1},", _/binary>>}] = Ask("PROXY UNKNOWN\r\n"),
    [{200, _, <<"{{10,1,2,3},5555}">>}] = Ask(V2(1, 16#11, <<10, 1, 2, 3, 10, 9, 9, 9, 5555:16, 80:16>>)),
    [{200, _, <<"{{10,1,2,3},5555}">>}] = Ask(V2(1, 16#11, <<10, 1, 2, 3, 10, 9, 9, 9, 5555:16, 80:16, 4, 3:16, "xyz">>)),
    [{200, _, <<"{{127,0,0,1},", _/binary>>}] = Ask(V2(0, 0, <<>>)),
    [[] = Ask(Bad) || Bad <- ["", "PROXY TCP4 nonsense\r\n", "PROXY TCP4 10.1.2.3 10.9.9.9 99999 80\r\n", ["PROXY ", lists:duplicate(200, $x)], V2(7, 16#11, <<>>), V2(1, 16#11, <<1>>)]],
    [_, {_, TlsPort}] = maps:get(listen, yucan:info(yucan_server_test)),
    Socket = yucan_client:connect(TlsPort),
    ok = gen_tcp:send(Socket, "PROXY TCP4 10.1.2.3 10.9.9.9 5555 80\r\n"),
    {ok, Tls} = ssl:connect(Socket, [{verify, verify_none}, {active, false}], ?WAIT_MS),
    ok = ssl:send(Tls, ?GET("/peer")),
    {200, _, <<"{{10,1,2,3},5555}">>} = tls_one(Tls, <<>>).

%% Only from those who are trusted, and only what they wrote.
forwarded_for(_) ->
    Port = start(#{trusted_proxies => [<<"127.0.0.0/8">>, <<"10.0.0.0/8">>]}),
    Ask = fun(Headers) -> element(3, yucan_client:get(Port, "/peer", [{"X-Forwarded-For", H} || H <- Headers])) end,
    <<"{{1,2,3,4},0}">> = Ask(["9.9.9.9, 1.2.3.4"]),
    <<"{{1,2,3,4},0}">> = Ask(["9.9.9.9, 1.2.3.4, 10.0.0.1"]),
    <<"{{1,2,3,4},0}">> = Ask(["9.9.9.9", "1.2.3.4", "10.0.0.1:77"]),
    <<"{{8193,0,0,0,0,0,0,1},0}">> = Ask(["2001::1"]),
    <<"{{127,0,0,1},", _/binary>> = Ask(["nonsense"]),
    ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], handler => handler()}),
    {200, _, <<"{{127,0,0,1},", _/binary>>} = yucan_client:get(yucan:port(yucan_server_test), "/peer", [{"X-Forwarded-For", "1.2.3.4"}]).

%% Scheme, host and address as the proxy that named the client has said; only headers that the configuration names, and only of those who are trusted.
forwarded(_) ->
    Trusted = [<<"127.0.0.0/8">>, <<"10.0.0.0/8">>],
    All = [<<"x-forwarded-for">>, <<"x-forwarded-proto">>, <<"x-forwarded-host">>],
    Port = start(#{trusted_proxies => Trusted, forwarded => [<<"forwarded">>]}),
    Ask = fun(Headers) -> [element(3, yucan_client:get(Port, Path, Headers)) || Path <- ["/peer", "/scheme", "/host", "/port"]] end,
    Reload = fun(Options) -> ok = yucan:reload(yucan_server_test, Options#{listen => [#{port => 0}], handler => handler()}) end,
    Local = integer_to_binary(Port),
    Plain = fun(Headers) -> [<<"{{127,0,0,1},", _/binary>>, <<"http">>, <<"localhost">>, Local] = Ask(Headers) end,
    Behind = {"Forwarded", "for=9.9.9.9;proto=http;host=spoofed, For=\"[2001::1]:4711\";Proto=https;host=\"A.org\", for=10.0.0.1;proto=http;host=inner"},
    [<<"{{8193,0,0,0,0,0,0,1},0}">>, <<"https">>, <<"a.org">>, <<"443">>] = Ask([Behind]),
    [<<"{{1,2,3,4},0}">>, <<"http">>, <<"b.org">>, <<"81">>] = Ask([{"Forwarded", "for=1.2.3.4;host=\"b.org:81\""}]),
    [<<"{{1,2,3,4},0}">>, <<"https">>, <<"localhost">>, <<"443">>] = Ask([{"Forwarded", "for=1.2.3.4 ; proto=https"}, {"X-Forwarded-For", "5.6.7.8"}]),
    %% Who is unknown or hidden is as far as it goes.
    [<<"{{127,0,0,1},", _/binary>>, <<"https">>, <<"localhost">>, <<"443">>] = Ask([{"Forwarded", "for=1.2.3.4;proto=http, for=unknown;proto=https"}]),
    [Plain([{"Forwarded", Bad}]) || Bad <- ["for=1.2.3.4;for=5.6.7.8", "for=\"1.2.3.4", "for 1.2.3.4", "for=1.2.3.4 x", "proto=gopher;host=\"a b\""]],
    Plain([{"X-Forwarded-For", "5.6.7.8"}, {"X-Forwarded-Host", "c.org"}]),
    Reload(#{trusted_proxies => Trusted, forwarded => All}),
    [<<"{{5,6,7,8},0}">>, <<"https">>, <<"c.org">>, <<"443">>] = Ask([{"X-Forwarded-For", "9.9.9.9, 5.6.7.8"}, {"X-Forwarded-Proto", "http, https"}, {"X-Forwarded-Host", "c.org"}]),
    [<<"{{5,6,7,8},0}">>, <<"https">>, <<"localhost">>, <<"443">>] = Ask([{"X-Forwarded-For", "5.6.7.8, 10.0.0.1"}, {"X-Forwarded-Proto", "https"}]),
    Plain([Behind]),
    Reload(#{trusted_proxies => Trusted}),
    [<<"{{5,6,7,8},0}">>, <<"http">>, <<"localhost">>, Local] = Ask([{"X-Forwarded-For", "5.6.7.8"}, {"X-Forwarded-Proto", "https"}, {"X-Forwarded-Host", "c.org"}]),
    Reload(#{trusted_proxies => [<<"10.0.0.0/8">>], forwarded => All}),
    Plain([{"X-Forwarded-For", "5.6.7.8"}, {"X-Forwarded-Proto", "https"}, {"X-Forwarded-Host", "c.org"}]).

%% Made here, or taken from a trusted proxy; the same in the answer, for the handler and in the log, also of one that fails and of HTTP/2.
request_ids(_) ->
    Self = self(),
    Options = #{request_id => true, access_log => {function, fun(Entry) -> Self ! {entry, Entry} end}},
    Port = start(Options),
    Ask = fun(Path, Sent) ->
        {_, Headers, Body} = yucan_client:get(Port, Path, [{"X-Request-Id", S} || S <- Sent]),
        [Id] = [Value || {<<"x-request-id">>, Value} <- Headers],
        receive {entry, #{id := Id}} -> {Id, Body} after ?WAIT_MS -> error(no_entry) end
    end,
    [{One, One} | Others] = [Ask(Path, ["sent"]) || Path <- ["/id", "/none", "/crash", "/steps/whole"]],
    Ids = [One | [Id || {Id, _} <- Others]],
    [match = re:run(Id, "^[0-9a-f]{32}$", [{capture, none}]) || Id <- Ids],
    4 = length(lists:usort(Ids)),
    {200, Fields, Id} = yucan_h2_client:request(Port, <<"/id">>, []),
    Id = proplists:get_value(<<"x-request-id">>, Fields),
    ok = yucan:reload(yucan_server_test, Options#{listen => [#{port => 0}], handler => handler(), trusted_proxies => [<<"127.0.0.1">>]}),
    {<<"sent-1">>, <<"sent-1">>} = Ask("/id", ["sent-1"]),
    [{true, Bad} = {element(1, Ask("/id", [Bad])) =/= list_to_binary(Bad), Bad} || Bad <- ["a b", "a\"b", lists:duplicate(129, $a)]],
    Entry = #{time => 0, peer => {{1, 2, 3, 4}, 5}, method => <<"GET">>, target => <<"/">>, version => 11, status => 200, bytes => 0, host => <<>>, referer => <<>>, agent => <<>>, us => 0},
    [{_, _} = binary:match(iolist_to_binary(Format(Entry#{id => <<"x1">>})), Part) || {Format, Part} <- [{fun yucan_log:format/1, <<" \"-\" \"-\" \"x1\"\n">>}, {fun yucan_log:json/1, <<"\"id\":\"x1\"}">>}]].

%% One client cannot take all connections; what it has given up counts no more, however it ended, and trusted proxies have no limit.
address_connections(_) ->
    Port = start(#{limits => #{address_connections => 2}}),
    Open = fun() -> Socket = yucan_client:connect(Port), ok = gen_tcp:send(Socket, ?GET("/")), {element(1, yucan_client:one(Socket)), Socket} end,
    [{200, One}, {200, Two}, {503, _}] = [Open() || _ <- [1, 2, 3]],
    [{503, Headers, _}] = yucan_client:exchange(Port, ?GET("/")),
    <<"1">> = proplists:get_value(<<"retry-after">>, Headers),
    ok = gen_tcp:close(One),
    %% A handler that is killed counts no more either.
    Looping = yucan_client:connect(Port),
    wait_for(fun() -> #{metrics := #{open_connections := Count}} = yucan:info(yucan_server_test), Count =:= 1 end),
    ok = gen_tcp:close(Looping),
    [begin
         Killed = beamway_peer:wait_until(fun() -> case Open() of {200, Socket} -> {ok, Socket}; {503, _} -> false end end, 20000),
         {503, _} = Open(),
         {ok, Socket} = Killed,
         ok = gen_tcp:send(Socket, ?GET("/crash")),
         {500, _, _} = yucan_client:one(Socket)
     end || _ <- [1, 2, 3]],
    %% Another address has its own.
    {ok, Other} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {ip, {127, 0, 0, 2}}]),
    ok = gen_tcp:send(Other, ?GET("/")),
    {200, _, _} = yucan_client:one(Other),
    ok = gen_tcp:close(Two),
    ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], handler => handler(), limits => #{address_connections => 1}, trusted_proxies => [<<"127.0.0.1">>]}),
    [{200, _}, {200, _}, {200, _}] = [Open() || _ <- [1, 2, 3]].

%% As many at once as for a second, over all connections and protocols; then 429 with the time to wait. Behind a proxy each client has its own.
address_requests(_) ->
    Port = start(#{limits => #{address_requests => 3}, trusted_proxies => [<<"127.0.0.2">>]}),
    Began = erlang:monotonic_time(millisecond),
    Statuses = [element(1, yucan_client:get(Port, "/")) || _ <- lists:seq(1, 40)],
    Took = erlang:monotonic_time(millisecond) - Began,
    Allowed = length([200 || 200 <- Statuses]),
    [429, 200] = lists:usort(fun(A, B) -> A >= B end, Statuses),
    {true, Allowed} = {Allowed >= 3 andalso Allowed =< 4 + 3 * Took div 1000, Allowed},
    Limited = fun Next(Ask) -> case Ask() of {429, Headers, _} -> Headers; {200, _, _} -> Next(Ask) end end,
    [<<"1">>, <<"1">>] = [proplists:get_value(<<"retry-after">>, Limited(Ask)) || Ask <- [fun() -> yucan_client:get(Port, "/") end, fun() -> yucan_h2_client:request(Port, <<"/">>, []) end]],
    Proxied = fun(Client) ->
        {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {ip, {127, 0, 0, 2}}]),
        ok = gen_tcp:send(Socket, ["GET / HTTP/1.1\r\nHost: a\r\n", [["X-Forwarded-For: ", Client, "\r\n"] || Client =/= none], "\r\n"]),
        Response = yucan_client:one(Socket),
        ok = gen_tcp:close(Socket),
        Response
    end,
    {200, _, _} = Proxied("1.2.3.4"),
    _ = Limited(fun() -> Proxied("1.2.3.4") end),
    {200, _, _} = Proxied("1.2.3.5"),
    [{200, _, _} = Proxied(none) || _ <- lists:seq(1, 20)].

%% In the shape of telemetry; a function that fails harms no request.
events(_) ->
    Self = self(),
    Port = start(#{on_event => fun(Name, Measurements, Metadata) -> Self ! {Name, Measurements, Metadata}, maps:get(method, Metadata, none) =:= <<"PUT">> andalso error(on_purpose) end,
                   request_id => true, limits => #{address_connections => 1}}),
    Event = fun(Name) -> receive {Name, #{system_time := Time} = Measurements, #{server := yucan_server_test} = Metadata} when is_integer(Time) -> {Measurements, Metadata} after ?WAIT_MS -> error({no_event, Name}) end end,
    Ask = fun(Method, Path) -> [Response] = yucan_client:exchange(Port, [Method, " ", Path, " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"]), element(1, Response) end,
    Gone = fun() -> wait_for(fun() -> #{metrics := #{open_connections := Count}} = yucan:info(yucan_server_test), Count =:= 0 end) end,
    200 = Ask("GET", "/peer?a"),
    {#{duration := Took, bytes := Bytes}, #{method := <<"GET">>, target := <<"/peer?a">>, status := 200, host := <<"a">>, version := 11, peer := {{127, 0, 0, 1}, _}, id := Id}} = Event([yucan, request, stop]),
    true = Took >= 0 andalso Took < erlang:convert_time_unit(?WAIT_MS, millisecond, native) andalso Bytes > 10 andalso byte_size(Id) =:= 32,
    Gone(),
    500 = Ask("GET", "/crash"),
    {_, #{kind := error, reason := crashed_on_purpose, stacktrace := [_ | _], target := <<"/crash">>}} = Event([yucan, request, exception]),
    {_, #{status := 500}} = Event([yucan, request, stop]),
    Gone(),
    400 = Ask("G@T", "/"),
    {_, #{status := 400, reason := bad_method}} = Event([yucan, request, refused]),
    Gone(),
    [200, 200] = [begin Status = Ask("PUT", "/"), Gone(), Status end || _ <- [1, 2]],
    Socket = yucan_client:connect(Port),
    ok = gen_tcp:send(Socket, ?GET("/")),
    {200, _, _} = yucan_client:one(Socket),
    503 = Ask("GET", "/"),
    {_, #{limit := address_connections, peer := {{127, 0, 0, 1}, _}}} = Event([yucan, connection, refused]).

%% Also a file that the system copies.
unix_socket(Config) ->
    %% Names of sockets are short.
    Path = "/tmp/yucan_" ++ os:getpid() ++ ".sock",
    Root = filename:join(?config(priv_dir, Config), "unix_socket"),
    ok = filelib:ensure_path(Root),
    ok = file:write_file(filename:join(Root, "large"), Large = binary:copy(<<"0123456789">>, 100000)),
    _ = start(#{listen => [#{ip => {local, Path}, port => 0}], routes => [{"/large", yucan_file, #{root => Root}}, {"/*path", yucan_test_handler, none}]}),
    {ok, Socket} = gen_tcp:connect({local, Path}, 0, [binary, {active, false}]),
    ok = gen_tcp:send(Socket, ?GET("/")),
    {200, _, <<"OK">>} = yucan_client:one(Socket),
    ok = gen_tcp:send(Socket, ?GET("/large")),
    {200, _, Large} = yucan_client:one(Socket),
    yucan:stop(yucan_server_test),
    false = filelib:is_file(Path).

%% A server that was killed leaves its socket: the next one takes its place. One at which somebody answers stays, and so does a file.
stale_unix_socket(_) ->
    Path = "/tmp/yucan_stale_" ++ os:getpid() ++ ".sock",
    Options = #{name => yucan_server_test, listen => [#{ip => {local, Path}, port => 0}], handler => handler()},
    {ok, Stale} = gen_tcp:listen(0, [{ifaddr, {local, Path}}]),
    {error, Answered} = yucan:start(Options),
    {_, _} = binary:match(Answered, <<"address already in use; end the program">>),
    ok = gen_tcp:close(Stale),
    true = filelib:is_file(Path) orelse is_socket_there(Path),
    {ok, _} = yucan:start(Options),
    {ok, Socket} = gen_tcp:connect({local, Path}, 0, [binary, {active, false}]),
    ok = gen_tcp:send(Socket, ?GET("/")),
    {200, _, <<"OK">>} = yucan_client:one(Socket),
    yucan:stop(yucan_server_test),
    ok = file:write_file(Path, "a file"),
    {error, _} = yucan:start(Options),
    {ok, <<"a file">>} = file:read_file(Path),
    ok = file:delete(Path).

is_socket_there(Path) -> element(1, file:read_link_info(Path)) =:= ok.

log_file(Config) -> filename:join(?config(priv_dir, Config), "access.log").

lines(File) ->
    yucan_log:flush(yucan_server_test_access_log),
    {ok, Text} = file:read_file(File),
    string:lexemes(Text, "\n").

%% Combined format; what clients send cannot break the line.
access_log(Config) ->
    File = log_file(Config),
    _ = file:delete(File),
    Port = start(#{access_log => File}),
    {200, _, _} = yucan_client:get(Port, "/a?b=\"c\\", [{"User-Agent", "one \"two\" \\ \x{ff}"}, {"Referer", "http://x/"}]),
    _ = yucan_client:exchange(Port, "BAD\r\n\r\n"),
    wait_for(fun() -> length(lines(File)) =:= 2 end),
    %% Two connections, two processes: nobody says which line is first.
    {[Line], [Bad]} = lists:partition(fun(L) -> string:find(L, "\" 200 ") =/= nomatch end, lines(File)),
    match = re:run(Line, "^127\\.0\\.0\\.1 - - \\[\\d\\d/\\w{3}/\\d{4}:\\d\\d:\\d\\d:\\d\\d \\+0000\\] \"GET /a\\?b=\\\\\"c\\\\\\\\ HTTP/1\\.1\" 200 2 \"http://x/\" \"one \\\\\"two\\\\\" \\\\\\\\ \\\\xff\"$", [{capture, none}]),
    match = re:run(Bad, "\"- - HTTP/1.1\" 400 - \"-\" \"-\"$", [{capture, none}]).

%% An object a line, whatever bytes a client sends; a reload changes how the lines of the same file are written.
access_log_json(Config) ->
    File = log_file(Config),
    _ = file:delete(File),
    Port = start(#{access_log => {json, File}}),
    {200, _, _} = yucan_client:get(Port, "/a?b=\"c\\", [{"User-Agent", "one \"two\" \\ \x{ff}\t"}, {"Referer", <<"http://x/ü"/utf8>>}]),
    wait_for(fun() -> length(lines(File)) =:= 1 end),
    [Line] = lines(File),
    {Fields} = jiffy:decode(Line),
    [<<"time">>, <<"client">>, <<"host">>, <<"method">>, <<"target">>, <<"version">>, <<"status">>, <<"bytes">>, <<"us">>, <<"referer">>, <<"agent">>] = [Name || {Name, _} <- Fields],
    [{Name, Value} = {Name, proplists:get_value(Name, Fields)}
     || {Name, Value} <- [{<<"client">>, <<"127.0.0.1">>}, {<<"host">>, <<"localhost">>}, {<<"method">>, <<"GET">>}, {<<"target">>, <<"/a?b=\"c\\">>}, {<<"version">>, <<"1.1">>},
                          {<<"status">>, 200}, {<<"bytes">>, 2}, {<<"referer">>, <<"http://x/ü"/utf8>>}, {<<"agent">>, <<"one \"two\" \\ ÿ"/utf8>>}]],
    true = is_integer(proplists:get_value(<<"us">>, Fields)),
    match = re:run(proplists:get_value(<<"time">>, Fields), "^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{6}Z$", [{capture, none}]),
    Escaped = iolist_to_binary(yucan_log:json(#{time => 0, peer => {{1, 2, 3, 4}, 5}, method => <<"-">>, target => <<0, 10, 127, "\"">>, version => 20, status => 400, bytes => 0, host => <<>>, referer => <<>>, agent => <<>>, us => 0})),
    {_, _} = binary:match(Escaped, <<"\"\\u0000\\u000a\\u007f\\\"\"">>),
    ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], handler => yucan_test_server:handler(), access_log => File}),
    {200, _, _} = yucan_client:get(Port, "/after"),
    wait_for(fun() -> [L || L <- lines(File), string:find(L, "\"GET /after HTTP/1.1\" 200") =/= nomatch] =/= [] end),
    {error, {bad_options, <<"access_log is {text,", _/binary>>}} = yucan:start_link(#{access_log => {text, File}, handler => yucan_test_server:handler()}).

wait_for(Condition) -> true = beamway_peer:wait_until(Condition, 20000).

%% Renamed under it: a new file comes, and no line is lost.
access_log_rotates(Config) ->
    File = log_file(Config),
    Port = start(#{access_log => File}),
    {200, _, _} = yucan_client:get(Port, "/before"),
    wait_for(fun() -> [L || L <- lines(File), string:find(L, "/before") =/= nomatch] =/= [] end),
    ok = file:rename(File, File ++ ".1"),
    wait_for(fun() -> filelib:is_file(File) end),
    {200, _, _} = yucan_client:get(Port, "/after"),
    wait_for(fun() -> [L || L <- lines(File), string:find(L, "/after") =/= nomatch] =/= [] end).

%% Its folder is away for several looks, which one warning says, and comes again: so does the file.
access_log_folder(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "logs"),
    File = filename:join(Folder, "access.log"),
    ok = filelib:ensure_dir(File),
    Port = start(#{access_log => File}),
    ok = logger:add_handler(?MODULE, yucan_test_logger, #{level => warning, config => #{pid => self()}}),
    ok = file:rename(Folder, Folder ++ ".away"),
    [yucan_server_test_access_log ! look || _ <- [1, 2, 3]],
    ok = yucan_log:flush(yucan_server_test_access_log),
    ok = logger:remove_handler(?MODULE),
    receive {logged, _} -> ok after 0 -> error(no_warning) end,
    receive {logged, Again} -> error(Again) after 0 -> ok end,
    ok = file:make_dir(Folder),
    wait_for(fun() -> filelib:is_file(File) end),
    {200, _, _} = yucan_client:get(Port, "/after"),
    wait_for(fun() -> [L || L <- lines(File), string:find(L, "/after") =/= nomatch] =/= [] end).

%% A file, a function, a file, none, in one server. What is refused changes neither the log nor what may follow.
access_log_reloads(Config) ->
    Self = self(),
    [One, Two] = [log_file(Config) ++ Name || Name <- [".one", ".two"]],
    Port = start(#{access_log => One}),
    Reload = fun(Options) -> yucan:reload(yucan_server_test, maps:merge(#{listen => [#{port => 0}], handler => handler()}, Options)) end,
    Refused = {yucan_file, #{root => "/no/such/folder"}},
    ok = Reload(#{access_log => {function, fun(#{target := Target}) -> Self ! {target, Target} end}}),
    undefined = whereis(yucan_server_test_access_log),
    {200, _, _} = yucan_client:get(Port, "/function"),
    receive {target, <<"/function">>} -> ok after ?WAIT_MS -> error(no_entry) end,
    ok = Reload(#{access_log => One}),
    {error, _} = Reload(#{access_log => Two, handler => Refused}),
    false = filelib:is_file(Two),
    ok = Reload(#{}),
    {error, _} = Reload(#{access_log => Two, handler => Refused}),
    undefined = whereis(yucan_server_test_access_log),
    ok = Reload(#{access_log => Two}),
    {200, _, _} = yucan_client:get(Port, "/last"),
    wait_for(fun() -> [L || L <- lines(Two), string:find(L, "/last") =/= nomatch] =/= [] end).

%% A log that stands still costs lines, not memory.
access_log_bounded(Config) ->
    Port = start(#{access_log => log_file(Config), limits => #{log_queue => 10}}),
    ok = sys:suspend(yucan_server_test_access_log),
    _ = yucan_client:exchange(Port, [?GET("/") || _ <- lists:seq(1, 100)]),
    {message_queue_len, Waiting} = process_info(whereis(yucan_server_test_access_log), message_queue_len),
    true = Waiting =< 12,
    #{metrics := #{log_dropped := 90}} = yucan:info(yucan_server_test),
    ok = sys:resume(yucan_server_test_access_log).

metrics(_) ->
    Port = start(#{}),
    _ = [yucan_client:get(Port, P) || P <- ["/", "/crash", "/same", "/nothing"]],
    _ = yucan_client:exchange(Port, "BAD\r\n\r\n"),
    #{metrics := #{requests := 4, refused := 1, crashes := 1, status_2xx := 2, status_3xx := 1, status_4xx := 1, status_5xx := 1, connections := 5}} = yucan:info(yucan_server_test),
    Text = iolist_to_binary(yucan:metrics_text(yucan_server_test)),
    {_, _} = binary:match(Text, <<"yucan_requests_total{server=\"yucan_server_test\"} 4\n">>).

%% Clients that never stop; forty configurations; not one request fails.
reload_under_load(_) ->
    Port = start(#{}),
    Parent = self(),
    Clients = [spawn_link(fun() -> Parent ! {self(), client(Port, N rem 2 =:= 0, 0)} end) || N <- lists:seq(1, 8)],
    [ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], limits => #{headers => 50 + N}, handler => handler()}) || N <- lists:seq(1, 40)],
    [Client ! stop || Client <- Clients],
    Counts = [receive {Client, Count} -> Count after ?WAIT_MS -> error(no_end) end || Client <- Clients],
    true = lists:min(Counts) > 0,
    Port = yucan:port(yucan_server_test).

client(Port, Keeps, Count) ->
    Socket = yucan_client:connect(Port),
    client(Port, Socket, Keeps, Count).

client(Port, Socket, Keeps, Count) ->
    ok = gen_tcp:send(Socket, ?GET("/")),
    {200, _, <<"OK">>} = yucan_client:one(Socket),
    receive
        stop -> Count + 1
    after 0 ->
        case Keeps of
            true -> client(Port, Socket, Keeps, Count + 1);
            false -> gen_tcp:close(Socket), client(Port, Keeps, Count + 1)
        end
    end.

%% What is wrong leaves the old configuration in force.
reload_errors(Config) ->
    Port = start(#{}),
    {error, Text} = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], handler => {no_such_module, x}}),
    {_, _} = binary:match(Text, <<"no_such_module">>),
    {ok, Taken} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, TakenPort} = inet:port(Taken),
    {error, InUse} = yucan:reload(yucan_server_test, #{listen => [#{port => TakenPort}], handler => {yucan_file, #{root => "/tmp"}}}),
    {_, _} = binary:match(InUse, <<"in use">>),
    {200, _, <<"OK">>} = yucan_client:get(Port, "/"),
    %% ssl itself refuses an option: open connections stay, and a socket that was to be new listens no longer.
    Open = yucan_client:connect(Port),
    answered(Open),
    Wrong = (yucan_test_server:certificate("localhost", ?config(priv_dir, Config)))#{verify => verify_pear},
    Free = test_support:free_port(),
    {error, Refused} = yucan:reload(yucan_server_test, #{listen => [#{port => 0}, #{port => Free, tls => Wrong}], handler => handler()}),
    {_, _} = binary:match(Refused, <<"tls option verify">>),
    answered(Open),
    {error, econnrefused} = gen_tcp:connect({127, 0, 0, 1}, Free, [], ?WAIT_MS),
    {error, Refused} = yucan:reload(yucan_server_test, #{listen => [#{port => 0, tls => Wrong}], handler => handler()}),
    answered(Open),
    {error, Refused} = yucan:start(#{name => yucan_second, listen => [#{port => 0, tls => Wrong}], handler => handler()}).

%% Whoever ends the VM by SIGTERM, without systemd: requests that run get their answers, idle connections end, and the VM ends before the limit.
drain_at_sigterm(_) ->
    {ok, Peer, _} = ?CT_PEER(#{connection => standard_io, args => ["-pa" | code:get_path()]}),
    Call = fun(M, F, A) -> peer:call(Peer, M, F, A, ?WAIT_MS) end,
    Port = Call(yucan_test_server, start, [yucan_drains]),
    Pid = Call(os, getpid, []),
    [Idle, Busy] = [yucan_client:connect(Port) || _ <- [1, 2]],
    ok = gen_tcp:send(Idle, ?GET("/")),
    {200, _, _} = yucan_client:one(Idle),
    ok = gen_tcp:send(Busy, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc"),
    Served = fun Served() -> case maps:get(open_connections, maps:get(metrics, Call(yucan, info, [yucan_drains]))) of 2 -> ok; _ -> Served() end end,
    ok = Served(),
    Monitor = monitor(process, Peer),
    unlink(Peer),
    [] = os:cmd("kill -TERM " ++ Pid),
    {error, closed} = gen_tcp:recv(Idle, 0, ?WAIT_MS),
    {error, econnrefused} = gen_tcp:connect({127, 0, 0, 1}, Port, [], ?WAIT_MS),
    ok = gen_tcp:send(Busy, "def"),
    {200, Headers, <<"abcdef">>} = yucan_client:one(Busy),
    <<"close">> = proplists:get_value(<<"connection">>, Headers),
    receive {'DOWN', Monitor, process, Peer, _} -> ok after ?WAIT_MS -> error(still_there) end.

%% Idle connections end, and so do streams of events with theirs. Requests that are under way get their answer, nobody new gets in.
drain(_) ->
    Port = start(#{handler => {yucan_test_handler, self()}}),
    Idle = yucan_client:connect(Port),
    ok = gen_tcp:send(Idle, ?GET("/")),
    {200, _, _} = yucan_client:one(Idle),
    Busy = yucan_client:connect(Port),
    ok = gen_tcp:send(Busy, "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n01234"),
    Events = yucan_client:connect(Port),
    ok = gen_tcp:send(Events, ?GET("/forever_events")),
    receive {events, _} -> ok after ?WAIT_MS -> error(no_events) end,
    wait_for(fun() -> #{metrics := #{connections := N}} = yucan:info(yucan_server_test), N =:= 3 end),
    Parent = self(),
    spawn_link(fun() -> Parent ! {drained, yucan:drain(yucan_server_test, ?WAIT_MS)} end),
    <<>> = yucan_client:until_closed(Idle),
    [{200, _, <<": ok\n\n">>}] = yucan_client:parse(yucan_client:until_closed(Events), <<"GET">>),
    {error, econnrefused} = gen_tcp:connect({127, 0, 0, 1}, Port, [], ?WAIT_MS),
    ok = gen_tcp:send(Busy, "56789"),
    [{200, Headers, <<"10">>}] = yucan_client:parse(yucan_client:until_closed(Busy), <<"GET">>),
    <<"close">> = proplists:get_value(<<"connection">>, Headers),
    receive {drained, ok} -> ok after ?WAIT_MS -> error(no_drain) end.

%% 256 descriptors, 320 clients: those that fit are served, the others wait, all are served once there is room. In a VM of its own.
descriptors_used_up(_) ->
    Vm = vm("ulimit -n 256; exec erl -noinput -boot no_dot_erlang -kernel logger_level error -pa \"$0\" \"$1\" -eval \"$2\""),
    try
        Port = vm_port(Vm),
        Sockets = [yucan_client:connect(Port) || _ <- lists:seq(1, 320)],
        [ok = gen_tcp:send(S, ?GET("/")) || S <- Sockets],
        [begin {200, _, <<"OK">>} = yucan_client:one(S), gen_tcp:close(S) end || S <- Sockets],
        {200, _, <<"OK">>} = yucan_client:get(Port, "/")
    after
        kill(Vm)
    end.

%% 200 connections, twice: a VM without the flags of priv/vm.args says so once, one with them does not.
without_flags(_) ->
    Warnings = fun(Flags) ->
        Vm = vm("exec erl " ++ Flags ++ " -noinput -boot no_dot_erlang -pa \"$0\" \"$1\" -eval \"$2\""),
        try
            Port = vm_port(Vm),
            [begin
                 Sockets = [yucan_client:connect(Port) || _ <- lists:seq(1, 210)],
                 [begin ok = gen_tcp:send(S, ?GET("/")), {200, _, <<"OK">>} = yucan_client:one(S) end || S <- Sockets],
                 [gen_tcp:close(S) || S <- Sockets]
             end || _ <- [1, 2]]
        after
            kill(Vm)
        end,
        vm_warnings(Vm, 0)
    end,
    1 = Warnings(""),
    0 = Warnings("-args_file " ++ filename:join(code:priv_dir(yucan), "vm.args")).

%% Of what the VM says until it ends.
vm_warnings(Vm, Count) ->
    receive
        {Vm, {data, {_, Line}}} -> vm_warnings(Vm, Count + case binary:match(Line, <<"-args_file">>) of nomatch -> 0; _ -> 1 end);
        {Vm, {exit_status, _}} -> Count
    after ?WAIT_MS -> error(vm_does_not_end)
    end.

%% A VM of its own that serves the tests' handler, started by a line of shell, and says on which port.
vm(Script) ->
    Ebin = [filename:dirname(code:which(M)) || M <- [yucan, yucan_test_handler]],
    Code = "{ok, _} = application:ensure_all_started(yucan), {ok, _} = yucan:start(#{listen => [#{port => 0}], handler => {yucan_test_handler, none}}),"
           "io:format(\"port ~b~n\", [yucan:port(yucan)]), io:get_line(\"\"), halt().",
    open_port({spawn_executable, os:find_executable("sh")},
              [binary, exit_status, stderr_to_stdout, {line, 1000}, {args, ["-c", Script | Ebin ++ [Code]]}]).

kill(Vm) ->
    {os_pid, Pid} = erlang:port_info(Vm, os_pid),
    os:cmd("kill -9 " ++ integer_to_list(Pid)).

vm_port(Vm) ->
    receive
        {Vm, {data, {eol, <<"port ", Port/binary>>}}} -> binary_to_integer(Port);
        {Vm, {data, {eol, _}}} -> vm_port(Vm);
        {Vm, {exit_status, Status}} -> error({vm_ended, Status})
    after ?WAIT_MS -> error(no_vm)
    end.

%% New code of the handler and of the connection itself answers the next request of an open connection.
hot_code(_) ->
    load_version(1),
    Port = start(#{handler => {yucan_hot_handler, none}}),
    Socket = yucan_client:connect(Port),
    [begin
         load_version(N),
         Body = integer_to_binary(N),
         ok = gen_tcp:send(Socket, ?GET("/")),
         {200, _, Body} = yucan_client:one(Socket)
     end || N <- lists:seq(1, 5)].

%% Three loads in a row of all modules but the one in which processes wait: what is idle, sleeps, has sent nothing yet or is a WebSocket
%% has none of that code on its stack, and goes on.
hot_server(_) ->
    Port = start(#{limits => #{header_ms => ?WAIT_MS, idle_ms => 2 * ?WAIT_MS}}),
    [New, Warm, Asleep, Kept, WebSocket] = Sockets = [yucan_client:connect(Port) || _ <- lists:seq(1, 5)],
    [answered(S) || S <- [Warm, Asleep, Kept]],
    ok = gen_tcp:send(WebSocket, ["GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                  "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"]),
    {101, _, _} = yucan_client:one(WebSocket),
    wait_for(fun() -> length(connections_in({erlang, hibernate, 3})) =:= 3 end),
    %% What is on its way to its waiting place has code on its stack; on a busy machine it may have fallen asleep before anybody looks.
    wait_for(fun() ->
        length(connections_in({yucan_idle, message, 3})) =:= 2 orelse begin answered(Warm), false end
    end),
    {ok, Modules} = application:get_key(yucan, modules),
    [begin _ = code:purge(M), {module, M} = code:load_file(M) end || _ <- [1, 2, 3], M <- Modules -- [yucan_idle]],
    [answered(S) || S <- [New, Warm, Asleep, Kept]],
    %% "hi" with a mask of zeros, and back.
    ok = gen_tcp:send(WebSocket, <<16#81, 16#82, 0:32, "hi">>),
    {ok, <<16#81, 2, "hi">>} = gen_tcp:recv(WebSocket, 4, ?WAIT_MS),
    lists:foreach(fun gen_tcp:close/1, Sockets).

answered(Socket) ->
    ok = gen_tcp:send(Socket, ?GET("/")),
    {200, _, <<"OK">>} = yucan_client:one(Socket).

%% A process that waits for a connection has no port among its links.
connections_in(Function) ->
    [P || P <- processes(), [{_, {yucan_conn, accept, 1}}, {_, F}, {_, Links}] <- [process_info(P, [initial_call, current_function, links])],
          F =:= Function, lists:any(fun is_port/1, Links)].

load_version(N) ->
    Forms = [{attribute, 1, module, yucan_hot_handler}, {attribute, 1, export, [{handle, 2}]},
             {function, 1, handle, 2, [{clause, 1, [{var, 1, '_'}, {var, 1, '_'}], [], [{tuple, 1, [{integer, 1, 200}, {nil, 1}, {string, 1, integer_to_list(N)}]}]}]}],
    {ok, Module, Beam} = compile:forms(Forms),
    code:purge(Module),
    {module, Module} = code:load_binary(Module, "none", Beam).

%% Under a supervisor of the user's: the server's end is the supervisor's affair.
supervised(_) ->
    Spec = yucan:child_spec(#{name => yucan_supervised, listen => [#{port => 0}], handler => handler()}),
    {ok, _} = yucan_test_sup:start_link([Spec]),
    Port = yucan:port(yucan_supervised),
    {200, _, <<"OK">>} = yucan_client:get(Port, "/"),
    Old = whereis(yucan_supervised),
    exit(Old, kill),
    wait_for(fun() -> is_pid(whereis(yucan_supervised)) andalso whereis(yucan_supervised) =/= Old end),
    {200, _, <<"OK">>} = yucan_client:get(yucan:port(yucan_supervised), "/"),
    ok = yucan_test_sup:stop().

address_in_use(_) ->
    Port = start(#{}),
    {error, Text} = yucan:start(#{name => yucan_second, listen => [#{port => Port}], handler => handler()}),
    {true, Text} = {string:find(io_lib:format("~tp", [Text]), "in use") =/= nomatch, Text}.

%% An idle connection sleeps with next to no heap.
%% A process whose handler has run serves no other client: nobody can know whether a timer, a table or a late answer still means it.
one_for_each(_) ->
    Port = start(#{handler => handler()}),
    [begin
         {200, _, Body} = yucan_client:get(Port, ["/leave?", What]),
         Pid = list_to_pid(binary_to_list(Body)),
         wait_for(fun() -> not is_process_alive(Pid) end)
     end || What <- ["nothing", "word", "message", "link", "monitor", "watcher", "flag", "name", "stream"]].

%% OTP's own handler of the log shows what went wrong, without any configuration: a plain VM.
stock_log(_) ->
    Vm = vm("exec erl -noinput -boot no_dot_erlang -pa \"$0\" \"$1\" -eval \"$2\""),
    try
        Port = vm_port(Vm),
        {500, _, _} = yucan_client:get(Port, "/crash?it"),
        wait_for_line(Vm, <<"yucan yucan: the handler failed for GET /crash[?]it: [{]error,crashed_on_purpose">>)
    after
        kill(Vm)
    end.

wait_for_line(Vm, Pattern) ->
    receive
        {Vm, {data, {_, Line}}} ->
            case re:run(Line, Pattern, [{capture, none}]) of
                match -> ok;
                nomatch -> wait_for_line(Vm, Pattern)
            end;
        {Vm, {exit_status, Status}} -> error({vm_ended, Status})
    after ?WAIT_MS -> error({not_said, Pattern})
    end.

idle_memory(_) ->
    Port = start(#{}),
    Sockets = [yucan_client:connect(Port) || _ <- lists:seq(1, 50)],
    [begin ok = gen_tcp:send(S, ?GET("/text")), {200, _, _} = yucan_client:one(S) end || S <- Sockets],
    wait_for(fun() -> length(connections_in({erlang, hibernate, 3})) >= 50 end),
    Sizes = [Bytes || P <- connections_in({erlang, hibernate, 3}), {memory, Bytes} <- [process_info(P, memory)]],
    true = lists:max(Sizes) < 20000,
    [gen_tcp:close(S) || S <- Sockets].
