%% SPDX-License-Identifier: Apache-2.0
%% @doc The part of `bench placement' that asks what attributes are worth: ML-ACO (examples/ml_aco) on nodes of unequal speed, once with colonies on the
%% fastest nodes and once on nodes drawn, as in the RELEASE report's Figures 2 and 3.
%%
%% Two nodes may use 80 % of a processor, six 10 %, by a quota of cgroup v1 or v2, whichever can be written. Without one the part measures nothing and says so.
-module(beamway_bench_mlaco).

-export([metrics/0, measure/1]).

-define(FAST, 2).
-define(SLOW, 6).
-define(COLONIES, 2).
-define(JOBS, 40).
-define(PERIOD_US, 50000).

%% @doc The metrics.
-spec metrics() -> [map()].
metrics() ->
    [#{name => <<"mlaco_attr">>, unit => <<"times">>, better => higher, key => ratio_key(80)}]
        ++ [Metric || Ants <- [1, 10, 20, 40],
                      Metric <- [#{name => <<"mlaco_attr_", (integer_to_binary(Ants))/binary>>, unit => <<"times">>, better => higher, key => ratio_key(Ants)}]]
        ++ [#{name => <<"mlaco_with_s">>, unit => <<"s">>, better => lower, key => time_key(with)}, #{name => <<"mlaco_without_s">>, unit => <<"s">>, better => lower, key => time_key(without)}].

ratio_key(Ants) -> iolist_to_binary(io_lib:format("ML-ACO, ~b ants: time without attributes over time with", [Ants])).
time_key(Which) -> iolist_to_binary(io_lib:format("ML-ACO, 80 ants: time ~s attributes", [Which])).

%% @doc The figures: medians of five runs (quick: two) for each number of ants. All runs of one number of ants must find the same cost.
-spec measure(full | quick) -> #{binary() => number()}.
measure(Speed) ->
    case quotas() of
        {ok, Groups} ->
            try measured(Speed, Groups)
            after lists:foreach(fun(Group) -> file:del_dir(Group) end, Groups)
            end;
        {error, Why} ->
            ok = beamway_bench:note("bench placement: ML-ACO on nodes of unequal speed is skipped: ~ts", [Why]),
            #{}
    end.

measured(Speed, Groups) ->
    Started = ensure_node(),
    Nodes = ml_aco:start_nodes([{["/bin/sh", "-c", "echo $$ > " ++ Group ++ "/cgroup.procs; exec \"$@\"", "sh"], []} || Group <- Groups], 600),
    try
        {AllAnts, Runs} = case Speed of full -> {[1, 10, 20, 40, 80], 5}; quick -> {[80], 2} end,
        lists:foldl(fun(Ants, Acc) -> maps:merge(Acc, ants(Ants, Runs, [Node || {_, Node} <- Nodes])) end, #{}, AllAnts)
    after
        ml_aco:stop_nodes(Nodes),
        Started()
    end.

%% Placement runs here, too, to choose.
ensure_node() ->
    _ = os:cmd("epmd -daemon"),
    Stop = case net_kernel:start(list_to_atom("mlaco_" ++ os:getpid() ++ "@127.0.0.1"), #{name_domain => longnames, hidden => true}) of
               {ok, _} -> fun() -> net_kernel:stop() end;
               {error, {already_started, _}} -> fun() -> ok end
           end,
    {ok, _} = application:ensure_all_started(placement),
    fun() -> _ = Stop(), ok end.

ants(Ants, Runs, Nodes) ->
    Instance = ml_aco_instance:make(?JOBS, 1),
    Results = [{Placement, solved(Placement, Ants, Instance, Nodes)} || _ <- lists:seq(1, Runs), Placement <- [attributes, random]],
    [_] = lists:usort([Cost || {_, {Cost, _}} <- Results]),
    Median = fun(Wanted) -> beamway_bench_stats:median([Seconds || {Placement, {_, Seconds}} <- Results, Placement =:= Wanted]) end,
    {With, Without} = {Median(attributes), Median(random)},
    ok = beamway_bench:note("bench placement: ML-ACO with ~b ants: ~.2f s with attributes, ~.2f s without", [Ants, With, Without]),
    maps:merge(#{ratio_key(Ants) => Without / With}, case Ants of 80 -> #{time_key(with) => With, time_key(without) => Without}; _ -> #{} end).

solved(Placement, Ants, Instance, Nodes) ->
    {ok, Plan} = ml_aco:plan(Placement, Nodes, ?COLONIES),
    {ok, #{cost := Cost, ms := Ms}} = ml_aco_tree:run(Plan, Instance, #{seed => 1, ants => Ants, rounds => 3, iterations => 4}),
    {Cost, Ms / 1000}.

%% A group for each node, or why there is none.
quotas() ->
    Shares = lists:duplicate(?FAST, 80) ++ lists:duplicate(?SLOW, 10),
    Base = "beamway_mlaco_" ++ os:getpid() ++ "_",
    Tried = [{Parent, quota(filename:join(Parent, Base ++ integer_to_list(N)), Percent)} || Parent <- parents(), {N, Percent} <- lists:zip(lists:seq(1, length(Shares)), Shares)],
    case [Why || {_, {error, Why}} <- Tried] of
        [] when Tried =/= [] -> {ok, [Group || {_, {ok, Group}} <- Tried]};
        [] -> {error, "this system has no cgroup with a processor quota"};
        [Why | _] ->
            _ = [file:del_dir(Group) || {_, {ok, Group}} <- Tried],
            {error, Why}
    end.

parents() ->
    lists:sublist([Folder || {Folder, File} <- [{"/sys/fs/cgroup/cpu", "cpu.cfs_quota_us"}, {"/sys/fs/cgroup", "cgroup.controllers"}],
                             filelib:is_regular(filename:join(Folder, File))], 1).

quota(Group, Percent) ->
    Quota = ?PERIOD_US * Percent div 100,
    case file:make_dir(Group) of
        ok ->
            V1 = filelib:is_regular(filename:join(Group, "cpu.cfs_quota_us")),
            Writes = case V1 of
                         true -> [{"cpu.cfs_period_us", integer_to_list(?PERIOD_US)}, {"cpu.cfs_quota_us", integer_to_list(Quota)}];
                         false -> [{"cpu.max", io_lib:format("~b ~b", [Quota, ?PERIOD_US])}]
                     end,
            case [{File, Reason} || {File, Text} <- Writes, {error, Reason} <- [file:write_file(filename:join(Group, File), Text)]] of
                [] -> {ok, Group};
                [{File, Reason} | _] -> _ = file:del_dir(Group), {error, io_lib:format("~ts cannot be written: ~ts", [filename:join(Group, File), file:format_error(Reason)])}
            end;
        {error, Reason} -> {error, io_lib:format("~ts cannot be made: ~ts (run it as root)", [Group, file:format_error(Reason)])}
    end.
