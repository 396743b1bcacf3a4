%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench rabbitmq': what does a RabbitMQ cluster gain? Each contender has three nodes of Debian's rabbitmq-server. One publisher and one consumer
%% use a quorum queue, a stream and a classic mirrored queue, which RabbitMQ 4 no longer has, with small, medium and large messages.
%%
%% The queue's leader is on node 2, the publisher connects to node 1 and the consumer to node 3, so every message reaches the leader over the carrier.
%% From a queue's leader it also reaches the replicas and the consumer over the carrier. A stream is replicated over other connections, and its consumer
%% reads from the replica on node 3. The client is written in C (rabbitmq_load.c), so that it takes as little CPU time as possible away from the
%% brokers. Rates are measured with a window of unconfirmed messages. Latencies and CPU time are measured at a fixed, much lower rate, which is the same
%% for all contenders.
%%
%% All nodes run on this machine, or with `--part hosts' each in a network namespace. There, all connections of node 2 to the other nodes are cut for
%% 43 ms at the end of a turn, while messages are published at the fixed rate. A cluster that has lost a node because of this is replaced.
%%
%% `bin/beamway' runs this benchmark in an overlay (scripts/in-overlay), in which the servers are installed and their files are kept in memory,
%% because a disk would hide the effect of the carrier. All clusters run for the whole benchmark and are removed together with the overlay; a cluster
%% that is not being measured is idle.
-module(beamway_bench_rabbitmq).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).

%% The size of a message in bytes, the number of messages that may be unconfirmed, and the messages published per second when latencies are measured.
-define(LOADS, [{100, 1000, 500}, {10240, 400, 200}, {1048576, 16, 10}]).
-define(LEADER, 2).
-define(PUBLISHER, 1).
-define(CONSUMER, 3).
-define(FIRST_PORT, 7000).
-define(CALM_MS, 300).
-define(REFUSED_MS, 43).
-define(USABLE_MS, 60000).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{part, undefined, "part", string, "hosts: the nodes run in network namespaces, and their connections are cut (each part takes 25 minutes)"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case {proplists:get_value(part, Given, "here"), filelib:is_regular("/usr/sbin/rabbitmq-server")} of
        {Part, _} when Part =/= "here", Part =/= "hosts" -> {error, ["--part ", Part, ": expected hosts"]};
        {_, false} -> beamway_bench_tools:missing("rabbitmq-server", "rabbitmq");
        {Part, true} ->
            Default = case Speed of quick -> 1; full -> beamway_bench_stats:least_repeats() end,
            {ok, (times(Speed))#{part => list_to_existing_atom(Part), repeats => proplists:get_value(repeats, Given, Default)}}
    end.

times(quick) -> #{warm_ms => 200, window_ms => 700};
times(full) -> #{warm_ms => 400, window_ms => 2000}.

%% Each contender has its own group, so that the measuring function knows which contender it is measuring.
%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{speed := Speed, part := Part} = Settings) ->
    Names = contenders(Speed, Part, maps:get(only, Settings)),
    [#{nodes => 0, contenders => [Name], directions => [none],
       measure => fun(none) -> measure(Name, Names, Settings) end} || Name <- Names].

contenders(quick, here, all) -> [tcp, beamway];
contenders(quick, hosts, all) -> [tcp, beamway_tcp];
contenders(full, Part, all) -> [tcp, tcp_tuned] ++ [Own || {Own, _} <- compared(Part)];
contenders(_, _, Only) -> [Name || Name <- Only, lists:member(Name, beamway_bench_contender:names())].

%% Returns the contenders that are compared with stock distribution, and the prefix of their metrics.
compared(here) -> [{beamway, ""}, {beamway_tcp, "tcp_"}];
compared(hosts) -> [{beamway_tcp, "hosts_"}].

queues(here) -> [quorum, mirrored, stream];
queues(hosts) -> [quorum, stream].

existing(Part) -> [Queue || Queue <- queues(Part), Queue =/= mirrored orelse beamway_bench_rabbitmq_cluster:has_mirrored()].

measure(Name, Names, #{part := Part} = Settings) ->
    Cluster = cluster(Name, Names, Settings),
    Loads = lists:append([measure_load(Cluster, Queue, Load, Settings) || Queue <- existing(Part), Load <- ?LOADS]),
    maps:from_list(Loads ++ case Part of here -> []; hosts -> cut(Name, Cluster, Settings) end).

measure_load(Cluster, Queue, {Bytes, Window, Rate}, Settings) ->
    #{rate := PerSecond} = run_load(Cluster, Queue, Bytes, Window, 0, Settings),
    #{p50 := P50, p99 := P99, cpu := Cpu} = run_load(Cluster, Queue, Bytes, Window, Rate, Settings),
    [{key(Queue, Bytes, What), Figure} || {What, Figure} <- [{rate, PerSecond}, {p50, P50}, {p99, P99}, {cpu, Cpu}]].

%% ---- the clusters ----

%% All clusters are started together in the first turn, and then keep running. A cluster that was removed is started again under another name.
cluster(Name, Names, Settings) ->
    #{clusters := Clusters} = Running = case get(?MODULE) of undefined -> started(Names, Settings); Known -> Known end,
    {Cluster, Now} = case Clusters of
                         #{Name := One} -> {One, Running};
                         #{} ->
                             Again = maps:get(again, Running) + 1,
                             New = start_cluster(Name, lists:concat([Name, Again]), Names, maps:get(hosts, Running), Settings),
                             {New, Running#{clusters := Clusters#{Name => New}, again := Again}}
                     end,
    _ = put(?MODULE, Now),
    Cluster.

removed(Name, Cluster) ->
    ok = beamway_bench_rabbitmq_cluster:remove(Cluster),
    #{clusters := Clusters} = Running = get(?MODULE),
    _ = put(?MODULE, Running#{clusters := maps:remove(Name, Clusters)}),
    ok.

started(Names, #{part := Part} = Settings) ->
    ok = beamway_bench_rabbitmq_cluster:install(),
    Hosts = hosts(Part),
    ok = beamway_bench_text:note("bench rabbitmq: starting ~b clusters of three nodes", [length(Names)]),
    Caller = self(),
    Starting = [{Name, spawn_monitor(fun() -> Caller ! {self(), start_cluster(Name, atom_to_list(Name), Names, Hosts, Settings)} end)} || Name <- Names],
    #{hosts => Hosts, again => 0, clusters => maps:from_list([{Name, started_one(Pid, Monitor)} || {Name, {Pid, Monitor}} <- Starting])}.

hosts(here) -> #{};
hosts(hosts) ->
    case beamway_bench_rabbitmq_cluster:open_hosts() of
        {ok, Hosts} -> Hosts;
        {error, Why} -> error({no_network, Why})
    end.

%% This receive needs no timeout, because each step of starting a cluster has its own.
started_one(Pid, Monitor) ->
    receive
        {Pid, Cluster} -> true = demonitor(Monitor, [flush]), Cluster;
        {'DOWN', Monitor, process, Pid, {Reason, _Stack}} -> error(Reason)
    end.

start_cluster(Name, Called, Names, Hosts, #{contenders := Contenders, part := Part}) ->
    #{link := Link} = Contender = maps:get(Name, Contenders),
    [Base] = [?FIRST_PORT + 1000 * N || {One, N} <- lists:zip(Names, lists:seq(1, length(Names))), One =:= Name],
    %% RabbitMQ's default is half a gigabyte per node. The log is smaller here, because it is kept in memory.
    Cluster = beamway_bench_rabbitmq_cluster:start(#{name => Called, base_port => Base, contender => Contender, hosts => Hosts,
                                           settings => ["raft.wal_max_size_bytes = 67108864"]}),
    _ = [{0, _} = beamway_bench_rabbitmq_cluster:ctl(1, ["set_policy", "mirrored", "^mirrored", "{\"ha-mode\":\"all\"}"], Cluster) || lists:member(mirrored, existing(Part))],
    _ = [ok = beamway_bench_rabbitmq_cluster:declare(queue(Queue, Bytes), Queue, ?LEADER, Cluster) || Queue <- existing(Part), {Bytes, _, _} <- ?LOADS],
    _ = [ok = beamway_bench_rabbitmq_cluster:await(fun() -> is_usable(Cluster, Queue, Bytes) end, ?USABLE_MS, {queue_not_usable, Called, Queue}) || Queue <- existing(Part), {Bytes, _, _} <- ?LOADS],
    case lists:usort(maps:values(beamway_bench_rabbitmq_cluster:links(Cluster))) of
        [Link] -> Cluster;
        Others -> error({wrong_link, Name, Link, Others, "see beamway:links() of its nodes"})
    end.

queue(Queue, Bytes) -> lists:flatten([atom_to_list(Queue), "_", beamway_bench_text:size_text(Bytes)]).

%% The replicas of a stream start some time after the stream has been declared. Until then, it cannot be consumed on their nodes.
is_usable(Cluster, Queue, Bytes) ->
    Program = beamway_bench_tools:open(load_program(), words(Cluster, Queue, Bytes, [1, 0, 0, 1])),
    {Status, _} = outcome(Program),
    Status =:= 0.

%% ---- the load ----

words(Cluster, Queue, Bytes, Numbers) ->
    [beamway_bench_rabbitmq_cluster:amqp(?PUBLISHER, Cluster), beamway_bench_rabbitmq_cluster:amqp(?CONSUMER, Cluster), queue(Queue, Bytes) | [integer_to_list(N) || N <- [Bytes | Numbers]]].

run_load(Cluster, Queue, Bytes, Window, Rate, #{warm_ms := WarmMs, window_ms := Ms}) ->
    Program = beamway_bench_tools:open(load_program(), words(Cluster, Queue, Bytes, [Window, Rate, WarmMs, Ms])),
    ok = expect(Program, "begin", WarmMs),
    Before = cpu_us(Cluster),
    ok = expect(Program, "published", Ms),
    Used = cpu_us(Cluster) - Before,
    {0, [Count, Seconds, P50, P99, _]} = outcome(Program),
    ok = in_time(Rate, Count, Seconds, Queue, Bytes),
    #{rate => Count / Seconds, p50 => P50, p99 => P99, cpu => Used / Count}.

%% Cuts all connections between the leader's node and the other two, but not those of the clients.
cut(Name, #{hosts := #{?LEADER := {_, _, Space}}} = Cluster, #{warm_ms := WarmMs, contenders := Contenders}) ->
    [{Bytes, Window, Rate} | _] = ?LOADS,
    #{link := Link} = maps:get(Name, Contenders),
    {Before, Resumes} = {beamway_bench_rabbitmq_cluster:losses(Cluster), resumes(Link, Cluster)},
    Program = beamway_bench_tools:open(load_program(), words(Cluster, quorum, Bytes, [Window, Rate, WarmMs, 10 * ?CALM_MS])),
    ok = expect(Program, "begin", WarmMs),
    receive after ?CALM_MS -> ok end,
    %% The reset that is sent in response must pass.
    Rule = "! -i lo ! -s " ++ beamway_bench_rabbitmq_cluster:client_address() ++ " ! --tcp-flags RST RST -j REJECT --reject-with tcp-reset",
    _ = beamway_cut:during({Space, "INPUT"}, [Rule], ?REFUSED_MS),
    {Status, Numbers} = outcome(Program),
    Losses = beamway_bench_rabbitmq_cluster:losses(Cluster) - Before,
    Link =:= stock orelse resumes(Link, Cluster) > Resumes orelse error({nothing_was_cut, Name}),
    _ = [ok = removed(Name, Cluster) || Losses > 0 orelse Status =/= 0],
    [{cut_key(losses), Losses}, {cut_key(failed), case Status of 0 -> 0; _ -> 1 end} | [{cut_key(longest), lists:last(Numbers) / 1000} || Status =:= 0]].

resumes(stock, _) -> none;
resumes(_, Cluster) ->
    {ok, [Text | _]} = beamway_bench_rabbitmq_cluster:eval(?LEADER, "lists:sum([maps:get(resumes, Link, 0) || Link <- beamway:links()]).", Cluster),
    list_to_integer(Text).

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

%% Returns the program's exit status, and the numbers that it has printed: messages, seconds, and the latencies in microseconds.
outcome(Program) -> outcome(Program, []).

outcome(Program, Numbers) ->
    case beamway_bench_tools:line(Program, 90000) of
        {line, "end " ++ Text} ->
            [Count | Others] = string:lexemes(Text, " "),
            outcome(Program, [list_to_integer(Count) | [list_to_float(Other) || Other <- Others]]);
        {line, _} -> outcome(Program, Numbers);
        {ended, Status} -> {Status, Numbers};
        timeout -> error({client_failed, timeout})
    end.

cpu_us(#{nodes := Numbers} = Cluster) ->
    beamway_bench_os:sum_thread_us([beamway_bench_rabbitmq_cluster:os_pid(N, Cluster) || N <- Numbers]).

%% ---- the result ----

key(Queue, Bytes, Which) ->
    What = case Which of rate -> "messages"; cpu -> "processor time of the nodes"; _ -> ["latency, ", atom_to_list(Which)] end,
    unicode:characters_to_binary([atom_to_list(Queue), ", ", beamway_bench_text:size_words(Bytes), ": ", What]).

cut_key(Which) ->
    unicode:characters_to_binary(["quorum, 100 B, connections of the leader's node cut for 43 ms: ",
                                  case Which of
                                      losses -> "lines about lost nodes and partitions in the logs";
                                      failed -> "clients that failed";
                                      longest -> "latency, longest"
                                  end]).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{part := Part}) ->
    [metric([Prefix, queue(Queue, Bytes)], Which, key(Queue, Bytes, Which), Own)
     || {Own, Prefix} <- compared(Part), Queue <- queues(Part), {Bytes, _, _} <- ?LOADS, Which <- [rate, p50, p99, cpu]]
        ++ [metric("hosts_cut", Which, cut_key(Which), beamway_tcp) || Part =:= hosts, Which <- [losses, failed, longest]].

metric(Name, Which, Key, Own) ->
    {Unit, Better} = case Which of
                         rate -> {<<"messages/s">>, higher};
                         cpu -> {<<"us/message">>, lower};
                         losses -> {<<"lines">>, lower};
                         failed -> {<<"clients">>, lower};
                         longest -> {<<"ms">>, lower};
                         _ -> {<<"us">>, lower}
                     end,
    #{name => iolist_to_binary(["rabbitmq_", Name, [["_", atom_to_list(Which)] || Which =/= rate]]), unit => Unit, better => Better,
      key => Key, contender => Own, baselines => [tcp, tcp_tuned]}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics_test() ->
    Names = [Name || Part <- [here, hosts], #{name := Name} <- metrics(#{part => Part})],
    ?assertEqual([], [<<"rabbitmq_quorum_100">>, <<"rabbitmq_mirrored_10k_p99">>, <<"rabbitmq_quorum_1m_cpu">>, <<"rabbitmq_tcp_stream_100_p50">>, <<"rabbitmq_hosts_stream_10k">>,
                      <<"rabbitmq_hosts_cut_longest">>] -- Names),
    ?assertEqual(length(Names), length(lists:usort(Names))),
    [?assert(lists:member(Own, contenders(full, Part, all))) || Part <- [here, hosts], #{contender := Own} <- metrics(#{part => Part})].

contenders_test_() ->
    [?_assertEqual([beamway], contenders(full, here, [openmpi, beamway])), ?_assertEqual([tcp, beamway], contenders(quick, here, all)), ?_assertEqual([tcp, beamway_tcp], contenders(quick, hosts, all))].

bad_part_test() -> ?assertMatch({error, _}, prepare([{part, "moon"}], quick)).

a_backlog_is_no_figure_test() ->
    ?assertError({too_slow, _, _, _}, in_time(100, 49, 1.0, quorum, 100)),
    ?assertEqual(ok, in_time(100, 50, 1.0, quorum, 100)),
    ?assertEqual(ok, in_time(0, 1, 1.0, quorum, 100)).
-endif.
