%% SPDX-License-Identifier: Apache-2.0
%% @doc Unit tests of {@link teleport_inbound}: whatever comes in whatever pieces, is delivered once, acknowledged, and read on.
-module(teleport_inbound_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

-import(teleport_inbound, [new/3, credit/0, frame/2, part/3, answers/2, ack_due/1, ack_sent/3]).

-define(MAX, 1 bsl 30).
-define(MAX_ANSWERS, 100000).

small(Kind, Term) -> iolist_to_binary(teleport_frame:small(Kind, term_to_binary(Term))).

batch(Messages) ->
    iolist_to_binary(teleport_frame:batch([{Kind, Encoded, byte_size(Encoded)} || {Kind, Term} <- Messages, Encoded <- [term_to_binary(Term)]])).

directions_test_() ->
    Broken = fun(Role, Frame) -> {[{broken, _} | _], _} = frame(iolist_to_binary(Frame), new(Role, ?MAX, ?MAX_ANSWERS)) end,
    [?_assertMatch({[{request, message, [a | b], _}, {ack_in, _}], _}, frame(small(message, [a | b]), new(acceptor, ?MAX, ?MAX_ANSWERS))),
     ?_assertMatch({[{answer, reply, x, _}], _}, frame(small(reply, x), new(caller, ?MAX, ?MAX_ANSWERS))),
     ?_assertMatch({[{request, message, [a | b], _}, {request, cancel, c, _}, {ack_in, _}], _}, frame(batch([{message, [a | b]}, {cancel, c}]), new(acceptor, ?MAX, ?MAX_ANSWERS))),
     ?_assertMatch({[{acked, 7}], _}, frame(iolist_to_binary(teleport_frame:ack(7)), new(caller, ?MAX, ?MAX_ANSWERS)))]
        ++ [?_test(Broken(Role, Frame))
            || {Role, Frame} <- [{acceptor, small(reply, x)}, {caller, small(message, x)}, {acceptor, teleport_frame:ack(7)}, {caller, <<>>},
                                 {caller, batch([{reply, x}])}, {acceptor, batch([{message, x}, {reply, y}])}, {acceptor, teleport_frame:batch([{message, <<1, 2>>, 2}])},
                                 {acceptor, <<1, 2, 3>>}, {acceptor, teleport_frame:announce(1, reply, [9])}, {caller, teleport_frame:announce(1, call, [9])},
                                 {acceptor, teleport_frame:announce(1, call, [?MAX + 1])}, {acceptor, teleport_frame:piece(1, 9, <<"x">>)}]].

a_caller_reads_on_test() ->
    {credit, Frames, _} = credit(),
    Feed = fun(_, {Credit, In}) -> {Effects, Next} = frame(small(reply, x), In), {Credit - 1 + lists:sum([More || {credit, More, _} <- Effects]), Next} end,
    {Left, _} = lists:foldl(Feed, {Frames, new(caller, ?MAX, ?MAX_ANSWERS)}, lists:seq(1, 3 * Frames)),
    ?assert(Left >= Frames div 2).

%% ---- a lane that is fed at random ----

%% A message in so many pieces; how the link takes an acknowledgement; time that passes; answers that wait.
step() -> oneof([{batch, range(1, 300)}, {message, weighted_union([{3, 1}, {2, 2}, {1, range(3, 5)}]), oneof([10, 10, 1000, 100000, 3000000])},
                 {many, range(1, 700)}, {acks, oneof([ok, busy])}, timer, {answers, oneof([0, 10, ?MAX_ANSWERS div 2, ?MAX_ANSWERS + 1])}]).

right_test_() ->
    {timeout, 60, ?_assert(proper:quickcheck(?FORALL(Steps, list(step()), stays_right(Steps)), [quiet, {numtests, 500}, {max_size, 60}]))}.

-record(model, {in = new(acceptor, ?MAX, ?MAX_ANSWERS), number = 0, got = [], frames = 0, bytes = 0, acks = ok, acked = 0, timer = false, answers = 0,
                right = true}).

stays_right(Steps) ->
    {credit, Frames, Bytes} = credit(),
    Model = lists:foldl(fun step/2, #model{frames = Frames, bytes = Bytes}, Steps),
    %% In the end answers are through, the link takes what comes, and time passes.
    End = timer(step({answers, 0}, step({acks, ok}, Model))),
    End#model.right andalso End#model.got =:= lists:seq(End#model.number, 1, -1) andalso End#model.acked =:= End#model.number
        andalso not End#model.timer andalso End#model.frames >= Frames div 2 andalso End#model.bytes > Bytes div 2.

%% Whoever waits for ever would never be delivered: after a pause of the answers there is credit again.
step({message, Pieces, Size}, Model) -> message(Pieces, Size, Model);
step({many, Count}, Model) -> lists:foldl(fun(_, Acc) -> message(1, 10, Acc) end, Model, lists:seq(1, Count));
step({batch, Count}, #model{number = Number} = Model) ->
    feed(batch([{message, [N]} || N <- lists:seq(Number + 1, Number + Count)]), Model#model{number = Number + Count});
step({acks, Result}, Model) -> Model#model{acks = Result};
step(timer, Model) -> timer(Model);
step({answers, Bytes}, #model{in = In} = Model) -> done(answers(Bytes, In), Model#model{answers = Bytes}).

timer(#model{timer = true, in = In} = Model) -> done(ack_due(In), Model#model{timer = false});
timer(Model) -> Model.

message(Pieces, Size, #model{number = Number} = Model) ->
    Term = term_to_binary([Number + 1 | binary:copy(<<0>>, Size)]),
    lists:foldl(fun feed/2, Model#model{number = Number + 1}, frames(Pieces, Number, Term)).

frames(1, _, Term) -> [iolist_to_binary(teleport_frame:small(message, Term))];
frames(2, Stream, Term) -> [iolist_to_binary(teleport_frame:announce(Stream, message, [byte_size(Term)])), {part, Stream, Term}];
frames(Pieces, Stream, Term) ->
    Size = byte_size(Term),
    Cut = Size div Pieces + 1,
    [iolist_to_binary(teleport_frame:announce(Stream, message, [Size]))
     | [iolist_to_binary(teleport_frame:piece(Stream, Size, binary:part(Term, At, min(Cut, Size - At)))) || At <- lists:seq(0, Size - 1, Cut)]].

%% The link brings nothing without credit: the peer waits, until answers find room.
feed(_, #model{right = false} = Model) -> Model;
feed(Frame, #model{frames = Frames, bytes = Bytes, answers = Answers, in = In} = Model) when Frames =< 0; Bytes =< 0 ->
    case Answers of
        0 -> Model#model{right = false};
        _ -> feed(Frame, done(answers(0, In), Model#model{answers = 0}))
    end;
feed({part, Stream, Whole}, #model{in = In} = Model) -> done(part(Stream, Whole, In), brought(Whole, Model));
feed(Frame, #model{in = In} = Model) -> done(frame(Frame, In), brought(Frame, Model)).

brought(Frame, #model{frames = Frames, bytes = Bytes} = Model) -> Model#model{frames = Frames - 1, bytes = Bytes - byte_size(Frame)}.

done({Effects, In}, Model) -> lists:foldl(fun effect/2, Model#model{in = In}, Effects).

effect({request, message, [Number | _], _}, #model{got = Got} = Model) -> Model#model{got = [Number | Got]};
effect(weigh_answers, #model{in = In, answers = Answers} = Model) -> done(answers(Answers, In), Model);
effect({credit, Frames, Bytes}, #model{frames = F, bytes = B, answers = Answers, right = Right} = Model) ->
    {credit, MaxFrames, MaxBytes} = credit(),
    Model#model{frames = F + Frames, bytes = B + Bytes,
                right = Right andalso F + Frames =< MaxFrames andalso B + Bytes =< MaxBytes andalso Answers =< ?MAX_ANSWERS};
%% Never more than was delivered, and never less than before.
effect({ack, Count}, #model{acks = Result, in = In, acked = Acked, got = Got, right = Right} = Model) ->
    done(ack_sent(Result, Count, In), Model#model{acked = case Result of ok -> Count; busy -> Acked end,
                                                  right = Right andalso Count > Acked andalso Count =< length(Got)});
effect({ack_in, _}, #model{timer = false} = Model) -> Model#model{timer = true};
effect(_, Model) -> Model#model{right = false}.
