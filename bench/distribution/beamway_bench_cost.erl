%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench cost': how much work does a message cause? It counts system calls, context switches, wake-ups, doorbells, copied bytes and CPU time per
%% 64-byte message, with 1 and 100 pairs of processes. Everything except the times is a count, so it is also valid on a slow or noisy machine.
%%
%% The counts cover both nodes. A wake-up is a voluntary context switch: a thread slept until something woke it. A doorbell is a wake-up call of the
%% Beamway link or, over TCP, a send; stock TCP has no doorbells. Copied bytes are those that the carrier copies, once into the link and once out of
%% it. Over TCP the kernel copies them, and over shared memory Beamway does. The copies that the VM makes above the carrier are the same for all
%% contenders.
-module(beamway_bench_cost).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1, finish/2]).
%% Called by the demo.
-export([sample/1, per_call/3]).

-export_type([sample/0]).

-type sample() :: #{calls := non_neg_integer(), voluntary := non_neg_integer(), forced := non_neg_integer(),
                    bytes := non_neg_integer(), doorbells := non_neg_integer(),
                    %% CPU time, in microseconds
                    user := non_neg_integer(), kernel := non_neg_integer()}.

-define(PAIRS, [1, 100]).
-define(BYTES, 64).

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()}.
prepare(_, Speed) ->
    Settings = case Speed of
                   quick -> #{warm_ms => 200, window_ms => 500};
                   full -> #{warm_ms => 500, window_ms => 1500}
               end,
    {ok, Settings#{warnings => beamway_bench_syscalls:warnings()}}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{speed := Speed} = Settings) ->
    [#{nodes => 2, contenders => beamway_bench_contender:and_rdma([tcp, tcp_tuned, beamway, beamway_tcp]),
       directions => case Speed of quick -> [forward]; full -> [forward, reverse] end,
       measure => fun(Cluster) -> measure(Cluster, Settings) end}].

measure(Cluster, Settings) ->
    maps:from_list(lists:append([measure_pairs(Cluster, Pairs, Settings) || Pairs <- ?PAIRS])).

measure_pairs(#{members := [Asking | _]} = Cluster, Pairs, #{warm_ms := WarmMs, window_ms := Ms}) ->
    Load = #{kind => echo, callers => Pairs, targets => beamway_bench_nodes:names(Cluster), bytes => ?BYTES},
    ok = beamway_bench_nodes:call(Asking, beamway_bench_load, start, [Load]),
    Rest = fun() -> beamway_bench_nodes:call(Asking, beamway_bench_load, window, [Ms], Ms + 30000) end,
    _ = beamway_bench_nodes:call(Asking, beamway_bench_load, window, [WarmMs], WarmMs + 30000),
    {Before, After} = around(Asking, Cluster, Rest),
    Counted = beamway_bench_syscalls:during(beamway_bench_nodes:os_pids(Cluster),
                                            fun() -> around(Asking, Cluster, Rest) end),
    ok = beamway_bench_nodes:call(Asking, beamway_bench_load, stop, []),
    figures(Pairs, Before, After, Counted).

around(Asking, Cluster, Rest) ->
    Before = sample([Asking], Cluster),
    _ = Rest(),
    {Before, sample([Asking], Cluster)}.

%% @doc Returns the current counts of all nodes, including their calls.
-spec sample(beamway_bench_nodes:cluster()) -> sample().
sample(#{members := Members} = Cluster) ->
    sample(Members, Cluster).

sample(Callers, Cluster) ->
    Switches = [beamway_bench_os:switches(OsPid) || OsPid <- beamway_bench_nodes:os_pids(Cluster)],
    Times = [beamway_bench_os:cpu_us(OsPid) || OsPid <- beamway_bench_nodes:os_pids(Cluster)],
    Counters = beamway_bench_nodes:counters(Cluster),
    Counters#{calls => lists:sum(beamway_bench_nodes:all(Callers, beamway_bench_load, calls, [])),
              voluntary => lists:sum([N || #{voluntary := N} <- Switches]),
              forced => lists:sum([N || #{forced := N} <- Switches]),
              user => lists:sum([N || #{user := N} <- Times]),
              kernel => lists:sum([N || #{kernel := N} <- Times])}.

%% @doc Returns by how much a count has risen per call between two samples.
-spec per_call(Count :: fun((sample()) -> number()), Before :: sample(), After :: sample()) -> float().
per_call(Count, #{calls := Earlier} = Before, #{calls := Later} = After) when Later > Earlier ->
    (Count(After) - Count(Before)) / (Later - Earlier);
per_call(_, _, _) -> error(no_call_ended).

%% A call consists of one message in each direction.
figures(Pairs, Before, After, Counted) ->
    PerMessage = fun(Count) -> per_call(Count, Before, After) / 2 end,
    [{key(switches, Pairs), PerMessage(fun(#{voluntary := V, forced := F}) -> V + F end)},
     {key(wakeups, Pairs), PerMessage(fun(#{voluntary := V}) -> V end)},
     {key(doorbells, Pairs), PerMessage(fun(#{doorbells := D}) -> D end)},
     {key(copied, Pairs), PerMessage(fun(#{bytes := B}) -> B end)},
     {key(user, Pairs), PerMessage(fun(#{user := Us}) -> Us end)},
     {key(kernel, Pairs), PerMessage(fun(#{kernel := Us}) -> Us end)}
     | syscalls(Pairs, Counted)].

syscalls(_, {not_counted, _, _}) -> [];
syscalls(Pairs, {counted, Calls, _, {#{calls := Before}, #{calls := After}}}) when After > Before ->
    [{key(syscalls, Pairs), Calls / (2 * (After - Before))}].

key(What, Pairs) ->
    unicode:characters_to_binary([words(What), case Pairs of 1 -> ", 1 pair"; _ -> io_lib:format(", ~b pairs", [Pairs]) end]).

words(syscalls) -> "system calls";
words(switches) -> "context switches";
words(wakeups) -> "wake-ups";
words(doorbells) -> "doorbells";
words(copied) -> "bytes copied";
words(user) -> "user time";
words(kernel) -> "kernel time".

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{}) ->
    [metric(Prefix, What, Pairs, Own)
     || {Prefix, Own} <- [{"cost_shm", beamway}, {"cost_rdma", beamway_rdma}, {"cost_tcp", beamway_tcp}], Pairs <- lists:reverse(?PAIRS),
        What <- [syscalls, switches, wakeups, doorbells, copied, user, kernel]].

metric(Prefix, What, Pairs, Own) ->
    Suffix = case Pairs of 100 -> ""; _ -> "_" ++ integer_to_list(Pairs) end,
    #{name => iolist_to_binary([Prefix, "_", atom_to_list(What), Suffix]), better => lower, key => key(What, Pairs),
      unit => unit(What), contender => Own,
      baselines => case What of doorbells -> []; _ -> [tcp, tcp_tuned] end}.

unit(copied) -> <<"B/message">>;
unit(Time) when Time =:= user; Time =:= kernel -> <<"us/message">>;
unit(_) -> <<"1/message">>.

%% @private On a host without an RDMA device, prints what was measured in the virtual machine instead.
-spec finish(beamway_bench_report:result(), map()) -> ok.
finish(_, #{json := true}) -> ok;
finish(_, #{}) ->
    case beamway_bench_contender:and_rdma([]) =/= [] orelse beamway_bench_store:read(beamway_bench_store:file("soft-roce/cost")) of
        true -> ok;
        {ok, Stored} ->
            io:format("~nOver rdma, in a virtual machine with soft-RoCE, ~ts (make bench-rdma measures it anew):~n~ts",
                      [beamway_bench_store:age(Stored), beamway_bench_store:to_text(<<"cost_rdma_">>, Stored)]);
        {error, Why} -> beamway_bench_text:note("no figures of rdma: ~ts", [Why])
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

sample_of(Calls, Voluntary, Forced, Bytes, Doorbells) ->
    #{calls => Calls, voluntary => Voluntary, forced => Forced, bytes => Bytes, doorbells => Doorbells,
      user => 3 * Calls, kernel => 2 * Calls}.

figures_test() ->
    Before = sample_of(100, 10, 1, 1000, 5),
    After = sample_of(200, 210, 21, 41000, 55),
    Figures = maps:from_list(figures(1, Before, After, {counted, 800, tracepoint, {Before, After}})),
    ?assertEqual(#{<<"context switches, 1 pair">> => 1.1, <<"wake-ups, 1 pair">> => 1.0, <<"doorbells, 1 pair">> => 0.25,
                   <<"bytes copied, 1 pair">> => 200.0, <<"user time, 1 pair">> => 1.5,
                   <<"kernel time, 1 pair">> => 1.0, <<"system calls, 1 pair">> => 4.0}, Figures).

nothing_called_is_no_figure_test() ->
    Sample = sample_of(1, 1, 1, 1, 1),
    ?assertError(no_call_ended, figures(1, Sample, Sample, {not_counted, "", x})).

metrics_test() ->
    Names = [Name || #{name := Name} <- metrics(#{})],
    ?assertEqual([], [<<"cost_shm_syscalls">>, <<"cost_shm_syscalls_1">>, <<"cost_shm_doorbells">>, <<"cost_tcp_syscalls">>] -- Names),
    ?assertEqual(length(Names), length(lists:usort(Names))).
-endif.
