%% SPDX-License-Identifier: Apache-2.0
%% @doc The tree of a network: its leaves are nodes, and its groups are racks, switches, sites or measured clusters.
%% All functions are pure. The rest of placement uses the tree to compute the distance between two nodes.
%%
%% The distance is that of the RELEASE report D3.5, section 4.2: 0 from a node to itself, otherwise `2^-l', where `l' is
%% the length of the path that the two nodes share, starting at the root. It is an ultrametric. Groups with a single
%% child are not counted, so they do not affect distances. The distance to a node outside of the tree is `unknown', and
%% such a node never counts as far away. Instead of a tree, the functions also accept `none', which
%% {@link placement:topology/0} returns if there is no tree. It is treated as an empty tree.
%%
%% Trees come from declared paths ({@link from_paths/1}), from the report's network terms ({@link from_network/1}), from
%% files ({@link placement_import}) and from measured times ({@link placement_cluster}). Each change produces a tree
%% with the next epoch number.
-module(placement_tree).

-compile({no_auto_import, [nodes/1, size/1]}).

-export([from_paths/1, from_network/1, to_network/1, from_vertex/1, empty/0, format_error/1]).
-export([nodes/1, size/1, is_member/2, epoch/1, distance/3, shared/3, disc/3, diameter/2, rank/3, latency/3, basis/3]).
-export([root/1, packed/1, branch/2, way/3, ancestors/2, common/3, members/1, groups/1, leaf_order/1, depth/1]).
-export([insert/3, remove/2]).

-export_type([tree/0, vertex/0, labels/0, name/0, path/0, error/0]).

-type name() :: term().
%% In files, a group's name is a string, a binary or an atom; in Erlang it can be any term.
-type labels() :: #{median_us => float(), p95_us => float(), max_us => float(), pairs => pos_integer(),
                    spread => float(), atom() => term()}.
%% The round-trip times measured between the children of a group, in microseconds: the median, the 95th percentile, the
%% maximum (the diameter), the number of pairs, and the standard deviation of the logarithms.
-type vertex() :: {leaf, node()} | {group, name(), labels(), [vertex()]}.
-type path() :: string() | binary() | [name()].
%% The groups that contain a node, starting at the root: `"/site/rack/host"' or `[site, rack, host]'.
-opaque tree() :: #{root := vertex(), packed := vertex(), places := #{node() => [pos_integer()]},
                    epoch := non_neg_integer()}.
%% `packed' is the root without groups that have only one child, and `places' maps each node to its path from that root.
-type error() :: {bad_path, term(), term()} | {bad_network, term()} | {duplicate_node, node()} | {bad_vertex, term()}.

%% @doc Returns the empty tree.
-spec empty() -> tree().
empty() -> build({group, root, #{}, []}, 0).

%% @doc Builds the tree from declared paths. A node may occur only once.
-spec from_paths([{node(), path()}] | #{node() => path()}) -> {ok, tree()} | {error, error()}.
from_paths(Paths) when is_map(Paths) -> from_paths(maps:to_list(Paths));
from_paths(Paths) when is_list(Paths) -> checked(fun() -> lists:foldl(fun add_path/2, {group, root, #{}, []}, Paths) end).

add_path({Node, Path}, Root) when is_atom(Node) -> put_at(steps(Node, Path), Node, Root);
add_path(Other, _) -> throw({bad_path, Other, undefined}).

steps(Node, <<Path/binary>>) -> steps(Node, unicode:characters_to_list(Path));
steps(_, [$/ | _] = Path) -> string:lexemes(Path, "/");
steps(Node, [First | _] = Path) when is_integer(First) ->
    case io_lib:printable_unicode_list(Path) of
        true -> string:lexemes(Path, "/");
        false -> throw({bad_path, Node, Path})
    end;
steps(_, Path) when is_list(Path), length(Path) >= 0 -> Path;
steps(Node, Path) -> throw({bad_path, Node, Path}).

put_at([], Node, {group, Name, Labels, Children}) -> {group, Name, Labels, Children ++ [{leaf, Node}]};
put_at([Step | Steps], Node, {group, Name, Labels, Children}) -> {group, Name, Labels, put_below(Step, Steps, Node, Children)}.

put_below(Step, Steps, Node, [{group, Step, _, _} = Group | Rest]) -> [put_at(Steps, Node, Group) | Rest];
put_below(Step, Steps, Node, [Other | Rest]) -> [Other | put_below(Step, Steps, Node, Rest)];
put_below(Step, Steps, Node, []) -> [put_at(Steps, Node, {group, Step, #{}, []})].

%% @doc Builds the tree from the term of the report's library: `{network, Name, [Network | {node, Node}]}'.
-spec from_network(term()) -> {ok, tree()} | {error, error()}.
from_network(Network) -> checked(fun() -> as_group(network_vertex(Network)) end).

network_vertex({network, Name, Parts}) when is_list(Parts), length(Parts) >= 0 ->
    {group, Name, #{}, [network_vertex(Part) || Part <- Parts]};
network_vertex({node, Node}) when is_atom(Node) -> {leaf, Node};
network_vertex(Other) -> throw({bad_network, Other}).

as_group({group, _, _, _} = Group) -> Group;
as_group({leaf, _} = Leaf) -> {group, root, #{}, [Leaf]}.

%% @doc Returns the report's network term for a tree; {@link from_network/1} reads it.
-spec to_network(tree()) -> {network, name(), list()}.
to_network(#{root := Root}) -> network_term(Root).

network_term({leaf, Node}) -> {node, Node};
network_term({group, Name, _, Children}) -> {network, Name, [network_term(Child) || Child <- Children]}.

%% @doc Builds the tree whose root is a vertex, with its labels.
-spec from_vertex(vertex()) -> {ok, tree()} | {error, error()}.
from_vertex(Vertex) -> checked(fun() -> as_group(checked_vertex(Vertex)) end).

checked_vertex({leaf, Node} = Leaf) when is_atom(Node) -> Leaf;
checked_vertex({group, Name, #{} = Labels, Children}) when is_list(Children), length(Children) >= 0 ->
    {group, Name, Labels, [checked_vertex(Child) || Child <- Children]};
checked_vertex(Other) -> throw({bad_vertex, Other}).

checked(Make) ->
    try Make() of
        Root ->
            Members = lists:sort(members(Root)),
            case Members -- lists:usort(Members) of
                [] -> {ok, build(Root, 0)};
                [Node | _] -> {error, {duplicate_node, Node}}
            end
    catch
        throw:Reason -> {error, Reason}
    end.

build(Root, Epoch) ->
    Packed = pack(Root),
    #{root => Root, packed => Packed, places => maps:from_list(places(Packed, [])), epoch => Epoch}.

%% Leaves out groups with a single child and empty groups, except for the root of an empty tree.
pack(Root) ->
    case pack_vertex(Root) of
        [Packed] -> Packed;
        [] -> {group, root, #{}, []}
    end.

pack_vertex({leaf, _} = Leaf) -> [Leaf];
pack_vertex({group, Name, Labels, Children}) ->
    case lists:append([pack_vertex(Child) || Child <- Children]) of
        [] -> [];
        [Only] -> [Only];
        Packed -> [{group, Name, Labels, Packed}]
    end.

places({leaf, Node}, Way) -> [{Node, lists:reverse(Way)}];
places({group, _, _, Children}, Way) ->
    lists:append([places(Child, [Index | Way]) || {Index, Child} <- lists:enumerate(Children)]).

places(none) -> #{};
places(#{places := Places}) -> Places.

%% @doc Returns all nodes, sorted.
-spec nodes(tree() | none) -> [node()].
nodes(Tree) -> lists:sort(maps:keys(places(Tree))).

%% @doc Returns the number of nodes.
-spec size(tree() | none) -> non_neg_integer().
size(Tree) -> map_size(places(Tree)).

%% @doc Returns whether the tree contains this node.
-spec is_member(tree() | none, node()) -> boolean().
is_member(Tree, Node) -> is_map_key(Node, places(Tree)).

%% @doc Returns the number of changes since the tree was built.
-spec epoch(tree()) -> non_neg_integer().
epoch(#{epoch := Epoch}) -> Epoch.

%% @doc Returns the distance between two nodes, from 0.0 to 1.0.
-spec distance(tree() | none, node(), node()) -> {ok, float()} | unknown.
distance(Tree, One, Other) ->
    case shared(Tree, One, Other) of
        {ok, same} -> {ok, 0.0};
        {ok, Length} -> {ok, math:pow(2, -Length)};
        unknown -> unknown
    end.

%% @doc Returns the length of the path that two nodes share, from which their distance is computed.
-spec shared(tree() | none, node(), node()) -> {ok, same | non_neg_integer()} | unknown.
shared(Tree, One, Other) ->
    case places(Tree) of
        #{One := _} when One =:= Other -> {ok, same};
        #{One := WayOne, Other := WayOther} -> {ok, common_length(WayOne, WayOther, 0)};
        #{} -> unknown
    end.

common_length([Step | One], [Step | Other], Length) -> common_length(One, Other, Length + 1);
common_length(_, _, Length) -> Length.

%% @doc Returns the closed disc: all nodes within this distance from the centre, sorted, including the centre itself.
-spec disc(tree() | none, Centre :: node(), Radius :: number()) -> {ok, [node()]} | unknown.
disc(Tree, Centre, Radius) when is_number(Radius) ->
    case is_member(Tree, Centre) of
        true -> {ok, [Node || Node <- nodes(Tree), {ok, Distance} <- [distance(Tree, Centre, Node)], Distance =< Radius]};
        false -> unknown
    end.

%% @doc Returns the largest distance between two of these nodes; nodes outside of the tree are left out.
-spec diameter(tree() | none, [node()]) -> float().
diameter(Tree, Nodes) ->
    case lists:usort(maps:values(maps:with(Nodes, places(Tree)))) of
        %% In lexical order the first and the last path have the shortest common prefix.
        [First | [_ | _] = Rest] -> math:pow(2, -common_length(First, lists:last(Rest), 0));
        _ -> 0.0
    end.

%% @doc Returns the rank of the second node as seen from the first, and the number of groups that contain the first node.
%% The rank is the number of levels from the first node up to the smallest group that contains both nodes. Rank 1 is the
%% nearest possible. At rank `Levels' the smallest common group is the root. The rank of a node as seen from itself is 0.
%% Keywords such as `near' stand for fractions of `Levels'.
-spec rank(tree() | none, From :: node(), To :: node()) -> {ok, Rank :: non_neg_integer(), Levels :: non_neg_integer()} | unknown.
rank(Tree, From, To) ->
    case shared(Tree, From, To) of
        {ok, same} -> {ok, 0, levels(Tree, From)};
        {ok, Length} -> {ok, levels(Tree, From) - Length, levels(Tree, From)};
        unknown -> unknown
    end.

levels(Tree, Node) -> length(map_get(Node, places(Tree))).

%% @doc Returns the times measured in the smallest group that contains both nodes; the map is empty if there are none.
-spec latency(tree() | none, node(), node()) -> {ok, labels()} | unknown.
latency(Tree, One, Other) ->
    case shared(Tree, One, Other) of
        {ok, same} -> {ok, #{}};
        {ok, _} ->
            {group, _, Labels, _} = common(Tree, One, Other),
            {ok, Labels};
        unknown -> unknown
    end.

%% @private Returns the smallest group that contains both of these nodes, which differ and are in the tree.
-spec common(tree(), node(), node()) -> vertex().
common(#{packed := Packed, places := Places}, One, Other) -> descend(Packed, map_get(One, Places), map_get(Other, Places)).

descend({group, _, _, Children}, [Step | One], [Step | Other]) -> descend(lists:nth(Step, Children), One, Other);
descend(Group, _, _) -> Group.

%% @doc Covers the tree with discs of this radius. Returns one node of each disc, with the size of the disc. To reach the
%% whole tree, a message can be sent to these nodes, each of which passes it on to the others in its disc. The centre
%% represents its own disc.
-spec basis(tree() | none, Centre :: node(), Radius :: number()) -> {ok, [{node(), Size :: pos_integer()}]} | unknown.
basis(Tree, Centre, Radius) when is_number(Radius) ->
    case is_member(Tree, Centre) of
        true -> {ok, balls(Tree, [Centre | lists:delete(Centre, nodes(Tree))], Radius)};
        false -> unknown
    end.

balls(_, [], _) -> [];
balls(Tree, [Node | Rest], Radius) ->
    {ok, Disc} = disc(Tree, Node, Radius),
    [{Node, length(Disc)} | balls(Tree, Rest -- Disc, Radius)].

%% @doc Returns the tree as it was declared.
-spec root(tree()) -> vertex().
root(#{root := Root}) -> Root.

%% @doc Returns the tree that is used for distances, without groups that have a single child.
-spec packed(tree()) -> vertex().
packed(#{packed := Packed}) -> Packed.

%% @doc Returns which child of the root contains a node, as a number starting with 1, in the tree that is used for
%% distances. The result is `unknown' if the node is the only one in the tree.
-spec branch(tree() | none, node()) -> {ok, pos_integer()} | unknown.
branch(Tree, Node) ->
    case way(Tree, Node, 1) of
        {ok, [Index]} -> {ok, Index};
        _ -> unknown
    end.

%% @doc Returns the first `Levels' steps of the path from the root to a node, or the whole path if it is shorter. Two nodes
%% share that many levels if these steps are equal.
-spec way(tree() | none, node(), Levels :: non_neg_integer()) -> {ok, [pos_integer()]} | unknown.
way(Tree, Node, Levels) ->
    case places(Tree) of
        #{Node := Way} -> {ok, lists:sublist(Way, Levels)};
        #{} -> unknown
    end.

%% @doc Returns the groups that contain a node, the smallest first.
-spec ancestors(tree() | none, node()) -> {ok, [vertex()]} | unknown.
ancestors(Tree, Node) ->
    case places(Tree) of
        #{Node := Way} -> {ok, above(packed(Tree), Way, [])};
        #{} -> unknown
    end.

above({leaf, _}, [], Above) -> Above;
above({group, _, _, Children} = Group, [Index | Way], Above) -> above(lists:nth(Index, Children), Way, [Group | Above]).

%% @doc Returns the nodes below a vertex, in the order of the tree.
-spec members(vertex()) -> [node()].
members(Vertex) -> members(Vertex, []).

members({leaf, Node}, Rest) -> [Node | Rest];
members({group, _, _, Children}, Rest) -> lists:foldr(fun members/2, Rest, Children).

%% @private Returns the groups below a vertex, starting with the vertex itself if it is a group.
-spec groups(vertex()) -> [vertex()].
groups({leaf, _}) -> [];
groups({group, _, _, Children} = Group) -> [Group | lists:append([groups(Child) || Child <- Children])].

%% @doc Returns all nodes in the order of the tree, so that neighbours are next to each other.
-spec leaf_order(tree()) -> [node()].
leaf_order(#{packed := Packed}) -> members(Packed).

%% @doc Returns the number of groups on the longest path from the root to a node.
-spec depth(tree() | none) -> non_neg_integer().
depth(Tree) -> lists:max([0 | [length(Way) || Way <- maps:values(places(Tree))]]).

%% @doc Adds a node at a path. If the node is already in the tree, it is moved there.
-spec insert(tree(), node(), path()) -> {ok, tree()} | {error, error()}.
insert(#{epoch := Epoch} = Tree, Node, Path) ->
    #{root := Root} = remove(Tree, Node),
    try {ok, build(add_path({Node, Path}, Root), Epoch + 1)}
    catch throw:Reason -> {error, Reason}
    end.

%% @doc Removes a node, and the groups that become empty. If the node is not in the tree, the tree does not change.
-spec remove(tree(), node()) -> tree().
remove(#{root := {group, Name, Labels, _} = Root, epoch := Epoch} = Tree, Node) ->
    case {is_member(Tree, Node), without(Root, Node)} of
        {false, _} -> Tree;
        {true, [Left]} -> build(Left, Epoch + 1);
        {true, []} -> build({group, Name, Labels, []}, Epoch + 1)
    end.

without({leaf, Node}, Node) -> [];
without({leaf, _} = Leaf, _) -> [Leaf];
without({group, Name, Labels, Children}, Node) ->
    case lists:append([without(Child, Node) || Child <- Children]) of
        [] -> [];
        Left -> [{group, Name, Labels, Left}]
    end.

%% @doc Formats an error as text for users.
-spec format_error(error()) -> unicode:chardata().
format_error({bad_path, Node, Path}) ->
    io_lib:format("the path of ~tp is ~tp; expected a text such as \"/site/rack/host\" or a list of names", [Node, Path]);
format_error({bad_network, Term}) ->
    io_lib:format("~tP is not a part of a network; expected {network, Name, [Part]} or {node, Node}", [Term, 12]);
format_error({duplicate_node, Node}) -> io_lib:format("the node ~tp is in the tree twice; each may have only one place", [Node]);
format_error({bad_vertex, Term}) ->
    io_lib:format("~tP is not a vertex; expected {leaf, Node} or {group, Name, Labels, [Vertex]}", [Term, 12]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Returns the tree with four levels that Figures 4 and 5 of the report show.
figure() ->
    {ok, Tree} = from_network({network, top, [{network, left, [{network, deep, [{node, a}, {node, b}]}, {node, c}, {node, d}]},
                                              {network, right, [{node, j}, {node, k}]}]}),
    Tree.

distance_test_() ->
    Tree = figure(),
    [?_assertEqual(Want, distance(Tree, One, Other))
     || {Want, One, Other} <- [{{ok, 0.0}, a, a}, {{ok, 0.25}, a, b}, {{ok, 0.5}, b, c}, {{ok, 1.0}, b, k},
                               {unknown, a, z}, {unknown, z, z}]].

disc_test_() ->
    Tree = figure(),
    [?_assertEqual(Want, disc(Tree, b, Radius))
     || {Want, Radius} <- [{{ok, [b]}, 0}, {{ok, [a, b]}, 0.25}, {{ok, [a, b]}, 0.4}, {{ok, [a, b, c, d]}, 0.5},
                           {{ok, [a, b, c, d, j, k]}, 1}]]
        ++ [?_assertEqual(unknown, disc(Tree, z, 1))].

single_children_do_not_count_test() ->
    {ok, Long} = from_paths([{a, "/site/net/rack/host1"}, {b, "/site/net/rack/host1"}, {c, "/site/net/rack/host2"}]),
    {ok, Short} = from_paths([{a, [host1]}, {b, [host1]}, {c, [host2]}]),
    [?assertEqual(distance(Short, X, Y), distance(Long, X, Y)) || X <- [a, b, c], Y <- [a, b, c]],
    ?assertEqual({ok, 0.5}, distance(Long, a, b)),
    ?assertEqual({ok, 1.0}, distance(Long, a, c)).

rank_test_() ->
    Tree = figure(),
    [?_assertEqual({ok, 0, 3}, rank(Tree, a, a)), ?_assertEqual({ok, 1, 3}, rank(Tree, a, b)),
     ?_assertEqual({ok, 2, 3}, rank(Tree, a, c)), ?_assertEqual({ok, 3, 3}, rank(Tree, a, j)),
     ?_assertEqual({ok, 1, 2}, rank(Tree, j, k)), ?_assertEqual(unknown, rank(Tree, j, z))].

basis_test() ->
    ?assertEqual({ok, [{b, 2}, {c, 1}, {d, 1}, {j, 1}, {k, 1}]}, basis(figure(), b, 0.25)),
    ?assertEqual({ok, [{b, 4}, {j, 2}]}, basis(figure(), b, 0.5)).

labels_test() ->
    {ok, Tree} = from_vertex({group, top, #{median_us => 9.0}, [{group, low, #{median_us => 2.0}, [{leaf, a}, {leaf, b}]}, {leaf, c}]}),
    ?assertEqual({ok, #{median_us => 2.0}}, latency(Tree, a, b)),
    ?assertEqual({ok, #{median_us => 9.0}}, latency(Tree, a, c)),
    ?assertEqual({ok, #{}}, latency(Tree, a, a)),
    ?assertEqual(unknown, latency(Tree, a, z)).

changes_test() ->
    {ok, Tree} = from_paths([{a, "/x/1"}, {b, "/x/1"}, {c, "/y/2"}]),
    {ok, More} = insert(Tree, d, "/y/2"),
    ?assertEqual({ok, 0.5}, distance(More, c, d)),
    {ok, Moved} = insert(More, d, "/x/1"),
    ?assertEqual({ok, 0.5}, distance(Moved, a, d)),
    ?assertEqual([a, b, c], nodes(remove(Moved, d))),
    ?assertEqual(Tree, remove(Tree, z)),
    ?assert(epoch(Moved) > epoch(More)),
    ?assertEqual([], nodes(remove(remove(remove(Tree, a), b), c))).

bad_input_test_() ->
    [?_assertEqual({error, Want}, Got) || {Want, Got} <-
        [{{bad_path, a, 7}, from_paths([{a, 7}])}, {{bad_path, a, [1, 2 | 3]}, from_paths([{a, [1, 2 | 3]}])},
         {{bad_path, "a", undefined}, from_paths(["a"])}, {{duplicate_node, a}, from_paths([{a, "/x"}, {a, "/y"}])},
         {{bad_network, {nodes, a}}, from_network({network, n, [{nodes, a}]})},
         {{bad_network, {network, n, a}}, from_network({network, n, a})},
         {{duplicate_node, a}, from_network({network, n, [{node, a}, {node, a}]})},
         {{bad_vertex, {group, n, [], []}}, from_vertex({group, n, [], []})}]].

errors_are_text_test_() ->
    [?_assert(is_binary(unicode:characters_to_binary(format_error(Error))))
     || Error <- [{bad_path, a, 7}, {bad_network, x}, {duplicate_node, a}, {bad_vertex, x}]].
-endif.
