%% SPDX-License-Identifier: Apache-2.0
%% @doc The process of a node that takes broadcasts where sites are known ({@link teleport_sites}): it delivers them here, and passes them on to leaves of its site.
%%
%% {@link teleport_groups} of the sender's node calls it by lane. `{deliver, Broadcast}' is answered by the outcome. `{relay, Ms, Class,
%% Leaves, Broadcast, but}' is answered within `Ms' milliseconds by `{but, Outcomes}': those here and at the leaves that are not `ok'. Senders of earlier
%% versions do not say `but', and get all outcomes. The sender sends to each leaf itself whose outcome is an
%% error, and to all leaves of a relay that does not answer. A copy that comes by both ways is delivered once: a broadcast bears a number ({@link teleport_seen}).
%%
%% It never waits: a leaf whose lane is not up has its broadcasts queued here while a process of its own opens the lane. As many broadcasts are passed on at
%% a time as the option max_broadcasts allows; another one is `overload'.
-module(teleport_relay).
-behaviour(gen_server).

-export([start_link/0, broadcast/4, failed/1, avoid/0, figures/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export_type([broadcast/0, outcome/0, outcomes/0]).

-opaque broadcast() :: {Number :: integer(), Sender :: pid(), Scope :: atom(), Group :: term(), teleport_groups:packed()}.
-type outcome() :: ok | {error, no_members | teleport:reason()}.
-type outcomes() :: [{node(), outcome()}].

%% The exit reason is how the result travels.
-dialyzer({nowarn_function, open/2}).

-define(TABLE, ?MODULE).
-define(REMEMBERED, 20000).
%% A relay that has failed is no relay for so long.
-define(AVOID_MS, 30000).
-define(CALL_MS, 5000).

-record(job, {from :: gen_server:from(), timer :: reference(), until :: teleport_deadline:deadline(), done = [] :: outcomes(), left :: [node(), ...], ids = [] :: [teleport_request:id()],
              lane :: teleport:options(), broadcast :: broadcast(),
              answer :: all | but}).
-record(relay, {seen = teleport_seen:new(?REMEMBERED) :: teleport_seen:seen(),
                jobs = #{} :: #{reference() => #job{}},
                requests = teleport_requests:new() :: teleport_requests:collection(),
                %% leaves whose lane is being opened, with the process that does it, and what waits, the latest first
                opening = #{} :: #{node() => {Monitor :: reference(), [reference()]}},
                figures = #{delivered => 0, dropped => 0, relayed => 0} :: #{delivered | dropped | relayed => non_neg_integer()}}).

%% @doc Started by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc What the calling process sends now: its number is higher than that of all its broadcasts before.
-spec broadcast(Scope :: atom(), Group :: term(), Sender :: pid(), teleport_groups:packed()) -> broadcast().
broadcast(Scope, Group, Sender, Packed) -> {erlang:unique_integer([monotonic]), Sender, Scope, Group, Packed}.

%% @doc This node is no good relay now.
-spec failed(node()) -> ok.
failed(Node) ->
    true = ets:insert(?TABLE, {Node, teleport_deadline:in(?AVOID_MS)}),
    ok.

%% @doc The nodes that have failed as relays a short while ago.
-spec avoid() -> [node()].
avoid() ->
    Now = teleport_deadline:in(0),
    _ = ets:select_delete(?TABLE, [{{'_', '$1'}, [{'=<', '$1', Now}], [true]}]),
    [Node || {Node, _} <- ets:tab2list(?TABLE)].

%% @doc How many broadcasts were delivered on this node, dropped as copies or as late, and passed on to leaves; only those with sites.
-spec figures() -> #{delivered | dropped | relayed => non_neg_integer()}.
figures() -> gen_server:call(?MODULE, figures, ?CALL_MS).

%% @private
-spec init([]) -> {ok, #relay{}}.
init([]) -> {ok, #relay{}}.

%% @private
-spec handle_call(term(), gen_server:from(), #relay{}) -> {reply, term(), #relay{}} | {noreply, #relay{}}.
handle_call({deliver, Broadcast}, _From, State) ->
    {Outcome, Next} = deliver(Broadcast, State),
    {reply, Outcome, Next};
handle_call({relay, Ms, Class, Leaves, Broadcast}, From, State) when Leaves =/= [] -> relay({Ms, Class, Leaves, Broadcast}, all, From, State);
handle_call({relay, Ms, Class, Leaves, Broadcast, but}, From, State) when Leaves =/= [] -> relay({Ms, Class, Leaves, Broadcast}, but, From, State);
handle_call(figures, _From, #relay{figures = Figures} = State) ->
    {reply, Figures, State};
handle_call(_Request, _From, State) ->
    {reply, {error, badarg}, State}.

relay({Ms, Class, Leaves, Broadcast}, Answer, From, #relay{jobs = Jobs} = State) ->
    #{max_broadcasts := Max} = teleport_config:of_node(node()),
    {Outcome, Next} = deliver(Broadcast, State),
    Done = [{node(), Outcome}],
    case map_size(Jobs) >= Max of
        true -> {reply, answer(Answer, Done ++ [{Leaf, {error, overload}} || Leaf <- Leaves]), Next};
        false ->
            Ref = make_ref(),
            {_, Sender, Scope, Group, _} = Broadcast,
            Lane = #{class => Class, key => {Sender, {Scope, Group}}, on_full => error, timeout => 0},
            Job = #job{from = From, timer = erlang:send_after(Ms, self(), {too_late, Ref}), until = teleport_deadline:in(Ms), done = Done, left = Leaves, lane = Lane, broadcast = Broadcast, answer = Answer},
            Begun = (counted(relayed, Next))#relay{jobs = Jobs#{Ref => Job}},
            {noreply, lists:foldl(fun(Leaf, Acc) -> pass_on(Leaf, Ref, Acc) end, Begun, Leaves)}
    end.

%% The names of nodes are most of an answer.
answer(all, Outcomes) -> Outcomes;
answer(but, Outcomes) -> {but, [Outcome || {_, Ended} = Outcome <- Outcomes, Ended =/= ok]}.

deliver({Number, Sender, Scope, Group, Packed}, #relay{seen = Seen} = State) ->
    case teleport_seen:check({Sender, Scope, Group}, Number, Seen) of
        {first, Next} ->
            case teleport_groups:deliver({broadcast, Scope, Group, Packed}) of
                ok -> {ok, counted(delivered, State#relay{seen = Next})};
                no_members -> {{error, no_members}, State#relay{seen = Next}}
            end;
        {again, _} -> {ok, counted(dropped, State)};
        %% Its sender has given it up, and has sent another one since.
        {late, _} -> {{error, timeout}, counted(dropped, State)}
    end.

counted(Figure, #relay{figures = Figures} = State) -> State#relay{figures = maps:update_with(Figure, fun(N) -> N + 1 end, Figures)}.

%% What waits for a lane goes before what comes later.
pass_on(Leaf, Ref, #relay{opening = Opening, jobs = Jobs} = State) ->
    #{Ref := #job{lane = Lane} = Job} = Jobs,
    case Opening of
        #{Leaf := {Monitor, Waiting}} -> State#relay{opening = Opening#{Leaf := {Monitor, [Ref | Waiting]}}};
        #{} ->
            case teleport_request:open(Leaf, Lane, teleport_deadline:in(0)) of
                ok -> ask(Leaf, Ref, Job, State);
                {error, timeout} -> State#relay{opening = Opening#{Leaf => {open(Leaf, Job), [Ref]}}};
                {error, Reason} -> done(Leaf, {error, Reason}, Ref, State)
            end
    end.

ask(Leaf, Ref, #job{lane = Lane, broadcast = Broadcast, ids = Ids} = Job, #relay{jobs = Jobs, requests = Requests} = State) ->
    Id = teleport_request:begin_call(call, {?MODULE, Leaf}, {deliver, Broadcast}, Lane),
    State#relay{jobs = Jobs#{Ref := Job#job{ids = [Id | Ids]}}, requests = teleport_requests:add(Id, {Ref, Leaf}, Requests)}.

%% As long as this job has time.
open(Leaf, #job{lane = Lane, until = Until}) ->
    {_, Monitor} = spawn_monitor(fun() -> exit({?MODULE, teleport_request:open(Leaf, Lane, Until)}) end),
    Monitor.

done(Leaf, Outcome, Ref, #relay{jobs = Jobs} = State) ->
    case Jobs of
        #{Ref := #job{left = [Leaf], done = Done} = Job} -> answered(Ref, Job, [{Leaf, Outcome} | Done], State);
        #{Ref := #job{left = Left, done = Done} = Job} ->
            State#relay{jobs = Jobs#{Ref := Job#job{left = lists:delete(Leaf, Left), done = [{Leaf, Outcome} | Done]}}}
    end.

answered(Ref, #job{from = From, timer = Timer, answer = Answer}, Outcomes, #relay{jobs = Jobs} = State) ->
    _ = erlang:cancel_timer(Timer),
    gen_server:reply(From, answer(Answer, Outcomes)),
    State#relay{jobs = maps:remove(Ref, Jobs)}.

%% @private
-spec handle_cast(term(), #relay{}) -> {noreply, #relay{}}.
handle_cast(_Request, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #relay{}) -> {noreply, #relay{}}.
handle_info({too_late, Ref}, #relay{jobs = Jobs, requests = Requests, opening = Opening} = State) ->
    case Jobs of
        #{Ref := #job{left = Left, done = Done, ids = Ids} = Job} ->
            Next = State#relay{requests = lists:foldl(fun teleport_requests:give_up/2, Requests, Ids),
                               opening = maps:map(fun(_, {Monitor, Waiting}) -> {Monitor, lists:delete(Ref, Waiting)} end, Opening)},
            {noreply, answered(Ref, Job, [{Leaf, {error, timeout}} || Leaf <- Left] ++ Done, Next)};
        #{} -> {noreply, State}
    end;
handle_info({'DOWN', Monitor, process, _, Reason} = Info, #relay{opening = Opening} = State) ->
    case [{Leaf, Waiting} || {Leaf, {Of, Waiting}} <- maps:to_list(Opening), Of =:= Monitor] of
        [{Leaf, Waiting}] ->
            Open = State#relay{opening = maps:remove(Leaf, Opening)},
            {noreply, lists:foldr(opened(Leaf, Reason), Open, Waiting)};
        [] -> response(Info, State)
    end;
handle_info(Info, State) ->
    response(Info, State).

opened(Leaf, {?MODULE, ok}) -> fun(Ref, Acc) -> pass_on(Leaf, Ref, Acc) end;
opened(Leaf, {?MODULE, {error, Reason}}) -> fun(Ref, Acc) -> done(Leaf, {error, Reason}, Ref, Acc) end;
opened(Leaf, Reason) -> opened(Leaf, {?MODULE, {error, {no_lane, Reason}}}).

response(Info, #relay{requests = Requests} = State) ->
    case teleport_requests:check(Info, Requests, true) of
        {{reply, Outcome}, {Ref, Leaf}, Rest} -> {noreply, done(Leaf, Outcome, Ref, State#relay{requests = Rest})};
        {{error, {Reason, _}}, {Ref, Leaf}, Rest} -> {noreply, done(Leaf, {error, Reason}, Ref, State#relay{requests = Rest})};
        _ -> {noreply, State}
    end.
