%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench http-private': what does yucan gain by calling private functions of OTP (prim_inet, inet_db, prim_file) instead of the documented
%% functions? Each number is this VM's CPU time for one operation. It includes the client side of the sockets, which is the same in both cases.
-module(beamway_bench_http_private).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1]).

-define(HEAD, <<"GET / HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\n\r\n">>).
-define(ANSWER, [<<"HTTP/1.1 200 OK\r\n">>, [<<"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n">>, <<"server: yucan\r\n">>], <<"content-length: 12\r\n\r\n">>, <<"hello world\n">>]).
-define(BODY_BYTES, 65536).
-define(FILE_BYTES, 1024).
%% The socket options that yucan sets (yucan_tcp).
-define(LISTEN, [binary, {active, false}, {packet, raw}, {reuseaddr, true}, {backlog, 1024}, {nodelay, true}, {exit_on_close, false},
                 {send_timeout, 30000}, {send_timeout_close, true}, {buffer, 8192}, {ip, {127, 0, 0, 1}}]).

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(_, Speed) -> {ok, #{scale => case Speed of quick -> 1; full -> 5 end}}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{scale := Scale}) ->
    [#{nodes => 0, contenders => [Kind], directions => [none], measure => fun(none) -> measure(Kind, Scale) end} || Kind <- [private, documented]].

measure(Kind, Scale) ->
    maps:from_list([{key(What), cost(What, Kind, Scale * Count)} || {What, Count} <- counts()]).

counts() -> [{receive_send, 6000}, {accept, 1000}, {body, 2000}, {file, 10000}].

cost(What, Kind, Count) ->
    Run = ready(What, Kind),
    _ = Run(Count div 10),
    erlang:garbage_collect(),
    Before = processor_ns(),
    ok = Run(Count),
    (processor_ns() - Before) / 1000 / Count.

%% Returns the CPU time that all threads of this VM have used in user space and in the kernel.
processor_ns() ->
    lists:sum([list_to_integer(hd(string:lexemes(Text, " "))) || File <- filelib:wildcard("/proc/self/task/*/schedstat"), {ok, Bytes} <- [file:read_file(File)],
                                                                 Text <- [binary_to_list(Bytes)]]).

ready(file, Kind) ->
    File = filename:join(os:getenv("TMPDIR", "/tmp"), "beamway-bench-" ++ os:getpid()),
    ok = file:write_file(File, binary:copy(<<$x>>, ?FILE_BYTES)),
    fun(Count) -> times(Count, fun() -> ?FILE_BYTES = byte_size(read_file(Kind, list_to_binary(File))) end) end;
ready(accept, Kind) ->
    fun(Count) ->
        with_server(fun(Listening) -> times(Count, fun() -> gen_tcp:close(accept(Kind, Listening)) end) end,
                    fun(Port) -> times(Count, fun() -> Socket = connect(Port), {error, closed} = gen_tcp:recv(Socket, 0, 10000), gen_tcp:close(Socket) end) end)
    end;
ready(receive_send, Kind) ->
    fun(Count) ->
        with_server(fun(Listening) ->
                            Socket = accept(documented, Listening),
                            times(Count, fun() -> {ok, _} = recv(Kind, Socket), ok = send(Kind, Socket) end)
                    end,
                    fun(Port) ->
                            Socket = connect(Port),
                            times(Count, fun() -> ok = gen_tcp:send(Socket, ?HEAD), {ok, _} = gen_tcp:recv(Socket, 0, 10000) end)
                    end)
    end;
ready(body, Kind) ->
    fun(Count) ->
        Body = binary:copy(<<$x>>, ?BODY_BYTES),
        with_server(fun(Listening) ->
                            Socket = accept(documented, Listening),
                            times(Count, fun() ->
                                ?BODY_BYTES = byte_size(body(Kind, Socket)),
                                ok = gen_tcp:send(Socket, <<"done">>)
                            end)
                    end,
                    fun(Port) ->
                            Socket = connect(Port),
                            times(Count, fun() -> ok = gen_tcp:send(Socket, Body), {ok, _} = gen_tcp:recv(Socket, 4, 10000) end)
                    end)
    end.

times(0, _) -> ok;
times(Count, Function) -> _ = Function(), times(Count - 1, Function).

with_server(Serve, Ask) ->
    {ok, Listening} = gen_tcp:listen(0, ?LISTEN),
    {ok, Port} = inet:port(Listening),
    {Pid, Monitor} = spawn_monitor(fun() -> Serve(Listening) end),
    ok = Ask(Port),
    receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason end,
    gen_tcp:close(Listening).

connect(Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {nodelay, true}]),
    Socket.

accept(documented, Listening) ->
    {ok, Socket} = gen_tcp:accept(Listening, 10000),
    Socket;
accept(private, Listening) ->
    {ok, Reference} = prim_inet:async_accept(Listening, -1),
    receive
        {inet_async, Listening, Reference, {ok, Socket}} ->
            {ok, Module} = inet_db:lookup_socket(Listening),
            true = inet_db:register_socket(Socket, Module),
            Socket
    after 10000 -> error(nobody_came)
    end.

recv(documented, Socket) -> gen_tcp:recv(Socket, 0, 10000);
recv(private, Socket) -> prim_inet:recv(Socket, 0, 10000).

send(documented, Socket) -> gen_tcp:send(Socket, ?ANSWER);
send(private, Socket) -> prim_inet:send(Socket, ?ANSWER).

%% The part of the body that arrived with the head is either put back into the driver or joined with the rest.
body(private, Socket) ->
    {ok, Some} = gen_tcp:recv(Socket, 0, 10000),
    ok = prim_inet:unrecv(Socket, Some),
    {ok, Body} = gen_tcp:recv(Socket, ?BODY_BYTES, 10000),
    Body;
body(documented, Socket) ->
    {ok, Some} = gen_tcp:recv(Socket, 0, 10000),
    case ?BODY_BYTES - byte_size(Some) of
        0 -> Some;
        Missing ->
            {ok, Rest} = gen_tcp:recv(Socket, Missing, 10000),
            <<Some/binary, Rest/binary>>
    end.

read_file(private, File) ->
    {ok, Data} = prim_file:read_file(File),
    Data;
read_file(documented, File) ->
    {ok, Handle} = file:open(File, [read, raw, binary]),
    {ok, Data} = file:read(Handle, ?FILE_BYTES),
    ok = file:close(Handle),
    Data.

key(receive_send) -> <<"processor time, a request received and a small answer sent">>;
key(accept) -> <<"processor time, a connection accepted and closed">>;
key(body) -> <<"processor time, a body of 64 KB received whole">>;
key(file) -> <<"processor time, a file of 1 KB read">>.

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(_) ->
    [#{name => <<"private_", (atom_to_binary(What))/binary>>, unit => <<"us">>, better => lower, key => key(What), contender => private, baselines => [documented]}
     || {What, _} <- counts()].
