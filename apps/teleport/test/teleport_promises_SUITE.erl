%% SPDX-License-Identifier: Apache-2.0
%% @doc The promises of the guide's table, over random programs: several senders with several ways, classes, keys and sizes, while lanes are cut or stand still,
%% their number is changed, code is loaded, and the other node is killed.
%%
%% What must hold whatever happens: the messages of one stream (a sender, a destination, and options that go together) arrive in their order; each at most
%% once; at least as many are reported as unconfirmed as are missing; no queue exceeds its bound; and when all is over nothing waits.
-module(teleport_promises_SUITE).

-include_lib("proper/include/proper.hrl").

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2]).
-export([programs/1, programs_and_a_killed_node/1]).
-export([take/0]).
-import(teleport_nodes, [wait_ms/0]).

-define(MAX_QUEUED, 10).

suite() -> [{timetrap, {minutes, 5}}].

all() -> teleport_nodes:all([beamway, shm, tcp]).

groups() -> teleport_nodes:groups([beamway, shm, tcp], [programs, programs_and_a_killed_node]).

init_per_group(Kind, Config) -> teleport_nodes:init_group(Kind, Config).

end_per_group(_Kind, _Config) -> ok.

%% ---- programs ----

%% What each of three senders does, and what is done to the lanes meanwhile.
program(Troubles) -> {vector(3, list(step())), list(Troubles)}.

step() -> {range(1, 2), stream(), size_of_message(), frequency([{4, send}, {4, cast}, {1, call}])}.

%% Options that go one way and have one order.
stream() -> frequency([{6, #{}}, {2, #{class => control}}, {2, #{class => bulk}}, {2, #{key => 1}}, {1, #{key => 1, class => bulk}}]).

size_of_message() -> frequency([{6, range(0, 2000)}, {2, range(60000, 70000)}, {1, range(260000, 600000)}]).

trouble() -> oneof([{cut, class()}, {stand, class()}, {lanes, range(1, 8)}, {load, oneof([teleport_lane, teleport_request, teleport_sender, teleport_peers])}]).

class() -> oneof([control, normal, bulk]).

programs(Config) ->
    Pair = teleport_nodes:start_pair(Config),
    try true = on_first(Pair, fun(Node) ->
                                      ok = teleport:configure(Node, #{max_queue_messages => ?MAX_QUEUED}),
                                      proper:quickcheck(prop_programs(Node), [quiet, {numtests, 60}, {max_size, 40}])
                              end)
    after teleport_nodes:stop_pair(Pair)
    end.

on_first(Pair, Fun) ->
    Node = teleport_nodes:second_node(Pair),
    beamway_peer:run(teleport_nodes:first(Pair), fun() -> Fun(Node) end, 200000).

prop_programs(Node) ->
    ?FORALL({Senders, Troubles}, program(trouble()),
            begin
                Receivers = [spawn(Node, ?MODULE, take, []) || _ <- [1, 2]],
                Before = unconfirmed(Node),
                Watch = spawn_link(fun() -> most_queued(0) end),
                {Accepted, ok} = run(Senders, Receivers, fun() -> lists:foreach(fun(Trouble) -> make(Trouble, Node) end, Troubles) end),
                Lost = fun() -> unconfirmed(Node) - Before end,
                All = settled(fun() -> length(lists:append(arrived(Receivers))) + Lost() >= length(Accepted) end),
                Through = settled(fun() -> nothing_waits(Node) end),
                All andalso Through orelse io:format("waits: ~p~n", [teleport:lanes(Node)]),
                is_kept(Accepted, arrived(Receivers), Lost(), most(Watch)) andalso All andalso Through
            end).

settled(Fun) ->
    try beamway_peer:wait_until(Fun, 10000 * beamway_runner:slowness())
    catch error:{not_within_ms, _, _} -> false
    end.

%% Each sender's messages in their order, with what came of them; and the trouble beside them.
run(Senders, Receivers, Trouble) ->
    Running = [spawn_monitor(fun() -> exit({accepted, [{S, N, To, Stream} || {N, {To, Stream, Size, How}} <- numbered(Steps), do(How, lists:nth(To, Receivers), {S, N, Stream}, Size)]}) end)
               || {S, Steps} <- numbered(Senders)],
    Done = Trouble(),
    {lists:append([receive {'DOWN', M, process, P, Ended} -> accepted(Ended) after wait_ms() -> error(sender_stuck) end || {P, M} <- Running]), Done}.

accepted({accepted, Accepted}) -> Accepted;
accepted(Reason) -> io:format(user, "sender: ~p~n", [Reason]), error({sender, Reason}).

numbered(List) -> lists:zip(lists:seq(1, length(List)), List).

%% Whether it was accepted. A call whose lane is lost may have arrived, and nobody counts it: it is told to the caller.
do(send, To, {_, _, Stream} = Id, Size) -> is_accepted(teleport:send(To, {Id, binary:copy(<<"p">>, Size)}, Stream#{timeout => wait_ms()}));
do(cast, To, {_, _, Stream} = Id, Size) -> is_accepted(teleport:cast(To, {Id, binary:copy(<<"p">>, Size)}, Stream#{timeout => wait_ms()}));
do(call, To, {_, _, Stream} = Id, Size) ->
    try teleport:call(To, {Id, binary:copy(<<"p">>, Size)}, wait_ms(), Stream) of
        Id -> true
    catch exit:{{Lost, _}, {teleport, call, _}} when Lost =:= lane_lost; Lost =:= nodedown -> false
    end.

is_accepted(ok) -> true;
is_accepted({error, {Lost, _}}) when Lost =:= lane_lost; Lost =:= nodedown -> false.

make({cut, Class}, Node) ->
    erlang:yield(),
    [exit(teleport_sender:pid(Tx), kill) || {out, {Of, Is, _}, Tx} <- teleport_peers:all(), Of =:= Node, Is =:= Class];
%% A large message waits for the lane's process, and what comes behind it does, too.
make({stand, Class}, Node) ->
    Lanes = [teleport_sender:pid(Tx) || {out, {Of, Is, _}, Tx} <- teleport_peers:all(), Of =:= Node, Is =:= Class],
    Standing = [Lane || Lane <- Lanes, (catch sys:suspend(Lane, infinity)) =:= ok],
    receive after 20 -> ok end,
    [catch sys:resume(Lane, infinity) || Lane <- Standing];
make({lanes, Count}, Node) -> ok = teleport:configure(Node, #{lanes => #{normal => Count}});
%% As a release does it: not while a sender waits in code that is two versions old.
make({load, Module}, _) -> code:soft_purge(Module) andalso code:load_file(Module).

unconfirmed(Node) -> maps:get(Node, teleport:unconfirmed(), 0).

nothing_waits(Node) ->
    [] =:= [Lane || #{queued := Messages, queued_bytes := Bytes, opened_by := this_node} = Lane <- teleport:lanes(Node), Messages + Bytes > 0].

%% The most messages that have waited for one lane, until somebody asks.
most_queued(Most) ->
    receive {give, From} -> From ! {self(), Most}
    after 1 -> most_queued(lists:max([Most | [Messages || {out, _, Tx} <- teleport_peers:all(), {Messages, _} <- [teleport_sender:queued(Tx)]]]))
    end.

most(Watch) ->
    Watch ! {give, self()},
    receive {Watch, Most} -> Most after wait_ms() -> error(no_answer) end.

%% @private Keeps the marks of what comes, the payload not.
take() -> take([]).

take(Seen) ->
    receive
        {'$gen_cast', {Id, _}} -> take([Id | Seen]);
        {'$gen_call', From, {Id, _}} -> gen_server:reply(From, Id), take([Id | Seen]);
        {seen, To, Ref} -> To ! {Ref, lists:reverse(Seen)}, take(Seen);
        {Id, _} -> take([Id | Seen])
    end.

arrived(Receivers) ->
    [begin
         Ref = make_ref(),
         Receiver ! {seen, self(), Ref},
         receive {Ref, Seen} -> Seen after wait_ms() -> error(no_answer) end
     end || Receiver <- Receivers].

%% A sender counts its message before it sees that there is no room, and a place is reserved for one that waits.
is_kept(Accepted, Arrived, Lost, Most) ->
    All = lists:append(Arrived),
    Missing = [Message || {S, N, _, Stream} = Message <- Accepted, not lists:member({S, N, Stream}, All)],
    Checks = [{once, length(lists:usort(All)) =:= length(All)}, {told, length(Missing) =< Lost}, {ordered, lists:all(fun is_ordered/1, Arrived)},
              {bounded, Most =< 2 * ?MAX_QUEUED}],
    [] =:= [io:format("broken: ~p~n", [{What, Missing, Lost, Most, Arrived}]) || {What, false} <- Checks].

%% Of each sender and stream the numbers rise.
is_ordered(Seen) ->
    Streams = lists:usort([{S, Stream} || {S, _, Stream} <- Seen]),
    lists:all(fun({S, Stream}) -> Numbers = [N || {From, N, Of} <- Seen, From =:= S, Of =:= Stream], Numbers =:= lists:usort(Numbers) end, Streams).

%% ---- a node that is killed ----

%% At any moment of the program. Nobody waits for ever, and what was accepted and has not arrived is told: as unconfirmed by lanes, by a monitor
%% where the distribution has it.
programs_and_a_killed_node(Config) ->
    {First, _} = teleport_nodes:start(teleport_nodes:kind(Config)),
    try [killed(First, Config, AfterMs) || AfterMs <- [0, 1, 5, 20, 60]]
    after beamway_peer:stop_all([First])
    end.

killed(First, Config, AfterMs) ->
    {Second, Node} = teleport_nodes:start(teleport_nodes:kind(Config)),
    OsPid = integer_to_list(beamway_peer:os_pid(Second)),
    ok = beamway_peer:run(First, fun() ->
        true = net_kernel:connect_node(Node),
        {ok, {Senders, _}} = proper_gen:pick(?SUCHTHAT({Some, _}, program(trouble()), length(lists:append(Some)) > 30), 60),
        Receivers = [spawn(Node, ?MODULE, take, []) || _ <- [1, 2]],
        Monitors = [monitor(process, Receiver) || Receiver <- Receivers],
        {_, ok} = run([Steps ++ Steps ++ Steps || Steps <- Senders], Receivers, fun() -> receive after AfterMs -> ok end, [] = os:cmd("kill -KILL " ++ OsPid), ok end),
        [receive {'DOWN', Monitor, process, _, noconnection} -> ok after wait_ms() -> error(not_told) end || Monitor <- Monitors],
        _ = beamway_peer:wait_until(fun() -> teleport:lanes(Node) =:= [] end, wait_ms()),
        ok
    end, 200000),
    beamway_peer:stop_all([Second]).
