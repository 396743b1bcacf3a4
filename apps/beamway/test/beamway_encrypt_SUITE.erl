%% SPDX-License-Identifier: Apache-2.0
%% @doc The option `encrypt': which nodes can connect, what is visible on the wire, and what an attacker on the path or an unauthenticated client
%% can do.
%%
%% The nodes are real; some pairs communicate through a {@link beamway_relay} that records, cuts, changes and replays
%% their data.
-module(beamway_encrypt_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_testcase/2, end_per_testcase/2]).
-export([key_of_the_cookie/1, new_cookie/1, key_of_a_file/1, ring_on_one_host/1, another_key/1, another_cookie/1, key_change_under_load/1, stock_peer/1, peer_in_clear/1,
         peer_with_certificates/1, prefer/1, bad_options/1, default_cookie/1, nothing_readable/1, replay/1, reflection/1, call_to_itself/1, truncation/1, changed_bytes/1,
         garbage/1, silent_strangers/1, flood_of_strangers/1, downgrade/1, the_command/1, remote_shell/1, no_carrier/1]).

-define(WAIT_MS, 20000).
%% A little more than net_setuptime.
-define(REFUSED_MS, 9000).
-define(MARK, "a mark that nobody else sends").
-define(STRANGERS, 600).
%% The incomplete handshakes of a flood come from this many addresses, each of which has OPEN sockets open at a time.
-define(ADDRESSES, 20).
-define(OPEN, 50).
-define(STEP_MS, 200).
-define(LEFT_KB, 4096).

suite() -> [{timetrap, {minutes, 3}}].

all() ->
    [key_of_the_cookie, new_cookie, key_of_a_file, ring_on_one_host, another_key, another_cookie, key_change_under_load, stock_peer, peer_in_clear, peer_with_certificates,
     prefer, bad_options, default_cookie, nothing_readable, replay, reflection, call_to_itself, truncation, changed_bytes, garbage, silent_strangers, flood_of_strangers, downgrade, the_command, remote_shell, no_carrier].

init_per_testcase(Case, Config) ->
    Dir = filename:join(proplists:get_value(priv_dir, Config), Case),
    ok = filelib:ensure_dir(filename:join(Dir, "file")),
    [{dir, Dir} | Config].

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% ---- nodes ----

file(Config, Name) -> filename:join(proplists:get_value(dir, Config), Name).

options(Config, Name, Environment) -> #{log => file(Config, Name ++ ".log"), env => Environment}.

start(Config, Name, Environment) -> start(Config, beamway_encrypted, Name, Environment).

start(Config, Carrier, Name, Environment) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, options(Config, Name, Environment)),
    {Peer, Node}.

%% Writes a file with new keys; returns it with the environment that names it.
key_file(Config, Name, Keys) ->
    File = file(Config, Name),
    ok = write_keys(File, Keys),
    {File, [{"BEAMWAY_ENCRYPT_KEY_FILE", File}]}.

write_keys(File, Keys) ->
    ok = file:write_file(File ++ ".new", [[base64:encode(Key), $\n] || Key <- Keys]),
    ok = file:change_mode(File ++ ".new", 8#600),
    file:rename(File ++ ".new", File).

new_key() -> crypto:strong_rand_bytes(32).

key(Peer, Node) ->
    {ok, #{key := Key}} = beamway_peer:call(Peer, beamway, info, [Node]),
    Key.

call({Peer, _}, {_, Node}) ->
    Node = beamway_peer:run(Peer, fun() -> erpc:call(Node, erlang, node, [], 5000) end),
    ok.

%% No connection is established, and the attempt fails quickly.
refused({Peer, _}, {_, Node}) ->
    Began = erlang:monotonic_time(millisecond),
    ?assertEqual(false, beamway_peer:call(Peer, net_kernel, connect_node, [Node])),
    ?assert(erlang:monotonic_time(millisecond) - Began < ?REFUSED_MS * beamway_runner:slowness()).

says(Config, Name, Words) ->
    _ = beamway_peer:wait_until(fun() -> string:find(beamway_peer:log_text(file(Config, Name ++ ".log")), Words) =/= nomatch end, ?WAIT_MS),
    ok.

lines(Config, Name, Words) ->
    length([Line || Line <- string:lexemes(beamway_peer:log_text(file(Config, Name ++ ".log")), "\n"), string:find(Line, Words) =/= nomatch]).

%% Starts two nodes, each behind a relay.
relayed(Config, Carrier, Environment) ->
    {_, NodeA} = A = beamway_relay:node_at(Carrier, "127.0.0.2", options(Config, "a", Environment)),
    {_, NodeB} = B = beamway_relay:node_at(Carrier, "127.0.0.3", options(Config, "b", Environment)),
    {A, B, NodeA, NodeB}.

%% ---- access control ----

key_of_the_cookie(Config) ->
    [{PeerA, NodeA} = A, {PeerB, NodeB} = B] = [start(Config, Name, []) || Name <- ["a", "b"]],
    ok = beamway_peer:connect_both(beamway_encrypted, PeerA, PeerB),
    Key = key(PeerA, NodeB),
    ?assertMatch({match, _}, re:run(Key, "^cookie [0-9a-f]{8}$")),
    ?assertEqual(Key, key(PeerB, NodeA)),
    [ok = beamway_peer:assert_reason(Peer, binary_to_list(<<", ", Key/binary>>)) || Peer <- [PeerA, PeerB]],
    ok = call(A, B),
    ok = call(B, A).

%% Several connections request the key of a new cookie at the same time: it is derived only once, and all get the same key.
new_cookie(Config) ->
    {Peer, _} = start(Config, "a", []),
    Keys = beamway_peer:run(Peer, fun() ->
                                          Callers = [spawn_monitor(fun() -> exit(beamway_encrypt:keys('another_cookie')) end) || _ <- lists:seq(1, 50)],
                                          [receive {'DOWN', Monitor, process, _, Result} -> Result end || {_, Monitor} <- Callers]
                                  end, 10000),
    ?assertMatch([{ok, [#{source := cookie}]}], lists:usort(Keys)).

key_of_a_file(Config) ->
    {_, Environment} = key_file(Config, "keys", [new_key()]),
    [{PeerA, NodeA}, {PeerB, NodeB}] = [start(Config, Name, Environment) || Name <- ["a", "b"]],
    ok = beamway_peer:connect_both(beamway_encrypted, PeerA, PeerB),
    ?assertMatch(<<"key file ", _:8/binary>>, key(PeerA, NodeB)),
    ?assertEqual(key(PeerA, NodeB), key(PeerB, NodeA)).

%% The nodes agree on a ring over TLS. After that the TLS connection is silent, but it still shows when the peer exits.
ring_on_one_host(Config) ->
    [{PeerA, _} = A, {PeerB, NodeB} = B] = [start(Config, beamway_encrypted_shm, Name, []) || Name <- ["a", "b"]],
    ok = beamway_peer:connect_both(beamway_encrypted_shm, PeerA, PeerB),
    ?assertMatch(<<"cookie ", _/binary>>, key(PeerA, NodeB)),
    ok = call(A, B),
    Watcher = beamway_peer:watch_nodedown(PeerA),
    ok = beamway_peer:kill9(PeerB),
    ?assertMatch({connection_closed, _}, beamway_peer:nodedown(PeerA, Watcher, NodeB, ?WAIT_MS)).

another_key(Config) ->
    [A, B] = [start(Config, Name, element(2, key_file(Config, Name ++ ".keys", [new_key()]))) || Name <- ["a", "b"]],
    ok = refused(A, B),
    ok = says(Config, "a", "the peer refuses this node's key"),
    ok = says(Config, "b", "the caller has another key"),
    ok = refused(B, A),
    ok = says(Config, "a", "the caller has another key").

%% A node that has the key file also needs the cookie.
another_cookie(Config) ->
    {_, Environment} = key_file(Config, "keys", [new_key()]),
    [A, B] = [begin {ok, Peer, Node} = beamway_peer:start(beamway_encrypted, (options(Config, Name, Environment))#{cookie => Name ++ "_cookie"}), {Peer, Node} end
              || Name <- ["a", "b"]],
    ok = refused(A, B),
    ok = refused(B, A).

%% Changes the key node by node; each step opens a new connection, and calls continue throughout.
key_change_under_load(Config) ->
    [Old, New] = [new_key(), new_key()],
    {Files, [Environment | _]} = lists:unzip([key_file(Config, Name, [Old]) || Name <- ["a.keys", "b.keys"]]),
    [FileA, FileB] = Files,
    {PeerA, _} = beamway_relay:node_at(beamway_encrypted, "127.0.0.2", options(Config, "a", Environment)),
    {PeerB, NodeB} = beamway_relay:node_at(beamway_encrypted, "127.0.0.3", options(Config, "b", [{"BEAMWAY_ENCRYPT_KEY_FILE", FileB}])),
    Relays = [beamway_relay:start(Address, Peer) || {Address, Peer} <- [{"127.0.0.2", PeerA}, {"127.0.0.3", PeerB}]],
    ok = beamway_peer:connect_both(beamway_encrypted, PeerA, PeerB),
    Before = key(PeerA, NodeB),
    Load = beamway_peer:async(fun() -> beamway_peer:run(PeerA, fun() -> called_until_told(NodeB) end) end),
    [begin
         ok = write_keys(File, Keys),
         Resumes = resumes(PeerA, NodeB),
         lists:foreach(fun beamway_relay:cut/1, Relays),
         _ = beamway_peer:wait_until(fun() -> resumes(PeerA, NodeB) > Resumes end, ?WAIT_MS),
         receive after ?STEP_MS -> ok end
     end || {File, Keys} <- [{FileA, [Old, New]}, {FileB, [Old, New]}, {FileA, [New, Old]}, {FileB, [New, Old]}, {FileA, [New]}, {FileB, [New]}]],
    ok = beamway_peer:run(PeerA, fun() -> load ! stop, ok end),
    {Done, Failed} = beamway_peer:await(Load),
    io:format(user, "~b calls, ~b failed, ~b new connections", [Done, Failed, resumes(PeerA, NodeB)]),
    ?assertEqual(0, Failed),
    ?assert(Done > 100),
    ?assertNotEqual(Before, key(PeerA, NodeB)),
    lists:foreach(fun beamway_relay:stop/1, Relays).

called_until_told(Node) ->
    true = register(load, self()),
    Callers = [spawn_monitor(fun() -> called(Node, 0) end) || _ <- lists:seq(1, 10)],
    receive stop -> ok end,
    [Pid ! stop || {Pid, _} <- Callers],
    Results = [receive {'DOWN', Monitor, process, _, Result} -> Result end || {_, Monitor} <- Callers],
    {lists:sum([Count || {done, Count} <- Results]), length([Failed || Failed <- Results, element(1, Failed) =/= done])}.

called(Node, Count) ->
    Node = erpc:call(Node, erlang, node, [], 15000),
    receive stop -> exit({done, Count + 1}) after 0 -> called(Node, Count + 1) end.

resumes(Peer, Node) ->
    {ok, Info} = beamway_peer:call(Peer, beamway, info, [Node]),
    maps:get(resumes, Info, 0).

%% ---- other kinds of nodes ----

stock_peer(Config) ->
    [A, B] = [start(Config, "a", []), start(Config, inet_tcp, "b", [])],
    ok = refused(A, B),
    ok = says(Config, "a", "no encrypted connection with"),
    ok = refused(B, A),
    ok = says(Config, "a", "it calls in clear, and this node has encrypt true").

peer_in_clear(Config) ->
    [A, B] = [start(Config, "a", []), start(Config, beamway_tcp, "b", [])],
    ok = refused(A, B),
    ok = refused(B, A),
    ok = says(Config, "a", "it calls in clear, and this node has encrypt true").

peer_with_certificates(Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    A = start(Config, "a", []),
    [begin
         B = start(Config, Carrier, atom_to_list(Carrier), []),
         ok = refused(A, B),
         ok = refused(B, A)
     end || Carrier <- [beamway_tls, inet_tls]],
    ok = says(Config, "a", "the peer shows a certificate and does not know the key"),
    ok = says(Config, "a", "the caller names no key").

%% Connections are encrypted if both sides support encryption, whichever side calls. Other connections are in clear text, and this is logged.
prefer(Config) ->
    Prefer = [{"BEAMWAY_ENCRYPT", "prefer"}],
    [{PeerA, NodeA} = A, {_, NodeB} = B] = [start(Config, Name, Prefer) || Name <- ["a", "b"]],
    {PeerC, NodeC} = C = start(Config, "c", []),
    ok = call(A, B),
    ok = call(A, C),
    ok = call(C, B),
    [?assertMatch(<<"cookie ", _/binary>>, key(PeerA, Node)) || Node <- [NodeB, NodeC]],
    ?assertMatch(<<"cookie ", _/binary>>, key(PeerC, NodeA)),
    0 = lines(Config, "a", "is in clear"),
    {_, NodeD} = D = start(Config, inet_tcp, "d", []),
    {_, NodeE} = E = start(Config, beamway_tcp, "e", []),
    ok = call(A, D),
    ok = call(E, A),
    [ok = says(Config, "a", lists:concat(["the link to ", Node, " is in clear (encrypt prefer)"])) || Node <- [NodeD, NodeE]],
    ok = refused(D, C).

%% A node that requires encryption does not start if encryption is impossible.
bad_options(Config) ->
    Short = file(Config, "short"),
    ok = write_keys(Short, [crypto:strong_rand_bytes(31)]),
    [?assertMatch({Option, Value, {match, _}}, {Option, Value, re:run(does_not_start([{Option, Value}], "beamway_test"), "register/listen error: .*" ++ Words, [dotall])})
     || {Option, Value, Words} <- [{"ENCRYPT", "yes", "the driver is needed"}, {"RING_BYTES", "1", "the driver is needed"}, {"LINKS", "inet", "tcp is off on this node"},
                                   {"ENCRYPT_KEY_FILE", "/nowhere", "no such file.*beamway keygen FILE"},
                                   {"ENCRYPT_KEY_FILE", Short, "32 random bytes or more in base64"}]],
    ok.

%% The message does not contain the cookie.
default_cookie(Config) ->
    Cookie = "ABCDEFGHIJKLMNOPQRST",
    Said = does_not_start([], Cookie),
    ?assertMatch({match, _}, re:run(Said, "register/listen error: .*beamway keygen --cookie")),
    ?assertEqual(nomatch, string:find(Said, Cookie)),
    {_, Environment} = key_file(Config, "keys", [new_key()]),
    {ok, _, _} = beamway_peer:start(beamway_encrypted, (options(Config, "b", Environment))#{cookie => Cookie}),
    ok.

%% Starts a node that encrypts, with these options, and returns its output; it must not start.
does_not_start(Options, Cookie) ->
    Command = ["env BEAMWAY_ENCRYPT=true ", [["BEAMWAY_", Name, "='", Value, "' "] || {Name, Value} <- Options], lists:join(" ", beamway_peer:erl()),
               " -noinput -pa ", beamway_peer:ebin(), " -proto_dist beamway -sname ", beamway_peer:unique_name("bw"), " -setcookie ", Cookie,
               " -eval 'io:format(\"has started\"), halt().' 2>&1"],
    Said = os:cmd(lists:flatten(Command)),
    ct:pal("~ts", [Said]),
    ?assertEqual(nomatch, string:find(Said, "has started")),
    Said.

%% The command becomes a node itself: it can connect with the options of the node that it queries, but not without them.
the_command(Config) ->
    {_, [{Name, File}]} = key_file(Config, "keys", [new_key()]),
    [{PeerA, _} = A, {_, NodeB} = B] = [start(Config, Node, [{Name, File}]) || Node <- ["a", "b"]],
    ok = call(A, B),
    Cookie = file(Config, "cookie"),
    ok = file:write_file(Cookie, "beamway_test"),
    ok = file:change_mode(Cookie, 8#600),
    Ask = fun(Environment) -> os:cmd(lists:flatten([Environment, test_support:file("bin/beamway"), " links ", atom_to_list(NodeB), " --cookie-file ", Cookie, " 2>&1"])) end,
    ?assertMatch({match, _}, re:run(Ask(["BEAMWAY_ENCRYPT=true ", Name, "=", File, " "]), [" tls .*", key(PeerA, NodeB)])),
    ?assertMatch({match, _}, re:run(Ask(""), "did not answer|refused the connection")),
    ?assertMatch({match, _}, re:run(Ask("BEAMWAY_ENCRYPT=true "), "refused the connection")).

%% `erl -remsh' connects as a hidden node: with the options of the other node it gets a shell there, but nothing without them.
remote_shell(Config) ->
    {_, Environment} = key_file(Config, "keys", [new_key()]),
    {Peer, Node} = start(Config, "b", Environment),
    InClear = shell_on(Node, []),
    ok = says(Config, "b", "it calls in clear, and this node has encrypt true"),
    ?assertEqual([], beamway_peer:call(Peer, erlang, nodes, [hidden])),
    ok = end_shell(InClear),
    Shell = shell_on(Node, [{"BEAMWAY_ENCRYPT", "true"} | Environment]),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:call(Peer, erlang, nodes, [hidden]) =/= [] end, ?WAIT_MS),
    [Hidden] = beamway_peer:call(Peer, erlang, nodes, [hidden]),
    true = port_command(Shell, "{here, node()}.\n"),
    ok = shows(Shell, io_lib:format("{here,~p}", [Node]), <<>>),
    ?assertMatch(<<"key file ", _:8/binary>>, key(Peer, Hidden)),
    ok = end_shell(Shell).

%% The shell needs a terminal, which `script' provides.
shell_on(Node, Environment) ->
    Words = [beamway_peer:erl(), "-pa", beamway_peer:ebin(), "-proto_dist", "beamway", "-hidden", "-sname", beamway_peer:unique_name("bw"), "-setcookie", "beamway_test",
             "-remsh", atom_to_list(Node)],
    open_port({spawn_executable, os:find_executable("timeout")},
              [{args, ["120", "script", "-qefc", lists:flatten(lists:join(" ", lists:flatmap(fun words/1, Words))), "/dev/null"]},
               {env, [{"BEAMWAY_LINKS", "tcp"} | Environment]}, binary, exit_status, stderr_to_stdout]).

words([First | _] = Words) when is_list(First) -> Words;
words(Word) -> [Word].

%% Waits until the terminal shows the text; the typed line does not contain it.
shows(Shell, Text, Before) ->
    receive
        {Shell, {data, Bytes}} ->
            Seen = <<Before/binary, Bytes/binary>>,
            case string:find(Seen, unicode:characters_to_binary(Text)) of
                nomatch -> shows(Shell, Text, Seen);
                _ -> ok
            end;
        {Shell, {exit_status, Status}} -> error({shell_ended, Status, Before})
    after ?WAIT_MS * beamway_runner:slowness() -> error({not_shown, Before})
    end.

%% `timeout' passes the signal on, and the shell exits when its terminal closes. Without encryption it may already have exited.
end_shell(Shell) ->
    _ = case erlang:port_info(Shell, os_pid) of
            {os_pid, OsPid} -> os:cmd("kill " ++ integer_to_list(OsPid));
            undefined -> ended
        end,
    ended(Shell).

ended(Shell) ->
    receive
        {Shell, {exit_status, _}} -> ok;
        {Shell, {data, _}} -> ended(Shell)
    after ?WAIT_MS * beamway_runner:slowness() -> error(shell_goes_on)
    end.

%% The application alone does not encrypt anything, and logs this.
no_carrier(Config) ->
    {Peer, _} = start(Config, inet_tcp, "a", [{"BEAMWAY_ENCRYPT", "true"}]),
    {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [beamway]),
    ok = says(Config, "a", "encrypt has no effect").

%% ---- attackers on the path ----

%% An observer can read neither a name nor the cookie nor a message, even after a cut; in clear text everything but the cookie can be read.
nothing_readable(Config) ->
    [begin
         {{PeerA, NodeA} = A, {PeerB, NodeB} = B, _, _} = relayed(Config, Carrier, []),
         Relays = [beamway_relay:start(Address, Peer) || {Address, Peer} <- [{"127.0.0.2", PeerA}, {"127.0.0.3", PeerB}]],
         ok = beamway_peer:connect_both(Carrier, PeerA, PeerB),
         ok = sends_mark(A, B),
         lists:foreach(fun beamway_relay:cut/1, Relays),
         _ = beamway_peer:wait_until(fun() -> resumes(PeerA, NodeB) > 0 end, ?WAIT_MS),
         ok = sends_mark(B, A),
         Seen = iolist_to_binary([beamway_relay:recorded(Relay) || Relay <- Relays]),
         ?assert(byte_size(Seen) > 2000),
         Words = [hd(string:split(atom_to_list(Node), "@")) || Node <- [NodeA, NodeB]] ++ [?MARK, "beamway_test"],
         ?assertEqual({Carrier, Readable}, {Carrier, [binary:match(Seen, list_to_binary(Word)) =/= nomatch || Word <- Words]}),
         lists:foreach(fun beamway_relay:stop/1, Relays),
         beamway_peer:stop_all([PeerA, PeerB])
     end || {Carrier, Readable} <- [{beamway_tcp, [true, true, true, false]}, {beamway_encrypted, [false, false, false, false]}]],
    ok.

sends_mark({Peer, _}, {_, Node}) ->
    <<?MARK>> = beamway_peer:run(Peer, fun() -> erpc:call(Node, erlang, list_to_binary, [?MARK], 10000) end),
    ok.

%% Starts a pair with a relay in front of the second node; the nodes are not connected yet.
pair_with_relay(Config, Hook) ->
    {A, {PeerB, _} = B, _, _} = relayed(Config, beamway_encrypted, []),
    {A, B, beamway_relay:start("127.0.0.3", PeerB, Hook)}.

pass(_Way, _Before, Data) -> {ok, Data}.

%% Everything that a peer sent when it connected is replayed. No link results, and only the server's handshake comes back.
replay(Config) ->
    {{PeerA, NodeA} = A, {PeerB, _} = B, Relay} = pair_with_relay(Config, fun pass/3),
    ok = call(A, B),
    Recorded = beamway_relay:sent(Relay),
    ok = beamway_relay:stop(Relay),
    ok = beamway_peer:kill9(PeerA),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:call(PeerB, beamway, links, []) =:= [] end, ?WAIT_MS),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, beamway_relay:port(PeerB), [binary, {active, false}]),
    ok = gen_tcp:send(Socket, Recorded),
    _ = read_to_end(Socket),
    ?assertEqual([], beamway_peer:call(PeerB, beamway, links, [])),
    ?assertEqual(false, lists:member(NodeA, beamway_peer:call(PeerB, erlang, nodes, [connected]))),
    ok = says(Config, "b", "no encrypted connection with").

read_to_end(Socket) ->
    case gen_tcp:recv(Socket, 0, ?WAIT_MS) of
        {ok, Bytes} -> [Bytes | read_to_end(Socket)];
        {error, closed} -> [];
        {error, econnreset} -> []
    end.

%% The relay sends a caller's own data back to it.
reflection(Config) ->
    {A, B, Relay} = pair_with_relay(Config, fun(up, _, Data) -> {back, Data}; (down, _, Data) -> {ok, Data} end),
    ok = refused(A, B),
    ok = says(Config, "a", "no encrypted connection with"),
    beamway_relay:stop(Relay).

%% Both nodes have the same key, so a node whose connection is redirected to itself completes the TLS handshake with itself. The distribution's
%% handshake inside TLS checks the names.
call_to_itself(Config) ->
    {{PeerA, _} = A, {PeerB, NodeB}, _, _} = relayed(Config, beamway_encrypted, []),
    PortB = beamway_relay:port(PeerB),
    ok = beamway_peer:kill9(PeerB),
    {ok, Listen} = gen_tcp:listen(PortB, [binary, {ip, {127, 0, 0, 3}}, {active, false}, {reuseaddr, true}]),
    Name = hd(string:split(atom_to_list(NodeB), "@")),
    _ = beamway_peer:async(fun() -> led_to_itself(Listen, beamway_relay:port(PeerA)) end),
    Epmd = registered(Name, PortB),
    ok = refused(A, {none, NodeB}),
    ?assertEqual([], beamway_peer:call(PeerA, beamway, links, [])),
    [ok = gen_tcp:close(Socket) || Socket <- [Listen, Epmd]],
    ok.

led_to_itself(Listen, Port) ->
    {ok, Caller} = gen_tcp:accept(Listen, ?WAIT_MS),
    {ok, Called} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, true}]),
    ok = inet:setopts(Caller, [{active, true}]),
    carried(Caller, Called).

carried(One, Other) ->
    receive
        {tcp, One, Data} -> _ = gen_tcp:send(Other, Data), carried(One, Other);
        {tcp, Other, Data} -> _ = gen_tcp:send(One, Data), carried(One, Other);
        {tcp_closed, _} -> ok
    end.

registered(Name, Port) ->
    {ok, Socket} = gen_tcp:connect("localhost", list_to_integer(os:getenv("ERL_EPMD_PORT", "4369")), [binary, {active, false}]),
    Request = <<$x, Port:16, $M, 0, 6:16, 5:16, (length(Name)):16, (list_to_binary(Name))/binary, 0:16>>,
    ok = gen_tcp:send(Socket, <<(byte_size(Request)):16, Request/binary>>),
    {ok, <<_, 0, _/binary>>} = gen_tcp:recv(Socket, 0, ?WAIT_MS),
    Socket.

%% A connection that is closed at any point of the handshake does not result in a link, but the next attempt does.
truncation(Config) ->
    Way = fun(Limited, At) -> fun(W, Before, Data) when W =:= Limited, Before + byte_size(Data) >= At -> cut; (_, _, Data) -> {ok, Data} end end,
    {A, {PeerB, _} = B, _, _} = relayed(Config, beamway_encrypted, []),
    [begin
         Relay = beamway_relay:start("127.0.0.3", PeerB, Way(Limited, At)),
         ok = refused(A, B),
         ok = beamway_relay:stop(Relay)
     end || Limited <- [up, down], At <- [1, 100, 300, 400]],
    Relay = beamway_relay:start("127.0.0.3", PeerB),
    ok = call(A, B),
    beamway_relay:stop(Relay).

%% A flipped bit in the handshake prevents the link. A flipped bit after it closes the link or its connection, but no false message is delivered.
changed_bytes(Config) ->
    Flip = fun(<<Before:10/binary, Byte, After/binary>>) -> <<Before/binary, (Byte bxor 1), After/binary>>; (Short) -> Short end,
    {A, {PeerB, _} = B, _, _} = relayed(Config, beamway_encrypted, []),
    [begin
         Relay = beamway_relay:start("127.0.0.3", PeerB, fun(W, Before, Data) when W =:= Way, Before >= From -> {ok, Flip(Data)}; (_, _, Data) -> {ok, Data} end),
         ok = refused(A, B),
         ok = beamway_relay:stop(Relay)
     end || Way <- [up, down], From <- [0, 100]],
    ok.

%% An attacker blocks TLS on the path to a node that accepts clear text. A node that prefers encryption falls back to clear text; a node that requires
%% it (`true') sends nothing in clear text.
downgrade(Config) ->
    {PeerC, NodeC} = beamway_relay:node_at(beamway_tcp, "127.0.0.3", options(Config, "c", [])),
    [begin
         {Peer, _} = beamway_relay:node_at(beamway_encrypted, "127.0.0.2", options(Config, Mode, [{"BEAMWAY_ENCRYPT", Mode}])),
         Relay = beamway_relay:start("127.0.0.3", PeerC, fun(up, 0, <<22, _/binary>>) -> cut; (_, _, Data) -> {ok, Data} end),
         ?assertEqual({Mode, Connects}, {Mode, beamway_peer:call(Peer, net_kernel, connect_node, [NodeC])}),
         ?assertEqual({Mode, Connects}, {Mode, binary:match(beamway_relay:recorded(Relay), <<"bw-">>) =/= nomatch}),
         ok = beamway_relay:stop(Relay)
     end || {Mode, Connects} <- [{"true", false}, {"prefer", true}]],
    ok.

%% ---- strangers ----

garbage(Config) ->
    [A, {PeerB, _} = B] = [start(Config, Name, []) || Name <- ["a", "b"]],
    Port = beamway_relay:port(PeerB),
    [begin
         {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}]),
         ok = gen_tcp:send(Socket, Bytes),
         _ = read_to_end(Socket)
     end || Bytes <- [<<"GET / HTTP/1.1\r\n\r\n">>, <<22, 3, 1, 0, 5, "hello">>, <<22, 3, 1, 0, 0>>, <<22, 3, 1, 16#ffff:16>>, <<0:4000>>,
                      <<22, 3, 1, 512:16, (crypto:strong_rand_bytes(512))/binary>>, <<0, 20, "N", 0:136>>]],
    ok = call(A, B),
    ok = says(Config, "b", "it speaks no TLS").

%% Unauthenticated clients send nothing, or only half of their first packet. Peers can still connect, no such client stays connected for long, and
%% the log stays short.
silent_strangers(Config) ->
    [A, {PeerB, _} = B] = [start(Config, Name, []) || Name <- ["a", "b"]],
    Port = beamway_relay:port(PeerB),
    Sockets = [begin
                   {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}]),
                   _ = N rem 2 =:= 0 andalso gen_tcp:send(Socket, <<22, 3, 1, 512:16, 1>>),
                   Socket
               end || N <- lists:seq(1, ?STRANGERS)],
    Most = lists:max([receive after 20 -> half_open(PeerB) end || _ <- lists:seq(1, 25)]),
    ?assertEqual({Most, true}, {Most, Most > 10 andalso Most < 260}),
    Began = erlang:monotonic_time(millisecond),
    ok = call(A, B),
    io:format(user, "~b of ~b strangers were there at once; connected in ~b ms", [Most, ?STRANGERS, erlang:monotonic_time(millisecond) - Began]),
    _ = beamway_peer:wait_until(fun() -> half_open(PeerB) =:= 0 end, ?WAIT_MS),
    [_ = gen_tcp:close(Socket) || Socket <- Sockets],
    ?assert(lines(Config, "b", "no encrypted connection") < 50),
    ?assertMatch({match, _}, re:run(beamway_peer:call(PeerB, erlang, iolist_to_binary, [beamway_peer:call(PeerB, beamway, metrics, [])]), "beamway_handshakes_refused_total [1-9]")),
    ok = call(A, B).

%% Unauthenticated clients connect as fast as they can from many addresses, and send nothing, half of a first packet, or a whole one without a key.
%% A peer can connect in the meantime, and no trace of the clients remains afterwards.
flood_of_strangers(Config) ->
    {All, AtOnce, Args} = case os:getenv("BEAMWAY_TEST_STRANGERS", "") of
                              "" -> {beamway_carrier:scale(4000, 20000), 400, []};
                              Text -> {list_to_integer(Text), 1000, ["-kernel", "inet_dist_listen_options", "[{backlog,4096}]"]}
                          end,
    _ = ct:timetrap({minutes, 3 + All div 5000}),
    %% With the usual backlog of 128, the kernel drops most connections of a flood, and a client tries again only after a second.
    [{PeerA, _} = A, {PeerB, NodeB} = B, C] = [begin
                                                   {ok, Peer, Node} = beamway_peer:start(beamway_encrypted, (options(Config, Name, []))#{args => Args}),
                                                   {Peer, Node}
                                               end || Name <- ["a", "b", "c"]],
    ok = call(A, B),
    Link = beamway_peer:controller(PeerA, NodeB),
    Before = usage(PeerB),
    MemoryBefore = memory(PeerB),
    Port = beamway_relay:port(PeerB),
    Began = erlang:monotonic_time(millisecond),
    Floods = [spawn_monitor(fun() -> flood(Port, {127, 0, 3, Host}, All div ?ADDRESSES, queue:new()) end) || Host <- lists:seq(1, ?ADDRESSES)],
    _ = beamway_peer:wait_until(fun() -> half_open(PeerB) > 200 end, ?WAIT_MS),
    ok = call(C, B),
    ?assert(lists:any(fun({Pid, _}) -> is_process_alive(Pid) end, Floods)),
    Most = most_half_open(PeerB, Floods, 0),
    Took = erlang:monotonic_time(millisecond) - Began,
    %% A client that has just been accepted counts until another one is closed to make room for it.
    ?assertEqual({Most, true}, {Most, Most < AtOnce}),
    true = beamway_peer:wait_until(fun() -> half_open(PeerB) =:= 0 end, ?WAIT_MS),
    true = beamway_peer:wait_until(fun() -> [] =:= [More || {Now, Then} <- lists:zip(usage(PeerB), Before), (More = Now - Then) > 4] end, ?WAIT_MS),
    {ok, Refused} = beamway_peer:call(PeerB, beamway_half_open, count, []),
    %% The allocators keep some of the memory that they have once obtained.
    true = beamway_peer:wait_until(fun() -> maps:get(in_use_kb, memory(PeerB)) < maps:get(in_use_kb, MemoryBefore) + ?LEFT_KB end, ?WAIT_MS),
    io:format(user, "~b half handshakes in ~b ms, ~b refused, ~b at once; memory before ~0p, after ~0p~n", [All, Took, Refused, Most, MemoryBefore, memory(PeerB)]),
    %% The other clients disconnected before the node got to them.
    ?assert(Refused > All div 4),
    ?assertEqual(Link, beamway_peer:controller(PeerA, NodeB)),
    [ok = call(One, B) || One <- [A, C]],
    ?assert(lines(Config, "b", "no encrypted connection") < 12 * (2 + Took div 1000)).

most_half_open(_Peer, [], Most) ->
    Most;
most_half_open(Peer, [{_, Monitor} | Rest] = Floods, Most) ->
    receive
        {'DOWN', Monitor, process, _, Reason} ->
            ?assertEqual(normal, Reason),
            most_half_open(Peer, Rest, Most)
    after 20 ->
        most_half_open(Peer, Floods, max(Most, half_open(Peer)))
    end.

usage(Peer) -> [beamway_peer:call(Peer, erlang, system_info, [What]) || What <- [process_count, port_count]] ++ [length(beamway_peer:fds(beamway_peer:os_pid(Peer)))].

memory(Peer) ->
    _ = beamway_peer:run(Peer, fun() -> [erlang:garbage_collect(Pid) || Pid <- processes()], ok end),
    #{in_use_kb => beamway_peer:call(Peer, erlang, memory, [total]) div 1024, resident_kb => beamway_peer:resident_bytes(beamway_peer:os_pid(Peer)) div 1024}.

%% A reset does not leave a port of the kernel in TIME_WAIT.
flood(_Port, _Ip, 0, Open) ->
    lists:foreach(fun gen_tcp:close/1, queue:to_list(Open));
flood(Port, Ip, N, Open) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {ip, Ip}, {linger, {true, 0}}], ?WAIT_MS),
    Bytes = case N rem 3 of
                0 -> <<>>;
                1 -> <<22, 3, 1, 512:16, 1>>;
                2 -> <<22, 3, 1, 512:16, 0:4096>>
            end,
    _ = gen_tcp:send(Socket, Bytes),
    case queue:len(Open) < ?OPEN of
        true ->
            flood(Port, Ip, N - 1, queue:in(Socket, Open));
        false ->
            {{value, Oldest}, Rest} = queue:out(Open),
            ok = gen_tcp:close(Oldest),
            flood(Port, Ip, N - 1, queue:in(Socket, Rest))
    end.

half_open(Peer) -> length([Row || {Entry, _, _} = Row <- beamway_peer:call(Peer, ets, tab2list, [beamway_half_open]), is_integer(Entry)]).
