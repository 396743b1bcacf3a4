%% SPDX-License-Identifier: Apache-2.0
%% @doc What happens over each carrier when a peer stops reading, is killed or halts.
%%
%% In the group `inet_tcp' the cases show what stock distribution does. With `BEAMWAY_TEST_LONG=1' in the environment
%% there are 1,000 rounds of last words (20 by default) and 50 kills (6 by default).
-module(beamway_faults_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2,
         end_per_testcase/2]).
-export([busy_port_and_recovery/1, kill_under_load/1, kill_of_an_idle_peer/1, kill_leaves_no_file/1, kill_within_a_message/1,
         halt_leaves_no_hole/1, halt_with_stopped_peer/1, halt_without_flush/1, last_words/1, last_words_of_the_killed/1]).

%% At least this many messages have arrived when a node halts.
-define(SURE, 50).

suite() -> [{timetrap, {minutes, beamway_carrier:scale(3, 20)}}].

all() -> beamway_carrier:all().

groups() ->
    %% Only a link over shared memory has files. halt() waits for data in flight over rdma, and OTP's own TCP port waits for a
    %% stopped peer (erlang/otp #7438).
    beamway_carrier:only(
      [{kill_leaves_no_file, [beamway_shm]}, {kill_of_an_idle_peer, [inet_tcp, beamway_tcp, beamway_shm]},
       {halt_with_stopped_peer, [beamway_tcp, beamway_shm, beamway_rdma]}],
      beamway_carrier:groups(
        [busy_port_and_recovery, kill_under_load, kill_of_an_idle_peer, kill_leaves_no_file, kill_within_a_message, halt_leaves_no_hole,
         halt_with_stopped_peer, halt_without_flush, last_words, last_words_of_the_killed])).

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% --- backpressure ------------------------------------------------------------------------------------

%% The reader is stopped: senders are suspended, `nosuspend' reports it, the system monitor is notified, and the node stays responsive with bounded
%% memory. When the reader continues, everything arrives in order.
busy_port_and_recovery(Config) ->
    {PeerA, _, PeerB, NodeB} = beamway_carrier:connected_pair(Config),
    Receiver = beamway_peer:run(PeerB, fun() -> spawn(fun() -> keep_numbers(#{}) end) end),
    Monitor = beamway_peer:run(PeerA, fun() -> spawn(fun() -> monitor_busy_ports() end) end),
    OsPidA = beamway_peer:os_pid(PeerA),
    Before = beamway_peer:resident_bytes(OsPidA),
    ok = beamway_peer:sigstop(PeerB),
    Senders = beamway_peer:run(PeerA, fun() ->
        [spawn(fun() -> send_numbers(Receiver, Sender, 1, 400) end) || Sender <- lists:seq(1, 10)]
    end),
    _ = beamway_peer:wait_until(fun() -> all_suspended(PeerA, Senders) end, 20000),
    nosuspend = beamway_peer:run(PeerA, fun() -> erlang:send(Receiver, refused, [nosuspend]) end),
    %% The queue limit of ERTS is 1 MB.
    true = beamway_peer:resident_bytes(OsPidA) - Before < 100000000,
    Busy = beamway_peer:run(PeerA, fun() -> Monitor ! {give, self()}, receive {busy, Pids} -> Pids end end),
    true = lists:all(fun(Sender) -> lists:member(Sender, Busy) end, Senders),
    ok = beamway_peer:sigcont(PeerB),
    Expected = maps:from_list([{Sender, 400} || Sender <- lists:seq(1, 10)]),
    Expected = beamway_peer:wait_until(fun() ->
        Kept = beamway_peer:run(PeerB, fun() ->
                   Receiver ! {give, self()}, receive {numbers, Numbers} -> Numbers end end),
        Kept =:= Expected andalso Kept
    end, 60000),
    NodeB = beamway_peer:call(PeerA, erpc, call, [NodeB, erlang, node, []]),
    ok.

send_numbers(_Receiver, _Sender, Number, Last) when Number > Last ->
    ok;
send_numbers(Receiver, Sender, Number, Last) ->
    Receiver ! {Sender, Number, binary:copy(<<Number:16>>, 10000)},
    send_numbers(Receiver, Sender, Number + 1, Last).

keep_numbers(Numbers) ->
    receive
        {give, From} ->
            From ! {numbers, Numbers},
            keep_numbers(Numbers);
        {Sender, Number, Data} ->
            Number = maps:get(Sender, Numbers, 0) + 1,
            Data = binary:copy(<<Number:16>>, 10000),
            keep_numbers(Numbers#{Sender => Number})
    end.

monitor_busy_ports() ->
    _ = erlang:system_monitor(self(), [busy_dist_port]),
    keep_busy([]).

keep_busy(Pids) ->
    receive
        {monitor, Pid, busy_dist_port, _Port} -> keep_busy([Pid | Pids]);
        {give, From} -> From ! {busy, Pids}, keep_busy(Pids)
    end.

all_suspended(Peer, Pids) ->
    beamway_peer:run(Peer, fun() ->
        lists:all(fun(Pid) -> process_info(Pid, status) =:= {status, suspended} end, Pids)
    end).

%% --- kill -9 -----------------------------------------------------------------------------------------

%% The peer is killed while there is traffic both ways. The survivor notices within a second (a busy machine may take longer now and then, but not
%% in each round), and afterwards has as many descriptors and mappings as before the two were connected.
kill_under_load(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    {ok, Survivor, SurvivorNode} = beamway_peer:start(Carrier),
    %% Runs one round before counting, because what the VM opens once and keeps is not a leak.
    _ = kill_round(Carrier, Survivor, SurvivorNode, 0),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:call(Survivor, erlang, nodes, [connected]) =:= [] end, 5000),
    Before = beamway_peer:resources(Survivor),
    Times = [kill_round(Carrier, Survivor, SurvivorNode, Round)
             || Round <- lists:seq(1, beamway_carrier:rounds(6, 50))],
    ct:log("nodedown after kill -9, in ms: ~w", [Times]),
    true = lists:min(Times) < 1000 * beamway_runner:slowness(),
    true = lists:max(Times) < 8000 * beamway_runner:slowness(),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:no_more(beamway_peer:resources(Survivor), Before) end, 5000),
    [] = beamway_peer:call(Survivor, erlang, nodes, [connected]),
    ok.

kill_round(Carrier, Survivor, SurvivorNode, Round) ->
    {Victim, VictimNode} = start_victim(Carrier, Survivor, Round),
    ok = load(Survivor, VictimNode),
    ok = load(Victim, SurvivorNode),
    Watcher = watch_node(Survivor, VictimNode),
    %% This is long enough for the load to start, and differs in each round.
    receive after 20 + Round * 7 rem 50 -> ok end,
    nodedown_ms(Victim, Survivor, Watcher).

%% The two sides take turns in connecting.
start_victim(Carrier, Survivor, Round) ->
    {ok, Victim, VictimNode} = beamway_peer:start(Carrier),
    case Round rem 2 of
        0 -> ok = beamway_peer:connect_both(Carrier, Survivor, Victim);
        1 -> ok = beamway_peer:connect_both(Carrier, Victim, Survivor)
    end,
    {Victim, VictimNode}.

nodedown_ms(Victim, Survivor, Watcher) ->
    KilledAt = os:system_time(microsecond),
    ok = beamway_peer:kill9(Victim),
    DownAt = beamway_peer:wait_until(fun() -> beamway_peer:given(Survivor, Watcher) end, 10000),
    (DownAt - KilledAt) div 1000.

%% Neither side sends anything, so nothing has to be delivered first, and the survivor notices as quickly as with stock distribution. On a busy
%% machine each process waits for its turn, and more processes are involved than with stock distribution, so the slowest round of stock
%% distribution sets the limit.
kill_of_an_idle_peer(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    Rounds = lists:seq(1, beamway_carrier:rounds(6, 20)),
    Times = [{idle_kill_ms(Carrier, Round), idle_kill_ms(inet_tcp, Round)} || Round <- Rounds],
    ct:log("ms from kill -9 to nodedown, here and on stock: ~w", [Times]),
    {Here, Stock} = lists:unzip(Times),
    true = lists:min(Here) =< 2 * lists:max(Stock) + 5,
    ok.

idle_kill_ms(Carrier, Round) ->
    {ok, Survivor, _} = beamway_peer:start(Carrier),
    {Victim, VictimNode} = start_victim(Carrier, Survivor, Round),
    Ms = nodedown_ms(Victim, Survivor, watch_node(Survivor, VictimNode)),
    ok = beamway_peer:stop_started(),
    Ms.

%% 10 processes send to a sink on the node until the node has exited.
load(Peer, Node) ->
    beamway_peer:run(Peer, fun() ->
        Sink = spawn(Node, fun swallow/0),
        [spawn(fun() ->
                   _ = monitor_node(Node, true),
                   send_until_down(Sink, Node, binary:copy(<<Size>>, Size * Size * 10))
               end) || Size <- lists:seq(1, 100, 10)],
        ok
    end).

swallow() ->
    receive _ -> swallow() end.

send_until_down(Sink, Node, Data) ->
    Sink ! Data,
    receive {nodedown, Node} -> ok after 0 -> send_until_down(Sink, Node, Data) end.

watch_node(Peer, Node) ->
    beamway_peer:run(Peer, fun() ->
        Self = self(),
        Pid = spawn(fun() ->
                        true = monitor_node(Node, true),
                        Self ! {self(), watching},
                        receive {nodedown, Node} -> ok end,
                        beamway_peer:give(os:system_time(microsecond))
                    end),
        receive {Pid, watching} -> Pid end
    end).

%% With `socket_dir' the listener has a name while the link is being set up, and only then.
kill_leaves_no_file(_Config) ->
    Dir = beamway_peer:new_folder("beamway-sockets"),
    try
        Options = #{env => [{"BEAMWAY_SOCKET_DIR", Dir}]},
        {PeerA, NodeA, PeerB, _} = beamway_peer:connected_pair(beamway_shm, Options),
        {ok, []} = file:list_dir(Dir),
        ok = load(PeerB, NodeA),
        ok = beamway_peer:kill9(PeerB),
        ok = beamway_peer:kill9(PeerA),
        {ok, []} = file:list_dir(Dir)
    after
        ok = file:del_dir_r(Dir)
    end.

%% A peer that sends messages of 16 MB is killed: its complete messages arrive, and the received part of the next one is freed with the connection.
kill_within_a_message(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    {ok, Survivor, _} = beamway_peer:start(Carrier),
    Binaries = fun() -> beamway_peer:call(Survivor, erlang, memory, [binary]) end,
    [begin
         {ok, Victim, VictimNode} = beamway_peer:start(Carrier),
         ok = beamway_peer:connect_both(Carrier, Victim, Survivor),
         Before = Binaries(),
         Collector = beamway_peer:collector(Survivor, VictimNode, fun(Number, Data) -> Data =:= binary:copy(<<Number:16>>, 8000000) end),
         ok = peer:cast(Victim, erlang, apply, [fun() -> send_large(Collector, 1) end, []]),
         true = beamway_peer:wait_until(fun() -> Binaries() > Before + 8000000 end, 30000),
         ok = beamway_peer:kill9(Victim),
         Messages = beamway_peer:wait_until(fun() -> beamway_peer:given(Survivor, Collector) end, 30000),
         ct:log("~b messages arrived", [length(Messages)]),
         Messages = lists:seq(1, length(Messages)),
         true = beamway_peer:call(Survivor, erlang, apply, [fun() -> exit(Collector, kill) end, []]),
         true = beamway_peer:wait_until(fun() -> Binaries() < Before + 4000000 end, 30000)
     end || _ <- lists:seq(1, beamway_carrier:rounds(3, 20))],
    ok.

send_large(To, Number) ->
    To ! {Number, binary:copy(<<Number:16>>, 8000000)},
    send_large(To, Number + 1).

%% --- halt --------------------------------------------------------------------------------------------

%% halt() right after sending drops what ERTS still has in its own queue, over every carrier. The messages that arrive must be the first ones,
%% complete and without a gap, and must include those that had arrived before the halt.
halt_leaves_no_hole(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    {ok, Survivor, _} = beamway_peer:start(Carrier),
    [begin
         {ok, Victim, VictimNode} = beamway_peer:start(Carrier),
         ok = beamway_peer:connect_both(Carrier, Victim, Survivor),
         Collector = beamway_peer:collector(Survivor, VictimNode, fun(Number, Data) -> Data =:= binary:copy(<<Number:16>>, Size) end),
         ok = peer:cast(Victim, erlang, apply, [fun() ->
             Send = fun(Number) -> Collector ! {Number, binary:copy(<<Number:16>>, Size)} end,
             lists:foreach(Send, lists:seq(1, ?SURE)),
             Collector ! {have, ?SURE, self()},
             receive {Collector, ?SURE} -> ok end,
             lists:foreach(Send, lists:seq(?SURE + 1, 300)),
             halt()
         end, []]),
         Messages = beamway_peer:wait_until(fun() -> beamway_peer:given(Survivor, Collector) end, 30000),
         ct:log("~b of 300 messages of ~b bytes arrived", [length(Messages), 2 * Size]),
         true = Messages =:= lists:seq(1, length(Messages)),
         true = length(Messages) >= ?SURE
     end || Size <- [10, 50000]],
    ok.

%% The peer neither reads nor exits, so halt() gives up on it.
halt_with_stopped_peer(Config) ->
    {PeerA, PeerB} = pair_with_full_queue(Config),
    Ms = timed(fun() -> beamway_peer:halt_node(PeerA) end),
    ct:log("halt() took ~b ms", [Ms]),
    true = Ms < 5000,
    ok = beamway_peer:stop(PeerB).

halt_without_flush(Config) ->
    {PeerA, PeerB} = pair_with_full_queue(Config),
    Ms = timed(fun() -> beamway_peer:halt_node(PeerA, [{flush, false}]) end),
    ct:log("halt() took ~b ms", [Ms]),
    true = Ms < 5000,
    ok = beamway_peer:stop(PeerB).

pair_with_full_queue(Config) ->
    {PeerA, _, PeerB, NodeB} = beamway_carrier:connected_pair(Config),
    ok = beamway_peer:sigstop(PeerB),
    Senders = beamway_peer:run(PeerA, fun() ->
        [spawn(fun() -> flood({beamway_nobody, NodeB}, binary:copy(<<1>>, 100000)) end)
         || _ <- lists:seq(1, 5)]
    end),
    _ = beamway_peer:wait_until(fun() -> all_suspended(PeerA, Senders) end, 20000),
    {PeerA, PeerB}.

flood(To, Data) ->
    To ! Data,
    flood(To, Data).

timed(Fun) ->
    Start = erlang:monotonic_time(millisecond),
    ok = Fun(),
    erlang:monotonic_time(millisecond) - Start.

%% --- last words --------------------------------------------------------------------------------------

%% A process sends one message and exits, and 1 ms later its node halts. The message and the true exit
%% reason, through link and monitor, must all arrive before nodedown, as they do every time over stock TCP.
last_words(Config) ->
    last_words_of(Config, fun() -> halt() end).

%% The same case with a node that is killed. The peer must still receive what was written earlier.
last_words_of_the_killed(Config) ->
    last_words_of(Config, fun() -> os:cmd("kill -9 " ++ os:getpid()) end).

last_words_of(Config, End) ->
    Carrier = beamway_carrier:carrier(Config),
    {ok, Survivor, _} = beamway_peer:start(Carrier),
    Rounds = lists:seq(1, beamway_carrier:rounds(20, 1000)),
    Heard = [last_words_round(Carrier, Survivor, Round, End) || Round <- Rounds],
    Complete = length([All || All <- Heard, All =:= [down, exit, message, nodedown]]),
    ct:log("complete last words: ~b of ~b", [Complete, length(Rounds)]),
    [] = [{Round, Words} || {Round, Words} <- lists:zip(Rounds, Heard),
                            Words =/= [down, exit, message, nodedown]],
    ok.

last_words_round(Carrier, Survivor, Round, End) ->
    {ok, Victim, VictimNode} = beamway_peer:start(Carrier),
    case Round rem 2 of
        0 -> ok = beamway_peer:connect_both(Carrier, Victim, Survivor);
        1 -> ok = beamway_peer:connect_both(Carrier, Survivor, Victim)
    end,
    Listener = listener(Survivor, VictimNode),
    Speaker = beamway_peer:run(Survivor, fun() ->
        Listener ! {speaker, self()}, receive {speaker, Pid} -> Pid end end),
    ok = peer:cast(Victim, erlang, apply, [fun() ->
        Monitor = monitor(process, Speaker),
        Speaker ! {speak, Listener},
        receive {'DOWN', Monitor, process, Speaker, _} -> ok end,
        receive after 1 -> ok end,
        End()
    end, []]),
    beamway_peer:wait_until(fun() -> beamway_peer:given(Survivor, Listener) end, 20000).

%% Starts a process on the survivor that is linked to one on the victim and monitors it. It records the signals that it receives, sorted, up to and
%% including nodedown.
listener(Survivor, VictimNode) ->
    beamway_peer:run(Survivor, fun() ->
        Self = self(),
        Pid = spawn(fun() ->
                        process_flag(trap_exit, true),
                        {Speaker, Monitor} = spawn_monitor(VictimNode, fun speak/0),
                        true = link(Speaker),
                        true = monitor_node(VictimNode, true),
                        %% A message from its own node could overtake the link.
                        Speaker ! {are_you_linked, self()},
                        receive {Speaker, linked} -> Self ! {self(), ready} end,
                        listen(Speaker, Monitor, VictimNode, [])
                    end),
        receive {Pid, ready} -> Pid end
    end).

speak() ->
    receive
        {are_you_linked, From} -> From ! {self(), linked}, speak();
        {speak, To} -> To ! last_word, exit({last, reason})
    end.

listen(Speaker, Monitor, Node, Heard) ->
    receive
        {speaker, From} -> From ! {speaker, Speaker}, listen(Speaker, Monitor, Node, Heard);
        last_word -> listen(Speaker, Monitor, Node, [message | Heard]);
        {'EXIT', Speaker, {last, reason}} -> listen(Speaker, Monitor, Node, [exit | Heard]);
        {'DOWN', Monitor, _, _, {last, reason}} -> listen(Speaker, Monitor, Node, [down | Heard]);
        {nodedown, Node} -> beamway_peer:give(lists:sort([nodedown | Heard]));
        {give, _} -> listen(Speaker, Monitor, Node, Heard);
        Other -> listen(Speaker, Monitor, Node, [Other | Heard])
    end.
