%% SPDX-License-Identifier: Apache-2.0
%% @doc Answers with the route that was taken and its bindings.
-module(yucan_routes_handler).
-behaviour(yucan_handler).

-export([handle/2]).

%% @doc Returns the route's argument and the bindings.
-spec handle(yucan_req:req(), term()) -> yucan_handler:response().
handle(Req, Route) -> {200, [], io_lib:format("~0p", [{Route, yucan_req:bindings(Req)}])}.
