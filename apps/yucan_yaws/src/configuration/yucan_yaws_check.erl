%% SPDX-License-Identifier: Apache-2.0
%% @doc Checks whether the directories and modules in a configuration exist, and whether yaws_api
%% has all the functions that the modules call.
%%
%% A configuration that fails is still used, because a directory may be mounted later and a call may never be reached.
-module(yucan_yaws_check).

-export([problems/1]).

%% @doc Returns the problems, each with its server's line. The module directories must already be in
%% the code path.
-spec problems(yucan_yaws_config:conf()) -> [yucan_yaws_config:problem()].
problems(#{globals := #{ebin_dir := Folders, runmod := Modules}, servers := Servers}) ->
    Whole = [text("ebin_dir = ~ts: ~ts", [Folder, Why]) || {Folder, Why} <- no_folders(Folders)]
        ++ [text("runmod = ~ts: ~ts", [Module, no_module([])]) || Module <- Modules, not is_module(Module, [])] ++ calls(beams(Folders)),
    [{0, Text} || Text <- Whole] ++ [{Line, Text} || #{line := Line} = Server <- Servers, Text <- server(Server)].

server(#{docroot := Docroots, ebin_dir := Folders, alias := Files, script_alias := Scripts, php_handler := Handler, allowed_scripts := Allowed} = Server) ->
    Named = modules(Server),
    [text("~ts = ~ts: ~ts", [Key, Folder, Why]) || {Key, All} <- [{docroot, Docroots}, {ebin_dir, Folders}], {Folder, Why} <- no_folders(All)]
        ++ [text("~ts = ~ts/ ~ts: no such file or directory", [Key, Prefix, Target])
            || {Key, All} <- [{alias, Files}, {script_alias, Scripts}], #{prefix := Prefix, target := Target} <- All, not filelib:is_file(Target)]
        ++ [text("php_handler = <cgi, ~ts>: no such program", [Program]) || {cgi, Program} <- [Handler], os:find_executable(Program) =:= false]
        ++ [text("~ts = ~ts: ~ts", [Key, Module, no_module(Folders)]) || {Key, Module} <- Named, not is_module(Module, Folders)]
        ++ ["allowed_scripts = yaws: pages with embedded Erlang are not supported; use an appmod" || lists:member("yaws", Allowed)]
        ++ calls(lists:usort(beams(Folders) ++ [File || {_, Module} <- Named, File <- [code:which(Module)], is_list(File), filelib:is_regular(File)])).

no_folders(Folders) ->
    [{Folder, case filelib:is_file(Folder) of true -> "not a directory"; false -> "no such directory" end}
     || Folder <- Folders, not filelib:is_dir(Folder)].

modules(#{appmods := Mounts, auth := Blocks, php_handler := Handler} = Server) ->
    [{appmods, Module} || #{module := Module} <- Mounts] ++ [{authmod, Module} || #{authmod := Module} <- Blocks, Module =/= undefined]
        ++ [{Key, Module} || Key <- [arg_rewrite_mod, errormod_404, errormod_401, errormod_crash, start_mod], Module <- [maps:get(Key, Server)], Module =/= undefined]
        ++ [{php_handler, Module} || {extern, Node, Module, _} <- [Handler], Node =:= node()].

no_module([]) -> "no such module; expected one on the code path (see ebin_dir)";
no_module(Folders) -> ["no such module in ", lists:join(" or ", Folders), ", and none on the code path"].

is_module(Module, Folders) ->
    lists:any(fun(Folder) -> filelib:is_regular(filename:join(Folder, atom_to_list(Module) ++ ".beam")) end, Folders) orelse code:which(Module) =/= non_existing.

beams(Folders) -> lists:append([filelib:wildcard(filename:join(Folder, "*.beam")) || Folder <- Folders]).

calls(Files) ->
    [text("~ts calls yaws_api:~ts/~b, which this server does not have: the request that gets there is answered with 500", [filename:basename(File, ".beam"), Name, Arity])
     || File <- Files, {Name, Arity} <- missing(File)].

%% Returns the functions of yaws_api that compiled code calls but this server does not have.
missing(File) ->
    case beam_lib:chunks(File, [imports]) of
        {ok, {_, [{imports, Imports}]}} -> lists:usort([{Name, Arity} || {yaws_api, Name, Arity} <- Imports]) -- yaws_api:module_info(exports);
        {error, beam_lib, _} -> []
    end.

text(Format, Arguments) -> lists:flatten(io_lib:format(Format, Arguments)).
