%% SPDX-License-Identifier: Apache-2.0
%% @doc The names of headers, which of them affect the framing, and the grammar of header values:
%% tokens, lists and dates (RFC 9110, 5.6). All functions except `date_line/0' are pure.
%%
%% A name that is in the table costs a lookup and no additional memory. Other names are copied.
-module(yucan_header).

-export([known/1, listed/1, lower/1, trim/1, tokens/1, is_token/1, elements/1, without_hops/1, date_line/0, date/1, parse_date/1]).

-include("yucan_internal.hrl").

-define(DATE_KEY, '$yucan_date').

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
    ?PLAIN(<<"Access-Control-Allow-Origin">>, <<"access-control-allow-origin">>),
    ?PLAIN(<<"Allow">>, <<"allow">>),
    ?PLAIN(<<"Authorization">>, <<"authorization">>),
    ?PLAIN(<<"Cache-Control">>, <<"cache-control">>),
    ?PLAIN(<<"Content-Disposition">>, <<"content-disposition">>),
    ?PLAIN(<<"Content-Encoding">>, <<"content-encoding">>),
    ?PLAIN(<<"Content-Range">>, <<"content-range">>),
    ?PLAIN(<<"Content-Security-Policy">>, <<"content-security-policy">>),
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
    ?PLAIN(<<"Link">>, <<"link">>),
    ?PLAIN(<<"Location">>, <<"location">>),
    ?PLAIN(<<"Origin">>, <<"origin">>),
    ?PLAIN(<<"Pragma">>, <<"pragma">>),
    ?PLAIN(<<"Priority">>, <<"priority">>),
    ?PLAIN(<<"Range">>, <<"range">>),
    ?PLAIN(<<"Referer">>, <<"referer">>),
    ?PLAIN(<<"Referrer-Policy">>, <<"referrer-policy">>),
    ?PLAIN(<<"Retry-After">>, <<"retry-after">>),
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
    ?PLAIN(<<"Strict-Transport-Security">>, <<"strict-transport-security">>),
    ?PLAIN(<<"Upgrade">>, <<"upgrade">>),
    ?PLAIN(<<"Upgrade-Insecure-Requests">>, <<"upgrade-insecure-requests">>),
    ?PLAIN(<<"User-Agent">>, <<"user-agent">>),
    ?PLAIN(<<"Vary">>, <<"vary">>),
    ?PLAIN(<<"Www-Authenticate">>, <<"www-authenticate">>),
    ?PLAIN(<<"X-Content-Type-Options">>, <<"x-content-type-options">>),
    ?PLAIN(<<"X-Forwarded-For">>, <<"x-forwarded-for">>),
    ?PLAIN(<<"X-Forwarded-Proto">>, <<"x-forwarded-proto">>),
    ?PLAIN(<<"X-Frame-Options">>, <<"x-frame-options">>),
    ?PLAIN(<<"X-Request-Id">>, <<"x-request-id">>),
    ?PLAIN(<<"X-Requested-With">>, <<"x-requested-with">>)
}).

%% @doc Returns the kind of the header with this name, and the name in lower case.
-spec known(binary()) -> {kind(), Lower :: binary()}.
known(Name) ->
    case ?KNOWN of
        #{Name := Known} -> Known;
        _ -> unusual(lower(Name))
    end.

%% @doc Like {@link known/1}, but only for names that the table contains with exactly this spelling, all of which are valid tokens.
-spec listed(binary()) -> {kind(), Lower :: binary()} | unlisted.
listed(Name) ->
    case ?KNOWN of
        #{Name := Known} -> Known;
        _ -> unlisted
    end.

%% A known name in unusual case must not be treated as unknown.
unusual(Lower) ->
    case ?KNOWN of
        #{Lower := Known} -> Known;
        _ -> {plain, Lower}
    end.

%% @doc Converts ASCII letters to lower case.
-spec lower(binary()) -> binary().
lower(Bin) -> << <<(if C >= $A, C =< $Z -> C + 32; true -> C end)>> || <<C>> <= Bin >>.

%% @doc Removes leading and trailing spaces and tabs. Header values are bytes rather than text, so `string:trim' would fail on some of them.
-spec trim(binary()) -> binary().
trim(<<C, Rest/binary>>) when C =:= $\s; C =:= $\t -> trim(Rest);
trim(<<>>) -> <<>>;
trim(Bin) ->
    case binary:last(Bin) of
        C when C =:= $\s; C =:= $\t -> trim(binary_part(Bin, 0, byte_size(Bin) - 1));
        _ -> Bin
    end.

%% @doc Returns the members of a comma-separated list, in lower case.
-spec tokens(binary()) -> [binary()].
tokens(List) -> [trim(Token) || Token <- binary:split(lower(List), <<",">>, [global])].

%% @doc Returns the headers that may be forwarded over another connection: all except those that
%% apply to a single connection and those listed in the `connection' header (RFC 9110, 7.6.1).
-spec without_hops([{Name :: binary(), Value :: binary()}]) -> [{Name :: binary(), Value :: binary()}].
without_hops(Headers) ->
    Named = [Token || {<<"connection">>, Value} <- Headers, Token <- tokens(Value)],
    Hops = [<<"connection">>, <<"keep-alive">>, <<"proxy-connection">>, <<"te">>, <<"trailer">>, <<"transfer-encoding">>, <<"upgrade">> | Named],
    [Header || {Name, _} = Header <- Headers, not lists:member(Name, Hops)].

%% @doc Returns whether this is a token (RFC 9110, 5.6.2).
-spec is_token(binary()) -> boolean().
is_token(<<>>) -> false;
is_token(Bin) -> all_tchars(Bin).

all_tchars(<<C, Rest/bits>>) when ?IS_TCHAR(C) -> all_tchars(Rest);
all_tchars(Rest) -> Rest =:= <<>>.

%% @doc Parses pairs such as `a=b; c="d e"', in comma-separated lists, as they occur after a media type or disposition
%% and in Forwarded (RFC 7239, 4). Names are converted to lower case. In quotes, `\\"' and `\\\\' stand for one byte,
%% but any other backslash is literal, because browsers send it that way.
-spec elements(binary()) -> {ok, [[{Name :: binary(), Value :: binary()}]]} | error.
elements(Text) -> pair(trim(Text), [], []).

pair(<<>>, Pairs, Done) -> {ok, lists:reverse(Done, [lists:reverse(Pairs)])};
pair(<<";", Rest/binary>>, Pairs, Done) -> pair(trim(Rest), Pairs, Done);
pair(<<",", Rest/binary>>, Pairs, Done) -> pair(trim(Rest), [], [lists:reverse(Pairs) | Done]);
pair(Text, Pairs, Done) ->
    case binary:split(Text, <<"=">>) of
        [Name, Rest] ->
            case is_token(Name) andalso pair_value(Rest) of
                {Value, After} -> pair_end(trim(After), [{lower(Name), Value} | Pairs], Done);
                _ -> error
            end;
        _ -> error
    end.

pair_end(<<C, _/binary>>, _, _) when C =/= $;, C =/= $, -> error;
pair_end(Rest, Pairs, Done) -> pair(Rest, Pairs, Done).

pair_value(<<$", Rest/binary>>) -> quoted(Rest, <<>>);
pair_value(Text) ->
    {Value, Rest} = case binary:match(Text, [<<";">>, <<",">>]) of
        {At, 1} -> split_binary(Text, At);
        nomatch -> {Text, <<>>}
    end,
    Trimmed = trim(Value),
    is_token(Trimmed) andalso {Trimmed, Rest}.

quoted(<<$\\, C, Rest/binary>>, Done) when C =:= $"; C =:= $\\ -> quoted(Rest, <<Done/binary, C>>);
quoted(<<$", Rest/binary>>, Done) -> {Done, Rest};
quoted(<<C, Rest/binary>>, Done) when C >= $\s, C =/= 127 -> quoted(Rest, <<Done/binary, C>>);
quoted(_, _) -> false.

%% @doc Returns the Date header line of a response, including its line end. Each process computes it at most once a second.
-spec date_line() -> binary().
date_line() ->
    Now = os:system_time(second),
    case get(?DATE_KEY) of
        {Now, Line} -> Line;
        _ ->
            Line = <<"date: ", (date(calendar:system_time_to_universal_time(Now, second)))/binary, "\r\n">>,
            _ = put(?DATE_KEY, {Now, Line}),
            Line
    end.

%% @doc Formats a date as `Sun, 06 Nov 1994 08:49:37 GMT'.
-spec date(calendar:datetime()) -> binary().
date({{Year, Month, Day} = Date, {Hour, Minute, Second}}) ->
    <<(day(calendar:day_of_the_week(Date)))/binary, ", ", (two(Day))/binary, " ", (month(Month))/binary, " ",
      (integer_to_binary(Year))/binary, " ", (two(Hour))/binary, ":", (two(Minute))/binary, ":", (two(Second))/binary, " GMT">>.

two(N) -> <<($0 + N div 10), ($0 + N rem 10)>>.

day(N) -> element(N, {<<"Mon">>, <<"Tue">>, <<"Wed">>, <<"Thu">>, <<"Fri">>, <<"Sat">>, <<"Sun">>}).

-define(MONTHS, {<<"Jan">>, <<"Feb">>, <<"Mar">>, <<"Apr">>, <<"May">>, <<"Jun">>, <<"Jul">>, <<"Aug">>, <<"Sep">>, <<"Oct">>,
    <<"Nov">>, <<"Dec">>}).

month(N) -> element(N, ?MONTHS).

%% @doc Parses a date in any of the three forms that RFC 9110 requires recipients to accept.
-spec parse_date(binary()) -> {ok, calendar:datetime()} | error.
parse_date(<<_:3/binary, ", ", D:2/binary, " ", Mon:3/binary, " ", Y:4/binary, " ", Time:8/binary, " GMT">>) -> make(Y, Mon, D, Time);
parse_date(<<_:3/binary, " ", Mon:3/binary, " ", D:2/binary, " ", Time:8/binary, " ", Y:4/binary>>) -> make(Y, Mon, D, Time);
parse_date(Text) ->
    case binary:split(Text, <<", ">>) of
        [_, <<D:2/binary, "-", Mon:3/binary, "-", Y:2/binary, " ", Time:8/binary, " GMT">>] -> make(century(Y), Mon, D, Time);
        _ -> error
    end.

%% A two-digit year that would be more than 50 years in the future means a year in the past.
century(Y) ->
    {{Now, _, _}, _} = calendar:universal_time(),
    try binary_to_integer(Y) of
        Short when (Now div 100) * 100 + Short > Now + 50 -> integer_to_binary((Now div 100 - 1) * 100 + Short);
        Short -> integer_to_binary((Now div 100) * 100 + Short)
    catch
        error:badarg -> Y
    end.

make(Y, Mon, D, <<H:2/binary, ":", M:2/binary, ":", S:2/binary>>) ->
    try
        Date = {binary_to_integer(Y), month_number(Mon, 1), binary_to_integer(trim(D))},
        {Hour, Minute, Second} = Time = {binary_to_integer(H), binary_to_integer(M), binary_to_integer(S)},
        true = calendar:valid_date(Date) andalso Hour < 24 andalso Minute < 60 andalso Second < 61,
        {ok, {Date, Time}}
    catch
        error:_ -> error
    end;
make(_, _, _, _) -> error.

month_number(Name, N) when element(N, ?MONTHS) =:= Name -> N;
month_number(Name, N) -> month_number(Name, N + 1).
