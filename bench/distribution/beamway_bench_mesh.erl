%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench mesh': what does a full mesh cost? 150 nodes on this machine all connect to each other and call each other in turn, and a third of the
%% nodes are killed during the calls.
%%
%% The memory for rings is limited, as on a real host: each node has rings for 16 of its links, and its other links must fall back to TCP and report
%% that limit as the reason. After the kill, every surviving node must have lost the killed nodes and no others.
-module(beamway_bench_mesh).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).
%% Called on the nodes.
-export([connect/1, start_exchange/1, exchanged/0]).

-define(RING_BYTES, 65536).
-define(LINKS_WITH_RINGS, 16).
-define(CONNECT_MS, 300000).
-define(LAPS, 20).
-define(LIMIT_WORDS, "ring_limit_bytes").

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{nodes, undefined, "nodes", integer, "how many nodes (150; quick: 40)"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    {Nodes, Repeats, Ms} = case Speed of quick -> {40, 1, 1500}; full -> {150, 3, 5000} end,
    %% A node needs about 40 MB, and twice that while it starts.
    Most = beamway_bench_os:available_bytes() div (80 bsl 20),
    case proplists:get_value(nodes, Given, Nodes) of
        Count when Count < 3; Count > 500 -> {error, io_lib:format("--nodes ~b: expected a number from 3 to 500", [Count])};
        Count when Count > Most ->
            {error, io_lib:format("--nodes ~b: this machine has free memory for about ~b. Give a smaller --nodes", [Count, Most])};
        Count -> {ok, #{nodes => Count, repeats => proplists:get_value(repeats, Given, Repeats), ms => Ms, budget_ms => infinity}}
    end.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(Settings) ->
    [#{nodes => 0, contenders => [Name], directions => [none], measure => fun(none) -> measure(Name, Settings) end} || Name <- [tcp, tcp_tuned, beamway]].

measure(Name, #{nodes := Count, ms := Ms, contenders := Contenders}) ->
    Epmd = beamway_bench_nodes:start_epmd(),
    Clusters = beamway_bench_nodes:start_many(Epmd, with_few_rings(maps:get(Name, Contenders)), Count),
    Members = lists:append([Batch || #{members := Batch} <- Clusters]),
    _ = beamway_bench_nodes:all(Members, erlang, set_cookie, [beamway_bench_mesh]),
    Before = memory(Members),
    SetupMs = connect_all(Members),
    Kinds = kinds(Name, Members),
    {Rate, 0} = exchange(Members, Ms),
    Links = Count * (Count - 1) div 2,
    LinkBytes = (memory(Members) - Before) / Links,
    NoticedMs = kill(Members),
    {_, Failed} = exchanged(survivors(Members)),
    ok = lists:foreach(fun beamway_bench_nodes:stop/1, Clusters),
    ok = beamway_bench_nodes:stop_epmd(Epmd),
    maps:merge(Kinds, #{key(setup, Count) => SetupMs / 1000, key(link_ms, Count) => SetupMs / Links, key(memory, Count) => LinkBytes / 1024,
                        key(calls, Count) => Rate, key(noticed, Count) => NoticedMs / 1000, key(failed, Count) => Failed}).

with_few_rings(Contender) ->
    #{env := Env} = Small = beamway_bench_contender:small(Contender),
    Small#{env := [{"BEAMWAY_RING_BYTES", integer_to_list(?RING_BYTES)},
                   {"BEAMWAY_RING_LIMIT_BYTES", integer_to_list(?LINKS_WITH_RINGS * 2 * ?RING_BYTES)} | Env]}.

names(Members) -> [Name || #{name := Name} <- Members].

memory(Members) -> lists:sum([beamway_bench_os:pss_bytes(OsPid) || #{os_pid := OsPid} <- Members]).

%% ---- set-up

%% Connects all nodes at once, each to those after it in the list. Returns how many milliseconds pass until every node is connected to all others.
connect_all(Members) ->
    Start = erlang:monotonic_time(millisecond),
    Answers = beamway_bench_nodes:each([{Member, ?MODULE, connect, [names(Later)]} || {Member, Later} <- with_later(Members)], ?CONNECT_MS),
    [] = lists:append(Answers),
    await_view(Members, names(Members), Start + ?CONNECT_MS),
    erlang:monotonic_time(millisecond) - Start.

with_later([]) -> [];
with_later([Member | Later]) -> [{Member, Later} | with_later(Later)].

%% @private Returns the nodes to which connecting failed.
-spec connect([node()]) -> [{node(), false | ignored}].
connect(Nodes) ->
    [{Node, Answer} || Node <- Nodes, Answer <- [net_kernel:connect_node(Node)], Answer =/= true].

%% Waits until each member is connected to exactly these nodes.
await_view(Members, Names, Deadline) ->
    Views = beamway_bench_nodes:all(Members, erlang, nodes, [connected], 60000),
    case {[{Name, differences(Name, View, Names)} || {Name, View} <- lists:zip(names(Members), Views), differences(Name, View, Names) =/= []],
          erlang:monotonic_time(millisecond) > Deadline} of
        {[], _} -> ok;
        {[{Name, Differences} | _] = Wrong, true} -> error({wrong_view, length(Wrong), Name, lists:sublist(Differences, 5)});
        {_, false} -> receive after 20 -> await_view(Members, Names, Deadline) end
    end.

differences(Name, View, Names) ->
    Wanted = lists:delete(Name, Names),
    (Wanted -- View) ++ (View -- Wanted).

%% Returns the number of links with rings. A link without rings must report why it has none.
kinds(beamway, Members) ->
    Links = lists:append(beamway_bench_nodes:all(Members, beamway, links, [], 60000)),
    {Shared, Others} = lists:partition(fun(#{link := Link}) -> Link =:= shm end, Links),
    case [Link || #{reason := Reason} = Link <- Others, string:find(Reason, ?LIMIT_WORDS) =:= nomatch] of
        [] -> ok;
        [Link | _] -> error({no_reason_for_tcp, Link})
    end,
    length(Shared) =< ?LINKS_WITH_RINGS * length(Members) orelse error({more_rings_than_allowed, length(Shared)}),
    #{key(rings, length(Members)) => length(Shared) / 2, key(fallen_back, length(Members)) => length(Others) / 2};
kinds(_, _) -> #{}.

%% ---- calls

%% Returns the total calls per second of all nodes, and the number of failed calls. The nodes continue to call each other afterwards. Before the calls
%% are counted, each node calls every other node ?LAPS times, because the time that a new link takes to adapt to its traffic is part of the setup.
exchange(Members, Ms) ->
    _ = beamway_bench_nodes:all(Members, ?MODULE, start_exchange, [names(Members)], 60000),
    ok = await_laps(Members, erlang:monotonic_time(millisecond) + ?CONNECT_MS),
    {Before, From} = {exchanged(Members), erlang:monotonic_time(millisecond)},
    receive after Ms -> ok end,
    {{After, Failed}, Until} = {exchanged(Members), erlang:monotonic_time(millisecond)},
    {(After - element(1, Before)) * 1000 / (Until - From), Failed}.

await_laps(Members, Deadline) ->
    Wanted = ?LAPS * (length(Members) - 1),
    case [Answered || {Answered, _} <- beamway_bench_nodes:all(Members, ?MODULE, exchanged, [], 60000), Answered < Wanted] of
        [] -> ok;
        Waiting ->
            erlang:monotonic_time(millisecond) < Deadline orelse error({calls_in_turn_stand_still, length(Waiting)}),
            receive after 100 -> await_laps(Members, Deadline) end
    end.

exchanged(Members) ->
    {Answered, Failed} = lists:unzip(beamway_bench_nodes:all(Members, ?MODULE, exchanged, [], 60000)),
    {lists:sum(Answered), lists:sum(Failed)}.

%% @private Starts a process that calls the other nodes in turn, and stops calling those that have gone down.
-spec start_exchange([node()]) -> ok.
start_exchange(Nodes) ->
    Counts = counters:new(2, []),
    ok = persistent_term:put(?MODULE, Counts),
    _ = spawn(fun() -> call_in_turn(lists:delete(node(), Nodes), [], Counts) end),
    ok.

call_in_turn([], [], _) -> ok;
call_in_turn([], Called, Counts) -> call_in_turn(lists:reverse(Called), [], Counts);
call_in_turn([Node | Nodes], Called, Counts) ->
    case rpc:call(Node, beamway_bench_load, echo, [node()]) of
        Own when Own =:= node() -> ok = counters:add(Counts, 1, 1), call_in_turn(Nodes, [Node | Called], Counts);
        {badrpc, _} -> ok = counters:add(Counts, 2, 1), call_in_turn(Nodes, Called, Counts)
    end.

%% @private Returns the numbers of answered and failed calls so far.
-spec exchanged() -> {non_neg_integer(), non_neg_integer()}.
exchanged() ->
    Counts = persistent_term:get(?MODULE),
    {counters:get(Counts, 1), counters:get(Counts, 2)}.

%% ---- a third is killed

victims(Members) -> [Member || {Number, Member} <- lists:zip(lists:seq(1, length(Members)), Members), Number rem 3 =:= 0].

survivors(Members) -> Members -- victims(Members).

%% Returns how many milliseconds pass until every surviving node is connected to all other survivors and to no other node.
kill(Members) ->
    Start = erlang:monotonic_time(millisecond),
    _ = [ok = beamway_bench_os:kill(Os) || #{os := Os} <- victims(Members)],
    Survivors = survivors(Members),
    ok = await_view(Survivors, names(Survivors), Start + ?CONNECT_MS),
    erlang:monotonic_time(millisecond) - Start.

%% ---- output

key(What, Count) -> unicode:characters_to_binary(io_lib:format("~b nodes: ~ts", [Count, words(What)])).

words(setup) -> "until all are connected";
words(link_ms) -> "the same for each link";
words(memory) -> "memory for each link, both ends";
words(calls) -> "calls among all";
words(noticed) -> "until a third is killed and every survivor knows";
words(failed) -> "calls that failed by it";
words(rings) -> "links with rings";
words(fallen_back) -> "links over TCP for want of ring memory".

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{nodes := Count}) ->
    [#{name => Name, unit => Unit, better => Better, key => key(What, Count), contender => beamway, baselines => Baselines}
     || {Name, What, Unit, Better, Baselines} <-
            [{<<"mesh_setup">>, setup, <<"s">>, lower, [tcp, tcp_tuned]}, {<<"mesh_setup_link">>, link_ms, <<"ms">>, lower, [tcp, tcp_tuned]},
             {<<"mesh_memory_link">>, memory, <<"KB">>, lower, [tcp, tcp_tuned]}, {<<"mesh_calls">>, calls, <<"calls/s">>, higher, [tcp, tcp_tuned]},
             {<<"mesh_noticed">>, noticed, <<"s">>, lower, [tcp, tcp_tuned]}, {<<"mesh_failed">>, failed, <<"calls">>, lower, [tcp, tcp_tuned]},
             {<<"mesh_rings">>, rings, <<"links">>, higher, []}, {<<"mesh_fallen_back">>, fallen_back, <<"links">>, lower, []}]].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

prepare_test_() ->
    [?_assertMatch({ok, #{nodes := 5, repeats := 1}}, prepare([{nodes, 5}], quick)), ?_assertMatch({ok, #{repeats := 2}}, prepare([{nodes, 5}, {repeats, 2}], full)),
     ?_assertMatch({error, _}, prepare([{nodes, 2}], quick)), ?_assertMatch({error, _}, prepare([{nodes, 501}], full))].

victims_test() ->
    Members = [#{name => Number} || Number <- lists:seq(1, 150)],
    ?assertEqual({50, 100}, {length(victims(Members)), length(survivors(Members))}).

differences_test() ->
    ?assertEqual([], differences(a, [b, c], [a, b, c])),
    ?assertEqual([c, x], differences(a, [b, x], [a, b, c])).
-endif.
