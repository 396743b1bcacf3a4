%% SPDX-License-Identifier: Apache-2.0
%% @doc Converts HTTP/2 fields to a request (RFC 9113, 8.2 and 8.3). All functions are pure. The method, target and host pass through the HTTP/1.1
%% parser, so a path has the same canonical form, limits and rejections over both protocols.
-module(yucan_h2_request).

-export([parse/4, is_tunnel/1, is_trailer/1]).

-include("yucan_internal.hrl").

-record(pseudo, {
    method = none :: none | binary(),
    scheme = none :: none | binary(),
    authority = none :: none | binary(),
    path = none :: none | binary(),
    protocol = none :: none | binary()
}).

-type refusal() :: malformed | {error, Status :: 400..505, Reason :: atom()}.

%% @doc Returns a request. `Fin' means that nothing follows the headers. The caller resets the
%% stream after `malformed', but responds to an error. A WebSocket (RFC 8441) becomes a GET with the
%% header `upgrade: websocket', which a client cannot send over HTTP/2.
-spec parse([yucan_hpack:field()], Fin :: boolean(), #limits{}, Template :: #req{}) -> {ok, #req{}} | refusal().
parse(Fields, Fin, Limits, Template) ->
    case pseudo(Fields, #pseudo{}) of
        {ok, Pseudo, Rest} -> headers(Rest, 0, [], [], Fin, Pseudo, Limits, Template#req{version = 20});
        malformed -> malformed
    end.

%% @doc Returns whether the request opens a tunnel for a WebSocket.
-spec is_tunnel(#req{}) -> boolean().
is_tunnel(#req{body = none, headers = Headers, version = 20}) -> lists:keymember(<<"upgrade">>, 1, Headers);
is_tunnel(_) -> false.

%% Pseudo-headers must come first and must not be repeated.
pseudo([{<<":method">>, Value} | Rest], #pseudo{method = none} = P) -> pseudo(Rest, P#pseudo{method = Value});
pseudo([{<<":scheme">>, Value} | Rest], #pseudo{scheme = none} = P) -> pseudo(Rest, P#pseudo{scheme = Value});
pseudo([{<<":authority">>, Value} | Rest], #pseudo{authority = none} = P) -> pseudo(Rest, P#pseudo{authority = Value});
pseudo([{<<":path">>, Value} | Rest], #pseudo{path = none} = P) -> pseudo(Rest, P#pseudo{path = Value});
pseudo([{<<":protocol">>, Value} | Rest], #pseudo{protocol = none} = P) -> pseudo(Rest, P#pseudo{protocol = Value});
pseudo([{<<":", _/binary>>, _} | _], _) -> malformed;
pseudo(Rest, P) -> {ok, P, Rest}.

headers([{Name, Value} = Field | Rest], Count, Done, Cookies, Fin, P, Limits, Req) ->
    case is_field(Field) of
        false -> malformed;
        %% However many parts a browser sends, all cookies count as one header, as they do over HTTP/1.1.
        true when Count >= Limits#limits.headers, Name =/= <<"cookie">> orelse Cookies =:= [] -> {error, 431, too_many_headers};
        true when byte_size(Name) + byte_size(Value) + 2 > Limits#limits.header_line_bytes -> {error, 431, header_too_long};
        true ->
            case header(Name, Value, Req) of
                cookie when Cookies =:= [] -> headers(Rest, Count + 1, Done, [Value], Fin, P, Limits, Req);
                cookie -> headers(Rest, Count, Done, [Value | Cookies], Fin, P, Limits, Req);
                #req{} = Noted -> headers(Rest, Count + 1, [Field | Done], Cookies, Fin, P, Limits, Noted);
                Refusal -> Refusal
            end
    end;
headers([], _, Done, Cookies, Fin, P, Limits, Req) -> finish(P, Fin, Limits, Req#req{headers = joined(Cookies, Done)}).

%% Everything other than HTTP/2 expects all cookies in a single header (RFC 9113, 8.2.3).
joined([], Done) -> Done;
joined(Cookies, Done) -> [{<<"cookie">>, iolist_to_binary(lists:join(<<"; ">>, lists:reverse(Cookies)))} | Done].

header(<<"cookie">>, _, _) -> cookie;
header(<<"content-length">>, Value, #req{body = none} = Req) -> length(Value, Req);
header(<<"content-length">>, _, _) -> malformed;
header(<<"host">>, Value, #req{host = undefined} = Req) -> Req#req{host = Value};
header(<<"host">>, _, _) -> malformed;
header(<<"te">>, Value, Req) -> case yucan_header:lower(Value) of <<"trailers">> -> Req; _ -> malformed end;
header(<<"expect">>, Value, Req) ->
    case yucan_header:lower(Value) of
        <<"100-continue">> -> Req#req{expect = true};
        _ -> {error, 417, bad_expectation}
    end;
%% These headers are specific to a connection (8.2.2).
header(<<"connection">>, _, _) -> malformed;
header(<<"transfer-encoding">>, _, _) -> malformed;
header(<<"upgrade">>, _, _) -> malformed;
header(<<"keep-alive">>, _, _) -> malformed;
header(<<"proxy-connection">>, _, _) -> malformed;
header(_, _, Req) -> Req.

length(Value, Req) ->
    case byte_size(Value) =< 17 andalso string:to_integer(Value) of
        {Length, <<>>} when Length >= 0, binary_part(Value, 0, 1) =/= <<"+">>, binary_part(Value, 0, 1) =/= <<"-">> -> Req#req{body = {length, Length}};
        _ -> malformed
    end.

%% Names are tokens in lower case, and values have no control characters and no leading or trailing spaces.
is_field({Name, Value}) ->
    case yucan_header:listed(Name) of
        {_, Name} -> true;
        unlisted -> is_name(Name);
        {_, _} -> false
    end andalso is_value(Value).

%% @doc Like is_field/1, but for trailers, which must not affect the framing or be connection-specific.
-spec is_trailer(yucan_hpack:field()) -> boolean().
is_trailer({Name, _} = Field) ->
    is_field(Field) andalso yucan_header:known(Name) =:= {plain, Name}
        andalso not lists:member(Name, [<<"te">>, <<"upgrade">>, <<"keep-alive">>, <<"proxy-connection">>]).

is_name(<<>>) -> false;
is_name(Name) -> is_lower_token(Name).

is_lower_token(<<C, Rest/bits>>) when ?IS_TCHAR(C), C < $A orelse C > $Z -> is_lower_token(Rest);
is_lower_token(Rest) -> Rest =:= <<>>.

is_value(<<>>) -> true;
is_value(<<C, _/bits>>) when C =:= $\s; C =:= $\t -> false;
is_value(Value) -> binary:last(Value) =/= $\s andalso is_clean(Value).

is_clean(<<C, Rest/bits>>) when C >= $\s, C =/= 127 -> is_clean(Rest);
is_clean(<<$\t, Rest/bits>>) when Rest =/= <<>> -> is_clean(Rest);
is_clean(Rest) -> Rest =:= <<>>.

finish(#pseudo{method = <<"CONNECT">>, protocol = none}, _, _, _) -> {error, 501, no_connect};
finish(#pseudo{method = Method, scheme = Scheme, path = Path}, _, _, _) when Method =:= none; Scheme =:= none; Path =:= none; Path =:= <<>> -> malformed;
finish(#pseudo{method = <<"CONNECT">>, protocol = <<"websocket">>}, true, _, _) -> malformed;
finish(#pseudo{method = <<"CONNECT">>, protocol = <<"websocket">>} = P, false, Limits, #req{headers = Headers, body = none} = Req) ->
    target(P#pseudo{method = <<"GET">>}, Limits, Req#req{headers = [{<<"upgrade">>, <<"websocket">>} | Headers]});
finish(#pseudo{method = <<"CONNECT">>}, _, _, _) -> {error, 501, no_connect};
finish(#pseudo{protocol = Protocol}, _, _, _) when Protocol =/= none -> malformed;
finish(P, true, Limits, #req{body = Body} = Req) when Body =:= none; Body =:= {length, 0} -> target(P, Limits, Req#req{body = none});
finish(_, true, _, _) -> malformed;
finish(P, false, Limits, #req{body = none} = Req) -> target(P, Limits, Req#req{body = chunked});
finish(P, false, Limits, Req) -> target(P, Limits, Req).

%% These parts can be written as an HTTP/1.1 request only if none of them contains a space or a control character.
target(#pseudo{method = Method, scheme = Scheme, authority = Authority, path = <<C, _/binary>> = Path}, Limits, #req{host = Said} = Req)
  when Scheme =:= <<"http">> orelse Scheme =:= <<"https">>, C =:= $/ orelse Path =:= <<"*">> ->
    case {is_clean(Authority, Said), is_visible(Method) andalso is_visible(Path)} of
        {{ok, Host}, true} -> parsed(Method, Path, Host, Limits, Req);
        _ -> malformed
    end;
target(_, _, _) -> malformed.

%% If :authority and Host differed, two servers could choose different hosts (8.3.1).
is_clean(none, undefined) -> {ok, <<>>};
is_clean(none, Said) -> visible(Said);
is_clean(Authority, undefined) -> visible(Authority);
is_clean(Authority, Said) -> case yucan_header:lower(Authority) =:= yucan_header:lower(Said) of true -> visible(Authority); false -> error end.

visible(Text) -> case is_visible(Text) of true -> {ok, Text}; false -> error end.

is_visible(<<C, Rest/bits>>) when C > $\s, C =/= 127 -> is_visible(Rest);
is_visible(Rest) -> Rest =:= <<>>.

parsed(Method, Path, Host, Limits, #req{headers = Headers, body = Body, expect = Expect} = Req) ->
    Text = <<Method/binary, " ", Path/binary, " HTTP/1.1\r\nhost: ", Host/binary, "\r\n\r\n">>,
    case yucan_head:parse(Text, Limits, Req#req{host = undefined, headers = []}) of
        {ok, Parsed, <<>>} ->
            Named = case lists:keymember(<<"host">>, 1, Headers) of true -> Headers; false -> Headers ++ [{<<"host">>, Host}] end,
            {ok, Parsed#req{headers = Named, body = Body, expect = Expect, version = 20, keep = true}};
        {error, _, _} = Refusal -> Refusal;
        _ -> {error, 400, bad_target}
    end.
