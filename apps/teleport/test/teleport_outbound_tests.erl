%% SPDX-License-Identifier: Apache-2.0
%% @doc Unit tests of {@link teleport_outbound}, and of it before {@link teleport_inbound}: what goes in at one end comes out at the other.
-module(teleport_outbound_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

-import(teleport_outbound, [new/1, new/2, message/5, next/1, begin_next/1, sent/2, writable/1, paused/1, resumed/1, idle/3]).

-define(CHUNK, 4096).

counts_of_killed_senders_are_taken_off_test() ->
    Empty = new(?CHUNK),
    {none, Once} = idle({3, 70}, 1000, Empty),
    ?assertMatch({none, Once}, idle({3, 70}, 4999, Once)),
    ?assertMatch({{take_off, {3, 70}}, _}, idle({3, 70}, 5000, Once)),
    %% Something has come between, or is here.
    {none, Other} = idle({2, 60}, 5000, Once),
    ?assertMatch({none, Other}, idle({2, 60}, 6000, Other)),
    ?assertMatch({{take_off, {2, 60}}, _}, idle({2, 60}, 9000, Other)),
    ?assertMatch({none, _}, idle({2, 60}, 9000, message(key, message, [<<"x">>], 1, Other))),
    ?assertMatch({none, Empty}, idle({0, 0}, 5000, Once)).

nothing_without_the_link_or_a_turn_test() ->
    Out = message(key, message, [<<"x">>], 1, new(?CHUNK)),
    {turn, false} = next(Out),
    {[Frame], Begun} = begin_next(Out),
    {send, Frame} = next(Begun),
    [?assertEqual(rest, next(Held)) || Held <- [paused(Begun), sent(busy, Begun), sent(closed, Begun)]],
    {send, Frame} = next(writable(sent(busy, Begun))),
    {send, Frame} = next(resumed(paused(Begun))),
    {through, 1, 1, Done} = next(sent(ok, Begun)),
    ?assertEqual({turn, true}, next(Done)),
    ?assertEqual(empty, begin_next(Done)).

%% ---- a lane whose link takes what it likes ----

step() -> oneof([{message, range(1, 4), oneof([1, 100, 5000, 50000, 100000])}, {takes, range(0, 5)}, writable, pause, resume]).

order_test_() ->
    {timeout, 60, ?_assert(proper:quickcheck(?FORALL({Batches, Steps}, {boolean(), list(step())}, stays_right(Batches, Steps)), [quiet, {numtests, 500}, {max_size, 60}]))}.

-record(model, {out, number = 0, takes = 3, queued = {0, 0}, in = teleport_inbound:new(acceptor, 1 bsl 30, 1 bsl 30), got = #{}, right = true}).

%% In the end the link takes everything.
stays_right(Batches, Steps) ->
    Model = lists:foldl(fun(Step, Acc) -> pump(step(Step, Acc)) end, #model{out = new(?CHUNK, Batches)}, Steps),
    End = pump(Model#model{takes = infinity, out = resumed(writable(Model#model.out))}),
    End#model.right andalso End#model.queued =:= {0, 0} andalso next(End#model.out) =:= {turn, true}
        andalso lists:sum([length(Numbers) || Numbers <- maps:values(End#model.got)]) =:= End#model.number.

step({message, Key, Bytes}, #model{out = Out, number = Number, queued = {Messages, Sum}} = Model) ->
    {Parts, Size} = case teleport_term:pack([Key, Number + 1 | binary:copy(<<0>>, Bytes)]) of
                        {small, Term, N} -> {[Term], N};
                        {parts, All, N} -> {All, N}
                    end,
    Model#model{out = message(Key, message, Parts, Size, Out), number = Number + 1, queued = {Messages + 1, Sum + Size}};
step({takes, Frames}, Model) -> Model#model{takes = Frames};
step(writable, #model{out = Out} = Model) -> Model#model{takes = 3, out = writable(Out)};
step(pause, #model{out = Out} = Model) -> Model#model{out = paused(Out)};
step(resume, #model{out = Out} = Model) -> Model#model{out = resumed(Out)}.

pump(#model{out = Out, takes = Takes, queued = {Messages, Sum}} = Model) ->
    case next(Out) of
        rest -> Model;
        {send, _} when Takes =:= 0 -> Model#model{out = sent(busy, Out)};
        {send, Frame} -> pump(arrived(iolist_to_binary(Frame), Model#model{out = sent(ok, Out), takes = less(Takes)}));
        {through, Through, Bytes, Next} -> pump(Model#model{out = Next, queued = {Messages - Through, Sum - Bytes}});
        {turn, IsEmpty} ->
            case begin_next(Out) of
                {_, Next} when not IsEmpty -> pump(Model#model{out = Next});
                empty when IsEmpty -> Model
            end
    end.

less(infinity) -> infinity;
less(Takes) -> Takes - 1.

%% Messages of one key keep their order, and come once.
arrived(Frame, #model{in = In} = Model) ->
    {Effects, Next} = teleport_inbound:frame(Frame, In),
    lists:foldl(fun got/2, Model#model{in = Next}, Effects).

got({request, message, [Key, Number | _], _}, #model{got = Got, right = Right} = Model) ->
    Before = maps:get(Key, Got, []),
    Model#model{got = Got#{Key => [Number | Before]}, right = Right andalso (Before =:= [] orelse Number > hd(Before))};
got({broken, _}, Model) -> Model#model{right = false};
got(_, Model) -> Model.
