%% SPDX-License-Identifier: Apache-2.0
%% @doc Converts measured times to a matrix, converts them to and from the JSON object that `beamway topology measure'
%% stores, and reads a matrix from CSV. All functions are pure.
-module(placement_measured).

-export([matrix/3, joined_matrix/3, best_mode/1, to_json/1, from_json/1, from_csv/1, format_error/1]).

-export_type([statistic/0, error/0]).

-type statistic() :: min_us | median_us | p90_us.
-type error() :: {csv, Line :: pos_integer(), Why :: string()} | not_an_object | {missing, binary()} | {bad_pair, term()} | {bad_node, term()}.

-define(MOST_NODES, 4096).

%% @doc Returns the matrix for a mode and a statistic. Pairs that were not measured are gaps.
-spec matrix(placement_probe:measured(), placement_probe:mode(), statistic()) -> {ok, placement_matrix:matrix()} | {error, placement_matrix:error()}.
matrix(#{nodes := Nodes} = Measured, Mode, Statistic) -> placement_matrix:from_rows(Nodes, rows(Measured, Mode, Statistic)).

%% @doc Like {@link matrix/3}, but leaves out the nodes that no measured pair connects to the others, and also returns
%% these nodes.
-spec joined_matrix(placement_probe:measured(), placement_probe:mode(), statistic()) ->
          {ok, placement_matrix:matrix(), [node()]} | {error, placement_matrix:error()}.
joined_matrix(#{nodes := Nodes} = Measured, Mode, Statistic) ->
    placement_matrix:drop_gaps(Nodes, rows(Measured, Mode, Statistic)).

rows(#{nodes := Nodes, pairs := Pairs}, Mode, Statistic) ->
    [[case Pairs of
          #{{Mode, A, B} := #{Statistic := Time}} -> Time;
          #{} -> undefined
      end || B <- Nodes] || A <- Nodes].

%% @doc Returns the more informative of the measured modes: `loaded' if it was measured, otherwise `quiet'.
-spec best_mode(placement_probe:measured()) -> placement_probe:mode().
best_mode(#{pairs := Pairs}) ->
    case [x || {loaded, _, _} <- maps:keys(Pairs)] of
        [] -> quiet;
        _ -> loaded
    end.

%% @doc Returns the measured times as a map for a JSON encoder.
-spec to_json(placement_probe:measured()) -> map().
to_json(#{nodes := Nodes, pairs := Pairs, failed := Failed, messages := Messages, seconds := Seconds}) ->
    #{what => <<"beamway topology">>, unit => <<"microseconds of one round trip">>, nodes => [atom_to_binary(Node) || Node <- Nodes],
      messages => Messages, seconds => Seconds,
      pairs => [Summary#{mode => Mode, from => atom_to_binary(A), to => atom_to_binary(B)} || {{Mode, A, B}, Summary} <- lists:sort(maps:to_list(Pairs))],
      failed => [#{mode => Mode, from => atom_to_binary(A), to => atom_to_binary(B), reason => unicode:characters_to_binary(io_lib:format("~0tP", [Reason, 12]))}
                 || {Mode, A, B, Reason} <- Failed]}.

%% @doc Returns the measured times from a decoded JSON object (maps with binary keys).
-spec from_json(term()) -> {ok, placement_probe:measured()} | {error, error()}.
from_json(#{} = Object) ->
    try
        Names = field(<<"nodes">>, Object),
        is_list(Names) andalso length(Names) =< ?MOST_NODES orelse throw({missing, <<"nodes">>}),
        Nodes = [name(Name) || Name <- Names],
        Known = maps:from_list(lists:zip(Names, Nodes)),
        Pairs = field(<<"pairs">>, Object),
        is_list(Pairs) orelse throw({missing, <<"pairs">>}),
        {ok, #{nodes => lists:usort(Nodes), failed => [], messages => maps:get(<<"messages">>, Object, 100),
               seconds => maps:get(<<"seconds">>, Object, 0.0), pairs => maps:from_list([pair(Pair, Known) || Pair <- Pairs])}}
    catch
        throw:Error -> {error, Error}
    end;
from_json(_) -> {error, not_an_object}.

field(Name, Object) ->
    case Object of
        #{Name := Value} -> Value;
        #{} -> throw({missing, Name})
    end.

name(Name) when is_binary(Name), byte_size(Name) < 256 -> binary_to_atom(Name);
name(Other) -> throw({bad_node, Other}).

%% The times are checked when the matrix is built.
pair(#{<<"mode">> := Mode, <<"from">> := From, <<"to">> := To, <<"min_us">> := Min, <<"median_us">> := Median, <<"p90_us">> := P90} = Pair, Known)
  when Mode =:= <<"quiet">>; Mode =:= <<"loaded">> ->
    case Known of
        #{From := A, To := B} ->
            {{binary_to_existing_atom(Mode), min(A, B), max(A, B)},
             #{min_us => Min, median_us => Median, p90_us => P90, batches => maps:get(<<"batches">>, Pair, 1)}};
        #{} -> throw({bad_pair, {From, To}})
    end;
pair(Other, _) -> throw({bad_pair, Other}).

%% @doc Reads a matrix of microseconds from CSV, with a row and a column for each node, separated by commas, semicolons
%% or tabs. A cell may be in double quotes, and a decimal comma is read as a decimal point. The first row and the first
%% column may contain names; if there are only numbers, the nodes are called n1, n2 and so on. If the first cell is empty
%% but the diagonal is not, the other cells of the first row are names, even if they are numbers. Any other empty cell, `-'
%% or `nan' means that the pair was not measured.
-spec from_csv(unicode:chardata()) -> {ok, placement_probe:measured()} | {error, error()}.
from_csv(Text) ->
    case unicode:characters_to_list(Text) of
        Characters when is_list(Characters) -> from_lines(string:split(Characters, "\n", all));
        {_, Before, _} -> {error, {csv, length(string:split(Before, "\n", all)), "this is not UTF-8"}}
    end.

from_lines(All) ->
    Lines = [{Number, cells(Line)} || {Number, Line} <- lists:enumerate(All), string:trim(Line) =/= ""],
    try {ok, of_rows(named(Lines))}
    catch throw:Error -> {error, Error}
    end.

cells(Line) -> [string:trim(Cell) || Cell <- cells(Line, separator(Line), [], [])].

cells([], _, Cell, Cells) -> lists:reverse(Cells, [lists:reverse(Cell)]);
cells([Separator | Rest], Separator, Cell, Cells) -> cells(Rest, Separator, [], [lists:reverse(Cell) | Cells]);
cells([$" | Rest], Separator, [], Cells) -> quoted(Rest, Separator, [], Cells);
cells([$\s | Rest], Separator, [], Cells) -> cells(Rest, Separator, [], Cells);
cells([Character | Rest], Separator, Cell, Cells) -> cells(Rest, Separator, [Character | Cell], Cells).

quoted([$", $" | Rest], Separator, Cell, Cells) -> quoted(Rest, Separator, [$" | Cell], Cells);
quoted([$" | Rest], Separator, Cell, Cells) -> cells(Rest, Separator, Cell, Cells);
quoted([Character | Rest], Separator, Cell, Cells) -> quoted(Rest, Separator, [Character | Cell], Cells);
quoted([], Separator, Cell, Cells) -> cells([], Separator, Cell, Cells).

%% Returns the first of these separators that occurs outside of quotes.
separator(Line) ->
    Bare = re:replace(Line, "\"[^\"]*\"", "", [global, unicode, {return, list}]),
    hd([Sign || Sign <- ";\t", lists:member(Sign, Bare)] ++ [$,]).

named([]) -> throw({csv, 1, "the file is empty"});
named([{Number, [Corner | Names] = First} | Lines] = All) ->
    {Nodes, Rows} = case lists:all(fun(Cell) -> value(Cell) =/= error end, First) andalso (Corner =/= "" orelse has_empty_diagonal(All)) of
                        true -> {["n" ++ integer_to_list(N) || N <- lists:seq(1, length(First))], All};
                        false -> {Names, [{N, row_of(N, Name, Row, Lines, Names)} || {N, [Name | Row]} <- Lines]}
                    end,
    length(Rows) =:= length(Nodes) orelse throw({csv, Number, text("~b columns and ~b rows; a matrix has as many of both", [length(Nodes), length(Rows)])}),
    _ = [throw({csv, N, text("~b values; expected ~b, one for each node", [length(Row), length(Nodes)])}) || {N, Row} <- Rows, length(Row) =/= length(Nodes)],
    length(Nodes) =< ?MOST_NODES orelse throw({csv, Number, text("~b nodes; at most ~b are allowed", [length(Nodes), ?MOST_NODES])}),
    Long = [Name || Name <- Nodes, Name =:= "" orelse length(Name) > 255],
    Long =:= [] orelse throw({csv, Number, text("'~ts' is not a node name", [hd(Long)])}),
    {[list_to_atom(Name) || Name <- Nodes], Rows}.

%% Returns whether the diagonal is empty. This is allowed, because a node is not measured with itself.
has_empty_diagonal(Lines) -> lists:all(fun({Place, {_, Row}}) -> lists:sublist(Row, Place, 1) =:= [""] end, lists:enumerate(Lines)).

%% The rows must be in the same order as the columns.
row_of(N, Name, Row, Lines, Names) ->
    {_, Before} = lists:unzip(lists:takewhile(fun({Other, _}) -> Other < N end, Lines)),
    case lists:nthtail(min(length(Before), length(Names)), Names) of
        [Name | _] -> Row;
        [Expected | _] -> throw({csv, N, text("the row is called '~ts'; expected '~ts', in the order of the columns", [Name, Expected])});
        [] -> throw({csv, N, text("the row '~ts' has no column", [Name])})
    end.

value(Gap) when Gap =:= ""; Gap =:= "-"; Gap =:= "nan"; Gap =:= "NaN" -> undefined;
value(Cell) ->
    %% A decimal comma is read as a point.
    case string:to_float(Cell) of
        {Float, ""} -> Float;
        _ ->
            case string:to_integer(Cell) of
                {Integer, ""} -> Integer;
                _ -> error
            end
    end.

of_rows({Nodes, Rows}) ->
    Pairs = [{{quiet, min(A, B), max(A, B)}, time(Number, Cell)} || {A, {Number, Row}} <- lists:zip(Nodes, Rows), {B, Cell} <- lists:zip(Nodes, Row), A =/= B],
    Known = lists:foldl(fun({_, undefined}, Acc) -> Acc;
                           ({Pair, Us}, Acc) -> maps:update_with(Pair, fun(Other) -> min(Us, Other) end, Us, Acc)
                        end, #{}, Pairs),
    #{nodes => lists:usort(Nodes), failed => [], messages => 1, seconds => 0.0,
      pairs => maps:map(fun(_, Us) -> #{min_us => Us, median_us => Us, p90_us => Us, batches => 1} end, Known)}.

time(Number, Cell) ->
    case value(Cell) of
        error -> throw({csv, Number, text("'~ts' is not a number of microseconds", [Cell])});
        Us when is_number(Us), Us =< 0 -> throw({csv, Number, text("'~ts': expected more than 0 microseconds", [Cell])});
        Us -> Us
    end.

text(Format, Arguments) -> lists:flatten(io_lib:format(Format, Arguments)).

%% @doc Formats an error as text for users.
-spec format_error(error()) -> unicode:chardata().
format_error({csv, Line, Why}) -> io_lib:format("line ~b: ~ts", [Line, Why]);
format_error(not_an_object) -> "this is not a JSON object; expected a file that `beamway topology measure' has stored";
format_error({missing, Field}) -> io_lib:format("the object has no list '~ts'; expected what `beamway topology measure' stores", [Field]);
format_error({bad_pair, Pair}) -> io_lib:format("~tP is not a measured pair of the object's nodes", [Pair, 12]);
format_error({bad_node, Node}) -> io_lib:format("~tP is not a node name", [Node, 8]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

measured() ->
    Summary = #{min_us => 1.0, median_us => 2.0, p90_us => 3.0, batches => 20},
    #{nodes => [a, b, c], messages => 100, seconds => 1.5, failed => [{quiet, a, c, timeout}],
      pairs => #{{quiet, a, b} => Summary, {quiet, b, c} => Summary#{median_us := 4.0}, {loaded, a, b} => Summary}}.

json_comes_back_test() ->
    {ok, Back} = from_json(jiffy:decode(jiffy:encode(to_json(measured())), [return_maps])),
    ?assertEqual((measured())#{failed := []}, Back).

matrix_test() ->
    {ok, Gappy} = matrix(measured(), quiet, median_us),
    ?assertEqual(1, placement_matrix:gaps(Gappy)),
    ?assertMatch({ok, Gappy, []}, joined_matrix(measured(), quiet, median_us)),
    ?assertMatch({error, {apart, 1, [c], 3}}, matrix(measured(), loaded, median_us)),
    {ok, Matrix, [c]} = joined_matrix(measured(), loaded, median_us),
    ?assertEqual(2, placement_matrix:size(Matrix)),
    ?assertEqual(loaded, best_mode(measured())).

csv_test_() ->
    Want = [{a, b, 2}, {b, c, 4.5}],
    [fun() ->
             {ok, #{pairs := Pairs}} = from_csv(Text),
             ?assertEqual(Want, [{A, B, Us} || {{quiet, A, B}, #{median_us := Us, min_us := Us}} <- lists:sort(maps:to_list(Pairs))])
     end || Text <- ["node,a,b,c\na,0,3,\nb,2,0,4.5\nc,-,nan,0\n", ";a;b;c\r\na;0;2;\r\n\r\nb;;0;4.5\r\nc;;;0\r\n", "\"\"\ta\tb\tc\na\t0\t2\t\nb\t2\t0\t4.5\nc\t\t4.5\t",
                    %% Commas in quotes do not separate cells; they are decimal commas.
                    "\"\",\"a\",b,\"c\"\n\"a\",0,\"2,5\",\nb,2,0,\"4,5\"\r\nc,,\"5,25\",0\n", ";a;b;c\na;0;2;\nb;2,5;0;4,5\nc;;4,5;0\n"]]
        %% A name may contain a separator, or a quote, which is written twice.
        ++ [?_assertMatch({ok, #{nodes := ['a,b', 'c;"d']}}, from_csv(",\"a,b\",\"c;\"\"d\"\n\"a,b\",0,1\n\"c;\"\"d\",1,0\n"))]
        %% A quote inside a name is part of the name.
        ++ [?_assertMatch({ok, #{nodes := ['5"', b]}}, from_csv(", 5\", \"b\"\n5\",0,1\nb,1,0\n"))]
        ++ [?_assertMatch({ok, #{nodes := [n1, n2], pairs := #{{quiet, n1, n2} := #{p90_us := 7}}}}, from_csv("0,7\n8,0\n")),
            ?_assertMatch({ok, #{nodes := [n1, n2, n3], pairs := #{{quiet, n1, n2} := #{p90_us := 3}}}}, from_csv(",3,4\n3,,5\n4,5,\n")),
            ?_assertMatch({ok, #{nodes := ['1', '2'], pairs := #{{quiet, '1', '2'} := #{p90_us := 5}}}}, from_csv(",1,2\n1,0,5\n2,6,0\n"))].

wrong_csv_test_() ->
    [{Text, ?_assertMatch({{error, {csv, Line, _}}, _}, {from_csv(Text), from_csv(Text)})}
     || {Line, Text} <- [{1, ""}, {1, ",a,b\na,0,1\n"}, {2, ",a,b\na,0\nb,1,0"}, {2, ",a,b\nb,0,1\na,1,0"}, {3, ",a,b\na,0,1\nb,x,0"}, {3, ",a,b\na,0,1\nb,-2,0"}, {1, ",a,\na,0,1\n,1,0"},
                         {2, ",a,b\na,0,\"1,2,3\"\nb,1,0"}, {3, ",a,b\na,0,\"0,234\"\nb,\"1,x\",0"}]]
        ++ [?_assertMatch({error, {csv, 2, _}}, from_csv(<<",a,b\na,0,", Bytes/binary>>)) || Bytes <- [<<255, "\nb,1,0\n">>, <<195>>]].

bad_input_test_() ->
    [{unicode:characters_to_list(format_error(Want)), ?_assertEqual({error, Want}, from_json(Object))} || {Want, Object} <-
        [{not_an_object, []}, {{missing, <<"nodes">>}, #{}}, {{missing, <<"nodes">>}, #{<<"nodes">> => 1}}, {{missing, <<"pairs">>}, #{<<"nodes">> => []}},
         {{bad_node, 7}, #{<<"nodes">> => [7]}}, {{bad_pair, 1}, #{<<"nodes">> => [], <<"pairs">> => [1]}},
         {{bad_pair, {<<"a">>, <<"b">>}}, #{<<"nodes">> => [<<"a">>], <<"pairs">> => [#{<<"mode">> => <<"quiet">>, <<"from">> => <<"a">>, <<"to">> => <<"b">>,
                                                        <<"min_us">> => 1, <<"median_us">> => 1, <<"p90_us">> => 1}]}}]].
-endif.
