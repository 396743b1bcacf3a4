%% SPDX-License-Identifier: Apache-2.0
%% @doc A server that keeps running: configuration changes under load, code changes while connections are open, and a shutdown that leaves no request
%% unanswered.
-module(yucan_reload_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([reload_under_load/1, reload_limits/1, reload_errors/1, drain/1, accepted_last/1, drain_at_sigterm/1, stop_under_load/1, stop_despite_trap/1, hot_code/1, hot_server/1, log/2]).

-import(yucan_test_server, [answered/1, connections_in/1, handler/0, wait_for/1]).

-include_lib("common_test/include/ct.hrl").

-define(GET(Path), ["GET ", Path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"]).
-define(WAIT_MS, (20000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [reload_under_load, reload_limits, reload_errors, drain, accepted_last, drain_at_sigterm, stop_under_load, stop_despite_trap, hot_code, hot_server].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

end_per_testcase(_, _) -> yucan_test_server:stop_all().

start(Options) -> yucan_test_server:start(yucan_server_test, Options).

%% The server is reloaded forty times while clients send requests without pause, and no request fails.
reload_under_load(_) ->
    Port = start(#{}),
    Parent = self(),
    Clients = [spawn_link(fun() -> Parent ! {self(), client(Port, N rem 2 =:= 0, 0)} end) || N <- lists:seq(1, 8)],
    [ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], limits => #{headers => 50 + N}, handler => handler()}) || N <- lists:seq(1, 40)],
    [Client ! stop || Client <- Clients],
    Counts = [receive {Client, Count} -> Count after ?WAIT_MS -> error(no_end) end || Client <- Clients],
    true = lists:min(Counts) > 0,
    Port = yucan:port(yucan_server_test).

client(Port, Keeps, Count) ->
    Socket = yucan_client:connect(Port),
    client(Port, Socket, Keeps, Count).

client(Port, Socket, Keeps, Count) ->
    ok = gen_tcp:send(Socket, ?GET("/")),
    {200, _, <<"OK">>} = yucan_client:one(Socket),
    receive
        stop -> Count + 1
    after 0 ->
        case Keeps of
            true -> client(Port, Socket, Keeps, Count + 1);
            false -> gen_tcp:close(Socket), client(Port, Keeps, Count + 1)
        end
    end.

%% An open connection uses the new limits from its second request on, even for a request that it has sent before. A new connection also uses the new
%% `send_ms'.
reload_limits(_) ->
    Port = start(#{}),
    Socket = yucan_client:connect(Port),
    Ask = fun() -> ok = gen_tcp:send(Socket, ?GET(["/", lists:duplicate(100, $a)])), {Status, _, _} = yucan_client:one(Socket), Status end,
    [200, 200] = [Ask(), Ask()],
    ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], handler => handler(), limits => #{request_line_bytes => 100, send_ms => 1000}}),
    [200, 414] = [Ask(), Ask()],
    ok = gen_tcp:close(Socket),
    {ok, TakesNothing} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {recbuf, 4096}]),
    ok = gen_tcp:send(TakesNothing, ?GET("/large")),
    {ok, <<"HTTP/1.1 200">>} = gen_tcp:recv(TakesNothing, 12, ?WAIT_MS),
    wait_for(fun() -> #{metrics := #{open_connections := Open}} = yucan:info(yucan_server_test), Open =:= 0 end),
    ok = gen_tcp:close(TakesNothing).

%% After an error, the old configuration stays in effect.
reload_errors(Config) ->
    Port = start(#{}),
    {error, Text} = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], handler => {no_such_module, x}}),
    {_, _} = binary:match(Text, <<"no_such_module">>),
    {ok, Taken} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, TakenPort} = inet:port(Taken),
    {error, InUse} = yucan:reload(yucan_server_test, #{listen => [#{port => TakenPort}], handler => {yucan_file, #{root => "/tmp"}}}),
    {_, _} = binary:match(InUse, <<"in use">>),
    {200, _, <<"OK">>} = yucan_client:get(Port, "/"),
    %% Only ssl itself rejects this option. Open connections continue, and the socket that was opened for the new configuration is closed again.
    Open = yucan_client:connect(Port),
    answered(Open),
    Wrong = (yucan_test_server:certificate("localhost", ?config(priv_dir, Config)))#{verify => verify_pear},
    Free = test_support:free_port(),
    {error, Refused} = yucan:reload(yucan_server_test, #{listen => [#{port => 0}, #{port => Free, tls => Wrong}], handler => handler()}),
    {_, _} = binary:match(Refused, <<"tls option verify">>),
    answered(Open),
    {error, econnrefused} = gen_tcp:connect({127, 0, 0, 1}, Free, [], ?WAIT_MS),
    {error, Refused} = yucan:reload(yucan_server_test, #{listen => [#{port => 0, tls => Wrong}], handler => handler()}),
    answered(Open),
    {error, Refused} = yucan:start(#{name => yucan_second, listen => [#{port => 0, tls => Wrong}], handler => handler()}).

%% A drain closes idle connections, including those that have not sent anything yet, and event streams. Requests in progress are answered, and no new
%% connections are accepted. All callers of drain are notified when it has finished.
drain(_) ->
    Port = start(#{handler => {yucan_test_handler, self()}, listen => [#{port => 0}, #{port => 0, proxy_protocol => true}],
                   limits => #{header_ms => 10 * ?WAIT_MS, tls_ms => 10 * ?WAIT_MS}}),
    #{listen := [_, {_, Proxied}]} = yucan:info(yucan_server_test),
    Silent = [yucan_client:connect(To) || To <- [Port, Proxied]],
    Places = fun() -> [{M, F} || P <- processes(), {_, Stack} <- [process_info(P, current_stacktrace)], {M, F, _, _} <- Stack] end,
    wait_for(fun() -> [{yucan_idle, first}, {yucan_cidr, proxy_header}] -- Places() =:= [] end),
    Idle = yucan_client:connect(Port),
    ok = gen_tcp:send(Idle, ?GET("/")),
    {200, _, _} = yucan_client:one(Idle),
    Busy = yucan_client:connect(Port),
    ok = gen_tcp:send(Busy, "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n01234"),
    Events = yucan_client:connect(Port),
    ok = gen_tcp:send(Events, ?GET("/forever_events")),
    receive {events, _} -> ok after ?WAIT_MS -> error(no_events) end,
    wait_for(fun() -> #{metrics := #{connections := N}} = yucan:info(yucan_server_test), N =:= 5 end),
    Parent = self(),
    [spawn_link(fun() -> Parent ! {drained, yucan:drain(yucan_server_test, ?WAIT_MS)} end) || _ <- [1, 2]],
    {error, {still_open, _}} = yucan:drain(yucan_server_test, 0),
    [<<>>, <<>>, <<>>] = [yucan_client:until_closed(Socket) || Socket <- Silent ++ [Idle]],
    [{200, _, <<": ok\n\n">>}] = yucan_client:parse(yucan_client:until_closed(Events), <<"GET">>),
    {error, econnrefused} = gen_tcp:connect({127, 0, 0, 1}, Port, [], ?WAIT_MS),
    ok = gen_tcp:send(Busy, "56789"),
    [{200, Headers, <<"10">>}] = yucan_client:parse(yucan_client:until_closed(Busy), <<"GET">>),
    <<"close">> = proplists:get_value(<<"connection">>, Headers),
    [receive {drained, ok} -> ok after ?WAIT_MS -> error(no_drain) end || _ <- [1, 2]],
    %% A reload ends the drain, so connections stay open again.
    ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], handler => handler()}),
    Kept = yucan_client:connect(yucan:port(yucan_server_test)),
    [answered(Kept), answered(Kept)].

%% If the system has accepted a connection, but the listener is already closed when the acceptor process receives it, the connection is closed without
%% a crash.
accepted_last(_) ->
    Port = start(#{limits => #{acceptors => 1}}),
    [Acceptor] = [P || P <- processes(), process_info(P, initial_call) =:= {initial_call, {yucan_conn, accept, 1}}],
    Monitor = monitor(process, Acceptor),
    wait_for(fun() -> process_info(Acceptor, status) =:= {status, waiting} end),
    true = erlang:suspend_process(Acceptor),
    Socket = yucan_client:connect(Port),
    wait_for(fun() -> process_info(Acceptor, message_queue_len) =:= {message_queue_len, 1} end),
    ok = yucan:drain(yucan_server_test, ?WAIT_MS),
    true = erlang:resume_process(Acceptor),
    receive {'DOWN', Monitor, process, Acceptor, Reason} -> {shutdown, listener_closed} = Reason after ?WAIT_MS -> error(still_there) end,
    <<>> = yucan_client:until_closed(Socket).

%% SIGTERM stops the VM, even without systemd. Requests in progress are answered, idle connections are closed, and the VM exits within the time limit.
drain_at_sigterm(_) ->
    {ok, Peer, _} = ?CT_PEER(#{connection => standard_io, args => ["-pa" | code:get_path()]}),
    Call = fun(M, F, A) -> peer:call(Peer, M, F, A, ?WAIT_MS) end,
    Port = Call(yucan_test_server, start, [yucan_drains]),
    Pid = Call(os, getpid, []),
    [Idle, Busy] = [yucan_client:connect(Port) || _ <- [1, 2]],
    ok = gen_tcp:send(Idle, ?GET("/")),
    {200, _, _} = yucan_client:one(Idle),
    ok = gen_tcp:send(Busy, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc"),
    Served = fun Served() -> case maps:get(open_connections, maps:get(metrics, Call(yucan, info, [yucan_drains]))) of 2 -> ok; _ -> Served() end end,
    ok = Served(),
    Monitor = monitor(process, Peer),
    unlink(Peer),
    [] = os:cmd("kill -TERM " ++ Pid),
    {error, closed} = gen_tcp:recv(Idle, 0, ?WAIT_MS),
    {error, econnrefused} = gen_tcp:connect({127, 0, 0, 1}, Port, [], ?WAIT_MS),
    ok = gen_tcp:send(Busy, "def"),
    {200, Headers, <<"abcdef">>} = yucan_client:one(Busy),
    <<"close">> = proplists:get_value(<<"connection">>, Headers),
    receive {'DOWN', Monitor, process, Peer, _} -> ok after ?WAIT_MS -> error(still_there) end.

%% Ten times, clients send requests until the server stops. No request finds the server half
%% stopped, and the first error that is logged is the one caused here.
stop_under_load(_) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{level => error, config => #{pid => self()}}),
    [begin
         Port = start(#{}),
         Sockets = [yucan_client:connect(Port) || _ <- lists:seq(1, 16)],
         Clients = [spawn_monitor(fun() -> asks(Socket) end) || Socket <- Sockets],
         wait_for(fun() -> #{metrics := #{requests := Count}} = yucan:info(yucan_server_test), Count > 1000 end),
         ok = yucan:stop(yucan_server_test),
         [receive {'DOWN', Monitor, process, Client, normal} -> ok after ?WAIT_MS -> error(no_end) end || {Client, Monitor} <- Clients]
     end || _ <- lists:seq(1, 10)],
    _ = spawn(fun() -> error(the_first_error) end),
    Text = receive {logged, Event} -> lists:flatten(io_lib:format("~0p", [Event])) after ?WAIT_MS -> error(nothing_logged) end,
    ok = logger:remove_handler(?MODULE),
    {true, Text} = {string:find(Text, "the_first_error") =/= nomatch, Text}.

asks(Socket) ->
    case gen_tcp:send(Socket, ?GET("/")) =:= ok andalso gen_tcp:recv(Socket, 0, ?WAIT_MS) of
        {ok, _} -> asks(Socket);
        _ -> ok
    end.

log(Event, #{config := #{pid := Pid}}) -> Pid ! {logged, Event}.

%% A handler that traps exits is killed; other handlers exit immediately.
stop_despite_trap(_) ->
    Self = self(),
    Waits = fun(Req, _) ->
        process_flag(trap_exit, yucan_req:path(Req) =:= <<"/traps">>),
        Self ! {waits, self()},
        receive the_end -> ok end
    end,
    Port = start(#{middleware => [Waits]}),
    Monitors = [begin
        Socket = yucan_client:connect(Port),
        ok = gen_tcp:send(Socket, ?GET(Path)),
        receive {waits, Pid} -> monitor(process, Pid) after ?WAIT_MS -> error({not_asked, Path}) end
    end || Path <- ["/traps", "/ends"]],
    ok = yucan:stop(yucan_server_test),
    [killed, shutdown] = [receive {'DOWN', Monitor, process, _, Reason} -> Reason after ?WAIT_MS -> error(lives_on) end || Monitor <- Monitors].

%% On an open connection, each request uses the latest code of the handler.
hot_code(_) ->
    load_version(1),
    Port = start(#{handler => {yucan_hot_handler, none}}),
    Socket = yucan_client:connect(Port),
    [begin
         load_version(N),
         Body = integer_to_binary(N),
         ok = gen_tcp:send(Socket, ?GET("/")),
         {200, _, Body} = yucan_client:one(Socket)
     end || N <- lists:seq(1, 5)].

load_version(N) ->
    Forms = [{attribute, 1, module, yucan_hot_handler}, {attribute, 1, export, [{handle, 2}]},
             {function, 1, handle, 2, [{clause, 1, [{var, 1, '_'}, {var, 1, '_'}], [], [{tuple, 1, [{integer, 1, 200}, {nil, 1}, {string, 1, integer_to_list(N)}]}]}]}],
    {ok, Module, Beam} = compile:forms(Forms),
    code:purge(Module),
    {module, Module} = code:load_binary(Module, "none", Beam).

%% Loads all modules three times in a row, except the one in which processes wait. Idle and hibernating connections, connections that have not sent
%% anything yet, and WebSockets survive, because they have no other module's code on their stacks.
hot_server(_) ->
    Port = start(#{limits => #{header_ms => ?WAIT_MS, idle_ms => 2 * ?WAIT_MS}}),
    [New, Warm, Asleep, Kept, WebSocket] = Sockets = [yucan_client:connect(Port) || _ <- lists:seq(1, 5)],
    [answered(S) || S <- [Warm, Asleep, Kept]],
    _ = yucan_ws_client:upgrade(WebSocket, yucan_ws_client:head("/ws")),
    wait_for(fun() -> length(connections_in({erlang, hibernate, 3})) =:= 3 end),
    %% A process that is about to enter yucan_idle has other code on its stack, and on a busy machine it may be scheduled out at that point.
    wait_for(fun() ->
        length(connections_in({yucan_idle, message, 3})) =:= 2 orelse begin answered(Warm), false end
    end),
    {ok, Modules} = application:get_key(yucan, modules),
    [begin _ = code:purge(M), {module, M} = code:load_file(M) end || _ <- [1, 2, 3], M <- Modules -- [yucan_idle]],
    [answered(S) || S <- [New, Warm, Asleep, Kept]],
    %% Sends "hi" with a zero mask, and receives it back.
    ok = gen_tcp:send(WebSocket, <<16#81, 16#82, 0:32, "hi">>),
    {ok, <<16#81, 2, "hi">>} = gen_tcp:recv(WebSocket, 4, ?WAIT_MS),
    lists:foreach(fun gen_tcp:close/1, Sockets).
