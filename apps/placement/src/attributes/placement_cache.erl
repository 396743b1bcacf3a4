%% SPDX-License-Identifier: Apache-2.0
%% @doc Caches the attributes of other nodes. It sends requests to all nodes in parallel, with a single deadline, and
%% stores their answers.
%%
%% This server is called by {@link placement_choose} and {@link attr}. Callers read the table themselves and call this
%% server only for values that are missing or too old. The server has at most one request for the same names in flight to
%% a node ("single flight") and never waits, because each request is made by a separate process. So a node that does not
%% answer delays only the callers that need its values, and those only until their own deadline. Once a node has turned
%% out to be down, or to have no attribute server, no request is sent to it for a second, unless it comes up sooner.
%% Callers do not wait for a node that has already left a request unanswered for as long as they would wait. As long as
%% callers need values from such a node, it gets a request once a second in the background, until it answers. Frequent
%% callers do not wait at all, because a value that is still fresh but will soon be too old is refreshed in the
%% background.
%%
%% Load values that nodes report anyway are not requested ({@link placement_told}). Each node also sends its own values
%% of these attributes to a new peer, so the peer's first choice need not request them either.
%%
%% With {@link follow/3} a node's own server reports changes instead ({@link placement_push}), and the new values are
%% stored in the same table.
-module(placement_cache).
-behaviour(gen_server).

-export([start_link/0, fetch/3, follow/3, unfollow/1, forget/1, asked/0, is_running/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([known/0, status/0, view/0, options/0]).

-type known() :: {ok, Value :: term(), AgeMs :: non_neg_integer(), placement_unit:unit(), Tolerance :: number()}
               | {unknown, placement_attr:reason() | {too_old, AgeMs :: non_neg_integer()} | status()}.
-type status() :: ok | nodedown | no_server | timeout | unasked.
%% `unasked': no request to the node was needed.
-type view() :: #{status := status(), attributes := #{placement_entry:name() => known()}, at_ms => integer(), rtt_us => non_neg_integer()}.
%% `at_ms' in the result of {@link fetch/3} is the value of erlang:monotonic_time(millisecond) to which the ages of
%% the values refer. `rtt_us' is the shortest time in which the node has answered a request from this node so far.
-type options() :: #{deadline => pos_integer(),    %% ms after which fetch/3 returns, even if answers are missing (placement_config:deadline_ms/0)
                     max_age => non_neg_integer(), %% maximum age of a value in ms; by default, each attribute's own ttl applies
                     live => boolean()}.           %% send requests even if the values are known

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(SERVER, ?MODULE).
%% {{Node, Name}, answer(), AtMs, pull | {push, EveryMs}} | {{node, Node}, status(), AtMs, RttUs} | {{silent, Node}, [silence()]} | {{heard, Node}, AtMs} | {{follow, Node}, Names, EveryMs}
-define(KNOWN, placement_known).
-define(QUERY_MS, 5000).
-define(NEGATIVE_MS, 1000).
%% A node does not count as silent before this time, even for callers with a shorter deadline, because a normal answer
%% may take that long.
-define(PATIENCE_MS, 200).

-type silence() :: {Names :: [atom()], SinceMs :: integer(), LastMs :: integer()}.
%% An unanswered request: its names, when it was first sent, and when it was last sent.

-record(state, {queries = #{} :: #{reference() => {node(), [atom()], pid()}},
                waiters = #{} :: #{reference() => [{reference(), node()}]},
                versions = #{} :: #{node() => placement_attr:version()},
                follows = #{} :: #{node() => {reference() | {lost, Timer :: reference()}, [atom()], pos_integer()}}}).

%% @doc Starts the server.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?SERVER}, ?MODULE, [], []).

%% @doc Returns whether the application runs on this node.
-spec is_running() -> boolean().
is_running() -> ets:whereis(?KNOWN) =/= undefined.

%% @doc Returns the attributes of some nodes, each node once. It returns at the deadline at the latest, with the
%% status of the nodes that did not answer.
-spec fetch([node()], [placement_entry:name()], options()) -> #{node() => view()}.
fetch(Nodes, Names, Options) ->
    _ = is_running() orelse error({not_running, "placement does not run on this node; call application:ensure_all_started(placement)"}),
    Now = erlang:monotonic_time(millisecond),
    Wanted = lists:usort(Nodes),
    Distinct = lists:usort(Names),
    Deadline = maps:get(deadline, Options, placement_config:deadline_ms()),
    Known = Options#{told => {Now, placement_told:entries(Wanted, Distinct, fun(Node, Name) -> entry(Node, Name, Now) end)}},
    Asked = [{Node, Missing, silences(Node, Missing, Now, Deadline)} || Node <- Wanted, Missing <- [missing(Node, Distinct, Known, Now)], Missing =/= []],
    Silent = [{Node, Missing, Silences} || {Node, Missing, [_ | _] = Silences} <- Asked],
    _ = [?SERVER ! {ask_beside, Node, Missing} || {Node, Missing, Silences} <- Silent, lists:all(fun({_, _, Last}) -> Now - Last >= ?NEGATIVE_MS end, Silences)],
    Open = [{Node, Missing} || {Node, Missing, []} <- Asked],
    ok = ask_ahead([{Node, Ageing} || Node <- Wanted, Ageing <- [[Name || Name <- Distinct, is_ageing(entry(Node, Name, Now, Known), Options)]], Ageing =/= []]),
    Began = maps:from_list([{{Node, Name}, Entry} || Node <- Wanted, Name <- Distinct, {_, _} = Entry <- [entry(Node, Name, Now)]]),
    Answered = ask(Open, Now, Now + Deadline),
    Got = maps:merge(Answered, maps:from_list([{Node, timeout} || {Node, _, _} <- Silent])),
    After = erlang:monotonic_time(millisecond),
    %% A value that was fresh when this call began, or that has arrived since, must not count as too
    %% old just because other nodes took longer to answer. Nor may it be missing just because an
    %% answer with a new version has dropped it.
    Waited = Known#{waited => After - Now, began => Began},
    maps:from_list([{Node, view(Node, Distinct, Waited, After, maps:get(Node, Got, not_asked), maps:from_list(Open))} || Node <- Wanted]).

%% @doc Returns how many requests this node has sent to other nodes so far, for measurements.
-spec asked() -> non_neg_integer().
asked() ->
    case ets:lookup(?KNOWN, asked) of
        [{_, Count}] -> Count;
        [] -> 0
    end.

missing(Node, Names, #{live := true}, Now) -> unless_down(Node, Names, Now, [nodedown]);
missing(Node, Names, Options, Now) ->
    case [Name || Name <- Names, not is_fresh(entry(Node, Name, Now, Options), Options)] of
        [] -> [];
        Missing -> unless_down(Node, Missing, Now, [nodedown, no_server])
    end.

%% Unless `live' is set, it may take ?NEGATIVE_MS for a caller to notice that a node has started its attribute server.
unless_down(Node, Names, Now, Statuses) ->
    case ets:lookup(?KNOWN, {node, Node}) of
        [{_, Status, At, _}] when Now - At < ?NEGATIVE_MS ->
            case lists:member(Status, Statuses) of
                true -> [];
                false -> Names
            end;
        _ -> Names
    end.

%% Returns the requests that the given node has left unanswered for about as long as the caller would wait. A request
%% that also contains other names does not count, because the function of one of those attributes may be slow.
silences(Node, Names, Now, Deadline) ->
    [Silence || {Asked, Since, Last} = Silence <- silences(Node), Now - Since >= max(Deadline * 9 div 10, ?PATIENCE_MS), is_lasting(Last, Now), Asked -- Names =:= []].

-spec silences(node()) -> [silence()].
silences(Node) ->
    case ets:lookup(?KNOWN, {silent, Node}) of
        [{_, Silences}] -> Silences;
        [] -> []
    end.

%% A node counts as silent while the request is in flight, and until the next one would be due.
is_lasting(LastMs, Now) -> Now - LastMs < query_ms() + ?NEGATIVE_MS.

query_ms() -> max(?QUERY_MS, placement_config:deadline_ms()).

%% Returns the node's last answer, or the value that arrived through the carrier. With `max_age' the more recent of the
%% two is used; otherwise the carrier's value, if it was fresh when the call began, replaces an answer that is so old
%% that it would be refreshed.
entry(Node, Name, Now, #{told := {At, Told}} = Options) ->
    case {Told, entry(Node, Name, Now)} of
        {#{{Node, Name} := {ok, _, ToldAge, _, ToldTtl, _} = Answer}, {{ok, _, Age, _, Ttl, _}, Elapsed}}
          when is_map_key(max_age, Options), ToldAge + Now - At < Age + Elapsed;
               not is_map_key(max_age, Options), ToldAge =< ToldTtl, 4 * (Age + Elapsed) > 3 * Ttl, Elapsed >= Now - At ->
            {Answer, Now - At};
        {_, Own} -> Own
    end.

entry(Node, Name, Now) ->
    case ets:lookup(?KNOWN, {Node, Name}) of
        [{_, Answer, At, pull}] -> {Answer, Now - At};
        [{_, Answer, At, {push, Every}}] -> {lasting(Answer, 5 * Every), Now - max(At, heard(Node))};
        [] -> none
    end.

%% A value from a subscription counts as fresh for as long as its node keeps reporting.
lasting({ok, Value, Age, Unit, Ttl, Tolerance}, Ms) -> {ok, Value, Age, Unit, max(Ttl, Ms), Tolerance};
lasting(Answer, _) -> Answer.

heard(Node) ->
    case ets:lookup(?KNOWN, {heard, Node}) of
        [{_, At}] -> At;
        [] -> erlang:monotonic_time(millisecond) - (1 bsl 40)
    end.

%% With max_age 0 a value is too old even if it arrived in the same millisecond.
is_fresh(_, #{max_age := 0}) -> false;
is_fresh(Entry, Options) ->
    case age(Entry, Options) of
        {Age, _, Limit} -> Age =< Limit;
        none -> false
    end.

%% Returns whether three quarters of a value's lifetime have passed. Because a node may answer with a value that is
%% already old, a quarter of the lifetime must also have passed since the answer, so that the node gets at most four
%% requests per lifetime.
is_ageing(_, #{live := true}) -> false;
is_ageing(Entry, Options) ->
    case age(Entry, Options) of
        {Age, Elapsed, Limit} when is_integer(Limit) -> Age =< Limit andalso 4 * Age > 3 * Limit andalso 4 * Elapsed > Limit;
        _ -> false
    end.

%% Returns a value's age, the time since it arrived at this node, and its maximum age.
age({{unknown, missing}, Elapsed}, Options) -> {Elapsed, Elapsed, maps:get(max_age, Options, ?NEGATIVE_MS)};
age({{ok, _, Age, _, Ttl, _}, Elapsed}, Options) -> {Age + Elapsed, Elapsed, maps:get(max_age, Options, Ttl)};
age(_, _) -> none.

ask_ahead([]) -> ok;
ask_ahead(Questions) ->
    _ = ?SERVER ! {ask_ahead, Questions},
    ok.

%% Sends all requests, then waits until the deadline.
ask([], _, _) -> #{};
ask(Open, Now, End) ->
    Alias = alias(),
    _ = [?SERVER ! {ask, Alias, Node, Names, Now} || {Node, Names} <- Open],
    Got = gather(Alias, length(Open), End, #{}),
    _ = unalias(Alias),
    flush(Alias),
    Got.

gather(_, 0, _, Got) -> Got;
gather(Alias, Count, End, Got) ->
    receive
        {Alias, Node, Status} -> gather(Alias, Count - 1, End, Got#{Node => Status})
    after max(0, End - erlang:monotonic_time(millisecond)) -> Got
    end.

flush(Alias) ->
    receive {Alias, _, _} -> flush(Alias) after 0 -> ok end.

view(Node, Names, Options, Now, Got, Open) ->
    Status = status(Got, Node, is_map_key(Node, Open), Now),
    Attributes = maps:from_list([{Name, known(latest(Node, Name, Now, Status, Options), Status, Options)} || Name <- Names]),
    with_rtt(Node, #{status => Status, attributes => Attributes, at_ms => Now}).

latest(Node, Name, Now, Status, #{began := Began, waited := Waited} = Options) ->
    case {entry(Node, Name, Now, Options), Began} of
        {none, #{{Node, Name} := {Answer, Elapsed}}} when Status =:= ok -> {Answer, Elapsed + Waited};
        {Entry, _} -> Entry
    end.

status(not_asked, _, true, _) -> timeout;
status(not_asked, Node, false, _) ->
    case ets:lookup(?KNOWN, {node, Node}) of
        [{_, Status, _, _}] -> Status;
        [] -> unasked
    end;
status(Status, _, _, _) -> Status.

with_rtt(Node, View) ->
    case rtt(Node) of
        RttUs when is_integer(RttUs) -> View#{rtt_us => RttUs};
        none -> View
    end.

%% A value that is too old is unknown: either the node has not answered, or the attribute's function has failed.
known(none, ok, _) -> {unknown, missing};
known(none, Status, _) -> {unknown, Status};
known({{unknown, Reason}, _}, ok, _) -> {unknown, Reason};
known({{unknown, _}, _}, Status, _) -> {unknown, Status};
known({{ok, Value, Age, Unit, Ttl, Tolerance}, Elapsed}, Status, Options) ->
    Max = maps:get(max_age, Options, max(Ttl, slack(Status))),
    aged(Value, Age + Elapsed, Unit, Tolerance, Max + map_get(waited, Options), Status);
known({{stale, Value, Age, Unit, Tolerance, _}, Elapsed}, Status, #{max_age := Max, waited := Waited}) ->
    aged(Value, Age + Elapsed, Unit, Tolerance, Max + Waited, Status);
known({{stale, _, Age, _, _, Reason}, Elapsed}, ok, _) -> {unknown, case Reason of timeout -> {too_old, Age + Elapsed}; _ -> Reason end};
known({{stale, _, _, _, _, _}, _}, Status, _) -> {unknown, Status}.

%% The answer to the caller's own request is never too old, no matter how short its ttl is.
slack(ok) -> ?QUERY_MS;
slack(_) -> 0.

aged(Value, Age, Unit, Tolerance, Max, _) when Age =< Max -> {ok, Value, Age, Unit, Tolerance};
aged(_, Age, _, _, _, ok) -> {unknown, {too_old, Age}};
aged(_, _, _, _, _, Status) -> {unknown, Status}.

%% @doc Subscribes to these attributes of the nodes. Each node then checks them for changes at this interval in
%% milliseconds and reports the changes without being asked, so values are at most five intervals old. A new
%% subscription to a node replaces the earlier one.
-spec follow([node()], [placement_entry:name()], EveryMs :: pos_integer()) -> ok.
follow(Nodes, Names, EveryMs) when is_integer(EveryMs), EveryMs >= 10 ->
    gen_server:call(?SERVER, {follow, placement_query:distinct(Nodes), lists:usort(Names), EveryMs}).

%% @doc Cancels the subscriptions made with {@link follow/3}.
-spec unfollow([node()]) -> ok.
unfollow(Nodes) -> gen_server:call(?SERVER, {unfollow, placement_query:distinct(Nodes)}).

%% @doc Discards everything that is known about a node.
-spec forget(node()) -> ok.
forget(Node) -> gen_server:call(?SERVER, {forget, Node}).

%%% The server

%% @private
-spec init(term()) -> {ok, #state{}}.
init(_) ->
    ok = net_kernel:monitor_nodes(true, #{node_type => all}),
    ok = lists:foreach(fun(Node) -> introduce(Node, true) end, nodes(connected)),
    Followed = ets:match_object(?KNOWN, {{follow, '_'}, '_', '_'}),
    {ok, lists:foldl(fun({{follow, Node}, Names, Every}, State) -> following(Node, Names, Every, State) end, #state{}, Followed)}.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({follow, Nodes, Names, Every}, _, State) ->
    {reply, ok, lists:foldl(fun(Node, Acc) -> following(Node, Names, Every, unfollowed(Node, Acc)) end, State, Nodes)};
handle_call({unfollow, Nodes}, _, State) ->
    {reply, ok, lists:foldl(fun unfollowed/2, State, Nodes)};
handle_call({forget, Node}, _, #state{versions = Versions} = State) ->
    ok = drop(Node),
    {reply, ok, State#state{versions = maps:remove(Node, Versions)}};
handle_call(Other, _, State) ->
    {reply, {error, {unknown_request, Other}}, State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({ask, Alias, Node, Names, At}, State) when is_reference(Alias), is_atom(Node), is_list(Names), is_integer(At) ->
    {noreply, join_query(under_way(Node, Names, State), Alias, Node, Names, At, State)};
handle_info({ask_beside, Node, Names}, State) when is_atom(Node), is_list(Names) ->
    Now = erlang:monotonic_time(millisecond),
    case [Last || {Asked, _, Last} <- silences(Node), Asked =:= Names, Now - Last < ?NEGATIVE_MS] of
        [] -> {noreply, begin_query(Node, Names, [], Now, State)};
        %% Another caller has already triggered this request.
        _ -> {noreply, State}
    end;
handle_info({ask_ahead, Questions}, State) ->
    Now = erlang:monotonic_time(millisecond),
    {noreply, lists:foldl(fun({Node, Names}, Acc) ->
                                  case under_way(Node, Names, Acc) of
                                      none -> begin_query(Node, Names, [], Now, Acc);
                                      _ -> Acc
                                  end
                          end, State, Questions)};
handle_info({'DOWN', Monitor, process, _, Reason}, #state{queries = Queries} = State) when is_map_key(Monitor, Queries) ->
    {noreply, finished(Monitor, Reason, State)};
handle_info({'DOWN', Monitor, process, {placement_push, Node}, _}, #state{follows = Follows} = State) ->
    case Follows of
        #{Node := {Monitor, Names, Every}} -> {noreply, lost(Node, Names, Every, State)};
        _ -> {noreply, State}
    end;
handle_info({timeout, Timer, {follow_again, Node}}, #state{follows = Follows} = State) ->
    case Follows of
        #{Node := {{lost, Timer}, Names, Every}} -> {noreply, following(Node, Names, Every, State)};
        %% The timer had already fired when follow/3 or unfollow/1 cancelled it.
        _ -> {noreply, State}
    end;
handle_info({placement_change, Reference, Node, Version, Answers}, #state{follows = Follows, versions = Versions} = State) ->
    case Follows of
        #{Node := {Reference, _, Every}} ->
            ok = keep(Node, Version, Answers, {push, Every}, State),
            Now = erlang:monotonic_time(millisecond),
            true = ets:insert(?KNOWN, [{{heard, Node}, Now}, {{node, Node}, ok, Now, rtt(Node)}]),
            {noreply, State#state{versions = Versions#{Node => Version}}};
        _ -> {noreply, State}
    end;
handle_info({nodeup, Node, _}, State) ->
    true = ets:delete(?KNOWN, {node, Node}),
    true = ets:delete(?KNOWN, {silent, Node}),
    ok = introduce(Node, false),
    {noreply, State};
handle_info({placement, {introduce, Node, Wants}, Version, Answers}, State) ->
    _ = erlang:send({?SERVER, Node}, {placement_introduces, node(), Version, Answers, Wants}, [nosuspend, noconnect]),
    {noreply, State};
handle_info({placement_introduces, Node, Version, Answers, Wants}, State) when is_atom(Node) ->
    _ = Wants =:= true andalso introduce(Node, false),
    {noreply, introduced(Node, Version, placement_told:valid(Answers), State)};
handle_info({nodedown, Node, _}, #state{versions = Versions} = State) ->
    ok = drop(Node),
    true = ets:insert(?KNOWN, {{node, Node}, nodedown, erlang:monotonic_time(millisecond), none}),
    {noreply, State#state{versions = maps:remove(Node, Versions)}};
handle_info(_, State) ->
    {noreply, State}.

%% Sends this node's own values to another node as soon as the attribute server of this node has supplied them. If `Wants'
%% is true, it also requests the other node's values, because that node cannot know yet that this server has started.
introduce(Node, Wants) ->
    _ = catch attr_server ! {placement, self(), {introduce, Node, Wants}, placement_told:names()},
    ok.

introduced(Node, Version, [_ | _] = Answers, #state{versions = Versions} = State) ->
    case lists:member(Node, nodes(connected)) of
        true ->
            ok = keep(Node, Version, Answers, pull, State),
            true = ets:insert(?KNOWN, {{node, Node}, ok, erlang:monotonic_time(millisecond), rtt(Node)}),
            State#state{versions = Versions#{Node => Version}};
        false -> State
    end;
introduced(_, _, _, State) -> State.

%% Returns the monitor of a pending request to the node that covers all of these names, or none.
under_way(Node, Names, #state{queries = Queries}) ->
    maps:fold(fun(Monitor, {N, Asked, _}, none) when N =:= Node ->
                      case Names -- Asked of [] -> Monitor; _ -> none end;
                 (_, _, Found) -> Found
              end, none, Queries).

join_query(none, Alias, Node, Names, At, State) -> begin_query(Node, Names, [{Alias, Node}], At, State);
join_query(Monitor, Alias, Node, _, _, #state{waiters = Waiters} = State) ->
    State#state{waiters = maps:update_with(Monitor, fun(All) -> [{Alias, Node} | All] end, Waiters)}.

begin_query(Node, Names, Waiting, At, #state{queries = Queries, waiters = Waiters} = State) ->
    _ = ets:update_counter(?KNOWN, asked, 1, {asked, 0}),
    ok = unanswered(Node, Names, At),
    {Pid, Monitor} = sent(Node, Names),
    State#state{queries = Queries#{Monitor => {Node, Names, Pid}}, waiters = Waiters#{Monitor => Waiting}}.

unanswered(Node, Names, At) ->
    Lasting = [Silence || {_, _, Last} = Silence <- silences(Node), is_lasting(Last, At)],
    Since = lists:min([At | [Before || {Asked, Before, _} <- Lasting, Asked =:= Names]]),
    true = ets:insert(?KNOWN, {{silent, Node}, lists:keystore(Names, 1, Lasting, {Names, Since, At})}),
    ok.

%% The node no longer counts as silent for requests whose names are all among `Names'.
answered(Node, Names) ->
    case [Silence || {Asked, _, _} = Silence <- silences(Node), Asked -- Names =/= []] of
        [] -> ets:delete(?KNOWN, {silent, Node});
        Left -> ets:insert(?KNOWN, {{silent, Node}, Left})
    end,
    ok.

%% Dialyzer would warn that the process's fun never returns, because its result is the exit reason.
-dialyzer({nowarn_function, sent/2}).
sent(Node, Names) -> spawn_monitor(fun() -> exit({?MODULE, question(Node, Names)}) end).

question(Node, Names) ->
    try monitor(process, {attr_server, Node}, [{alias, reply_demonitor}]) of
        Monitor -> question(Node, Names, Monitor, erlang:monotonic_time(microsecond))
    catch
        %% This VM is not distributed, or the name is not a node name.
        error:badarg -> nodedown
    end.

question(Node, Names, Monitor, Start) ->
    _ = erlang:send({attr_server, Node}, {placement, Monitor, Monitor, Names}),
    receive
        {placement, Monitor, Version, Answers} -> {answered, Version, Answers, erlang:monotonic_time(microsecond) - Start};
        {'DOWN', Monitor, process, _, noconnection} -> nodedown;
        {'DOWN', Monitor, process, _, _} -> no_server
    after query_ms() -> timeout
    end.

finished(Monitor, Reason, #state{queries = Queries, waiters = Waiters, versions = Versions} = State) ->
    #{Monitor := {Node, Names, _}} = Queries,
    Now = erlang:monotonic_time(millisecond),
    Left = State#state{queries = maps:remove(Monitor, Queries), waiters = maps:remove(Monitor, Waiters)},
    {Status, New} =
        case {Reason, is_up(Node)} of
            {{?MODULE, {answered, Version, Answers, RttUs}}, true} ->
                ok = keep(Node, Version, Answers, pull, State),
                ok = answered(Node, Names),
                true = ets:insert(?KNOWN, {{node, Node}, ok, Now, shortest(Node, RttUs)}),
                {ok, Left#state{versions = Versions#{Node => Version}}};
            {{?MODULE, timeout}, _} -> {timeout, Left};
            _ ->
                Failed = case Reason of {?MODULE, no_server} -> no_server; _ -> nodedown end,
                true = ets:delete(?KNOWN, {silent, Node}),
                true = ets:insert(?KNOWN, {{node, Node}, Failed, Now, none}),
                {Failed, Left}
        end,
    _ = [Alias ! {Alias, Node, Status} || {Alias, _} <- maps:get(Monitor, Waiters)],
    New.

%% If the node has gone down in the meantime, its answer may arrive after the nodedown message, by
%% which time everything known about the node has been dropped.
is_up(Node) ->
    case ets:lookup(?KNOWN, {node, Node}) of
        [{_, nodedown, _, _}] -> lists:member(Node, [node() | nodes(connected)]);
        _ -> true
    end.

shortest(Node, RttUs) ->
    case rtt(Node) of
        Before when is_integer(Before) -> min(Before, RttUs);
        none -> RttUs
    end.

rtt(Node) ->
    case ets:lookup(?KNOWN, {node, Node}) of
        [{_, ok, _, RttUs}] -> RttUs;
        _ -> none
    end.

%% If the node's version has changed, its static attributes may have changed as well, so all of its values are dropped.
keep(Node, Version, Answers, How, #state{versions = Versions}) ->
    case Versions of
        #{Node := Version} -> ok;
        #{Node := _} -> ok = drop(Node);
        _ -> ok
    end,
    Now = erlang:monotonic_time(millisecond),
    true = ets:insert(?KNOWN, [{{Node, Name}, Answer, Now, How} || {Name, Answer} <- Answers]),
    ok.

drop(Node) ->
    true = ets:match_delete(?KNOWN, {{Node, '_'}, '_', '_', '_'}),
    true = ets:delete(?KNOWN, {heard, Node}),
    true = ets:delete(?KNOWN, {silent, Node}),
    ok.

%%% Following

following(Node, Names, Every, #state{follows = Follows} = State) ->
    true = ets:insert(?KNOWN, {{follow, Node}, Names, Every}),
    try monitor(process, {placement_push, Node}) of
        Monitor ->
            _ = placement_push:subscribe(Node, self(), Monitor, Names, Every),
            State#state{follows = Follows#{Node => {Monitor, Names, Every}}}
    catch
        %% This VM is not distributed at the moment.
        error:badarg -> lost(Node, Names, Every, State)
    end.

lost(Node, Names, Every, #state{follows = Follows} = State) ->
    Timer = erlang:start_timer(?NEGATIVE_MS, self(), {follow_again, Node}),
    State#state{follows = Follows#{Node => {{lost, Timer}, Names, Every}}}.

unfollowed(Node, #state{follows = Follows} = State) ->
    true = ets:delete(?KNOWN, {follow, Node}),
    case Follows of
        #{Node := {Monitor, _, _}} when is_reference(Monitor) ->
            _ = placement_push:unsubscribe(Node, self(), Monitor),
            true = demonitor(Monitor, [flush]),
            State#state{follows = maps:remove(Node, Follows)};
        #{Node := {{lost, Timer}, _, _}} ->
            _ = erlang:cancel_timer(Timer),
            State#state{follows = maps:remove(Node, Follows)};
        _ -> State
    end.

-ifdef(TEST).

%% The values were fresh when the call began, but the call then waited 900 ms for another node.
fresh_when_the_call_began_test_() ->
    {setup, fun() -> ets:new(?KNOWN, [named_table, public]) end, fun ets:delete/1,
     fun(_) ->
             Now = erlang:monotonic_time(millisecond),
             Own = {ok, own, 0, none, 1000, 0},
             Put = fun(Age) -> ets:insert(?KNOWN, {{n, a}, Own, Now - Age, pull}) end,
             Value = fun(Told, Status, Options) ->
                             Known = Options#{told => {Now, #{{n, a} => {ok, told, Told, none, 1000, 0}}}, waited => 900, began => #{{n, a} => {Own, 100}}},
                             case view(n, [a], Known, Now + 900, Status, #{}) of
                                 #{attributes := #{a := {ok, V, _, _, _}}} -> V;
                                 #{attributes := #{a := {unknown, _}}} -> unknown
                             end
                     end,
             [fun() ->
                      true = ets:delete(?KNOWN, {n, a}),
                      ?assertEqual([own, unknown, unknown], [Value(0, Status, #{}) || Status <- [ok, nodedown, timeout]])
              end |
              [fun() -> true = Put(OwnAge), ?assertEqual(Wanted, Value(ToldAge, not_asked, Options)) end
               || {OwnAge, ToldAge, Options, Wanted} <- [{2000, 900, #{}, told}, {900, 2000, #{}, own}, {2000, 1001, #{}, unknown},
                                                         {2000, 400, #{max_age => 500}, told}, {400, 2000, #{max_age => 500}, own},
                                                         {2000, 600, #{max_age => 500}, unknown}, {-100, 0, #{}, own}]]]
     end}.
-endif.
