%% SPDX-License-Identifier: Apache-2.0
%% @doc HPACK: the examples in RFC 7541, Appendix C, and properties.
-module(yucan_hpack_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

properties_test_() -> yucan_fuzz:tests(300, [{"HPACK there and back", fun prop_round/0}, {"HPACK of any bytes", fun prop_noise/0}, {"Huffman codes", fun prop_huffman/0}]).

block(Hex) -> binary:decode_hex(<< <<C>> || <<C>> <= list_to_binary(Hex), C =/= $\s >>).

%% Decodes blocks one after another. `Blocks' lists each block with its fields and the table size after it.
decoded(Bytes, Blocks) ->
    lists:foldl(fun({Hex, Fields, Size}, Table) ->
        {ok, Got, Table1} = yucan_hpack:decode(block(Hex), 100000, Table),
        ?assertEqual([{list_to_binary(N), list_to_binary(V)} || {N, V} <- Fields], Got),
        ?assertEqual(Size, yucan_hpack:size(Table1)),
        Table1
    end, yucan_hpack:new(Bytes), Blocks).

plain() -> [{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {":authority", "www.example.com"}].
https() -> [{":method", "GET"}, {":scheme", "https"}, {":path", "/index.html"}, {":authority", "www.example.com"}, {"custom-key", "custom-value"}].
status(Status) -> [{":status", Status}, {"cache-control", "private"}, {"date", "Mon, 21 Oct 2013 20:13:21 GMT"}, {"location", "https://www.example.com"}].
last() -> [{":status", "200"}, {"cache-control", "private"}, {"date", "Mon, 21 Oct 2013 20:13:22 GMT"}, {"location", "https://www.example.com"},
           {"content-encoding", "gzip"}, {"set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"}].

%% C.2 to C.6.
appendix_test_() ->
    NoCache = plain() ++ [{"cache-control", "no-cache"}],
    [{Name, fun() -> decoded(Bytes, Blocks) end} || {Name, Bytes, Blocks} <-
        [{"C.2.1", 4096, [{"400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", [{"custom-key", "custom-header"}], 55}]},
         {"C.2.2", 4096, [{"040c 2f73 616d 706c 652f 7061 7468", [{":path", "/sample/path"}], 0}]},
         {"C.2.3", 4096, [{"1008 7061 7373 776f 7264 0673 6563 7265 74", [{"password", "secret"}], 0}]},
         {"C.2.4", 4096, [{"82", [{":method", "GET"}], 0}]},
         {"C.3", 4096, [{"8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", plain(), 57},
                        {"8286 84be 5808 6e6f 2d63 6163 6865", NoCache, 110},
                        {"8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", https(), 164}]},
         {"C.4", 4096, [{"8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", plain(), 57},
                        {"8286 84be 5886 a8eb 1064 9cbf", NoCache, 110},
                        {"8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", https(), 164}]},
         {"C.5", 256, [{"4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073"
                        "3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", status("302"), 222},
                       {"4803 3330 37c1 c0bf", status("307"), 222},
                       {"88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48"
                        "514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31", last(), 215}]},
         {"C.6", 256, [{"4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae"
                        "43d3", status("302"), 222},
                       {"4883 640e ffc1 c0bf", status("307"), 222},
                       {"88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af"
                        "2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07", last(), 215}]}]].

%% In the table of Appendix A, the names are in alphabetical order from the 15th entry on.
static_test() ->
    Names = [begin {ok, [{Name, _}], _} = yucan_hpack:decode(<<1:1, Index:7>>, 100, yucan_hpack:new(0)), Name end || Index <- lists:seq(1, 61)],
    ?assertEqual([], [Name || Name <- Names, re:run(Name, "^:?[a-z-]+$", [dollar_endonly]) =:= nomatch]),
    ?assertEqual([<<"accept-charset">>, <<"accept-encoding">>, <<"accept-language">>, <<"accept-ranges">>, <<"accept">>, <<"access-control-allow-origin">>], lists:sublist(Names, 15, 6)),
    ?assertEqual(lists:usort(lists:nthtail(19, Names)), lists:nthtail(19, Names)),
    ?assertEqual(<<"www-authenticate">>, lists:last(Names)).

%% C.1 encodes 10 and 1337 with a prefix of five bits, which are used as table sizes here.
integers_test() ->
    ?assertMatch({ok, [], _}, yucan_hpack:decode(<<2#00101010>>, 100, yucan_hpack:new(4096))),
    ?assertMatch({ok, [], _}, yucan_hpack:decode(<<2#00111111, 154, 10>>, 100, yucan_hpack:new(4096))),
    ?assertEqual(error, yucan_hpack:decode(<<2#00111111, 154, 10>>, 100, yucan_hpack:new(1336))),
    {Update, _} = yucan_hpack:encode([], yucan_hpack:resize(1337, yucan_hpack:new(4096))),
    ?assertEqual(<<2#00111111, 154, 10>>, iolist_to_binary(Update)).

%% 4.2: if the table size is reduced and then increased again, the table is emptied in between.
sizes_test() ->
    Fields = [{<<"x">>, <<"y">>}],
    {_, Encoder} = yucan_hpack:encode(Fields, yucan_hpack:new(4096)),
    {Block, _} = yucan_hpack:encode(Fields, yucan_hpack:resize(4096, yucan_hpack:resize(0, Encoder))),
    ?assertMatch(<<2#00100000, 2#00111111, 225, 31, 64, 1, "x", 1, "y">>, iolist_to_binary(Block)),
    ?assertMatch({ok, Fields, _}, yucan_hpack:decode(iolist_to_binary(Block), 100, yucan_hpack:new(4096))).

%% 2.3.3, 4.2, 5.1, 5.2, 6.1, 6.3.
bad_test_() ->
    [{Hex, ?_assertEqual(error, yucan_hpack:decode(block(Hex), 1000, yucan_hpack:new(4096)))}
     || Hex <- ["80", "be", "8220", "ffffffffffff0f", "3fe2 1f", "0085 f2b2 4a84 ff84 4950 9fff", "0085 f2b2 4a84 ff83 4950 90", "0085 ffffffff fc 00", "40", "4005 61", "00"]].

%% A single byte may stand for a large field. Decoding stops at the limit, and the table stays valid.
bomb_test() ->
    Field = {<<"x">>, binary:copy(<<"y">>, 4000)},
    {ok, [Field], Table} = yucan_hpack:decode(iolist_to_binary([64, 1, "x", <<127, (3873 band 127 bor 128), (3873 bsr 7)>>, element(2, Field)]), 5000, yucan_hpack:new(4096)),
    Bomb = binary:copy(<<190>>, 16000),
    {_, Before} = process_info(self(), total_heap_size),
    ?assertMatch({too_large, _}, yucan_hpack:decode(Bomb, 32768, Table)),
    {_, After} = process_info(self(), total_heap_size),
    ?assert(After - Before < 100000),
    ?assertEqual({ok, [Field], Table}, yucan_hpack:decode(<<190>>, 5000, Table)).

%% Secrets are never stored in a table (7.1.3).
secrets_test() ->
    {Block, Table} = yucan_hpack:encode([{<<"set-cookie">>, <<"a">>}], yucan_hpack:new(4096)),
    ?assertMatch(<<2#0001:4, _/bits>>, iolist_to_binary(Block)),
    ?assertEqual(0, yucan_hpack:size(Table)).

%% ---- properties

name() -> ?LET(Name, oneof([["x-", list(range($a, $z))], "date", "server", "etag", "set-cookie", "content-length", "accept"]), iolist_to_binary(Name)).
value() -> ?LET(Value, frequency([{3, oneof(["a", "bb", ""])}, {1, list(byte())}, {1, ?LET(N, range(0, 3000), lists:duplicate(N, $v))}]), iolist_to_binary(Value)).
fields() -> list({name(), value()}).

%% Generates several blocks, with changes of the table size between them.
prop_round() ->
    ?FORALL(Steps, list(frequency([{4, fields()}, {1, range(0, 5000)}])),
            begin
                {_, _, Right} = lists:foldl(fun
                    (Size, {Encoder, Decoder, Right}) when is_integer(Size) -> {yucan_hpack:resize(Size, Encoder), Decoder, Right};
                    (Fields, {Encoder, Decoder, Right}) ->
                        All = [{<<":status">>, <<"200">>} | Fields],
                        {Block, Encoder1} = yucan_hpack:encode(All, Encoder),
                        {ok, Got, Decoder1} = yucan_hpack:decode(iolist_to_binary(Block), 10000000, Decoder),
                        {Encoder1, Decoder1, Right andalso Got =:= All andalso yucan_hpack:size(Encoder1) =:= yucan_hpack:size(Decoder1)}
                end, {yucan_hpack:new(4096), yucan_hpack:new(4096), true}, Steps),
                Right
            end).

prop_noise() ->
    ?FORALL(Bytes, binary(),
            case yucan_hpack:decode(Bytes, 1000, yucan_hpack:new(256)) of
                {ok, Fields, Table} -> is_list(Fields) andalso yucan_hpack:size(Table) =< 256;
                {too_large, Table} -> yucan_hpack:size(Table) =< 256;
                error -> true
            end).

prop_huffman() ->
    Codes = codes(),
    ?FORALL(Text, ?LET(List, list(byte()), list_to_binary(List)),
            begin
                Bits = << <<Code:Length>> || <<Byte>> <= Text, {Code, Length} <- [maps:get(Byte, Codes)] >>,
                bit_size(Bits) > 126 * 8 orelse {ok, [{<<"a">>, Text}], yucan_hpack:new(0)} =:= yucan_hpack:decode(huffman(Bits), 100000, yucan_hpack:new(0))
            end).

%% Returns each byte's code and its length, determined by decoding. Codes of the same length are consecutive (Appendix B).
codes() ->
    maps:from_list([{Byte, {Code, Bits}} || {Bits, First, Count} <- [{5, 0, 10}, {6, 16#14, 26}, {7, 16#5c, 32}, {8, 16#f8, 6}, {10, 16#3f8, 5}, {11, 16#7fa, 3},
        {12, 16#ffa, 2}, {13, 16#1ff8, 6}, {14, 16#3ffc, 2}, {15, 16#7ffc, 3}, {19, 16#7fff0, 3}, {20, 16#fffe6, 8}, {21, 16#1fffdc, 13}, {22, 16#3fffd2, 26},
        {23, 16#7fffd8, 29}, {24, 16#ffffea, 12}, {25, 16#1ffffec, 4}, {26, 16#3ffffe0, 15}, {27, 16#7ffffde, 19}, {28, 16#fffffe2, 29}, {30, 16#3ffffffc, 3}],
        Code <- lists:seq(First, First + Count - 1), {ok, [{_, <<Byte>>}], _} <- [yucan_hpack:decode(huffman(<<Code:Bits>>), 1000, yucan_hpack:new(0))]]).

huffman(Bits) ->
    Padding = (8 - bit_size(Bits) rem 8) rem 8,
    Coded = <<Bits/bits, ((1 bsl Padding) - 1):Padding>>,
    <<0, 1, "a", 1:1, (byte_size(Coded)):7, Coded/binary>>.

codes_test() -> ?assertEqual(256, map_size(codes())).
