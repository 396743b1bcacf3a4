%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench hosts': what is the throughput between hosts? The nodes run in network namespaces that are joined by veth at full speed or by an
%% emulated path. The benchmark measures 100 callers on each node, and then one sender of 64 B, 4 KB and 1 MB messages, over TCP and TLS. It compares
%% the largest size with iperf3. It needs root.
%%
%% `--path path_50ms' measures a long path with loss, on which Beamway uses several connections: 1 MB messages from one sender, which are also compared
%% with eight streams of iperf3, and small calls alone and while 10 MB messages are sent. It is not measured unless it is named, because a TCP stream
%% needs many seconds there to reach its usual rate.
-module(beamway_bench_between_hosts).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).

-define(CALLERS, 100).
-define(CALL_BYTES, 16).
-define(SIZES, [64, 4096, 1 bsl 20]).
-define(IPERF_PORT, "7201").
-define(LONG, path_50ms).
%% The number of connections that a link has on the long path, and how long it may take to set them up.
-define(CONNECTIONS, 8).
-define(SPREAD_MS, 20000).
-define(LOOK_MS, 100).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{path, undefined, "path", string, "only this one: veth, veth4, path_1ms, path_20ms or path_50ms (only if named)"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case {chosen(proplists:get_value(path, Given, all)), beamway_bench_net:check(), os:find_executable("iperf3")} of
        {{error, Why}, _, _} -> {error, Why};
        {_, {error, Why}, _} -> {error, Why};
        {_, _, false} -> {error, "missing: iperf3. Run: scripts/install-packages bench"};
        {{ok, Paths}, ok, _} -> {ok, settings(Paths, Speed)}
    end.

chosen(all) -> {ok, beamway_bench_net:names()};
chosen(Text) -> beamway_bench_net:chosen(Text, beamway_bench_net:names() ++ [?LONG]).

%% A TCP stream needs several round trips to fill the path.
settings([?LONG] = Paths, quick) -> (settings(Paths))#{warm_ms => 1000, window_ms => 2000, ms => 1000, iperf_s => 2, budget_ms => 36000};
settings([?LONG] = Paths, full) -> (settings(Paths))#{warm_ms => 5000, window_ms => 10000, ms => 5000, iperf_s => 10};
settings(Paths, quick) -> (settings(Paths))#{warm_ms => 200, window_ms => 400, iperf_s => 1, budget_ms => 36000 * length(Paths)};
settings(Paths, full) -> (settings(Paths))#{warm_ms => 1000, window_ms => 2000, iperf_s => 3}.

settings(Paths) -> #{paths => Paths, facts => beamway_bench_net:facts(Paths)}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{paths := Paths} = Settings) -> lists:append([groups(Path, Settings) || Path <- Paths]).

groups(?LONG = Path, Settings) ->
    [#{net => Path, nodes => 2, contenders => long_contenders(), directions => [forward], measure => fun(Cluster) -> measure_long(Path, Cluster, Settings) end}
     | [#{net => Path, nodes => 0, contenders => [Name], directions => [none], measure => fun(Hosts) -> iperf(Path, Streams, Hosts, Settings) end}
        || {Name, Streams} <- [{iperf3, 1}, {iperf3_8, 8}]]];
groups(Path, #{speed := Speed} = Settings) ->
    [#{net => Path, nodes => node_count(Path), contenders => contenders(), directions => case Speed of quick -> [forward]; full -> [forward, reverse] end,
       measure => fun(Cluster) -> measure(Path, Cluster, Settings) end}
     | [#{net => Path, nodes => 0, contenders => [iperf3], directions => [none], measure => fun(Hosts) -> iperf(Path, 1, Hosts, Settings) end} || node_count(Path) =:= 2]].

contenders() -> [tcp, tcp_tuned, beamway_tcp, tls, beamway_tls].

long_contenders() -> [tcp, tcp_tuned, beamway_tcp].

node_count(veth4) -> 4;
node_count(_) -> 2.

measure(Path, Cluster, Settings) ->
    Load = #{kind => rpc, callers => ?CALLERS, targets => beamway_bench_nodes:names(Cluster), bytes => ?CALL_BYTES},
    {Rate, P99} = beamway_bench_rpc:run_load(Cluster, Load, Settings),
    Streams = case node_count(Path) of
                  2 -> maps:to_list(beamway_bench_stream:measure(Cluster, Settings));
                  _ -> []
              end,
    maps:from_list([{key(Path, calls_words(Path)), Rate}, {key(Path, [calls_words(Path), ", p99"]), P99}
                    | [{key(Path, Key), Figure} || {Key, Figure} <- Streams]]).

%% The small calls are made first, while the link is idle.
measure_long(Path, #{members := [One, Two]} = Cluster, #{ms := Ms} = Settings) ->
    [_, Second] = beamway_bench_nodes:names(Cluster),
    ok = await_connections(Cluster, ?SPREAD_MS),
    _ = beamway_bench_nodes:call(Two, beamway_bench_messages, start_server, []),
    Times = beamway_bench_nodes:call(One, beamway_bench_messages, planned_calls, [stock, Second, Ms], Ms + 90000),
    Stream = beamway_bench_stream:large(Cluster, Settings),
    maps:merge(measure_beside(Path, Cluster, Settings),
               maps:from_list([{alone_key(Path), beamway_bench_stats:percentile(99, Times) / 1000} | [{key(Path, Key), Figure} || {Key, Figure} <- maps:to_list(Stream)]])).

%% Tuned TCP was not tuned for calls during large messages; see beamway_bench_beside.
measure_beside(_, #{contender := #{name := tcp_tuned}}, _) -> #{};
measure_beside(Path, Cluster, Settings) -> beamway_bench_beside:measure(Path, Cluster, Settings).

%% A link gets more connections once both nodes know how long a round trip takes.
await_connections(#{contender := #{link := stock}}, _) -> ok;
await_connections(#{members := [One, _]} = Cluster, LeftMs) ->
    [_, Second] = beamway_bench_nodes:names(Cluster),
    case beamway_bench_nodes:call(One, beamway, info, [Second]) of
        {ok, #{connections := ?CONNECTIONS}} -> ok;
        _ when LeftMs > 0 -> receive after ?LOOK_MS -> await_connections(Cluster, LeftMs - ?LOOK_MS) end;
        {ok, Info} -> error({connections_missing, Second, maps:get(connections, Info, 1), ?CONNECTIONS})
    end.

alone_key(Path) -> key(Path, "call of 64 B alone, p99").

calls_words(Path) -> io_lib:format("calls, ~b nodes", [node_count(Path)]).

key(Path, Words) -> unicode:characters_to_binary([beamway_bench_net:title(Path), ": ", Words]).

%% Returns how many megabytes (10^6 bytes) per second the second host receives in this many TCP streams.
iperf(Path, Streams, [{Space, _}, {Other, Address}], #{iperf_s := Seconds, warm_ms := WarmMs}) ->
    [Ip | Server] = beamway_netns:host(Other) ++ ["iperf3", "-s", "-1", "-p", ?IPERF_PORT],
    Port = beamway_bench_tools:open(Ip, Server),
    Words = ["iperf3", "-c", Address, "-p", ?IPERF_PORT, "-t", integer_to_list(Seconds), "-O", integer_to_list((WarmMs + 999) div 1000),
             "-P", integer_to_list(Streams), "-J"],
    Bits = iperf_client(Ip, tl(beamway_netns:host(Space)) ++ Words, 100),
    ok = beamway_bench_tools:close(Port, "KILL"),
    #{key(Path, beamway_bench_stream:key(1 bsl 20)) => Bits / 8.0e6}.

%% If the server is not listening yet, the client exits immediately, often with status 0, so we retry.
iperf_client(Ip, Words, Tries) ->
    {Status, Lines} = beamway_bench_tools:run(Ip, Words, 60000),
    case Status =:= 0 andalso jiffy:decode(Lines, [return_maps]) of
        #{<<"end">> := #{<<"sum_received">> := #{<<"bits_per_second">> := Bits}}} -> Bits;
        _ when Tries > 0, Status =/= timeout -> receive after 50 -> iperf_client(Ip, Words, Tries - 1) end;
        _ -> error({iperf3, Status, lists:flatten(Lines)})
    end.

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{paths := Paths}) ->
    [(metric(What))#{name => name(Path, Tls, What), key => key(Path, words(Path, What)), contender => Own, baselines => Others ++ beside(What)}
     || Path <- Paths, Path =/= ?LONG,
        {Tls, Own, Others} <- [{"", beamway_tcp, [tcp, tcp_tuned]}, {"tls_", beamway_tls, [tls, beamway_tcp]}],
        What <- [rpc, rpc_p99 | [Size || node_count(Path) =:= 2, Size <- ?SIZES]]]
        ++ [Metric || ?LONG <- Paths, Metric <- long_metrics(?LONG)].

long_metrics(Path) ->
    [(metric(What))#{name => name(Path, "", Name), key => Key, contender => beamway_tcp, baselines => Baselines}
     || {Name, What, Key, Baselines} <- [{1 bsl 20, 1 bsl 20, key(Path, beamway_bench_stream:key(1 bsl 20)), [tcp, tcp_tuned, iperf3, iperf3_8]},
                                         {p99, rpc_p99, alone_key(Path), [tcp, tcp_tuned]},
                                         {beside_p99, rpc_p99, beamway_bench_beside:key(Path, p99), [tcp]},
                                         {beside_rate, 1 bsl 20, beamway_bench_beside:key(Path, rate), [tcp]}]].

metric(rpc) -> #{unit => <<"calls/s">>, better => higher};
metric(rpc_p99) -> #{unit => <<"us">>, better => lower};
metric(Bytes) when Bytes < 1 bsl 20 -> #{unit => <<"messages/s">>, better => higher};
metric(_) -> #{unit => <<"MB/s">>, better => higher}.

words(Path, rpc) -> calls_words(Path);
words(Path, rpc_p99) -> [calls_words(Path), ", p99"];
words(_, Bytes) -> beamway_bench_stream:key(Bytes).

beside(1048576) -> [iperf3];
beside(_) -> [].

name(Path, Tls, What) -> iolist_to_binary(["hosts_", short(Path), "_", Tls, short(What)]).

short(path_1ms) -> "1ms";
short(path_20ms) -> "20ms";
short(path_50ms) -> "50ms";
short(Bytes) when is_integer(Bytes) ->
    [case Bytes of 1048576 -> "bytes_"; _ -> "rate_" end, beamway_bench_text:size_text(Bytes)];
short(Name) -> atom_to_list(Name).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics_test() ->
    Settings = settings(beamway_bench_net:names(), full),
    Names = [Name || #{name := Name} <- metrics(Settings)],
    [?assert(lists:member(Name, Names)) || Name <- [<<"hosts_veth_rpc">>, <<"hosts_veth4_tls_rpc_p99">>, <<"hosts_1ms_rate_64">>, <<"hosts_20ms_bytes_1m">>]],
    ?assertEqual(length(Names), length(lists:usort(Names))),
    ?assertEqual([], [Name || <<"hosts_50ms_", _/binary>> = Name <- Names]),
    [?assert(lists:member(iperf3, Others)) || #{name := <<"hosts_1ms_bytes_1m">>, baselines := Others} <- metrics(Settings)].

a_long_path_only_if_named_test() ->
    {ok, Default} = chosen(all),
    ?assertNot(lists:member(?LONG, Default)),
    {ok, [?LONG] = Paths} = chosen("path_50ms"),
    Settings = (settings(Paths, full))#{speed => full},
    Metrics = metrics(Settings),
    ?assertEqual([<<"hosts_50ms_bytes_1m">>, <<"hosts_50ms_p99">>, <<"hosts_50ms_beside_p99">>, <<"hosts_50ms_beside_rate">>], [Name || #{name := Name} <- Metrics]),
    %% Everything that is compared is also measured.
    Measured = lists:append([Names || #{contenders := Names} <- groups(Settings)]),
    ?assertEqual([], [Name || #{contender := Own, baselines := Others} <- Metrics, Name <- [Own | Others], not lists:member(Name, Measured)]).
-endif.
