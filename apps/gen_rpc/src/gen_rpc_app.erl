%% SPDX-License-Identifier: Apache-2.0
%% @private The application callback. The application has no processes of its own. If the library's module control is configured, the application does
%% not start, because it cannot reject calls to forbidden modules.
-module(gen_rpc_app).
-behaviour(application).
-behaviour(supervisor).

-export([start/2, stop/1, init/1]).

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_, _) ->
    case application:get_env(gen_rpc, rpc_module_control, disabled) of
        disabled -> {ok, _} = supervisor:start_link(?MODULE, []);
        Control -> {error, {bad_options, text(Control)}}
    end.

text(Control) ->
    unicode:characters_to_binary(io_lib:format("rpc_module_control is ~0tP; only disabled is valid: who knows the cookie may call all modules", [Control, 12])).

%% @private
-spec stop(term()) -> ok.
stop(_) -> ok.

%% @private
-spec init([]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init([]) -> {ok, {#{}, []}}.
