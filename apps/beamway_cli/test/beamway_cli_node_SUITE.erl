%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway node': nodes started by the command, on a terminal and in a Slurm job, and its messages when it cannot start one.
-module(beamway_cli_node_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([nodes_from_the_command/1, many_cold_starts/1, a_port_that_is_free_later/1, node_on_a_terminal/1, node_failures/1, two_steps_at_once/1, node_beside_a_step/1, node_without_slurm_peer/1]).

-import(beamway_command, [run/2, shell/2, quoted/1, cookie_file/2, command_node/2, command_start/2, until_ready/1, ended/1, compiled/3]).

suite() -> [{timetrap, {minutes, 5}}, {ct_hooks, [beamway_command]}].

all() -> [nodes_from_the_command, many_cold_starts, a_port_that_is_free_later, node_on_a_terminal, node_failures, two_steps_at_once, node_beside_a_step, node_without_slurm_peer].

%% The command starts two nodes with a cookie from a file. A third node calls a function, and exits with the status that the function returns.
nodes_from_the_command(Config) ->
    File = cookie_file(Config, "from_a_file\n"),
    {ok, Host} = inet:gethostname(),
    With = ["--cookie-file ", quoted(File)],
    First = command_node(Config, ["--name one ", With]),
    Second = command_node(Config, ["--name two --connect one@", Host, " --measure quiet --json ", With]),
    try
        {0, Links, ""} = run(Config, ["links --json one ", With]),
        ?assertMatch(#{<<"links">> := [#{<<"link">> := <<"shm">>}]}, jiffy:decode(Links, [return_maps])),
        %% The cookie is not visible in the process list.
        Shown = [os:cmd("tr '\\0' ' ' < /proc/" ++ integer_to_list(Pid) ++ "/cmdline") || {_, Pid} <- [First, Second]],
        [?assertEqual(nomatch, string:find(Line, "from_a_file")) || Line <- Shown],
        [?assertMatch({match, _}, re:run(Line, "-proto_dist beamway ")) || Line <- Shown],
        {3, "three@" ++ _, _} = run(Config, ["node --name three --connect one@", Host, " --run beamway_cli_end ", With, " -- -pa ", quoted(module_folder(Config, 3))])
    after
        ?assertEqual([0, 0], [ended(Node) || Node <- [Second, First]])
    end.

module_folder(Config, Status) ->
    with_module(Config, "run", beamway_cli_end, "[_] = nodes(), " ++ integer_to_list(Status)).

%% Creates a directory with a module whose main/0 has this body.
with_module(Config, Name, Module, Body) ->
    Folder = filename:join(?config(priv_dir, Config), Name),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    ok = file:write_file(filename:join(Folder, atom_to_list(Module) ++ ".beam"), compiled(Module, main, Body)),
    Folder.

%% Several nodes start at the same time while epmd is not running. Each starts an epmd, one of these gets the port, and every node finds it.
many_cold_starts(Config) ->
    [cold_start(Config, Port, ["cold" ++ integer_to_list(N) || N <- lists:seq(1, 6)], fun() -> ok end) || Port <- [test_support:free_port() || _ <- [1, 2, 3]]].

%% When several epmds start listening at the same time, it can happen that none gets the port, and that it becomes free slightly later.
a_port_that_is_free_later(Config) ->
    {ok, Listener} = gen_tcp:listen(0, [{reuseaddr, true}]),
    {ok, Port} = inet:port(Listener),
    cold_start(Config, Port, ["late1", "late2"], fun() ->
        %% A node has not found an epmd here.
        {ok, Socket} = gen_tcp:accept(Listener, 60000),
        ok = gen_tcp:close(Socket),
        ok = gen_tcp:close(Listener)
    end).

cold_start(Config, Port, Names, Meanwhile) ->
    Cold = lists:keystore(epmd_port, 1, Config, {epmd_port, Port}),
    {ok, Host} = inet:gethostname(),
    Nodes = [command_start(Cold, ["--name ", Name, " --connect ", lists:join(",", [[Other, "@", Host] || Other <- Names, Other =/= Name])]) || Name <- Names],
    try
        ok = Meanwhile(),
        [ok = until_ready(Node) || Node <- Nodes],
        ?assertEqual([0 || _ <- Nodes], [ended(Node) || Node <- Nodes])
    after
        _ = os:cmd(["kill -KILL" | [[" ", integer_to_list(Pid)] || {_, Pid} <- Nodes]]),
        %% The loop ends only when the last epmd has exited.
        shell(Cold, "for _ in $(seq 100); do ! epmd -kill | grep -q Killed || exit 0; sleep 0.1; done")
    end.

%% On a terminal the node runs Erlang's shell, and exits with it.
node_on_a_terminal(Config) ->
    case os:find_executable("script") of
        false -> {skip, "script (bsdutils) is not installed"};
        _ ->
            {0, Out, _} = shell(Config, ["{ shown() { for _ in $(seq 600); do ! grep -q \"$1\" talk 2>/dev/null || return 0; sleep 0.1; done; };",
                                         " shown 'is ready'; printf 'node().\\n'; shown '^talker@[^ ]*$'; printf 'halt(4).\\n'; shown 'status 4'; }",
                                         " | timeout 80 script -qefc \"\\\"$BEAMWAY\\\" node --name talker; echo status \\$?\" talk; rm talk"]),
            ?assertMatch({match, _}, re:run(Out, "Eshell")),
            ?assertMatch({match, _}, re:run(Out, "talker@\\S+\r?\n.*status 4", [dotall]))
    end.

node_failures(Config) ->
    Node = command_node(Config, "--name taken"),
    try
        {ok, Host} = inet:gethostname(),
        [begin
             {1, "", Error} = run(Config, ["node ", Words]),
             ?assertMatch({match, _}, re:run(Error, Expected))
         end || {Words, Expected} <- [{"--name taken", "cannot become taken: a node of this name runs"},
                                      {["--name other --wait 0 --connect nosuch@", Host], "1 of 1 peers did not come in time.*nosuch@"},
                                      {["--name other --wait 0 --connect taken@", Host, " --cookie-file ", quoted(cookie_file(Config, "another"))], "1 of 1 peers did not come"},
                                      {"--name other --cookie-file /nonexistent", "cannot read the cookie file '/nonexistent'"},
                                      {"--name other@nosuch.invalid", "host name 'nosuch.invalid' does not resolve"},
                                      {"--name other --run nosuch", "module nosuch cannot be loaded.*-pa FOLDER"},
                                      {"--name other --run lists:nosuch", "module lists has no function nosuch/0"},
                                      {"--name other --start nosuch", "application nosuch did not start"}]]
    after
        ?assertEqual(0, ended(Node))
    end.

%% Runs two steps of a job at the same time with Slurm's variables: five tasks each, below two switches, and without a running epmd. Ready means
%% that all nodes of the step know each other and answer. The tree must be Slurm's, and global must not complain, not even while the nodes exit one
%% after another.
two_steps_at_once(Config) ->
    Cold = lists:keystore(epmd_port, 1, Config, {epmd_port, test_support:free_port()}),
    {ok, Host} = inet:gethostname(),
    Folder = with_module(Config, "steps", beamway_cli_step,
                         "All = case placement:choose_nodes(all, #{require => {mem_total, gt, 0}, deadline => 20000}) of {ok, [_, _, _, _, _] = Five, _} -> Five; "
                         "Other -> error({Other, nodes(), placement:attributes([node() | nodes()], [mem_total])}) end, "
                         "[4 = length(erpc:call(Node, erlang, nodes, [])) || Node <- All], "
                         "Tree = placement:topology(), [First | Rest] = placement_tree:nodes(Tree), "
                         "[0.5, 0.5, 0.5, 1.0] = [D || Node <- Rest, {ok, D} <- [placement_tree:distance(Tree, First, Node)]], "
                         "io:format(\"checked~n\"), ok"),
    Task = fun(Step, Number) ->
        Address = ["top.", case Number of 4 -> "s2."; _ -> "s1." end, Host],
        [task(Step, 5, Number), "SLURM_TOPOLOGY_ADDR=", Address, " SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.node",
         " \"$BEAMWAY\" node --measure none --wait 60 --run beamway_cli_step -- -pa ", quoted(Folder)]
    end,
    try
        {Status, Out, Error} = shell(Cold, ["exec 2>&1; ", at_once([Task(Step, Number) || Step <- [0, 1], Number <- lists:seq(0, 4)])]),
        ?assertMatch({0, ""}, {Status, Error}),
        ?assertEqual({Out, 10, 2}, {Out, length(string:split(Out, "status 0", all)) - 1, length(string:split(Out, "checked", all)) - 1}),
        ?assertMatch({match, _}, re:run(Out, "5 nodes, not measured: a tree of depth 2 by what Slurm says")),
        ?assertEqual({Out, nomatch}, {Out, string:find(Out, "overlapping partitions")})
    after
        shell(Cold, "for _ in $(seq 100); do ! epmd -kill | grep -q Killed || exit 0; sleep 0.1; done")
    end.

%% Returns Slurm's variables for one of several tasks on this host.
task(Step, Tasks, Number) ->
    {ok, Host} = inet:gethostname(),
    ["SLURM_JOB_ID=7 SLURM_STEP_ID=", integer_to_list(Step), " SLURM_STEP_NODELIST=", Host, " SLURM_STEP_TASKS_PER_NODE=", integer_to_list(Tasks), " SLURMD_NODENAME=", Host,
     " SLURM_LOCALID=", integer_to_list(Number), " "].

at_once(Lines) -> [[["{ ", Line, "; echo status $?; } & "] || Line <- Lines], "wait"].

%% A node outside the step that is named with `--connect' does not belong to the step: it gets no tree and does not exit with the step.
node_beside_a_step(Config) ->
    {ok, Host} = inet:gethostname(),
    Beside = "'beside@" ++ Host ++ "'",
    Node = command_node(Config, "--name beside"),
    try
        Step = with_module(Config, "beside", beamway_cli_beside,
                           "true = lists:member(" ++ Beside ++ ", nodes()), [_, _] = placement_tree:nodes(placement:topology()), 5"),
        Words = [" \"$BEAMWAY\" node --measure none --wait 60 --connect beside@", Host, " --run beamway_cli_beside -- -pa ", quoted(Step)],
        {0, Out, Error} = shell(Config, at_once([[task(0, 2, Number), Words] || Number <- [0, 1]])),
        ?assertEqual({Error, 2}, {Error, length(string:split(Out, "status 5", all)) - 1}),
        Look = with_module(Config, "look", beamway_cli_look, "none = erpc:call(" ++ Beside ++ ", placement, topology, []), ok"),
        ?assertMatch({0, _, _}, run(Config, ["node --name look --connect beside@", Host, " --run beamway_cli_look -- -pa ", quoted(Look)]))
    after
        ?assertEqual(0, ended(Node))
    end.

%% Runs the command with Slurm's variables for a task whose peer task never starts, and with variables that cannot be valid.
node_without_slurm_peer(Config) ->
    {ok, Host} = inet:gethostname(),
    Job = ["SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=", Host, " SLURMD_NODENAME=", Host, " SLURM_LOCALID=0 "],
    {1, "", Lonely} = shell(Config, [Job, "SLURM_STEP_TASKS_PER_NODE=2 \"$BEAMWAY\" node --wait 0"]),
    ?assertMatch({match, _}, re:run(Lonely, "1 of 1 peers did not come in time.*job7-0-1@")),
    {1, "", Odd} = shell(Config, [Job, "SLURM_STEP_TASKS_PER_NODE=many \"$BEAMWAY\" node"]),
    ?assertMatch({match, _}, re:run(Odd, "SLURM_STEP_TASKS_PER_NODE is 'many'; expected counts such as")),
    {2, "", Named} = shell(Config, [Job, "SLURM_STEP_TASKS_PER_NODE=1 \"$BEAMWAY\" node --name a"]),
    ?assertMatch({match, _}, re:run(Named, "in a Slurm job the names come from Slurm")).
