%% SPDX-License-Identifier: Apache-2.0
%% @doc Provides the metrics on a node that serves Prometheus with the library prometheus.erl, which calls this module and is not a
%% dependency. `beamway_prometheus' does the same for nodes that have only the carrier.
-module(beamway_exporter_collector).

-export([collect_mf/2, deregister_cleanup/1]).

%% @doc The callback of `prometheus_collector', which passes each metric to the given function.
-spec collect_mf(Registry :: term(), Callback :: fun((term()) -> term())) -> ok.
collect_mf(_Registry, Callback) ->
    Helpers = prometheus_model_helpers,
    lists:foreach(fun({Name, Type, Help, Samples}) -> Callback(Helpers:create_mf(Name, Help, Type, [sample(Sample) || Sample <- Samples])) end,
                  beamway_exporter:families()).

%% The library represents a histogram as {Labels, Buckets, Count, Sum}.
sample({Labels, #{buckets := Buckets, count := Count, sum_us := Sum}}) ->
    {Labels, [{BoundUs / 1000000, Below} || {BoundUs, Below} <- Buckets] ++ [{infinity, Count}], Count, Sum / 1000000};
sample(Sample) -> Sample.

%% @doc There is nothing to remove.
-spec deregister_cleanup(Registry :: term()) -> ok.
deregister_cleanup(_Registry) -> ok.
