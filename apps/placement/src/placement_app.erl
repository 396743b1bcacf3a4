%% SPDX-License-Identifier: Apache-2.0
%% @doc The application `placement', which serves attributes, knows distances, and chooses nodes for processes.
%%
%% It depends only on OTP, not on any other application of this project. A node takes part as soon as the application
%% runs on it (`application:ensure_all_started(placement)', or {@link attr:start/0}). A node without the application is
%% not an error: its attributes are `unknown'.
-module(placement_app).
-behaviour(application).

-export([start/2, stop/1]).

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_Type, _Arguments) ->
    case {placement_config:check(), placement_entry:read(placement_config:attributes())} of
        {ok, {ok, Entries}} ->
            {ok, Supervisor} = placement_sup:start_link(),
            ok = placement_attr:configure(placement_builtin:definitions(placement_config:builtins()), Entries),
            {ok, Supervisor};
        {ok, {error, Text}} -> {error, unicode:characters_to_list(Text)};
        {{error, Text}, _} -> {error, unicode:characters_to_list(Text)}
    end.

%% @private
-spec stop(term()) -> ok.
stop(_State) -> ok.
