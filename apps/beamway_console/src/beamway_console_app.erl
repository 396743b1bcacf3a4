%% SPDX-License-Identifier: Apache-2.0
%% @private The application callback: starts the console with the options from the application's environment ({@link beamway_console_config}).
-module(beamway_console_app).
-behaviour(application).

-export([start/2, stop/1]).

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_, _) ->
    case {code:ensure_loaded(jiffy), beamway_console_config:read(given())} of
        {{error, _}, _} -> {error, {missing_library, <<"the Erlang library jiffy is not installed; install it (Debian: erlang-jiffy), or name its folder in ERL_LIBS">>}};
        {_, {ok, Config}} -> started(beamway_console_sup:start_link(Config), Config);
        {_, {error, Text}} -> {error, {bad_options, Text}}
    end.

%% Returns the options of the call that started the application, or those of the node's configuration.
given() ->
    case application:get_env(beamway_console, started_with) of
        {ok, Options} -> maps:to_list(Options);
        undefined -> configured(own_keys(beamway_console))
    end.

configured([]) -> of_old_section();
configured(Options) -> Options.

%% The application used to be called `console', and its section in a `sys.config' is still read for one more release. The environment of an
%% application is known only after it has been loaded.
of_old_section() ->
    _ = application:load({application, console, []}),
    Options = own_keys(console),
    ok = application:unload(console),
    _ = [logger:warning("console: its configuration has the old name `console'; rename the section to `beamway_console'")
         || Options =/= []],
    Options.

own_keys(Application) -> [Option || {Key, _} = Option <- application:get_all_env(Application), Key =/= included_applications].

started({ok, Pid}, Config) ->
    _ = [logger:warning("console: ~ts", [Warning]) || Warning <- beamway_console_config:warnings(Config)],
    {ok, Pid};
started(Error, _) -> Error.

%% @private
-spec stop(term()) -> ok.
stop(_) -> ok.
