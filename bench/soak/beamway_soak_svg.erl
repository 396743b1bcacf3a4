%% SPDX-License-Identifier: Apache-2.0
%% @doc Draws values over time as an SVG picture, with a panel for each metric and a line for each node. The functions are pure.
%%
%% Each point of a line is the median of an interval, and the band around the line extends from the lowest to the highest value in that interval. All
%% scales start at 0, so that a flat line looks flat. The first line is thicker, so that it stays visible below a line that covers it. The colours
%% follow the reader's light or dark scheme; nothing is loaded from elsewhere.
-module(beamway_soak_svg).

-export([draw/1]).

-export_type([picture/0, panel/0, point/0]).

-type point() :: {Minute :: number(), Low :: number(), Middle :: number(), High :: number()}.
-type panel() :: #{title := unicode:chardata(), unit := unicode:chardata(), note := unicode:chardata(),
                   alarm := boolean(), lines := [[point()]]}.
%% `note' is printed to the right of the title, in red if `alarm' is set.
-type picture() :: #{title := unicode:chardata(), subtitle := [unicode:chardata()], minutes := number(),
                     warm_up := number(), legend := [unicode:chardata()], panels := [panel()]}.
%% The legend has an entry for each line of a panel, and there are at most colours/0 lines. The first `warm_up' minutes are shaded.

-define(WIDTH, 960).
-define(COLUMNS, 2).
-define(PANEL_WIDTH, 470).
-define(PANEL_HEIGHT, 172).
-define(LEFT, 58).
-define(RIGHT, 16).
-define(TOP, 30).
-define(BOTTOM, 30).

%% @doc Returns the number of lines that can be distinguished.
-spec colours() -> pos_integer().
colours() -> length(palette()).

%% Pairs of colours for the light and dark schemes. Blue and orange come first, because everybody can distinguish them.
palette() ->
    [{"#0969da", "#58a6ff"}, {"#d1540a", "#ff9d57"}, {"#1a7f37", "#56d364"}, {"#8250df", "#bc8cff"},
     {"#7d5f00", "#e3b341"}, {"#bf3989", "#ff7bb8"}].

-spec draw(picture()) -> unicode:chardata().
draw(#{title := Title, subtitle := Subtitle, legend := Legend, panels := Panels} = Picture) ->
    Head = 62 + 16 * length(Subtitle),
    Height = Head + ?PANEL_HEIGHT * rows(length(Panels)) + 8,
    ["<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", number(?WIDTH), " ", number(Height),
     "\" width=\"", number(?WIDTH), "\" height=\"", number(Height), "\" role=\"img\">\n",
     "<title>", escape(Title), "</title>\n<style>\n", style(), "</style>\n",
     "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n",
     text(16, 26, "heading", Title),
     [text(16, 26 + 16 * N, "small", Line) || {N, Line} <- lists:zip(lists:seq(1, length(Subtitle)), Subtitle)],
     legend(Legend, Head - 12),
     [panel(Picture, Panel, (N rem ?COLUMNS) * ?PANEL_WIDTH + 8, Head + (N div ?COLUMNS) * ?PANEL_HEIGHT)
      || {N, Panel} <- lists:zip(lists:seq(0, length(Panels) - 1), Panels)],
     "</svg>\n"].

rows(Count) -> (Count + ?COLUMNS - 1) div ?COLUMNS.

style() ->
    Numbered = lists:zip(lists:seq(1, colours()), palette()),
    Lines = fun(Pick) -> [["path.l", number(N), "{stroke:", Pick(Pair), "}.b", number(N), "{fill:", Pick(Pair), "}\n"]
                          || {N, Pair} <- Numbered] end,
    ["text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;font-size:11px;fill:#1f2328}\n"
     ".heading{font-size:16px;font-weight:600}.title{font-size:12px;font-weight:600}\n"
     ".small,.note,.tick{fill:#57606a}.alarm{fill:#c0182b;font-weight:600}\n"
     ".paper{fill:#ffffff}.warm{fill:#57606a;opacity:.1}.grid{stroke:#d0d7de;stroke-width:1}.axis{stroke:#57606a;stroke-width:1}\n"
     "path.line{fill:none;stroke-width:1.4;stroke-linejoin:round}path.l1{stroke-width:3.2}.band{opacity:.2}.key{opacity:1}\n",
     Lines(fun({Light, _}) -> Light end),
     "@media(prefers-color-scheme:dark){\n"
     "text{fill:#e6edf3}.small,.note,.tick{fill:#9198a1}.alarm{fill:#ff7b72}\n"
     ".paper{fill:#0d1117}.warm{fill:#9198a1;opacity:.14}.grid{stroke:#30363d}.axis{stroke:#9198a1}\n",
     Lines(fun({_, Dark}) -> Dark end), "}\n"].

legend(Names, Y) ->
    Keys = [[rect(16 + 150 * (N - 1), Y - 5, 18, 4, ["b", number(N), " key"]), text(40 + 150 * (N - 1), Y, "small", Name)]
            || {N, Name} <- lists:zip(lists:seq(1, length(Names)), Names)],
    Last = 16 + 150 * length(Names),
    [Keys,
     rect(Last, Y - 10, 18, 12, "b1 band"), text(Last + 24, Y, "small", "lowest to highest"),
     rect(Last + 150, Y - 10, 18, 12, "warm"), text(Last + 174, Y, "small", "warm-up, not judged")].

panel(#{minutes := Minutes, warm_up := WarmUp}, Panel, X, Y) ->
    #{title := Title, unit := Unit, note := Note, alarm := Alarm, lines := Lines} = Panel,
    {Top, Step} = scale(lists:max([0 | [High || Line <- Lines, {_, _, _, High} <- Line]])),
    Left = X + ?LEFT,
    Right = X + ?PANEL_WIDTH - ?RIGHT,
    Base = Y + ?PANEL_HEIGHT - ?BOTTOM,
    AtX = fun(Minute) -> Left + (Right - Left) * min(Minute, Minutes) / Minutes end,
    AtY = fun(Value) -> Base - (Base - Y - ?TOP) * Value / Top end,
    ["<g>\n", text(X + 8, Y + 18, "title", with_unit(Title, Unit)), note(Right, Y + 18, Note, Alarm),
     rect(Left, Y + ?TOP, AtX(WarmUp) - Left, Base - Y - ?TOP, "warm"),
     [[line(Left, AtY(Value), Right, AtY(Value), "grid"), text(Left - 6, AtY(Value) + 4, "tick\" text-anchor=\"end", tick(Value, Step))]
      || Value <- ticks(0, Step, Top)],
     [[area(Line, N, AtX, AtY), path(Line, N, AtX, AtY)] || {N, [_ | _] = Line} <- lists:zip(lists:seq(1, length(Lines)), Lines)],
     line(Left, Base, Right, Base, "axis"), minutes(Minutes, AtX, Base), "</g>\n"].

with_unit(Title, "") -> Title;
with_unit(Title, Unit) -> [Title, ", ", Unit].

note(X, Y, Note, Alarm) ->
    text(X, Y, [case Alarm of true -> "alarm"; false -> "note" end, "\" text-anchor=\"end"], Note).

minutes(Minutes, AtX, Base) ->
    {_, Step} = scale(Minutes),
    Ticks = ticks(0, Step, Minutes),
    [[line(AtX(Minute), Base, AtX(Minute), Base + 4, "axis"),
      text(AtX(Minute), Base + 16, "tick\" text-anchor=\"middle", [tick(Minute, Step), [" min" || Minute == lists:last(Ticks)]])]
     || Minute <- Ticks].

area(Line, N, AtX, AtY) ->
    Points = [{M, High} || {M, _, _, High} <- Line] ++ lists:reverse([{M, Low} || {M, Low, _, _} <- Line]),
    ["<path class=\"b", number(N), " band\" d=\"", steps(Points, AtX, AtY), "Z\"/>\n"].

path(Line, N, AtX, AtY) ->
    ["<path class=\"line l", number(N), "\" d=\"", steps([{M, Middle} || {M, _, Middle, _} <- Line], AtX, AtY), "\"/>\n"].

steps([First | Others], AtX, AtY) ->
    At = fun({Minute, Value}) -> [number(AtX(Minute)), " ", number(AtY(Value))] end,
    ["M", At(First) | [["L", At(Point)] || Point <- Others]].

%% Returns the top of a scale and the step between its tick marks. The step is 1, 2 or 5 times a power of ten, and there are three to six marks.
scale(Highest) when Highest =< 0 -> {1, 1};
scale(Highest) ->
    Power = math:pow(10, math:floor(math:log10(Highest / 5))),
    Step = hd([M * Power || M <- [1, 2, 5, 10], M * Power * 5 >= Highest * 0.999999]),
    {Step * math:ceil(Highest / Step - 1.0e-6), Step}.

ticks(Value, Step, Top) when Value > Top + Step * 1.0e-6 -> [];
ticks(Value, Step, Top) -> [Value | ticks(Value + Step, Step, Top)].

%% A tick label has no more decimal places than the step.
tick(Value, _) when Value == 0 -> "0";
tick(Value, Step) when Step >= 1000 -> [digits(Value / 1000, Step / 1000), "k"];
tick(Value, Step) -> digits(Value, Step).

digits(Value, Step) ->
    case max(0, -trunc(math:floor(math:log10(Step) + 1.0e-9))) of
        0 -> integer_to_list(round(Value));
        Decimals -> float_to_list(float(Value), [{decimals, Decimals}])
    end.

text(X, Y, Class, Text) ->
    ["<text class=\"", Class, "\" x=\"", number(X), "\" y=\"", number(Y), "\">", escape(Text), "</text>\n"].

rect(X, Y, Width, Height, Class) ->
    ["<rect class=\"", Class, "\" x=\"", number(X), "\" y=\"", number(Y), "\" width=\"", number(Width),
     "\" height=\"", number(Height), "\"/>\n"].

line(X1, Y1, X2, Y2, Class) ->
    ["<line class=\"", Class, "\" x1=\"", number(X1), "\" y1=\"", number(Y1), "\" x2=\"", number(X2), "\" y2=\"", number(Y2), "\"/>\n"].

number(N) when is_integer(N) -> integer_to_list(N);
number(N) -> float_to_list(N, [{decimals, 1}, compact]).

escape(Text) ->
    [case C of $& -> "&amp;"; $< -> "&lt;"; $> -> "&gt;"; $" -> "&quot;"; _ -> C end || C <- unicode:characters_to_list(Text)].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

scale_test_() ->
    [?_assertEqual({Top, Step}, nearly(scale(Highest)))
     || {Highest, Top, Step} <- [{0, 1, 1}, {1, 1.0, 0.2}, {5, 5.0, 1.0}, {7, 8.0, 2.0}, {20, 20.0, 5.0}, {23, 25.0, 5.0},
                                 {99, 100.0, 20.0}, {1.0e6, 1.0e6, 2.0e5}, {0.03, 0.03, 0.01}]].

nearly({Top, Step}) when is_float(Top) -> {round(Top * 1.0e6) / 1.0e6, round(Step * 1.0e6) / 1.0e6};
nearly(Whole) -> Whole.

tick_test_() ->
    [?_assertEqual(Want, lists:flatten(tick(Value, Step)))
     || {Want, Value, Step} <- [{"0", 0, 1}, {"0.2", 0.2, 0.2}, {"15", 15.0, 5.0}, {"20k", 20000.0, 5000.0}, {"0", 0, 5000.0},
                                {"0.02", 0.02, 0.01}, {"200k", 2.0e5, 1.0e5}]].

picture() ->
    Panel = #{title => "a < b & \"c\"", unit => "MB", note => "flat", alarm => false,
              lines => [[{0, 1, 2, 3}, {1, 1, 2, 4}], [{0, 0, 0, 0}]]},
    #{title => "Soak", subtitle => ["of two nodes"], minutes => 2, warm_up => 0.5, legend => ["a", "b"],
      panels => [Panel, Panel#{alarm := true}, Panel#{lines := [[], []]}]}.

%% OTP has no parser for SVG attributes, so this only checks that the output is well-formed XML.
well_formed_test() ->
    Text = unicode:characters_to_list(draw(picture())),
    Open = length(re_all(Text, "<(g|svg|text|title|style)[ >]")),
    Close = length(re_all(Text, "</(g|svg|text|title|style)>")),
    ?assertEqual(Open, Close),
    ?assertEqual(nomatch, re:run(Text, "&(?!amp;|lt;|gt;|quot;)")),
    ?assertEqual([], re_all(Text, "nan|inf|e[+-][0-9]")),
    ?assertEqual(4, length(re_all(Text, "class=\"line l"))),
    ?assertEqual(1, length(re_all(Text, "class=\"alarm"))).

re_all(Text, Pattern) ->
    case re:run(Text, Pattern, [global]) of
        {match, All} -> All;
        nomatch -> []
    end.
-endif.
