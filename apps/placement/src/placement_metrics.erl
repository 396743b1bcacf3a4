%% SPDX-License-Identifier: Apache-2.0
%% @doc Returns metrics of placement on this node for Prometheus. It only reads tables and does not call any process.
-module(placement_metrics).

-export([families/0]).
-export_type([family/0]).

-type family() :: {Name :: binary(), gauge, Help :: string(), [{[{Label :: atom(), atom()}], non_neg_integer()}]}.

%% @doc Returns the metrics, each with its samples: labels and value.
-spec families() -> [family()].
families() ->
    [{<<"placement_attributes">>, gauge, "Attributes of this node", [{[], length(placement_attr:names())}]},
     {<<"placement_attribute_failures">>, gauge, "How often in a row the function of an attribute that is not built in has failed",
      [{[{attribute, Name}], Count} || {Name, Count} <- placement_attr:failures()]},
     {<<"placement_leases">>, gauge, "Leases that this node has granted and that have not ended", [{[], placement_lease:count()}]}].
