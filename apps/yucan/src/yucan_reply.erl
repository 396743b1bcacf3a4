%% SPDX-License-Identifier: Apache-2.0
%% @doc Writes a response in HTTP/1.1. If the body is known, head and body are sent together.
%%
%% Called by yucan_conn, or by yucan_answer for a handler. Only this module determines the framing: for a stream it uses the handler's Content-Length
%% if there is one; otherwise it replaces the handler's framing headers. A header that contains CR, LF or NUL is never sent.
-module(yucan_reply).
-dialyzer(no_improper_lists).

-export([send/3, forget/0, inform/3, refuse/5, fields/1]).
-export([size_of/1, with_file/3]).

%% Functions that each small response calls. Inlining them, and those in yucan_conn and yucan_exchange, saves 3 % of the CPU time of a small GET.
-compile({inline, [done/4, connection/3, opening/3, general/2, connection_line/2, status_line/1, length_line/1, transmit/2, head/6]}).

-include("yucan_internal.hrl").
-include_lib("kernel/include/file.hrl").

%% The key under which the headers of the previous response and the result of checking them are cached.
-define(CHECKED, '$yucan_checked').

%% The result of checking a handler's headers.
-record(out, {
    lines = [] :: iodata(),
    length = undefined :: undefined | non_neg_integer(),
    close = false :: boolean(),
    date = false :: boolean(),
    server = false :: boolean()
}).

%% Responses larger than this are sent in parts.
-define(PART_BYTES, 65536).

%% @doc Sends the response. Raises `{bad_response, What}' before the first byte if the response is not valid.
-spec send(yucan_exchange:answer(), #req{}, #site{}) -> yucan_progress:outcome() | yucan_progress:stream().
send({Status, Headers, Body}, Req, Site) when is_integer(Status), Status >= 200, Status =< 999, is_list(Headers) ->
    body(Body, Status, checked(Headers), Req, Site);
send({101, Headers, {upgrade, Function}}, #req{conn = Conn}, Site) when is_function(Function, 2), is_list(Headers) ->
    Out = headers(Headers, #out{}),
    Head = [opening(101, Out, Site), Out#out.lines, <<"\r\n">>],
    case yucan_transport:send(Conn#conn.socket, Head) of
        ok -> {upgrade, Function};
        {error, _} -> {close, 101, 0}
    end;
send({done, Outcome}, #req{}, _) ->
    Outcome;
send(Other, #req{}, _) ->
    error({bad_response, Other}).

body({upgrade, Function}, Status, Out, #req{conn = Conn} = Req, Site) when is_function(Function, 2) ->
    case yucan_transport:send(Conn#conn.socket, head(Status, Out, close, <<>>, Req, Site)) of
        ok -> {upgrade, Function};
        {error, _} -> {close, Status, 0}
    end;
%% These responses have no body, whatever the handler returns (RFC 9110, 6.4.1).
body(_, Status, Out, Req, Site) when Status =:= 204; Status =:= 304 ->
    Connection = connection(Out, Req, Site),
    done(transmit(head(Status, Out, Connection, <<>>, Req, Site), Req), Connection, Status, 0);
body({file, File}, Status, Out, Req, Site) -> body({file, File, size_of(File)}, Status, Out, Req, Site);
body({file, _, Length} = File, Status, Out, Req, Site) -> file(File, Length, Status, Out, Req, Site);
body({file, _, _, Length} = File, Status, Out, Req, Site) -> file(File, Length, Status, Out, Req, Site);
body({stream, Function}, Status, Out, Req, Site) when is_function(Function, 1); Function =:= open ->
    stream(Function, Status, Out, Req, Site);
body(Body, Status, Out, Req, Site) when is_binary(Body) ->
    full(Status, Body, byte_size(Body), connection(Out, Req, Site), Out, Req, Site);
body(Body, Status, Out, Req, Site) ->
    Size = try iolist_size(Body) catch error:badarg -> error({bad_response, {body, Body}}) end,
    Connection = connection(Out, Req, Site),
    full(Status, Body, Size, Connection, Out, Req, Site).

full(Status, _, Size, Connection, #out{length = Said} = Out, #req{method = <<"HEAD">>} = Req, Site) ->
    Length = case Said of undefined -> Size; _ -> Said end,
    done(transmit(head(Status, Out, Connection, length_line(Length), Req, Site), Req), Connection, Status, 0);
full(Status, Body, Size, Connection, Out, Req, Site) ->
    Data = [head(Status, Out, Connection, length_line(Size), Req, Site) | Body],
    case Size > ?PART_BYTES of
        true -> done(yucan_transport:send_large(Req#req.conn#conn.socket, Data), Connection, Status, Size);
        false -> done(transmit(Data, Req), Connection, Status, Size)
    end.

%% Every small response takes this code path, so it calls the transport module directly.
transmit(Data, #req{conn = #conn{socket = {Transport, Raw}}}) -> Transport:send(Raw, Data).

done(ok, Connection, Status, Bytes) -> {Connection, Status, Bytes};
done({error, _}, _, Status, _) -> {close, Status, 0}.

length_line(Length) -> [<<"content-length: ">>, integer_to_binary(Length), <<"\r\n">>].

connection(#out{close = false}, #req{keep = true, body = Body}, #site{counters = Counters}) ->
    case atomics:get(Counters, ?DRAINING) of
        0 when Body =:= none -> keep;
        0 -> yucan_body:outlook();
        1 -> close
    end;
connection(_, _, _) -> close.

head(Status, #out{lines = Lines} = Out, Connection, Framing, Req, Site) ->
    [opening(Status, Out, Site), connection_line(Connection, Req), Lines, Framing, <<"\r\n">>].

%% Returns the beginning of every response, whichever module writes it. A header that all responses should have would be added to `general'.
opening(Status, Out, Site) -> [status_line(Status) | general(Out, Site)].

general(#out{date = false, server = false}, #site{server_header = Server}) -> [yucan_header:date_line(), Server];
general(#out{date = Date, server = Said}, #site{server_header = Server}) ->
    [[yucan_header:date_line() || not Date], [Server || not Said]].

connection_line(keep, #req{version = 11}) -> [];
connection_line(keep, _) -> <<"connection: keep-alive\r\n">>;
connection_line(close, _) -> <<"connection: close\r\n">>.

status_line(200) -> <<"HTTP/1.1 200 OK\r\n">>;
status_line(304) -> <<"HTTP/1.1 304 Not Modified\r\n">>;
status_line(404) -> <<"HTTP/1.1 404 Not Found\r\n">>;
status_line(Status) -> [<<"HTTP/1.1 ">>, integer_to_binary(Status), $\s, yucan_error:reason(Status), <<"\r\n">>].

%% The result is cached, because many handlers return the same headers as in their previous response.
checked(Headers) ->
    case get(?CHECKED) of
        {Headers, Out} -> Out;
        _ ->
            Out = headers(Headers, #out{}),
            _ = put(?CHECKED, {Headers, Out}),
            Out
    end.

%% @doc Discards the data cached from the previous response, because the connection is idle.
-spec forget() -> ok.
forget() -> _ = erase(?CHECKED), ok.

headers([{Name, Value} | Rest], Out) ->
    {Kind, Lower} = name(Name),
    headers(Rest, header(Kind, Lower, value(Value), Out));
headers([], Out) -> Out;
headers(Other, _) -> error({bad_response, {headers, Other}}).

%% @doc Returns a handler's headers for HTTP/2, without those of an HTTP/1.1 connection, and the length that it gave.
-spec fields(yucan_handler:headers()) -> {[{Name :: binary(), Value :: binary()}], undefined | non_neg_integer()}.
fields(Headers) -> fields(Headers, [], undefined).

fields([{Name, Value} | Rest], Done, Length) ->
    case name(Name) of
        {plain, Lower} when Lower =:= <<"keep-alive">>; Lower =:= <<"proxy-connection">>; Lower =:= <<"upgrade">> -> fields(Rest, Done, Length);
        {content_length, _} -> fields(Rest, Done, length_of(value(Value)));
        %% In HTTP/1.1, leading and trailing spaces are not part of a value, but in HTTP/2 they are an error (RFC 9113, 8.2.1).
        {Kind, Lower} when Kind =:= plain; Kind =:= host -> fields(Rest, [{Lower, yucan_header:trim(value(Value))} | Done], Length);
        _ -> fields(Rest, Done, Length)
    end;
fields([], Done, Length) -> {lists:reverse(Done), Length};
fields(Other, _, _) -> error({bad_response, {headers, Other}}).

header(plain, <<"date">> = Name, Value, Out) -> add(Name, Value, Out#out{date = true});
header(plain, <<"server">> = Name, Value, Out) -> add(Name, Value, Out#out{server = true});
%% This header concerns only this connection (RFC 9110, 7.8).
header(plain, <<"upgrade">> = Name, Value, Out) -> add(<<"connection">>, Name, add(Name, Value, Out));
header(connection, _, Value, Out) ->
    Out#out{close = Out#out.close orelse binary:match(yucan_header:lower(Value), <<"close">>) =/= nomatch};
header(transfer_encoding, _, _, Out) -> Out;
header(content_length, _, Value, Out) -> Out#out{length = length_of(Value)};
header(_, Name, Value, Out) -> add(Name, Value, Out).

length_of(Value) ->
    try binary_to_integer(Value) of
        Length when Length >= 0 -> Length;
        _ -> error({bad_response, {content_length, Value}})
    catch
        error:badarg -> error({bad_response, {content_length, Value}})
    end.

add(Name, Value, #out{lines = Lines} = Out) -> Out#out{lines = [Lines, Name, <<": ">>, Value, <<"\r\n">>]}.

name(Name) when is_binary(Name) ->
    case yucan_header:listed(Name) of
        unlisted ->
            case yucan_header:is_token(Name) of
                true -> yucan_header:known(Name);
                false -> error({bad_response, {header_name, Name}})
            end;
        Listed -> Listed
    end;
name(Name) when is_atom(Name) -> name(atom_to_binary(Name));
name(Name) ->
    try iolist_to_binary(Name) of
        Bin -> name(Bin)
    catch
        error:badarg -> error({bad_response, {header_name, Name}})
    end.

value(Value) when is_binary(Value) ->
    case is_clean(Value) of
        true -> Value;
        false -> error({bad_response, {header_value, Value}})
    end;
value(Value) when is_integer(Value) -> integer_to_binary(Value);
value(Value) ->
    try iolist_to_binary(Value) of
        Bin -> value(Bin)
    catch
        error:badarg -> error({bad_response, {header_value, Value}})
    end.

is_clean(<<C, Rest/bits>>) when C >= $\s, C =/= 127; C =:= $\t -> is_clean(Rest);
is_clean(<<>>) -> true;
is_clean(_) -> false.

file(_, Length, Status, Out, #req{method = <<"HEAD">>} = Req, Site) ->
    Connection = connection(Out, Req, Site),
    done(transmit(head(Status, Out, Connection, length_line(Length), Req, Site), Req), Connection, Status, 0);
file(File, Length, Status, Out, Req, Site) ->
    with_file(File, Status, fun(Content) -> content(Content, Length, connection(Out, Req, Site), Status, Out, Req, Site) end).

content({Handle, Offset}, Length, Connection, Status, Out, #req{conn = #conn{socket = Socket}} = Req, Site) ->
    Head = head(Status, Out, Connection, length_line(Length), Req, Site),
    case yucan_transport:send_file(Socket, Head, Handle, Offset, Length, Site#site.limits#limits.send_ms) of
        {ok, Length} -> {Connection, Status, Length};
        %% The file was truncated in the meantime, and the client must be able to tell that data is missing.
        {ok, Less} -> {close, Status, Less};
        {error, _} -> {close, Status, 0}
    end;
content(Data, Length, Connection, Status, Out, Req, Site) -> full(Status, Data, Length, Connection, Out, Req, Site).

%% @doc Returns the size of a file for which the handler gave none.
-spec size_of(file:name_all()) -> non_neg_integer().
size_of(File) ->
    case file:read_file_info(File, [raw]) of
        {ok, #file_info{type = regular, size = Size}} -> Size;
        _ -> error({bad_response, {no_file, File}})
    end.

%% A file of up to this size is read with a single call, because each call switches to another thread and back.
-define(SMALL_BYTES, 16384).

%% @doc Calls `Send' with the bytes of a file or of a part of one, if they are few, and otherwise with the open file and
%% the offset. If the file has been truncated and the few bytes cannot all be read, nothing is sent.
-spec with_file({file, file:name_all(), Size} | {file, file:name_all(), Offset, Length}, Status, fun((binary() | {file:fd(), Offset}) -> Outcome)) -> Outcome | {close, Status, 0}
    when Size :: non_neg_integer(), Offset :: non_neg_integer(), Length :: non_neg_integer(), Status :: 200..999, Outcome :: yucan_progress:outcome().
with_file({file, File, Size}, Status, Send) when Size =< ?SMALL_BYTES ->
    case prim_file:read_file(File) of
        {ok, Data} when byte_size(Data) >= Size -> Send(binary_part(Data, 0, Size));
        {ok, _} -> {close, Status, 0};
        {error, Reason} -> error({bad_response, {Reason, File}})
    end;
with_file({file, File, Size}, Status, Send) -> with_file({file, File, 0, Size}, Status, Send);
with_file({file, File, Offset, Length}, Status, Send) ->
    case file:open(File, [read, raw, binary]) of
        {ok, Handle} ->
            try part(Handle, Offset, Length, Status, Send)
            after
                _ = file:close(Handle)
            end;
        {error, Reason} -> error({bad_response, {Reason, File}})
    end.

part(_, _, 0, _, Send) -> Send(<<>>);
part(Handle, Offset, Length, Status, Send) when Length =< ?SMALL_BYTES ->
    case file:pread(Handle, Offset, Length) of
        {ok, Data} when byte_size(Data) =:= Length -> Send(Data);
        _ -> {close, Status, 0}
    end;
part(Handle, Offset, _, _, Send) -> Send({Handle, Offset}).

stream(_, Status, Out, #req{method = <<"HEAD">>} = Req, Site) ->
    Connection = connection(Out, Req, Site),
    done(transmit(head(Status, Out, Connection, stream_framing(Out, Req), Req, Site), Req), Connection, Status, 0);
stream(Function, Status, #out{length = Length} = Out, #req{version = 10} = Req, Site) when Length =:= undefined ->
    yucan_stream:run(Function, until_close, Status, head(Status, Out, close, <<>>, Req, Site), close, Req);
stream(Function, Status, #out{length = Length} = Out, Req, Site) ->
    Connection = connection(Out, Req, Site),
    Mode = case Length of undefined -> chunked; _ -> Length end,
    yucan_stream:run(Function, Mode, Status, head(Status, Out, Connection, stream_framing(Out, Req), Req, Site), Connection, Req).

stream_framing(#out{length = undefined}, #req{version = 10}) -> <<>>;
stream_framing(#out{length = undefined}, _) -> <<"transfer-encoding: chunked\r\n">>;
stream_framing(#out{length = Length}, _) -> length_line(Length).

%% @doc Sends an informational response (RFC 9110, 15.2).
-spec inform(Status :: 102..199, yucan_handler:headers(), #req{}) -> ok | {error, yucan_transport:reason()}.
inform(Status, Headers, #req{conn = #conn{socket = Socket}}) ->
    {Fields, _} = fields(Headers),
    yucan_transport:send(Socket, [status_line(Status), [[Name, <<": ">>, Value, <<"\r\n">>] || {Name, Value} <- Fields], <<"\r\n">>]).

%% @doc Sends the response to an invalid request. The connection closes afterwards.
-spec refuse(Status :: 400..505, Text :: iodata(), yucan_transport:socket(), method_was_head | any, #site{}) -> ok.
refuse(Status, Text, Socket, Method, Site) ->
    {_, [{_, Type}], Body} = yucan_error:page(Status, Text),
    Head = [opening(Status, #out{}, Site), [<<"retry-after: 1\r\n">> || Status =:= 503], <<"connection: close\r\ncontent-type: ">>, Type, <<"\r\n">>, length_line(iolist_size(Body)), <<"\r\n">>],
    _ = yucan_transport:send(Socket, case Method of method_was_head -> Head; any -> [Head | Body] end),
    ok.
