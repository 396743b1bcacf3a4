%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench placement --part map': what do the mappings of {@link placement:map/3} cost compared with those of Scotch's `gmap' (Debian: scotch), on
%% graphs from {@link beamway_bench_graphs}?
%%
%% The tree has 8 sites of 8 racks of 4 nodes, at distances of 100, 10 and 1 (Scotch's architecture `tleaf'), and the permitted imbalance is 3 %. The
%% same function computes the cost of both mappings. Seconds are wall-clock time.
-module(beamway_bench_map).

-export([metrics/0, repeats/1, measure/2]).

-define(LEVELS, [100, 10, 1]).
-define(GMAP_MS, 120000).

graphs() ->
    [{<<"rgg_n15">>, {geometric, 32768}}, {<<"delaunay_n15">>, {delaunay, 32768}}, {<<"stencil_128x128">>, {grid, [128, 128]}},
     {<<"stencil_24x24x24">>, {grid, [24, 24, 24]}}, {<<"power_law_8192">>, {power_law, 8192, 4}}].

%% @doc Returns the metrics for each graph: the cost relative to that of Scotch's mapping, and the seconds.
-spec metrics() -> [map()].
metrics() ->
    lists:append([[#{name => <<"map_cost_", Name/binary>>, unit => <<"of Scotch's">>, better => lower, key => cost_key(Name)},
                   #{name => <<"map_s_", Name/binary>>, unit => <<"s">>, better => lower, key => time_key(Name)}] || {Name, _} <- graphs()]).

cost_key(Name) -> <<"mapping ", Name/binary, ": cost over Scotch's">>.
time_key(Name) -> <<"mapping ", Name/binary, ": seconds">>.

%% @doc Returns the number of repeats. Each repeat's number is the seed for its graph and its
%% mapping.
-spec repeats(full | quick) -> pos_integer().
repeats(full) -> 3;
repeats(quick) -> 1.

%% @doc Maps each graph with both programs. Without Scotch, it measures only the seconds.
-spec measure(full | quick, Repeat :: pos_integer()) -> #{binary() => number()}.
measure(_, Repeat) ->
    Tree = tree(),
    maps:from_list(lists:append([mapped(Name, beamway_bench_graphs:make(Kind, Repeat), Tree, Repeat) || {Name, Kind} <- graphs()])).

tree() ->
    {ok, Tree} = placement_tree:from_paths([{list_to_atom(lists:flatten(io_lib:format("n~b~b~b", [A, B, C]))), [{site, A}, {rack, B}]}
                                            || A <- lists:seq(0, 7), B <- lists:seq(0, 7), C <- lists:seq(0, 3)]),
    Tree.

mapped(Name, {Count, Edges}, Tree, Seed) ->
    {Us, {ok, #{cost := Own}}} = timer:tc(fun() -> placement:map(Edges, Tree, #{processes => lists:seq(1, Count), distances => ?LEVELS, seed => Seed}) end),
    Seconds = Us / 1.0e6,
    case os:find_executable("scotch_gmap") of
        false ->
            ok = beamway_bench_text:note("bench placement: map: ~ts: cost ~b in ~.2f s; install Debian's package scotch to compare", [Name, Own, Seconds]),
            [{time_key(Name), Seconds}];
        Gmap ->
            {Theirs, TheirSeconds} = by_scotch(Gmap, Count, Edges, Tree),
            ok = beamway_bench_text:note("bench placement: map: ~-16ts cost ~9b in ~5.2f s, Scotch ~9b in ~5.2f s: ~.3f", [Name, Own, Seconds, Theirs, TheirSeconds, Own / Theirs]),
            [{time_key(Name), Seconds}, {cost_key(Name), Own / Theirs}]
    end.

by_scotch(Gmap, Count, Edges, Tree) ->
    beamway_bench_tools:with_folder(fun(Folder) ->
        [Graph, Target, Map] = [filename:join(Folder, Name) || Name <- ["x.grf", "x.tgt", "x.map"]],
        ok = file:write_file(Graph, graph_file(Count, Edges)),
        ok = file:write_file(Target, "tleaf 3 8 100 8 10 4 1\n"),
        Start = erlang:monotonic_time(microsecond),
        Port = open_port({spawn_executable, Gmap}, [{args, ["-b0.03", Graph, Target, Map]}, exit_status, stderr_to_stdout]),
        ok = ended(Port),
        Us = erlang:monotonic_time(microsecond) - Start,
        {ok, Text} = file:read_file(Map),
        [_ | Numbers] = [binary_to_integer(Word) || Word <- string:lexemes(Text, " \t\n")],
        Places = maps:from_list(places(Numbers, list_to_tuple(placement_tree:leaf_order(Tree)))),
        Count = map_size(Places),
        {placement_map:cost(Edges, Places, Tree, ?LEVELS), Us / 1.0e6}
    end).

ended(Port) ->
    receive
        {Port, {exit_status, 0}} -> ok;
        {Port, {exit_status, Status}} -> error({scotch_gmap, {status, Status}});
        {Port, {data, _}} -> ended(Port)
    after ?GMAP_MS -> error({scotch_gmap, timeout})
    end.

%% Scotch counts from 0. Each line of the file contains the number of a vertex's neighbours, followed by those neighbours.
graph_file(Count, Edges) ->
    Add = fun(V, U, Acc) -> maps:update_with(V, fun(Others) -> [U | Others] end, [U], Acc) end,
    Neighbours = lists:foldl(fun({A, B, 1}, Acc) -> Add(A, B, Add(B, A, Acc)) end, #{}, Edges),
    [io_lib:format("0~n~b ~b~n0 000~n", [Count, 2 * length(Edges)])
     | [begin
            Others = maps:get(V, Neighbours, []),
            [integer_to_list(length(Others)), [[$\s, integer_to_list(U - 1)] || U <- Others], $\n]
        end || V <- lists:seq(1, Count)]].

places([Vertex, Block | Rest], Nodes) -> [{Vertex + 1, element(Block + 1, Nodes)} | places(Rest, Nodes)];
places([], _) -> [].
