%% SPDX-License-Identifier: Apache-2.0
%% @doc Options of the carrier: invalid values, and what the options for links, ring memory and sockets do.
%%
%% Each case ends in the same way: one line in the node's log names the problem, the node still joins its cluster, and an existing link is not
%% affected.
-module(beamway_options_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([invalid_options/1, unknown_parameter/1, retired_option/1, the_best_of_links/1, no_ring_memory_for_tcp/1, ring_limit/1, ring_memory_used_up/1, ring_limit_of_small_rings/1,
         ring_limit_after_refusal/1, socket_dir_not_usable/1, socket_dir_in_another_locale/1]).

-import(beamway_friends, [under_test/1, log_file/1, falls_back/4, falls_back/5, has_line/2, problem_lines/1]).

-define(WAIT_MS, 20000).

suite() -> [{timetrap, {minutes, 2}}].

all() -> beamway_carrier:all([beamway_shm]).

groups() ->
    beamway_carrier:groups([beamway_shm], [invalid_options, unknown_parameter, retired_option, the_best_of_links, no_ring_memory_for_tcp, ring_limit, ring_memory_used_up, ring_limit_of_small_rings,
                                           ring_limit_after_refusal, socket_dir_not_usable, socket_dir_in_another_locale]).

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

init_per_testcase(_Case, Config) -> beamway_friends:begin_case(Config).

end_per_testcase(_Case, Config) -> beamway_friends:end_case(Config).

%% A node with an invalid option logs it once and still joins its cluster, but without the driver.
invalid_options(Config) ->
    [ok = falls_back(Config, #{env => [{Variable, Value}]}, inet, [Option, Value])
     || {Variable, Option, Value} <- [{"BEAMWAY_RING_BYTES", "ring_bytes", "0"},
                                      {"BEAMWAY_RING_BYTES", "ring_bytes", "-1"},
                                      {"BEAMWAY_RING_BYTES", "ring_bytes", "1000000000000"},
                                      {"BEAMWAY_RING_BYTES", "ring_bytes", "4MB"},
                                      {"BEAMWAY_LINKS", "links", "warp"},
                                      {"BEAMWAY_LINKS", "links", ","},
                                      {"BEAMWAY_POLL_US", "poll_us", "-5"},
                                      {"BEAMWAY_RING_LIMIT_BYTES", "ring_limit_bytes", "lots"},
                                      {"BEAMWAY_SOCKET_DIR", "socket_dir", "relative/dir"},
                                      {"BEAMWAY_CLASSES", "classes", "aten=fast"}]],
    ok.

%% The other parameters are valid, so they take effect.
unknown_parameter(Config) ->
    Log = log_file(Config),
    {ok, Peer, _} = beamway_peer:start(beamway_shm, #{log => Log, args => ["-hidden", "-beamway", "ringbytes", "1", "-beamway", "ring_bytes", "65536"]}),
    _ = beamway_peer:wait_until(fun() -> has_line([Log], ["the parameter ringbytes is not known and has no effect", "links, rdma, ring_bytes"]) end, ?WAIT_MS),
    [_] = problem_lines([Log]),
    #{ring_bytes := 65536, links := [_, _ | _]} = beamway_peer:call(Peer, beamway_links, config, []),
    ok = beamway_peer:stop(Peer).

%% The node logs once that an option of an older version has no effect, wherever it is set, and the other options take effect.
retired_option(Config) ->
    [begin
         Log = log_file(Config),
         {ok, Peer, _} = beamway_peer:start(beamway_shm, Set#{log => Log}),
         _ = beamway_peer:wait_until(fun() -> has_line([Log], ["whole_messages no longer has an effect", "BEAMWAY_WHOLE_MESSAGES"]) end, ?WAIT_MS),
         [_] = problem_lines([Log]),
         #{links := [_, _ | _]} = Options = beamway_peer:call(Peer, beamway_links, config, []),
         false = maps:is_key(whole_messages, Options),
         ok = beamway_peer:stop(Peer)
     end || Set <- [#{args => ["-hidden", "-beamway", "whole_messages", "true"]},
                    #{args => ["-hidden"], env => [{"BEAMWAY_WHOLE_MESSAGES", "true"}]}]],
    ok.

%% The best of the listed kinds is used; OTP's own port need not be listed and never conflicts.
the_best_of_links(Config) ->
    {Peer, Node} = under_test(Config),
    {ok, _, StockNode} = beamway_peer:start(inet_tcp, #{args => ["-hidden"]}),
    Shm = fun(Why) -> "shared memory is off on this node" ++ Why end,
    Stock = "the peer does not speak beamway",
    Off = "; OTP's own port: tcp is off on this node",
    [begin
         {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{env => [{"BEAMWAY_LINKS", Links}], args => ["-hidden"]}),
         [begin
              true = beamway_peer:call(Odd, net_kernel, connect_node, [To]),
              ok = beamway_peer:assert_link(Odd, To, Kind),
              ok = beamway_peer:assert_reason(Odd, To, Reason),
              To = beamway_peer:call(Odd, erpc, call, [To, erlang, node, []]),
              Labels = iolist_to_binary(["beamway_link_bytes_out_total{peer=\"", atom_to_list(To), "\",link=\"", atom_to_list(Kind), "\"} "]),
              {match, _} = re:run(beamway_peer:call(Odd, beamway, metrics, []), ["(?m)^\\Q", Labels, "\\E[1-9]"])
          end || {To, {Kind, Reason}} <- [{Node, Ours}, {StockNode, Theirs}]],
         %% Even if this node must not use its driver, the peer still uses its own.
         ok = beamway_peer:assert_link(Peer, OddNode, case Best of inet -> tcp; _ -> Best end),
         ok = beamway_peer:stop(Odd)
     end || {Links, {Best, _} = Ours, Theirs} <-
                [{"shm,rdma,tcp", {shm, "same host"}, {tcp, Stock}}, {"inet,tcp,shm", {shm, "same host"}, {tcp, Stock}},
                 {"tcp", {tcp, Shm("")}, {tcp, Stock}}, {"inet, tcp", {tcp, Shm("")}, {tcp, Stock}},
                 {"shm", {shm, "same host"}, {inet, Stock ++ Off}}, {"inet", {inet, Shm(Off)}, {inet, Stock ++ Off}}]],
    ok.

%% A TCP link has small rings when ring memory is scarce. Data that the socket's port has read ahead must fit into them.
no_ring_memory_for_tcp(Config) ->
    Short = [{"BEAMWAY_RING_LIMIT_BYTES", "0"}],
    ok = falls_back(Config, #{env => Short}, tcp, ["rings of 65536 instead of 262144 bytes"]),
    Buffer = "[{buffer,1000000}]",
    ok = falls_back(Config, #{env => Short, args => ["-kernel", "inet_dist_connect_options", Buffer, "inet_dist_listen_options", Buffer]},
                    inet, ["no link of the driver with", "using OTP's own port: no ring memory for the socket's option buffer"]).

%% The limit covers one and a half links: the second link gets smaller rings, and the third none until one is closed.
ring_limit(Config) ->
    {_, Node} = under_test(Config),
    Ring = 1048576,
    Env = [{"BEAMWAY_RING_BYTES", integer_to_list(Ring)}, {"BEAMWAY_RING_LIMIT_BYTES", integer_to_list(3 * Ring)}],
    [begin
         Log = log_file(Config),
         Starts = [beamway_peer:async(fun() -> beamway_peer:start(beamway_shm, Options#{args => ["-hidden"]}) end)
                   || Options <- [#{log => Log, env => Env}, #{}, #{}, #{}]],
         [{ok, Odd, OddNode} | Started] = [beamway_peer:await(Start) || Start <- Starts],
         Others = [{Peer, Name} || {ok, Peer, Name} <- Started],
         Connect = fun({Peer, Name}) ->
                           true = case Caller of
                                      odd -> beamway_peer:call(Odd, net_kernel, connect_node, [Name]);
                                      other -> beamway_peer:call(Peer, net_kernel, connect_node, [OddNode])
                                  end,
                           _ = beamway_peer:wait_until(fun() -> beamway_peer:controller(Odd, Name) =/= undefined end, ?WAIT_MS),
                           beamway_peer:call(Odd, beamway, info, [Name])
                   end,
         [First, {SecondPeer, Second} = SecondOne, Third] = Others,
         {ok, #{link := shm, ring_bytes := Ring}} = Connect(First),
         {ok, #{link := shm, ring_bytes := 524288}} = Connect(SecondOne),
         _ = beamway_peer:wait_until(fun() -> has_line([Log], ["rings of 524288 instead of 1048576 bytes", "ring_limit_bytes"]) end, ?WAIT_MS),
         {ok, #{link := tcp, reason := <<"the ring memory of this node is used up (ring_limit_bytes)">>}} = Connect(Third),
         {ThirdPeer, ThirdNode} = Third,
         _ = beamway_peer:wait_until(fun() -> has_line([Log], ["no shared memory with", "used up"]) end, ?WAIT_MS),
         true = beamway_peer:call(SecondPeer, erlang, disconnect_node, [OddNode]),
         true = beamway_peer:call(ThirdPeer, erlang, disconnect_node, [OddNode]),
         [ok = beamway_peer:wait_disconnected(Odd, Gone) || Gone <- [Second, ThirdNode]],
         {ok, #{link := shm, ring_bytes := 524288}} = Connect(Third),
         Node = beamway_peer:call(ThirdPeer, erpc, call, [OddNode, erpc, call, [Node, erlang, node, []]]),
         ok = beamway_peer:stop_all([Odd | [Peer || {Peer, _} <- Others]])
     end || Caller <- [odd, other]],
    ok.

%% The handshake reports that the ring memory is used up, so no offer is rejected, and the log has one line for all links.
ring_memory_used_up(Config) ->
    Logs = [Log | _] = [log_file(Config) || _ <- lists:seq(1, 4)],
    Starts = [beamway_peer:async(fun() -> beamway_peer:start(beamway_shm, Options#{log => File, args => ["-hidden"]}) end)
              || {File, Options} <- lists:zip(Logs, [#{env => [{"BEAMWAY_RING_LIMIT_BYTES", "0"}]}, #{}, #{}, #{}])],
    [{ok, Full, FullNode} | Others] = [beamway_peer:await(Start) || Start <- Starts],
    [{ok, First, FirstNode} | Callers] = Others,
    true = beamway_peer:call(Full, net_kernel, connect_node, [FirstNode]),
    [true = beamway_peer:call(Caller, net_kernel, connect_node, [FullNode]) || {ok, Caller, _} <- Callers],
    [begin
         _ = beamway_peer:wait_until(fun() -> beamway_peer:controller(Full, Name) =/= undefined end, ?WAIT_MS),
         {ok, #{link := tcp, reason := <<"the ring memory of this node is used up (ring_limit_bytes)">>}} = beamway_peer:call(Full, beamway, info, [Name]),
         {ok, #{link := tcp, reason := <<"the ring memory of the peer is used up (ring_limit_bytes)">>}} = beamway_peer:call(Peer, beamway, info, [FullNode])
     end || {ok, Peer, Name} <- Others],
    _ = beamway_peer:wait_until(fun() -> has_line([Log], ["no shared memory with", "used up"]) end, ?WAIT_MS),
    ok = beamway_peer:stop_all([Full, First | [Caller || {ok, Caller, _} <- Callers]]),
    [1, 0, 0, 0] = [length(binary:matches(Text, <<"no shared memory with">>)) || File <- Logs, {ok, Text} <- [file:read_file(File)]],
    ok.

%% The limit counts the rings that were created, whose size is the smaller of both nodes' values: here 128 KB for each link.
ring_limit_of_small_rings(_Config) ->
    {ok, Odd, _} = beamway_peer:start(beamway_shm, #{args => ["-hidden"],
                                                     env => [{"BEAMWAY_RING_BYTES", "1048576"}, {"BEAMWAY_RING_LIMIT_BYTES", "3145728"}]}),
    [begin
         {ok, _, Node} = beamway_peer:start(beamway_shm, #{args => ["-hidden"], env => [{"BEAMWAY_RING_BYTES", "65536"}]}),
         true = beamway_peer:call(Odd, net_kernel, connect_node, [Node]),
         {ok, #{link := shm, ring_bytes := 65536}} = beamway_peer:call(Odd, beamway, info, [Node])
     end || _ <- lists:seq(1, 4)],
    ok.

%% The memory that was reserved for rejected rings is free for the TCP link, because the limit applies to rings only.
ring_limit_after_refusal(_Config) ->
    {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{args => ["-hidden"],
                                                           env => [{"BEAMWAY_RING_BYTES", "1048576"}, {"BEAMWAY_RING_LIMIT_BYTES", "2097152"}]}),
    {ok, Caller, CallerNode} = beamway_peer:start(beamway_shm, #{args => ["-hidden"], env => [{"BEAMWAY_SOCKET_DIR", "/nowhere/at/all"}]}),
    true = beamway_peer:call(Caller, net_kernel, connect_node, [OddNode]),
    ok = beamway_peer:assert_link(Odd, CallerNode, tcp),
    {ok, #{link := tcp, ring_bytes := 262144}} = beamway_peer:call(Odd, beamway, info, [CallerNode]),
    ok.

%% The directory is unusable when the node starts: the node logs this, and again for each link that it offers without success.
socket_dir_not_usable(Config) ->
    [ok = falls_back(Config, #{env => [{"BEAMWAY_SOCKET_DIR", Dir}]}, tcp, Words, [odd])
     || {Dir, Why} <- [{"/nowhere/at/all", "No such file"}, {"/dev/null", "Not a directory"}],
        Words <- [["links use tcp as long as socket_dir", Dir, Why], ["no shared memory with", "socket_dir: " ++ Why]]],
    ok.

%% One node interprets the name as UTF-8, the other byte by byte because no locale is set.
socket_dir_in_another_locale(_Config) ->
    Folder = beamway_peer:new_folder("beamway-locale"),
    Dir = filename:join(Folder, "gr\x{f6}\x{df}e"),
    ok = file:make_dir(Dir),
    Options = #{args => ["-hidden"], env => [{"BEAMWAY_SOCKET_DIR", Dir}]},
    try
        {ok, One, OneNode} = beamway_peer:start(beamway_shm, Options),
        {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, Options#{args := ["-hidden", "+fnl"]}),
        latin1 = beamway_peer:call(Odd, file, native_name_encoding, []),
        [begin
             ok = beamway_peer:connect_both(beamway_shm, Caller, Called),
             true = beamway_peer:call(One, erlang, disconnect_node, [OddNode]),
             ok = beamway_peer:wait_disconnected(One, OddNode),
             ok = beamway_peer:wait_disconnected(Odd, OneNode)
         end || {Caller, Called} <- [{One, Odd}, {Odd, One}]],
        Left = filename:join(Dir, "beamway-0123456789abcdef"),
        [begin
             ok = leave_socket(Left),
             1 = beamway_peer:call(Each, beamway_socket_dir, sweep, [maps:get(socket_dir, beamway_peer:call(Each, beamway_links, config, []))])
         end || Each <- [One, Odd]]
    after
        file:del_dir_r(Folder)
    end,
    ok.

%% Leaves behind a stale name without an owner, as a killed node does.
leave_socket(Path) ->
    {ok, Socket} = gen_tcp:listen(0, [local, {ifaddr, {local, beamway_socket_dir:bytes(Path)}}]),
    ok = gen_tcp:close(Socket),
    file:change_time(Path, {{2020, 1, 1}, {0, 0, 0}}).
