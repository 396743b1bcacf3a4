%% SPDX-License-Identifier: Apache-2.0
%% @doc Servers for the suites of yucan: the application, and a server with the tests' handler on any free loopback port.
-module(yucan_test_server).

-export([start_application/1, stop_application/1, start/1, start/2, handler/0, patient/1, stop_all/0, held/1, answered/1, connections_in/1, server_side/1, wait_for/1, flooded/2, flooded_served/3, serve/2]).
-export([certificate/2, tls_connect/2, tls_one/2, subject/1]).

-include_lib("public_key/include/public_key.hrl").

-define(WAIT_MS, (20000 * beamway_runner:slowness())).

%% @doc For init_per_suite: starts the application, and remembers which applications were started.
-spec start_application([tuple()]) -> [tuple()].
start_application(Config) ->
    {ok, Started} = application:ensure_all_started(yucan),
    [{started, Started} | Config].

%% @doc For end_per_suite: stops everything that start_application/1 has started, including servers.
-spec stop_application([tuple()]) -> ok.
stop_application(Config) ->
    %% yucan_yaws is not in that list, because it starts when it is first needed.
    _ = application:stop(yucan_yaws),
    [ok = application:stop(App) || App <- lists:reverse(proplists:get_value(started, Config))],
    ok.

%% @doc Starts a server with the tests' handler, and returns its port.
-spec start(Name :: atom()) -> inet:port_number().
start(Name) -> start(Name, #{}).

%% @doc Like {@link start/1}, but with options. `handler', `routes' or `hosts' replace the tests' handler, and `listen' replaces the free port.
-spec start(Name :: atom(), yucan_config:options()) -> inet:port_number().
start(Name, Options) ->
    {ok, _} = application:ensure_all_started(yucan),
    Handled = case [Key || Key <- [handler, routes, hosts], is_map_key(Key, Options)] of
        [] -> Options#{handler => handler()};
        _ -> Options
    end,
    {ok, _} = yucan:start(maps:merge(#{name => Name, listen => [#{port => 0}]}, Handled)),
    yucan:port(Name).

%% @doc Returns the handler that answers by path: see yucan_test_handler.
-spec handler() -> {module(), none}.
handler() -> {yucan_test_handler, none}.

%% @doc Returns high values for the limits that a case does not test, so that slow operations on a loaded machine do not exceed them.
-spec patient(yucan_config:limits()) -> #{atom() => non_neg_integer() | infinity}.
patient(Own) -> maps:merge(#{header_ms => ?WAIT_MS, read_ms => ?WAIT_MS, idle_ms => ?WAIT_MS, min_body_rate => 0}, Own).

%% @doc Returns the names of the servers that run under the application.
-spec names() -> [atom()].
names() -> [Name || {Name, _, supervisor, _} <- supervisor:which_children(yucan_sup)].

%% @doc For end_per_testcase: stops all servers that run under the application.
-spec stop_all() -> ok.
stop_all() -> lists:foreach(fun yucan:stop/1, names()).

%% @doc Returns the bytes that a process keeps alive, including binaries.
-spec held(pid()) -> non_neg_integer().
held(Pid) ->
    true = erlang:garbage_collect(Pid),
    [{memory, Memory}, {binary, Binaries}] = process_info(Pid, [memory, binary]),
    Memory + lists:sum([Size || {_, Size, _} <- lists:ukeysort(1, Binaries)]).

%% @doc Checks that an open connection to the tests' handler is being served.
-spec answered(gen_tcp:socket()) -> ok.
answered(Socket) ->
    ok = gen_tcp:send(Socket, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    {200, _, <<"OK">>} = yucan_client:one(Socket),
    ok.

%% @doc Returns the connection processes that are currently executing this function. Processes that
%% still wait for a connection, which are not linked to a port, do not count.
-spec connections_in(mfa()) -> [pid()].
connections_in(Function) ->
    [P || P <- processes(), [{_, {yucan_conn, accept, 1}}, {_, F}, {_, Links}] <- [process_info(P, [initial_call, current_function, links])],
          F =:= Function, lists:any(fun is_port/1, Links)].

%% @doc Returns the process that serves a client's socket, and its port.
-spec server_side(gen_tcp:socket()) -> {pid(), port()}.
server_side(Socket) ->
    {ok, Name} = inet:sockname(Socket),
    [Port] = [Port || Port <- erlang:ports(), erlang:port_info(Port, name) =:= {name, "tcp_inet"}, inet:peername(Port) =:= {ok, Name}],
    {connected, Pid} = erlang:port_info(Port, connected),
    {Pid, Port}.

%% @doc Waits up to 20 s for the condition.
-spec wait_for(fun(() -> boolean())) -> true.
wait_for(Condition) -> true = beamway_peer:wait_until(Condition, 20000).

%% @doc Suspends a connection process and calls `Send', which makes the client send one message,
%% until the socket has become passive. Returns how many messages are then in the process's mailbox.
-spec flooded(pid(), Send :: fun(() -> ok)) -> pos_integer().
flooded(Pid, Send) ->
    true = wait_for(fun() -> process_info(Pid, [status, message_queue_len]) =:= [{status, waiting}, {message_queue_len, 0}] end),
    true = erlang:suspend_process(Pid),
    Count = fill(Pid, Send),
    true = erlang:resume_process(Pid),
    Count.

%% @doc Like {@link flooded/2}, but for a connection that its handler holds (see serve/2). Counts
%% `Times' times, and lets the connection serve one message after each count.
-spec flooded_served(pid(), Send :: fun(() -> ok), Times :: pos_integer()) -> [pos_integer()].
flooded_served(Pid, Send, Times) ->
    [begin
         Count = fill(Pid, Send),
         ok = serve(Pid, 1),
         Count
     end || _ <- lists:seq(1, Times)].

fill(Pid, Send) ->
    {links, Links} = process_info(Pid, links),
    [Socket] = [Port || Port <- Links, is_port(Port)],
    fill(Pid, Socket, Send).

fill(Pid, Socket, Send) ->
    {message_queue_len, Count} = process_info(Pid, message_queue_len),
    case inet:getopts(Socket, [active]) of
        {ok, [{active, false}]} -> Count;
        _ ->
            ok = Send(),
            true = wait_for(fun() -> process_info(Pid, message_queue_len) > {message_queue_len, Count} end),
            fill(Pid, Socket, Send)
    end.

%% @doc Lets a held connection, whose handler sends `{held, Pid}' and waits for `go_on', serve this many more messages before it is held again.
-spec serve(pid(), Count :: pos_integer()) -> ok.
serve(Pid, Count) ->
    lists:foreach(fun(_) -> Pid ! go_on, receive {held, Pid} -> ok after ?WAIT_MS -> error(not_held) end end, lists:seq(1, Count)).

%% ---- TLS

%% @doc Returns a self-signed certificate for a name, as files in a directory.
-spec certificate(Name :: string(), file:filename()) -> #{certfile | keyfile => file:filename()}.
certificate(Name, Folder) ->
    #{cert := Certificate, key := Key} = public_key:pkix_test_root_cert(Name, [{key, {namedCurve, ?secp256r1}}, {digest, sha256}]),
    File = fun(Extension, Entry) ->
        Path = filename:join(Folder, Name ++ Extension),
        ok = file:write_file(Path, public_key:pem_encode([Entry])),
        Path
    end,
    #{certfile => File(".pem", {'Certificate', Certificate, not_encrypted}),
      keyfile => File(".key", {'ECPrivateKey', public_key:der_encode('ECPrivateKey', Key), not_encrypted})}.

%% @doc Returns a client that trusts any certificate.
-spec tls_connect(inet:port_number(), [ssl:tls_client_option()]) -> {ok, ssl:sslsocket()} | {error, term()}.
tls_connect(Port, Options) ->
    ssl:connect({127, 0, 0, 1}, Port, [{verify, verify_none}, {active, false}, binary | Options], ?WAIT_MS).

%% @doc Returns the response to the only outstanding request. `Bytes' is the part of the response that has already arrived.
-spec tls_one(ssl:sslsocket(), Bytes :: binary()) -> {Status :: integer(), Headers :: [{binary(), binary()}], Body :: binary()}.
tls_one(Socket, Bytes) ->
    case yucan_client:parse(Bytes, <<"GET">>) of
        [Response] -> Response;
        _ ->
            {ok, Data} = ssl:recv(Socket, 0, ?WAIT_MS),
            tls_one(Socket, <<Bytes/binary, Data/binary>>)
    end.

%% @doc Returns the subject of the certificate that the server has presented.
-spec subject(ssl:sslsocket()) -> string().
subject(Socket) ->
    {ok, Der} = ssl:peercert(Socket),
    #'OTPCertificate'{tbsCertificate = #'OTPTBSCertificate'{subject = {rdnSequence, Names}}} = public_key:pkix_decode_cert(Der, otp),
    [Name] = [Value || [#'AttributeTypeAndValue'{type = ?'id-at-commonName', value = {_, Value}}] <- Names],
    unicode:characters_to_list(Name).
