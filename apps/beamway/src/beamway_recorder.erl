%% SPDX-License-Identifier: Apache-2.0
%% @doc The flight recorder: what each link did in the last few minutes, and why it ended ({@link beamway:why/1}).
%%
%% Once a second this server reads the counters of all links and adds a step to each link's {@link beamway_history}. While this node and all its links
%% are idle, it does so only every five seconds, because each time its timer fires, a scheduler wakes up and then spins for a while. The seconds that
%% it missed, or in which it rested, also get steps, so the position of a step in the history gives its age. Between samples, the server is notified
%% of events on links ({@link note/2}). When a link ends, a separate process queries the peer's epmd and tries its port, {@link beamway_verdict} finds
%% the cause, and one line is logged. The records of ended links are kept for an hour.
%%
%% The server also records how late its own timer fired and how busy this node was, because a link often seems silent when it is actually this node
%% that is not running. For the same reason, this server tells the driver that the node is running. It does so through a port of its own, which also
%% receives each sample of the node's load ({@link beamway_port:sample_load/4}).
-module(beamway_recorder).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-export([start_link/0, up/1, note/2, records/0, records/1, nodes/0, traffic/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export([look/3, ask_epmd/2]).
-export_type([record/0, event/0]).

-define(STEP_MS, 1000).
-define(CALL_MS, 5000).
-define(UP_MS, 1000).
-define(LOOK_MS, 2000).
-define(KEEP_MS, 3600000).
-define(EVENTS, 60).
-define(DEAD, 256).
-define(IDLE_STEPS, 10).
-define(REST_STEPS, 5).
%% With more links than this, each is sampled only every five seconds.
-define(MANY, 32).
-define(IDLE_BYTES, 128).
-define(IDLE_PERCENT, 5).
-define(BUSY_PERCENT, 95).
-define(BUSY_QUEUE, 2).
%% A clock that is adjusted gradually deviates by less than this in a second.
-define(CLOCK_MS, 1000).
%% epmd notices that a process was killed slightly later than the peers do.
-define(ASK_AGAIN_MS, 100).
-define(ASK_MS, 500).
%% How long to wait for epmd. The rest of LOOK_MS is for the peer's port.
-define(EPMD_MS, 1200).
%% The log names the processes that fill a link at most once in this time, and at most this many of them.
-define(FULL_MS, 60000).
-define(FULL_SENDERS, 3).
%% For this long, the recorder remembers how much each process has sent.
-define(SENT_MS, 10000).

-type event() :: up | {lost, Cause :: atom()} | silent | flows | {resumed, Cause :: atom(), Ms :: non_neg_integer()}
               | {full, Senders :: [binary()]} | {fault, Text :: binary()} | fault_ended
               | {clock_set, Ms :: integer()} | {gave_up, ended | exited | forgotten | absent} | {disconnected_by, Who :: binary()} | {down, Reason :: term()}.
%% {@link beamway_resume} explains `gave_up'. `exited' means that the peer's process no longer exists on this host.

-type record() :: #{node := node(), link := beamway_kind:label(), address := binary(), hidden := boolean(), since := integer(),
                    %% newest first, each with how many milliseconds ago it happened
                    events := [{AgoMs :: non_neg_integer(), event()}],
                    %% the latest counters of the link, and how long before now (or before the end) it last read anything
                    latest := #{atom() => term()}, silent_ms := non_neg_integer(),
                    seconds := [{pos_integer(), beamway_history:step()}], tens := [{pos_integer(), beamway_history:step()}],
                    %% of this node
                    own := [{pos_integer(), beamway_history:step()}],
                    tick_ms := pos_integer(),
                    %% of a link that has ended
                    ended => #{ago_ms := non_neg_integer(), reason := term()},
                    epmd => beamway_verdict:epmd(),
                    %% if epmd does not list the peer
                    peer_port => beamway_epmd:port_state(),
                    verdict => beamway_verdict:verdict()}.

-type wanted() :: fun((node()) -> boolean()).

-record(link, {about :: beamway_links:link(),
               monitor :: reference(),
               history :: beamway_history:history(),
               latest = #{} :: #{atom() => term()},
               latest_ms :: integer(), % when these counters were read
               idle = 0 :: non_neg_integer(), % the number of consecutive steps without traffic
               missed = 0 :: non_neg_integer(), % the number of consecutive steps that were not sampled
               full_ms :: integer(), % when its senders were last logged
               read_ms :: integer(), % when the link last read anything
               traffic = [] :: [{Ms :: integer(), binary()}], % what each process had sent, newest first
               events :: [{Ms :: integer(), event()}]}).

-record(state, {seconds :: non_neg_integer(),
                until :: integer(), % the histories have a step for each second before this time
                due :: integer(), % when the timer fires: whole seconds after that
                timer = none :: reference() | none,
                port = none :: port() | none, % open while the driver carries a link
                own :: beamway_history:history(),
                runtime :: {Ms :: integer(), RuntimeMs :: non_neg_integer()}, % when the processor time was last read, and its value
                clock_ms :: integer(), % system time minus monotonic time
                links = #{} :: #{pid() => #link{}},
                lookers = #{} :: #{pid() => {Ms :: integer(), record()}},
                asking = [] :: [{gen_server:from(), wanted(), [Looker :: pid(), ...]}], % callers who wait until these links have a verdict
                dead = [] :: [{Ms :: integer(), record()}]}).

%% For counters, a step stores the increase in that second; `max' marks momentary values.
fields() ->
    [{bytes_in, sum}, {bytes_out, sum}, {frames_in, sum}, {frames_out, sum}, {retransmits, sum}, {wakeups, sum}, {stalls, sum}, {losses, sum},
     {queue_bytes, max}, {held_senders, max}, {busy, max}, {kept_bytes, max}, {run_delay_us, max}, {kernel_bytes, max}, {rtt_us, max}, {window_bytes, max}].

%% `busy' is 1 if this node used all of its CPUs, or if far more processes were runnable than could run.
own_fields() ->
    [{late_ms, max}, {cpu_percent, max}, {busy, max}].

%% @doc Called by {@link beamway_sup}.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Records that a link is up. Its connection process calls this and waits, because otherwise a link that ends immediately might end unobserved,
%% and the reason would be lost. It does not wait for long, because a link must work without this server.
-spec up(beamway_links:link()) -> ok.
up(Link) ->
    try gen_server:call(?MODULE, {up, Link}, ?UP_MS)
    catch exit:_ -> ok
    end.

%% @doc Notes an event on the link of that connection process.
-spec note(Connection :: pid(), event()) -> ok.
note(Connection, Event) -> gen_server:cast(?MODULE, {note, now_ms(), Connection, Event}).

%% @doc Returns the records of the links to a node: first the link that is up, then those that have ended, most recent first. If a link has just
%% ended, the call waits up to two seconds for its verdict.
-spec records(node()) -> [record()].
records(Node) -> call({records, fun(Of) -> Of =:= Node end}).

%% @doc Like {@link records/1}, but for all nodes.
-spec records() -> [record()].
records() -> call({records, fun(_) -> true end}).

%% @doc Returns the nodes for which there are records.
-spec nodes() -> [node()].
nodes() -> call(nodes).

%% @doc Returns, for each of these connection processes, the result of {@link beamway_port:traffic/1} from ten seconds ago, or from the time when
%% this server first saw the link if that is later, and how long ago that was.
-spec traffic([pid()]) -> #{pid() => {binary(), AgoMs :: non_neg_integer()}}.
traffic(Connections) -> maps:from_list(call({traffic, Connections})).

call(Request) ->
    try gen_server:call(?MODULE, Request, ?CALL_MS)
    catch exit:_ -> [] % it is stopping or starting
    end.

%% @private
-spec init([]) -> {ok, #state{}}.
init([]) ->
    process_flag(trap_exit, true),
    %% Each step replaces all data about links, so the old generation would consist mostly of garbage: several KB per link.
    _ = process_flag(fullsweep_after, 4),
    Seconds = maps:get(record_s, beamway_links:config(), 600), % the option is missing if this version was loaded while the node was running
    Now = now_ms(),
    ok = watch_disconnects(),
    State = #state{seconds = Seconds, until = Now, due = Now, own = beamway_history:new(own_fields(), Seconds), runtime = runtime(Now), clock_ms = clock_ms()},
    {ok, next(Now + ?STEP_MS, lists:foldl(fun begin_link/2, State, beamway_links:all()))}.

%% Only a trace shows which process called a function that closes connections. A trace with `meta' costs nothing in other functions, and does not
%% affect other tracers.
watch_disconnects() ->
    _ = [erlang:trace_pattern(Function, true, [meta]) || Function <- [{net_kernel, disconnect, 1}, {net_kernel, async_disconnect, 1}]],
    ok.

next(Due, State) ->
    State#state{due = Due, timer = erlang:start_timer(Due, self(), step, [{abs, true}])}.

%% Called when a link has come up: ends the rest at the next full second that is at least half a second away.
hurried(Now, #state{until = Until, due = Due, timer = Timer} = State) ->
    case Until + seconds_until(Now + ?STEP_MS, Until) * ?STEP_MS of
        Sooner when Sooner < Due ->
            _ = erlang:cancel_timer(Timer),
            next(Sooner, State);
        _ -> State
    end.

%% The result is rounded, so that the next step is never less than half a second away.
seconds_until(Now, Until) -> max(1, (Now - Until + ?STEP_MS div 2) div ?STEP_MS).

begin_link(#{connection := Pid} = About, #state{links = Links, seconds = Seconds} = State) when not is_map_key(Pid, Links) ->
    Link = #link{about = About, monitor = monitor(process, Pid), history = beamway_history:new(fields(), Seconds), latest_ms = now_ms(), read_ms = now_ms(),
                 missed = erlang:phash2(Pid, ?REST_STEPS), % so that not all of many links are sampled in the same second
                 full_ms = now_ms() - ?FULL_MS, traffic = kept_traffic(now_ms(), traffic_now(About), []), events = [{now_ms(), up}]},
    State#state{links = Links#{Pid => Link}};
begin_link(_About, State) ->
    State.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({records, Wanted}, From, #state{links = Links} = Before) ->
    %% A process that has just received `nodedown' may ask before this server's monitor has reported that the connection process has exited, and
    %% before epmd has noticed.
    Ending = [Pid || {Pid, #link{about = #{node := Node}}} <- maps:to_list(Links), Wanted(Node), not is_process_alive(Pid)],
    #state{lookers = Lookers, asking = Asking} = State = lists:foldl(fun awaited/2, Before, Ending),
    case [Looker || {Looker, {_, #{node := Node}}} <- maps:to_list(Lookers), Wanted(Node)] of
        [] -> {reply, wanted(Wanted, State), State};
        Pending -> {noreply, State#state{asking = [{From, Wanted, Pending} | Asking]}}
    end;
handle_call({traffic, Connections}, _From, #state{links = Links} = State) ->
    Now = now_ms(),
    Oldest = [{Connection, lists:last(Traffic)} || Connection <- Connections, #{Connection := #link{traffic = [_ | _] = Traffic}} <- [Links]],
    {reply, [{Connection, {Bytes, Now - Ms}} || {Connection, {Ms, Bytes}} <- Oldest], State};
handle_call({up, About}, _From, State) ->
    {reply, ok, tell_peer(About, hurried(now_ms(), begin_link(About, State)), State)};
handle_call(nodes, _From, #state{links = Links, lookers = Lookers, dead = Dead} = State) ->
    {reply, lists:usort([Node || #link{about = #{node := Node}} <- maps:values(Links)] ++ [Node || {_, #{node := Node}} <- maps:values(Lookers) ++ Dead]), State};
handle_call(_Request, _From, State) ->
    {reply, {error, badarg}, State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({note, Ms, Connection, Event}, State) -> {noreply, noted(Ms, Connection, Event, State)};
handle_cast(_Request, State) -> {noreply, State}.

noted(Ms, Connection, Event, #state{links = Links} = State) ->
    case Links of
        #{Connection := #link{events = Events} = Link} ->
            State#state{links = Links#{Connection := Link#link{events = kept([{Ms, Event} | Events])}}};
        #{} -> State
    end.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({timeout, Timer, step}, #state{until = Until, due = Due, timer = Timer, runtime = Runtime, own = Own} = State) ->
    Now = now_ms(),
    Seconds = seconds_until(Now, Until),
    Cpu = cpu_percent(Now, Runtime),
    RunQueue = run_queue(),
    Links = maps:map(fun(_, Link) -> stepped(Now, Seconds, map_size(State#state.links) > ?MANY, Link) end, State#state.links),
    Dead = lists:takewhile(fun({Ms, _}) -> Now - Ms < ?KEEP_MS end, State#state.dead),
    Stepped = State#state{own = beamway_history:add(own_step(Now - Due, Cpu, RunQueue), beamway_history:add(Seconds - 1, own_step(0, Cpu, 0), Own)),
                          runtime = runtime(Now), until = Until + Seconds * ?STEP_MS, links = Links, dead = Dead},
    {noreply, sampled(Cpu, RunQueue, next(Stepped#state.until + steps(Cpu, Links) * ?STEP_MS, clock_set(Now, Stepped)))};
handle_info({'DOWN', _Monitor, process, Pid, Reason}, #state{links = Links} = State) when is_map_key(Pid, Links) ->
    {noreply, ended(Pid, Reason, State)};
handle_info({trace_ts, Pid, call, {net_kernel, _Disconnect, [Node]}, {Mega, Seconds, Micro}}, State) ->
    Ms = (Mega * 1000000 + Seconds) * 1000 + Micro div 1000 - erlang:time_offset(millisecond),
    {noreply, disconnecting(Ms, Pid, Node, State)};
handle_info({'EXIT', Looker, Result}, #state{lookers = Lookers} = State) when is_map_key(Looker, Lookers) ->
    {{Ms, Record}, Left} = maps:take(Looker, Lookers),
    Seen = case Result of {looked, Found} -> Found; _ -> #{epmd => unknown} end,
    {noreply, answered(Looker, judged(Ms, maps:merge(Record, Seen), State#state{lookers = Left}))};
handle_info({'EXIT', Port, _Reason}, #state{port = Port} = State) ->
    {noreply, State#state{port = none}};
handle_info({stop, Looker}, State) ->
    true = exit(Looker, kill), % it may have exited already
    {noreply, State};
handle_info(_Info, State) ->
    {noreply, State}.

%% The clock of this node's host has been set. This does not close any link, because links use a different clock.
clock_set(Now, #state{clock_ms = Before, links = Links} = State) ->
    Ms = clock_ms(),
    Told = case abs(Ms - Before) >= ?CLOCK_MS of
               true -> lists:foldl(fun(Connection, Acc) -> noted(Now, Connection, {clock_set, Ms - Before}, Acc) end, State, maps:keys(Links));
               false -> State
           end,
    Told#state{clock_ms = Ms}.

clock_ms() -> os:system_time(millisecond) - now_ms().

%% The values are rounded, so that consecutive steps of an idle node are equal.
own_step(LateMs, Cpu, RunQueue) ->
    IsBusy = Cpu >= ?BUSY_PERCENT orelse RunQueue >= ?BUSY_QUEUE * erlang:system_info(schedulers_online),
    [LateMs div 10 * 10, Cpu div 5 * 5, case IsBusy of true -> 1; false -> 0 end].

cpu_percent(Now, {Ms, RuntimeMs}) ->
    {_, RuntimeNowMs} = runtime(Now),
    min(100, 100 * (RuntimeNowMs - RuntimeMs) div (max(1, Now - Ms) * erlang:system_info(schedulers_online))).

runtime(Now) -> {Now, element(1, erlang:statistics(runtime))}.

run_queue() -> erlang:statistics(total_run_queue_lengths).

%% The driver sends the sample on all links, and takes it as a sign that this node is running. It expects the next one at the next step, so the port
%% is closed when there are no more links.
sampled(Cpu, RunQueue, #state{port = Port, due = Due, links = Links} = State) ->
    case {lists:any(fun is_driven/1, maps:values(Links)), Port} of
        {true, none} ->
            case beamway_port:open() of
                {ok, Opened} -> sampled(Cpu, RunQueue, State#state{port = Opened});
                {error, _} -> State
            end;
        {true, _} ->
            try beamway_port:sample_load(Port, Cpu, RunQueue, max(1, Due - now_ms())) of
                ok -> State
            catch
                error:badarg -> State#state{port = none} % the driver is being reloaded
            end;
        {false, none} -> State;
        {false, _} ->
            ok = beamway_port:close(Port),
            State#state{port = none}
    end.

is_driven(#link{about = About}) -> beamway_links:driven(About) =/= none.

%% A new peer should not have to wait for the next tick to learn this node's load. If this is the only link, nothing has been sampled recently. If a
%% rest was cut short, the driver must know, so that it notices a stop of this node from now on.
tell_peer(About, #state{port = Port, due = Due, runtime = Runtime} = State, #state{due = DueBefore}) ->
    Sampled = case Port =:= none orelse Due < DueBefore of
                  true -> sampled(cpu_percent(now_ms(), Runtime), run_queue(), State);
                  false -> State
              end,
    ok = on_port(About, ok, fun beamway_port:tick/1),
    Sampled.

on_port(About, Otherwise, Do) ->
    case beamway_links:driven(About) of
        {ok, Port} ->
            try Do(Port)
            catch error:badarg -> Otherwise % it has just been closed
            end;
        none -> Otherwise
    end.

%% Returns the number of seconds until the next step. If a stop of this node began during a rest, the record omits the part of the stop that lies
%% within the rest. What remains of a stop that lasted for net_ticktime must still be longer than a tick interval.
steps(Cpu, Links) ->
    case Cpu < ?IDLE_PERCENT andalso tick_ms() > 2 * ?REST_STEPS * ?STEP_MS andalso lists:all(fun may_rest/1, maps:values(Links)) of
        true -> ?REST_STEPS;
        false -> 1
    end.

tick_ms() -> 1000 * beamway_config:of_kernel(net_ticktime, 60) div 4.

%% The driver notices a stop of this node only if it lasts twice as long as a rest, but it must notice every stop after which a peer may have given up
%% a link.
may_rest(#link{about = #{resume_ms := Ms}}) when Ms > 0, Ms < 2 * ?REST_STEPS * ?STEP_MS -> false;
may_rest(#link{idle = Idle}) -> Idle >= ?IDLE_STEPS.

%% A link is sampled only every five seconds if it is idle or one of many.
stepped(_Now, Seconds, Many, #link{idle = Idle, missed = Missed} = Link) when Many orelse Idle >= ?IDLE_STEPS, Missed + Seconds < ?REST_STEPS ->
    Link#link{missed = Missed + Seconds};
stepped(Now, Seconds, _Many, #link{about = About, latest = Before, history = History, idle = Idle, missed = Missed, read_ms = ReadMs} = Link) ->
    case beamway_metrics:of_link(About) of
        Figures when map_size(Figures) =:= 0 -> Link;
        Figures ->
            Idled = case is_idle(Before, Figures) of true -> Idle + Missed + Seconds; false -> 0 end,
            LastReadMs = case Figures of #{bytes_in := Bytes} when Bytes =/= map_get(bytes_in, Before) -> Now; _ -> ReadMs end,
            Recorded = recorded(Missed + Seconds, Before, Figures, History),
            Traffic = case {Figures, Before, Link#link.traffic} of
                          {#{bytes_out := Same}, #{bytes_out := Same}, [_ | _] = Known} -> same_traffic(Now, Known);
                          {_, _, Known} -> kept_traffic(Now, traffic_now(About), Known)
                      end,
            full(Now, Figures, Link#link{latest = Figures, latest_ms = Now, history = Recorded, missed = 0, idle = Idled, read_ms = LastReadMs, traffic = Traffic})
    end.

traffic_now(About) -> on_port(About, none, fun beamway_port:traffic/1).

%% A single reading is enough for an idle link, because it has sent nothing in the last ten seconds.
same_traffic(Now, [{_, Last} | _] = Traffic) ->
    case lists:last(Traffic) of
        {Ms, Last} -> [{max(Ms, Now - ?SENT_MS), Last}];
        _ -> kept_traffic(Now, Last, Traffic)
    end.

%% Keeps the most recent reading that is older than SENT_MS.
kept_traffic(_Now, none, _Traffic) -> [];
kept_traffic(Now, Bytes, Traffic) ->
    {Young, Old} = lists:splitwith(fun({Ms, _}) -> Now - Ms < ?SENT_MS end, Traffic),
    [{Now, Bytes} | Young ++ lists:sublist(Old, 1)].

%% Adds the traffic since the last sample of the link. If that sample was taken a few seconds ago, the traffic is divided among these seconds. If it
%% was taken longer ago, this node was stopped, and all traffic is counted in the last second.
recorded(Seconds, Before, Figures, History) when Seconds =:= 1; Seconds > ?REST_STEPS; map_size(Before) =:= 0 ->
    beamway_history:add(grown(Before, Figures), skipped(Seconds - 1, Before, History));
recorded(Seconds, Before, Figures, History) ->
    {Each, Last} = lists:unzip([case Kind of sum -> {New div Seconds, New - (Seconds - 1) * (New div Seconds)}; max -> {Old, New} end
                                || {{_, Kind}, New, Old} <- lists:zip3(fields(), grown(Before, Figures), grown(Before, Before))]),
    beamway_history:add(Last, beamway_history:add(Seconds - 1, Each, History)).

%% Fills in the seconds in which the link was not sampled. A link that has not been sampled before may have come up in the last second.
skipped(_Seconds, Before, History) when map_size(Before) =:= 0 -> History;
skipped(Seconds, Before, History) -> beamway_history:add(Seconds, grown(Before, Before), History).

full(Now, #{busy := Busy, held_senders := Held}, #link{about = #{node := Node, link := Kind} = About, full_ms = Last, events = Events} = Link)
  when Busy + Held > 0, Now - Last >= ?FULL_MS ->
    {ok, Port} = beamway_links:driven(About), % other links do not have these counters
    Senders = try lists:sublist(beamway_senders:within(Port, 0), ?FULL_SENDERS) catch error:badarg -> [] end,
    Told = [iolist_to_binary([beamway_senders:described(Pid), " (", integer_to_list(Waiting div 1024), " KB)"]) || #{pid := Pid, waiting := Waiting} <- Senders],
    ?LOG_INFO("beamway: the link to ~ts over ~ts is full; most waits of: ~ts", [Node, Kind, lists:join("; ", Told)]),
    Link#link{full_ms = Now, events = kept([{Now, {full, Told}} | Events])};
full(_Now, _Figures, Link) ->
    Link.

kept(Events) -> lists:sublist(Events, ?EVENTS).

%% Returns whether only ticks and acknowledgements were transferred.
is_idle(#{bytes_in := In, bytes_out := Out}, #{bytes_in := InNow, bytes_out := OutNow, queue_bytes := 0} = Now) ->
    InNow - In + OutNow - Out < ?IDLE_BYTES andalso maps:get(unanswered, Now, 0) =:= 0;
is_idle(_Before, _Now) ->
    false.

%% Returns the values of a step in the order of fields(). A link that has just come up has no earlier counters, and some kinds of link lack some
%% counters.
grown(Before, Figures) -> [grown(Kind, Name, Before, Figures) || {Name, Kind} <- fields()].

grown(max, Name, _Before, Figures) ->
    case Figures of #{Name := Value} -> Value; #{} -> 0 end;
grown(sum, Name, Before, Figures) ->
    case {Before, Figures} of
        {#{Name := Last}, #{Name := Value}} when Value > Last -> Value - Last;
        _ -> 0
    end.

disconnecting(Ms, Pid, Node, #state{links = Links} = State) ->
    Event = {disconnected_by, beamway_senders:described(Pid)},
    lists:foldl(fun(Connection, Acc) -> noted(Ms, Connection, Event, Acc) end, State,
                [Connection || {Connection, #link{about = #{node := Of}}} <- maps:to_list(Links), Of =:= Node]).

%% ---- the end of a link ----

awaited(Pid, State) ->
    receive {'DOWN', _Monitor, process, Pid, Reason} -> ended(Pid, Reason, State)
    after ?UP_MS -> State
    end.

%% A tool that connects for a moment is of no interest. For any other peer, epmd may know whether it is alive.
ended(Pid, Reason, #state{links = Links, lookers = Lookers} = Before) ->
    {#link{about = #{hidden := Hidden, node := Node, family := Family, peer_port := Port}} = Link, Left} = maps:take(Pid, Links),
    State = Before#state{links = Left},
    Now = now_ms(),
    Record = (record(Link, Now, State))#{ended => #{ago_ms => 0, reason => Reason}},
    case not Hidden andalso beamway_verdict:asks_epmd(Reason, maps:get(events, Record)) of
        true ->
            Looker = spawn_link(?MODULE, look, [Node, Family, Port]),
            _ = erlang:send_after(?LOOK_MS, self(), {stop, Looker}),
            State#state{lookers = Lookers#{Looker => {Now, Record}}};
        false ->
            judged(Now, Record, State)
    end.

%% @private Exits with what it has found as the reason.
-spec look(node(), beamway_stream:family(), Port :: inet:port_number()) -> no_return().
look(Node, Family, Port) ->
    exit({looked, look(Node, Family, Port, now_ms() + ?ASK_MS)}).

%% The process of a peer that seems to be alive may be exiting, so the check is repeated.
look(Node, Family, Port, Until) ->
    Seen = seen(epmd_said(Node, Family), Node, Family, Port),
    case is_alive(Seen) andalso now_ms() < Until of
        true -> receive after ?ASK_AGAIN_MS -> look(Node, Family, Port, Until) end;
        false -> Seen
    end.

is_alive(#{epmd := listed}) -> true;
is_alive(#{peer_port := open}) -> true;
is_alive(#{}) -> false.

%% epmd may hang, and there must be time left to try the peer's port.
epmd_said(Node, Family) ->
    {Asker, Monitor} = spawn_monitor(?MODULE, ask_epmd, [Node, Family]),
    receive
        {'DOWN', Monitor, process, Asker, {said, Said}} -> Said;
        {'DOWN', Monitor, process, Asker, _Failed} -> unknown
    after ?EPMD_MS ->
        exit(Asker, kill),
        unknown
    end.

%% @private Exits with epmd's answer as the reason.
-spec ask_epmd(node(), beamway_stream:family()) -> no_return().
ask_epmd(Node, Family) -> exit({said, beamway_epmd:of_node(Node, Family, undefined)}).

%% If epmd has just been restarted, it does not know the peer. epmd may also have exited, or may hang, while the peer is alive.
seen({listed, {_, Now}}, _Node, _Family, Port) when Now =/= Port, Port =/= 0 -> #{epmd => listed_elsewhere};
seen({listed, _}, _Node, _Family, _Port) -> #{epmd => listed};
seen(Said, Node, Family, Port) ->
    #{epmd => case Said of {not_listed, _, _} -> not_listed; {refuses, _} -> refuses; unknown -> unknown end, peer_port => beamway_epmd:port_of_node(Node, Family, Port)}.

answered(Looker, #state{asking = Asking} = State) ->
    {Ready, Waiting} = lists:partition(fun({_, _, Pending}) -> Pending =:= [] end, [{From, Wanted, lists:delete(Looker, Pending)} || {From, Wanted, Pending} <- Asking]),
    _ = [gen_server:reply(From, wanted(Wanted, State)) || {From, Wanted, []} <- Ready],
    State#state{asking = Waiting}.

%% Tools connect and disconnect all the time, so their records would leave no room for those of peers.
judged(Ms, #{hidden := Hidden} = Record, #state{dead = Dead} = State) ->
    Verdict = beamway_verdict:verdict(Record),
    ok = log(Record, Verdict),
    case Hidden of
        true -> State;
        false -> State#state{dead = lists:sublist([{Ms, Record#{verdict => Verdict}} | Dead], ?DEAD)}
    end.

%% A tool such as ejabberdctl starts a hidden node for each call, which would fill the log at level info.
log(#{node := Node, link := Kind, hidden := Hidden, ended := #{reason := Reason}}, #{cause := Cause, short := Short}) ->
    Level = case {Cause, Hidden} of {protocol, _} -> error; {_, true} -> debug; {_, false} -> info end,
    ?LOG(Level, "beamway: link to ~ts over ~ts is down: ~ts: ~ts", [Node, Kind, beamway_verdict:reason(Reason), Short]).

%% ---- reports about a link ----

wanted(Wanted, #state{links = Links, dead = Dead} = State) ->
    Now = now_ms(),
    [record(Link, Now, State) || #link{about = #{node := Node}} = Link <- maps:values(Links), Wanted(Node)]
        ++ [aged(Record, Now - Ms) || {Ms, #{node := Node} = Record} <- Dead, Wanted(Node)].

record(#link{about = About, history = History, latest = Latest, latest_ms = LatestMs, missed = Missed, read_ms = ReadMs, events = Events}, Now,
       #state{own = Own, until = Until, due = Due}) ->
    SinceStep = max(0, Now - Until) div ?STEP_MS,
    UntilNow = skipped(Missed + SinceStep, Latest, History),
    (maps:with([node, link, address, hidden, since], About))
        #{events => [{Now - Ms, Event} || {Ms, Event} <- Events], latest => aged_figures(Latest, Now - LatestMs), silent_ms => Now - ReadMs,
          seconds => beamway_history:seconds(UntilNow), tens => beamway_history:tens(UntilNow), own => beamway_history:seconds(own_until(Now - Due, SinceStep, Own)),
          tick_ms => tick_ms()}.

%% An ended link is not queried again, so its values from one step ago have aged.
aged_figures(#{ack_ms := AckMs} = Latest, AgoMs) -> Latest#{ack_ms := AckMs + AgoMs};
aged_figures(Latest, _AgoMs) -> Latest.

%% When this node runs again after a stop, it may learn that a link has ended before the timer fires.
own_until(LateMs, Seconds, Own) when LateMs >= ?STEP_MS -> beamway_history:add(own_step(LateMs, 0, 0), beamway_history:add(Seconds - 1, own_step(0, 0, 0), Own));
own_until(_LateMs, Seconds, Own) -> beamway_history:add(Seconds, own_step(0, 0, 0), Own).

aged(#{ended := Ended} = Record, AgoMs) -> Record#{ended := Ended#{ago_ms := AgoMs}}.

now_ms() -> erlang:monotonic_time(millisecond).

-ifdef(TEST).
state(More) -> More#state{seconds = 600, own = beamway_history:new(own_fields(), 600), runtime = runtime(now_ms()), clock_ms = clock_ms()}.

%% A rest of five seconds can end early, but only at a full second, and after at least half a second.
a_rest_ends_early_test_() ->
    Now = now_ms(),
    Ends = fun(LeftMs) ->
                   #state{due = Due, timer = Timer} = hurried(Now, state(#state{until = Now + LeftMs - 5000, due = Now + LeftMs, timer = make_ref()})),
                   _ = erlang:cancel_timer(Timer),
                   Due - Now
           end,
    [?_assertEqual(900, Ends(4900)), ?_assertEqual(1400, Ends(3400)), ?_assertEqual(700, Ends(700)), ?_assertEqual(-3000, Ends(-3000))].

%% Four seconds after the last sample, 43 more bytes had been read, and two senders were waiting.
what_happened_is_divided_among_seconds_test() ->
    Figures = fun(Bytes, Held) -> #{bytes_in => Bytes, held_senders => Held} end,
    Seconds = fun(Count) ->
                      [{Times, Bytes, Held} || {Times, #{bytes_in := Bytes, held_senders := Held}} <-
                          beamway_history:seconds(recorded(Count, Figures(100, 1), Figures(143, 2), beamway_history:new(fields(), 600)))]
              end,
    ?assertEqual([{1, 13, 2}, {3, 10, 1}], Seconds(4)),
    ?assertEqual([{1, 43, 2}], Seconds(1)),
    ?assertEqual([{1, 43, 2}, {16, 0, 1}], Seconds(17)).

%% This node was stopped for 3 s and, 40 s later, during a rest, for 17 s. The second stop ended 8 s ago.
stops_keep_their_time_test() ->
    Link = #link{about = #{node => b@h, link => tcp, address => <<>>, hidden => false, since => 0}, monitor = make_ref(), history = beamway_history:new(fields(), 600),
                 latest_ms = 0, full_ms = 0, read_ms = now_ms(), events = []},
    Stopped = fun(PlannedMs, LateMs, State) ->
                      Timer = make_ref(),
                      Now = now_ms(),
                      {noreply, After} = handle_info({timeout, Timer, step}, State#state{until = Now - LateMs - PlannedMs, due = Now - LateMs, timer = Timer}),
                      _ = erlang:cancel_timer(After#state.timer),
                      After
              end,
    State = Stopped(5000, 17000, Stopped(20000, 0, Stopped(1000, 3000, state(#state{until = 0, due = 0})))),
    #{own := Own} = Record = record(Link, State#state.until + 8000, State#state{due = State#state.until + 9000}),
    ?assertEqual(lists:sum([8, 22, 20, 4]), lists:sum([Count || {Count, _} <- Own])),
    #{facts := Facts} = beamway_verdict:verdict(Record),
    ?assertEqual([{50000, <<"this node did not run for 3.0 s">>}, {8000, <<"this node did not run for 17.0 s">>}],
                 [Fact || {_, <<"this node did not", _/binary>>} = Fact <- Facts]).

%% A peer may give up this link after three seconds, so a stop of this node that lasts as long must be noticed.
may_rest_test_() ->
    Link = fun(ResumeMs, Idle) ->
                   #link{about = #{resume_ms => ResumeMs}, monitor = make_ref(), history = beamway_history:new([], 60), idle = Idle, latest_ms = 0, full_ms = 0,
                         read_ms = 0, events = []}
           end,
    [?_assertNot(may_rest(Link(3000, 10))), ?_assertNot(may_rest(Link(15000, 9))), ?_assert(may_rest(Link(15000, 10))), ?_assert(may_rest(Link(0, 10)))].

what_a_link_said_grows_older_test() ->
    Now = now_ms(),
    Link = #link{about = #{node => b@h, link => tcp, address => <<>>, hidden => false, since => 0}, monitor = make_ref(), history = beamway_history:new(fields(), 60),
                 latest = #{ack_ms => 3000}, latest_ms = Now - 1000, full_ms = Now, read_ms = Now - 4500, events = []},
    #{latest := #{ack_ms := AckMs}, silent_ms := 4500} =
        record(Link, Now, state(#state{until = Now, due = Now})),
    ?assertEqual(4000, AckMs).
-endif.
