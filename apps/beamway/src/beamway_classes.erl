%% SPDX-License-Identifier: Apache-2.0
%% @doc The server that knows the class of each sending process ({@link beamway:class/1}) and announces it to all ports of the driver.
%%
%% A process has a class either because it asked for one or because the option `classes' names it; its own request has priority. The server monitors
%% the process and drops the class when it exits. Each port stores the classes in its frame scheduler, so sending a frame does not require a message
%% to this server.
%%
%% If the option names any process, a second process looks for matches every five seconds: it looks up the registered names, and the initial calls of
%% processes that it has not seen before. It is linked to the server, which therefore never waits for a process that is slow to answer. It uses at
%% most one percent of a CPU, so with a million processes it looks less often.
%%
%% The classes are stored in the table of {@link beamway_links}, so they survive a crash of this server, and its successor announces them to all
%% ports again. Nothing here may crash because of what a process does, because servers that crash repeatedly bring down the distribution.
-module(beamway_classes).
-behaviour(gen_server).

-export([start_link/0, set/2, of_process/1, link_is_up/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export([wait/1]).
-export_type([class/0, named/0]).

-define(TABLE, beamway_links).
-define(LOOK_MS, 5000). % each time, a scheduler wakes up and then spins for a while

-type class() :: control | normal | bulk.
-type named() :: {Name :: atom() | mfa(), class()}.
%% A registered name or an initial call, and the class given to the process.

%% Rows of the table: {{class, pid()}, class(), call | option}.

-record(state, {monitors = #{} :: #{pid() => reference()}}).

-record(look, {server :: pid(),
               names :: [{atom(), class()}],
               calls :: #{mfa() => class()},
               seen = #{} :: #{pid() => []}}). % processes whose initial call is already known

%% @doc Called by {@link beamway_sup}.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Gives the process this class on all links, and returns its previous one. Has no effect without the carrier.
-spec set(pid(), class()) -> Former :: class().
set(Pid, Class) ->
    try gen_server:call(?MODULE, {set, Pid, Class})
    catch exit:{noproc, _} -> normal
    end.

%% @doc Sends all classes to the controller of a new link, which is a port of the driver.
-spec link_is_up(port()) -> ok.
link_is_up(Port) ->
    gen_server:cast(?MODULE, {link_is_up, Port}).

%% @private
-spec init([]) -> {ok, #state{}}.
init([]) ->
    Classes = ets:select(?TABLE, [{{{class, '$1'}, '$2', '_'}, [], [{{'$1', '$2'}}]}]),
    ok = tell_all(Classes),
    ok = start_looking(maps:get(classes, beamway_links:config())),
    {ok, lists:foldl(fun({Pid, _}, State) -> watch(Pid, State) end, #state{}, Classes)}.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({set, Pid, Class}, _From, State) ->
    Former = of_process(Pid),
    %% A process that chose `normal' itself has a row, so the option does not override that choice.
    ets:insert(?TABLE, {{class, Pid}, Class, call}),
    ok = change(Pid, Former, Class),
    {reply, Former, watch(Pid, State)};
handle_call(_Request, _From, State) ->
    {reply, {error, badarg}, State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({link_is_up, Port}, #state{monitors = Monitors} = State) ->
    ok = tell(Port, [{Pid, of_process(Pid)} || Pid <- maps:keys(Monitors)]),
    {noreply, State};
handle_cast({found, Found}, State) ->
    %% Two names may refer to the same process, which may also have asked for a class itself. The first class is kept.
    New = [Each || {Pid, Class} = Each <- Found, ets:insert_new(?TABLE, {{class, Pid}, Class, option})],
    ok = tell_all([Each || {_, Class} = Each <- New, Class =/= normal]),
    {noreply, lists:foldl(fun({Pid, _}, Watching) -> watch(Pid, Watching) end, State, New)};
handle_cast(_Request, State) ->
    {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({'DOWN', _Monitor, process, Pid, _Reason}, #state{monitors = Monitors} = State) ->
    ok = change(Pid, of_process(Pid), normal),
    ets:delete(?TABLE, {class, Pid}),
    {noreply, State#state{monitors = maps:remove(Pid, Monitors)}};
handle_info(_Info, State) ->
    {noreply, State}.

watch(Pid, #state{monitors = Monitors} = State) when is_map_key(Pid, Monitors) -> State;
watch(Pid, #state{monitors = Monitors} = State) -> State#state{monitors = Monitors#{Pid => monitor(process, Pid)}}.

%% @doc Returns the class of a process.
-spec of_process(pid()) -> class().
of_process(Pid) ->
    case ets:lookup(?TABLE, {class, Pid}) of
        [{_, Class, _}] -> Class;
        [] -> normal
    end.

change(_Pid, Class, Class) -> ok;
change(Pid, _Former, Class) -> tell_all([{Pid, Class}]).

tell_all([]) -> ok;
tell_all(Classes) -> lists:foreach(fun(Port) -> tell(Port, Classes) end, ports()).

ports() -> [Port || Link <- beamway_links:all(), {ok, Port} <- [beamway_links:driven(Link)]].

tell(_Port, []) -> ok;
tell(Port, Classes) ->
    try beamway_port:classes(Port, Classes)
    catch error:badarg -> ok % the link has just been closed
    end.

%% ---- the processes that the option names ----

start_looking([]) -> ok;
start_looking(Named) ->
    Look = #look{server = self(), names = [Name || {Who, _} = Name <- Named, is_atom(Who)],
                 calls = maps:from_list(lists:reverse([Call || {Who, _} = Call <- Named, is_tuple(Who)]))},
    Pid = spawn_link(?MODULE, wait, [Look]),
    Pid ! look,
    ok.

%% @private
-spec wait(#look{}) -> no_return().
wait(Look) ->
    receive look -> look(Look) end.

look(#look{server = Server, names = Names, calls = Calls, seen = Seen} = Look) ->
    Start = erlang:monotonic_time(microsecond),
    {Called, Now} = by_call(Calls, Seen),
    case [Found || {Pid, _} = Found <- by_name(Names) ++ Called, not ets:member(?TABLE, {class, Pid})] of
        [] -> ok;
        All -> gen_server:cast(Server, {found, All})
    end,
    _ = erlang:send_after(max(?LOOK_MS, (erlang:monotonic_time(microsecond) - Start) div 10), self(), look),
    erlang:hibernate(?MODULE, wait, [Look#look{seen = Now}]).

by_name(Names) -> [{Pid, Class} || {Name, Class} <- Names, Pid <- [whereis(Name)], is_pid(Pid)].

by_call(Calls, Seen) when Calls =:= #{} -> {[], Seen};
by_call(Calls, Seen) ->
    {Known, New} = lists:partition(fun(Pid) -> is_map_key(Pid, Seen) end, processes()),
    Called = [{Pid, initial_call(Pid)} || Pid <- New],
    %% The real initial call of a process is not known before the process has run for the first time.
    Seen1 = [{Pid, []} || Pid <- Known] ++ [{Pid, []} || {Pid, Call} <- Called, Call =/= {proc_lib, init_p, 5}],
    {[{Pid, maps:get(Call, Calls)} || {Pid, Call} <- Called, is_map_key(Call, Calls)], maps:from_list(Seen1)}.

%% Formats the initial call as i() does.
initial_call(Pid) ->
    case process_info(Pid, initial_call) of
        {initial_call, {proc_lib, init_p, _}} -> proc_lib:translate_initial_call(Pid);
        {initial_call, Call} -> Call;
        undefined -> ended
    end.
