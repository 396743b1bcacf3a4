%% SPDX-License-Identifier: Apache-2.0
%% @doc Generates graphs that describe which processes communicate with each other, for `bench placement --part map' and for tests. The edges connect
%% the numbers 1 to N, and all have weight 1. The same seed always produces the same graph.
%%
%% The graphs belong to well-known families: random geometric graphs (radius 0.55 sqrt(ln N / N)), Delaunay triangulations of random points, grid
%% stencils, and preferential attachment, whose degrees follow a power law.
-module(beamway_bench_graphs).

-export([make/2]).

-export_type([kind/0, edges/0]).

-type kind() :: {geometric | delaunay, Points :: pos_integer()} | {grid, [pos_integer()]} | {power_law, Vertices :: pos_integer(), EdgesEach :: pos_integer()}.
-type edges() :: [{pos_integer(), pos_integer(), Weight :: pos_integer()}].

%% @doc Returns the edges of one graph, and its number of vertices.
-spec make(kind(), Seed :: integer()) -> {Vertices :: pos_integer(), edges()}.
make({geometric, Count}, Seed) ->
    Radius = 0.55 * math:sqrt(math:log(Count) / Count),
    {Points, Cells, Width} = points(Count, Seed, Radius),
    {Count, [{V, U, 1} || V <- lists:seq(1, Count), {_, U} <- around(V, 1, Points, Cells, Width), U > V, squared(element(V, Points), element(U, Points)) =< Radius * Radius]};
make({delaunay, Count}, Seed) ->
    {Points, Cells, Width} = points(Count, Seed, 1 / math:sqrt(Count)),
    {Count, lists:usort([{min(V, U), max(V, U), 1} || V <- lists:seq(1, Count), U <- voronoi(V, Points, Cells, Width)])};
make({grid, Sizes}, _) ->
    Strides = strides(Sizes, 1),
    Places = places(Sizes),
    Number = fun(Place) -> 1 + lists:sum([X * Stride || {X, Stride} <- lists:zip(Place, Strides)]) end,
    {length(Places), [{Number(Place), Number(Place) + Stride, 1} || Place <- Places, {X, Size, Stride} <- lists:zip3(Place, Sizes, Strides), X + 1 < Size]};
make({power_law, Count, Each}, Seed) ->
    {Edges, _, _} = lists:foldl(fun(V, State) -> attached(V, Each, State) end, {[], #{}, rand:seed_s(exsss, Seed)}, lists:seq(2, Count)),
    {Count, lists:usort(Edges)}.

strides([Size | Sizes], Stride) -> [Stride | strides(Sizes, Stride * Size)];
strides([], _) -> [].

places([Size | Sizes]) -> [[X | Place] || Place <- places(Sizes), X <- lists:seq(0, Size - 1)];
places([]) -> [[]].

%% The list contains each vertex once for every one of its edges, so a random pick is proportional to the degree.
attached(V, Each, {Edges, Ends, Random0}) ->
    {Drawn, Random} = lists:mapfoldl(fun(_, R) -> drawn(V, Ends, R) end, Random0, lists:seq(1, min(Each, V - 1))),
    lists:foldl(fun(U, {Known, Before, R}) -> {[{U, V, 1} | Known], Before#{map_size(Before) => U, map_size(Before) + 1 => V}, R} end,
                {Edges, Ends, Random}, lists:usort(Drawn)).

drawn(_, Ends, Random) when map_size(Ends) =:= 0 -> {1, Random};
drawn(_, Ends, Random0) ->
    {Index, Random} = rand:uniform_s(map_size(Ends), Random0),
    {maps:get(Index - 1, Ends), Random}.

%% Returns random points in the unit square, and the points in each cell of a grid whose cells have this width.
points(Count, Seed, Width) ->
    {Points, _} = lists:mapfoldl(fun(_, R0) -> {X, R1} = rand:uniform_s(R0), {Y, R2} = rand:uniform_s(R1), {{X, Y}, R2} end, rand:seed_s(exsss, Seed), lists:seq(1, Count)),
    Cells = lists:foldl(fun({V, Point}, Acc) -> maps:update_with(cell(Point, Width), fun(Others) -> [V | Others] end, [V], Acc) end, #{}, lists:zip(lists:seq(1, Count), Points)),
    {list_to_tuple(Points), Cells, Width}.

cell({X, Y}, Width) -> {trunc(X / Width), trunc(Y / Width)}.

squared({X1, Y1}, {X2, Y2}) -> (X1 - X2) * (X1 - X2) + (Y1 - Y2) * (Y1 - Y2).

%% Returns the other points within this many cells, nearest first.
around(V, Rings, Points, Cells, Width) ->
    Point = element(V, Points),
    {Column, Row} = cell(Point, Width),
    lists:sort([{squared(Point, element(U, Points)), U} || X <- lists:seq(Column - Rings, Column + Rings), Y <- lists:seq(Row - Rings, Row + Rings),
                                                           U <- maps:get({X, Y}, Cells, []), U =/= V]).

%% Two points are neighbours in a Delaunay triangulation if their Voronoi cells touch. A point's
%% cell starts as the unit square and is cut along the bisectors between it and the other points,
%% except those that are more than twice as far away as the cell's furthest corner, which cannot cut
%% it. Cells that would touch only outside the square do not produce an edge.
voronoi(V, Points, Cells, Width) -> voronoi(V, 3, Points, Cells, Width).

voronoi(V, Rings, Points, Cells, Width) ->
    Point = element(V, Points),
    Square = [{{0.0, 0.0}, 0}, {{1.0, 0.0}, 0}, {{1.0, 1.0}, 0}, {{0.0, 1.0}, 0}],
    Corners = lists:foldl(fun({Squared, U}, Cell) -> cut(Cell, Point, U, element(U, Points), Squared) end, Square, around(V, Rings, Points, Cells, Width)),
    case 2 * math:sqrt(reach(Corners, Point)) =< Rings * Width orelse Rings * Width > 1 of
        true -> [U || {_, U} <- Corners, U =/= 0];
        false -> voronoi(V, 2 * Rings, Points, Cells, Width)
    end.

reach(Corners, Point) -> lists:max([squared(Corner, Point) || {Corner, _} <- Corners]).

%% The corners are in order. Each is stored with the neighbour whose bisector contains the side that begins at this corner.
cut(Corners, Point, U, Other, Squared) ->
    case Squared > 4 * reach(Corners, Point) of
        true -> Corners;
        false ->
            Sides = [{Corner, Name, side(Corner, Point, Other)} || {Corner, Name} <- Corners],
            lists:append([clipped(From, To, U) || {From, To} <- lists:zip(Sides, tl(Sides) ++ [hd(Sides)])])
    end.

%% Returns a negative number if the corner is nearer to the point than to the other point.
side(Corner, Point, Other) -> squared(Corner, Point) - squared(Corner, Other).

clipped({One, Name, S1}, {_, _, S2}, _) when S1 =< 0, S2 =< 0 -> [{One, Name}];
clipped({One, Name, S1}, {Two, _, S2}, U) when S1 =< 0 -> [{One, Name}, {between(One, S1, Two, S2), U}];
clipped({One, Name, S1}, {Two, _, S2}, _) when S2 =< 0 -> [{between(One, S1, Two, S2), Name}];
clipped(_, _, _) -> [].

between({X1, Y1}, S1, {X2, Y2}, S2) ->
    Share = S1 / (S1 - S2),
    {X1 + Share * (X2 - X1), Y1 + Share * (Y2 - Y1)}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% A triangulation of points in general position has 3N - 3 - H edges, where H is the number of edges on its hull. This one omits a few hull edges.
delaunay_test() ->
    {1000, Edges} = make({delaunay, 1000}, 1),
    ?assert(length(Edges) > 2800),
    ?assert(length(Edges) =< 2994).

grid_test() -> ?assertEqual({6, [{1, 2, 1}, {1, 3, 1}, {2, 4, 1}, {3, 4, 1}, {3, 5, 1}, {4, 6, 1}, {5, 6, 1}]}, begin {N, Edges} = make({grid, [2, 3]}, 1), {N, lists:sort(Edges)} end).

geometric_test() ->
    {500, Edges} = make({geometric, 500}, 1),
    ?assert(length(Edges) > 500),
    ?assertEqual({500, Edges}, make({geometric, 500}, 1)),
    ?assertNotEqual({500, Edges}, make({geometric, 500}, 2)).

power_law_test() ->
    {2000, Edges} = make({power_law, 2000, 4}, 1),
    Degrees = lists:foldl(fun({A, B, 1}, Acc) -> maps:update_with(A, fun(N) -> N + 1 end, 1, maps:update_with(B, fun(N) -> N + 1 end, 1, Acc)) end, #{}, Edges),
    ?assertEqual(2000, map_size(Degrees)),
    ?assert(lists:max(maps:values(Degrees)) > 60).
-endif.
