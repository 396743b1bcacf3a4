%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway topology show', `import' and `export': shows trees from files as text and drawings, and writes them in other formats.
-module(beamway_cli_topology_show).

-export([show/1, convert/1, measured_file/1, draw_beside/2, write/2]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(LSTOPO_MS, 30000).

%% @doc Shows the tree in a file.
-spec show(map()) -> ok.
show(#{files := [File]} = Options) ->
    Known = look(File, Options),
    ok = drawings(Known, Options),
    case Options of
        #{json := true} -> beamway_cli_output:say("~ts~n", [jiffy:encode(json(Known), [pretty, force_utf8])]);
        #{} -> beamway_cli_output:say("~ts", [text(Known)])
    end.

%% @doc Converts the tree in a file to a different format.
-spec convert(map()) -> ok.
convert(#{files := [File], to := To} = Options) ->
    #{tree := Tree} = Known = look(File, Options),
    Formats = [{atom_to_list(Format), Format} || {Format, _} <- placement_export:formats()],
    ok = drawings(Known, Options),
    Text = case {Options, lists:keyfind(To, 1, Formats)} of
               {#{json := true}, _} -> json_text(Tree);
               {_, {_, json}} -> json_text(Tree);
               {_, {_, Format}} -> placement_export:text(Format, Tree);
               {_, false} -> throw({usage, ["--to ", To, ": expected one of ", lists:join(", ", [Name || {Name, _} <- Formats])]})
           end,
    case Options of
        #{out := Out} -> write(Out, Text);
        #{} -> beamway_cli_output:say("~ts", [Text])
    end.

json_text(Tree) -> [jiffy:encode(placement_export:to_json(Tree), [pretty, force_utf8]), "\n"].

%% ---- reading ----

%% Returns the tree and, if it was measured, also the matrix and how well the tree fits.
look(File, Options) ->
    case kind(File, Options) of
        measured -> of_times(measured_file(File), Options);
        csv -> of_times(times(File, fun placement_measured:from_csv/1), Options);
        Kind -> of_file(Kind, File, Options)
    end.

kind(_, #{kind := Text}) ->
    Kinds = [measured, csv | [Kind || {Kind, _} <- placement_import:kinds()]],
    case [Kind || Kind <- Kinds, atom_to_list(Kind) =:= Text] of
        [Kind | _] -> Kind;
        [] -> throw({usage, ["--kind ", Text, ": expected one of ", lists:join(", ", [atom_to_list(K) || K <- lists:uniq(Kinds)])]})
    end;
kind(File, _) ->
    case filename:extension(File) of
        ".json" -> measured;
        ".csv" -> csv;
        _ -> by_name
    end.

of_file(Kind, File, Options) ->
    How = maps:from_list([{kind, Kind} || Kind =/= by_name] ++ [{name, Name} || #{name := Name} <- [Options]]
                         ++ [{nodes, beamway_cli_topology_nodes:named(Names)} || #{nodes := Names} <- [Options]]),
    case placement_import:file(File, How) of
        {ok, Tree, Warnings} ->
            _ = [beamway_cli_output:complain("~ts: ~ts", [File, placement_import:format_warning(Warning)]) || Warning <- Warnings],
            #{tree => Tree};
        {error, Error} -> throw({failed, [File, ": ", placement_import:format_error(Error)]})
    end.

%% @doc Reads a file stored by `measure'.
-spec measured_file(file:filename()) -> placement_probe:measured().
measured_file(File) -> times(File, fun(Bytes) -> decoded(File, Bytes) end).

times(File, Parse) ->
    Bytes = done("cannot read " ++ File, file, file:read_file(File)),
    done(File, placement_measured, Parse(Bytes)).

decoded(File, Bytes) ->
    try placement_measured:from_json(jiffy:decode(Bytes, [return_maps]))
    catch
        %% `undef' means that jiffy is missing, which the command reports elsewhere.
        error:Reason when Reason =/= undef -> throw({failed, io_lib:format("~ts is not valid JSON: ~0tP", [File, Reason, 8])})
    end.

%% Returns the result of a step, or throws its error, which begins with What, in the words of the module.
done(_What, _Module, ok) -> ok;
done(_What, _Module, {ok, Result}) -> Result;
done(What, Module, {error, Error}) -> throw({failed, [What, ": ", Module:format_error(Error)]}).

of_times(Measured, Options) ->
    Mode = one_of("--of", maps:get('of', Options, atom_to_list(placement_measured:best_mode(Measured))), [quiet, loaded]),
    Statistic = one_of("--statistic", maps:get(statistic, Options, "median") ++ "_us", [min_us, median_us, p90_us]),
    Matrix = matrix(Measured, Mode, Statistic, Options),
    Method = case Options of #{alpha := Alpha} -> {alpha, Alpha}; #{} -> mdl end,
    case placement_cluster:cluster(Matrix, Method) of
        {ok, Result} -> Result#{matrix => Matrix, mode => Mode, statistic => Statistic};
        {error, Error} -> throw({usage, placement_cluster:format_error(Error)})
    end.

one_of(Option, Text, Words) ->
    case [Word || Word <- Words, atom_to_list(Word) =:= Text] of
        [Word] -> Word;
        [] -> throw({usage, [Option, ": expected one of ", lists:join(", ", [hd(string:split(atom_to_list(W), "_us")) || W <- Words])]})
    end.

%% Returns the times as a matrix. Throws `failed' if some nodes have no measured path to the others, unless these may be dropped.
-spec matrix(placement_probe:measured(), placement_probe:mode(), placement_measured:statistic(), map()) -> placement_matrix:matrix().
matrix(Measured, Mode, Statistic, #{drop_gaps := true}) ->
    case placement_measured:joined_matrix(Measured, Mode, Statistic) of
        {ok, Matrix, Dropped} ->
            _ = [beamway_cli_output:complain("left out, no measured pair joins it to the others: ~ts", [Node]) || Node <- Dropped],
            Matrix;
        {error, Error} -> throw({failed, placement_matrix:format_error(Error)})
    end;
matrix(Measured, Mode, Statistic, _) ->
    done(io_lib:format("~s times", [Mode]), placement_matrix, placement_measured:matrix(Measured, Mode, Statistic)).

%% ---- showing ----

text(#{tree := Tree} = Known) ->
    [fit_text(Known), vertex_text(placement_tree:packed(Tree), "", names(Tree))].

names(Tree) ->
    Nodes = placement_tree:nodes(Tree),
    maps:from_list(lists:zip(Nodes, placement_export:short_names(Nodes))).

fit_text(#{explained := Explained, advice := Advice, mode := Mode, statistic := Statistic, tree := Tree}) ->
    [io_lib:format("~b nodes, ~s times (~s of the batches); the tree explains ~b % of their variance.~n~ts~n~n",
                   [placement_tree:size(Tree), Mode, hd(string:split(atom_to_list(Statistic), "_us")), round(100 * Explained), Advice])];
fit_text(#{tree := Tree}) ->
    io_lib:format("~b nodes in ~b levels~n~n", [placement_tree:size(Tree), placement_tree:depth(Tree)]).

vertex_text({leaf, Node}, Indent, Names) -> [Indent, maps:get(Node, Names), "\n"];
vertex_text({group, Name, Labels, Children} = Group, Indent, Names) ->
    {Leaves, Groups} = lists:partition(fun(Child) -> element(1, Child) =:= leaf end, Children),
    [Indent, io_lib:format("~ts: ~b nodes~ts~n", [placement_export:name(Name), length(placement_tree:members(Group)), label_text(Labels)]),
     [vertex_text(Child, ["  " | Indent], Names) || Child <- Groups],
     [["  ", Indent, placement_hostlist:compress([maps:get(Node, Names) || {leaf, Node} <- Leaves]), "\n"] || Leaves =/= []]].

label_text(#{median_us := Median, max_us := Most}) ->
    [", median ", placement_export:micros(Median), ", diameter ", placement_export:micros(Most)];
label_text(#{}) -> "".

json(#{explained := Explained, verdict := Verdict, advice := Advice, slow := Slow, mode := Mode, statistic := Statistic, method := Method, tree := Tree}) ->
    (placement_export:to_json(Tree))#{explained => Explained, verdict => Verdict, advice => unicode:characters_to_binary(Advice), mode => Mode,
                                      statistic => Statistic, method => unicode:characters_to_binary(io_lib:format("~0p", [Method])),
                                      slow => [#{node => atom_to_binary(Node), factor => Factor} || {Node, Factor} <- Slow]};
json(#{tree := Tree}) -> placement_export:to_json(Tree).

%% ---- drawing ----

drawings(#{tree := Tree} = Known, Options) ->
    _ = [draw(File, placement_draw:dendrogram(Tree, #{})) || #{dendrogram := File} <- [Options]],
    _ = [draw(File, heat_map(Known, Options)) || #{heat_map := File} <- [Options]],
    ok.

heat_map(#{matrix := Matrix, tree := Tree} = Known, Options) ->
    Sorted = lists:sort(placement_tree:nodes(Tree)),
    Title = io_lib:format("Round-trip times between ~b nodes, ~s", [length(Sorted), maps:get(mode, Known)]),
    Drawing = case {Options, maps:get(order, Options)} of
                  {#{breaks := true}, _} -> #{order => Sorted, breaks => placement_hostlist:breaks(placement_export:short_names(Sorted))};
                  {_, "name"} -> #{order => Sorted};
                  {_, "tree"} -> #{order => placement_tree:leaf_order(Tree)};
                  {_, Other} -> throw({usage, ["--order ", Other, ": expected tree or name"]})
              end,
    placement_draw:heat_map(Matrix, Drawing#{title => Title});
heat_map(_, _) ->
    throw({failed, "a heat map shows measured times, and this file holds none"}).

%% @doc Draws the tree that was measured between cores, and next to it the one reported by hwloc.
-spec draw_beside(file:filename(), placement_probe:measured()) -> ok.
draw_beside(File, #{nodes := Nodes} = Measured) ->
    Matrix = matrix(Measured, placement_measured:best_mode(Measured), median_us, #{}),
    #{tree := Tree} = placement_cluster:cluster(Matrix),
    draw(File, placement_draw:beside([{"measured", Tree}, {"hwloc", hwloc(Nodes)}])).

hwloc(Nodes) ->
    case os:find_executable("lstopo-no-graphics") of
        false -> throw({failed, "the drawing needs lstopo-no-graphics (Debian: apt-get install hwloc-nox)"});
        Program ->
            case placement_program:run(Program, ["--of", "xml", "-"], ?LSTOPO_MS) of
                {ok, Xml} -> of_xml(Xml, Nodes);
                {error, Reason} -> throw({failed, io_lib:format("lstopo-no-graphics: ~0tP", [Reason, 10])})
            end
    end.

%% The leaves of this tree are named after processing units, like the nodes.
of_xml(Xml, Nodes) ->
    Hosts = done("lstopo-no-graphics", placement_hwloc, placement_hwloc:from_xml(Xml)),
    Known = maps:from_list([{hd(string:split(atom_to_list(Node), "_")), Node} || Node <- Nodes]),
    {ok, Tree} = placement_tree:from_vertex(vertex(Hosts, Known)),
    Tree.

vertex({host, Name}, Known) -> {leaf, maps:get(Name, Known, list_to_atom(Name))};
vertex({group, Name, Children}, Known) -> {group, Name, #{}, [vertex(Child, Known) || Child <- Children]}.

-spec draw(file:filename(), unicode:chardata()) -> ok.
draw(File, Svg) ->
    case filename:extension(File) of
        ".svg" -> write(File, Svg);
        ".png" -> done(File, placement_draw, placement_draw:to_png(Svg, File));
        _ -> throw({usage, ["drawings are .svg or .png files, not ", File]})
    end.

%% @doc Writes a file atomically.
-spec write(file:filename(), unicode:chardata()) -> ok.
write(File, Text) ->
    New = File ++ ".new",
    ok = done("cannot write " ++ File, file, file:write_file(New, unicode:characters_to_binary(Text))),
    done("cannot write " ++ File, file, file:rename(New, File)).

-ifdef(TEST).

nothing_to_draw_test() ->
    Apart = #{nodes => [a, b], pairs => #{}, failed => [{quiet, a, b, timeout}], messages => 100, seconds => 1.5},
    ?assertThrow({failed, _}, draw_beside("never.svg", Apart)).
-endif.
