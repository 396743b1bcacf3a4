%% SPDX-License-Identifier: Apache-2.0
%% @doc Directives that the example site does not use: TLS from files, a FastCGI application, PHP in
%% Erlang, logs, limits, names, a proxy in front of the server, listings, compression. Each
%% directive that no other suite for Yaws sites uses is tested here.
-module(yucan_options_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([tls_by_name/1, tls_in_one_file/1, tls_bad_file/1, fcgi_application/1, fcgi_pool_lives/1, fcgi_asked_again/1, fcgi_keep_conn/1, extern_function/1, extern_node/1, log_folder/1,
         keepalive_timeout/1, max_connections/1, names/1, in_front/1, listings/1, several_listeners/1, symbolic_links/1, aliases/1, script_aliases/1, tls_options/1, client_certificates/1]).

-include_lib("common_test/include/ct.hrl").

-define(WAIT_MS, (20000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [tls_by_name, tls_in_one_file, tls_bad_file, fcgi_application, fcgi_pool_lives, fcgi_asked_again, fcgi_keep_conn, extern_function, extern_node, log_folder, keepalive_timeout, max_connections,
     names, in_front, listings, several_listeners, symbolic_links, aliases, script_aliases, tls_options, client_certificates].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

end_per_testcase(_, _) -> yucan_test_server:stop_all().

status(Response) -> element(1, Response).

%% ---- TLS

%% Two servers use the same port, each with its own certificate.
tls_by_name(Config) ->
    Server = fun(Name) ->
        #{certfile := Certificate, keyfile := Key} = yucan_test_server:certificate(Name, ?config(priv_dir, Config)),
        yucan_yaws_site:server(Name, ["docroot = ", Name, "\n<ssl>\ncertfile = ", Certificate, "\nkeyfile = ", Key, "\n</ssl>\n"])
    end,
    Port = yucan_yaws_site:start_text(Config, [Server("one.example"), Server("two.example")], [{"one.example/f", "1"}, {"two.example/f", "2"}]),
    [begin
         {ok, Socket} = yucan_test_server:tls_connect(Port, [{server_name_indication, Name}]),
         Name = yucan_test_server:subject(Socket),
         ok = ssl:send(Socket, ["GET /f HTTP/1.1\r\nHost: ", Name, "\r\nConnection: close\r\n\r\n"]),
         {200, _, Body} = yucan_yaws_client:parse(tls_all(Socket, <<>>))
     end || {Name, Body} <- [{"one.example", <<"1">>}, {"two.example", <<"2">>}]].

%% The certificate and the key may be in the same file. Redirects of a server with TLS use https.
tls_in_one_file(Config) ->
    #{certfile := Certificate, keyfile := Key} = yucan_test_server:certificate("h", ?config(priv_dir, Config)),
    {ok, First} = file:read_file(Certificate),
    {ok, Second} = file:read_file(Key),
    Both = yucan_yaws_site:write(Config, "both.pem", [First, Second]),
    Port = yucan_yaws_site:start(Config, ["docroot = www\n<redirect>\n/old == /new\n</redirect>\n<ssl>\ncertfile = ", Both, "\n</ssl>\n"], []),
    {ok, Socket} = yucan_test_server:tls_connect(Port, []),
    ok = ssl:send(Socket, "GET /old HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
    {302, Headers, _} = yucan_yaws_client:parse(tls_all(Socket, <<>>)),
    <<"https://h/new">> = proplists:get_value(<<"location">>, Headers).

tls_all(Socket, Done) ->
    case ssl:recv(Socket, 0, ?WAIT_MS) of
        {ok, Data} -> tls_all(Socket, <<Done/binary, Data/binary>>);
        {error, _} -> Done
    end.

%% No server is started, and the error contains the name of the file.
tls_bad_file(Config) ->
    Rubbish = yucan_yaws_site:write(Config, "rubbish.pem", "no certificate"),
    [begin
         File = yucan_yaws_site:write(Config, "site.conf", yucan_yaws_site:server("h", ["docroot = www\n<ssl>\ncertfile = ", Name, "\n</ssl>\n"])),
         Text = case yucan_yaws_config:load(File) of
             {ok, Options} ->
                 {error, Reason} = yucan:start(Options#{name => yucan_bad_tls}),
                 lists:flatten(io_lib:format("~0tp", [Reason]));
             {error, Lines} -> unicode:characters_to_list(Lines)
         end,
         {true, Text} = {string:find(Text, filename:basename(Name)) =/= nomatch, Text}
     end || Name <- ["/no/such/file.pem", Rubbish]].

%% Only the versions and cipher suites of the configuration are accepted.
tls_options(Config) ->
    Port = yucan_yaws_site:start(Config, ["docroot = www\n", ssl(Config, "h", "protocol_version = tlsv1.2\nciphers = ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES256-GCM-SHA384\n")], [{"www/f", "f"}]),
    Connect = fun(Options) -> yucan_test_server:tls_connect(Port, Options) end,
    {ok, Socket} = Connect([]),
    {ok, [{protocol, 'tlsv1.2'}, {selected_cipher_suite, #{cipher := aes_256_gcm}}]} = ssl:connection_information(Socket, [protocol, selected_cipher_suite]),
    {error, _} = Connect([{versions, ['tlsv1.3']}]),
    {error, _} = Connect([{versions, ['tlsv1.2']}, {ciphers, [ssl:str_to_suite(Name) || Name <- ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"]]}]),
    ok = yucan_yaws_site:stop(),
    Newest = yucan_yaws_site:start(Config, ["docroot = www\n", ssl(Config, "h", "protocol_version = tlsv1.3\n")], [{"www/f", "f"}]),
    {ok, Only} = yucan_test_server:tls_connect(Newest, []),
    {ok, [{protocol, 'tlsv1.3'}]} = ssl:connection_information(Only, [protocol]),
    {error, _} = yucan_test_server:tls_connect(Newest, [{versions, ['tlsv1.2']}]).

%% Returns the settings for a certificate signed by the authority that has also signed the clients'
%% certificates.
ssl(Config, Name, More) ->
    #{server_config := Server} = signed(),
    #{certfile := Certificate, keyfile := Key} = files(Config, Name, Server),
    ["<ssl>\ncertfile = ", Certificate, "\nkeyfile = ", Key, "\n", More, "</ssl>\n"].

signed() ->
    One = [{key, {namedCurve, secp256r1}}, {digest, sha256}],
    Chain = #{root => One, intermediates => [], peer => One},
    public_key:pkix_test_data(#{server_chain => Chain, client_chain => Chain}).

files(Config, Name, Parts) ->
    {_, {Kind, Key}} = lists:keyfind(key, 1, Parts),
    Pem = fun(Ending, Entries) -> yucan_yaws_site:write(Config, Name ++ Ending, public_key:pem_encode([{What, Der, not_encrypted} || {What, Der} <- Entries])) end,
    #{certfile => Pem(".pem", [{'Certificate', element(2, lists:keyfind(cert, 1, Parts))}]), keyfile => Pem(".key", [{Kind, Key}]),
      cacertfile => Pem(".ca", [{'Certificate', Der} || Der <- element(2, lists:keyfind(cacerts, 1, Parts))])}.

%% A client without a certificate from the right authority gets no response, unless the configuration permits it.
client_certificates(Config) ->
    #{client_config := Client, server_config := Server} = signed(),
    #{client_config := Stranger} = signed(),
    Own = maps:with([certfile, keyfile], files(Config, "client", Client)),
    Other = maps:with([certfile, keyfile], files(Config, "stranger", Stranger)),
    #{cacertfile := Known} = files(Config, "authority", Server),
    Start = fun(More) -> yucan_yaws_site:start(Config, ["docroot = www\n", ssl(Config, "h", ["verify = verify_peer\ncacertfile = ", Known, "\n", More])], [{"www/f", "f"}]) end,
    Ask = fun(Port, Options) ->
        case yucan_test_server:tls_connect(Port, Options) of
            {ok, Socket} ->
                _ = ssl:send(Socket, "GET /f HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
                case tls_all(Socket, <<>>) of <<"HTTP/1.1 200", _/binary>> -> served; _ -> refused end;
            {error, _} -> refused
        end
    end,
    Port = Start(""),
    [served, refused, refused] = [Ask(Port, Options) || Options <- [maps:to_list(Own), maps:to_list(Other), []]],
    ok = yucan_yaws_site:stop(),
    Lenient = Start("fail_if_no_peer_cert = false\n"),
    [served, refused, served] = [Ask(Lenient, Options) || Options <- [maps:to_list(Own), maps:to_list(Other), []]].

%% ---- FastCGI, PHP

%% The FastCGI application handles two requests. It uses ERTS's own parser for the protocol (`{packet, fcgi}') to read the records that yucan writes.
fcgi_application(Config) ->
    {Listen, Address} = application(2),
    Port = yucan_yaws_site:start(Config, ["docroot = www\nfcgi_app_server = ", Address, "\n"], [{"www/a.fcgi", ""}]),
    [begin
         {200, _, Text} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/a.fcgi/more?q=" ++ Query, method => "POST", body => "body" ++ Query}),
         [{Word, true} = {Word, binary:match(Text, Word) =/= nomatch}
          || Word <- [list_to_binary("body" ++ Query), list_to_binary("q=" ++ Query), <<"/more">>, <<"REQUEST_METHOD">>]]
     end || Query <- ["1", "2"]],
    gen_tcp:close(Listen),
    ok = yucan_yaws_site:stop(),
    Without = yucan_yaws_site:start(Config, "docroot = www\n", []),
    403 = status(yucan_yaws_client:get(Without, "h", "/a.fcgi")).

%% Starts an application that accepts a single connection and answers with everything that it has received.
application(Requests) ->
    {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {packet, fcgi}, {ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Listen),
    _ = spawn_link(fun() ->
        {ok, Socket} = gen_tcp:accept(Listen, ?WAIT_MS),
        [serve(Socket, []) || _ <- lists:seq(1, Requests)]
    end),
    {Listen, "127.0.0.1:" ++ integer_to_list(Port)}.

serve(Socket, Told) ->
    Answer = iolist_to_binary(["Content-Type: text/plain\n\n", told(Socket, Told)]),
    ok = gen_tcp:send(Socket, [<<1, 6, 1:16, (byte_size(Answer)):16, 0, 0>>, Answer, <<1, 6, 1:16, 0:16, 0, 0, 1, 3, 1:16, 8:16, 0, 0, 0:64>>]).

told(Socket, Told) ->
    {ok, <<1, Type, 1:16, Length:16, _:16, Rest/binary>>} = gen_tcp:recv(Socket, 0, ?WAIT_MS),
    <<Content:Length/binary, _/binary>> = Rest,
    case {Type, Content} of
        {5, <<>>} -> lists:reverse(Told);
        _ -> told(Socket, [Content | Told])
    end.

%% The pool of connections is killed. The next request restarts it, and requests still succeed.
fcgi_pool_lives(Config) ->
    {Listen, Address} = application(1),
    Port = yucan_yaws_site:start(Config, ["docroot = www\nfcgi_app_server = ", Address, "\n"], [{"www/a.fcgi", ""}]),
    200 = status(yucan_yaws_client:get(Port, "h", "/a.fcgi")),
    gen_tcp:close(Listen),
    Old = whereis(yucan_fcgi_pool),
    exit(Old, kill),
    true = beamway_peer:wait_until(fun() -> is_pid(whereis(yucan_fcgi_pool)) andalso whereis(yucan_fcgi_pool) =/= Old end, 20000),
    true = lists:member(whereis(yucan_fcgi_pool), [Pid || {_, Pid, _, _} <- supervisor:which_children(yucan_yaws_sup)]),
    {Again, Other} = application(1),
    ok = yucan_yaws_site:reload(Config, ["docroot = www\nfcgi_app_server = ", Other, "\n"]),
    200 = status(yucan_yaws_client:get(Port, "h", "/a.fcgi")),
    gen_tcp:close(Again).

%% An application accepts a second request on each connection but disconnects instead of answering. If the request may be repeated, it is sent again
%% on a new connection.
fcgi_asked_again(Config) ->
    {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {packet, fcgi}, {ip, {127, 0, 0, 1}}]),
    {ok, Behind} = inet:port(Listen),
    Application = spawn_link(fun() -> answers_once(Listen) end),
    Port = yucan_yaws_site:start(Config, ["docroot = www\nfcgi_app_server = 127.0.0.1:", integer_to_list(Behind), "\n"], [{"www/a.fcgi", ""}]),
    [begin
         Response = yucan_yaws_client:request(#{port => Port, host => "h", target => "/a.fcgi?q=" ++ Query, method => Method}),
         {Query, Status} = {Query, status(Response)},
         true = Status =/= 200 orelse binary:match(element(3, Response), list_to_binary("q=" ++ Query)) =/= nomatch,
         true = beamway_peer:wait_until(fun() -> yucan_fcgi_pool:idle({{127, 0, 0, 1}, Behind}) =:= Kept end, 20000)
     end || {Query, Method, Status, Kept} <- [{"1", "GET", 200, 1}, {"2", "GET", 200, 1}, {"3", "POST", 502, 0}, {"4", "GET", 200, 1}]],
    unlink(Application),
    exit(Application, kill),
    gen_tcp:close(Listen).

answers_once(Listen) ->
    {ok, Socket} = gen_tcp:accept(Listen, ?WAIT_MS),
    ok = serve(Socket, []),
    _ = told(Socket, []),
    ok = gen_tcp:close(Socket),
    answers_once(Listen).

%% Each request opens a separate connection and asks the application to close it afterwards. This
%% application leaves it open, so yucan closes it.
fcgi_keep_conn(Config) ->
    {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {packet, fcgi}, {ip, {127, 0, 0, 1}}]),
    {ok, Behind} = inet:port(Listen),
    {Application, Monitor} = spawn_monitor(fun() ->
        [begin
             {ok, Socket} = gen_tcp:accept(Listen, ?WAIT_MS),
             ok = serve(Socket, []),
             {error, closed} = gen_tcp:recv(Socket, 0, ?WAIT_MS)
         end || _ <- [1, 2]]
    end),
    Port = yucan_yaws_site:start(Config, ["docroot = www\nfcgi_keep_conn = false\nfcgi_app_server = 127.0.0.1:", integer_to_list(Behind), "\n"], [{"www/a.fcgi", ""}]),
    [{200, _, <<1:16, 0:48, _/binary>>} = yucan_yaws_client:get(Port, "h", "/a.fcgi") || _ <- [1, 2]],
    receive {'DOWN', Monitor, process, Application, Reason} -> normal = Reason after ?WAIT_MS -> error(still_open) end,
    gen_tcp:close(Listen).

%% A function in this VM replaces PHP.
extern_function(Config) ->
    Port = yucan_yaws_site:start(Config, "docroot = www\nphp_handler = <extern, yucan_yaws_pages:php>\nmax_body_size = 3\n", [{"www/d/a.php", ""}]),
    Post = fun(Lines, Body) -> yucan_client:exchange(Port, ["POST /d/a.php/more HTTP/1.1\r\nHost: h\r\n", Lines, "\r\n", Body]) end,
    Chunked = "Transfer-Encoding: chunked\r\n",
    [[{200, _, <<"\"/d/\" \"/more\" <<\"a=1\">>">>}] = Post(Lines, Body) || {Lines, Body} <- [{"Content-Length: 3\r\n", "a=1"}, {Chunked, "3\r\na=1\r\n0\r\n\r\n"}]],
    [[{413, _, _}] = Post(Lines, Body) || {Lines, Body} <- [{"Content-Length: 4\r\n", "a=12"}, {Chunked, "4\r\na=12\r\n0\r\n\r\n"}]],
    [{400, _, _}] = Post(Chunked, "no chunk"),
    404 = status(yucan_yaws_client:get(Port, "h", "/d/b.php")).

%% The function may also be in another VM. If that VM does not exist, the response is an error, and the server continues.
extern_node(Config) ->
    Port = yucan_yaws_site:start(Config, "docroot = www\nphp_handler = <extern, nobody@localhost:yucan_yaws_pages:php>\n", [{"www/a.php", ""}, {"www/f", "f"}]),
    500 = status(yucan_yaws_client:get(Port, "h", "/a.php")),
    {200, _, <<"f">>} = yucan_yaws_client:get(Port, "h", "/f").

%% ---- settings of the server

log_folder(Config) ->
    Logs = filename:join(yucan_yaws_site:folder(Config), "logs"),
    ok = filelib:ensure_dir(filename:join(Logs, "x")),
    Text = ["logdir = logs\n", yucan_yaws_site:server("h", "docroot = www\n")],
    Port = yucan_yaws_site:start_text(Config, Text, [{"www/f", "f"}]),
    {200, _, _} = yucan_yaws_client:get(Port, "h", "/f?logged"),
    Written = fun() -> {ok, Lines} = file:read_file(filename:join(Logs, "access.log")), binary:match(Lines, <<"\"GET /f?logged HTTP/1.1\" 200 1 ">>) =/= nomatch end,
    true = beamway_peer:wait_until(Written, 20000).

keepalive_timeout(Config) ->
    Port = yucan_yaws_site:start_text(Config, ["keepalive_timeout = 300\n", yucan_yaws_site:server("h", "docroot = www\n")], [{"www/f", "f"}]),
    Socket = yucan_client:connect(Port),
    ok = gen_tcp:send(Socket, "GET /f HTTP/1.1\r\nHost: h\r\n\r\n"),
    {200, _, <<"f">>} = yucan_client:one(Socket),
    <<>> = yucan_client:until_closed(Socket).

max_connections(Config) ->
    Port = yucan_yaws_site:start_text(Config, ["max_connections = 2\n", yucan_yaws_site:server("h", "docroot = www\n")], [{"www/f", "f"}]),
    Open = [begin
                Socket = yucan_client:connect(Port),
                ok = gen_tcp:send(Socket, "GET /f HTTP/1.1\r\nHost: h\r\n\r\n"),
                {200, _, <<"f">>} = yucan_client:one(Socket),
                Socket
            end || _ <- [1, 2]],
    <<"HTTP/1.1 503 ", _/binary>> = yucan_client:until_closed(yucan_client:connect(Port)),
    lists:foreach(fun gen_tcp:close/1, Open).

names(Config) ->
    Servers = [yucan_yaws_site:server("first", "docroot = www\n"),
               yucan_yaws_site:server("second", "docroot = two\nservername = other.example\nserveralias = *.second.example s?.example\n")],
    Port = yucan_yaws_site:start_text(Config, Servers, [{"www/f", "1"}, {"two/f", "2"}]),
    [{Host, Body} = {Host, element(3, yucan_yaws_client:get(Port, Host, "/f"))}
     || {Host, Body} <- [{"first", <<"1">>}, {"other.example", <<"2">>}, {"a.second.example", <<"2">>}, {"s1.example", <<"2">>}, {"s12.example", <<"1">>}, {"s..example", <<"1">>}]].

%% Tests the location in redirects when another server is in front of this one.
in_front(Config) ->
    [begin
         Port = yucan_yaws_site:start(Config, ["docroot = www\n<redirect>\n/old == /new\n</redirect>\n", Directives], []),
         {302, Headers, _} = yucan_yaws_client:get(Port, "h:8", "/old"),
         {Directives, Location} = {Directives, proplists:get_value(<<"location">>, Headers)},
         ok = yucan_yaws_site:stop()
     end || {Directives, Location} <- [{"rhost = www.example:1\n", <<"http://www.example:1/new">>}, {"rscheme = https\n", <<"https://h:8/new">>},
                                       {"rhost = www.example\nrmethod = https\n", <<"https://www.example/new">>}]].

listings(Config) ->
    Port = yucan_yaws_site:start(Config, "docroot = www\ndir_listings = true\nindex_files = /front\ndeflate = true\n",
                                 [{"www/d/a <b>.txt", "x"}, {"www/long.txt", binary:copy(<<"words ">>, 1000)}]),
    %% An index that begins with a slash is a redirect.
    {302, Headers, _} = yucan_yaws_client:get(Port, "h", "/d/"),
    <<"http://h/front">> = proplists:get_value(<<"location">>, Headers),
    {200, Coded, Bytes} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/long.txt", headers => [{"accept-encoding", "gzip"}]}),
    <<"gzip">> = proplists:get_value(<<"content-encoding">>, Coded),
    true = zlib:gunzip(Bytes) =:= binary:copy(<<"words ">>, 1000),
    ok = yucan_yaws_site:stop(),
    Listed = yucan_yaws_site:start(Config, "docroot = www\ndir_listings = true_nozip\n", []),
    {200, _, Page} = yucan_yaws_client:get(Listed, "h", "/d/"),
    {_, _} = binary:match(Page, <<"a &lt;b&gt;.txt">>).

several_listeners(Config) ->
    Server = ["<server h>\nport = 0\nlisten = 127.0.0.1\nlisten = 127.0.0.2\nlisten_backlog = 10\ndocroot = www\n</server>\n"],
    _ = yucan_yaws_site:start_text(Config, Server, [{"www/f", "f"}]),
    Listening = maps:get(listen, yucan:info(yucan_yaws_test)),
    [{127, 0, 0, 1}, {127, 0, 0, 2}] = lists:sort([Address || {Address, _} <- Listening]),
    [{200, <<"f">>} = begin
         {ok, Socket} = gen_tcp:connect(Address, Port, [binary, {active, false}], ?WAIT_MS),
         ok = gen_tcp:send(Socket, "GET /f HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
         {Status, _, Body} = yucan_yaws_client:parse(yucan_yaws_client:receive_all(Socket)),
         {Status, Body}
     end || {Address, Port} <- Listening].

symbolic_links(Config) ->
    Outside = yucan_yaws_site:write(Config, "outside.txt", "outside"),
    _ = yucan_yaws_site:write(Config, "www/f", "f"),
    Link = filename:join([yucan_yaws_site:folder(Config), "www", "link"]),
    _ = file:delete(Link),
    ok = file:make_symlink(Outside, Link),
    [begin
         Port = yucan_yaws_site:start(Config, ["docroot = www\n", Directive], []),
         {Directive, Status} = {Directive, status(yucan_yaws_client:get(Port, "h", "/link"))},
         ok = yucan_yaws_site:stop()
     end || {Directive, Status} <- [{"", 403}, {"follow_symlinks = inside\n", 403}, {"follow_symlinks = never\n", 403}, {"follow_symlinks = always\n", 200}]].

%% An alias for a directory works like another docroot: scripts run, sources are not shown, and nothing outside it is served. An alias for a file
%% applies only to that file.
aliases(Config) ->
    Style = yucan_yaws_site:write(Config, "share/style.css", "css"),
    program(Config, "share/sub/env.cgi", "echo \"$SCRIPT_NAME $PATH_INFO\""),
    _ = yucan_yaws_site:write(Config, "share/lib.inc", "secret"),
    _ = yucan_yaws_site:write(Config, "secret.txt", "secret"),
    Port = yucan_yaws_site:start(Config, ["docroot = www\nappmods = </, yucan_yaws_pages exclude_paths x>\nalias = /css share\nalias = /css/one.css ", Style, "\nalias = /one share/sub/env.cgi\nalias = /lib share/lib.inc\nalias = /gone share/gone.cgi\n<auth>\ndir = /css/sub\nuser = joe:x\n</auth>\n"],
                                 [{"www/css/f", "shadowed"}]),
    Ask = fun(Path, Headers) -> {Status, _, Body} = yucan_yaws_client:request(#{port => Port, host => "h", target => Path, headers => Headers}), {Status, Body} end,
    [{200, <<"css">>} = Ask(Path, []) || Path <- ["/css/style.css", "/css/one.css", "/css/sub/../style.css"]],
    {200, <<"/css/sub/env.cgi /more\n">>} = Ask("/css/sub/env.cgi/more", [{"authorization", ["Basic ", base64:encode("joe:x")]}]),
    {200, <<"/one \n">>} = Ask("/one", []),
    [{Path, Status} = {Path, element(1, Ask(Path, []))}
     || {Path, Status} <- [{"/lib", 403}, {"/gone", 404}, {"/one/more", 404}, {"/css", 301}, {"/css/", 403}, {"/css/sub/env.cgi", 401}, {"/css/lib.inc", 403}, {"/css/f", 404}, {"/css/one.css/x", 404}, {"/css/..%2fsecret.txt", 400}]],
    [begin
         {301, Headers, _} = yucan_yaws_client:get(Port, "h", "/css" ++ Query),
         {Query, Location} = {Query, proplists:get_value(<<"location">>, Headers)}
     end || {Query, Location} <- [{"", <<"http://h/css/">>}, {"?a=%20&b", <<"http://h/css/?a=%20&b">>}, {"?", <<"http://h/css/?">>}]].

program(Config, Name, Shell) ->
    File = yucan_yaws_site:write(Config, Name, ["#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\n", Shell, "\n"]),
    ok = file:change_mode(File, 8#755),
    File.

%% Programs may have any name, and a program may serve all paths below it. If no prefix of a path leads to a program, no program is run.
script_aliases(Config) ->
    Say = "echo \"${0##*/} $SCRIPT_NAME $PATH_INFO $EXTRA\"",
    [_, _, _, Main] = [program(Config, Name, Say) || Name <- ["bin/a.pl", "bin/b.py", "bin/sub/plain", "main/program"]],
    Outside = program(Config, "outside", Say),
    Link = filename:join([yucan_yaws_site:folder(Config), "bin", "link"]),
    _ = file:delete(Link),
    ok = file:make_symlink(Outside, Link),
    _ = program(Config, "bin/.hidden", Say),
    _ = yucan_yaws_site:write(Config, "bin/data.txt", "no program"),
    Port = yucan_yaws_site:start(Config, ["script_alias = /cgi-bin/ bin\nscript_alias = /git ", Main, "\n<extra_cgi_vars dir='", filename:dirname(Main), "'>\nEXTRA = extra\n</extra_cgi_vars>\n"], []),
    [{Path, Text} = {Path, element(3, yucan_yaws_client:get(Port, "h", Path))}
     || {Path, Text} <- [{"/cgi-bin/a.pl", <<"a.pl /cgi-bin/a.pl  \n">>}, {"/cgi-bin/b.py/x/.git/y", <<"b.py /cgi-bin/b.py /x/.git/y \n">>}, {"/cgi-bin/sub/plain/", <<"plain /cgi-bin/sub/plain / \n">>},
                         {"/git", <<"program /git  extra\n">>}, {"/git/p.git/info/refs?service=x", <<"program /git /p.git/info/refs extra\n">>}]],
    [{Path, Status} = {Path, status(yucan_yaws_client:get(Port, "h", Path))}
     || {Path, Status} <- [{"/cgi-bin", 403}, {"/cgi-bin/", 403}, {"/cgi-bin/sub", 403}, {"/cgi-bin/none", 404}, {"/cgi-bin/sub/none", 404}, {"/cgi-bin/.hidden", 404}, {"/cgi-bin/link", 403}, {"/gitx", 404},
                           {"/cgi-bin/data.txt", 502}]].
