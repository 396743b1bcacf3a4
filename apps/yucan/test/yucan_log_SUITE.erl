%% SPDX-License-Identifier: Apache-2.0
%% @doc The access log: the format of its lines; its file during rotation, during reloads and when the directory is missing; and the limit of its
%% queue.
-module(yucan_log_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([access_log/1, access_log_json/1, access_log_rotates/1, access_log_folder/1, access_log_reloads/1, access_log_ends/1, access_log_fails/1, access_log_bounded/1]).

-import(yucan_test_server, [handler/0, wait_for/1]).

-include_lib("common_test/include/ct.hrl").

-define(GET(Path), ["GET ", Path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"]).
-define(WAIT_MS, (20000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() -> [access_log, access_log_json, access_log_rotates, access_log_folder, access_log_reloads, access_log_ends, access_log_fails, access_log_bounded].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

end_per_testcase(_, _) -> yucan_test_server:stop_all().

start(Options) -> yucan_test_server:start(yucan_server_test, Options).

log_file(Config) -> filename:join(?config(priv_dir, Config), "access.log").

lines(File) ->
    yucan_log:flush(yucan_server_test_access_log),
    {ok, Text} = file:read_file(File),
    string:lexemes(Text, "\n").

%% The log uses the combined format, and clients cannot inject line breaks or quotes.
access_log(Config) ->
    File = log_file(Config),
    _ = file:delete(File),
    Port = start(#{access_log => File}),
    {200, _, _} = yucan_client:get(Port, "/a?b=\"c\\", [{"User-Agent", "one \"two\" \\ \x{ff}"}, {"Referer", "http://x/"}]),
    _ = yucan_client:exchange(Port, "BAD\r\n\r\n"),
    wait_for(fun() -> length(lines(File)) =:= 2 end),
    %% The two connections have separate processes, so either line may come first.
    {[Line], [Bad]} = lists:partition(fun(L) -> string:find(L, "\" 200 ") =/= nomatch end, lines(File)),
    match = re:run(Line, "^127\\.0\\.0\\.1 - - \\[\\d\\d/\\w{3}/\\d{4}:\\d\\d:\\d\\d:\\d\\d \\+0000\\] \"GET /a\\?b=\\\\\"c\\\\\\\\ HTTP/1\\.1\" 200 2 \"http://x/\" \"one \\\\\"two\\\\\" \\\\\\\\ \\\\xff\"$", [{capture, none}]),
    match = re:run(Bad, "\"- - HTTP/1.1\" 400 - \"-\" \"-\"$", [{capture, none}]).

%% With JSON, each line is a valid object, whatever bytes a client sends. A reload can change the format of the same file.
access_log_json(Config) ->
    File = log_file(Config),
    _ = file:delete(File),
    Port = start(#{access_log => {json, File}}),
    {200, _, _} = yucan_client:get(Port, "/a?b=\"c\\", [{"User-Agent", "one \"two\" \\ \x{ff}\t"}, {"Referer", <<"http://x/ü"/utf8>>}]),
    wait_for(fun() -> length(lines(File)) =:= 1 end),
    [Line] = lines(File),
    {Fields} = jiffy:decode(Line),
    [<<"time">>, <<"client">>, <<"host">>, <<"method">>, <<"target">>, <<"version">>, <<"status">>, <<"bytes">>, <<"us">>, <<"referer">>, <<"agent">>] = [Name || {Name, _} <- Fields],
    [{Name, Value} = {Name, proplists:get_value(Name, Fields)}
     || {Name, Value} <- [{<<"client">>, <<"127.0.0.1">>}, {<<"host">>, <<"localhost">>}, {<<"method">>, <<"GET">>}, {<<"target">>, <<"/a?b=\"c\\">>}, {<<"version">>, <<"1.1">>},
                          {<<"status">>, 200}, {<<"bytes">>, 2}, {<<"referer">>, <<"http://x/ü"/utf8>>}, {<<"agent">>, <<"one \"two\" \\ ÿ"/utf8>>}]],
    true = is_integer(proplists:get_value(<<"us">>, Fields)),
    match = re:run(proplists:get_value(<<"time">>, Fields), "^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{6}Z$", [{capture, none}]),
    Escaped = iolist_to_binary(yucan_log:json(#{time => 0, peer => {{1, 2, 3, 4}, 5}, method => <<"-">>, target => <<0, 10, 127, "\"">>, version => 20, status => 400, bytes => 0, host => <<>>, referer => <<>>, agent => <<>>, us => 0})),
    {_, _} = binary:match(Escaped, <<"\"\\u0000\\u000a\\u007f\\\"\"">>),
    ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], handler => yucan_test_server:handler(), access_log => File}),
    {200, _, _} = yucan_client:get(Port, "/after"),
    wait_for(fun() -> [L || L <- lines(File), string:find(L, "\"GET /after HTTP/1.1\" 200") =/= nomatch] =/= [] end),
    {error, {bad_options, <<"access_log is {text,", _/binary>>}} = yucan:start_link(#{access_log => {text, File}, handler => yucan_test_server:handler()}).

%% The file is renamed while it is in use. A new file is created, and no line is lost.
access_log_rotates(Config) ->
    File = log_file(Config),
    Port = start(#{access_log => File}),
    {200, _, _} = yucan_client:get(Port, "/before"),
    wait_for(fun() -> [L || L <- lines(File), string:find(L, "/before") =/= nomatch] =/= [] end),
    ok = file:rename(File, File ++ ".1"),
    wait_for(fun() -> filelib:is_file(File) end),
    {200, _, _} = yucan_client:get(Port, "/after"),
    wait_for(fun() -> [L || L <- lines(File), string:find(L, "/after") =/= nomatch] =/= [] end).

%% If the log's directory is missing during several checks, only one warning is logged. Once the directory exists again, the file is created.
access_log_folder(Config) ->
    Folder = filename:join(?config(priv_dir, Config), "logs"),
    File = filename:join(Folder, "access.log"),
    ok = filelib:ensure_dir(File),
    Port = start(#{access_log => File}),
    ok = logger:add_handler(?MODULE, yucan_test_logger, #{level => warning, config => #{pid => self()}}),
    ok = file:rename(Folder, Folder ++ ".away"),
    [yucan_server_test_access_log ! look || _ <- [1, 2, 3]],
    ok = yucan_log:flush(yucan_server_test_access_log),
    ok = logger:remove_handler(?MODULE),
    receive {logged, _} -> ok after 0 -> error(no_warning) end,
    receive {logged, Again} -> error(Again) after 0 -> ok end,
    ok = file:make_dir(Folder),
    wait_for(fun() -> filelib:is_file(File) end),
    {200, _, _} = yucan_client:get(Port, "/after"),
    wait_for(fun() -> [L || L <- lines(File), string:find(L, "/after") =/= nomatch] =/= [] end).

%% Reloads switch the same server from a file to a function, back to a file, and then to no log. A rejected reload affects neither the log nor the
%% effect of later reloads.
access_log_reloads(Config) ->
    Self = self(),
    [One, Two] = [log_file(Config) ++ Name || Name <- [".one", ".two"]],
    Port = start(#{access_log => One}),
    Reload = fun(Options) -> yucan:reload(yucan_server_test, maps:merge(#{listen => [#{port => 0}], handler => handler()}, Options)) end,
    Refused = {yucan_file, #{root => "/no/such/folder"}},
    ok = Reload(#{access_log => {function, fun(#{target := Target}) -> Self ! {target, Target} end}}),
    undefined = whereis(yucan_server_test_access_log),
    {200, _, _} = yucan_client:get(Port, "/function"),
    receive {target, <<"/function">>} -> ok after ?WAIT_MS -> error(no_entry) end,
    ok = Reload(#{access_log => One}),
    {error, _} = Reload(#{access_log => Two, handler => Refused}),
    false = filelib:is_file(Two),
    ok = Reload(#{}),
    {error, _} = Reload(#{access_log => Two, handler => Refused}),
    undefined = whereis(yucan_server_test_access_log),
    ok = Reload(#{access_log => Two}),
    {200, _, _} = yucan_client:get(Port, "/last"),
    wait_for(fun() -> [L || L <- lines(Two), string:find(L, "/last") =/= nomatch] =/= [] end).

%% When a reload turns off the log, all queued lines have been written to the file by the time the reload returns.
access_log_ends(Config) ->
    File = log_file(Config) ++ ".ends",
    Port = start(#{access_log => File}),
    Log = whereis(yucan_server_test_access_log),
    Waiting = fun(Tag) -> {messages, Messages} = process_info(Log, messages), length([M || M <- Messages, is_tuple(M), element(1, M) =:= Tag]) end,
    true = erlang:suspend_process(Log),
    [{200, _, _} = yucan_client:get(Port, "/waits") || _ <- [1, 2, 3]],
    wait_for(fun() -> Waiting('$gen_cast') =:= 3 end),
    {Reload, Monitor} = spawn_monitor(fun() -> ok = yucan:reload(yucan_server_test, #{listen => [#{port => 0}], handler => handler()}) end),
    wait_for(fun() -> Waiting('EXIT') =:= 1 end),
    true = erlang:resume_process(Log),
    receive {'DOWN', Monitor, process, Reload, normal} -> ok after ?WAIT_MS -> error(no_reload) end,
    {ok, Text} = file:read_file(File),
    [_, _, _] = string:lexemes(Text, "\n").

%% If the function fails, requests are not affected, and only one warning is logged until the function succeeds again.
access_log_fails(_) ->
    Port = start(#{access_log => {function, fun(#{target := Target}) -> Target =:= <<"/well">> orelse error(Target) end}}),
    ok = logger:add_handler(?MODULE, yucan_test_logger, #{level => warning, config => #{pid => self()}}),
    Answers = yucan_client:exchange(Port, [?GET(Path) || Path <- ["/one", "/two", "/well", "/three"]]),
    ok = logger:remove_handler(?MODULE),
    [200, 200, 200, 200] = [Status || {Status, _, _} <- Answers],
    [receive {logged, #{level := warning, msg := {_, [access_log, {error, Target, _} | _]}}} -> ok after 0 -> error({not_logged, Target}) end
     || Target <- [<<"/one">>, <<"/three">>]],
    receive {logged, Again} -> error(Again) after 0 -> ok end.

%% If the log is blocked, lines are dropped rather than kept in memory.
access_log_bounded(Config) ->
    Port = start(#{access_log => log_file(Config), limits => #{log_queue => 10}}),
    ok = sys:suspend(yucan_server_test_access_log),
    _ = yucan_client:exchange(Port, [?GET("/") || _ <- lists:seq(1, 100)]),
    {message_queue_len, Waiting} = process_info(whereis(yucan_server_test_access_log), message_queue_len),
    true = Waiting =< 12,
    #{metrics := #{log_dropped := 90}} = yucan:info(yucan_server_test),
    ok = sys:resume(yucan_server_test_access_log).
