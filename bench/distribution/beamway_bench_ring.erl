%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench ring': on each of six nodes, some workers send a 10 MB binary around the ring, and the last node acknowledges it. This repeats a
%% benchmark of the library on which teleport is modelled.
%%
%% Like that library, it prints each worker's time in microseconds, and the mean in seconds. The compared value is how many MB per second all workers
%% together send around the ring, computed from the time of the slowest worker. The contender `teleport' also sends handles of shared binaries
%% (`teleport:share/1'), and `direct_stock' uses teleport's own connections in addition to stock distribution.
-module(beamway_bench_ring).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).

-define(BYTES, 10000000).
-define(NODES, 6).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{workers, undefined, "workers", {string, "1,6,8"}, "how many send at a time on each node"},
     {nodes, undefined, "nodes", {integer, ?NODES}, "how many nodes the ring has"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    Nodes = proplists:get_value(nodes, Given),
    case beamway_bench_text:numbers("--workers", proplists:get_value(workers, Given), 1, 64) of
        {ok, Workers} when Nodes >= 2, Nodes =< 16 -> fitting(#{workers => Workers, nodes => Nodes, rounds => case Speed of quick -> 1; full -> 2 end});
        {ok, _} -> {error, io_lib:format("--nodes ~b: expected a number from 2 to 16", [Nodes])};
        {error, Why} -> {error, Why}
    end.

%% About three copies of each binary that is in transit exist at the same time.
fitting(#{workers := Workers, nodes := Nodes} = Settings) ->
    Need = 3 * Nodes * lists:max(Workers) * ?BYTES,
    case beamway_bench_os:available_bytes() div 2 of
        Room when Need > Room -> {error, io_lib:format("this needs about ~b MB, and ~b MB may be used here; take fewer --workers", [Need bsr 20, Room bsr 20])};
        _ -> {ok, Settings}
    end.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{nodes := Nodes} = Settings) ->
    [#{nodes => Nodes, contenders => [tcp, unix, beamway, beamway_tcp, teleport, direct_stock], directions => [forward],
       measure => fun(Cluster) -> measure(Cluster, Settings) end}].

measure(#{contender := #{name := Name}, members := Members} = Cluster, #{workers := Workers, rounds := Rounds}) ->
    Names = beamway_bench_nodes:names(Cluster),
    Next = lists:zip(Members, tl(Names) ++ [hd(Names)]),
    Way = beamway_bench_messages:open(Cluster, []),
    _ = [beamway_bench_nodes:call(Member, beamway_bench_messages, start_ring, [Way, To]) || {Member, To} <- Next],
    Best = fun(Count, Kind) -> lists:max([round_trip(Way, Name, Next, {Count, Kind}) || _ <- lists:seq(1, Rounds)]) end,
    Plain = [{Count, Best(Count, plain)} || Count <- Workers],
    %% For a contender that cannot send blocks, the result for plain binaries is used.
    Blocks = case Name of teleport -> [{Count, Best(Count, block)} || Count <- Workers]; _ -> Plain end,
    maps:from_list([{key(Count, Kind), Figure} || {Kind, Figures} <- [{plain, Plain}, {block, Blocks}], {Count, Figure} <- Figures]).

round_trip(Way, Name, Next, {Workers, Kind}) ->
    Nodes = length(Next),
    Start = erlang:monotonic_time(microsecond),
    Times = lists:append(beamway_bench_nodes:each([{Member, beamway_bench_messages, ring, [Way, {To, Nodes}, {Workers, ?BYTES, Kind}]} || {Member, To} <- Next], 120000)),
    Elapsed = erlang:monotonic_time(microsecond) - Start,
    beamway_bench_text:note("ring: ~ts, ~b workers, ~ts: ~ts us; mean ~.3f s",
                       [Name, Workers, Kind, lists:join(" ", [integer_to_list(Us) || Us <- Times]), lists:sum(Times) / length(Times) / 1.0e6]),
    Nodes * Workers * ?BYTES / Elapsed.

key(Workers, Kind) -> iolist_to_binary([io_lib:format("10 MB round the ring, ~b workers", [Workers]), case Kind of plain -> []; block -> ", blocks" end]).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{workers := Workers}) ->
    lists:append([[metric("ring_w", Count, beamway, [tcp, unix]), metric("ring_tcp_w", Count, beamway_tcp, [tcp]),
                   (metric("ring_blocks_w", Count, teleport, [tcp, beamway]))#{key := key(Count, block)},
                   metric("ring_stock_w", Count, direct_stock, [tcp])] || Count <- Workers]).

metric(Name, Count, Contender, Baselines) ->
    #{name => iolist_to_binary([Name, integer_to_list(Count)]), unit => <<"MB/s">>, better => higher, key => key(Count, plain),
      contender => Contender, baselines => Baselines}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

given(Words) ->
    {ok, {Given, []}} = getopt:parse(options(), Words),
    Given.

prepare_test_() ->
    [?_assertMatch({ok, #{workers := [1, 6, 8], nodes := 6}}, prepare(given([]), full)),
     ?_assertMatch({ok, #{workers := [2], nodes := 3}}, prepare(given(["--workers", "2", "--nodes", "3"]), quick)),
     ?_assertMatch({error, _}, prepare(given(["--workers", "0"]), quick)), ?_assertMatch({error, _}, prepare(given(["--nodes", "1"]), quick))].

metrics_test() ->
    Names = [Name || #{name := Name} <- metrics(#{workers => [1, 6, 8]})],
    ?assertEqual([], [<<"ring_w6">>, <<"ring_w8">>, <<"ring_tcp_w6">>, <<"ring_blocks_w6">>, <<"ring_stock_w6">>] -- Names).
-endif.
