%% SPDX-License-Identifier: Apache-2.0
%% @doc An HTTP/2 client for tests of yucan that can break every rule of the protocol, because it sends whatever frames it is given. It decodes
%% received headers with yucan_hpack, whose table is in the process dictionary.
-module(yucan_h2_client).

-export([connect/1, connect/2, raw/1, frame/4, headers/4, get/2, send/2, recv/1, until/2, response/2, request/3, closed/1, settings/1]).

-define(PATIENCE_MS, (20000 * beamway_runner:slowness())).
-define(DECODER(Socket), {yucan_h2_client, Socket}).

-type socket() :: gen_tcp:socket() | ssl:sslsocket().
-type received() :: {Type :: byte(), Flags :: byte(), Id :: non_neg_integer(), Payload :: binary() | [{binary(), binary()}]} | closed.

%% @doc Returns a connection on which the client's preface has been sent.
-spec connect(inet:port_number() | socket()) -> socket().
connect(To) -> connect(To, <<>>).

%% @doc Like {@link connect/1}, but with this SETTINGS payload.
-spec connect(inet:port_number() | socket(), Settings :: iodata()) -> socket().
connect(Port, Settings) when is_integer(Port) -> connect(yucan_client:connect(Port), Settings);
connect(Socket, Settings) ->
    _ = put(?DECODER(Socket), yucan_hpack:new(4096)),
    ok = send(Socket, ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", frame(4, 0, 0, Settings)]),
    {4, 0, 0, _} = recv(Socket),
    Socket.

%% @doc Returns a connection on which nothing has been sent.
-spec raw(inet:port_number()) -> socket().
raw(Port) -> connect_only(yucan_client:connect(Port)).

connect_only(Socket) ->
    _ = put(?DECODER(Socket), yucan_hpack:new(4096)),
    Socket.

%% @doc Encodes a SETTINGS payload.
-spec settings([{1..65535, non_neg_integer()}]) -> binary().
settings(Settings) -> << <<Name:16, Value:32>> || {Name, Value} <- Settings >>.

%% @doc Returns a frame of any kind.
-spec frame(byte(), byte(), non_neg_integer(), iodata()) -> iodata().
frame(Type, Flags, Id, Payload) -> [<<(iolist_size(Payload)):24, Type, Flags, Id:32>>, Payload].

%% @doc Returns a complete header block that does not change the server's dynamic table.
-spec headers(pos_integer(), Flags :: byte(), [{binary(), binary()}], Extra :: iodata()) -> iodata().
headers(Id, Flags, Fields, Extra) -> frame(1, Flags bor 4, Id, [block(Fields), Extra]).

%% Encodes the fields as literals without indexing.
-spec block([{binary(), binary()}]) -> iodata().
block(Fields) -> [[0, text(Name), text(Value)] || {Name, Value} <- Fields].

text(Text) when byte_size(Text) < 127 -> [byte_size(Text), Text];
text(Text) -> [127, more(byte_size(Text) - 127), Text].

more(Value) when Value < 128 -> [Value];
more(Value) -> [Value rem 128 + 128 | more(Value div 128)].

%% @doc Returns the fields of a GET.
-spec get(Path :: binary(), [{binary(), binary()}]) -> [{binary(), binary()}].
get(Path, Others) -> [{<<":method">>, <<"GET">>}, {<<":scheme">>, <<"http">>}, {<<":authority">>, <<"localhost">>}, {<<":path">>, Path} | Others].

%% @doc Sends arbitrary bytes. If the server has closed the connection, the next read reports it.
-spec send(socket(), iodata()) -> ok.
send(Socket, Data) when is_port(Socket) -> _ = gen_tcp:send(Socket, Data), ok;
send(Socket, Data) -> _ = ssl:send(Socket, Data), ok.

%% @doc Returns the next frame. SETTINGS are acknowledged and headers decoded.
-spec recv(socket()) -> received().
recv(Socket) ->
    case take(Socket, 9) of
        closed -> closed;
        <<Length:24, Type, Flags, _:1, Id:31>> -> known(Type, Flags, Id, take(Socket, Length), Socket)
    end.

known(4, 0, 0, Payload, Socket) -> send(Socket, frame(4, 1, 0, <<>>)), {4, 0, 0, Payload};
known(1, Flags, Id, Block, Socket) ->
    {ok, Fields, Decoder} = yucan_hpack:decode(Block, 1000000, get(?DECODER(Socket))),
    _ = put(?DECODER(Socket), Decoder),
    {1, Flags, Id, Fields};
known(Type, Flags, Id, Payload, _) -> {Type, Flags, Id, Payload}.

take(_, 0) -> <<>>;
take(Socket, Length) ->
    case if is_port(Socket) -> gen_tcp:recv(Socket, Length, ?PATIENCE_MS); true -> ssl:recv(Socket, Length, ?PATIENCE_MS) end of
        {ok, Bytes} -> Bytes;
        {error, timeout} -> error(server_says_nothing);
        {error, _} -> closed
    end.

%% @doc Returns the next frame of this type, or the end of the connection. Other frames are skipped.
-spec until(socket(), byte()) -> received().
until(Socket, Type) ->
    case recv(Socket) of
        {Type, _, _, _} = Frame -> Frame;
        closed -> closed;
        _ -> until(Socket, Type)
    end.

%% @doc Returns the response on a stream, or how the stream ended. Flow-control windows are enlarged for data that has arrived. Frames on other streams
%% are dropped.
-spec response(socket(), pos_integer()) -> {Status :: integer(), [{binary(), binary()}], Body :: binary()} | {reset, Code :: integer()} | {goaway, Code :: integer()} | closed.
response(Socket, Id) -> response(Socket, Id, none, []).

response(Socket, Id, Head, Body) ->
    case recv(Socket) of
        {1, _, Id, [{<<":status">>, <<"100">>}]} -> response(Socket, Id, Head, Body);
        {1, Flags, Id, Fields} when Flags band 1 =:= 1 -> {status(Fields), tl(Fields), <<>>};
        {1, _, Id, Fields} -> response(Socket, Id, Fields, Body);
        {0, Flags, Id, Data} when Flags band 1 =:= 1 -> {status(Head), tl(Head), iolist_to_binary([Body, Data])};
        {0, _, Id, Data} ->
            Size = byte_size(Data),
            _ = [send(Socket, [frame(8, 0, 0, <<Size:32>>), frame(8, 0, Id, <<Size:32>>)]) || Size > 0],
            response(Socket, Id, Head, [Body, Data]);
        {3, _, Id, <<Code:32>>} -> {reset, Code};
        {7, _, 0, <<_:32, Code:32, _/binary>>} when Code > 0 -> {goaway, Code};
        closed -> closed;
        _ -> response(Socket, Id, Head, Body)
    end.

status([{<<":status">>, Status} | _]) -> binary_to_integer(Status).

%% @doc Makes a request without a body on a new connection.
-spec request(inet:port_number(), Path :: binary(), [{binary(), binary()}]) -> term().
request(Port, Path, Others) ->
    Socket = connect(Port),
    ok = send(Socket, headers(1, 1, get(Path, Others), <<>>)),
    Response = response(Socket, 1),
    ok = gen_tcp:close(Socket),
    Response.

%% @doc Returns the error code with which the server closed the connection.
-spec closed(socket()) -> Code :: integer() | no_goaway.
closed(Socket) -> closed(Socket, no_goaway).

closed(Socket, Code) ->
    case recv(Socket) of
        {7, _, 0, <<_:32, Said:32, _/binary>>} -> closed(Socket, Said);
        closed -> Code;
        _ -> closed(Socket, Code)
    end.
