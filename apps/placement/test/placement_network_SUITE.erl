%% SPDX-License-Identifier: Apache-2.0
%% @doc Real networks: hosts below a tree of rate-limited bridges. Measurements under load find the tree without
%% parameters.
%%
%% `make test' uses eight hosts in two racks; `make test-network' (BEAMWAY_TEST_NETWORK=1) uses 32 hosts in two sites with
%% four racks each.
-module(placement_network_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([two_racks/1, two_sites/1, ants_between_two_racks/1]).

suite() -> [{timetrap, {minutes, 12}}].

all() ->
    case os:getenv("BEAMWAY_TEST_NETWORK", "") of
        "" -> [two_racks, ants_between_two_racks];
        _ -> [two_racks, two_sites, ants_between_two_racks]
    end.

init_per_suite(Config) ->
    case os:cmd("id -u") of
        "0\n" -> Config;
        _ -> {skip, {rights, "needs root to make network namespaces"}}
    end.

end_per_suite(_Config) -> ok.

end_per_testcase(_Case, _Config) ->
    beamway_peer:stop_started().

%% The links are so slow that they, not the CPU, dominate the measured times. There are enough batches that other work on
%% the machine does not change the medians.
two_racks(Config) ->
    recovered(Config, two_racks, [{4, 1000}, {4, 1000}], 1000, #{batches => 20, messages => 20}).

two_sites(Config) ->
    Racks = lists:duplicate(4, {4, 500}),
    recovered(Config, two_sites, [{Racks, 1000}, {Racks, 1000}], 500, #{batches => 24, messages => 10}).

%% Runs ML-ACO on 16 nodes below two bridges. If the tree of processes follows the network, the link between the racks
%% carries at most a fifth of the bytes, and the cost is the same.
ants_between_two_racks(_Config) ->
    case beamway_bridges:build("bwt", [{8, 1000}, {8, 1000}], 1000) of
        {error, Text} -> {skip, {rights, Text}};
        {ok, #{hosts := Hosts} = Net} ->
            try
                Nodes = ml_aco:start_nodes([#{host => Address, before => beamway_bridges:wrapper(Net, Address)} || {Address, _} <- Hosts]),
                try
                    [{Master, _} | _] = Nodes,
                    {Plan, Drawn} = beamway_bench_mlaco_net:plans(beamway_bench_mlaco_net:tree([Node || {_, Node} <- Nodes], Net), 1),
                    %% The nodes connect to each other during the first runs.
                    _ = [beamway_bench_mlaco_net:bytes_between(Net, 1, Master, P) || P <- [Plan, Drawn]],
                    [{With, Cost}, {Without, Cost}] = [beamway_bench_mlaco_net:bytes_between(Net, 1, Master, P) || P <- [Plan, Drawn]],
                    ct:log("with distances ~b bytes, without ~b: ~.1f times", [With, Without, Without / With]),
                    ?assert(Without >= 5 * With)
                after ml_aco:stop_nodes(Nodes)
                end
            after beamway_bridges:delete(Net)
            end
    end.

recovered(Config, Name, Parts, HostKbit, Options) ->
    case beamway_bridges:build("bwt", Parts, HostKbit) of
        {error, Text} -> {skip, {rights, Text}};
        {ok, Net} ->
            try
                Peers = started(maps:get(hosts, Net), Net),
                Planted = [lists:sort([node_of(Address, Peers) || Address <- Group]) || Group <- maps:get(groups, Net)],
                ?assertEqual(lists:sort(Planted), measured(Config, Name, Peers, Options))
            after beamway_bridges:delete(Net)
            end
    end.

measured(Config, Name, Peers, Options) ->
    Nodes = [Node || {_, Node} <- Peers],
    {First, _} = hd(Peers),
    {ok, Measured} = beamway_peer:call(First, placement, probe, [Nodes, Options#{modes => [loaded], limit_ms => 240000 * beamway_runner:slowness()}],
                                       300000),
    ?assertEqual([], maps:get(failed, Measured)),
    {ok, Matrix} = placement_measured:matrix(Measured, loaded, median_us),
    #{tree := Tree, advice := Advice} = Result = placement_cluster:cluster(Matrix),
    Drawing = filename:join(proplists:get_value(priv_dir, Config), atom_to_list(Name) ++ ".svg"),
    ok = file:write_file(Drawing, unicode:characters_to_binary(placement_draw:heat_map(Matrix, #{order => placement_tree:leaf_order(Tree)}))),
    ct:log("explained ~p~n~ts~n~ts", [maps:get(explained, Result), Advice, placement_export:text(dot, Tree)]),
    _ = store(Measured, Name),
    lists:sort(clusters(placement_tree:packed(Tree))).

%% Stores the measurements for inspection, and for the pictures in the guide.
store(Measured, Name) ->
    case os:getenv("BEAMWAY_TEST_NETWORK_STORE") of
        false -> ok;
        Folder -> file:write_file(filename:join(Folder, atom_to_list(Name) ++ ".json"), jiffy:encode(placement_measured:to_json(Measured)))
    end.

started([], _) -> [];
started(Hosts, Net) ->
    {Now, Later} = lists:split(min(4, length(Hosts)), Hosts),
    Calls = [beamway_peer:async(fun() -> start_one(Address, Net) end) || {Address, _} <- Now],
    [beamway_peer:await(Call, 120000 * beamway_runner:slowness()) || Call <- Calls] ++ started(Later, Net).

start_one(Address, Net) ->
    {ok, Peer, Node} = beamway_peer:start(inet_tcp, #{name => "n", host => Address, wrapper => beamway_bridges:wrapper(Net, Address),
                                                      args => ["-connect_all", "false", "+S", "1", "+SDio", "1", "+A", "1", "-boot", "no_dot_erlang"]}),
    {Peer, Node}.

node_of(Address, Peers) ->
    [Node] = [Node || {_, Node} <- Peers, lists:last(string:split(atom_to_list(Node), "@")) =:= Address],
    Node.

clusters({leaf, _}) -> [];
clusters({group, _, _, Children} = Group) ->
    [lists:sort(placement_tree:members(Group)) | lists:append([clusters(Child) || Child <- Children])].
