%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs the small programs that the benchmarks use. Compiles our own programs if they are missing or outdated, and communicates with running
%% programs line by line. A program exits when its caller exits, because it then reads end of file from standard input.
-module(beamway_bench_tools).

-export([missing/2, compile/2, compile/3, open/2, os_pid/1, write/2, line/2, close/2, run/3, ask/5, with_folder/1]).

-export_type([program/0]).

-type program() :: port().

-define(LINE_LENGTH, 1000).
-define(START_MS, 60000).

%% @doc Returns the error with which a benchmark fails if a program that its overlay would contain is missing.
-spec missing(Program :: string(), Benchmark :: string()) -> {error, string()}.
missing(Program, Benchmark) ->
    {error, Program ++ " is not installed here; run it from a checkout, as root: bin/beamway bench " ++ Benchmark}.

%% @doc Returns the program compiled from NAME.c in a directory of `bench'. If it is missing or older than its source, it is compiled with this compiler, into the
%% directory of the beam files, from which `make clean' removes it.
-spec compile(Name :: string(), Compiler :: string()) -> {ok, file:filename()} | {error, string()}.
compile(Name, Compiler) ->
    compile(Name, Compiler, []).

%% @doc Like {@link compile/2}, but with libraries, such as `-lm'.
-spec compile(Name :: string(), Compiler :: string(), Libraries :: [string()]) ->
          {ok, file:filename()} | {error, string()}.
compile(Name, Compiler, Libraries) ->
    Source = beamway_bench_checkout:path(beamway_bench_checkout:source(Name ++ ".c")),
    Program = beamway_bench_checkout:path("bench/ebin/" ++ Name),
    case {filelib:last_modified(Program) > filelib:last_modified(Source), os:find_executable(Compiler)} of
        {true, _} -> {ok, Program};
        {false, false} -> {error, "the compiler '" ++ Compiler ++ "' is not installed"};
        {false, Path} -> compile(Path, Source, Program, Libraries)
    end.

compile(Compiler, Source, Program, Libraries) ->
    New = Program ++ ".new",
    case run(Compiler, ["-std=c11", "-O2", "-Wall", "-Wextra", "-o", New, Source | Libraries], 60000) of
        {0, _} -> ok = file:rename(New, Program), {ok, Program};
        {_, Output} -> {error, lists:flatten(["compiling ", Source, " failed: " | Output])}
    end.

%% @doc Starts a program. Its standard error is merged into its output.
-spec open(file:filename(), [string()]) -> program().
open(Program, Args) ->
    open_port({spawn_executable, Program},
              [{args, Args}, {line, ?LINE_LENGTH}, exit_status, stderr_to_stdout, use_stdio, hide]).

-spec os_pid(program()) -> {ok, pos_integer()} | ended.
os_pid(Port) ->
    case erlang:port_info(Port, os_pid) of
        {os_pid, OsPid} -> {ok, OsPid};
        undefined -> ended
    end.

-spec write(program(), iodata()) -> ok.
write(Port, Data) ->
    true = erlang:port_command(Port, Data),
    ok.

%% @doc Returns the next line that the program prints.
-spec line(program(), TimeoutMs :: timeout()) -> {line, string()} | {ended, Status :: integer()} | timeout.
line(Port, TimeoutMs) ->
    receive
        {Port, {data, {_, Line}}} -> {line, Line};
        {Port, {exit_status, Status}} -> {ended, Status}
    after TimeoutMs -> timeout
    end.

%% @doc Closes the program's input, which makes the program exit, and discards its remaining output. The signal is for a program that ignores its
%% input.
-spec close(program(), Signal :: none | string()) -> ok.
close(Port, Signal) ->
    _ = case {Signal, os_pid(Port)} of
            {none, _} -> ok;
            {_, ended} -> ok;
            {_, {ok, OsPid}} -> os:cmd("kill -" ++ Signal ++ " " ++ integer_to_list(OsPid))
        end,
    try erlang:port_close(Port) catch error:badarg -> true end,
    forget(Port).

forget(Port) ->
    receive {Port, _} -> forget(Port) after 0 -> ok end.

%% @doc Runs a program until it exits, and returns its exit status and output lines. It is killed if it takes too long.
-spec run(file:filename(), [string()], TimeoutMs :: pos_integer()) ->
          {Status :: integer() | timeout, [string()]}.
run(Program, Args, TimeoutMs) ->
    collect(open(Program, Args), erlang:monotonic_time(millisecond) + TimeoutMs, []).

collect(Port, Deadline, Lines) ->
    case line(Port, max(0, Deadline - erlang:monotonic_time(millisecond))) of
        {line, Line} -> collect(Port, Deadline, [Line ++ "\n" | Lines]);
        {ended, Status} -> {Status, lists:reverse(Lines)};
        timeout -> close(Port, "KILL"), {timeout, lists:reverse(Lines)}
    end.

%% @doc Sends a request to a program in a directory of `bench' that measures on request, and returns its answer, a JSON object. The first request starts the program,
%% which belongs to the calling process and exits with it. Lines that the program prints before its answer are shown to the user.
-spec ask(Bench :: string(), Name :: string(), [string()], Question :: iodata(), TimeoutMs :: pos_integer()) -> #{binary() => term()}.
ask(Bench, Name, Args, Question, TimeoutMs) ->
    Port = asked(Bench, Name, Args),
    ok = write(Port, [Question, $\n]),
    case answer(Bench, Port, TimeoutMs) of
        #{<<"failure">> := Why} -> error({failed, Name, unicode:characters_to_binary(Question), Why});
        Answer -> Answer
    end.

asked(Bench, Name, Args) ->
    case get({?MODULE, Name}) of
        undefined ->
            Port = open(beamway_bench_checkout:path(beamway_bench_checkout:source(Name)), Args),
            #{<<"ready">> := true} = answer(Bench, Port, ?START_MS),
            undefined = put({?MODULE, Name}, Port),
            Port;
        Port -> Port
    end.

answer(Bench, Port, TimeoutMs) ->
    case line(Port, TimeoutMs) of
        {line, "{" ++ _ = Line} -> jiffy:decode(Line, [return_maps]);
        {line, Line} -> beamway_bench_text:note("bench ~ts: ~ts", [Bench, Line]), answer(Bench, Port, TimeoutMs);
        Else -> error({does_not_answer, Bench, Else})
    end.

%% @doc Calls the function with a new directory that only this user can access, and removes the directory afterwards.
-spec with_folder(fun((Folder :: file:filename()) -> Result)) -> Result.
with_folder(Fun) ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    try Fun(Folder) after file:del_dir_r(Folder) end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

run_test_() ->
    [?_assertEqual({3, ["a\n", "b\n"]}, run("/bin/sh", ["-c", "echo a; echo b >&2; exit 3"], 5000)),
     ?_assertMatch({timeout, ["x\n"]}, run("/bin/sh", ["-c", "echo x; exec sleep 60"], 200))].

a_timed_out_program_is_gone_test() ->
    Port = open("/bin/sleep", ["60"]),
    {ok, OsPid} = os_pid(Port),
    Identity = beamway_bench_os:identity(OsPid),
    ok = close(Port, "KILL"),
    ?assertEqual(ok, beamway_bench_os:await_end(Identity, 5000)).

talk_test() ->
    Port = open("/bin/cat", []),
    ok = write(Port, "hello\n"),
    ?assertEqual({line, "hello"}, line(Port, 5000)),
    ?assertEqual(timeout, line(Port, 0)),
    ok = close(Port, none),
    ?assertEqual(ended, os_pid(Port)).
-endif.
