%% SPDX-License-Identifier: Apache-2.0
%% @doc Records the frames that the installed ERTS writes, for frame_scheduler_test.
%%
%% Two nodes are joined through a relay in this program. One of them sends every signal that an Erlang program can
%% cause, in the steps listed in steps/0. Each frame is one line:
%%   OPERATION SENDER NEW LENGTH BEGINNING
%% SENDER is `number.serial' of the pid that caused the frame, as known to this program, or `-' if the frame does not
%% name it. NEW is 1 if the header has a new atom cache entry. OPERATION is 0 for a continuation. BEGINNING is hexadecimal.
%%
%% usage: erlc record.erl && erl -noshell -s record main >otp25.txt      (the file of this release)
-module(record).

-export([main/0, act/2, sink/0, make_alias/1, do/2]).

%% Only the beginning of a frame of more than KEPT bytes is recorded, because its payload follows the control message.
-define(KEPT, 4096).
-define(KEPT_OF_LARGE, 400).
-define(QUIET_MS, 300).

main() ->
    {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
    {ok, Front} = inet:port(Listen),
    Back = free_port(),
    Collector = self(),
    {Receiver, To} = start("record_b", Back, []),
    _ = spawn_link(fun() -> relay(Listen, Back, Collector) end),
    {Sender, From} = start("record_a", Front, ["-dist_listen", "false"]),
    true = peer:call(Sender, net_kernel, connect_node, [To]),
    _ = frames(),
    io:format("# OTP ~s, ERTS ~s~n", [erlang:system_info(otp_release), erlang:system_info(version)]),
    lists:foreach(fun(Step) -> step(Step, Sender, From, Receiver, To) end, steps()),
    halt(0).

start(Name, Port, More) ->
    {ok, Peer, Node} =
        peer:start_link(#{
            name => list_to_atom(Name ++ "_" ++ os:getpid()),
            host => "127.0.0.1",
            longnames => true,
            connection => standard_io,
            args => ["-pa", ".", "-setcookie", "record", "-start_epmd", "false", "-erl_epmd_port", integer_to_list(Port),
                     "-connect_all", "false", "-kernel", "prevent_overlapping_partitions", "false",
                     "-kernel", "net_ticktime", "3600" | More]
        }),
    {Peer, Node}.

free_port() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Port.

%% ---- the relay ----

relay(Listen, Back, Collector) ->
    {ok, Client} = gen_tcp:accept(Listen),
    {ok, Server} = gen_tcp:connect({127, 0, 0, 1}, Back, [binary, {active, false}]),
    _ = spawn_link(fun() -> copy(Server, Client) end),
    %% Before the nodes are connected, the initiator sends its name, and then its answer to the challenge.
    lists:foreach(fun(_) -> forward(Client, Server, 2) end, [name, challenge_reply]),
    copy_frames(Client, Server, Collector).

%% Forwards one packet, which starts with its length.
forward(From, To, LengthBytes) ->
    {ok, Length} = gen_tcp:recv(From, LengthBytes),
    Packet = take(From, binary:decode_unsigned(Length)),
    ok = gen_tcp:send(To, [Length, Packet]),
    Packet.

take(_, 0) ->
    <<>>;
take(Socket, Length) ->
    {ok, Bytes} = gen_tcp:recv(Socket, Length),
    Bytes.

%% Frames in the other direction are not recorded.
copy(From, To) ->
    {ok, Bytes} = gen_tcp:recv(From, 0),
    ok = gen_tcp:send(To, Bytes),
    copy(From, To).

copy_frames(From, To, Collector) ->
    Collector ! {frame, forward(From, To, 4)},
    copy_frames(From, To, Collector).

frames() ->
    receive
        {frame, <<>>} -> frames();
        {frame, Frame} -> [Frame | frames()]
    after ?QUIET_MS -> []
    end.

%% ---- steps ----

%% {What the sending node does, the operations that this causes}. An operation is listed with its originator: `self' is
%% the process that does it, `child' is one that it has reported, and `none' means that the frame does not name it.
steps() ->
    Steps =
        [{{send, small}, [{22, self}]},
         {{send, small}, [{22, self}]},
         {{send_name, small}, [{6, self}]},
         {{send_alias, small}, [{33, self}]},
         {link, [{1, self}, {24, self}]},
         {unlink, [{1, self}, {35, self}]},
         {{exit, small}, [{26, self}]},
         {monitor, [{19, self}]},
         {demonitor, [{19, self}, {20, self}]},
         {monitor_name, [{19, self}]},
         {group_leader, [{7, none}]},
         {spawn_request, [{29, self}]},
         {{traced, {send, small}}, [{23, self}]},
         {{traced, {send_name, small}}, [{16, self}]},
         {{traced, {send_alias, small}}, [{34, self}]},
         {{traced, {exit, small}}, [{26, self}]}, % it does not carry the token
         {{traced, spawn_request}, [{30, self}]},
         {{peer, monitor}, [{28, self}]},
         {{peer, monitor_name}, [{28, none}]},
         {{peer, unlink}, [{36, self}]},
         {{peer, link_dead}, [{24, self}]},
         {{peer, spawn}, [{31, child}]},
         {{send, atoms}, [{22, self}]},
         {{send, long_atoms}, [{22, self}]},
         {{send, many_atoms}, [{22, self}]},
         {{send, large}, [{22, self}]},
         {{send_name, large}, [{6, self}]},
         {{send_alias, large}, [{33, self}]},
         {{exit, large}, [{26, self}]},
         {{send, large_atoms}, [{22, self}]},
         {{peer, monitor, large}, [{28, self}]},
         {{peer, monitor_name, large}, [{28, none}]}],
    Steps ++ Steps.

step({What, Expected}, Sender, From, Receiver, To) ->
    Sink = peer:call(Receiver, ?MODULE, do, [spawn, sink]),
    Alias = peer:call(Receiver, ?MODULE, make_alias, [Sink]),
    Act = peer:call(Sender, ?MODULE, do, [act, {What, Sink, Alias, To}]),
    Child = by_peer(What, Receiver, Sink, Act, From),
    ok = peer:call(Sender, ?MODULE, do, [finish, Act]),
    Frames = frames(),
    Whole = [Frame || <<131, Kind, _/binary>> = Frame <- Frames, Kind =/= 70],
    length(Whole) =:= length(Expected) orelse error({What, Expected, [binary:part(F, 0, min(300, byte_size(F))) || F <- Whole]}),
    print(Frames, [{Operation, who(Who, Act, Child)} || {Operation, Who} <- Expected], none).

who(self, Act, _) -> Act;
who(child, _, Child) -> Child;
who(none, _, _) -> none.

%% The other node's action that makes the sending node reply.
by_peer({peer, monitor}, Receiver, Sink, Act, _) -> peer:call(Receiver, ?MODULE, do, [monitor, {Sink, Act}]);
by_peer({peer, monitor, _}, Receiver, Sink, Act, _) -> peer:call(Receiver, ?MODULE, do, [monitor, {Sink, Act}]);
by_peer({peer, monitor_name}, Receiver, Sink, _, From) -> peer:call(Receiver, ?MODULE, do, [monitor, {Sink, {actor, From}}]);
by_peer({peer, monitor_name, _}, Receiver, Sink, _, From) -> peer:call(Receiver, ?MODULE, do, [monitor, {Sink, {actor, From}}]);
by_peer({peer, unlink}, Receiver, Sink, Act, _) -> peer:call(Receiver, ?MODULE, do, [unlink, {Sink, Act}]);
by_peer({peer, link_dead}, Receiver, Sink, Act, _) -> peer:call(Receiver, ?MODULE, do, [link, {Sink, Act}]);
by_peer({peer, spawn}, Receiver, Sink, _, From) -> peer:call(Receiver, ?MODULE, do, [remote_spawn, {Sink, From}]);
by_peer(_, _, _, _, _) -> none.

print([], [], _) ->
    ok;
print([<<131, 70, _/binary>> = Frame | Frames], Expected, Last) ->
    print_line(0, Last, false, byte_size(Frame), binary:part(Frame, 0, 18)),
    print(Frames, Expected, Last);
print([<<131, Kind, Rest/binary>> = Frame | Frames], [{Operation, Who} | Expected], _) ->
    <<Count, Flags/binary>> = binary:part(Rest, 16 * (Kind - 68), byte_size(Rest) - 16 * (Kind - 68)),
    print_line(Operation, Who, has_new(Count, Flags), byte_size(Frame), kept(Frame)),
    print(Frames, Expected, Who).

kept(Frame) when byte_size(Frame) > ?KEPT -> binary:part(Frame, 0, ?KEPT_OF_LARGE);
kept(Frame) -> Frame.

%% The flags are nibbles, the low one first; the highest bit of each is set if the entry is new.
has_new(Count, Flags) ->
    Halves = lists:append([[Low, High] || <<High:4, Low:4>> <= binary:part(Flags, 0, (Count + 1) div 2)]),
    lists:any(fun(Half) -> Half >= 8 end, lists:sublist(Halves, Count)).

print_line(Operation, Who, HasNew, Length, Beginning) ->
    New = case HasNew of true -> 1; false -> 0 end,
    io:format("~w ~s ~w ~w ~s~n", [Operation, pid_text(Who), New, Length, binary:encode_hex(Beginning)]).

pid_text(none) ->
    "-";
pid_text(Pid) ->
    <<131, 88, Rest/binary>> = term_to_binary(Pid),
    <<Number:32, Serial:32, _Creation:32>> = binary:part(Rest, byte_size(Rest) - 12, 12),
    io_lib:format("~w.~w", [Number, Serial]).

%% ---- functions that run in the two nodes ----

%% Called through control, whose own process must not send a signal.
do(spawn, sink) ->
    Pid = spawn(?MODULE, sink, []),
    catch unregister(sink),
    true = register(sink, Pid),
    Pid;
do(act, {What, Sink, Alias, To}) ->
    Pid = spawn(?MODULE, act, [What, {Sink, Alias, To}]),
    catch unregister(actor),
    true = register(actor, Pid),
    case What of
        {peer, link_dead} -> exit(Pid, kill);
        _ -> ok
    end,
    Pid ! begin_now,
    timer:sleep(100),
    Pid;
do(finish, Pid) ->
    timer:sleep(100),
    Pid ! finish,
    ok;
do(remote_spawn, {Sink, From}) ->
    ask(Sink, fun() -> spawn(From, timer, sleep, [3000]) end);
do(monitor, {Sink, Act}) ->
    ask(Sink, fun() -> monitor(process, Act) end);
do(link, {Sink, Act}) ->
    ask(Sink, fun() -> process_flag(trap_exit, true), link(Act) end);
do(unlink, {Sink, Act}) ->
    ask(Sink, fun() -> link(Act), unlink(Act) end).

make_alias(Sink) ->
    ask(Sink, fun() -> alias() end).

ask(Sink, Fun) ->
    Sink ! {ask, self(), Fun},
    receive
        {answer, Answer} -> Answer
    end.

sink() ->
    receive
        {ask, From, Fun} -> From ! {answer, Fun()};
        _ -> ok
    end,
    sink().

act(What, Peer) ->
    receive
        begin_now -> ok
    end,
    act_now(What, Peer),
    receive
        finish -> ok
    end,
    case What of
        {peer, _, large} -> exit(payload(large));
        _ -> ok
    end.

act_now({send, Payload}, {Sink, _, _}) ->
    Sink ! payload(Payload);
act_now({send_name, Payload}, {_, _, To}) ->
    {sink, To} ! payload(Payload);
act_now({send_alias, Payload}, {_, Alias, _}) ->
    Alias ! payload(Payload);
act_now({exit, Payload}, {Sink, _, _}) ->
    exit(Sink, payload(Payload));
act_now(link, {Sink, _, _}) ->
    link(Sink);
act_now(unlink, {Sink, _, _}) ->
    link(Sink),
    unlink(Sink);
act_now(monitor, {Sink, _, _}) ->
    _ = monitor(process, Sink),
    timer:sleep(infinity);
act_now(demonitor, {Sink, _, _}) ->
    demonitor(monitor(process, Sink));
act_now(monitor_name, {_, _, To}) ->
    _ = monitor(process, {sink, To}),
    timer:sleep(infinity);
act_now(group_leader, {Sink, _, _}) ->
    group_leader(self(), Sink);
act_now(spawn_request, {_, _, To}) ->
    spawn_request(To, erlang, node, [], []);
act_now({traced, What}, Peer) ->
    _ = seq_trace:set_token(label, 17),
    act_now(What, Peer),
    seq_trace:set_token([]);
act_now(_, _) ->
    ok.

payload(small) -> hello;
payload(large) -> binary:copy(<<"large">>, 60000);
payload(atoms) -> [list_to_atom("record_" ++ integer_to_list(N)) || N <- lists:seq(1, 20)];
payload(long_atoms) -> [list_to_atom(lists:duplicate(200, 16#3B1 + N)) || N <- lists:seq(1, 3)];
payload(many_atoms) -> [list_to_atom("r" ++ integer_to_list(N)) || N <- lists:seq(1, 300)];
payload(large_atoms) -> [payload(atoms), payload(large), payload(long_atoms)].
