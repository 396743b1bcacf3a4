%% SPDX-License-Identifier: Apache-2.0
%% @doc A gen_server for placement_drain_SUITE that counts the calls from each caller. Its state includes a payload of the
%% given size in bytes, with a checksum.
-module(placement_drain_counter).
-behaviour(gen_server).

-export([start_link/2, start_named/1, start_under/2, bump/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, placement_handoff/3]).

-record(state, {name, load :: [binary()], sum :: binary(), last = #{} :: #{term() => integer()}, heard = [] :: [term()], moves = 0 :: integer(), extra = none}).

start_link(Name, Bytes) -> gen_server:start_link(?MODULE, {Name, Bytes}, []).

start_named(Name) -> gen_server:start_link({global, Name}, ?MODULE, {Name, 10}, []).

%% Starts a supervisor with this name for the server.
start_under(Name, Flags) -> supervisor:start_link({local, Name}, ?MODULE, {supervisor, Flags}).

%% Counts a call from this caller. The reply contains the host's time.
bump(Server, Caller) -> gen_server:call(Server, {bump, Caller}, 30000).

init({supervisor, {Flags, Children}}) -> {ok, {Flags, Children}};
init({Name, Bytes}) ->
    Load = [crypto:strong_rand_bytes(min(1024, Bytes - At)) || At <- lists:seq(0, Bytes - 1, 1024)],
    {ok, #state{name = Name, load = Load, sum = erlang:md5(Load)}}.

handle_call({bump, Caller}, _, #state{last = Last} = State) ->
    Count = maps:get(Caller, Last, 0) + 1,
    {reply, {Count, self(), os:perf_counter(microsecond)}, State#state{last = Last#{Caller => Count}}};
handle_call(last, _, #state{last = Last} = State) -> {reply, Last, State};
handle_call(heard, _, #state{heard = Heard} = State) -> {reply, lists:reverse(Heard), State};
handle_call(load, _, #state{load = Load, sum = Sum, moves = Moves} = State) -> {reply, {iolist_size(Load), erlang:md5(Load) =:= Sum, Moves}, State};
handle_call({sleep, Ms}, _, State) -> receive after Ms -> {reply, slept, State} end;
handle_call({run, Fun}, _, State) -> {reply, Fun(), State};
handle_call({extra, Extra}, _, State) -> {reply, ok, State#state{extra = Extra}}.

handle_cast(Cast, #state{heard = Heard} = State) -> {noreply, State#state{heard = [Cast | Heard]}}.

handle_info(Info, #state{heard = Heard} = State) -> {noreply, State#state{heard = [Info | Heard]}}.

placement_handoff(leave, #state{extra = stays} = State, _) -> _ = State, {stay, busy};
placement_handoff(leave, #state{extra = {handles, What}} = State, #{to := _}) -> {ok, State, What};
placement_handoff(leave, #state{extra = raises}, _) -> error(oops);
placement_handoff(leave, State, #{to := _}) -> {ok, State};
placement_handoff(arrive, #state{extra = {fails_on, Nodes}} = Given, _) ->
    case lists:member(node(), Nodes) of
        true -> {error, not_here};
        false -> {ok, Given}
    end;
placement_handoff(arrive, #state{extra = {halts_on, Node}}, _) when Node =:= node() -> halt(0, [{flush, false}]);
placement_handoff(arrive, #state{moves = Moves} = Given, #{from := _, vsn := [_], state := #state{}}) -> {ok, Given#state{moves = Moves + 1}}.
