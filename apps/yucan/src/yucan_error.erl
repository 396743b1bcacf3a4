%% SPDX-License-Identifier: Apache-2.0
%% @doc Error pages, and the reason phrases for status codes. All functions are pure.
-module(yucan_error).

-export([page/1, page/2, page_with/2, not_allowed/2, reason/1, escape/1]).

-include("yucan_internal.hrl").

%% @doc Returns a small HTML page that describes an error.
-spec page(Status :: 300..599) -> yucan_handler:response().
page(Status) -> page(Status, reason(Status)).

%% @doc Like {@link page/1}, but with a custom text.
-spec page(Status :: 300..599, Text :: iodata()) -> yucan_handler:response().
page(Status, Text) ->
    Title = [integer_to_binary(Status), $\s, escape(Text)],
    {Status, [{<<"content-type">>, <<"text/html; charset=utf-8">>}],
     [<<"<!DOCTYPE html><html><head><title>">>, Title, <<"</title></head><body><h1>">>, Title, <<"</h1></body></html>\n">>]}.

%% @doc Returns the error page for a status, with additional headers.
-spec page_with(Status :: 300..599, yucan_handler:headers()) -> yucan_handler:response().
page_with(Status, More) ->
    {Status, Headers, Body} = page(Status),
    {Status, More ++ Headers, Body}.

%% @doc Returns the response to a request for a resource that supports only these methods: 405, or the list for OPTIONS (RFC 9110, 15.5.6 and 9.3.7).
-spec not_allowed(Methods :: [binary()], yucan_req:req()) -> yucan_handler:response().
not_allowed(Methods, #req{method = Method}) ->
    Allow = {<<"allow">>, lists:join(<<", ">>, Methods)},
    case Method of
        <<"OPTIONS">> -> {204, [Allow], <<>>};
        _ -> page_with(405, [Allow])
    end.

%% @doc Escapes text for HTML.
-spec escape(iodata()) -> iodata().
escape(Text) -> << <<(escape_byte(C))/binary>> || <<C>> <= iolist_to_binary(Text) >>.

escape_byte($<) -> <<"&lt;">>;
escape_byte($>) -> <<"&gt;">>;
escape_byte($&) -> <<"&amp;">>;
escape_byte($") -> <<"&quot;">>;
escape_byte($') -> <<"&#39;">>;
escape_byte(C) -> <<C>>.

%% @doc Returns the reason phrase for a status code.
-spec reason(integer()) -> binary().
reason(Status) ->
    maps:get(Status, #{
        100 => <<"Continue">>, 101 => <<"Switching Protocols">>, 102 => <<"Processing">>, 103 => <<"Early Hints">>, 200 => <<"OK">>,
        201 => <<"Created">>, 202 => <<"Accepted">>, 203 => <<"Non-Authoritative Information">>, 204 => <<"No Content">>,
        205 => <<"Reset Content">>, 206 => <<"Partial Content">>, 207 => <<"Multi-Status">>, 300 => <<"Multiple Choices">>,
        301 => <<"Moved Permanently">>, 302 => <<"Found">>, 303 => <<"See Other">>, 304 => <<"Not Modified">>, 307 => <<"Temporary Redirect">>,
        308 => <<"Permanent Redirect">>, 400 => <<"Bad Request">>, 401 => <<"Unauthorized">>, 402 => <<"Payment Required">>,
        403 => <<"Forbidden">>, 404 => <<"Not Found">>, 405 => <<"Method Not Allowed">>, 406 => <<"Not Acceptable">>,
        407 => <<"Proxy Authentication Required">>, 408 => <<"Request Timeout">>, 409 => <<"Conflict">>, 410 => <<"Gone">>,
        411 => <<"Length Required">>, 412 => <<"Precondition Failed">>, 413 => <<"Content Too Large">>, 414 => <<"URI Too Long">>,
        415 => <<"Unsupported Media Type">>, 416 => <<"Range Not Satisfiable">>, 417 => <<"Expectation Failed">>,
        421 => <<"Misdirected Request">>, 422 => <<"Unprocessable Content">>, 423 => <<"Locked">>, 424 => <<"Failed Dependency">>,
        425 => <<"Too Early">>, 426 => <<"Upgrade Required">>, 428 => <<"Precondition Required">>, 429 => <<"Too Many Requests">>,
        431 => <<"Request Header Fields Too Large">>, 451 => <<"Unavailable For Legal Reasons">>, 500 => <<"Internal Server Error">>,
        501 => <<"Not Implemented">>, 502 => <<"Bad Gateway">>, 503 => <<"Service Unavailable">>, 504 => <<"Gateway Timeout">>,
        505 => <<"HTTP Version Not Supported">>, 507 => <<"Insufficient Storage">>
    }, <<"Status">>).
