%% SPDX-License-Identifier: Apache-2.0
%% @doc A directory for the output of another program. Only this user can enter it, so nobody else can create a link in it.
-module(beamway_console_folder).

-export([with/1]).

%% @doc Calls the function with a new directory, which is removed afterwards.
-spec with(fun((Folder :: file:filename()) -> Result)) -> Result.
with(Fun) ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    try Fun(Folder) after file:del_dir_r(Folder) end.
