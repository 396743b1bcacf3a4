%% SPDX-License-Identifier: Apache-2.0
%% @doc The directives of a configuration: in which block each may stand, of what kind its value is, and its default.
%%
%% `one' is given at most once, `many' collects a list in the order of the file. A directive that Yaws has and this
%% server has not is an error that says so, never silently ignored.
-module(yucan_yaws_config_table).

-export([table/1, directive/2, names/1, without_effect/0, defaults/1, blocks/1, elsewhere/1]).
-export_type([block/0, directive/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type block() :: global | server | ssl | auth.
-type directive() :: {Key :: atom(), one | many, yucan_yaws_config_value:kind()}.

%% @doc Name, one or many, kind, default. A `many' directive has no default but []. The reference of all options (`scripts/options') shows the table, too.
-spec table(block()) -> [{Key :: atom(), one | many, yucan_yaws_config_value:kind(), Default :: term()}].
table(global) ->
    [{logdir, one, path, undefined},
     {ebin_dir, many, path, []},
     {include_dir, many, path, []},
     {runmod, many, module, []},
     {id, one, text, "default"},
     {pick_first_virthost_on_nomatch, one, boolean, true},
     {php_exe_path, one, program, "php-cgi"},
     {max_connections, one, {none_or, nolimit, {integer, 1, 10000000}}, nolimit},
     {keepalive_timeout, one, {integer, 1, 86400000}, 60000},
     {cgi_timeout, one, {integer, 1, 86400}, 60},
     {cgi_max, one, {integer, 1, 100000}, 64}];
table(server) ->
    [{port, one, {integer, 0, 65535}, 8000},
     {listen, many, address, []},
     {listen_backlog, one, {integer, 1, 65535}, 1024},
     {servername, one, text, undefined},
     {serveralias, many, words, []},
     {docroot, one, paths, []},
     {index_files, one, words, ["index.html", "index.php"]},
     {dir_listings, one, {one_of, [true, true_nozip, false]}, false},
     {allowed_scripts, one, words, ["php", "cgi", "fcgi"]},
     {follow_symlinks, one, {one_of, [inside, always, never]}, inside},
     {appmods, many, mounts, []},
     {arg_rewrite_mod, one, module, undefined},
     {errormod_404, one, module, undefined},
     {errormod_401, one, module, undefined},
     {errormod_crash, one, module, undefined},
     {start_mod, one, module, undefined},
     {ebin_dir, many, path, []},
     {revproxy, many, revproxy, []},
     {alias, many, alias, []},
     {script_alias, many, alias, []},
     {php_handler, one, php_handler, undefined},
     {fcgi_app_server, one, host_port, undefined},
     {access_log, one, boolean, true},
     {deflate, one, boolean, false},
     {expires, one, expires, []},
     {rhost, one, text, undefined},
     {rscheme, one, {one_of, [http, https]}, undefined},
     {rmethod, one, {one_of, [http, https]}, undefined},
     %% What a script or another server gets; more is answered by 413.
     {max_body_size, one, {integer, 1, 1099511627776}, 134217728},
     {partial_post_size, one, {none_or, nolimit, {integer, 1, 1073741824}}, 65536}];
table(ssl) ->
    [{certfile, one, path, undefined},
     {keyfile, one, path, undefined},
     {cacertfile, one, path, undefined},
     {ciphers, one, ciphers, undefined},
     {protocol_version, one, versions, undefined},
     {verify, one, {one_of, [verify_none, verify_peer]}, undefined},
     {fail_if_no_peer_cert, one, boolean, undefined},
     {depth, one, {integer, 0, 100}, undefined}];
table(auth) ->
    [{dir, many, text, []},
     {realm, one, text, ""},
     {user, many, text, []},
     {authmod, one, module, undefined},
     {allow, many, words, []},
     {deny, many, words, []}].

%% @doc What a name means in a block.
-spec directive(block(), Name :: string()) -> {ok, directive()} | unknown.
directive(Block, Name) ->
    case [{Key, Times, Kind} || {Key, Times, Kind, _} <- table(Block), atom_to_list(Key) =:= Name] of
        [Directive] -> {ok, Directive};
        [] -> unknown
    end.

%% @doc All names that a block knows, those of inner blocks in angle brackets.
-spec names(block()) -> [string()].
names(Block) ->
    [atom_to_list(Key) || {Key, _, _, _} <- table(Block)] ++ ["<" ++ Name ++ ">" || Name <- blocks(Block)].

%% @doc Directives that are taken, since many configurations of Yaws have them, and change nothing that is served.
-spec without_effect() -> [string()].
without_effect() -> ["include_dir", "id"].

%% @doc A block in which nothing is set.
-spec defaults(block()) -> #{atom() => term()}.
defaults(Block) -> maps:from_list([{Key, Default} || {Key, _, _, Default} <- table(Block)]).

%% @doc The blocks that may stand in a block.
-spec blocks(block()) -> [string()].
blocks(global) -> ["server"];
blocks(server) -> ["redirect", "auth", "opaque", "ssl", "extra_cgi_vars", "extra_response_headers"];
blocks(_) -> [].

%% @doc What to say of a directive that only Yaws has.
-spec elsewhere(Name :: string()) -> {ok, Advice :: string()} | none.
elsewhere(Name) ->
    case lists:keyfind(Name, 1, only_in_yaws()) of
        {_, Advice} -> {ok, Advice};
        false -> none
    end.

only_in_yaws() ->
    [{"dav", "this server has no WebDAV"},
     {"dispatchmod", "answer in an appmod, or in arg_rewrite_mod with a #rewrite_response{}"},
     {"tilde_expand", "write an appmod or a server for each user"},
     {"fwdproxy", "this server is no forward proxy; a reverse proxy is 'revproxy'"},
     {"enable_soap", "this server has no SOAP"},
     {"use_fdsrv", "for ports below 1024 start as root or with the capability CAP_NET_BIND_SERVICE"},
     {"trace", "look at traffic with tcpdump, or at the access log"},
     {"pam", "passwords are in 'user' lines of <auth>, or in a module that 'authmod' names"},
     {"subconfig", "a configuration is one file"},
     {"subconfigdir", "a configuration is one file"},
     {"log_wrap_size", "logs are reopened when they are renamed: use logrotate"},
     {"include_erl", "a page knows the records of yaws_api.hrl alone; put other code into modules"},
     {"phpfcgi", "write: php_handler = <fcgi, HOST:PORT>"}].

-ifdef(TEST).

%% Each name is there once in its block, and no name that is ours is called Yaws's own.
table_test_() ->
    [?_assertEqual(lists:usort(names(Block)), lists:sort(names(Block))) || Block <- [global, server, ssl, auth]]
        ++ [?_assertEqual(none, elsewhere(Name)) || Block <- [global, server, ssl, auth], Name <- names(Block)].

many_defaults_test() ->
    [?assertEqual([], Default) || Block <- [global, server, ssl, auth], {_, many, _, Default} <- table(Block)].

-endif.
