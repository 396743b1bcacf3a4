%% SPDX-License-Identifier: Apache-2.0
%% @doc HTTP/1.1 and 1.0 as clients see them: connections, bodies, answers, limits, faults of clients and of handlers. Each case names
%% its rule.
-module(yucan_http_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([what_all_answers_have/1, keep_alive/1, pipelining/1, answers_together/1, answers_that_wait/1, one_connection_many_requests/1, repeated/1, http_1_0/1, head/1, no_body_statuses/1, options/1, expect/1, expect_1_0/1, later_minor_version/1, expect_ignored/1, expect_late/1,
         bodies_by_parts/1, parts_are_bounded/1, chunked_by_parts/1, chunk_widths/1, trailers/1, unread_body/1, large_unread_body/1, early_answer/1, streams/1, stream_faults/1, answers_by_steps/1, upload_backpressure/1, upload_after_upload/1,
         download_backpressure/1, half_closed/1, half_closed_body/1, handler_faults/1, response_splitting/1, slow_headers/1, slow_body/1, low_rate/1, long_body/1, idle_limit/1, idle_with_messages/1,
         request_limit/1, resets/1, too_many_connections/1, byte_by_byte/1, odd_bytes/1, crlf_before/1, events/1, events_end/1, events_alive/1, events_pipelined/1, events_first/1, events_body/1, events_left/1, leftovers/1, flood/1, flood_served/1, garbage_is_quiet/1, one_line_at_debug/1, spinning_handler/1]).

-include_lib("common_test/include/ct.hrl").

-define(HOST, " HTTP/1.1\r\nHost: localhost\r\n").
-define(WAIT_MS, (20000 * beamway_runner:slowness())).
%% Enough for a client to send its first bytes after it has connected.
-define(SHORT_MS, (2000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [what_all_answers_have, keep_alive, pipelining, answers_together, answers_that_wait, one_connection_many_requests, repeated, http_1_0, head, no_body_statuses, options, expect, expect_1_0, later_minor_version, expect_ignored, expect_late, bodies_by_parts, parts_are_bounded,
     chunked_by_parts, chunk_widths, trailers, unread_body, large_unread_body, early_answer, streams, stream_faults, answers_by_steps, upload_backpressure, upload_after_upload, download_backpressure, half_closed, half_closed_body,
     handler_faults, response_splitting, slow_headers, slow_body, low_rate, long_body, idle_limit, idle_with_messages, request_limit, resets, too_many_connections, byte_by_byte, odd_bytes,
     crlf_before, events, events_end, events_alive, events_pipelined, events_first, events_body, events_left, leftovers, flood, flood_served, garbage_is_quiet, one_line_at_debug, spinning_handler].

init_per_suite(Config) ->
    %% One limit for each server, so that on a slow machine no other one comes before the one that is looked at.
    Limits = [{port, #{}}, {slow_heads, #{header_ms => ?SHORT_MS}}, {slow_bodies, #{read_ms => 300, min_body_rate => 100000}}, {short_idle, #{idle_ms => 300}},
              {few_requests, #{requests => 3}}, {few_connections, #{connections => 20}}],
    [{Key, yucan_test_server:start(server(Key), #{limits => patient(Own)})} || {Key, Own} <- Limits] ++ [{servers, [server(Key) || {Key, _} <- Limits]} | Config].

end_per_suite(Config) -> lists:foreach(fun yucan:stop/1, ?config(servers, Config)).

server(Key) -> list_to_atom("yucan_http_" ++ atom_to_list(Key)).

%% The rest must not end what a loaded machine takes long for.
patient(Own) -> maps:merge(#{header_ms => ?WAIT_MS, read_ms => ?WAIT_MS, idle_ms => ?WAIT_MS, min_body_rate => 0}, Own).

statuses(Responses) -> [Status || {Status, _, _} <- Responses].

%% RFC 9110, 6.6.1 and 10.2.4; whoever writes the answer: for a body, a file, a stream, a switch of protocols, and for what is no request at all.
what_all_answers_have(Config) ->
    Port = ?config(port, Config),
    Switch = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
    Asked = [{200, ["GET /", ?HOST]}, {204, ["GET /nothing", ?HOST]}, {304, ["GET /same", ?HOST]}, {500, ["GET /crash", ?HOST]}, {200, ["GET /stream", ?HOST]},
             {200, ["GET /stream HTTP/1.0\r\n"]}, {101, ["GET /ws", ?HOST, Switch]}, {400, "nonsense\r\n"}, {431, ["GET /", ?HOST, "A: ", lists:duplicate(9000, $a), "\r\n"]}],
    Heads = [begin
                 Socket = yucan_client:connect(Port),
                 ok = gen_tcp:send(Socket, [Request, "\r\n"]),
                 {ok, Head} = head_of(Socket, <<>>),
                 gen_tcp:close(Socket),
                 {integer_to_list(Status), Head}
             end || {Status, Request} <- Asked],
    [] = [{Status, Head} || {Status, Head} <- Heads, Said <- ["^HTTP/1.1 " ++ Status ++ " ", "\r\ndate: [^\r]+ GMT\r\n", "\r\nserver: yucan\r\n"],
                            re:run(Head, Said, [{capture, none}]) =:= nomatch].

head_of(Socket, Read) ->
    case binary:split(Read, <<"\r\n\r\n">>) of
        [Head, _] -> {ok, <<Head/binary, "\r\n">>};
        [_] ->
            case gen_tcp:recv(Socket, 0, ?WAIT_MS) of
                {ok, More} -> head_of(Socket, <<Read/binary, More/binary>>);
                {error, Reason} -> {error, Reason, Read}
            end
    end.

%% RFC 9112, 9.3.
keep_alive(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    [begin
         ok = gen_tcp:send(Socket, ["GET /", integer_to_list(N), ?HOST, "\r\n"]),
         {200, Headers, <<"OK">>} = yucan_client:one(Socket),
         undefined = proplists:get_value(<<"connection">>, Headers)
     end || N <- lists:seq(1, 20)],
    ok = gen_tcp:send(Socket, ["GET /", ?HOST, "Connection: close\r\n\r\n"]),
    {200, Last, _} = yucan_client:one(Socket),
    <<"close">> = proplists:get_value(<<"connection">>, Last),
    <<>> = yucan_client:until_closed(Socket),
    %% Who has said close in one line does not take it back in another.
    [{Minor, Lines, [200]} = {Minor, Lines, statuses(yucan_client:exchange(?config(port, Config), ["GET / HTTP/1.", Minor, "\r\nHost: a\r\n", Lines, "\r\nGET /", ?HOST, "\r\n"]))}
     || Minor <- ["0", "1"], Lines <- ["Connection: close\r\nConnection: keep-alive\r\n", "Connection: close\r\nConnection: x, keep-alive\r\n",
                                       "Connection: keep-alive\r\nConnection: close\r\n"]].

%% RFC 9112, 9.3.2: answers in the order of the requests, bodies between them.
pipelining(Config) ->
    Requests = [["POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", io_lib:format("~5..0b", [N])] || N <- lists:seq(1, 500)],
    Expected = [iolist_to_binary(io_lib:format("~5..0b", [N])) || N <- lists:seq(1, 500)],
    Expected = [Body || {200, _, Body} <- yucan_client:exchange(?config(port, Config), Requests)].

%% The answers to requests that came in one packet go out in one.
answers_together(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    Ask = fun(Count) -> ok = gen_tcp:send(Socket, lists:duplicate(Count, ["GET /", ?HOST, "\r\n"])), answers(Count, Socket) end,
    [200] = Ask(1),
    Before = segments(Socket),
    Many = lists:duplicate(16, 200),
    Many = Ask(16),
    true = segments(Socket) - Before < 8.

answers(Count, Socket) -> answers(Count, Socket, <<>>).

answers(Count, Socket, Bytes) ->
    {ok, Data} = gen_tcp:recv(Socket, 0, ?WAIT_MS),
    All = <<Bytes/binary, Data/binary>>,
    case yucan_client:parse(All, <<"GET">>) of
        Responses when length(Responses) =:= Count -> statuses(Responses);
        _ -> answers(Count, Socket, All)
    end.

%% Those with data that have come: TCP_INFO of Linux.
segments(Socket) ->
    {ok, [{raw, 6, 11, <<_:152/binary, Segments:32/native, _/binary>>}]} = inet:getopts(Socket, [{raw, 6, 11, 160}]),
    Segments.

%% An answer does not wait for a request that is answered late, or never, or has not come as a whole.
answers_that_wait(Config) ->
    [begin
         Socket = yucan_client:connect(?config(port, Config)),
         ok = gen_tcp:send(Socket, ["GET /", ?HOST, "\r\nGET /nothing", ?HOST, "\r\n", Next]),
         [200, 204] = answers(2, Socket),
         gen_tcp:close(Socket)
     end || Next <- [["GET /loop", ?HOST, "\r\n"], "GET /", ["POST /", ?HOST, "Content-Length: 5\r\n\r\n"], ["POST /slow_read", ?HOST, "Content-Length: 5\r\n\r\n123"]]].

%% More requests than messages that the socket may send without being asked again.
one_connection_many_requests(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    [begin
         ok = gen_tcp:send(Socket, ["GET /", ?HOST, "\r\n"]),
         {200, _, _} = yucan_client:one(Socket)
     end || _ <- lists:seq(1, 1000)],
    gen_tcp:close(Socket).

%% The same bytes are the same request, and have the same answer; what differs in a byte, in its body or in how it comes is told apart. Nothing of them
%% is held for a client that has become idle.
repeated(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    Ask = fun(Request) -> ok = gen_tcp:send(Socket, Request), {Status, Headers, Body} = yucan_client:one(Socket), {Status, proplists:get_value(<<"content-type">>, Headers), Body} end,
    Get = fun(Path) -> ["GET ", Path, ?HOST, "\r\n"] end,
    Here = {200, undefined, <<"localhost">>},
    [Here, Here, {304, undefined, <<>>}, Here, {200, <<"text/plain">>, <<"OK">>}, {200, <<"text/plain">>, <<"OK">>}, Here] =
        [Ask(Get(Path)) || Path <- ["/host", "/host", "/same", "/host", "/", "/", "/host"]],
    Post = fun(Lines) -> ["POST /", ?HOST, Lines, "Content-Length: 3\r\n\r\n"] end,
    [{200, _, <<"abc">>}, {200, _, <<"def">>}] = [Ask([Post(""), Body]) || Body <- ["abc", "def"]],
    [begin
         ok = gen_tcp:send(Socket, Post("Expect: 100-continue\r\n")),
         {ok, <<"HTTP/1.1 100 Continue\r\n\r\n">>} = gen_tcp:recv(Socket, 25, ?WAIT_MS),
         {200, _, Body} = Ask(Body)
     end || Body <- [<<"abc">>, <<"def">>]],
    Long = Get(["/", lists:duplicate(5000, $a)]),
    [{200, _, <<"OK">>}, {200, _, <<"OK">>}] = [Ask(Long), Ask(Long)],
    {Pid, _} = server_side(Socket),
    wait_for(fun() -> process_info(Pid, current_function) =:= {current_function, {erlang, hibernate, 3}} end),
    {binary, Held} = process_info(Pid, binary),
    [] = [Size || {_, Size, _} <- Held, Size >= 5000],
    {200, _, <<"OK">>} = Ask(Long).

%% RFC 9112, 9.3: closes, unless the client asks for more.
http_1_0(Config) ->
    Port = ?config(port, Config),
    [{200, Headers, <<"OK">>}] = yucan_client:exchange(Port, "GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n"),
    <<"close">> = proplists:get_value(<<"connection">>, Headers),
    Kept = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    [{200, Keep, _}, {200, _, _}] = yucan_client:exchange(Port, [Kept, Kept]),
    <<"keep-alive">> = proplists:get_value(<<"connection">>, Keep),
    %% No chunks for those who do not know them.
    [{200, Stream, Body}] = yucan_client:exchange(Port, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
    undefined = proplists:get_value(<<"transfer-encoding">>, Stream),
    <<"close">> = proplists:get_value(<<"connection">>, Stream),
    Body = << <<(integer_to_binary(N))/binary>> || N <- lists:seq(1, 100) >>.

%% RFC 9110, 9.3.2: the headers of a GET, no body, and the connection goes on.
head(Config) ->
    Port = ?config(port, Config),
    [{200, Headers, <<>>}, {200, _, <<"OK">>}] = yucan_client:exchange(Port, ["HEAD /", ?HOST, "\r\nGET /", ?HOST, "\r\n"], <<"HEAD">>),
    <<"2">> = proplists:get_value(<<"content-length">>, Headers),
    [{200, Stream, <<>>}] = yucan_client:exchange(Port, ["HEAD /stream", ?HOST, "\r\n"], <<"HEAD">>),
    <<"chunked">> = proplists:get_value(<<"transfer-encoding">>, Stream).

%% RFC 9110, 6.4.1 and 8.6.
no_body_statuses(Config) ->
    [{204, Nothing, <<>>}, {304, Same, <<>>}, {200, _, <<"OK">>}] =
        yucan_client:exchange(?config(port, Config), ["GET /nothing", ?HOST, "\r\nGET /same", ?HOST, "\r\nGET /", ?HOST, "\r\n"]),
    [undefined, undefined] = [proplists:get_value(N, H) || N <- [<<"content-length">>], H <- [Nothing, Same]],
    %% Whatever a handler gives as their body, over both protocols.
    File = filename:join(?config(priv_dir, Config), "unseen"),
    ok = file:write_file(File, binary:copy(<<"x">>, 100000)),
    Bodies = #{<<"/file">> => {file, File}, <<"/stream">> => {stream, fun(Write) -> Write(<<"unseen">>) end}},
    Port = yucan_test_server:start(yucan_no_body, #{middleware => [fun(Req, _) -> {binary_to_integer(yucan_req:query(Req)), [], maps:get(yucan_req:path(Req), Bodies)} end]}),
    [begin
         Target = <<Path/binary, "?", (integer_to_binary(Status))/binary>>,
         [{Status, Headers, <<>>}, {Status, _, <<>>}] = yucan_client:exchange(Port, lists:duplicate(2, [Method, " ", Target, ?HOST, "\r\n"])),
         [] = [Name || {Name, _} <- Headers, lists:member(Name, [<<"content-length">>, <<"transfer-encoding">>])],
         {Status, _, <<>>} = yucan_h2_client:request(Port, Target, [])
     end || Method <- ["GET", "HEAD"], Path <- maps:keys(Bodies), Status <- [204, 304]],
    ok = yucan:stop(yucan_no_body).

%% RFC 9110, 9.3.7.
options(Config) ->
    [{204, Headers, <<>>}] = yucan_client:exchange(?config(port, Config), ["OPTIONS *", ?HOST, "\r\n"]),
    true = is_binary(proplists:get_value(<<"allow">>, Headers)).

%% RFC 9110, 10.1.1: asked for when the handler reads.
expect(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, ["POST /", ?HOST, "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"]),
    {ok, <<"HTTP/1.1 100 Continue\r\n\r\n">>} = gen_tcp:recv(Socket, 25, ?WAIT_MS),
    ok = gen_tcp:send(Socket, "hello"),
    {200, _, <<"hello">>} = yucan_client:one(Socket),
    [{417, _, _}] = yucan_client:exchange(?config(port, Config), ["POST /", ?HOST, "Content-Length: 5\r\nExpect: miracles\r\n\r\nhello"]).

%% RFC 9110, 10.1.1: ignored in HTTP/1.0, whose clients would take it for the answer.
expect_1_0(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, "POST / HTTP/1.0\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"),
    {error, timeout} = gen_tcp:recv(Socket, 0, 300),
    ok = gen_tcp:send(Socket, "hello"),
    {200, _, <<"hello">>} = yucan_client:one(Socket).

%% RFC 9110, 2.5: read as the latest version that is known; also if the line comes byte by byte.
later_minor_version(Config) ->
    Port = ?config(port, Config),
    [200, 200] = statuses(yucan_client:exchange(Port, ["GET / HTTP/1.2\r\nHost: a\r\n\r\n", "GET / HTTP/1.9\r\nHost: a\r\n\r\n"])),
    [400] = statuses(yucan_client:exchange(Port, "GET / HTTP/1.2\r\n\r\n")),
    [505] = statuses(yucan_client:exchange(Port, "GET / HTTP/2.0\r\nHost: a\r\n\r\n")),
    Socket = yucan_client:connect(Port),
    [ok = gen_tcp:send(Socket, [C]) || C <- "GET / HTTP/1.2\r\nHost: a\r\n\r\n"],
    {200, _, <<"OK">>} = yucan_client:one(Socket).

%% No 100 for a body that nobody wants; and the connection ends, as nobody can know whether the body comes.
expect_ignored(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, ["POST /ignore", ?HOST, "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"]),
    {200, Headers, <<"ignored">>} = yucan_client:one(Socket),
    <<"close">> = proplists:get_value(<<"connection">>, Headers),
    gen_tcp:shutdown(Socket, write),
    <<>> = yucan_client:until_closed(Socket).

%% No 100 either once a part of the answer is out: it would stand in its middle.
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

%% A handler that asks for so many bytes gets no more, whatever the framing.
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

%% RFC 9112, 7.1: chunks of all sizes, cut anywhere.
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

%% RFC 9112, 7.1: sizes of a fixed width, with zeros before them; a value beyond all disks is refused whatever its width.
chunk_widths(Config) ->
    Ask = fun(Size) -> yucan_client:exchange(?config(port, Config), ["POST /", ?HOST, "Transfer-Encoding: chunked\r\n\r\n", Size, "\r\nhello\r\n", string:copies("0", length(Size)), "\r\n\r\n"]) end,
    [[{200, _, <<"hello">>}] = Ask(string:right("5", Width, $0)) || Width <- [1, 8, 15, 16, 17, 64]],
    [[400] = statuses(Ask(Size)) || Size <- ["1000000000000000", "FFFFFFFFFFFFFFFF", "10000000000000005", string:right("5", 257, $0)]].

%% RFC 9110, 6.5.
trailers(Config) ->
    [{200, _, <<"[{<<\"x-sum\">>,<<\"1\">>}]">>}] =
        yucan_client:exchange(?config(port, Config), ["POST /trailers", ?HOST, "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n"]).

%% RFC 9112, 9.3: what the handler left must not be taken for a request.
unread_body(Config) ->
    [{200, _, <<"ignored">>}, {200, _, <<"OK">>}] =
        yucan_client:exchange(?config(port, Config), ["POST /ignore", ?HOST, "Content-Length: 20\r\n\r\nGET /smuggled HTTP/1", "GET /", ?HOST, "\r\n"]),
    Chunked = ["POST /ignore", ?HOST, "Transfer-Encoding: chunked\r\n\r\n14\r\nGET /smuggled HTTP/1\r\n"],
    [{200, _, <<"ignored">>}, {200, _, <<"OK">>}] =
        yucan_client:exchange(?config(port, Config), [Chunked, "0\r\nX-Sum: 1\r\n\r\n", "GET /", ?HOST, "\r\n"]),
    %% Behind a chunk or a trailer that is none nothing is a request.
    [[{200, _, <<"ignored">>}] = yucan_client:exchange(?config(port, Config), [Chunked, Broken, "\r\n\r\n", "GET /", ?HOST, "\r\n"])
     || Broken <- ["zz", "1\r\nabc", "0\r\nno trailer"]].

%% Too much to drain: the answer still arrives (RFC 9112, 9.6), then the end.
large_unread_body(Config) ->
    [{200, Headers, <<"ignored">>}] =
        yucan_client:exchange(?config(port, Config), ["POST /ignore", ?HOST, "Content-Length: 100000000000\r\n\r\n", binary:copy(<<"x">>, 500000), "GET /", ?HOST, "\r\n"]),
    <<"close">> = proplists:get_value(<<"connection">>, Headers).

%% A client that sends all of a large body before it reads, as some proxies do, finds the early answer whole: with a length, in chunks, over TLS. The
%% connection serves the next request.
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

%% RFC 9112, 8: the client must be able to see that something is missing.
stream_faults(Config) ->
    Port = ?config(port, Config),
    {malformed, Short} = yucan_client:exchange(Port, ["GET /stream_short", ?HOST, "\r\nGET /", ?HOST, "\r\n"]),
    {_, _} = binary:match(Short, <<"01234">>),
    nomatch = binary:match(Short, <<"OK\r\n", "content-type">>),
    {malformed, Crash} = yucan_client:exchange(Port, ["GET /stream_crash", ?HOST, "\r\nGET /", ?HOST, "\r\n"]),
    {_, _} = binary:match(Crash, <<"begun">>),
    [{500, _, _}] = yucan_client:exchange(Port, ["GET /stream_crash_at_once", ?HOST, "\r\nGET /", ?HOST, "\r\n"]).

%% A handler that does not read yet keeps the client from sending.
upload_backpressure(Config) ->
    Body = binary:copy(<<"x">>, 1000000),
    [begin
         Socket = yucan_client:connect(?config(port, Config)),
         ok = gen_tcp:send(Socket, ["POST ", Path, ?HOST, "Content-Length: 30000000\r\n\r\n"]),
         [ok = gen_tcp:send(Socket, Body) || _ <- lists:seq(1, 30)],
         {200, _, <<"30000000">>} = yucan_client:one(Socket),
         gen_tcp:close(Socket)
     end || Path <- ["/count", "/slow_read"]].

%% What was read is not held until the next request. Of the next body one message comes, that of the head: the rest is read by recv.
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
    %% The other one is that the socket is silent.
    2 = messages(Pid),
    true = erlang:resume_process(Pid),
    [<<"300000">>, <<"OK">>] = [Ask(Request) || Request <- [Half, ["GET /", ?HOST, "\r\n"]]].

messages(Pid) ->
    {message_queue_len, Count} = process_info(Pid, message_queue_len),
    Count.

server_side(Socket) ->
    {ok, Name} = inet:sockname(Socket),
    [Port] = [Port || Port <- erlang:ports(), erlang:port_info(Port, name) =:= {name, "tcp_inet"}, inet:peername(Port) =:= {ok, Name}],
    {connected, Pid} = erlang:port_info(Port, connected),
    {Pid, Port}.

%% A client that does not read: the stream's writes block, with no more than buffers underway; when it goes the writer hears of it.
download_backpressure(Config) ->
    Table = ets:new(?FUNCTION_NAME, [named_table, public]),
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, ["GET /endless?", atom_to_list(?FUNCTION_NAME), ?HOST, "\r\n"]),
    Written = settled(Table, -1, 0),
    true = Written < 64000000,
    gen_tcp:close(Socket),
    wait_for(fun() -> ets:lookup(Table, ended) =/= [] end),
    ets:delete(Table).

%% The same figure ten times in a row.
settled(_, Written, 10) when Written > 0 -> Written;
settled(Table, Last, Same) ->
    receive after 50 -> ok end,
    case ets:lookup(Table, written) of
        [{written, Last}] -> settled(Table, Last, Same + 1);
        [{written, Now}] -> settled(Table, Now, 0);
        [] -> settled(Table, Last, 0)
    end.

wait_for(Condition) -> true = beamway_peer:wait_until(Condition, 60000).

%% A client that has closed its side still gets its answers (RFC 9112, 9.6), the last of them whole.
half_closed(Config) ->
    [200, 200, 200] = statuses(yucan_client:exchange(?config(port, Config), [["GET ", P, ?HOST, "\r\n"] || P <- ["/", "/large", "/slow_read"]])),
    %% Half a body and the end of it.
    [] = yucan_client:exchange(?config(port, Config), ["POST /", ?HOST, "Content-Length: 50\r\n\r\nhalf"]).

%% The word of that end may stand behind a body that came as messages: the connection ends all the same.
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

%% 500, the connection ends, others are untouched.
%% yucan_answer, over both protocols.
answers_by_steps(Config) ->
    Port = ?config(port, Config),
    Get = fun(Path) -> ["GET /steps/", Path, ?HOST, "\r\n"] end,
    [{200, _, <<"whole">>}, {103, [{<<"link">>, <<"</s>">>}], <<>>}, {200, _, <<"onetwo">>}, {200, _, <<"whole">>}] =
        yucan_client:exchange(Port, [Get("whole"), Get("open"), Get("whole")]),
    [{200, _, <<>>}] = yucan_client:exchange(Port, ["HEAD /steps/whole", ?HOST, "\r\n"], <<"HEAD">>),
    %% What was sent stays as it is, and nothing looks like the end of what was not.
    [{200, _, <<"once">>}] = yucan_client:exchange(Port, Get("twice")),
    {malformed, Cut} = yucan_client:exchange(Port, [Get("crash"), Get("whole")]),
    [_, <<"5\r\nbegun\r\n">>] = binary:split(Cut, <<"\r\n\r\n">>),
    {500, _, _} = yucan_client:get(Port, "/steps/none"),
    [{200, _, Body} = yucan_h2_client:request(Port, <<"/steps/", Path/binary>>, [])
     || {Path, Body} <- [{<<"whole">>, <<"whole">>}, {<<"twice">>, <<"once">>}]],
    {reset, _} = yucan_h2_client:request(Port, <<"/steps/crash">>, []),
    {500, _, _} = yucan_h2_client:request(Port, <<"/steps/none">>, []).

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

%% RFC 9110, 5.5: what would end a header never gets out.
response_splitting(Config) ->
    [begin
         [{500, Headers, _}] = yucan_client:exchange(?config(port, Config), ["GET ", Path, ?HOST, "\r\n"]),
         undefined = proplists:get_value(<<"set-cookie">>, Headers)
     end || Path <- ["/bad_header", "/bad_name", "/bad_nul"]].

%% RFC 9110, 15.5.9. The client sends a byte now and then.
slow_headers(Config) ->
    Patient = patient_client(Config, "GET / HTTP/1.1\r\n"),
    Socket = yucan_client:connect(?config(slow_heads, Config)),
    Dripper = spawn_link(fun() -> drip(Socket, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") end),
    <<"HTTP/1.1 408 ", _/binary>> = yucan_client:until_closed(Socket),
    stop(Dripper),
    %% Nothing sent at all: nothing said.
    <<>> = yucan_client:until_closed(yucan_client:connect(?config(slow_heads, Config))),
    is_waited_for(Patient).

%% The same of a server with more patience, begun before: no default is what ends the others.
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

%% Never silent for long, and yet too slow.
low_rate(Config) ->
    Request = ["POST /", ?HOST, "Content-Length: 1000\r\n\r\n"],
    Patient = patient_client(Config, Request),
    Socket = yucan_client:connect(?config(slow_bodies, Config)),
    ok = gen_tcp:send(Socket, Request),
    Dripper = spawn_link(fun() -> drip(Socket, "a") end),
    <<"HTTP/1.1 408 ", _/binary>> = yucan_client:until_closed(Socket),
    stop(Dripper),
    is_waited_for(Patient).

%% Longer than the silence that is allowed, but never silent.
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

%% What a handler left behind tells nothing of the client: before the process sleeps, while it does, and if it never does.
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

%% A reset at each point of a request and of its answer leaves nothing behind.
resets(Config) ->
    Port = ?config(port, Config),
    Request = iolist_to_binary(["POST /large", ?HOST, "Content-Length: 20\r\n\r\n01234567890123456789"]),
    Before = open_connections(),
    [begin
         Socket = yucan_client:connect(Port),
         ok = gen_tcp:send(Socket, binary:part(Request, 0, Length)),
         %% Closing with linger 0 is a reset.
         ok = inet:setopts(Socket, [{linger, {true, 0}}]),
         gen_tcp:close(Socket)
     end || Length <- lists:seq(0, byte_size(Request)), _ <- [1, 2]],
    wait_for(fun() -> open_connections() =< Before end),
    {200, _, <<"OK">>} = yucan_client:get(Port, "/").

open_connections() ->
    #{metrics := #{open_connections := Open}} = yucan:info(server(port)),
    Open.

%% RFC 9110, 15.6.4, and room again when others go.
too_many_connections(Config) ->
    Port = ?config(few_connections, Config),
    Served = [yucan_client:connect(Port) || _ <- lists:seq(1, 20)],
    [begin ok = gen_tcp:send(S, ["GET /", ?HOST, "\r\n"]), {200, _, _} = yucan_client:one(S) end || S <- Served],
    %% These twenty are open until their client goes; whoever comes now is one too many.
    [{match, _} = re:run(yucan_client:until_closed(yucan_client:connect(Port)), "^HTTP/1.1 503 ") || _ <- lists:seq(1, 10)],
    lists:foreach(fun gen_tcp:close/1, Served),
    wait_for(fun() -> statuses(yucan_client:exchange(Port, ["GET /", ?HOST, "\r\n"])) =:= [200] end).

byte_by_byte(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    Request = iolist_to_binary(["POST /x?y", ?HOST, "Content-Length: 3\r\n\r\nabc"]),
    [begin
         [ok = gen_tcp:send(Socket, <<Byte>>) || <<Byte>> <= Request],
         {200, _, <<"abc">>} = yucan_client:one(Socket)
     end || _ <- [1, 2]].

%% Values are bytes: those that are no text must not end in a crash.
odd_bytes(Config) ->
    Names = ["Connection", "Cookie", "Accept-Encoding", "If-None-Match", "X-Forwarded-For", "Range", "Upgrade", "If-Modified-Since", "Referer", "Content-Type"],
    [[200] = statuses(yucan_client:exchange(?config(port, Config), ["GET /", ?HOST, Name, ": ", Bytes, "\r\n\r\n"])) || Name <- Names, Bytes <- [<<255, 254>>, <<"a,", 200, " , ", 150>>]],
    [400] = statuses(yucan_client:exchange(?config(port, Config), ["POST /", ?HOST, "Transfer-Encoding: ", 255, ", chunked\r\n\r\n"])).

%% RFC 9112, 2.2: one empty line before a request is forgiven, once.
crlf_before(Config) ->
    Port = ?config(port, Config),
    [200, 200] = statuses(yucan_client:exchange(Port, ["\r\nGET /", ?HOST, "\r\n", "\r\nGET /", ?HOST, "\r\n"])),
    [400] = statuses(yucan_client:exchange(Port, ["\r\n\r\nGET /", ?HOST, "\r\n"])),
    [400] = statuses(yucan_client:exchange(Port, ["\nGET /", ?HOST, "\r\n"])).

events(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, ["GET /events", ?HOST, "Connection: close\r\n\r\n"]),
    [{200, Headers, Body}] = yucan_client:parse(yucan_client:until_closed(Socket), <<"GET">>),
    <<"text/event-stream">> = proplists:get_value(<<"content-type">>, Headers),
    <<": ok\n\ndata: a\ndata: b\nid: 1\n\ndata: a\ndata: b\nid: 2\n\ndata: a\ndata: b\nid: 3\n\n">> = Body.

%% The process of a stream of events ends with its client.
events_end(_) ->
    Socket = yucan_client:connect(yucan_test_server:start(yucan_events_end, #{handler => {yucan_test_handler, self()}})),
    ok = gen_tcp:send(Socket, ["GET /forever_events", ?HOST, "\r\n"]),
    Stream = receive {events, Pid} -> Pid after ?WAIT_MS -> error(no_stream) end,
    Monitor = monitor(process, Stream),
    Stream ! <<"news">>,
    %% The end of the client's side is enough.
    gen_tcp:shutdown(Socket, write),
    receive {'DOWN', Monitor, process, _, normal} -> ok after ?WAIT_MS -> error(stream_stays) end,
    yucan:stop(yucan_events_end).

%% Messages that send nothing keep no comment back: a proxy would end the connection, and nobody would hear of a client that is gone.
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

%% What a client sends beside events stays in its order: here a part of it comes before the message that ends them, and a part behind it.
events_pipelined(_) ->
    Socket = yucan_client:connect(yucan_test_server:start(yucan_events_pipelined, #{handler => {yucan_test_handler, self()}})),
    %% From the second request on data come as messages.
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

%% The same for the first request of a connection, and for one with a body. The part of the next one that came with it was read by recv; the rest comes before
%% the stream's end, or behind it.
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

%% RFC 9112, 9.3: the body of a request that events answer is no request, also where it came as a message.
events_body(_) ->
    Socket = yucan_client:connect(yucan_test_server:start(yucan_events_body, #{handler => {yucan_test_handler, self()}})),
    ok = gen_tcp:send(Socket, ["POST /forever_events", ?HOST, "Content-Length: 4\r\n\r\n"]),
    Stream = receive {events, Pid} -> Pid after ?WAIT_MS -> error(no_stream) end,
    true = erlang:suspend_process(Stream),
    ok = gen_tcp:send(Socket, "body"),
    %% The other one is that the socket is silent.
    wait_for(fun() -> messages(Stream) =:= 2 end),
    Stream ! stop,
    ok = gen_tcp:send(Socket, ["GET /text", ?HOST, "Connection: close\r\n\r\n"]),
    true = erlang:resume_process(Stream),
    [200, 200] = statuses(yucan_client:parse(yucan_client:until_closed(Socket), <<"GET">>)),
    ok = yucan:stop(yucan_events_body).

%% A client that leaves beside events has left, whoever reads the socket next.
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

%% Messages that a handler left in the mailbox do not disturb the next request.
leftovers(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, ["GET /events", ?HOST, "\r\nGET /", ?HOST, "Connection: close\r\n\r\n"]),
    [200, 200] = statuses(yucan_client:parse(yucan_client:until_closed(Socket), <<"GET">>)).

%% A client that sends without a pause fills the mailbox to the same bound each time.
flood(_) ->
    Socket = yucan_client:connect(yucan_test_server:start(yucan_flood, #{handler => {yucan_test_handler, self()}})),
    %% From the second request on data come as messages.
    Pid = lists:last([begin
                          ok = gen_tcp:send(Socket, ["GET /self", ?HOST, "\r\n"]),
                          {200, _, _} = yucan_client:one(Socket),
                          receive {serves, P} -> P after ?WAIT_MS -> error(not_served) end
                      end || _ <- [1, 2]]),
    Send = fun() -> gen_tcp:send(Socket, ["GET /ignore", ?HOST, "\r\n"]) end,
    %% A hundred, and the word that the socket is silent.
    [] = [Count || Count <- [yucan_test_server:flooded(Pid, Send) || _ <- [1, 2, 3]], Count > 101],
    ok = yucan:stop(yucan_flood).

%% The same while it is served, of a client whose next requests are there each time that the socket is armed.
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
    %% A hundred, and three words of the socket's silence.
    [] = [Count || Count <- Counts, Count > 103],
    ok = yucan:stop(yucan_flood).

%% Bad input is no event: nothing above debug level.
garbage_is_quiet(Config) ->
    ok = logger:set_module_level(yucan_events, info),
    ok = logger:add_handler(?MODULE, yucan_test_logger, #{level => info, config => #{pid => self()}}),
    rand:seed(exsss, {1, 2, 3}),
    [yucan_client:exchange(?config(port, Config), rand:bytes(rand:uniform(500))) || _ <- lists:seq(1, 100)],
    ok = logger:remove_handler(?MODULE),
    ok = logger:unset_module_level(yucan_events),
    receive {logged, Event} -> error({logged, Event}) after 0 -> ok end.

%% One line at debug level for each request that is refused, and none for what just ends.
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
    [true = lists:prefix("yucan yucan_http_port: refused " ++ integer_to_list(Status), Line) || {Status, Line} <- lists:zip(Refused, Lines)],
    receive {logged, More} -> error({logged, More}) after 0 -> ok end.

%% A handler that never ends and takes all the processor it gets: others are answered meanwhile, and the server's end is its end.
spinning_handler(_) ->
    Port = yucan_test_server:start(yucan_spinning),
    Socket = yucan_client:connect(Port),
    ok = gen_tcp:send(Socket, ["GET /spin", ?HOST, "\r\n"]),
    wait_for(fun() -> [P || P <- processes(), process_info(P, current_function) =:= {current_function, {yucan_test_handler, spin, 1}}] =/= [] end),
    [{200, _, <<"OK">>} = yucan_client:get(Port, "/") || _ <- lists:seq(1, 20)],
    ok = yucan:stop(yucan_spinning),
    <<>> = yucan_client:until_closed(Socket).
