%% SPDX-License-Identifier: Apache-2.0
%% @doc The `beamway' command as a user runs it: real processes, exit statuses, output and error apart.
%%
%% The suite has an epmd and a home of its own, so that it sees no other node of the machine and needs no
%% cookie of the user.
-module(beamway_cli_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2, end_per_testcase/2]).
-export([version/1, help/1, usage_errors/1, broken_pipe/1, full_output/1, symbolic_link/1,
         path_with_space/1, not_built/1, no_benchmarks/1, no_erl/1, own_flags_are_ignored/1,
         links_as_table/1, links_as_json/1, links_of_the_only_node/1, links_several_nodes/1, links_no_node/1,
         links_not_running/1, links_no_epmd/1, links_wrong_cookie/1, links_cookie_file/1,
         links_without_beamway/1, links_of_a_strange_node/1, links_unreachable/1, links_open_cookie/1,
         links_long_names/1, links_over_tls/1, completion_and_manual/1, pipe_commands/1,
         top_into_a_pipe/1, top_of_a_cluster/1, top_on_a_terminal/1, top_failures/1, choose_from_the_shell/1,
         nodes_from_the_command/1, node_on_a_terminal/1, node_failures/1, node_without_slurm_peer/1,
         doctor_well/1, doctor_json/1, doctor_turned_off/1, doctor_bad_option/1, doctor_no_driver/1,
         doctor_file_size/1, doctor_address_space/1, doctor_descriptors/1, doctor_no_epmd/1, doctor_silent_epmd/1]).

%% As long as a machine under load may take to start a few VMs.
-define(RUN_MS, 90000).

suite() -> [{timetrap, {minutes, 5}}].

all() ->
    [version, help, usage_errors, broken_pipe, full_output, symbolic_link, path_with_space,
     not_built, no_benchmarks, no_erl, own_flags_are_ignored,
     links_as_table, links_as_json, links_of_the_only_node, links_several_nodes, links_no_node,
     links_not_running, links_no_epmd, links_wrong_cookie, links_cookie_file, links_without_beamway,
     links_of_a_strange_node, links_unreachable, links_open_cookie,
     links_long_names, links_over_tls, completion_and_manual, pipe_commands,
     top_into_a_pipe, top_of_a_cluster, top_on_a_terminal, top_failures, choose_from_the_shell,
     nodes_from_the_command, node_on_a_terminal, node_failures, node_without_slurm_peer,
     doctor_well, doctor_json, doctor_turned_off, doctor_bad_option, doctor_no_driver, doctor_file_size,
     doctor_address_space, doctor_descriptors, doctor_no_epmd, doctor_silent_epmd].

init_per_suite(Config) ->
    Root = root(),
    Home = filename:join(?config(priv_dir, Config), "home"),
    ok = filelib:ensure_dir(filename:join(Home, "x")),
    ok = write_secret(filename:join(Home, ".erlang.cookie"), "beamway_cli_suite"),
    [{root, Root}, {home, Home}, {command, filename:join(Root, "bin/beamway")} | Config].

end_per_suite(_) -> ok.

init_per_testcase(doctor_address_space, Config) ->
    case beamway_peer:unless_wrapped("a sanitizer needs all of the address space", Config) of
        {skip, Why} -> {skip, Why};
        Config -> init_per_testcase(any, Config)
    end;
%% Each case has a new epmd, which knows no node of another case.
init_per_testcase(_, Config) ->
    Port = free_port(),
    Epmd = open_port({spawn_executable, os:find_executable("epmd")},
                     [{args, ["-address", lists:flatten(own_addresses()), "-port", integer_to_list(Port)]}, exit_status,
                      stderr_to_stdout]),
    {os_pid, Pid} = erlang:port_info(Epmd, os_pid),
    ok = until(fun() -> can_connect(Port) end),
    [{epmd_port, Port}, {epmd_pid, Pid} | Config].

end_per_testcase(_, Config) ->
    _ = os:cmd("kill " ++ integer_to_list(?config(epmd_pid, Config))),
    ok.

%%% The command itself

version(Config) ->
    {0, Out, ""} = run(Config, "--version"),
    {match, _} = re:run(Out, "^beamway \\d+\\.\\d+\\.\\d+ \\(OTP \\d+, ERTS [0-9.]+\\)\n$"),
    {0, Out, ""} = run(Config, "-V").

help(Config) ->
    {0, Short, ""} = run(Config, "-h"),
    {0, Long, ""} = run(Config, "--help"),
    ?assert(length(Long) > length(Short)),
    ?assertEqual({0, Long, ""}, run(Config, "help")),
    [begin
         {0, Text, ""} = run(Config, Command ++ " --help"),
         ?assertMatch({match, _}, re:run(Text, "(?i)usage: beamway " ++ Command)),
         ?assertMatch({match, _}, re:run(Text, "exit status: 0")),
         ?assertMatch({0, Text, ""}, run(Config, "help " ++ Command))
     end || Command <- ["demo", "bench", "links", "top", "choose", "node", "doctor"]],
    ok.

usage_errors(Config) ->
    [begin
         {Status, Out, Error} = run(Config, Words),
         ?assertEqual({Words, 2, ""}, {Words, Status, Out}),
         ?assertMatch({match, _}, re:run(Error, Expected))
     end || {Words, Expected} <- [{"", "usage: beamway COMMAND"},
                                  {"lnks", "unknown command 'lnks'"},
                                  {"--nothing", "unknown option '--nothing'"},
                                  {"links --nothing", "--nothing"},
                                  {"links a b", "unexpected word 'b'"},
                                  {"top --interval 0", "--interval 0: expected seconds"},
                                  {"top --sort size", "--sort size: expected one of node, link"},
                                  {"top --count 0", "--count: expected a number from 1"},
                                  {"node", "which name\\? Expected --name"},
                                  {"node --name 'a b'", "--name 'a b': expected name or name@host"},
                                  {"node --name a --connect b", "--connect 'b': expected name@host"},
                                  {"node --name a --measure fast", "--measure 'fast': expected auto"},
                                  {"node --name a --carrier pigeon", "--carrier 'pigeon': expected beamway"},
                                  {"links --cookie-file", "cookie-file"},
                                  {"doctor now", "unexpected word 'now'"}]],
    ok.

%% The best of five: the rest of the machine may be busy.
broken_pipe(Config) ->
    ?assertMatch({0, _, ""}, shell(Config, "set -o pipefail; \"$BEAMWAY\" --help | head -n 1")),
    ?assertMatch({0, "", ""}, shell(Config, "set -o pipefail; \"$BEAMWAY\" doctor --json | true")).

%% A disk that is full is no reader that went away.
full_output(Config) ->
    {Status, "", Error} = shell(Config, "\"$BEAMWAY\" --help > /dev/full"),
    ?assertEqual(1, Status),
    ?assertMatch({match, _}, re:run(Error, "standard output")).

symbolic_link(Config) ->
    Link = filename:join(?config(priv_dir, Config), "beamway_link"),
    ok = file:make_symlink(?config(command, Config), Link),
    {0, "beamway " ++ _, ""} = shell(Config, quoted(Link) ++ " --version").

path_with_space(Config) ->
    Root = copy_of_checkout(Config, "with space"),
    {0, "beamway " ++ _, ""} = shell(Config, quoted(filename:join(Root, "bin/beamway")) ++ " --version").

not_built(Config) ->
    Root = copy_of_checkout(Config, "not_built"),
    ok = file:delete(filename:join(Root, "apps/beamway/ebin")),
    {1, "", Error} = shell(Config, quoted(filename:join(Root, "bin/beamway")) ++ " --version"),
    ?assertMatch({match, _}, re:run(Error, "not built yet. Run: make -C ")).

%% `make build' alone makes the command, not the programs that measure.
no_benchmarks(Config) ->
    Root = copy_of_checkout(Config, "no_benchmarks"),
    [begin
         {1, "", Error} = shell(Config, [quoted(filename:join(Root, "bin/beamway")), " ", Words]),
         ?assertMatch({match, _}, re:run(Error, "the benchmark programs are not built; run: scripts/build --bench"))
     end || Words <- ["demo", "bench rpc", "soak"]],
    ok.

no_erl(Config) ->
    {1, "", Error} = shell(Config, "BEAMWAY_ERL=no-such-erl \"$BEAMWAY\" --version"),
    ?assertMatch({match, _}, re:run(Error, "'no-such-erl' is not on the PATH")).

own_flags_are_ignored(Config) ->
    {0, "beamway " ++ _, ""} =
        shell(Config, "ERL_FLAGS='-sname beamway_flags -proto_dist nothing' \"$BEAMWAY\" --version").

%%% links

links_as_table(Config) ->
    with_nodes(Config, 2, fun([A, B]) ->
        {0, Out, ""} = run(Config, "links " ++ atom_to_list(A)),
        [Heading, Row] = string:lexemes(Out, "\n"),
        ?assertMatch({match, _}, re:run(Heading, "^NODE +LINK +BYTES IN +BYTES OUT +WHY$")),
        ?assertMatch({match, _}, re:run(Row, ["^", atom_to_list(B), " +(shm|tcp) +\\d+ +\\d+ +\\S"]))
    end).

links_as_json(Config) ->
    with_nodes(Config, 2, fun([A, B]) ->
        {0, Out, ""} = run(Config, "links --json " ++ atom_to_list(A)),
        {NameA, NameB} = {atom_to_binary(A), atom_to_binary(B)},
        #{<<"node">> := NameA, <<"links">> := [#{<<"node">> := NameB, <<"link">> := Kind, <<"reason">> := Reason,
                                                 <<"info">> := #{<<"bytes_in">> := Bytes}}]}
            = jiffy:decode(Out, [return_maps]),
        ?assert(lists:member(Kind, [<<"shm">>, <<"tcp">>])),
        ?assert(is_binary(Reason) andalso Reason =/= <<>>),
        ?assert(is_integer(Bytes))
    end).

links_of_the_only_node(Config) ->
    with_nodes(Config, 1, fun([A]) ->
        Expected = atom_to_list(A) ++ " is connected to no other node\n",
        ?assertEqual({0, Expected, ""}, run(Config, "links")),
        [Name, _] = string:split(atom_to_list(A), "@"),
        ?assertEqual({0, Expected, ""}, run(Config, "links " ++ Name))
    end).

links_several_nodes(Config) ->
    with_nodes(Config, 2, fun(_) ->
        {1, "", Error} = run(Config, "links"),
        ?assertMatch({match, _}, re:run(Error, "several nodes run on this host"))
    end).

links_no_node(Config) ->
    {1, "", Error} = run(Config, "links"),
    ?assertMatch({match, _}, re:run(Error, "no node is registered with epmd")),
    {1, "", Named} = run(Config, "links nosuch"),
    ?assertMatch({match, _}, re:run(Named, "nosuch@\\S+ is not running: epmd on \\S+ knows no node")).

links_not_running(Config) ->
    with_nodes(Config, 1, fun([A]) ->
        {1, "", Error} = run(Config, "links nosuch"),
        [Name, _] = string:split(atom_to_list(A), "@"),
        ?assertMatch({match, _}, re:run(Error, "nosuch@\\S+ is not running: epmd on \\S+ knows " ++ Name))
    end).

links_no_epmd(Config) ->
    Closed = [{epmd_port, free_port()} | Config],
    [begin
         {1, "", Error} = run(Closed, Words),
         ?assertMatch({match, _}, re:run(Error, "epmd on \\S+ does not answer"))
     end || Words <- ["links", "links nosuch"]],
    ok.

links_wrong_cookie(Config) ->
    File = cookie_file(Config, "another_cookie"),
    with_nodes(Config, 1, fun([A]) ->
        {1, "", Error} = run(Config, ["links --cookie-file ", quoted(File), " ", atom_to_list(A)]),
        ?assertMatch({match, _}, re:run(Error, "refused the connection.*cookie"))
    end).

links_cookie_file(Config) ->
    File = cookie_file(Config, "own_cookie\n"),
    Started = start(Config, ["-proto_dist", "beamway", "-setcookie", "own_cookie"], #{}),
    try
        {_, _, Node} = Started,
        {0, Out, ""} = run(Config, ["links --cookie-file ", quoted(File), " ", atom_to_list(Node)]),
        ?assertMatch({match, _}, re:run(Out, "connected to no other node")),
        {1, "", Error} = run(Config, "links --cookie-file /nonexistent " ++ atom_to_list(Node)),
        ?assertMatch({match, _}, re:run(Error, "cannot read the cookie file '/nonexistent': no such file"))
    after
        stop(Started)
    end.

%% A node without our code, and one with our code that runs another carrier.
links_without_beamway(Config) ->
    Started = start(Config, [], #{code => none}),
    try
        {_, _, Node} = Started,
        {1, "", Error} = run(Config, "links " ++ atom_to_list(Node)),
        ?assertMatch({match, _}, re:run(Error, "has no Beamway"))
    after
        stop(Started)
    end.

%% A module `beamway' of something else: it does not answer, or fails.
links_of_a_strange_node(Config) ->
    Started = start(Config, [], #{code => none}),
    try
        {_, Pid, Node} = Started,
        [begin
             {module, beamway} = peer:call(Pid, code, load_binary, [beamway, "beamway.erl", module_with(Body)]),
             {1, "", Error} = run(Config, "links " ++ atom_to_list(Node)),
             ?assertMatch({match, _}, re:run(Error, Expected))
         end || {Body, Expected} <- [{"receive never -> [] end", "did not answer: timeout"},
                                     {"error(not_yours)", "answered with an error: .*not_yours"}]]
    after
        stop(Started)
    end.

module_with(Body) ->
    Forms = [begin
                 {ok, Tokens, _} = erl_scan:string(Text),
                 {ok, Form} = erl_parse:parse_form(Tokens),
                 Form
             end || Text <- ["-module(beamway).", "-export([links/0]).", "links() -> " ++ Body ++ "."]],
    {ok, beamway, Binary} = compile:forms(Forms),
    Binary.

%% epmd knows the node, but nothing listens at its port any more.
links_unreachable(Config) ->
    {ok, Epmd} = gen_tcp:connect({127, 0, 0, 1}, ?config(epmd_port, Config), [binary, {active, false}]),
    Port = free_port(),
    Request = <<$x, Port:16, $M, 0, 6:16, 5:16, 4:16, "gone", 0:16>>,
    ok = gen_tcp:send(Epmd, <<(byte_size(Request)):16, Request/binary>>),
    {ok, <<_, 0, _/binary>>} = gen_tcp:recv(Epmd, 0, 5000),
    {1, "", Error} = run(Config, "links gone"),
    ?assertMatch({match, _}, re:run(Error, ["registered with epmd at port ", integer_to_list(Port), ", which cannot be reached: connection refused"])),
    ok = gen_tcp:close(Epmd).

%% OTP takes no cookie from a file that others may read.
links_open_cookie(Config) ->
    Home = filename:join(?config(priv_dir, Config), "open_home"),
    Cookie = filename:join(Home, ".erlang.cookie"),
    ok = filelib:ensure_dir(Cookie),
    ok = write_secret(Cookie, "beamway_cli_suite"),
    ok = file:change_mode(Cookie, 8#644),
    with_nodes(Config, 1, fun([A]) ->
        {1, "", Error} = run([{home, Home} | Config], "links " ++ atom_to_list(A)),
        ?assertMatch({match, _}, re:run(Error, "beamway: links: cannot become a node: "))
    end).

links_long_names(Config) ->
    Started = start(Config, ["-proto_dist", "beamway"], #{longnames => true, host => "127.0.0.1"}),
    try
        {_, _, Node} = Started,
        {0, Out, ""} = run(Config, "links " ++ atom_to_list(Node)),
        ?assertMatch({match, _}, re:run(Out, "connected to no other node"))
    after
        stop(Started)
    end.

links_over_tls(Config) ->
    ok = beamway_certificates:prepare(?config(priv_dir, Config)),
    File = beamway_certificates:good(),
    Started = start(Config, ["-proto_dist", "beamway_tls", "-ssl_dist_optfile", File], #{}),
    try
        {_, _, Node} = Started,
        Ask = ["\"$BEAMWAY\" links ", atom_to_list(Node)],
        {0, Out, ""} = shell(Config, ["BEAMWAY_TLS_OPTFILE=", quoted(File), " ", Ask]),
        ?assertMatch({match, _}, re:run(Out, "connected to no other node")),
        {1, "", Error} = shell(Config, Ask),
        ?assertMatch({match, _}, re:run(Error, "BEAMWAY_TLS_OPTFILE"))
    after
        stop(Started)
    end.

%%% what is written twice

%% The manual page and both completions know every command, and every option that a command's help lists.
completion_and_manual(Config) ->
    {0, Summary, ""} = run(Config, "-h"),
    {match, Lines} = re:run(Summary, "(?m)^  ([a-z]+)", [global, {capture, all_but_first, list}]),
    Commands = lists:append(Lines),
    ?assert(length(Commands) > 9),
    [begin
         {ok, Text} = file:read_file(filename:join([?config(root, Config), "bin", File])),
         Plain = binary:replace(Text, <<"\\-">>, <<"-">>, [global]),
         [?assertMatch({File, Word, {match, _}}, {File, Word, re:run(Plain, ["[^a-z-]", Word, "[^a-z-]"])})
          || Word <- Commands ++ lists:append([long_options(Config, Command) || Command <- ["links", "top", "choose", "node", "doctor", "console"]])]
     end || File <- ["completion/beamway", "completion/_beamway", "man/beamway.1"]],
    Folder = quoted(filename:join([?config(root, Config), "bin", "completion"])),
    ?assertEqual({0, "top topology\n", ""},
                 shell(Config, ["cd ", Folder, "; . ./beamway; COMP_WORDS=(beamway to) COMP_CWORD=1; _beamway; printf '%s\\n' \"${COMPREPLY[@]}\" | LC_ALL=C sort | paste -sd' '"])),
    ?assertEqual({0, "--cluster\n--count\n", ""},
                 shell(Config, ["cd ", Folder, "; . ./beamway; COMP_WORDS=(beamway top --c) COMP_CWORD=2; _beamway; printf '%s\\n' \"${COMPREPLY[@]}\" | grep -v file"])),
    case os:find_executable("zsh") of
        false -> {comment, "zsh is not installed: its completion was not run"};
        Zsh ->
            Script = ["cd ", Folder, "; compadd() { print -r -- ${@:#--} }; . ./_beamway; words=(beamway node --carrier b); CURRENT=4; _beamway;",
                      " words=(beamway top --s); CURRENT=3; _beamway"],
            ?assertEqual({0, "beamway beamway6 beamway_tls beamway6_tls inet_tcp\n--sort --cluster --interval --count --json --cookie-file --help\n", ""},
                         shell(Config, [Zsh, " -f -c ", "\"", string:replace(string:replace(Script, "$", "\\$", all), "\"", "\\\"", all), "\""])),
            ok
    end.

long_options(Config, Command) ->
    {0, Help, ""} = run(Config, Command ++ " --help"),
    {match, Found} = re:run(Help, "(?m)^  (?:-[a-z], )?(--[a-z-]+)", [global, {capture, all_but_first, list}]),
    lists:append(Found) -- ["--help"].

pipe_commands(Config) ->
    case filelib:is_regular(filename:join(?config(root, Config), "native/build/bin/rdpipe")) of
        false -> {skip, "rdpipe is not built"};
        true ->
            {0, "rdpipe " ++ _, ""} = run(Config, "pipe --version"),
            {0, "rdsend " ++ _, ""} = run(Config, "pipe send --version"),
            {0, "rdcp " ++ _, ""} = run(Config, "pipe cp --version"),
            ?assertEqual({0, "OLLEH\n", ""}, shell(Config, "echo hello | \"$BEAMWAY\" pipe :'tr a-z A-Z' :rev")),
            Root = copy_of_checkout(Config, "no_pipe"),
            {1, "", Error} = shell(Config, quoted(filename:join(Root, "bin/beamway")) ++ " pipe --version"),
            ?assertMatch({match, _}, re:run(Error, "rdpipe is not here"))
    end.

%%% top

top_into_a_pipe(Config) ->
    with_nodes(Config, 2, fun([A, B]) ->
        {0, Out, ""} = run(Config, ["top --interval 0.1 ", atom_to_list(A)]),
        [Title, Heading, Row] = string:lexemes(Out, "\n"),
        ?assertEqual(atom_to_list(A) ++ ": 1 link, sorted by both", Title),
        ?assertMatch({match, _}, re:run(Heading, "^NODE +LINK +IN/S +OUT/S ")),
        ?assertMatch({match, _}, re:run(Row, ["^", atom_to_list(B), " +(shm|tcp) "])),
        {0, Json, ""} = run(Config, ["top --json --count 2 --interval 0.1 ", atom_to_list(A)]),
        [begin
             {Node, Peer} = {atom_to_binary(A), atom_to_binary(B)},
             ?assertMatch(#{<<"node">> := Node, <<"not_answering">> := [], <<"links">> := [#{<<"from">> := Node, <<"node">> := Peer, <<"in">> := _}]},
                          jiffy:decode(Line, [return_maps]))
         end || Line <- [_, _] = string:lexemes(Json, "\n")],
        ?assertMatch({0, _, ""}, shell(Config, ["set -o pipefail; \"$BEAMWAY\" top --count 50 --interval 0.1 ", atom_to_list(A), " | head -n 1"]))
    end).

%% The command has one connection; the asked node asks the others.
top_of_a_cluster(Config) ->
    with_nodes(Config, 3, fun([A | _] = Nodes) ->
        {0, Out, ""} = run(Config, ["top --cluster --json --interval 0.1 ", atom_to_list(A)]),
        #{<<"links">> := Links} = jiffy:decode(Out, [return_maps]),
        Expected = lists:sort([{atom_to_binary(From), atom_to_binary(To)} || From <- Nodes, To <- Nodes, From =/= To]),
        ?assertEqual(Expected, lists:sort([{From, To} || #{<<"from">> := From, <<"node">> := To} <- Links]))
    end).

%% A terminal by script(1): letters sort, q ends, and the terminal is as it was.
top_on_a_terminal(Config) ->
    case os:find_executable("script") of
        false -> {skip, "script (bsdutils) is not installed"};
        _ ->
            with_nodes(Config, 2, fun([A, _]) ->
                Command = ["\\\"$BEAMWAY\\\" top --interval 0.2 ", atom_to_list(A), "; echo status $?; stty -a | grep -c ' icanon'"],
                {0, Out, _} = shell(Config, ["{ shown() { for _ in $(seq 600); do ! grep -q \"$1\" typed 2>/dev/null || return 0; sleep 0.1; done; };",
                                             " shown 'sorted by both'; printf s; shown 'sorted by stalls'; printf q; }",
                                             " | timeout 80 script -qefc \"", Command, "\" typed; rm typed"]),
                ?assertMatch({match, _}, re:run(Out, "sorted by both")),
                ?assertMatch({match, _}, re:run(Out, "sorted by stalls")),
                ?assertMatch({match, _}, re:run(Out, "status 0\r?\n1\r?\n"))
            end)
    end.

top_failures(Config) ->
    with_nodes(Config, 1, fun([A]) ->
        [begin
             {1, "", Error} = run(Config, ["top ", Words]),
             ?assertMatch({match, _}, re:run(Error, Expected))
         end || {Words, Expected} <- [{"nosuch", "nosuch@\\S+ is not running"},
                                      {["--cookie-file ", quoted(cookie_file(Config, "another")), " ", atom_to_list(A)], "refused the connection.*cookie"}]]
    end),
    Bare = start(Config, [], #{code => none}),
    try
        {_, _, Node} = Bare,
        {1, "", NoCode} = run(Config, ["top ", atom_to_list(Node)]),
        ?assertMatch({match, _}, re:run(NoCode, "has no Beamway")),
        {1, "", NoPlacement} = run(Config, ["choose '{loadavg5, lt, 100.0}' --node ", atom_to_list(Node)]),
        ?assertMatch({match, _}, re:run(NoPlacement, "has no placement"))
    after
        stop(Bare)
    end.

choose_from_the_shell(Config) ->
    Node = command_node(Config, "--name chooser"),
    try
        {0, Out, ""} = run(Config, "choose '{mem_total, gt, 0}' --node chooser --count 1"),
        ?assertMatch({match, _}, re:run(Out, "^chooser@\\S+\n$")),
        {1, Why, ""} = run(Config, "choose '{mem_total, lt, 0}' --node chooser"),
        ?assertMatch({match, _}, re:run(Why, "0 of 1 nodes fulfil the query"))
    after
        ?assertEqual(0, ended(Node))
    end.

%%% node

%% Two nodes made by the command, with a cookie of a file; what a third one runs on the first node ends with its status.
nodes_from_the_command(Config) ->
    File = cookie_file(Config, "from_a_file\n"),
    {ok, Host} = inet:gethostname(),
    With = ["--cookie-file ", quoted(File)],
    First = command_node(Config, ["--name one ", With]),
    Second = command_node(Config, ["--name two --connect one@", Host, " --measure quiet --json ", With]),
    try
        {0, Links, ""} = run(Config, ["links --json one ", With]),
        ?assertMatch(#{<<"links">> := [#{<<"link">> := <<"shm">>}]}, jiffy:decode(Links, [return_maps])),
        %% Nobody reads the cookie from the process list.
        Shown = [os:cmd("tr '\\0' ' ' < /proc/" ++ integer_to_list(Pid) ++ "/cmdline") || {_, Pid, _} <- [First, Second]],
        [?assertEqual(nomatch, string:find(Line, "from_a_file")) || Line <- Shown],
        [?assertMatch({match, _}, re:run(Line, "-proto_dist beamway ")) || Line <- Shown],
        {3, "three@" ++ _, _} = run(Config, ["node --name three --connect one@", Host, " --run beamway_cli_end ", With, " -- -pa ", quoted(module_folder(Config, 3))])
    after
        ?assertEqual([0, 0], [ended(Node) || Node <- [Second, First]])
    end.

module_folder(Config, Status) ->
    Folder = filename:join(?config(priv_dir, Config), "run"),
    Forms = [begin {ok, Tokens, _} = erl_scan:string(Text), {ok, Form} = erl_parse:parse_form(Tokens), Form end
             || Text <- ["-module(beamway_cli_end).", "-export([main/0]).", "main() -> [_] = nodes(), " ++ integer_to_list(Status) ++ "."]],
    {ok, beamway_cli_end, Binary} = compile:forms(Forms),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    ok = file:write_file(filename:join(Folder, "beamway_cli_end.beam"), Binary),
    Folder.

%% On a terminal the node has Erlang's shell; the end of the shell is its end.
node_on_a_terminal(Config) ->
    case os:find_executable("script") of
        false -> {skip, "script (bsdutils) is not installed"};
        _ ->
            {0, Out, _} = shell(Config, ["{ shown() { for _ in $(seq 600); do ! grep -q \"$1\" talk 2>/dev/null || return 0; sleep 0.1; done; };",
                                         " shown 'is ready'; printf 'node().\\n'; shown '^talker@[^ ]*$'; printf 'halt(4).\\n'; shown 'status 4'; }",
                                         " | timeout 80 script -qefc \"\\\"$BEAMWAY\\\" node --name talker; echo status \\$?\" talk; rm talk"]),
            ?assertMatch({match, _}, re:run(Out, "Eshell")),
            ?assertMatch({match, _}, re:run(Out, "talker@\\S+\r?\n.*status 4", [dotall]))
    end.

node_failures(Config) ->
    Node = command_node(Config, "--name taken"),
    try
        {ok, Host} = inet:gethostname(),
        [begin
             {1, "", Error} = run(Config, ["node ", Words]),
             ?assertMatch({match, _}, re:run(Error, Expected))
         end || {Words, Expected} <- [{"--name taken", "cannot become taken: a node of this name runs"},
                                      {["--name other --wait 0 --connect nosuch@", Host], "1 of 1 peers did not come in time.*nosuch@"},
                                      {["--name other --wait 0 --connect taken@", Host, " --cookie-file ", quoted(cookie_file(Config, "another"))], "1 of 1 peers did not come"},
                                      {"--name other --cookie-file /nonexistent", "cannot read the cookie file '/nonexistent'"},
                                      {"--name other@nosuch.invalid", "host name 'nosuch.invalid' does not resolve"},
                                      {"--name other --run nosuch", "module nosuch cannot be loaded.*-pa FOLDER"},
                                      {"--name other --run lists:nosuch", "module lists has no function nosuch/0"},
                                      {"--name other --start nosuch", "application nosuch did not start"}]]
    after
        ?assertEqual(0, ended(Node))
    end.

%% Slurm's variables of a task whose other task never comes, and some that cannot be.
node_without_slurm_peer(Config) ->
    {ok, Host} = inet:gethostname(),
    Job = ["SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=", Host, " SLURMD_NODENAME=", Host, " SLURM_LOCALID=0 "],
    {1, "", Lonely} = shell(Config, [Job, "SLURM_STEP_TASKS_PER_NODE=2 \"$BEAMWAY\" node --wait 0"]),
    ?assertMatch({match, _}, re:run(Lonely, "1 of 1 peers did not come in time.*job7-0-1@")),
    {1, "", Odd} = shell(Config, [Job, "SLURM_STEP_TASKS_PER_NODE=many \"$BEAMWAY\" node"]),
    ?assertMatch({match, _}, re:run(Odd, "SLURM_STEP_TASKS_PER_NODE is 'many'; expected counts such as")),
    {2, "", Named} = shell(Config, [Job, "SLURM_STEP_TASKS_PER_NODE=1 \"$BEAMWAY\" node --name a"]),
    ?assertMatch({match, _}, re:run(Named, "in a Slurm job the names come from Slurm")).

%% A node started by the command, once it says that it is ready.
command_node(Config, Words) ->
    Line = lists:flatten(["exec \"$BEAMWAY\" node ", Words]),
    Port = open_port({spawn_executable, os:find_executable("bash")}, [{args, ["-c", Line]}, {env, environment(Config)}, exit_status, use_stdio, stderr_to_stdout]),
    {os_pid, Pid} = erlang:port_info(Port, os_pid),
    ok = until_ready(Port, []),
    {Port, Pid, node}.

until_ready(Port, Text) ->
    receive
        {Port, {data, More}} ->
            case re:run(Text ++ More, "is ready|\"ready\"") of
                {match, _} -> ok;
                nomatch -> until_ready(Port, Text ++ More)
            end;
        {Port, {exit_status, Status}} -> ct:fail({node_ended, Status, Text})
    after ?RUN_MS -> ct:fail({not_ready, Text})
    end.

ended({Port, Pid, node}) ->
    _ = os:cmd("kill " ++ integer_to_list(Pid)),
    {Status, _} = collect(Port, []),
    Status.

%%% doctor

doctor_well(Config) ->
    {0, Out, ""} = run(Config, "doctor"),
    ?assertMatch({match, _}, re:run(Out, "(?m)^shm +yes ")),
    ?assertMatch({match, _}, re:run(Out, "(?m)^ok +driver ")),
    ?assertMatch({match, _}, re:run(Out, "(?m)^rdma +(no +no devices|yes|no +[a-z0-9_]+ port)")),
    ?assertMatch(nomatch, re:run(Out, "(?m)^problem")).

doctor_json(Config) ->
    #{<<"ok">> := true, <<"links">> := Links, <<"checks">> := Checks} = doctor(Config, "", 0),
    ?assertEqual([<<"shm">>, <<"rdma">>, <<"tcp">>], [maps:get(<<"link">>, Link) || Link <- Links]),
    ?assertMatch(#{<<"status">> := <<"ok">>}, check(<<"rings">>, Checks)).

doctor_turned_off(Config) ->
    #{<<"checks">> := Checks} = doctor(Config, "export BEAMWAY_LINKS=tcp; ", 1),
    ?assertMatch(#{<<"status">> := <<"problem">>, <<"remedy">> := <<"unset BEAMWAY_LINKS", _/binary>>},
                 check(<<"options">>, Checks)).

doctor_bad_option(Config) ->
    [begin
         #{<<"checks">> := Checks} = doctor(Config, ["export BEAMWAY_RING_BYTES=", Value, "; "], 1),
         #{<<"status">> := <<"problem">>, <<"found">> := Found} = check(<<"options">>, Checks),
         ?assertMatch({match, _}, re:run(Found, ["\"", Value, "\" is not valid: expected "]))
     end || Value <- ["0", "-1", "1000000000000"]],
    ok.

doctor_no_driver(Config) ->
    Root = copy_of_checkout(Config, "no_driver"),
    ok = file:delete(filename:join(Root, "apps/beamway/priv")),
    #{<<"checks">> := Checks} = doctor([{command, filename:join(Root, "bin/beamway")} | Config], "", 1),
    #{<<"status">> := <<"problem">>, <<"remedy">> := _, <<"found">> := Found} = check(<<"driver">>, Checks),
    ?assertMatch({match, _}, re:run(Found, "beamway_drv")).

%% The VM's own code memory needs 8 MiB in OTP 25 and 64 MiB in OTP 27; the rings here are two of 64 MiB and a page.
doctor_file_size(Config) ->
    #{<<"checks">> := Checks} = doctor(Config, "export BEAMWAY_RING_BYTES=67108864; ulimit -f 98304; ", 1),
    ?assertMatch(#{<<"status">> := <<"problem">>}, check(<<"file_size">>, Checks)),
    ?assertMatch(#{<<"status">> := <<"problem">>}, check(<<"rings">>, Checks)),
    {1, "", Error} = shell(Config, "ulimit -f 100; \"$BEAMWAY\" doctor"),
    ?assertMatch({match, _}, re:run(Error, "files may have only 100 KiB.*ulimit -f unlimited")).

doctor_address_space(Config) ->
    #{<<"checks">> := Checks} = doctor(Config, "ulimit -v 4000000; ", 0),
    ?assertMatch(#{<<"status">> := <<"warning">>, <<"remedy">> := <<"raise it: ulimit -v", _/binary>>},
                 check(<<"address_space">>, Checks)).

doctor_descriptors(Config) ->
    #{<<"checks">> := Checks} = doctor(Config, "ulimit -n 200; ", 0),
    ?assertMatch(#{<<"status">> := <<"warning">>}, check(<<"descriptors">>, Checks)),
    {1, "", Error} = shell(Config, "ulimit -n 20; \"$BEAMWAY\" doctor"),
    ?assertMatch({match, _}, re:run(Error, "only 20 open files.*ulimit -n")).

doctor_no_epmd(Config) ->
    #{<<"checks">> := Checks} = doctor([{epmd_port, free_port()} | Config], "", 0),
    ?assertMatch(#{<<"status">> := <<"ok">>, <<"found">> := <<"does not run yet", _/binary>>}, check(<<"epmd">>, Checks)).

%% Something takes the connection at epmd's port and says nothing.
doctor_silent_epmd(Config) ->
    {ok, Silent} = gen_tcp:listen(0, [{active, false}]),
    {ok, Port} = inet:port(Silent),
    #{<<"checks">> := Checks} = doctor([{epmd_port, Port} | Config], "", 0),
    ?assertMatch(#{<<"status">> := <<"warning">>, <<"found">> := <<"does not answer: timeout">>}, check(<<"epmd">>, Checks)),
    ok = gen_tcp:close(Silent).

doctor(Config, Before, Status) ->
    {Status, Out, ""} = shell(Config, [Before, "\"$BEAMWAY\" doctor --json"]),
    jiffy:decode(Out, [return_maps]).

check(Name, Checks) ->
    [Check] = [C || #{<<"name">> := N} = C <- Checks, N =:= Name],
    Check.

%%% Helpers

root() ->
    Ebin = filename:dirname(code:which(beamway_cli)),
    filename:dirname(filename:dirname(filename:dirname(Ebin))).

%% A checkout that shares the files of ours, so that one can be missing.
copy_of_checkout(Config, Name) ->
    Root = filename:join(?config(priv_dir, Config), Name),
    App = filename:join(Root, "apps/beamway"),
    ok = filelib:ensure_dir(filename:join(App, "x")),
    ok = filelib:ensure_dir(filename:join(Root, "bin/x")),
    {ok, _} = file:copy(?config(command, Config), filename:join(Root, "bin/beamway")),
    ok = file:change_mode(filename:join(Root, "bin/beamway"), 8#755),
    [ok = file:make_symlink(filename:join([?config(root, Config), "apps/beamway", Folder]), filename:join(App, Folder))
     || Folder <- ["src", "ebin", "priv"]],
    Root.

cookie_file(Config, Text) ->
    File = filename:join(?config(priv_dir, Config), "cookie"),
    ok = write_secret(File, Text),
    File.

write_secret(File, Text) ->
    _ = file:delete(File),
    ok = file:write_file(File, Text),
    file:change_mode(File, 8#400).

quoted(Text) -> ["'", Text, "'"].

run(Config, Words) -> shell(Config, ["\"$BEAMWAY\" ", Words]).

%% Status, output and error of a command line of bash.
shell(Config, Line) ->
    ErrorFile = filename:join(?config(priv_dir, Config), "stderr"),
    Port = open_port({spawn_executable, os:find_executable("bash")},
                     [{args, ["-c", ["exec 2> ", quoted(ErrorFile), "; ", Line]]}, {env, environment(Config)},
                      exit_status, use_stdio]),
    {Status, Out} = collect(Port, []),
    {ok, Error} = file:read_file(ErrorFile),
    {Status, Out, unicode:characters_to_list(Error)}.

environment(Config) ->
    [{"SLURM_STEP_ID", false}, {"BEAMWAY", ?config(command, Config)}, {"HOME", ?config(home, Config)}, {"BEAMWAY_LINKS", false},
     {"BEAMWAY_RING_BYTES", false}, {"XDG_CONFIG_HOME", false},
     {"ERL_EPMD_PORT", integer_to_list(?config(epmd_port, Config))}].

collect(Port, Data) ->
    receive
        {Port, {data, More}} -> collect(Port, [Data, More]);
        {Port, {exit_status, Status}} -> {Status, unicode:characters_to_list(iolist_to_binary(Data))}
    after ?RUN_MS ->
        ct:fail({no_end_after_ms, ?RUN_MS, Data})
    end.

%% Runs Fun with the names of nodes that run the carrier and are all connected.
with_nodes(Config, Number, Fun) ->
    All = [start(Config, ["-proto_dist", "beamway"], #{}) || _ <- lists:seq(1, Number)],
    try
        Nodes = [Node || {_, _, Node} <- All],
        [true = peer:call(Pid, net_kernel, connect_node, [Node]) || {_, Pid, _} <- All, Node <- Nodes],
        Fun(Nodes)
    after
        [stop(One) || One <- All]
    end.

start(Config, Arguments, Options) ->
    Code = case Options of
        #{code := none} -> [];
        _ -> ["-pa", filename:dirname(code:which(beamway_cli))]
    end,
    Own = maps:with([longnames, host], Options),
    {ok, Pid, Node} = peer:start(Own#{name => peer:random_name("beamway_cli"), connection => standard_io,
                                      exec => {hd(beamway_peer:erl()), tl(beamway_peer:erl())}, args => Code ++ Arguments, env => environment(Config)}),
    {started, Pid, Node}.

stop({started, Pid, _}) -> peer:stop(Pid).

free_port() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Port.

%% A host's name may stand for another address of the loopback (127.0.1.1 on Debian), where nodes then ask epmd.
own_addresses() ->
    {ok, Host} = inet:gethostname(),
    Named = case inet:getaddr(Host, inet) of
        {ok, Address} -> [inet:ntoa(Address)];
        {error, _} -> []
    end,
    lists:join(",", lists:usort(["127.0.0.1" | Named])).

can_connect(Port) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, [], 1000) of
        {ok, Socket} -> gen_tcp:close(Socket), true;
        {error, _} -> false
    end.

until(Condition) -> until(Condition, erlang:monotonic_time(millisecond) + 10000).

until(Condition, Deadline) ->
    case Condition() of
        true -> ok;
        false ->
            true = erlang:monotonic_time(millisecond) < Deadline,
            timer:sleep(20),
            until(Condition, Deadline)
    end.
