%% SPDX-License-Identifier: Apache-2.0
%% @doc Writes a response to an HTTP/2 stream, as yucan_reply does for HTTP/1.1. The framing is always the same, because the last frame of a stream
%% marks the end of the body.
-module(yucan_h2_reply).

-export([send/3, inform/3, refusal/1]).

-include("yucan_internal.hrl").

%% Data that is larger than this stays in the handler's process until it can be sent.
-define(WHOLE_BYTES, 65536).

%% @doc See {@link yucan_reply:send/3}.
-spec send(yucan_exchange:answer(), #req{}, #site{}) -> yucan_progress:outcome() | yucan_progress:stream().
send({Status, Headers, Body} = Answer, Req, _) when is_integer(Status), Status =< 999, is_list(Headers),
        (Status >= 200 orelse Status =:= 101 andalso element(1, Body) =:= upgrade) ->
    written(Answer, Req);
send({done, Outcome}, _, _) -> Outcome;
send(Other, _, _) -> error({bad_response, Other}).

written({101, Headers, {upgrade, Function}}, Req) -> taken_over(200, Headers, Function, Req);
written({Status, Headers, {upgrade, Function}}, Req) -> taken_over(Status, Headers, Function, Req);
%% As in HTTP/1.1, these responses have no body, whatever the handler returns.
written({Status, Headers, _}, Req) when Status =:= 204; Status =:= 304 ->
    {Fields, _} = fields(Status, Headers),
    bare(Fields, Status, Req);
written({Status, Headers, {file, File}}, Req) -> written({Status, Headers, {file, File, yucan_reply:size_of(File)}}, Req);
written({Status, Headers, {file, _, Length} = File}, Req) -> file(File, Length, Status, Headers, Req);
written({Status, Headers, {file, _, _, Length} = File}, Req) -> file(File, Length, Status, Headers, Req);
written({Status, Headers, {stream, Function}}, Req) -> stream(Function, Status, Headers, Req);
written({Status, Headers, Body}, Req) ->
    Size = try iolist_size(Body) catch error:badarg -> error({bad_response, {body, Body}}) end,
    whole(Body, Size, Status, Headers, Req).

taken_over(Status, Headers, Function, Req) ->
    {Fields, _} = fields(Status, Headers),
    ok = yucan_h2_stream:head(stream(Req), Fields, false),
    {upgrade, Function}.

stream(#req{conn = #conn{socket = {yucan_h2_stream, Stream}}}) -> Stream.

%% yucan_h2 adds the headers that every response has.
fields(Status, Headers) ->
    {Own, Length} = yucan_reply:fields(Headers),
    {[{<<":status">>, integer_to_binary(Status)} | Own], Length}.

with_length(Fields, undefined) -> Fields;
with_length(Fields, Length) -> Fields ++ [{<<"content-length">>, integer_to_binary(Length)}].

whole(_, Size, Status, Headers, #req{method = <<"HEAD">>} = Req) ->
    {Fields, Said} = fields(Status, Headers),
    bare(with_length(Fields, case Said of undefined -> Size; _ -> Said end), Status, Req);
whole(Body, Size, Status, Headers, Req) when Size =< ?WHOLE_BYTES ->
    {Fields, _} = fields(Status, Headers),
    ok = yucan_h2_stream:answer(stream(Req), with_length(Fields, Size), Body),
    {keep, Status, Size};
whole(Body, Size, Status, Headers, Req) ->
    {Fields, _} = fields(Status, Headers),
    ok = yucan_h2_stream:head(stream(Req), with_length(Fields, Size), false),
    done(yucan_h2_stream:finish(stream(Req), Body), Status, Size).

bare(Fields, Status, Req) ->
    ok = yucan_h2_stream:head(stream(Req), Fields, true),
    {keep, Status, 0}.

done(ok, Status, Bytes) -> {keep, Status, Bytes};
done({error, _}, Status, _) -> {close, Status, 0}.

file(_, Length, Status, Headers, #req{method = <<"HEAD">>} = Req) ->
    {Fields, _} = fields(Status, Headers),
    bare(with_length(Fields, Length), Status, Req);
file(File, Length, Status, Headers, Req) ->
    yucan_reply:with_file(File, Status, fun(Content) -> content(Content, Length, Status, Headers, Req) end).

content({Handle, Offset}, Length, Status, Headers, Req) ->
    {Fields, _} = fields(Status, Headers),
    ok = yucan_h2_stream:head(stream(Req), with_length(Fields, Length), false),
    case yucan_h2_stream:send_file(stream(Req), [], Handle, Offset, Length, infinity) of
        {ok, Length} -> {keep, Status, Length};
        {ok, Less} -> {close, Status, Less}
    end;
content(Data, Length, Status, Headers, Req) -> whole(Data, Length, Status, Headers, Req).

stream(_, Status, Headers, #req{method = <<"HEAD">>} = Req) ->
    {Fields, Length} = fields(Status, Headers),
    bare(with_length(Fields, Length), Status, Req);
stream(Function, Status, Headers, Req) ->
    {Fields, Length} = fields(Status, Headers),
    yucan_stream:run(Function, {framed, Length}, Status, {head, with_length(Fields, Length)}, keep, Req).

%% @doc See {@link yucan_reply:inform/3}.
-spec inform(Status :: 102..199, yucan_handler:headers(), #req{}) -> ok.
inform(Status, Headers, Req) ->
    {Fields, _} = fields(Status, Headers),
    yucan_h2_stream:head(stream(Req), Fields, false).

%% @doc Returns the response to an invalid request, as fields and body.
-spec refusal(Status :: 400..505) -> {[yucan_hpack:field()], iodata()}.
refusal(Status) ->
    {_, Headers, Body} = yucan_error:page(Status),
    {Fields, _} = fields(Status, Headers),
    {with_length(Fields, iolist_size(Body)), Body}.
