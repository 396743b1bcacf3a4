%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures the values for the demo's line about yucan: requests per second over keep-alive connections, compared with yaws if that is installed.
%% The client is also written in Erlang and competes with both servers for the processor; `bench http' measures with wrk.
-module(beamway_demo_http).

-export([run/1, text/1, handle/2]).

-type outcome() :: #{yucan := float(), yaws => float()}.

-define(CLIENTS, 16).
-define(MS, 1500).
-define(START_MS, 5000).
-define(REQUEST, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").

%% @doc Measures for less than 10 s. yucan runs on the first node of the cluster, and yaws in its own VM.
-spec run(beamway_bench_nodes:cluster()) -> outcome().
run(#{members := [First | _] = Members} = Cluster) ->
    Ebin = filename:join([beamway_bench_checkout:root(), "apps", "yucan", "ebin"]),
    _ = beamway_bench_nodes:all(Cluster#{members := lists:sublist(Members, 1)}, code, add_patha, [Ebin]),
    {ok, _} = beamway_bench_nodes:call(First, application, ensure_all_started, [yucan]),
    {ok, _} = beamway_bench_nodes:call(First, yucan, start, [#{listen => [#{port => 0}], handler => {?MODULE, none}}]),
    Rate = rate(beamway_bench_nodes:call(First, yucan, port, [yucan])),
    ok = beamway_bench_nodes:call(First, application, stop, [yucan]),
    case os:find_executable("yaws") of
        false -> #{yucan => Rate};
        Program -> beside(Program, #{yucan => Rate})
    end.

%% @private Answers a request, as yucan's handler.
-spec handle(term(), none) -> {200, [{binary(), binary()}], binary()}.
handle(_, none) -> {200, [{<<"content-type">>, <<"text/plain">>}], <<"hello world\n">>}.

%% If yaws does not start, there is nothing to compare with, so the line does not mention yaws.
beside(Program, Outcome) -> beamway_bench_tools:with_folder(fun(Folder) -> beside(Program, Folder, Outcome) end).

beside(Program, Folder, Outcome) ->
    {ok, Free} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Free),
    ok = gen_tcp:close(Free),
    File = filename:join(Folder, "yaws.conf"),
    ok = file:write_file(File, ["logdir = ", Folder, "\nkeepalive_maxuses = nolimit\n<server localhost>\n  port = ", integer_to_list(Port), "\n  listen = 127.0.0.1\n  docroot = ", Folder,
                                "\n  access_log = false\n</server>\n"]),
    ok = file:write_file(filename:join(Folder, "index.html"), "hello world\n"),
    Yaws = open_port({spawn_executable, Program}, [{args, ["--conf", File, "--daemon", "--id", "demo"]}, {env, [{"HOME", Folder}]}, stderr_to_stdout, exit_status, binary]),
    Measured = try
        ok = listening(Port, erlang:monotonic_time(millisecond) + ?START_MS),
        Outcome#{yaws => rate(Port)}
    catch
        error:_ -> Outcome
    end,
    _ = os:cmd(lists:join(" ", [Program, "--stop", "--id", "demo"])),
    _ = catch port_close(Yaws),
    Measured.

listening(Port, Deadline) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, [], 1000) of
        {ok, Socket} -> gen_tcp:close(Socket);
        {error, _} ->
            true = erlang:monotonic_time(millisecond) < Deadline,
            receive after 50 -> listening(Port, Deadline) end
    end.

%% ---- the client

rate(Port) ->
    Parent = self(),
    Began = erlang:monotonic_time(microsecond),
    Until = Began + ?MS * 1000,
    Pids = [spawn_link(fun() -> Parent ! {self(), client(Port, Until)} end) || _ <- lists:seq(1, ?CLIENTS)],
    Requests = lists:sum([receive {Pid, Count} -> Count after ?MS + ?START_MS -> error(no_answer) end || Pid <- Pids]),
    Requests * 1.0e6 / (erlang:monotonic_time(microsecond) - Began).

%% All responses have the same length as the first one.
client(Port, Until) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {nodelay, true}], ?START_MS),
    ok = gen_tcp:send(Socket, ?REQUEST),
    Length = first(Socket, <<>>),
    Count = more(Socket, Length, Until, 1),
    ok = gen_tcp:close(Socket),
    Count.

first(Socket, Bytes) ->
    {ok, Data} = gen_tcp:recv(Socket, 0, ?START_MS),
    All = <<Bytes/binary, Data/binary>>,
    case binary:split(All, <<"\r\n\r\nhello world\n">>) of
        [<<"HTTP/1.1 200", _/binary>>, <<>>] -> byte_size(All);
        [_] -> first(Socket, All)
    end.

more(Socket, Length, Until, Count) ->
    case erlang:monotonic_time(microsecond) < Until of
        true ->
            ok = gen_tcp:send(Socket, ?REQUEST),
            {ok, <<"HTTP/1.1 200", _/binary>>} = gen_tcp:recv(Socket, Length, ?START_MS),
            more(Socket, Length, Until, Count + 1);
        false -> Count
    end.

%% @doc Returns the line that the demo prints.
-spec text(outcome()) -> unicode:chardata().
text(#{yucan := Yucan} = Outcome) ->
    Beside = case Outcome of
        #{yaws := Yaws} -> io_lib:format("; yaws ~ts", [thousands(Yaws)]);
        #{} -> ""
    end,
    io_lib:format("Web: ~b clients that keep their connections get ~ts answers a second of yucan~ts.~n", [?CLIENTS, thousands(Yucan), Beside]).

thousands(Rate) -> io_lib:format("~.1f thousand", [Rate / 1000]).
