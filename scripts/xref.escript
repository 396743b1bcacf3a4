#!/usr/bin/env escript
%% -*- erlang -*-
%%! -noinput
%% SPDX-License-Identifier: Apache-2.0
%%
%% Calls of functions that do not exist, of deprecated ones, and local functions that nobody calls.
%% usage: xref.escript EBIN...
-mode(compile).

main(Folders) ->
    {ok, _} = xref:start(check),
    ok = xref:set_default(check, [{warnings, false}, {verbose, false}]),
    ok = xref:set_library_path(check, code:get_path()),
    Modules = lists:append([add(Folder) || Folder <- Folders]),
    Found = [{Kind, Item} || Kind <- [undefined_function_calls, locals_not_used, deprecated_function_calls],
                             Item <- analyze(Kind), not is_allowed(Kind, Item)],
    [io:format("~ts: ~tp~n", [Kind, Item]) || {Kind, Item} <- Found],
    io:format("xref: ~b modules~n", [length(Modules)]),
    halt(case {Found, Modules} of {[], [_ | _]} -> 0; _ -> 1 end).

add(Folder) ->
    case filelib:wildcard(filename:join(Folder, "*.beam")) of
        [] -> [];
        _ ->
            {ok, Modules} = xref:add_directory(check, Folder),
            Modules
    end.

analyze(Kind) ->
    {ok, Items} = xref:analyze(check, Kind),
    Items.

%% Suites call functions that do not exist on purpose.
is_allowed(undefined_function_calls, {_, {no_such_module, _, _}}) -> true;
is_allowed(_, _) -> false.
