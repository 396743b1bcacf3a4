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
reason(100) -> <<"Continue">>;
reason(101) -> <<"Switching Protocols">>;
reason(102) -> <<"Processing">>;
reason(103) -> <<"Early Hints">>;
reason(200) -> <<"OK">>;
reason(201) -> <<"Created">>;
reason(202) -> <<"Accepted">>;
reason(203) -> <<"Non-Authoritative Information">>;
reason(204) -> <<"No Content">>;
reason(205) -> <<"Reset Content">>;
reason(206) -> <<"Partial Content">>;
reason(207) -> <<"Multi-Status">>;
reason(300) -> <<"Multiple Choices">>;
reason(301) -> <<"Moved Permanently">>;
reason(302) -> <<"Found">>;
reason(303) -> <<"See Other">>;
reason(304) -> <<"Not Modified">>;
reason(307) -> <<"Temporary Redirect">>;
reason(308) -> <<"Permanent Redirect">>;
reason(400) -> <<"Bad Request">>;
reason(401) -> <<"Unauthorized">>;
reason(402) -> <<"Payment Required">>;
reason(403) -> <<"Forbidden">>;
reason(404) -> <<"Not Found">>;
reason(405) -> <<"Method Not Allowed">>;
reason(406) -> <<"Not Acceptable">>;
reason(407) -> <<"Proxy Authentication Required">>;
reason(408) -> <<"Request Timeout">>;
reason(409) -> <<"Conflict">>;
reason(410) -> <<"Gone">>;
reason(411) -> <<"Length Required">>;
reason(412) -> <<"Precondition Failed">>;
reason(413) -> <<"Content Too Large">>;
reason(414) -> <<"URI Too Long">>;
reason(415) -> <<"Unsupported Media Type">>;
reason(416) -> <<"Range Not Satisfiable">>;
reason(417) -> <<"Expectation Failed">>;
reason(421) -> <<"Misdirected Request">>;
reason(422) -> <<"Unprocessable Content">>;
reason(423) -> <<"Locked">>;
reason(424) -> <<"Failed Dependency">>;
reason(425) -> <<"Too Early">>;
reason(426) -> <<"Upgrade Required">>;
reason(428) -> <<"Precondition Required">>;
reason(429) -> <<"Too Many Requests">>;
reason(431) -> <<"Request Header Fields Too Large">>;
reason(451) -> <<"Unavailable For Legal Reasons">>;
reason(500) -> <<"Internal Server Error">>;
reason(501) -> <<"Not Implemented">>;
reason(502) -> <<"Bad Gateway">>;
reason(503) -> <<"Service Unavailable">>;
reason(504) -> <<"Gateway Timeout">>;
reason(505) -> <<"HTTP Version Not Supported">>;
reason(507) -> <<"Insufficient Storage">>;
reason(_) -> <<"Status">>.
