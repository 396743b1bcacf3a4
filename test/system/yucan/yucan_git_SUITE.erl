%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs Git's CGI programs under yucan: Git's own server program, which is tested with clones and pushes by a real Git client, and the
%% pages of gitweb and cgit. Run by `test/system/run git', in an overlay that is removed afterwards.
-module(yucan_git_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([clone_and_push/1, gitweb/1, cgit/1]).

%% This is more than git's http.postBuffer, so that the push is chunked.
-define(BLOB_BYTES, 5000000).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [clone_and_push, gitweb, cgit].

%% Creates a repository `p/one.git' with two commits.
init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(yucan),
    Folder = filename:join(proplists:get_value(priv_dir, Config), "git"),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    ok = file:write_file("/root/.gitconfig", "[user]\nname = Jos\303\251\nemail = jose@example.com\n[init]\ndefaultBranch = main\n[safe]\ndirectory = *\n"),
    ok = file:write_file("/etc/gitconfig", "[safe]\ndirectory = *\n"),
    ok = run(["git init -q --bare ", Folder, "/p/one.git; git -C ", Folder, "/p/one.git config http.receivepack true;"
              "git init -q ", Folder, "/first; cd ", Folder, "/first;"
              "echo hello >'a file'; git add .; git commit -q -m 'First & <best>'; echo more >>'a file'; git commit -q -a -m 'Second: caf\x{e9}';"
              "git push -q ", Folder, "/p/one.git main"]),
    [{folder, Folder} | Config].

end_per_suite(_) -> application:stop(yucan).

end_per_testcase(_, _) -> yucan_yaws_site:stop().

%% The server is configured as the manual page of git-http-backend and the guide describe.
clone_and_push(Config) ->
    Folder = proplists:get_value(folder, Config),
    Port = serve(Config, ["script_alias = /git /usr/lib/git-core/git-http-backend\n"
                          "<extra_cgi_vars dir='/usr/lib/git-core'>\nGIT_PROJECT_ROOT = ", Folder, "/p\nGIT_HTTP_EXPORT_ALL = 1\nREMOTE_USER = jose\nHOME = /root\n</extra_cgi_vars>\n"]),
    Url = io_lib:format("http://127.0.0.1:~b/git/one.git", [Port]),
    ok = file:write_file(filename:join(Folder, "blob"), crypto:strong_rand_bytes(?BLOB_BYTES)),
    ok = run(["cd ", Folder, "; git clone -q ", Url, " second; cd second; test \"$(cat 'a file')\" = \"$(printf 'hello\\nmore')\";"
              "cp ../blob .; git add .; git commit -q -m Third; git push -q; git branch side; git push -q origin side"]),
    ok = run(["cd ", Folder, "; git clone -q --depth 1 ", Url, " third; cmp blob third/blob; git -C third fetch -q --unshallow;"
              "test \"$(git -C third log --format=%s)\" = \"$(git -C second log --format=%s)\"; git -C p/one.git fsck --strict"]),
    %% Four clones run concurrently while another client pushes.
    ok = run(["cd ", Folder, "; for n in 1 2 3 4; do git clone -q ", Url, " at-once-$n & pids=\"$pids $!\"; done;"
              "echo x >second/x; git -C second add .; git -C second commit -q -m Fourth; git -C second push -q;"
              "for pid in $pids; do wait $pid; done; for n in 1 2 3 4; do cmp blob at-once-$n/blob; done"]),
    {404, _, _} = yucan_yaws_client:get(Port, "localhost", "/git/none.git/info/refs?service=git-upload-pack"),
    ok.

gitweb(Config) ->
    Folder = proplists:get_value(folder, Config),
    Settings = yucan_yaws_site:write(Config, "gitweb.conf", ["$projectroot = '", Folder, "/p';\n@stylesheets = ('/gitweb/static/gitweb.css');\n$feature{'snapshot'}{'default'} = ['tgz'];\n1;\n"]),
    Port = serve(Config, ["alias = /gitweb/static /usr/share/gitweb/static\nscript_alias = /gitweb /usr/share/gitweb/gitweb.cgi\n"
                          "<extra_cgi_vars dir='/usr/share/gitweb'>\nGITWEB_CONFIG = ", Settings, "\n</extra_cgi_vars>\n"]),
    Get = fun(Target) -> yucan_yaws_client:get(Port, "localhost", Target) end,
    contains(Get("/gitweb"), [<<"one.git">>, <<"href=\"/gitweb/static/gitweb.css\"">>]),
    contains(Get("/gitweb/one.git"), [<<"shortlog">>]),
    contains(Get("/gitweb?p=one.git;a=shortlog"), [<<"First &amp; &lt;best&gt;">>, <<"Second: caf\303\251">>]),
    Second = string:trim(os:cmd("git -C " ++ Folder ++ "/first rev-parse HEAD")),
    contains(Get("/gitweb?p=one.git;a=commitdiff;h=" ++ Second), [<<"more">>]),
    {200, _, <<"hello\nmore\n">>} = Get("/gitweb?p=one.git;a=blob_plain;f=a%20file;hb=main"),
    {200, Headers, Archive} = Get("/gitweb?p=one.git;a=snapshot;h=main;sf=tgz"),
    <<"application/x-gzip", _/binary>> = proplists:get_value(<<"content-type">>, Headers),
    {ok, Names} = erl_tar:table({binary, Archive}, [compressed]),
    true = lists:any(fun(Name) -> lists:suffix("/a file", Name) end, Names),
    {404, _, _} = Get("/gitweb?p=none.git;a=summary"),
    {200, Style, _} = Get("/gitweb/static/gitweb.css"),
    <<"text/css", _/binary>> = proplists:get_value(<<"content-type">>, Style),
    ok.

cgit(Config) ->
    Folder = proplists:get_value(folder, Config),
    Settings = yucan_yaws_site:write(Config, "cgitrc", ["css=/cgit-css/cgit.css\nvirtual-root=/\nenable-http-clone=1\nsnapshots=tar.gz\nscan-path=", Folder, "/p\n"]),
    Port = serve(Config, ["alias = /cgit-css /usr/share/cgit\nscript_alias = / /usr/lib/cgit/cgit.cgi\n<extra_cgi_vars dir='/usr/lib/cgit'>\nCGIT_CONFIG = ", Settings, "\n</extra_cgi_vars>\n"]),
    Get = fun(Target) -> yucan_yaws_client:get(Port, "localhost", Target) end,
    contains(Get("/"), [<<"one.git">>, <<"href='/cgit-css/cgit.css'">>]),
    {200, Style, _} = Get("/cgit-css/cgit.css"),
    <<"text/css", _/binary>> = proplists:get_value(<<"content-type">>, Style),
    contains(Get("/one.git/log/"), [<<"Second: caf\303\251">>]),
    {200, _, <<"hello\nmore\n">>} = Get("/one.git/plain/a%20file?id=main~0"),
    ok = run(["cd ", Folder, "; git clone -q http://127.0.0.1:", integer_to_list(Port), "/one.git by-cgit; grep -q more 'by-cgit/a file'"]).

serve(Config, Directives) -> yucan_yaws_site:start_text(Config, yucan_yaws_site:server("localhost", Directives), []).

contains({Status, _, Text}, Words) ->
    [{200, Word, true, _} = {Status, Word, binary:match(Text, Word) =/= nomatch, Text} || Word <- Words],
    ok.

run(Command) ->
    case beamway_bench_tools:run("/bin/sh", ["-c", lists:flatten(["set -e; exec 2>&1; ", Command])], 120000) of
        {0, _} -> ok;
        Failed -> {error, Failed}
    end.
