%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench pingpong': how long does the round trip of a message take between two processes?
%%
%% It measures messages of several sizes. A 64-byte message is also measured while 1 MB messages are sent in both directions between the nodes. It
%% is also measured with and without `poll_us': while nothing else runs (quiet), and while processes that never sleep, one per processor, run inside
%% the nodes (busy). Open MPI is measured as well: it polls shared memory without sleeping, and so shows what the machine itself can do.
%%
%% Last comes the ping-pong with which Proto.Actor compares itself (protoactor-go, examples/remote-benchmark): one process sends a million pings,
%% without waiting, to a process on the other node. That process answers each ping with a pong, and a third process counts the pongs. As there, the
%% rate is two million messages divided by the time until the last pong, and there are no payloads. A quick run sends fewer.
-module(beamway_bench_pingpong).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).

-define(SIZES, [64, 4096, 1 bsl 20]).
-define(BURNERS, beamway_bench_burners).
-define(BULK, beamway_bench_bulk).
-define(BESIDE, <<"round trip 64 B, beside 1 MB">>).
-define(MILLION, <<"a million pings without waiting, and their pongs">>).
-define(PINGS_MS, 300000).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{mpi, undefined, "mpi", undefined, "fail if Open MPI cannot be measured (otherwise it is left out with a note)"},
     {no_mpi, undefined, "no-mpi", undefined, "leave Open MPI out"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    Settings = case Speed of
                   quick -> #{warm_ms => 50, window_ms => 150, pings => 50000};
                   full -> #{warm_ms => 300, window_ms => 1000, pings => 1000000}
               end,
    case {proplists:get_bool(mpi, Given), proplists:get_bool(no_mpi, Given)} of
        {true, true} -> {error, "--mpi and --no-mpi: choose one"};
        {false, true} -> {ok, Settings#{mpi => none}};
        {Wanted, false} -> with_mpi(beamway_bench_mpi:find(), Wanted, Settings)
    end.

with_mpi({ok, Mpi}, _, Settings) -> {ok, Settings#{mpi => Mpi}};
with_mpi({error, Why}, true, _) -> {error, ["--mpi: ", Why]};
with_mpi({error, Why}, false, Settings) -> {ok, Settings#{mpi => none, warnings => [["no row for Open MPI: ", Why]]}}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{speed := Speed} = Settings) ->
    Pair = #{nodes => 2, directions => [forward, reverse]},
    [Pair#{contenders => beamway_bench_contender:and_rdma([tcp, tcp_tuned, tcp_spin, tcp_mptcp, unix, tls, beamway, beamway_tcp, beamway_tls]),
           measure => fun(Cluster) ->
                              maps:merge(sizes(Cluster, ?SIZES, Settings), beside_bulk(Cluster, Settings))
                      end},
     Pair#{contenders => [tcp, tcp_tuned, beamway_tcp, beamway_poll_off, beamway_poll],
           directions := case Speed of quick -> [forward]; full -> [forward, reverse] end,
           measure => fun(Cluster) -> quiet_and_busy(Cluster, Settings) end},
     Pair#{contenders => [tcp, tcp_tuned, tcp_mptcp, unix, beamway, beamway_tcp], directions := [forward], measure => fun(Cluster) -> million(Cluster, Settings) end}]
        ++ [#{nodes => 0, contenders => [openmpi], directions => [none],
              measure => fun(none) -> mpi(Settings) end} || maps:get(mpi, Settings) =/= none].

sizes(Cluster, Sizes, Settings) ->
    maps:from_list(lists:append([figures(size_key(Size), round_trips(Cluster, Size, Settings)) || Size <- Sizes])).

figures(Key, Counts) ->
    [{Key, p(50, Counts)}, {p99(Key), p(99, Counts)}].

p(Percent, Counts) ->
    case beamway_bench_hist:percentile(Percent, Counts) of
        none -> error(no_call_ended);
        Nanoseconds -> Nanoseconds / 1000
    end.

%% The first node sends the requests, whichever side opened the connection.
round_trips(#{members := [Asking | _]} = Cluster, Size, #{warm_ms := WarmMs, window_ms := Ms}) ->
    [_, Answering] = beamway_bench_nodes:names(Cluster),
    Call = fun(Function, Args, Timeout) ->
                   beamway_bench_nodes:call(Asking, beamway_bench_load, Function, Args, Timeout)
           end,
    ok = Call(start, [#{kind => echo, callers => 1, targets => [Answering], bytes => Size}], 30000),
    _ = Call(window, [WarmMs], WarmMs + 30000),
    #{counts := Counts} = Call(window, [Ms], Ms + 30000),
    ok = Call(stop, [], 30000),
    Counts.

million(#{members := [Asking | _]} = Cluster, #{pings := Count}) ->
    [_, Answering] = beamway_bench_nodes:names(Cluster),
    #{?MILLION => 2 * Count * 1.0e9 / beamway_bench_nodes:call(Asking, beamway_bench_load, pings, [Answering, Count], ?PINGS_MS)}.

quiet_and_busy(Cluster, Settings) ->
    Quiet = figures(<<"round trip 64 B, quiet">>, round_trips(Cluster, 64, Settings)),
    ok = start_burners(Cluster),
    %% The window is twice as long, because the kernel's time slices of a few milliseconds make these times vary more.
    Busy = figures(<<"round trip 64 B, busy">>,
                   round_trips(Cluster, 64, maps:update_with(window_ms, fun(Ms) -> 2 * Ms end, Settings))),
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, stop, [?BURNERS]),
    maps:from_list(Quiet ++ Busy).

%% Measures while two processes send 1 MB messages to the answering node and back.
beside_bulk(#{members := [_, Answering]} = Cluster, Settings) ->
    [Asking, _] = beamway_bench_nodes:names(Cluster),
    Bulk = #{kind => echo, callers => 2, targets => [Asking], bytes => 1 bsl 20, name => ?BULK},
    ok = beamway_bench_nodes:call(Answering, beamway_bench_load, start, [Bulk], 30000),
    Counts = round_trips(Cluster, 64, Settings),
    ok = beamway_bench_nodes:call(Answering, beamway_bench_load, stop, [?BULK], 30000),
    maps:from_list(figures(?BESIDE, Counts)).

%% Starts one busy process per processor, distributed across the nodes; each node gets at least one.
start_burners(#{members := Members} = Cluster) ->
    Each = max(1, beamway_bench_os:processors() div length(Members)),
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, start,
                                [#{kind => burn, callers => Each, name => ?BURNERS}]),
    ok.

mpi(#{mpi := Mpi, window_ms := Ms}) ->
    Rows = beamway_bench_mpi:run(Mpi, Ms, ?SIZES),
    maps:from_list(lists:append([[{size_key(Size), P50 / 1000}, {p99(size_key(Size)), P99 / 1000}]
                                 || {Size, P50, P99} <- Rows])).

size_key(Size) -> unicode:characters_to_binary(["round trip ", beamway_bench_text:size_words(Size)]).

p99(Key) -> <<Key/binary, ", p99">>.

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{}) ->
    lists:append([with_p99(Name, size_key(Size), Own, Baselines)
                  || {Name, Size, Own, Baselines} <-
                         [{<<"rtt_64">>, 64, beamway, [tcp, tcp_tuned, tcp_spin, tcp_mptcp, unix, openmpi]},
                          {<<"rtt_4k">>, 4096, beamway, [tcp, tcp_tuned, tcp_spin, tcp_mptcp, unix, openmpi]},
                          {<<"rtt_1m">>, 1 bsl 20, beamway, [tcp, tcp_tuned, tcp_spin, tcp_mptcp, unix, openmpi]},
                          {<<"rtt_64_rdma">>, 64, beamway_rdma, [tcp, tcp_tuned]},
                          {<<"rtt_1m_rdma">>, 1 bsl 20, beamway_rdma, [tcp, tcp_tuned]},
                          {<<"tcp_link_rtt_64">>, 64, beamway_tcp, [tcp, tcp_tuned, tcp_mptcp]},
                          {<<"tls_rtt_64">>, 64, beamway_tls, [tls, beamway_tcp]}]])
        ++ lists:append([with_p99(Name, Key, beamway_poll, [tcp, beamway_poll_off])
                         || {Name, Key} <- [{<<"rtt_64_quiet">>, <<"round trip 64 B, quiet">>},
                                            {<<"rtt_64_busy">>, <<"round trip 64 B, busy">>}]])
        ++ with_p99(<<"tcp_link_rtt_64_busy">>, <<"round trip 64 B, busy">>, beamway_tcp, [tcp, tcp_tuned])
        %% Tuned TCP was not tuned for this; see beamway_bench_beside.
        ++ with_p99(<<"rtt_64_beside_1m">>, ?BESIDE, beamway, [tcp, unix])
        ++ with_p99(<<"tcp_link_rtt_64_beside_1m">>, ?BESIDE, beamway_tcp, [tcp])
        ++ with_p99(<<"tls_rtt_64_beside_1m">>, ?BESIDE, beamway_tls, [tls, beamway_tcp])
        ++ [#{name => Name, unit => <<"messages/s">>, better => higher, key => ?MILLION, contender => Own, baselines => Baselines}
            || {Name, Own, Baselines} <- [{<<"pings">>, beamway, [tcp, tcp_tuned, tcp_mptcp, unix]}, {<<"tcp_link_pings">>, beamway_tcp, [tcp, tcp_tuned, tcp_mptcp]}]].

with_p99(Name, Key, Own, Baselines) ->
    Metric = #{name => Name, unit => <<"us">>, better => lower, key => Key, contender => Own, baselines => Baselines},
    [Metric, Metric#{name := <<Name/binary, "_p99">>, key := p99(Key)}].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics_test() ->
    Names = [Name || #{name := Name} <- metrics(#{})],
    Wanted = [<<"rtt_64">>, <<"rtt_4k">>, <<"rtt_1m">>, <<"tcp_link_rtt_64">>, <<"tls_rtt_64">>, <<"rtt_64_quiet">>,
              <<"rtt_64_busy">>, <<"tcp_link_rtt_64_busy">>, <<"tls_rtt_64_beside_1m">>, <<"pings">>, <<"tcp_link_pings">>],
    ?assertEqual([], Wanted -- Names).

mpi_is_left_out_or_asked_for_test_() ->
    [?_assertMatch({ok, #{mpi := none}}, prepare([no_mpi], quick)), ?_assertMatch({error, _}, prepare([mpi, no_mpi], quick)),
     ?_assertMatch({error, _}, with_mpi({error, "missing"}, true, #{})),
     ?_assertMatch({ok, #{mpi := none, warnings := [_]}}, with_mpi({error, "missing"}, false, #{}))].
-endif.
