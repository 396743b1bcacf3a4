%% SPDX-License-Identifier: Apache-2.0
%% @doc The half of the benchmarks of lanes that runs inside the nodes: the ring of the library that this one follows, callers of
%% a server, paced streams of large messages, and a heartbeat beside them.
%%
%% Every message goes by `stock' (`!', gen_server:call) or by `lane' (teleport), and everything else is the same.
-module(beamway_bench_lanes).

-export([start/0, start_ring/2, ring/3, start_server/0, start_sink/0, calls/4, capacity/3, start_streams/4, stop_streams/0, heartbeat/4, prime/1]).
-export_type([way/0]).

-type way() :: stock | lane.

-define(RING, beamway_bench_ring).
-define(SERVER, beamway_bench_server).
-define(SINK, beamway_bench_sink).
-define(STREAMS, beamway_bench_streams).
-define(ANSWER_MS, 60000).

send(Way, Dest, Message) -> send(Way, Dest, Message, normal).

send(stock, Dest, Message, _Class) -> Dest ! Message, ok;
send(lane, Dest, Message, Class) -> ok = teleport:send(Dest, Message, #{timeout => ?ANSWER_MS, class => Class}).

call(stock, Server, Request) -> gen_server:call(Server, Request, ?ANSWER_MS);
call(lane, Server, Request) -> teleport:call(Server, Request, ?ANSWER_MS).

%% @doc Starts the application.
-spec start() -> ok.
start() ->
    {ok, _} = application:ensure_all_started(teleport),
    ok.

%% @doc Opens the lanes to these nodes.
-spec prime([node()]) -> ok.
prime(Nodes) ->
    lists:foreach(fun(Node) -> ok = teleport:prime(Node, ?ANSWER_MS) end, Nodes -- [node()]).

%% ---- the ring ----

%% @doc A process that passes binaries on to the next node.
-spec start_ring(way(), Next :: node()) -> true.
start_ring(Way, Next) -> started(?RING, fun() -> pass_on(Way, Next) end).

%% Anew in each repeat, on nodes that are kept.
started(Name, Fun) ->
    case whereis(Name) of
        undefined -> true;
        Old -> true = unregister(Name), exit(Old, kill)
    end,
    register(Name, spawn(Fun)).

pass_on(Way, Next) ->
    receive
        {1, Worker, Binary} -> send(Way, Worker, {round, byte_size(Binary)});
        {Left, Worker, Binary} -> send(Way, {?RING, Next}, {Left - 1, Worker, Binary})
    end,
    pass_on(Way, Next).

%% The exit reason is how the result travels.
-dialyzer({nowarn_function, ring/3}).
%% @doc So many workers send a binary each round so many nodes; the last one acknowledges. The time of each in microseconds.
-spec ring(way(), {Next :: node(), Nodes :: pos_integer()}, {Workers :: pos_integer(), Bytes :: pos_integer()}) -> [pos_integer()].
ring(Way, {Next, Nodes}, {Workers, Bytes}) ->
    Binary = binary:copy(<<"r">>, Bytes),
    Each = [spawn_monitor(fun() -> exit({took, once_round(Way, Next, Nodes, Binary)}) end) || _ <- lists:seq(1, Workers)],
    [receive
         {'DOWN', Monitor, process, Pid, {took, Us}} -> Us;
         {'DOWN', Monitor, process, Pid, Reason} -> error({ring_broken, Reason})
     end || {Pid, Monitor} <- Each].

once_round(Way, Next, Nodes, Binary) ->
    Bytes = byte_size(Binary),
    Start = erlang:monotonic_time(microsecond),
    ok = send(Way, {?RING, Next}, {Nodes, self(), Binary}),
    receive {round, Bytes} -> erlang:monotonic_time(microsecond) - Start
    after ?ANSWER_MS -> exit(lost)
    end.

%% ---- calls ----

%% @doc A server that echoes.
-spec start_server() -> true.
start_server() -> started(?SERVER, fun serve/0).

serve() ->
    receive {'$gen_call', From, Request} -> gen_server:reply(From, Request) end,
    serve().

%% @doc So many callers in a loop, for so many milliseconds: calls a second.
-spec calls(way(), node(), Callers :: pos_integer(), {WarmMs :: pos_integer(), Ms :: pos_integer()}) -> float().
calls(Way, Node, Callers, {WarmMs, Ms}) ->
    Server = erpc:call(Node, erlang, whereis, [?SERVER]),
    Count = counters:new(1, [write_concurrency]),
    Pids = [spawn_link(fun() -> call_loop(Way, Server, Count) end) || _ <- lists:seq(1, Callers)],
    receive after WarmMs -> ok end,
    {Before, From} = {counters:get(Count, 1), erlang:monotonic_time(microsecond)},
    receive after Ms -> ok end,
    {After, Until} = {counters:get(Count, 1), erlang:monotonic_time(microsecond)},
    _ = [begin unlink(Pid), exit(Pid, kill) end || Pid <- Pids],
    (After - Before) * 1.0e6 / (Until - From).

call_loop(Way, Server, Count) ->
    Request = self(),
    Request = call(Way, Server, Request),
    ok = counters:add(Count, 1, 1),
    call_loop(Way, Server, Count).

%% ---- a heartbeat beside large messages ----

%% @doc Takes messages and confirms each, by stock distribution: a few bytes.
-spec start_sink() -> true.
start_sink() -> started(?SINK, fun sink/0).

sink() ->
    receive {From, Binary} -> From ! {taken, byte_size(Binary)} end,
    sink().

%% @doc How many messages of so many bytes a second four streams bring to the node at most, by stock distribution.
-spec capacity(node(), Bytes :: pos_integer(), Ms :: pos_integer()) -> float().
capacity(Node, Bytes, Ms) ->
    Binary = binary:copy(<<"c">>, Bytes),
    Count = counters:new(1, []),
    Pids = [spawn_link(fun() -> stream(stock, Node, Binary, Count, 0) end) || _ <- lists:seq(1, 4)],
    receive after Ms div 4 -> ok end,
    {Before, From} = {counters:get(Count, 1), erlang:monotonic_time(microsecond)},
    receive after Ms -> ok end,
    {After, Until} = {counters:get(Count, 1), erlang:monotonic_time(microsecond)},
    _ = [begin unlink(Pid), exit(Pid, kill) end || Pid <- Pids],
    (After - Before) * 1.0e6 / (Until - From).

%% Each waits until its last message was taken, and until its time has come: `EveryUs' apart, 0 for at once.
stream(Way, Node, Binary, Count, EveryUs) ->
    stream(Way, Node, Binary, Count, EveryUs, erlang:monotonic_time(microsecond)).

stream(Way, Node, Binary, Count, EveryUs, Due) ->
    receive after max(0, (Due - erlang:monotonic_time(microsecond)) div 1000) -> ok end,
    ok = send(Way, {?SINK, Node}, {self(), Binary}, bulk),
    receive {taken, _} -> ok after ?ANSWER_MS -> exit(no_answer) end,
    ok = counters:add(Count, 1, 1),
    %% A stream that is late does not catch up: the pace is a limit.
    stream(Way, Node, Binary, Count, EveryUs, max(Due + EveryUs, erlang:monotonic_time(microsecond) - EveryUs)).

%% @doc Four streams to the node, together so many messages a second; they run until {@link stop_streams/0}.
-spec start_streams(way(), node(), Bytes :: pos_integer(), Rate :: float()) -> ok.
start_streams(Way, Node, Bytes, Rate) ->
    Starter = self(),
    EveryUs = round(4 * 1.0e6 / Rate),
    Keeper = spawn(fun() ->
                           true = register(?STREAMS, self()),
                           Binary = binary:copy(<<"s">>, Bytes),
                           Count = counters:new(1, []),
                           Start = erlang:monotonic_time(microsecond),
                           Pids = [spawn_link(fun() -> receive after N * EveryUs div 4000 -> stream(Way, Node, Binary, Count, EveryUs) end end)
                                   || N <- [0, 1, 2, 3]],
                           Starter ! {self(), started},
                           receive
                               {stop, From} ->
                                   _ = [begin unlink(Pid), exit(Pid, kill) end || Pid <- Pids],
                                   From ! {stopped, counters:get(Count, 1) * 1.0e6 / (erlang:monotonic_time(microsecond) - Start)}
                           end
                   end),
    receive {Keeper, started} -> ok after ?ANSWER_MS -> error(no_streams) end.

%% @doc Ends them: how many messages a second they really brought.
-spec stop_streams() -> float().
stop_streams() ->
    Monitor = monitor(process, ?STREAMS),
    ?STREAMS ! {stop, self()},
    Rate = receive {stopped, Real} -> Real after ?ANSWER_MS -> error(streams_do_not_stop) end,
    receive {'DOWN', Monitor, process, _, _} -> Rate end.

%% @doc A call of 64 bytes each millisecond or so for so long: the round trips in nanoseconds.
-spec heartbeat(way(), node(), PauseMs :: non_neg_integer(), Ms :: pos_integer()) -> [pos_integer()].
heartbeat(Way, Node, PauseMs, Ms) ->
    Server = erpc:call(Node, erlang, whereis, [?SERVER]),
    Beat = binary:copy(<<"h">>, 64),
    beats(Way, Server, Beat, PauseMs, erlang:monotonic_time(millisecond) + Ms, []).

beats(Way, Server, Beat, PauseMs, Deadline, Acc) ->
    Start = erlang:monotonic_time(nanosecond),
    Beat = beat(Way, Server, Beat),
    Took = erlang:monotonic_time(nanosecond) - Start,
    receive after PauseMs -> ok end,
    case erlang:monotonic_time(millisecond) >= Deadline of
        true -> [Took | Acc];
        false -> beats(Way, Server, Beat, PauseMs, Deadline, [Took | Acc])
    end.

beat(stock, Server, Beat) -> gen_server:call(Server, Beat, ?ANSWER_MS);
beat(lane, Server, Beat) -> teleport:call(Server, Beat, ?ANSWER_MS, #{class => control}).
