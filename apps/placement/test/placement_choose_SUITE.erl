%% SPDX-License-Identifier: Apache-2.0
%% @doc Choices among real nodes: words, priorities, explanations, policies, spread, leases, processes, groups, epochs.
-module(placement_choose_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([three_values/1, relative_words/1, distance_words/1, affinity/1, taints/1, scores_of_ones_own/1, priorities_give_way/1, conflicts_are_explained/1, why_not_names_everything/1,
         bad_queries/1, bad_nodes/1, choosers_do_not_pile_up/1, own_placements_count/1, spread_over_places/1, latencies/1,
         leases_have_a_capacity/1, leases_end/1, leases_for_several_nodes/1, leases_are_judged_one_by_one/1, processes_take_their_lease/1, a_lease_that_is_gone/1, a_node_that_begins_late/1, a_node_of_the_version_before/1, nobody_has_room/1,
         groups/1, names_in_groups/1, groups_meet_again/1, names_after_a_restart/1, groups_forget/1, names_leave_nothing/1, epochs/1, publishers_agree/1, a_node_finds_its_place/1, the_command/1]).
-export([wait/0, waiting/0, middle/2, no_score/2]).

suite() -> [{timetrap, {minutes, 5}}].

all() ->
    [three_values, relative_words, distance_words, affinity, taints, scores_of_ones_own, priorities_give_way, conflicts_are_explained, why_not_names_everything,
     bad_queries, bad_nodes, choosers_do_not_pile_up, own_placements_count, spread_over_places, latencies,
     leases_have_a_capacity, leases_end, leases_for_several_nodes, leases_are_judged_one_by_one, processes_take_their_lease, a_lease_that_is_gone, a_node_that_begins_late, a_node_of_the_version_before, nobody_has_room,
     groups, names_in_groups, groups_meet_again, names_after_a_restart, groups_forget, names_leave_nothing, epochs, publishers_agree, a_node_finds_its_place, the_command].

-define(NAMES, ["a", "b", "c", "d", "e", "f"]).

%% size 1 to 6, zone x or y, slots 2; the tree has two sites, the first one with two racks.
init_per_suite(Config) ->
    Cluster = beamway_placement_nodes:start(?NAMES),
    ok = beamway_placement_nodes:connect(Cluster, "a"),
    [begin
         ok = beamway_placement_nodes:call(Cluster, Name, {placement, insert}, [size, Size]),
         ok = beamway_placement_nodes:call(Cluster, Name, {placement, insert}, [zone, case Size rem 2 of 0 -> y; 1 -> x end]),
         ok = beamway_placement_nodes:call(Cluster, Name, {placement, insert}, [slots, 2])
     end || {Name, Size} <- lists:zip(?NAMES, lists:seq(1, length(?NAMES)))],
    Conf = [{cluster, Cluster} | Config],
    [A, B, C, D, E, F] = nodes_of(Conf),
    {ok, Tree} = placement_tree:from_paths([{A, "/s1/r1/a"}, {B, "/s1/r1/b"}, {C, "/s1/r2/c"}, {D, "/s1/r2/d"}, {E, "/s2/r3/e"}, {F, "/s2/r3/f"}]),
    {ok, 1, []} = call(Conf, "a", placement, set_topology, [Tree, nodes_of(Conf)]),
    [{tree, Tree} | Conf].

end_per_suite(Config) -> beamway_placement_nodes:stop(proplists:get_value(cluster, Config)).

cluster(Config) -> proplists:get_value(cluster, Config).
call(Config, Name, Module, Function, Arguments) -> beamway_placement_nodes:call(cluster(Config), Name, {Module, Function}, Arguments).
on(Config, Name, Fun) -> beamway_peer:run(element(2, lists:keyfind(Name, 1, cluster(Config))), Fun).
node_of(Config, Name) -> element(3, lists:keyfind(Name, 1, cluster(Config))).
nodes_of(Config) -> beamway_placement_nodes:nodes(cluster(Config)).
name_of(Config, Node) -> element(1, lists:keyfind(Node, 3, cluster(Config))).

%% The names of what a query chooses, or what error it gets.
chosen(Config, Query) ->
    case call(Config, "a", placement, choose_nodes, [nodes_of(Config), Query]) of
        {ok, Nodes, _} -> [name_of(Config, Node) || Node <- Nodes];
        {error, {unsatisfied, _}} -> [];
        {error, _} = Error -> Error
    end.

three_values(Config) ->
    ok = call(Config, "b", placement, insert, [gpu_count, 2]),
    ok = call(Config, "c", placement, insert, [gpu_count, "two"]),
    ?assertEqual(["b"], chosen(Config, {gpu_count, gt, 1})),
    ?assertEqual([], chosen(Config, {'not', {gpu_count, gt, 1}})),
    ?assertEqual(["b", "c"], chosen(Config, {gpu_count, exists})),
    ?assertEqual(["a", "d", "e", "f"], chosen(Config, {gpu_count, missing})),
    ?assertEqual(["b"], chosen(Config, {'and', [{gpu_count, gt, 1}, {size, lt, 5}]})),
    %% unknown or true is true, unknown or false is unknown.
    ?assertEqual(["a", "b"], chosen(Config, {'or', [{gpu_count, gt, 1}, {size, lt, 2}]})),
    ?assertEqual(["b", "f"], chosen(Config, [{size, in, [2, 6]}, {zone, eq, y}])),
    ?assertEqual(["c", "d"], chosen(Config, {size, between, {3, 4}})),
    ?assertEqual(["b", "d", "f"], chosen(Config, {zone, match, "^[yz]$"})),
    ?assertEqual([], chosen(Config, {no_such_attribute, gt, 0})),
    [ok = call(Config, Name, placement, delete, [gpu_count]) || Name <- ["b", "c"]].

relative_words(Config) ->
    ?assertEqual(["a", "b"], chosen(Config, {size, low})),
    ?assertEqual(["e", "f"], chosen(Config, {size, high})),
    ?assertEqual(["a"], chosen(Config, {size, lowest})),
    ?assertEqual(["f"], chosen(Config, {size, highest})),
    ?assertEqual(["d", "e", "f"], chosen(Config, {size, top, 3})),
    ?assertEqual(["a", "b"], chosen(Config, {size, bottom, 2})),
    %% Among those that pass all else, wherever it stands.
    [?assertEqual(["e"], chosen(Config, P)) || P <- [[{size, highest}, {zone, eq, x}], [{zone, eq, x}, {size, highest}]]],
    %% All are alike: everybody is low and high.
    ?assertEqual(?NAMES, chosen(Config, [{slots, low}, {slots, high}])).

distance_words(Config) ->
    From = fun(Name, P) -> chosen(Config, #{require => P, from => node_of(Config, Name)}) end,
    ?assertEqual(["a", "b"], From("a", {dist, very_near})),
    %% Three levels: rack, site, root; half of them is two.
    ?assertEqual(["a", "b", "c", "d"], From("a", {dist, near})),
    ?assertEqual(["e", "f"], From("a", {dist, far})),
    ?assertEqual(["e", "f"], From("a", {dist, very_far})),
    ?assertEqual(?NAMES, From("a", {dist, anywhere})),
    ?assertEqual(["a", "b", "c", "d"], From("a", {dist, le, 0.5})),
    ?assertEqual(["a", "b"], From("a", {dist, le, 0.25})),
    ?assertEqual(["a", "b", "c", "d"], From("a", {dist, same, 1})),
    ?assertEqual(["e", "f"], From("e", {dist, near})),
    {ok, Nodes, _} = call(Config, "a", placement, choose_nodes, [{level, 1, node_of(Config, "c")}, []]),
    ?assertEqual(["a", "b", "c", "d"], lists:sort([name_of(Config, Node) || Node <- Nodes])).

%% Near: the same node, or the smallest group of the tree. Apart: another node.
affinity(Config) ->
    ok = call(Config, "b", placement, insert, [runs_db, 2]),
    ok = call(Config, "e", placement, insert, [runs_db, 0]),
    Near = fun(What) -> chosen(Config, {affinity, What, near}) end,
    Apart = fun(What) -> chosen(Config, {affinity, What, apart}) end,
    ?assertEqual({["a", "b"], ["a", "c", "d", "e", "f"]}, {Near(runs_db), Apart(runs_db)}),
    ?assertEqual(["c", "d", "e", "f"], chosen(Config, {'not', {affinity, runs_db, near}})),
    ?assertEqual({[], ?NAMES}, {Near(runs_nowhere), Apart(runs_nowhere)}),
    ok = call(Config, "e", placement, insert, [runs_db, true]),
    ok = call(Config, "a", placement_cache, forget, [node_of(Config, "e")]),
    ?assertEqual(["a", "b", "e", "f"], Near(runs_db)),
    [ok = call(Config, Name, placement, delete, [runs_db]) || Name <- ["b", "e"]],
    %% A process of pg, on the only node that is connected to all.
    Pid = on(Config, "a", fun() ->
        {ok, _} = pg:start(affinity),
        Process = spawn(?MODULE, wait, []),
        ok = pg:join(affinity, store, Process),
        Process
    end),
    ?assertEqual({["a", "b"], ["b", "c", "d", "e", "f"]}, {Near({pg, affinity, store}), Apart({pg, affinity, store})}),
    ?assertEqual({[], []}, {Near({pg, no_scope, store}), Apart({pg, no_scope, store})}),
    %% A name in a group.
    ok = call(Config, "a", placement_group, new_group, [affine, nodes_of(Config)]),
    yes = call(Config, "a", placement_group, register_name, [affine, store, Pid]),
    ?assertEqual({["a", "b"], ["b", "c", "d", "e", "f"]}, {Near({group, affine}), Apart({group, affine})}),
    ?assertEqual({[], []}, {Near({group, unheard_of}), Apart({group, unheard_of})}),
    {ok, [#{details := [{_, false, {runs_on, [A]}}]}]} = call(Config, "a", placement, why_not, [node_of(Config, "c"), {affinity, {group, affine}, near}]),
    ?assertEqual(node_of(Config, "a"), A),
    true = call(Config, "a", erlang, exit, [Pid, kill]),
    ok = call(Config, "a", placement_group, delete_group, [affine]),
    {ok, [Alone], _} = call(Config, "a", placement, choose_nodes, [[node_of(Config, "c")], #{order => [{affinity, runs_nowhere, near}]}]),
    ?assertEqual(node_of(Config, "c"), Alone),
    [{error, {bad_query, _}} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), P]) || P <- [{affinity, {pg, "s", g}, near}, {affinity, 7, apart}, {affinity, x, beside}]].

%% A node with taints suits only who tolerates them all. It says so itself, whatever the others know.
taints(Config) ->
    C = node_of(Config, "c"),
    ok = call(Config, "c", placement, taint, [[maintenance, {only, db}]]),
    ok = call(Config, "a", placement_cache, forget, [C]),
    ?assertEqual(["a", "b"], chosen(Config, {size, lt, 4})),
    ?assertEqual(["a", "b"], chosen(Config, [{size, lt, 4}, {tolerates, [maintenance]}])),
    ?assertEqual(["a", "b", "c"], chosen(Config, [{size, lt, 4}, {tolerates, [{only, db}, maintenance, other]}])),
    ?assertEqual(["a", "b", "c"], chosen(Config, [{size, lt, 4}, {tolerates, all}])),
    {ok, Verdicts} = call(Config, "a", placement, why_not, [C, {size, lt, 4}]),
    ?assertMatch([#{constraint := {tolerates, []}, truth := false}], Verdicts),
    {error, {unsatisfied, _} = Error} = call(Config, "a", placement, choose_nodes, [[C], {size, eq, 3}]),
    ?assertNotEqual(nomatch, string:find(unicode:characters_to_list(placement:format_error(Error)), "no taints: 0 nodes")),
    {error, {refused, {predicate, {tolerates, []}, false}}} = call(Config, "a", placement, reserve, [C, #{}, #{}]),
    {ok, Lease} = call(Config, "a", placement, reserve, [C, #{}, #{require => {tolerates, all}}]),
    ok = call(Config, "a", placement, release, [Lease]),
    ok = call(Config, "c", placement, taint, [[]]),
    ok = call(Config, "a", placement_cache, forget, [C]),
    ?assertEqual(["a", "b", "c"], chosen(Config, {size, lt, 4})),
    %% What this node knows is old: the nodes that are drawn are asked anew, and the lease is refused.
    ok = call(Config, "c", placement, taint, [[maintenance]]),
    ?assertEqual(["a", "b", "c"], chosen(Config, #{require => {size, lt, 4}, max_age => 60000})),
    {error, {unsatisfied, _}} = call(Config, "a", placement, choose_nodes, [[C], #{n => 1, max_age => 60000}]),
    ok = call(Config, "c", placement, taint, [[]]),
    ok = call(Config, "a", placement_cache, forget, [C]),
    {error, {bad_query, _}} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), {tolerates, maintenance}]).

scores_of_ones_own(Config) ->
    Query = fun(Score) -> #{n => 1, policy => least, prefer => [{1, {score, Score, [size]}}]} end,
    {ok, [D], _} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), Query({?MODULE, middle})]),
    ?assertEqual("d", name_of(Config, D)),
    {error, {bad_query, Text}} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), Query({?MODULE, unheard_of})]),
    ?assertNotEqual(nomatch, string:find(Text, "there is no function placement_choose_SUITE:unheard_of/2")),
    ?assertError({bad_score, {?MODULE, no_score}, high}, on(Config, "a", fun() -> placement:choose_nodes(nodes(connected), Query({?MODULE, no_score})) end)).

%% Size 4 is best.
middle(_, #{size := Size}) -> -abs(Size - 4).

no_score(_, _) -> high.

%% An early constraint has priority over a later one; what was dropped is said.
priorities_give_way(Config) ->
    Query = #{require => {size, gt, 1}, order => [{dist, very_near}, {zone, eq, x}, {size, high}]},
    {ok, [B], #{dropped := Dropped}} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), Query]),
    ?assertEqual(node_of(Config, "b"), B),
    ?assertEqual([{zone, eq, x}, {size, high}], Dropped),
    {ok, Two, #{dropped := All}} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), Query#{min => 2}]),
    ?assertEqual({5, 3}, {length(Two), length(All)}),
    {ok, Kept, #{dropped := []}} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), Query#{order => [{zone, eq, x}, {dist, far}]}]),
    ?assertEqual(["e"], [name_of(Config, Node) || Node <- Kept]),
    {error, {unsatisfied, _}} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), Query#{on_conflict => error}]).

conflicts_are_explained(Config) ->
    Query = [{size, gt, 5}, {zone, eq, x}, {slots, eq, 2}],
    {error, {unsatisfied, Conflict} = Error} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), Query]),
    ?assertMatch(#{wanted := 1, candidates := 6, feasible := 0, alone := [{{size, gt, 5}, 1, 0}, {{zone, eq, x}, 3, 0}, {{slots, eq, 2}, 6, 0}],
                   together := [{{size, gt, 5}, {zone, eq, x}, 0}], unreachable := []}, Conflict),
    ?assertEqual(2, length(maps:get(largest, Conflict))),
    ?assertEqual([{{size, gt, 5}, {size, ge, 5}, 1}], maps:get(relaxations, Conflict)),
    Text = unicode:characters_to_list(placement:format_error(Error)),
    [?assertNotEqual(nomatch, string:find(Text, Part)) || Part <- ["0 of 6 nodes", "size > 5: 1 nodes", "with size >= 5 instead"]],
    {error, {unsatisfied, #{contradictions := [{{size, lt, 2}, {size, gt, 3}}]}}} =
        call(Config, "a", placement, choose_nodes, [nodes_of(Config), [{size, lt, 2}, {size, gt, 3}]]),
    {error, {unsatisfied, #{wanted := 4, relaxations := [{{size, gt, 4}, {size, ge, 4}, 3}, {{size, gt, 4}, {size, ge, 3}, 4}]}}} =
        call(Config, "a", placement, choose_nodes, [nodes_of(Config), #{require => {size, gt, 4}, n => 4}]).

why_not_names_everything(Config) ->
    Query = [{size, gt, 5}, {zone, eq, y}, {dist, near}, {unheard_of, true}],
    {ok, Verdicts} = call(Config, "a", placement, why_not, [node_of(Config, "e"), Query]),
    ?assertMatch([#{constraint := {size, gt, 5}, truth := false, details := [{_, false, {value, 5, _}}]}, #{constraint := {zone, eq, y}, truth := false},
                  #{constraint := {dist, near}, truth := false, details := [{_, false, {level, 3, 3}}]},
                  #{constraint := {unheard_of, true}, truth := unknown, details := [{_, unknown, {unknown, missing}}]}], Verdicts),
    {ok, []} = call(Config, "a", placement, why_not, [node_of(Config, "b"), {size, eq, 2}]),
    {ok, Reports} = call(Config, "a", placement, explain, [nodes_of(Config), Query]),
    ?assertEqual([4, 4, 4, 4, 4, 4], [length(Constraints) || #{constraints := Constraints} <- Reports]),
    Text = unicode:characters_to_list(placement_explain:to_text(Reports)),
    [?assertNotEqual(nomatch, string:find(Text, Part)) || Part <- ["not suitable", "size > 5: no, it is 1", "unheard_of is true: unknown, there is no such attribute"]],
    %% Among other nodes, relative words mean something else.
    {ok, [_]} = call(Config, "a", placement, why_not, [node_of(Config, "c"), {size, lowest}, nodes_of(Config)]),
    {ok, []} = call(Config, "a", placement, why_not, [node_of(Config, "c"), {size, lowest}, [node_of(Config, "d")]]).

bad_queries(Config) ->
    [begin
         {error, {bad_query, Text}} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), Query]),
         {Part, true} = {Part, string:find(Text, Part) =/= nomatch}
     end || {Query, Part} <- [{foo, "no predicate"}, {#{n => 0}, "n => 0"}, {#{wish => 1}, "wish"}, {{size, gt, {1, furlong}}, "furlong"}, {{zone, match, "("}, "character"},
                              {#{policy => first}, "two_choices"}, {#{order => x}, "list"}]],
    {error, {bad_query, _}} = call(Config, "a", placement, explain, [nodes_of(Config), foo]),
    {error, {bad_query, _}} = call(Config, "a", placement, why_not, [node_of(Config, "b"), foo]),
    {error, {bad_query, _}} = call(Config, "a", placement, spawn, [foo, {?MODULE, wait, []}]),
    {error, {bad_query, _}} = call(Config, "a", placement, reserve, [node_of(Config, "b"), #{}, #{require => foo}]).

bad_nodes(Config) ->
    [{error, {bad_nodes, _}} = call(Config, "a", placement, choose_nodes, [Nodes, []])
     || Nodes <- [[], foo, ["b@h"], [a | b], {group, nobody}, {level, 1, 'never@127.0.0.1'}, {level, -1, node_of(Config, "a")}]],
    %% A node that does not answer suits no query, not even an empty one.
    {error, {unsatisfied, #{feasible := 0}}} = call(Config, "a", placement, choose_nodes, [['never@127.0.0.1'], []]),
    {error, {unsatisfied, _}} = call(Config, "a", placement, choose_node, [['never@127.0.0.1'], []]),
    {error, {unsatisfied, #{unreachable := [{'never@127.0.0.1', nodedown}]}}} = call(Config, "a", placement, choose_nodes, [['never@127.0.0.1'], {size, gt, 0}]).

%%% Policies

%% Twenty choosers at once, all with the same knowledge: no node gets them all.
choosers_do_not_pile_up(Config) ->
    Nodes = nodes_of(Config),
    Picks = on(Config, "a", fun() ->
        Self = self(),
        _ = [spawn_link(fun() -> Self ! {pick, placement:choose_node(Nodes, #{prefer => [{1, {slots, max}}]})} end) || _ <- lists:seq(1, 120)],
        [receive {pick, {ok, Node, _}} -> Node after 50000 -> none end || _ <- lists:seq(1, 120)]
    end),
    Counts = [length([P || P <- Picks, P =:= Node]) || Node <- Nodes],
    %% 20 each on average; that a fair choice gives one of them fewer than 3 or more than 50 happens less than once in a million runs.
    {true, _} = {lists:min(Counts) >= 3 andalso lists:max(Counts) =< 50, Counts},
    %% Of two nodes the better is always taken, for both are asked.
    [A, F] = [node_of(Config, Name) || Name <- ["a", "f"]],
    [{ok, F, _} = call(Config, "a", placement, choose_node, [[A, F], #{prefer => [{1, {size, max}}]}]) || _ <- lists:seq(1, 20)].

%% What was placed since the nodes were asked counts, so one chooser with old knowledge goes round.
own_placements_count(Config) ->
    Nodes = nodes_of(Config),
    [ok = call(Config, Name, placement, insert, [tasks, 0, #{ttl => 60000}]) || Name <- ?NAMES],
    Picks = on(Config, "a", fun() ->
        [begin {ok, Node, _} = placement:choose_node(Nodes, #{prefer => [{1, {tasks, min}}], policy => least, charge => #{tasks => 1}, max_age => 60000}), Node end
         || _ <- lists:seq(1, 18)]
    end),
    ?assertEqual([3], lists:usort([length([P || P <- Picks, P =:= Node]) || Node <- Nodes])),
    [ok = call(Config, Name, placement, delete, [tasks]) || Name <- ?NAMES].

spread_over_places(Config) ->
    Query = fun(Spread, N, Require) -> #{require => Require, n => N, policy => {choices, 6}, prefer => [{1, {size, min}}], spread => Spread} end,
    Sites = fun(Names) -> lists:sort([case lists:member(Name, ["e", "f"]) of true -> 2; false -> 1 end || Name <- Names]) end,
    %% Without spread the smallest four are all at one site.
    ?assertEqual(["a", "b", "c", "d"], lists:sort(chosen(Config, #{n => 4, policy => {choices, 6}, prefer => [{1, {size, min}}]}))),
    ?assertEqual([1, 1, 2, 2], Sites(chosen(Config, Query({1, 1, hard}, 4, [])))),
    ?assertEqual(["x", "x", "y", "y"], lists:sort([case lists:member(Name, ["a", "c", "e"]) of true -> "x"; false -> "y" end || Name <- chosen(Config, Query({{attribute, zone}, 1, hard}, 4, []))])),
    %% A place with too few nodes: soft goes on without it, hard does not.
    ?assertEqual(5, length(chosen(Config, Query({1, 1, soft}, 5, {size, lt, 6})))),
    ?assertEqual([], chosen(Config, Query({1, 1, hard}, 5, {size, lt, 6}))).

latencies(Config) ->
    %% The first question goes over a new path; afterwards the shortest round trip is known.
    _ = chosen(Config, {size, gt, 0}),
    _ = call(Config, "a", attr, request_attrs, [nodes_of(Config), [size]]),
    ?assertEqual(?NAMES, chosen(Config, {latency, lt, {1, minute}})),
    ?assertEqual(["a"], chosen(Config, {latency, eq, 0})),
    %% From another node nothing was measured.
    ?assertEqual([], chosen(Config, #{require => {latency, gt, 0}, from => node_of(Config, "b")})).

%%% Leases

leases_have_a_capacity(Config) ->
    F = node_of(Config, "f"),
    %% Four nodes ask for five slots each at the same moment; there are two.
    Askers = ["a", "b", "c", "d"],
    [true = call(Config, Name, net_kernel, connect_node, [F]) || Name <- Askers],
    Holders = [{Name, on(Config, Name, fun() -> asker(F, 5) end)} || Name <- Askers],
    Results = lists:append([on(Config, Name, fun() -> Pid ! {self(), go}, receive {Pid, All} -> All after 20000 -> error(no_answer) end end) || {Name, Pid} <- Holders]),
    ?assertEqual(2, length([granted || {ok, _} <- Results])),
    ?assertEqual(18, length([refused || {error, {refused, {capacity, slots, 0}}} <- Results])),
    ?assertMatch([{F, [{leases, 2}]}], call(Config, "a", attr, request_attrs, [[F], [leases]])),
    [on(Config, Name, fun() -> exit(Pid, kill) end) || {Name, Pid} <- Holders],
    _ = beamway_peer:wait_until(fun() -> 0 =:= call(Config, "f", placement_lease, count, []) end, 10000),
    %% A claim on what is no number, and one that never fits.
    {error, {refused, {capacity, zone, unknown}}} = call(Config, "a", placement, reserve, [F, #{zone => 1}, #{}]),
    {error, {refused, {capacity, slots, 2}}} = call(Config, "a", placement, reserve, [F, #{slots => 3}, #{}]).

asker(Node, Count) ->
    spawn(fun() ->
        receive {From, go} -> ok end,
        From ! {self(), [placement:reserve(Node, #{slots => 1}, #{ttl => 60000, timeout => 15000}) || _ <- lists:seq(1, Count)]},
        receive stop -> ok end
    end).

leases_end(Config) ->
    F = node_of(Config, "f"),
    Count = fun() -> call(Config, "f", placement_lease, count, []) end,
    on(Config, "a", fun() ->
        {ok, Lease} = placement:reserve(F, #{slots => 1}, #{require => [{size, eq, 6}, {dist, very_near}], ttl => 60000}),
        1 = erpc:call(F, placement_lease, count, []),
        ok = placement:release(Lease),
        {ok, Renewed} = placement:reserve(F, #{}, #{ttl => 30000}),
        ok = placement:renew(Renewed, 60000),
        [Left] = [Ms || {_, _, Ms} <- erpc:call(F, placement_lease, list, [])],
        true = Left > 30000,
        {error, {refused, {predicate, {size, eq, 5}, false}}} = placement:reserve(F, #{}, #{require => {size, eq, 5}}),
        {error, {refused, {predicate, {nothing, eq, 5}, unknown}}} = placement:reserve(F, #{}, #{require => {nothing, eq, 5}}),
        {error, nodedown} = placement:reserve('never@127.0.0.1', #{}, #{})
    end),
    %% Its holder, the process of that call, has ended.
    _ = beamway_peer:wait_until(fun() -> Count() =:= 0 end, 10000),
    %% A killed server forgets none; and time alone ends it, too.
    Holder = on(Config, "a", fun() -> Self = self(), Pid = spawn(fun() -> holder(F, Self) end), receive ready -> Pid after 30000 -> error(no_lease) end end),
    1 = Count(),
    Before = call(Config, "f", erlang, whereis, [placement_lease]),
    true = on(Config, "f", fun() -> exit(whereis(placement_lease), kill) end),
    _ = beamway_peer:wait_until(fun() -> not lists:member(call(Config, "f", erlang, whereis, [placement_lease]), [undefined, Before]) end, 10000),
    1 = Count(),
    on(Config, "a", fun() -> Holder ! shorten end),
    _ = beamway_peer:wait_until(fun() -> Count() =:= 0 end, 20000),
    ?assert(on(Config, "a", fun() -> is_process_alive(Holder) end)),
    on(Config, "a", fun() -> Holder ! stop end).

%% All or none: where one node has no room nothing stays on the others.
leases_for_several_nodes(Config) ->
    Nodes = [A, B, _] = [node_of(Config, Name) || Name <- ["a", "b", "f"]],
    [ok = call(Config, Name, placement, insert, [seats, 2]) || Name <- ["a", "b", "f"]],
    Counts = fun() -> [call(Config, Name, placement_lease, count, []) || Name <- ["a", "b", "f"]] end,
    {Got, Refused, Between, After, Wrong} = on(Config, "c", fun() ->
        One = fun(Node) -> {Node, #{seats => 1}} end,
        Count = fun() -> [erpc:call(Node, placement_lease, count, []) || Node <- Nodes] end,
        {ok, Leases} = placement:reserve_all([One(Node) || Node <- Nodes], [], #{ttl => 600000, timeout => 30000}),
        Full = placement:reserve_all([One(A), {B, #{seats => 2}}], [], #{ttl => 600000, timeout => 30000}),
        ok = eventually(fun() -> Count() =:= [1, 1, 1] end),
        Now = Count(),
        ok = lists:foreach(fun placement:release/1, Leases),
        ok = eventually(fun() -> Count() =:= [0, 0, 0] end),
        {length(Leases), Full, Now, Count(), {placement:reserve_all([One('no@node')], [], #{}), placement:reserve_all([One(A)], {a}, #{})}}
    end),
    ?assertEqual({3, {error, [{B, {refused, {capacity, seats, 1}}}]}, [1, 1, 1], [0, 0, 0]}, {Got, Refused, Between, After}),
    ?assertMatch({{error, [{'no@node', nodedown}]}, {error, {bad_query, _}}}, Wrong),
    [ok = call(Config, Name, placement, delete, [seats]) || Name <- ["a", "b", "f"]],
    ?assertEqual([0, 0, 0], Counts()),
    %% Every node gives a key the same nodes; a share of 0 none.
    [Keyed] = lists:usort([call(Config, Name, placement, node_for, [key, Nodes]) || Name <- ["a", "b", "f"]]),
    ?assertEqual(lists:sort(Nodes), lists:sort(Keyed)),
    [ok = call(Config, Name, placement, insert, [share, Share]) || {Name, Share} <- [{"a", 0}, {"b", 1}]],
    ?assertEqual([B], call(Config, "f", placement, node_for, [key, Nodes, share])),
    [ok = call(Config, Name, placement, delete, [share]) || Name <- ["a", "b"]].

eventually(Holds) -> eventually(Holds, 1000).

eventually(Holds, Tries) when Tries > 0 ->
    case Holds() of
        true -> ok;
        false -> receive after 10 -> eventually(Holds, Tries - 1) end
    end.

%% Has a lease that outlasts the case, then one of 50 ms; lives on without it.
holder(Node, Starter) ->
    {ok, Lease} = placement:reserve(Node, #{}, #{ttl => 3600000}),
    Starter ! ready,
    receive shorten -> ok = placement:renew(Lease, 50) end,
    receive stop -> ok end.

wait() -> receive stop -> ok end.

%% All ask at the same moment for what only one may have; a lease counts as soon as it is granted.
leases_are_judged_one_by_one(Config) ->
    F = node_of(Config, "f"),
    [begin
         Results = on(Config, "a", fun() ->
             Self = self(),
             Asking = [spawn_link(fun() ->
                 receive go -> ok end,
                 Self ! {answer, placement:reserve(F, #{}, #{require => Require, ttl => 60000, timeout => 30000})},
                 receive stop -> ok end
             end) || _ <- lists:seq(1, 30)],
             _ = [Pid ! go || Pid <- Asking],
             Answers = [receive {answer, Answer} -> Answer after 40000 -> none end || _ <- Asking],
             _ = [Pid ! stop || Pid <- Asking],
             Answers
         end),
         ?assertEqual({Most, 30 - Most}, {length([granted || {ok, _} <- Results]), length([no || {error, {refused, {predicate, _, false}}} <- Results])}),
         _ = beamway_peer:wait_until(fun() -> 0 =:= call(Config, "f", placement_lease, count, []) end, 10000)
     end || {Most, Require} <- [{1, {leases, lt, 1}}, {4, [{size, eq, 6}, {leases, lt, 4}]}]].

processes_take_their_lease(Config) ->
    F = node_of(Config, "f"),
    Options = #{nodes => nodes_of(Config), claims => #{slots => 1}},
    {ok, Pid, #{node := F, refused := []}} = call(Config, "a", placement, spawn, [{size, eq, 6}, {?MODULE, wait, []}, Options]),
    ?assertEqual(F, node(Pid)),
    ?assertMatch([{Pid, #{slots := 1}, attached}], call(Config, "f", placement_lease, list, [])),
    %% To renew it takes nothing from it.
    [{Reference, _, _, _}] = call(Config, "f", ets, tab2list, [placement_leases]),
    ok = call(Config, "a", placement, renew, [{placement_lease, F, Reference}, 1]),
    ?assertMatch([{Pid, #{slots := 1}, attached}], call(Config, "f", placement_lease, list, [])),
    {ok, Second, _} = call(Config, "a", placement, spawn, [{size, eq, 6}, {?MODULE, wait, []}, Options]),
    {error, {busy, [{F, {refused, {capacity, slots, 0}}}]}} = call(Config, "a", placement, spawn, [{size, eq, 6}, {?MODULE, wait, []}, Options]),
    on(Config, "a", fun() -> Pid ! stop, Second ! stop end),
    _ = beamway_peer:wait_until(fun() -> [] =:= call(Config, "f", placement_lease, list, []) end, 10000),
    %% The process ends at once: its lease, too.
    {ok, _, _} = call(Config, "a", placement, spawn, [{size, eq, 6}, {erlang, node, []}, Options]),
    _ = beamway_peer:wait_until(fun() -> [] =:= call(Config, "f", placement_lease, list, []) end, 10000).

%% The lease ends before its process is known there: the process does not stay, and the next node is tried.
a_lease_that_is_gone(Config) ->
    [E, F] = [node_of(Config, Name) || Name <- ["e", "f"]],
    ok = on(Config, "f", fun() -> sys:install(placement_lease, {fun without_lease/3, none}) end),
    {ok, Pid, #{node := E, refused := [{F, {no_lease, ended}}]}} =
        call(Config, "a", placement, spawn, [#{require => {size, ge, 5}, prefer => [{1, {size, max}}], policy => {choices, 6}}, {?MODULE, wait, []}, #{nodes => [E, F]}]),
    ok = on(Config, "f", fun() -> sys:remove(placement_lease, fun without_lease/3) end),
    _ = beamway_peer:wait_until(fun() -> not on(Config, "f", fun() -> is_process_alive(persistent_term:get(handed_over)) end) end, 10000),
    on(Config, "a", fun() -> Pid ! stop end),
    _ = beamway_peer:wait_until(fun() -> {0, 0} =:= {call(Config, "e", placement_lease, count, []), call(Config, "f", placement_lease, count, [])} end, 10000).

%% In the server, before it looks at a message.
without_lease(State, {in, {'$gen_call', _, {hand_over, Reference, Pid}}}, _) ->
    true = ets:delete(placement_leases, Reference),
    ok = persistent_term:put(handed_over, Pid),
    State;
without_lease(State, _, _) -> State.

%% It grants the lease, and hears nothing more for longer than a start may take: the function is called on the next node, and on that alone.
a_node_that_begins_late(Config) ->
    [A, E, F] = [node_of(Config, Name) || Name <- ["a", "e", "f"]],
    Reads = fun(Active) -> inet:setopts(proplists:get_value(A, erlang:system_info(dist_ctrl)), [{active, Active}]) end,
    Deaf = fun(State, {in, {'DOWN', _, process, _, {placement_lease, {fits, _, _}}}}, _) -> ok = Reads(false), State;
              (State, _, _) -> State
           end,
    ok = on(Config, "f", fun() -> sys:install(placement_lease, {deaf, Deaf, none}) end),
    {ok, Pid, #{node := E, refused := [{F, timeout}]}} =
        call(Config, "a", placement, spawn, [#{require => {size, ge, 5}, prefer => [{1, {size, max}}], policy => {choices, 6}}, {?MODULE, wait, []}, #{nodes => [E, F]}]),
    ok = on(Config, "f", fun() -> ok = sys:remove(placement_lease, deaf), Reads(true) end),
    _ = beamway_peer:wait_until(fun() -> [Pid] =:= call(Config, "e", ?MODULE, waiting, []) end, 10000),
    %% This question stands behind the request for the process.
    ?assertEqual([], on(Config, "a", fun() -> erpc:call(F, ?MODULE, waiting, []) end)),
    on(Config, "a", fun() -> Pid ! stop end),
    _ = beamway_peer:wait_until(fun() -> {0, 0} =:= {call(Config, "e", placement_lease, count, []), call(Config, "f", placement_lease, count, [])} end, 10000),
    ?assertEqual([], call(Config, "f", ?MODULE, waiting, [])).

%% The processes of a node that run wait/0.
waiting() -> [Pid || Pid <- processes(), {current_function, {?MODULE, wait, 0}} <- [process_info(Pid, current_function)]].

%% A node whose `placement' does not export what this version calls there.
a_node_of_the_version_before(Config) ->
    F = node_of(Config, "f"),
    Before = fun() ->
        {ok, {_, [{abstract_code, {_, Forms}}]}} = beam_lib:chunks(code:which(placement), [abstract_code]),
        {ok, placement, Binary} = compile:forms([case Form of {attribute, At, export, Functions} -> {attribute, At, export, Functions -- [{begun, 3}]}; _ -> Form end || Form <- Forms]),
        {module, placement} = code:load_binary(placement, "the version before", Binary)
    end,
    {module, placement} = on(Config, "f", Before),
    {ok, Pid, #{node := F, refused := []}} = call(Config, "a", placement, spawn, [{size, eq, 6}, {?MODULE, wait, []}, #{nodes => nodes_of(Config)}]),
    ?assertMatch([{Pid, _, attached}], call(Config, "f", placement_lease, list, [])),
    _ = beamway_peer:wait_until(fun() -> [Pid] =:= call(Config, "f", ?MODULE, waiting, []) end, 10000),
    {module, placement} = on(Config, "f", fun() -> code:purge(placement), code:load_file(placement) end),
    on(Config, "a", fun() -> Pid ! stop end),
    _ = beamway_peer:wait_until(fun() -> 0 =:= call(Config, "f", placement_lease, count, []) end, 10000).

%% Refused by the best, the next best is asked; when all have refused, all are named.
nobody_has_room(Config) ->
    Options = #{nodes => nodes_of(Config), claims => #{slots => 1}},
    Spawn = fun() -> call(Config, "a", placement, spawn, [{size, ge, 5}, {?MODULE, wait, []}, Options]) end,
    Started = [Spawn() || _ <- lists:seq(1, 4)],
    ?assertEqual([node_of(Config, "e"), node_of(Config, "e"), node_of(Config, "f"), node_of(Config, "f")], lists:sort([Node || {ok, _, #{node := Node}} <- Started])),
    {error, {busy, Refused}} = Spawn(),
    ?assertEqual([node_of(Config, "e"), node_of(Config, "f")], lists:sort([Node || {Node, {refused, _}} <- Refused])),
    on(Config, "a", fun() -> [Pid ! stop || {ok, Pid, _} <- Started] end),
    _ = beamway_peer:wait_until(fun() -> {0, 0} =:= {call(Config, "e", placement_lease, count, []), call(Config, "f", placement_lease, count, [])} end, 10000).

%%% Groups

groups(Config) ->
    [A, B, C, D | _] = nodes_of(Config),
    ok = call(Config, "b", placement_group, new_group, [left, [B, A]]),
    ok = call(Config, "b", placement_group, new_group, [right, [B, C]]),
    {error, exists} = call(Config, "b", placement_group, new_group, [left, [B]]),
    {error, not_a_member} = call(Config, "b", placement_group, new_group, [other, [A]]),
    {error, {bad_nodes, _}} = call(Config, "b", placement_group, new_group, [other, foo]),
    await_groups(Config, "a", [left]),
    await_groups(Config, "c", [right]),
    ?assertEqual([left, right], call(Config, "b", placement_group, own_groups, [])),
    ?assertEqual(lists:sort([A, B, C]), call(Config, "b", placement_group, own_nodes, [])),
    ?assertEqual(["b"], chosen(Config, [{group, left}, {size, gt, 1}])),
    {ok, Nodes, _} = call(Config, "a", placement, choose_nodes, [{group, left}, []]),
    ?assertEqual(lists:sort([A, B]), lists:sort(Nodes)),
    %% Nodes without a common group are not connected by it.
    ?assertNot(lists:member(node_of(Config, "e"), call(Config, "c", erlang, nodes, [connected]))),
    %% A member may change it, others may not.
    {error, no_such_group} = call(Config, "c", placement_group, add_nodes, [left, [D]]),
    ok = call(Config, "a", placement_group, add_nodes, [left, [D]]),
    await_groups(Config, "d", [left]),
    ok = call(Config, "d", placement_group, remove_nodes, [left, [A]]),
    await_groups(Config, "a", []),
    %% Each member's next change counts from what it has heard.
    _ = beamway_peer:wait_until(fun() -> lists:sort([B, D]) =:= call(Config, "b", placement_group, own_nodes, [left]) end, 10000),
    ?assertEqual({error, no_such_group}, call(Config, "a", placement_group, members, [left])),
    ok = call(Config, "b", placement_group, delete_group, [left]),
    ok = call(Config, "b", placement_group, delete_group, [right]),
    [await_groups(Config, Name, []) || Name <- ["b", "c", "d"]].

await_groups(Config, Name, Groups) ->
    beamway_peer:wait_until(fun() -> Groups =:= call(Config, Name, placement_group, own_groups, []) end, 10000).

names_in_groups(Config) ->
    [A, B | _] = nodes_of(Config),
    [ok = call(Config, "a", placement_group, new_group, [Group, [A, B]]) || Group <- [g1, g2]],
    await_groups(Config, "b", [g1, g2]),
    Waiter = fun() -> spawn(fun() -> receive {From, ping} -> From ! pong, wait() end end) end,
    [P1, P2] = [on(Config, Name, Waiter) || Name <- ["a", "b"]],
    yes = on(Config, "a", fun() -> placement_group:register_name(g1, worker, P1) end),
    yes = on(Config, "b", fun() -> placement_group:register_name(g2, worker, P2) end),
    _ = beamway_peer:wait_until(fun() -> P1 =:= call(Config, "b", placement_group, whereis_name, [g1, worker]) end, 10000),
    no = on(Config, "b", fun() -> placement_group:register_name(g1, worker, P2) end),
    pong = on(Config, "b", fun() -> P1 = placement_group:send(g1, worker, {self(), ping}), receive pong -> pong after 10000 -> none end end),
    {badarg, {g1, nobody}} = call(Config, "b", placement_group, send, [g1, nobody, hello]),
    on(Config, "a", fun() -> exit(P1, kill) end),
    _ = beamway_peer:wait_until(fun() -> undefined =:= call(Config, "b", placement_group, whereis_name, [g1, worker]) end, 10000),
    ?assertEqual(P2, call(Config, "b", placement_group, whereis_name, [g2, worker])),
    ok = call(Config, "b", placement_group, unregister_name, [g2, worker]),
    [] = call(Config, "b", placement_group, names, [g2]),
    [ok = call(Config, "a", placement_group, delete_group, [Group]) || Group <- [g1, g2]],
    await_groups(Config, "b", []).

%% Members that were apart agree again, and of two processes with one name one is told that it lost it.
groups_meet_again(Config) ->
    [_, B, C, D | _] = nodes_of(Config),
    ok = call(Config, "b", placement_group, new_group, [apart, [B, C]]),
    await_groups(Config, "c", [apart]),
    Reporter = fun() -> spawn(fun() -> receive {placement_group, _, name_lost, Name} -> persistent_term:put(lost, Name), wait() end end) end,
    true = call(Config, "b", erlang, disconnect_node, [C]),
    _ = beamway_peer:wait_until(fun() -> not lists:member(B, call(Config, "c", erlang, nodes, [connected])) end, 10000),
    %% To tell the others reconnects; a group change on each side at once meets in the middle.
    [P1, P2] = [on(Config, Name, Reporter) || Name <- ["b", "c"]],
    yes = on(Config, "b", fun() -> placement_group:register_name(apart, one, P1) end),
    case on(Config, "c", fun() -> placement_group:register_name(apart, one, P2) end) of
        yes -> _ = beamway_peer:wait_until(fun() -> one =:= call(Config, "b", persistent_term, get, [lost, none]) orelse one =:= call(Config, "c", persistent_term, get, [lost, none]) end, 10000);
        no -> ok
    end,
    _ = beamway_peer:wait_until(fun() ->
        Found = call(Config, "b", placement_group, whereis_name, [apart, one]),
        is_pid(Found) andalso Found =:= call(Config, "c", placement_group, whereis_name, [apart, one])
    end, 10000),
    %% A member that was killed and comes back with its servers finds its group in the table of its supervisor.
    true = on(Config, "c", fun() -> exit(whereis(placement_group), kill) end),
    ok = call(Config, "b", placement_group, add_nodes, [apart, [D]]),
    _ = beamway_peer:wait_until(fun() -> {ok, lists:sort([B, C, D])} =:= try call(Config, "c", placement_group, members, [apart]) catch _:_ -> false end end, 10000),
    ok = call(Config, "b", placement_group, delete_group, [apart]),
    await_groups(Config, "c", []).

%% A node that is killed and comes back has none of its processes: their names are free.
names_after_a_restart(_Config) ->
    Name = beamway_peer:unique_name("again"),
    Start = fun() ->
        {ok, Peer, Node} = beamway_peer:start(inet_tcp, #{name => Name, host => "127.0.0.1", args => ["-connect_all", "false"]}),
        {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [placement]),
        {Peer, Node}
    end,
    [{_, Other, OtherNode}] = Extra = beamway_placement_nodes:start(["other"]),
    {First, Node} = Start(),
    ok = beamway_peer:call(First, placement_group, new_group, [lasting, [Node, OtherNode]]),
    Old = beamway_peer:run(First, fun() -> spawn(fun wait/0) end),
    yes = beamway_peer:call(First, placement_group, register_name, [lasting, worker, Old]),
    Found = fun(Peer) -> beamway_peer:call(Peer, placement_group, whereis_name, [lasting, worker]) end,
    _ = beamway_peer:wait_until(fun() -> Old =:= Found(Other) end, 10000),
    ok = beamway_peer:kill9(First),
    ok = beamway_peer:wait_disconnected(Other, Node),
    {Second, Node} = Start(),
    true = beamway_peer:call(Other, net_kernel, connect_node, [Node]),
    %% The other member tells it of the group.
    _ = beamway_peer:wait_until(fun() -> [lasting] =:= beamway_peer:call(Second, placement_group, own_groups, []) end, 10000),
    [_ = beamway_peer:wait_until(fun() -> undefined =:= Found(Peer) end, 10000) || Peer <- [Second, Other]],
    New = beamway_peer:run(Second, fun() -> spawn(fun wait/0) end),
    yes = beamway_peer:call(Second, placement_group, register_name, [lasting, worker, New]),
    _ = beamway_peer:wait_until(fun() -> New =:= Found(Other) end, 10000),
    %% It lives through a lost connection.
    true = beamway_peer:call(Other, erlang, disconnect_node, [Node]),
    ok = beamway_peer:wait_disconnected(Second, OtherNode),
    undefined = Found(Other),
    true = beamway_peer:call(Other, net_kernel, connect_node, [Node]),
    _ = beamway_peer:wait_until(fun() -> New =:= Found(Other) end, 10000),
    ok = beamway_peer:stop(Second),
    ok = beamway_placement_nodes:stop(Extra).

%% What has ended leaves nothing, and a change is told as what it changes.
groups_forget(_Config) ->
    [{_, A, NodeA}, {_, B, NodeB}] = Extra = beamway_placement_nodes:start(["a", "b"], #{args => ["-placement", "group_memory", "1000"]}),
    Table = fun(Peer) -> beamway_peer:call(Peer, ets, tab2list, [placement_groups]) end,
    Until = fun(Is) -> [_ = beamway_peer:wait_until(fun() -> Is(Table(Peer)) end, 30000) || Peer <- [A, B]] end,
    true = beamway_peer:call(A, net_kernel, connect_node, [NodeB]),
    ok = beamway_peer:call(A, placement_group, new_group, [large, [NodeA, NodeB]]),
    Owner = beamway_peer:run(A, fun() -> spawn(fun wait/0) end),
    [yes = beamway_peer:call(A, placement_group, register_name, [large, {name, N}, Owner]) || N <- lists:seq(1, 100)],
    Size = fun(All) -> [map_size(maps:get(names, State)) || {large, State} <- All] end,
    Until(fun(All) -> [100] =:= Size(All) end),
    %% The next name is all that is sent.
    Tracer = beamway_peer:run(B, fun() -> spawn(fun() -> 1 = erlang:trace(whereis(placement_group), true, ['receive']), merged() end) end),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:run(B, fun() -> {tracer, Tracer} =:= erlang:trace_info(whereis(placement_group), tracer) end) end, 10000),
    yes = beamway_peer:call(A, placement_group, register_name, [large, one_more, Owner]),
    Told = fun() -> beamway_peer:run(B, fun() -> persistent_term:get(merged, []) end) end,
    _ = beamway_peer:wait_until(fun() -> Told() =/= [] end, 10000),
    ?assertMatch([#{names := #{one_more := _} = Names}] when map_size(Names) =:= 1, Told()),
    %% What a member has missed it gets nonetheless.
    true = beamway_peer:run(B, fun() ->
        [{large, #{names := Known} = State}] = ets:lookup(placement_groups, large),
        ets:insert(placement_groups, {large, State#{names := maps:without([{name, N} || N <- lists:seq(1, 50)], Known)}})
    end),
    Until(fun(All) -> [101] =:= Size(All) end),
    %% Names that are given back, processes that end, groups that are left.
    [ok = beamway_peer:call(A, placement_group, unregister_name, [large, {name, N}]) || N <- lists:seq(1, 40)],
    ?assertEqual(61, length(beamway_peer:call(A, placement_group, names, [large]))),
    beamway_peer:run(A, fun() -> exit(Owner, kill) end),
    [ok = beamway_peer:call(A, placement_group, new_group, [{small, N}, [NodeA, NodeB]]) || N <- lists:seq(1, 20)],
    Until(fun(All) -> 21 =:= length(All) end),
    [ok = beamway_peer:call(A, placement_group, delete_group, [{small, N}]) || N <- lists:seq(1, 20)],
    Until(fun(All) -> [{large, 0}] =:= [{Group, map_size(Names)} || {Group, #{names := Names}} <- All] end),
    ok = beamway_placement_nodes:stop(Extra).

%% Names of a living process leave nothing behind; members that have missed that they were taken are told by its node.
names_leave_nothing(_Config) ->
    [{_, A, NodeA}, {_, B, NodeB}, {_, C, NodeC}] = Extra = beamway_placement_nodes:start(["a", "b", "c"]),
    [true = beamway_peer:call(Peer, net_kernel, connect_node, [Node]) || {Peer, Node} <- [{A, NodeB}, {A, NodeC}, {B, NodeC}]],
    ok = beamway_peer:call(A, placement_group, new_group, [many, [NodeA, NodeB, NodeC]]),
    Names = fun(Peer) -> beamway_peer:call(Peer, placement_group, names, [many]) end,
    Until = fun(Wanted) -> [_ = beamway_peer:wait_until(fun() -> Wanted =:= Names(Peer) end, 30000) || Peer <- [A, B, C]] end,
    Owner = beamway_peer:run(A, fun() -> spawn(fun wait/0) end),
    Give = fun(Name) -> yes = beamway_peer:call(A, placement_group, register_name, [many, Name, Owner]) end,
    Give(stays),
    Until([stays]),
    %% B and C did not hear of it.
    Give(taken),
    Until([stays, taken]),
    [Stale] = beamway_peer:call(B, ets, lookup, [placement_groups, many]),
    %% Any member may take a name.
    ok = beamway_peer:call(B, placement_group, unregister_name, [many, taken]),
    ?assertEqual([stays], Names(B)),
    Until([stays]),
    [true = beamway_peer:call(Peer, ets, insert, [placement_groups, Stale]) || Peer <- [B, C]],
    ?assertEqual([stays, taken], Names(C)),
    true = beamway_peer:run(C, fun() -> erlang:disconnect_node(NodeA) andalso net_kernel:connect_node(NodeA) end),
    Until([stays]),
    %% The server starts anew with its table: it still knows which names it gave.
    true = beamway_peer:run(A, fun() -> exit(whereis(placement_group), kill) end),
    [true = beamway_peer:call(Peer, ets, insert, [placement_groups, Stale]) || Peer <- [B, C]],
    true = beamway_peer:run(C, fun() -> erlang:disconnect_node(NodeA) andalso net_kernel:connect_node(NodeA) end),
    Until([stays]),
    Memory = fun() -> [beamway_peer:call(Peer, ets, info, [placement_groups, memory]) || Peer <- [A, B, C]] end,
    Before = Memory(),
    ok = beamway_peer:run(A, fun() -> lists:foreach(fun(N) -> yes = placement_group:register_name(many, N, Owner), ok = placement_group:unregister_name(many, N) end, lists:seq(1, 10000)) end),
    Until([stays]),
    %% What is on its way to another member takes a few words; 10,000 names would take more than 100,000.
    ?assertEqual([], [Grown || {Now, Was} <- lists:zip(Memory(), Before), Grown <- [Now - Was], Grown > 1000]),
    ok = beamway_placement_nodes:stop(Extra).

%% What the group's server on this node was told.
merged() ->
    receive
        {trace, _, 'receive', {'$gen_cast', {merge, large, State}}} -> persistent_term:put(merged, persistent_term:get(merged, []) ++ [State]);
        _ -> ok
    end,
    merged().

%%% Topology

%% Nodes publish at once, also one that has fallen behind: all end with one tree.
publishers_agree(Config) ->
    [A, B, C | _] = Nodes = nodes_of(Config),
    [true = call(Config, Name, net_kernel, connect_node, [Node]) || {Name, Node} <- [{"b", C}, {"b", A}, {"c", A}]],
    Three = [A, B, C],
    Tree = fun(Place) -> {ok, Made} = placement_tree:from_paths([{Node, Place} || Node <- Nodes]), Made end,
    Trees = fun() -> lists:usort([call(Config, Name, placement, topology, []) || Name <- ["a", "b", "c"]]) end,
    [{ok, _} = call(Config, "c", placement, set_topology, [Tree("/ahead")]) || _ <- [1, 2, 3]],
    {ok, Epoch, []} = call(Config, "a", placement, set_topology, [Tree("/behind"), Three]),
    ?assertEqual([Tree("/behind")], Trees()),
    ?assertEqual([Epoch], lists:usort([call(Config, Name, placement, epoch, []) || Name <- ["a", "b", "c"]])),
    [begin
         Calls = [beamway_peer:async(fun() -> call(Config, Name, placement, set_topology, [Tree(lists:concat(["/", Name, Round])), Three]) end) || Name <- ["a", "b", "c"]],
         [{ok, _, _} = beamway_peer:await(Call, 30000) || Call <- Calls],
         ?assertMatch({Round, [_]}, {Round, Trees()})
     end || Round <- lists:seq(1, 20)],
    {ok, _, []} = call(Config, "a", placement, set_topology, [proplists:get_value(tree, Config), Nodes]).

epochs(Config) ->
    [A, B | _] = nodes_of(Config),
    Epoch = call(Config, "a", placement, epoch, []),
    {ok, Next} = call(Config, "a", placement, join, ['new@host', "/s2/r4/new"]),
    ?assertEqual(Epoch + 1, Next),
    {ok, _, #{epoch := Next}} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), []]),
    {ok, 1.0} = placement_tree:distance(call(Config, "a", placement, topology, []), A, 'new@host'),
    {ok, Last} = call(Config, "a", placement, leave, ['new@host']),
    {ok, Last} = call(Config, "a", placement, leave, ['new@host']),
    ?assertEqual(lists:sort(nodes_of(Config)), lists:sort(placement_tree:nodes(call(Config, "a", placement, topology, [])))),
    {error, _} = call(Config, "a", placement, join, ['new@host', 7]),
    %% A node that cannot be reached does not take it, and is named; an older epoch does not replace a newer one.
    {ok, _, ['never@127.0.0.1']} = call(Config, "a", placement, set_topology, [proplists:get_value(tree, Config), [A, B, 'never@127.0.0.1']]),
    ?assertEqual(call(Config, "a", placement, epoch, []), call(Config, "b", placement, epoch, [])),
    %% A node of the version before publishes in these words.
    Tree = proplists:get_value(tree, Config),
    {[{B, ok}], []} = call(Config, "a", gen_server, multi_call, [[B], placement_epoch, {publish, {Last + 100, A}, Tree}, 5000]),
    ?assertEqual(Last + 100, call(Config, "b", placement, epoch, [])).

%% It measures one node of each group and goes on into the nearest, if it is as near as that group's nodes are to each other.
a_node_finds_its_place(Config) ->
    [A, B, C, D | _] = nodes_of(Config),
    Group = fun(Name, Us, Nodes) -> {group, Name, #{median_us => Us}, [{leaf, Node} || Node <- Nodes]} end,
    Join = fun(Groups) ->
        {ok, Tree} = placement_tree:from_vertex({group, root, #{median_us => 1.0e9}, Groups}),
        {ok, _} = call(Config, "a", placement, set_topology, [Tree]),
        {ok, _} = call(Config, "a", placement, join, [A, probe]),
        call(Config, "a", placement, topology, [])
    end,
    %% Any round trip is shorter than a second: it gets into one of the groups. None is shorter than a nanosecond: it stays above them.
    Inside = Join([Group(one, 1.0e6, [B, C]), Group(two, 1.0e6, [D])]),
    ?assert(lists:member({ok, 0.5}, [placement_tree:distance(Inside, A, Node) || Node <- [B, D]])),
    Above = Join([Group(one, 0.001, [B, C]), Group(two, 0.001, [D])]),
    ?assertEqual([{ok, 1.0}, {ok, 1.0}], [placement_tree:distance(Above, A, Node) || Node <- [B, D]]),
    %% A node that cannot be reached measures nothing.
    {error, not_measured} = call(Config, "a", placement, join, ['never@127.0.0.1', probe]).

%%% bin/beamway choose

the_command(Config) ->
    [A, _, _, _, E, F] = nodes_of(Config),
    Run = fun(Words) -> command(Config, ["choose --node ", atom_to_list(A), " " | Words]) end,
    ?assertEqual({0, lists:concat([E, "\n", F, "\n"]), ""}, sorted(Run("'{size, ge, 5}'"))),
    ?assertEqual({0, lists:concat([F, "\n"]), ""}, Run("'#{prefer => [{1, {size, max}}], policy => {choices, 6}}' --count 1")),
    ?assertEqual({0, lists:concat([E, "\n"]), ""}, Run(["'{size, ge, 5}' --nodes ", lists:join(",", [atom_to_list(Node) || Node <- [A, E]])])),
    {0, WhyNot, ""} = Run(["'[{size, gt, 5}, {zone, eq, y}]' --why-not ", atom_to_list(E)]),
    ?assertMatch({match, _}, re:run(WhyNot, ["^", atom_to_list(E), ": not suitable\n  size > 5: no, it is 5.*\n  zone = y: no, it is x.*\n$"])),
    {0, Explained, ""} = Run("'{size, gt, 5}' --explain"),
    ?assertEqual(6 + 5, length(string:lexemes(Explained, "\n"))),
    {1, Nobody, ""} = Run("'{size, gt, 7}'"),
    ?assertMatch({match, _}, re:run(Nobody, "0 of 6 nodes.*with size >= 6 instead of size > 7: 1 nodes", [dotall])),
    {0, Json, ""} = Run("'{size, ge, 6}' --json"),
    ?assertMatch(#{<<"nodes">> := [_], <<"meta">> := #{<<"answered">> := 6}}, jiffy:decode(Json, [return_maps])),
    [begin
         {2, "", Error} = Run(Words),
         {Words, {match, _}} = {Words, re:run(Error, Part)}
     end || {Words, Part} <- [{"'{size'", "character"}, {"'{size, about, 5}'", "no predicate"}, {"", "Expected a query"}, {"'{a, true}' --nodes b", "--nodes"}]],
    {1, "", NotThere} = command(Config, "choose '{a, true}' --node nobody@127.0.0.1"),
    ?assertMatch({match, _}, re:run(NotThere, "nobody@127.0.0.1 is not running")),
    %% A node on which placement does not run.
    [{_, _, Plain}] = Extra = beamway_placement_nodes:start(["plain"], #{run => false}),
    {1, "", NotRunning} = command(Config, ["choose '{a, true}' --node ", atom_to_list(Plain)]),
    ?assertMatch({match, _}, re:run(NotRunning, "placement does not run on node")),
    ok = beamway_placement_nodes:stop(Extra).

sorted({Status, Out, Error}) -> {Status, lists:append([Line ++ "\n" || Line <- lists:sort(string:lexemes(Out, "\n"))]), Error}.

%% Status, standard output and standard error of the command.
command(Config, Words) ->
    Folder = proplists:get_value(priv_dir, Config),
    [Cookie, Error] = [filename:join(Folder, Name) || Name <- ["cookie", "error"]],
    ok = file:write_file(Cookie, "beamway_test"),
    ok = file:change_mode(Cookie, 8#600),
    Out = os:cmd(lists:flatten(["'", test_support:file("bin/beamway"), "' ", Words, " --cookie-file '", Cookie, "' 2>'", Error, "'; echo \"status $?\""])),
    {match, [Printed, Status]} = re:run(Out, "^(.*)status ([0-9]+)\n$", [dotall, {capture, all_but_first, list}]),
    {ok, Said} = file:read_file(Error),
    {list_to_integer(Status), Printed, unicode:characters_to_list(Said)}.
