%% SPDX-License-Identifier: Apache-2.0
%% @doc Every limit of yucan_config at its boundary: the largest permitted value, and one more. yucan_parser_tests covers the limits on heads, and
%% yucan_faults_SUITE those on time and on connections.
-module(yucan_limits_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([heads/1, body_bytes/1, chunk_line_bytes/1, trailer_bytes/1, drain_bytes/1, linger_ms/1, linger_rate/1, send_ms/1, send_ms_stream/1, send_ms_file/1, send_ms_slow/1, send_ms_websocket/1, send_ms_list/1, tls_ms/1, beyond_connections/1, acceptors/1,
         backlog/1, ws_message_bytes/1, ws_idle_ms/1, small_chunks/1]).

-define(WAIT_MS, (20000 * beamway_runner:slowness())).
-define(SHORT_MS, (1000 * beamway_runner:slowness())).
%% These limits are so high that the connection stays open after an early response, whatever the length of the body.
-define(KEPT, #{drain_bytes => 1000000000000}).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [heads, body_bytes, chunk_line_bytes, trailer_bytes, drain_bytes, linger_ms, linger_rate, send_ms, send_ms_stream, send_ms_file, send_ms_slow, send_ms_websocket, send_ms_list, tls_ms, beyond_connections, acceptors, backlog, ws_message_bytes, ws_idle_ms, small_chunks].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

end_per_testcase(_, _) -> yucan_test_server:stop_all().

start(Limits) -> yucan_test_server:start(yucan_limits_test, #{limits => Limits}).

post(Port, Lines, Body) -> yucan_client:exchange(Port, ["POST / HTTP/1.1\r\nHost: a\r\n", Lines, "\r\n", Body]).

chunked(Port, Coded) -> post(Port, "Transfer-Encoding: chunked\r\n", Coded).

status([{Status, _, _}]) -> Status.

times(Count, Bytes) -> binary:copy(Bytes, Count).

%% RFC 9112, 3; RFC 9110, 5.4; RFC 6585, 5: tests the default limits from a client's point of view.
heads(_) ->
    Port = start(#{}),
    Line = fun(Bytes) -> ["GET /", times(Bytes - 14, <<"a">>), " HTTP/1.1\r\nHost: a\r\n\r\n"] end,
    Header = fun(Bytes) -> ["GET / HTTP/1.1\r\nHost: a\r\nx:", times(Bytes - 2, <<"a">>), "\r\n\r\n"] end,
    Headers = fun(Count) -> ["GET / HTTP/1.1\r\nHost: a\r\n", times(Count - 1, <<"x: y\r\n">>), "\r\n"] end,
    %% The head has a request line of 16 bytes, a Host header of 9, four headers of 8,002 bytes
    %% each, and one more. The last header's line end does not count.
    Block = fun(Bytes) -> ["GET / HTTP/1.1\r\nHost: a\r\n", times(4, iolist_to_binary(["x:", times(7998, <<"a">>), "\r\n"])), "x:", times(Bytes - 27 - 4 * 8002, <<"a">>), "\r\n\r\n"] end,
    [{Name, Good, 200} = {Name, Good, status(yucan_client:exchange(Port, Make(Good)))}
     || {Name, Make, Good} <- [{line, Line, 8192}, {header, Header, 8192}, {headers, Headers, 100}, {block, Block, 32768}]],
    [{Name, Status} = {Name, status(yucan_client:exchange(Port, Make(Bad)))}
     || {Name, Make, Bad, Status} <- [{line, Line, 8193, 414}, {header, Header, 8193, 431}, {headers, Headers, 101, 431}, {block, Block, 32769, 431}]].

%% RFC 9110, 15.5.14: tests the limit both with and without a Content-Length.
body_bytes(_) ->
    Port = start(#{body_bytes => 1000}),
    Chunks = fun(Count) -> [times(Count, <<"a\r\n0123456789\r\n">>), "0\r\n\r\n"] end,
    [{200, _, Body}] = post(Port, "Content-Length: 1000\r\n", times(1000, <<"x">>)),
    [{200, _, Coded}] = chunked(Port, Chunks(100)),
    [1000, 1000] = [byte_size(B) || B <- [Body, Coded]],
    413 = status(post(Port, "Content-Length: 1001\r\n", times(1001, <<"x">>))),
    413 = status(chunked(Port, [times(100, <<"a\r\n0123456789\r\n">>), "1\r\nx\r\n0\r\n\r\n"])).

%% A body that arrives in one-byte chunks needs memory for its content, but not for the number of its chunks.
small_chunks(_) ->
    Port = start(#{}),
    Socket = yucan_client:connect(Port),
    Sent = ["POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", times(200000, <<"1\r\nx\r\n">>)],
    ok = gen_tcp:send(Socket, Sent),
    Reader = beamway_peer:wait_until(fun() -> reader(iolist_size(Sent)) end, 20000),
    true = yucan_test_server:held(Reader) < 1000000,
    ok = gen_tcp:send(Socket, "0\r\n\r\n"),
    {200, _, Body} = yucan_client:one(Socket),
    true = Body =:= times(200000, <<"x">>).

%% Returns the connection process that has read this many bytes and is waiting for more.
reader(Bytes) ->
    Found = [P || P <- processes(), [{_, {yucan_conn, accept, 1}}, {_, waiting}, {_, Links}] <- [process_info(P, [initial_call, status, links])],
                  Socket <- Links, is_port(Socket), inet:getstat(Socket, [recv_oct]) =:= {ok, [{recv_oct, Bytes}]}],
    case Found of
        [Pid] -> Pid;
        [] -> false
    end.

%% RFC 9112, 7.1.1: "a recipient MUST ignore unrecognized chunk extensions", and ought to limit their length.
chunk_line_bytes(_) ->
    Port = start(#{}),
    Line = fun(Bytes) -> ["1;", times(Bytes - 2, <<"a">>), "\r\nx\r\n0\r\n\r\n"] end,
    [{200, _, <<"x">>}] = chunked(Port, Line(256)),
    400 = status(chunked(Port, Line(257))),
    %% The limit also applies to an extension that never ends.
    400 = status(chunked(Port, ["1;", times(1000, <<"a">>)])).

%% RFC 9110, 6.5.1; RFC 6585, 5.
trailer_bytes(_) ->
    Port = start(#{trailer_bytes => 1000}),
    Trailer = fun(Bytes) -> ["1\r\nx\r\n0\r\nx:", times(Bytes - 2, <<"a">>), "\r\n\r\n"] end,
    [{200, _, <<"x">>}] = chunked(Port, Trailer(1000)),
    431 = status(chunked(Port, Trailer(1001))).

%% RFC 9112, 9.3: the part of a body that the handler did not read is drained up to the limit. Then the next request is answered; if the limit was
%% exceeded, the connection is closed instead.
drain_bytes(_) ->
    Port = start(#{drain_bytes => 1000}),
    Ask = fun(Bytes) -> yucan_client:exchange(Port, [["POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: ", integer_to_list(Bytes), "\r\n\r\n", times(Bytes, <<"x">>)],
                                                     "GET / HTTP/1.1\r\nHost: a\r\n\r\n"]) end,
    [{200, _, <<"ignored">>}, {200, _, <<"OK">>}] = Ask(1000),
    %% Bytes that arrived together with the head do not count, so the test sends far more than the limit.
    [{200, Headers, <<"ignored">>}] = Ask(200000),
    <<"close">> = proplists:get_value(<<"connection">>, Headers).

%% A client that continues to send after its response is disconnected.
linger_ms(_) ->
    [begin
         Socket = answered_early(start(Limits#{linger_ms => ?SHORT_MS})),
         send_until(Socket, binary:copy(<<"x">>, 10000), 0, erlang:monotonic_time(millisecond) + ?WAIT_MS),
         yucan_test_server:stop_all()
     end || Limits <- [#{}, ?KEPT]],
    %% A client that sends nothing is also disconnected.
    {error, closed} = gen_tcp:recv(answered_early(start((?KEPT)#{linger_ms => ?SHORT_MS})), 0, ?WAIT_MS).

%% A client that sends only now and then is disconnected long before `linger_ms' has passed.
linger_rate(_) ->
    [begin
         Socket = answered_early(start(Limits#{linger_ms => 100 * ?WAIT_MS, min_body_rate => 100000})),
         send_until(Socket, <<"x">>, 100, erlang:monotonic_time(millisecond) + ?WAIT_MS),
         yucan_test_server:stop_all()
     end || Limits <- [#{}, (?KEPT)#{read_ms => ?SHORT_MS}]].

answered_early(Port) ->
    Socket = yucan_client:connect(Port),
    ok = gen_tcp:send(Socket, "POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000\r\n\r\n"),
    {200, _, <<"ignored">>} = yucan_client:one(Socket),
    Socket.

send_until(Socket, Data, Pause, Deadline) ->
    true = erlang:monotonic_time(millisecond) < Deadline,
    receive after Pause -> ok end,
    case gen_tcp:send(Socket, Data) of
        ok -> send_until(Socket, Data, Pause, Deadline);
        {error, _} -> gen_tcp:close(Socket)
    end.

%% The client never reads its response.
send_ms(_) -> not_taken("/large").

send_ms_stream(_) ->
    Table = ets:new(?FUNCTION_NAME, [named_table, public]),
    not_taken("/endless?" ++ atom_to_list(?FUNCTION_NAME)),
    [{ended, _}] = ets:lookup(Table, ended),
    ets:delete(Table).

%% sendfile itself has no timeout, so without the limit it would wait forever.
send_ms_file(Config) ->
    Root = filename:join(proplists:get_value(priv_dir, Config), "served"),
    ok = filelib:ensure_dir(filename:join(Root, "x")),
    ok = file:write_file(filename:join(Root, "large"), times(30000000, <<"x">>)),
    not_taken("/large", #{handler => {yucan_file, #{root => Root}}}).

%% A client that keeps reading gets the complete large response, however long that takes, even if it is a stream that is written in one piece.
send_ms_slow(_) ->
    Port = yucan_test_server:start(yucan_limits_test, #{limits => #{send_ms => ?SHORT_MS}}),
    [begin
         {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {recbuf, 65536}]),
         ok = gen_tcp:send(Socket, ["GET ", Path, " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"]),
         Parts = [begin
                      receive after ?SHORT_MS div 3 -> ok end,
                      {ok, Part} = gen_tcp:recv(Socket, 1024 * 1024, ?WAIT_MS),
                      Part
                  end || _ <- lists:seq(1, 8)],
         [{200, _, Body}] = yucan_client:parse(iolist_to_binary([Parts, yucan_client:until_closed(Socket)]), <<"GET">>),
         8388608 = byte_size(Body)
     end || Path <- ["/large", "/large_stream"]].

%% Likewise, a client that keeps reading a large WebSocket message gets all of it.
send_ms_websocket(_) ->
    Port = yucan_test_server:start(yucan_limits_test, #{handler => {yucan_test_handler, self()}, limits => #{send_ms => ?SHORT_MS}}),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {recbuf, 65536}]),
    _ = yucan_ws_client:upgrade(Socket, yucan_ws_client:head("/ws")),
    Pid = receive {ws_open, Opened} -> Opened after ?WAIT_MS -> error(not_open) end,
    Size = 8 * 1024 * 1024,
    Pid ! {say, times(Size, <<"x">>)},
    {ok, <<16#81, 127, Size:64>>} = gen_tcp:recv(Socket, 10, ?WAIT_MS),
    [begin
         receive after ?SHORT_MS div 3 -> ok end,
         {ok, _} = gen_tcp:recv(Socket, 1024 * 1024, ?WAIT_MS)
     end || _ <- lists:seq(1, 8)],
    ok = gen_tcp:close(Socket).

%% Over TLS, a response that is a list is also sent in parts, because ssl immediately encrypts
%% everything that it accepts, and all of it would then be buffered until the client reads it. Most
%% templates produce a list.
send_ms_list(Config) ->
    Tls = yucan_test_server:certificate("localhost", proplists:get_value(priv_dir, Config)),
    Port = yucan_test_server:start(yucan_limits_test, #{listen => [#{port => 0, tls => Tls}], handler => {yucan_test_handler, self()}}),
    {ok, Socket} = yucan_test_server:tls_connect(Port, []),
    ok = ssl:send(Socket, "GET /self HTTP/1.1\r\nHost: a\r\n\r\n"),
    {200, _, <<>>} = yucan_test_server:tls_one(Socket, <<>>),
    Pid = receive {serves, P} -> P after ?WAIT_MS -> error(not_served) end,
    1 = erlang:trace_pattern({ssl, send, 2}, true, []),
    1 = erlang:trace(Pid, true, [call]),
    ok = ssl:send(Socket, "GET /large_list HTTP/1.1\r\nHost: a\r\n\r\n"),
    {200, _, Body} = yucan_test_server:tls_one(Socket, <<>>),
    1 = erlang:trace(Pid, false, [call]),
    1 = erlang:trace_pattern({ssl, send, 2}, false, []),
    8388608 = byte_size(Body),
    Delivered = erlang:trace_delivered(Pid),
    receive {trace_delivered, Pid, Delivered} -> ok after ?WAIT_MS -> error(no_trace) end,
    Sizes = sent(),
    {true, []} = {length(Sizes) > 1, [Size || Size <- Sizes, Size > 66000]},
    ssl:close(Socket).

sent() -> receive {trace, _, call, {ssl, send, [_, Data]}} -> [iolist_size(Data) | sent()] after 0 -> [] end.

not_taken(Path) -> not_taken(Path, #{}).

not_taken(Path, Options) ->
    Port = yucan_test_server:start(yucan_limits_test, Options#{limits => #{send_ms => ?SHORT_MS}}),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {recbuf, 4096}]),
    ok = gen_tcp:send(Socket, ["GET ", Path, " HTTP/1.1\r\nHost: a\r\n\r\n"]),
    {ok, <<"HTTP/1.1 200">>} = gen_tcp:recv(Socket, 12, ?WAIT_MS),
    true = beamway_peer:wait_until(fun() -> open() =:= 0 end, 20000),
    gen_tcp:close(Socket).

%% Surplus connections stay open for a while after their 503. Their number is at most a quarter of
%% the limit, because each uses a descriptor.
beyond_connections(_) ->
    Port = start(#{connections => 4}),
    Served = [yucan_client:connect(Port) || _ <- lists:seq(1, 4)],
    true = beamway_peer:wait_until(fun() -> open() =:= 4 end, 20000),
    Refused = [yucan_client:connect(Port) || _ <- lists:seq(1, 10)],
    [{503, _, _} = yucan_client:one(Socket) || Socket <- Refused],
    true = beamway_peer:wait_until(fun() -> open() =:= 5 end, 20000),
    [ok = gen_tcp:close(Socket) || Socket <- Served ++ Refused].

open() ->
    #{metrics := #{open_connections := Open}} = yucan:info(yucan_limits_test),
    Open.

%% The clients send nothing where TLS or the PROXY header should begin. When the server with the low limit disconnects its client, the server with the
%% high limit is still waiting, so it was the tested limit that disconnected the client and not a default limit.
tls_ms(Config) ->
    Tls = yucan_test_server:certificate("localhost", proplists:get_value(priv_dir, Config)),
    [begin
         [Patient, Hasty] = [yucan_test_server:start(Name, #{listen => [Listen#{port => 0}], limits => #{tls_ms => Ms}})
                             || {Name, Ms} <- [{yucan_limits_patient, 10 * ?WAIT_MS}, {yucan_limits_test, ?SHORT_MS}]],
         Waits = yucan_client:connect(Patient),
         <<>> = yucan_client:until_closed(yucan_client:connect(Hasty)),
         {error, timeout} = gen_tcp:recv(Waits, 0, 0),
         ok = gen_tcp:close(Waits),
         ok = yucan_test_server:stop_all()
     end || Listen <- [#{tls => Tls}, #{proxy_protocol => true}]].

%% The configured number of processes wait for connections. While some of these have a connection, at least half as many still wait. A process that
%% has served its connection exits.
acceptors(_) ->
    Before = waiting(),
    Port = start(#{acceptors => 3}),
    Waiting = fun() -> length(waiting() -- Before) end,
    true = beamway_peer:wait_until(fun() -> Waiting() =:= 3 end, 20000),
    Sockets = [yucan_client:connect(Port) || _ <- lists:seq(1, 5)],
    [begin ok = gen_tcp:send(S, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"), {200, _, _} = yucan_client:one(S) end || S <- Sockets],
    true = beamway_peer:wait_until(fun() -> lists:member(Waiting(), [2, 3]) end, 20000),
    lists:foreach(fun gen_tcp:close/1, Sockets),
    true = beamway_peer:wait_until(fun() -> Waiting() =:= 3 end, 20000).

%% Returns the processes that wait for a connection, which therefore have no linked port.
waiting() ->
    [P || P <- processes(), process_info(P, initial_call) =:= {initial_call, {yucan_conn, accept, 1}},
          {links, Links} <- [process_info(P, links)], not lists:any(fun is_port/1, Links)].

%% Returns the value that was passed to the kernel; for a listening socket it is the second to last number in the output of `ss'.
backlog(_) ->
    Port = start(#{backlog => 7}),
    Line = os:cmd("ss -ltn 'sport = :" ++ integer_to_list(Port) ++ "' | tail -n 1"),
    {match, ["7"]} = re:run(Line, "^LISTEN +0 +(\\d+) ", [{capture, all_but_first, list}]).

%% RFC 6455, 7.4.1: a message that is too large is answered with close code 1009, whether it consists of one frame or two.
ws_message_bytes(_) ->
    Port = start(#{ws_message_bytes => 100}),
    Good = websocket(Port),
    ok = gen_tcp:send(Good, frame(1, 2, 100)),
    {ok, <<16#82, 100, _:100/binary>>} = gen_tcp:recv(Good, 102, ?WAIT_MS),
    [begin
         Socket = websocket(Port),
         ok = gen_tcp:send(Socket, Frames),
         {ok, <<16#88, 2, 1009:16>>} = gen_tcp:recv(Socket, 4, ?WAIT_MS)
     end || Frames <- [frame(1, 2, 101), [frame(0, 2, 60), frame(1, 0, 41)]]].

%% The client is silent until it is pinged and then responds. This is repeated, and finally the client stays silent. Other messages to the process do
%% not count as activity of the client.
ws_idle_ms(_) ->
    Port = yucan_test_server:start(yucan_limits_test, #{handler => {yucan_test_handler, self()}, limits => #{ws_idle_ms => ?SHORT_MS}}),
    Socket = websocket(Port),
    Pid = receive {ws_open, Opened} -> Opened after ?WAIT_MS -> error(not_open) end,
    {ok, Ticks} = timer:send_interval(100, Pid, tick),
    {ok, <<16#89, 0>>} = gen_tcp:recv(Socket, 2, ?WAIT_MS),
    ok = gen_tcp:send(Socket, frame(1, 10, 0)),
    {ok, <<16#89, 0>>} = gen_tcp:recv(Socket, 2, ?WAIT_MS),
    {error, closed} = gen_tcp:recv(Socket, 1, ?WAIT_MS),
    receive {ws_ended, idle} -> ok after ?WAIT_MS -> error(not_ended) end,
    {ok, cancel} = timer:cancel(Ticks).

websocket(Port) -> yucan_ws_client:open(Port, yucan_ws_client:head("/ws")).

frame(Fin, Opcode, Size) ->
    <<First>> = <<Fin:1, 0:3, Opcode:4>>,
    yucan_ws_client:frame(First, times(Size, <<"x">>)).
