%% SPDX-License-Identifier: Apache-2.0
%% @doc `beamway doctor' on a host without problems, and with one problem at a time.
-module(beamway_cli_doctor_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_testcase/2]).
-export([doctor_well/1, doctor_json/1, doctor_turned_off/1, doctor_bad_option/1, doctor_no_driver/1, doctor_file_size/1,
         doctor_address_space/1, doctor_descriptors/1, doctor_no_epmd/1, doctor_silent_epmd/1, doctor_teleport/1, doctor_over_tls/1]).

-import(beamway_command, [run/2, shell/2, quoted/1, start/3, stop/1, copy_of_checkout/2]).

suite() -> [{timetrap, {minutes, 5}}, {ct_hooks, [beamway_command]}].

all() ->
    [doctor_well, doctor_json, doctor_turned_off, doctor_bad_option, doctor_no_driver, doctor_file_size, doctor_address_space,
     doctor_descriptors, doctor_no_epmd, doctor_silent_epmd, doctor_teleport, doctor_over_tls].

init_per_testcase(doctor_address_space, Config) -> beamway_peer:unless_wrapped("a sanitizer needs all of the address space", Config);
init_per_testcase(_, Config) -> Config.

doctor_well(Config) ->
    {0, Out, ""} = run(Config, "doctor"),
    ?assertMatch({match, _}, re:run(Out, "(?m)^shm +yes ")),
    ?assertMatch({match, _}, re:run(Out, "(?m)^ok +driver ")),
    ?assertMatch({match, _}, re:run(Out, "(?m)^ok +teleport +the application teleport is installed")),
    ?assertMatch({match, _}, re:run(Out, "(?m)^rdma +(no +no devices|yes|no +[a-z0-9_]+ port)")),
    ?assertMatch(nomatch, re:run(Out, "(?m)^problem")).

doctor_json(Config) ->
    #{<<"ok">> := true, <<"links">> := Links, <<"checks">> := Checks} = doctor(Config, "", 0),
    ?assertEqual([<<"shm">>, <<"rdma">>, <<"tcp">>, <<"inet">>], [maps:get(<<"link">>, Link) || Link <- Links]),
    ?assertMatch(#{<<"status">> := <<"ok">>}, check(<<"rings">>, Checks)),
    %% The table in docs/messages.md has exactly these checks.
    {ok, Page} = file:read_file(test_support:file("docs/messages.md")),
    [_, Behind] = binary:split(Page, <<"\n| check | problem or warning if |\n| --- | --- |\n">>),
    [Table, _] = binary:split(Behind, <<"\n\n">>),
    {match, Names} = re:run(Table, "(?m)(?:^\\||\\G,) `([a-z0-9_]+)`", [global, {capture, all_but_first, binary}]),
    {Told, Made} = {lists:append(Names), [maps:get(<<"name">>, Check) || Check <- Checks]},
    ?assertEqual([{not_in_messages_md, []}, {no_such_check, []}], [{not_in_messages_md, Made -- Told}, {no_such_check, Told -- Made}]).

doctor_turned_off(Config) ->
    #{<<"checks">> := Checks} = doctor(Config, "export BEAMWAY_LINKS=tcp; ", 1),
    ?assertMatch(#{<<"status">> := <<"problem">>, <<"remedy">> := <<"unset BEAMWAY_LINKS", _/binary>>},
                 check(<<"options">>, Checks)),
    [begin
         #{<<"links">> := Kinds} = doctor(Config, ["export BEAMWAY_LINKS=", Links, "; "], Status),
         ?assertEqual({Links, Usable}, {Links, [Kind || #{<<"link">> := Kind, <<"usable">> := true} <- Kinds, Kind =/= <<"rdma">>]})
     end || {Links, Status, Usable} <- [{"shm", 0, [<<"shm">>, <<"inet">>]}, {"tcp", 1, [<<"tcp">>, <<"inet">>]}, {"inet", 1, [<<"inet">>]}]],
    ok.

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

%% The VM's own code memory needs 8 MiB in OTP 25 and 64 MiB in OTP 27. In this case the rings need 128 MiB plus one page.
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
    #{<<"checks">> := Checks} = doctor([{epmd_port, test_support:free_port()} | Config], "", 0),
    ?assertMatch(#{<<"status">> := <<"ok">>, <<"found">> := <<"does not run yet", _/binary>>}, check(<<"epmd">>, Checks)).

%% A program accepts the connection on epmd's port but sends nothing.
doctor_silent_epmd(Config) ->
    {ok, Silent} = gen_tcp:listen(0, [{active, false}]),
    {ok, Port} = inet:port(Silent),
    #{<<"checks">> := Checks} = doctor([{epmd_port, Port} | Config], "", 0),
    ?assertMatch(#{<<"status">> := <<"warning">>, <<"found">> := <<"does not answer: timeout">>}, check(<<"epmd">>, Checks)),
    ok = gen_tcp:close(Silent).

%% Tests a node without teleport, one on which teleport runs, and one on which it was stopped.
doctor_teleport(Config) ->
    Started = {A, Node} = start(Config, ["-proto_dist", "beamway"], #{}),
    try
        ?assertEqual({<<"ok">>, true}, teleport_of(Config, Node, 0, "does not run the application teleport")),
        ok = start_teleport(A),
        ?assertEqual({<<"ok">>, true}, teleport_of(Config, Node, 0, "runs teleport, over the distribution")),
        %% The node has the code but does not run it.
        ok = peer:call(A, application, stop, [teleport], 60000),
        ?assertEqual({<<"ok">>, true}, teleport_of(Config, Node, 0, "does not run the application teleport"))
    after
        stop(Started)
    end,
    {1, "", Error} = run(Config, "doctor nosuch"),
    ?assertMatch({match, _}, re:run(Error, "doctor: node nosuch@\\S+ is not running")).

%% The options file for nodes that only use TLS does not disable any link on this host.
doctor_over_tls(Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    File = beamway_certificates:good(),
    Tls = ["export BEAMWAY_TLS_OPTFILE=", quoted(File), "; "],
    #{<<"ok">> := true} = doctor(Config, Tls, 0),
    Started = {_, Node} = start(Config, ["-proto_dist", "beamway_tls", "-ssl_dist_optfile", File], #{}),
    try
        {0, Out, ""} = shell(Config, [Tls, "\"$BEAMWAY\" doctor ", atom_to_list(Node)]),
        ?assertMatch({match, _}, re:run(Out, "(?m)^shm +yes (.*\n)*ok +teleport +\\S+ does not run the application teleport"))
    after
        stop(Started)
    end.

start_teleport(Peer) ->
    true = peer:call(Peer, code, add_path, [filename:dirname(code:which(teleport))]),
    {ok, _} = peer:call(Peer, application, ensure_all_started, [teleport], 60000),
    ok.

teleport_of(Config, Node, Status, Expected) ->
    {Status, Out, ""} = run(Config, ["doctor --json ", atom_to_list(Node)]),
    #{<<"checks">> := Checks, <<"links">> := [#{<<"link">> := <<"shm">>, <<"usable">> := IsUsable} | _]} = jiffy:decode(Out, [return_maps]),
    #{<<"status">> := Verdict, <<"found">> := Found} = check(<<"teleport">>, Checks),
    ?assertMatch({match, _}, re:run(Found, Expected)),
    {Verdict, IsUsable}.

doctor(Config, Before, Status) ->
    {Status, Out, ""} = shell(Config, [Before, "\"$BEAMWAY\" doctor --json"]),
    jiffy:decode(Out, [return_maps]).

check(Name, Checks) ->
    [Check] = [C || #{<<"name">> := N} = C <- Checks, N =:= Name],
    Check.
