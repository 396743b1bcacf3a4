%% SPDX-License-Identifier: Apache-2.0
%% @doc Draws results with gnuplot as curves over sizes, with a line for each contender and error bars for the middle half of the repeats.
-module(beamway_bench_chart).

-export([draw/4, plot/2]).

-define(GNUPLOT_MS, 30000).

%% @doc Draws the results of these keys as SVG or PNG, depending on the file's extension.
-spec draw(file:filename(), unicode:chardata(), [{Size :: non_neg_integer(), beamway_bench_run:key()}],
           beamway_bench_report:result()) -> ok | {error, unicode:chardata()}.
draw(File, Title, Points, Result) ->
    case terminal(filename:extension(File)) of
        unknown -> {error, ["--chart ", File, ": expected a name that ends with .svg or .png"]};
        Terminal -> plot(File, script(File, Terminal, Title, lines(Points, Result)))
    end.

spoken(Name) -> string:replace(atom_to_list(Name), "_", " ", all).

%% @doc Runs gnuplot with a script that writes this file.
-spec plot(file:filename(), Script :: unicode:chardata()) -> ok | {error, unicode:chardata()}.
plot(File, Script) ->
    case os:find_executable("gnuplot") of
        false -> {error, "no chart: gnuplot is not installed (Debian package gnuplot-nox)"};
        Gnuplot -> run(Gnuplot, File, Script)
    end.

terminal(".svg") -> "svg size 800,500 enhanced background 'white'";
terminal(".png") -> "pngcairo size 800,500";
terminal(_) -> unknown.

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

bad_name_test() ->
    ?assertMatch({error, _}, draw("/tmp/x.pdf", "t", [], result())).
-endif.
