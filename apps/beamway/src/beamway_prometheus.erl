%% SPDX-License-Identifier: Apache-2.0
%% @doc Provides the metrics of the links on a node that serves Prometheus with the library prometheus.erl, as RabbitMQ does. `-prometheus
%% collectors [default,beamway_prometheus]' adds them to the node's own metrics. RabbitMQ 4 overwrites that list, so call
%% `prometheus_registry:register_collector(beamway_prometheus)' on the running node instead.
%%
%% The library is not a dependency, because only the library calls this module. On a node without the library, use {@link beamway:metrics/0}, which
%% returns the same metrics as text.
-module(beamway_prometheus).

-export([collect_mf/2, deregister_cleanup/1]).

%% @doc The callback of `prometheus_collector', which passes each metric to the given function.
-spec collect_mf(Registry :: term(), Callback :: fun((term()) -> term())) -> ok.
collect_mf(_Registry, Callback) ->
    Helpers = prometheus_model_helpers,
    lists:foreach(fun({Name, Type, Help, Samples}) ->
                          Callback(Helpers:create_mf(Name, Help, Type, Samples))
                  end, beamway_metrics:families(beamway_links:all())).

%% @doc There is nothing to remove.
-spec deregister_cleanup(Registry :: term()) -> ok.
deregister_cleanup(_Registry) -> ok.
