%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench http-2009': the 2009 experiment for which the first yucan was written. httperf offers 1,000 to 10,000 requests per second, each on its
%% own connection, to servers with different backlogs and one or two schedulers. Each combination is tried three times.
%%
%% The load generator runs on the second processor, which it shares with servers that have two schedulers. Requests that httperf could not even send,
%% for lack of a descriptor or a port, do not count as errors of the server. `bin/beamway' creates a separate network for the benchmark, in which the
%% kernel remembers only a few closed connections, because httperf tries one port after another, which takes minutes when most ports are still in use.
-module(beamway_bench_http_2009).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1]).

-define(PORT, 18290).
-define(BACKLOGS, [1, 5, 128, 256]).
-define(ATTEMPTS, 3).
%% A request counts as an error if it has no response after this many seconds.
-define(PATIENCE, "3").
-define(CLOSED, "4096").

-type errors() :: float().
%% The percentage of the requests that failed.

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()} | {error, unicode:chardata()}.
prepare(_, Speed) ->
    case os:find_executable("httperf") of
        false -> beamway_bench_tools:missing("httperf", "http-2009");
        _ ->
            {Rates, Backlogs} = case Speed of
                quick -> {[1000, 5000, 10000], [128]};
                full -> {lists:seq(1000, 10000, 1000), ?BACKLOGS}
            end,
            ok = few_closed_connections(os:getenv("IN_OVERLAY")),
            {ok, #{repeats => 1, rates => Rates, backlogs => Backlogs}}
    end.

few_closed_connections("yes") ->
    _ = file:write_file("/proc/sys/net/ipv4/tcp_max_tw_buckets", ?CLOSED),
    ok;
few_closed_connections(_) -> ok.

%% Returns the series, each as server, schedulers and backlog. Servers other than yucan get only the backlog that was best in 2009.
series(#{backlogs := Backlogs}) ->
    [{yucan, Schedulers, Backlog} || Schedulers <- [1, 2], Backlog <- Backlogs]
        ++ [{Name, Schedulers, 128} || {Name, Schedulers} <- [{yaws, 1}, {yaws, 2}, {tornado, 1}, {nginx_tornado, 2}]].

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(Settings) ->
    [#{nodes => 0, contenders => [Name], directions => [none],
       measure => fun(none) -> maps:from_list([measure(One, Settings) || {N, _, _} = One <- series(Settings), N =:= Name]) end}
     || Name <- lists:usort([Name || {Name, _, _} <- series(Settings)])].

measure({Name, Schedulers, Backlog}, #{rates := Rates}) ->
    ok = beamway_bench_text:note("bench http-2009: ~ts, backlog ~b, schedulers: ~b", [Name, Backlog, Schedulers]),
    ok = beamway_bench_http_servers:start(Name, ?PORT, #{schedulers => Schedulers, backlog => Backlog, cores => case Schedulers of 1 -> "0"; _ -> "0,1" end}),
    try
        {key(Schedulers, Backlog), best([{Rate, [attempt(Rate) || _ <- lists:seq(1, ?ATTEMPTS)]} || Rate <- Rates])}
    after
        ok = lists:foreach(fun beamway_bench_http_servers:stop/1, [?PORT | [?PORT + N || Name =:= nginx_tornado, N <- [1, 2]]])
    end.

%% Offers the load for one second.
-spec attempt(pos_integer()) -> errors().
attempt(Rate) ->
    Words = ["-c", "1", "httperf", "--hog", "--server", "127.0.0.1", "--port", integer_to_list(?PORT), "--uri", "/", "--rate", integer_to_list(Rate),
             "--num-conns", integer_to_list(Rate), "--num-calls", "1", "--timeout", ?PATIENCE],
    {0, Lines} = beamway_bench_tools:run(os:find_executable("taskset"), Words, 120000),
    Text = lists:append(Lines),
    [Connections] = numbers(Text, "Total: connections (\\d+) "),
    [Timeouts, SocketTimeouts, Refused, Reset] = numbers(Text, "client-timo (\\d+) socket-timo (\\d+) connrefused (\\d+) connreset (\\d+)"),
    100 * (Timeouts + SocketTimeouts + Refused + Reset) / max(1, Connections).

numbers(Text, Pattern) ->
    {match, Found} = re:run(Text, Pattern, [{capture, all_but_first, list}]),
    [list_to_integer(F) || F <- Found].

%% Returns the highest offered rate up to which every request was answered in all attempts.
best(Rows) ->
    Good = lists:takewhile(fun({_, Attempts}) -> lists:all(fun(Errors) -> Errors == 0 end, Attempts) end, Rows),
    case Good of
        [] -> 0;
        _ -> element(1, lists:last(Good))
    end.

%% ---- the result

key(1, Backlog) -> iolist_to_binary(io_lib:format("best rate without errors, 1 scheduler, backlog ~b", [Backlog]));
key(Schedulers, Backlog) -> iolist_to_binary(io_lib:format("best rate without errors, ~b schedulers, backlog ~b", [Schedulers, Backlog])).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(Settings) ->
    All = series(Settings),
    [#{name => iolist_to_binary(io_lib:format("rate_2009_s~b_b~b", [Schedulers, Backlog])), unit => <<"requests/s">>, better => higher,
       key => key(Schedulers, Backlog), contender => yucan,
       baselines => [Name || {Name, S, B} <- All, Name =/= yucan, S =:= Schedulers, B =:= Backlog]}
     || {yucan, Schedulers, Backlog} <- All].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

best_test_() ->
    Rows = fun(Second) -> [{1000, [0.0]}, {2000, [0.0, Second]}, {3000, [0.0]}] end,
    [?_assertEqual(3000, best(Rows(0.0))), ?_assertEqual(1000, best(Rows(0.1))), ?_assertEqual(0, best([]))].

-endif.
