%% SPDX-License-Identifier: Apache-2.0
%% @doc The old name of {@link beamway_console}, for one release.
-module(console).
-deprecated(module).

-export([start/1, stop/0, url/0]).

%% @doc See {@link beamway_console:start/1}.
-spec start(#{atom() => term()}) -> {ok, Url :: binary()} | {error, Text :: binary()}.
start(Options) -> beamway_console:start(Options).

%% @doc See {@link beamway_console:stop/0}.
-spec stop() -> ok | {error, term()}.
stop() -> beamway_console:stop().

%% @doc See {@link beamway_console:url/0}.
-spec url() -> binary().
url() -> beamway_console:url().
