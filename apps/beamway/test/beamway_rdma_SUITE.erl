%% SPDX-License-Identifier: Apache-2.0
%% @doc Links over RDMA: when two nodes choose one, what prevents it, and what closes it.
%%
%% Needs a device, which runs in loopback because all nodes are on the same host (test/system/rdma sets up such a host). The other suites test
%% messages, signals and faults on such a link in their group `beamway_rdma'.
-module(beamway_rdma_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([both_say_rdma/1, shared_memory_comes_first/1, off_unless_asked_for/1, one_side_has_it_off/1, named_devices/1, range_of_ports/1,
         not_beside_tls/1, limit_of_the_node/1, memory_cannot_be_locked/1, peers_that_cannot_be_reached/1,
         address_without_gid/1, token_of_another/1, killed_peer/1, connection_dies/1, reconnects_leave_nothing/1, port_goes_down/1, device_goes/1, doctor/1]).

-define(END_MS, 1000).
-define(NODEDOWN_MS, 30000).

suite() -> [{timetrap, {minutes, 3}}].

all() ->
    [both_say_rdma, shared_memory_comes_first, off_unless_asked_for, one_side_has_it_off, named_devices, range_of_ports, not_beside_tls,
     limit_of_the_node, memory_cannot_be_locked, peers_that_cannot_be_reached,
     address_without_gid, token_of_another, killed_peer, connection_dies, reconnects_leave_nothing, port_goes_down, device_goes, doctor].

init_per_suite(Config) ->
    case beamway_rdma_devices:usable(beamway_rdma_devices:all()) of
        [#{device := Device, interfaces := [Interface | _], addresses := [{Ip, _} | _]} | _] ->
            ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
            [{device, Device}, {interface, Interface}, {ip, Ip} | Config];
        [] ->
            {skip, "no RDMA device; make test-rdma has one"}
    end.

end_per_suite(_Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% --- choice of the link --------------------------------------------------------------------------------

both_say_rdma(Config) ->
    {One, OneNode, Other, OtherNode} = pair(#{}, #{}),
    Why = iolist_to_binary(["rdma device ", proplists:get_value(device, Config)]),
    [#{link := rdma, reason := Why}] = beamway_peer:call(One, beamway, links, []),
    [#{link := rdma, reason := Why}] = beamway_peer:call(Other, beamway, links, []),
    Bytes = binary:copy(<<"0123456789abcdef">>, 200000),
    Bytes = beamway_peer:call(One, erpc, call, [OtherNode, binary, copy, [Bytes]]),
    {ok, #{bytes_in := In, bytes_out := Out, ring_bytes := 4194304}} = beamway_peer:call(Other, beamway, info, [OneNode]),
    true = In > byte_size(Bytes) andalso Out > byte_size(Bytes),
    Text = unicode:characters_to_list(beamway_peer:call(One, beamway, metrics, [])),
    true = string:find(Text, "link=\"rdma\"") =/= nomatch.

shared_memory_comes_first(_Config) ->
    Rdma = #{env => [{"BEAMWAY_LINKS", false}, {"BEAMWAY_RDMA", "true"}]},
    {One, _, _, OtherNode} = start_two(Rdma, Rdma),
    true = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
    beamway_peer:assert_link(One, OtherNode, shm).

%% The log of a node that does not use its device names the device and the option that turns rdma on.
off_unless_asked_for(Config) ->
    Log = filename:join(proplists:get_value(priv_dir, Config), "off.log"),
    Options = #{env => [{"BEAMWAY_LINKS", "tcp"}], log => Log},
    ok = stay_on_tcp(Options, Options, "shared memory is off"),
    {ok, Text} = file:read_file(Log),
    {match, _} = re:run(Text, ["does not use the RDMA device ", proplists:get_value(device, Config), ".*BEAMWAY_RDMA=true"]),
    Rdma = #{env => [{"BEAMWAY_LINKS", "tcp"}], args => ["-beamway", "rdma", "true"]},
    {_, _, _, _} = pair(Rdma, Rdma).

one_side_has_it_off(_Config) ->
    [ok = stay_on_tcp(OneOptions, OtherOptions, "shared memory is off")
     || {OneOptions, OtherOptions} <- [{#{}, links("tcp")}, {links("tcp"), #{}}]],
    ok.

named_devices(Config) ->
    Device = proplists:get_value(device, Config),
    {_, _, _, _} = pair(devices("none0," ++ Device), devices(Device)),
    ok = stay_on_tcp(devices("none0"), #{}, "off").

range_of_ports(_Config) ->
    Range = #{env => [{"BEAMWAY_RDMA_PORTS", "23790-23791"}]},
    {One, _, _, _} = pair(Range, Range),
    [begin
         {ok, _, Node} = beamway_peer:start(beamway_rdma, Range),
         ok = beamway_peer:connect(beamway_rdma, One, Node)
     end || _ <- lists:seq(1, 3)],
    ok.

not_beside_tls(_Config) ->
    Tls = [{"BEAMWAY_LINKS", "rdma,tcp"}],
    {One, _, _, OtherNode} = start_two(beamway_tls, #{env => Tls}, #{env => Tls}),
    ok = beamway_peer:connect(beamway_tls, One, OtherNode),
    Plaintext = #{env => [{"BEAMWAY_RDMA_PLAINTEXT", "true"} | Tls]},
    {Two, _, _, SecondNode} = start_two(beamway_tls, Plaintext, Plaintext),
    true = beamway_peer:call(Two, net_kernel, connect_node, [SecondNode]),
    beamway_peer:assert_link(Two, SecondNode, rdma).

%% --- reasons for not using rdma ------------------------------------------------------------------------

%% 8 MB are enough for the rings of one link: the second link gets none until the first is closed.
limit_of_the_node(_Config) ->
    {One, _, Other, OtherNode} = pair(#{env => [{"BEAMWAY_RDMA_LIMIT_BYTES", "8388608"}]}, #{}),
    {ok, Third, ThirdNode} = beamway_peer:start(beamway_rdma),
    true = beamway_peer:call(One, net_kernel, connect_node, [ThirdNode]),
    ok = stays_on_tcp(One, ThirdNode, "rdma_limit_bytes"),
    ok = stays_on_tcp(Third, beamway_peer:call(One, erlang, node, []), "rdma_limit_bytes"),
    [true = beamway_peer:call(One, net_kernel, disconnect, [Node]) || Node <- [OtherNode, ThirdNode]],
    ok = beamway_peer:wait_disconnected(Other, beamway_peer:call(One, erlang, node, [])),
    ok = beamway_peer:wait_disconnected(Third, beamway_peer:call(One, erlang, node, [])),
    ok = beamway_peer:connect(beamway_rdma, One, ThirdNode).

%% Root is not limited while it has the capability.
memory_cannot_be_locked(_Config) ->
    Limited = #{before_exec => "ulimit -l 64;", wrapper => ["setpriv", "--bounding-set=-ipc_lock"]},
    [begin
         {One, OneNode, Other, OtherNode} = start_two(Limited, #{}),
         case Caller of
             limited -> true = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]);
             other -> true = beamway_peer:call(Other, net_kernel, connect_node, [OneNode])
         end,
         ok = stays_on_tcp(One, OtherNode, "ulimit -l"),
         beamway_peer:assert_link(Other, OneNode, tcp)
     end || Caller <- [limited, other]],
    ok.

%% At one address no host answers, and on one port no process listens: both fail within net_setuptime.
peers_that_cannot_be_reached(Config) ->
    {A, B, C, _} = proplists:get_value(ip, Config),
    [begin
         {One, _, _, OtherNode} = start_two(#{}, #{}),
         ok = change(One, beamway_rdma, Text, Instead),
         {Us, true} = beamway_peer:run(One, fun() -> timer:tc(net_kernel, connect_node, [OtherNode]) end),
         beamway_peer:assert_link(One, OtherNode, tcp),
         ct:log("~ts: ~b ms, ~0p", [Instead, Us div 1000, beamway_peer:call(One, beamway, links, [])]),
         true = Us < 7000000 * beamway_runner:slowness()
     end || {Text, Instead} <- [{"addresses => Ips", lists:flatten(io_lib:format("addresses => [~0p]", [{A, B, C, 250}]))},
                                {"port => CmPort, token", "port => CmPort bxor 1, token"}]],
    ok.

%% The local host has an address in the device's network that is not among the device's GIDs.
address_without_gid(Config) ->
    {A, B, C, _} = proplists:get_value(ip, Config),
    Ip = {A, B, C, 251},
    "" = os:cmd("ip link add beamway_gid type dummy && ip addr add " ++ inet:ntoa(Ip) ++ "/32 dev beamway_gid && ip link set beamway_gid up"),
    try
        {One, OneNode, Other, OtherNode} = start_two(#{}, #{}),
        ok = change(One, beamway_rdma, "addresses => Ips", lists:flatten(io_lib:format("addresses => [~0p]", [Ip]))),
        true = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
        ok = stays_on_tcp(One, OtherNode, inet:ntoa(Ip)),
        ok = stays_on_tcp(Other, OneNode, inet:ntoa(Ip))
    after
        "" = os:cmd("ip link del beamway_gid")
    end.

token_of_another(_Config) ->
    {One, _, _, OtherNode} = start_two(#{}, #{}),
    ok = change(One, beamway_rdma, "token => Token,", "token => <<7:128>>,"),
    true = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
    beamway_peer:assert_link(One, OtherNode, tcp).

%% --- the end of a link ---------------------------------------------------------------------------------

killed_peer(_Config) ->
    {One, _, Other, OtherNode} = pair(#{}, #{}),
    Watcher = beamway_peer:watch_nodedown(One),
    Load = load(One, OtherNode),
    Killed = erlang:system_time(millisecond),
    ok = beamway_peer:kill9(Other),
    {connection_closed, At} = beamway_peer:nodedown(One, Watcher, OtherNode, ?NODEDOWN_MS),
    ct:log("~b ms", [At - Killed]),
    true = At - Killed < ?END_MS * beamway_runner:slowness(),
    %% Every caller received an answer.
    _ = beamway_peer:wait_until(fun() ->
                                        beamway_peer:run(One, fun() -> not lists:any(fun is_process_alive/1, Load) end)
                                end, 10000),
    ok.

%% The TCP connection beside the ring dies repeatedly while messages are being sent. The link remains the same link (a new one
%% would begin with no resumes) on its device, and all messages arrive once and in order.
connection_dies(_Config) ->
    Faults = #{env => [{"BEAMWAY_ALLOW_FAULTS", "true"}]},
    {One, OneNode, Other, OtherNode} = pair(Faults, Faults),
    Collector = beamway_peer:run(Other, fun() -> spawn(fun() -> beamway_cut_load:numbers(0) end) end),
    Resumes = fun() -> [resumes(One, OtherNode), resumes(Other, OneNode)] end,
    [begin
         Before = Resumes(),
         ok = beamway_peer:run(One, fun() -> lists:foreach(fun(N) -> Collector ! {number, N} end, lists:seq(Round * 1000 - 999, Round * 1000)) end),
         ok = beamway_peer:call(Peer, beamway, fault, [Node, #{disconnect => true}]),
         %% A connection whose last packet arrives late may be followed by another one.
         _ = beamway_peer:wait_until(fun() -> lists:all(fun({Was, Is}) -> Is > Was end, lists:zip(Before, Resumes())) end, ?NODEDOWN_MS)
     end || {Round, Peer, Node} <- [{1, One, OtherNode}, {2, Other, OneNode}, {3, One, OtherNode}, {4, Other, OneNode}]],
    _ = beamway_peer:wait_until(fun() -> beamway_cut_load:last_number(Other, Collector) =:= 4000 end, ?NODEDOWN_MS),
    beamway_peer:assert_link(One, OtherNode, rdma),
    beamway_peer:assert_link(Other, OneNode, rdma).

resumes(Peer, Node) ->
    {ok, Info} = beamway_peer:call(Peer, beamway, info, [Node]),
    maps:get(resumes, Info, 0).

reconnects_leave_nothing(_Config) ->
    {One, OneNode, Other, OtherNode} = pair(#{}, #{}),
    Again = fun() ->
                    true = beamway_peer:call(One, net_kernel, disconnect, [OtherNode]),
                    ok = beamway_peer:wait_disconnected(Other, OneNode),
                    ok = beamway_peer:connect_both(beamway_rdma, One, Other)
            end,
    [Again() || _ <- lists:seq(1, 3)],
    Held = fun() -> {beamway_peer:resources(One), beamway_peer:resources(Other), queue_pairs()} end,
    {OneBefore, OtherBefore, PairsBefore} = Held(),
    [Again() || _ <- lists:seq(1, 20)],
    beamway_peer:wait_until(fun() ->
                                    {OneNow, OtherNow, PairsNow} = Held(),
                                    beamway_peer:no_more(OneNow, OneBefore) andalso beamway_peer:no_more(OtherNow, OtherBefore)
                                        andalso PairsNow =< PairsBefore
                            end, 10000).

%% A device in loopback keeps working while its interface is down; between two hosts it does not (test/system/rdma). Whatever the device reports,
%% the two nodes stay connected or reconnect.
port_goes_down(Config) ->
    {One, _, _, OtherNode} = pair(#{}, #{}),
    Interface = proplists:get_value(interface, Config),
    "" = os:cmd("ip link set dev " ++ Interface ++ " down"),
    "" = os:cmd("ip link set dev " ++ Interface ++ " up"),
    _ = beamway_peer:wait_until(fun() -> beamway_rdma_devices:usable(beamway_rdma_devices:all()) =/= [] end, 10000),
    _ = beamway_peer:wait_until(fun() ->
                                        beamway_peer:call(One, net_kernel, connect_node, [OtherNode]) andalso
                                            beamway_peer:call(One, net_adm, ping, [OtherNode]) =:= pong
                                end, 20000),
    %% After that, soft-RoCE in Linux 6.1 accepts no new connections if it had any, not even from rping.
    beamway_peer:stop_started(),
    ok = delete_device(Config),
    ok = add_device(Config).

%% Deleting a device blocks until all its users have closed it.
device_goes(Config) ->
    {One, OneNode, Other, OtherNode} = pair(#{}, #{}),
    Watcher = beamway_peer:watch_nodedown(One),
    Load = load(One, OtherNode),
    {Us, ok} = timer:tc(fun() -> delete_device(Config) end),
    ct:log("rdma link del: ~b ms", [Us div 1000]),
    {Reason, _} = beamway_peer:nodedown(One, Watcher, OtherNode, ?NODEDOWN_MS),
    ct:log("nodedown: ~0p", [Reason]),
    true = Us < 5000000,
    ok = beamway_peer:run(One, fun() -> lists:foreach(fun(Pid) -> exit(Pid, kill) end, Load) end),
    %% A call that the load made may have reconnected them.
    true = beamway_peer:call(Other, net_kernel, connect_node, [OneNode]),
    beamway_peer:assert_link(One, OtherNode, tcp),
    ok = add_device(Config),
    true = beamway_peer:call(One, net_kernel, disconnect, [OtherNode]),
    ok = beamway_peer:wait_disconnected(Other, OneNode),
    ok = beamway_peer:connect(beamway_rdma, One, OtherNode).

doctor(Config) ->
    Device = proplists:get_value(device, Config),
    [begin
         true = os:putenv("BEAMWAY_RDMA", Rdma),
         #{checks := Checks} = beamway_cli_doctor:examine(),
         [#{status := ok, found := Found}] = [Check || #{name := rdma} = Check <- Checks],
         Text = lists:flatten(Found),
         {true, IsOff} = {string:find(Text, Device) =/= nomatch, string:find(Text, "off by default") =/= nomatch}
     end || {Rdma, IsOff} <- [{"false", true}, {"true", false}]],
    true = os:unsetenv("BEAMWAY_RDMA").

%% --- two nodes -----------------------------------------------------------------------------------------

start_two(OneOptions, OtherOptions) ->
    start_two(beamway_rdma, OneOptions, OtherOptions).

%% Both start at the same time, because a node takes seconds to boot on a host with such a device.
start_two(Carrier, OneOptions, OtherOptions) ->
    Starts = beamway_peer:async(fun() -> beamway_peer:start(Carrier, OtherOptions) end),
    {ok, One, OneNode} = beamway_peer:start(Carrier, OneOptions),
    {ok, Other, OtherNode} = beamway_peer:await(Starts),
    {One, OneNode, Other, OtherNode}.

pair(OneOptions, OtherOptions) ->
    {One, OneNode, Other, OtherNode} = start_two(OneOptions, OtherOptions),
    ok = beamway_peer:connect_both(beamway_rdma, One, Other),
    {One, OneNode, Other, OtherNode}.

links(Links) -> #{env => [{"BEAMWAY_LINKS", Links}]}.

devices(Devices) -> #{env => [{"BEAMWAY_RDMA_DEVICES", Devices}]}.

stay_on_tcp(OneOptions, OtherOptions, Words) ->
    {One, OneNode, Other, OtherNode} = start_two(OneOptions, OtherOptions),
    true = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
    beamway_peer:assert_link(One, OtherNode, tcp),
    ok = stays_on_tcp(One, OtherNode, Words),
    ok = stays_on_tcp(Other, OneNode, Words),
    beamway_peer:stop_all([One, Other]).

stays_on_tcp(Peer, Node, Words) ->
    ok = beamway_peer:assert_link(Peer, Node, tcp),
    beamway_peer:assert_reason(Peer, Node, Words).

%% The node runs this module with one text replaced. (A complete different version, with its driver, would require a compiler.)
change(Peer, Module, Text, Instead) ->
    File = filename:join([beamway_peer:ebin(), "..", "src", atom_to_list(Module) ++ ".erl"]),
    {ok, Source} = file:read_file(File),
    [Before, After] = string:split(Source, Text, all),
    Changed = filename:join("/tmp", lists:concat(["changed-", os:getpid(), "-", Module, ".erl"])),
    ok = file:write_file(Changed, [Before, Instead, After]),
    {ok, Module, Code} = compile:file(filename:rootname(Changed), [binary, {i, filename:dirname(File)}]),
    ok = file:delete(Changed),
    {module, Module} = beamway_peer:call(Peer, code, load_binary, [Module, "changed", Code]),
    ok.

delete_device(Config) ->
    "" = os:cmd("timeout 20 rdma link del " ++ proplists:get_value(device, Config) ++ " || echo failed"),
    ok.

add_device(Config) ->
    "" = os:cmd("rdma link add " ++ proplists:get_value(device, Config) ++ " type rxe netdev " ++ proplists:get_value(interface, Config)),
    _ = beamway_peer:wait_until(fun() -> beamway_rdma_devices:usable(beamway_rdma_devices:all()) =/= [] end, 10000),
    ok.

%% --- load ----------------------------------------------------------------------------------

load(Peer, Node) ->
    beamway_peer:run(Peer, fun() ->
        Pids = [spawn(fun() -> calls(Node, binary:copy(<<"x">>, Size)) end) || Size <- [10, 1000, 100000, 100000]],
        Pids
    end).

calls(Node, Data) ->
    try Data = erpc:call(Node, erlang, hd, [[Data]]) of
        Data -> calls(Node, Data)
    catch
        error:{erpc, noconnection} -> ended
    end.

queue_pairs() ->
    length(string:lexemes(os:cmd("rdma resource show qp"), "\n")).
