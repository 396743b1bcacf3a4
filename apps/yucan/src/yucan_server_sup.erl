%% SPDX-License-Identifier: Apache-2.0
%% @doc Supervisor of one server. All for one: connections without the owner of their socket make no sense.
-module(yucan_server_sup).
-behaviour(supervisor).

-export([start_link/1]).
-export([init/1]).

%% @doc Started by yucan:start_link/1, with checked options.
-spec start_link(yucan_config:checked()) -> {ok, pid()} | {error, term()}.
start_link(Options) ->
    supervisor:start_link(?MODULE, Options).

% @private
-spec init(yucan_config:checked()) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(#{name := Name} = Options) ->
    {ok, {#{strategy => one_for_all, intensity => 5, period => 10},
          [#{id => parts, start => {yucan_listener_sup, start_link, [Name]}, type => supervisor},
           #{id => server, start => {yucan_server, start_link, [Options]}, shutdown => 10000}]}}.
