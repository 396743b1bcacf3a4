%% SPDX-License-Identifier: Apache-2.0
%% @doc Represents a user of the link server in that user's supervision tree: either net_kernel's supervisor, with one holder per carrier, or the
%% application.
%%
%% It starts the server ({@link beamway_sup}) or registers as an additional user, and sends it nothing else. When this process exits, the server has
%% one user fewer. If the server terminates permanently, this process exits with the same reason.
-module(beamway_holder).
-behaviour(gen_server).

-export([start_link/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% @doc Returns once the server runs and has registered this user.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link(?MODULE, [], []).

%% @private
-spec init([]) -> {ok, reference()}.
init([]) ->
    {ok, monitor(process, beamway_sup:hold())}.

%% @private
-spec handle_call(term(), gen_server:from(), reference()) -> {reply, {error, badarg}, reference()}.
handle_call(_Request, _From, Monitor) ->
    {reply, {error, badarg}, Monitor}.

%% @private
-spec handle_cast(term(), reference()) -> {noreply, reference()}.
handle_cast(_Request, Monitor) ->
    {noreply, Monitor}.

%% @private
-spec handle_info(term(), reference()) -> {noreply, reference()} | {stop, term(), reference()}.
handle_info({'DOWN', Monitor, process, _, Reason}, Monitor) ->
    {stop, {beamway_sup, Reason}, Monitor};
handle_info(_Info, Monitor) ->
    {noreply, Monitor}.
