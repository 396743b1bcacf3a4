%% SPDX-License-Identifier: Apache-2.0
%% @doc Every kind of distribution signal between two real nodes, over each carrier.
%%
%% The cases run on the first node of the pair and reach the second only through the carrier.
%% Each case also fails if it does not end on the same connection on which it began.
-module(beamway_signals_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2,
         init_per_testcase/2, end_per_testcase/2]).
-export([sends/1, registered_sends/1, links/1, link_unlink_races/1, monitors/1,
         monitors_by_name/1, big_exit_reasons/1, exit_2/1, spawn_requests/1, big_spawn_requests/1,
         remote_spawns/1, group_leaders/1, aliases/1, remote_process_info/1, calls/1,
         trace_tokens/1, node_monitors/1, global_names/1, process_groups/1]).

-define(CARRIERS, [inet_tcp, beamway_tcp, beamway_shm, beamway_tls, beamway_tls_shm, beamway_encrypted, beamway_rdma]).
-define(WAIT_MS, 30000).

suite() -> [{timetrap, {seconds, 60}}].

all() -> beamway_carrier:all(?CARRIERS).

groups() ->
    beamway_carrier:groups(
      ?CARRIERS,
      [sends, registered_sends, links, link_unlink_races, monitors, monitors_by_name,
       big_exit_reasons, exit_2, spawn_requests, big_spawn_requests, remote_spawns, group_leaders,
       aliases, remote_process_info, calls, trace_tokens, node_monitors, global_names,
       process_groups]).

init_per_group(Carrier, Config) ->
    beamway_carrier:start_pair(beamway_carrier:init_group(Carrier, Config)).

end_per_group(_Carrier, Config) ->
    beamway_carrier:stop_pair(Config).

init_per_testcase(_Case, Config) -> beamway_carrier:begin_case(Config).

end_per_testcase(_Case, Config) -> beamway_carrier:end_case(Config).

%% Runs the body on the first node with the name of the second.
on_first(Config, Body) ->
    {PeerA, _} = beamway_carrier:peers(Config),
    {_, NodeB} = beamway_carrier:nodes(Config),
    beamway_peer:run(PeerA, fun() -> _ = Body(NodeB), ok end).

sends(Config) ->
    on_first(Config, fun(Node) ->
        Echo = spawn(Node, fun bounce/0),
        Terms = [[], 0, -1, 1 bsl 400, 1.5, <<>>, <<1:3>>, {}, #{}, self(), make_ref(), Node,
                 fun lists:map/2, "text", [1 | improper], lists:seq(1, 1000)],
        [Term = round_trip(Echo, Term) || Term <- Terms],
        {ok, ok} = {erlang:send(Echo, {self(), nosuspend}, [nosuspend]), expect(nosuspend)},
        {ok, ok} = {erlang:send(Echo, {self(), noconnect}, [noconnect]), expect(noconnect)},
        stop_and_confirm(Echo),
        %% A message to a process that has exited is dropped, and nothing else is affected.
        Echo ! {self(), lost},
        Other = spawn(Node, fun bounce/0),
        barrier = round_trip(Other, barrier),
        stop_and_confirm(Other),
        nothing = next_message(20)
    end).

registered_sends(Config) ->
    on_first(Config, fun(Node) ->
        Self = self(),
        Pid = spawn(Node, fun() -> true = register(beamway_echo, self()), Self ! ready, bounce() end),
        ready = next_message(),
        {beamway_echo, Node} ! {Self, one},
        one = next_message(),
        {beamway_nobody, Node} ! lost,
        Big = binary:copy(<<"big">>, 100000),
        ok = erlang:send({beamway_echo, Node}, {Self, Big}, []),
        Big = next_message(),
        %% The answer is sent to a registered name.
        true = register(beamway_here, Self),
        Home = node(),
        _ = spawn(Node, fun() -> {beamway_here, Home} ! from_there end),
        from_there = next_message(),
        true = unregister(beamway_here),
        stop_and_confirm(Pid)
    end).

links(Config) ->
    on_first(Config, fun(Node) ->
        process_flag(trap_exit, true),
        %% The remote end exits.
        Pid1 = spawn_link(Node, fun() -> receive {stop, Reason} -> exit(Reason) end end),
        Pid1 ! {stop, {why, [1, 2]}},
        {'EXIT', Pid1, {why, [1, 2]}} = next_message(),
        %% Links to a process that has exited.
        true = link(Pid1),
        {'EXIT', Pid1, noproc} = next_message(),
        %% The local end exits and takes the remote one down with it.
        Pid2 = spawn(Node, fun bounce/0),
        Monitor = monitor(process, Pid2),
        spawn(fun() -> true = link(Pid2), exit(local_end) end),
        {'DOWN', Monitor, process, Pid2, local_end} = next_message(),
        %% A normal exit of the local side does not affect the remote one.
        Pid3 = spawn(Node, fun bounce/0),
        Done = spawn_monitor(fun() -> true = link(Pid3) end),
        {'DOWN', _, process, _, normal} = next_message(),
        true = is_tuple(Done),
        alive = round_trip(Pid3, alive),
        %% No signal arrives after unlink.
        true = link(Pid3),
        true = unlink(Pid3),
        stop_and_confirm(Pid3),
        nothing = next_message(100)
    end).

%% unlink/1 may cross the exit signal of the other end: a signal that was not delivered before unlink/1
%% returned must never be delivered, and a later link must work.
link_unlink_races(Config) ->
    on_first(Config, fun(Node) ->
        process_flag(trap_exit, true),
        Rounds = lists:seq(1, 500),
        [begin
             Pid = spawn(Node, fun() -> receive go -> exit(raced) end end),
             Monitor = monitor(process, Pid),
             true = link(Pid),
             Pid ! go,
             true = unlink(Pid),
             receive {'EXIT', Pid, raced} -> ok after 0 -> ok end,
             receive {'DOWN', Monitor, process, Pid, raced} -> ok end,
             receive {'EXIT', Pid, _} = Late -> error({Round, Late}) after 0 -> ok end
         end || Round <- Rounds],
        Pids = [spawn(Node, fun bounce/0) || _ <- Rounds],
        [begin
             true = link(Pid), true = unlink(Pid), true = link(Pid),
             Pid ! {stop, {relinked, Pid}}
         end || Pid <- Pids],
        [receive {'EXIT', Pid, {relinked, Pid}} -> ok end || Pid <- Pids],
        nothing = next_message(50)
    end).

monitors(Config) ->
    on_first(Config, fun(Node) ->
        Pid1 = spawn(Node, fun bounce/0),
        Monitor1 = monitor(process, Pid1),
        Pid1 ! {stop, reason},
        {'DOWN', Monitor1, process, Pid1, reason} = next_message(),
        Monitor2 = monitor(process, Pid1),
        {'DOWN', Monitor2, process, Pid1, noproc} = next_message(),
        Pid2 = spawn(Node, fun bounce/0),
        Monitor3 = monitor(process, Pid2),
        true = demonitor(Monitor3, [info]),
        Monitor4 = monitor(process, Pid2),
        true = demonitor(Monitor4),
        Tagged = monitor(process, Pid2, [{tag, {tagged, 1}}]),
        stop_and_confirm(Pid2),
        {{tagged, 1}, Tagged, process, Pid2, stopped} = next_message(),
        nothing = next_message(50),
        %% Many monitors of one process: all of them fire.
        Pid3 = spawn(Node, fun bounce/0),
        Many = [monitor(process, Pid3) || _ <- lists:seq(1, 1000)],
        Pid3 ! {stop, many},
        [receive {'DOWN', Monitor, process, Pid3, many} -> ok end || Monitor <- Many]
    end).

monitors_by_name(Config) ->
    on_first(Config, fun(Node) ->
        Self = self(),
        Pid = spawn(Node, fun() -> true = register(beamway_named, self()), Self ! ready, bounce() end),
        ready = next_message(),
        Monitor = monitor(process, {beamway_named, Node}),
        Pid ! {stop, by_name},
        {'DOWN', Monitor, process, {beamway_named, Node}, by_name} = next_message(),
        Absent = monitor(process, {beamway_named, Node}),
        {'DOWN', Absent, process, {beamway_named, Node}, noproc} = next_message()
    end).

%% Exit reasons are split into fragments differently from messages, or not at all.
big_exit_reasons(Config) ->
    on_first(Config, fun(Node) ->
        process_flag(trap_exit, true),
        [begin
             Reason = {size, Size, payload(Size)},
             {Pid1, Monitor} = spawn_monitor(Node, fun() -> receive go -> exit(Reason) end end),
             true = link(Pid1),
             Pid1 ! go,
             receive {'EXIT', Pid1, Reason} -> ok end,
             receive {'DOWN', Monitor, process, Pid1, Reason} -> ok end,
             %% The same in the other direction: exit/2 and the exit of a linked process.
             Pid2 = spawn_link(Node, fun() -> process_flag(trap_exit, true), tell_exit(0) end),
             Pid2 ! {tell, self()},
             ready = next_message(),
             exit(Pid2, Reason),
             receive {told, Reason} -> ok end,
             receive {'EXIT', Pid2, told} -> ok end
         end || Size <- [0, 1000, 65000, 65536, 65537, 200000, 1000000, 12000000]]
    end).

tell_exit(Count) when Count < 10 ->
    receive
        {tell, To} ->
            To ! ready,
            receive {'EXIT', _, Reason} -> To ! {told, Reason}, exit(told) end
    end.

exit_2(Config) ->
    on_first(Config, fun(Node) ->
        [begin
             {Pid, Monitor} = spawn_monitor(Node, fun bounce/0),
             true = exit(Pid, Given),
             {'DOWN', Monitor, process, Pid, Seen} = next_message()
         end || {Given, Seen} <- [{because, because}, {kill, killed}]],
        {Pid1, Monitor1} = spawn_monitor(Node, fun bounce/0),
        true = exit(Pid1, normal),
        still = round_trip(Pid1, still),
        stop_and_confirm(Pid1),
        {'DOWN', Monitor1, process, Pid1, stopped} = next_message()
    end).

spawn_requests(Config) ->
    on_first(Config, fun(Node) ->
        Self = self(),
        Request1 = spawn_request(Node, fun() -> Self ! {hello, self()} end, [monitor, {reply_tag, new}]),
        {new, Request1, ok, Pid1} = next_message(),
        {hello, Pid1} = next_message(),
        {'DOWN', Request1, process, Pid1, normal} = next_message(),
        %% Only errors are reported.
        Request2 = spawn_request(Node, erlang, apply, [fun() -> Self ! quiet end, []],
                                 [{reply, error_only}]),
        quiet = next_message(),
        Request3 = spawn_request(Node, erlang, apply, [fun() -> ok end, []], [{bad_option, 1}]),
        {spawn_reply, Request3, error, badopt} = next_message(),
        %% An abandoned request gets no reply, and the linked process gets an exit signal.
        Request4 = spawn_request(Node, fun bounce/0, [link]),
        _ = case spawn_request_abandon(Request4) of
                true -> ok;
                false -> {spawn_reply, Request4, ok, Early} = next_message(), unlink(Early),
                         exit(Early, kill)
            end,
        true = is_reference(Request2),
        Requests = [spawn_request(Node, fun() -> ok end, []) || _ <- lists:seq(1, 500)],
        [receive {spawn_reply, Request, ok, _} -> ok end || Request <- Requests],
        nothing = next_message(50)
    end).

big_spawn_requests(Config) ->
    on_first(Config, fun(Node) ->
        [begin
             Payload = payload(Size),
             Request = spawn_request(Node, erlang, exit, [Payload], [monitor]),
             {spawn_reply, Request, ok, Pid} = next_message(),
             {'DOWN', Request, process, Pid, Payload} = next_message()
         end || Size <- [100, 65536, 1000000, 9000000]]
    end).

remote_spawns(Config) ->
    on_first(Config, fun(Node) ->
        process_flag(trap_exit, true),
        Self = self(),
        Pid1 = spawn(Node, fun() -> Self ! {plain, node()} end),
        {plain, Node} = next_message(),
        Node = node(Pid1),
        Pid2 = spawn_link(Node, erlang, exit, [linked]),
        {'EXIT', Pid2, linked} = next_message(),
        {Pid3, Monitor3} = spawn_monitor(Node, erlang, exit, [monitored]),
        {'DOWN', Monitor3, process, Pid3, monitored} = next_message(),
        Options = [link, monitor, {priority, high}, {min_heap_size, 1000}],
        {Pid4, Monitor4} = spawn_opt(Node, fun() -> exit(process_info(self(), priority)) end, Options),
        receive {'EXIT', Pid4, {priority, high}} -> ok end,
        receive {'DOWN', Monitor4, process, Pid4, {priority, high}} -> ok end,
        Pid5 = spawn_link(Node, no_such_module, no_such_function, []),
        {'EXIT', Pid5, {undef, [{no_such_module, no_such_function, [], []} | _]}} = next_message()
    end).

%% A remote process writes to the group leader of the process that started it.
group_leaders(Config) ->
    on_first(Config, fun(Node) ->
        Self = self(),
        Leader = spawn_link(fun() -> collect_output(Self) end),
        true = group_leader(Leader, Self),
        spawn(Node, fun() -> io:format("from ~p ~ts", [node(), [960]]) end),
        Expected = lists:flatten(io_lib:format("from ~p ~ts", [Node, [960]])),
        {output, Expected} = next_message(),
        Line = lists:duplicate(200000, $x),
        spawn(Node, fun() -> io:put_chars(Line) end),
        {output, Line} = next_message(),
        %% Changing the group leader of a remote process sends a separate kind of signal.
        Pid = spawn(Node, fun bounce/0),
        true = group_leader(Self, Pid),
        {group_leader, Self} = rpc_process_info(Node, Pid, group_leader)
    end).

collect_output(To) ->
    receive
        {io_request, From, ReplyAs, {put_chars, unicode, Chars}} ->
            output(To, From, ReplyAs, Chars);
        {io_request, From, ReplyAs, {put_chars, unicode, Module, Function, Arguments}} ->
            output(To, From, ReplyAs, apply(Module, Function, Arguments))
    end,
    collect_output(To).

output(To, From, ReplyAs, Chars) ->
    From ! {io_reply, ReplyAs, ok},
    To ! {output, unicode:characters_to_list(Chars)}.

aliases(Config) ->
    on_first(Config, fun(Node) ->
        Echo = spawn(Node, fun bounce/0),
        Alias1 = alias(),
        Echo ! {Alias1, first},
        first = next_message(),
        Echo ! {Alias1, again},
        again = next_message(),
        true = unalias(Alias1),
        Echo ! {Alias1, dropped},
        Alias2 = alias([reply]),
        Echo ! {Alias2, only},
        only = next_message(),
        Echo ! {Alias2, dropped},
        Monitor = monitor(process, Echo, [{alias, reply_demonitor}]),
        Echo ! {Monitor, replied},
        replied = next_message(),
        false = demonitor(Monitor, [info]),
        Big = payload(500000),
        Alias3 = alias([reply]),
        Echo ! {Alias3, Big},
        Big = next_message(),
        barrier = round_trip(Echo, barrier),
        nothing = next_message(50)
    end).

remote_process_info(Config) ->
    on_first(Config, fun(Node) ->
        Pid = spawn(Node, fun bounce/0),
        {'EXIT', {badarg, _}} = (catch process_info(Pid)),
        {'EXIT', {badarg, _}} = (catch is_process_alive(Pid)),
        {status, _} = rpc_process_info(Node, Pid, status),
        [_ | _] = rpc:pinfo(Pid),
        {links, []} = rpc:pinfo(Pid, links),
        true = link(Pid),
        Self = self(),
        {links, [Self]} = rpc:pinfo(Pid, links),
        true = unlink(Pid),
        round_trip(Pid, barrier),
        {links, []} = rpc:pinfo(Pid, links)
    end).

rpc_process_info(Node, Pid, Item) ->
    erpc:call(Node, erlang, process_info, [Pid, Item]).

calls(Config) ->
    on_first(Config, fun(Node) ->
        Node = erpc:call(Node, fun() -> node() end),
        {'EXIT', {{exception, oops, _}, _}} = (catch erpc:call(Node, fun() -> error(oops) end)),
        {'EXIT', {exception, left}} = (catch erpc:call(Node, fun() -> exit(left) end)),
        thrown = (catch erpc:call(Node, fun() -> throw(thrown) end)),
        {'EXIT', {{erpc, timeout}, _}} =
            (catch erpc:call(Node, fun() -> receive never -> ok end end, 50)),
        [{ok, Home}, {ok, Node}] = erpc:multicall([node(), Node], fun() -> node() end),
        Home = node(),
        Node = rpc:call(Node, erlang, node, []),
        {badrpc, {'EXIT', {undef, _}}} = rpc:call(Node, no_such_module, f, []),
        Keys = [rpc:async_call(Node, erlang, abs, [-N]) || N <- lists:seq(1, 200)],
        true = lists:seq(1, 200) =:= [rpc:yield(Key) || Key <- Keys],
        %% A gen_server call between nodes, whose reply comes through an alias.
        true = is_list(gen_server:call({kernel_sup, Node}, which_children)),
        {'EXIT', {noproc, _}} = (catch gen_server:call({beamway_nobody, Node}, hello)),
        Home = rpc:call(Node, rpc, call, [Home, erlang, node, []])
    end).

%% Sequential tracing uses its own signals, which carry a token.
trace_tokens(Config) ->
    on_first(Config, fun(Node) ->
        process_flag(trap_exit, true),
        Self = self(),
        Pid = spawn_link(Node, fun() ->
                                       receive ask -> Self ! seq_trace:get_token(label) end,
                                       receive {'EXIT', _, _} -> ok; stop -> exit(traced) end
                               end),
        _ = seq_trace:set_token(label, 4711),
        Pid ! ask,
        {label, 4711} = next_message(),
        Pid ! stop,
        {'EXIT', Pid, traced} = next_message(),
        _ = seq_trace:set_token([])
    end).

%% Monitors of a connected node stay silent, even when many of them are set and removed.
node_monitors(Config) ->
    on_first(Config, fun(Node) ->
        [true = monitor_node(Node, true) || _ <- lists:seq(1, 100)],
        [true = monitor_node(Node, false) || _ <- lists:seq(1, 100)],
        pong = net_adm:ping(Node),
        nothing = next_message(20),
        [_, Host] = string:split(atom_to_list(Node), "@"),
        Nobody = list_to_atom("beamway-nobody@" ++ Host),
        true = monitor_node(Nobody, true),
        {nodedown, Nobody} = next_message(10000)
    end).

global_names(Config) ->
    on_first(Config, fun(Node) ->
        ok = global:sync(),
        Pid = spawn(Node, fun bounce/0),
        yes = global:register_name(beamway_name, Pid),
        no = global:register_name(beamway_name, self()),
        Pid = erpc:call(Node, global, whereis_name, [beamway_name]),
        Self = self(),
        Pid = global:send(beamway_name, {Self, by_global}),
        by_global = next_message(),
        locked = global:trans({beamway_lock, Self}, fun() ->
            false = erpc:call(Node, global, set_lock, [{beamway_lock, other}, [node(), Node], 0]),
            locked
        end),
        stop_and_confirm(Pid),
        beamway_peer:wait_until(fun() -> global:whereis_name(beamway_name) =:= undefined end, 5000),
        beamway_peer:wait_until(
          fun() -> erpc:call(Node, global, whereis_name, [beamway_name]) =:= undefined end, 5000)
    end).

process_groups(Config) ->
    on_first(Config, fun(Node) ->
        {ok, Scope} = start_unlinked(beamway_scope),
        {ok, _} = erpc:call(Node, fun() -> start_unlinked(beamway_scope) end),
        Pid = spawn(Node, fun bounce/0),
        ok = erpc:call(Node, pg, join, [beamway_scope, workers, Pid]),
        beamway_peer:wait_until(
          fun() -> pg:get_members(beamway_scope, workers) =:= [Pid] end, 5000),
        ok = pg:join(beamway_scope, workers, self()),
        Both = lists:sort([Pid, self()]),
        beamway_peer:wait_until(
          fun() -> lists:sort(erpc:call(Node, pg, get_members, [beamway_scope, workers])) =:= Both end,
          5000),
        stop_and_confirm(Pid),
        Self = self(),
        beamway_peer:wait_until(
          fun() -> pg:get_members(beamway_scope, workers) =:= [Self] end, 5000),
        ok = gen_server:stop(Scope),
        ok = erpc:call(Node, gen_server, stop, [beamway_scope])
    end).

%% The scope must outlive the process that serves the call.
start_unlinked(Scope) ->
    {ok, Pid} = pg:start_link(Scope),
    true = unlink(Pid),
    {ok, Pid}.

%% Echoes everything until it is told to stop.
bounce() ->
    receive
        {stop, Reason} -> exit(Reason);
        {To, Message} -> To ! Message, bounce()
    end.

round_trip(Echo, Message) ->
    Echo ! {self(), Message},
    next_message().

expect(Message) ->
    Message = next_message(),
    ok.

%% Returns when the process has exited and everything that it sent earlier has arrived.
stop_and_confirm(Pid) ->
    Monitor = monitor(process, Pid),
    Pid ! {stop, stopped},
    receive {'DOWN', Monitor, process, Pid, stopped} -> ok after ?WAIT_MS -> error({alive, Pid}) end.

next_message() -> next_message(?WAIT_MS).

next_message(TimeoutMs) ->
    receive Message -> Message after TimeoutMs -> nothing end.

payload(Size) ->
    binary:part(binary:copy(<<"0123456789abcdef!">>, Size div 17 + 1), 0, Size).
