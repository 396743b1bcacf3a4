%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway top' and `beamway choose', which query a running node about its cluster.
-module(beamway_cli_top_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([top_into_a_pipe/1, top_of_senders/1, top_of_a_cluster/1, top_on_a_terminal/1, top_failures/1, choose_from_the_shell/1]).

-import(beamway_command, [run/2, shell/2, quoted/1, cookie_file/2, with_nodes/3, start/3, stop/1, command_node/2, ended/1]).

suite() -> [{timetrap, {minutes, 5}}, {ct_hooks, [beamway_command]}].

all() -> [top_into_a_pipe, top_of_senders, top_of_a_cluster, top_on_a_terminal, top_failures, choose_from_the_shell].

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

%% The table shows three of four senders. The process on the peer has a name.
top_of_senders(Config) ->
    with_nodes(Config, 2, fun([A, B]) ->
        Sending = ["erl -noinput -hidden -sname sending -eval \"ok = erpc:call('", atom_to_list(A), "', fun() -> _ = [begin register(list_to_atom(\\\"sender\\\" ++ integer_to_list(I)), ",
                   "P = spawn(fun() -> receive go -> {nobody_there, '", atom_to_list(B), "'} ! binary:copy(<<1>>, I * 1000000), receive stop -> ok end end end)), P ! go end || I <- [1, 2, 3, 4]], ok end), halt().\""],
        {0, "", ""} = shell(Config, Sending),
        {0, Out, ""} = run(Config, ["top --senders ", atom_to_list(A)]),
        [Title, Heading | Rows] = string:lexemes(Out, "\n"),
        ?assertEqual(atom_to_list(A) ++ ": who sent most in the last 10 s", Title),
        ?assertMatch({match, _}, re:run(Heading, "^NODE +PID +CLASS +SENT/S +WAITING +PROCESS$")),
        [?assertMatch({match, _}, re:run(Row, ["^", atom_to_list(B), " +<0\\.[0-9]+\\.0> +normal +[0-9.]+[kM] +0 +", Name, "$"])) || {Row, Name} <- lists:zip(Rows, ["sender4", "sender3", "sender2"])],
        {0, Json, ""} = run(Config, ["top --senders --cluster --json --interval 0.1 --count 2 ", atom_to_list(A)]),
        [_, Line] = string:lexemes(Json, "\n"),
        #{<<"not_answering">> := [], <<"links">> := Links} = jiffy:decode(Line, [return_maps]),
        {Node, Peer} = {atom_to_binary(A), atom_to_binary(B)},
        [Senders] = [Of || #{<<"from">> := From, <<"node">> := To, <<"senders">> := Of} <- Links, From =:= Node, To =:= Peer],
        ?assertMatch([#{<<"pid">> := <<"<0.", _/binary>>, <<"class">> := <<"normal">>, <<"waiting">> := 0, <<"initial_call">> := _} | _],
                     [Sender || #{<<"name">> := <<"sender4">>, <<"sent">> := Sent} = Sender <- Senders, Sent > 4000000]),
        {2, "", Both} = run(Config, ["top --senders --sort in ", atom_to_list(A)]),
        ?assertMatch({match, _}, re:run(Both, "expected one of them"))
    end).

%% The command has a single connection, because the node queries the others.
top_of_a_cluster(Config) ->
    with_nodes(Config, 3, fun([A | _] = Nodes) ->
        {0, Out, ""} = run(Config, ["top --cluster --json --interval 0.1 ", atom_to_list(A)]),
        #{<<"links">> := Links} = jiffy:decode(Out, [return_maps]),
        Expected = lists:sort([{atom_to_binary(From), atom_to_binary(To)} || From <- Nodes, To <- Nodes, From =/= To]),
        ?assertEqual(Expected, lists:sort([{From, To} || #{<<"from">> := From, <<"node">> := To} <- Links]))
    end).

%% A terminal created with script(1): letters change the sort order, q quits, and the terminal is restored.
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
        {_, Node} = Bare,
        {1, "", NoCode} = run(Config, ["top ", atom_to_list(Node)]),
        ?assertMatch({match, _}, re:run(NoCode, "has no Beamway")),
        {1, "", NoPlacement} = run(Config, ["choose '{loadavg5, lt, 100.0}' --node ", atom_to_list(Node)]),
        ?assertMatch({match, _}, re:run(NoPlacement, "has no placement")),
        {1, "", NoDrain} = run(Config, ["drain ", atom_to_list(Node)]),
        ?assertMatch({match, _}, re:run(NoDrain, "has no placement that can drain"))
    after
        stop(Bare)
    end.

choose_from_the_shell(Config) ->
    Node = command_node(Config, "--name chooser"),
    try
        {0, Out, ""} = run(Config, "choose '{mem_total, gt, 0}' --node chooser --count 1"),
        ?assertMatch({match, _}, re:run(Out, "^chooser@\\S+\n$")),
        {1, Why, ""} = run(Config, "choose '{mem_total, lt, 0}' --node chooser"),
        ?assertMatch({match, _}, re:run(Why, "0 of 1 nodes fulfil the query")),
        %% Without a tree no node is near or far, and in a tree with a single node there is nothing to gain.
        {1, "", NoTree} = run(Config, "choose --advise --node chooser"),
        ?assertMatch({match, _}, re:run(NoTree, "knows no tree of the network")),
        {2, "", _} = run(Config, "choose '{mem_total, gt, 0}' --advise --node chooser"),
        {0, Report, ""} = run(Config, "choose '{mem_total, gt, 0}' --explain --json --node chooser --nodes узел@хост"),
        ?assertMatch(#{<<"reports">> := [#{<<"node">> := <<"узел@хост"/utf8>>, <<"suitable">> := false}]}, jiffy:decode(unicode:characters_to_binary(Report), [return_maps])),
        {0, Shown, ""} = run(Config, "choose '{mem_total, gt, 0}' --node chooser"),
        {0, "", ""} = shell(Config, ["erl -noinput -hidden -sname setter -eval \"N = '", string:trim(Shown), "', {ok, T} = erpc:call(N, placement_tree, from_paths, [#{N => [site]}]), ",
                                     "{ok, _} = erpc:call(N, placement, set_topology, [T]), halt().\""]),
        {0, "no move would save anything\n", ""} = run(Config, "choose --advise --node chooser"),
        {0, Json, ""} = run(Config, "choose --advise --json --node chooser"),
        ?assertEqual({[{<<"moves">>, []}, {<<"pairs">>, []}]}, jiffy:decode(Json))
    after
        ?assertEqual(0, ended(Node))
    end.
