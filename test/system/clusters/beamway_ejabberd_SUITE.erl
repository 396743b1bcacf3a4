%% SPDX-License-Identifier: Apache-2.0
%% @doc A cluster of three nodes of Debian's ejabberd on the same host must work over Beamway as it does over stock TCP. Run by
%% `test/system/run ejabberd', which installs the server.
%%
%% The group `stock' is the control. The clients are processes in the suite that use XMPP (RFC 6120, 6121) over TCP; each node has one user.
%% Messages to a user on a running node must arrive exactly once and in the order in which they were sent. A message to a user whose node
%% was killed must arrive from ejabberd's offline storage after the user has reconnected. The group `guide' runs every command of
%% docs/guide/ejabberd.md.
-module(beamway_ejabberd_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2]).
-export([all_links/1, messages_between_nodes/1, logs_are_clean/1, kill_and_return/1, connections_are_cut/1,
         moved_to_encryption_and_back/1, commands_of_the_guide/1]).

-define(CTL, "/usr/sbin/ejabberdctl").
-define(STATE, "/var/lib/ejabberd/").
-define(NODES, [1, 2, 3]).
-define(MESSAGES, 500).
-define(KILLS, 4).
%% The number of times that all connections between the nodes are cut, alternately for 4 ms and for 43 ms, and the pause between two cuts.
-define(CUTS, 100).
-define(BETWEEN_CUTS_MS, 200).
-define(START_MS, 120000).
-define(CTL_MS, 60000).
-define(STANZA_MS, 30000).

suite() -> [{timetrap, {minutes, 15}}].

all() -> [{group, stock}, {group, beamway}, {group, beamway_tcp}, {group, encrypted}, {group, guide}].

%% Nodes are killed or lost only in the last cases, so all errors in the logs before these cases are real.
groups() ->
    Cases = [all_links, messages_between_nodes, logs_are_clean, kill_and_return],
    [{stock, [], Cases ++ [connections_are_cut]}, {beamway, [], Cases}, {beamway_tcp, [], [all_links, connections_are_cut, logs_are_clean]}, 
     {encrypted, [], [moved_to_encryption_and_back]}, {guide, [], [commands_of_the_guide]}].

init_per_suite(Config) ->
    ok = beamway_bench_rabbitmq_cluster:install(),
    Config.

end_per_suite(_Config) -> ok.

init_per_group(guide, Config) ->
    %% In this group the commands in the guide copy Beamway to this directory.
    ok = file:del_dir_r("/opt/beamway"),
    Config;
init_per_group(Group, Config) ->
    {Name, Flags, Link, BasePort} = case Group of
                                        stock -> {"stock", "", stock, 5300};
                                        beamway -> {"shm", "-pa /opt/beamway/beamway/ebin -proto_dist beamway", shm, 6300};
                                        beamway_tcp -> {"tcp", "-pa /opt/beamway/beamway/ebin -proto_dist beamway", tcp, 7300};
                                        encrypted -> {"moved", "-pa /opt/beamway/beamway/ebin -proto_dist beamway", tcp, 8300}
                                    end,
    Cluster = #{name => Name, flags => Flags, exports => ["export BEAMWAY_LINKS=tcp\n" || Link =:= tcp], base_port => BasePort},
    ok = configure(Cluster),
    [ok = start_node(N, Cluster) || N <- ?NODES],
    [{0, _} = ctl(N, ["join_cluster", node_name(1, Cluster)], Cluster) || N <- tl(?NODES)],
    ok = await_running(?NODES, Cluster),
    [{0, _} = ctl(1, ["register", user(N), "localhost", "secret"], Cluster) || N <- ?NODES],
    [{cluster, Cluster}, {link, Link} | Config].

end_per_group(guide, _Config) ->
    [kill_node(N, #{name => "node"}) || N <- ?NODES],
    ok;
end_per_group(_Group, Config) ->
    [kill_node(N, cluster(Config)) || N <- ?NODES],
    ok.

cluster(Config) -> proplists:get_value(cluster, Config).

%% ---- cases ----

all_links(Config) ->
    Link = proplists:get_value(link, Config),
    Cluster = cluster(Config),
    [{N, [Link, Link]} = {N, links(N, Cluster)} || N <- ?NODES],
    ok.

messages_between_nodes(Config) ->
    Clients = [{N, login(N, cluster(Config))} || N <- ?NODES],
    [send(Client, user(To), From, Number) || Number <- lists:seq(1, ?MESSAGES), {From, Client} <- Clients, To <- ?NODES, To =/= From],
    [ok = in_order(Client, ?NODES -- [N], lists:seq(1, ?MESSAGES)) || {N, Client} <- Clients],
    [logout(Client) || {_, Client} <- Clients],
    ok.

%% The logs must not contain a crash, an error or warning of the carrier, or an entry about the nodes of `ejabberdctl', many of which have
%% joined and left the cluster by now.
logs_are_clean(Config) ->
    [begin
         {ok, Text} = file:read_file(filename:join(folder(N, cluster(Config)), "ejabberd.log")),
         [{N, Word, nomatch} = {N, Word, line_with(Word, Text)}
          || Word <- ["crash", "\\[error\\].*beamway", "\\[warning\\].*beamway", "beamway.*-ctl-"]]
     end || N <- ?NODES],
    ok.

line_with(Word, Text) ->
    case re:run(Text, ["^.*", Word, ".*$"], [multiline, caseless, {capture, first, binary}]) of
        nomatch -> nomatch;
        {match, [Line]} -> Line
    end.

%% The third node is killed while the users on the other two nodes exchange messages and send messages to its user.
kill_and_return(Config) ->
    Cluster = cluster(Config),
    One = login(1, Cluster),
    Two = login(2, Cluster),
    [ok = kill_round(Round, One, Two, Config) || Round <- lists:seq(1, ?KILLS)],
    logout(One),
    logout(Two),
    ok.

kill_round(Round, One, Two, Config) ->
    Cluster = cluster(Config),
    Before = lists:seq(1, ?MESSAGES),
    After = lists:seq(?MESSAGES + 1, 2 * ?MESSAGES),
    Three = login(3, Cluster),
    [send(One, user(2), 1, Number) || Number <- Before],
    ok = kill_node(3, Cluster),
    ok = gen_tcp:close(element(1, Three)),
    [send(Two, user(1), 2, Number) || Number <- After],
    [send(One, user(2), 1, Number) || Number <- After],
    ok = in_order(Two, [1], Before ++ After),
    ok = in_order(One, [2], After),
    ok = await_running([1, 2], Cluster),
    ok = await(fun() -> {0, Users} = ctl(1, ["connected_users"], Cluster),
                        not lists:any(fun(User) -> lists:prefix(user(3), User) end, Users)
               end, {session_of_a_dead_node, Round}),
    [send(One, user(3), 1, Number) || Number <- [1, 2, 3]],
    ok = start_node(3, Cluster),
    ok = await_running(?NODES, Cluster),
    ok = all_links(Config),
    Back = login(3, Cluster),
    ok = in_order(Back, [1], [1, 2, 3]),
    logout(Back).

%% Each connection between the nodes is reset, and new ones are refused for a moment. Over stock distribution this disconnects the nodes;
%% over Beamway the users do not notice anything.
connections_are_cut(Config) ->
    Cluster = cluster(Config),
    Clients = [{N, login(N, Cluster)} || N <- ?NODES],
    Before = lost(Cluster),
    Cuts = case proplists:get_value(link, Config) of
               stock -> cut_until_lost(1, Before, Clients, Cluster);
               tcp -> [cut(Number, Clients, Cluster) || Number <- lists:seq(1, ?CUTS)], ?CUTS
           end,
    Lost = lost(Cluster) - Before,
    beamway_runner:say("     ~ts: ~b cuts, and ~b lines of lost nodes in the logs", [maps:get(name, Cluster), Cuts, Lost]),
    case proplists:get_value(link, Config) of
        stock -> true = Lost > 0;
        tcp ->
            0 = Lost,
            [ok = in_order(Client, ?NODES -- [N], lists:seq(1, ?CUTS)) || {N, Client} <- Clients],
            ok = all_links(Config)
    end,
    [logout(Client) || {_, Client} <- Clients],
    ok.

cut_until_lost(Number, Before, Clients, Cluster) when Number =< ?CUTS ->
    cut(Number, Clients, Cluster),
    case lost(Cluster) of
        Before -> cut_until_lost(Number + 1, Before, Clients, Cluster);
        _ -> Number
    end.

cut(Number, Clients, #{name := Name}) ->
    [send(Client, user(To), From, Number) || {From, Client} <- Clients, To <- ?NODES, To =/= From],
    _ = beamway_cut:of_nodes(Name, case Number rem 2 of 0 -> 4; 1 -> 43 end),
    receive after ?BETWEEN_CUTS_MS -> ok end.

lost(Cluster) ->
    length([Line || N <- ?NODES, {ok, Text} <- [file:read_file(filename:join(folder(N, Cluster), "ejabberd.log"))],
                    Line <- binary:split(Text, <<"\n">>, [global]), re:run(Line, "has left|inconsistent_database", [{capture, none}]) =:= match]).

%% The nodes are given a key one at a time. They accept unencrypted links only until all of them have the key; afterwards the steps are
%% reversed. While one node restarts, the users on the other two exchange messages.
moved_to_encryption_and_back(Config) ->
    ct:timetrap({minutes, 40}),
    #{exports := Exports} = Cluster = cluster(Config),
    Key = beamway_bench_rabbitmq_cluster:install_key("ejabberd", proplists:get_value(priv_dir, Config)),
    WithKey = Cluster#{exports := ["export BEAMWAY_ENCRYPT_KEY_FILE=" ++ Key ++ "\n" | Exports]},
    [ok = moved(Encrypt, Link, WithKey) || {Encrypt, Link} <- [{"prefer", tls}, {"true", tls}, {"prefer", tls}, {"false", tcp}]],
    ok.

moved(Encrypt, Link, #{exports := Exports} = Cluster) ->
    New = Cluster#{exports := ["export BEAMWAY_ENCRYPT=" ++ Encrypt ++ "\n" | Exports]},
    [ok = moved_node(N, New) || N <- ?NODES],
    [{Encrypt, N, [Link, Link]} = {Encrypt, N, links(N, New)} || N <- ?NODES],
    ok.

moved_node(N, Cluster) ->
    [One, Two] = ?NODES -- [N],
    {AtOne, AtTwo} = {login(One, Cluster), login(Two, Cluster)},
    Send = fun(Numbers) -> [begin send(AtOne, user(Two), One, Number), send(AtTwo, user(One), Two, Number) end || Number <- Numbers] end,
    ok = kill_node(N, Cluster),
    ok = set_environment(N, Cluster),
    _ = Send(lists:seq(1, ?MESSAGES)),
    ok = start_node(N, Cluster),
    ok = await_running(?NODES, Cluster),
    _ = Send(lists:seq(?MESSAGES + 1, 2 * ?MESSAGES)),
    ok = in_order(AtOne, [Two], lists:seq(1, 2 * ?MESSAGES)),
    ok = in_order(AtTwo, [One], lists:seq(1, 2 * ?MESSAGES)),
    logout(AtOne),
    logout(AtTwo),
    ok.

%% When the cluster uses stock distribution again, each node must report the cluster and the users that it knows.
commands_of_the_guide(Config) ->
    Lines = test_support:guide("ejabberd.md", proplists:get_value(priv_dir, Config), 10 * 60000),
    {Over, Back} = lists:splitwith(fun(Line) -> string:find(Line, "+ sed -i '/proto_dist") =:= nomatch end, Lines),
    [{N, 1} = {N, shown(["^node", integer_to_list(N), "@localhost +shm "], Over)} || N <- [2, 3]],
    {1, 3} = {shown("^anna$", Over), shown("^anna$", Back)},
    [{N, 3} = {N, shown(["^'?node", integer_to_list(N), "@localhost'?$"], Back)} || N <- ?NODES],
    ok.

shown(Pattern, Lines) -> length([Line || Line <- Lines, re:run(Line, Pattern) =/= nomatch]).

%% ---- servers ----

configure(Cluster) ->
    lists:foreach(
      fun(N) ->
              Folder = folder(N, Cluster),
              ok = filelib:ensure_dir(Folder ++ "/x"),
              ok = file:write_file(Folder ++ "/ejabberd.yml", settings(N, Cluster)),
              ok = set_environment(N, Cluster)
      end, ?NODES),
    {0, _} = beamway_bench_tools:run("/bin/chown", ["-R", "ejabberd:", ?STATE], 10000),
    ok.

%% Sets the environment that the node gets at its next start, and that ejabberdctl uses from now on.
set_environment(N, #{flags := Flags, exports := Exports} = Cluster) ->
    file:write_file(folder(N, Cluster) ++ "/ejabberdctl.cfg", ["ERL_OPTIONS=\"", Flags, "\"\n", Exports]).

settings(N, Cluster) ->
    ["hosts: [localhost]\nloglevel: info\n"
     "listen:\n  - {port: ", integer_to_list(port(N, Cluster)), ", ip: \"127.0.0.1\", module: ejabberd_c2s}\n"
     "api_permissions:\n  console: {from: [ejabberd_ctl], who: all, what: \"*\"}\n"
     "modules: {mod_offline: {}, mod_roster: {}}\n"].

folder(N, Cluster) -> ?STATE ++ short_name(N, Cluster).

short_name(N, #{name := Name}) -> Name ++ integer_to_list(N).

node_name(N, Cluster) -> short_name(N, Cluster) ++ "@localhost".

port(N, #{base_port := Base}) -> Base + N.

start_node(N, Cluster) ->
    {0, _} = ctl(N, ["start"], Cluster),
    await(fun() -> element(1, ctl(N, ["status"], Cluster)) =:= 0 end, {did_not_start, node_name(N, Cluster)}).

ctl(N, Words, Cluster) ->
    Folder = folder(N, Cluster),
    beamway_bench_tools:run(?CTL, ["--node", node_name(N, Cluster), "--config", Folder ++ "/ejabberd.yml",
                                   "--ctl-config", Folder ++ "/ejabberdctl.cfg", "--logs", Folder, "--spool", Folder | Words], ?CTL_MS).

kill_node(N, Cluster) ->
    case os_pid(N, Cluster) of
        none -> ok;
        OsPid ->
            case beamway_bench_os:identity(OsPid) of
                gone -> ok;
                Identity ->
                    ok = beamway_bench_os:kill(Identity),
                    beamway_bench_os:await_end(Identity, 10000)
            end
    end.

os_pid(N, Cluster) ->
    case string:trim(os:cmd("pgrep -x -f '.*beam.* -sname " ++ node_name(N, Cluster) ++ " .*'")) of
        "" -> none;
        Text -> list_to_integer(Text)
    end.

await_running(Numbers, Cluster) ->
    Expected = lists:sort([node_name(N, Cluster) || N <- Numbers]),
    lists:foreach(
      fun(N) ->
              ok = await(fun() -> {0, Lines} = ctl(N, ["list_cluster"], Cluster),
                                  lists:sort([string:trim(string:trim(Line), both, "'") || Line <- Lines]) =:= Expected
                         end, {no_cluster, N, Expected})
      end, Numbers).

%% Asks a node for the kind of its link to each of the other two nodes. With stock distribution, the
%% list also contains the connection of the node that sends the query. The expression must not
%% contain single quotes, because it is enclosed in them.
links(N, Cluster) ->
    Node = "list_to_atom(\"" ++ node_name(N, Cluster) ++ "\")",
    Kinds = "case rpc:call(" ++ Node ++ ", beamway, links, []) of {badrpc, {_, {undef, _}}} -> "
        "[stock || {_, C} <- tl(rpc:call(" ++ Node ++ ", erlang, system_info, [dist_ctrl])), is_port(C)]; "
        "L -> [K || #{node := P, link := K} <- L, lists:prefix(\"" ++ maps:get(name, Cluster) ++ "\", atom_to_list(P))] end",
    Command = "cd\n" ++ lists:append(maps:get(exports, Cluster)) ++ "erl -noinput -hidden -sname asks@localhost " ++ maps:get(flags, Cluster)
        ++ " -eval 'io:format(\"~0p.~n\", [" ++ Kinds ++ "]), halt().'",
    {0, Lines} = beamway_bench_tools:run("/bin/su", ["-s", "/bin/sh", "-c", Command, "ejabberd"], ?CTL_MS),
    {ok, Tokens, _} = erl_scan:string(lists:append(Lines)),
    {ok, Links} = erl_parse:parse_term(Tokens),
    Links.

await(Holds, Reason) -> beamway_bench_rabbitmq_cluster:await(Holds, ?START_MS, Reason).

%% ---- clients ----

user(N) -> "user" ++ integer_to_list(N).

%% Logs a user in, binds a resource and sends presence. From then on the user receives messages (RFC 6120 7, RFC 6121 4.2).
login(N, Cluster) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, port(N, Cluster), [binary, {active, false}, {nodelay, true}]),
    Header = "<stream:stream xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams' to='localhost' version='1.0'>",
    Plain = base64:encode(iolist_to_binary([0, user(N), 0, "secret"])),
    Steps = [{Header, "</stream:features>"},
             {["<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='PLAIN'>", Plain, "</auth>"], "<success"},
             {Header, "</stream:features>"},
             {"<iq type='set' id='bind'><bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'><resource>suite</resource></bind></iq>", "id='bind'"}],
    Rest = lists:foldl(fun({Said, Expected}, Heard) ->
                               ok = gen_tcp:send(Socket, Said),
                               [_, After] = binary:split(until(Expected, Heard, Socket), list_to_binary(Expected)),
                               After
                       end, <<>>, Steps),
    ok = gen_tcp:send(Socket, "<presence/>"),
    %% Messages from offline storage may arrive before the presence.
    {Socket, until("<presence", Rest, Socket)}.

%% Receives data until it contains the given text, and returns all of it.
until(Words, Heard, Socket) ->
    case binary:match(Heard, list_to_binary(Words)) of
        {_, _} -> Heard;
        nomatch ->
            {ok, More} = gen_tcp:recv(Socket, 0, ?STANZA_MS),
            until(Words, <<Heard/binary, More/binary>>, Socket)
    end.

logout({Socket, _}) ->
    ok = gen_tcp:send(Socket, "</stream:stream>"),
    gen_tcp:close(Socket).

send({Socket, _}, To, From, Number) ->
    ok = gen_tcp:send(Socket, ["<message type='chat' to='", To, "@localhost'><body>", integer_to_list(From), " ", integer_to_list(Number),
                               "</body></message>"]).

%% Each sender's numbers must arrive in order and exactly once. All other text belongs to other stanzas.
in_order({Socket, Heard}, Senders, Numbers) ->
    take(maps:from_list([{Sender, Numbers} || Sender <- Senders]), Heard, Socket).

take(Wanted, Heard, Socket) ->
    case lists:all(fun(Left) -> Left =:= [] end, maps:values(Wanted)) of
        true -> ok;
        false -> take_next(Wanted, Heard, Socket)
    end.

take_next(Wanted, Heard, Socket) ->
    case re:run(Heard, "<body>([0-9]+) ([0-9]+)</body>", [{capture, all, index}]) of
        {match, [{At, Size}, Sender, Number]} ->
            From = number(Heard, Sender),
            [Next | Left] = maps:get(From, Wanted),
            {From, Next} = {From, number(Heard, Number)},
            take(Wanted#{From := Left}, binary:part(Heard, At + Size, byte_size(Heard) - At - Size), Socket);
        nomatch ->
            {ok, More} = gen_tcp:recv(Socket, 0, ?STANZA_MS),
            take_next(Wanted, <<Heard/binary, More/binary>>, Socket)
    end.

number(Text, {At, Size}) -> binary_to_integer(binary:part(Text, At, Size)).
