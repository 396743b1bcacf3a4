%% SPDX-License-Identifier: Apache-2.0
%% @doc Which way messages and calls take where nobody says it: to a pid by the distribution where Beamway carries it, to a name by a lane.
-module(teleport_way_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2]).
-export([pids_by_distribution/1, lanes_where_asked_for/1, first_messages_in_order/1, all_kinds_in_order/1, names_take_lanes/1, stock_takes_lanes/1,
         full_is_told/1, limits_are_kept/1, sender_is_suspended/1, node_that_is_gone/1, node_comes_back/1, as_configured/1]).
-export([take/2]).
-import(teleport_nodes, [wait_ms/0]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> teleport_nodes:all([beamway, tcp]).

groups() ->
    Both = [names_take_lanes, node_that_is_gone, node_comes_back, as_configured],
    teleport_nodes:groups([beamway], [pids_by_distribution, lanes_where_asked_for, first_messages_in_order, all_kinds_in_order, full_is_told, limits_are_kept,
                                      sender_is_suspended | Both])
        ++ teleport_nodes:groups([tcp], [stock_takes_lanes | Both]).

init_per_group(Kind, Config) -> teleport_nodes:init_group(Kind, Config).

end_per_group(_Kind, _Config) -> ok.

%% On two nodes of the case's own: the first use of a node is part of what is tested.
on_first(Config, Body) -> with_pair(Config, fun(Pair) -> teleport_nodes:on_first(Pair, Body) end).

with_pair(Config, Body) ->
    {PeerA, NodeA} = teleport_nodes:start(teleport_nodes:kind(Config)),
    {PeerB, NodeB} = teleport_nodes:start(teleport_nodes:kind(Config)),
    try Body([{pair, {PeerA, NodeA, PeerB, NodeB}} | Config])
    after beamway_peer:stop_all([PeerA, PeerB])
    end.

%% @private Takes so many messages and casts; tells them in their order.
take(Test, 0) -> receive done -> Test ! {self(), []} end;
take(Test, Count) -> Test ! {self(), taken(Count)}.

taken(0) -> [];
taken(Left) ->
    receive
        {'$gen_cast', Number, _} -> [Number | taken(Left - 1)];
        {'$gen_cast', Number} -> [Number | taken(Left - 1)];
        {'$gen_call', From, Number} -> gen_server:reply(From, Number), [Number | taken(Left - 1)];
        Number -> [Number | taken(Left - 1)]
    end.

all_of(Pid) -> receive {Pid, Taken} -> Taken after wait_ms() -> error(not_all_came) end.

lanes_of(Node, Class) -> [Index || #{class := Of, index := Index} <- teleport:lanes(Node), Of =:= Class].

%% What a lane has carried: its counters.
carried_by_lanes(Node) -> lists:sum([Sent || #{opened_by := this_node, sent := Sent} <- teleport:lanes(Node)]).

pids_by_distribution(Config) ->
    on_first(Config, fun(Node) ->
        Pid = spawn(Node, ?MODULE, take, [self(), 3]),
        ok = teleport:send(Pid, 1),
        ok = teleport:cast(Pid, 2),
        3 = teleport:call(Pid, 3, wait_ms()),
        [1, 2, 3] = all_of(Pid),
        Server = erpc:call(Node, teleport_nodes, start_server, [none]),
        {_, [alias | _]} = teleport:call(Server, from),
        {reply, {_, [alias | _]}} = teleport:receive_response(teleport:send_request(Server, from), wait_ms()),
        yes = global:register_name(way_server, Server),
        {_, [alias | _]} = teleport:call({global, way_server}, from),
        [] = teleport:lanes(Node),
        %% What is configured holds for the next message.
        ok = teleport:configure(all, #{way => lane}),
        ok = teleport:cast(Server, x),
        1 = carried_by_lanes(Node)
    end).

lanes_where_asked_for(Config) ->
    on_first(Config, fun(Node) ->
        All = [#{key => 1}, #{class => control}, #{class => bulk}, #{unordered => true}, #{on_full => drop}, #{way => lane}],
        Pid = spawn(Node, ?MODULE, take, [self(), length(All)]),
        [begin ok = teleport:send(Pid, N, Options), N = carried_by_lanes(Node) end || {N, Options} <- lists:zip(lists:seq(1, length(All)), All)],
        _ = all_of(Pid),
        {ok, Ref} = teleport:send(spawn(Node, ?MODULE, take, [self(), 1]), x, #{confirm => true}),
        receive {teleport, Ref, Confirmed} -> confirmed = Confirmed after wait_ms() -> error(not_confirmed) end,
        [_ | _] = lanes_of(Node, control),
        Server = erpc:call(Node, teleport_nodes, start_server, [none]),
        {_, Tag} = teleport:call(Server, from, wait_ms(), #{class => control}),
        true = is_reference(Tag)
    end).

%% The first message finds no connection. Those behind it must not find another way.
first_messages_in_order(Config) ->
    with_pair(Config, fun(Pair) ->
        Server = beamway_peer:call(teleport_nodes:second(Pair), teleport_nodes, start_server, [none]),
        teleport_nodes:on_first(Pair, fun(Node) ->
            false = lists:member(Node, nodes(connected)),
            [ok = teleport:cast(Server, N) || N <- lists:seq(1, 2000)],
            true = teleport:call(Server, log, wait_ms()) =:= [{cast, N} || N <- lists:seq(1, 2000)],
            [] = teleport:lanes(Node)
        end)
    end).

all_kinds_in_order(Config) ->
    on_first(Config, fun(Node) ->
        Large = binary:copy(<<"x">>, 300000),
        Sends = [fun(Pid, N) -> ok = teleport:send(Pid, N) end,
                 fun(Pid, N) -> ok = teleport:cast(Pid, N) end,
                 fun(Pid, N) -> ok = teleport:send(Pid, {'$gen_cast', N, Large}) end,
                 fun(Pid, N) -> Pid ! N end,
                 fun(Pid, N) -> ok = teleport:cast(Pid, N, #{on_full => block, timeout => wait_ms()}) end,
                 fun(Pid, N) -> _ = teleport:send_request(Pid, N) end,
                 fun(Pid, N) -> N = teleport:call(Pid, N, wait_ms()) end],
        Senders = [spawn_monitor(fun() ->
            Pid = erpc:call(Node, erlang, spawn_opt, [?MODULE, take, [self(), 700], [{message_queue_data, Queue}]]),
            [(lists:nth(1 + (N * N) rem 7, Sends))(Pid, N) || N <- lists:seq(1, 700)],
            true = all_of(Pid) =:= lists:seq(1, 700)
        end) || Queue <- [on_heap, off_heap], _ <- [1, 2, 3]],
        [receive {'DOWN', M, process, P, Reason} -> normal = Reason after wait_ms() -> error(stuck) end || {P, M} <- Senders]
    end).

names_take_lanes(Config) ->
    on_first(Config, fun(Node) ->
        _ = erpc:call(Node, teleport_nodes, start_server, [way_server]),
        {_, Tag} = teleport:call({way_server, Node}, from),
        true = is_reference(Tag),
        ok = teleport:cast({way_server, Node}, x),
        [{cast, x}] = teleport:call({way_server, Node}, log),
        3 = carried_by_lanes(Node)
    end).

stock_takes_lanes(Config) ->
    on_first(Config, fun(Node) ->
        Pid = spawn(Node, ?MODULE, take, [self(), 2]),
        ok = teleport:send(Pid, 1),
        ok = teleport:cast(Pid, 2),
        [1, 2] = all_of(Pid),
        2 = carried_by_lanes(Node)
    end).

%% A port is busy for a moment, too, whenever it has much to write.
until_full(Pid, Payload, Left) -> until_full(Pid, Payload, Left, 0).

until_full(_, _, 0, _) -> error(never_full);
until_full(_, _, _, 5) -> full;
until_full(Pid, Payload, Left, Refused) ->
    case teleport:send(Pid, Payload, #{on_full => error}) of
        ok -> until_full(Pid, Payload, Left - 1, 0);
        {error, overload} -> receive after 20 -> until_full(Pid, Payload, Left, Refused + 1) end
    end.

%% The body gets a process of the second node, which is stopped meanwhile.
beside_stopped(Config, Body) ->
    with_pair(Config, fun(Pair) ->
        Second = teleport_nodes:second(Pair),
        Node = teleport_nodes:second_node(Pair),
        Pid = beamway_peer:run(teleport_nodes:first(Pair), fun() -> true = net_kernel:connect_node(Node), spawn(Node, ?MODULE, take, [self(), 0]) end),
        ok = beamway_peer:sigstop(Second),
        try teleport_nodes:on_first(Pair, fun(_) -> Body(Pid) end)
        after beamway_peer:sigcont(Second)
        end
    end).

full_is_told(Config) ->
    beside_stopped(Config, fun(Pid) ->
        full = until_full(Pid, binary:copy(<<"f">>, 1000), 1000000),
        {error, overload} = teleport:send(Pid, x, #{on_full => error}),
        [] = teleport:lanes(node(Pid))
    end).

limits_are_kept(Config) ->
    beside_stopped(Config, fun(Pid) ->
        full = until_full(Pid, binary:copy(<<"f">>, 1000), 1000000),
        {error, timeout} = teleport:send(Pid, x, #{timeout => 0}),
        Began = erlang:monotonic_time(millisecond),
        {error, timeout} = teleport:send(Pid, x, #{timeout => 200}),
        true = erlang:monotonic_time(millisecond) - Began >= 200
    end).

%% As by `!', and the end of the connection ends it.
sender_is_suspended(Config) ->
    beside_stopped(Config, fun(Pid) ->
        full = until_full(Pid, binary:copy(<<"f">>, 1000), 1000000),
        {Sender, Monitor} = spawn_monitor(fun() -> exit({sent, teleport:send(Pid, x)}) end),
        _ = beamway_peer:wait_until(fun() -> {status, Status} = process_info(Sender, status), Status =:= suspended end, wait_ms()),
        true = erlang:disconnect_node(node(Pid)),
        receive {'DOWN', Monitor, process, Sender, {sent, ok}} -> ok after wait_ms() -> error(still_suspended) end
    end).

node_that_is_gone(Config) ->
    with_pair(Config, fun(Pair) ->
        Second = teleport_nodes:second(Pair),
        Node = teleport_nodes:second_node(Pair),
        Pid = beamway_peer:run(teleport_nodes:first(Pair), fun() ->
            Sink = spawn(Node, ?MODULE, take, [self(), 0]),
            ok = teleport:send(Sink, 1),
            Sink
        end),
        ok = beamway_peer:kill9(Second),
        ok = beamway_peer:wait_disconnected(teleport_nodes:first(Pair), Node),
        teleport_nodes:on_first(Pair, fun(_) ->
            [{error, {nodedown, Node}} = teleport:send(Pid, 2, Options) || Options <- [#{}, #{timeout => wait_ms()}, #{on_full => error}]],
            {'EXIT', {{nodedown, Node}, _}} = (catch teleport:call(Pid, 3)),
            {error, {{nodedown, Node}, Pid}} = teleport:receive_response(teleport:send_request(Pid, 4), wait_ms())
        end)
    end).

%% Both keep what they know of each other no longer than the connection.
node_comes_back(Config) ->
    on_first(Config, fun(Node) ->
        [begin
             Pid = erpc:call(Node, erlang, spawn, [?MODULE, take, [self(), 2]]),
             ok = teleport:send(Pid, N),
             ok = teleport:cast(Pid, N),
             [N, N] = all_of(Pid),
             true = erlang:disconnect_node(Node)
         end || N <- lists:seq(1, 5)]
    end).

as_configured(Config) ->
    on_first(Config, fun(Node) ->
        Server = erpc:call(Node, teleport_nodes, start_server, [way_server]),
        ok = teleport:configure(Node, #{way => distribution}),
        [{_, [alias | _]} = teleport:call(To, from) || To <- [Server, {way_server, Node}]],
        [ok = teleport:cast(To, x) || To <- [Server, {way_server, Node}]],
        [] = teleport:lanes(Node),
        ok = teleport:configure(Node, #{way => lane}),
        ok = teleport:cast(Server, x),
        [true = is_reference(element(2, teleport:call(To, from))) || To <- [Server, {way_server, Node}]],
        3 = carried_by_lanes(Node),
        {error, [Problem]} = teleport:configure(Node, #{way => fast}),
        {match, _} = re:run(Problem, "way = fast is not valid: expected auto, lane or distribution")
    end).
