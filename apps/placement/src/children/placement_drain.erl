%% SPDX-License-Identifier: Apache-2.0
%% @doc Drains a node: moves each process that supports being moved to another node, several at a time.
%%
%% Two kinds of processes move. Children of {@link placement_child} are moved by their keepers, under their leases. The
%% second kind is every gen_server or gen_statem with `placement_handoff/3' whose supervisor has a registered name; the
%% supervisor with that name on another node starts the process there. {@link placement_move} performs the move itself.
%% For a process without a lease, the commit by the old process decides whether it has moved: the new process does
%% nothing until it has received the commit, and if the connection between the nodes is lost before that, the new process
%% is killed.
%%
%% A drain runs in a process on the node that is drained, and starts one more process for each move in progress. When the
%% drain begins, the node gets the taint `draining'.
-module(placement_drain).

-include_lib("kernel/include/logger.hrl").

-export([run/1, undo/0, accepts/1, to_text/1, process_text/1]).
-export([receive_from/5]).

-export_type([options/0, result/0, left/0]).

-type options() :: #{at_once => pos_integer(), timeout => pos_integer(), tell => pid()}.
%% The process `tell' receives `{placement_drain, node(), #{total, moved, left}}' a few times a second.
-type left() :: #{process := {child, placement_child:name()} | {supervised, Supervisor :: atom(), Id :: term()}, pid := pid(), reason := term()}.
-type result() :: #{node := node(), moved := non_neg_integer(), restarted := [left()], stayed := [left()], lost := [left()], ms := non_neg_integer()}.
%% `moved' is the number of processes that have moved with their states. `restarted' lists the children that run elsewhere
%% without their former state, `stayed' the processes that did not move, and `lost' those that were moving when a node went
%% down.

-define(AT_ONCE, 8).
-define(TIMEOUT_MS, 60000).
-define(TELL_MS, 250).
%% The delay before a failed move is tried again.
-define(AGAIN_MS, 100).
%% How long a move is retried if it was refused for a reason that rarely changes.
-define(PATIENCE_MS, 3000).
-define(CALL_MS, 5000).
-define(HOLD_MS, 5000).
%% How many of the moved processes are asked concurrently whether they have forwarded all queued
%% messages. Unlike a move, the question does not delay callers.
-define(SETTLE_AT_ONCE, 100).
%% How long the drain remembers which nodes match a query or have a certain supervisor.
-define(SUITS_MS, 1000).

-record(job, {process :: {child, term()} | {supervised, atom(), term()}, pid :: pid(), what :: {child, placement_child:spec(), Keeper :: pid()} | {supervised, map()},
              %% The time at which the move was first refused for a reason that rarely changes; a refusal for any other
              %% reason resets it.
              waits_since = none :: none | integer()}).
-record(state, {jobs = [] :: [#job{}], seen = #{} :: #{pid() => true}, later = [] :: [{#job{}, Reason :: term()}], open = #{} :: #{reference() => {#job{}, Mover :: pid()}}, total :: non_neg_integer(), moved = [] :: [pid()],
                restarted = [] :: [left()], stayed = [] :: [left()], lost = [] :: [left()], suits = #{} :: #{term() => {integer(), [node()]}}, turn = 0 :: non_neg_integer(),
                at_once :: pos_integer(), tell :: pid() | none, told :: integer(), until :: integer()}).

%% @doc Drains this node. Returns when every process has moved or has turned out to be unable to move, or at the timeout.
-spec run(options()) -> {ok, result()} | {error, already_draining | {bad_option, atom(), term()}}.
run(Options) ->
    case [{Key, Value} || {Key, Value} <- maps:to_list(Options), not is_option(Key, Value)] of
        [{Key, Value} | _] -> {error, {bad_option, Key, Value}};
        [] -> registered(Options)
    end.

is_option(Key, Value) when Key =:= at_once; Key =:= timeout -> is_integer(Value) andalso Value > 0 andalso Value < 1 bsl 31;
is_option(tell, Pid) -> is_pid(Pid);
is_option(_, _) -> false.

registered(Options) ->
    try register(?MODULE, self()) of
        true ->
            try {ok, drained(Options)}
            after true = unregister(?MODULE)
            end
    catch
        error:badarg -> {error, already_draining}
    end.

drained(Options) ->
    Begin = now_ms(),
    ok = taint(fun(Taints) -> lists:usort([draining | Taints]) end),
    Jobs = jobs(),
    State = #state{jobs = Jobs, seen = seen(Jobs, #{}), total = length(Jobs), at_once = maps:get(at_once, Options, ?AT_ONCE), tell = maps:get(tell, Options, none), told = Begin,
                   until = Begin + maps:get(timeout, Options, ?TIMEOUT_MS)},
    #state{moved = Moved, restarted = Restarted, stayed = Stayed, lost = Lost} = Last = moving(State),
    %% Waits until the queued messages of the old processes have been handled, so that callers get their replies before
    %% this node stops.
    ok = settled(Moved, Last),
    ok = told(Last),
    #{node => node(), moved => length(Moved), restarted => lists:reverse(Restarted), stayed => lists:reverse(Stayed), lost => lists:reverse(Lost), ms => now_ms() - Begin}.

now_ms() -> erlang:monotonic_time(millisecond).

%% @doc Removes the taint `draining' from this node, which then accepts processes again.
-spec undo() -> ok.
undo() -> taint(fun(Taints) -> lists:delete(draining, Taints) end).

taint(Change) ->
    Taints = case placement_attr:local([taints], ?CALL_MS) of
                 {ok, [{taints, {ok, Value, _, _, _, _}}]} when is_list(Value) -> Value;
                 _ -> []
             end,
    placement_builtin:taint(Change(Taints)).

%%% Processes to move

jobs() ->
    Children = [#job{process = {child, Name}, pid = Pid, what = {child, Spec, Keeper}} || {#{name := Name} = Spec, Keeper, Pid} <- placement_child:kept()],
    Known = maps:from_list([{Pid, true} || #job{pid = Pid} <- Children]),
    Names = global_names(),
    Others = [Pid || Pid <- processes(), not is_map_key(Pid, Known), placement_move:is_willing(Pid)],
    Children ++ supervised([{Pid, parent(Pid)} || Pid <- Others, not is_below(Pid, Known)], Names).

%% Returns whether an ancestor of the process is a child. Such a process is not moved separately, because a child moves
%% or stays as a whole.
is_below(Pid, Known) -> lists:any(fun(Ancestor) -> is_map_key(Ancestor, Known) end, ancestors(Pid)).

ancestors(Pid) ->
    case process_info(Pid, dictionary) of
        {dictionary, Dictionary} -> [Ancestor || Ancestor <- proplists:get_value('$ancestors', Dictionary, []), is_pid(Ancestor) orelse is_atom(Ancestor)];
        undefined -> []
    end.

parent(Pid) ->
    case ancestors(Pid) of
        [Name | _] when is_atom(Name) -> Name;
        [Parent | _] when is_pid(Parent), node(Parent) =:= node() ->
            case process_info(Parent, registered_name) of
                {registered_name, Name} -> Name;
                _ -> none
            end;
        _ -> none
    end.

global_names() -> maps:from_list([{Pid, Name} || Name <- global:registered_names(), Pid <- [global:whereis_name(Name)], is_pid(Pid), node(Pid) =:= node()]).

%% Sends only one request to each supervisor.
supervised(Pids, Names) ->
    Supervisors = maps:from_list([{Supervisor, placement_supervisor:children(Supervisor)} || Supervisor <- lists:usort([Parent || {_, Parent} <- Pids]), Supervisor =/= none]),
    [#job{process = {supervised, Parent, maps:get(id, Found, undefined)}, pid = Pid, what = {supervised, Found}}
     || {Pid, Parent} <- Pids, Found <- [supervised(Pid, maps:get(Pid, Names, none), Parent, maps:get(Parent, Supervisors, none))], Found =/= gone].

supervised(_, _, none, _) -> #{refused => no_supervisor};
supervised(_, Name, _, _) when Name =/= none -> #{refused => {global, Name}};
supervised(_, _, _, {error, Reason}) -> #{refused => Reason};
supervised(Pid, _, Parent, {ok, Children}) ->
    case Children of
        #{Pid := #{} = Child} -> Child#{supervisor => Parent};
        %% The process has exited, or its supervisor did not start it as a child.
        #{} ->
            case is_process_alive(Pid) of
                true -> #{refused => no_supervisor};
                false -> gone
            end
    end.

%%% The moves

moving(#state{jobs = [], later = [], open = Open, seen = Seen, total = Total} = State) when map_size(Open) =:= 0 ->
    %% Some processes may have been started since the last check.
    case [Job || #job{pid = Pid} = Job <- jobs(), not is_map_key(Pid, Seen)] of
        [] -> State;
        New -> moving(State#state{jobs = New, seen = seen(New, Seen), total = Total + length(New)})
    end;
moving(#state{jobs = [], later = [_ | _] = Later, open = Open, until = Until} = State) when map_size(Open) =:= 0 ->
    case now_ms() + ?AGAIN_MS < Until of
        true ->
            receive after ?AGAIN_MS -> ok end,
            moving(State#state{jobs = [Job || {Job, _} <- lists:reverse(Later)], later = []});
        false -> lists:foldr(fun({Job, Reason}, After) -> stayed(Job, Reason, After) end, State#state{later = []}, Later)
    end;
moving(#state{jobs = [Job | Jobs], open = Open, at_once = AtOnce, until = Until} = State) when map_size(Open) < AtOnce ->
    case now_ms() < Until of
        true -> moving(begun(Job, State#state{jobs = Jobs}));
        false -> moving(lists:foldl(fun(One, After) -> stayed(One, timeout, After) end, State#state{jobs = []}, [Job | Jobs]))
    end;
moving(#state{open = Open, until = Until} = State) ->
    %% A callback may hang. Killing the mover lets the old process resume.
    _ = [exit(Mover, kill) || now_ms() > Until + ?HOLD_MS, {_, Mover} <- maps:values(Open)],
    receive
        {'DOWN', Monitor, process, _, Reason} when is_map_key(Monitor, Open) ->
            {{Job, _}, Others} = maps:take(Monitor, Open),
            Outcome = case Reason of
                          {?MODULE, Result} -> Result;
                          killed -> {refused, timeout};
                          _ -> {refused, {crashed, Reason}}
                      end,
            moving(progress(finished(Outcome, Job, State#state{open = Others})))
    after ?TELL_MS -> moving(progress(State))
    end.

seen(Jobs, Seen) -> maps:merge(Seen, maps:from_list([{Pid, true} || #job{pid = Pid} <- Jobs])).

%% Dialyzer would warn that the process's fun never returns, because its result is the exit reason.
-dialyzer({nowarn_function, begun/2}).
%% The module gen represents an alias as an improper list.
-dialyzer({no_improper_lists, begun_asking/1}).
begun(#job{what = {supervised, #{refused := Reason}}} = Job, State) -> stayed(Job, Reason, State);
begun(Job, State) ->
    {Nodes, #state{turn = Turn, open = Open} = After} = nodes_for(Job, State),
    case Nodes of
        [] -> later(Job, no_node, After);
        _ ->
            Node = lists:nth(Turn rem length(Nodes) + 1, Nodes),
            {Mover, Monitor} = spawn_monitor(fun() -> exit({?MODULE, one(Job, Node)}) end),
            After#state{turn = Turn + 1, open = Open#{Monitor => {Job, Mover}}}
    end.

finished({moved, _}, #job{pid = Pid}, #state{moved = Moved} = State) -> State#state{moved = [Pid | Moved]};
finished({restarted, _}, Job, #state{restarted = Restarted} = State) -> State#state{restarted = [left(Job, restarted) | Restarted]};
finished({lost, Reason}, #job{process = Process} = Job, #state{lost = Lost} = State) ->
    ?LOG_WARNING("placement: ~ts is lost: ~ts", [process_text(Process), placement_move:reason_text(Reason)]),
    State#state{lost = [left(Job, Reason) | Lost]};
finished({refused, ended}, _, #state{total = Total} = State) -> State#state{total = Total - 1};
finished({refused, Reason}, Job, State) -> later(Job, Reason, State).

later(Job, Reason, #state{later = Later, until = Until} = State) ->
    Now = now_ms(),
    #job{waits_since = Since} = Waiting = Job#job{waits_since = waits_since(changes(Reason), Job, Now)},
    Last = case changes(Reason) of
               never -> Now;
               seldom when Reason =:= no_node -> case nodes(connected) of [] -> Now; _ -> min(Since + ?PATIENCE_MS, Until) end;
               seldom -> min(Since + ?PATIENCE_MS, Until);
               soon -> Until
           end,
    case Now < Last of
        true -> State#state{later = [{Waiting, Reason} | Later]};
        false -> stayed(Job, Reason, State)
    end.

waits_since(seldom, #job{waits_since = Since}, _) when is_integer(Since) -> Since;
waits_since(seldom, _, Now) -> Now;
waits_since(_, _, _) -> none.

%% Returns how likely it is that a retry succeeds. A process may have monitors only temporarily, for example while it waits
%% for replies. A different node may accept a process that the first node refused.
changes({has, monitors, _}) -> seldom;
changes({has, _, _}) -> never;
changes({stays, _}) -> never;
changes({bad_handoff, Node, _}) when Node =:= node() -> never;
changes({bad_handoff, _, _}) -> seldom;
changes({not_started, _, _}) -> seldom;
changes(no_node) -> seldom;
changes(timeout) -> never;
changes(_) -> soon.

stayed(Job, Reason, #state{stayed = Stayed} = State) -> State#state{stayed = [left(Job, Reason) | Stayed]}.

left(#job{process = Process, pid = Pid}, Reason) -> #{process => Process, pid => Pid, reason => Reason}.

progress(#state{told = Told} = State) ->
    case now_ms() - Told >= ?TELL_MS of
        true -> ok = told(State), State#state{told = now_ms()};
        false -> State
    end.

told(#state{tell = none}) -> ok;
told(#state{tell = Tell, total = Total, moved = Moved, restarted = Restarted, stayed = Stayed, lost = Lost}) ->
    Tell ! {?MODULE, node(), #{total => Total, moved => length(Moved) + length(Restarted), left => length(Stayed) + length(Lost)}},
    ok.

%%% Choosing targets

%% Returns all suitable nodes. They are used in turn, so that they fill evenly and the query need not be evaluated for each
%% child.
nodes_for(#job{what = {child, #{query := Query} = Spec, _}}, State) ->
    Nodes = placement_child:candidates(Spec),
    cached({Query, Nodes}, fun() ->
        Connected = [Node || Node <- Nodes, Node =/= node(), lists:member(Node, nodes(connected))],
        %% Does not use cached values, because the reason for this attempt may be that a node has gone down or stopped
        %% accepting processes.
        case Connected =/= [] andalso placement_choose:ranked(accepting(Connected, placement_child), {Query, length(Connected)}, #{max_age => 0}) of
            {ok, Suitable, _} -> lists:sort(Suitable);
            _ -> []
        end
    end, State);
nodes_for(#job{what = {supervised, #{supervisor := Supervisor}}}, State) ->
    cached(Supervisor, fun() -> accepting(nodes(connected), Supervisor) end, State).

cached(Key, Fun, #state{suits = Suits} = State) ->
    Now = now_ms(),
    case Suits of
        #{Key := {At, Nodes}} when Now - At < ?SUITS_MS -> {[Node || Node <- Nodes, lists:member(Node, nodes(connected))], State};
        #{} ->
            Nodes = Fun(),
            {Nodes, State#state{suits = Suits#{Key => {Now, Nodes}}}}
    end.

accepting(Nodes, Registered) -> [Node || {Node, {ok, true}} <- lists:zip(Nodes, erpc:multicall(Nodes, ?MODULE, accepts, [Registered], ?CALL_MS))].

%% @private Returns whether this node accepts processes of a supervisor. Nodes with an older release do not have this
%% function.
-spec accepts(atom()) -> boolean().
accepts(Registered) -> whereis(placement_child) =/= undefined andalso whereis(Registered) =/= undefined andalso whereis(?MODULE) =:= undefined.

one(#job{what = {child, _, Keeper}}, Node) ->
    Tag = make_ref(),
    Monitor = monitor(process, Keeper),
    ok = placement_child_keeper:move(Keeper, Node, Tag),
    receive
        {Tag, Outcome} -> Outcome;
        {'DOWN', Monitor, process, _, _} -> {refused, ended}
    end;
one(#job{pid = Pid, what = {supervised, Child}}, Node) ->
    case placement_move:hold(Pid, Node, ?HOLD_MS) of
        {refused, Reason} -> {refused, Reason};
        {held, Held} ->
            {Receiver, Monitor} = spawn_monitor(Node, ?MODULE, receive_from, [self(), Held, Pid, Child, ?HOLD_MS]),
            moved_to(Receiver, Monitor, Held, Pid, Node)
    end.

%% The old process commits when the receiver on the other node reports that the new process is ready, unless this process
%% has told the old process to resume before that. So the old process alone decides.
moved_to(Receiver, Monitor, Held, Pid, Node) ->
    Old = monitor(process, Pid),
    receive
        {placement_move, gone, Pid, _} -> committed(Receiver, Monitor, Old, Pid, Node);
        {Receiver, {failed, Reason}} -> not_moved(Held, Reason, Receiver, Monitor, Old, Pid, Node);
        {'DOWN', Monitor, process, _, noconnection} -> not_moved(Held, {nodedown, Node}, Receiver, Monitor, Old, Pid, Node);
        {'DOWN', Monitor, process, _, Reason} -> not_moved(Held, {not_started, Node, Reason}, Receiver, Monitor, Old, Pid, Node);
        {'DOWN', Old, process, _, _} -> {refused, ended}
    after 4 * ?HOLD_MS -> not_moved(Held, {no_answer, 4 * ?HOLD_MS}, Receiver, Monitor, Old, Pid, Node)
    end.

not_moved(Held, Reason, Receiver, Monitor, Old, Pid, Node) ->
    ok = placement_move:resume(Held),
    receive
        {placement_move, resumed, Pid} -> {refused, Reason};
        {placement_move, gone, Pid, _} -> committed(Receiver, Monitor, Old, Pid, Node);
        {'DOWN', Old, process, _, _} -> {refused, ended}
    end.

%% From now on the old process only forwards messages, even if the other node goes down.
committed(Receiver, Monitor, Old, Pid, Node) ->
    receive
        {Receiver, {live, New}} -> {moved, New};
        {'DOWN', Monitor, process, _, _} ->
            ok = placement_supervisor:retire(supervisor_of(Pid), Pid),
            {lost, {nodedown, Node}};
        {'DOWN', Old, process, _, _} -> {lost, ended}
    end.

supervisor_of(Pid) ->
    case ancestors(Pid) of
        [Parent | _] -> Parent;
        [] -> none
    end.

%% @private Runs on the other node, where it starts the new process and hands the state to it. Kills
%% the new process if the old process may resume.
-spec receive_from(Mover :: pid(), placement_move:held(), Old :: pid(), map(), Ms :: non_neg_integer()) -> ok.
receive_from(Mover, Held, Old, #{supervisor := Supervisor} = Child, Ms) ->
    Monitor = monitor(process, Mover),
    case placement_supervisor:start_child(Supervisor, Child) of
        {ok, New} ->
            case placement_move:arrive(New, Held, Old, commit, Ms) of
                {arrived, Go} ->
                    ok = placement_move:ready(Held, New, Go, commit),
                    received(Mover, Monitor, New, Supervisor);
                {refused, Reason} ->
                    ok = placement_supervisor:remove(Supervisor, New),
                    Mover ! {self(), {failed, Reason}},
                    ok
            end;
        {error, Reason} ->
            Mover ! {self(), {failed, {not_started, node(), Reason}}},
            ok
    end.

received(Mover, Monitor, New, Supervisor) ->
    receive
        {placement_move, live, New} ->
            Mover ! {self(), {live, New}},
            ok;
        {'DOWN', Monitor, process, _, Reason} ->
            receive {placement_move, live, New} -> ok
            after 0 ->
                _ = [?LOG_WARNING("placement: ~tp of ~tp is lost: ~ts went down while it moved here", [New, Supervisor, node(Mover)]) || Reason =:= noconnection],
                placement_supervisor:remove(Supervisor, New)
            end
    end.

%%% Waiting for queued messages

%% A process that forwards messages also forwards sys requests, so the reply to such a request shows that all earlier
%% messages have been handled.
settled(Pids, #state{until = Until}) -> settled(Pids, [], ?SETTLE_AT_ONCE, Until).

settled([], [], _, _) -> ok;
settled([Pid | Pids], Open, AtOnce, Until) when length(Open) < AtOnce -> settled(Pids, [begun_asking(Pid) | Open], AtOnce, Until);
settled(Pids, [{Alias, Monitor} | Open], AtOnce, Until) ->
    receive
        {[alias | Alias], _} -> ok;
        {'DOWN', Monitor, process, _, _} -> ok
    after max(0, min(?CALL_MS, Until - now_ms())) -> ok
    end,
    _ = unalias(Alias),
    true = demonitor(Monitor, [flush]),
    receive {[alias | Alias], _} -> ok after 0 -> ok end,
    settled(Pids, Open, AtOnce, Until).

%% Sends an unknown request, to which sys replies but which has no other effect.
begun_asking(Pid) ->
    Alias = alias(),
    Pid ! {system, {self(), [alias | Alias]}, ?MODULE},
    {Alias, monitor(process, Pid)}.

%% @doc Formats the result of a drain as text for users, with a line for each process that stayed or was lost.
-spec to_text(result()) -> unicode:chardata().
to_text(#{node := Node, moved := Moved, restarted := Restarted, stayed := Stayed, lost := Lost, ms := Ms}) ->
    [io_lib:format("~ts: ~b moved, ~b restarted elsewhere, ~b stayed, ~b lost, in ~.2f s~n", [Node, Moved, length(Restarted), length(Stayed), length(Lost), Ms / 1000]),
     [io_lib:format("~s: ~ts: ~ts~n", [What, process_text(Process), placement_move:reason_text(Reason)])
      || {What, All} <- [{"stayed", Stayed}, {"lost", Lost}], #{process := Process, reason := Reason} <- All]].

%% @doc Returns a process's name as text for users.
-spec process_text({child, term()} | {supervised, atom(), term()}) -> unicode:chardata().
process_text({child, Name}) -> io_lib:format("child ~0tP", [Name, 8]);
process_text({supervised, none, _}) -> "a process without a registered supervisor";
process_text({supervised, Supervisor, Id}) -> io_lib:format("process ~0tP of ~tp", [Id, 8, Supervisor]).
