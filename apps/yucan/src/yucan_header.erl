%% SPDX-License-Identifier: Apache-2.0
%% @doc Names of headers: lower case, and which of them decide about framing. Pure.
%%
%% A name that is in the table costs one look-up and no memory of its own; the others are copied.
-module(yucan_header).

-export([known/1, listed/1, lower/1, trim/1, tokens/1, is_token/1, without_hops/1]).

-type kind() :: plain | host | connection | content_length | transfer_encoding | expect.

-define(PLAIN(Usual, Lower), Usual => {plain, Lower}, Lower => {plain, Lower}).
-define(KIND(Usual, Lower, Kind), Usual => {Kind, Lower}, Lower => {Kind, Lower}).
-define(KNOWN, #{
    ?KIND(<<"Host">>, <<"host">>, host),
    ?KIND(<<"Connection">>, <<"connection">>, connection),
    ?KIND(<<"Content-Length">>, <<"content-length">>, content_length),
    ?KIND(<<"Transfer-Encoding">>, <<"transfer-encoding">>, transfer_encoding),
    ?KIND(<<"Expect">>, <<"expect">>, expect),
    ?PLAIN(<<"Accept">>, <<"accept">>),
    ?PLAIN(<<"Accept-Encoding">>, <<"accept-encoding">>),
    ?PLAIN(<<"Accept-Language">>, <<"accept-language">>),
    ?PLAIN(<<"Accept-Ranges">>, <<"accept-ranges">>),
    ?PLAIN(<<"Authorization">>, <<"authorization">>),
    ?PLAIN(<<"Cache-Control">>, <<"cache-control">>),
    ?PLAIN(<<"Content-Encoding">>, <<"content-encoding">>),
    ?PLAIN(<<"Content-Range">>, <<"content-range">>),
    ?PLAIN(<<"Content-Type">>, <<"content-type">>),
    ?PLAIN(<<"Cookie">>, <<"cookie">>),
    ?PLAIN(<<"DNT">>, <<"dnt">>),
    ?PLAIN(<<"ETag">>, <<"etag">>),
    ?PLAIN(<<"Expires">>, <<"expires">>),
    ?PLAIN(<<"If-Match">>, <<"if-match">>),
    ?PLAIN(<<"If-Modified-Since">>, <<"if-modified-since">>),
    ?PLAIN(<<"If-None-Match">>, <<"if-none-match">>),
    ?PLAIN(<<"If-Range">>, <<"if-range">>),
    ?PLAIN(<<"If-Unmodified-Since">>, <<"if-unmodified-since">>),
    ?PLAIN(<<"Keep-Alive">>, <<"keep-alive">>),
    ?PLAIN(<<"Last-Modified">>, <<"last-modified">>),
    ?PLAIN(<<"Location">>, <<"location">>),
    ?PLAIN(<<"Origin">>, <<"origin">>),
    ?PLAIN(<<"Pragma">>, <<"pragma">>),
    ?PLAIN(<<"Priority">>, <<"priority">>),
    ?PLAIN(<<"Range">>, <<"range">>),
    ?PLAIN(<<"Referer">>, <<"referer">>),
    ?PLAIN(<<"Sec-Ch-Ua">>, <<"sec-ch-ua">>),
    ?PLAIN(<<"Sec-Ch-Ua-Mobile">>, <<"sec-ch-ua-mobile">>),
    ?PLAIN(<<"Sec-Ch-Ua-Platform">>, <<"sec-ch-ua-platform">>),
    ?PLAIN(<<"Sec-Fetch-Dest">>, <<"sec-fetch-dest">>),
    ?PLAIN(<<"Sec-Fetch-Mode">>, <<"sec-fetch-mode">>),
    ?PLAIN(<<"Sec-Fetch-Site">>, <<"sec-fetch-site">>),
    ?PLAIN(<<"Sec-Fetch-User">>, <<"sec-fetch-user">>),
    ?PLAIN(<<"Sec-WebSocket-Key">>, <<"sec-websocket-key">>),
    ?PLAIN(<<"Sec-WebSocket-Version">>, <<"sec-websocket-version">>),
    ?PLAIN(<<"Server">>, <<"server">>),
    ?PLAIN(<<"Set-Cookie">>, <<"set-cookie">>),
    ?PLAIN(<<"Upgrade">>, <<"upgrade">>),
    ?PLAIN(<<"Upgrade-Insecure-Requests">>, <<"upgrade-insecure-requests">>),
    ?PLAIN(<<"User-Agent">>, <<"user-agent">>),
    ?PLAIN(<<"Vary">>, <<"vary">>),
    ?PLAIN(<<"Www-Authenticate">>, <<"www-authenticate">>),
    ?PLAIN(<<"X-Forwarded-For">>, <<"x-forwarded-for">>),
    ?PLAIN(<<"X-Forwarded-Proto">>, <<"x-forwarded-proto">>),
    ?PLAIN(<<"X-Requested-With">>, <<"x-requested-with">>)
}).

%% @doc What kind of header has this name, and its lower-case form.
-spec known(binary()) -> {kind(), Lower :: binary()}.
known(Name) ->
    case ?KNOWN of
        #{Name := Known} -> Known;
        _ -> unusual(lower(Name))
    end.

%% @doc The same if the name stands in the table as it is; then it is a token, too.
-spec listed(binary()) -> {kind(), Lower :: binary()} | unlisted.
listed(Name) ->
    case ?KNOWN of
        #{Name := Known} -> Known;
        _ -> unlisted
    end.

%% A known name in unusual case must not slip through as a plain one.
unusual(Lower) ->
    case ?KNOWN of
        #{Lower := Known} -> Known;
        _ -> {plain, Lower}
    end.

%% @doc The ASCII letters in lower case.
-spec lower(binary()) -> binary().
lower(Bin) ->
    << <<(if C >= $A, C =< $Z -> C + 32; true -> C end)>> || <<C>> <= Bin >>.

%% @doc Without blanks and tabs at both ends. Values of headers are bytes, not text: `string:trim' would fail on some.
-spec trim(binary()) -> binary().
trim(<<C, Rest/binary>>) when C =:= $\s; C =:= $\t -> trim(Rest);
trim(<<>>) -> <<>>;
trim(Bin) ->
    case binary:last(Bin) of
        C when C =:= $\s; C =:= $\t -> trim(binary_part(Bin, 0, byte_size(Bin) - 1));
        _ -> Bin
    end.

%% @doc The members of a comma-separated list, in lower case.
-spec tokens(binary()) -> [binary()].
tokens(List) -> [trim(Token) || Token <- binary:split(lower(List), <<",">>, [global])].

%% @doc The headers that another connection may see, too: neither those that belong to one, nor those that `connection' names (RFC 9110, 7.6.1).
-spec without_hops([{Name :: binary(), Value :: binary()}]) -> [{Name :: binary(), Value :: binary()}].
without_hops(Headers) ->
    Named = [Token || {<<"connection">>, Value} <- Headers, Token <- tokens(Value)],
    Hops = [<<"connection">>, <<"keep-alive">>, <<"proxy-connection">>, <<"te">>, <<"trailer">>, <<"transfer-encoding">>, <<"upgrade">> | Named],
    [Header || {Name, _} = Header <- Headers, not lists:member(Name, Hops)].

%% @doc Is this a token (RFC 9110, 5.6.2)?
-spec is_token(binary()) -> boolean().
is_token(<<>>) -> false;
is_token(Bin) -> all_tchars(Bin).

all_tchars(<<C, Rest/bits>>) when C >= $a, C =< $z; C >= $A, C =< $Z; C >= $0, C =< $9; C =:= $- -> all_tchars(Rest);
all_tchars(<<C, Rest/bits>>) -> lists:member(C, "!#$%&'*+.^_`|~") andalso all_tchars(Rest);
all_tchars(<<>>) -> true.
