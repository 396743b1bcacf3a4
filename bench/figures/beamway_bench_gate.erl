%% SPDX-License-Identifier: Apache-2.0
%% @doc Checks what `make check' and `make release-check' require of all stored results together.
%% The functions return the problems as text, and all except files/2 are pure.
-module(beamway_bench_gate).

-export([files/2, weak/2, dead/2, dead_text/1]).

-export_type([mark/0]).

-type mark() :: {Result :: string(), Commit :: string(), old | not_here}.
%% An entry of `bench/stale'.

%% The maximum size of all results together, which every clone downloads.
-define(MOST_BYTES, 700000).
%% The width of a page, in pixels.
-define(PAGE, 830).

%% @doc Checks the size of all results together, that one of the pages shows each picture, and that all pictures have the same style. Files of quick
%% runs are only for the user.
-spec files(Root :: file:filename(), Pages :: [binary()]) -> [unicode:chardata()].
files(Root, Pages) ->
    Kept = fun(Pattern) -> [File || File <- filelib:wildcard(Pattern, Root), string:find(File, "-quick.") =:= nomatch] end,
    too_heavy(lists:sum([filelib:file_size(filename:join(Root, File)) || File <- Kept("bench/results/**/*.json")]))
        ++ unused(Kept("docs/**/*.{svg,png}") ++ Kept("bench/results/**/*.{svg,png,csv}"), Pages)
        ++ lists:append([odd(File, Svg) || File <- Kept("docs/**/*.svg") ++ Kept("bench/results/**/*.svg"), {ok, Svg} <- [file:read_file(filename:join(Root, File))]]).

too_heavy(Bytes) -> [io_lib:format("bench/results: ~b KB of JSON, at most ~b are kept. Run: scripts/figures compact", [Bytes div 1000, ?MOST_BYTES div 1000]) || Bytes > ?MOST_BYTES].

unused(Pictures, Pages) -> [[File, ": no page shows it. Delete it"] || File <- Pictures, not lists:any(fun(Page) -> string:find(Page, filename:basename(File)) =/= nomatch end, Pages)].

%% Returns what is wrong with a picture's style, because pictures may also be drawn by hand. The
%% colours of a heat map's cells are exempt; they are in the attributes of its elements.
odd(File, Svg) ->
    Known = lists:append([[Light, Dark] || {_, Light, Dark} <- placement_svg:colours()]),
    [[File, ": the picture is ", Width, " pixels wide, and a page ", integer_to_list(?PAGE)] || Width <- found(Svg, "^<svg [^>]*width=\"(\\d+)"), list_to_integer(Width) > ?PAGE]
        ++ [[File, ": ", Colour, " is not one of placement_svg:colours/0"]
            || Colour <- lists:usort(found(Svg, "(?<!style=\"fill:)(?<! fill=\")(#[0-9a-fA-F]{3,6})\\b")) -- Known].

found(Text, Pattern) ->
    case re:run(Text, Pattern, [global, {capture, all_but_first, list}]) of
        {match, Found} -> lists:append(Found);
        nomatch -> []
    end.

%% @doc Checks that a result's verdicts count: it needs enough repeats, and no other work may have
%% run at the same time. `Entries' are its metrics that have verdicts.
-spec weak(Entries :: [map()], IsNoisy :: boolean()) -> [unicode:chardata()].
weak([], _) -> [];
weak(Entries, IsNoisy) ->
    {Fewest, Least} = {lists:min([Count || #{<<"samples">> := Count} <- Entries]), beamway_bench_stats:least_repeats()},
    [io_lib:format("~b repeats, and a verdict needs ~b", [Fewest, Least]) || Fewest < Least] ++ ["measured while other work ran on the machine" || IsNoisy].

%% @doc Returns the marks whose result has been measured again, or is no longer stored.
-spec dead([mark()], Read :: fun((string()) -> {ok, beamway_bench_store:stored()} | {error, term()})) -> [mark()].
dead(Marks, Read) ->
    [Mark || {Name, Commit, _} = Mark <- Marks, case Read(Name) of {ok, #{<<"commit">> := Of}} -> Of =/= list_to_binary(Commit); {error, _} -> true end].

%% @doc Describes one of the marks that dead/2 returns as a problem.
-spec dead_text(mark()) -> unicode:chardata().
dead_text({Name, Commit, _}) -> ["bench/stale: ", Name, ".json is no longer of commit ", Commit, ". Run: make figures"].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

texts(Problems) -> [unicode:characters_to_list(Problem) || Problem <- Problems].

too_heavy_test_() -> [?_assertEqual([], too_heavy(?MOST_BYTES)), ?_assertMatch([_], too_heavy(?MOST_BYTES + 1))].

unused_test() -> ?assertEqual(["docs/b.svg: no page shows it. Delete it"], texts(unused(["docs/a.svg", "docs/b.svg"], [<<"![a](a.svg)">>, <<"b.sv">>]))).

weak_test_() ->
    Of = fun(Counts, IsNoisy) -> texts(weak([#{<<"samples">> => Count} || Count <- Counts], IsNoisy)) end,
    [?_assertEqual([], Of([7, 9], false)), ?_assertEqual(["6 repeats, and a verdict needs 7"], Of([9, 6], false)),
     ?_assertEqual(["measured while other work ran on the machine"], Of([7], true)),
     %% A result without verdicts need not meet these requirements.
     ?_assertEqual([], Of([], true))].

dead_test_() ->
    Read = fun("a") -> {ok, #{<<"commit">> => <<"1234567">>}}; ("b") -> {error, "not measured"} end,
    Dead = dead([{"a", "1234567", old}, {"a", "7654321", old}, {"b", "1234567", old}], Read),
    [?_assertEqual([{"a", "7654321", old}, {"b", "1234567", old}], Dead), ?_assertMatch(["bench/stale: a.json is no longer of commit 7654321" ++ _ | _], texts(lists:map(fun dead_text/1, Dead)))].

odd_test() ->
    Svg = "<svg xmlns=\"x\" width=\"831\"><style>.a { fill: #ffffff; stroke: #f00; }</style><path style=\"fill:#123456\"/><rect fill=\"#123456\"/></svg>",
    ?assertEqual(["a.svg: the picture is 831 pixels wide, and a page 830", "a.svg: #f00 is not one of placement_svg:colours/0"], texts(odd("a.svg", Svg))),
    ?assertEqual([], odd("a.svg", unicode:characters_to_binary(placement_svg:picture(830, 10, "t", "")))).

%% All pictures use the console's list of colours.
the_colours_are_those_of_the_console_test_() ->
    [Css, Script] = [begin {ok, Text} = file:read_file(filename:join([beamway_bench_checkout:root(), "apps/beamway_console/priv/www", File])), Text end || File <- ["style.css", "pages/topology.js"]],
    [Light, Dark] = [element(2, re:run(Css, Pattern, [{capture, all_but_first, binary}, dotall])) || Pattern <- ["^.*?:root {(.*?)}", ":root\\[data-theme=\"dark\"\\] {(.*?)}"]],
    {match, [Ramp]} = re:run(Script, "const ramp = \\[(.*?)\\];", [{capture, all_but_first, binary}]),
    {match, Steps} = re:run(Ramp, "(\\d+), (\\d+), (\\d+)", [global, {capture, all_but_first, list}]),
    [?_assertEqual([{Name, match}, {Name, match}], [{Name, re:run(Rules, ["--", Name, ": ", Value, ";"], [{capture, none}])} || {Rules, Value} <- [{Light, InLight}, {Dark, InDark}]])
     || {Name, InLight, InDark} <- placement_svg:colours()]
        ++ [?_assertEqual(texts([["#" | [io_lib:format("~2.16.0b", [list_to_integer(Part)]) || Part <- Step]]]), texts([placement_svg:ramp(Place / (length(Steps) - 1))]))
            || {Place, Step} <- lists:zip(lists:seq(0, length(Steps) - 1), Steps)].
-endif.
