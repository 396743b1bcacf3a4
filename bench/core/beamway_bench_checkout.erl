%% SPDX-License-Identifier: Apache-2.0
%% @doc Finds the checkout from which this code was compiled, and the OTP that runs it.
-module(beamway_bench_checkout).

-export([root/0, path/1, source/1, erl/0]).

%% @doc Returns the directory of the checkout: the one above this module's beam file that contains `apps.config'.
-spec root() -> file:filename().
root() ->
    root(filename:dirname(filename:absname(code:which(?MODULE)))).

root("/") -> error(no_checkout);
root(Folder) ->
    case filelib:is_regular(filename:join(Folder, "apps.config")) of
        true -> Folder;
        false -> root(filename:dirname(Folder))
    end.

%% @doc Returns the absolute name of a file of the checkout.
-spec path(file:filename()) -> file:filename().
path(File) -> filename:join(root(), File).

%% @doc Returns the path of the file with this name, which is in one of the directories of the checkout's `bench'.
-spec source(Name :: string()) -> file:filename().
source(Name) ->
    [File] = filelib:wildcard("bench/*/" ++ Name, root()),
    File.

%% @doc Returns the `erl' of this VM's own OTP, which might not be the first one in PATH.
-spec erl() -> file:filename().
erl() -> filename:join([code:root_dir(), "bin", "erl"]).
