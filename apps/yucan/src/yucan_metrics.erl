%% SPDX-License-Identifier: Apache-2.0
%% @doc A server's metrics: counters that connections increment, readable as a map and as Prometheus text. Both are generated from the same list.
-module(yucan_metrics).

-export([new/0, add/2, answered/3, refused/2, start/1, took/2, latency/1, bound_us/1, to_map/2, families/1, text/1]).
-export_type([metrics/0, family/0]).

-opaque metrics() :: counters:counters_ref().
-type name() :: connections | refused_connections | requests | refused | crashes | bytes_out | status_1xx | status_2xx | status_3xx
    | status_4xx | status_5xx | websockets | log_dropped.

-type label() :: {Name :: atom(), atom() | integer() | binary()}.
-type histogram() :: #{buckets := [{BoundUs :: pos_integer(), Count :: non_neg_integer()}], count := non_neg_integer(), sum_us := non_neg_integer()}.
-type family() :: {Name :: binary(), counter | gauge, Help :: string(), [{[label()], number()}]}
    | {Name :: binary(), histogram, Help :: string(), [{[label()], histogram()}]}.
%% A Prometheus metric with its samples. Buckets are cumulative: each counts all values below its bound.

%% The histogram of response times follows the counters. It has a slot for each microsecond up to 8 us, and then four slots per doubling, up to 134 s.
-define(LATENCY, 13).
-define(PLACES, 104).
%% The total duration of the timed responses.
-define(TOTAL_US, (?LATENCY + ?PLACES + 1)).
%% Only the first request of a connection and every 16th after it are timed, because reading the clock is expensive.
-define(TIMED, 15).

%% @doc Creates the counters, which all start at zero.
-spec new() -> metrics().
new() -> counters:new(?TOTAL_US, [write_concurrency]).

fields() ->
    [{connections, 1, "Connections accepted"},
     {refused_connections, 2, "Connections refused, as too many were open"},
     {requests, 3, "Requests answered by a handler"},
     {refused, 4, "Requests that were malformed, too large or too slow"},
     {crashes, 5, "Handlers that failed"},
     {bytes_out, 6, "Bytes of bodies sent"},
     {status_1xx, 7, "Connections upgraded"},
     {status_2xx, 8, "Answers with status 2xx"},
     {status_3xx, 9, "Answers with status 3xx"},
     {status_4xx, 10, "Answers with status 4xx"},
     {status_5xx, 11, "Answers with status 5xx"},
     {websockets, 12, "WebSockets opened"},
     {log_dropped, 13, "Lines that the access log could not take"}].

%% @doc Increments a counter.
-spec add(metrics(), name()) -> ok.
add(Metrics, Name) ->
    {_, Index, _} = lists:keyfind(Name, 1, fields()),
    counters:add(Metrics, Index, 1).

%% @doc Counts a response that a handler returned.
-spec answered(metrics(), Status :: 0..999, Bytes :: non_neg_integer()) -> ok.
answered(Metrics, Status, Bytes) ->
    counters:add(Metrics, 3, 1),
    counters:add(Metrics, 6, Bytes),
    by_status(Metrics, Status).

%% @doc Returns the time at which a request arrived, if this request is to be timed. `Served' is the number of earlier requests on the connection.
-spec start(Served :: non_neg_integer()) -> none | integer().
start(Served) when Served band ?TIMED =:= 0 -> erlang:monotonic_time(microsecond);
start(_) -> none.

%% @doc Records the duration of a timed request.
-spec took(metrics(), none | integer()) -> ok.
took(_, none) -> ok;
took(Metrics, Start) ->
    Us = erlang:monotonic_time(microsecond) - Start,
    counters:add(Metrics, ?TOTAL_US, max(0, Us)),
    counters:add(Metrics, ?LATENCY + 1 + place(Us), 1).

place(Us) when Us < 8 -> max(0, Us);
place(Us) ->
    Doublings = min(26, trunc(math:log2(Us))),
    8 + (Doublings - 3) * 4 + min(3, (Us bsr (Doublings - 2)) - 4).

%% @doc Returns how many timed responses are in each slot, omitting the empty slots. {@link bound_us/1} gives the meaning of a slot.
-spec latency(metrics()) -> [{Place :: non_neg_integer(), Count :: pos_integer()}].
latency(Metrics) ->
    [{Place, Count} || Place <- lists:seq(0, ?PLACES - 1), Count <- [counters:get(Metrics, ?LATENCY + 1 + Place)], Count > 0].

%% @doc Returns the upper bound of a slot, in microseconds: every response counted in it took less than this. (The last slot has no upper bound.)
-spec bound_us(Place :: non_neg_integer()) -> pos_integer().
bound_us(Place) when Place < 8 -> Place + 1;
bound_us(Place) ->
    Doublings = (Place - 8) div 4 + 3,
    (5 + (Place - 8) rem 4) bsl (Doublings - 2).

%% @doc Counts the response to an invalid request.
-spec refused(metrics(), Status :: 400..505) -> ok.
refused(Metrics, Status) ->
    add(Metrics, refused),
    by_status(Metrics, Status).

by_status(Metrics, Status) when Status >= 100, Status < 600 -> counters:add(Metrics, 6 + Status div 100, 1);
by_status(_, _) -> ok.

%% @doc Returns all metrics. `Open' is the number of open connections, and `timed_us' is the total duration of the timed responses.
-spec to_map(metrics(), Open :: integer()) -> #{atom() => integer()}.
to_map(Metrics, Open) ->
    maps:from_list([{open_connections, Open}, {timed_us, counters:get(Metrics, ?TOTAL_US)}
                    | [{Name, counters:get(Metrics, Index)} || {Name, Index, _} <- fields()]]).

%% @doc Returns the metrics of these servers ({@link yucan:figures/0}) in Prometheus's data model.
-spec families([{Server :: atom(), #{atom() => integer()}, [{Place :: non_neg_integer(), Count :: pos_integer()}]}]) -> [family()].
families([]) -> [];
families(Servers) ->
    [family(open_connections, gauge, "Open connections", Servers)
     | [family(Name, counter, Help, Servers) || {Name, _, Help} <- fields()]]
        ++ [{<<"yucan_request_duration_seconds">>, histogram, "Time of an answer: of the first request of each connection, and of every 16th after it",
             [{[{server, Server}], histogram(Latency, Total)} || {Server, #{timed_us := Total}, Latency} <- Servers]}].

family(Name, Type, Help, Servers) ->
    Full = iolist_to_binary(["yucan_", atom_to_list(Name), case Type of counter -> "_total"; gauge -> "" end]),
    {Full, Type, Help, [{[{server, Server}], Value} || {Server, #{Name := Value}, _} <- Servers]}.

%% The histogram has one bucket per power of two from 16 us upwards. The bound of a bucket is the bound of the last slot below that power.
histogram(Latency, TotalUs) ->
    Buckets = [{bound_us(Place), lists:sum([Count || {Lower, Count} <- Latency, Lower =< Place])} || Place <- lists:seq(11, ?PLACES - 5, 4)],
    #{buckets => Buckets, count => lists:sum([Count || {_, Count} <- Latency]), sum_us => TotalUs}.

%% @doc Returns the metrics as text in the Prometheus exposition format 0.0.4.
-spec text([family()]) -> iolist().
text(Families) ->
    [["# HELP ", Name, $\s, Help, "\n# TYPE ", Name, $\s, atom_to_list(Type), $\n | [sample(Name, Labels, Value) || {Labels, Value} <- Samples]]
     || {Name, Type, Help, Samples} <- Families].

sample(Name, Labels, #{buckets := Buckets, count := Count, sum_us := Sum}) ->
    [[sample(<<Name/binary, "_bucket">>, Labels ++ [{le, seconds(BoundUs)}], Below) || {BoundUs, Below} <- Buckets],
     sample(<<Name/binary, "_bucket">>, Labels ++ [{le, <<"+Inf">>}], Count),
     sample(<<Name/binary, "_count">>, Labels, Count),
     Name, "_sum", labels(Labels), $\s, seconds(Sum), $\n];
sample(Name, Labels, Value) -> [Name, labels(Labels), $\s, number(Value), $\n].

seconds(Us) -> number(Us / 1000000).

number(Value) when is_integer(Value) -> integer_to_binary(Value);
number(Value) -> float_to_binary(Value, [{decimals, 6}]).

labels([]) -> [];
labels(Labels) -> [${, lists:join($,, [[atom_to_list(Name), "=\"", escape(value(Value)), $"] || {Name, Value} <- Labels]), $}].

value(Value) when is_integer(Value) -> integer_to_list(Value);
value(Value) when is_atom(Value) -> atom_to_list(Value);
value(Value) -> unicode:characters_to_list(Value).

escape(Text) -> unicode:characters_to_binary(lists:flatmap(fun($") -> "\\\""; ($\\) -> "\\\\"; ($\n) -> "\\n"; (C) -> [C] end, Text)).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

places_test_() ->
    [?_assert(Us < bound_us(place(Us))) || Us <- [0, 1, 7, 8, 9, 10, 15, 16, 100, 999, 1000, 65535, 65536, 10000000, 134217727]]
        ++ [?_assert(Us >= bound_us(place(Us) - 1)) || Us <- [1, 8, 9, 10, 16, 100, 999, 65536, 10000000]]
        ++ [?_assertEqual(?PLACES - 1, place(1 bsl 40)), ?_assertEqual(0, place(-5))].

latency_test() ->
    Metrics = new(),
    ok = took(Metrics, start(1)),
    ?assertEqual([], latency(Metrics)),
    ok = took(Metrics, start(0)),
    ?assertMatch([{_, 1}], latency(Metrics)),
    ?assertEqual(0, maps:get(log_dropped, to_map(Metrics, 0))).

numbers_test() ->
    ?assertEqual(<<"# HELP a b\n# TYPE a gauge\na 7\na{c=\"1\"} 0.000250\n">>, iolist_to_binary(text([{<<"a">>, gauge, "b", [{[], 7}, {[{c, 1}], 0.00025}]}]))).

%% Prometheus requires that a histogram's buckets never decrease, and that the last bucket equals the count.
histogram_test() ->
    Metrics = new(),
    Took = [3, 20, 20, 70000, 200000000],
    [ok = took(Metrics, erlang:monotonic_time(microsecond) - Us) || Us <- Took],
    Families = families([{'w"eb', to_map(Metrics, 7), latency(Metrics)}]),
    [{_, #{buckets := Buckets, count := 5, sum_us := Sum}}] = [Sample || {<<"yucan_request_duration_seconds">>, histogram, _, Samples} <- Families, Sample <- Samples],
    ?assert(Sum >= lists:sum(Took)),
    ?assertEqual([16, 32, 64], lists:sublist([Bound || {Bound, _} <- Buckets], 3)),
    Counts = [Count || {_, Count} <- Buckets],
    ?assertEqual(Counts, lists:sort(Counts)),
    ?assertEqual({1, 4}, {hd(Counts), lists:last(Counts)}),
    Text = iolist_to_binary(text(Families)),
    [?assertMatch({_, [_]}, {Line, binary:matches(Text, Line)})
     || Line <- [<<"# TYPE yucan_open_connections gauge\nyucan_open_connections{server=\"w\\\"eb\"} 7\n">>,
                 <<"yucan_request_duration_seconds_bucket{server=\"w\\\"eb\",le=\"+Inf\"} 5\n">>,
                 <<"yucan_request_duration_seconds_count{server=\"w\\\"eb\"} 5\n">>]].
-endif.
