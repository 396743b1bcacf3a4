%% SPDX-License-Identifier: Apache-2.0
%% @doc Leases: each node itself decides which processes it accepts, so that callers that choose the same node at the
%% same moment do not all start a process there.
%%
%% The target node grants a lease after it has checked the predicate again with its own attributes, and has checked that
%% it has enough capacity for the claims. With a claim `#{slots => 1}', for example, all leases together may claim at
%% most the value of the attribute `slots'. A lease ends after its time to live (5 s), when its holder exits, or when it
%% is released. A lease that was handed over to a process on the target node lasts as long as that process. The attribute
%% `leases' is the number of leases. A node with taints refuses a lease unless the predicate tolerates them (`{tolerates,
%% Taints}').
%%
%% Checks run in separate processes, at most 1000 at once. If another lease is granted during a check, the values that
%% the check used may be outdated. If the predicate uses attributes that a function computes, it is then checked again,
%% one request at a time. The table belongs to {@link placement_sup}, so leases survive if this server crashes.
-module(placement_lease).
-behaviour(gen_server).

-export([start_link/0, reserve/4, reserve_all/3, bad_claim/1, release/1, renew/2, hand_over/2, count/0, list/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([lease/0, claims/0, refusal/0, bad_claim/0]).

-opaque lease() :: {placement_lease, node(), reference()}.
-type claims() :: #{placement_entry:name() => number()}.
%% How much of each attribute's value a lease claims.
-type bad_claim() :: {bad_claim, Name :: term(), Amount :: term()}.
-type refusal() :: {predicate, placement_pred:predicate(), false | unknown} | {capacity, placement_entry:name(), Free :: number() | unknown} | too_many_requests.
%% `predicate' names the part of the predicate that is not true on the node, and `capacity' the attribute of which too
%% little is free. `too_many_requests' means that the node is already checking 1000 requests.

-define(SERVER, ?MODULE).
-define(LEASES, placement_leases). %% {Reference, Holder :: pid(), claims(), EndMs | attached}
-define(CHECKS_MAX, 1000).
%% The VM limits timers to several centuries.
-define(TTL_MAX_MS, (1 bsl 40)).

-record(request, {from :: gen_server:from(), holder :: pid(), claims :: claims(), require :: [placement_pred:predicate()], ttl :: pos_integer()}).
-record(state, {checks = #{} :: #{reference() => {#request{}, Granted :: non_neg_integer()}},  %% with the number of leases granted before the check began
                again = queue:new() :: queue:queue(#request{}),
                checking_again = none :: none | reference(),
                granted = 0 :: non_neg_integer(),
                monitors = #{} :: #{reference() => reference()},   %% lease to monitor
                taken = #{} :: #{placement_entry:name() => taken()}}).

%% The claims of all leases on an attribute: the number of leases, the sum of the integer claims, and the number of leases
%% that claim a float. Sums of floats depend on the order of the additions, so they are recomputed each time.
-type taken() :: {Leases :: pos_integer(), Sum :: integer(), Floats :: non_neg_integer()}.

%% @doc Starts the server.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?SERVER}, ?MODULE, [], []).

%% @doc Requests a lease from a node, for the calling process. `Require' must be true on the node. Options: `ttl' (ms,
%% 5000), `timeout' (ms, {@link placement_config:deadline_ms/0}).
-spec reserve(node(), claims(), Require :: [placement_pred:predicate()], #{ttl => pos_integer(), timeout => pos_integer()}) ->
          {ok, lease()} | {error, bad_claim() | {refused, refusal()} | nodedown | no_server | timeout}.
reserve(Node, Claims, Require, Options) ->
    case reserve_all([{Node, Claims}], Require, Options) of
        {ok, [Lease]} -> {ok, Lease};
        {error, [{Node, Reason}]} -> {error, Reason};
        {error, {bad_claim, _, _}} = Error -> Error
    end.

%% @doc Requests leases from several nodes in parallel for the calling process, and gets either all of them or none.
-spec reserve_all([{node(), claims()}], Require :: [placement_pred:predicate()], #{ttl => pos_integer(), timeout => pos_integer()}) ->
          {ok, [lease()]} | {error, bad_claim() | [{node(), bad_claim() | {refused, refusal()} | nodedown | no_server | timeout}]}.
reserve_all(Wanted, Require, Options) ->
    case [Bad || {_, Claims} <- Wanted, Bad <- [bad_claim(Claims)], Bad =/= none] of
        [] ->
            Answers = asked(Wanted, Require, Options),
            Leases = [Lease || {_, {ok, Lease}} <- Answers],
            case [{Node, Reason} || {Node, {error, Reason}} <- Answers] of
                [] -> {ok, Leases};
                Refused ->
                    ok = lists:foreach(fun release/1, Leases),
                    {error, Refused}
            end;
        [Bad | _] -> {error, Bad}
    end.

%% @doc Returns the first claim whose name or amount is not valid.
-spec bad_claim(#{term() => term()}) -> none | bad_claim().
bad_claim(Claims) -> hd([{bad_claim, Name, Amount} || {Name, Amount} <- maps:to_list(Claims), not is_claim(Name, Amount)] ++ [none]).

%% A negative claim would allow others to claim more than is available.
is_claim(Name, Amount) -> is_atom(Name) andalso is_number(Amount) andalso Amount >= 0.

asked(Wanted, Require, Options) ->
    Ttl = maps:get(ttl, Options, 5000),
    End = erlang:monotonic_time(millisecond) + maps:get(timeout, Options, placement_config:deadline_ms()),
    Caller = self(),
    Asking = [begin
                  Alias = alias(),
                  {Node, Alias, spawn(fun() -> asking(Caller, Alias, Node, {reserve, Caller, Claims, Require, Ttl}) end)}
              end || {Node, Claims} <- Wanted],
    [{Node, answered(Alias, Asker, max(0, End - erlang:monotonic_time(millisecond)))} || {Node, Alias, Asker} <- Asking].

%% Another process makes the request, because the node may grant the lease after the caller's timeout. That process then
%% releases the lease immediately, so that the lease does not keep its claims for its whole time to live. The request
%% monitors the server, so the process does not outlive the connection to it.
asking(Caller, Alias, Node, Request) ->
    Answer = case answer(gen_server:receive_response(gen_server:send_request({?SERVER, Node}, Request), infinity)) of
                 {ok, Reference} -> {ok, {placement_lease, Node, Reference}};
                 Error -> Error
             end,
    Monitor = monitor(process, Caller),
    Alias ! {Alias, Answer},
    receive
        taken -> ok;
        late -> _ = [release(Lease) || {ok, Lease} <- [Answer]];
        %% The lease ends when its holder exits, so there is nothing to release.
        {'DOWN', Monitor, process, Caller, _} -> ok
    end.

answered(Alias, Asker, Ms) ->
    receive
        {Alias, Answer} ->
            _ = unalias(Alias),
            Asker ! taken,
            Answer
    after Ms ->
        _ = unalias(Alias),
        receive {Alias, _} -> ok after 0 -> ok end,
        Asker ! late,
        {error, timeout}
    end.

answer({reply, Reply}) -> Reply;
answer({error, {noconnection, _}}) -> {error, nodedown};
answer({error, _}) -> {error, no_server}.

%% @doc Releases a lease. It is not an error if the lease has already ended.
-spec release(lease()) -> ok.
release({placement_lease, Node, Reference}) -> gen_server:cast({?SERVER, Node}, {release, Reference}).

%% @doc Makes a lease expire this many milliseconds from now, unless it was handed over to a process.
-spec renew(lease(), TtlMs :: pos_integer()) -> ok | {error, ended | nodedown | no_server | timeout}.
renew({placement_lease, Node, Reference}, TtlMs) -> call(Node, {renew, Reference, TtlMs}, placement_config:deadline_ms()).

%% @doc Hands a lease over to a process on the target node. The lease ends when the process does.
-spec hand_over(lease(), pid()) -> ok | {error, ended | nodedown | no_server | timeout}.
hand_over({placement_lease, Node, Reference}, Pid) when node(Pid) =:= Node -> call(Node, {hand_over, Reference, Pid}, placement_config:deadline_ms()).

%% @doc Returns the number of valid leases on this node.
-spec count() -> non_neg_integer().
count() -> ets:info(?LEASES, size).

%% @doc Returns this node's leases, each with its holder, its claims, and the time until it expires in milliseconds.
-spec list() -> [{Holder :: pid(), claims(), LeftMs :: non_neg_integer() | attached}].
list() ->
    Now = erlang:monotonic_time(millisecond),
    [{Holder, Claims, case End of attached -> attached; _ -> max(0, End - Now) end} || {_, Holder, Claims, End} <- ets:tab2list(?LEASES)].

call(Node, Request, Timeout) ->
    try gen_server:call({?SERVER, Node}, Request, Timeout)
    catch
        exit:{timeout, _} -> {error, timeout};
        exit:{noproc, _} -> {error, no_server};
        exit:{{nodedown, _}, _} -> {error, nodedown};
        exit:{_, {gen_server, call, _}} -> {error, no_server}
    end.

%% @private
-spec init(term()) -> {ok, #state{}}.
init(_) ->
    Now = erlang:monotonic_time(millisecond),
    _ = [end_after(Reference, max(0, End - Now)) || {Reference, _, _, End} <- ets:tab2list(?LEASES), End =/= attached],
    {ok, lists:foldl(fun({Reference, Holder, Claims, _}, State) -> claimed(1, Claims, watched(Reference, Holder, State)) end, #state{}, ets:tab2list(?LEASES))}.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}} | {noreply, #state{}}.
handle_call({reserve, Holder, Claims, Require, Ttl}, From, #state{checks = Checks, again = Again} = State)
  when is_pid(Holder), is_map(Claims), is_list(Require), is_integer(Ttl), Ttl > 0, Ttl =< ?TTL_MAX_MS ->
    case {bad_claim(Claims), map_size(Checks) + queue:len(Again) < ?CHECKS_MAX} of
        {none, true} -> {noreply, element(2, checking(#request{from = From, holder = Holder, claims = Claims, require = Require, ttl = Ttl}, State))};
        {none, false} -> {reply, {error, {refused, too_many_requests}}, State};
        %% A node with an older release does not check its claims before it sends a request.
        {Bad, _} -> {reply, {error, Bad}, State}
    end;
handle_call({renew, Reference, Ttl}, _, State) when is_integer(Ttl), Ttl > 0, Ttl =< ?TTL_MAX_MS ->
    case ets:lookup(?LEASES, Reference) of
        [{_, _, _, attached}] -> {reply, ok, State};
        [{_, Holder, Claims, _}] ->
            _ = granted(Reference, Holder, Claims, Ttl),
            {reply, ok, State};
        [] -> {reply, {error, ended}, State}
    end;
handle_call({hand_over, Reference, Pid}, _, State) when is_pid(Pid), node(Pid) =:= node() ->
    case ets:lookup(?LEASES, Reference) of
        [{_, _, Claims, _}] ->
            true = ets:insert(?LEASES, {Reference, Pid, Claims, attached}),
            {reply, ok, watched(Reference, Pid, unwatched(Reference, State))};
        [] -> {reply, {error, ended}, State}
    end;
handle_call(Other, _, State) -> {reply, {error, {unknown_request, Other}}, State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({release, Reference}, State) -> {noreply, ended(Reference, State)};
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({'DOWN', Monitor, process, _, Reason}, #state{checks = Checks} = State) when is_map_key(Monitor, Checks) ->
    {{Request, Granted}, Others} = maps:take(Monitor, Checks),
    {noreply, checked_again(Monitor, decided(Request, Granted, Reason, State#state{checks = Others}))};
handle_info({{held, Reference}, _, process, _, _}, State) -> {noreply, ended(Reference, State)};
handle_info({time_is_over, Reference}, State) ->
    Now = erlang:monotonic_time(millisecond),
    case ets:lookup(?LEASES, Reference) of
        [{_, _, _, End}] when is_integer(End), End =< Now -> {noreply, ended(Reference, State)};
        %% The lease was renewed or handed over in the meantime.
        _ -> {noreply, State}
    end;
handle_info(_, State) -> {noreply, State}.

checking(#request{claims = Claims, require = Require} = Request, #state{checks = Checks, granted = Granted} = State) ->
    {_, Monitor} = check(Claims, Require),
    {Monitor, State#state{checks = Checks#{Monitor => {Request, Granted}}}}.

%% Starts the next of the repeated checks once the previous one has been decided.
checked_again(Monitor, #state{checking_again = Current, again = Again} = State) when Current =:= none; Current =:= Monitor ->
    case queue:out(Again) of
        {{value, Request}, Rest} ->
            {Next, Checking} = checking(Request, State#state{again = Rest}),
            Checking#state{checking_again = Next};
        {empty, _} -> State#state{checking_again = none}
    end;
checked_again(_, State) -> State.

%% Dialyzer would warn that the process's fun never returns, because its result is the exit reason.
-dialyzer({nowarn_function, check/2}).
check(Claims, Require) -> spawn_monitor(fun() -> exit({?MODULE, checked(Claims, Require)}) end).

%% Runs in a separate process, because it waits for the node's own attributes.
checked(Claims, Require) ->
    {ok, Compiled} = placement_pred:compile(Require),
    Parts = placement_pred:conjuncts(Compiled) ++ placement_pred:tolerance(Compiled),
    Judged = lists:append([placement_pred:attributes(P) || P <- Parts]),
    Names = lists:usort(Judged ++ maps:keys(Claims)),
    {ok, Answers} = placement_attr:local(Names, 2 * placement_config:deadline_ms()),
    Known = maps:from_list([{Name, known(Answer)} || {Name, Answer} <- Answers]),
    Context = #{node => node(), view => #{status => ok, attributes => Known}},
    case [{placement_pred:source(P), Truth} || P <- Parts, Truth <- [placement_pred:evaluate(P, Context)], Truth =/= true] of
        [] -> {fits, maps:with(maps:keys(Claims), Known), lists:any(fun placement_attr:is_evaluated/1, Judged)};
        [{P, Truth} | _] -> {refused, {predicate, P, Truth}}
    end.

known({ok, Value, Age, Unit, _, Tolerance}) -> {ok, Value, Age, Unit, Tolerance};
known({stale, _, _, _, _, Reason}) -> {unknown, Reason};
known({unknown, _} = Unknown) -> Unknown.

decided(Request, Before, {?MODULE, {fits, _, true}}, #state{granted = Granted, again = Again} = State) when Granted =/= Before ->
    State#state{again = queue:in(Request, Again)};
decided(#request{from = From, claims = Claims, holder = Holder, ttl = Ttl}, _, {?MODULE, {fits, Capacities, _}}, #state{granted = Granted} = State) ->
    case lacking(maps:to_list(Claims), Capacities, State#state.taken) of
        none ->
            Reference = make_ref(),
            _ = granted(Reference, Holder, Claims, Ttl),
            gen_server:reply(From, {ok, Reference}),
            claimed(1, Claims, watched(Reference, Holder, State#state{granted = Granted + 1}));
        Lacking ->
            gen_server:reply(From, {error, {refused, Lacking}}),
            State
    end;
decided(#request{from = From}, _, {?MODULE, {refused, _} = Refused}, State) ->
    gen_server:reply(From, {error, Refused}),
    State;
decided(#request{from = From}, _, _Crashed, State) ->
    gen_server:reply(From, {error, timeout}),
    State.

lacking([], _, _) -> none;
lacking([{Name, Amount} | Rest], Capacities, Known) ->
    Taken = taken(Name, Known),
    case Capacities of
        #{Name := {ok, Capacity, _, _, _}} when is_number(Capacity), Taken + Amount =< Capacity -> lacking(Rest, Capacities, Known);
        #{Name := {ok, Capacity, _, _, _}} when is_number(Capacity) -> {capacity, Name, Capacity - Taken};
        _ -> {capacity, Name, unknown}
    end.

taken(Name, Known) ->
    case Known of
        #{Name := {_, Sum, 0}} -> Sum;
        %% The match specification uses a guard, because in a pattern a name such as '_' would match any other name.
        #{Name := _} -> lists:sum(ets:select(?LEASES, [{{'_', '_', '$1', '_'}, [{is_map_key, {const, Name}, '$1'}], [{map_get, {const, Name}, '$1'}]}]));
        #{} -> 0
    end.

%% Adds the claims of one lease (`One' is 1), or subtracts them (-1).
claimed(One, Claims, #state{taken = Taken} = State) -> State#state{taken = maps:fold(fun(Name, Amount, Acc) -> claimed(One, Name, Amount, Acc) end, Taken, Claims)}.

claimed(One, Name, Amount, Taken) ->
    {Leases, Sum, Floats} = maps:get(Name, Taken, {0, 0, 0}),
    case {Leases + One, Amount} of
        {0, _} -> maps:remove(Name, Taken);
        {Now, Whole} when is_integer(Whole) -> Taken#{Name => {Now, Sum + One * Whole, Floats}};
        {Now, _} -> Taken#{Name => {Now, Sum, Floats + One}}
    end.

granted(Reference, Holder, Claims, Ttl) ->
    true = ets:insert(?LEASES, {Reference, Holder, Claims, erlang:monotonic_time(millisecond) + Ttl}),
    end_after(Reference, Ttl).

end_after(Reference, Ms) -> erlang:send_after(Ms, self(), {time_is_over, Reference}).

ended(Reference, State) ->
    case ets:take(?LEASES, Reference) of
        [{_, _, Claims, _}] -> claimed(-1, Claims, unwatched(Reference, State));
        [] -> State
    end.

watched(Reference, Pid, #state{monitors = Monitors} = State) ->
    State#state{monitors = Monitors#{Reference => monitor(process, Pid, [{tag, {held, Reference}}])}}.

unwatched(Reference, #state{monitors = Monitors} = State) ->
    {Monitor, Others} = maps:take(Reference, Monitors),
    true = demonitor(Monitor, [flush]),
    State#state{monitors = Others}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

work_does_not_grow_with_leases_test() -> ?assertMatch({Few, Many} when Many < 3 * Few, {work(300), work(3000)}).

work(Count) ->
    ?LEASES = ets:new(?LEASES, [named_table, public]),
    Capacities = #{slots => {ok, 2 * Count, 0, none, 0}},
    Lease = fun(_, {References, State}) ->
        Reference = make_ref(),
        none = lacking([{slots, 1}], Capacities, State#state.taken),
        true = ets:insert(?LEASES, {Reference, self(), #{slots => 1}, attached}),
        {[Reference | References], claimed(1, #{slots => 1}, watched(Reference, self(), State))}
    end,
    {References, State} = lists:foldl(Lease, {[], #state{}}, lists:seq(1, Count)),
    {reductions, Before} = process_info(self(), reductions),
    {More, Full} = lists:foldl(Lease, {[], State}, lists:seq(1, 100)),
    Left = lists:foldl(fun ended/2, Full, More),
    {reductions, After} = process_info(self(), reductions),
    ?assertEqual({Count, Count}, {taken(slots, Left#state.taken), ets:info(?LEASES, size)}),
    ?assertMatch(#state{taken = #{}, monitors = #{}}, lists:foldl(fun ended/2, Left, References)),
    true = ets:delete(?LEASES),
    After - Before.

claims_of_floats_test() ->
    ?LEASES = ets:new(?LEASES, [named_table, public]),
    Lease = fun(Amount, State) ->
        Reference = make_ref(),
        true = ets:insert(?LEASES, {Reference, self(), #{gib => Amount}, attached}),
        {Reference, claimed(1, #{gib => Amount}, watched(Reference, self(), State))}
    end,
    {One, Has1} = Lease(0.1, #state{}),
    {Two, Has2} = Lease(1, Has1),
    {_, Has3} = Lease(0.2, Has2),
    ?assertEqual(1.3, taken(gib, Has3#state.taken)),
    Has4 = ended(Two, ended(One, Has3)),
    ?assertEqual(0.2, taken(gib, Has4#state.taken)),
    true = ets:delete(?LEASES).
-endif.
