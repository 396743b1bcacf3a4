%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests Debian's WordPress with MariaDB and php-fpm under yucan. A program uses it as a person would (`yucan_wordpress.py'): it
%% installs WordPress, publishes a post and opens it at its permalink, and uploads a picture. The example's rewriting module implements the
%% permalinks. Run by `test/system/run wordpress', in an overlay that is removed afterwards.
-module(yucan_wordpress_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([a_blog/1]).

-define(PASSWORD, "wordpress").

suite() -> [{timetrap, {minutes, 10}}].

all() -> [a_blog].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(yucan),
    Config.

end_per_suite(_) -> application:stop(yucan).

a_blog(Config) ->
    Database = start_database(),
    Fpm = yucan_fpm:start(filename:join(yucan_yaws_site:folder(Config), "fpm")),
    ok = configure(),
    Port = serve(Config, Fpm),
    Output = os:cmd("python3 " ++ test_support:file("test/system/yucan/yucan_wordpress.py") ++ " "
                    ++ integer_to_list(Port) ++ " 2>&1"),
    beamway_runner:say("~ts", [["     " ++ Line ++ "\n" || Line <- string:split(string:trim(Output), "\n", all)]]),
    true = lists:suffix("a file of the package is served\n", Output),
    ok = yucan_yaws_site:stop(),
    ok = yucan_fpm:stop(Fpm),
    yucan_fpm:end_program(Database).

start_database() ->
    _ = os:cmd("mkdir -p /run/mysqld && chown mysql /run/mysqld"),
    Program = yucan_fpm:run("/usr/sbin/mariadbd", ["--user=mysql", "--skip-networking", "--socket=/run/mysqld/mysqld.sock"]),
    ok = await(fun() -> string:find(os:cmd("mariadb-admin ping 2>&1"), "is alive") =/= nomatch end, 120 * beamway_runner:slowness()),
    "" = os:cmd("mariadb -e \"CREATE DATABASE wordpress; CREATE USER wordpress@localhost IDENTIFIED BY '" ++ ?PASSWORD
                ++ "'; GRANT ALL ON wordpress.* TO wordpress@localhost\" 2>&1"),
    Program.

%% As the package's documentation explains, each host name has its own configuration file.
configure() ->
    file:write_file("/etc/wordpress/config-localhost.php",
                    ["<?php\ndefine('DB_NAME', 'wordpress');\ndefine('DB_USER', 'wordpress');\ndefine('DB_PASSWORD', '", ?PASSWORD, "');\n"
                     "define('DB_HOST', 'localhost:/run/mysqld/mysqld.sock');\ndefine('WP_CONTENT_DIR', '/var/lib/wordpress/wp-content');\n"
                     %% WordPress must not connect to other machines.
                     "define('WP_HTTP_BLOCK_EXTERNAL', true);\ndefine('DISABLE_WP_CRON', true);\n?>\n"]).

%% Debian stores uploads in a separate directory, which is the second docroot. A path that is not a file leads to the blog, as in the
%% example's rewriting module, but through php-fpm.
serve(Config, #{socket := Socket}) ->
    Ebin = yucan_yaws_site:compile(Config, "blog", [{"blog.erl", rewriting()}]),
    yucan_yaws_site:start_text(Config, ["ebin_dir = ", Ebin, "\n",
                                        yucan_yaws_site:server("localhost", ["docroot = /usr/share/wordpress /var/lib/wordpress\nindex_files = index.php\n"
                                                                             "allowed_scripts = php\nfollow_symlinks = always\n"
                                                                             "arg_rewrite_mod = blog\nphp_handler = <fcgi, unix:", Socket, ">\n"])],
                               []).

rewriting() ->
    "-module(blog).\n-export([arg_rewrite/1]).\n-include_lib(\"yucan_yaws/include/yaws_api.hrl\").\n"
        "arg_rewrite(#arg{req = #http_request{path = {abs_path, Path}} = Req, docroot = Root} = Arg) ->\n"
        "    {Decoded, Query} = yaws_api:url_decode_q_split(Path),\n"
        "    case filelib:is_file(Root ++ Decoded) orelse lists:prefix(\"/wp-content/\", Decoded) of\n"
        "        true -> Arg;\n"
        "        false -> Arg#arg{req = Req#http_request{path = {abs_path, \"/index.php?\" ++ Query}}}\n"
        "    end.\n".

await(_, 0) -> error(timeout);
await(Condition, Left) ->
    case Condition() of
        true -> ok;
        false -> receive after 500 -> await(Condition, Left - 1) end
    end.
