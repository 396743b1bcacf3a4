%% SPDX-License-Identifier: Apache-2.0
%% @doc What happens to lanes, and to who uses them, when nodes, links and processes end or stop.
-module(teleport_faults_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([killed_under_calls/1, halted/1, disconnected/1, only_a_lane_is_lost/1, stopped_and_killed/1, lanes_are_opened_again/1, nothing_is_lost_silently/1, lanes_in_their_turn/1,
         killed_in_the_middle_of_a_large_message/1, first_use_by_many/1, large_terms_both_ways/1, memory_is_bounded/1, little_is_read_ahead/1, a_slow_receiver/1,
         supervisors_recover/1, nothing_is_left/1, without_distribution/1, the_application_stops/1, what_was_taken_goes_out/1, new_code/1, killed_callers/1,
         waiters_leave/1, senders_wait_in_turn/1, counts_of_the_killed/1, limits_hold/1, the_registry_is_killed/1, the_process_of_a_node_is_killed/1,
         left_lanes_deliver_once/1]).
-export([gather/1, on_unconfirmed/1, big_echo/0]).
-import(teleport_nodes, [on_first/2, wait_ms/0]).

suite() -> [{timetrap, {minutes, 5}}].

all() -> teleport_nodes:all(teleport_nodes:kinds()).

%% Callers that were killed are looked for every 5 s, over each link of the driver alike.
groups() ->
    Cases = [killed_under_calls, halted, disconnected, only_a_lane_is_lost, stopped_and_killed, lanes_are_opened_again, nothing_is_lost_silently, lanes_in_their_turn,
             killed_in_the_middle_of_a_large_message, first_use_by_many, large_terms_both_ways, memory_is_bounded,
             a_slow_receiver, supervisors_recover, nothing_is_left, without_distribution, the_application_stops, what_was_taken_goes_out, new_code,
             waiters_leave, senders_wait_in_turn, counts_of_the_killed, limits_hold, the_registry_is_killed, the_process_of_a_node_is_killed, left_lanes_deliver_once],
    teleport_nodes:groups([shm], Cases ++ [killed_callers])
        ++ teleport_nodes:groups(teleport_nodes:kinds() -- [shm, tls], Cases)
        ++ teleport_nodes:groups([tls], [killed_under_calls, only_a_lane_is_lost, lanes_are_opened_again, nothing_is_lost_silently, first_use_by_many, memory_is_bounded,
                                         little_is_read_ahead, nothing_is_left, what_was_taken_goes_out, new_code, killed_callers]).

init_per_group(Kind, Config) -> teleport_nodes:init_group(Kind, Config).

end_per_group(_Kind, _Config) -> ok.

%% Each case has nodes of its own: most of them end.
init_per_testcase(_Case, Config) -> teleport_nodes:start_pair(Config).

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% Starts callers on the first node that wait for ever, and returns when the calls are with the server. What they got: {@link ends/1}.
waiting_callers(Config, Count) ->
    on_first(Config, fun(Node) ->
        Server = erpc:call(Node, teleport_nodes, start_server, [none]),
        Keeper = spawn(fun() -> keep_ends([spawn_monitor(fun() -> teleport:call(Server, never, infinity) end) || _ <- lists:seq(1, Count)], []) end),
        true = register(tp_ends, Keeper),
        Pending = fun() -> lists:sum([P || #{opened_by := peer, pending_calls := P} <- erpc:call(Node, teleport, lanes, [node()])]) =:= Count end,
        beamway_peer:wait_until(Pending, wait_ms())
    end).

keep_ends([], Ends) ->
    receive {give, From} -> From ! {ends, lists:usort([Reason || {Reason, _} <- Ends]), lists:max([At || {_, At} <- Ends])} end;
keep_ends([{Pid, Monitor} | Callers], Ends) ->
    receive {'DOWN', Monitor, process, Pid, Reason} -> keep_ends(Callers, [{element(1, Reason), erlang:system_time(millisecond)} | Ends]) end.

%% The reasons, and when the last of them ended.
ends(Config) ->
    beamway_peer:run(teleport_nodes:first(Config), fun() ->
        tp_ends ! {give, self()},
        receive {ends, Reasons, At} -> {Reasons, At} after wait_ms() -> error(callers_still_wait) end
    end).

killed_under_calls(Config) ->
    Node = teleport_nodes:second_node(Config),
    ok = waiting_callers(Config, 500),
    on_first(Config, fun(_) ->
        Global = erpc:call(Node, teleport_nodes, start_server, [none]),
        yes = global:register_name(tp_global, Global),
        true = register(tp_request, spawn(fun() ->
            Id = teleport:send_request({global, tp_global}, never),
            Result = teleport:wait_response(Id, infinity),
            receive {give, To} -> To ! {result, Result} end
        end)),
        beamway_peer:wait_until(fun() -> lists:sum([P || #{opened_by := peer, pending_calls := P} <- erpc:call(Node, teleport, lanes, [node()])]) =:= 501 end, wait_ms())
    end),
    Before = erlang:system_time(millisecond),
    ok = beamway_peer:kill9(teleport_nodes:second(Config)),
    {[{nodedown, Node}], At} = ends(Config),
    ct:log("last caller after ~b ms", [At - Before]),
    on_first(Config, fun(_) ->
        {error, {nodedown, Node}} = teleport:send({x, Node}, x),
        {'EXIT', {{nodedown, Node}, _}} = (catch teleport:call({x, Node}, x)),
        tp_request ! {give, self()},
        receive {result, Result} -> {error, {{nodedown, Node}, {global, tp_global}}} = Result after wait_ms() -> error(still_waits) end,
        teleport_nodes:await_lanes(Node, 0, wait_ms()),
        [] = teleport:lanes(Node)
    end).

halted(Config) ->
    Node = teleport_nodes:second_node(Config),
    ok = waiting_callers(Config, 50),
    ok = beamway_peer:halt_node(teleport_nodes:second(Config)),
    {[{nodedown, Node}], _} = ends(Config).

%% Lanes end with the distribution connection, and come back with it.
disconnected(Config) ->
    Node = teleport_nodes:second_node(Config),
    ok = waiting_callers(Config, 50),
    on_first(Config, fun(_) -> true = erlang:disconnect_node(Node) end),
    {[{nodedown, Node}], _} = ends(Config),
    on_first(Config, fun(_) ->
        _ = beamway_peer:wait_until(fun() -> net_adm:ping(Node) =:= pong end, wait_ms()),
        _ = beamway_peer:wait_until(fun() -> try teleport:erpc_call(Node, erlang, node, [], 10000) =:= Node catch error:{erpc, _} -> false end end, wait_ms())
    end).

stopped_and_killed(Config) ->
    Node = teleport_nodes:second_node(Config),
    ok = waiting_callers(Config, 50),
    ok = beamway_peer:sigstop(teleport_nodes:second(Config)),
    on_first(Config, fun(_) -> {'EXIT', {timeout, _}} = (catch teleport:call({x, Node}, x, 100)) end),
    ok = beamway_peer:kill9(teleport_nodes:second(Config)),
    {[{nodedown, Node}], _} = ends(Config).

%% The nodes stay connected: whoever waited for the lane is told so, by each way of waiting. gen_server's callers hear a reason that they know.
only_a_lane_is_lost(Config) ->
    Lost = fun() -> [begin
                         Supervisor = whereis(teleport_lane_sup),
                         {links, Links} = process_info(teleport_sender:pid(Tx), links),
                         exit(lists:last(lists:sort(Links -- [Supervisor])), kill)
                     end || {_, _, Tx} <- teleport_peers:all()] end,
    Killed = fun() -> [exit(teleport_sender:pid(Tx), kill) || {out, _, Tx} <- teleport_peers:all()] end,
    on_first(Config, fun(Node) ->
        ok = teleport:configure(all, #{backoff_ms => {1, 50}}),
        Server = erpc:call(Node, teleport_nodes, start_server, [lost_server]),
        Pending = fun() -> lists:sum([P || #{opened_by := peer, pending_calls := P} <- erpc:call(Node, teleport, lanes, [node()])]) end,
        [begin
             Waiters = [spawn_monitor(fun() -> exit(Wait(Server, Node)) end)
                        || Wait <- [fun(To, _) -> catch teleport:call(To, never, infinity) end,
                                    fun(To, _) -> teleport:wait_response(teleport:send_request(To, never), infinity) end,
                                    fun(_, On) -> catch gen_server:call({via, teleport, {lost_server, On}}, never, infinity) end,
                                    fun(_, On) -> catch teleport:erpc_call(On, timer, sleep, [infinity]) end]],
             _ = beamway_peer:wait_until(fun() -> Pending() =:= 4 end, wait_ms()),
             _ = Cut(Node),
             [{'EXIT', {{lane_lost, Node}, {teleport, call, _}}}, {error, {{lane_lost, Node}, Server}}, {'EXIT', {{nodedown, Node}, {gen_server, call, _}}},
              {'EXIT', {{erpc, noconnection}, _}}] =
                 [receive {'DOWN', Monitor, process, Pid, Told} -> Told after wait_ms() -> error(still_waits) end || {Pid, Monitor} <- Waiters],
             true = lists:member(Node, nodes()),
             {echo, x} = beamway_peer:wait_until(fun() -> try teleport:call(Server, {echo, x}) catch exit:_ -> false end end, wait_ms()),
             _ = beamway_peer:wait_until(fun() -> Pending() =:= 0 end, wait_ms())
         end || Cut <- [fun(_) -> Lost() end, fun(_) -> Killed() end, fun(On) -> erpc:call(On, Lost) end]]
    end).

%% By itself, also when nobody sends.
lanes_are_opened_again(Config) ->
    on_first(Config, fun(Node) ->
        ok = teleport:prime(Node, infinity),
        Count = length([L || #{opened_by := this_node} = L <- teleport:lanes(Node)]),
        Pids = fun() -> lists:sort([teleport_sender:pid(Tx) || {out, _, Tx} <- teleport_peers:all()]) end,
        Theirs = fun() -> [teleport_sender:pid(Tx) || {in, {From, _, _}, Tx} <- erpc:call(Node, teleport_peers, all, []), From =:= node()] end,
        %% The other side enters a lane into its table a moment after this one.
        Whole = fun(Look, Old) ->
                        beamway_peer:wait_until(fun() -> Now = Look(), length(Now) =:= Count andalso Now -- Old =:= Now andalso Now end, wait_ms())
                end,
        {Before, TheirsBefore} = {Whole(Pids, []), Whole(Theirs, [])},
        [exit(Pid, kill) || Pid <- Before],
        {Between, TheirsBetween} = {Whole(Pids, Before), Whole(Theirs, TheirsBefore)},
        %% The other side's end, too.
        [exit(Pid, kill) || Pid <- TheirsBetween],
        Then = Whole(Pids, Between),
        %% What carries a lane: its port, or of TLS the process that writes.
        Supervisor = whereis(teleport_lane_sup),
        [exit(lists:last(lists:sort(Links -- [Supervisor])), kill) || Pid <- Then, {links, Links} <- [process_info(Pid, links)]],
        _ = Whole(Pids, Then),
        Node = teleport:erpc_call(Node, erlang, node, [])
    end).

%% Lanes are killed under a stream: what has come is in order and without a double, and what has not is counted as unconfirmed.
nothing_is_lost_silently(Config) ->
    on_first(Config, fun(Node) ->
        Receiver = spawn(Node, ?MODULE, gather, [[]]),
        ok = teleport:configure(all, #{on_unconfirmed => {?MODULE, on_unconfirmed}, backoff_ms => {1, 50}}),
        persistent_term:put(tp_unconfirmed, counters:new(1, [])),
        {Killer, Monitor} = spawn_monitor(fun() -> kill_lanes() end),
        Sent = send_for(erlang:monotonic_time(millisecond) + 3000, Receiver, 1),
        exit(Killer, kill),
        receive {'DOWN', Monitor, process, Killer, killed} -> ok end,
        Come = what_has_come(Receiver),
        true = Come =:= lists:usort(Come),
        Missing = Sent - length(Come),
        Unconfirmed = fun() -> maps:get(Node, teleport:unconfirmed(), 0) end,
        _ = beamway_peer:wait_until(fun() -> Unconfirmed() >= Missing end, wait_ms()),
        ct_log("sent ~b, came ~b, unconfirmed ~b", [Sent, length(Come), Unconfirmed()]),
        _ = beamway_peer:wait_until(fun() -> counters:get(persistent_term:get(tp_unconfirmed), 1) =:= Unconfirmed() end, wait_ms())
    end).

%% The acceptor of a lane may be late: when it comes, a lane that was opened after it was lost is here, or was. Else messages would change their order.
lanes_in_their_turn(Config) ->
    on_first(Config, fun(Node) ->
        Id = {Node, normal, 99},
        Test = self(),
        Comes = fun(Turn) ->
                        Lane = spawn(fun() ->
                                         Tx = teleport_sender:new(self(), hd(erlang:ports()), tcp, teleport_config:of_node(Node), false),
                                         Test ! {self(), teleport_peers:incoming(Id, Tx, Turn)},
                                         receive {close, replaced} -> ok end
                                     end),
                        {Lane, monitor(process, Lane)}
                end,
        Answer = fun({Lane, _}) -> receive {Lane, Told} -> Told after wait_ms() -> error(no_answer) end end,
        Ended = fun({Lane, Monitor}) -> receive {'DOWN', Monitor, process, Lane, Reason} -> Reason after wait_ms() -> error(goes_on) end end,
        Second = Comes(2),
        ok = Answer(Second),
        superseded = Answer(Comes(1)),
        true = is_process_alive(element(1, Second)),
        Third = Comes(3),
        normal = Ended(Second),
        ok = Answer(Third),
        exit(element(1, Third), kill),
        killed = Ended(Third),
        _ = beamway_peer:wait_until(fun() -> [] =:= [x || {in, Of, _} <- teleport_peers:all(), Of =:= Id] end, wait_ms()),
        superseded = Answer(Comes(2))
    end).

%% Behind everything that was sent; asked again if a lane was lost with the question.
what_has_come(Receiver) ->
    {ok, Ref} = teleport:send(Receiver, {give, self()}, #{confirm => true, timeout => infinity}),
    receive
        {teleport, Ref, confirmed} -> receive {seen, Seen} -> Seen after wait_ms() -> error(no_answer) end;
        {teleport, Ref, {unconfirmed, _}} -> what_has_come(Receiver)
    after wait_ms() -> error(no_answer)
    end.

%% Cases run on a node that knows no ct.
ct_log(Format, Args) -> io:format(Format ++ "~n", Args).

send_for(Deadline, Receiver, N) ->
    case N =< 20 orelse erlang:monotonic_time(millisecond) < Deadline of
        true ->
            Payload = case N rem 50 of 0 -> binary:copy(<<"x">>, 300000); _ -> x end,
            ok = teleport:send(Receiver, {N, Payload}, #{timeout => infinity}),
            send_for(Deadline, Receiver, N + 1);
        false -> N - 1
    end.

kill_lanes() ->
    receive after 50 -> ok end,
    [exit(teleport_sender:pid(Tx), kill) || {out, _, Tx} <- teleport_peers:all()],
    kill_lanes().

%% @private Keeps the numbers of what has come, the oldest first.
gather(Seen) ->
    receive
        {give, From} -> From ! {seen, lists:reverse(Seen)}, gather(Seen);
        {N, _} -> gather([N | Seen])
    end.

%% @private The option of that name.
on_unconfirmed(#{unconfirmed := Count}) -> counters:add(persistent_term:get(tp_unconfirmed), 1, Count).

%% The other side is stopped with the first pieces, so that the rest cannot come.
killed_in_the_middle_of_a_large_message(Config) ->
    Bytes = beamway_carrier:scale(200000000, 1000000000),
    PeerB = teleport_nodes:second(Config),
    on_first(Config, fun(Node) ->
        persistent_term:put(tp_receiver, spawn(Node, ?MODULE, gather, [[]])),
        teleport:prime(Node, infinity)
    end),
    ok = beamway_peer:sigstop(PeerB),
    on_first(Config, fun(_) ->
        Large = binary:copy(<<"x">>, Bytes),
        true = register(tp_told, spawn(fun() ->
            {ok, Ref} = teleport:send(persistent_term:get(tp_receiver), {1, Large}, #{confirm => true, key => big, timeout => infinity}),
            receive {teleport, Ref, Told} -> receive {give, To} -> To ! {told, Told} end end
        end)),
        %% The link holds its first pieces and takes no more, then the lane's process is killed.
        Begun = fun() -> case [Tx || {out, _, Tx} <- teleport_peers:all(), element(2, teleport_sender:queued(Tx)) > 0] of
                             [Tx] -> is_full(teleport_sender:link(Tx)) andalso teleport_sender:pid(Tx);
                             [] -> false
                         end end,
        exit(beamway_peer:wait_until(Begun, wait_ms()), kill)
    end),
    ok = beamway_peer:sigcont(PeerB),
    on_first(Config, fun(Node) ->
        tp_told ! {give, self()},
        receive {told, {unconfirmed, {lane_lost, Node}}} -> ok after wait_ms() -> error(not_told) end,
        1 = beamway_peer:wait_until(fun() -> maps:get(Node, teleport:unconfirmed(), false) end, wait_ms()),
        Receiver = persistent_term:get(tp_receiver),
        ok = teleport:send(Receiver, {2, x}, #{key => big, timeout => infinity}),
        ok = teleport:send(Receiver, {give, self()}, #{key => big, timeout => infinity}),
        receive {seen, [2]} -> ok after wait_ms() -> error(no_answer) end
    end),
    %% What had come of it is gone.
    _ = beamway_peer:wait_until(fun() -> beamway_peer:call(PeerB, erlang, garbage_collect, []), beamway_peer:call(PeerB, erlang, memory, [binary]) < 50000000 end,
                                wait_ms()).

is_full(Link) ->
    case teleport_link:stats(Link) of
        #{busy := Busy, queue_bytes := Bytes} -> Busy =:= 1 andalso Bytes > 0;
        closed -> false
    end.

%% The race of the first library of this kind: messages were lost while its pool started.
first_use_by_many(Config) ->
    Rounds = beamway_carrier:scale(case teleport_nodes:kind(Config) of shm -> 200; _ -> 20 end, 200),
    teleport_nodes:on_first(Config, fun(Node) ->
        Test = self(),
        [begin
             Receiver = spawn(Node, fun() -> Test ! {got, take_many(100, [])} end),
             Senders = [spawn_monitor(fun() -> receive go -> ok = teleport:send(Receiver, {N, x}, #{timeout => infinity}) end end)
                        || N <- lists:seq(1, 100)],
             [Pid ! go || {Pid, _} <- Senders],
             [receive {'DOWN', M, process, P, Reason} -> normal = Reason after wait_ms() -> error({stuck, Round}) end || {P, M} <- Senders],
             receive {got, Got} -> Got = lists:seq(1, 100) after wait_ms() -> error({lost, Round}) end,
             ok = application:stop(teleport),
             ok = application:start(teleport)
         end || Round <- lists:seq(1, Rounds)]
    end, 280000).

take_many(0, Got) -> lists:sort(Got);
take_many(Left, Got) -> receive {N, x} -> take_many(Left - 1, [N | Got]) end.

%% Schedulers go on: nothing of a lane holds one. Where other work holds the processors itself a process is held up by that, so the nodes have a
%% high priority where that is allowed, and three of five attempts count. The limit is a third of what one copy of such a term takes here.
large_terms_both_ways(Config) ->
    Kind = teleport_nodes:kind(Config),
    Options = #{wrapper => [os:find_executable("nice"), "-n", "-15"]},
    {PeerA, _} = teleport_nodes:start(Kind, Options),
    {PeerB, NodeB} = teleport_nodes:start(Kind, Options),
    ok = teleport_nodes:connect(PeerA, NodeB),
    Large = fun() -> persistent_term:put(tp_large, {large, large_binary(256), [lists:seq(1, 1000), #{k => large_binary(2)}]}), ok end,
    ok = beamway_peer:run(PeerA, Large),
    Attempt = fun() ->
        [ok = beamway_peer:run(Peer, fun watch_lanes/0) || Peer <- [PeerA, PeerB]],
        ok = beamway_peer:run(PeerA, fun() ->
            Term = persistent_term:get(tp_large),
            Echo = spawn(NodeB, ?MODULE, big_echo, []),
            ok = teleport:send(Echo, {self(), Term}, #{timeout => infinity}),
            receive {echo, Back} -> true = digest(Back) =:= digest(Term), ok after wait_ms() -> error(no_echo) end
        end, wait_ms() + 1000),
        held(PeerA) ++ held(PeerB)
    end,
    LimitMs = max(10, copy_ms() div 3),
    Longest = [lists:max([0 | [Ms || {Ms, _} <- Attempt()]]) || _ <- lists:seq(1, 5)],
    ct:log("held for so many ms at most, in each attempt: ~w; the limit is ~b", [Longest, LimitMs]),
    true = lists:min(Longest) < LimitMs.

%% As long as one copy of the large term holds a scheduler.
copy_ms() ->
    Binary = large_binary(256),
    {Us, _} = timer:tc(fun() -> binary:copy(Binary) end),
    Us div 1000.

large_binary(MiB) -> iolist_to_binary([binary:copy(<<N>>, 1048576) || N <- lists:seq(1, MiB)]).

digest({large, Binary, [List, #{k := Small}]}) -> {erlang:phash2(List), crypto:hash(sha256, Binary), crypto:hash(sha256, Small)}.

%% @private
big_echo() -> receive {From, Term} -> ok = teleport:send(From, {echo, Term}, #{timeout => infinity}) end.

%% Processes and ports of lanes: the processes of the test itself copy and compare large binaries.
watch_lanes() ->
    Caller = self(),
    Pid = spawn(fun() ->
                        _ = erlang:system_monitor(self(), [{long_schedule, 10}]),
                        Caller ! {self(), watching},
                        receive {give, From} -> From ! {held, events()} end
                end),
    persistent_term:put(tp_watch, Pid),
    receive {Pid, watching} -> ok end.

events() -> receive {monitor, Who, long_schedule, Info} -> [{Who, Info} | events()] after 0 -> [] end.

held(Peer) ->
    beamway_peer:run(Peer, fun() ->
        persistent_term:get(tp_watch) ! {give, self()},
        Lanes = [teleport_sender:pid(Tx) || {_, _, Tx} <- teleport_peers:all()],
        receive {held, Events} -> [{proplists:get_value(timeout, Info), lists:flatten(io_lib:format("~0p", [Event]))}
                                   || {Who, Info} = Event <- Events, is_port(Who) orelse lists:member(Who, Lanes)]
        end
    end).

%% The peer is stopped; many send as much as they can, over one lane.
memory_is_bounded(Config) ->
    PeerA = teleport_nodes:first(Config),
    Bound = 16000000,
    Options = #{max_queue_bytes => Bound, block_ms => 1000, lanes => #{control => 1, normal => 1, bulk => 1}},
    on_first(Config, fun(Node) -> ok = teleport:configure(Node, Options), ok = teleport:prime(Node, infinity), erlang:system_flag(fullsweep_after, 1) end),
    Before = beamway_peer:resident_bytes(beamway_peer:os_pid(PeerA)),
    ok = beamway_peer:sigstop(teleport_nodes:second(Config)),
    on_first(Config, fun(Node) ->
        Senders = [spawn_monitor(fun() -> flood(Node, binary:copy(<<"x">>, 16000)) end) || _ <- lists:seq(1, 50)],
        [receive {'DOWN', M, process, P, Reason} -> normal = Reason after wait_ms() -> error(sender_stuck) end || {P, M} <- Senders],
        [Queued] = [Bytes || #{queued_bytes := Bytes, class := normal, opened_by := this_node} <- teleport:lanes(Node)],
        ct:log("~b bytes wait", [Queued]),
        true = Queued =< Bound andalso Queued > Bound div 2
    end),
    Grown = beamway_peer:resident_bytes(beamway_peer:os_pid(PeerA)) - Before,
    ct:log("grown by ~b bytes", [Grown]),
    %% The queue, half as much again for what a collection of garbage needs, its ring and the kernel's buffers.
    true = Grown < Bound * 3 div 2 + 8000000,
    ok = beamway_peer:sigcont(teleport_nodes:second(Config)),
    on_first(Config, fun(Node) ->
        _ = beamway_peer:wait_until(fun() -> lists:all(fun(#{queued := Q}) -> Q =:= 0 end, teleport:lanes(Node)) end, wait_ms())
    end).

flood(Node, Payload) ->
    case teleport:send({tp_nobody, Node}, {self(), Payload}) of
        ok -> flood(Node, Payload);
        {error, timeout} -> ok
    end.

%% The called lane stands still. It has given credit for 4 MB, so that comes to its mailbox: some pieces, and the word before them.
little_is_read_ahead(Config) ->
    on_first(Config, fun(Node) ->
        ok = teleport:prime(Node, infinity),
        Here = node(),
        Called = fun() -> [teleport_sender:pid(Tx) || {in, {Of, bulk, _}, Tx} <- teleport_peers:all(), Of =:= Here] end,
        Lanes = beamway_peer:wait_until(fun() -> Found = erpc:call(Node, Called), length(Found) =:= 2 andalso Found end, wait_ms()),
        [ok = erpc:call(Node, sys, suspend, [Lane]) || Lane <- Lanes],
        #{chunk_bytes := Chunk} = teleport_config:of_node(Node),
        {ok, Ref} = teleport:send({tp_nobody, Node}, binary:copy(<<"x">>, 100 * Chunk), #{class => bulk, key => one, confirm => true, timeout => infinity}),
        Come = fun() -> lists:sum([Length || Lane <- Lanes, {message_queue_len, Length} <- [erpc:call(Node, erlang, process_info, [Lane, message_queue_len])]]) end,
        Pieces = at_rest(Come, beamway_peer:wait_until(fun() -> Length = Come(), Length > 1 andalso Length end, wait_ms()), 20),
        {true, _} = {Pieces < 2 * 4194304 div Chunk, Pieces},
        [ok = erpc:call(Node, sys, resume, [Lane]) || Lane <- Lanes],
        receive {teleport, Ref, {unconfirmed, noproc}} -> ok after wait_ms() -> error(not_told) end
    end).

%% What it is when so many looks in a row have found the same.
at_rest(_, Value, 0) -> Value;
at_rest(Look, Value, Left) ->
    receive after 50 -> ok end,
    case Look() of
        Value -> at_rest(Look, Value, Left - 1);
        Other -> at_rest(Look, Other, 20)
    end.

%% A receiver's mailbox is its own affair; lane, sender and others go on.
a_slow_receiver(Config) ->
    on_first(Config, fun(Node) ->
        Slow = spawn(Node, fun() -> receive go -> slow(0) end end),
        [ok = teleport:send(Slow, {N, binary:copy(<<"x">>, 1000)}) || N <- lists:seq(1, 5000)],
        Node = teleport:erpc_call(Node, erlang, node, []),
        ok = teleport:send(Slow, {count, self()}),
        ok = teleport:send(Slow, go),
        receive {counted, 5000} -> ok after wait_ms() -> error(not_all) end
    end).

slow(N) ->
    receive
        {count, From} -> From ! {counted, N};
        {_, _} -> slow(N + 1)
    end.

supervisors_recover(Config) ->
    on_first(Config, fun(Node) ->
        [begin
             _ = beamway_peer:wait_until(fun() -> teleport:prime(Node) =:= ok end, wait_ms()),
             Old = whereis(Name),
             exit(Old, kill),
             _ = beamway_peer:wait_until(fun() -> Pid = whereis(Name), is_pid(Pid) andalso Pid =/= Old end, wait_ms()),
             Node = beamway_peer:wait_until(fun() -> try teleport:erpc_call(Node, erlang, node, [], 10000) catch _:_ -> false end end, wait_ms())
         end || Name <- [teleport_listener, teleport_lane_sup, teleport_peer_sup, teleport_peers]],
        %% And the side that is called.
        exit(erpc:call(Node, erlang, whereis, [teleport_listener]), kill),
        [exit(teleport_sender:pid(Tx), kill) || {out, _, Tx} <- teleport_peers:all()],
        _ = beamway_peer:wait_until(fun() -> teleport:prime(Node) =:= ok end, wait_ms())
    end).

%% Lanes that come and go leave no process, port, descriptor, mapping or row.
nothing_is_left(Config) ->
    {PeerA, PeerB} = {teleport_nodes:first(Config), teleport_nodes:second(Config)},
    Round = fun() ->
        on_first(Config, fun(Node) ->
            %% Whoever comes before the end of the last round is known gets the same answer as those who waited.
            _ = beamway_peer:wait_until(fun() -> teleport:prime(Node) =:= ok end, wait_ms()),
            Node = teleport:erpc_call(Node, erlang, node, []),
            {ok, Peer} = teleport_peers:peer(Node, infinity),
            Monitor = monitor(process, Peer),
            Peer ! {nodedown, Node},
            receive {'DOWN', Monitor, process, Peer, normal} -> ok end
        end)
    end,
    Look = fun(Peer) -> {Fds, _, Ports} = beamway_peer:resources(Peer),
                        {Fds, Ports, beamway_peer:call(Peer, erlang, system_info, [process_count]), length(beamway_peer:call(Peer, teleport, lanes, []))} end,
    [Round() || _ <- [1, 2, 3]],
    _ = beamway_peer:wait_until(fun() -> beamway_peer:call(PeerB, teleport, lanes, []) =:= [] end, wait_ms()),
    Before = {Look(PeerA), Look(PeerB)},
    [Round() || _ <- lists:seq(1, 20)],
    _ = beamway_peer:wait_until(fun() -> no_more({Look(PeerA), Look(PeerB)}, Before) end, wait_ms()).

no_more({A, B}, {A0, B0}) ->
    lists:all(fun({Now, Then}) -> Now =< Then + 2 end, lists:zip(tuple_to_list(A) ++ tuple_to_list(B), tuple_to_list(A0) ++ tuple_to_list(B0))).

%% A node without a name has no peers: it is told what it is told of a node that is gone.
without_distribution(_Config) ->
    {Peer, nonode@nohost} = beamway_compat_nodes:start(beamway_shm, #{name => none}),
    ok = beamway_peer:call(Peer, code, add_pathsa, [code:get_path()]),
    {'EXIT', {{nodedown, no@where}, _}} = beamway_peer:run(Peer, fun() ->
        {ok, _} = application:ensure_all_started(teleport),
        {error, {nodedown, no@where}} = teleport:send({x, no@where}, x),
        {error, {nodedown, no@where}} = teleport:prime(no@where),
        catch teleport:call({x, no@where}, x)
    end),
    ok = beamway_peer:stop(Peer).

the_application_stops(Config) ->
    ok = waiting_callers(Config, 20),
    Node = teleport_nodes:second_node(Config),
    ok = beamway_peer:call(teleport_nodes:second(Config), application, stop, [teleport]),
    {[{lane_lost, Node}], _} = ends(Config),
    on_first(Config, fun(_) ->
        {error, {no_teleport, Node}} = beamway_peer:wait_until(fun() -> case teleport:prime(Node) of {error, {lane_lost, _}} -> false; E -> E end end, wait_ms()),
        ok = application:stop(teleport),
        {'EXIT', {{not_started, teleport}, _}} = (catch teleport:send({x, Node}, x)),
        {'EXIT', {{not_started, teleport}, _}} = (catch teleport:multi_call([Node], x, x)),
        {'EXIT', {{not_started, teleport}, _}} = (catch teleport:abcast([Node], x, x)),
        {'EXIT', {{not_started, teleport}, _}} = (catch teleport_erpc:multicast([Node], erlang, node, [])),
        {'EXIT', {{not_started, teleport}, _}} = (catch teleport:configure(all, #{}))
    end).

%% An orderly end loses nothing of what the link has, only what waits in the queue; both count as unconfirmed.
what_was_taken_goes_out(Config) ->
    on_first(Config, fun(Node) ->
        Test = self(),
        [begin
             ok = teleport:prime(Node, infinity),
             Receiver = spawn(Node, fun() -> take_many(200, []), Test ! {got, Round} end),
             [ok = teleport:send(Receiver, {N, x}, #{timeout => infinity}) || N <- lists:seq(1, 200)],
             [0 = maps:get(queued, Lane) || Lane <- teleport:lanes()],
             ok = application:stop(teleport),
             receive {got, Round} -> ok after wait_ms() -> error({lost, Round}) end,
             ok = application:start(teleport)
         end || Round <- lists:seq(1, 20)]
    end).

%% Any number of loads of any module that lanes stand in, at any time; and who asks a lane for its state leaves nothing on its stack.
new_code(Config) ->
    Here = fun(Node) -> [{whereis(teleport_listener), [Pid || {_, Pid, _, _} <- supervisor:which_children(teleport_acceptor_sup)]},
                         lists:sort([{Way, teleport_sender:pid(Tx)} || {Way, {Of, _, _}, Tx} <- teleport_peers:all(), Of =:= Node])] end,
    Load = fun(_) -> [begin _ = code:purge(Module), {module, Module} = code:load_file(Module) end
                      || _ <- [1, 2, 3], Module <- [teleport_lane, teleport_inbound, teleport_outbound, teleport_waiters, teleport_calls, teleport_listener, teleport_tls_link, teleport_peer, teleport_peers]] end,
    ok = teleport_nodes:on_first(Config, fun(Node) ->
        Waiting = erpc:call(Node, teleport_nodes, start_server, [none]),
        Gate = teleport_nodes:gate(),
        ok = teleport:prime(Node, infinity),
        Id = teleport:send_request(Waiting, {behind, Gate, later}),
        %% Entered on the other side, too, and at rest.
        Look = fun() -> {Here(Node), erpc:call(Node, fun() -> Here(node(Gate)) end)} end,
        Settled = fun() -> {_, [_, Theirs]} = Look(), length(Theirs) >= 4 end,
        true = beamway_peer:wait_until(Settled, wait_ms()),
        Before = Look(),
        _ = Load(here),
        _ = erpc:call(Node, fun() -> Load(there) end),
        Before = Look(),
        ok = teleport_nodes:open_gate(Gate),
        {reply, later} = teleport:receive_response(Id, wait_ms()),
        [{out, Lane} | _] = lists:reverse(lists:last(Here(Node))),
        Stack = fun() -> _ = sys:get_state(Lane), {stack_size, Words} = process_info(Lane, stack_size), Words end,
        %% The lane may not be back in its receive yet.
        Least = fun() -> lists:min([Stack() || _ <- lists:seq(1, 20)]) end,
        First = Least(),
        [First = Least() || _ <- lists:seq(1, 5)],
        Node = teleport:erpc_call(Node, erlang, node, []),
        %% Another version may have another state: such a lane ends in order, and comes again.
        Ends = monitor(process, Lane),
        _ = sys:replace_state(Lane, fun(State) -> erlang:append_element(State, of_another_version) end),
        Lane ! look,
        receive {'DOWN', Ends, process, Lane, Why} -> {shutdown, {retry, new_code}} = Why after wait_ms() -> error(lives) end,
        _ = beamway_peer:wait_until(fun() -> not lists:member({out, Lane}, lists:last(Here(Node))) end, wait_ms()),
        Node = teleport:erpc_call(Node, erlang, node, [])
    end).

%% A server that parks what it is asked holds nothing for callers that were killed; the others still get their answers. Whoever asks several nodes at once
%% asks by other processes, which end with it.
killed_callers(Config) ->
    on_first(Config, fun(Node) ->
        Server = erpc:call(Node, teleport_nodes, start_server, [tp_parks]),
        Gate = teleport_nodes:gate(),
        Pending = fun() -> lists:sum([P || #{opened_by := peer, pending_calls := P} <- erpc:call(Node, teleport, lanes, [node()])]) end,
        Kept = teleport:send_request(Server, {behind, Gate, kept}),
        Callers = [spawn_monitor(fun() -> _ = teleport:send_request(Server, never), teleport:call(Server, never, infinity) end)
                   || _ <- lists:seq(1, 50)],
        Several = [spawn_monitor(fun() -> teleport:multi_call([Node], tp_parks, never) end),
                   spawn_monitor(fun() -> teleport:multicall([Node], timer, sleep, [infinity]) end)],
        _ = beamway_peer:wait_until(fun() -> Pending() =:= 103 end, wait_ms()),
        [exit(Pid, kill) || {Pid, _} <- Several],
        _ = beamway_peer:wait_until(fun() -> Pending() =:= 101 end, wait_ms()),
        [exit(Pid, kill) || {Pid, _} <- Callers],
        _ = beamway_peer:wait_until(fun() -> Pending() =:= 1 end, wait_ms()),
        %% Later ones are noticed at once or later, and one that ended in order is no other.
        {Late, _} = spawn_monitor(fun() -> teleport:call(Server, never, infinity) end),
        _ = beamway_peer:wait_until(fun() -> Pending() =:= 2 end, wait_ms()),
        exit(Late, kill),
        _ = beamway_peer:wait_until(fun() -> Pending() =:= 1 end, wait_ms()),
        ok = teleport_nodes:open_gate(Gate),
        {reply, kept} = teleport:receive_response(Kept, wait_ms()),
        0 = Pending()
    end).

%% Senders that gave up or were killed while they waited for room: the lane keeps none, and none of them takes room from one that still waits. Nobody waits for
%% the confirmation of what was never sent.
waiters_leave(Config) ->
    PeerB = teleport_nodes:second(Config),
    on_first(Config, fun(Node) ->
        ok = teleport:configure(Node, #{max_queue_bytes => 2000000}),
        persistent_term:put(tp_receiver, spawn(Node, ?MODULE, gather, [[]])),
        ok = teleport:prime(Node, infinity)
    end),
    ok = beamway_peer:sigstop(PeerB),
    on_first(Config, fun(Node) ->
        Receiver = persistent_term:get(tp_receiver),
        Large = binary:copy(<<"x">>, 1900000),
        Send = fun(Timeout) -> teleport:send(Receiver, {0, Large}, #{key => one, timeout => Timeout}) end,
        Confirmed = fun() -> teleport:send(Receiver, {0, Large}, #{key => one, timeout => infinity, confirm => true}) end,
        Watchers = fun() -> [lists:sort(Pids) || {out, _, Tx} <- teleport_peers:all(), {monitored_by, Pids} <- [process_info(teleport_sender:pid(Tx), monitored_by)]] end,
        Before = Watchers(),
        %% A socket's buffers may grow while nobody reads.
        _ = beamway_peer:wait_until(fun() -> Send(50) =:= {error, timeout} end, wait_ms()),
        Waiting = fun() -> lists:sum([W || #{opened_by := this_node, waiting_senders := W} <- teleport:lanes(Node)]) end,
        _ = beamway_peer:wait_until(fun() -> Waiting() =:= 0 end, wait_ms()),
        Killed = [spawn_monitor(Sends) || Sends <- [fun() -> Send(infinity) end, Confirmed], _ <- lists:seq(1, 50)],
        _ = beamway_peer:wait_until(fun() -> Waiting() =:= 100 end, wait_ms()),
        [exit(Pid, kill) || {Pid, _} <- Killed],
        [receive {'DOWN', Monitor, process, Pid, killed} -> ok end || {Pid, Monitor} <- Killed],
        _ = beamway_peer:wait_until(fun() -> Watchers() =:= Before end, wait_ms()),
        true = register(tp_last, spawn(fun() -> Sent = Send(infinity), receive {give, To} -> To ! {sent, Sent} end end)),
        beamway_peer:wait_until(fun() -> Waiting() > 0 end, wait_ms())
    end),
    ok = beamway_peer:sigcont(PeerB),
    on_first(Config, fun(_) ->
        tp_last ! {give, self()},
        %% Before the first look of an idle lane, which comes after 5 s of silence.
        receive {sent, ok} -> ok after 4000 * beamway_runner:slowness() -> error(still_waits) end
    end).

%% A thousand senders: each of them gets a turn before its limit, though some would send for minutes, and few messages wait in the lane's process.
%% Half of them are killed meanwhile; what was reserved for them is free again before the first look of an idle lane (5 s).
senders_wait_in_turn(Config) ->
    on_first(Config, fun(Node) ->
        Receiver = spawn(Node, fun() -> (fun Discard() -> receive _ -> Discard() end end)() end),
        Message = binary:copy(<<"x">>, 100),
        Send = fun(Count) -> fun() -> exit(lists:usort([teleport:send(Receiver, Message) || _ <- lists:seq(1, Count)])) end end,
        ok = teleport:prime(Node, infinity),
        ok = teleport:configure(all, #{block_ms => 30000 * beamway_runner:slowness()}),
        Patient = [spawn_monitor(Send(200)) || _ <- lists:seq(1, 500)],
        Killed = [spawn_monitor(Send(100000)) || _ <- lists:seq(1, 500)],
        Queued = fun() -> lists:max([Q || #{opened_by := this_node, queued := Q} <- teleport:lanes(Node)]) end,
        Ended = fun({Pid, _}) -> not is_process_alive(Pid) end,
        Most = (fun Look(Before) ->
                        Now = max(Before, Queued()),
                        case lists:all(Ended, Patient) of true -> Now; false -> receive after 20 -> Look(Now) end end
                end)(0),
        [exit(Pid, kill) || {Pid, _} <- Killed],
        [receive {'DOWN', Monitor, process, Pid, Results} -> [ok] = Results end || {Pid, Monitor} <- Patient],
        %% 2,000, and as many places that were reserved while others filled the queue.
        {true, _} = {Most =< 4000, Most},
        [receive {'DOWN', Monitor, process, Pid, killed} -> ok end || {Pid, Monitor} <- Killed],
        Start = erlang:monotonic_time(millisecond),
        _ = beamway_peer:wait_until(fun() -> Queued() =:= 0 end, wait_ms()),
        true = erlang:monotonic_time(millisecond) - Start < 5000 * beamway_runner:slowness()
    end).

%% A sender that was killed between counting its message and giving it away leaves the count behind. It goes, although somebody always looks at the lane.
counts_of_the_killed(Config) ->
    on_first(Config, fun(Node) ->
        ok = teleport:prime(Node, infinity),
        Queued = fun() -> lists:sum([Q || #{opened_by := this_node, queued := Q} <- teleport:lanes(Node)]) end,
        0 = Queued(),
        {_, _, Tx} = lists:keyfind(out, 1, teleport_peers:all()),
        ok = teleport_sender:enqueued(Tx, 100),
        1 = Queued(),
        _ = beamway_peer:wait_until(fun() -> Queued() =:= 0 end, wait_ms()),
        {0, 0} = teleport_sender:queued(Tx)
    end).

%% Whatever is stuck, the caller's own limit is the only one, and who cannot be reached is named.
limits_hold(Config) ->
    {PeerC, NodeC} = teleport_nodes:start(teleport_nodes:kind(Config)),
    %% They do not connect to each other while they stand still: their global would give up all connections.
    [ok = teleport_nodes:connect(Peer, NodeC) || Peer <- [teleport_nodes:first(Config), teleport_nodes:second(Config)]],
    Peers = [teleport_nodes:second(Config), PeerC],
    [ok = beamway_peer:sigstop(Peer) || Peer <- Peers],
    on_first(Config, fun(Node) ->
        Took = fun(Body) -> Start = erlang:monotonic_time(millisecond), Result = Body(), {Result, erlang:monotonic_time(millisecond) - Start} end,
        {{'EXIT', {{erpc, timeout}, _}}, Short} = Took(fun() -> catch teleport:erpc_call(Node, erlang, node, [], 100) end),
        true = Short < 5000 * beamway_runner:slowness(),
        %% No limit: none of the node's options is one.
        ok = teleport:configure(all, #{block_ms => 4000}),
        true = register(tp_endless, spawn(fun() ->
            Result = (catch teleport:erpc_call(Node, erlang, node, [])),
            receive {give, To} -> To ! {result, Result} end
        end)),
        %% Both at a time.
        {{error, [{Node, timeout}, {NodeC, timeout}]}, Both} = Took(fun() -> teleport:abcast([Node, NodeC], tp_nobody, x) end),
        true = Both >= 4000 andalso Both < 8000,
        {error, timeout} = teleport:erpc_cast(Node, erlang, node, [])
    end),
    [ok = beamway_peer:sigcont(Peer) || Peer <- Peers],
    on_first(Config, fun(Node) ->
        tp_endless ! {give, self()},
        receive {result, Result} -> Node = Result after wait_ms() -> error(no_result) end
    end).

%% Under load: it is started again once, and what is sent meanwhile waits, or ends with an error of a known form.
the_registry_is_killed(Config) ->
    on_first(Config, fun(Node) ->
        Test = self(),
        Senders = [spawn_monitor(fun() -> send_until_told(Test, Node, N, []) end) || N <- lists:seq(1, 50)],
        Top = whereis(teleport_sup),
        [begin
             Old = whereis(teleport_peers),
             exit(Old, kill),
             New = beamway_peer:wait_until(fun() -> Pid = whereis(teleport_peers), is_pid(Pid) andalso Pid =/= Old andalso Pid end, wait_ms()),
             %% The whole tree is back, and every sender goes on.
             _ = beamway_peer:wait_until(fun() -> teleport:prime(Node) =:= ok end, wait_ms()),
             [receive {sent, N, New} -> ok after wait_ms() -> error({stuck, N}) end || {N, _} <- lists:zip(lists:seq(1, 50), Senders)],
             New = whereis(teleport_peers)
         end || _ <- [1, 2, 3]],
        Top = whereis(teleport_sup),
        Refused = lists:append([begin Pid ! stop, receive {'DOWN', Monitor, process, Pid, {ended, Errors}} -> Errors end end || {Pid, Monitor} <- Senders]),
        [] = [Error || Error <- lists:usort(Refused), not is_known(Error, Node)]
    end).

send_until_told(Test, Node, N, Errors) ->
    receive stop -> exit({ended, Errors})
    after 1 ->
        case teleport:send({tp_nobody, Node}, x, #{unordered => true}) of
            ok -> Test ! {sent, N, whereis(teleport_peers)}, send_until_told(Test, Node, N, Errors);
            {error, Reason} -> send_until_told(Test, Node, N, lists:usort([Reason | Errors]))
        end
    end.

%% Nobody finds its lanes any more, and the message that one of them has not delivered is reported. It is too large to go straight into the link.
the_process_of_a_node_is_killed(Config) ->
    PeerB = teleport_nodes:second(Config),
    on_first(Config, fun(Node) -> ok = teleport:prime(Node, infinity) end),
    ok = beamway_peer:sigstop(PeerB),
    on_first(Config, fun(Node) ->
        ok = teleport:send({tp_nobody, Node}, binary:copy(<<"x">>, 300000)),
        {ok, Peer} = teleport_peers:peer(Node, infinity),
        exit(Peer, kill),
        1 = beamway_peer:wait_until(fun() -> maps:get(Node, teleport:unconfirmed(), false) end, wait_ms()),
        _ = beamway_peer:wait_until(fun() -> [] =:= [Id || {out, Id, _} <- teleport_peers:all()] end, wait_ms())
    end),
    ok = beamway_peer:sigcont(PeerB),
    on_first(Config, fun(Node) ->
        {ok, Ref} = teleport:send({tp_nobody, Node}, binary:copy(<<"x">>, 300000), #{confirm => true, timeout => infinity}),
        receive {teleport, Ref, {unconfirmed, noproc}} -> ok after wait_ms() -> error(not_told) end
    end).

%% The process of a node was killed, and one of its lanes stands still. Its link still takes a message, so the sender must not hear that it was refused:
%% it would send the message again. The message counts once.
left_lanes_deliver_once(Config) ->
    on_first(Config, fun(Node) ->
        ok = teleport:prime(Node, infinity),
        {out, _, Tx} = lists:keyfind(out, 1, teleport_peers:all()),
        Lane = teleport_sender:pid(Tx),
        Monitor = monitor(process, Lane),
        {ok, Peer} = teleport_peers:peer(Node, infinity),
        true = erlang:suspend_process(Lane),
        exit(Peer, kill),
        _ = beamway_peer:wait_until(fun() -> [] =:= [Id || {out, Id, _} <- teleport_peers:all()] end, wait_ms()),
        %% The registry has done all that it does at once.
        {error, badarg} = gen_server:call(teleport_peers, nothing),
        Packed = teleport_term:pack([tp_nobody | x]),
        ok = teleport_sender:send(Tx, 0, message, Packed, element(3, Packed), error),
        true = erlang:resume_process(Lane),
        receive {'DOWN', Monitor, process, Lane, _} -> ok after wait_ms() -> error(lives) end,
        _ = beamway_peer:wait_until(fun() ->
                                            #{acknowledged := Acknowledged} = teleport_sender:info(Tx),
                                            Acknowledged + maps:get(Node, teleport:unconfirmed(), 0) =:= 1
                                    end, wait_ms())
    end).

is_known({nodedown, Node}, Node) -> true;
is_known(timeout, _) -> true;
is_known(_, _) -> false.
