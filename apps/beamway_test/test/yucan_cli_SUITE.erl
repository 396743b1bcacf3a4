%% SPDX-License-Identifier: Apache-2.0
%% @doc The `yucan' command as a user runs it: a folder at once, wrong words, a daemon, watching of sources.
-module(yucan_cli_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([folder/1, wrong_words/1, daemon/1, watch/1]).

-include_lib("common_test/include/ct.hrl").

-define(WAIT_MS, (30000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [folder, wrong_words, daemon, watch].

init_per_suite(Config) ->
    Root = filename:dirname(filename:dirname(filename:dirname(filename:dirname(code:which(?MODULE))))),
    Served = filename:join(?config(priv_dir, Config), "served"),
    ok = filelib:ensure_dir(filename:join(Served, "x")),
    ok = file:write_file(filename:join(Served, "a.txt"), "content"),
    [{command, filename:join([Root, "bin", "yucan"])}, {served, Served} | Config].

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

wrong_words(Config) ->
    [{2, [_]} = run(Config, Words, []) || Words <- [[], ["--port"], ["--port", "x", "."], ["--ip", "here", "."], ["--nothing", "."], [".", "."]]],
    [{1, [_]} = run(Config, Words, []) || Words <- [["/no/such/folder"], ["--ip", "192.0.2.1", "--port", "0", "."]]],
    {0, [_ | _]} = run(Config, ["--help"], []).

%% Started, asked, reloaded, ended.
daemon(Config) ->
    %% Names of sockets are short.
    Environment = [{"XDG_RUNTIME_DIR", "/tmp/yucan_cli_" ++ os:getpid()}],
    ok = filelib:ensure_dir(filename:join("/tmp/yucan_cli_" ++ os:getpid(), "x")),
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

%% An error is told with its line, then that it is fixed.
watch(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "watched"),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    Write = fun(Text, Second) ->
        %% Under its name only with its time: the watcher would see two changes.
        New = filename:join(Folder, "new"),
        ok = file:write_file(New, Text),
        ok = file:change_time(New, {{2030, 1, 1}, {0, 0, Second}}),
        ok = file:rename(New, filename:join(Folder, "yucan_watched.erl"))
    end,
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
