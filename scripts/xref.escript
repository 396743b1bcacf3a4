#!/usr/bin/env escript
%% -*- erlang -*-
%%! -noinput
%% SPDX-License-Identifier: Apache-2.0
%%
%% Prints facts about the compiled code for scripts/tidy, one per line:
%%   calls TEXT                 a call to a function that does not exist, to a deprecated one, or to an application that apps.config does not allow
%%                              to be called; a local function that nobody calls
%%   circle FOLDER MODULE...    the largest cycle of modules in a directory that call each other
%%   export MODULE:NAME/ARITY   an exported function that nobody calls and no code names
%% usage: xref.escript EBIN...
-mode(compile).

main(Folders) ->
    {ok, _} = xref:start(check),
    ok = xref:set_default(check, [{warnings, false}, {verbose, false}]),
    ok = code:add_pathsa(Folders),
    ok = xref:set_library_path(check, code:get_path()),
    Owners = maps:from_list([{Module, filename:dirname(Folder)} || Folder <- Folders, Module <- add(Folder)]),
    true = map_size(Owners) > 0,
    {ok, Calls} = xref:q(check, "ME"),
    {ok, Terms} = file:consult("apps.config"),
    Dependencies = proplists:get_value(dependencies, Terms),
    Found = [{Kind, Item} || Kind <- [undefined_function_calls, locals_not_used, deprecated_function_calls],
                             Item <- analyze(Kind), not is_allowed(Kind, Item)]
        ++ lists:append([wrong_dependencies(Row, Terms, Calls, Owners) || Row <- Dependencies])
        ++ [{not_in_dependencies_of_apps_config, App} || App <- applications(Terms), not lists:keymember(App, 1, Dependencies)],
    [io:format("calls ~ts: ~0tp~n", [Kind, Item]) || {Kind, Item} <- Found],
    [io:format("circle ~ts~ts~n", [Folder, [[" ", atom_to_list(Module)] || Module <- largest_circle(Folder, Calls, Owners)]])
     || Folder <- lists:usort(maps:values(Owners))],
    [io:format("export ~tw:~tw/~b~n", [Module, Name, Arity]) || {Module, Name, Arity} <- dead_exports(maps:keys(Owners))],
    halt().

add(Folder) ->
    case filelib:wildcard(filename:join(Folder, "*.beam")) of
        [] -> [];
        _ ->
            {ok, Modules} = xref:add_directory(check, Folder),
            Modules
    end.

%% Owners also contains the directories of suites and benchmarks, so a call from an application to one of these is reported as well.
wrong_dependencies({App, Needed, Called}, Terms, Calls, Owners) ->
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

%% Test suites call undefined functions on purpose.
is_allowed(undefined_function_calls, {_, {no_such_module, _, _}}) -> true;
is_allowed(_, _) -> false.

largest_circle(Folder, Calls, Owners) ->
    Graph = digraph:new(),
    [digraph:add_vertex(Graph, Module) || {Module, Owner} <- maps:to_list(Owners), Owner =:= Folder],
    %% add_edge returns an error and adds nothing if a module is in a different directory, because that module has no vertex.
    [digraph:add_edge(Graph, From, To) || {From, To} <- Calls, From =/= To],
    Circles = [{length(Circle), lists:sort(Circle)} || Circle <- digraph_utils:cyclic_strong_components(Graph)],
    digraph:delete(Graph),
    element(2, lists:max([{0, []} | Circles])).

%% Common Test and eunit call the functions that suites and unit tests export.
dead_exports(Modules) ->
    Code = maps:from_list([{Module, forms(Module)} || Module <- Modules]),
    Atoms = maps:map(fun(_, Forms) -> maps:from_keys(atoms(Forms), true) end, Code),
    Dynamic = maps:from_keys(lists:append([dynamic_calls(Forms) || Forms <- maps:values(Code)]), true),
    [Export || {Module, Name, Arity} = Export <- analyze(exports_not_used), #{Module := Forms} <- [Code], not is_test(Module, Name),
               not is_map_key({Name, Arity}, Dynamic), not lists:member({Name, Arity}, callbacks(Forms)), not is_named(Module, Name, Atoms)].

is_test(Module, Name) ->
    match =:= re:run(atom_to_list(Module), "_(SUITE|tests)$", [{capture, none}]) orelse match =:= re:run(atom_to_list(Name), "(^|_)test_?$", [{capture, none}]).

forms(Module) ->
    {ok, {Module, [{abstract_code, {raw_abstract_v1, Forms}}]}} = beam_lib:chunks(code:which(Module), [abstract_code]),
    Forms.

callbacks(Forms) ->
    lists:append([Behaviour:behaviour_info(callbacks) || {attribute, _, Word, Behaviour} <- Forms, lists:member(Word, [behaviour, behavior]),
                                                         {module, _} <- [code:ensure_loaded(Behaviour)], erlang:function_exported(Behaviour, behaviour_info, 1)]).

%% Returns whether code could call the function by its module and name, as spawn and erpc do.
is_named(Module, Name, Atoms) ->
    lists:any(fun({Other, #{Name := true} = In}) -> Other =:= Module orelse is_map_key(Module, In);
                 (_) -> false
              end, maps:to_list(Atoms)).

%% Returns the atoms in code that do not name a function where it is defined or called.
atoms({attribute, _, _, _}) -> [];
atoms({function, _, _, _, Clauses}) -> atoms(Clauses);
atoms({call, _, {atom, _, _}, Arguments}) -> atoms(Arguments);
atoms({call, _, {remote, _, {atom, _, _}, {atom, _, _}}, Arguments}) -> atoms(Arguments);
atoms({atom, _, Atom}) -> [Atom];
atoms(Tuple) when is_tuple(Tuple) -> atoms(tuple_to_list(Tuple));
atoms([Part | Parts]) -> atoms(Part) ++ atoms(Parts);
atoms(_) -> [].

%% Returns the names and arities of calls whose module is known only at run time.
dynamic_calls({call, _, {remote, _, {atom, _, _}, {atom, _, _}}, Arguments}) -> dynamic_calls(Arguments);
dynamic_calls({call, _, {remote, _, Module, {atom, _, Name}}, Arguments}) -> [{Name, length(Arguments)} | dynamic_calls([Module | Arguments])];
dynamic_calls(Tuple) when is_tuple(Tuple) -> dynamic_calls(tuple_to_list(Tuple));
dynamic_calls([Part | Parts]) -> dynamic_calls(Part) ++ dynamic_calls(Parts);
dynamic_calls(_) -> [].
