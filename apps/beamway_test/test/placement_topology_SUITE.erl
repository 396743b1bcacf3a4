%% SPDX-License-Identifier: Apache-2.0
%% @doc Measuring on real nodes, and the command `beamway topology' from measuring to every format.
-module(placement_topology_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, end_per_testcase/2]).
-export([every_pair/1, nodes_without_placement/1, a_node_that_dies/1, a_frozen_node/1, unreachable/1, resumed/1, plan_by_query/1, command/1, command_per_core/1,
         command_bad_words/1, command_formats/1, sixty_four_nodes/1]).

suite() -> [{timetrap, {minutes, 5}}].

all() ->
    [every_pair, nodes_without_placement, a_node_that_dies, a_frozen_node, unreachable, resumed, plan_by_query, command, command_per_core, command_bad_words, command_formats]
        ++ [sixty_four_nodes || os:getenv("BEAMWAY_TEST_LONG", "") =/= ""].

end_per_testcase(_Case, _Config) ->
    beamway_peer:stop_started().

cluster(Count) ->
    beamway_placement_nodes:start(["p" ++ integer_to_list(N) || N <- lists:seq(1, Count)], #{run => false}).

probe(Cluster, Nodes, Options) ->
    [First | _] = beamway_placement_nodes:peers(Cluster),
    beamway_peer:call(First, placement, probe, [Nodes, Options], 120000 * beamway_runner:slowness()).

every_pair(_Config) ->
    Cluster = cluster(5),
    Nodes = beamway_placement_nodes:nodes(Cluster),
    {ok, #{pairs := Pairs, failed := [], nodes := Measured} = Result} = probe(Cluster, Nodes, #{batches => 3, messages => 10}),
    ?assertEqual(lists:sort(Nodes), Measured),
    ?assertEqual(20, map_size(Pairs)),
    [?assert(0 < Min andalso Min =< Median andalso Median =< P90) || #{min_us := Min, median_us := Median, p90_us := P90, batches := 3} <- maps:values(Pairs)],
    {ok, Matrix} = placement_measured:matrix(Result, quiet, min_us),
    ?assertMatch(#{verdict := _}, placement_cluster:cluster(Matrix)).

%% Their code path does not hold placement; nothing is left behind.
nodes_without_placement(_Config) ->
    [{_, First, FirstNode}] = cluster(1),
    Stock = [peer:start(#{name => beamway_peer:unique_name("stock"), host => "127.0.0.1", longnames => true, connection => standard_io, wait_boot => 60000,
                          args => ["-setcookie", "beamway_test", "-connect_all", "false"]}) || _ <- [1, 2]],
    [{error, _} = peer:call(Peer, code, ensure_loaded, [placement_probe_pair]) || {ok, Peer, _} <- Stock],
    {ok, #{failed := [], pairs := Pairs}} =
        beamway_peer:call(First, placement, probe, [[FirstNode | [Node || {ok, _, Node} <- Stock]], #{batches => 2, messages => 5}]),
    ?assertEqual(6, map_size(Pairs)),
    [?assertEqual(false, peer:call(Peer, code, is_loaded, [placement_probe_pair])) || {ok, Peer, _} <- Stock].

a_node_that_dies(_Config) ->
    [_, {_, Victim, Gone} | _] = Cluster = cluster(4),
    Call = beamway_peer:async(fun() -> probe(Cluster, beamway_placement_nodes:nodes(Cluster), #{batches => 10000, messages => 20, limit_ms => 5000}) end),
    ok = wait_measured(Victim),
    ok = beamway_peer:kill9(Victim),
    {ok, #{failed := Failed} = Result} = beamway_peer:await(Call, 120000),
    ?assertNotEqual([], [x || {_, A, B, _} <- Failed, A =:= Gone orelse B =:= Gone]),
    ?assertMatch({error, {gaps, _, _, 4}}, placement_measured:matrix(Result, loaded, median_us)).

%% What does not answer is missing when its time is over; the others are there.
a_frozen_node(_Config) ->
    [_, _, {_, Frozen, Node}] = Cluster = cluster(3),
    [First | _] = beamway_placement_nodes:peers(Cluster),
    Nodes = beamway_placement_nodes:nodes(Cluster),
    {ok, _} = probe(Cluster, Nodes, #{batches => 1, messages => 2}),
    Frozen1 = beamway_peer:async(fun() ->
                                         beamway_peer:call(First, placement, probe, [Nodes, #{batches => 2000, messages => 50, limit_ms => 4000, modes => [loaded]}], 120000)
                                 end),
    ok = wait_measured(Frozen),
    ok = beamway_peer:sigstop(Frozen),
    {ok, #{failed := Failed}} = beamway_peer:await(Frozen1, 120000),
    ok = beamway_peer:sigcont(Frozen),
    ?assertNotEqual([], [x || {loaded, A, B, _} <- Failed, A =:= Node orelse B =:= Node]).

%% Until some node sends to this one.
wait_measured(Peer) ->
    Echoes = fun() -> [Pid || Pid <- processes(), process_info(Pid, initial_call) =:= {initial_call, {placement_probe_pair, echo, 1}}] end,
    _ = beamway_peer:wait_until(fun() -> beamway_peer:run(Peer, Echoes) =/= [] end, 30000 * beamway_runner:slowness()),
    ok.

unreachable(_Config) ->
    Cluster = cluster(2),
    ?assertMatch({error, {unreachable, [{'nobody@127.0.0.1', _}]}}, probe(Cluster, ['nobody@127.0.0.1' | beamway_placement_nodes:nodes(Cluster)], #{})).

%% What was measured before is not measured again.
resumed(_Config) ->
    Cluster = cluster(3),
    [A, B | _] = Nodes = lists:sort(beamway_placement_nodes:nodes(Cluster)),
    Known = #{{quiet, A, B} => #{min_us => 1.0, median_us => 2.0, p90_us => 3.0, batches => 1}},
    {ok, #{pairs := Pairs}} = probe(Cluster, Nodes, #{batches => 1, messages => 5, modes => [quiet], done => Known}),
    ?assertEqual(3, map_size(Pairs)),
    ?assertMatch(#{{quiet, A, B} := #{median_us := 2.0}}, Pairs).

%% Workers by an attribute, shaped like the tree.
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

%% ---- the command ----

run(Config, Words) ->
    Folder = proplists:get_value(priv_dir, Config),
    Checkout = lists:foldl(fun(_, Path) -> filename:dirname(Path) end, beamway_peer_file(), [file, ebin, app, apps]),
    Program = filename:join([Checkout, "bin", "beamway"]),
    Port = open_port({spawn_executable, Program}, [{args, ["topology" | Words]}, {cd, Folder}, exit_status, stderr_to_stdout, binary, {env, [{"BEAMWAY_ERL", hd(beamway_peer:erl())}]}]),
    collect(Port, <<>>).

beamway_peer_file() -> filename:absname(code:which(beamway_peer)).

collect(Port, Text) ->
    receive
        {Port, {data, More}} -> collect(Port, <<Text/binary, More/binary>>);
        {Port, {exit_status, Status}} -> {Status, unicode:characters_to_list(Text)}
    after 180000 * beamway_runner:slowness() -> error({no_end, Text})
    end.

says(Text, Part) -> ?assertNotEqual({nomatch, Part, Text}, {string:find(Text, Part), Part, Text}).

command(Config) ->
    {0, Text} = run(Config, ["measure", "--start", "4", "--batches", "3", "--messages", "20"]),
    [says(Text, Part) || Part <- ["quiet: 6 of 6 pairs", "loaded: 6 of 6 pairs", "12 pairs in"]],
    {0, Shown} = run(Config, ["show", "topology.json", "--heat-map", "heat.svg", "--dendrogram", "tree.svg"]),
    says(Shown, "4 nodes, loaded times"),
    Folder = proplists:get_value(priv_dir, Config),
    [{ok, <<"<?xml", _/binary>>} = file:read_file(filename:join(Folder, File)) || File <- ["heat.svg", "tree.svg"]],
    {0, Json} = run(Config, ["show", "topology.json", "--of", "quiet", "--statistic", "min", "--json"]),
    #{<<"nodes">> := 4, <<"root">> := _, <<"advice">> := _} = jiffy:decode(Json, [return_maps]),
    {0, Alpha} = run(Config, ["show", "topology.json", "--alpha", "1.6"]),
    says(Alpha, "4 nodes").

command_per_core(Config) ->
    case {erlang:system_info(logical_processors_available), os:find_executable("lstopo-no-graphics"), os:find_executable("taskset")} of
        {1, _, _} -> {skip, "one core only"};
        {_, Lstopo, Taskset} when Lstopo =:= false; Taskset =:= false -> {skip, "lstopo-no-graphics (hwloc-nox) or taskset (util-linux) is not installed"};
        {Cores, _, _} ->
            {0, Text} = run(Config, ["measure", "--per-core", "--batches", "3", "--beside", "cores.svg", "--out", "cores.json"]),
            says(Text, io_lib:format("starting ~b nodes", [Cores])),
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
                [{2, "usage: beamway topology", []}, {2, "there is no 'meassure'", ["meassure"]}, {2, "say which nodes", ["measure"]},
                 {2, "unexpected word 'x'", ["measure", "x"]}, {2, "--mode fast: expected quiet, loaded or both", ["measure", "--start", "2", "--mode", "fast"]},
                 {2, "--start: expected a number", ["measure", "--start", "1"]}, {2, "expected one FILE", ["show"]},
                 {1, "cannot read nowhere.json", ["show", "nowhere.json"]}, {1, "circle: a > b > a", ["show", File]},
                 {1, "2 pairs of 3 nodes were not measured", ["show", Half]}, {0, "left out", ["show", Half, "--drop-gaps"]},
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

sixty_four_nodes(Config) ->
    {0, Text} = run(Config, ["measure", "--start", "64", "--batches", "10"]),
    says(Text, "loaded: 2016 of 2016 pairs"),
    {0, Shown} = run(Config, ["show", "topology.json"]),
    says(Shown, "64 nodes").
