%% SPDX-License-Identifier: Apache-2.0
%% @doc Processes that exist once in the cluster: started where a query says, restarted elsewhere when their node goes or no longer fits.
%%
%% A child has a fixed set of nodes, its voters. Whoever runs it holds a lease of the majority of them ({@link placement_child_keeper}): a voter promises itself to one node
%% for the child's grace time, and to no other before that time is over. The holder asks anew four times in the grace time, and kills the child, with the
%% processes below it, when 95 % of the grace time are over. So at no time do two nodes run it, unless their clocks differ in speed by more than that allows: under a partition
%% only a side with more than half of the voters runs it. A
%% voter that has lost its memory, since its node was restarted, promises nothing for a grace time.
%%
%% Each lease has a fencing number, which rises with every new holder. Voters refuse a question with a lower number than they have granted, so a node that comes back late
%% cannot renew an old lease. The number of the last holder that really ran the child (`live') tells a node that tried to give the child away whether it may go on with it.
%%
%% This server is the voter, and chooses the next node when nobody holds the lease: of the voters that are connected the first by name does it, or the next
%% one if that hangs or has not heard of the child.
%%
%% The table belongs to {@link placement_sup}, so promises survive this server. Its end ends the keepers, and with them their children.
-module(placement_child).
-behaviour(gen_server).

-export([start_link/1, start/3, delete/1, whereis_name/1, children/0, fence/1, kept/0, numbered/1, ask/3, release/2, pass/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([name/0, options/0, spec/0, answer/0]).

-type name() :: term().
-type options() :: #{name := name(), nodes => [node(), ...], grace => pos_integer()}.
-type spec() :: #{name := name(), query := placement_query:query(), call := {module(), atom(), [term()]}, nodes := [node(), ...], grace := pos_integer(),
                  version := {integer(), node()},
                  %% Of the lease; of the last holder that ran the child, which node that was, and whether that run is over: what has no such end has lost its state.
                  fence => integer(), live => integer(), at => node(), over => integer(),
                  %% In a question: of the holder that asks to go on with a child that it tried to give away; who has given the child to the one that asks.
                  base => integer(), passed => {node(), integer()}}.
-type answer() :: granted | {granted, Gone :: node()} | {held, node() | nobody} | newer | deleted | stale | {fenced, integer()}.

-define(SERVER, ?MODULE).
%% {name(), spec() | {deleted, Version} | unknown, {Holder :: node() | nobody, pid() | none, UntilMs}}
-define(CHILDREN, placement_children).
-define(TICK_MS, 100).
-define(CALL_MS, 5000).
-define(GRACE_MS, 5000).
-define(REMEMBERED_MS, 3600000).
-define(FORGET_MS, 5000).
%% What changes while a child runs.
-define(NUMBERS, [fence, live, at, over]).

%% `made': ms since when the table remembers.
-record(state, {made :: integer(), keepers = #{} :: #{pid() => name()}, kept = #{} :: #{name() => pid()},
                choosers = #{} :: #{reference() => name()}, choosing = #{} :: #{name() => reference()}}).

%% @doc Starts the server; `MadeMs' is when its table was made.
-spec start_link(MadeMs :: integer()) -> {ok, pid()} | {error, term()}.
start_link(MadeMs) -> gen_server:start_link({local, ?SERVER}, ?MODULE, MadeMs, []).

%% @doc Tells the voters of a child; returns when it runs.
-spec start(placement_query:query(), {module(), atom(), [term()]}, options()) ->
          {ok, pid()} | {error, {bad_option, atom(), term()} | {bad_query, string()} | {exists, pid()} | no_majority | not_started}.
start(Query, {Module, Function, Arguments} = Call, Options) when is_atom(Module), is_atom(Function), is_list(Arguments) ->
    Full = maps:merge(#{nodes => [node() | nodes()], grace => ?GRACE_MS}, Options),
    case {[{Key, Value} || {Key, Value} <- maps:to_list(Full), not is_option(Key, Value)], placement_query:compile(Query)} of
        {[], {ok, _}} when is_map_key(name, Full) ->
            Nodes = lists:usort(maps:get(nodes, Full)),
            told(Full#{query => Query, call => Call, nodes => Nodes, version => {max(erlang:system_time(), known(maps:get(name, Full)) + 1), node()}});
        {[], {error, Text}} -> {error, {bad_query, unicode:characters_to_list(Text)}};
        {[], _} -> {error, {bad_option, name, missing}};
        {[{Key, Value} | _], _} -> {error, {bad_option, Key, Value}}
    end.

is_option(name, _) -> true;
is_option(nodes, [_ | _] = Nodes) -> lists:all(fun is_atom/1, Nodes);
is_option(grace, Ms) -> is_integer(Ms) andalso Ms >= 400 andalso Ms =< 600000;
is_option(_, _) -> false.

%% What this node knows of the name is older, whatever the clocks of other nodes say.
known(Name) ->
    case ets:whereis(?CHILDREN) =/= undefined andalso ets:lookup(?CHILDREN, Name) of
        [{_, #{version := {Time, _}} = Spec, _}] -> max(Time, maps:get(fence, Spec, 0));
        [{_, {deleted, {Time, _}}, _}] -> Time;
        _ -> 0
    end.

told(#{name := Name, nodes := Nodes, grace := Grace} = Spec) ->
    {Replies, _} = gen_server:multi_call(Nodes, ?SERVER, {put, Spec}, ?CALL_MS),
    case {[Pid || {_, {exists, Pid}} <- Replies], length([ok || {_, ok} <- Replies])} of
        {[Pid | _], _} -> withdrawn(Name, Spec, Nodes, {exists, Pid});
        {[], Told} when 2 * Told =< length(Nodes) -> withdrawn(Name, Spec, Nodes, no_majority);
        {[], _} -> running(Name, Nodes, erlang:monotonic_time(millisecond) + 2 * Grace + ?CALL_MS)
    end.

%% A call that fails is to have no effect: those that heard of it forget it.
withdrawn(Name, Given, Nodes, Reason) ->
    abcast = gen_server:abcast(Nodes, ?SERVER, {withdraw, Name, Given}),
    {error, Reason}.

running(Name, Nodes, End) ->
    Answers = erpc:multicall(Nodes, ?MODULE, whereis_name, [Name], ?CALL_MS),
    case {[Pid || {ok, Pid} <- Answers, is_pid(Pid)], erlang:monotonic_time(millisecond) < End} of
        {[Pid | _], _} -> {ok, Pid};
        {[], true} -> receive after ?TICK_MS -> running(Name, Nodes, End) end;
        {[], false} -> {error, not_started}
    end.

%% @doc Ends a child for good; at least the majority of its voters must hear of it. Called on a voter.
-spec delete(name()) -> ok | {error, no_such_child | no_majority}.
delete(Name) ->
    case ets:lookup(?CHILDREN, Name) of
        [{_, #{} = Spec, _}] -> ended(Spec);
        _ -> {error, no_such_child}
    end.

ended(#{name := Name, nodes := Nodes, version := Version}) ->
    {Replies, _} = gen_server:multi_call(Nodes, ?SERVER, {delete, Name, Version}, ?CALL_MS),
    case {[Spec || {_, {newer, Spec}} <- Replies], 2 * length(Replies) > length(Nodes)} of
        %% This voter has missed a call.
        {[Newer | _], _} -> ended(Newer);
        {[], true} -> ok;
        {[], false} -> withdrawn(Name, {deleted, Version}, Nodes, no_majority)
    end.

%% @doc The process of a child, as far as this voter knows; for `{via, placement, Name}'.
-spec whereis_name(name()) -> pid() | undefined.
whereis_name(Name) ->
    Now = now_ms(),
    case ets:lookup(?CHILDREN, Name) of
        [{_, #{}, {_, Pid, Until}}] when is_pid(Pid), Until > Now ->
            case node(Pid) =/= node() orelse is_process_alive(Pid) of
                true -> Pid;
                false -> undefined
            end;
        _ -> undefined
    end.

%% @doc The children of which this node is a voter.
-spec children() -> [{name(), node() | none, pid() | none}].
children() ->
    Now = now_ms(),
    [case Promise of
         {Holder, Pid, Until} when Until > Now, Holder =/= nobody -> {Name, Holder, Pid};
         _ -> {Name, none, none}
     end || {Name, #{}, Promise} <- lists:sort(ets:tab2list(?CHILDREN))].

%% @doc The fencing number of a child that runs on this node: it rises with every new holder of the lease.
-spec fence(name()) -> {ok, integer()} | none.
fence(Name) ->
    case ets:lookup(?CHILDREN, Name) of
        [{_, #{fence := Fence}, {Holder, _, _}}] when Holder =:= node() -> {ok, Fence};
        _ -> none
    end.

%% @doc The children that run on this node, with what keeps each.
-spec kept() -> [{spec(), Keeper :: pid()}].
kept() -> [{Spec, Keeper} || {Name, Keeper} <- gen_server:call(?SERVER, kept), {_, #{} = Spec, _} <- ets:lookup(?CHILDREN, Name)].

now_ms() -> erlang:monotonic_time(millisecond).

%% @doc Gives a new fencing number to whoever asks for a lease that is not its own yet.
-spec numbered(spec()) -> spec().
numbered(#{name := Name} = Spec) -> Spec#{fence => lists:max([erlang:system_time(), known(Name) + 1, maps:get(fence, Spec, 0) + 1])}.

%% @doc Asks all voters to promise themselves to this node, for at most `Ms'. The time before the question is when the lease begins. `fenced': another holder had a
%% higher number; `stale': another holder has run the child since.
-spec ask(spec(), pid() | none, Ms :: non_neg_integer()) -> {granted, SinceMs :: integer()} | refused | deleted | stale | {fenced, integer()}.
ask(#{name := Name, nodes := Nodes, version := Version} = Spec, Pid, Ms) ->
    Since = now_ms(),
    Alias = alias(),
    _ = [gen_server:cast({?SERVER, Node}, {ask, Alias, Spec, node(), Pid}) || Node <- Nodes],
    Got = gather(Alias, length(Nodes) div 2 + 1, length(Nodes), [], Since + Ms),
    _ = unalias(Alias),
    ok = flush(Alias),
    case Got of
        {granted, Gone} ->
            _ = [logger:warning("placement: child ~0tP starts on ~ts without its state: it was on ~ts, which is gone or cut off", [Name, 8, node(), hd(Gone)]) || Gone =/= []],
            {granted, Since};
        refused -> refused;
        stale -> stale;
        {fenced, _} -> Got;
        %% Its voters keep the older one: the newer one may be withdrawn.
        newer -> deleted;
        deleted ->
            %% Some voter has not heard of it, or nobody would ask.
            abcast = gen_server:abcast(Nodes, ?SERVER, {delete, Name, Version}),
            deleted
    end.

gather(_, 0, _, Others, _) -> {granted, [Node || {gone, Node} <- Others]};
gather(_, Needed, Open, Others, _) when Open < Needed -> denied(Others);
gather(Alias, Needed, Open, Others, End) ->
    receive
        {Alias, granted} -> gather(Alias, Needed - 1, Open - 1, Others, End);
        {Alias, {granted, Gone}} -> gather(Alias, Needed - 1, Open - 1, [{gone, Gone} | Others], End);
        {Alias, Denial} -> gather(Alias, Needed, Open - 1, [Denial | Others], End)
    after max(0, End - now_ms()) -> refused
    end.

%% A voter may have heard of a deletion, or of a new child, of which the majority has not: a node that holds the lease finds out by its own question.
denied(Denials) ->
    case {[Word || Word <- [deleted, newer], lists:member(Word, Denials)], [Node || {held, Node} <- Denials, Node =/= nobody], [Fence || {fenced, Fence} <- Denials]} of
        {[Word | _], [], _} -> Word;
        {_, _, Fences} ->
            case lists:member(stale, Denials) of
                true -> stale;
                false when Fences =/= [] -> {fenced, lists:max(Fences)};
                false -> refused
            end
    end.

flush(Alias) -> receive {Alias, _} -> flush(Alias) after 0 -> ok end.

%% @doc Gives the promises back.
-spec release(spec(), node()) -> ok.
release(#{nodes := Nodes, name := Name}, Holder) ->
    abcast = gen_server:abcast(Nodes, ?SERVER, {release, Name, Holder}),
    ok.

%% @doc Hands the promises on to another node, which asks next: until it does, nobody else can get them.
-spec pass(spec(), Holder :: node(), Next :: node()) -> ok.
pass(#{nodes := Nodes, name := Name}, Holder, Next) ->
    abcast = gen_server:abcast(Nodes, ?SERVER, {pass, Name, Holder, Next}),
    ok.

%% @private
-spec init(integer()) -> {ok, #state{}}.
init(Made) ->
    _ = process_flag(trap_exit, true),
    ok = later(tick, ?TICK_MS),
    ok = later(forget, ?FORGET_MS),
    {ok, #state{made = Made}}.

later(Message, Ms) ->
    _ = erlang:send_after(Ms, self(), Message),
    ok.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({put, #{name := Name, grace := Grace, version := Version} = Spec}, _, #state{made = Made} = State) ->
    case {whereis_name(Name), ets:lookup(?CHILDREN, Name)} of
        {Pid, _} when is_pid(Pid) -> {reply, {exists, Pid}, State};
        %% Of two calls at once the later one holds, in whatever order a voter hears of them.
        {undefined, [{_, #{version := Newer}, _}]} when Newer > Version -> {reply, ok, State};
        _ ->
            %% It may have promised itself to another before its table was made.
            true = ets:insert(?CHILDREN, {Name, over(maps:merge(Spec, numbers(Name))), promise(Name, max(now_ms(), Made + Grace))}),
            {reply, ok, State}
    end;
handle_call(kept, _, #state{kept = Kept} = State) ->
    {reply, maps:to_list(Kept), State};
handle_call({delete, Name, Version}, _, State) ->
    {reply, deleted(Name, Version, State), State};
handle_call(Other, _, State) ->
    {reply, {error, {unknown_request, Other}}, State}.

-spec deleted(name(), {integer(), node()}, #state{}) -> ok | {newer, spec()}.
deleted(Name, Version, #state{kept = Kept}) ->
    case ets:lookup(?CHILDREN, Name) of
        [{_, #{version := Newer} = Spec, _}] when Newer > Version -> {newer, Spec};
        [{_, {deleted, Newer}, _}] when Newer >= Version -> ok;
        _ ->
            true = ets:insert(?CHILDREN, {Name, {deleted, Version}, promise(Name, now_ms())}),
            case Kept of
                #{Name := Keeper} -> Keeper ! {?MODULE, delete}, ok;
                #{} -> ok
            end
    end.

numbers(Name) ->
    case ets:lookup(?CHILDREN, Name) of
        [{_, #{} = Spec, _}] -> maps:with(?NUMBERS, Spec);
        _ -> #{}
    end.

%% What this voter has promised for the old child binds the new one. The old process has no name any more, but may still run.
promise(Name, Otherwise) ->
    Now = now_ms(),
    case ets:lookup(?CHILDREN, Name) of
        [{_, _, {Holder, _, Until}}] when Until > Now -> {Holder, none, Until};
        _ -> {nobody, none, Otherwise}
    end.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({ask, Alias, Spec, Holder, Pid}, State) ->
    Alias ! {Alias, answer(Spec, Holder, Pid)},
    {noreply, State};
handle_cast({delete, Name, Version}, State) ->
    _ = deleted(Name, Version, State),
    {noreply, State};
%% It learns from the next holder what the majority knows.
handle_cast({withdraw, Name, Given}, State) ->
    case ets:lookup(?CHILDREN, Name) of
        [{_, Known, Promise}] ->
            case is_same_call(Known, Given) of
                true -> true = ets:insert(?CHILDREN, {Name, unknown, Promise});
                false -> ok
            end;
        _ -> ok
    end,
    {noreply, State};
handle_cast({release, Name, Holder}, State) ->
    case ets:lookup(?CHILDREN, Name) of
        [{_, Spec, {Holder, _, _}}] -> true = ets:insert(?CHILDREN, {Name, over(Spec, Holder), {nobody, none, now_ms()}});
        _ -> ok
    end,
    {noreply, State};
handle_cast({pass, Name, Holder, Next}, State) ->
    case ets:lookup(?CHILDREN, Name) of
        [{_, Spec, {Holder, _, Until}}] -> true = ets:insert(?CHILDREN, {Name, over(Spec, Holder), {Next, none, Until}});
        _ -> ok
    end,
    {noreply, State};
%% Somebody chose this node.
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
%% What it kept runs elsewhere: the name may come back while the process that forwards is still here.
handle_cast({moved, Keeper}, State) -> {noreply, without(Keeper, State)};
handle_cast(_, State) -> {noreply, State}.

%% The numbers change while it runs.
is_same_call(#{} = Known, #{} = Given) -> maps:without(?NUMBERS, Known) =:= maps:without(?NUMBERS, Given);
is_same_call(Known, Given) -> Known =:= Given.

without(Keeper, #state{keepers = Keepers, kept = Kept} = State) ->
    case maps:take(Keeper, Keepers) of
        {Name, Others} when map_get(Name, Kept) =:= Keeper -> State#state{keepers = Others, kept = maps:remove(Name, Kept)};
        {_, Others} -> State#state{keepers = Others};
        error -> State
    end.

-spec answer(spec(), node(), pid() | none) -> answer().
answer(#{name := Name, grace := Grace, version := Version} = Spec, Holder, Pid) ->
    Now = now_ms(),
    case ets:lookup(?CHILDREN, Name) of
        [{_, {deleted, Deleted}, _}] when Deleted >= Version -> deleted;
        [{_, #{version := Newer}, _}] when Newer > Version -> newer;
        %% A node that runs an older release of placement asks without a number.
        [{_, #{fence := Known}, _}] when Known > map_get(fence, Spec) -> {fenced, Known};
        [{_, #{live := Live}, _}] when Live > map_get(base, Spec) -> stale;
        [{_, #{fence := Known}, {Other, _, Until}}] when Until > Now, map_get(passed, Spec) =:= {Other, Known} -> granted(Spec, Holder, Pid, Now + Grace);
        [{_, _, {Other, _, Until}}] when Other =/= Holder, Until > Now, Other =/= nobody orelse Pid =:= none -> {held, Other};
        %% This node may have promised itself to another before it was restarted. But whoever runs the child has the promise of a majority that knows.
        [] when Pid =:= none ->
            true = ets:insert(?CHILDREN, {Name, Spec, {nobody, none, Now + Grace}}),
            {held, nobody};
        _ -> granted(Spec, Holder, Pid, Now + Grace)
    end.

granted(#{name := Name} = Spec, Holder, Pid, Until) ->
    Row = ets:lookup(?CHILDREN, Name),
    true = ets:insert(?CHILDREN, {Name, maps:without([base, passed], known_live(Spec, Row)), {Holder, named(Pid, Holder, Spec, Row), Until}}),
    case Row of
        %% That holder had no time to say so. Nodes of an older release ask without a number, and do not know this answer.
        [{_, #{live := Live, at := Gone} = Known, _}] when Pid =:= none, is_map_key(fence, Spec), not is_map_key(passed, Spec) ->
            case maps:get(over, Known, 0) < Live andalso maps:get(live, Spec, none) =/= maps:get(fence, Spec) of
                true -> {granted, Gone};
                false -> granted
            end;
        _ -> granted
    end.

known_live(Spec, [{_, #{live := Live} = Known, _}]) ->
    case maps:get(live, Spec, 0) >= Live of
        true -> Spec;
        false -> maps:merge(Spec, maps:with([live, at, over], Known))
    end;
known_live(Spec, _) -> Spec.

%% A run of the child has ended in order, by a holder that says so.
over(#{at := Holder} = Spec, Holder) -> over(Spec);
over(Spec, _) -> Spec.

over(#{live := Live} = Spec) -> Spec#{over => Live};
over(Spec) -> Spec.

%% While a child moves, the process that it had keeps the name.
named(none, Holder, Spec, [{_, _, {Other, Old, _}}]) ->
    case Other =:= Holder orelse element(1, maps:get(passed, Spec, {none, 0})) =:= Other of
        true -> Old;
        false -> none
    end;
named(Pid, _, _, _) -> Pid.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(forget, State) ->
    ok = later(forget, ?FORGET_MS),
    Until = now_ms() - ?REMEMBERED_MS,
    _ = ets:select_delete(?CHILDREN, [{{'_', Gone, {'_', '_', '$1'}}, [{'<', '$1', Until}], [true]} || Gone <- [{deleted, '_'}, unknown]]),
    {noreply, State};
handle_info(tick, State) ->
    ok = later(tick, ?TICK_MS),
    Now = now_ms(),
    Free = ets:select(?CHILDREN, [{{'_', '$1', {'$3', '$4', '$2'}}, [{is_map, '$1'}, {'=<', '$2', Now}], [{{'$1', {'-', Now, '$2'}, '$3', '$4'}}]}]),
    {noreply, lists:foldl(fun chosen/2, State, Free)};
handle_info({'EXIT', Keeper, _}, State) -> {noreply, without(Keeper, State)};
handle_info({'DOWN', Monitor, process, _, _}, #state{choosers = Choosers, choosing = Choosing} = State) ->
    {Name, Others} = maps:take(Monitor, Choosers),
    {noreply, State#state{choosers = Others, choosing = maps:remove(Name, Choosing)}};
handle_info(_, State) -> {noreply, State}.

%% One chooser for a name at a time; the turn goes on each half of a grace time. Two nodes that choose at once ask the same voters.
chosen({#{name := Name, nodes := Nodes, grace := Grace} = Spec, SinceMs, Holder, Pid}, #state{choosers = Choosers, choosing = Choosing, kept = Kept} = State) ->
    Connected = [Node || Node <- Nodes, lists:member(Node, [node() | nodes(connected)])],
    Before = length(lists:takewhile(fun(Node) -> Node =/= node() end, Connected)),
    case 2 * length(Connected) > length(Nodes) andalso SinceMs >= Before * (Grace div 2) + for_the_giver(Holder, Pid, Grace)
         andalso not is_map_key(Name, Choosing) andalso not is_map_key(Name, Kept) of
        true ->
            {_, Monitor} = spawn_monitor(fun() -> choose(Spec, Connected, Before) end),
            State#state{choosers = Choosers#{Monitor => Name}, choosing = Choosing#{Name => Monitor}};
        false -> State
    end.

%% A child was to move, and the node that was to get it is gone. The node that gave it has its state still.
for_the_giver(Holder, Pid, Grace) when is_pid(Pid), Holder =/= nobody, node(Pid) =/= Holder ->
    case lists:member(node(Pid), [node() | nodes(connected)]) of
        true -> Grace;
        false -> 0
    end;
for_the_giver(_, _, _) -> 0.

choose(#{query := Query, grace := Grace} = Spec, Connected, Before) ->
    case placement_choose:ranked(Connected, {Query, 1}) of
        {ok, [Node | _], Plan} ->
            ok = placement_choose:placed([Node], Plan),
            gen_server:cast({?SERVER, Node}, {try_start, Spec, none});
        {error, _} -> ok
    end,
    %% Time for the answer: another look before would choose once more. If no node suits, many voters are not to look for one all the time.
    receive after min(Grace div 4, 1000) * (Before + 1) -> ok end.
