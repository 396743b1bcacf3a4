%% SPDX-License-Identifier: Apache-2.0
%% @doc The application and its supervisor, `yucan_sup': of the servers that yucan:start/1 starts. Others have a supervisor of their own.
-module(yucan_app).
-behaviour(application).
-behaviour(supervisor).

-export([start_server/1, stop_server/1]).
-export([start/2, stop/1, init/1]).

-define(SUP, yucan_sup).

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_, _) -> supervisor:start_link({local, ?SUP}, ?MODULE, []).

%% @private
-spec stop(term()) -> ok.
stop(_) -> ok.

%% @doc A server under this supervisor.
-spec start_server(yucan_config:options()) -> {ok, pid()} | {error, term()}.
start_server(Options) ->
    Spec = yucan:child_spec(Options),
    case supervisor:start_child(?SUP, Spec) of
        {error, already_present} -> supervisor:restart_child(?SUP, maps:get(id, Spec));
        %% The supervisor puts the child's specification beside the reason.
        {error, {Reason, Child}} when element(1, Child) =:= child -> {error, Reason};
        Result -> Result
    end.

%% @doc Ends it, if it is one of these.
-spec stop_server(pid()) -> ok | not_mine.
stop_server(Pid) ->
    case whereis(?SUP) of
        undefined -> not_mine;
        _ ->
            case [Id || {Id, Child, _, _} <- supervisor:which_children(?SUP), Child =:= Pid] of
                [Id] ->
                    ok = supervisor:terminate_child(?SUP, Id),
                    supervisor:delete_child(?SUP, Id);
                [] -> not_mine
            end
    end.

%% @private
-spec init([]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init([]) ->
    {ok, {#{strategy => one_for_one, intensity => 10, period => 10}, []}}.
