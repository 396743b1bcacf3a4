%% SPDX-License-Identifier: Apache-2.0
%% @doc Calls over the distribution without a remote monitor: each has the same outcome as the same call made with
%% gen_server.
-module(teleport_direct_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([replies/1, nobody_monitors_there/1, node_without_teleport/1, ends_before/1, ends_during/1, ends_at_any_time/1, replies_before_its_end/1, registered_anew/1,
         thousand_servers/1, more_servers_than_stand_ins/1, stand_ins_are_no_sockets/1, unused_stand_ins/1, without_driver/1, watcher_is_killed/1, application_stops/1, timeouts/1, new_code/1,
         connection_is_lost/1, node_is_killed/1, node_comes_back/1]).
-import(teleport_nodes, [on_first/2, wait_ms/0]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [{group, shm}, {group, tcp}].

groups() ->
    teleport_nodes:groups([shm, tcp],
                          [replies, nobody_monitors_there, node_without_teleport, ends_before, ends_during, ends_at_any_time, replies_before_its_end, registered_anew,
                           thousand_servers, more_servers_than_stand_ins, stand_ins_are_no_sockets, unused_stand_ins, without_driver, watcher_is_killed, application_stops, timeouts, new_code,
                           connection_is_lost, node_is_killed, node_comes_back]).

init_per_group(Kind, Config) -> teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)).

end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

%% A failed case leaves its own nodes behind.
end_per_testcase(_Case, Config) ->
    beamway_peer:stop_all(beamway_peer:started() -- [teleport_nodes:first(Config), teleport_nodes:second(Config)]).

%% ---- helpers on the first node ----

server(Node) -> server(Node, none).

server(Node, Name) -> erpc:call(Node, teleport_nodes, start_server, [Name]).

call(Server, Request) -> teleport:call(Server, Request, wait_ms()).

%% Returns the outcome of a call with teleport; the next function does the same with gen_server.
ours(Server, Request) -> outcome(fun() -> call(Server, Request) end).

theirs(Server, Request) -> outcome(fun() -> gen_server:call(Server, Request, wait_ms()) end).

outcome(Call) ->
    try {reply, Call()}
    catch exit:{Reason, {Module, call, _}} when Module =:= teleport; Module =:= gen_server -> {exit, Reason}
    end.

%% Calls the server until the watcher has its stand-in, so that the next call uses the stand-in.
watched(Server) ->
    _ = beamway_peer:wait_until(fun() -> {echo, 1} = call(Server, {echo, 1}), ets:member(teleport_watcher, Server) end, wait_ms()),
    Server.

%% Starts a process that makes the call and exits with the outcome.
asks(Fun) -> spawn_monitor(fun() -> exit({outcome, Fun()}) end).

outcomes(Askers) ->
    [receive
         {'DOWN', Monitor, process, Pid, {outcome, Outcome}} -> Outcome;
         {'DOWN', Monitor, process, Pid, Reason} -> error({asker, Reason})
     after wait_ms() -> error({never_told, erlang:process_info(Pid, [current_stacktrace, messages])})
     end || {Pid, Monitor} <- Askers].

%% Waits until this many processes monitor the server's stand-in.
await_callers(Server, Count) ->
    StandIn = ets:lookup_element(teleport_watcher, Server, 2),
    beamway_peer:wait_until(fun() -> {monitored_by, By} = erlang:port_info(StandIn, monitored_by), length(By) =:= Count end, wait_ms()).

kill(Pid, Reason) -> true = exit(Pid, Reason).

gone(Pid) ->
    Monitor = monitor(process, Pid),
    receive {'DOWN', Monitor, process, Pid, _} -> ok after wait_ms() -> error(lives) end.

nothing_left() ->
    {messages, []} = process_info(self(), messages),
    %% The monitor for this run belongs to another process.
    {monitors, []} = process_info(self(), monitors).

%% ---- cases ----

replies(Config) ->
    on_first(Config, fun(Node) ->
        Server = watched(server(Node, direct_server)),
        Terms = [[], 1 bsl 400, <<1:3>>, #{}, self(), make_ref(), binary:copy(<<"b">>, 1000000), lists:seq(1, 100000)],
        [{echo, Term} = teleport:call(Dest, {echo, Term}, Timeout)
         || Term <- Terms, Dest <- [Server, {direct_server, Node}], Timeout <- [wait_ms(), infinity]],
        {_, [alias | _]} = call(Server, from),
        Gate = erpc:call(Node, teleport_nodes, gate, []),
        Waiting = [asks(fun() -> call(Server, {behind, Gate, N}) end) || N <- lists:seq(1, 100)],
        await_callers(Server, 100),
        teleport_nodes:open_gate(Gate),
        true = outcomes(Waiting) =:= lists:seq(1, 100),
        await_callers(Server, 0),
        %% Sends a request whose reply is collected later.
        {reply, {echo, 3}} = teleport:receive_response(teleport:send_request(Server, {echo, 3}), wait_ms()),
        kill(Server, kill),
        nothing_left()
    end).

nobody_monitors_there(Config) ->
    on_first(Config, fun(Node) ->
        Server = watched(server(Node)),
        Gate = erpc:call(Node, teleport_nodes, gate, []),
        Waiting = [asks(fun() -> call(Server, {behind, Gate, N}) end) || N <- lists:seq(1, 100)],
        await_callers(Server, 100),
        Watcher = whereis(teleport_watcher),
        {monitored_by, [Watcher]} = erpc:call(Node, erlang, process_info, [Server, monitored_by]),
        teleport_nodes:open_gate(Gate),
        true = outcomes(Waiting) =:= lists:seq(1, 100)
    end).

node_without_teleport(Config) ->
    {ok, Peer, Plain} = beamway_peer:start(teleport_nodes:carrier(teleport_nodes:kind(Config))),
    on_first(Config, fun(_) ->
        true = net_kernel:connect_node(Plain),
        Server = watched(server(Plain)),
        undefined = erpc:call(Plain, erlang, whereis, [teleport_sup]),
        {exit, stop} = ours(Server, {die, stop})
    end),
    beamway_peer:stop(Peer).

ends_before(Config) ->
    on_first(Config, fun(Node) ->
        %% The server dies before its first call, or it dies when it has a stand-in, which may or may not have noticed that
        %% yet.
        Dead = server(Node),
        kill(Dead, kill),
        [{exit, noproc} = ours(Dest, x) || Dest <- [Dead, Dead, {direct_nobody, Node}]],
        [begin
             Server = watched(server(Node)),
             kill(Server, kill),
             {exit, Reason} = ours(Server, never),
             true = lists:member(Reason, [killed, noproc]),
             gone(Server),
             {exit, noproc} = theirs(Server, x),
             _ = beamway_peer:wait_until(fun() -> ours(Server, x) =:= {exit, noproc} end, wait_ms()),
             _ = beamway_peer:wait_until(fun() -> not ets:member(teleport_watcher, Server) end, wait_ms())
         end || _ <- lists:seq(1, 20)],
        nothing_left()
    end).

ends_during(Config) ->
    on_first(Config, fun(Node) ->
        Reasons = [normal, shutdown, {shutdown, {teleport_watcher, x}}, killed, noproc, noconnection, {own, "reason"}],
        [begin
             {exit, Expected} = theirs(server(Node), {die, Reason}),
             %% The server exits in its first call, or in a later one while other callers wait.
             {exit, Expected} = ours(server(Node), {die, Reason}),
             Server = watched(server(Node)),
             Waiting = [asks(fun() -> ours(Server, never) end) || _ <- lists:seq(1, 50)],
             await_callers(Server, 50),
             {exit, Expected} = ours(Server, {die, Reason}),
             [{exit, Expected}] = lists:usort(outcomes(Waiting))
         end || Reason <- Reasons],
        nothing_left()
    end).

%% The server is killed while calls start, wait and return. The same outcomes are possible with both modules, and no
%% caller waits forever.
ends_at_any_time(Config) ->
    on_first(Config, fun(Node) ->
        Round = fun(Outcome, N) ->
                        Server = server(Node),
                        Askers = [asks(fun() -> until_it_ends(fun() -> Outcome(Server, {echo, x}) end) end) || _ <- lists:seq(1, 10)],
                        _ = erlang:send_after(N rem 5, self(), now),
                        receive now -> kill(Server, kill) end,
                        outcomes(Askers)
                end,
        [[{exit, killed}, {exit, noproc}] = lists:usort([{exit, killed}, {exit, noproc} | lists:append([Round(Outcome, N) || N <- lists:seq(1, 100)])])
         || Outcome <- [fun ours/2, fun theirs/2]],
        nothing_left()
    end).

until_it_ends(Call) ->
    case Call() of
        {reply, {echo, x}} -> until_it_ends(Call);
        Outcome -> Outcome
    end.

%% The exit of the server does not overtake its reply, even if the reply is large.
replies_before_its_end(Config) ->
    on_first(Config, fun(Node) ->
        [begin
             Server = watched(server(Node)),
             process_flag(message_queue_data, Queue),
             Term = binary:copy(<<"r">>, Bytes),
             From = asks(fun() -> process_flag(message_queue_data, Queue), call(Server, {reply_and_die, Term}) end),
             [Term] = outcomes([From])
         end || Bytes <- [10, 100000, 3000000], Queue <- [on_heap, off_heap], _ <- lists:seq(1, 20)]
    end).

registered_anew(Config) ->
    on_first(Config, fun(Node) ->
        Dest = {direct_name, Node},
        {exit, noproc} = theirs(Dest, x),
        {exit, noproc} = ours(Dest, x),
        First = server(Node, direct_name),
        {reply, {echo, 1}} = ours(Dest, {echo, 1}),
        _ = watched(First),
        %% The name moves to another process while the first one is still alive.
        Second = server(Node),
        true = erpc:call(Node, fun() -> unregister(direct_name), register(direct_name, Second) end),
        Waiting = asks(fun() -> ours(Dest, never) end),
        _ = beamway_peer:wait_until(fun() -> {monitored_by, By} = erpc:call(Node, erlang, process_info, [Second, monitored_by]), By =/= [] end, wait_ms()),
        %% The first process exits, and callers that used the name do not notice it.
        {exit, normal} = ours(First, {die, normal}),
        {reply, {echo, 2}} = ours(Dest, {echo, 2}),
        kill(Second, kill),
        [{exit, killed}] = outcomes([Waiting]),
        %% A new process gets the name, as when a supervisor restarts one.
        [begin
             {exit, stop} = ours(Dest, {die, stop}),
             gone(Pid)
         end || N <- lists:seq(1, 100), Pid <- [server(Node, direct_name)], {reply, {echo, N}} =:= ours(Dest, {echo, N})],
        {exit, noproc} = ours(Dest, x),
        nothing_left()
    end).

thousand_servers(Config) ->
    on_first(Config, fun(Node) ->
        Servers = [server(Node) || _ <- lists:seq(1, 1000)],
        %% Each server is watched first, so that a waiting call can only end in the expected way.
        _ = outcomes([asks(fun() -> watched(Server) end) || Server <- Servers]),
        Askers = [{Server, asks(fun() -> ours(Server, never) end)} || Server <- Servers],
        [await_callers(Server, 1) || Server <- Servers],
        true = ets:info(teleport_watcher, size) >= 1000,
        {Killed, Stopped} = lists:split(500, Askers),
        [kill(Server, kill) || {Server, _} <- Killed],
        [{exit, killed}] = lists:usort(outcomes([Asker || {_, Asker} <- Killed])),
        [{reply, {echo, 1}} = ours(Server, {echo, 1}) || {Server, _} <- Stopped],
        [{exit, stop} = ours(Server, {die, stop}) || {Server, _} <- Stopped],
        [{exit, stop}] = lists:usort(outcomes([Asker || {_, Asker} <- Stopped])),
        _ = beamway_peer:wait_until(fun() -> [S || S <- Servers, ets:member(teleport_watcher, S)] =:= [] end, wait_ms()),
        nothing_left()
    end).

more_servers_than_stand_ins(Config) ->
    on_first(Config, fun(Node) ->
        Before = length(erlang:ports()),
        Servers = erpc:call(Node, fun() -> [teleport_nodes:start_server(none) || _ <- lists:seq(1, 10500)] end),
        [{echo, 1} = call(Server, {echo, 1}) || Server <- Servers],
        _ = sys:get_state(teleport_watcher),
        10000 = ets:info(teleport_watcher, size),
        Watched = fun() -> [Server || Server <- Servers, ets:member(teleport_watcher, Server)] end,
        true = length(Watched()) > 5000,
        true = length(erlang:ports()) - Before =< 10000,
        %% Servers beyond the limit can also be called, and their callers are notified when they exit.
        {exit, stop} = ours(lists:last(Servers), {die, stop}),
        erpc:call(Node, fun() -> [exit(Server, kill) || Server <- Servers] end),
        %% An earlier case that failed may have left other stand-ins behind.
        _ = beamway_peer:wait_until(fun() -> Watched() =:= [] end, wait_ms()),
        _ = beamway_peer:wait_until(fun() -> length(erlang:ports()) =< Before + 100 end, wait_ms())
    end).

%% Tools such as inet:i() list each port of an inet driver as a socket.
stand_ins_are_no_sockets(Config) ->
    on_first(Config, fun(Node) ->
        Servers = [watched(server(Node)) || _ <- lists:seq(1, 20)],
        Names = [erlang:port_info(ets:lookup_element(teleport_watcher, Server, 2), name) || Server <- Servers],
        [{name, "beamway_drv"}] = lists:usort(Names),
        [kill(Server, kill) || Server <- Servers],
        _ = beamway_peer:wait_until(fun() -> [S || S <- Servers, ets:member(teleport_watcher, S)] =:= [] end, wait_ms())
    end).

%% Without the driver, ports of inet are used.
without_driver(_Config) ->
    Options = #{env => [{"BEAMWAY_LINKS", "inet"}]},
    {One, _} = teleport_nodes:start(tcp, Options),
    {Other, OtherNode} = teleport_nodes:start(tcp, Options),
    ok = teleport_nodes:connect(One, OtherNode),
    Server = beamway_peer:call(Other, teleport_nodes, start_server, [none]),
    {name, "udp_inet"} = beamway_peer:run(One, fun() -> _ = watched(Server), erlang:port_info(ets:lookup_element(teleport_watcher, Server, 2), name) end),
    true = beamway_peer:call(Other, erlang, exit, [Server, stop]),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:call(One, ets, info, [teleport_watcher, size]) =:= 0 end, wait_ms()),
    beamway_peer:stop_all([One, Other]).

unused_stand_ins(Config) ->
    on_first(Config, fun(Node) ->
        %% A new watcher does its first check after 30 s.
        ok = supervisor:terminate_child(teleport_sup, teleport_watcher),
        {ok, _} = supervisor:restart_child(teleport_sup, teleport_watcher),
        Server = watched(server(Node)),
        StandIn = ets:lookup_element(teleport_watcher, Server, 2),
        Look = fun() -> teleport_watcher ! look, _ = sys:get_state(teleport_watcher) end,
        Waiting = asks(fun() -> ours(Server, never) end),
        await_callers(Server, 1),
        [Look() || _ <- lists:seq(1, 5)],
        StandIn = ets:lookup_element(teleport_watcher, Server, 2),
        kill(element(1, Waiting), kill),
        await_callers(Server, 0),
        [Look() || _ <- [idle, leaving]],
        false = ets:member(teleport_watcher, Server),
        %% A caller that found the stand-in earlier monitors it only now.
        {connected, _} = erlang:port_info(StandIn, connected),
        Late = monitor(port, StandIn),
        Look(),
        {connected, _} = erlang:port_info(StandIn, connected),
        true = demonitor(Late),
        %% The server is called again in the meantime and gets a new stand-in.
        true = StandIn =/= ets:lookup_element(teleport_watcher, watched(Server), 2),
        Look(),
        undefined = erlang:port_info(StandIn, connected),
        {exit, stop} = ours(Server, {die, stop}),
        receive {'DOWN', _, process, _, killed} -> ok after wait_ms() -> error(nothing) end,
        nothing_left()
    end).

watcher_is_killed(Config) ->
    on_first(Config, fun(Node) ->
        Servers = [watched(server(Node)) || _ <- lists:seq(1, 20)],
        Gate = erpc:call(Node, teleport_nodes, gate, []),
        Replies = [asks(fun() -> ours(Server, {behind, Gate, x}) end) || Server <- Servers],
        Ends = [asks(fun() -> ours(Server, never) end) || Server <- Servers],
        [await_callers(Server, 2) || Server <- Servers],
        Old = whereis(teleport_watcher),
        kill(Old, kill),
        %% The callers now monitor their servers themselves.
        [beamway_peer:wait_until(fun() -> {monitors, [{process, Server}]} =:= process_info(Pid, monitors) end, wait_ms())
         || {Asked, {Pid, _}} <- lists:zip(Servers ++ Servers, Replies ++ Ends), Server <- [Asked]],
        teleport_nodes:open_gate(Gate),
        [{reply, x}] = lists:usort(outcomes(Replies)),
        [kill(Server, kill) || Server <- Servers],
        [{exit, killed}] = lists:usort(outcomes(Ends)),
        _ = beamway_peer:wait_until(fun() -> is_pid(whereis(teleport_watcher)) andalso whereis(teleport_watcher) =/= Old end, wait_ms()),
        %% Any process can close a port.
        Server = watched(server(Node)),
        Waiting = asks(fun() -> ours(Server, never) end),
        await_callers(Server, 1),
        true = exit(ets:lookup_element(teleport_watcher, Server, 2), kill),
        _ = beamway_peer:wait_until(fun() -> {monitors, [{process, Server}]} =:= process_info(element(1, Waiting), monitors) end, wait_ms()),
        {exit, stop} = ours(Server, {die, stop}),
        [{exit, stop}] = outcomes([Waiting]),
        nothing_left()
    end).

application_stops(Config) ->
    on_first(Config, fun(Node) ->
        Server = watched(server(Node)),
        Waiting = [asks(fun() -> ours(Server, never) end) || _ <- lists:seq(1, 10)],
        await_callers(Server, 10),
        ok = application:stop(teleport),
        kill(Server, kill),
        Outcomes = lists:usort(outcomes(Waiting)),
        {ok, _} = application:ensure_all_started(teleport),
        %% Callers that monitored the server themselves before it exited get its exit reason.
        [] = Outcomes -- [{exit, killed}, {exit, noproc}],
        {exit, stop} = ours(watched(server(Node)), {die, stop})
    end).

timeouts(Config) ->
    on_first(Config, fun(Node) ->
        Server = watched(server(Node)),
        [{'EXIT', {timeout, {teleport, call, [Server, never, Ms]}}} = (catch teleport:call(Server, never, Ms)) || Ms <- [0, 20]],
        {'EXIT', {function_clause, _}} = (catch teleport:call(Server, never, soon)),
        {'EXIT', {{bad_option, way, fast}, _}} = (catch teleport:call(Server, never, 5, #{way => fast})),
        %% The reply arrives after the timeout and is dropped.
        Gate = erpc:call(Node, teleport_nodes, gate, []),
        {exit, timeout} = outcome(fun() -> teleport:call(Server, {behind, Gate, late}, 10) end),
        teleport_nodes:open_gate(Gate),
        %% The time limit also applies without the stand-in.
        Waiting = asks(fun() -> outcome(fun() -> teleport:call(Server, never, 4000) end) end),
        await_callers(Server, 1),
        kill(whereis(teleport_watcher), kill),
        [{exit, timeout}] = outcomes([Waiting]),
        {echo, 1} = call(Server, {echo, 1}),
        nothing_left()
    end).

%% Loading a module twice kills processes that still run the code from before the first load.
new_code(Config) ->
    on_first(Config, fun(Node) ->
        Server = watched(server(Node)),
        Watcher = whereis(teleport_watcher),
        [begin
             _ = code:purge(Module),
             {module, Module} = code:load_file(Module)
         end || _ <- [1, 2, 3], Module <- [teleport_watcher]],
        Watcher = whereis(teleport_watcher),
        {exit, stop} = ours(Server, {die, stop})
    end).

connection_is_lost(Config) ->
    on_first(Config, fun(Node) ->
        [begin
             Server = watched(server(Node)),
             Askers = [asks(fun() -> Outcome(Server, never) end) || Outcome <- [fun ours/2, fun theirs/2], _ <- lists:seq(1, 20)],
             await_callers(Server, 20),
             _ = beamway_peer:wait_until(fun() -> {monitored_by, By} = erpc:call(Node, erlang, process_info, [Server, monitored_by]), length(By) >= 21 end, wait_ms()),
             true = erlang:disconnect_node(Node),
             [{exit, {nodedown, Node}}] = lists:usort(outcomes(Askers)),
             %% The next call connects the node again.
             _ = beamway_peer:wait_until(fun() -> ours(Server, {echo, 1}) =:= {reply, {echo, 1}} end, wait_ms()),
             _ = watched(Server)
         end || _ <- lists:seq(1, 5)],
        [{exit, {nodedown, 'nobody@127.0.0.1'}} = Outcome({direct_server, 'nobody@127.0.0.1'}, x) || Outcome <- [fun ours/2, fun theirs/2]],
        nothing_left()
    end).

node_is_killed(Config) ->
    {Third, Node} = teleport_nodes:start(teleport_nodes:kind(Config)),
    ok = teleport_nodes:connect(teleport_nodes:first(Config), Node),
    Run = beamway_peer:async(fun() -> teleport_nodes:on_first(Config, fun(_) ->
        Server = watched(server(Node)),
        Askers = [asks(fun() -> until_it_ends(fun() -> Outcome(Server, {echo, x}) end) end) || Outcome <- [fun ours/2, fun theirs/2], _ <- lists:seq(1, 20)],
        true = register(direct_asks, self()),
        [{exit, {nodedown, Node}}] = lists:usort(outcomes(Askers)),
        {exit, {nodedown, Node}} = ours(Server, x)
    end) end),
    _ = beamway_peer:wait_until(fun() -> is_pid(beamway_peer:call(teleport_nodes:first(Config), erlang, whereis, [direct_asks])) end, wait_ms()),
    ok = beamway_peer:kill9(Third),
    ok = beamway_peer:await(Run, wait_ms()).

%% The restarted node has the same name, and its server has the same registered name and the same number, but a different pid.
node_comes_back(Config) ->
    Kind = teleport_nodes:kind(Config),
    {Third, Node} = teleport_nodes:start(Kind),
    First = teleport_nodes:first(Config),
    ok = teleport_nodes:connect(First, Node),
    Old = beamway_peer:run(First, fun() -> watched(server(Node, direct_back)) end),
    ok = beamway_peer:kill9(Third),
    beamway_peer:wait_disconnected(First, Node),
    beamway_peer:stop(Third),
    {Fourth, Node} = teleport_nodes:start(Kind, #{name => hd(string:split(atom_to_list(Node), "@"))}),
    ok = teleport_nodes:connect(First, Node),
    on_first(Config, fun(_) ->
        New = server(Node, direct_back),
        [{exit, noproc} = Outcome(Old, {echo, 1}) || Outcome <- [fun ours/2, fun theirs/2]],
        [{reply, {echo, 1}} = Outcome(Dest, {echo, 1}) || Dest <- [{direct_back, Node}, watched(New)], Outcome <- [fun ours/2, fun theirs/2]]
    end),
    beamway_peer:stop(Fourth).
