%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests the console as users see it, with six real nodes under load on two hosts, which are network namespaces: each page is opened in Debian's
%% Chromium and clicked through (`console.js'), and screenshots are stored in `build/system-console/pictures'. The suite also measures the cost of 50
%% event streams, with all nodes on this host. Run by `make test-console', in an overlay that is removed afterwards.
-module(console_browser_SUITE).

-export([all/0, suite/0, init_per_testcase/2, end_per_testcase/2]).
-export([chromium/1, fifty_streams/1]).

-define(STREAMS, 50).
-define(LOOK_MS, 3000).
-define(WINDOWS, 5).
%% The fraction of a processor that each node may use.
-define(SHARE_MAX, 0.01).

suite() -> [{timetrap, {minutes, 12}}].

all() -> [fifty_streams, chromium].

init_per_testcase(fifty_streams, Config) ->
    cluster([{"ada", beamway_shm, #{}}, {"bob", beamway_shm, #{}}, {"cleo", beamway_shm, #{}}, {"dan", beamway_shm, #{}}, {"eve", beamway_tcp, #{}}, {"finn", beamway_tcp, #{}}], Config);
init_per_testcase(chromium, Config) ->
    case beamway_netns:pair("bwc") of
        {ok, #{spaces := [Here | _] = Spaces, addresses := Addresses} = Net} ->
            [One, Two] = [#{host => Address, wrapper => on_host(Name, Space)} || {Name, Space, Address} <- lists:zip3(["web1", "web2"], Spaces, Addresses)],
            cluster([{Name, beamway_shm, Host} || {Names, Host} <- [{["ada", "bob", "cleo"], One}, {["dan", "eve", "finn"], Two}], Name <- Names],
                    [{net, Net}, {browser, beamway_netns:host(Here)} | Config]);
        {error, Why} -> {skip, {rights, Why}}
    end.

%% The host has its own name, which the console shows.
on_host(Name, Space) -> [os:find_executable("unshare"), "--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", Name | beamway_netns:host(Space)].

cluster(Wanted, Config) ->
    Peers = [begin
                 {ok, Peer, Node} = beamway_peer:start(Carrier, Host#{name => Name, args => ["+SDio", "1", "+A", "1", "-kernel", "prevent_overlapping_partitions", "false"]}),
                 {Peer, Node}
             end || {Name, Carrier, Host} <- Wanted],
    Nodes = [Node || {_, Node} <- Peers],
    [true = beamway_peer:call(Peer, net_kernel, connect_node, [Node]) || {Peer, Own} <- Peers, Node <- Nodes, Node =/= Own],
    [ok = beamway_peer:run(Peer, fun() -> applications(Node) end) || {Peer, Node} <- Peers],
    [{First, Own} | _] = Peers,
    Port = beamway_peer:call(First, yucan_test_server, start, [shop]),
    [ok = beamway_peer:run(Peer, fun() -> load(lists:delete(Node, Nodes), Port, host(Node) =:= host(Own)) end) || {Peer, Node} <- Peers],
    %% The path is as short as that of a user's runtime directory.
    Pipes = filename:join(["/tmp", "beamway-console-" ++ os:getpid(), "rdpipe"]),
    ok = filelib:ensure_dir(filename:join(Pipes, "x")),
    {ok, Url} = beamway_peer:call(First, beamway_console, start, [#{port => 0, allow => true, pipes => Pipes}]),
    [{peers, Peers}, {url, binary_to_list(Url)}, {pipes, Pipes} | Config].

host(Node) -> lists:last(string:split(atom_to_list(Node), "@")).

end_per_testcase(_, Config) ->
    ok = beamway_peer:stop_started(),
    _ = [ok = beamway_netns:delete(Net) || {net, Net} <- Config],
    ok.

%% Called on the nodes.
applications(Node) ->
    [{ok, _} = application:ensure_all_started(App) || App <- [placement, teleport]],
    Initial = hd(atom_to_list(Node)),
    ok = placement:insert(rack, {static, case Initial < $d of true -> left; false -> right end}),
    ok = placement:insert(gpu, {static, Initial rem 3 =:= 0}),
    _ = register(sink, spawn(fun sink/0)),
    ok.

sink() -> receive _ -> sink() end.

load(Others, Port, IsHere) ->
    _ = [spawn(fun() -> calls(Other) end) || Other <- Others],
    _ = spawn(fun() -> bulk(Others, binary:copy(<<"x">>, 100000)) end),
    _ = spawn(fun() -> lease(Others) end),
    _ = [spawn(fun() -> requests(yucan_client:connect(Port), 1) end) || IsHere],
    ok.

%% Calls the other node. Some pairs exchange more data than others.
calls(Other) ->
    Data = binary:copy(<<"x">>, lists:nth(1 + erlang:phash2(lists:sort([node(), Other]), 4), [10, 300, 6000, 40000])),
    try erpc:call(Other, erlang, byte_size, [Data], 1000) catch _:_ -> ok end,
    pause(3 + rand:uniform(25)),
    calls(Other).

bulk(Others, Data) ->
    _ = [teleport:send({sink, Other}, {data, Data}, #{timeout => 1000}) || Other <- Others],
    pause(100 + rand:uniform(200)),
    bulk(Others, Data).

lease([Other | _] = Others) ->
    _ = placement:reserve(Other, #{}, #{ttl => 60000}),
    pause(50000),
    lease(Others).

%% Sends HTTP requests. Most of them succeed, and some are for a page that does not exist.
requests(Socket, N) ->
    ok = gen_tcp:send(Socket, ["GET ", case N rem 10 of 0 -> "/not-there"; _ -> "/hello" end, " HTTP/1.1\r\nHost: localhost\r\n\r\n"]),
    _ = yucan_client:one(Socket),
    pause(4),
    requests(Socket, N + 1).

pause(Ms) -> receive after Ms -> ok end.

%% ---- cases

chromium(Config) ->
    Root = filename:join([code:lib_dir(yucan), "..", ".."]),
    Pictures = test_support:file("build/system-console/pictures"),
    ok = filelib:ensure_dir(filename:join(Pictures, "x")),
    Pipe = pipe(Root, proplists:get_value(pipes, Config)),
    [{First, _} | _] = Peers = proplists:get_value(peers, Config),
    ok = beamway_peer:run(First, fun() -> beamway_console_jobs:set_measured(times(400)) end),
    {Victim, Node} = lists:last(Peers),
    [Program | Before] = proplists:get_value(browser, Config),
    Port = open_port({spawn_executable, Program},
                     [{args, Before ++ ["node", test_support:file("test/system/console/console.js"), "/usr/bin/chromium", proplists:get_value(url, Config), Pictures,
                              integer_to_list(beamway_peer:os_pid(Victim)), atom_to_list(Node)]},
                      {env, [{"NODE_PATH", os:getenv("NODE_MODULES")}]}, exit_status, stderr_to_stdout, {line, 2000}]),
    {Status, Lines} = seen(Port, []),
    _ = [catch port_close(Pipe)],
    [beamway_runner:say("     ~ts", [Line]) || Line <- Lines],
    {0, "all seen"} = {Status, lists:last(Lines)}.

times(Count) ->
    Nodes = [list_to_atom("n" ++ integer_to_list(N) ++ "@h") || N <- lists:seq(1, Count)],
    Far = fun(X, Y) -> case (X < 'n3@h') =:= (Y < 'n3@h') of true -> 50.0; false -> 500.0 end end,
    #{nodes => Nodes, failed => [], messages => 100, seconds => 2.0,
      pairs => maps:from_list([{{quiet, X, Y}, #{min_us => Far(X, Y), median_us => Far(X, Y), p90_us => Far(X, Y), batches => 20}} || X <- Nodes, Y <- Nodes, X < Y])}.

%% Starts a real pipe of three hops, which runs for longer than the test observes it.
pipe(Root, Folder) ->
    Program = filename:absname(filename:join([Root, "rdpipe", "build", "bin", "rdpipe"])),
    open_port({spawn_executable, "/bin/sh"},
              [{args, ["-c", "while head -c 3000000 /dev/zero; do sleep 0.2; done | \"$0\" :'tr a b' :cat >/dev/null", Program]},
               {env, [{"XDG_RUNTIME_DIR", filename:dirname(Folder)}]}, exit_status, stderr_to_stdout]).

seen(Port, Lines) ->
    receive
        {Port, {data, {_, Line}}} -> seen(Port, [Line | Lines]);
        {Port, {exit_status, Status}} -> {Status, lists:reverse(Lines)};
        _ -> seen(Port, Lines)
    after 300000 -> error({silent, lists:reverse(Lines)})
    end.

%% Measures the time that the collectors take according to their own clocks, which include other work that ran at the same time. Also
%% measures the number of calls per second, alternately with and without streams.
fifty_streams(Config) ->
    %% The calls are between two nodes, neither of which runs the console.
    [{First, _}, _, {Caller, _}, {_, Called} | _] = Peers = proplists:get_value(peers, Config),
    Port = url_port(proplists:get_value(url, Config)),
    Rounds = [begin
                  Without = calls_a_second(Caller, Called),
                  Sockets = [stream(Port) || _ <- lists:seq(1, ?STREAMS)],
                  With = calls_a_second(Caller, Called),
                  [ok = gen_tcp:close(Socket) || Socket <- Sockets],
                  {Without, With}
              end || _ <- lists:seq(1, 5)],
    {Without, With} = lists:unzip(Rounds),
    Spread = (lists:max(Without) - lists:min(Without)) / median(Without),
    Change = abs(1 - median(With) / median(Without)),
    beamway_runner:say("     calls/s without streams ~w (spread ~.1f %), with ~b ~w (~.1f %)", [median(Without), 100 * Spread, ?STREAMS, median(With), 100 * Change]),
    Sockets = [stream(Port) || _ <- lists:seq(1, ?STREAMS)],
    %% Other work on this machine can only increase the time, so the minimum of several windows is used.
    Windows = [begin Before = busy(First), pause(?LOOK_MS), {Before, busy(First)} end || _ <- lists:seq(1, ?WINDOWS)],
    [ok = gen_tcp:close(Socket) || Socket <- Sockets],
    Shares = [lists:min([(maps:get(Node, After) - maps:get(Node, Before)) / (?LOOK_MS * 1000) || {Before, After} <- Windows]) || {_, Node} <- Peers],
    beamway_runner:say("     with ~b event streams the collectors used ~ts % of a processor", [?STREAMS, lists:join(", ", [io_lib:format("~.2f", [100 * S]) || S <- Shares])]),
    [] = [Share || Share <- Shares, Share > ?SHARE_MAX],
    true = Change < max(Spread, 0.05).

busy(Peer) -> maps:from_list([{Node, maps:get(busy_us, Sample)} || {Node, #{sample := #{} = Sample}} <- maps:to_list(beamway_peer:call(Peer, beamway_console_hub, state, []))]).

median(Values) -> lists:nth((length(Values) + 1) div 2, lists:sort(Values)).

calls_a_second(Peer, Other) ->
    beamway_peer:run(Peer, fun() -> count_calls(Other, 0, erlang:monotonic_time(millisecond) + 2000) end) div 2.

count_calls(Other, Count, End) ->
    case erlang:monotonic_time(millisecond) >= End of
        true -> Count;
        false ->
            _ = erpc:call(Other, erlang, node, []),
            count_calls(Other, Count + 1, End)
    end.

%% Opens an event stream and reads it like a browser.
stream(Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}]),
    ok = gen_tcp:send(Socket, "GET /api/events?topics=cluster,http HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    Reader = spawn_link(fun() -> receive go -> drained(Socket) end end),
    ok = gen_tcp:controlling_process(Socket, Reader),
    Reader ! go,
    Socket.

drained(Socket) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, _} -> drained(Socket);
        {error, _} -> ok
    end.

url_port(Url) ->
    {match, [Port]} = re:run(Url, ":([0-9]+)/$", [{capture, all_but_first, list}]),
    list_to_integer(Port).
