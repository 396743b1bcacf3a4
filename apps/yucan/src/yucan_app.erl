%% SPDX-License-Identifier: Apache-2.0
%% @doc The application and its supervisor, `yucan_sup', which supervises the servers that are started with yucan:start/1. Other servers run under
%% their users' supervisors.
%%
%% Before the application stops, for example because of SIGTERM, these servers are drained for at most `drain_ms', which is set in its environment.
-module(yucan_app).
-behaviour(application).
-behaviour(supervisor).

-export([start_server/1, stop_server/1]).
-export([start/2, prep_stop/1, stop/1, init/1]).

-define(SUP, yucan_sup).
-define(DRAIN_MS, 10000).

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_, _) -> supervisor:start_link({local, ?SUP}, ?MODULE, []).

%% @private Drains all servers at the same time, and then closes their connections, so a second call has nothing to do.
%% An application that handlers use and that stops before this one also calls this function.
-spec prep_stop(State) -> State when State :: term().
prep_stop(State) ->
    Ms = application:get_env(yucan, drain_ms, ?DRAIN_MS),
    Drains = [spawn_monitor(fun() -> _ = yucan:drain(Name, Ms), supervisor:terminate_child(?SUP, Name) end)
              || {Name, Pid, _, _} <- supervisor:which_children(?SUP), is_pid(Pid), Ms > 0],
    lists:foreach(fun({Pid, Monitor}) -> receive {'DOWN', Monitor, process, Pid, _} -> ok end end, Drains),
    State.

%% @private
-spec stop(term()) -> ok.
stop(_) -> ok.

%% @doc Starts a server under this supervisor.
-spec start_server(supervisor:child_spec()) -> {ok, pid()} | {error, term()}.
start_server(#{id := Id} = Spec) ->
    case supervisor:start_child(?SUP, Spec) of
        {error, already_present} -> supervisor:restart_child(?SUP, Id);
        %% The supervisor adds the child's specification to the reason, so it is removed.
        {error, {Reason, Child}} when element(1, Child) =:= child -> {error, Reason};
        Result -> Result
    end.

%% @doc Stops the server if it is running under this supervisor.
-spec stop_server(pid()) -> ok | not_mine.
stop_server(Pid) ->
    case [Id || whereis(?SUP) =/= undefined, {Id, Child, _, _} <- supervisor:which_children(?SUP), Child =:= Pid] of
        [Id] ->
            ok = supervisor:terminate_child(?SUP, Id),
            supervisor:delete_child(?SUP, Id);
        [] -> not_mine
    end.

%% @private
-spec init([]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init([]) -> {ok, {#{strategy => one_for_one, intensity => 10, period => 10}, []}}.
