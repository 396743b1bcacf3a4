%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench rpc': how many remote calls per second are possible? On each of N nodes, a hundred processes call the other nodes in a tight loop, and
%% the calls are counted.
%%
%% The called function returns its argument, which is a 16-byte binary unless `--size' specifies otherwise. Processes on all nodes make calls at the
%% same time, so it should not matter which node connected to which, but both directions are measured nevertheless.
-module(beamway_bench_rpc).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1, finish/2]).
%% Called by other benchmarks.
-export([run_load/3]).

-define(SMALL, 16).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{nodes, undefined, "nodes", {string, "2,4"}, "how many nodes call each other"},
     {hosts, undefined, "hosts", string, "one node on each of these machines, over ssh, such as a,b,c,d: see docs/guide/rdma.md"},
     {callers, undefined, "callers", {integer, 100}, "calling processes on each node"},
     {size, undefined, "size", string, "bytes of each call, such as 16,1k,16k,256k,1m (only with 2 nodes, unless --nodes)"},
     {chart, undefined, "chart", string, "draw calls a second over the sizes into this .svg or .png"},
     {erpc, undefined, "erpc", undefined, "erpc:call instead of rpc:call"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case hosts(proplists:get_value(hosts, Given, none)) of
        {ok, []} -> prepare(Given, Speed, nodes_text(proplists:is_defined(size, Given), proplists:get_value(nodes, Given)), []);
        {ok, Hosts} -> prepare(Given, Speed, integer_to_list(length(Hosts)), Hosts);
        {error, Why} -> {error, Why}
    end.

hosts(none) -> {ok, []};
hosts(Text) -> beamway_bench_hosts:parse(Text).

prepare(Given, Speed, NodesText, Hosts) ->
    Callers = proplists:get_value(callers, Given),
    Nodes = beamway_bench_text:numbers("--nodes", NodesText, 2, 16),
    Sizes = beamway_bench_text:numbers("--size", proplists:get_value(size, Given, integer_to_list(?SMALL)), 0, 1 bsl 26),
    Common = #{kind => case proplists:get_bool(erpc, Given) of true -> erpc; false -> rpc end,
               chart => proplists:get_value(chart, Given, none), hosts => Hosts, window_ms => window_ms(Speed), warm_ms => 100 + window_ms(Speed) div 8},
    case {Nodes, Sizes, Callers} of
        {{error, Why}, _, _} -> {error, Why};
        {_, {error, Why}, _} -> {error, Why};
        {{ok, N}, {ok, S}, _} when Callers >= 1, Callers =< 10000 ->
            fitting(Common#{nodes => N, sizes => S, callers => Callers});
        _ ->
            {error, io_lib:format("--callers ~b: expected a number from 1 to 10000", [Callers])}
    end.

%% Measuring many sizes takes a long time, and two nodes are enough to compare sizes.
nodes_text(true, "2,4") -> "2";
nodes_text(_, Text) -> Text.

window_ms(quick) -> 500;
window_ms(full) -> 2000.

%% About four copies of each call's payload exist at a time: one at each end, and one in transit in each direction.
fitting(#{nodes := Nodes, sizes := Sizes, callers := Callers} = Settings) ->
    Need = 4 * lists:max(Nodes) * Callers * lists:max(Sizes),
    case beamway_bench_os:available_bytes() div 2 of
        Room when Need > Room ->
            {error, io_lib:format("--size ~ts with ~b callers on ~b nodes needs about ~b MB, and ~b MB may be used here; "
                                  "take a smaller size or fewer --callers",
                                  [beamway_bench_text:size_text(lists:max(Sizes)), Callers, lists:max(Nodes),
                                   Need bsr 20, Room bsr 20])};
        _ -> {ok, Settings}
    end.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{nodes := Nodes, speed := Speed, hosts := Hosts} = Settings) ->
    [#{nodes => Count, contenders => contenders(Count, Hosts), directions => directions(Count, Speed),
       measure => fun(Cluster) -> measure(Cluster, Count, Settings) end} || Count <- Nodes].

contenders(2, []) -> beamway_bench_contender:and_rdma([tcp, tcp_tuned, tcp_spin, tcp_mptcp, unix, tls, ktls, beamway, beamway_tcp, beamway_tls, gen_rpc]);
contenders(_, []) -> beamway_bench_contender:and_rdma([tcp, tcp_tuned, beamway]);
contenders(_, _Hosts) -> beamway_bench_contender:and_rdma([tcp, tcp_tuned, beamway_tcp]).

directions(Count, quick) when Count > 2 -> [forward];
directions(_, _) -> [forward, reverse].

measure(Cluster, Count, #{sizes := Sizes} = Settings) ->
    _ = beamway_bench_messages:open(Cluster, beamway_bench_nodes:names(Cluster)),
    maps:from_list(lists:append([measure_size(Cluster, Count, Size, Settings) || Size <- Sizes])).

measure_size(#{contender := #{name := Name}} = Cluster, Count, Size, #{kind := Kind, callers := Callers} = Settings) ->
    Load = #{kind => case Name of gen_rpc -> gen_rpc; _ -> Kind end, callers => Callers, targets => beamway_bench_nodes:names(Cluster), bytes => Size},
    {Rate, P99} = run_load(Cluster, Load, Settings),
    [{key(Count, Size, rate), Rate}, {key(Count, Size, p99), P99}].

%% @doc Returns the total calls per second of all nodes, and the 99th percentile of the calls' durations in microseconds.
-spec run_load(beamway_bench_nodes:cluster(), beamway_bench_load:load(), #{warm_ms := pos_integer(), window_ms := pos_integer(), _ => _}) ->
          {Rate :: float(), P99 :: float()}.
run_load(Cluster, Load, #{warm_ms := WarmMs, window_ms := Ms}) ->
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, start, [Load]),
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, window, [WarmMs], WarmMs + 30000),
    Windows = beamway_bench_nodes:all(Cluster, beamway_bench_load, window, [Ms], Ms + 30000),
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, stop, []),
    beamway_bench_hist:rate_and_p99(Windows).

key(Count, Size, Which) ->
    Of = case Size of ?SMALL -> ""; _ -> [" of ", beamway_bench_text:size_words(Size)] end,
    Kind = case Which of rate -> ""; p99 -> ", p99" end,
    unicode:characters_to_binary(["calls", Of, ", ", integer_to_list(Count), " nodes", Kind]).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{nodes := Nodes, sizes := Sizes}) ->
    lists:append([rate_and_p99(name(Count, Size), beamway, Count, Size) || Count <- Nodes, Size <- Sizes])
        ++ [Metric || lists:member(2, Nodes), lists:member(?SMALL, Sizes),
                      Metric <- [rate(<<"tcp_link_rpc">>, beamway_tcp, 2, ?SMALL),
                                 (rate(<<"tls_rpc">>, beamway_tls, 2, ?SMALL))#{baselines := [tls, ktls, beamway_tcp]},
                                 (rate(<<"gen_rpc_call">>, gen_rpc, 2, ?SMALL))#{baselines := [tcp, tcp_tuned, beamway]}]]
        ++ lists:append([rate_and_p99(rdma_name(name(Count, Size)), beamway_rdma, Count, Size) || Count <- Nodes, Size <- Sizes]).

rate_and_p99(Name, Own, Count, Size) ->
    [rate(Name, Own, Count, Size),
     (rate(<<Name/binary, "_p99">>, Own, Count, Size))#{unit := <<"us">>, better := lower, key := key(Count, Size, p99)}].

rate(Name, Own, Count, Size) ->
    #{name => Name, unit => <<"calls/s">>, better => higher, key => key(Count, Size, rate),
      contender => Own, baselines => [tcp, tcp_tuned, tcp_spin, tcp_mptcp, unix]}.

name(Count, ?SMALL) -> iolist_to_binary(["rpc_n", integer_to_list(Count)]);
name(Count, Size) -> iolist_to_binary([name(Count, ?SMALL), "_", beamway_bench_text:size_text(Size)]).

rdma_name(<<"rpc_n4">>) -> <<"rpc_rdma">>;
rdma_name(<<"rpc_", Rest/binary>>) -> <<"rpc_rdma_", Rest/binary>>.

%% @private
-spec finish(beamway_bench_report:result(), map()) -> ok | {error, unicode:chardata()}.
finish(_, #{chart := none}) -> ok;
finish(Result, #{chart := File, nodes := [Count | _], sizes := Sizes, kind := Kind}) ->
    Title = io_lib:format("~ts, ~b nodes: calls a second by size", [Kind, Count]),
    beamway_bench_chart:draw(File, Title, [{Size, key(Count, Size, rate)} || Size <- Sizes], Result).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

given(Words) ->
    {ok, {Given, []}} = getopt:parse(options(), Words),
    Given.

prepare_test_() ->
    [?_assertMatch({ok, #{nodes := [2, 4], sizes := [16], callers := 100, kind := rpc}}, prepare(given([]), full)),
     ?_assertMatch({ok, #{nodes := [2], sizes := [16, 1024]}}, prepare(given(["--size", "16,1k"]), full)),
     ?_assertMatch({ok, #{kind := erpc}}, prepare(given(["--erpc"]), quick)),
     ?_assertMatch({error, _}, prepare(given(["--callers", "0"]), quick)),
     ?_assertMatch({error, _}, prepare(given(["--nodes", "1"]), quick)),
     ?_assertMatch({error, _}, prepare(given(["--size", "60m", "--callers", "10000"]), quick))].

metrics_test() ->
    {ok, Settings} = prepare(given([]), full),
    ?assertEqual([<<"rpc_n2">>, <<"rpc_n2_p99">>, <<"rpc_n4">>, <<"rpc_n4_p99">>, <<"tcp_link_rpc">>, <<"tls_rpc">>, <<"gen_rpc_call">>,
                  <<"rpc_rdma_n2">>, <<"rpc_rdma_n2_p99">>, <<"rpc_rdma">>, <<"rpc_rdma_p99">>],
                 [Name || #{name := Name} <- metrics(Settings)]),
    {ok, Sized} = prepare(given(["--size", "16,1m"]), full),
    ?assert(lists:member(<<"rpc_n2_1m">>, [Name || #{name := Name} <- metrics(Sized)])).
-endif.
