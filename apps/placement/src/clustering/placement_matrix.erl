%% SPDX-License-Identifier: Apache-2.0
%% @doc A validated table of round-trip times between nodes, in microseconds. It is square and symmetric (the smaller of
%% the two directions' values is used), all times are positive, and measured pairs connect every node to every other
%% node, directly or through others. All functions are pure.
%%
%% It is built from measurements by {@link placement_probe} or from a file, and {@link placement_cluster} builds trees
%% from it. A pair that was not measured is a gap (`undefined'). A gap does not mean that the two nodes are far apart:
%% {@link filled/1} estimates the missing time from the others. {@link drop_gaps/2} leaves out the nodes that no
%% measured pair connects to the rest.
-module(placement_matrix).

-compile({no_auto_import, [nodes/1, size/1]}).

-export([from_rows/2, from_pairs/1, drop_gaps/2, format_error/1]).
-export([nodes/1, size/1, value/3, rows/1, mapped/2, pairs/1, sub/2, gaps/1, filled/1]).

-export_type([matrix/0, value/0, error/0]).

-type value() :: number() | undefined | null.
%% A time in microseconds. A gap is `undefined', or `null' as in JSON.
-opaque matrix() :: #{nodes := tuple(), rows := tuple(), gaps := non_neg_integer()}.
%% `nodes' contains the names. `rows' contains a row of floats for each node, with `undefined' for gaps and 0.0 on the
%% diagonal. `gaps' is the number of pairs that were not measured.
-type error() :: {not_square, Nodes :: non_neg_integer(), RowNumber :: non_neg_integer(), RowLength :: non_neg_integer() | term()}
               | {bad_node, term()} | {duplicate_node, node()} | no_nodes
               | {not_a_number, node(), node(), term()} | {not_positive, node(), node(), number()}
               | {apart, Count :: pos_integer(), Some :: [node()], Nodes :: pos_integer()}
               | {bad_pair, term()}.

-define(SHOWN_APART, 5).

%% @doc Builds the matrix from rows, one for each node, in the order of the nodes. The diagonal is ignored.
-spec from_rows([node()], [[value()]]) -> {ok, matrix()} | {error, error()}.
from_rows(Nodes, Rows) -> checked(fun() -> joined(raw(Nodes, Rows)) end).

%% @doc Builds the matrix from pairs; pairs that are not listed are gaps.
-spec from_pairs([{node(), node(), value()}]) -> {ok, matrix()} | {error, error()}.
from_pairs(Pairs) ->
    checked(fun() ->
                    Pair = fun({A, B, Value}) when is_atom(A), is_atom(B) -> {{A, B}, Value}; (Other) -> throw({bad_pair, Other}) end,
                    Known = maps:from_list(lists:map(Pair, Pairs)),
                    Nodes = lists:usort(lists:append([[A, B] || {A, B, _} <- Pairs])),
                    joined(raw(Nodes, [[maps:get({A, B}, Known, undefined) || B <- Nodes] || A <- Nodes]))
            end).

%% @doc Returns the matrix of the largest set of nodes that measured pairs connect, and the nodes outside this set.
-spec drop_gaps([node()], [[value()]]) -> {ok, matrix(), Dropped :: [node()]} | {error, error()}.
drop_gaps(Nodes, Rows) ->
    checked(fun() ->
                    {Names, Raw} = raw(Nodes, Rows),
                    Kept = largest(Raw),
                    Left = sub(made(Names, Raw), [element(I, Names) || I <- Kept]),
                    {ok, Left, lists:sort(tuple_to_list(Names) -- nodes(Left))}
            end).

checked(Make) ->
    try Make()
    catch throw:Reason -> {error, Reason}
    end.

raw([], _) -> throw(no_nodes);
raw(Nodes, Rows) ->
    Count = length(Nodes),
    _ = [throw({bad_node, Node}) || Node <- Nodes, not is_atom(Node)],
    _ = [throw({duplicate_node, Node}) || Node <- Nodes -- lists:usort(Nodes)],
    is_list(Rows) andalso length(Rows) =:= Count orelse throw({not_square, Count, 0, count(Rows)}),
    Names = list_to_tuple(Nodes),
    {Names, placement_gaps:symmetric(list_to_tuple([checked_row(Row, I, Names) || {I, Row} <- lists:zip(lists:seq(1, Count), Rows)]))}.

count(List) when is_list(List) -> length(List);
count(Other) -> Other.

%% Most rows contain only floats, so a single pass checks them without building a new list. The diagonal becomes 0.0 in
%% placement_gaps:symmetric/1.
checked_row(Row, I, Names) ->
    Count = tuple_size(Names),
    case are_times(Row, I, Count) of
        true -> list_to_tuple(Row);
        false ->
            count(Row) =:= Count orelse throw({not_square, Count, I, count(Row)}),
            list_to_tuple(checked_row(Row, I, 1, Names))
    end.

are_times([Value | Row], I, Left) when is_float(Value), Value > 0 -> are_times(Row, I - 1, Left - 1);
are_times([_ | Row], 1, Left) -> are_times(Row, 0, Left - 1);
are_times(Row, _, Left) -> Row =:= [] andalso Left =:= 0.

checked_row([_ | Row], I, I, Names) -> [0.0 | checked_row(Row, I, I + 1, Names)];
checked_row([Value | Row], I, J, Names) when is_float(Value), Value > 0 -> [Value | checked_row(Row, I, J + 1, Names)];
checked_row([Value | Row], I, J, Names) when is_integer(Value), Value > 0 -> [float(Value) | checked_row(Row, I, J + 1, Names)];
checked_row([Gap | Row], I, J, Names) when Gap =:= undefined; Gap =:= null -> [undefined | checked_row(Row, I, J + 1, Names)];
checked_row([Value | _], I, J, Names) when is_number(Value) -> throw({not_positive, element(I, Names), element(J, Names), Value});
checked_row([Value | _], I, J, Names) -> throw({not_a_number, element(I, Names), element(J, Names), Value});
checked_row([], _, _, _) -> [].

joined({Names, Rows}) ->
    Count = tuple_size(Names),
    case largest(Rows) of
        Kept when length(Kept) =:= Count -> {ok, made(Names, Rows)};
        Kept ->
            Apart = [element(I, Names) || I <- lists:seq(1, Count) -- Kept],
            throw({apart, length(Apart), lists:sublist(Apart, ?SHOWN_APART), Count})
    end.

made(Names, Rows) ->
    Gaps = [gap || Row <- tuple_to_list(Rows), undefined <- tuple_to_list(Row)],
    #{nodes => Names, rows => Rows, gaps => length(Gaps) div 2}.

%% Returns the positions of the largest set of nodes that measured pairs connect, or the first of several such sets.
largest(Rows) -> largest(lists:seq(1, tuple_size(Rows)), Rows, []).

largest([], _, Best) -> lists:sort(Best);
largest([First | Others], Rows, Best) ->
    {Set, Rest} = reached([First], Others, Rows, []),
    largest(Rest, Rows, case length(Set) > length(Best) of true -> Set; false -> Best end).

reached([], Others, _, Set) -> {Set, Others};
reached([I | Next], Others, Rows, Set) ->
    Row = element(I, Rows),
    {Near, Far} = lists:partition(fun(J) -> element(J, Row) =/= undefined end, Others),
    reached(Near ++ Next, Far, Rows, [I | Set]).

%% @doc Returns the nodes, in the order of the rows.
-spec nodes(matrix()) -> [node()].
nodes(#{nodes := Nodes}) -> tuple_to_list(Nodes).

%% @doc Returns the number of nodes.
-spec size(matrix()) -> pos_integer().
size(#{nodes := Nodes}) -> tuple_size(Nodes).

%% @doc Returns the time between the nodes at two positions, counted from 1, or `undefined' for a gap.
-spec value(matrix(), Place :: pos_integer(), Place :: pos_integer()) -> float() | undefined.
value(#{rows := Rows}, I, J) -> element(J, element(I, Rows)).

%% @doc Returns the rows as a tuple of tuples.
-spec rows(matrix()) -> tuple().
rows(#{rows := Rows}) -> Rows.

%% @doc Returns rows with a function applied once to each pair's time, and 0 on the diagonal. Gaps are left unchanged.
-spec mapped(fun((float()) -> integer()), matrix()) -> tuple().
mapped(Fun, #{rows := Rows}) -> mapped(tuple_to_list(Rows), 1, Fun, []).

mapped([Row | Rows], I, Fun, Done) ->
    Right = [0 | [case Value of undefined -> undefined; _ -> Fun(Value) end || Value <- lists:nthtail(I, tuple_to_list(Row))]],
    mapped(Rows, I + 1, Fun, [list_to_tuple(mirrored(Done, I, Right)) | Done]);
mapped([], _, _, Done) -> list_to_tuple(lists:reverse(Done)).

%% Copies the values left of the diagonal from the previous rows; the last of these comes first in the list.
mirrored([Row | Rows], I, Values) -> mirrored(Rows, I, [element(I, Row) | Values]);
mirrored([], _, Values) -> Values.

%% @doc Returns all measured pairs, without duplicates.
-spec pairs(matrix()) -> [{node(), node(), float()}].
pairs(#{nodes := Nodes, rows := Rows}) ->
    Places = lists:seq(1, tuple_size(Nodes)),
    [{element(I, Nodes), element(J, Nodes), Value} || I <- Places, J <- Places, I < J, Value <- [element(J, element(I, Rows))], Value =/= undefined].

%% @doc Returns the number of pairs that are gaps.
-spec gaps(matrix()) -> non_neg_integer().
gaps(#{gaps := Gaps}) -> Gaps.

%% @doc Returns the matrix with an estimate in each gap ({@link placement_gaps}).
-spec filled(matrix()) -> matrix().
filled(#{gaps := 0} = Matrix) -> Matrix;
filled(#{rows := Rows} = Matrix) -> Matrix#{rows := placement_gaps:filled(Rows), gaps := 0}.

%% @doc Returns the matrix of some of the nodes, in the given order.
-spec sub(matrix(), [node()]) -> matrix().
sub(#{nodes := Nodes, rows := Rows}, Some) ->
    Index = maps:from_list(lists:zip(tuple_to_list(Nodes), lists:seq(1, tuple_size(Nodes)))),
    Places = [maps:get(Node, Index) || Node <- Some],
    made(list_to_tuple(Some), list_to_tuple([list_to_tuple([element(J, element(I, Rows)) || J <- Places]) || I <- Places])).

%% @doc Formats an error as text for users, including what to do about it.
-spec format_error(error()) -> unicode:chardata().
format_error(no_nodes) -> "the table has no nodes; measure at least one";
format_error({not_square, Nodes, 0, Rows}) ->
    io_lib:format("~b nodes and ~tp rows; a table of times has one row and one column for each node", [Nodes, Rows]);
format_error({not_square, Nodes, Row, Length}) ->
    io_lib:format("row ~b has ~tp values; expected ~b, one for each node", [Row, Length, Nodes]);
format_error({bad_node, Node}) -> io_lib:format("~tp is not a node name; expected an atom such as a@host", [Node]);
format_error({duplicate_node, Node}) -> io_lib:format("the node ~tp is in the table twice", [Node]);
format_error({not_a_number, A, B, Value}) ->
    io_lib:format("the time from ~tp to ~tp is ~tP; expected microseconds, or null for a pair that was not measured", [A, B, Value, 8]);
format_error({not_positive, A, B, Value}) ->
    io_lib:format("the time from ~tp to ~tp is ~tp; expected more than 0 microseconds", [A, B, Value]);
format_error({apart, Count, Some, Nodes}) ->
    io_lib:format("no measured pair joins ~b of ~b nodes to the others, such as ~ts; measure them (--resume), or leave them out (--drop-gaps)",
                  [Count, Nodes, lists:join(", ", [io_lib:format("~tp", [Node]) || Node <- Some])]);
format_error({bad_pair, Pair}) -> io_lib:format("~tP is not a pair; expected {Node, Node, Microseconds}", [Pair, 8]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

three(AB, BA) -> from_rows([a, b, c], [[0, AB, 3], [BA, 0, 4], [3, 4, 0]]).

good_test() ->
    {ok, Matrix} = three(2, 1.5),
    ?assertEqual([{a, b, 1.5}, {a, c, 3.0}, {b, c, 4.0}], pairs(Matrix)),
    ?assertEqual(3, size(Matrix)),
    ?assertEqual({ok, Matrix}, from_pairs([{b, a, 1.5}, {a, b, 2}, {a, c, 3}, {c, b, 4}])),
    ?assertEqual([{c, a, 3.0}], pairs(sub(Matrix, [c, a]))).

mapped_test() ->
    {ok, Matrix} = three(2, 1.5),
    ?assertEqual({{0, 2, 5}, {2, 0, 7}, {5, 7, 0}}, mapped(fun(Value) -> round(2 * Value - 0.6) end, Matrix)),
    {ok, One} = from_rows([a], [[7]]),
    ?assertEqual({{0}}, mapped(fun(_) -> 1 end, One)).

one_direction_is_enough_test_() -> [?_assertEqual(three(2, 2), three(2, Gap)) || Gap <- [undefined, null]].

the_diagonal_does_not_matter_test() ->
    ?assertMatch({ok, _}, from_rows([a, b], [[-1, 5], [5, nan]])),
    ?assertMatch({ok, _}, from_rows([a], [[x]])).

bad_input_test_() ->
    [{format(Want), ?_assertEqual({error, Want}, Got)} || {Want, Got} <-
        [{no_nodes, from_rows([], [])}, {{not_square, 2, 0, 1}, from_rows([a, b], [[1, 2]])},
         {{not_square, 2, 0, x}, from_rows([a, b], x)}, {{not_square, 2, 2, 1}, from_rows([a, b], [[0, 1], [2]])},
         {{not_square, 2, 1, 3}, from_rows([a, b], [[0, 1.0, 1.0], [2, 0]])}, {{not_square, 2, 1, x}, from_rows([a, b], [x, x])},
         {{bad_node, "a"}, from_rows(["a"], [[0]])}, {{duplicate_node, a}, from_rows([a, a], [[0, 1], [1, 0]])},
         {{not_a_number, a, b, nan}, three(nan, 1)}, {{not_a_number, b, a, <<"NaN">>}, three(1, <<"NaN">>)},
         {{not_positive, a, b, 0}, three(0, 1)}, {{not_positive, b, a, -0.5}, three(1, -0.5)},
         {{apart, 1, [b], 3}, from_rows([a, b, c], [[0, null, 1], [null, 0, null], [1, undefined, 0]])}, {{bad_pair, {a, b}}, from_pairs([{a, b}])}]].

format(Error) -> unicode:characters_to_list(format_error(Error)).

a_gap_stays_one_test() ->
    {ok, Matrix} = three(null, undefined),
    ?assertEqual({1, undefined, [{a, c, 3.0}, {b, c, 4.0}]}, {gaps(Matrix), value(Matrix, 1, 2), pairs(Matrix)}),
    ?assertEqual({0, 4.0}, {gaps(filled(Matrix)), value(filled(Matrix), 1, 2)}),
    ?assertEqual({{0, undefined, 6}, {undefined, 0, 8}, {6, 8, 0}}, mapped(fun(Value) -> round(2 * Value) end, Matrix)).

drop_gaps_test() ->
    Rows = [[0, 1, null, 2, null], [1, 0, null, null, null], [null, null, 0, null, 4], [2, null, null, 0, null], [null, null, 4, null, 0]],
    {ok, Matrix, [c, e]} = drop_gaps([a, b, c, d, e], Rows),
    ?assertEqual({[a, b, d], 1}, {nodes(Matrix), gaps(Matrix)}),
    ?assertMatch({ok, _, []}, drop_gaps([a, b], [[0, 1], [1, 0]])).

%% The work is quadratic in the number of nodes with a small constant: fewer than six reductions per value. The heap is
%% large enough to avoid garbage collection, because its reductions depend on the load. The test is skipped for
%% instrumented code, which takes more reductions.
many_nodes_test_() -> [fun many_nodes/0 || os:getenv("BEAMWAY_COVERAGE") =:= false].

many_nodes() ->
    Nodes = [list_to_atom("n" ++ integer_to_list(N)) || N <- lists:seq(1, 512)],
    {_, Monitor} = spawn_opt(fun() ->
                                     Rows = [[7 || _ <- Nodes] || _ <- Nodes],
                                     {_, Before} = process_info(self(), reductions),
                                     {ok, _} = from_rows(Nodes, Rows),
                                     {_, After} = process_info(self(), reductions),
                                     exit({steps, After - Before})
                             end, [monitor, {min_heap_size, 1 bsl 23}]),
    receive {'DOWN', Monitor, process, _, {steps, Steps}} -> ?assertEqual({true, Steps}, {Steps < 6 * 512 * 512, Steps})
    after 60000 -> error(timeout)
    end.
-endif.
