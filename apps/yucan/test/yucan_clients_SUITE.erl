%% SPDX-License-Identifier: Apache-2.0
%% @doc Client identification: trusted proxies, request IDs, and limits per client address.
-module(yucan_clients_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([proxy_protocol/1, forwarded_for/1, forwarded/1, request_ids/1, address_connections/1, address_requests/1]).

-import(yucan_test_server, [handler/0, tls_one/2, wait_for/1]).

-include_lib("common_test/include/ct.hrl").

-define(GET(Path), ["GET ", Path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"]).
-define(WAIT_MS, (20000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [proxy_protocol, forwarded_for, forwarded, request_ids, address_connections, address_requests].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

end_per_testcase(_, _) -> yucan_test_server:stop_all().

start(Options) -> yucan_test_server:start(yucan_server_test, Options).

proxy_protocol(Config) ->
    Dir = ?config(priv_dir, Config),
    Self = self(),
    Port = start(#{listen => [#{port => 0, proxy_protocol => true}, #{port => 0, proxy_protocol => true, tls => yucan_test_server:certificate("localhost", Dir)}],
                   access_log => {function, fun(#{status := Status, peer := Peer}) -> Self ! {logged, Status, Peer} end},
                   on_event => fun(Name, _, Metadata) -> Self ! {Name, maps:get(peer, Metadata, none)} end}),
    Ask = fun(Header) -> yucan_client:exchange(Port, [Header, ?GET("/peer")]) end,
    V2 = fun(Command, Family, Data) -> [<<13, 10, 13, 10, 0, 13, 10, "QUIT", 10, 2:4, Command:4, Family, (iolist_size(Data)):16>>, Data] end,
    [{200, _, <<"{{10,1,2,3},5555}">>}] = Ask("PROXY TCP4 10.1.2.3 10.9.9.9 5555 80\r\n"),
    [{200, _, <<"{{8193,0,0,0,0,0,0,1},1}">>}] = Ask("PROXY TCP6 2001::1 2001::2 1 80\r\n"),
    [{200, _, <<"{{127,0,0,1},", _/binary>>}] = Ask("PROXY UNKNOWN\r\n"),
    [{200, _, <<"{{10,1,2,3},5555}">>}] = Ask(V2(1, 16#11, <<10, 1, 2, 3, 10, 9, 9, 9, 5555:16, 80:16>>)),
    [{200, _, <<"{{10,1,2,3},5555}">>}] = Ask(V2(1, 16#11, <<10, 1, 2, 3, 10, 9, 9, 9, 5555:16, 80:16, 4, 3:16, "xyz">>)),
    [{200, _, <<"{{127,0,0,1},", _/binary>>}] = Ask(V2(0, 0, <<>>)),
    [[] = Ask(Bad) || Bad <- ["", "PROXY TCP4 nonsense\r\n", "PROXY TCP4 10.1.2.3 10.9.9.9 99999 80\r\n", ["PROXY ", lists:duplicate(200, $x)], V2(7, 16#11, <<>>), V2(1, 16#11, <<1>>)]],
    %% The log and the events also contain the client's address when a request is rejected.
    [{400, _, _}] = yucan_client:exchange(Port, "PROXY TCP4 10.1.2.3 10.9.9.9 5555 80\r\nG@T / HTTP/1.1\r\n\r\n"),
    [receive Told -> ok after ?WAIT_MS -> error({not_told, Told}) end || Told <- [{logged, 400, {{10, 1, 2, 3}, 5555}}, {[yucan, request, refused], {{10, 1, 2, 3}, 5555}}]],
    [_, {_, TlsPort}] = maps:get(listen, yucan:info(yucan_server_test)),
    Socket = yucan_client:connect(TlsPort),
    ok = gen_tcp:send(Socket, "PROXY TCP4 10.1.2.3 10.9.9.9 5555 80\r\n"),
    {ok, Tls} = ssl:connect(Socket, [{verify, verify_none}, {active, false}], ?WAIT_MS),
    ok = ssl:send(Tls, ?GET("/peer")),
    {200, _, <<"{{10,1,2,3},5555}">>} = tls_one(Tls, <<>>).

%% Only headers from trusted proxies are used, and only the part that these proxies have written.
forwarded_for(_) ->
    Port = start(#{trusted_proxies => [<<"127.0.0.0/8">>, <<"10.0.0.0/8">>]}),
    Ask = fun(Headers) -> element(3, yucan_client:get(Port, "/peer", [{"X-Forwarded-For", H} || H <- Headers])) end,
    <<"{{1,2,3,4},0}">> = Ask(["9.9.9.9, 1.2.3.4"]),
    <<"{{1,2,3,4},0}">> = Ask(["9.9.9.9, 1.2.3.4, 10.0.0.1"]),
    <<"{{1,2,3,4},0}">> = Ask(["9.9.9.9", "1.2.3.4", "10.0.0.1:77"]),
    <<"{{8193,0,0,0,0,0,0,1},0}">> = Ask(["2001::1"]),
    <<"{{127,0,0,1},", _/binary>> = Ask(["nonsense"]),
    ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], handler => handler()}),
    {200, _, <<"{{127,0,0,1},", _/binary>>} = yucan_client:get(yucan:port(yucan_server_test), "/peer", [{"X-Forwarded-For", "1.2.3.4"}]).

%% The scheme, host and address come from the proxy that identified the client, and only from headers that the configuration specifies and that a
%% trusted proxy sent.
forwarded(_) ->
    Trusted = [<<"127.0.0.0/8">>, <<"10.0.0.0/8">>],
    All = [<<"x-forwarded-for">>, <<"x-forwarded-proto">>, <<"x-forwarded-host">>],
    Port = start(#{trusted_proxies => Trusted, forwarded => [<<"forwarded">>]}),
    Ask = fun(Headers) -> [element(3, yucan_client:get(Port, Path, Headers)) || Path <- ["/peer", "/scheme", "/host", "/port"]] end,
    Reload = fun(Options) -> ok = yucan:reload(yucan_server_test, Options#{listen => [#{port => 0}], handler => handler()}) end,
    Local = integer_to_binary(Port),
    Plain = fun(Headers) -> [<<"{{127,0,0,1},", _/binary>>, <<"http">>, <<"localhost">>, Local] = Ask(Headers) end,
    Behind = {"Forwarded", "for=9.9.9.9;proto=http;host=spoofed, For=\"[2001::1]:4711\";Proto=https;host=\"A.org\", for=10.0.0.1;proto=http;host=inner"},
    [<<"{{8193,0,0,0,0,0,0,1},0}">>, <<"https">>, <<"a.org">>, <<"443">>] = Ask([Behind]),
    [<<"{{1,2,3,4},0}">>, <<"http">>, <<"b.org">>, <<"81">>] = Ask([{"Forwarded", "for=1.2.3.4;host=\"b.org:81\""}]),
    [<<"{{1,2,3,4},0}">>, <<"https">>, <<"localhost">>, <<"443">>] = Ask([{"Forwarded", "for=1.2.3.4 ; proto=https"}, {"X-Forwarded-For", "5.6.7.8"}]),
    %% The search for the client stops at an element that is unknown or obfuscated.
    [<<"{{127,0,0,1},", _/binary>>, <<"https">>, <<"localhost">>, <<"443">>] = Ask([{"Forwarded", "for=1.2.3.4;proto=http, for=unknown;proto=https"}]),
    [Plain([{"Forwarded", Bad}]) || Bad <- ["for=1.2.3.4;for=5.6.7.8", "for=\"1.2.3.4", "for 1.2.3.4", "for=1.2.3.4 x", "proto=gopher;host=\"a b\""]],
    Plain([{"X-Forwarded-For", "5.6.7.8"}, {"X-Forwarded-Host", "c.org"}]),
    Reload(#{trusted_proxies => Trusted, forwarded => All}),
    [<<"{{5,6,7,8},0}">>, <<"https">>, <<"c.org">>, <<"443">>] = Ask([{"X-Forwarded-For", "9.9.9.9, 5.6.7.8"}, {"X-Forwarded-Proto", "http, https"}, {"X-Forwarded-Host", "c.org"}]),
    [<<"{{5,6,7,8},0}">>, <<"https">>, <<"localhost">>, <<"443">>] = Ask([{"X-Forwarded-For", "5.6.7.8, 10.0.0.1"}, {"X-Forwarded-Proto", "https"}]),
    Plain([Behind]),
    Reload(#{trusted_proxies => Trusted}),
    [<<"{{5,6,7,8},0}">>, <<"http">>, <<"localhost">>, Local] = Ask([{"X-Forwarded-For", "5.6.7.8"}, {"X-Forwarded-Proto", "https"}, {"X-Forwarded-Host", "c.org"}]),
    Reload(#{trusted_proxies => [<<"10.0.0.0/8">>], forwarded => All}),
    Plain([{"X-Forwarded-For", "5.6.7.8"}, {"X-Forwarded-Proto", "https"}, {"X-Forwarded-Host", "c.org"}]).

%% The ID is generated by the server or comes from a trusted proxy. It is the same in the response, for the handler and in the log, even if the
%% handler fails, and also over HTTP/2.
request_ids(_) ->
    Self = self(),
    Options = #{request_id => true, access_log => {function, fun(Entry) -> Self ! {entry, Entry} end}},
    Port = start(Options),
    Ask = fun(Path, Sent) ->
        {_, Headers, Body} = yucan_client:get(Port, Path, [{"X-Request-Id", S} || S <- Sent]),
        [Id] = [Value || {<<"x-request-id">>, Value} <- Headers],
        receive {entry, #{id := Id}} -> {Id, Body} after ?WAIT_MS -> error(no_entry) end
    end,
    [{One, One} | Others] = [Ask(Path, ["sent"]) || Path <- ["/id", "/none", "/crash", "/steps/whole"]],
    Ids = [One | [Id || {Id, _} <- Others]],
    [match = re:run(Id, "^[0-9a-f]{32}$", [{capture, none}]) || Id <- Ids],
    4 = length(lists:usort(Ids)),
    {200, Fields, Id} = yucan_h2_client:request(Port, <<"/id">>, []),
    Id = proplists:get_value(<<"x-request-id">>, Fields),
    ok = yucan:reload(yucan_server_test, Options#{listen => [#{port => 0}], handler => handler(), trusted_proxies => [<<"127.0.0.1">>]}),
    {<<"sent-1">>, <<"sent-1">>} = Ask("/id", ["sent-1"]),
    [{true, Bad} = {element(1, Ask("/id", [Bad])) =/= list_to_binary(Bad), Bad} || Bad <- ["a b", "a\"b", lists:duplicate(129, $a)]],
    Entry = #{time => 0, peer => {{1, 2, 3, 4}, 5}, method => <<"GET">>, target => <<"/">>, version => 11, status => 200, bytes => 0, host => <<>>, referer => <<>>, agent => <<>>, us => 0},
    [{_, _} = binary:match(iolist_to_binary(Format(Entry#{id => <<"x1">>})), Part) || {Format, Part} <- [{fun yucan_log:format/1, <<" \"-\" \"-\" \"x1\"\n">>}, {fun yucan_log:json/1, <<"\"id\":\"x1\"}">>}]].

%% A single client cannot use up all connections. A closed connection no longer counts, whichever side closed it, and there is no limit for trusted
%% proxies.
address_connections(_) ->
    Port = start(#{limits => #{address_connections => 2}}),
    Open = fun() -> Socket = yucan_client:connect(Port), ok = gen_tcp:send(Socket, ?GET("/")), {element(1, yucan_client:one(Socket)), Socket} end,
    [{200, One}, {200, Two}, {503, _}] = [Open() || _ <- [1, 2, 3]],
    [{503, Headers, _}] = yucan_client:exchange(Port, ?GET("/")),
    <<"1">> = proplists:get_value(<<"retry-after">>, Headers),
    ok = gen_tcp:close(One),
    %% The connection of a handler that is killed no longer counts either.
    Looping = yucan_client:connect(Port),
    wait_for(fun() -> #{metrics := #{open_connections := Count}} = yucan:info(yucan_server_test), Count =:= 1 end),
    ok = gen_tcp:close(Looping),
    [begin
         Killed = beamway_peer:wait_until(fun() -> case Open() of {200, Socket} -> {ok, Socket}; {503, _} -> false end end, 20000),
         {503, _} = Open(),
         {ok, Socket} = Killed,
         ok = gen_tcp:send(Socket, ?GET("/crash")),
         {500, _, _} = yucan_client:one(Socket)
     end || _ <- [1, 2, 3]],
    %% Each address has its own limit.
    {ok, Other} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {ip, {127, 0, 0, 2}}]),
    ok = gen_tcp:send(Other, ?GET("/")),
    {200, _, _} = yucan_client:one(Other),
    ok = gen_tcp:close(Two),
    ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], handler => handler(), limits => #{address_connections => 1}, trusted_proxies => [<<"127.0.0.1">>]}),
    [{200, _}, {200, _}, {200, _}] = [Open() || _ <- [1, 2, 3]].

%% A client may send one second's worth of requests at once, over all its connections and protocols together. After that it gets 429, with the time to
%% wait. Each client behind a proxy has its own limit.
address_requests(_) ->
    Port = start(#{limits => #{address_requests => 3}, trusted_proxies => [<<"127.0.0.2">>]}),
    Began = erlang:monotonic_time(millisecond),
    Statuses = [element(1, yucan_client:get(Port, "/")) || _ <- lists:seq(1, 40)],
    Took = erlang:monotonic_time(millisecond) - Began,
    Allowed = length([200 || 200 <- Statuses]),
    [429, 200] = lists:usort(fun(A, B) -> A >= B end, Statuses),
    {true, Allowed} = {Allowed >= 3 andalso Allowed =< 4 + 3 * Took div 1000, Allowed},
    Limited = fun Next(Ask) -> case Ask() of {429, Headers, _} -> Headers; {200, _, _} -> Next(Ask) end end,
    [<<"1">>, <<"1">>] = [proplists:get_value(<<"retry-after">>, Limited(Ask)) || Ask <- [fun() -> yucan_client:get(Port, "/") end, fun() -> yucan_h2_client:request(Port, <<"/">>, []) end]],
    Proxied = fun(Client) ->
        {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {ip, {127, 0, 0, 2}}]),
        ok = gen_tcp:send(Socket, ["GET / HTTP/1.1\r\nHost: a\r\n", [["X-Forwarded-For: ", Client, "\r\n"] || Client =/= none], "\r\n"]),
        Response = yucan_client:one(Socket),
        ok = gen_tcp:close(Socket),
        Response
    end,
    {200, _, _} = Proxied("1.2.3.4"),
    _ = Limited(fun() -> Proxied("1.2.3.4") end),
    {200, _, _} = Proxied("1.2.3.5"),
    [{200, _, _} = Proxied(none) || _ <- lists:seq(1, 20)].
