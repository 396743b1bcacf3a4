%% SPDX-License-Identifier: Apache-2.0
%% @doc Routing: hosts, routes, different spellings of paths, and middleware.
-module(yucan_routes_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([hosts/1, select_host/1, routes/1, one_path/1, bad_paths/1, middleware/1]).
-export([tag/2]).

-import(yucan_test_server, [handler/0]).

-include_lib("common_test/include/ct.hrl").

suite() -> [{timetrap, {minutes, 2}}].

all() -> [hosts, select_host, routes, one_path, bad_paths, middleware].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

end_per_testcase(_, _) -> yucan_test_server:stop_all().

start(Options) -> yucan_test_server:start(yucan_server_test, Options).

ask(Port, Host) ->
    [{Status, _, Body}] = yucan_client:exchange(Port, ["GET /host HTTP/1.1\r\nHost: ", Host, "\r\n\r\n"]),
    {Status, Body}.

file_host(Names, Root) -> #{names => Names, handler => {yucan_file, #{root => Root, index => [<<"host">>], listing => true}}}.

hosts(Config) ->
    Roots = [begin
                 Root = filename:join(?config(priv_dir, Config), Name),
                 ok = filelib:ensure_dir(filename:join(Root, "x")),
                 ok = file:write_file(filename:join(Root, "host"), Name),
                 Root
             end || Name <- ["default", "one", "many", "www"]],
    Hosts = lists:zipwith(fun file_host/2, [["default.org"], ["one.org", "ein.org"], ["*.one.org"], ["w??.one.org"]], Roots),
    Port = start(#{hosts => Hosts}),
    Bodies = [{"default.org", <<"default">>}, {"one.org", <<"one">>}, {"ONE.org:8080", <<"one">>}, {"ein.org", <<"one">>}, {"x.one.org", <<"many">>},
              {"a.b.one.org", <<"many">>}, {"www.one.org", <<"www">>}, {"w...one.org", <<"many">>}, {"one.org.", <<"one">>}, {"WWW.one.org.:8080", <<"www">>}, {"unknown.org", <<"default">>}, {"", <<"default">>}],
    [{200, Body} = ask(Port, Host) || {Host, Body} <- Bodies],
    %% All requests use the same connection, which caches the last Host header together with its
    %% parsed form. Each request is sent twice, and between the two there is a request whose target
    %% overrides the header.
    Get = fun(Target, Host) -> ["GET ", Target, " HTTP/1.1\r\nHost: ", Host, "\r\n\r\n"] end,
    Requests = [[Get("/host", Host), Get("http://ein.org/host", Host), Get("/host", Host)] || {Host, _} <- Bodies],
    Expected = lists:append([[{200, Body}, {200, <<"one">>}, {200, Body}] || {_, Body} <- Bodies]) ++ [400],
    Expected = [case Status of 200 -> {200, Body}; _ -> Status end || {Status, _, Body} <- yucan_client:exchange(Port, [Requests, Get("/host", "bad host")])],
    ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], hosts => Hosts, default_host => none}),
    Port1 = yucan:port(yucan_server_test),
    {400, _} = ask(Port1, "unknown.org"),
    {200, <<"one">>} = ask(Port1, "one.org").

select_host(_) ->
    Port = start(#{hosts => [#{handler => handler()}, #{names => ["x"], handler => handler(), middleware => [fun ?MODULE:tag/2]}],
                   select_host => fun(<<"second">>, _) -> 1; (_, _) -> default end}),
    [{200, Second, _}] = yucan_client:exchange(Port, "GET / HTTP/1.1\r\nHost: second\r\n\r\n"),
    <<"one">> = proplists:get_value(<<"x-tag">>, Second),
    [{200, First, _}] = yucan_client:exchange(Port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    undefined = proplists:get_value(<<"x-tag">>, First).

routes(_) ->
    Port = start(#{routes => [{"/", yucan_routes_handler, root}, {"/users/:id", [<<"GET">>], yucan_routes_handler, show}, {"/users/:id", [<<"PUT">>, <<"DELETE">>], yucan_routes_handler, change},
                              {"/users/me/x", yucan_routes_handler, me}, {"/files/*rest", yucan_routes_handler, files}]}),
    Ask = fun(Method, Path) ->
        [{Status, Headers, Body}] = yucan_client:exchange(Port, [Method, " ", Path, " HTTP/1.1\r\nHost: a\r\n\r\n"]),
        {Status, proplists:get_value(<<"allow">>, Headers), Body}
    end,
    {200, _, <<"{root,#{}}">>} = Ask("GET", "/"),
    {200, _, <<"{show,#{<<\"id\">> => <<\"a/b\">>}}">>} = Ask("GET", "/users/a%2fb?q"),
    {200, _, <<"{change,#{<<\"id\">> => <<\"7\">>}}">>} = Ask("DELETE", "/users/7"),
    {405, <<"DELETE, GET, HEAD, OPTIONS, PUT">>, _} = Ask("POST", "/users/7"),
    {204, <<"DELETE, GET, HEAD, OPTIONS, PUT">>, _} = Ask("OPTIONS", "/users/7"),
    {200, _, <<"{me,#{}}">>} = Ask("GET", "/users/%6de/x"),
    {200, _, <<"{files,#{<<\"rest\">> => <<\"a/b\">>}}">>} = Ask("GET", "/files/a/b"),
    {200, _, <<"{files,#{<<\"rest\">> => <<>>}}">>} = Ask("GET", "/files/"),
    [{404, undefined, _} = Ask("GET", Path) || Path <- ["/users/", "/users/7/8", "/files", "/nothing"]].

%% RFC 3986, 6.2.2: however a path is written, the same route matches, and the handler sees the path
%% in the same form.
one_path(_) ->
    Port = start(#{routes => [{"/private/*rest", yucan_routes_handler, guarded}, {"/exact", yucan_routes_handler, exact}, {"/*rest", yucan_routes_handler, open}]}),
    Ask = fun(Path) -> {Status, _, Body} = yucan_client:get(Port, Path), {Path, Status, Body} end,
    [{Path, 200, <<"{guarded,#{<<\"rest\">> => <<\"s\">>}}">>} = Ask(Path)
     || Path <- ["/private/s", "//private/s", "/./private/s", "/x/../private/s", "/x//../private/s", "/private//s", "/private/./s", "/private/x/../s", "///private///s",
                 "/%70rivate/s", "/%2e/private/s", "/x/%2E%2e/private/s", "/x/.%2e//private/%73", "http://localhost//private/s", "//private/s?a=//b"]],
    [{Path, 200, <<"{exact,#{}}">>} = Ask(Path) || Path <- ["/exact", "//exact", "/x/../exact", "/%65xact", "/./exact?../private"]],
    [{Path, 200, <<"{guarded,#{<<\"rest\">> => <<>>}}">>} = Ask(Path) || Path <- ["/private/", "/private//", "/private/s/..", "/private/."]].

%% Tests paths that lead outside the root, and bindings of several segments that would contain a slash or `..'.
bad_paths(_) ->
    Options = #{listen => [#{port => 0}], routes => [{"/users/:id", yucan_routes_handler, user}, {"/*rest", yucan_routes_handler, open}]},
    Port = start(Options),
    [{Path, 400} = {Path, element(1, yucan_client:get(Port, Path))}
     || Path <- ["/..", "/../private/s", "/x/../../private/s", "/%2e%2e/x", "//../x", "/private%2fs", "/private%2Fs", "/..%2fprivate/s", "/users/..%2f..%2fetc", "/users/..%5c..%5cetc",
                 "/x/%2e%2e%2f", "/%zz", "/%", "/%2", "/x%00", "http://localhost/../x"]],
    {200, _, <<"{user,#{<<\"id\">> => <<\"a/b\">>}}">>} = yucan_client:get(Port, "/users/a%2fb"),
    %% The same is true for a path that middleware sets.
    Moved = fun(Req, Next) -> Next(yucan_req:with_path(yucan_req:query(Req), none, Req)) end,
    ok = yucan:reload(yucan_server_test, Options#{middleware => [Moved]}),
    [{Path, 400} = {Path, element(1, yucan_client:get(yucan:port(yucan_server_test), ["/?", Path]))}
     || Path <- ["/../x", "/users/x/../../..", "/..%2fprivate/s", "/users/..%2f..%2fetc", "/users/x%2f..", "/users/.%2fx"]],
    {200, _, <<"{user,#{<<\"id\">> => <<\"a/b\">>}}">>} = yucan_client:get(yucan:port(yucan_server_test), "/?/x/../users/a%2fb").

%% @doc Middleware that assigns a value to the request and adds a header to the response.
tag(Req, Next) ->
    {Status, Headers, Body} = Next(yucan_req:assign(tagged, yes, Req)),
    {Status, [{"x-tag", "one"} | Headers], Body}.

middleware(_) ->
    Stop = fun(Req, Next) -> case yucan_req:path(Req) of <<"/stop">> -> {403, [], <<"stopped">>}; _ -> Next(Req) end end,
    Port = start(#{middleware => [fun ?MODULE:tag/2, Stop]}),
    {200, Headers, <<"OK">>} = yucan_client:get(Port, "/"),
    <<"one">> = proplists:get_value(<<"x-tag">>, Headers),
    {403, _, <<"stopped">>} = yucan_client:get(Port, "/stop").
