%% SPDX-License-Identifier: Apache-2.0
%% @doc What remains of a TCP link when a part of it is closed, and what is reported to each side.
%%
%% On the driver's link the connection has two ports, the socket's and the driver's, and two descriptors. In the group `inet_tcp'
%% the cases show what stock distribution does.
-module(beamway_tcp_ends_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([disconnected_with_much_queued/1, connection_killed/1, controller_killed/1, socket_closed/1, peer_half_closes/1]).

-define(SENDERS, 100).
-define(MESSAGE_BYTES, 1000000).
-define(WAIT_MS, 20000).
%% Only the case connects nodes; otherwise every process that still sends would.
-define(BY_HAND, #{args => ["-kernel", "dist_auto_connect", "never"]}).

suite() -> [{timetrap, {minutes, beamway_carrier:scale(3, 10)}}].

all() -> beamway_carrier:all([inet_tcp, beamway_tcp]).

groups() ->
    beamway_carrier:groups([inet_tcp, beamway_tcp],
                           [disconnected_with_much_queued, connection_killed, controller_killed, socket_closed, peer_half_closes]).

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% Senders wait for a peer that does not read, and the operator disconnects it. They continue immediately, and none of the 100 MB is retained. OTP's
%% own port may keep its queue, and itself, as long as the peer does not read (erlang/otp #7438).
disconnected_with_much_queued(Config) ->
    {PeerA, _, PeerB, NodeB} = Pair = connected_pair(Config),
    Before = resources_without_link(Config, Pair),
    ok = beamway_peer:sigstop(PeerB),
    Senders = beamway_peer:run(PeerA, fun() ->
                  [spawn(fun() -> {nobody, NodeB} ! binary:copy(<<1>>, ?MESSAGE_BYTES) end) || _ <- lists:seq(1, ?SENDERS)]
              end),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:run(PeerA, fun() -> lists:all(fun waits_or_is_gone/1, Senders) end) end, ?WAIT_MS),
    true = beamway_peer:run(PeerA, fun() -> lists:any(fun waits/1, Senders) end),
    Watcher = beamway_peer:watch_nodedown(PeerA),
    true = beamway_peer:call(PeerA, erlang, disconnect_node, [NodeB]),
    {disconnect, _} = beamway_peer:nodedown(PeerA, Watcher, NodeB, ?WAIT_MS),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:run(PeerA, fun() -> not lists:any(fun is_process_alive/1, Senders) end) end, ?WAIT_MS),
    beamway_carrier:carrier(Config) =:= inet_tcp orelse stays_well(Config, Pair, Before),
    ok.

stays_well(Config, {PeerA, NodeA, PeerB, _} = Pair, Before) ->
    ok = nothing_is_left(PeerA, Before),
    ok = beamway_peer:sigcont(PeerB),
    ok = beamway_peer:wait_disconnected(PeerB, NodeA),
    goes_on(Config, Pair).

waits(Pid) -> process_info(Pid, status) =:= {status, suspended}.

waits_or_is_gone(Pid) -> waits(Pid) orelse not is_process_alive(Pid).

connection_killed(Config) ->
    ended(Config, fun(Owner, _Controller) -> exit(Owner, kill) end, killed).

controller_killed(Config) ->
    ended(Config, fun(_Owner, Controller) -> exit(Controller, kill) end, killed).

%% Both sides notice immediately, and nothing remains on either. The other side sees a closed connection.
ended(Config, End, Reason) ->
    {PeerA, NodeA, PeerB, NodeB} = Pair = connected_pair(Config),
    Before = [{Peer, resources_without_link(Config, Pair, Peer)} || Peer <- [PeerA, PeerB]],
    Watchers = [beamway_peer:watch_nodedown(Peer) || Peer <- [PeerA, PeerB]],
    true = beamway_peer:run(PeerA, fun() -> {Owner, Controller} = connection(NodeB), End(Owner, Controller) end),
    [{Reason, _}, {connection_closed, _}] =
        [beamway_peer:nodedown(Peer, Watcher, Node, ?WAIT_MS)
         || {Peer, Watcher, Node} <- lists:zip3([PeerA, PeerB], Watchers, [NodeB, NodeA])],
    [ok = nothing_is_left(Peer, Resources) || {Peer, Resources} <- Before],
    goes_on(Config, Pair).

%% Returns the pids of a connection's process and of its controller.
connection(Node) ->
    {ok, Info} = net_kernel:node_info(Node),
    {Node, Controller} = lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)),
    {proplists:get_value(owner, Info), Controller}.

%% A process closes the port of the connection's socket on the accepting side.
socket_closed(Config) ->
    {PeerA, NodeA, PeerB, NodeB} = Pair = connected_pair(Config),
    Before = [{Peer, resources_without_link(Config, Pair, Peer)} || Peer <- [PeerA, PeerB]],
    Watchers = [beamway_peer:watch_nodedown(Peer) || Peer <- [PeerA, PeerB]],
    true = beamway_peer:run(PeerB, fun() -> [Socket] = accepted_sockets(), erlang:port_close(Socket) end),
    [{connection_closed, _}, {_Reason, _}] =
        [beamway_peer:nodedown(Peer, Watcher, Node, ?WAIT_MS) || {Peer, Watcher, Node} <- lists:zip3([PeerA, PeerB], Watchers, [NodeB, NodeA])],
    [ok = nothing_is_left(Peer, Resources) || {Peer, Resources} <- Before],
    goes_on(Config, Pair).

accepted_sockets() ->
    Ports = [Port || Port <- erlang:ports(), erlang:port_info(Port, name) =:= {name, "tcp_inet"}],
    [Listening] = [Number || Port <- Ports, {ok, {_, Number}} <- [inet:sockname(Port)], {error, enotconn} =:= inet:peername(Port)],
    [Port || Port <- Ports, {ok, _} <- [inet:peername(Port)], {ok, {_, Number}} <- [inet:sockname(Port)], Number =:= Listening].

%% A peer that has closed its sending direction counts as gone, even if it could still read.
peer_half_closes(Config) ->
    {ok, Survivor, SurvivorNode} = beamway_peer:start(beamway_carrier:carrier(Config)),
    Name = beamway_peer:unique_name("raw"),
    [_, Host] = string:split(atom_to_list(SurvivorNode), "@"),
    Node = list_to_atom(Name ++ "@" ++ Host),
    Socket = beamway_raw_peer:call(SurvivorNode, authenticated, #{name => Name}),
    _ = beamway_peer:wait_until(fun() -> lists:member(Node, beamway_peer:call(Survivor, erlang, nodes, [connected])) end, ?WAIT_MS),
    ok = gen_tcp:shutdown(Socket, write),
    ok = beamway_peer:wait_disconnected(Survivor, Node),
    _Ms = beamway_raw_peer:closed_within(Socket, ?WAIT_MS),
    ok.

connected_pair(Config) -> beamway_peer:connected_pair(beamway_carrier:carrier(Config), ?BY_HAND).

%% ---- leftovers ----

resources_without_link(Config, {PeerA, _, _, _} = Pair) -> resources_without_link(Config, Pair, PeerA).

%% Returns the resources that the node uses while it is not connected. The pair is connected before and after.
resources_without_link(Config, {PeerA, NodeA, PeerB, NodeB} = Pair, Peer) ->
    true = beamway_peer:call(PeerA, erlang, disconnect_node, [NodeB]),
    ok = beamway_peer:wait_disconnected(PeerB, NodeA),
    Resources = settled(Peer, beamway_peer:resources(Peer)),
    goes_on(Config, Pair),
    Resources.

%% The last port may still be closing.
settled(Peer, Seen) ->
    receive after 100 -> ok end,
    case beamway_peer:resources(Peer) of
        Seen -> Seen;
        Other -> settled(Peer, Other)
    end.

nothing_is_left(Peer, Before) ->
    _ = beamway_peer:wait_until(fun() -> beamway_peer:no_more(beamway_peer:resources(Peer), Before) end, ?WAIT_MS),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:call(Peer, erlang, memory, [binary]) < ?SENDERS * ?MESSAGE_BYTES div 10 end, ?WAIT_MS),
    ok.

goes_on(Config, {PeerA, _, PeerB, NodeB}) ->
    ok = beamway_peer:connect_both(beamway_carrier:carrier(Config), PeerA, PeerB),
    NodeB = beamway_peer:call(PeerA, erpc, call, [NodeB, erlang, node, []]),
    ok.
