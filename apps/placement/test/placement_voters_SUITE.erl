%% SPDX-License-Identifier: Apache-2.0
%% @doc Children with few voters among many nodes: names on every node, replacement of voters, messages per second, the
%% supervisor-like API, and spreads that count running children. Uses five real nodes.
-module(placement_voters_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_testcase/2, end_per_testcase/2]).
-export([names_on_every_node/1, voters_are_replaced/1, follows_the_cluster/1, messages_per_second/1, as_of_a_supervisor/1, spread_over_what_runs/1]).

-define(COUNTER, placement_drain_counter).
-define(NAMES, ["a", "b", "c", "d", "e"]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [names_on_every_node, voters_are_replaced, follows_the_cluster, messages_per_second, as_of_a_supervisor, spread_over_what_runs].

init_per_testcase(Case, Config) ->
    Cluster = beamway_placement_nodes:start(?NAMES, options()),
    ok = connected(Cluster, [Name || Name <- ?NAMES, Case =/= follows_the_cluster]),
    [{cluster, Cluster} | Config].

options() -> #{args => ["-pa", filename:absname(filename:dirname(code:which(?MODULE)))]}.

connected(Cluster, Names) -> lists:foreach(fun(Name) -> ok = beamway_placement_nodes:connect(Cluster, Name) end, Names).

end_per_testcase(_, Config) -> ok = beamway_placement_nodes:stop(cluster(Config)).

cluster(Config) -> proplists:get_value(cluster, Config).

on(Config, Name, Function, Arguments) -> beamway_placement_nodes:call(cluster(Config), Name, {placement, Function}, Arguments).

call(Config, Name, Function, Arguments) -> beamway_placement_nodes:call(cluster(Config), Name, Function, Arguments).

node_of(Config, Name) -> element(3, lists:keyfind(Name, 1, cluster(Config))).

peer_of(Config, Name) -> element(2, lists:keyfind(Name, 1, cluster(Config))).

name_of(Config, Node) -> element(1, lists:keyfind(Node, 3, cluster(Config))).

without(Name, Config) -> [{cluster, lists:keydelete(Name, 1, cluster(Config))} | proplists:delete(cluster, Config)].

names(Config) -> [Name || {Name, _, _} <- cluster(Config)].

wait_until(Fun) -> beamway_peer:wait_until(Fun, 60000).

%% Waits until all nodes find the same process and it is not the given one, and returns it.
found(Config, But) ->
    wait_until(fun() ->
        case lists:usort([on(Config, Name, whereis_name, [one]) || Name <- names(Config)]) of
            [Pid] when is_pid(Pid), Pid =/= But -> Pid;
            _ -> false
        end
    end).

%% Returns the voters according to a node that has voted.
voters(Config) ->
    Specs = [Spec || Name <- names(Config), {_, #{} = Spec, _} <- call(Config, Name, {ets, lookup}, [placement_children, one])],
    [#{nodes := Nodes} = Last | _] = lists:reverse(lists:sort(fun(A, B) -> maps:get(term, A) =< maps:get(term, B) end, Specs)),
    {maps:get(term, Last), Nodes}.

child(Config, Options) -> on(Config, "a", child, [[], {?COUNTER, start_link, [one, 100]}, maps:merge(#{name => one, nodes => beamway_placement_nodes:nodes(cluster(Config)), grace => grace()}, Options)]).

grace() -> 1500 * beamway_runner:slowness().

%% Three of five nodes vote. The others know the child's name, can delete the child, and are informed about it when
%% they join.
names_on_every_node(Config) ->
    {ok, First} = child(Config, #{voters => 3}),
    ?assertEqual(First, found(Config, none)),
    {0, Voters} = voters(Config),
    ?assertEqual(3, length(Voters)),
    [Other, Restarted] = [Name || {Name, _, Node} <- cluster(Config), not lists:member(Node, Voters)],
    ?assertEqual([[], []], [call(Config, Name, {ets, lookup}, [placement_children, one]) || Name <- [Other, Restarted]]),
    ?assertEqual({error, {exists, First}}, call(Config, Other, {placement, child}, [[], {?COUNTER, start_link, [one, 100]}, #{name => one, nodes => beamway_placement_nodes:nodes(cluster(Config))}])),
    true = call(Config, name_of(Config, node(First)), {erlang, exit}, [First, kill]),
    Second = found(Config, First),
    {1, Second, _} = call(Config, Other, {?COUNTER, bump}, [{via, placement, one}, me]),
    ok = call(Config, Restarted, {application, stop}, [placement]),
    ok = call(Config, Restarted, {application, start}, [placement]),
    Third = found(Config, none),
    ?assertEqual([[{one, node(Third), Third}]], lists:usort([on(Config, Name, children, []) || Name <- names(Config)])),
    ok = on(Config, Other, delete_child, [one]),
    true = wait_until(fun() -> lists:usort([{on(Config, Name, whereis_name, [one]), on(Config, Name, children, [])} || Name <- names(Config)]) =:= [{undefined, []}] end),
    ?assertEqual({error, no_such_child}, on(Config, Other, delete_child, [one])).

%% Voters are killed one after another and replaced by other nodes. So the child survives the loss of two of its first
%% three voters, and after that the loss of its own node.
voters_are_replaced(Config) ->
    {ok, First} = child(Config, #{voters => 3, replace_after => 300, settle => 1000, nodes => beamway_placement_nodes:nodes(cluster(Config))}),
    {0, Voters} = voters(Config),
    [One, Two | _] = [Name || {Name, _, Node} <- cluster(Config), lists:member(Node, Voters), Node =/= node(First)],
    ok = beamway_peer:kill9(peer_of(Config, One)),
    Four = without(One, Config),
    %% The configuration two terms after the first no longer contains the nodes that were killed.
    true = wait_until(fun() -> case voters(Four) of {2, Nodes} -> not lists:member(node_of(Config, One), Nodes); _ -> false end end),
    ?assertEqual(First, found(Four, none)),
    ok = beamway_peer:kill9(peer_of(Config, Two)),
    Three = without(Two, Four),
    true = wait_until(fun() -> case voters(Three) of {4, Nodes} -> not lists:member(node_of(Config, Two), Nodes); _ -> false end end),
    ?assertEqual(First, found(Three, none)),
    ?assertEqual({4, lists:sort(beamway_placement_nodes:nodes(cluster(Three)))}, voters(Three)),
    Own = name_of(Config, node(First)),
    ok = beamway_peer:kill9(peer_of(Config, Own)),
    ?assertNotEqual(First, found(without(Own, Three), First)).

%% The child starts when there is no other node. Nodes that join later become voters, so the child survives the loss of
%% the first node.
follows_the_cluster(Config) ->
    {ok, First} = on(Config, "a", child, [[], {?COUNTER, start_link, [one, 100]}, #{name => one, grace => grace(), replace_after => 300, settle => 500}]),
    ?assertEqual({0, [node(First)]}, voters(Config)),
    ok = connected(cluster(Config), ?NAMES),
    All = lists:sort(beamway_placement_nodes:nodes(cluster(Config))),
    true = wait_until(fun() -> {Term, Nodes} = voters(Config), Term rem 2 =:= 0 andalso Nodes =:= All end),
    ?assertEqual(First, found(Config, none)),
    ok = beamway_peer:kill9(peer_of(Config, "a")),
    ?assertNotEqual(First, found(without("a", Config), First)).

%% The voters of each child get four requests per grace period. If all five nodes were voters, there would be 5/3
%% times as many messages.
messages_per_second(Config) ->
    Children = 40,
    Grace = 2000 * beamway_runner:slowness(),
    Nodes = beamway_placement_nodes:nodes(cluster(Config)),
    [{ok, _} = on(Config, "a", child, [[], {?COUNTER, start_link, [N, 10]}, #{name => N, nodes => Nodes, grace => Grace, voters => 3}]) || N <- lists:seq(1, Children)],
    Ms = 3 * Grace,
    Counting = [beamway_peer:async(fun() -> beamway_peer:run(peer_of(Config, Name), fun() -> asked(Ms) end, 10 * Ms + 60000) end) || Name <- ?NAMES],
    Asked = lists:sum([beamway_peer:await(Call, 10 * Ms + 60000) || Call <- Counting]),
    PerSecond = Asked * 1000 / Ms,
    Expected = Children * 3 * 4 * 1000 / Grace,
    io:format(user, "~b children, 3 voters each, grace time ~b ms: ~.1f questions a second, ~.1f expected~n", [Children, Grace, PerSecond, Expected]),
    ?assert(PerSecond > Expected / 2 andalso PerSecond < Expected * 4 / 3, {PerSecond, Expected}).

%% Runs on a node: counts the requests that its voter receives in `Ms' milliseconds.
asked(Ms) ->
    Voter = whereis(placement_child),
    1 = erlang:trace(Voter, true, ['receive']),
    Count = counted(Voter, 0, erlang:monotonic_time(millisecond) + Ms),
    1 = erlang:trace(Voter, false, ['receive']),
    Count.

counted(Voter, Count, End) ->
    receive
        {trace, Voter, 'receive', {'$gen_cast', {ask, _, _, _, _}}} -> counted(Voter, Count + 1, End);
        {trace, Voter, 'receive', _} -> counted(Voter, Count, End)
    after max(0, End - erlang:monotonic_time(millisecond)) -> Count
    end.

%% The functions have the same return values as those of the module supervisor.
as_of_a_supervisor(Config) ->
    Do = fun(Name, Function, Arguments) -> on(Config, Name, Function, [workers | Arguments]) end,
    Spec = fun(Id, More) -> maps:merge(#{id => Id, start => {?COUNTER, start_link, [Id, 10]}, grace => grace(), nodes => beamway_placement_nodes:nodes(cluster(Config))}, More) end,
    {ok, One} = Do("a", start_child, [Spec(1, #{})]),
    ?assertEqual({error, {already_started, One}}, Do("b", start_child, [Spec(1, #{})])),
    {ok, Two} = Do("b", start_child, [Spec(two, #{restart => transient, shutdown => brutal_kill, type => supervisor, modules => dynamic})]),
    {ok, Three} = Do("c", start_child, [Spec(3, #{restart => temporary})]),
    true = wait_until(fun() -> [lists:sort(Do(Name, which_children, [])) || Name <- ?NAMES] =:=
                                   [lists:sort([{1, One, worker, [?COUNTER]}, {two, Two, supervisor, dynamic}, {3, Three, worker, [?COUNTER]}]) || _ <- ?NAMES] end),
    ?assertEqual([{specs, 3}, {active, 3}, {supervisors, 1}, {workers, 2}], Do("d", count_children, [])),
    ?assertEqual([], on(Config, "d", which_children, [others])),
    {1, One, _} = call(Config, "e", {?COUNTER, bump}, [{via, placement, {workers, 1}}, me]),
    %% A transient child is restarted after a crash but not after a normal exit; a temporary one is never restarted.
    true = call(Config, name_of(Config, node(Two)), {erlang, exit}, [Two, kill]),
    Again = wait_until(fun() -> case lists:keyfind(two, 1, Do("a", which_children, [])) of {two, Pid, _, _} when is_pid(Pid), Pid =/= Two -> Pid; _ -> false end end),
    ok = call(Config, "a", {gen_server, stop}, [Again]),
    true = call(Config, name_of(Config, node(Three)), {erlang, exit}, [Three, kill]),
    true = wait_until(fun() -> [Do(Name, which_children, []) || Name <- ?NAMES] =:= [[{1, One, worker, [?COUNTER]}] || _ <- ?NAMES] end),
    ok = Do("e", terminate_child, [1]),
    true = wait_until(fun() -> [Do(Name, count_children, []) || Name <- ?NAMES] =:= [[{specs, 0}, {active, 0}, {supervisors, 0}, {workers, 0}] || _ <- ?NAMES] end),
    ?assertEqual({error, not_found}, Do("e", terminate_child, [1])),
    [?assertEqual({error, Want}, Do("a", start_child, [Wrong])) || {Want, Wrong} <- [{{missing, id}, #{}}, {{missing, start}, #{id => 1}}, {{bad_option, start, x}, #{id => 1, start => x}},
        {{bad_option, restart, always}, Spec(1, #{restart => always})}, {{bad_option, shutdown, soon}, Spec(1, #{shutdown => soon})}, {{bad_option, type, other}, Spec(1, #{type => other})},
        {{bad_option, significant, true}, Spec(1, #{significant => true})}]].

%% Two zones, one with three nodes and one with two, get the same number of children, which are started one after another.
spread_over_what_runs(Config) ->
    [ok = on(Config, Name, insert, [zone, Zone]) || {Name, Zone} <- [{"a", x}, {"b", x}, {"c", x}, {"d", y}, {"e", y}]],
    Nodes = beamway_placement_nodes:nodes(cluster(Config)),
    Spread = #{by => {attribute, zone}, max_skew => 1, how => hard, count => {children, spread}},
    Starts = fun(N) ->
        {ok, Pid} = on(Config, "a", start_child, [spread, #{id => N, start => {?COUNTER, start_link, [N, 10]}, query => #{spread => Spread}, nodes => Nodes, grace => grace()}]),
        %% Any voter may choose next.
        true = wait_until(fun() -> lists:all(fun(Name) -> lists:keymember(Pid, 2, on(Config, Name, which_children, [spread])) end, ?NAMES) end),
        lists:member(node(Pid), [node_of(Config, "d"), node_of(Config, "e")])
    end,
    ?assertEqual(4, length([N || N <- lists:seq(1, 8), Starts(N)])),
    ?assertMatch({ok, _, _}, on(Config, "b", choose_node, [Nodes, #{spread => Spread#{min_domains => 2}}])),
    %% There are fewer zones than min_domains, so a missing zone counts as empty, and no zone may have more than one child.
    {error, {unsatisfied, #{spread := #{most := 0}} = Conflict}} = on(Config, "b", choose_node, [Nodes, #{spread => Spread#{min_domains => 3}}]),
    ?assertMatch([_ | _], string:find(lists:flatten(io_lib:format("~ts", [call(Config, "b", {placement, format_error}, [{unsatisfied, Conflict}])])), "hard spread")),
    ?assertMatch({ok, _, _}, on(Config, "b", choose_node, [Nodes, #{spread => (maps:remove(min_domains, Spread))#{how => soft}}])).
