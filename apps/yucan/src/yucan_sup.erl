%% SPDX-License-Identifier: Apache-2.0
%% @doc Supervisor of the application: of the servers that yucan:start/1 starts. Others have a supervisor of their own.
-module(yucan_sup).
-behaviour(supervisor).

-export([start_link/0, start_server/1, stop_server/1]).
-export([init/1]).

%% @doc Without servers at first.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> supervisor:start_link({local, ?MODULE}, ?MODULE, []).

%% @doc A server under this supervisor.
-spec start_server(yucan_config:options()) -> {ok, pid()} | {error, term()}.
start_server(Options) ->
    Spec = yucan:child_spec(Options),
    case supervisor:start_child(?MODULE, Spec) of
        {error, already_present} -> supervisor:restart_child(?MODULE, maps:get(id, Spec));
        %% The supervisor puts the child's specification beside the reason.
        {error, {Reason, Child}} when element(1, Child) =:= child -> {error, Reason};
        Result -> Result
    end.

%% @doc Ends it, if it is one of these.
-spec stop_server(pid()) -> ok | not_mine.
stop_server(Pid) ->
    case whereis(?MODULE) of
        undefined -> not_mine;
        _ ->
            case [Id || {Id, Child, _, _} <- supervisor:which_children(?MODULE), Child =:= Pid] of
                [Id] ->
                    ok = supervisor:terminate_child(?MODULE, Id),
                    supervisor:delete_child(?MODULE, Id);
                [] -> not_mine
            end
    end.

% @private
-spec init([]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init([]) ->
    {ok, {#{strategy => one_for_one, intensity => 10, period => 10}, []}}.
