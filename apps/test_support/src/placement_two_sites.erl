%% SPDX-License-Identifier: Apache-2.0
%% @doc Starts six nodes for placement's suites, in a tree of two sites, the first of which has two
%% racks. The pairs `a' and `b', `c' and `d', and `e' and `f' are each close together. The attribute
%% `size' goes from 1 to 6, `zone' alternates between x and y, and `slots' is 2. Only `a' is
%% connected to all others.
-module(placement_two_sites).

-export([names/0, start/1, stop/1, call/5, on/3, node_of/2, nodes_of/1, name_of/2, chosen/2]).

%% @doc Returns the names of the nodes.
-spec names() -> [string()].
names() -> ["a", "b", "c", "d", "e", "f"].

%% @doc For init_per_suite: starts the nodes. The configuration also contains the tree.
-spec start([tuple()]) -> [tuple()].
start(Config) ->
    Cluster = beamway_placement_nodes:start(names()),
    ok = beamway_placement_nodes:connect(Cluster, "a"),
    [begin
         ok = beamway_placement_nodes:call(Cluster, Name, {placement, insert}, [size, Size]),
         ok = beamway_placement_nodes:call(Cluster, Name, {placement, insert}, [zone, case Size rem 2 of 0 -> y; 1 -> x end]),
         ok = beamway_placement_nodes:call(Cluster, Name, {placement, insert}, [slots, 2])
     end || {Name, Size} <- lists:zip(names(), lists:seq(1, length(names())))],
    Conf = [{cluster, Cluster} | Config],
    [A, B, C, D, E, F] = nodes_of(Conf),
    {ok, Tree} = placement_tree:from_paths([{A, "/s1/r1/a"}, {B, "/s1/r1/b"}, {C, "/s1/r2/c"}, {D, "/s1/r2/d"}, {E, "/s2/r3/e"}, {F, "/s2/r3/f"}]),
    {ok, 1, []} = call(Conf, "a", placement, set_topology, [Tree, nodes_of(Conf)]),
    [{tree, Tree} | Conf].

%% @doc For end_per_suite: stops the nodes.
-spec stop([tuple()]) -> ok.
stop(Config) -> beamway_placement_nodes:stop(cluster(Config)).

cluster(Config) -> proplists:get_value(cluster, Config).

%% @doc Calls a function on the node with this name.
-spec call([tuple()], string(), module(), atom(), [term()]) -> term().
call(Config, Name, Module, Function, Arguments) -> beamway_placement_nodes:call(cluster(Config), Name, {Module, Function}, Arguments).

%% @doc Runs a fun on that node.
-spec on([tuple()], string(), fun(() -> Result)) -> Result.
on(Config, Name, Fun) -> beamway_peer:run(element(2, lists:keyfind(Name, 1, cluster(Config))), Fun).

%% @doc Returns the node with this name.
-spec node_of([tuple()], string()) -> node().
node_of(Config, Name) -> element(3, lists:keyfind(Name, 1, cluster(Config))).

%% @doc Returns all nodes, in the order of their names.
-spec nodes_of([tuple()]) -> [node()].
nodes_of(Config) -> beamway_placement_nodes:nodes(cluster(Config)).

%% @doc Returns the name of a node.
-spec name_of([tuple()], node()) -> string().
name_of(Config, Node) -> element(1, lists:keyfind(Node, 3, cluster(Config))).

%% @doc Returns the names of the nodes that a query chooses when it is run on `a'; `none' if no node matches, or another error.
-spec chosen([tuple()], placement_query:query()) -> [string()] | {error, term()}.
chosen(Config, Query) ->
    case call(Config, "a", placement, choose_nodes, [nodes_of(Config), Query]) of
        {ok, Nodes, _} -> [name_of(Config, Node) || Node <- Nodes];
        {error, {unsatisfied, _}} -> [];
        {error, _} = Error -> Error
    end.
