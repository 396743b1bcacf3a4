%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests Yaws sites as their users see them: a configuration file is loaded into a server in this VM, and requests are sent over raw sockets.
%%
%% The two-domain configuration of examples/yaws-site is used without changes, except for the port and the two paths in its modules. PHP is tested in
%% `make test-wordpress' and in yucan_php_SUITE, where PHP is installed.
-module(yucan_yaws_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([domains/1, trac_appmod/1, redirects/1, no_match_is_400/1, bad_file/1, returns/1, headers_of_modules/1, bodies/1, bounded_bodies/1, helpers/1, full_of_sessions/1, uploads/1, what_is_not_there/1, streams/1,
         stream_to_a_client_that_leaves/1, stream_after_head/1, crash_and_nonsense/1, pages_of_an_appmod/1, embedded_pages/1, bodies_of_pages/1, error_modules/1, rewriting/1, rewriting_and_auth/1, auth/1, authmod/1, files/1, beyond_ascii/1, sources/1, own_modules/1, nitrogen/1,
         reload/1, websocket/1, start_modules/1]).

-include_lib("stdlib/include/assert.hrl").

suite() -> [{timetrap, {minutes, 3}}].

all() ->
    [domains, trac_appmod, redirects, no_match_is_400, bad_file, returns, headers_of_modules, bodies, bounded_bodies, helpers, full_of_sessions, uploads, what_is_not_there, streams,
     stream_to_a_client_that_leaves, stream_after_head, crash_and_nonsense, pages_of_an_appmod, embedded_pages, bodies_of_pages, error_modules, rewriting, rewriting_and_auth, auth, authmod, files, beyond_ascii, sources, own_modules, nitrogen, reload, websocket,
     start_modules].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

end_per_testcase(Case, _) ->
    case lists:member(Case, [bad_file]) of
        true -> ok;
        false -> yucan_yaws_site:stop()
    end.

%% ---- the example site

domains(Config) ->
    Port = yucan_yaws_site:example(Config),
    Location = fun(Host, Target) ->
                       {302, Headers, _} = yucan_yaws_client:get(Port, Host, Target),
                       proplists:get_value(<<"location">>, Headers)
               end,
    Text = integer_to_binary(Port),
    Www = <<"http://www.example.com:", Text/binary>>,
    I = <<"http://i.example.com:", Text/binary>>,
    [Expected = Location(Host, Target)
     || {Host, Target, Expected} <- [{"localhost", "/", <<Www/binary, "/">>},
                                     {"192.0.2.1", "/a/b/?c=d", <<Www/binary, "/a/b/?c=d">>},
                                     {"", "/", <<Www/binary, "/">>},
                                     {"www.example.org", "/a%20b", <<Www/binary, "/a%20b">>},
                                     {"EXAMPLE.org", "//", <<Www/binary, "/">>},
                                     {"i.example.org:99", "/wiki", <<I/binary, "/wiki">>}]],
    {200, _, <<"a file of www\n">>} = yucan_yaws_client:get(Port, "www.example.com", "/file.txt"),
    {200, _, <<"a file of i\n">>} = yucan_yaws_client:get(Port, "i.example.com", "/file.txt"),
    ok.

%% A Python script is used in place of Trac's. It is run by call_cgi/5.
trac_appmod(Config) ->
    Port = yucan_yaws_site:example(Config),
    Ask = fun(Target, Body) ->
                  {200, _, Text} = yucan_yaws_client:request(#{port => Port, host => "i.example.com", target => Target, body => Body,
                                                               method => case Body of "" -> "GET"; _ -> "POST" end}),
                  Text
          end,
    <<"script=/trac info=/ env=/trac/iriverter uri=/ query= body=\n">> = Ask("/", ""),
    <<"script=/trac info=/wiki/A b env=/trac/iriverter uri=/wiki/A%20b?x=1 query=x=1 body=\n">> = Ask("/wiki/A%20b?x=1", ""),
    <<"script=/trac info=/newticket env=/trac/iriverter uri=/newticket query= body=summary=1\n">> = Ask("/newticket", "summary=1"),
    %% This is more than out/1 gets in one call.
    Long = binary:copy(<<"0123456789">>, 30000),
    Answer = Ask("/attach", Long),
    true = byte_size(Answer) > 300000,
    Whole = <<"body=", Long/binary, "\n">>,
    {_, _} = binary:match(Answer, Whole),
    ok.

%% ---- redirects

redirects(Config) ->
    Port = yucan_yaws_site:start(Config, "docroot = www\n<redirect>\n/old = /new\n/here == /there\n/out = http://other.example/base\n"
                                 "/moved = 301 /x\n/gone == 410\n/lost = 404 /e.html\n</redirect>\n",
                                 [{"www/e.html", "sorry"}]),
    Get = fun(Target) ->
                  {Status, Headers, Body} = yucan_yaws_client:get(Port, "h:1", Target),
                  {Status, proplists:get_value(<<"location">>, Headers), Body}
          end,
    {302, <<"http://h:1/new/old/a?b=c">>, _} = Get("/old/a?b=c"),
    {302, <<"http://h:1/there?b=c">>, _} = Get("/here/a?b=c"),
    {302, <<"http://other.example/base/out/">>, _} = Get("/out/"),
    {301, <<"http://h:1/x/moved">>, _} = Get("/moved"),
    %% Control bytes in a path are rejected before they could become a part of a header.
    {400, undefined, _} = Get("/old/%0D%0ASet-Cookie:a=b"),
    {410, undefined, _} = Get("/gone"),
    %% The path is also appended here, so the result is this server's error page and not a file.
    {404, undefined, _} = Get("/lost"),
    {404, undefined, _} = Get("/older"),
    %% A body that no module reads is not treated as the next request.
    Socket = yucan_yaws_client:send(Port, "POST /old HTTP/1.1\r\nhost: h\r\ncontent-length: 22\r\n\r\nGET /x HTTP/1.1\r\n\r\nabcd"
                                    "GET /gone HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"),
    Both = yucan_yaws_client:receive_all(Socket),
    [_, _, _] = binary:split(Both, <<"HTTP/1.1 ">>, [global]),
    {_, _} = binary:match(Both, <<"HTTP/1.1 410">>),
    ok.

no_match_is_400(Config) ->
    Text = ["pick_first_virthost_on_nomatch = false\n", yucan_yaws_site:server("a.example", "docroot = www\nserveralias = *.a.example\n")],
    Port = yucan_yaws_site:start_text(Config, Text, [{"www/f", "1"}]),
    [{Host, Status} = {Host, element(1, yucan_yaws_client:get(Port, Host, "/f"))}
     || {Host, Status} <- [{"a.example", 200}, {"www.a.example", 200}, {"A.Example:80", 200}, {"b.example", 400}, {"", 400}]],
    ok.

%% Every problem is reported with its line, and the running server continues with its old configuration.
bad_file(Config) ->
    File = yucan_yaws_site:write(Config, "bad.conf", "port = 1\n<server a>\ndocrot = /x\nport = 99999\n"),
    {error, Lines} = yucan_yaws_config:load(File),
    Text = unicode:characters_to_list(Lines),
    [{Word, true} = {Word, string:find(Text, Word) =/= nomatch}
     || Word <- ["bad.conf:1: unknown directive 'port' outside of all blocks: expected one of logdir, ebin_dir, runmod, pick", "bad.conf:3: unknown directive 'docrot' in <server>: expected docroot",
                 "bad.conf:4: port = 99999: expected a number from 0 to 65535", "bad.conf:2: <server> is not closed"]],
    {error, [Missing]} = yucan_yaws_config:load(File ++ "x"),
    true = string:find(unicode:characters_to_list(Missing), "no such file or directory") =/= nomatch,
    ok.

%% ---- out/1

appmods(Config) ->
    yucan_yaws_site:start(Config, "docroot = www\nappmods = </m, yucan_yaws_pages>\npartial_post_size = 1000\n",
                          [{"www/page.html", "<p>page</p>"}]).

returns(Config) ->
    Port = appmods(Config),
    Get = fun(Name) ->
                  {Status, Headers, Body} = yucan_yaws_client:get(Port, "h", "/m/" ++ Name ++ "?a=1&b=%20"),
                  {Status, proplists:get_value(<<"content-type">>, Headers), Body}
          end,
    [{Name, Expected} = {Name, Get(Name)}
     || {Name, Expected} <- [{"html", {200, <<"text/html">>, <<"<p>hello</p>">>}},
                             {"ehtml", {200, <<"text/html">>, <<"<p class=\"a\">x &</p>">>}},
                             {"content", {200, <<"text/plain">>, <<"plain">>}},
                             {"status", {418, <<"text/html">>, <<"tea">>}},
                             {"query", {200, <<"text/plain">>, <<"[{\"a\",\"1\"},{\"b\",\" \"}]">>}},
                             {"page", {200, <<"text/html; charset=utf-8">>, <<"<p>page</p>">>}},
                             {"page_status", {404, <<"text/html; charset=utf-8">>, <<"<p>page</p>">>}},
                             {"nothing", {200, undefined, <<>>}},
                             {"arg", {200, <<"text/plain">>, <<"{\"/m\",\"arg\",\"/arg\",yucan_yaws_pages,'GET',{1,1}}">>}},
                             {"sized", {200, <<"text/plain">>, <<"0123456789">>}}]],
    ok.

headers_of_modules(Config) ->
    Port = appmods(Config),
    {200, Headers, _} = yucan_yaws_client:get(Port, "h", "/m/headers"),
    [<<"1">>] = proplists:get_all_values(<<"x-one">>, Headers),
    [] = proplists:get_all_values(<<"x-erased">>, Headers),
    [<<"a=1">>, <<"b=2">>] = proplists:get_all_values(<<"set-cookie">>, Headers),
    {200, OfPage, <<"<p>page</p>">>} = yucan_yaws_client:get(Port, "h", "/m/page_headers"),
    [[<<"a=1">>], [<<"text/html; charset=utf-8">>]] = [proplists:get_all_values(Name, OfPage) || Name <- [<<"set-cookie">>, <<"content-type">>]],
    [begin
         {Status, Redirect, _} = yucan_yaws_client:get(Port, "h:5", "/m/" ++ Page),
         {Page, Location} = {Page, proplists:get_value(<<"location">>, Redirect)}
     end || {Page, Status, Location} <- [{"redirect_local", 302, <<"http://h:5/elsewhere">>}, {"redirect_beside", 302, <<"beside?a=b">>},
                                         {"redirect_anywhere", 301, <<"http://other.example/">>}, {"redirect", 301, <<"http://other.example/">>}]],
    {302, Login, _} = yucan_yaws_client:get(Port, "h", "/m/redirect_login"),
    [<<"http://h/elsewhere">>, <<"a=1">>] = [proplists:get_value(Name, Login) || Name <- [<<"location">>, <<"set-cookie">>]],
    ok.

%% A module that always asks for the whole body still has a limit, whether the length is known or not.
bounded_bodies(Config) ->
    Port = yucan_yaws_site:start(Config, "docroot = www\nappmods = </m, yucan_yaws_pages>\npartial_post_size = nolimit\nmax_body_size = 100000\n", []),
    [begin
         {Status, _, _} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/m/body", method => "POST", body => binary:copy(<<"x">>, Size)}),
         Chunked = ["POST /m/body HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", [["3e8\r\n", binary:copy(<<"x">>, 1000), "\r\n"] || _ <- lists:seq(1, Size div 1000)], "0\r\n\r\n"],
         [{Status, _, _}] = yucan_client:exchange(Port, Chunked)
     end || {Size, Status} <- [{100000, 200}, {101000, 413}]].

%% Small bodies arrive at once, and longer ones in parts with get_more.
bodies(Config) ->
    Port = appmods(Config),
    Post = fun(Body) ->
                   {200, _, Text} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/m/body", method => "POST", body => Body}),
                   Text
           end,
    <<"3 bytes">> = Post("a=1"),
    <<"100000 bytes in parts">> = Post(binary:copy(<<"x">>, 100000)),
    {200, _, <<"[{\"a\",\"1 2\"}]">>} =
        yucan_yaws_client:request(#{port => Port, host => "h", target => "/m/form", method => "POST", body => "a=1+2"}),
    %% A module that asks for more data than there is gets nothing.
    [{200, _, <<"once">>} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/m/body_over", method => Method, body => Body})
     || {Method, Body} <- [{"GET", ""}, {"POST", "a=1"}]],
    ok.

helpers(Config) ->
    Port = appmods(Config),
    {200, Headers, <<"ok">>} = yucan_yaws_client:get(Port, "h", "/m/set_cookie"),
    [<<"c=v; Path=/; Secure">>, <<"text/plain">>] = [proplists:get_value(Name, Headers) || Name <- [<<"set-cookie">>, <<"content-type">>]],
    Get = fun(Page, Given) -> yucan_yaws_client:request(#{port => Port, host => "h", target => "/m/" ++ Page, headers => Given}) end,
    {200, _, <<"Connection: close\nIf-None-Match: *\nCookie: a=1\nX-Own: 2">>} = Get("lines", [{"x-own", "2"}, {"cookie", "a=1"}, {"if-none-match", "*"}]),
    {200, First, <<"1">>} = Get("visits", []),
    Sid = proplists:get_value(<<"set-cookie">>, First),
    [{200, _, Visit} = Get("visits", [{"cookie", Sid}]) || Visit <- [<<"2">>, <<"3">>]],
    {200, _, <<"1">>} = Get("visits", [{"cookie", [Sid, "x"]}]),
    %% A session ends when its lifetime expires, or when delete_cookie_session/1 is called. The cleanup process then gets a message.
    Brief = yaws_api:new_cookie_session(brief, 0, self()),
    {error, no_session} = yaws_api:cookieval_to_opaque(Brief),
    yucan_yaws_session ! sweep,
    receive {yaws_session_end, timeout, Brief, brief} -> ok after 10000 * beamway_runner:slowness() -> error(not_swept) end,
    Deleted = yaws_api:new_cookie_session(deleted, 60, self()),
    {ok, deleted} = yaws_api:cookieval_to_opaque(Deleted),
    true = yaws_api:delete_cookie_session(Deleted),
    receive {yaws_session_end, normal, Deleted, deleted} -> ok after 10000 * beamway_runner:slowness() -> error(not_told) end,
    error = yaws_api:replace_cookie_session(Deleted, x).

%% If the table is full, a new visitor's session replaces the one that would end first.
full_of_sessions(_) ->
    New = fun(Ttl) -> yaws_api:new_cookie_session(Ttl, Ttl, self()) end,
    %% All of these sessions expire before those that other cases have left behind.
    [Late, Early, Gone, Ended] = [New(Ttl) || Ttl <- [1000, 500, 200, 0]],
    true = yaws_api:delete_cookie_session(Gone),
    receive {yaws_session_end, normal, Gone, 200} -> ok after 0 -> error(not_told) end,
    Fill = fun F(0) -> error(nobody_made_room);
               F(Left) ->
                   Last = New(3600),
                   receive {yaws_session_end, timeout, Cookie, _} -> {Cookie, Last} after 0 -> F(Left - 1) end
           end,
    {Ended, _} = Fill(100001),
    {ok, 500} = yaws_api:cookieval_to_opaque(Early),
    {Early, _} = Fill(1),
    {error, no_session} = yaws_api:cookieval_to_opaque(Early),
    {ok, 1000} = yaws_api:cookieval_to_opaque(Late),
    {Late, Last} = Fill(1),
    {ok, 3600} = yaws_api:cookieval_to_opaque(Last),
    ok = application:stop(yucan_yaws).

%% A form larger than partial_post_size arrives in parts, with get_more.
uploads(Config) ->
    Port = appmods(Config),
    Post = fun(Type, Body) ->
                   {200, _, Text} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/m/upload", method => "POST", body => Body,
                                                                headers => [{"content-type", Type}]}),
                   Text
           end,
    Form = fun(Data) -> ["--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"x.bin\"\r\n\r\n", Data, "\r\n--b\r\n"
                         "Content-Disposition: form-data; name=\"n\"\r\n\r\nlast\r\n--b--\r\n"] end,
    [begin
         Data = binary:copy(<<"\r\n--a">>, Size),
         Expected = <<"|f x.bin ", Data/binary, "|n - last">>,
         Expected = Post("multipart/form-data; boundary=b", Form(Data))
     end || Size <- [0, 1, 30000]],
    <<"malformed_multipart_post">> = Post("multipart/form-data; boundary=b", "--bx"),
    <<"no_multipart_form_data">> = Post("text/plain", "x").

%% Each missing item is reported when the configuration is loaded. Items that exist are not reported.
what_is_not_there(Config) ->
    Api = "-module(calls). -export([out/1]). out(A) -> yaws_api:no_such(A, 1), {html, yaws_api:htmlize(\"\")}.\n",
    Ebin = yucan_yaws_site:compile(Config, "own", [{"calls.erl", Api}]),
    File = yucan_yaws_site:write(Config, "www/file", ""),
    Text = ["runmod = no_run\n", yucan_yaws_site:server("h", ["docroot = www /no/docroot ", File, "\nebin_dir = ", Ebin, "\nebin_dir = /no/ebin\nalias = /a /no/alias\n"
                                                             "alias = /b www\nscript_alias = /c /no/script\nscript_alias = /d ", File, "\nallowed_scripts = yaws\n"
                                                             "php_handler = <cgi, /no/php>\n"
                                                             "appmods = </m, no_appmod> </n, calls> </o, yucan_yaws_pages>\narg_rewrite_mod = no_rewrite\n"
                                                             "<auth>\nauthmod = no_auth\n</auth>\n"])],
    ok = logger:add_handler(?MODULE, yucan_test_logger, #{level => warning, config => #{pid => self()}}),
    try
        _ = yucan_yaws_site:start_text(Config, Text, []),
        Conf = filename:join(yucan_yaws_site:folder(Config), "site.conf"),
        Expected = [[":2: docroot = /no/docroot: no such directory"], [":2: docroot = ", File, ": not a directory"], [":2: ebin_dir = /no/ebin: no such directory"],
                    [":2: alias = /a/ /no/alias: no such file or directory"], [":2: script_alias = /c/ /no/script: no such file or directory"],
                    [":2: php_handler = <cgi, /no/php>: no such program"],
                    [":2: allowed_scripts = yaws: pages with embedded Erlang are not supported; use an appmod"],
                    [": runmod = no_run: no such module; expected one on the code path (see ebin_dir)"]
                    | [[":2: ", Key, " = ", Module, ": no such module in ", Ebin, " or /no/ebin, and none on the code path"]
                       || {Key, Module} <- [{"appmods", "no_appmod"}, {"arg_rewrite_mod", "no_rewrite"}, {"authmod", "no_auth"}]]]
            ++ [[":2: calls calls yaws_api:no_such/2, which this server does not have: the request that gets there is answered with 500"]],
        Warnings = warnings(),
        ?assertEqual(lists:sort([lists:flatten(["yucan: ", Conf, Line]) || Line <- Expected]), lists:sort(Warnings)),
        ok = yucan_yaws_site:stop(),
        _ = yucan_yaws_site:start(Config, "docroot = www\n", []),
        [] = warnings()
    after
        logger:remove_handler(?MODULE)
    end.

%% When a call of the logger returns, it has already called its handlers.
warnings() ->
    receive
        {logged, #{level := warning, msg := {Format, Arguments}}} -> [lists:flatten(io_lib:format(Format, Arguments)) | warnings()];
        {logged, _} -> warnings()
    after 0 -> []
    end.

streams(Config) ->
    Port = appmods(Config),
    {200, _, <<"first 1 2 3 ">>} = yucan_yaws_client:get(Port, "h", "/m/stream"),
    {200, _, <<"p1 p2 p3 ">>} = yucan_yaws_client:get(Port, "h", "/m/stream_pid"),
    %% The writer has exited, and the client must be able to tell that the response is incomplete.
    {200, _, {cut, <<"first ">>}} = yucan_yaws_client:get(Port, "h", "/m/stream_silent"),
    ok.

stream_to_a_client_that_leaves(Config) ->
    Port = appmods(Config),
    true = register(yucan_yaws_listener, self()),
    Socket = yucan_yaws_client:send(Port, "GET /m/stream_for_ever HTTP/1.1\r\nhost: h\r\n\r\n"),
    {ok, _} = gen_tcp:recv(Socket, 0, 10000 * beamway_runner:slowness()),
    ok = gen_tcp:close(Socket),
    receive
        {stream_ended, {error, closed}} -> ok
    after 20000 * beamway_runner:slowness() ->
        error(the_writer_was_not_told)
    end.

%% For HEAD the parts are not accepted. Each kind of writer gets an error, even if the client keeps the connection open.
stream_after_head(Config) ->
    Port = appmods(Config),
    true = register(yucan_yaws_listener, self()),
    Sockets = [yucan_yaws_client:send(Port, ["HEAD /m/", Page, " HTTP/1.1\r\nhost: h\r\n\r\n"]) || Page <- ["stream_told", "stream_for_ever"]],
    [receive Expected -> ok after 20000 * beamway_runner:slowness() -> error({not_told, Expected}) end
     || Expected <- [{told, discard}, {stream_ended, {error, closed}}]],
    lists:foreach(fun gen_tcp:close/1, Sockets).

%% Requests to modules that crash or return nonsense get 500, and the next request is served
%% normally.
crash_and_nonsense(Config) ->
    Port = appmods(Config),
    [begin
         {Name, 500} = {Name, element(1, yucan_yaws_client:get(Port, "h", "/m/" ++ Name))},
         {200, _, _} = yucan_yaws_client:get(Port, "h", "/m/html")
     end || Name <- ["crash", "throw", "exit", "nonsense", "bad_header", "ehtml_letters"]],
    ok.

%% If an appmod for all paths returns a page that is a file, it is not called again for that file. A module that always returns the page for which it was
%% called does not loop.
pages_of_an_appmod(Config) ->
    Port = yucan_yaws_site:start(Config, "docroot = www\nerrormod_404 = yucan_yaws_pages\nappmods = </, yucan_yaws_pages exclude_paths loop>\n",
                                 [{"www/page.html", "<p>page</p>"}]),
    {200, _, <<"<p>page</p>">>} = yucan_yaws_client:get(Port, "h", "/page"),
    {404, _, <<"<p>page</p>">>} = yucan_yaws_client:get(Port, "h", "/page_status"),
    [{Target, Status} = {Target, element(1, yucan_yaws_client:get(Port, "h", Target))} || {Target, Status} <- [{"/page_loop", 404}, {"/loop", 500}]],
    ok.

%% The source of a page with embedded Erlang is never sent, and the first request for one logs what to use instead.
embedded_pages(Config) ->
    Page = "<erl>out(_) -> {html, \"secret\"}.</erl>",
    Files = [{"www/" ++ Name, Page} || Name <- ["p.yaws", "d/index.yaws", "P.YAWS", "p.yaws~", "p.yaws.bak", "P.YAWS.old~"]],
    ok = logger:add_handler(?MODULE, yucan_test_logger, #{level => warning, config => #{pid => self()}}),
    try
        [begin
             _ = [ok = yucan_yaws_site:stop() || Allowed =/= ""],
             Port = yucan_yaws_site:start(Config, ["docroot = www\nindex_files = index.yaws\nalias = /alias www/p.yaws\nappmods = </m, yucan_yaws_pages>\n", Allowed], Files),
             {Allowed, Begun} = {Allowed, length(warnings())},
             [begin
                  {Status, _, Body} = yucan_yaws_client:get(Port, "h", Target),
                  {Target, 403, nomatch} = {Target, Status, binary:match(Body, <<"secret">>)}
              end || Target <- ["/p.yaws", "/p.yaws?a=b", "/p.yaws/info", "/d/", "/P.YAWS", "/p.yaws~", "/p.yaws.bak", "/P.YAWS.old~", "/alias", "/m/page_embedded"]],
             ?assertEqual(["yucan: <server h>: /p.yaws: pages with embedded Erlang are not supported; use an appmod"], warnings()),
             {404, _, _} = yucan_yaws_client:get(Port, "h", "/none.yaws")
         end || {Allowed, Begun} <- [{"", 0}, {"allowed_scripts =\n", 0}, {"allowed_scripts = cgi\n", 0}, {"allowed_scripts = yaws\n", 1}]]
    after
        logger:remove_handler(?MODULE)
    end.

%% A page that a module returns gets the body, even if the module has read a part of it.
bodies_of_pages(Config) ->
    ok = file:change_mode(yucan_yaws_site:write(Config, "www/cat.cgi", "#!/bin/sh\nprintf 'content-type: text/plain\\n\\n'\nexec cat\n"), 8#755),
    Port = yucan_yaws_site:start(Config, "docroot = www\nallowed_scripts = cgi\nappmods = </m, yucan_yaws_pages>\npartial_post_size = 1000\n", []),
    Long = binary:copy(<<"0123456789">>, 30000),
    [{Target, {200, Body}} = {Target, {Status, Got}}
     || {Target, Body} <- [{"/m/page_cgi", <<"a=1">>}, {"/m/page_cgi", Long}],
        {Status, _, Got} <- [yucan_yaws_client:request(#{port => Port, host => "h", target => Target, method => "POST", body => Body})]],
    ok.

error_modules(Config) ->
    Port = yucan_yaws_site:start(Config, "docroot = www\nappmods = </m, yucan_yaws_pages>\nerrormod_404 = yucan_yaws_pages\n"
                                 "errormod_crash = yucan_yaws_pages\nerrormod_401 = yucan_yaws_pages\n"
                                 "<auth>\ndir = /secret\nrealm = r\nuser = joe:pw\n</auth>\n", []),
    {404, _, <<"no /missing here">>} = yucan_yaws_client:get(Port, "h", "/missing"),
    {500, _, <<"it broke: badarith">>} = yucan_yaws_client:get(Port, "h", "/m/crash"),
    {401, _, <<"who are you, r">>} = yucan_yaws_client:get(Port, "h", "/secret"),
    ok.

%% ---- arg_rewrite_mod

rewriting(Config) ->
    Port = yucan_yaws_site:start(Config, "docroot = www\nappmods = </m, yucan_yaws_pages>\narg_rewrite_mod = yucan_yaws_pages\n",
                                 [{"www/page.html", "page"}, {"other/page.html", "of another docroot"}]),
    {200, _, <<"page">>} = yucan_yaws_client:get(Port, "h", "/rewrite/page.html"),
    {200, _, <<"of another docroot">>} = yucan_yaws_client:get(Port, "h", "/other/page.html"),
    {403, Headers, <<"not you">>} = yucan_yaws_client:get(Port, "h", "/answer"),
    <<"1">> = proplists:get_value(<<"x-why">>, Headers),
    {200, _, <<"passed on /pass/x%20y">>} = yucan_yaws_client:get(Port, "h", "/pass/x%20y"),
    ok.

%% Access is checked for both the requested path and the rewritten one.
rewriting_and_auth(Config) ->
    Port = yucan_yaws_site:start(Config, ["docroot = rewritten\narg_rewrite_mod = yucan_yaws_pages\n",
                                          [["<auth>\ndir = ", Dir, "\nrealm = r\nuser = joe:pw\n</auth>\n"] || Dir <- ["/rewrite/before", "/after"]]],
                                 [{"rewritten/before/f", "b"}, {"rewritten/after/f", "a"}, {"rewritten/open/f", "o"}]),
    Get = fun(Target, Headers) ->
                  {Status, _, _} = yucan_yaws_client:request(#{port => Port, host => "h", target => Target, headers => Headers}),
                  Status
          end,
    [{Target, Expected, 200} = {Target, Get(Target, []), Get(Target, [{"authorization", ["Basic ", base64:encode("joe:pw")]}])}
     || {Target, Expected} <- [{"/rewrite/before/f", 401}, {"/%72ewrite//before/f", 401}, {"/rewrite/after/f", 401}, {"/rewrite/open/f", 200}]],
    ok.

%% ---- auth

auth(Config) ->
    Hash = yucan_password:hash(<<"secret">>, <<"salt">>),
    Port = yucan_yaws_site:start(Config, ["docroot = www\n<auth>\ndir = /secret\nrealm = Our realm\nuser = joe:p:w\nuser = ann:", Hash, "\n</auth>\n",
                                          "<auth>\ndir = /far\ndeny = all\n</auth>\n",
                                          "<auth>\ndir = /near\nallow = 127.0.0.0/8\ndeny = all\n</auth>\n"],
                                 [{"www/secret/f", "s"}, {"www/far/f", "f"}, {"www/near/f", "n"}, {"www/open", "o"}]),
    Get = fun(Target, Headers) ->
                  {Status, _, Body} = yucan_yaws_client:request(#{port => Port, host => "h", target => Target, headers => Headers}),
                  {Status, Body}
          end,
    Basic = fun(Text) -> [{"authorization", ["Basic ", base64:encode(Text)]}] end,
    {401, Asked, _} = yucan_yaws_client:get(Port, "h", "/secret/f"),
    <<"Basic realm=\"Our realm\"">> = proplists:get_value(<<"www-authenticate">>, Asked),
    {200, <<"s">>} = Get("/secret/f", Basic("joe:p:w")),
    {200, <<"s">>} = Get("/secret/f", Basic("ann:secret")),
    [{Target, Who, 401} = {Target, Who, element(1, Get(Target, Basic(Who)))}
     || Target <- ["/secret/f", "/%73ecret/f", "//secret/f", "/x/..//secret//f", "//secret/../secret/f", "/x/../secret/f"], Who <- ["joe:p", "ann:p:w", "joe:", "eve:p:w", "joe"]],
    {403, _} = Get("/far/f", []),
    {200, <<"n">>} = Get("/near/f", []),
    {200, <<"o">>} = Get("/open", []),
    ok.

authmod(Config) ->
    Port = yucan_yaws_site:start(Config, "docroot = www\n<auth>\ndir = /\nauthmod = yucan_yaws_pages\nrealm = x\n</auth>\n", [{"www/f", "f"}]),
    Get = fun(Cookie) -> yucan_yaws_client:request(#{port => Port, host => "h:7", target => "/f", headers => [{"cookie", Cookie}]}) end,
    {200, _, <<"f">>} = Get("pass=yes"),
    {401, Headers, _} = Get("pass=other"),
    <<"Basic realm=\"other\"">> = proplists:get_value(<<"www-authenticate">>, Headers),
    {302, Login, _} = Get("pass=none"),
    <<"http://h:7/login.html">> = proplists:get_value(<<"location">>, Login),
    ok.

%% ---- files

files(Config) ->
    Port = yucan_yaws_site:start(Config, "docroot = one two\nindex_files = index.html start.html\nallowed_scripts = cgi\nexpires = text/css|access+60\n"
                                 "<extra_response_headers>\nX-Site = ours\n</extra_response_headers>\n",
                                 [{"one/a", "1a"}, {"two/a", "2a"}, {"two/b", "2b"}, {"two/d/start.html", "start"}, {"one/d/other", "o"},
                                  {"one/empty/x", "x"}, {"one/x.php", "<?php secret"}, {"one/x.yaws", "secret"}, {"one/.hidden", "h"},
                                  {"one/s.css", "css"}, {"one/.well-known/w", "w"}, {"one/.well-known/.x.cgi", "secret"}]),
    Get = fun(Target) -> {Status, _, Body} = yucan_yaws_client:get(Port, "h", Target), {Status, Body} end,
    {200, <<"1a">>} = Get("/a"),
    {200, <<"2b">>} = Get("/b"),
    {200, <<"start">>} = Get("/d/"),
    {200, <<"w">>} = Get("/.well-known/w"),
    {403, _} = Get("/empty/"),
    %% The source of scripts that may not be run is not shown either.
    [{Target, 403} = {Target, element(1, Get(Target))} || Target <- ["/x.php", "/x.php/a", "/x.yaws"]],
    [{Target, true} = {Target, lists:member(element(1, Get(Target)), [400, 404])}
     || Target <- ["/.hidden", "/%2ehidden", "/.well-known/.x.cgi", "/../one/a", "/..%2fa", "/c", "/a/b", "/x.php%00.html"]],
    {200, Headers, <<"css">>} = yucan_yaws_client:get(Port, "h", "/s.css"),
    <<"ours">> = proplists:get_value(<<"x-site">>, Headers),
    <<"max-age=60", _/binary>> = proplists:get_value(<<"cache-control">>, Headers),
    ok.

%% Names of files and users, and the values of headers, have the same bytes as in the configuration.
beyond_ascii(Config) ->
    Text = fun unicode:characters_to_binary/1,
    Port = yucan_yaws_site:start(Config, Text("docroot = www\nindex_files = \x{e9}.html \x{416}.html /\x{416}/?a=%20\nerrormod_401 = yucan_yaws_pages\nappmods = </secret, yucan_yaws_pages>\n"
                                              "<auth>\ndir = /secret\nrealm = \x{e9}\x{416}\nuser = zo\x{eb}\x{416}:\x{df}\n</auth>\n"
                                              "<extra_response_headers>\nX-Site = \x{e9}\x{416}\n</extra_response_headers>\n"),
                                 [{"www/one/\x{e9}.html", "one"}, {"www/two/\x{416}.html", "two"}, {"www/three/x", "x"}]),
    {200, Headers, <<"one">>} = yucan_yaws_client:get(Port, "h", "/one/"),
    <<"\x{e9}\x{416}"/utf8>> = proplists:get_value(<<"x-site">>, Headers),
    {200, _, <<"two">>} = yucan_yaws_client:get(Port, "h", "/two/"),
    {302, Elsewhere, _} = yucan_yaws_client:get(Port, "h", "/three/"),
    <<"http://h/%D0%96/?a=%20">> = proplists:get_value(<<"location">>, Elsewhere),
    {401, Asked, <<"who are you, \x{e9}\x{416}"/utf8>>} = yucan_yaws_client:get(Port, "h", "/secret/html"),
    <<"Basic realm=\"\x{e9}\x{416}\""/utf8>> = proplists:get_value(<<"www-authenticate">>, Asked),
    {200, _, _} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/secret/html",
                                              headers => [{"authorization", ["Basic ", base64:encode(<<"zo\x{eb}\x{416}:\x{df}"/utf8>>)]}]}).

%% If a site allows scripts, it does not serve files that may be a script's source.
sources(Config) ->
    Hidden = ["x.phtml", "x.php5", "x.PHP7", "x.pht", "x.phps", "x.phar", "x.inc", "x.pl", "x.php~", "x.php.bak", "x.cgi.old", "x.inc.orig", "x.php.swp", "d/x.phtml"],
    Shown = ["x.txt", "x.inc.txt", "x.bak", "x~", "phtml", "x.php.txt", "x.sh", "x.py", "lib.inc/x.txt"],
    Files = [{"one/" ++ Name, "source"} || Name <- Hidden ++ Shown],
    Get = fun(Port, Name) -> {Status, _, _} = yucan_yaws_client:get(Port, "h", "/" ++ Name), {Name, Status} end,
    [begin
         Port = yucan_yaws_site:start(Config, ["docroot = one\n", Allowed], Files),
         [{Name, 403} = Get(Port, Name) || Name <- Hidden ++ ["x.phtml/a", "x.%70hp5"]],
         [{Name, 200} = Get(Port, Name) || Name <- Shown],
         ok = yucan_yaws_site:stop()
     end || Allowed <- ["", "allowed_scripts = php\n", "allowed_scripts = cgi\n", "allowed_scripts = fcgi\n"]],
    yucan_yaws_site:start(Config, "docroot = one\n", Files).

%% ---- modules of one server

own_modules(Config) ->
    Folder = fun(Site) -> yucan_yaws_site:compile(Config, Site, [{"index.erl", index(Site)}, {"front.erl", front()}]) end,
    Servers = [yucan_yaws_site:server(Site ++ ".example", ["appmods = </, front>\nebin_dir = ", Folder(Site), "\n"]) || Site <- ["red", "blue"]],
    Port = yucan_yaws_site:start_text(Config, Servers, []),
    [begin
         Expected = list_to_binary(Site ++ " page of index@" ++ Site ++ ".example"),
         {200, _, Expected} = yucan_yaws_client:get(Port, Site ++ ".example", "/index")
     end || Site <- ["red", "blue", "red"]],
    [begin
         Socket = opened(Port, Site ++ ".example", "/ws"),
         ok = gen_tcp:send(Socket, yucan_ws_client:frame(16#81, "hi")),
         Answer = {16#81, list_to_binary(Site)},
         Answer = yucan_ws_client:recv(Socket),
         gen_tcp:close(Socket)
     end || Site <- ["red", "blue"]],
    false = code:is_loaded(index),
    ok.

%% The page module is found by its path, as in Nitrogen.
front() ->
    "-module(front).\n-export([out/1, handle_message/1]).\n-include_lib(\"yucan_yaws/include/yaws_api.hrl\").\n"
        "handle_message({text, _}) -> {reply, {text, index:site()}}.\n"
        "out(#arg{appmoddata = \"ws\"}) -> {websocket, ?MODULE, []};\n"
        "out(#arg{appmoddata = Path}) -> Module = yucan_yaws_loader:own(list_to_existing_atom(Path)), {html, Module:main()}.\n".

index(Site) ->
    ["-module(index).\n-export([main/0, site/0]).\nmain() -> [index:site(), \" page of \", atom_to_list(name())].\nsite() -> \"", Site, "\".\n"
     "name() -> element(2, erlang:fun_info(fun index:site/0, module)).\n"].

%% A page with a button is served in two sites, whose page modules are both called index. `make test-browser' clicks the button in Chromium.
nitrogen(Config) ->
    Port = yucan_yaws_site:nitrogen(Config),
    [begin
         Host = Name ++ ".localhost",
         {200, Headers, Page} = yucan_yaws_client:get(Port, Host, "/"),
         <<"text/html; charset=utf-8">> = proplists:get_value(<<"content-type">>, Headers),
         {_, _} = binary:match(Page, list_to_binary("<title>Welcome to site " ++ Name ++ "</title>")),
         {match, [Postback]} = re:run(Page, "data-postback=\"([^\"]+)\"", [{capture, all_but_first, list}]),
         Click = fun(Text) ->
                         yucan_yaws_client:request(#{port => Port, host => Host, target => "/postback", method => "POST", body => uri_string:compose_query([{"postback", Text}]),
                                                     headers => [{"content-type", "application/x-www-form-urlencoded"}]})
                 end,
         {200, _, Changes} = Click(Postback),
         {_, _} = binary:match(Changes, list_to_binary("You clicked the button of site " ++ Name ++ "!")),
         [{400, _, _} = Click(Forged) || Forged <- ["", "x", lists:reverse(Postback), base64:encode_to_string(term_to_binary({erlang, halt}))]],
         {200, _, _} = yucan_yaws_client:get(Port, Host, "/js/postback.js"),
         [{404, _, _} = yucan_yaws_client:get(Port, Host, Path) || Path <- ["/none", "/lists", "/front", "/never/seen/before"]]
     end || Name <- ["one", "two"]],
    ok.

%% ---- loading and reloading a configuration

reload(Config) ->
    Port = yucan_yaws_site:start(Config, "docroot = www\n", [{"www/f", "one"}, {"www2/f", "two"}]),
    {200, _, <<"one">>} = yucan_yaws_client:get(Port, "h", "/f"),
    %% On an open connection, the new configuration applies from the next request on.
    Socket = yucan_yaws_client:send(Port, "GET /f HTTP/1.1\r\nhost: h\r\n\r\n"),
    _ = yucan_yaws_site:receive_until(Socket, <<"one">>),
    ok = yucan_yaws_site:reload(Config, "docroot = www2\n"),
    ok = gen_tcp:send(Socket, "GET /f HTTP/1.1\r\nhost: h\r\n\r\n"),
    _ = yucan_yaws_site:receive_until(Socket, <<"two">>),
    ok = gen_tcp:close(Socket),
    {200, _, <<"two">>} = yucan_yaws_client:get(Port, "h", "/f"),
    ok.

websocket(Config) ->
    Port = appmods(Config),
    true = register(yucan_yaws_listener, self()),
    lists:foreach(fun(Page) -> converse(Port, Page) end, ["websocket", "websocket_default"]),
    [begin
         Socket = opened(Port, "h", "/m/websocket"),
         {16#81, <<"open">>} = yucan_ws_client:recv(Socket),
         ok = gen_tcp:send(Socket, Frame),
         ok = gen_tcp:close(Socket),
         receive {left, Told} -> Left = Told after 10000 * beamway_runner:slowness() -> error({not_told, Left}) end
     end || {Frame, Left} <- [{<<16#88, 16#85, 0:32, 4001:16, "bye">>, {4001, <<"bye">>, 6}}, {<<>>, {1006, <<>>, 6}}]],
    %% If handle_open/2 rejects a connection, the connection is closed with the text that it returns, and terminate/2 gets the state from init/1.
    [begin
         Socket = opened(Port, "h", "/m/" ++ Page),
         {16#88, Close} = yucan_ws_client:recv(Socket),
         ok = gen_tcp:close(Socket),
         receive {left, Told} -> Left = Told after 10000 * beamway_runner:slowness() -> error({not_told, Left}) end
     end || {Page, Close, Left} <- [{"websocket_refused", <<4401:16, "login">>, {4401, <<"login">>}},
                                    {"websocket_failed", <<1011:16>>, {no_login, for_me}}]].

%% The initial state is 6, because the page's state, if any, has been changed by init/1 and handle_open/2.
converse(Port, Page) ->
    Socket = opened(Port, "h", "/m/" ++ Page),
    {16#81, <<"open">>} = yucan_ws_client:recv(Socket),
    ok = gen_tcp:send(Socket, yucan_ws_client:frame(16#81, "hi")),
    {16#81, <<"6 hello">>} = yucan_ws_client:recv(Socket),
    ok = gen_tcp:send(Socket, yucan_ws_client:frame(16#81, "hi")),
    {16#81, <<"7 hello">>} = yucan_ws_client:recv(Socket),
    ok = gen_tcp:send(Socket, yucan_ws_client:frame(16#81, "end")),
    {16#81, <<"last">>} = yucan_ws_client:recv(Socket),
    {16#88, <<4000:16, "over">>} = yucan_ws_client:recv(Socket),
    gen_tcp:close(Socket).

opened(Port, Host, Path) -> yucan_ws_client:open(Port, yucan_ws_client:head(Host, Path, [])).

start_modules(Config) ->
    true = register(yucan_yaws_listener, self()),
    _ = yucan_yaws_site:start_text(Config, ["runmod = yucan_yaws_pages\n",
                                            yucan_yaws_site:server("h", "docroot = www\nstart_mod = yucan_yaws_pages\n<opaque>\nkey = value\n</opaque>\n")], []),
    receive started -> ok after 10000 * beamway_runner:slowness() -> error(runmod_not_started) end,
    receive {started, [{"key", "value"}]} -> ok after 10000 * beamway_runner:slowness() -> error(start_mod_not_started) end.
