%% SPDX-License-Identifier: Apache-2.0
%% @doc Tests the adapter for simple_bridge with the fifteen cases of simple_bridge's own suite, which are reimplemented here. Also tests a feature that
%% its other bridges lack: files and bodies of more than 64 MB are sent and received without being kept in memory. There is no package of
%% simple_bridge, so `yucan_test_bridge' replaces it.
-module(yucan_bridge_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([host/1, uri/1, peer_ip/1, request_method_get/1, request_method_post/1, request_body/1, protocol/1, path/1, query_params/1, post_params/1,
         static/1, deep_static/1, deeper_static/1, cookie_list/1, cookie_binary/1]).
-export([answers/1, files/1, large_file/1, large_body/1, too_large_form/1, websocket/1, appmod/1, supervisor/1, supervisor_options/1]).

-include_lib("common_test/include/ct.hrl").

-define(LARGE_BYTES, 70000000).
%% The maximum amount of memory that these files and bodies may use.
-define(HELD_BYTES, 30000000).
-define(WAIT_MS, (20000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [host, uri, peer_ip, request_method_get, request_method_post, request_body, protocol, path, query_params, post_params, static, deep_static,
     deeper_static, cookie_list, cookie_binary, answers, files, large_file, large_body, too_large_form, websocket, appmod, supervisor, supervisor_options].

init_per_suite(Config) ->
    Root = filename:join(?config(priv_dir, Config), "root"),
    [begin
         File = filename:join(Root, Name),
         ok = filelib:ensure_dir(File),
         ok = file:write_file(File, Text),
         %% The file was not changed within the current second, so it has an entity tag.
         ok = file:change_time(File, {{2020, 1, 2}, {3, 4, 5}})
     end || {Name, Text} <- [{"static/one.txt", "1234\n"}, {"static/deep/depth1.txt", "1\n"}, {"static/deep/deeper/depth2.txt", "2\n"}, {"a b.txt", "blank"}]],
    Options = #{handler => yucan_test_bridge, bridge => yucan_test_bridge, document_root => Root, static_paths => ["static"]},
    [{port, yucan_test_server:start(yucan_bridge, #{handler => {yucan_simple_bridge_anchor, Options}})}, {root, Root} | Config].

end_per_suite(_) -> yucan_test_server:stop_all().

get(Config, Path) -> shown(yucan_client:get(?config(port, Config), Path)).

shown({200, _, Body}) -> binary_to_list(Body).

post(Config, Path, Body) ->
    [Response] = yucan_client:exchange(?config(port, Config), ["POST ", Path, " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
                                                               "Content-Length: ", integer_to_list(length(Body)), "\r\n\r\n", Body]),
    Response.

host(Config) -> "\"localhost\"" = get(Config, "/host").
uri(Config) -> "\"/uri?a=%41\"" = get(Config, "/uri?a=%41").
peer_ip(Config) -> "{127,0,0,1}" = get(Config, "/peer_ip").
request_method_get(Config) -> "'GET'" = get(Config, "/request_method").
request_method_post(Config) -> "'POST'" = shown(post(Config, "/request_method", "")).
request_body(Config) -> "<<\"my body\">>" = shown(post(Config, "/request_body", "my body")).
protocol(Config) -> "http" = get(Config, "/protocol").
path(Config) -> "\"/path\"" = get(Config, "/p%61th").
query_params(Config) -> "[{<<\"a\">>,<<\"1\">>},{<<\"b\">>,<<\"2 3\">>}]" = get(Config, "/query_params?a=1&b=2+3").
post_params(Config) -> "[{<<\"a\">>,<<\"1\">>},{<<\"b\">>,<<\"2 3\">>}]" = shown(post(Config, "/post_params", "a=1&b=2%203")).
static(Config) -> "1234\n" = get(Config, "/static/one.txt").
deep_static(Config) -> "1\n" = get(Config, "/static/deep/depth1.txt").
deeper_static(Config) -> "2\n" = get(Config, "/static/deep/deeper/depth2.txt").

cookie_list(Config) -> <<"c1=v1; Path=/; Max-Age=3600; SameSite=Lax">> = cookie(Config, "list").

cookie_binary(Config) -> <<"c1=v1; Domain=a.org; Path=/x; Max-Age=3600; Secure; HttpOnly; SameSite=Strict">> = cookie(Config, "binary").

cookie(Config, Kind) ->
    yucan_client:header(<<"set-cookie">>, yucan_client:get(?config(port, Config), ["/cookie?type=", Kind], [{"Cookie", "c1=v1"}])).

%% ---- beyond these cases

answers(Config) ->
    {404, Headers, <<"none">>} = yucan_client:get(?config(port, Config), "/status"),
    [<<"text/plain">>, <<"1">>] = [proplists:get_value(Name, Headers) || Name <- [<<"content-type">>, <<"x-own">>]],
    <<"text/html">> = yucan_client:header(<<"content-type">>, yucan_client:get(?config(port, Config), "/path")),
    "{1,1}" = get(Config, "/protocol_version"),
    {400, _, _} = yucan_client:get(?config(port, Config), "/p%2Fath"),
    "#{<<\"host\">> => <<\"localhost\">>}" = get(Config, "/headers").

%% The handler answers with a file. Conditional requests and ranges work, and no file outside of the root is served.
files(Config) ->
    Port = ?config(port, Config),
    {200, Headers, <<"blank">>} = yucan_client:get(Port, "/file/a%20b.txt"),
    <<"1">> = proplists:get_value(<<"x-own">>, Headers),
    {206, _, <<"an">>} = yucan_client:get(Port, "/file/a%20b.txt", [{"Range", "bytes=2-3"}]),
    {304, _, <<>>} = yucan_client:get(Port, "/file/a%20b.txt", [{"If-None-Match", proplists:get_value(<<"etag">>, Headers)}]),
    {200, _, <<"1\n">>} = post(Config, "/file/static/deep/depth1.txt", "a=b"),
    [{404, _, _} = yucan_client:get(Port, Path) || Path <- ["/file/absent", "/static/absent", "/static/.hidden"]].

%% A file of the maximum size that the file system permits is sent without keeping much of it in memory.
large_file(Config) ->
    {ok, File} = file:open(filename:join(?config(root, Config), "large"), [write, raw]),
    {ok, _} = file:position(File, ?LARGE_BYTES),
    ok = file:truncate(File),
    ok = file:close(File),
    Before = erlang:memory(binary),
    Socket = yucan_client:connect(?config(port, Config)),
    ok = inet:setopts(Socket, [{buffer, 1000000}]),
    ok = gen_tcp:send(Socket, "GET /file/large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
    {Bytes, Most} = drained(Socket, 0, 0),
    true = Bytes > ?LARGE_BYTES andalso Bytes < ?LARGE_BYTES + 1000,
    true = Most - Before < ?HELD_BYTES.

drained(Socket, Bytes, Most) ->
    case gen_tcp:recv(Socket, 0, ?WAIT_MS) of
        {ok, Data} -> drained(Socket, Bytes + byte_size(Data), max(Most, erlang:memory(binary)));
        {error, closed} -> {Bytes, Most}
    end.

large_body(Config) ->
    Before = erlang:memory(binary),
    Socket = yucan_client:connect(?config(port, Config)),
    ok = gen_tcp:send(Socket, ["POST /counted HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: ", integer_to_list(?LARGE_BYTES), "\r\n\r\n"]),
    Part = binary:copy(<<"x">>, 1000000),
    [ok = gen_tcp:send(Socket, Part) || _ <- lists:seq(1, ?LARGE_BYTES div 1000000)],
    {match, [Count, Most]} = re:run(shown(yucan_client:one(Socket)), "^{(\\d+),(\\d+)}$", [{capture, all_but_first, list}]),
    ?LARGE_BYTES = list_to_integer(Count),
    true = list_to_integer(Most) - Before < ?HELD_BYTES.

%% A form that is read completely may have at most 16 MB. The server rejects this one because of its
%% Content-Length.
too_large_form(Config) ->
    [{413, _, _}] = yucan_client:exchange(?config(port, Config), "POST /post_params HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n"
                                          "Content-Length: 17000000\r\n\r\na=b").

websocket(Config) -> talk(?config(port, Config), "localhost").

talk(Port, Host) ->
    Socket = yucan_ws_client:open(Port, yucan_ws_client:head(Host, "/ws", [])),
    {ok, <<16#81, 5, "hello">>} = gen_tcp:recv(Socket, 7, ?WAIT_MS),
    %% The masking key consists of zeros.
    ok = gen_tcp:send(Socket, [<<16#81, 16#81, 0:32, "a">>, <<16#81, 16#81, 0:32, "b">>, <<16#81, 16#83, 0:32, "end">>]),
    {ok, <<16#81, 3, "1 a", 16#81, 3, "2 b", 16#88, 2, 4000:16>>} = gen_tcp:recv(Socket, 14, ?WAIT_MS),
    gen_tcp:close(Socket).

%% The same handler is used in a Yaws site. The part of the body that out/1 has already received is not lost.
appmod(Config) ->
    Port = yucan_yaws_site:start(Config, ["docroot = www\nappmods = </, yucan_simple_bridge_anchor exclude_paths plain>\npartial_post_size = 1000\n"
                                          "<opaque>\nhandler = yucan_test_bridge\nbridge = yucan_test_bridge\nws_message_bytes = 6000000\n</opaque>\n"],
                                 [{"www/plain/f", "file"}, {"www/g", "by handler"}]),
    {200, _, <<"\"/path\"">>} = yucan_yaws_client:get(Port, "h", "/path"),
    {200, _, <<"file">>} = yucan_yaws_client:get(Port, "h", "/plain/f"),
    {200, _, <<"by handler">>} = yucan_yaws_client:get(Port, "h", "/file/g"),
    Long = binary:copy(<<"0123456789">>, 500),
    Shown = iolist_to_binary(io_lib:format("~0p", [[{<<"a">>, Long}]])),
    {200, _, Shown} = yucan_yaws_client:request(#{port => Port, host => "h", target => "/post_params", method => "POST", body => ["a=", Long],
                                                  headers => [{"content-type", "application/x-www-form-urlencoded"}]}),
    talk(Port, "h"),
    <<16#81, 127, _/binary>> = told(Port, "h", [<<16#81, 1:1, 127:7, 5600000:64, 0:32>>, binary:copy(<<"x">>, 5600000)]),
    yucan_yaws_site:stop().

%% simple_bridge:start(yucan) calls this function.
supervisor(Config) ->
    Environment = [{handler, yucan_test_bridge}, {bridge, yucan_test_bridge}, {port, 0}, {address, "127.0.0.1"}, {document_root, ?config(root, Config)},
                   {static_paths, ["/static/"]}],
    [ok = application:set_env(simple_bridge, Key, Value) || {Key, Value} <- Environment],
    {ok, Pid} = yucan_simple_bridge_sup:start_link(),
    {200, _, <<"\"/path\"">>} = yucan_client:get(yucan:port(simple_bridge), "/path"),
    {200, _, <<"1234\n">>} = yucan_client:get(yucan:port(simple_bridge), "/static/one.txt"),
    ok = gen_server:stop(Pid),
    [ok = application:unset_env(simple_bridge, Key) || {Key, _} <- Environment].

%% Limits, TLS and yucan's other options can also be in the environment. A message of 5.6 MB, like the one in Nitrogen's own test, is accepted unless
%% these options set a lower limit.
supervisor_options(Config) ->
    Tls = yucan_test_server:certificate("localhost", ?config(priv_dir, Config)),
    Environment = [{handler, yucan_test_bridge}, {bridge, yucan_test_bridge}, {port, 0}, {document_root, ?config(root, Config)}],
    [ok = application:set_env(simple_bridge, Key, Value) || {Key, Value} <- Environment],
    With = fun(Options, Function) ->
        ok = application:set_env(simple_bridge, yucan, Options),
        {ok, Pid} = yucan_simple_bridge_sup:start_link(),
        _ = Function(yucan:port(simple_bridge)),
        ok = gen_server:stop(Pid)
    end,
    ok = With(#{tls => Tls}, fun(Port) ->
        {ok, Socket} = yucan_test_server:tls_connect(Port, []),
        ok = ssl:send(Socket, "GET /protocol HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        {ok, <<"HTTP/1.1 200 OK\r\n", Rest/binary>>} = ssl:recv(Socket, 0, ?WAIT_MS),
        {_, _} = binary:match(Rest, <<"\r\n\r\nhttps">>)
    end),
    ok = With(#{limits => #{body_bytes => 3}}, fun(Port) ->
        [{413, _, _}] = yucan_client:exchange(Port, "POST /post_params HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n"
                                              "Content-Length: 4\r\n\r\na=bc")
    end),
    Large = [<<16#81, 1:1, 127:7, 5600000:64, 0:32>>, binary:copy(<<"x">>, 5600000)],
    ok = With(#{}, fun(Port) -> <<16#81, 127, _/binary>> = told(Port, Large) end),
    ok = With(#{limits => #{ws_message_bytes => 1000000}}, fun(Port) -> <<16#88, 2, 1009:16>> = told(Port, Large) end),
    process_flag(trap_exit, true),
    ok = application:set_env(simple_bridge, yucan, nonsense),
    {error, {{bad_options, "the variable yucan of the application simple_bridge is nonsense; a map is expected"}, _}} = yucan_simple_bridge_sup:start_link(),
    [ok = application:unset_env(simple_bridge, Key) || Key <- [yucan | [Key || {Key, _} <- Environment]]].

%% Sends a message and returns the first bytes of the reply.
told(Port, Message) -> told(Port, "localhost", Message).

told(Port, Host, Message) ->
    Socket = yucan_ws_client:open(Port, yucan_ws_client:head(Host, "/ws", [])),
    {ok, <<16#81, 5, "hello">>} = gen_tcp:recv(Socket, 7, ?WAIT_MS),
    ok = gen_tcp:send(Socket, Message),
    {ok, Answer} = gen_tcp:recv(Socket, 4, ?WAIT_MS),
    gen_tcp:close(Socket),
    Answer.
