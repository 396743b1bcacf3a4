%% SPDX-License-Identifier: Apache-2.0
%% @doc Tells the function of the option `on_event' what happens to lanes, in the shape of the library telemetry: a name, measurements, metadata.
%%
%% Lanes, the processes of nodes and senders call {@link emit/4}, which never waits. Each event is handled in a process of its own, one after the other in
%% the order in which they came. So a slow or failing function holds up no lane. It has 10 s for an event; then it is killed. At most 1000 events wait;
%% further ones are dropped and counted.
-module(teleport_events).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, new_counters/0, emit/4, dropped/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export_type([handler/0, name/0]).

-type name() :: [atom(), ...].
-type handler() :: none | {module(), atom()} | fun((name(), Measurements :: map(), Metadata :: map()) -> term()).
-type event() :: {handler(), name(), map(), map()}.

%% `warned': the last event has failed, and that was logged.
-record(events, {queue = queue:new() :: queue:queue(event()), running = none :: none | {pid(), Timer :: reference()}, warned = false :: boolean()}).

-define(MAX, 1000).
-define(HANDLER_MS, 10000).
-define(WAITING, 1).
-define(DROPPED, 2).

%% @doc Started by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Called by the supervisor itself. Once: what was dropped is counted from the first start on.
-spec new_counters() -> ok.
new_counters() ->
    case persistent_term:get(?MODULE, none) of
        none -> persistent_term:put(?MODULE, atomics:new(2, []));
        _ -> ok
    end.

%% @doc Something has happened that concerns this node. The measurements get the `system_time' of now, in native units.
-spec emit(node(), name(), Measurements :: map(), Metadata :: map()) -> ok.
emit(Node, Name, Measurements, Metadata) ->
    case teleport_config:of_node(Node) of
        #{on_event := none} -> ok;
        #{on_event := Handler} ->
            Counters = persistent_term:get(?MODULE),
            case atomics:add_get(Counters, ?WAITING, 1) =< ?MAX andalso whereis(?MODULE) of
                Pid when is_pid(Pid) ->
                    Pid ! {event, {Handler, Name, Measurements#{system_time => erlang:system_time()}, Metadata#{node => Node}}},
                    ok;
                _ ->
                    ok = atomics:sub(Counters, ?WAITING, 1),
                    atomics:add(Counters, ?DROPPED, 1)
            end
    end.

%% @doc How many events found no room.
-spec dropped() -> non_neg_integer().
dropped() -> atomics:get(persistent_term:get(?MODULE), ?DROPPED).

%% @private
-spec init([]) -> {ok, #events{}}.
init([]) ->
    process_flag(trap_exit, true),
    ok = atomics:put(persistent_term:get(?MODULE), ?WAITING, 0),
    {ok, #events{}}.

%% @private
-spec handle_call(term(), gen_server:from(), #events{}) -> {reply, {error, badarg}, #events{}}.
handle_call(_Request, _From, State) -> {reply, {error, badarg}, State}.

%% @private
-spec handle_cast(term(), #events{}) -> {noreply, #events{}}.
handle_cast(_Request, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #events{}) -> {noreply, #events{}}.
handle_info({event, Event}, #events{queue = Queue} = State) ->
    {noreply, next(State#events{queue = queue:in(Event, Queue)})};
handle_info({'EXIT', Pid, Reason}, #events{running = {Pid, Timer}} = State) ->
    _ = erlang:cancel_timer(Timer),
    {noreply, next(ended(Reason, State#events{running = none}))};
handle_info({too_long, Pid}, #events{running = {Pid, _}} = State) ->
    true = exit(Pid, kill),
    {noreply, State};
handle_info(_Info, State) ->
    {noreply, State}.

%% A handler ends by its exit reason.
-dialyzer({nowarn_function, next/1}).
next(#events{queue = Queue, running = none} = State) ->
    case queue:out(Queue) of
        {{value, Event}, Rest} ->
            ok = atomics:sub(persistent_term:get(?MODULE), ?WAITING, 1),
            Pid = spawn_link(fun() -> handle(Event) end),
            State#events{queue = Rest, running = {Pid, erlang:send_after(?HANDLER_MS, self(), {too_long, Pid})}};
        {empty, _} -> State
    end;
next(State) ->
    State.

%% The reason tells how it went, and the log has it once.
-spec handle(event()) -> no_return().
handle({Handler, Name, Measurements, Metadata}) ->
    try call(Handler, Name, Measurements, Metadata) of
        _ -> exit(normal)
    catch
        Class:Reason:Stack when {Class, Reason} =/= {exit, normal} -> exit({failed, Name, {Class, Reason, Stack}})
    end.

call({Module, Function}, Name, Measurements, Metadata) -> Module:Function(Name, Measurements, Metadata);
call(Fun, Name, Measurements, Metadata) -> Fun(Name, Measurements, Metadata).

ended(normal, State) ->
    State#events{warned = false};
ended(_, #events{warned = true} = State) ->
    State;
ended(Why, State) ->
    ?LOG_WARNING("teleport: the function of the option on_event fails: ~0tP", [Why, 30]),
    State#events{warned = true}.
