%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway links': what it shows, and what it reports if something is wrong with a node, its cookie, its carrier or epmd.
-module(beamway_cli_links_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([links_as_table/1, links_as_json/1, links_of_the_only_node/1, links_several_nodes/1, links_no_node/1, links_not_running/1,
         links_no_epmd/1, links_silent_epmd/1, links_wrong_cookie/1, links_cookie_file/1, links_without_beamway/1, links_of_a_strange_node/1,
         links_unreachable/1, links_stopped/1, links_open_cookie/1, links_without_home/1, links_long_names/1, links_over_tls/1, why/1, fault/1, report/1]).

-import(beamway_command, [run/2, shell/2, quoted/1, cookie_file/2, write_secret/2, with_nodes/3, start/3, stop/1,
                          compiled/3]).

suite() -> [{timetrap, {minutes, 5}}, {ct_hooks, [beamway_command]}].

all() ->
    [links_as_table, links_as_json, links_of_the_only_node, links_several_nodes, links_no_node, links_not_running, links_no_epmd, links_silent_epmd,
     links_wrong_cookie, links_cookie_file, links_without_beamway, links_of_a_strange_node, links_unreachable, links_stopped, links_open_cookie, links_without_home,
     links_long_names, links_over_tls, why, fault, report].

links_as_table(Config) ->
    with_nodes(Config, 2, fun([A, B]) ->
        {0, Out, ""} = run(Config, "links " ++ atom_to_list(A)),
        [Heading, Row] = string:lexemes(Out, "\n"),
        ?assertMatch({match, _}, re:run(Heading, "^NODE +LINK +BYTES IN +BYTES OUT +LOAD +WHY$")),
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

why(Config) ->
    {1, "", Nobody} = run(Config, "why b"),
    ?assertMatch({match, _}, re:run(Nobody, "no node is registered with epmd")),
    with_nodes(Config, 2, fun([A, B]) ->
        [Short, _] = string:split(atom_to_list(B), "@"),
        {0, Out, ""} = run(Config, ["why ", Short, " ", atom_to_list(A)]),
        ?assertMatch({match, _}, re:run(Out, [atom_to_list(B), ", (shm|tcp): up since .*\nthe link is up\n +.* ago +the link came up"]), Out),
        {0, Json, ""} = run(Config, ["why --json ", atom_to_list(B), " ", atom_to_list(A)]),
        ?assertMatch([#{<<"cause">> := <<"up">>, <<"seconds">> := _, <<"tens">> := _}], jiffy:decode(Json, [return_maps])),
        {1, "", Unknown} = run(Config, ["why nobody@nowhere ", atom_to_list(A)]),
        ?assertMatch({match, _}, re:run(Unknown, "has had no link to nobody@nowhere within the last hour"), Unknown),
        {1, "", Prefix} = run(Config, ["why nobody ", atom_to_list(A)]),
        ?assertMatch({match, _}, re:run(Prefix, "no link to a node 'nobody'"), Prefix)
    end).

%% The command sets, shows and clears a fault. A node that does not allow faults reports that.
fault(Config) ->
    {A, NodeA} = start(Config, ["-proto_dist", "beamway", "-beamway", "allow_faults", "true"], #{}),
    {B, NodeB} = start(Config, ["-proto_dist", "beamway"], #{}),
    true = peer:call(A, net_kernel, connect_node, [NodeB]),
    [NameA, NameB] = [atom_to_list(Node) || Node <- [NodeA, NodeB]],
    try
        {0, Set, ""} = run(Config, ["fault ", NameB, " ", NameA, " --delay-ms 7 --for-ms 60000"]),
        ?assertEqual(lists:flatten([NameA, ": fault on the way to ", NameB, ": a delay of 7 ms each way\n"]), Set),
        {0, Links, ""} = run(Config, ["links ", NameA]),
        ?assertMatch({match, _}, re:run(Links, "; FAULT: a delay of 7 ms each way, for [0-9.]+ s more")),
        {0, Json, ""} = run(Config, ["links --json ", NameA]),
        ?assertMatch(#{<<"links">> := [#{<<"fault">> := #{<<"delay_ms">> := 7, <<"left_ms">> := _}}]}, jiffy:decode(Json, [return_maps])),
        {0, Ended, ""} = run(Config, ["fault --end --json ", NameB, " ", NameA]),
        ?assertMatch(#{<<"fault">> := null}, jiffy:decode(Ended, [return_maps])),
        ?assertEqual([], peer:call(A, beamway, faults, [])),
        {1, "", Refused} = run(Config, ["fault ", NameA, " ", NameB, " --cut both"]),
        ?assertMatch({match, _}, re:run(Refused, "^beamway: fault: .*BEAMWAY_ALLOW_FAULTS=true")),
        {1, "", Unknown} = run(Config, ["fault nobody@nowhere ", NameA, " --cut both"]),
        ?assertMatch({match, _}, re:run(Unknown, "has no link to nobody@nowhere"))
    after
        [stop(One) || One <- [{A, NodeA}, {B, NodeB}]]
    end.

report(Config) ->
    File = filename:join(?config(priv_dir, Config), "report.json"),
    with_nodes(Config, 2, fun([A, B]) ->
        Words = ["report ", atom_to_list(A), " --out ", quoted(File)],
        ?assertEqual({0, File ++ "\n", ""}, run(Config, Words)),
        {ok, Text} = file:read_file(File),
        ?assertMatch(#{<<"beamway">> := _, <<"host">> := #{<<"checks">> := [_ | _]}, <<"ends">> := [_ | _], <<"links">> := #{<<"links">> := [_]}, <<"options">> := #{<<"resume_ms">> := <<"15000">>}},
                     jiffy:decode(Text, [return_maps])),
        ?assertEqual("600\n", os:cmd("stat -c %a " ++ File)),
        [?assertMatch({Name, nomatch}, {Name, binary:match(Text, Name)}) || Name <- [<<"beamway_cli_suite">>]], % the cookie
        {1, "", Exists} = run(Config, Words),
        ?assertMatch({match, _}, re:run(Exists, "file already exists; give another name with --out"), Exists),
        ok = file:delete(File),
        {0, _, ""} = run(Config, [Words, " --hide-names"]),
        {ok, Hidden} = file:read_file(File),
        {ok, Host} = inet:gethostname(),
        [?assertMatch({Name, nomatch}, {Name, binary:match(Hidden, Name)}) || Name <- [atom_to_binary(A), atom_to_binary(B), iolist_to_binary(["@", Host]), <<"127.0.0.1">>]]
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
    Closed = [{epmd_port, test_support:free_port()} | Config],
    [begin
         {1, "", Error} = run(Closed, Words),
         ?assertMatch({match, _}, re:run(Error, "epmd on \\S+ does not answer"))
     end || Words <- ["links", "links nosuch"]],
    ok.

%% A program accepts the connection on epmd's port but sends nothing, like a stopped epmd.
links_silent_epmd(Config) ->
    {ok, Silent} = gen_tcp:listen(0, [{active, false}]),
    {ok, Port} = inet:port(Silent),
    {1, "", Error} = run([{epmd_port, Port} | Config], "links"),
    ?assertMatch({match, _}, re:run(Error, "^beamway: links: epmd on localhost does not answer \\(timeout\\)")),
    ok = gen_tcp:close(Silent).

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
        {_, Node} = Started,
        {0, Out, ""} = run(Config, ["links --cookie-file ", quoted(File), " ", atom_to_list(Node)]),
        ?assertMatch({match, _}, re:run(Out, "connected to no other node")),
        %% The home directory does not matter: there may be none, or one in which no cookie can be created.
        [{0, Out, ""} = shell(Config, [Home, " \"$BEAMWAY\" links --cookie-file=", quoted(File), " ", atom_to_list(Node)]) || Home <- ["unset HOME;", "HOME=/proc"]],
        {1, "", Error} = run(Config, "links --cookie-file /nonexistent " ++ atom_to_list(Node)),
        ok = file:change_mode(File, 8#604),
        %% The file can be read by all users, like the secrets of containers, whose modes cannot be changed.
        {0, Out, Open} = run(Config, ["links --cookie-file ", quoted(File), " ", atom_to_list(Node)]),
        ?assertMatch({match, _}, re:run(Open, "^beamway: warning: every user of this host can read the cookie file '.*cookie' [^\n]*\n$")),
        ?assertMatch({match, _}, re:run(Error, "cannot read the cookie file '/nonexistent': no such file")),
        [begin
             Command = ["links --cookie-file ", quoted(cookie_file(Config, Content)), " ", atom_to_list(Node)],
             {1, "", Why} = run(Config, Command),
             ?assertMatch({match, _}, re:run(Why, ["^beamway: links: the cookie file '.*' ", Expected]))
         end || {Content, Expected} <- [{" \n", "is empty"}, {lists:duplicate(256, $c), "holds no cookie"}, {[255], "holds no cookie"}]]
    after
        stop(Started)
    end.

%% The node does not have our code.
links_without_beamway(Config) ->
    Started = start(Config, [], #{code => none}),
    try
        {_, Node} = Started,
        {1, "", Error} = run(Config, "links " ++ atom_to_list(Node)),
        ?assertMatch({match, _}, re:run(Error, "has no Beamway"))
    after
        stop(Started)
    end.

%% The node has an unrelated module called `beamway' that does not answer or fails.
links_of_a_strange_node(Config) ->
    Started = start(Config, [], #{code => none}),
    try
        {Pid, Node} = Started,
        [begin
             {module, beamway} = peer:call(Pid, code, load_binary, [beamway, "beamway.erl", compiled(beamway, links, Body)]),
             {1, "", Error} = run(Config, "links " ++ atom_to_list(Node)),
             ?assertMatch({match, _}, re:run(Error, Expected))
         end || {Body, Expected} <- [{"receive never -> [] end", "did not answer: timeout"},
                                     {"error(not_yours)", "answered with an error: .*not_yours"}]]
    after
        stop(Started)
    end.

%% epmd knows the node, but nothing listens on its port any more.
links_unreachable(Config) ->
    {ok, Epmd} = gen_tcp:connect({127, 0, 0, 1}, ?config(epmd_port, Config), [binary, {active, false}]),
    Port = test_support:free_port(),
    Request = <<$x, Port:16, $M, 0, 6:16, 5:16, 4:16, "gone", 0:16>>,
    ok = gen_tcp:send(Epmd, <<(byte_size(Request)):16, Request/binary>>),
    {ok, <<_, 0, _/binary>>} = gen_tcp:recv(Epmd, 0, 20000),
    {1, "", Error} = run(Config, "links gone"),
    ?assertMatch({match, _}, re:run(Error, ["registered with epmd at port ", integer_to_list(Port), ", which cannot be reached: connection refused"])),
    ok = gen_tcp:close(Epmd).

%% The kernel accepts the connection on the node's behalf.
links_stopped(Config) ->
    Started = {Pid, Node} = start(Config, ["-proto_dist", "beamway"], #{}),
    OsPid = peer:call(Pid, os, getpid, []),
    try
        "" = os:cmd("kill -STOP " ++ OsPid),
        {1, "", Error} = run(Config, "links " ++ atom_to_list(Node)),
        ?assertMatch({match, _}, re:run(Error, "^beamway: links: node \\S+ did not answer within 7 s, although its port is open: it is stopped or overloaded"))
    after
        "" = os:cmd("kill -CONT " ++ OsPid),
        stop(Started)
    end.

%% OTP does not accept a cookie from a file that others may read.
links_open_cookie(Config) ->
    Home = filename:join(?config(priv_dir, Config), "open_home"),
    Cookie = filename:join(Home, ".erlang.cookie"),
    ok = filelib:ensure_dir(Cookie),
    ok = write_secret(Cookie, "beamway_cli_suite"),
    ok = file:change_mode(Cookie, 8#644),
    with_nodes(Config, 1, fun([A]) ->
        {1, "", Error} = run([{home, Home} | Config], "links " ++ atom_to_list(A)),
        ?assertMatch({match, _}, re:run(Error, "beamway: links: cannot become a node: .*must be accessible by owner only\n$")),
        ?assertEqual(nomatch, re:run(Error, "SUPERVISOR REPORT"))
    end).

%% Imitates a service supervisor that does not set HOME.
links_without_home(Config) ->
    ?assertEqual({1, "", "beamway: links: cannot become a node: HOME is not set, and Erlang looks for the cookie there (~/.erlang.cookie)\n"},
                 shell(Config, "unset HOME; \"$BEAMWAY\" links a")).

links_long_names(Config) ->
    Started = start(Config, ["-proto_dist", "beamway"], #{longnames => true, host => "127.0.0.1"}),
    try
        {_, Node} = Started,
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
        {_, Node} = Started,
        Ask = ["\"$BEAMWAY\" links ", atom_to_list(Node)],
        %% The user's own variables may have any name.
        {0, Out, ""} = shell(Config, ["export node=here asks=no screen=yes; BEAMWAY_TLS_OPTFILE=", quoted(File), " ", Ask]),
        ?assertMatch({match, _}, re:run(Out, "connected to no other node")),
        {1, "", Error} = shell(Config, Ask),
        ?assertMatch({match, _}, re:run(Error, "BEAMWAY_TLS_OPTFILE"))
    after
        stop(Started)
    end,
    with_nodes(Config, 1, fun([Plain]) ->
        {1, "", Silent} = shell(Config, ["BEAMWAY_TLS_OPTFILE=", quoted(File), " \"$BEAMWAY\" links ", atom_to_list(Plain)]),
        ?assertMatch({match, _}, re:run(Silent, "did not answer within 7 s, although its port is open: .* BEAMWAY_TLS_OPTFILE is set"))
    end).
