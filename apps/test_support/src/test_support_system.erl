%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs `test/system/run NAME' as a test case. It installs real applications, which are removed afterwards.
-module(test_support_system).

-export([run/1]).

%% @doc Runs the script. The case fails if the script fails, and is skipped without root. The script's output is copied to the case's output
%% line by line; its last line has the counts.
-spec run(Name :: string()) -> ok | {skip, {rights, string()}}.
run(Name) ->
    case string:trim(os:cmd("id -u")) of
        "0" ->
            Port = open_port({spawn_executable, test_support:file("test/system/run")}, [{args, [Name]}, exit_status, stderr_to_stdout, {line, 1000}]),
            {Status, Lines} = test_support:until_ended(Port, 420000 * beamway_runner:slowness()),
            [beamway_runner:say("     ~ts", [Line]) || Line <- Lines],
            {Name, 0} = {Name, Status},
            ok;
        _ -> {skip, {rights, "needs root for an overlay: sudo test/system/run " ++ Name}}
    end.
