%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests yucan as users see it, in Debian's Chromium (`visit.js'): the button of examples/nitrogen in both of its sites, WebSockets
%% with and without compression, and events. Run by `test/system/run browser', in an overlay that is removed afterwards.
-module(yucan_browser_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([chromium/1]).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [chromium].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

chromium(Config) ->
    Sites = yucan_yaws_site:nitrogen(Config),
    Self = self(),
    %% The certificate is that of `yucan FOLDER --https'.
    true = os:putenv("XDG_DATA_HOME", proplists:get_value(priv_dir, Config)),
    {ok, #{listen := [#{tls := Certificate}]}} = yucan_folder:options(#{what => ".", https => true}),
    Log = {function, fun(Entry) -> Self ! {entry, maps:with([target, version], Entry)} end},
    Sockets = yucan_test_server:start(yucan_browser, #{listen => [#{port => 0}, #{port => 0, tls => Certificate}], access_log => Log}),
    [_, {_, Secure}] = maps:get(listen, yucan:info(yucan_browser)),
    Program = test_support:file("test/system/yucan/visit.js"),
    Port = open_port({spawn_executable, os:find_executable("node")},
                     [{args, [Program, "/usr/bin/chromium", integer_to_list(Sites), integer_to_list(Sockets), integer_to_list(Secure)]}, {env, [{"NODE_PATH", os:getenv("NODE_MODULES")}]},
                      exit_status, stderr_to_stdout, {line, 1000}]),
    {Status, Lines} = test_support:until_ended(Port, 240000),
    [beamway_runner:say("     ~ts", [Line]) || Line <- Lines],
    {0, "all seen"} = {Status, lists:last(Lines)},
    %% One of the WebSockets must have been an HTTP/2 stream.
    [11, 20] = lists:sort(versions(<<"/ws">>)).

versions(Target) ->
    receive {entry, #{target := Target, version := Version}} -> [Version | versions(Target)]
    after 0 -> []
    end.
