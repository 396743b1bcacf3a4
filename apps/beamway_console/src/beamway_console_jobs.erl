%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs the jobs that browsers start and watch: a measurement of the network and a benchmark, one of each at a time. It also reads the state
%% of running pipes while a browser shows it.
%%
%% Each job is a separate process with a monitor and a time limit, so it continues even if the browser that started it is closed. The last
%% measurement is stored here.
-module(beamway_console_jobs).
-behaviour(gen_server).

-export([start_link/1, measure/1, bench/1, stop/1, state/0, measured/0, set_measured/1, pipes/0, tell/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2, job/2]).

-define(CALL_MS, 10000).
-define(MEASURE_MS, 1800000).
-define(BENCH_MS, 300000).
-define(LINES, 40).
-define(TELL_MS, 250).

-record(job, {pid :: pid(), monitor :: reference(), timer :: reference(), view :: map()}).
-record(state, {config :: beamway_console_config:config(), measured = none :: none | placement_probe:measured(), measured_at = 0 :: integer(),
                jobs = #{} :: #{measure | bench => #job{}}, last = #{} :: #{measure | bench => map()}, told = 0 :: integer(), later = none :: none | reference(), looking = none :: none | pid()}).

%% @doc Starts the server.
-spec start_link(beamway_console_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) -> gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% @doc Starts measuring all nodes that are up, with the options of {@link placement_probe:measure/2}.
-spec measure(placement_probe:options()) -> ok | {error, unicode:chardata()}.
measure(Options) -> gen_server:call(?MODULE, {begin_job, measure, Options}, ?CALL_MS).

%% @doc Starts a quick benchmark.
-spec bench(Name :: binary()) -> ok | {error, unicode:chardata()}.
bench(Name) -> gen_server:call(?MODULE, {begin_job, bench, Name}, ?CALL_MS).

%% @doc Stops a running job.
-spec stop(measure | bench) -> ok.
stop(Which) -> gen_server:call(?MODULE, {stop, Which}, ?CALL_MS).

%% @doc Returns what is running, and what ran last.
-spec state() -> map().
state() -> gen_server:call(?MODULE, state, ?CALL_MS).

%% @doc Returns the last measurement.
-spec measured() -> {ok, placement_probe:measured(), AtSeconds :: integer()} | none.
measured() -> gen_server:call(?MODULE, measured, ?CALL_MS).

%% @doc Stores times that were measured earlier, for example those from a file.
-spec set_measured(placement_probe:measured()) -> ok.
set_measured(Measured) -> gen_server:call(?MODULE, {set_measured, Measured}, ?CALL_MS).

%% @doc Reads the state of the running pipes and sends it. The hub calls this for each frame that a browser waits for.
-spec pipes() -> ok.
pipes() -> gen_server:cast(?MODULE, pipes).

%% @doc Sends what is running and what ran last. The hub calls this for a browser that has connected or reconnected, because it may have missed the
%% end of a job.
-spec tell() -> ok.
tell() -> gen_server:cast(?MODULE, tell).

%% @private
-spec init(beamway_console_config:config()) -> {ok, #state{}}.
init(Config) ->
    process_flag(trap_exit, true),
    {ok, #state{config = Config}}.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({begin_job, Which, _}, _, #state{jobs = Jobs} = State) when is_map_key(Which, Jobs) -> {reply, {error, "one is running already"}, State};
handle_call({begin_job, measure, Options}, _, State) ->
    case beamway_console_hub:nodes_up() of
        [_, _ | _] = Nodes -> {reply, ok, begun(measure, ?MEASURE_MS, #{nodes => length(Nodes)}, fun(Tell) -> measured_by(Nodes, Options, Tell) end, State)};
        _ -> {reply, {error, "at least two nodes that answer are needed"}, State}
    end;
handle_call({begin_job, bench, Name}, _, #state{config = #{command := Command}} = State) ->
    case {beamway_console_bench:is_startable(Name), filelib:is_regular(Command)} of
        {true, true} -> {reply, ok, begun(bench, ?BENCH_MS, #{name => Name, lines => []}, fun(Tell) -> beamway_console_bench_run:run(Command, Name, Tell) end, State)};
        {false, _} -> {reply, {error, ["'", Name, "' is not a benchmark that can be started here"]}, State};
        {_, false} -> {reply, {error, [Command, " does not exist; benchmarks need a checkout of Beamway"]}, State}
    end;
handle_call({stop, Which}, _, #state{jobs = Jobs} = State) ->
    _ = [exit(Pid, stopped) || #{Which := #job{pid = Pid}} <- [Jobs]],
    {reply, ok, State};
handle_call(state, _, State) -> {reply, view(State), State};
handle_call(measured, _, #state{measured = none} = State) -> {reply, none, State};
handle_call(measured, _, #state{measured = Measured, measured_at = At} = State) -> {reply, {ok, Measured, At}, State};
handle_call({set_measured, Measured}, _, State) -> {reply, ok, told(State#state{measured = Measured, measured_at = erlang:system_time(second)})}.

measured_by(Nodes, Options, Tell) ->
    Progress = fun(#{mode := Mode, done := Done, total := Total, left_s := Left}) ->
                       Tell(#{mode => Mode, done => Done, total => Total, left_s => case Left of unknown -> null; _ -> round(Left) end})
               end,
    placement_probe:measure(Nodes, Options#{progress => Progress}).

%% A job reports through messages, which only change what is shown.
begun(Which, LimitMs, View, Fun, #state{jobs = Jobs} = State) ->
    Self = self(),
    Tell = fun(News) -> Self ! {news, Which, News}, ok end,
    {Pid, Monitor} = spawn_monitor(?MODULE, job, [Fun, Tell]),
    Timer = erlang:send_after(LimitMs, self(), {too_long, Pid}),
    told(State#state{jobs = Jobs#{Which => #job{pid = Pid, monitor = Monitor, timer = Timer, view = View#{began_at => erlang:system_time(second)}}}}).

%% @private The result is passed as the exit reason.
-spec job(fun((Tell) -> {ok, map()} | {error, term()}), Tell) -> no_return() when Tell :: fun((map()) -> ok).
job(Fun, Tell) -> exit({result, Fun(Tell)}).

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(pipes, #state{looking = none, config = #{pipes := Folder}} = State) ->
    {Pid, _} = spawn_monitor(fun() ->
                                     Pipes = beamway_console_pipes:running(Folder),
                                     beamway_console_hub:tell(pipes, beamway_console_web:encode(#{t => erlang:system_time(millisecond), pipes => Pipes}))
                             end),
    {noreply, State#state{looking = Pid}};
handle_cast(tell, State) -> {noreply, told(State)};
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({news, Which, News}, #state{jobs = Jobs} = State) ->
    {noreply, case Jobs of
                  #{Which := #job{view = View} = Job} -> told(State#state{jobs = Jobs#{Which := Job#job{view = joined(View, News)}}});
                  #{} -> State
              end};
handle_info({too_long, Pid}, State) ->
    exit(Pid, too_long),
    {noreply, State};
handle_info(tell, State) -> {noreply, told(State#state{later = none})};
handle_info({'DOWN', _, process, Pid, _}, #state{looking = Pid} = State) -> {noreply, State#state{looking = none}};
handle_info({'DOWN', Monitor, process, _, Reason}, #state{jobs = Jobs} = State) ->
    {noreply, case [Which || {Which, #job{monitor = M}} <- maps:to_list(Jobs), M =:= Monitor] of
                  [Which] -> over(Which, Reason, State);
                  [] -> State
              end};
handle_info(_, State) -> {noreply, State}.

%% @private
-spec terminate(term(), #state{}) -> ok.
terminate(_, #state{jobs = Jobs}) ->
    _ = [exit(Pid, stopped) || #job{pid = Pid} <- maps:values(Jobs)],
    ok.

joined(#{lines := Lines} = View, #{line := Line}) -> View#{lines := lists:sublist([Line | Lines], ?LINES)};
joined(View, News) -> maps:merge(View, News).

over(Which, Reason, #state{jobs = Jobs, last = Last} = State) ->
    {#job{timer = Timer, view = View}, Left} = maps:take(Which, Jobs),
    _ = erlang:cancel_timer(Timer),
    {Outcome, State1} = outcome(Reason, State),
    Done = maps:merge(View#{ended_at => erlang:system_time(second)}, Outcome),
    told(State1#state{jobs = Left, last = Last#{Which => Done}}).

outcome({result, {ok, #{pairs := _, failed := Failed} = Measured}}, State) ->
    {#{ok => true, failed => length(Failed)}, State#state{measured = Measured, measured_at = erlang:system_time(second)}};
outcome({result, {ok, Result}}, State) -> {#{ok => true, result => Result}, State};
outcome({result, {error, Why}}, State) -> {#{ok => false, why => text(Why)}, State};
outcome(stopped, State) -> {#{ok => false, why => <<"it was stopped">>}, State};
outcome(too_long, State) -> {#{ok => false, why => <<"it took too long and was ended">>}, State};
outcome(Reason, State) -> {#{ok => false, why => text(Reason)}, State}.

text(Text) when is_binary(Text) -> Text;
text(Term) -> unicode:characters_to_binary(io_lib:format("~0tP", [Term, 15])).

view(#state{jobs = Jobs, last = Last, measured_at = At}) ->
    #{running => maps:map(fun(_, #job{view = View}) -> View end, Jobs), last => Last, measured_at => At}.

%% Sends the state no more often than a person can perceive.
told(#state{later = Timer} = State) when Timer =/= none -> State;
told(#state{told = Told} = State) ->
    case erlang:monotonic_time(millisecond) - Told of
        Ago when Told =:= 0; Ago >= ?TELL_MS ->
            ok = beamway_console_hub:tell(jobs, beamway_console_web:encode(view(State))),
            State#state{told = erlang:monotonic_time(millisecond)};
        Ago -> State#state{later = erlang:send_after(?TELL_MS - Ago, self(), tell)}
    end.
