%% SPDX-License-Identifier: Apache-2.0
%% @doc A node is emptied: processes move with their state and their waiting messages while others call them. Four real nodes.
%%
%% `BEAMWAY_TEST_DRAINS=100' (`make test-drain') gives the two cases under load their full form: so many clean drains, and so many with `kill -9', with 20,000 processes of 500 MB and 100 callers.
-module(placement_drain_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_testcase/2, end_per_testcase/2]).
-export([clean_under_load/1, killed_under_load/1, stopped_and_started_elsewhere/1]).
-export([start_children/2, log/2, bytes/1, quantile/2]).

-define(COUNTER, placement_drain_counter).
-define(NAMES, ["a", "b", "c", "d"]).

suite() -> [{timetrap, {minutes, case full() of none -> 3; _ -> 120 end}}].

all() -> [clean_under_load, killed_under_load].

full() ->
    case os:getenv("BEAMWAY_TEST_DRAINS") of
        false -> none;
        Count -> list_to_integer(Count)
    end.

init_per_testcase(_, Config) ->
    Cluster = beamway_placement_nodes:start(?NAMES, options()),
    [ok = beamway_placement_nodes:connect(Cluster, Name) || Name <- ["a", "b", "c"]],
    [{cluster, Cluster} | Config].

options() -> #{args => ["-pa", filename:absname(filename:dirname(code:which(?MODULE)))]}.

end_per_testcase(_, Config) -> ok = beamway_placement_nodes:stop(cluster(Config)).

%%% Helpers

cluster(Config) -> proplists:get_value(cluster, Config).

with(Cluster, Config) -> [{cluster, Cluster} | proplists:delete(cluster, Config)].

on(Config, Name, Function, Arguments) -> beamway_placement_nodes:call(cluster(Config), Name, Function, Arguments).

run(Config, Name, Fun) -> beamway_peer:run(peer_of(Config, Name), Fun, 600000).

peer_of(Config, Name) -> element(2, lists:keyfind(Name, 1, cluster(Config))).

node_of(Config, Name) -> element(3, lists:keyfind(Name, 1, cluster(Config))).

name_of(Config, Node) -> element(1, lists:keyfind(Node, 3, cluster(Config))).

nodes(Config) -> beamway_placement_nodes:nodes(cluster(Config)).

%% On a node: starts children of these names and sizes, some at a time.
start_children(Sized, Options) ->
    Self = self(),
    Pids = [spawn_link(fun() ->
        [{ok, _} = placement:child([], {?COUNTER, start_link, [Name, Bytes]}, Options#{name => Name}) || {Name, Bytes} <- Part],
        Self ! {self(), started}
    end) || Part <- parts(Sized, min(100, length(Sized)))],
    [receive {Pid, started} -> ok end || Pid <- Pids],
    ok.

parts(List, Count) ->
    Numbered = lists:zip([N rem Count || N <- lists:seq(1, length(List))], List),
    [[Item || {Of, Item} <- Numbered, Of =:= Part] || Part <- lists:seq(0, Count - 1)].

%% Sizes between 1 KB and 1 MB of which many are small (a Pareto distribution with bounds); 26 KB in the mean.
bytes(N) ->
    Part = (N * 7919 rem 20000 + 0.5) / 20000,
    {Low, High, Alpha} = {1000.0, 1.0e6, 0.56},
    round(Low / math:pow(1 - Part * (1 - math:pow(Low / High, Alpha)), 1 / Alpha)).

%% The node ends and comes again under its name.
again(Config, Name) ->
    {Cluster, [{Name, _, Node}]} = lists:partition(fun({Other, _, _}) -> Other =/= Name end, cluster(Config)),
    Started = beamway_placement_nodes:start_again(Name, Node, options()),
    After = with([Started | Cluster], Config),
    ok = beamway_placement_nodes:connect(cluster(After), Name),
    After.

%% Each voter knows of each child where it is, and it is there.
all_run(Config, Count) ->
    Views = [on(Config, Name, {placement, children}, []) || {Name, _, _} <- cluster(Config)],
    length(lists:usort(Views)) =:= 1 andalso length([Pid || {_, _, Pid} <- hd(Views), is_pid(Pid)]) =:= Count.

wait_for_all(Config, Count) -> true = beamway_peer:wait_until(fun() -> all_run(Config, Count) end, 300000).

%% Quiet in the log of the test, but for what is lost.
log(#{msg := {Format, Arguments}, level := warning}, _) when is_list(Format) ->
    [persistent_term:put({?MODULE, make_ref()}, Name) || string:find(Format, "without its state") =/= nomatch, Name <- [hd(Arguments)]];
log(_, _) -> ok.

logged(Config) -> lists:append([[Name || {{?MODULE, _}, Name} <- on(Config, Which, {persistent_term, get}, [])] || {Which, _, _} <- cluster(Config)]).

logs(Config, Name) ->
    _ = on(Config, Name, {logger, remove_handler}, [default]),
    ok = on(Config, Name, {logger, add_handler}, [?MODULE, ?MODULE, #{level => warning}]).

%% The calls that took longest: of a thousand all but one took at most so many milliseconds.
quantile(Took, Part) ->
    Sorted = lists:sort(maps:to_list(Took)),
    beyond(Sorted, Part * lists:sum([Count || {_, Count} <- Sorted])).

beyond([], _) -> 0;
beyond([{Ms, Count} | _], Left) when Count >= Left -> Ms;
beyond([{_, Count} | Rest], Left) -> beyond(Rest, Left - Count).

%%% Under load

load() ->
    case full() of
        none -> #{children => 200, callers => 20, pause => 5, drains => 3, grace => 5000};
        Drains -> #{children => 20000, callers => 100, pause => 50, drains => Drains, grace => 30000}
    end.

loaded(Config, #{children := Children, callers := Callers, pause := Pause, grace := Grace}) ->
    Sized = [{{counter, N}, bytes(N)} || N <- lists:seq(1, Children)],
    [ok = logs(Config, Name) || Name <- ?NAMES],
    ok = run(Config, "d", fun() -> start_children(Sized, #{nodes => [node() | erlang:nodes()], grace => Grace}) end),
    wait_for_all(Config, Children),
    Names = [Name || {Name, _} <- Sized],
    {Names, lists:sum([Bytes || {_, Bytes} <- Sized]), run(Config, "d", fun() -> placement_drain_caller:start(Callers, Names, Pause) end)}.

%% One node after the other is drained, stopped and started again. Nobody notices more than a pause.
clean_under_load(Config) ->
    #{children := Children, drains := Drains} = Load = load(),
    {Names, Bytes, Callers} = loaded(Config, Load),
    {Last, Results} = lists:foldl(fun(N, {Now, Before}) ->
        Name = lists:nth(1 + N rem 3, ["a", "b", "c"]),
        ok = on(Now, "d", {placement_drain_caller, mark}, [true]),
        {ok, Result} = beamway_peer:call(peer_of(Now, "d"), placement, drain, [node_of(Now, Name)], 600000),
        ok = on(Now, "d", {placement_drain_caller, mark}, [false]),
        ?assertMatch({N, #{stayed := [], lost := [], restarted := []}}, {N, Result}),
        ?assertEqual([], [Child || {Child, Node, _} <- on(Now, "d", {placement, children}, []), Node =:= node_of(Now, Name)]),
        ok = beamway_peer:halt_node(peer_of(Now, Name)),
        After = again(Now, Name),
        ok = logs(After, Name),
        wait_for_all(After, Children),
        {After, [Result | Before]}
    end, {Config, []}, lists:seq(1, Drains)),
    #{took := Took} = Report = run(Last, "d", fun() -> placement_drain_caller:report(Callers) end),
    Loads = run(Last, "d", fun() -> [gen_server:call({via, placement, Name}, load, 60000) || Name <- Names] end),
    ok = beamway_placement_nodes:stop(cluster(Last)),
    ?assertEqual({Bytes, [true]}, {lists:sum([Size || {Size, _, _} <- Loads]), lists:usort([IsWhole || {_, IsWhole, _} <- Loads])}),
    Moved = lists:sum([Count || #{moved := Count} <- Results]),
    ?assert(Moved >= Children * Drains div 8),
    ?assertEqual(Moved, lists:sum([Moves || {_, _, Moves} <- Loads])),
    io:format(user, "~p~n", [#{moved => Moved, bytes_each => Bytes div Children, ms => [Ms || #{ms := Ms} <- Results], calls => maps:get(calls, Report), counted => lists:sum(maps:values(Took)),
                               p50_ms => quantile(Took, 0.5), p99_ms => quantile(Took, 0.99), p999_ms => quantile(Took, 0.999), max_ms => lists:max(maps:keys(Took))}]),
    ?assertMatch(#{failed := [], wrong := [], twice := []}, maps:with([failed, wrong, twice], Report)),
    ok.

%% The drained node, or one that takes processes, is killed in the middle. No name is ever answered by two, and each child whose state is gone is named in a warning.
killed_under_load(Config) ->
    #{children := Children, drains := Drains} = Load = load(),
    {Names, _, Callers} = loaded(Config, Load),
    {Last, Named} = lists:foldl(fun(N, {Now, Before}) ->
        Name = lists:nth(1 + N rem 3, ["a", "b", "c"]),
        Victim = case N rem 2 of 0 -> Name; 1 -> lists:nth(1 + (N + 1) rem 3, ["a", "b", "c"]) end,
        Drain = beamway_peer:async(fun() -> beamway_peer:call(peer_of(Now, "d"), placement, drain, [node_of(Now, Name), #{timeout => 5000}], 600000) end),
        %% Somewhere in the drain: when a random part of what was there has left.
        There = length(here(Now, Name)),
        Left = rand:uniform(max(1, There)),
        _ = beamway_peer:wait_until(fun() -> length(here(Now, Name)) < Left end, 5000),
        ok = beamway_peer:kill9(peer_of(Now, Victim)),
        Result = beamway_peer:await(Drain, 600000),
        Lost = case Result of
                   {ok, #{lost := Some}} -> [Child || #{process := {child, Child}} <- Some];
                   {error, nodedown} -> []
               end,
        Others = with(lists:keydelete(Victim, 1, cluster(Now)), Now),
        wait_for_all(Others, Children),
        Warned = logged(Others),
        After = again(Now, Victim),
        ok = logs(After, Victim),
        _ = [ok = on(After, Which, {placement, undrain}, []) || Which <- [Name], Which =/= Victim],
        wait_for_all(After, Children),
        {After, Lost ++ Warned ++ Before}
    end, {Config, []}, lists:seq(1, Drains)),
    Report = run(Last, "d", fun() -> placement_drain_caller:report(Callers) end),
    Loads = run(Last, "d", fun() -> [gen_server:call({via, placement, Name}, load, 60000) || Name <- Names] end),
    ok = beamway_placement_nodes:stop(cluster(Last)),
    ?assertEqual([true], lists:usort([IsWhole || {_, IsWhole, _} <- Loads])),
    #{wrong := Wrong, twice := Twice, failed := Failed, calls := Calls} = Report,
    io:format(user, "~p~n", [#{calls => Calls, failed => length(Failed), named => length(lists:usort(Named)), lost => length(lists:usort([Child || {Child, _, _, _} <- Wrong]))}]),
    ?assertEqual([], Twice),
    ?assertEqual([], [One || {Child, _, _, _} = One <- Wrong, not lists:member(Child, Named)]).

here(Config, Name) ->
    Node = node_of(Config, Name),
    [Child || {Child, On, _} <- on(Config, "d", {placement, children}, []), On =:= Node].

stopped_and_started_elsewhere(_) -> ok.
