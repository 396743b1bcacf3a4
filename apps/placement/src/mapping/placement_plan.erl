%% SPDX-License-Identifier: Apache-2.0
%% @doc Plans a tree of processes (master, submasters, workers) that follows the tree of nodes. All functions are pure.
%%
%% Each group of nodes gets its own submaster, on one of its nodes. Each worker is attached to the submaster of the
%% smallest group that contains it, and the master is in the largest group. A message from the master to a worker then
%% crosses each level of the network at most once (Figure 28 of the RELEASE report). This is not true of a fixed tree whose
%% processes are assigned from lists of nodes.
%%
%% If the number of children is limited (`fan_out'), a group may get several submasters, all on the same node. If they were
%% on different nodes, a path through two of them would cross the group's level twice. For the same reason, excess
%% children of the root are attached to additional submasters on the master's own node. A group with fewer than `least'
%% workers gets no submaster; its workers belong to the group around it.
-module(placement_plan).

-export([plan/2, to_list/1, paths/1, crossings/2]).

-export_type([process/0, options/0, role/0]).

-type role() :: master | submaster | worker.
-type process() :: {role(), node(), [process()]}.
%% A process, the node on which it should run, and its children.
-type options() :: #{workers => [node()],      %% where workers may run, one per node; default: all nodes of the tree
                     submasters => [node()],   %% where the master and submasters may run; default: all nodes; those in the group itself are preferred
                     fan_out => pos_integer() | infinity, %% the maximum number of children, at least 2
                     least => pos_integer()}.  %% the minimum number of workers for which a group gets a submaster; default: 2

%% @doc Returns the plan for a tree of nodes. Nodes outside of the tree are left out.
-spec plan(placement_tree:tree() | none, options()) -> {ok, process()} | {error, no_workers | no_submasters | {bad_option, atom(), term()}}.
plan(none, Options) -> plan(placement_tree:empty(), Options);
plan(Tree, Options) ->
    Setting = maps:merge(#{fan_out => infinity, least => 2}, Options),
    case [{Key, Value} || {Key, Value} <- maps:to_list(Setting), not is_good(Key, Value)] of
        [{Key, Value} | _] -> {error, {bad_option, Key, Value}};
        [] -> planned(Tree, Setting#{workers => sets(workers, Tree, Setting), submasters => sets(submasters, Tree, Setting), tree => Tree})
    end.

is_good(fan_out, infinity) -> true;
is_good(fan_out, Value) -> is_integer(Value) andalso Value >= 2;
is_good(least, Value) -> is_integer(Value) andalso Value >= 1;
is_good(Key, Value) when Key =:= workers; Key =:= submasters -> is_list(Value);
is_good(_, _) -> false.

sets(Key, Tree, Setting) ->
    Given = maps:get(Key, Setting, placement_tree:leaf_order(Tree)),
    maps:from_list([{Node, true} || Node <- Given, placement_tree:is_member(Tree, Node)]).

planned(_, #{workers := Workers}) when map_size(Workers) =:= 0 -> {error, no_workers};
planned(_, #{submasters := Submasters}) when map_size(Submasters) =:= 0 -> {error, no_submasters};
planned(Tree, #{fan_out := FanOut} = Setting) ->
    Units = case placement_tree:packed(Tree) of
                {group, _, _, Children} -> lists:append([units(Child, Setting) || Child <- largest_first(Children)]);
                Leaf -> units(Leaf, Setting)
            end,
    Master = host(Units, Setting),
    {ok, {master, Master, narrowed(Units, FanOut, Master)}}.

%% Puts the largest group first, because the master and the submasters run in the first of their parts.
largest_first(Children) ->
    [Child || {_, Child} <- lists:keysort(1, [{-length(placement_tree:members(Child)), Child} || Child <- Children])].

%% Returns the children of a vertex's process: workers and submasters.
units({leaf, Node}, #{workers := Workers}) ->
    [{worker, Node, []} || is_map_key(Node, Workers)];
units({group, _, _, Children}, #{least := Least, fan_out := FanOut} = Setting) ->
    Units = lists:append([units(Child, Setting) || Child <- largest_first(Children)]),
    case length(Units) of
        Few when Few < 2; Few < Least -> Units;
        _ ->
            Host = host(Units, Setting),
            [{submaster, Host, Part} || Part <- parts(Units, FanOut)]
    end.

%% Splits the list into as few parts as possible, with nearly the same length.
parts(Units, infinity) -> [Units];
parts(Units, Most) ->
    Count = length(Units),
    Parts = (Count + Most - 1) div Most,
    cut(Units, Count, Parts).

cut(Units, _, 1) -> [Units];
cut(Units, Count, Parts) ->
    Length = (Count + Parts - 1) div Parts,
    {Part, Rest} = lists:split(Length, Units),
    [Part | cut(Rest, Count - Length, Parts - 1)].

%% Inserts submasters below the master until it has at most `FanOut' children. The root cannot be split like other groups,
%% because there is no process above it.
narrowed(Units, FanOut, _) when FanOut =:= infinity; length(Units) =< FanOut -> Units;
narrowed(Units, FanOut, Master) ->
    narrowed([case Part of [Only] -> Only; _ -> {submaster, Master, Part} end || Part <- parts(Units, FanOut)], FanOut, Master).

%% Returns the first node below that may run a submaster. If there is none, returns the permitted node that is nearest to
%% the first node below.
host(Units, #{submasters := Submasters, tree := Tree}) ->
    Below = [Node || Unit <- Units, {_, Node} <- to_list(Unit)],
    case [Node || Node <- Below, is_map_key(Node, Submasters)] of
        [Node | _] -> Node;
        [] ->
            {_, Nearest} = lists:min([{distance(Tree, hd(Below), Node), Node} || Node <- maps:keys(Submasters)]),
            Nearest
    end.

distance(Tree, One, Other) ->
    {ok, Distance} = placement_tree:distance(Tree, One, Other),
    Distance.

%% @doc Returns the role and the node of every process, starting with the root.
-spec to_list(process()) -> [{role(), node()}].
to_list({Role, Node, Children}) -> [{Role, Node} | lists:append([to_list(Child) || Child <- Children])].

%% @doc Returns the nodes on the path from the master to each worker.
-spec paths(process()) -> [[node()]].
paths({worker, Node, []}) -> [[Node]];
paths({_, Node, Children}) -> [[Node | Path] || Child <- Children, Path <- paths(Child)].

%% @doc Counts how often the path to each worker crosses each level of the network (the root is level 0), and returns
%% the largest count.
-spec crossings(placement_tree:tree(), process()) -> non_neg_integer().
crossings(Tree, Process) -> lists:max([0 | [most_often(levels(Tree, Path)) || Path <- paths(Process)]]).

levels(Tree, [One, Other | Path]) ->
    case placement_tree:shared(Tree, One, Other) of
        {ok, same} -> levels(Tree, [Other | Path]);
        {ok, Level} -> [Level | levels(Tree, [Other | Path])]
    end;
levels(_, _) -> [].

most_often(Levels) -> lists:max([0 | [length([L || L <- Levels, L =:= Level]) || Level <- lists:usort(Levels)]]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

tree() ->
    {ok, Tree} = placement_tree:from_paths([{a1, "/x/1"}, {a2, "/x/1"}, {a3, "/x/1"}, {b1, "/x/2"}, {b2, "/x/2"}, {c1, "/y"}, {c2, "/y"}, {d1, "/"}]),
    Tree.

shape_test() ->
    {ok, Plan} = plan(tree(), #{}),
    ?assertEqual({master, a1, [{submaster, a1, [{submaster, a1, [{worker, a1, []}, {worker, a2, []}, {worker, a3, []}]},
                                                {submaster, b1, [{worker, b1, []}, {worker, b2, []}]}]},
                               {submaster, c1, [{worker, c1, []}, {worker, c2, []}]}, {worker, d1, []}]}, Plan),
    ?assertEqual(1, crossings(tree(), Plan)).

%% Submasters run on small nodes, as in the report. A group without such a node uses the nearest one.
roles_test() ->
    {ok, Plan} = plan(tree(), #{workers => [a1, a2, b1, b2, c1, c2, gone], submasters => [a3, d1]}),
    ?assertEqual([a1, a2, b1, b2, c1, c2], lists:sort([Node || {worker, Node} <- to_list(Plan)])),
    ?assertEqual([a3], lists:usort([Node || {Role, Node} <- to_list(Plan), Role =/= worker])).

eight_racks_test_() ->
    {ok, Tree} = placement_tree:from_paths([{list_to_atom(lists:concat([Rack, Host])), [Rack]} || Rack <- [a, b, c, d, e, f, g, h], Host <- lists:seq(1, 4)]),
    [?_test(begin
                {ok, Plan} = plan(Tree, #{fan_out => FanOut}),
                ?assertEqual(1, crossings(Tree, Plan)),
                ?assertEqual(32, length([worker || {worker, _} <- to_list(Plan)]))
            end) || FanOut <- [2, 3, 5, 8, infinity]].

least_test() ->
    {ok, {master, _, Children}} = plan(tree(), #{least => 3}),
    ?assert(lists:member({worker, c1, []}, Children)).

one_node_test() ->
    {ok, Tree} = placement_tree:from_paths([{a, "/"}]),
    ?assertEqual({ok, {master, a, [{worker, a, []}]}}, plan(Tree, #{})).

bad_input_test_() ->
    [?_assertEqual({error, Want}, plan(tree(), Options))
     || {Want, Options} <- [{no_workers, #{workers => []}}, {no_submasters, #{submasters => [gone]}}, {{bad_option, fan_out, 1}, #{fan_out => 1}},
                            {{bad_option, least, 0}, #{least => 0}}, {{bad_option, colour, red}, #{colour => red}}]]
        ++ [?_assertEqual({error, no_workers}, plan(Tree, #{})) || Tree <- [none, placement_tree:empty()]].
-endif.
