%% SPDX-License-Identifier: Apache-2.0
%% @doc `make overload-yucan': for a minute, a server gets twice as many requests as it can answer. It must not crash, its memory use must stay
%% bounded, and within a second after the load ends it must answer as fast as before.
%%
%% The handler works for two milliseconds, so the capacity of a scheduler is far below what a client can offer. The load is an open loop: each
%% request starts at its planned time on a new connection, whatever happened to earlier ones. The server is a separate VM with a single
%% scheduler.
-module(yucan_overload).

-export([main/0]).

-define(CONNECTIONS, 500).
-define(MOST_MB, 150).
-define(WAIT_MS, 10000).
-define(REQUEST, "GET /work HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").

%% @doc Entry point, with the seconds of overload after `-extra'. The status is 1 if a requirement is not met.
-spec main() -> no_return().
main() ->
    [Text] = init:get_plain_arguments(),
    Seconds = list_to_integer(Text),
    {Vm, Pid, Port} = server(),
    Before = closed(Port, 3000),
    Idle = resident_mb(Pid),
    say("capacity ~b requests/s, ~b MB resident", [round(Before), Idle]),
    Most = spawn_monitor_memory(Pid),
    Counts = open(Port, 2 * Before, Seconds * 1000),
    Peak = stop_memory(Most),
    After = closed(Port, 1000),
    Offered = lists:sum(maps:values(Counts)),
    say("~b s of ~b requests/s: ~b offered, ~b answered, ~b told to come again (503), ~b ended without an answer",
        [Seconds, round(2 * Before), Offered, maps:get(200, Counts, 0), maps:get(503, Counts, 0), Offered - maps:get(200, Counts, 0) - maps:get(503, Counts, 0)]),
    say("at most ~b MB resident (bound ~b); in the second after the load ~b requests/s", [Peak, Idle + ?MOST_MB, round(After)]),
    Alive = erlang:port_info(Vm) =/= undefined,
    _ = os:cmd("kill -KILL " ++ integer_to_list(Pid)),
    Wrong = [What || {false, What} <- [{Alive, "the server has ended"}, {Peak =< Idle + ?MOST_MB, "its memory grew beyond the bound"},
                                       {After >= 0.8 * Before, "it is not as fast again as it was"},
                                       {maps:get(200, Counts, 0) >= 0.5 * Before * Seconds, "it answered less than half of what it could"}]],
    [say("FAIL ~ts", [What]) || What <- Wrong],
    halt(case Wrong of [] -> 0; _ -> 1 end).

say(Format, Arguments) -> io:format(Format ++ "~n", Arguments).

server() ->
    Ebins = [filename:dirname(code:which(Module)) || Module <- [yucan, ?MODULE]],
    Code = io_lib:format("{ok, _} = application:ensure_all_started(yucan), {ok, _} = yucan:start(#{listen => [#{port => 0}], handler => {yucan_test_handler, none},"
                         " limits => #{connections => ~b}}), io:format(\"~~b~~n\", [yucan:port(yucan)]).", [?CONNECTIONS]),
    Vm = open_port({spawn_executable, os:find_executable("erl")},
                   [{args, ["+S", "1:1", "-noinput", "-boot", "no_dot_erlang", "-pa" | Ebins] ++ ["-eval", Code]}, {line, 200}, exit_status]),
    {os_pid, Pid} = erlang:port_info(Vm, os_pid),
    [Port] = test_support:until_line(Vm, "^(\\d+)$", ?WAIT_MS),
    {Vm, Pid, binary_to_integer(Port)}.

%% ---- memory, checked ten times a second

resident_mb(Pid) ->
    {ok, Status} = file:read_file("/proc/" ++ integer_to_list(Pid) ++ "/status"),
    {match, [Kb]} = re:run(Status, "VmRSS:\\s+(\\d+) kB", [{capture, all_but_first, list}]),
    list_to_integer(Kb) div 1024.

spawn_monitor_memory(Pid) ->
    Parent = self(),
    spawn_link(fun() -> watch_memory(Parent, Pid, 0) end).

watch_memory(Parent, Pid, Most) ->
    receive
        stop -> Parent ! {self(), Most}
    after 100 -> watch_memory(Parent, Pid, max(Most, resident_mb(Pid)))
    end.

stop_memory(Watcher) ->
    Watcher ! stop,
    receive {Watcher, Most} -> Most after ?WAIT_MS -> error(no_watcher) end.

%% ---- load

%% Runs eight clients, each of which sends its next request once the previous one has been answered. Returns the responses per second.
closed(Port, Ms) ->
    Parent = self(),
    Began = erlang:monotonic_time(millisecond),
    Pids = [spawn_link(fun() -> Parent ! {self(), asking(Port, Began + Ms, 0)} end) || _ <- lists:seq(1, 8)],
    Count = lists:sum([receive {Pid, N} -> N after Ms + ?WAIT_MS -> error(no_client) end || Pid <- Pids]),
    Count * 1000 / (erlang:monotonic_time(millisecond) - Began).

asking(Port, Until, Count) ->
    case erlang:monotonic_time(millisecond) < Until of
        true -> asking(Port, Until, case ask(Port) of 200 -> Count + 1; _ -> Count end);
        false -> Count
    end.

%% Starts the requests that are due, every 5 ms. Returns how often each status was received.
open(Port, Rate, Ms) ->
    Began = erlang:monotonic_time(millisecond),
    Sent = send(Port, Rate, Began, Began + Ms, 0),
    collect(Sent, #{}).

send(Port, Rate, Began, Until, Sent) ->
    Now = erlang:monotonic_time(millisecond),
    Due = trunc(Rate * (min(Now, Until) - Began) / 1000) - Sent,
    Parent = self(),
    _ = [spawn(fun() -> Parent ! {answer, ask(Port)} end) || _ <- lists:seq(1, Due)],
    case Now < Until of
        true -> receive after 5 -> send(Port, Rate, Began, Until, Sent + Due) end;
        false -> Sent + Due
    end.

collect(0, Counts) -> Counts;
collect(Left, Counts) ->
    receive {answer, Status} -> collect(Left - 1, maps:update_with(Status, fun(N) -> N + 1 end, 1, Counts))
    after 3 * ?WAIT_MS -> error({no_answers, Left})
    end.

ask(Port) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}], ?WAIT_MS) of
        {ok, Socket} ->
            _ = gen_tcp:send(Socket, ?REQUEST),
            Answer = gen_tcp:recv(Socket, 0, ?WAIT_MS),
            gen_tcp:close(Socket),
            case Answer of
                {ok, <<"HTTP/1.1 ", Status:3/binary, _/binary>>} -> binary_to_integer(Status);
                _ -> none
            end;
        {error, _} -> none
    end.
