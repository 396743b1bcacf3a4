%% SPDX-License-Identifier: Apache-2.0
%% @doc A node is emptied: processes move with their state and their waiting messages while others call them. Four real nodes.
%%
%% `BEAMWAY_TEST_DRAINS=100' (`make test-drain') gives the drains under load their full form: so many clean ones and so many with `kill -9', with 20,000 processes of 500 MB and 100 callers.
-module(placement_drain_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_testcase/2, end_per_testcase/2]).
-export([children_under_load/1]).
-export([caller/4, start_children/2]).

-define(COUNTER, placement_drain_counter).
-define(NAMES, ["a", "b", "c", "d"]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [children_under_load].

init_per_testcase(_, Config) ->
    Cluster = beamway_placement_nodes:start(?NAMES, #{args => args()}),
    [ok = beamway_placement_nodes:connect(Cluster, Name) || Name <- ["a", "b", "c"]],
    [{cluster, Cluster} | Config].

args() -> ["-pa", filename:absname(filename:dirname(code:which(?MODULE)))].

end_per_testcase(_, Config) -> ok = beamway_placement_nodes:stop(cluster(Config)).

%%% Helpers

cluster(Config) -> proplists:get_value(cluster, Config).

on(Config, Name, Function, Arguments) -> beamway_placement_nodes:call(cluster(Config), Name, Function, Arguments).

peer_of(Config, Name) -> element(2, lists:keyfind(Name, 1, cluster(Config))).

node_of(Config, Name) -> element(3, lists:keyfind(Name, 1, cluster(Config))).

%% On a node: starts children of these names and sizes, some at a time.
start_children(Sized, Options) ->
    Self = self(),
    Parts = parts(Sized, 50),
    Pids = [spawn_link(fun() ->
        [{ok, _} = placement:child([], {?COUNTER, start_link, [Name, Bytes]}, Options#{name => Name}) || {Name, Bytes} <- Part],
        Self ! {self(), started}
    end) || Part <- Parts],
    [receive {Pid, started} -> ok end || Pid <- Pids],
    ok.

parts(List, Count) ->
    Numbered = lists:zip([N rem Count || N <- lists:seq(1, length(List))], List),
    [[Item || {Of, Item} <- Numbered, Of =:= Part] || Part <- lists:seq(0, Count - 1)].

%% A caller calls one child after the other, each with its next number, until it is told to stop. Its report: calls, what was wrong, and how long calls took (us), the longest first.
caller(To, Id, Names, PauseMs) ->
    Tuple = list_to_tuple(Names),
    To ! {report, Id, calling(Id, Tuple, #{}, PauseMs, 0, [], [])}.

calling(Id, Names, Numbers, PauseMs, Calls, Wrong, Took) ->
    receive stop -> {Calls, Wrong, Took, Numbers}
    after PauseMs ->
        Name = element(rand:uniform(tuple_size(Names)), Names),
        Number = maps:get(Name, Numbers, 0) + 1,
        Begin = erlang:monotonic_time(microsecond),
        Answer = try ?COUNTER:bump({via, placement, Name}, Id, Number)
                 catch Class:Reason -> {failed, Name, Class, Reason}
                 end,
        Us = erlang:monotonic_time(microsecond) - Begin,
        calling(Id, Names, Numbers#{Name => Number}, PauseMs, Calls + 1, [Answer || Answer =/= ok] ++ Wrong, [Us | Took])
    end.

callers(Config, Name, Count, Names, PauseMs) ->
    Self = self(),
    Node = node_of(Config, Name),
    beamway_peer:run(peer_of(Config, Name), fun() ->
        Collector = spawn(fun() -> collector(Count, []) end),
        Callers = [spawn(?MODULE, caller, [Collector, {Node, Id}, Names, PauseMs]) || Id <- lists:seq(1, Count)],
        _ = Self,
        {Collector, Callers}
    end).

collector(0, Reports) -> receive {get, Tag} -> persistent_term:put(Tag, Reports) end;
collector(Count, Reports) -> receive {report, _, Report} -> collector(Count - 1, [Report | Reports]) end.

reports(Config, Name, {Collector, Callers}) ->
    beamway_peer:run(peer_of(Config, Name), fun() ->
        _ = [Caller ! stop || Caller <- Callers],
        Collector ! {get, reports},
        ok
    end),
    beamway_peer:wait_until(fun() -> on(Config, Name, {persistent_term, get}, [reports, false]) end, 60000).

%%% The cases

children_under_load(Config) ->
    Names = [{counter, N} || N <- lists:seq(1, 60)],
    Nodes = beamway_placement_nodes:nodes(cluster(Config)),
    Sized = [{Name, 1000 * (1 + N rem 50)} || {counter, N} = Name <- Names],
    ok = on(Config, "a", {?MODULE, start_children}, [Sized, #{nodes => Nodes, grace => 10000}]),
    Callers = callers(Config, "d", 20, Names, 1),
    {ok, Result} = on(Config, "b", {placement, drain}, [node_of(Config, "a")]),
    ct:pal("~p", [Result]),
    Reports = reports(Config, "d", Callers),
    ct:pal("~p", [[{Calls, Wrong, lists:max(Took)} || {Calls, Wrong, Took, _} <- Reports]]),
    ?assertMatch(#{stayed := [], lost := [], restarted := []}, Result),
    ?assertEqual([], lists:append([Wrong || {_, Wrong, _, _} <- Reports])).
