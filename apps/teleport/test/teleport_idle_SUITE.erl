%% SPDX-License-Identifier: Apache-2.0
%% @doc Lanes that nobody uses are closed. A peer at rest costs few descriptors, and whoever sends next notices nothing.
-module(teleport_idle_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([descriptors_at_rest/1, bursts/1, waiting_calls_are_use/1, confirmed_by_the_next_lane/1, nodes_that_come_and_go/1, killed_before_the_link/1, peer_stands_still/1]).
-export([gather/1]).
-import(teleport_nodes, [wait_ms/0]).

%% In each node, for all lanes in both directions and the distribution.
-define(MOST_AT_REST, 12).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [{group, shm}, {group, tcp}].

groups() -> teleport_nodes:groups([shm, tcp], [descriptors_at_rest, bursts, waiting_calls_are_use, confirmed_by_the_next_lane, nodes_that_come_and_go, killed_before_the_link, peer_stands_still]).

init_per_group(Kind, Config) -> teleport_nodes:init_group(Kind, Config).

end_per_group(_Kind, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

pair(Config) ->
    Pair = teleport_nodes:start_pair(Config),
    ok = teleport_nodes:on_first(Pair, fun(_) -> configured() end),
    Pair.

configured() -> ok = teleport:configure(all, #{idle_ms => 100}).

%% The node's process would look within 5 s, as it does in descriptors_at_rest.
closes_soon(Node) ->
    ok = configured(),
    {ok, Peer} = teleport_peers:peer(Node, teleport_deadline:in(wait_ms())),
    look = Peer ! look,
    ok.

at_rest(Node) -> beamway_peer:wait_until(fun() -> teleport:lanes(Node) =:= [] end, wait_ms()).

%% All lanes of both nodes are opened, then nobody uses them.
descriptors_at_rest(Config) ->
    [{PeerA, NodeA}, {PeerB, NodeB}] = Both = [teleport_nodes:start(teleport_nodes:kind(Config)) || _ <- [1, 2]],
    Before = [descriptors(Peer) || {Peer, _} <- Both],
    ok = teleport_nodes:connect(PeerA, NodeB),
    [ok = beamway_peer:call(Peer, teleport, prime, [Node]) || {Peer, Node} <- [{PeerA, NodeB}, {PeerB, NodeA}]],
    [true = Open - Closed > ?MOST_AT_REST || {Open, Closed} <- lists:zip([descriptors(Peer) || {Peer, _} <- Both], Before)],
    [ok = beamway_peer:run(Peer, fun() -> configured() end) || {Peer, _} <- Both],
    [true = beamway_peer:run(Peer, fun() -> at_rest(Node) end, 2 * wait_ms()) || {Peer, Node} <- [{PeerA, NodeB}, {PeerB, NodeA}]],
    [beamway_peer:wait_until(fun() -> descriptors(Peer) - Closed =< ?MOST_AT_REST end, wait_ms()) || {{Peer, _}, Closed} <- lists:zip(Both, Before)],
    ok = beamway_peer:run(PeerA, fun() ->
                                         Server = erpc:call(NodeB, teleport_nodes, start_server, [none]),
                                         {echo, x} = teleport:call(Server, {echo, x}),
                                         [] = teleport:not_up(),
                                         true = #{} =:= teleport:unconfirmed(),
                                         ok
                                 end).

descriptors(Peer) -> length(beamway_peer:fds(beamway_peer:os_pid(Peer))).

%% Ten senders begin at the moments at which the lanes are about to be closed: no message is lost or overtaken, and no call fails.
bursts(Config) ->
    teleport_nodes:on_first(pair(Config), fun(Node) ->
        Receiver = spawn(Node, ?MODULE, gather, [#{}]),
        Server = erpc:call(Node, teleport_nodes, start_server, [idle_server]),
        Who = lists:seq(1, 10),
        Round = fun(N) ->
                        Senders = [spawn_monitor(fun() -> burst(Receiver, Server, Node, W, N) end) || W <- Who],
                        [receive {'DOWN', M, process, P, Reason} -> normal = Reason after wait_ms() -> error(stuck) end || {P, M} <- Senders],
                        receive after 90 + N rem 40 -> ok end
                end,
        lists:foreach(Round, lists:seq(1, 25)),
        Receiver ! {give, self()},
        true = at_rest(Node),
        receive {seen, Seen} -> true = maps:from_keys(Who, 50) =:= Seen after wait_ms() -> error(no_answer) end,
        true = #{} =:= teleport:unconfirmed()
    end).

burst(Receiver, Server, Node, Who, N) ->
    ok = teleport:send(Receiver, {Who, 2 * N - 1}, #{key => Who}),
    {echo, N} = teleport:call({idle_server, Node}, {echo, N}),
    N = teleport:erpc_call(Node, erlang, abs, [N]),
    {reply, {echo, N}} = teleport:receive_response(teleport:send_request(Server, {echo, N}), wait_ms()),
    {ok, Ref} = teleport:send(Receiver, {Who, 2 * N}, #{key => Who, confirm => true}),
    receive {teleport, Ref, confirmed} -> ok after wait_ms() -> error(not_confirmed) end.

%% @private Counts what comes, and ends if a number is left out.
gather(Seen) ->
    receive
        {give, From} -> From ! {seen, Seen}, gather(Seen);
        {Who, N} ->
            N = maps:get(Who, Seen, 0) + 1,
            gather(Seen#{Who => N})
    end.

%% The other lane is closed, and opened again, meanwhile.
waiting_calls_are_use(Config) ->
    teleport_nodes:on_first(pair(Config), fun(Node) ->
        Server = erpc:call(Node, teleport_nodes, start_server, [none]),
        Gate = teleport_nodes:gate(),
        Id = teleport:send_request(Server, {behind, Gate, later}),
        Others = fun() -> [L || #{class := control} = L <- teleport:lanes(Node)] end,
        [begin
             {echo, N} = teleport:call(Server, {echo, N}, wait_ms(), #{class => control}),
             beamway_peer:wait_until(fun() -> Others() =:= [] end, wait_ms())
         end || N <- [1, 2, 3]],
        [#{class := normal}] = teleport:lanes(Node),
        ok = teleport_nodes:open_gate(Gate),
        {reply, later} = teleport:receive_response(Id, wait_ms()),
        true = at_rest(Node)
    end).

%% A lane is out of use, or lost, and senders still find it. A message that is to be confirmed takes the next one, and its sender hears of that one alone.
confirmed_by_the_next_lane(Config) ->
    teleport_nodes:on_first(teleport_nodes:start_pair(Config), fun(Node) ->
        Server = erpc:call(Node, teleport_nodes, start_server, [none]),
        {ok, Peer} = teleport_peers:peer(Node, teleport_deadline:in(wait_ms())),
        %% Of low priority: the process that waits for the confirmation has seen the lane's end before.
        Send = fun(Message) ->
                       _ = process_flag(priority, low),
                       {ok, Ref} = teleport:send(Server, Message, #{class => control, confirm => true}),
                       receive {teleport, Ref, confirmed} -> ok after wait_ms() -> error(not_confirmed) end,
                       {messages, []} = process_info(self(), messages),
                       ok
               end,
        Rest = fun(Tx) -> teleport_sender:rest(Tx, teleport_sender:sent(Tx)) end,
        Kill = fun(Tx) ->
                       true = exit(teleport_sender:pid(Tx), kill),
                       beamway_peer:wait_until(fun() -> erlang:port_info(teleport_sender:link(Tx)) =:= undefined end, wait_ms())
               end,
        [begin
             ok = teleport:prime(Node, wait_ms()),
             [Tx] = [Up || {out, {_, control, _}, Up} <- teleport_peers:all()],
             %% It sees the lane's end when the sender has found that out.
             ok = sys:suspend(Peer),
             true = End(Tx),
             {Sender, _} = Sending = beamway_peer:async(fun() -> Send(Name) end),
             true = beamway_peer:wait_until(fun() -> is_asked(Peer) orelse not is_process_alive(Sender) end, wait_ms()),
             true = exit(teleport_sender:pid(Tx), kill),
             ok = sys:resume(Peer),
             ok = beamway_peer:await(Sending)
         end || {Name, End} <- [{rests, Rest}, {lost, Kill}]],
        [rests, lost] = teleport:call(Server, log)
    end).

is_asked(Peer) ->
    {messages, Messages} = process_info(Peer, messages),
    lists:any(fun({'$gen_call', _, {lane, control, _, _, _}}) -> true; (_) -> false end, Messages).

%% Each has another name, and its lanes are closed before it ends. The called node remembers the turns of few lanes.
nodes_that_come_and_go(Config) ->
    {Called, Node} = teleport_nodes:start(teleport_nodes:kind(Config)),
    Options = #{teleport => #{lanes => maps:from_keys([control, normal, bulk], 16), ring_bytes => 65536}},
    [begin
         {Peer, Name} = teleport_nodes:start(teleport_nodes:kind(Config), Options),
         ok = teleport_nodes:connect(Peer, Node),
         ok = beamway_peer:call(Peer, teleport, prime, [Node, wait_ms()], wait_ms()),
         beamway_peer:wait_until(fun() -> length([x || {Of, _, _} <- turns(Called), Of =:= Name]) =:= 48 end, wait_ms()),
         ok = beamway_peer:run(Peer, fun() -> closes_soon(Node) end),
         true = beamway_peer:run(Called, fun() -> at_rest(Name) end, 2 * wait_ms()),
         ok = beamway_peer:stop(Peer),
         ok = beamway_peer:wait_disconnected(Called, Name)
     end || _ <- [1, 2, 3]],
    true = length(turns(Called)) =< 64.

turns(Peer) -> beamway_peer:run(Peer, fun() -> maps:keys(element(5, sys:get_state(teleport_peers))) end).

%% A sender is killed when its message has a number, and before the link has it.
killed_before_the_link(Config) ->
    teleport_nodes:on_first(teleport_nodes:start_pair(Config), fun(Node) ->
        ok = teleport:prime(Node, wait_ms()),
        {Sent, Lanes} = {3, [Tx || {out, _, Tx} <- teleport_peers:all()]},
        [ok = atomics:add(teleport_sender:counters(Tx), Sent, 1) || Tx <- Lanes],
        [1 = teleport_sender:outstanding(Tx) || Tx <- Lanes],
        ok = closes_soon(Node),
        true = at_rest(Node),
        true = #{} =:= teleport:unconfirmed()
    end).

%% The lane stays as long as the peer has acknowledged nothing, and what it was sent is unconfirmed when it is killed.
peer_stands_still(Config) ->
    Pair = teleport_nodes:start_pair(Config),
    ok = teleport_nodes:on_first(Pair, fun(Node) -> ok = teleport:prime(Node, wait_ms()) end),
    ok = beamway_peer:sigstop(teleport_nodes:second(Pair)),
    ok = teleport_nodes:on_first(Pair, fun(Node) ->
        ok = teleport:send({nobody, Node}, x, #{class => control}),
        ok = closes_soon(Node),
        %% The question has been asked, and time for an answer has passed.
        beamway_peer:wait_until(fun() -> [] =/= [x || #{class := control, sent := 2} <- teleport:lanes(Node)] end, wait_ms()),
        receive after 500 -> ok end,
        [_] = teleport:lanes(Node)
    end),
    ok = beamway_peer:kill9(teleport_nodes:second(Pair)),
    teleport_nodes:on_first(Pair, fun(Node) ->
        beamway_peer:wait_until(fun() -> maps:get(Node, teleport:unconfirmed(), 0) > 0 end, wait_ms())
    end).
