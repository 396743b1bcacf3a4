%% SPDX-License-Identifier: Apache-2.0
%% @doc A plain HTTP client for the suites of Yaws sites and gateways, with a new connection for each request.
-module(yucan_yaws_client).

-export([get/3, request/1, send/2, receive_all/1, parse/1]).

-define(TIMEOUT_MS, 30000).

%% Requests a target on a host.
get(Port, Host, Target) -> request(#{port => Port, host => Host, target => Target}).

%% Makes the request that a map with the keys port, host, target, method, headers and body describes. Returns {Status, [{LowerName, Value}], Body}.
request(#{port := Port, host := Host, target := Target} = Request) ->
    Body = iolist_to_binary(maps:get(body, Request, <<>>)),
    Length = case Body of
                 <<>> -> [];
                 _ -> ["content-length: ", integer_to_list(byte_size(Body)), "\r\n"]
             end,
    Socket = send(Port, [maps:get(method, Request, "GET"), " ", Target, " HTTP/1.1\r\nhost: ", Host, "\r\nconnection: close\r\n", Length,
                         [[Name, ": ", Value, "\r\n"] || {Name, Value} <- maps:get(headers, Request, [])], "\r\n", Body]),
    parse(receive_all(Socket)).

%% Connects and sends bytes unchanged.
send(Port, Bytes) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}], ?TIMEOUT_MS),
    ok = gen_tcp:send(Socket, Bytes),
    Socket.

%% Reads everything until the connection is closed.
receive_all(Socket) -> receive_all(Socket, []).

receive_all(Socket, Done) ->
    case gen_tcp:recv(Socket, 0, ?TIMEOUT_MS * beamway_runner:slowness()) of
        {ok, Data} -> receive_all(Socket, [Done, Data]);
        {error, closed} ->
            ok = gen_tcp:close(Socket),
            iolist_to_binary(Done);
        {error, Reason} -> error({client, Reason, iolist_to_binary(Done)})
    end.

%% Parses a complete response. If the body ends before its declared length or its last chunk, it is returned as {cut, Body}.
parse(Answer) ->
    [Head, Rest] = binary:split(Answer, <<"\r\n\r\n">>),
    [<<"HTTP/1.1 ", Status:3/binary, _/binary>> | Lines] = binary:split(Head, <<"\r\n">>, [global]),
    Headers = [{string:lowercase(Name), Value} || Line <- Lines, [Name, Value] <- [binary:split(Line, <<": ">>)]],
    {binary_to_integer(Status), Headers, body(Headers, Rest)}.

body(Headers, Rest) ->
    case {proplists:get_value(<<"transfer-encoding">>, Headers), proplists:get_value(<<"content-length">>, Headers)} of
        {<<"chunked">>, _} -> chunks(Rest, <<>>);
        {undefined, undefined} -> Rest;
        {undefined, Length} ->
            case binary_to_integer(Length) of
                Size when Size =< byte_size(Rest) -> binary:part(Rest, 0, Size);
                _ -> {cut, Rest}
            end
    end.

chunks(Bytes, Done) ->
    case binary:split(Bytes, <<"\r\n">>) of
        [<<"0">>, _] -> Done;
        [Digits, Rest] ->
            Size = binary_to_integer(Digits, 16),
            case Rest of
                <<Data:Size/binary, "\r\n", More/binary>> -> chunks(More, <<Done/binary, Data/binary>>);
                _ -> {cut, Done}
            end;
        [_] -> {cut, Done}
    end.
