%% SPDX-License-Identifier: Apache-2.0
%% @doc Formats the tree of a network for other programs: as the report's network term, as DOT for Graphviz, as Newick for
%% phylogenetic programs, as JSON, and as Slurm's `topology.conf'. All functions are pure.
-module(placement_export).

-export([text/2, to_json/1, formats/0, short_names/1, name/1, micros/1]).

-export_type([format/0]).

-type format() :: term | dot | newick | json | conf | paths.

%% @doc Returns the formats and their file extensions.
-spec formats() -> [{format(), string()}].
formats() -> [{term, ".term"}, {dot, ".dot"}, {newick, ".nwk"}, {json, ".json"}, {conf, ".conf"}, {paths, ".paths"}].

%% @doc Returns the tree as text. For JSON, callers that have an encoder use {@link to_json/1} instead.
-spec text(format(), placement_tree:tree()) -> unicode:chardata().
text(term, Tree) -> io_lib:format("~tp.~n", [placement_tree:to_network(Tree)]);
text(dot, Tree) -> dot(Tree);
text(newick, Tree) -> newick(Tree);
text(conf, Tree) -> placement_slurm:to_conf(hosts(placement_tree:packed(Tree)));
text(paths, Tree) -> paths(placement_tree:root(Tree), "").

hosts({leaf, Node}) -> {host, lists:last(string:split(atom_to_list(Node), "@"))};
hosts({group, Name, _, Children}) -> {group, name(Name), lists:uniq([hosts(Child) || Child <- Children])}.

paths({leaf, Node}, Path) -> [atom_to_list(Node), " ", case Path of "" -> "/"; _ -> Path end, "\n"];
paths({group, _, _, Children}, Path) ->
    [paths(Child, case Child of {leaf, _} -> Path; {group, Name, _, _} -> [Path, "/", name(Name)] end) || Child <- Children].

%% @doc Returns a group's name as text.
-spec name(placement_tree:name()) -> string().
name(Name) when is_list(Name); is_binary(Name) ->
    try unicode:characters_to_list(Name) of
        Text when is_list(Text) -> Text;
        _ -> lists:flatten(io_lib:format("~tp", [Name]))
    catch error:badarg -> lists:flatten(io_lib:format("~tp", [Name]))
    end;
name(Name) -> lists:flatten(io_lib:format("~tw", [Name])).

%% As in the report's figures, an ellipse shows the members, the size and the diameter of a cluster on the lowest level, and
%% a box shows the diameter of a cluster on a higher level.
dot(Tree) ->
    Nodes = placement_tree:nodes(Tree),
    Names = maps:from_list(lists:zip(Nodes, short_names(Nodes))),
    {Lines, _} = dot_vertex(placement_tree:packed(Tree), 1, Names),
    ["graph network {\n  node [fontname=\"Helvetica\", fontsize=10];\n  edge [color=\"#555555\"];\n", Lines, "}\n"].

dot_vertex({group, _, Labels, Children} = Group, Number, Names) ->
    {Leaves, Groups} = lists:partition(fun(Child) -> element(1, Child) =:= leaf end, Children),
    case Groups of
        [] -> {dot_node(Number, ellipse, members(placement_tree:members(Group), Names) ++ diameter(Labels)), Number + 1};
        _ ->
            Below = Groups ++ [{group, alone, #{}, Leaves} || Leaves =/= []],
            {Lines, Next} = lists:mapfoldl(fun(Child, N) -> dot_below(Child, Number, N, Names) end, Number + 1, Below),
            {[dot_node(Number, box, tl(["" | diameter(Labels)])), Lines], Next}
    end;
dot_vertex({leaf, Node}, Number, Names) -> {dot_node(Number, ellipse, members([Node], Names)), Number + 1}.

%% Nodes that have groups as siblings do not form a cluster, so each of them is attached to its parent group separately.
dot_below({group, alone, _, Leaves}, Above, Number, Names) ->
    lists:mapfoldl(fun(Leaf, N) -> dot_below(Leaf, Above, N, Names) end, Number, Leaves);
dot_below(Child, Above, Number, Names) ->
    {Lines, Next} = dot_vertex(Child, Number, Names),
    {[Lines, io_lib:format("  v~b -- v~b;~n", [Above, Number])], Next}.

dot_node(Number, Shape, Lines) ->
    Escaped = lists:join("\\n", [string:replace(string:replace(Line, "\\", "\\\\", all), "\"", "\\\"", all) || Line <- Lines]),
    io_lib:format("  v~b [shape=~s, label=\"~ts\"];~n", [Number, Shape, Escaped]).

members(Nodes, Names) ->
    Short = [maps:get(Node, Names) || Node <- lists:sort(Nodes)],
    wrapped(string:split(placement_hostlist:compress(Short), ",", all), "") ++ [io_lib:format("size ~b", [length(Nodes)])].

wrapped([], "") -> [];
wrapped([], Line) -> [Line];
wrapped([Word | Words], "") -> wrapped(Words, Word);
wrapped([Word | Words], Line) when length(Line) + length(Word) < 32 -> wrapped(Words, Line ++ ", " ++ Word);
wrapped(Words, Line) -> [Line ++ "," | wrapped(Words, "")].

diameter(#{max_us := Most}) -> [["diameter ", micros(Most)]];
diameter(#{}) -> [].

%% @doc Returns short names for display: the part before or after the `@' is left out if it is the same for all nodes.
-spec short_names([node()]) -> [string()].
short_names(Nodes) ->
    Parts = [string:split(atom_to_list(Node), "@") || Node <- Nodes],
    case lists:all(fun(Part) -> length(Part) =:= 2 end, Parts) of
        true -> short_parts(Parts, lists:usort([Name || [Name, _] <- Parts]), lists:usort([Host || [_, Host] <- Parts]));
        false -> [atom_to_list(Node) || Node <- Nodes]
    end.

short_parts(Parts, _, [_]) -> [Name || [Name, _] <- Parts];
short_parts(Parts, [_], _) -> [Host || [_, Host] <- Parts];
short_parts(Parts, _, _) -> [Name ++ "@" ++ Host || [Name, Host] <- Parts].

%% @doc Formats a time for display.
-spec micros(number()) -> unicode:chardata().
micros(Us) when Us >= 1.0e6 -> io_lib:format("~.2f s", [Us / 1.0e6]);
micros(Us) when Us >= 1.0e4 -> io_lib:format("~.1f ms", [Us / 1.0e3]);
micros(Us) when Us >= 100 -> io_lib:format("~b µs", [round(Us)]);
micros(Us) -> io_lib:format("~.1f µs", [float(Us)]).

%% The height of a group is half its median time, so that the length of the path between two nodes is the time between
%% them. If nothing was measured, the height is derived from the level.
newick(Tree) ->
    Root = placement_tree:packed(Tree),
    [newick(Root, height(Root)), ";\n"].

newick({leaf, Node}, Above) -> io_lib:format("~ts:~ts", [quoted(atom_to_list(Node)), length_text(Above)]);
newick({group, Name, _, Children} = Group, Above) ->
    Height = min(height(Group), Above),
    ["(", lists:join(",", [newick(Child, Height) || Child <- Children]), ")", quoted(name(Name)),
     [[":", length_text(Above - Height)] || Above > Height]].

height({leaf, _}) -> 0.0;
height({group, _, #{median_us := Median}, _}) -> Median / 2;
height({group, _, _, Children}) -> 0.5 + lists:max([0.0 | [height(Child) || Child <- Children]]).

length_text(Length) -> float_to_list(float(Length), [{decimals, 4}, compact]).

quoted(Text) -> ["'", string:replace(Text, "'", "''", all), "'"].

%% @doc Returns the tree as a map for a JSON encoder. Groups have a name, a size, labels and children; leaves have a node.
-spec to_json(placement_tree:tree()) -> map().
to_json(Tree) ->
    #{epoch => placement_tree:epoch(Tree), nodes => placement_tree:size(Tree), depth => placement_tree:depth(Tree),
      root => json_vertex(placement_tree:packed(Tree))}.

json_vertex({leaf, Node}) -> #{node => atom_to_binary(Node)};
json_vertex({group, Name, Labels, Children} = Group) ->
    Labels#{name => unicode:characters_to_binary(name(Name)), size => length(placement_tree:members(Group)),
            children => [json_vertex(Child) || Child <- Children]}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

tree() ->
    Racks = [{group, "c1", #{max_us => 60.0, median_us => 50.0}, [{leaf, a@n1}, {leaf, a@n2}]}, {group, "c2", #{max_us => 61.0, median_us => 51.0}, [{leaf, a@n4}, {leaf, a@n5}]}],
    {ok, Tree} = placement_tree:from_vertex({group, "network", #{max_us => 20000.0, median_us => 200.0}, Racks ++ [{leaf, a@n9}]}),
    Tree.

to_text(Format) -> unicode:characters_to_list(text(Format, tree())).

dot_test() ->
    Text = to_text(dot),
    [?assertNotEqual(nomatch, string:find(Text, Part))
     || Part <- ["shape=box, label=\"diameter 20.0 ms\"", "shape=ellipse, label=\"n[1-2]\\nsize 2\\ndiameter 60.0 µs\"", "label=\"n9\\nsize 1\"", "v1 -- v2;"]].

newick_test() ->
    ?assertEqual("(('a@n1':25.0,'a@n2':25.0)'c1':75.0,('a@n4':25.5,'a@n5':25.5)'c2':74.5,'a@n9':100.0)'network';\n", to_text(newick)).

conf_test() ->
    {ok, Back, []} = placement_import:text(conf, to_text(conf), #{name => "a"}),
    ?assertEqual([placement_tree:distance(tree(), X, Y) || X <- placement_tree:nodes(tree()), Y <- [a@n1, a@n4]],
                 [placement_tree:distance(Back, X, Y) || X <- placement_tree:nodes(tree()), Y <- [a@n1, a@n4]]).

comes_back_test_() ->
    [fun() ->
             {ok, Back, []} = placement_import:text(Format, to_text(Format), #{}),
             ?assertEqual([placement_tree:shared(tree(), X, a@n1) || X <- placement_tree:nodes(tree())],
                          [placement_tree:shared(Back, X, a@n1) || X <- placement_tree:nodes(tree())])
     end || Format <- [term, paths]].

json_test() ->
    ?assertMatch(#{nodes := 5, depth := 2, root := #{name := <<"network">>, size := 5, max_us := 20000.0,
                                                     children := [#{children := [#{node := <<"a@n1">>} | _]} | _]}}, to_json(tree())).

short_names_test_() ->
    [?_assertEqual(Want, short_names(Nodes)) || {Want, Nodes} <- [{["n1", "n2"], [a@n1, a@n2]}, {["a", "b"], [a@n1, b@n1]},
                                                                {["a@n1", "b@n2"], [a@n1, b@n2]}, {["x", "y"], [x, y]}, {["a"], [a@n1]}]].

micros_test_() ->
    [?_assertEqual(Want, unicode:characters_to_list(micros(Us))) || {Want, Us} <- [{"2.00 s", 2.0e6}, {"12.5 ms", 12500}, {"120 µs", 120.4}, {"9.9 µs", 9.9}]].
-endif.
