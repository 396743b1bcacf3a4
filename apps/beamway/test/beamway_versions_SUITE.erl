%% SPDX-License-Identifier: Apache-2.0
%% @doc Two versions of the carrier in one cluster, and another version's modules loaded into a running node. One of them is version 0.1.0; versions
%% that do not exist yet are built from the same sources with other numbers ({@link beamway_builds}).
%%
%% Two versions must never reject each other: they share memory if they can, otherwise they fall back to TCP, and both ends log why. In each case,
%% first one node calls, and then the other.
-module(beamway_versions_SUITE).

-export([all/0, suite/0, end_per_testcase/2]).
-export([version_0_1_0/1, later_fields/1, another_extension/1, another_agreement/1, other_rings/1, another_driver_abi/1,
         two_versions_and_stock/1, reload_keeps_links/1, reload_takes_effect/1, reload_driver/1]).
%% Called on the nodes.
-export([count_up/2, keep_calling/1]).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [version_0_1_0, later_fields, another_extension, another_agreement, other_rings, another_driver_abi,
     two_versions_and_stock, reload_keeps_links, reload_takes_effect, reload_driver].

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% --- choice of the link --------------------------------------------------------------------------------

%% None of the version numbers has changed since 0.1.0.
version_0_1_0(Config) ->
    case beamway_builds:release(filename:join(proplists:get_value(priv_dir, Config), "release")) of
        {ok, Ebin} -> meet_build(Ebin, shm, "same host", "same host");
        {skip, Reason} -> {skip, Reason}
    end.

later_fields(Config) ->
    meet(Config, beamway_builds:later_fields(), shm, "same host", "same host").

another_extension(Config) ->
    meet(Config, beamway_builds:extension(2), tcp, "the peer speaks version 2 of beamway, this node version 1",
         "the peer speaks version 1 of beamway, this node version 2").

%% The caller makes the offer; the other node finds that it does not know this version of the offer, and reports it.
another_agreement(Config) ->
    meet(Config, beamway_builds:agreement(2), tcp, "of the link agreement, expected", "of the link agreement, expected").

other_rings(Config) ->
    Words = "version of the rings is another",
    meet(Config, beamway_builds:rings(2), tcp, Words, Words).

%% The driver's commands do not matter to a peer.
another_driver_abi(Config) ->
    meet(Config, beamway_builds:driver_abi(99), shm, "same host", "same host").

meet(Config, Changes, Kind, ThisSays, OtherSays) -> meet_build(build(Config, Changes), Kind, ThisSays, OtherSays).

meet_build(Ebin, Kind, ThisSays, OtherSays) ->
    {This, ThisNode} = start(#{}),
    {Other, OtherNode} = start(#{ebin => Ebin}),
    lists:foreach(
      fun({Caller, CalledNode}) ->
              true = beamway_peer:call(Caller, net_kernel, connect_node, [CalledNode]),
              ok = beamway_peer:assert_link(This, OtherNode, Kind),
              ok = beamway_peer:assert_link(Other, ThisNode, Kind),
              ok = beamway_peer:assert_reason(This, OtherNode, ThisSays),
              ok = beamway_peer:assert_reason(Other, ThisNode, OtherSays),
              ok = exchange(This, OtherNode),
              true = beamway_peer:call(This, erlang, disconnect_node, [OtherNode]),
              ok = beamway_peer:wait_disconnected(This, OtherNode),
              ok = beamway_peer:wait_disconnected(Other, ThisNode)
      end, [{This, OtherNode}, {Other, ThisNode}]).

build(Config, Changes) ->
    beamway_builds:build(filename:join(proplists:get_value(priv_dir, Config), beamway_peer:unique_name("build")), Changes).

%% Only the case connects nodes.
start(Options) ->
    {ok, Peer, Node} = beamway_peer:start(beamway_shm, Options#{args => ["-kernel", "dist_auto_connect", "never"]}),
    {Peer, Node}.

exchange(Peer, Node) ->
    Data = binary:copy(<<"0123456789abcdef">>, 100000),
    Data = beamway_peer:call(Peer, erpc, call, [Node, binary, copy, [Data]]),
    ok.

%% Tests the middle of an upgrade: two old nodes, two of a version in which every version number is changed, and a stock node.
two_versions_and_stock(Config) ->
    Numbers = lists:append([Change(2) || Change <- [fun beamway_builds:extension/1, fun beamway_builds:agreement/1,
                                                    fun beamway_builds:rings/1, fun beamway_builds:driver_abi/1]]),
    New = build(Config, Numbers),
    %% The nodes connect as they start; otherwise OTP's global would disconnect nodes that are not fully connected.
    Nodes = [{Version, start_version(Version, New)} || Version <- [old, new, stock, old, new]],
    [begin
         true = beamway_peer:call(Caller, net_kernel, connect_node, [CalledNode]),
         ok = beamway_peer:assert_link(Caller, CalledNode, kind(CallersVersion, CalledsVersion)),
         ok = beamway_peer:assert_link(Called, CallerNode, kind(CalledsVersion, CallersVersion)),
         ok = exchange(Caller, CalledNode)
     end || {CallersVersion, {Caller, CallerNode}} <- Nodes, {CalledsVersion, {Called, CalledNode}} <- Nodes,
            Caller =/= Called],
    ok.

start_version(Version, New) ->
    {ok, Peer, Node} = case Version of
                           old -> beamway_peer:start(beamway_shm);
                           new -> beamway_peer:start(beamway_shm, #{ebin => New});
                           stock -> beamway_peer:start(inet_tcp)
                       end,
    {Peer, Node}.

kind(stock, _) -> stock;
kind(Version, Version) -> shm;
kind(_, _) -> tcp.

%% --- code that is replaced while it runs ---------------------------------------------------------------

%% Loads the modules three times, because the code that started the link becomes old with the first load and is purged with the second. One process
%% keeps calling throughout, and the connection stays the same.
reload_keeps_links(Config) ->
    Builds = [build(Config, beamway_builds:later_fields()), beamway_peer:ebin(), build(Config, [])],
    lists:foreach(fun(Carrier) ->
                          _ = beamway_carrier:init_group(Carrier, Config),
                          reload_keeps_links(Carrier, Builds)
                  end, [beamway_tcp, beamway_shm, beamway_tls]).

reload_keeps_links(Carrier, Builds) ->
    {ok, This, _} = beamway_peer:start(Carrier),
    {ok, Other, OtherNode} = beamway_peer:start(Carrier),
    {ok, Idle, IdleNode} = beamway_peer:start(Carrier),
    ok = beamway_peer:connect_both(Carrier, This, Other),
    ok = beamway_peer:connect_both(Carrier, Idle, This),
    Before = [beamway_peer:controller(This, Node) || Node <- [OtherNode, IdleNode]],
    Counter = beamway_peer:run(This, fun() -> spawn(?MODULE, count_up, [OtherNode, 0]) end),
    lists:foreach(fun(Ebin) ->
                          _ = has_counted(This, Counter, 500),
                          [ok = reload(Peer, Ebin) || Peer <- [This, Other, Idle]],
                          _ = has_counted(This, Counter, 500)
                  end, Builds),
    Before = [beamway_peer:controller(This, Node) || Node <- [OtherNode, IdleNode]],
    [ok = beamway_peer:assert_link(This, Node, beamway_peer:link_kind(Carrier)) || Node <- [OtherNode, IdleNode]],
    [{ok, #{}} = beamway_peer:call(This, beamway, info, [Node]) || Node <- [OtherNode, IdleNode]],
    %% The links' processes still work: the node notices when a peer is killed, and when one disconnects.
    ok = beamway_peer:kill9(Other),
    ok = beamway_peer:wait_disconnected(This, OtherNode),
    true = beamway_peer:call(This, erlang, disconnect_node, [IdleNode]),
    ok = beamway_peer:wait_disconnected(This, IdleNode),
    beamway_peer:stop_all([This, Idle]).

%% Loads every module as a careful operator does with `l(Module)': the old code is purged only when no process runs it any more, and that must
%% happen within a time limit.
reload(Peer, Ebin) ->
    Beams = filelib:wildcard(filename:join(Ebin, "*.beam")),
    true = length(Beams) > 10,
    beamway_peer:run(Peer, fun() -> lists:foreach(fun load/1, [filename:rootname(Beam) || Beam <- Beams]) end).

load(File) ->
    Module = list_to_atom(filename:basename(File)),
    {Module, true} = {Module, left(Module, erlang:monotonic_time(millisecond) + 20000)},
    {module, Module} = code:load_abs(File).

%% The processes of an idle link over TLS leave old code within half a second; a purge before that would kill them.
left(Module, EndMs) ->
    code:soft_purge(Module) orelse
        begin
            receive after 20 -> ok end,
            erlang:monotonic_time(millisecond) < EndMs andalso left(Module, EndMs)
        end.

%% Echoes a message for each number; anything but the next number is an error.
count_up(Node, Number) ->
    Echo = spawn_link(Node, beamway_peer, echo, []),
    count_with(Echo, Number).

count_with(Echo, Number) ->
    Echo ! {self(), Number},
    receive {echo, Number} -> ok after 10000 -> exit({no_echo_of, Number}) end,
    receive {give, From} -> From ! {counted, Number} after 0 -> ok end,
    count_with(Echo, Number + 1).

has_counted(Peer, Counter, More) ->
    Start = counted(Peer, Counter),
    beamway_peer:wait_until(fun() -> counted(Peer, Counter) >= Start + More end, 30000).

counted(Peer, Counter) ->
    beamway_peer:run(Peer, fun() ->
        Counter ! {give, self()},
        receive {counted, Number} -> Number after 20000 -> error({counter, process_info(Counter)}) end
    end).

%% The next connection uses the loaded code.
reload_takes_effect(Config) ->
    {This, _} = start(#{}),
    {Other, OtherNode} = start(#{}),
    ok = beamway_peer:connect_both(beamway_shm, This, Other),
    ok = reload(This, build(Config, beamway_builds:extension(2))),
    ok = beamway_peer:assert_link(This, OtherNode, shm),
    true = beamway_peer:call(This, erlang, disconnect_node, [OtherNode]),
    ok = beamway_peer:wait_disconnected(This, OtherNode),
    true = beamway_peer:call(This, net_kernel, connect_node, [OtherNode]),
    ok = beamway_peer:assert_link(This, OtherNode, tcp),
    ok = beamway_peer:assert_reason(This, OtherNode, "the peer speaks version 1 of beamway, this node version 2"),
    ok = exchange(This, OtherNode).

%% Modules and driver of one version reject those of another, so a link proves that both are new. Whatever runs on the node continues.
reload_driver(Config) ->
    Build = build(Config, beamway_builds:driver_abi(99)),
    lists:foreach(fun(Carrier) ->
                          _ = beamway_carrier:init_group(Carrier, Config),
                          reload_driver(Carrier, Build)
                  end, [beamway_shm, beamway_tcp, beamway_tls]).

reload_driver(Carrier, Build) ->
    {ok, This, ThisNode} = beamway_peer:start(Carrier),
    {ok, Other, OtherNode} = beamway_peer:start(Carrier),
    ok = beamway_peer:connect_both(Carrier, This, Other),
    Keeper = beamway_peer:run(This, fun() -> spawn(beamway_peer, echo, []) end),
    true = beamway_peer:call(This, code, replace_path, [beamway, filename:absname(Build)]),
    ok = reload(This, Build),
    _ = beamway_peer:run(Other, fun() -> spawn(?MODULE, keep_calling, [ThisNode]) end),
    [begin
         ok = beamway_peer:call(This, beamway, reload_driver, []),
         _ = beamway_peer:wait_until(fun() -> beamway_peer:call(This, net_kernel, connect_node, [OtherNode]) end, 10000),
         ok = beamway_peer:assert_link(This, OtherNode, beamway_peer:link_kind(Carrier))
     end || _ <- lists:seq(1, 10)],
    ok = exchange(This, OtherNode),
    true = beamway_peer:call(This, erlang, is_process_alive, [Keeper]),
    beamway_peer:stop_all([This, Other]).

%% Reconnects as soon as the connection is lost.
keep_calling(Node) ->
    _ = try erpc:call(Node, erlang, node, []) catch error:{erpc, noconnection} -> lost end,
    keep_calling(Node).
