%% SPDX-License-Identifier: Apache-2.0
%% @doc Links with several connections over a long path between two hosts: they spread if both sides want that,
%% survive the loss of some connections without losing or reordering a message, and fill a lossy path better than a
%% single connection does. Needs root.
-module(beamway_far_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([as_the_path_is/1, as_both_say/1, encrypted/1, some_are_lost/1, lost_while_idle/1, all_are_lost/1, fills_the_path/1, leaves_the_queue_empty/1]).

-define(WAIT_MS, 30000).
-define(FAR, #{rate_bits => 200000000, delay_us => 10000, offload => 1, queue_bytes => 1000000}).
-define(NEAR, #{rate_bits => 200000000, delay_us => 500, offload => 1}).
%% Most hosts use cubic. Some use BBR, which loss does not slow down.
-define(LOSSY, #{rate_bits => 200000000, delay_us => 25000, loss => 0.0005, seed => 7, queue_bytes => 2000000, congestion => cubic}).
%% 16 MB in the queue take 0.64 s.
-define(DEEP, #{rate_bits => 200000000, delay_us => 10000, offload => 1, queue_bytes => 16000000, congestion => cubic}).
-define(MESSAGE_BYTES, 1 bsl 20).
-define(FILL_MS, 5000).
-define(CASTS, 20000).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [as_the_path_is, as_both_say, encrypted, some_are_lost, lost_while_idle, all_are_lost, fills_the_path, leaves_the_queue_empty].

init_per_suite(Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    test_support:with_tun(Config).

end_per_suite(_Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% ---- cases ----

as_the_path_is(_Config) ->
    on_path(?FAR, fun(Net) -> connections(8, pair(Net, beamway_tcp, [[], []])) end),
    on_path(?NEAR, fun(Net) -> connections(none, pair(Net, beamway_tcp, [[], []])) end).

as_both_say(_Config) ->
    on_path(?NEAR, fun(Net) ->
                           _ = [begin
                                    connections(Wanted, pair(Net, beamway_tcp, [said(Says) || Says <- Say])),
                                    beamway_peer:stop_started()
                                end || {Wanted, Say} <- [{3, ["3", "auto"]}, {2, ["5", "2"]}, {none, ["1", "4"]}]],
                           ok
                   end).

%% Each connection has its own keys, and all data arrives intact.
encrypted(_Config) ->
    on_path(?FAR, fun(Net) ->
                          [begin
                               {One, _, Other, _} = Pair = pair(Net, Carrier, [said("4"), []]),
                               connections(4, Pair),
                               ok = all_casts_come(One, Other, fun() -> ok end),
                               beamway_peer:stop_started()
                           end || Carrier <- [beamway_tls, beamway_encrypted]]
                  end).

%% The connections are reset one after another while numbered messages are sent both ways. The link stays the same and regains its connections.
some_are_lost(_Config) ->
    on_path(?FAR, fun(Net) ->
                          {One, OneNode, Other, OtherNode} = Pair = pair(Net, beamway_tcp, [said("4"), []]),
                          connections(4, Pair),
                          ok = all_casts_come(One, Other, fun() -> [reset(Net, [Port]) || Port <- lists:sublist(ports(Net), 3)] end),
                          connections(4, Pair),
                          [false, false] = [maps:is_key(resumes, Info) || {Peer, Node} <- [{One, OtherNode}, {Other, OneNode}], {ok, Info} <- [beamway_peer:call(Peer, beamway, info, [Node])]],
                          ok
                  end).

%% An idle link uses one or two of its connections, so only the kernel's probes can show each node that the others are lost.
lost_while_idle(_Config) ->
    on_path(?FAR, fun(#{spaces := [Space, _]} = Net) ->
                          {_One, OneNode, Other, _OtherNode} = Pair = pair(Net, beamway_tcp, [said("4"), []]),
                          connections(4, Pair),
                          while_refused(Space, ["INPUT -p tcp --dport " ++ Port || Port <- lists:sublist(ports(Net), 3)],
                                        fun() -> beamway_peer:wait_until(fun() -> 1 =:= now_of(Other, OneNode) end, ?WAIT_MS) end),
                          connections(4, Pair)
                  end).

%% When all connections are lost, the link continues over a single new one, as any link does, and then spreads again.
all_are_lost(_Config) ->
    on_path(?FAR, fun(Net) ->
                          {One, _, Other, OtherNode} = Pair = pair(Net, beamway_tcp, [said("4"), []]),
                          connections(4, Pair),
                          ok = all_casts_come(One, Other, fun() -> reset(Net, ports(Net)) end),
                          connections(4, Pair),
                          {ok, #{resumes := Resumes}} = beamway_peer:call(One, beamway, info, [OtherNode]),
                          true = Resumes >= 1
                  end).

%% Compression is off, because the messages are repeated bytes. A single connection halves its window with each loss. `bench' measures the gain; this
%% bound is so low that only a defect misses it.
fills_the_path(_Config) ->
    [One, Several] = [on_path(?LOSSY, fun(Net) ->
                                              {From, _, To, _} = Pair = pair(Net, beamway_tcp, [[{"BEAMWAY_COMPRESS", "never"} | said(Says)], []]),
                                              connections(case Says of "1" -> none; _ -> 8 end, Pair),
                                              filled(From, To)
                                      end) || Says <- ["1", "auto"]],
    ok = beamway_runner:say("messages of 1 MB in ~b s over 200 Mbit/s, 50 ms and 0.05 % loss: ~b over one connection, ~b over 8", [?FILL_MS div 1000, One, Several]),
    true = Several > One * 3 div 2.

%% The path has a deep queue, and large messages could fill it. A link leaves most of it empty, so a call does not take much longer than over an idle
%% path, although the large messages use all of the path.
leaves_the_queue_empty(_Config) ->
    on_path(?DEEP, fun(Net) ->
                           {From, _, To, ToNode} = Pair = pair(Net, beamway_tcp, [[{"BEAMWAY_COMPRESS", "never"}], []]),
                           connections(8, Pair),
                           Calls = beamway_peer:async(fun() -> beamway_peer:run(From, fun() -> calls(ToNode, erlang:monotonic_time(millisecond) + ?FILL_MS) end) end),
                           Filled = filled(From, To),
                           Took = beamway_bench_stats:median(beamway_peer:await(Calls)),
                           ok = beamway_runner:say("a call takes ~b ms over 20 ms while ~b messages of 1 MB are received", [round(Took), Filled]),
                           true = Took < 250 andalso Filled > 60
                   end).

calls(Node, Until) ->
    Began = erlang:monotonic_time(millisecond),
    case Began < Until of
        true ->
            Node = erpc:call(Node, erlang, node, []),
            Took = erlang:monotonic_time(millisecond) - Began,
            receive after 20 -> [Took | calls(Node, Until)] end;
        false -> []
    end.

%% ---- nodes and their path ----

on_path(Settings, Case) ->
    {ok, Path} = beamway_path:open("bwf", Settings),
    try Case(beamway_path:net(Path))
    after
        ok = beamway_peer:stop_started(),
        ok = beamway_path:close(Path)
    end.

said(Connections) -> [{"BEAMWAY_CONNECTIONS", Connections}].

pair(#{spaces := Spaces, addresses := Addresses}, Carrier, Environments) ->
    [{One, OneNode}, {Other, OtherNode}] =
        [begin
             {ok, Peer, Node} = beamway_peer:start(Carrier, #{host => Address, wrapper => beamway_netns:host(Space), env => Environment}),
             {Peer, Node}
         end || {Space, Address, Environment} <- lists:zip3(Spaces, Addresses, Environments)],
    ok = beamway_peer:connect_both(Carrier, One, Other),
    {One, OneNode, Other, OtherNode}.

%% Waits until both nodes report this number of connections. With `none', waits for a second instead, in which a
%% defect would let the link spread.
connections(none, {One, OneNode, Other, OtherNode}) ->
    receive after 1000 -> ok end,
    [none, none] = [now_of(Peer, Node) || {Peer, Node} <- [{One, OtherNode}, {Other, OneNode}]],
    ok;
connections(Wanted, {One, OneNode, Other, OtherNode}) ->
    beamway_peer:wait_until(fun() -> [Wanted, Wanted] =:= [now_of(Peer, Node) || {Peer, Node} <- [{One, OtherNode}, {Other, OneNode}]] end, ?WAIT_MS).

now_of(Peer, Node) ->
    {ok, Info} = beamway_peer:call(Peer, beamway, info, [Node]),
    maps:get(connections, Info, none).

%% Returns the local ports of the first host's connections to the second, except those to epmd.
ports(#{spaces := [Space, _], addresses := [_, Address]}) ->
    [lists:last(string:lexemes(Local, ":"))
     || Line <- string:lexemes(beamway_netns:in(Space, "ss -Htn state established dst " ++ Address), "\n"), [_, _, Local, Remote | _] <- [string:lexemes(Line, " ")],
        lists:last(string:lexemes(Remote, ":")) =/= "4369", lists:last(string:lexemes(Local, ":")) =/= "4369"].

%% Resets both ends of these connections.
reset(#{spaces := [Space, _]}, Ports) ->
    while_refused(Space, ["INPUT -p tcp --dport " ++ Port || Port <- Ports] ++ ["OUTPUT -p tcp --sport " ++ Port || Port <- Ports],
                  fun() -> receive after 300 -> ok end end).

%% Answers each packet that matches with a reset, until Fun has returned.
while_refused(Space, Matches, Fun) ->
    Each = fun(Command) -> [beamway_netns:in(Space, "iptables " ++ Command ++ " " ++ Match ++ " -j REJECT --reject-with tcp-reset") || Match <- Matches] end,
    _ = Each("-I"),
    try Fun() after Each("-D") end,
    ok.

%% Sends numbered messages of many sizes both ways while something happens: each arrives exactly once and in order.
all_casts_come(One, Other, Happens) ->
    Receivers = [{Peer, beamway_peer:run(Peer, fun() -> spawn(fun() -> taking(0) end) end)} || Peer <- [One, Other]],
    [{_, AtOne}, {_, AtOther}] = Receivers,
    _ = [beamway_peer:run(Peer, fun() -> spawn(fun() -> cast(Receiver, 0) end) end) || {Peer, Receiver} <- [{One, AtOther}, {Other, AtOne}]],
    _ = Happens(),
    [beamway_peer:wait_until(fun() -> ?CASTS =:= beamway_peer:run(Peer, fun() -> taken(Receiver) end) end, 60000) || {Peer, Receiver} <- Receivers],
    ok.

cast(_To, ?CASTS) -> ok;
cast(To, N) ->
    To ! {N, binary:copy(<<N:32>>, (N * 7919) rem 400)},
    cast(To, N + 1).

taking(N) ->
    receive
        {N, Bytes} when N < ?CASTS -> Bytes = binary:copy(<<N:32>>, (N * 7919) rem 400), taking(N + 1);
        {taken, From} -> From ! {self(), N}, taking(N);
        Other -> exit({wrong, N, element(1, Other)})
    end.

taken(Receiver) ->
    Receiver ! {taken, self()},
    receive {Receiver, N} -> N after 5000 -> error(no_receiver) end.

%% Returns how many large messages arrive within FILL_MS, with a limited number in flight.
filled(From, To) ->
    Sink = beamway_peer:run(To, fun() -> spawn(fun sink/0) end),
    beamway_peer:run(From, fun() -> fill(Sink, binary:copy(<<"f">>, ?MESSAGE_BYTES), 16, 0, erlang:monotonic_time(millisecond) + ?FILL_MS) end).

sink() ->
    receive {From, _Payload} -> From ! taken end,
    sink().

fill(Sink, Payload, Credit, Taken, Until) when Credit > 0 ->
    Sink ! {self(), Payload},
    fill(Sink, Payload, Credit - 1, Taken, Until);
fill(Sink, Payload, 0, Taken, Until) ->
    LeftMs = Until - erlang:monotonic_time(millisecond),
    receive
        taken when LeftMs > 0 -> fill(Sink, Payload, 1, Taken + 1, Until)
    after max(0, LeftMs) ->
        Taken
    end.
