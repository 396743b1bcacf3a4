%% SPDX-License-Identifier: Apache-2.0
%% @doc Processes that exist once in the cluster. They start where a query says and restart elsewhere when their node
%% goes down or no longer fits.
%%
%% The nodes on which a child may run are its candidates. Three or five of them, chosen by
%% {@link placement_rendezvous}, are its voters. The node that runs the child holds a lease from the majority of the
%% voters ({@link placement_child_keeper}): a voter promises itself to one node for the child's grace time, and to no
%% other node before that time is over ({@link placement_voter}). The holder asks again four times in the grace time.
%% It kills the child, with the processes below it, when 95 % of the grace time are over. So two nodes never run the
%% child at the same time, unless their clocks differ in speed by more than that margin, and under a partition only a
%% side with more than half of the voters runs it. A voter that has lost its memory, because its node was restarted,
%% makes no promises for one grace time.
%%
%% Each lease has a fencing number, which rises with every new holder. Voters refuse a new holder whose number is lower
%% than one that they have granted. They refuse a renewal only if a later holder has run the child (`live'), so a node
%% that comes back late cannot renew an old lease, but a node that asked in vain does not cost the holder a voter. If a
%% node has tried to give the child away, `live' also decides whether that node may resume it.
%%
%% This server is the voter. It also chooses the next node when nobody holds the lease. Among the connected voters the
%% first by name does that, or the next one if the first hangs or does not know the child. The server also knows
%% the processes of children for which it is a candidate but not a voter, because their keepers inform all candidates.
%%
%% The tables belong to {@link placement_sup}, so promises survive a crash of this server. When the server exits, the
%% keepers exit with it, and so do their children.
-module(placement_child).
-behaviour(gen_server).

-export([start_link/1, start/3, delete/1, ended/1, whereis_name/1, children/0, known/0, here/0, count/2, fence/1, kept/0, keeps/2, keeps_no_more/2, numbered/1, ask/3, release/2, pass/3, announce/2, candidates/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([name/0, options/0, spec/0, version/0, restart/0, shutdown/0]).

-type name() :: term().
-type version() :: {integer(), node()}.
-type restart() :: permanent | transient | temporary.
-type shutdown() :: brutal_kill | timeout().
-type options() :: #{name := name(), nodes => [node(), ...], grace => pos_integer(), voters => pos_integer(), replace_after => pos_integer(), settle => pos_integer(),
                     restart => restart(), shutdown => shutdown(), scope => placement_scope:member()}.
%% `candidates': where it may run; with `follow' these are all nodes that run placement. `nodes': the voters. `next':
%% the voters that are to replace them ({@link placement_voter}). In older releases the voters are the only
%% candidates.
-type spec() :: #{name := name(), query := placement_query:query(), call := {module(), atom(), [term()]}, nodes := [node(), ...], grace := pos_integer(), version := version(),
                  candidates => [node(), ...], follow => boolean(), voters => pos_integer(), next => [node(), ...], term => non_neg_integer(), replace_after => pos_integer(), settle => pos_integer(),
                  restart => restart(), shutdown => shutdown(), scope => placement_scope:member(),
                  %% `fence': the number of the lease. `live' and `at': the number and the node of the last holder
                  %% that ran the child. `over': the value of `live' for the last run that was finished properly; if it
                  %% is lower than `live', the last run was cut short and its state is lost.
                  fence => integer(), live => integer(), at => node(), over => integer(),
                  %% Only in a question. `base': the number of a holder that asks to resume a child after trying to hand
                  %% it over. `passed': the node that handed the child over to the asking one. `above': a number that
                  %% voters rejected as too low. `late': the age of the question.
                  base => integer(), passed => {node(), integer()}, above => integer(), late => non_neg_integer(),
                  %% Only on a voter: when a holder last reported the child to it.
                  heard => integer()}.

-define(SERVER, ?MODULE).
%% {name(), spec() | {deleted, Version} | unknown, {Holder :: node() | nobody, pid() | none, UntilMs}}
-define(CHILDREN, placement_children).
%% {name(), pid() | none, spec(), reference() | EndedMs}: children that their keepers have announced to this node.
-define(NAMES, placement_names).
%% {node()}: the other nodes that have reported that placement runs on them.
-define(PEERS, placement_peers).
%% {{Scope, node()}, Count}: how many children of a scope in ?NAMES have a process.
-define(COUNTS, placement_counts).
%% {name(), Keeper :: pid(), spec(), pid() | none}: children that run here, written by their keepers.
-define(KEPT, placement_kept).
-define(TICK_MS, 100).
-define(CALL_MS, 5000).
-define(START_TRIES, 3).
%% How often a call checks locally whether its child runs. It asks the voters once per ?ASK_ROUNDS checks.
-define(RUNNING_MS, 20).
-define(ASK_ROUNDS, 25).
-define(GRACE_MS, 5000).
%% How long this node remembers deleted children and failed calls. If it is a candidate, it also remembers a child that
%% runs nowhere, and its voters, for this time.
-define(REMEMBERED_MS, 3600000).
-define(REPLACE_MS, 30000).
-define(SETTLE_MS, 30000).
-define(VOTERS, 5).
-define(FORGET_MS, 5000).
%% How many choices may run at once. Each choice asks nodes, and a node that went down may have run thousands of
%% children.
-define(CHOOSERS_MAX, 64).
%% `made': when (ms) the table was created. `due': when to check each child, at the latest when its promise expires.
%% `choosing': the monitor of the running chooser, or the time before which no other choice may start.
-record(state, {made :: integer(), keepers = #{} :: #{pid() => name()}, kept = #{} :: #{name() => pid()}, named = #{} :: #{reference() => name()},
                due = placement_due:new() :: placement_due:due(),
                choosers = #{} :: #{reference() => {name(), PauseMs :: non_neg_integer()}}, choosing = #{} :: #{name() => reference() | integer()}}).

%% @doc Starts the server; `MadeMs' is the time at which its table was created.
-spec start_link(MadeMs :: integer()) -> {ok, pid()} | {error, term()}.
start_link(MadeMs) -> gen_server:start_link({local, ?SERVER}, ?MODULE, MadeMs, []).

%% @doc Informs the voters of a child and returns when it runs.
-spec start(placement_query:query(), {module(), atom(), [term()]}, options()) ->
          {ok, pid()} | {error, {bad_option, atom(), term()} | {bad_query, string()} | {exists, pid()} | no_majority | not_started}.
start(Query, {Module, Function, Arguments} = Call, Options) when is_atom(Module), is_atom(Function), is_list(Arguments) ->
    Full = maps:merge(#{nodes => [node() | nodes()], follow => not is_map_key(nodes, Options), grace => ?GRACE_MS, voters => ?VOTERS, replace_after => ?REPLACE_MS, settle => ?SETTLE_MS}, Options),
    case {[{Key, Value} || {Key, Value} <- maps:to_list(Full), not is_option(Key, Value)], placement_query:compile(Query)} of
        {[], {ok, _}} when is_map_key(name, Full) ->
            #{name := Name, nodes := Nodes, voters := Most} = Full,
            Candidates = lists:usort(Nodes),
            begun(Full#{query => Query, call => Call, candidates => Candidates, nodes := placement_voter:first(Name, Candidates, Most), term => 0}, ?START_TRIES);
        {[], {error, Text}} -> {error, {bad_query, unicode:characters_to_list(Text)}};
        {[], _} -> {error, {bad_option, name, missing}};
        {[{Key, Value} | _], _} -> {error, {bad_option, Key, Value}}
    end.

is_option(name, _) -> true;
is_option(nodes, [_ | _] = Nodes) -> lists:all(fun is_atom/1, Nodes);
is_option(grace, Ms) -> is_integer(Ms) andalso Ms >= 400 andalso Ms =< 600000;
is_option(voters, Count) -> is_integer(Count) andalso Count > 0 andalso Count =< 99;
is_option(Key, Ms) when Key =:= replace_after; Key =:= settle -> is_integer(Ms) andalso Ms > 0 andalso Ms < 1 bsl 31;
is_option(restart, Restart) -> lists:member(Restart, [permanent, transient, temporary]);
is_option(shutdown, Shutdown) -> Shutdown =:= brutal_kill orelse Shutdown =:= infinity orelse is_integer(Shutdown) andalso Shutdown >= 0 andalso Shutdown < 1 bsl 32;
is_option(scope, _) -> true;
is_option(follow, Is) -> is_boolean(Is);
is_option(_, _) -> false.

%% Returns a time that is not earlier than any version of the name that this node knows, so that differences between
%% the nodes' clocks do not matter.
known(Name) ->
    case ets:whereis(?CHILDREN) =/= undefined andalso {row(Name), ets:lookup(?NAMES, Name)} of
        false -> 0;
        {Row, Names} -> lists:max([0 | case Row of
                                           {#{version := {Time, _}} = Spec, _} -> [Time, maps:get(fence, Spec, 0)];
                                           {{deleted, {Time, _}}, _} -> [Time];
                                           _ -> []
                                       end ++ lists:append([[Time, maps:get(fence, Spec, 0)] || {_, _, #{version := {Time, _}} = Spec, _} <- Names])])
    end.

%% A voter knows from its own row when the lease expires; any other node knows the child through its keeper.
-spec known_as(placement_voter:row(), [{name(), pid() | none, spec(), term()}]) -> {spec(), node() | none, pid() | none} | deleted | none.
known_as({#{version := Version} = Spec, Promise}, Names) ->
    case Names of
        [{_, _, #{version := Newer}, _}] when Newer > Version -> told_of(Names);
        _ ->
            case {lists:member(node(), placement_voter:asked(Spec)), Promise, now_ms()} of
                {true, {Holder, Pid, Until}, Now} when Until > Now, Holder =/= nobody -> {Spec, Holder, Pid};
                {true, _, _} -> {Spec, none, none};
                {false, _, _} when Names =:= [] -> {Spec, none, none};
                {false, _, _} -> told_of(Names)
            end
    end;
known_as({{deleted, Version}, _}, Names) ->
    case Names of
        [{_, _, #{version := Newer}, _}] when Newer > Version -> told_of(Names);
        _ -> deleted
    end;
known_as(_, Names) -> told_of(Names).

told_of([{_, none, Spec, _}]) -> {Spec, none, none};
told_of([{_, Pid, Spec, _}]) -> {Spec, node(Pid), Pid};
told_of([]) -> none.

%% More than half of the candidates must report what they know of the name, because its voters may have changed since
%% the first call.
begun(#{name := Name, candidates := Candidates} = Given, Tries) ->
    {Looks, _} = gen_server:multi_call(Candidates, ?SERVER, {look, Name}, ?CALL_MS),
    Configs = lists:sort([{Term, Config} || {_, {known, _, #{term := Term} = Config}} <- Looks]),
    case {[Pid || {_, {known, Pid, _}} <- Looks, is_pid(Pid)], 2 * length(Looks) > length(Candidates)} of
        {[Pid | _], _} -> {error, {exists, Pid}};
        {[], false} -> {error, no_majority};
        {[], true} ->
            Spec = case Configs of
                       [] -> Given;
                       _ -> maps:merge(Given, element(2, lists:last(Configs)))
                   end,
            told(Spec#{version => {max(erlang:system_time(), known(Name) + 1), node()}}, Given, Tries)
    end.

told(#{name := Name, grace := Grace} = Spec, Given, Tries) ->
    {Replies, _} = gen_server:multi_call(placement_voter:asked(Spec), ?SERVER, {put, Spec}, ?CALL_MS),
    Told = [Node || {Node, ok} <- Replies],
    case {[Pid || {_, {exists, Pid}} <- Replies], placement_voter:is_majority(Spec, Told), lists:keymember(config, 1, [Reply || {_, Reply} <- Replies, is_tuple(Reply)])} of
        {[Pid | _], _, _} -> withdrawn(Name, Spec, {exists, Pid});
        %% The voters have been replaced since this call looked them up.
        {[], _, true} when Tries > 1 -> {error, _} = withdrawn(Name, Spec, no_majority), begun(Given, Tries - 1);
        {[], false, _} -> withdrawn(Name, Spec, no_majority);
        {[], true, _} -> running(Spec, 0, now_ms() + 2 * Grace + ?CALL_MS)
    end.

%% A failed call must have no effect, so the voters that have received it are told to forget it.
withdrawn(Name, Spec, Reason) ->
    abcast = gen_server:abcast(placement_voter:asked(Spec), ?SERVER, {withdraw, Name, Spec}),
    {error, Reason}.

%% Waits until the child runs. If this node is a candidate, the keeper informs it; in case it is not, the voters are asked.
running(#{name := Name} = Spec, Round, End) ->
    Own = case ets:whereis(?CHILDREN) of
              undefined -> undefined;
              _ -> whereis_name(Name)
          end,
    Others = case Own =:= undefined andalso Round rem ?ASK_ROUNDS =:= ?ASK_ROUNDS - 1 of
                 true -> [Pid || {ok, Pid} <- erpc:multicall(placement_voter:asked(Spec), ?MODULE, whereis_name, [Name], ?CALL_MS), is_pid(Pid)];
                 false -> []
             end,
    case {[Own || is_pid(Own)] ++ Others, now_ms() < End} of
        {[Pid | _], _} -> {ok, Pid};
        {[], true} -> receive after ?RUNNING_MS -> running(Spec, Round + 1, End) end;
        {[], false} -> {error, not_started}
    end.

%% @doc Deletes a child permanently. At least the majority of its voters must confirm this. Call it on one of the candidates.
-spec delete(name()) -> ok | {error, no_such_child | no_majority}.
delete(Name) ->
    case known_as(row(Name), ets:lookup(?NAMES, Name)) of
        {Spec, _, _} -> ended(Spec);
        _ -> {error, no_such_child}
    end.

%% @doc Does the same for a child whose process has exited and must not be restarted.
-spec ended(spec()) -> ok | {error, no_majority}.
ended(Spec) -> ended(Spec, ?START_TRIES).

ended(#{name := Name, version := Version} = Spec, Tries) ->
    {Replies, _} = gen_server:multi_call(placement_voter:asked(Spec), ?SERVER, {delete, Name, Version}, ?CALL_MS),
    Newer = lists:sort([{Other, Term, Known} || {_, {newer, #{version := Other} = Known}} <- Replies, Term <- [maps:get(term, Known, 0)]]),
    Later = lists:sort([{Term, Config} || {_, {config, #{term := Term} = Config}} <- Replies, Term > maps:get(term, Spec, 0)]),
    case {Newer, Later, placement_voter:is_majority(Spec, [Node || {Node, ok} <- Replies])} of
        %% The voters know a newer call, which this node has missed.
        {[_ | _], _, _} when Tries > 1 -> ended(element(3, lists:last(Newer)), Tries - 1);
        {_, [_ | _], _} when Tries > 1 -> ended(maps:merge(maps:remove(next, Spec), element(2, lists:last(Later))), Tries - 1);
        {_, _, true} ->
            abcast = gen_server:abcast(candidates(Spec), ?SERVER, {forget, Name, Version}),
            ok;
        {_, _, false} ->
            abcast = gen_server:abcast(placement_voter:asked(Spec), ?SERVER, {withdraw, Name, {deleted, Version}}),
            {error, no_majority}
    end.

%% @doc Returns the nodes on which a child may run. Older releases did not distinguish these from the voters.
-spec candidates(spec()) -> [node(), ...].
candidates(#{candidates := Candidates}) -> Candidates;
candidates(#{nodes := Nodes}) -> Nodes.

%% @doc Returns the process of a child, as far as this node knows; for `{via, placement, Name}'.
-spec whereis_name(name()) -> pid() | undefined.
whereis_name(Name) ->
    case known_as(row(Name), ets:lookup(?NAMES, Name)) of
        {_, _, Pid} when is_pid(Pid) ->
            case node(Pid) =/= node() orelse is_process_alive(Pid) of
                true -> Pid;
                false -> undefined
            end;
        _ -> undefined
    end.

%% @doc Returns the children that this node knows, where they run, and their processes.
-spec children() -> [{name(), node() | none, pid() | none}].
children() -> [{Name, Holder, Pid} || {#{name := Name}, Holder, Pid} <- known()].

%% @doc Returns the same with each child's whole specification.
-spec known() -> [{spec(), node() | none, pid() | none}].
known() ->
    Rows = maps:from_list([{Name, {Spec, Promise}} || {Name, Spec, Promise} <- ets:tab2list(?CHILDREN)]),
    Names = maps:from_list([{Name, Row} || {Name, _, _, _} = Row <- ets:tab2list(?NAMES)]),
    All = lists:sort(maps:keys(maps:merge(Rows, Names))),
    [Known || Name <- All, {_, _, _} = Known <- [known_as(maps:get(Name, Rows, none), [Row || {ok, Row} <- [maps:find(Name, Names)]])]].

%% @doc Returns the nodes on which placement runs, as far as this node knows.
-spec here() -> [node(), ...].
here() -> [node() | [Node || {Node} <- ets:tab2list(?PEERS)]].

%% @doc Counts the children of a scope on each of these nodes. Nodes without any are left out.
-spec count(Scope :: term(), [node()]) -> #{node() => pos_integer()}.
count(Scope, Nodes) -> maps:from_list([{Node, Count} || Node <- Nodes, {_, Count} <- ets:lookup(?COUNTS, {Scope, Node}), Count > 0]).

%% @doc Returns the fencing number of a child that runs on this node. The number rises with every new holder of the
%% lease.
-spec fence(name()) -> {ok, integer()} | none.
fence(Name) ->
    case ets:lookup(?KEPT, Name) of
        [{_, _, #{fence := Fence}, _}] -> {ok, Fence};
        _ -> none
    end.

%% @doc Returns the children that run on this node, and the keeper of each.
-spec kept() -> [{spec(), Keeper :: pid(), pid()}].
kept() -> [{Spec, Keeper, Pid} || {_, Keeper, Spec, Pid} <- ets:tab2list(?KEPT), is_pid(Pid)].

%% @doc Records what a keeper runs.
-spec keeps(spec(), pid() | none) -> ok.
keeps(#{name := Name} = Spec, Pid) ->
    true = ets:insert(?KEPT, {Name, self(), Spec, Pid}),
    ok.

%% @doc Records that a keeper no longer runs its child. Another keeper may have the name by now.
-spec keeps_no_more(name(), Keeper :: pid()) -> ok.
keeps_no_more(Name, Keeper) ->
    _ = [ets:delete_object(?KEPT, Row) || {_, By, _, _} = Row <- ets:lookup(?KEPT, Name), By =:= Keeper],
    ok.

%% @doc Announces the process of a child that runs here to all candidates.
-spec announce(spec(), pid()) -> ok.
announce(Spec, Pid) ->
    abcast = gen_server:abcast(lists:usort(candidates(Spec) ++ placement_voter:asked(Spec)), ?SERVER, {named, Spec, Pid}),
    ok.

now_ms() -> erlang:monotonic_time(millisecond).

%% @doc Gives a new fencing number to a node that asks for a lease which it does not hold yet.
-spec numbered(spec()) -> spec().
numbered(#{name := Name} = Spec) -> Spec#{fence => lists:max([erlang:system_time(), known(Name) + 1, maps:get(fence, Spec, 0) + 1, maps:get(above, Spec, 0) + 1])}.

%% @doc Asks all voters to promise themselves to this node, waiting for at most `Ms'. The lease begins at `SinceMs',
%% taken before the question was sent. `Both' tells whether the voters that are to replace others agree as well. `fenced':
%% another holder had a higher number. `stale': another holder has run the child since. `config': other nodes are the voters.
-spec ask(spec(), pid() | none, Ms :: non_neg_integer()) ->
          {granted, SinceMs :: integer(), Both :: boolean()} | refused | deleted | stale | {fenced, integer()} | {config, placement_voter:config()}.
ask(#{name := Name, version := Version} = Spec, Pid, Ms) ->
    Since = now_ms(),
    Asked = maps:from_list([{alias(), Node} || Node <- placement_voter:asked(Spec)]),
    %% The receiver computes the age from the system clock, because this message may wait a long time at a suspended node.
    Sent = Spec#{late => erlang:system_time(millisecond)},
    _ = [gen_server:cast({?SERVER, Node}, {ask, Alias, Sent, node(), Pid}) || {Alias, Node} <- maps:to_list(Asked)],
    Got = gathered(Spec, Asked, #{}, Since + Ms),
    _ = [unalias(Alias) || Alias <- maps:keys(Asked)],
    ok = flush(Asked),
    case Got of
        {granted, Both, Gone} ->
            _ = [logger:warning("placement: child ~0tP starts on ~ts without its state: it was on ~ts, which is gone or cut off", [Name, 8, node(), hd(Gone)]) || Gone =/= []],
            {granted, Since, Both};
        %% Its voters keep the older version, because the newer one may be withdrawn.
        newer -> deleted;
        deleted ->
            %% At least one voter has missed the deletion, because otherwise no node would ask.
            abcast = gen_server:abcast(placement_voter:asked(Spec), ?SERVER, {delete, Name, Version}),
            deleted;
        Denied -> Denied
    end.

gathered(Spec, Asked, Answers, End) -> gathered(placement_voter:counted(Spec, Answers, now_ms() >= End), Spec, Asked, Answers, End).

gathered(open, Spec, Asked, Answers, End) ->
    receive {Alias, Answer} when is_map_key(Alias, Asked) -> gathered(Spec, Asked, Answers#{map_get(Alias, Asked) => Answer}, End)
    after max(0, End - now_ms()) -> gathered(Spec, Asked, Answers, End)
    end;
gathered(denied, Spec, _, Answers, _) -> denied(Spec, maps:values(Answers));
gathered(Granted, _, _, _, _) -> Granted.

%% A single voter may know of a deletion or a new child that the majority has not received. So if another node holds the
%% lease, this counts only as a refusal, and that node finds out with its own question.
denied(Spec, Denials) ->
    Configs = lists:sort([{Term, Config} || {config, #{term := Term} = Config} <- Denials, Term > maps:get(term, Spec, 0)]),
    case {[Word || Word <- [deleted, newer], lists:member(Word, Denials)], [Node || {held, Node} <- Denials, Node =/= nobody], [Fence || {fenced, Fence} <- Denials]} of
        {_, _, _} when Configs =/= [] -> {config, element(2, lists:last(Configs))};
        {[Word | _], [], _} -> Word;
        {_, _, Fences} ->
            case lists:member(stale, Denials) of
                true -> stale;
                false when Fences =/= [] -> {fenced, lists:max(Fences)};
                false -> refused
            end
    end.

flush(Asked) -> receive {Alias, _} when is_map_key(Alias, Asked) -> flush(Asked) after 0 -> ok end.

%% @doc Releases the promises.
-spec release(spec(), node()) -> ok.
release(#{name := Name} = Spec, Holder) ->
    abcast = gen_server:abcast(placement_voter:asked(Spec), ?SERVER, {release, Name, Holder}),
    ok.

%% @doc Hands the promises over to another node, which asks next. Until it does, no other node can get them.
-spec pass(spec(), Holder :: node(), Next :: node()) -> ok.
pass(#{name := Name} = Spec, Holder, Next) ->
    abcast = gen_server:abcast(placement_voter:asked(Spec), ?SERVER, {pass, Name, Holder, Next}),
    ok.

%% @private
-spec init(integer()) -> {ok, #state{}}.
init(Made) ->
    _ = process_flag(trap_exit, true),
    ok = later(tick, ?TICK_MS),
    ok = later(forget, ?FORGET_MS),
    ok = net_kernel:monitor_nodes(true, #{node_type => all}),
    %% Children known before this server was restarted, and those that run elsewhere.
    Known = ets:select(?CHILDREN, [{{'$1', '$2', '_'}, [{is_map, '$2'}], ['$1']}]),
    Names = [{Spec, Pid} || {_, Pid, Spec, _} <- ets:tab2list(?NAMES), is_pid(Pid)],
    true = ets:delete_all_objects(?NAMES),
    true = ets:delete_all_objects(?COUNTS),
    true = ets:delete_all_objects(?KEPT),
    true = ets:delete_all_objects(?PEERS),
    abcast = gen_server:abcast(nodes(connected), ?SERVER, {here, node(), new}),
    {ok, lists:foldl(fun({Spec, Pid}, State) -> named(Spec, Pid, State) end, lists:foldl(fun noted/2, #state{made = Made}, Known), Names)}.

%% A keeper has announced its child. Messages may arrive out of order, so an older one is ignored.
named(#{name := Name} = Spec, Pid, State) ->
    ok = changed(Name, fun(Row) -> placement_voter:told(Spec, Row) end),
    case ets:lookup(?NAMES, Name) of
        [{_, _, Newer, _}] when map_get(fence, Newer) > map_get(fence, Spec) -> State;
        [{_, Pid, _, Monitor}] ->
            true = ets:insert(?NAMES, {Name, Pid, Spec, Monitor}),
            State;
        Before ->
            After = lists:foldl(fun ends/2, State, Before),
            Monitor = monitor(process, Pid),
            true = ets:insert(?NAMES, {Name, Pid, Spec, Monitor}),
            ok = counted(Spec, Pid, 1),
            #state{named = Named} = After,
            After#state{named = Named#{Monitor => Name}}
    end.

%% The row no longer describes the process with this name.
ends({_, none, _, _}, State) -> State;
ends({_, Pid, Spec, Monitor}, #state{named = Named} = State) ->
    true = demonitor(Monitor, [flush]),
    ok = counted(Spec, Pid, -1),
    State#state{named = maps:remove(Monitor, Named)}.

counted(#{scope := {Scope, _, _, _}}, Pid, More) ->
    _ = ets:update_counter(?COUNTS, {Scope, node(Pid)}, More, {{Scope, node(Pid)}, 0}),
    ok;
counted(_, _, _) -> ok.

row(Name) ->
    case ets:lookup(?CHILDREN, Name) of
        [{_, Spec, Promise}] -> {Spec, Promise};
        [] -> none
    end.

changed(Name, Fun) ->
    Row = row(Name),
    case Fun(Row) of
        Row -> ok;
        {Spec, Promise} -> true = ets:insert(?CHILDREN, {Name, Spec, Promise}), ok
    end.

%% Does the same for functions that also return an answer.
answered(Name, Fun) ->
    Row = row(Name),
    case Fun(Row) of
        {Answer, Row} -> Answer;
        {Answer, {Spec, Promise}} -> true = ets:insert(?CHILDREN, {Name, Spec, Promise}), Answer
    end.

%% Must be called after each change of a child's row.
noted(Name, #state{due = Due} = State) ->
    case ets:lookup(?CHILDREN, Name) of
        [{_, #{}, {_, _, Until}}] -> State#state{due = placement_due:at(Name, Until, Due)};
        _ -> State
    end.

later(Message, Ms) ->
    _ = erlang:send_after(Ms, self(), Message),
    ok.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({put, #{name := Name} = Spec}, _, #state{made = Made} = State) ->
    Answer = answered(Name, fun(Row) -> placement_voter:put(Spec, {Row, whereis_name(Name)}, now_ms(), Made) end),
    {reply, Answer, noted(Name, State)};
handle_call({look, Name}, _, State) ->
    Config = case known_as(row(Name), ets:lookup(?NAMES, Name)) of
                 {Spec, _, _} -> placement_voter:config(Spec);
                 _ -> none
             end,
    {reply, {known, whereis_name(Name), Config}, State};
handle_call({delete, Name, Version}, _, State) ->
    case row(Name) of
        %% This voter has been replaced.
        {#{term := _} = Spec, _} -> {reply, case lists:member(node(), placement_voter:asked(Spec)) of true -> deleted(Name, Version, State); false -> {config, placement_voter:config(Spec)} end, State};
        _ -> {reply, deleted(Name, Version, State), State}
    end;
handle_call(Other, _, State) ->
    {reply, {error, {unknown_request, Other}}, State}.

-spec deleted(name(), version(), #state{}) -> ok | {newer, spec()}.
deleted(Name, Version, #state{kept = Kept}) ->
    case answered(Name, fun(Row) -> placement_voter:delete(Version, Row, now_ms()) end) of
        ok ->
            _ = [Keeper ! {?MODULE, delete} || {ok, Keeper} <- [maps:find(Name, Kept)]],
            ok;
        Other -> Other
    end.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({ask, Alias, #{name := Name} = Spec, Holder, Pid}, #state{made = Made} = State) ->
    Late = case Spec of
               #{late := SentMs} -> Spec#{late := max(0, erlang:system_time(millisecond) - SentMs)};
               #{} -> Spec
           end,
    Alias ! {Alias, answered(Name, fun(Row) -> placement_voter:ask(Late, {Holder, Pid}, Row, now_ms(), Made) end)},
    {noreply, noted(Name, State)};
handle_cast({delete, Name, Version}, State) ->
    _ = deleted(Name, Version, State),
    {noreply, State};
handle_cast({withdraw, Name, Given}, State) ->
    ok = changed(Name, fun(Row) -> placement_voter:withdraw(Given, Row) end),
    {noreply, State};
handle_cast({release, Name, Holder}, State) ->
    ok = changed(Name, fun(Row) -> placement_voter:release(Holder, Row, now_ms()) end),
    {noreply, noted(Name, State)};
handle_cast({pass, Name, Holder, Next}, State) ->
    ok = changed(Name, fun(Row) -> placement_voter:pass(Holder, Next, Row) end),
    {noreply, State};
handle_cast({named, Spec, Pid}, State) -> {noreply, named(Spec, Pid, State)};
handle_cast({forget, Name, Version}, State) ->
    case ets:lookup(?NAMES, Name) of
        [{_, _, #{version := Known}, _} = Row] when Known =< Version ->
            true = ets:delete(?NAMES, Name),
            {noreply, ends(Row, State)};
        _ -> {noreply, State}
    end;
%% A node or its server has started. It gets an answer if it may not know yet that placement runs on this node.
handle_cast({here, Node, Is}, State) when is_atom(Node) ->
    true = ets:insert(?PEERS, {Node}),
    _ = [gen_server:cast({?SERVER, Node}, {here, node(), old}) || Is =:= new],
    ok = tell(Node),
    {noreply, State};
%% Another node's chooser, or this one's, has chosen this node.
handle_cast({try_start, #{name := Name} = Spec, Given}, #state{keepers = Keepers, kept = Kept} = State) ->
    Keeper = maps:get(Name, Kept, none),
    case is_pid(Keeper) andalso is_process_alive(Keeper) of
        false ->
            New = placement_child_keeper:start_link(Spec, Given),
            {noreply, State#state{keepers = Keepers#{New => Name}, kept = Kept#{Name => New}}};
        true ->
            ok = placement_child_keeper:give(Keeper, Spec, Given),
            {noreply, State}
    end;
%% The child runs elsewhere now. It may return to this node while the old process is still here to forward messages.
handle_cast({moved, Keeper}, State) -> {noreply, without(Keeper, State)};
handle_cast(_, State) -> {noreply, State}.

tell(Node) ->
    _ = [gen_server:cast({?SERVER, Node}, {named, Spec, Pid}) || {Spec, _, Pid} <- kept(), lists:member(Node, candidates(Spec)) orelse lists:member(Node, placement_voter:asked(Spec))],
    %% The node may have been away when a child was deleted.
    _ = [gen_server:cast({?SERVER, Node}, {forget, Name, Version}) || [Name, Version] <- ets:select(?CHILDREN, [{{'$1', {deleted, '$2'}, '_'}, [], [['$1', '$2']]}])],
    ok.

without(Keeper, #state{keepers = Keepers, kept = Kept} = State) ->
    _ = [keeps_no_more(Name, Keeper) || {ok, Name} <- [maps:find(Keeper, Keepers)]],
    case maps:take(Keeper, Keepers) of
        {Name, Others} when map_get(Name, Kept) =:= Keeper -> State#state{keepers = Others, kept = maps:remove(Name, Kept)};
        {_, Others} -> State#state{keepers = Others};
        error -> State
    end.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(forget, State) ->
    ok = later(forget, ?FORGET_MS),
    Until = now_ms() - ?REMEMBERED_MS,
    _ = ets:select_delete(?CHILDREN, [{{'_', Gone, {'_', '_', '$1'}}, [{'<', '$1', Until}], [true]} || Gone <- [{deleted, '_'}, unknown]]),
    _ = ets:select_delete(?NAMES, [{{'_', none, '_', '$1'}, [{'<', '$1', Until}], [true]}]),
    {noreply, State};
handle_info(tick, #state{due = Due} = State) ->
    ok = later(tick, ?TICK_MS),
    Now = now_ms(),
    {Names, Left} = placement_due:pop(Now, Due),
    {noreply, lists:foldl(fun(Name, Before) -> looked_at(Name, Now, Before) end, State#state{due = Left}, Names)};
handle_info({'EXIT', Keeper, _}, State) -> {noreply, without(Keeper, State)};
handle_info({nodeup, Node, _}, State) ->
    ok = gen_server:cast({?SERVER, Node}, {here, node(), old}),
    {noreply, State};
handle_info({nodedown, Node, _}, State) ->
    true = ets:delete(?PEERS, Node),
    {noreply, State};
handle_info({'DOWN', Monitor, process, _, _}, #state{named = Named} = State) when is_map_key(Monitor, Named) ->
    #{Monitor := Name} = Named,
    [{_, _, Spec, Monitor} = Row] = ets:lookup(?NAMES, Name),
    true = ets:insert(?NAMES, {Name, none, Spec, now_ms()}),
    {noreply, ends(Row, State)};
handle_info({'DOWN', Monitor, process, _, _}, #state{choosers = Choosers, choosing = Choosing} = State) ->
    {{Name, Pause}, Others} = maps:take(Monitor, Choosers),
    {noreply, State#state{choosers = Others, choosing = Choosing#{Name := now_ms() + Pause}}};
handle_info(_, State) -> {noreply, State}.

looked_at(Name, Now, State) ->
    #state{due = Due} = Rested = rested(Name, Now, State),
    case ets:lookup(?CHILDREN, Name) of
        [{_, #{}, {_, _, Until}}] when Until > Now -> Rested#state{due = placement_due:at(Name, Until, Due)};
        [{_, #{} = Spec, {Holder, Pid, Until}}] -> chosen(Spec, Now - Until, Holder, Pid, Rested#state{due = placement_due:at(Name, Now + ?TICK_MS, Due)});
        _ -> Rested
    end.

rested(Name, Now, #state{choosing = Choosing} = State) ->
    case Choosing of
        #{Name := Until} when is_integer(Until), Until =< Now -> State#state{choosing = maps:remove(Name, Choosing)};
        #{} -> State
    end.

%% Each voter runs at most one chooser per name, and the next voter takes over after half a grace time. It is harmless if
%% two nodes choose at the same time, because both chosen nodes must ask the same voters.
chosen(#{name := Name, grace := Grace} = Spec, SinceMs, Holder, Pid, #state{choosers = Choosers, choosing = Choosing, kept = Kept} = State) ->
    Here = [node() | nodes(connected)],
    Connected = [Node || Node <- placement_voter:asked(Spec), lists:member(Node, Here)],
    Before = length(lists:takewhile(fun(Node) -> Node =/= node() end, Connected)),
    case placement_voter:is_majority(Spec, Connected) andalso SinceMs >= Before * (Grace div 2) + for_the_giver(Holder, Pid, Grace)
         andalso not is_map_key(Name, Choosing) andalso not is_map_key(Name, Kept) andalso map_size(Choosers) < ?CHOOSERS_MAX andalso lists:member(node(), Connected) of
        true ->
            Candidates = [Node || Node <- candidates(Spec), lists:member(Node, Here)],
            {_, Monitor} = spawn_monitor(fun() -> choose(Spec, Candidates) end),
            %% The pause gives the chosen node time to ask the voters; without it, this voter would choose again too early.
            %% It grows with the voter's position, so that not all voters keep trying when no node suits.
            State#state{choosers = Choosers#{Monitor => {Name, min(Grace div 4, 1000) * (Before + 1)}}, choosing = Choosing#{Name => Monitor}};
        false -> State
    end.

%% If a child was being moved and its new node is gone, the node that tried to hand it over still has its state, so that
%% node gets more time.
for_the_giver(Holder, Pid, Grace) when is_pid(Pid), Holder =/= nobody, node(Pid) =/= Holder ->
    case lists:member(node(Pid), [node() | nodes(connected)]) of
        true -> Grace;
        false -> 0
    end;
for_the_giver(_, _, _) -> 0.

choose(#{query := Query} = Spec, Candidates) ->
    case placement_choose:ranked(Candidates, {Query, 1}) of
        {ok, [Node | _], Plan} ->
            ok = placement_choose:placed([Node], Plan),
            gen_server:cast({?SERVER, Node}, {try_start, maps:remove(heard, Spec), none});
        {error, _} -> ok
    end.
