%% SPDX-License-Identifier: Apache-2.0
%% @doc The path emulator (`native/test/path'): rate, delay, loss and queue between two namespaces must be as configured.
%%
%% `native/test/path/path_test.c' tests the emulator's decisions without a clock. This suite measures time, so it runs alone, and a measurement
%% that another process has disturbed is repeated a few times. The emulator itself reports how much data has passed and how long that took;
%% only round trips are timed by a node.
-module(beamway_path_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([rate_of_packets/1, rate_of_a_gigabit/1, round_trips/1, loss_share/1, queue_bound/1, wrong_settings/1, ends_with_its_owner/1]).

-define(TRIES, 10).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [rate_of_packets, rate_of_a_gigabit, round_trips, loss_share, queue_bound, wrong_settings, ends_with_its_owner].

init_per_suite(Config) -> test_support:with_tun(Config).

end_per_suite(_Config) -> ok.

%% ---- cases ----

%% A burst that takes 1.7 s to pass is queued all at once, so the measured rate does not depend on the sender.
rate_of_packets(_Config) ->
    Bits = 20000000,
    with_nodes(#{rate_bits => Bits, delay_us => 1000, queue_bytes => 8000000}, fun(Path, From, _) ->
        [begin
             Rate = fun() ->
                            ok = beamway_peer:run(From, fun() -> send(address(Path, 2), Size, Count) end),
                            Measured = measured_rate(Path, 800),
                            receive after 1000 -> Measured end
                    end,
             within(Rate, Bits, Bits * 0.05)
         end || {Size, Count} <- [{1400, 3000}, {500, 8000}]]
    end).

%% Sends four TCP streams with offload, as `bench hosts' does.
rate_of_a_gigabit(_Config) ->
    Bits = 1000000000,
    with_path(#{rate_bits => Bits, delay_us => 500, queue_bytes => 1000000, offload => 1}, fun(Path) ->
        #{spaces := [A, B], addresses := [_, Address]} = beamway_path:net(Path),
        Server = open_iperf(B, ["-s"]),
        Rate = fun() ->
                       Client = open_iperf(A, ["-c", Address, "-P", "4", "-t", "3"]),
                       receive after 1000 -> ok end,
                       Measured = measured_rate(Path, 1000),
                       ok = beamway_bench_tools:close(Client, "TERM"),
                       Measured
               end,
        within(Rate, Bits, Bits * 0.05),
        beamway_bench_tools:close(Server, "TERM")
    end).

%% Measures how much longer a round trip takes than on a path without a delay, because the programs at both ends take time in both cases. Uses
%% the tenth percentile, because a busy machine delays these programs but never makes a path shorter.
round_trips(_Config) ->
    [within(fun() -> round_trip(Settings) - round_trip(Settings#{delay_us => 0}) end, beamway_path:round_trip_us(Settings), Within)
     || {Settings, Within} <- [{#{delay_us => 500, offload => 1}, 300}, {#{delay_us => 10000}, 2000}]],
    ok.

round_trip(Settings) ->
    with_nodes(Settings, fun(_, From, To) ->
        Echo = beamway_peer:run(To, fun echo/0),
        beamway_bench_stats:percentile(10, beamway_peer:run(From, fun() -> pings(Echo, 100) end))
    end).

%% Sends 20,000 packets in each direction and expects a loss of 2 %, within five standard deviations.
loss_share(_Config) ->
    Count = 20000,
    Most = 5 * math:sqrt(Count * 0.02 * 0.98),
    with_nodes(#{loss => 0.02, seed => 7, queue_bytes => 10000000}, fun(Path, From, To) ->
        [begin
             ok = beamway_peer:run(Peer, fun() -> send(Address, 100, Count) end),
             #{<<"lost">> := Lost} = await_counted(Path, Direction, Count),
             true = abs(Lost - Count * 0.02) < Most
         end || {Direction, Peer, Address} <- [{<<"there">>, From, address(Path, 2)}, {<<"back">>, To, address(Path, 1)}]]
    end).

%% The queue holds at most 64 KB, which take 52 ms at 10 Mbit/s. A burst of 40 KB must pass, part of a burst of 2 MB must be dropped, and the
%% queue must never hold more than its limit.
queue_bound(_Config) ->
    with_nodes(#{rate_bits => 10000000, queue_bytes => 64000}, fun(Path, From, _) ->
        Send = fun(Count) -> ok = beamway_peer:run(From, fun() -> send(address(Path, 2), 1000, Count) end) end,
        Send(40),
        #{<<"dropped">> := 0} = await_counted(Path, <<"there">>, 40),
        Send(2000),
        #{<<"dropped">> := Dropped, <<"most_queued_bytes">> := Queued} = await_counted(Path, <<"there">>, 2040),
        true = Dropped > 0,
        true = Queued > 62000,
        true = Queued =< 64000
    end).

wrong_settings(_Config) ->
    {error, "path_emulator: --rate 5: expected bits per second from 1000 to 100000000000"} = beamway_path:open("bwp", #{rate_bits => 5}),
    {error, "path_emulator: --loss 2: expected a probability from 0 to 1"} = beamway_path:open("bwp", #{loss => 2}),
    "" = os:cmd("ip netns list | grep bwp" ++ os:getpid()),
    ok.

%% The emulator exits however its owner dies. The namespaces stay, as with every other network.
ends_with_its_owner(_Config) ->
    Self = self(),
    {Owner, Monitor} = spawn_monitor(fun() ->
                                             {ok, Path} = beamway_path:open("bwp", #{}),
                                             Self ! {self(), Path},
                                             receive after infinity -> ok end
                                     end),
    #{net := #{spaces := [Space | _]} = Net} = receive {Owner, Path} -> Path
                                               after 30000 -> error(no_path) end,
    "" =/= os:cmd("ip -n " ++ Space ++ " link show path0 2>/dev/null") orelse error(no_device),
    exit(Owner, kill),
    receive {'DOWN', Monitor, process, Owner, killed} -> ok end,
    _ = beamway_peer:wait_until(fun() -> os:cmd("ip -n " ++ Space ++ " link show path0 2>/dev/null") =:= "" end, 10000),
    beamway_netns:delete(Net).

%% ---- paths ----

with_path(Settings, Fun) ->
    {ok, Path} = beamway_path:open("bwp", Settings),
    try
        Value = Fun(Path),
        ct:log("~0p: ~0p", [Settings, beamway_path:counters(Path)]),
        Value
    after
        ok = beamway_path:close(Path)
    end.

%% The nodes only send test traffic; they do not use distribution.
with_nodes(Settings, Fun) ->
    with_path(Settings, fun(Path) ->
        #{spaces := Spaces, addresses := Addresses} = beamway_path:net(Path),
        [From, To] = Peers = [node_at(Space, Address) || {Space, Address} <- lists:zip(Spaces, Addresses)],
        try Fun(Path, From, To) after beamway_peer:stop_all(Peers) end
    end).

node_at(Space, Address) ->
    {ok, Peer, _} = beamway_peer:start(inet_tcp, #{host => Address, wrapper => beamway_netns:host(Space)}),
    Peer.

address(Path, Number) ->
    {ok, Ip} = inet:parse_address(lists:nth(Number, maps:get(addresses, beamway_path:net(Path)))),
    Ip.

open_iperf(Space, Words) ->
    [Ip | Rest] = beamway_netns:host(Space),
    beamway_bench_tools:open(Ip, Rest ++ ["iperf3" | Words]).

%% ---- measuring ----

%% Repeats the measurement until it is in the expected range. Fails if the last attempt is still outside it.
within(Measure, Wanted, Most) -> within(Measure, Wanted, Most, ?TRIES, []).

within(_, Wanted, Most, 0, Seen) -> error({wanted, Wanted, within, Most, measured, lists:reverse(Seen)});
within(Measure, Wanted, Most, Tries, Seen) ->
    case Measure() of
        Got when abs(Got - Wanted) =< Most -> ct:log("~0p, wanted ~0p, seen before ~0p", [Got, Wanted, Seen]);
        Got -> within(Measure, Wanted, Most, Tries - 1, [Got | Seen])
    end.

%% Returns the bits per second that arrive within this time under a load that has already started.
measured_rate(Path, Ms) ->
    receive after 200 -> ok end,
    #{<<"seconds">> := From, <<"there">> := #{<<"bytes">> := Before}} = beamway_path:counters(Path),
    receive after Ms -> ok end,
    #{<<"seconds">> := Until, <<"there">> := #{<<"bytes">> := After}} = beamway_path:counters(Path),
    (After - Before) * 8 / (Until - From).

%% All packets belong to the test, except for a few that the kernel sends.
await_counted(Path, Direction, Count) ->
    beamway_peer:wait_until(fun() ->
                                    #{Direction := #{<<"packets">> := Arrived, <<"lost">> := Lost, <<"dropped">> := Dropped} = Counted} = beamway_path:counters(Path),
                                    Arrived + Lost + Dropped >= Count andalso Counted
                            end, 20000).

%% ---- in the nodes ----

send(Ip, Size, Count) ->
    {ok, Socket} = gen_udp:open(0, [binary]),
    Payload = binary:copy(<<"s">>, Size),
    lists:foreach(fun(_) -> ok = gen_udp:send(Socket, Ip, 9, Payload) end, lists:seq(1, Count)),
    gen_udp:close(Socket).

echo() ->
    Owner = self(),
    Pid = spawn(fun() ->
                        {ok, Socket} = gen_udp:open(0, [binary, {active, true}]),
                        {ok, Port} = inet:port(Socket),
                        Owner ! {self(), Port},
                        echo_loop(Socket)
                end),
    receive {Pid, Port} -> Port after 10000 -> error(no_echo) end.

echo_loop(Socket) ->
    receive {udp, Socket, Ip, Port, Ping} -> ok = gen_udp:send(Socket, Ip, Port, Ping) end,
    echo_loop(Socket).

%% Returns the round-trip time in microseconds of each packet that came back.
pings(Port, Count) ->
    {ok, Socket} = gen_udp:open(0, [binary, {active, false}]),
    Times = lists:append([ping(Socket, Port, <<Number:32>>) || Number <- lists:seq(1, Count)]),
    ok = gen_udp:close(Socket),
    Times.

ping(Socket, Port, Ping) ->
    Start = erlang:monotonic_time(microsecond),
    ok = gen_udp:send(Socket, {10, 97, 194, 2}, Port, Ping),
    case gen_udp:recv(Socket, 0, 1000) of
        {ok, {_, _, Ping}} -> [erlang:monotonic_time(microsecond) - Start];
        _ -> []
    end.
