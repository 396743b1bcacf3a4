%% SPDX-License-Identifier: Apache-2.0
%% @doc A process that asked not to be suspended is not suspended, whatever its peers do; stock TCP distribution is the oracle.
%%
%% A leader sends 400 KB to two followers every 20 ms. One follower is healthy; the other hangs (SIGSTOP) or runs for only a fifth of the time.
-module(beamway_nosuspend_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([a_follower_hangs/1, a_follower_is_slow/1, others_are_suspended/1, a_link_that_stands_still_is_busy/1]).

-define(CARRIERS, [beamway_tcp, beamway_shm, beamway_tls, beamway_rdma]).
-define(BYTES, 400000).
-define(EVERY_MS, 20).
-define(RUN_MS, 2000).
-define(WAIT_MS, 60000).

suite() -> [{timetrap, {minutes, beamway_carrier:scale(4, 20)}}].

all() -> beamway_carrier:all([inet_tcp | ?CARRIERS]).

groups() ->
    beamway_carrier:groups([inet_tcp], [a_follower_hangs, a_follower_is_slow, others_are_suspended]) ++
    beamway_carrier:groups(?CARRIERS, [a_follower_hangs, a_follower_is_slow, others_are_suspended, a_link_that_stands_still_is_busy]).

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% The healthy follower receives everything that it would receive anyway, and the leader learns that the hung one has stopped reading.
a_follower_hangs(Config) ->
    lists:foreach(fun(Way) -> a_follower_hangs(Way, Config) end, ways(Config)).

a_follower_hangs(Way, Config) ->
    {Leader, [Well, {HungPeer, Hung}]} = cluster(Config),
    ok = beamway_peer:sigstop(HungPeer),
    #{rounds := Rounds, refused := Refused, suspended := Suspended} = lead(Leader, Way, [element(2, Well), Hung]),
    Got = count(Well),
    ct:log("~p: ~b rounds, ~b refused, suspended in ~b of the looks; the healthy follower got ~b", [Way, Rounds, Refused, Suspended, Got]),
    0 = Suspended,
    true = Rounds >= enough(),
    true = Got >= Rounds - 1,
    true = Refused > 0 orelse Way =:= async_dist,
    ok = beamway_peer:stop_started().

%% The slow follower receives what it can handle, no less than from other senders, and the healthy one receives everything.
a_follower_is_slow(Config) ->
    lists:foreach(fun(Way) -> a_follower_is_slow(Way, Config) end, ways(Config)).

a_follower_is_slow(Way, Config) ->
    {Leader, [Well, {SlowPeer, _} = Slow]} = cluster(Config),
    Brake = beamway_peer:slow_down(SlowPeer),
    #{rounds := Rounds, suspended := Suspended} = lead(Leader, Way, [Pid || {_, Pid} <- [Well, Slow]]),
    ok = beamway_peer:full_speed(Brake),
    Got = count(Well),
    ct:log("~p: ~b rounds, suspended in ~b of the looks; the healthy follower got ~b, the slow one ~b", [Way, Rounds, Suspended, Got, count(Slow)]),
    0 = Suspended,
    true = Rounds >= enough(),
    true = Got >= Rounds - 1,
    true = count(Slow) > 0,
    ok = beamway_peer:stop_started().

%% A process that did not ask for this is suspended when it sends to a hung peer, so that memory is bounded.
others_are_suspended(Config) ->
    {Leader, [_, {HungPeer, Hung}]} = cluster(Config),
    ok = beamway_peer:sigstop(HungPeer),
    Sender = beamway_peer:run(Leader, fun() -> spawn(fun() -> flood(Hung, binary:copy(<<1>>, ?BYTES)) end) end),
    true = beamway_peer:wait_until(fun() -> is_suspended(Leader, Sender) end, ?WAIT_MS),
    true = beamway_peer:call(Leader, erlang, memory, [binary]) < 200 bsl 20,
    ok = beamway_peer:sigcont(HungPeer),
    true = beamway_peer:wait_until(fun() -> count({HungPeer, Hung}) > 100 end, ?WAIT_MS).

%% `busy' is 1 and Beamway suspends no process until the peer reads again. Everything that was accepted arrives.
a_link_that_stands_still_is_busy(Config) ->
    {Leader, [_, {HungPeer, Hung}]} = cluster(Config),
    ok = beamway_peer:sigstop(HungPeer),
    Senders = beamway_peer:run(Leader, fun() ->
        [spawn(fun() -> Hung ! binary:copy(<<1>>, 30 * ?BYTES), Hung ! binary:copy(<<1>>, 3 * ?BYTES) end) || _ <- [1, 2]]
    end),
    true = beamway_peer:wait_until(fun() -> busy_and_held(Leader, node(Hung)) =:= {1, 0} end, ?WAIT_MS),
    ok = beamway_peer:sigcont(HungPeer),
    true = beamway_peer:wait_until(fun() -> count({HungPeer, Hung}) =:= 2 * length(Senders) end, ?WAIT_MS),
    true = beamway_peer:wait_until(fun() -> busy_and_held(Leader, node(Hung)) =:= {0, 0} end, ?WAIT_MS).

%% --- the leader -----------------------------------------------------------------------------------------

%% `process_flag(async_dist, true)' exists since OTP 25.3.
ways(Config) ->
    {ok, Peer, _} = beamway_peer:start(proplists:get_value(carrier, Config)),
    Has = beamway_peer:run(Peer, fun() -> try is_boolean(process_flag(async_dist, true)) catch error:badarg -> false end end),
    ok = beamway_peer:stop(Peer),
    [nosuspend, send_nosuspend] ++ [async_dist || Has].

%% Lets the leader run for ?RUN_MS and checks every 10 ms whether it is suspended. Returns how often it was, and what the leader has counted.
lead(Peer, Way, Followers) ->
    beamway_peer:run(Peer, fun() ->
        Leader = spawn(fun() -> begin_leading(Way, Followers) end),
        Suspended = looks(Leader, ?RUN_MS div 10, 0),
        Leader ! {give, self()},
        receive {led, Rounds, Refused} -> #{rounds => Rounds, refused => Refused, suspended => Suspended} end
    end, 3 * ?RUN_MS).

looks(_, 0, Suspended) -> Suspended;
looks(Leader, Left, Suspended) ->
    receive after 10 -> ok end,
    looks(Leader, Left - 1, case process_info(Leader, status) of {status, suspended} -> Suspended + 1; _ -> Suspended end).

begin_leading(Way, Followers) ->
    _ = Way =:= async_dist andalso process_flag(async_dist, true),
    rounds(Way, Followers, binary:copy(<<1>>, ?BYTES), 0, 0).

rounds(Way, Followers, Data, Rounds, Refused) ->
    receive {give, From} -> From ! {led, Rounds, Refused}
    after ?EVERY_MS ->
        Sent = [send(Way, Follower, Data) || Follower <- Followers],
        rounds(Way, Followers, Data, Rounds + 1, Refused + length([refused || nosuspend <- Sent]))
    end.

send(nosuspend, To, Data) -> erlang:send(To, Data, [nosuspend, noconnect]);
send(send_nosuspend, To, Data) ->
    case erlang:send_nosuspend(To, Data, [noconnect]) of
        true -> ok;
        false -> nosuspend
    end;
send(async_dist, To, Data) -> To ! Data, ok.

%% Returns half of the number of rounds that a leader completes on an idle machine; a leader that is suspended completes a tenth.
enough() -> ?RUN_MS div ?EVERY_MS div (2 * beamway_runner:slowness()).

flood(To, Data) -> To ! Data, flood(To, Data).

%% --- nodes ----------------------------------------------------------------------------------------------

%% Starts a leader that is connected to two followers, each with a process that counts.
cluster(Config) ->
    Carrier = proplists:get_value(carrier, Config),
    [{Leader, _} | Followers] = [begin {ok, Peer, Node} = beamway_peer:start(Carrier), {Peer, Node} end || _ <- [1, 2, 3]],
    {Leader, [begin
                  ok = beamway_peer:connect_both(Carrier, Leader, Peer),
                  {Peer, beamway_peer:run(Peer, fun() -> spawn(fun() -> counting(0) end) end)}
              end || {Peer, _} <- Followers]}.

counting(Count) ->
    receive
        {give, From} -> From ! {count, Count}, counting(Count);
        _ -> counting(Count + 1)
    end.

count({Peer, Follower}) ->
    beamway_peer:run(Peer, fun() -> Follower ! {give, self()}, receive {count, Count} -> Count end end).

is_suspended(Peer, Pid) -> beamway_peer:call(Peer, erlang, process_info, [Pid, status]) =:= {status, suspended}.

busy_and_held(Peer, Node) ->
    {ok, #{busy := Busy, held_senders := Held}} = beamway_peer:call(Peer, beamway, info, [Node]),
    {Busy, Held}.
