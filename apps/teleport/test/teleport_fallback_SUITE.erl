%% SPDX-License-Identifier: Apache-2.0
%% @doc Nodes without teleport are reached by distribution; when it is started or stopped there no call fails, and no message overtakes another one.
-module(teleport_fallback_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([all_ways_of_sending/1, bounds/1, order_when_it_starts/1, calls_when_it_starts/1, killed_senders_hold_up_nothing/1, held_senders_hold_it_up/1,
         node_ends/1, order_when_it_stops/1, calls_when_it_stops/1, late_lanes_are_not_used/1, lanes_beside_distribution_are_left/1, stops_all_the_same/1,
         who_waits_for_an_attempt/1, killed_while_plain/1, stopped_at_rest/1, ended_lanes_are_not_missed/1, forgotten_when_it_never_returns/1]).
-export([gather/1]).
-import(teleport_nodes, [on_first/2, wait_ms/0]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [{group, shm}, {group, tcp}].

%% Over tcp the caller's end of a lane is open before the other end can be held up.
groups() -> teleport_nodes:groups([shm], [late_lanes_are_not_used, lanes_beside_distribution_are_left | cases()]) ++ teleport_nodes:groups([tcp], cases()).

cases() ->
    [all_ways_of_sending, bounds, order_when_it_starts, calls_when_it_starts, killed_senders_hold_up_nothing, held_senders_hold_it_up, node_ends,
     order_when_it_stops, calls_when_it_stops, stops_all_the_same, who_waits_for_an_attempt, killed_while_plain, stopped_at_rest, ended_lanes_are_not_missed, forgotten_when_it_never_returns].

init_per_group(Kind, Config) -> teleport_nodes:init_group(Kind, Config).

end_per_group(_Kind, _Config) -> ok.

%% The second node has teleport's code and does not run it.
init_per_testcase(_Case, Config) ->
    Pair = teleport_nodes:start_pair(Config),
    ok = beamway_peer:call(teleport_nodes:second(Pair), application, stop, [teleport]),
    ok = teleport_nodes:on_first(Pair, fun(_) -> ok = teleport:configure(all, #{backoff_ms => {20, 50}}) end),
    Pair.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

start(Node) -> ok = erpc:call(Node, application, start, [teleport]).

await_change(Node) ->
    _ = beamway_peer:wait_until(fun() -> teleport:by_distribution() =:= [] andalso [L || #{opened_by := this_node} = L <- teleport:lanes(Node)] =/= [] end, wait_ms()).

server(Node, Name) -> erpc:call(Node, teleport_nodes, start_server, [Name]).

%% ---- cases ----

all_ways_of_sending(Config) ->
    on_first(Config, fun(Node) ->
        Server = server(Node, fallback_server),
        Named = {fallback_server, Node},
        ok = teleport:send(Named, one),
        ok = teleport:cast(Server, two),
        {echo, x} = teleport:call(Named, {echo, x}),
        {echo, y} = teleport:call(Server, {echo, y}, 5000, #{class => control, key => k}),
        [one, {cast, two}] = teleport:call(Server, log),
        {reply, {echo, z}} = teleport:receive_response(teleport:send_request(Server, {echo, z}), wait_ms()),
        {{reply, {echo, 1}}, label, _} = teleport:receive_response(teleport:send_request(Server, {echo, 1}, label, teleport:reqids_new()), wait_ms(), true),
        {echo, v} = gen_server:call({via, teleport, Named}, {echo, v}),
        Node = teleport:erpc_call(Node, erlang, node, []),
        {'EXIT', {{exception, badarith, [_ | _]}, _}} = (catch teleport:erpc_call(Node, erlang, '+', [1, a])),
        {'EXIT', {{erpc, timeout}, _}} = (catch teleport:erpc_call(Node, timer, sleep, [infinity], 50)),
        [{ok, Node}] = teleport:multicall([Node], erlang, node, []),
        ok = teleport:erpc_cast(Node, erlang, send, [self(), from_there]),
        receive from_there -> ok after wait_ms() -> error(no_cast) end,
        Node = teleport_erpc:call(Node, erlang, node, [], #{way => distribution}),
        ok = teleport_erpc:cast(Node, erlang, send, [self(), by_erpc], #{way => distribution}),
        receive by_erpc -> ok after wait_ms() -> error(no_cast) end,
        {'EXIT', {{erpc, noconnection}, _}} = (catch teleport_erpc:call(Node, erlang, node, [], #{way => lane})),
        abcast = teleport:abcast([Node], fallback_server, three),
        {[{Node, {echo, 2}}], []} = teleport:multi_call([Node], fallback_server, {echo, 2}),
        _ = beamway_peer:wait_until(fun() -> teleport:call(Server, log) =:= [{cast, three}] end, wait_ms()),
        [#{node := Node, sent := Sent, dropped := 0}] = teleport:by_distribution(),
        true = Sent > 12,
        %% As by a lane.
        {'EXIT', {noproc, {teleport, call, _}}} = (catch teleport:call({nobody, Node}, x)),
        {'EXIT', {timeout, {teleport, call, _}}} = (catch teleport:call(Server, never, 50)),
        {'EXIT', {shutdown, {teleport, call, _}}} = (catch teleport:call(server(Node, none), {die, shutdown})),
        %% Nothing acknowledges what goes by distribution, and a lane is a lane.
        {error, {no_teleport, Node}} = teleport:send(Server, x, #{confirm => true}),
        {error, {no_teleport, Node}} = teleport:send(Server, x, #{way => lane}),
        {error, {no_teleport, Node}} = teleport:prime(Node),
        start(Node),
        ok = teleport:prime(Node),
        await_change(Node),
        {ok, Ref} = teleport:send(Server, x, #{confirm => true}),
        receive {teleport, Ref, confirmed} -> ok after wait_ms() -> error(not_confirmed) end,
        #{Node := #{sent := Before}} = teleport_peers:plain_counts(),
        {echo, x} = teleport:call(Named, {echo, x}),
        #{Node := #{sent := Before}} = teleport_peers:plain_counts()
    end).

%% What is known of a node that is gone stays for an hour and then goes, its labels for Prometheus with it. A node that is there keeps all.
forgotten_when_it_never_returns(Config) ->
    {_, There} = teleport_nodes:start(proplists:get_value(kind, Config)),
    Rows = fun(Node) -> ets:match(teleport_peers, {{'$1', Node}}) ++ ets:match(teleport_peers, {{'$1', Node}, '_'}) end,
    Forget = fun(KeepMs) -> teleport_peers ! {forget, KeepMs}, _ = sys:get_state(teleport_peers) end,
    on_first(Config, fun(Node) ->
        %% The one goes by distribution, the other has lanes both ways, and has lost what it was sent.
        ok = teleport:send({fallback_nobody, Node}, x),
        [#{node := Node, sent := 1}] = teleport:by_distribution(),
        pong = net_adm:ping(There),
        ok = teleport:prime(There),
        ok = erpc:call(There, teleport, prime, [node()]),
        ok = teleport_peers:lost(There, 3),
        #{There := 3} = teleport:unconfirmed(),
        true = [[offered], [lost]] -- Rows(There) =:= [],
        Forget(0),
        [true = Rows(On) =/= [] || On <- [Node, There]]
    end),
    beamway_peer:stop_all([teleport_nodes:second(Config) | beamway_peer:started() -- [teleport_nodes:first(Config)]]),
    on_first(Config, fun(Node) ->
        _ = beamway_peer:wait_until(fun() -> [On || On <- [Node, There], lists:member(On, nodes()) orelse lists:member([peer], Rows(On))] =:= [] end, wait_ms()),
        Forget(3600000),
        #{There := 3} = teleport:unconfirmed(),
        {match, _} = re:run(teleport:metrics(), atom_to_list(Node)),
        Forget(0),
        [{On, []} = {On, Rows(On)} || On <- [Node, There]],
        nomatch = re:run(teleport:metrics(), [atom_to_list(Node), "|", atom_to_list(There)])
    end).

%% Who does not wait is refused, who waits has a limit, and none of these counts as sent; the connection is as full as it gets by `!'.
bounds(Config) ->
    PeerB = teleport_nodes:second(Config),
    on_first(Config, fun(Node) ->
        ok = teleport:send({fallback_nobody, Node}, x),
        ok = teleport:configure(Node, #{block_ms => 200})
    end),
    ok = beamway_peer:sigstop(PeerB),
    on_first(Config, fun(Node) ->
        %% No fragments: their sender is suspended by Beamway, as by `!'.
        Payload = binary:copy(<<"x">>, 10000),
        Send = fun(Options) -> teleport:send({fallback_nobody, Node}, Payload, Options) end,
        {error, overload} = beamway_peer:wait_until(fun() -> case Send(#{on_full => error}) of ok -> false; Full -> Full end end, wait_ms()),
        [#{sent := Sent, dropped := 0}] = teleport:by_distribution(),
        Start = erlang:monotonic_time(millisecond),
        {error, timeout} = Send(#{}),
        {error, timeout} = Send(#{timeout => 0}),
        true = erlang:monotonic_time(millisecond) - Start >= 200,
        ok = Send(#{on_full => drop}),
        [#{sent := Sent, dropped := 1}] = teleport:by_distribution()
    end),
    ok = beamway_peer:sigcont(PeerB).

%% Small and large messages of many senders, before and after.
order_when_it_starts(Config) ->
    order_when(Config, fun(Node) ->
        [#{node := Node}] = teleport:by_distribution(),
        start(Node),
        await_change(Node)
    end).

%% Again and again, and nothing is lost or unconfirmed.
order_when_it_stops(Config) ->
    order_when(Config, fun(Node) ->
        [begin
             start(Node),
             await_change(Node),
             stop(Node)
         end || _ <- [1, 2, 3]],
        start(Node),
        await_change(Node),
        true = #{} =:= teleport:unconfirmed()
    end).

order_when(Config, Change) ->
    on_first(Config, fun(Node) ->
        Senders = 20,
        Receiver = spawn(Node, ?MODULE, gather, [#{}]),
        Test = self(),
        Going = [spawn_monitor(fun() -> stream(Test, Receiver, Who, 1) end) || Who <- lists:seq(1, Senders)],
        [receive {sent, Who, 20} -> ok after wait_ms() -> error({stuck, Who}) end || Who <- lists:seq(1, Senders)],
        Change(Node),
        Totals = [begin
                      Pid ! {stop, self()},
                      receive {'DOWN', Monitor, process, Pid, {sent, Count}} -> Count after wait_ms() -> error(stuck) end
                  end || {Pid, Monitor} <- Going],
        Come = beamway_peer:wait_until(fun() ->
                                               Receiver ! {give, self()},
                                               receive {seen, Seen} -> lists:sum(maps:values(Seen)) =:= lists:sum(Totals) andalso Seen
                                               after wait_ms() -> error(no_answer)
                                               end
                                       end, wait_ms()),
        true = lists:seq(1, Senders) =:= lists:sort(maps:keys(Come)),
        true = 0 < lists:sum([Sent || #{sent := Sent, opened_by := this_node} <- teleport:lanes(Node)])
    end).

%% Until it is told, and then 20 more.
stream(Test, Receiver, Who, N) ->
    receive {stop, _} -> last(Receiver, Who, N, N + 20)
    after 0 ->
        ok = numbered(Receiver, Who, N),
        _ = N =:= 20 andalso (Test ! {sent, Who, N}),
        stream(Test, Receiver, Who, N + 1)
    end.

last(_, _, End, End) -> exit({sent, End - 1});
last(Receiver, Who, N, End) ->
    ok = numbered(Receiver, Who, N),
    last(Receiver, Who, N + 1, End).

numbered(Receiver, Who, N) ->
    Payload = case (N + Who) rem 10 of 0 -> binary:copy(<<"x">>, 400000); _ -> small end,
    teleport:send(Receiver, {Who, N, Payload}, #{timeout => infinity}).

%% @private Counts what comes, and ends if a number is left out.
gather(Seen) ->
    receive
        {give, From} -> From ! {seen, Seen}, gather(Seen);
        {Who, N, _} ->
            N = maps:get(Who, Seen, 0) + 1,
            gather(Seen#{Who => N})
    end.

calls_when_it_starts(Config) ->
    calls_when(Config, fun(Node) -> start(Node), await_change(Node) end).

calls_when_it_stops(Config) ->
    calls_when(Config, fun(Node) ->
        [begin
             start(Node),
             await_change(Node),
             stop(Node)
         end || _ <- [1, 2, 3]]
    end).

%% A call that no server answers delays the end, and is told.
stops_all_the_same(Config) ->
    on_first(Config, fun(Node) ->
        start(Node),
        ok = teleport:prime(Node),
        Server = server(Node, none),
        Gate = teleport_nodes:gate(),
        {Never, NeverMonitor} = spawn_monitor(fun() -> teleport:call(Server, never, infinity) end),
        Id = teleport:send_request(Server, {behind, Gate, later}),
        _ = beamway_peer:wait_until(fun() -> lists:sum([P || #{pending_calls := P} <- erpc:call(Node, teleport, lanes, [])]) =:= 2 end, wait_ms()),
        {Stopper, StopperMonitor} = spawn_monitor(fun() -> ok = erpc:call(Node, application, stop, [teleport]) end),
        _ = beamway_peer:wait_until(fun() -> teleport_peers:plain(Node) =:= open end, wait_ms()),
        true = is_process_alive(Stopper),
        {echo, x} = teleport:call(Server, {echo, x}),
        ok = teleport_nodes:open_gate(Gate),
        {reply, later} = teleport:receive_response(Id, wait_ms()),
        receive {'DOWN', NeverMonitor, process, Never, Reason} -> {{lane_lost, Node}, _} = Reason after wait_ms() -> error(not_told) end,
        receive {'DOWN', StopperMonitor, process, Stopper, normal} -> ok after wait_ms() -> error(goes_on) end
    end).

%% A lane was being opened when the stop began, and comes up while the node still waits for an answer. The stop would wait for a call over it.
late_lanes_are_not_used(Config) ->
    on_first(Config, fun(Node) ->
        start(Node),
        Server = server(Node, none),
        [Before, Behind] = [teleport_nodes:gate(), teleport_nodes:gate()],
        Id = teleport:send_request(Server, {behind, Before, answered}),
        _ = beamway_peer:wait_until(fun() -> 1 =:= lists:sum([P || #{pending_calls := P} <- erpc:call(Node, teleport, lanes, [])]) end, wait_ms()),
        ok = erpc:call(Node, sys, suspend, [beamway_links]),
        {Late, LateMonitor} = spawn_monitor(fun() -> well = teleport:call(Server, {behind, Behind, well}, infinity, #{class => control}) end),
        _ = beamway_peer:wait_until(fun() -> erpc:call(Node, fun() -> process_info(whereis(beamway_links), message_queue_len) end) =/= {message_queue_len, 0} end, wait_ms()),
        {Stopper, Monitor} = spawn_monitor(fun() -> ok = erpc:call(Node, application, stop, [teleport]) end),
        _ = beamway_peer:wait_until(fun() -> teleport_peers:plain(Node) =:= open end, wait_ms()),
        ok = erpc:call(Node, sys, resume, [beamway_links]),
        {ok, Peer} = teleport_peers:peer(Node, infinity),
        _ = beamway_peer:wait_until(fun() ->
                                            case gen_server:call(Peer, state) of
                                                #{{control, 0} := {Now, _}} -> lists:member(Now, [up, waiting]);
                                                #{} -> true
                                            end
                                    end, wait_ms()),
        ok = teleport_nodes:open_gate(Before),
        {reply, answered} = teleport:receive_response(Id, wait_ms()),
        receive {'DOWN', Monitor, process, Stopper, normal} -> ok after wait_ms() -> error(goes_on) end,
        ok = teleport_nodes:open_gate(Behind),
        receive {'DOWN', LateMonitor, process, Late, Reason} -> normal = Reason after wait_ms() -> error(not_answered) end
    end).

%% The first of two lanes was open before its node began to stop teleport, the second one came too late.
lanes_beside_distribution_are_left(Config) ->
    on_first(Config, fun(Node) ->
        start(Node),
        Server = server(Node, none),
        {echo, x} = teleport:call(Server, {echo, x}),
        ok = erpc:call(Node, supervisor, terminate_child, [teleport_sup, teleport_listener]),
        {echo, y} = teleport:call(Server, {echo, y}, wait_ms(), #{class => control}),
        [#{node := Node}] = teleport:by_distribution(),
        [#{class := normal}] = teleport:lanes(Node),
        ok = teleport_listener:leaving(Node),
        [] = teleport:lanes(Node),
        {echo, z} = teleport:call(Server, {echo, z})
    end).

%% The listener there stood still, and was then stopped without a word to this node: the next attempt at the lane is minutes away.
who_waits_for_an_attempt(Config) ->
    on_first(Config, fun(Node) ->
        start(Node),
        ok = teleport:configure(all, #{backoff_ms => {600000, 600000}, open_ms => 100}),
        ok = erpc:call(Node, sys, suspend, [teleport_listener]),
        {Sender, Monitor} = spawn_monitor(fun() -> ok = teleport:send({fallback_nobody, Node}, x, #{class => bulk, timeout => infinity}) end),
        {ok, Peer} = teleport_peers:peer(Node, infinity),
        _ = beamway_peer:wait_until(fun() -> [waiting] =:= [Now || {Now, _} <- maps:values(gen_server:call(Peer, state))] end, wait_ms()),
        ok = teleport:configure(all, #{open_ms => 7000}),
        ok = erpc:call(Node, application, stop, [teleport]),
        %% This lane finds out.
        ok = teleport:send({fallback_nobody, Node}, x, #{class => control}),
        receive {'DOWN', Monitor, process, Sender, Reason} -> normal = Reason after wait_ms() -> error(still_waits) end
    end).

%% Whoever looks for teleport there is killed while messages go by distribution. Whoever comes next starts another one, which sees teleport come. He need not
%% have a message for a lane.
killed_while_plain(Config) ->
    on_first(Config, fun(Node) ->
        Send = fun() -> teleport:send({fallback_nobody, Node}, x) end,
        [begin
             ok = Send(),
             [#{node := Node}] = teleport:by_distribution(),
             Pid = Looks(),
             Monitor = monitor(process, Pid),
             exit(Pid, kill),
             receive {'DOWN', Monitor, process, Pid, killed} -> ok end,
             _ = beamway_peer:wait_until(fun() -> is_boolean(teleport_peers:settle(Node, infinity)) end, wait_ms()),
             start(Node),
             _ = beamway_peer:wait_until(fun() -> _ = Send(), teleport:by_distribution() =:= [] end, wait_ms()),
             stop(Node)
         end || Looks <- [fun() -> {ok, Peer} = teleport_peers:peer(Node, infinity), Peer end, fun() -> whereis(teleport_peers) end]]
    end).

%% All lanes were closed as unused when teleport was stopped there. It is seen when it is started again.
stopped_at_rest(Config) ->
    on_first(Config, fun(Node) ->
        start(Node),
        ok = teleport:configure(all, #{idle_ms => 100}),
        Send = fun() -> teleport:send({fallback_nobody, Node}, x) end,
        ok = Send(),
        {ok, Peer} = teleport_peers:peer(Node, infinity),
        _ = beamway_peer:wait_until(fun() -> #{} =:= gen_server:call(Peer, state) end, wait_ms()),
        stop(Node),
        start(Node),
        _ = beamway_peer:wait_until(fun() -> _ = Send(), teleport:by_distribution() =:= [] end, wait_ms())
    end).

%% All lanes end when teleport is stopped there. When it runs again, one of them is up, and nobody has wanted the others since.
ended_lanes_are_not_missed(Config) ->
    on_first(Config, fun(Node) ->
        start(Node),
        ok = teleport:prime(Node, wait_ms()),
        stop(Node),
        start(Node),
        await_change(Node),
        _ = beamway_peer:wait_until(fun() -> teleport:not_up() =:= [] end, wait_ms())
    end).

stop(Node) ->
    ok = erpc:call(Node, application, stop, [teleport]),
    %% The lanes' end may be known before it is known that none can be opened.
    _ = beamway_peer:wait_until(fun() -> [Node] =:= [Of || #{node := Of} <- teleport:by_distribution()] andalso teleport:lanes(Node) =:= [] end, wait_ms()),
    ok.

calls_when(Config, Change) ->
    on_first(Config, fun(Node) ->
        Server = server(Node, fallback_server),
        Callers = [callers(Call) || Call <- calls(Server, Node), _ <- [1, 2, 3]],
        [receive {calling, Pid} -> ok after wait_ms() -> error(stuck) end || {Pid, _} <- Callers],
        Change(Node),
        all_well(Callers)
    end).

calls(Server, Node) ->
    [fun(N) -> {echo, N} = teleport:call(Server, {echo, N}, wait_ms()) end,
     fun(N) -> {echo, N} = teleport:call({fallback_server, Node}, {echo, N}, wait_ms(), #{class => control}) end,
     fun(N) -> {reply, {echo, N}} = teleport:receive_response(teleport:send_request(Server, {echo, N}), wait_ms()) end,
     fun(N) -> {echo, N} = gen_server:call({via, teleport, {fallback_server, Node}}, {echo, N}, wait_ms()) end,
     fun(N) -> N = teleport:erpc_call(Node, erlang, hd, [[N]]) end].

callers(Call) ->
    Test = self(),
    spawn_monitor(fun() -> repeat(Test, Call, 1) end).

repeat(Test, Call, N) ->
    _ = Call(N),
    _ = N =:= 10 andalso (Test ! {calling, self()}),
    receive stop -> exit({called, N})
    after 0 -> repeat(Test, Call, N + 1)
    end.

%% Each has made some more calls since.
all_well(Callers) ->
    [Pid ! stop || {Pid, _} <- Callers],
    [receive {'DOWN', Monitor, process, Pid, {called, _}} -> ok; {'DOWN', Monitor, process, Pid, Reason} -> error(Reason) after wait_ms() -> error(stuck) end
     || {Pid, Monitor} <- Callers].

%% One was killed between its two steps for certain, others at any time.
killed_senders_hold_up_nothing(Config) ->
    on_first(Config, fun(Node) ->
        Receiver = spawn(Node, fun() -> (fun Discard() -> receive _ -> Discard() end end)() end),
        ok = teleport:send(Receiver, x),
        {Dead, Monitor} = spawn_monitor(fun() -> ok end),
        receive {'DOWN', Monitor, process, Dead, _} -> ok end,
        true = ets:insert(teleport_fallback, {{Node, Dead}}),
        Large = binary:copy(<<"x">>, 500000),
        [begin
             Pids = [spawn(fun() -> (fun Loop() -> _ = teleport:send(Receiver, Large), Loop() end)() end) || _ <- lists:seq(1, 10)],
             receive after 10 -> ok end,
             [exit(Pid, kill) || Pid <- Pids]
         end || _ <- lists:seq(1, 20)],
        start(Node),
        await_change(Node),
        [] = ets:tab2list(teleport_fallback)
    end).

%% Who is in the middle of it is waited for, and the others are not held up meanwhile.
held_senders_hold_it_up(Config) ->
    on_first(Config, fun(Node) ->
        Server = server(Node, none),
        {echo, x} = teleport:call(Server, {echo, x}),
        Held = spawn(fun() -> receive stop -> ok end end),
        true = ets:insert(teleport_fallback, {{Node, Held}}),
        start(Node),
        _ = beamway_peer:wait_until(fun() -> teleport_peers:plain(Node) =:= closing end, wait_ms()),
        _ = beamway_peer:wait_until(fun() -> teleport_peers:plain(Node) =:= open end, wait_ms()),
        {echo, y} = teleport:call(Server, {echo, y}, wait_ms()),
        [#{node := Node}] = teleport:by_distribution(),
        Held ! stop,
        await_change(Node),
        {echo, z} = teleport:call(Server, {echo, z})
    end).

node_ends(Config) ->
    Node = teleport_nodes:second_node(Config),
    on_first(Config, fun(_) ->
        Server = server(Node, none),
        {echo, x} = teleport:call(Server, {echo, x}),
        Ends = spawn(fun() ->
            Id = teleport:send_request(Server, never),
            {'EXIT', {Reason, _}} = (catch teleport:call(Server, never, infinity)),
            {error, {Later, _}} = teleport:receive_response(Id, wait_ms()),
            receive {give, From} -> From ! {ended, Reason, Later} end
        end),
        true = register(fallback_ends, Ends)
    end),
    ok = beamway_peer:kill9(teleport_nodes:second(Config)),
    on_first(Config, fun(_) ->
        fallback_ends ! {give, self()},
        receive {ended, {nodedown, Node}, {nodedown, Node}} -> ok after wait_ms() -> error(not_told) end,
        _ = beamway_peer:wait_until(fun() -> teleport:by_distribution() =:= [] end, wait_ms()),
        {error, {nodedown, Node}} = teleport:send({x, Node}, x)
    end).
