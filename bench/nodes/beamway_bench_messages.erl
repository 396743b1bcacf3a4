%% SPDX-License-Identifier: Apache-2.0
%% @doc The part of the message benchmarks that runs inside the nodes: the ring benchmark of the library on which teleport is modelled, processes that
%% call a server, processes that send messages, paced streams of large messages, and a heartbeat that runs at the same time.
%%
%% Messages are sent either with `stock' (`!', gen_server:call) or with `teleport'; everything else is the same.
-module(beamway_bench_messages).

-export([open/2, start/0, start_ring/2, ring/3, start_server/0, start_sink/0, start_sink/1, calls/4, capacity/3, start_streams/4, start_streams/5, start_load/4, start_loops/2, done/0,
         done/1, stop/0, stop/1, heartbeat/4, planned_calls/3, planned_messages/5, planned/2]).
-export_type([way/0, load/0, payload/0]).

-type way() :: stock | teleport.
-type payload() :: {binary, Bytes :: pos_integer()} | {list, Bytes :: pos_integer()} | {map, Keys :: pos_integer()}.
%% A list consists of pairs that take about 25 bytes each in the external format.
-type load() :: call | {message | cast | cast_name, payload(), Batch :: pos_integer(), Open :: pos_integer()}.
%% A process either calls the server, or sends messages or casts to the sink by its pid or name. The sink confirms each batch. `Open' is the largest
%% number of unconfirmed batches that a sender may have.

-define(RING, beamway_bench_ring).
-define(SERVER, beamway_bench_server).
-define(SINK, beamway_bench_sink).
-define(KEEPER, beamway_bench_keeper).
-define(ANSWER_MS, 60000).

send(stock, Dest, Message) -> Dest ! Message, ok;
send(teleport, Dest, Message) -> teleport:send(Dest, Message).

cast(stock, Dest, Request) -> Dest ! {'$gen_cast', Request}, ok;
cast(teleport, Dest, Request) -> ok = teleport:cast(Dest, Request).

call(stock, Server, Request) -> gen_server:call(Server, Request, ?ANSWER_MS);
call(_, Server, Request) -> teleport:call(Server, Request, ?ANSWER_MS).

%% @doc Starts teleport on all nodes of the cluster if the contender uses it.
-spec open(beamway_bench_nodes:cluster(), [node()]) -> way().
open(#{contender := #{name := Name}} = Cluster, _) ->
    Way = beamway_bench_contender:way(Name),
    _ = [beamway_bench_nodes:all(Cluster, ?MODULE, start, []) || Way =:= teleport],
    Way.

%% @doc Starts teleport.
-spec start() -> ok.
start() ->
    {ok, _} = application:ensure_all_started(teleport),
    ok.

%% ---- the ring ----

%% @doc Starts a process that forwards binaries to the next node.
-spec start_ring(way(), Next :: node()) -> true.
start_ring(Way, Next) -> started(?RING, fun() -> pass_on(Way, Next) end).

%% Replaces the process that an earlier repeat has left behind, because the nodes stay up between repeats.
started(Name, Fun) ->
    case whereis(Name) of
        undefined -> true;
        Old -> true = unregister(Name), exit(Old, kill)
    end,
    register(Name, spawn(Fun)).

pass_on(Way, Next) ->
    receive
        {Left, Worker, Shared} when is_tuple(Shared) ->
            {ok, Binary} = teleport:open(Shared),
            passed(Way, Next, Left, Worker, teleport:share(Binary, ?ANSWER_MS), Binary);
        {Left, Worker, Binary} -> passed(Way, Next, Left, Worker, Binary, Binary)
    end,
    pass_on(Way, Next).

passed(Way, _, 1, Worker, _, Binary) -> send(Way, Worker, {round, byte_size(Binary)});
passed(Way, Next, Left, Worker, Passed, _) -> send(Way, {?RING, Next}, {Left - 1, Worker, Passed}).

%% The result is returned as an exit reason.
-dialyzer({nowarn_function, ring/3}).
%% @doc Each worker sends a binary around the ring of `Nodes' nodes once, and the last node acknowledges it. Returns each worker's time in
%% microseconds.
-spec ring(way(), {Next :: node(), Nodes :: pos_integer()}, {Workers :: pos_integer(), Bytes :: pos_integer(), plain | block}) -> [pos_integer()].
ring(Way, {Next, Nodes}, {Workers, Bytes, Kind}) ->
    Plain = binary:copy(<<"r">>, Bytes),
    Binary = case Kind of plain -> Plain; block -> teleport:share(Plain) end,
    Each = [spawn_monitor(fun() -> exit({took, once_round(Way, Next, Nodes, Bytes, Binary)}) end) || _ <- lists:seq(1, Workers)],
    [receive
         {'DOWN', Monitor, process, Pid, {took, Us}} -> Us;
         {'DOWN', Monitor, process, Pid, Reason} -> error({ring_broken, Reason})
     end || {Pid, Monitor} <- Each].

once_round(Way, Next, Nodes, Bytes, Binary) ->
    Start = erlang:monotonic_time(microsecond),
    ok = send(Way, {?RING, Next}, {Nodes, self(), Binary}),
    receive {round, Bytes} -> erlang:monotonic_time(microsecond) - Start
    after ?ANSWER_MS -> exit(lost)
    end.

%% ---- calls ----

%% @doc Starts an echo server.
-spec start_server() -> true.
start_server() -> started(?SERVER, fun serve/0).

serve() ->
    receive
        {'$gen_call', From, {take, _}} -> gen_server:reply(From, taken);
        {'$gen_call', From, Request} -> gen_server:reply(From, Request)
    end,
    serve().

%% @doc Returns how many calls per second this many callers make together, each of them in a loop for `Ms' milliseconds.
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

%% ---- a heartbeat during large messages ----

%% @doc Starts a process that receives messages and confirms each with a few bytes over stock distribution.
-spec start_sink() -> true.
start_sink() -> start_sink(stock).

%% @doc Like {@link start_sink/0}, but the process confirms in the given way, and only if the message contains the pid of a process that waits for the
%% confirmation.
-spec start_sink(way()) -> true.
start_sink(Way) -> started(?SINK, fun() -> sink(Way) end).

sink(Way) ->
    receive
        {nobody, _} -> ok;
        {'$gen_cast', {nobody, _}} -> ok;
        {'$gen_cast', {From, _}} -> ok = send(Way, From, taken);
        {From, _} -> ok = send(Way, From, taken)
    end,
    sink(Way).

%% @doc Returns how many messages of this size four streams can deliver to the node per second over stock distribution.
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

%% Sends a message when it is due and waits for its confirmation before the next one. Messages are due `EveryUs' apart; if that is 0, each is due
%% immediately.
stream(Way, Node, Binary, Count, EveryUs) ->
    stream(Way, Node, Binary, Count, EveryUs, erlang:monotonic_time(microsecond)).

stream(Way, Node, Binary, Count, EveryUs, Due) ->
    receive after max(0, (Due - erlang:monotonic_time(microsecond)) div 1000) -> ok end,
    ok = send(Way, {?SINK, Node}, {self(), Binary}),
    receive taken -> ok after ?ANSWER_MS -> exit(no_answer) end,
    ok = counters:add(Count, 1, 1),
    %% A stream that is late does not catch up, because the rate is an upper limit.
    stream(Way, Node, Binary, Count, EveryUs, max(Due + EveryUs, erlang:monotonic_time(microsecond) - EveryUs)).

%% @doc Starts four streams to the node that together send `Rate' messages per second until {@link stop/0} is called. If the rate is `infinity', each
%% stream sends its next message as soon as the previous one has been confirmed.
-spec start_streams(way(), node(), Bytes :: pos_integer(), Rate :: float() | infinity) -> ok.
start_streams(Way, Node, Bytes, Rate) -> start_streams(?KEEPER, Way, Node, Bytes, Rate).

%% @doc Like {@link start_streams/4}, but the streams have a name for {@link done/1} and {@link stop/1}, so that the node can run another load at the
%% same time.
-spec start_streams(Name :: atom(), way(), node(), Bytes :: pos_integer(), Rate :: float() | infinity) -> ok.
start_streams(Name, Way, Node, Bytes, Rate) ->
    EveryUs = case Rate of infinity -> 0; _ -> round(4 * 1.0e6 / Rate) end,
    Binary = binary:copy(<<"s">>, Bytes),
    keep(Name, kill, [fun(Count) -> receive after N * EveryUs div 4000 -> stream(Way, Node, Binary, Count, EveryUs) end end || N <- [0, 1, 2, 3]]).

%% ---- a continuous load ----

%% @doc Starts `Processes' processes that generate the load on the node until {@link stop/0} is called.
-spec start_load(way(), node(), load(), Processes :: pos_integer()) -> ok.
start_load(Way, Node, call, Processes) ->
    Server = erpc:call(Node, erlang, whereis, [?SERVER]),
    keep(?KEEPER, kill, lists:duplicate(Processes, fun(Count) -> call_loop(Way, Server, Count) end));
start_load(Way, Node, {Kind, What, Batch, Open}, Processes) ->
    Sink = case Kind of cast_name -> {?SINK, Node}; _ -> erpc:call(Node, erlang, whereis, [?SINK]) end,
    Payload = payload(What),
    Send = {Kind, Way, Sink},
    keep(?KEEPER, finish, lists:duplicate(Processes, fun(Count) -> send_loop(Send, Payload, {Batch, Open}, 0, Count) end)).

%% @doc Starts `Processes' processes that call the function in a loop until {@link stop/0} is called; {@link done/0} counts the calls. A process that is
%% told to stop finishes its call first, because a database must not lose the coordinator of a transaction in progress.
-spec start_loops(Processes :: pos_integer(), fun(() -> term())) -> ok.
start_loops(Processes, Call) -> keep(?KEEPER, finish, lists:duplicate(Processes, fun(Count) -> loop(Call, Count) end)).

loop(Call, Count) ->
    _ = Call(),
    ok = counters:add(Count, 1, 1),
    receive finish -> ok after 0 -> loop(Call, Count) end.

payload({binary, Bytes}) -> binary:copy(<<"m">>, Bytes);
payload({list, Bytes}) -> [{N, <<"0123456789abcdef">>} || N <- lists:seq(1, Bytes div 25)];
payload({map, Keys}) -> maps:from_list([{N, N * N} || N <- lists:seq(1, Keys)]).

%% No more than `Most' batches are unconfirmed, so this measures the cost of a message rather than that of a growing mailbox.
send_loop(Send, Payload, {Batch, Most} = Window, Open, Count) when Open < Most ->
    ok = send_batch(Send, Payload, Batch),
    send_loop(Send, Payload, Window, Open + 1, Count);
send_loop(Send, Payload, {Batch, _} = Window, Open, Count) ->
    receive
        taken -> ok = counters:add(Count, 1, Batch), send_loop(Send, Payload, Window, Open - 1, Count);
        finish -> lists:foreach(fun(_) -> receive taken -> ok after ?ANSWER_MS -> exit(no_answer) end end, lists:seq(1, Open))
    after ?ANSWER_MS -> exit(no_answer)
    end.

send_batch(Send, Payload, 1) -> send_one(Send, {self(), Payload});
send_batch(Send, Payload, Left) ->
    ok = send_one(Send, {nobody, Payload}),
    send_batch(Send, Payload, Left - 1).

send_one({message, Way, Sink}, Message) -> send(Way, Sink, Message);
send_one({_, Way, Sink}, Request) -> cast(Way, Sink, Request).

%% The keeper is linked to its processes, so if one of them fails, the next request to the keeper also fails.
keep(Name, Ending, Bodies) ->
    Starter = self(),
    Keeper = spawn(fun() ->
                           true = register(Name, self()),
                           Count = counters:new(1, [write_concurrency]),
                           Start = erlang:monotonic_time(microsecond),
                           Pids = [spawn_link(fun() -> Body(Count) end) || Body <- Bodies],
                           Starter ! {self(), started},
                           keeper(Ending, Pids, Count, Start)
                   end),
    receive {Keeper, started} -> ok after ?ANSWER_MS -> error(load_does_not_start) end.

keeper(Ending, Pids, Count, Start) ->
    receive
        {done, From, Ref} ->
            From ! {Ref, {counters:get(Count, 1), erlang:monotonic_time(microsecond)}},
            keeper(Ending, Pids, Count, Start);
        {stop, From, Ref} ->
            Rate = counters:get(Count, 1) * 1.0e6 / (erlang:monotonic_time(microsecond) - Start),
            ok = end_all(Ending, Pids),
            From ! {Ref, Rate}
    end.

%% Processes that send messages first wait until these are confirmed, because otherwise the next load would queue behind them.
end_all(kill, Pids) -> lists:foreach(fun(Pid) -> true = unlink(Pid), exit(Pid, kill) end, Pids);
end_all(finish, Pids) ->
    Monitors = [begin Pid ! finish, monitor(process, Pid) end || Pid <- Pids],
    lists:foreach(fun(Monitor) -> receive {'DOWN', Monitor, process, _, _} -> ok end end, Monitors).

%% @doc Returns the number of confirmed messages or answered calls so far, and the time at which they were counted.
-spec done() -> {Count :: non_neg_integer(), Us :: integer()}.
done() -> done(?KEEPER).

%% @doc Like {@link done/0}, for streams with a name.
-spec done(Name :: atom()) -> {Count :: non_neg_integer(), Us :: integer()}.
done(Name) -> ask(Name, done).

%% @doc Stops the processes and returns how many messages or calls per second they achieved.
-spec stop() -> float().
stop() -> stop(?KEEPER).

%% @doc Like {@link stop/0}, for streams with a name.
-spec stop(Name :: atom()) -> float().
stop(Name) -> ask(Name, stop).

ask(Name, What) ->
    Ref = monitor(process, Name),
    Name ! {What, self(), Ref},
    receive
        {Ref, Answer} when What =:= stop -> receive {'DOWN', Ref, process, _, _} -> Answer end;
        {Ref, Answer} -> true = demonitor(Ref, [flush]), Answer;
        {'DOWN', Ref, process, _, Reason} -> error({load_failed, Reason})
    after ?ANSWER_MS -> error(load_does_not_answer)
    end.

%% @doc Makes 64-byte calls for `Ms' milliseconds, with this pause between them, and returns the round-trip times in nanoseconds.
-spec heartbeat(way(), node(), PauseMs :: non_neg_integer(), Ms :: pos_integer()) -> [pos_integer()].
heartbeat(Way, Node, PauseMs, Ms) ->
    Server = erpc:call(Node, erlang, whereis, [?SERVER]),
    Beat = binary:copy(<<"h">>, 64),
    ok = prefer(beamway),
    beats(Way, Server, Beat, PauseMs, erlang:monotonic_time(millisecond) + Ms, []).

%% This is how a program makes calls that must not wait behind bulk data. Stock distribution has no such function.
prefer(Carrier) ->
    case code:ensure_loaded(Carrier) =:= {module, Carrier} andalso erlang:function_exported(Carrier, class, 1) of
        true -> _ = Carrier:class(control), ok;
        false -> ok
    end.

beats(Way, Server, Beat, PauseMs, Deadline, Acc) ->
    Start = erlang:monotonic_time(nanosecond),
    Beat = beat(Way, Server, Beat),
    Took = erlang:monotonic_time(nanosecond) - Start,
    receive after PauseMs -> ok end,
    case erlang:monotonic_time(millisecond) >= Deadline of
        true -> [Took | Acc];
        false -> beats(Way, Server, Beat, PauseMs, Deadline, [Took | Acc])
    end.

%% @doc Makes a 64-byte call every millisecond for `Ms' milliseconds, each in its own process. Waits for all of them, and returns the time of
%% each in nanoseconds, from its planned start to its answer.
-spec planned_calls(way(), node(), Ms :: pos_integer()) -> [non_neg_integer(), ...].
planned_calls(Way, Node, Ms) ->
    Beat = binary:copy(<<"h">>, 64),
    Server = erpc:call(Node, erlang, whereis, [?SERVER]),
    planned({1, Ms}, fun() -> Beat = beat(Way, Server, Beat) end).

%% @doc Like {@link planned_calls/3}, but sends a message of `Bytes' bytes every `EveryMs' milliseconds and gets an answer of a few bytes.
-spec planned_messages(way(), node(), Bytes :: pos_integer(), EveryMs :: pos_integer(), Ms :: pos_integer()) -> [non_neg_integer(), ...].
planned_messages(Way, Node, Bytes, EveryMs, Ms) ->
    Request = {take, binary:copy(<<"m">>, Bytes)},
    Server = erpc:call(Node, erlang, whereis, [?SERVER]),
    planned({EveryMs, Ms}, fun() -> taken = beat(Way, Server, Request) end).

%% @doc Calls the function every `EveryMs' milliseconds for `Ms' milliseconds, each time in its own process. Waits for all of them, and returns the
%% time of each in nanoseconds, from its planned start to its return.
-spec planned({EveryMs :: pos_integer(), Ms :: pos_integer()}, fun(() -> term())) -> [non_neg_integer(), ...].
planned({EveryMs, Ms}, Call) ->
    First = erlang:monotonic_time(millisecond) + 2,
    Calls = [planned_call(Call, Due) || Due <- lists:seq(First, First + Ms - 1, EveryMs)],
    [receive
         {Ref, Took} -> true = demonitor(Monitor, [flush]), Took;
         {'DOWN', Monitor, process, _, Reason} -> error({call_failed, Reason})
     end || {Ref, Monitor} <- Calls].

%% If the timer is late, that counts as delay, because it is the node that is late.
planned_call(Call, Due) ->
    Timer = erlang:start_timer(Due, self(), due, [{abs, true}]),
    receive {timeout, Timer, due} -> ok end,
    {Caller, Ref} = {self(), make_ref()},
    {_, Monitor} = spawn_monitor(fun() ->
                                         _ = Call(),
                                         Caller ! {Ref, erlang:monotonic_time(nanosecond) - Due * 1000000}
                                 end),
    {Ref, Monitor}.

beat(stock, Server, Beat) -> gen_server:call(Server, Beat, ?ANSWER_MS);
beat(teleport, Server, Beat) -> teleport:call(Server, Beat, ?ANSWER_MS).
