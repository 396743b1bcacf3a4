%% SPDX-License-Identifier: Apache-2.0
%% @doc The directives of a configuration: the blocks in which each directive is allowed, the kind of its value, its default, and its effect.
%%
%% A directive with `one' may occur at most once; the values of a directive with `many' form a list in the order of the file. A directive that Yaws
%% has but this server does not is reported as unsupported, and is never silently ignored.
-module(yucan_yaws_config_table).

-export([table/1, directive/2, names/1, without_effect/0, defaults/1, blocks/1, elsewhere/1]).
-export_type([block/0, directive/0]).

-type block() :: global | server | ssl | auth.
-type directive() :: {Key :: atom(), one | many, yucan_yaws_config_value:kind()}.

%% @doc Returns the table: name, `one' or `many', kind, default, effect. The default of a `many' directive is always []. The table is also in the
%% reference of all options (`scripts/options').
-spec table(block()) -> [{Key :: atom(), one | many, yucan_yaws_config_value:kind(), Default :: term(), Effect :: string()}].
table(global) ->
    [{logdir, one, path, undefined, "Directory of access.log, which all servers share. Without it there is no access log."},
     {ebin_dir, many, path, [], "Directory with modules, which is added to the code path."},
     {include_dir, many, path, [], "Has no effect, because pages with embedded Erlang (.yaws) are not supported."},
     {runmod, many, module, [], "Module whose start/0 runs once."},
     {id, one, text, "default", "An id that modules see as #gconf.id."},
     {pick_first_virthost_on_nomatch, one, boolean, true, "With true, a request for an unknown host is answered by the first server of that address and port. With false it gets 400."},
     {php_exe_path, one, program, "php-cgi", "The program that runs PHP in servers without php_handler. Modules see it as #gconf.phpexe."},
     {max_connections, one, {none_or, nolimit, {integer, 1, 10000000}}, nolimit, "Open connections of all servers together; more get 503. nolimit means 16384."},
     {keepalive_timeout, one, {integer, 1, 86400000}, 60000, "Milliseconds after which a connection between two requests is closed."},
     {cgi_timeout, one, {integer, 1, 86400}, 60, "Seconds that a CGI or FastCGI script may be silent before it is ended."},
     {cgi_max, one, {integer, 1, 100000}, 64, "CGI programs that may run at the same time; more get 503. FastCGI does not count."}];
table(server) ->
    [{port, one, {integer, 0, 65535}, 8000, "Port of the server. Servers may share one. 0 takes any free port."},
     {listen, many, address, [], "Address on which the server listens. The default is 127.0.0.1."},
     {listen_backlog, one, {integer, 1, 65535}, 1024, "Connections that wait in the kernel. All ports get the largest value of all servers."},
     {servername, one, text, undefined, "Another name of the server."},
     {serveralias, many, words, [], "More names of the server. * matches anything, and ? a single character except a dot."},
     {docroot, one, paths, [], "Directories with the server's files, which are searched in this order."},
     {index_files, one, words, ["index.html", "index.php"], "Names that are tried in this order if the path is a directory. A name that begins with / is a redirect."},
     {dir_listings, one, {one_of, [true, true_nozip, false]}, false, "Whether directories without an index are listed; otherwise they get 403. true_nozip is the same as true."},
     {allowed_scripts, one, words, ["php", "cgi", "fcgi"], "Kinds of scripts that run: php, cgi, fcgi. Others get 403 and are never shown."},
     {follow_symlinks, one, {one_of, [inside, always, never]}, inside, "Symbolic links that are followed: those that stay inside the docroot, all, or none. Others get 403."},
     {appmods, many, mounts, [], "Modules whose out/1 answers below a path. The longest path wins. A name without a path matches a segment anywhere in a path."},
     {arg_rewrite_mod, one, module, undefined, "Module whose arg_rewrite/1 sees each request first, and changes or answers it."},
     {errormod_404, one, module, undefined, "Module whose out404/3 makes the page for 404."},
     {errormod_401, one, module, undefined, "Module whose out401/3 makes the page for 401."},
     {errormod_crash, one, module, undefined, "Module whose crashmsg/3 makes the page after a crash of a module."},
     {start_mod, one, module, undefined, "Module whose start/1 runs once with the #sconf{} of the server."},
     {ebin_dir, many, path, [], "Directory with modules that belong only to this server."},
     {revproxy, many, revproxy, [], "Another server that answers below a prefix. It gets the path without the prefix. The longest prefix wins."},
     {alias, many, alias, [], "A directory that is served below a prefix like another docroot, or a single file. The longest prefix wins."},
     {script_alias, many, alias, [], "A program for all paths below a prefix, or a directory of programs with any name. The longest prefix wins."},
     {php_handler, one, php_handler, undefined, "What runs PHP: a program, a FastCGI application or a function. The default is the program of php_exe_path."},
     {fcgi_app_server, one, host_port, undefined, "FastCGI application for .fcgi files, which otherwise get 403."},
     {fcgi_keep_conn, one, boolean, true, "Whether connections to FastCGI applications are kept open. With false, a script that continues after fastcgi_finish_request does not block other requests."},
     {access_log, one, boolean, true, "Whether there is an access log. All servers must have the same value."},
     {deflate, one, boolean, false, "Whether static text files are sent compressed."},
     {expires, one, expires, [], "How many seconds clients may cache static files of a media type, such as image/png, image/* or *."},
     {rhost, one, text, undefined, "Host and port in redirects, if the server is behind another one. The default is those that the client names."},
     {rscheme, one, {one_of, [http, https]}, undefined, "Scheme in redirects, if the server is behind another one. The default is that of the connection."},
     {rmethod, one, {one_of, [http, https]}, undefined, "Another name for rscheme. If both are set, rscheme wins."},
     {max_body_size, one, {integer, 1, 1099511627776}, 134217728, "Bytes of a body that a script or a proxied server gets, and a module if partial_post_size is nolimit; more get 413."},
     {partial_post_size, one, {none_or, nolimit, {integer, 1, 1073741824}}, 65536, "Modules get a larger body in parts. With nolimit they always get it as a whole, up to max_body_size; more get 413."}];
table(ssl) ->
    [{certfile, one, path, undefined, "Certificate of the server, which is required."},
     {keyfile, one, path, undefined, "Key of the certificate. Without it certfile must hold both."},
     {cacertfile, one, path, undefined, "Certificates of the authorities for clients, which verify_peer needs."},
     {ciphers, one, ciphers, undefined, "Cipher suites that the server accepts, including those of TLS 1.3. The default is OTP's."},
     {protocol_version, one, versions, undefined, "TLS versions that the server accepts. The default is tlsv1.2 and tlsv1.3."},
     {verify, one, {one_of, [verify_none, verify_peer]}, undefined, "With verify_peer, clients are asked for a certificate that leads to cacertfile."},
     {fail_if_no_peer_cert, one, boolean, undefined, "Whether verify_peer refuses clients without a certificate. The default is true."},
     {depth, one, {integer, 0, 100}, undefined, "Largest number of intermediate certificates between a client's certificate and cacertfile. The default is OTP's."}];
table(auth) ->
    [{dir, many, text, [], "Path that is protected, including all paths below it. The default is all paths."},
     {realm, one, text, "", "Name of the realm, which clients may show."},
     {user, many, text, [], "A user, NAME:PASSWORD or NAME:{pbkdf2}SALT$HASH."},
     {authmod, one, module, undefined, "Module whose auth/2 decides instead of the users."},
     {allow, many, words, [], "Clients that deny does not refuse: all, addresses or ADDRESS/BITS."},
     {deny, many, words, [], "Clients that get 403: all, addresses or ADDRESS/BITS."}].

%% @doc Returns the meaning of a name in a block.
-spec directive(block(), Name :: string()) -> {ok, directive()} | unknown.
directive(Block, Name) ->
    case [{Key, Times, Kind} || {Key, Times, Kind, _, _} <- table(Block), atom_to_list(Key) =:= Name] of
        [Directive] -> {ok, Directive};
        [] -> unknown
    end.

%% @doc Returns the names of all directives and inner blocks that are allowed in a block. The names of blocks are in angle brackets.
-spec names(block()) -> [string()].
names(Block) ->
    [atom_to_list(Key) || {Key, _, _, _, _} <- table(Block)] ++ ["<" ++ Name ++ ">" || Name <- blocks(Block)].

%% @doc Returns the directives that are accepted because many Yaws configurations contain them, but that have no effect.
-spec without_effect() -> [string()].
without_effect() -> ["include_dir", "id"].

%% @doc Returns the defaults of a block.
-spec defaults(block()) -> #{atom() => term()}.
defaults(Block) -> maps:from_list([{Key, Default} || {Key, _, _, Default, _} <- table(Block)]).

%% @doc Returns the blocks that are allowed inside a block.
-spec blocks(block()) -> [string()].
blocks(global) -> ["server"];
blocks(server) -> ["redirect", "auth", "opaque", "ssl", "extra_cgi_vars", "extra_response_headers"];
blocks(_) -> [].

%% @doc Returns advice on a directive that only Yaws has.
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
     {"fwdproxy", "this server is not a forward proxy; for a reverse proxy use 'revproxy'"},
     {"enable_soap", "this server has no SOAP"},
     {"use_fdsrv", "for ports below 1024 start as root or with the capability CAP_NET_BIND_SERVICE"},
     {"trace", "look at traffic with tcpdump, or at the access log"},
     {"pam", "passwords are in 'user' lines of <auth>, or in a module that 'authmod' names"},
     {"subconfig", "a configuration is one file"},
     {"subconfigdir", "a configuration is one file"},
     {"log_wrap_size", "logs are reopened when they are renamed: use logrotate"},
     {"log_resolve_hostname", "the access log has addresses; leave the line out"},
     {"fail_on_bind_err", "a port that is taken always ends the start with an error; leave the line out"},
     {"copy_error_log", "errors go to standard error, not to a file; leave out the line"},
     {"auth_log", "the access log has requests that got 401; leave the line out"},
     {"keepalive_maxuses", "a connection may take any number of requests; leave the line out"},
     {"process_options", "leave the line out"},
     {"sni", "certificates are always chosen by the name that the client sends; leave the line out"},
     {"require_sni", "certificates are always chosen by the name that the client sends; leave the line out"},
     {"dhfile", "OTP chooses the groups for the key exchange; leave the line out"},
     {"order", "allow counts before deny"},
     {"default_charset", "text files are sent as UTF-8"},
     {"default_type", "files of an unknown type are application/octet-stream"},
     {"add_types", "the types of files are fixed; answer in an appmod"},
     {"add_charsets", "text files are sent as UTF-8"},
     {"mime_types_file", "the types of files are fixed; answer in an appmod"},
     {"statistics", "yucan:metrics_text/1 has figures of all servers; leave the line out"},
     {"include_erl", "pages with embedded Erlang are not supported; use an appmod"},
     {"phpfcgi", "write: php_handler = <fcgi, HOST:PORT>"}].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Each name occurs only once in its block, and no directive of this server is also listed as one that only Yaws has.
table_test_() ->
    [?_assertEqual(lists:usort(names(Block)), lists:sort(names(Block))) || Block <- [global, server, ssl, auth]]
        ++ [?_assertEqual(none, elsewhere(Name)) || Block <- [global, server, ssl, auth], Name <- names(Block)].

many_defaults_test() ->
    [?assertEqual([], Default) || Block <- [global, server, ssl, auth], {_, many, _, Default, _} <- table(Block)].

%% Each effect becomes a table cell in the reference, and must not contain characters that are special in Markdown.
effects_test_() ->
    [?_assertMatch({_, _, match}, {Block, Name, re:run(Effect, "^[A-Za-z][^<>`\n]+\\.$", [{capture, none}])})
     || Block <- [global, server, ssl, auth], {Name, _, _, _, Effect} <- table(Block)].

expected_test_() ->
    [?_assertMatch({_, _, [_ | _]}, {Block, Name, yucan_yaws_config_value:expected(Kind)}) || Block <- [global, server, ssl, auth], {Name, _, Kind, _, _} <- table(Block)].

-endif.
