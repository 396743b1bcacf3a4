%% SPDX-License-Identifier: Apache-2.0
%% @doc Draws results with gnuplot: either as curves over sizes, with a line for each contender and error bars for the middle half of the repeats, or
%% as a bar chart.
-module(beamway_bench_chart).

-export([draw/4, curves/5, bars/4, plot/2, by_default/3]).

-define(GNUPLOT_MS, 30000).

%% @doc Draws the results of these keys as SVG or PNG, depending on the file's extension.
-spec draw(file:filename(), unicode:chardata(), [{Size :: non_neg_integer(), beamway_bench_run:key()}],
           beamway_bench_report:result()) -> ok | {error, unicode:chardata()}.
draw(File, Title, Points, Result) -> drawn(File, 500, fun(Terminal) -> script(File, Terminal, Title, lines(Points, Result)) end).

%% @doc Draws curves over counts, with a panel for each list of keys and two panels per row.
-spec curves(file:filename(), unicode:chardata(), XLabel :: string(), [{Panel :: unicode:chardata(), [{pos_integer(), beamway_bench_run:key()}]}, ...],
             beamway_bench_report:result()) -> ok | {error, unicode:chardata()}.
curves(File, Title, XLabel, Panels, Result) ->
    Rows = (length(Panels) + 1) div 2,
    drawn(File, 250 * Rows,
          fun(Terminal) ->
                  ["set terminal ", Terminal, "\nset output ", quoted(File), "\nset multiplot layout ", integer_to_list(Rows), ",2 title ", quoted(Title), "\n",
                   "set logscale xy\nset grid\nset key top left\nset xlabel ", quoted(XLabel), "\nset offsets graph 0.05, graph 0.05\n",
                   [[data(Drawn), "set title ", quoted(Panel), "\n", plotted(Drawn)] || {Panel, Points} <- Panels, Drawn <- [lines(Points, Result)]],
                   "unset multiplot\n"]
          end).

%% @doc Draws two bars for each contender on a logarithmic scale, with a panel for each pair of keys.
-spec bars(file:filename(), unicode:chardata(), [{Panel :: string(), Lower :: beamway_bench_run:key(), Upper :: beamway_bench_run:key()}, ...],
           beamway_bench_report:result()) -> ok | {error, unicode:chardata()}.
bars(File, Title, Panels, Result) -> drawn(File, max(500, 250 * length(Panels)), fun(Terminal) -> bars_script(File, Terminal, Title, Panels, Result) end).

drawn(File, Height, Script) ->
    case terminal(filename:extension(File), integer_to_list(Height)) of
        unknown -> {error, ["--chart ", File, ": expected a name that ends with .svg or .png"]};
        Terminal -> plot(File, Script(Terminal))
    end.

bars_script(File, Terminal, Title, Panels, Result) ->
    #{figures := Figures} = beamway_bench_report:to_json(Result),
    Median = fun(Name, Key) -> [M || #{contender := N, key := K, median := M} <- Figures, N =:= Name, K =:= Key] end,
    Numbered = lists:zip(lists:seq(1, length(Panels)), Panels),
    [[io_lib:format("$panel~b << EOD\n", [Number]),
      [io_lib:format("\"~ts\" ~f ~f\n", [spoken(Name), float(Low), float(High)])
       || #{contender := Name, key := K, median := High} <- Figures, K =:= Upper, Low <- Median(Name, Lower)], "EOD\n"]
     || {Number, {_, Lower, Upper}} <- Numbered]
        ++ ["set terminal ", Terminal, "\nset output ", quoted(File), "\nset multiplot layout ", integer_to_list(length(Panels)), ",1 title ", quoted(Title), "\n",
            "set style data histograms\nset style fill solid 0.7\nset boxwidth 0.9\nset logscale y\nset yrange [10:*]\nset grid y\nset key top right\n",
            [io_lib:format("set title ~ts\nplot $panel~b using 2:xtic(1) title 'p50', '' using 3 title 'p99'\n", [quoted(Panel), Number])
             || {Number, {Panel, _, _}} <- Numbered],
            "unset multiplot\n"].

spoken(Name) -> string:replace(atom_to_list(Name), "_", " ", all).

%% @doc Draws a chart into bench/results even if the user did not request one. A failure is reported but does not make the benchmark fail.
-spec by_default(Name :: string(), beamway_bench:speed(), fun((file:filename()) -> ok | {error, unicode:chardata()})) -> ok.
by_default(Name, Speed, Draw) ->
    Ending = case Speed of full -> ".svg"; quick -> "-quick.svg" end,
    File = filename:join([beamway_bench_nodes:root(), "bench", "results", Name ++ Ending]),
    case Draw(File) of
        ok -> beamway_bench:note("drawn ~ts", [File]);
        {error, Why} -> beamway_bench:note("~ts", [Why])
    end.

%% @doc Runs gnuplot with a script that writes this file.
-spec plot(file:filename(), Script :: unicode:chardata()) -> ok | {error, unicode:chardata()}.
plot(File, Script) ->
    case os:find_executable("gnuplot") of
        false -> {error, "no chart: gnuplot is not installed (Debian package gnuplot-nox)"};
        Gnuplot -> run(Gnuplot, File, Script)
    end.

terminal(".svg", Height) -> ["svg size 800,", Height, " enhanced background 'white'"];
terminal(".png", Height) -> ["pngcairo size 800,", Height];
terminal(_, _) -> unknown.

%% Uses the stored form of the result, so that the same chart can be drawn from the file alone.
lines(Points, Result) ->
    #{figures := Figures} = beamway_bench_report:to_json(Result),
    Names = lists:usort([Name || #{contender := Name} <- Figures]),
    [Line || Name <- Names,
             {_, [_ | _]} = Line <- [{Name, [{Size, Samples} || {Size, Key} <- Points, #{contender := N, key := K, samples := Samples} <- Figures,
                                                                N =:= Name, K =:= Key]}]].

script(File, Terminal, Title, Lines) ->
    [data(Lines), "set terminal ", Terminal, "\nset output ", quoted(File), "\nset title ", quoted(Title), "\n",
     "set logscale xy\nset format x '%.0s%cB'\nset xlabel 'bytes a call'\nset ylabel 'calls a second'\n",
     "set grid\nset key bottom left\nset offsets graph 0.05, graph 0.05\n", plotted(Lines)].

data(Lines) ->
    [["$", atom_to_list(Name), " << EOD\n", [point(Size, Samples) || {Size, Samples} <- Rows], "EOD\n"] || {Name, Rows} <- Lines].

plotted(Lines) ->
    ["plot ", lists:join(", ", [["$", atom_to_list(Name), " using 1:2:3:4 with yerrorlines title ", quoted(spoken(Name))] || {Name, _} <- Lines]), "\n"].

point(Size, Samples) ->
    io_lib:format("~b ~f ~f ~f\n", [max(1, Size) | [float(beamway_bench_stats:percentile(P, Samples)) || P <- [50, 25, 75]]]).

%% Inside single quotes, gnuplot represents a quote as two quotes.
quoted(Text) -> ["'", string:replace(Text, "'", "''", all), "'"].

run(Gnuplot, File, Script) ->
    ScriptFile = File ++ ".gnuplot",
    case {filelib:ensure_dir(File), file:write_file(ScriptFile, unicode:characters_to_binary(Script))} of
        {ok, ok} ->
            Outcome = beamway_bench_tools:run(Gnuplot, [ScriptFile], ?GNUPLOT_MS),
            ok = file:delete(ScriptFile),
            case Outcome of
                {0, _} -> ok;
                {_, Lines} -> {error, ["gnuplot failed: " | Lines]}
            end;
        {_, {error, Reason}} -> {error, ["cannot write ", ScriptFile, ": ", file:format_error(Reason)]}
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

result() ->
    Metric = #{unit => <<"calls/s">>, better => higher, contender => beamway, baselines => [tcp]},
    Keys = [<<"a">>, <<"b">>],
    Samples = maps:from_list([{{Name, Key}, #{forward => [Base, 2 * Base]}}
                              || {Name, Base} <- [{tcp, 100}, {beamway, 300}], Key <- Keys]),
    beamway_bench_report:result(<<"x">>, [Metric#{name => Key, key => Key} || Key <- Keys], Samples, #{}).

a_real_chart_test() ->
    case os:find_executable("gnuplot") of
        false -> ?assertMatch({error, _}, draw("/tmp/x.svg", "t", [{16, <<"a">>}], result()));
        _ ->
            "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
            File = filename:join(Folder, "chart.svg"),
            ?assertEqual(ok, draw(File, "it's", [{16, <<"a">>}, {1024, <<"b">>}], result())),
            {ok, Svg} = file:read_file(File),
            ?assertNotEqual(nomatch, binary:match(Svg, <<"beamway">>)),
            ?assertEqual({ok, ["chart.svg"]}, file:list_dir(Folder)),
            ok = file:del_dir_r(Folder)
    end.

curves_test() ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    File = filename:join(Folder, "curves.svg"),
    Draw = fun() -> curves(File, "t", "links", [{"one", [{100, <<"a">>}, {1000, <<"b">>}]}, {["tw", "o"], [{100, <<"b">>}]}, {"three", [{100, <<"a">>}]}], result()) end,
    case os:find_executable("gnuplot") of
        false -> ?assertMatch({error, _}, Draw());
        _ ->
            ?assertEqual(ok, Draw()),
            {ok, Svg} = file:read_file(File),
            [?assertNotEqual(nomatch, binary:match(Svg, Text)) || Text <- [<<"beamway">>, <<"three">>, <<"viewBox=\"0 0 800 500\"">>]]
    end,
    ok = file:del_dir_r(Folder).

bars_test() ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    File = filename:join(Folder, "bars.svg"),
    case os:find_executable("gnuplot") of
        false -> ?assertMatch({error, _}, bars(File, "t", [{"one", <<"a">>, <<"b">>}], result()));
        _ ->
            Two = [{"one", <<"a">>, <<"b">>}, {"two", <<"b">>, <<"a">>}],
            [begin
                 ?assertEqual(ok, bars(File, "t", Panels, result())),
                 {ok, Svg} = file:read_file(File),
                 ?assertNotEqual(nomatch, binary:match(Svg, <<"p99">>)),
                 ?assertNotEqual(nomatch, binary:match(Svg, Box))
             end || {Panels, Box} <- [{Two, <<"viewBox=\"0 0 800 500\"">>}, {Two ++ Two, <<"viewBox=\"0 0 800 1000\"">>}]]
    end,
    ok = file:del_dir_r(Folder).

bad_name_test() ->
    ?assertMatch({error, _}, draw("/tmp/x.pdf", "t", [], result())).
-endif.
