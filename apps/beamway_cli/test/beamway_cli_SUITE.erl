%% SPDX-License-Identifier: Apache-2.0
%% @doc The `beamway' command itself: what its launcher finds and rejects, its arguments and texts, and `pipe', which does not need a node. The
%% commands that examine a host or query nodes have separate suites, `beamway_cli_*_SUITE'.
-module(beamway_cli_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").
-include_lib("kernel/include/file.hrl").

-export([all/0, suite/0]).
-export([version/1, help/1, keygen/1, usage_errors/1, names_of_no_node/1, missing_library/1, result_of_an_overlay/1, broken_pipe/1, full_output/1, closed_descriptors/1, symbolic_link/1, path_with_space/1,
         not_built/1, no_benchmarks/1, no_erl/1, own_flags_are_ignored/1, hostile_folder/1, lost_folder/1, relative_libraries/1, completion_and_manual/1, completion_of_strange_names/1, zsh_completion/1, pipe_commands/1, pipe_options/1, pipe_receiver/1]).

-import(beamway_command, [run/2, shell/2, quoted/1, copy_of_checkout/2]).

suite() -> [{timetrap, {minutes, 5}}, {ct_hooks, [beamway_command]}].

all() ->
    [version, help, keygen, usage_errors, names_of_no_node, missing_library, result_of_an_overlay, broken_pipe, full_output, closed_descriptors, symbolic_link, path_with_space, not_built, no_benchmarks, no_erl,
     own_flags_are_ignored, hostile_folder, lost_folder, relative_libraries, completion_and_manual, completion_of_strange_names, zsh_completion, pipe_commands, pipe_options, pipe_receiver].

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
     end || Command <- ["demo", "bench", "links", "top", "why", "fault", "report", "attach", "choose", "drain", "node", "keygen", "doctor"]],
    ok.

%% Nobody else can read the files that the command creates, whatever the umask is, and it never overwrites a file.
keygen(Config) ->
    [One, Two, Cookie, Both] = [filename:join(?config(priv_dir, Config), Name) || Name <- ["one.key", "two.key", "cookie", "both.key"]],
    [{0, _, ""} = shell(Config, ["umask 0; \"$BEAMWAY\" keygen ", Words]) || Words <- [quoted(One), quoted(Two), ["--cookie ", quoted(Cookie)]]],
    [{ok, #file_info{mode = 8#100600}} = file:read_file_info(File) || File <- [One, Two, Cookie]],
    ?assertMatch({1, "", "beamway: keygen: " ++ _}, run(Config, ["keygen ", quoted(One)])),
    {0, "", ""} = shell(Config, ["cat ", quoted(One), " ", quoted(Two), " > ", quoted(Both)]),
    {ok, [_, _]} = beamway_encrypt:of_file(Both),
    {ok, [#{key := Key}]} = beamway_encrypt:of_file(One),
    {ok, [#{key := Other}]} = beamway_encrypt:of_file(Two),
    ?assertNotEqual(Key, Other),
    {0, Printed, ""} = run(Config, "keygen --cookie"),
    ?assertMatch({match, _}, re:run(Printed, "^[0-9a-f]{64}\n$")).

%% A single line names the missing library and the remedy.
missing_library(Config) ->
    Measured = filename:join(?config(priv_dir, Config), "measured.json"),
    ok = file:write_file(Measured, "{}"),
    [begin
         Command = ["erl -noinput -boot no_dot_erlang -pa ", [[quoted(test_support:file("apps/" ++ App ++ "/ebin")), " "] || App <- ["beamway_cli", "placement"]],
                    "-eval 'code:del_path(", Library, "), beamway_cli:main().' -extra ", Words, " 2>&1; echo $?"],
         ?assertMatch({match, _}, re:run(os:cmd(lists:flatten(Command)),
                                         ["^beamway: the Erlang library ", Library, " is not installed; install it \\(Debian: erlang-", Library, "\\)[^\n]*\n1\n$"]))
     end || {Library, Words} <- [{"getopt", "links"}, {"jiffy", ["topology show ", quoted(Measured)]}]],
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
                                  {"why", "which node went down"},
                                  {"fault", "on the way to which node"},
                                  {"fault b", "which fault\\? Expected one of --delay-ms"},
                                  {"fault b --cut sideways", "--cut \"sideways\": expected in, out or both"},
                                  {"fault b --delay-ms=-1", "--delay-ms -1: expected milliseconds from 0 to 10000"},
                                  {"fault b --delay-ms soon", "--delay-ms \"soon\": expected milliseconds"},
                                  {"fault b --rate-bytes 10", "--rate-bytes 10: expected bytes a second from 1000"},
                                  {"fault b --end --cut in", "--end ends the fault"},
                                  {"top --interval 0", "--interval 0: expected seconds"},
                                  {"top --sort size", "--sort size: expected one of node, link"},
                                  {"top --count 0", "--count: expected a number from 1"},
                                  {"node", "which name\\? Expected --name"},
                                  {"node --name 'a b'", "--name 'a b': expected name or name@host"},
                                  {"node --name a --connect b", "--connect 'b': expected name@host"},
                                  {"node --name a --measure fast", "--measure 'fast': expected auto"},
                                  {"node --name a --carrier pigeon", "--carrier 'pigeon': expected beamway"},
                                  {"keygen", "where to\\? Expected"},
                                  {"links --cookie-file", "cookie-file"},
                                  {"links ''", "^beamway: links: NODE '': expected a value that is not empty; see: beamway links --help\n$"},
                                  {"links --cookie-file=", "^beamway: links: --cookie-file '': expected"},
                                  {"links --via ''", "^beamway: links: '' is not a valid host for ssh"},
                                  {"links --via= a", "^beamway: links: '' is not a valid host for ssh"},
                                  {"attach @", "^beamway: attach: '@' is not a valid host for ssh"},
                                  {"attach me@", "^beamway: attach: 'me@' is not a valid host for ssh"},
                                  {"attach a:", "^beamway: attach: '' is not a node name"},
                                  {"attach a:b@", "^beamway: attach: 'b@' is not a node name"},
                                  {"why '' a", "^beamway: why: PEER '': expected"},
                                  {"fault '' --end", "^beamway: fault: PEER '': expected"},
                                  {"report --out ''", "^beamway: report: --out '': expected"},
                                  {"choose x --node ''", "^beamway: choose: --node '': expected"},
                                  {"drain a --timeout ''", "timeout"},
                                  {"node --name a --start ''", "^beamway: node: --start '': expected"},
                                  {"console --token-file ''", "^beamway: console: --token-file '': expected"},
                                  {"topology measure --out=", "^beamway: topology measure: --out '': expected"},
                                  {"topology show ''", "^beamway: topology show: the argument '': expected"},
                                  {"bench rpc --repeats 0 --save ''", "^beamway: bench rpc: --save '': expected a value that is not empty; see: beamway bench rpc --help\n$"},
                                  {"bench report --out= extra", "^beamway: bench report: --out '': expected"},
                                  {"soak --minutes 0 --save ''", "^beamway: soak: --save '': expected"},
                                  {"demo --save '' extra", "^beamway: demo: --save '': expected"},
                                  {"doctor a b", "unexpected word 'b'"}]],
    [?assertEqual({2, "", "beamway: ERL_EPMD_PORT is '" ++ Bad ++ "'; expected a port from 1 to 65535\n"},
                  shell(Config, ["ERL_EPMD_PORT='", Bad, "' \"$BEAMWAY\" ", Words]))
     || Bad <- ["abc", "99999", ""], Words <- ["links a", "node --name a"]],
    [?assertEqual({2, "", "beamway: a word of the command line is not valid UTF-8 after 'a'; expected UTF-8, as the locale says\n"},
                  shell(Config, ["LC_ALL=C.UTF-8 \"$BEAMWAY\" ", Words]))
     || Words <- ["why $'a\\xff' b", "report $'a\\xc3'", "node --name $'a\\xff'"]],
    [?assertMatch({0, _, ""}, shell(Config, ["ERL_EPMD_PORT=abc \"$BEAMWAY\" ", Words])) || Words <- ["--version", "--help", "help links", "links -h"]],
    ok.

%% Such a name is rejected before the command connects, because OTP would complain about it in a report of its own.
names_of_no_node(Config) ->
    [?assertEqual({1, "", "beamway: " ++ Command ++ ": '" ++ Name ++ "' is not a node name; expected name or name@host\n"}, run(Config, Words))
     || {Command, Name, Words} <- [{"why", "sr est", "why x 'sr est'"}, {"links", "a@b c", "links 'a@b c'"}, {"doctor", "a@b@c", "doctor a@b@c"}]],
    ok.

%% A result that is saved outside the checkout would disappear with the overlay. The command reports this immediately, even without privileges or
%% packages.
result_of_an_overlay(Config) ->
    [begin
         {2, "", Error} = shell(Config, ["unset IN_OVERLAY; \"$BEAMWAY\" bench http --repeats 0 ", Save]),
         ?assertMatch({Save, {match, _}}, {Save, re:run(Error, ["^beamway: bench: --save '", File, "': this bench runs in an overlay"])})
     end || {Save, File} <- [{"--save /tmp/x.json", "/tmp/x.json"}, {"--save=/tmp/x.json", "/tmp/x.json"}, {"--save ''", ""}, {"--save=", ""}]],
    ok.

broken_pipe(Config) ->
    ?assertMatch({0, _, ""}, shell(Config, "set -o pipefail; \"$BEAMWAY\" --help | head -n 1")),
    ?assertMatch({0, "", ""}, shell(Config, "set -o pipefail; \"$BEAMWAY\" doctor --json | true")).

%% A full disk is reported differently from a reader that closes the pipe.
full_output(Config) ->
    [begin
         {Status, "", Error} = shell(Config, ["\"$BEAMWAY\" ", Words, " > /dev/full"]),
         ?assertEqual({Words, 1}, {Words, Status}),
         ?assertMatch({match, _}, re:run(Error, "standard output"))
     end || Words <- ["--help", "topology --help", "console --help"]],
    ok.

%% A closed standard descriptor is not reused for another file, and output is not lost silently.
closed_descriptors(Config) ->
    [begin
         {Status, Out, Error} = shell(Config, ["\"$BEAMWAY\" --version ", lists:join(" ", Closed)]),
         case lists:member(">&-", Closed) of
             true -> ?assertEqual({Closed, 1, ""}, {Closed, Status, Out});
             false -> ?assertMatch({Closed, 0, "beamway " ++ _}, {Closed, Status, Out})
         end,
         lists:member("2>&-", Closed) orelse Status =:= 0 orelse ?assertMatch({match, _}, re:run(Error, "standard output"))
     end || A <- ["", "<&-"], B <- ["", ">&-"], C <- ["", "2>&-"], Closed <- [[A, B, C]]],
    ok.

symbolic_link(Config) ->
    Link = filename:join(?config(priv_dir, Config), "beamway_link"),
    ok = file:make_symlink(?config(command, Config), Link),
    {0, "beamway " ++ _, ""} = shell(Config, quoted(Link) ++ " --version").

path_with_space(Config) ->
    Root = copy_of_checkout(Config, "with space"),
    {0, "beamway " ++ _, ""} = shell(Config, quoted(filename:join(Root, "bin/beamway")) ++ " --version").

not_built(Config) ->
    Root = copy_of_checkout(Config, "not_built"),
    ok = file:delete(filename:join(Root, "apps/beamway_cli/ebin")),
    {1, "", Error} = shell(Config, quoted(filename:join(Root, "bin/beamway")) ++ " --version"),
    ?assertMatch({match, _}, re:run(Error, "not built yet. Run: make -C ")).

%% `make build' alone builds the command, but not the benchmarks.
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

%% Modules in the current directory are never run, even if they have the names of modules that are loaded before or after main/0, nor are they run
%% on nodes that the command starts. Arguments may still name files in that directory.
hostile_folder(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "hostile"),
    Ran = filename:join(?config(priv_dir, Config), "ran"),
    ok = test_support:put_hostile([net_kernel, getopt, jiffy], Folder, Ran),
    ok = file:write_file(filename:join(Folder, "measured.json"), "{}"),
    In = ["cd ", quoted(Folder), "; \"$BEAMWAY\" "],
    {1, "", _} = shell(Config, [In, "links nosuch"]),
    {1, "", Error} = shell(Config, [In, "topology show measured.json"]),
    ?assertMatch({match, _}, re:run(Error, "measured.json")),
    {1, "", _} = shell(Config, ["ulimit -f 100; ", In, "doctor"]),
    {0, "", _} = shell(Config, [In, "topology measure --start 2 --mode quiet --batches 3"]),
    ?assertEqual({error, enoent}, file:read_file_info(Ran)).

%% The shell may print a message first.
lost_folder(Config) ->
    Folder = quoted(filename:join(?config(priv_dir, Config), "deleted")),
    {1, "", Error} = shell(Config, ["mkdir ", Folder, "; cd ", Folder, "; rmdir ", Folder, "; \"$BEAMWAY\" links"]),
    ?assertMatch({match, _}, re:run(Error, "(?m)^beamway: the current folder has been deleted; enter another one$")),
    %% The shell drops the trailing newline of this name. root may enter all other directories.
    Unnamed = quoted(filename:join(?config(priv_dir, Config), "unnamed\n")),
    {1, "", Other} = shell(Config, ["mkdir ", Unnamed, "; cd ", Unnamed, "; \"$BEAMWAY\" links"]),
    ?assertMatch({match, _}, re:run(Other, "(?m)^beamway: the current folder cannot be entered by its path; start in another one$")).

%% Files in the current directory that are named in the user's variables are still found.
relative_libraries(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "libraries"),
    Erl = filename:join(Folder, "erl"),
    ok = filelib:ensure_dir(Erl),
    ok = file:write_file(Erl, "#!/bin/sh\necho \"$ERL_LIBS\"\necho \"$BEAMWAY_ERL\"\n"),
    ok = file:change_mode(Erl, 8#755),
    ?assertEqual({0, lists:flatten([Folder, "/a:/b:", Folder, "/c d\n", Folder, "/./erl\n"]), ""},
                 shell(Config, ["cd ", quoted(Folder), "; ERL_LIBS='a:/b:c d' BEAMWAY_ERL=./erl \"$BEAMWAY\" links"])).

%% The manual page and both completions list every command, and every option in a command's help.
completion_and_manual(Config) ->
    {0, Summary, ""} = run(Config, "-h"),
    {match, Lines} = re:run(Summary, "(?m)^  ([a-z]+)", [global, {capture, all_but_first, list}]),
    Commands = lists:append(Lines),
    ?assert(length(Commands) > 9),
    %% The manual page leaves the options of topology to the command's own help.
    [begin
         {ok, Text} = file:read_file(filename:join([?config(root, Config), "bin", File])),
         Plain = binary:replace(Text, <<"\\-">>, <<"-">>, [global]),
         [?assertMatch({File, Word, {match, _}}, {File, Word, re:run(Plain, ["[^a-z-]", Word, "[^a-z-]"])})
          || Word <- Commands ++ lists:append([long_options(Config, Command) || Command <- ["demo", "soak", "links", "top", "why", "fault", "report", "attach", "choose", "drain", "node", "keygen", "doctor", "console"]
                                                                      ++ ["topology " ++ Each || File =/= "man/beamway.1", Each <- ["measure", "show", "import", "export"]]])]
     end || File <- ["completion/beamway", "completion/_beamway", "man/beamway.1"]],
    Folder = quoted(filename:join([?config(root, Config), "bin", "completion"])),
    ?assertEqual({0, "top topology\n", ""},
                 shell(Config, ["cd ", Folder, "; . ./beamway; COMP_WORDS=(beamway to) COMP_CWORD=1; _beamway; printf '%s\\n' \"${COMPREPLY[@]}\" | LC_ALL=C sort | paste -sd' '"])),
    ?assertEqual({0, "--cluster\n--count\n", ""},
                 shell(Config, ["cd ", Folder, "; . ./beamway; COMP_WORDS=(beamway top --c) COMP_CWORD=2; _beamway; printf '%s\\n' \"${COMPREPLY[@]}\" | grep -v file"])),
    values_of_options(Config, Folder),
    benchmarks(Config, Folder).

%% Both completions offer exactly the values that the command names when it gets a different one.
values_of_options(Config, Folder) ->
    Tree = filename:join(?config(priv_dir, Config), "tree.conf"),
    ok = file:write_file(Tree, "SwitchName=s Nodes=h[1-2]\n"),
    {ok, Script} = file:read_file(filename:join([?config(root, Config), "bin", "completion", "_beamway"])),
    [begin
         {2, "", Error} = run(Config, [Command, " ", Words, " ", Option, " none"]),
         {match, [Named]} = re:run(Error, "expected one of ([a-z0-9, ]+)", [{capture, all_but_first, list}]),
         {0, Bash, ""} = shell(Config, ["cd ", Folder, "; . ./beamway; COMP_WORDS=(beamway ", Command, " ", Option, " ''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _beamway; echo \"${COMPREPLY[@]}\""]),
         {match, [Zsh]} = re:run(Script, [Option, "\\) compadd -- ([^;]*);"], [{capture, all_but_first, list}]),
         Values = lists:usort(string:lexemes(Named, ", ")),
         ?assertEqual({Option, Values, Values}, {Option, lists:sort(string:lexemes(Bash, " \n")), lists:sort(string:lexemes(Zsh, " "))})
     end || {Command, Words, Option} <- [{"top", "", "--sort"}, {"topology import", [quoted(Tree), " --name a"], "--kind"}, {"topology import", [quoted(Tree), " --name a"], "--to"}]].

%% Both completions offer exactly the existing benchmarks. The help and the benchmark page name them.
benchmarks(Config, Folder) ->
    {2, "", Which} = run(Config, "bench"),
    [_, Names] = string:split(string:trim(Which), "There are: "),
    Benchmarks = lists:sort(string:split(Names, ", ", all)),
    {0, Bash, ""} = shell(Config, ["cd ", Folder, "; . ./beamway; COMP_WORDS=(beamway bench '') COMP_CWORD=2; _beamway; echo \"${COMPREPLY[@]}\""]),
    {ok, Script} = file:read_file(filename:join([?config(root, Config), "bin", "completion", "_beamway"])),
    {match, [Zsh]} = re:run(Script, "\\$command == bench \\]\\]; then\n +compadd -- (.*)", [{capture, all_but_first, list}]),
    {0, Help, ""} = run(Config, "bench --help"),
    {ok, Page} = file:read_file(filename:join([?config(root, Config), "bench", "README.md"])),
    Offered = [{"bin/completion/beamway", string:lexemes(Bash, " \n")}, {"bin/completion/_beamway", string:lexemes(Zsh, " ")}],
    Named = [{"beamway_cli_help", Help, "[ ,]~ts[ ,\n]", Benchmarks}, {"bench/README.md", Page, "[ …]~ts(?: --part \\w+)?`", Benchmarks -- ["all"]}],
    ?assertEqual([], [{File, {lacks, Benchmarks -- Words}, {does_not_exist, Words -- Benchmarks}} || {File, Words} <- Offered, lists:sort(Words) =/= Benchmarks]
                     ++ [{File, lacks, Name} || {File, Text, Form, Wanted} <- Named, Name <- Wanted, re:run(Text, io_lib:format(Form, [Name]), [unicode]) =:= nomatch]).

%% Anybody on this host can register a name with epmd, so a completion must not execute it.
completion_of_strange_names(Config) ->
    Names = ["able", "a$(echo${IFS}ran>&2)"],
    Registered = [registered(Config, Name) || Name <- Names],
    {0, Known, ""} = shell(Config, "epmd -names"),
    [?assertNotEqual(nomatch, string:find(Known, Name)) || Name <- Names],
    Hosts = filename:join([?config(home, Config), ".ssh", "known_hosts"]),
    ok = filelib:ensure_dir(Hosts),
    ok = file:write_file(Hosts, [[Name, " ssh-ed25519 A\n"] || Name <- Names]),
    [?assertEqual({Words, {0, "able\n", ""}},
                  {Words, shell(Config, [". ", quoted(filename:join(?config(root, Config), File)), "; COMP_WORDS=(", Words, " a); COMP_CWORD=", Word, "; ", Function, "; echo \"${COMPREPLY[@]}\""])})
     || {File, Function, Words, Word} <- [{"bin/completion/beamway", "_beamway", "beamway links", "2"}, {"rdpipe/completion/rdpipe", "_rdpipe", "rdsend", "1"}]],
    ok = file:delete(Hosts),
    lists:foreach(fun gen_tcp:close/1, Registered).

%% Registers a name with epmd, and returns the connection that keeps it registered.
registered(Config, Name) ->
    {ok, Epmd} = gen_tcp:connect({127, 0, 0, 1}, ?config(epmd_port, Config), [binary, {active, false}]),
    Request = [<<$x, 4000:16, $M, 0, 6:16, 5:16, (length(Name)):16>>, Name, <<0:16>>],
    ok = gen_tcp:send(Epmd, [<<(iolist_size(Request)):16>>, Request]),
    {ok, <<_, 0, _/binary>>} = gen_tcp:recv(Epmd, 0, 20000),
    Epmd.

zsh_completion(Config) ->
    case os:find_executable("zsh") of
        false -> {skip, "zsh is not installed"};
        Zsh ->
            Folder = quoted(filename:join([?config(root, Config), "bin", "completion"])),
            Script = ["cd ", Folder, "; compadd() { print -r -- ${@:#--} }; . ./_beamway; words=(beamway node --carrier b); CURRENT=4; _beamway;",
                      " words=(beamway top --s); CURRENT=3; _beamway"],
            ?assertEqual({0, "beamway beamway6 beamway_tls beamway6_tls inet_tcp\n--via --sort --senders --cluster --interval --count --json --cookie-file --help\n", ""},
                         shell(Config, [Zsh, " -f -c ", "\"", string:replace(string:replace(Script, "$", "\\$", all), "\"", "\\\"", all), "\""])),
            ok
    end.

long_options(Config, Command) ->
    {0, Help, ""} = run(Config, Command ++ " --help"),
    {match, Found} = re:run(Help, "(?m)^  (?:-[a-z], )?(--[a-z-]+)", [global, {capture, all_but_first, list}]),
    lists:append(Found) -- ["--help"].

pipe_commands(Config) ->
    case filelib:is_regular(filename:join(?config(root, Config), "rdpipe/build/bin/rdpipe")) of
        false -> {skip, "rdpipe is not built"};
        true ->
            {0, "rdpipe " ++ _, ""} = run(Config, "pipe --version"),
            {0, "rdsend " ++ _, ""} = run(Config, "pipe send --version"),
            {0, Help, ""} = run(Config, "pipe --help"),
            ?assertEqual({0, Help, ""}, run(Config, "help pipe")),
            {0, "rdcp " ++ _, ""} = run(Config, "pipe cp --version"),
            ?assertEqual({0, "OLLEH\n", ""}, shell(Config, "echo hello | \"$BEAMWAY\" pipe :'tr a-z A-Z' :rev")),
            Root = copy_of_checkout(Config, "no_pipe"),
            {1, "", Error} = shell(Config, quoted(filename:join(Root, "bin/beamway")) ++ " pipe --version"),
            ?assertMatch({match, _}, re:run(Error, "rdpipe is not here"))
    end.

%% Each `pipe' command accepts the long options in its help. Its manual page has the same options, and the completion offers them, including all
%% long ones.
pipe_options(Config) ->
    Folder = filename:join(?config(root, Config), "rdpipe"),
    case filelib:is_regular(filename:join(Folder, "build/bin/rdpipe")) of
        false -> {skip, "rdpipe is not built"};
        true -> [pipe_options(Config, Folder, Name) || Name <- ["rdpipe", "rdcp", "rdsend", "rdrecv"]], ok
    end.

pipe_options(Config, Folder, Name) ->
    {0, Help, ""} = shell(Config, [quoted(filename:join([Folder, "build/bin", Name])), " --help"]),
    {ok, Source} = file:read_file(filename:join([Folder, "man", Name ++ ".1"])),
    Told = options(Help, "(?m)^  (-.*?)(?:   ?[a-z]|$)"),
    ?assert(lists:member("--carrier", Told)),
    %% The empty name is a prefix of every option, so getopt lists all that the command accepts.
    {2, "", Ambiguous} = shell(Config, ["LC_ALL=C ", quoted(filename:join([Folder, "build/bin", Name])), " --="]),
    Taken = options(Ambiguous, "possibilities:(.*)"),
    ?assertEqual({Name, not_told(Name), []}, {Name, Taken -- Told, [Option || "--" ++ _ = Option <- Told -- Taken]}),
    ?assertEqual({Name, Told}, {Name, options(re:replace(Source, "\\\\(?:f[A-Z])?", "", [global]), "(?m)^\\.TP\n(.*)$")}),
    {0, Words, ""} = shell(Config, [". ", quoted(filename:join(Folder, "completion/rdpipe")), "; COMP_WORDS=(", quoted(filename:join([Folder, "build/bin", Name])), " -) COMP_CWORD=1; _rdpipe; echo \"${COMPREPLY[@]}\""]),
    Offered = lists:sort(string:lexemes(Words, " \n")),
    ?assertEqual({Name, [], []}, {Name, Offered -- Told, [Option || "--" ++ _ = Option <- Told -- Offered]}).

%% If an option that the sender decides for both sides is given to the receiver, the error names it.
pipe_receiver(Config) ->
    Command = filename:join(?config(root, Config), "rdpipe/build/bin/rdrecv"),
    case filelib:is_regular(Command) of
        false -> {skip, "rdpipe is not built"};
        true ->
            [?assertEqual({2, "", "rdrecv: " ++ Option ++ ": rdsend decides this for both sides; give rdsend the option\ntry 'rdrecv --help'\n"},
                          shell(Config, ["RDPIPE_KEY=0123456789abcdef ", quoted(Command), " --wait 1 ", Option, " 0"]))
             || Option <- not_told("rdrecv") ++ ["--block=4K"]], ok
    end.

%% These options are not in the help, because a command uses them to call itself on another host. rdrecv rejects them.
not_told("rdpipe") -> ["--agent"];
not_told("rdcp") -> ["--have", "--host", "--list", "--names", "--of", "--pack", "--show", "--target", "--unpack"];
not_told("rdrecv") -> ["--block", "--congestion", "--no-checksum", "--rate", "--zstd"];
not_told(_) -> [].

%% Returns the options in the lines that match the expression.
options(Text, Lines) ->
    {match, Heads} = re:run(Text, Lines, [global, {capture, all_but_first, list}]),
    lists:usort(lists:append([lists:append(Found) || Head <- Heads, {match, Found} <- [re:run(Head, "(?<![a-zA-Z[-])(--[a-z][a-z0-9-]*|-[a-zA-Z](?![a-zA-Z]))", [global, {capture, all_but_first, list}])]])).
