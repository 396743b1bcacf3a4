%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench http': requests a second of yucan beside yaws, mochiweb (which stands in for misultin, its fork that has ended), cowboy (of RabbitMQ's
%% package), nginx with one worker, h2o, Caddy, Go's net/http, node's http, Tornado, and the design of 2009 anew. All on the first processor, the load (wrk,
%% 32 connections) on the others. With each rate goes the processor time of the server for a request: that is a fair figure also where the load is the limit.
%% The load says by which share it was idle, in that of its runs in which it was busiest: near 0, it was the limit.
%%
%% `bare' is a loop in C that does the least that a server can do, under each load that it can answer: its figures are what the load can
%% offer here. A server that comes near them is limited by the load. The load has all processors but the first.
%%
%% All servers (beamway_bench_http_servers) are up for the whole run; those whose turn it is not are idle. The 99th percentile is taken by http_load.c at
%% 70 % of the rate that the server has reached in the same turn, and at a rate that all can serve, from the moment when a request was due.
%% `minimal' is the least that a server on the emulator can do: it answers whatever comes with the same bytes.
-module(beamway_bench_http).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1]).

-define(FIRST_PORT, 18090).
-define(CONNECTIONS, 32).
-define(IDLE, "1000").
-define(COMMON_RATE, 4000).

-type load() :: hello | close | browser | pipeline | idle | file_1k | file_1m | upload | fastcgi | p99 | p99_common.

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case os:find_executable("wrk") =/= false andalso erlang:system_info(logical_processors_available) of
        false -> beamway_bench_tools:missing("wrk", "http");
        1 -> {error, "one processor is not enough: the load needs one of its own"};
        _ ->
            {Repeats, Seconds, Common} = case Speed of quick -> {1, "1", "1"}; full -> {5, "2", "30"} end,
            {ok, #{repeats => proplists:get_value(repeats, Given, Repeats), seconds => Seconds, common_seconds => Common}}
    end.

%% Who is measured with what.
-spec loads() -> [{beamway_bench_http_servers:name(), [load()]}].
loads() ->
    [{yucan, [hello, close, browser, pipeline, idle, file_1k, file_1m, upload, fastcgi, p99, p99_common]},
     {yaws, [hello, close, browser, p99_common]},
     {mochiweb, [hello, close, p99_common]},
     {cowboy, [hello, close, browser, pipeline, file_1k, file_1m, upload, p99_common]},
     {nginx, [hello, close, browser, pipeline, idle, file_1k, file_1m, fastcgi, p99, p99_common]},
     {h2o, [hello, close, browser, file_1k, file_1m, p99_common]},
     {caddy, [hello, close, browser, file_1k, file_1m, p99_common]},
     {go, [hello, close, browser, file_1k, file_1m, upload, p99_common]},
     {node, [hello, close, browser, upload, p99_common]},
     {tornado, [hello, close, p99_common]},
     {yucan2009, [close]},
     {default_buffer, [upload]},
     {minimal, [hello, browser]},
     {bare, [hello, close, browser, pipeline, idle, upload]}].

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(Settings) ->
    [#{nodes => 0, contenders => [Name], directions => [none], measure => fun(none) -> measure(Name, Loads, Settings) end} || {Name, Loads} <- loads()].

%% hello comes first: the others may ask for its rate.
measure(Name, Loads, Settings) ->
    #{Name := Port} = servers(),
    lists:foldl(fun(Load, Figures) -> maps:merge(Figures, figures(Load, Name, Port, Settings, Figures)) end, #{}, Loads).

figures(p99, _, Port, #{seconds := Seconds}, #{<<"hello world, kept alive">> := Peak}) ->
    #{key(p99) => p99(Port, round(0.7 * Peak), Seconds)};
figures(p99_common, _, Port, #{common_seconds := Seconds}, _) ->
    #{key(p99_common) => p99(Port, ?COMMON_RATE, Seconds)};
figures(idle, Name, Port, Settings, Figures) ->
    Holder = beamway_bench_tools:open(beamway_bench_http_servers:load_program(), ["hold", integer_to_list(Port), "/", ?IDLE]),
    {line, "holding"} = beamway_bench_tools:line(Holder, 60000),
    Held = wrk(idle, Name, Port, Settings, Figures),
    ok = beamway_bench_tools:close(Holder, "TERM"),
    Held;
figures(Load, Name, Port, Settings, Figures) ->
    wrk(Load, Name, Port, Settings, Figures).

p99(Port, Rate, Seconds) ->
    #{errors := 0, p99 := P99} = at_rate(Port, ?CONNECTIONS, Rate, Seconds),
    P99.

%% What http_load.c says, times in microseconds.
at_rate(Port, Connections, Rate, Seconds) ->
    Words = ["-c", "1", beamway_bench_http_servers:load_program(), "rate", integer_to_list(Port), "/", integer_to_list(Connections), integer_to_list(Rate), Seconds],
    {0, [Line]} = beamway_bench_tools:run(os:find_executable("taskset"), Words, 120000),
    maps:from_list(lists:zip([done, unsent, errors, p50, p99, max], [list_to_integer(Word) || Word <- string:lexemes(Line, " \n")])).

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
    Ports = [{Name, ?FIRST_PORT + N} || {N, {Name, _}} <- lists:zip(lists:seq(0, length(loads()) - 1), loads())],
    ok = beamway_bench:note("bench http: starting ~b servers and php-fpm", [length(Ports)]),
    ok = php(),
    _ = [ok = beamway_bench_http_servers:start(Name, Port, #{fastcgi => fastcgi(Name, Port)}) || {Name, Port} <- Ports],
    maps:from_list(Ports).

fastcgi(Name, Port) when Name =:= yucan; Name =:= nginx -> fastcgi_port(Port);
fastcgi(_, _) -> none.

fastcgi_port(Port) -> Port + 100.

%% On the servers' processor, too. A pool for each: one server's kept connections would keep the other's requests waiting. A process for each connection of
%% the load: with fewer, nginx answers those that hold a kept connection and lets the others wait for a minute.
php() ->
    [Fpm | _] = filelib:wildcard("/usr/sbin/php-fpm*"),
    Folder = beamway_bench_http_servers:folder(),
    ok = filelib:ensure_dir(filename:join([Folder, "root", "x"])),
    ok = file:write_file(filename:join([Folder, "root", "hello.php"]), "<?php header('Content-Type: text/plain'); echo \"hello world\\n\";"),
    Conf = ["[global]\nerror_log = /dev/null\n"
            | [["[", Name, "]\nuser = www-data\ngroup = www-data\nlisten = ", Folder, "/", Name, ".sock\nlisten.mode = 0666\npm = static\npm.max_children = ",
                integer_to_list(?CONNECTIONS), "\n"]
               || Name <- ["yucan", "nginx"]]],
    File = filename:join(Folder, "fpm.conf"),
    ok = file:write_file(File, Conf),
    _ = beamway_bench_tools:open(os:find_executable("taskset"), ["-c", "0", Fpm, "-F", "-y", File]),
    ok.

%% ---- load

%% Errors are no speed.
wrk(Load, Name, Port, #{seconds := Seconds}, Figures) ->
    To = case Load of fastcgi -> fastcgi_port(Port); _ -> Port end,
    Before = beamway_bench_http_servers:cpu_us(Port),
    case beamway_bench_http_servers:wrk(To, path(Load), ?CONNECTIONS, ["-d" ++ Seconds | words(Load)]) of
        {Rate, all_answered, #{requests := Requests, idle_percent := Idle}} ->
            Cpu = (beamway_bench_http_servers:cpu_us(Port) - Before) / Requests,
            Key = key_load_idle(Name),
            #{key(Load) => Rate, key_cpu(Load) => Cpu, Key => min(Idle, maps:get(Key, Figures, Idle))};
        {_, no_answer, _} -> error({no_answer, Load, Name});
        {_, errors, _} -> error({errors, Load, Name})
    end.

path(file_1k) -> "/file_1k.bin";
path(file_1m) -> "/file_1m.bin";
path(upload) -> "/upload";
path(fastcgi) -> "/hello.php";
path(_) -> "/".

words(close) -> ["-H", "Connection: close"];
words(browser) ->
    lists:append([["-H", H] || H <- ["User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
                                     "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8", "Accept-Language: en-US,en;q=0.5",
                                     "Accept-Encoding: gzip, deflate, br", "Connection: keep-alive", "Cookie: session=0123456789abcdef0123456789abcdef; theme=dark",
                                     "Upgrade-Insecure-Requests: 1", "Sec-Fetch-Dest: document", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Site: none"]]);
words(pipeline) ->
    ["-s", script("pipeline.lua", "function init(args) local r = {} for i = 1, 16 do r[i] = wrk.format(nil, '/') end batch = table.concat(r) end\n"
                 "function request() return batch end\n")];
words(upload) ->
    ["-s", script("upload.lua", "wrk.method = 'POST'\nwrk.body = string.rep('x', 1048576)\n")];
words(_) -> [].

script(Name, Text) ->
    File = filename:join(beamway_bench_http_servers:folder(), Name),
    ok = file:write_file(File, Text),
    File.

%% ---- the result

key(hello) -> <<"hello world, kept alive">>;
key(close) -> <<"hello world, a connection each">>;
key(browser) -> <<"hello world, a browser's headers">>;
key(pipeline) -> <<"hello world, 16 at once">>;
key(idle) -> <<"hello world, 1000 idle connections beside">>;
key(p99) -> <<"latency at 70 % of the rate, p99">>;
key(p99_common) -> iolist_to_binary(io_lib:format("latency at ~b requests/s, p99", [?COMMON_RATE]));
key(fastcgi) -> <<"hello world of php-fpm">>;
key(file_1k) -> <<"file of 1 KB">>;
key(file_1m) -> <<"file of 1 MB">>;
key(upload) -> <<"upload of 1 MB">>.

key_cpu(Load) -> <<(key(Load))/binary, ": processor time of the server">>.

%% One for each server: a figure of two servers would be compared.
key_load_idle(Name) -> <<"least idle share of the load beside ", (atom_to_binary(Name))/binary>>.

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(_Settings) ->
    Compared = [{Load, Name} || {Name, Loads} <- loads(), Name =/= yucan, Load <- Loads],
    [metric(name(Load, Name), unit(Load), key(Load), Name) || {Load, Name} <- Compared]
        ++ [metric(<<"cpu_", (name(Load, Name))/binary>>, <<"us">>, key_cpu(Load), Name) || {Load, Name} <- Compared, unit(Load) =/= <<"us">>]
        ++ [#{name => <<"load_idle_", (atom_to_binary(Name))/binary>>, unit => <<"%">>, better => higher, key => key_load_idle(Name), contender => Name,
              baselines => []} || {Name, _} <- loads()].

metric(Name, Unit, Key, Beside) ->
    #{name => Name, unit => Unit, better => case Unit of <<"us">> -> lower; _ -> higher end, key => Key, contender => yucan, baselines => [Beside]}.

unit(Latency) when Latency =:= p99; Latency =:= p99_common -> <<"us">>;
unit(_) -> <<"requests/s">>.

name(upload, default_buffer) -> <<"upload_buffer">>;
name(Load, yucan2009) -> <<(atom_to_binary(Load))/binary, "_2009">>;
name(Load, Name) -> <<(atom_to_binary(Load))/binary, "_", (atom_to_binary(Name))/binary>>.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Four of 100 requests have an answer, three of them at once.
a_slow_server_is_charged_for_what_was_never_sent_test_() ->
    {timeout, 30, fun() ->
        {ok, Listening} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {active, false}, {nodelay, true}]),
        {ok, Port} = inet:port(Listening),
        _ = spawn_link(fun() -> {ok, Socket} = gen_tcp:accept(Listening), _ = [answer(Socket, Ms) || Ms <- [0, 0, 0, 1000]], gen_tcp:recv(Socket, 0) end),
        #{done := 4, unsent := 96, errors := 0, p50 := Median} = at_rate(Port, 1, 100, "1"),
        ?assert(Median > 300000)
    end}.

%% A connection ends after two answers; every request has one.
a_server_may_close_kept_connections_test_() ->
    {timeout, 30, fun() ->
        {ok, Listening} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {active, false}, {nodelay, true}]),
        {ok, Port} = inet:port(Listening),
        _ = spawn_link(fun() -> close_after_two(Listening) end),
        #{done := 100, unsent := 0, errors := 0} = at_rate(Port, 2, 100, "1")
    end}.

close_after_two(Listening) ->
    {ok, Socket} = gen_tcp:accept(Listening),
    _ = spawn_link(fun() -> _ = [answer(Socket, 0) || _ <- [1, 2]], gen_tcp:close(Socket) end),
    close_after_two(Listening).

answer(Socket, Ms) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, _} -> receive after Ms -> gen_tcp:send(Socket, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") end;
        {error, _} -> ok
    end.

metrics_test() ->
    Names = [Name || #{name := Name} <- metrics(#{})],
    ?assertEqual([], [<<"hello_yaws">>, <<"hello_mochiweb">>, <<"hello_nginx">>, <<"close_yaws">>, <<"upload_buffer">>, <<"cpu_fastcgi_nginx">>, <<"p99_common_go">>, <<"load_idle_yucan">>] -- Names).
-endif.
