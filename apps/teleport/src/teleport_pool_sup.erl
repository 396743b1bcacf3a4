%% SPDX-License-Identifier: Apache-2.0
%% @private The supervisors for the pools. The strategy is `rest_for_one', because only {@link teleport_pool} knows the
%% connections. The children are shut down in reverse order: first the listener stops accepting connections, then each
%% connection delivers its queued messages, and only then do senders no longer find the pool. Connections are not
%% restarted; the next sender causes them to be opened again.
-module(teleport_pool_sup).
-behaviour(supervisor).

-export([start_link/0, init/1]).

%% This is longer than a connection may take to deliver its queued messages.
-define(SHUTDOWN_MS, 12000).

-spec start_link() -> supervisor:startlink_ret().
start_link() -> supervisor:start_link({local, ?MODULE}, ?MODULE, top).

-spec init(top | {each, module()}) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(top) ->
    teleport_pool = ets:new(teleport_pool, [named_table, public, {keypos, 2}, {read_concurrency, true}]),
    {ok, {#{strategy => rest_for_one, intensity => 5, period => 10},
          [#{id => teleport_pool, start => {teleport_pool, start_link, []}},
           group(teleport_pool_connection_sup, teleport_pool_connection),
           group(teleport_pool_delivery_sup, teleport_pool_delivery),
           #{id => teleport_pool_listener, start => {teleport_pool_listener, start_link, []}}]}};
init({each, Module}) ->
    Child = #{id => Module, start => {Module, start_link, []}, restart => temporary, shutdown => ?SHUTDOWN_MS},
    {ok, {#{strategy => simple_one_for_one}, [Child]}}.

group(Name, Module) ->
    #{id => Name, start => {supervisor, start_link, [{local, Name}, ?MODULE, {each, Module}]}, type => supervisor}.
