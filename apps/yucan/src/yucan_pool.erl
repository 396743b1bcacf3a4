%% SPDX-License-Identifier: Apache-2.0
%% @doc Starts and monitors the connection processes of a listener. One is started when another exits, and more when
%% fewer than half of the configured number are waiting in accept. If one crashes, no other connection is affected.
-module(yucan_pool).
-behaviour(gen_server).

-export([start_link/2, taken/1, silent/1, speaks/1, drain/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-include("yucan_internal.hrl").

-record(state, {
    listener :: #listener{},
    %% The state of each process, which is one of the values below.
    processes = #{} :: #{pid() => atomics:atomics_ref()},
    %% True if the listening socket has been closed.
    closed = false :: boolean(),
    draining = false :: boolean(),
    complained = 0 :: integer()
}).

%% The pool hibernates after this time without messages, because a burst of thousands of connections leaves it with a heap of several megabytes.
-define(QUIET_MS, 1000).

%% The initial heap of a connection process, in words: large enough for several requests between collections.
-define(WORDS, 1598).

%% Each process has its own atomic for its state, so the counts are correct however the process exits.
-define(WAITS, 0).
-define(SERVES, 1).
%% The process's client has not sent a request yet. During a drain, it gets some time to do so.
-define(SILENT, 2).
-define(SILENT_MS, 1000).
%% How long a handler that traps exits may take to finish when the server stops.
-define(END_MS, 2000).

%% @doc Starts the acceptors of a listener. Another process may own the listening socket.
-spec start_link(#listener{}, Acceptors :: pos_integer()) -> {ok, pid()}.
start_link(Listener, Acceptors) ->
    gen_server:start_link(?MODULE, {Listener, Acceptors}, [{hibernate_after, ?QUIET_MS}]).

%% @doc Records that the caller has accepted a connection. Returns how many are open; no two callers get the same.
-spec taken(#listener{}) -> Open :: pos_integer().
taken(#listener{counters = Counters, waiting = Waiting, doing = Doing, acceptors = Acceptors, pool = Pool}) ->
    ok = atomics:put(Doing, 1, ?SERVES),
    case atomics:sub_get(Waiting, 1, 1) of
        Left when 2 * Left < Acceptors -> Pool ! few_wait;
        _ -> ok
    end,
    atomics:add_get(Counters, ?OPEN, 1).

%% @doc Records that the calling process is waiting for its client's first bytes. It reads no messages in the meantime, so a drain has to kill it.
-spec silent(Doing :: atomics:atomics_ref()) -> ok.
silent(Doing) -> atomics:put(Doing, 1, ?SILENT).

%% @doc Records that the first bytes have arrived. `false' means that it is too late, because a drain is already killing this process.
-spec speaks(Doing :: atomics:atomics_ref()) -> boolean().
speaks(Doing) -> atomics:compare_exchange(Doing, 1, ?SILENT, ?SERVES) =:= ok.

%% @doc Closes idle connections immediately, and busy connections after their response.
-spec drain(pid()) -> ok.
drain(Pool) -> gen_server:cast(Pool, drain).

%% @private
-spec init({#listener{}, pos_integer()}) -> {ok, #state{}}.
init({Listener, Acceptors}) ->
    process_flag(trap_exit, true),
    {ok, fill(#state{listener = Listener#listener{pool = self(), waiting = atomics:new(1, []), acceptors = Acceptors}})}.

%% Starts acceptors until the configured number are waiting, counting those that are still starting.
fill(#state{closed = true} = State) -> State;
fill(#state{listener = #listener{waiting = Waiting, acceptors = Acceptors}} = State) ->
    case Acceptors - atomics:get(Waiting, 1) of
        Missing when Missing > 0 -> lists:foldl(fun(_, Before) -> start(Before) end, State, lists:seq(1, Missing));
        _ -> State
    end.

start(#state{listener = #listener{waiting = Waiting} = Listener, processes = Processes} = State) ->
    Doing = atomics:new(1, []),
    ok = atomics:add(Waiting, 1, 1),
    Pid = spawn_opt(yucan_conn, accept, [Listener#listener{doing = Doing}], [link, {min_heap_size, ?WORDS}]),
    State#state{processes = Processes#{Pid => Doing}}.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, {error, unknown}, #state{}}.
handle_call(_, _, State) -> {reply, {error, unknown}, State}.

%% @private
-spec handle_cast(drain, #state{}) -> {noreply, #state{}} | {stop, normal, #state{}}.
handle_cast(drain, #state{processes = Processes} = State) ->
    _ = [Pid ! {yucan, drain} || Pid <- maps:keys(Processes)],
    _ = erlang:send_after(?SILENT_MS, self(), end_silent),
    unless_done(State#state{closed = true, draining = true}).

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}} | {stop, normal, #state{}}.
handle_info(few_wait, State) -> {noreply, fill(State)};
handle_info({'EXIT', Pid, Reason}, #state{processes = Processes} = State) ->
    case maps:take(Pid, Processes) of
        {Doing, Left} ->
            ended(atomics:get(Doing, 1), Pid, State),
            unless_done(fill(closed(Reason, State#state{processes = Left})));
        error -> {noreply, State}
    end;
handle_info(end_silent, #state{processes = Processes} = State) ->
    maps:foreach(fun(Pid, Doing) -> speaks(Doing) andalso exit(Pid, shutdown) end, Processes),
    {noreply, State};
handle_info({accept_failed, Reason}, State) -> {noreply, complain(Reason, State)};
handle_info(_, State) -> {noreply, State}.

%% @private Waits for the connection processes to exit, because they use data that yucan_server deletes afterwards.
-spec terminate(term(), #state{}) -> ok.
terminate(_, #state{processes = Processes}) ->
    maps:foreach(fun(Pid, _) -> exit(Pid, shutdown) end, Processes),
    gone(Processes, erlang:monotonic_time(millisecond) + ?END_MS).

%% Handles the exits in the order of their arrival, because searching the mailbox for each process would take quadratic time.
gone(Left, _) when map_size(Left) =:= 0 -> ok;
gone(Left, Deadline) ->
    receive
        {'EXIT', Pid, _} -> gone(maps:remove(Pid, Left), Deadline)
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        maps:foreach(fun(Pid, _) -> exit(Pid, kill) end, Left)
    end.

%% The process was still waiting for a connection when its socket was closed, when it was killed, or when its old code was purged.
ended(?WAITS, _, #state{listener = #listener{waiting = Waiting}}) -> atomics:sub(Waiting, 1, 1);
ended(_, Pid, #state{listener = #listener{counters = Counters, quota = Quota}}) ->
    yucan_quota:leave(Quota, Pid),
    atomics:sub(Counters, ?OPEN, 1).

closed({shutdown, listener_closed}, State) -> State#state{closed = true};
closed(_, State) -> State.

unless_done(#state{draining = true, processes = Processes} = State) when map_size(Processes) =:= 0 -> {stop, normal, State};
unless_done(State) -> {noreply, State}.

complain(Reason, #state{complained = Last, listener = #listener{server = Server}} = State) ->
    Now = erlang:monotonic_time(second),
    case Now - Last >= 60 orelse Last =:= 0 of
        true ->
            yucan_events:warning("~ts cannot accept connections: ~ts; it tries again every 100 ms", [Server, explain(Reason)]),
            State#state{complained = Now};
        false -> State
    end.

explain(Reason) when Reason =:= emfile; Reason =:= enfile -> "no file descriptor is left (raise ulimit -n)";
explain(Reason) -> inet:format_error(Reason).
