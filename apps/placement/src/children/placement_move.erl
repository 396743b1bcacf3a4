%% SPDX-License-Identifier: Apache-2.0
%% @doc Moves a gen_server or gen_statem to another node. Most of this code runs inside the old and the new process.
%%
%% The code is injected into both processes with a system message of {@link sys} (`replace_state'), so each of them runs
%% it between two callbacks, when its state is available. The old process then waits, and its messages stay queued. The
%% new process, which was started by its normal start function, requests the state from the old one. The `commit' by the
%% old process is decisive: until then, the old process can resume as if nothing had happened; after it, the old process
%% only forwards messages. The new process handles no message before the commit, so at most one of the two processes
%% acts. {@link placement_child_keeper} or {@link placement_drain} controls the move and decides when the old process may
%% commit or resume.
%%
%% The steps are: `hold' suspends the old process. The new process is started. `arrive' hands the state to it
%% (`placement_handoff/3' is called on both nodes). `ready' tells the old process to commit. The old process sends `go' to
%% the new one and forwards first its queued messages and then each later message, until its node stops.
-module(placement_move).

-export([is_willing/1, hold/3, resume/1, arrive/5, ready/4, reason_text/1]).
-export([forwarding/1, ended/1]).

-export_type([held/0, reason/0, policy/0]).

-optional_callbacks([placement_handoff/3]).

%% `leave' is called in the old process, with its state in the form that `sys:get_state/1' returns, and returns the term
%% that is handed to the new process. It must not have side effects, because the process may have to stay. `Handled'
%% lists the kinds of resources of the old process that the new one creates again: `links', `monitors', `tables' or
%% `ports'. A process that has any of these and does not list them stays. `arrive' is called in the new process with the
%% term from `leave', and returns the state.
-callback placement_handoff(leave, State :: term(), #{to := node()}) -> {ok, Given :: term()} | {ok, Given :: term(), Handled :: [links | monitors | tables | ports]} | {stay, Reason :: term()};
                           (arrive, Given :: term(), #{from := node(), vsn := term(), state := Fresh :: term()}) -> {ok, State :: term()} | {error, Reason :: term()}.

%% A suspended old process. It accepts messages only through this alias.
-opaque held() :: {Alias :: reference(), pid()}.
-type reason() :: {no_answer, Ms :: non_neg_integer()} | {has, links | monitors | tables | ports, [term()]} | {stays, term()} | {bad_handoff, node(), term()} | ended.
%% Whether the new process may act if the old one exits without sending a commit: with `lease' it may if it has the lease,
%% with `commit' it may not.
-type policy() :: lease | commit.

%% The maximum time for which the new process waits for the last message of the old one.
-define(GO_MS, 5000).
%% The key in the process dictionary of a process that forwards.
-define(FORWARDS, '$placement_forwards').

%% @doc Returns whether the process has a callback module that exports `placement_handoff/3'.
-spec is_willing(pid()) -> boolean().
is_willing(Pid) ->
    case dictionary(Pid) of
        %% The process has already moved.
        #{?FORWARDS := _} -> false;
        #{'$initial_call' := {Module, init, 1}} when is_atom(Module) -> erlang:function_exported(Module, placement_handoff, 3);
        #{} -> false
    end.

%% Returns the callback module of a gen_server or gen_statem.
callback_module(Pid) ->
    case dictionary(Pid) of
        #{'$initial_call' := {Module, init, 1}} when is_atom(Module) -> Module;
        #{} -> none
    end.

dictionary(Pid) ->
    case process_info(Pid, dictionary) of
        {dictionary, Dictionary} -> maps:from_list(Dictionary);
        undefined -> #{}
    end.

%%% The old process

%% @doc Suspends a process on this node. If the process does not answer within `Ms' milliseconds, for example because it
%% is in a long callback, it is not suspended. A suspended process monitors the caller and resumes if the caller exits.
-spec hold(pid(), To :: node(), Ms :: non_neg_integer()) -> {held, held()} | {refused, reason()}.
hold(Pid, To, Ms) ->
    Entered = atomics:new(1, []),
    Caller = self(),
    Answer = alias(),
    Monitor = monitor(process, Pid),
    system(Pid, fun(State) ->
        %% If the exchange fails, the caller has stopped waiting.
        case atomics:compare_exchange(Entered, 1, 0, 1) of
            ok -> leaving(State, To, Caller, Answer);
            _ -> State
        end
    end),
    Result = receive
                 {Answer, Said} -> Said;
                 {'DOWN', Monitor, process, _, _} -> {refused, ended}
             after Ms ->
                 case atomics:compare_exchange(Entered, 1, 0, 2) of
                     ok -> {refused, {no_answer, Ms}};
                     %% The process is already in its callback and will answer.
                     _ ->
                         receive
                             {Answer, Said} -> Said;
                             {'DOWN', Monitor, process, _, _} -> {refused, ended}
                         end
                 end
             end,
    true = demonitor(Monitor, [flush]),
    _ = unalias(Answer),
    Result.

%% The module gen represents an alias as an improper list.
-dialyzer({no_improper_lists, system/2}).
%% sys would answer with a copy of the whole state, so its answer goes to an inactive alias.
system(Pid, Fun) ->
    Nobody = alias(),
    true = unalias(Nobody),
    Pid ! {system, {self(), [alias | Nobody]}, {replace_state, Fun}},
    ok.

%% @doc Lets a suspended process resume. The process sends `{placement_move, resumed, pid()}' to the caller of
%% {@link hold/3}. If the process has already committed, it has sent `{placement_move, gone, pid(), New}' instead.
-spec resume(held()) -> ok.
resume({Alias, _}) ->
    Alias ! {Alias, resume},
    ok.

leaving(State, To, Caller, Answer) ->
    Module = callback_module(self()),
    try Module:placement_handoff(leave, State, #{to => To}) of
        {ok, Given} -> leaving(State, Given, [], Module, Caller, Answer);
        {ok, Given, Handled} when is_list(Handled) -> leaving(State, Given, Handled, Module, Caller, Answer);
        {stay, Reason} -> refused(Answer, {stays, Reason}, State);
        Other -> refused(Answer, {bad_handoff, node(), Other}, State)
    catch
        Class:Reason -> refused(Answer, {bad_handoff, node(), {Class, Reason}}, State)
    end.

refused(Answer, Reason, State) ->
    Answer ! {Answer, {refused, Reason}},
    State.

leaving(State, Given, Handled, Module, Caller, Answer) ->
    Tables = tables(),
    case [{has, What, Items} || {What, [_ | _] = Items} <- belongings(Caller) ++ [{tables, [ets:info(Table, name) || Table <- Tables]}], not lists:member(What, Handled)] of
        [Reason | _] -> refused(Answer, Reason, State);
        [] ->
            Alias = alias(),
            Monitor = monitor(process, Caller),
            Answer ! {Answer, {held, {Alias, self()}}},
            Result = held(Alias, Monitor, Given, version(Module), Caller),
            %% Messages that are sent to the alias later are dropped.
            _ = unalias(Alias),
            ok = flush(Alias),
            true = demonitor(Monitor, [flush]),
            case Result of
                resume ->
                    Caller ! {?MODULE, resumed, self()},
                    State;
                {end_now, Reason} -> ends(Reason);
                {commit, New, Go, Watcher} -> commit(New, Go, Watcher, Caller, Tables)
            end
    end.

flush(Alias) -> receive {Alias, _} -> flush(Alias) after 0 -> ok end.

version(Module) -> proplists:get_value(vsn, Module:module_info(attributes)).

held(Alias, Monitor, Given, Version, Caller) ->
    Parent = parent(),
    receive
        {Alias, {give, To}} ->
            To ! {To, {given, Given, Version}},
            held(Alias, Monitor, Given, Version, Caller);
        {Alias, resume} -> resume;
        {Alias, {ready, New, Go, Watcher}} -> {commit, New, Go, Watcher};
        {'DOWN', Monitor, process, _, _} -> resume;
        {'EXIT', Parent, Reason} -> {end_now, Reason}
    end.

parent() ->
    case get('$ancestors') of
        [Pid | _] when is_pid(Pid) -> Pid;
        [Name | _] when is_atom(Name) -> whereis(Name);
        _ -> none
    end.

belongings(Caller) ->
    Parent = parent(),
    [{links, Links}, {monitors, Monitors}] = process_info(self(), [links, monitors]),
    [{ports, [Link || Link <- Links, is_port(Link)]},
     {links, [Link || Link <- Links, is_pid(Link), Link =/= Parent, Link =/= Caller]},
     {monitors, [Monitored || {_, Monitored} <- Monitors]}].

%% Scans all tables on the node, so it is called only once for each move.
tables() -> [Table || Table <- ets:all(), ets:info(Table, owner) =:= self()].

%% sys catches exceptions in the function, so the process must exit outside of it.
-spec ends(term()) -> no_return().
ends(Reason) -> proc_lib:hibernate(?MODULE, ended, [Reason]).

%% @private
-spec ended(term()) -> no_return().
ended(Reason) -> exit(Reason).

%% From here on the process only forwards messages. Hibernating discards its stack, and with it the state.
commit(New, Go, Watcher, Caller, Tables) ->
    _ = process_flag(trap_exit, true),
    Parent = parent(),
    ok = let_go(belongings(Caller), Tables),
    Monitor = monitor(process, New),
    _ = put(?FORWARDS, New),
    Go ! {Go, go},
    Caller ! {?MODULE, gone, self(), New},
    self() ! {?MODULE, flushed, Monitor},
    proc_lib:hibernate(?MODULE, forwarding, [{New, Monitor, Parent, Caller, Watcher, is_statem(callback_module(self()))}]).

%% Releases the ports, links and tables that the new process creates again, as if the old process had exited.
let_go(Belongings, Tables) ->
    Has = fun(What) -> proplists:get_value(What, Belongings, []) end,
    _ = [catch port_close(Port) || Port <- Has(ports)],
    _ = [begin true = unlink(Pid), exit(Pid, shutdown) end || Pid <- Has(links)],
    _ = [catch ets:delete(Table) || Table <- Tables],
    ok.

is_statem(Module) ->
    Attributes = Module:module_info(attributes),
    lists:member(gen_statem, lists:append([Value || {Key, Value} <- Attributes, Key =:= behaviour orelse Key =:= behavior])).

%% @private Forwards messages. The `flushed' message was queued at the commit, so when the process receives it, all earlier
%% messages have been forwarded.
-spec forwarding({New :: pid(), Monitor :: reference(), Parent :: pid() | none, Caller :: pid(), Watcher :: pid(), IsStatem :: boolean()}) -> no_return().
forwarding({New, Monitor, Parent, Caller, Watcher, IsStatem} = Stub) ->
    receive
        {?MODULE, flushed, Monitor} -> Watcher ! {?MODULE, flushed, New}, ok;
        {'EXIT', From, Reason} when From =:= Parent; From =:= Caller -> exit(Reason);
        %% Callers that wait for a reply must notice that the new process has exited. This process must not exit,
        %% because its supervisor would restart it.
        {'DOWN', Monitor, process, _, _} when is_pid(Parent), Parent =/= Caller -> _ = spawn(placement_supervisor, retire, [Parent, self()]), ok;
        {'DOWN', Monitor, process, _, Reason} -> exit(Reason);
        %% This is an internal timeout of gen_statem, which the new process would handle like an ordinary message.
        {timeout, Timer, _} when IsStatem, is_reference(Timer), node(Timer) =:= node() -> ok;
        Message -> New ! Message, ok
    end,
    forwarding(Stub).

%%% The new process

%% @doc Hands the state of a suspended process to a process that has just been started on this node. The new process then
%% waits until {@link ready/4} is called and the old process has committed.
-spec arrive(New :: pid(), held(), Watched :: pid(), policy(), Ms :: non_neg_integer()) -> {arrived, Go :: reference()} | {refused, reason()}.
arrive(New, {OldAlias, Old}, Watched, Policy, Ms) ->
    Answer = alias(),
    Monitor = monitor(process, New),
    Caller = self(),
    system(New, fun(Fresh) -> arriving(Fresh, OldAlias, Old, Watched, Policy, Caller, Answer) end),
    Result = receive
                 {Answer, Said} -> Said;
                 {'DOWN', Monitor, process, _, Reason} -> {refused, {bad_handoff, node(), Reason}}
             after Ms -> {refused, {no_answer, Ms}}
             end,
    true = demonitor(Monitor, [flush]),
    _ = unalias(Answer),
    Result.

arriving(Fresh, OldAlias, Old, Watched, Policy, Caller, Answer) ->
    Alias = alias(),
    Monitor = monitor(process, Watched),
    OldAlias ! {OldAlias, {give, Alias}},
    Result = receive
                 {Alias, {given, Given, Version}} -> given(Given, #{from => node(Old), vsn => Version, state => Fresh});
                 {'DOWN', Monitor, process, _, _} -> {error, {went, node(Watched)}}
             end,
    case Result of
        {ok, State} ->
            Answer ! {Answer, {arrived, Alias}},
            ok = go(Alias, Monitor, Policy),
            _ = unalias(Alias),
            ok = flush(Alias),
            true = demonitor(Monitor, [flush]),
            Caller ! {?MODULE, live, self()},
            State;
        {error, Reason} ->
            %% The process that controls the move kills this one.
            Answer ! {Answer, {refused, {bad_handoff, node(), Reason}}},
            until_ended()
    end.

given(Given, Info) ->
    Module = callback_module(self()),
    try Module:placement_handoff(arrive, Given, Info) of
        {ok, State} -> {ok, State};
        {error, Reason} -> {error, Reason};
        Other -> {error, Other}
    catch
        Class:Reason -> {error, {Class, Reason}}
    end.

%% With `lease', the process that controls the move sends `allowed' once it knows that no other node has the lease.
go(Alias, Monitor, Policy) ->
    Parent = parent(),
    receive
        {Alias, go} -> ok;
        {Alias, allowed} -> last_word(Alias, Monitor, Parent);
        {'DOWN', Monitor, process, _, _} when Policy =:= commit -> until_ended();
        {'EXIT', Parent, Reason} -> ends(Reason)
    end.

last_word(Alias, Monitor, Parent) ->
    receive
        {Alias, go} -> ok;
        {'DOWN', Monitor, process, _, _} -> ok;
        {'EXIT', Parent, Reason} -> ends(Reason)
    after ?GO_MS -> ok
    end.

-spec until_ended() -> no_return().
until_ended() ->
    Parent = parent(),
    receive {'EXIT', Parent, Reason} -> ends(Reason) end.

%% @doc Tells the old process that the new one is waiting for its commit. With the policy `lease' the new process may act
%% from now on even if the old one never sends the commit.
-spec ready(held(), New :: pid(), Go :: reference(), policy()) -> ok.
ready({OldAlias, _}, New, Go, Policy) ->
    _ = [Go ! {Go, allowed} || Policy =:= lease],
    OldAlias ! {OldAlias, {ready, New, Go, self()}},
    ok.

%% @doc Formats the reason why a process has not moved as text for users.
-spec reason_text(term()) -> unicode:chardata().
reason_text({no_answer, Ms}) -> io_lib:format("it did not answer a system message in ~b ms; it is busy, or is not an OTP process", [Ms]);
reason_text({has, ports, Ports}) -> io_lib:format("it has ~ts; let placement_handoff(leave, …) name ports as handled, if the new process opens its own", [items("port", Ports)]);
reason_text({has, links, Pids}) -> io_lib:format("it is linked to ~ts besides its supervisor; let placement_handoff(leave, …) name links as handled, if the new process starts its own", [items("process", Pids)]);
reason_text({has, monitors, Pids}) -> io_lib:format("it monitors ~ts; let placement_handoff(leave, …) name monitors as handled, if the new process monitors them again", [items("process", Pids)]);
reason_text({has, tables, Names}) -> io_lib:format("it owns ~ts; let placement_handoff(leave, …) give their content and name tables as handled", [items("ETS table", Names)]);
reason_text({stays, Reason}) -> io_lib:format("its placement_handoff/3 says that it stays: ~0tP", [Reason, 12]);
reason_text({bad_handoff, Node, Reason}) -> io_lib:format("its placement_handoff/3 failed on ~ts: ~0tP", [Node, Reason, 12]);
reason_text({global, Name}) -> io_lib:format("it has the global name ~0tP, which only one process can have while it moves; start it by placement:child/3", [Name, 8]);
reason_text(no_supervisor) -> "no registered supervisor has started it, so there is none to start it on another node";
reason_text({supervisor, Name, Strategy}) -> io_lib:format("its supervisor ~tp restarts it together with others (~tp)", [Name, Strategy]);
reason_text({no_arguments, Name}) -> io_lib:format("its supervisor ~tp no longer knows with which arguments it started it (restart type temporary)", [Name]);
reason_text(no_node) -> "no other connected node can take it";
reason_text({not_started, Node, Reason}) -> io_lib:format("it did not start on ~ts: ~0tP", [Node, Reason, 12]);
reason_text({nodedown, Node}) -> io_lib:format("~ts went down while it moved there", [Node]);
reason_text(no_lease) -> "its lease was about to end";
reason_text(timeout) -> "the time for the drain was over";
reason_text(ended) -> "it has ended meanwhile";
reason_text(Reason) -> io_lib:format("~0tP", [Reason, 12]).

items(What, [One]) -> io_lib:format("the ~ts ~0tp", [What, One]);
items(What, [One | _] = All) -> io_lib:format("~b of ~ts (~0tp and others)", [length(All), plural(What), One]).

plural("process") -> "processes";
plural(What) -> What ++ "s".
