%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests Debian's MediaWiki (with SQLite) and DokuWiki with php-fpm under yucan. Two programs use them as a person would
%% (`yucan_mediawiki.py', `yucan_dokuwiki.py'). In the paths of both wikis, the page's name follows the script's name. Run by
%% `test/system/run wikis', in an overlay that is removed afterwards.
-module(yucan_wikis_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([mediawiki/1, dokuwiki/1]).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [mediawiki, dokuwiki].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(yucan),
    Config.

end_per_suite(_) -> application:stop(yucan).

end_per_testcase(_, _) -> yucan_yaws_site:stop().

mediawiki(Config) ->
    with_fpm(Config, fun(Socket) ->
        Port = serve(Config, Socket, "/usr/share/mediawiki"),
        {0, _} = run("/usr/bin/php", ["/usr/share/mediawiki/maintenance/install.php", "--dbtype", "sqlite", "--dbpath", "/var/lib/mediawiki/data",
                                      "--confpath", "/etc/mediawiki", "--server", "http://localhost:" ++ integer_to_list(Port), "--scriptpath", "",
                                      "--pass", "Secret-12345678", "Beamway", "Admin"]),
        ok = file:write_file("/etc/mediawiki/LocalSettings.php",
                             "$wgUsePathInfo = true;\n$wgEnableUploads = true;\n$wgFileExtensions[] = 'svg';\n$wgSVGConverter = false;\n", [append]),
        used("yucan_mediawiki.py", Port)
    end).

dokuwiki(Config) ->
    with_fpm(Config, fun(Socket) ->
        ok = file:write_file("/etc/dokuwiki/local.php", "<?php\n$conf['title'] = 'Beamway';\n$conf['useacl'] = 0;\n$conf['userewrite'] = 2;\n$conf['send404'] = 1;\n"),
        used("yucan_dokuwiki.py", serve(Config, Socket, "/usr/share/dokuwiki"))
    end).

with_fpm(Config, Fun) ->
    #{socket := Socket} = Fpm = yucan_fpm:start(filename:join(yucan_yaws_site:folder(Config), "fpm")),
    ok = Fun(Socket),
    yucan_fpm:stop(Fpm).

serve(Config, Socket, Docroot) ->
    Directives = ["docroot = ", Docroot, "\nindex_files = index.php\nallowed_scripts = php\nfollow_symlinks = always\n"
                  "php_handler = <fcgi, unix:", Socket, ">\n"],
    yucan_yaws_site:start_text(Config, yucan_yaws_site:server("localhost", Directives), []).

%% Runs a program that uses a wiki. It prints each step, and its exit status determines whether the case passes.
used(Program, Port) ->
    Script = test_support:file("test/system/yucan/" ++ Program),
    {Status, Lines} = run("/usr/bin/python3", [Script, integer_to_list(Port)]),
    [beamway_runner:say("     ~ts", [string:trim(Line)]) || Line <- Lines],
    {Program, 0} = {Program, Status},
    ok.

run(Program, Arguments) -> beamway_bench_tools:run(Program, Arguments, 300000).
