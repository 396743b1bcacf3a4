%% SPDX-License-Identifier: Apache-2.0
%% @doc The application, and its supervisor, for pooled FastCGI connections, unfinished files and
%% sessions. The application is started when it is first needed.
-module(yucan_yaws_app).
-behaviour(application).
-behaviour(supervisor).

-export([ensure/0]).
-export([start/2, prep_stop/1, stop/1, init/1]).

%% @doc Starts the application if necessary, because a program may have started a server without it.
-spec ensure() -> ok.
ensure() ->
    _ = application:ensure_all_started(yucan_yaws),
    ok.

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_, _) -> supervisor:start_link({local, yucan_yaws_sup}, ?MODULE, []).

%% @private Drains the servers. When the VM shuts down, this application stops before yucan, but requests in progress still use its processes.
-spec prep_stop(State) -> State when State :: term().
prep_stop(State) ->
    case init:get_status() of
        {stopping, _} -> yucan_app:prep_stop(State);
        _ -> State
    end.

%% @private
-spec stop(term()) -> ok.
stop(_) -> yucan_spool:leave().

%% @private
-spec init([]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init([]) ->
    {ok, {#{strategy => one_for_one, intensity => 10, period => 10},
          [#{id => fcgi_pool, start => {yucan_fcgi_pool, start_link, []}, shutdown => 1000},
           #{id => unfinished, start => {yucan_unfinished, start_link, []}, shutdown => 1000},
           #{id => sessions, start => {yucan_yaws_session, start_link, []}, shutdown => 1000}]}}.
