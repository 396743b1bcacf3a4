%% SPDX-License-Identifier: Apache-2.0
%% @doc The metrics of all parts that run on this node, for Prometheus: links, teleport, placement, web servers.
%%
%% Each part has a module for its metrics (`beamway_metrics', `teleport_metrics', `placement_metrics', `yucan_metrics'), and this module calls those
%% of the running parts. It reads only tables and counters, so it answers a scrape even if processes are stuck.
-module(beamway_exporter).

-export([families/0, text/0]).

%% @doc Returns the metrics of all parts that run on this node.
-spec families() -> [yucan_metrics:family()].
families() -> lists:append([of_part(Part) || Part <- [self, beamway, teleport, placement, yucan]]).

%% @doc Returns the metrics of {@link families/0} as text in the Prometheus exposition format 0.0.4.
-spec text() -> iolist().
text() -> yucan_metrics:text(families()).

%% If a part stops during a scrape, its tables disappear. Its metrics are then missing, but the others are still returned.
of_part(Part) ->
    try
        of_running_part(Part)
    catch
        error:badarg -> []
    end.

of_running_part(self) ->
    [{<<"beamway_node_info">>, gauge, "The node, and the releases that run on it",
      [{[{node, node()}, {version, version()}, {otp, list_to_binary(erlang:system_info(otp_release))}], 1}]}];
of_running_part(beamway) -> where_it_runs(beamway_sup, fun() -> beamway_metrics:families(beamway_links:all()) end);
of_running_part(teleport) -> where_it_runs(teleport_sup, fun teleport_metrics:families/0);
of_running_part(placement) -> where_it_runs(placement_sup, fun placement_metrics:families/0);
of_running_part(yucan) -> yucan_metrics:families(yucan:figures()).

where_it_runs(Supervisor, Families) ->
    case whereis(Supervisor) of
        undefined -> [];
        _ -> Families()
    end.

version() ->
    {ok, Version} = application:get_key(beamway_exporter, vsn),
    list_to_binary(Version).
