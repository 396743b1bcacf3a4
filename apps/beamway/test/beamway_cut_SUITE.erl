%% SPDX-License-Identifier: Apache-2.0
%% @doc Connections that are cut while two nodes live: the link goes on, nothing is lost, doubled or late, and nobody hears of it.
%%
%% The nodes are on two hosts with a router between them, which resets connections, refuses new ones for a while, drops everything
%% for a while, or forgets a connection and drops its packets for ever. Meanwhile beamway_cut_load goes on both ways.
%%
%% BEAMWAY_TEST_CUTS: how many cuts; default 9, one of each kind (`make test-cut' takes 1,000). Needs root.
-module(beamway_cut_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([cut_again_and_again/1, killed/1, cannot_carry/1, restarted/1, resume_off/1, given_up/1, stopped/1, stopped_for_a_moment/1, disconnected/1]).
-export([stream_of_a_ring/1, killed_without_stream/1]).

-define(WAIT_MS, 20000).
-define(QUIET_MS, 300).

suite() -> [{timetrap, {minutes, 120}}].

all() -> [{group, beamway_tcp}, {group, beamway_tls}, {group, without_ring}, {group, beamway_shm}].

groups() ->
    [{Carrier, [], [cut_again_and_again, killed, restarted, resume_off, given_up, stopped, stopped_for_a_moment, disconnected]}
     || Carrier <- [beamway_tcp, beamway_tls]]
        ++ [{without_ring, [], [cannot_carry]}, {beamway_shm, [], [stream_of_a_ring, killed_without_stream, disconnected]}].

init_per_suite(Config) ->
    case os:cmd("id -u") of
        "0\n" -> Config;
        _ -> {skip, {rights, "needs root to make network namespaces and a router"}}
    end.

end_per_suite(_Config) -> ok.

init_per_group(without_ring, Config) -> init_per_group(beamway_tcp, Config);
init_per_group(Carrier, Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    case beamway_netns:firewalled("bwc", 600) of
        {ok, Net} -> [{net, Net}, {carrier, Carrier}, {dir, beamway_peer:new_folder("beamway-cut")} | Config];
        {error, Why} -> {skip, {rights, Why}}
    end.

end_per_group(_Carrier, Config) ->
    ok = file:del_dir_r(proplists:get_value(dir, Config)),
    beamway_netns:delete(proplists:get_value(net, Config)).

end_per_testcase(_Case, Config) ->
    ok = open(Config),
    beamway_peer:stop_started().

cuts() -> list_to_integer(os:getenv("BEAMWAY_TEST_CUTS", "9")).

pair(Config) -> pair(Config, []).

pair(Config, Environment) ->
    #{spaces := [SpaceA, SpaceB, _], addresses := [AddressA, AddressB]} = proplists:get_value(net, Config),
    Carrier = proplists:get_value(carrier, Config),
    [{One, OneNode}, {Other, OtherNode}] = [node_at(Carrier, Space, Address, [{"BEAMWAY_SOCKET_DIR", proplists:get_value(dir, Config)} | Environment]) || {Space, Address} <- [{SpaceA, AddressA}, {SpaceB, AddressB}]],
    ok = beamway_peer:connect_both(Carrier, One, Other),
    {One, OneNode, Other, OtherNode}.

node_at(Carrier, Space, Address, Environment) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, #{host => Address, wrapper => beamway_netns:host(Space), env => Environment, args => keepalive(Carrier)}),
    {Peer, Node}.

%% Beside a ring only keepalive uses the connection: once a second.
keepalive(beamway_shm) -> ["-kernel", "net_ticktime", "60", "net_tickintensity", "60"];
keepalive(_Carrier) -> [].

%% ---- the router ----

rule(Config, Words) ->
    #{spaces := [_, _, Wall]} = proplists:get_value(net, Config),
    "" = beamway_netns:in(Wall, "iptables " ++ Words),
    ok.

%% Only what the router forbids goes away; its tracking of connections stays.
open(Config) ->
    #{spaces := [_, _, Wall]} = proplists:get_value(net, Config),
    _ = beamway_netns:in(Wall, "iptables -D FORWARD -j CUT; iptables -F CUT; iptables -X CUT"),
    ok.

close(Config, Rules) ->
    [rule(Config, Words) || Words <- ["-N CUT"] ++ ["-A CUT -p tcp " ++ Rule || Rule <- Rules] ++ ["-I FORWARD -j CUT"]],
    ok.

%% epmd stays as it is: a firewall between the nodes does not make a node's name go away.
not_epmd(Target) -> "! --sport 4369 -m tcp ! --dport 4369 -j " ++ Target.

%% Of the connection as it is now.
ends({One, OneNode, Other, OtherNode}) ->
    [binary_to_list(lists:last(binary:split(Address, <<":">>, [global])))
     || {Peer, Node} <- [{Other, OneNode}, {One, OtherNode}], {ok, #{address := Address}} <- [beamway_peer:call(Peer, beamway, info, [Node])]].

cut({reset, RefusedMs}, Pair, Config) ->
    Before = resumes(Pair),
    ok = close(Config, refused(RefusedMs, ends(Pair))),
    receive after RefusedMs -> ok end,
    _ = RefusedMs =:= 0 andalso beamway_peer:wait_until(fun() -> resumes(Pair) > Before end, ?WAIT_MS),
    ok = open(Config),
    RefusedMs;
cut({silence, Ms}, _Pair, Config) ->
    ok = close(Config, ["-j DROP"]),
    receive after Ms -> ok end,
    ok = open(Config),
    Ms;
%% The router does not know the connection any more, and drops its packets.
cut(forgotten, Pair, Config) ->
    Ends = ends(Pair),
    Before = resumes(Pair),
    ok = close(Config, [of_connection(Way, "DROP") || Way <- [Ends, lists:reverse(Ends)]]),
    _ = beamway_peer:wait_until(fun() -> resumes(Pair) > Before end, ?WAIT_MS),
    ok = open(Config),
    0;
cut({one_way, Ms}, _Pair, Config) ->
    #{addresses := [From, _]} = proplists:get_value(net, Config),
    ok = close(Config, ["--source " ++ From ++ " -j DROP"]),
    receive after Ms -> ok end,
    ok = open(Config),
    Ms.

of_connection([From, To], Target) -> "--sport " ++ From ++ " --dport " ++ To ++ " -j " ++ Target.

%% Only this connection, or all of them.
refused(0, Ends) -> [of_connection(Way, "REJECT --reject-with tcp-reset") || Way <- [Ends, lists:reverse(Ends)]];
refused(_Ms, _Ends) -> [not_epmd("REJECT --reject-with tcp-reset")].

resumes({One, _, _, OtherNode}) ->
    {ok, Info} = beamway_peer:call(One, beamway, info, [OtherNode]),
    maps:get(resumes, Info, 0).

%% ---- cases ----

cut_again_and_again(Config) ->
    {One, OneNode, Other, OtherNode} = Pair = pair(Config),
    Loads = [{One, OtherNode}, {Other, OneNode}],
    [ok = beamway_peer:call(Peer, beamway_cut_load, receive_all, []) || {Peer, _} <- Loads],
    [ok = beamway_peer:call(Peer, beamway_cut_load, send_all, [Node]) || {Peer, Node} <- Loads],
    Kinds = [{reset, 0}, {reset, 4}, {reset, 43}, {reset, 1000}, forgotten, {silence, 100}, {silence, 1000}, {silence, 5000}, {one_way, 2000}],
    Pauses = [cut_once(lists:nth(1 + N rem length(Kinds), Kinds), Pair, Loads, Config) || N <- lists:seq(0, cuts() - 1)],
    [ok = beamway_peer:call(Peer, beamway_cut_load, stop, []) || {Peer, _} <- Loads],
    receive after ?QUIET_MS -> ok end,
    Results = [beamway_peer:call(Peer, beamway_cut_load, results, []) || {Peer, _} <- Loads],
    ct:log("~p~npauses beyond the cut itself in ms: ~p~nresumes: ~b", [Results, lists:sort(Pauses), resumes(Pair)]),
    io:format(user, "~b cuts, ~b resumes, ~b checked; pauses beyond the cut in ms: ~w",
           [cuts(), resumes(Pair), lists:sum([Checked || #{checked := Checked} <- Results]), lists:sort(Pauses)]),
    [[], []] = [Errors || #{errors := Errors} <- Results],
    [true, true] = [Checked > 10 * cuts() || #{checked := Checked} <- Results],
    true = resumes(Pair) >= cuts() div 4,
    ok.

cut_once(Kind, Pair, Loads, Config) ->
    _ = [beamway_peer:call(Peer, beamway_cut_load, latest, []) || {Peer, _} <- Loads],
    CutMs = cut(Kind, Pair, Config),
    receive after ?QUIET_MS -> ok end,
    Longest = lists:max([beamway_peer:call(Peer, beamway_cut_load, latest, []) || {Peer, _} <- Loads]),
    {Kind, max(0, Longest - CutMs)}.

%% As fast as without all this.
killed(Config) ->
    {One, _, Other, OtherNode} = pair(Config),
    Watcher = beamway_peer:watch_nodedown(One),
    Began = os:system_time(millisecond),
    ok = beamway_peer:kill9(Other),
    {connection_closed, At} = beamway_peer:nodedown(One, Watcher, OtherNode, ?WAIT_MS),
    io:format(user, "nodedown ~b ms after kill -9", [At - Began]),
    true = At - Began < 1000,
    ok.

%% Where the driver cannot carry a connection OTP's own port does, which knows nothing of all this. Both sides know that before they begin.
cannot_carry(Config) ->
    #{spaces := [SpaceA, SpaceB, _], addresses := [AddressA, AddressB]} = proplists:get_value(net, Config),
    Carrier = proplists:get_value(carrier, Config),
    {One, _} = node_at(Carrier, SpaceA, AddressA, []),
    {Other, OtherNode} = node_at(Carrier, SpaceB, AddressB, [{"BEAMWAY_RING_LIMIT_BYTES", "0"},
                                                         {"ERL_FLAGS", "-kernel inet_dist_listen_options [{buffer,1048576}]"}]),
    Connections = fun() -> [Link || #{link := inet, connection := Link} <- beamway_peer:call(Other, beamway_links, all, [])] end,
    [Connection] = beamway_peer:wait_until(fun() ->
                                                   _ = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
                                                   case Connections() of [] -> false; Some -> Some end
                                           end, ?WAIT_MS),
    receive after 1000 -> ok end,
    [Connection] = Connections(),
    ok.

%% Another creation: the link has ended, and messages of before do not reach the new node.
restarted(Config) ->
    {One, _, Other, OtherNode} = pair(Config),
    #{spaces := [_, SpaceB, _], addresses := [_, AddressB]} = proplists:get_value(net, Config),
    Watcher = beamway_peer:watch_nodedown(One),
    ok = beamway_peer:kill9(Other),
    [Name, _] = string:split(atom_to_list(OtherNode), "@"),
    {ok, Again, OtherNode} = beamway_peer:start(proplists:get_value(carrier, Config), #{host => AddressB, name => Name, wrapper => beamway_netns:host(SpaceB)}),
    {connection_closed, _} = beamway_peer:nodedown(One, Watcher, OtherNode, ?WAIT_MS),
    ok = beamway_peer:connect_both(proplists:get_value(carrier, Config), One, Again).

%% One of the two does not want it: as with stock.
resume_off(Config) ->
    {One, _, _, OtherNode} = Pair = pair(Config, [{"BEAMWAY_RESUME_MS", "0"}]),
    Watcher = beamway_peer:watch_nodedown(One),
    ok = close(Config, [of_connection(Way, "REJECT --reject-with tcp-reset") || Way <- [ends(Pair), lists:reverse(ends(Pair))]]),
    _ = beamway_peer:async(fun() -> beamway_peer:run(One, fun() -> catch erpc:call(OtherNode, erlang, node, []) end) end),
    {connection_closed, _} = beamway_peer:nodedown(One, Watcher, OtherNode, ?WAIT_MS),
    ok.

%% The peer does not come back: nodedown on both sides after `resume_ms', and a new connection afterwards.
given_up(Config) ->
    {One, OneNode, Other, OtherNode} = Pair = pair(Config, [{"BEAMWAY_RESUME_MS", "1500"}]),
    Watchers = [beamway_peer:watch_nodedown(Peer) || Peer <- [One, Other]],
    ok = close(Config, [not_epmd("REJECT --reject-with tcp-reset")]),
    Began = os:system_time(millisecond),
    beamway_peer:run(One, fun() -> {nobody, OtherNode} ! hello end),
    beamway_peer:run(Other, fun() -> {nobody, OneNode} ! hello end),
    Downs = [beamway_peer:nodedown(Peer, Watcher, Node, ?WAIT_MS) || {Peer, Watcher, Node} <- lists:zip3([One, Other], Watchers, [OtherNode, OneNode])],
    io:format(user, "given up after ~w ms", [[At - Began || {_, At} <- Downs]]),
    [true, true] = [Reason =:= connection_closed andalso At - Began >= 1500 andalso At - Began < 5000 || {Reason, At} <- Downs],
    ok = open(Config),
    _ = Pair,
    ok = beamway_peer:connect_both(proplists:get_value(carrier, Config), One, Other).

%% A node that is stopped, and meanwhile given up: what its kernel has received of the link is not delivered when it goes on.
stopped(Config) ->
    {One, OneNode, Other, OtherNode} = Pair = pair(Config, [{"BEAMWAY_RESUME_MS", "2000"}]),
    Collector = numbers_arrive(1, 10, Pair),
    [Watcher, OtherWatcher] = [beamway_peer:watch_nodedown(Peer) || Peer <- [One, Other]],
    ok = beamway_peer:sigstop(Other),
    send_numbers(One, Collector, 11, 20),
    receive after ?QUIET_MS -> ok end, % on its way to the kernel there
    ok = close(Config, [not_epmd("REJECT --reject-with tcp-reset")]),
    send_numbers(One, Collector, 21, 30),
    {connection_closed, _} = beamway_peer:nodedown(One, Watcher, OtherNode, ?WAIT_MS),
    ok = open(Config),
    ok = beamway_peer:sigcont(Other),
    %% The other node may be calling already.
    {Reason, _} = beamway_peer:nodedown(Other, OtherWatcher, OneNode, ?WAIT_MS),
    true = lists:member(Reason, [connection_closed, wait_pending]),
    10 = last_number(Other, Collector),
    ok.

%% So long that it might have been given up, but it was not: everything arrives.
stopped_for_a_moment(Config) ->
    {One, _, Other, _} = Pair = pair(Config, [{"BEAMWAY_RESUME_MS", "6000"}]),
    Collector = numbers_arrive(1, 10, Pair),
    ok = beamway_peer:sigstop(Other),
    send_numbers(One, Collector, 11, 20),
    receive after 4500 -> ok end,
    ok = beamway_peer:sigcont(Other),
    _ = beamway_peer:wait_until(fun() -> last_number(Other, Collector) =:= 20 end, ?WAIT_MS),
    1 = resumes(Pair),
    send_numbers(One, Collector, 21, 30),
    _ = beamway_peer:wait_until(fun() -> last_number(Other, Collector) =:= 30 end, ?WAIT_MS),
    ok.

numbers_arrive(From, To, {One, _, Other, _}) ->
    Collector = beamway_peer:run(Other, fun() -> spawn(fun() -> beamway_cut_load:numbers(0) end) end),
    send_numbers(One, Collector, From, To),
    _ = beamway_peer:wait_until(fun() -> last_number(Other, Collector) =:= To end, ?WAIT_MS),
    Collector.

send_numbers(Peer, Collector, From, To) ->
    beamway_peer:run(Peer, fun() -> [Collector ! {number, N} || N <- lists:seq(From, To)] end).

last_number(Peer, Collector) ->
    beamway_peer:run(Peer, fun() -> Collector ! {last, self()}, receive {last, Number} -> Number after 5000 -> timeout end end).

%% The connection beside a ring is reset: the ring goes on, and gets another connection.
stream_of_a_ring(Config) ->
    {One, OneNode, Other, OtherNode} = Pair = pair(Config),
    Loads = [{One, OtherNode}, {Other, OneNode}],
    [ok = beamway_peer:call(Peer, beamway_cut_load, receive_all, []) || {Peer, _} <- Loads],
    [ok = beamway_peer:call(Peer, beamway_cut_load, send_all, [Node]) || {Peer, Node} <- Loads],
    [begin
         ok = close(Config, refused(0, ends(Pair))),
         _ = beamway_peer:wait_until(fun() -> resumes(Pair) >= Count end, ?WAIT_MS),
         ok = open(Config)
     end || Count <- [1, 2, 3]],
    [ok = beamway_peer:call(Peer, beamway_cut_load, stop, []) || {Peer, _} <- Loads],
    Results = [beamway_peer:call(Peer, beamway_cut_load, results, []) || {Peer, _} <- Loads],
    [[], []] = [Errors || #{errors := Errors} <- Results],
    [true, true] = [Checked > 1000 || #{checked := Checked} <- Results],
    ok.

%% While there is no connection beside the ring, a peer that dies is still noticed at once.
killed_without_stream(Config) ->
    {One, _, Other, OtherNode} = Pair = pair(Config),
    Watcher = beamway_peer:watch_nodedown(One),
    Ends = ends(Pair),
    ok = close(Config, [not_epmd("REJECT --reject-with tcp-reset")]),
    _ = beamway_peer:wait_until(fun() -> has_no_connection(One, Ends) end, ?WAIT_MS),
    Began = os:system_time(millisecond),
    ok = beamway_peer:kill9(Other),
    {connection_closed, At} = beamway_peer:nodedown(One, Watcher, OtherNode, ?WAIT_MS),
    true = At - Began < 1000,
    ok.

has_no_connection(Peer, Ends) ->
    beamway_peer:run(Peer, fun() ->
                                   [] =:= [Port || Port <- erlang:ports(), {ok, {_, Here}} <- [inet:sockname(Port)], {ok, {_, There}} <- [inet:peername(Port)],
                                                   lists:sort(Ends) =:= lists:sort([integer_to_list(Here), integer_to_list(There)])]
                           end).

%% Who ends a link means it.
disconnected(Config) ->
    {One, OneNode, Other, OtherNode} = pair(Config),
    Watcher = beamway_peer:watch_nodedown(Other),
    Began = os:system_time(millisecond),
    true = beamway_peer:call(One, erlang, disconnect_node, [OtherNode]),
    {connection_closed, At} = beamway_peer:nodedown(Other, Watcher, OneNode, ?WAIT_MS),
    true = At - Began < 1000,
    ok.
