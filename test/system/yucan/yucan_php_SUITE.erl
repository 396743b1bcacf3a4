%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests Debian's PHP under yucan: php-fpm over a Unix socket and over TCP, and php-cgi, all of which must behave in the same way. Also
%% tests the special cases of keep-alive connections to php-fpm. Run by `test/system/run php', which installs PHP.
-module(yucan_php_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([variables/1, forms/1, uploads/1, answers/1, paths/1, big_answer/1, fatal_error/1, hangs/1, many_clients/1, connections_are_kept/1,
         a_waiting_request_is_let_in/1, fpm_comes_and_goes/1, no_hole/1, seed/1]).

suite() -> [{timetrap, {minutes, 4}}].

all() -> [{group, unix}, {group, tcp}, {group, cgi}].

groups() ->
    Same = [variables, forms, uploads, answers, paths, big_answer, fatal_error, hangs, many_clients, no_hole],
    Kept = [connections_are_kept, a_waiting_request_is_let_in, fpm_comes_and_goes],
    [{unix, [], Same ++ Kept}, {tcp, [], Same ++ Kept}, {cgi, [], Same ++ [seed]}].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(yucan),
    Config.

end_per_suite(_) -> application:stop(yucan).

init_per_group(Group, Config) -> [{kind, Group} | Config].

end_per_group(_, _) -> ok.

%% Each case has its own server. php-fpm is owned by the process that starts it, so the case itself must start it.
init_per_testcase(_, Config) -> Config.

end_per_testcase(_, _) -> yucan_yaws_site:stop().

start(Config, Scripts) ->
    {Handler, Fpm} = handler(proplists:get_value(kind, Config), Config),
    Files = [{"www/" ++ Name, ["<?php ", Text]} || {Name, Text} <- Scripts],
    Port = yucan_yaws_site:start_text(Config, ["cgi_timeout = 5\n", yucan_yaws_site:server("h", ["docroot = www\nindex_files = index.php\n", Handler])],
                                      Files),
    {Port, Fpm}.

handler(cgi, _) -> {"php_handler = <cgi, /usr/bin/php-cgi>\n", none};
handler(Kind, Config) ->
    #{socket := Socket, tcp := Tcp} = Fpm = yucan_fpm:start(filename:join(yucan_yaws_site:folder(Config), "fpm")),
    {case Kind of
         unix -> ["php_handler = <fcgi, unix:", Socket, ">\n"];
         tcp -> ["php_handler = <fcgi, 127.0.0.1:", integer_to_list(Tcp), ">\n"]
     end, Fpm}.

stop(none) -> ok;
stop(Fpm) -> yucan_fpm:stop(Fpm).

get(Port, Target) -> yucan_yaws_client:get(Port, "h:81", Target).

variables(Config) ->
    {Port, Fpm} = start(Config, [{"d/v.php", "foreach (['SCRIPT_NAME', 'PATH_INFO', 'QUERY_STRING', 'REQUEST_URI', 'SERVER_PORT', 'PHP_SELF', 'REMOTE_ADDR',"
                                  " 'HTTP_X_A', 'REQUEST_METHOD'] as $n) echo \"$n=\", $_SERVER[$n] ?? 'none', \"\\n\"; echo php_sapi_name(), getcwd();"}]),
    {200, _, Text} = yucan_yaws_client:request(#{port => Port, host => "h:81", target => "/d/v.php/in%20fo?a=%41", headers => [{"X-A", "1"}]}),
    Lines = string:split(binary_to_list(Text), "\n", all),
    Sapi = case Fpm of none -> "cgi-fcgi"; _ -> "fpm-fcgi" end,
    [{Line, true} = {Line, lists:member(Line, Lines)}
     || Line <- ["SCRIPT_NAME=/d/v.php", "PATH_INFO=/in fo", "QUERY_STRING=a=%41", "REQUEST_URI=/d/v.php/in%20fo?a=%41", "SERVER_PORT=81",
                 "PHP_SELF=/d/v.php/in fo", "REMOTE_ADDR=127.0.0.1", "HTTP_X_A=1", "REQUEST_METHOD=GET",
                 Sapi ++ yucan_yaws_site:folder(Config) ++ "/www/d"]],
    stop(Fpm).

forms(Config) ->
    {Port, Fpm} = start(Config, [{"f.php", "echo $_POST['a'], '|', $_GET['b'], '|', $_COOKIE['c'];"}]),
    {200, _, <<"1 2|3|4">>} =
        yucan_yaws_client:request(#{port => Port, host => "h", target => "/f.php?b=3", method => "POST", body => "a=1+2",
                                    headers => [{"content-type", "application/x-www-form-urlencoded"}, {"cookie", "c=4"}]}),
    stop(Fpm).

%% The body is larger than yucan keeps in memory, and it is chunked, so its length is unknown.
uploads(Config) ->
    {Port, Fpm} = start(Config, [{"u.php", "echo $_FILES['f']['size'], ' ', md5_file($_FILES['f']['tmp_name']);"},
                                 {"raw.php", "echo $_SERVER['CONTENT_LENGTH'], ' ', md5(file_get_contents('php://input'));"}]),
    Data = crypto:strong_rand_bytes(case Fpm of none -> 1500000; _ -> 20000000 end),
    Expected = iolist_to_binary(io_lib:format("~b ~s", [byte_size(Data), md5(Data)])),
    Body = ["--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a b\"\r\n\r\n", Data, "\r\n--x--\r\n"],
    {200, _, Expected} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/u.php", method => "POST", body => Body,
                                                     headers => [{"content-type", "multipart/form-data; boundary=x"}]}),
    Chunks = [["186a0\r\n", binary:part(Data, At, 100000), "\r\n"] || At <- lists:seq(0, 900000, 100000)],
    Million = binary:part(Data, 0, 1000000),
    Sum = iolist_to_binary(["1000000 ", md5(Million)]),
    Socket = yucan_yaws_client:send(Port, ["POST /raw.php HTTP/1.1\r\nhost: h\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n", Chunks, "0\r\n\r\n"]),
    {200, _, Sum} = yucan_yaws_client:parse(yucan_yaws_client:receive_all(Socket)),
    stop(Fpm).

md5(Data) -> string:lowercase(binary:encode_hex(crypto:hash(md5, Data))).

answers(Config) ->
    {Port, Fpm} = start(Config, [{"s.php", "http_response_code(404); setcookie('a', '1'); setcookie('b', '2'); header('X-Latin: ' . chr(233)); echo 'x';"},
                                 {"r.php", "header('Location: /there');"}, {"n.php", "http_response_code(204);"},
                                 {"l.php", "header('Content-Length: 3'); echo 'abc';"}]),
    {404, Headers, <<"x">>} = get(Port, "/s.php"),
    [<<"a=1", _/binary>>, <<"b=2", _/binary>>] = proplists:get_all_values(<<"set-cookie">>, Headers),
    <<233>> = proplists:get_value(<<"x-latin">>, Headers),
    {302, Redirect, _} = get(Port, "/r.php"),
    <<"/there">> = proplists:get_value(<<"location">>, Redirect),
    {204, _, <<>>} = get(Port, "/n.php"),
    {200, _, <<"abc">>} = get(Port, "/l.php"),
    {404, _, <<>>} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/s.php", method => "HEAD"}),
    stop(Fpm).

paths(Config) ->
    {Port, Fpm} = start(Config, [{"index.php", "echo 'index ', $_SERVER['PATH_INFO'] ?? '';"}, {"d/index.php", "echo 'd', $_SERVER['SCRIPT_NAME'];"}]),
    {200, _, <<"index ">>} = get(Port, "/"),
    {200, _, <<"index /post/1">>} = get(Port, "/index.php/post/1"),
    {200, _, <<"d/d/index.php">>} = get(Port, "/d/"),
    {Status, Headers, _} = get(Port, "/d"),
    true = lists:member(Status, [301, 302, 307, 308]),
    {_, _} = binary:match(proplists:get_value(<<"location">>, Headers), <<"/d/">>),
    {404, _, _} = get(Port, "/absent.php"),
    stop(Fpm).

big_answer(Config) ->
    {Port, Fpm} = start(Config, [{"b.php", "for ($i = 0; $i < 2000; $i++) echo str_repeat('x', 10000);"}]),
    {200, _, Body} = get(Port, "/b.php"),
    20000000 = byte_size(Body),
    stop(Fpm).

fatal_error(Config) ->
    {Port, Fpm} = start(Config, [{"e.php", "ini_set('display_errors', 0); no_such_function();"}, {"ok.php", "echo 'ok';"}]),
    {500, _, _} = get(Port, "/e.php"),
    {200, _, <<"ok">>} = get(Port, "/ok.php"),
    stop(Fpm).

hangs(Config) ->
    {Port, Fpm} = start(Config, [{"h.php", "sleep(60);"}, {"ok.php", "echo 'ok';"}]),
    {504, _, _} = get(Port, "/h.php"),
    {200, _, <<"ok">>} = get(Port, "/ok.php"),
    stop(Fpm).

%% There are many more clients than PHP processes, and each client must get its own response.
many_clients(Config) ->
    {Port, Fpm} = start(Config, [{"q.php", "usleep(5000); echo $_SERVER['QUERY_STRING'];"}]),
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {self(), [asked(Port, lists:concat([N, "-", M])) || M <- lists:seq(1, 10)]} end) || N <- lists:seq(1, 20)],
    [receive {Pid, Results} -> [ok] = lists:usort(Results) after 120000 -> error(timeout) end || Pid <- Pids],
    stop(Fpm).

asked(Port, Word) ->
    Expected = list_to_binary(Word),
    {200, _, Expected} = get(Port, "/q.php?" ++ Word),
    ok.

%% Seventy consecutive requests use the same socket, which becomes passive every 32 messages. A PHP process that crashes loses only its own
%% connection. (The number of connections that php-fpm itself reports is in fact the number of requests.)
connections_are_kept(Config) ->
    {Port, Fpm} = start(Config, [{"a.php", "echo 'a';"}]),
    #{socket := Path, tcp := Tcp} = Fpm,
    Address = case proplists:get_value(kind, Config) of
                  unix -> {local, list_to_binary(Path)};
                  tcp -> {{127, 0, 0, 1}, Tcp}
              end,
    [Socket] = kept_after(Port, Address),
    [[Socket] = kept_after(Port, Address) || _ <- lists:seq(1, 70)],
    {ok, [{send_cnt, Sent}]} = inet:getstat(Socket, [send_cnt]),
    true = Sent >= 71,
    Pool = whereis(yucan_fcgi_pool),
    {_, Monitor} = spawn_monitor(fun() -> {kept, Socket, _} = yucan_fcgi_pool:checkout(Address), exit(crash) end),
    receive {'DOWN', Monitor, process, _, crash} -> ok after 60000 -> error(timeout) end,
    {200, _, <<"a">>} = get(Port, "/a.php"),
    Pool = whereis(yucan_fcgi_pool),
    stop(Fpm).

%% The client may get its response before the connection is back in the pool.
kept_after(Port, Address) ->
    {200, _, <<"a">>} = get(Port, "/a.php"),
    true = beamway_peer:wait_until(fun() -> yucan_fcgi_pool:idle(Address) > 0 end, 10000),
    sockets(Address).

sockets(Address) -> [Socket || {{A, _}, Socket, _, _} <- ets:tab2list(yucan_fcgi_pool), A =:= Address].

%% All PHP processes are occupied by connections when one more request arrives. It must be served when a connection is returned, or soon
%% afterwards. (An idle keep-alive connection would occupy its process for five seconds.)
a_waiting_request_is_let_in(Config) ->
    {Port, Fpm} = start(Config, [{"s.php", "usleep(100000); echo 's';"}, {"f.php", "usleep(5000); echo 'f';"}]),
    [begin
         Before = erlang:monotonic_time(millisecond),
         Pids = [spawn_monitor(fun() -> {200, _, _} = get(Port, Target) end) || _ <- lists:seq(0, yucan_fpm:children())],
         [receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason after 60000 -> error(timeout) end || {Pid, Monitor} <- Pids],
         true = erlang:monotonic_time(millisecond) - Before < 4500
     end || _ <- lists:seq(1, 5), Target <- ["/s.php", "/f.php"]],
    stop(Fpm).

%% A dead keep-alive connection must not make the next request fail.
fpm_comes_and_goes(Config) ->
    {Port, Fpm} = start(Config, [{"a.php", "echo 'a';"}]),
    {200, _, <<"a">>} = get(Port, "/a.php"),
    ok = stop(Fpm),
    {502, _, _} = get(Port, "/a.php"),
    Again = yucan_fpm:restart(Fpm),
    {200, _, <<"a">>} = get(Port, "/a.php"),
    stop(Again).

%% An uploaded picture that contains PHP must never run as a script, whatever path follows its name.
no_hole(Config) ->
    {Port, Fpm} = start(Config, [{"i.jpg", "echo 'pwned';"}]),
    {404, _, _} = get(Port, "/i.jpg/x.php"),
    {404, _, _} = get(Port, "/i.jpg/.php"),
    {200, _, <<"<?php", _/binary>>} = get(Port, "/i.jpg"),
    {Status, _, _} = get(Port, "/i.jpg%00.php"),
    true = lists:member(Status, [400, 404]),
    stop(Fpm).

%% Uses the example site that was moved from Apache, with php-cgi at the path in its configuration.
seed(Config) ->
    Port = yucan_yaws_site:example(Config),
    Get = fun(Target) ->
                  {200, _, Text} = yucan_yaws_client:get(Port, "www.example.com", Target),
                  Text
          end,
    <<"blog /2009/07/27/suexec-on-opensolaris/ /2009/07/27/suexec-on-opensolaris/ \n">> = Get("/2009/07/27/suexec-on-opensolaris/"),
    <<"blog /?p=5 / 5\n">> = Get("/?p=5"),
    <<"wsvn /wsvn.php /repo/trunk /wsvn/repo/trunk?rev=2\n">> = Get("/wsvn/repo/trunk?rev=2"),
    <<"wsvn /wsvn.php ", _/binary>> = Get("/wsvn.php"),
    <<"a file of www\n">> = Get("/file.txt"),
    ok.
