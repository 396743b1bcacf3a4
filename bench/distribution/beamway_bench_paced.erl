%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench paced': what do calls cost if they arrive at a given rate, as in most clusters, rather than as fast as the nodes can handle them?
%%
%% A fixed number of calls per second goes to one peer, or in turn to 20 or 100 peers. The results per call are the CPU time of all nodes, the context
%% switches, the system calls and the duration. For a link without calls, the result is the CPU time that its nodes use per second, most of which an
%% idle node without links would also use. The lower bound is measured with two plain processes that wake each other through eventfds, with the
%% message in shared memory.
-module(beamway_bench_paced).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1]).

-define(RATES, [1, 10, 100, 1000, 4000]).
%% How many calls per second one caller makes, which is limited because timers have millisecond resolution.
-define(OF_ONE, 250).
-define(PEERS_RATE, 1000).
-define(BYTES, 64).

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()}.
prepare(_, Speed) ->
    Settings = case Speed of
                   quick -> #{ms => 1000, peers => [20]};
                   full -> #{ms => 3000, peers => [20, 100]}
               end,
    {ok, Settings#{warnings => beamway_bench_syscalls:warnings()}}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{peers := Peers} = Settings) ->
    [#{nodes => 2, contenders => [tcp, tcp_tuned, beamway, beamway_tcp, tls, beamway_tls], directions => [forward],
       measure => fun(Cluster) -> to_one(Cluster, Settings) end}]
        ++ [#{nodes => 0, contenders => [Name], directions => [none], measure => fun(none) -> to_many(Name, Count, Settings) end}
            || Count <- Peers, Name <- [tcp, beamway, beamway_tcp]]
        ++ [#{nodes => 0, contenders => [eventfd], directions => [none], measure => fun(none) -> without_nodes(Settings) end}].

to_one(#{members := Members} = Cluster, #{ms := Ms} = Settings) ->
    ok = ready(Cluster),
    Idle = idle(Members, Ms),
    maps:from_list([{idle_key(), Idle} | lists:append([rate(Rate, words(Rate), Members, beamway_bench_nodes:names(Cluster), Settings) || Rate <- ?RATES])]).

%% Makes calls until the nodes have started, their connections are set up, and the links have adapted to the calls.
ready(#{members := [Asking | _]} = Cluster) ->
    ok = beamway_bench_nodes:call(Asking, beamway_bench_load, start, [#{kind => echo, callers => 1, targets => beamway_bench_nodes:names(Cluster), bytes => ?BYTES}]),
    _ = beamway_bench_nodes:call(Asking, beamway_bench_load, window, [500]),
    beamway_bench_nodes:call(Asking, beamway_bench_load, stop, []).

to_many(Name, Count, #{contenders := Contenders, ms := Ms} = Settings) ->
    Epmd = beamway_bench_nodes:start_epmd(),
    Clusters = beamway_bench_nodes:start_many(Epmd, beamway_bench_contender:small(maps:get(Name, Contenders)), Count + 1),
    [Asking | _] = Members = lists:append([Batch || #{members := Batch} <- Clusters]),
    Names = [Node || #{name := Node} <- Members],
    _ = beamway_bench_nodes:all(Members, erlang, set_cookie, [?MODULE]),
    [] = beamway_bench_nodes:call(Asking, beamway_bench_mesh, connect, [tl(Names)], 60000),
    Key = iolist_to_binary(io_lib:format("~ts to ~b peers in turn", [words(?PEERS_RATE), Count])),
    Figures = rate(?PEERS_RATE, Key, Members, Names, Settings#{ms := 2 * Ms}),
    ok = lists:foreach(fun beamway_bench_nodes:stop/1, Clusters),
    ok = beamway_bench_nodes:stop_epmd(Epmd),
    maps:from_list(Figures).

%% Returns the CPU time in microseconds that the nodes use per second.
idle(Members, Ms) ->
    Before = cpu_us(Members),
    receive after 2 * Ms -> ok end,
    (cpu_us(Members) - Before) * 1000 / (2 * Ms).

rate(Rate, Key, [Asking | _] = Members, Names, #{ms := Ms}) ->
    Callers = max(1, Rate div ?OF_ONE),
    ok = beamway_bench_nodes:call(Asking, beamway_bench_load, start,
                                  [#{kind => paced, callers => Callers, every_us => Callers * 1000000 div Rate, targets => Names, bytes => ?BYTES}], 60000),
    Window = fun(Lasts) -> beamway_bench_nodes:call(Asking, beamway_bench_load, window, [Lasts], Lasts + 30000) end,
    %% At one call per second, the window is only twice as long, because it would take too long to make as many calls as in the other windows.
    Lasts = case Rate of 1 -> 2 * Ms; _ -> Ms end,
    _ = Window(max(200, 2000 div Rate)),
    {CpuBefore, SwitchesBefore} = {cpu_us(Members), switches(Members)},
    #{counts := Counts, elapsed_ns := Ns} = Window(Lasts),
    {Cpu, Switches} = {cpu_us(Members) - CpuBefore, switches(Members) - SwitchesBefore},
    Counted = case Rate >= 100 of
                  true -> beamway_bench_syscalls:during([OsPid || #{os_pid := OsPid} <- Members], fun() -> Window(Ms div 2) end);
                  false -> none
              end,
    ok = beamway_bench_nodes:call(Asking, beamway_bench_load, stop, []),
    Calls = beamway_bench_hist:count(Counts),
    %% If a carrier cannot keep up with a rate, it is left out of the comparison at that rate.
    Calls >= Rate * Ns div 1000000000 * 9 div 10 - 1 orelse error({pace_not_kept, Rate, Calls, Ns}),
    [{key(cpu, Key), Cpu / Calls}, {key(switches, Key), Switches / Calls}, {key(p50, Key), beamway_bench_hist:percentile(50, Counts) / 1000}]
        ++ [{key(p99, Key), beamway_bench_hist:percentile(99, Counts) / 1000} || Rate >= 100]
        ++ case Counted of
               {counted, SystemCalls, _, #{counts := Meanwhile}} -> [{key(syscalls, Key), SystemCalls / beamway_bench_hist:count(Meanwhile)}];
               _ -> []
           end.

cpu_us(Members) -> beamway_bench_os:sum_thread_us([OsPid || #{os_pid := OsPid} <- Members]).

switches(Members) -> lists:sum([V + F || #{os_pid := OsPid} <- Members, #{voluntary := V, forced := F} <- [beamway_bench_os:switches(OsPid)]]).

%% ---- the lower bound

without_nodes(#{ms := Ms}) ->
    {ok, Program} = beamway_bench_tools:compile("paced_floor", "cc"),
    maps:from_list(lists:append([at_rate(Program, Rate, Ms) || Rate <- ?RATES, Rate >= 100])).

at_rate(Program, Rate, Ms) ->
    {0, Text} = beamway_bench_tools:run(Program, [integer_to_list(Rate), integer_to_list(Ms)], Ms + 10000),
    [Cpu, P50, P99] = [binary_to_float(Word) || Word <- binary:split(string:trim(iolist_to_binary(Text)), <<" ">>, [global])],
    [{key(cpu, words(Rate)), Cpu}, {key(p50, words(Rate)), P50}, {key(p99, words(Rate)), P99}].

%% ---- output

words(1) -> <<"1 call a second">>;
words(Rate) -> iolist_to_binary(io_lib:format("~b calls a second", [Rate])).

idle_key() -> <<"no calls: processor time in a second">>.

key(What, Of) -> iolist_to_binary([Of, ": ", case What of
                                                  cpu -> "processor time for each";
                                                  switches -> "context switches for each";
                                                  syscalls -> "system calls for each";
                                                  p50 -> "p50";
                                                  p99 -> "p99"
                                              end]).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{peers := Peers}) ->
    [metric([Name, "_idle"], <<"us/s">>, idle_key(), Own, Baselines) || {Name, Own, Baselines} <- carriers()]
        ++ [metric([Name, "_", atom_to_list(What), "_", integer_to_list(Rate)], unit(What), key(What, words(Rate)), Own, Baselines ++ [eventfd || Own =:= beamway, Rate >= 100, What =:= cpu orelse What =:= p50])
            || {Name, Own, Baselines} <- carriers(), Rate <- ?RATES, What <- [cpu, p50] ++ [More || Rate >= 100, More <- [p99, switches, syscalls]]]
        ++ [metric([Name, "_", atom_to_list(What), "_peers_", integer_to_list(Count)], unit(What),
                   key(What, io_lib:format("~ts to ~b peers in turn", [words(?PEERS_RATE), Count])), Own, [tcp])
            || {Name, Own} <- [{"paced", beamway}, {"paced_tcp", beamway_tcp}], Count <- Peers, What <- [cpu, p50, p99, switches, syscalls]].

carriers() -> [{"paced", beamway, [tcp, tcp_tuned]}, {"paced_tcp", beamway_tcp, [tcp, tcp_tuned]}, {"paced_tls", beamway_tls, [tls, beamway_tcp]}].

metric(Name, Unit, Key, Contender, Baselines) ->
    #{name => iolist_to_binary(Name), unit => Unit, better => lower, key => iolist_to_binary(Key), contender => Contender, baselines => Baselines}.

unit(What) when What =:= switches; What =:= syscalls -> <<"1/call">>;
unit(_) -> <<"us">>.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics_test() ->
    Names = [Name || #{name := Name} <- metrics(#{peers => [20, 100]})],
    ?assertEqual([], [<<"paced_cpu_1">>, <<"paced_tcp_p50_100">>, <<"paced_tls_p99_4000">>, <<"paced_tcp_cpu_peers_100">>, <<"paced_idle">>] -- Names),
    ?assertEqual(lists:usort(Names), lists:sort(Names)),
    %% Each TLS metric is also compared with Beamway over TCP, which shows what encryption costs a single call.
    ?assert(lists:all(fun(#{name := Name, baselines := Baselines}) -> binary:match(Name, <<"_tls_">>) =:= nomatch orelse lists:member(beamway_tcp, Baselines) end,
                      metrics(#{peers => []}))).
-endif.
