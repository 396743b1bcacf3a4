%% SPDX-License-Identifier: Apache-2.0
%% @doc Draws a chart of ratios as SVG. Each question has a row that shows a dot and an interval for each rival, on a logarithmic axis.
%%
%% The functions are pure; {@link beamway_bench_pictures} creates the rows from stored results, and {@link placement_svg} contains the colours and
%% fonts. The picture is as wide as a page, 830 pixels.
-module(beamway_bench_dots).

-import(placement_svg, [text/4, line/5]).

-export([svg/3]).
-export_type([row/0]).

-type row() :: {Label :: unicode:chardata(), [{Series :: pos_integer(), Ratio :: float(), Low :: float(), High :: float()}]}.
%% Series are numbered from 1. Beamway is better if a point is to the right of 1.

-define(WIDTH, 830).
-define(LEFT, 330).
-define(RIGHT, 780).
-define(STEP, 17).

%% @doc Returns the picture. The legends are in the order of the series.
-spec svg(Title :: unicode:chardata(), Legends :: [unicode:chardata()], [row()]) -> unicode:chardata().
svg(Title, Legends, Rows) ->
    Heights = [14 + ?STEP * max(1, length(Dots)) || {_, Dots} <- Rows],
    Bottom = 78 + lists:sum(Heights),
    {Low, High} = ends([Number || {_, Dots} <- Rows, {_, Ratio, Least, Most} <- Dots, Number <- [Ratio, Least, Most]]),
    X = fun(Ratio) -> ?LEFT + (math:log2(Ratio) - Low) / (High - Low) * (?RIGHT - ?LEFT) end,
    {Drawn, _} = lists:mapfoldl(fun({Row, Height}, Y) -> {row(Row, X, Y, Height), Y + Height} end, 78, lists:zip(Rows, Heights)),
    placement_svg:picture(?WIDTH, Bottom + 52, Title,
                          [legend(Legends), [axis(Exponent, X, Bottom) || Exponent <- ticks(Low, High)], Drawn,
                           text("note end", X(1.0) - 8, Bottom + 38, "the rival is better"), text("note", X(1.0) + 8, Bottom + 38, "this project is better")]).

%% Returns the exponents of the two ends of the axis. The ends are powers of two that enclose 1 and all ratios, with some space on both sides.
ends(Ratios) ->
    Logs = [math:log2(Ratio) || Ratio <- Ratios],
    {floor(lists:min([-0.9 | Logs]) - 0.1), ceil(lists:max([0.9 | Logs]) + 0.1)}.

ticks(Low, High) -> [Exponent || Exponent <- lists:seq(Low, High), High - Low =< 8 orelse Exponent rem 2 =:= 0].

axis(Exponent, X, Bottom) ->
    At = X(math:pow(2, Exponent)),
    Label = case Exponent < 0 of true -> ["1/", integer_to_list(1 bsl -Exponent)]; false -> integer_to_list(1 bsl Exponent) end,
    [line(case Exponent of 0 -> "one"; _ -> "grid" end, At, 70, At, Bottom),
     text("note middle", At, Bottom + 18, [Label, " ×"])].

legend(Legends) ->
    {Drawn, _} = lists:mapfoldl(fun({Series, Legend}, At) ->
                                        {[dot(Series, At, 50), text("note", At + 10, 54, ["against ", Legend])], At + 90 + 7 * string:length(Legend)}
                                end, 30, lists:zip(lists:seq(1, length(Legends)), Legends)),
    Drawn.

row({Label, Dots}, X, Y, Height) ->
    First = Y + Height / 2 - ?STEP * (length(Dots) - 1) / 2,
    [text("end", ?LEFT - 14, Y + Height / 2 + 4.5, Label),
     [begin
          At = First + ?STEP * Place,
          [line(["span ", placement_svg:series(Series)], X(Low), At, X(High), At),
           dot(Series, X(Ratio), At), text("note", max(X(High), X(Ratio) + 5) + 6, At + 4, [short(Ratio), " ×"])]
      end || {Place, {Series, Ratio, Low, High}} <- lists:zip(lists:seq(0, length(Dots) - 1), Dots)]].

dot(Series, X, Y) -> placement_svg:circle(placement_svg:series(Series), float(X), float(Y), 4.5).

short(Ratio) when Ratio >= 9.95 -> integer_to_list(round(Ratio));
short(Ratio) when Ratio >= 0.995 -> io_lib:format("~.1f", [Ratio]);
short(Ratio) -> io_lib:format("~.2f", [Ratio]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

places(Text, Pattern) ->
    case re:run(Text, Pattern, [global, {capture, all_but_first, list}]) of
        {match, Found} -> [list_to_float(Number) || [Number] <- Found];
        nomatch -> []
    end.

dots_are_where_their_ratios_are_test() ->
    Svg = unicode:characters_to_list(svg("a < b", ["x"], [{"first", [{1, 2.0, 1.5, 4.0}]}, {"second", [{1, 0.5, 0.5, 0.5}]}])),
    %% The first circle belongs to the legend.
    [_, Twice, Half] = places(Svg, "cx=\"([0-9.]+)\""),
    [One] = places(Svg, "class=\"one\" x1=\"([0-9.]+)\""),
    ?assert(Half < One andalso One < Twice),
    ?assert(abs((Twice - One) - (One - Half)) < 0.2),
    [?assertNotEqual(nomatch, string:find(Svg, Part)) || Part <- ["a &lt; b", "first", "against x", ">2.0 ×<", ">0.50 ×<"]].

every_interval_is_within_the_picture_test() ->
    Svg = unicode:characters_to_list(svg("t", ["x", "y"], [{"l", [{1, 40.0, 30.0, 70.0}, {2, 0.03, 0.02, 0.05}]}])),
    [?assert(At >= ?LEFT andalso At =< ?RIGHT) || At <- places(Svg, "class=\"span s[12]\" x1=\"([0-9.]+)\"") ++ places(Svg, "x2=\"([0-9.]+)\"")].

nothing_is_a_picture_test() -> ?assertNotEqual(nomatch, string:find(unicode:characters_to_list(svg("t", [], [])), "</svg>")).
-endif.
