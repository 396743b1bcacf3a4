%% SPDX-License-Identifier: Apache-2.0
%% @doc What lanes keep: the order of a sender, each message exactly once, small ones not behind large ones, the bounds.
-module(teleport_order_SUITE).

-include_lib("proper/include/proper.hrl").

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2]).
-export([order_of_a_sender/1, order_of_a_key/1, unordered_spreads/1, small_ones_overtake_large_ones/1, small_ones_go_together/1, small_ones_go_alone_to_version_0_2_0/1, a_peer_that_stops/1,
         full_is_an_error/1, full_blocks_for_a_while/1, full_drops_and_counts/1, full_drops_and_tells/1, properties/1, order_between_calls_and_casts/1, classes_share/1,
         order_by_any_name/1, order_while_reconfigured/1]).
-export([take_all/2, numbered/3, whereis_name/1, offers_of_0_2_0/0, offers_of/1]).
-import(teleport_nodes, [on_first/2, wait_ms/0]).

suite() -> [{timetrap, {minutes, 4}}].

all() -> teleport_nodes:all([beamway | teleport_nodes:kinds()]).

groups() ->
    teleport_nodes:groups(teleport_nodes:kinds(),
                          [order_of_a_sender, order_of_a_key, unordered_spreads, small_ones_overtake_large_ones, small_ones_go_together, small_ones_go_alone_to_version_0_2_0, a_peer_that_stops,
                           full_is_an_error, full_blocks_for_a_while, full_drops_and_counts, full_drops_and_tells, order_between_calls_and_casts,
                           classes_share, properties, order_by_any_name, order_while_reconfigured])
        %% Where a pid's messages of class normal take the distribution.
        ++ teleport_nodes:groups([beamway], [order_of_a_sender, order_of_a_key, unordered_spreads, order_between_calls_and_casts, classes_share, properties,
                                             order_by_any_name, order_while_reconfigured]).

init_per_group(Kind, Config) -> teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)).

end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

%% @private Collects `{Sender, Number, Payload}' until so many have come; answers with what each sender sent, in the order of arrival.
take_all(Test, Count) -> take_all(Test, Count, []).

take_all(Test, 0, Seen) -> Test ! {self(), collected, lists:reverse(Seen)};
take_all(Test, Left, Seen) ->
    receive {Sender, Number, Payload} -> take_all(Test, Left - 1, [{Sender, Number, erlang:external_size(Payload)} | Seen]) end.

collected(Pid) ->
    receive {Pid, collected, Seen} -> Seen after wait_ms() -> error({not_all_came, Pid}) end.

%% @private Sends so many numbered messages of these sizes in turn.
numbered(Dest, Count, Sizes) ->
    lists:foreach(fun(N) -> ok = teleport:send(Dest, {self(), N, payload(lists:nth(1 + N rem length(Sizes), Sizes))}, #{timeout => infinity}) end,
                  lists:seq(1, Count)).

payload(Size) -> binary:copy(<<"p">>, Size).

%% Small and large by turns, so that a sender changes between the straight way and the queue all the time.
order_of_a_sender(Config) ->
    on_first(Config, fun(Node) ->
        Test = self(),
        Sizes = [10, 100000, 10, 10, 300000, 70000, 10, 1000000, 10, 10, 10],
        Receivers = [spawn(Node, ?MODULE, take_all, [Test, 10 * 44]) || _ <- [1, 2, 3]],
        Senders = [spawn_monitor(fun() -> [numbered(Dest, 44, Sizes) || Dest <- Receivers] end) || _ <- lists:seq(1, 10)],
        [receive {'DOWN', M, process, P, Reason} -> normal = Reason after wait_ms() -> error(sender_stuck) end || {P, M} <- Senders],
        [in_order(collected(Pid), 10, 44) || Pid <- Receivers]
    end).

in_order(Seen, Senders, Count) ->
    Each = lists:foldl(fun({Sender, N, _}, Acc) -> Acc#{Sender => [N | maps:get(Sender, Acc, [])]} end, #{}, Seen),
    Senders = map_size(Each),
    [Numbers = lists:seq(Count, 1, -1) || Numbers <- maps:values(Each)],
    ok.

%% One key: order even among different senders and names of the destination.
order_of_a_key(Config) ->
    on_first(Config, fun(Node) ->
        Pid = spawn(Node, ?MODULE, take_all, [self(), 300]),
        true = erpc:call(Node, erlang, register, [tp_keyed, Pid]),
        Test = self(),
        [begin
             Dest = case N rem 2 of 0 -> Pid; 1 -> {tp_keyed, Node} end,
             {_, M} = spawn_monitor(fun() -> ok = teleport:send(Dest, {Test, N, payload(N * 1000)}, #{key => one}) end),
             receive {'DOWN', M, process, _, normal} -> ok end
         end || N <- lists:seq(1, 300)],
        in_order(collected(Pid), 1, 300)
    end).

unordered_spreads(Config) ->
    on_first(Config, fun(Node) ->
        Pid = spawn(Node, ?MODULE, take_all, [self(), 1000]),
        Before = sent(Node),
        [ok = teleport:send(Pid, {self(), N, x}, #{unordered => true}) || N <- lists:seq(1, 1000)],
        Numbers = [N || {_, N, _} <- collected(Pid)],
        true = lists:sort(Numbers) =:= lists:seq(1, 1000),
        [true = Now - maps:get(Index, Before, 0) > 100 || {Index, Now} <- maps:to_list(sent(Node))]
    end).

sent(Node) -> maps:from_list([{I, S} || #{class := normal, opened_by := this_node, index := I, sent := S} <- teleport:lanes(Node)]).

%% By the order of arrival, not by time: the small one was sent after the large one, on the same lane. The peer is stopped meanwhile, so that
%% the large one cannot be through before the small one is sent.
small_ones_overtake_large_ones(Config) ->
    Second = teleport_nodes:second(Config),
    on_first(Config, fun(Node) ->
        Keeper = spawn(fun keep/0),
        persistent_term:put(tp_overtake, {Keeper, spawn(Node, ?MODULE, take_all, [Keeper, 3])}),
        ok = teleport:prime(Node, infinity)
    end),
    ok = beamway_peer:sigstop(Second),
    on_first(Config, fun(_) ->
        {_, Pid} = persistent_term:get(tp_overtake),
        Options = fun(Lane) -> #{class => bulk, key => key(Lane), timeout => infinity} end,
        ok = teleport:send(Pid, {large, 1, payload(40000000)}, Options(1)),
        {_, M} = spawn_monitor(fun() -> ok = teleport:send(Pid, {small, 1, x}, Options(2)) end),
        receive {'DOWN', M, process, _, normal} -> ok end,
        %% The same key: behind it.
        ok = teleport:send(Pid, {behind, 1, x}, Options(1))
    end),
    ok = beamway_peer:sigcont(Second),
    on_first(Config, fun(_) ->
        {Keeper, _} = persistent_term:get(tp_overtake),
        Keeper ! {give, self()},
        receive {seen, Seen} -> [{small, 1, _}, {large, 1, _}, {behind, 1, _}] = Seen after wait_ms() -> error(not_all_came) end
    end).

%% The driver's counters tell how many frames they are. Those of TLS are not known.
small_ones_go_together(Config) ->
    on_first(Config, fun(Node) ->
        ok = teleport:prime(Node, infinity),
        [Tx] = control_lanes(Node),
        Frames = frames_of_queued(Node, Tx, 1000),
        {true, _} = {Frames < 100, Frames}
    end).

%% Its offer does not say that it takes several messages in a frame.
small_ones_go_alone_to_version_0_2_0(Config) ->
    Kind = teleport_nodes:kind(Config),
    on_first(Config, fun(Node) ->
        ok = teleport:prime(Node, infinity),
        Listener = erpc:call(Node, ?MODULE, offers_of_0_2_0, []),
        Before = [teleport_sender:pid(Tx) || Tx <- control_lanes(Node)],
        [Lane ! {close, version_0_2_0} || Lane <- Before],
        Opened = fun() -> [Tx || Tx <- control_lanes(Node), not lists:member(teleport_sender:pid(Tx), Before)] end,
        [Tx] = beamway_peer:wait_until(fun() -> Opened() =/= [] andalso Opened() end, wait_ms()),
        exit(erpc:call(Node, ?MODULE, offers_of, [Listener]), kill),
        Frames = frames_of_queued(Node, Tx, 1000),
        {true, _} = {Frames >= 1000 orelse Kind =:= tls, Frames}
    end).

control_lanes(Node) -> [Tx || {out, {Of, control, 0}, Tx} <- teleport_peers:all(), Of =:= Node].

%% What waits for the lane's process comes in its order, and each message is acknowledged. A count without a message keeps the sender from the
%% straight way meanwhile.
frames_of_queued(Node, Tx, Count) ->
    Frames = fun() -> maps:get(frames_out, teleport_link:stats(teleport_sender:link(Tx)), 0) end,
    Pid = spawn(Node, ?MODULE, take_all, [self(), Count]),
    Before = Frames(),
    ok = sys:suspend(teleport_sender:pid(Tx)),
    ok = teleport_sender:enqueued(Tx, 0),
    [ok = teleport:send(Pid, {self(), N, x}, #{class => control, way => lane}) || N <- lists:seq(1, Count)],
    ok = teleport_sender:dequeued(Tx, 1, 0),
    ok = sys:resume(teleport_sender:pid(Tx)),
    in_order(collected(Pid), 1, Count),
    _ = beamway_peer:wait_until(fun() -> teleport_sender:outstanding(Tx) =:= 0 end, wait_ms()),
    Frames() - Before.

%% @private From now on this node's offers are those of version 0.2.0, as far as it matters here. Answers with the listener.
offers_of_0_2_0() ->
    Listener = whereis(teleport_listener),
    offers_of(spawn(fun() -> without_batches(Listener) end)).

%% @private From now on this process makes the offers of this node. Answers with the one before.
offers_of(Pid) ->
    Before = whereis(teleport_listener),
    true = unregister(teleport_listener),
    true = register(teleport_listener, Pid),
    Before.

without_batches(Listener) ->
    receive
        {'$gen_call', From, Request} when element(1, Request) =:= offer ->
            {ok, Offer} = gen_server:call(Listener, Request),
            gen_server:reply(From, {ok, maps:remove(batches, Offer)});
        Message -> Listener ! Message
    end,
    without_batches(Listener).

%% Different keys of the first lane of two.
key(N) -> lists:nth(N, [Key || Key <- lists:seq(1, 100), erlang:phash2(Key) rem 2 =:= 0]).

%% Meanwhile its sender fills link and queue; then all comes, in order.
a_peer_that_stops(Config) ->
    Second = teleport_nodes:second(Config),
    ok = teleport_nodes:on_first(Config, fun(Node) ->
        ok = application:stop(teleport),
        ok = application:start(teleport),
        ok = teleport:configure(Node, #{max_queue_messages => 2000}),
        true = register(tp_test, spawn(fun keep/0)),
        Pid = spawn(Node, ?MODULE, take_all, [whereis(tp_test), 20000]),
        ok = teleport:prime(Node, infinity),
        Sender = spawn(fun() -> receive go -> numbered(Pid, 20000, [10, 1000]) end end),
        true = register(tp_sender, Sender)
    end),
    ok = beamway_peer:sigstop(Second),
    ok = teleport_nodes:on_first(Config, fun(_) -> tp_sender ! go, ok end),
    _ = beamway_peer:wait_until(fun() -> stalls(Config) > 0 end, wait_ms()),
    ok = beamway_peer:sigcont(Second),
    ok = teleport_nodes:on_first(Config, fun(Node) ->
        tp_test ! {give, self()},
        receive {seen, Seen} -> in_order(Seen, 1, 20000) after wait_ms() -> error(not_all_came) end,
        ok = teleport:configure(Node, #{max_queue_messages => 100000})
    end).

keep() -> receive {_, collected, Seen} -> receive {give, To} -> To ! {seen, Seen} end end.

stalls(Config) ->
    Node = teleport_nodes:second_node(Config),
    lists:sum([S || #{stalls := S, opened_by := this_node} <- beamway_peer:call(teleport_nodes:first(Config), teleport, lanes, [Node])]).

%% While the peer is stopped: what is accepted is bounded, the rest is refused at once, and what was accepted arrives.
full_is_an_error(Config) ->
    while_full(Config, #{on_full => error}, fun(Pid, Accepted) ->
        {error, overload} = until_refused(Pid, Accepted, 10000)
    end).

until_refused(_, _, 0) -> error(never_full);
until_refused(Pid, Accepted, Left) ->
    case teleport:send(Pid, {self(), counters:get(Accepted, 1) + 1, payload(100000)}) of
        ok -> counters:add(Accepted, 1, 1), until_refused(Pid, Accepted, Left - 1);
        Error -> Error
    end.

full_blocks_for_a_while(Config) ->
    while_full(Config, #{on_full => block, block_ms => 300}, fun(Pid, Accepted) ->
        Start = erlang:monotonic_time(millisecond),
        {error, timeout} = until_refused(Pid, Accepted, 10000),
        true = erlang:monotonic_time(millisecond) - Start >= 300,
        {error, timeout} = teleport:send(Pid, {self(), 0, payload(100000)}, #{timeout => 10})
    end).

full_drops_and_counts(Config) ->
    while_full(Config, #{on_full => drop}, fun(Pid, Accepted) ->
        Dropped = fun() -> lists:sum([D || #{dropped := D, opened_by := this_node} <- teleport:lanes(node(Pid))]) end,
        Before = Dropped(),
        [ok = teleport:send(Pid, {self(), N, payload(100000)}) || N <- lists:seq(1, 1000)],
        true = Dropped() > Before,
        counters:add(Accepted, 1, 1000 - (Dropped() - Before))
    end).

%% Whoever wants to hear of a message hears also that it was dropped. Only accepted messages have a process that waits.
full_drops_and_tells(Config) ->
    while_full(Config, #{on_full => drop}, fun(Pid, Accepted) ->
        Results = [teleport:send(Pid, {self(), N, payload(100000)}, #{confirm => true}) || N <- lists:seq(1, 1000)],
        {Taken, Refused} = lists:partition(fun(Result) -> is_reference(element(2, Result)) end, Results),
        [{error, overload}] = lists:usort(Refused),
        counters:add(Accepted, 1, length(Taken)),
        Waiters = [Waiter || Waiter <- processes(), process_info(Waiter, current_function) =:= {current_function, {teleport_request, await_confirmation, 4}}],
        {Count, Count} = {length(Taken), length(Waiters)}
    end).

%% New nodes, since one is stopped while senders run.
while_full(Config, Options, Body) ->
    Kind = teleport_nodes:kind(Config),
    {PeerA, _} = teleport_nodes:start(Kind, #{teleport => Options#{max_queue_bytes => 2000000, lanes => #{normal => 1}}}),
    {PeerB, NodeB} = teleport_nodes:start(Kind),
    ok = teleport_nodes:connect(PeerA, NodeB),
    ok = beamway_peer:run(PeerA, fun() -> ok = teleport:prime(NodeB, infinity), Counter = counters:new(1, []), persistent_term:put(tp_accepted, Counter),
                                          _ = register(tp_keeper, spawn(fun count/0)), ok end),
    Pid = beamway_peer:run(PeerB, fun() -> spawn(fun() -> forward() end) end),
    ok = beamway_peer:sigstop(PeerB),
    Result = beamway_peer:async(fun() -> beamway_peer:run(PeerA, fun() -> _ = Body(Pid, persistent_term:get(tp_accepted)), ok end, wait_ms()) end),
    ok = beamway_peer:await(Result),
    Memory = beamway_peer:run(PeerA, fun() -> erlang:memory(binary) + erlang:memory(processes) end),
    true = Memory < 60000000,
    ok = beamway_peer:sigcont(PeerB),
    Accepted = beamway_peer:run(PeerA, fun() -> counters:get(persistent_term:get(tp_accepted), 1) end),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:run(PeerB, fun() -> Pid ! {count, self()}, receive {count, N} -> N =:= Accepted after 5000 -> false end end) end, wait_ms()),
    beamway_peer:stop_all([PeerA, PeerB]).

forward() -> forward(0).

forward(Count) ->
    receive
        {count, From} -> From ! {count, Count}, forward(Count);
        {_, _, _} -> forward(Count + 1)
    end.

count() -> receive stop -> ok end.

order_between_calls_and_casts(Config) ->
    on_first(Config, fun(Node) ->
        Pid = erpc:call(Node, teleport_nodes, start_server, [none]),
        [begin
             ok = teleport:cast(Pid, {N, a, payload(N * 5000)}),
             ok = teleport:send(Pid, {N, b}),
             [{cast, {N, a, _}}, {N, b}] = teleport:call(Pid, log)
         end || N <- lists:seq(1, 100)]
    end).

%% Both classes have much to send at a time: both go on, and all arrives.
classes_share(Config) ->
    on_first(Config, fun(Node) ->
        Test = self(),
        Each = [{Class, spawn(Node, ?MODULE, take_all, [Test, 40])} || Class <- [bulk, normal, control]],
        [spawn_link(fun() -> [ok = teleport:send(Pid, {self(), N, payload(2000000)}, #{class => Class, timeout => infinity}) || N <- lists:seq(1, 40)] end)
         || {Class, Pid} <- Each],
        [in_order(collected(Pid), 1, 40) || {_, Pid} <- Each]
    end).

%% Any mixture of senders, destinations, classes and sizes: of each sender to each destination in each class all, once, in order.
properties(Config) ->
    true = beamway_peer:run(teleport_nodes:first(Config),
                            fun() -> proper:quickcheck(prop_order(teleport_nodes:second_node(Config)), [quiet, {numtests, 60}, {max_size, 60}]) end,
                            200000).

prop_order(Node) ->
    ?FORALL(Messages, list({range(1, 4), range(1, 3), oneof([control, normal, bulk]), size_of_message()}),
            begin
                Receivers = [spawn(Node, ?MODULE, take_all, [self(), length([D || {_, To, _, _} = D <- Messages, To =:= R])]) || R <- [1, 2, 3]],
                Senders = [spawn_monitor(fun() -> send_own(S, Messages, Receivers) end) || S <- lists:seq(1, 4)],
                Ended = [receive {'DOWN', M, process, P, Reason} -> Reason end || {P, M} <- Senders],
                Seen = [{R, Sender, N} || {R, Pid} <- lists:zip([1, 2, 3], Receivers), {Sender, N, _} <- collected(Pid)],
                lists:usort(Ended) =:= [normal]
                    andalso lists:all(fun(Stream) -> is_kept(Stream, Messages, Seen) end,
                                      [{S, R, C} || S <- lists:seq(1, 4), R <- [1, 2, 3], C <- [control, normal, bulk]])
            end).

size_of_message() -> frequency([{6, range(0, 2000)}, {2, range(60000, 70000)}, {2, range(260000, 270000)}, {1, range(1000000, 3000000)}]).

send_own(Sender, Messages, Receivers) ->
    [ok = teleport:send(lists:nth(R, Receivers), {{S, Class}, N, payload(Size)}, #{class => Class, timeout => infinity})
     || {N, {S, R, Class, Size}} <- lists:zip(lists:seq(1, length(Messages)), Messages), S =:= Sender].

is_kept({S, R, C}, Messages, Seen) ->
    Sent = [N || {N, {From, To, Class, _}} <- lists:zip(lists:seq(1, length(Messages)), Messages), From =:= S, To =:= R, Class =:= C],
    Sent =:= [N || {To, {From, Class}, N} <- Seen, To =:= R, From =:= S, Class =:= C].

%% Casts of any size, then a call, to one server by its pid, its name, or a name of global or of another registry: the call sees all casts that went by
%% the same way of naming, and those of pid, global and the registry are one.
order_by_any_name(Config) ->
    true = beamway_peer:run(teleport_nodes:first(Config), fun() -> any_name(teleport_nodes:second_node(Config)) end, 200000).

any_name(Node) ->
    many_lanes(Node),
    Pid = erpc:call(Node, teleport_nodes, start_server, [tp_named]),
    yes = global:register_name(tp_global_name, Pid),
    persistent_term:put({?MODULE, via}, Pid),
    Right = proper:quickcheck(prop_names(Node, Pid), [quiet, {numtests, 60}, {max_size, 20}]),
    _ = global:unregister_name(tp_global_name),
    exit(Pid, kill),
    16 = normal_lanes(Node),
    %% The next connection has the number that is configured by then.
    #{lanes := #{normal := Default} = Lanes} = teleport_config:defaults(),
    ok = teleport:configure(Node, #{lanes => Lanes}),
    16 = normal_lanes(Node),
    true = erlang:disconnect_node(Node),
    _ = beamway_peer:wait_until(fun() -> teleport:prime(Node) =:= ok andalso normal_lanes(Node) =:= Default end, wait_ms()),
    Right.

normal_lanes(Node) -> length([Lane || #{class := normal, opened_by := this_node} = Lane <- teleport:lanes(Node)]).

%% So that two keys seldom have the same. The numbers of lanes hold from the node's next connection on, or from the application's start.
many_lanes(Node) ->
    ok = application:stop(teleport),
    ok = application:start(teleport),
    ok = teleport:configure(Node, #{lanes => #{normal => 16}}),
    ok = teleport:prime(Node).

prop_names(Node, Pid) ->
    ?FORALL({Ways, Last}, {list({way(), size_of_message()}), way()},
            begin
                Dest = fun(pid) -> Pid; (name) -> {tp_named, Node}; (global) -> {global, tp_global_name}; (via) -> {via, ?MODULE, via} end,
                Numbered = lists:zip(lists:seq(1, length(Ways)), Ways),
                [ok = teleport:cast(Dest(Way), {N, payload(Size)}, #{timeout => infinity}) || {N, {Way, Size}} <- Numbered],
                Early = [N || {cast, {N, _}} <- teleport:call(Dest(Last), log, infinity)],
                %% What is left comes before the next round.
                Late = [N || Way <- [pid, name], {cast, {N, _}} <- teleport:call(Dest(Way), log, infinity)],
                Same = [N || {N, {Way, _}} <- Numbered, (Way =:= name) =:= (Last =:= name)],
                Same =:= [N || N <- Early, lists:member(N, Same)] andalso lists:sort(Early ++ Late) =:= lists:seq(1, length(Ways))
            end).

way() -> oneof([pid, name, global, via]).

%% @private A registry of one name.
whereis_name(via) -> persistent_term:get({?MODULE, via}).

%% The number of lanes is changed between any two messages.
order_while_reconfigured(Config) ->
    true = beamway_peer:run(teleport_nodes:first(Config),
                            fun() -> proper:quickcheck(prop_reconfigured(teleport_nodes:second_node(Config)), [quiet, {numtests, 60}, {max_size, 30}]) end,
                            200000).

prop_reconfigured(Node) ->
    ?FORALL(Steps, list(frequency([{3, {send, size_of_message()}}, {1, {lanes, range(1, 16)}}])),
            begin
                Count = length([Size || {send, Size} <- Steps]),
                Pid = spawn(Node, ?MODULE, take_all, [self(), Count]),
                Count = lists:foldl(fun({send, Size}, N) ->
                                            ok = teleport:send(Pid, {self(), N + 1, payload(Size)}, #{timeout => infinity}),
                                            N + 1;
                                       ({lanes, Lanes}, N) ->
                                            ok = teleport:configure(Node, #{lanes => #{normal => Lanes}}),
                                            N
                                    end, 0, Steps),
                lists:seq(1, Count) =:= [N || {_, N, _} <- collected(Pid)]
            end).
