%% SPDX-License-Identifier: Apache-2.0
%% @doc The figures of the lanes as Prometheus text. Reads tables and counters only, and asks no process: it answers at once, whatever is stuck.
-module(teleport_metrics).

-export([families/0]).

%% Name in {@link teleport_sender:info/1}, Prometheus type, help.
fields() ->
    [{sent, counter, "Messages and calls that the lane has accepted"},
     {sent_bytes, counter, "Their bytes"},
     {acknowledged, counter, "Of them, those that the peer has delivered"},
     {received, counter, "Messages, calls or answers that have come"},
     {received_bytes, counter, "Their bytes"},
     {stalls, counter, "Times that a sender had to wait for room"},
     {dropped, counter, "Messages that found no room, with on_full drop"},
     {queued, gauge, "Messages that wait for the link"},
     {queued_bytes, gauge, "Their bytes"}].

%% @doc The metrics of lanes and of nodes, each with its samples: labels and value. Counters of a lane begin anew when it is opened again.
-spec families() -> [beamway_metrics:family()].
families() ->
    Lanes = [{labels(Way, Id, Info), Info} || {Way, Id, Tx} <- lists:sort(teleport_peers:all()), Info <- [teleport_sender:info(Tx)]],
    Plain = teleport_peers:plain_counts(),
    [Family || {_, _, _, [_ | _]} = Family <-
                   [beamway_metrics:family("teleport_lane_", Name, Type, Help, [{Labels, maps:get(Name, Info)} || {Labels, Info} <- Lanes]) || {Name, Type, Help} <- fields()]
                   ++ [beamway_metrics:family("teleport_", Name, Type, Help, Samples)
                       || {Name, Type, Help, Samples} <-
                              [{unconfirmed, counter, "Messages of lost lanes that were never acknowledged", peers(teleport_peers:lost())},
                               {proxy_dropped, counter, "Messages through proxies that could not be sent", peers(teleport_peers:proxy_dropped())},
                               {by_distribution, gauge, "1 for a node without teleport", [{[{peer, Node}], 1} || Node <- lists:sort(teleport_peers:plain_all())]},
                               {by_distribution_sent, counter, "Messages and calls that went by distribution, for want of teleport there", plain(sent, Plain)},
                               {by_distribution_dropped, counter, "Messages that found no room there", plain(dropped, Plain)},
                               {events_dropped, counter, "Events for on_event that found no room", [{[], teleport_events:dropped()}]}]]].

labels(Way, {Node, Class, Index}, #{kind := Kind}) ->
    [{peer, Node}, {class, Class}, {lane, Index}, {opened_by, case Way of out -> this_node; in -> peer end}, {link, Kind}].

peers(Counts) -> [{[{peer, Node}], Count} || {Node, Count} <- lists:sort(maps:to_list(Counts))].

plain(What, Counts) -> peers(maps:map(fun(_, #{What := Count}) -> Count end, Counts)).
