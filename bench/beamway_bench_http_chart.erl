%% SPDX-License-Identifier: Apache-2.0
%% @doc Draws the files of `bench http-2009' as one SVG, a panel a series: answers and errors over the rate that was offered. Pure but for read/1.
%%
%% All panels have the same scales, so that they can be compared. The red line is the share of errors in hundredths of a percent, as the charts
%% of 2009 had it: 100 means that one request in a hundred failed. What is above the panel's top is drawn at its top.
-module(beamway_bench_http_chart).

-export([read/1, draw/1]).
-export_type([row/0]).

-type row() :: {Rate :: number(), Replies :: number(), Errors :: number()}.

-define(MOST, 10000).
-define(COLUMNS, 3).
-define(WIDTH, 320).
-define(HEIGHT, 210).
-define(LEFT, 46).
-define(TOP, 34).
-define(RIGHT, 12).
-define(BOTTOM, 30).
-define(HEAD, 64).

%% @doc The rows of a file.
-spec read(file:filename()) -> [row()].
read(File) ->
    {ok, Text} = file:read_file(File),
    [_ | Lines] = string:lexemes(Text, "\n"),
    [row(binary:split(Line, <<",">>, [global])) || Line <- Lines].

row([Rate, Replies, Errors | _]) ->
    {number(hd(binary:split(Rate, <<" ">>))), number(Replies), number(Errors)}.

number(Text) ->
    case string:to_float(Text) of
        {error, no_float} -> binary_to_integer(Text);
        {Float, _} -> Float
    end.

%% @doc The chart.
-spec draw([{Title :: unicode:chardata(), [row()]}]) -> unicode:chardata().
draw(Panels) ->
    Width = ?COLUMNS * ?WIDTH + 16,
    Height = ?HEAD + ?HEIGHT * ((length(Panels) + ?COLUMNS - 1) div ?COLUMNS) + 8,
    [io_lib:format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ~b ~b\" width=\"~b\" height=\"~b\" role=\"img\">~n", [Width, Height, Width, Height]),
     "<title>The experiment of 2009</title>\n<style>\n", style(), "</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n",
     text(16, 24, "heading", "One request on each connection: answers a second over offered requests a second"),
     text(16, 44, "reply", "answers a second"), text(150, 44, "error", "errors, in 1/100 %"), text(290, 44, "offer", "what was offered"),
     [panel(Panel, 8 + N rem ?COLUMNS * ?WIDTH, ?HEAD + N div ?COLUMNS * ?HEIGHT) || {N, Panel} <- lists:zip(lists:seq(0, length(Panels) - 1), Panels)],
     "</svg>\n"].

style() ->
    "text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;font-size:11px;fill:#1f2328}\n"
    ".heading{font-size:15px;font-weight:600}.title{font-size:12px;font-weight:600}.tick,text.offer{fill:#57606a}\n"
    "text.reply{fill:#0969da}text.error{fill:#c0182b}.paper{fill:#fff}.grid{stroke:#d0d7de}\n"
    "path{fill:none;stroke-width:2}path.reply{stroke:#0969da}path.error{stroke:#c0182b}path.offer{stroke:#57606a;stroke-width:1;stroke-dasharray:3 3}\n"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.tick,text.offer{fill:#9198a1}text.reply{fill:#58a6ff}text.error{fill:#ff7b72}.paper{fill:#0d1117}\n"
    ".grid{stroke:#30363d}path.reply{stroke:#58a6ff}path.error{stroke:#ff7b72}path.offer{stroke:#9198a1}}\n".

panel({Title, Rows}, X, Y) ->
    AtX = fun(Rate) -> X + ?LEFT + (?WIDTH - ?LEFT - ?RIGHT) * Rate / ?MOST end,
    AtY = fun(Value) -> Y + ?HEIGHT - ?BOTTOM - (?HEIGHT - ?TOP - ?BOTTOM) * min(Value, ?MOST) / ?MOST end,
    Marks = [0, 2500, 5000, 7500, 10000],
    ["<g>\n", text(X + 8, Y + 20, "title", Title),
     [[io_lib:format("<line class=\"grid\" x1=\"~.1f\" y1=\"~.1f\" x2=\"~.1f\" y2=\"~.1f\"/>~n", [AtX(0), AtY(M), AtX(?MOST), AtY(M)]),
       text(X + 8, AtY(M) + 4, "tick", integer_to_list(M)), text(AtX(M) - 14, Y + ?HEIGHT - 12, "tick", integer_to_list(M))] || M <- Marks],
     path("offer", [{Rate, Rate} || {Rate, _, _} <- Rows], AtX, AtY), path("reply", [{Rate, Replies} || {Rate, Replies, _} <- Rows], AtX, AtY),
     path("error", [{Rate, Errors} || {Rate, _, Errors} <- Rows], AtX, AtY), "</g>\n"].

path(_, [], _, _) -> [];
path(Class, Points, AtX, AtY) ->
    Steps = lists:join("L", [io_lib:format("~.1f ~.1f", [AtX(A), AtY(B)]) || {A, B} <- Points]),
    ["<path class=\"", Class, "\" d=\"M", Steps, "\"/>\n"].

text(X, Y, Class, Text) ->
    io_lib:format("<text x=\"~.1f\" y=\"~.1f\" class=\"~s\">~ts</text>~n", [float(X), float(Y), Class, Text]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

row_test() ->
    ?assertEqual({2000, 1999.5, 10}, row([<<"2000 rps">>, <<"1999.5">>, <<"10">>, <<"x">>])).

%% A panel for each series, and three lines in one that has rows.
draw_test() ->
    Text = unicode:characters_to_list(draw([{"one", [{1000, 1000, 0}, {2000, 900.5, 5500.0}]}, {"two", []}])),
    ?assertEqual(2, length(string:split(Text, "<g>", all)) - 1),
    ?assertEqual(3, length(string:split(Text, "<path", all)) - 1).
-endif.
