%% SPDX-License-Identifier: Apache-2.0
%% @doc The part of the benchmarks that runs inside the nodes: callers in a tight loop, echo processes, streams, and processes that only
%% burn CPU time.
%%
%% A keeper process, registered under the name of the load, owns the load's processes and the histogram of their calls. {@link window/1} records, for
%% a given time, the calls of the load that has the default name. If a caller fails, the keeper records the failure and the next measurement returns
%% an error, because a benchmark of failing calls would look fast.
-module(beamway_bench_load).

-export([start/1, stop/0, stop/1, window/1, calls/0, stream/1, pings/2, echo/1, socket_bytes/0, kernel_does/1, watch/1, nodedown_at/1]).
%% Exported only because these functions are spawned on other nodes.
-export([echo_loop/1, receive_stream/2, pong_loop/1]).

-export_type([load/0, window/0, stream/0]).

-type load() :: #{kind := rpc | erpc | gen_rpc | echo | traced | paced | burn,
                  %% the number of processes
                  callers := pos_integer(),
                  %% the nodes to call in turn; the calling node itself is skipped
                  targets => [node()],
                  bytes => non_neg_integer(),
                  %% only for `paced': the time between the starts of a caller's calls
                  every_us => pos_integer(),
                  %% the default is this module's name
                  name => atom()}.
%% `rpc', `erpc' and `gen_rpc' call {@link echo/1} on the targets. For `echo', each caller sends its
%% payloads to a process on the first target, which returns them; `traced' adds a teleport trace
%% context, and `paced' uses all targets in turn, at a fixed rate. `burn' makes no calls.
-type window() :: #{elapsed_ns := pos_integer(), counts := beamway_bench_hist:counts()}.
-type stream() :: #{target := node(), bytes := non_neg_integer(), ms := pos_integer(),
                    %% the number of messages per acknowledgement, and the largest number of unacknowledged messages
                    batch := pos_integer(), window := pos_integer()}.

-define(ANSWER_MS, 20000).
%% From linux/socket.h and linux/mptcp.h, which OTP does not define. The size is at least that of struct mptcp_info.
-define(SOL_MPTCP, 284).
-define(MPTCP_INFO, 1).
-define(INFO_BYTES, 128).
%% The example from the W3C recommendation.
-define(TRACEPARENT, <<"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01">>).

%% @doc Starts the load. Returns once its processes run.
-spec start(load()) -> ok.
start(Load) ->
    Caller = self(),
    Ref = make_ref(),
    {Keeper, Monitor} = spawn_monitor(fun() -> keep(Load, Caller, Ref) end),
    receive
        {Ref, running} -> true = demonitor(Monitor, [flush]), ok;
        {'DOWN', Monitor, process, Keeper, Reason} -> error({load_did_not_start, Reason})
    after ?ANSWER_MS ->
            exit(Keeper, kill),
            error({load_did_not_start, timeout})
    end.

keep(#{callers := Callers} = Given, Starter, Ref) ->
    true = register(maps:get(name, Given, ?MODULE), self()),
    Load = Given#{targets => maps:get(targets, Given, []) -- [node()]},
    process_flag(trap_exit, true),
    Hist = beamway_bench_hist:new(),
    Payload = payload(maps:get(bytes, Load, 0)),
    Workers = [spawn_link(fun() -> work(Load, Index, Payload, Hist) end) || Index <- lists:seq(1, Callers)],
    Starter ! {Ref, running},
    keeper_loop(Workers, Hist, running).

keeper_loop(Workers, Hist, State) ->
    receive
        {look, From, Ref} ->
            From ! {Ref, State, Hist},
            keeper_loop(Workers, Hist, State);
        {stop, From, Ref} ->
            _ = [exit(Worker, kill) || Worker <- Workers],
            _ = [receive {'EXIT', Worker, _} -> ok after ?ANSWER_MS -> exit({stuck, Worker}) end
                 || Worker <- Workers, is_process_alive(Worker)],
            From ! {Ref, stopped};
        {'EXIT', _, Reason} ->
            keeper_loop(Workers, Hist, {failed, Reason})
    end.

%% @doc Stops the load. Returns once all of its processes have exited.
-spec stop() -> ok.
stop() ->
    stop(?MODULE).

-spec stop(Name :: atom()) -> ok.
stop(Name) ->
    {Keeper, Monitor} = keeper(Name),
    Ref = make_ref(),
    Keeper ! {stop, self(), Ref},
    receive
        {Ref, stopped} -> receive {'DOWN', Monitor, process, Keeper, _} -> ok end;
        {'DOWN', Monitor, process, Keeper, Reason} -> error({load_failed, Reason})
    end.

keeper(Name) ->
    case whereis(Name) of
        undefined -> error(no_load);
        Pid -> {Pid, monitor(process, Pid)}
    end.

%% @doc Records the calls made during the next `Ms' milliseconds.
-spec window(Ms :: pos_integer()) -> window().
window(Ms) ->
    Hist = histogram(),
    Start = erlang:monotonic_time(nanosecond),
    Before = beamway_bench_hist:snapshot(Hist),
    receive after Ms -> ok end,
    End = erlang:monotonic_time(nanosecond),
    After = beamway_bench_hist:snapshot(Hist),
    Hist = histogram(),
    #{elapsed_ns => End - Start, counts => beamway_bench_hist:between(Before, After)}.

%% @doc Returns the number of calls completed since the load started.
-spec calls() -> non_neg_integer().
calls() ->
    beamway_bench_hist:total(histogram()).

histogram() ->
    {Keeper, Monitor} = keeper(?MODULE),
    Ref = make_ref(),
    Keeper ! {look, self(), Ref},
    receive
        {Ref, running, Hist} -> true = demonitor(Monitor, [flush]), Hist;
        {Ref, {failed, Reason}, _} -> error({load_failed, Reason});
        {'DOWN', Monitor, process, Keeper, Reason} -> error({load_failed, Reason})
    end.

payload(Bytes) ->
    binary:copy(<<"b">>, Bytes).

work(#{kind := burn}, _, _, _) ->
    burn(0);
work(#{kind := echo, targets := [Node | _]}, _, Payload, Hist) ->
    %% The processes are linked, so that when one exits, the other one exits as well.
    Echo = spawn_link(Node, ?MODULE, echo_loop, [self()]),
    timed(fun() -> exchange(Echo, Payload) end, Hist);
work(#{kind := traced} = Load, Index, Payload, Hist) ->
    ok = teleport_trace:set(?TRACEPARENT), % the answer carries the context back
    work(Load#{kind := echo}, Index, Payload, Hist);
work(#{kind := paced, targets := Nodes, every_us := Us, callers := Callers}, Index, Payload, Hist) ->
    Echoes = [spawn_link(Node, ?MODULE, echo_loop, [self()]) || Node <- Nodes],
    paced(Echoes, [], Payload, Hist, Us, erlang:monotonic_time(microsecond) + Us * Index div Callers);
work(#{kind := Kind, targets := Targets}, Index, Payload, Hist) ->
    %% Callers start at different targets, so that all targets are called equally often.
    {Later, First} = lists:split(Index rem length(Targets), Targets),
    call_in_turn(Kind, First ++ Later, [], Payload, Hist).

%% This process is always runnable, but the VM can preempt it at any time.
burn(N) -> burn((N + 1) band 16#ffff).

timed(Call, Hist) ->
    Start = erlang:monotonic_time(nanosecond),
    _ = Call(),
    ok = beamway_bench_hist:add(Hist, erlang:monotonic_time(nanosecond) - Start),
    timed(Call, Hist).

%% A slow call does not delay the planned times of later calls.
paced([], Called, Payload, Hist, Us, Due) -> paced(lists:reverse(Called), [], Payload, Hist, Us, Due);
paced([Echo | Echoes], Called, Payload, Hist, Us, Due) ->
    receive after max(0, (Due - erlang:monotonic_time(microsecond) + 999) div 1000) -> ok end,
    Start = erlang:monotonic_time(nanosecond),
    ok = exchange(Echo, Payload),
    ok = beamway_bench_hist:add(Hist, erlang:monotonic_time(nanosecond) - Start),
    paced(Echoes, [Echo | Called], Payload, Hist, Us, Due + Us).

%% Neither this call nor those below have a timeout, because the code that is measured has none either. The process that measures the load has a
%% timeout, and a blocked caller is terminated through its link or by the exit signal that a lost connection causes.
exchange(Echo, Payload) ->
    Echo ! {self(), Payload},
    receive {Echo, Same} when byte_size(Same) =:= byte_size(Payload) -> ok end.

call_in_turn(Kind, [], Called, Payload, Hist) ->
    call_in_turn(Kind, lists:reverse(Called), [], Payload, Hist);
call_in_turn(Kind, [Node | Nodes], Called, Payload, Hist) ->
    Start = erlang:monotonic_time(nanosecond),
    Answer = remote(Kind, Node, Payload),
    End = erlang:monotonic_time(nanosecond),
    Answer =:= Payload orelse exit({wrong_answer, Node, Answer}),
    ok = beamway_bench_hist:add(Hist, End - Start),
    call_in_turn(Kind, Nodes, [Node | Called], Payload, Hist).

remote(rpc, Node, Payload) -> rpc:call(Node, ?MODULE, echo, [Payload]);
remote(erpc, Node, Payload) -> erpc:call(Node, ?MODULE, echo, [Payload]);
remote(gen_rpc, Node, Payload) -> gen_rpc:call(Node, ?MODULE, echo, [Payload]).

%% @doc Returns its argument. It is called from other nodes.
-spec echo(Term) -> Term.
echo(Term) -> Term.

%% @private
-spec echo_loop(Client :: pid()) -> no_return().
echo_loop(Client) ->
    receive {Client, Payload} -> Client ! {self(), Payload} end,
    echo_loop(Client).

%% @doc Sends messages in one direction for the given time, and returns how many of them arrived and how long that took. The time runs until the
%% receiver has confirmed the last message. At most a window of messages is unconfirmed, so the result measures the carrier rather than a growing
%% mailbox.
-spec stream(stream()) -> #{messages := pos_integer(), elapsed_ns := pos_integer()}.
stream(#{target := Node, bytes := Bytes, batch := Batch} = Stream) ->
    Receiver = spawn_link(Node, ?MODULE, receive_stream, [self(), Batch]),
    Payload = payload(Bytes),
    Start = erlang:monotonic_time(millisecond),
    Begin = erlang:monotonic_time(nanosecond),
    Sent = send_stream(Receiver, Payload, Stream, Start + maps:get(ms, Stream), 0, 0),
    Receiver ! {finish, self()},
    receive
        {Receiver, received, Sent} -> ok;
        {Receiver, received, Other} -> error({messages_lost, Sent, Other})
    after ?ANSWER_MS -> error({no_confirmation, Node, Sent})
    end,
    End = erlang:monotonic_time(nanosecond),
    true = unlink(Receiver),
    #{messages => Sent, elapsed_ns => End - Begin}.

send_stream(Receiver, Payload, #{batch := Batch, window := Window} = Stream, Deadline, Sent, Confirmed) ->
    ok = send_batch(Receiver, Payload, Batch),
    Now = Sent + Batch,
    Next = confirmed(Receiver, Now, Confirmed, Window),
    case erlang:monotonic_time(millisecond) >= Deadline of
        true -> drain(Receiver), Now;
        false -> send_stream(Receiver, Payload, Stream, Deadline, Now, Next)
    end.

send_batch(_, _, 0) -> ok;
send_batch(Receiver, Payload, Left) ->
    Receiver ! Payload,
    send_batch(Receiver, Payload, Left - 1).

%% Waits only if a whole window is unconfirmed.
confirmed(Receiver, Sent, Confirmed, Window) when Sent - Confirmed >= Window ->
    receive
        {Receiver, confirmed, Count} -> confirmed(Receiver, Sent, Count, Window)
    after ?ANSWER_MS -> error({no_confirmation, node(Receiver), Sent})
    end;
confirmed(_, _, Confirmed, _) -> Confirmed.

%% Confirmations that are still in transit can be ignored, because the final `received' covers them.
drain(Receiver) ->
    receive {Receiver, confirmed, _} -> drain(Receiver) after 0 -> ok end.

%% @private
-spec receive_stream(Sender :: pid(), Batch :: pos_integer()) -> ok.
receive_stream(Sender, Batch) ->
    receive_stream(Sender, Batch, Batch, 0).

receive_stream(Sender, Batch, 0, Count) ->
    Sender ! {self(), confirmed, Count},
    receive_stream(Sender, Batch, Batch, Count);
receive_stream(Sender, Batch, Left, Count) ->
    receive
        Payload when is_binary(Payload) -> receive_stream(Sender, Batch, Left - 1, Count + 1);
        {finish, Sender} -> Sender ! {self(), received, Count}, ok
    end.

%% @doc Sends this many pings to a process on the node without waiting for answers, and returns how long it took until the last pong arrived, in
%% nanoseconds. One process sends the pings, and another counts the pongs.
-spec pings(node(), Count :: pos_integer()) -> Ns :: pos_integer().
pings(Node, Count) ->
    Answering = spawn_link(Node, ?MODULE, pong_loop, [self()]),
    receive {Answering, ready} -> ok after ?ANSWER_MS -> error({no_confirmation, Node, 0}) end,
    Begin = erlang:monotonic_time(nanosecond),
    _ = spawn_link(fun() -> ping(Answering, Count) end),
    ok = pongs(Node, Count),
    End = erlang:monotonic_time(nanosecond),
    true = unlink(Answering),
    Answering ! stop,
    End - Begin.

ping(_, 0) -> ok;
ping(Answering, Left) ->
    Answering ! ping,
    ping(Answering, Left - 1).

pongs(_, 0) -> ok;
pongs(Node, Left) ->
    receive pong -> pongs(Node, Left - 1) after ?ANSWER_MS -> error({messages_lost, Node, Left}) end.

%% @private
-spec pong_loop(Counter :: pid()) -> ok.
pong_loop(Counter) ->
    Counter ! {self(), ready},
    pong(Counter).

pong(Counter) ->
    receive
        ping -> Counter ! pong, pong(Counter);
        stop -> ok
    end.

%% @doc Returns the bytes sent and received on those of this node's distribution connections that are inet sockets.
-spec socket_bytes() -> non_neg_integer().
socket_bytes() ->
    lists:sum([Bytes || {_, Port} <- erlang:system_info(dist_ctrl), is_port(Port),
                        {ok, Counts} <- [inet:getstat(Port, [recv_oct, send_oct])], {_, Bytes} <- Counts]).

%% @doc Returns whether the kernel handles MPTCP or TLS for all of this node's distribution
%% connections. An MPTCP socket whose peer does not use MPTCP has fallen back to TCP. With kTLS the
%% connection belongs to a port, and otherwise to one of ssl's processes.
-spec kernel_does(mptcp | ktls) -> boolean().
kernel_does(mptcp) -> lists:all(fun(Port) -> has_mptcp(inet:getopts(Port, [{raw, ?SOL_MPTCP, ?MPTCP_INFO, ?INFO_BYTES}])) end, controllers());
kernel_does(ktls) -> lists:all(fun is_port/1, controllers()).

has_mptcp({ok, [{raw, ?SOL_MPTCP, ?MPTCP_INFO, _}]}) -> true;
has_mptcp(_) -> false.

controllers() -> [Controller || {_, Controller} <- erlang:system_info(dist_ctrl)].

%% @doc Starts a process that waits for a node to go down. Returns once the process monitors that node.
-spec watch(node()) -> ok.
watch(Node) ->
    Caller = self(),
    Watcher = spawn(fun() ->
                            true = register(beamway_bench_watcher, self()),
                            true = erlang:monitor_node(Node, true),
                            Caller ! {self(), watching},
                            receive {nodedown, Node} -> answer(os:system_time(microsecond)) end
                    end),
    receive {Watcher, watching} -> ok after ?ANSWER_MS -> error({cannot_watch, Node}) end.

answer(Time) ->
    receive {when_down, From, Ref} -> From ! {Ref, Time} end.

%% @doc Returns the system time, in microseconds, at which this node noticed that the watched node was down.
-spec nodedown_at(TimeoutMs :: pos_integer()) -> integer() | still_up.
nodedown_at(TimeoutMs) ->
    Ref = make_ref(),
    beamway_bench_watcher ! {when_down, self(), Ref},
    receive {Ref, Time} -> Time after TimeoutMs -> still_up end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Starts two real nodes and passes the cluster to each test.
nodes_test_() ->
    {timeout, 120, fun() ->
        Tests = [fun no_kernel_does_it/1, fun calls_are_counted/1, fun nothing_is_left_after_stop/1, fun a_stream_is_confirmed/1, fun every_ping_is_answered/1,
                 fun bytes_of_the_socket_are_seen/1, fun a_lost_node_fails_the_load/1],
        {ok, ok} = beamway_bench_run:in_a_process(
                     fun() ->
                             Epmd = beamway_bench_nodes:start_epmd(),
                             Tcp = maps:get(tcp, beamway_bench_contender:all("/", 1)),
                             Cluster = beamway_bench_nodes:start(Epmd, Tcp, #{count => 2}),
                             ok = beamway_bench_nodes:connect(Cluster, forward),
                             lists:foreach(fun(Test) -> Test(Cluster) end, Tests)
                     end)
    end}.

load(Kind, Cluster) ->
    #{kind => Kind, callers => 3, targets => beamway_bench_nodes:names(Cluster), bytes => 100}.

%% These nodes use plain TCP, so the check for kTLS also succeeds: their connections belong to ports
%% and not to ssl's processes.
no_kernel_does_it(Cluster) ->
    ?assertNot(on(Cluster, kernel_does, [mptcp])),
    ?assert(on(Cluster, kernel_does, [ktls])).

on(#{members := [First | _]}, Function, Args) ->
    beamway_bench_nodes:call(First, ?MODULE, Function, Args).

calls_are_counted(Cluster) ->
    [begin
         ok = on(Cluster, start, [load(Kind, Cluster)]),
         #{elapsed_ns := Elapsed, counts := Counts} = on(Cluster, window, [100]),
         ?assert(Elapsed >= 100000000),
         ?assert(beamway_bench_hist:count(Counts) > 0),
         ?assert(on(Cluster, calls, []) >= beamway_bench_hist:count(Counts)),
         ok = on(Cluster, stop, [])
     end || Kind <- [rpc, erpc, echo]].

nothing_is_left_after_stop(#{members := Members} = Cluster) ->
    Processes = fun() -> [beamway_bench_nodes:call(M, erlang, system_info, [process_count]) || M <- Members] end,
    Before = Processes(),
    ok = on(Cluster, start, [(load(echo, Cluster))#{callers := 50}]),
    ok = on(Cluster, start, [#{kind => burn, callers => 2, name => burners}]),
    ?assert(lists:sum(Processes()) >= lists:sum(Before) + 50),
    ok = on(Cluster, stop, []),
    ok = on(Cluster, stop, [burners]),
    await(fun() -> lists:sum(Processes()) < lists:sum(Before) + 10 end, 100).

%% The echo processes on the other node are terminated by an exit signal, so they exit slightly later.
await(Condition, Tries) when Tries > 0 ->
    Condition() orelse receive after 50 -> await(Condition, Tries - 1) end.

a_stream_is_confirmed(Cluster) ->
    [_, Target] = beamway_bench_nodes:names(Cluster),
    #{messages := Messages, elapsed_ns := Elapsed} =
        on(Cluster, stream, [#{target => Target, bytes => 1000, ms => 50, batch => 10, window => 100}]),
    %% The stream's end time has millisecond resolution.
    ?assert(Messages > 0 andalso Messages rem 10 =:= 0),
    ?assert(Elapsed >= 49000000).

every_ping_is_answered(Cluster) ->
    [_, Target] = beamway_bench_nodes:names(Cluster),
    Before = on(Cluster, socket_bytes, []),
    ?assert(on(Cluster, pings, [Target, 1000]) > 0),
    %% Neither a ping nor a pong takes fewer than ten bytes.
    ?assert(on(Cluster, socket_bytes, []) - Before >= 1000 * 20).

bytes_of_the_socket_are_seen(Cluster) ->
    Before = on(Cluster, socket_bytes, []),
    [_, Target] = beamway_bench_nodes:names(Cluster),
    #{messages := Messages} = on(Cluster, stream, [#{target => Target, bytes => 1000, ms => 20, batch => 10, window => 100}]),
    ?assert(on(Cluster, socket_bytes, []) - Before >= 1000 * Messages).

a_lost_node_fails_the_load(#{members := [_, #{os := Victim, name := Name}]} = Cluster) ->
    ok = on(Cluster, start, [load(rpc, Cluster)]),
    ok = on(Cluster, watch, [Name]),
    Before = os:system_time(microsecond),
    ok = beamway_bench_os:kill(Victim),
    ?assert(on(Cluster, nodedown_at, [5000]) >= Before),
    ?assertError({load_failed, _}, on(Cluster, window, [100])),
    ok = on(Cluster, stop, []).
-endif.
