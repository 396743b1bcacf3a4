%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs an external program and collects its output.
-module(placement_program).

-export([run/3]).

%% @doc Returns what the program wrote to standard output and standard error, once it has ended. With `timeout' it did
%% not end in time; its output is then closed, and the program itself continues.
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
