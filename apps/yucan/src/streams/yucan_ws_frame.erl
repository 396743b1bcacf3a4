%% SPDX-License-Identifier: Apache-2.0
%% @doc Frames of WebSocket (RFC 6455, 5): pure. yucan_ws feeds it what it receives.
-module(yucan_ws_frame).

-export([parse/3, size/1, encode/2, unmask/2, close_payload/2, parse_close/1]).
-export_type([opcode/0]).

-type opcode() :: continuation | text | binary | close | ping | pong.

%% @doc The next frame from a client, unmasked. `Compressed' says whether the first reserved bit may be set.
-spec parse(binary(), MaxBytes :: pos_integer(), Compressed :: boolean()) ->
    {ok, Fin :: boolean(), Deflated :: boolean(), opcode(), Payload :: binary(), Rest :: binary()} | more
    | {error, CloseCode :: 1002 | 1009}.
parse(<<_:1, Rsv1:1, Rsv:2, _/bits>>, _, Compressed) when Rsv =/= 0; Rsv1 =:= 1, not Compressed -> {error, 1002};
parse(<<_:4, Opcode:4, _/bits>>, _, _) when Opcode > 2, Opcode < 8; Opcode > 10 -> {error, 1002};
%% A client must mask (5.1); control frames are short, whole and not compressed (5.5).
parse(<<_:8, 0:1, _/bits>>, _, _) -> {error, 1002};
parse(<<0:1, _:3, Opcode:4, _/bits>>, _, _) when Opcode >= 8 -> {error, 1002};
parse(<<_:1, 1:1, _:2, Opcode:4, _/bits>>, _, _) when Opcode >= 8; Opcode =:= 0 -> {error, 1002};
parse(<<_:4, Opcode:4, 1:1, Length:7, _/bits>>, _, _) when Opcode >= 8, Length > 125 -> {error, 1002};
parse(<<Head:1/binary, 1:1, 127:7, Length:64, Rest/binary>>, Max, _) when Length > 65535 -> payload(Head, Length, Rest, Max);
parse(<<_:8, 1:1, 127:7, _:64, _/bits>>, _, _) -> {error, 1002};
parse(<<Head:1/binary, 1:1, 126:7, Length:16, Rest/binary>>, Max, _) when Length > 125 -> payload(Head, Length, Rest, Max);
parse(<<_:8, 1:1, 126:7, _:16, _/bits>>, _, _) -> {error, 1002};
parse(<<Head:1/binary, 1:1, Length:7, Rest/binary>>, Max, _) when Length < 126 -> payload(Head, Length, Rest, Max);
parse(_, _, _) -> more.

payload(_, Length, _, Max) when Length > Max -> {error, 1009};
payload(<<Fin:1, Deflated:1, _:2, Opcode:4>>, Length, Rest, _) ->
    case Rest of
        <<Key:4/binary, Masked:Length/binary, Next/binary>> ->
            {ok, Fin =:= 1, Deflated =:= 1, opcode(Opcode), unmask(Masked, Key), Next};
        _ -> more
    end.

%% @doc How many bytes the frame has with which these bytes begin, as far as they tell; else 0.
-spec size(binary()) -> non_neg_integer().
size(<<_:9, 127:7, Length:64, _/bits>>) -> 14 + Length;
size(<<_:9, 126:7, Length:16, _/bits>>) -> 8 + Length;
size(<<_:9, Length:7, _/bits>>) when Length < 126 -> 6 + Length;
size(_) -> 0.

opcode(0) -> continuation;
opcode(1) -> text;
opcode(2) -> binary;
opcode(8) -> close;
opcode(9) -> ping;
opcode(10) -> pong.

%% @doc Takes the mask off, or puts it on.
-spec unmask(binary(), Key :: <<_:32>>) -> binary().
unmask(Data, Key) ->
    Size = byte_size(Data),
    crypto:exor(Data, binary:part(binary:copy(Key, Size div 4 + 1), 0, Size)).

%% @doc A frame of the server, never masked.
-spec encode(opcode() | {deflated, text | binary}, iodata()) -> iodata().
encode({deflated, Opcode}, Payload) -> [<<1:1, 1:1, 0:2, (number(Opcode)):4>>, length_of(iolist_size(Payload)), Payload];
encode(Opcode, Payload) -> [<<1:1, 0:3, (number(Opcode)):4>>, length_of(iolist_size(Payload)), Payload].

number(continuation) -> 0;
number(text) -> 1;
number(binary) -> 2;
number(close) -> 8;
number(ping) -> 9;
number(pong) -> 10.

length_of(Size) when Size < 126 -> <<Size>>;
length_of(Size) when Size < 65536 -> <<126, Size:16>>;
length_of(Size) -> <<127, Size:64>>.

%% @doc What a close frame carries.
-spec close_payload(Code :: 1000..4999, Text :: iodata()) -> binary().
close_payload(Code, Text) ->
    Bytes = iolist_to_binary(Text),
    <<Code:16, (binary:part(Bytes, 0, min(123, byte_size(Bytes))))/binary>>.

%% @doc Code and text of the other end's close frame (7.4).
-spec parse_close(binary()) -> {ok, Code :: 1000..4999, Text :: binary()} | {error, 1002 | 1007}.
parse_close(<<>>) -> {ok, 1000, <<>>};
parse_close(<<Code:16, Text/binary>>) when Code >= 1000, Code =< 1003; Code >= 1007, Code =< 1014; Code >= 3000, Code =< 4999 ->
    case unicode:characters_to_binary(Text) of
        Text -> {ok, Code, Text};
        _ -> {error, 1007}
    end;
parse_close(_) -> {error, 1002}.
