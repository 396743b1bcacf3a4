%% SPDX-License-Identifier: Apache-2.0
%% @doc Unit tests of {@link teleport_waiters}.
-module(teleport_waiters_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

-import(teleport_waiters, [new/0, in/4, out/2, took/3, look/2]).

-define(PID(N), list_to_pid("<0." ++ integer_to_list(1000 + N) ++ ".0>")).

many(Bytes, IsAlive) ->
    lists:foldl(fun({N, Each}, {Refs, W}) -> Ref = make_ref(), {Refs ++ [Ref], in({Ref, ?PID(N)}, Each, IsAlive, W)} end, {[], new()},
                lists:zip(lists:seq(1, length(Bytes)), Bytes)).

all_live(_) -> true.

told(Room, IsEmpty, IsAlive, Waiters) ->
    {Effects, Rest} = teleport_waiters:room(Room, IsEmpty, IsAlive, Waiters),
    {[Ref || {tell, Ref} <- Effects], Rest}.

in_their_order_as_far_as_there_is_room_test() ->
    {[A, B, C, D], W} = many([10, 20, 100, 1], fun all_live/1),
    {[A, B], W1} = told({9, 35}, false, fun all_live/1, W),
    ?assertMatch({[], _}, told({9, 99}, false, fun all_live/1, W1)),
    ?assertMatch({[], _}, told({0, 1000}, false, fun all_live/1, W1)),
    {[C], W2} = told({9, 50}, true, fun all_live/1, W1),
    ?assertMatch({[D], _}, told({1, 1}, false, fun all_live/1, W2)).

the_dead_use_no_room_test() ->
    {[_, B, _, D], W} = many([10, 20, 100, 1], fun all_live/1),
    Dead = [?PID(1), ?PID(3)],
    {Told, Rest} = told({2, 21}, false, fun(Pid) -> not lists:member(Pid, Dead) end, W),
    ?assertEqual({[B, D], 0}, {Told, teleport_waiters:size(Rest)}).

many_that_were_killed_do_not_pile_up_test() ->
    {_, W} = many(lists:duplicate(10000, 1), fun(Pid) -> Pid =:= ?PID(1) end),
    ?assert(teleport_waiters:size(W) =< 65).

a_place_is_counted_once_test() ->
    {[A, B, C], W} = many([10, 20, 30], fun all_live/1),
    {[{enqueued, 10}, {tell, A}, {enqueued, 20}, {tell, B}, {enqueued, 30}, {tell, C}, {look_in, _}], W1} =
        teleport_waiters:room({9, 99}, false, fun all_live/1, W),
    {[], W2} = took(A, 10, W1),
    {[{dequeued, 20}], W3} = out(B, W2),
    {[{dequeued, 30}], W4} = look(fun(Pid) -> Pid =/= ?PID(3) end, W3),
    %% Its message had come before it was killed.
    {[{enqueued, 30}], W5} = took(C, 30, W4),
    ?assert(teleport_waiters:is_none_told(W5)),
    ?assertEqual({[], W5}, teleport_waiters:room({9, 99}, false, fun all_live/1, W5)).

%% Whoever waits is told once, in the order of coming; whoever has gone is not. What is counted is what those hold that were told; as long as
%% anybody waits or was told somebody will look.
order_test() ->
    Step = oneof([{in, range(1, 50)}, {out, range(1, 20)}, {room, range(0, 5), range(0, 100)}, {took, range(1, 20)}, {kill, range(1, 20)}, look]),
    ?assert(proper:quickcheck(?FORALL(Steps, list(Step), stays_right(Steps)), [quiet, {numtests, 500}])).

-record(model, {waiters = new(), waits = [], told = [], dead = [], counted = 0, timer = false, right = true}).

stays_right(Steps) ->
    #model{right = Right} = lists:foldl(fun(Step, Model) -> checked(step(Step, Model)) end, #model{}, Steps),
    Right.

checked(#model{waiters = W, waits = Waits, told = Told, counted = Counted, timer = Timer, right = Right} = Model) ->
    Model#model{right = Right andalso teleport_waiters:size(W) =:= length(Waits) andalso Counted =:= lists:sum([Bytes || {_, _, Bytes} <- Told])
                    andalso teleport_waiters:is_none_told(W) =:= (Told =:= []) andalso (Timer orelse Told =:= [])}.

step({in, Bytes}, #model{waiters = W, waits = Waits} = Model) ->
    {Ref, Pid} = {make_ref(), ?PID(erlang:unique_integer([positive]) rem 1000000)},
    Model#model{waiters = in({Ref, Pid}, Bytes, fun all_live/1, W), waits = Waits ++ [{Ref, Pid, Bytes}]};
step({kill, N}, #model{waits = Waits, told = Told, dead = Dead} = Model) when N =< length(Waits) + length(Told) ->
    Model#model{dead = [element(2, lists:nth(N, Told ++ Waits)) | Dead]};
step({out, N}, #model{waiters = W, waits = Waits, told = Told} = Model) when N =< length(Waits) + length(Told) ->
    Ref = element(1, lists:nth(N, Told ++ Waits)),
    done(out(Ref, W), Model#model{waits = lists:keydelete(Ref, 1, Waits), told = lists:keydelete(Ref, 1, Told)});
step({took, N}, #model{waiters = W, told = Told, counted = Counted} = Model) when N =< length(Told) ->
    {Ref, _, Bytes} = lists:nth(N, Told),
    %% From now on it is a message of the queue.
    done(took(Ref, Bytes, W), Model#model{told = lists:keydelete(Ref, 1, Told), counted = Counted - Bytes});
step(look, #model{waiters = W, told = Told, dead = Dead, timer = true} = Model) ->
    done(look(alive(Dead), W), Model#model{told = [One || {_, Pid, _} = One <- Told, not lists:member(Pid, Dead)], timer = false}, {5, 100});
step({room, Messages, Bytes}, Model) ->
    room({Messages, Bytes}, Model);
step(_, Model) ->
    Model.

%% As a lane does: after a look there is room for somebody.
done(Result, Model, Room) -> room(Room, done(Result, Model)).

done({Effects, W}, Model) -> lists:foldl(fun effect/2, Model#model{waiters = W}, Effects).

room({Messages, Bytes}, #model{waiters = W, waits = Waits, told = Told, dead = Dead, right = Right} = Model) ->
    {Effects, Rest} = teleport_waiters:room({Messages, Bytes}, false, alive(Dead), W),
    {Expected, Left} = fitting(Messages, Bytes, Dead, Waits),
    Refs = [Ref || {Ref, _, _} <- Expected],
    done({Effects, Rest}, Model#model{waits = Left, told = Told ++ Expected, right = Right andalso Refs =:= [Ref || {tell, Ref} <- Effects]}).

effect({enqueued, Bytes}, #model{counted = Counted} = Model) -> Model#model{counted = Counted + Bytes};
effect({dequeued, Bytes}, #model{counted = Counted} = Model) -> Model#model{counted = Counted - Bytes};
effect({look_in, _}, #model{timer = false} = Model) -> Model#model{timer = true};
effect({look_in, _}, Model) -> Model#model{right = false};
effect({tell, _}, Model) -> Model.

alive(Dead) -> fun(Pid) -> not lists:member(Pid, Dead) end.

fitting(Messages, Bytes, Dead, [{_, Pid, Needs} = One | Waits]) ->
    case lists:member(Pid, Dead) of
        true -> fitting(Messages, Bytes, Dead, Waits);
        false when Messages > 0, Needs =< Bytes ->
            {Told, Left} = fitting(Messages - 1, Bytes - Needs, Dead, Waits),
            {[One | Told], Left};
        false -> {[], [One | Waits]}
    end;
fitting(_, _, _, []) ->
    {[], []}.
