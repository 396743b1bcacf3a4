%% SPDX-License-Identifier: Apache-2.0
%% @doc How a server is operated: options, sockets, metrics and events, descriptors, memory, and log messages.
-module(yucan_server_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([bad_options/1, unix_socket/1, unix_socket_goes/1, stale_unix_socket/1, address_in_use/1, supervised/1, stopped_by_another/1, one_for_each/1, metrics/1, events/1, stock_log/1,
         descriptors_used_up/1, without_flags/1, idle_memory/1]).

-import(yucan_test_server, [connections_in/1, handler/0, wait_for/1]).

-include_lib("common_test/include/ct.hrl").

-define(GET(Path), ["GET ", Path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"]).
-define(WAIT_MS, (20000 * beamway_runner:slowness())).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [bad_options, unix_socket, unix_socket_goes, stale_unix_socket, address_in_use, supervised, stopped_by_another, one_for_each, metrics, events, stock_log, descriptors_used_up,
     without_flags, idle_memory].

%% The paths of unix sockets must be short.
init_per_suite(Config) -> [{sockets, beamway_peer:new_folder("yucan_server")} | yucan_test_server:start_application(Config)].

end_per_suite(Config) ->
    ok = yucan_test_server:stop_application(Config),
    ok = file:del_dir_r(?config(sockets, Config)).

end_per_testcase(_, _) -> yucan_test_server:stop_all().

start(Options) -> yucan_test_server:start(yucan_server_test, Options).

%% The error message contains the value and what was expected, and no server is started.
bad_options(_) ->
    Cases = [{#{handler => {no_such_module, x}}, "no_such_module"}, {#{}, "handler or routes"}, {#{handler => handler(), colour => red}, "colour"},
             {#{handler => {lists, x}}, "handle/2"}, {#{handler => handler(), limits => #{headers => -1}}, "headers is -1"},
             {#{handler => handler(), limits => #{heders => 1}}, "heders"}, {#{handler => handler(), listen => [#{port => 70000}]}, "70000"},
             {#{handler => handler(), listen => [#{ip => "localhost"}]}, "localhost"}, {#{handler => handler(), listen => [#{ip => {local, "/tmp/x"}, port => 80}]}, "port is 80; 0 or none"}, {#{routes => [{"no_slash", yucan_test_handler, x}]}, "slash"},
             {#{routes => [{"/*a/b", yucan_test_handler, x}]}, "last"},
             {#{routes => [{"/a//b", yucan_test_handler, x}]}, "empty"}, {#{routes => [{"/a/../b", yucan_test_handler, x}]}, ". or .."}, {#{handler => handler(), trusted_proxies => [<<"10.0.0.0/99">>]}, "10.0.0.0/99"},
             {#{handler => handler(), forwarded => [<<"x-real-ip">>]}, "x-real-ip"}, {#{handler => handler(), forwarded => [<<"forwarded">>, <<"x-forwarded-for">>]}, "must be the only one"},
             {#{handler => handler(), request_id => <<"Content-Length">>}, "Content-Length"}, {#{handler => handler(), request_id => <<"host">>}, "host"},
             {#{handler => handler(), on_event => fun() -> ok end}, "on_event"}, {#{handler => handler(), limits => #{address_requests => 0}}, "address_requests is 0"},
             {#{handler => handler(), listen => [#{tls => #{certfile => "/no/such/file"}}]}, "/no/such/file"}, {not_a_map, "not_a_map"}],
    process_flag(trap_exit, true),
    [begin
         {error, {bad_options, Text}} = yucan:start_link(Options),
         {true, Text} = {string:find(Text, Part) =/= nomatch, Text}
     end || {Options, Part} <- Cases],
    {error, Text} = yucan:start_link(#{name => yucan_x, handler => handler(), listen => [#{port => 0}], access_log => "/no/such/folder/log"}),
    {true, Text} = {string:find(Text, "/no/such/folder/log") =/= nomatch, Text}.

%% This case also sends a file with sendfile.
unix_socket(Config) ->
    Path = filename:join(?config(sockets, Config), "ends"),
    Root = filename:join(?config(priv_dir, Config), "unix_socket"),
    ok = filelib:ensure_path(Root),
    ok = file:write_file(filename:join(Root, "large"), Large = binary:copy(<<"0123456789">>, 100000)),
    _ = start(#{listen => [#{ip => {local, Path}}], routes => [{"/large", yucan_file, #{root => Root}}, {"/*path", yucan_test_handler, none}]}),
    {ok, Socket} = gen_tcp:connect({local, Path}, 0, [binary, {active, false}]),
    ok = gen_tcp:send(Socket, ?GET("/")),
    {200, _, <<"OK">>} = yucan_client:one(Socket),
    ok = gen_tcp:send(Socket, ?GET("/large")),
    {200, _, Large} = yucan_client:one(Socket),
    yucan:stop(yucan_server_test),
    false = is_socket_there(Path).

%% A unix socket's file is removed together with its listener, even if it was created for a start or a reload that then failed. If another server has
%% since taken over the name, the file is not removed when this server stops.
unix_socket_goes(Config) ->
    Path = filename:join(?config(sockets, Config), "goes"),
    Options = #{name => yucan_server_test, listen => [#{ip => {local, Path}, port => 0}], handler => handler()},
    Refused = Options#{handler := {yucan_file, #{root => "/no/such/folder"}}},
    {error, _} = yucan:start(Refused),
    false = is_socket_there(Path),
    {ok, _} = yucan:start(Options),
    true = is_socket_there(Path),
    ok = yucan:reload(yucan_server_test, Options#{listen := [#{port => 0}]}),
    false = is_socket_there(Path),
    {error, _} = yucan:reload(yucan_server_test, Refused),
    false = is_socket_there(Path),
    ok = yucan:reload(yucan_server_test, Options),
    true = is_socket_there(Path),
    ok = yucan:drain(yucan_server_test, ?WAIT_MS),
    false = is_socket_there(Path),
    {ok, Another} = gen_tcp:listen(0, [{ifaddr, {local, Path}}]),
    yucan:stop(yucan_server_test),
    true = is_socket_there(Path),
    ok = gen_tcp:close(Another),
    ok = file:delete(Path).

%% A server that was killed leaves its unix socket behind, and the next server replaces it. A socket that still has a listener is left alone, and so
%% is a regular file.
stale_unix_socket(Config) ->
    Path = filename:join(?config(sockets, Config), "stale"),
    Options = #{name => yucan_server_test, listen => [#{ip => {local, Path}, port => 0}], handler => handler()},
    {ok, Stale} = gen_tcp:listen(0, [{ifaddr, {local, Path}}]),
    {error, Answered} = yucan:start(Options),
    {_, _} = binary:match(Answered, <<"address already in use; end the program">>),
    ok = gen_tcp:close(Stale),
    true = filelib:is_file(Path) orelse is_socket_there(Path),
    {ok, _} = yucan:start(Options),
    {ok, Socket} = gen_tcp:connect({local, Path}, 0, [binary, {active, false}]),
    ok = gen_tcp:send(Socket, ?GET("/")),
    {200, _, <<"OK">>} = yucan_client:one(Socket),
    yucan:stop(yucan_server_test),
    ok = file:write_file(Path, "a file"),
    {error, _} = yucan:start(Options),
    {ok, <<"a file">>} = file:read_file(Path),
    ok = file:delete(Path).

is_socket_there(Path) -> element(1, file:read_link_info(Path)) =:= ok.

address_in_use(_) ->
    Port = start(#{}),
    {error, Text} = yucan:start(#{name => yucan_second, listen => [#{port => Port}], handler => handler()}),
    {true, Text} = {string:find(io_lib:format("~tp", [Text]), "in use") =/= nomatch, Text}.

%% The server runs under the user's supervisor, which decides what happens when the server exits.
supervised(_) ->
    Spec = yucan:child_spec(#{name => yucan_supervised, listen => [#{port => 0}], handler => handler()}),
    {ok, _} = yucan_test_sup:start_link([Spec]),
    Port = yucan:port(yucan_supervised),
    {200, _, <<"OK">>} = yucan_client:get(Port, "/"),
    Old = whereis(yucan_supervised),
    exit(Old, kill),
    wait_for(fun() -> is_pid(whereis(yucan_supervised)) andalso whereis(yucan_supervised) =/= Old end),
    {200, _, <<"OK">>} = yucan_client:get(yucan:port(yucan_supervised), "/"),
    Stopped = whereis(yucan_supervised),
    ok = yucan:stop(yucan_supervised),
    wait_for(fun() -> is_pid(whereis(yucan_supervised)) andalso whereis(yucan_supervised) =/= Stopped end),
    ok = yucan_test_sup:stop().

%% The process that started the server survives when another process stops it.
stopped_by_another(_) ->
    Self = self(),
    {Starter, Monitor} = spawn_monitor(fun() ->
        {ok, _} = yucan:start_link(#{name => yucan_stopped, listen => [#{port => 0}], handler => handler()}),
        Self ! started,
        receive the_end -> ok end
    end),
    receive started -> ok after ?WAIT_MS -> error(not_started) end,
    ok = yucan:stop(yucan_stopped),
    undefined = whereis(yucan_stopped),
    Starter ! the_end,
    receive {'DOWN', Monitor, process, Starter, Reason} -> normal = Reason after ?WAIT_MS -> error(no_end) end.

%% A process that has run a handler serves no other client, because a timer, a table or a late message may still belong to the first client.
one_for_each(_) ->
    Port = start(#{handler => handler()}),
    [begin
         {200, _, Body} = yucan_client:get(Port, ["/leave?", What]),
         Pid = list_to_pid(binary_to_list(Body)),
         wait_for(fun() -> not is_process_alive(Pid) end)
     end || What <- ["nothing", "word", "message", "link", "monitor", "watcher", "flag", "name", "stream"]].

metrics(_) ->
    Port = start(#{}),
    _ = [yucan_client:get(Port, P) || P <- ["/", "/crash", "/same", "/nothing"]],
    _ = [yucan_client:exchange(Port, Bytes) || Bytes <- ["BAD\r\n\r\n", ?GET("/stream_crash")]],
    #{metrics := #{requests := 5, refused := 1, crashes := 2, status_2xx := 3, status_3xx := 1, status_4xx := 1, status_5xx := 1, connections := 6}} = yucan:info(yucan_server_test),
    Text = iolist_to_binary(yucan:metrics_text(yucan_server_test)),
    {_, _} = binary:match(Text, <<"yucan_requests_total{server=\"yucan_server_test\"} 5\n">>),
    %% Of a connection's requests, only the first and the 17th are timed, and streams are never timed.
    Timed = fun() -> lists:sum([Count || {yucan_server_test, _, Latency} <- yucan:figures(), {_, Count} <- Latency]) end,
    Before = Timed(),
    17 = length(yucan_client:exchange(Port, [?GET("/stream") | lists:duplicate(16, ?GET("/"))])),
    1 = Timed() - Before.

%% Events have the format of telemetry. If the function that handles them fails, requests are not affected.
events(_) ->
    Self = self(),
    Port = start(#{on_event => fun(Name, Measurements, Metadata) -> Self ! {Name, Measurements, Metadata}, maps:get(method, Metadata, none) =:= <<"PUT">> andalso error(on_purpose) end,
                   request_id => true, limits => #{address_connections => 1}}),
    Event = fun(Name) -> receive {Name, #{system_time := Time} = Measurements, #{server := yucan_server_test} = Metadata} when is_integer(Time) -> {Measurements, Metadata} after ?WAIT_MS -> error({no_event, Name}) end end,
    Ask = fun(Method, Path) -> [Response] = yucan_client:exchange(Port, [Method, " ", Path, " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"]), element(1, Response) end,
    Gone = fun() -> wait_for(fun() -> #{metrics := #{open_connections := Count}} = yucan:info(yucan_server_test), Count =:= 0 end) end,
    200 = Ask("GET", "/peer?a"),
    {#{duration := Took, bytes := Bytes}, #{method := <<"GET">>, target := <<"/peer?a">>, status := 200, host := <<"a">>, version := 11, peer := {{127, 0, 0, 1}, _}, id := Id}} = Event([yucan, request, stop]),
    true = Took >= 0 andalso Took < erlang:convert_time_unit(?WAIT_MS, millisecond, native) andalso Bytes > 10 andalso byte_size(Id) =:= 32,
    Gone(),
    500 = Ask("GET", "/crash"),
    {_, #{kind := error, reason := crashed_on_purpose, stacktrace := [_ | _], target := <<"/crash">>}} = Event([yucan, request, exception]),
    {_, #{status := 500}} = Event([yucan, request, stop]),
    Gone(),
    400 = Ask("G@T", "/"),
    {_, #{status := 400, reason := bad_method}} = Event([yucan, request, refused]),
    Gone(),
    [200, 200] = [begin Status = Ask("PUT", "/"), Gone(), Status end || _ <- [1, 2]],
    Socket = yucan_client:connect(Port),
    ok = gen_tcp:send(Socket, ?GET("/")),
    {200, _, _} = yucan_client:one(Socket),
    503 = Ask("GET", "/"),
    {_, #{limit := address_connections, peer := {{127, 0, 0, 1}, _}}} = Event([yucan, connection, refused]).

%% In a plain VM without any configuration, OTP's default log handler shows what went wrong.
stock_log(_) ->
    Vm = vm("exec erl -noinput -boot no_dot_erlang -pa \"$0\" \"$1\" -eval \"$2\""),
    try
        Port = vm_port(Vm),
        {500, _, _} = yucan_client:get(Port, "/crash?it"),
        [] = test_support:until_line(Vm, "yucan yucan: the handler failed for GET /crash[?]it: [{]error,crashed_on_purpose", ?WAIT_MS)
    after
        kill(Vm)
    end.

%% A separate VM has 256 descriptors and 320 clients. As many clients as possible are served while the others wait, and all of them are served once
%% descriptors become available.
descriptors_used_up(_) ->
    Vm = vm("ulimit -n 256; exec erl -noinput -boot no_dot_erlang -kernel logger_level error -pa \"$0\" \"$1\" -eval \"$2\""),
    try
        Port = vm_port(Vm),
        Sockets = [yucan_client:connect(Port) || _ <- lists:seq(1, 320)],
        [ok = gen_tcp:send(S, ?GET("/")) || S <- Sockets],
        [begin {200, _, <<"OK">>} = yucan_client:one(S), gen_tcp:close(S) end || S <- Sockets],
        {200, _, <<"OK">>} = yucan_client:get(Port, "/")
    after
        kill(Vm)
    end.

%% Two VMs each serve 200 connections, twice. The VM without the flags of priv/vm.args logs a warning once, and the VM with the flags does not.
without_flags(_) ->
    Warnings = fun(Flags) ->
        Vm = vm("exec erl " ++ Flags ++ " -noinput -boot no_dot_erlang -pa \"$0\" \"$1\" -eval \"$2\""),
        try
            Port = vm_port(Vm),
            [begin
                 Sockets = [yucan_client:connect(Port) || _ <- lists:seq(1, 210)],
                 [begin ok = gen_tcp:send(S, ?GET("/")), {200, _, <<"OK">>} = yucan_client:one(S) end || S <- Sockets],
                 [gen_tcp:close(S) || S <- Sockets]
             end || _ <- [1, 2]]
        after
            kill(Vm)
        end,
        %% Searches all of the VM's output until it exits.
        {_, Said} = test_support:until_ended(Vm, ?WAIT_MS),
        length([Line || Line <- Said, binary:match(Line, <<"-args_file">>) =/= nomatch])
    end,
    1 = Warnings(""),
    0 = Warnings("-args_file " ++ filename:join(code:priv_dir(yucan), "vm.args")).

%% Starts a separate VM that serves the tests' handler. The VM is started by a shell command and prints its port.
vm(Script) ->
    Ebin = [filename:dirname(code:which(M)) || M <- [yucan, yucan_test_handler]],
    Code = "{ok, _} = application:ensure_all_started(yucan), {ok, _} = yucan:start(#{listen => [#{port => 0}], handler => {yucan_test_handler, none}}),"
           "io:format(\"port ~b~n\", [yucan:port(yucan)]), io:get_line(\"\"), halt().",
    open_port({spawn_executable, os:find_executable("sh")},
              [binary, exit_status, stderr_to_stdout, {line, 1000}, {args, ["-c", Script | Ebin ++ [Code]]}]).

kill(Vm) ->
    {os_pid, Pid} = erlang:port_info(Vm, os_pid),
    os:cmd("kill -9 " ++ integer_to_list(Pid)).

vm_port(Vm) ->
    [Port] = test_support:until_line(Vm, "^port (\\d+)$", ?WAIT_MS),
    binary_to_integer(Port).

%% A hibernating idle connection uses hardly any heap.
idle_memory(_) ->
    Port = start(#{}),
    Sockets = [yucan_client:connect(Port) || _ <- lists:seq(1, 50)],
    [begin ok = gen_tcp:send(S, ?GET("/text")), {200, _, _} = yucan_client:one(S) end || S <- Sockets],
    wait_for(fun() -> length(connections_in({erlang, hibernate, 3})) >= 50 end),
    Sizes = [Bytes || P <- connections_in({erlang, hibernate, 3}), {memory, Bytes} <- [process_info(P, memory)]],
    true = lists:max(Sizes) < 20000,
    [gen_tcp:close(S) || S <- Sockets].
