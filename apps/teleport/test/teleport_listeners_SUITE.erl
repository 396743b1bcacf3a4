%% SPDX-License-Identifier: Apache-2.0
%% @doc Groups of teleport_listeners between real nodes: which nodes get a broadcast, the cost of joining compared with
%% pg, and the state after crashes and lost connections. With `BEAMWAY_TEST_LONG=1' in the environment the cost is also
%% measured in a cluster of 64 nodes.
-module(teleport_listeners_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([only_nodes_with_members/1, members_come_and_go/1, members_that_joined_before/1, servers_that_end/1, a_connection_that_is_lost/1, sites/1, a_node_without_teleport/1, bytes_of_joins/1,
         bad_input/1, sixty_four_nodes/1]).
%% Called on the nodes.
-export([joined/2, join_each/3, sent_bytes/0]).
-import(teleport_nodes, [wait_ms/0]).
-import(teleport_groups_SUITE, [member/1, got/1, count_bytes/1]).

-define(CONFIRM, #{confirm => true, timeout => wait_ms()}).
%% The largest permitted cost as a fraction of pg's.
-define(PART, 0.1).
%% How long a step may take on all of 64 nodes.
-define(ALL_MS, 120000).

suite() -> [{timetrap, {minutes, 3}}].

all() -> teleport_nodes:all([shm, stock]) ++ [{group, cluster} || beamway_carrier:is_long()].

groups() ->
    All = [only_nodes_with_members, members_come_and_go, members_that_joined_before, servers_that_end, a_connection_that_is_lost, sites, a_node_without_teleport, bytes_of_joins, bad_input],
    teleport_nodes:groups([shm, stock], All) ++ [{cluster, [], [sixty_four_nodes]}].

init_per_group(cluster, Config) -> Config;
init_per_group(Kind, Config) -> teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)).

end_per_group(cluster, _Config) -> ok;
end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

%% Each case uses its own group.
init_per_testcase(Case, Config) -> [{group, Case} | Config].

end_per_testcase(sixty_four_nodes, _Config) -> beamway_peer:stop_started();
end_per_testcase(_Case, Config) ->
    beamway_peer:stop_all(beamway_peer:started() -- [teleport_nodes:first(Config), teleport_nodes:second(Config)]).

%% ---- functions that run on the nodes ----

%% @private Starts this many members on this node.
joined(Group, Count) ->
    Members = [spawn(teleport_groups_SUITE, member, [[]]) || _ <- lists:seq(1, Count)],
    [ok = teleport_listeners:join(Group, Member) || Member <- Members],
    Members.

%% @private Starts this many members, which join each of the groups one after the other.
join_each(Join, Groups, Members) -> join_each(Join, Groups, Members, 0).

%% @private Like join_each/3, but with a pause after each join.
join_each(Join, Groups, Members, PauseMs) ->
    Pids = [spawn(teleport_groups_SUITE, member, [[]]) || _ <- lists:seq(1, Members)],
    [begin ok = Join({group, Number}, Pid), receive after PauseMs -> ok end end || Number <- lists:seq(1, Groups), Pid <- Pids],
    ok.

%% @private Returns the number of bytes that this node has sent to all others.
sent_bytes() ->
    lists:sum([begin {ok, [{send_oct, Bytes}]} = inet:getstat(Port, [send_oct]), Bytes end || {_, Port} <- erlang:system_info(dist_ctrl)]).

%% Starts members on this node or another, and returns when this node knows that the given node has some.
members(Node, Group, Count) ->
    Members = erpc:call(Node, ?MODULE, joined, [Group, Count]),
    Node =:= node() orelse await_nodes(Group, fun(Nodes) -> lists:member(Node, Nodes) end),
    Members.

await_nodes(Group, IsRight) -> true = beamway_peer:wait_until(fun() -> IsRight(teleport_listeners:nodes(Group)) end, wait_ms()).

result(Given) -> maps:merge(#{sent => [], plain => [], skipped => [], failed => []}, Given).

await_got(Member, Messages) -> true = beamway_peer:wait_until(fun() -> got(Member) =:= Messages end, wait_ms()).

on_first(Config, Body) ->
    Group = proplists:get_value(group, Config),
    teleport_nodes:on_first(Config, fun(Node) -> Body(Node, Group) end).

%% Both nodes are connected to the third and know its groups.
third(Config) ->
    {Peer, Node} = teleport_nodes:start(teleport_nodes:kind(Config)),
    [ok = teleport_nodes:connect(Of, Node) || Of <- [teleport_nodes:first(Config), teleport_nodes:second(Config)]],
    true = beamway_peer:wait_until(fun() -> knows(teleport_nodes:first(Config), Node) andalso beamway_peer:call(teleport_nodes:first(Config), teleport_server, is_at, [Node]) end, wait_ms()),
    {Peer, Node}.

knows(Peer, Node) -> {[], []} =:= beamway_peer:call(Peer, teleport_interest, nodes, [teleport_listeners, make_ref(), [Node]]).

%% ---- cases ----

%% If a node without members got the message, the count of bytes sent to it would show that.
only_nodes_with_members(Config) ->
    {_, Third} = third(Config),
    on_first(Config, fun(Node, Group) ->
        await_sure([Node, Third]),
        [Own | _] = members(node(), Group, 3),
        Far = members(Node, Group, 3),
        Data = rand:bytes(300000),
        Before = count_bytes(Third),
        Sent = result(#{sent => lists:sort([node(), Node])}),
        Sent = teleport_listeners:broadcast(Group, Data),
        Sent = teleport_listeners:broadcast(Group, two, ?CONFIRM),
        _ = [await_got(Member, [Data, two]) || Member <- [Own | Far]],
        ?assert(count_bytes(Third) - Before < 100000),
        Others = result(#{sent => [Node]}),
        Others = teleport_listeners:broadcast(Group, three, (?CONFIRM)#{local => false}),
        Nobody = result(#{}),
        Nobody = teleport_listeners:broadcast({unknown, Group}, x),
        Nobody = teleport_listeners:broadcast(Group, x, #{nodes => [Third]}),
        {messages, []} = process_info(self(), messages)
    end).

await_sure(Nodes) -> true = beamway_peer:wait_until(fun() -> teleport_interest:nodes(teleport_listeners, make_ref(), Nodes) =:= {[], []} end, wait_ms()).

members_come_and_go(Config) ->
    on_first(Config, fun(Node, Group) ->
        await_sure([Node]),
        [One, Two] = members(Node, Group, 2),
        [One, Two] = lists:sort(erpc:call(Node, teleport_listeners, members, [Group])),
        %% A process is a member once, however often it joins.
        ok = erpc:call(Node, teleport_listeners, join, [Group, One]),
        Sent = result(#{sent => [Node]}),
        Sent = teleport_listeners:broadcast(Group, one, ?CONFIRM),
        ok = erpc:call(Node, teleport_listeners, leave, [Group, One]),
        Sent = teleport_listeners:broadcast(Group, two, ?CONFIRM),
        [[one], [one, two]] = [got(Member) || Member <- [One, Two]],
        true = exit(Two, kill),
        await_nodes(Group, fun(Nodes) -> Nodes =:= [] end),
        Nobody = result(#{}),
        Nobody = teleport_listeners:broadcast(Group, three, ?CONFIRM),
        %% The process has left, but this node does not know that yet.
        [Three] = members(Node, Group, 1),
        ok = sys:suspend(teleport_listeners),
        ok = erpc:call(Node, teleport_listeners, leave, [Group, Three]),
        Skipped = result(#{skipped => [Node]}),
        Skipped = teleport_listeners:broadcast(Group, four, ?CONFIRM),
        ok = sys:resume(teleport_listeners),
        await_nodes(Group, fun(Nodes) -> Nodes =:= [] end)
    end).

%% Two nodes have just connected, and neither knows the other's groups.
members_that_joined_before(Config) ->
    {Peer, Third} = teleport_nodes:start(teleport_nodes:kind(Config)),
    Group = proplists:get_value(group, Config),
    [Member] = beamway_peer:call(Peer, ?MODULE, joined, [Group, 1]),
    on_first(Config, fun(_, _) ->
        ok = sys:suspend(teleport_listeners),
        true = net_kernel:connect_node(Third),
        Sent = result(#{sent => [Third]}),
        Sent = teleport_listeners:broadcast(Group, one, (?CONFIRM)#{nodes => [Third]}),
        [one] = got(Member),
        %% A node without members is not reported as failed.
        Skipped = result(#{skipped => [Third]}),
        Skipped = teleport_listeners:broadcast({none, Group}, two, (?CONFIRM)#{nodes => [Third]}),
        ok = sys:resume(teleport_listeners),
        await_nodes(Group, fun(Nodes) -> Nodes =:= [Third] end),
        {[], []} = teleport_interest:nodes(teleport_listeners, {none, Group}, [Third])
    end).

%% Members remain registered, whichever server is restarted.
servers_that_end(Config) ->
    on_first(Config, fun(Node, Group) ->
        [Own] = members(node(), Group, 1),
        [Far] = members(Node, Group, 1),
        [begin
             Server = erpc:call(On, erlang, whereis, [teleport_listeners]),
             true = exit(Server, kill),
             true = beamway_peer:wait_until(fun() -> Now = erpc:call(On, erlang, whereis, [teleport_listeners]), is_pid(Now) andalso Now =/= Server end, wait_ms()),
             await_sure([Node]),
             [Node] = teleport_listeners:nodes(Group),
             Sent = result(#{sent => lists:sort([node(), Node])}),
             Sent = teleport_listeners:broadcast(Group, On, ?CONFIRM)
         end || On <- [node(), Node]],
        [await_got(Member, [node(), Node]) || Member <- [Own, Far]],
        %% A member exits while there is no server to monitor it.
        ok = erpc:call(Node, sys, suspend, [teleport_listeners]),
        true = exit(Far, kill),
        true = exit(erpc:call(Node, erlang, whereis, [teleport_listeners]), kill),
        await_nodes(Group, fun(Nodes) -> Nodes =:= [] end),
        ok = erpc:call(Node, application, stop, [teleport]),
        true = beamway_peer:wait_until(fun() -> not teleport_server:is_at(Node) end, wait_ms()),
        Here = result(#{sent => [node()]}),
        true = beamway_peer:wait_until(fun() -> teleport_listeners:broadcast(Group, three, ?CONFIRM) =:= Here end, wait_ms()),
        ok = erpc:call(Node, application, start, [teleport]),
        [_] = members(Node, Group, 1)
    end).

a_connection_that_is_lost(Config) ->
    on_first(Config, fun(Node, Group) ->
        [Gone, Stays] = [hd(members(Node, {Which, Group}, 1)) || Which <- [gone, stays]],
        true = erlang:disconnect_node(Node),
        await_nodes({gone, Group}, fun(Nodes) -> Nodes =:= [] end),
        true = beamway_peer:wait_until(fun() -> net_kernel:connect_node(Node) end, wait_ms()),
        true = exit(Gone, kill),
        await_nodes({stays, Group}, fun(Nodes) -> Nodes =:= [Node] end),
        await_nodes({gone, Group}, fun(Nodes) -> Nodes =:= [] end),
        true = beamway_peer:wait_until(fun() -> teleport_server:is_at(Node) end, wait_ms()),
        Sent = result(#{sent => [Node]}),
        Sent = teleport_listeners:broadcast({stays, Group}, one, ?CONFIRM),
        [one] = got(Stays)
    end).

sites(Config) ->
    {_, Third} = third(Config),
    on_first(Config, fun(Node, Group) ->
        Members = lists:append([members(On, Group, 2) || On <- [node(), Node, Third]]),
        All = result(#{sent => lists:sort([node(), Node, Third])}),
        Before = erpc:call(Node, teleport_metrics, counted, [relayed]) + erpc:call(Third, teleport_metrics, counted, [relayed]),
        All = teleport_listeners:broadcast(Group, one, (?CONFIRM)#{sites => #{node() => here, Node => there, Third => there}}),
        ?assertEqual(Before + 1, erpc:call(Node, teleport_metrics, counted, [relayed]) + erpc:call(Third, teleport_metrics, counted, [relayed])),
        [[one] = got(Member) || Member <- Members]
    end).

%% A node without teleport gets nothing and is not reported as failed, not even before this node knows that it does not
%% run teleport.
a_node_without_teleport(Config) ->
    {ok, _, Plain} = beamway_peer:start(teleport_nodes:carrier(teleport_nodes:kind(Config))),
    on_first(Config, fun(_, Group) ->
        [Own] = members(node(), Group, 1),
        ok = sys:suspend(teleport_listeners),
        true = net_kernel:connect_node(Plain),
        Skipped = result(#{sent => [node()], skipped => [Plain]}),
        Skipped = teleport_listeners:broadcast(Group, one, (?CONFIRM)#{nodes => [node(), Plain]}),
        ok = sys:resume(teleport_listeners),
        await_sure([Plain]),
        Here = result(#{sent => [node()]}),
        Here = teleport_listeners:broadcast(Group, two, (?CONFIRM)#{nodes => [node(), Plain]}),
        [one, two] = got(Own),
        %% Teleport is started on the node.
        {ok, _} = erpc:call(Plain, application, ensure_all_started, [teleport]),
        [Far] = members(Plain, Group, 1),
        Both = result(#{sent => lists:sort([node(), Plain])}),
        Both = teleport_listeners:broadcast(Group, three, (?CONFIRM)#{nodes => [node(), Plain]}),
        [three] = got(Far)
    end).

%% Counts the bytes that one node sends to another while processes join: first many processes join a few groups, then
%% one process joins each of many groups. In a cluster of 64 nodes each of the other 63 would get the same, as with
%% `pg'.
bytes_of_joins(Config) ->
    on_first(Config, fun(Node, _) ->
        _ = [erpc:call(On, pg, start, [tp_bytes]) || On <- [node(), Node]],
        [begin
             Start = settled(Node),
             ok = join_each(fun(Group, Pid) -> pg:join(tp_bytes, {Case, Group}, Pid) end, Groups, Members),
             Between = settled(Node),
             ok = join_each(fun(Group, Pid) -> teleport_listeners:join({Case, Group}, Pid) end, Groups, Members),
             End = settled(Node),
             Joins = Groups * Members,
             ct:pal("~p: ~b joins, a join is ~.1f bytes of pg and ~.2f of teleport_listeners to each other node: ~.4f",
                    [Case, Joins, (Between - Start) / Joins, (End - Between) / Joins, (End - Between) / (Between - Start)]),
             ?assert(End - Between =< ?PART * (Between - Start))
         end || {Case, Groups, Members} <- [{many_members, 10, 200}, {many_groups, 2000, 1}]]
    end).

%% Waits until the count no longer changes.
settled(Node) -> settled_count(fun() -> count_bytes(Node) end).

settled_count(Count) -> settled_count(Count, Count()).

settled_count(Count, Before) ->
    receive after 500 -> ok end,
    case Count() of
        Before -> Before;
        Now -> settled_count(Count, Now)
    end.

%% Counts the bytes that all 64 nodes of a full mesh send while processes join on each of them: many processes join a
%% few groups, one process joins many groups, and processes join a group so slowly that no two joins share a message.
sixty_four_nodes(_Config) ->
    ct:timetrap({minutes, 30}),
    Cluster = beamway_placement_nodes:start(["t" ++ integer_to_list(Number) || Number <- lists:seq(1, 64)], #{run => false}),
    Nodes = beamway_placement_nodes:nodes(Cluster),
    ok = on_all(Cluster, fun() -> [true = net_kernel:connect_node(Node) || Node <- Nodes, Node < node()], ok end),
    ok = on_all(Cluster, fun() -> {ok, _} = application:ensure_all_started(teleport), {ok, _} = pg:start(tp_bytes), ok end),
    ok = on_all(Cluster, fun() -> await_sure(Nodes -- [node()]) end),
    Settled = fun() -> settled_count(fun() -> lists:sum(beamway_placement_nodes:all(Cluster, ?MODULE, sent_bytes, [])) end) end,
    [begin
         Start = Settled(),
         ok = on_all(Cluster, fun() -> join_each(fun(Group, Pid) -> pg:join(tp_bytes, {Case, Group}, Pid) end, Groups, Members, PauseMs) end),
         Between = Settled(),
         %% Every node knows every member.
         Everywhere = lists:duplicate(64, 64 * Members),
         Everywhere = [length(Known) || Known <- beamway_placement_nodes:all(Cluster, pg, get_members, [tp_bytes, {Case, {group, Groups}}])],
         ok = on_all(Cluster, fun() -> join_each(fun(Group, Pid) -> teleport_listeners:join({Case, Group}, Pid) end, Groups, Members, PauseMs) end),
         End = Settled(),
         %% Every node knows which nodes have members.
         OfOthers = lists:duplicate(64, 63),
         OfOthers = [length(Known) || Known <- beamway_placement_nodes:all(Cluster, teleport_listeners, nodes, [{Case, {group, Groups}}])],
         Joins = 64 * Groups * Members,
         ok = beamway_runner:say("64 nodes, ~p: ~b joins, a join is ~.1f bytes of pg and ~.2f of teleport_listeners in the whole cluster: ~.4f",
                                 [Case, Joins, (Between - Start) / Joins, (End - Between) / Joins, (End - Between) / (Between - Start)]),
         ?assert(End - Between =< ?PART * (Between - Start), {Case, Between - Start, End - Between})
     end || {Case, Groups, Members, PauseMs} <- [{many_members, 2, 25, 0}, {many_groups, 200, 1, 0}, {one_after_another, 1, 20, 30}]].

%% Runs the fun on all nodes at the same time.
on_all(Cluster, Fun) ->
    Calls = [beamway_peer:async(fun() -> beamway_peer:run(Peer, Fun, ?ALL_MS) end) || Peer <- beamway_placement_nodes:peers(Cluster)],
    lists:foreach(fun(Call) -> _ = beamway_peer:await(Call, 2 * ?ALL_MS * beamway_runner:slowness()) end, Calls).

bad_input(Config) ->
    on_first(Config, fun(Node, Group) ->
        [Far] = members(Node, Group, 1),
        [{'EXIT', {{bad_member, Bad, _}, _}} = (catch teleport_listeners:join(Group, Bad)) || Bad <- [Far, name, {name, Node}]],
        {'EXIT', {{bad_member, Far, _}, _}} = (catch teleport_listeners:leave(Group, Far)),
        {'EXIT', {{bad_option, key, 1}, _}} = (catch teleport_listeners:broadcast(Group, x, #{key => 1})),
        %% Sends messages that no node of this version sends.
        Server = erpc:call(Node, erlang, whereis, [teleport_listeners]),
        [Server ! Garbage || Garbage <- [garbage, {ask, self(), 7}, {ask, name, make_ref()}, {all, node(), make_ref(), <<1, 2, 3, 4>>}, {all, 7, 7, <<1>>}, {change, node(), <<1>>, <<>>},
                                         {change, nobody, <<1, 2, 3, 4>>, <<>>}, {change, [], [], []}, {'DOWN', make_ref(), process, {teleport_listeners, 7}, x}]],
        {error, badarg} = gen_server:call(Server, garbage),
        Server = erpc:call(Node, erlang, whereis, [teleport_listeners]),
        Sent = result(#{sent => [Node]}),
        Sent = teleport_listeners:broadcast(Group, one, ?CONFIRM),
        [one] = got(Far),
        ok = application:stop(teleport),
        [{'EXIT', {{not_started, teleport}, _}} = (catch apply(teleport_listeners, Function, Args))
         || {Function, Args} <- [{join, [Group]}, {leave, [Group]}, {broadcast, [Group, x]}, {members, [Group]}, {nodes, [Group]}]],
        ok = application:start(teleport)
    end).
