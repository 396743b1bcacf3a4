%% SPDX-License-Identifier: Apache-2.0
%% @doc Draws measured times as SVG: a heat map of all pairs and a dendrogram of the tree. `rsvg-convert' (in Debian's
%% librsvg2-bin) converts both to PNG. {@link placement_svg} contains their colours and fonts.
%%
%% Both drawings are readable with 256 nodes, because each node has a separate line with its name, at least 8 points high.
%% With 32 nodes or fewer they are not wider than a page (830 pixels). The colour depends on the logarithm of the time, from
%% dark teal (fast) to orange (slow), as on the console. All functions are pure except {@link to_png/2}.
-module(placement_draw).

-export([heat_map/2, dendrogram/2, beside/1, to_png/2, format_error/1]).

-import(placement_svg, [text/4, text/5, line/5, path/2]).

-export_type([options/0, error/0]).

-type options() :: #{title => unicode:chardata(),
                     order => [node()],       %% of the rows in the heat map, with neighbours next to each other
                     breaks => [pos_integer()]}. %% dotted lines after these numbers of nodes
-type error() :: no_rsvg | {rsvg, unicode:chardata()} | {file, file:filename_all(), file:posix()}.

-define(SHADES, 64).
-define(PNG_MS, 120000).

%% @doc Draws the heat map of a matrix, with the nodes as rows and columns in the order of the options or the matrix.
-spec heat_map(placement_matrix:matrix(), options()) -> unicode:chardata().
heat_map(Matrix, Options) ->
    Nodes = maps:get(order, Options, placement_matrix:nodes(Matrix)),
    Names = placement_export:short_names(Nodes),
    Count = length(Nodes),
    Cell = max(9, min(30, 600 div Count)),
    Left = 30 + round(7 * longest(Names)),
    Frame = #{left => Left, top => 46 + Left, cell => Cell, side => Count * Cell},
    Ordered = placement_matrix:sub(Matrix, Nodes),
    Scale = scale([Time || {_, _, Time} <- placement_matrix:pairs(Ordered)]),
    placement_svg:picture(max(Left + Count * Cell + 110, 360), max(46 + Left + Count * Cell + 40, 46 + Left + 260),
                          maps:get(title, Options, "Round-trip times between nodes"),
                          [cells(Ordered, Count, Scale, Frame), axis_names(Names, Frame),
                           [break_lines(After, Frame) || After <- maps:get(breaks, Options, [])], legend(Scale, Frame)]).

longest(Names) -> min(30, lists:max([4 | [string:length(Name) || Name <- Names]])).

scale([]) -> {0.0, 0.0};
scale(Times) -> {math:log(lists:min(Times)), math:log(lists:max(Times))}.

shade(undefined, _) -> gap;
shade(Time, {Low, High}) when High - Low > 1.0e-9 -> min(?SHADES - 1, trunc((math:log(Time) - Low) / (High - Low) * ?SHADES));
shade(_, _) -> 0.

%% Draws all cells with the same shade as a single path, in which neighbouring cells of a row form one rectangle.
cells(Matrix, Count, Scale, #{left := Left, top := Top, cell := Cell, side := Side}) ->
    Runs = lists:foldl(fun(Row, Acc) -> runs(row_shades(Row, Count, Matrix, Scale), Row, Acc) end, #{}, lists:seq(1, Count)),
    [io_lib:format("<g transform=\"translate(~b ~b) scale(~b)\" shape-rendering=\"crispEdges\">\n", [Left, Top, Cell]),
     [["<path ", filled(Shade), " d=\"", Path, "\"/>\n"] || {Shade, Path} <- lists:sort(maps:to_list(Runs))], "</g>\n",
     outline(Left, Top, Side, Side)].

%% The style overrides the rule of the style sheet that paths have no fill.
filled(self) -> "class=\"self\"";
filled(gap) -> "class=\"gap\"";
filled(Shade) -> ["style=\"fill:", colour(Shade), "\""].

colour(Shade) -> placement_svg:ramp(Shade / (?SHADES - 1)).

outline(X, Y, Width, Height) -> path("axis", [{X, Y}, {X + Width, Y}, {X + Width, Y + Height}, {X, Y + Height}, {X, Y}]).

row_shades(Row, Count, Matrix, Scale) ->
    [case Column of
         Row -> self;
         _ -> shade(placement_matrix:value(Matrix, Row, Column), Scale)
     end || Column <- lists:seq(1, Count)].

runs(Shades, Row, Acc) -> runs(Shades, Row, 0, Acc).

runs([], _, _, Acc) -> Acc;
runs([Shade | _] = Shades, Row, Column, Acc) ->
    {Same, Rest} = lists:splitwith(fun(S) -> S =:= Shade end, Shades),
    Length = length(Same),
    Path = io_lib:format("M~b ~bh~bv1h-~bz", [Column, Row - 1, Length, Length]),
    runs(Rest, Row, Column + Length, Acc#{Shade => [maps:get(Shade, Acc, ""), Path]}).

axis_names(Names, #{left := Left, top := Top, cell := Cell, side := Side}) ->
    Font = min(12, Cell - 1),
    Numbered = lists:zip(lists:seq(0, length(Names) - 1), Names),
    [[text("end", Left - 4, Top + N * Cell + Cell div 2 + Font * 0.35, Font, Name) || {N, Name} <- Numbered],
     [turned(Left + N * Cell + Cell div 2 + round(Font * 0.35), Top - 4, text("", 0, 0, Font, Name)) || {N, Name} <- Numbered],
     text("middle", Left + Side / 2, Top + Side + 22, "to node (columns)"),
     turned(14, Top + Side div 2, text("middle", 0, 0, "from node (rows)"))].

turned(X, Y, Text) -> [io_lib:format("<g transform=\"translate(~b ~b) rotate(-90)\">", [X, Y]), Text, "</g>\n"].

break_lines(After, #{left := Left, top := Top, cell := Cell, side := Side}) ->
    At = After * Cell,
    [line("cut span", Left + At, Top, Left + At, Top + Side), line("cut span", Left, Top + At, Left + Side, Top + At)].

legend({Low, High}, #{left := Left, top := Top, side := Side}) ->
    X = Left + Side + 16,
    Height = 200,
    {Shades, Marks} = case High - Low > 1.0e-9 of true -> {lists:seq(0, ?SHADES - 1), [0.0, 0.25, 0.5, 0.75, 1.0]}; false -> {[0], [0.0]} end,
    [[io_lib:format("<rect x=\"~b\" y=\"~.1f\" width=\"18\" height=\"~.2f\" fill=\"~ts\"/>~n",
                    [X, Top + Height - (Shade + 1) * Height / ?SHADES, Height / ?SHADES + 0.3, colour(Shade)])
      || Shade <- Shades],
     outline(X, Top, 18, Height),
     [text("small", X + 24, Top + Height - Mark * Height + 4, placement_export:micros(math:exp(Low + Mark * (High - Low)))) || Mark <- Marks],
     text("small", X, Top + Height + 20, "round trip")].

%% @doc Draws the dendrogram of a tree, with the root on the left and a line for each node on the right. If the medians of
%% all groups are known, each group is drawn at its median time; otherwise groups are drawn at their levels.
-spec dendrogram(placement_tree:tree(), options()) -> unicode:chardata().
dendrogram(Tree, Options) ->
    {Width, Height, Content} = branches(Tree),
    placement_svg:picture(Width, Height, maps:get(title, Options, "Groups of nodes by round-trip time"), Content).

branches(Tree) ->
    Root = placement_tree:packed(Tree),
    Nodes = placement_tree:leaf_order(Tree),
    Names = maps:from_list(lists:zip(Nodes, placement_export:short_names(Nodes))),
    Line = max(10, min(22, 800 div max(1, length(Nodes)))),
    Frame = #{left => 60, top => 56, line => Line, wide => 640, axis => axis(Root), names => Names},
    Bottom = 56 + Line * max(1, length(Nodes)),
    {Lines, _, _} = branch(Root, 0, Frame),
    {60 + 640 + 40 + 8 * longest(maps:values(Names)), Bottom + 60, [ticks(Frame, Bottom), Lines]}.

%% @doc Draws several dendrograms next to each other, each with its title.
-spec beside([{Title :: unicode:chardata(), placement_tree:tree()}, ...]) -> unicode:chardata().
beside(Titled) ->
    {Parts, {Width, Height}} =
        lists:mapfoldl(fun({Title, Tree}, {X, Y}) ->
                               {Wide, High, Content} = branches(Tree),
                               {[io_lib:format("<g transform=\"translate(~b 40)\">~n", [X]), text("title", 20, 28, Title), Content, "</g>\n"], {X + Wide, max(Y, High)}}
                       end, {0, 0}, Titled),
    placement_svg:picture(Width, Height + 40, "Groups of nodes by round-trip time", Parts).

axis(Root) ->
    Groups = placement_tree:groups(Root),
    case [Median || {group, _, #{median_us := Median}, _} <- Groups] of
        Medians when length(Medians) =:= length(Groups), Medians =/= [] ->
            {micros, math:log(lists:min(Medians)) - 0.4, math:log(lists:max(Medians)) + 0.1};
        _ -> {levels, 0, levels(Root)}
    end.

levels({leaf, _}) -> 0;
levels({group, _, _, Children}) -> 1 + lists:max([0 | [levels(Child) || Child <- Children]]).

place({group, _, #{median_us := Median}, _}, #{axis := {micros, Low, High}} = Frame) -> x((High - math:log(Median)) / (High - Low), Frame);
place(Group, #{axis := {levels, _, Levels}} = Frame) -> x(1 - levels(Group) / max(1, Levels), Frame).

x(Share, #{left := Left, wide := Wide}) -> Left + Share * Wide.

%% Draws the lines of a vertex, starting at this line number. Returns the vertex's position and the next free line.
branch({leaf, Node}, Number, #{top := Top, line := Line, left := Left, wide := Wide, names := Names}) ->
    Y = Top + Number * Line + Line / 2,
    {text("", Left + Wide + 6, Y + min(11, Line - 1) * 0.35, min(11, Line - 1), maps:get(Node, Names)), {Left + Wide, Y}, Number + 1};
branch({group, _, _, []}, Number, #{left := Left, top := Top}) -> {"", {Left, Top}, Number};
branch({group, _, Labels, Children} = Group, Number, Frame) ->
    {Below, Next} = lists:mapfoldl(fun(Child, N) -> {Lines, At, After} = branch(Child, N, Frame), {{Lines, At}, After} end, Number, Children),
    X = place(Group, Frame),
    Ys = [Y || {_, {_, Y}} <- Below],
    Middle = (hd(Ys) + lists:last(Ys)) / 2,
    {[[Lines || {Lines, _} <- Below],
      line("branch", X, hd(Ys), X, lists:last(Ys)),
      [line("axis", X, Y, To, Y) || {_, {To, Y}} <- Below],
      group_text(Labels, X, Middle)],
     {X, Middle}, Next}.

group_text(#{median_us := Median}, X, Y) -> text("small end", X - 3, Y - 3, placement_export:micros(Median));
group_text(#{}, _, _) -> "".

ticks(#{axis := {micros, Low, High}, top := Top} = Frame, Bottom) ->
    Marks = [math:exp(Low + Share * (High - Low)) || Share <- [0.0, 0.25, 0.5, 0.75, 1.0]],
    [[tick(x((High - math:log(Mark)) / (High - Low), Frame), Top, Bottom, placement_export:micros(Mark)) || Mark <- Marks],
     text("middle", x(0.5, Frame), Bottom + 44, "median round trip between the parts of a group (logarithmic)")];
ticks(#{axis := {levels, _, Levels}, top := Top} = Frame, Bottom) ->
    [[tick(x(Level / max(1, Levels), Frame), Top, Bottom, integer_to_list(Level)) || Level <- lists:seq(0, Levels)],
     text("middle", x(0.5, Frame), Bottom + 44, "level of the tree (0 is the root)")].

tick(X, Top, Bottom, Text) -> [line("grid", X, Top, X, Bottom + 6), text("small middle", X, Bottom + 22, Text)].

%% @doc Converts SVG to a PNG file with rsvg-convert.
-spec to_png(Svg :: unicode:chardata(), file:filename_all()) -> ok | {error, error()}.
to_png(Svg, File) ->
    Source = unicode:characters_to_list([File, ".", os:getpid(), ".svg"]),
    case {os:find_executable("rsvg-convert"), file:write_file(Source, unicode:characters_to_binary(Svg))} of
        {false, _} -> _ = file:delete(Source), {error, no_rsvg};
        {_, {error, Reason}} -> {error, {file, Source, Reason}};
        {Program, ok} ->
            try placement_program:run(Program, ["-o", unicode:characters_to_list(File), Source], ?PNG_MS) of
                {ok, _} -> ok;
                {error, {status, _, Said}} -> {error, {rsvg, Said}};
                {error, timeout} -> {error, {rsvg, "it did not end within two minutes"}}
            after file:delete(Source)
            end
    end.

%% @doc Formats an error as text for users, including what to do about it.
-spec format_error(error()) -> unicode:chardata().
format_error(no_rsvg) -> "PNG needs the program rsvg-convert (Debian: apt-get install librsvg2-bin); SVG needs nothing";
format_error({rsvg, Said}) -> ["rsvg-convert: ", string:trim(Said)];
format_error({file, File, Reason}) -> io_lib:format("cannot write ~ts: ~ts", [File, file:format_error(Reason)]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

matrix() ->
    {ok, Matrix} = placement_matrix:from_rows(['a&b@n1', c@n2, d@n3], [[0, 10, 100], [10, 0, 100], [100, 100, 0]]),
    Matrix.

flat(Svg) -> unicode:characters_to_list(Svg).

heat_map_test() ->
    Text = flat(heat_map(matrix(), #{title => "a < b", breaks => [2]})),
    [?assertNotEqual(nomatch, string:find(Text, Part))
     || Part <- ["a &lt; b", "a&amp;b@n1", "class=\"cut span\"", "from node", "to node", "10.0 µs", "100 µs", "fill:#123456", "fill:#de523c"]].

dendrogram_test() ->
    #{tree := Tree} = placement_cluster:cluster(matrix()),
    Text = flat(dendrogram(Tree, #{})),
    [?assertNotEqual(nomatch, string:find(Text, Part)) || Part <- ["a&amp;b@n1", "d@n3", "median round trip"]],
    {ok, Declared} = placement_tree:from_paths([{a, "/x/1"}, {b, "/x/1"}, {c, "/y"}]),
    ?assertNotEqual(nomatch, string:find(flat(dendrogram(Declared, #{})), "level of the tree")),
    ?assertNotEqual("", flat(dendrogram(placement_tree:empty(), #{}))).

beside_test() ->
    {ok, Declared} = placement_tree:from_paths([{a, "/x/1"}, {b, "/x/1"}, {c, "/y"}]),
    Text = flat(beside([{"one", Declared}, {"other", Declared}])),
    [?assertNotEqual(nomatch, string:find(Text, Part)) || Part <- ["one", "other", "translate(0 40)"]],
    ?assertEqual(1, length(string:split(Text, "<svg", all)) - 1).

%% The drawing must also look reasonable if there is only one node, or if all times are equal.
odd_input_test() ->
    {ok, One} = placement_matrix:from_rows([a], [[0]]),
    ?assertNotEqual("", flat(heat_map(One, #{}))),
    {ok, Equal} = placement_matrix:from_rows([a, b], [[0, 7], [7, 0]]),
    ?assertNotEqual(nomatch, string:find(flat(heat_map(Equal, #{})), "7.0 µs")).

png_test() ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    File = filename:join(Folder, "map.png"),
    case os:find_executable("rsvg-convert") of
        false -> ?assertEqual({error, no_rsvg}, to_png(heat_map(matrix(), #{}), File));
        _ ->
            ?assertEqual(ok, to_png(heat_map(matrix(), #{}), File)),
            {ok, <<137, "PNG", _/binary>>} = file:read_file(File),
            {error, {rsvg, _} = Error} = to_png("no svg", File),
            ?assertNotEqual("", flat(format_error(Error)))
    end,
    ok = file:del_dir_r(Folder),
    ?assertMatch({error, {file, _, enoent}}, case to_png("", "/nowhere/x.png") of {error, no_rsvg} -> {error, {file, x, enoent}}; Other -> Other end),
    [?assertNotEqual("", flat(format_error(E))) || E <- [no_rsvg, {file, "x", enoent}]].
-endif.
