%% SPDX-License-Identifier: Apache-2.0
%% @doc Draws measurements as an SVG picture with a panel for each quantity and a line for each contender or node. The functions are pure, and
%% {@link placement_svg} contains the colours and fonts. A picture is as wide as a page, 830 pixels.
%%
%% Each point of a line has an interval, which is drawn as a bar through a dot or, if there are many points, as a band around the line. A linear scale
%% starts at 0, so that a flat line looks flat. If intervals are bands, the first line is thicker, so that it stays visible below a line that covers it.
-module(beamway_bench_panels).

-export([draw/1]).

-export_type([picture/0, panel/0, point/0]).

-type point() :: {X :: number(), Low :: number(), Middle :: number(), High :: number()}.
-type scale() :: linear | log.
-type axis() :: #{scale := scale(), from := number(), to := number(), unit := unicode:chardata(), ticks => [{number(), unicode:chardata()}]}.
%% The unit follows the label of the last tick. Without `ticks' the ticks are at round numbers, and the scale must be linear and start at 0.
-type panel() :: #{title := unicode:chardata(), lines := [[point()]], note => unicode:chardata(), alarm => boolean()}.
%% `note' is printed to the right of the title, in red if `alarm' is set.
-type picture() :: #{title := unicode:chardata(), x := axis(), legend := [unicode:chardata()], panels := [panel()],
                     subtitle => [unicode:chardata()],
                     spread => {bars | bands, unicode:chardata()}, %% how intervals are drawn, and their legend
                     y => scale(),
                     height => pos_integer(),                      %% a panel's height
                     shaded => {To :: number(), unicode:chardata()}}. %% how far the x axis is shaded from its beginning, and the shading's legend
%% The legend has an entry for each line of a panel.

-define(WIDTH, 830).
-define(LEFT, 58).
-define(RIGHT, 16).
-define(TOP, 30).
-define(BOTTOM, 30).

%% @doc Returns the picture.
-spec draw(picture()) -> unicode:chardata().
draw(#{title := Title, panels := Panels} = Given) ->
    Picture = maps:merge(#{subtitle => [], y => linear, height => 172}, Given),
    #{subtitle := Subtitle, height := High} = Picture,
    Columns = min(2, max(1, length(Panels))),
    Wide = (?WIDTH - 16) div Columns,
    {Legend, Head} = legend(Picture, 52 + 16 * length(Subtitle)),
    placement_svg:picture(
      ?WIDTH, Head + High * ((length(Panels) + Columns - 1) div Columns) + 8, Title,
      [[placement_svg:text("small", 20, 28 + 16 * N, Line) || {N, Line} <- numbered(Subtitle)], Legend,
       [panel(Picture, Panel, (N - 1) rem Columns * Wide + 8, Head + (N - 1) div Columns * High, Wide) || {N, Panel} <- numbered(Panels)]]).

numbered(List) -> lists:zip(lists:seq(1, length(List)), List).

%% Returns the keys of the legend, in as many lines as they need, and the position at which the panels begin.
legend(#{legend := Names} = Picture, Top) ->
    Keys = [{placement_svg:series(N), Name} || {N, Name} <- numbered(Names), length(Names) > 1]
        ++ [{case How of bars -> "bar"; bands -> "band s1" end, Text} || #{spread := {How, Text}} <- [Picture]]
        ++ [{"shade", Text} || #{shaded := {_, Text}} <- [Picture]],
    {Drawn, {_, Y}} = lists:mapfoldl(fun({Class, Text}, {X, Y}) ->
                                             Next = X + 40 + 7 * string:length(Text),
                                             case Next > ?WIDTH of
                                                 true -> {key(Class, 20, Y + 18, Text), {20 + Next - X, Y + 18}};
                                                 false -> {key(Class, X, Y, Text), {Next, Y}}
                                             end
                                     end, {20, Top}, Keys),
    {Drawn, Y + 12}.

key("bar", X, Y, Text) -> [placement_svg:line("axis span", X + 9, Y - 11, X + 9, Y + 3), placement_svg:text("note", X + 24, Y, Text)];
key("shade", X, Y, Text) -> [placement_svg:rect("shade", X, Y - 10, 18, 12), placement_svg:text("note", X + 24, Y, Text)];
key("band" ++ _ = Class, X, Y, Text) -> [placement_svg:rect(Class, X, Y - 10, 18, 12), placement_svg:text("note", X + 24, Y, Text)];
key(Class, X, Y, Text) -> [placement_svg:line([Class, " span"], X, Y - 4, X + 18, Y - 4), placement_svg:text("note", X + 24, Y, Text)].

panel(#{x := Across, y := Scale, height := High} = Picture, #{title := Title, lines := Lines} = Panel, X, Y, Wide) ->
    Values = [Value || Line <- Lines, {_, Low, _, Most} <- Line, Value <- [Low, Most]],
    {Left, Right, Base} = {X + ?LEFT, X + Wide - ?RIGHT, Y + High - ?BOTTOM},
    {Least, Most, Ticks} = vertical(Scale, Values),
    #{scale := Over, from := From, to := To} = Across,
    AtX = fun(Value) -> Left + (Right - Left) * min(1.0, share(Over, Value, From, To)) end,
    AtY = fun(Value) -> Base - (Base - Y - ?TOP) * share(Scale, Value, Least, Most) end,
    ["<g>\n", placement_svg:text("name", X + 12, Y + 18, Title), note(Right, Y + 18, Panel),
     [placement_svg:rect("shade", Left, Y + ?TOP, AtX(Until) - Left, Base - Y - ?TOP) || #{shaded := {Until, _}} <- [Picture]],
     [[placement_svg:line("grid", Left, AtY(Value), Right, AtY(Value)), placement_svg:text("small end", Left - 6, AtY(Value) + 4, Label)] || {Value, Label} <- Ticks],
     [drawn(maps:get(spread, Picture, none), Line, N, AtX, AtY) || {N, [_ | _] = Line} <- numbered(Lines)],
     placement_svg:line("axis", Left, Base, Right, Base), below(Across, AtX, Base), "</g>\n"].

note(X, Y, #{note := Note} = Panel) -> placement_svg:text(case Panel of #{alarm := true} -> "alarm small end"; _ -> "small end" end, X, Y, Note);
note(_, _, _) -> [].

below(#{to := To, unit := Unit} = Across, AtX, Base) ->
    Ticks = case Across of #{ticks := Given} -> Given; _ -> ticks(To) end,
    {Last, _} = lists:last(Ticks),
    [[placement_svg:line("axis", AtX(Value), Base, AtX(Value), Base + 4),
      placement_svg:text("small middle", AtX(Value), Base + 16, [Label, [[" ", Unit] || Value == Last, Unit =/= ""]])] || {Value, Label} <- Ticks].

drawn({bands, _}, Line, N, AtX, AtY) ->
    Series = placement_svg:series(N),
    Around = [{AtX(X), AtY(High)} || {X, _, _, High} <- Line] ++ lists:reverse([{AtX(X), AtY(Low)} || {X, Low, _, _} <- Line]),
    [placement_svg:path(["band ", Series], Around), placement_svg:path(["curve ", Series, [" first" || N =:= 1]], [{AtX(X), AtY(Middle)} || {X, _, Middle, _} <- Line])];
drawn(_, Line, N, AtX, AtY) ->
    Series = placement_svg:series(N),
    [placement_svg:path(["curve ", Series], [{AtX(X), AtY(Middle)} || {X, _, Middle, _} <- Line]),
     [[placement_svg:line(["span ", Series], AtX(X), AtY(Low), AtX(X), AtY(High)), placement_svg:circle(Series, AtX(X), AtY(Middle), 4)] || {X, Low, Middle, High} <- Line]].

share(linear, Value, From, To) -> (Value - From) / (To - From);
share(log, Value, From, To) -> math:log(Value / From) / math:log(To / From).

%% Returns the two ends of the vertical scale, and its ticks. A logarithmic scale has a tick for each power of ten.
vertical(linear, Values) ->
    {Top, Step} = scale(lists:max([0 | Values])),
    {0, Top, [{Value, tick(Value, Step)} || Value <- steps(0, Step, Top)]};
vertical(log, Values) ->
    {Low, High} = {floor(math:log10(lists:min([1.0 | Values]))), ceil(math:log10(lists:max([10.0 | Values])))},
    {math:pow(10, Low), math:pow(10, High), [{math:pow(10, Power), power(Power)} || Power <- lists:seq(Low, High)]}.

power(Power) when Power < 0 -> float_to_list(math:pow(10, Power), [{decimals, -Power}]);
power(Power) -> [integer_to_list(round(math:pow(10, Power rem 3))), lists:nth(Power div 3 + 1, ["", "k", "M", "G", "T"])].

ticks(To) ->
    {_, Step} = scale(To),
    [{Value, tick(Value, Step)} || Value <- steps(0, Step, To)].

%% Returns the top of a scale and the step between its tick marks. The step is 1, 2 or 5 times a power of ten, and there are three to six marks.
scale(Highest) when Highest =< 0 -> {1, 1};
scale(Highest) ->
    Power = math:pow(10, math:floor(math:log10(Highest / 5))),
    Step = hd([M * Power || M <- [1, 2, 5, 10], M * Power * 5 >= Highest * 0.999999]),
    {Step * math:ceil(Highest / Step - 1.0e-6), Step}.

steps(Value, Step, Top) when Value > Top + Step * 1.0e-6 -> [];
steps(Value, Step, Top) -> [Value | steps(Value + Step, Step, Top)].

%% A tick label has no more decimal places than the step.
tick(Value, _) when Value == 0 -> "0";
tick(Value, Step) when Step >= 1000 -> [digits(Value / 1000, Step / 1000), "k"];
tick(Value, Step) -> digits(Value, Step).

digits(Value, Step) ->
    case max(0, -trunc(math:floor(math:log10(Step) + 1.0e-9))) of
        0 -> integer_to_list(round(Value));
        Decimals -> float_to_list(float(Value), [{decimals, Decimals}])
    end.

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
                                {"0.02", 0.02, 0.01}, {"200k", 2.0e5, 1.0e5}]]
        ++ [?_assertEqual(Want, lists:flatten(power(Power))) || {Want, Power} <- [{"0.01", -2}, {"1", 0}, {"100", 2}, {"1k", 3}, {"10M", 7}]].

picture() ->
    Panel = #{title => "MB", note => "flat", lines => [[{0, 1, 2, 3}, {1, 1, 2, 4}], [{0, 0, 0, 0}]]},
    #{title => "Soak", x => #{scale => linear, from => 0, to => 2, unit => "min"}, legend => ["a", "b"], spread => {bands, "lowest to highest"},
      shaded => {0.5, "warm-up"}, subtitle => ["of two nodes"], panels => [Panel, Panel#{alarm => true}, Panel#{lines := [[], []]}]}.

%% OTP has no parser for SVG attributes, so this only checks that the output is well-formed XML.
well_formed_test() ->
    Text = unicode:characters_to_list(draw(picture())),
    Open = length(all(Text, "<(g|svg|text|title|style)[ >]")),
    Close = length(all(Text, "</(g|svg|text|title|style)>")),
    ?assertEqual(Open, Close),
    ?assertEqual([], all(Text, "nan|inf[^o]|e[+-][0-9]")),
    ?assertEqual(4, length(all(Text, "class=\"curve"))),
    ?assertEqual(1, length(all(Text, "class=\"alarm"))).

all(Text, Pattern) ->
    case re:run(Text, Pattern, [global]) of
        {match, Found} -> Found;
        nomatch -> []
    end.

%% On logarithmic scales, equal ratios are equally far apart. All dots are within the panel, whatever their number, and so are the ends of their bars.
dots_with_bars_test() ->
    Lines = [[{X, X / 2, X, X * 2} || X <- [1, 10, 100]] || _ <- lists:seq(1, 8)],
    Text = unicode:characters_to_list(draw(#{title => "t", legend => ["line " ++ integer_to_list(N) || N <- lists:seq(1, 8)], y => log, spread => {bars, "all"},
                                             x => #{scale => log, from => 0.5, to => 200, unit => "", ticks => [{1, "1"}, {100, "100"}]},
                                             panels => [#{title => "p", lines => Lines}]})),
    [{One, Y1}, {Ten, Y10}, {Hundred, Y100} | _] =
        [{list_to_float(X), list_to_float(Y)} || [X, Y] <- element(2, re:run(Text, "<circle[^>]* cx=\"([0-9.]+)\" cy=\"([0-9.]+)\"", [global, {capture, all_but_first, list}]))],
    ?assert(abs((Hundred - Ten) - (Ten - One)) < 0.3),
    ?assert(abs((Y1 - Y10) - (Y10 - Y100)) < 0.3),
    Edge = fun(Pattern) -> {match, [Y]} = re:run(Text, Pattern, [{capture, all_but_first, list}]), element(1, string:to_float(Y ++ ".0")) end,
    {Bottom, Top} = {Edge("<line class=\"axis\" x1=\"[0-9]+\" y1=\"([0-9]+)\""), Edge("<line class=\"grid\" x1=\"[0-9]+\" y1=\"[0-9.]+\" x2=\"[0-9]+\" y2=\"([0-9.]+)\"/>\n<text[^>]*>1k<")},
    ?assert(Top < Y100 andalso Y1 < Bottom),
    ?assertEqual(24, length(all(Text, "<circle"))),
    ?assertEqual(6, length(all(Text, "<circle class=\"s[12] dashed\""))).
-endif.
