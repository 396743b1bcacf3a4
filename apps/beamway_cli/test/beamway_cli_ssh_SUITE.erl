%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway attach' and `--via' through a real sshd. The local command uses an epmd that does not exist, so all information reaches it through
%% ssh.
-module(beamway_cli_ssh_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_testcase/2, end_per_testcase/2]).
-export([attach/1, the_only_node/1, no_node/1, via/1, bad_words/1]).

-import(beamway_command, [shell/2, quoted/1, with_nodes/3]).

-define(WAIT_MS, 10000).

suite() -> [{timetrap, {minutes, 3}}, {ct_hooks, [beamway_command]}].

all() -> [attach, the_only_node, no_node, via, bad_words].

%% The remote side has the case's epmd, home and `beamway'. The local side has a program `ssh' that knows the server and its key.
init_per_testcase(_Case, Config) ->
    Folder = beamway_peer:new_folder("beamway-ssh"),
    File = fun(Name) -> filename:join(Folder, Name) end,
    [] = lists:append([os:cmd("ssh-keygen -q -t ed25519 -N '' -f " ++ File(Key)) || Key <- ["host", "user"]]),
    Port = integer_to_list(test_support:free_port()),
    ok = file:write_file(File("sshd_config"),
                         ["Port ", Port, "\nListenAddress 127.0.0.1\nHostKey ", File("host"), "\nAuthorizedKeysFile ", File("user.pub"), "\nStrictModes no\nPidFile none\nUsePAM no\n"
                          "SetEnv \"PATH=", File("there"), ":", os:getenv("PATH"), "\" HOME=", ?config(home, Config), " ERL_EPMD_PORT=", integer_to_list(?config(epmd_port, Config)), "\n"]),
    [ok = filelib:ensure_dir(File(Name)) || Name <- ["there/x", "here/x", "/run/sshd/x"]],
    ok = file:make_symlink(?config(command, Config), File("there/beamway")),
    ok = file:write_file(File("here/ssh"), ["#!/bin/sh\nexec /usr/bin/ssh -F none -p ", Port, " -i ", File("user"),
                                            " -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \"$@\"\n"]),
    ok = file:change_mode(File("here/ssh"), 8#755),
    Server = open_port({spawn_executable, "/usr/sbin/sshd"}, [{args, ["-D", "-e", "-f", File("sshd_config")]}, stderr_to_stdout, exit_status]),
    true = beamway_peer:wait_until(fun() -> beamway_command:can_connect(list_to_integer(Port)) end, ?WAIT_MS),
    [{folder, Folder}, {server, Server} | Config].

end_per_testcase(_Case, Config) ->
    {os_pid, Pid} = erlang:port_info(?config(server, Config), os_pid),
    _ = os:cmd("kill " ++ integer_to_list(Pid)),
    ok = file:del_dir_r(?config(folder, Config)).

environment(Config) -> ["export ERL_EPMD_PORT=1 PATH=", quoted(filename:join(?config(folder, Config), "here")), ":\"$PATH\"; "].

beamway(Config, Words) -> shell(Config, [environment(Config), "\"$BEAMWAY\" ", Words]).

%% Runs the command on a terminal, as a user would, and asks the remote shell where it runs; the node must survive.
attached(Config, Words, Node) ->
    Line = lists:flatten([environment(Config), "exec script -qefc ", quoted(lists:flatten([?config(command, Config), " attach ", Words])), " /dev/null"]),
    Port = open_port({spawn_executable, os:find_executable("bash")}, [{args, ["-c", Line]}, {env, [{"HOME", ?config(home, Config)}]}, use_stdio, stderr_to_stdout]),
    Prompt = until(Port, "\\(" ++ atom_to_list(Node) ++ "\\)1>", ""),
    true = port_command(Port, "io:format(\"~p~n\", [{here_is, node()}]).\n"),
    Answer = until(Port, "\\{here_is,'?" ++ atom_to_list(Node), ""),
    true = port_command(Port, [7]),
    _ = until(Port, "-->", ""),
    true = port_command(Port, "q\n"),
    %% The cookie is never visible.
    ?assertEqual(nomatch, string:find(Prompt ++ Answer, "beamway_cli_suite")).

until(Port, Expression, Said) ->
    case re:run(Said, Expression) of
        {match, _} -> Said;
        nomatch -> receive {Port, {data, More}} -> until(Port, Expression, Said ++ More) after ?WAIT_MS -> error({not_said, Expression, Said}) end
    end.

attach(Config) ->
    with_nodes(Config, 2, fun([A, _]) ->
        attached(Config, ["127.0.0.1:", atom_to_list(A)], A),
        ?assertMatch({0, _, _}, beamway(Config, ["links --via 127.0.0.1 ", atom_to_list(A)]))
    end).

the_only_node(Config) -> with_nodes(Config, 1, fun([A]) -> attached(Config, "127.0.0.1", A) end).

no_node(Config) ->
    {1, _, None} = beamway(Config, "attach 127.0.0.1"),
    ?assertMatch({match, _}, re:run(None, "0 nodes run on this host; expected HOST:NODE"), None),
    with_nodes(Config, 2, fun(_) ->
        {1, _, Several} = beamway(Config, "attach 127.0.0.1"),
        ?assertMatch({match, _}, re:run(Several, "2 nodes run on this host"), Several)
    end),
    {255, _, _} = beamway(Config, "attach nobody@127.0.0.1"),
    ok.

via(Config) ->
    with_nodes(Config, 2, fun([A, B]) ->
        {0, Json, _} = beamway(Config, ["links --json --via=127.0.0.1 ", atom_to_list(A)]),
        ?assertMatch(#{<<"links">> := [_]}, jiffy:decode(Json, [return_maps])),
        {0, Why, _} = beamway(Config, ["why --via 127.0.0.1 ", atom_to_list(B), " ", atom_to_list(A)]),
        ?assertMatch({match, _}, re:run(Why, "the link is up"), Why),
        {2, _, Usage} = beamway(Config, "links --via 127.0.0.1 \"it's one word; touch x\" too"),
        ?assertMatch({match, _}, re:run(Usage, "unexpected word 'too'"), Usage)
    end).

bad_words(Config) ->
    [begin
         {2, "", Error} = beamway(Config, Words),
         ?assertMatch({Words, {match, _}}, {Words, re:run(Error, Expected)})
     end || {Words, Expected} <- [{"attach", "which host"}, {"attach '-oProxyCommand=touch x'", "invalid option"}, {"attach 'a b'", "is not a valid host for ssh"},
                                  {"attach 'a:b;c'", "'b;c' is not a node name"}, {"attach a:-x", "'-x' is not a node name"},
                                  {"links --via -oProxyCommand=x", "is not a valid host for ssh"}, {"links --via", "'' is not a valid host for ssh"}]],
    ok.
