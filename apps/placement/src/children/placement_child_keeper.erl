%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs one child of {@link placement_child} on this node, as long as the node holds promises from the majority of
%% the child's voters.
%%
%% The keeper starts the child with a function that returns `{ok, Pid}' and links the process to its caller, like the
%% start function of a supervisor's child. It renews the lease four times per grace period. It kills the child when the
%% lease expires. When the child exits, the keeper releases the lease, so that the child can be restarted immediately.
%% The child moves when the node is drained, or when the node has not matched the query for a grace period and another
%% node does. With `placement_handoff/3' ({@link placement_move}) the child's state and its queued messages move with it,
%% and the keeper continues to run for the old process, which forwards messages. With `placement_handoff/1' and
%% `placement_handoff/2' only the child's state moves.
%%
%% During a move, the keeper on the new node gets the voters' promises by presenting the old keeper's lease number, and
%% starts the new process. Before that process may act, the new keeper sends the voters another request, this time as
%% the holder that runs the child. If this fails, the old keeper requests the promises again and resumes the old process.
%% The voters reject that request if the new process was allowed to act.
-module(placement_child_keeper).

-export([start_link/2, give/3, move/3]).

-export_type([given/0, outcome/0]).

-optional_callbacks([placement_handoff/1, placement_handoff/2]).

%% Returns the state to be handed to the process on the new node. The old process is terminated afterwards.
-callback placement_handoff(Old :: pid()) -> {ok, Given :: term()} | none.
%% Hands the state to the new process before that process can be found by its name. If this fails, the new process is
%% terminated, and the state is passed on to another node.
-callback placement_handoff(New :: pid(), Given :: term()) -> ok.

-define(STOP_MS, 5000).
%% The maximum time for a handoff, unless the lease expires sooner.
-define(HANDOFF_MS, 5000).
-define(RECLAIM_MS, 100).

%% What another node hands over: nothing, a state, or a process that is suspended on that node, with that node's lease
%% number.
-type given() :: none | {ok, term()} | {held, placement_move:held(), Old :: pid(), Keeper :: pid(), Fence :: integer()}.
%% `restarted': the child was started without its queued messages, and with its state only if it has
%% `placement_handoff/1'.
-type outcome() :: {moved, New :: pid()} | {restarted, node()} | {refused, placement_move:reason() | term()} | {lost, term()}.

-record(kept, {spec :: placement_child:spec(), pid :: pid(), server :: pid(), until :: integer(), timer :: timer:tref(), unfit_since = none :: none | integer(),
               %% The lease number, the term and the candidates that were last announced.
               announced = none :: none | {integer(), non_neg_integer(), [node()]},
               change = {#{}, none} :: placement_voter:change()}).

%% @doc Starts the keeper of a child for which this node was chosen. `Given' is what another node handed over.
-spec start_link(placement_child:spec(), given()) -> pid().
start_link(Spec, Given) ->
    Server = self(),
    spawn_link(fun() -> begin_keeping(Spec, Given, Server) end).

%% @doc Passes on to a child's running keeper what another node handed over for the child.
-spec give(pid(), placement_child:spec(), given()) -> ok.
give(_, _, none) -> ok;
give(Keeper, Spec, Given) ->
    Keeper ! {?MODULE, Spec, Given},
    ok.

%% @doc Moves the child of a keeper on this node to another node. The caller receives the answer as `{Tag, outcome()}'.
-spec move(Keeper :: pid(), node(), Tag :: reference()) -> ok.
move(Keeper, Node, Tag) ->
    Keeper ! {?MODULE, move, Node, {self(), Tag}},
    ok.

begin_keeping(#{grace := Grace} = Spec, Given, Server) ->
    _ = process_flag(trap_exit, true),
    asked(numbered(Spec, Given), Given, Server, now_ms() + Grace).

numbered(Spec, {held, _, _, Keeper, Fence}) -> (placement_child:numbered(Spec#{fence => Fence}))#{passed => {node(Keeper), Fence}};
numbered(Spec, _) -> placement_child:numbered(Spec).

asked(#{grace := Grace} = Spec, Given, Server, End) ->
    case {placement_child:ask(Spec, none, Grace div 3), handed()} of
        %% Promises that this node has already received also count for its next request.
        {_, {Newer, Handed}} -> asked(numbered(Newer, Handed), Handed, Server, now_ms() + Grace);
        {{fenced, Fence}, none} -> asked(Spec#{fence := Fence + 1}, Given, Server, End);
        {{config, Config}, none} -> asked(placement_voter:configured(Config, Spec), Given, Server, End);
        %% If the start takes longer than the lease, the timer kills the keeper, and with it the process being started,
        %% which is linked to the keeper.
        {{granted, Since, _}, none} -> started(maps:without([passed, above], Spec), Given, Server, lease_end(Since, Grace), armed(self(), lease_end(Since, Grace)));
        {deleted, none} -> placement_child:release(Spec, node());
        {refused, none} ->
            %% After `End' the node that handed over the state no longer has a lease, even if the voters did not
            %% receive the message that passes its promises on.
            case Given =/= none andalso now_ms() < End of
                true ->
                    receive {'EXIT', Server, Reason} -> exit(Reason)
                    after Grace div 4 -> asked(Spec, Given, Server, End)
                    end;
                false -> given_up(Spec, Given)
            end
    end.

handed() -> receive {?MODULE, Spec, Given} -> {Spec, Given} after 0 -> none end.

%% The lease ends before the voters' promises expire: while the system clock is being corrected, this VM's clock may run
%% up to 1 % faster or slower than those of the voters, and killing a tree of processes takes a moment.
lease_end(Since, Grace) -> Since + Grace - Grace div 20.

%% The timer kills the process and its descendants at the end of the lease, even if the keeper is busy.
armed(Pid, Until) ->
    {ok, Timer} = timer:apply_after(max(0, Until - now_ms()), placement_family, kill, [Pid]),
    Timer.

armed(Pid, Until, Before) ->
    Timer = armed(Pid, Until),
    %% The result does not matter: the old timer may have been cancelled already.
    _ = timer:cancel(Before),
    Timer.

started(#{call := {Module, Function, Arguments}} = Spec, Given, Server, Until, Timer) ->
    ok = placement_child:keeps(Spec, none),
    try apply(Module, Function, Arguments) of
        {ok, Pid} when is_pid(Pid) ->
            true = link(Pid),
            Armed = armed(Pid, Until, Timer),
            Kept = #kept{spec = lives(Spec), pid = Pid, server = Server, until = Until, timer = Armed},
            case handed_over(Module, Pid, Given, Until) of
                ok -> renewed(Kept);
                {arrived, Go} -> arrived(Go, Given, Kept);
                Failed ->
                    ok = stop(Spec, Pid),
                    not_started(Spec, Given, Armed, {placement_handoff, Failed})
            end;
        Other -> not_started(Spec, Given, Timer, Other)
    catch
        _:Reason -> not_started(Spec, Given, Timer, Reason)
    end.

lives(#{fence := Fence} = Spec) -> Spec#{live => Fence, at => node()}.

not_started(#{name := Name} = Spec, Given, Timer, Reason) ->
    %% No process runs under the lease now, so it does not matter how long it takes to choose another node.
    {ok, cancel} = timer:cancel(Timer),
    logger:warning("placement: child ~0tP did not start: ~0tP", [Name, 8, Reason, 12]),
    case Given of
        {held, _, _, _, _} -> given_back(Spec, Given, {not_started, node(), Reason});
        _ -> passed_on(Spec, Given)
    end.

passed_on(#{query := Query, grace := Grace} = Spec, Given) ->
    %% Limits the rate of restarts.
    receive after min(Grace div 4, 1000) -> ok end,
    case Given =/= none andalso placement_choose:ranked(connected(Spec), {Query, 1}) of
        {ok, [Node | _], Plan} ->
            ok = placement_choose:placed([Node], Plan),
            passed(Node, Spec, Given);
        _ -> given_up(Spec, Given)
    end.

given_up(Spec, {held, _, _, _, _} = Given) -> given_back(Spec, Given, no_lease);
given_up(Spec, Given) ->
    _ = [lost(Spec) || Given =/= none],
    placement_child:release(Spec, node()).

lost(#{name := Name}) -> logger:warning("placement: the state of child ~0tP is lost: no node took it over", [Name, 8]).

%% Lets the old process resume, because it still has its state.
given_back(#{fence := Fence}, {held, _, Old, Keeper, _}, Reason) ->
    Keeper ! {?MODULE, failed, Old, {node(), Fence}, Reason},
    ok.

%% The new process has received the state and waits. Once the voters know that this node runs the child, the old process
%% can no longer resume. The name refers to the old process until that process has forwarded its queued messages, so
%% that each caller's messages arrive in order.
arrived(Go, {held, Held, Old, _, _} = Given, #kept{spec = Spec, pid = Pid, server = Server, until = Until, timer = Timer} = Kept) ->
    #{grace := Grace} = Spec,
    case placement_child:ask(Spec, none, max(0, min(Grace div 3, Until - now_ms()))) of
        {granted, Since, _} ->
            Monitor = monitor(process, Old),
            ok = placement_move:ready(Held, Pid, Go, lease),
            Renewed = Kept#kept{until = lease_end(Since, Grace), timer = armed(Pid, lease_end(Since, Grace), Timer)},
            receive
                {placement_move, flushed, Pid} -> ok;
                {'DOWN', Monitor, process, _, _} -> ok;
                {'EXIT', Server, Reason} -> _ = stop(Spec, Pid), exit(Reason)
            after Grace div 4 -> ok
            end,
            true = demonitor(Monitor, [flush]),
            %% The node has only just been chosen, so there is no need to check again whether it is suitable.
            renewed(Renewed, fun(Last) -> Last end);
        _ ->
            ok = stop(Spec, Pid),
            {ok, cancel} = timer:cancel(Timer),
            given_back(Spec, Given, no_lease)
    end.

%% Takes at most half of the remaining lease time, so that there is time to pass the state on if this fails.
handed_over(_, _, none, _) -> ok;
handed_over(_, Pid, {held, Held, Old, _, _}, Until) ->
    case placement_move:arrive(Pid, Held, Old, lease, min(?HANDOFF_MS, (Until - now_ms()) div 2)) of
        {arrived, Go} -> {arrived, Go};
        {refused, Reason} -> Reason
    end;
handed_over(Module, Pid, {ok, Given}, Until) -> apart(fun() -> Module:placement_handoff(Pid, Given) end, min(?HANDOFF_MS, (Until - now_ms()) div 2)).

now_ms() -> erlang:monotonic_time(millisecond).

%% The first renewal tells the voters the child's pid.
renewed(Kept) -> renewed(Kept, fun fits/1).

renewed(#kept{spec = #{grace := Grace} = Spec, pid = Pid, until = Until, timer = Timer} = Kept, Judge) ->
    case placement_child:ask(Spec, Pid, max(0, min(Grace div 3, Until - now_ms()))) of
        {granted, Since, Both} ->
            Renewed = announced(Kept#kept{until = lease_end(Since, Grace), timer = armed(Pid, lease_end(Since, Grace), Timer)}),
            waiting(Judge(announced(revoted(Both, Since, Renewed))));
        deleted -> stopped(Spec, Pid);
        Refused ->
            case {now_ms() >= Until, Refused} of
                {true, _} -> lease_over(Spec), killed(Pid);
                {false, {config, Config}} -> renewed(Kept#kept{spec = placement_voter:configured(Config, Spec)}, Judge);
                {false, _} -> waiting(Kept)
            end
    end.

announced(#kept{spec = #{fence := Fence} = Spec, pid = Pid, announced = Before} = Kept) ->
    case {Fence, maps:get(term, Spec, 0), placement_child:candidates(Spec)} of
        Before -> Kept;
        Now ->
            ok = placement_child:keeps(Spec, Pid),
            ok = placement_child:announce(Spec, Pid),
            Kept#kept{announced = Now}
    end.

revoted(Both, Since, #kept{spec = Spec, change = Change} = Kept) ->
    Here = placement_child:here(),
    Followed = case Spec of
                   #{follow := true} -> Spec#{candidates := lists:usort(placement_voter:asked(Spec) ++ Here)};
                   #{} -> Spec
               end,
    {New, Last} = placement_voter:revoted({Since, Both}, Here, Followed, Change),
    Kept#kept{spec = New, change = Last}.

lease_over(#{name := Name}) -> logger:warning("placement: child ~0tP has ended on ~ts, and its state with it: the majority of its voters did not renew its lease in time", [Name, 8, node()]).

waiting(moved) -> ok;
waiting({forwards, Spec, Pid, New, Server}) -> forwards(Spec, Pid, New, Server);
waiting(#kept{spec = #{grace := Grace} = Spec, pid = Pid, server = Server, until = Until} = Kept) ->
    receive
        {'EXIT', Pid, Reason} ->
            %% The timer at the end of the lease has killed the child.
            case Reason =:= killed andalso now_ms() >= Until of
                true -> lease_over(Spec);
                false -> _ = [placement_child:ended(Spec) || not is_restarted(maps:get(restart, Spec, permanent), Reason)], ok
            end,
            placement_child:release(Spec, node());
        {placement_child, delete} -> stopped(Spec, Pid);
        {?MODULE, move, Node, To} -> waiting(answered(To, move_to(Node, Kept)));
        %% The state has arrived too late, because the child is already running without it.
        {?MODULE, _, {held, _, Old, Keeper, _}} -> Keeper ! {?MODULE, failed, Old, {node(), 0}, exists}, waiting(Kept);
        {?MODULE, _, Given} when Given =/= none -> _ = lost(Spec), waiting(Kept);
        %% This message belongs to a move that has been abandoned.
        {?MODULE, failed, _, _, _} -> waiting(Kept);
        {placement_move, _, _} -> waiting(Kept);
        {'EXIT', Server, Reason} -> _ = stop(Spec, Pid), exit(Reason);
        %% Another process, which the start function linked to the keeper, has exited.
        {'EXIT', _, _} -> waiting(Kept)
    after max(0, min(Grace div 4, Until - now_ms())) -> renewed(Kept)
    end.

%% Follows the restart rules of OTP supervisors.
is_restarted(permanent, _) -> true;
is_restarted(temporary, _) -> false;
is_restarted(transient, Reason) -> Reason =/= normal andalso Reason =/= shutdown andalso not (is_tuple(Reason) andalso element(1, Reason) =:= shutdown).

%% Releases the promises only after the child has exited, so that a new child with this name does
%% not start before that.
stopped(Spec, Pid) ->
    ok = stop(Spec, Pid),
    placement_child:release(Spec, node()).

%% Kills immediately, because the lease has expired and leaves no time for an orderly shutdown.
killed(Pid) -> placement_family:kill(Pid).

stop(#{shutdown := brutal_kill}, Pid) -> killed(Pid);
stop(Spec, Pid) ->
    true = exit(Pid, shutdown),
    receive {'EXIT', Pid, _} -> ok
    after maps:get(shutdown, Spec, ?STOP_MS) -> killed(Pid)
    end.

%%% Moving

fits(#kept{spec = #{grace := Grace} = Spec, unfit_since = Since} = Kept) ->
    Now = now_ms(),
    %% Uses only attributes of this node, so that a renewal does not need another request for each child.
    case {ranked([node()], #{policy => random, prefer => [], spread => none}, Kept), Since} of
        {{ok, _, _}, _} -> Kept#kept{unfit_since = none};
        {_, none} -> Kept#kept{unfit_since = Now};
        {_, _} when Now - Since < Grace -> Kept;
        _ ->
            case ranked([node() | connected(Spec)], #{}, Kept) of
                {ok, [Node | _], Plan} when Node =/= node() ->
                    ok = placement_choose:placed([Node], Plan),
                    {Outcome, After} = move_to(Node, Kept),
                    _ = [lost(Spec) || {lost, _} <- [Outcome]],
                    After;
                _ -> Kept
            end
    end.

%% Takes at most a third of the remaining lease time, because the lease must be renewed even if the query is slow. The
%% load that the child itself causes does not count against its node.
ranked(Nodes, Others, #kept{spec = #{query := Query} = Spec, pid = Pid, until = Until}) ->
    apart(fun() -> placement_choose:ranked(Nodes, {Query, 1}, Others#{without => Pid, among => connected(Spec)}) end, (Until - now_ms()) div 3).

connected(Spec) -> [Node || Node <- placement_child:candidates(Spec), lists:member(Node, nodes(connected))].

answered({To, Tag}, {Outcome, After}) ->
    To ! {Tag, Outcome},
    After.

%% Returns the outcome for the child and how the keeper continues: `moved', `{forwards, Spec, Old, New, Server}', or
%% the `#kept{}' to continue with.
move_to(Node, #kept{spec = #{call := {Module, _, _}} = Spec, pid = Pid} = Kept) ->
    case placement_move:is_willing(Pid) of
        true -> held(Node, Kept);
        false ->
            Given = given(erlang:function_exported(Module, placement_handoff, 1), Module, Pid),
            ok = stop(Spec, Pid),
            ok = passed(Node, Spec, Given),
            {{restarted, Node}, moved}
    end.

held(Node, #kept{pid = Pid, until = Until} = Kept) ->
    case placement_move:hold(Pid, Node, max(0, min(?HANDOFF_MS, (Until - now_ms()) div 3))) of
        {held, Held} -> transferred(Held, Node, Kept);
        {refused, Reason} -> {{refused, Reason}, Kept}
    end.

%% From here on the old process is suspended and does not act, so it needs no lease and is not killed when the lease
%% expires.
transferred(Held, Node, #kept{spec = #{grace := Grace, fence := Fence} = Spec, pid = Pid, timer = Timer} = Kept) ->
    _ = timer:cancel(Timer),
    Monitor = monitor(process, {placement_child, Node}),
    ok = gen_server:cast({placement_child, Node}, {try_start, maps:without([fence, live, at, over], Spec), {held, Held, Pid, self(), Fence}}),
    Result = transferred_to(Monitor, Node, Kept, now_ms() + Grace),
    true = demonitor(Monitor, [flush]),
    case Result of
        {gone, New} -> gone(New, Kept);
        {failed, Other, Reason} -> reclaimed(Held, Other, Reason, Kept, now_ms() + 2 * Grace);
        ended -> {{lost, ended}, moved}
    end.

transferred_to(Monitor, Node, #kept{spec = Spec, pid = Pid, server = Server}, End) ->
    receive
        {placement_move, gone, Pid, New} -> {gone, New};
        {?MODULE, failed, Pid, Other, Reason} -> {failed, Other, Reason};
        {'DOWN', Monitor, process, _, _} -> {failed, {Node, 0}, {nodedown, Node}};
        {'EXIT', Pid, _} -> ended;
        {'EXIT', Server, Reason} -> _ = stop(Spec, Pid), exit(Reason)
    after max(0, End - now_ms()) -> {failed, {Node, 0}, {no_answer, Node}}
    end.

gone(New, #kept{spec = #{name := Name} = Spec, pid = Pid, server = Server}) ->
    ok = placement_child:keeps_no_more(Name, self()),
    ok = gen_server:cast(Server, {moved, self()}),
    {{moved, New}, {forwards, Spec, Pid, New, Server}}.

%% The old process continues to run until its node stops or the new process exits.
forwards(Spec, Pid, New, Server) ->
    receive
        {'EXIT', Pid, _} -> ok;
        {'EXIT', Server, Reason} -> _ = stop(Spec, Pid), exit(Reason);
        %% The child has already moved, because the drained node no longer matched its query.
        {?MODULE, move, _, {To, Tag}} -> To ! {Tag, {moved, New}}, forwards(Spec, Pid, New, Server);
        _ -> forwards(Spec, Pid, New, Server)
    end.

%% Resumes the old process only if this node gets the promises back. The voters return them only after those of the
%% other node have expired, and never if the other node has run the child.
reclaimed(Held, Other, Why, #kept{spec = #{grace := Grace, fence := Base} = Spec, pid = Pid, server = Server, timer = Timer} = Kept, End) ->
    Own = placement_child:numbered(Spec),
    case placement_child:ask(Own#{base => Base, passed => Other}, Pid, Grace div 3) of
        {granted, Since, _} ->
            After = Kept#kept{spec = lives(maps:remove(above, Own)), announced = none, until = lease_end(Since, Grace), timer = armed(Pid, lease_end(Since, Grace), Timer)},
            ok = placement_move:resume(Held),
            {{refused, Why}, After};
        {config, Config} -> reclaimed(Held, Other, Why, Kept#kept{spec = placement_voter:configured(Config, Spec)}, End);
        Refused when Refused =:= refused; element(1, Refused) =:= fenced ->
            Above = case Refused of
                        {fenced, Fence} -> Own#{above => Fence};
                        refused -> Own
                    end,
            receive
                {placement_move, gone, Pid, New} -> gone(New, Kept);
                {'EXIT', Pid, _} -> {{lost, ended}, moved};
                {'EXIT', Server, Reason} -> _ = stop(Spec, Pid), exit(Reason)
            %% The voters give this node one grace period for its retries before they choose another node.
            after min(Grace div 4, ?RECLAIM_MS) ->
                case now_ms() < End of
                    true -> reclaimed(Held, Other, Why, Kept#kept{spec = Above#{fence := Base}}, End);
                    false -> dropped(Spec, Pid, Why)
                end
            end;
        %% Either the new process or another child with this name is running.
        _ -> dropped(Spec, Pid, Why)
    end.

dropped(Spec, Pid, Why) ->
    ok = lost(Spec),
    ok = killed(Pid),
    {{lost, Why}, moved}.

passed(Node, Spec, Given) ->
    ok = placement_child:pass(Spec, node(), Node),
    gen_server:cast({placement_child, Node}, {try_start, Spec, Given}).

given(false, _, _) -> none;
given(true, Module, Pid) ->
    case apart(fun() -> Module:placement_handoff(Pid) end, ?HANDOFF_MS) of
        {ok, Given} -> {ok, Given};
        _ -> none
    end.

%% Runs in a separate process, because the child may hang and score functions may raise. The result is passed in the
%% exit reason.
-dialyzer({nowarn_function, apart/2}).
apart(Fun, Ms) ->
    {Worker, Monitor} = spawn_monitor(fun() -> exit({?MODULE, Fun()}) end),
    receive
        {'DOWN', Monitor, process, _, {?MODULE, Result}} -> Result;
        {'DOWN', Monitor, process, _, Reason} -> {'EXIT', Reason}
    after max(0, Ms) ->
        true = demonitor(Monitor, [flush]),
        true = exit(Worker, kill),
        timeout
    end.
