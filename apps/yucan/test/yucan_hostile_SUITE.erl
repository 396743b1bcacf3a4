%% SPDX-License-Identifier: Apache-2.0
%% @doc Many kinds of hostile clients at the same time, while the server is reloaded repeatedly. A well-behaved client is served throughout, the
%% number and size of the server's processes stay limited, and once the limits have taken effect, nothing is left behind.
-module(yucan_hostile_SUITE).
-behaviour(yucan_handler).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([all_at_once/1, handle/2]).

%% The number of clients of each kind.
-define(CLIENTS, 20).
-define(STREAMS, 10).
%% The maximum number of requests that the well-behaved client makes; by then, the limits must have disconnected all other clients. On a busy machine,
%% each request takes longer.
-define(ROUNDS, 600).
%% The maximum size of one of the server's processes: its heap, and a body that is read at once, a
%% WebSocket message or unread HTTP/2 data, counted twice because it is copied.
-define(PROCESS_BYTES, 4000000).

suite() -> [{timetrap, {minutes, 7}}].

all() -> [all_at_once].

init_per_suite(Config) -> yucan_test_server:start_application(Config).

end_per_suite(Config) -> yucan_test_server:stop_application(Config).

options() ->
    #{name => yucan_hostile, listen => [#{port => 0}], routes => [{"/flow", ?MODULE, none}, {"/*rest", yucan_test_handler, none}],
      limits => #{header_ms => 3000, read_ms => 3000, send_ms => 3000, idle_ms => 3000, ws_idle_ms => 2000, linger_ms => 1000, body_bytes => 1000000, connections => 1000}}.

%% An endless response that costs the handler nothing.
handle(_, _) ->
    Part = binary:copy(<<"x">>, 65536),
    {200, [], {stream, fun Flow(Write) -> case Write(Part) of ok -> Flow(Write); {error, _} -> ok end end}}.

%% Returns what each client does until the server closes the connection.
clients() ->
    [{slow_head, fun(S) -> drip(S, "GET / HTTP/1.1\r\nHost: a\r\nX: ", "y", 100) end},
     {slow_body, fun(S) -> drip(S, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n", "y", 200) end},
     {silent_body, fun(S) -> drip(S, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n", "", 500) end},
     {small_chunks, fun(S) -> flood(S, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", binary:copy(<<"1\r\nx\r\n">>, 1000)) end},
     {endless_headers, fun(S) -> flood(S, "GET / HTTP/1.1\r\nHost: a\r\n", binary:copy(<<"x: y\r\n">>, 100)) end},
     {garbage, fun(S) -> flood(S, "", crypto:strong_rand_bytes(1000)) end},
     {reads_nothing, fun(S) -> drip(S, "GET /flow HTTP/1.1\r\nHost: a\r\n\r\n", "", 500) end},
     {pipelines, fun(S) -> flood(S, "", binary:copy(<<"GET /text HTTP/1.1\r\nHost: a\r\n\r\n">>, 100)) end},
     {ws_silent, fun(S) -> drip(S, yucan_ws_client:head("/ws"), "", 500) end},
     {ws_reads_nothing, fun(S) -> flood(S, yucan_ws_client:head("/ws"), yucan_ws_client:frame(130, binary:copy(<<"x">>, 60000))) end},
     {ws_too_large, fun(S) ->
          Part = iolist_to_binary(yucan_ws_client:frame(0, binary:copy(<<"x">>, 1000))),
          flood(S, yucan_ws_client:head("/ws"), [yucan_ws_client:frame(2, <<"x">>), binary:copy(Part, 100)])
      end},
     {ws_unmasked, fun(S) -> drip(S, [yucan_ws_client:head("/ws"), <<129, 1, "x">>], "", 500) end},
     {h2_reads_nothing, fun(S) -> drip(S, h2_head([{4, 0}], <<"/flow">>), "", 500) end},
     {h2_takes_nothing, fun(S) -> drip(S, h2_head([{4, 16#7fffffff}], <<"/flow">>), yucan_h2_client:frame(8, 0, 0, <<16#1000000:32>>), 100) end},
     {h2_half_headers, fun(S) -> drip(S, [h2_preface([]), yucan_h2_client:frame(1, 0, 1, <<0>>)], "", 500) end},
     {h2_pings, fun(S) -> flood(S, h2_preface([]), yucan_h2_client:frame(6, 0, 0, <<0:64>>)) end},
     {h2_resets, fun(S) -> resets(S, 1) end},
     {h2_idle, fun(S) -> drip(S, h2_preface([]), "", 500) end}].

h2_preface(Settings) -> ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", yucan_h2_client:frame(4, 0, 0, yucan_h2_client:settings(Settings))].

h2_head(Settings, Path) ->
    [h2_preface(Settings) | [yucan_h2_client:headers(2 * N - 1, 1, yucan_h2_client:get(Path, []), <<>>) || N <- lists:seq(1, ?STREAMS)]].

%% None of these clients reads. They notice that the server has closed its side when a write fails,
%% or from the socket's state.
drip(Socket, First, Next, Ms) ->
    ok = gen_tcp:send(Socket, First),
    dripped(Socket, Next, Ms).

dripped(Socket, Next, Ms) ->
    receive after Ms -> ok end,
    case gen_tcp:send(Socket, Next) =:= ok andalso not yucan_tcp:is_closed(Socket) of
        true -> dripped(Socket, Next, Ms);
        false -> gone
    end.

flood(Socket, First, Next) ->
    _ = gen_tcp:send(Socket, First),
    flooded(Socket, Next).

%% Sends fast, but not so fast that two CPUs cannot keep up with all clients.
flooded(Socket, Next) ->
    receive after 10 -> ok end,
    case gen_tcp:send(Socket, Next) =:= ok andalso not yucan_tcp:is_closed(Socket) of
        true -> flooded(Socket, Next);
        false -> gone
    end.

resets(Socket, Id) ->
    _ = [gen_tcp:send(Socket, h2_preface([])) || Id =:= 1],
    Frames = [[yucan_h2_client:headers(Id + 2 * N, 1, yucan_h2_client:get(<<"/loop">>, []), <<>>), yucan_h2_client:frame(3, 0, Id + 2 * N, <<8:32>>)] || N <- lists:seq(0, 9)],
    case gen_tcp:send(Socket, Frames) =:= ok andalso not yucan_tcp:is_closed(Socket) of
        true -> resets(Socket, Id + 20);
        false -> gone
    end.

%% Returns the server's processes: those that serve clients, and about 16 that are waiting for a connection.
serving() ->
    [Pid || Pid <- processes(), {initial_call, {Module, _, _}} <- [process_info(Pid, initial_call)], lists:member(Module, [yucan_conn, yucan_h2_exchange])].

all_at_once(_) ->
    Port = yucan_test_server:start(yucan_hostile, options()),
    Before = length(serving()),
    Clients = [{Name, spawn_monitor(fun() ->
        {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {send_timeout, 20000}, {recbuf, 16384}, {exit_on_close, false}]),
        exit({done, Run(Socket)})
    end)} || _ <- lists:seq(1, ?CLIENTS), {Name, Run} <- clients()],
    {Most, Largest, Slowest} = watched(Port, Clients, {0, 0, 0}, ?ROUNDS),
    ct:pal("~b clients: at most ~b processes that served, the largest ~b bytes; the good client waited ~b ms at most", [length(Clients), Most, Largest, Slowest]),
    {true, Most} = {Most =< Before + length(Clients) + 1 + 3 * ?CLIENTS * ?STREAMS, Most},
    {true, Largest} = {Largest < ?PROCESS_BYTES, Largest},
    {true, Slowest} = {Slowest < 5000 * beamway_runner:slowness(), Slowest},
    [begin exit(Pid, kill), receive {'DOWN', Monitor, process, Pid, Reason} -> {Name, true} = {Name, lists:member(Reason, [killed, {done, gone}])} end end
     || {Name, {Pid, Monitor}} <- Clients],
    true = beamway_peer:wait_until(fun() -> length(serving()) =< 32 end, 60000).

%% Waits until the server has disconnected all clients. Returns the largest number of its processes, the size of the largest process, and the longest
%% time that a well-behaved client had to wait. A client that does not read cannot tell that it has been disconnected, so this checks the server's own
%% count.
watched(Port, Clients, {Most, Largest, Slowest}, Rounds) ->
    Began = erlang:monotonic_time(millisecond),
    {200, _, <<"OK">>} = yucan_client:get(Port, "/"),
    Waited = erlang:monotonic_time(millisecond) - Began,
    ok = yucan:reload(yucan_hostile, options()),
    Serving = serving(),
    Sizes = [Memory + lists:sum([Size || {_, Size, _} <- lists:ukeysort(1, Binaries)])
             || Pid <- Serving, [{memory, Memory}, {binary, Binaries}] <- [process_info(Pid, [memory, binary])]],
    receive after 50 -> ok end,
    Seen = {max(Most, length(Serving)), lists:max([Largest | Sizes]), max(Slowest, Waited)},
    #{metrics := #{connections := All, open_connections := Open}} = yucan:info(yucan_hostile),
    case Open =:= 0 andalso All > length(Clients) + 10 of
        true -> Seen;
        false ->
            Rounds > 0 orelse error({not_ended, Open, [Name || {Name, {Pid, _}} <- Clients, is_process_alive(Pid)]}),
            watched(Port, Clients, Seen, Rounds - 1)
    end.
