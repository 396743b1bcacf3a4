%% SPDX-License-Identifier: Apache-2.0
%% @doc Draws the demo's output for a README, as an SVG picture of a terminal. Each line appears at the time at which it was printed, five times as
%% fast. A viewer without animations shows all lines at once.
-module(beamway_demo_record).

-export([writable/1, said/2, lines/0, write/2]).

-export_type([line/0]).

-type line() :: {Ms :: integer(), Text :: string()}.
%% The time at which the line was printed, in milliseconds of any clock.

-define(FASTER, 5).
-define(COLUMNS, 120).
%% Sizes in pixels. In the fonts below, the width of a character is 0.6 of the font size.
-define(FONT, 14).
-define(LETTER, 8.43).
-define(ROW, 19).
-define(EDGE, 20).
-define(BAR, 36).

%% @doc Returns whether the picture can be written to this file. Called before the demo, so that an error does not appear only at the end.
-spec writable(file:filename()) -> ok | {error, unicode:chardata()}.
writable(File) -> answer(File, file:write_file(File, <<>>, [append])).

answer(_, ok) -> ok;
answer(File, {error, Reason}) -> {error, io_lib:format("--record ~ts: ~ts; expected a file that can be written", [File, file:format_error(Reason)])}.

%% @doc Passes text that has just been printed to the recording process.
-spec said(pid(), unicode:chardata()) -> ok.
said(Recorder, Text) ->
    Recorder ! {?MODULE, erlang:monotonic_time(millisecond), unicode:characters_to_list(Text)},
    ok.

%% @doc Returns all lines recorded so far, oldest first. Called in the recording process.
-spec lines() -> [line()].
lines() ->
    receive
        {?MODULE, Ms, Text} ->
            Lines = string:split(case lists:suffix("\n", Text) of true -> lists:droplast(Text); false -> Text end, "\n", all),
            [{Ms, Line} || Line <- Lines] ++ lines()
    after 0 -> []
    end.

%% @doc Writes the picture to the file.
-spec write(file:filename(), [line()]) -> ok | {error, unicode:chardata()}.
write(File, Lines) -> answer(File, file:write_file(File, unicode:characters_to_binary(svg(Lines)))).

%% Returns the picture. Lines of more than 120 characters are wrapped at a space.
-spec svg([line(), ...]) -> unicode:chardata().
svg([{Began, _} | _] = Lines) ->
    Rows = [{Ms - Began, Row} || {Ms, Line} <- Lines, Row <- wrapped(Line)],
    Width = round(?COLUMNS * ?LETTER) + 2 * ?EDGE,
    Height = ?BAR + length(Rows) * ?ROW + ?EDGE,
    [io_lib:format(
       "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ~b ~b\" width=\"~b\" height=\"~b\">\n"
       "<title>make demo</title>\n"
       "<style>text{font:~bpx 'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#d8dee9;white-space:pre}\n"
       "@keyframes show{from{opacity:0}to{opacity:0}}\n"
       "@media (prefers-reduced-motion:no-preference){.l{animation:show var(--t) step-end}}</style>\n"
       "<rect width=\"~b\" height=\"~b\" rx=\"10\" fill=\"#1c212b\"/>\n"
       "<circle cx=\"22\" cy=\"18\" r=\"6\" fill=\"#ec6a5e\"/><circle cx=\"42\" cy=\"18\" r=\"6\" fill=\"#f4bf4f\"/><circle cx=\"62\" cy=\"18\" r=\"6\" fill=\"#61c554\"/>\n",
       [Width, Height, Width, Height, ?FONT, Width, Height]),
     [io_lib:format("<text class=\"l\" x=\"~b\" y=\"~b\" xml:space=\"preserve\" style=\"--t:~.2fs\">~ts</text>\n",
                    [?EDGE, ?BAR + Index * ?ROW - 5, Ms / ?FASTER / 1000, escaped(Row)])
      || {Index, {Ms, Row}} <- lists:zip(lists:seq(1, length(Rows)), Rows), Row =/= ""],
     "</svg>\n"].

wrapped(Line) ->
    case length(Line) =< ?COLUMNS of
        true -> [Line];
        false ->
            {Head, _} = lists:split(?COLUMNS, Line),
            At = case string:str(lists:reverse(Head), " ") of 0 -> ?COLUMNS; FromEnd -> ?COLUMNS - FromEnd + 1 end,
            {Row, Rest} = lists:split(At, Line),
            [Row | wrapped(Rest)]
    end.

escaped(Text) -> lists:map(fun($<) -> "&lt;"; ($>) -> "&gt;"; ($&) -> "&amp;"; (Letter) -> Letter end, Text).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-include_lib("xmerl/include/xmerl.hrl").

long() -> lists:flatten(["Pipe: echo hello | rdpipe host1:'tr <a> & b'" | lists:duplicate(20, " of words")]).

%% The picture must be valid XML that contains all of the text, and an SVG renderer must be able to draw it.
every_line_is_shown_test() ->
    Texts = ["Beamway demo: nodes <a> & \"b\"\n\n", "  build      1.0 s\n", long() ++ "\n", "99 \x{b5}s\n\n"],
    _ = [said(self(), Text) || Text <- Texts],
    Lines = lines(),
    ?assertEqual(["Beamway demo: nodes <a> & \"b\"", "", "  build      1.0 s", long(), "99 \x{b5}s", ""], [Line || {_, Line} <- Lines]),
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    File = filename:join(Folder, "demo.svg"),
    ok = writable(File),
    ok = write(File, Lines),
    {Svg, []} = xmerl_scan:file(File, [{space, preserve}]),
    Shown = [lists:flatten([Value || #xmlText{value = Value} <- Content]) || #xmlElement{name = text, content = Content} <- Svg#xmlElement.content],
    ?assertEqual([], [Row || Row <- Shown, length(Row) > ?COLUMNS]),
    ?assertEqual(lists:append([Line || {_, Line} <- Lines]), lists:append(Shown)),
    Drawn = os:cmd("rsvg-convert " ++ File ++ " 2>/dev/null | head -c 4"),
    ok = file:del_dir_r(Folder),
    ?assertEqual("\x{89}PNG", Drawn).

lines_appear_when_printed_test() ->
    Svg = lists:flatten(svg([{-500, "first"}, {2000, "second"}])),
    ?assertNotEqual(nomatch, string:find(Svg, "--t:0.00s\">first<")),
    ?assertNotEqual(nomatch, string:find(Svg, "--t:0.50s\">second<")).

nowhere_is_said_test() ->
    {error, Why} = writable("/proc/no/such.svg"),
    ?assertEqual("--record /proc/no/such.svg: no such file or directory; expected a file that can be written", lists:flatten(Why)).
-endif.
