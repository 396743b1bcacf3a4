%% SPDX-License-Identifier: Apache-2.0
%% @doc Formats numbers, sizes and tables for people, and parses lists of numbers. All functions except {@link note/2} are pure.
-module(beamway_bench_text).

-export([note/2, numbers/4, size_text/1, size_words/1, number/1, ratio/3, verdict/1, table/1]).

%% @doc Prints something that the user should know even though nothing failed.
-spec note(io:format(), [term()]) -> ok.
note(Format, Args) ->
    io:format(standard_error, "beamway: " ++ Format ++ "~n", Args).

%% @doc Parses a list such as `16,1k,1m' whose numbers must be within the bounds. Error messages name `Option'.
-spec numbers(Option :: string(), Text :: string(), Min :: integer(), Max :: integer()) ->
          {ok, [integer(), ...]} | {error, unicode:chardata()}.
numbers(Option, Text, Min, Max) ->
    Numbers = [parsed(Word) || Word <- string:lexemes(Text, ",")],
    case Numbers =/= [] andalso lists:all(fun(N) -> is_integer(N) andalso N >= Min andalso N =< Max end, Numbers) of
        true -> {ok, Numbers};
        false -> {error, io_lib:format("~ts ~ts: expected numbers from ~b to ~b with commas, such as ~b or 16k",
                                       [Option, Text, Min, Max, max(Min, 16)])}
    end.

parsed(Word) ->
    case string:to_integer(Word) of
        {N, ""} when is_integer(N) -> N;
        {N, "k"} when is_integer(N) -> N bsl 10;
        {N, "m"} when is_integer(N) -> N bsl 20;
        _ -> none
    end.

%% @doc Returns a size in the form that numbers/4 parses, such as `1m' for 1048576.
-spec size_text(Bytes :: non_neg_integer()) -> string().
size_text(Bytes) -> scaled(Bytes, "m", "k", "").

%% @doc Returns a size in human-readable form, such as `1 MB' for 1048576.
-spec size_words(Bytes :: non_neg_integer()) -> string().
size_words(Bytes) -> scaled(Bytes, " MB", " KB", " B").

scaled(Bytes, Mega, _, _) when Bytes > 0, Bytes rem (1 bsl 20) =:= 0 -> integer_to_list(Bytes bsr 20) ++ Mega;
scaled(Bytes, _, Kilo, _) when Bytes > 0, Bytes rem (1 bsl 10) =:= 0 -> integer_to_list(Bytes bsr 10) ++ Kilo;
scaled(Bytes, _, _, One) -> integer_to_list(Bytes) ++ One.

%% @doc Returns a number in human-readable form, without meaningless digits.
-spec number(number()) -> string().
number(N) when N < 0 -> "-" ++ number(-N);
number(N) when N >= 999.5 -> thousands(integer_to_list(round(N)));
number(N) when N >= 99.95 -> integer_to_list(round(N));
number(N) when N >= 9.995 -> lists:flatten(io_lib:format("~.1f", [float(N)]));
number(N) -> lists:flatten(io_lib:format("~.2f", [float(N)])).

thousands(Digits) when length(Digits) =< 3 -> Digits;
thousands(Digits) ->
    {Front, Back} = lists:split(length(Digits) - 3, Digits),
    thousands(Front) ++ "," ++ Back.

%% @doc Returns a ratio in human-readable form, with its interval or, if there are too few repeats, with its range.
-spec ratio(Ratio :: float() | null, Interval :: [float()] | null, Range :: [float()] | null) -> unicode:chardata().
ratio(null, _, _) -> "";
ratio(Ratio, [Low, High], _) -> [number(Ratio), " [", number(Low), ", ", number(High), "]"];
ratio(Ratio, null, [Least, Most]) -> [number(Ratio), " (", number(Least), " to ", number(Most), ")"];
ratio(Ratio, null, null) -> number(Ratio).

%% @doc Returns the verdict as it appears in the tables. Losses are shown as well.
-spec verdict(Verdict :: atom() | binary()) -> string().
verdict(null) -> "";
verdict(Verdict) when is_atom(Verdict) -> verdict(atom_to_binary(Verdict));
verdict(<<"unknown">>) -> "too few repeats";
verdict(<<"loses">>) -> "LOSES";
verdict(Verdict) -> binary_to_list(Verdict).

%% @doc Formats rows as aligned columns; the first row is the heading. `{right, Text}' is right-aligned.
-spec table([[unicode:chardata() | {right, unicode:chardata()}]]) -> unicode:chardata().
table(Rows) ->
    Widths = widths(Rows),
    [[string:trim(lists:join("  ", lists:zipwith(fun cell/2, Row, Widths)), trailing), "\n"] || Row <- Rows].

widths([[] | _]) -> [];
widths(Rows) ->
    [lists:max([string:length(text(hd(Row))) || Row <- Rows]) | widths([tl(Row) || Row <- Rows])].

cell({right, Text}, Width) -> string:pad(Text, Width, leading);
cell(Text, Width) -> string:pad(Text, Width, trailing).

text({right, Text}) -> Text;
text(Text) -> Text.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

numbers_test_() ->
    [?_assertEqual({ok, [16, 1024, 2097152]}, numbers("--size", "16,1k,2m", 0, 1 bsl 30))
     | [?_assertMatch({error, _}, numbers("--size", Text, 1, 100)) || Text <- ["", "x", "0", "101", "1,x", "1g", "-5", "1k"]]].

size_test_() ->
    [?_assertEqual({Text, Words}, {size_text(N), size_words(N)})
     || {Text, Words, N} <- [{"0", "0 B", 0}, {"64", "64 B", 64}, {"4k", "4 KB", 4096}, {"1m", "1 MB", 1 bsl 20},
                             {"1025", "1025 B", 1025}]].

number_test_() ->
    [?_assertEqual(Want, number(N))
     || {Want, N} <- [{"1,234,568", 1234567.8}, {"1,000", 999.6}, {"999", 999.4}, {"100", 99.96}, {"99.9", 99.94},
                      {"10.0", 9.996}, {"0.50", 0.5}, {"0.00", 0}, {"-12.0", -12}]].

table_test() ->
    ?assertEqual(<<"a    bb\nccc   1\n">>, unicode:characters_to_binary(table([["a", "bb"], ["ccc", {right, "1"}]]))).
-endif.
