%% SPDX-License-Identifier: Apache-2.0
%% @doc Injects faults into real nodes that exchange messages. Runs the schedules that once found a defect, a schedule
%% with a fault of each kind, and new schedules for 15 seconds, whose seeds it prints. `make nemesis MIN=30' runs
%% longer.
%%
%% A schedule that fails is a term: put it into a file in beamway_nemesis_SUITE_data with a comment about what it
%% found, and it becomes a case. The oracle itself is tested by unit tests and, on real nodes, by `the_oracle_sees'
%% and, with `BEAMWAY_TEST_LONG=1', by drivers that are broken on purpose.
-module(beamway_nemesis_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([every_fault/1, schedules_of_old/1, fresh_schedules/1, the_oracle_sees/1, bad_drivers/1]).
-export([first_connection_without_descriptors/1]).

suite() -> [{timetrap, {minutes, beamway_carrier:scale(6, 60)}}].

all() -> [{group, Group} || {Group, _, _} <- groups()].

groups() ->
    [{beamway_shm, [], [first_connection_without_descriptors, every_fault, the_oracle_sees, schedules_of_old, fresh_schedules]
                           ++ [bad_drivers || beamway_carrier:is_long()]},
     {beamway_tcp, [], [first_connection_without_descriptors, every_fault]},
     {inet_tcp, [], [every_fault]}]
        ++ [{Carrier, [], [first_connection_without_descriptors, every_fault]} || beamway_carrier:is_long(), Carrier <- [beamway_encrypted, beamway_tls_shm, beamway_tls]].

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

init_per_testcase(every_fault, Config) ->
    beamway_peer:unless_wrapped("libfaketime and a sanitizer's runtime cannot both be first", Config);
init_per_testcase(_Case, Config) ->
    Config.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

carrier(Config) ->
    case beamway_carrier:carrier(Config) of
        beamway_shm -> shm;
        beamway_tcp -> tcp;
        beamway_encrypted -> encrypted;
        beamway_tls_shm -> tls_shm;
        beamway_tls -> tls;
        inet_tcp -> stock
    end.

%% Each fault takes effect, and has no consequences other than those that are allowed.
every_fault(Config) ->
    Faults = [{silence, 3, 2, 1500} || carrier(Config) =/= stock] % needs the driver
        ++ [{stop, 2, 1500}, {fill_ring, 3, 1}, {clock_jump, 2, -3600}, {no_descriptors, 1, 500}, {cut_tcp, 2, 3},
            {slow_reader, 3, 700}, {kill, 1}, {wait, 300}, {restart, 1, #{ring_bytes => 65536}},
            {restart, 2, #{wire => another}}],
    Schedule = #{nodes => [#{ring_bytes => 65536}, #{poll_us => 0}, #{}], faults => Faults},
    #{faults := Executed} = Result = beamway_nemesis:run(Schedule, carrier(Config)),
    ok = clean(Schedule, Result),
    %% Restarting a dead node only starts it, so it does not count as a fault.
    Wanted = lists:sort(Faults -- [{wait, 300}, {restart, 1, #{ring_bytes => 65536}}]),
    Wanted = lists:sort([Fault || #{fault := Fault, effect := Effect} <- Executed, Effect =/= false]),
    #{messages := Messages, calls := #{answered := Calls}, spoken := Spoken, nodedowns := Downs} = Result,
    true = lists:all(fun(Count) -> Count > 0 end, [Calls, Spoken, Downs | maps:values(Messages)]),
    [Cut] = [Effect || #{fault := {cut_tcp, _, _}, effect := Effect} <- Executed],
    Cut = case carrier(Config) of stock -> true; _ -> paused end.

%% A node that cannot open any file, not even its own code, makes its first call. It logs the failure, survives, and connects later. (A stock node
%% crashes, because its net_kernel calls dist_util and crashes if that module cannot be loaded.)
first_connection_without_descriptors(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    {ok, Peer, _} = beamway_peer:start(Carrier),
    {ok, Other, Node} = beamway_peer:start(Carrier),
    {ok, _} = beamway_peer:call(Peer, inet, getaddr, ["localhost", inet]),
    true = beamway_nemesis_faults:exhaust(Peer),
    false = beamway_peer:call(Peer, net_kernel, connect_node, [Node]),
    ok = beamway_nemesis_faults:undo({no_descriptors, 1, 0}, #{1 => #{os_pid => beamway_peer:os_pid(Peer)}}),
    ok = beamway_peer:connect_both(Carrier, Peer, Other).

%% The oracle must find a disconnect that no fault of the schedule explains.
the_oracle_sees(Config) ->
    Self = self(),
    Meddler = spawn(fun() -> disconnect_some(Self) end),
    #{findings := Findings} = beamway_nemesis:run(#{nodes => [#{}, #{}], faults => [{wait, 6000}]}, carrier(Config)),
    exit(Meddler, kill),
    true = lists:keymember(false_nodedown, 1, Findings).

%% Disconnects repeatedly, because the first disconnect may come before the oracle starts counting.
disconnect_some(Owner) ->
    _ = [is_disconnected(Pid) || Pid <- beamway_peer:started()],
    receive after 500 -> ok end,
    is_process_alive(Owner) andalso disconnect_some(Owner).

is_disconnected(Peer) ->
    try
        true = is_pid(beamway_peer:call(Peer, erlang, whereis, [beamway_nemesis_hub])),
        beamway_peer:call(Peer, erlang, disconnect_node, [hd(beamway_peer:call(Peer, erlang, nodes, []))])
    catch
        _:_ -> false
    end.

%% The oracle must detect drivers that occasionally lose a frame, deliver one twice, or forget to ring the doorbell.
bad_drivers(Config) ->
    Output = <<"        is_read = give_next(pump, run, used, &frame);\n">>,
    Twice = <<"        if (frame.kind == BW_FRAME_DATA && pump->frames_in % 5000 == 4999)\n"
              "            (void)give_small(pump, run, used + frame.head, frame.len);\n", Output/binary>>,
    Lose = <<"        if (frame.kind != BW_FRAME_DATA || pump->frames_in % 5000 != 4999)\n    ", Output/binary>>,
    Ring = <<"    signal_event(shm->peer_event);\n">>,
    Forget = <<"    if (shm->doorbells_out < 3000)\n        signal_event(shm->peer_event);\n">>,
    [bad_driver(Config, File, Good, Bad, Kind)
     || {File, Good, Bad, Kind} <- [{"driver/pump_in.c", Output, Lose, lost}, {"driver/pump_in.c", Output, Twice, duplicated},
                                    {"link/shm/carrier.c", Ring, Forget, false_nodedown}]].

bad_driver(Config, File, Good, Bad, Kind) ->
    Dir = filename:join(proplists:get_value(priv_dir, Config), atom_to_list(Kind)),
    Ebin = beamway_peer:ebin(),
    ok = file:make_dir(Dir),
    "" = os:cmd(lists:concat(["cp -r ", filename:join(Ebin, "../../../native"), " ", Dir, "/native && rm -rf ", Dir, "/native/build"])),
    Source = filename:join([Dir, "native", File]),
    {ok, Text} = file:read_file(Source),
    [Before, After] = binary:split(Text, Good),
    ok = file:write_file(Source, [Before, Bad, After]),
    Made = os:cmd(lists:concat(["make -C ", Dir, "/native --no-print-directory OUT=", Dir, "/beamway/priv/beamway_drv.so driver 2>&1"])),
    true = filelib:is_file(filename:join([Dir, "beamway", "priv", "beamway_drv.so"])) orelse Made,
    "" = os:cmd(lists:concat(["cp -r ", Ebin, " ", Dir, "/beamway/ebin"])),
    Schedule = #{nodes => [#{poll_us => 0}, #{poll_us => 0}], faults => [{wait, 10000}]},
    #{findings := Findings} = beamway_nemesis:run(Schedule, carrier(Config), filename:join([Dir, "beamway", "ebin"])),
    ct:log("~ts: ~0tP", [Bad, Findings, 100]),
    true = lists:keymember(Kind, 1, Findings).

%% Schedules that have failed in the past.
schedules_of_old(Config) ->
    Files = filelib:wildcard(filename:join(proplists:get_value(data_dir, Config), "*.schedule")),
    true = Files =/= [],
    lists:foreach(fun(File) ->
                          {ok, Schedule} = beamway_nemesis_schedule:read(File),
                          ct:log("~ts", [File]),
                          ok = clean(Schedule, beamway_nemesis:run(Schedule, carrier(Config)))
                  end, Files).

%% The seed differs each time.
fresh_schedules(Config) ->
    Seed = erlang:system_time(millisecond) rem 1000000000,
    beamway_runner:say("nemesis: first seed ~b", [Seed]),
    Until = erlang:monotonic_time(millisecond) + 1000 * beamway_carrier:scale(15, 1800),
    fresh_schedules(Seed, Until, carrier(Config)).

fresh_schedules(Seed, Until, Carrier) ->
    Schedule = beamway_nemesis_schedule:generate(Seed, #{max_nodes => 4, max_faults => 6}),
    Result = beamway_nemesis:run(Schedule, Carrier),
    ct:log("seed ~b: ~p", [Seed, maps:remove(findings, Result)]),
    ok = clean(Schedule, Result),
    erlang:monotonic_time(millisecond) >= Until orelse fresh_schedules(Seed + 1, Until, Carrier).

clean(_, #{findings := []}) -> ok;
clean(Schedule, #{findings := Findings}) -> error({findings, Findings, Schedule}).
