%% SPDX-License-Identifier: Apache-2.0
%% @doc A peer's load, which is sent with ticks, acknowledgements and messages: what a node knows about a peer that is busy computing, whose link is
%% full, that runs an older version or stock OTP, or that sends false data.
-module(beamway_load_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([from_the_beginning/1, a_burner_shows_up/1, a_full_link_tells/1, metrics/1, placement_does_not_ask/1, an_older_peer/1, a_stock_peer/1, a_peer_that_lies/1]).
%% Called on the nodes.
-export([burn/0, flood/2]).

-define(WAIT_MS, 30000).
%% The last commit at which nodes did not yet send each other their load.
-define(BEFORE, "8ba902d6").

suite() -> [{timetrap, {minutes, 3}}].

all() -> [{group, Carrier} || Carrier <- [beamway_tcp, beamway_shm, beamway_tls]].

groups() ->
    [{beamway_tcp, [], [from_the_beginning, a_burner_shows_up, a_full_link_tells, metrics, placement_does_not_ask, an_older_peer, a_stock_peer, a_peer_that_lies]},
     {beamway_shm, [], [from_the_beginning, a_burner_shows_up, a_full_link_tells, an_older_peer, a_peer_that_lies]},
     {beamway_tls, [], [from_the_beginning, a_burner_shows_up]}].

init_per_suite(Config) ->
    %% The suite compiles two builds, and the machine may be shared.
    ct:timetrap({minutes, 10}),
    Folder = fun(Name) -> filename:join(proplists:get_value(priv_dir, Config), Name) end,
    [{liar, beamway_builds:build(Folder("liar"), [{"native/driver/load.c", "bw_least(cpu_percent, 100) << 56", "101ull << 56"}])},
     {before, beamway_builds:release(Folder("before"), ?BEFORE, [beamway])} | Config].

end_per_suite(_Config) -> ok.

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% Nodes tick once a second unless the options say otherwise.
start(Carrier, Options) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, maps:merge(#{args => ["-kernel", "net_ticktime", "4"]}, Options)),
    {Peer, Node}.

pair(Config) -> pair(Config, #{}).

pair(Config, Options) ->
    Carrier = proplists:get_value(carrier, Config),
    {One, OneNode} = start(Carrier, maps:with([args], Options)),
    {Other, OtherNode} = start(Carrier, Options),
    ok = beamway_peer:connect_both(Carrier, One, Other),
    {One, OneNode, Other, OtherNode}.

info(Peer, Node) ->
    {ok, Info} = beamway_peer:call(Peer, beamway, info, [Node]),
    Info.

peer_keys(Info) -> [Key || Key <- maps:keys(Info), lists:prefix("peer_", atom_to_list(Key))].

%% The load is known long before the first tick or acknowledgement of an idle link. Without `global' neither node sends anything.
from_the_beginning(Config) ->
    Quiet = ["-kernel", "net_ticktime", "3600", "-connect_all", "false", "-beamway", "resume_ms", "3600000"],
    {One, OneNode, Other, OtherNode} = pair(Config, #{args => Quiet}),
    [true = beamway_peer:wait_until(fun() -> is_map_key(peer_load_age_ms, info(Peer, Node)) end, ?WAIT_MS) || {Peer, Node} <- [{One, OtherNode}, {Other, OneNode}]],
    [?assertMatch(#{OtherNode := #{cpu_percent := _, loadavg1 := _, age_ms := AgeMs}} when AgeMs < 60000, beamway_peer:call(One, beamway, loads, []))].

%% Neither node sends messages: fewer bytes arrive than if there were one message a second.
a_burner_shows_up(Config) ->
    {One, _, Other, OtherNode} = pair(Config, #{args => ["-kernel", "net_ticktime", "4", "-connect_all", "false"]}),
    Known = fun() -> info(One, OtherNode) end,
    true = beamway_peer:wait_until(fun() -> is_map_key(peer_cpu_percent, Known()) end, ?WAIT_MS),
    #{bytes_in := Before} = Known(),
    Start = erlang:monotonic_time(millisecond),
    ok = beamway_peer:run(Other, fun() -> _ = [spawn(?MODULE, burn, []) || _ <- lists:seq(1, 4 * erlang:system_info(schedulers_online))], ok end),
    true = beamway_peer:wait_until(fun() -> #{peer_run_queue := Waiting} = Known(), Waiting > 1 end, ?WAIT_MS),
    receive after 3000 -> ok end,
    #{bytes_in := After, peer_load_age_ms := AgeMs, peer_loadavg1 := Average, peer_mem_available := Memory, peer_cpu_percent := Cpu} = Known(),
    Seconds = (erlang:monotonic_time(millisecond) - Start) / 1000,
    ct:pal("~b bytes in ~.1f s, ~b % of the processors, average ~.2f, ~b MiB, ~b ms ago", [After - Before, Seconds, Cpu, Average, Memory bsr 20, AgeMs]),
    ?assert(After - Before < 100 * (Seconds + 1)),
    ?assert(AgeMs < 10000),
    ?assert(Cpu > 0),
    ?assert(Memory < beamway_peer:run(Other, fun() -> memory("MemTotal") end)),
    ?assert(Memory > beamway_peer:run(Other, fun() -> memory("MemFree") end) div 4).

memory(Line) ->
    {match, [Kb]} = re:run(os:cmd("cat /proc/meminfo"), "(?m)^" ++ Line ++ ":\\s*([0-9]+) kB", [{capture, all_but_first, list}]),
    1024 * list_to_integer(Kb).

%% @doc Computes for a while.
burn() -> burn(erlang:monotonic_time(millisecond) + ?WAIT_MS).

burn(End) ->
    _ = lists:sum(lists:seq(1, 10000)),
    _ = erlang:monotonic_time(millisecond) < End andalso burn(End).

%% Neither side ticks: one always has data queued, and the other sends nothing.
a_full_link_tells(Config) ->
    {One, OneNode, Other, OtherNode} = pair(Config),
    ok = beamway_peer:run(One, fun() -> _ = [spawn(?MODULE, flood, [OtherNode, 10000000]) || _ <- [1, 2, 3]], ok end),
    true = beamway_peer:wait_until(fun() -> case info(One, OtherNode) of #{queue_bytes := Bytes} -> Bytes > 0 end end, ?WAIT_MS),
    Ages = [begin
                receive after 500 -> ok end,
                [maps:get(peer_load_age_ms, info(Peer, Node), none) || {Peer, Node} <- [{Other, OneNode}, {One, OtherNode}]]
            end || _ <- lists:seq(1, 10)],
    ct:pal("~p", [Ages]),
    %% Samples are a second apart, and large messages are queued ahead of the load.
    ?assert(lists:all(fun(Age) -> Age < 4000 end, lists:append(lists:nthtail(5, Ages)))).

%% @doc Sends endlessly.
flood(Node, Bytes) ->
    {nobody_there, Node} ! binary:copy(<<1>>, Bytes),
    flood(Node, Bytes).


metrics(Config) ->
    {One, _, _, OtherNode} = pair(Config),
    true = beamway_peer:wait_until(fun() -> is_map_key(peer_mem_available, info(One, OtherNode)) end, ?WAIT_MS),
    Text = iolist_to_binary(beamway_peer:call(One, beamway, metrics, [])),
    [?assertMatch({match, _}, re:run(Text, ["(?m)^beamway_link_", Name, "\\{peer=\"", atom_to_list(OtherNode), "\",link=\"tcp\"\\} [0-9]+$"]))
     || Name <- ["peer_cpu_percent", "peer_run_queue", "peer_mem_available"]].

%% The peer is never asked for its load average unless a caller wants a more recent value or the peer has redefined the attribute. The value may be as
%% old as one tick and two seconds, so ticks are far apart here.
placement_does_not_ask(Config) ->
    {One, _, Other, OtherNode} = pair(Config, #{args => ["-kernel", "net_ticktime", "40"]}),
    [{ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [placement]) || Peer <- [One, Other]],
    Fetch = fun(Options) -> #{OtherNode := #{status := ok, attributes := #{loadavg1 := Known}}} = beamway_peer:call(One, placement_cache, fetch, [[OtherNode], [loadavg1], Options]), Known end,
    Asked = fun() -> beamway_peer:call(One, placement_cache, asked, []) end,
    true = beamway_peer:wait_until(fun() -> is_map_key(peer_loadavg1, info(One, OtherNode)) end, ?WAIT_MS),
    true = beamway_peer:wait_until(fun() -> beamway_peer:call(One, ets, member, [placement_known, {OtherNode, loadavg1}]) end, ?WAIT_MS),
    {ok, Average, _, none, 0.05} = Fetch(#{}),
    ?assert(is_float(Average)),
    ?assertEqual(0, Asked()),
    Before = Asked(),
    Answers = [begin receive after 1300 -> ok end, Fetch(#{}) end || _ <- [1, 2, 3]],
    %% The peer is also not asked if a caller reads the value often, although such values would otherwise be fetched in advance.
    _ = [begin receive after 50 -> ok end, Fetch(#{}) end || _ <- lists:seq(1, 40)],
    ct:pal("~p", [Answers]),
    ?assertEqual(Before, Asked()),
    [?assertMatch({ok, Value, AgeMs, none, 0.05} when is_float(Value) andalso AgeMs >= 1000 andalso AgeMs =< 12000, Answer) || Answer <- Answers],
    {ok, _, _, none, 0.05} = Fetch(#{max_age => 0}),
    ?assertEqual(Before + 1, Asked()),
    ok = beamway_peer:call(Other, placement, insert, [loadavg1, {dynamic, {erlang, abs, [-7]}, #{}}]),
    {ok, 7, _, none, 0} = Fetch(#{max_age => 0}),
    receive after 1300 -> ok end,
    ?assertMatch({ok, 7, _, none, 0}, Fetch(#{})).

%% An older peer is not sent the load, because it would close the link, and it reports none itself.
an_older_peer(Config) ->
    case proplists:get_value(before, Config) of
        {ok, [Ebin]} -> says_nothing(pair(Config, #{ebin => Ebin}));
        {skip, Reason} -> {skip, Reason}
    end.

a_stock_peer(Config) ->
    {One, OneNode} = start(proplists:get_value(carrier, Config), #{}),
    {Other, OtherNode} = start(inet_tcp, #{}),
    true = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
    says_nothing({One, OneNode, Other, OtherNode}).

%% Lasts several ticks, with a message now and then.
says_nothing({One, OneNode, Other, OtherNode}) ->
    #{since := Since} = info(One, OtherNode),
    [begin
         receive after 500 -> ok end,
         OneNode = beamway_peer:call(Other, erpc, call, [OneNode, erlang, node, []])
     end || _ <- lists:seq(1, 6)],
    receive after 2500 -> ok end,
    #{since := Since} = Info = info(One, OtherNode),
    ?assertEqual([], peer_keys(Info)),
    ?assertEqual(0, maps:get(losses, Info, 0)).

%% A peer that sends what no node of this version sends loses its link, but other links stay up.
a_peer_that_lies(Config) ->
    Carrier = proplists:get_value(carrier, Config),
    {One, _} = start(Carrier, #{}),
    {Honest, HonestNode} = start(Carrier, #{}),
    ok = beamway_peer:connect_both(Carrier, One, Honest),
    {Other, OtherNode} = start(Carrier, #{ebin => proplists:get_value(liar, Config)}),
    true = beamway_peer:call(Other, net_kernel, connect_node, [beamway_peer:call(One, erlang, node, [])]),
    %% The peer may be connected again by the time the test queries the node.
    Ended = fun() -> [Link || {ok, Links} <- [beamway_peer:call(One, beamway, why, [OtherNode])], #{ended := _} = Link <- Links] end,
    true = beamway_peer:wait_until(fun() -> Ended() =/= [] end, ?WAIT_MS),
    [#{cause := protocol, ended := #{reason := Reason}} | _] = Ended(),
    ?assertEqual(<<"beamway_link_corrupt">>, Reason),
    true = lists:member(HonestNode, beamway_peer:call(One, erlang, nodes, [])).
