%% SPDX-License-Identifier: Apache-2.0
%% @doc Measures the cost of a message or a call: the user and system time of both nodes, divided by the number of confirmed messages or answered
%% calls.
-module(beamway_bench_message_cost).

-export([cost/4, cpu_key/1, rate_key/1]).

%% @doc Returns the CPU time per operation, and the number of operations per second.
-spec cost(beamway_bench_nodes:cluster(), beamway_bench_messages:way(), Case, Settings :: map()) -> [{Key :: binary(), float()}]
              when Case :: {Name :: string(), What :: string(), beamway_bench_messages:load(), Processes :: pos_integer()}.
cost(#{members := [One, Two]} = Cluster, Way, {_, What, Load, Processes}, #{warm_ms := WarmMs, window_ms := Ms}) ->
    [_, Second] = beamway_bench_nodes:names(Cluster),
    %% A new sink starts with an empty mailbox.
    _ = beamway_bench_nodes:call(Two, beamway_bench_messages, start_sink, [Way]),
    ok = beamway_bench_nodes:call(One, beamway_bench_messages, start_load, [Way, Second, Load, Processes]),
    receive after WarmMs -> ok end,
    Before = sample(Cluster),
    receive after Ms -> ok end,
    After = sample(Cluster),
    _ = beamway_bench_nodes:call(One, beamway_bench_messages, stop, []),
    figures(What, Before, After).

sample(#{members := [One | _]} = Cluster) ->
    Times = [beamway_bench_os:cpu_us(OsPid) || OsPid <- beamway_bench_nodes:os_pids(Cluster)],
    {beamway_bench_nodes:call(One, beamway_bench_messages, done, []), lists:sum([User + Kernel || #{user := User, kernel := Kernel} <- Times])}.

figures(What, {{Before, From}, Earlier}, {{After, Until}, Later}) when After > Before ->
    [{cpu_key(What), (Later - Earlier) / (After - Before)}, {rate_key(What), (After - Before) * 1.0e6 / (Until - From)}];
figures(What, _, _) -> error({nothing_done, What}).

%% @doc Returns the key for the CPU time per operation.
-spec cpu_key(What :: string()) -> binary().
cpu_key(What) -> iolist_to_binary([What, ": processor time"]).

%% @doc Returns the key for the number of operations per second.
-spec rate_key(What :: string()) -> binary().
rate_key(What) -> iolist_to_binary([What, ": rate"]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

figures_test() ->
    ?assertEqual(#{<<"x: processor time">> => 2.5, <<"x: rate">> => 400.0}, maps:from_list(figures("x", {{100, 0}, 1000}, {{300, 500000}, 1500}))).

run_options() ->
    #{repeats => 1, fresh => true, budget_ms => infinity, progress => fun(_, _) -> ok end,
      contenders => beamway_bench_contender:all(beamway_bench_checkout:root(), 50)}.

%% Calls to a dead server would look cheap, so failures must be detected.
a_dead_server_fails_the_load_test_() ->
    {timeout, 60, fun() ->
        Measure = fun(#{members := [One, Two]} = Cluster) ->
                          [_, Second] = beamway_bench_nodes:names(Cluster),
                          _ = beamway_bench_nodes:call(Two, beamway_bench_messages, start_server, []),
                          ok = beamway_bench_nodes:call(One, beamway_bench_messages, start_load, [stock, Second, call, 2]),
                          Server = beamway_bench_nodes:call(Two, erlang, whereis, [beamway_bench_server]),
                          true = beamway_bench_nodes:call(Two, erlang, exit, [Server, kill]),
                          until_it_fails(One)
                  end,
        Group = #{nodes => 2, contenders => [tcp], directions => [forward], measure => Measure},
        ?assertMatch({error, {error, _, _}}, beamway_bench_run:in_a_process(fun() -> beamway_bench_run:run([Group], run_options()) end))
    end}.

%% If the load does not fail, this loop runs until the test's timeout.
until_it_fails(One) ->
    _ = beamway_bench_nodes:call(One, beamway_bench_messages, done, []),
    until_it_fails(One).

nothing_done_is_no_figure_test() ->
    ?assertError({nothing_done, "x"}, figures("x", {{7, 0}, 0}, {{7, 1}, 10})).

-endif.
