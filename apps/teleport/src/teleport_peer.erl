%% SPDX-License-Identifier: Apache-2.0
%% @doc One process for each node that is sent to: it opens the lanes, watches them, opens lost ones again, and reports what they took along.
%%
%% It lives as long as the node is connected by distribution. It closes a lane that nobody has used for `idle_ms'. The next message opens the lane again. It opens a lost
%% lane again after a pause that grows with each failure; whoever needs it meanwhile waits here until his own deadline, unless the failure is one that another attempt cannot cure.
%%
%% A node without teleport is `plain': senders reach it by distribution ({@link teleport_fallback}). One lane is tried again and again meanwhile. When it is
%% open, nobody finds it before everything has arrived that went by distribution.
-module(teleport_peer).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/1, finished/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-define(FEW, 64).

-type key() :: {teleport_config:class(), non_neg_integer()}.
%% `held': it is open, and is not in the table. `left': it carries answers until the peer closes it, or is being closed.
%% `rests': nobody has used it for `idle_ms', and it is being closed.
-record(lane, {state :: opening | up | held | left | rests | waiting,
               pid = none :: none | pid(),
               tx = none :: none | teleport_sender:tx(),
               waiters = [] :: [{gen_server:from(), teleport_deadline:deadline()}],
               %% with so many, those who wait no more are looked for
               many = ?FEW :: pos_integer(),
               %% how many messages had been sent, and since when it is so many
               seen = none :: none | {Sent :: non_neg_integer(), SinceMs :: integer()},
               %% who monitored its process before anybody could use it
               watchers = [] :: [pid()],
               failures = 0 :: non_neg_integer()}).
-record(peer, {node :: node(), lanes = #{} :: #{key() => #lane{}}, shares :: teleport_fair_queue:shares(),
               %% of lanes that are not up: why the last attempt failed, or how the last one ended
               reasons = #{} :: #{key() => term()},
               %% who asks whether Beamway carries the distribution before the node is connected
               askers = [] :: [gen_server:from()],
               is_carried = unknown :: unknown | boolean(),
               %% `closing': a process looks whether all has arrived, and who needs a lane is `later'
               plain = no :: no | open | closing,
               later = [] :: [{term(), gen_server:from()}],
               changer = none :: none | pid(),
               %% `closing' because teleport is being stopped there
               leaves = false :: boolean()}).

%% For lanes to send what their links have, less than a supervisor waits.
-define(CLOSE_MS, 500).
-define(HANDLER_MS, 10000).
%% Between two attempts to change from distribution to lanes.
-define(CHANGE_MS, 500).
%% Lanes that nobody uses are looked for so often, or in `idle_ms'.
-define(LOOK_MS, 5000).
%% No sender takes so long from the number of a message to the link, unless it was killed.
-define(DEAD_MS, 4000).
-define(NOBODY, '$teleport_nobody').

%% @doc Started by its supervisor.
-spec start_link(node()) -> {ok, pid()} | {error, term()}.
start_link(Node) -> gen_server:start_link(?MODULE, Node, []).

%% @private
-spec init(node()) -> {ok, #peer{}}.
init(Node) ->
    process_flag(trap_exit, true),
    %% It begins to connect, and does not wait for that.
    true = erlang:monitor_node(Node, true),
    Self = self(),
    _ = spawn_link(fun() -> Self ! {connected, teleport_distribution:connect(Node)} end),
    look_later(Node),
    State = #peer{node = Node, shares = teleport_fair_queue:new()},
    %% What the process before this one has left: it did not end with the node.
    {ok, case teleport_peers:plain(Node) of no -> State; _ -> back_to_plain(State) end}.

%% @private `{lane, Class, Index, Lost, Deadline}': the answer comes when it is up, and is another one than the lost one. `prime' for
%% the lost one: it is tried now, also where messages go by distribution.
-spec handle_call(term(), gen_server:from(), #peer{}) -> {reply, term(), #peer{}} | {noreply, #peer{}}.
handle_call({lane, Class, Index, Lost, Deadline}, From, #peer{lanes = Lanes} = State) ->
    Key = {Class, Index},
    case Lanes of
        #{Key := #lane{state = up, pid = Pid, tx = Tx}} when Pid =/= Lost -> {reply, {ok, Tx}, State};
        #{} when State#peer.plain =:= open, Lost =/= prime -> {reply, {error, {no_teleport, State#peer.node}}, State};
        #{} when State#peer.plain =:= closing -> {noreply, State#peer{later = [{{lane, Class, Index, Lost, Deadline}, From} | State#peer.later]}};
        #{Key := #lane{state = waiting} = Lane} when Lost =:= prime -> {noreply, put_lane(Key, open(Key, waits(From, Deadline, Lane), State), State)};
        #{Key := Lane} -> {noreply, put_lane(Key, waits(From, Deadline, Lane), State)};
        #{} -> {noreply, put_lane(Key, open(Key, waits(From, Deadline, #lane{state = opening}), State), State)}
    end;
handle_call(is_carried, From, #peer{is_carried = unknown, askers = Askers} = State) -> {noreply, State#peer{askers = [From | Askers]}};
handle_call(is_carried, _From, #peer{is_carried = IsCarried} = State) -> {reply, IsCarried, State};
handle_call(leave, _From, #peer{leaves = true} = State) -> {reply, ok, State};
handle_call(leave, From, State) -> {noreply, left(From, given_up(State))};
handle_call(state, _From, #peer{lanes = Lanes} = State) ->
    {reply, maps:map(fun(_, #lane{state = Now, failures = Failures}) -> {Now, Failures} end, Lanes), State};
handle_call(not_up, _From, #peer{node = Node, reasons = Reasons} = State) ->
    {reply, [#{node => Node, class => Class, index => Index, reason => Reason} || {{Class, Index}, Reason} <- maps:to_list(Reasons)], State};
handle_call(_Request, _From, State) ->
    {reply, {error, badarg}, State}.

%% Nobody says that his time is over, or that he was killed.
waits(From, Deadline, #lane{waiters = Waiters, many = Many} = Lane) when length(Waiters) < Many ->
    Lane#lane{waiters = [{From, Deadline} | Waiters]};
waits(From, Deadline, #lane{waiters = Waiters} = Lane) ->
    Left = [Waiter || {{Pid, _}, Until} = Waiter <- Waiters, teleport_deadline:left(Until) > 0, is_process_alive(Pid)],
    Lane#lane{waiters = [{From, Deadline} | Left], many = max(?FEW, 2 * length(Left) + 1)}.

put_lane(Key, Lane, #peer{lanes = Lanes} = State) -> State#peer{lanes = Lanes#{Key => Lane}}.

open({Class, Index}, Lane, #peer{node = Node, shares = Shares}) ->
    {ok, Pid} = supervisor:start_child(teleport_lane_sup, [{caller, self(), {Node, Class, Index}, Shares}]),
    _ = monitor(process, Pid),
    Lane#lane{state = opening, pid = Pid}.

%% @private
-spec handle_cast(term(), #peer{}) -> {noreply, #peer{}}.
handle_cast(_Request, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #peer{}) -> {noreply, #peer{}} | {stop, normal, #peer{}}.
handle_info({lane_up, Pid, {Node, Class, Index}, Tx, Kind, Why}, State) ->
    Key = {Class, Index},
    case State#peer.lanes of
        #{Key := #lane{pid = Pid, state = opening} = Lane} ->
            ?LOG_INFO("teleport: lane ~ts ~b to ~ts is up over ~ts (~ts)", [Class, Index, Node, Kind, Why]),
            ok = teleport_events:emit(Node, [teleport, lane, up], #{}, #{class => Class, index => Index, kind => Kind, reason => Why}),
            Held = put_lane(Key, Lane#lane{state = held, tx = Tx, seen = none, watchers = watchers(Pid), failures = 0}, State#peer{reasons = maps:remove(Key, State#peer.reasons)}),
            {noreply, case State#peer.plain of
                          no -> published(Key, Held);
                          open -> changing(Held);
                          closing -> Held
                      end};
        #{} ->
            {noreply, State}
    end;
handle_info({'DOWN', _, process, Pid, Reason}, #peer{lanes = Lanes} = State) ->
    case [Pair || {_, #lane{pid = Of}} = Pair <- maps:to_list(Lanes), Of =:= Pid] of
        [{Key, Lane}] -> {noreply, ended(Key, fate(Reason), Lane, State)};
        [] -> {noreply, State}
    end;
handle_info({'EXIT', Pid, Ended}, #peer{changer = Pid} = State) ->
    {noreply, changed(Ended, State#peer{changer = none})};
handle_info(change, #peer{plain = open, lanes = Lanes} = State) ->
    {noreply, case lists:keymember(held, #lane.state, maps:values(Lanes)) of
                  true -> changing(State);
                  false -> State
              end};
handle_info(look, #peer{node = Node} = State) ->
    look_later(Node),
    {noreply, rested(State)};
handle_info({arrived, Key, Pid, Sent}, #peer{node = Node, plain = no, lanes = Lanes} = State) ->
    case Lanes of
        #{Key := #lane{state = up, pid = Pid} = Lane} -> {noreply, put_lane(Key, rest(Key, Sent, Lane, Node), State)};
        #{} -> {noreply, State}
    end;
handle_info({again, Key}, #peer{lanes = Lanes} = State) ->
    case Lanes of
        #{Key := #lane{state = waiting} = Lane} -> {noreply, put_lane(Key, open(Key, Lane, State), State)};
        #{} -> {noreply, State}
    end;
handle_info({connected, true}, #peer{node = Node, askers = Askers} = State) ->
    IsCarried = beamway:carries(Node),
    ok = teleport_peers:carried(Node, IsCarried),
    lists:foreach(fun(Asker) -> gen_server:reply(Asker, IsCarried) end, Askers),
    {noreply, State#peer{is_carried = IsCarried, askers = []}};
%% `nodedown' comes, too, but where the node is not alive.
handle_info({connected, _}, State) ->
    {stop, normal, State};
handle_info({nodedown, Node}, #peer{node = Node} = State) ->
    {stop, normal, State};
handle_info(_Info, State) ->
    {noreply, State}.

%% Senders and callers find the lane from now on.
published({Class, Index} = Key, #peer{node = Node, lanes = Lanes} = State) ->
    #{Key := #lane{tx = Tx, waiters = Waiters} = Lane} = Lanes,
    ok = teleport_peers:up({Node, Class, Index}, Tx),
    reply_all(Waiters, {ok, Tx}),
    put_lane(Key, Lane#lane{state = up, waiters = []}, State).

%% ---- lanes that nobody uses ----

look_later(Node) ->
    #{idle_ms := IdleMs} = teleport_config:of_node(Node),
    erlang:send_after(min(IdleMs, ?LOOK_MS), self(), look).

%% Where messages go by distribution, a lane that is not up would look for teleport.
rested(#peer{node = Node, plain = no, lanes = Lanes} = State) ->
    #{idle_ms := IdleMs} = teleport_config:of_node(Node),
    Now = erlang:monotonic_time(millisecond),
    State#peer{lanes = maps:map(fun(Key, Lane) -> rested(Key, Lane, {Node, Now, IdleMs}) end, Lanes)};
rested(State) -> State.

rested(Key, #lane{state = up, tx = Tx, seen = Seen} = Lane, {Node, Now, IdleMs}) ->
    case {teleport_sender:sent(Tx), Seen} of
        {Sent, {Sent, Since}} when Now - Since >= IdleMs ->
            case teleport_sender:outstanding(Tx) =< 0 of
                true -> rest(Key, Sent, Lane#lane{seen = {Sent, Now}}, Node);
                false when Now - Since >= ?DEAD_MS -> ask(Key, Sent, Lane#lane{seen = {Sent, Now}});
                false -> Lane
            end;
        {Sent, {Sent, _}} -> Lane;
        {Sent, _} -> Lane#lane{seen = {Sent, Now}}
    end;
rested(_, Lane, _) -> Lane.

%% All has arrived that the link had of the messages up to this number. If it is the last one and nobody uses the lane, it is closed.
rest({Class, Index}, Sent, #lane{pid = Pid, tx = Tx} = Lane, Node) ->
    case is_unused(Lane) andalso teleport_sender:rest(Tx, Sent) of
        true ->
            ?LOG_INFO("teleport: lane ~ts ~b to ~ts is closed: nobody uses it", [Class, Index, Node]),
            ok = teleport_peers:down({Node, Class, Index}),
            %% What is outstanding never came to the link.
            ok = teleport_sender:add(Tx, refused, max(0, teleport_sender:outstanding(Tx))),
            Pid ! {close, idle},
            Lane#lane{state = rests};
        false -> Lane
    end.

%% A sender that is killed between the number of its message and the link leaves a number that is never acknowledged. A question to nobody is answered when all
%% has arrived that the link had before it. Whoever waits for the answer watches the lane, so one question is under way at a time.
ask(Key, Sent, #lane{pid = Pid, tx = Tx} = Lane) ->
    Peer = self(),
    _ = is_unused(Lane) andalso spawn(fun() -> answered(Pid, Tx) andalso (Peer ! {arrived, Key, Pid, Sent + 1}) end),
    Lane.

answered(Pid, Tx) ->
    Ref = monitor(process, Pid, [{alias, reply_demonitor}]),
    Packed = teleport_term:pack([Ref, ?NOBODY]),
    case teleport_sender:send(Tx, 0, confirmed, Packed, element(3, Packed), error) of
        ok ->
            receive
                {Ref, '$teleport_failed', noproc} -> true;
                {'DOWN', Ref, process, Pid, _} -> false
            end;
        _ -> false
    end.

%% Whoever waits for an answer has monitored the lane before its message got a number, and the acknowledgement came after the monitor.
is_unused(#lane{pid = Pid, tx = Tx, watchers = Watchers}) ->
    teleport_sender:queued(Tx) =:= {0, 0} andalso watchers(Pid) -- Watchers =:= [].

watchers(Pid) ->
    case process_info(Pid, monitored_by) of
        {monitored_by, Watchers} -> Watchers;
        undefined -> []
    end.

%% ---- a node without teleport ----

%% One lane that is tried again is enough to see teleport come. Nobody misses the others.
made_plain(Key, Lane, #peer{node = Node, plain = Plain, lanes = Lanes} = State) ->
    _ = Plain =:= no andalso begin
                                 ?LOG_NOTICE("teleport: ~ts has no teleport: messages to it go by distribution", [Node]),
                                 ok = by_distribution(begun, Node),
                                 teleport_peers:set_plain(Node, open)
                             end,
    ok = teleport_fallback:sweep(Node),
    Others = maps:map(fun(_, Other) -> unwaited(Other, Node) end, maps:remove(Key, Lanes)),
    Now = State#peer{plain = case Plain of no -> open; _ -> Plain end},
    case is_probed(Others) of
        true -> Now#peer{lanes = Others, reasons = maps:remove(Key, Now#peer.reasons)};
        false -> again(Key, Lane, Now)
    end.

%% Their next attempt may be far away.
unwaited(#lane{state = waiting, waiters = Waiters} = Lane, Node) ->
    reply_all(Waiters, {error, {no_teleport, Node}}),
    Lane#lane{waiters = []};
unwaited(Lane, _) -> Lane.

by_distribution(What, Node) -> teleport_events:emit(Node, [teleport, by_distribution, What], #{}, #{}).

is_probed(Lanes) -> lists:any(fun(#lane{state = Now}) -> Now =/= up end, maps:values(Lanes)).

%% Without a lane nothing would see teleport come: senders find that messages go by distribution, and ask for no lane.
probed(#peer{lanes = Lanes} = State) when map_size(Lanes) =:= 0 ->
    Key = {normal, 0},
    self() ! {again, Key},
    put_lane(Key, #lane{state = waiting}, State);
probed(State) -> State.

%% The exit reason is how the result travels.
-dialyzer({nowarn_function, [changing/1, left/2]}).
changing(#peer{node = Node} = State) ->
    ok = teleport_peers:set_plain(Node, closing),
    State#peer{plain = closing, changer = spawn_link(fun() -> exit(teleport_fallback:drain(Node)) end)}.

%% Teleport is being stopped there: the lanes' way is closed as the distribution's is when it comes.
left(From, #peer{node = Node, plain = Plain, lanes = Lanes} = State) ->
    _ = Plain =:= no andalso begin
                                 ?LOG_NOTICE("teleport: ~ts stops teleport: messages to it go by distribution", [Node]),
                                 by_distribution(begun, Node)
                             end,
    ok = teleport_peers:set_plain(Node, closing),
    Up = maps:filter(fun(_, #lane{state = Now}) -> Now =:= up end, Lanes),
    maps:foreach(fun({Class, Index}, #lane{tx = Tx}) -> ok = teleport_peers:down({Node, Class, Index}), teleport_sender:leave(Tx) end, Up),
    Left = maps:map(fun(_, Lane) -> Lane#lane{state = left} end, Up),
    Txs = [Tx || #lane{tx = Tx} <- maps:values(Up)],
    Changer = spawn_link(fun() -> _ = teleport_fallback:arrived(Txs), gen_server:reply(From, ok), exit(left) end),
    State#peer{lanes = maps:merge(Lanes, Left), plain = closing, leaves = true, changer = Changer}.

%% The lanes that nobody uses yet, nor the change to them.
given_up(#peer{node = Node, lanes = Lanes, changer = Changer} = State) ->
    _ = Changer =/= none andalso begin unlink(Changer), exit(Changer, kill) end,
    State#peer{changer = none, lanes = maps:map(fun(_, Lane) -> given_up(Lane, Node) end, Lanes)}.

%% One that is being opened reads the word when it is open.
given_up(#lane{state = Now, pid = Pid, waiters = Waiters} = Lane, Node) when Now =:= opening; Now =:= held ->
    Pid ! {close, stopped},
    reply_all(Waiters, {error, {no_teleport, Node}}),
    Lane#lane{state = left, waiters = []};
given_up(Lane, Node) -> unwaited(Lane, Node).

changed(left, State) -> back_to_plain(State#peer{leaves = false});
changed(drained, #peer{node = Node, lanes = Lanes, later = Later} = State) ->
    ?LOG_NOTICE("teleport: ~ts has teleport now: messages to it go by lanes", [Node]),
    ok = by_distribution(ended, Node),
    ok = teleport_peers:set_plain(Node, no),
    Held = [Key || {Key, #lane{state = held}} <- maps:to_list(Lanes)],
    Reasons = maps:filter(fun(_, Reason) -> Reason =/= {no_teleport, Node} end, State#peer.reasons),
    Changed = lists:foldl(fun published/2, State#peer{plain = no, later = [], reasons = Reasons}, Held),
    lists:foldr(fun asked/2, Changed, Later);
changed(Why, #peer{node = Node} = State) ->
    ?LOG_INFO("teleport: messages to ~ts still go by distribution: ~0tp", [Node, Why]),
    _ = erlang:send_after(?CHANGE_MS, self(), change),
    back_to_plain(State).

back_to_plain(#peer{node = Node, later = Later} = State) ->
    ok = teleport_peers:set_plain(Node, open),
    lists:foreach(fun({_, From}) -> gen_server:reply(From, {error, {no_teleport, Node}}) end, Later),
    probed(State#peer{plain = open, later = []}).

asked({Request, From}, State) ->
    case handle_call(Request, From, State) of
        {reply, Reply, Next} -> gen_server:reply(From, Reply), Next;
        {noreply, Next} -> Next
    end.

fate({shutdown, {Fate, Reason}}) when Fate =:= fatal; Fate =:= retry -> {Fate, Reason};
fate(Reason) -> {retry, Reason}.

ended({Class, Index} = Key, {_, Reason} = Fate, #lane{state = Was, tx = Tx} = Lane, #peer{node = Node, shares = Shares, reasons = Reasons} = State) ->
    ok = teleport_fair_queue:rests(Class, Index, Shares),
    _ = Was =:= up andalso begin
                               ?LOG_NOTICE("teleport: lane ~ts ~b to ~ts is lost: ~0tp", [Class, Index, Node, Reason]),
                               teleport_peers:down({Node, Class, Index})
                           end,
    finished(Tx, {Node, Class, Index}, Reason),
    follows(Was, Key, Fate, Lane#lane{tx = none}, case Was of rests -> State; _ -> State#peer{reasons = Reasons#{Key => Reason}} end).

%% What the end of a lane leads to, by what it was.
follows(up, Key, _, Lane, State) ->
    again(Key, Lane, State);
follows(_, Key, {_, Reason}, #lane{waiters = Waiters} = Lane, #peer{node = Node, plain = Plain} = State) when Plain =/= no; Reason =:= {no_teleport, Node} ->
    reply_all(Waiters, {error, {no_teleport, Node}}),
    made_plain(Key, Lane#lane{waiters = []}, State);
follows(rests, Key, _, #lane{waiters = []}, #peer{lanes = Lanes} = State) ->
    State#peer{lanes = maps:remove(Key, Lanes)};
follows(rests, Key, _, Lane, State) ->
    put_lane(Key, open(Key, Lane, State), State);
follows(left, Key, _, Lane, State) ->
    again(Key, Lane, State);
follows(opening, Key, {retry, Reason}, Lane, #peer{node = Node} = State) ->
    ?LOG_DEBUG("teleport: lane ~0tp to ~ts could not be opened: ~0tp", [Key, Node, Reason]),
    again(Key, Lane, State);
follows(opening, Key, {fatal, Reason}, #lane{waiters = Waiters}, #peer{lanes = Lanes} = State) ->
    reply_all(Waiters, {error, Reason}),
    State#peer{lanes = maps:remove(Key, Lanes)}.

again(Key, #lane{failures = Failures} = Lane, #peer{node = Node} = State) ->
    Pause = teleport_backoff:pause_ms(Failures + 1, maps:get(backoff_ms, teleport_config:of_node(Node))),
    _ = erlang:send_after(Pause, self(), {again, Key}),
    put_lane(Key, Lane#lane{state = waiting, pid = none, failures = Failures + 1}, State).

reply_all(Waiters, Reply) -> lists:foreach(fun({From, _}) -> gen_server:reply(From, Reply) end, lists:reverse(Waiters)).

%% @doc Reports what a lane has taken along that has ended, or was left behind by a process that was killed. One that was given up may never have been up.
-spec finished(none | teleport_sender:tx(), teleport_lane:id(), Reason :: term()) -> ok.
finished(none, _, _) -> ok;
finished(Tx, Id, Reason) -> report(teleport_sender:finish(Tx), Id, Reason).

%% What was accepted and not acknowledged may have arrived, or not.
report(Count, {Node, Class, Index} = Id, Reason) ->
    ok = teleport_events:emit(Node, [teleport, lane, down], #{unconfirmed => Count}, #{class => Class, index => Index, reason => Reason}),
    unconfirmed(Count, Id, Reason).

unconfirmed(0, _, _) -> ok;
unconfirmed(Count, {Node, Class, Index}, Reason) ->
    ?LOG_WARNING("teleport: ~b messages on lane ~ts ~b to ~ts are unconfirmed: they may have arrived", [Count, Class, Index, Node]),
    ok = teleport_peers:lost(Node, Count),
    case teleport_config:of_node(Node) of
        #{on_unconfirmed := {Module, Function}} ->
            Event = #{node => Node, class => Class, index => Index, unconfirmed => Count, reason => Reason},
            _ = spawn(fun() -> _ = timer:kill_after(?HANDLER_MS), Module:Function(Event) end),
            ok;
        #{} -> ok
    end.

%% @private The node is gone, or the application ends.
-spec terminate(term(), #peer{}) -> ok.
terminate(Reason, #peer{node = Node, lanes = Lanes} = State) ->
    Why = case Reason of normal -> nodedown; _ -> stopped end,
    _ = Why =:= nodedown andalso teleport_peers:set_plain(Node, no),
    lists:foreach(fun({_, From}) -> gen_server:reply(From, {error, teleport_lane:lost(Node, {shutdown, {retry, Why}})}) end, State#peer.later),
    %% All are told before one is waited for: together they have the time of one.
    Ends = maps:map(fun(_, #lane{pid = none}) -> none;
                       (_, #lane{pid = Pid}) -> Monitor = monitor(process, Pid), Pid ! {close, Why}, Monitor
                    end, Lanes),
    Deadline = teleport_deadline:in(?CLOSE_MS),
    maps:foreach(fun(Key, Lane) -> end_lane(Key, Lane, {Node, Why}, {maps:get(Key, Ends), Deadline}) end, Lanes).

end_lane({Class, Index}, #lane{pid = Pid, tx = Tx, waiters = Waiters}, {Node, Why}, {Monitor, Deadline}) ->
    reply_all(Waiters, {error, teleport_lane:lost(Node, {shutdown, {retry, Why}})}),
    ok = teleport_peers:down({Node, Class, Index}),
    is_pid(Pid) andalso ended_now(Pid, Monitor, teleport_deadline:left(Deadline)),
    finished(Tx, {Node, Class, Index}, Why).

%% In order, so that the supervisor has nothing to say of it; a lane that is held up, in its port or in a connect, is killed.
ended_now(Pid, Monitor, LeftMs) ->
    receive
        {'DOWN', Monitor, process, Pid, _} -> true
    after LeftMs ->
        exit(Pid, kill),
        receive {'DOWN', Monitor, process, Pid, _} -> true end
    end.
