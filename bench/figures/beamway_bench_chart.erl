%% SPDX-License-Identifier: Apache-2.0
%% @doc Draws the results of a run as curves over sizes, with a line for each contender and bars for the middle half of the repeats.
-module(beamway_bench_chart).

-export([draw/4]).

%% @doc Draws the results of these keys as SVG or PNG, depending on the file's extension.
-spec draw(file:filename(), unicode:chardata(), [{Size :: non_neg_integer(), beamway_bench_run:key()}],
           beamway_bench_report:result()) -> ok | {error, unicode:chardata()}.
draw(File, Title, Points, Result) ->
    _ = filelib:ensure_dir(File),
    case filename:extension(File) of
        ".svg" -> written(File, file:write_file(File, unicode:characters_to_binary(svg(Title, Points, Result))));
        ".png" -> converted(placement_draw:to_png(svg(Title, Points, Result), File));
        _ -> {error, ["--chart ", File, ": expected a name that ends with .svg or .png"]}
    end.

written(_, ok) -> ok;
written(File, {error, Reason}) -> {error, ["cannot write ", File, ": ", file:format_error(Reason)]}.

converted(ok) -> ok;
converted({error, Error}) -> {error, placement_draw:format_error(Error)}.

svg(Title, Points, Result) ->
    Lines = lines(Points, Result),
    Sizes = [max(1, Size) || {Size, _} <- Points],
    beamway_bench_panels:draw(
      #{title => Title, legend => [string:replace(atom_to_list(Name), "_", " ", all) || {Name, _} <- Lines], spread => {bars, "middle half of the repeats"}, y => log, height => 420,
        x => #{scale => log, from => lists:min(Sizes) / 1.5, to => lists:max(Sizes) * 1.5, unit => "a call", ticks => [{max(1, Size), beamway_bench_text:size_words(Size)} || {Size, _} <- Points]},
        panels => [#{title => "calls a second", lines => [[point(Size, Samples) || {Size, Samples} <- Rows] || {_, Rows} <- Lines]}]}).

%% Uses the stored form of the result, so that the same chart can be drawn from the file alone.
lines(Points, Result) ->
    #{figures := Figures} = beamway_bench_report:to_json(Result),
    Names = lists:usort([Name || #{contender := Name} <- Figures]),
    [Line || Name <- Names,
             {_, [_ | _]} = Line <- [{Name, [{Size, Samples} || {Size, Key} <- Points, #{contender := N, key := K, samples := Samples} <- Figures,
                                                                N =:= Name, K =:= Key]}]].

point(Size, Samples) -> list_to_tuple([max(1, Size) | [beamway_bench_stats:percentile(P, Samples) || P <- [25, 50, 75]]]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

result() ->
    Metric = #{unit => <<"calls/s">>, better => higher, contender => beamway, baselines => [tcp]},
    Keys = [<<"a">>, <<"b">>],
    Samples = maps:from_list([{{Name, Key}, #{forward => [Base, 2 * Base]}}
                              || {Name, Base} <- [{tcp, 100}, {beamway, 300}], Key <- Keys]),
    beamway_bench_report:result(<<"x">>, [Metric#{name => Key, key => Key} || Key <- Keys], Samples, #{}).

chart_test() ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    [Svg, Png] = [filename:join(Folder, "chart" ++ Kind) || Kind <- [".svg", ".png"]],
    Draw = fun(File) -> draw(File, "it's", [{16, <<"a">>}, {1024, <<"b">>}], result()) end,
    ?assertEqual(ok, Draw(Svg)),
    {ok, Drawn} = file:read_file(Svg),
    [?assertNotEqual(nomatch, binary:match(Drawn, Part)) || Part <- [<<"beamway">>, <<"1 KB a call">>]],
    ?assertEqual(2 * 2, length(binary:matches(Drawn, <<"<circle">>))),
    case os:find_executable("rsvg-convert") of
        false -> ?assertMatch({error, _}, Draw(Png));
        _ -> ?assertEqual({ok, ok}, {Draw(Png), element(1, file:read_file(Png))})
    end,
    ok = file:del_dir_r(Folder).

bad_name_test() ->
    ?assertMatch({error, _}, draw("/tmp/x.pdf", "t", [{16, <<"a">>}], result())).
-endif.
