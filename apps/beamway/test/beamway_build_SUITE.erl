%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests how the build behaves on a system other than Linux and without the headers of libssl, what the release and the packages contain,
%% and when `scripts/release' tags a version.
-module(beamway_build_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([on_another_system/1, without_the_headers_of_libssl/1, rdpipe_without_zstd_and_isal/1, release_and_packages_hold_all/1, tag_of_a_version/1]).

-define(MISSING, "no TLS in the driver: the headers of libssl are missing (libssl-dev)").
-define(WARNING, "this node has no links over tls").

suite() -> [{timetrap, {minutes, 5}}].

all() -> [on_another_system, without_the_headers_of_libssl, rdpipe_without_zstd_and_isal, release_and_packages_hold_all, tag_of_a_version].

init_per_suite(Config) -> beamway_carrier:init_group(beamway_tls, Config).

end_per_suite(_Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% On a system other than Linux the build stops immediately: it prints one line that names the system and says what is
%% needed.
on_another_system(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "elsewhere"),
    ok = filelib:ensure_path(Folder),
    Uname = filename:join(Folder, "uname"),
    ok = file:write_file(Uname, "#!/bin/sh\necho Darwin\n"),
    ok = file:change_mode(Uname, 8#755),
    Commands = ["make build", "make -C native driver", "make -C rdpipe"],
    [begin
         {2, Said} = status([Command, " 2>&1 | grep -v '^make.*directory'; exit ${PIPESTATUS[0]}"], [{"PATH", Folder ++ ":" ++ os:getenv("PATH")}]),
         {Command, [_, "this is Darwin; Beamway needs Linux" ++ _]} = {Command, string:split(Said, "*** ")},
         {Command, [_]} = {Command, string:lexemes(Said, "\n")}
     end || Command <- Commands].

%% The build prints one line and continues. The node logs one line, and ssl's processes carry its data. The next connection uses the library as soon
%% as it is installed.
without_the_headers_of_libssl(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "without"),
    Compiler = compiler_without(["openssl/ssl.h"], Folder),
    Said = run(["make -C native --no-print-directory BUILD='", Folder, "/build' OUT='", Folder, "/beamway/priv/beamway_drv.so' CC='", Compiler, "' driver"]),
    [_, _] = string:split(Said, ?MISSING, all),
    _ = run(["cp -R apps/beamway/ebin '", Folder, "/beamway/'"]),
    {true, false} = {filelib:is_file(filename:join(Folder, "beamway/priv/beamway_drv.so")), filelib:is_file(filename:join(Folder, "beamway/priv/beamway_tls.so"))},
    Log = filename:join(Folder, "log"),
    {Without, WithoutNode} = start(#{ebin => filename:join(Folder, "beamway/ebin"), log => Log}),
    {With, WithNode} = start(#{}),
    meet({Without, WithoutNode}, {With, WithNode}, ssl),
    meet({With, WithNode}, {Without, WithoutNode}, ssl),
    1 = beamway_peer:wait_until(fun() -> warnings(Log) end, 15000),
    {ok, _} = file:copy(filename:join(test_support:checkout(), "apps/beamway/priv/beamway_tls.so"), filename:join(Folder, "beamway/priv/beamway_tls.so")),
    meet({Without, WithoutNode}, {With, WithNode}, tls).

%% The commands are built with the available libraries. Their checksums match those of full builds, and they report which features are missing.
rdpipe_without_zstd_and_isal(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "pipe"),
    Compiler = compiler_without(["zstd.h", "isa-l.h"], Folder),
    Said = run(["make -C rdpipe --no-print-directory BUILD='", Folder, "/build' CC='", Compiler, "'"]),
    [_, _] = string:split(Said, "no --zstd in rdpipe: the headers of libzstd are missing (libzstd-dev)", all),
    [Without, With] = [filename:join(Place, "bin") || Place <- [filename:join(Folder, "build"), "rdpipe/build"]],
    nomatch = string:find(run(["ldd '", Without, "/rdpipe'"]), "libzstd"),
    nomatch = string:find(run(["ldd '", Without, "/rdpipe'"]), "libisal"),
    {0, Doctor} = status(["'", Without, "/rdpipe' doctor"], []),
    [_, _] = string:split(Doctor, "note  libzstd      not compiled in: no --zstd"),
    {2, NoZstd} = status(["'", Without, "/rdpipe' --zstd :cat 2>&1"], []),
    [_, _] = string:split(NoZstd, "built without libzstd"),
    Key = [{"RDPIPE_KEY", "0123456789abcdef"}],
    [{Sender, 0, "same\n"} = {Sender, Status, Told} || {Sender, Receiver} <- [{Without, With}, {With, Without}], {Status, Told} <- [status(through(Folder, Sender, Receiver, ""), Key)]],
    {1, Refused} = status(through(Folder, With, Without, "--zstd"), Key),
    [_, _] = string:split(Refused, "built without libzstd").

%% Returns a shell command that streams a file from the sending command in one directory to the receiving command in
%% another, and exits with the receiver's status. The receiver may not have written its port to the file when the
%% shell first looks, so the shell removes the port of an earlier receiver before it starts this one.
through(Folder, Sender, Receiver, Options) ->
    ["cd '", test_support:checkout(), "' && seq 300000 >'", Folder, "/in'; : >'", Folder, "/port'; exec 2>&1; { '", Receiver, "/rdrecv' --wait 60 --bind 127.0.0.1 0 >'", Folder, "/out' 2>'", Folder, "/port' & }; "
     "for try in $(seq 600); do port=$(sed -n 's/.*port //p' '", Folder, "/port' | head -n 1); [ -n \"$port\" ] && break; sleep 0.1; done; '",
     Sender, "/rdsend' --carrier tcp ", Options, " 127.0.0.1 $port <'", Folder, "/in' 2>/dev/null; wait $!; got=$?; cmp '", Folder, "/in' '", Folder, "/out' && echo same; sed -n 's/^rdrecv: //p' '", Folder,
     "/port' | grep -v '^port'; exit $got"].

%% Creates a compiler that does not find these headers.
compiler_without(Headers, Folder) ->
    [begin
         Hidden = filename:join([Folder, "hidden", Header]),
         ok = filelib:ensure_dir(Hidden),
         ok = file:write_file(Hidden, "#error hidden\n")
     end || Header <- Headers],
    Compiler = filename:join(Folder, "cc"),
    ok = file:write_file(Compiler, ["#!/bin/sh\nexec cc -I '", Folder, "/hidden' \"$@\"\n"]),
    ok = file:change_mode(Compiler, 8#755),
    Compiler.

%% The node may still be writing its log.
warnings(Log) ->
    case string:split(beamway_peer:log_text(Log), ?WARNING, all) of
        [_] -> false;
        [_ | Warnings] -> length(Warnings)
    end.

%% Each file in priv is in the packages and in the release. The command yucan finds its applications in both, and two nodes started from the release
%% use the driver's TLS.
release_and_packages_hold_all(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "packed"),
    Names = filelib:wildcard("*.so", filename:join(test_support:checkout(), "apps/beamway/priv")),
    true = lists:member("beamway_tls.so", Names),
    _ = run(["scripts/install-all --debs '", Folder, "/debs'"]),
    Deb = run(["dpkg-deb -c '", Folder, "/debs/beamway.deb'"]),
    [] = [Name || Name <- Names, string:find(Deb, "/priv/" ++ Name ++ "\n") =:= nomatch],
    _ = run(["scripts/install-all --release '", Folder, "/release'"]),
    _ = run(["dpkg-deb -x '", Folder, "/debs/yucan.deb' '", Folder, "/deb'"]),
    [{Where, "yucan " ++ _} = {Where, run(["'", Folder, Where, "/bin/yucan' --version"])} || Where <- ["/release", "/deb/usr"]],
    [Ebin] = filelib:wildcard(filename:join(Folder, "release/**/beamway-*/ebin")),
    [] = Names -- filelib:wildcard("*.so", filename:join(filename:dirname(Ebin), "priv")),
    meet(start(#{ebin => Ebin}), start(#{ebin => Ebin}), tls).

%% A version is tagged with its section of the changelog, but not if a file has a different version, something is not committed, the changelog begins
%% with a different section, or the tag already exists.
tag_of_a_version(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "tagged"),
    ok = file:make_dir(Folder),
    _ = run(["cp -r --parents README.md docs/guide/containers.md scripts/version scripts/release scripts/changes apps/*/src/*.app.src bin/man elixir/mix.exs elixir/yucan/mix.exs rdpipe/src rdpipe/man '", Folder, "'"]),
    Tree = fun(Command) -> status(["cd '", Folder, "' && { ", Command, "; } 2>&1"], []) end,
    Commit = fun(Change) -> {0, _} = Tree(Change ++ " && git add -A && git commit -qm change") end,
    Refused = fun(What) -> {1, Said} = Tree("scripts/release"), [_, _] = string:split(Said, What) end,
    ok = file:write_file(filename:join(Folder, "CHANGELOG.md"), "# Changelog\n\n## 0.98.7 (2026-12-01)\n\n### What you gain\n\n- One.\n\n## 0.98.6 (2026-11-01)\n\n- Two.\n"),
    {0, _} = Tree("scripts/version 0.98.7 && git init -q && git config user.name tester && git config user.email tester@localhost"),
    Refused("not committed"),
    Commit("true"),
    {0, Shown} = Tree("scripts/release --dry-run"),
    [_, "98.7:" ++ _] = string:split(Shown, " as v0."),
    Commit("sed -i 's/^## 0.98.7/## Unreleased\\n\\n&/' CHANGELOG.md"),
    Refused("is 'Unreleased': expected '0.98.7 (YYYY-MM-DD)'"),
    Commit("sed -i '/Unreleased/,+1d' CHANGELOG.md && sed -i s/0.98.7/0.98.6/ elixir/mix.exs"),
    Refused("elixir/mix.exs has '0.98.6', expected 0.98.7"),
    {0, ""} = Tree("git tag"),
    Commit("sed -i s/0.98.6/0.98.7/ elixir/mix.exs"),
    {0, _} = Tree("scripts/release"),
    {0, "### What you gain\n\n- One.\n"} = Tree("git tag -l --format='%(contents)' v0.98.7 | sed -n '3,5p'"),
    {0, "commit\n"} = Tree("git tag -l --format='%(*objecttype)'"),
    {1, _} = Tree("git tag -l --format='%(contents)' | grep Two"),
    %% The changes for the next version are those since this tag, even if the changelog already has a section for that version.
    Commit("sed -i 's/^## 0.98.7/## 0.99.0 (2026-12-02)\\n\\n&/' CHANGELOG.md"),
    {0, "## project\n\n- change\n\n"} = Tree("scripts/changes"),
    Refused("the tag v0.98.7 exists already"),
    {2, _} = Tree("scripts/release --now").

%% --- nodes and commands ----------------------------------------------------------------------------------

%% Only the case itself connects nodes.
start(Options) ->
    {ok, Peer, Node} = beamway_peer:start(beamway_tls, Options#{args => ["-kernel", "dist_auto_connect", "never"]}),
    {Peer, Node}.

meet({One, OneNode}, {Other, OtherNode}, Kind) ->
    true = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
    ok = beamway_peer:assert_link(One, OtherNode, Kind),
    ok = beamway_peer:assert_link(Other, OneNode, Kind),
    true = beamway_peer:call(One, erlang, disconnect_node, [OtherNode]),
    ok = beamway_peer:wait_disconnected(One, OtherNode),
    ok = beamway_peer:wait_disconnected(Other, OneNode).

%% Returns the command's output; the command must succeed.
run(Command) ->
    {0, Said} = status(Command, []),
    Said.

%% Runs in the checkout. EXTRA_CFLAGS is removed because scripts/coverage sets flags for a compiler other than the one named in the command.
status(Command, Env) ->
    Port = open_port({spawn_executable, "/bin/bash"},
                     [{args, ["-c", unicode:characters_to_list(Command)]}, {cd, test_support:checkout()}, {env, [{"EXTRA_CFLAGS", false} | Env]}, exit_status, stderr_to_stdout]),
    {Status, Said} = test_support:until_ended(Port, infinity),
    {Status, lists:append(Said)}.
