%% SPDX-License-Identifier: Apache-2.0
%% @doc Nodes on two hosts that each have an RDMA device, connected by a wire that the test cuts and disturbs.
%%
%% Runs on the first machine of `test/system/rdma/guest --hosts 2'. The nodes on the other machine are controlled over a separate wire.
-module(beamway_rdma_hosts_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([each_way_of_calling/1, one_host_has_it_off/1, benchmark_over_ssh/1, packets_are_lost/1, wire_is_cut/1, other_host_is_gone/1]).

-define(TICK_S, 8).
%% The time within which ticks detect a dead peer.
-define(NODEDOWN_MS, 4000 * ?TICK_S).

suite() -> [{timetrap, {minutes, 3}}].

%% After the last case the other host is gone.
all() -> [each_way_of_calling, one_host_has_it_off, benchmark_over_ssh, packets_are_lost, wire_is_cut, other_host_is_gone].

init_per_suite(Config) ->
    case [os:getenv(Name, "") || Name <- ["RXE_DEVICE", "RXE_NETDEV", "RXE_IPV4", "RXE_IPV6", "PEER_IPV4"]] of
        [Device, Interface, Here, Here6, There] when There =/= "" ->
            [{device, Device}, {interface, Interface}, {here, Here}, {here6, Here6}, {there, There} | Config];
        _ ->
            {skip, "needs a second host; make test-rdma has one"}
    end.

end_per_suite(_Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% --- cases ---------------------------------------------------------------------------------------------

%% With rdma on, nodes on different hosts use it, and nodes on the same host still use shared memory.
each_way_of_calling(Config) ->
    {Here, HereNode, There, ThereNode} = two(Config, ["BEAMWAY_RDMA=true"]),
    {ok, Beside, BesideNode} = beamway_peer:start(beamway_shm, #{host => proplists:get_value(here, Config), env => [{"BEAMWAY_RDMA", "true"}]}),
    true = beamway_peer:call(Here, net_kernel, connect_node, [ThereNode]),
    true = beamway_peer:call(There, net_kernel, connect_node, [BesideNode]),
    [beamway_peer:assert_link(Peer, Node, rdma)
     || {Peer, Node} <- [{Here, ThereNode}, {There, HereNode}, {There, BesideNode}, {Beside, ThereNode}]],
    true = beamway_peer:call(Here, net_kernel, connect_node, [BesideNode]),
    beamway_peer:assert_link(Here, BesideNode, shm),
    ok = exchange(Here, ThereNode).

one_host_has_it_off(Config) ->
    {Here, HereNode, There, ThereNode} = two(Config, []),
    true = beamway_peer:call(Here, net_kernel, connect_node, [ThereNode]),
    beamway_peer:assert_link(Here, ThereNode, tcp),
    beamway_peer:assert_link(There, HereNode, tcp),
    [#{reason := <<"another host, and the peer offers no rdma">>}] = beamway_peer:call(Here, beamway, links, []),
    [#{reason := <<"another host, and this node has no rdma to offer">>}] = beamway_peer:call(There, beamway, links, []).

%% Runs nodes on both machines and calls over rdma and TCP, and leaves nothing behind.
benchmark_over_ssh(Config) ->
    Root = beamway_bench_checkout:root(),
    Log = filename:join(proplists:get_value(priv_dir, Config), "bench.log"),
    ok = run("pgrep -x sshd >/dev/null || /usr/sbin/sshd -o UsePAM=no -o ListenAddress=10.78.0.1"),
    Command = filename:join([Root, "bin", "beamway"]) ++ " bench rpc --quick --repeats 1 --callers 10 --only tcp,beamway_rdma "
        "--hosts 10.78.0.1,10.78.0.2 --json 2>" ++ Log,
    Said = os:cmd(Command),
    {ok, Progress} = file:read_file(Log),
    ct:log("~ts~n~ts", [Said, Progress]),
    #{<<"metrics">> := Metrics, <<"command">> := Told} = jiffy:decode(Said, [return_maps]),
    [_] = [Name || #{<<"name">> := <<"rpc_rdma_n2">> = Name, <<"baseline_name">> := <<"tcp">>} <- Metrics],
    nomatch = string:find(Told, "10.78."),
    _ = beamway_peer:wait_until(fun() -> os:cmd(on_peer() ++ " pgrep -af 'beam.smp.*-name bench|epmd -port 2'") =:= "" end, 30000).

%% The device retransmits lost packets, and the connection stays up.
packets_are_lost(Config) ->
    {Here, _, _, ThereNode} = connected(Config),
    Connection = beamway_peer:controller(Here, ThereNode),
    Interface = proplists:get_value(interface, Config),
    ok = run("modprobe sch_netem && tc qdisc replace dev " ++ Interface ++ " root netem loss 1%"),
    ok = exchange(Here, ThereNode),
    ok = exchange(Here, ThereNode),
    ok = run("tc qdisc del dev " ++ Interface ++ " root"),
    Connection = beamway_peer:controller(Here, ThereNode).

%% If soft-RoCE of Linux 6.1 has to send while its interface is down, its connection manager stops permanently (even rping can no longer connect). So
%% the case creates the device again, which is not necessary for a real device.
wire_is_cut(Config) ->
    {Here, _, There, ThereNode} = connected(Config),
    Watcher = beamway_peer:watch_nodedown(Here),
    Interface = proplists:get_value(interface, Config),
    ok = run("ip link set dev " ++ Interface ++ " down"),
    {Reason, _} = beamway_peer:nodedown(Here, Watcher, ThereNode, ?NODEDOWN_MS),
    ct:log("~0p", [Reason]),
    ok = run("ip link set dev " ++ Interface ++ " up && ip address replace " ++ proplists:get_value(here6, Config) ++ "/64 dev "
             ++ Interface ++ " nodad"),
    Device = proplists:get_value(device, Config),
    ok = run("timeout 20 rdma link del " ++ Device ++ " && rdma link add " ++ Device ++ " type rxe netdev " ++ Interface),
    _ = beamway_peer:wait_until(fun() ->
                                        beamway_peer:call(Here, net_kernel, connect_node, [ThereNode]) andalso
                                            kind(Here, ThereNode) =:= rdma orelse again(Here, ThereNode)
                                end, 60000),
    true = is_process_alive(There),
    ok = exchange(Here, ThereNode).

%% The interface may be up before the device is, so the first connection may still use TCP.
again(Here, ThereNode) ->
    _ = beamway_peer:call(Here, net_kernel, disconnect, [ThereNode]),
    false.

other_host_is_gone(Config) ->
    {Here, HereNode, _, ThereNode} = connected(Config),
    Watcher = beamway_peer:watch_nodedown(Here),
    _ = spawn(fun() -> os:cmd(on_peer() ++ " sh -c 'echo o >/proc/sysrq-trigger'") end),
    {Reason, _} = beamway_peer:nodedown(Here, Watcher, ThereNode, ?NODEDOWN_MS),
    ct:log("~0p", [Reason]),
    false = lists:member(ThereNode, beamway_peer:call(Here, erlang, nodes, [])),
    %% The remaining node still works, and has no link in its table.
    HereNode = beamway_peer:call(Here, erlang, node, []),
    none = kind(Here, ThereNode).

%% --- nodes on both -------------------------------------------------------------------------------------

two(Config, Environment) ->
    Args = ["-kernel", "net_ticktime", integer_to_list(?TICK_S)],
    {ok, Here, HereNode} = beamway_peer:start(beamway_shm, #{host => proplists:get_value(here, Config), args => Args, env => [{"BEAMWAY_RDMA", "true"}]}),
    {ok, There, ThereNode} = beamway_peer:start(beamway_shm, #{host => proplists:get_value(there, Config), args => Args,
                                                               wrapper => [on_peer(), "env" | Environment]}),
    {Here, HereNode, There, ThereNode}.

connected(Config) ->
    {Here, HereNode, There, ThereNode} = two(Config, ["BEAMWAY_RDMA=true"]),
    true = beamway_peer:call(Here, net_kernel, connect_node, [ThereNode]),
    beamway_peer:assert_link(Here, ThereNode, rdma),
    beamway_peer:assert_link(There, HereNode, rdma),
    {Here, HereNode, There, ThereNode}.

on_peer() ->
    test_support:file("test/system/rdma/on_peer").

kind(Peer, Node) ->
    case [Kind || #{node := N, link := Kind} <- beamway_peer:call(Peer, beamway, links, []), N =:= Node] of
        [Kind] -> Kind;
        [] -> none
    end.

exchange(Peer, Node) ->
    [begin
         Bytes = binary:copy(<<"0123456789abcdef">>, Count),
         Bytes = beamway_peer:call(Peer, erpc, call, [Node, binary, copy, [Bytes]])
     end || Count <- [1, 100, 10000, 300000]],
    ok.

run(Command) ->
    "" = os:cmd(Command),
    ok.
