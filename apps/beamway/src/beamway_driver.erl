%% SPDX-License-Identifier: Apache-2.0
%% @doc Loads the driver and the separate libraries (carriers and the codec) once each, and stores the results in the table of {@link
%% beamway_links}.
%%
%% When the process that loaded a driver exits, the driver is unloaded and its ports are closed, so {@link beamway_sup} loads it, as a child that
%% has no process.
-module(beamway_driver).

-export([as_supervisor/1, load/0, reload/0, loaded/0, has/1, has_codec/1]).

-include_lib("kernel/include/logger.hrl").

-define(TABLE, beamway_links).

%% @doc Calls {@link load/0} or {@link reload/0} in the supervisor.
-spec as_supervisor(load | reload) -> ok.
as_supervisor(Function) ->
    {ok, undefined} = supervisor:start_child(beamway_sup, #{id => driver, start => {?MODULE, Function, []}, restart => temporary}),
    ok.

%% @doc Loads the driver for the calling process, a supervisor, unless another process has already tried. A driver that was loaded twice by the same
%% process cannot be reloaded.
-spec load() -> ignore.
load() ->
    _ = ets:member(?TABLE, driver) orelse ets:insert(?TABLE, {driver, beamway_port:load()}),
    ignore.

%% @doc Reloads the driver's file for the calling process. If the driver was loaded before, this must be the supervisor that loaded it. This first
%% closes all ports of the driver, and with them all links of this node. Until the reload is complete, the libraries that the old driver had loaded
%% still count as available; a process that wants a link that needs one of them waits for its reservation.
-spec reload() -> ignore.
reload() ->
    true = ets:insert(?TABLE, {driver, {error, <<"the driver is being reloaded">>}}),
    Loaded = beamway_port:reload(),
    Libraries = ets:select(?TABLE, [{{{library, '$1'}, true}, [], ['$1']}]),
    true = ets:match_delete(?TABLE, {{library, '_'}, '_'}),
    Codec = ets:take(?TABLE, codec),
    lists:foreach(fun has/1, Libraries),
    _ = [has_codec(When) || {codec, true, When} <- Codec],
    true = ets:insert(?TABLE, {driver, Loaded}),
    ignore.

%% @doc Returns whether the driver is loaded. Loads it if the node's options did not require it.
-spec loaded() -> ok | {error, Reason :: binary()}.
loaded() ->
    case ets:lookup(?TABLE, driver) of
        [{_, Loaded}] ->
            Loaded;
        [] ->
            ok = as_supervisor(load),
            ets:lookup_element(?TABLE, driver, 2)
    end.

%% @doc Returns whether the library of a carrier can be loaded. It is loaded for the first connection that needs it, because finding devices may
%% take a while and other connections should not wait for that. If this fails, the next connection tries again, because the cause may only have been
%% a lack of descriptors.
-spec has(beamway_kind:driven()) -> boolean().
has(Kind) ->
    ets:lookup(?TABLE, {library, Kind}) =:= [{{library, Kind}, true}]
        orelse tried(Kind, beamway_port:with_port(fun(Port) -> beamway_port:use(Port, Kind) end)).

%% @doc Returns whether the codec that compresses links is loaded. Loading is tried only once, because if the codec is missing, the driver was built
%% without it. A missing codec is worth a warning only on a node that is supposed to compress every link.
-spec has_codec(far | always) -> boolean().
has_codec(When) ->
    case ets:lookup(?TABLE, codec) of
        [{_, Has, _}] ->
            Has;
        [] ->
            Has = codec_is_loaded(When, beamway_port:with_port(fun beamway_port:load_codec/1)),
            true = ets:insert(?TABLE, {codec, Has, When}),
            Has
    end.

codec_is_loaded(_When, ok) ->
    true;
codec_is_loaded(When, {error, Reason}) ->
    ?LOG(case When of always -> warning; far -> info end, "beamway: this node compresses no links: ~ts", [Reason]),
    false.

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
