%% SPDX-License-Identifier: Apache-2.0
%% @doc Sends changes of this node's attributes to subscribers, so that they need not send requests.
%%
%% A subscriber receives `{placement_change, Reference, Node, Version, [{Name, Answer}]}'. In the first message, and after
%% each change of the node's version, the list contains all attributes; in the other messages it contains only those that
%% have changed by more than their tolerance. If three checks in a row have found no change, the fourth sends an empty list
%% as a heartbeat. Each subscriber chooses the interval between checks in milliseconds. A subscription is removed when its
%% subscriber exits.
%% {@link placement_cache:follow/3} subscribes, and any other process can do so with {@link subscribe/5}.
-module(placement_push).
-behaviour(gen_server).

-export([start_link/0, subscribe/5, unsubscribe/3, sent/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(SERVER, ?MODULE).
-define(SUBSCRIPTIONS_MAX, 10000).
-define(QUIET_LOOKS, 4).
%% The VM limits how long a timer can run.
-define(EVERY_MAX_MS, 86400000).

-record(subscription, {pid :: pid(), reference :: reference(), names :: [atom()], every :: pos_integer(), monitor :: reference(),
                       version = none :: none | placement_attr:version(), told = #{} :: #{atom() => placement_attr:answer()}, quiet = 0 :: non_neg_integer(),
                       look = none :: none | reference()}).  %% the latest request to the attribute server
-record(state, {subscriptions = #{} :: #{{pid(), reference()} => #subscription{}},
                monitors = #{} :: #{reference() => {pid(), reference()}},
                looks = #{} :: #{reference() => {pid(), reference()}},  %% requests to the attribute server that have not been answered yet
                sent = 0 :: non_neg_integer()}).

%% @doc Starts the server.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?SERVER}, ?MODULE, [], []).

%% @doc Subscribes a process to attributes of a node. The subscription is not confirmed, so monitor
%% `{placement_push, Node}'.
-spec subscribe(node(), pid(), reference(), [placement_entry:name()], EveryMs :: pos_integer()) -> ok | noconnect | nosuspend.
subscribe(Node, Pid, Reference, Names, EveryMs) when is_integer(EveryMs), EveryMs >= 10 ->
    erlang:send({?SERVER, Node}, {subscribe, Pid, Reference, Names, EveryMs}, [nosuspend]).

%% @doc Ends a subscription.
-spec unsubscribe(node(), pid(), reference()) -> ok | noconnect | nosuspend.
unsubscribe(Node, Pid, Reference) ->
    erlang:send({?SERVER, Node}, {unsubscribe, Pid, Reference}, [nosuspend, noconnect]).

%% @doc Returns how many messages this node has sent to subscribers, for measurements.
-spec sent() -> non_neg_integer().
sent() -> gen_server:call(?SERVER, sent).

%% @private
-spec init(term()) -> {ok, #state{}}.
init(_) -> {ok, #state{}}.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call(sent, _, #state{sent = Sent} = State) -> {reply, Sent, State};
handle_call(Other, _, State) -> {reply, {error, {unknown_request, Other}}, State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({subscribe, Pid, Reference, Names, Every}, #state{subscriptions = All, monitors = Monitors} = State)
  when is_pid(Pid), is_reference(Reference), is_list(Names), length(Names) =< 1000, is_integer(Every), Every >= 10,
       map_size(All) < ?SUBSCRIPTIONS_MAX ->
    case All of
        #{{Pid, Reference} := _} -> {noreply, State};
        _ ->
            Monitor = monitor(process, Pid),
            New = #subscription{pid = Pid, reference = Reference, names = Names, every = Every, monitor = Monitor},
            self() ! {look, {Pid, Reference}},
            {noreply, State#state{subscriptions = All#{{Pid, Reference} => New}, monitors = Monitors#{Monitor => {Pid, Reference}}}}
    end;
handle_info({unsubscribe, Pid, Reference}, State) ->
    {noreply, ended({Pid, Reference}, State)};
handle_info({look, Id}, #state{subscriptions = All, looks = Looks} = State) ->
    case All of
        #{Id := #subscription{names = Names, every = Every, look = Before} = Subscription} ->
            %% If the attribute server does not answer, no heartbeat is sent, but the next check still takes place.
            _ = erlang:send_after(min(Every, ?EVERY_MAX_MS), self(), {look, Id}),
            Look = make_ref(),
            _ = catch attr_server ! {placement, self(), Look, Names},
            {noreply, State#state{subscriptions = All#{Id := Subscription#subscription{look = Look}}, looks = (maps:remove(Before, Looks))#{Look => Id}}};
        _ -> {noreply, State}
    end;
handle_info({placement, Look, Version, Answers}, #state{looks = Looks, subscriptions = All} = State) ->
    case maps:take(Look, Looks) of
        {Id, Rest} when is_map_key(Id, All) -> {noreply, seen(Id, Version, Answers, State#state{looks = Rest})};
        {_, Rest} -> {noreply, State#state{looks = Rest}};
        error -> {noreply, State}
    end;
handle_info({'DOWN', Monitor, process, _, _}, #state{monitors = Monitors} = State) ->
    {noreply, ended(maps:get(Monitor, Monitors, none), State)};
handle_info(_, State) ->
    {noreply, State}.

ended(Id, #state{subscriptions = All, monitors = Monitors, looks = Looks} = State) ->
    case maps:take(Id, All) of
        {#subscription{monitor = Monitor, look = Look}, Rest} ->
            true = demonitor(Monitor, [flush]),
            State#state{subscriptions = Rest, monitors = maps:remove(Monitor, Monitors), looks = maps:remove(Look, Looks)};
        error -> State
    end.

seen(Id, Version, Answers, #state{subscriptions = All, sent = Sent} = State) ->
    #{Id := #subscription{pid = Pid, reference = Reference, version = Before, told = Told, quiet = Quiet} = Subscription} = All,
    %% When the version changes, the subscriber discards the values that it received for the previous one.
    Known = case Version of Before -> Told; _ -> #{} end,
    case [Pair || {Name, Answer} = Pair <- Answers, is_news(Answer, maps:get(Name, Known, none))] of
        [] when Quiet + 1 < ?QUIET_LOOKS ->
            State#state{subscriptions = All#{Id := Subscription#subscription{quiet = Quiet + 1}}};
        News ->
            %% If the connection to the subscriber is busy, the change is not sent. The next check reports it again.
            case erlang:send(Pid, {placement_change, Reference, node(), Version, News}, [nosuspend, noconnect]) of
                ok ->
                    New = Subscription#subscription{version = Version, told = maps:merge(Known, maps:from_list(News)), quiet = 0},
                    State#state{subscriptions = All#{Id := New}, sent = Sent + 1};
                _ -> State
            end
    end.

is_news(_, none) -> true;
%% The guard fails for terms that are not numbers, and also if the difference exceeds the range of a float.
is_news({ok, New, _, _, _, Tolerance}, {ok, Old, _, _, _, _}) when abs(New - Old) =< Tolerance -> false;
is_news({ok, New, _, _, _, _}, {ok, Old, _, _, _, _}) -> New =/= Old;
is_news({stale, _, _, _, _, _}, {stale, _, _, _, _, _}) -> false;
is_news(New, Old) -> New =/= Old.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% When a node goes down, the monitors of all its subscribers fire at once. The time to handle each of them does not depend
%% on their number.
many_end_at_once_test() ->
    Work = fun(Count) ->
        Pids = [spawn(fun() -> receive stop -> ok end end) || _ <- lists:seq(1, Count)],
        Handle = fun(Message, State) -> {noreply, New} = handle_info(Message, State), New end,
        Begun = lists:foldl(fun(Pid, State) ->
                                    Reference = make_ref(),
                                    Handle({look, {Pid, Reference}}, Handle({subscribe, Pid, Reference, [], ?EVERY_MAX_MS}, State))
                            end, #state{}, Pids),
        {reductions, Before} = process_info(self(), reductions),
        Ended = lists:foldl(fun(#subscription{pid = Pid, monitor = Monitor}, State) -> Handle({'DOWN', Monitor, process, Pid, gone}, State) end,
                            Begun, maps:values(Begun#state.subscriptions)),
        {reductions, After} = process_info(self(), reductions),
        ?assertEqual(#state{}, Ended),
        _ = [exit(Pid, kill) || Pid <- Pids],
        After - Before
    end,
    {Few, Many} = {Work(200), Work(1600)},
    ?assertEqual({true, Few, Many}, {Many < 24 * Few, Few, Many}).

is_news_test_() ->
    Answer = fun(Value) -> {ok, Value, 0, none, 1000, 2} end,
    [?_assertEqual({Old, New, Want}, {Old, New, is_news(Answer(New), Answer(Old))})
     || {Want, Old, New} <- [{false, 1, 3}, {true, 1, 4}, {false, 1, 1.0}, {false, x, x}, {true, x, y}, {true, x, 1},
                             {true, 0.5, 1 bsl 1024}, {true, 1.0e308, -1.0e308}, {false, 1 bsl 1024, (1 bsl 1024) + 1}]].
-endif.
