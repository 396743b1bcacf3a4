%% SPDX-License-Identifier: Apache-2.0
%% @doc Unit tests of {@link teleport_waiters}.
-module(teleport_waiters_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

-import(teleport_waiters, [new/0, in/4, out/2]).

-define(PID(N), list_to_pid("<0." ++ integer_to_list(1000 + N) ++ ".0>")).

many(Bytes, IsAlive) ->
    lists:foldl(fun({N, Each}, {Refs, W}) -> Ref = make_ref(), {Refs ++ [Ref], in({Ref, ?PID(N)}, Each, IsAlive, W)} end, {[], new()},
                lists:zip(lists:seq(1, length(Bytes)), Bytes)).

all_live(_) -> true.

told(Room, IsEmpty, IsAlive, Waiters) ->
    {Told, Rest} = teleport_waiters:told(Room, IsEmpty, IsAlive, Waiters),
    {[Ref || {Ref, _, _} <- Told], Rest}.

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

%% Whoever waits is told once, in the order of coming; whoever has gone is not.
order_test() ->
    Prop = ?FORALL(Steps, list(oneof([{in, range(1, 50)}, {out, range(1, 20)}, {told, range(0, 5), range(0, 100)}])), stays_right(Steps)),
    ?assert(proper:quickcheck(Prop, [quiet, {numtests, 300}])).

stays_right(Steps) ->
    {Left, W, Right} = lists:foldl(fun step/2, {[], new(), true}, Steps),
    Right andalso teleport_waiters:size(W) =:= length(Left).

step({in, Bytes}, {Model, W, Right}) ->
    Ref = make_ref(),
    {Model ++ [{Ref, Bytes}], in({Ref, self()}, Bytes, fun all_live/1, W), Right};
step({out, N}, {Model, W, Right}) when N =< length(Model) ->
    {Ref, _} = lists:nth(N, Model),
    {lists:keydelete(Ref, 1, Model), out(Ref, W), Right};
step({out, _}, {Model, W, Right}) ->
    {Model, out(make_ref(), W), Right};
step({told, Messages, Bytes}, {Model, W, Right}) ->
    {Refs, Rest} = told({Messages, Bytes}, false, fun all_live/1, W),
    {Expected, Left} = fitting(Messages, Bytes, Model),
    {Left, Rest, Right andalso Refs =:= Expected}.

fitting(Messages, Bytes, [{Ref, Needs} | Model]) when Messages > 0, Needs =< Bytes ->
    {Refs, Left} = fitting(Messages - 1, Bytes - Needs, Model),
    {[Ref | Refs], Left};
fitting(_, _, Model) ->
    {[], Model}.
