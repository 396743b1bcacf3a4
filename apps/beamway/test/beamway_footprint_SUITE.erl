%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests how many descriptors (which limit how many peers a node can have), how many processes, and how much memory each end of a link uses. Also
%% tests a node with many peers.
-module(beamway_footprint_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([over_tcp/1, over_tls/1, over_shared_memory/1, memory_to_outlive_connections/1, many_peers/1]).

-define(WAIT_MS, 20000).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [over_tcp, over_tls, over_shared_memory, memory_to_outlive_connections, many_peers].

init_per_suite(Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    Config.

end_per_suite(_Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

-define(MANY, 450).
%% How much more memory an idle link may use if it can outlive its connection.
-define(SESSION_BYTES, 4096).

%% The socket's port has one descriptor and the driver's port another, because the VM polls each descriptor for only one port.
over_tcp(_Config) -> takes_at_most(2, 2, beamway_tcp).

over_tls(_Config) -> takes_at_most(2, 2, beamway_tls).

%% Shared memory adds two doorbells and a descriptor of the peer's process.
over_shared_memory(_Config) -> takes_at_most(4, 2, beamway_shm).

%% Measures the second connection, because a node's first one also opens resources that stay open.
takes_at_most(Descriptors, Processes, Carrier) ->
    {ok, Caller, CallerNode} = beamway_peer:start(Carrier),
    {ok, Called, CalledNode} = beamway_peer:start(Carrier),
    Peers = [Caller, Called],
    Before = [descriptors(Peer) || Peer <- Peers],
    ok = beamway_peer:connect_both(Carrier, Caller, Called),
    true = beamway_peer:call(Caller, erlang, disconnect_node, [CalledNode]),
    ok = beamway_peer:wait_disconnected(Called, CallerNode),
    _ = beamway_peer:wait_until(fun() -> [descriptors(Peer) || Peer <- Peers] =:= Before end, ?WAIT_MS),
    ok = beamway_peer:connect_both(Carrier, Caller, Called),
    _ = beamway_peer:wait_until(fun() -> settled(Peers, Before, Descriptors) end, ?WAIT_MS),
    Taken = [{descriptors(Peer) - Free, processes_of_link(Peer)} || {Peer, Free} <- lists:zip(Peers, Before)],
    ct:pal("~ts: {descriptors, processes} of the calling and the called end: ~0tp", [Carrier, Taken]),
    [] = [Over || {Fds, Pids} = Over <- Taken, Fds > Descriptors orelse length(Pids) > Processes],
    ok.

%% The driver keeps no data for an idle link (session_test), so what remains is in processes and in the table of links.
memory_to_outlive_connections(_Config) ->
    [Without, With] = [begin
                           {PeerA, _, PeerB, _} = beamway_peer:connected_pair(beamway_tcp, #{env => [{"BEAMWAY_RESUME_MS", Ms}]}),
                           [beamway_peer:wait_until(fun() -> memory_of_link(Peer) end, ?WAIT_MS) || Peer <- [PeerA, PeerB]]
                       end || Ms <- ["0", "15000"]],
    beamway_runner:say("bytes of the calling and the called end: ~w, with a session ~w", [Without, With]),
    [] = [Over || {More, Less} = Over <- lists:zip(With, Without), More > Less + ?SESSION_BYTES],
    ok.

%% Returns false as long as the keeper does not hibernate.
memory_of_link(Peer) ->
    [Connection, Keeper] = processes_of_link(Peer),
    beamway_peer:run(Peer, fun() ->
                               true = erlang:garbage_collect(Connection),
                               {memory, Bytes} = process_info(Connection, memory),
                               Rows = [Row || {{Kind, _}, _} = Row <- ets:tab2list(beamway_links), lists:member(Kind, [link, session, session_of])],
                               case process_info(Keeper, [current_function, memory]) of
                                   [{current_function, {erlang, hibernate, 3}}, {memory, More}] ->
                                       Bytes + More + erlang:system_info(wordsize) * lists:sum([erts_debug:flat_size(Row) || Row <- Rows]);
                                   _ ->
                                       false
                               end
                           end).

%% A limit of 1024 descriptors, the default of most shells, is enough for MANY peers. When a third of them exit at once, the node queries their hosts
%% and determines the cause.
many_peers(_Config) ->
    Epmd = beamway_bench_nodes:start_epmd(),
    EpmdPort = beamway_bench_nodes:epmd_port(Epmd),
    {ok, Peer, Node} = beamway_peer:start(beamway_tcp, #{before_exec => "ulimit -n 1024;", args => ["-connect_all", "false"],
                                                         env => [{"ERL_EPMD_PORT", integer_to_list(EpmdPort)}]}),
    {ok, Peers} = beamway_bench_peers:start(?MANY, EpmdPort, beamway),
    [Name, _] = string:split(atom_to_list(Node), "@"),
    {port, Port, _} = beamway_peer:call(Peer, erl_epmd, port_please, [Name, {127, 0, 0, 1}]),
    ok = beamway_bench_peers:connect(Peers, Port, beamway_peer:call(Peer, erlang, get_cookie, [])),
    Links = fun() -> [Kind || #{link := Kind} <- beamway_peer:call(Peer, beamway, links, [])] end,
    _ = beamway_peer:wait_until(fun() -> length(Links()) =:= ?MANY end, ?WAIT_MS),
    ct:pal("~b descriptors with ~b links", [length(beamway_peer:fds(beamway_peer:os_pid(Peer))), ?MANY]),
    [tcp] = lists:usort(Links()),
    ok = beamway_peer:call(Peer, beamway_bench_peers, broadcast, [100]),
    ok = beamway_bench_peers:await(Peers, messages, ?MANY),
    Gone = beamway_bench_peers:vanish(Peers),
    _ = beamway_peer:wait_until(fun() -> length(beamway_peer:call(Peer, erlang, nodes, [])) =:= ?MANY - Gone end, ?WAIT_MS),
    {_, 0} = beamway_bench_peers:counts(Peers),
    %% The recorder checks which peers have exited; the others stay.
    _ = beamway_peer:wait_until(fun() -> length([Ended || #{ended := _} = Ended <- beamway_peer:call(Peer, beamway_recorder, records, [])]) =:= Gone end, ?WAIT_MS),
    true = length(beamway_peer:call(Peer, erlang, nodes, [])) =:= ?MANY - Gone,
    ok = beamway_bench_peers:stop(Peers),
    beamway_bench_nodes:stop_epmd(Epmd).

%% The processes that set up the connection may still be exiting.
settled(Peers, Before, Most) ->
    lists:all(fun({Peer, Free}) -> descriptors(Peer) - Free =< Most end, lists:zip(Peers, Before)).

%% Counts sockets and other descriptors that a link may poll, but not files, which the node opens for other reasons.
descriptors(Peer) ->
    length([Fd || {Fd, What} <- beamway_peer:fds(beamway_peer:os_pid(Peer)),
                  lists:any(fun(Kind) -> lists:prefix(Kind, What) end, ["socket:", "anon_inode:", "/memfd:"])]).

%% Returns the connection process and the processes that start and exit with it.
processes_of_link(Peer) ->
    beamway_peer:run(Peer, fun() ->
                               [#{connection := Connection}] = beamway_links:all(),
                               {links, Linked} = process_info(Connection, links),
                               [Connection | [Pid || Pid <- Linked, is_pid(Pid), process_info(Pid, registered_name) =:= []]]
                           end).
