#!/usr/bin/env escript
%% -*- erlang -*-
%%! -noinput
%% SPDX-License-Identifier: Apache-2.0
%%
%% Calls of functions that do not exist, of deprecated ones, local functions that nobody calls, and applications that
%% call or need one that apps.config does not allow them.
%% usage: xref.escript EBIN...
-mode(compile).

main(Folders) ->
    {ok, _} = xref:start(check),
    ok = xref:set_default(check, [{warnings, false}, {verbose, false}]),
    ok = xref:set_library_path(check, code:get_path()),
    Owners = maps:from_list([{Module, filename:dirname(Folder)} || Folder <- Folders, Module <- add(Folder)]),
    Modules = maps:keys(Owners),
    {ok, Terms} = file:consult("apps.config"),
    Dependencies = proplists:get_value(dependencies, Terms),
    Found = [{Kind, Item} || Kind <- [undefined_function_calls, locals_not_used, deprecated_function_calls],
                             Item <- analyze(Kind), not is_allowed(Kind, Item)]
        ++ lists:append([wrong_dependencies(Row, Terms, Owners) || Row <- Dependencies])
        ++ [{not_in_dependencies_of_apps_config, App} || App <- applications(Terms), not lists:keymember(App, 1, Dependencies)],
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

%% An application may not even call a suite or a benchmark.
wrong_dependencies({App, Needed, Called}, Terms, Owners) ->
    {ok, Calls} = xref:q(check, "ME"),
    Folder = filename:join("apps", App),
    Allowed = [Folder | [filename:join("apps", Other) || Other <- Needed ++ Called]],
    {ok, [{application, App, Keys}]} = file:consult(filename:join([Folder, "src", atom_to_list(App) ++ ".app.src"])),
    Said = [Other || Other <- proplists:get_value(applications, Keys), lists:member(Other, applications(Terms))],
    [{call_not_in_apps_config, Call} || {From, To} = Call <- Calls, #{From := Owner, To := Other} <- [Owners],
                                        Owner =:= Folder, not lists:member(Other, Allowed)]
        ++ [{app_src_differs_from_apps_config, {App, Said, Needed}} || lists:sort(Said) =/= lists:sort(Needed)].

applications(Terms) -> [list_to_atom(filename:basename(Path)) || Path <- proplists:get_value(applications, Terms)].

analyze(Kind) ->
    {ok, Items} = xref:analyze(check, Kind),
    Items.

%% Suites call functions that do not exist on purpose.
is_allowed(undefined_function_calls, {_, {no_such_module, _, _}}) -> true;
is_allowed(_, _) -> false.
