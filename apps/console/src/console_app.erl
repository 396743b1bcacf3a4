%% SPDX-License-Identifier: Apache-2.0
%% @private The application: starting it starts the console, with the options of its environment ({@link console_config}).
-module(console_app).
-behaviour(application).

-export([start/2, stop/1]).

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_, _) ->
    case console_config:read(application:get_all_env(console)) of
        {ok, Config} -> started(console_sup:start_link(Config), Config);
        {error, Text} -> {error, {bad_options, Text}}
    end.

started({ok, Pid}, Config) ->
    _ = [logger:warning("console: ~ts", [Warning]) || Warning <- console_config:warnings(Config)],
    {ok, Pid};
started(Error, _) -> Error.

%% @private
-spec stop(term()) -> ok.
stop(_) -> ok.
