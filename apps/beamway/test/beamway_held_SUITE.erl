%% SPDX-License-Identifier: Apache-2.0
%% @doc Senders of large messages are suspended one by one, and none stays suspended, whichever process or node exits.
%%
%% The peer is stopped, so every sender of large messages is suspended: first by the link's keeper, and then by ERTS when the link has made no
%% progress for a moment and its port is busy. At the end of each case no process on the sending node is suspended.
-module(beamway_held_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([small_messages_go_on/1, the_held_may_end/1, others_may_suspend_them_too/1, a_link_that_closes_lets_them_go/1, a_peer_that_dies_lets_them_go/1,
         thousands_of_senders/1, last_words_of_many_megabytes/1, last_words_to_a_stopped_peer/1]).

-define(CARRIERS, [beamway_tcp, beamway_shm]).
-define(SENDERS, 5).
-define(BYTES, 300000).
-define(WAIT_MS, 60000).
-define(THOUSANDS, 10000).

suite() -> [{timetrap, {minutes, beamway_carrier:scale(4, 20)}}].

all() -> beamway_carrier:all([beamway_inet | ?CARRIERS]).

groups() ->
    beamway_carrier:groups([beamway_inet], [last_words_to_a_stopped_peer]) ++
    beamway_carrier:groups(?CARRIERS,
                           [small_messages_go_on, the_held_may_end, others_may_suspend_them_too, a_link_that_closes_lets_them_go,
                            a_peer_that_dies_lets_them_go, thousands_of_senders, last_words_of_many_megabytes]).

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% The peer runs for only a fifth of the time, so the port is not busy for long. It is busy only while the keeper checks whether the VM suspends a
%% sender.
small_messages_go_on(Config) ->
    {A, B, NodeB, Counter} = pair(Config),
    Brake = beamway_peer:slow_down(B),
    Senders = senders(A, Counter),
    true = beamway_peer:wait_until(fun() -> held_and_busy(A, NodeB) =:= {?SENDERS, 0} end, ?WAIT_MS),
    ok = beamway_peer:run(A, fun() -> erlang:send(Counter, small, [nosuspend]) end),
    ok = beamway_peer:full_speed(Brake),
    true = beamway_peer:wait_until(fun() -> count(B, Counter) > 1 + ?SENDERS * 20 end, ?WAIT_MS),
    ok = end_senders(A, Senders),
    nobody_is_held(A, NodeB).

the_held_may_end(Config) ->
    {A, B, NodeB, _Counter, [Killed, Trapping | _] = Senders} = held(Config),
    true = beamway_peer:call(A, erlang, exit, [Killed, kill]),
    true = beamway_peer:call(A, erlang, exit, [Trapping, later]), % the process receives this signal when it continues
    true = beamway_peer:wait_until(fun() -> not beamway_peer:call(A, erlang, is_process_alive, [Killed]) end, ?WAIT_MS),
    ok = beamway_peer:sigcont(B),
    true = beamway_peer:wait_until(fun() -> beamway_peer:call(A, erlang, process_info, [Trapping, status]) =/= {status, suspended} end, ?WAIT_MS),
    ok = end_senders(A, Senders),
    nobody_is_held(A, NodeB).

%% A sender that another process has suspended stays suspended until that process resumes it.
others_may_suspend_them_too(Config) ->
    {A, B, NodeB, _Counter, [Sender | _] = Senders} = held(Config),
    Other = beamway_peer:run(A, fun() ->
        Self = self(),
        Pid = spawn(fun() ->
                        true = erlang:suspend_process(Sender),
                        Self ! {self(), done},
                        receive resume -> true = erlang:resume_process(Sender) end
                    end),
        receive {Pid, done} -> Pid end
    end),
    ok = beamway_peer:sigcont(B),
    ok = end_senders(A, Senders -- [Sender]),
    true = beamway_peer:wait_until(fun() -> held_now(A, NodeB) =:= 0 andalso suspended(A) =:= [Sender] end, ?WAIT_MS),
    resume = beamway_peer:run(A, fun() -> Other ! resume end),
    ok = end_senders(A, [Sender]),
    nobody_is_held(A, NodeB).

a_link_that_closes_lets_them_go(Config) ->
    {A, B, NodeB, _Counter, Senders} = held(Config),
    true = beamway_peer:call(A, erlang, disconnect_node, [NodeB]),
    [] = beamway_peer:wait_until(fun() -> none(suspended(A)) end, ?WAIT_MS),
    true = beamway_peer:wait_until(fun() -> all_idle(A, Senders) end, ?WAIT_MS),
    ok = beamway_peer:sigcont(B).

a_peer_that_dies_lets_them_go(Config) ->
    {A, B, _NodeB, _Counter, Senders} = held(Config),
    _ = os:cmd("kill -9 " ++ integer_to_list(beamway_peer:os_pid(B))),
    [] = beamway_peer:wait_until(fun() -> none(suspended(A)) end, ?WAIT_MS),
    true = beamway_peer:wait_until(fun() -> all_idle(A, Senders) end, ?WAIT_MS).

%% Each process sends one large message, and all of them arrive.
thousands_of_senders(Config) ->
    {A, B, NodeB, Counter} = pair(Config),
    ok = beamway_peer:run(A, fun() ->
        Data = binary:copy(<<1>>, 100000),
        lists:foreach(fun(_) -> spawn(fun() -> Counter ! Data end) end, lists:seq(1, ?THOUSANDS))
    end),
    true = beamway_peer:wait_until(fun() -> count(B, Counter) =:= ?THOUSANDS end, 2 * ?WAIT_MS),
    nobody_is_held(A, NodeB).

%% A process sends 100 MB, and its node halts when the port has all of it. Stock nodes lose nothing. If the process
%% did not query the port before it halts the node, our node could lose some of the data: on a single CPU the last
%% message is still on its way to the port when the VM halts.
last_words_of_many_megabytes(Config) ->
    {A, B, NodeA, Collector} = collecting_pair(Config),
    send_and_halt(A, Collector, 100),
    arrived(B, NodeA, Collector, 100).

%% With Beamway, OTP's own port queues up to 4 MB that the peer does not read, and the VM sends this data before it exits. If the port were busy
%% instead, the data would stay in ERTS's queue, which is dropped.
last_words_to_a_stopped_peer(Config) ->
    {A, B, NodeA, Collector} = collecting_pair(Config),
    %% Lets `global' finish first. Otherwise its messages from B would reach a VM that no longer reads, and A's kernel would reset the connection
    %% and drop unsent data.
    [ok = beamway_peer:call(Peer, global, sync, []) || Peer <- [A, B]],
    ok = beamway_peer:sigstop(B),
    Monitor = monitor(process, A),
    send_and_halt(A, Collector, 3),
    receive {'DOWN', Monitor, process, A, _} -> ok end, % halt() has closed standard input and output
    ok = beamway_peer:sigcont(B),
    arrived(B, NodeA, Collector, 3).

send_and_halt(Peer, Collector, Count) ->
    ok = peer:cast(Peer, erlang, apply, [fun() ->
        lists:foreach(fun(Number) -> Collector ! {Number, binary:copy(<<Number>>, 1000000)} end, lists:seq(1, Count)),
        {_, Port} = lists:keyfind(node(Collector), 1, erlang:system_info(dist_ctrl)),
        {queue_size, _} = erlang:port_info(Port, queue_size),
        halt()
    end, []]).

arrived(Peer, NodeA, Collector, Count) ->
    Numbers = beamway_peer:wait_until(fun() -> beamway_peer:given(Peer, Collector) end, 2 * ?WAIT_MS),
    ct:log("~ts: ~b of ~b messages have arrived", [NodeA, length(Numbers), Count]),
    true = Numbers =:= lists:seq(1, Count).

%% --- nodes and processes ---------------------------------------------------------------------------------

pair(Config) ->
    {A, _, B, NodeB} = beamway_carrier:connected_pair(Config),
    Counter = beamway_peer:run(B, fun() -> spawn(fun() -> count(0) end) end),
    {A, B, NodeB, Counter}.

%% The peer is stopped and all senders are suspended.
held(Config) ->
    {A, B, NodeB, Counter} = pair(Config),
    ok = beamway_peer:sigstop(B),
    Senders = senders(A, Counter),
    true = beamway_peer:wait_until(fun() -> lists:sort(suspended(A)) =:= lists:sort(Senders) end, ?WAIT_MS),
    {A, B, NodeB, Counter, Senders}.

senders(Peer, Counter) ->
    beamway_peer:run(Peer, fun() ->
        Data = binary:copy(<<1>>, ?BYTES),
        [spawn(fun() ->
                   process_flag(trap_exit, true),
                   flood(Counter, Data)
               end) || _ <- lists:seq(1, ?SENDERS)]
    end).

%% Pauses so that less than 64 MB are queued, because a longer queue would make the port busy. Without a connection it waits until it is stopped.
flood(To, Data) ->
    receive stop -> ok
    after 1 ->
        case erlang:send(To, Data, [noconnect]) of
            ok -> flood(To, Data);
            noconnect -> receive stop -> ok end
        end
    end.

count(Count) ->
    receive
        {give, From} -> From ! {count, Count}, count(Count);
        _ -> count(Count + 1)
    end.

count(Peer, Counter) ->
    beamway_peer:run(Peer, fun() -> Counter ! {give, self()}, receive {count, Count} -> Count end end).

collecting_pair(Config) ->
    {A, NodeA, B, _} = beamway_carrier:connected_pair(Config),
    {A, B, NodeA, beamway_peer:collector(B, NodeA, fun(_, Data) -> byte_size(Data) =:= 1000000 end)}.

suspended(Peer) ->
    beamway_peer:run(Peer, fun() -> [Pid || Pid <- processes(), process_info(Pid, status) =:= {status, suspended}] end).

none([]) -> [];
none(_) -> false.

held_now(Peer, Node) -> element(1, held_and_busy(Peer, Node)).

held_and_busy(Peer, Node) ->
    case beamway_peer:call(Peer, beamway, info, [Node]) of
        {ok, #{held_senders := Held, busy := Busy}} -> {Held, Busy};
        {error, not_connected} -> {0, 0}
    end.

all_idle(Peer, Pids) ->
    beamway_peer:run(Peer, fun() -> [] =:= [Pid || Pid <- Pids, process_info(Pid, status) =/= {status, waiting}] end).

end_senders(Peer, Senders) ->
    beamway_peer:run(Peer, fun() -> lists:foreach(fun(Sender) -> Sender ! stop end, Senders) end),
    true = beamway_peer:wait_until(fun() ->
        beamway_peer:run(Peer, fun() -> not lists:any(fun is_process_alive/1, Senders) end) end, ?WAIT_MS),
    ok.

%% Once the queued data has been sent, no sender is suspended.
nobody_is_held(Peer, Node) ->
    [] = beamway_peer:wait_until(fun() -> held_now(Peer, Node) =:= 0 andalso none(suspended(Peer)) end, ?WAIT_MS),
    ok.
