%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench http-2009': the 2009 experiment for which the first yucan was written. httperf offers 1,000 to 10,000 requests per second, each on its
%% own connection, to servers with different backlogs and one or two schedulers. Each combination is tried three times.
%%
%% Each series becomes a file in bench/results/http-2009 with the same columns as in 2009, and all files there become one chart. The load generator
%% runs on the second processor, which it shares with servers that have two schedulers. Requests that httperf could not even send, for lack of a
%% descriptor or a port, do not count as errors of the server; the column with the generated rate shows how many there were. `bin/beamway' creates a
%% separate network for the benchmark, in which the kernel remembers only a few closed connections, because httperf tries one port after another,
%% which takes minutes when most ports are still in use.
-module(beamway_bench_http_2009).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1, finish/2]).

-define(PORT, 18290).
-define(BACKLOGS, [1, 5, 128, 256]).
-define(ATTEMPTS, 3).
%% A request counts as an error if it has no response after this many seconds.
-define(PATIENCE, "3").
-define(CLOSED, "4096").

-type point() :: #{rate := pos_integer(), replies := float(), offered := float(), errors := float()}.

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
            {ok, #{repeats => 1, rates => Rates, backlogs => Backlogs, store => Speed =:= full}}
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

measure({Name, Schedulers, Backlog} = Series, #{rates := Rates, store := Store}) ->
    ok = beamway_bench:note("bench http-2009: ~ts, backlog ~b, schedulers: ~b", [Name, Backlog, Schedulers]),
    ok = beamway_bench_http_servers:start(Name, ?PORT, #{schedulers => Schedulers, backlog => Backlog, cores => case Schedulers of 1 -> "0"; _ -> "0,1" end}),
    try
        Rows = [{Rate, [attempt(Rate) || _ <- lists:seq(1, ?ATTEMPTS)]} || Rate <- Rates],
        _ = [ok = store(file(Series), csv(Rows)) || Store],
        {key(Schedulers, Backlog), best(Rows)}
    after
        ok = lists:foreach(fun beamway_bench_http_servers:stop/1, [?PORT | [?PORT + N || Name =:= nginx_tornado, N <- [1, 2]]])
    end.

%% Offers the load for one second.
-spec attempt(pos_integer()) -> point().
attempt(Rate) ->
    Words = ["-c", "1", "httperf", "--hog", "--server", "127.0.0.1", "--port", integer_to_list(?PORT), "--uri", "/", "--rate", integer_to_list(Rate),
             "--num-conns", integer_to_list(Rate), "--num-calls", "1", "--timeout", ?PATIENCE],
    {0, Lines} = beamway_bench_tools:run(os:find_executable("taskset"), Words, 120000),
    Text = lists:append(Lines),
    [Connections, Replies, Seconds] = numbers(Text, "Total: connections (\\d+) requests \\d+ replies (\\d+) test-duration ([0-9.]+)"),
    [Timeouts, SocketTimeouts, Refused, Reset] = numbers(Text, "client-timo (\\d+) socket-timo (\\d+) connrefused (\\d+) connreset (\\d+)"),
    [Offered] = numbers(Text, "Connection rate: ([0-9.]+) conn/s"),
    %% The test ends with the last response, so any time beyond one second was spent waiting for responses.
    #{rate => Rate, replies => Replies / max(1.0, Seconds), offered => Offered,
      errors => 100 * (Timeouts + SocketTimeouts + Refused + Reset) / max(1, Connections)}.

numbers(Text, Pattern) ->
    {match, Found} = re:run(Text, Pattern, [{capture, all_but_first, list}]),
    [case string:to_float(F) of {error, no_float} -> float(list_to_integer(F)); {Float, _} -> Float end || F <- Found].

%% Returns the highest offered rate such that, at this rate and all lower ones, every request was answered in all attempts.
best(Rows) ->
    Good = lists:takewhile(fun({_, Points}) -> lists:all(fun(#{errors := Errors}) -> Errors == 0 end, Points) end, Rows),
    case Good of
        [] -> 0;
        _ -> element(1, lists:last(Good))
    end.

%% ---- files

folder() -> filename:join([beamway_bench_nodes:root(), "bench", "results", "http-2009"]).

file({Name, Schedulers, Backlog}) ->
    filename:join(folder(), lists:concat([Name, "-", Schedulers, "-", Backlog, ".csv"])).

store(File, Text) ->
    ok = filelib:ensure_dir(File),
    file:write_file(File, Text).

csv(Rows) ->
    ["Rate,Received reply rate,Normalized error rate (1/100%),\"Generated request rate (also, expected reply rate)\",Error rate,"
     "Attempt 1,Attempt 2,Attempt 3,Error 1,Error 2,Error 3\n" | [csv_row(Row) || Row <- Rows]].

csv_row({Rate, Points}) ->
    Replies = [R || #{replies := R} <- Points],
    Errors = [E || #{errors := E} <- Points],
    Offered = [O || #{offered := O} <- Points],
    Columns = [mean(Replies), 100 * mean(Errors), mean(Offered), mean(Errors)] ++ Replies ++ Errors,
    [integer_to_list(Rate), " rps", [[",", float_to_list(float(C), [{decimals, 2}, compact])] || C <- Columns], "\n"].

mean(Values) -> lists:sum(Values) / length(Values).

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

%% @private Draws a chart of all stored series, including those of earlier runs.
-spec finish(beamway_bench_report:result(), map()) -> ok | {error, unicode:chardata()}.
finish(_, #{store := false}) -> ok;
finish(_, _) ->
    Files = lists:sort(fun earlier/2, filelib:wildcard(filename:join(folder(), "*.csv"))),
    beamway_bench_chart:plot(filename:join([folder(), "..", "http-2009.svg"]), script(Files)).

%% All panels have the same scales. Errors are in hundredths of a percent, as in the charts of 2009, so 100 means that one request in a hundred
%% failed. Values that exceed the scale are drawn at the top of the panel.
script(Files) ->
    Rows = (length(Files) + 2) div 3,
    [io_lib:format("set terminal svg size 976,~b background 'white' font 'sans,11'~nset output '~ts'~n", [210 * Rows + 60, filename:join([folder(), "..", "http-2009.svg"])]),
     "set datafile separator ','\nset multiplot layout ", integer_to_list(Rows), ",3 title 'One request on each connection: answers a second over offered requests a second'\n"
     "set xrange [0:10000]\nset yrange [0:10000]\nset xtics 5000\nset ytics 2500\nset grid\nset key top left font ',9'\n",
     [["set title '", title(filename:basename(File, ".csv")), "'\n"
       "plot '", File, "' skip 1 using 1:1 with lines dt 2 lc rgb '#57606a' title 'offered', '' skip 1 using 1:2 with lines lw 2 lc rgb '#0969da' title 'answers', "
       "'' skip 1 using 1:($3 > 10000 ? 10000 : $3) with lines lw 2 lc rgb '#c0182b' title 'errors, 1/100 %'\n"] || File <- Files],
     "unset multiplot\n"].

%% yucan comes first, and smaller backlogs come before larger ones.
earlier(One, Other) -> order(One) =< order(Other).

order(File) ->
    [Name, Schedulers, Backlog] = string:split(filename:basename(File, ".csv"), "-", all),
    {Name =/= "yucan", Name, list_to_integer(Backlog), list_to_integer(Schedulers)}.

title(Base) ->
    [Name, Schedulers, Backlog] = string:split(Base, "-", all),
    What = case Name of
        "nginx_tornado" -> "nginx, 2 workers, before 2 Tornado";
        "tornado" -> "Tornado";
        _ -> [Name, ", ", Schedulers, case Schedulers of "1" -> " scheduler"; _ -> " schedulers" end]
    end,
    [What, ", backlog ", Backlog].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

point(Rate, Errors) -> #{rate => Rate, replies => float(Rate), offered => float(Rate), errors => Errors}.

best_test_() ->
    Rows = fun(Second) -> [{1000, [point(1000, 0.0)]}, {2000, [point(2000, 0.0), point(2000, Second)]}, {3000, [point(3000, 0.0)]}] end,
    [?_assertEqual(3000, best(Rows(0.0))), ?_assertEqual(1000, best(Rows(0.1))), ?_assertEqual(0, best([]))].

csv_test() ->
    ?assertEqual("2000 rps,2000.0,50.0,2000.0,0.5,2000.0,2000.0,0.0,1.0\n", lists:flatten(csv_row({2000, [point(2000, 0.0), point(2000, 1.0)]}))).
-endif.
