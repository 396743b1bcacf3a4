%% SPDX-License-Identifier: Apache-2.0
%% @doc Reproduces the session in Appendix A of the RELEASE report D3.5 with the same number of real nodes, which have the
%% attribute values that the report gives.
%%
%% All nodes run on the same machine here, so the report's `vm1@bwlf01' is called `vm1_bwlf01-...@127.0.0.1'. The report's
%% list contains bwlf32 twice.
-module(placement_report_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([the_session/1, protocol/1, boolean_predicates/1, six_comparisons/1]).

suite() -> [{timetrap, {minutes, 4}}].

all() -> [the_session, protocol, boolean_predicates, six_comparisons].

init_per_suite(Config) ->
    Cluster = beamway_placement_nodes:start(["m" | [Name || {Name, _, _, _, _} <- machines()]], #{run => false}),
    %% The configuration files contain the values of the report's machines.
    lists:foreach(fun({Name, Speed, Memory, Load, Processors}) ->
        File = filename:join(proplists:get_value(priv_dir, Config), Name ++ ".attributes"),
        ok = file:write_file(File, io_lib:format("[{cpu_speed, ~p}, {mem_free, ~p}, {loadavg5, ~p}, {vm_num_processors, ~p}].~n", [Speed, Memory, Load, Processors])),
        ok = beamway_placement_nodes:call(Cluster, Name, {attr, start}, [File])
    end, machines()),
    %% Node m only sends requests, so the application is not started there. The library waits five seconds for all nodes,
    %% and a busy machine may be unable to connect to all 22 of them in this time.
    ok = beamway_placement_nodes:connect(Cluster, "m"),
    [{cluster, Cluster} | Config].

end_per_suite(Config) ->
    beamway_placement_nodes:stop(proplists:get_value(cluster, Config)).

%% The name, cpu_speed, mem_free, loadavg5 and vm_num_processors of each machine, in the order of the report's list.
machines() ->
    [{"vm1_bwlf01", 1596.0, 6845956, 0.04, 8}, {"vm1_bwlf02", 1596.0, 9690156, 0.0, 8}, {"vm1_bwlf03", 1596.0, 8722596, 0.36, 8},
     {"vm1_bwlf04", 1596.0, 10999276, 0.19, 8}, {"vm1_bwlf15", 1596.0, 10964856, 0.0, 8}, {"vm1_bwlf16", 1596.0, 10801120, 0.05, 8},
     {"vm1_bwlf17", 1596.0, 10438240, 0.0, 8}, {"vm1_bwlf18", 1596.0, 10870756, 0.12, 8}, {"vm1_bwlf19", 1596.0, 10794812, 0.39, 8},
     {"vm1_bwlf20", 1596.0, 6871704, 0.22, 8}, {"vm1_bwlf32", 1596.0, 10977732, 0.88, 8}, {"vm1_bwlf33", 1998.0, 13948024, 0.07, 8},
     {"vm1_bwlf34", 1998.0, 9832688, 0.21, 8}, {"vm1_amaterasu", 1.6e3, 13878268, 0.0, 8}, {"vm1_osiris", 2666.0, 217452, 7.93, 24},
     {"vm1_persephone", 1998.0, 754432, 0.0, 2}, {"vm1_cantor", 2.8e3, 435815476, 5.05, 48}, {"vm1_oberon", 1.2e3, 25687204, 0.0, 6},
     {"vm1_localhost", 1.6e3, 8517844, 0.27, 24}, {"vm1_bwlf10", 1596.0, 10481680, 0.01, 1}, {"vm2_bwlf10", 1596.0, 10481680, 0.01, 2},
     {"vm3_bwlf10", 1596.0, 10481680, 0.01, 5}].

%% The report's list: 23 entries for 22 nodes.
listed() ->
    Names = [Name || {Name, _, _, _, _} <- machines()],
    {Before, After} = lists:splitwith(fun(Name) -> Name =/= "vm1_bwlf33" end, Names),
    Before ++ ["vm1_bwlf32"] ++ After.

the_session(Config) ->
    Cluster = proplists:get_value(cluster, Config),
    Listed = [node_of(Name, Cluster) || Name <- listed()],
    ?assertEqual(23, length(Listed)),
    Speeds = ask(Cluster, request_attrs, [Listed, [cpu_speed, mem_free]]),
    ?assertEqual([{Name, [{cpu_speed, Speed}, {mem_free, Memory}]} || {Name, Speed, Memory, _, _} <- machines()], named(Speeds, Cluster)),
    Loads = ask(Cluster, request_attrs, [Listed, [loadavg5, vm_num_processors]]),
    ?assertEqual([{Name, [{loadavg5, Load}, {vm_num_processors, Processors}]} || {Name, _, _, Load, Processors} <- machines()], named(Loads, Cluster)),
    Chosen = fun(Predicates) -> [name_of(Node, Cluster) || Node <- ask(Cluster, choose_nodes, [Listed, Predicates])] end,
    ?assertEqual(["vm1_persephone", "vm1_oberon", "vm1_bwlf10", "vm2_bwlf10", "vm3_bwlf10"], Chosen([{vm_num_processors, lt, 8}])),
    ?assertEqual(bwlf(["01", "02", "03", "04", "15", "16", "17", "18", "19", "20", "32", "33", "34"]) ++ ["vm1_amaterasu", "vm1_localhost"],
                 Chosen([{vm_num_processors, ge, 8}, {loadavg5, lt, 1}])),
    ?assertEqual(bwlf(["01", "02", "03", "04", "15", "16", "17", "18", "19", "20", "33", "34"]) ++ ["vm1_amaterasu", "vm1_localhost"],
                 Chosen([{vm_num_processors, ge, 8}, {loadavg5, lt, 0.5}])),
    ?assertEqual(bwlf(["01", "02", "15", "16", "17", "33"]) ++ ["vm1_amaterasu"], Chosen([{vm_num_processors, ge, 8}, {loadavg5, lt, 0.1}])),
    ?assertEqual([], Chosen([{loadavg5, lt, 0.1}, {cpu_speed, gt, 2000}])),
    Last = [{loadavg5, lt, 0.1}, {cpu_speed, gt, 1600}],
    ?assertEqual(["vm1_bwlf33", "vm1_persephone"], Chosen(Last)),
    %% The report's last answer also contains bwlf01, because its clock rate had increased since its value was printed.
    ok = beamway_placement_nodes:call(Cluster, "vm1_bwlf01", {attr, update_attr}, [cpu_speed, 1998.0]),
    ?assertEqual(["vm1_bwlf01", "vm1_bwlf33", "vm1_persephone"], Chosen(Last)),
    ok = beamway_placement_nodes:call(Cluster, "vm1_bwlf01", {attr, update_attr}, [cpu_speed, 1596.0]).

bwlf(Numbers) -> ["vm1_bwlf" ++ Number || Number <- Numbers].

%% After {attr_server, Node} ! {self(), {report, Key, Names}}, the answer contains the names and their values, with
%% `undefined' for missing ones.
protocol(Config) ->
    Cluster = proplists:get_value(cluster, Config),
    Node = node_of("vm1_cantor", Cluster),
    Key = make_ref(),
    {report, Key, Node, Values} =
        beamway_peer:run(peer("m", Cluster), fun() ->
            {attr_server, Node} ! {self(), {report, Key, [cpu_speed, no_such_thing, vm_num_processors, num_erlang_processes]}},
            receive {report, Key, _, _} = Report -> Report after 10000 -> error(no_report) end
        end),
    ?assertMatch([{cpu_speed, 2.8e3}, {no_such_thing, undefined}, {vm_num_processors, 48}, {num_erlang_processes, Number}] when Number > 20, Values).

boolean_predicates(Config) ->
    Cluster = proplists:get_value(cluster, Config),
    [ok = beamway_placement_nodes:call(Cluster, Name, {attr, insert_attr}, [has_gpu, Value])
     || {Name, Value} <- [{"vm1_oberon", true}, {"vm1_cantor", yes}, {"vm1_osiris", false}, {"vm1_bwlf01", no}, {"vm1_bwlf02", 1}]],
    Nodes = [node_of(Name, Cluster) || Name <- listed()],
    Chosen = fun(Predicate) -> [name_of(Node, Cluster) || Node <- ask(Cluster, choose_nodes, [Nodes, [Predicate]])] end,
    [?assertEqual(["vm1_cantor", "vm1_oberon"], Chosen({has_gpu, Word})) || Word <- [true, yes]],
    [?assertEqual(["vm1_bwlf01", "vm1_osiris"], Chosen({has_gpu, Word})) || Word <- [false, no]],
    ok = beamway_placement_nodes:call(Cluster, "vm1_oberon", {attr, delete_attr}, [has_gpu]),
    ?assertEqual(["vm1_cantor"], Chosen({has_gpu, true})).

six_comparisons(Config) ->
    Cluster = proplists:get_value(cluster, Config),
    Nodes = [node_of(Name, Cluster) || Name <- listed()],
    Count = fun(Op, Constant) -> length(ask(Cluster, choose_nodes, [Nodes, [{vm_num_processors, Op, Constant}]])) end,
    ?assertEqual([14, 8, 5, 19, 3, 17], [Count(Op, 8) || Op <- [eq, ne, lt, le, gt, ge]]),
    %% Integers and floats compare as numbers.
    ?assertEqual(14, Count(eq, 8.0)).

ask(Cluster, Function, Arguments) -> beamway_placement_nodes:call(Cluster, "m", {attr, Function}, Arguments).

peer(Name, Cluster) ->
    {_, Peer, _} = lists:keyfind(Name, 1, Cluster),
    Peer.

node_of(Name, Cluster) ->
    {_, _, Node} = lists:keyfind(Name, 1, Cluster),
    Node.

name_of(Node, Cluster) ->
    {Name, _, _} = lists:keyfind(Node, 3, Cluster),
    Name.

named(Answers, Cluster) -> [{name_of(Node, Cluster), Values} || {Node, Values} <- Answers].
