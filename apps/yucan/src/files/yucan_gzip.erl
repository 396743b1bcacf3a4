%% SPDX-License-Identifier: Apache-2.0
%% @doc Middleware that compresses handlers' responses: `#{middleware => [fun yucan_gzip:compress/2]}'.
%%
%% It does not change responses that are small, are not text, are already encoded, or contain only a part of the content. It also does not change
%% responses with a strong ETag, which promises exactly these bytes.
-module(yucan_gzip).

-export([compress/2]).

-define(LEAST_BYTES, 860).
-define(GZIP_WINDOW, 31).

%% @doc Calls the next handler, and compresses its response if the client accepts gzip.
-spec compress(yucan_req:req(), fun((yucan_req:req()) -> yucan_handler:response())) -> yucan_handler:response().
compress(Req, Next) ->
    case Next(Req) of
        {Status, Headers, Body} = Response when Status =/= 204, Status =/= 206, Status =/= 304 ->
            Lower = [{yucan_header:lower(text(Name)), Value} || {Name, Value} <- Headers],
            case is_candidate(Lower) of
                true -> vary(Status, Lower, Body, lists:member(<<"gzip">>, yucan_conditional:codings(Req)));
                false -> Response
            end;
        Response -> Response
    end.

text(Name) when is_atom(Name) -> atom_to_binary(Name);
text(Name) -> iolist_to_binary(Name).

is_candidate(Headers) ->
    Type = proplists:get_value(<<"content-type">>, Headers, <<>>),
    yucan_mime:is_text(yucan_header:lower(iolist_to_binary(Type))) andalso not lists:keymember(<<"content-encoding">>, 1, Headers)
        andalso not lists:keymember(<<"content-range">>, 1, Headers) andalso is_weak(proplists:get_value(<<"etag">>, Headers)).

is_weak(undefined) -> true;
is_weak(Etag) -> binary:match(iolist_to_binary(Etag), <<"W/">>) =:= {0, 2}.

vary(Status, Headers, Body, Accepted) ->
    Varied = case lists:keytake(<<"vary">>, 1, Headers) of
        {value, {_, Value}, Others} -> [{<<"vary">>, [Value, <<", accept-encoding">>]} | Others];
        false -> [{<<"vary">>, <<"accept-encoding">>} | Headers]
    end,
    case Body of
        {stream, Function} when Accepted -> {Status, encoded(Varied), {stream, fun(Write) -> stream(Function, Write) end}};
        _ when is_tuple(Body) -> {Status, Varied, Body};
        _ ->
            case Accepted andalso iolist_size(Body) >= ?LEAST_BYTES of
                true -> {Status, encoded(Varied), zlib:gzip(Body)};
                false -> {Status, Varied, Body}
            end
    end.

encoded(Headers) -> [{<<"content-encoding">>, <<"gzip">>} | lists:keydelete(<<"content-length">>, 1, Headers)].

%% Flushes each part, so that the client can decompress it as soon as the handler has written it.
stream(Function, Write) ->
    Z = zlib:open(),
    try
        ok = zlib:deflateInit(Z, default, deflated, ?GZIP_WINDOW, 8, default),
        _ = Function(fun(Data) -> Write(zlib:deflate(Z, Data, sync)) end),
        Write(zlib:deflate(Z, <<>>, finish))
    after
        zlib:close(Z)
    end.
