%% SPDX-License-Identifier: Apache-2.0
%% @doc Choices among real nodes: relative keywords, priorities, explanations, policies, spread and the command.
-module(placement_choose_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([three_values/1, relative_words/1, distance_words/1, affinity/1, taints/1, scores_of_ones_own/1, priorities_give_way/1,
         conflicts_are_explained/1, why_not_names_everything/1, bad_queries/1, bad_nodes/1, choosers_do_not_pile_up/1, a_policy_of_ones_own/1, own_placements_count/1,
         spread_over_places/1, spread_by_every_policy/1, top_is_not_chance/1, latencies/1, the_command/1]).
-export([wait/0, middle/2, no_score/2, select/3]).

-import(placement_two_sites, [call/5, on/3, node_of/2, nodes_of/1, name_of/2, chosen/2, names/0]).

suite() -> [{timetrap, {minutes, 5}}].

all() ->
    [three_values, relative_words, distance_words, affinity, taints, scores_of_ones_own, priorities_give_way, conflicts_are_explained,
     why_not_names_everything, bad_queries, bad_nodes, choosers_do_not_pile_up, a_policy_of_ones_own, own_placements_count, spread_over_places, spread_by_every_policy,
     top_is_not_chance, latencies, the_command].

init_per_suite(Config) -> placement_two_sites:start(Config).

end_per_suite(Config) -> placement_two_sites:stop(Config).

three_values(Config) ->
    ok = call(Config, "b", placement, insert, [gpu_count, 2]),
    ok = call(Config, "c", placement, insert, [gpu_count, "two"]),
    ?assertEqual(["b"], chosen(Config, {gpu_count, gt, 1})),
    ?assertEqual([], chosen(Config, {'not', {gpu_count, gt, 1}})),
    ?assertEqual(["b", "c"], chosen(Config, {gpu_count, exists})),
    ?assertEqual(["a", "d", "e", "f"], chosen(Config, {gpu_count, missing})),
    ?assertEqual(["b"], chosen(Config, {'and', [{gpu_count, gt, 1}, {size, lt, 5}]})),
    %% `unknown or true' is true, `unknown or false' is unknown.
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
    %% `highest' compares the nodes that satisfy all other predicates, wherever the keyword is in the list.
    [?assertEqual(["e"], chosen(Config, P)) || P <- [[{size, highest}, {zone, eq, x}], [{zone, eq, x}, {size, highest}]]],
    %% All nodes have the same value, so each is both low and high.
    ?assertEqual(names(), chosen(Config, [{slots, low}, {slots, high}])).

distance_words(Config) ->
    From = fun(Name, P) -> chosen(Config, #{require => P, from => node_of(Config, Name)}) end,
    ?assertEqual(["a", "b"], From("a", {dist, very_near})),
    %% There are three levels (rack, site, root), and near means the nearer half of them, rounded up: two levels.
    ?assertEqual(["a", "b", "c", "d"], From("a", {dist, near})),
    ?assertEqual(["e", "f"], From("a", {dist, far})),
    ?assertEqual(["e", "f"], From("a", {dist, very_far})),
    ?assertEqual(names(), From("a", {dist, anywhere})),
    ?assertEqual(["a", "b", "c", "d"], From("a", {dist, le, 0.5})),
    ?assertEqual(["a", "b"], From("a", {dist, le, 0.25})),
    ?assertEqual(["a", "b", "c", "d"], From("a", {dist, same, 1})),
    ?assertEqual(["e", "f"], From("e", {dist, near})),
    {ok, Nodes, _} = call(Config, "a", placement, choose_nodes, [{level, 1, node_of(Config, "c")}, []]),
    ?assertEqual(["a", "b", "c", "d"], lists:sort([name_of(Config, Node) || Node <- Nodes])).

%% Near means the same node or a node in the same smallest group of the tree; apart means a different node.
affinity(Config) ->
    ok = call(Config, "b", placement, insert, [runs_db, 2]),
    ok = call(Config, "e", placement, insert, [runs_db, 0]),
    Near = fun(What) -> chosen(Config, {affinity, What, near}) end,
    Apart = fun(What) -> chosen(Config, {affinity, What, apart}) end,
    ?assertEqual({["a", "b"], ["a", "c", "d", "e", "f"]}, {Near(runs_db), Apart(runs_db)}),
    ?assertEqual(["c", "d", "e", "f"], chosen(Config, {'not', {affinity, runs_db, near}})),
    %% The same is true of a preference, with each policy. A policy that requests current values of the drawn nodes also
    %% asks all nodes which of these processes they run.
    [?assert(lists:member(chosen(Config, #{n => 1, policy => Policy, prefer => [{1, {affinity, runs_db, near}}]}), [["a"], ["b"]]))
     || Policy <- [{choices, 6}, least], _ <- lists:seq(1, 10)],
    ?assertEqual({[], names()}, {Near(runs_nowhere), Apart(runs_nowhere)}),
    ok = call(Config, "e", placement, insert, [runs_db, true]),
    ok = call(Config, "a", placement_cache, forget, [node_of(Config, "e")]),
    ?assertEqual(["a", "b", "e", "f"], Near(runs_db)),
    [ok = call(Config, Name, placement, delete, [runs_db]) || Name <- ["b", "e"]],
    %% The process is a member of a pg group, on the only node that is connected to all others.
    Pid = on(Config, "a", fun() ->
        {ok, _} = pg:start(affinity),
        Process = spawn(?MODULE, wait, []),
        ok = pg:join(affinity, store, Process),
        Process
    end),
    ?assertEqual({["a", "b"], ["b", "c", "d", "e", "f"]}, {Near({pg, affinity, store}), Apart({pg, affinity, store})}),
    ?assertEqual({[], []}, {Near({pg, no_scope, store}), Apart({pg, no_scope, store})}),
    %% The process has a name in a group.
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

%% A node with taints is suitable only for queries that tolerate all of them. The node itself decides this, regardless
%% of what the other nodes know.
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
    %% Node a's information is outdated, but the drawn nodes report their current taints, and the lease is rejected.
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

%% Size 4 has the best score.
middle(_, #{size := Size}) -> -abs(Size - 4).

no_score(_, _) -> high.

%% An earlier constraint has priority over a later one, and the result contains the constraints that were dropped.
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
    %% Relative keywords give different results if they are applied to different sets of nodes.
    {ok, [_]} = call(Config, "a", placement, why_not, [node_of(Config, "c"), {size, lowest}, nodes_of(Config)]),
    {ok, []} = call(Config, "a", placement, why_not, [node_of(Config, "c"), {size, lowest}, [node_of(Config, "d")]]).

bad_queries(Config) ->
    [begin
         {error, {bad_query, Text}} = call(Config, "a", placement, choose_nodes, [nodes_of(Config), Query]),
         {Part, true} = {Part, string:find(Text, Part) =/= nomatch}
     end || {Query, Part} <- [{foo, "not a predicate"}, {#{n => 0}, "n => 0"}, {#{wish => 1}, "wish"}, {{size, gt, {1, furlong}}, "furlong"}, {{zone, match, "("}, "character"},
                              {#{policy => first}, "two_choices"}, {#{order => x}, "list"}]],
    {error, {bad_query, _}} = call(Config, "a", placement, explain, [nodes_of(Config), foo]),
    {error, {bad_query, _}} = call(Config, "a", placement, why_not, [node_of(Config, "b"), foo]),
    {error, {bad_query, _}} = call(Config, "a", placement, spawn, [foo, {?MODULE, wait, []}]),
    {error, {bad_query, _}} = call(Config, "a", placement, reserve, [node_of(Config, "b"), #{}, #{require => foo}]).

bad_nodes(Config) ->
    [{error, {bad_nodes, _}} = call(Config, "a", placement, choose_nodes, [Nodes, []])
     || Nodes <- [[], foo, ["b@h"], [a | b], {group, nobody}, {level, 1, 'never@127.0.0.1'}, {level, -1, node_of(Config, "a")}]],
    %% A node that does not answer is not suitable for any query, not even an empty one.
    {error, {unsatisfied, #{feasible := 0}}} = call(Config, "a", placement, choose_nodes, [['never@127.0.0.1'], []]),
    {error, {unsatisfied, _}} = call(Config, "a", placement, choose_node, [['never@127.0.0.1'], []]),
    {error, {unsatisfied, #{unreachable := [{'never@127.0.0.1', nodedown}]}}} = call(Config, "a", placement, choose_nodes, [['never@127.0.0.1'], {size, gt, 0}]).

%%% Policies

%% Twenty choosers with the same information choose at the same time, but they do not all choose the same node.
choosers_do_not_pile_up(Config) ->
    Nodes = nodes_of(Config),
    Picks = on(Config, "a", fun() ->
        Self = self(),
        _ = [spawn_link(fun() -> Self ! {pick, placement:choose_node(Nodes, #{prefer => [{1, {slots, max}}]})} end) || _ <- lists:seq(1, 120)],
        [receive {pick, {ok, Node, _}} -> Node after 50000 -> none end || _ <- lists:seq(1, 120)]
    end),
    Counts = [length([P || P <- Picks, P =:= Node]) || Node <- Nodes],
    %% On average, each node is chosen 20 times. If the choice is fair, less than one run in a million chooses a node fewer
    %% than 3 or more than 50 times.
    {true, _} = {lists:min(Counts) >= 3 andalso lists:max(Counts) =< 50, Counts},
    %% Of two nodes the better one is always chosen, because both are drawn.
    [A, F] = [node_of(Config, Name) || Name <- ["a", "f"]],
    [{ok, F, _} = call(Config, "a", placement, choose_node, [[A, F], #{prefer => [{1, {size, max}}]}]) || _ <- lists:seq(1, 20)].

%% A user-defined policy may return any number of nodes, but returning fewer than `min' is an error.
a_policy_of_ones_own(Config) ->
    Query = #{n => 3, policy => {module, ?MODULE}, prefer => [{1, {size, max}}]},
    ?assertEqual(["f", "e"], chosen(Config, Query#{min => 2})),
    ?assertEqual([], chosen(Config, Query)).

select(Scored, Count, _) -> [Node || {Node, _} <- lists:sublist(lists:reverse(lists:keysort(2, Scored)), Count - 1)].

%% A chooser counts the placements that it has made since the values were measured, so it uses the nodes in turn even with
%% outdated information. Of the three nodes that spawn/3 may try, only those that it has actually tried count.
own_placements_count(Config) ->
    Nodes = nodes_of(Config),
    Query = #{prefer => [{1, {tasks, min}}], policy => least, charge => #{tasks => 1}, max_age => 60000},
    [ok = call(Config, Name, placement, insert, [tasks, 0, #{ttl => 60000}]) || Name <- names()],
    Picks = on(Config, "a", fun() ->
        [begin {ok, Node, _} = placement:choose_node(Nodes, Query), Node end || _ <- lists:seq(1, 18)]
            ++ [begin {ok, _, #{node := Node}} = placement:spawn(Query, {erlang, self, []}, #{nodes => Nodes}), Node end || _ <- lists:seq(1, 18)]
    end),
    ?assertEqual([6], lists:usort([length([P || P <- Picks, P =:= Node]) || Node <- Nodes])),
    [ok = call(Config, Name, placement, delete, [tasks]) || Name <- names()].

spread_over_places(Config) ->
    Query = fun(Spread, N, Require) -> #{require => Require, n => N, policy => {choices, 6}, prefer => [{1, {size, min}}], spread => Spread} end,
    Sites = fun(Names) -> lists:sort([case lists:member(Name, ["e", "f"]) of true -> 2; false -> 1 end || Name <- Names]) end,
    %% Without a spread the four smallest nodes are all at one site.
    ?assertEqual(["a", "b", "c", "d"], lists:sort(chosen(Config, #{n => 4, policy => {choices, 6}, prefer => [{1, {size, min}}]}))),
    ?assertEqual([1, 1, 2, 2], Sites(chosen(Config, Query({1, 1, hard}, 4, [])))),
    ?assertEqual(["x", "x", "y", "y"], lists:sort([case lists:member(Name, ["a", "c", "e"]) of true -> "x"; false -> "y" end || Name <- chosen(Config, Query({{attribute, zone}, 1, hard}, 4, []))])),
    %% If a place has too few nodes, a soft spread ignores it and a hard one fails.
    ?assertEqual(5, length(chosen(Config, Query({1, 1, soft}, 5, {size, lt, 6})))),
    ?assertEqual([], chosen(Config, Query({1, 1, hard}, 5, {size, lt, 6}))),
    %% As many nodes as possible are chosen when one place has four nodes and another has one.
    ?assertEqual([1, 1, 2], Sites(chosen(Config, Query({1, 1, hard}, all, {size, lt, 6})))),
    ?assertEqual(5, length(chosen(Config, Query({1, 1, soft}, all, {size, lt, 6})))),
    ?assertEqual([], chosen(Config, (Query({1, 1, hard}, all, {size, lt, 6}))#{min => 4})).

%% There are five nodes in one place and one in another. Whichever nodes a policy draws, both places are counted and used.
spread_by_every_policy(Config) ->
    [A, _, _, _, E, _] = nodes_of(Config),
    Five = nodes_of(Config) -- [E],
    [ok = call(Config, Name, placement, insert, [room, case Name of "f" -> far; _ -> near end]) || Name <- names()],
    [begin
         {ok, Chosen, _} = call(Config, "a", placement, choose_nodes, [Five, #{n => 2, policy => Policy, spread => Spread}]),
         ?assertEqual({Policy, Spread, 2, true}, {Policy, Spread, length(Chosen), lists:member(node_of(Config, "f"), Chosen)})
     end || Policy <- [two_choices, cached_two, {choices, 1}, sqrt_choices, random, {top, 0.2}, least],
            Spread <- [{{attribute, room}, 1, hard}, {{attribute, room}, 1, soft}, {1, 1, hard}], _ <- lists:seq(1, 10)],
    %% The query asks for more nodes than the places allow, and the error says so.
    {error, {unsatisfied, Conflict} = Error} = call(Config, "a", placement, choose_nodes, [Five, #{n => 4, spread => {{attribute, room}, 1, hard}}]),
    ?assertMatch(#{feasible := 5, wanted := 4, spread := #{most := 3, places := [{{value, far}, 1}, {{value, near}, 4}]}}, Conflict),
    ?assertNotEqual(nomatch, string:find(unicode:characters_to_list(placement:format_error(Error)),
                                         "the hard spread over room (at most 1 more than in the least used place) allows 3 nodes; suitable nodes per place: far 1, near 4")),
    %% A place whose only node is down does not count, so it does not limit the others.
    {ok, [A], _} = call(Config, "a", placement, choose_nodes, [[A, 'never@127.0.0.1'], #{n => 1, spread => {1, 1, hard}}]),
    [ok = call(Config, Name, placement, delete, [room]) || Name <- names()].

%% The policy chooses at random, but only among the best third.
top_is_not_chance(Config) ->
    Chosen = [chosen(Config, #{n => 1, policy => {top, 0.3}, prefer => [{1, {size, max}}]}) || _ <- lists:seq(1, 40)],
    ?assertEqual([["e"], ["f"]], lists:usort(Chosen)).

latencies(Config) ->
    %% The first request opens the connection; after the second one, a realistic round-trip time is known.
    _ = chosen(Config, {size, gt, 0}),
    _ = call(Config, "a", attr, request_attrs, [nodes_of(Config), [size]]),
    ?assertEqual(names(), chosen(Config, {latency, lt, {1, minute}})),
    ?assertEqual(["a"], chosen(Config, {latency, eq, 0})),
    %% There are no measurements from another node.
    ?assertEqual([], chosen(Config, #{require => {latency, gt, 0}, from => node_of(Config, "b")})).

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
     end || {Words, Part} <- [{"'{size'", "character"}, {"'{size, about, 5}'", "not a predicate"}, {"", "Expected a query"}, {"'{a, true}' --nodes b", "--nodes"}]],
    {1, "", NotThere} = command(Config, "choose '{a, true}' --node nobody@127.0.0.1"),
    ?assertMatch({match, _}, re:run(NotThere, "nobody@127.0.0.1 is not running")),
    %% This node does not run placement.
    [{_, _, Plain}] = Extra = beamway_placement_nodes:start(["plain"], #{run => false}),
    {1, "", NotRunning} = command(Config, ["choose '{a, true}' --node ", atom_to_list(Plain)]),
    ?assertMatch({match, _}, re:run(NotRunning, "placement does not run on node")),
    ok = beamway_placement_nodes:stop(Extra).

sorted({Status, Out, Error}) -> {Status, lists:append([Line ++ "\n" || Line <- lists:sort(string:lexemes(Out, "\n"))]), Error}.

%% Returns the exit status, the standard output and the standard error of the command.
command(Config, Words) ->
    Folder = proplists:get_value(priv_dir, Config),
    [Cookie, Error] = [filename:join(Folder, Name) || Name <- ["cookie", "error"]],
    ok = file:write_file(Cookie, "beamway_test"),
    ok = file:change_mode(Cookie, 8#600),
    Out = os:cmd(lists:flatten(["'", test_support:file("bin/beamway"), "' ", Words, " --cookie-file '", Cookie, "' 2>'", Error, "'; echo \"status $?\""])),
    {match, [Printed, Status]} = re:run(Out, "^(.*)status ([0-9]+)\n$", [dotall, {capture, all_but_first, list}]),
    {ok, Said} = file:read_file(Error),
    {list_to_integer(Status), Printed, unicode:characters_to_list(Said)}.

wait() -> receive stop -> ok end.
