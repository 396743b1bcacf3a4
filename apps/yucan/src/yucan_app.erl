%% SPDX-License-Identifier: Apache-2.0
%% @doc The application: only a supervisor, without servers until yucan:start/1.
-module(yucan_app).
-behaviour(application).

-export([start/2, stop/1]).

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_, _) -> yucan_sup:start_link().

%% @private
-spec stop(term()) -> ok.
stop(_) -> ok.
