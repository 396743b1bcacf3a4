%% SPDX-License-Identifier: Apache-2.0
%% @doc `test/system/run NAME' as a case: real applications, which it installs for itself and which are gone afterwards.
-module(test_support_system).

-export([run/1]).

%% @doc Fails if the script does; skips without root. What the script says is in the case's output, line by line; its last line holds the counts.
-spec run(Name :: string()) -> ok | {skip, {rights, string()}}.
run(Name) ->
    case string:trim(os:cmd("id -u")) of
        "0" ->
            Port = open_port({spawn_executable, test_support:file("test/system/run")}, [{args, [Name]}, exit_status, stderr_to_stdout, {line, 1000}]),
            {Status, Lines} = collect(Port, []),
            [beamway_runner:say("     ~ts", [Line]) || Line <- Lines],
            {Name, 0} = {Name, Status},
            ok;
        _ -> {skip, {rights, "needs root for an overlay: sudo test/system/run " ++ Name}}
    end.

collect(Port, Lines) ->
    receive
        {Port, {data, {_, Line}}} -> collect(Port, [Line | Lines]);
        {Port, {exit_status, Status}} -> {Status, lists:reverse(Lines)}
    after 420000 * beamway_runner:slowness() -> error({silent, lists:reverse(Lines)})
    end.
