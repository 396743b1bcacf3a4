%% SPDX-License-Identifier: Apache-2.0
%% @doc Describes the groups that a clustering has found: labels, names and order. All functions are pure.
-module(placement_labels).

-export([of_logs/2, measured/2, ordered/1]).

%% Logarithms are fixed-point integers in which 65536 means 1.0.
-define(UNIT, 65536).

%% Returns the labels of a group from the times between its children in microseconds.
-spec of_values([float(), ...]) -> placement_tree:labels().
of_values(Values) -> of_logs([round(math:log(Value) * ?UNIT) || Value <- Values], lists:max(Values)).

%% @doc Returns the labels of a group from the logarithms of the times between its children,
%% multiplied by 65536, and the longest of these times.
-spec of_logs([integer(), ...], Most :: float()) -> placement_tree:labels().
of_logs(Logs, Most) ->
    {Count, Sum, Squares, _, _} = Sums = placement_quantiles:sums(Logs),
    [Median, P95] = placement_quantiles:quantiles([0.5, 0.95], Logs, Sums),
    #{median_us => min(Most, math:exp(Median / ?UNIT)), p95_us => min(Most, math:exp(P95 / ?UNIT)), max_us => Most, pairs => Count,
      spread => math:sqrt(Squares * Count - Sum * Sum) / Count / ?UNIT}.

%% @doc Returns the vertex with labels computed from a matrix for each of its groups.
-spec measured(placement_tree:vertex(), placement_matrix:matrix()) -> placement_tree:vertex().
measured(Vertex, Matrix) ->
    Places = maps:from_list(lists:zip(placement_matrix:nodes(Matrix), lists:seq(1, placement_matrix:size(Matrix)))),
    {Labelled, _} = measured(Vertex, Places, placement_matrix:rows(Matrix)),
    Labelled.

measured({leaf, Node} = Leaf, Places, _) -> {Leaf, [maps:get(Node, Places)]};
measured({group, Name, _, Children}, Places, Rows) ->
    Below = [measured(Child, Places, Rows) || Child <- Children],
    Lists = [Members || {_, Members} <- Below],
    Labels = case between(Lists, Rows) of
                 [] -> #{};
                 Values -> of_values(Values)
             end,
    {{group, Name, Labels, [Child || {Child, _} <- Below]}, lists:append(Lists)}.

between([One | Others], Rows) ->
    [Value || I <- One, J <- lists:append(Others), Value <- [element(J, element(I, Rows))], is_float(Value)] ++ between(Others, Rows);
between([], _) -> [].

%% @doc Sorts the children of a vertex in an order that depends only on the clusters: groups before nodes, large groups
%% first, and otherwise by the names of their nodes. Groups are named after their position, such as `"c2.1"'.
-spec ordered(placement_tree:vertex()) -> placement_tree:vertex().
ordered(Vertex) -> named(sorted(Vertex), "c", "network").

sorted({leaf, _} = Leaf) -> Leaf;
sorted({group, Name, Labels, Children}) ->
    Keyed = [{key(Child), Child} || Child <- [sorted(Child) || Child <- Children]],
    {group, Name, Labels, [Child || {_, Child} <- lists:keysort(1, Keyed)]}.

key({leaf, Node}) -> {1, 0, Node};
key({group, _, _, _} = Group) ->
    Members = placement_tree:members(Group),
    {0, -length(Members), lists:min(Members)}.

named({leaf, _} = Leaf, _, _) -> Leaf;
named({group, _, Labels, Children}, Prefix, Name) ->
    {group, Name, Labels, [named(Child, [Prefix, integer_to_list(N), "."], lists:flatten([Prefix, integer_to_list(N)]))
                           || {N, Child} <- lists:enumerate(Children)]}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

of_values_test() ->
    #{median_us := Median, p95_us := P95, max_us := Max, pairs := 4, spread := Spread} = of_values([1.0, 2.0, 4.0, 8.0]),
    ?assertEqual(8.0, Max),
    ?assert(abs(Median - 2) < 0.01),
    ?assert(abs(P95 - 8) < 0.01),
    ?assert(abs(Spread - math:sqrt(1.25) * math:log(2)) < 0.001).

ordered_test() ->
    Group = fun(Children) -> {group, x, #{}, Children} end,
    ?assertEqual({group, "network", #{}, [{group, "c1", #{}, [{group, "c1.1", #{}, [{leaf, d}, {leaf, e}]}, {leaf, c}]},
                                          {group, "c2", #{}, [{leaf, a}, {leaf, b}]}, {leaf, f}]},
                 ordered(Group([{leaf, f}, Group([{leaf, b}, {leaf, a}]), Group([{leaf, c}, Group([{leaf, e}, {leaf, d}])])]))).
-endif.
