%% SPDX-License-Identifier: Apache-2.0
%% @doc How a gen_server or gen_statem moves to another node: what runs inside of the old and of the new process.
%%
%% Both processes are entered by a system message of {@link sys} (`replace_state'), so between two callbacks, with their state. The old one then waits, and its messages wait
%% with it; the new one, which its start function has made, asks it for the state. What decides is the old process' `commit': before it the old process can go on as if nothing had happened,
%% after it, it only forwards. The new process handles no message before that, so of the two at most one acts. Whoever steers the move, {@link placement_child_keeper} or {@link placement_drain}, decides who may
%% commit and when the old one may go on.
%%
%% The steps: `hold' the old one; start the new one; `arrive' (state old to new, `placement_handoff/3' on both nodes); `ready' to the old one; the old one commits, says `go' to the new one, and
%% forwards what waited, then each later message, until its node stops.
-module(placement_move).

-export([is_willing/1, callback_module/1, hold/3, resume/1, arrive/5, ready/4, reason_text/1]).
-export([forwarding/1, ended/1]).

-export_type([held/0, reason/0, policy/0]).

-optional_callbacks([placement_handoff/3]).

%% In the old process, with its state as `sys:get_state/1' shows it: what the new one is to get. It must have no effect, because the process may have to stay.
%% The third element names what the process has and the new one makes anew: `links', `monitors', `tables' or `ports'. Without it, a process that has any of these stays.
%% In the new process, with what the old one gave: its state.
-callback placement_handoff(leave, State :: term(), #{to := node()}) -> {ok, Given :: term()} | {ok, Given :: term(), Handled :: [links | monitors | tables | ports]} | {stay, Reason :: term()};
                           (arrive, Given :: term(), #{from := node(), vsn := term(), state := Fresh :: term()}) -> {ok, State :: term()} | {error, Reason :: term()}.

%% The old process while it waits: it hears only what is sent to this alias.
-opaque held() :: {Alias :: reference(), pid()}.
-type reason() :: {no_answer, Ms :: non_neg_integer()} | {has, links | monitors | tables | ports, [term()]} | {stays, term()} | {bad_handoff, node(), term()} | ended.
%% Whether the new process may act although the old one is gone without a word: `lease' if a lease says so, `commit' if not.
-type policy() :: lease | commit.

%% At most so long does the new process wait for the last word of the old one.
-define(GO_MS, 5000).
%% In the dictionary of a process that forwards.
-define(FORWARDS, '$placement_forwards').

%% @doc Whether the process has a callback module that exports `placement_handoff/3'.
-spec is_willing(pid()) -> boolean().
is_willing(Pid) ->
    case dictionary(Pid) of
        %% It has moved already.
        #{?FORWARDS := _} -> false;
        #{'$initial_call' := {Module, init, 1}} when is_atom(Module) -> erlang:function_exported(Module, placement_handoff, 3);
        #{} -> false
    end.

%% @doc The callback module of a gen_server or gen_statem.
-spec callback_module(pid()) -> module() | none.
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

%% @doc Enters a process of this node, which waits from now on. Its answer must be there in so many milliseconds; a process that is in a longer callback goes on untouched.
%% The caller is monitored: if it ends, the process goes on.
-spec hold(pid(), To :: node(), Ms :: non_neg_integer()) -> {held, held()} | {refused, reason()}.
hold(Pid, To, Ms) ->
    Entered = atomics:new(1, []),
    Caller = self(),
    Answer = alias(),
    Monitor = monitor(process, Pid),
    system(Pid, fun(State) ->
        %% Otherwise the caller no longer waits.
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
                     %% It is in its callback, and bound by it.
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

%% gen marks aliases so.
-dialyzer({no_improper_lists, system/2}).
%% The answer of sys would be a copy of the whole state: it goes to an alias that nobody has.
system(Pid, Fun) ->
    Nobody = alias(),
    true = unalias(Nobody),
    Pid ! {system, {self(), [alias | Nobody]}, {replace_state, Fun}},
    ok.

%% @doc Lets a process go on that is held. It tells the caller of {@link hold/3} `{placement_move, resumed, pid()}', or has told it `{placement_move, gone, pid(), New}' because
%% it had committed before.
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
    case [{has, What, Items} || {What, [_ | _] = Items} <- belongings(Caller), not lists:member(What, Handled)] of
        [Reason | _] -> refused(Answer, Reason, State);
        [] ->
            Alias = alias(),
            Monitor = monitor(process, Caller),
            Answer ! {Answer, {held, {Alias, self()}}},
            Result = held(Alias, Monitor, Given, version(Module), Caller),
            %% What is sent to the alias later does not arrive.
            _ = unalias(Alias),
            ok = flush(Alias),
            true = demonitor(Monitor, [flush]),
            case Result of
                resume ->
                    Caller ! {?MODULE, resumed, self()},
                    State;
                {end_now, Reason} -> ends(Reason);
                {commit, New, Go, Watcher} -> commit(New, Go, Watcher, Caller)
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

%% The process that has started it, as proc_lib knows it.
parent() ->
    case get('$ancestors') of
        [Pid | _] when is_pid(Pid) -> Pid;
        [Name | _] when is_atom(Name) -> whereis(Name);
        _ -> none
    end.

belongings(Caller) ->
    Self = self(),
    Parent = parent(),
    [{links, Links}, {monitors, Monitors}] = process_info(Self, [links, monitors]),
    [{ports, [Link || Link <- Links, is_port(Link)]},
     {links, [Link || Link <- Links, is_pid(Link), Link =/= Parent, Link =/= Caller]},
     {monitors, [Monitored || {_, Monitored} <- Monitors]},
     {tables, [ets:info(Table, name) || Table <- ets:all(), ets:info(Table, owner) =:= Self]}].

%% sys catches what is raised in it, so the process ends outside of that.
-spec ends(term()) -> no_return().
ends(Reason) -> proc_lib:hibernate(?MODULE, ended, [Reason]).

%% @private
-spec ended(term()) -> no_return().
ended(Reason) -> exit(Reason).

%% From here on the process only forwards. Its stack is given up, and with it the state.
commit(New, Go, Watcher, Caller) ->
    _ = process_flag(trap_exit, true),
    Parent = parent(),
    ok = let_go(belongings(Caller)),
    Monitor = monitor(process, New),
    _ = put(?FORWARDS, New),
    Go ! {Go, go},
    Caller ! {?MODULE, gone, self(), New},
    self() ! {?MODULE, flushed, Monitor},
    proc_lib:hibernate(?MODULE, forwarding, [{New, Monitor, Parent, Caller, Watcher, is_statem(callback_module(self()))}]).

%% What the callback module said that the new process makes anew ends as if the old one had ended.
let_go(Belongings) ->
    Has = fun(What) -> proplists:get_value(What, Belongings, []) end,
    _ = [catch port_close(Port) || Port <- Has(ports)],
    _ = [begin true = unlink(Pid), exit(Pid, shutdown) end || Pid <- Has(links)],
    _ = [catch ets:delete(Table) || Table <- ets:all(), ets:info(Table, owner) =:= self()],
    ok.

is_statem(Module) ->
    Attributes = Module:module_info(attributes),
    lists:member(gen_statem, lists:append([Value || {Key, Value} <- Attributes, Key =:= behaviour orelse Key =:= behavior])).

%% @private The messages that waited come first: the mark stands behind them.
-spec forwarding({New :: pid(), Monitor :: reference(), Parent :: pid() | none, Caller :: pid(), Watcher :: pid(), IsStatem :: boolean()}) -> no_return().
forwarding({New, Monitor, Parent, Caller, Watcher, IsStatem} = Stub) ->
    receive
        {?MODULE, flushed, Monitor} -> Watcher ! {?MODULE, flushed, New}, ok;
        {'EXIT', From, Reason} when From =:= Parent; From =:= Caller -> exit(Reason);
        %% Those that wait for an answer must hear of it. But a supervisor would start the process again if it ended by itself.
        {'DOWN', Monitor, process, _, _} when is_pid(Parent), Parent =/= Caller -> _ = spawn(placement_drain, retire, [Parent, self()]), ok;
        {'DOWN', Monitor, process, _, Reason} -> exit(Reason);
        %% A time-out of gen_statem's own, which its new process would take for a message.
        {timeout, Timer, _} when IsStatem, is_reference(Timer), node(Timer) =:= node() -> ok;
        Message -> New ! Message, ok
    end,
    forwarding(Stub).

%%% The new process

%% @doc Gives a process that has just been started on this node the state of a held one. It then waits; the next word is {@link ready/4}'s.
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
            %% Whoever steers it ends it.
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

%% `lease': allowed by whoever steers it, which then knows that nobody else has the lease.
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

%% @doc Tells the old process that the new one waits for its commit. With the policy `lease' the new one may act from now on even if the old one no longer says anything.
-spec ready(held(), New :: pid(), Go :: reference(), policy()) -> ok.
ready({OldAlias, _}, New, Go, Policy) ->
    _ = [Go ! {Go, allowed} || Policy =:= lease],
    OldAlias ! {OldAlias, {ready, New, Go, self()}},
    ok.

%% @doc Why a process has not moved, for people.
-spec reason_text(term()) -> unicode:chardata().
reason_text({no_answer, Ms}) -> io_lib:format("it did not answer a system message in ~b ms; it is busy, or is no process of OTP", [Ms]);
reason_text({has, ports, Ports}) -> io_lib:format("it has ~ts; let placement_handoff(leave, …) name ports as handled, if the new process opens its own", [items("port", Ports)]);
reason_text({has, links, Pids}) -> io_lib:format("it is linked to ~ts besides its supervisor; let placement_handoff(leave, …) name links as handled, if the new process starts its own", [items("process", Pids)]);
reason_text({has, monitors, Pids}) -> io_lib:format("it monitors ~ts; let placement_handoff(leave, …) name monitors as handled, if the new process monitors anew", [items("process", Pids)]);
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
