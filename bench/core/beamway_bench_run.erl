%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs the measurements of a benchmark, interleaved: in each repeat every contender has its turn, in a new random order, so that changes on the
%% machine affect all of them.
%%
%% Each contender is measured in both directions of connecting, because OTP configures its socket differently on each side. A full run starts new
%% nodes for every turn; a quick run, or `--keep-nodes', reuses them.
-module(beamway_bench_run).

-export([run/2, in_a_process/1, shuffled/1]).

-export_type([group/0, key/0, figures/0, samples/0, options/0]).

-type key() :: binary().
%% A description of what was measured, which is the label of a table row.
-type figures() :: #{key() | {beamway_bench_contender:name(), key()} => number()}.
%% A turn that compares two states of the same nodes specifies the contender to which each value belongs.
-type group() :: #{%% 0 if the measurement does not need our nodes
                   nodes := non_neg_integer(),
                   %% the network whose hosts run the nodes; without it, all nodes run in the same place
                   net => beamway_bench_net:name(),
                   contenders := [beamway_bench_contender:name()],
                   directions := [beamway_bench_nodes:direction()],
                   %% called with the hosts if the group has a network but no nodes
                   measure := fun((beamway_bench_nodes:cluster() | [beamway_bench_hosts:host()] | none) -> figures())}.
-type samples() :: #{{beamway_bench_contender:name(), key()} =>
                         #{beamway_bench_nodes:direction() => [number()]}}.
%% The values of all repeats, oldest first.
-type options() :: #{repeats := pos_integer(),
                     %% whether each turn starts new nodes
                     fresh := boolean(),
                     %% a repeat starts only if it is expected to end within this time; the first always runs
                     budget_ms := pos_integer() | infinity,
                     contenders := #{beamway_bench_contender:name() => beamway_bench_contender:t()},
                     %% the hosts that run the nodes; an empty list means this machine
                     hosts => [beamway_bench_hosts:host()],
                     progress := fun((io:format(), [term()]) -> ok),
                     _ => _}.

%% @doc Runs all repeats of all groups.
-spec run([group()], options()) -> samples().
run(Groups, Options) ->
    Turns = [{Index, Name, Direction}
             || {Index, #{contenders := Names, directions := Directions}} <- numbered(Groups),
                Name <- Names, Direction <- Directions],
    Places = open_places(lists:usort([maps:get(net, Group, none) || Group <- Groups]), Options),
    try
        Measure = fun(Repeat, Acc) -> repeat(Repeat, Turns, Groups, Places, Options, Acc) end,
        {Samples, Pool} = repeats(1, Measure, erlang:monotonic_time(millisecond), Options, {#{}, #{}}),
        _ = [beamway_bench_nodes:stop(Cluster) || Cluster <- maps:values(Pool)],
        maps:map(fun(_, Directions) -> maps:map(fun(_, L) -> lists:reverse(L) end, Directions) end, Samples)
    after
        maps:foreach(fun(_, Place) -> close_place(Place) end, Places)
    end.

%% Prepares the places where nodes run: either a separate network with an epmd on each of its hosts, or the hosts in the options.
open_places(Names, Options) ->
    lists:foldl(fun(Name, Places) ->
                        try Places#{Name => open_place(Name, Options)}
                        catch
                            Class:Reason:Stack ->
                                maps:foreach(fun(_, Place) -> close_place(Place) end, Places),
                                erlang:raise(Class, Reason, Stack)
                        end
                end, #{}, Names).

open_place(none, Options) -> with_epmd(maps:get(hosts, Options, []), none);
open_place(Name, _) ->
    case beamway_bench_net:open(Name) of
        {ok, Net} -> with_epmd(beamway_bench_net:hosts(Net), Net);
        {error, Why} -> error({no_network, Why})
    end.

with_epmd(Hosts, Net) -> #{hosts => Hosts, net => Net, epmd => beamway_bench_nodes:start_epmd(Hosts)}.

close_place(#{net := Net, epmd := Epmd}) ->
    ok = beamway_bench_nodes:stop_epmd(Epmd),
    Net =:= none orelse beamway_bench_net:close(Net).

numbered(List) -> lists:zip(lists:seq(1, length(List)), List).

repeats(Repeat, _, _, #{repeats := Last}, Acc) when Repeat > Last -> Acc;
repeats(Repeat, Measure, Start, #{budget_ms := Budget, progress := Progress} = Options, Acc) ->
    Elapsed = erlang:monotonic_time(millisecond) - Start,
    case has_time(Repeat, Elapsed, Budget) of
        true -> repeats(Repeat + 1, Measure, Start, Options, Measure(Repeat, Acc));
        false -> ok = Progress("no time for repeat ~b on this machine now", [Repeat]), Acc
    end.

%% Assumes that the next repeat takes as long as the previous ones did on average.
has_time(1, _, _) -> true;
has_time(_, _, infinity) -> true;
has_time(Repeat, Elapsed, Budget) -> Elapsed * Repeat div (Repeat - 1) =< Budget.

repeat(Repeat, Turns, Groups, Places, #{repeats := Repeats, progress := Progress} = Options, Acc) ->
    ok = Progress("repeat ~b of ~b", [Repeat, Repeats]),
    lists:foldl(fun({Index, _, _} = Turn, Done) ->
                        Group = lists:nth(Index, Groups),
                        turn(Turn, Group, maps:get(maps:get(net, Group, none), Places), Options, Done)
                end, Acc, shuffled(Turns)).

%% @doc Returns the list in random order.
-spec shuffled([Element]) -> [Element].
shuffled(List) ->
    [Element || {_, Element} <- lists:sort([{rand:uniform(), Element} || Element <- List])].

turn({_, Name, Direction}, #{nodes := 0, measure := Measure} = Group, #{hosts := Hosts}, _, {Samples, Pool}) ->
    {added(Name, Direction, Measure(case Group of #{net := _} -> Hosts; #{} -> none end), Samples), Pool};
turn({_, Name, Direction} = Turn, #{measure := Measure} = Group, Place, Options, {Samples, Pool}) ->
    {Cluster, Rest} = take_cluster(Turn, Group, Place, Options, Pool),
    Figures = Measure(Cluster),
    {added(Name, Direction, Figures, Samples), leave_cluster(Turn, Cluster, Options, Rest)}.

take_cluster({_, Name, Direction} = Turn, #{nodes := Count}, #{hosts := Hosts, epmd := Epmd}, #{contenders := Contenders}, Pool) ->
    case maps:take(Turn, Pool) of
        {Cluster, Rest} -> {Cluster, Rest};
        error ->
            Cluster = beamway_bench_nodes:start(Epmd, maps:get(Name, Contenders), #{count => Count, hosts => Hosts}),
            ok = beamway_bench_nodes:connect(Cluster, Direction),
            {Cluster, Pool}
    end.

leave_cluster(_, Cluster, #{fresh := true}, Pool) ->
    ok = beamway_bench_nodes:stop(Cluster),
    Pool;
leave_cluster(Turn, Cluster, #{fresh := false}, Pool) ->
    Pool#{Turn => Cluster}.

added(Name, Direction, Figures, Samples) ->
    maps:fold(fun(What, Figure, Acc) ->
                      Place = case What of {_Other, _Key} -> What; Key -> {Name, Key} end,
                      Known = maps:get(Place, Acc, #{}),
                      Acc#{Place => Known#{Direction => [Figure | maps:get(Direction, Known, [])]}}
              end, Samples, Figures).

%% @doc Runs Fun in a separate process, so that if it fails, its nodes exit with it but the caller survives. The nodes' output goes to standard error,
%% so that a result on standard output is not mixed with it.
-spec in_a_process(fun(() -> Result)) -> {ok, Result} | {error, {Class :: atom(), Reason :: term(), Stack :: [term()]} | term()}.
in_a_process(Fun) ->
    Caller = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
                                           true = group_leader(whereis(standard_error), self()),
                                           Caller ! {self(), guarded(Fun)}
                                   end),
    %% This receive needs no timeout, because each step of the function has its own.
    receive
        {Pid, Outcome} -> receive {'DOWN', Monitor, process, Pid, _} -> Outcome end;
        {'DOWN', Monitor, process, Pid, Reason} -> {error, Reason}
    end.

%% The process exits normally, so that the processes linked to it do not print crash reports.
guarded(Fun) ->
    try
        {ok, Fun()}
    catch
        Class:Reason:Stack -> {error, {Class, Reason, Stack}}
    after
        ok = beamway_bench_nodes:stop_all()
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

options(Repeats, Fresh) ->
    #{repeats => Repeats, fresh => Fresh, budget_ms => infinity, progress => fun(_, _) -> ok end,
      contenders => beamway_bench_contender:all(beamway_bench_checkout:root(), 50)}.

%% Runs real nodes. Whether they are kept or not, each contender and direction gets its values, and no node survives.
real_nodes_test_() ->
    [{timeout, 120, fun() -> real_nodes(Fresh) end} || Fresh <- [true, false]].

real_nodes(Fresh) ->
    Collector = self(),
    Measure = fun(Cluster) ->
                      Collector ! {turn, identities(Cluster)},
                      [One, Two] = beamway_bench_nodes:names(Cluster),
                      [[Two], [One]] = beamway_bench_nodes:all(Cluster, erlang, nodes, []),
                      #{<<"a">> => 1, <<"b">> => 2}
              end,
    Group = #{nodes => 2, contenders => [tcp, tcp_tuned], directions => [forward, reverse], measure => Measure},
    {ok, Samples} = in_a_process(fun() -> run([Group], options(2, Fresh)) end),
    ?assertEqual([{Name, Key} || Name <- [tcp, tcp_tuned], Key <- [<<"a">>, <<"b">>]],
                 lists:sort(maps:keys(Samples))),
    [?assertEqual(#{forward => [N, N], reverse => [N, N]}, Directions)
     || {{_, Key}, Directions} <- maps:to_list(Samples), N <- [case Key of <<"a">> -> 1; <<"b">> -> 2 end]],
    Turns = turns(),
    ?assertEqual(8, length(Turns)),
    ?assertEqual(case Fresh of true -> 8; false -> 4 end, length(lists:usort(Turns))),
    ?assertNot(lists:any(fun beamway_bench_os:is_alive/1, lists:append(Turns))).

identities(#{members := Members}) -> [Os || #{os := Os} <- Members].

turns() ->
    receive {turn, Identities} -> [Identities | turns()] after 0 -> [] end.

%% A measurement that fails leaves no nodes behind either, and the reason for the failure is returned.
failure_test_() ->
    {timeout, 60, fun() ->
        Collector = self(),
        Measure = fun(Cluster) ->
                          Collector ! {turn, identities(Cluster)},
                          error(on_purpose)
                  end,
        Group = #{nodes => 2, contenders => [tcp], directions => [forward], measure => Measure},
        {error, {error, on_purpose, _}} = in_a_process(fun() -> run([Group], options(1, true)) end),
        receive
            {turn, Identities} ->
                ?assertNot(lists:any(fun beamway_bench_os:is_alive/1, Identities))
        after 0 -> error(nothing_was_measured)
        end
    end}.

has_time_test_() ->
    [?_assertEqual(Want, has_time(Repeat, Elapsed, Budget))
     || {Want, Repeat, Elapsed, Budget} <- [{true, 1, 99, 1}, {true, 9, 99, infinity}, {true, 2, 10, 20}, {false, 2, 11, 20},
                                            {true, 3, 20, 30}, {false, 3, 22, 30}]].

in_a_process_test_() ->
    [?_assertEqual({ok, 7}, in_a_process(fun() -> 7 end)),
     ?_assertMatch({error, {exit, stop, _}}, in_a_process(fun() -> exit(stop) end))].
-endif.
