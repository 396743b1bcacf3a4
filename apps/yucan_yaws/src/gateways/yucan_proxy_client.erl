%% SPDX-License-Identifier: Apache-2.0
%% @doc Makes a request to a server behind this one, whose response is a source of bytes for {@link yucan_gateway}.
%%
%% The source returns the head as it arrived, and then the body without its framing. A body that is
%% shorter than its announced length is an error.
-module(yucan_proxy_client).

-export([open/4, read/2, close/1]).
-export_type([source/0]).

-define(SEND_MS, 30000).
-define(MAX_HEAD, 65536).

-record(proxy, {socket :: gen_tcp:socket(),
                method :: binary(),
                buffer = <<>> :: binary(),
                mode = head :: head | none | {left, non_neg_integer()} | {chunked, yucan_chunk:state()} | until_close,
                sender = none :: {pid(), reference()} | none}).
-opaque source() :: #proxy{}.

%% @doc Connects and sends a request. `Head' is complete except for the headers that describe the body.
-spec open({Host :: string(), inet:port_number()}, Method :: binary(), Head :: iodata(), yucan_spool:body()) ->
          {ok, source()} | {error, {connect | send, inet:posix() | closed | timeout}}.
open({Host, Port}, Method, Head, Body) ->
    Options = [binary, {active, false}, {nodelay, true}, {send_timeout, ?SEND_MS}, {send_timeout_close, true}],
    case yucan_gateway:connect(address(Host), Port, Options) of
        {ok, Socket} ->
            case gen_tcp:send(Socket, [Head, small(Body)]) of
                ok -> {ok, #proxy{socket = Socket, method = Method, sender = sender(Socket, Body)}};
                {error, Reason} ->
                    ok = gen_tcp:close(Socket),
                    {error, {send, case Reason of {timeout, _} -> timeout; _ -> Reason end}}
            end;
        {error, Reason} -> {error, {connect, Reason}}
    end.

address("[" ++ Rest) ->
    {ok, Address} = inet:parse_address(string:trim(Rest, trailing, "]")),
    Address;
address(Host) -> Host.

small({memory, Data}) -> Data;
small(_) -> <<>>.

%% The server may answer before it has read the entire body.
sender(Socket, {file, _, _} = Body) ->
    spawn_monitor(fun() -> yucan_spool:send(fun(Data) -> gen_tcp:send(Socket, Data) end, Body) end);
sender(_, _) -> none.

%% @doc Returns the next bytes of the response.
-spec read(source(), TimeoutMs :: pos_integer()) ->
          {data, binary(), source()} | {done, source()} | {timeout, source()} | {error, term(), source()}.
read(#proxy{mode = none} = Source, _) -> {done, close(Source)};
read(#proxy{mode = {left, 0}} = Source, _) -> {done, close(Source)};
read(#proxy{mode = head, buffer = Buffer} = Source, TimeoutMs) ->
    case binary:split(Buffer, <<"\r\n\r\n">>) of
        [Head, Rest] -> head(Head, Rest, Source, TimeoutMs);
        [_] when byte_size(Buffer) > ?MAX_HEAD -> {error, head_too_long, close(Source)};
        [_] -> more(Source, TimeoutMs)
    end;
read(#proxy{mode = {chunked, State}, buffer = Buffer} = Source, TimeoutMs) ->
    case yucan_chunk:parse(State, Buffer, infinity, yucan_config:freeze(#{})) of
        {data, Data, Next, Rest} -> {data, Data, Source#proxy{mode = {chunked, Next}, buffer = Rest}};
        {done, _, _} -> {done, close(Source)};
        {more, Next, Rest} -> more(Source#proxy{mode = {chunked, Next}, buffer = Rest}, TimeoutMs);
        {error, Reason} -> {error, Reason, close(Source)}
    end;
read(#proxy{buffer = <<>>} = Source, TimeoutMs) -> more(Source, TimeoutMs);
read(#proxy{mode = {left, Left}, buffer = Buffer} = Source, _) ->
    Data = binary:part(Buffer, 0, min(Left, byte_size(Buffer))),
    {data, Data, Source#proxy{mode = {left, Left - byte_size(Data)}, buffer = <<>>}};
read(#proxy{mode = until_close, buffer = Buffer} = Source, _) -> {data, Buffer, Source#proxy{buffer = <<>>}}.

%% Interim responses are not forwarded to the client.
head(<<"HTTP/1.", _, " 1", _, _, _/binary>>, Rest, Source, TimeoutMs) -> read(Source#proxy{buffer = Rest}, TimeoutMs);
head(<<"HTTP/1.", _, " ", Status:3/binary, _/binary>> = Head, Rest, #proxy{method = Method} = Source, _) ->
    Mode = case Method =:= <<"HEAD">> orelse Status =:= <<"204">> orelse Status =:= <<"304">> of
               true -> none;
               false -> mode(Head)
           end,
    {data, <<Head/binary, "\r\n\r\n">>, Source#proxy{mode = Mode, buffer = Rest}};
head(_, _, Source, _) -> {error, no_http, close(Source)}.

mode(Head) ->
    case {value(<<"transfer-encoding">>, Head), value(<<"content-length">>, Head)} of
        {none, none} -> until_close;
        {none, Length} ->
            try {left, binary_to_integer(Length)} catch error:badarg -> none end;
        {Coding, _} ->
            case yucan_header:lower(Coding) of
                <<"chunked">> -> {chunked, yucan_chunk:new()};
                _ -> until_close
            end
    end.

value(Name, Head) ->
    case re:run(Head, ["\r\n", Name, ":[ \t]*([^\r\n]*?)[ \t]*(?:\r\n|$)"], [caseless, {capture, all_but_first, binary}]) of
        {match, [Value]} -> Value;
        nomatch -> none
    end.

more(#proxy{socket = Socket, buffer = Buffer, mode = Mode} = Source, TimeoutMs) ->
    case gen_tcp:recv(Socket, 0, TimeoutMs) of
        {ok, Data} -> read(Source#proxy{buffer = <<Buffer/binary, Data/binary>>}, TimeoutMs);
        {error, timeout} -> {timeout, Source};
        {error, closed} when Mode =:= until_close -> {done, close(Source)};
        {error, Reason} -> {error, Reason, close(Source)}
    end.

%% @doc Closes the connection, whatever the state of the request.
-spec close(source()) -> source().
close(#proxy{socket = Socket, sender = Sender} = Source) ->
    ok = gen_tcp:close(Socket),
    _ = case Sender of
            none -> ok;
            {Pid, Monitor} ->
                true = exit(Pid, kill),
                erlang:demonitor(Monitor, [flush])
        end,
    Source#proxy{sender = none}.
