%% SPDX-License-Identifier: Apache-2.0
%% @private The supervisor of a console. With `rest_for_one' the web server, which gets its answers from the hub, is restarted together with it.
%% Browsers then reopen their event streams.
-module(beamway_console_sup).
-behaviour(supervisor).

-export([start_link/1, init/1]).

%% @private
-spec start_link(beamway_console_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) ->
    case supervisor:start_link({local, ?MODULE}, ?MODULE, {maps:remove(secret, Config), beamway_console_web:options(Config)}) of
        {ok, Pid} -> {ok, Pid};
        ignore -> {error, ignore};
        {error, Reason} -> {error, Reason}
    end.

%% @private
-spec init({beamway_console_config:config(), Web :: map()}) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init({Config, Web}) ->
    ok = beamway_console_auth:tables(),
    {ok, {#{strategy => rest_for_one, intensity => 5, period => 10},
          [#{id => hub, start => {beamway_console_hub, start_link, [Config]}, shutdown => 5000},
           #{id => jobs, start => {beamway_console_jobs, start_link, [Config]}, shutdown => 10000},
           yucan:child_spec(Web)]}}.
