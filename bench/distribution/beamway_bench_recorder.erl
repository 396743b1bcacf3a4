%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench recorder': what does it cost to observe a link from inside? It measures calls by 100 callers, a stream of messages of 64
%% bytes, and idle nodes with 153 links, with and without the flight recorder: the CPU time of all nodes, and the rates. It also measures
%% the CPU time per call if the messages carry a trace context.
%%
%% The recorder costs less than the difference between two starts of the same node. So each turn alternates between short windows with
%% and without it, in random order, on the same nodes. In the windows without it, the recorder is suspended and samples nothing; the
%% driver updates its per-message counters in both cases.
-module(beamway_bench_recorder).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(CALL, <<"processor time of a call, 100 callers">>).
-define(CALLS, <<"calls, 100 callers">>).
-define(MESSAGE, <<"processor time of a message in a stream">>).
-define(MESSAGES, <<"messages in a stream">>).
-define(REST, <<"processor time at rest">>).
-define(BYTES, 64).
-define(NODES, 18). % 153 links

-type state() :: on | off.

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()}.
prepare(_, quick) -> {ok, #{warm_ms => 300, window_ms => 300, pairs => 4, rest_ms => 1000, nodes => 4}};
%% An idle link is sampled every five seconds.
prepare(_, full) -> {ok, #{warm_ms => 1000, window_ms => 1500, pairs => 6, rest_ms => 5000, nodes => ?NODES}}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{nodes := Nodes} = Settings) ->
    [#{nodes => 2, contenders => [beamway, beamway_tcp], directions => [forward], measure => fun(Cluster) -> busy(Cluster, Settings) end},
     #{nodes => 2, contenders => [teleport], directions => [forward], measure => fun(Cluster) -> traced(Cluster, Settings) end},
     #{nodes => Nodes, contenders => [beamway_tcp], directions => [forward], measure => fun(Cluster) -> at_rest(Cluster, Settings) end}].

busy(Cluster, #{warm_ms := WarmMs, window_ms := Ms} = Settings) ->
    ok = beamway_bench_window:start(echo, Cluster, WarmMs),
    Calls = alternated(Settings, fun(State) -> ok = switched(State, Cluster), beamway_bench_window:of_calls(Cluster, Ms) end),
    ok = beamway_bench_window:stop(Cluster),
    _ = beamway_bench_window:of_stream(Cluster, ?BYTES, WarmMs),
    Messages = alternated(Settings, fun(State) -> ok = switched(State, Cluster), beamway_bench_window:of_stream(Cluster, ?BYTES, Ms) end),
    maps:merge(figures(Cluster, Calls, [{?CALL, fun beamway_bench_window:cost/1}, {?CALLS, fun beamway_bench_window:rate/1}]),
               figures(Cluster, Messages, [{?MESSAGE, fun beamway_bench_window:cost/1}, {?MESSAGES, fun beamway_bench_window:rate/1}])).

%% The measurement without a context is stored under the name of a separate contender.
traced(Cluster, #{warm_ms := WarmMs, window_ms := Ms} = Settings) ->
    Windows = alternated(Settings, fun(State) ->
                                           ok = beamway_bench_window:start(case State of on -> traced; off -> echo end, Cluster, WarmMs),
                                           Window = beamway_bench_window:of_calls(Cluster, Ms),
                                           ok = beamway_bench_window:stop(Cluster),
                                           Window
                                   end),
    figures(Cluster, Windows, [{?CALL, fun beamway_bench_window:cost/1}]).

%% Returns the CPU time per node and second. It waits first because a link is not idle in the first seconds after connecting.
at_rest(#{members := Members} = Cluster, #{rest_ms := Ms} = Settings) ->
    receive after Ms -> ok end,
    Windows = alternated(Settings, fun(State) ->
                                           ok = switched(State, Cluster),
                                           beamway_bench_window:take(Cluster, fun() -> receive after Ms -> length(Members) * Ms / 1000 end end)
                                   end),
    figures(Cluster, Windows, [{?REST, fun beamway_bench_window:cost/1}]).

switched(State, Cluster) ->
    _ = beamway_bench_nodes:all(Cluster, sys, case State of on -> resume; off -> suspend end, [beamway_recorder]),
    ok.

-spec alternated(map(), fun((state()) -> beamway_bench_window:t())) -> #{state() => beamway_bench_window:t()}.
alternated(#{pairs := Pairs}, Measure) ->
    lists:foldl(fun(State, Sums) ->
                        {Cpu, Count, Ns} = Measure(State),
                        maps:update_with(State, fun({C, N, T}) -> {C + Cpu, N + Count, T + Ns} end, {Cpu, Count, Ns}, Sums)
                end, #{}, lists:append([beamway_bench_run:shuffled([on, off]) || _ <- lists:seq(1, Pairs)])).

figures(#{contender := #{name := Name}}, #{on := On, off := Off}, Figures) ->
    maps:from_list([Figure || {Key, Of} <- Figures, Figure <- [{Key, Of(On)}, {{without(Name), Key}, Of(Off)}]]).

without(beamway) -> beamway_unrecorded;
without(beamway_tcp) -> beamway_tcp_unrecorded;
without(teleport) -> teleport_untraced.

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{}) ->
    [#{name => Name, unit => Unit, better => Better, key => Key, contender => Own, baselines => [without(Own)]}
     || {Name, Key, Own, Unit, Better} <-
            [{iolist_to_binary(["recorder_", Link, "_", Name]), Key, Own, Unit, Better}
             || {Link, Own} <- [{"shm", beamway}, {"tcp", beamway_tcp}],
                {Name, Key, Unit, Better} <- [{"call", ?CALL, <<"us">>, lower}, {"calls", ?CALLS, <<"calls/s">>, higher},
                                              {"message", ?MESSAGE, <<"us">>, lower}, {"messages", ?MESSAGES, <<"messages/s">>, higher}]]
            ++ [{<<"recorder_rest">>, ?REST, beamway_tcp, <<"us/s">>, lower}, {<<"trace_call">>, ?CALL, teleport, <<"us">>, lower}]].

-ifdef(TEST).

%% The recorder must be suspended on all nodes while windows without it are measured, and at no other time.
it_is_suspended_in_between_test_() ->
    {timeout, 60, fun() ->
        Status = fun(Cluster) ->
                         Sums = alternated(#{pairs => 2}, fun(State) -> ok = switched(State, Cluster), {0, running(Cluster), 1} end),
                         figures(Cluster, Sums, [{<<"running">>, fun({_, Count, _}) -> Count / 1 end}])
                 end,
        Group = #{nodes => 2, contenders => [beamway], directions => [forward], measure => Status},
        Options = #{repeats => 1, fresh => true, budget_ms => infinity, progress => fun(_, _) -> ok end, contenders => beamway_bench_contender:all(beamway_bench_checkout:root(), 50)},
        {ok, Samples} = beamway_bench_run:in_a_process(fun() -> beamway_bench_run:run([Group], Options) end),
        ?assertEqual(#{{beamway, <<"running">>} => #{forward => [4.0]}, {beamway_unrecorded, <<"running">>} => #{forward => [0.0]}}, Samples)
    end}.

running(Cluster) -> length([running || {status, _, _, [_, running | _]} <- beamway_bench_nodes:all(Cluster, sys, get_status, [beamway_recorder])]).

-endif.
