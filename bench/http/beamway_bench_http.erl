%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench http': how many requests per second does yucan serve, compared with yaws, mochiweb (which represents misultin, its discontinued fork),
%% cowboy (from RabbitMQ's package), nginx, h2o, Caddy, Go's net/http, node's http, Tornado, and a rebuilt copy of the 2009 design? All servers run on
%% the first processor, or on the first `--processors' with a worker on each; the load generator (wrk, 32 connections) runs on the others. Each rate
%% comes with the server's CPU time per request, because that is a fair measure even where the load generator is the bottleneck. The load generator
%% also reports the percentage of time for which it was idle, for the run in which it was busiest. If that is near 0, the generator was the
%% bottleneck.
%%
%% `bare' is a loop in C that does the minimum that a server can do, under each load that it can answer, so its numbers show how much load can be
%% generated here. If a server's numbers come close to them, the load generator is the bottleneck.
%%
%% All servers (beamway_bench_http_servers) run for the whole benchmark and are idle while another server is being measured. Each server must return
%% the correct response before it is measured. http_load.c measures the 99th percentile of the latency, both at 70 % of the rate that the server has
%% reached in the same turn and at a rate that all servers can handle. Each latency counts from the time when the request was due. `minimal' does the
%% minimum that a server on the Erlang VM can do: it answers everything with the same bytes, or with an object or a message.
%%
%% `json' is a 43-byte object that jiffy, encoding/json, JSON.stringify or Python's json encodes for each request. nginx, h2o and Caddy do not encode
%% anything, so measuring them would repeat hello world. `ws' sends 64-byte text messages over 50 WebSockets (http_load.c), with one outstanding
%% message on each.
%%
%% `h2load' and `h2load_tls' measure yucan alone, over HTTP/2 and over HTTP/1.1, with 100 outstanding requests each.
-module(beamway_bench_http).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).

-define(FIRST_PORT, 18090).
-define(CONNECTIONS, 32).
-define(WEBSOCKETS, 50).
-define(UPLOAD, 1048576).
-define(ANSWER_MS, 10000).
-define(IDLE, "1000").
-define(COMMON_RATE, 4000).

-type load() :: hello | json | close | browser | pipeline | idle | file_1k | file_1m | upload | ws | fastcgi | p99 | p99_common | h2load | h2load_tls.

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{processors, undefined, "processors", {integer, 1}, "processors of the servers; the load needs at least as many others"},
     {loads, undefined, "loads", string, "measure only these loads, such as hello,json,ws"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    Processors = proplists:get_value(processors, Given, 1),
    case {enough(Processors, erlang:system_info(logical_processors_available)), some_loads(proplists:get_value(loads, Given, all)), os:find_executable("wrk")} of
        {{error, Why}, _, _} -> {error, Why};
        {_, {error, Why}, _} -> {error, Why};
        {_, _, false} -> beamway_bench_tools:missing("wrk", "http");
        {ok, {ok, Loads}, _} ->
            {Repeats, Seconds, Common} = case Speed of quick -> {1, "1", "1"}; full -> {5, "2", "30"} end,
            {ok, #{repeats => proplists:get_value(repeats, Given, Repeats), seconds => Seconds, common_seconds => Common, processors => Processors,
                   loads => possible(Loads, os:find_executable("h2load"))}}
    end.

%% Without h2load, only the loads that do not need it are measured.
possible(Loads, Program) ->
    Wanted = case Loads of all -> known(); _ -> Loads end,
    case [Load || Load <- Wanted, Program =:= false, lists:member(Load, [h2load, h2load_tls])] of
        [] -> Loads;
        Impossible ->
            ok = beamway_bench_text:note("bench http: h2load is not installed (Debian: nghttp2-client), so HTTP/2 is not measured", []),
            Wanted -- Impossible
    end.

%% If the load generator shared the servers' processors, its own CPU time would add to that of every server, which would move every ratio closer to 1.
enough(Processors, Available) when Processors >= 1, 2 * Processors =< Available -> ok;
enough(Processors, Available) ->
    {error, io_lib:format("--processors ~b: the servers and the load need so many each, and this machine has ~b", [Processors, Available])}.

some_loads(all) -> {ok, all};
some_loads(Text) ->
    Known = [{atom_to_list(Load), Load} || Load <- known()],
    Words = string:lexemes(Text, ","),
    case [Word || Word <- Words, not lists:keymember(Word, 1, Known)] of
        [] when Words =/= [] -> {ok, [Load || {Word, Load} <- Known, lists:member(Word, Words)]};
        _ -> {error, io_lib:format("--loads ~ts: expected some of ~ts, with commas", [Text, lists:join(", ", [Word || {Word, _} <- Known])])}
    end.

known() -> lists:append([Loads || {Name, Loads} <- loads(), Name =:= yucan orelse Name =:= yucan_h2]).

%% Returns the loads under which each server is measured.
-spec loads() -> [{beamway_bench_http_servers:name(), [load()]}].
loads() ->
    [{yucan, [hello, json, close, browser, pipeline, idle, file_1k, file_1m, upload, ws, fastcgi, p99, p99_common]},
     {yaws, [hello, json, close, browser, file_1k, upload, ws, p99_common]},
     {mochiweb, [hello, json, close, file_1k, upload, ws, p99_common]},
     {cowboy, [hello, json, close, browser, pipeline, file_1k, file_1m, upload, ws, p99_common]},
     {nginx, [hello, close, browser, pipeline, idle, file_1k, file_1m, fastcgi, p99, p99_common]},
     {h2o, [hello, close, browser, file_1k, file_1m, p99_common]},
     {caddy, [hello, close, browser, file_1k, file_1m, p99_common]},
     {go, [hello, json, close, browser, file_1k, file_1m, upload, ws, p99_common]},
     {node, [hello, json, close, browser, upload, ws, p99_common]},
     {tornado, [hello, json, close, ws, p99_common]},
     {yucan_h2, [h2load, h2load_tls]},
     {yucan_h1, [h2load, h2load_tls]},
     {yucan2009, [close]},
     {default_buffer, [upload]},
     {minimal, [hello, json, browser, ws]},
     {bare, [hello, json, close, browser, pipeline, idle, file_1k, upload, ws]}].

%% Returns the loads and servers that the user has selected.
loads(#{only := Only, loads := Wanted}) ->
    [{Name, [Load || Load <- Loads, Wanted =:= all orelse lists:member(Load, Wanted)]} || {Name, Loads} <- loads(), Only =:= all orelse lists:member(Name, Only)].

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(Settings) ->
    [#{nodes => 0, contenders => [Name], directions => [none], measure => fun(none) -> measure(Name, Loads, Settings) end}
     || {Name, [_ | _] = Loads} <- loads(Settings)].

measure(Name, Loads, Settings) ->
    #{Name := Port} = servers(Settings),
    maps:from_list([{tagged(Key, <<", ">>, <<" processors">>, Settings), Figure} || {Key, Figure} <- maps:to_list(figures(Name, Loads, Port, Settings))]).

%% hello comes first, because other loads need the rate that it measures.
figures(Name, Loads, Port, Settings) ->
    lists:foldl(fun(Load, Figures) -> maps:merge(Figures, figures(Load, Name, Port, Settings, Figures)) end, #{}, Loads).

figures(p99, _, Port, #{seconds := Seconds} = Settings, #{<<"hello world, kept alive">> := Peak}) ->
    #{key(p99) => p99(Port, round(0.7 * Peak), Seconds, Settings)};
figures(p99, Name, Port, Settings, _) ->
    figures(p99, Name, Port, Settings, load(hello, Name, Port, Settings, #{}));
figures(p99_common, _, Port, #{common_seconds := Seconds} = Settings, _) ->
    #{key(p99_common) => p99(Port, ?COMMON_RATE, Seconds, Settings)};
figures(idle, Name, Port, Settings, Figures) ->
    Holder = beamway_bench_tools:open(beamway_bench_http_servers:load_program(), ["hold", integer_to_list(Port), "/", ?IDLE]),
    {line, "holding"} = beamway_bench_tools:line(Holder, 60000),
    Held = load(idle, Name, Port, Settings, Figures),
    ok = beamway_bench_tools:close(Holder, "TERM"),
    Held;
figures(Load, Name, Port, Settings, Figures) ->
    load(Load, Name, Port, Settings, Figures).

p99(Port, Rate, Seconds, #{processors := Processors}) ->
    #{errors := 0, p99 := P99} = at_rate(Port, ?CONNECTIONS, Rate, Seconds, Processors),
    P99.

%% Returns the result of http_load.c, with times in microseconds. The program runs on the first processor that the servers do not use.
at_rate(Port, Connections, Rate, Seconds, Processors) ->
    Words = ["-c", integer_to_list(Processors), beamway_bench_http_servers:load_program(), "rate", integer_to_list(Port), "/", integer_to_list(Connections), integer_to_list(Rate), Seconds],
    {0, [Line]} = beamway_bench_tools:run(os:find_executable("taskset"), Words, 120000),
    maps:from_list(lists:zip([done, unsent, errors, p50, p99, max], [list_to_integer(Word) || Word <- string:lexemes(Line, " \n")])).

%% ---- servers

servers(Settings) ->
    case get(?MODULE) of
        undefined ->
            Servers = start_all(Settings),
            undefined = put(?MODULE, Servers),
            Servers;
        Servers -> Servers
    end.

start_all(#{processors := Processors} = Settings) ->
    Wanted = [{Name, Loads} || {Name, [_ | _] = Loads} <- loads(Settings)],
    Ports = [{Name, ?FIRST_PORT + N} || {N, {Name, _}} <- lists:zip(lists:seq(0, length(Wanted) - 1), Wanted)],
    ok = beamway_bench_text:note("bench http: starting ~b servers and php-fpm", [length(Ports)]),
    Cores = lists:concat(["0-", Processors - 1]),
    ok = php(Cores),
    _ = [ok = beamway_bench_http_servers:start(Name, Port, #{cores => Cores, schedulers => Processors, fastcgi => fastcgi(Name, Port)}) || {Name, Port} <- Ports],
    Servers = maps:from_list(Ports),
    _ = [ok = check(Load, Name, maps:get(Name, Servers)) || {Name, Loads} <- Wanted, Load <- Loads],
    %% Warms the servers up, because node's JIT compiles code only after it has run for a while.
    _ = [offer(Load, Name, maps:get(Name, Servers), Settings#{seconds := "1"}) || {Name, Loads} <- Wanted, Load <- Loads, lists:member(Load, [hello, json, ws])],
    Servers.

fastcgi(Name, Port) when Name =:= yucan; Name =:= nginx -> fastcgi_port(Port);
fastcgi(_, _) -> none.

fastcgi_port(Port) -> Port + 100.

%% php-fpm shares the servers' processors. Each server has its own pool, so that one server's
%% keep-alive connections do not delay the other servers' requests. A pool has a process for each
%% connection of the load generator, because with fewer processes nginx would keep serving some
%% connections and make the others wait for a minute.
php(Cores) ->
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
    _ = beamway_bench_tools:open(os:find_executable("taskset"), ["-c", Cores, Fpm, "-F", "-y", File]),
    ok.

%% ---- load

%% No rate is recorded for a run with errors.
load(Load, Name, Port, Settings, Figures) ->
    Before = beamway_bench_http_servers:cpu_us(Port),
    case offer(Load, Name, Port, Settings) of
        {Rate, all_answered, #{requests := Requests, idle_percent := Idle} = Told} ->
            Cpu = maps:get(cpu_us, Told, beamway_bench_http_servers:cpu_us(Port) - Before) / Requests,
            Key = key_load_idle(Name),
            #{key(Load) => Rate, key_cpu(Load) => Cpu, Key => min(Idle, maps:get(Key, Figures, Idle))};
        {_, no_answer, _} -> error({no_answer, Load, Name});
        {_, errors, _} -> error({errors, Load, Name})
    end.

offer(h2load, Name, Port, Settings) -> h2load(Name, http, Port, Settings);
offer(h2load_tls, Name, Port, Settings) -> h2load(Name, https, Port, Settings);
offer(ws, _, Port, #{seconds := Seconds, processors := Processors}) ->
    beamway_bench_http_servers:echo(Port, ?WEBSOCKETS, Processors, Seconds);
offer(Load, _, Port, #{seconds := Seconds, processors := Processors}) ->
    To = case Load of fastcgi -> fastcgi_port(Port); _ -> Port end,
    beamway_bench_http_servers:wrk(To, path(Load), ?CONNECTIONS, Processors, ["-d" ++ Seconds | words(Load)]).

h2load(Name, Scheme, Port, #{seconds := Seconds, processors := Processors}) ->
    beamway_bench_http_servers:h2load(case Name of yucan_h2 -> h2; yucan_h1 -> h1 end, Scheme, Port, Processors, Seconds).

%% wrk and h2load check only the status, so the response is checked here.
check(Load, Name, Port) ->
    case is_right(Load, Port) of
        true -> ok;
        false when Load =:= upload, Name =:= bare -> ok;
        false -> error({wrong_answer, Load, Name})
    end.

%% WebSockets are not checked here because http_load.c compares each echo. PHP may need a moment to start.
is_right(ws, _) -> true;
is_right(fastcgi, _) -> true;
is_right(json, Port) -> jiffy:decode(answered(json, Port), [return_maps]) =:= #{<<"id">> => 42, <<"message">> => <<"hello world">>, <<"ok">> => true};
is_right(file_1k, Port) -> byte_size(answered(file_1k, Port)) =:= 1024;
is_right(file_1m, Port) -> byte_size(answered(file_1m, Port)) =:= ?UPLOAD;
is_right(upload, Port) -> answered(upload, Port) =:= integer_to_binary(?UPLOAD);
is_right(Load, Port) -> answered(Load, Port) =:= <<"hello world\n">>.

answered(Load, Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {packet, http_bin}], ?ANSWER_MS),
    Rest = case Load of
        upload -> ["Content-Length: ", integer_to_list(?UPLOAD), "\r\n\r\n", binary:copy(<<"x">>, ?UPLOAD)];
        _ -> "\r\n"
    end,
    ok = gen_tcp:send(Socket, [case Load of upload -> "POST "; _ -> "GET " end, path(Load), " HTTP/1.1\r\nHost: 127.0.0.1\r\n", Rest]),
    {ok, {http_response, _, 200, _}} = gen_tcp:recv(Socket, 0, ?ANSWER_MS),
    {ok, Answer} = gen_tcp:recv(Socket, content_length(Socket, 0), ?ANSWER_MS),
    ok = gen_tcp:close(Socket),
    Answer.

content_length(Socket, Length) ->
    case gen_tcp:recv(Socket, 0, ?ANSWER_MS) of
        {ok, {http_header, _, 'Content-Length', _, Value}} -> content_length(Socket, binary_to_integer(Value));
        {ok, {http_header, _, _, _, _}} -> content_length(Socket, Length);
        {ok, http_eoh} -> ok = inet:setopts(Socket, [{packet, raw}]), Length
    end.

path(json) -> "/json";
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
    ["-s", script("upload.lua", "wrk.method = 'POST'\nwrk.body = string.rep('x', " ++ integer_to_list(?UPLOAD) ++ ")\n")];
words(_) -> [].

script(Name, Text) ->
    File = filename:join(beamway_bench_http_servers:folder(), Name),
    ok = file:write_file(File, Text),
    File.

%% ---- the result

key(hello) -> <<"hello world, kept alive">>;
key(json) -> <<"an object encoded as JSON">>;
key(close) -> <<"hello world, a connection each">>;
key(browser) -> <<"hello world, a browser's headers">>;
key(pipeline) -> <<"hello world, 16 at once">>;
key(idle) -> <<"hello world, 1000 idle connections beside">>;
key(p99) -> <<"latency at 70 % of the rate, p99">>;
key(p99_common) -> iolist_to_binary(io_lib:format("latency at ~b requests/s, p99", [?COMMON_RATE]));
key(fastcgi) -> <<"hello world of php-fpm">>;
key(file_1k) -> <<"file of 1 KB">>;
key(file_1m) -> <<"file of 1 MB">>;
key(upload) -> <<"upload of 1 MB">>;
key(ws) -> <<"WebSocket, text of 64 B there and back">>;
key(h2load) -> <<"hello world by h2load, HTTP/2 beside HTTP/1.1">>;
key(h2load_tls) -> <<"hello world by h2load, HTTP/2 beside HTTP/1.1, both over TLS">>.

key_cpu(Load) -> <<(key(Load))/binary, ": processor time of the server">>.

%% The key contains the server's name, because the numbers of two servers under the same key would be compared.
key_load_idle(Name) -> <<"least idle share of the load beside ", (atom_to_binary(Name))/binary>>.

%% Numbers for more than one processor get different keys.
tagged(Text, Before, After, #{processors := Processors}) when Processors > 1 -> <<Text/binary, Before/binary, (integer_to_binary(Processors))/binary, After/binary>>;
tagged(Text, _, _, _) -> Text.

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(Settings) ->
    [Metric#{name := tagged(Name, <<"_p">>, <<>>, Settings), key := tagged(Key, <<", ">>, <<" processors">>, Settings)} || #{name := Name, key := Key} = Metric <- metrics()].

metrics() ->
    Compared = [{Load, Name} || {Name, Loads} <- loads(), Name =/= yucan, Name =/= yucan_h2, Load <- Loads],
    [metric(name(Load, Name), unit(Load), key(Load), Name) || {Load, Name} <- Compared]
        ++ [metric(<<"cpu_", (name(Load, Name))/binary>>, <<"us">>, key_cpu(Load), Name) || {Load, Name} <- Compared, unit(Load) =/= <<"us">>]
        ++ [#{name => <<"load_idle_", (atom_to_binary(Name))/binary>>, unit => <<"%">>, better => higher, key => key_load_idle(Name), contender => Name,
              baselines => []} || {Name, _} <- loads()].

metric(Name, Unit, Key, Beside) ->
    #{name => Name, unit => Unit, better => case Unit of <<"us">> -> lower; _ -> higher end, key => Key,
      contender => case Beside of yucan_h1 -> yucan_h2; _ -> yucan end, baselines => [Beside]}.

unit(Latency) when Latency =:= p99; Latency =:= p99_common -> <<"us">>;
unit(ws) -> <<"messages/s">>;
unit(_) -> <<"requests/s">>.

name(upload, default_buffer) -> <<"upload_buffer">>;
name(h2load, yucan_h1) -> <<"hello_h2">>;
name(h2load_tls, yucan_h1) -> <<"hello_h2_tls">>;
name(Load, yucan2009) -> <<(atom_to_binary(Load))/binary, "_2009">>;
name(Load, Name) -> <<(atom_to_binary(Load))/binary, "_", (atom_to_binary(Name))/binary>>.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Of 100 requests, only four are answered, three of them immediately.
a_slow_server_is_charged_for_what_was_never_sent_test_() ->
    {timeout, 30, fun() ->
        {ok, Listening} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {active, false}, {nodelay, true}]),
        {ok, Port} = inet:port(Listening),
        _ = spawn_link(fun() -> {ok, Socket} = gen_tcp:accept(Listening), _ = [answer(Socket, Ms) || Ms <- [0, 0, 0, 1000]], gen_tcp:recv(Socket, 0) end),
        #{done := 4, unsent := 96, errors := 0, p50 := Median} = at_rate(Port, 1, 100, "1", 1),
        ?assert(Median > 300000)
    end}.

%% A connection closes after two responses, but every request is answered.
a_server_may_close_kept_connections_test_() ->
    {timeout, 30, fun() ->
        {ok, Listening} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {active, false}, {nodelay, true}]),
        {ok, Port} = inet:port(Listening),
        _ = spawn_link(fun() -> close_after_two(Listening) end),
        %% A busy machine may leave some requests unsent.
        #{done := Done, unsent := Unsent, errors := 0} = at_rate(Port, 2, 100, "1", 1),
        ?assertEqual(100, Done + Unsent),
        ?assert(Done > 4)
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

%% Two processes share five connections to yucan, which rejects unmasked frames.
websockets_test_() ->
    {timeout, 60, fun() ->
        {ok, _} = application:ensure_all_started(yucan),
        Routes = [{"/" ++ Path, beamway_bench_http_erlang, What} || {Path, What} <- [{"", hello}, {"json", json}, {"upload", upload}, {"ws", ws}]],
        {ok, _} = yucan:start(#{name => ?MODULE, listen => [#{port => 0}], routes => Routes}),
        try
            Port = yucan:port(?MODULE),
            [ok = check(Load, yucan, Port) || Load <- [hello, json, upload]],
            {0, [Echoes, "0", _]} = websockets(Port, "/ws", 5, 2),
            ?assert(list_to_integer(Echoes) > 5),
            ?assertMatch({1, ["http_load:", "the", "server", "did", "not", "agree" | _]}, websockets(Port, "/", 1, 1))
        after
            ok = yucan:stop(?MODULE)
        end
    end}.

%% One server sends the text back with its mask; the other sends nothing.
a_wrong_or_missing_echo_is_an_error_test_() ->
    {timeout, 60, fun() ->
        {ok, Listening} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {active, false}, {nodelay, true}]),
        {ok, Port} = inet:port(Listening),
        _ = spawn_link(fun() ->
            Sockets = [upgraded(Listening) || _ <- [1, 2]],
            [{ok, <<16#81, 1:1, 64:7, _:32, Masked:64/binary>>}, _] = [gen_tcp:recv(Socket, 0) || Socket <- Sockets],
            ok = gen_tcp:send(hd(Sockets), [<<16#81, 64>>, Masked]),
            _ = [gen_tcp:recv(Socket, 0) || Socket <- Sockets]
        end),
        ?assertMatch({0, ["0", "2", _]}, websockets(Port, "/ws", 2, 1))
    end}.

upgraded(Listening) ->
    {ok, Socket} = gen_tcp:accept(Listening),
    {ok, _} = gen_tcp:recv(Socket, 0),
    ok = gen_tcp:send(Socket, "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"),
    Socket.

the_bare_loops_answer_as_servers_do_test_() ->
    {timeout, 60, fun() ->
        {ok, Program} = beamway_bench_tools:compile("http_bare", "cc"),
        Ports = [One, Two, Three] = [free_port() || _ <- [1, 2, 3]],
        Running = [beamway_bench_tools:open(Program, [integer_to_list(Port) | More]) || {Port, More} <- [{One, []}, {Two, ["2"]}]],
        Minimal = spawn(beamway_bench_http_erlang, start, [[minimal, list_to_atom(integer_to_list(Three)), none, '128', none]]),
        try
            [ok = answers(Port, 100) || Port <- Ports],
            [ok = check(Load, Name, Port) || {Name, Port} <- lists:zip([bare, bare, minimal], Ports), Load <- [hello, json]],
            [ok = check(file_1k, bare, Port) || Port <- [One, Two]],
            [ok = together(Port) || Port <- [One, Two]],
            [?assertMatch({0, [[_ | _], "0", _]}, websockets(Port, "/ws", 3, 1)) || Port <- Ports]
        after
            true = exit(Minimal, kill),
            [ok = beamway_bench_tools:close(Port, "TERM") || Port <- Running]
        end
    end}.

%% Pipelined requests are answered together, and the responses may be larger than a single recv call returns.
together(Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {buffer, 65536}]),
    Hello = binary:copy(<<"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\nhello world\n">>, 16),
    ok = gen_tcp:send(Socket, binary:copy(<<"GET / HTTP/1.1\r\n\r\n">>, 16)),
    {ok, Hello} = gen_tcp:recv(Socket, 0, ?ANSWER_MS),
    Files = binary:copy(<<"HTTP/1.1 200 OK\r\ncontent-length: 1024\r\n\r\n", (binary:copy(<<"x">>, 1024))/binary>>, 100),
    ok = gen_tcp:send(Socket, binary:copy(<<"GET /file_1k.bin HTTP/1.1\r\n\r\n">>, 100)),
    {ok, Files} = gen_tcp:recv(Socket, byte_size(Files), ?ANSWER_MS),
    gen_tcp:close(Socket).

free_port() ->
    {ok, Listening} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Listening),
    ok = gen_tcp:close(Listening),
    Port.

answers(Port, Tries) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, [], 1000) of
        {ok, Socket} -> gen_tcp:close(Socket);
        {error, _} when Tries > 1 -> receive after 50 -> answers(Port, Tries - 1) end
    end.

websockets(Port, Path, Connections, Processes) ->
    Words = ["ws", integer_to_list(Port), Path, integer_to_list(Connections), "1", integer_to_list(Processes)],
    {Status, Lines} = beamway_bench_tools:run(beamway_bench_http_servers:load_program(), Words, 30000),
    {Status, string:lexemes(lists:append(Lines), " \r\n")}.

metrics_test() ->
    Names = [Name || #{name := Name} <- metrics(#{})],
    ?assertEqual([], [<<"hello_yaws">>, <<"hello_mochiweb">>, <<"hello_nginx">>, <<"close_yaws">>, <<"upload_buffer">>, <<"cpu_fastcgi_nginx">>, <<"p99_common_go">>, <<"load_idle_yucan">>,
                      <<"json_cowboy">>, <<"ws_mochiweb">>, <<"cpu_ws_node">>, <<"file_1k_yaws">>] -- Names),
    [#{contender := yucan_h2, baselines := [yucan_h1], unit := <<"requests/s">>, better := higher}, #{contender := yucan_h2, baselines := [yucan_h1]}]
        = [Metric || Wanted <- [<<"hello_h2">>, <<"hello_h2_tls">>], #{name := Name} = Metric <- metrics(#{}), Name =:= Wanted],
    ?assertEqual([], [<<"cpu_hello_h2">>, <<"cpu_hello_h2_tls">>, <<"load_idle_yucan_h2">>, <<"load_idle_yucan_h1">>] -- Names),
    ?assertEqual(Names, lists:uniq(Names)),
    #{key := <<"an object encoded as JSON, 2 processors">>} = hd([Metric || #{name := <<"json_cowboy_p2">>} = Metric <- metrics(#{processors => 2})]).

the_load_has_as_many_processors_as_the_servers_test_() ->
    [?_assertEqual(ok, enough(1, 2)), ?_assertEqual(ok, enough(2, 4)), ?_assertMatch({error, _}, enough(2, 3)), ?_assertMatch({error, _}, enough(1, 1)), ?_assertMatch({error, _}, enough(0, 8))].

loads_test_() ->
    Settings = #{only => [cowboy, h2o, minimal], loads => [hello, ws]},
    [?_assertEqual({ok, [hello, ws]}, some_loads("ws,hello")), ?_assertEqual({ok, [h2load]}, some_loads("h2load")),
     ?_assertEqual(all, possible(all, "/usr/bin/h2load")), ?_assertEqual([hello], possible([hello], false)), ?_assertEqual([hello], possible([hello, h2load_tls], false)),
     ?_assertNot(lists:member(h2load, possible(all, false))), ?_assert(lists:member(ws, possible(all, false))), ?_assertMatch({error, _}, some_loads("ws,http3")), ?_assertMatch({error, _}, some_loads("")),
     ?_assertEqual([{cowboy, [hello, ws]}, {h2o, [hello]}, {minimal, [hello, ws]}], loads(Settings)),
     ?_assertEqual(loads(), loads(#{only => all, loads => all})),
     ?_assertEqual([], [Name || {Name, _} <- loads()] -- beamway_bench_http_servers:names())].
-endif.
