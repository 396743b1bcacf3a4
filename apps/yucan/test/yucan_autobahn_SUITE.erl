%% SPDX-License-Identifier: Apache-2.0
%% @doc The cases of the Autobahn test suite for WebSocket servers, identified by their numbers and reimplemented here, because the suite itself needs
%% Python 2. Each row lists what the client sends and what it must receive: first the frames, and then how the connection is closed.
-module(yucan_autobahn_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([framing/1, pings/1, reserved_bits/1, opcodes/1, fragmentation/1, utf8/1, utf8_fails_fast/1, closing/1, limits/1, auto_fragmentation/1, compression/1]).

-include_lib("common_test/include/ct.hrl").

-define(TEXT, 1).
-define(BINARY, 2).
-define(CLOSE, 8).
-define(PING, 9).
-define(PONG, 10).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [framing, pings, reserved_bits, opcodes, fragmentation, utf8, utf8_fails_fast, closing, limits, auto_fragmentation, compression].

init_per_suite(Config) ->
    [{port, yucan_test_server:start(yucan_autobahn, #{limits => #{ws_message_bytes => 20000000}})} | Config].

end_per_suite(_) -> yucan_test_server:stop_all().

%% ---- a client

open(Config) -> open(Config, "/ws", []).
open(Config, Path, Headers) -> yucan_ws_client:open(?config(port, Config), yucan_ws_client:head("a", Path, Headers)).

frame(First, Payload) -> yucan_ws_client:frame(First, Payload).

whole(Opcode, Payload) -> frame(128 bor Opcode, Payload).
part(Opcode, Payload) -> frame(Opcode, Payload).

recv(Socket) ->
    case yucan_ws_client:recv(Socket) of
        {136, <<Code:16, _/binary>>} -> {close, Code};
        {136, <<>>} -> {close, none};
        {First, Payload} -> {First band 127, Payload};
        closed -> closed
    end.

received(Socket, Done) ->
    case recv(Socket) of
        {close, Code} -> {lists:reverse(Done), Code};
        closed -> {lists:reverse(Done), closed};
        Frame -> received(Socket, [Frame | Done])
    end.

%% All frames are sent at once and, if there are not many bytes, also byte by byte, because the result must not depend on fragmentation.
table(Config, Rows) ->
    [begin
         Bytes = iolist_to_binary(Send),
         [begin
              Socket = open(Config),
              [ok = case gen_tcp:send(Socket, Piece) of {error, _} -> ok; ok -> ok end || Piece <- Pieces],
              {Id, {Frames, End}} = {Id, received(Socket, [])},
              gen_tcp:close(Socket)
          end || Pieces <- [[Bytes] | [[<<B>> || <<B>> <= Bytes] || byte_size(Bytes) < 200]]]
     end || {Id, Send, Frames, End} <- Rows].

%% Closes the connection as a correct client does.
goodbye() -> whole(?CLOSE, <<1000:16>>).

echoed(Id, Opcode, Payload) ->
    Bin = iolist_to_binary(Payload),
    {Id, [whole(Opcode, Bin), goodbye()], [{Opcode, Bin}], 1000}.

%% ---- 1: sizes of text and binary messages

framing(Config) ->
    Sizes = [0, 125, 126, 127, 128, 65535, 65536],
    table(Config, [echoed(["1.1.", N], ?TEXT, binary:copy(<<"*">>, Size)) || {N, Size} <- lists:zip(lists:seq(1, 7), Sizes)]
        ++ [echoed(["1.2.", N], ?BINARY, binary:copy(<<254>>, Size)) || {N, Size} <- lists:zip(lists:seq(1, 7), Sizes)]),
    %% Cases 1.1.8 and 1.2.8 send pieces of 997 bytes.
    [begin
         Socket = open(Config),
         Data = binary:copy(<<"*">>, 65536),
         pieces(Socket, 997, iolist_to_binary([whole(Opcode, Data), goodbye()])),
         {["1.x.8"], {[{Opcode, Data}], 1000}} = {["1.x.8"], received(Socket, [])}
     end || Opcode <- [?TEXT, ?BINARY]].

%% Sends pieces of this many bytes, or one piece with `infinity'.
pieces(Socket, Size, Bytes) when byte_size(Bytes) > Size ->
    <<Piece:Size/binary, Rest/binary>> = Bytes,
    ok = gen_tcp:send(Socket, Piece),
    pieces(Socket, Size, Rest);
pieces(Socket, _, Rest) ->
    ok = gen_tcp:send(Socket, Rest).

%% ---- 2: pings and pongs

pings(Config) ->
    Long = binary:copy(<<254>>, 125),
    table(Config,
        [{"2.1", [whole(?PING, <<>>), goodbye()], [{?PONG, <<>>}], 1000},
         {"2.2", [whole(?PING, <<"Hello, world!">>), goodbye()], [{?PONG, <<"Hello, world!">>}], 1000},
         {"2.3", [whole(?PING, <<0, 255, 254, 253, 252, 251, 0, 255>>), goodbye()], [{?PONG, <<0, 255, 254, 253, 252, 251, 0, 255>>}], 1000},
         {"2.4", [whole(?PING, Long), goodbye()], [{?PONG, Long}], 1000},
         {"2.5", [whole(?PING, [Long, 254]), goodbye()], [], 1002},
         {"2.6", [whole(?PING, Long), goodbye()], [{?PONG, Long}], 1000},
         {"2.7", [whole(?PONG, <<>>), goodbye()], [], 1000},
         {"2.8", [whole(?PONG, <<"unsolicited">>), goodbye()], [], 1000},
         {"2.9", [whole(?PONG, <<"unsolicited">>), whole(?PING, <<"p">>), goodbye()], [{?PONG, <<"p">>}], 1000},
         {"2.10", [[whole(?PING, <<N>>) || N <- lists:seq(1, 10)], goodbye()], [{?PONG, <<N>>} || N <- lists:seq(1, 10)], 1000},
         {"2.11", [[whole(?PING, <<N>>) || N <- lists:seq(1, 10)], goodbye()], [{?PONG, <<N>>} || N <- lists:seq(1, 10)], 1000}]).

%% ---- 3: reserved bits without an extension

reserved_bits(Config) ->
    Hello = <<"Hello, world!">>,
    Bad = fun(Rsv, Opcode, Payload) -> frame(128 bor (Rsv bsl 4) bor Opcode, Payload) end,
    table(Config,
        [{"3.1", Bad(1, ?TEXT, Hello), [], 1002},
         {"3.2", [whole(?TEXT, Hello), Bad(2, ?TEXT, Hello), whole(?PING, <<>>)], [{?TEXT, Hello}], 1002},
         {"3.3", [whole(?TEXT, Hello), Bad(3, ?TEXT, Hello), whole(?PING, <<>>)], [{?TEXT, Hello}], 1002},
         {"3.4", [whole(?TEXT, Hello), Bad(4, ?TEXT, Hello), whole(?PING, <<>>)], [{?TEXT, Hello}], 1002},
         {"3.5", Bad(5, ?BINARY, <<0, 255>>), [], 1002},
         {"3.6", Bad(6, ?PING, Hello), [], 1002},
         {"3.7", Bad(7, ?CLOSE, <<>>), [], 1002}]).

%% ---- 4: undefined opcodes

opcodes(Config) ->
    Hello = <<"Hello, world!">>,
    table(Config, lists:append([[{["4.1 and 4.2, alone: ", Opcode], whole(Opcode, <<>>), [], 1002}, {["4.1 and 4.2, with a payload: ", Opcode], whole(Opcode, Hello), [], 1002},
        {["4.1 and 4.2, behind a message: ", Opcode], [whole(?TEXT, Hello), whole(Opcode, Hello), whole(?PING, <<>>)], [{?TEXT, Hello}], 1002}]
        || Opcode <- [3, 4, 5, 6, 7, 11, 12, 13, 14, 15]])).

%% ---- 5: fragments

fragmentation(Config) ->
    Two = [part(?TEXT, <<"fragment1">>), whole(0, <<"fragment2">>)],
    Both = {?TEXT, <<"fragment1fragment2">>},
    table(Config,
        [{"5.1", [part(?PING, <<"fragment1">>), whole(0, <<"fragment2">>)], [], 1002},
         {"5.2", [part(?PONG, <<"fragment1">>), whole(0, <<"fragment2">>)], [], 1002},
         {"5.3 to 5.5", [Two, goodbye()], [Both], 1000},
         {"5.6 to 5.8", [part(?TEXT, <<"fragment1">>), whole(?PING, <<"ping">>), whole(0, <<"fragment2">>), goodbye()], [{?PONG, <<"ping">>}, Both], 1000},
         {"5.9 to 5.14", [whole(0, <<"non-continuation">>), whole(?TEXT, <<"Hello">>)], [], 1002},
         {"5.12, no end", [part(0, <<"non-continuation">>), whole(?TEXT, <<"Hello">>)], [], 1002},
         {"5.15", [Two, part(0, <<"fragment3">>), part(?TEXT, <<"fragment4">>)], [Both], 1002},
         {"5.16", [part(0, <<"fragment1">>), part(?TEXT, <<"fragment2">>), whole(0, <<"fragment3">>)], [], 1002},
         {"5.17", [whole(0, <<"fragment1">>), part(?TEXT, <<"fragment2">>), whole(0, <<"fragment3">>)], [], 1002},
         {"5.18", [part(?TEXT, <<"fragment1">>), whole(?TEXT, <<"fragment2">>)], [], 1002},
         {"5.19 and 5.20", [part(?TEXT, <<"1">>), part(0, <<"2">>), whole(?PING, <<"a">>), part(0, <<"3">>), part(0, <<"4">>), whole(?PING, <<"b">>), whole(0, <<"5">>), goodbye()],
          [{?PONG, <<"a">>}, {?PONG, <<"b">>}, {?TEXT, <<"12345">>}], 1000}]).

%% ---- 6: UTF-8

kosme() -> <<206, 186, 225, 189, 185, 207, 131, 206, 188, 206, 181>>.

valid() ->
    [{"6.1", <<>>}, {"6.2", <<"Hello-µ@ßöäüàá-UTF-8!!"/utf8>>}]
        ++ [{"6.5", Text} || Text <- [<<"hello$world">>, <<"hello¢world"/utf8>>, <<"hello€world"/utf8>>, <<"hello", 16#24b62/utf8, "world">>, kosme()]]
        ++ [{["6.6.", integer_to_list(Size)], binary:part(kosme(), 0, Size)} || Size <- [2, 5, 7, 9, 11]]
        ++ [{"6.7, 6.9 and 6.11", <<C/utf8>>} || C <- [0, 16#7f, 16#80, 16#7ff, 16#800, 16#ffff, 16#10000, 16#10ffff, 16#d7ff, 16#e000, 16#fffd]]
        ++ [{"6.22: no characters", <<(Plane * 16#10000 + C)/utf8>>} || Plane <- lists:seq(0, 16), C <- [16#fffe, 16#ffff]]
        ++ [{"6.23", <<C/utf8>>} || C <- lists:seq(16#fff9, 16#ffff)].

%% Case 6.14 sends each of these texts, and case 6.15 sends all of them together.
cut() ->
    [<<192>>, <<224, 128>>, <<240, 128, 128>>, <<248, 128, 128, 128>>, <<252, 128, 128, 128, 128>>,
     <<223>>, <<239, 191>>, <<247, 191, 191>>, <<251, 191, 191, 191>>, <<253, 191, 191, 191, 191>>].

invalid() ->
    [{"6.3", [kosme(), <<237, 160, 128>>, <<"edited">>]}, {"6.4", [kosme(), <<244, 144, 128, 128>>, <<"edited">>]}]
        ++ [{["6.6.", integer_to_list(Size)], binary:part(kosme(), 0, Size)} || Size <- [1, 3, 4, 6, 8, 10]]
        ++ [{"6.8: five and six bytes", B} || B <- [<<248, 136, 128, 128, 128>>, <<252, 132, 128, 128, 128, 128>>]]
        ++ [{"6.10: beyond the last", B} || B <- [<<247, 191, 191, 191>>, <<251, 191, 191, 191, 191>>, <<253, 191, 191, 191, 191, 191>>]]
        ++ [{"6.11.5: beyond the last", <<244, 144, 128, 128>>}]
        ++ [{"6.12: continuations alone", B} || B <- [<<191>>, << <<C>> || C <- lists:seq(128, 190) >> | [binary:part(<<128, 191, 128, 191, 128, 191>>, 0, Size) || Size <- lists:seq(1, 6)]]]
        ++ [{"6.13: beginnings alone", << <<C, $\s>> || C <- lists:seq(From, To) >>} || {From, To} <- [{192, 223}, {224, 239}, {240, 247}, {248, 251}, {252, 253}]]
        ++ [{"6.14: cut", B} || B <- cut()] ++ [{"6.15: all of them", cut()}]
        ++ [{"6.16: no byte of UTF-8", B} || B <- [<<254>>, <<255>>, <<254, 254, 255, 255>>]]
        ++ [{"6.17 to 6.19: longer than needed", B} || B <- [<<192, 175>>, <<224, 128, 175>>, <<240, 128, 128, 175>>, <<248, 128, 128, 128, 175>>, <<252, 128, 128, 128, 128, 175>>,
            <<193, 191>>, <<224, 159, 191>>, <<240, 143, 191, 191>>, <<248, 135, 191, 191, 191>>, <<252, 131, 191, 191, 191, 191>>,
            <<192, 128>>, <<224, 128, 128>>, <<240, 128, 128, 128>>, <<248, 128, 128, 128, 128>>, <<252, 128, 128, 128, 128, 128>>]]
        ++ [{"6.20: surrogates", B} || B <- [<<237, 160, 128>>, <<237, 173, 191>>, <<237, 174, 128>>, <<237, 175, 191>>, <<237, 176, 128>>, <<237, 190, 128>>, <<237, 191, 191>>]]
        ++ [{"6.21: pairs of them", [High, Low]} || High <- [<<237, 160, 128>>, <<237, 173, 191>>, <<237, 174, 128>>, <<237, 175, 191>>], Low <- [<<237, 176, 128>>, <<237, 191, 191>>]].

%% Sends the text in one message, in fragments of one byte, and split inside a character.
utf8(Config) ->
    Split = fun(<<>>) -> [part(?TEXT, <<>>)]; (<<First, Rest/binary>>) -> [part(?TEXT, <<First>>), [part(0, <<B>>) || <<B>> <= Rest]] end,
    table(Config, lists:append([[echoed(Id, ?TEXT, Text), {[Id, ", in fragments"], [Split(Text), whole(0, <<>>), goodbye()], [{?TEXT, Text}], 1000}] || {Id, Text} <- valid()])
        ++ lists:append([[{Id, whole(?TEXT, Text), [], 1007}, {[Id, ", in fragments"], [Split(iolist_to_binary(Text)), whole(0, <<>>)], [], 1007}] || {Id, Text} <- invalid()])),
    %% Binary messages may contain any bytes.
    table(Config, [echoed(Id, ?BINARY, Bytes) || {Id, Bytes} <- invalid()]).

%% Case 6.4: the server need not wait for the rest of a text that cannot become valid. The suite also accepts a response after the last fragment.
utf8_fails_fast(Config) ->
    table(Config, [{"6.4.1", [part(?TEXT, <<206, 186>>), part(0, <<244, 144, 128, 128>>), whole(0, <<"edited">>)], [], 1007}]).

%% ---- 7: closing

closing(Config) ->
    Hello = whole(?TEXT, <<"Hello">>),
    %% Data that a client sends after its close frame is read and dropped. Otherwise the kernel would reset the connection, and the client might not
    %% receive the server's close frame.
    Late = open(Config),
    ok = gen_tcp:send(Late, goodbye()),
    {close, 1000} = recv(Late),
    %% The second send waits until the first has been transmitted, so it would notice a reset.
    [ok = gen_tcp:send(Late, binary:copy(iolist_to_binary(Hello), 1000000)) || _ <- [first, second]],
    closed = recv(Late),
    ok = gen_tcp:close(Late),
    table(Config,
        [{"7.1.1", [Hello, goodbye()], [{?TEXT, <<"Hello">>}], 1000},
         {"7.1.2", [goodbye(), goodbye()], [], 1000},
         {"7.1.3", [goodbye(), whole(?PING, <<"late">>)], [], 1000},
         {"7.1.4", [goodbye(), Hello], [], 1000},
         {"7.1.5", [part(?TEXT, <<"fragment1">>), goodbye(), whole(0, <<"fragment2">>)], [], 1000},
         {"7.1.6", [whole(?TEXT, binary:copy(<<"BAsd7&jh23">>, 26000)), goodbye(), whole(?PING, <<>>)], [{?TEXT, binary:copy(<<"BAsd7&jh23">>, 26000)}], 1000},
         {"7.3.1", whole(?CLOSE, <<>>), [], 1000},
         {"7.3.2", whole(?CLOSE, <<"a">>), [], 1002},
         {"7.3.3", whole(?CLOSE, <<1000:16>>), [], 1000},
         {"7.3.4", whole(?CLOSE, [<<1000:16>>, "Hello World!"]), [], 1000},
         {"7.3.5", whole(?CLOSE, [<<1000:16>>, binary:copy(<<"*">>, 123)]), [], 1000},
         {"7.3.6", whole(?CLOSE, [<<1000:16>>, binary:copy(<<"*">>, 124)]), [], 1002},
         {"7.5.1", whole(?CLOSE, [<<1000:16>>, <<206, 186, 237, 160, 128>>]), [], 1007}]
        ++ [{["7.7.", integer_to_list(Code)], whole(?CLOSE, <<Code:16>>), [], Code} || Code <- [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999]]
        ++ [{["7.9 and 7.13, ", integer_to_list(Code)], whole(?CLOSE, <<Code:16>>), [], 1002} || Code <- [0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000, 65535]]).

%% ---- 9 and 10: large messages, many fragments, many messages

limits(Config) ->
    Data = fun(Size) -> binary:copy(<<"*">>, Size) end,
    [begin
         Socket = open(Config),
         Bytes = iolist_to_binary([fragments(Opcode, Data(Size), Fragment), goodbye()]),
         Sender = spawn_link(fun() -> pieces(Socket, Piece, Bytes) end),
         {Id, {[{Opcode, Size}], 1000}} = {Id, case received(Socket, []) of {[{O, B}], Code} -> {[{O, byte_size(B)}], Code}; Other -> Other end},
         unlink(Sender),
         gen_tcp:close(Socket)
     end || Opcode <- [?TEXT, ?BINARY],
            {Id, Size, Fragment, Piece} <- [{"9.1 and 9.2", S, infinity, infinity} || S <- [65536, 262144, 1048576, 4194304, 8388608, 16777216]]
                ++ [{"9.3 and 9.4", 4194304, F, infinity} || F <- [64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304]]
                ++ [{"9.5 and 9.6", 1048576, infinity, P} || P <- [64, 128, 256, 512, 1024, 2048]]],
    %% Cases 9.7 and 9.8 send one message after another.
    [begin
         Socket = open(Config),
         [begin ok = gen_tcp:send(Socket, whole(Opcode, Data(Size))), {Opcode, _} = recv(Socket) end || _ <- lists:seq(1, 1000)],
         gen_tcp:close(Socket)
     end || Opcode <- [?TEXT, ?BINARY], Size <- [0, 16, 64, 256, 1024, 4096]].

%% With `infinity', the message is not fragmented.
fragments(Opcode, Bytes, Size) when byte_size(Bytes) =< Size -> [whole(Opcode, Bytes)];
fragments(Opcode, Bytes, Size) ->
    <<Part:Size/binary, Rest/binary>> = Bytes,
    [part(Opcode, Part) | fragments(0, Rest, Size)].

%% Case 10.1.1 sends fragments of 1,300 bytes.
auto_fragmentation(Config) ->
    Data = binary:copy(<<"*">>, 65536),
    table(Config, [{"10.1.1", [fragments(?TEXT, Data, 1300), goodbye()], [{?TEXT, Data}], 1000}]).

%% ---- 12 and 13: compression, with the suite's offers

compression(Config) ->
    [begin
         Socket = open(Config, Path, ["Sec-WebSocket-Extensions: ", Offer, "\r\n"]),
         Out = zlib:open(),
         ok = zlib:deflateInit(Out, default, deflated, -9, 8, default),
         [begin
              Message = base64:encode(crypto:strong_rand_bytes(Size * 3 div 4)),
              %% Without context takeover, each of the client's messages is compressed separately, which is valid with every response.
              ok = zlib:deflateReset(Out),
              Packed = iolist_to_binary(zlib:deflate(Out, Message, sync)),
              ok = gen_tcp:send(Socket, fragments(64 bor ?TEXT, binary:part(Packed, 0, byte_size(Packed) - 4), Fragment)),
              {First, Answer} = recv(Socket),
              {Offer, 64 bor ?TEXT} = {Offer, First},
              {Offer, Message} = {Offer, unpacked(Socket, Answer, Path)}
          end || {Size, Fragment} <- [{S, infinity} || S <- [16, 64, 256, 1024, 4096, 8192, 16384, 32768, 65536, 131072]]
                  ++ [{S, 256} || S <- [8192, 16384, 32768, 65536, 131072]] ++ [{131072, F} || F <- [1024, 4096, 32768]]],
         gen_tcp:close(Socket)
     end || Path <- ["/ws_deflate", "/ws_context"],
            Offer <- ["permessage-deflate", "permessage-deflate; server_no_context_takeover; client_no_context_takeover", "permessage-deflate; client_max_window_bits",
                      "permessage-deflate; server_max_window_bits=9; client_max_window_bits=9", "permessage-deflate; server_max_window_bits=15; client_max_window_bits=15",
                      "permessage-deflate; server_no_context_takeover; server_max_window_bits=9, permessage-deflate; server_max_window_bits=9, permessage-deflate",
                      "permessage-deflate; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=15"]].

%% The client's zlib context lives as long as its connection.
unpacked(Socket, Data, Path) ->
    Z = case get({inflate, Socket, Path}) of
        undefined -> New = zlib:open(), ok = zlib:inflateInit(New, -15), put({inflate, Socket, Path}, New), New;
        Old -> Old
    end,
    iolist_to_binary(zlib:inflate(Z, [Data, <<0, 0, 255, 255>>])).
