%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench rabbitmq': what does a RabbitMQ cluster gain? Each contender has three nodes of Debian's rabbitmq-server on this machine. One publisher
%% and one consumer use a quorum queue and a classic mirrored queue, with small, medium and large messages.
%%
%% The queue's leader is on node 2, the publisher connects to node 1 and the consumer to node 3, so every message uses the carrier to reach the
%% leader, the replicas and the consumer. The client is written in C (rabbitmq_load.c), so that it takes as little CPU time as possible away from the
%% brokers. Rates are measured with a window of unconfirmed messages. Latencies and CPU time are measured at a fixed, much lower rate, which is the
%% same for all contenders.
%%
%% `bin/beamway' runs this benchmark in an overlay (scripts/in-overlay), in which the servers are installed and their files are kept in memory,
%% because a disk would hide the effect of the carrier. All clusters run for the whole benchmark and are removed together with the overlay; a cluster
%% that is not being measured is idle.
-module(beamway_bench_rabbitmq).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1]).

-define(QUEUES, [quorum, mirrored]).
%% The size of a message in bytes, the number of messages that may be unconfirmed, and the messages published per second when latencies are measured.
-define(LOADS, [{100, 1000, 500}, {10240, 400, 200}, {1048576, 16, 10}]).
-define(LEADER, 2).
-define(PUBLISHER, 1).
-define(CONSUMER, 3).

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case filelib:is_regular("/usr/sbin/rabbitmq-server") of
        true ->
            Default = case Speed of quick -> 1; full -> 5 end,
            {ok, (times(Speed))#{repeats => proplists:get_value(repeats, Given, Default)}};
        false ->
            beamway_bench_tools:missing("rabbitmq-server", "rabbitmq")
    end.

times(quick) -> #{warm_ms => 200, window_ms => 700};
times(full) -> #{warm_ms => 400, window_ms => 2000}.

%% Each contender has its own group, so that the measuring function knows which contender it is measuring.
%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{speed := Speed} = Settings) ->
    Names = contenders(Speed, maps:get(only, Settings)),
    [#{nodes => 0, contenders => [Name], directions => [none],
       measure => fun(none) -> measure(Name, Names, Settings) end} || Name <- Names].

contenders(quick, all) -> [tcp, beamway];
contenders(full, all) -> [tcp, tcp_tuned, beamway];
contenders(_, Only) -> [Name || Name <- Only, lists:member(Name, beamway_bench_contender:names())].

measure(Name, Names, Settings) ->
    Cluster = maps:get(Name, clusters(Names, Settings)),
    maps:from_list(lists:append([measure_load(Cluster, Queue, Load, Settings) || Queue <- ?QUEUES, Load <- ?LOADS])).

measure_load(Cluster, Queue, {Bytes, Window, Rate}, Settings) ->
    #{rate := PerSecond} = run_load(Cluster, Queue, Bytes, Window, 0, Settings),
    #{p99 := P99, cpu := Cpu} = run_load(Cluster, Queue, Bytes, Window, Rate, Settings),
    [{key(Queue, Bytes, rate), PerSecond}, {key(Queue, Bytes, p99), P99}, {key(Queue, Bytes, cpu), Cpu}].

%% ---- the clusters ----

%% All clusters are started together in the first turn, and then keep running.
clusters(Names, Settings) ->
    case get(?MODULE) of
        undefined ->
            Clusters = start_clusters(Names, Settings),
            undefined = put(?MODULE, Clusters),
            Clusters;
        Clusters ->
            Clusters
    end.

start_clusters(Names, #{contenders := Contenders}) ->
    ok = beamway_bench_rabbitmq_cluster:install(),
    ok = beamway_bench_text:note("bench rabbitmq: starting ~b clusters of three nodes", [length(Names)]),
    Caller = self(),
    Starting = [{Name, spawn_monitor(fun() -> Caller ! {self(), start_cluster(maps:get(Name, Contenders), Base)} end)}
                || {Name, Base} <- lists:zip(Names, lists:seq(6000, 6000 + 1000 * (length(Names) - 1), 1000))],
    maps:from_list([{Name, started(Pid, Monitor)} || {Name, {Pid, Monitor}} <- Starting]).

%% This receive needs no timeout, because each step of starting a cluster has its own.
started(Pid, Monitor) ->
    receive
        {Pid, Cluster} -> true = demonitor(Monitor, [flush]), Cluster;
        {'DOWN', Monitor, process, Pid, {Reason, _Stack}} -> error(Reason)
    end.

start_cluster(#{name := Name, link := Link} = Contender, Base) ->
    %% RabbitMQ's default is half a gigabyte per node. The log is smaller here, because it is kept in memory.
    Cluster = beamway_bench_rabbitmq_cluster:start(#{name => atom_to_list(Name), base_port => Base, contender => Contender,
                                           settings => ["raft.wal_max_size_bytes = 67108864"]}),
    {0, _} = beamway_bench_rabbitmq_cluster:ctl(1, ["set_policy", "mirrored", "^mirrored", "{\"ha-mode\":\"all\"}"], Cluster),
    _ = [ok = beamway_bench_rabbitmq_cluster:declare(queue(Queue, Bytes), Queue, ?LEADER, Cluster) || Queue <- ?QUEUES, {Bytes, _, _} <- ?LOADS],
    case lists:usort(maps:values(beamway_bench_rabbitmq_cluster:links(Cluster))) of
        [Link] -> Cluster;
        Others -> error({wrong_link, Name, Link, Others, "see beamway:links() of its nodes"})
    end.

queue(Queue, Bytes) -> lists:flatten([atom_to_list(Queue), "_", beamway_bench_text:size_text(Bytes)]).

%% ---- the load ----

run_load(#{base_port := Base} = Cluster, Queue, Bytes, Window, Rate, #{warm_ms := WarmMs, window_ms := Ms}) ->
    Words = [integer_to_list(Base + ?PUBLISHER), integer_to_list(Base + ?CONSUMER), queue(Queue, Bytes)
             | [integer_to_list(N) || N <- [Bytes, Window, Rate, WarmMs, Ms]]],
    Program = beamway_bench_tools:open(load_program(), Words),
    ok = expect(Program, "begin", WarmMs),
    Before = cpu_us(Cluster),
    ok = expect(Program, "published", Ms),
    Used = cpu_us(Cluster) - Before,
    {Count, Seconds, P99} = result(Program),
    {ended, 0} = beamway_bench_tools:line(Program, 30000),
    ok = in_time(Rate, Count, Seconds, Queue, Bytes),
    #{rate => Count / Seconds, p99 => P99, cpu => Used / Count}.

%% If a broker falls behind, its latencies only reflect the growing backlog.
in_time(Rate, Count, Seconds, Queue, Bytes) ->
    case Count >= 0.5 * Rate * Seconds of
        true -> ok;
        false -> error({too_slow, {Queue, Bytes}, {wanted, Rate}, {got, Count / Seconds}})
    end.

load_program() ->
    case beamway_bench_tools:compile("rabbitmq_load", "cc", ["-lrabbitmq", "-lpthread"]) of
        {ok, Program} -> Program;
        {error, Why} -> error({no_client, Why})
    end.

expect(Program, Line, Ms) ->
    case beamway_bench_tools:line(Program, Ms + 90000) of
        {line, Line} -> ok;
        Other -> error({client_failed, Other})
    end.

result(Program) ->
    case beamway_bench_tools:line(Program, 60000) of
        {line, "end " ++ Numbers} ->
            [Count, Seconds, _P50, P99] = string:lexemes(Numbers, " "),
            {list_to_integer(Count), list_to_float(Seconds), list_to_float(P99)};
        Other ->
            error({client_failed, Other})
    end.

cpu_us(#{nodes := Numbers} = Cluster) ->
    beamway_bench_os:sum_cpu_us([beamway_bench_rabbitmq_cluster:os_pid(N, Cluster) || N <- Numbers]).

%% ---- the result ----

key(Queue, Bytes, Which) ->
    What = case Which of rate -> "messages"; p99 -> "latency, p99"; cpu -> "processor time of the nodes" end,
    unicode:characters_to_binary([atom_to_list(Queue), ", ", beamway_bench_text:size_words(Bytes), ": ", What]).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(_Settings) ->
    [metric(Queue, Bytes, Which) || Queue <- ?QUEUES, {Bytes, _, _} <- ?LOADS, Which <- [rate, p99, cpu]].

metric(Queue, Bytes, Which) ->
    {Suffix, Unit, Better} = case Which of
                                 rate -> {"", <<"messages/s">>, higher};
                                 p99 -> {"_p99", <<"us">>, lower};
                                 cpu -> {"_cpu", <<"us/message">>, lower}
                             end,
    #{name => iolist_to_binary(["rabbitmq_", queue(Queue, Bytes), Suffix]), unit => Unit, better => Better,
      key => key(Queue, Bytes, Which), contender => beamway, baselines => [tcp, tcp_tuned]}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics_test() ->
    Names = [Name || #{name := Name} <- metrics(#{})],
    ?assertEqual([], [<<"rabbitmq_quorum_100">>, <<"rabbitmq_mirrored_10k_p99">>, <<"rabbitmq_quorum_1m_cpu">>] -- Names),
    ?assertEqual(18, length(lists:usort(Names))).

contenders_test_() ->
    [?_assertEqual([beamway], contenders(full, [openmpi, beamway])), ?_assertEqual([tcp, beamway], contenders(quick, all))].

a_backlog_is_no_figure_test() ->
    ?assertError({too_slow, _, _, _}, in_time(100, 49, 1.0, quorum, 100)),
    ?assertEqual(ok, in_time(100, 50, 1.0, quorum, 100)),
    ?assertEqual(ok, in_time(0, 1, 1.0, quorum, 100)).
-endif.
