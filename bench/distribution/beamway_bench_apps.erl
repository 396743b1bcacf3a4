%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench apps': what do programs gain? The programs are mnesia, whose transactions are replicated to a second node, and a publish-subscribe
%% service and presences in the manner of Phoenix ({@link beamway_bench_far_load}).
%%
%% The two nodes run on the same host, on hosts that are joined by veth, and on hosts that are joined by emulated paths of 1 Gbit/s. On these paths,
%% four streams of large messages with plain `!' run at the same time. In the first part, operations start at a fixed rate, whether or not earlier ones
%% have ended, and are measured from the time when they are due. In the second part, many processes perform operations as fast as they can. The CPU time
%% is that of both nodes; it is not measured during the streams, which would use most of it.
%%
%% Then all TCP connections between the hosts are reset once, and new ones are rejected for 43 ms, while transactions and broadcasts continue. As in a
%% cluster that discovers its nodes, both nodes keep trying to connect again. The results are how many nodes lost the other one, how many
%% operations did not reach the other node, and how long the longest of the remaining operations took. The benchmark needs root.
%%
%% Tuned TCP was tuned for calls and streams that run alone, so its latency is not compared during the streams.
-module(beamway_bench_apps).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).
%% Called on the nodes.
-export([stay_connected/1, under_cut/1, replicated/0]).

-define(PATHS, [loopback, veth, path_1ms, path_20ms]).
-define(LOADS, [transaction, pubsub, presence]).
-define(REPEATS, 7).
-define(STREAMS, beamway_bench_apps_streams).
-define(STREAM_BYTES, 10000000).

-define(CUT_LOADS, [transaction, pubsub]).
%% Operations start for two seconds, one of each load every 2 ms, so there are 1,000 of each.
-define(WATCH_MS, 2000).
-define(EVERY_MS, 2).
-define(CALM_MS, 300).
-define(REFUSED_MS, 43).
-define(CONFIRM_MS, 3000).
-define(CONNECT_EVERY_MS, 100).

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{path, undefined, "path", string, "only this one: loopback, veth, path_1ms or path_20ms (all of them take 40 minutes, and with --quick under 45 s each)"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case {beamway_bench_net:chosen_or_loopback(proplists:get_value(path, Given, all), ?PATHS), os:find_executable("iptables")} of
        {{error, Why}, _} -> {error, Why};
        {{ok, _, [_ | _]}, false} -> {error, "missing: iptables. Run: scripts/install-packages bench"};
        {{ok, Paths, Nets}, _} -> beamway_bench_far:with_mnesia((settings(Paths, Speed, Given))#{facts => beamway_bench_net:facts(Nets)})
    end.

%% Each turn needs new nodes, even with --quick, because the cut has separated those of stock distribution.
settings(Paths, Speed, Given) -> maps:merge(#{paths => Paths, fresh => true}, times(Speed, Paths, Given)).

times(quick, Paths, _) -> #{warm_ms => 200, ms => 500, budget_ms => 36000 * length(Paths)};
times(full, _, Given) -> #{warm_ms => 500, ms => 2000, repeats => proplists:get_value(repeats, Given, ?REPEATS)}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{paths := Paths, speed := Speed} = Settings) ->
    [maps:merge(case Path of loopback -> #{}; _ -> #{net => Path} end,
                #{nodes => 2, contenders => contenders(Speed, Path), directions => [forward], measure => fun(Cluster) -> measure(Path, Cluster, Settings) end})
     || Path <- Paths].

contenders(Speed, Path) -> [tcp] ++ [tcp_tuned || Speed =:= full] ++ [Own || {Of, _, Own} <- compared(), Of =:= Path].

%% Returns the paths, the names that they have in metrics, and the contenders that are compared with stock distribution.
compared() -> [{loopback, "shm", beamway}, {loopback, "tcp", beamway_tcp}, {veth, "veth", beamway_tcp}, {path_1ms, "1ms", beamway_tcp}, {path_20ms, "20ms", beamway_tcp}].

has_streams(Path) -> lists:member(Path, [path_1ms, path_20ms]).

%% ---- a turn ----

measure(Path, Cluster, #{warm_ms := WarmMs} = Settings) ->
    [_, Far] = beamway_bench_nodes:names(Cluster),
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_far_load, start, []),
    ok = on_near(Cluster, beamway_bench_far_load, connect, [Far]),
    ok = start_streams(has_streams(Path), Cluster, WarmMs),
    Before = sent(Path, Cluster),
    Loads = [{key(Path, Load, What), Figure} || Load <- ?LOADS, {What, Figure} <- load(Load, Path, Cluster, Settings)],
    Streams = streams(Path, Before, sent(Path, Cluster)),
    maps:from_list(Loads ++ Streams ++ cut(Path, Cluster)).

load(Load, Path, Cluster, Settings) ->
    Cpu = fun() -> beamway_bench_nodes:cpu_us(Cluster) end,
    {Times, Before, After} = beamway_bench_far:at_pace(Load, Cluster, Settings, Cpu),
    {{Done, Us}, _, _} = beamway_bench_far:at_full_rate(Load, Cluster, longer(has_streams(Path), Settings), Cpu),
    [{rate, Done * 1.0e6 / Us}] ++ [{What, beamway_bench_stats:percentile(P, Times) / 1000} || {What, P} <- [{p50, 50}, {p99, 99}]]
        ++ [{cpu, (After - Before) / length(Times)} || not has_streams(Path)].

%% While the streams run, a transaction may take a second.
longer(false, Settings) -> Settings;
longer(true, #{warm_ms := WarmMs, ms := Ms} = Settings) -> Settings#{warm_ms := 2 * WarmMs, ms := 3 * Ms div 2}.

start_streams(false, _, _) -> ok;
start_streams(true, #{members := [Near, Other]} = Cluster, WarmMs) ->
    [_, Far] = beamway_bench_nodes:names(Cluster),
    true = beamway_bench_nodes:call(Other, beamway_bench_messages, start_sink, []),
    ok = beamway_bench_nodes:call(Near, beamway_bench_messages, start_streams, [?STREAMS, stock, Far, ?STREAM_BYTES, infinity]),
    receive after WarmMs -> ok end.

sent(Path, Cluster) ->
    case has_streams(Path) of
        true -> on_near(Cluster, beamway_bench_messages, done, [?STREAMS]);
        false -> none
    end.

streams(_, none, none) -> [];
streams(Path, {Sent, From}, {SentThen, Until}) -> [{key(Path, streams), (SentThen - Sent) * ?STREAM_BYTES / (Until - From)}].

on_near(Cluster, Module, Function, Args) -> beamway_bench_far:on_near(Cluster, Module, Function, Args).

%% ---- a cut ----

cut(loopback, _) -> [];
cut(Path, #{contender := #{name := Name}, members := [#{os_pid := OsPid}, _]} = Cluster) ->
    Space = string:trim(os:cmd("ip netns identify " ++ integer_to_list(OsPid))),
    [_, Address] = string:lexemes(atom_to_list(hd(beamway_bench_nodes:names(Cluster))), "@"),
    %% A reset in response to a received packet has no effect if more data is on its way, so packets that are sent are rejected as well. The resets must pass.
    Rules = [Direction ++ " ! --tcp-flags RST RST -j REJECT --reject-with tcp-reset" || Direction <- ["! -i lo -d " ++ Address, "! -o lo -s " ++ Address]],
    Before = connections(Space),
    Figures = around(Cluster, ?CONFIRM_MS, fun() -> beamway_cut:during({Space, "OUTPUT INPUT"}, Rules, ?REFUSED_MS) end),
    Before -- connections(Space) =/= [] orelse error({nothing_was_cut, Name}),
    [{cut_key(Path, What), Figure} || {What, Figure} <- Figures].

%% Returns both ends of each TCP connection in the namespace.
connections(Space) -> [lists:nthtail(2, string:lexemes(Line, " ")) || Line <- string:lexemes(beamway_netns:in(Space, "ss -Htn state established"), "\n")].

%% Disturbs the nodes during the load, and returns the effects.
around(#{members := [One, Two]} = Cluster, ConfirmMs, Disturb) ->
    [First, Second] = beamway_bench_nodes:names(Cluster),
    %% Mnesia would report errors on the terminal.
    _ = beamway_bench_nodes:all(Cluster, logger, set_primary_config, [level, none]),
    _ = [ok = beamway_bench_nodes:call(Member, Module, Function, [Other])
         || {Member, Other} <- [{One, Second}, {Two, First}], {Module, Function} <- [{beamway_bench_load, watch}, {?MODULE, stay_connected}]],
    Bench = self(),
    Load = spawn_link(fun() -> Bench ! {self(), on_near(Cluster, ?MODULE, under_cut, [ConfirmMs])} end),
    receive after ?CALM_MS -> ok end,
    _ = Disturb(),
    %% This receive needs no timeout, because the call has one.
    #{transaction := {_, Longest}, pubsub := {Lost, LongestToo}} = receive {Load, Outcome} -> Outcome end,
    Down = [At || At <- beamway_bench_nodes:all(Cluster, beamway_bench_load, nodedown_at, [1000]), At =/= still_up],
    [{nodedowns, length(Down)}, {{transaction, lost}, ?WATCH_MS div ?EVERY_MS - beamway_bench_nodes:call(Two, ?MODULE, replicated, [])},
     {{transaction, longest}, Longest}, {{pubsub, lost}, Lost}, {{pubsub, longest}, LongestToo}].

%% @private Starts a process that keeps connecting to the node, which has no effect while it is connected.
-spec stay_connected(node()) -> ok.
stay_connected(Node) ->
    _ = spawn(fun() -> connect_again(Node) end),
    ok.

connect_again(Node) ->
    _ = net_kernel:connect_node(Node),
    receive after ?CONNECT_EVERY_MS -> connect_again(Node) end.

%% @private Starts transactions and broadcasts at a fixed rate. Returns, for each load, how many failed and how long the longest of the others took.
-spec under_cut(ConfirmMs :: pos_integer()) -> #{transaction | pubsub => {Failed :: non_neg_integer(), LongestMs :: number()}}.
under_cut(ConfirmMs) ->
    Ended = ets:new(?MODULE, [public, duplicate_bag]),
    Started = [spawn_monitor(fun() -> beamway_bench_messages:planned({?EVERY_MS, ?WATCH_MS}, operation(Load, ConfirmMs, Ended)) end) || Load <- ?CUT_LOADS],
    %% These receives need no timeout, because every operation ends.
    _ = [receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason end || {Pid, Monitor} <- Started],
    maps:from_list([{Load, summary([{Outcome, Us} || {_, Outcome, Us} <- ets:lookup(Ended, Load)])} || Load <- ?CUT_LOADS]).

operation(Load, ConfirmMs, Ended) ->
    Next = atomics:new(1, [{signed, false}]),
    fun() ->
            Began = erlang:monotonic_time(microsecond),
            Outcome = operate(Load, atomics:add_get(Next, 1, 1), ConfirmMs),
            ets:insert(Ended, {Load, Outcome, erlang:monotonic_time(microsecond) - Began})
    end.

%% Each transaction has a different key, so that {@link replicated/0} can count them.
operate(transaction, N, _) -> beamway_bench_far_load:transaction({cut, N}, beamway_bench_far_load:item(mnesia, N));
operate(pubsub, N, ConfirmMs) -> beamway_bench_pubsub:publish(N, beamway_bench_far_load:item(json, N), ConfirmMs).

summary(Outcomes) -> {length([Failed || {Failed, _} <- Outcomes, Failed =/= ok]), lists:max([0 | [Us || {ok, Us} <- Outcomes]]) / 1000}.

%% @private Returns how many of the transactions that started around a cut this node has.
-spec replicated() -> non_neg_integer().
replicated() -> length([Key || {cut, _} = Key <- mnesia:dirty_all_keys(order)]).

%% ---- what is reported ----

words(loopback) -> "same host";
words(Path) when Path =:= path_1ms; Path =:= path_20ms -> [beamway_bench_net:title(Path), ", filled by messages of 10 MB"];
words(veth) -> "two hosts";
words(transaction) -> "transactions of mnesia";
words(pubsub) -> "broadcasts of PubSub";
words(presence) -> "deltas of Presence";
words(rate) -> "as many as possible";
words(cpu) -> "processor time of both nodes for each";
words(What) -> atom_to_list(What).

key(Path, Load, What) -> iolist_to_binary([words(Path), ": ", words(Load), ": ", words(What)]).

key(Path, streams) -> iolist_to_binary([words(Path), ": these messages"]).

cut_key(Path, What) ->
    iolist_to_binary([words(Path), ", connections cut for 43 ms: ",
                      case What of
                          nodedowns -> "nodes that lost the other";
                          {transaction, lost} -> "transactions of 1,000 that the other node does not have";
                          {pubsub, lost} -> "broadcasts of 1,000 that did not arrive";
                          {Load, longest} -> ["longest of the other ", words(Load)]
                      end]).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{paths := Paths}) -> lists:append([metrics(Path, Name, Own) || {Path, Name, Own} <- compared(), lists:member(Path, Paths)]).

metrics(Path, Name, Own) ->
    [metric([Name, "_", short(Load), "_", atom_to_list(What)], key(Path, Load, What), unit(What), Own, rivals(Path, What))
     || Load <- ?LOADS, What <- [rate, p50, p99] ++ [cpu || not has_streams(Path)]]
        ++ [metric([Name, "_streams"], key(Path, streams), {<<"MB/s">>, higher}, Own, rivals(Path, streams)) || has_streams(Path)]
        ++ [metric([Name, "_cut_", cut_name(What)], cut_key(Path, What), cut_unit(What), Own, rivals(Path, cut))
            || Path =/= loopback, What <- [nodedowns | [{Load, Of} || Load <- ?CUT_LOADS, Of <- [lost, longest]]]].

metric(Name, Key, {Unit, Better}, Own, Rivals) -> #{name => iolist_to_binary(["apps_", Name]), key => Key, unit => Unit, better => Better, contender => Own, baselines => Rivals}.

rivals(Path, What) ->
    case has_streams(Path) andalso lists:member(What, [p50, p99]) of
        true -> [tcp];
        false -> [tcp, tcp_tuned]
    end.

short(transaction) -> "mnesia";
short(Load) -> atom_to_list(Load).

unit(rate) -> {<<"1/s">>, higher};
unit(_) -> {<<"us">>, lower}.

cut_name(nodedowns) -> "nodedowns";
cut_name({Load, Of}) -> [short(Load), "_", atom_to_list(Of)].

cut_unit(nodedowns) -> {<<"nodes">>, lower};
cut_unit({_, lost}) -> {<<"of 1,000">>, lower};
cut_unit({_, longest}) -> {<<"ms">>, lower}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics_test() ->
    Metrics = metrics(settings(?PATHS, full, [])),
    Names = [Name || #{name := Name} <- Metrics],
    ?assertEqual([], [<<"apps_shm_mnesia_rate">>, <<"apps_tcp_pubsub_cpu">>, <<"apps_veth_presence_p99">>, <<"apps_20ms_streams">>, <<"apps_1ms_cut_pubsub_longest">>,
                      <<"apps_veth_cut_nodedowns">>] -- Names),
    ?assertEqual(length(Names), length(lists:usort(Names))),
    ?assertEqual([], [Name || #{name := Name, baselines := Others} <- Metrics, Name =:= <<"apps_20ms_mnesia_p99">>, lists:member(tcp_tuned, Others)]),
    [?assert(lists:member(Name, contenders(full, Path))) || {Path, Tag, Own} <- compared(), #{baselines := Others} <- metrics(Path, Tag, Own), Name <- [Own | Others]].

one_path_test() ->
    ?assertEqual([], [N || #{name := <<"apps_20ms", _/binary>> = N} <- metrics(settings([loopback, veth], quick, []))]).

%% Verdicts need seven repeats.
repeats_test_() ->
    [?_assertMatch(#{repeats := ?REPEATS}, settings(?PATHS, full, [])), ?_assertMatch(#{repeats := 9}, settings(?PATHS, full, [{repeats, 9}])),
     ?_assert(?REPEATS >= beamway_bench_stats:least_repeats())].

summary_test_() ->
    [?_assertEqual({2, 3.0}, summary([{ok, 1000}, {timeout, 9000}, {ok, 3000}, {{aborted, x}, 1}])), ?_assertEqual({1, 0.0}, summary([{timeout, 5}]))].

%% Real nodes of stock distribution lose nothing while they are connected. When they are disconnected, the losses are counted.
losses_are_counted_test_() ->
    {timeout, 120, fun() ->
        {ok, ok} = beamway_bench_run:in_a_process(
                     fun() ->
                             Epmd = beamway_bench_nodes:start_epmd(),
                             #{members := [Near, Other]} = Cluster = beamway_bench_nodes:start(Epmd, maps:get(tcp, beamway_bench_contender:all("/", 1)), #{count => 2}),
                             ok = beamway_bench_nodes:connect(Cluster, forward),
                             [_, Far] = beamway_bench_nodes:names(Cluster),
                             [ok, ok] = beamway_bench_nodes:all(Cluster, beamway_bench_far_load, start, []),
                             ok = on_near(Cluster, beamway_bench_far_load, connect, [Far]),
                             ?assertMatch(#{transaction := {0, _}, pubsub := {0, _}}, on_near(Cluster, ?MODULE, under_cut, [30000])),
                             ?assertEqual(?WATCH_MS div ?EVERY_MS, beamway_bench_nodes:call(Other, ?MODULE, replicated, [])),
                             {atomic, ok} = on_near(Cluster, mnesia, clear_table, [order]),
                             Figures = around(Cluster, 1000, fun() -> beamway_bench_nodes:call(Near, erlang, disconnect_node, [Far]) end),
                             ?assertEqual(2, proplists:get_value(nodedowns, Figures)),
                             [?assert(proplists:get_value({Load, lost}, Figures) > 0) || Load <- ?CUT_LOADS],
                             ok
                     end)
    end}.
-endif.
