%% SPDX-License-Identifier: Apache-2.0
%% @doc Creates the demo's line about placement, which says which of the demo's nodes a query chooses, and why it rejects one of the others.
-module(beamway_demo_placement).

-export([run/1, text/1, hold/2]).

-type outcome() :: #{chosen := [node()], refused := node(), why := unicode:chardata()}.

-define(QUERY, [{mem_available, ge, {100, mib}}, {workers, le, 1}]).
-define(VALUES_MS, 15000).
-define(AGAIN_MS, 200).

%% @doc Starts placement and some workers on the nodes (two more on the first node than on each of the others), and makes a query.
-spec run(beamway_bench_nodes:cluster()) -> outcome().
run(#{members := [First | _] = Members} = Cluster) ->
    Ebin = filename:join([beamway_bench_checkout:root(), "apps", "placement", "ebin"]),
    _ = beamway_bench_nodes:all(Cluster, code, add_patha, [Ebin]),
    _ = beamway_bench_nodes:all(Cluster, attr, start, []),
    _ = [ok = beamway_bench_nodes:call(Member, ?MODULE, hold, [workers, Count]) || {Member, Count} <- lists:zip(Members, [3 | [1 || _ <- tl(Members)]])],
    [Busy | _] = Nodes = beamway_bench_nodes:names(Cluster),
    Chosen = choose(First, Nodes, erlang:monotonic_time(millisecond) + ?VALUES_MS),
    {ok, Reports} = beamway_bench_nodes:call(First, placement, explain, [[Busy], ?QUERY]),
    Why = beamway_bench_nodes:call(First, placement_explain, to_text, [Reports]),
    _ = beamway_bench_nodes:all(Cluster, attr, stop, []),
    #{chosen => Chosen, refused => Busy, why => lists:last(string:lexemes(unicode:characters_to_list(Why), "\n"))}.

%% On a loaded machine, a node that has just started may not have determined its available memory yet. The query then rejects it, so the
%% query is repeated until it chooses all nodes but the busy one.
choose(First, Nodes, Deadline) ->
    {ok, Chosen, _} = beamway_bench_nodes:call(First, placement, choose_nodes, [Nodes, ?QUERY]),
    case length(Chosen) >= length(Nodes) - 1 orelse erlang:monotonic_time(millisecond) >= Deadline of
        true -> Chosen;
        false ->
            receive after ?AGAIN_MS -> ok end,
            choose(First, Nodes, Deadline)
    end.

%% @doc Runs on a node: starts `Count' processes that together own an attribute whose value is the number of its owners.
-spec hold(atom(), pos_integer()) -> ok.
hold(Name, Count) ->
    Caller = self(),
    Pids = [spawn(fun() ->
                          ok = apply(placement, own, [Name]),
                          Caller ! {self(), owns},
                          %% The process runs until the node exits.
                          receive stop -> ok end
                  end) || _ <- lists:seq(1, Count)],
    lists:foreach(fun(Pid) -> receive {Pid, owns} -> ok after 5000 -> error(no_owner) end end, Pids).

%% @doc Returns the line that the demo prints.
-spec text(outcome()) -> unicode:chardata().
text(#{chosen := Chosen, refused := Refused, why := Why}) ->
    io_lib:format("Placement: mem_available >= 100 mib and workers =< 1 chooses ~ts; not ~ts: ~ts.~n",
                  [lists:join(", ", [atom_to_list(Node) || Node <- Chosen]), Refused, string:trim(Why)]).
