%% SPDX-License-Identifier: Apache-2.0
%% @doc `test/system/run NAME' as a case: real applications, which it installs for itself and which are gone afterwards.
-module(test_support_system).

-export([run/1]).

%% @doc Fails if the script does, and skips without root. The script's output is in the case's output, line by line, and its last line has the
%% counts.
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
