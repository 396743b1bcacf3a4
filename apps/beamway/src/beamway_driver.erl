%% SPDX-License-Identifier: Apache-2.0
%% @doc Loads the driver, and the carriers that have a library of their own, at most once each; the results stand in the table of {@link beamway_links}.
%%
%% A driver is unloaded, and its ports end, when the process that loaded it ends: so {@link beamway_sup} loads it.
-module(beamway_driver).

-export([load/0, reload/0, loaded/0, has/1]).

-include_lib("kernel/include/logger.hrl").

-define(TABLE, beamway_links).

%% @doc Loads the driver for the calling process, a supervisor.
-spec load() -> ignore.
load() ->
    ets:insert(?TABLE, {driver, beamway_port:load()}),
    ignore.

%% @doc Loads the driver's file anew for the calling process, the supervisor that loaded it. Ends all ports of the driver first, and with them
%% all links and lanes of this node.
-spec reload() -> ignore.
reload() ->
    true = ets:insert(?TABLE, {driver, {error, <<"the driver is being loaded anew">>}}),
    true = ets:match_delete(?TABLE, {{library, '_'}, '_'}),
    true = ets:insert(?TABLE, {driver, beamway_port:reload()}),
    ignore.

%% @doc Whether the driver is loaded. It is now, if the options of the node had not asked for it.
-spec loaded() -> ok | {error, Reason :: binary()}.
loaded() ->
    case ets:lookup(?TABLE, driver) of
        [{_, Loaded}] ->
            Loaded;
        [] ->
            ok = beamway_sup:load_driver(),
            ets:lookup_element(?TABLE, driver, 2)
    end.

%% @doc Whether the library of a carrier can be loaded. The connection that needs it first tries, and logs if it cannot:
%% finding devices may take a while, and nobody else shall wait for that.
-spec has(beamway_kind:driven()) -> boolean().
has(Kind) ->
    case ets:lookup(?TABLE, {library, Kind}) of
        [{_, Has}] -> Has;
        [] -> tried(Kind, beamway_port:with_port(fun(Port) -> beamway_port:use(Port, Kind) end))
    end.

%% Two may try at once; they find the same, and one of them logs it.
tried(Kind, ok) ->
    ets:insert(?TABLE, {{library, Kind}, true});
tried(Kind, {error, Reason}) ->
    case ets:insert_new(?TABLE, {{library, Kind}, false}) of
        true -> ?LOG_WARNING("beamway: this node has no links over ~ts~ts: ~ts", [Kind, although(Kind), Reason]);
        false -> ok
    end,
    false.

although(tls) -> ", its data pass through ssl's processes";
although(_OfDevices) -> ", although the host has a device".
