%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs one child of {@link placement_child} on this node, as long as the majority of its voters promise themselves to the node.
%%
%% The keeper starts the child by a function that returns `{ok, Pid}', which links itself to it as to a supervisor, and asks the voters anew four times in the grace time. It kills the child when its lease ends, and gives
%% the lease back when the child ends, so that another start follows at once. When the node no longer suits the query for a grace time, and another one
%% does, the child moves: a module that exports `placement_handoff/1' and `placement_handoff/2' takes its state along.
-module(placement_child_keeper).

-export([start_link/2, give/3]).

-optional_callbacks([placement_handoff/1, placement_handoff/2]).

%% The state that the process on the new node is to get. The process ends after it.
-callback placement_handoff(Old :: pid()) -> {ok, Given :: term()} | none.
%% Gives it to the new process, before anybody can find that one by its name. If it fails, the process ends, and the state goes on to another node.
-callback placement_handoff(New :: pid(), Given :: term()) -> ok.

-define(STOP_MS, 5000).
%% At most.
-define(HANDOFF_MS, 5000).

-record(kept, {spec :: placement_child:spec(), pid :: pid(), server :: pid(), until :: integer(), timer :: timer:tref(), unfit_since = none :: none | integer()}).

%% @doc Starts the keeper of a child that was chosen for this node; `Given' is what another node handed over.
-spec start_link(placement_child:spec(), none | {ok, term()}) -> pid().
start_link(Spec, Given) ->
    Server = self(),
    spawn_link(fun() -> begin_keeping(Spec, Given, Server) end).

%% @doc Gives a keeper that runs already what another node handed over for its child.
-spec give(pid(), placement_child:spec(), none | {ok, term()}) -> ok.
give(_, _, none) -> ok;
give(Keeper, Spec, Given) ->
    Keeper ! {?MODULE, Spec, Given},
    ok.

begin_keeping(#{grace := Grace} = Spec, Given, Server) ->
    _ = process_flag(trap_exit, true),
    asked(Spec, Given, Server, now_ms() + Grace).

asked(#{grace := Grace} = Spec, Given, Server, End) ->
    case {placement_child:ask(Spec, none, Grace div 3), handed()} of
        %% Promises that this node has got count at the next question, too.
        {_, {Newer, Handed}} -> asked(Newer, Handed, Server, now_ms() + Grace);
        %% A start that outlasts the lease ends with the keeper, to which the process under way is linked.
        {{granted, Since}, none} -> started(Spec, Given, Server, lease_end(Since, Grace), armed(self(), lease_end(Since, Grace)));
        {deleted, none} -> placement_child:release(Spec, node());
        {refused, none} ->
            %% The node that gave the state has no lease any more when that time is over, whether or not its promises were passed on.
            case Given =/= none andalso now_ms() < End of
                true ->
                    receive {'EXIT', Server, Reason} -> exit(Reason)
                    after Grace div 4 -> asked(Spec, Given, Server, End)
                    end;
                false -> given_up(Spec, Given)
            end
    end.

handed() -> receive {?MODULE, Spec, Given} -> {Spec, Given} after 0 -> none end.

%% Sooner than the voters forget their promise: while the system's clock is being corrected, the VM's clock runs up to 1 % faster or slower than those of the voters, and a tree of
%% processes takes a moment to be killed.
lease_end(Since, Grace) -> Since + Grace - Grace div 20.

%% Whatever this process does meanwhile, the end of the lease ends that one and what runs below it.
armed(Pid, Until) ->
    {ok, Timer} = timer:apply_after(max(0, Until - now_ms()), placement_family, kill, [Pid]),
    Timer.

armed(Pid, Until, Before) ->
    Timer = armed(Pid, Until),
    {ok, cancel} = timer:cancel(Before),
    Timer.

started(#{call := {Module, Function, Arguments}} = Spec, Given, Server, Until, Timer) ->
    try apply(Module, Function, Arguments) of
        {ok, Pid} when is_pid(Pid) ->
            true = link(Pid),
            Armed = armed(Pid, Until, Timer),
            case handed_over(Module, Pid, Given, Until) of
                ok -> renewed(#kept{spec = Spec, pid = Pid, server = Server, until = Until, timer = Armed});
                Failed ->
                    ok = stop(Pid),
                    not_started(Spec, Given, Armed, {placement_handoff, Failed})
            end;
        Other -> not_started(Spec, Given, Timer, Other)
    catch
        _:Reason -> not_started(Spec, Given, Timer, Reason)
    end.

not_started(#{name := Name, query := Query, grace := Grace} = Spec, Given, Timer, Reason) ->
    %% Nothing is under way: another node may be chosen, however long that takes.
    {ok, cancel} = timer:cancel(Timer),
    logger:warning("placement: child ~0tP did not start: ~0tP", [Name, 8, Reason, 12]),
    %% The next start is not sooner than after this.
    receive after min(Grace div 4, 1000) -> ok end,
    case Given =/= none andalso placement_choose:ranked(connected(Spec), {Query, 1}) of
        {ok, [Node | _], Plan} ->
            ok = placement_choose:placed([Node], Plan),
            passed(Node, Spec, Given);
        _ -> given_up(Spec, Given)
    end.

given_up(Spec, Given) ->
    _ = [lost(Spec) || Given =/= none],
    placement_child:release(Spec, node()).

lost(#{name := Name}) -> logger:warning("placement: the state of child ~0tP is lost: no node took it over", [Name, 8]).

%% Half of the lease is left to hand the state on.
handed_over(_, _, none, _) -> ok;
handed_over(Module, Pid, {ok, Given}, Until) -> apart(fun() -> Module:placement_handoff(Pid, Given) end, min(?HANDOFF_MS, (Until - now_ms()) div 2)).

now_ms() -> erlang:monotonic_time(millisecond).

%% The voters learn the pid by the first question.
renewed(#kept{spec = #{grace := Grace} = Spec, pid = Pid, until = Until, timer = Timer} = Kept) ->
    case placement_child:ask(Spec, Pid, max(0, min(Grace div 3, Until - now_ms()))) of
        {granted, Since} -> waiting(fits(Kept#kept{until = lease_end(Since, Grace), timer = armed(Pid, lease_end(Since, Grace), Timer)}));
        deleted -> stopped(Spec, Pid);
        refused ->
            case now_ms() >= Until of
                true -> killed(Pid);
                false -> waiting(Kept)
            end
    end.

waiting(moved) -> ok;
waiting(#kept{spec = #{grace := Grace} = Spec, pid = Pid, server = Server, until = Until} = Kept) ->
    receive
        {'EXIT', Pid, _} -> placement_child:release(Spec, node());
        {placement_child, delete} -> stopped(Spec, Pid);
        %% The child runs without it.
        {?MODULE, _, _} -> _ = lost(Spec), waiting(Kept);
        %% The server has ended.
        {'EXIT', Server, Reason} -> _ = stop(Pid), exit(Reason);
        %% A process that the start function has linked, too.
        {'EXIT', _, _} -> waiting(Kept)
    after max(0, min(Grace div 4, Until - now_ms())) -> renewed(Kept)
    end.

%% A new child of this name waits for it.
stopped(Spec, Pid) ->
    ok = stop(Pid),
    placement_child:release(Spec, node()).

%% Without a lease there is no time for its own end.
killed(Pid) -> placement_family:kill(Pid).

stop(Pid) ->
    true = exit(Pid, shutdown),
    receive {'EXIT', Pid, _} -> ok
    after ?STOP_MS -> killed(Pid)
    end.

%%% Moving

fits(#kept{spec = #{grace := Grace} = Spec, unfit_since = Since} = Kept) ->
    Now = now_ms(),
    case {ranked([node()], Kept), Since} of
        {{ok, _, _}, _} -> Kept#kept{unfit_since = none};
        {_, none} -> Kept#kept{unfit_since = Now};
        {_, _} when Now - Since < Grace -> Kept;
        _ ->
            case ranked([node() | connected(Spec)], Kept) of
                {ok, [Node | _], Plan} when Node =/= node() ->
                    ok = placement_choose:placed([Node], Plan),
                    moved(Node, Spec, Kept);
                _ -> Kept
            end
    end.

%% In a third of the time that is left: the lease must be asked for anew, however long the query takes. What the child itself adds to its node is no reason to leave it.
ranked(Nodes, #kept{spec = #{query := Query} = Spec, pid = Pid, until = Until}) ->
    apart(fun() -> placement_choose:ranked(Nodes, {Query, 1}, #{without => Pid, among => connected(Spec)}) end, (Until - now_ms()) div 3).

%% The other voters that could take over.
connected(#{nodes := Nodes}) -> [Node || Node <- Nodes, lists:member(Node, nodes(connected))].

moved(Node, #{call := {Module, _, _}} = Spec, #kept{pid = Pid}) ->
    Given = given(erlang:function_exported(Module, placement_handoff, 1), Module, Pid),
    ok = stop(Pid),
    ok = passed(Node, Spec, Given),
    moved.

passed(Node, Spec, Given) ->
    ok = placement_child:pass(Spec, node(), Node),
    gen_server:cast({placement_child, Node}, {try_start, Spec, Given}).

given(false, _, _) -> none;
given(true, Module, Pid) ->
    case apart(fun() -> Module:placement_handoff(Pid) end, ?HANDOFF_MS) of
        {ok, Given} -> {ok, Given};
        _ -> none
    end.

%% In a process of its own: the child may hang, and scores may raise. The exit reason is how the result travels.
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
