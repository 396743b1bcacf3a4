%% SPDX-License-Identifier: Apache-2.0
%% @doc The figures of the links for a node that serves Prometheus by the library prometheus.erl, as RabbitMQ does:
%% `-prometheus collectors [default,beamway_prometheus]' puts them among the node's own. RabbitMQ 4 overwrites that list:
%% there `prometheus_registry:register_collector(beamway_prometheus)' does it, in the running node.
%%
%% The library is no dependency: it is there when it calls. Without it, {@link beamway:metrics/0} is the same as text.
-module(beamway_prometheus).

-export([collect_mf/2, deregister_cleanup/1]).

%% @doc What `prometheus_collector' wants: gives each metric to the callback.
-spec collect_mf(Registry :: term(), Callback :: fun((term()) -> term())) -> ok.
collect_mf(_Registry, Callback) ->
    Helpers = prometheus_model_helpers,
    lists:foreach(fun({Name, Type, Help, Samples}) ->
                          Callback(Helpers:create_mf(Name, Help, Type, Samples))
                  end, beamway_metrics:families(beamway_links:all())).

%% @doc Nothing is kept.
-spec deregister_cleanup(Registry :: term()) -> ok.
deregister_cleanup(_Registry) -> ok.
