%% SPDX-License-Identifier: Apache-2.0
%% @doc Shows a short text as a QR code on a terminal (ISO/IEC 18004): byte mode, versions 1 to 5, level L, one block, mask 0. A decoder can read any
%% mask; the rules for choosing a mask only make decoding easier. All functions are pure.
-module(yucan_qr).

-export([terminal/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% For each version, the number of data codewords and of error-correction codewords.
-define(SIZES, [{1, 19, 7}, {2, 34, 10}, {3, 55, 15}, {4, 80, 20}, {5, 108, 26}]).

%% Returns the rows of the code, where 1 is dark. A text with more than 106 bytes is too long.
-spec modules(binary()) -> {ok, [[0 | 1]]} | too_long.
modules(Text) ->
    case [Size || {_, Data, _} = Size <- ?SIZES, byte_size(Text) + 2 =< Data] of
        [{Version, Data, Correction} | _] ->
            Codewords = codewords(Text, Data),
            Size = 17 + 4 * Version,
            Fixed = fixed(Version, Size),
            All = filled(<<Codewords/binary, (correction(Codewords, Correction))/binary>>, places(Size, Fixed), Fixed),
            {ok, [[maps:get({Row, Column}, All) || Column <- lists:seq(0, Size - 1)] || Row <- lists:seq(0, Size - 1)]};
        [] -> too_long
    end.

%% @doc Returns the code as half-block characters, in black on white regardless of the terminal's colours.
-spec terminal(binary()) -> unicode:chardata().
terminal(Text) ->
    case modules(Text) of
        {ok, [First | _] = Rows} ->
            Light = [0 || _ <- lists:seq(1, length(First) + 4)],
            Framed = [Light, Light] ++ [[0, 0] ++ Row ++ [0, 0] || Row <- Rows] ++ [Light, Light, Light],
            halves(Framed);
        too_long -> []
    end.

halves([Upper, Lower | Rest]) ->
    ["\e[97;40m", [case Pair of {0, 0} -> 16#2588; {0, 1} -> 16#2580; {1, 0} -> 16#2584; {1, 1} -> $\s end || Pair <- lists:zip(Upper, Lower)], "\e[0m\n" | halves(Rest)];
halves(_) -> [].

%% ---- the data

codewords(Text, Count) ->
    Bits = <<4:4, (byte_size(Text)), Text/binary, 0:4>>,
    <<Bits/binary, (pad(Count - byte_size(Bits)))/binary>>.

pad(Count) -> binary_part(binary:copy(<<16#EC, 16#11>>, Count div 2 + 1), 0, Count).

%% Returns the remainder of dividing the data by the generator polynomial, in the field with 256 elements (Reed-Solomon).
correction(Data, Count) ->
    Generator = lists:foldl(fun(Power, Poly) -> plus([0 | [times(C, power(Power)) || C <- Poly]], Poly ++ [0]) end, [1], lists:seq(0, Count - 1)),
    [_ | Tail] = Generator,
    Zero = [0 || _ <- lists:seq(1, Count)],
    list_to_binary(lists:foldl(fun(Byte, [First | Rest]) -> plus(Rest ++ [0], [times(C, Byte bxor First) || C <- Tail]) end, Zero, binary_to_list(Data))).

plus(A, B) -> [X bxor Y || {X, Y} <- lists:zip(A, B)].

power(0) -> 1;
power(N) -> times(2, power(N - 1)).

times(_, 0) -> 0;
times(A, B) when B band 1 =:= 1 -> A bxor times(twice(A), B bsr 1);
times(A, B) -> times(twice(A), B bsr 1).

twice(A) when A >= 128 -> (A bsl 1) bxor 16#11D;
twice(A) -> A bsl 1.

%% ---- the layout

fixed(Version, Size) ->
    Edge = Size - 1,
    Timing = [{{6, N}, (N + 1) rem 2} || N <- lists:seq(0, Edge)] ++ [{{N, 6}, (N + 1) rem 2} || N <- lists:seq(0, Edge)],
    Finders = [{{Row + R, Column + C}, finder(max(abs(R), abs(C)))}
               || {Row, Column} <- [{3, 3}, {3, Size - 4}, {Size - 4, 3}], R <- lists:seq(-4, 4), C <- lists:seq(-4, 4),
                  Row + R >= 0, Row + R < Size, Column + C >= 0, Column + C < Size],
    At = 4 * Version + 10,
    Alignment = [{{At + R, At + C}, (max(abs(R), abs(C)) + 1) rem 2} || Version > 1, R <- lists:seq(-2, 2), C <- lists:seq(-2, 2)],
    maps:from_list(Timing ++ Finders ++ Alignment ++ format(Size) ++ [{{Size - 8, 8}, 1}]).

finder(Distance) when Distance =:= 2; Distance =:= 4 -> 0;
finder(_) -> 1.

%% Returns the format information (level L, mask 0) with its own error correction, in both positions.
format(Size) ->
    Bits = format_bits(1 bsl 3),
    Place = fun(Places) -> [{At, (Bits bsr Bit) band 1} || {Bit, At} <- Places] end,
    Place([{Bit, {Bit, 8}} || Bit <- lists:seq(0, 5)] ++ [{6, {7, 8}}, {7, {8, 8}}, {8, {8, 7}}] ++ [{Bit, {8, 14 - Bit}} || Bit <- lists:seq(9, 14)])
        ++ Place([{Bit, {8, Size - 1 - Bit}} || Bit <- lists:seq(0, 7)] ++ [{Bit, {Size - 15 + Bit, 8}} || Bit <- lists:seq(8, 14)]).

format_bits(Data) ->
    Rest = lists:foldl(fun(_, R) -> (R bsl 1) bxor ((R bsr 9) * 16#537) end, Data, lists:seq(1, 10)),
    (Data bsl 10 bor Rest) bxor 16#5412.

%% Returns the positions in pairs of columns from the right, alternately upwards and downwards.
places(Size, Fixed) ->
    Pairs = lists:seq(Size - 1, 8, -2) ++ [5, 3, 1],
    [{Row, Column} || Right <- Pairs, Step <- lists:seq(0, Size - 1), Column <- [Right, Right - 1],
                      Row <- [case (Right + 1) band 2 of 0 -> Size - 1 - Step; _ -> Step end], not is_map_key({Row, Column}, Fixed)].

filled(<<Bit:1, Bits/bits>>, [{Row, Column} | Places], All) -> filled(Bits, Places, All#{{Row, Column} => Bit bxor ((Row + Column + 1) rem 2)});
%% The modules that remain after the last bit contain only the mask.
filled(<<>>, [{Row, Column} | Places], All) -> filled(<<>>, Places, All#{{Row, Column} => (Row + Column + 1) rem 2});
filled(<<>>, [], All) -> All.

-ifdef(TEST).

% The expected rows are those that the Python package qrcode produces with the same version, level and mask.
known_test() ->
    {ok, Rows} = modules(<<"http://127.0.0.1:8080/">>),
    ?assertEqual([16#1fc4b7f, 16#1048a41, 16#175275d, 16#174915d, 16#174935d, 16#1047b41, 16#1fd557f, 16#12a00, 16#1df1cc4, 16#dab461, 16#7d75c7, 16#108d962,
                  16#1976f6b, 16#3a6ce9, 16#14f05b7, 16#e9eaea, 16#1069df8, 16#1311f, 16#1fdbb53, 16#1051f1b, 16#17525f3, 16#174e394, 16#1754a99, 16#105a39a, 16#1fd9163],
                 [lists:foldl(fun(Bit, Sum) -> 2 * Sum + Bit end, 0, Row) || Row <- Rows]).

sizes_test_() ->
    [?_assertEqual({Bytes, Size}, {Bytes, length(element(2, modules(binary:copy(<<"a">>, Bytes))))}) || {Bytes, Size} <- [{1, 21}, {17, 21}, {18, 25}, {32, 25}, {33, 29}, {53, 29}, {54, 33}, {78, 33}, {79, 37}, {106, 37}]]
        ++ [?_assertEqual(too_long, modules(binary:copy(<<"a">>, 107))), ?_assertEqual([], terminal(binary:copy(<<"a">>, 107)))].

% Each line shows two rows of the code, and there is a margin around the code.
terminal_test() ->
    Lines = string:lexemes(unicode:characters_to_list(terminal(<<"a">>)), "\n"),
    ?assertEqual([13], lists:usort([length(Lines)])),
    ?assertEqual([25], lists:usort([length(Line) - length("\e[97;40m\e[0m") || Line <- Lines])),
    ?assertMatch("\e[97;40m" ++ [16#2588, 16#2588, $\s, 16#2584, 16#2584 | _], lists:nth(2, Lines)).

-endif.
