%% SPDX-License-Identifier: Apache-2.0
%% @doc A release made with plain mix (test/system/elixir) runs as three nodes over each carrier: GenServers and
%% tasks across nodes, a node that is killed while it runs another node's tasks, and its return.
%%
%% The groups use the two methods in docs/guide/elixir.md for running a release on Beamway: for `beamway_tcp' and `beamway_shm' Beamway is part of the
%% release; `environment' starts a release that does not contain Beamway (as for `inet_tcp') with three environment variables. The suite queries a
%% node through the release's own `rpc' command.
-module(beamway_elixir_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2,
         init_per_testcase/2, end_per_testcase/2]).
-export([across_nodes/1, node_killed_and_returned/1]).

-import(beamway_compat_nodes, [start_program/3, stop_program/1, expect_line/2]).

-define(COOKIE, "beamway_elixir").
-define(RPC_MS, 60000).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [{group, Group} || {Group, _, _} <- groups()].

groups() ->
    [{Group, [], [across_nodes, node_killed_and_returned]} || Group <- [inet_tcp, beamway_tcp, beamway_shm]]
        ++ [{environment, [], [across_nodes]}].

init_per_suite(Config) ->
    case {beamway_peer:unless_wrapped("a release starts its VM by itself", Config), os:find_executable("mix"), filelib:is_file(filename:join(project(), "mix.exs"))} of
        {{skip, Why}, _, _} -> {skip, Why};
        {_, false, _} -> {skip, "mix is not installed (elixir)"};
        {_, _, false} -> {skip, "only in a checkout, with " ++ project()};
        {Config, Mix, true} -> build(Mix, proplists:get_value(priv_dir, Config)), Config
    end.

end_per_suite(_Config) -> ok.

init_per_group(Group, Config) ->
    [{group, Group} | Config].

end_per_group(_Group, _Config) -> ok.

init_per_testcase(_Case, Config) ->
    Names = [beamway_peer:unique_name("relay") || _ <- lists:seq(1, 3)],
    Programs = [{Name, start(Config, Name)} || Name <- Names],
    [ok = expect_line(Program, "relay is up") || {_, Program} <- Programs],
    [{programs, Programs} | Config].

end_per_testcase(_Case, Config) ->
    [stop_program(Program) || {_, Program} <- proplists:get_value(programs, Config)],
    ok.

%% --- the release ---------------------------------------------------------------------------------------

project() ->
    test_support:file("test/system/elixir").

apps() ->
    filename:dirname(filename:dirname(filename:absname(beamway_peer:ebin()))).

%% Builds a copy, because mix writes into its project.
build(Mix, Dir) ->
    Copy = filename:join(Dir, "project"),
    {0, _} = run("/bin/cp", ["-r", project(), Copy], []),
    [begin
         Where = "cd '" ++ Copy ++ "' && exec '" ++ Mix ++ "' release " ++ Name ++ " --path '" ++ filename:join(Dir, Name) ++ "'",
         {0, _} = run("/bin/sh", ["-c", Where], [{"MIX_ENV", "prod"}, {"MIX_HOME", filename:join(Dir, "mix")} | Env])
     end || {Name, Env} <- [{"plain", [{"ERL_LIBS", false}]}, {"beamway", [{"ERL_LIBS", apps()}]}]].

start(Config, Name) ->
    start_program(command(Config), ["start"], environment(Config, Name)).

command(Config) ->
    Release = case group(Config) of
                  inet_tcp -> "plain";
                  environment -> "plain";
                  _ -> "beamway"
              end,
    filename:join([proplists:get_value(priv_dir, Config), Release, "bin", Release]).

group(Config) -> proplists:get_value(group, Config).

%% RELEASE_NODE is a name without a host, so the release's own commands can address the node.
environment(Config, Name) ->
    Tmp = filename:join(proplists:get_value(priv_dir, Config), Name),
    carrier_environment(group(Config))
        ++ [{"RELEASE_NODE", Name}, {"RELEASE_COOKIE", ?COOKIE}, {"RELEASE_TMP", Tmp}, {"RELEASE_DISTRIBUTION", "sname"}].

carrier_environment(environment) ->
    [{"ERL_LIBS", apps()}, {"RELEASE_MODE", "interactive"}, {"ELIXIR_ERL_OPTIONS", "-proto_dist beamway"}
     | beamway_peer:environment(beamway_shm)];
carrier_environment(Carrier) ->
    [{"ERL_LIBS", false}, {"RELEASE_MODE", false}, {"ELIXIR_ERL_OPTIONS", false} | beamway_peer:environment(Carrier)].

kind(Config) ->
    case group(Config) of
        environment -> shm;
        Carrier -> beamway_peer:link_kind(Carrier)
    end.

%% --- asking a node -------------------------------------------------------------------------------------

%% Runs `Relay.Call' on the node; an exception becomes the reason for the failure.
relay(Config, Name, Call) ->
    Code = "IO.puts(inspect(Relay." ++ Call ++ "))",
    {Status, Lines} = run(command(Config), ["rpc", Code], environment(Config, Name)),
    case {Status, lists:member(":ok", Lines)} of
        {0, true} -> ok;
        _ -> error({relay, Call, Status, Lines})
    end.

run(Executable, Args, Env) ->
    Program = start_program(Executable, Args, Env),
    {ok, Timer} = timer:send_after(?RPC_MS, {Program, too_late}),
    Result = collect(Program, []),
    {ok, cancel} = timer:cancel(Timer),
    Result.

collect(Program, Lines) ->
    receive
        {Program, {data, {_, Line}}} -> collect(Program, [Line | Lines]);
        {Program, {exit_status, Status}} -> {Status, lists:reverse(Lines)};
        {Program, too_late} ->
            stop_program(Program),
            error({too_late, lists:reverse(Lines)})
    end.

names(Config) -> [Name || {Name, _} <- proplists:get_value(programs, Config)].

%% Formats the nodes as an Elixir list.
list(Names) ->
    lists:flatten(["[", lists:join(", ", [node_atom(Name) || Name <- Names]), "]"]).

node_atom(Name) ->
    ":\"" ++ Name ++ "@" ++ beamway_compat_nodes:host() ++ "\"".

connect(Config, Name, Others) ->
    relay(Config, Name, lists:concat(["connect(", list(Others), ", :", kind(Config), ")"])).

%% --- cases ---------------------------------------------------------------------------------------------

across_nodes(Config) ->
    [First | Others] = names(Config),
    ok = connect(Config, First, Others),
    ok = connect(Config, hd(Others), [First]),
    [ok = relay(Config, First, Function ++ "(" ++ list(Others) ++ ")") || Function <- ["gen_servers", "failing_calls", "tasks"]],
    relay(Config, lists:last(Others), "gen_servers(" ++ list([First]) ++ ")").

node_killed_and_returned(Config) ->
    [First, Second, Third] = names(Config),
    ok = connect(Config, First, [Second, Third]),
    ok = relay(Config, First, "killed(" ++ node_atom(Third) ++ ")"),
    ok = relay(Config, First, "gen_servers(" ++ list([Second]) ++ ")"),
    Again = start(Config, Third),
    try
        ok = expect_line(Again, "relay is up"),
        ok = connect(Config, First, [Third]),
        ok = relay(Config, First, "tasks(" ++ list([Third, Second]) ++ ")"),
        %% The release's own command stops it.
        {0, _} = run(command(Config), ["stop"], environment(Config, Third)),
        receive {Again, {exit_status, 0}} -> ok after 30000 -> error(still_running) end
    after
        stop_program(Again)
    end.
