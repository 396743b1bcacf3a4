%% SPDX-License-Identifier: Apache-2.0
%% @doc PHP and git's servers under yucan, nginx and haproxy before it, as part of `make test': `test/system/run NAME' installs them for itself and runs a suite
%% of its own. WordPress, the wikis, Trac and Chromium take longer and have make targets.
-module(yucan_apps_SUITE).

-export([all/0, suite/0]).
-export([php/1, git/1, fronts/1]).

suite() -> [{timetrap, {minutes, 8}}].

all() -> [php, git, fronts].

php(_) -> as_root("php").

git(_) -> as_root("git").

fronts(_) -> as_root("fronts").

as_root(Name) ->
    case string:trim(os:cmd("id -u")) of
        "0" -> run(Name);
        _ -> {skip, {rights, "needs root for an overlay: sudo make test T=yucan_apps_SUITE"}}
    end.

%% What the script says is in its output, line by line; its last line holds the counts.
run(Name) ->
    Port = open_port({spawn_executable, test_support:file("test/system/run")},
                     [{args, [Name]}, exit_status, stderr_to_stdout, {line, 1000}]),
    {Status, Lines} = collect(Port, []),
    [beamway_runner:say("     ~ts", [Line]) || Line <- Lines],
    {Name, 0} = {Name, Status},
    ok.

collect(Port, Lines) ->
    receive
        {Port, {data, {_, Line}}} -> collect(Port, [Line | Lines]);
        {Port, {exit_status, Status}} -> {Status, lists:reverse(Lines)}
    after 420000 * beamway_runner:slowness() -> error({silent, lists:reverse(Lines)})
    end.

