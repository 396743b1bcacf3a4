%% SPDX-License-Identifier: Apache-2.0
%% @doc Drains this node before it stops, if the option `drain_ms' is set.
%%
%% `init:stop/0', and therefore SIGTERM, stops applications in reverse start order. So when the node has booted, this module
%% starts one more application, which has no `.app' file. That application is the first to be stopped, while all others
%% are still running. Only applications that are started even later are stopped before it.
-module(placement_stop).
-behaviour(application).
-behaviour(supervisor).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, await_boot/0]).
-export([start/2, prep_stop/1, stop/1, init/1]).

-define(APPLICATION, placement_at_stop).
-define(POLL_MS, 50).

%% @doc Starts a process that starts the application once the node has booted, and then exits.
-spec start_link() -> {ok, pid()}.
start_link() -> {ok, proc_lib:spawn_link(?MODULE, await_boot, [])}.

%% @private
-spec await_boot() -> ok.
await_boot() ->
    case init:get_status() of
        {starting, _} -> receive after ?POLL_MS -> await_boot() end;
        {started, _} ->
            _ = application:load({application, ?APPLICATION, [{description, "Empties the node before it stops"}, {applications, [placement]}, {mod, {?MODULE, []}}]}),
            case application:start(?APPLICATION) of
                ok -> ok;
                {error, {already_started, _}} -> ok;
                {error, {not_started, _}} -> receive after ?POLL_MS -> await_boot() end
            end;
        {stopping, _} -> ok
    end.

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_, _) -> supervisor:start_link(?MODULE, []).

%% @private
-spec init([]) -> {ok, {supervisor:sup_flags(), []}}.
init([]) -> {ok, {#{}, []}}.

%% @private Called while all other applications are still running.
-spec prep_stop(State) -> State.
prep_stop(State) ->
    Ms = placement_config:drain_ms(),
    _ = [case placement_drain:run(#{timeout => Ms}) of
             {ok, #{stayed := [], lost := []} = Result} -> ?LOG_NOTICE("placement: drained before the stop: ~ts", [placement_drain:to_text(Result)]);
             {ok, Result} -> ?LOG_WARNING("placement: drained before the stop: ~ts", [placement_drain:to_text(Result)]);
             {error, Reason} -> ?LOG_WARNING("placement: not drained before the stop: ~0tp", [Reason])
         end || Ms > 0, whereis(placement_sup) =/= undefined],
    State.

%% @private
-spec stop(term()) -> ok.
stop(_) -> ok.
