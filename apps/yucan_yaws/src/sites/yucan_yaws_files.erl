%% SPDX-License-Identifier: Apache-2.0
%% @doc Resolves a path in the docroots of a server to a file, a script with the rest of the path, or an index.
%%
%% A script may occur in the middle of a path; the rest of the path is its PATH_INFO. So SCRIPT_FILENAME is always a file that exists. If a file has
%% the name of a script but may not be run, the request is rejected, and the file is never shown as text.
-module(yucan_yaws_files).

-export([digest/1, find/4, alias/2, script_alias/3]).
-export_type([found/0, options/0]).

-include_lib("kernel/include/file.hrl").

-type found() :: {script, php | cgi | fcgi, #{script := binary(), script_name := binary(), path_info := binary(), docroot := binary()}}
               | {static, Docroot :: file:filename()}
               | {redirect, Path :: binary()}
               | embedded
               | forbidden
               | not_found.
%% `embedded' is a page for Yaws with Erlang code in it (`.yaws'), which this server does not run.
-type options() :: #{index_files := [string()], allowed_scripts := [string()], follow_symlinks := yucan_symlink:policy(), digest := binary(), _ => _}.
%% `digest' is a digest of the other options; see {@link digest/1}.

%% @doc Returns a digest of the options for use in cache keys, because otherwise the lists of names would be compared for each request.
-spec digest(map()) -> binary().
digest(Server) -> erlang:md5(term_to_binary(maps:to_list(maps:with([index_files, allowed_scripts, follow_symlinks], Server)))).

%% @doc Searches the docroots one after another. A directory without an index is used only if no docroot has a better match.
-spec find(yucan_req:req(), Path :: binary(), Docroots :: [file:filename()], options()) -> found().
find(Req, Path, Docroots, Options) ->
    case yucan_path:is_hidden(Path) of
        true -> not_found;
        false -> better([known(yucan_req:server(Req), Path, Docroot, Options) || Docroot <- Docroots])
    end.

%% Caches for one second the fact that a path leads to a script. If a link replaces the script in
%% the meantime, it reveals nothing, because anyone who can create the link could also create a
%% script that reads the same file. Other files, whose content is shown, are not cached here.
known(Server, Path, Docroot, #{allowed_scripts := [_ | _], digest := Digest} = Options) ->
    Key = {Docroot, script, Digest, Path},
    case yucan_file_cache:find(Server, Key) of
        {fresh, Found} -> Found;
        _ ->
            Found = look(Path, Docroot, Options),
            _ = [yucan_file_cache:keep(Server, Key, Found, byte_size(Path)) || {script, _, _} <- [Found]],
            Found
    end;
known(_, Path, Docroot, Options) -> look(Path, Docroot, Options).

better(All) ->
    Folders = [Found || {folder, _} = Found <- All],
    hd([Found || Found <- All -- Folders, Found =/= not_found] ++ [{static, Docroot} || {folder, Docroot} <- Folders] ++ [not_found]).

look(Path, Docroot, Options) ->
    case type(Path, Docroot, Options) of
        directory -> folder(Path, Docroot, Options);
        regular -> regular(binary:last(Path), Path, Docroot, Options);
        forbidden -> forbidden;
        other -> not_found;
        none -> in_the_middle(Path, Docroot, Options)
    end.

type(Path, Docroot, #{follow_symlinks := Policy}) ->
    case yucan_symlink:info(Path, unicode:characters_to_binary(Docroot), Policy) of
        {ok, #file_info{type = Type}} when Type =:= regular; Type =:= directory -> Type;
        {ok, _} -> other;
        {error, forbidden} -> forbidden;
        {error, _} -> none
    end.

regular($/, Path, Docroot, Options) -> in_the_middle(Path, Docroot, Options);
regular(_, Path, Docroot, Options) -> file(Path, <<>>, Docroot, Options).

file(Path, Info, Docroot, Options) ->
    case kind(Path) of
        static when Info =:= <<>> -> {static, Docroot};
        static -> not_found;
        Kind -> script(Kind, Path, Info, Docroot, Options)
    end.

kind(Path) ->
    case yucan_header:lower(filename:extension(Path)) of
        <<".php">> -> php;
        <<".cgi">> -> cgi;
        <<".fcgi">> -> fcgi;
        <<".yaws">> -> yaws;
        Ending -> case is_source(Ending) of true -> source; false -> kind_of_copy(Ending, Path) end
    end.

%% Returns whether a file with this extension may be the source of a script: one of the less common extensions of PHP or
%% CGI scripts, or that of a file that PHP scripts include.
is_source(Ending) when Ending =:= <<".phtml">>; Ending =:= <<".pht">>; Ending =:= <<".phps">>; Ending =:= <<".phar">> -> true;
is_source(Ending) when Ending =:= <<".inc">>; Ending =:= <<".pl">> -> true;
is_source(<<".php", Version>>) when Version >= $0, Version =< $9 -> true;
is_source(_) -> false.

%% A file that an editor has left next to a script is a source as well, and a copy of a page with embedded Erlang is
%% treated like the page.
kind_of_copy(Copy, Path) when Copy =:= <<".bak">>; Copy =:= <<".old">>; Copy =:= <<".orig">>; Copy =:= <<".save">>; Copy =:= <<".swp">> ->
    copied(kind(filename:rootname(Path)));
kind_of_copy(Ending, Path) when Ending =/= <<>> ->
    case binary:last(Ending) of
        $~ -> copied(kind(binary:part(Path, 0, byte_size(Path) - 1)));
        _ -> static
    end;
kind_of_copy(_, _) -> static.

copied(Kind) when Kind =:= static; Kind =:= yaws -> Kind;
copied(_) -> source.

script(yaws, _, _, _, _) -> embedded;
%% On a site without scripts, these files cannot be a script's source, so they are ordinary files.
script(source, _, <<>>, Docroot, #{allowed_scripts := []}) -> {static, Docroot};
script(source, _, _, _, #{allowed_scripts := []}) -> not_found;
script(Kind, Path, Info, Docroot, #{allowed_scripts := Allowed}) ->
    case lists:member(Kind, [php, cgi, fcgi]) andalso lists:member(atom_to_list(Kind), Allowed) of
        true ->
            Root = unicode:characters_to_binary(Docroot),
            {script, Kind, #{script => yucan_path:join(Root, Path), script_name => Path, path_info => Info, docroot => Root}};
        false -> forbidden
    end.

%% @doc Classifies the file of an alias as if its directory were a docroot.
-spec alias(File :: binary(), options()) -> found().
alias(File, Options) -> file(<<"/", (filename:basename(File))/binary>>, <<>>, unicode:characters_to_list(filename:dirname(File)), Options).

%% @doc Returns the program for a script_alias: either the target itself, or the file below it to which the first segments of the remaining path lead.
-spec script_alias(yucan_yaws_config_value:alias(), Rest :: binary(), yucan_symlink:policy()) ->
    {ok, #{script := binary(), script_name := binary(), path_info := binary()}} | forbidden | not_found.
script_alias(#{prefix := Prefix, target := Target}, Rest, Policy) ->
    case file:read_file_info(Target, [raw]) of
        {ok, #file_info{type = regular}} -> {ok, #{script => Target, script_name => Prefix, path_info => Rest}};
        {ok, #file_info{type = directory}} -> below(Prefix, Target, Rest, [At || {At, _} <- binary:matches(Rest, <<"/">>), At > 0] ++ [byte_size(Rest)], Policy);
        _ -> not_found
    end.

below(_, _, _, [], _) -> forbidden;
below(Prefix, Target, Rest, [At | Ends], Policy) ->
    <<Name:At/binary, Info/binary>> = Rest,
    case yucan_path:is_hidden(Name) orelse yucan_symlink:info(Name, Target, Policy) of
        {ok, #file_info{type = regular}} when Name =/= <<>>, Name =/= <<"/">> ->
            {ok, #{script => yucan_path:join(Target, Name), script_name => <<Prefix/binary, Name/binary>>, path_info => Info}};
        {ok, #file_info{type = directory}} -> below(Prefix, Target, Rest, Ends, Policy);
        {error, forbidden} -> forbidden;
        _ -> not_found
    end.

%% Finds the shortest prefix of the path that is a script.
in_the_middle(Path, Docroot, Options) ->
    Ends = [At || {At, _} <- binary:matches(Path, <<"/">>), At > 0],
    in_the_middle(Ends, Path, Docroot, Options).

in_the_middle([], _, _, _) -> not_found;
in_the_middle([At | Rest], Path, Docroot, Options) ->
    <<Before:At/binary, Info/binary>> = Path,
    case kind(Before) =/= static andalso type(Before, Docroot, Options) of
        regular -> file(Before, Info, Docroot, Options);
        forbidden -> forbidden;
        _ -> in_the_middle(Rest, Path, Docroot, Options)
    end.

%% A directory without a trailing slash needs a redirect, which the handler for static files sends.
folder(Path, Docroot, #{index_files := Names} = Options) ->
    case binary:last(Path) of
        $/ -> index(Names, Path, Docroot, Options);
        _ -> {static, Docroot}
    end.

index([], _, Docroot, _) -> {folder, Docroot};
index(["/" ++ _ = Elsewhere], _, _, _) -> {redirect, yucan_yaws_out:escaped(unicode:characters_to_binary(Elsewhere))};
index([Name | Rest], Path, Docroot, Options) ->
    File = <<Path/binary, (unicode:characters_to_binary(Name))/binary>>,
    case type(File, Docroot, Options) of
        regular -> file(File, <<>>, Docroot, Options);
        forbidden -> forbidden;
        _ -> index(Rest, Path, Docroot, Options)
    end.
