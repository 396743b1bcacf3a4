%% SPDX-License-Identifier: Apache-2.0
%% @doc WebSocket: the rules of RFC 6455 and 7692, tested with a client that can break them, and with python3-websockets as a second implementation.
-module(yucan_ws_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([nothing_kept/1, origins_over_tls/1, handshake/1, refused/1, echo/1, fragments/1, control/1, closing/1, violations/1, too_large/1, deflate/1, deflate_window/1, deflate_context/1, origins/1, bomb/1, talk_first/1, greeting/1, lost/1, crash/1,
         in_one_packet/1, in_pieces/1, python/1,
         fragments_are_bounded/1, flood/1, flood_served/1, never_silent/1]).

-include_lib("common_test/include/ct.hrl").

-define(WAIT_MS, (20000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [nothing_kept, origins_over_tls, handshake, refused, echo, fragments, control, closing, violations, too_large, deflate, deflate_window, deflate_context, origins, bomb, talk_first, greeting, lost, crash, in_one_packet, in_pieces, python,
          fragments_are_bounded, flood, flood_served, never_silent].

init_per_suite(Config) ->
    [{port, yucan_test_server:start(yucan_ws_test)} | Config].

end_per_suite(_) -> yucan_test_server:stop_all().

head(Path, Changes) ->
    Headers = maps:merge(#{"Host" => "a", "Upgrade" => "websocket", "Connection" => "keep-alive, Upgrade", "Sec-WebSocket-Version" => "13",
                           "Sec-WebSocket-Key" => "dGhlIHNhbXBsZSBub25jZQ=="}, Changes),
    ["GET ", Path, " HTTP/1.1\r\n", [[Name, ": ", Value, "\r\n"] || {Name, Value} <- maps:to_list(Headers), Value =/= none], "\r\n"].

open(Port, Path, Changes) ->
    Socket = yucan_client:connect(Port),
    ok = gen_tcp:send(Socket, head(Path, Changes)),
    {101, Headers, <<>>} = yucan_client:one(Socket),
    {Socket, Headers}.

open(Config) -> element(1, open(?config(port, Config), "/ws", #{})).

frame(Fin, Rsv1, Opcode, Payload) ->
    <<First>> = <<Fin:1, Rsv1:1, 0:2, Opcode:4>>,
    yucan_ws_client:frame(First, Payload).

send(Socket, Opcode, Payload) -> ok = gen_tcp:send(Socket, frame(1, 0, Opcode, Payload)).

recv(Socket) ->
    {First, Payload} = yucan_ws_client:recv(Socket),
    <<Fin:1, Rsv1:1, 0:2, Opcode:4>> = <<First>>,
    {Fin, Rsv1, Opcode, Payload}.

%% This key and its response are from RFC 6455, 1.3.
handshake(Config) ->
    {_, Headers} = open(?config(port, Config), "/ws", #{"Sec-WebSocket-Protocol" => "x, chat", "Sec-WebSocket-Extensions" => "permessage-deflate"}),
    <<"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=">> = proplists:get_value(<<"sec-websocket-accept">>, Headers),
    [<<"websocket">>, <<"upgrade">>] = [proplists:get_value(Name, Headers) || Name <- [<<"upgrade">>, <<"connection">>]],
    <<"chat">> = proplists:get_value(<<"sec-websocket-protocol">>, Headers),
    undefined = proplists:get_value(<<"sec-websocket-extensions">>, Headers).

%% RFC 6455, 4.2.1 and 4.4.
refused(Config) ->
    Ask = fun(Changes) -> [{Status, Headers, _}] = yucan_client:exchange(?config(port, Config), head("/ws", Changes)), {Status, proplists:get_value(<<"sec-websocket-version">>, Headers)} end,
    [{426, <<"13">>} = Ask(C) || C <- [#{"Sec-WebSocket-Version" => "8"}, #{"Upgrade" => none}, #{"Connection" => "close"}]],
    %% RFC 9110, 7.8 and 15.5.6: an offer to upgrade applies only to this connection, and 405 lists the methods that are allowed.
    [{426, Offer, _}] = yucan_client:exchange(?config(port, Config), head("/ws", #{"Upgrade" => none})),
    [<<"websocket">>, <<"upgrade">>] = [proplists:get_value(Name, Offer) || Name <- [<<"upgrade">>, <<"connection">>]],
    [{405, Refusal, _}] = yucan_client:exchange(?config(port, Config), "POST /ws HTTP/1.1\r\nHost: a\r\n\r\n"),
    <<"GET, OPTIONS">> = proplists:get_value(<<"allow">>, Refusal),
    %% A body would be mistaken for frames.
    [{400, undefined} = Ask(C) || C <- [#{"Content-Length" => "5"}, #{"Transfer-Encoding" => "chunked"}, #{"Sec-WebSocket-Key" => none}, #{"Sec-WebSocket-Key" => "short"}]].

echo(Config) ->
    Socket = open(Config),
    [begin send(Socket, 2, Data), {1, 0, 2, Data} = recv(Socket) end || Size <- [0, 1, 125, 126, 127, 65535, 65536, 300000], Data <- [crypto:strong_rand_bytes(Size)]],
    send(Socket, 1, <<"ü"/utf8>>),
    {1, 0, 1, <<"ü"/utf8>>} = recv(Socket),
    send(Socket, 1, <<"twice">>),
    {1, 0, 1, <<"one">>} = recv(Socket),
    {1, 0, 2, <<"two">>} = recv(Socket).

%% RFC 6455, 5.4: control frames may arrive between the fragments of a message.
fragments(Config) ->
    Socket = open(Config),
    ok = gen_tcp:send(Socket, [frame(0, 0, 1, <<"a">>), frame(1, 0, 9, <<"p">>), frame(0, 0, 0, <<>>), frame(1, 0, 0, <<"b">>)]),
    {1, 0, 10, <<"p">>} = recv(Socket),
    {1, 0, 1, <<"ab">>} = recv(Socket).

%% Many small fragments use memory only for their content: none for fragments without payload, and one byte for one-byte fragments.
fragments_are_bounded(_) ->
    Port = yucan_test_server:start(yucan_ws_fragments, #{handler => {yucan_test_handler, self()}}),
    [begin
         {Socket, _} = open(Port, "/ws", #{}),
         Pid = receive {ws_open, P} -> P after ?WAIT_MS -> error(not_open) end,
         Fragment = iolist_to_binary(frame(0, 0, 0, Payload)),
         ok = gen_tcp:send(Socket, [frame(0, 0, 1, <<"first">>), [binary:copy(Fragment, 1000) || _ <- lists:seq(1, 200)], frame(1, 0, 9, <<"all there?">>)]),
         {1, 0, 10, <<"all there?">>} = recv(Socket),
         {Payload, true} = {Payload, yucan_test_server:held(Pid) < 1000000},
         ok = gen_tcp:send(Socket, frame(1, 0, 0, <<"last">>)),
         Whole = iolist_to_binary(["first", binary:copy(Payload, 200000), "last"]),
         {1, 0, 1, Whole} = recv(Socket)
     end || Payload <- [<<>>, <<"x">>]],
    ok = yucan:stop(yucan_ws_fragments).

%% The memory used for one large message or many small ones is released when the client stops sending. After a large message, it is released even if
%% the client continues to send.
nothing_kept(_) ->
    Port = yucan_test_server:start(yucan_ws_kept, #{handler => {yucan_test_handler, self()}}),
    Large = crypto:strong_rand_bytes(900000),
    Small = [crypto:strong_rand_bytes(10000) || _ <- lists:seq(1, 50)],
    [begin
         {Socket, _} = open(Port, "/ws", #{}),
         Pid = receive {ws_open, P} -> P after ?WAIT_MS -> error(not_open) end,
         [begin send(Socket, 2, Message), {1, 0, 2, Message} = recv(Socket) end || Message <- Messages],
         true = beamway_peer:wait_until(fun() ->
             _ = [begin send(Socket, 1, <<"x">>), {1, 0, 1, <<"x">>} = recv(Socket) end || GoesOn],
             {binary, Binaries} = process_info(Pid, binary),
             lists:sum([Size || {_, Size, _} <- Binaries]) < 20000
         end, 20000),
         ok = gen_tcp:close(Socket),
         receive {ws_ended, _} -> ok after ?WAIT_MS -> error(not_ended) end
     end || {Messages, GoesOn} <- [{[Large], false}, {Small, false}, {[Large], true}]],
    ok = yucan:stop(yucan_ws_kept).

%% A client that sends without pause cannot fill the mailbox beyond the limit, however often it tries.
flood(_) ->
    {Socket, _} = open(yucan_test_server:start(yucan_ws_flood, #{handler => {yucan_test_handler, self()}}), "/ws", #{}),
    Pid = receive {ws_open, P} -> P after ?WAIT_MS -> error(not_open) end,
    Send = fun() -> send(Socket, 1, <<"x">>) end,
    %% The mailbox contains at most twenty data messages, and one that reports that the socket has
    %% become passive.
    [] = [Count || Count <- [yucan_test_server:flooded(Pid, Send) || _ <- lists:seq(1, 5)], Count > 21],
    ok = yucan:stop(yucan_ws_flood).

%% Like flood/1, but the client is being served. Whenever the socket is armed again, the client's next messages have already arrived.
flood_served(_) ->
    {Socket, _} = open(yucan_test_server:start(yucan_ws_flood, #{handler => {yucan_test_handler, self()}}), "/ws", #{}),
    Pid = receive {ws_open, P} -> P after ?WAIT_MS -> error(not_open) end,
    Send = fun() -> send(Socket, 1, <<"hold">>) end,
    ok = Send(),
    receive {held, Pid} -> ok after ?WAIT_MS -> error(not_held) end,
    Counts = yucan_test_server:flooded_served(Pid, Send, 80),
    [] = [Count || Count <- Counts, Count > 23],
    ok = yucan:stop(yucan_ws_flood).

%% The loop arms the socket again before it becomes passive, because a passive socket is removed from the scheduler's own set of descriptors.
never_silent(_) ->
    {Socket, _} = open(yucan_test_server:start(yucan_ws_never_silent, #{handler => {yucan_test_handler, self()}}), "/ws", #{}),
    Pid = receive {ws_open, P} -> P after ?WAIT_MS -> error(not_open) end,
    1 = erlang:trace(Pid, true, ['receive']),
    [begin
         send(Socket, 1, <<"x">>),
         {1, 0, 1, <<"x">>} = recv(Socket)
     end || _ <- lists:seq(1, 100)],
    1 = erlang:trace(Pid, false, ['receive']),
    Delivered = erlang:trace_delivered(Pid),
    receive {trace_delivered, Pid, Delivered} -> ok after ?WAIT_MS -> error(no_trace) end,
    [] = passive(),
    ok = yucan:stop(yucan_ws_never_silent).

passive() -> receive {trace, _, 'receive', {tcp_passive, _}} -> [passive | passive()]; {trace, _, _, _} -> passive() after 0 -> [] end.

control(Config) ->
    Socket = open(Config),
    send(Socket, 10, <<"unasked">>),
    send(Socket, 9, <<"ping">>),
    {1, 0, 10, <<"ping">>} = recv(Socket).

%% RFC 6455, 5.5.1 and 7.
closing(Config) ->
    [begin
         Socket = open(Config),
         send(Socket, 8, Sent),
         {1, 0, 8, <<Code:16>>} = recv(Socket),
         <<>> = yucan_client:until_closed(Socket)
     end || {Sent, Code} <- [{<<1000:16, "bye">>, 1000}, {<<>>, 1000}, {<<3999:16>>, 3999}, {<<1>>, 1002}, {<<1005:16>>, 1002}, {<<999:16>>, 1002}, {<<1000:16, 255>>, 1007}]],
    Socket = open(Config),
    send(Socket, 1, <<"close">>),
    {1, 0, 8, <<3001:16, "as you wish">>} = recv(Socket),
    send(Socket, 8, <<3001:16>>),
    gen_tcp:shutdown(Socket, write),
    <<>> = yucan_client:until_closed(Socket).

%% RFC 6455, 5.1, 5.2, 5.4, 5.5, 8.1.
violations(Config) ->
    Bad = [{1002, <<1:1, 0:3, 1:4, 0:1, 1:7, "a">>}, {1002, frame(1, 1, 1, <<"a">>)}, {1002, frame(1, 0, 3, <<>>)}, {1002, frame(1, 0, 11, <<>>)},
           {1002, frame(0, 0, 9, <<>>)}, {1002, frame(1, 0, 9, binary:copy(<<"a">>, 126))}, {1002, frame(1, 0, 0, <<"a">>)},
           {1002, [frame(0, 0, 1, <<"a">>), frame(1, 0, 1, <<"b">>)]}, {1002, <<16#81, 1:1, 126:7, 5:16, 0:32, "hello">>}, {1002, <<16#81, 1:1, 127:7, 5:64, 0:32, "hello">>},
           {1007, frame(1, 0, 1, <<255>>)}, {1007, [frame(0, 0, 1, <<16#c3>>), frame(1, 0, 0, <<"(">>)]}],
    [begin
         Socket = open(Config),
         ok = gen_tcp:send(Socket, Bytes),
         {Code, {1, 0, 8, <<Code:16>>}} = {Code, recv(Socket)},
         gen_tcp:shutdown(Socket, write),
         <<>> = yucan_client:until_closed(Socket)
     end || {Code, Bytes} <- Bad].

too_large(Config) ->
    [begin
         {Socket, _} = open(?config(port, Config), "/ws_small", #{}),
         ok = gen_tcp:send(Socket, Frames),
         {1, 0, 8, <<1009:16>>} = recv(Socket)
     end || Frames <- [frame(1, 0, 2, binary:copy(<<"a">>, 1001)), <<16#82, 1:1, 127:7, 9000000000000000000:64>>,
                       [frame(0, 0, 2, binary:copy(<<"a">>, 600)), frame(1, 0, 0, binary:copy(<<"a">>, 401))]]].

%% RFC 7692, 7.2.
deflate(Config) ->
    {Socket, Headers} = open(?config(port, Config), "/ws_deflate", #{"Sec-WebSocket-Extensions" => "permessage-deflate; client_max_window_bits"}),
    <<"permessage-deflate;", _/binary>> = proplists:get_value(<<"sec-websocket-extensions">>, Headers),
    Text = binary:copy(<<"hello ">>, 1000),
    Packed = packed(Text),
    <<First:3/binary, Second/binary>> = Packed,
    [begin
         ok = gen_tcp:send(Socket, Frames),
         {1, 1, 1, Answer} = recv(Socket),
         true = unpacked(Answer) =:= Text
     end || Frames <- [frame(1, 1, 1, Packed), [frame(0, 1, 1, First), frame(1, 0, 0, Second)]]],
    send(Socket, 1, <<"plain">>),
    {1, 1, 1, Plain} = recv(Socket),
    <<"plain">> = unpacked(Plain),
    ok = gen_tcp:send(Socket, frame(1, 1, 1, <<255, 255, 255>>)),
    {1, 0, 8, <<1007:16>>} = recv(Socket).

packed(Data) ->
    Z = zlib:open(),
    ok = zlib:deflateInit(Z, best_compression, deflated, -15, 8, default),
    Bytes = iolist_to_binary(zlib:deflate(Z, Data, sync)),
    zlib:close(Z),
    binary:part(Bytes, 0, byte_size(Bytes) - 4).

unpacked(Data) -> unpacked(Data, -15).

unpacked(Data, Bits) ->
    Z = zlib:open(),
    ok = zlib:inflateInit(Z, Bits),
    Bytes = iolist_to_binary(zlib:inflate(Z, [Data, <<0, 0, 255, 255>>])),
    zlib:close(Z),
    Bytes.

%% RFC 7692, 7.1.2.1: the response and the frames respect the window size that the client offers, and an unacceptable offer is skipped.
deflate_window(Config) ->
    Port = ?config(port, Config),
    Ask = fun(Offer) ->
        {Socket, Headers} = open(Port, "/ws_deflate", #{"Sec-WebSocket-Extensions" => Offer}),
        {Socket, proplists:get_value(<<"sec-websocket-extensions">>, Headers)}
    end,
    {Socket, <<"permessage-deflate; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=9">>} =
        Ask("permessage-deflate; server_max_window_bits=8, permessage-deflate; server_max_window_bits=9"),
    Block = crypto:strong_rand_bytes(500),
    Text = base64:encode(<<Block/binary, (crypto:strong_rand_bytes(3000))/binary, Block/binary>>),
    ok = gen_tcp:send(Socket, frame(1, 0, 1, Text)),
    {1, 1, 1, Answer} = recv(Socket),
    Text = unpacked(Answer, -9),
    [{_, undefined} = Ask(Offer) || Offer <- ["permessage-deflate; server_max_window_bits=8", "permessage-deflate; unknown", "permessage-deflate; server_max_window_bits=16"]].

%% RFC 7692, 7.1.1 and 7.2.3: tests messages that refer to earlier ones, within the window sizes that both sides have announced.
deflate_context(Config) ->
    {Socket, Headers} = open(?config(port, Config), "/ws_context", #{"Sec-WebSocket-Extensions" => "permessage-deflate; client_max_window_bits"}),
    <<"permessage-deflate; server_max_window_bits=12; client_max_window_bits=11">> = proplists:get_value(<<"sec-websocket-extensions">>, Headers),
    {Out, In} = {zlib:open(), zlib:open()},
    ok = zlib:deflateInit(Out, default, deflated, -11, 8, default),
    ok = zlib:inflateInit(In, -12),
    Text = base64:encode(crypto:strong_rand_bytes(600)),
    Sizes = [begin
                 Packed = case iolist_to_binary(zlib:deflate(Out, Message, sync)) of <<>> -> <<0>>; Bytes -> binary:part(Bytes, 0, byte_size(Bytes) - 4) end,
                 ok = gen_tcp:send(Socket, frame(1, 1, 1, Packed)),
                 {1, 1, 1, Answer} = recv(Socket),
                 Message = iolist_to_binary(zlib:inflate(In, [Answer, <<0, 0, 255, 255>>])),
                 byte_size(Answer)
             end || Message <- [Text, Text, <<>>, <<"other">>, Text]],
    [First, Second, 1, _, Last] = Sizes,
    {true, true, true} = {First > 500, Second < 30, Last < 30},
    %% If the client requests that the server keep no context, the server keeps none.
    {Other, Answered} = open(?config(port, Config), "/ws_context", #{"Sec-WebSocket-Extensions" => "permessage-deflate; server_no_context_takeover"}),
    <<"permessage-deflate; server_no_context_takeover; server_max_window_bits=12">> = proplists:get_value(<<"sec-websocket-extensions">>, Answered),
    [begin ok = gen_tcp:send(Other, frame(1, 0, 1, Text)), {1, 1, 1, Whole} = recv(Other), Text = unpacked(Whole, -12) end || _ <- [1, 2]].

%% RFC 6455, 10.2: a page of another site must not act on behalf of its visitor.
origins(Config) ->
    Ask = fun(Path, Host, Origin) ->
        Socket = yucan_client:connect(?config(port, Config)),
        ok = gen_tcp:send(Socket, head(Path, #{"Host" => Host, "Origin" => Origin})),
        {Status, _, _} = yucan_client:one(Socket),
        ok = gen_tcp:close(Socket),
        Status
    end,
    [{Path, Host, Origin, Status} = {Path, Host, Origin, Ask(Path, Host, Origin)}
     || {Path, Host, Origin, Status} <-
            [{"/ws", "a.org", none, 101}, {"/ws", "a.org", "http://a.org", 101}, {"/ws", "a.org", "https://A.org", 101}, {"/ws", "a.org:8080", "http://a.org:8080", 101},
             {"/ws", "a.org:80", "http://a.org", 101}, {"/ws", "a.org", "https://a.org:443", 101},
             {"/ws", "a.org", "http://b.org", 403}, {"/ws", "a.org", "http://a.org.b.org", 403}, {"/ws", "a.org", "http://xa.org", 403}, {"/ws", "a.org:8080", "http://a.org", 403},
             {"/ws", "a.org", "http://a.org:443", 403}, {"/ws", "a.org", "null", 403}, {"/ws", "a.org", "file://", 403}, {"/ws", "a.org", "a.org", 403},
             {"/ws_any", "a.org", "http://b.org", 101}, {"/ws_named", "a.org", "https://b.org", 101}, {"/ws_named", "a.org", "http://a.org", 403}, {"/ws_named", "a.org", none, 403}]].

%% Anyone between a visitor and the server can forge a page of http://a.org. Such a page must not be able to use the visitor's cookies for https.
origins_over_tls(Config) ->
    Tls = yucan_test_server:certificate("a.org", ?config(priv_dir, Config)),
    Port = yucan_test_server:start(yucan_ws_tls, #{listen => [#{port => 0, tls => Tls}]}),
    [begin
         {ok, Socket} = yucan_test_server:tls_connect(Port, []),
         ok = ssl:send(Socket, head("/ws", #{"Host" => Host, "Origin" => Origin})),
         {Origin, {ok, <<"HTTP/1.1 ", Status:3/binary, _/binary>>}} = {Origin, ssl:recv(Socket, 0, ?WAIT_MS)},
         ok = ssl:close(Socket)
     end || {Host, Origin, Status} <- [{"a.org", "https://a.org", <<"101">>}, {"a.org:443", "https://a.org", <<"101">>}, {"a.org", "http://a.org", <<"403">>}, {"a.org:80", "http://a.org", <<"403">>}]],
    ok = yucan:stop(yucan_ws_tls).

%% A message of one kilobyte expands to a megabyte.
bomb(Config) ->
    {Socket, _} = open(?config(port, Config), "/ws_small", #{"Sec-WebSocket-Extensions" => "permessage-deflate"}),
    Packed = packed(binary:copy(<<0>>, 900000)),
    true = byte_size(Packed) < 1000,
    ok = gen_tcp:send(Socket, frame(1, 1, 2, Packed)),
    {1, 0, 8, <<1009:16>>} = recv(Socket).

own(Function) ->
    Port = yucan_test_server:start(yucan_ws_own, #{handler => {yucan_test_handler, self()}}),
    try
        {Socket, _} = open(Port, "/ws", #{}),
        Function(Socket, receive {ws_open, Pid} -> Pid after ?WAIT_MS -> error(no_socket) end)
    after
        yucan:stop(yucan_ws_own)
    end.

talk_first(_) ->
    own(fun(Socket, Pid) -> Pid ! {say, <<"news">>}, {1, 0, 1, <<"news">>} = recv(Socket) end).

%% A module that sends its first message in init also receives the client's messages.
greeting(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, head("/ws_greets", #{})),
    ok = past_head(Socket, <<>>),
    {1, 0, 1, <<"hello">>} = recv(Socket),
    send(Socket, 1, <<"you">>),
    {1, 0, 1, <<"you">>} = recv(Socket).

past_head(_, <<"\r\n\r\n">>) -> ok;
past_head(Socket, Last) ->
    {ok, Byte} = gen_tcp:recv(Socket, 1, ?WAIT_MS),
    past_head(Socket, binary:part(<<Last/binary, Byte/binary>>, {byte_size(Last) + 1, -min(4, byte_size(Last) + 1)})).

lost(_) ->
    own(fun(Socket, _) -> gen_tcp:close(Socket), receive {ws_ended, lost} -> ok after ?WAIT_MS -> error(not_told) end end).

crash(_) ->
    own(fun(Socket, _) ->
        send(Socket, 1, <<"crash">>),
        {1, 0, 8, <<1011:16>>} = recv(Socket),
        gen_tcp:shutdown(Socket, write),
        receive {ws_ended, {crashed, crashed_on_purpose}} -> ok after ?WAIT_MS -> error(not_told) end
    end).

%% The first frames arrive in the same packet as the request.
in_one_packet(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, [head("/ws", #{}), frame(1, 0, 1, <<"early">>)]),
    <<"HTTP/1.1 101 ", _/binary>> = yucan_yaws_site:receive_until(Socket, <<"\r\n\r\n">>),
    {1, 0, 1, <<"early">>} = recv(Socket).

%% Sends frames with each kind of length field, split anywhere, with the next frame in the same piece.
in_pieces(Config) ->
    Socket = open(Config),
    [begin
         Data = crypto:strong_rand_bytes(Size),
         Bytes = iolist_to_binary([frame(1, 0, 2, Data), frame(1, 0, 9, <<"p">>)]),
         <<First:Cut/binary, Rest/binary>> = Bytes,
         <<Middle:(byte_size(Rest) div 2)/binary, Last/binary>> = Rest,
         [begin ok = gen_tcp:send(Socket, Piece), receive after 20 -> ok end end || Piece <- [First, Middle, Last]],
         {1, 0, 2, Data} = recv(Socket),
         {1, 0, 10, <<"p">>} = recv(Socket)
     end || {Size, Cuts} <- [{5, [1, 2, 5, 6, 8]}, {300, [1, 2, 3, 4, 8, 9]}, {70000, [1, 2, 9, 10, 13, 14, 15]}], Cut <- Cuts].

python(Config) ->
    case os:cmd("/usr/bin/python3 -c 'import websockets' && echo there") of
        "there" ++ _ -> python_client(?config(port, Config));
        _ -> {skip, "python3-websockets is not installed"}
    end.

python_client(Port) ->
    Program = "import asyncio, websockets, sys, os\n"
        "async def main():\n"
        "    for path, compression in (('/ws', None), ('/ws_deflate', 'deflate'), ('/ws_context', 'deflate')):\n"
        "        async with websockets.connect('ws://127.0.0.1:%s%s' % (sys.argv[1], path), compression=compression) as ws:\n"
        "            for data in ('text', 'ü' * 70000, b'', os.urandom(500000)):\n"
        "                await ws.send(data)\n"
        "                assert await ws.recv() == data\n"
        "            await ws.send(['in ', 'parts'])\n"
        "            assert await ws.recv() == 'in parts'\n"
        "            await asyncio.wait_for(await ws.ping(), 20)\n"
        "            await ws.send('close')\n"
        "            try:\n"
        "                await ws.recv()\n"
        "            except websockets.ConnectionClosed as end:\n"
        "                assert end.code == 3001, end\n"
        "    print('all good')\n"
        "asyncio.run(main())\n",
    Vm = open_port({spawn_executable, "/usr/bin/python3"}, [binary, exit_status, stderr_to_stdout, {args, ["-c", unicode:characters_to_binary(Program), integer_to_list(Port)]}]),
    {Status, Said} = test_support:until_ended(Vm, ?WAIT_MS),
    {0, <<"all good\n">>} = {Status, iolist_to_binary(Said)}.
