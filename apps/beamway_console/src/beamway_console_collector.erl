%% SPDX-License-Identifier: Apache-2.0
%% @doc Collects a node's data about itself, in one process per node for any number of consoles and browsers.
%%
%% A console sends this module to nodes that do not have it ({@link beamway_console_nodes}), so it uses only kernel and
%% stdlib, and other applications only where they run. It sends each console a sample once per interval, and exits when
%% the last console has disconnected. If the code was sent, it then also removes the code. If the connection to a
%% console is busy, that console misses the sample, so nothing blocks and no samples pile up.
%%
%% The collector is not supervised. The console that monitors it restarts it.
-module(beamway_console_collector).

-export([attach/3, init/4, protocol/0]).
-export_type([sample/0, facts/0]).

-type facts() :: #{host := binary(), space := binary(), otp := binary(), schedulers := pos_integer(), os_pid := binary(), carrier := binary(), started := integer(),
                   beamway => binary()}.
%% `space' distinguishes the network namespaces on a host.
-type sample() :: #{at := integer(), cpu_ms := integer(), memory := integer(), processes := integer(), run_queue := integer(), busy_us := integer(), samples := integer(),
                    apps := [atom()], links := [map()], http => [{atom(), map(), list()}], leases => non_neg_integer(), peers := [node()]}.
%% `at' is the node's monotonic time in ms, and `busy_us' the time spent on all samples so far.

-define(NAME, beamway_console_collector).
-define(PROTOCOL, 1).
-define(START_MS, 5000).

-record(state, {hubs = #{} :: #{reference() => pid()}, interval_ms :: pos_integer(), sent :: boolean(), busy_us = 0 :: non_neg_integer(),
                count = 0 :: non_neg_integer(), next :: integer()}).

%% @doc Returns the version of the messages.
-spec protocol() -> pos_integer().
protocol() -> ?PROTOCOL.

%% @doc A console calls this function on the node itself; from then on, its hub receives samples.
%% `Sent' means that the code was sent and must be removed at the end.
-spec attach(Hub :: pid(), IntervalMs :: pos_integer(), Sent :: boolean()) -> {ok, pid(), facts()} | {error, term()}.
attach(Hub, IntervalMs, Sent) ->
    case whereis(?NAME) of
        undefined -> start(Hub, IntervalMs, Sent);
        Pid ->
            Pid ! {attach, Hub, IntervalMs},
            {ok, Pid, facts()}
    end.

start(Hub, IntervalMs, Sent) ->
    {Pid, Monitor} = spawn_opt(?MODULE, init, [self(), Hub, IntervalMs, Sent], [monitor]),
    receive
        {Pid, started} ->
            true = demonitor(Monitor, [flush]),
            {ok, Pid, facts()};
        %% Another console has started the collector first.
        {'DOWN', Monitor, process, Pid, taken} -> attach(Hub, IntervalMs, Sent);
        {'DOWN', Monitor, process, Pid, Reason} -> {error, Reason}
    after ?START_MS ->
        true = demonitor(Monitor, [flush]),
        exit(Pid, kill),
        {error, timeout}
    end.

facts() ->
    {ok, Host} = inet:gethostname(),
    Space = case file:read_link("/proc/self/ns/net") of {ok, Name} -> Name; {error, _} -> "" end,
    Carrier = case init:get_argument(proto_dist) of {ok, Names} -> lists:last(lists:append([["inet_tcp"] | Names])); error -> "inet_tcp" end,
    Facts = #{host => unicode:characters_to_binary(Host), space => unicode:characters_to_binary(Space),
              otp => list_to_binary(erlang:system_info(otp_release)), schedulers => erlang:system_info(schedulers_online), os_pid => list_to_binary(os:getpid()),
              carrier => unicode:characters_to_binary(Carrier),
              started => erlang:convert_time_unit(erlang:system_info(start_time) + erlang:time_offset(), native, second)},
    case application:get_key(beamway, vsn) of
        {ok, Version} -> Facts#{beamway => list_to_binary(Version)};
        undefined -> Facts
    end.

%% @private
-spec init(pid(), pid(), pos_integer(), boolean()) -> ok.
init(Starter, Hub, IntervalMs, Sent) ->
    try register(?NAME, self())
    catch error:badarg -> exit(taken)
    end,
    Starter ! {self(), started},
    loop(added(Hub, #state{interval_ms = IntervalMs, sent = Sent, next = now_ms()})).

added(Hub, #state{hubs = Hubs} = State) ->
    case lists:member(Hub, maps:values(Hubs)) of
        true -> State;
        false -> State#state{hubs = Hubs#{monitor(process, Hub) => Hub}}
    end.

now_ms() -> erlang:monotonic_time(millisecond).

loop(#state{next = Next} = State) ->
    receive
        {attach, Hub, IntervalMs} -> loop(added(Hub, State#state{interval_ms = min(IntervalMs, State#state.interval_ms)}));
        {'DOWN', Monitor, process, _, _} -> left(State#state{hubs = maps:remove(Monitor, State#state.hubs)});
        {detach, Hub} ->
            Gone = [Monitor || {Monitor, Pid} <- maps:to_list(State#state.hubs), Pid =:= Hub],
            _ = [demonitor(Monitor, [flush]) || Monitor <- Gone],
            left(State#state{hubs = maps:without(Gone, State#state.hubs)});
        _ -> loop(State)
    after max(0, Next - now_ms()) ->
        loop(told(State))
    end.

left(#state{hubs = Hubs} = State) when map_size(Hubs) > 0 -> loop(State);
left(#state{sent = false}) -> ok;
%% Removes the code that was sent. A separate process purges it, because this process runs the code until it exits.
left(#state{sent = true}) ->
    true = unregister(?NAME),
    _ = code:delete(?MODULE),
    _ = spawn(code, purge, [?MODULE]),
    ok.

told(#state{hubs = Hubs, interval_ms = Interval, count = Count, busy_us = Busy} = State) ->
    Start = erlang:monotonic_time(microsecond),
    Sample = (sample())#{busy_us => Busy, samples => Count},
    _ = [erlang:send(Hub, {console_sample, node(), self(), Sample}, [nosuspend, noconnect]) || Hub <- maps:values(Hubs)],
    Used = erlang:monotonic_time(microsecond) - Start,
    %% Samples that were missed while the whole node was paused are skipped.
    Next = max(State#state.next + Interval, now_ms() + Interval div 2),
    State#state{count = Count + 1, busy_us = Busy + Used, next = Next}.

sample() ->
    {Cpu, _} = erlang:statistics(runtime),
    Base = #{at => now_ms(), cpu_ms => Cpu, memory => erlang:memory(total), processes => erlang:system_info(process_count),
             run_queue => erlang:statistics(total_run_queue_lengths), apps => apps(), links => links(), peers => nodes()},
    with(http, http(), with(leases, leases(), Base)).

with(_, none, Sample) -> Sample;
with(Key, Value, Sample) -> Sample#{Key => Value}.

apps() ->
    [App || {App, Name} <- [{beamway, beamway_links}, {teleport, teleport_sup}, {placement, placement_sup}, {yucan, yucan_sup}, {beamway_console, beamway_console_sup}],
            whereis(Name) =/= undefined].

links() ->
    case whereis(beamway_links) of
        undefined -> stock();
        _ -> case tried(fun() -> beamway:info() end) of
                 [_ | _] = Links -> Links;
                 %% The node runs an older Beamway, or a different carrier.
                 _ -> stock()
             end
    end.

stock() ->
    [maps:merge(#{node => Node, link => inet, reason => <<"stock distribution">>}, counters(Controller)) || {Node, Controller} <- erlang:system_info(dist_ctrl)].

counters(Port) when is_port(Port) ->
    case inet:getstat(Port, [recv_oct, send_oct, recv_cnt, send_cnt, send_pend]) of
        {ok, Stats} ->
            Names = #{recv_oct => bytes_in, send_oct => bytes_out, recv_cnt => frames_in, send_cnt => frames_out, send_pend => queue_bytes},
            maps:from_list([{maps:get(Key, Names), Value} || {Key, Value} <- Stats]);
        {error, _} -> #{}
    end;
counters(_) -> #{link => tls}.

%% Returns the metrics of the web servers if the module of the server is loaded. It is not loaded just to find out whether there are servers.
http() ->
    case erlang:module_loaded(yucan_server) of
        true -> tried(fun() -> yucan:figures() end);
        false -> none
    end.

leases() ->
    case whereis(placement_sup) of
        undefined -> none;
        _ -> tried(fun() -> placement_lease:count() end)
    end.

%% The data may disappear or change while it is being read, but the next sample will follow soon.
tried(Fun) ->
    try Fun()
    catch _:_ -> none
    end.
