%% SPDX-License-Identifier: Apache-2.0
%% @doc Compressed links: which links are compressed, what arrives over them, what compression saves, and peers that cannot compress, do not want
%% to, or send false data.
-module(beamway_compress_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([saves_bytes/1, a_slow_path/1, over_cuts/1, what_is_random/1, the_path_decides/1, both_must_want_it/1, encrypted/1, an_older_peer/1, a_stock_peer/1,
         a_peer_that_lies/1, metrics/1]).

-define(WAIT_MS, 30000).
%% The last commit before links were compressed.
-define(BEFORE, "25857751").
-define(FAR, #{rate_bits => 200000000, delay_us => 10000, offload => 1, queue_bytes => 1000000}).
-define(NEAR, #{rate_bits => 200000000, delay_us => 500, offload => 1}).
-define(KEYS, [uncompressed_out, compressed_out, compress_us, uncompressed_in, compressed_in, decompress_us]).

suite() -> [{timetrap, {minutes, 4}}].

all() ->
    [saves_bytes, a_slow_path, over_cuts, what_is_random, the_path_decides, both_must_want_it, encrypted, an_older_peer, a_stock_peer, a_peer_that_lies, metrics].

init_per_suite(Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    Config.

end_per_suite(_Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% ---- cases ----

%% Sends small maps, as Phoenix.Presence does, and large rows of JSON, in both directions.
saves_bytes(_Config) ->
    {One, OneNode, Other, OtherNode} = pair(beamway_tcp, always(), always()),
    Sent = messages(100),
    ok = exchanged(One, Other, Sent),
    [#{uncompressed_out := Before, compressed_out := After} = Ours, #{uncompressed_in := Read, compressed_in := Packed}] = [info(One, OtherNode), info(Other, OneNode)],
    ct:pal("~p", [maps:with(?KEYS, Ours)]),
    ?assertEqual({Before, After}, {Read, Packed}),
    ?assert(Before > bytes(Sent) * 8 div 10),
    ?assert(After < Before * 35 div 100).

%% The same messages over the same path take less than half as long when they are compressed.
a_slow_path(_Config) ->
    [Plain, Compressed] = [begin
                               {One, _, Other, OtherNode} = pair(beamway_tcp, [{"BEAMWAY_ALLOW_FAULTS", "true"} | Env], Env),
                               ok = beamway_peer:call(One, beamway, fault, [OtherNode, #{rate_bytes => 200000}]),
                               {ok, Us} = sent(One, Other, messages(120)),
                               beamway_peer:stop_started(),
                               Us
                           end || Env <- [never(), always()]],
    ok = beamway_runner:say("~b KB over 200 KB/s took ~b ms, compressed ~b ms", [bytes(messages(120)) div 1000, Plain div 1000, Compressed div 1000]),
    ?assert(2 * Compressed < Plain).

over_cuts(_Config) ->
    {One, _, Other, OtherNode} = pair(beamway_tcp, [{"BEAMWAY_ALLOW_FAULTS", "true"} | always()], always()),
    [begin
         ok = beamway_peer:call(One, beamway, fault, [OtherNode, #{disconnect => true}]),
         ok = exchanged(One, Other, messages(30))
     end || _ <- lists:seq(1, 10)],
    #{resumes := Resumes, uncompressed_out := Before, compressed_out := After} = info(One, OtherNode),
    ?assert(Resumes >= 1),
    ?assert(After < Before * 35 div 100).

%% The driver hardly tries to compress random data.
what_is_random(_Config) ->
    {One, _, Other, OtherNode} = pair(beamway_tcp, always(), always()),
    Sent = {random, 100},
    ok = exchanged(One, Other, Sent),
    Info = info(One, OtherNode),
    ct:pal("~p", [maps:with(?KEYS, Info)]),
    ?assert(maps:get(uncompressed_out, Info) < bytes(Sent) div 5),
    ok = exchanged(One, Other, messages(10)).

%% No options are set, so the link is compressed only if the path is long. On the local host it is not compressed. The other two paths are tested only
%% if the case is allowed to create them.
the_path_decides(Config) ->
    {One, _, Other, OtherNode} = pair(beamway_tcp, [], []),
    ok = exchanged(One, Other, messages(20)),
    [] = keys(info(One, OtherNode)),
    beamway_peer:stop_started(),
    case test_support:with_tun(Config) of
        {skip, Reason} ->
            {skip, Reason};
        _ ->
            on_path(?NEAR, fun(Near) -> [] = keys(traffic(Near)) end),
            on_path(?FAR, fun(Far) -> #{uncompressed_out := Before, compressed_out := After} = traffic(Far), ?assert(After < Before * 35 div 100) end)
    end.

%% Sends a few messages, waits until the path has been measured, and then sends some more.
traffic({One, _, Other, OtherNode}) ->
    ok = exchanged(One, Other, messages(10)),
    receive after 1000 -> ok end,
    ok = exchanged(One, Other, messages(20)),
    info(One, OtherNode).

both_must_want_it(_Config) ->
    [begin
         {One, OneNode, Other, OtherNode} = pair(beamway_tcp, Ours, Theirs),
         ok = exchanged(One, Other, messages(20)),
         [[], []] = [keys(info(Peer, Node)) || {Peer, Node} <- [{One, OtherNode}, {Other, OneNode}]],
         beamway_peer:stop_started()
     end || {Ours, Theirs} <- [{always(), never()}, {never(), always()}, {never(), never()}]].

encrypted(_Config) ->
    Asked = [{"BEAMWAY_COMPRESS_ENCRYPTED", "true"} | always()],
    [begin
         {One, _, Other, OtherNode} = pair(Carrier, Ours, Theirs),
         ok = exchanged(One, Other, messages(20)),
         ?assertEqual(Wanted, keys(info(One, OtherNode)) =/= []),
         beamway_peer:stop_started()
     end || Carrier <- [beamway_tls, beamway_encrypted], {Ours, Theirs, Wanted} <- [{always(), always(), false}, {Asked, always(), false}, {Asked, Asked, true}]].

an_older_peer(Config) ->
    case beamway_builds:release(filename:join(proplists:get_value(priv_dir, Config), "before"), ?BEFORE, [beamway]) of
        {ok, [Ebin]} -> takes_nothing(beamway_peer:start(beamway_tcp, #{ebin => Ebin}));
        {skip, Reason} -> {skip, Reason}
    end.

a_stock_peer(_Config) -> takes_nothing(beamway_peer:start(inet_tcp, #{})).

takes_nothing({ok, Other, OtherNode}) ->
    {ok, One, _} = beamway_peer:start(beamway_tcp, #{env => always()}),
    true = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
    ok = exchanged(One, Other, messages(20)),
    [] = keys(info(One, OtherNode)).

%% A peer that sends what no node of this version sends loses its link, but other links stay up.
a_peer_that_lies(Config) ->
    Ebin = beamway_builds:build(filename:join(proplists:get_value(priv_dir, Config), "liar"),
                                [{"native/driver/packing.c", "frames->bytes << 32 | made", "(frames->bytes + 1) << 32 | made"}]),
    {One, OneNode, Honest, HonestNode} = pair(beamway_tcp, always(), always()),
    {ok, Other, OtherNode} = beamway_peer:start(beamway_tcp, #{ebin => Ebin, env => always()}),
    true = beamway_peer:call(Other, net_kernel, connect_node, [OneNode]),
    _ = beamway_peer:run(Other, fun() -> {nobody_there, OneNode} ! binary:copy(<<"lies">>, 10000) end),
    %% The peer may be connected again by the time the test queries the node.
    Ended = fun() -> [Link || {ok, Links} <- [beamway_peer:call(One, beamway, why, [OtherNode])], #{ended := _} = Link <- Links] end,
    true = beamway_peer:wait_until(fun() -> Ended() =/= [] end, ?WAIT_MS),
    [#{cause := protocol, ended := #{reason := Reason}} | _] = Ended(),
    ?assertEqual(<<"beamway_compression_corrupt">>, Reason),
    true = lists:member(HonestNode, beamway_peer:call(One, erlang, nodes, [])),
    ok = exchanged(One, Honest, messages(10)).

metrics(_Config) ->
    {One, _, Other, OtherNode} = pair(beamway_tcp, always(), always()),
    ok = exchanged(One, Other, messages(10)),
    Text = iolist_to_binary(beamway_peer:call(One, beamway, metrics, [])),
    Labels = ["\\{peer=\"", atom_to_list(OtherNode), "\",link=\"tcp\"\\} "],
    [?assertMatch({Name, {match, _}}, {Name, re:run(Text, ["(?m)^beamway_link_", Name, Labels, Value, "$"])})
     || {Name, Value} <- [{"rtt_seconds", "[0-9]+\\.[0-9]{6}"}] ++ [{[Time, "compress_seconds_total"], "[0-9]+\\.[0-9]{6}"} || Time <- ["", "de"]]
            ++ [{[atom_to_list(Key), "_total"], "[0-9]+"} || Key <- ?KEYS -- [compress_us, decompress_us]]],
    %% promtool complains about names that end in a unit other than Prometheus's base units.
    ?assertEqual(nomatch, re:run(Text, "^beamway_\\w+_([mun]?s|[kmg]b)(_total)?[{ ]", [multiline])).

%% ---- nodes and what they send ----

always() -> [{"BEAMWAY_COMPRESS", "always"}, {"BEAMWAY_COMPRESS_PERCENT", "100"}].

never() -> [{"BEAMWAY_COMPRESS", "never"}].

pair(Carrier, OneEnv, OtherEnv) -> pair(Carrier, [#{env => OneEnv}, #{env => OtherEnv}]).

pair(Carrier, Options) ->
    [{One, OneNode}, {Other, OtherNode}] = [begin {ok, Peer, Node} = beamway_peer:start(Carrier, Own), {Peer, Node} end || Own <- Options],
    ok = beamway_peer:connect_both(Carrier, One, Other),
    {One, OneNode, Other, OtherNode}.

on_path(Settings, Case) ->
    {ok, Path} = beamway_path:open("bwz", Settings),
    #{spaces := Spaces, addresses := Addresses} = beamway_path:net(Path),
    try Case(pair(beamway_tcp, [#{host => Address, wrapper => beamway_netns:host(Space)} || {Space, Address} <- lists:zip(Spaces, Addresses)]))
    after
        ok = beamway_peer:stop_started(),
        ok = beamway_path:close(Path)
    end.

info(Peer, Node) ->
    {ok, Info} = beamway_peer:call(Peer, beamway, info, [Node]),
    Info.

keys(Info) -> [Key || Key <- ?KEYS, is_map_key(Key, Info)].

%% One message in ten has many rows.
messages(Count) -> {messages, Count}.

message(N) when N rem 10 =:= 0 -> iolist_to_binary([row(N * 1000 + Row) || Row <- lists:seq(1, 1000)]);
message(N) -> #{user => N, joins => #{integer_to_binary(N) => #{metas => [#{phx_ref => base64:encode(<<(N * 7919):64>>), online_at => 1700000000 + N, device => <<"mobile">>}]}}, leaves => #{}}.

row(N) -> io_lib:format("{\"id\":~b,\"name\":\"user~b\",\"email\":\"user~b@example.org\",\"balance\":~b.~2..0b,\"active\":~ts}~n", [N, N * 7 rem 9973, N * 7 rem 9973, N * 31 rem 5003, N rem 100, N rem 3 =:= 0]).

bytes(What) -> lists:sum([erlang:external_size(Message) || Message <- generated(What)]).

%% The messages are generated both on the sending node and on the node that compares them, because the control connection to the nodes is slow.
generated({random, Count}) ->
    _ = rand:seed(exsss, 4711),
    [rand:bytes(200000) || _ <- lists:seq(1, Count)];
generated({messages, Count}) ->
    [message(N) || N <- lists:seq(1, Count)].

%% Data flows in both directions.
exchanged(One, Other, What) ->
    {ok, _} = sent(One, Other, What),
    {ok, _} = sent(Other, One, What),
    ok.

%% Each message arrives complete and in order. Returns how many microseconds that took.
sent(From, To, What) ->
    Taker = beamway_peer:run(To, fun() -> spawn(fun() -> take(generated(What)) end) end),
    beamway_peer:run(From, fun() ->
                                   Messages = generated(What),
                                   Begun = erlang:monotonic_time(microsecond),
                                   lists:foreach(fun(Message) -> Taker ! {message, Message} end, Messages),
                                   Taker ! {done, self()},
                                   receive {Taker, Result} -> {Result, erlang:monotonic_time(microsecond) - Begun} after ?WAIT_MS -> timeout end
                           end).

take(Left) ->
    receive
        {message, Message} when Message =:= hd(Left) -> take(tl(Left));
        {message, _} -> take([wrong]);
        {done, From} -> From ! {self(), case Left of [] -> ok; _ -> {left, length(Left)} end}
    end.
