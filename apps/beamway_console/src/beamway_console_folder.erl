%% SPDX-License-Identifier: Apache-2.0
%% @doc A directory for the output of another program. Only this user can enter it, so nobody else can create a link in it.
-module(beamway_console_folder).

-export([with/1]).

%% @doc Calls the function with a new directory, which is removed afterwards.
-spec with(fun((Folder :: file:filename()) -> Result)) -> Result.
with(Fun) ->
    "/" ++ _ = Folder = string:trim(os:cmd("mktemp -d")),
    try Fun(Folder) after file:del_dir_r(Folder) end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-include_lib("kernel/include/file.hrl").

with_test() ->
    Self = self(),
    ?assertError(failed, with(fun(Folder) -> Self ! {folder, Folder, file:read_file_info(Folder)}, error(failed) end)),
    receive {folder, Folder, Info} ->
        ?assertMatch({ok, #file_info{type = directory, mode = 8#40700}}, Info),
        ?assertEqual({error, enoent}, file:read_file_info(Folder))
    end.
-endif.
