%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs an external program and collects its output.
-module(placement_program).

-export([run/3]).

%% @doc Runs a program until it exits, and returns what it wrote to standard output and standard error. `timeout' means
%% that the program did not exit in time; its output is then closed, but the program itself continues to run.
-spec run(file:filename_all(), [string()], timeout()) -> {ok, Said :: binary()} | {error, {status, pos_integer(), Said :: binary()} | timeout}.
run(Program, Arguments, TimeoutMs) ->
    Port = open_port({spawn_executable, Program}, [{args, Arguments}, exit_status, stderr_to_stdout, binary]),
    said(Port, <<>>, TimeoutMs).

said(Port, Said, TimeoutMs) ->
    receive
        {Port, {data, Text}} -> said(Port, <<Said/binary, Text/binary>>, TimeoutMs);
        {Port, {exit_status, 0}} -> {ok, Said};
        {Port, {exit_status, Status}} -> {error, {status, Status, Said}}
    after TimeoutMs ->
        true = port_close(Port),
        {error, timeout}
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

run_test_() ->
    [?_assertEqual(Want, run("/bin/sh", ["-c", Script], Ms))
     || {Want, Script, Ms} <- [{{ok, <<"a\nb\n">>}, "echo a; echo b >&2", 10000}, {{error, {status, 3, <<"a\n">>}}, "echo a; exit 3", 10000},
                               {{error, timeout}, "exec sleep 1", 10}]].
-endif.
