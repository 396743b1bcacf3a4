%% SPDX-License-Identifier: Apache-2.0
%% @doc Correct and incorrect scripts and applications behind the server. Whatever they do, the client gets a response in time, other requests are
%% served, and no process or file is left behind.
%%
%% The correct FastCGI application is php-fpm, which has its own suite
%% (test/system/yucan/yucan_php_SUITE.erl). The incorrect ones are sockets in this suite that
%% violate the protocol. The server behind revproxy is another yucan server, or a socket in this
%% suite that violates the protocol.
-module(yucan_cgi_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([environment/1, bytes/1, httpoxy/1, body_and_its_end/1, private_body/1, big_body/1, big_answer_to_a_slow_client/1, statuses/1, rubbish/1, dies/1, killed/1, reasons/1, hangs/1,
         hangs_after_the_head/1, slow_but_not_silent/1, forks/1, client_leaves/1, without_descriptors/1, given_up/1, too_many/1, head_request/1, not_executable/1, shell_characters/1, called/1,
         scripts_of_two_sites/1, fcgi_broken/1, fcgi_says_more/1, fcgi_log/1, body_bound/1, fcgi_leaves/1, fcgi_absent/1, revproxy/1, revproxy_broken/1, many_at_once/1,
         revproxy_path/1, revproxy_hops/1, revproxy_names/1, revproxy_slash/1, revproxy_no_body/1, revproxy_elsewhere/1, over_ipv6/1]).

-define(LOOPBACK6, {0, 0, 0, 0, 0, 0, 0, 1}).

suite() -> [{timetrap, {minutes, 3}}].

all() ->
    [environment, bytes, httpoxy, body_and_its_end, private_body, big_body, big_answer_to_a_slow_client, statuses, rubbish, dies, killed, reasons, hangs, hangs_after_the_head, slow_but_not_silent, forks,
     client_leaves, without_descriptors, given_up, too_many, head_request, not_executable, shell_characters, called, scripts_of_two_sites, body_bound, fcgi_broken, fcgi_says_more, fcgi_log, fcgi_leaves, fcgi_absent, revproxy, revproxy_broken, many_at_once,
     revproxy_path, revproxy_hops, revproxy_names, revproxy_slash, revproxy_no_body, revproxy_elsewhere, over_ipv6].

%% Bodies are stored in a separate directory for this suite, where no other program leaves files.
init_per_suite(Config) ->
    Bodies = filename:join(proplists:get_value(priv_dir, Config), "bodies"),
    ok = filelib:ensure_dir(filename:join(Bodies, "x")),
    true = os:putenv("TMPDIR", Bodies),
    yucan_test_server:start_application([{bodies, Bodies} | Config]).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

end_per_testcase(_, _) -> yucan_yaws_site:stop().

%% Starts a server with scripts, each with a marker in its arguments or environment. The time limit for scripts is high, except where silence is
%% tested.
start(Config, Scripts) -> start(Config, "", Scripts).

start(Config, More, Scripts) -> start(Config, 30 * beamway_runner:slowness(), More, Scripts).

hasty(Config, Scripts) -> start(Config, 2, "", Scripts).

start(Config, Seconds, More, Scripts) ->
    Files = [begin
                 File = yucan_yaws_site:write(Config, "www/" ++ Name, Text),
                 ok = file:change_mode(File, 8#755)
             end || {Name, Text} <- Scripts],
    [] = [File || File <- Files, File =/= ok],
    yucan_yaws_site:start_text(Config, [io_lib:format("cgi_timeout = ~b\ncgi_max = 4\n", [Seconds]), yucan_yaws_site:server("h", ["docroot = www\n", More])], []).

sh(Text) -> ["#!/bin/sh\n", Text].

%% Returns a number of seconds that is longer than any test and that no other program on the machine uses for a sleep.
nap(N) -> lists:concat(["7", N, "1.0", os:getpid()]).

plain(Text) -> sh(["echo 'Content-Type: text/plain'; echo; ", Text]).

get(Port, Target) -> yucan_yaws_client:get(Port, "h", Target).

post(Port, Target, Body) ->
    yucan_yaws_client:request(#{port => Port, host => "h", target => Target, method => "POST", body => Body}).

%% ---- a script's input

%% RFC 3875, 4.1.
environment(Config) ->
    Port = start(Config, "<extra_cgi_vars dir='" ++ yucan_yaws_site:folder(Config) ++ "'>\nEXTRA = a b\n</extra_cgi_vars>\n",
                 [{"dir/env.cgi", plain("env; pwd | sed 's/^/CWD=/'")}]),
    {200, _, Text} = yucan_yaws_client:request(#{port => Port, host => "h:1234", target => "/dir/env.cgi/more%20path?q=%41",
                                                 headers => [{"X-Own", "v1"}, {"x-own", "v2"}, {"Authorization", "Basic eDp5"}]}),
    Root = yucan_yaws_site:folder(Config) ++ "/www",
    Lines = string:split(binary_to_list(Text), "\n", all),
    [{Line, true} = {Line, lists:member(Line, Lines)}
     || Line <- ["GATEWAY_INTERFACE=CGI/1.1", "SERVER_PROTOCOL=HTTP/1.1", "REQUEST_METHOD=GET", "QUERY_STRING=q=%41",
                 "SCRIPT_NAME=/dir/env.cgi", "PATH_INFO=/more path", "PATH_TRANSLATED=" ++ Root ++ "/more path",
                 "REQUEST_URI=/dir/env.cgi/more%20path?q=%41", "SCRIPT_FILENAME=" ++ Root ++ "/dir/env.cgi", "DOCUMENT_ROOT=" ++ Root,
                 "SERVER_NAME=h", "SERVER_PORT=1234", "REMOTE_ADDR=127.0.0.1", "HTTP_X_OWN=v1, v2", "HTTP_AUTHORIZATION=Basic eDp5",
                 "EXTRA=a b", "CWD=" ++ Root ++ "/dir"]],
    %% The script gets nothing from the server's own environment.
    true = os:putenv("YUCAN_SECRET", "1"),
    {200, _, Again} = get(Port, "/dir/env.cgi"),
    nomatch = binary:match(Again, <<"YUCAN_SECRET">>),
    {_, _} = binary:match(Again, <<"\nQUERY_STRING=\n">>),
    %% If a request does not contain a host, SERVER_NAME is the address to which the request was sent.
    {200, _, Nameless} = yucan_yaws_client:parse(yucan_yaws_client:receive_all(yucan_yaws_client:send(Port, "GET /dir/env.cgi HTTP/1.0\r\n\r\n"))),
    [] = ["SERVER_NAME=127.0.0.1", "SERVER_PORT=" ++ integer_to_list(Port)] -- string:split(binary_to_list(Nameless), "\n", all),
    true = os:unsetenv("YUCAN_SECRET"),
    ok.

%% Variables, the script's name and its directory have the same bytes as in the request, in the configuration and on disk: UTF-8 is not encoded again,
%% and bytes that are not UTF-8 are preserved. The node that runs this test treats file names as UTF-8, as `yucan' does with a usual locale.
bytes(Config) ->
    utf8 = file:native_name_encoding(),
    Port = start(Config, [unicode:characters_to_binary("<extra_cgi_vars dir='" ++ yucan_yaws_site:folder(Config) ++ "'>\nEXTRA = \x{e9}\n</extra_cgi_vars>\n"
                                                       "php_handler = <cgi, www/\x{416}/php>\nappmods = </m, yucan_yaws_pages>\n")],
                 [{"d\x{e9}/e.cgi", plain("env; pwd | sed 's/^/CWD=/'; printf %s \"$0\" | sed 's/^/SELF=/'; echo")}, {"\x{416}/php", plain("echo \"$0 $1\"")}, {"x.php", ""}]),
    {200, _, Text} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/d%C3%A9/e.cgi/%C3%A9?q=%C3%A9",
                                                 headers => [{"X-Latin", [255, "a", $\\, "b%s"]}, {"X-Text", <<"\x{e9}\x{20ac}"/utf8>>}]}),
    Lines = binary:split(Text, <<"\n">>, [global]),
    Root = unicode:characters_to_binary(yucan_yaws_site:folder(Config) ++ "/www"),
    [{Line, true} = {Line, lists:member(Line, Lines)}
     || Line <- [<<"SCRIPT_NAME=/d\x{e9}/e.cgi"/utf8>>, <<"PATH_INFO=/\x{e9}"/utf8>>, <<"HTTP_X_TEXT=\x{e9}\x{20ac}"/utf8>>, <<"HTTP_X_LATIN=", 255, "a\\b%s">>,
                 <<"EXTRA=\x{e9}"/utf8>>, <<"SCRIPT_FILENAME=", Root/binary, "/d\x{e9}/e.cgi"/utf8>>, <<"CWD=", Root/binary, "/d\x{e9}"/utf8>>,
                 <<"SELF=", Root/binary, "/d\x{e9}/e.cgi"/utf8>>]],
    Ran = <<Root/binary, "/\x{416}/php "/utf8, Root/binary, "/x.php\n">>,
    {200, _, Ran} = get(Port, "/x.php"),
    {200, _, Called} = get(Port, "/m/called_by_bytes"),
    {_, _} = binary:match(Called, <<"\nSELF=", Root/binary, "/d\x{e9}/e.cgi\n"/utf8>>),
    ok.

%% Other users cannot enter the directory with the bodies. Setting the mode of each file would not be enough, because a file exists before its mode is
%% set.
private_body(Config) ->
    Port = start(Config, [{"where.cgi", plain("stat -c %a \"$(dirname \"$(readlink /proc/self/fd/0)\")\"")}]),
    {200, _, <<"700\n">>} = post(Port, "/where.cgi", binary:copy(<<"x">>, 200000)),
    ok.

httpoxy(Config) ->
    Port = start(Config, [{"env.cgi", plain("env")}]),
    {200, _, Text} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/env.cgi",
                                                 headers => [{"Proxy", "http://evil"}, {"X_Under", "1"}]}),
    nomatch = binary:match(Text, [<<"HTTP_PROXY">>, <<"HTTP_X_UNDER">>]),
    ok.

%% The script reads until the end of its input, not up to a length, so the server has to close the input.
body_and_its_end(Config) ->
    Port = start(Config, [{"cat.cgi", plain("echo \"$CONTENT_LENGTH $CONTENT_TYPE\"; cat")}]),
    {200, _, <<" \n">>} = get(Port, "/cat.cgi"),
    {200, _, <<"5 \nhello">>} = post(Port, "/cat.cgi", "hello"),
    %% The body is chunked, but the script still gets its length.
    Socket = yucan_yaws_client:send(Port, "POST /cat.cgi HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-type: a/b\r\n"
                                    "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"),
    {200, _, <<"6 a/b\nhello!">>} = yucan_yaws_client:parse(yucan_yaws_client:receive_all(Socket)),
    ok.

big_body(Config) ->
    Port = start(Config, [{"sum.cgi", plain("cksum")}, {"deaf.cgi", plain("echo deaf")}]),
    Body = crypto:strong_rand_bytes(10000000),
    File = yucan_yaws_site:write(Config, "body", Body),
    Expected = list_to_binary(os:cmd("cksum <" ++ File)),
    {200, _, Expected} = post(Port, "/sum.cgi", Body),
    {200, _, <<"deaf\n">>} = post(Port, "/deaf.cgi", Body),
    no_files_left(Config).

%% 40 MB are sent to a slow client. The script has to wait, and the server does not buffer data that the client has not read.
big_answer_to_a_slow_client(Config) ->
    Port = start(Config, [{"big.cgi", plain("head -c 40000000 /dev/zero")}]),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {recbuf, 65536}]),
    %% The bodies of earlier cases may not have been collected yet.
    _ = [erlang:garbage_collect(Pid) || Pid <- processes()],
    Before = binaries(),
    ok = gen_tcp:send(Socket, "GET /big.cgi HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"),
    {ok, First} = gen_tcp:recv(Socket, 1000000, 20000),
    true = beamway_peer:wait_until(fun() -> yucan_cgi_run:running() > 0 end, 20000),
    %% Only as much as the server's limit and the pipe allow has been read by now, which is far less
    %% than the response.
    Most = lists:max([begin receive after 20 -> ok end, binaries() end || _ <- lists:seq(1, 25)]),
    true = Most - Before < 20000000,
    Rest = yucan_yaws_client:receive_all(Socket),
    {200, _, Body} = yucan_yaws_client:parse(<<First/binary, Rest/binary>>),
    40000000 = byte_size(Body),
    no_process_left(script(Config, "big.cgi")).

binaries() -> erlang:memory(binary).

%% ---- a script's response (RFC 3875, 6)

statuses(Config) ->
    Port = start(Config, [{"a.cgi", sh("printf 'Status: 404 Not Here\\nContent-Type: a/b\\nSet-Cookie: a=1\\nSet-Cookie: b=2\\n\\nx'")},
                          {"b.cgi", sh("printf 'Location: http://other.example/\\n\\n'")},
                          {"c.cgi", sh("printf 'Status: 204 No Content\\r\\n\\r\\n'")},
                          {"d.cgi", sh("printf 'Content-Type: a/b\\nContent-Length: 3\\n\\nabcdef'")},
                          {"e.cgi", sh("printf 'Content-Type: a/b\\nConnection: upgrade\\nTransfer-Encoding: chunked\\n\\n3'")}]),
    {404, Headers, <<"x">>} = get(Port, "/a.cgi"),
    [<<"a=1">>, <<"b=2">>] = proplists:get_all_values(<<"set-cookie">>, Headers),
    {302, Location, _} = get(Port, "/b.cgi"),
    <<"http://other.example/">> = proplists:get_value(<<"location">>, Location),
    {204, _, <<>>} = get(Port, "/c.cgi"),
    {200, _, <<"abc">>} = get(Port, "/d.cgi"),
    {200, _, <<"3">>} = get(Port, "/e.cgi"),
    ok.

rubbish(Config) ->
    Texts = ["", "echo", "echo hello", "printf 'no header at all'", "printf 'Content-Type: a/b\\n'", "head -c 200000 /dev/zero",
             "printf 'Content-Type: a/b\\nX: a\\001b\\n\\nx'", "printf 'Status: 42\\n\\n'", "yes 'A: b' | head -n 5000",
             "printf 'Content-Type: a/b\\nContent-Length: -1\\n\\n'", "printf 'X-Only: 1\\n\\nx'"],
    Names = [lists:concat(["r", N, ".cgi"]) || N <- lists:seq(1, length(Texts))],
    Port = start(Config, lists:zip(Names, [sh(Text) || Text <- Texts])),
    [{Text, 502} = {Text, element(1, get(Port, "/" ++ Name))} || {Name, Text} <- lists:zip(Names, Texts)],
    ok.

dies(Config) ->
    Port = start(Config, [{"exit.cgi", sh("exit 3")}, {"kill.cgi", sh("kill -KILL $$")},
                          {"late.cgi", plain("printf said; exit 4")},
                          {"cut.cgi", sh("printf 'Content-Type: a/b\\nContent-Length: 100\\n\\nabc'; exit 1")}]),
    {502, _, _} = get(Port, "/exit.cgi"),
    {502, _, _} = get(Port, "/kill.cgi"),
    {200, _, <<"said">>} = get(Port, "/late.cgi"),
    %% The client must see that the response is incomplete.
    {200, _, {cut, <<"abc">>}} = get(Port, "/cut.cgi"),
    no_process_left(filename:join(yucan_yaws_site:folder(Config), "www")).

%% RFC 9112, 8: an incomplete response of unknown length has no last chunk. RFC 9113, 8.1: its stream is reset. After any other exit status the
%% response may be complete: PHP exits with 255 after an error that the page shows.
killed(Config) ->
    Later = fun(Last) -> plain(["printf part; sleep 0.3; printf more; ", Last]) end,
    Port = start(Config, [{"kill.cgi", Later("kill -KILL $$")}, {"child.cgi", Later("sh -c 'kill -SEGV $$'")}, {"at_once.cgi", plain("printf part; kill -KILL $$")},
                          {"own.cgi", Later("exit 3")}, {"php.cgi", Later("exit 255")}]),
    ok = logger:add_handler(?MODULE, yucan_test_logger, #{level => error, config => #{pid => self()}}),
    try
        [begin
             {Name, {200, _, {cut, <<"partmore">>}}} = {Name, get(Port, "/" ++ Name)},
             {Name, {reset, _}} = {Name, over_h2(Port, Name)}
         end || Name <- ["kill.cgi", "child.cgi"]],
        true = case get(Port, "/at_once.cgi") of {502, _, _} -> true; {200, _, Body} -> Body =:= {cut, <<"part">>} end,
        [begin
             {Name, {200, _, <<"partmore">>}} = {Name, get(Port, "/" ++ Name)},
             {Name, {200, _, <<"partmore">>}} = {Name, over_h2(Port, Name)}
         end || Name <- ["own.cgi", "php.cgi"]],
        %% The server has not crashed; it has only logged the failure.
        [] = [Event || {logged, Event} <- element(2, process_info(self(), messages))]
    after
        logger:remove_handler(?MODULE)
    end.

%% The log explains why the client got 502.
reasons(Config) ->
    Closed = integer_to_list(test_support:free_port()),
    {Listen, Address} = rubbish_server(<<1, 6, 0, 2, 0, 1, 0, 0, "x">>),
    Port = start(Config, ["revproxy = /p http://127.0.0.1:", Closed, "\nphp_handler = <fcgi, ", Address, ">\n"],
                 [{"empty.cgi", sh("printf '\\nContent-Type: a/b\\n\\nx'")}, {"many.cgi", sh("yes 'A: b' | head -n 5000; echo")},
                  {"status.cgi", sh("printf 'Status: 103\\n\\n'")}, {"length.cgi", sh("printf 'Location: /\\nContent-Length: x\\n\\n'")}, {"a.php", ""}]),
    ok = logger:add_handler(?MODULE, yucan_test_logger, #{level => warning, config => #{pid => self()}}),
    try
        [begin
             {502, _, _} = get(Port, "/" ++ Name),
             receive {logged, #{msg := {Format, Arguments}}} -> {Name, true} = {Name, lists:suffix(Said, lists:flatten(io_lib:format(Format, Arguments)))}
             after 10000 * beamway_runner:slowness() -> error({not_logged, Name})
             end
         end || {Name, Said} <- [{"empty.cgi", "/empty.cgi: its header begins with an empty line"}, {"many.cgi", "/many.cgi: its header has too many lines"},
                                 {"status.cgi", ": its header has the status \"103\"; expected a number from 200 to 599"},
                                 {"length.cgi", ": its header has the Content-Length \"x\"; expected one number"},
                                 {"a.php", ": it broke the protocol of FastCGI ({request_id,2})"},
                                 {"p/x", "revproxy http://127.0.0.1:" ++ Closed ++ ": cannot connect: connection refused"}]]
    after
        logger:remove_handler(?MODULE),
        gen_tcp:close(Listen)
    end.

over_h2(Port, Name) ->
    Socket = yucan_h2_client:connect(Port),
    Fields = [{<<":method">>, <<"GET">>}, {<<":scheme">>, <<"http">>}, {<<":authority">>, <<"h">>}, {<<":path">>, list_to_binary("/" ++ Name)}],
    ok = yucan_h2_client:send(Socket, yucan_h2_client:headers(1, 1, Fields, <<>>)),
    Response = yucan_h2_client:response(Socket, 1),
    ok = gen_tcp:close(Socket),
    Response.

hangs(Config) ->
    Port = hasty(Config, [{"hang.cgi", sh(["trap '' TERM INT HUP; while :; do sleep ", nap(1), "; done"])}]),
    {504, _, _} = get(Port, "/hang.cgi"),
    ok = no_process_left(nap(1)),
    no_process_left(script(Config, "hang.cgi")).

hangs_after_the_head(Config) ->
    Port = hasty(Config, [{"hang.cgi", plain(["echo one; sleep ", nap(2)])}]),
    {200, _, {cut, <<"one\n">>}} = get(Port, "/hang.cgi"),
    no_process_left(nap(2)).

%% Only the time without output is limited, not the total time: the script takes seven seconds, and the limit is five seconds without output.
slow_but_not_silent(Config) ->
    Port = start(Config, 5 * beamway_runner:slowness(), "", [{"slow.cgi", plain("for i in 1 2 3 4 5 6 7; do echo $i; sleep " ++ integer_to_list(beamway_runner:slowness()) ++ "; done")}]),
    {200, _, <<"1\n2\n3\n4\n5\n6\n7\n">>} = get(Port, "/slow.cgi"),
    ok.

%% Child processes that keep the output open, or that are orphaned, are killed together with their script.
forks(Config) ->
    Port = start(Config, 5, "", [{"fork.cgi", plain(["sleep ", nap(3), " & (sleep ", nap(3), " &) ; echo done"])},
                                 {"closed.cgi", plain(["sleep ", nap(4), " >/dev/null 2>&1 </dev/null & echo done"])},
                                 {"bomb.cgi", sh(["for i in 1 2 3 4 5 6 7 8 9; do (trap '' TERM; sleep ", nap(5), " & sleep ", nap(5), ") & done; wait"])}]),
    {200, _, <<"done\n">>} = get(Port, "/fork.cgi"),
    {200, _, <<"done\n">>} = get(Port, "/closed.cgi"),
    {504, _, _} = get(Port, "/bomb.cgi"),
    [ok = no_process_left(nap(N)) || N <- [3, 4, 5]],
    ok.

client_leaves(Config) ->
    Port = start(Config, [{"wait.cgi", sh(["sleep ", nap(6)])}, {"talk.cgi", plain("while :; do echo x; sleep 0.1; done")},
                          {"over.cgi", sh(["echo 'Content-Type: text/plain'; echo 'Content-Length: 2'; echo; while :; do echo x; sleep 0.1; done"])}]),
    [begin
         Socket = yucan_yaws_client:send(Port, [Method, " /", Name, " HTTP/1.1\r\nhost: h\r\n\r\n"]),
         true = beamway_peer:wait_until(fun() -> yucan_cgi_run:running() =:= 1 end, 10000),
         ok = gen_tcp:close(Socket),
         ok = no_process_left(script(Config, Name)),
         true = beamway_peer:wait_until(fun() -> yucan_cgi_run:running() =:= 0 end, 10000)
     end || {Method, Name} <- [{"GET", "wait.cgi"}, {"GET", "talk.cgi"}, {"HEAD", "talk.cgi"}, {"GET", "over.cgi"}]],
    no_process_left(nap(6)).

%% A script is killed together with everything that it has started, even if no descriptor is left for another program.
without_descriptors(Config) ->
    Script = #{program => "/bin/sh", arguments => ["-c", lists:concat(["sleep ", nap(7), " & exec sleep ", nap(7)])], folder => proplists:get_value(priv_dir, Config),
               variables => [], body => none},
    {ok, Peer, _} = beamway_peer:start(inet_tcp, #{before_exec => "ulimit -n 64;"}),
    try
        ok = beamway_peer:run(Peer, fun() ->
            %% The first run loads all modules, which also needs descriptors.
            {ok, First} = yucan_cgi_run:open(Script),
            _ = yucan_cgi_run:close(First),
            {ok, Source} = yucan_cgi_run:open(Script),
            {emfile, [_ | _]} = take_descriptors([]),
            _ = yucan_cgi_run:close(Source),
            ok
        end),
        no_process_left(nap(7))
    after
        beamway_peer:stop(Peer)
    end.

take_descriptors(Files) ->
    case file:open("/dev/null", [read, raw]) of
        {ok, File} -> take_descriptors([File | Files]);
        {error, Reason} -> {Reason, Files}
    end.

%% No file is left behind if an HTTP/2 client cancels its stream or closes its connection, either
%% while its body arrives or while another server processes the request.
given_up(Config) ->
    {ok, Silent} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Behind} = inet:port(Silent),
    Port = start(Config, ["revproxy = / http://127.0.0.1:", integer_to_list(Behind), "\n"], []),
    Fields = [{<<":method">>, <<"POST">>}, {<<":scheme">>, <<"http">>}, {<<":authority">>, <<"h">>}, {<<":path">>, <<"/">>}, {<<"content-length">>, <<"160000">>}],
    Frame = fun(Fin) -> yucan_h2_client:frame(0, Fin, 1, binary:copy(<<"x">>, 16000)) end,
    Begin = [yucan_h2_client:headers(1, 0, Fields, <<>>) | [Frame(0) || _ <- lists:seq(1, 9)]],
    Asked = fun() -> {ok, _} = gen_tcp:accept(Silent, 20000 * beamway_runner:slowness()) end,
    Reset = fun(Socket) -> yucan_h2_client:send(Socket, yucan_h2_client:frame(3, 0, 1, <<8:32>>)) end,
    [begin
         Socket = yucan_h2_client:connect(Port),
         %% A body that is complete when it is first read needs no file.
         ok = yucan_h2_client:send(Socket, Begin),
         true = beamway_peer:wait_until(fun() -> length(files(Config)) =:= 1 end, 20000),
         ok = yucan_h2_client:send(Socket, Rest),
         _ = Reached(),
         [_] = files(Config),
         ok = GiveUp(Socket),
         ok = no_files_left(Config)
     end || {Rest, Reached} <- [{[], fun() -> ok end}, {[Frame(1)], Asked}], GiveUp <- [Reset, fun gen_tcp:close/1]],
    gen_tcp:close(Silent).

%% The fifth client gets 503, and the other four are served. The scripts exit only when they are told to, so the fifth request overlaps with the other
%% four.
too_many(Config) ->
    Go = filename:join(proplists:get_value(priv_dir, Config), "go"),
    Port = start(Config, [{"wait.cgi", plain(["echo in; while [ ! -e ", Go, " ]; do sleep 0.1; done; echo out"])}, {"quick.cgi", plain("echo quick")}]),
    Sockets = [yucan_yaws_client:send(Port, "GET /wait.cgi HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n") || _ <- [1, 2, 3, 4]],
    true = beamway_peer:wait_until(fun() -> yucan_cgi_run:running() =:= 4 end, 10000),
    {503, _, _} = get(Port, "/quick.cgi"),
    ok = file:write_file(Go, ""),
    [{200, _, <<"in\nout\n">>} = yucan_yaws_client:parse(yucan_yaws_client:receive_all(Socket)) || Socket <- Sockets],
    true = beamway_peer:wait_until(fun() -> yucan_cgi_run:running() =:= 0 end, 10000),
    {200, _, <<"quick\n">>} = get(Port, "/quick.cgi"),
    ok.

head_request(Config) ->
    Mark = filename:join(yucan_yaws_site:folder(Config), "mark"),
    Port = start(Config, [{"a.cgi", plain(["echo body; sleep 0.2; touch ", Mark])}]),
    {200, _, <<>>} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/a.cgi", method => "HEAD"}),
    %% The script was not killed before it had finished.
    true = beamway_peer:wait_until(fun() -> filelib:is_file(Mark) end, 10000),
    ok.

not_executable(Config) ->
    Port = start(Config, "appmods = </m, yucan_yaws_pages>\n", [{"a.cgi", "#!/no/such/interpreter\n"}]),
    File = yucan_yaws_site:write(Config, "www/b.cgi", sh("exit 0")),
    ok = file:change_mode(File, 8#644),
    {502, _, _} = get(Port, "/a.cgi"),
    {502, _, _} = get(Port, "/b.cgi"),
    %% The system cannot even start this script.
    {502, _, _} = get(Port, "/m/never_starts"),
    ok.

shell_characters(Config) ->
    Mark = filename:join(yucan_yaws_site:folder(Config), "pwned"),
    Name = "a$(touch pwned).cgi",
    Port = start(Config, [{Name, plain("echo run")}, {"b c.cgi", plain("echo \"$0\"")}, {"q.cgi", plain("echo \"$QUERY_STRING\"")}]),
    {502, _, _} = get(Port, "/a$(touch%20pwned).cgi"),
    {200, _, _} = get(Port, "/b%20c.cgi"),
    {200, _, <<"$(touch", _/binary>>} = get(Port, "/q.cgi?$(touch%20pwned);`touch%20pwned`"),
    false = filelib:is_file(Mark),
    false = filelib:is_file(filename:join([yucan_yaws_site:folder(Config), "www", "pwned"])),
    ok.

%% A script that a module calls gets the same variables and limits as a script that is found by its path.
called(Config) ->
    Port = start(Config, "max_body_size = 100000\nappmods = </m, yucan_yaws_pages>\n<auth>\ndir = /m\nrealm = r\nuser = joe:pw\n</auth>\n",
                 [{"who.cgi", plain("echo \"$REMOTE_USER $AUTH_TYPE $HTTP_AUTHORIZATION\"; wc -c")}]),
    Post = fun(Size) ->
        yucan_yaws_client:request(#{port => Port, host => "h", target => "/m/called", method => "POST", body => binary:copy(<<"x">>, Size),
                                    headers => [{"authorization", ["Basic ", base64:encode("joe:pw")]}]})
    end,
    {200, _, <<"joe Basic \n100000\n">>} = Post(100000),
    {413, _, _} = Post(100001),
    ok.

many_at_once(Config) ->
    Port = start(Config, [{"a.cgi", plain("echo $QUERY_STRING")}]),
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {self(), [ask(Port, lists:concat([N, "-", M]), erlang:monotonic_time(second) + 100 * beamway_runner:slowness()) || M <- lists:seq(1, 10)]} end) || N <- lists:seq(1, 8)],
    [receive {Pid, Results} -> [ok] = lists:usort(Results) after 120000 * beamway_runner:slowness() -> error(timeout) end || Pid <- Pids],
    no_process_left(script(Config, "a.cgi")).

%% At most four scripts run at once, so a client may have to repeat its request several times.
ask(Port, Word, Deadline) ->
    Expected = list_to_binary(Word ++ "\n"),
    case get(Port, "/a.cgi?" ++ Word) of
        {200, _, Expected} -> ok;
        {503, _, _} ->
            true = erlang:monotonic_time(second) < Deadline,
            receive after 50 -> ask(Port, Word, Deadline) end
    end.

%% What is cached about a path for one site does not apply to another site, and a new configuration takes effect immediately.
scripts_of_two_sites(Config) ->
    ok = file:change_mode(yucan_yaws_site:write(Config, "www/a.cgi", plain("echo ran")), 8#755),
    Directives = fun(Allowed) -> ["docroot = www\nallowed_scripts = ", Allowed, "\n"] end,
    Port = yucan_yaws_site:start_text(Config, [yucan_yaws_site:server("h", Directives("cgi")), yucan_yaws_site:server("other", Directives("php"))], []),
    Status = fun(Host) -> element(1, yucan_yaws_client:get(Port, Host, "/a.cgi")) end,
    [200, 403, 200] = [Status(Host) || Host <- ["h", "other", "h"]],
    ok = yucan_yaws_site:reload(Config, Directives("php")),
    403 = Status("h").

%% ---- broken FastCGI applications

%% Tests max_body_size with a length and with chunks, in memory and on disk.
body_bound(Config) ->
    Port = start(Config, "allowed_scripts = cgi\nmax_body_size = 100000\n", [{"count.cgi", plain("wc -c")}]),
    [{Size, Status} = {Size, element(1, post(Port, "/count.cgi", binary:copy(<<"x">>, Size)))} || {Size, Status} <- [{100000, 200}, {100001, 413}, {10, 200}]].

fcgi_broken(Config) ->
    Answers = [<<>>, <<"HTTP/1.1 400 Bad Request\r\n\r\n">>, binary:copy(<<0>>, 1000), <<1, 6, 0, 1, 255, 255, 0, 0, "short">>,
               <<1, 6, 0, 2, 0, 1, 0, 0, "x">>, <<1, 3, 0, 1, 0, 8, 0, 0, 0:32, 0, 0:24>>, <<1, 3, 0, 1, 0, 8, 0, 0, 0:32, 2, 0:24>>,
               <<1, 6, 0, 1, 0, 5, 0, 0, "hello", 1, 3, 0, 1, 0, 8, 0, 0, 0:64>>],
    [begin
         {Listen, Address} = rubbish_server(Answer),
         Port = start(Config, "php_handler = <fcgi, " ++ Address ++ ">\n", [{"a.php", ""}]),
         {Answer, 502} = {Answer, element(1, get(Port, "/a.php"))},
         ok = yucan_yaws_site:stop(),
         ok = gen_tcp:close(Listen)
     end || Answer <- Answers],
    %% The application sends a head and then closes the connection, which the client notices.
    {Listen, Address} = rubbish_server(<<1, 6, 0, 1, 0, 22, 0, 0, "Content-Type: a/b\n\nabc", 1, 6, 0, 1, 0, 9, 0, 0, "de">>),
    Port = start(Config, "php_handler = <fcgi, " ++ Address ++ ">\n", [{"a.php", ""}]),
    {502, _, _} = get(Port, "/a.php"),
    gen_tcp:close(Listen).

%% Data after the end of an application's response is not part of any response, whether it arrives together with the end or later.
fcgi_says_more(Config) ->
    Answer = <<1, 6, 0, 1, 0, 22, 0, 0, "Content-Type: a/b\n\nabc", 1, 3, 0, 1, 0, 8, 0, 0, 0:64>>,
    More = <<1, 6, 0, 1, 0, 4, 0, 0, "more">>,
    {Listen, Address} = rubbish_server(<<Answer/binary, More/binary>>),
    Port = start(Config, "php_handler = <fcgi, " ++ Address ++ ">\n", [{"a.php", ""}]),
    {200, _, <<"abc">>} = get(Port, "/a.php"),
    ok = gen_tcp:close(Listen),
    {ok, Own} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
    {ok, Number} = inet:port(Own),
    {ok, Source} = yucan_fcgi_client:open({{127, 0, 0, 1}, Number}, true, [{<<"REQUEST_METHOD">>, <<"GET">>}], none, fun(_) -> ok end),
    {ok, Socket} = gen_tcp:accept(Own, 20000),
    {ok, _} = gen_tcp:recv(Socket, 0, 20000),
    Came = fun(Count) -> true = beamway_peer:wait_until(fun() -> process_info(self(), message_queue_len) =:= {message_queue_len, Count} end, 20000) end,
    ok = gen_tcp:send(Socket, Answer),
    Came(1),
    ok = gen_tcp:send(Socket, More),
    Came(2),
    {data, _, Answered} = yucan_fcgi_client:read(Source, 20000),
    {done, _} = yucan_fcgi_client:read(Answered, 20000),
    {message_queue_len, 0} = process_info(self(), message_queue_len),
    %% The connection is not returned to the pool.
    {error, closed} = gen_tcp:recv(Socket, 0, 20000),
    gen_tcp:close(Own).

%% A newline in the text that an application writes to its standard error does not start a new log line.
fcgi_log(Config) ->
    Said = "user said: a\r\n=ERROR REPORT==== forged",
    {Listen, Address} = rubbish_server(<<1, 7, 0, 1, 0, (length(Said)), 0, 0, (list_to_binary(Said))/binary,
                                         1, 6, 0, 1, 0, 22, 0, 0, "Content-Type: a/b\n\nabc", 1, 3, 0, 1, 0, 8, 0, 0, 0:64>>),
    Port = start(Config, "php_handler = <fcgi, " ++ Address ++ ">\n", [{"a.php", ""}]),
    Log = filename:join(proplists:get_value(priv_dir, Config), "fcgi_log"),
    ok = logger:add_handler(?FUNCTION_NAME, logger_std_h, #{config => #{file => Log}, formatter => {logger_formatter, #{single_line => false}}}),
    try
        {200, _, <<"abc">>} = get(Port, "/a.php"),
        ok = logger_std_h:filesync(?FUNCTION_NAME),
        {ok, Text} = file:read_file(Log),
        {_, _} = binary:match(Text, <<"user said: a">>),
        nomatch = re:run(Text, "^=ERROR REPORT==== forged", [multiline])
    after
        ok = logger:remove_handler(?FUNCTION_NAME),
        ok = gen_tcp:close(Listen)
    end.

%% If an application disconnects while a large body is being sent to it, the server does not crash, and the reader of the response reports it.
fcgi_leaves(Config) ->
    {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Listen),
    Body = {file, yucan_yaws_site:write(Config, "body", binary:copy(<<"x">>, 50000000)), 50000000},
    {ok, Source} = yucan_fcgi_client:open({{127, 0, 0, 1}, Port}, true, [], Body, fun(_) -> ok end),
    {monitors, [{process, Sender}]} = process_info(self(), monitors),
    Monitor = monitor(process, Sender),
    {ok, Application} = gen_tcp:accept(Listen, 20000),
    ok = gen_tcp:close(Application),
    %% `einval' if the socket was closed between two sends.
    receive {'DOWN', Monitor, process, Sender, Reason} -> {reason, true} = {reason, lists:member(Reason, [closed, einval])}
    after 20000 * beamway_runner:slowness() -> error(still_sends)
    end,
    {error, closed, _} = yucan_fcgi_client:read(Source, 20000),
    gen_tcp:close(Listen).

fcgi_absent(Config) ->
    Port = start(Config, "php_handler = <fcgi, unix:/no/such/socket>\n", [{"a.php", ""}]),
    {502, _, _} = get(Port, "/a.php"),
    {404, _, _} = get(Port, "/b.php"),
    ok.

%% Starts a server that waits for data from each client, sends a fixed text, and disconnects.
rubbish_server(Answer) -> rubbish_server(Answer, {127, 0, 0, 1}, "127.0.0.1").

rubbish_server(Answer, Ip, Name) ->
    {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {ip, Ip}]),
    {ok, Port} = inet:port(Listen),
    _ = spawn(fun() -> say(Listen, Answer) end),
    {Listen, Name ++ ":" ++ integer_to_list(Port)}.

say(Listen, Answer) ->
    case gen_tcp:accept(Listen) of
        {ok, Socket} ->
            _ = gen_tcp:recv(Socket, 0, 5000),
            _ = gen_tcp:send(Socket, Answer),
            _ = gen_tcp:shutdown(Socket, write),
            _ = gen_tcp:recv(Socket, 0, 1000),
            ok = gen_tcp:close(Socket),
            say(Listen, Answer);
        {error, closed} -> ok
    end.

%% ---- another server behind this one

revproxy(Config) ->
    Behind = yucan_yaws_site:write(Config, "behind.conf",
                                   yucan_yaws_site:server("b", "docroot = behind\n<redirect>\n/app/old == /app/new\n</redirect>\n")),
    [begin
         File = yucan_yaws_site:write(Config, "behind/app/" ++ Name, Text),
         ok = file:change_mode(File, 8#755)
     end || {Name, Text} <- [{"sum.cgi", plain("cksum")}, {"env.cgi", plain("env | sort; exec sleep 0.2")},
                             {"big.cgi", plain("head -c 5000000 /dev/zero")}, {"s.cgi", sh("printf 'Status: 404 x\\nContent-Length: 2\\nContent-Type: a/b\\n\\nno'")}]],
    {ok, Options} = yucan_yaws_config:load(Behind),
    {ok, _} = yucan:start(Options#{name => yucan_behind}),
    Target = "http://127.0.0.1:" ++ integer_to_list(yucan:port(yucan_behind)) ++ "/app/",
    Port = start(Config, "revproxy = /in " ++ Target ++ "\n", []),
    try
        {200, _, Env} = yucan_yaws_client:request(#{port => Port, host => "h:9", target => "/in/env.cgi/x%20y?z=%20", headers => [{"X-Forwarded-For", "1.2.3.4"}]}),
        Lines = string:split(binary_to_list(Env), "\n", all),
        [{Line, true} = {Line, lists:member(Line, Lines)}
         || Line <- ["HTTP_X_FORWARDED_FOR=1.2.3.4, 127.0.0.1", "HTTP_X_FORWARDED_HOST=h:9", "HTTP_X_FORWARDED_PROTO=http", "QUERY_STRING=z=%20"]],
        Body = crypto:strong_rand_bytes(3000000),
        Sum = list_to_binary(os:cmd("cksum <" ++ yucan_yaws_site:write(Config, "body", Body))),
        {200, _, Sum} = post(Port, "/in/sum.cgi", Body),
        {200, _, Big} = get(Port, "/in/big.cgi"),
        5000000 = byte_size(Big),
        {404, _, <<"no">>} = get(Port, "/in/s.cgi"),
        {200, _, <<>>} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/in/big.cgi", method => "HEAD"}),
        {302, Headers, _} = get(Port, "/in/old"),
        <<"http://h/in/new">> = proplists:get_value(<<"location">>, Headers),
        {404, _, _} = get(Port, "/inside"),
        ok
    after
        yucan:stop(yucan_behind)
    end.

revproxy_broken(Config) ->
    Cases = [{<<>>, 502}, {<<"rubbish\r\n\r\n">>, 502}, {<<"HTTP/1.1 200 OK\r\nBad Header: x\r\n\r\n">>, 502},
             {<<"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 10\r\n\r\nabc">>, 200},
             {<<"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n">>, any},
             {<<"HTTP/1.1 404 Not Found\r\nStatus: 200 OK\r\nContent-Length: 2\r\n\r\nno">>, 404},
             {<<"HTTP/1.1 201 Created\r\nStatus: ready\r\nContent-Length: 2\r\n\r\nok">>, 201},
             {<<"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok">>, 201}],
    [begin
         {Listen, Address} = rubbish_server(Answer),
         Port = start(Config, "revproxy = / http://" ++ Address ++ "\n", []),
         {Status, _, Body} = get(Port, "/x"),
         {Answer, true} = {Answer, Status =:= Expected orelse Expected =:= any},
         %% The client can tell that a response was cut off.
         true = Status =/= 200 orelse element(1, Body) =:= cut,
         ok = yucan_yaws_site:stop(),
         ok = gen_tcp:close(Listen)
     end || {Answer, Expected} <- Cases],
    Port = start(Config, "revproxy = / http://127.0.0.1:1\n", []),
    {502, _, _} = get(Port, "/x"),
    ok.

%% The path that is forwarded is the one by which the proxy was selected: it is in canonical form,
%% and only the part below the prefix is sent.
revproxy_path(Config) ->
    {Listen, Address} = told_server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    Port = start(Config, ["revproxy = /in http://", Address, "/base\nrevproxy = /\x{c3}\x{a9}/b/ http://", Address, "/\n"], []),
    [begin
         {Target, 200} = {Target, element(1, get(Port, Target))},
         [<<"GET ", Asked/binary>> | _] = told(),
         {Target, Expected} = {Target, binary_to_list(hd(binary:split(Asked, <<" ">>)))}
     end || {Target, Expected} <- [{"/in/x", "/base/x"}, {"/in", "/base"}, {"/in/", "/base/"}, {"/%69n/x", "/base/x"}, {"//in/x?q=//", "/base/x?q=//"},
                                   {"/in/a//b/./c/%2e%2e/d", "/base/a/b/d"}, {"/in/a%20b%2bc%3f", "/base/a%20b%2Bc%3F"}, {"/y/../in/%7Eme", "/base/~me"},
                                   {"/%c3%a9/b/x", "/x"}, {"/%C3%A9/b", "/"}]],
    [{Target, 404} = {Target, element(1, get(Port, Target))} || Target <- ["/in//../admin", "/in/../admin", "/in/%2e%2e/admin", "/in/x/../../admin"]],
    [{Target, 400} = {Target, element(1, get(Port, Target))} || Target <- ["/in/..%2fadmin", "/in/%2e%2e%5cadmin", "/in/../../admin"]],
    gen_tcp:close(Listen).

%% RFC 9110, 7.6.1: headers that are listed in Connection are not forwarded in either direction.
revproxy_hops(Config) ->
    {Listen, Address} = told_server("HTTP/1.1 200 OK\r\nConnection: close, X-Own\r\nX-Own: 1\r\nX-Other: 2\r\nContent-Length: 2\r\n\r\nok"),
    Port = start(Config, ["revproxy = / http://", Address, "/\n"], []),
    {200, Headers, <<"ok">>} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/",
                                                           headers => [{"Connection", "X-Hop,\tX-ALSO"}, {"X-Hop", "1"}, {"x-also", "2"}, {"X-Stays", "3"}]}),
    Lines = [string:lowercase(Line) || Line <- told()],
    [{Line, Is} = {Line, lists:member(Line, Lines)}
     || {Line, Is} <- [{<<"x-hop: 1">>, false}, {<<"x-also: 2">>, false}, {<<"x-stays: 3">>, true}, {<<"connection: close">>, true}]],
    [undefined, <<"2">>] = [proplists:get_value(Name, Headers) || Name <- [<<"x-own">>, <<"x-other">>]],
    gen_tcp:close(Listen).

%% The server behind this one interprets an encoded slash, provided that no decision here depends on the path. RabbitMQ's first virtual host is %2F.
revproxy_slash(Config) ->
    {Listen, Address} = told_server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    Proxy = ["revproxy = /api http://", Address, "/api\n"],
    Status = fun(Port, Target) -> element(1, yucan_yaws_client:request(#{port => Port, host => "h", target => Target})) end,
    Port = start(Config, [Proxy, "alias = /api/own share\n<redirect>\n/api/gone == 410\n</redirect>\n"], []),
    [begin
         {Target, 200} = {Target, Status(Port, Target)},
         [<<"GET ", Asked/binary>> | _] = told(),
         {Target, Expected} = {Target, binary_to_list(hd(binary:split(Asked, <<" ">>)))}
     end || {Target, Expected} <- [{"/api/queues/%2F/q", "/api/queues/%2F/q"}, {"/api/a%2fb%20c?x=%2f", "/api/a%2Fb%20c?x=%2f"}]],
    [{Target, 400} = {Target, Status(Port, Target)} || Target <- ["/api%2Fx", "/x%2F", "/api/..%2Fx", "/api/x%2F..", "/api/own%2Fx", "/api/gone%2Fx", "/api/%2F%00", "/api/%2F%5C"]],
    ok = yucan_yaws_site:stop(),
    Guarded = start(Config, [Proxy, "<auth>\ndir = /api/secret\nrealm = r\nuser = joe:pw\n</auth>\n"], []),
    400 = Status(Guarded, "/api/secret%2Fx"),
    gen_tcp:close(Listen).

%% A client cannot forge the proxy's headers, not even with underscores in their names, which many servers convert to the same variables.
revproxy_names(Config) ->
    {Listen, Address} = told_server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    Port = start(Config, ["revproxy = / http://", Address, "/\n"], []),
    {200, _, _} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/",
        headers => [{Name, "6.6.6.6"} || Name <- ["X_Forwarded_For", "x-forwarded_proto", "Forwarded", "X-Real-IP", "X-Forwarded-Port", "X-Forwarded-For", "X-Stays"]]}),
    ["x-forwarded-for: 6.6.6.6, 127.0.0.1", "x-forwarded-host: h", "x-forwarded-proto: http", "x-real-ip: 127.0.0.1", "x-stays: 6.6.6.6"] =
        lists:sort([Line || Line <- [string:lowercase(binary_to_list(Line)) || Line <- told()], lists:prefix("x", Line) orelse lists:prefix("forwarded", Line)]),
    gen_tcp:close(Listen).

%% RFC 9110, 8.6: if requests with a method normally have a body, a request without a body has Content-Length: 0.
revproxy_no_body(Config) ->
    {Listen, Address} = told_server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    Port = start(Config, ["revproxy = / http://", Address, "/\n"], []),
    [begin
         {200, _, _} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/", method => Method, headers => Headers}),
         {Method, Expected} = {Method, [Line || Line <- told(), string:prefix(string:lowercase(Line), "content-length") =/= nomatch]}
     end || {Method, Headers, Expected} <- [{"POST", [{"Content-Length", "0"}], [<<"content-length: 0">>]}, {"PUT", [], [<<"content-length: 0">>]}, {"PATCH", [], [<<"content-length: 0">>]},
                                            {"DELETE", [{"Content-Length", "0"}], [<<"content-length: 0">>]}, {"GET", [], []}, {"DELETE", [], []}]],
    gen_tcp:close(Listen).

%% A location on the other server is mapped to one below the prefix on this server, without the path to which the prefix is mapped. A location on a
%% third server is not changed.
revproxy_elsewhere(Config) ->
    [begin
         {Listen, Address} = told_server(["HTTP/1.1 302 Found\r\nLocation: ", Place, "\r\nContent-Length: 0\r\n\r\n"]),
         Port = start(Config, ["revproxy = /in http://", Address, Base, "\n"], []),
         {302, Headers, _} = get(Port, "/in/x"),
         Expected = proplists:get_value(<<"location">>, Headers),
         ok = yucan_yaws_site:stop(),
         ok = gen_tcp:close(Listen)
     end || {Base, Place, Expected} <- [{"/", "//a.example/x", <<"//a.example/x">>}, {"/", "http://a.example/x", <<"http://a.example/x">>}, {"/", "/x", <<"http://h/in/x">>},
                                        {"/base", "/base/x?y", <<"http://h/in/x?y">>}, {"/base/", "/base?y", <<"http://h/in?y">>}, {"/base", "/basement", <<"http://h/in/basement">>}]].

%% One name has only an IPv6 address, and one has an IPv4 and an IPv6 address; the application listens on IPv6.
over_ipv6(Config) ->
    case gen_tcp:listen(0, [{ip, ?LOOPBACK6}]) of
        {ok, Socket} ->
            ok = gen_tcp:close(Socket),
            named_over_ipv6(Config);
        {error, Reason} -> {skip, io_lib:format("this host has no ::1 (~p)", [Reason])}
    end.

named_over_ipv6(Config) ->
    Lookup = inet_db:res_option(lookup),
    ok = inet_db:set_lookup([file | Lookup]),
    Addresses = [{?LOOPBACK6, ["six.test", "both.test"]}, {{127, 0, 0, 1}, ["both.test"]}],
    [ok = inet_db:add_host(Ip, Names) || {Ip, Names} <- Addresses],
    Http = <<"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok">>,
    Fcgi = <<1, 6, 0, 1, 0, 21, 0, 0, "Content-Type: a/b\n\nok", 1, 3, 0, 1, 0, 8, 0, 0, 0:64>>,
    try
        [begin
             {Listen, Address} = rubbish_server(Answer, ?LOOPBACK6, Name),
             Port = start(Config, [Before, Address, After, "\n"], [{"a.php", ""}]),
             {Name, 200, _, <<"ok">>} = erlang:insert_element(1, get(Port, "/a.php"), Name),
             ok = yucan_yaws_site:stop(),
             ok = gen_tcp:close(Listen)
         end || {Answer, Before, After} <- [{Http, "revproxy = / http://", "/"}, {Fcgi, "php_handler = <fcgi, ", ">"}],
                Name <- ["six.test", "both.test", "[::1]"]]
    after
        [ok = inet_db:del_host(Ip) || {Ip, _} <- Addresses],
        ok = inet_db:set_lookup(Lookup)
    end.

%% Starts a server that sends a fixed text, and passes the request that it has received to this
%% process.
told_server(Answer) ->
    {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Listen),
    Self = self(),
    _ = spawn_link(fun() -> tell(Listen, Answer, Self) end),
    {Listen, "127.0.0.1:" ++ integer_to_list(Port)}.

tell(Listen, Answer, Pid) ->
    case gen_tcp:accept(Listen) of
        {ok, Socket} ->
            Head = yucan_yaws_site:receive_until(Socket, <<"\r\n\r\n">>),
            Pid ! {told, binary:split(Head, <<"\r\n">>, [global])},
            ok = gen_tcp:send(Socket, Answer),
            ok = gen_tcp:close(Socket),
            tell(Listen, Answer, Pid);
        {error, closed} -> ok
    end.

told() -> receive {told, Lines} -> Lines after 20000 * beamway_runner:slowness() -> error(not_asked) end.

%% ---- nothing is left behind

script(Config, Name) -> filename:join([yucan_yaws_site:folder(Config), "www", Name]).

%% Checks that no process on the machine except a VM has the word in its arguments. Processes that are being killed get some time to exit.
no_process_left(Word) ->
    true = beamway_peer:wait_until(fun() -> processes_with(Word) =:= [] end, 20000),
    ok.

processes_with(Word) ->
    Pattern = list_to_binary(Word),
    [Text || Name <- filelib:wildcard("/proc/[0-9]*/cmdline"), {ok, Text} <- [file:read_file(Name)],
             binary:match(Text, Pattern) =/= nomatch, not is_vm(Text)].

%% The VM is recognized only by its program name, because directories may also be called beamway.
is_vm(Text) -> filename:basename(hd(binary:split(Text, <<0>>))) =:= <<"beam.smp">>.

no_files_left(Config) ->
    true = beamway_peer:wait_until(fun() -> files(Config) =:= [] end, 10000),
    ok.

files(Config) -> filelib:wildcard(filename:join(proplists:get_value(bodies, Config), "*/*")).

