%% SPDX-License-Identifier: Apache-2.0
%% @doc Bodies of requests and responses over HTTP/1.1 and 1.0: 100 Continue, framing, unread bodies, back pressure, streams, half-closed connections,
%% and event streams, which are endless bodies. Each case cites its rule.
-module(yucan_bodies_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([expect/1, expect_1_0/1, expect_ignored/1, expect_late/1, bodies_by_parts/1, parts_are_bounded/1, chunked_by_parts/1, chunk_widths/1, trailers/1, unread_body/1, large_unread_body/1, early_answer/1,
         streams/1, stream_faults/1, answers_by_steps/1, steps_after_head/1, upload_backpressure/1, upload_after_upload/1, download_backpressure/1, half_closed/1, half_closed_body/1,
         events/1, events_end/1, events_alive/1, events_pipelined/1, events_first/1, events_body/1, events_left/1, leftovers/1]).

-import(yucan_client, [statuses/1]).
-import(yucan_test_server, [patient/1, server_side/1]).

-include_lib("common_test/include/ct.hrl").

-define(HOST, " HTTP/1.1\r\nHost: localhost\r\n").
-define(WAIT_MS, (20000 * beamway_runner:slowness())).
%% The server's own limits are longer, so a connection that closes within this time was not closed
%% by one of them.
-define(SHORT_MS, (2000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [expect, expect_1_0, expect_ignored, expect_late, bodies_by_parts, parts_are_bounded, chunked_by_parts, chunk_widths, trailers, unread_body, large_unread_body, early_answer,
     streams, stream_faults, answers_by_steps, steps_after_head, upload_backpressure, upload_after_upload, download_backpressure, half_closed, half_closed_body,
     events, events_end, events_alive, events_pipelined, events_first, events_body, events_left, leftovers].

init_per_suite(Config) -> [{port, yucan_test_server:start(yucan_bodies, #{limits => patient(#{})})} | Config].

end_per_suite(_) -> yucan_test_server:stop_all().

%% RFC 9110, 10.1.1: 100 Continue is sent when the handler starts to read the body.
expect(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, ["POST /", ?HOST, "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"]),
    {ok, <<"HTTP/1.1 100 Continue\r\n\r\n">>} = gen_tcp:recv(Socket, 25, ?WAIT_MS),
    ok = gen_tcp:send(Socket, "hello"),
    {200, _, <<"hello">>} = yucan_client:one(Socket),
    [{417, _, _}] = yucan_client:exchange(?config(port, Config), ["POST /", ?HOST, "Content-Length: 5\r\nExpect: miracles\r\n\r\nhello"]).

%% RFC 9110, 10.1.1: an HTTP/1.0 request's Expect header is ignored, because the client would
%% mistake 100 Continue for the response.
expect_1_0(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, "POST / HTTP/1.0\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"),
    {error, timeout} = gen_tcp:recv(Socket, 0, 300),
    ok = gen_tcp:send(Socket, "hello"),
    {200, _, <<"hello">>} = yucan_client:one(Socket).

%% No 100 Continue is sent for a body that no handler reads. The connection is closed, because the server cannot know whether the body follows.
expect_ignored(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, ["POST /ignore", ?HOST, "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"]),
    {200, Headers, <<"ignored">>} = yucan_client:one(Socket),
    <<"close">> = proplists:get_value(<<"connection">>, Headers),
    gen_tcp:shutdown(Socket, write),
    <<>> = yucan_client:until_closed(Socket).

%% Once part of the response has been sent, 100 Continue is not sent either, because it would end up in the middle of that response.
expect_late(_) ->
    Read = fun(Req) -> {ok, Body} = yucan_req:body(Req), Body end,
    Answer = fun(<<"/stream">>, Req) -> {200, [], {stream, fun(Write) -> ok = Write(<<"one">>), Write(Read(Req)) end}};
                (<<"/steps">>, Req) -> ok = yucan_answer:open(200, [], Req), ok = yucan_answer:write(<<"one">>, Req), ok = yucan_answer:write(Read(Req), Req), sent
             end,
    Port = yucan_test_server:start(yucan_expect_late, #{middleware => [fun(Req, _) -> Answer(yucan_req:path(Req), Req) end]}),
    [begin
         Socket = yucan_client:connect(Port),
         ok = gen_tcp:send(Socket, ["POST ", Path, ?HOST, "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"]),
         Begun = yucan_yaws_site:receive_until(Socket, <<"\r\none\r\n">>),
         ok = gen_tcp:send(Socket, "two"),
         [{200, _, <<"onetwo">>}] = yucan_client:parse(<<Begun/binary, (yucan_client:until_closed(Socket))/binary>>, <<"POST">>)
     end || Path <- ["/stream", "/steps"]],
    ok = yucan:stop(yucan_expect_late).

bodies_by_parts(Config) ->
    Body = crypto:strong_rand_bytes(300000),
    Socket = yucan_client:connect(?config(port, Config)),
    [begin
         ok = gen_tcp:send(Socket, ["POST /", ?HOST, "Content-Length: 300000\r\n\r\n"]),
         send_parts(Socket, Body, 7777),
         {200, _, Body} = yucan_client:one(Socket)
     end || _ <- lists:seq(1, 3)].

%% A handler never gets more bytes than it requests, whatever the framing.
parts_are_bounded(Config) ->
    Body = binary:copy(<<"x">>, 5000),
    [begin
         [{200, _, Text}] = yucan_client:exchange(?config(port, Config), ["POST /parts", ?HOST, Framed]),
         Sizes = [binary_to_integer(Size) || Size <- binary:split(Text, [<<"[">>, <<",">>, <<"]">>], [global, trim_all])],
         {5000, []} = {lists:sum(Sizes), [Size || Size <- Sizes, Size > 1000]},
         [{200, _, <<"all: ", Body/binary>>}] = yucan_client:exchange(?config(port, Config), ["POST /all_parts", ?HOST, Framed])
     end || Framed <- [["Content-Length: 5000\r\n\r\n", Body], ["Transfer-Encoding: chunked\r\n\r\n1388\r\n", Body, "\r\n0\r\n\r\n"]]].

send_parts(Socket, Data, Size) when byte_size(Data) > Size ->
    <<Part:Size/binary, Rest/binary>> = Data,
    ok = gen_tcp:send(Socket, Part),
    send_parts(Socket, Rest, Size);
send_parts(Socket, Data, _) -> ok = gen_tcp:send(Socket, Data).

%% RFC 9112, 7.1: chunks may have any size and may be split anywhere.
chunked_by_parts(Config) ->
    Parts = [crypto:strong_rand_bytes(Size) || Size <- [1, 2, 15, 16, 17, 255, 256, 4095, 4096, 70000]],
    Coded = iolist_to_binary([[[integer_to_list(byte_size(P), 16), ";n=v;q=\"a b\"\r\n", P, "\r\n"] || P <- Parts], "0\r\n\r\n"]),
    Body = iolist_to_binary(Parts),
    Socket = yucan_client:connect(?config(port, Config)),
    [begin
         ok = gen_tcp:send(Socket, ["POST /", ?HOST, "Transfer-Encoding: chunked\r\n\r\n"]),
         send_parts(Socket, Coded, Size),
         {200, _, Body} = yucan_client:one(Socket)
     end || Size <- [41, 1000, 100000]].

%% RFC 9112, 7.1: chunk sizes may have a fixed width, with leading zeros. A size that exceeds that of any disk is rejected, whatever its width.
chunk_widths(Config) ->
    Ask = fun(Size) -> yucan_client:exchange(?config(port, Config), ["POST /", ?HOST, "Transfer-Encoding: chunked\r\n\r\n", Size, "\r\nhello\r\n", string:copies("0", length(Size)), "\r\n\r\n"]) end,
    [[{200, _, <<"hello">>}] = Ask(string:right("5", Width, $0)) || Width <- [1, 8, 15, 16, 17, 64]],
    [[400] = statuses(Ask(Size)) || Size <- ["1000000000000000", "FFFFFFFFFFFFFFFF", "10000000000000005", string:right("5", 257, $0)]].

%% RFC 9110, 6.5.
trailers(Config) ->
    [{200, _, <<"[{<<\"x-sum\">>,<<\"1\">>}]">>}] =
        yucan_client:exchange(?config(port, Config), ["POST /trailers", ?HOST, "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n"]).

%% RFC 9112, 9.3: the part that the handler did not read must not be mistaken for a request.
unread_body(Config) ->
    [{200, _, <<"ignored">>}, {200, _, <<"OK">>}] =
        yucan_client:exchange(?config(port, Config), ["POST /ignore", ?HOST, "Content-Length: 20\r\n\r\nGET /smuggled HTTP/1", "GET /", ?HOST, "\r\n"]),
    Chunked = ["POST /ignore", ?HOST, "Transfer-Encoding: chunked\r\n\r\n14\r\nGET /smuggled HTTP/1\r\n"],
    [{200, _, <<"ignored">>}, {200, _, <<"OK">>}] =
        yucan_client:exchange(?config(port, Config), [Chunked, "0\r\nX-Sum: 1\r\n\r\n", "GET /", ?HOST, "\r\n"]),
    %% After an invalid chunk or trailer, nothing is treated as a request.
    [[{200, _, <<"ignored">>}] = yucan_client:exchange(?config(port, Config), [Chunked, Broken, "\r\n\r\n", "GET /", ?HOST, "\r\n"])
     || Broken <- ["zz", "1\r\nabc", "0\r\nno trailer"]].

%% The unread body is too large to drain. The response still arrives (RFC 9112, 9.6), and then the connection is closed.
large_unread_body(Config) ->
    [{200, Headers, <<"ignored">>}] =
        yucan_client:exchange(?config(port, Config), ["POST /ignore", ?HOST, "Content-Length: 100000000000\r\n\r\n", binary:copy(<<"x">>, 500000), "GET /", ?HOST, "\r\n"]),
    <<"close">> = proplists:get_value(<<"connection">>, Headers).

%% Like some proxies, this client sends all of a large body before it reads. It still gets the complete early response, whether the body has a length
%% or is chunked, and also over TLS. The connection then serves the next request.
early_answer(Config) ->
    Part = binary:copy(<<"x">>, 100000),
    Parts = lists:duplicate(200, Part),
    Chunks = [yucan_chunk:encode(P) || P <- Parts],
    Post = ["POST /ignore", ?HOST],
    Plain = yucan_client:connect(?config(port, Config)),
    {200, _, <<"ignored">>} = early(Plain, gen_tcp, [Post, "Content-Length: 20000000\r\n\r\n"], Parts),
    Coded = yucan_client:connect(?config(port, Config)),
    {200, _, <<"ignored">>} = early(Coded, gen_tcp, [Post, "Transfer-Encoding: chunked\r\n\r\n"], Chunks ++ ["0\r\nX-Sum: 1\r\n\r\n"]),
    Tls = yucan_test_server:certificate("localhost", ?config(priv_dir, Config)),
    {ok, Secure} = yucan_test_server:tls_connect(yucan_test_server:start(yucan_early, #{listen => [#{port => 0, tls => Tls}]}), []),
    {200, _, <<"ignored">>} = early(Secure, ssl, [Post, "Content-Length: 20000000\r\n\r\n"], Parts),
    ok = yucan:stop(yucan_early).

early(Socket, Module, Head, Parts) ->
    [ok = Module:send(Socket, Data) || Data <- [Head | Parts]],
    {ok, Bytes} = Module:recv(Socket, 0, ?WAIT_MS),
    [{_, Headers, _} = Response] = yucan_client:parse(Bytes, <<"POST">>),
    undefined = proplists:get_value(<<"connection">>, Headers),
    ok = Module:send(Socket, ["GET /", ?HOST, "\r\n"]),
    {ok, Next} = Module:recv(Socket, 0, ?WAIT_MS),
    [{200, _, <<"OK">>}] = yucan_client:parse(Next, <<"GET">>),
    ok = Module:close(Socket),
    Response.

streams(Config) ->
    Numbers = << <<(integer_to_binary(N))/binary>> || N <- lists:seq(1, 100) >>,
    [{200, Chunked, Numbers}, {200, Known, <<"0123456789">>}, {200, _, Large}] =
        yucan_client:exchange(?config(port, Config), [["GET ", Path, ?HOST, "\r\n"] || Path <- ["/stream", "/stream_length", "/large"]]),
    <<"chunked">> = proplists:get_value(<<"transfer-encoding">>, Chunked),
    <<"10">> = proplists:get_value(<<"content-length">>, Known),
    8388608 = byte_size(Large).

%% RFC 9112, 8: the client must be able to tell that the response is incomplete.
stream_faults(Config) ->
    Port = ?config(port, Config),
    {malformed, Short} = yucan_client:exchange(Port, ["GET /stream_short", ?HOST, "\r\nGET /", ?HOST, "\r\n"]),
    {_, _} = binary:match(Short, <<"01234">>),
    nomatch = binary:match(Short, <<"OK\r\n", "content-type">>),
    {malformed, Crash} = yucan_client:exchange(Port, ["GET /stream_crash", ?HOST, "\r\nGET /", ?HOST, "\r\n"]),
    {_, _} = binary:match(Crash, <<"begun">>),
    [{500, _, _}] = yucan_client:exchange(Port, ["GET /stream_crash_at_once", ?HOST, "\r\nGET /", ?HOST, "\r\n"]),
    %% An informational response is not allowed in the middle of another response.
    Informs = fun(Req, _) -> {200, [], {stream, fun(Write) -> ok = Write(<<"begun">>), yucan_answer:inform(103, [], Req) end}} end,
    Late = yucan_client:connect(yucan_test_server:start(yucan_inform_late, #{middleware => [Informs]})),
    ok = gen_tcp:send(Late, ["GET /", ?HOST, "\r\n"]),
    [_, <<"5\r\nbegun\r\n">>] = binary:split(yucan_client:until_closed(Late), <<"\r\n\r\n">>),
    ok = yucan:stop(yucan_inform_late).

%% Tests yucan_answer over HTTP/1.1 and HTTP/2.
answers_by_steps(Config) ->
    Port = ?config(port, Config),
    Get = fun(Path) -> ["GET /steps/", Path, ?HOST, "\r\n"] end,
    [{200, _, <<"whole">>}, {103, [{<<"link">>, <<"</s>">>}], <<>>}, {200, _, <<"onetwo">>}, {200, _, <<"whole">>}] =
        yucan_client:exchange(Port, [Get("whole"), Get("open"), Get("whole")]),
    [{200, _, <<>>}] = yucan_client:exchange(Port, ["HEAD /steps/whole", ?HOST, "\r\n"], <<"HEAD">>),
    %% Parts that have been sent do not change, and an incomplete response never appears to be complete.
    [{200, _, <<"once">>}] = yucan_client:exchange(Port, Get("twice")),
    [{200, _, <<"once">>}, {200, _, <<"whole">>}] = yucan_client:exchange(Port, [Get("returned"), Get("whole")]),
    {malformed, Left} = yucan_client:exchange(Port, [Get("left"), Get("whole")]),
    [_, <<"5\r\nbegun\r\n">>] = binary:split(Left, <<"\r\n\r\n">>),
    [{500, _, _}] = yucan_client:exchange(Port, [Get("within"), Get("whole")]),
    {malformed, Cut} = yucan_client:exchange(Port, [Get("crash"), Get("whole")]),
    [_, <<"5\r\nbegun\r\n">>] = binary:split(Cut, <<"\r\n\r\n">>),
    {500, _, _} = yucan_client:get(Port, "/steps/none"),
    [{200, _, Body} = yucan_h2_client:request(Port, <<"/steps/", Path/binary>>, [])
     || {Path, Body} <- [{<<"whole">>, <<"whole">>}, {<<"twice">>, <<"once">>}, {<<"returned">>, <<"once">>}]],
    {reset, _} = yucan_h2_client:request(Port, <<"/steps/crash">>, []),
    {500, _, _} = yucan_h2_client:request(Port, <<"/steps/none">>, []).

%% A handler that writes endlessly is notified when its client disconnects, even if nothing is sent because the request is HEAD.
steps_after_head(_) ->
    Test = self(),
    Endless = fun(Req, _) -> ok = yucan_answer:open(200, [], Req), Test ! {ended, written_for_ever(Req)}, sent end,
    Socket = yucan_client:connect(yucan_test_server:start(yucan_steps_after_head, #{middleware => [Endless]})),
    ok = gen_tcp:send(Socket, ["HEAD /", ?HOST, "\r\n"]),
    {ok, <<"HTTP/1.1 200 OK\r\n", _/binary>>} = gen_tcp:recv(Socket, 0, ?WAIT_MS),
    ok = gen_tcp:close(Socket),
    receive {ended, Result} -> {error, closed} = Result after ?WAIT_MS -> error(writes_on) end,
    ok = yucan:stop(yucan_steps_after_head).

written_for_ever(Req) ->
    case yucan_answer:write(<<"x">>, Req) of
        ok -> receive after 10 -> written_for_ever(Req) end;
        Error -> Error
    end.

%% As long as a handler does not read, its client's sends block.
upload_backpressure(Config) ->
    Body = binary:copy(<<"x">>, 1000000),
    [begin
         Socket = yucan_client:connect(?config(port, Config)),
         ok = gen_tcp:send(Socket, ["POST ", Path, ?HOST, "Content-Length: 30000000\r\n\r\n"]),
         [ok = gen_tcp:send(Socket, Body) || _ <- lists:seq(1, 30)],
         {200, _, <<"30000000">>} = yucan_client:one(Socket),
         gen_tcp:close(Socket)
     end || Path <- ["/count", "/slow_read"]].

%% Data that has been read is not retained until the next request. If the next request has a body,
%% only the part that arrived together with the head is delivered as a message; the rest is read
%% with recv.
upload_after_upload(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    Head = ["POST /size", ?HOST, "Content-Length: 300000\r\n\r\n"],
    Half = binary:copy(<<"x">>, 150000),
    Ask = fun(Request) -> ok = gen_tcp:send(Socket, Request), {200, _, Answer} = yucan_client:one(Socket), Answer end,
    <<"300000">> = Ask([Head, Half, Half]),
    {Pid, Port} = server_side(Socket),
    Idle = [{current_function, Function} || Function <- [{yucan_idle, message, 3}, {erlang, hibernate, 3}]],
    true = beamway_peer:wait_until(fun() -> lists:member(process_info(Pid, current_function), Idle) end, ?WAIT_MS),
    {binary, Held} = process_info(Pid, binary),
    [] = [Size || {_, Size, _} <- Held, Size >= 300000],
    true = erlang:suspend_process(Pid),
    ok = gen_tcp:send(Socket, [Head, Half]),
    true = beamway_peer:wait_until(fun() -> inet:getopts(Port, [active]) =:= {ok, [{active, false}]} orelse messages(Pid) > 2 end, ?WAIT_MS),
    %% The second message reports that the socket has become passive.
    2 = messages(Pid),
    true = erlang:resume_process(Pid),
    [<<"300000">>, <<"OK">>] = [Ask(Request) || Request <- [Half, ["GET /", ?HOST, "\r\n"]]].

messages(Pid) ->
    {message_queue_len, Count} = process_info(Pid, message_queue_len),
    Count.

%% If a client does not read, the stream's writes block, and no more data is in transit than fits
%% into the buffers. When the client disconnects, the writer is notified.
download_backpressure(Config) ->
    Table = ets:new(?FUNCTION_NAME, [named_table, public]),
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, ["GET /endless?", atom_to_list(?FUNCTION_NAME), ?HOST, "\r\n"]),
    Written = settled(Table, -1, 0),
    true = Written < 64000000,
    gen_tcp:close(Socket),
    wait_for(fun() -> ets:lookup(Table, ended) =/= [] end),
    ets:delete(Table).

%% Waits until the value has been the same ten times in a row.
settled(_, Written, 10) when Written > 0 -> Written;
settled(Table, Last, Same) ->
    receive after 50 -> ok end,
    case ets:lookup(Table, written) of
        [{written, Last}] -> settled(Table, Last, Same + 1);
        [{written, Now}] -> settled(Table, Now, 0);
        [] -> settled(Table, Last, 0)
    end.

wait_for(Condition) -> true = beamway_peer:wait_until(Condition, 60000).

%% A client that has closed its sending side still gets its responses (RFC 9112, 9.6), and the last one is complete.
half_closed(Config) ->
    [200, 200, 200] = statuses(yucan_client:exchange(?config(port, Config), [["GET ", P, ?HOST, "\r\n"] || P <- ["/", "/large", "/slow_read"]])),
    %% The client sends half a body and then closes its sending side.
    [] = yucan_client:exchange(?config(port, Config), ["POST /", ?HOST, "Content-Length: 50\r\n\r\nhalf"]).

%% The message that reports that the client has closed its side may arrive after a body that arrived
%% as messages. The connection is closed nevertheless.
half_closed_body(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, ["GET /", ?HOST, "\r\n"]),
    {200, _, _} = yucan_client:one(Socket),
    {Pid, _} = server_side(Socket),
    Monitor = monitor(process, Pid),
    true = erlang:suspend_process(Pid),
    ok = gen_tcp:send(Socket, ["POST /", ?HOST, "Content-Length: 5\r\n\r\nhe"]),
    wait_for(fun() -> messages(Pid) =:= 1 end),
    ok = gen_tcp:send(Socket, "llo"),
    ok = gen_tcp:shutdown(Socket, write),
    wait_for(fun() -> messages(Pid) =:= 3 end),
    true = erlang:resume_process(Pid),
    {200, _, <<"hello">>} = yucan_client:one(Socket),
    receive {'DOWN', Monitor, process, _, normal} -> ok after ?SHORT_MS -> error(connection_stays) end.

events(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, ["GET /events", ?HOST, "Connection: close\r\n\r\n"]),
    [{200, Headers, Body}] = yucan_client:parse(yucan_client:until_closed(Socket), <<"GET">>),
    <<"text/event-stream">> = proplists:get_value(<<"content-type">>, Headers),
    <<": ok\n\ndata: a\ndata: b\nid: 1\n\ndata: a\ndata: b\nid: 2\n\ndata: a\ndata: b\nid: 3\n\n">> = Body.

%% The process of an event stream exits when its client disconnects.
events_end(_) ->
    Socket = yucan_client:connect(yucan_test_server:start(yucan_events_end, #{handler => {yucan_test_handler, self()}})),
    ok = gen_tcp:send(Socket, ["GET /forever_events", ?HOST, "\r\n"]),
    Stream = receive {events, Pid} -> Pid after ?WAIT_MS -> error(no_stream) end,
    Monitor = monitor(process, Stream),
    Stream ! <<"news">>,
    %% It is enough for the client to close its sending side.
    gen_tcp:shutdown(Socket, write),
    receive {'DOWN', Monitor, process, _, normal} -> ok after ?WAIT_MS -> error(stream_stays) end,
    yucan:stop(yucan_events_end).

%% Messages that cause no output do not postpone the keep-alive comment, because otherwise a proxy
%% would close the connection, or a disconnected client would go unnoticed.
events_alive(_) ->
    Quiet = fun(start, S) -> {ok, _} = timer:send_interval(500, tick), {ok, S}; ({info, tick}, S) -> {ok, S} end,
    Port = yucan_test_server:start(yucan_events_alive, #{middleware => [fun(Req, _) -> yucan_sse:response(Req, [], Quiet, none) end]}),
    Socket = yucan_client:connect(Port),
    ok = gen_tcp:send(Socket, ["GET /", ?HOST, "\r\n"]),
    has_come(<<": \n\n">>, Socket, <<>>),
    ok = gen_tcp:close(Socket),
    ok = yucan:stop(yucan_events_alive).

has_come(Bytes, Socket, Read) ->
    case binary:match(Read, Bytes) of
        nomatch ->
            {ok, Data} = gen_tcp:recv(Socket, 0, ?WAIT_MS),
            has_come(Bytes, Socket, <<Read/binary, Data/binary>>);
        _ -> ok
    end.

%% Data that a client sends during a stream of events stays in order. Here one part arrives before the message that ends the events, and another part
%% arrives after it.
events_pipelined(_) ->
    Socket = yucan_client:connect(yucan_test_server:start(yucan_events_pipelined, #{handler => {yucan_test_handler, self()}})),
    %% From the second request on, data arrives as messages.
    ok = gen_tcp:send(Socket, ["GET /", ?HOST, "\r\n"]),
    {200, _, _} = yucan_client:one(Socket),
    ok = gen_tcp:send(Socket, ["GET /forever_events", ?HOST, "\r\n"]),
    Stream = receive {events, Pid} -> Pid after ?WAIT_MS -> error(no_stream) end,
    true = erlang:suspend_process(Stream),
    Queued = fun(Count) -> wait_for(fun() -> process_info(Stream, message_queue_len) =:= {message_queue_len, Count} end) end,
    ok = gen_tcp:send(Socket, "GET /text HTT"),
    Queued(1),
    Stream ! stop,
    ok = gen_tcp:send(Socket, "P/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
    Queued(3),
    true = erlang:resume_process(Stream),
    [200, 200] = statuses(yucan_client:parse(yucan_client:until_closed(Socket), <<"GET">>)),
    ok = yucan:stop(yucan_events_pipelined).

%% Like the case above, but for the first request of a connection and for a request with a body. The part of the next request that arrived together
%% with this request was read with recv; the rest arrives before or after the end of the stream.
events_first(_) ->
    Port = yucan_test_server:start(yucan_events_first, #{handler => {yucan_test_handler, self()}}),
    [begin
         Socket = yucan_client:connect(Port),
         ok = gen_tcp:send(Socket, [Request, "GET /text HTT"]),
         Stream = receive {events, Pid} -> Pid after ?WAIT_MS -> error(no_stream) end,
         Rest = fun() -> ok = gen_tcp:send(Socket, "P/1.1\r\nHost: a\r\nConnection: close\r\n\r\n") end,
         Begun = case When of
             before ->
                 true = erlang:suspend_process(Stream),
                 Rest(),
                 wait_for(fun() -> messages(Stream) =:= 2 end),
                 Stream ! stop,
                 true = erlang:resume_process(Stream),
                 <<>>;
             behind ->
                 Stream ! stop,
                 Events = yucan_yaws_site:receive_until(Socket, <<"0\r\n\r\n">>),
                 Rest(),
                 Events
         end,
         {Request, When, [200, 200]} = {Request, When, statuses(yucan_client:parse(<<Begun/binary, (yucan_client:until_closed(Socket))/binary>>, <<"GET">>))}
     end || Request <- [["GET /forever_events", ?HOST, "\r\n"], ["POST /forever_events", ?HOST, "Content-Length: 0\r\n\r\n"]], When <- [before, behind]],
    ok = yucan:stop(yucan_events_first).

%% RFC 9112, 9.3: if a request is answered with events, its body is not mistaken for a request, even
%% if the body arrived as a message.
events_body(_) ->
    Socket = yucan_client:connect(yucan_test_server:start(yucan_events_body, #{handler => {yucan_test_handler, self()}})),
    ok = gen_tcp:send(Socket, ["POST /forever_events", ?HOST, "Content-Length: 4\r\n\r\n"]),
    Stream = receive {events, Pid} -> Pid after ?WAIT_MS -> error(no_stream) end,
    true = erlang:suspend_process(Stream),
    ok = gen_tcp:send(Socket, "body"),
    %% The second message reports that the socket has become passive.
    wait_for(fun() -> messages(Stream) =:= 2 end),
    Stream ! stop,
    ok = gen_tcp:send(Socket, ["GET /text", ?HOST, "Connection: close\r\n\r\n"]),
    true = erlang:resume_process(Stream),
    [200, 200] = statuses(yucan_client:parse(yucan_client:until_closed(Socket), <<"GET">>)),
    ok = yucan:stop(yucan_events_body).

%% If a client disconnects during an event stream, the code that reads from the socket after the
%% stream is also notified.
events_left(_) ->
    Port = yucan_test_server:start(yucan_events_left, #{handler => {yucan_test_handler, self()}, limits => patient(#{})}),
    Socket = yucan_client:connect(Port),
    ok = gen_tcp:send(Socket, ["GET /forever_events", ?HOST, "\r\n"]),
    Stream = receive {events, Pid} -> Pid after ?WAIT_MS -> error(no_stream) end,
    Monitor = monitor(process, Stream),
    true = erlang:suspend_process(Stream),
    Stream ! stop,
    ok = gen_tcp:shutdown(Socket, write),
    wait_for(fun() -> messages(Stream) =:= 2 end),
    true = erlang:resume_process(Stream),
    receive {'DOWN', Monitor, process, _, normal} -> ok after ?SHORT_MS -> error(connection_stays) end,
    ok = yucan:stop(yucan_events_left).

%% Messages that a handler left in the mailbox do not affect the next request.
leftovers(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, ["GET /events", ?HOST, "\r\nGET /", ?HOST, "Connection: close\r\n\r\n"]),
    [200, 200] = statuses(yucan_client:parse(yucan_client:until_closed(Socket), <<"GET">>)).
