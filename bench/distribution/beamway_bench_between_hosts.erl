%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench hosts': what is the throughput between hosts? The nodes run in network namespaces that are joined by veth at full speed or by an
%% emulated path. The benchmark measures 100 callers on each node, and then one sender of 64 B, 4 KB and 1 MB messages, over TCP and TLS. It compares
%% the largest size with iperf3. It needs root.
-module(beamway_bench_between_hosts).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).

-define(CALLERS, 100).
-define(CALL_BYTES, 16).
-define(SIZES, [64, 4096, 1 bsl 20]).
-define(IPERF_PORT, "7201").

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{path, undefined, "path", string, "only this one: veth, veth4, path_1ms or path_20ms"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case {beamway_bench_net:chosen(proplists:get_value(path, Given, all), beamway_bench_net:names()), beamway_bench_net:check(), os:find_executable("iperf3")} of
        {{error, Why}, _, _} -> {error, Why};
        {_, {error, Why}, _} -> {error, Why};
        {_, _, false} -> {error, "missing: iperf3. Run: scripts/install-packages bench"};
        {{ok, Paths}, ok, _} -> {ok, settings(Paths, Speed)}
    end.

%% A TCP stream needs several round trips until it fills the path.
settings(Paths, quick) -> (settings(Paths))#{warm_ms => 200, window_ms => 400, iperf_s => 1, budget_ms => 36000 * length(Paths)};
settings(Paths, full) -> (settings(Paths))#{warm_ms => 1000, window_ms => 2000, iperf_s => 3}.

settings(Paths) -> #{paths => Paths, facts => beamway_bench_net:facts(Paths)}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{paths := Paths} = Settings) -> lists:append([groups(Path, Settings) || Path <- Paths]).

groups(Path, #{speed := Speed} = Settings) ->
    [#{net => Path, nodes => node_count(Path), contenders => contenders(), directions => case Speed of quick -> [forward]; full -> [forward, reverse] end,
       measure => fun(Cluster) -> measure(Path, Cluster, Settings) end}
     | [#{net => Path, nodes => 0, contenders => [iperf3], directions => [none], measure => fun(Hosts) -> iperf(Path, Hosts, Settings) end} || node_count(Path) =:= 2]].

contenders() -> [tcp, tcp_tuned, beamway_tcp, tls, beamway_tls].

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

calls_words(Path) -> io_lib:format("calls, ~b nodes", [node_count(Path)]).

key(Path, Words) -> unicode:characters_to_binary([beamway_bench_net:title(Path), ": ", Words]).

%% Returns how many megabytes (10^6 bytes) per second the second host receives in one TCP stream.
iperf(Path, [{Space, _}, {Other, Address}], #{iperf_s := Seconds, warm_ms := WarmMs}) ->
    [Ip | Server] = beamway_netns:host(Other) ++ ["iperf3", "-s", "-1", "-p", ?IPERF_PORT],
    Port = beamway_bench_tools:open(Ip, Server),
    Words = ["iperf3", "-c", Address, "-p", ?IPERF_PORT, "-t", integer_to_list(Seconds), "-O", integer_to_list((WarmMs + 999) div 1000), "-J"],
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
     || Path <- Paths,
        {Tls, Own, Others} <- [{"", beamway_tcp, [tcp, tcp_tuned]}, {"tls_", beamway_tls, [tls, beamway_tcp]}],
        What <- [rpc, rpc_p99 | [Size || node_count(Path) =:= 2, Size <- ?SIZES]]].

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
    [?assert(lists:member(iperf3, Others)) || #{name := <<"hosts_1ms_bytes_1m">>, baselines := Others} <- metrics(Settings)].
-endif.
