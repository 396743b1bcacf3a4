%% SPDX-License-Identifier: Apache-2.0
%% @doc The measured times, for the Topology page and for download as files. All functions are pure, except for the one that draws a PNG.
-module(beamway_console_topology).

-export([view/2, export/3, formats/0, choices/1]).
-export_type([choices/0]).

-type choices() :: #{mode := placement_probe:mode() | best, statistic := placement_measured:statistic(), method := placement_cluster:method()}.

%% @doc Parses the choices in a request's query, with defaults for those that are missing.
-spec choices([{binary(), binary()}]) -> {ok, choices()} | {error, unicode:chardata()}.
choices(Pairs) ->
    try
        {ok, #{mode => one_of(<<"mode">>, Pairs, [{<<"best">>, best}, {<<"quiet">>, quiet}, {<<"loaded">>, loaded}]),
               statistic => one_of(<<"statistic">>, Pairs, [{<<"median">>, median_us}, {<<"min">>, min_us}, {<<"p90">>, p90_us}]),
               method => method(proplists:get_value(<<"alpha">>, Pairs, <<>>))}}
    catch
        throw:Text -> {error, Text}
    end.

one_of(Key, Pairs, [{First, _} | _] = Known) ->
    Given = proplists:get_value(Key, Pairs, First),
    case lists:keyfind(Given, 1, Known) of
        {_, Value} -> Value;
        false -> throw([Key, " is '", Given, "'; expected ", lists:join(", ", [Word || {Word, _} <- Known])])
    end.

method(<<>>) -> mdl;
method(Text) ->
    case string:to_float(case binary:match(Text, <<".">>) of nomatch -> <<Text/binary, ".0">>; _ -> Text end) of
        {Alpha, <<>>} when Alpha >= 1, Alpha =< 100 -> {alpha, Alpha};
        _ -> throw(["alpha is '", Text, "'; expected a number from 1 to 100"])
    end.

%% @doc Returns everything that the page draws: times, tree, fit.
-spec view(placement_probe:measured(), choices()) -> {ok, map()} | {error, unicode:chardata()}.
view(Measured, Choices) ->
    case looked_at(Measured, Choices) of
        {ok, #{matrix := Matrix, mode := Mode, dropped := Dropped, tree := Tree, explained := Explained, verdict := Verdict, advice := Advice, slow := Slow}} ->
            Nodes = placement_matrix:nodes(Matrix),
            Place = maps:from_list(lists:zip(Nodes, lists:seq(0, length(Nodes) - 1))),
            {ok, #{nodes => Nodes, names => [unicode:characters_to_binary(Name) || Name <- placement_export:short_names(Nodes)],
                   rows => [[case Time of undefined -> null; _ -> Time end || Time <- tuple_to_list(Row)] || Row <- tuple_to_list(placement_matrix:rows(Matrix))],
                   by_tree => [maps:get(Node, Place) || Node <- placement_tree:leaf_order(Tree)],
                   mode => Mode, modes => lists:usort([M || {M, _, _} <- maps:keys(maps:get(pairs, Measured))]),
                   tree => maps:get(root, placement_export:to_json(Tree)), explained => Explained, verdict => Verdict,
                   advice => unicode:characters_to_binary(Advice), slow => [#{node => Node, factor => Factor} || {Node, Factor} <- Slow],
                   dropped => Dropped, seconds => maps:get(seconds, Measured), messages => maps:get(messages, Measured),
                   failed => length(maps:get(failed, Measured))}};
        {error, Why} -> {error, Why}
    end.

looked_at(#{nodes := Nodes} = Measured, #{mode := Wanted, statistic := Statistic, method := Method}) ->
    Mode = case Wanted of best -> placement_measured:best_mode(Measured); _ -> Wanted end,
    case placement_measured:joined_matrix(Measured, Mode, Statistic) of
        {ok, Matrix, Dropped} when length(Dropped) + 1 < length(Nodes) ->
            {ok, Result} = placement_cluster:cluster(Matrix, Method),
            {ok, Result#{matrix => Matrix, mode => Mode, dropped => Dropped}};
        %% For a single node there is nothing to show.
        {ok, _, _} -> {error, io_lib:format("no ~s times were measured", [Mode])};
        {error, Error} -> {error, placement_matrix:format_error(Error)}
    end.

%% @doc Returns the names of the files that can be downloaded, with their types and contents.
-spec formats() -> [{Name :: binary(), Type :: binary(), What :: binary()}].
formats() ->
    [{<<"times.json">>, <<"application/json">>, <<"the measured times, for beamway topology show">>},
     {<<"tree.json">>, <<"application/json">>, <<"the tree">>},
     {<<"tree.term">>, <<"text/plain">>, <<"the report's network term">>},
     {<<"tree.dot">>, <<"text/vnd.graphviz">>, <<"graphviz">>},
     {<<"tree.nwk">>, <<"text/plain">>, <<"Newick">>},
     {<<"topology.conf">>, <<"text/plain">>, <<"Slurm">>},
     {<<"tree.paths">>, <<"text/plain">>, <<"a path for each node">>},
     {<<"heat-map.svg">>, <<"image/svg+xml">>, <<"the heat map">>},
     {<<"dendrogram.svg">>, <<"image/svg+xml">>, <<"the dendrogram">>},
     {<<"heat-map.png">>, <<"image/png">>, <<"the heat map as pixels">>},
     {<<"dendrogram.png">>, <<"image/png">>, <<"the dendrogram as pixels">>}].

%% @doc Returns the content of one of these files.
-spec export(Name :: binary(), placement_probe:measured(), choices()) -> {ok, Type :: binary(), iodata()} | {error, unicode:chardata()}.
export(Name, Measured, Choices) ->
    case {lists:keyfind(Name, 1, formats()), looked_at(Measured, Choices)} of
        {false, _} -> {error, ["no file is called ", Name]};
        {_, {error, Why}} -> {error, Why};
        {{_, Type, _}, {ok, Known}} ->
            case file(Name, Measured, Known) of
                {error, Why} -> {error, Why};
                Text -> {ok, Type, Text}
            end
    end.

file(<<"times.json">>, Measured, _) -> jiffy:encode(placement_measured:to_json(Measured));
file(<<"tree.json">>, _, #{tree := Tree}) -> jiffy:encode(placement_export:to_json(Tree), [pretty]);
file(<<"tree.term">>, _, Known) -> text(term, Known);
file(<<"tree.dot">>, _, Known) -> text(dot, Known);
file(<<"tree.nwk">>, _, Known) -> text(newick, Known);
file(<<"topology.conf">>, _, Known) -> text(conf, Known);
file(<<"tree.paths">>, _, Known) -> text(paths, Known);
file(<<"heat-map.svg">>, _, Known) -> unicode:characters_to_binary(heat_map(Known));
file(<<"dendrogram.svg">>, _, #{tree := Tree}) -> unicode:characters_to_binary(placement_draw:dendrogram(Tree, #{}));
file(<<"heat-map.png">>, _, Known) -> png(heat_map(Known));
file(<<"dendrogram.png">>, _, #{tree := Tree}) -> png(placement_draw:dendrogram(Tree, #{})).

text(Format, #{tree := Tree}) -> unicode:characters_to_binary(placement_export:text(Format, Tree)).

heat_map(#{matrix := Matrix, tree := Tree, mode := Mode}) ->
    placement_draw:heat_map(Matrix, #{order => placement_tree:leaf_order(Tree), title => io_lib:format("Round-trip times between nodes, ~s", [Mode])}).

png(Svg) ->
    beamway_console_folder:with(fun(Folder) ->
        File = filename:join(Folder, "drawing.png"),
        case placement_draw:to_png(Svg, File) of
            ok ->
                {ok, Bytes} = file:read_file(File),
                Bytes;
            {error, Error} -> {error, placement_draw:format_error(Error)}
        end
    end).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

measured() ->
    Nodes = ['a@h', 'b@h', 'c@h', 'd@h'],
    Far = fun(X, Y) -> case (X < 'c@h') =:= (Y < 'c@h') of true -> 50.0; false -> 500.0 end end,
    #{nodes => Nodes, failed => [], messages => 100, seconds => 2.0,
      pairs => maps:from_list([{{quiet, X, Y}, #{min_us => Far(X, Y), median_us => 1.1 * Far(X, Y), p90_us => 2 * Far(X, Y), batches => 20}} || X <- Nodes, Y <- Nodes, X < Y])}.

choices_test_() ->
    [?_assertEqual({ok, #{mode => best, statistic => median_us, method => mdl}}, choices([])),
     ?_assertMatch({ok, #{mode := quiet, statistic := p90_us, method := {alpha, 1.6}}}, choices([{<<"mode">>, <<"quiet">>}, {<<"statistic">>, <<"p90">>}, {<<"alpha">>, <<"1.6">>}])),
     ?_assertMatch({ok, #{method := {alpha, 2.0}}}, choices([{<<"alpha">>, <<"2">>}])),
     ?_assertMatch({error, _}, choices([{<<"alpha">>, <<"0.5">>}])), ?_assertMatch({error, _}, choices([{<<"alpha">>, <<"x">>}])),
     ?_assertMatch({error, _}, choices([{<<"mode">>, <<"busy">>}]))].

view_test() ->
    {ok, Choices} = choices([]),
    {ok, View} = view(measured(), Choices),
    #{<<"nodes">> := [_, _, _, _], <<"rows">> := [[_, Ab, Ac, _] | _], <<"verdict">> := <<"good">>, <<"tree">> := #{<<"children">> := [_, _]}, <<"by_tree">> := Order} =
        jiffy:decode(jiffy:encode(View), [return_maps]),
    ?assert(Ac > 5 * Ab),
    ?assertEqual([0, 1, 2, 3], lists:sort(Order)),
    ?assertMatch({error, _}, view(measured(), Choices#{mode := loaded})).

export_test_() ->
    {ok, Choices} = choices([]),
    [{binary_to_list(Name), fun() -> {ok, Type, Text} = export(Name, measured(), Choices), ?assert(iolist_size(Text) > 20) end}
     || {Name, Type, _} <- formats(), filename:extension(Name) =/= <<".png">>]
        ++ [?_assertMatch({error, _}, export(<<"tree.exe">>, measured(), Choices))].
-endif.
