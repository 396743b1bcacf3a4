%% SPDX-License-Identifier: Apache-2.0
%% @doc The distances between the blocks of a mapping, as whole numbers. All functions are pure.
%%
%% The distance between two nodes depends only on the smallest group that contains both. Blocks are numbered in the order
%% of the tree, so a group is a range of blocks, and each block needs only the ranges of the groups that contain it. The
%% memory for this is proportional to the number of blocks, whereas the memory for a table of all pairs would be
%% proportional to its square. A look-up tries the smallest range first, which suffices for most of the traffic once a
%% mapping has been refined.
-module(placement_map_distances).

-export([new/2, from/2, to/2]).

-export_type([parts/0, distances/0, row/0]).

-type parts() :: pos_integer() | [parts()].
%% A tree whose leaves are the blocks 1 to N, in this order. A group has at least two children.
-opaque row() :: {First :: pos_integer(), Last :: pos_integer(), Distance :: non_neg_integer(), Around :: row() | none}.
%% The distance to the blocks in this range that are not in a smaller one. The smallest range is the block itself, and
%% `Around' is the next larger one.
-opaque distances() :: tuple().
%% A row for each block.

%% The limit keeps sums of weights times distances within small integers.
-define(MOST, (1 bsl 18)).

%% @doc Returns the distances in a tree. `Between' returns the distance between two blocks; it is
%% called once for each group.
-spec new(parts(), fun((pos_integer(), pos_integer()) -> number())) -> distances().
new(Parts, Between) ->
    Ranges = ranges(Parts, Between),
    Found = [0 | found(Ranges, [])],
    Scale = placement_map_graph:scale(Found, lists:max(Found), ?MOST),
    list_to_tuple(lists:reverse(rows(Ranges, Scale, none, []))).

ranges(Parts, Between) when is_list(Parts) ->
    Children = [ranges(Part, Between) || Part <- Parts],
    First = first(hd(Children)),
    Last = last(lists:last(Children)),
    {First, Last, Between(First, Last), Children};
ranges(Block, _) -> Block.

first({First, _, _, _}) -> First;
first(Block) -> Block.

last({_, Last, _, _}) -> Last;
last(Block) -> Block.

found({_, _, Distance, Children}, Found) -> lists:foldl(fun found/2, [Distance | Found], Children);
found(_, Found) -> Found.

rows({First, Last, Distance, Children}, Scale, Around, Rows) ->
    Row = {First, Last, round(Distance * Scale), Around},
    lists:foldl(fun(Child, Before) -> rows(Child, Scale, Row, Before) end, Rows, Children);
rows(Block, _, Around, Rows) -> [{Block, Block, 0, Around} | Rows].

%% @doc Returns the distances from a block.
-spec from(pos_integer(), distances()) -> row().
from(Block, Distances) -> element(Block, Distances).

%% @doc Returns the distance to a block.
-spec to(pos_integer(), row()) -> non_neg_integer().
to(Block, {First, Last, Distance, _}) when First =< Block, Block =< Last -> Distance;
to(Block, {_, _, _, Around}) -> to(Block, Around).
