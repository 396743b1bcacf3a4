%% SPDX-License-Identifier: Apache-2.0
%% @doc The sending half of a lane as its senders see it: a small message goes from the sender straight into the link, without another
%% process; everything else goes to the queue of the lane's process.
%%
%% Why the order of one sender holds: `QUEUED' counts the messages that were given to the lane's process and are not yet in the link. A
%% sender counts its message up before it gives it away, the lane's process counts it down only after the link has taken all of it.
%% So as long as a message of this sender is in the queue the sender sees a count above 0, and takes the queue as well; when it
%% sees 0 all its earlier messages are in the link, which keeps their order.
%%
%% Why nothing is lost without a word: each message gets a number when it is accepted (`SENT'). When a lane is lost, its process, or else its peer process,
%% first marks it as closed and then reads that number: what was accepted and not acknowledged is reported. A sender looks for the
%% mark after it has given its message away: if it is there and its number is later than the one that was read, nobody has reported the
%% message, and nobody has delivered it; it is sent again over the next lane.
%%
%% An answer confirms its call as well, before the acknowledgement comes. Of the calls that were sent (`CALLS'), so many are answered (`ANSWERED'). When the peer
%% acknowledged its first messages, `CALLS_THEN' calls had been sent, and no more were among those. So of what came behind them, at least
%% `ANSWERED - CALLS_THEN' have arrived.
%%
%% A lane that its peer process takes out of use is marked in the number itself, so each message is either counted before the mark or refused.
-module(teleport_sender).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-export([new/5, send/6, max_message_bytes/1, takes_leaders/1, pid/1, link/1, counters/1, enqueued/2, dequeued/3, queued/1, room/2, seen/2, sent/1, leave/1, rest/2, outstanding/1, finish/1, acked/2, answered/1, add/3, info/1, reconcile/2]).
-export_type([tx/0, counter/0, packed/0, refusal/0]).

-record(tx, {pid :: pid(),
             link :: teleport_link:link(),
             kind :: teleport_link:kind(),
             counters :: atomics:atomics_ref(),
             chunk :: pos_integer(),
             max_message_bytes :: pos_integer(),
             %% the acceptor takes the group leader of what is applied
             takes_leaders :: boolean(),
             max_bytes :: pos_integer(),
             max_messages :: pos_integer()}).
-opaque tx() :: #tx{}.
-type counter() :: refused | received | received_bytes.
-type packed() :: {small, iodata(), Bytes :: non_neg_integer()} | {parts, teleport_term:parts(), Bytes :: non_neg_integer()}.
-type refusal() :: closed | overload | timeout.

-define(QUEUED, 1).
-define(QUEUED_BYTES, 2).
-define(SENT, 3).
-define(SENT_BYTES, 4).
-define(STALLS, 5).
-define(DROPPED, 6).
-define(ACKED, 7).
-define(REFUSED, 8).
-define(CLOSED, 9).
-define(FINAL, 10).
-define(RECEIVED, 11).
-define(RECEIVED_BYTES, 12).
-define(UNCONFIRMED, 13).
-define(CALLS, 14).
-define(ANSWERED, 15).
-define(CALLS_THEN, 16).
%% A bitmap of the order keys that were seen: enough to estimate how many there are. 32 bits a word: one of 64 may be a bignum for whoever reads it.
-define(BITMAP, 17).
-define(BITMAP_WORDS, 128).
-define(IS_ANSWERED(Kind), (Kind =:= call orelse Kind =:= apply orelse Kind =:= confirmed orelse Kind =:= event_call orelse Kind =:= other_call)).
%% Added to `SENT': nothing more goes over the lane. The sum is no bignum.
-define(LEFT, (1 bsl 58)).
-define(FINISH_TRIES, 100000).
%% A sender that can wait does so behind this many messages, whatever `max_queue_messages' allows. The heap of the lane's process holds
%% them. With tens of thousands its garbage collections run on a dirty scheduler and take most of the time: `docs/decisions.md'.
-define(WAIT_MESSAGES, 2000).

%% @doc For a lane that is about to be used; its process calls this.
-spec new(pid(), teleport_link:link(), teleport_link:kind(), teleport_config:config(), TakesLeaders :: boolean()) -> tx().
new(Pid, Link, Kind, #{chunk_bytes := Chunk, max_message_bytes := MaxMessage, max_queue_bytes := MaxBytes, max_queue_messages := MaxMessages}, TakesLeaders) ->
    #tx{pid = Pid, link = Link, kind = Kind, counters = atomics:new(?BITMAP + ?BITMAP_WORDS - 1, [{signed, false}]), chunk = Chunk,
        max_message_bytes = MaxMessage, takes_leaders = TakesLeaders, max_bytes = MaxBytes, max_messages = MaxMessages}.

%% @doc Sends a message. `Key' is its order key, a hash. When there is no room: `{block, Deadline}' waits for it, `error' and `drop' do not; `drop'
%% counts the message. `closed': the lane is lost, and this message was not sent over it.
-spec send(tx(), Key :: non_neg_integer(), teleport_frame:kind(), packed(), Bytes :: non_neg_integer(), OnFull) -> ok | dropped | {error, refusal()}
              when OnFull :: {block, teleport_deadline:deadline()} | error | drop.
send(#tx{counters = Counters} = Tx, Key, Kind, Packed, Bytes, OnFull) when ?IS_ANSWERED(Kind) ->
    %% Before it can be acknowledged.
    ok = atomics:add(Counters, ?CALLS, 1),
    case give(Tx, Key, Kind, Packed, Bytes, OnFull) of
        ok -> ok;
        Not -> ok = atomics:sub(Counters, ?CALLS, 1), Not
    end;
send(Tx, Key, Kind, Packed, Bytes, OnFull) ->
    give(Tx, Key, Kind, Packed, Bytes, OnFull).

give(#tx{counters = Counters, chunk = Chunk} = Tx, Key, Kind, {small, Term, Bytes}, Bytes, OnFull) when Bytes =< Chunk ->
    case atomics:get(Counters, ?QUEUED) =:= 0 andalso straight(Tx, Kind, Term, Bytes) of
        Not when Not =:= false; Not =:= busy -> enqueue(Tx, Key, Kind, [Term], Bytes, OnFull);
        Result -> Result
    end;
give(Tx, Key, Kind, {small, Term, Bytes}, Bytes, OnFull) ->
    enqueue(Tx, Key, Kind, [Term], Bytes, OnFull);
give(Tx, Key, Kind, {parts, Parts, Bytes}, Bytes, OnFull) ->
    enqueue(Tx, Key, Kind, Parts, Bytes, OnFull).

straight(#tx{link = Link, counters = Counters}, Kind, Term, Bytes) ->
    case number(Counters) of
        left -> {error, closed};
        Number -> taken(teleport_link:send(Link, teleport_frame:small(Kind, Term)), Counters, Number, Bytes)
    end.

taken(ok, Counters, Number, Bytes) ->
    accepted(Counters, Number, Bytes);
taken(Not, Counters, _, _) ->
    ok = atomics:add(Counters, ?REFUSED, 1),
    case Not of busy -> busy; closed -> {error, closed} end.

number(Counters) ->
    case atomics:add_get(Counters, ?SENT, 1) of
        Number when Number < ?LEFT -> Number;
        _ -> ok = atomics:add(Counters, ?REFUSED, 1), left
    end.

numbered(Counters) -> atomics:get(Counters, ?SENT) band (?LEFT - 1).

accepted(Counters, Number, Bytes) ->
    ok = atomics:add(Counters, ?SENT_BYTES, Bytes),
    case atomics:get(Counters, ?CLOSED) of
        0 -> ok;
        _ -> accepted_late(Number, Counters, ?FINISH_TRIES)
    end.

%% Somebody is just reading the last number: microseconds.
accepted_late(Number, Counters, Tries) ->
    case atomics:get(Counters, ?FINAL) of
        0 when Tries > 0 -> true = erlang:yield(), accepted_late(Number, Counters, Tries - 1);
        Final when Number < Final -> ok;
        _ -> {error, closed}
    end.

%% A message that is larger than the bound is let in when nothing else waits.
enqueue(#tx{pid = Pid, counters = Counters, max_bytes = MaxBytes} = Tx, Key, Kind, Parts, Bytes, OnFull) ->
    Messages = atomics:add_get(Counters, ?QUEUED, 1),
    Most = most(OnFull, Tx),
    case atomics:add_get(Counters, ?QUEUED_BYTES, Bytes) of
        All when Messages =< Most, All =< MaxBytes orelse All =:= Bytes ->
            case number(Counters) of
                left -> ok = dequeued(Tx, 1, Bytes), {error, closed};
                Number ->
                    Pid ! {tx, Key, Kind, Parts, Bytes},
                    accepted(Counters, Number, Bytes)
            end;
        _ ->
            ok = dequeued(Tx, 1, Bytes),
            full(Tx, Key, Kind, Parts, Bytes, OnFull)
    end.

most({block, _}, #tx{max_messages = Most}) -> min(Most, ?WAIT_MESSAGES);
most(_, #tx{max_messages = Most}) -> Most.

%% @doc How many more messages of senders that can wait find room. None until most of the queue is through: then those that wait have a
%% long turn, and not one message each.
-spec room(tx(), Queued :: non_neg_integer()) -> integer().
room(Tx, Queued) ->
    case most({block, infinity}, Tx) of
        Most when Queued * 8 > Most -> 0;
        Most -> Most - Queued
    end.

full(#tx{counters = Counters}, _, _, _, _, drop) ->
    ok = atomics:add(Counters, ?DROPPED, 1),
    dropped;
full(_, _, _, _, _, error) ->
    {error, overload};
full(#tx{pid = Pid, counters = Counters} = Tx, Key, Kind, Parts, Bytes, {block, Deadline}) ->
    ok = atomics:add(Counters, ?STALLS, 1),
    Ref = monitor(process, Pid, [{alias, reply_demonitor}]),
    Pid ! {wait, Ref, self(), Bytes},
    receive
        {Ref, room} -> reserved(Tx, Ref, Key, Kind, Parts, Bytes);
        {'DOWN', Ref, process, Pid, _} -> {error, closed}
    after teleport_deadline:left(Deadline) ->
            true = demonitor(Ref, [flush]),
            %% The word of room may be here by now. The place must stay until the message is in the queue: else a later message could find the queue
            %% empty and pass this one.
            receive {Ref, room} -> reserved(Tx, Ref, Key, Kind, Parts, Bytes)
            after 0 -> Pid ! {wait_over, Ref}, {error, timeout}
            end
    end.

%% The lane's process has counted this message up already: nobody who did not wait takes the place.
reserved(#tx{pid = Pid, counters = Counters}, Ref, Key, Kind, Parts, Bytes) ->
    case number(Counters) of
        left -> Pid ! {wait_over, Ref}, {error, closed};
        Number ->
            Pid ! {reserved, Ref, Key, Kind, Parts, Bytes},
            accepted(Counters, Number, Bytes)
    end.

%% @doc The largest message that both nodes take. {@link send/6} does not look at it.
-spec max_message_bytes(tx()) -> pos_integer().
max_message_bytes(#tx{max_message_bytes = Max}) -> Max.

%% @doc Whether the acceptor takes the group leader of what is applied.
-spec takes_leaders(tx()) -> boolean().
takes_leaders(#tx{takes_leaders = Takes}) -> Takes.

%% @doc The lane's process.
-spec pid(tx()) -> pid().
pid(#tx{pid = Pid}) -> Pid.

%% @doc What carries the lane.
-spec link(tx()) -> teleport_link:link().
link(#tx{link = Link}) -> Link.

%% @doc The account, for the lane's process.
-spec counters(tx()) -> atomics:atomics_ref().
counters(#tx{counters = Counters}) -> Counters.

%% @doc Counts a message that the lane's process itself puts into its queue.
-spec enqueued(tx(), Bytes :: non_neg_integer()) -> ok.
enqueued(#tx{counters = Counters}, Bytes) ->
    ok = atomics:add(Counters, ?QUEUED_BYTES, Bytes),
    atomics:add(Counters, ?QUEUED, 1).

%% @doc Counts messages of the queue that the link has taken, or that will not come.
-spec dequeued(tx(), Messages :: pos_integer(), Bytes :: non_neg_integer()) -> ok.
dequeued(#tx{counters = Counters}, Messages, Bytes) ->
    ok = atomics:sub(Counters, ?QUEUED_BYTES, Bytes),
    atomics:sub(Counters, ?QUEUED, Messages).

%% @doc What waits now.
-spec queued(tx()) -> {Messages :: non_neg_integer(), Bytes :: non_neg_integer()}.
queued(#tx{counters = Counters}) ->
    {atomics:get(Counters, ?QUEUED), atomics:get(Counters, ?QUEUED_BYTES)}.

%% @doc A sender that was killed between counting and giving leaves its count behind. `Before' was read a while ago, and nothing has come
%% since; if it is still the same the lane's queue is empty in truth.
-spec reconcile(tx(), Before :: {non_neg_integer(), non_neg_integer()}) -> ok.
reconcile(#tx{counters = Counters}, {Messages, Bytes}) ->
    case atomics:compare_exchange(Counters, ?QUEUED_BYTES, Bytes, 0) of
        ok -> _ = atomics:compare_exchange(Counters, ?QUEUED, Messages, 0), ok;
        _ -> ok
    end.

%% @doc Remembers that this order key uses the lane.
-spec seen(tx(), Key :: non_neg_integer()) -> ok.
seen(#tx{counters = Counters}, Key) ->
    Bit = Key bsr 4,
    Word = ?BITMAP + (Bit bsr 5) rem ?BITMAP_WORDS,
    set_bit(Counters, Word, 1 bsl (Bit band 31), atomics:get(Counters, Word)).

set_bit(_, _, Mask, Value) when Value band Mask =/= 0 -> ok;
set_bit(Counters, Word, Mask, Value) ->
    case atomics:compare_exchange(Counters, Word, Value, Value bor Mask) of
        ok -> ok;
        Other -> set_bit(Counters, Word, Mask, Other)
    end.

%% @doc The last number that was given to a message.
-spec sent(tx()) -> non_neg_integer().
sent(#tx{counters = Counters}) -> numbered(Counters).

%% @doc The peer stops: senders find the lane closed from now on. Answers still come. At most once for a lane.
-spec leave(tx()) -> ok.
leave(#tx{counters = Counters}) -> atomics:add(Counters, ?SENT, ?LEFT).

%% @doc The same, if no message has got a number since {@link sent/1} gave this one.
-spec rest(tx(), Sent :: non_neg_integer()) -> boolean().
rest(#tx{counters = Counters}, Sent) -> atomics:compare_exchange(Counters, ?SENT, Sent, Sent + ?LEFT) =:= ok.

%% @doc How many messages are not acknowledged. Never too few: what was refused is read first.
-spec outstanding(tx()) -> integer().
outstanding(#tx{counters = Counters}) ->
    Through = atomics:get(Counters, ?REFUSED) + atomics:get(Counters, ?ACKED),
    numbered(Counters) - Through.

%% @doc The lane is lost: how many messages were accepted and neither acknowledged nor answered. The first answer holds: the lane's process may ask when its
%% link is lost, and the peer process asks when the lane's process has ended.
-spec finish(tx()) -> Unconfirmed :: non_neg_integer().
finish(#tx{counters = Counters}) ->
    case atomics:get(Counters, ?FINAL) of
        0 -> finish_now(Counters);
        _ -> atomics:get(Counters, ?UNCONFIRMED)
    end.

%% Refusals are read first: one that comes in between is counted as unconfirmed, and never the other way round.
finish_now(Counters) ->
    ok = atomics:put(Counters, ?CLOSED, 1),
    Through = atomics:get(Counters, ?REFUSED) + arrived(Counters),
    Sent = numbered(Counters),
    Unconfirmed = max(0, Sent - Through),
    ok = atomics:put(Counters, ?UNCONFIRMED, Unconfirmed),
    ok = atomics:put(Counters, ?FINAL, Sent + 1),
    Unconfirmed.

arrived(Counters) ->
    Answered = atomics:get(Counters, ?ANSWERED),
    max(Answered, atomics:get(Counters, ?ACKED) + max(0, Answered - atomics:get(Counters, ?CALLS_THEN))).

%% @doc The peer has delivered so many messages, all in all.
-spec acked(tx(), Messages :: non_neg_integer()) -> ok.
acked(#tx{counters = Counters}, Count) ->
    ok = atomics:put(Counters, ?CALLS_THEN, atomics:get(Counters, ?CALLS)),
    atomics:put(Counters, ?ACKED, Count).

%% @doc The peer has answered a call.
-spec answered(tx()) -> ok.
answered(#tx{counters = Counters}) -> atomics:add(Counters, ?ANSWERED, 1).

%% @doc Counts.
-spec add(tx(), counter(), non_neg_integer()) -> ok.
add(#tx{counters = Counters}, Counter, Count) -> atomics:add(Counters, index(Counter), Count).

index(refused) -> ?REFUSED;
index(received) -> ?RECEIVED;
index(received_bytes) -> ?RECEIVED_BYTES.

%% @doc What carries the lane, and all counters, for people.
-spec info(tx()) -> #{kind := teleport_link:kind(), atom() => non_neg_integer()}.
info(#tx{kind = Kind, counters = Counters}) ->
    Get = fun(Index) -> atomics:get(Counters, Index) end,
    #{kind => Kind, queued => Get(?QUEUED), queued_bytes => Get(?QUEUED_BYTES), sent => max(0, numbered(Counters) - Get(?REFUSED)), sent_bytes => Get(?SENT_BYTES),
      acknowledged => Get(?ACKED), received => Get(?RECEIVED), received_bytes => Get(?RECEIVED_BYTES), stalls => Get(?STALLS),
      dropped => Get(?DROPPED), keys => estimate(lists:sum([bits(Get(Index)) || Index <- lists:seq(?BITMAP, ?BITMAP + ?BITMAP_WORDS - 1)]))}.

bits(0) -> 0;
bits(N) -> 1 + bits(N band (N - 1)).

%% Linear counting: how many keys most likely set so many of the bits.
estimate(Set) ->
    All = ?BITMAP_WORDS * 32,
    round(-All * math:log((All - min(Set, All - 1)) / All)).

-ifdef(TEST).

%% Out of use only if nobody has sent since the look. Then the next message is refused, and counts nowhere.
rest_test() ->
    Tx = new(self(), none, shm, #{chunk_bytes => 100, max_message_bytes => 1000, max_queue_bytes => 1000, max_queue_messages => 10}, false),
    Send = fun() -> send(Tx, 1, message, {parts, [<<"t">>], 1}, 1, error) end,
    Before = sent(Tx),
    ok = Send(),
    ?assertNot(rest(Tx, Before)),
    ok = Send(),
    ?assert(rest(Tx, sent(Tx))),
    ?assertEqual({error, closed}, Send()),
    ?assertEqual({2, 2}, queued(Tx)),
    ?assertEqual(2, outstanding(Tx)),
    ?assertMatch(#{sent := 2}, info(Tx)),
    ?assertEqual(2, finish(Tx)).

%% Calls 1 to 3 and a message, of which the peer has acknowledged the first two when calls 1 and 3 are answered; then calls alone.
answered_test() ->
    New = fun() -> new(self(), none, shm, #{chunk_bytes => 100, max_message_bytes => 1000, max_queue_bytes => 1000, max_queue_messages => 4}, false) end,
    Send = fun(Tx, Kind) -> send(Tx, 1, Kind, {parts, [<<"t">>], 1}, 1, error) end,
    Mixed = New(),
    [ok = Send(Mixed, Kind) || Kind <- [call, message]],
    ok = acked(Mixed, 2),
    [ok = Send(Mixed, Kind) || Kind <- [call, call]],
    [ok = answered(Mixed) || _ <- [1, 3]],
    %% One of the answers may be that of the first call. What was refused is no call.
    {error, overload} = Send(Mixed, call),
    ?assertEqual(2, outstanding(Mixed)),
    ?assertEqual(1, finish(Mixed)),
    Calls = New(),
    [ok = Send(Calls, Kind) || Kind <- [call, apply, confirmed, other_call]],
    [ok = answered(Calls) || _ <- lists:seq(1, 3)],
    ok = acked(Calls, 1),
    ?assertEqual(1, finish(Calls)).

%% The word of room comes when the sender's time is over. Either its message takes the place or the place is given back.
late_room_test() ->
    Tx = new(self(), none, shm, #{chunk_bytes => 100, max_message_bytes => 1000, max_queue_bytes => 1000, max_queue_messages => 1}, false),
    ok = enqueued(Tx, 1),
    {Sender, Monitor} = spawn_monitor(fun() -> send(Tx, 1, message, {parts, [<<"t">>], 1}, 1, {block, teleport_deadline:in(1000)}) end),
    Ref = receive {wait, Waiting, Sender, 1} -> Waiting end,
    true = erlang:suspend_process(Sender),
    Ref ! {Ref, room},
    timer:sleep(1100),
    true = erlang:resume_process(Sender),
    receive {'DOWN', Monitor, process, Sender, _} -> ok end,
    TakesPlace = receive {reserved, Ref, 1, message, _, 1} -> true after 0 -> false end,
    GivesBack = receive {wait_over, Ref} -> true after 0 -> false end,
    ?assert(TakesPlace xor GivesBack).

-endif.
