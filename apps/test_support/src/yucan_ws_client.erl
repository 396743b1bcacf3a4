%% SPDX-License-Identifier: Apache-2.0
%% @doc A WebSocket client for tests of yucan, which can send arbitrary frames, split in arbitrary places.
-module(yucan_ws_client).

-export([head/1, head/3, open/2, upgrade/2, frame/2, recv/1]).

-define(PATIENCE_MS, (20000 * beamway_runner:slowness())).
-define(KEY, <<7, 1, 9, 4>>).

%% @doc Returns the request that opens a WebSocket.
-spec head(Path :: iodata()) -> iodata().
head(Path) -> head("a", Path, []).

%% @doc Like {@link head/1}, but for a host, with additional header lines.
-spec head(Host :: iodata(), Path :: iodata(), Lines :: iodata()) -> iodata().
head(Host, Path, Lines) ->
    ["GET ", Path, " HTTP/1.1\r\nHost: ", Host, "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", Lines, "\r\n"].

%% @doc Returns a new connection that has been upgraded to a WebSocket.
-spec open(inet:port_number(), Head :: iodata()) -> gen_tcp:socket().
open(Port, Head) -> upgrade(yucan_client:connect(Port), Head).

%% @doc Like {@link open/2}, but on this connection. Reads the response and not a byte more.
-spec upgrade(gen_tcp:socket(), Head :: iodata()) -> gen_tcp:socket().
upgrade(Socket, Head) ->
    ok = gen_tcp:send(Socket, Head),
    <<"HTTP/1.1 101 ", _/binary>> = yucan_yaws_site:receive_until(Socket, <<"\r\n\r\n">>),
    Socket.

%% @doc Returns a frame as a client masks it. Its first byte contains the flags and the opcode.
-spec frame(First :: byte(), Payload :: iodata()) -> iodata().
frame(First, Payload) ->
    Bin = iolist_to_binary(Payload),
    Size = byte_size(Bin),
    Length = if Size < 126 -> <<1:1, Size:7>>; Size < 65536 -> <<1:1, 126:7, Size:16>>; true -> <<1:1, 127:7, Size:64>> end,
    [First, Length, ?KEY, yucan_ws_frame:unmask(Bin, ?KEY)].

%% @doc Returns the next frame from the server, which does not mask frames.
-spec recv(gen_tcp:socket()) -> {First :: byte(), Payload :: binary()} | closed.
recv(Socket) ->
    case gen_tcp:recv(Socket, 2, ?PATIENCE_MS) of
        {ok, <<First, 0:1, Short:7>>} -> {First, take(Socket, size(Socket, Short))};
        {error, closed} -> closed
    end.

size(Socket, 126) -> <<Size:16>> = take(Socket, 2), Size;
size(Socket, 127) -> <<Size:64>> = take(Socket, 8), Size;
size(_, Size) -> Size.

take(_, 0) -> <<>>;
take(Socket, Size) ->
    {ok, Bytes} = gen_tcp:recv(Socket, Size, ?PATIENCE_MS),
    Bytes.
