%% SPDX-License-Identifier: Apache-2.0
%% @doc Nodes behind a firewall that drops the state of silent connections and then drops their packets.
%%
%% There is one pair of nodes for each carrier. All of them are silent for longer than the firewall remembers a connection. Then the same connection
%% must still be there, carry calls, and report immediately that a peer was killed. Over shared memory (with a `socket_dir', as between containers)
%% the ticks go through the ring, so only keepalive keeps the TCP socket in the firewall's memory. A plain socket that sends nothing proves that the
%% firewall does forget.
%%
%% With `make test', the firewall drops its state after 4 seconds, and the nodes tick every second; with `make test-idle', it drops its state after 60
%% seconds, and the nodes are silent for ten minutes and use OTP's own net_ticktime. Needs root.
-module(beamway_firewall_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([forgets_a_silent_socket/1, stock_stays_up/1, tcp_stays_up/1, shm_stays_up/1]).

%% Ticks alone detect a dead peer only after three quarters of net_ticktime: 30 or 45 seconds.
-define(AT_ONCE_MS, 10000).
-define(WAIT_MS, 5000).

suite() -> [{timetrap, {minutes, 15}}].

all() -> [forgets_a_silent_socket, stock_stays_up, tcp_stays_up, shm_stays_up].

times() ->
    case os:getenv("BEAMWAY_TEST_IDLE", "") of
        "1" -> #{forget_s => 60, idle_s => 600, args => []};
        _ -> #{forget_s => 4, idle_s => 12, args => ["-kernel", "net_ticktime", "40", "net_tickintensity", "40"]}
    end.

init_per_suite(Config) ->
    #{forget_s := ForgetS} = times(),
    case os:cmd("id -u") of
        "0\n" ->
            case beamway_netns:firewalled("bwf", ForgetS) of
                {ok, Net} -> start(Net, Config);
                {error, Why} -> {skip, {rights, Why}}
            end;
        _ ->
            {skip, {rights, "needs root to make network namespaces and a firewall"}}
    end.

start(Net, Config) ->
    Dir = beamway_peer:new_folder("beamway-firewall"),
    Owner = self(),
    %% The nodes belong to a process that outlives this one, because the cases run in other processes.
    {Keeper, Monitor} = spawn_monitor(fun() -> keep(Owner, Net, Dir) end),
    receive
        {Keeper, Pairs, Sockets} ->
            demonitor(Monitor, [flush]),
            [{net, Net}, {dir, Dir}, {keeper, Keeper}, {pairs, Pairs}, {sockets, Sockets},
             {silent_since, erlang:monotonic_time(second)} | Config];
        {'DOWN', Monitor, process, Keeper, Reason} ->
            _ = beamway_netns:delete(Net),
            _ = file:del_dir_r(Dir),
            error(Reason)
    end.

keep(Owner, Net, Dir) ->
    Pairs = [{Carrier, pair(Carrier, Net, Dir)} || Carrier <- [inet_tcp, beamway_tcp, beamway_shm]],
    [{_, {One, _}, {Other, _}} | _] = [{Carrier, A, B} || {Carrier, {A, B}} <- Pairs],
    Sockets = silent_socket(One, Other, lists:last(maps:get(addresses, Net))),
    Owner ! {self(), Pairs, Sockets},
    receive
        {stop, From} ->
            beamway_peer:stop_all(lists:append([[A, B] || {_, {{A, _}, {B, _}}} <- Pairs])),
            From ! {self(), stopped}
    end.

pair(Carrier, #{spaces := [SpaceA, SpaceB, _], addresses := [AddressA, AddressB]}, Dir) ->
    {One, _} = A = node_at(Carrier, SpaceA, AddressA, Dir),
    {Other, _} = B = node_at(Carrier, SpaceB, AddressB, Dir),
    ok = beamway_peer:connect_both(Carrier, One, Other),
    {A, B}.

node_at(Carrier, Space, Address, Dir) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, #{host => Address, wrapper => beamway_netns:host(Space),
                                                     env => [{"BEAMWAY_SOCKET_DIR", Dir}],
                                                     args => maps:get(args, times())}),
    {Peer, Node}.

end_per_suite(Config) ->
    Keeper = proplists:get_value(keeper, Config),
    Keeper ! {stop, self()},
    receive {Keeper, stopped} -> ok after 30000 -> error(nodes_did_not_stop) end,
    ok = beamway_netns:delete(proplists:get_value(net, Config)),
    file:del_dir_r(proplists:get_value(dir, Config)).

%% ---- cases ----

%% If the firewall did not forget, the other cases would prove nothing.
forgets_a_silent_socket(Config) ->
    ok = be_silent(Config),
    {{One, Sender}, {Other, Receiver}} = proplists:get_value(sockets, Config),
    ok = beamway_peer:run(One, fun() -> ask(Sender, say) end),
    timeout = beamway_peer:run(Other, fun() -> ask(Receiver, heard) end),
    ok.

stock_stays_up(Config) -> stays_up(inet_tcp, Config).

tcp_stays_up(Config) -> stays_up(beamway_tcp, Config).

shm_stays_up(Config) -> stays_up(beamway_shm, Config).

stays_up(Carrier, Config) ->
    {Carrier, {{One, OneNode}, {Other, OtherNode}}} = lists:keyfind(Carrier, 1, proplists:get_value(pairs, Config)),
    Before = beamway_peer:controller(One, OtherNode),
    ok = be_silent(Config),
    [OtherNode] = beamway_peer:call(One, erlang, nodes, [connected]),
    [OneNode] = beamway_peer:call(Other, erlang, nodes, [connected]),
    Before = beamway_peer:controller(One, OtherNode),
    ok = beamway_peer:assert_link(One, OtherNode, beamway_peer:link_kind(Carrier)),
    OneNode = beamway_peer:call(Other, erpc, call, [OneNode, erlang, node, []]),
    OtherNode = beamway_peer:call(One, erpc, call, [OtherNode, erlang, node, []]),
    ok = notices_a_kill(One, Other, OtherNode).

notices_a_kill(One, Other, OtherNode) ->
    Start = erlang:monotonic_time(millisecond),
    ok = beamway_peer:kill9(Other),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:call(One, erlang, nodes, [connected]) =:= [] end, ?AT_ONCE_MS),
    ct:log("~ts was missed after ~b ms", [OtherNode, erlang:monotonic_time(millisecond) - Start]),
    ok.

%% All pairs and the socket have been silent since the same moment.
be_silent(Config) ->
    #{idle_s := IdleS} = times(),
    Left = proplists:get_value(silent_since, Config) + IdleS - erlang:monotonic_time(second),
    receive after max(0, Left) * 1000 -> ok end.

%% ---- a silent socket ----

%% One process at each end holds the socket, which has keepalive turned off.
silent_socket(One, Other, Address) ->
    {Receiver, Port} = beamway_peer:run(Other, fun listen/0),
    {ok, Ip} = inet:parse_address(Address),
    Sender = beamway_peer:run(One, fun() -> connect(Ip, Port) end),
    {{One, Sender}, {Other, Receiver}}.

listen() ->
    Owner = self(),
    Pid = spawn(fun() ->
                        {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}]),
                        {ok, Port} = inet:port(Listen),
                        Owner ! {self(), Port},
                        {ok, Socket} = gen_tcp:accept(Listen, 30000),
                        {ok, <<"hello">>} = gen_tcp:recv(Socket, 5, ?WAIT_MS),
                        receive
                            {From, Ref, heard} ->
                                Heard = case gen_tcp:recv(Socket, 5, ?WAIT_MS) of
                                            {error, Reason} -> Reason;
                                            {ok, Bytes} -> Bytes
                                        end,
                                From ! {Ref, Heard}
                        end
                end),
    receive {Pid, Port} -> {Pid, Port} after ?WAIT_MS -> error(no_listener) end.

connect(Ip, Port) ->
    Owner = self(),
    Pid = spawn(fun() ->
                        {ok, Socket} = gen_tcp:connect(Ip, Port, [binary, {active, false}], ?WAIT_MS),
                        ok = gen_tcp:send(Socket, <<"hello">>),
                        Owner ! {self(), connected},
                        receive {From, Ref, say} -> From ! {Ref, gen_tcp:send(Socket, <<"hello">>)} end,
                        receive after infinity -> ok end
                end),
    receive {Pid, connected} -> Pid after 2 * ?WAIT_MS -> error(not_connected) end.

ask(Pid, Question) ->
    Ref = make_ref(),
    Pid ! {self(), Ref, Question},
    receive {Ref, Answer} -> Answer after 4 * ?WAIT_MS -> error(no_answer) end.
