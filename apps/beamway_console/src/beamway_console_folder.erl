%% SPDX-License-Identifier: Apache-2.0
%% @doc A folder for what another program writes. Only this user can enter it, so nobody else can put a link under a name in it.
-module(beamway_console_folder).

-export([with/1]).

%% @doc Calls it with a new folder, which is removed afterwards.
-spec with(fun((Folder :: file:filename()) -> Result)) -> Result.
with(Fun) ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    try Fun(Folder) after file:del_dir_r(Folder) end.
