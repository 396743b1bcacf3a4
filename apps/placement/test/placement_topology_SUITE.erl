%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures the times between real nodes, and runs the command `beamway topology', from measuring to exporting in every
%% format.
-module(placement_topology_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, end_per_testcase/2]).
-export([every_pair/1, nodes_without_placement/1, a_node_that_dies/1, a_frozen_node/1, without_one_at_the_gate/1, unreachable/1, resumed/1, plan_by_query/1, bound_nodes/1, command/1, command_per_core/1,
         command_bad_words/1, command_formats/1, command_imports/1, large_planted_trees/1, sixty_four_nodes/1]).

suite() -> [{timetrap, {minutes, 5}}].

all() ->
    [every_pair, nodes_without_placement, a_node_that_dies, a_frozen_node, without_one_at_the_gate, unreachable, resumed, plan_by_query, bound_nodes, command, command_per_core, command_bad_words, command_formats, command_imports,
     large_planted_trees]
        ++ [sixty_four_nodes || os:getenv("BEAMWAY_TEST_LONG", "") =/= ""].

end_per_testcase(_Case, _Config) ->
    beamway_peer:stop_started().

cluster(Count) ->
    beamway_placement_nodes:start(["p" ++ integer_to_list(N) || N <- lists:seq(1, Count)], #{run => false}).

probe(Cluster, Nodes, Options) ->
    [First | _] = beamway_placement_nodes:peers(Cluster),
    beamway_peer:call(First, placement, probe, [Nodes, Options], 120000).

every_pair(_Config) ->
    Cluster = cluster(5),
    Nodes = beamway_placement_nodes:nodes(Cluster),
    {ok, #{pairs := Pairs, failed := [], nodes := Measured} = Result} = probe(Cluster, Nodes, #{batches => 3, messages => 10}),
    ?assertEqual(lists:sort(Nodes), Measured),
    ?assertEqual(20, map_size(Pairs)),
    [?assert(0 < Min andalso Min =< Median andalso Median =< P90) || #{min_us := Min, median_us := Median, p90_us := P90, batches := 3} <- maps:values(Pairs)],
    {ok, Matrix} = placement_measured:matrix(Result, quiet, min_us),
    ?assertMatch(#{verdict := _}, placement_cluster:cluster(Matrix)).

%% Makes the same checks as placement_cluster_tests, but for large trees.
large_planted_trees(_Config) ->
    [begin
         [placement_cluster_tests:planted(Shape, Seed) || Seed <- [1, 2]],
         placement_cluster_tests:gaps(mdl, Shape, 0.3),
         placement_cluster_tests:noise_is_no_regret(Shape)
     end || {Shape, _} <- beamway_bench_planted:shapes(), not lists:member(Shape, placement_cluster_tests:small())],
    placement_cluster_tests:gaps(mdl, racks_128, 0.01),
    placement_cluster_tests:some_rounds(athos_256, 0.3),
    placement_cluster_tests:some_rounds(racks_128, 0.4),
    placement_cluster_tests:colonies(athos_256).

%% The nodes do not have placement in their code path, and the measurement leaves no code behind there.
nodes_without_placement(_Config) ->
    [{_, First, FirstNode}] = cluster(1),
    Stock = [peer:start(#{name => beamway_peer:unique_name("stock"), host => "127.0.0.1", longnames => true, connection => standard_io, wait_boot => 60000,
                          args => ["-setcookie", "beamway_test", "-connect_all", "false"]}) || _ <- [1, 2]],
    [{error, _} = peer:call(Peer, code, ensure_loaded, [placement_probe_pair]) || {ok, Peer, _} <- Stock],
    {ok, #{failed := [], pairs := Pairs}} =
        beamway_peer:call(First, placement, probe, [[FirstNode | [Node || {ok, _, Node} <- Stock]], #{batches => 2, messages => 5}]),
    ?assertEqual(6, map_size(Pairs)),
    [?assertEqual(false, peer:call(Peer, code, is_loaded, [placement_probe_pair])) || {ok, Peer, _} <- Stock].

%% A node is killed between two rounds. Its completed measurements are kept, its other pairs are missing, and the
%% measurement does not wait for it.
a_node_that_dies(_Config) ->
    Cluster = cluster(4),
    {_, Victim, Gone} = lists:nth(2, Cluster),
    {ok, #{failed := Failed, pairs := Pairs} = Result} = interrupted(Cluster, quiet, fun() -> gone(Cluster, Victim, Gone) end, #{}),
    ?assertEqual([], [Pair || {_, A, B, _} = Pair <- Failed, A =/= Gone andalso B =/= Gone]),
    ?assertEqual(2, length(Failed)),
    ?assertEqual([], [Pair || {_, _, _, timeout} = Pair <- Failed]),
    ?assertEqual(4, map_size(Pairs)),
    %% The completed measurements of the node are enough to determine its position.
    {ok, Matrix} = placement_measured:matrix(Result, quiet, median_us),
    ?assertEqual({4, 2}, {placement_matrix:size(Matrix), placement_matrix:gaps(Matrix)}),
    %% A measurement does not begin if a node cannot be reached.
    {error, {unreachable, [{Gone, _}]}} = probe(Cluster, beamway_placement_nodes:nodes(Cluster), #{modes => [loaded]}).

gone(Cluster, Victim, Gone) ->
    ok = beamway_peer:kill9(Victim),
    [ok = beamway_peer:wait_disconnected(Peer, Gone) || Peer <- beamway_placement_nodes:peers(Cluster), Peer =/= Victim],
    ok.

%% Pairs that do not answer in time are missing from the result; the others are present.
a_frozen_node(_Config) ->
    Cluster = cluster(3),
    Nodes = lists:sort(beamway_placement_nodes:nodes(Cluster)),
    %% The first round leaves this node out.
    [[{One, Other}] | _] = placement_probe:rounds(Nodes),
    [Node] = Nodes -- [One, Other],
    {_, Frozen, Node} = lists:keyfind(Node, 3, Cluster),
    {value, Steering, Others} = lists:keytake(One, 3, Cluster),
    Limit = #{limit_ms => 2000 * beamway_runner:slowness()},
    {ok, #{failed := Failed, pairs := Pairs}} = interrupted([Steering | Others], quiet, fun() -> beamway_peer:sigstop(Frozen) end, Limit),
    ok = beamway_peer:sigcont(Frozen),
    ?assertMatch([{quiet, One, Other}], maps:keys(Pairs)),
    ?assertEqual([timeout, timeout], [Reason || {quiet, A, B, Reason} <- Failed, A =:= Node orelse B =:= Node]).

%% All pairs are measured at the same time, and a node is suspended or killed before they begin. The other pairs still
%% begin.
without_one_at_the_gate(_Config) ->
    [begin
         Cluster = cluster(3),
         Nodes = lists:sort(beamway_placement_nodes:nodes(Cluster)),
         {_, Victim, Node} = lists:nth(2, Cluster),
         Options = #{modes => [quiet, loaded], limit_ms => 2500 * beamway_runner:slowness()},
         {ok, #{failed := Failed, pairs := Pairs}} = interrupted(Cluster, loaded, fun() -> Interrupt(Cluster, Victim, Node) end, Options),
         ok = beamway_peer:stop_all(beamway_placement_nodes:peers(Cluster)),
         ?assertEqual(2, length([Pair || {loaded, A, B, _} = Pair <- Failed, A =:= Node orelse B =:= Node])),
         ?assertEqual(1, length([Pair || {loaded, A, B} = Pair <- maps:keys(Pairs), A =/= Node andalso B =/= Node])),
         ?assertEqual(3, length([Pair || {quiet, A, B} = Pair <- maps:keys(Pairs), lists:member(A, Nodes), lists:member(B, Nodes)]))
     end || Interrupt <- [fun(_, Victim, _) -> beamway_peer:sigstop(Victim) end, fun gone/3]].

%% Measures, and runs a function after the first round of the quiet mode or before the loaded mode.
interrupted(Cluster, Mode, Interrupt, Options) ->
    [First | _] = beamway_placement_nodes:peers(Cluster),
    Nodes = beamway_placement_nodes:nodes(Cluster),
    Patience = 120000 * beamway_runner:slowness(),
    Call = beamway_peer:async(fun() -> beamway_peer:run(First, fun() -> measured_with_a_break(Nodes, Mode, Options, Patience) end, Patience) end),
    _ = beamway_peer:wait_until(fun() -> is_pid(beamway_peer:call(First, erlang, whereis, [?MODULE])) end, Patience),
    ok = Interrupt(),
    _ = beamway_peer:run(First, fun() -> ?MODULE ! go_on end),
    beamway_peer:await(Call, Patience).

%% Runs on the first node, and registers a name when it begins to wait.
measured_with_a_break(Nodes, Mode, Options, Patience) ->
    Progress = fun(#{mode := Now, done := Done}) when Now =:= Mode, Done > 0; Now =:= Mode, Mode =:= loaded ->
                       case get(?MODULE) of
                           undefined ->
                               _ = put(?MODULE, waited),
                               true = register(?MODULE, self()),
                               receive go_on -> ok after Patience -> error(nothing_happened) end;
                           waited -> ok
                       end;
                  (_) -> ok
               end,
    placement:probe(Nodes, maps:merge(#{modes => [Mode], batches => 2, messages => 5, progress => Progress}, Options)).

unreachable(_Config) ->
    Cluster = cluster(2),
    ?assertMatch({error, {unreachable, [{'nobody@127.0.0.1', _}]}}, probe(Cluster, ['nobody@127.0.0.1' | beamway_placement_nodes:nodes(Cluster)], #{})).

%% Earlier measurements are not repeated. Measurements with a node that no longer exists are left out, because otherwise
%% the file would contain pairs with nodes that are not in its list of nodes.
resumed(_Config) ->
    Cluster = cluster(3),
    [A, B | _] = Nodes = lists:sort(beamway_placement_nodes:nodes(Cluster)),
    Summary = #{min_us => 1.0, median_us => 2.0, p90_us => 3.0, batches => 1},
    Known = #{{quiet, A, B} => Summary, {quiet, A, 'zzz@gone'} => Summary},
    {ok, #{pairs := Pairs}} = probe(Cluster, Nodes, #{batches => 1, messages => 5, modes => [quiet], done => Known}),
    ?assertEqual(3, map_size(Pairs)),
    ?assertMatch(#{{quiet, A, B} := #{median_us := 2.0}}, Pairs).

%% Workers are chosen by an attribute, and the plan follows the tree.
plan_by_query(_Config) ->
    Cluster = beamway_placement_nodes:start(["a", "b", "c"]),
    [A, B, C] = beamway_placement_nodes:nodes(Cluster),
    [First | _] = beamway_placement_nodes:peers(Cluster),
    [ok = beamway_placement_nodes:call(Cluster, Name, {placement, insert}, [worker, Name =/= "c"]) || Name <- ["a", "b", "c"]],
    {ok, Tree} = placement_tree:from_paths([{A, "/1"}, {B, "/1"}, {C, "/2"}]),
    Plan = fun(Options) -> beamway_peer:call(First, placement, plan, [Tree, Options]) end,
    {ok, Process} = Plan(#{workers => {worker, true}}),
    ?assertEqual(lists:sort([A, B]), lists:sort([Node || {worker, Node} <- placement_plan:to_list(Process)])),
    ?assertMatch({error, _}, Plan(#{workers => {worker, eq, 7}})).

%% Two nodes are bound to the same processor and the third to a different one, and their declared tree shows this. If the
%% nodes are not bound, the tree has no levels inside the machine.
bound_nodes(_Config) ->
    case per_core_is_possible() of
        {skip, _} = Skip -> Skip;
        true ->
            Cluster = beamway_placement_nodes:start(["a", "b", "c", "d"]),
            ok = beamway_placement_nodes:connect(Cluster, "a"),
            [A, B, C, D] = beamway_placement_nodes:nodes(Cluster),
            Distances = fun() ->
                {ok, Tree} = beamway_placement_nodes:call(Cluster, "a", {placement, declared_topology}, [[A, B, C, D]]),
                [placement_tree:shared(Tree, A, Node) || Node <- [B, C, D]]
            end,
            ?assertEqual([{ok, 0}, {ok, 0}, {ok, 0}], Distances()),
            {match, [First, Last]} = re:run(os:cmd("taskset -pc " ++ os:getpid()), "list: ([0-9]+).*?([0-9]+)\\s*$", [{capture, all_but_first, list}]),
            _ = [os:cmd(lists:flatten(["taskset -apc ", Processor, " ", beamway_placement_nodes:call(Cluster, Name, {os, getpid}, [])]))
                 || {Name, Processor} <- [{"a", First}, {"b", First}, {"c", Last}]],
            [{ok, Near}, {ok, Apart}, {ok, 0}] = Distances(),
            ?assert(Near > Apart, {Near, Apart})
    end.

per_core_is_possible() ->
    case {erlang:system_info(logical_processors_available), os:find_executable("lstopo-no-graphics"), os:find_executable("taskset")} of
        {1, _, _} -> {skip, "one core only"};
        {_, Lstopo, Taskset} when Lstopo =:= false; Taskset =:= false -> {skip, "lstopo-no-graphics (hwloc-nox) or taskset (util-linux) is not installed"};
        _ -> true
    end.

%% ---- the command ----

run(Config, Words) ->
    Folder = proplists:get_value(priv_dir, Config),
    Program = test_support:file("bin/beamway"),
    Port = open_port({spawn_executable, Program}, [{args, ["topology" | Words]}, {cd, Folder}, exit_status, stderr_to_stdout, binary, {env, [{"BEAMWAY_ERL", hd(beamway_peer:erl())}]}]),
    {Status, Said} = test_support:until_ended(Port, 900000 * beamway_runner:slowness()),
    {Status, unicode:characters_to_list(iolist_to_binary(Said))}.

says(Text, Part) -> ?assertNotEqual({nomatch, Part, Text}, {string:find(Text, Part), Part, Text}).

command(Config) ->
    {0, Text} = run(Config, ["measure", "--start", "4", "--batches", "3", "--messages", "20"]),
    [says(Text, Part) || Part <- ["quiet: 6 of 6 pairs", "loaded: 6 of 6 pairs", "12 pairs in"]],
    ok = is_as_documented(Config, "topology.json"),
    {0, Shown} = run(Config, ["show", "topology.json", "--heat-map", "heat.svg", "--dendrogram", "tree.svg"]),
    says(Shown, "4 nodes, loaded times"),
    Folder = proplists:get_value(priv_dir, Config),
    [{ok, <<"<svg ", _/binary>>} = file:read_file(filename:join(Folder, File)) || File <- ["heat.svg", "tree.svg"]],
    {0, Json} = run(Config, ["show", "topology.json", "--of", "quiet", "--statistic", "min", "--json"]),
    #{<<"nodes">> := 4, <<"root">> := _, <<"advice">> := _} = jiffy:decode(Json, [return_maps]),
    {0, Alpha} = run(Config, ["show", "topology.json", "--alpha", "1.6"]),
    says(Alpha, "4 nodes").

%% Validates the file against the documented schema, and checks that the schema rejects an invalid file.
is_as_documented(Config, File) ->
    Stored = filename:join(proplists:get_value(priv_dir, Config), File),
    {ok, Text} = file:read_file(Stored),
    Wrong = Stored ++ ".wrong",
    ok = file:write_file(Wrong, string:replace(Text, "\"mode\":\"quiet\"", "\"mode\":\"fast\"")),
    Check = fun(Instance) -> placement_program:run("/usr/bin/python3", ["-m", "jsonschema", "-i", Instance, test_support:file("docs/topology.schema.json")], 60000) end,
    {error, {status, 1, Said}} = Check(Wrong),
    says(unicode:characters_to_list(Said), "'fast' is not one of ['quiet', 'loaded']"),
    {ok, _} = Check(Stored),
    ok.

command_per_core(Config) ->
    case per_core_is_possible() of
        {skip, _} = Skip -> Skip;
        true ->
            {0, Text} = run(Config, ["measure", "--per-core", "--batches", "3", "--beside", "cores.svg", "--out", "cores.json"]),
            says(Text, io_lib:format("starting ~b nodes", [erlang:system_info(logical_processors_available)])),
            {ok, Svg} = file:read_file(filename:join(proplists:get_value(priv_dir, Config), "cores.svg")),
            [says(unicode:characters_to_list(Svg), Part) || Part <- ["measured", "hwloc", "pu0"]]
    end.

command_bad_words(Config) ->
    File = filename:join(proplists:get_value(priv_dir, Config), "cycle.conf"),
    ok = file:write_file(File, "SwitchName=a Switches=b\nSwitchName=b Switches=a\n"),
    Half = filename:join(proplists:get_value(priv_dir, Config), "half.json"),
    ok = file:write_file(Half, "{\"nodes\": [\"a@h\", \"b@h\", \"c@h\"], \"pairs\": [{\"mode\": \"quiet\", \"from\": \"a@h\", \"to\": \"b@h\", \"min_us\": 1, \"median_us\": 1, \"p90_us\": 1}]}"),
    File2 = filename:join(proplists:get_value(priv_dir, Config), "one.conf"),
    ok = file:write_file(File2, "SwitchName=a Nodes=n[1-2]\n"),
    [begin
         {Got, Text} = run(Config, Words),
         ?assertEqual({Status, Words, Text}, {Got, Words, Text}),
         says(Text, Part)
     end || {Status, Part, Words} <-
                [{2, "usage: beamway topology", []}, {2, "unknown subcommand 'meassure'", ["meassure"]}, {2, "say which nodes", ["measure"]},
                 {2, "unexpected word 'x'", ["measure", "x"]}, {2, "--mode fast: expected quiet, loaded or both", ["measure", "--start", "2", "--mode", "fast"]},
                 {2, "--start: expected a number", ["measure", "--start", "1"]},
                 {2, "--pairs some: expected a share above 0%", ["measure", "--start", "2", "--pairs", "some"]}, {2, "--pairs 101%: expected", ["measure", "--start", "2", "--pairs", "101%"]},
                 {0, "quiet: 12 of 12 pairs", ["measure", "--start", "8", "--pairs", "40%", "--batches", "2", "--mode", "quiet", "--out", "some.json"]}, {0, "8 nodes", ["show", "some.json"]},
                 %% The nodes in the file no longer exist.
                 {0, "quiet: 3 of 3 pairs", ["measure", "--start", "3", "--batches", "2", "--mode", "quiet", "--resume", "--out", "some.json"]}, {0, "3 nodes", ["show", "some.json"]}, {2, "expected one FILE", ["show"]},
                 {1, "cannot read nowhere.json", ["show", "nowhere.json"]}, {1, "circle: a > b > a", ["show", File]},
                 {1, "no measured pair joins 1 of 3 nodes to the others, such as c@h", ["show", Half]}, {0, "left out", ["show", Half, "--drop-gaps"]},
                 {1, "cannot reach", ["measure", "--nodes", "nobody,noone"]}, {2, "--to png", ["export", File2, "--to", "png"]},
                 {0, "exit status", ["--help"]}, {0, "--resume", ["measure", "--help"]}]].

command_formats(Config) ->
    Folder = proplists:get_value(priv_dir, Config),
    ok = file:write_file(filename:join(Folder, "t.conf"), "SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[2-3]\nSwitchName=s2 Switches=s[0-1]\n"),
    [begin
         {0, Text} = run(Config, ["import", "t.conf", "--name", "vm1", "--to", To]),
         says(Text, Part)
     end || {To, Part} <- [{"term", "{network,\"s2\""}, {"dot", "shape=ellipse"}, {"newick", "'vm1@n3'"}, {"json", "\"vm1@n0\""}, {"conf", "SwitchName=s1 Nodes="},
                           {"paths", "vm1@n0 /s0"}]],
    {0, Warned} = run(Config, ["import", "t.conf", "--nodes", "a@n0,a@n1,a@n9"]),
    [says(Warned, Part) || Part <- ["2 hosts of the file have no node", "1 nodes are not in the file"]].

%% Files from other programs: Slurm's topology.yaml, a list of hosts, and XML from hwloc's own program.
command_imports(Config) ->
    Folder = proplists:get_value(priv_dir, Config),
    ok = file:write_file(filename:join(Folder, "topology.yaml"), "---\n- topology: net\n  cluster_default: true\n  tree:\n    switches:\n      - switch: s2\n        children: s[0-1]\n"
                                                                 "      - switch: s0\n        nodes: n[0-1]\n      - switch: s1\n        nodes: n2\n"),
    ok = file:write_file(filename:join(Folder, "job.hosts"), "n[01-03,7],login1\n"),
    ok = file:write_file(filename:join(Folder, "matrix.csv"), ",a,b,c,d\na,0,10,90,91\nb,10,0,92,\nc,90,92,0,11\nd,91,90,11,0\n"),
    {0, Csv} = run(Config, ["import", "matrix.csv", "--to", "paths"]),
    says(Csv, "c /"),
    Lstopo = os:find_executable("lstopo-no-graphics"),
    Written = [{"machine.xml", "'pu0'"} || Lstopo =/= false, os:cmd(lists:flatten([Lstopo, " --of xml > '", Folder, "/machine.xml'"])) =:= ""],
    [begin
         {Status, Text} = run(Config, ["import", File, "--to", "newick"]),
         ?assertEqual({File, 0, Text}, {File, Status, Text}),
         says(Text, Part)
     end || {File, Part} <- [{"topology.yaml", "n2"}, {"job.hosts", "n03"} | Written]],
    case Written of
        [] -> {skip, "lstopo-no-graphics (hwloc-nox) is not installed"};
        [_] -> ok
    end.

sixty_four_nodes(Config) ->
    %% This takes two minutes on an idle machine, but any other program on the machine slows down so many nodes.
    ct:timetrap({minutes, 30}),
    {0, Text} = run(Config, ["measure", "--start", "64", "--batches", "10"]),
    says(Text, "loaded: 2016 of 2016 pairs"),
    {0, Shown} = run(Config, ["show", "topology.json"]),
    says(Shown, "64 nodes").
