%% SPDX-License-Identifier: Apache-2.0
%% @private The application: checks its options, then starts its supervisor.
-module(teleport_app).
-behaviour(application).

-export([start/2, stop/1]).

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_Type, _Args) ->
    case teleport_config:read() of
        ok -> teleport_sup:start_link();
        {error, Problems} -> {error, {bad_options, [teleport_config:describe(Problem) || Problem <- Problems]}}
    end.

%% @private
-spec stop(term()) -> ok.
stop(_State) ->
    ok = teleport_config:forget(),
    teleport_old:forget().
