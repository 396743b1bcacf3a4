%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs the job that browsers start and watch: a measurement of the network, one at a time. It also reads the state of running pipes while a
%% browser shows it.
%%
%% The job is a separate process with a monitor and a time limit, so it continues even if the browser that started it is closed. The last measurement
%% is stored here.
-module(beamway_console_jobs).
-behaviour(gen_server).

-export([start_link/1, measure/1, stop/0, state/0, measured/0, set_measured/1, pipes/0, tell/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2, job/3]).

-define(CALL_MS, 10000).
-define(MEASURE_MS, 1800000).
-define(TELL_MS, 250).

-record(job, {pid :: pid(), monitor :: reference(), timer :: reference(), view :: map()}).
-record(state, {config :: beamway_console_config:config(), measured = none :: none | placement_probe:measured(), measured_at = 0 :: integer(),
                job = none :: none | #job{}, last = none :: none | map(), told = 0 :: integer(), later = none :: none | reference(), looking = none :: none | pid()}).

%% @doc Starts the server.
-spec start_link(beamway_console_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) -> gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% @doc Starts measuring all nodes that are up, with the options of {@link placement_probe:measure/2}.
-spec measure(placement_probe:options()) -> ok | {error, unicode:chardata()}.
measure(Options) -> gen_server:call(?MODULE, {measure, Options}, ?CALL_MS).

%% @doc Stops the job if one is running.
-spec stop() -> ok.
stop() -> gen_server:call(?MODULE, stop, ?CALL_MS).

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
handle_call({measure, _}, _, #state{job = #job{}} = State) -> {reply, {error, "one is running already"}, State};
handle_call({measure, Options}, _, State) ->
    case beamway_console_hub:nodes_up() of
        [_, _ | _] = Nodes -> {reply, ok, begun(Nodes, Options, State)};
        _ -> {reply, {error, "at least two nodes that answer are needed"}, State}
    end;
handle_call(stop, _, State) -> {reply, stop_job(State), State};
handle_call(state, _, State) -> {reply, view(State), State};
handle_call(measured, _, #state{measured = none} = State) -> {reply, none, State};
handle_call(measured, _, #state{measured = Measured, measured_at = At} = State) -> {reply, {ok, Measured, At}, State};
handle_call({set_measured, Measured}, _, State) -> {reply, ok, told(State#state{measured = Measured, measured_at = erlang:system_time(second)})}.

begun(Nodes, Options, State) ->
    {Pid, Monitor} = spawn_monitor(?MODULE, job, [Nodes, Options, self()]),
    Timer = erlang:send_after(?MEASURE_MS, self(), {too_long, Pid}),
    told(State#state{job = #job{pid = Pid, monitor = Monitor, timer = Timer, view = #{nodes => length(Nodes), began_at => erlang:system_time(second)}}}).

%% @private Reports through messages, which only change what is shown. The result is passed as the exit reason.
-spec job([node()], placement_probe:options(), Server :: pid()) -> no_return().
job(Nodes, Options, Server) ->
    Job = self(),
    Progress = fun(#{mode := Mode, done := Done, total := Total, left_s := Left}) ->
                       Server ! {news, Job, #{mode => Mode, done => Done, total => Total, left_s => case Left of unknown -> null; _ -> round(Left) end}},
                       ok
               end,
    exit({result, placement_probe:measure(Nodes, Options#{progress => Progress})}).

stop_job(#state{job = none}) -> ok;
stop_job(#state{job = #job{pid = Pid}}) ->
    true = exit(Pid, stopped),
    ok.

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
handle_info({news, Pid, News}, #state{job = #job{pid = Pid, view = View} = Job} = State) ->
    {noreply, told(State#state{job = Job#job{view = maps:merge(View, News)}})};
handle_info({too_long, Pid}, State) ->
    exit(Pid, too_long),
    {noreply, State};
handle_info(tell, State) -> {noreply, told(State#state{later = none})};
handle_info({'DOWN', _, process, Pid, _}, #state{looking = Pid} = State) -> {noreply, State#state{looking = none}};
handle_info({'DOWN', Monitor, process, _, Reason}, #state{job = #job{monitor = Monitor} = Job} = State) -> {noreply, over(Job, Reason, State)};
handle_info(_, State) -> {noreply, State}.

%% @private
-spec terminate(term(), #state{}) -> ok.
terminate(_, State) -> stop_job(State).

over(#job{timer = Timer, view = View}, Reason, State) ->
    _ = erlang:cancel_timer(Timer),
    {Outcome, State1} = outcome(Reason, State),
    told(State1#state{job = none, last = maps:merge(View#{ended_at => erlang:system_time(second)}, Outcome)}).

outcome({result, {ok, #{failed := Failed} = Measured}}, State) ->
    {#{ok => true, failed => length(Failed)}, State#state{measured = Measured, measured_at = erlang:system_time(second)}};
outcome({result, {error, Why}}, State) -> {#{ok => false, why => text(Why)}, State};
outcome(stopped, State) -> {#{ok => false, why => <<"it was stopped">>}, State};
outcome(too_long, State) -> {#{ok => false, why => <<"it took too long and was ended">>}, State};
outcome(Reason, State) -> {#{ok => false, why => text(Reason)}, State}.

text(Text) when is_binary(Text) -> Text;
text(Term) -> unicode:characters_to_binary(io_lib:format("~0tP", [Term, 15])).

view(#state{job = Job, last = Last, measured_at = At}) ->
    #{running => shown(Job), last => shown(Last), measured_at => At}.

shown(none) -> #{};
shown(#job{view = View}) -> #{measure => View};
shown(View) -> #{measure => View}.

%% Sends the state no more often than a person can perceive.
told(#state{later = Timer} = State) when Timer =/= none -> State;
told(#state{told = Told} = State) ->
    case erlang:monotonic_time(millisecond) - Told of
        Ago when Told =:= 0; Ago >= ?TELL_MS ->
            ok = beamway_console_hub:tell(jobs, beamway_console_web:encode(view(State))),
            State#state{told = erlang:monotonic_time(millisecond)};
        Ago -> State#state{later = erlang:send_after(?TELL_MS - Ago, self(), tell)}
    end.
