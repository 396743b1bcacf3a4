%% SPDX-License-Identifier: Apache-2.0
%% @doc Each command that queries nodes, including the console, can reach nodes that only have an IPv6 address: over Beamway, stock TCP and TLS.
-module(beamway_cli_ipv6_SUITE).

-include_lib("common_test/include/ct.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([over_beamway6/1, over_inet6_tcp/1, over_beamway6_tls/1, over_inet6_tls/1, not_there/1, by_name/1, node_command/1]).

%% Reads the address of the console from a file, and then its events until the node is up.
-define(UNTIL_UP, "import json, sys, time, urllib.request\n"
                  "end = time.time() + 60\n"
                  "while time.time() < end and not open(sys.argv[1]).read().endswith(\"\\n\"): time.sleep(0.05)\n"
                  "url = json.load(open(sys.argv[1]))[\"url\"] + \"api/events?topics=cluster\"\n"
                  "for line in urllib.request.urlopen(url, timeout=30):\n"
                  "    if time.time() > end: sys.exit(1)\n"
                  "    if not line.startswith(b\"data: \"): continue\n"
                  "    if any(n[\"name\"] == sys.argv[2] and n[\"state\"] == \"up\" for n in json.loads(line[6:]).get(\"nodes\", [])): break\n"
                  "print(\"up\")\n").

-import(beamway_command, [run/2, shell/2, quoted/1, start/3, stop/1]).

suite() -> [{timetrap, {minutes, 5}}, {ct_hooks, [beamway_command]}].

all() -> [over_beamway6, over_inet6_tcp, over_beamway6_tls, over_inet6_tls, not_there, by_name, node_command].

init_per_suite(Config) ->
    case test_support:has_ipv6() of
        true -> ok = beamway_certificates:prepare(?config(priv_dir, Config)), Config;
        false -> {skip, "this host has no IPv6"}
    end.

end_per_suite(_Config) -> ok.

over_beamway6(Config) -> asked(Config, ["beamway6"], "shm|tcp", "").
over_inet6_tcp(Config) -> asked(Config, ["inet6_tcp"], none, "").
over_beamway6_tls(Config) -> asked(Config, ["beamway6_tls" | tls_words()], "shm|tls", in_tls()).
over_inet6_tls(Config) -> asked(Config, ["inet6_tls" | tls_words()], none, in_tls()).

tls_words() -> ["-ssl_dist_optfile", beamway_certificates:good()].
in_tls() -> ["BEAMWAY_TLS_OPTFILE=", quoted(beamway_certificates:good()), " "].

%% Links is the kind of link, or none if the carrier is OTP's.
asked(Config, Carrier, Links, Environment) ->
    with_two(Config, Carrier, "::1", fun([A, B] = Nodes) ->
        [First, Second] = [atom_to_list(Node) || Node <- Nodes],
        Ask = fun(Words) -> shell(Config, [Environment, "\"$BEAMWAY\" ", Words]) end,
        _ = [begin
                 {0, Shown, ""} = Ask([Command, " ", First]),
                 ?assertMatch({match, _}, re:run(Shown, [Second, " +(", Links, ") "]))
             end || Links =/= none, Command <- ["links", "top", "top --cluster"]],
        {0, Well, ""} = Ask(["doctor ", First]),
        ?assertMatch({match, _}, re:run(Well, ["teleport +", First, " does not run the application teleport"])),
        {0, Chosen, ""} = Ask(["choose '{beamway_cli_ipv6, true}' --node ", First]),
        ?assertEqual(Second ++ "\n", Chosen),
        File = filename:join(?config(priv_dir, Config), hd(Carrier) ++ ".json"),
        [begin
             {0, _, _} = Ask(["topology measure ", Which, " --mode quiet --batches 2 --messages 5 --out ", quoted(File)]),
             {ok, Bytes} = file:read_file(File),
             #{<<"nodes">> := Measured} = jiffy:decode(Bytes, [return_maps]),
             ?assertEqual([atom_to_binary(Node) || Node <- lists:sort([A, B])], lists:sort(Measured))
         end || Which <- [["--nodes ", First, ",", Second], ["--of ", First]]],
        ok = console(Config, Environment, First, Second)
    end).

%% Waits until the console shows both nodes as up, including the one whose name it was not given.
console(Config, Environment, First, Second) ->
    Url = filename:join(?config(priv_dir, Config), "url"),
    {0, Shown, _} =
        shell(Config, ["rm -f ", quoted(Url), "; ", Environment, "\"$BEAMWAY\" console ", First, " --port 0 --json --interval 200 >", quoted(Url), " & ",
                       "python3 -c '", ?UNTIL_UP, "' ", quoted(Url), " ", Second, "; status=$?; kill $!; exit $status"]),
    ?assertEqual("up\n", Shown),
    ok.

%% epmd answers on that address, and the message contains the name.
not_there(Config) ->
    with_two(Config, ["beamway6"], "::1", fun([A, _]) ->
        [Name, _] = string:split(atom_to_list(A), "@"),
        {1, "", Error} = run(Config, "links nosuch@::1"),
        ?assertMatch({match, _}, re:run(Error, ["node nosuch@::1 is not running: epmd on ::1 knows .*", Name]))
    end),
    with_two(Config, ["beamway6_tls" | tls_words()], "::1", fun([A, _]) ->
        {1, "", Refused} = run(Config, "links " ++ atom_to_list(A)),
        ?assertMatch({match, _}, re:run(Refused, "BEAMWAY_TLS_OPTFILE"))
    end).

%% If a host name has addresses of both families, the command uses IPv4, which these carriers accept.
by_name(Config) ->
    with_two(Config, ["beamway6"], any, fun([A, B]) ->
        {0, Shown, ""} = run(Config, "links " ++ atom_to_list(A)),
        ?assertMatch({match, _}, re:run(Shown, atom_to_list(B) ++ " +(shm|tcp) "))
    end).

%% The command starts one node, and then a second one that connects to the first.
node_command(Config) ->
    First = beamway_command:command_node(Config, "--carrier beamway6 --name first@::1"),
    Second = beamway_command:command_node(Config, "--carrier beamway6 --name second@::1 --connect first@::1"),
    {0, Shown, ""} = run(Config, "links first@::1"),
    ?assertMatch({match, _}, re:run(Shown, "second@::1 +(shm|tcp) ")),
    [_ = beamway_command:ended(Node) || Node <- [Second, First]],
    ok.

%% Starts two connected nodes, the second of which has an attribute.
with_two(Config, Carrier, Host, Fun) ->
    Where = case Host of any -> #{}; _ -> #{longnames => true, host => Host} end,
    Placement = ["-pa", test_support:file("apps/placement/ebin")],
    All = [start(Config, ["-proto_dist" | Carrier] ++ Placement, Where) || _ <- [first, second]],
    try
        [{First, A}, {Second, B}] = All,
        [{ok, _} = peer:call(Peer, application, ensure_all_started, [placement]) || {Peer, _} <- All],
        ok = peer:call(Second, placement, insert, [beamway_cli_ipv6, true]),
        true = peer:call(First, net_kernel, connect_node, [B]),
        Fun([A, B])
    after
        [stop(One) || One <- All]
    end.
