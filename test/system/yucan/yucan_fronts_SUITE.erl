%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests nginx and haproxy as reverse proxies ("fronts") in front of yucan. For each of about two hundred inputs, most of them designed
%% to be misinterpreted, the requests that the front logs as forwarded must be the ones that yucan received, in the same order and with the
%% same methods, targets, hosts and bodies. It is harmless if a front forwards a request that yucan then rejects, but a request that only one of
%% them recognizes is dangerous (request smuggling). With these two fronts and varnish, a response that the handler sends before the body
%% has arrived must also reach the client. Run by `test/system/run fronts'.
-module(yucan_fronts_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([nginx/1, haproxy/1, early_nginx/1, early_haproxy/1, early_varnish/1]).
-export([handle/2]).

-include_lib("common_test/include/ct.hrl").

-define(WAIT_MS, (20000 * beamway_runner:slowness())).
%% Fronts time out incomplete requests after one second. A client waits longer, because some operations of the fronts are slow.
-define(PATIENCE_MS, 3000).
%% The number of early responses, and the size of the request body that each of them does not wait for.
-define(EARLY, 15).
-define(EARLY_BYTES, 20000000).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [nginx, haproxy, early_nginx, early_haproxy, early_varnish].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

nginx(Config) ->
    fronted(Config, "/usr/sbin/nginx", fun(File) -> ["-c", File, "-e", "stderr"] end, fun nginx/4, fun from_nginx/1).

haproxy(Config) ->
    fronted(Config, "/usr/sbin/haproxy", fun(File) -> ["-db", "-f", File] end, fun haproxy/4, fun from_haproxy/1).

%% The configuration says where the front listens, what it logs about each request, and where it forwards requests.
nginx(Folder, Socket, Log, Port) ->
    ["user root;\ndaemon off;\nmaster_process off;\npid ", Folder, "/nginx.pid;\nevents {}\nhttp {\n",
     [[Name, "_temp_path ", Folder, "/", Name, ";\n"] || Name <- ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]],
     "log_format seen escape=json '{\"m\":\"$request_method\",\"u\":\"$request_uri\",\"h\":\"$http_host\",\"s\":\"$upstream_status\",\"b\":\"$request_body\"}';\n"
     "access_log syslog:server=127.0.0.1:", integer_to_list(Log), ",nohostname seen;\n"
     "client_body_buffer_size 1m;\nclient_header_timeout 1s;\nclient_body_timeout 1s;\nproxy_ignore_client_abort on;\n"
     "upstream yucan { server 127.0.0.1:", integer_to_list(Port), "; keepalive 4; }\n"
     "server { listen unix:", Socket, ";\nlocation / { proxy_pass http://yucan; proxy_http_version 1.1; proxy_set_header Connection \"\";"
     " proxy_set_header Host $http_host; } } }\n"].

haproxy(_, Socket, Log, Port) ->
    ["global\n  tune.http.logurilen 20000\n  log 127.0.0.1:", integer_to_list(Log), " len 65000 format raw local0\n"
     "defaults\n  mode http\n  timeout connect 5s\n  timeout client 1s\n  timeout server 20s\n  timeout http-request 1s\n  timeout http-keep-alive 1s\n"
     "  option http-buffer-request\n  http-reuse always\n"
     "frontend front\n  bind unix@", Socket, "\n  log global\n  http-request set-var(txn.host) req.hdr(host),hex\n  http-request set-var(txn.body) req.body,hex\n"
     "  log-format \"%HM %HU %ST %s h%[var(txn.host)] b%[var(txn.body)]\"\n  default_backend behind\n"
     "backend behind\n  server yucan 127.0.0.1:", integer_to_list(Port), "\n"].

%% Returns the {Method, Target, Host, Body} of a request that was forwarded and answered with 200.
from_nginx(Line) ->
    [_, Json] = binary:split(Line, <<"{">>),
    %% nginx logs bytes that are not UTF-8 unchanged.
    {Fields} = jiffy:decode(unicode:characters_to_binary(<<"{", Json/binary>>, latin1)),
    Field = fun(Name) -> unicode:characters_to_binary(proplists:get_value(Name, Fields), utf8, latin1) end,
    passed_on(Field(<<"s">>), {Field(<<"m">>), with_path(Field(<<"u">>)), Field(<<"h">>), Field(<<"b">>)}).

%% For `http://a?b' nginx logs `?b' but forwards `/?b', which is correct (RFC 9112, 3.2.1).
with_path(<<"?", _/binary>> = Query) -> <<"/", Query/binary>>;
with_path(Target) -> Target.

from_haproxy(Line) ->
    [Method, Target, Status, Server, <<"h", Host/binary>>, <<"b", Body/binary>>] = binary:split(string:trim(Line), <<" ">>, [global]),
    case Server of
        <<"yucan">> -> passed_on(Status, {Method, unescaped(Target), unhex(Host), unhex(Body)});
        _ -> none
    end.

%% In a target, haproxy's log replaces quotation marks, hashes and unprintable characters with `#' and two digits.
unescaped(<<"#", Hex:2/binary, Rest/binary>>) -> <<(binary:decode_hex(Hex))/binary, (unescaped(Rest))/binary>>;
unescaped(<<C, Rest/binary>>) -> <<C, (unescaped(Rest))/binary>>;
unescaped(<<>>) -> <<>>.

unhex(<<"-">>) -> <<>>;
unhex(Hex) -> binary:decode_hex(Hex).

passed_on(<<"200">>, Request) -> {ok, Request};
passed_on(_, _) -> none.

%% ---- one front

fronted(Config, Program, Arguments, Configuration, Read) ->
    Folder = filename:join(?config(priv_dir, Config), filename:basename(Program)),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    {ok, Log} = gen_udp:open(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}, {recbuf, 1000000}]),
    {ok, LogPort} = inet:port(Log),
    Results = behind(Folder, Program, Arguments, fun(Socket, Port) -> Configuration(Folder, Socket, LogPort, Port) end, fun(Socket) ->
        [{Id, compared(Number, Bytes, Socket, Log, Read)} || {Number, {Id, Bytes}} <- lists:zip(lists:seq(1, length(inputs())), inputs())]
    end),
    gen_udp:close(Log),
    [] = [{Id, Difference} || {Id, {differ, _, _} = Difference} <- Results],
    Same = length([Id || {Id, {same, [_ | _]}} <- Results]),
    beamway_runner:say("     ~ts: ~b inputs, of which ~b were passed on and understood by both in the same way", [filename:basename(Program), length(Results), Same]),
    %% Without this check, the test could pass without comparing anything.
    true = Same > 40.

%% Runs the front with yucan behind it while the function runs.
behind(Folder, Program, Arguments, Configuration, Function) ->
    %% Socket paths must be short.
    Socket = "/tmp/yucan-" ++ filename:basename(Program) ++ ".sock",
    _ = file:delete(Socket),
    Port = yucan_test_server:start(yucan_behind_front, #{handler => {?MODULE, self()}}),
    File = filename:join(Folder, "conf"),
    ok = file:write_file(File, Configuration(Socket, Port)),
    Running = yucan_fpm:run(Program, Arguments(File)),
    try
        true = beamway_peer:wait_until(fun() -> element(1, gen_tcp:connect({local, Socket}, 0, [])) =:= ok end, 60000),
        Function(Socket)
    after
        ok = yucan_fpm:end_program(Running),
        yucan:stop(yucan_behind_front)
    end.

%% ---- answers before the body

early_nginx(Config) ->
    early(Config, "/usr/sbin/nginx", fun(File) -> ["-c", File, "-e", "stderr"] end, fun(Folder, Socket, Port) ->
        ["user root;\ndaemon off;\nmaster_process off;\npid ", Folder, "/nginx.pid;\nevents {}\nhttp {\naccess_log off;\nclient_max_body_size 0;\n",
         [[Name, "_temp_path ", Folder, "/", Name, ";\n"] || Name <- ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]],
         "server { listen unix:", Socket, "; location / { proxy_pass http://127.0.0.1:", integer_to_list(Port), "; proxy_http_version 1.1; } } }\n"]
    end).

early_haproxy(Config) ->
    early(Config, "/usr/sbin/haproxy", fun(File) -> ["-db", "-f", File] end, fun(_, Socket, Port) ->
        ["defaults\n  mode http\n  timeout connect 20s\n  timeout client 60s\n  timeout server 60s\n"
         "frontend front\n  bind unix@", Socket, "\n  default_backend behind\nbackend behind\n  server yucan 127.0.0.1:", integer_to_list(Port), "\n"]
    end).

early_varnish(Config) ->
    early(Config, "/usr/sbin/varnishd",
          fun(File) -> ["-F", "-j", "none", "-a", "/tmp/yucan-varnishd.sock", "-f", File, "-s", "malloc,64m", "-n", filename:join(filename:dirname(File), "work")] end,
          fun(_, _, Port) ->
              ["vcl 4.1;\nbackend default { .host = \"127.0.0.1\"; .port = \"", integer_to_list(Port), "\"; }\nsub vcl_recv { return (pass); }\n"]
          end).

%% The handler responds without reading a body that has not arrived yet, and each client must get that response.
early(Config, Program, Arguments, Configuration) ->
    Folder = filename:join(?config(priv_dir, Config), filename:basename(Program)),
    ok = filelib:ensure_dir(filename:join([Folder, "work", "x"])),
    Answers = behind(Folder, Program, Arguments, fun(Socket, Port) -> Configuration(Folder, Socket, Port) end, fun(Socket) ->
        [early_answer(Socket) || _ <- lists:seq(1, ?EARLY)]
    end),
    Counts = [{Answer, length([A || A <- Answers, A =:= Answer])} || Answer <- lists:usort(Answers)],
    beamway_runner:say("     ~ts: ~0tp", [filename:basename(Program), Counts]),
    [{{<<"HTTP/1.1 200 OK">>, true}, ?EARLY}] = Counts.

%% Returns the status line, and whether the whole response has arrived. As in HTTP clients, one process sends while another one reads.
early_answer(Path) ->
    {ok, Socket} = gen_tcp:connect({local, Path}, 0, [binary, {active, false}, {exit_on_close, false}], ?WAIT_MS),
    ok = gen_tcp:send(Socket, ["POST /early HTTP/1.1\r\nHost: early\r\nConnection: close\r\nContent-Length: ", integer_to_list(?EARLY_BYTES), "\r\n\r\n"]),
    Part = binary:copy(<<"x">>, 100000),
    Sender = spawn_link(fun() -> _ = [gen_tcp:send(Socket, Part) || _ <- lists:seq(1, ?EARLY_BYTES div byte_size(Part))] end),
    Answer = all(Socket, <<>>, erlang:monotonic_time(millisecond) + 30000),
    true = unlink(Sender),
    exit(Sender, kill),
    gen_tcp:close(Socket),
    {hd(binary:split(Answer, <<"\r\n">>)), binary:match(Answer, <<"answered early">>) =/= nomatch}.

inputs() ->
    [{Id, Bytes} || {Id, _, Bytes, _} <- yucan_probe_cases:smuggling() ++ yucan_probe_cases:malformed() ++ yucan_probe_cases:h1spec()]
        ++ [{Id, Bytes} || {Id, _, Bytes, _} <- yucan_corpus:requests()].

%% A last request on a separate connection marks the end: once it has been logged, all earlier requests have been logged as well.
compared(Number, Bytes, Socket, Log, Read) ->
    _ = asked(Socket, Bytes),
    Last = <<"/last/", (integer_to_binary(Number))/binary>>,
    <<"HTTP/1.1 200", _/binary>> = asked(Socket, ["GET ", Last, " HTTP/1.1\r\nHost: last\r\nConnection: close\r\n\r\n"]),
    Passed = logged(Last, Log, Read, []),
    case witnessed(Last, []) of
        Passed -> {same, Passed};
        Seen -> {differ, {passed_on, Passed}, {seen, Seen}}
    end.

asked(Path, Bytes) ->
    {ok, Socket} = gen_tcp:connect({local, Path}, 0, [binary, {active, false}, {exit_on_close, false}], ?WAIT_MS),
    _ = gen_tcp:send(Socket, Bytes),
    _ = gen_tcp:shutdown(Socket, write),
    Answer = all(Socket, <<>>, erlang:monotonic_time(millisecond) + ?PATIENCE_MS * beamway_runner:slowness()),
    gen_tcp:close(Socket),
    Answer.

all(Socket, Done, Deadline) ->
    case gen_tcp:recv(Socket, 0, max(0, Deadline - erlang:monotonic_time(millisecond))) of
        {ok, Data} -> all(Socket, <<Done/binary, Data/binary>>, Deadline);
        {error, _} -> Done
    end.

logged(Last, Log, Read, Done) ->
    {ok, {_, _, Line}} = gen_udp:recv(Log, 0, ?WAIT_MS),
    case Read(Line) of
        {ok, {_, Last, _, _}} -> lists:reverse(Done);
        {ok, Request} -> logged(Last, Log, Read, [Request | Done]);
        none -> logged(Last, Log, Read, Done)
    end.

witnessed(Last, Done) ->
    receive
        {witness, {_, Last, _, _}} -> lists:reverse(Done);
        {witness, Request} -> witnessed(Last, [Request | Done])
    after ?WAIT_MS -> error({not_seen, Last})
    end.

%% @doc The handler: responds to a request, and reports the request to the test.
-spec handle(yucan_req:req(), pid()) -> yucan_handler:response().
handle(Req, Test) ->
    case yucan_req:path(Req) =/= <<"/early">> andalso yucan_req:body(Req) of
        false -> {200, [], <<"answered early">>};
        {ok, Body} ->
            Test ! {witness, {yucan_req:method(Req), yucan_req:target(Req), yucan_req:header(<<"host">>, Req, <<>>), Body}},
            {200, [], <<"seen">>};
        {error, Reason} -> yucan_req:body_error(Reason)
    end.
