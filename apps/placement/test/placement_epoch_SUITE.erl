%% SPDX-License-Identifier: Apache-2.0
%% @doc The current tree: its epochs, nodes that publish at the same time, and how a node finds its position in the tree.
-module(placement_epoch_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([epochs/1, publishers_agree/1, changes_reach_the_others/1, changes_at_once_are_all_kept/1, a_node_finds_its_place/1, a_job_with_a_bad_pair/1, follows_the_nodes/1]).

-import(placement_two_sites, [call/5, nodes_of/1]).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [epochs, publishers_agree, changes_reach_the_others, changes_at_once_are_all_kept, a_node_finds_its_place, a_job_with_a_bad_pair, follows_the_nodes].

init_per_suite(Config) -> placement_two_sites:start(Config).

end_per_suite(Config) -> placement_two_sites:stop(Config).

epochs(Config) ->
    [A, B | _] = nodes_of(Config),
    Epoch = call(Config, "a", placement, epoch, []),
    {ok, Next} = call(Config, "a", placement, join, ['new@host', "/s2/r4/new"]),
    ?assertEqual(Epoch + 1, Next),
    {ok, _, #{epoch := Next}} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), []]),
    {ok, 1.0} = placement_tree:distance(call(Config, "a", placement, topology, []), A, 'new@host'),
    {ok, Last} = call(Config, "a", placement, leave, ['new@host']),
    {ok, Last} = call(Config, "a", placement, leave, ['new@host']),
    ?assertEqual(lists:sort(nodes_of(Config)), lists:sort(placement_tree:nodes(call(Config, "a", placement, topology, [])))),
    {error, _} = call(Config, "a", placement, join, ['new@host', 7]),
    %% A node that cannot be reached does not receive the tree, and is listed in the result. A tree with an older epoch
    %% does not replace a newer one.
    {ok, _, ['never@127.0.0.1']} = call(Config, "a", placement, set_topology, [proplists:get_value(tree, Config), [A, B, 'never@127.0.0.1']]),
    ?assertEqual(call(Config, "a", placement, epoch, []), call(Config, "b", placement, epoch, [])),
    %% A node that runs the previous release publishes a tree with this message.
    Tree = proplists:get_value(tree, Config),
    {[{B, ok}], []} = call(Config, "a", gen_server, multi_call, [[B], placement_epoch, {publish, {Last + 100, A}, Tree}, 5000]),
    ?assertEqual(Last + 100, call(Config, "b", placement, epoch, [])).

%% Several nodes publish trees at the same time, one of them with an old epoch, and all nodes end up with the same tree.
publishers_agree(Config) ->
    [A, B, C | _] = Nodes = nodes_of(Config),
    [true = call(Config, Name, net_kernel, connect_node, [Node]) || {Name, Node} <- [{"b", C}, {"b", A}, {"c", A}]],
    Three = [A, B, C],
    Tree = fun(Place) -> {ok, Made} = placement_tree:from_paths([{Node, Place} || Node <- Nodes]), Made end,
    Trees = fun() -> lists:usort([call(Config, Name, placement, topology, []) || Name <- ["a", "b", "c"]]) end,
    [{ok, _} = call(Config, "c", placement, set_topology, [Tree("/ahead")]) || _ <- [1, 2, 3]],
    {ok, Epoch, []} = call(Config, "a", placement, set_topology, [Tree("/behind"), Three]),
    ?assertEqual([Tree("/behind")], Trees()),
    ?assertEqual([Epoch], lists:usort([call(Config, Name, placement, epoch, []) || Name <- ["a", "b", "c"]])),
    [begin
         Calls = [beamway_peer:async(fun() -> call(Config, Name, placement, set_topology, [Tree(lists:concat(["/", Name, Round])), Three]) end) || Name <- ["a", "b", "c"]],
         [{ok, _, _} = beamway_peer:await(Call, 30000) || Call <- Calls],
         ?assertMatch({Round, [_]}, {Round, Trees()})
     end || Round <- lists:seq(1, 20)],
    {ok, _, []} = call(Config, "a", placement, set_topology, [proplists:get_value(tree, Config), Nodes]).

%% All connected nodes of the tree are informed when a node joins or leaves. A node with an older tree fetches the newer
%% tree and makes its change to that tree.
changes_reach_the_others(Config) ->
    [A, B, C | _] = Nodes = nodes_of(Config),
    [true = call(Config, Name, net_kernel, connect_node, [Node]) || {Name, Node} <- [{"b", C}, {"b", A}, {"c", A}]],
    {ok, _, []} = call(Config, "a", placement, set_topology, [proplists:get_value(tree, Config), Nodes]),
    Seen = fun() -> lists:usort([{call(Config, Name, placement, epoch, []), call(Config, Name, placement, topology, [])} || Name <- ["a", "b", "c"]]) end,
    Extra = fun() -> [{_, Tree}] = Seen(), placement_tree:nodes(Tree) -- Nodes end,
    {ok, Joined} = call(Config, "b", placement, join, ['new@host', "/s2/r4/new"]),
    ?assertMatch([{Joined, _}], Seen()),
    ?assertEqual(['new@host'], Extra()),
    %% b and c have a newer tree, which a does not know yet.
    Known = call(Config, "b", placement, topology, []),
    {ok, More} = placement_tree:insert(Known, 'more@host', "/s2/r4/more"),
    [{ok, _, []} = call(Config, "b", placement, set_topology, [More, [B, C]]) || _ <- [1, 2, 3]],
    {ok, Left} = call(Config, "a", placement, leave, ['new@host']),
    ?assertMatch([{Left, _}], Seen()),
    ?assertEqual(['more@host'], Extra()),
    {ok, _} = call(Config, "c", placement, leave, ['more@host']),
    ?assertEqual([], Extra()),
    %% A node that is removed is informed, and a node that is added gets the tree.
    {ok, Without} = call(Config, "a", placement, leave, [B]),
    ?assertMatch([{Without, _}], Seen()),
    {ok, With} = call(Config, "a", placement, join, [B, "/s1/r1/b"]),
    ?assertMatch([{With, _}], Seen()).

%% Three nodes add three nodes each, at the same time.
changes_at_once_are_all_kept(Config) ->
    [A, _, C | _] = Nodes = nodes_of(Config),
    [true = call(Config, Name, net_kernel, connect_node, [Node]) || {Name, Node} <- [{"b", C}, {"b", A}, {"c", A}]],
    [begin
         {ok, _, []} = call(Config, "a", placement, set_topology, [proplists:get_value(tree, Config), Nodes]),
         New = [{Name, list_to_atom(lists:concat(["new", I, "@", Name]))} || Name <- ["a", "b", "c"], I <- [1, 2, 3]],
         Calls = [beamway_peer:async(fun() -> call(Config, Name, placement, join, [Node, "/s2/r4"]) end) || {Name, Node} <- New],
         [{ok, _} = beamway_peer:await(Call, 60000) || Call <- Calls],
         Trees = lists:usort([{call(Config, Name, placement, epoch, []), call(Config, Name, placement, topology, [])} || Name <- ["a", "b", "c"]]),
         ?assertMatch({Round, [_]}, {Round, Trees}),
         ?assertEqual(lists:sort([Node || {_, Node} <- New]), lists:sort(placement_tree:nodes(element(2, hd(Trees))) -- Nodes))
     end || Round <- lists:seq(1, 10)],
    {ok, _, []} = call(Config, "a", placement, set_topology, [proplists:get_value(tree, Config), Nodes]).

%% The new node measures the time to one node of each group and continues in the nearest group, if it is as near to that
%% group as the group's nodes are to each other.
a_node_finds_its_place(Config) ->
    [A, B, C, D | _] = nodes_of(Config),
    Group = fun(Name, Us, Nodes) -> {group, Name, #{median_us => Us}, [{leaf, Node} || Node <- Nodes]} end,
    Join = fun(Groups) ->
        {ok, Tree} = placement_tree:from_vertex({group, root, #{median_us => 1.0e9}, Groups}),
        {ok, _, []} = call(Config, "a", placement, set_topology, [Tree, [A, B, C, D]]),
        {ok, _} = call(Config, "a", placement, join, [A, probe]),
        call(Config, "a", placement, topology, [])
    end,
    %% Any round trip is shorter than a second, so with groups of that latency the node joins one of them. No round trip
    %% is shorter than a nanosecond, so with such groups the node is placed above them.
    Inside = Join([Group(one, 1.0e6, [B, C]), Group(two, 1.0e6, [D])]),
    ?assert(lists:member({ok, 0.5}, [placement_tree:distance(Inside, A, Node) || Node <- [B, D]])),
    Above = Join([Group(one, 0.001, [B, C]), Group(two, 0.001, [D])]),
    ?assertEqual([{ok, 1.0}, {ok, 1.0}], [placement_tree:distance(Above, A, Node) || Node <- [B, D]]),
    %% If a node cannot be reached, its position cannot be determined by measuring.
    {error, not_measured} = call(Config, "a", placement, join, ['never@127.0.0.1', probe]).

%% Two of four nodes cannot reach each other, so their distance is estimated, and the job still gets its tree. A node that
%% no other node can reach is not in the tree.
a_job_with_a_bad_pair(Config) ->
    [A, B, C, D | _] = nodes_of(Config),
    Cookie = call(Config, "a", erlang, get_cookie, []),
    Between = fun(Others, Word) ->
        [true = call(Config, Name, erlang, set_cookie, [Node, Word(Name)])
         || {Other, OtherNode} <- Others, {Name, Node} <- [{"b", OtherNode}, {Other, B}]],
        [_ = call(Config, "b", erlang, disconnect_node, [Node]) || {_, Node} <- Others]
    end,
    Cut = fun(Name) -> list_to_atom("cut_by_" ++ Name) end,
    _ = Between([{"c", C}], Cut),
    {ok, #{nodes := 4, tree := Tree, measured := #{failed := Failed}} = Prepared} = call(Config, "a", placement_job, prepare, [[A, B, C, D], [quiet]]),
    ?assertMatch([{quiet, _, _, _}], Failed),
    ?assertEqual(lists:sort([A, B, C, D]), placement_tree:nodes(Tree)),
    ?assertEqual([Tree], lists:usort([call(Config, Name, placement, topology, []) || Name <- ["a", "b", "c", "d"]])),
    Text = unicode:characters_to_list(placement_job:summary(Prepared)),
    ?assertMatch({_, {match, _}}, {Text, re:run(Text, "; 1 pair was not measured and is estimated: [bc]-.* to [bc]-.*: ")}),
    _ = Between([{"c", C}, {"d", D}], Cut),
    {error, Apart} = call(Config, "a", placement_job, prepare, [[B, C, D], [quiet]]),
    ?assertMatch({_, {match, _}}, {Apart, re:run(unicode:characters_to_list(Apart), "2 pairs were not measured; the first \\(quiet\\): ")}),
    _ = Between([{"c", C}, {"d", D}], fun(_) -> Cookie end),
    [true = call(Config, "b", net_kernel, connect_node, [Node]) || Node <- [C, D]],
    {ok, _, []} = call(Config, "a", placement, set_topology, [proplists:get_value(tree, Config), nodes_of(Config)]).

%% With the option `topology', the tree contains exactly the connected nodes that have the option, even after a
%% partition.
follows_the_nodes(_Config) ->
    Start = fun(Name, Arguments) -> beamway_placement_nodes:start([Name], #{args => Arguments}) end,
    Declared = fun(Name, Path) -> Start(Name, ["-placement", "topology", "declared", "-placement", "path", Path]) end,
    Connect = fun(Cluster) -> [ok = beamway_placement_nodes:connect(Cluster, Name) || {Name, _, _} <- Cluster] end,
    Agree = fun(Cluster) ->
        Nodes = lists:sort(beamway_placement_nodes:nodes(Cluster)),
        case lists:usort(beamway_placement_nodes:all(Cluster, placement_topology, current, [])) of
            [{_, Tree}] -> placement_tree:nodes(Tree) =:= Nodes andalso Tree;
            _ -> false
        end
    end,
    Plain = Start("plain", []),
    [{_, _, A}] = One = Declared("one", "[s1,r1]"),
    [{_, _, B}] = Two = Declared("two", "[s1,r1]"),
    [{_, _, C}] = Three = Declared("three", "[s2,r1]"),
    _ = Connect(Plain ++ One ++ Two ++ Three),
    Distances = fun(Cluster, Node, Others) -> Tree = beamway_peer:wait_until(fun() -> Agree(Cluster) end, 60000), [placement_tree:distance(Tree, Node, Other) || Other <- Others] end,
    ?assertEqual([{ok, 0.5}, {ok, 1.0}], Distances(One ++ Two ++ Three, A, [B, C])),
    ?assertEqual([none], beamway_placement_nodes:all(Plain, placement, topology, [])),
    [{_, _, D}] = Four = Declared("four", "[s2,r1]"),
    All = One ++ Two ++ Three ++ Four,
    _ = Connect(All),
    ?assertEqual([{ok, 1.0}, {ok, 0.5}], Distances(All, C, [A, D])),
    %% A message that is sent at the same time may connect the nodes again.
    Sides = fun() ->
        _ = [beamway_placement_nodes:all(One ++ Two, erlang, disconnect_node, [Node]) || Node <- [C, D]],
        Agree(One ++ Two) =/= false andalso Agree(Three ++ Four) =/= false
    end,
    true = beamway_peer:wait_until(Sides, 60000),
    _ = Connect(All),
    ?assertEqual([{ok, 0.5}, {ok, 1.0}, {ok, 1.0}], Distances(All, A, [B, C, D])),
    %% The node that is stopped has the smallest name, so it has published the last tree.
    ok = beamway_placement_nodes:stop(Four),
    ?assertEqual([{ok, 0.5}, {ok, 1.0}], Distances(One ++ Two ++ Three, A, [B, C])),
    ok = beamway_placement_nodes:stop(Plain ++ One ++ Two ++ Three).
