%% SPDX-License-Identifier: Apache-2.0
%% @doc The appmod to which an authmod sends unauthenticated users.
-module(yucan_yaws_login).

-export([out/1]).

out(_) -> {redirect_local, "/login.html"}.
