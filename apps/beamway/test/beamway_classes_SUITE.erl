%% SPDX-License-Identifier: Apache-2.0
%% @doc The order of messages on a link: the class of the sending process decides, and a shorter message goes before a longer one.
%%
%% When a case checks the order of messages, it stops the peer while the messages are sent, so that they queue in the driver. A large message of
%% class bulk goes first and fills the link. It uses up the share of its class, so the shares of the other classes are left for the small messages.
-module(beamway_classes_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([control_first/1, order_of_one_process/1, a_new_link_knows_the_classes/1, control_beside_a_flood_of_bulk/1,
         bulk_has_its_share/1, who_ends_is_forgotten/1, by_option/1, the_server_may_crash/1, bad_input/1]).

-define(CARRIERS, [beamway_shm, beamway_tcp]).
-define(WAIT_MS, 60000).
-define(LARGE, 600000).
-define(MEDIUM, 150000).

suite() -> [{timetrap, {minutes, beamway_carrier:scale(4, 20)}}].

all() -> beamway_carrier:all(?CARRIERS).

groups() ->
    Orders = [control_first, order_of_one_process, a_new_link_knows_the_classes, control_beside_a_flood_of_bulk,
              bulk_has_its_share],
    Others = [who_ends_is_forgotten, by_option, the_server_may_crash, bad_input],
    beamway_carrier:only([{Case, [beamway_shm]} || Case <- Others],
                         beamway_carrier:groups(?CARRIERS, Orders ++ Others)).

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% --- order ------------------------------------------------------------------------------------------------

%% Three processes send small messages behind a large one that fills the link: the message that was sent last arrives first. Setting a class returns
%% the previous one.
control_first(Config) ->
    {A, B, Taker} = pair(Config),
    [Large, Bulk, Normal, Control] = senders(A, 4),
    [normal, normal, normal, bulk] = does(A, Taker, [{Large, {class, bulk}}, {Bulk, {class, bulk}},
                                                     {Control, {class, bulk}}, {Control, {class, control}}]),
    Small = [{Pid, {Class, N}} || {Pid, Class} <- [{Bulk, bulk}, {Normal, normal}, {Control, control}],
                                  N <- lists:seq(1, 5)],
    _ = while_stopped(B, fun() -> does(A, Taker, [{Large, {large, large_bytes(Config)}} | Small]) end),
    Wanted = [{Class, N} || Class <- [control, normal, bulk], N <- lists:seq(1, 5)] ++ [large],
    Wanted = taken(B, Taker, length(Wanted)).

%% The class of a process changes several times while its messages are queued, and in the end it is bulk. So all its messages wait for those of the
%% other process, and stay in order.
order_of_one_process(Config) ->
    {A, B, Taker} = pair(Config),
    [Large, One, Other] = senders(A, 3),
    [normal] = does(A, Taker, [{Large, {class, bulk}}]),
    Answers = while_stopped(B, fun() ->
        does(A, Taker, [{Large, {large, large_bytes(Config)}}, {One, {one, 1}}, {One, {one, 2}}, {One, {class, bulk}},
                        {One, {one, 3}}, {Other, {other, 1}}, {One, {class, control}}, {One, {large, ?MEDIUM}},
                        {One, {one, 4}}, {One, {class, bulk}}, {Other, {other, 2}}, {One, {one, 5}}])
    end),
    [normal, bulk, control] = [Former || Former <- Answers, Former =/= ok],
    [{other, 1}, {other, 2}, {one, 1}, {one, 2}, {one, 3} | More] = taken(B, Taker, 9),
    [large, {one, 4}, {one, 5}, large] = More.

%% Sets classes before the first connection, and between two connections.
a_new_link_knows_the_classes(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    {ok, A, _} = beamway_peer:start(Carrier),
    [Large, Normal, Control] = senders(A, 3),
    [normal, normal] = does(A, none, [{Large, {class, bulk}}, {Control, {class, control}}]),
    [begin
         {ok, B, _} = beamway_peer:start(Carrier, small_ring()),
         ok = beamway_peer:connect_both(Carrier, A, B),
         %% The servers have handled the new link.
         _ = beamway_peer:run(A, fun() -> [sys:get_state(Server) || Server <- [beamway_links, beamway_classes]] end),
         ok = control_before_normal(Config, {A, B, taker(A, B)}, {Large, Normal, Control}),
         ok = beamway_peer:stop(B)
     end || _ <- [1, 2]],
    ok.

control_before_normal(Config, {A, B, Taker}, {Large, Normal, Control}) ->
    _ = while_stopped(B, fun() ->
        does(A, Taker, [{Large, {large, large_bytes(Config)}}, {Normal, {normal, 1}}, {Control, {control, 1}}])
    end),
    [{control, 1}, {normal, 1}, large] = taken(B, Taker, 3),
    ok.

%% --- shares -----------------------------------------------------------------------------------------------

%% A process of class control makes calls while others flood the link as fast as the VM lets them; the peer runs for only a fifth of the time.
control_beside_a_flood_of_bulk(Config) ->
    {A, B, Taker} = pair(Config),
    Brake = beamway_peer:slow_down(B),
    _ = flood(A, Taker, [bulk, bulk, bulk, bulk]),
    true = beamway_peer:wait_until(fun() -> bytes(B, Taker, bulk) > 10 * ?LARGE end, ?WAIT_MS),
    Calls = beamway_peer:run(A, fun() ->
        _ = beamway:class(control),
        [begin
             Ref = make_ref(),
             Taker ! {echo, self(), Ref},
             receive Ref -> ok after ?WAIT_MS -> exit(no_answer) end
         end || _ <- lists:seq(1, 20)]
    end, 2 * ?WAIT_MS),
    ok = beamway_peer:full_speed(Brake),
    20 = length(Calls).

%% Three processes of class control flood the link, and three of class bulk. Without classes, each three would get half. Three are needed because a
%% single process has nothing to send while it waits for a CPU, and its class then claims no share. The flood lasts longer than the silence after
%% which a connection is closed.
bulk_has_its_share(Config) ->
    {A, B, Taker} = pair(Config, ["-kernel", "net_ticktime", "4"]),
    Connection = beamway_peer:controller(A, node(Taker)),
    Brake = beamway_peer:slow_down(B),
    _ = flood(A, Taker, [control, control, control, bulk, bulk, bulk]),
    Both = fun() -> [bytes(B, Taker, Class) || Class <- [control, bulk]] end,
    true = beamway_peer:wait_until(fun() -> lists:min(Both()) > 5 * ?LARGE end, ?WAIT_MS),
    Before = Both(),
    receive after 6000 -> ok end,
    [Control, Bulk] = lists:zipwith(fun erlang:'-'/2, Both(), Before),
    ok = beamway_peer:full_speed(Brake),
    ct:log("control ~b bytes, bulk ~b", [Control, Bulk]),
    Connection = beamway_peer:controller(A, node(Taker)),
    true = Bulk > (Control + Bulk) div 9,
    true = 2 * Control > 3 * Bulk.

%% --- processes with a class -------------------------------------------------------------------------------

%% When a process exits, its class is removed from the table, and each port is told that the process has class normal again.
who_ends_is_forgotten(Config) ->
    {A, _B, Taker} = pair(Config),
    [One, Other] = senders(A, 2),
    [normal, normal] = does(A, Taker, [{One, {class, control}}, {Other, {class, bulk}}]),
    Rows = lists:sort([{One, control, call}, {Other, bulk, call}]),
    Rows = rows(A),
    ok = beamway_peer:run(A, fun() ->
        Self = self(),
        Tracer = spawn(fun() ->
            receive {trace, _, call, {beamway_port, classes, [_, Told]}} -> Self ! {told, Told} end
        end),
        1 = erlang:trace(whereis(beamway_classes), true, [call, {tracer, Tracer}]),
        1 = erlang:trace_pattern({beamway_port, classes, 2}, true, [global]),
        exit(One, kill),
        receive {told, [{One, normal}]} -> ok end
    end),
    true = beamway_peer:wait_until(fun() -> rows(A) =:= [{Other, bulk, call}] end, ?WAIT_MS).

%% The option names processes by registered name and by initial call, whenever they start; a class that a process sets for itself takes precedence.
by_option(Config) ->
    Carrier = beamway_carrier:carrier(Config),
    Classes = "[{my_name, control}, {{pg, init, 1}, bulk}, {{erlang, apply, 2}, bulk}]",
    {ok, A, _} = beamway_peer:start(Carrier, #{args => ["-beamway", "classes", Classes]}),
    [Named, Asking] = senders(A, 2),
    true = beamway_peer:call(A, erlang, register, [my_name, Named]),
    Has = fun(Pid) -> [Row || {P, Class, By} <- rows(A), P =:= Pid, Row <- [{Class, By}]] end,
    true = beamway_peer:wait_until(fun() -> Has(Asking) =:= [{bulk, option}] end, ?WAIT_MS),
    [bulk] = does(A, none, [{Asking, {class, normal}}]),
    {ok, Pg} = beamway_peer:call(A, pg, start, [my_scope]),
    true = beamway_peer:wait_until(fun() -> Has(Pg) =:= [{bulk, option}] end, ?WAIT_MS),
    [{normal, call}] = Has(Asking),
    {ok, B, _} = beamway_peer:start(Carrier, #{env => [{"BEAMWAY_CLASSES", "net_kernel=control,my_name=bulk"}]}),
    [NetKernel, Later] = [beamway_peer:call(B, erlang, whereis, [net_kernel]) | senders(B, 1)],
    true = beamway_peer:wait_until(fun() -> rows(B) =:= [{NetKernel, control, option}] end, ?WAIT_MS),
    true = beamway_peer:call(B, erlang, register, [my_name, Later]),
    true = beamway_peer:wait_until(fun() -> lists:member({Later, bulk, option}, rows(B)) end, ?WAIT_MS).

%% The new server knows what the old one knew, and is notified when processes exit.
the_server_may_crash(Config) ->
    {A, _B, Taker} = Nodes = pair(Config),
    [Large, Normal, Control] = senders(A, 3),
    [normal, normal] = does(A, Taker, [{Large, {class, bulk}}, {Control, {class, control}}]),
    Server = beamway_peer:call(A, erlang, whereis, [beamway_classes]),
    true = beamway_peer:call(A, erlang, exit, [Server, kill]),
    true = beamway_peer:wait_until(fun() ->
        not lists:member(beamway_peer:call(A, erlang, whereis, [beamway_classes]), [Server, undefined]) end, ?WAIT_MS),
    [control] = does(A, Taker, [{Control, {class, control}}]),
    ok = control_before_normal(Config, Nodes, {Large, Normal, Control}),
    true = beamway_peer:call(A, erlang, exit, [Control, kill]),
    true = beamway_peer:wait_until(fun() -> rows(A) =:= [{Large, bulk, call}] end, ?WAIT_MS).

bad_input(Config) ->
    {A, B, Taker} = pair(Config),
    [Sender] = senders(A, 1),
    [[{error, {badarg, {class, Bad, "expected control, normal or bulk"}}}] = does(A, Taker, [{Sender, {class, Bad}}])
     || Bad <- [fast, "control", 1, {control}]],
    [] = rows(A),
    {ok, Stock, _} = beamway_peer:start(inet_tcp),
    normal = beamway_peer:call(Stock, beamway, class, [control]),
    _ = does(A, Taker, [{Sender, {normal, 1}}]),
    [{normal, 1}] = taken(B, Taker, 1).

%% --- nodes and processes ----------------------------------------------------------------------------------

pair(Config) -> pair(Config, []).

%% The ring is small, so that little can be sent before messages queue.
pair(Config, Args) ->
    #{args := Small} = small_ring(),
    {A, _, B, _} = beamway_peer:connected_pair(beamway_carrier:carrier(Config), #{args => Small ++ Args}),
    {A, B, taker(A, B)}.

small_ring() -> #{args => ["-beamway", "ring_bytes", "65536"]}.

%% Returns a size that is more than the ring or the kernel can buffer, but not so much that the link counts as stalled before everything is sent.
large_bytes(Config) ->
    case beamway_carrier:carrier(Config) of beamway_shm -> ?LARGE; beamway_tcp -> 5 * ?LARGE end.

%% Starts processes that carry out requests.
senders(Peer, Count) ->
    beamway_peer:run(Peer, fun() -> [spawn(fun() -> sender() end) || _ <- lists:seq(1, Count)] end).

sender() ->
    receive {do, From, To, What} -> From ! {self(), do(To, What)} end,
    sender().

do(_To, {class, Class}) ->
    try beamway:class(Class)
    catch error:Reason -> {error, Reason}
    end;
do(To, {large, Bytes}) -> To ! {large, binary:copy(<<1>>, Bytes)}, ok;
do(To, Message) -> To ! Message, ok.

%% The processes act in sequence, before the link counts as stalled.
does(Peer, To, All) ->
    beamway_peer:run(Peer, fun() ->
        [begin Pid ! {do, self(), To, What}, receive {Pid, Answer} -> Answer end end || {Pid, What} <- All]
    end).

flood(Peer, Taker, Classes) ->
    beamway_peer:run(Peer, fun() ->
        Data = binary:copy(<<1>>, ?LARGE),
        [spawn(fun() -> _ = beamway:class(Class), flood_loop(Taker, {bytes, Class, Data}) end) || Class <- Classes]
    end).

flood_loop(Taker, Message) -> Taker ! Message, flood_loop(Taker, Message).

while_stopped(Peer, Do) ->
    ok = beamway_peer:sigstop(Peer),
    Result = Do(),
    ok = beamway_peer:sigcont(Peer),
    Result.

%% Starts a process on B, and sends it the atoms of all messages first, because no message can overtake a frame with new atoms.
taker(A, B) ->
    Taker = beamway_peer:run(B, fun() -> spawn(fun() -> take([], #{}) end) end),
    Atoms = [control, normal, bulk, large, one, other, taken, bytes, echo],
    Atoms = beamway_peer:run(A, fun() -> Taker ! Atoms end),
    [Atoms] = taken(B, Taker, 1),
    Taker.

take(Taken, Bytes) ->
    receive
        {give, From, Count} when length(Taken) >= Count -> From ! {taken, lists:reverse(Taken)}, take([], Bytes);
        {give, From, _} -> From ! {taken, none}, take(Taken, Bytes);
        {give_bytes, From, Class} -> From ! {bytes, maps:get(Class, Bytes, 0)}, take(Taken, Bytes);
        {bytes, Class, Data} -> take(Taken, Bytes#{Class => maps:get(Class, Bytes, 0) + byte_size(Data)});
        {echo, From, Ref} -> From ! Ref, take(Taken, Bytes);
        {What, Data} when is_binary(Data) -> take([What | Taken], Bytes);
        Message -> take([Message | Taken], Bytes)
    end.

%% Returns the messages in the order of their arrival.
taken(Peer, Taker, Count) ->
    beamway_peer:wait_until(fun() ->
        case beamway_peer:run(Peer, fun() -> Taker ! {give, self(), Count}, receive {taken, Taken} -> Taken end end) of
            none -> false;
            Taken -> Taken
        end
    end, ?WAIT_MS).

bytes(Peer, Taker, Class) ->
    beamway_peer:run(Peer, fun() -> Taker ! {give_bytes, self(), Class}, receive {bytes, Bytes} -> Bytes end end).

rows(Peer) ->
    lists:sort(beamway_peer:run(Peer, fun() ->
        [{Pid, Class, By} || {{class, Pid}, Class, By} <- ets:tab2list(beamway_links)] end)).
