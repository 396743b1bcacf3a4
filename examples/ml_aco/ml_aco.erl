%% SPDX-License-Identifier: Apache-2.0
%% @doc Multi-level ant colony optimisation on real nodes, placed by `placement': the application of the RELEASE report D3.5.
%%
%% `examples/ml_aco/run' starts nodes on this host, measures how fast each of them is (an attribute), runs colonies on the fast nodes and submasters
%% on any node, and shows the cost over time. `--placement random' selects nodes at random instead, which gives the same cost in a different time.
-module(ml_aco).

-export([main/0, run/1, plan/3, start_nodes/1, measure_speed/2, stop_nodes/1]).

-export_type([where/0]).

-export_type([nodes/0]).

-type nodes() :: [{pid(), node()}].
-type where() :: #{host => string(), before => [string()]}.

-define(BOOT_MS, 60000).
-define(AT_ONCE, 4).

%% @doc The entry point for the script. Runs the command with the arguments after `-extra' and then stops the VM.
-spec main() -> no_return().
main() ->
    ok = io:setopts([{encoding, unicode}]),
    halt(run(init:get_plain_arguments())).

specs() ->
    [{nodes, $n, "nodes", {integer, 4}, "nodes to start on this host"},
     {colonies, $c, "colonies", {integer, 3}, "colonies, at most as many as nodes"},
     {jobs, $j, "jobs", {integer, 40}, "jobs of the instance"},
     {ants, $a, "ants", {integer, 20}, "ants of a colony"},
     {rounds, $r, "rounds", {integer, 10}, "times that colonies hear of each other"},
     {iterations, $i, "iterations", {integer, 5}, "iterations between"},
     {seed, $s, "seed", {integer, 1}, "of the instance and the ants"},
     {placement, $p, "placement", {string, "attributes"}, "attributes: colonies on the fastest nodes; random: drawn"},
     {search, undefined, "search", {string, "local"}, "local: each ant's schedule is improved by moving and swapping jobs; none: it is taken as it is"},
     {file, $f, "file", string, "solve all instances of this file of the OR-Library, of --jobs jobs each, on this node"},
     {optima, $o, "optima", string, "their best known values, one for each instance; each is searched until its value is found"},
     {ms, undefined, "ms", {integer, 5000}, "milliseconds for each instance of the file at most"},
     {draw, $d, "draw", string, "draw the cost over time into this .svg file"},
     {help, $h, "help", undefined, "this help"}].

%% @doc Runs a command line. Returns 0 for success, 1 for failure, 2 for a usage error.
-spec run([string()]) -> 0..2.
run(Words) ->
    case getopt:parse(specs(), Words) of
        {ok, {Given, []}} ->
            case proplists:get_bool(help, Given) of
                true -> io:format("~ts~n", [[getopt:usage_cmd_line("examples/ml_aco/run", specs()), "\n", getopt:usage_options(specs())]]), 0;
                false -> checked(maps:from_list(proplists:unfold(Given)))
            end;
        {ok, {_, [Extra | _]}} -> usage("unexpected word '~ts'", [Extra]);
        {error, Error} -> usage("~ts", [getopt:format_error(specs(), {error, Error})])
    end.

usage(Format, Arguments) ->
    io:format(standard_error, "ml_aco: " ++ Format ++ "; see: examples/ml_aco/run --help~n", Arguments),
    2.

checked(#{placement := Placement}) when Placement =/= "attributes", Placement =/= "random" -> usage("--placement ~ts: expected attributes or random", [Placement]);
checked(#{search := Search}) when Search =/= "local", Search =/= "none" -> usage("--search ~ts: expected local or none", [Search]);
checked(#{ms := Ms}) when Ms < 1; Ms > 3600000 -> usage("--ms ~b: expected 1 to 3600000", [Ms]);
checked(#{optima := File} = Options) when not is_map_key(file, Options) -> usage("--optima ~ts: expected --file with the instances, too", [File]);
checked(#{nodes := Nodes, colonies := Colonies}) when Nodes < 1; Nodes > 128; Colonies < 1; Colonies > Nodes -> usage("expected 1 to 128 nodes and as many colonies at most", []);
checked(#{jobs := Jobs, ants := Ants, rounds := Rounds, iterations := Iterations}) when Jobs < 2; Jobs > 500; Ants < 1; Ants > 1000; Rounds < 1; Iterations < 1 ->
    usage("expected 2 to 500 jobs, 1 to 1000 ants, at least one round and iteration", []);
checked(#{file := File, jobs := Jobs} = Options) ->
    case {ml_aco_library:read(File, Jobs), optima(Options)} of
        {{ok, Instances}, {ok, none}} -> library([{Instance, none} || Instance <- Instances], Options);
        {{ok, Instances}, {ok, Values}} when length(Values) =:= length(Instances) -> library(lists:zip(Instances, Values), Options);
        {{ok, Instances}, {ok, Values}} -> usage("--optima: ~b values for ~b instances; expected one for each", [length(Values), length(Instances)]);
        {{error, Text}, _} -> usage("--file: ~ts", [Text]);
        {_, {error, Text}} -> usage("--optima: ~ts", [Text])
    end;
checked(Options) -> started(Options).

optima(#{optima := File}) -> ml_aco_library:read_values(File);
optima(_) -> {ok, none}.

%% Solves one instance after another with a single colony.
library(Instances, #{seed := Seed, ants := Ants, ms := LimitMs}) ->
    Solved = [begin
                  {Cost, Ms} = ml_aco_library:solve(Instance, Known, {Seed, Ants, LimitMs}),
                  io:format("instance ~3b: cost ~b after ~.1f s~ts~n", [Number, Cost, Ms / 1000, beside(Cost, Known)]),
                  {Cost, Known, Ms}
              end || {Number, {Instance, Known}} <- lists:zip(lists:seq(1, length(Instances)), Instances)],
    io:format("~b of ~b reached the best known value; the longest took ~.1f s~n",
              [length([found || {Cost, Known, _} <- Solved, Cost =:= Known]), length(Solved), lists:max([Ms || {_, _, Ms} <- Solved]) / 1000]),
    0.

beside(_, none) -> "";
beside(Known, Known) -> "";
beside(_, Known) -> io_lib:format("; the best known value is ~b", [Known]).

started(#{nodes := Count} = Options) ->
    {ok, _} = net_kernel:start(list_to_atom("ml_aco_" ++ os:getpid() ++ "@127.0.0.1"), #{name_domain => longnames, hidden => true}),
    {ok, _} = application:ensure_all_started(placement),
    Nodes = start_nodes([#{} || _ <- lists:seq(1, Count)]),
    try
        ok = measure_speed(Nodes, 300),
        solved(Nodes, Options)
    after stop_nodes(Nodes)
    end.

solved(Nodes, #{placement := Placement, colonies := Colonies, jobs := Jobs, seed := Seed} = Options) ->
    Instance = ml_aco_instance:make(Jobs, Seed),
    {ok, Plan} = plan(list_to_existing_atom(Placement), [Node || {_, Node} <- Nodes], Colonies),
    _ = [io:format("~-10s ~ts~n", [Role, Node]) || {Role, Node} <- placement_plan:to_list(Plan)],
    io:format("start: ~b (jobs by due date)~n", [ml_aco_instance:cost(Instance, ml_aco_instance:earliest_due_date(Instance))]),
    Progress = fun(Round, Cost, Ms) -> io:format("round ~3b: cost ~b after ~.1f s~n", [Round, Cost, Ms / 1000]) end,
    case ml_aco_tree:run(Plan, Instance, (maps:with([seed, ants, rounds, iterations], Options))#{progress => Progress, search => list_to_existing_atom(maps:get(search, Options))}) of
        {ok, #{cost := Cost, ms := Ms, over_time := OverTime}} ->
            io:format("cost ~b in ~.2f s~ts~n", [Cost, Ms / 1000, proven(Instance)]),
            drawn(OverTime, Options);
        {error, Reason} ->
            io:format(standard_error, "ml_aco: failed: ~0tP~n", [Reason, 12]),
            1
    end.

proven(Instance) when tuple_size(Instance) =< 14 -> io_lib:format("; the optimum is ~b (proved by dynamic programming)", [ml_aco_instance:optimum(Instance)]);
proven(_) -> "".

%% @doc Returns a plan with this many colonies, either on the nodes with the highest attribute `speed' or on nodes drawn at random. All other
%% processes run on other nodes if there are any.
-spec plan(attributes | random, [node()], Colonies :: pos_integer()) -> {ok, placement_plan:process()} | {error, term()}.
plan(Placement, Nodes, Colonies) ->
    {ok, Tree} = placement_tree:from_paths([{Node, []} || Node <- Nodes]),
    case workers(Placement, Nodes, Colonies) of
        {ok, Workers} ->
            Others = case {Placement, Nodes -- Workers} of
                         {attributes, [_ | _] = Slow} -> #{submasters => Slow};
                         {attributes, []} -> #{};
                         {random, _} -> #{submasters => [lists:nth(rand:uniform(length(Nodes)), Nodes)]}
                     end,
            placement_plan:plan(Tree, Others#{workers => Workers, fan_out => 8});
        {error, _} = Error -> Error
    end.

workers(random, Nodes, Colonies) ->
    {ok, lists:sublist([Node || {_, Node} <- lists:sort([{rand:uniform(), Node} || Node <- Nodes])], Colonies)};
workers(attributes, Nodes, Colonies) ->
    case placement:choose_nodes(Nodes, #{require => [{speed, top, Colonies}], n => Colonies, deadline => 10000}) of
        {ok, Chosen, _} -> {ok, Chosen};
        {error, _} = Error -> Error
    end.

%% @doc Starts nodes with placement. Each node is given by its host and the command in front of `erl'.
-spec start_nodes([where()]) -> nodes().
start_nodes(Wanted) ->
    Paths = lists:append([["-pa", Folder] || Folder <- code:get_path(), lists:suffix("ebin", Folder), not lists:prefix(code:lib_dir(), Folder)]),
    some_at_once([fun() -> start_node(Where, Paths, Number) end || {Number, Where} <- lists:zip(lists:seq(1, length(Wanted)), Wanted)]).

some_at_once([]) -> [];
some_at_once(Funs) ->
    {Now, Later} = lists:split(min(?AT_ONCE, length(Funs)), Funs),
    Running = [in_a_process(Fun) || Fun <- Now],
    %% Each process exits at its own time limit at the latest.
    [receive {'DOWN', Monitor, process, Pid, {started, Node}} -> Node; {'DOWN', Monitor, process, Pid, Reason} -> error({node_did_not_start, Reason}) end
     || {Pid, Monitor} <- Running] ++ some_at_once(Later).

%% Dialyzer would warn that the process's fun never returns, because its result is the exit reason.
-dialyzer({nowarn_function, in_a_process/1}).
in_a_process(Fun) -> spawn_monitor(fun() -> exit({started, Fun()}) end).

%% @doc Gives each node its attribute `speed', measured for this many milliseconds, one node after another.
-spec measure_speed(nodes(), Ms :: pos_integer()) -> ok.
measure_speed(Nodes, Ms) ->
    lists:foreach(fun({Peer, _}) -> ok = peer:call(Peer, placement, insert, [speed, peer:call(Peer, ml_aco_colony, speed, [Ms], ?BOOT_MS)]) end, Nodes).

start_node(Where, Paths, Number) ->
    [Program | Rest] = maps:get(before, Where, []) ++ [os:find_executable("erl")],
    {ok, Peer, Node} = peer:start(#{name => lists:flatten(io_lib:format("aco~2..0b_~s", [Number, os:getpid()])), host => maps:get(host, Where, "127.0.0.1"),
                                    longnames => true, connection => standard_io, wait_boot => ?BOOT_MS, exec => {Program, Rest},
                                    args => ["+S", "1", "+SDio", "1", "-connect_all", "false", "-kernel", "prevent_overlapping_partitions", "false"] ++ Paths}),
    true = peer:call(Peer, erlang, set_cookie, [erlang:get_cookie()]),
    {ok, _} = peer:call(Peer, application, ensure_all_started, [placement], ?BOOT_MS),
    {Peer, Node}.

%% @doc Stops the nodes.
-spec stop_nodes(nodes()) -> ok.
stop_nodes(Nodes) ->
    lists:foreach(fun({Peer, _}) ->
                          try peer:stop(Peer)
                          catch exit:_ -> ok
                          end
                  end, Nodes).

drawn(OverTime, #{draw := File}) ->
    case file:write_file(File, unicode:characters_to_binary(picture(OverTime))) of
        ok -> io:format("drawn: ~ts~n", [File]), 0;
        {error, Reason} -> io:format(standard_error, "ml_aco: cannot write ~ts: ~ts~n", [File, file:format_error(Reason)]), 1
    end;
drawn(_, _) -> 0.

%% The cost falls in steps, each of which lasts from the time of one schedule to that of the next better one.
picture([{_, First} | _] = OverTime) ->
    {End, Last} = lists:last(OverTime),
    X = fun(Ms) -> 80 + 520 * Ms / max(1, End) end,
    Y = fun(Cost) -> 320 - 250 * (Cost - Last) / max(1, First - Last) end,
    Steps = [{X(Ms), Y(Cost)} || {{Ms, After}, {_, Before}} <- lists:zip(OverTime, [hd(OverTime) | lists:droplast(OverTime)]), Cost <- [Before, After]],
    placement_svg:picture(
      640, 380, "ML-ACO: cost of the best schedule over time",
      [[[placement_svg:line("grid", 80, Y(Cost), 600, Y(Cost)), placement_svg:text("note end", 72, Y(Cost) + 4, io_lib:format("~w", [Cost]))] || Cost <- lists:usort([First, Last])],
       [placement_svg:text("note middle", X(Ms), 344, io_lib:format("~.1f s", [Ms / 1000])) || Ms <- lists:usort([0, End])],
       placement_svg:line("axis", 80, 320, 600, 320), placement_svg:path("curve s1", Steps)]).
