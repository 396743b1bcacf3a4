%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench http': requests a second of yucan beside yaws, mochiweb (which stands in for misultin, its fork that has ended), nginx with one worker,
%% Tornado, and the design of 2009 anew. All on the first processor, the load (wrk, 32 connections) on the second.
%%
%% `bin/beamway' runs this in an overlay (scripts/in-overlay), where the servers are installed. All are up for the whole run; those whose turn
%% it is not are idle. Each answers hello world without a log; Erlang's have one scheduler that does not spin.
-module(beamway_bench_http).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1, finish/2]).

-define(FIRST_PORT, 18090).
-define(CONNECTIONS, "32").

-type load() :: hello | close | browser | pipeline | file_1k | file_1m | upload.

%% @private
-spec options() -> [getopt:option_spec()].
options() -> [].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case os:find_executable("wrk") =/= false andalso erlang:system_info(logical_processors_available) of
        false -> {error, "wrk is not installed here; run it from a checkout, as root: bin/beamway bench http"};
        1 -> {error, "one processor is not enough: the load needs one of its own"};
        _ ->
            Default = case Speed of quick -> 1; full -> 5 end,
            {ok, #{repeats => proplists:get_value(repeats, Given, Default), seconds => case Speed of quick -> "1"; full -> "4" end}}
    end.

%% Who is measured with what.
-spec loads() -> [{atom(), [load()]}].
loads() ->
    [{yucan, [hello, close, browser, pipeline, file_1k, file_1m, upload]},
     {yaws, [hello, close, browser]},
     {mochiweb, [hello, close]},
     {nginx, [hello, close, browser, pipeline, file_1k, file_1m]},
     {tornado, [hello, close]},
     {yucan2009, [close]},
     {default_buffer, [upload]}].

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(Settings) ->
    [#{nodes => 0, contenders => [Name], directions => [none], measure => fun(none) -> measure(Name, Loads, Settings) end} || {Name, Loads} <- loads()].

measure(Name, Loads, #{seconds := Seconds}) ->
    #{Name := Port} = servers(),
    maps:from_list([{key(Load), wrk(Load, Port, Seconds)} || Load <- Loads]).

%% ---- servers

servers() ->
    case get(?MODULE) of
        undefined ->
            Servers = start_all(),
            undefined = put(?MODULE, Servers),
            Servers;
        Servers -> Servers
    end.

start_all() ->
    Folder = "/tmp/beamway_bench_http",
    ok = filelib:ensure_dir(filename:join([Folder, "root", "x"])),
    ok = file:write_file(filename:join([Folder, "root", "file_1k.bin"]), binary:copy(<<"x">>, 1024)),
    ok = file:write_file(filename:join([Folder, "root", "file_1m.bin"]), binary:copy(<<"x">>, 1048576)),
    Ports = [{Name, ?FIRST_PORT + N} || {N, {Name, _}} <- lists:zip(lists:seq(0, length(loads()) - 1), loads())],
    ok = beamway_bench:note("bench http: starting ~b servers", [length(Ports)]),
    _ = [beamway_bench_tools:open(os:find_executable("taskset"), ["-c", "0" | command(Name, Port, Folder)]) || {Name, Port} <- Ports],
    _ = [ok = wait(Name, Port, erlang:monotonic_time(millisecond) + 60000) || {Name, Port} <- Ports],
    maps:from_list(Ports).

command(yaws, Port, Folder) ->
    ok = compile_appmod(Folder),
    Conf = ["logdir = ", Folder, "\nebin_dir = ", Folder, "\nmax_connections = nolimit\nkeepalive_maxuses = nolimit\n<server localhost>\n  port = ", integer_to_list(Port),
            "\n  listen = 127.0.0.1\n  docroot = ", Folder, "/root\n  access_log = false\n  appmods = </, beamway_bench_yaws>\n</server>\n"],
    File = write(Folder, "yaws.conf", Conf),
    ["env", "HOME=" ++ Folder, "ERL_FLAGS=+S 1:1 +sbwt none", "yaws", "--conf", File, "--daemon", "--id", "bench"];
command(nginx, Port, Folder) ->
    Conf = ["worker_processes 1; daemon off; pid ", Folder, "/nginx.pid; error_log /dev/null;\nevents { worker_connections 4096; }\n",
            "http { access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; server { listen 127.0.0.1:", integer_to_list(Port), " backlog=1024; root ", Folder,
            "/root; location = / { default_type text/plain; return 200 \"hello world\\n\"; } } }\n"],
    ["nginx", "-c", write(Folder, "nginx.conf", Conf)];
command(tornado, Port, Folder) ->
    Program = "import tornado.ioloop, tornado.web, sys\n"
        "class Hello(tornado.web.RequestHandler):\n"
        "    def get(self):\n"
        "        self.set_header('Content-Type', 'text/plain')\n"
        "        self.write(b'hello world\\n')\n"
        "import logging; logging.getLogger('tornado.access').disabled = True\n"
        "tornado.web.Application([('/', Hello)]).listen(int(sys.argv[1]), '127.0.0.1')\n"
        "tornado.ioloop.IOLoop.current().start()\n",
    ["/usr/bin/python3", write(Folder, "hello.py", Program), integer_to_list(Port)];
command(Name, Port, Folder) ->
    Root = beamway_bench_nodes:root(),
    ["erl", "+S", "1:1", "+sbwt", "none", "-noinput", "-boot", "no_dot_erlang", "-pa", filename:join(Root, "bench/ebin"), filename:join(Root, "apps/yucan/ebin"),
     "-s", "beamway_bench_http_server", "start", atom_to_list(Name), integer_to_list(Port), filename:join(Folder, "root")].

write(Folder, Name, Text) ->
    File = filename:join(Folder, Name),
    ok = file:write_file(File, Text),
    File.

compile_appmod(Folder) ->
    Forms = [erl_parse_form(T) || T <- ["-module(beamway_bench_yaws).", "-export([out/1]).", "out(_) -> {content, \"text/plain\", <<\"hello world\\n\">>}."]],
    {ok, Module, Beam} = compile:forms(Forms),
    file:write_file(filename:join(Folder, atom_to_list(Module) ++ ".beam"), Beam).

erl_parse_form(Text) ->
    {ok, Tokens, _} = erl_scan:string(Text),
    {ok, Form} = erl_parse:parse_form(Tokens),
    Form.

%% Until it answers, which also warms it.
wait(Name, Port, Deadline) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}], 1000) of
        {ok, Socket} -> gen_tcp:close(Socket);
        {error, _} ->
            erlang:monotonic_time(millisecond) < Deadline orelse error({server_does_not_start, Name}),
            receive after 100 -> ok end,
            wait(Name, Port, Deadline)
    end.

%% ---- load

wrk(Load, Port, Seconds) ->
    Url = "http://127.0.0.1:" ++ integer_to_list(Port) ++ path(Load),
    Words = ["-c", "1", "wrk", "-t1", "-c" ++ ?CONNECTIONS, "-d" ++ Seconds] ++ words(Load) ++ [Url],
    {0, Lines} = beamway_bench_tools:run(os:find_executable("taskset"), Words, 60000),
    Text = lists:append(Lines),
    %% Errors are no speed.
    re:run(Text, "Non-2xx|Socket errors", [{capture, none}]) =:= nomatch orelse error({errors, Load, Port, Text}),
    {match, [Rate]} = re:run(Text, "Requests/sec: *([0-9.]+)", [{capture, all_but_first, list}]),
    list_to_float(Rate).

path(file_1k) -> "/file_1k.bin";
path(file_1m) -> "/file_1m.bin";
path(upload) -> "/upload";
path(_) -> "/".

words(close) -> ["-H", "Connection: close"];
words(browser) ->
    lists:append([["-H", H] || H <- ["User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
                                     "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8", "Accept-Language: en-US,en;q=0.5",
                                     "Accept-Encoding: gzip, deflate, br", "Connection: keep-alive", "Cookie: session=0123456789abcdef0123456789abcdef; theme=dark",
                                     "Upgrade-Insecure-Requests: 1", "Sec-Fetch-Dest: document", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Site: none"]]);
words(pipeline) ->
    ["-s", write("/tmp/beamway_bench_http", "pipeline.lua", "function init(args) local r = {} for i = 1, 16 do r[i] = wrk.format(nil, '/') end batch = table.concat(r) end\n"
                 "function request() return batch end\n")];
words(upload) ->
    ["-s", write("/tmp/beamway_bench_http", "upload.lua", "wrk.method = 'POST'\nwrk.body = string.rep('x', 1048576)\n")];
words(_) -> [].

%% ---- the result

key(hello) -> <<"hello world, kept alive">>;
key(close) -> <<"hello world, a connection each">>;
key(browser) -> <<"hello world, a browser's headers">>;
key(pipeline) -> <<"hello world, 16 at once">>;
key(file_1k) -> <<"file of 1 KB">>;
key(file_1m) -> <<"file of 1 MB">>;
key(upload) -> <<"upload of 1 MB">>.

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(_Settings) ->
    [metric(Load, Name) || {Name, Loads} <- loads(), Name =/= yucan, Load <- Loads].

metric(Load, Name) ->
    #{name => name(Load, Name), unit => <<"requests/s">>, better => higher, key => key(Load), contender => yucan, baselines => [Name]}.

name(upload, default_buffer) -> <<"upload_buffer">>;
name(Load, yucan2009) -> <<(atom_to_binary(Load))/binary, "_2009">>;
name(Load, Name) -> <<(atom_to_binary(Load))/binary, "_", (atom_to_binary(Name))/binary>>.

%% @private
-spec finish(beamway_bench_report:result(), map()) -> ok.
finish(_, _) -> ok.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics_test() ->
    Names = [Name || #{name := Name} <- metrics(#{})],
    ?assertEqual([], [<<"hello_yaws">>, <<"hello_mochiweb">>, <<"hello_nginx">>, <<"close_yaws">>, <<"upload_buffer">>] -- Names).
-endif.
