%% SPDX-License-Identifier: Apache-2.0
%% @doc A supervisor like that of an application that uses yucan.
-module(yucan_test_sup).
-behaviour(supervisor).

-export([start_link/1, stop/0, init/1]).

%% @doc Starts the supervisor with these children.
-spec start_link([supervisor:child_spec()]) -> {ok, pid()}.
start_link(Children) -> supervisor:start_link({local, ?MODULE}, ?MODULE, Children).

%% @doc Stops the supervisor; must be called by the process that started it.
-spec stop() -> ok.
stop() -> gen_server:stop(?MODULE).

%% @private
-spec init([supervisor:child_spec()]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(Children) -> {ok, {#{strategy => one_for_one}, Children}}.
