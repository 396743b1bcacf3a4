%% SPDX-License-Identifier: Apache-2.0
%% @doc Draws a chart of ratios as SVG. Each question has a row that shows a dot and an interval for each rival, on a logarithmic axis.
%%
%% The functions are pure; {@link beamway_bench_pictures} creates the rows from stored results. The colours and fonts are those of the console, for
%% light and dark pages. The picture is legible at 830 pixels, the width of a page.
-module(beamway_bench_dots).

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
    [io_lib:format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ~b ~b\" width=\"~b\" height=\"~b\" role=\"img\">~n", [?WIDTH, Bottom + 52, ?WIDTH, Bottom + 52]),
     "<title>", escaped(Title), "</title>\n", style(),
     io_lib:format("<rect class=\"page\" width=\"~b\" height=\"~b\" rx=\"8\"/>~n", [?WIDTH, Bottom + 52]),
     text("title", 24, 28, Title), legend(Legends),
     [axis(Exponent, X, Bottom) || Exponent <- ticks(Low, High)],
     Drawn,
     text("note end", X(1.0) - 8, Bottom + 38, "the rival is better"), text("note", X(1.0) + 8, Bottom + 38, "this project is better"),
     "</svg>\n"].

style() ->
    "<style>\n"
    "text { font: 13px system-ui, \"Segoe UI\", Roboto, \"DejaVu Sans\", sans-serif; fill: #131a26; }\n"
    ".title { font-size: 15px; font-weight: 600; } .note { fill: #5d6b80; font-size: 12px; } .end { text-anchor: end; } .middle { text-anchor: middle; }\n"
    ".page { fill: #ffffff; } .grid { stroke: #e3e8f0; } .one { stroke: #64748b; stroke-width: 1.5; } .span { stroke-width: 2; }\n"
    ".s1 { fill: #2f6fed; stroke: #2f6fed; } .s2 { fill: #0f9d78; stroke: #0f9d78; } .s3 { fill: #c77a06; stroke: #c77a06; } .s4 { fill: #9333ea; stroke: #9333ea; } .s5 { fill: #64748b; stroke: #64748b; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "text { fill: #e6ecf5; } .note { fill: #93a1b8; } .page { fill: #151b26; } .grid { stroke: #2a3547; } .one { stroke: #93a1b8; }\n"
    ".s1 { fill: #5b93ff; stroke: #5b93ff; } .s2 { fill: #2bd4a4; stroke: #2bd4a4; } .s3 { fill: #f2b03d; stroke: #f2b03d; } .s4 { fill: #c084fc; stroke: #c084fc; } .s5 { fill: #94a3b8; stroke: #94a3b8; }\n"
    "}\n</style>\n".

%% Returns the exponents of the two ends of the axis. The ends are powers of two that enclose 1 and all ratios, with some space on both sides.
ends(Ratios) ->
    Logs = [math:log2(Ratio) || Ratio <- Ratios],
    {floor(lists:min([-0.9 | Logs]) - 0.1), ceil(lists:max([0.9 | Logs]) + 0.1)}.

ticks(Low, High) -> [Exponent || Exponent <- lists:seq(Low, High), High - Low =< 8 orelse Exponent rem 2 =:= 0].

axis(Exponent, X, Bottom) ->
    At = X(math:pow(2, Exponent)),
    Label = case Exponent < 0 of true -> ["1/", integer_to_list(1 bsl -Exponent)]; false -> integer_to_list(1 bsl Exponent) end,
    [io_lib:format("<line class=\"~ts\" x1=\"~.1f\" x2=\"~.1f\" y1=\"70\" y2=\"~b\"/>~n", [case Exponent of 0 -> "one"; _ -> "grid" end, At, At, Bottom]),
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
          [io_lib:format("<line class=\"span s~b\" x1=\"~.1f\" x2=\"~.1f\" y1=\"~.1f\" y2=\"~.1f\"/>~n", [Series, X(Low), X(High), At, At]),
           dot(Series, X(Ratio), At), text("note", max(X(High), X(Ratio) + 5) + 6, At + 4, [short(Ratio), " ×"])]
      end || {Place, {Series, Ratio, Low, High}} <- lists:zip(lists:seq(0, length(Dots) - 1), Dots)]].

dot(Series, X, Y) -> io_lib:format("<circle class=\"s~b\" cx=\"~.1f\" cy=\"~.1f\" r=\"4.5\"/>~n", [Series, float(X), float(Y)]).

text(Class, X, Y, Text) -> [io_lib:format("<text class=\"~ts\" x=\"~.1f\" y=\"~.1f\">", [Class, float(X), float(Y)]), escaped(Text), "</text>\n"].

escaped(Text) -> lists:foldl(fun({Mark, Name}, Done) -> string:replace(Done, Mark, Name, all) end, Text, [{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}]).

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
