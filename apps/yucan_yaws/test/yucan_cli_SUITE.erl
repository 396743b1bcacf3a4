%% SPDX-License-Identifier: Apache-2.0
%% @doc The `yucan' command as a user runs it: a folder at once, wrong words, a daemon, watching of sources.
-module(yucan_cli_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([folder/1, wrong_words/1, closed_descriptors/1, cannot_serve/1, announced/1, daemon/1, daemon_cannot_serve/1, attached/1, watch/1, crash/1]).

-include_lib("common_test/include/ct.hrl").

-define(WAIT_MS, (30000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [folder, wrong_words, closed_descriptors, cannot_serve, announced, daemon, daemon_cannot_serve, attached, watch, crash].

init_per_suite(Config) ->
    Served = filename:join(?config(priv_dir, Config), "served"),
    ok = filelib:ensure_dir(filename:join(Served, "x")),
    ok = file:write_file(filename:join(Served, "a.txt"), "content"),
    [{command, test_support:file("bin/yucan")}, {served, Served} | Config].

end_per_suite(_) -> ok.

open(Config, Words) -> open(Config, Words, []).

open(Config, Words, Environment) ->
    open_port({spawn_executable, ?config(command, Config)}, [{args, Words}, {env, Environment}, {line, 2000}, exit_status, stderr_to_stdout, use_stdio]).

line(Port) ->
    receive
        {Port, {data, {eol, Line}}} -> Line;
        {Port, {exit_status, Status}} -> {status, Status}
    after ?WAIT_MS -> error(silence)
    end.

run(Config, Words, Environment) -> run(open(Config, Words, Environment)).

run(Port) ->
    case line(Port) of
        {status, Status} -> {Status, []};
        Line -> {Status, Lines} = run(Port), {Status, [Line | Lines]}
    end.

stop(Port) ->
    {os_pid, Pid} = erlang:port_info(Port, os_pid),
    os:cmd("kill -9 " ++ integer_to_list(Pid)),
    ok.

port_in(Line) ->
    {match, [Digits]} = re:run(Line, ":(\\d+)/", [{capture, all_but_first, list}]),
    list_to_integer(Digits).

folder(Config) ->
    Served = open(Config, ["--port", "0", ?config(served, Config)]),
    try
        "yucan: serving " ++ _ = Line = line(Served),
        {200, _, <<"content">>} = yucan_client:get(port_in(Line), "/a.txt"),
        {200, _, Page} = yucan_client:get(port_in(Line), "/"),
        {_, _} = binary:match(Page, <<"a.txt">>)
    after
        stop(Served)
    end.

%% What goes wrong in a handler is said on standard error.
crash(Config) ->
    Ebin = yucan_yaws_site:compile(Config, "crash", [{"yucan_cli_crash.erl", "-module(yucan_cli_crash).\n-export([out/1]).\nout(_) -> error(crashed_on_purpose).\n"}]),
    File = yucan_yaws_site:write(Config, "crash.conf", ["ebin_dir = ", Ebin, "\n", yucan_yaws_site:server("h", "appmods = </, yucan_cli_crash>\n")]),
    Errors = filename:join(?config(priv_dir, Config), "errors"),
    Served = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", "exec \"$0\" \"$1\" 2>\"$2\"", ?config(command, Config), File, Errors]},
                                                       {line, 2000}, exit_status, use_stdio]),
    try
        "yucan: serving " ++ _ = Line = line(Served),
        {500, _, _} = yucan_client:get(port_in(Line), "/"),
        beamway_peer:wait_until(fun() ->
            {ok, Text} = file:read_file(Errors),
            re:run(Text, "the handler failed for GET /: .*crashed_on_purpose", [{capture, none}]) =:= match
        end, 20000)
    after
        stop(Served)
    end.

wrong_words(Config) ->
    [{2, [_]} = run(Config, Words, []) || Words <- [[], ["--port"], ["--port", "x", "."], ["--ip", "here", "."], ["--nothing", "."], [".", "."]]],
    [{1, [_]} = run(Config, Words, []) || Words <- [["/no/such/folder"], ["--ip", "192.0.2.1", "--port", "0", "."]]],
    {0, [_ | _]} = run(Config, ["--help"], []).

%% One line that says what, why and what to do; no term of Erlang.
cannot_serve(Config) ->
    {ok, Taken} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Taken),
    Served = ?config(served, Config),
    [{1, [Expected]} = {element(1, Result), element(2, Result)}
     || {Words, Expected} <- [{["--port", integer_to_list(Port)], lists:concat(["yucan: cannot listen on 127.0.0.1 port ", Port,
                                                                                 ": address already in use; end the program that listens there, or choose another port"])},
                              {["--ip", "192.0.2.1", "--port", "0"], "yucan: cannot listen on 192.0.2.1 port 0: can't assign requested address; "
                               "choose an address of this host (`ip address' shows them)"},
                              {["--port", "0", "--log", "/no/such/log"], "yucan: the access log /no/such/log cannot be opened: no such file or directory"}],
        Result <- [run(Config, Words ++ [Served], [])]],
    gen_tcp:close(Taken).

%% What listens with TLS is announced as https.
announced(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "announced"),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    #{certfile := Certificate, keyfile := Key} = yucan_test_server:certificate("localhost", Folder),
    File = filename:join(Folder, "site.conf"),
    ok = file:write_file(File, ["<server localhost>\nport = 0\ndocroot = ", ?config(served, Config), "\n<ssl>\ncertfile = ", Certificate, "\nkeyfile = ", Key, "\n</ssl>\n</server>\n"]),
    Served = open(Config, [File]),
    try
        {match, _} = re:run(line(Served), "^yucan: serving .* at https://127\\.0\\.0\\.1:\\d+/$")
    after
        stop(Served)
    end.

%% Whoever starts a daemon reads why it does not serve, at once; the next start is not told that.
daemon_cannot_serve(Config) ->
    Environment = environment(),
    {1, ["yucan: the access log /no/such/log cannot be opened: no such file or directory"]} =
        run(Config, ["--daemon", "three", "--port", "0", "--log", "/no/such/log", ?config(served, Config)], Environment),
    {2, ["yucan: --port x: 0 to 65535 is expected; see: yucan --help"]} = run(Config, ["--daemon", "three", "--port", "x", "."], Environment),
    {0, ["yucan: serving " ++ _]} = run(Config, ["--daemon", "three", "--port", "0", ?config(served, Config)], Environment),
    {0, ["yucan: stopping"]} = run(Config, ["--stop", "three"], Environment).

%% As services and cron may start it: nothing takes the place of a standard descriptor that is closed.
closed_descriptors(Config) ->
    [begin
         {ok, Free} = gen_tcp:listen(0, [{reuseaddr, true}]),
         {ok, Port} = inet:port(Free),
         ok = gen_tcp:close(Free),
         Words = [?config(command, Config), "--port", integer_to_list(Port), ?config(served, Config)],
         Served = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", "exec \"$@\" " ++ Closed, "sh" | Words]}, exit_status]),
         try
             {200, _, <<"content">>} = served(Port, erlang:monotonic_time(millisecond) + ?WAIT_MS)
         after
             stop(Served)
         end
     end || Closed <- ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]].

served(Port, Deadline) ->
    try yucan_client:get(Port, "/a.txt")
    catch _:_ ->
        true = erlang:monotonic_time(millisecond) < Deadline,
        timer:sleep(20),
        served(Port, Deadline)
    end.

%% Names of sockets are short.
environment() ->
    Folder = "/tmp/yucan_cli_" ++ os:getpid(),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    [{"XDG_RUNTIME_DIR", Folder}].

%% Started, asked, reloaded, ended.
daemon(Config) ->
    Environment = environment(),
    {0, [Line]} = run(Config, ["--daemon", "one", "--port", "0", ?config(served, Config)], Environment),
    Port = port_in(Line),
    {200, _, <<"content">>} = yucan_client:get(Port, "/a.txt"),
    {1, ["yucan: a daemon of this name runs already"]} = run(Config, ["--daemon", "one", "--port", "0", "."], Environment),
    {0, ["yucan: reloaded"]} = run(Config, ["--reload", "one"], Environment),
    {200, _, <<"content">>} = yucan_client:get(Port, "/a.txt"),
    {0, ["yucan: serving " ++ _]} = run(Config, ["--status", "one"], Environment),
    {0, ["yucan: stopping"]} = run(Config, ["--stop", "one"], Environment),
    gone(Config, Environment, erlang:monotonic_time(millisecond) + ?WAIT_MS),
    {2, _} = run(Config, ["--status", "../one"], Environment).

gone(Config, Environment, Deadline) ->
    case run(Config, ["--status", "one"], Environment) of
        {1, ["yucan: no daemon of this name runs"]} -> ok;
        _ -> true = erlang:monotonic_time(millisecond) < Deadline, gone(Config, Environment, Deadline)
    end.

%% The shell of a daemon, on a terminal that `script' makes: watching goes off and on there, and Ctrl-D leaves it alone.
attached(Config) ->
    Environment = environment(),
    {Folder, Write} = watched(Config, "attached"),
    {0, [_]} = run(Config, ["--daemon", "two", "--port", "0", "--watch", Folder, ?config(served, Config)], Environment),
    Shell = open_port({spawn_executable, "/usr/bin/script"}, [{args, ["-qec", ?config(command, Config) ++ " --attach two", "/dev/null"]}, {env, Environment},
                                                               binary, exit_status, stderr_to_stdout]),
    Rest = typed(Shell, "1234 + 4321.\n", "5555", <<>>),
    Off = typed(Shell, "{off, yucan_watch:off()}.\n", "{off,ok}", Rest),
    Write("-module(yucan_watched).\n-export([f/0]).\nf() -> 10203.\n", 1),
    %% Longer than it takes to look, twice.
    Not = typed(Shell, "timer:sleep(1500), {loaded, code:is_loaded(yucan_watched)}.\n", "{loaded,false}", Off),
    On = typed(Shell, "{on, yucan_watch:on()}.\n", "{on,ok}", Not),
    New = typed(Shell, "", "Recompiled: ", On),
    _ = typed(Shell, "yucan_watched:f() + 1.\n", "10204", New),
    true = port_command(Shell, <<4>>),
    receive {Shell, {exit_status, _}} -> ok after ?WAIT_MS -> error(does_not_leave) end,
    {0, ["yucan: serving " ++ _]} = run(Config, ["--status", "two"], Environment),
    {0, ["yucan: stopping"]} = run(Config, ["--stop", "two"], Environment).

%% Types a text and waits for an answer; gives what was said behind it.
typed(Shell, Text, Answer, Before) ->
    true = port_command(Shell, Text),
    said(Shell, list_to_binary(Answer), Before).

said(Shell, Answer, Before) ->
    case binary:split(Before, Answer) of
        [_, Behind] -> Behind;
        [_] ->
            receive
                {Shell, {data, Data}} -> said(Shell, Answer, <<Before/binary, Data/binary>>);
                {Shell, {exit_status, Status}} -> error({shell_ended, Status, Before})
            after ?WAIT_MS -> error({not_said, Answer, Before})
            end
    end.

%% A folder, and what writes a module into it.
watched(Config, Name) ->
    Folder = filename:join(?config(priv_dir, Config), Name),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    {Folder, fun(Text, Second) ->
        %% It appears at once, with its text and its time: whoever looks meanwhile sees no half of it.
        File = filename:join(Folder, "yucan_watched.erl"),
        ok = file:write_file(File ++ ".new", Text),
        ok = file:change_time(File ++ ".new", {{2030, 1, 1}, {0, 0, Second}}),
        ok = file:rename(File ++ ".new", File)
    end}.

%% An error is told with its line, then that it is fixed.
watch(Config) ->
    {Folder, Write} = watched(Config, "watched"),
    Served = open(Config, ["--port", "0", "--watch", Folder, ?config(served, Config)]),
    try
        "yucan: serving " ++ _ = line(Served),
        Write("-module(yucan_watched).\n-export([f/0]).\nf() -> 1.\n", 1),
        "Recompiled: " ++ _ = line(Served),
        Write("-module(yucan_watched).\n-export([f/0]).\nf() -> unbound(X).\n", 2),
        {match, _} = re:run(line(Served), "^Error: .*yucan_watched.erl:3: "),
        {match, _} = re:run(line(Served), "^Error: .*yucan_watched.erl:3: "),
        Write("-module(yucan_watched).\n-export([f/0]).\nf() -> 2.\n", 3),
        "Fixed! " ++ _ = line(Served)
    after
        stop(Served)
    end.
