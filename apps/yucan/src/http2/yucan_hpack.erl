%% SPDX-License-Identifier: Apache-2.0
%% @doc HPACK (RFC 7541), the encoding of header lists in HTTP/2. All functions are pure. Each direction of a connection has its own table.
%%
%% The caller limits the size of decoded fields, because a single byte of a block may stand for thousands of bytes. The encoder does not use Huffman
%% codes, which are optional: fields that repeat take one byte each, and few others are sent.
-module(yucan_hpack).
-dialyzer(no_improper_lists).

-export([new/1, decode/3, encode/2, resize/2, size/1]).
-export_type([table/0, field/0]).

-type field() :: {Name :: binary(), Value :: binary()}.

%% The entries by number, starting at 1. `added' is the number of the newest.
-record(table, {
    entries = #{} :: #{pos_integer() => field()},
    %% Used by an encoder: the number of the entry for each field.
    places = #{} :: #{field() => pos_integer()},
    added = 0 :: non_neg_integer(),
    size = 0 :: non_neg_integer(),
    max :: non_neg_integer(),
    %% The size that the settings allow. A decoder's `max' may be smaller.
    allowed :: non_neg_integer(),
    %% Used by an encoder: the smallest and the latest of the table sizes that the peer has not been
    %% told yet.
    told = none :: none | {Least :: non_neg_integer(), Last :: non_neg_integer()}
}).
-opaque table() :: #table{}.

%% The overhead in bytes that is added to the size of each entry (4.1).
-define(ENTRY_BYTES, 32).
%% The size limit of our tables, whatever the peer allows.
-define(TABLE_BYTES, 4096).

%% @doc Returns an empty table of this size in bytes.
-spec new(Bytes :: non_neg_integer()) -> table().
new(Bytes) -> #table{max = Bytes, allowed = Bytes}.

%% @doc Applies the table size that the peer allows to an encoder's table.
-spec resize(Bytes :: non_neg_integer(), table()) -> table().
resize(Bytes, #table{told = Told} = Table) ->
    New = min(Bytes, ?TABLE_BYTES),
    Least = case Told of none -> New; {Before, _} -> min(Before, New) end,
    shrink(Table#table{max = New, allowed = New, told = {Least, New}}).

%% @doc Returns the size of the table in bytes (4.1).
-spec size(table()) -> non_neg_integer().
size(#table{size = Size}) -> Size.

%% @doc Decodes a complete block. `too_large' means that its fields have more than `Max' bytes, counting 32 more for each field; the table is still
%% correct in that case. After an error the connection can no longer be used.
-spec decode(Block :: binary(), Max :: non_neg_integer(), table()) -> {ok, [field()], table()} | {too_large, table()} | error.
decode(Block, Max, Table) ->
    try sizes(Block, Max, Table) catch throw:compression -> error end.

-spec bad() -> no_return().
bad() -> throw(compression).

%% The table size may only change at the beginning of a block (4.2).
sizes(<<2#001:3, _/bits>> = Block, Max, #table{allowed = Allowed} = Table) ->
    case integer(Block, 5) of
        {New, Rest} when New =< Allowed -> sizes(Rest, Max, shrink(Table#table{max = New}));
        _ -> bad()
    end;
sizes(Block, Max, Table) -> fields(Block, Max, [], Table).

fields(<<>>, Max, _, Table) when Max < 0 -> {too_large, Table};
fields(<<>>, _, Done, Table) -> {ok, lists:reverse(Done), Table};
fields(<<1:1, Index:7, Rest/binary>>, Max, Done, Table) when Index > 0, Index < 127 ->
    field(Rest, Max, Done, entry(Index, Table), Table);
fields(<<1:1, _/bits>> = Block, Max, Done, Table) ->
    {Index, Rest} = integer(Block, 7),
    field(Rest, Max, Done, entry(Index, Table), Table);
fields(<<2#01:2, _/bits>> = Block, Max, Done, Table) ->
    {Field, Rest} = literal(Block, 6, Table),
    field(Rest, Max, Done, Field, add(Field, Table));
fields(<<2#000:3, _/bits>> = Block, Max, Done, Table) ->
    {Field, Rest} = literal(Block, 4, Table),
    field(Rest, Max, Done, Field, Table);
fields(_, _, _, _) -> bad().

%% If the fields exceed the limit, the rest of the block is decoded only to keep the table correct.
field(Rest, Max, Done, {Name, Value} = Field, Table) ->
    case Max - byte_size(Name) - byte_size(Value) - ?ENTRY_BYTES of
        Left when Left < 0 -> fields(Rest, Left, [], Table);
        Left -> fields(Rest, Left, [Field | Done], Table)
    end.

literal(Block, Bits, Table) ->
    {Name, Rest1} = case integer(Block, Bits) of
        {0, Rest} -> text(Rest);
        {Index, Rest} -> {element(1, entry(Index, Table)), Rest}
    end,
    {Value, Rest2} = text(Rest1),
    {{Name, Value}, Rest2}.

%% The text is copied, because otherwise an entry would keep all the bytes that arrived with it in memory.
text(<<0:1, _/bits>> = Block) ->
    {Size, Rest} = integer(Block, 7),
    case Rest of
        <<Text:Size/binary, Rest1/binary>> -> {binary:copy(Text), Rest1};
        _ -> bad()
    end;
text(<<1:1, _/bits>> = Block) ->
    {Size, Rest} = integer(Block, 7),
    case Rest of
        <<Text:Size/binary, Rest1/binary>> -> {huffman(Text, <<>>), Rest1};
        _ -> bad()
    end;
text(_) -> bad().

%% An integer is in the low `Bits' bits of the first byte or, if these are all ones, continues in the following bytes (5.1). The integers that we need
%% continue for at most four bytes.
integer(<<Byte, Rest/binary>>, Bits) ->
    Full = (1 bsl Bits) - 1,
    case Byte band Full of
        Full -> integer(Rest, Full, 0);
        Value -> {Value, Rest}
    end.

integer(<<0:1, Value:7, Rest/binary>>, Sum, Shift) when Shift =< 21 -> {Sum + (Value bsl Shift), Rest};
integer(<<1:1, Value:7, Rest/binary>>, Sum, Shift) when Shift < 21 -> integer(Rest, Sum + (Value bsl Shift), Shift + 7);
integer(_, _, _) -> bad().

-define(STATIC, {
    {<<":authority">>, <<"">>}, {<<":method">>, <<"GET">>}, {<<":method">>, <<"POST">>}, {<<":path">>, <<"/">>},
    {<<":path">>, <<"/index.html">>}, {<<":scheme">>, <<"http">>}, {<<":scheme">>, <<"https">>}, {<<":status">>, <<"200">>},
    {<<":status">>, <<"204">>}, {<<":status">>, <<"206">>}, {<<":status">>, <<"304">>}, {<<":status">>, <<"400">>},
    {<<":status">>, <<"404">>}, {<<":status">>, <<"500">>}, {<<"accept-charset">>, <<"">>},
    {<<"accept-encoding">>, <<"gzip, deflate">>}, {<<"accept-language">>, <<"">>}, {<<"accept-ranges">>, <<"">>},
    {<<"accept">>, <<"">>}, {<<"access-control-allow-origin">>, <<"">>}, {<<"age">>, <<"">>}, {<<"allow">>, <<"">>},
    {<<"authorization">>, <<"">>}, {<<"cache-control">>, <<"">>}, {<<"content-disposition">>, <<"">>},
    {<<"content-encoding">>, <<"">>}, {<<"content-language">>, <<"">>}, {<<"content-length">>, <<"">>},
    {<<"content-location">>, <<"">>}, {<<"content-range">>, <<"">>}, {<<"content-type">>, <<"">>}, {<<"cookie">>, <<"">>},
    {<<"date">>, <<"">>}, {<<"etag">>, <<"">>}, {<<"expect">>, <<"">>}, {<<"expires">>, <<"">>}, {<<"from">>, <<"">>},
    {<<"host">>, <<"">>}, {<<"if-match">>, <<"">>}, {<<"if-modified-since">>, <<"">>}, {<<"if-none-match">>, <<"">>},
    {<<"if-range">>, <<"">>}, {<<"if-unmodified-since">>, <<"">>}, {<<"last-modified">>, <<"">>}, {<<"link">>, <<"">>},
    {<<"location">>, <<"">>}, {<<"max-forwards">>, <<"">>}, {<<"proxy-authenticate">>, <<"">>},
    {<<"proxy-authorization">>, <<"">>}, {<<"range">>, <<"">>}, {<<"referer">>, <<"">>}, {<<"refresh">>, <<"">>},
    {<<"retry-after">>, <<"">>}, {<<"server">>, <<"">>}, {<<"set-cookie">>, <<"">>}, {<<"strict-transport-security">>, <<"">>},
    {<<"transfer-encoding">>, <<"">>}, {<<"user-agent">>, <<"">>}, {<<"vary">>, <<"">>}, {<<"via">>, <<"">>},
    {<<"www-authenticate">>, <<"">>}
}).
-define(STATIC_ENTRIES, 61).

entry(Index, _) when Index > 0, Index =< ?STATIC_ENTRIES -> element(Index, ?STATIC);
entry(Index, #table{entries = Entries, added = Added}) ->
    case Entries of
        #{(Added - Index + ?STATIC_ENTRIES + 1) := Field} -> Field;
        _ -> bad()
    end.

%% Adding a field that is larger than the table empties the table (4.4).
add({Name, Value} = Field, #table{entries = Entries, added = Added, size = Size} = Table) ->
    Bytes = byte_size(Name) + byte_size(Value) + ?ENTRY_BYTES,
    shrink(Table#table{entries = Entries#{(Added + 1) => Field}, added = Added + 1, size = Size + Bytes}).

shrink(#table{size = Size, max = Max} = Table) when Size =< Max -> Table;
shrink(#table{entries = Entries, places = Places, added = Added, size = Size} = Table) ->
    Oldest = Added - map_size(Entries) + 1,
    {{Name, Value} = Field, Left} = maps:take(Oldest, Entries),
    Places1 = case Places of #{Field := Oldest} -> maps:remove(Field, Places); _ -> Places end,
    shrink(Table#table{entries = Left, places = Places1, size = Size - byte_size(Name) - byte_size(Value) - ?ENTRY_BYTES}).

%% @doc Encodes these fields as a block.
-spec encode([field()], table()) -> {iodata(), table()}.
encode(Fields, #table{told = none} = Table) -> encoded(Fields, [], Table);
encode(Fields, #table{told = {Last, Last}} = Table) -> encoded(Fields, [number(2#001, 5, Last)], Table#table{told = none});
encode(Fields, #table{told = {Least, Last}} = Table) ->
    encoded(Fields, [number(2#001, 5, Least), number(2#001, 5, Last)], Table#table{told = none}).

encoded([{<<":status">>, Status} | Fields], Done, Table) ->
    case status(Status) of
        0 -> encoded(Fields, [Done, <<8>> | text_of(Status)], Table);
        Index -> encoded(Fields, [Done | <<1:1, Index:7>>], Table)
    end;
encoded([{Name, Value} = Field | Fields], Done, #table{places = Places, added = Added} = Table) ->
    case Places of
        #{Field := Place} -> encoded(Fields, [Done | number(1, 7, Added - Place + ?STATIC_ENTRIES + 1)], Table);
        _ ->
            case kind(Name) of
                repeats when byte_size(Name) + byte_size(Value) < ?TABLE_BYTES div 8 ->
                    encoded(Fields, [Done | literal(2#01, 6, Name, Value)], placed(Field, add(Field, Table)));
                secret -> encoded(Fields, [Done | literal(2#0001, 4, Name, Value)], Table);
                _ -> encoded(Fields, [Done | literal(2#0000, 4, Name, Value)], Table)
            end
    end;
encoded([], Done, Table) -> {Done, Table}.

placed(Field, #table{entries = Entries, places = Places, added = Added} = Table) when is_map_key(Added, Entries) ->
    Table#table{places = Places#{Field => Added}};
placed(_, Table) -> Table.

%% Values that differ in each response would only displace useful entries. Secret values are not added either, because the size of a block could
%% reveal a correct guess (7.1.3).
kind(<<"content-length">>) -> differs;
kind(<<"content-range">>) -> differs;
kind(<<"etag">>) -> differs;
kind(<<"last-modified">>) -> differs;
kind(<<"location">>) -> differs;
kind(<<"set-cookie">>) -> secret;
kind(<<"authorization">>) -> secret;
kind(_) -> repeats.

status(<<"200">>) -> 8;
status(<<"204">>) -> 9;
status(<<"206">>) -> 10;
status(<<"304">>) -> 11;
status(<<"400">>) -> 12;
status(<<"404">>) -> 13;
status(<<"500">>) -> 14;
status(_) -> 0.

-define(NAMES, #{
    <<"accept-charset">> => 15, <<"accept-encoding">> => 16, <<"accept-language">> => 17, <<"accept-ranges">> => 18,
    <<"accept">> => 19, <<"access-control-allow-origin">> => 20, <<"age">> => 21, <<"allow">> => 22, <<"authorization">> => 23,
    <<"cache-control">> => 24, <<"content-disposition">> => 25, <<"content-encoding">> => 26, <<"content-language">> => 27,
    <<"content-length">> => 28, <<"content-location">> => 29, <<"content-range">> => 30, <<"content-type">> => 31,
    <<"cookie">> => 32, <<"date">> => 33, <<"etag">> => 34, <<"expect">> => 35, <<"expires">> => 36, <<"from">> => 37,
    <<"host">> => 38, <<"if-match">> => 39, <<"if-modified-since">> => 40, <<"if-none-match">> => 41, <<"if-range">> => 42,
    <<"if-unmodified-since">> => 43, <<"last-modified">> => 44, <<"link">> => 45, <<"location">> => 46, <<"max-forwards">> => 47,
    <<"proxy-authenticate">> => 48, <<"proxy-authorization">> => 49, <<"range">> => 50, <<"referer">> => 51, <<"refresh">> => 52,
    <<"retry-after">> => 53, <<"server">> => 54, <<"set-cookie">> => 55, <<"strict-transport-security">> => 56,
    <<"transfer-encoding">> => 57, <<"user-agent">> => 58, <<"vary">> => 59, <<"via">> => 60, <<"www-authenticate">> => 61
}).

literal(Pattern, Bits, Name, Value) ->
    case ?NAMES of
        #{Name := Index} -> [number(Pattern, Bits, Index) | text_of(Value)];
        _ -> [number(Pattern, Bits, 0), text_of(Name) | text_of(Value)]
    end.

text_of(Text) -> [number(0, 7, byte_size(Text)) | Text].

number(Pattern, Bits, Value) when Value < (1 bsl Bits) - 1 -> <<Pattern:(8 - Bits), Value:Bits>>;
number(Pattern, Bits, Value) ->
    Full = (1 bsl Bits) - 1,
    <<Pattern:(8 - Bits), Full:Bits, (more(Value - Full))/binary>>.

more(Value) when Value < 128 -> <<Value>>;
more(Value) -> <<1:1, Value:7, (more(Value bsr 7))/binary>>.

%% ---- Huffman codes (5.2)

%% Codes of the same length are consecutive, and longer codes are greater (Appendix B), so the first bits determine the length.
-define(CODES(Bits, First, Symbols),
    huffman(<<C:Bits, Rest/bits>>, Done) when C < First + tuple_size(Symbols) -> huffman(Rest, <<Done/binary, (element(C - First + 1, Symbols))>>)).

?CODES(5, 16#0, {$0, $1, $2, $a, $c, $e, $i, $o, $s, $t});
?CODES(6, 16#14, {32, 37, 45, 46, 47, $3, $4, $5, $6, $7, $8, $9, 61, $A, 95, $b, $d, $f, $g, $h, $l, $m, $n, $p, $r, $u});
?CODES(7, 16#5c, {58, $B, $C, $D, $E, $F, $G, $H, $I, $J, $K, $L, $M, $N, $O, $P, $Q, $R, $S, $T, $U, $V, $W, $Y, $j, $k, $q, $v,
    $w, $x, $y, $z});
?CODES(8, 16#f8, {38, 42, 44, 59, $X, $Z});
?CODES(10, 16#3f8, {33, 34, 40, 41, 63});
?CODES(11, 16#7fa, {39, 43, 124});
?CODES(12, 16#ffa, {35, 62});
?CODES(13, 16#1ff8, {0, 36, 64, 91, 93, 126});
?CODES(14, 16#3ffc, {94, 125});
?CODES(15, 16#7ffc, {60, 96, 123});
?CODES(19, 16#7fff0, {92, 195, 208});
?CODES(20, 16#fffe6, {128, 130, 131, 162, 184, 194, 224, 226});
?CODES(21, 16#1fffdc, {153, 161, 167, 172, 176, 177, 179, 209, 216, 217, 227, 229, 230});
?CODES(22, 16#3fffd2, {129, 132, 133, 134, 136, 146, 154, 156, 160, 163, 164, 169, 170, 173, 178, 181, 185, 186, 187, 189, 190,
    196, 198, 228, 232, 233});
?CODES(23, 16#7fffd8, {1, 135, 137, 138, 139, 140, 141, 143, 147, 149, 150, 151, 152, 155, 157, 158, 165, 166, 168, 174, 175, 180,
    182, 183, 188, 191, 197, 231, 239});
?CODES(24, 16#ffffea, {9, 142, 144, 145, 148, 159, 171, 206, 215, 225, 236, 237});
?CODES(25, 16#1ffffec, {199, 207, 234, 235});
?CODES(26, 16#3ffffe0, {192, 193, 200, 201, 202, 205, 210, 213, 218, 219, 238, 240, 242, 243, 255});
?CODES(27, 16#7ffffde, {203, 204, 211, 212, 214, 221, 222, 223, 241, 244, 245, 246, 247, 248, 250, 251, 252, 253, 254});
?CODES(28, 16#fffffe2, {2, 3, 4, 5, 6, 7, 8, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24, 25, 26, 27, 28, 29, 30, 31, 127, 220,
    249});
?CODES(30, 16#3ffffffc, {10, 13, 22});
%% The remaining bits are padding, which must be shorter than a byte and consist of ones.
huffman(Rest, Done) when bit_size(Rest) < 8 ->
    Size = bit_size(Rest),
    Ones = (1 bsl Size) - 1,
    case Rest of
        <<Ones:Size>> -> Done;
        _ -> bad()
    end;
huffman(_, _) -> bad().
