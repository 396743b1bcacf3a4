%% SPDX-License-Identifier: Apache-2.0
%% @doc Figures of a server: counters that connections bump, read as a map and as Prometheus text. One list makes both.
-module(yucan_metrics).

-export([new/0, add/2, answered/3, refused/2, to_map/2, to_text/3]).
-export_type([metrics/0]).

-opaque metrics() :: counters:counters_ref().
-type name() :: connections | refused_connections | requests | refused | crashes | bytes_out | status_1xx | status_2xx | status_3xx
    | status_4xx | status_5xx | websockets | log_dropped.

%% @doc All at zero.
-spec new() -> metrics().
new() -> counters:new(length(fields()), [write_concurrency]).

fields() ->
    [{connections, "Connections accepted"},
     {refused_connections, "Connections refused, as too many were open"},
     {requests, "Requests answered by a handler"},
     {refused, "What was no valid request"},
     {crashes, "Handlers that failed"},
     {bytes_out, "Bytes of bodies sent"},
     {status_1xx, "Connections upgraded"},
     {status_2xx, "Answers with status 2xx"},
     {status_3xx, "Answers with status 3xx"},
     {status_4xx, "Answers with status 4xx"},
     {status_5xx, "Answers with status 5xx"},
     {websockets, "WebSockets opened"},
     {log_dropped, "Lines that the access log could not take"}].

index(connections) -> 1;
index(refused_connections) -> 2;
index(requests) -> 3;
index(refused) -> 4;
index(crashes) -> 5;
index(bytes_out) -> 6;
index(status_1xx) -> 7;
index(status_2xx) -> 8;
index(status_3xx) -> 9;
index(status_4xx) -> 10;
index(status_5xx) -> 11;
index(websockets) -> 12;
index(log_dropped) -> 13.

%% @doc One more.
-spec add(metrics(), name()) -> ok.
add(Metrics, Name) -> counters:add(Metrics, index(Name), 1).

%% @doc A handler's answer has gone out.
-spec answered(metrics(), Status :: 0..999, Bytes :: non_neg_integer()) -> ok.
answered(Metrics, Status, Bytes) ->
    counters:add(Metrics, 3, 1),
    counters:add(Metrics, 6, Bytes),
    by_status(Metrics, Status).

%% @doc Something that was no valid request has been answered.
-spec refused(metrics(), Status :: 400..505) -> ok.
refused(Metrics, Status) ->
    add(Metrics, refused),
    by_status(Metrics, Status).

by_status(Metrics, Status) when Status >= 100, Status < 600 -> counters:add(Metrics, 6 + Status div 100, 1);
by_status(_, _) -> ok.

%% @doc All figures; `Open' are the open connections.
-spec to_map(metrics(), Open :: integer()) -> #{atom() => integer()}.
to_map(Metrics, Open) ->
    maps:from_list([{open_connections, Open} | [{Name, counters:get(Metrics, index(Name))} || {Name, _} <- fields()]]).

%% @doc The same as Prometheus text.
-spec to_text(Server :: atom(), metrics(), Open :: integer()) -> iodata().
to_text(Server, Metrics, Open) ->
    [figure(open_connections, gauge, "Open connections", Server, Open)
     | [figure(Name, counter, Help, Server, counters:get(Metrics, index(Name))) || {Name, Help} <- fields()]].

figure(Name, Type, Help, Server, Value) ->
    Full = ["yucan_", atom_to_list(Name), case Type of counter -> "_total"; gauge -> "" end],
    io_lib:format("# HELP ~ts ~ts~n# TYPE ~ts ~ts~n~ts{server=\"~ts\"} ~b~n", [Full, Help, Full, Type, Full, Server, Value]).
