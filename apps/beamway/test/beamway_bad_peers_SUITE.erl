%% SPDX-License-Identifier: Apache-2.0
%% @doc Peers that pass the handshake and then send what no node sends, or stop reading. The cases run over TCP, and over TLS, where only the peer
%% itself can send such data.
%%
%% The bad peer is built from this checkout with one line of its driver changed ({@link beamway_builds}): packets of
%% two particular sizes announce a different length. It can also send fragments through the port of its connection, as
%% any node could. In each case the node under test has a friend, and the link between the two must outlast the case.
-module(beamway_bad_peers_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([packet_of_4_gb/1, packet_without_end/1, fragments_out_of_place/1, messages_never_finished/1,
         both_queues_full_at_the_end/1, one_byte_a_second/1]).

-import(beamway_friends, [under_test/1]).

-define(WAIT_MS, 20000).
%% Only the case itself connects and disconnects nodes.
-define(BY_HAND, ["-kernel", "dist_auto_connect", "never", "-kernel", "prevent_overlapping_partitions", "false"]).
%% The sizes of packets that announce 4 GB, and the maximum size of a packet.
-define(OF_4_GB, 4711).
-define(WITHOUT_END, 4712).
-define(MB, 1048576).
%% With these options, a relay that closes a connection between two nodes also closes their link.
-define(NO_RESUME, [{"BEAMWAY_RESUME_MS", "0"}]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> beamway_carrier:all([beamway_tcp, beamway_tls]).

groups() ->
    beamway_carrier:groups([beamway_tcp, beamway_tls],
                           [packet_of_4_gb, packet_without_end, fragments_out_of_place, messages_never_finished,
                            both_queues_full_at_the_end, one_byte_a_second]).

init_per_suite(Config) ->
    Line = "bw_put(at, len, BW_PACKET_HEADER_BYTES);",
    Bad = io_lib:format("bw_put(at, len == ~b ? 0xffffffff : len == ~b ? 0x7fffffff : len, BW_PACKET_HEADER_BYTES);",
                        [?OF_4_GB, ?WITHOUT_END]),
    Folder = filename:join(proplists:get_value(priv_dir, Config), "bad"),
    [{bad, beamway_builds:build(Folder, [{"native/driver/pump_out.c", Line, lists:flatten(Bad)}])} | Config].

end_per_suite(_Config) -> ok.

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

init_per_testcase(Case, Config) ->
    Carrier = beamway_carrier:carrier(Config),
    Folder = filename:join([proplists:get_value(priv_dir, Config), Carrier, Case]),
    ok = filelib:ensure_path(Folder),
    Log = filename:join(Folder, "log"),
    Start = fun(Options) -> beamway_peer:start(Carrier, Options#{args => ?BY_HAND ++ in(Folder), env => ?NO_RESUME}) end,
    {ok, Peer, Node} = Start(#{log => Log}),
    {ok, Friend, _} = Start(#{}),
    ok = beamway_peer:connect_both(Carrier, Friend, Peer),
    [{start, Start}, {folder, Folder}, {log, Log}, {under_test, {Peer, Node}}, {friend, Friend}, {friendship, beamway_peer:controller(Friend, Node)} | Config].

%% Nodes find each other through files, so that a relay can be put between two of them.
in(Folder) -> ["-start_epmd", "false", "-epmd_module", "beamway_compat_epmd", "-compat_epmd", "directory", Folder].

end_per_testcase(_Case, Config) -> beamway_friends:end_case(Config).

%% ---- lengths ----

packet_of_4_gb(Config) ->
    Bad = bad_peer(Config),
    ok = send(Config, Bad, fun() -> [binary:copy(<<131>>, ?OF_4_GB)] end),
    ok = is_left(Config, Bad, "broke the distribution protocol").

%% An announced length does not cost any memory before the data arrives, and the part that has arrived is freed when the peer disconnects.
packet_without_end(Config) ->
    {Peer, _} = under_test(Config),
    {BadPeer, BadNode} = Bad = bad_peer(Config),
    Before = binaries(Peer),
    ok = send(Config, Bad, fun() -> [binary:copy(<<131>>, ?WITHOUT_END) | lists:duplicate(20, binary:copy(<<131>>, ?MB))] end),
    true = beamway_peer:wait_until(fun() -> binaries(Peer) > Before + 8 * ?MB end, ?WAIT_MS),
    true = binaries(Peer) < Before + 100 * ?MB,
    ok = beamway_peer:kill9(BadPeer),
    ok = beamway_peer:wait_disconnected(Peer, BadNode),
    true = beamway_peer:wait_until(fun() -> binaries(Peer) < Before + 4 * ?MB end, ?WAIT_MS).

%% ---- fragments ----

%% ERTS detects such fragments and reacts as it does with any carrier.
fragments_out_of_place(Config) ->
    [begin
         Bad = {BadPeer, _} = bad_peer(Config),
         ok = send(Config, Bad, fun() -> Fragments end),
         ok = is_left(Config, Bad, "broke the distribution protocol"),
         ok = beamway_peer:stop(BadPeer)
     end || Fragments <- [[rest(7, 2)],                          % no first fragment
                          [rest(7, 1)],
                          [first(7, 3), rest(8, 2)],             % from a different sequence
                          [first(7, 3), rest(7, 1)],             % one is missing
                          [first(7, 3), first(7, 3)],            % started twice
                          [first(7, 3), rest(7, 2), rest(7, 2)], % one arrives twice
                          [<<131, 70, 7:64>>]]],                 % half a header
    ok.

%% Unfinished messages are retained as long as the connection is open, and no longer.
messages_never_finished(Config) ->
    {Peer, _} = under_test(Config),
    {BadPeer, BadNode} = Bad = bad_peer(Config),
    Before = binaries(Peer),
    ok = send(Config, Bad, fun() -> [first(Sequence, 3) || Sequence <- lists:seq(1, 300)] end),
    true = beamway_peer:wait_until(fun() -> binaries(Peer) > Before + 16 * ?MB end, ?WAIT_MS),
    ok = beamway_peer:kill9(BadPeer),
    ok = beamway_peer:wait_disconnected(Peer, BadNode),
    true = beamway_peer:wait_until(fun() -> binaries(Peer) < Before + 4 * ?MB end, ?WAIT_MS).

%% The fragment contains the beginning of a message of more than 64 KB to an unregistered name.
first(Sequence, Fragments) ->
    <<131, Control/binary>> = term_to_binary({6, self(), '', nobody}),
    <<131, 69, Sequence:64, Fragments:64, 0, Control/binary, 109, (3 * 65536):32, (binary:copy(<<"m">>, 65000))/binary>>.

rest(Sequence, Fragment) -> <<131, 70, Sequence:64, Fragment:64, "more">>.

%% ---- peers that do not read ----

%% Each side has sent until it is blocked, and the relay reads nothing. Then the connection is cut.
both_queues_full_at_the_end(Config) ->
    {Peer, Node} = under_test(Config),
    {Other, OtherNode, Way} = on_the_way(Config),
    Sides = [{Peer, OtherNode}, {Other, Node}],
    Before = [binaries(Side) || {Side, _} <- Sides],
    Watchers = [beamway_peer:watch_nodedown(Side) || {Side, _} <- Sides],
    Way ! {pass, nothing},
    Senders = [senders(Side, To) || {Side, To} <- Sides],
    [ok = all_wait(Side, Pids) || {{Side, _}, Pids} <- lists:zip(Sides, Senders)],
    Way ! cut,
    [{connection_closed, _} = beamway_peer:nodedown(Side, Watcher, To, ?WAIT_MS) || {{Side, To}, Watcher} <- lists:zip(Sides, Watchers)],
    [ok = all_gone(Side, Pids) || {{Side, _}, Pids} <- lists:zip(Sides, Senders)],
    [true = beamway_peer:wait_until(fun() -> binaries(Side) < Was + 4 * ?MB end, ?WAIT_MS) || {{Side, _}, Was} <- lists:zip(Sides, Before)],
    ok.

%% Processes that send to this peer are suspended, so the backlog is bounded. Other processes are not suspended.
one_byte_a_second(Config) ->
    {Peer, Node} = under_test(Config),
    Friend = proplists:get_value(friend, Config),
    {_, OtherNode, Way} = on_the_way(Config),
    Before = binaries(Peer),
    Watcher = beamway_peer:watch_nodedown(Peer),
    Way ! {pass, one_byte_a_second},
    Senders = senders(Peer, OtherNode),
    ok = all_wait(Peer, Senders),
    true = binaries(Peer) < Before + 150 * ?MB,
    [Node = beamway_peer:call(Friend, erpc, call, [Node, erlang, node, [], 5000]) || _ <- lists:seq(1, 100)],
    true = lists:member(OtherNode, beamway_peer:call(Peer, erlang, nodes, [connected])),
    true = beamway_peer:call(Peer, erlang, disconnect_node, [OtherNode]),
    {disconnect, _} = beamway_peer:nodedown(Peer, Watcher, OtherNode, ?WAIT_MS),
    ok = all_gone(Peer, Senders),
    true = beamway_peer:wait_until(fun() -> binaries(Peer) < Before + 4 * ?MB end, ?WAIT_MS).

senders(Peer, To) ->
    beamway_peer:run(Peer, fun() -> [spawn(fun() -> {nobody, To} ! binary:copy(<<1>>, ?MB) end) || _ <- lists:seq(1, 100)] end).

%% Some senders have finished, and all others are suspended.
all_wait(Peer, Senders) ->
    Waits = fun(Pid) -> process_info(Pid, status) =:= {status, suspended} end,
    true = beamway_peer:wait_until(
             fun() ->
                     beamway_peer:run(Peer, fun() ->
                         Alive = lists:filter(fun is_process_alive/1, Senders),
                         Alive =/= [] andalso lists:all(Waits, Alive)
                     end)
             end, ?WAIT_MS),
    ok.

all_gone(Peer, Senders) ->
    true = beamway_peer:wait_until(fun() -> beamway_peer:run(Peer, fun() -> not lists:any(fun is_process_alive/1, Senders) end) end, ?WAIT_MS),
    ok.

%% ---- the bad peer ----

bad_peer(Config) ->
    {Peer, Node} = under_test(Config),
    {ok, BadPeer, BadNode} = (proplists:get_value(start, Config))(#{ebin => proplists:get_value(bad, Config)}),
    true = beamway_peer:call(BadPeer, net_kernel, connect_node, [Node]),
    [ok = beamway_peer:assert_link(One, To, beamway_peer:link_kind(beamway_carrier:carrier(Config)))
     || {One, To} <- [{BadPeer, Node}, {Peer, BadNode}]],
    {BadPeer, BadNode}.

%% The packets are created on the node that sends them.
send(Config, {BadPeer, _}, Packets) ->
    {_, Node} = under_test(Config),
    beamway_peer:run(BadPeer, fun() ->
        {Node, Port} = lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)),
        _ = spawn(fun() -> [port_command(Port, Packet) || Packet <- Packets()] end),
        ok
    end).

%% The node has logged the reason in one line and disconnected the bad peer, and still accepts other nodes.
is_left(Config, {BadPeer, BadNode}, Words) ->
    {Peer, Node} = under_test(Config),
    ok = beamway_peer:wait_disconnected(Peer, BadNode),
    ok = beamway_peer:wait_disconnected(BadPeer, Node),
    Log = proplists:get_value(log, Config),
    Lines = fun() -> [Line || Line <- string:lexemes(beamway_peer:log_text(Log), "\n"), string:find(Line, atom_to_list(BadNode)) =/= nomatch] end,
    ct:log("~ts", [lists:join("\n", Lines())]),
    true = beamway_peer:wait_until(fun() -> lists:any(fun(Line) -> string:find(Line, Words) =/= nomatch end, Lines()) end, ?WAIT_MS),
    {ok, Good, _} = (proplists:get_value(start, Config))(#{}),
    ok = beamway_peer:connect_both(beamway_carrier:carrier(Config), Good, Peer),
    beamway_peer:stop(Good).

binaries(Peer) -> beamway_peer:call(Peer, erlang, memory, [binary]).

%% ---- between two nodes ----

%% The node under test calls another one through a relay process in this node.
on_the_way(Config) ->
    {Peer, _} = under_test(Config),
    {ok, Other, OtherNode} = (proplists:get_value(start, Config))(#{}),
    [Name, _] = string:split(atom_to_list(OtherNode), "@"),
    File = filename:join(proplists:get_value(folder, Config), Name),
    {ok, Text} = file:read_file(File),
    [Port, Family] = string:split(unicode:characters_to_list(Text), " "),
    Test = self(),
    Way = spawn_link(fun() ->
                             {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}, {recbuf, 65536}]),
                             {ok, Own} = inet:port(Listen),
                             ok = file:write_file(File, [integer_to_list(Own), " ", Family]),
                             Test ! {self(), there},
                             {ok, Near} = gen_tcp:accept(Listen, ?WAIT_MS),
                             {ok, Far} = gen_tcp:connect({127, 0, 0, 1}, list_to_integer(Port), [binary, {active, false}, {recbuf, 65536}]),
                             [ok = inet:setopts(From, [{active, once}]) || From <- [Near, Far]],
                             pass(#{Near => Far, Far => Near}, all)
                     end),
    receive {Way, there} -> ok end,
    ok = beamway_peer:connect_both(beamway_carrier:carrier(Config), Peer, Other),
    {Other, OtherNode, Way}.

%% `How' determines how much passes in each direction: `all', `nothing', or `one_byte_a_second'.
pass(Ends, How) ->
    receive
        {tcp, From, Bytes} when How =:= all ->
            ok = gen_tcp:send(maps:get(From, Ends), Bytes),
            ok = inet:setopts(From, [{active, once}]),
            pass(Ends, How);
        second ->
            [pass_a_byte(From, To) || {From, To} <- maps:to_list(Ends)],
            _ = erlang:send_after(1000, self(), second),
            pass(Ends, How);
        {pass, one_byte_a_second = Less} ->
            self() ! second,
            pass(Ends, Less);
        {pass, Less} ->
            pass(Ends, Less);
        {tcp_closed, _} when How =:= all ->
            ok;
        cut ->
            [ok = gen_tcp:close(End) || End <- maps:keys(Ends)],
            ok
    end.

%% The bytes that the socket has already delivered are in the mailbox.
pass_a_byte(From, To) ->
    ok = inet:setopts(From, [{active, false}]),
    case gen_tcp:recv(From, 1, 0) of
        {ok, Byte} -> gen_tcp:send(To, Byte);
        {error, _} -> ok
    end.
