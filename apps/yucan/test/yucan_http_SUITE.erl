%% SPDX-License-Identifier: Apache-2.0
%% @doc HTTP/1.1 and 1.0 from a client's point of view: connections, requests and responses. yucan_bodies_SUITE covers bodies, and yucan_faults_SUITE
%% covers limits and failures. Each case cites its rule.
-module(yucan_http_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([what_all_answers_have/1, raw_query/1, dictionary/1, keep_alive/1, pipelining/1, answers_together/1, answers_that_wait/1, one_connection_many_requests/1, repeated/1, http_1_0/1, head/1, no_body_statuses/1, options/1, later_minor_version/1,
         response_splitting/1, byte_by_byte/1, odd_bytes/1, crlf_before/1]).

-import(yucan_client, [statuses/1]).
-import(yucan_test_server, [patient/1, server_side/1]).

-include_lib("common_test/include/ct.hrl").

-define(HOST, " HTTP/1.1\r\nHost: localhost\r\n").
-define(WAIT_MS, (20000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [what_all_answers_have, raw_query, dictionary, keep_alive, pipelining, answers_together, answers_that_wait, one_connection_many_requests, repeated, http_1_0, head, no_body_statuses, options, later_minor_version, response_splitting,
     byte_by_byte, odd_bytes, crlf_before].

init_per_suite(Config) -> [{port, yucan_test_server:start(yucan_http, #{limits => patient(#{})})} | Config].

end_per_suite(_) -> yucan_test_server:stop_all().

%% State that a handler stores in its process is erased before the next request, which may come from a different user.
dictionary(Config) ->
    Get = fun(Name) -> ["GET /remember/", Name, ?HOST, "\r\n"] end,
    Post = ["POST /remember/carol", ?HOST, "Content-Length: 4\r\n\r\nbody"],
    [{200, _, <<"[undefined,undefined]">>} = Answer || Answer <- yucan_client:exchange(?config(port, Config), [Get("alice"), Get("alice"), Post, Get("bob")])],
    Socket = yucan_client:connect(?config(port, Config)),
    [begin
         ok = gen_tcp:send(Socket, Get(Name)),
         {200, _, <<"[undefined,undefined]">>} = yucan_client:one(Socket)
     end || Name <- ["alice", "bob"]].

%% Some programs do not escape what a user has typed. The server escapes it as a browser would have done, because handlers, logs and other servers
%% expect a valid target.
raw_query(_) ->
    Shown = fun(Req, _) -> {200, [], [yucan_req:target(Req), " ", yucan_req:path(Req), " ", yucan_req:query(Req)]} end,
    Port = yucan_test_server:start(yucan_raw_query, #{middleware => [Shown]}),
    {200, _, <<"/a?q=%C3%BC&b?%FF=%7e /a q=%C3%BC&b?%FF=%7e">>} = yucan_client:get(Port, <<"/a?q=", 195, 188, "&b?", 255, "=%7e">>),
    {200, _, <<"/a?q=%C3%BC /a q=%C3%BC">>} = yucan_h2_client:request(Port, <<"/a?q=", 195, 188>>, []),
    [400 = element(1, yucan_client:get(Port, Target)) || Target <- [<<"/", 195, 188>>, <<"/", 195, 188, "?q">>, <<"/a?q=", 127>>, <<"/a?q=", 1>>, <<"/a?q=#", 195>>]],
    ok = yucan:stop(yucan_raw_query).

%% RFC 9110, 6.6.1 and 10.2.4: every response has these headers, whichever module writes it. The
%% responses tested here have a body, no body or a stream, switch protocols, report a crash, or
%% answer an invalid request.
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
    %% Once a client has sent `close' in one line, a later line does not revoke it.
    [{Minor, Lines, [200]} = {Minor, Lines, statuses(yucan_client:exchange(?config(port, Config), ["GET / HTTP/1.", Minor, "\r\nHost: a\r\n", Lines, "\r\nGET /", ?HOST, "\r\n"]))}
     || Minor <- ["0", "1"], Lines <- ["Connection: close\r\nConnection: keep-alive\r\n", "Connection: close\r\nConnection: x, keep-alive\r\n",
                                       "Connection: keep-alive\r\nConnection: close\r\n"]].

%% RFC 9112, 9.3.2: responses are sent in the order of the requests, also when the requests have bodies.
pipelining(Config) ->
    Requests = [["POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", io_lib:format("~5..0b", [N])] || N <- lists:seq(1, 500)],
    Expected = [iolist_to_binary(io_lib:format("~5..0b", [N])) || N <- lists:seq(1, 500)],
    Expected = [Body || {200, _, Body} <- yucan_client:exchange(?config(port, Config), Requests)].

%% The responses to requests that arrived in a single packet are also sent in a single packet.
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

%% Returns the number of data segments that have arrived, from Linux's TCP_INFO.
segments(Socket) ->
    {ok, [{raw, 6, 11, <<_:152/binary, Segments:32/native, _/binary>>}]} = inet:getopts(Socket, [{raw, 6, 11, 160}]),
    Segments.

%% A response is not delayed by a later request that is incomplete, or whose own response comes late or never.
answers_that_wait(Config) ->
    [begin
         Socket = yucan_client:connect(?config(port, Config)),
         ok = gen_tcp:send(Socket, ["GET /", ?HOST, "\r\nGET /nothing", ?HOST, "\r\n", Next]),
         [200, 204] = answers(2, Socket),
         gen_tcp:close(Socket)
     end || Next <- [["GET /loop", ?HOST, "\r\n"], "GET /", ["POST /", ?HOST, "Content-Length: 5\r\n\r\n"], ["POST /slow_read", ?HOST, "Content-Length: 5\r\n\r\n123"]]].

%% The client sends more requests than the number of messages that the socket delivers before it has to be armed again.
one_connection_many_requests(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    [begin
         ok = gen_tcp:send(Socket, ["GET /", ?HOST, "\r\n"]),
         {200, _, _} = yucan_client:one(Socket)
     end || _ <- lists:seq(1, 1000)],
    gen_tcp:close(Socket).

%% Identical bytes are treated as the same request and get the same response. Requests that differ
%% in a single byte, in their body or in the way they arrive are distinguished. No request is kept
%% in memory while its client is idle.
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
    true = beamway_peer:wait_until(fun() -> process_info(Pid, current_function) =:= {current_function, {erlang, hibernate, 3}} end, 60000),
    {binary, Held} = process_info(Pid, binary),
    [] = [Size || {_, Size, _} <- Held, Size >= 5000],
    {200, _, <<"OK">>} = Ask(Long).

%% RFC 9112, 9.3: the server closes the connection, unless the client requests keep-alive.
http_1_0(Config) ->
    Port = ?config(port, Config),
    [{200, Headers, <<"OK">>}] = yucan_client:exchange(Port, "GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n"),
    <<"close">> = proplists:get_value(<<"connection">>, Headers),
    Kept = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    [{200, Keep, _}, {200, _, _}] = yucan_client:exchange(Port, [Kept, Kept]),
    <<"keep-alive">> = proplists:get_value(<<"connection">>, Keep),
    %% A client that does not support chunked coding gets no chunks.
    [{200, Stream, Body}] = yucan_client:exchange(Port, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
    undefined = proplists:get_value(<<"transfer-encoding">>, Stream),
    <<"close">> = proplists:get_value(<<"connection">>, Stream),
    Body = << <<(integer_to_binary(N))/binary>> || N <- lists:seq(1, 100) >>.

%% RFC 9110, 9.3.2: the response has the same headers as for GET but no body, and the connection stays open.
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
    %% The body that a handler returns makes no difference, over HTTP/1.1 or HTTP/2.
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

%% RFC 9110, 2.5: the version is treated as the latest one that the server knows, even if the request line arrives byte by byte.
later_minor_version(Config) ->
    Port = ?config(port, Config),
    [200, 200] = statuses(yucan_client:exchange(Port, ["GET / HTTP/1.2\r\nHost: a\r\n\r\n", "GET / HTTP/1.9\r\nHost: a\r\n\r\n"])),
    [400] = statuses(yucan_client:exchange(Port, "GET / HTTP/1.2\r\n\r\n")),
    [505] = statuses(yucan_client:exchange(Port, "GET / HTTP/2.0\r\nHost: a\r\n\r\n")),
    Socket = yucan_client:connect(Port),
    [ok = gen_tcp:send(Socket, [C]) || C <- "GET / HTTP/1.2\r\nHost: a\r\n\r\n"],
    {200, _, <<"OK">>} = yucan_client:one(Socket).

%% RFC 9110, 5.5: characters that would end a header line are never sent.
response_splitting(Config) ->
    [begin
         [{500, Headers, _}] = yucan_client:exchange(?config(port, Config), ["GET ", Path, ?HOST, "\r\n"]),
         undefined = proplists:get_value(<<"set-cookie">>, Headers)
     end || Path <- ["/bad_header", "/bad_name", "/bad_nul"]].

byte_by_byte(Config) ->
    Socket = yucan_client:connect(?config(port, Config)),
    Request = iolist_to_binary(["POST /x?y", ?HOST, "Content-Length: 3\r\n\r\nabc"]),
    [begin
         [ok = gen_tcp:send(Socket, <<Byte>>) || <<Byte>> <= Request],
         {200, _, <<"abc">>} = yucan_client:one(Socket)
     end || _ <- [1, 2]].

%% Header values are bytes. Values that are not valid text must not cause a crash.
odd_bytes(Config) ->
    Names = ["Connection", "Cookie", "Accept-Encoding", "If-None-Match", "X-Forwarded-For", "Range", "Upgrade", "If-Modified-Since", "Referer", "Content-Type"],
    [[200] = statuses(yucan_client:exchange(?config(port, Config), ["GET /", ?HOST, Name, ": ", Bytes, "\r\n\r\n"])) || Name <- Names, Bytes <- [<<255, 254>>, <<"a,", 200, " , ", 150>>]],
    [400] = statuses(yucan_client:exchange(?config(port, Config), ["POST /", ?HOST, "Transfer-Encoding: ", 255, ", chunked\r\n\r\n"])).

%% RFC 9112, 2.2: a single empty line before a request is accepted.
crlf_before(Config) ->
    Port = ?config(port, Config),
    [200, 200] = statuses(yucan_client:exchange(Port, ["\r\nGET /", ?HOST, "\r\n", "\r\nGET /", ?HOST, "\r\n"])),
    [400] = statuses(yucan_client:exchange(Port, ["\r\n\r\nGET /", ?HOST, "\r\n"])),
    [400] = statuses(yucan_client:exchange(Port, ["\nGET /", ?HOST, "\r\n"])).
