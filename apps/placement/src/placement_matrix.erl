%% SPDX-License-Identifier: Apache-2.0
%% @doc A table of round-trip times between nodes, in microseconds, that has been checked: square,
%% symmetric (of two directions the smaller counts), without gaps, all times above 0. Pure.
%%
%% Made of what {@link placement_probe} measured or a file holds; {@link placement_cluster} makes trees
%% of it. A pair that could not be measured is missing, never infinitely far: {@link drop_gaps/2} leaves out the
%% nodes that most of the gaps belong to.
-module(placement_matrix).

-compile({no_auto_import, [nodes/1, size/1]}).

-export([from_rows/2, from_pairs/1, drop_gaps/2, format_error/1]).
-export([nodes/1, size/1, value/3, rows/1, mapped/2, pairs/1, sub/2]).

-export_type([matrix/0, value/0, error/0]).

-type value() :: number() | undefined | null.
%% Microseconds; a gap is `undefined', or `null' as in JSON.
-opaque matrix() :: #{nodes := tuple(), rows := tuple()}.
%% The names, and a tuple of a row for each: floats; the diagonal is 0.0.
-type error() :: {not_square, Nodes :: non_neg_integer(), RowNumber :: non_neg_integer(), RowLength :: non_neg_integer() | term()}
               | {bad_node, term()} | {duplicate_node, node()} | no_nodes
               | {not_a_number, node(), node(), term()} | {not_positive, node(), node(), number()}
               | {gaps, Count :: pos_integer(), Some :: [{node(), node()}], Nodes :: pos_integer()}
               | {bad_pair, term()}.

-define(SHOWN_GAPS, 5).

%% @doc The matrix of rows, one for each node in their order; what stands in the diagonal is not looked at.
-spec from_rows([node()], [[value()]]) -> {ok, matrix()} | {error, error()}.
from_rows(Nodes, Rows) ->
    checked(fun() -> complete(raw(Nodes, Rows)) end).

%% @doc The same of pairs; those that are not named are gaps.
-spec from_pairs([{node(), node(), value()}]) -> {ok, matrix()} | {error, error()}.
from_pairs(Pairs) ->
    checked(fun() ->
                    ok = lists:foreach(fun check_pair/1, Pairs),
                    Known = maps:from_list([{{A, B}, Value} || {A, B, Value} <- Pairs]),
                    Nodes = lists:usort(lists:append([[A, B] || {A, B, _} <- Pairs])),
                    complete(raw(Nodes, [[maps:get({A, B}, Known, undefined) || B <- Nodes] || A <- Nodes]))
            end).

check_pair({A, B, _}) when is_atom(A), is_atom(B) -> ok;
check_pair(Other) -> throw({bad_pair, Other}).

%% @doc The matrix without the nodes that have gaps, and these nodes: the one with most gaps goes
%% first, until none is left.
-spec drop_gaps([node()], [[value()]]) -> {ok, matrix(), Dropped :: [node()]} | {error, error()}.
drop_gaps(Nodes, Rows) ->
    checked(fun() ->
                    {Names, Raw} = raw(Nodes, Rows),
                    Dropped = gappy(gap_counts(Names, Raw), []),
                    Left = [Node || Node <- Names, not lists:member(Node, Dropped)],
                    {ok, Matrix} = complete(chosen(Left, Names, Raw)),
                    {ok, Matrix, lists:sort(Dropped)}
            end).

%% Gaps as sets of partners, so that each drop is counted once.
gap_counts(Names, Raw) ->
    maps:from_list([{Node, [Other || {Other, undefined} <- lists:zip(Names, Row), Other =/= Node]}
                    || {Node, Row} <- lists:zip(Names, Raw)]).

gappy(Gaps, Dropped) ->
    case lists:last([{0, none} | lists:sort([{length(Partners), Node} || {Node, Partners} <- maps:to_list(Gaps)])]) of
        {0, _} -> Dropped;
        {_, Worst} ->
            Fewer = maps:map(fun(_, Partners) -> lists:delete(Worst, Partners) end, maps:remove(Worst, Gaps)),
            gappy(Fewer, [Worst | Dropped])
    end.

checked(Make) ->
    try Make()
    catch throw:Reason -> {error, Reason}
    end.

%% Names and symmetric rows, with gaps.
raw([], _) -> throw(no_nodes);
raw(Nodes, Rows) ->
    Count = length(Nodes),
    _ = [throw({bad_node, Node}) || Node <- Nodes, not is_atom(Node)],
    _ = [throw({duplicate_node, Node}) || Node <- Nodes -- lists:usort(Nodes)],
    is_list(Rows) andalso length(Rows) =:= Count orelse throw({not_square, Count, 0, count(Rows)}),
    _ = [throw({not_square, Count, Number, count(Row)})
         || {Number, Row} <- lists:zip(lists:seq(1, Count), Rows), count(Row) =/= Count],
    Values = [checked_value(A, Other, Value) || {A, Row} <- lists:zip(Nodes, Rows), {Other, Value} <- lists:zip(Nodes, Row)],
    {Nodes, symmetric(cut(Values, Count))}.

count(List) when is_list(List) -> length(List);
count(Other) -> Other.

checked_value(Node, Node, _) -> 0.0;
checked_value(_, _, undefined) -> undefined;
checked_value(_, _, null) -> undefined;
checked_value(_, _, Value) when is_number(Value), Value > 0 -> float(Value);
checked_value(A, B, Value) when is_number(Value) -> throw({not_positive, A, B, Value});
checked_value(A, B, Value) -> throw({not_a_number, A, B, Value}).

cut([], _) -> [];
cut(Values, Count) ->
    {Row, Rest} = lists:split(Count, Values),
    [Row | cut(Rest, Count)].

%% `undefined' sorts after all numbers, so min takes the direction that was measured.
symmetric(Rows) ->
    [lists:zipwith(fun erlang:min/2, Row, Column) || {Row, Column} <- lists:zip(Rows, transposed(Rows))].

transposed([[] | _]) -> [];
transposed(Rows) -> [[hd(Row) || Row <- Rows] | transposed([tl(Row) || Row <- Rows])].

complete({Names, Rows}) ->
    case [{A, B} || {A, Row} <- lists:zip(Names, Rows), {B, undefined} <- lists:zip(Names, Row), A < B] of
        [] -> {ok, #{nodes => list_to_tuple(Names), rows => list_to_tuple([list_to_tuple(Row) || Row <- Rows])}};
        Gaps -> throw({gaps, length(Gaps), lists:sublist(Gaps, ?SHOWN_GAPS), length(Names)})
    end.

chosen(Left, Names, Rows) ->
    Keep = [lists:member(Name, Left) || Name <- Names],
    Some = fun(List) -> [Element || {true, Element} <- lists:zip(Keep, List)] end,
    {Left, [Some(Row) || Row <- Some(Rows)]}.

%% @doc The nodes, in the order of the rows.
-spec nodes(matrix()) -> [node()].
nodes(#{nodes := Nodes}) ->
    tuple_to_list(Nodes).

%% @doc How many nodes there are.
-spec size(matrix()) -> pos_integer().
size(#{nodes := Nodes}) ->
    tuple_size(Nodes).

%% @doc The time between the nodes at two places, counted from 1.
-spec value(matrix(), Place :: pos_integer(), Place :: pos_integer()) -> float().
value(#{rows := Rows}, I, J) ->
    element(J, element(I, Rows)).

%% @doc The rows, a tuple of tuples.
-spec rows(matrix()) -> tuple().
rows(#{rows := Rows}) ->
    Rows.

%% @doc The rows of what a function makes of each time, with 0 in the diagonal. The function is called once for each pair.
-spec mapped(fun((float()) -> integer()), matrix()) -> tuple().
mapped(Fun, #{rows := Rows}) ->
    mapped(tuple_to_list(Rows), 1, Fun, []).

mapped([Row | Rows], I, Fun, Done) ->
    Right = [0 | [Fun(Value) || Value <- lists:nthtail(I, tuple_to_list(Row))]],
    mapped(Rows, I + 1, Fun, [list_to_tuple(mirrored(Done, I, Right)) | Done]);
mapped([], _, _, Done) -> list_to_tuple(lists:reverse(Done)).

%% What stands left of the diagonal stands above it in the rows before, the last of which comes first.
mirrored([Row | Rows], I, Values) -> mirrored(Rows, I, [element(I, Row) | Values]);
mirrored([], _, Values) -> Values.

%% @doc All pairs, each once.
-spec pairs(matrix()) -> [{node(), node(), float()}].
pairs(#{nodes := Nodes, rows := Rows}) ->
    Places = lists:seq(1, tuple_size(Nodes)),
    [{element(I, Nodes), element(J, Nodes), element(J, element(I, Rows))} || I <- Places, J <- Places, I < J].

%% @doc The matrix of some of the nodes, in the order given: as in a drawing that shows neighbours side by side.
-spec sub(matrix(), [node()]) -> matrix().
sub(#{nodes := Nodes, rows := Rows}, Some) ->
    Index = maps:from_list(lists:zip(tuple_to_list(Nodes), lists:seq(1, tuple_size(Nodes)))),
    Places = [maps:get(Node, Index) || Node <- Some],
    #{nodes => list_to_tuple(Some),
      rows => list_to_tuple([list_to_tuple([element(J, element(I, Rows)) || J <- Places]) || I <- Places])}.

%% @doc An error in words, with what to do.
-spec format_error(error()) -> unicode:chardata().
format_error(no_nodes) ->
    "there is no node in the table; measure at least one";
format_error({not_square, Nodes, 0, Rows}) ->
    io_lib:format("~b nodes and ~tp rows; a table of times has one row and one column for each node", [Nodes, Rows]);
format_error({not_square, Nodes, Row, Length}) ->
    io_lib:format("row ~b has ~tp values; expected ~b, one for each node", [Row, Length, Nodes]);
format_error({bad_node, Node}) ->
    io_lib:format("~tp is no name of a node; expected an atom such as a@host", [Node]);
format_error({duplicate_node, Node}) ->
    io_lib:format("the node ~tp stands in the table twice", [Node]);
format_error({not_a_number, A, B, Value}) ->
    io_lib:format("the time from ~tp to ~tp is ~tP; expected microseconds, or null for a pair that was not measured", [A, B, Value, 8]);
format_error({not_positive, A, B, Value}) ->
    io_lib:format("the time from ~tp to ~tp is ~tp; expected more than 0 microseconds", [A, B, Value]);
format_error({gaps, Count, Some, Nodes}) ->
    io_lib:format("~b pairs of ~b nodes were not measured, such as ~ts; measure them (--resume), or leave out their nodes (--drop-gaps)",
                  [Count, Nodes, lists:join(", ", [io_lib:format("~tp to ~tp", [A, B]) || {A, B} <- Some])]);
format_error({bad_pair, Pair}) ->
    io_lib:format("~tP is no pair; expected {Node, Node, Microseconds}", [Pair, 8]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

three(AB, BA) ->
    from_rows([a, b, c], [[0, AB, 3], [BA, 0, 4], [3, 4, 0]]).

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

one_direction_is_enough_test_() ->
    [?_assertEqual(three(2, 2), three(2, Gap)) || Gap <- [undefined, null]].

the_diagonal_does_not_matter_test() ->
    ?assertMatch({ok, _}, from_rows([a, b], [[-1, 5], [5, nan]])),
    ?assertMatch({ok, _}, from_rows([a], [[x]])).

bad_input_test_() ->
    [{format(Want), ?_assertEqual({error, Want}, Got)} || {Want, Got} <-
        [{no_nodes, from_rows([], [])}, {{not_square, 2, 0, 1}, from_rows([a, b], [[1, 2]])},
         {{not_square, 2, 0, x}, from_rows([a, b], x)}, {{not_square, 2, 2, 1}, from_rows([a, b], [[0, 1], [2]])},
         {{bad_node, "a"}, from_rows(["a"], [[0]])}, {{duplicate_node, a}, from_rows([a, a], [[0, 1], [1, 0]])},
         {{not_a_number, a, b, nan}, three(nan, 1)}, {{not_a_number, b, a, <<"NaN">>}, three(1, <<"NaN">>)},
         {{not_positive, a, b, 0}, three(0, 1)}, {{not_positive, b, a, -0.5}, three(1, -0.5)},
         {{gaps, 1, [{a, b}], 3}, three(null, undefined)}, {{bad_pair, {a, b}}, from_pairs([{a, b}])}]].

format(Error) -> unicode:characters_to_list(format_error(Error)).

drop_gaps_test() ->
    Rows = [[0, 1, null, 2], [1, 0, null, 3], [null, null, 0, 4], [2, 3, 4, 0]],
    {ok, Matrix, [c]} = drop_gaps([a, b, c, d], Rows),
    ?assertEqual([a, b, d], nodes(Matrix)),
    ?assertMatch({ok, _, []}, drop_gaps([a, b], [[0, 1], [1, 0]])).
-endif.
