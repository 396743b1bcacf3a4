%% SPDX-License-Identifier: Apache-2.0
%% @doc Limits on times and numbers, and faults of clients and handlers over HTTP/1.1: clients that are slow, silent, disconnected or too numerous, or
%% that send without pause; handlers that fail or never return; and what is logged about invalid input. Other clients are served throughout.
-module(yucan_faults_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([handler_faults/1, slow_headers/1, slow_body/1, low_rate/1, long_body/1, idle_limit/1, idle_with_messages/1, request_limit/1, resets/1, too_many_connections/1,
         flood/1, flood_served/1, garbage_is_quiet/1, one_line_at_debug/1, spinning_handler/1]).

-import(yucan_client, [statuses/1]).
-import(yucan_test_server, [patient/1]).

-include_lib("common_test/include/ct.hrl").

-define(HOST, " HTTP/1.1\r\nHost: localhost\r\n").
-define(WAIT_MS, (20000 * beamway_runner:slowness())).
%% Long enough for a client that has connected to send its first bytes.
-define(SHORT_MS, (2000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [handler_faults, slow_headers, slow_body, low_rate, long_body, idle_limit, idle_with_messages, request_limit, resets, too_many_connections, flood, flood_served, garbage_is_quiet, one_line_at_debug,
     spinning_handler].

init_per_suite(Config) ->
    %% Each server has only one low limit, so that even on a slow machine no other limit is reached before it.
    Limits = [{port, #{}}, {slow_heads, #{header_ms => ?SHORT_MS}}, {slow_bodies, #{read_ms => 300, min_body_rate => 100000}}, {short_idle, #{idle_ms => 300}},
              {few_requests, #{requests => 3}}, {few_connections, #{connections => 20}}],
    [{Key, yucan_test_server:start(server(Key), #{limits => patient(Own)})} || {Key, Own} <- Limits] ++ [{servers, [server(Key) || {Key, _} <- Limits]} | Config].

end_per_suite(Config) -> lists:foreach(fun yucan:stop/1, ?config(servers, Config)).

server(Key) -> list_to_atom("yucan_faults_" ++ atom_to_list(Key)).

%% The client gets 500 and its connection is closed, but other clients are not affected.
handler_faults(Config) ->
    Port = ?config(port, Config),
    Other = yucan_client:connect(Port),
    ok = gen_tcp:send(Other, "GET / HTT"),
    [[500] = statuses(yucan_client:exchange(Port, ["GET ", Path, ?HOST, "\r\nGET /", ?HOST, "\r\n"]))
     || Path <- ["/crash", "/exit", "/throw", "/nonsense", "/bad_body"]],
    [] = yucan_client:exchange(Port, ["GET /close", ?HOST, "\r\nGET /", ?HOST, "\r\n"]),
    Looping = yucan_client:connect(Port),
    ok = gen_tcp:send(Looping, ["GET /loop", ?HOST, "\r\n"]),
    ok = gen_tcp:send(Other, ["P/1.1\r\nHost: a\r\n\r\n"]),
    {200, _, <<"OK">>} = yucan_client:one(Other),
    gen_tcp:close(Looping).

%% RFC 9110, 15.5.9. The client sends a byte from time to time.
slow_headers(Config) ->
    Patient = patient_client(Config, "GET / HTTP/1.1\r\n"),
    Socket = yucan_client:connect(?config(slow_heads, Config)),
    Dripper = spawn_link(fun() -> drip(Socket, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") end),
    <<"HTTP/1.1 408 ", _/binary>> = yucan_client:until_closed(Socket),
    stop(Dripper),
    %% A client that sends nothing gets no response.
    <<>> = yucan_client:until_closed(yucan_client:connect(?config(slow_heads, Config))),
    is_waited_for(Patient).

%% Does the same with a server that has higher limits and was started earlier. This shows that no default limit closes the connections.
patient_client(Config, Sent) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, Sent),
    Socket.

is_waited_for(Patient) ->
    {error, timeout} = gen_tcp:recv(Patient, 0, 0),
    gen_tcp:close(Patient).

stop(Pid) ->
    unlink(Pid),
    exit(Pid, kill).

drip(Socket, [Byte | Rest]) ->
    case gen_tcp:send(Socket, [Byte]) of
        ok -> receive after 50 -> drip(Socket, Rest ++ "a") end;
        {error, _} -> ok
    end.

slow_body(Config) ->
    Request = ["POST /", ?HOST, "Content-Length: 50\r\n\r\nhalf"],
    Patient = patient_client(Config, Request),
    Socket = yucan_client:connect(?config(slow_bodies, Config)),
    ok = gen_tcp:send(Socket, Request),
    <<"HTTP/1.1 408 ", _/binary>> = yucan_client:until_closed(Socket),
    is_waited_for(Patient).

%% The client is never silent for long, but it sends too slowly.
low_rate(Config) ->
    Request = ["POST /", ?HOST, "Content-Length: 1000\r\n\r\n"],
    Patient = patient_client(Config, Request),
    Socket = yucan_client:connect(?config(slow_bodies, Config)),
    ok = gen_tcp:send(Socket, Request),
    Dripper = spawn_link(fun() -> drip(Socket, "a") end),
    <<"HTTP/1.1 408 ", _/binary>> = yucan_client:until_closed(Socket),
    stop(Dripper),
    is_waited_for(Patient).

%% The body takes longer to arrive than a client may be silent, but this client is never silent for that long.
long_body(_) ->
    Ms = 5000 * beamway_runner:slowness(),
    {ok, _} = yucan:start(#{name => yucan_long, listen => [#{port => 0}], handler => {yucan_test_handler, none}, limits => #{read_ms => Ms, min_body_rate => 1}}),
    Socket = yucan_client:connect(yucan:port(yucan_long)),
    Length = Ms div 50 + 10,
    ok = gen_tcp:send(Socket, ["POST /", ?HOST, "Content-Length: ", integer_to_list(Length + 4), "\r\n\r\nhalf"]),
    [begin receive after 50 -> ok end, ok = gen_tcp:send(Socket, "x") end || _ <- lists:seq(1, Length)],
    Body = iolist_to_binary(["half", lists:duplicate(Length, $x)]),
    {200, _, Body} = yucan_client:one(Socket),
    ok = gen_tcp:send(Socket, ["GET /", ?HOST, "\r\n"]),
    {200, _, <<"OK">>} = yucan_client:one(Socket),
    yucan:stop(yucan_long).

idle_limit(Config) ->
    Socket = yucan_client:connect(?config(short_idle, Config)),
    ok = gen_tcp:send(Socket, ["GET /", ?HOST, "\r\n"]),
    {200, _, _} = yucan_client:one(Socket),
    Answered = erlang:monotonic_time(millisecond),
    <<>> = yucan_client:until_closed(Socket),
    true = erlang:monotonic_time(millisecond) - Answered < 1900 * beamway_runner:slowness().

%% Messages that a handler leaves behind do not count as activity of the client, whether they arrive before the connection process hibernates, while
%% it hibernates, or so often that it never does.
idle_with_messages(_) ->
    [begin
         Ticks = fun(Req, Next) -> {ok, _} = timer:send_interval(Every, tick), Next(Req) end,
         {ok, _} = yucan:start(#{name => yucan_ticks, listen => [#{port => 0}], handler => {yucan_test_handler, none}, middleware => [Ticks], limits => #{idle_ms => Idle}}),
         Socket = yucan_client:connect(yucan:port(yucan_ticks)),
         ok = gen_tcp:send(Socket, ["GET /", ?HOST, "\r\n"]),
         {200, _, <<"OK">>} = yucan_client:one(Socket),
         <<>> = yucan_client:until_closed(Socket),
         ok = yucan:stop(yucan_ticks)
     end || {Every, Idle} <- [{50, 300}, {50, 3000}, {2500, 4000}]].

request_limit(Config) ->
    Responses = [_, _, {200, Last, _}] = yucan_client:exchange(?config(few_requests, Config), [["GET /", ?HOST, "\r\n"] || _ <- lists:seq(1, 5)]),
    [200, 200, 200] = statuses(Responses),
    <<"close">> = proplists:get_value(<<"connection">>, Last),
    Socket = yucan_client:connect(?config(few_requests, Config)),
    [undefined, undefined, <<"close">>] = [begin
        ok = gen_tcp:send(Socket, ["GET /", ?HOST, "\r\n"]),
        {200, Headers, _} = yucan_client:one(Socket),
        proplists:get_value(<<"connection">>, Headers)
    end || _ <- [1, 2, 3]].

%% Nothing leaks when a client resets the connection at any point of a request or its response.
resets(Config) ->
    Port = ?config(port, Config),
    Request = iolist_to_binary(["POST /large", ?HOST, "Content-Length: 20\r\n\r\n01234567890123456789"]),
    Before = open_connections(),
    [begin
         Socket = yucan_client:connect(Port),
         ok = gen_tcp:send(Socket, binary:part(Request, 0, Length)),
         %% Closing with linger 0 resets the connection.
         ok = inet:setopts(Socket, [{linger, {true, 0}}]),
         gen_tcp:close(Socket)
     end || Length <- lists:seq(0, byte_size(Request)), _ <- [1, 2]],
    true = beamway_peer:wait_until(fun() -> open_connections() =< Before end, 60000),
    {200, _, <<"OK">>} = yucan_client:get(Port, "/").

open_connections() ->
    #{metrics := #{open_connections := Open}} = yucan:info(server(port)),
    Open.

%% RFC 9110, 15.6.4. Connections are accepted again once other connections have been closed.
too_many_connections(Config) ->
    Port = ?config(few_connections, Config),
    Served = [yucan_client:connect(Port) || _ <- lists:seq(1, 20)],
    [begin ok = gen_tcp:send(S, ["GET /", ?HOST, "\r\n"]), {200, _, _} = yucan_client:one(S) end || S <- Served],
    %% These twenty connections stay open until their clients disconnect, so every further client exceeds the limit.
    [{match, _} = re:run(yucan_client:until_closed(yucan_client:connect(Port)), "^HTTP/1.1 503 ") || _ <- lists:seq(1, 10)],
    lists:foreach(fun gen_tcp:close/1, Served),
    true = beamway_peer:wait_until(fun() -> statuses(yucan_client:exchange(Port, ["GET /", ?HOST, "\r\n"])) =:= [200] end, 60000).

%% A client that sends without pause cannot fill the mailbox beyond the limit, however often it tries.
flood(_) ->
    Socket = yucan_client:connect(yucan_test_server:start(yucan_flood, #{handler => {yucan_test_handler, self()}})),
    %% From the second request on, data arrives as messages.
    Pid = lists:last([begin
                          ok = gen_tcp:send(Socket, ["GET /self", ?HOST, "\r\n"]),
                          {200, _, _} = yucan_client:one(Socket),
                          receive {serves, P} -> P after ?WAIT_MS -> error(not_served) end
                      end || _ <- [1, 2]]),
    Send = fun() -> gen_tcp:send(Socket, ["GET /ignore", ?HOST, "\r\n"]) end,
    %% The mailbox contains at most a hundred data messages, and one that reports that the socket
    %% has become passive.
    [] = [Count || Count <- [yucan_test_server:flooded(Pid, Send) || _ <- [1, 2, 3]], Count > 101],
    ok = yucan:stop(yucan_flood).

%% Like flood/1, but the client is being served. Whenever the socket is armed again, the client's next requests have already arrived.
flood_served(_) ->
    Socket = yucan_client:connect(yucan_test_server:start(yucan_flood, #{handler => {yucan_test_handler, self()}})),
    Send = fun() -> gen_tcp:send(Socket, ["GET /held", ?HOST, "\r\n"]) end,
    ok = Send(),
    Pid = receive {held, P} -> P after ?WAIT_MS -> error(not_served) end,
    Pid ! go_on,
    {200, _, _} = yucan_client:one(Socket),
    ok = Send(),
    receive {held, Pid} -> ok after ?WAIT_MS -> error(not_served) end,
    Counts = yucan_test_server:flooded_served(Pid, Send, 400),
    %% The mailbox contains at most a hundred data messages, and three that report that the socket
    %% has become passive.
    [] = [Count || Count <- Counts, Count > 103],
    ok = yucan:stop(yucan_flood).

%% Invalid input does not cause events above debug level.
garbage_is_quiet(Config) ->
    ok = logger:set_module_level(yucan_events, info),
    ok = logger:add_handler(?MODULE, yucan_test_logger, #{level => info, config => #{pid => self()}}),
    rand:seed(exsss, {1, 2, 3}),
    [yucan_client:exchange(?config(port, Config), rand:bytes(rand:uniform(500))) || _ <- lists:seq(1, 100)],
    ok = logger:remove_handler(?MODULE),
    ok = logger:unset_module_level(yucan_events),
    receive {logged, Event} -> error({logged, Event}) after 0 -> ok end.

%% Each rejected request is logged at debug level. A connection that is closed without a request is not logged.
one_line_at_debug(Config) ->
    Port = ?config(port, Config),
    ok = logger:set_module_level(yucan_events, debug),
    ok = logger:add_handler(?MODULE, yucan_test_logger, #{level => debug, config => #{pid => self()}}),
    Inputs = ["BAD\r\n\r\n", ["GET /", ?HOST, "Host: b\r\n\r\n"], ["POST /", ?HOST, "Transfer-Encoding: x\r\n\r\n"], "GET / HTTP/5.5\r\nHost: a\r\n\r\n"],
    Refused = [Status || Input <- Inputs, {Status, _, _} <- yucan_client:exchange(Port, Input)],
    [] = [Answer || Input <- ["", "GET / HT", ["POST /", ?HOST, "Content-Length: 9\r\n\r\nx"]], Answer <- yucan_client:exchange(Port, Input)],
    ok = logger:remove_handler(?MODULE),
    ok = logger:unset_module_level(yucan_events),
    [400, 400, 400, 505] = Refused,
    Lines = [Line || _ <- Inputs, Line <- [receive {logged, #{level := debug, msg := {Format, Arguments}}} -> lists:flatten(io_lib:format(Format, Arguments)) after 0 -> none end]],
    [true = lists:prefix("yucan yucan_faults_port: refused " ++ integer_to_list(Status), Line) || {Status, Line} <- lists:zip(Refused, Lines)],
    receive {logged, More} -> error({logged, More}) after 0 -> ok end.

%% A handler never returns and uses all the CPU time that it can get. Other clients are served in the meantime, and the handler is killed when the
%% server stops.
spinning_handler(_) ->
    Port = yucan_test_server:start(yucan_spinning),
    Socket = yucan_client:connect(Port),
    ok = gen_tcp:send(Socket, ["GET /spin", ?HOST, "\r\n"]),
    true = beamway_peer:wait_until(fun() -> [P || P <- processes(), process_info(P, current_function) =:= {current_function, {yucan_test_handler, spin, 1}}] =/= [] end, 60000),
    [{200, _, <<"OK">>} = yucan_client:get(Port, "/") || _ <- lists:seq(1, 20)],
    ok = yucan:stop(yucan_spinning),
    <<>> = yucan_client:until_closed(Socket).
