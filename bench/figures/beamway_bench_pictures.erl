%% SPDX-License-Identifier: Apache-2.0
%% @doc Draws the pages' pictures from stored results. Each picture contains the data that it shows,
%% so that a check can compare them with the results.
-module(beamway_bench_pictures).

-export([all/0, outdated/1, draw/1]).

-type picture() :: {file:filename(), Data :: unicode:chardata(), Svg :: unicode:chardata()}.
%% The data are embedded in the picture as a comment.

-define(AGAIN, beamway_bench_published:again()).

%% @doc Returns what each picture on the pages shows, and how it is drawn.
-spec all() -> [picture()].
all() -> charts() ++ ants().

%% @doc Describes the picture files that no longer match the stored results.
-spec outdated([picture()]) -> [unicode:chardata()].
outdated(Pictures) -> [[File, " is not the one of bench/results. Run: make figures"] || {File, Data, Svg} <- Pictures, file:read_file(File) =/= {ok, whole(Data, Svg)}].

whole(Data, Svg) -> unicode:characters_to_binary([Svg, "<!-- of bench/results:\n", Data, "-->\n"]).

%% @doc Writes a picture.
-spec draw(picture()) -> ok.
draw({File, Data, Svg}) ->
    ok = beamway_bench_store:write_text(File, whole(Data, Svg)),
    io:format("written: ~ts~n", [File]).

%% Returns the pictures for the guide to placement.
ants() ->
    [{picture_file(lists:concat(["mlaco-", Kind])), Data, Svg}
     || Kind <- [attributes, distances], {_, #{<<"figures">> := Figures}} <- [beamway_bench_published:shown(lists:concat(["placement-", Kind]))],
        {Data, Svg} <- [beamway_bench_ants:picture(Kind, Figures)]].

picture_file(Name) -> beamway_bench_checkout:path("docs/guide/pictures/" ++ Name ++ ".svg").

%% Returns the pages' charts, which plot the ratios from the tables and their intervals. To the right of 1, Beamway is better.
charts() -> [chart(Name, Title, Series, Rows) || {chart, Name, Title, Series, Rows} <- beamway_bench_published:config()].

chart(Name, Title, Series, Rows) ->
    Points = [{labelled(Label, Stored), points(Stored, Metrics, Series)} || {Result, Metrics, Label} <- Rows, Stored <- [beamway_bench_published:shown(Result)]],
    Shown = [One || {Rival, _} = One <- Series, lists:any(fun({_, Dots}) -> lists:keymember(Rival, 1, Dots) end, Points)],
    Drawn = [{Label, [{place(Rival, Shown), Ratio, Low, High} || {Rival, Ratio, Low, High} <- Dots]} || {Label, Dots} <- Points],
    {picture_file(Name), [Title, "\n", [line(Row) || Row <- Drawn]], beamway_bench_dots:svg(Title, [Legend || {_, Legend} <- Shown], Drawn)}.

labelled(Label, {hidden, _}) -> Label ++ ": " ++ ?AGAIN;
labelled(Label, {old, _}) -> Label ++ " (old)";
labelled(Label, {fresh, _}) -> Label.

%% Returns a point for each rival that has been measured.
points({hidden, _}, _, _) -> [];
points({_, #{<<"metrics">> := Entries}}, Metrics, Series) ->
    [list_to_tuple([Rival | oriented(Better, Ratio, bounds(Entry))])
     || {Rival, _} <- Series, #{<<"name">> := Name, <<"baseline_name">> := Baseline, <<"ratio">> := Ratio, <<"better">> := Better} = Entry <- Entries,
        Baseline =:= list_to_binary(Rival), lists:member(binary_to_list(Name), Metrics), is_number(Ratio), Ratio > 0].

bounds(#{<<"interval">> := [Low, High]}) -> [Low, High];
bounds(#{<<"range">> := [Low, High]}) -> [Low, High];
bounds(#{<<"ratio">> := Ratio}) -> [Ratio, Ratio].

oriented(<<"higher">>, Ratio, [Low, High]) -> [float(N) || N <- [Ratio, Low, High]];
oriented(<<"lower">>, Ratio, [Low, High]) -> [1 / N || N <- [Ratio, High, Low]].

place(Rival, [{Rival, _} | _]) -> 1;
place(Rival, [_ | Others]) -> 1 + place(Rival, Others).

line({Label, Dots}) -> [Label, [io_lib:format(" ~b ~.3f ~.3f ~.3f", tuple_to_list(Dot)) || Dot <- Dots], "\n"].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

a_picture_of_other_data_is_outdated_test() ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    File = filename:join(Folder, "a.svg"),
    ?assertMatch([_], outdated([{File, "a 1\n", "<svg/>"}])),
    draw({File, "a 1\n", "<svg/>"}),
    [?assertEqual(Count, length(outdated([{File, Data, Svg}]))) || {Count, Data, Svg} <- [{0, "a 1\n", "<svg/>"}, {1, "a 2\n", "<svg/>"}, {1, "a 1\n", "<g/>"}]],
    ok = file:del_dir_r(Folder),
    %% Three lines of five points, each with its name.
    [?assertEqual(3 * 6, length(string:lexemes(text(Data), "\n"))) || {_, Data, _} <- ants()].

text(Chars) -> unicode:characters_to_list(Chars).

a_chart_has_the_ratios_of_the_tables_test() ->
    Entry = #{<<"name">> => <<"m">>, <<"baseline_name">> => <<"tcp">>, <<"better">> => <<"lower">>, <<"ratio">> => 0.5, <<"interval">> => [0.25, 1.0]},
    Stored = #{<<"metrics">> => [Entry, Entry#{<<"baseline_name">> := <<"unix">>, <<"better">> := <<"higher">>, <<"interval">> := null, <<"range">> => [0.25, 1.0]}, Entry#{<<"name">> := <<"n">>}]},
    Series = [{"unix", "a socket"}, {"tcp", "stock"}],
    ?assertEqual([{"unix", 0.5, 0.25, 1.0}, {"tcp", 2.0, 1.0, 4.0}], points({fresh, Stored}, ["m"], Series)),
    ?assertEqual([], points({hidden, "why"}, ["m"], Series)),
    ?assertEqual([2, 1], [place(Rival, Series) || Rival <- ["tcp", "unix"]]),
    ?assertEqual(["l", "l (old)", "l: " ++ ?AGAIN], [labelled("l", Shown) || Shown <- [{fresh, Stored}, {old, Stored}, {hidden, "why"}]]),
    ?assertEqual("l 1 2.000 1.000 4.000\n", text(line({"l", [{1, 2.0, 1.0, 4.0}]}))).

every_chart_is_of_known_results_test_() -> {timeout, 60, fun every_chart_is_of_known_results/0}.

every_chart_is_of_known_results() ->
    Named = [{Name, Metric} || {chart, _, _, _, Rows} <- beamway_bench_published:config(), {Name, Metrics, _} <- Rows, Metric <- Metrics],
    ?assertEqual([], lists:usort([Name || {Name, _} <- Named]) -- [Name || {Name, _} <- beamway_bench_published:results()]),
    ?assertEqual([], [{Name, Metric} || {Name, Metric} <- Named, {_, #{<<"metrics">> := Entries}} <- [beamway_bench_published:shown(Name)],
                                        not lists:any(fun(#{<<"name">> := N}) -> N =:= list_to_binary(Metric) end, Entries)]).
-endif.
