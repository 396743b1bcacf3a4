%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench http-memory': how much memory do yucan, yaws, nginx and apache2 use when idle, with 1,000 busy connections, for each of 10,000 idle
%% connections, and ten seconds later? The benchmark then measures yucan alone under twice the load that it can handle.
%%
%% Only one server runs at a time. Memory is the proportional set size of all its processes, so shared pages are counted once.
-module(beamway_bench_http_memory).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1]).

-define(PORT, 18190).
-define(BUSY, 1000).
-define(IDLE, 10000).
%% A yucan connection hibernates after two seconds.
-define(SETTLE_MS, 4000).
-define(AFTER_MS, 10000).

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(Given, Speed) ->
    case os:find_executable("wrk") of
        false -> beamway_bench_tools:missing("wrk", "http-memory");
        _ -> {ok, #{repeats => proplists:get_value(repeats, Given, 1), overload_s => case Speed of quick -> 5; full -> 60 end}}
    end.

contenders() -> [yucan, yaws, nginx, apache2].

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(Settings) ->
    [#{nodes => 0, contenders => [Name], directions => [none], measure => fun(none) -> measure(Name, Settings) end} || Name <- contenders()].

measure(Name, Settings) ->
    ok = beamway_bench_http_servers:start(Name, ?PORT, #{}),
    try
        Figures = life(),
        case Name of
            yucan -> maps:merge(Figures, overload(Settings));
            _ -> Figures
        end
    after
        ok = beamway_bench_http_servers:stop(?PORT)
    end.

life() ->
    %% Makes the server load everything that it loads at its first request.
    _ = wrk(8, "1"),
    pause(?AFTER_MS),
    Idle = memory(),
    Busy = while(fun() -> wrk(?BUSY, "4") end),
    Holder = hold(),
    pause(?SETTLE_MS),
    Holding = memory(),
    ok = beamway_bench_tools:close(Holder, "TERM"),
    pause(?AFTER_MS),
    #{key(idle) => Idle, key(busy) => Busy, key(connection) => (Holding - Idle) / ?IDLE, key('after') => memory()}.

hold() ->
    Holder = beamway_bench_tools:open(beamway_bench_http_servers:load_program(), ["hold", integer_to_list(?PORT), "/", integer_to_list(?IDLE)]),
    {line, "holding"} = beamway_bench_tools:line(Holder, 120000),
    Holder.

memory() -> beamway_bench_http_servers:memory_kb(?PORT).

pause(Ms) -> receive after Ms -> ok end.

%% Returns the server's peak memory during the function call.
while(Function) ->
    {Pid, Monitor} = spawn_monitor(Function),
    most(Pid, Monitor, 0).

most(Pid, Monitor, Most) ->
    receive
        {'DOWN', Monitor, process, Pid, normal} -> Most;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    after 100 -> most(Pid, Monitor, max(Most, memory()))
    end.

%% Offers twice the rate that the server has achieved, over 1,000 connections.
overload(#{overload_s := Seconds}) ->
    Peak = wrk(32, "3"),
    Words = ["-c", "1", beamway_bench_http_servers:load_program(), "rate", integer_to_list(?PORT), "/", integer_to_list(?BUSY), integer_to_list(2 * round(Peak)), integer_to_list(Seconds)],
    Most = while(fun() ->
        {0, [Line]} = beamway_bench_tools:run(os:find_executable("taskset"), Words, Seconds * 1000 + 60000),
        [_, _, "0" | _] = string:lexemes(Line, " \n")
    end),
    After = wrk(32, "1"),
    #{key(overload) => Most, key(recovered) => 100 * After / Peak}.

wrk(Connections, Seconds) -> element(1, beamway_bench_http_servers:wrk(?PORT, "/", Connections, 1, ["-d" ++ Seconds])).

key(idle) -> <<"memory, idle">>;
key(busy) -> <<"memory, 1000 busy connections">>;
key(connection) -> <<"memory, each of 10000 idle connections">>;
key('after') -> <<"memory, 10 s after">>;
key(overload) -> <<"memory, twice the load that it can serve">>;
key(recovered) -> <<"rate in the second after that, of the rate before">>.

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(_) ->
    [#{name => <<"memory_", (atom_to_binary(What))/binary>>, unit => <<"KB">>, better => lower, key => key(What), contender => yucan,
       baselines => contenders() -- [yucan]} || What <- [idle, busy, connection, 'after']]
        ++ [#{name => <<"memory_overload">>, unit => <<"KB">>, better => lower, key => key(overload), contender => yucan, baselines => []},
            #{name => <<"overload_recovered">>, unit => <<"%">>, better => higher, key => key(recovered), contender => yucan, baselines => []}].
