%% SPDX-License-Identifier: Apache-2.0
%% @doc Teleport's metrics. Only counters are read and no process is asked, so this works even if something is stuck.
-module(teleport_metrics).

-export([new/0, count/1, counted/1, families/0]).

-type name() :: dropped | refused | relayed.

fields() ->
    [{dropped, "Messages that found no room, with on_full drop"},
     {refused, "Messages, and broadcasts to a node, that were refused for want of room"},
     {relayed, "Broadcasts that this node has passed on to another node of its site"}].

%% @doc Creates the counters once, so they keep their values when the application is restarted.
-spec new() -> ok.
new() ->
    case persistent_term:get(?MODULE, none) of
        none -> persistent_term:put(?MODULE, counters:new(length(fields()), [write_concurrency]));
        _ -> ok
    end.

%% @doc Increments a counter. Without the application nothing is counted.
-spec count(name()) -> ok.
count(Name) ->
    case persistent_term:get(?MODULE, none) of
        none -> ok;
        Counters -> counters:add(Counters, index(Name), 1)
    end.

%% @doc Returns a counter's value since the application first started on this node.
-spec counted(name()) -> non_neg_integer().
counted(Name) -> counters:get(persistent_term:get(?MODULE), index(Name)).

index(dropped) -> 1;
index(refused) -> 2;
index(relayed) -> 3.

%% @doc Returns the metrics, each with its samples: labels and value.
-spec families() -> [beamway_metrics:family()].
families() ->
    [beamway_metrics:family("teleport_", Name, counter, Help, [{[], counted(Name)}]) || {Name, Help} <- fields()]
        ++ [beamway_metrics:family("teleport_", pools, gauge, "Nodes to which this node has connections beside the distribution", [{[], teleport_pool:count()}])].
