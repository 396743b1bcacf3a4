%% SPDX-License-Identifier: Apache-2.0
%% @doc The supervisor of the application, and the owner of its tables.
%%
%% State that must survive a server's crash is stored in one of the {@link tables/0}. All tables are created here, so they
%% exist as long as the application runs. Only the server that is named next to a table writes to it; any process may
%% read it. The strategy is `one_for_one', because each server can do without the others for a while, and a server that
%% is restarted finds its state in its table.
-module(placement_sup).
-behaviour(supervisor).

-export([start_link/0, init/1]).

%% @doc Starts the supervisor and all servers of the application.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, []).

%% @private
-spec init(term()) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(_) ->
    _ = [Table = ets:new(Table, Options) || {Table, Options} <- tables()],
    {ok, {#{strategy => one_for_one, intensity => 10, period => 10}, children()}}.

-spec tables() -> [{atom(), [term()]}].
tables() ->
    Shared = [named_table, public, {read_concurrency, true}],
    [{placement_definitions, Shared},                 %% placement_attr
     {placement_values, Shared},                      %% placement_attr and placement_builtin
     {placement_owned, [ordered_set | Shared]},       %% placement_attr
     {placement_known, Shared},                       %% placement_cache
     {placement_own, [duplicate_bag | Shared]},       %% placement_choose: every process that has chosen
     {placement_leases, Shared},                      %% placement_lease
     {placement_groups, Shared},                      %% placement_group
     {placement_children, Shared},                    %% placement_child_server
     {placement_names, Shared},                       %% placement_child_server
     {placement_counts, Shared},                      %% placement_child_server
     {placement_peers, Shared},                       %% placement_child_server
     {placement_kept, Shared}].                       %% placement_child_keeper

children() ->
    [server(Module, []) || Module <- [placement_attr, placement_push, placement_cache, placement_group, placement_topology, placement_lease]]
        ++ [server(placement_child_server, [erlang:monotonic_time(millisecond)])]
        ++ [(server(placement_declared, []))#{restart => transient} || placement_config:topology() =:= declared]
        ++ [(server(placement_stop, []))#{restart => transient} || placement_config:drain_ms() > 0].

server(Module, Arguments) -> #{id => Module, start => {Module, start_link, Arguments}, shutdown => 2000}.
