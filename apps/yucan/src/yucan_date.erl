%% SPDX-License-Identifier: Apache-2.0
%% @doc Dates of HTTP (RFC 9110, 5.6.7). Pure but for `line/0', which each process works out once a second.
-module(yucan_date).

-export([line/0, format/1, parse/1]).

-define(KEY, '$yucan_date').

%% @doc The Date header of an answer, with its line end.
-spec line() -> binary().
line() ->
    Now = os:system_time(second),
    case get(?KEY) of
        {Now, Line} -> Line;
        _ ->
            Line = <<"date: ", (format(calendar:system_time_to_universal_time(Now, second)))/binary, "\r\n">>,
            _ = put(?KEY, {Now, Line}),
            Line
    end.

%% @doc `Sun, 06 Nov 1994 08:49:37 GMT'.
-spec format(calendar:datetime()) -> binary().
format({{Year, Month, Day} = Date, {Hour, Minute, Second}}) ->
    <<(day(calendar:day_of_the_week(Date)))/binary, ", ", (two(Day))/binary, " ", (month(Month))/binary, " ",
      (integer_to_binary(Year))/binary, " ", (two(Hour))/binary, ":", (two(Minute))/binary, ":", (two(Second))/binary, " GMT">>.

two(N) -> <<($0 + N div 10), ($0 + N rem 10)>>.

day(N) -> element(N, {<<"Mon">>, <<"Tue">>, <<"Wed">>, <<"Thu">>, <<"Fri">>, <<"Sat">>, <<"Sun">>}).

-define(MONTHS, {<<"Jan">>, <<"Feb">>, <<"Mar">>, <<"Apr">>, <<"May">>, <<"Jun">>, <<"Jul">>, <<"Aug">>, <<"Sep">>, <<"Oct">>,
    <<"Nov">>, <<"Dec">>}).

month(N) -> element(N, ?MONTHS).

%% @doc A date in any of the three forms that RFC 9110 wants recipients to take.
-spec parse(binary()) -> {ok, calendar:datetime()} | error.
parse(<<_:3/binary, ", ", D:2/binary, " ", Mon:3/binary, " ", Y:4/binary, " ", Time:8/binary, " GMT">>) -> make(Y, Mon, D, Time);
parse(<<_:3/binary, " ", Mon:3/binary, " ", D:2/binary, " ", Time:8/binary, " ", Y:4/binary>>) -> make(Y, Mon, D, Time);
parse(Text) ->
    case binary:split(Text, <<", ">>) of
        [_, <<D:2/binary, "-", Mon:3/binary, "-", Y:2/binary, " ", Time:8/binary, " GMT">>] -> make(century(Y), Mon, D, Time);
        _ -> error
    end.

%% Two digits that seem more than 50 years ahead mean the past.
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
        Date = {binary_to_integer(Y), month_number(Mon, 1), binary_to_integer(yucan_header:trim(D))},
        {Hour, Minute, Second} = Time = {binary_to_integer(H), binary_to_integer(M), binary_to_integer(S)},
        true = calendar:valid_date(Date) andalso Hour < 24 andalso Minute < 60 andalso Second < 61,
        {ok, {Date, Time}}
    catch
        error:_ -> error
    end;
make(_, _, _, _) ->
    error.

month_number(Name, N) when element(N, ?MONTHS) =:= Name -> N;
month_number(Name, N) -> month_number(Name, N + 1).
