%% SPDX-License-Identifier: Apache-2.0
%% @doc A client for tests of yucan that can send arbitrary bytes, unlike HTTP libraries.
-module(yucan_client).

-export([connect/1, exchange/2, exchange/3, until_closed/1, one/1, get/2, get/3, parse/2, statuses/1, header/2]).

-define(PATIENCE_MS, (20000 * beamway_runner:slowness())).

-type response() :: {Status :: integer(), Headers :: [{binary(), binary()}], Body :: binary()}.

%% @doc Returns a connection to a port on the loopback interface.
-spec connect(inet:port_number()) -> gen_tcp:socket().
connect(Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {packet, raw}, {exit_on_close, false}, {nodelay, true}], ?PATIENCE_MS),
    Socket.

%% @doc Sends everything, closes its side of the connection, and reads until the server closes the other side. The end is then unambiguous, so no
%% timeouts or guesses are needed. Returns the responses.
-spec exchange(inet:port_number(), iodata()) -> [response()] | {malformed, binary()}.
exchange(Port, Data) -> exchange(Port, Data, <<"GET">>).

%% @doc Like {@link exchange/2}, but for a request with a different method, mainly HEAD.
-spec exchange(inet:port_number(), iodata(), Method :: binary()) -> [response()] | {malformed, binary()}.
exchange(Port, Data, Method) ->
    Socket = connect(Port),
    _ = gen_tcp:send(Socket, Data),
    _ = gen_tcp:shutdown(Socket, write),
    Bytes = until_closed(Socket),
    gen_tcp:close(Socket),
    parse(Bytes, Method).

%% @doc Returns all bytes until the server closes the connection.
-spec until_closed(gen_tcp:socket()) -> binary().
until_closed(Socket) -> until_closed(Socket, []).

until_closed(Socket, Done) ->
    case gen_tcp:recv(Socket, 0, ?PATIENCE_MS) of
        {ok, Data} -> until_closed(Socket, [Done, Data]);
        {error, timeout} -> error({server_does_not_close, iolist_to_binary(Done)});
        {error, _} -> iolist_to_binary(Done)
    end.

%% @doc Reads one response on a connection that stays open.
-spec one(gen_tcp:socket()) -> response() | closed.
one(Socket) -> one(Socket, <<>>).

one(Socket, Bytes) ->
    case response(Bytes, <<"GET">>) of
        {ok, Response, <<>>} -> Response;
        {ok, Response, Rest} -> error({more_than_one, Response, Rest});
        more ->
            case gen_tcp:recv(Socket, 0, ?PATIENCE_MS) of
                {ok, Data} -> one(Socket, <<Bytes/binary, Data/binary>>);
                {error, timeout} -> error({no_response, Bytes});
                {error, _} -> closed
            end
    end.

%% @doc Makes a GET on a new connection.
-spec get(inet:port_number(), iodata()) -> response().
get(Port, Path) -> get(Port, Path, []).

%% @doc Like {@link get/2}, but with header lines.
-spec get(inet:port_number(), iodata(), [{iodata(), iodata()}]) -> response().
get(Port, Path, Headers) ->
    [Response] = exchange(Port, ["GET ", Path, " HTTP/1.1\r\nHost: localhost\r\n", [[N, ": ", V, "\r\n"] || {N, V} <- Headers], "\r\n"]),
    Response.

%% @doc Returns the responses in the bytes that a server sent, including interim ones.
-spec parse(binary(), Method :: binary()) -> [response()] | {malformed, binary()}.
parse(<<>>, _) -> [];
parse(Bytes, Method) ->
    case response(Bytes, Method) of
        {ok, {100, _, _} = Interim, Rest} -> join(Interim, parse(Rest, Method));
        {ok, Response, Rest} -> join(Response, parse(Rest, <<"GET">>));
        more -> {malformed, Bytes}
    end.

join(_, {malformed, _} = Bad) -> Bad;
join(Response, Others) -> [Response | Others].

response(Bytes, Method) ->
    case binary:split(Bytes, <<"\r\n\r\n">>) of
        [Head, Rest] ->
            [<<"HTTP/1.1 ", Status:3/binary, " ", _/binary>> | Lines] = binary:split(Head, <<"\r\n">>, [global]),
            Headers = [line(Line) || Line <- Lines],
            body({binary_to_integer(Status), Headers}, framing(binary_to_integer(Status), Method, Headers), Rest);
        [_] -> more
    end.

line(Line) ->
    [Name, Value] = binary:split(Line, <<": ">>),
    {string:lowercase(Name), Value}.

framing(Status, Method, _) when Status < 200; Status =:= 204; Status =:= 304; Method =:= <<"HEAD">> -> 0;
framing(_, _, Headers) ->
    case {proplists:get_value(<<"transfer-encoding">>, Headers), proplists:get_value(<<"content-length">>, Headers)} of
        {<<"chunked">>, undefined} -> chunked;
        {undefined, undefined} -> until_close;
        {undefined, Length} -> binary_to_integer(Length)
    end.

body({Status, Headers}, until_close, Rest) -> {ok, {Status, Headers, Rest}, <<>>};
body({Status, Headers}, chunked, Rest) -> chunks(Status, Headers, Rest, []);
body({Status, Headers}, Length, Rest) ->
    case Rest of
        <<Body:Length/binary, More/binary>> -> {ok, {Status, Headers, Body}, More};
        _ -> more
    end.

chunks(Status, Headers, Bytes, Done) ->
    case binary:split(Bytes, <<"\r\n">>) of
        [Size, Rest] ->
            Length = binary_to_integer(Size, 16),
            case Rest of
                <<"\r\n", More/binary>> when Length =:= 0 -> {ok, {Status, Headers, iolist_to_binary(Done)}, More};
                <<Data:Length/binary, "\r\n", More/binary>> when Length > 0 -> chunks(Status, Headers, More, [Done, Data]);
                _ -> more
            end;
        [_] -> more
    end.

%% @doc Returns the statuses of responses, in order.
-spec statuses([response()]) -> [Status :: integer()].
statuses(Responses) -> [Status || {Status, _, _} <- Responses].

%% @doc Returns the value of a header in a response.
-spec header(binary(), response()) -> binary() | undefined.
header(Name, {_, Headers, _}) -> proplists:get_value(Name, Headers).
