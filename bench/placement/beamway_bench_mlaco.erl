%% SPDX-License-Identifier: Apache-2.0
%% @doc The part of `bench placement' that measures the benefit of attributes. ML-ACO (examples/ml_aco) runs on nodes of unequal speed, once with its
%% colonies on the fastest nodes and once on randomly drawn nodes, as in Figures 2 and 3 of the RELEASE report.
%%
%% A cgroup quota (v1 or v2, whichever can be written) lets two nodes use 80 % of a processor and six nodes 10 %. Without a quota, this part measures
%% nothing and reports the reason.
-module(beamway_bench_mlaco).

-export([metrics/0, repeats/1, measure/2]).

-define(FAST, 2).
-define(SLOW, 6).
-define(COLONIES, 2).
-define(PERIOD_US, 50000).

-spec metrics() -> [map()].
metrics() -> beamway_bench_ants:metrics(attributes).

%% @doc Returns the number of repeats, which is the same for all parts that run ants.
-spec repeats(full | quick) -> pos_integer().
repeats(Speed) -> beamway_bench_ants:repeats(Speed).

%% @doc Runs once with attributes and once without, on new nodes.
-spec measure(full | quick, Repeat :: pos_integer()) -> #{binary() => number()}.
measure(Speed, Repeat) ->
    case quotas() of
        {ok, Groups} ->
            try measured(Speed, Repeat, Groups)
            after lists:foreach(fun(Group) -> removed(Group, 100) end, Groups)
            end;
        {error, Why} ->
            ok = beamway_bench_text:note("bench placement: ML-ACO on nodes of unequal speed is skipped: ~ts", [Why]),
            #{}
    end.

measured(Speed, Repeat, Groups) ->
    Stop = ensure_node(),
    Nodes = ml_aco:start_nodes([#{} || _ <- Groups]),
    try
        %% The nodes boot at full speed, and are only then moved into their cgroups.
        ok = lists:foreach(fun({{Peer, _}, Group}) -> ok = file:write_file(filename:join(Group, "cgroup.procs"), peer:call(Peer, os, getpid, [])) end, lists:zip(Nodes, Groups)),
        ok = ml_aco:measure_speed(Nodes, 600),
        beamway_bench_ants:compared(attributes, Speed, Repeat, fun(Which, Ants) -> solved(Which, Ants, [Node || {_, Node} <- Nodes]) end)
    after
        ml_aco:stop_nodes(Nodes),
        Stop()
    end.

%% This node chooses the nodes, so placement must also run here.
ensure_node() ->
    _ = os:cmd("epmd -daemon"),
    Stop = case net_kernel:start(list_to_atom("mlaco_" ++ os:getpid() ++ "@127.0.0.1"), #{name_domain => longnames, hidden => true}) of
               {ok, _} -> fun() -> net_kernel:stop() end;
               {error, {already_started, _}} -> fun() -> ok end
           end,
    {ok, _} = application:ensure_all_started(placement),
    fun() -> _ = Stop(), ok end.

solved(Which, Ants, Nodes) ->
    {ok, Plan} = ml_aco:plan(case Which of with -> attributes; without -> random end, Nodes, ?COLONIES),
    {ok, #{cost := Cost, ms := Ms}} = ml_aco_tree:run(Plan, beamway_bench_ants:instance(), beamway_bench_ants:options(attributes, Ants)),
    {Cost, Ms / 1000}.

%% The kernel refuses to remove a cgroup until its last process has exited.
removed(Group, Tries) ->
    case file:del_dir(Group) of
        {error, ebusy} when Tries > 0 -> receive after 20 -> removed(Group, Tries - 1) end;
        Other -> Other
    end.

%% Returns a cgroup for each node, or the reason why it could not be created.
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

%% All cgroups get the same large CPU weight, 64 times the default, so that only the quota limits them and not other work on the machine.
quota(Group, Percent) ->
    Quota = ?PERIOD_US * Percent div 100,
    case file:make_dir(Group) of
        ok ->
            V1 = filelib:is_regular(filename:join(Group, "cpu.cfs_quota_us")),
            Writes = case V1 of
                         true -> [{"cpu.shares", "65536"}, {"cpu.cfs_period_us", integer_to_list(?PERIOD_US)}, {"cpu.cfs_quota_us", integer_to_list(Quota)}];
                         false -> [{"cpu.weight", "6400"}, {"cpu.max", io_lib:format("~b ~b", [Quota, ?PERIOD_US])}]
                     end,
            case [{File, Reason} || {File, Text} <- Writes, {error, Reason} <- [file:write_file(filename:join(Group, File), Text)]] of
                [] -> {ok, Group};
                [{File, Reason} | _] -> _ = file:del_dir(Group), {error, io_lib:format("~ts cannot be written: ~ts", [filename:join(Group, File), file:format_error(Reason)])}
            end;
        {error, Reason} -> {error, io_lib:format("~ts cannot be made: ~ts (run it as root)", [Group, file:format_error(Reason)])}
    end.
