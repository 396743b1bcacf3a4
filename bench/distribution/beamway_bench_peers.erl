%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench peers': what does each additional link cost a node? One real node gets 100 to 3,000 links, and a C program (peers.c) simulates the
%% nodes at the other ends.
%%
%% The program has a separate address and epmd for every thirty of its nodes, so the real node behaves as in a cluster of many hosts. To a stock node
%% the peers appear as stock nodes; to a Beamway node they appear as Beamway nodes on other hosts, over the TCP link and with a session. Only the real
%% node's CPU time is measured.
-module(beamway_bench_peers).
-behaviour(beamway_bench).

-export([options/0, prepare/2, groups/1, metrics/1]).
%% Called by tests.
-export([start/3, connect/3, await/3, vanish/1, counts/1, stop/1]).
%% Called on the real node.
-export([await_links/2, kinds/0, tick/0, broadcast/1]).

-export_type([peers/0]).

-opaque peers() :: beamway_bench_tools:program().

-define(CONNECT_MS, 120000).
-define(STORM_MS, 60000).
-define(SINK, beamway_bench_peers_sink).
-define(BYTES, 64).

%% ---- the program

%% @doc Starts the program. `EpmdPort' is the port at which the real node expects epmd on every host.
-spec start(Count :: pos_integer(), EpmdPort :: inet:port_number(), stock | beamway) -> {ok, peers()} | {error, string()}.
start(Count, EpmdPort, Speaks) ->
    case beamway_bench_tools:compile("peers", "cc", ["-lcrypto"]) of
        {ok, Program} -> {ok, beamway_bench_tools:open(Program, [integer_to_list(Count), integer_to_list(EpmdPort), atom_to_list(Speaks)])};
        {error, Why} -> {error, Why}
    end.

%% @doc Makes all peers connect to the node that listens on this port. The cookie is passed over standard input, because other users could see it on
%% the command line.
-spec connect(peers(), inet:port_number(), Cookie :: atom()) -> ok | {error, string()}.
connect(Peers, Port, Cookie) ->
    ok = beamway_bench_tools:write(Peers, io_lib:format("connect 127.0.0.1 ~b ~ts~n", [Port, Cookie])),
    case beamway_bench_tools:line(Peers, ?CONNECT_MS) of
        {line, "connected"} -> ok;
        Other -> {error, lists:flatten(io_lib:format("~tp", [Other]))}
    end.

%% @doc Waits until the peers have received this many ticks or messages in total since they started.
-spec await(peers(), ticks | messages, Number :: non_neg_integer()) -> ok.
await(Peers, What, Number) ->
    ok = beamway_bench_tools:write(Peers, io_lib:format("await ~ts ~b~n", [What, Number])),
    {line, "reached"} = beamway_bench_tools:line(Peers, ?STORM_MS),
    ok.

%% @doc Makes a third of the peers disappear as if they had been killed, and returns their number.
-spec vanish(peers()) -> pos_integer().
vanish(Peers) ->
    {ok, [Gone], []} = answer("vanish", "vanished ~d", Peers),
    Gone.

%% @doc Returns the number of ticks received, and the number of connections that the real node has closed.
-spec counts(peers()) -> {Ticks :: non_neg_integer(), Lost :: non_neg_integer()}.
counts(Peers) ->
    {ok, [Ticks, Lost], []} = answer("counts", "ticks ~d lost ~d", Peers),
    {Ticks, Lost}.

answer(Command, Format, Peers) ->
    ok = beamway_bench_tools:write(Peers, [Command, $\n]),
    {line, Line} = beamway_bench_tools:line(Peers, ?STORM_MS),
    io_lib:fread(Format, Line).

%% @doc Stops the program.
-spec stop(peers()) -> ok.
stop(Peers) -> beamway_bench_tools:close(Peers, none).

%% ---- the benchmark

%% @private
-spec options() -> [getopt:option_spec()].
options() ->
    [{links, undefined, "links", string, "how many links, such as 100,1000 (100,300,1000,3000; quick: 100,300)"}].

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    %% A node ticks every 15 s, so an idle node is observed for at least that long in a full run.
    {Links, Settings} = case Speed of
                            quick -> {"100,300", #{repeats => 1, idle_ms => 4000, rounds => 20, storms => 10}};
                            full -> {"100,300,1000,3000", #{repeats => 5, idle_ms => 15000, rounds => 100, storms => 20}}
                        end,
    case beamway_bench_text:numbers("--links", proplists:get_value(links, Given, Links), 3, 10000) of
        {ok, Counts} -> {ok, Settings#{links => Counts, repeats => proplists:get_value(repeats, Given, maps:get(repeats, Settings)), budget_ms => infinity}};
        {error, Why} -> {error, Why}
    end.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{links := Counts} = Settings) ->
    [#{nodes => 0, contenders => [Name], directions => [none], measure => fun(none) -> measure(Name, Count, Settings) end}
     || Count <- Counts, Name <- [tcp, beamway_tcp]].

measure(Name, Count, #{contenders := Contenders, idle_ms := IdleMs, rounds := Rounds, storms := Storms}) ->
    Epmd = beamway_bench_nodes:start_epmd(),
    #{link := Link} = Contender = maps:get(Name, Contenders),
    #{members := [Node]} = Cluster = beamway_bench_nodes:start(Epmd, Contender, #{count => 1}),
    {ok, Peers} = start(Count, beamway_bench_nodes:epmd_port(Epmd), case Link of stock -> stock; _ -> beamway end),
    Call = fun(Function, Args) -> beamway_bench_nodes:call(Node, ?MODULE, Function, Args, ?CONNECT_MS) end,
    {port, Port, _} = beamway_bench_nodes:call(Node, erl_epmd, port_please, [name(Node), {127, 0, 0, 1}]),
    Cookie = beamway_bench_nodes:call(Node, erlang, get_cookie, []),
    Before = settled_bytes(Node),
    {Connecting, ConnectMs, ConnectUs} = timed(Node, fun() -> connect(Peers, Port, Cookie) end),
    ok = Connecting,
    ok = Call(await_links, [Count, ?CONNECT_MS]),
    [Link] = Call(kinds, []),
    Bytes = (settled_bytes(Node) - Before) / Count,
    {_, _, IdleUs} = timed(Node, fun() -> receive after IdleMs -> ok end end),
    %% A link that has just sent other data does not send a tick, so the first ticks are not counted.
    ok = Call(tick, []),
    receive after 1000 -> ok end,
    {Ticked, 0} = counts(Peers),
    Ticks = fun(Number) -> ok = Call(tick, []), ok = await(Peers, ticks, Ticked + Number * Count) end,
    {_, StormMs, StormUs} = timed(Node, fun() -> lists:foreach(Ticks, lists:seq(1, Storms)) end),
    Sent = fun(Number) -> ok = Call(broadcast, [?BYTES]), ok = await(Peers, messages, Number * Count) end,
    {_, SentMs, SentUs} = timed(Node, fun() -> lists:foreach(Sent, lists:seq(1, Rounds)) end),
    {Gone, NoticedMs, NoticedUs} = timed(Node, fun() -> noticed(Peers, Count, Call) end),
    {_, 0} = counts(Peers),
    ok = stop(Peers),
    ok = beamway_bench_nodes:stop(Cluster),
    ok = beamway_bench_nodes:stop_epmd(Epmd),
    maps:from_list([{key(What, Count), Figure}
                    || {What, Figure} <- [{memory, Bytes / 1024}, {idle, IdleUs * 1000 / IdleMs / Count}, {connect, ConnectMs / 1000}, {connect_cpu, ConnectUs / Count},
                                          {storm, StormMs / Storms}, {storm_cpu, StormUs / Storms / Count}, {broadcast, SentMs / Rounds},
                                          {broadcast_cpu, SentUs / Rounds / Count}, {noticed, NoticedMs / 1000}, {noticed_cpu, NoticedUs / Gone}]]).

name(#{name := Node}) -> hd(string:split(atom_to_list(Node), "@")).

noticed(Peers, Count, Call) ->
    Gone = vanish(Peers),
    ok = Call(await_links, [Count - Gone, ?CONNECT_MS]),
    Gone.

%% Returns the function's result, how long it took in milliseconds, and how much CPU time the node
%% used in the meantime, in microseconds.
timed(#{os_pid := OsPid}, Fun) ->
    {Cpu, Start} = {beamway_bench_os:thread_us(OsPid), erlang:monotonic_time(microsecond)},
    Result = Fun(),
    {Result, (erlang:monotonic_time(microsecond) - Start) / 1000, beamway_bench_os:thread_us(OsPid) - Cpu}.

%% Waits a few seconds, because processes hibernate after a while, and returns the node's memory in bytes. The kernel's socket buffers are not
%% included.
settled_bytes(#{os_pid := OsPid}) ->
    receive after 3000 -> ok end,
    beamway_bench_os:pss_bytes(OsPid).

%% ---- in the node

%% @private Waits until the node is connected to this many others.
-spec await_links(non_neg_integer(), TimeoutMs :: non_neg_integer()) -> ok | {links, non_neg_integer()}.
await_links(Count, Ms) ->
    case {length(nodes(connected)), Ms > 0} of
        {Count, _} -> ok;
        {_, true} -> receive after 10 -> await_links(Count, Ms - 10) end;
        {Found, false} -> {links, Found}
    end.

%% @private Returns the kinds of link that the node has.
-spec kinds() -> [atom()].
kinds() ->
    case whereis(beamway_links) of
        undefined -> [stock];
        _ -> lists:usort([Kind || #{link := Kind} <- beamway:links()])
    end.

%% @private Does what net_kernel's ticker does every quarter of net_ticktime.
-spec tick() -> ok.
tick() ->
    net_kernel ! tick,
    ok.

%% @private Sends one message to each node.
-spec broadcast(Bytes :: pos_integer()) -> ok.
broadcast(Bytes) ->
    Message = binary:copy(<<0>>, Bytes),
    lists:foreach(fun(Node) -> {?SINK, Node} ! Message end, nodes()).

%% ---- output

key(What, Count) -> iolist_to_binary(io_lib:format("~b links: ~ts", [Count, words(What)])).

words(memory) -> "memory for each";
words(idle) -> "processor time in a second for each, at rest";
words(connect) -> "until all are up";
words(connect_cpu) -> "processor time to make each";
words(storm) -> "until all have ticked at once";
words(storm_cpu) -> "processor time of a tick and its answer";
words(broadcast) -> "until all have got a message of 64 B";
words(broadcast_cpu) -> "processor time for each of these messages";
words(noticed) -> "until a third that is gone at once is noticed";
words(noticed_cpu) -> "processor time for each of these".

whats() ->
    [{memory, <<"KB">>}, {idle, <<"us/s">>}, {connect, <<"s">>}, {connect_cpu, <<"us">>}, {storm, <<"ms">>}, {storm_cpu, <<"us">>}, {broadcast, <<"ms">>},
     {broadcast_cpu, <<"us">>}, {noticed, <<"s">>}, {noticed_cpu, <<"us">>}].

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{links := Counts}) ->
    [#{name => iolist_to_binary(io_lib:format("peers_~ts_~b", [What, Count])), unit => Unit, better => lower, key => key(What, Count), contender => beamway_tcp, baselines => [tcp]}
     || Count <- Counts, {What, Unit} <- whats()].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

prepare_test_() ->
    [?_assertMatch({ok, #{links := [100, 300], repeats := 1}}, prepare([], quick)), ?_assertMatch({ok, #{links := [5, 7], repeats := 2}}, prepare([{links, "5,7"}, {repeats, 2}], full)),
     ?_assertMatch({error, _}, prepare([{links, "2"}], quick)), ?_assertMatch({error, _}, prepare([{links, "many"}], full))].

%% The program rejects invalid handshakes without exiting, and it exits at the end of its standard input.
nonsense_is_refused_test_() -> {timeout, 60, fun nonsense_is_refused/0}.

nonsense_is_refused() ->
    Epmd = beamway_bench_nodes:start_epmd(),
    [begin
         {ok, Listen} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, binary, {active, false}]),
         {ok, Port} = inet:port(Listen),
         {ok, Peers} = start(1, beamway_bench_nodes:epmd_port(Epmd), beamway),
         {ok, OsPid} = beamway_bench_tools:os_pid(Peers),
         Process = beamway_bench_os:identity(OsPid),
         Liar = spawn_link(fun() -> {ok, Socket} = gen_tcp:accept(Listen), ok = gen_tcp:send(Socket, Bytes), receive stop -> ok end end),
         ?assertMatch({error, _}, connect(Peers, Port, nocookie)),
         ?assert(beamway_bench_os:is_alive(Process)),
         ok = stop(Peers),
         ?assertEqual(ok, beamway_bench_os:await_end(Process, 5000)),
         Liar ! stop
     end || Bytes <- [<<0, 0>>, <<255, 255, 0>>, <<0, 4, "snok">>, <<0, 3, "sok", 0, 3, "N12">>, <<0, 3, "sok", 0, 19, $N, 0:128, 1:16>>]],
    ok = beamway_bench_nodes:stop_epmd(Epmd).

metrics_test() ->
    Names = [Name || #{name := Name} <- metrics(#{links => [100, 3000]})],
    ?assertEqual([], [<<"peers_memory_100">>, <<"peers_noticed_cpu_3000">>] -- Names),
    ?assertEqual(20, length(lists:usort(Names))).
-endif.
