%% SPDX-License-Identifier: Apache-2.0
%% @doc The two supervisors of each server. The upper one is one_for_all, because connections are useless without the process that owns their
%% listening socket. Its children are yucan_server and a supervisor of the processes that belong to a configuration: the pools of the listeners and
%% the access log.
-module(yucan_listener_sup).
-behaviour(supervisor).

-export([start_server/1, start_link/1, start_pool/3, stop_pools/1, start_log/5, stop_log/1]).
-export([init/1]).

-include("yucan_internal.hrl").

%% @doc Starts a complete server with checked options, for yucan:start_link/1.
-spec start_server(yucan_config:checked()) -> {ok, pid()} | {error, term()}.
start_server(Options) -> supervisor:start_link(?MODULE, Options).

%% @doc Starts the supervisor for the configuration's processes, which has no children at first.
-spec start_link(Server :: atom()) -> {ok, pid()} | {error, term()}.
start_link(Server) -> supervisor:start_link({local, name(Server)}, ?MODULE, []).

name(Server) -> list_to_atom(atom_to_list(Server) ++ "_listeners").

%% @doc Starts the pool for the connections of a listener.
-spec start_pool(Server :: atom(), #listener{}, Acceptors :: pos_integer()) -> {ok, pid()}.
start_pool(Server, Listener, Acceptors) ->
    {ok, Pool} = supervisor:start_child(name(Server), #{id => make_ref(), start => {yucan_pool, start_link, [Listener, Acceptors]},
                                                        restart => transient, shutdown => 10000}),
    {ok, Pool}.

%% @doc Closes all connections.
-spec stop_pools(Server :: atom()) -> ok.
stop_pools(Server) ->
    try supervisor:which_children(name(Server)) of
        Children -> lists:foreach(fun(Id) -> supervisor:terminate_child(name(Server), Id) end, [Id || {Id, _, _, _} <- Children, Id =/= log])
    catch
        %% The pools have already exited, so there is nothing to close.
        exit:_ -> ok
    end.

%% @doc Starts the process that writes an access log.
-spec start_log(Server :: atom(), Process :: atom(), yucan_log:target(), atomics:atomics_ref(), yucan_metrics:metrics()) -> ok | {error, file:posix()}.
start_log(Server, Process, File, Queued, Metrics) ->
    Start = {yucan_log, start_link, [Process, File, Queued, Metrics]},
    case supervisor:start_child(name(Server), #{id => log, start => Start, shutdown => 10000}) of
        {ok, _} -> ok;
        {error, {{shutdown, {access_log, Reason}}, _}} -> {error, Reason}
    end.

%% @doc Stops the access log, if there is one.
-spec stop_log(Server :: atom()) -> ok.
stop_log(Server) ->
    _ = supervisor:terminate_child(name(Server), log),
    _ = supervisor:delete_child(name(Server), log),
    ok.

%% @private
-spec init(yucan_config:checked() | []) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init([]) -> {ok, {#{strategy => one_for_one, intensity => 10, period => 10}, []}};
init(#{name := Name} = Options) ->
    {ok, {#{strategy => one_for_all, intensity => 5, period => 10},
          [#{id => listeners, start => {?MODULE, start_link, [Name]}, type => supervisor},
           #{id => server, start => {yucan_server, start_link, [Options]}, shutdown => 10000}]}}.
