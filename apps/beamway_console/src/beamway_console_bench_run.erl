%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs a benchmark for a browser: starts the command in its quick form, and waits for it in
%% the calling process. The benchmark is stopped when that process exits.
-module(beamway_console_bench_run).

-export([run/3]).

%% Standard output goes to a file, and standard error is sent to this process line by line. The
%% shell also waits for the end of its input, which comes when this process exits. It then removes
%% the directory and stops the benchmark, because a killed process could not do so itself.
-define(SCRIPT, "exec 3>&1 4<&0; \"$1\" bench \"$2\" --quick --json 2>&3 >\"$3/result\" 3>&- 4<&- </dev/null & child=$!; "
                "{ read -r _ <&4; rm -r \"$3\"; kill -TERM $child; } 2>/dev/null 3>&- & wait $child; status=$?; kill $! 2>/dev/null; exit $status").
-define(SILENT_MS, 120000).

%% @doc Runs a benchmark, and passes on each line that it prints on standard error. The result is its JSON output, converted with {@link
%% beamway_console_bench:object/1}.
-spec run(Command :: file:filename(), Name :: binary(), Tell :: fun((map()) -> ok)) -> {ok, map()} | {error, binary()}.
run(Command, Name, Tell) ->
    beamway_console_folder:with(fun(Folder) ->
        Port = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", ?SCRIPT, "sh", Command, Name, Folder]}, exit_status, binary, {line, 500}, use_stdio]),
        ended(followed(Port, Tell), filename:join(Folder, "result"))
    end).

followed(Port, Tell) ->
    receive
        {Port, {data, {_, Line}}} ->
            _ = [Tell(#{line => unicode:characters_to_binary([printable(C) || <<C/utf8>> <= Line])}) || Line =/= <<>>],
            followed(Port, Tell);
        {Port, {exit_status, Status}} -> Status
    after ?SILENT_MS -> silent
    end.

printable(C) when C >= $\s, C =/= 127 -> C;
printable(_) -> $\s.

ended(0, File) ->
    {ok, Bytes} = file:read_file(File),
    case beamway_console_bench:object(Bytes) of
        {ok, Object} -> {ok, Object};
        {error, Why} -> {error, unicode:characters_to_binary(["its result is ", Why])}
    end;
ended(silent, _) -> {error, <<"it said nothing for two minutes">>};
ended(Status, _) -> {error, unicode:characters_to_binary(io_lib:format("it ended with status ~b", [Status]))}.
