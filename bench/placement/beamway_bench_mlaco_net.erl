%% SPDX-License-Identifier: Apache-2.0
%% @doc The part of `bench placement' that measures the benefit of distances. ML-ACO (examples/ml_aco) runs on 16 nodes in network namespaces, in two
%% sites of two racks each, below bridges whose links have a limited rate. In one run, the tree of processes has the same shape as the tree of the
%% network (`placement:plan/2'); in the other, the same tree of processes is placed on the nodes in random order.
%%
%% Without root, this part measures nothing and reports the reason.
-module(beamway_bench_mlaco_net).

-export([metrics/0, repeats/1, measure/2, tree/2, plans/2, bytes_between/4]).

-define(SITE_KBIT, 64).
-define(RACK_KBIT, 256).
-define(HOST_KBIT, 1024).
-define(RUN_MS, 300000).
-define(BYTES_KEY, <<"ML-ACO: bytes over the link between the sites without distances over with">>).

-spec metrics() -> [map()].
metrics() ->
    [#{name => <<"mlaco_dist_bytes">>, unit => <<"times">>, better => higher, key => ?BYTES_KEY} | beamway_bench_ants:metrics(distances)].

%% @doc Returns the number of repeats, which is the same for all parts that run ants.
-spec repeats(full | quick) -> pos_integer().
repeats(Speed) -> beamway_bench_ants:repeats(Speed).

%% @doc Runs once with distances and once without, on new nodes.
-spec measure(full | quick, Repeat :: pos_integer()) -> #{binary() => number()}.
measure(Speed, Repeat) ->
    Site = {[{4, ?RACK_KBIT}, {4, ?RACK_KBIT}], ?SITE_KBIT},
    case os:cmd("id -u") of
        "0\n" -> built(beamway_bridges:build("bwa", [Site, Site], ?HOST_KBIT), Speed, Repeat);
        _ -> built({error, "network namespaces need root"}, Speed, Repeat)
    end.

built({error, Why}, _, _) ->
    ok = beamway_bench_text:note("bench placement: ML-ACO on a network with slow links is skipped: ~ts", [Why]),
    #{};
built({ok, #{hosts := Hosts} = Net}, Speed, Repeat) ->
    try
        Nodes = ml_aco:start_nodes([#{host => Address, before => beamway_bridges:wrapper(Net, Address)} || {Address, _} <- Hosts]),
        try measured(Nodes, Net, Speed, Repeat)
        after ml_aco:stop_nodes(Nodes)
        end
    after beamway_bridges:delete(Net)
    end.

%% @doc Returns the tree of processes that matches the network, and the same tree with the nodes in random order.
-spec plans(placement_tree:tree(), Seed :: integer()) -> {placement_plan:process(), placement_plan:process()}.
plans(Tree, Seed) ->
    {ok, Plan} = placement_plan:plan(Tree, #{}),
    _ = rand:seed(exsss, {Seed, 16, 7}),
    {Plan, moved(Plan, beamway_bench_run:shuffled(placement_tree:nodes(Tree)))}.

%% @doc Returns how many bytes one run sends over the link above a bridge, as counted by the kernel, and the run's cost.
-spec bytes_between(beamway_bridges:net(), Bridge :: pos_integer(), Master :: pid(), placement_plan:process()) -> {Bytes :: pos_integer(), Cost :: number()}.
bytes_between(Net, Bridge, Master, Plan) ->
    Before = beamway_bridges:bytes(Net, Bridge),
    {ok, #{cost := Cost}} = peer:call(Master, ml_aco_tree, run, [Plan, beamway_bench_ants:instance(), beamway_bench_ants:options(distances, 1)], ?RUN_MS),
    {beamway_bridges:bytes(Net, Bridge) - Before, Cost}.

measured([{First, _} | _] = Nodes, Net, Speed, Repeat) ->
    {Plan, Drawn} = plans(tree([Node || {_, Node} <- Nodes], Net), Repeat),
    %% These first runs set up the connections, so that the setup is not part of the measurement.
    _ = [bytes_between(Net, 1, First, P) || P <- [Plan, Drawn]],
    [{With, Same}, {Without, Same}] = [bytes_between(Net, 1, First, P) || P <- [Plan, Drawn]],
    ok = beamway_bench_text:note("bench placement: ML-ACO: ~b bytes between the sites with distances, ~b without", [With, Without]),
    Solve = fun(Which, Ants) ->
                    Arguments = [case Which of with -> Plan; without -> Drawn end, beamway_bench_ants:instance(), beamway_bench_ants:options(distances, Ants)],
                    {ok, #{cost := Cost, ms := Ms}} = peer:call(First, ml_aco_tree, run, Arguments, ?RUN_MS),
                    {Cost, Ms / 1000}
            end,
    (beamway_bench_ants:compared(distances, Speed, Repeat, Solve))#{?BYTES_KEY => Without / With}.

%% @doc Returns the tree of the network. A group contains the hosts below a bridge, so a host's path consists of the numbers of all groups that
%% contain it, largest first.
-spec tree([node()], beamway_bridges:net()) -> placement_tree:tree().
tree(Nodes, #{groups := [_ | Groups]}) ->
    Largest = lists:sort(fun(One, Other) -> length(One) >= length(Other) end, Groups),
    Path = fun(Address) -> [["/", integer_to_list(N)] || {N, Group} <- lists:zip(lists:seq(1, length(Largest)), Largest), lists:member(Address, Group)] end,
    {ok, Tree} = placement_tree:from_paths([{Node, lists:flatten(Path(lists:last(string:split(atom_to_list(Node), "@"))))} || Node <- Nodes]),
    Tree.

%% Returns the same processes on other nodes. The colonies keep their order and thus their numbers.
moved(Plan, Drawn) ->
    Nodes = lists:usort([Node || {_, Node} <- placement_plan:to_list(Plan)]),
    renamed(Plan, maps:from_list(lists:zip(Nodes, Drawn))).

renamed({Role, Node, Children}, Names) -> {Role, maps:get(Node, Names), [renamed(Child, Names) || Child <- Children]}.
