%% SPDX-License-Identifier: Apache-2.0
%% @doc The centre of a console: it keeps track of the nodes, receives their samples, and sends frames to browsers.
%%
%% There is one collector on each node ({@link beamway_console_collector}) and one frame for each topic and interval. A
%% frame is encoded only once, and only if a browser has subscribed to its topic. A browser that has not yet received
%% its last frames is skipped until it has received them. It does not miss anything permanently, because each frame is
%% complete. When a node goes down, browsers are notified immediately.
-module(beamway_console_hub).
-behaviour(gen_server).

-export([start_link/1, config/0, subscribe/1, taken/1, state/0, history/2, nodes_up/0, tell/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2, attempt/3]).
-export_type([topic/0, known/0]).

-type topic() :: cluster | http | pipes | jobs | {link, node(), node()} | {node, node()}.
-type known() :: #{state := new | up | silent | down | failed, since := integer(), why := binary(), facts := map(), sample := none | beamway_console_collector:sample(),
                   rates := none | beamway_console_rates:rates(), histories := #{term() => beamway_console_rates:history()}, heard := integer(),
                   collector := none | pid(), attempt := none | pid(), again := integer(), pause := pos_integer()}.
%% `since' is system time in ms, while `heard' and `again' are monotonic ms.

-define(CALL_MS, 10000).
-define(BROWSERS_MAX, 500).
-define(NODES_MAX, 1024).
%% The number of frames that may be outstanding for a browser.
-define(BEHIND_MAX, 2).
-define(PAUSE_MS, 1000).
-define(PAUSE_MAX_MS, 30000).
%% Nodes and links that are down are shown for this long.
-define(REMEMBER_MS, 600000).
-define(AT_ONCE, 16).

-record(state, {config :: beamway_console_config:config(), nodes = #{} :: #{node() => known()},
                browsers = #{} :: #{pid() => {reference(), [topic()], Behind :: non_neg_integer()}}}).

%% @doc Starts the hub.
-spec start_link(beamway_console_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) -> gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% @doc Returns the options.
-spec config() -> beamway_console_config:config().
config() -> gen_server:call(?MODULE, config, ?CALL_MS).

%% @doc Subscribes the calling process to these topics. It receives their frames, the first ones immediately, as
%% messages `{console_frame, Topic, Json :: binary()}', and must acknowledge each frame with {@link taken/1}.
-spec subscribe([topic()]) -> ok | {error, too_many}.
subscribe(Topics) -> gen_server:call(?MODULE, {subscribe, self(), Topics}, ?CALL_MS).

%% @doc Reports that the calling process has forwarded a frame.
-spec taken(pid()) -> ok.
taken(Browser) -> gen_server:cast(?MODULE, {taken, Browser}).

%% @doc Returns all nodes, without their histories.
-spec state() -> #{node() => known()}.
state() -> gen_server:call(?MODULE, state, ?CALL_MS).

%% @doc Returns the history of a node, or of something on it.
-spec history(node(), term()) -> [[integer()]].
history(Node, Key) -> gen_server:call(?MODULE, {history, Node, Key}, ?CALL_MS).

%% @doc Returns the nodes whose collectors answer.
-spec nodes_up() -> [node()].
nodes_up() -> lists:sort([Node || {Node, #{state := up}} <- maps:to_list(state())]).

%% @doc Sends a frame from another process of the console to every browser that has subscribed to the topic.
-spec tell(topic(), Json :: binary()) -> ok.
tell(Topic, Json) -> gen_server:cast(?MODULE, {tell, Topic, Json}).

%% @private
-spec init(beamway_console_config:config()) -> {ok, #state{}}.
init(#{interval_ms := Interval} = Config) ->
    process_flag(trap_exit, true),
    %% If the console itself is hidden, as it is when `beamway console' runs it, it sees all nodes as hidden.
    _ = [ok = net_kernel:monitor_nodes(true, #{node_type => all, nodedown_reason => true}) || is_alive()],
    _ = erlang:send_after(Interval, self(), tick),
    First = case Config of
                #{nodes := connected} -> [node() | nodes()];
                #{nodes := Nodes} -> Nodes
            end,
    {ok, attempts(lists:foldl(fun known/2, #state{config = Config}, First))}.

known(Node, #state{nodes = Nodes} = State) when is_map_key(Node, Nodes); map_size(Nodes) >= ?NODES_MAX -> State;
known(Node, #state{nodes = Nodes} = State) ->
    State#state{nodes = Nodes#{Node => #{state => new, since => now_ms(), why => <<>>, facts => #{}, sample => none, rates => none, histories => #{}, heard => 0,
                                         collector => none, attempt => none, again => clock(), pause => ?PAUSE_MS}}}.

now_ms() -> erlang:system_time(millisecond).
clock() -> erlang:monotonic_time(millisecond).

%% Starts the attempts that are due, a few at a time.
attempts(#state{nodes = Nodes, config = #{interval_ms := Interval}} = State) ->
    Now = clock(),
    Running = length([x || #{attempt := Pid} <- maps:values(Nodes), is_pid(Pid)]),
    Due = [Node || {Node, #{collector := none, attempt := none, again := Again}} <- maps:to_list(Nodes), Again =< Now],
    Hub = self(),
    Begin = fun(Node, All) ->
                    {Pid, _} = spawn_monitor(?MODULE, attempt, [Node, Hub, Interval]),
                    maps:update_with(Node, fun(Known) -> Known#{attempt := Pid} end, All)
            end,
    State#state{nodes = lists:foldl(Begin, Nodes, lists:sublist(Due, max(0, ?AT_ONCE - Running)))}.

%% @private The result is passed as the exit reason.
-spec attempt(node(), pid(), pos_integer()) -> no_return().
attempt(Node, Hub, Interval) -> exit({attached, Node, beamway_console_nodes:attach(Node, Hub, Interval)}).

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call(config, _, #state{config = Config} = State) -> {reply, Config, State};
handle_call({subscribe, _, _}, _, #state{browsers = Browsers} = State) when map_size(Browsers) >= ?BROWSERS_MAX -> {reply, {error, too_many}, State};
handle_call({subscribe, Pid, Topics}, _, #state{browsers = Browsers} = State) ->
    State1 = State#state{browsers = Browsers#{Pid => {monitor(process, Pid), Topics, 0}}},
    _ = [beamway_console_jobs:tell() || lists:member(jobs, Topics)],
    {reply, ok, publish(Topics, [Pid], State1)};
handle_call(state, _, #state{nodes = Nodes} = State) -> {reply, maps:map(fun(_, Known) -> Known#{histories := #{}} end, Nodes), State};
handle_call({history, Node, Key}, _, #state{nodes = Nodes} = State) ->
    {reply, case Nodes of
                #{Node := #{histories := #{Key := History}}} -> beamway_console_rates:series(History);
                #{} -> []
            end, State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({taken, Pid}, #state{browsers = Browsers} = State) ->
    {noreply, case Browsers of
                  #{Pid := {Monitor, Topics, Behind}} -> State#state{browsers = Browsers#{Pid := {Monitor, Topics, max(0, Behind - 1)}}};
                  #{} -> State
              end};
handle_cast({tell, Topic, Json}, #state{browsers = Browsers} = State) ->
    {noreply, sent(Topic, Json, maps:keys(Browsers), State)};
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({console_sample, Node, Collector, Sample}, #state{nodes = Nodes} = State) ->
    case Nodes of
        #{Node := #{collector := Collector} = Known} -> {noreply, sampled(Node, Known, Sample, State)};
        %% This hub has not attached to the collector yet; a later attempt will find it.
        #{} -> {noreply, State}
    end;
handle_info(tick, #state{config = #{interval_ms := Interval}} = State) ->
    _ = erlang:send_after(Interval, self(), tick),
    {noreply, publish_all(attempts(aged(State)))};
handle_info({nodeup, Node, #{node_type := hidden}}, State) -> {noreply, attempts(awake(Node, State))};
handle_info({nodeup, Node, _}, State) -> {noreply, attempts(awake(Node, known(Node, State)))};
handle_info({nodedown, Node, Info}, #state{nodes = Nodes} = State) ->
    case Nodes of
        #{Node := #{state := Is} = Known} when Is =/= down ->
            Down = ended(Known, down, reason(Info)),
            {noreply, publish_all(State#state{nodes = Nodes#{Node := Down}})};
        #{} -> {noreply, State}
    end;
handle_info({'DOWN', _, process, Pid, {attached, Node, Result}}, #state{nodes = Nodes} = State) ->
    case Nodes of
        #{Node := #{attempt := Pid} = Known} -> {noreply, State#state{nodes = Nodes#{Node := attached(Result, Known)}}};
        #{} -> {noreply, State}
    end;
handle_info({'DOWN', _, process, Pid, Reason}, #state{browsers = Browsers} = State) when is_map_key(Pid, Browsers) ->
    _ = Reason,
    {noreply, State#state{browsers = maps:remove(Pid, Browsers)}};
handle_info({'DOWN', _, process, Pid, Reason}, #state{nodes = Nodes} = State) ->
    {noreply, State#state{nodes = maps:map(fun(_, Known) -> lost(Pid, Reason, Known) end, Nodes)}};
handle_info(_, State) -> {noreply, State}.

%% @private
-spec terminate(term(), #state{}) -> ok.
terminate(_, #state{nodes = Nodes}) ->
    _ = [beamway_console_nodes:detach(Pid, self()) || #{collector := Pid} <- maps:values(Nodes), is_pid(Pid)],
    ok.

reason(#{nodedown_reason := Reason}) -> unicode:characters_to_binary(io_lib:format("~0tP", [Reason, 8]));
reason(_) -> <<"nodedown">>.

%% If a node fails repeatedly, `since' remains the time of the first failure.
ended(#{state := Was, since := Since, pause := Pause} = Known, Is, Why) ->
    Known#{state := Is, since := case Was of Is -> Since; _ -> now_ms() end, why := Why, collector := none, attempt := none, rates := none, again := clock() + Pause}.

awake(Node, #state{nodes = Nodes} = State) ->
    case Nodes of
        #{Node := #{state := down} = Known} -> State#state{nodes = Nodes#{Node := Known#{state := new, since := now_ms(), again := clock(), pause := ?PAUSE_MS}}};
        #{} -> State
    end.

attached({ok, Pid, Facts}, Known) ->
    _ = monitor(process, Pid),
    Known#{collector := Pid, attempt := none, facts := Facts, pause := ?PAUSE_MS, heard := clock()};
attached({error, _}, #{state := down, pause := Pause} = Known) -> Known#{attempt := none, again := clock() + Pause, pause := longer(Pause)};
attached({error, Why}, #{pause := Pause} = Known) -> (ended(Known, failed, Why))#{pause := longer(Pause)}.

longer(Pause) -> min(?PAUSE_MAX_MS, 2 * Pause).

%% An attempt crashed, or a collector exited.
lost(Pid, Reason, #{attempt := Pid} = Known) -> attached({error, reason(#{nodedown_reason => Reason})}, Known);
lost(Pid, Reason, #{collector := Pid, state := Is} = Known) when Is =/= down ->
    ended(Known, silent, unicode:characters_to_binary(io_lib:format("its collector ended: ~0tP", [Reason, 8])));
lost(_, _, Known) -> Known.

sampled(Node, #{sample := Before, histories := Histories, state := Was} = Known, #{peers := Peers} = Sample, #state{nodes = Nodes} = State) ->
    Rates = beamway_console_rates:between(Before, Sample),
    New = Known#{state := up, why := <<>>, sample := Sample, rates := Rates, heard := clock(),
                 histories := beamway_console_rates:remember(now_ms(), Rates, Sample, map_size(Nodes), Histories)},
    Since = case Was of up -> New; _ -> New#{since := now_ms()} end,
    lists:foldl(fun known/2, State#state{nodes = Nodes#{Node := Since}}, [Peer || Peer <- Peers, not is_map_key(Peer, Nodes)]).

%% Marks silent nodes, and removes those that have been down for a long time, except the nodes in the configuration.
aged(#state{nodes = Nodes, config = #{interval_ms := Interval, nodes := Configured}} = State) ->
    Now = clock(),
    Quiet = fun(_, #{state := Is, collector := Pid, heard := Heard} = Known) when is_pid(Pid), Is =/= silent, Now - Heard > 2000 + 2 * Interval ->
                    Known#{state := silent, since := now_ms(), why := <<"no samples received: it is stopped or overloaded, or its connection is busy">>, rates := none};
               (_, Known) -> Known
            end,
    Stays = fun(Node, #{state := Is, since := Since}) ->
                    not (Is =:= down orelse Is =:= failed) orelse now_ms() - Since < ?REMEMBER_MS orelse is_list(Configured) andalso lists:member(Node, Configured)
            end,
    State#state{nodes = maps:filter(Stays, maps:map(Quiet, Nodes))}.

%%% Frames

publish_all(#state{browsers = Browsers} = State) ->
    publish(lists:usort(lists:append([Topics || {_, Topics, _} <- maps:values(Browsers)])), maps:keys(Browsers), State).

publish(Topics, Pids, #state{nodes = Nodes, config = Config} = State) ->
    _ = [beamway_console_jobs:pipes() || lists:member(pipes, Topics)],
    lists:foldl(fun(Topic, Acc) ->
                        case beamway_console_frames:frame(Topic, Nodes, Config) of
                            none -> Acc;
                            Json -> sent(Topic, Json, Pids, Acc)
                        end
                end, State, Topics).

sent(Topic, Json, Pids, State) -> lists:foldl(fun(Pid, Acc) -> sent_to(Pid, Topic, Json, Acc) end, State, Pids).

sent_to(Pid, Topic, Json, #state{browsers = Browsers} = State) ->
    #{Pid := {Monitor, Topics, Behind}} = Browsers,
    case lists:member(Topic, Topics) andalso Behind < ?BEHIND_MAX * length(Topics) of
        true ->
            Pid ! {console_frame, Topic, Json},
            State#state{browsers = Browsers#{Pid := {Monitor, Topics, Behind + 1}}};
        false -> State
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

aged_test_() ->
    {ok, Config} = beamway_console_config:read([{nodes, ['configured@h']}]),
    #state{nodes = Nodes} = State = lists:foldl(fun known/2, #state{config = Config}, ['configured@h', 'found@h']),
    [fun() ->
             %% The console keeps trying to reach these.
             Gone = maps:map(fun(_, Known) -> attached({error, <<"not reached">>}, Known#{state := Is, since := now_ms() - ?REMEMBER_MS}) end, Nodes),
             #state{nodes = Left} = aged(State#state{nodes = Gone}),
             ?assertEqual(['configured@h'], maps:keys(Left))
     end || Is <- [down, failed]].
-endif.
