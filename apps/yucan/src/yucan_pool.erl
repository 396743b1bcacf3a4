%% SPDX-License-Identifier: Apache-2.0
%% @doc Starts and watches the connection processes of one listener: a number of them wait in accept, and each one that has
%% got a connection is replaced. What a process does is its own affair; one that crashes takes no other with it.
-module(yucan_pool).
-behaviour(gen_server).

-export([start_link/2, drain/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-include("yucan_internal.hrl").

-record(state, {
    listener :: #listener{},
    waiting :: non_neg_integer(),
    serving = #{} :: #{pid() => true},
    draining = false :: boolean(),
    complained = 0 :: integer()
}).

%% @doc The acceptors of a listener; its socket may belong to another process.
-spec start_link(#listener{}, Acceptors :: pos_integer()) -> {ok, pid()}.
start_link(Listener, Acceptors) ->
    gen_server:start_link(?MODULE, {Listener, Acceptors}, []).

%% @doc Idle connections end now, busy ones after their answer.
-spec drain(pid()) -> ok.
drain(Pool) -> gen_server:cast(Pool, drain).

%% @private
-spec init({#listener{}, pos_integer()}) -> {ok, #state{}}.
init({Listener, Acceptors}) ->
    process_flag(trap_exit, true),
    Own = Listener#listener{pool = self()},
    lists:foreach(fun(_) -> start(Own) end, lists:seq(1, Acceptors)),
    {ok, #state{listener = Own, waiting = Acceptors}}.

start(Listener) ->
    _ = spawn_opt(yucan_conn, accept, [Listener], [link]),
    ok.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, {error, unknown}, #state{}}.
handle_call(_, _, State) ->
    {reply, {error, unknown}, State}.

%% @private
-spec handle_cast(drain, #state{}) -> {noreply, #state{}} | {stop, normal, #state{}}.
handle_cast(drain, #state{serving = Serving} = State) ->
    _ = [Pid ! {yucan, drain} || Pid <- maps:keys(Serving)],
    unless_done(State#state{draining = true}).

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}} | {stop, normal, #state{}}.
handle_info({accepted, Pid}, #state{listener = Listener, serving = Serving} = State) ->
    start(Listener),
    {noreply, State#state{serving = Serving#{Pid => true}}};
handle_info({'EXIT', Pid, Reason}, #state{listener = Listener, serving = Serving} = State) ->
    case maps:take(Pid, Serving) of
        {true, Left} ->
            atomics:sub(Listener#listener.open, 1, 1),
            unless_done(State#state{serving = Left});
        error ->
            unless_done(replace(Reason, State))
    end;
handle_info({accept_failed, Reason}, State) ->
    {noreply, complain(Reason, State)};
handle_info(_, State) ->
    {noreply, State}.

%% One that waited: killed, or its old code was purged.
replace({shutdown, listener_closed}, #state{waiting = Waiting} = State) -> State#state{waiting = Waiting - 1};
replace(_, #state{listener = Listener} = State) -> start(Listener), State.

unless_done(#state{draining = true, waiting = 0, serving = Serving} = State) when map_size(Serving) =:= 0 -> {stop, normal, State};
unless_done(State) -> {noreply, State}.

%% Once a minute is enough.
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
