%% SPDX-License-Identifier: Apache-2.0
%% @doc The link server of a node, which the application and the distribution both use. The cases start and stop the
%% application and the distribution in every order.
%%
%% Connections work as long as either of the two is running; once neither is, nothing of Beamway remains on the node.
%% A link server that was killed is restarted and recovers all links.
-module(beamway_application_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([application_first/1, distribution_first/1, distribution_ends_first/1, peers_notice_the_stop/1, application_alone/1, two_carriers/1,
         server_killed/1, server_hangs/1, driver_is_loaded_once/1]).

-define(WAIT_MS, 5000).
%% This is less than the option resume_ms.
-define(NOTICED_MS, 10000).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [application_first, distribution_first, distribution_ends_first, peers_notice_the_stop, application_alone, two_carriers, server_killed,
     server_hangs, driver_is_loaded_once].

init_per_suite(Config) ->
    case beamway_carrier:all([beamway_shm]) of
        [] -> {skip, "needs shared memory, which BEAMWAY_TEST_CARRIERS leaves out"};
        _ -> Config
    end.

end_per_suite(_Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% The application runs, then the distribution starts, then the application stops: connections can still be established.
application_first(_Config) ->
    {ok, Other, _} = beamway_peer:start(beamway_shm),
    Peer = start_without_name(),
    ok = beamway_peer:call(Peer, application, start, [beamway]),
    _ = become_node(Peer),
    ok = beamway_peer:connect_both(beamway_shm, Peer, Other),
    ok = beamway_peer:call(Peer, application, stop, [beamway]),
    ok = connected(Peer, Other),
    ok = connect_again(Peer, Other),
    ok = connect_again(Other, Peer),
    ok = beamway_peer:call(Peer, net_kernel, stop, []),
    ok = nothing_is_left(Peer).

distribution_first(_Config) ->
    {ok, Other, _} = beamway_peer:start(beamway_shm),
    {ok, Peer, _} = beamway_peer:start(beamway_shm),
    ok = beamway_peer:connect_both(beamway_shm, Peer, Other),
    [begin
         ok = beamway_peer:call(Peer, application, start, [beamway]),
         ok = connected(Peer, Other),
         ok = beamway_peer:call(Peer, application, stop, [beamway]),
         ok = connected(Peer, Other),
         ok = connect_again(Peer, Other)
     end || _ <- [first, second]],
    ok.

%% The application keeps running after the distribution that started the server has stopped, and the distribution can start again.
distribution_ends_first(_Config) ->
    {ok, Other, _} = beamway_peer:start(beamway_shm),
    Peer = start_without_name(),
    _ = become_node(Peer),
    ok = beamway_peer:call(Peer, application, start, [beamway]),
    ok = beamway_peer:connect_both(beamway_shm, Peer, Other),
    ok = beamway_peer:call(Peer, net_kernel, stop, []),
    _ = become_node(Peer),
    ok = beamway_peer:connect_both(beamway_shm, Peer, Other),
    ok = beamway_peer:call(Peer, application, stop, [beamway]),
    ok = connected(Peer, Other),
    ok = beamway_peer:call(Peer, net_kernel, stop, []),
    ok = nothing_is_left(Peer).

%% A link that could outlive its connection ends immediately when the distribution of a node stops.
peers_notice_the_stop(_Config) ->
    [begin
         {ok, Other, OtherNode} = beamway_peer:start(Carrier),
         Peer = start_without_name(),
         Node = become_node(Peer),
         true = beamway_peer:call(Peer, net_kernel, connect_node, [OtherNode]),
         ok = beamway_peer:assert_link(Other, Node, beamway_peer:link_kind(Carrier)),
         Watcher = beamway_peer:watch_nodedown(Other),
         ok = beamway_peer:call(Peer, net_kernel, stop, []),
         {connection_closed, _} = beamway_peer:nodedown(Other, Watcher, Node, ?NOTICED_MS)
     end || Carrier <- [beamway_shm, beamway_tcp]],
    ok.

%% The application reads its options again when it is restarted.
application_alone(_Config) ->
    {ok, Peer, _} = beamway_peer:start(inet_tcp),
    [begin
         ok = beamway_peer:call(Peer, application, set_env, [beamway, ring_bytes, Bytes]),
         ok = beamway_peer:call(Peer, application, start, [beamway]),
         #{ring_bytes := Bytes} = beamway_peer:call(Peer, beamway_links, config, []),
         ok = beamway_peer:call(Peer, application, stop, [beamway]),
         ok = nothing_is_left(Peer)
     end || Bytes <- [65536, 131072]],
    ok.

%% The node uses both address families, and each has its own child under net_kernel's supervisor.
two_carriers(_Config) ->
    {ok, Other, _} = beamway_peer:start(beamway_shm),
    {ok, Peer, _} = beamway_peer:start(beamway_shm, #{flags => ["-proto_dist", "beamway", "beamway6"]}),
    ok = beamway_peer:connect_both(beamway_shm, Peer, Other).

%% Killing the server does not close any link or bring down any node. The new server recovers what the old one knew, including the ring memory in use.
server_killed(_Config) ->
    Ring = 1048576,
    {ok, Peer, Node} = beamway_peer:start(beamway_shm, #{env => [{"BEAMWAY_RING_BYTES", integer_to_list(Ring)},
                                                                 {"BEAMWAY_RING_LIMIT_BYTES", integer_to_list(3 * Ring)}]}),
    [{First, FirstNode}, {Second, SecondNode}, {Third, ThirdNode}] =
        [{Other, OtherNode} || _ <- [first, second, third], {ok, Other, OtherNode} <- [beamway_peer:start(beamway_shm)]],
    ok = beamway_peer:connect_both(beamway_shm, Peer, First),
    Before = beamway_peer:call(Peer, beamway, links, []),
    ok = kill_server(Peer),
    Before = beamway_peer:call(Peer, beamway, links, []),
    ok = connected(Peer, First),
    %% The first link's memory counts towards the limit, so half as much remains for the second, and nothing for the
    %% third.
    ok = beamway_peer:connect_both(beamway_shm, Peer, Second),
    {ok, #{ring_bytes := 524288}} = beamway_peer:call(Peer, beamway, info, [SecondNode]),
    true = beamway_peer:call(Third, net_kernel, connect_node, [Node]),
    ok = beamway_peer:assert_link(Peer, ThirdNode, tcp),
    %% The new server is notified when links that came up before it started are closed.
    true = beamway_peer:call(First, erlang, disconnect_node, [Node]),
    _ = beamway_peer:wait_until(
          fun() -> not lists:member(FirstNode, [Of || #{node := Of} <- beamway_peer:call(Peer, beamway, links, [])]) end, ?WAIT_MS),
    ok.

%% A server that hangs does not process notifications, but the list of links is correct anyway: a connection that was closed has no link, and a node
%% that has reconnected has one.
server_hangs(_Config) ->
    {ok, Other, OtherNode} = beamway_peer:start(beamway_shm),
    {ok, Peer, Node} = beamway_peer:start(beamway_shm),
    ok = beamway_peer:connect_both(beamway_shm, Peer, Other),
    ok = beamway_peer:call(Peer, sys, suspend, [beamway_links]),
    true = beamway_peer:call(Peer, erlang, disconnect_node, [OtherNode]),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:call(Peer, beamway, links, []) =:= [] end, ?WAIT_MS),
    ok = beamway_peer:wait_disconnected(Other, Node),
    true = beamway_peer:call(Peer, net_kernel, connect_node, [OtherNode]),
    [#{node := OtherNode, link := inet}] = beamway_peer:call(Peer, beamway, links, []),
    ok = beamway_peer:call(Peer, sys, resume, [beamway_links]).

%% Two users on a node without links may request the driver at the same time. The driver can still be reloaded.
driver_is_loaded_once(_Config) ->
    {ok, Peer, _} = beamway_peer:start(beamway_inet),
    [ok = beamway_peer:call(Peer, beamway_driver, as_supervisor, [load]) || _ <- [first, second]],
    ok = beamway_peer:call(Peer, beamway, reload_driver, []).

%% --- helpers -----------------------------------------------------------------------------------------

start_without_name() ->
    {Peer, nonode@nohost} = beamway_compat_nodes:start(beamway_shm, #{name => none}),
    Peer.

become_node(Peer) ->
    Name = list_to_atom(beamway_peer:unique_name("application")),
    {ok, _} = beamway_peer:call(Peer, net_kernel, start, [Name, #{name_domain => shortnames}]),
    true = beamway_peer:call(Peer, erlang, set_cookie, [beamway_test]),
    beamway_peer:call(Peer, erlang, node, []).

connected(Peer, Other) ->
    [Node, OtherNode] = [beamway_peer:call(Each, erlang, node, []) || Each <- [Peer, Other]],
    ok = beamway_peer:assert_link(Peer, OtherNode, shm),
    Node = beamway_peer:call(Other, erpc, call, [Node, erlang, node, []]),
    ok.

connect_again(Caller, Called) ->
    [Node, Other] = [beamway_peer:call(Each, erlang, node, []) || Each <- [Caller, Called]],
    true = beamway_peer:call(Caller, net_kernel, disconnect, [Other]),
    ok = beamway_peer:wait_disconnected(Caller, Other),
    ok = beamway_peer:wait_disconnected(Called, Node),
    ok = beamway_peer:connect_both(beamway_shm, Caller, Called),
    connected(Caller, Called).

kill_server(Peer) ->
    Server = beamway_peer:call(Peer, erlang, whereis, [beamway_links]),
    true = beamway_peer:call(Peer, erlang, exit, [Server, kill]),
    _ = beamway_peer:wait_until(
          fun() -> not lists:member(beamway_peer:call(Peer, erlang, whereis, [beamway_links]), [undefined, Server]) end, ?WAIT_MS),
    ok.

%% No process, table or registered name remains.
nothing_is_left(Peer) ->
    _ = beamway_peer:wait_until(
          fun() ->
                  [undefined, undefined] =:= [beamway_peer:call(Peer, erlang, whereis, [Name]) || Name <- [beamway_links, beamway_sup]]
                      andalso undefined =:= beamway_peer:call(Peer, ets, whereis, [beamway_links])
          end, ?WAIT_MS),
    ok.
