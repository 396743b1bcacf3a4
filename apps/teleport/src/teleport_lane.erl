%% SPDX-License-Identifier: Apache-2.0
%% @doc The process of one lane, on either side: it does what others decide. {@link teleport_inbound} says what follows from a frame, {@link
%% teleport_calls} what from a request, {@link teleport_outbound} what the link gets next, {@link teleport_waiters} which sender has room.
%%
%% A lane belongs to the node that opened it, the caller: requests go from the caller to the acceptor, answers and acknowledgements come
%% back on it. So the two directions cannot wait for each other: a caller always reads, and an acceptor stops reading only
%% while its answers find no room. The other direction has lanes of its own.
%%
%% It is a loop of its own, since each message of the data path passes here; it understands the messages of sys. Between two messages it
%% stands in {@link teleport_wait}, so that new code of this module ends no lane.
-module(teleport_lane).

-export([start_link/1, info/2, lost/2]).
-export([init/2, message/2, silence/1]).
-export([system_continue/3, system_terminate/4, system_code_change/4, system_get_state/1]).
-export_type([start/0, id/0]).

-include_lib("kernel/include/logger.hrl").

-type id() :: {node(), teleport_config:class(), Index :: non_neg_integer()}.
-type start() :: {caller, Peer :: pid(), id(), teleport_fair_queue:shares()} | acceptor.
%% The caller's peer process gets `{lane_up, self(), id(), tx(), Kind, Why}', and hears of the lane's end by a monitor: `{shutdown, {Fate, Reason}}'.
%% The acceptor's lane begins with the message `{socket, gen_tcp:socket(), Word | none, Acceptor}' and tells that process `{known, self()}' when the caller has proved
%% who it is. `Word' was read from the socket.

-define(IDLE_MS, 5000).
-define(PUMP_FRAMES, 32).
%% So many messages that are in the mailbox one after the other are queued before the link gets the first of them. One turn of the link has room for all.
-define(GATHER, ?PUMP_FRAMES - 1).
-define(TURN_MS, 1).
-define(SOCKET_MS, 5000).
%% So long a lost link waits for word of its node. It comes within a round trip by distribution, unless that is held up.
-define(WORD_MS, 500).
-define(NOBODY, '$teleport_nobody').
%% An own message up to this size goes straight into the link.
-define(STRAIGHT_BYTES, 65536).

-record(lane, {role :: caller | acceptor,
               parent :: pid(),
               id :: id(),
               tx :: teleport_sender:tx(),
               link :: teleport_link:link(),
               %% why it is of its kind, for people
               why :: binary(),
               tag :: teleport_link:tag(),
               inbound :: teleport_inbound:inbound(),
               calls :: teleport_calls:calls(),
               outbound :: teleport_outbound:outbound(),
               references = teleport_references:none() :: teleport_references:state(),
               %% blocks were passed or taken, and this process may still have terms of them
               has_blocks = false :: boolean(),
               waiters = teleport_waiters:new() :: teleport_waiters:waiters(),
               %% messages that were queued since the last look at what the link may get
               gathered = 0 :: non_neg_integer(),
               %% of the lanes to this node
               turns = none :: none | teleport_fair_queue:member(),
               max_queue_bytes :: pos_integer(),
               max_message_bytes :: pos_integer()}).

-type effect() :: teleport_inbound:effect() | teleport_calls:effect() | teleport_waiters:effect().

%% @doc Started by its supervisor; returns before the lane is up.
-spec start_link(start()) -> {ok, pid()}.
start_link(Start) ->
    {ok, proc_lib:spawn_opt(?MODULE, init, [self(), Start], [link, {message_queue_data, off_heap}, {min_heap_size, 4096}, {fullsweep_after, 10}])}.

%% @doc Keys that wait and calls that are not answered; from the lane's process itself.
-spec info(pid(), timeout()) -> map() | timeout.
info(Pid, TimeoutMs) ->
    Ref = monitor(process, Pid, [{alias, reply_demonitor}]),
    Pid ! {info, Ref},
    receive
        {Ref, Info} -> Info;
        {'DOWN', Ref, process, Pid, _} -> timeout
    after TimeoutMs ->
        true = demonitor(Ref, [flush]),
        timeout
    end.

%% @private
-spec init(pid(), start()) -> no_return().
init(Parent, {caller, Peer, {Node, Class, Index} = Id, Shares}) ->
    process_flag(trap_exit, true),
    _ = monitor(process, Peer),
    set_priority(Class),
    case teleport_connect:connect(Node, Class, Index) of
        {ok, Link, Kind, Why, References, Max, Takes} ->
            #{weights := #{Class := Weight}, chunk_bytes := Chunk} = Config = (teleport_config:of_node(Node))#{max_message_bytes := Max},
            Tx = teleport_sender:new(self(), Link, Kind, Config, lists:member(leaders, Takes)),
            Lane = (new(caller, Parent, Id, Tx, {Link, Why}, Config))#lane{turns = teleport_fair_queue:join(Shares, Class, Index, Weight), references = References,
                                                                           outbound = teleport_outbound:new(Chunk, lists:member(batches, Takes))},
            Peer ! {lane_up, self(), Id, Tx, Kind, Why},
            begin_reading(Lane);
        {error, Fate, Reason} ->
            exit({shutdown, {Fate, Reason}})
    end;
init(Parent, acceptor) ->
    process_flag(trap_exit, true),
    receive
        {socket, Socket, Word, Acceptor} -> accepted(Parent, teleport_connect:accept(Socket, Word, fun() -> Acceptor ! {known, self()}, ok end))
    after ?SOCKET_MS -> exit({shutdown, no_socket})
    end.

accepted(Parent, {ok, {Node, Class, Index}, Turn, Link, Kind, Why, Max}) ->
    set_priority(Class),
    true = erlang:monitor_node(Node, true),
    Config = (teleport_config:of_node(Node))#{max_message_bytes := Max},
    Tx = teleport_sender:new(self(), Link, Kind, Config, false),
    %% The lane that this one replaces has delivered its last message before the first of this one.
    teleport_peers:incoming({Node, Class, Index}, Tx, Turn) =:= ok orelse exit({shutdown, superseded}),
    begin_reading(new(acceptor, Parent, {Node, Class, Index}, Tx, {Link, Why}, Config));
accepted(_, {error, Reason}) ->
    exit({shutdown, Reason}).

set_priority(control) -> _ = process_flag(priority, high), ok;
set_priority(_) -> ok.

new(Role, Parent, Id, Tx, {Link, Why}, #{chunk_bytes := Chunk, max_message_bytes := Max, max_pending_calls := MaxPending, max_queue_bytes := MaxQueue}) ->
    #lane{role = Role, parent = Parent, id = Id, tx = Tx, link = Link, why = Why, tag = teleport_link:tag(Link), inbound = teleport_inbound:new(Role, Max, MaxQueue),
          calls = teleport_calls:new(MaxPending, Max), outbound = teleport_outbound:new(Chunk), max_queue_bytes = MaxQueue, max_message_bytes = Max}.

-spec begin_reading(#lane{}) -> no_return().
begin_reading(#lane{id = {_, Class, _}, link = Link} = Lane) ->
    %% Nobody else would run beside a process of high priority that looks.
    _ = teleport_link:attend(Link, Class =/= control),
    loop(do([teleport_inbound:credit()], Lane)).

%% Messages that were gathered go out when no other one is in the mailbox.
-spec loop(#lane{}) -> no_return().
loop(#lane{gathered = 0} = Lane) -> teleport_wait:message(?MODULE, Lane, ?IDLE_MS);
loop(Lane) -> teleport_wait:message(?MODULE, Lane, 0).

%% ---- events ----

%% @private
-spec message(term(), #lane{}) -> no_return().
message({tx, Key, Kind, Parts, Bytes}, #lane{gathered = Gathered} = Lane) when Gathered < ?GATHER -> loop(queued(Key, Kind, Parts, Bytes, Lane));
message({reserved, Ref, Key, Kind, Parts, Bytes}, #lane{gathered = Gathered, waiters = Waiters} = Lane) when Gathered < ?GATHER ->
    loop(queued(Key, Kind, Parts, Bytes, waiters(teleport_waiters:took(Ref, Bytes, Waiters), Lane)));
message(Message, #lane{gathered = Gathered} = Lane) when Gathered > 0 -> message(Message, pump(Lane));
message({Tag, {data, Frame}}, #lane{tag = Tag, inbound = In} = Lane) when is_binary(Frame) ->
    loop(inbound(teleport_inbound:frame(Frame, In), Lane));
message({Tag, {data, [_, N3, N2, N1, N0 | Whole]}}, #lane{tag = Tag, inbound = In} = Lane) ->
    loop(inbound(teleport_inbound:part(N3 bsl 24 bor (N2 bsl 16) bor (N1 bsl 8) bor N0, Whole, In), Lane));
message({Tag, Asked}, #lane{tag = Tag, link = Link} = Lane) when Asked =:= flush; Asked =:= look ->
    _ = teleport_link:attended(Link, Asked) =:= again andalso begin self() ! {Tag, look}, erlang:yield() end,
    loop(Lane);
message({Ref, Reply}, #lane{calls = Calls} = Lane) when is_reference(Ref) -> loop(calls(teleport_calls:replied(Ref, Reply, Calls), Lane));
%% Last of all: it goes on by {@link system_continue/3}.
message({system, From, Request}, #lane{parent = Parent} = Lane) -> sys:handle_system_msg(Request, From, Parent, ?MODULE, [], Lane);
message(Message, #lane{} = Lane) -> loop(event(Message, Lane));
message(_, Other) -> of_other_code(Other).

%% @private
-spec silence(#lane{}) -> no_return().
silence(#lane{gathered = 0} = Lane) -> loop(idle(Lane));
silence(#lane{} = Lane) -> loop(pump(Lane));
silence(Other) -> of_other_code(Other).

%% New code was loaded, and has another record: the lane ends, its peer process opens another one and reports what was not acknowledged.
-spec of_other_code(term()) -> no_return().
of_other_code(_) -> exit({shutdown, {retry, new_code}}).

event({Tag, writable}, #lane{tag = Tag, outbound = Out} = Lane) -> pump(Lane#lane{outbound = teleport_outbound:writable(Out)});
event(pump, #lane{outbound = Out} = Lane) -> pump(Lane#lane{outbound = teleport_outbound:resumed(Out)});
event({Tag, passive}, #lane{tag = Tag} = Lane) -> Lane;
event({wait, Ref, Pid, Bytes}, #lane{waiters = Waiters} = Lane) ->
    room(Lane#lane{waiters = teleport_waiters:in({Ref, Pid}, Bytes, fun is_process_alive/1, Waiters)});
event({wait_over, Ref}, #lane{waiters = Waiters} = Lane) -> waiters(teleport_waiters:out(Ref, Waiters), Lane);
event(look, #lane{waiters = Waiters} = Lane) -> room(waiters(teleport_waiters:look(fun is_process_alive/1, Waiters), Lane));
event(watch, #lane{calls = Calls} = Lane) -> calls(teleport_calls:watch(Calls), Lane);
event(ack, #lane{inbound = In} = Lane) -> inbound(teleport_inbound:ack_due(In), Lane);
event({'DOWN', Monitor, process, Pid, Reason}, #lane{role = acceptor, calls = Calls} = Lane) ->
    calls(teleport_calls:down(Monitor, Pid, Reason, Calls), Lane);
event({{applied, Ref}, _, process, _, Reason}, #lane{calls = Calls} = Lane) -> calls(teleport_calls:applied(Ref, Reason, Calls), Lane);
event({'DOWN', _, process, _, _}, #lane{role = caller} = Lane) -> close(the_peer_process_ended, Lane);
event({info, Ref}, #lane{inbound = In, calls = Calls, outbound = Out, waiters = Waiters, link = Link, why = Why} = Lane) ->
    Ref ! {Ref, #{reason => Why, waiting_senders => teleport_waiters:size(Waiters), waiting_keys => teleport_outbound:keys(Out), pending_calls => teleport_calls:pending(Calls),
                  unfinished_bytes => teleport_inbound:unfinished_bytes(In), link_stats => teleport_link:stats(Link)}},
    %% Whoever asks each second would keep the lane from ever being silent.
    idle(Lane);
event({Tag, closed, Reason, _}, #lane{tag = Tag} = Lane) -> link_lost(Reason, Lane);
event({nodedown, _}, Lane) -> close(nodedown, Lane);
event({close, Reason}, Lane) -> close(Reason, Lane);
event({'EXIT', Parent, Reason}, #lane{parent = Parent} = Lane) -> close(Reason, Lane);
event({'EXIT', Port, Reason}, #lane{tag = Port} = Lane) -> link_lost(Reason, Lane);
event(_, Lane) -> Lane.

%% What the link has taken goes out; the peer process reports the rest.
-spec close(term(), #lane{}) -> no_return().
close(Reason, #lane{link = Link}) ->
    ok = teleport_link:close(Link),
    exit({shutdown, {retry, Reason}}).

%% A node that ends takes its lanes along, and often they are the first to tell. So callers hear of it when it is known which of both has ended.
%% Senders go to the next lane at once.
-spec link_lost(term(), #lane{}) -> no_return().
link_lost(Reason, #lane{role = caller, id = {Node, _, _}, tx = Tx}) ->
    _ = teleport_sender:finish(Tx),
    exit({shutdown, {retry, case is_down(Node) of true -> nodedown; false -> Reason end}});
link_lost(Reason, #lane{role = acceptor}) ->
    exit({shutdown, {retry, Reason}}).

%% A monitor of nobody is a question that every node answers: with `noproc', if it lives.
is_down(Node) ->
    not is_connected(Node) orelse
        begin
            Monitor = monitor(process, {?NOBODY, Node}),
            receive
                {'DOWN', Monitor, process, _, Word} -> Word =:= noconnection
            after ?WORD_MS ->
                true = demonitor(Monitor, [flush]),
                false
            end
        end.

is_connected(Node) -> lists:member(Node, nodes(connected)).

%% @doc What those are told who waited for a lane that has ended with this exit reason.
-spec lost(node(), ExitReason :: term()) -> {nodedown | lane_lost, node()}.
lost(Node, {shutdown, {retry, nodedown}}) -> {nodedown, Node};
lost(Node, _) ->
    case is_connected(Node) of
        true -> {lane_lost, Node};
        false -> {nodedown, Node}
    end.

%% ---- effects ----

inbound({Effects, Next}, Lane) -> do(Effects, Lane#lane{inbound = Next}).

calls({Effects, Next}, Lane) -> do(Effects, Lane#lane{calls = Next}).

waiters({Effects, Next}, Lane) -> do(Effects, Lane#lane{waiters = Next}).

-spec do([effect()], #lane{}) -> #lane{}.
do([], Lane) -> Lane;
do([Effect | Effects], Lane) -> do(Effects, do_one(Effect, Lane)).

do_one({request, Kind, Term, Bytes}, #lane{calls = Calls, tx = Tx} = Lane) ->
    try teleport_calls:request(Kind, Term, Tx, Calls) of
        Result -> received(Bytes, Lane), calls(Result, Lane)
    catch
        error:function_clause -> broken(<<"a request that is none">>, Lane)
    end;
do_one({answer, reply, [Ref | Reply], Bytes}, #lane{tx = Tx} = Lane) when is_reference(Ref) ->
    ok = teleport_sender:answered(Tx),
    Ref ! {Ref, Reply},
    received(Bytes, Lane),
    Lane;
do_one({answer, failed, [Ref | Reason], _}, #lane{tx = Tx} = Lane) when is_reference(Ref) ->
    ok = teleport_sender:answered(Tx),
    Ref ! {Ref, '$teleport_failed', Reason},
    Lane;
do_one({answer, _, _, _}, Lane) -> broken(<<"an answer that is none">>, Lane);
do_one({refers, Kind, Parts, _}, #lane{references = References, inbound = In} = Lane) ->
    case teleport_references:take(Parts, References) of
        {ok, All, Next} -> inbound(teleport_inbound:resolved(Kind, All, iolist_size(All), In), Lane#lane{references = Next, has_blocks = true});
        {error, Reason} -> broken(Reason, Lane)
    end;
do_one({acked, Count}, #lane{tx = Tx} = Lane) -> ok = teleport_sender:acked(Tx, Count), Lane;
do_one({credit, Frames, Bytes}, #lane{link = Link} = Lane) -> _ = teleport_link:credit(Link, Frames, Bytes), Lane;
do_one(weigh_answers, #lane{tx = Tx} = Lane) -> {_, Bytes} = teleport_sender:queued(Tx), answers(Bytes, Lane);
%% Not through the queue: an acknowledgement may overtake answers.
do_one({ack, Count}, #lane{link = Link, inbound = In} = Lane) ->
    inbound(teleport_inbound:ack_sent(teleport_link:send(Link, teleport_frame:ack(Count)), Count, In), Lane);
do_one({reply, _} = Answer, Lane) -> own(Answer, Lane);
do_one({failed, _} = Answer, Lane) -> own(Answer, Lane);
do_one({enqueued, Bytes}, #lane{tx = Tx} = Lane) -> ok = teleport_sender:enqueued(Tx, Bytes), Lane;
do_one({dequeued, Bytes}, #lane{tx = Tx} = Lane) -> ok = teleport_sender:dequeued(Tx, 1, Bytes), Lane;
do_one({tell, Ref}, Lane) -> Ref ! {Ref, room}, Lane;
do_one({ack_in, Ms}, Lane) -> later(Ms, ack, Lane);
do_one({watch_in, Ms}, Lane) -> later(Ms, watch, Lane);
do_one({look_in, Ms}, Lane) -> later(Ms, look, Lane);
do_one({broken, Reason}, Lane) -> broken(Reason, Lane).

later(Ms, Event, Lane) ->
    _ = erlang:send_after(Ms, self(), Event),
    Lane.

received(Bytes, #lane{tx = Tx}) ->
    ok = teleport_sender:add(Tx, received, 1),
    teleport_sender:add(Tx, received_bytes, Bytes).

-spec broken(binary(), #lane{}) -> no_return().
broken(Reason, #lane{id = {Node, Class, Index}, link = Link}) ->
    ?LOG_ERROR("teleport: lane ~ts ~b of ~ts is closed: the peer broke the protocol: ~ts", [Class, Index, Node, Reason]),
    ok = teleport_link:close(Link),
    exit({shutdown, {retry, {protocol, Reason}}}).

%% ---- sending ----

%% The lane's own messages go straight, too, while nothing waits.
own(Answer, #lane{tx = Tx, link = Link, max_message_bytes = Max} = Lane) ->
    {Kind, Packed} = teleport_calls:packed(Answer, Max),
    case {Packed, teleport_sender:queued(Tx)} of
        {{small, Encoded, Bytes}, {0, _}} when Bytes =< ?STRAIGHT_BYTES ->
            case teleport_link:send(Link, teleport_frame:small(Kind, Encoded)) of
                busy -> own_later(Kind, [Encoded], Bytes, Lane);
                _ -> Lane
            end;
        {{small, Encoded, Bytes}, _} -> own_later(Kind, [Encoded], Bytes, Lane);
        {{parts, Parts, Bytes}, _} -> own_later(Kind, Parts, Bytes, Lane)
    end.

%% Answers need no order among themselves.
own_later(Kind, Parts, Bytes, Lane) -> pump(queued(make_ref(), Kind, Parts, Bytes, do_one({enqueued, Bytes}, Lane))).

queued(Key, Kind, Parts, Bytes, #lane{outbound = Out, references = References, gathered = Gathered} = Lane) ->
    case teleport_references:pass(Parts, References) of
        {none, Next} -> Lane#lane{outbound = teleport_outbound:message(Key, Kind, Parts, Bytes, Out), references = Next, gathered = Gathered + 1};
        {Referring, Next} ->
            Lane#lane{outbound = teleport_outbound:message(Key, {referring, Kind}, Referring, Bytes, Out), references = Next, gathered = Gathered + 1, has_blocks = true}
    end.

pump(#lane{outbound = Out} = Gathered) ->
    Lane = Gathered#lane{gathered = 0},
    case teleport_outbound:next(Out) of
        rest -> Lane;
        Step -> room(step(Step, ?PUMP_FRAMES, Out, Lane))
    end.

go_on(Left, Out, Lane) -> step(teleport_outbound:next(Out), Left, Out, Lane).

step(rest, _, Out, Lane) ->
    Lane#lane{outbound = Out};
%% The rest after what else has come: reading must not wait for writing.
step(_, 0, Out, Lane) ->
    self() ! pump,
    Lane#lane{outbound = teleport_outbound:paused(Out)};
step({send, Frame}, Left, Out, #lane{link = Link} = Lane) ->
    Result = teleport_link:send(Link, Frame),
    _ = Result =:= busy andalso teleport_link:tell_when_writable(Link),
    go_on(Left - 1, teleport_outbound:sent(Result, Out), Lane);
step({through, Messages, Bytes, Next}, Left, _, #lane{tx = Tx} = Lane) ->
    ok = teleport_sender:dequeued(Tx, Messages, Bytes),
    go_on(Left, Next, Lane);
step({turn, IsEmpty}, Left, Out, #lane{turns = Turns} = Lane) ->
    case teleport_fair_queue:turn(IsEmpty, Turns) of
        {go, Next} -> begin_next(teleport_outbound:begin_next(Out), Left, Out, Lane#lane{turns = Next});
        {leave, Next} -> later(?TURN_MS, pump, Lane#lane{outbound = teleport_outbound:paused(Out), turns = Next})
    end.

begin_next(empty, _, Out, Lane) ->
    Lane#lane{outbound = Out};
begin_next({Frames, Next}, Left, _, #lane{turns = Turns} = Lane) ->
    Bytes = iolist_size(Frames),
    ok = teleport_fair_queue:sent(Bytes, Turns),
    %% A piece is a turn of its own: others wait for one copy, and the scheduler looks at what has come the sooner.
    true = erlang:bump_reductions(1 + Bytes bsr 6),
    go_on(Left, Next, Lane).

%% Whoever waits is told, one after the other, as far as there is room; so is a link that was held.
room(#lane{tx = Tx, waiters = Waiters, max_queue_bytes = Max} = Lane) ->
    {Messages, Bytes} = teleport_sender:queued(Tx),
    Room = {teleport_sender:room(Tx, Messages), Max - Bytes},
    answers(Bytes, waiters(teleport_waiters:room(Room, Bytes =:= 0, fun is_process_alive/1, Waiters), Lane)).

answers(Bytes, #lane{inbound = In} = Lane) -> inbound(teleport_inbound:answers(Bytes, In), Lane).

%% What was counted by a sender that was killed is taken off.
idle(#lane{tx = Tx, outbound = Out, waiters = Waiters} = Before) ->
    Lane = without_garbage(Before),
    case teleport_waiters:is_none_told(Waiters) andalso teleport_outbound:idle(teleport_sender:queued(Tx), erlang:monotonic_time(millisecond), Out) of
        false -> Lane;
        {none, Next} -> room(Lane#lane{outbound = Next});
        {{take_off, Counted}, Next} -> ok = teleport_sender:reconcile(Tx, Counted), room(Lane#lane{outbound = Next})
    end.

%% Blocks that still wait in the queue are no garbage yet.
without_garbage(#lane{has_blocks = true, tx = Tx} = Lane) ->
    true = erlang:garbage_collect(),
    Lane#lane{has_blocks = teleport_sender:queued(Tx) =/= {0, 0}};
without_garbage(Lane) -> Lane.

%% ---- sys ----

%% @private
-spec system_continue(pid(), [sys:dbg_opt()], #lane{}) -> no_return().
system_continue(_Parent, _Debug, Lane) -> loop(Lane).

%% @private
-spec system_terminate(term(), pid(), [sys:dbg_opt()], #lane{}) -> no_return().
system_terminate(Reason, _Parent, _Debug, Lane) -> close(Reason, Lane).

%% @private
-spec system_code_change(#lane{}, module(), term(), term()) -> {ok, #lane{}}.
system_code_change(Lane, _Module, _Old, _Extra) -> {ok, Lane}.

%% @private
-spec system_get_state(#lane{}) -> {ok, #lane{}}.
system_get_state(Lane) -> {ok, Lane}.
