%% SPDX-License-Identifier: Apache-2.0
%% @doc The servers of `bench http', `http-memory' and `http-2009'. This module starts them. To stop them, it finds them by the port on which they
%% listen.
%%
%% `bin/beamway' runs these benchmarks in an overlay (scripts/in-overlay), in which the servers are installed. Each server returns hello world at /,
%% and writes no log. The servers in Erlang all get the same VM flags, and their schedulers do not busy-wait. Servers that can serve files do so from
%% a directory. Servers that run programs encode an object as JSON for each request of /json and, if they support WebSockets, echo the messages of a
%% WebSocket at /ws.
-module(beamway_bench_http_servers).

-export([names/0, start/3, stop/1, memory_kb/1, cpu_us/1, folder/0, wrk/5, h2load/5, echo/4, load_program/0, tls_port/1]).

-export_type([name/0, options/0]).

-type name() :: yucan | yucan_h2 | yucan_h1 | yaws | mochiweb | cowboy | nginx | h2o | caddy | go | node | tornado | minimal | yucan2009 | default_buffer | bare | apache2 | nginx_tornado.
-type options() :: #{cores => string(), schedulers => pos_integer(), backlog => pos_integer(), fastcgi => inet:port_number() | none}.

-define(START_MS, 60000).
-define(STOP_MS, 10000).
-define(FILES, "20000").
-define(LOAD_MS, 60000).

%% @doc Returns the servers of `bench http'.
-spec names() -> [name()].
names() -> [yucan, yaws, mochiweb, cowboy, nginx, h2o, caddy, go, node, tornado, yucan_h2, yucan_h1, yucan2009, default_buffer, minimal, bare].

%% @doc Returns the directory from which the servers serve files.
-spec folder() -> file:filename().
folder() -> "/tmp/beamway_bench_http".

%% @doc Starts a server. Returns once it accepts connections. By default the server gets the first processor and one scheduler.
-spec start(name(), inet:port_number(), options()) -> ok.
start(Name, Port, Options) ->
    ok = prepare(),
    All = maps:merge(#{cores => "0", schedulers => 1, backlog => 1024, fastcgi => none}, Options),
    _ = [run(Words, All) || Words <- commands(Name, Port, All)],
    wait(Name, Port, erlang:monotonic_time(millisecond) + ?START_MS).

run(Words, #{cores := Cores}) ->
    %% Erlang also loads code from its current directory, where other users may have put modules, so the servers start in /.
    beamway_bench_tools:open(os:find_executable("prlimit"), ["--nofile=" ++ ?FILES ++ ":" ++ ?FILES, "env", "--chdir=/", "taskset", "-c", Cores | Words]).

prepare() ->
    ok = filelib:ensure_dir(filename:join([folder(), "root", "x"])),
    _ = [file(filename:join("root", File), binary:copy(<<"x">>, Size)) || {File, Size} <- [{"file_1k.bin", 1024}, {"file_1m.bin", 1048576}]],
    ok.

file(Name, Text) ->
    File = filename:join(folder(), Name),
    ok = file:write_file(File, Text),
    File.

%% Waits until the server accepts a connection. The first server of Tornado's pair may start later than nginx.
wait(Name, Port, Deadline) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}], 1000) of
        {ok, Socket} -> gen_tcp:close(Socket);
        {error, _} ->
            erlang:monotonic_time(millisecond) < Deadline orelse error({server_does_not_start, Name}),
            receive after 100 -> ok end,
            wait(Name, Port, Deadline)
    end.

%% @doc Stops the processes that listen on the port, and waits until they have exited.
-spec stop(inet:port_number()) -> ok.
stop(Port) -> stop(Port, erlang:monotonic_time(millisecond) + ?STOP_MS).

stop(Port, Deadline) ->
    case pids(Port) of
        [] -> ok;
        Pids ->
            erlang:monotonic_time(millisecond) < Deadline orelse error({server_does_not_end, Port}),
            _ = os:cmd("kill -KILL " ++ lists:join(" ", Pids)),
            receive after 100 -> ok end,
            stop(Port, Deadline)
    end.

%% @doc Returns the memory, in KB, of the processes that listen on the port; shared pages are counted once.
-spec memory_kb(inet:port_number()) -> pos_integer().
memory_kb(Port) ->
    lists:sum([beamway_bench_os:pss_bytes(list_to_integer(Pid)) div 1024 || Pid <- pids(Port)]).

%% @doc Returns the CPU time, in microseconds, of the processes that listen on the port and of their children.
-spec cpu_us(inet:port_number()) -> non_neg_integer().
cpu_us(Port) ->
    Listening = pids(Port),
    All = lists:usort(Listening ++ lists:append([children(Pid) || Pid <- Listening])),
    beamway_bench_os:sum_cpu_us([list_to_integer(Pid) || Pid <- All]).

children(Pid) ->
    lists:append([string:lexemes(binary_to_list(Text), " ") || File <- filelib:wildcard("/proc/" ++ Pid ++ "/task/*/children"), {ok, Text} <- [file:read_file(File)]]).

pids(Port) ->
    Text = os:cmd("ss -Hltnp sport = :" ++ integer_to_list(Port)),
    case re:run(Text, "pid=(\\d+)", [global, {capture, all_but_first, list}]) of
        {match, Pids} -> lists:usort(lists:append(Pids));
        nomatch -> []
    end.

%% ---- load

%% Returns all processors that the servers do not use, as a list for taskset, and their number.
-spec load_cores(Servers :: pos_integer()) -> {string(), pos_integer()}.
load_cores(Servers) ->
    Available = erlang:system_info(logical_processors_available),
    {lists:concat([Servers, "-", Available - 1]), Available - Servers}.

%% @doc Runs wrk. Returns the requests per second, whether any remained unanswered, the number of requests, and the percentage of time for which wrk
%% was idle. `Servers' processors are reserved for the servers, and wrk uses all others.
-spec wrk(inet:port_number(), Path :: string(), Connections :: pos_integer(), Servers :: pos_integer(), Words :: [string()]) ->
          {float(), all_answered | no_answer | errors, #{requests := non_neg_integer(), idle_percent := float()}}.
wrk(Port, Path, Connections, Servers, Words) ->
    {Cores, Others} = load_cores(Servers),
    Threads = min(Others, Connections),
    Load = ["-c", "\"$@\" && times", "sh", "taskset", "-c", Cores, "wrk", lists:concat(["-t", Threads]), lists:concat(["-c", Connections])] ++ Words
        ++ [lists:concat(["http://127.0.0.1:", Port, Path])],
    {0, Lines} = beamway_bench_tools:run("/bin/sh", Load, ?LOAD_MS),
    Text = lists:append(Lines),
    [Requests, Seconds] = numbers(Text, "([0-9]+) requests in ([0-9.]+)s"),
    [Rate] = numbers(Text, "Requests/sec: *([0-9.]+)"),
    {float(Rate), case re:run(Text, "Non-2xx|Socket errors", [{capture, none}]) of match -> errors; nomatch when Requests =:= 0 -> no_answer; nomatch -> all_answered end,
     #{requests => Requests, idle_percent => idle_percent(Lines, Threads * Seconds)}}.

%% Parses the last line that the shell's `times' prints.
idle_percent(Lines, Seconds) ->
    [UserMin, User, KernelMin, Kernel] = numbers(lists:last(Lines), "([0-9]+)m([0-9.]+)s ([0-9]+)m([0-9.]+)s"),
    max(0.0, 100 * (1 - (60 * (UserMin + KernelMin) + User + Kernel) / Seconds)).

%% @doc Like wrk/5, but with h2load and 100 outstanding requests: over HTTP/2 ten on each of ten connections, over HTTP/1.1 one on each of a hundred.
%% h2load connects and warms up for a second before it starts to count. `cpu_us' is the server's CPU time while h2load counts; `idle_percent' covers
%% the whole run.
-spec h2load(h2 | h1, http | https, inet:port_number(), Servers :: pos_integer(), Seconds :: string()) ->
          {float(), all_answered | no_answer | errors, #{requests := non_neg_integer(), idle_percent := float(), cpu_us := non_neg_integer()}}.
h2load(Version, Scheme, Port, Servers, Seconds) ->
    {Cores, Others} = load_cores(Servers),
    Threads = min(Others, 10),
    Words = case Version of h2 -> ["-c", "10", "-m", "10"]; h1 -> ["--h1", "-c", "100"] end,
    To = case Scheme of http -> Port; https -> tls_port(Port) end,
    Start = erlang:monotonic_time(millisecond),
    Load = beamway_bench_tools:open("/bin/sh", ["-c", "\"$@\" && times", "sh", "taskset", "-c", Cores, "h2load", lists:concat(["-t", Threads]),
                                                "--warm-up-time=1", "-D", Seconds | Words] ++ [lists:concat([Scheme, "://127.0.0.1:", To, "/"])]),
    Connecting = lines(Load, "duration is started"),
    Before = cpu_us(Port),
    Counting = lines(Load, "duration is over"),
    Cpu = cpu_us(Port) - Before,
    Lines = lines(Load, ended),
    Elapsed = (erlang:monotonic_time(millisecond) - Start) / 1000,
    {Rate, Outcome, Requests} = h2load_said(protocol(Version, Scheme), lists:append(Connecting ++ Counting ++ Lines)),
    {Rate, Outcome, #{requests => Requests, idle_percent => idle_percent(Lines, Threads * Elapsed), cpu_us => Cpu}}.

%% Returns the lines that h2load prints, up to the one that contains `Last' or, if that is `ended', until h2load exits successfully.
lines(Load, Last) ->
    case beamway_bench_tools:line(Load, ?LOAD_MS) of
        {ended, 0} when Last =:= ended -> [];
        {line, Line} ->
            Ends = Last =/= ended andalso string:find(Line, Last) =/= nomatch,
            [Line ++ "\n" | case Ends of true -> []; false -> lines(Load, Last) end]
    end.

protocol(h1, _) -> "http/1.1";
protocol(h2, http) -> "h2c";
protocol(h2, https) -> "h2".

%% Over TLS the server chooses the protocol. If h2load does not get HTTP/2, it continues with HTTP/1.1, so the protocol is checked.
h2load_said(Protocol, Text) ->
    [Rate] = numbers(Text, "finished in [^,]+, ([0-9.]+) req/s"),
    [Done, Succeeded | Failures] = numbers(Text, "([0-9]+) done, ([0-9]+) succeeded, ([0-9]+) failed, ([0-9]+) errored, ([0-9]+) timeout"),
    Spoken = re:run(Text, "Application protocol: (\\S+)", [{capture, all_but_first, list}]),
    Outcome = case lists:all(fun(N) -> N =:= 0 end, Failures) of
        false -> errors;
        true when Done =:= 0 -> no_answer;
        true when Succeeded =:= Done, Spoken =:= {match, [Protocol]} -> all_answered;
        true -> errors
    end,
    {float(Rate), Outcome, Done}.

%% @doc Returns the port on which `yucan_h2' and `yucan_h1' accept TLS connections.
-spec tls_port(inet:port_number()) -> inet:port_number().
tls_port(Port) -> Port + 200.

numbers(Text, Pattern) ->
    {match, Found} = re:run(Text, Pattern, [{capture, all_but_first, list}]),
    [case string:to_float(Word) of {error, _} -> list_to_integer(Word); {Float, []} -> Float end || Word <- Found].

%% @doc Returns the echoes per second over this many WebSockets, each with one outstanding message. Otherwise this is like wrk/5.
-spec echo(inet:port_number(), Connections :: pos_integer(), Servers :: pos_integer(), Seconds :: string()) ->
          {float(), all_answered | no_answer | errors, #{requests := non_neg_integer(), idle_percent := float()}}.
echo(Port, Connections, Servers, Seconds) ->
    {Cores, Others} = load_cores(Servers),
    Processes = min(Others, Connections),
    Words = ["-c", Cores, load_program(), "ws", integer_to_list(Port), "/ws", integer_to_list(Connections), Seconds, integer_to_list(Processes)],
    {0, [Line]} = beamway_bench_tools:run(os:find_executable("taskset"), Words, 120000),
    [Echoes, Errors, CpuUs] = [list_to_integer(Word) || Word <- string:lexemes(Line, " \n")],
    Time = list_to_integer(Seconds),
    {Echoes / Time, case {Errors, Echoes} of {0, 0} -> no_answer; {0, _} -> all_answered; _ -> errors end,
     #{requests => Echoes, idle_percent => max(0.0, 100 * (1 - CpuUs / (Processes * Time * 1000000)))}}.

%% @doc Returns the program for the loads that wrk cannot produce; see http_load.c.
-spec load_program() -> file:filename().
load_program() ->
    {ok, Program} = beamway_bench_tools:compile("http_load", "cc"),
    Program.

%% ---- starting each server

-spec commands(name(), inet:port_number(), options()) -> [[string()]].
commands(yaws, Port, #{schedulers := Schedulers, backlog := Backlog}) ->
    Conf = ["logdir = ", folder(), "\nebin_dir = ", filename:join(beamway_bench_checkout:root(), "bench/ebin"), "\nmax_connections = nolimit\nkeepalive_timeout = 120000\nkeepalive_maxuses = nolimit\n<server localhost>\n  port = ",
            integer_to_list(Port), "\n  listen = 127.0.0.1\n  listen_backlog = ", integer_to_list(Backlog), "\n  docroot = ", folder(),
            "/root\n  access_log = false\n  partial_post_size = 2000000\n  appmods = </, beamway_bench_http_erlang exclude_paths file_1k.bin>\n"
            "  <listen_opts>\n    nodelay = true\n    buffer = 8192\n  </listen_opts>\n</server>\n"],
    [["env", "HOME=" ++ folder(), "ERL_FLAGS=" ++ lists:append(lists:join(" ", flags(Schedulers))),
      "yaws", "--conf", file("yaws.conf", Conf), "--daemon", "--id", "bench" ++ integer_to_list(Port)]];
commands(nginx, Port, #{schedulers := Workers, backlog := Backlog, fastcgi := Fastcgi}) ->
    Php = [["server { listen 127.0.0.1:", integer_to_list(Fastcgi), " backlog=1024; root ", folder(), "/root; location ~ \\.php$ { include /etc/nginx/fastcgi_params; ",
            "fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_keep_conn on; fastcgi_pass php; } } ",
            "upstream php { server unix:", folder(), "/nginx.sock; keepalive 32; }"] || is_integer(Fastcgi)],
    [nginx("nginx", Workers, ["open_file_cache max=1000; open_file_cache_valid 1s; server { listen 127.0.0.1:", integer_to_list(Port), " backlog=", integer_to_list(Backlog),
                        [" reuseport" || Workers > 1], "; root ", folder(), "/root; location = / { default_type text/plain; return 200 \"hello world\\n\"; } } ", Php])];
commands(nginx_tornado, Port, #{backlog := Backlog}) ->
    Behind = [Port + 1, Port + 2],
    Upstream = [["server 127.0.0.1:", integer_to_list(P), "; "] || P <- Behind],
    [nginx("nginx_tornado", 2, ["upstream tornado { ", Upstream, "} server { listen 127.0.0.1:", integer_to_list(Port), " backlog=", integer_to_list(Backlog),
                                "; location / { proxy_pass http://tornado; } }"])
     | [tornado(P, 128, 1) || P <- Behind]];
commands(apache2, Port, _) ->
    Conf = ["ServerRoot /usr/lib/apache2\nDefaultRuntimeDir ", folder(), "\nPidFile ", folder(), "/apache2.pid\nErrorLog /dev/null\nServerName localhost\nListen 127.0.0.1:",
            integer_to_list(Port), "\nLoadModule mpm_event_module modules/mod_mpm_event.so\nLoadModule authz_core_module modules/mod_authz_core.so\n",
            "LoadModule dir_module modules/mod_dir.so\nServerLimit 16\nThreadsPerChild 64\nMaxRequestWorkers 1024\nAsyncRequestWorkerFactor 20\n"
            "User www-data\nGroup www-data\nKeepAliveTimeout 120\nMaxKeepAliveRequests 0\nDocumentRoot ", folder(), "/root\nDirectoryIndex hello.txt\n"],
    _ = file("root/hello.txt", "hello world\n"),
    [["apache2", "-DFOREGROUND", "-f", file("apache2.conf", Conf)]];
commands(bare, Port, #{schedulers := Processes}) ->
    {ok, Program} = beamway_bench_tools:compile("http_bare", "cc"),
    [[Program, integer_to_list(Port) | [integer_to_list(Processes) || Processes > 1]]];
%% h2o serves hello world from a file, as apache2 does.
commands(h2o, Port, #{schedulers := Threads}) ->
    _ = file("root/hello.txt", "hello world\n"),
    Conf = ["num-threads: ", integer_to_list(Threads), "\nuser: www-data\nlisten:\n  host: 127.0.0.1\n  port: ", integer_to_list(Port), "\nhttp1-request-timeout: 120\n"
            "hosts:\n  default:\n    paths:\n      \"/\":\n        file.index: [ \"hello.txt\" ]\n        file.dir: ", folder(), "/root\n"],
    [["h2o", "-c", file("h2o.conf", Conf)]];
commands(caddy, Port, _) ->
    Conf = ["{\"admin\": {\"disabled\": true}, \"logging\": {\"logs\": {\"default\": {\"level\": \"ERROR\"}}},\n\"apps\": {\"http\": {\"servers\": {\"bench\": {"
            "\"listen\": [\"127.0.0.1:", integer_to_list(Port), "\"], \"automatic_https\": {\"disable\": true}, \"routes\": [\n"
            "{\"match\": [{\"path\": [\"/\"]}], \"handle\": [{\"handler\": \"static_response\", \"headers\": {\"Content-Type\": [\"text/plain\"]}, "
            "\"body\": \"hello world\\n\"}]},\n{\"handle\": [{\"handler\": \"file_server\", \"root\": \"", folder(), "/root\"}]}]}}}}}\n"],
    [["env", "HOME=" ++ folder(), "XDG_CONFIG_HOME=" ++ folder(), "XDG_DATA_HOME=" ++ folder(), "caddy", "run", "--config", file("caddy.json", Conf)]];
commands(go, Port, _) ->
    [[compile_go(), integer_to_list(Port), filename:join(folder(), "root")]];
commands(node, Port, #{schedulers := Processes, backlog := Backlog}) ->
    Program = "const cluster = require('cluster'), http = require('http'), { WebSocketServer } = require('ws');\n"
        "const [port, backlog, processes] = process.argv.slice(2).map(Number);\n"
        "const answer = (response, text, type = 'text/plain') => { response.writeHead(200, {'Content-Type': type, 'Content-Length': text.length}); response.end(text); };\n"
        "const serve = () => {\n"
        "  const server = http.createServer((request, response) => {\n"
        "    if (request.url === '/json') return answer(response, JSON.stringify({id: 42, message: 'hello world', ok: true}), 'application/json');\n"
        "    if (request.url !== '/upload') return answer(response, 'hello world\\n');\n"
        "    const parts = []; request.on('data', (part) => parts.push(part)); request.on('end', () => answer(response, String(Buffer.concat(parts).length)));\n"
        "  });\n"
        "  new WebSocketServer({server, path: '/ws'}).on('connection', (socket) => {\n"
        "    socket.on('message', (data, binary) => socket.send(data, {binary}));\n"
        "  });\n"
        "  server.keepAliveTimeout = 120000;\n"
        "  server.listen(port, '127.0.0.1', backlog);\n"
        "};\n"
        "if (processes > 1 && cluster.isPrimary) for (let i = 0; i < processes; i++) cluster.fork();\n"
        "else serve();\n",
    [["env", "NODE_PATH=/usr/share/nodejs", "node", file("hello.js", Program), integer_to_list(Port), integer_to_list(Backlog), integer_to_list(Processes)]];
commands(tornado, Port, #{schedulers := Processes, backlog := Backlog}) ->
    [tornado(Port, Backlog, Processes)];
commands(Name, Port, #{schedulers := Schedulers, backlog := Backlog, fastcgi := Fastcgi}) ->
    Root = beamway_bench_checkout:root(),
    [[beamway_bench_checkout:erl() | flags(Schedulers)] ++ ["-noinput", "-boot", "no_dot_erlang", "-pa", filename:join(Root, "bench/ebin"), filename:join(Root, "apps/yucan/ebin"),
      filename:join(Root, "apps/yucan_yaws/ebin"),
      "-s", "beamway_bench_http_erlang", "start", atom_to_list(Name), integer_to_list(Port), filename:join(folder(), "root"), integer_to_list(Backlog),
      case Fastcgi of none -> "none"; _ -> integer_to_list(Fastcgi) end]].

%% All servers in Erlang get the flags that bin/yucan sets.
flags(Schedulers) ->
    Count = integer_to_list(Schedulers),
    ["+S", Count ++ ":" ++ Count, "+sbwt", "none" | args_file(filename:join(beamway_bench_checkout:root(), "apps/yucan/priv/vm.args"))].

%% Splits the file into separate arguments, because yaws passes them on in an environment variable.
args_file(File) ->
    {ok, Text} = file:read_file(File),
    [Word || Line <- string:lexemes(binary_to_list(Text), "\n"), hd(Line) =/= $#, Word <- string:lexemes(Line, " ")].

nginx(Name, Workers, Servers) ->
    Conf = ["worker_processes ", integer_to_list(Workers), "; daemon off; pid ", folder(), "/", Name, ".pid; error_log /dev/null;\nevents { worker_connections 16384; }\n",
            "http { access_log off; sendfile on; tcp_nopush on; keepalive_timeout 120; keepalive_requests 1000000000; ", Servers, " }\n"],
    ["nginx", "-c", file(Name ++ ".conf", Conf)].

tornado(Port, Backlog, Processes) ->
    Program = "import logging, sys, tornado.httpserver, tornado.ioloop, tornado.web, tornado.websocket\n"
        "class Hello(tornado.web.RequestHandler):\n"
        "    def get(self):\n"
        "        self.set_header('Content-Type', 'text/plain')\n"
        "        self.write(b'hello world\\n')\n"
        "class Json(tornado.web.RequestHandler):\n"
        "    def get(self):\n"
        "        self.write({'id': 42, 'message': 'hello world', 'ok': True})\n"
        "class Echo(tornado.websocket.WebSocketHandler):\n"
        "    def on_message(self, message):\n"
        "        self.write_message(message)\n"
        "logging.getLogger('tornado.access').disabled = True\n"
        "port, backlog, processes = map(int, sys.argv[1:])\n"
        "server = tornado.httpserver.HTTPServer(tornado.web.Application([('/', Hello), ('/json', Json), ('/ws', Echo)]))\n"
        "server.bind(port, '127.0.0.1', backlog=backlog)\n"
        "server.start(processes)\n"
        "tornado.ioloop.IOLoop.current().start()\n",
    ["/usr/bin/python3", file("hello.py", Program), integer_to_list(Port), integer_to_list(Backlog), integer_to_list(Processes)].

%% Compiles the program with Debian's Go compiler, once for all runs in an overlay.
compile_go() ->
    [Go | _] = filelib:wildcard("/usr/lib/go-*/bin/go"),
    Program = "package main\n\nimport (\n\t\"encoding/json\"\n\t\"github.com/gorilla/websocket\"\n\t\"io\"\n\t\"net/http\"\n\t\"os\"\n\t\"strconv\"\n)\n\n"
        "type object struct {\n\tId int `json:\"id\"`\n\tMessage string `json:\"message\"`\n\tOk bool `json:\"ok\"`\n}\n\n"
        "var upgrader websocket.Upgrader\n\n"
        "func echo(w http.ResponseWriter, r *http.Request) {\n"
        "\tsocket, err := upgrader.Upgrade(w, r, nil)\n\tif err != nil {\n\t\treturn\n\t}\n\tdefer socket.Close()\n"
        "\tfor {\n\t\tkind, message, err := socket.ReadMessage()\n\t\tif err != nil || socket.WriteMessage(kind, message) != nil {\n\t\t\treturn\n\t\t}\n\t}\n}\n\n"
        "func main() {\n"
        "\tfiles := http.FileServer(http.Dir(os.Args[2]))\n"
        "\thttp.HandleFunc(\"/ws\", echo)\n"
        "\thttp.HandleFunc(\"/json\", func(w http.ResponseWriter, r *http.Request) {\n"
        "\t\tbody, _ := json.Marshal(object{42, \"hello world\", true})\n"
        "\t\tw.Header().Set(\"Content-Type\", \"application/json\")\n\t\tw.Write(body)\n\t})\n"
        "\thttp.HandleFunc(\"/upload\", func(w http.ResponseWriter, r *http.Request) {\n"
        "\t\tbody, _ := io.ReadAll(r.Body)\n\t\tio.WriteString(w, strconv.Itoa(len(body)))\n\t})\n"
        "\thttp.HandleFunc(\"/\", func(w http.ResponseWriter, r *http.Request) {\n"
        "\t\tif r.URL.Path != \"/\" {\n\t\t\tfiles.ServeHTTP(w, r)\n\t\t\treturn\n\t\t}\n"
        "\t\tw.Header().Set(\"Content-Type\", \"text/plain\")\n\t\tio.WriteString(w, \"hello world\\n\")\n\t})\n"
        "\tpanic(http.ListenAndServe(\"127.0.0.1:\"+os.Args[1], nil))\n}\n",
    Compiled = filename:join(folder(), "hello_go"),
    Words = ["HOME=" ++ folder(), "GO111MODULE=off", "GOPATH=/usr/share/gocode", Go, "build", "-o", Compiled, file("hello.go", Program)],
    case filelib:is_regular(Compiled) orelse beamway_bench_tools:run("/usr/bin/env", Words, 300000) of
        true -> Compiled;
        {0, _} -> Compiled;
        {_, Lines} -> error({go_does_not_compile, Lines})
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

every_erlang_server_has_the_flags_of_yucan_test_() ->
    Words = fun(Name) -> [[Flags, " "] || Command <- commands(Name, 18090, #{cores => "0", schedulers => 1, backlog => 1, fastcgi => none}), Flags <- Command] end,
    [{atom_to_list(Name), ?_assertNotEqual(nomatch, string:find(Words(Name), "+Musmbcs 256 +Mulmbcs 256"))} || Name <- [yucan, yucan_h2, yucan_h1, mochiweb, cowboy, yucan2009, default_buffer, minimal]].

h2load_said(Protocol, Rate, Requests) ->
    h2load_said(Protocol, "Application protocol: h2\nMain benchmark duration is over for thread #0. Stopping all clients.\n\nfinished in 3.01s, " ++ Rate
                ++ " req/s, 1.81MB/s\nrequests: " ++ Requests ++ " timeout\nstatus codes: 41002 2xx, 0 3xx, 0 4xx, 0 5xx\n").

h2load_said_test_() ->
    All = "41000 total, 41100 started, 41000 done, 41000 succeeded, 0 failed, 0 errored, 0",
    [?_assertEqual({20500.0, all_answered, 41000}, h2load_said("h2", "20500.00", All)),
     %% The server has chosen a different protocol.
     ?_assertMatch({_, errors, _}, h2load_said("http/1.1", "20500.00", All)),
     ?_assertMatch({_, no_answer, 0}, h2load_said("h2", "0.00", "0 total, 0 started, 0 done, 0 succeeded, 0 failed, 0 errored, 0"))
     | [?_assertMatch({_, errors, _}, h2load_said("h2", "20500.00", "41000 total, 41100 started, 41000 done, " ++ Rest))
        || Rest <- ["40999 succeeded, 1 failed, 0 errored, 0", "41000 succeeded, 0 failed, 1 errored, 0", "41000 succeeded, 0 failed, 0 errored, 1",
                    "40999 succeeded, 0 failed, 0 errored, 0"]]].

ours_run_in_this_otp_test() ->
    [[Erl | _]] = commands(yucan, 18090, #{schedulers => 1, backlog => 1, fastcgi => none}),
    ?assert(lists:prefix(code:root_dir(), Erl)).
-endif.
