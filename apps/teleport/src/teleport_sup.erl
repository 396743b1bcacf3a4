%% SPDX-License-Identifier: Apache-2.0
%% @private The supervisor. It owns the tables, so they live as long as the application, whichever of its children is started again.
-module(teleport_sup).
-behaviour(supervisor).

-export([start_link/0, init/1]).

%% @private
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    case supervisor:start_link({local, ?MODULE}, ?MODULE, []) of
        {ok, Pid} -> {ok, Pid};
        ignore -> {error, ignore};
        {error, Reason} -> {error, Reason}
    end.

%% @private
-spec init([]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init([]) ->
    lists:foreach(fun new_table/1, [teleport_server, teleport_groups, teleport_blocks, teleport_watcher]),
    ok = teleport_metrics:new(),
    {ok, {#{intensity => 5, period => 10}, [worker(teleport_blocks), worker(teleport_watcher), worker(teleport_server),
          #{id => teleport_pool_sup, start => {teleport_pool_sup, start_link, []}, type => supervisor}]}}.

%% New code of this module comes here once more.
new_table(Module) ->
    case ets:whereis(Module) of
        undefined -> Module = ets:new(Module, [named_table, public, {read_concurrency, true}]);
        _ -> Module
    end.

worker(Module) -> #{id => Module, start => {Module, start_link, []}}.
