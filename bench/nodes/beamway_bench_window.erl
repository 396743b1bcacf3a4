%% SPDX-License-Identifier: Apache-2.0
%% @doc Counts the operations that the nodes of a cluster complete within a window of time, and measures the CPU time that all nodes use for them.
-module(beamway_bench_window).

-export([start/3, stop/1, of_calls/2, of_stream/3, take/2, cost/1, rate/1]).
-export_type([t/0]).

-define(CALLERS, 100).
-define(BYTES, 64).

-type t() :: {CpuUs :: number(), Count :: number(), Ns :: pos_integer()}.

%% @doc Starts 100 callers on each node, and waits `WarmMs' milliseconds.
-spec start(echo | traced, beamway_bench_nodes:cluster(), WarmMs :: non_neg_integer()) -> ok.
start(Kind, Cluster, WarmMs) ->
    Load = #{kind => Kind, callers => ?CALLERS, targets => beamway_bench_nodes:names(Cluster), bytes => ?BYTES},
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, start, [Load]),
    receive after WarmMs -> ok end.

%% @doc Stops the callers.
-spec stop(beamway_bench_nodes:cluster()) -> ok.
stop(Cluster) ->
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, stop, []),
    ok.

%% @doc Counts the calls of all nodes.
-spec of_calls(beamway_bench_nodes:cluster(), Ms :: pos_integer()) -> t().
of_calls(Cluster, Ms) ->
    Calls = fun() -> lists:sum(beamway_bench_nodes:all(Cluster, beamway_bench_load, calls, [])) end,
    take(Cluster, fun() -> Before = Calls(), receive after Ms -> Calls() - Before end end).

%% @doc Counts the messages of this size from the first node to the second ({@link beamway_bench_stream:messages/3}).
-spec of_stream(beamway_bench_nodes:cluster(), Bytes :: pos_integer(), Ms :: pos_integer()) -> t().
of_stream(Cluster, Bytes, Ms) -> take(Cluster, fun() -> beamway_bench_stream:messages(Cluster, Bytes, Ms) end).

%% @doc Measures the given work, which returns how much it has done.
-spec take(beamway_bench_nodes:cluster(), fun(() -> Count :: number())) -> t().
take(Cluster, Fun) ->
    {Cpu, Start} = {beamway_bench_nodes:cpu_us(Cluster), erlang:monotonic_time(nanosecond)},
    Count = Fun(),
    {beamway_bench_nodes:cpu_us(Cluster) - Cpu, Count, erlang:monotonic_time(nanosecond) - Start}.

%% @doc Returns the CPU time of one operation in microseconds.
-spec cost(t()) -> float().
cost({Cpu, Count, _}) -> Cpu / Count.

%% @doc Returns the operations per second.
-spec rate(t()) -> float().
rate({_, Count, Ns}) -> Count * 1.0e9 / Ns.
