%% SPDX-License-Identifier: Apache-2.0
%% @doc The process of one lane, on either side: it reads, decodes and delivers, and sends what waits in its queue.
%%
%% A lane belongs to the node that opened it, the caller: requests go from the caller to the acceptor, answers and acknowledgements come
%% back on it. So the two directions cannot wait for each other: a caller always reads, and an acceptor stops reading only
%% while its answers find no room. The other direction has lanes of its own.
%%
%% It is a loop of its own, since each message of the data path passes here; it understands the messages of sys. Between two messages it
%% stands in {@link teleport_wait}, so that new code of this module ends no lane.
-module(teleport_lane).

-export([start_link/1, info/2]).
-export([init/2, message/2, silence/1]).
-export([system_continue/3, system_terminate/4, system_code_change/4, system_get_state/1]).
-export_type([start/0, id/0]).

-include_lib("kernel/include/logger.hrl").

-type id() :: {node(), teleport_config:class(), Index :: non_neg_integer()}.
-type start() :: {caller, Peer :: pid(), id(), teleport_fair_queue:shares()} | acceptor.
%% The caller's peer process gets `{lane_up, self(), id(), tx(), Kind, Why}', and hears of the lane's end by a monitor: `{shutdown, {Fate, Reason}}'.
%% The acceptor's lane begins with the message `{socket, gen_tcp:socket(), Acceptor}' and tells that process `{known, self()}' when the caller has proved who it is.

-define(FRAMES, 2000).
-define(BYTES, 4194304).
-define(ACK_EVERY, 256).
-define(ACK_MS, 10).
-define(IDLE_MS, 5000).
-define(PUMP_FRAMES, 32).
-define(TURN_MS, 1).
-define(SOCKET_MS, 5000).
%% How often a lane looks for room again while senders wait: the one that was told may have been killed.
-define(LOOK_MS, 20).
%% Calls that are not answered after twice this time have their callers watched.
-define(PARKED_MS, 3000).
-define(MAX_ALL, 1 bsl 32).

-record(lane, {role :: caller | acceptor,
               parent :: pid(),
               id :: id(),
               tx :: teleport_sender:tx(),
               link :: teleport_link:link(),
               tag :: teleport_link:tag(),
               schedule :: teleport_schedule:schedule(),
               %% frames that the link did not take, and what is through with them
               unsent = {[], none} :: {[iodata()], none | {1, non_neg_integer()}},
               %% the link tells when it has room
               busy = false :: boolean(),
               %% a message to myself is on its way
               pumping = false :: boolean(),
               %% what the lanes to this node have in common; how often a turn was left to others
               shares = none :: none | {teleport_fair_queue:shares(), Weight :: pos_integer()},
               left = 0 :: non_neg_integer(),
               shows = false :: boolean(),
               waiting = teleport_waiters:new() :: teleport_waiters:waiters(),
               looking = false :: boolean(),
               %% places in the queue of those that were told that there is room
               reserved = #{} :: #{reference() => {pid(), Bytes :: non_neg_integer()}},
               reassembly :: teleport_reassembly:reassembly(),
               calls :: teleport_calls:calls(),
               %% a message to myself will come
               watching = false :: boolean(),
               %% since credit was given
               frames = 0 :: non_neg_integer(),
               bytes = 0 :: non_neg_integer(),
               held = false :: boolean(),
               max_queue_bytes :: pos_integer(),
               %% delivered, and how many of these the caller knows of
               delivered = 0 :: non_neg_integer(),
               told = 0 :: non_neg_integer(),
               ack_timer = none :: none | reference(),
               idle = none :: none | {non_neg_integer(), non_neg_integer()}}).

%% @doc Started by its supervisor; returns before the lane is up.
-spec start_link(start()) -> {ok, pid()}.
start_link(Start) ->
    {ok, proc_lib:spawn_opt(?MODULE, init, [self(), Start], [link, {message_queue_data, off_heap}, {min_heap_size, 4096}, {fullsweep_after, 10}])}.

%% @doc Keys that wait and calls that are not answered; from the lane's process itself.
-spec info(pid(), TimeoutMs :: pos_integer()) -> map() | timeout.
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
        {ok, Link, Kind, Why} ->
            Tx = teleport_sender:new(self(), Link, Kind, teleport_config:of_node(Node)),
            #{weights := #{Class := Weight}} = teleport_config:of_node(Node),
            Lane = (new(caller, Parent, Id, Tx, Link))#lane{shares = {Shares, Weight}},
            Peer ! {lane_up, self(), Id, Tx, Kind, Why},
            begin_reading(Lane);
        {error, Fate, Reason} ->
            exit({shutdown, {Fate, Reason}})
    end;
init(Parent, acceptor) ->
    process_flag(trap_exit, true),
    receive
        {socket, Socket, Acceptor} -> accepted(Parent, teleport_connect:accept(Socket, fun() -> Acceptor ! {known, self()}, ok end))
    after ?SOCKET_MS -> exit({shutdown, no_socket})
    end.

accepted(Parent, {ok, {Node, Class, Index}, Link, Kind}) ->
    set_priority(Class),
    true = erlang:monitor_node(Node, true),
    Tx = teleport_sender:new(self(), Link, Kind, teleport_config:of_node(Node)),
    %% The lane that this one replaces has delivered its last message before the first of this one.
    ok = teleport_peers:incoming({Node, Class, Index}, Tx),
    begin_reading(new(acceptor, Parent, {Node, Class, Index}, Tx, Link));
accepted(_, {error, Reason}) ->
    exit({shutdown, Reason}).

set_priority(control) -> _ = process_flag(priority, high), ok;
set_priority(_) -> ok.

new(Role, Parent, {Node, _, _} = Id, Tx, Link) ->
    #{chunk_bytes := Chunk, max_message_bytes := Max, max_pending_calls := MaxPending, max_queue_bytes := MaxQueue} = teleport_config:of_node(Node),
    #lane{role = Role, parent = Parent, id = Id, tx = Tx, link = Link, tag = teleport_link:tag(Link),
          schedule = teleport_schedule:new(Chunk), reassembly = teleport_reassembly:new(Max, ?MAX_ALL), calls = teleport_calls:new(MaxPending),
          max_queue_bytes = MaxQueue}.

-spec begin_reading(#lane{}) -> no_return().
begin_reading(#lane{link = Link} = Lane) ->
    _ = teleport_link:credit(Link, ?FRAMES, ?BYTES),
    loop(Lane).

-spec loop(#lane{}) -> no_return().
loop(Lane) -> teleport_wait:message(?MODULE, Lane, ?IDLE_MS).

%% @private
-spec message(term(), #lane{}) -> no_return().
message({Tag, {data, Frame}}, #lane{tag = Tag} = Lane) when is_binary(Frame) -> loop(credited(byte_size(Frame), frame(Frame, Lane)));
message({Tag, {data, [_, N3, N2, N1, N0 | Whole]}}, #lane{tag = Tag} = Lane) ->
    loop(credited(byte_size(Whole), piece(number(N3, N2, N1, N0), Whole, Lane)));
message({Ref, Reply}, Lane) when is_reference(Ref) -> loop(replied(Ref, Reply, Lane));
message({tx, Key, Kind, Parts, Bytes}, Lane) -> loop(pump(queued(Key, Kind, Parts, Bytes, Lane)));
%% Last of all: it goes on by {@link system_continue/3}.
message({system, From, Request}, #lane{parent = Parent} = Lane) -> sys:handle_system_msg(Request, From, Parent, ?MODULE, [], Lane);
message(Message, Lane) -> loop(event(Message, Lane)).

%% @private
-spec silence(#lane{}) -> no_return().
silence(Lane) -> loop(idle(Lane)).

event({Tag, writable}, #lane{tag = Tag} = Lane) -> pump(Lane#lane{busy = false});
event(pump, Lane) -> pump(Lane#lane{pumping = false});
event({Tag, passive}, #lane{tag = Tag} = Lane) -> Lane;
event({wait, Ref, Pid, Bytes}, #lane{waiting = Waiting} = Lane) ->
    room(Lane#lane{waiting = teleport_waiters:in({Ref, Pid}, Bytes, fun is_process_alive/1, Waiting)});
event({wait_over, Ref}, #lane{waiting = Waiting} = Lane) -> release([Ref], Lane#lane{waiting = teleport_waiters:out(Ref, Waiting)});
event({reserved, Ref, Key, Kind, Parts, Bytes}, Lane) -> pump(queued(Key, Kind, Parts, Bytes, used(Ref, Bytes, Lane)));
event(look, #lane{reserved = Reserved} = Lane) ->
    room(release([Ref || {Ref, {Pid, _}} <- maps:to_list(Reserved), not is_process_alive(Pid)], Lane#lane{looking = false}));
event(watch, #lane{calls = Calls} = Lane) -> watch_later(Lane#lane{calls = teleport_calls:watch(Calls), watching = false});
event({'DOWN', Monitor, process, Pid, Reason}, #lane{role = acceptor, calls = Calls} = Lane) ->
    {Answers, Next} = teleport_calls:down(Monitor, Pid, Reason, Calls),
    answer(Answers, Lane#lane{calls = Next});
event({'DOWN', _, process, _, _}, #lane{role = caller} = Lane) -> close(the_peer_process_ended, Lane);
event(ack, Lane) -> acknowledge(Lane#lane{ack_timer = none});
event({info, Ref}, #lane{schedule = Schedule, calls = Calls, reassembly = Reassembly, link = Link, waiting = Waiting} = Lane) ->
    Ref ! {Ref, #{waiting_senders => teleport_waiters:size(Waiting), waiting_keys => teleport_schedule:keys(Schedule), pending_calls => teleport_calls:pending(Calls),
                  unfinished_bytes => teleport_reassembly:bytes(Reassembly), link_stats => teleport_link:stats(Link)}},
    Lane;
event({Tag, closed, Reason, _}, #lane{tag = Tag}) -> exit({shutdown, {retry, Reason}});
event({nodedown, _}, Lane) -> close(nodedown, Lane);
event({close, Reason}, Lane) -> close(Reason, Lane);
event({'EXIT', Parent, Reason}, #lane{parent = Parent} = Lane) -> close(Reason, Lane);
event({'EXIT', Port, Reason}, #lane{tag = Port}) -> exit({shutdown, {retry, Reason}});
event(_, Lane) -> Lane.

%% What the link has taken goes out; the peer process reports the rest.
-spec close(term(), #lane{}) -> no_return().
close(Reason, #lane{link = Link}) ->
    ok = teleport_link:close(Link),
    exit({shutdown, {retry, Reason}}).

%% ---- reading ----

frame(Frame, Lane) ->
    case teleport_frame:decode(Frame) of
        {ok, {small, Kind, Term}} -> whole(Kind, [Term], byte_size(Frame), Lane);
        {ok, {piece, Stream, Data}} -> piece(Stream, Data, Lane);
        {ok, {announce, Stream, Kind, Sizes}} -> announced(is_right_way(Kind, Lane), {Stream, Kind, Sizes}, Lane);
        {ok, {ack, Count}} when Lane#lane.role =:= caller -> ok = teleport_sender:add(Lane#lane.tx, acked, Count), Lane;
        {ok, {ack, _}} -> broken(<<"an acknowledgement for an acceptor">>, Lane);
        {error, Reason} -> broken(Reason, Lane)
    end.

%% All of a part from a link that puts parts together, else some of it.
piece(Stream, Whole, #lane{reassembly = Reassembly} = Lane) ->
    gathered(teleport_reassembly:piece(Stream, Whole, Reassembly), Lane).

number(N3, N2, N1, N0) -> N3 bsl 24 bor (N2 bsl 16) bor (N1 bsl 8) bor N0.

announced(true, {Stream, Kind, Sizes}, #lane{reassembly = Reassembly} = Lane) ->
    case teleport_reassembly:announce(Stream, Kind, Sizes, Reassembly) of
        {ok, Next} -> Lane#lane{reassembly = Next};
        {error, Reason} -> broken(Reason, Lane)
    end;
announced(false, _, Lane) ->
    broken(<<"a message in the wrong direction">>, Lane).

%% Requests go to the acceptor, answers to the caller.
is_right_way(Kind, #lane{role = Role}) -> teleport_frame:is_request(Kind) =:= (Role =:= acceptor).

gathered({more, Reassembly}, Lane) -> Lane#lane{reassembly = Reassembly};
gathered({whole, Kind, Parts, Reassembly}, Lane) -> whole(Kind, Parts, lists:sum([byte_size(P) || P <- Parts]), Lane#lane{reassembly = Reassembly});
gathered({error, Reason}, Lane) -> broken(Reason, Lane).

whole(Kind, [Term | Binaries], Bytes, #lane{role = Role} = Lane) ->
    case is_right_way(Kind, Lane) of
        true when Role =:= acceptor -> request(Kind, unpacked(Term, Binaries, Lane), Bytes, Lane);
        true -> answered(Kind, unpacked(Term, Binaries, Lane), Bytes, Lane);
        false -> broken(<<"a message in the wrong direction">>, Lane)
    end.

unpacked(Term, Binaries, Lane) ->
    try teleport_term:unpack(Term, Binaries)
    catch error:_ -> broken(<<"bytes that are no term">>, Lane)
    end.

request(Kind, Term, Bytes, #lane{calls = Calls, tx = Tx} = Lane) ->
    try teleport_calls:request(Kind, Term, Tx, Calls) of
        {[], Next} -> watch_later(delivered(Bytes, Lane#lane{calls = Next}));
        {Answers, Next} -> answer(Answers, delivered(Bytes, Lane#lane{calls = Next}))
    catch
        error:function_clause -> broken(<<"a request that is none">>, Lane)
    end.

watch_later(#lane{watching = false, calls = Calls} = Lane) ->
    case teleport_calls:pending(Calls) of
        0 -> Lane;
        _ -> _ = erlang:send_after(?PARKED_MS, self(), watch), Lane#lane{watching = true}
    end;
watch_later(Lane) ->
    Lane.

%% A late answer goes to an alias that is no more.
answered(reply, [Ref | Reply], Bytes, #lane{tx = Tx} = Lane) when is_reference(Ref) ->
    Ref ! {Ref, Reply},
    received(Tx, Bytes),
    Lane;
answered(failed, [Ref | Reason], _, Lane) when is_reference(Ref) ->
    Ref ! {Ref, '$teleport_failed', Reason},
    Lane;
answered(_, _, _, Lane) ->
    broken(<<"an answer that is none">>, Lane).

received(Tx, Bytes) ->
    ok = teleport_sender:add(Tx, received, 1),
    teleport_sender:add(Tx, received_bytes, Bytes).

delivered(Bytes, #lane{delivered = Delivered, told = Told, tx = Tx} = Lane) ->
    received(Tx, Bytes),
    Next = Lane#lane{delivered = Delivered + 1},
    case Delivered + 1 - Told >= ?ACK_EVERY of
        true -> acknowledge(Next);
        false -> ack_later(Next)
    end.

ack_later(#lane{ack_timer = none} = Lane) -> Lane#lane{ack_timer = erlang:send_after(?ACK_MS, self(), ack)};
ack_later(Lane) -> Lane.

%% Not through the queue: an acknowledgement may overtake answers. If the link is busy a later one says more.
acknowledge(#lane{delivered = Same, told = Same} = Lane) -> Lane;
acknowledge(#lane{delivered = Delivered, link = Link} = Lane) ->
    case teleport_link:send(Link, teleport_frame:ack(Delivered)) of
        ok -> Lane#lane{told = Delivered};
        _ -> ack_later(Lane)
    end.

credited(Bytes, #lane{frames = Frames, bytes = Sum} = Lane) when Frames < ?FRAMES div 2, Sum + Bytes < ?BYTES div 2 ->
    Lane#lane{frames = Frames + 1, bytes = Sum + Bytes};
credited(Bytes, #lane{frames = Frames, bytes = Sum} = Lane) ->
    give_credit(Lane#lane{frames = Frames + 1, bytes = Sum + Bytes}).

%% An acceptor whose answers find no room reads no further requests.
give_credit(#lane{role = acceptor, tx = Tx, max_queue_bytes = Max} = Lane) ->
    case teleport_sender:queued(Tx) of
        {_, Bytes} when Bytes > Max -> Lane#lane{held = true};
        _ -> credit(Lane)
    end;
give_credit(Lane) ->
    credit(Lane).

credit(#lane{link = Link, frames = Frames, bytes = Bytes} = Lane) ->
    _ = teleport_link:credit(Link, Frames, Bytes),
    Lane#lane{frames = 0, bytes = 0, held = false}.

-spec broken(binary(), #lane{}) -> no_return().
broken(Reason, #lane{id = {Node, Class, Index}, link = Link}) ->
    ?LOG_ERROR("teleport: lane ~ts ~b of ~ts is closed: the peer broke the protocol: ~ts", [Class, Index, Node, Reason]),
    ok = teleport_link:close(Link),
    exit({shutdown, {retry, {protocol, Reason}}}).

%% ---- sending ----

replied(Ref, Reply, #lane{calls = Calls} = Lane) ->
    case teleport_calls:replied(Ref, Calls) of
        {ok, Next} -> answer([{reply, [Ref | Reply]}], Lane#lane{calls = Next});
        unknown -> Lane
    end.

answer(Answers, Lane) ->
    lists:foldl(fun({Kind, Term}, Acc) -> own(Kind, teleport_term:pack(Term), Acc) end, Lane, Answers).

%% The lane's own messages go straight, too, while nothing waits.
own(Kind, {small, Term, Bytes} = Packed, #lane{tx = Tx, link = Link} = Lane) ->
    case teleport_sender:queued(Tx) of
        {0, _} when Bytes =< 65536 ->
            case teleport_link:send(Link, teleport_frame:small(Kind, Term)) of
                busy -> own_later(Kind, Packed, Lane);
                _ -> Lane
            end;
        _ -> own_later(Kind, Packed, Lane)
    end;
own(Kind, Packed, Lane) ->
    own_later(Kind, Packed, Lane).

own_later(Kind, Packed, #lane{tx = Tx} = Lane) ->
    {Parts, Bytes} = case Packed of {small, Term, Size} -> {[Term], Size}; {parts, All, Size} -> {All, Size} end,
    ok = teleport_sender:enqueued(Tx, Bytes),
    %% Answers need no order among themselves.
    pump(queued(make_ref(), Kind, Parts, Bytes, Lane)).

queued(Key, Kind, Parts, Bytes, #lane{schedule = Schedule} = Lane) ->
    Lane#lane{schedule = teleport_schedule:in(Key, Kind, Parts, Bytes, Schedule), idle = none}.

pump(#lane{busy = true} = Lane) -> Lane;
pump(#lane{pumping = true} = Lane) -> Lane;
pump(Lane) -> room(pump(?PUMP_FRAMES, Lane)).

%% The rest after what else has come: reading must not wait for writing.
pump(0, Lane) ->
    self() ! pump,
    Lane#lane{pumping = true};
pump(Left, #lane{unsent = {[Frame | Frames], Done}, link = Link} = Lane) ->
    %% A piece is a turn of its own: others wait for one copy, and the scheduler looks at what has come the sooner.
    true = erlang:bump_reductions(1 + iolist_size(Frame) bsr 6),
    case teleport_link:send(Link, Frame) of
        ok -> pump(Left - 1, Lane#lane{unsent = {Frames, Done}});
        busy -> _ = teleport_link:tell_when_writable(Link), Lane#lane{busy = true};
        %% The link's last message is on its way.
        closed -> Lane#lane{busy = true}
    end;
pump(Left, #lane{unsent = {[], {1, Bytes}}, tx = Tx} = Lane) ->
    ok = teleport_sender:dequeued(Tx, Bytes),
    pump(Left, Lane#lane{unsent = {[], none}});
pump(Left, #lane{unsent = {[], none}, schedule = Schedule} = Lane) ->
    case turn(teleport_schedule:is_empty(Schedule), Lane) of
        {go, Next} ->
            case teleport_schedule:out(Schedule) of
                empty -> Next;
                {Frames, Done, Rest} -> pump(Left, counted(Frames, Next#lane{unsent = {Frames, Done}, schedule = Rest}))
            end;
        {leave, Next} ->
            _ = erlang:send_after(?TURN_MS, self(), pump),
            Next#lane{pumping = true}
    end.

%% Other classes to the same node have their turn before, if it is theirs.
turn(_, #lane{shares = none} = Lane) ->
    {go, Lane};
turn(true, #lane{shows = false} = Lane) ->
    {go, Lane};
turn(true, #lane{id = {_, Class, Index}, shares = {Shares, _}} = Lane) ->
    ok = teleport_fair_queue:rests(Class, Index, Shares),
    {go, Lane#lane{shows = false, left = 0}};
turn(false, #lane{id = {_, Class, Index}, shares = {Shares, _}, shows = false} = Lane) ->
    ok = teleport_fair_queue:waits(Class, Index, Shares),
    turn(false, Lane#lane{shows = true});
turn(false, #lane{id = {_, Class, _}, shares = {Shares, Weight}, left = Left} = Lane) ->
    case teleport_fair_queue:turn(Class, Left, Weight, Shares) of
        go -> {go, Lane#lane{left = 0}};
        leave -> {leave, Lane#lane{left = Left + 1}}
    end.

counted(_, #lane{shares = none} = Lane) -> Lane;
counted(Frames, #lane{id = {_, Class, _}, shares = {Shares, Weight}} = Lane) ->
    ok = teleport_fair_queue:sent(Class, iolist_size(Frames), Weight, Shares),
    Lane.

%% Whoever waits is told, one after the other, as far as there is room.
room(#lane{tx = Tx, max_queue_bytes = Max, held = Held} = Lane) ->
    {_, Bytes} = Queued = teleport_sender:queued(Tx),
    Next = tell(Queued, Lane),
    case Held andalso Bytes < Max div 2 of
        true -> credit(Next);
        false -> Next
    end.

tell({Messages, Bytes}, #lane{tx = Tx, waiting = Waiting, max_queue_bytes = Max} = Lane) ->
    case teleport_waiters:size(Waiting) of
        0 -> look_later(Lane);
        _ ->
            {Told, Rest} = teleport_waiters:told({teleport_sender:room(Tx, Messages), Max - Bytes}, Bytes =:= 0, fun is_process_alive/1, Waiting),
            look_later(lists:foldl(fun reserve/2, Lane#lane{waiting = Rest}, Told))
    end.

reserve({Ref, Pid, Bytes}, #lane{tx = Tx, reserved = Reserved} = Lane) ->
    ok = teleport_sender:enqueued(Tx, Bytes),
    Ref ! {Ref, room},
    Lane#lane{reserved = Reserved#{Ref => {Pid, Bytes}}}.

%% Those that gave up just then, or were killed.
release(Refs, Lane) ->
    lists:foldl(fun(Ref, #lane{tx = Tx, reserved = Reserved} = Acc) ->
                        case maps:take(Ref, Reserved) of
                            {{_, Bytes}, Rest} -> ok = teleport_sender:dequeued(Tx, Bytes), Acc#lane{reserved = Rest};
                            error -> Acc
                        end
                end, Lane, Refs).

%% A message may be here when its place was released: it had come before its sender was killed, or the word of room came last.
used(Ref, Bytes, #lane{tx = Tx, reserved = Reserved} = Lane) ->
    case maps:take(Ref, Reserved) of
        {_, Rest} -> Lane#lane{reserved = Rest};
        error -> ok = teleport_sender:enqueued(Tx, Bytes), Lane
    end.

look_later(#lane{looking = false, waiting = Waiting, reserved = Reserved} = Lane) ->
    case teleport_waiters:size(Waiting) + map_size(Reserved) of
        0 -> Lane;
        _ -> _ = erlang:send_after(?LOOK_MS, self(), look), Lane#lane{looking = true}
    end;
look_later(Lane) ->
    Lane.

%% Nothing has come for a while: a count that stays above 0 is one that a killed sender has left.
idle(#lane{tx = Tx, schedule = Schedule, idle = Before, unsent = {[], none}, reserved = Reserved} = Lane) when map_size(Reserved) =:= 0 ->
    case {teleport_schedule:is_empty(Schedule), teleport_sender:queued(Tx)} of
        {true, {0, _}} -> room(Lane#lane{idle = none});
        {true, Before} -> ok = teleport_sender:reconcile(Tx, Before), room(Lane#lane{idle = none});
        {true, Now} -> Lane#lane{idle = Now};
        {false, _} -> Lane
    end;
idle(Lane) ->
    Lane.

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
