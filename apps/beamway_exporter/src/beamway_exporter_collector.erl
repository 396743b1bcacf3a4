%% SPDX-License-Identifier: Apache-2.0
%% @doc The figures for a node that serves Prometheus by the library prometheus.erl. The library calls it, and is no dependency.
%% `beamway_prometheus' is the same for nodes that have the carrier alone.
-module(beamway_exporter_collector).

-export([collect_mf/2, deregister_cleanup/1]).

%% @doc What `prometheus_collector' wants: gives each metric to the callback.
-spec collect_mf(Registry :: term(), Callback :: fun((term()) -> term())) -> ok.
collect_mf(_Registry, Callback) ->
    Helpers = prometheus_model_helpers,
    lists:foreach(fun({Name, Type, Help, Samples}) -> Callback(Helpers:create_mf(Name, Help, Type, [sample(Sample) || Sample <- Samples])) end,
                  beamway_exporter:families()).

%% The library takes a histogram as {Labels, Buckets, Count, Sum}.
sample({Labels, #{buckets := Buckets, count := Count, sum_us := Sum}}) ->
    {Labels, [{BoundUs / 1000000, Below} || {BoundUs, Below} <- Buckets] ++ [{infinity, Count}], Count, Sum / 1000000};
sample(Sample) -> Sample.

%% @doc Nothing is kept.
-spec deregister_cleanup(Registry :: term()) -> ok.
deregister_cleanup(_Registry) -> ok.
