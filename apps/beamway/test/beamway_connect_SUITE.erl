%% SPDX-License-Identifier: Apache-2.0
%% @doc How nodes find, connect to, reject and lose each other, over each carrier.
%%
%% In the group `inet_tcp' the cases show what stock distribution does, and Beamway must do the same.
%% With `BEAMWAY_TEST_LONG=1' in the environment every group uses 24 nodes (by default only shared memory does, the
%% other groups use 8) and runs more rounds of simultaneous connects and of restarts.
-module(beamway_connect_SUITE).

%% Only the case itself connects nodes; otherwise OTP's own servers would call back the node that a
%% case has just disconnected.
-define(BY_HAND, #{args => ["-kernel", "dist_auto_connect", "never"]}).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([simultaneous_connects/1, callers_that_gave_up/1, callers_that_are_gone/1, reconnects/1, restarts_under_the_same_name/1, full_mesh/1,
         hidden_node/1, hidden_in_the_log/1, auto_connect_never/1, auto_connect_once/1, wrong_cookie/1, allow/1,
         mixed_cluster/1, socket_options/1, traffic_counters/1, socket_of_the_link/1,
         questions_of_inet/1, nodedown_reasons/1, nodedown_reasons_of_the_network/1, absent_node/1, illegal_names/1]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> beamway_carrier:all().

groups() ->
    beamway_carrier:groups(
      [simultaneous_connects, callers_that_gave_up, callers_that_are_gone, reconnects, restarts_under_the_same_name, full_mesh, hidden_node, hidden_in_the_log,
       auto_connect_never, auto_connect_once, wrong_cookie, allow, mixed_cluster, socket_options,
       traffic_counters, socket_of_the_link, questions_of_inet, nodedown_reasons, nodedown_reasons_of_the_network, absent_node,
       illegal_names]).

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

%% The nodes of a case that failed half way through must not outlive it.
end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% --- connecting ------------------------------------------------------------------------------------

%% Both nodes call each other in the same microsecond. One connection must remain, and it must work
%% in both directions.
simultaneous_connects(Config) ->
    {PeerA, NodeA, PeerB, NodeB} = start_two(Config, ?BY_HAND),
    Kind = beamway_peer:link_kind(beamway_carrier:carrier(Config)),
    Rounds = beamway_carrier:rounds(100, 1000),
    Attempts = fun() -> [kernel_links(Peer) || Peer <- [PeerA, PeerB]] end,
    None = Attempts(),
    [begin
         At = erlang:system_time(microsecond) + 4000 + rand:uniform(500),
         Late = rand:uniform(300) - 150,
         Calls = [beamway_peer:async(fun() -> connect_at(PeerA, NodeB, At) end),
                  beamway_peer:async(fun() -> connect_at(PeerB, NodeA, At + Late) end)],
         [true, true] = [beamway_peer:await(Call) || Call <- Calls],
         pong = beamway_peer:call(PeerA, net_adm, ping, [NodeB]),
         pong = beamway_peer:call(PeerB, net_adm, ping, [NodeA]),
         ok = beamway_peer:assert_link(PeerA, NodeB, Kind),
         ok = beamway_peer:assert_link(PeerB, NodeA, Kind),
         true = beamway_peer:call(PeerA, erlang, disconnect_node, [NodeB]),
         %% net_kernel may be slow to notice that an attempt has lost. With any carrier, a caller that connects at that moment shares the result of
         %% that attempt and gets false.
         _ = beamway_peer:wait_until(fun() -> Attempts() =:= None end, 10000)
     end || _ <- lists:seq(1, Rounds)],
    ok.

%% Returns net_kernel's links, which include all attempts to connect and all connections.
kernel_links(Peer) ->
    {links, Links} = beamway_peer:run(Peer, fun() -> process_info(whereis(net_kernel), links) end),
    lists:sort(Links).

connect_at(Peer, Node, At) ->
    beamway_peer:run(Peer, fun() -> wait_for_time(At), net_kernel:connect_node(Node) end).

%% Both nodes run on the same host, so they share a clock; spinning keeps the instant exact.
wait_for_time(At) ->
    case erlang:system_time(microsecond) >= At of
        true -> ok;
        false -> wait_for_time(At)
    end.

%% The callers have given up while their connections waited in the listen backlog, as the node with the lower name does after a simultaneous connect.
%% These attempts must not be mistaken for a connection that is being set up, because `connect_node' would then fail together with them.
callers_that_gave_up(Config) ->
    {PeerA, NodeA, PeerB, NodeB} = start_two(Config, ?BY_HAND),
    [Name, _] = string:split(atom_to_list(NodeA), "@"),
    Connected = [connect_among_them(Name, {PeerA, NodeA}, {PeerB, NodeB}) || _ <- lists:seq(1, 10)],
    case beamway_carrier:carrier(Config) of
        inet_tcp -> ok; % with stock distribution some of them get false
        _ -> [true] = lists:usort(Connected)
    end,
    ok.

connect_among_them(Name, {PeerA, NodeA}, {PeerB, NodeB}) ->
    Holder = hold_acceptor(PeerB),
    [ok = gen_tcp:close(beamway_raw_peer:call(NodeB, named, #{name => Name})) || _ <- lists:seq(1, 50)],
    Connected = beamway_peer:run(PeerB, fun() ->
                                                Holder ! release,
                                                wait_for_time(erlang:system_time(microsecond) + rand:uniform(5000)),
                                                net_kernel:connect_node(NodeA)
                                        end),
    _ = beamway_peer:call(PeerB, net_kernel, disconnect, [NodeA]),
    ok = beamway_peer:wait_disconnected(PeerA, NodeB),
    Connected.

%% Callers reset their connection before it is accepted, as a port scan does, so they have no address that `check_ip' could check.
callers_that_are_gone(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    Log = log_file(Config),
    {ok, Peer, Node} = beamway_peer:start(Carrier, #{log => Log, args => ["-kernel", "check_ip", "true"]}),
    {ok, Other, _} = beamway_peer:start(Carrier),
    Holder = hold_acceptor(Peer),
    [begin
         Socket = beamway_raw_peer:call(Node, connected, #{}),
         ok = inet:setopts(Socket, [{linger, {true, 0}}]),
         ok = gen_tcp:close(Socket)
     end || _ <- lists:seq(1, 10)],
    release = beamway_peer:run(Peer, fun() -> Holder ! release end),
    ok = beamway_peer:connect(Carrier, Other, Node),
    nomatch = string:find(beamway_peer:log_text(Log), "badmatch").

%% The node does not accept connections until the returned process is told to release it.
hold_acceptor(Peer) ->
    beamway_peer:run(Peer, fun() ->
        {links, Links} = process_info(whereis(net_kernel), links),
        [Acceptor] = [Pid || Pid <- Links, is_pid(Pid), {_, {_, accept_loop, _}} <- [process_info(Pid, initial_call)]],
        Owner = self(),
        Holder = spawn(fun() ->
                               true = erlang:suspend_process(Acceptor),
                               Owner ! {self(), held},
                               receive release -> true = erlang:resume_process(Acceptor) end
                       end),
        receive {Holder, held} -> Holder end
    end).

reconnects(Config) ->
    {PeerA, NodeA, PeerB, NodeB} = start_two(Config, ?BY_HAND),
    Carrier = beamway_carrier:carrier(Config),
    Cycle = fun({Caller, Called, CalledNode}) ->
                    ok = beamway_peer:connect_both(Carrier, Caller, Called),
                    true = beamway_peer:call(Caller, net_kernel, disconnect, [CalledNode]),
                    ok = beamway_peer:wait_disconnected(PeerA, NodeB),
                    ok = beamway_peer:wait_disconnected(PeerB, NodeA)
            end,
    Ways = [{PeerA, PeerB, NodeB}, {PeerB, PeerA, NodeA}],
    lists:foreach(Cycle, Ways),
    Before = beamway_peer:resources(PeerA),
    [lists:foreach(Cycle, Ways) || _ <- lists:seq(1, beamway_carrier:rounds(25, 500))],
    _ = beamway_peer:wait_until(fun() -> beamway_peer:no_more(beamway_peer:resources(PeerA), Before) end, 5000),
    ok.

%% The survivor must accept the new node of the same name immediately, whichever side connects, and never communicate with the old one.
restarts_under_the_same_name(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    {ok, Survivor, SurvivorNode} = beamway_peer:start(Carrier),
    Name = beamway_peer:unique_name("restarted"),
    [begin
         {ok, Peer, Node} = beamway_peer:start(Carrier, #{name => Name}),
         case Round rem 2 of
             0 -> ok = beamway_peer:connect(Carrier, Peer, SurvivorNode);
             1 -> ok = beamway_peer:connect(Carrier, Survivor, Node)
         end,
         OsPid = integer_to_list(beamway_peer:os_pid(Peer)),
         OsPid = beamway_peer:call(Survivor, erpc, call, [Node, os, getpid, []]),
         case Round rem 3 of
             0 -> beamway_peer:kill9(Peer);
             _ -> beamway_peer:halt_node(Peer)
         end
     end || Round <- lists:seq(1, beamway_carrier:rounds(15, 50))],
    ok.

full_mesh(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    Count = case Carrier =:= beamway_shm of
                true -> 24;
                false -> beamway_carrier:rounds(8, 24)
            end,
    Starts = [beamway_peer:async(fun() -> beamway_peer:start(Carrier) end) || _ <- lists:seq(1, Count)],
    Started = [beamway_peer:await(Start) || Start <- Starts],
    Nodes = [Node || {ok, _, Node} <- Started],
    Count = length(lists:usort(Nodes)),
    %% Each node calls the ones after it, all nodes at the same time.
    Calls = [beamway_peer:async(fun() ->
                           Others = lists:nthtail(Index, Nodes),
                           beamway_peer:run(Peer, fun() ->
                               [true = net_kernel:connect_node(Other) || Other <- Others], ok
                           end)
                   end) || {Index, {ok, Peer, _}} <- lists:zip(lists:seq(1, Count), Started)],
    [ok = beamway_peer:await(Call) || Call <- Calls],
    [ok = fully_connected(Carrier, Peer, Nodes -- [Node]) || {ok, Peer, Node} <- Started],
    %% Each node calls every other at the same time.
    Checks = [beamway_peer:async(fun() ->
                            beamway_peer:run(Peer, fun() ->
                                [{ok, Other} = Answer || {Other, Answer} <- lists:zip(
                                     Nodes, erpc:multicall(Nodes, erlang, node, [], 30000))],
                                ok
                            end)
                    end) || {ok, Peer, _} <- Started],
    [ok = beamway_peer:await(Check) || Check <- Checks],
    beamway_peer:stop_all([Peer || {ok, Peer, _} <- Started]).

fully_connected(Carrier, Peer, Others) ->
    Kind = beamway_peer:link_kind(Carrier),
    Sorted = lists:sort(Others),
    Sorted = lists:sort(beamway_peer:call(Peer, erlang, nodes, [])),
    lists:foreach(fun(Other) -> ok = beamway_peer:assert_link(Peer, Other, Kind) end, Others).

hidden_node(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    {ok, PeerA, NodeA} = beamway_peer:start(Carrier, #{args => ["-hidden"]}),
    {ok, PeerB, NodeB} = beamway_peer:start(Carrier),
    ok = beamway_peer:connect(Carrier, PeerA, NodeB),
    {[], [NodeA]} = {beamway_peer:call(PeerB, erlang, nodes, []),
                     beamway_peer:call(PeerB, erlang, nodes, [hidden])},
    {[], [NodeB]} = {beamway_peer:call(PeerA, erlang, nodes, []),
                     beamway_peer:call(PeerA, erlang, nodes, [hidden])},
    NodeB = beamway_peer:call(PeerA, erpc, call, [NodeB, erlang, node, []]),
    ok.

%% A tool that joins briefly as a hidden node does not cause a log line at level info, but other nodes do.
hidden_in_the_log(Config) ->
    case beamway_carrier:carrier(Config) of
        inet_tcp -> ok; % logs nothing about its connections
        Carrier -> hidden_in_the_log(Carrier, log_file(Config))
    end.

hidden_in_the_log(Carrier, Log) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, #{log => Log, args => ["-kernel", "logger_level", "info"]}),
    [Hidden, StockHidden, Visible] =
        [begin
             {ok, Caller, CallerNode} = beamway_peer:start(From, #{args => Args}),
             true = beamway_peer:call(Caller, net_kernel, connect_node, [Node]),
             ok = beamway_peer:halt_node(Caller),
             ok = beamway_peer:wait_disconnected(Peer, CallerNode),
             atom_to_list(CallerNode)
         end || {From, Args} <- [{Carrier, ["-hidden"]}, {inet_tcp, ["-hidden"]}, {Carrier, []}]],
    Lines = fun() ->
                    [Line || Line <- string:lexemes(beamway_peer:log_text(Log), "\n"),
                             string:find(Line, "beamway: link to ") =/= nomatch]
            end,
    Has = fun(Line, Part) -> string:find(Line, Part) =/= nomatch end,
    Said = beamway_peer:wait_until(
             fun() ->
                     Now = Lines(),
                     lists:any(fun(Line) -> Has(Line, Visible) andalso Has(Line, "is down") end, Now) andalso Now
             end, 5000),
    [] = [Line || Line <- Said, Has(Line, Hidden) orelse Has(Line, StockHidden)],
    [_Up, _Down] = Said,
    ok.

auto_connect_never(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    {PeerA, _, _, NodeB} = start_two(Config, ?BY_HAND),
    pang = beamway_peer:call(PeerA, net_adm, ping, [NodeB]),
    [] = beamway_peer:call(PeerA, erlang, nodes, []),
    ok = beamway_peer:connect(Carrier, PeerA, NodeB),
    pong = beamway_peer:call(PeerA, net_adm, ping, [NodeB]),
    ok.

%% Once disconnected, the nodes do not connect again automatically, but a case can connect them.
auto_connect_once(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    {PeerA, NodeA, PeerB, NodeB} = start_two(Config, #{args => ["-kernel", "dist_auto_connect", "once"]}),
    pong = beamway_peer:call(PeerA, net_adm, ping, [NodeB]),
    pong = beamway_peer:call(PeerB, net_adm, ping, [NodeA]),
    true = beamway_peer:call(PeerA, erlang, disconnect_node, [NodeB]),
    ok = beamway_peer:wait_disconnected(PeerB, NodeA),
    pang = beamway_peer:call(PeerA, net_adm, ping, [NodeB]),
    pang = beamway_peer:call(PeerB, net_adm, ping, [NodeA]),
    ok = beamway_peer:connect(Carrier, PeerA, NodeB),
    pong = beamway_peer:call(PeerB, net_adm, ping, [NodeA]),
    ok.

wrong_cookie(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    Log = log_file(Config),
    {ok, PeerA, NodeA} = beamway_peer:start(Carrier, #{cookie => "another"}),
    {ok, PeerB, NodeB} = beamway_peer:start(Carrier, #{log => Log}),
    {ok, PeerC, _} = beamway_peer:start(Carrier),
    ok = beamway_peer:connect(Carrier, PeerC, NodeB),
    Connection = beamway_peer:controller(PeerC, NodeB),
    false = beamway_peer:call(PeerA, net_kernel, connect_node, [NodeB]),
    false = beamway_peer:call(PeerB, net_kernel, connect_node, [NodeA]),
    _ = beamway_peer:wait_until(
          fun() -> string:find(beamway_peer:log_text(Log), "Invalid challenge reply") =/= nomatch end, 5000),
    %% The other connection stayed up, and with the right cookie the node is accepted.
    Connection = beamway_peer:controller(PeerC, NodeB),
    true = beamway_peer:call(PeerA, erlang, set_cookie, [NodeB, beamway_test]),
    ok = beamway_peer:connect(Carrier, PeerA, NodeB).

allow(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    {PeerA, NodeA, PeerB, NodeB} = start_two(Config, #{}),
    ok = beamway_peer:call(PeerB, net_kernel, allow, [['somebody@else']]),
    false = beamway_peer:call(PeerA, net_kernel, connect_node, [NodeB]),
    ok = beamway_peer:call(PeerB, net_kernel, allow, [[NodeA]]),
    {ok, Allowed} = beamway_peer:call(PeerB, net_kernel, allowed, []),
    true = lists:member(NodeA, Allowed),
    ok = beamway_peer:connect(Carrier, PeerA, NodeB).

%% Connects a node with the carrier to stock nodes and to nodes that allow only tcp. Each side calls once.
mixed_cluster(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    {ok, Peer, Node} = beamway_peer:start(Carrier),
    [begin
         {ok, Caller, CallerNode} = beamway_peer:start(Other),
         {ok, Called, CalledNode} = beamway_peer:start(Other),
         true = beamway_peer:call(Caller, net_kernel, connect_node, [Node]),
         true = beamway_peer:call(Peer, net_kernel, connect_node, [CalledNode]),
         [begin
              ok = beamway_peer:assert_link(Peer, Far, mixed_kind(Carrier, Other)),
              ok = beamway_peer:assert_link(FarPeer, Node, mixed_kind(Other, Carrier)),
              ok = exchange(Peer, Far),
              ok = exchange(FarPeer, Node)
          end || {FarPeer, Far} <- [{Caller, CallerNode}, {Called, CalledNode}]],
         beamway_peer:stop_all([Caller, Called])
     end || Other <- [inet_tcp, beamway_tcp]],
    ok.

mixed_kind(inet_tcp, _) -> stock;
mixed_kind(_, _) -> tcp.

%% Sends enough messages of each kind to show a difference in framing.
exchange(Peer, Node) ->
    beamway_peer:run(Peer, fun() ->
        [begin
             Data = binary:copy(<<N:32>>, N),
             Data = erpc:call(Node, binary, copy, [<<N:32>>, N])
         end || N <- [1, 100, 20000, 1000000]],
        {_, Monitor} = spawn_monitor(Node, erlang, exit, [seen]),
        receive {'DOWN', Monitor, process, _, seen} -> ok end
    end).

%% --- looking at and losing connections ---------------------------------------------------------------

socket_options(Config) ->
    {PeerA, _, PeerB, NodeB} = start_two(Config, #{}),
    ok = beamway_peer:connect(beamway_carrier:carrier(Config), PeerA, NodeB),
    {ok, Options} = beamway_peer:call(PeerA, net_kernel, getopts, [NodeB, [nodelay, keepalive, priority]]),
    [nodelay, keepalive, priority] = [Name || {Name, _} <- Options],
    ok = beamway_peer:call(PeerA, net_kernel, setopts, [NodeB, [{priority, 4}, {nodelay, false}]]),
    {ok, [{priority, 4}, {nodelay, false}]} =
        beamway_peer:call(PeerA, net_kernel, getopts, [NodeB, [priority, nodelay]]),
    %% Options on which the distribution itself relies cannot be changed.
    [{error, {badopts, [Option]}} = beamway_peer:call(PeerA, net_kernel, setopts, [NodeB, [{priority, 4}, Option]])
     || Option <- [{active, false}, {packet, 2}, {deliver, term}]],
    %% This applies to future connections.
    ok = beamway_peer:call(PeerB, net_kernel, setopts, [new, [{priority, 3}]]),
    {error, noconnection} =
        beamway_peer:call(PeerA, net_kernel, getopts, ['nobody@nowhere', [nodelay]]),
    NodeB = beamway_peer:call(PeerA, erpc, call, [NodeB, erlang, node, []]),
    ok.

traffic_counters(Config) ->
    {PeerA, NodeA, PeerB, NodeB} = start_two(Config, #{}),
    ok = beamway_peer:connect(beamway_carrier:carrier(Config), PeerA, NodeB),
    BeforeA = counters(PeerA, NodeB),
    BeforeB = counters(PeerB, NodeA),
    [NodeB = beamway_peer:call(PeerA, erpc, call, [NodeB, erlang, node, []]) || _ <- lists:seq(1, 20)],
    [true = grown(Counter, Before, After)
     || {Before, After} <- [{BeforeA, counters(PeerA, NodeB)}, {BeforeB, counters(PeerB, NodeA)}],
        Counter <- [in, out]],
    %% The counters count messages, not bytes.
    LargeA = counters(PeerA, NodeB),
    [_ = beamway_peer:call(PeerA, erpc, call, [NodeB, binary, copy, [<<7>>, 10000]]) || _ <- lists:seq(1, 20)],
    More = proplists:get_value(in, counters(PeerA, NodeB)) - proplists:get_value(in, LargeA),
    true = More >= 20 andalso More < 200,
    ok.

counters(Peer, Node) ->
    Info = beamway_peer:node_info(Peer, Node),
    normal = proplists:get_value(type, Info),
    {net_address, {{_, _, _, _}, _}, _, tcp, inet} = proplists:get_value(address, Info),
    Info.

grown(Counter, Before, After) ->
    proplists:get_value(Counter, After) >= proplists:get_value(Counter, Before) + 20.

%% Monitoring tools look for a socket with the address that net_kernel knows for the connection, and show its counters. They must find the socket
%% that carries the messages, or none.
socket_of_the_link(Config) ->
    {PeerA, NodeA, PeerB, NodeB} = beamway_carrier:connected_pair(Config),
    Sizes = [byte_count(Peer, Node) || {Peer, Node} <- [{PeerA, NodeB}, {PeerB, NodeA}]],
    Bytes = binary:copy(<<1>>, 100000),
    Bytes = beamway_peer:call(PeerA, erpc, call, [NodeB, binary, copy, [Bytes]]),
    Later = [byte_count(Peer, Node) || {Peer, Node} <- [{PeerA, NodeB}, {PeerB, NodeA}]],
    case beamway_carrier:carrier(Config) of
        inet_tcp -> [true = After > Before + 200000 || {Before, After} <- lists:zip(Sizes, Later)];
        _Own -> {[none, none], [none, none]} = {Sizes, Later}
    end,
    %% Other tools use the only port owned by the connection's process.
    [[_] = owned_ports(Peer, Node) || {Peer, Node} <- [{PeerA, NodeB}, {PeerB, NodeA}]],
    ok.

owned_ports(Peer, Node) ->
    {ok, Info} = beamway_peer:call(Peer, net_kernel, node_info, [Node]),
    {links, Links} = beamway_peer:call(Peer, erlang, process_info, [proplists:get_value(owner, Info), links]),
    [Port || Port <- Links, is_port(Port)].

byte_count(Peer, Node) ->
    {ok, Info} = beamway_peer:call(Peer, net_kernel, node_info, [Node]),
    {net_address, {_, _} = Address, _, tcp, inet} = proplists:get_value(address, Info),
    beamway_peer:run(Peer, fun() -> socket_bytes(Address) end).

socket_bytes(Address) ->
    case [Port || Port <- erlang:ports(), erlang:port_info(Port, name) =:= {name, "tcp_inet"},
                  inet:peername(Port) =:= {ok, Address}] of
        [] -> none;
        [Socket] ->
            {ok, Stats} = inet:getstat(Socket, [recv_oct, send_oct]),
            lists:sum([Count || {_, Count} <- Stats])
    end.

%% A tool that mistakes the link's port for a socket gets an error, and the link is not disturbed.
questions_of_inet(Config) ->
    {PeerA, NodeA, PeerB, NodeB} = beamway_carrier:connected_pair(Config),
    Own = beamway_carrier:carrier(Config) =/= inet_tcp,
    [begin
         Answers = beamway_peer:run(Peer, fun() -> ask_as_inet(Node) end),
         [{Question, true} = {Question, not Own orelse Answer =:= {error, einval}} || {Question, Answer} <- Answers]
     end || {Peer, Node} <- [{PeerA, NodeB}, {PeerB, NodeA}]],
    NodeB = beamway_peer:call(PeerA, erpc, call, [NodeB, erlang, node, []]),
    NodeA = beamway_peer:call(PeerB, erpc, call, [NodeA, erlang, node, []]),
    ok.

ask_as_inet(Node) ->
    {Node, Port} = lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)),
    [{Question, apply(inet, Question, [Port | Rest])}
     || {Question, Rest} <- [{peername, []}, {sockname, []}, {getstat, []}, {getopts, [[nodelay, buffer]]},
                             {getfd, []}, {peernames, []}, {getiflist, []}]].

%% The reasons are those of stock distribution, as the group `inet_tcp' proves.
nodedown_reasons(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    {ok, Survivor, SurvivorNode} = beamway_peer:start(Carrier, ?BY_HAND),
    Ends = [{connection_closed, fun(Peer) -> beamway_peer:halt_node(Peer) end},
            {connection_closed, fun(Peer) -> beamway_peer:kill9(Peer) end},
            {connection_closed, fun(Peer) ->
                 true = beamway_peer:call(Peer, erlang, disconnect_node, [SurvivorNode]), ok end},
            {disconnect, fun(Peer) ->
                 Node = beamway_peer:call(Peer, erlang, node, []),
                 true = beamway_peer:call(Survivor, erlang, disconnect_node, [Node]), ok end}],
    [begin
         {ok, Peer, Node} = beamway_peer:start(Carrier, ?BY_HAND),
         Watcher = watch_nodes(Survivor),
         case CallerIsSurvivor of
             true -> ok = beamway_peer:connect_both(Carrier, Survivor, Peer);
             false -> ok = beamway_peer:connect_both(Carrier, Peer, Survivor)
         end,
         ok = End(Peer),
         [{nodeup, Node, []}, {nodedown, Node, [{nodedown_reason, Reason}]}] =
             watched_nodes(Survivor, Watcher, 2),
         beamway_peer:stop(Peer)
     end || {Reason, End} <- Ends, CallerIsSurvivor <- [true, false]],
    ok.

%% The same case for failures of the network. Option 18 is TCP_USER_TIMEOUT, here one second.
nodedown_reasons_of_the_network(Config) ->
    Timeout = ["-kernel", "inet_dist_listen_options", "[{raw,6,18,<<1000:32/native>>},{sndbuf,65536}]"],
    {ok, Survivor, SurvivorNode} = beamway_peer:start(beamway_carrier:carrier(Config), #{args => Timeout ++ maps:get(args, ?BY_HAND)}),
    Ends = [fun(Socket, _) -> gen_tcp:close(Socket) end,
            fun(Socket, _) ->
                    ok = beamway_raw_peer:send_raw(Socket, <<1000:32, "half a packet">>),
                    gen_tcp:close(Socket)
            end,
            fun(Socket, _) -> gen_tcp:shutdown(Socket, write) end,
            fun(Socket, _) ->
                    ok = inet:setopts(Socket, [{linger, {true, 0}}]),
                    gen_tcp:close(Socket)
            end,
            fun(_Silent, Node) -> beamway_peer:run(Survivor, fun() -> flood({nobody, Node}) end) end],
    [begin
         Watcher = watch_nodes(Survivor, [{node_type, hidden}]),
         Name = beamway_peer:unique_name("raw"),
         Socket = beamway_raw_peer:call(SurvivorNode, authenticated, #{name => Name}),
         [{nodeup, Node, _}] = watched_nodes(Survivor, Watcher, 1),
         ok = End(Socket, Node),
         [_, {nodedown, Node, Info}] = watched_nodes(Survivor, Watcher, 2),
         connection_closed = proplists:get_value(nodedown_reason, Info)
     end || End <- Ends],
    ok.

flood(To) ->
    _ = spawn(fun() -> [To ! binary:copy(<<N>>, 100000) || N <- lists:seq(1, 200)] end),
    ok.

%% A process on the node collects the messages of net_kernel:monitor_nodes/2.
watch_nodes(Peer) ->
    watch_nodes(Peer, []).

watch_nodes(Peer, Options) ->
    beamway_peer:run(Peer, fun() ->
        Self = self(),
        Pid = spawn(fun() ->
                            ok = net_kernel:monitor_nodes(true, [nodedown_reason | Options]),
                            Self ! {self(), watching},
                            keep_messages([])
                    end),
        receive {Pid, watching} -> Pid end
    end).

keep_messages(Kept) ->
    receive
        {give, From} -> From ! {kept, lists:reverse(Kept)}, keep_messages(Kept);
        Message -> keep_messages([Message | Kept])
    end.

watched_nodes(Peer, Watcher, Count) ->
    Kept = fun() ->
                   beamway_peer:run(Peer, fun() ->
                       Watcher ! {give, self()},
                       receive {kept, Messages} -> Messages end
                   end)
           end,
    beamway_peer:wait_until(fun() -> at_least(Count, Kept()) end, 10000).

at_least(Count, List) when length(List) >= Count -> List;
at_least(_, _) -> false.

absent_node(Config) ->
    {ok, Peer, Node} = beamway_peer:start(beamway_carrier:carrier(Config)),
    [_, Host] = string:split(atom_to_list(Node), "@"),
    Absent = list_to_atom("beamway-absent@" ++ Host),
    false = beamway_peer:call(Peer, net_kernel, connect_node, [Absent]),
    pang = beamway_peer:call(Peer, net_adm, ping, [Absent]),
    [] = beamway_peer:call(Peer, erlang, nodes, [connected]),
    ok.

%% A name whose kind (short or long) differs from that of the node's own name is rejected before any connection is opened, and the log says why.
illegal_names(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    [begin
         Log = log_file(Config),
         {ok, Peer, _} = beamway_peer:start(Carrier, Options#{log => Log}),
         false = beamway_peer:call(Peer, net_kernel, connect_node, [no_host]),
         false = beamway_peer:call(Peer, net_kernel, connect_node, [Illegal]),
         _ = beamway_peer:wait_until(
               fun() ->
                       Text = beamway_peer:log_text(Log),
                       lists:all(fun(Part) -> string:find(Text, Part) =/= nomatch end, Parts)
               end, 5000),
         [] = beamway_peer:call(Peer, erlang, nodes, [connected]),
         beamway_peer:stop(Peer)
     end || {Options, Illegal, Parts} <-
                [{#{}, 'nobody@127.0.0.1', ["System NOT running to use fully qualified hostnames", "Hostname 127.0.0.1 is illegal"]},
                 {#{host => "127.0.0.1"}, 'nobody@localhost',
                  ["System running to use fully qualified hostnames", "Hostname localhost is illegal"]}]],
    ok.

%% --- helpers -----------------------------------------------------------------------------------------

start_two(Config, Options) ->
    Carrier = beamway_carrier:carrier(Config),
    {ok, PeerA, NodeA} = beamway_peer:start(Carrier, Options),
    {ok, PeerB, NodeB} = beamway_peer:start(Carrier, Options),
    {PeerA, NodeA, PeerB, NodeB}.

log_file(Config) ->
    filename:join(proplists:get_value(priv_dir, Config), beamway_peer:unique_name("node") ++ ".log").
