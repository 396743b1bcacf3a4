%% SPDX-License-Identifier: Apache-2.0
%% @doc Parses and encodes WebSocket frames (RFC 6455, 5). All functions are pure. yucan_ws passes it the bytes that it receives.
-module(yucan_ws_frame).

-export([parse/3, size/1, encode/2, unmask/2, is_text/1, close_payload/2, parse_close/1]).
-export_type([opcode/0]).

-type opcode() :: continuation | text | binary | close | ping | pong.

%% @doc Returns the client's next frame, unmasked. `Compressed' says whether the first reserved bit may be set.
-spec parse(binary(), MaxBytes :: pos_integer(), Compressed :: boolean()) ->
    {ok, Fin :: boolean(), Deflated :: boolean(), opcode(), Payload :: binary(), Rest :: binary()} | more
    | {error, CloseCode :: 1002 | 1009}.
%% Matches complete bytes, because matching fields of a few bits takes longer. In the first byte,
%% 128 is Fin, 64, 32 and 16 are the reserved bits, and 8 marks a control frame. In the second byte,
%% 128 is the mask bit.
parse(<<Head, _/bits>>, _, Compressed) when Head band 16#30 =/= 0; Head band 16#40 =/= 0, not Compressed -> {error, 1002};
parse(<<Head, _/bits>>, _, _) when Head band 15 > 2, Head band 15 < 8; Head band 15 > 10 -> {error, 1002};
%% A client must mask its frames (5.1). Control frames are short, unfragmented and not compressed (5.5).
parse(<<_, Length, _/bits>>, _, _) when Length < 128 -> {error, 1002};
parse(<<Head, _/bits>>, _, _) when Head band 16#88 =:= 8 -> {error, 1002};
parse(<<Head, _/bits>>, _, _) when Head band 16#48 =:= 16#48; Head band 16#4f =:= 16#40 -> {error, 1002};
parse(<<Head, Length, _/bits>>, _, _) when Head band 8 =/= 0, Length > 128 + 125 -> {error, 1002};
parse(<<Head, Length, Rest/binary>>, Max, _) when Length < 128 + 126 -> payload(Head, Length - 128, Rest, Max);
parse(<<Head, 254, Length:16, Rest/binary>>, Max, _) when Length > 125 -> payload(Head, Length, Rest, Max);
parse(<<_, 254, _:16, _/bits>>, _, _) -> {error, 1002};
parse(<<Head, 255, Length:64, Rest/binary>>, Max, _) when Length > 65535 -> payload(Head, Length, Rest, Max);
parse(<<_, 255, _:64, _/bits>>, _, _) -> {error, 1002};
parse(_, _, _) -> more.

payload(Head, Length, _, Max) when Length > Max, Head band 8 =:= 0 -> {error, 1009};
payload(Head, Length, Rest, _) ->
    case Rest of
        <<Key:4/binary, Masked:Length/binary, Next/binary>> ->
            {ok, Head band 128 =/= 0, Head band 64 =/= 0, opcode(Head band 15), unmask(Masked, Key), Next};
        _ -> more
    end.

%% @doc Returns the size, in bytes, of the frame that begins with these bytes, or 0 if there are too few bytes to determine it.
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

%% @doc Applies or removes the mask.
-spec unmask(binary(), Key :: <<_:32>>) -> binary().
unmask(Data, <<Key:32>>) ->
    Size = byte_size(Data),
    crypto:exor(Data, binary_part(mask(Key, Size), 0, Size)).

%% Returns the mask, repeated to at least this length. It is copied 64 bytes at a time, because copying four bytes at a time would dominate the cost.
mask(Key, Size) when Size =< 64 ->
    <<Key:32, Key:32, Key:32, Key:32, Key:32, Key:32, Key:32, Key:32, Key:32, Key:32, Key:32, Key:32, Key:32, Key:32, Key:32, Key:32>>;
mask(Key, Size) -> binary:copy(mask(Key, 64), Size div 64 + 1).

%% @doc Returns whether the bytes are UTF-8. Most text is plain ASCII, in which case nothing is copied.
-spec is_text(binary()) -> boolean().
is_text(<<A:32, B:32, Rest/bits>>) when (A bor B) band 16#80808080 =:= 0 -> is_text(Rest);
is_text(<<A, Rest/bits>>) when A < 128 -> is_text(Rest);
is_text(<<>>) -> true;
is_text(Rest) -> unicode:characters_to_binary(Rest) =:= Rest.

%% @doc Encodes a frame from the server, which is never masked.
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

%% @doc Encodes the payload of a close frame.
-spec close_payload(Code :: 1000..4999, Text :: iodata()) -> binary().
close_payload(Code, Text) ->
    Bytes = iolist_to_binary(Text),
    <<Code:16, (without_half(binary:part(Bytes, 0, min(123, byte_size(Bytes)))))/binary>>.

%% The text may have been truncated in the middle of a character.
without_half(Text) ->
    case unicode:characters_to_binary(Text) of
        {incomplete, Whole, _} -> Whole;
        _ -> Text
    end.

%% @doc Returns the code and text of the peer's close frame (7.4).
-spec parse_close(binary()) -> {ok, Code :: 1000..4999, Text :: binary()} | {error, 1002 | 1007}.
parse_close(<<>>) -> {ok, 1000, <<>>};
parse_close(<<Code:16, Text/binary>>) when Code >= 1000, Code =< 1003; Code >= 1007, Code =< 1014; Code >= 3000, Code =< 4999 ->
    case is_text(Text) of
        true -> {ok, Code, Text};
        false -> {error, 1007}
    end;
parse_close(_) -> {error, 1002}.
