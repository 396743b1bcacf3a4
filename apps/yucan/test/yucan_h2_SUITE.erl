%% SPDX-License-Identifier: Apache-2.0
%% @doc HTTP/2 (RFC 9113): the same handlers and limits as HTTP/1.1, flow control, and clients that request too much. The rules for frames are tested
%% with h2spec (yucan_h2_peers_SUITE), and HPACK has its own tests (yucan_hpack_tests).
-module(yucan_h2_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([reads_while_it_sends/1, nothing_kept/1, end_without_window/1, answers/1, bodies/1, same_as_http_1/1, malformed/1, cookies/1, logged_after_the_end/1, large/1, windows/1, window_of_zero/1, silent_client/1, blocked_send/1, uploads_are_bounded/1, crashes/1, at_once/1,
         too_many/1, bad_trailers/1, unread_given_up/1, given_up/1, own_process/1, floods/1, broken_rules/1, headers_without_end/1, headers_too_large/1, idle/1, pings_keep_nothing/1, idle_behind_answer/1, drain/1, requests/1, reload/1,
         tls/1, prior_knowledge/1, switched_off/1, events/1, websocket/1, websocket_flood/1, websocket_lost/1, websocket_closed/1, curl/1]).

-import(yucan_test_server, [wait_for/1]).

-define(WAIT_MS, (20000 * beamway_runner:slowness())).
-define(CALM, 11).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [reads_while_it_sends, nothing_kept, end_without_window, answers, bodies, same_as_http_1, malformed, cookies, logged_after_the_end, large, windows, window_of_zero, silent_client, blocked_send, uploads_are_bounded, crashes, at_once, too_many, bad_trailers, unread_given_up, given_up, own_process, floods, broken_rules,
     headers_without_end, headers_too_large, idle, pings_keep_nothing, idle_behind_answer, drain, requests, reload, tls, prior_knowledge, switched_off, events, websocket, websocket_flood, websocket_lost, websocket_closed, curl].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

end_per_testcase(_, _) -> yucan_test_server:stop_all().

start() -> start(#{}).
start(Options) -> yucan_test_server:start(yucan_h2_test, Options).

fields(Path) -> yucan_h2_client:get(Path, []).
with_method(Method, Path, Others) -> lists:keystore(<<":method">>, 1, yucan_h2_client:get(Path, Others), {<<":method">>, Method}).

ask(Socket, Id, Fields) -> yucan_h2_client:send(Socket, yucan_h2_client:headers(Id, 1, Fields, <<>>)).

%% Sends the head of a request whose body will follow.
begin_with(Socket, Id, Fields) -> yucan_h2_client:send(Socket, yucan_h2_client:headers(Id, 0, Fields, <<>>)).

data(Socket, Id, Flags, Data) -> yucan_h2_client:send(Socket, yucan_h2_client:frame(0, Flags, Id, Data)).

response(Socket, Id) -> yucan_h2_client:response(Socket, Id).

%% Returns the connection and stream processes.
serving() -> processes_of([yucan_conn, yucan_h2_exchange]).
processes_of(Modules) ->
    [Pid || Pid <- erlang:processes(), {initial_call, {Module, _, _}} <- [process_info(Pid, initial_call)], lists:member(Module, Modules)].

%% Checks status, headers and body of every kind of response.
answers(_) ->
    Port = start(),
    Ask = fun(Path) -> yucan_h2_client:request(Port, Path, []) end,
    {200, Headers, <<"OK">>} = Ask(<<"/">>),
    <<"2">> = proplists:get_value(<<"content-length">>, Headers),
    [true = is_binary(proplists:get_value(Name, Headers)) || Name <- [<<"date">>, <<"server">>, <<"content-type">>]],
    {204, Nothing, <<>>} = Ask(<<"/nothing">>),
    undefined = proplists:get_value(<<"content-length">>, Nothing),
    {304, Same, <<>>} = Ask(<<"/same">>),
    <<"\"x\"">> = proplists:get_value(<<"etag">>, Same),
    Numbers = list_to_binary([integer_to_binary(N) || N <- lists:seq(1, 100)]),
    {200, Streamed, Numbers} = Ask(<<"/stream">>),
    [undefined = proplists:get_value(Name, Streamed) || Name <- [<<"content-length">>, <<"transfer-encoding">>, <<"connection">>]],
    {200, Known, <<"0123456789">>} = Ask(<<"/stream_length">>),
    <<"10">> = proplists:get_value(<<"content-length">>, Known),
    %% Spaces around a value are not part of it (8.2.1).
    {200, Padded, <<>>} = Ask(<<"/padded">>),
    <<"a b">> = proplists:get_value(<<"x-padded">>, Padded),
    %% `connection: close' has no effect here, and does not close the other streams.
    {200, Closing, <<"closing">>} = Ask(<<"/closing">>),
    undefined = proplists:get_value(<<"connection">>, Closing),
    Socket = yucan_h2_client:connect(Port),
    ask(Socket, 1, with_method(<<"HEAD">>, <<"/text">>, [])),
    {200, Head, <<>>} = response(Socket, 1),
    <<"5000">> = proplists:get_value(<<"content-length">>, Head),
    ask(Socket, 3, with_method(<<"OPTIONS">>, <<"*">>, [])),
    {204, _, <<>>} = response(Socket, 3).

%% Tests request bodies with and without a length, with padding, with trailers and with `Expect'.
bodies(_) ->
    Socket = yucan_h2_client:connect(start()),
    begin_with(Socket, 1, with_method(<<"POST">>, <<"/">>, [{<<"content-length">>, <<"6">>}])),
    data(Socket, 1, 0, <<"abc">>),
    data(Socket, 1, 1, <<"def">>),
    {200, _, <<"abcdef">>} = response(Socket, 1),
    begin_with(Socket, 3, with_method(<<"POST">>, <<"/">>, [])),
    data(Socket, 3, 8, [3, "ghi", 0, 0, 0]),
    data(Socket, 3, 1, <<>>),
    {200, _, <<"ghi">>} = response(Socket, 3),
    begin_with(Socket, 5, with_method(<<"POST">>, <<"/trailers">>, [])),
    data(Socket, 5, 0, <<"x">>),
    yucan_h2_client:send(Socket, yucan_h2_client:headers(5, 1, [{<<"x-sum">>, <<"7">>}], <<>>)),
    {200, _, <<"[{<<\"x-sum\">>,<<\"7\">>}]">>} = response(Socket, 5),
    begin_with(Socket, 7, with_method(<<"POST">>, <<"/">>, [{<<"expect">>, <<"100-continue">>}])),
    {1, _, 7, [{<<":status">>, <<"100">>}]} = yucan_h2_client:until(Socket, 1),
    data(Socket, 7, 1, <<"now">>),
    {200, _, <<"now">>} = response(Socket, 7),
    %% If the handler responds without reading the body, the server tells the client to stop sending it.
    begin_with(Socket, 9, with_method(<<"POST">>, <<"/ignore">>, [])),
    {200, _, <<"ignored">>} = response(Socket, 9),
    {3, 0, 9, <<0:32>>} = yucan_h2_client:until(Socket, 3),
    data(Socket, 9, 1, <<"on its way already">>),
    ask(Socket, 11, fields(<<"/">>)),
    {200, _, <<"OK">>} = response(Socket, 11),
    %% One body is longer than its Content-Length, and the other is shorter.
    [begin
         begin_with(Socket, Id, with_method(<<"POST">>, <<"/">>, [{<<"content-length">>, Length}])),
         data(Socket, Id, 1, <<"four">>),
         {reset, 1} = response(Socket, Id)
     end || {Id, Length} <- [{13, <<"3">>}, {15, <<"5">>}]].

%% Requests for the same paths get the same responses as over HTTP/1.1, and invalid heads are rejected with the same status.
same_as_http_1(_) ->
    Port = start(#{routes => [{"/private/*r", yucan_test_handler, none}, {"/*f", yucan_routes_handler, none}], limits => #{request_line_bytes => 100, headers => 10, header_line_bytes => 200, header_block_bytes => 1000}}),
    [begin
         [{Status, _, Body}] = yucan_client:exchange(Port, ["GET ", Path, " HTTP/1.1\r\nHost: localhost\r\n", [[N, ": ", V, "\r\n"] || {N, V} <- Headers], "\r\n"]),
         {Path, Headers, {Status, Body}} = {Path, Headers, case yucan_h2_client:request(Port, Path, Headers) of {S, _, B} -> {S, B}; Other -> Other end}
     end || {Path, Headers} <-
        [{P, []} || P <- [<<"/private/a">>, <<"//private/a">>, <<"/./private/a">>, <<"/x/../private/a">>, <<"/%70rivate/a">>, <<"/x/%2e%2e/private/a">>, <<"/other">>,
                          <<"/../a">>, <<"/%00">>, <<"/%">>, <<"/a#b">>, <<"/a?b#c">>, <<"/a\\b">>, <<"/", (binary:copy(<<"a">>, 100))/binary>>, <<"/ü"/utf8>>]]
        ++ [{<<"/">>, [{<<"x-", (integer_to_binary(N))/binary>>, <<"y">>} || N <- lists:seq(1, 11)]}, {<<"/">>, [{<<"x">>, binary:copy(<<"y">>, 300)}]},
            {<<"/">>, [{<<"expect">>, <<"200-ok">>}]}]],
    {400, _, _} = asked(Port, with_method(<<>>, <<"/">>, [])),
    {501, _, _} = asked(Port, [{<<":method">>, <<"CONNECT">>}, {<<":authority">>, <<"a:1">>}]),
    {reset, 1} = host(Port, <<"a b">>),
    {400, _, _} = host(Port, <<"a:99999">>).

asked(Port, Fields) ->
    Socket = yucan_h2_client:connect(Port),
    ask(Socket, 1, Fields),
    response(Socket, 1).

host(Port, Host) -> asked(Port, lists:keyreplace(<<":authority">>, 1, fields(<<"/">>), {<<":authority">>, Host})).

%% RFC 9113, 8.2 and 8.3: the rules that h2spec does not cover.
malformed(_) ->
    Socket = yucan_h2_client:connect(start()),
    Cases = [[{Name, <<"x">>}] || Name <- [<<"connection">>, <<"transfer-encoding">>, <<"upgrade">>, <<"keep-alive">>, <<"proxy-connection">>, <<"X">>, <<"a b">>, <<>>, <<"a:b">>]]
        ++ [[{<<"x">>, Value}] || Value <- [<<" y">>, <<"y ">>, <<"\ty">>, <<"a\nb">>, <<"a\rb">>, <<0>>, <<127>>]]
        ++ [[{<<"content-length">>, Value}] || Value <- [<<"1">>, <<"-1">>, <<"+0">>, <<"x">>, <<>>, <<"0, 0">>]]
        ++ [[{<<"content-length">>, <<"0">>}, {<<"content-length">>, <<"0">>}], [{<<"host">>, <<"other">>}], [{<<"host">>, <<"localhost">>}, {<<"host">>, <<"localhost">>}], [{<<"te">>, <<"gzip">>}]],
    _ = lists:foldl(fun(Others, Id) ->
        ask(Socket, Id, yucan_h2_client:get(<<"/">>, Others)),
        {Others, {reset, 1}} = {Others, response(Socket, Id)},
        Id + 2
    end, 1, Cases),
    _ = lists:foldl(fun(Fields, Id) ->
        ask(Socket, Id, Fields),
        {Fields, {reset, 1}} = {Fields, response(Socket, Id)},
        Id + 2
    end, 1001, [with_method(<<"GET">>, Path, []) || Path <- [<<"http://localhost/">>, <<"a">>, <<"/a b">>, <<"/ HTTP/1.1\r\nx: y">>]]
        ++ [with_method(Method, <<"/">>, []) || Method <- [<<"GE T">>, <<"GET\r\n">>]]
        ++ [lists:keyreplace(<<":scheme">>, 1, fields(<<"/">>), {<<":scheme">>, <<"ftp">>}), [{<<":protocol">>, <<"websocket">>} | fields(<<"/">>)]]),
    ask(Socket, 2001, fields(<<"/">>)),
    {200, _, _} = response(Socket, 2001).

%% 8.2.3: all cookies count as a single header, both for handlers and for the limit.
cookies(_) ->
    Self = self(),
    Port = start(#{limits => #{headers => 2}, access_log => {function, fun(Entry) -> Self ! {entry, Entry} end}, middleware => [fun(Req, Next) -> Self ! {cookies, yucan_req:headers(Req), yucan_req:version(Req)}, Next(Req) end]}),
    {200, _, _} = yucan_h2_client:request(Port, <<"/a?b">>, [{<<"cookie">>, <<"a=1">>}, {<<"x">>, <<"y">>}, {<<"cookie">>, <<"b=2">>}]),
    receive {cookies, Headers, {2, 0}} -> [{<<"cookie">>, <<"a=1; b=2">>}, {<<"host">>, <<"localhost">>}, {<<"x">>, <<"y">>}] = lists:sort(Headers) after ?WAIT_MS -> error(no_request) end,
    receive {entry, Entry} -> {match, _} = re:run(yucan_log:format(Entry), "\"GET /a\\?b HTTP/2\\.0\" 200 2 ") after ?WAIT_MS -> error(no_entry) end,
    {431, _, _} = yucan_h2_client:request(Port, <<"/">>, [{<<"x">>, <<"y">>}, {<<"cookie">>, <<"a=1">>}, {<<"cookie">>, <<"b=2">>}, {<<"z">>, <<"y">>}]),
    {431, _, _} = yucan_h2_client:request(Port, <<"/">>, [{<<"x">>, <<"y">>}, {<<"z">>, <<"y">>}, {<<"cookie">>, <<"a=1">>}]).

%% The client disconnects after its response, while the log is still being written.
logged_after_the_end(_) ->
    Self = self(),
    Port = start(#{access_log => {function, fun(Entry) -> Self ! {logs, self()}, receive go -> Self ! {entry, Entry} after ?WAIT_MS -> ok end end}}),
    {200, _, _} = yucan_h2_client:request(Port, <<"/">>, []),
    Logs = receive {logs, Pid} -> Pid after ?WAIT_MS -> error(no_log) end,
    wait_for(fun() -> case process_info(Logs, links) of {links, [_]} -> false; _ -> true end end),
    Logs ! go,
    receive {entry, _} -> ok after ?WAIT_MS -> error(no_entry) end.

large(_) ->
    Socket = yucan_h2_client:connect(start()),
    ask(Socket, 1, fields(<<"/large">>)),
    {200, _, Body} = response(Socket, 1),
    Body = binary:copy(<<"x">>, 8 * 1024 * 1024),
    File = binary:copy(<<"0123456789abcdef">>, 200000),
    begin_with(Socket, 3, with_method(<<"POST">>, <<"/count">>, [])),
    upload(Socket, 3, File, 262144, 1048576),
    {200, _, <<"3200000">>} = response(Socket, 3).

%% Sends as much as the windows allow. The window of a stream is given in the settings.
upload(Socket, Id, Data, _, _) when byte_size(Data) =< 16384 -> data(Socket, Id, 1, Data);
upload(Socket, Id, <<Part:16384/binary, Rest/binary>>, Own, Whole) when Own >= 16384, Whole >= 16384 ->
    data(Socket, Id, 0, Part),
    upload(Socket, Id, Rest, Own - 16384, Whole - 16384);
upload(Socket, Id, Data, Own, Whole) ->
    case yucan_h2_client:until(Socket, 8) of
        {8, _, 0, <<More:32>>} -> upload(Socket, Id, Data, Own, Whole + More);
        {8, _, Id, <<More:32>>} -> upload(Socket, Id, Data, Own + More, Whole);
        closed -> error(closed)
    end.

%% 6.9: the server never sends more than both windows allow. 6.9.2: a change of the initial window
%% applies to open streams, and may make their windows negative.
windows(_) ->
    Port = start(),
    Socket = yucan_h2_client:connect(Port, yucan_h2_client:settings([{4, 10}])),
    ask(Socket, 1, fields(<<"/text">>)),
    {1, 4, 1, _} = yucan_h2_client:until(Socket, 1),
    {0, 0, 1, <<"some text ">>} = yucan_h2_client:until(Socket, 0),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(4, 0, 0, yucan_h2_client:settings([{4, 5}]))),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(8, 0, 1, <<5:32>>)),
    %% The stream's window was at -5, so 5 more bytes bring it to zero. The ping is answered before any data, which shows that nothing was sent.
    yucan_h2_client:send(Socket, yucan_h2_client:frame(6, 0, 0, <<1:64>>)),
    {6, 1, 0, <<1:64>>} = not_before_data(Socket),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(8, 0, 1, <<3:32>>)),
    {0, 0, 1, <<"som">>} = yucan_h2_client:until(Socket, 0),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(4, 0, 0, yucan_h2_client:settings([{4, 100000}]))),
    {0, _, 1, Rest} = yucan_h2_client:until(Socket, 0),
    {4987, <<"e text some", _/binary>>} = {byte_size(Rest), Rest},
    %% The connection's window is 65,535 bytes, of which 5,000 have been used.
    ask(Socket, 3, fields(<<"/large">>)),
    60535 = received(Socket, 3, 0, 60535),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(6, 0, 0, <<2:64>>)),
    {6, 1, 0, <<2:64>>} = not_before_data(Socket),
    %% A setting that makes a stream's window too large closes the connection.
    Wide = yucan_h2_client:connect(Port),
    ask(Wide, 1, fields(<<"/loop">>)),
    yucan_h2_client:send(Wide, [yucan_h2_client:frame(8, 0, 1, <<(16#7fffffff - 65535):32>>), yucan_h2_client:frame(4, 0, 0, yucan_h2_client:settings([{4, 65536}]))]),
    3 = yucan_h2_client:closed(Wide).

not_before_data(Socket) ->
    case yucan_h2_client:recv(Socket) of
        {0, _, _, Data} when Data =/= <<>> -> error({data, byte_size(Data)});
        {6, _, _, _} = Ping -> Ping;
        _ -> not_before_data(Socket)
    end.

received(_, _, Sum, Most) when Sum >= Most -> Sum;
received(Socket, Id, Sum, Most) ->
    {0, _, Id, Data} = yucan_h2_client:until(Socket, 0),
    received(Socket, Id, Sum + byte_size(Data), Most).

%% Other requests begin while a large response is sent to a client that reads slowly.
reads_while_it_sends(_) ->
    Test = self(),
    Large = binary:copy(<<"x">>, 24 bsl 20),
    Answer = fun(Req, _) -> Test ! {began, yucan_req:path(Req)}, {200, [], case yucan_req:path(Req) of <<"/large">> -> Large; _ -> <<"small">> end} end,
    {ok, Raw} = gen_tcp:connect({127, 0, 0, 1}, start(#{middleware => [Answer]}), [binary, {active, false}, {recbuf, 65536}]),
    Socket = yucan_h2_client:connect(Raw, yucan_h2_client:settings([{4, 30000000}])),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(8, 0, 0, <<30000000:32>>)),
    ask(Socket, 1, fields(<<"/large">>)),
    receive {began, <<"/large">>} -> ok after ?WAIT_MS -> error(not_begun) end,
    {ok, _} = gen_tcp:recv(Socket, 100000, ?WAIT_MS),
    ask(Socket, 3, fields(<<"/small">>)),
    %% The server can always send as much as fits into the kernels' socket buffers, even though the
    %% client does not read it.
    true = read_until_begun(Socket, 0) < 12 bsl 20.

read_until_begun(Socket, Read) ->
    receive {began, <<"/small">>} -> Read
    after 2 ->
        {ok, Data} = gen_tcp:recv(Socket, 65536, ?WAIT_MS),
        read_until_begun(Socket, Read + byte_size(Data))
    end.

%% A connection that waits for events does not retain the memory of earlier bodies.
nothing_kept(_) ->
    Events = fun(Req) -> yucan_sse:response(Req, [], fun(start, _) -> {send, #{data => <<"x">>}, none}; (_, _) -> {ok, none} end, none) end,
    Port = start(#{middleware => [fun(Req, Next) -> case yucan_req:path(Req) of <<"/wait">> -> Events(Req); _ -> Next(Req) end end]}),
    Raw = yucan_client:connect(Port),
    Socket = yucan_h2_client:connect(Raw, yucan_h2_client:settings([{4, 30000000}])),
    ask(Socket, 1, fields(<<"/wait">>)),
    {1, 4, 1, _} = yucan_h2_client:until(Socket, 1),
    begin_with(Socket, 3, with_method(<<"POST">>, <<"/count">>, [])),
    upload(Socket, 3, binary:copy(<<"0123456789abcdef">>, 60000), 262144, 1048576),
    {200, _, <<"960000">>} = response(Socket, 3),
    {Connection, _} = yucan_test_server:server_side(Raw),
    true = beamway_peer:wait_until(fun() ->
        {binary, Binaries} = process_info(Connection, binary),
        lists:sum([Size || {_, Size, _} <- Binaries]) < 20000
    end, 10000).

%% 6.9.1: the server can send an empty final frame without window space, even if the window is negative.
end_without_window(_) ->
    Test = self(),
    Stream = fun(Write) -> ok = Write(<<"0123456789">>), Test ! {written, self()}, receive go -> ok end end,
    Socket = yucan_h2_client:connect(start(#{middleware => [fun(_, _) -> {200, [], {stream, Stream}} end]}), yucan_h2_client:settings([{4, 10}])),
    ask(Socket, 1, fields(<<"/">>)),
    {0, 0, 1, <<"0123456789">>} = yucan_h2_client:until(Socket, 0),
    yucan_h2_client:send(Socket, [yucan_h2_client:frame(4, 0, 0, yucan_h2_client:settings([{4, 0}])), yucan_h2_client:frame(6, 0, 0, <<1:64>>)]),
    {6, 1, 0, <<1:64>>} = yucan_h2_client:until(Socket, 6),
    receive {written, Pid} -> Pid ! go after ?WAIT_MS -> error(not_written) end,
    {0, 1, 1, <<>>} = yucan_h2_client:until(Socket, 0).

%% If a client does not open the window for a response, that stream is reset after `send_ms', while the others continue.
window_of_zero(_) ->
    Socket = yucan_h2_client:connect(start(#{limits => #{send_ms => 1500}}), yucan_h2_client:settings([{4, 0}])),
    [ask(Socket, Id, fields(Path)) || {Id, Path} <- [{1, <<"/large">>}, {3, <<"/text">>}, {5, <<"/stream">>}]],
    ask(Socket, 7, with_method(<<"HEAD">>, <<"/">>, [])),
    {200, _, <<>>} = response(Socket, 7),
    [{3, 0, _, <<8:32>>} = yucan_h2_client:until(Socket, 3) || _ <- [1, 3, 5]],
    wait_for(fun() -> length(streams()) =:= 0 end).

%% A handler streams for six seconds while the client only reads. Meanwhile another stream, which has no window space, is reset. The streaming handler
%% still gets `send_ms' from the moment it first has to wait for window space, and `idle_ms' starts when it returns.
silent_client(_) ->
    Stream = fun(Write) -> [begin ok = Write(<<"x">>), receive after 200 -> ok end end || _ <- lists:seq(1, 30)], Write(["last", binary:copy(<<"x">>, 200000)]) end,
    Slow = fun(Req, Next) -> case yucan_req:path(Req) of <<"/slow">> -> {200, [], {stream, Stream}}; _ -> Next(Req) end end,
    Socket = yucan_h2_client:connect(start(#{limits => #{send_ms => 3000, idle_ms => 3000}, middleware => [Slow]})),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(8, 0, 0, <<1000000:32>>)),
    [ask(Socket, Id, fields(Path)) || {Id, Path} <- [{1, <<"/large">>}, {3, <<"/slow">>}]],
    {reset, 1} = next_of_slow(Socket),
    {last, 3} = next_of_slow(Socket),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(8, 0, 3, <<1000000:32>>)),
    {ended, 3} = next_of_slow(Socket),
    ask(Socket, 5, fields(<<"/">>)),
    {200, _, <<"OK">>} = response(Socket, 5).

next_of_slow(Socket) ->
    case yucan_h2_client:recv(Socket) of
        {3, _, Id, _} -> {reset, Id};
        {0, 1, Id, _} -> {ended, Id};
        {0, 0, Id, <<"last", _/binary>>} -> {last, Id};
        closed -> closed;
        _ -> next_of_slow(Socket)
    end.

%% If a client reads nothing for four seconds and so blocks the server's send, it still gets the full `send_ms' once that send continues.
blocked_send(_) ->
    {ok, Small} = gen_tcp:connect({127, 0, 0, 1}, start(#{limits => #{send_ms => 6000}}), [binary, {active, false}, {recbuf, 65536}, {nodelay, true}]),
    Window = 7 * 1024 * 1024,
    Socket = yucan_h2_client:connect(Small, yucan_h2_client:settings([{4, Window}])),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(8, 0, 0, <<(2 * Window):32>>)),
    ask(Socket, 1, fields(<<"/large">>)),
    receive after 4000 -> ok end,
    Window = received(Socket, 1, 0, Window),
    receive after 4000 -> ok end,
    yucan_h2_client:send(Socket, yucan_h2_client:frame(8, 0, 1, <<Window:32>>)),
    Rest = 8 * 1024 * 1024 - Window,
    Rest = received(Socket, 1, 0, Rest).

streams() -> processes_of([yucan_h2_exchange]).

%% A client sends 100 MB that no handler reads. The server buffers no more than the windows allow,
%% and a client that sends more violates the protocol.
uploads_are_bounded(_) ->
    Socket = yucan_h2_client:connect(start()),
    [begin_with(Socket, Id, with_method(<<"POST">>, <<"/loop">>, [])) || Id <- lists:seq(1, 7, 2)],
    wait_for(fun() -> length(streams()) =:= 4 end),
    [Connection] = linked_connections(),
    Part = binary:copy(<<"x">>, 16384),
    [data(Socket, Id, 0, Part) || Id <- lists:seq(1, 7, 2), _ <- lists:seq(1, 15)],
    yucan_h2_client:send(Socket, yucan_h2_client:frame(6, 0, 0, <<1:64>>)),
    {6, 1, 0, _} = yucan_h2_client:until(Socket, 6),
    Held = yucan_test_server:held(Connection),
    true = Held < 2500000,
    [data(Socket, 1, 0, Part) || _ <- lists:seq(1, 2)],
    {reset, 3} = response(Socket, 1),
    wait_for(fun() -> length(streams()) =:= 3 end),
    %% When the stream was reset, the window space of its unread data was returned to the connection. The rest of this test uses up the connection's
    %% window.
    [data(Socket, 3, 0, <<"x">>) || _ <- lists:seq(1, 10)],
    Others = [begin_with(Socket, Id, with_method(<<"POST">>, <<"/loop">>, [])) || Id <- lists:seq(9, 39, 2)],
    16 = length(Others),
    [data(Socket, Id, 0, Part) || Id <- lists:seq(9, 39, 2), _ <- lists:seq(1, 15)],
    3 = yucan_h2_client:closed(Socket).

linked_connections() ->
    lists:usort([Pid || Stream <- streams(), {links, Links} <- [process_info(Stream, links)], Pid <- Links, is_pid(Pid)]).

crashes(_) ->
    Port = start(),
    Socket = yucan_h2_client:connect(Port),
    Cases = [{<<"/crash">>, 500}, {<<"/exit">>, 500}, {<<"/throw">>, 500}, {<<"/nonsense">>, 500}, {<<"/bad_body">>, 500}, {<<"/bad_header">>, 500}, {<<"/bad_name">>, 500},
             {<<"/stream_crash_at_once">>, 500}, {<<"/stream_crash">>, reset}, {<<"/stream_short">>, reset}, {<<"/close">>, reset}],
    _ = lists:foldl(fun({Path, Expected}, Id) ->
        ask(Socket, Id, fields(Path)),
        {Path, Expected} = {Path, case response(Socket, Id) of {reset, 2} -> reset; {Status, _, _} -> Status end},
        Id + 2
    end, 1, Cases),
    ask(Socket, 101, fields(<<"/">>)),
    {200, _, _} = response(Socket, 101),
    %% If the process of a stream is killed, the client gets the same error as when a handler sends no response.
    ask(Socket, 103, fields(<<"/loop">>)),
    wait_for(fun() -> length(streams()) =:= 1 end),
    exit(hd(streams()), kill),
    {reset, 2} = response(Socket, 103).

%% A slow response does not delay any other.
at_once(_) ->
    Socket = yucan_h2_client:connect(start()),
    ask(Socket, 1, fields(<<"/loop">>)),
    [ask(Socket, Id, fields(<<"/">>)) || Id <- lists:seq(3, 181, 2)],
    Got = lists:sort([Id || _ <- lists:seq(3, 181, 2), {0, 1, Id, <<"OK">>} <- [yucan_h2_client:until(Socket, 0)]]),
    Got = lists:seq(3, 181, 2).

too_many(_) ->
    Port = start(#{limits => #{h2_streams => 3}}),
    Socket = yucan_h2_client:connect(Port),
    [ask(Socket, Id, fields(<<"/loop">>)) || Id <- [1, 3, 5]],
    ask(Socket, 7, fields(<<"/">>)),
    {reset, 7} = response(Socket, 7),
    wait_for(fun() -> length(streams()) =:= 3 end),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(3, 0, 3, <<8:32>>)),
    wait_for(fun() -> length(streams()) =:= 2 end),
    ask(Socket, 9, fields(<<"/">>)),
    {200, _, _} = response(Socket, 9),
    %% A process counts towards the limit until it has exited, even if its stream is closed. A
    %% single packet opens three streams, cancels them, and opens another one.
    Burst = yucan_h2_client:connect(Port),
    Open = fun(Id, Path) -> yucan_h2_client:headers(Id, 1, fields(Path), <<>>) end,
    yucan_h2_client:send(Burst, [[Open(Id, <<"/loop">>) || Id <- [1, 3, 5]], [yucan_h2_client:frame(3, 0, Id, <<8:32>>) || Id <- [1, 3, 5]], Open(7, <<"/">>)]),
    {reset, 7} = response(Burst, 7).

%% The rules for header fields also apply to trailers.
bad_trailers(_) ->
    Socket = yucan_h2_client:connect(start()),
    Ask = fun(Id, Field) ->
        begin_with(Socket, Id, with_method(<<"POST">>, <<"/trailers">>, [])),
        data(Socket, Id, 0, <<"x">>),
        yucan_h2_client:send(Socket, yucan_h2_client:headers(Id, 1, [Field], <<>>)),
        response(Socket, Id)
    end,
    [{Field, {reset, 1}} = {Field, Ask(Id, Field)}
     || {Id, Field} <- [{1, {<<"X-Sum">>, <<"7">>}}, {3, {<<":path">>, <<"/">>}}, {5, {<<"connection">>, <<"close">>}}, {7, {<<"x">>, <<"a\r\nb">>}}]],
    {200, _, <<"[{<<\"x-sum\">>,<<\"7\">>}]">>} = Ask(9, {<<"x-sum">>, <<"7">>}).

%% Unread data of cancelled streams does not use up the connection's window: the client can send twice as much as the window allows.
unread_given_up(_) ->
    Socket = yucan_h2_client:connect(start()),
    Part = binary:copy(<<"x">>, 16384),
    [begin
         begin_with(Socket, Id, with_method(<<"POST">>, <<"/loop">>, [])),
         [data(Socket, Id, 0, Part) || _ <- lists:seq(1, 8)],
         yucan_h2_client:send(Socket, yucan_h2_client:frame(3, 0, Id, <<8:32>>))
     end || Id <- lists:seq(1, 31, 2)],
    ask(Socket, 33, fields(<<"/">>)),
    {200, _, <<"OK">>} = response(Socket, 33).

%% When a client cancels a stream, its handler is stopped. When a connection is lost, all of its handlers are stopped.
given_up(_) ->
    Socket = yucan_h2_client:connect(start()),
    [ask(Socket, Id, fields(<<"/spin">>)) || Id <- [1, 3, 5]],
    wait_for(fun() -> length(streams()) =:= 3 end),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(3, 0, 3, <<8:32>>)),
    wait_for(fun() -> length(streams()) =:= 2 end),
    ok = gen_tcp:close(Socket),
    wait_for(fun() -> streams() =:= [] end).

%% State that a handler leaves behind never reaches another handler, whether that handler serves
%% this client or a different one.
own_process(_) ->
    Socket = yucan_h2_client:connect(start()),
    Pids = [begin
                ask(Socket, Id, fields(<<"/leave?", What/binary>>)),
                {200, _, Pid} = response(Socket, Id),
                Pid
            end || {Id, What} <- lists:zip(lists:seq(1, 17, 2), [<<"nothing">>, <<"word">>, <<"message">>, <<"link">>, <<"monitor">>, <<"watcher">>, <<"flag">>, <<"name">>, <<"stream">>])],
    9 = length(lists:usort(Pids)),
    wait_for(fun() -> [P || P <- Pids, is_process_alive(list_to_pid(binary_to_list(P)))] =:= [] end).

%% A flood of frames that cost the client nothing closes the connection, and neither the number of processes nor their memory grows.
floods(_) ->
    %% The time limits are so high that only the tokens can end the connection.
    Port = start(#{limits => #{header_ms => 3600000, send_ms => 3600000}}),
    Reset = fun(Id) -> [yucan_h2_client:headers(Id, 1, fields(<<"/loop">>), <<>>), yucan_h2_client:frame(3, 0, Id, <<8:32>>)] end,
    Stream = yucan_h2_client:headers(1, 0, with_method(<<"POST">>, <<"/loop">>, []), <<>>),
    Floods = [{rapid_reset, <<>>, fun(N) -> Reset(2 * N - 1) end},
              {resets_by_the_server, <<>>, fun(N) -> [yucan_h2_client:headers(2 * N - 1, 0, fields(<<"/loop">>), <<>>), yucan_h2_client:frame(8, 0, 2 * N - 1, <<0:32>>)] end},
              {refused, [yucan_h2_client:headers(Id, 1, fields(<<"/loop">>), <<>>) || Id <- lists:seq(1, 199, 2)], fun(N) -> yucan_h2_client:headers(2 * N + 199, 1, fields(<<"/loop">>), <<>>) end},
              {ping, <<>>, fun(N) -> yucan_h2_client:frame(6, 0, 0, <<N:64>>) end},
              {settings, <<>>, fun(N) -> yucan_h2_client:frame(4, 0, 0, yucan_h2_client:settings([{4, N}])) end},
              {acknowledgements, <<>>, fun(_) -> yucan_h2_client:frame(4, 1, 0, <<>>) end},
              {priority, <<>>, fun(_) -> yucan_h2_client:frame(2, 0, 1, <<0:40>>) end},
              {unknown, <<>>, fun(_) -> yucan_h2_client:frame(77, 0, 0, <<>>) end},
              {empty_data, Stream, fun(_) -> yucan_h2_client:frame(0, 0, 1, <<>>) end},
              {padding, Stream, fun(_) -> yucan_h2_client:frame(0, 8, 1, <<1, 0>>) end},
              {small_windows, Stream, fun(_) -> yucan_h2_client:frame(8, 0, 1, <<1:32>>) end},
              {closed_streams, <<>>, fun(_) -> [yucan_h2_client:frame(3, 0, 1, <<8:32>>)] end},
              {continuations, yucan_h2_client:frame(1, 0, 1, <<>>), fun(_) -> yucan_h2_client:frame(9, 0, 1, <<>>) end}],
    [begin
         Socket = yucan_h2_client:connect(Port),
         case Name of closed_streams -> ask(Socket, 1, fields(<<"/">>)), {200, _, _} = response(Socket, 1); _ -> ok end,
         Before = length(serving()),
         Sender = spawn_link(fun() ->
             yucan_h2_client:send(Socket, First),
             [yucan_h2_client:send(Socket, [Frame(Round * 100 + N) || N <- lists:seq(1, 100)]) || Round <- lists:seq(0, 99)]
         end),
         Most = spawn_link(fun() -> most(0, 0) end),
         {Name, ?CALM} = {Name, yucan_h2_client:closed(Socket)},
         Most ! {stop, self()},
         receive {most, Processes, Bytes} -> {Name, true, true} = {Name, Processes =< Before + 101, Bytes < 4000000} after ?WAIT_MS -> error(no_count) end,
         unlink(Sender), exit(Sender, kill),
         gen_tcp:close(Socket),
         wait_for(fun() -> streams() =:= [] end)
     end || {Name, First, Frame} <- Floods],
    %% Settings are charged by their number, not by the number of frames that contain them.
    Socket = yucan_h2_client:connect(Port, yucan_h2_client:settings(lists:duplicate(50, {4, 65535}))),
    ok = yucan_h2_client:send(Socket, yucan_h2_client:frame(4, 0, 0, yucan_h2_client:settings(lists:duplicate(2000, {4, 65535})))),
    ?CALM = yucan_h2_client:closed(Socket).

%% Returns the largest number of processes for connections and streams, and the memory of the largest of them.
most(Processes, Bytes) ->
    Pids = serving(),
    Memory = [M || Pid <- Pids, {memory, M} <- [process_info(Pid, memory)]],
    receive {stop, From} -> From ! {most, Processes, Bytes}
    after 1 -> most(max(Processes, length(Pids)), lists:max([Bytes | Memory]))
    end.

%% A stream that the server has to reset also costs tokens, because a process was started for it.
%% The streams are opened twenty at a time, so that the connection is closed because the client has
%% used up its tokens, and not because of the limit on streams.
broken_rules(_) ->
    Port = start(),
    Loop = fun(Id, Flags, Others) -> yucan_h2_client:headers(Id, Flags, with_method(<<"POST">>, <<"/loop">>, Others), <<>>) end,
    Cases = [{data_behind_the_end, fun(Id) -> [Loop(Id, 1, []), yucan_h2_client:frame(0, 0, Id, <<"x">>)] end},
             {window_too_large, fun(Id) -> [Loop(Id, 1, []), yucan_h2_client:frame(8, 0, Id, <<16#7fffffff:32>>)] end},
             {more_than_its_length, fun(Id) -> [Loop(Id, 0, [{<<"content-length">>, <<"1">>}]), yucan_h2_client:frame(0, 0, Id, <<"xx">>)] end},
             {bad_trailers, fun(Id) -> [Loop(Id, 0, []), yucan_h2_client:headers(Id, 1, [{<<":path">>, <<"/">>}], <<>>)] end}],
    [{Name, {goaway, ?CALM}} = {Name, broken(yucan_h2_client:connect(Port), 1, Break)} || {Name, Break} <- Cases].

broken(Socket, First, Break) when First < 2000 ->
    Last = First + 38,
    yucan_h2_client:send(Socket, [Break(Id) || Id <- lists:seq(First, Last, 2)]),
    case response(Socket, Last) of
        {reset, _} -> broken(Socket, Last + 2, Break);
        End -> End
    end.

%% 6.10: a header block may be too large, or may take too long to arrive.
headers_without_end(_) ->
    Port = start(#{limits => #{header_ms => 1000, header_block_bytes => 10000}}),
    Long = yucan_h2_client:connect(Port),
    yucan_h2_client:send(Long, yucan_h2_client:frame(1, 0, 1, binary:copy(<<0>>, 9000))),
    yucan_h2_client:send(Long, yucan_h2_client:frame(9, 0, 1, binary:copy(<<0>>, 9000))),
    ?CALM = yucan_h2_client:closed(Long),
    Slow = yucan_h2_client:connect(Port),
    yucan_h2_client:send(Slow, yucan_h2_client:frame(1, 0, 1, <<0>>)),
    ?CALM = yucan_h2_client:closed(Slow),
    %% Only CONTINUATION frames of the block may follow.
    Other = yucan_h2_client:connect(Port),
    yucan_h2_client:send(Other, [yucan_h2_client:frame(1, 0, 1, <<0>>), yucan_h2_client:frame(6, 0, 0, <<0:64>>)]),
    1 = yucan_h2_client:closed(Other).

%% One table entry of 4,000 bytes lets a block of a few KB expand to megabytes. The response is 431, and the connection continues.
headers_too_large(_) ->
    Socket = yucan_h2_client:connect(start()),
    Field = [64, 1, "x", <<127, (3873 band 127 bor 128), (3873 bsr 7)>>, binary:copy(<<"y">>, 4000)],
    yucan_h2_client:send(Socket, yucan_h2_client:headers(1, 1, fields(<<"/">>), Field)),
    {200, _, _} = response(Socket, 1),
    [begin
         yucan_h2_client:send(Socket, yucan_h2_client:headers(Id, 1, fields(<<"/">>), binary:copy(<<190>>, 12000))),
         {431, _, _} = response(Socket, Id)
     end || Id <- lists:seq(3, 41, 2)],
    yucan_h2_client:send(Socket, yucan_h2_client:headers(43, 1, fields(<<"/">>), <<190>>)),
    {200, _, _} = response(Socket, 43).

%% A connection that sends no request, or that never sends its mandatory first frame, is closed.
idle(_) ->
    Port = start(#{limits => #{idle_ms => 2500, header_ms => 1000}}),
    Socket = yucan_h2_client:connect(Port),
    ask(Socket, 1, fields(<<"/">>)),
    {200, _, _} = response(Socket, 1),
    0 = yucan_h2_client:closed(Socket),
    Half = yucan_client:connect(Port),
    ok = gen_tcp:send(Half, <<"PRI * HTTP/2.0\r\n\r\nS">>),
    Said = yucan_client:until_closed(Half),
    <<8:24, 7, 0, 0:32, 0:32, 0:32>> = binary:part(Said, byte_size(Said), -17),
    Wrong = yucan_h2_client:raw(Port),
    yucan_h2_client:send(Wrong, <<"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n">>),
    1 = yucan_h2_client:closed(Wrong),
    Early = yucan_h2_client:raw(Port),
    yucan_h2_client:send(Early, ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", yucan_h2_client:frame(6, 0, 0, <<0:64>>)]),
    1 = yucan_h2_client:closed(Early).

pings_keep_nothing(_) ->
    Socket = yucan_h2_client:connect(start(#{limits => #{idle_ms => 1500}})),
    Sender = spawn_link(fun Ping() -> yucan_h2_client:send(Socket, yucan_h2_client:frame(6, 0, 0, <<0:64>>)), receive after 200 -> Ping() end end),
    0 = yucan_h2_client:closed(Socket),
    unlink(Sender),
    exit(Sender, kill).

%% `idle_ms' starts when the last handler returns, even if that handler went on running after its
%% response.
idle_behind_answer(_) ->
    Self = self(),
    Works = fun(Req, _) ->
        ok = yucan_answer:send({200, [], <<"OK">>}, Req),
        receive after 4000 -> Self ! has_worked end,
        sent
    end,
    Socket = yucan_h2_client:connect(start(#{limits => #{idle_ms => 1500}, middleware => [Works]})),
    ask(Socket, 1, fields(<<"/">>)),
    {200, _, <<"OK">>} = response(Socket, 1),
    0 = yucan_h2_client:closed(Socket),
    receive has_worked -> ok after 0 -> error(ended_before) end.

%% During a drain, requests in progress are answered, event streams end, and no new request is accepted.
drain(_) ->
    Self = self(),
    Port = start(#{handler => {yucan_test_handler, Self}}),
    Socket = yucan_h2_client:connect(Port),
    ask(Socket, 1, fields(<<"/forever_events">>)),
    receive {events, _} -> ok after ?WAIT_MS -> error(no_events) end,
    begin_with(Socket, 3, with_method(<<"POST">>, <<"/">>, [])),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(6, 0, 0, <<0:64>>)),
    _ = yucan_h2_client:until(Socket, 6),
    spawn_link(fun() -> Self ! {drained, yucan:drain(yucan_h2_test, ?WAIT_MS)} end),
    {7, 0, 0, <<3:32, 0:32>>} = yucan_h2_client:until(Socket, 7),
    %% A complete request that was already in transit is dropped, and does not affect other streams.
    begin_with(Socket, 5, with_method(<<"POST">>, <<"/">>, [])),
    data(Socket, 5, 0, <<"too late">>),
    yucan_h2_client:send(Socket, yucan_h2_client:headers(5, 1, [{<<"x-sum">>, <<"7">>}], <<>>)),
    data(Socket, 3, 1, <<"the last one">>),
    {200, _, <<"the last one">>} = response(Socket, 3),
    closed = response(Socket, 5),
    receive {drained, ok} -> ok after ?WAIT_MS -> error(no_drain) end.

requests(_) ->
    Socket = yucan_h2_client:connect(start(#{limits => #{requests => 2}})),
    ask(Socket, 1, fields(<<"/">>)),
    {200, _, _} = response(Socket, 1),
    [ask(Socket, Id, fields(<<"/">>)) || Id <- [3, 5]],
    {200, _, _} = response(Socket, 3),
    closed = response(Socket, 5).

%% After a reload, the next stream uses the new configuration, and the old stream still gets its response.
reload(_) ->
    Socket = yucan_h2_client:connect(start()),
    begin_with(Socket, 1, with_method(<<"POST">>, <<"/">>, [])),
    yucan_h2_client:send(Socket, yucan_h2_client:frame(6, 0, 0, <<0:64>>)),
    _ = yucan_h2_client:until(Socket, 6),
    ok = yucan:reload(yucan_h2_test, #{name => yucan_h2_test, listen => [#{port => 0}], routes => [{"/new", yucan_test_handler, none}]}),
    ask(Socket, 3, fields(<<"/old">>)),
    {404, _, _} = response(Socket, 3),
    data(Socket, 1, 1, <<"begun before">>),
    {200, _, <<"begun before">>} = response(Socket, 1).

tls(Config) ->
    Certificate = yucan_test_server:certificate("localhost", proplists:get_value(priv_dir, Config)),
    Port = start(#{listen => [#{port => 0, tls => Certificate}]}),
    {ok, Tls} = yucan_test_server:tls_connect(Port, [{alpn_advertised_protocols, [<<"http/1.1">>, <<"h2">>]}]),
    {ok, <<"h2">>} = ssl:negotiated_protocol(Tls),
    Socket = yucan_h2_client:connect(Tls),
    [begin
         ask(Socket, Id, fields(Path)),
         {200, _, Body} = response(Socket, Id)
     end || {Id, Path, Body} <- [{1, <<"/">>, <<"OK">>}, {3, <<"/scheme">>, <<"https">>}, {5, <<"/large">>, binary:copy(<<"x">>, 8 * 1024 * 1024)}]],
    %% A client that does not negotiate HTTP/2 gets HTTP/1.1, even if it sends the HTTP/2 preface, because over TLS only ALPN decides.
    {ok, Old} = yucan_test_server:tls_connect(Port, []),
    ok = ssl:send(Old, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    {ok, <<"HTTP/1.1 505", _/binary>>} = ssl:recv(Old, 0, ?WAIT_MS).

%% The preface may arrive in pieces, and frames may follow it directly.
prior_knowledge(_) ->
    Port = start(),
    Socket = yucan_h2_client:raw(Port),
    Bytes = iolist_to_binary(["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", yucan_h2_client:frame(4, 0, 0, <<>>), yucan_h2_client:headers(1, 1, fields(<<"/">>), <<>>)]),
    [begin yucan_h2_client:send(Socket, <<Byte>>), receive after 1 -> ok end end || <<Byte>> <= Bytes],
    {200, _, <<"OK">>} = response(Socket, 1),
    %% The preface is not accepted in the middle of an HTTP/1.1 connection.
    [{200, _, _}, {505, _, _}] = yucan_client:exchange(Port, ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", Bytes]).

switched_off(Config) ->
    Certificate = yucan_test_server:certificate("localhost", proplists:get_value(priv_dir, Config)),
    Port = start(#{http2 => false, listen => [#{port => 0}, #{port => 0, tls => Certificate}]}),
    [{505, _, _}] = yucan_client:exchange(Port, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    #{listen := [_, {_, Secure}]} = yucan:info(yucan_h2_test),
    {ok, Tls} = yucan_test_server:tls_connect(Secure, [{alpn_advertised_protocols, [<<"h2">>, <<"http/1.1">>]}]),
    {ok, <<"http/1.1">>} = ssl:negotiated_protocol(Tls),
    ok = ssl:close(Tls),
    {error, {bad_options, <<"http2 is yes; true or false is expected">>}} = yucan:start_link(#{http2 => yes, handler => yucan_test_server:handler()}).

events(_) ->
    {200, Headers, <<": ok\n\ndata: a\ndata: b\nid: 1\n\n", _/binary>>} = yucan_h2_client:request(start(), <<"/events">>, []),
    <<"text/event-stream">> = proplists:get_value(<<"content-type">>, Headers).

%% RFC 8441.
tunnel(Socket, Id, Path, Others) ->
    begin_with(Socket, Id, [{<<":method">>, <<"CONNECT">>}, {<<":protocol">>, <<"websocket">>}, {<<":scheme">>, <<"http">>}, {<<":authority">>, <<"localhost">>},
                            {<<":path">>, Path}, {<<"sec-websocket-version">>, <<"13">>} | Others]).

ws_frame(Opcode, Payload) -> [<<1:1, 0:3, Opcode:4, 1:1, (byte_size(Payload)):7, 0:32>>, Payload].

websocket(_) ->
    Self = self(),
    Socket = yucan_h2_client:connect(start(#{handler => {yucan_test_handler, Self}})),
    tunnel(Socket, 1, <<"/ws">>, [{<<"sec-websocket-protocol">>, <<"x, chat">>}]),
    {1, 4, 1, [{<<":status">>, <<"200">>} | Headers]} = yucan_h2_client:until(Socket, 1),
    <<"chat">> = proplists:get_value(<<"sec-websocket-protocol">>, Headers),
    [undefined = proplists:get_value(Name, Headers) || Name <- [<<"upgrade">>, <<"connection">>, <<"sec-websocket-accept">>]],
    Pid = receive {ws_open, P} -> P after ?WAIT_MS -> error(not_open) end,
    Whole = iolist_to_binary(ws_frame(1, <<"hello">>)),
    data(Socket, 1, 0, binary:part(Whole, 0, 4)),
    data(Socket, 1, 0, binary:part(Whole, 4, byte_size(Whole) - 4)),
    {0, 0, 1, <<129, 5, "hello">>} = yucan_h2_client:until(Socket, 0),
    Pid ! {say, <<"pushed">>},
    {0, 0, 1, <<129, 6, "pushed">>} = yucan_h2_client:until(Socket, 0),
    %% Sends more messages than the loop requests at once, in parallel with another request.
    [begin data(Socket, 1, 0, ws_frame(2, <<N>>)), {0, 0, 1, <<130, 1, N>>} = yucan_h2_client:until(Socket, 0) end || N <- lists:seq(1, 50)],
    ask(Socket, 3, fields(<<"/">>)),
    {200, _, <<"OK">>} = response(Socket, 3),
    data(Socket, 1, 0, ws_frame(8, <<1000:16>>)),
    {0, 0, 1, <<136, 2, 1000:16>>} = yucan_h2_client:until(Socket, 0),
    {0, 1, 1, <<>>} = yucan_h2_client:until(Socket, 0),
    receive {ws_ended, {closed, 1000, <<>>}} -> ok after ?WAIT_MS -> error(not_ended) end,
    %% Rejects a request that is not a tunnel, and a tunnel to a handler without WebSocket.
    ask(Socket, 5, fields(<<"/ws">>)),
    {400, _, _} = response(Socket, 5),
    tunnel(Socket, 7, <<"/text">>, []),
    {200, _, _} = response(Socket, 7),
    begin_with(Socket, 9, [{<<":method">>, <<"CONNECT">>}, {<<":protocol">>, <<"other">>}, {<<":scheme">>, <<"http">>}, {<<":authority">>, <<"localhost">>}, {<<":path">>, <<"/">>}]),
    {501, _, _} = response(Socket, 9),
    %% A tunnel carries only data (RFC 9113, 8.5).
    tunnel(Socket, 11, <<"/ws">>, []),
    yucan_h2_client:send(Socket, yucan_h2_client:headers(11, 1, [{<<"x-sum">>, <<"7">>}], <<>>)),
    {reset, 1} = response(Socket, 11).

%% A client sends faster than it is served. The stream's process has at most twenty messages in its mailbox; the window holds back the rest.
websocket_flood(_) ->
    Self = self(),
    Socket = yucan_h2_client:connect(start(#{handler => {yucan_test_handler, Self}})),
    tunnel(Socket, 1, <<"/ws">>, []),
    {1, 4, 1, _} = yucan_h2_client:until(Socket, 1),
    Pid = receive {ws_open, P} -> P after ?WAIT_MS -> error(not_open) end,
    Hold = fun() -> data(Socket, 1, 0, ws_frame(1, <<"hold">>)) end,
    Hold(),
    receive {held, Pid} -> ok after ?WAIT_MS -> error(not_held) end,
    Counts = [begin
                  [Hold() || _ <- lists:seq(1, 60)],
                  yucan_h2_client:send(Socket, yucan_h2_client:frame(6, 0, 0, <<0:64>>)),
                  {6, 1, 0, _} = yucan_h2_client:until(Socket, 6),
                  {message_queue_len, Count} = process_info(Pid, message_queue_len),
                  ok = yucan_test_server:serve(Pid, 10),
                  Count
              end || _ <- lists:seq(1, 6)],
    [] = [Count || Count <- Counts, Count > 20].

websocket_lost(_) ->
    Self = self(),
    Socket = yucan_h2_client:connect(start(#{handler => {yucan_test_handler, Self}})),
    [begin
         tunnel(Socket, Id, <<"/ws">>, []),
         receive {ws_open, _} -> ok after ?WAIT_MS -> error(not_open) end,
         {1, _, Id, _} = yucan_h2_client:until(Socket, 1),
         End(Id),
         receive {ws_ended, lost} -> ok after ?WAIT_MS -> error({not_ended, Id}) end
     end || {Id, End} <- [{1, fun(Id) -> data(Socket, Id, 1, <<>>) end},
                          {3, fun(Id) -> yucan_h2_client:send(Socket, yucan_h2_client:frame(3, 0, Id, <<8:32>>)) end},
                          {5, fun(_) -> gen_tcp:close(Socket) end}]],
    wait_for(fun() -> streams() =:= [] end).

%% The server closes a WebSocket whose client disconnects before the close handshake is complete. The handler's module receives the reason.
websocket_closed(_) ->
    Self = self(),
    Socket = yucan_h2_client:connect(start(#{handler => {yucan_test_handler, Self}})),
    [begin
         tunnel(Socket, Id, <<"/ws">>, []),
         Pid = receive {ws_open, P} -> P after ?WAIT_MS -> error(not_open) end,
         {1, _, Id, _} = yucan_h2_client:until(Socket, 1),
         data(Socket, Id, 0, ws_frame(1, <<"close">>)),
         {0, 0, Id, <<136, 13, 3001:16, "as you wish">>} = yucan_h2_client:until(Socket, 0),
         %% The server waits for the client's close frame.
         wait_for(fun() -> process_info(Pid, current_function) =:= {current_function, {yucan_h2_stream, call, 3}} end),
         End(Id),
         receive {ws_ended, {closed, 3001, <<"as you wish">>}} -> ok after ?WAIT_MS -> error({not_told, Id}) end
     end || {Id, End} <- [{1, fun(Id) -> yucan_h2_client:send(Socket, yucan_h2_client:frame(3, 0, Id, <<8:32>>)) end},
                          {3, fun(_) -> gen_tcp:close(Socket) end}]],
    wait_for(fun() -> streams() =:= [] end).

%% Tests against another implementation of the protocol.
curl(Config) ->
    Curl = os:find_executable("curl"),
    case Curl =/= false andalso string:find(os:cmd("curl --version"), "HTTP2") =/= nomatch of
        true -> curl(Curl, Config);
        false -> {skip, "no curl with HTTP/2"}
    end.

curl(Curl, Config) ->
    Folder = proplists:get_value(priv_dir, Config),
    Certificate = yucan_test_server:certificate("localhost", Folder),
    start(#{listen => [#{port => 0}, #{port => 0, tls => Certificate}]}),
    #{listen := [{_, Plain}, {_, Secure}]} = yucan:info(yucan_h2_test),
    File = filename:join(Folder, "upload"),
    ok = file:write_file(File, Bytes = crypto:strong_rand_bytes(3000000)),
    [begin
         Run = fun(Path, Arguments) -> os:cmd(lists:flatten(["'", Curl, "' -s -m 30 ", Version, " -w ' %{http_version}' ", Arguments, " ", Base, Path])) end,
         "OK 2" = Run("/", ""),
         " 2" = Run("/", ["-o ", File, ".back --data-binary @", File]),
         {ok, Bytes} = file:read_file(File ++ ".back"),
         "3000000 2" = Run("/count", ["-T ", File])
     end || {Version, Base} <- [{"--http2-prior-knowledge", io_lib:format("http://127.0.0.1:~b", [Plain])}, {"--http2 -k", io_lib:format("https://127.0.0.1:~b", [Secure])}]].
