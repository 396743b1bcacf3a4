%% SPDX-License-Identifier: Apache-2.0
%% @doc The elements and the style of all SVG pictures of this project, here and in `bench/'. All functions are pure.
%%
%% The colours are those of the console (`style.css'), and a test of `bench/figures/beamway_bench_gate.erl' compares them. They follow the reader's light or
%% dark scheme. Red is reserved for problems.
-module(placement_svg).

-export([picture/4, text/4, text/5, line/5, rect/5, circle/4, path/2, series/1, ramp/1, colours/0]).

-type class() :: unicode:chardata().
%% The names of one or more rules of the style sheet, separated by spaces.

%% @doc Returns a complete picture. Its title takes 36 pixels at the top, below which the content begins.
-spec picture(Width :: pos_integer(), Height :: pos_integer(), Title :: unicode:chardata(), Content :: unicode:chardata()) -> unicode:chardata().
picture(Width, Height, Title, Content) ->
    [io_lib:format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ~b ~b\" width=\"~b\" height=\"~b\" role=\"img\">~n", [Width, Height, Width, Height]),
     "<title>", escaped(Title), "</title>\n<style>\n", style(), "</style>\n",
     io_lib:format("<rect class=\"page\" width=\"~b\" height=\"~b\" rx=\"8\"/>~n", [Width, Height]),
     text("title", 20, 28, Title), Content, "</svg>\n"].

%% @doc Returns the colours as names of the console's style sheet, each with its value on light and on dark pages.
-spec colours() -> [{Name :: string(), Light :: string(), Dark :: string()}].
colours() ->
    [{"page", "#f4f6fa", "#0d1118"}, {"card", "#ffffff", "#151b26"}, {"raised", "#f7f9fc", "#1b2330"}, {"text", "#131a26", "#e6ecf5"},
     {"muted", "#5d6b80", "#93a1b8"}, {"line", "#e1e7f0", "#263040"}, {"bad", "#d63649", "#ff6b7a"}, {"tcp", "#2f6fed", "#5b93ff"} | series()].

%% The colours of series are in the order in which they are easiest to distinguish.
series() ->
    [{"one", "#2460d8", "#5b93ff"}, {"two", "#0f9d78", "#2bd4a4"}, {"three", "#d9730d", "#ff9f52"}, {"four", "#9333ea", "#c084fc"},
     {"inet", "#64748b", "#94a3b8"}, {"warn", "#b86e00", "#f2b03d"}].

%% @doc Returns the class of a series, numbered from 1. After six series the colours repeat, with dashed lines.
-spec series(pos_integer()) -> class().
series(Number) ->
    Count = length(series()),
    ["s", integer_to_list((Number - 1) rem Count + 1), [" dashed" || Number > Count]].

style() ->
    ["text { font-family: system-ui, -apple-system, \"Segoe UI\", Roboto, \"DejaVu Sans\", sans-serif; font-size: 13px; }\n"
     ".title { font-size: 15px; font-weight: 600; } .name { font-weight: 600; font-size: 12px; } .note { font-size: 12px; } .small { font-size: 11px; }\n"
     ".end { text-anchor: end; } .middle { text-anchor: middle; } .alarm { font-weight: 600; }\n"
     "line, path { fill: none; } .one { stroke-width: 1.5; } .span, path.curve { stroke-width: 2; stroke-linejoin: round; } path.first { stroke-width: 3.2; }\n"
     ".dashed { stroke-dasharray: 5 3; } .cut { stroke-dasharray: 3 4; } .band { opacity: 0.2; } .shade { opacity: 0.1; }\n",
     coloured(fun({_, Light, _}) -> Light end),
     "@media (prefers-color-scheme: dark) {\n", coloured(fun({_, _, Dark}) -> Dark end), "}\n"].

coloured(Pick) ->
    Colour = fun(Name) -> Pick(lists:keyfind(Name, 1, colours())) end,
    [["text { fill: ", Colour("text"), "; } .note, .small { fill: ", Colour("muted"), "; } .alarm { fill: ", Colour("bad"), "; }\n"
      ".page { fill: ", Colour("card"), "; } .shade, .self { fill: ", Colour("muted"), "; } .gap { fill: ", Colour("line"), "; }\n"
      ".grid { stroke: ", Colour("line"), "; } .axis, .one { stroke: ", Colour("muted"), "; } .branch { stroke: ", Colour("text"), "; } .cut { stroke: ", Colour("four"), "; }\n"],
     [["circle.s", N, ", rect.s", N, ", .band.s", N, " { fill: ", Pick(One), "; } line.s", N, ", path.curve.s", N, " { stroke: ", Pick(One), "; }\n"]
      || {Number, One} <- lists:zip(lists:seq(1, length(series())), series()), N <- [integer_to_list(Number)]]].

-define(RAMP, [{18, 52, 86}, {22, 105, 122}, {42, 157, 143}, {138, 190, 105}, {233, 196, 106}, {244, 162, 97}, {222, 82, 60}]).

%% @doc Returns the colour of a time between the shortest (0) and the longest (1), from dark teal through green to orange, as in the console.
-spec ramp(Share :: float()) -> unicode:chardata().
ramp(Share) ->
    At = max(0.0, min(0.9999, Share)) * (length(?RAMP) - 1),
    [Low, High] = lists:sublist(?RAMP, 1 + trunc(At), 2),
    ["#" | [io_lib:format("~2.16.0b", [round(From + (To - From) * (At - trunc(At)))]) || {From, To} <- lists:zip(tuple_to_list(Low), tuple_to_list(High))]].

%% @doc Returns a text. It begins at this position unless its class is `end' or `middle'.
-spec text(class(), X :: number(), Y :: number(), unicode:chardata()) -> unicode:chardata().
text(Class, X, Y, Text) -> element_text(Class, X, Y, "", Text).

%% @doc Returns a text whose size in pixels is given instead of being determined by the class.
-spec text(class(), X :: number(), Y :: number(), Size :: pos_integer(), unicode:chardata()) -> unicode:chardata().
text(Class, X, Y, Size, Text) -> element_text(Class, X, Y, [" style=\"font-size:", integer_to_list(Size), "px\""], Text).

element_text(Class, X, Y, Style, Text) -> ["<text class=\"", Class, "\" x=\"", number(X), "\" y=\"", number(Y), "\"", Style, ">", escaped(Text), "</text>\n"].

%% @doc Returns a straight line.
-spec line(class(), X1 :: number(), Y1 :: number(), X2 :: number(), Y2 :: number()) -> unicode:chardata().
line(Class, X1, Y1, X2, Y2) ->
    ["<line class=\"", Class, "\" x1=\"", number(X1), "\" y1=\"", number(Y1), "\" x2=\"", number(X2), "\" y2=\"", number(Y2), "\"/>\n"].

%% @doc Returns a rectangle.
-spec rect(class(), X :: number(), Y :: number(), Width :: number(), Height :: number()) -> unicode:chardata().
rect(Class, X, Y, Width, Height) ->
    ["<rect class=\"", Class, "\" x=\"", number(X), "\" y=\"", number(Y), "\" width=\"", number(Width), "\" height=\"", number(Height), "\"/>\n"].

%% @doc Returns a dot.
-spec circle(class(), X :: number(), Y :: number(), Radius :: number()) -> unicode:chardata().
circle(Class, X, Y, Radius) -> ["<circle class=\"", Class, "\" cx=\"", number(X), "\" cy=\"", number(Y), "\" r=\"", number(Radius), "\"/>\n"].

%% @doc Returns a line through all of these points, at least one.
-spec path(class(), [{X :: number(), Y :: number()}, ...]) -> unicode:chardata().
path(Class, Points) -> ["<path class=\"", Class, "\" d=\"M", lists:join("L", [[number(X), " ", number(Y)] || {X, Y} <- Points]), "\"/>\n"].

number(Number) when is_integer(Number) -> integer_to_list(Number);
number(Number) -> float_to_list(Number, [{decimals, 1}]).

escaped(Text) -> [case Char of $& -> "&amp;"; $< -> "&lt;"; $> -> "&gt;"; $" -> "&quot;"; _ -> Char end || Char <- unicode:characters_to_list(Text)].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

picture_test() ->
    Svg = unicode:characters_to_list(picture(830, 100, "a < b & \"c\"", [line("grid", 1, 2.25, 3, 4), rect("shade", 0, 0, 1, 1), path("curve s1", [{0, 0}, {1.5, 2}]), text("note", 1, 2, 9, "t")])),
    [?assertNotEqual(nomatch, string:find(Svg, Part))
     || Part <- ["<title>a &lt; b &amp; &quot;c&quot;</title>", "y1=\"2.3\"", "d=\"M0 0L1.5 2\"", "style=\"font-size:9px\">t<", "circle.s6"]],
    ?assertEqual(nomatch, re:run(Svg, "&(?!amp;|lt;|gt;|quot;)")).

series_test() -> ?assertEqual(["s1", "s6", "s1 dashed"], [lists:flatten(series(N)) || N <- [1, 6, 7]]).

ramp_test() -> ?assertEqual(["#123456", "#8abe69", "#de523c"], [lists:flatten(ramp(Share)) || Share <- [0.0, 0.5, 1.0]]).
-endif.
