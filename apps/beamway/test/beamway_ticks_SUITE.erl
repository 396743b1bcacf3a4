%% SPDX-License-Identifier: Apache-2.0
%% @doc A bad network is not a dead peer: no Beamway connection is closed on a 100 Mbit/s path that loses 2 % of its
%% packets and is full of bulk data, with busy schedulers and a net_ticktime of 8 s.
%%
%% A pair of stock nodes and a pair with Beamway on TCP share the path with streams of iperf3 in both directions. Lost connections of the stock pair
%% are only counted, for comparison. `make test-ticks' takes five minutes; `BEAMWAY_TEST_TICKS_S=N' takes N seconds. Needs root. With
%% `BEAMWAY_TEST_TICKS_STORE=yes' the counts are stored in `bench/results/ticks.json' if the case passes and no other work ran on the machine; `force'
%% stores them in any case and marks them as noisy.
-module(beamway_ticks_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([no_false_timeout/1]).

-define(MESSAGE_BYTES, 1 bsl 20).
-define(STREAMS, 4).
-define(PATH, #{rate_bits => 100000000, delay_us => 1000, loss => 0.02, queue_bytes => 262144, seed => 22}).
-define(ARGS, ["-kernel", "net_ticktime", "8"]).
-define(ANSWER_MS, 60000).

suite() -> [{timetrap, {seconds, seconds() + 180}}].

all() -> [no_false_timeout].

seconds() -> list_to_integer(os:getenv("BEAMWAY_TEST_TICKS_S", "300")).

init_per_suite(Config) -> test_support:with_tun(Config).

end_per_suite(_Config) -> ok.

%% ---- the case

no_false_timeout(_Config) ->
    Store = os:getenv("BEAMWAY_TEST_TICKS_STORE", "no"),
    {ok, Context} = beamway_bench_store:begun("ticks", "make test-ticks STORE=1", Store =/= "yes"),
    {ok, Path} = beamway_path:open("bwk", ?PATH),
    try
        Pairs = [{Carrier, pair(Carrier, beamway_path:net(Path))} || Carrier <- [inet_tcp, beamway_tcp]],
        Fillers = fill(beamway_path:net(Path)),
        Burners = [beamway_peer:call(Peer, beamway_bench_load, start, [#{kind => burn, callers => 4}]) || {_, Pair} <- Pairs, {Peer, _} <- Pair],
        ok = lists:foreach(fun(Burner) -> ok = Burner end, Burners),
        receive after seconds() * 1000 -> ok end,
        Seen = [{Carrier, [beamway_peer:run(Peer, fun ask/0) || {Peer, _} <- Pair]} || {Carrier, Pair} <- Pairs],
        ok = lists:foreach(fun(Filler) -> ok = beamway_bench_tools:close(Filler, "TERM") end, Fillers),
        ct:log("~b s: ~0p~npath: ~0p", [seconds(), Seen, beamway_path:counters(Path)]),
        ok = beamway_runner:say("net_tick_timeout in ~b s: ~b over stock distribution, ~b over Beamway; messages of 1 MB: ~b and ~b",
                                [seconds(), timeouts(Seen, inet_tcp), timeouts(Seen, beamway_tcp), messages(Seen, inet_tcp), messages(Seen, beamway_tcp)]),
        [[], []] = [Downs || #{downs := Downs} <- proplists:get_value(beamway_tcp, Seen)],
        %% The connection that stayed up was not idle.
        [true, true] = [Messages > 0 || #{messages := Messages} <- proplists:get_value(beamway_tcp, Seen)],
        true = is_lossy(beamway_path:counters(Path)),
        ok = store(Store, Context, Seen)
    after
        ok = beamway_peer:stop_started(),
        ok = beamway_path:close(Path)
    end.

store("no", _, _) ->
    ok;
store(Store, Context, Seen) ->
    Both = fun(Count) -> #{stock => Count(Seen, inet_tcp), beamway => Count(Seen, beamway_tcp)} end,
    beamway_bench_store:publish(beamway_bench_store:file("ticks"),
                                Context#{repeats => 1, minutes => seconds() / 60, timeouts => Both(fun timeouts/2), lost => Both(fun lost/2),
                                         messages => Both(fun messages/2)}, Store =:= "force").

%% Returns the number of connections that were lost, for whatever reason.
lost(Seen, Carrier) -> lists:sum([length(Downs) || #{downs := Downs} <- proplists:get_value(Carrier, Seen)]).

timeouts(Seen, Carrier) -> length([Reason || #{downs := Downs} <- proplists:get_value(Carrier, Seen), {_, Reason} <- Downs, Reason =:= net_tick_timeout]).

messages(Seen, Carrier) -> lists:sum([Messages || #{messages := Messages} <- proplists:get_value(Carrier, Seen)]).

%% Returns whether the path had the properties that the case requires.
is_lossy(#{<<"there">> := There, <<"back">> := Back}) ->
    lists:all(fun(#{<<"packets">> := Packets, <<"lost">> := Lost}) -> Packets > 1000 andalso Lost * 100 > Packets end, [There, Back]).

pair(Carrier, #{spaces := Spaces, addresses := Addresses}) ->
    [{One, _}, {Other, _}] = Pair = [node_at(Carrier, Space, Address) || {Space, Address} <- lists:zip(Spaces, Addresses)],
    ok = beamway_peer:connect_both(Carrier, One, Other),
    [beamway_peer:run(Peer, fun() -> start(Node) end)
     || {Peer, Node} <- [{One, beamway_peer:call(Other, erlang, node, [])}, {Other, beamway_peer:call(One, erlang, node, [])}]],
    Pair.

node_at(Carrier, Space, Address) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, #{host => Address, wrapper => beamway_netns:host(Space), args => ?ARGS}),
    {Peer, Node}.

%% Uses more streams than the nodes do, so that the queue is full both ways.
fill(#{spaces := [A, B], addresses := [_, Address]}) ->
    Server = iperf(B, ["-s"]),
    _ = beamway_peer:wait_until(fun() -> beamway_netns:in(B, "ss -Hltn sport = :5201") =/= "" end, 10000),
    Client = iperf(A, ["-c", Address, "--bidir", "-P", "8", "-t", integer_to_list(seconds() + 120)]),
    [Server, Client].

iperf(Space, Words) ->
    [Ip | Rest] = beamway_netns:host(Space),
    beamway_bench_tools:open(Ip, Rest ++ ["iperf3" | Words]).

%% ---- in the nodes

%% Starts streams to the other node, which restart when their connection is lost, and a process that records lost connections.
start(Node) ->
    Owner = self(),
    Count = counters:new(1, []),
    Watcher = spawn(fun() ->
                            ok = net_kernel:monitor_nodes(true, [nodedown_reason]),
                            true = register(?MODULE, self()),
                            Owner ! {self(), watching},
                            watch(Count, [])
                    end),
    receive {Watcher, watching} -> ok after ?ANSWER_MS -> error(no_watcher) end,
    true = register(beamway_ticks_sink, spawn(fun sink/0)),
    Payload = binary:copy(<<"t">>, ?MESSAGE_BYTES),
    _ = [spawn(fun() -> stream(Node, Payload, Count) end) || _ <- lists:seq(1, ?STREAMS)],
    ok.

watch(Count, Downs) ->
    receive
        {nodedown, Node, Info} -> watch(Count, [{Node, proplists:get_value(nodedown_reason, Info)} | Downs]);
        {ask, From, Ref} -> From ! {Ref, #{messages => counters:get(Count, 1), downs => Downs}}, watch(Count, Downs);
        _ -> watch(Count, Downs)
    end.

ask() ->
    Ref = make_ref(),
    ?MODULE ! {ask, self(), Ref},
    receive {Ref, Answer} -> Answer after ?ANSWER_MS -> error(no_answer) end.

sink() ->
    receive {From, Ref, _} -> From ! Ref end,
    sink().

stream(Node, Payload, Count) ->
    true = erlang:monitor_node(Node, true),
    Ref = make_ref(),
    {beamway_ticks_sink, Node} ! {self(), Ref, Payload},
    receive
        Ref -> counters:add(Count, 1, 1);
        {nodedown, Node} -> receive after 1000 -> ok end
    end,
    true = erlang:monitor_node(Node, false),
    receive {nodedown, Node} -> ok after 0 -> ok end,
    stream(Node, Payload, Count).
