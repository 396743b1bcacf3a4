%% SPDX-License-Identifier: Apache-2.0
%% @private The application callback and the supervisor. It checks the options and owns the tables, so they live as
%% long as the application, even when children are restarted.
-module(teleport_app).
-behaviour(application).
-behaviour(supervisor).

-export([start/2, stop/1, init/1]).

-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_Type, _Args) ->
    case teleport_config:read() of
        ok ->
            case supervisor:start_link({local, teleport_sup}, ?MODULE, []) of
                ignore -> {error, ignore};
                Started -> Started
            end;
        {error, Problems} -> {error, {bad_options, [teleport_config:describe(Problem) || Problem <- Problems]}}
    end.

-spec stop(term()) -> ok.
stop(_State) -> teleport_config:forget().

-spec init([]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init([]) ->
    lists:foreach(fun(Module) -> new_table(Module, set) end, [teleport_server, teleport_blocks, teleport_watcher]),
    new_table(teleport_listeners, ordered_set),
    ok = teleport_metrics:new(),
    {ok, {#{intensity => 5, period => 10}, [worker(teleport_blocks), worker(teleport_watcher), worker(teleport_server), worker(teleport_listeners),
          #{id => teleport_pool_sup, start => {teleport_pool_sup, start_link, []}, type => supervisor}]}}.

%% The table may already exist, because a code change of this supervisor calls `init/1' again.
new_table(Module, Type) ->
    case ets:whereis(Module) of
        undefined -> Module = ets:new(Module, [named_table, public, Type, {read_concurrency, true}]);
        _ -> Module
    end.

worker(Module) -> #{id => Module, start => {Module, start_link, []}}.
