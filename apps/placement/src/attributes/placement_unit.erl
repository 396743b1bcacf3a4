%% SPDX-License-Identifier: Apache-2.0
%% @doc The units of attributes, and the comparison of values. All functions are pure.
%%
%% Before a value is compared with a quantity such as `{4, gib}', the quantity is converted to the value's unit. A bare
%% number is assumed to be in the value's own unit. Numbers can be compared only with numbers, and text only with text (a
%% string or a binary). Likewise, atoms can be compared only with atoms, lists with lists, and tuples with tuples whose
%% elements are of the same kinds. For terms of other kinds, `equal' is the only possible result. Any other comparison
%% returns `{error, _}', which makes the predicate unknown. In Erlang's own term order every atom is greater than every
%% number.
-module(placement_unit).

-export([is_unit/1, is_quantity/1, is_measure/1, convert/2, compare/3, names/0]).

-export_type([unit/0, quantity/0, reason/0]).

-type unit() :: byte | kib | mib | gib | tib | hz | khz | mhz | ghz | us | ms | s | minute | ratio | percent | none.
-type quantity() :: {number(), unit()}.
-type reason() :: {other_dimension, unit(), unit()} | {too_large, number()} | {other_type, Value :: term(), Constant :: term()}.

unit(byte) -> {bytes, 1};
unit(kib) -> {bytes, 1 bsl 10};
unit(mib) -> {bytes, 1 bsl 20};
unit(gib) -> {bytes, 1 bsl 30};
unit(tib) -> {bytes, 1 bsl 40};
unit(hz) -> {frequency, 1};
unit(khz) -> {frequency, 1000};
unit(mhz) -> {frequency, 1000000};
unit(ghz) -> {frequency, 1000000000};
unit(us) -> {time, 1};
unit(ms) -> {time, 1000};
unit(s) -> {time, 1000000};
unit(minute) -> {time, 60000000};
unit(ratio) -> {ratio, 1};
unit(percent) -> {ratio, 0.01};
unit(none) -> {none, 1};
unit(_) -> unknown.

%% @doc Returns all units, for messages.
-spec names() -> [unit()].
names() -> [byte, kib, mib, gib, tib, hz, khz, mhz, ghz, us, ms, s, minute, ratio, percent, none].

%% @doc Returns whether a term is the name of a unit.
-spec is_unit(term()) -> boolean().
is_unit(Unit) -> is_atom(Unit) andalso unit(Unit) =/= unknown.

%% @doc Returns whether a term is a number with a unit, such as `{4, gib}'.
-spec is_quantity(term()) -> boolean().
is_quantity({Number, Unit}) when is_number(Number) -> is_unit(Unit);
is_quantity(_) -> false.

%% @doc Returns whether a term is a number that is safe in float arithmetic, unlike 2^1024 or 1.0e308.
-spec is_measure(term()) -> boolean().
is_measure(Term) -> is_number(Term) andalso abs(Term) =< 1.0e300.

%% @doc Converts a quantity to a number in the unit `To'.
-spec convert(quantity(), To :: unit()) -> {ok, number()} | {error, reason()}.
convert({Number, Unit}, Unit) -> {ok, Number};
convert({Number, From}, To) ->
    {FromDimension, FromFactor} = unit(From),
    {ToDimension, ToFactor} = unit(To),
    case FromDimension =:= ToDimension of
        true ->
            try {ok, Number * FromFactor / ToFactor}
            catch error:badarith -> {error, {too_large, Number}}
            end;
        false -> {error, {other_dimension, From, To}}
    end.

-spec number_in(Constant :: term(), unit()) -> {ok, term()} | {error, reason()}.
number_in({Number, Unit} = Constant, To) when is_number(Number) ->
    case is_unit(Unit) of
        true -> convert({Number, Unit}, To);
        false -> {ok, Constant}
    end;
number_in(Constant, _) -> {ok, Constant}.

%% @doc Compares the value of an attribute, in its unit, with a constant.
-spec compare(Value :: term(), unit(), Constant :: term()) -> {ok, less | equal | greater} | {error, reason()}.
compare(Value, Unit, Constant) ->
    case number_in(Constant, Unit) of
        {ok, Same} -> ordered(Value, Same);
        {error, _} = Error -> Error
    end.

ordered(A, B) ->
    case {kind(A), kind(B)} of
        {Kind, Kind} when Kind =/= other -> {ok, order(plain(Kind, A), plain(Kind, B))};
        %% An empty list also counts as text.
        {text, list} when B =:= [] -> ordered(A, <<>>);
        {list, text} when A =:= [] -> ordered(<<>>, B);
        {other, other} when A =:= B -> {ok, equal};
        _ -> {error, {other_type, A, B}}
    end.

order(A, B) when A == B -> equal;
order(A, B) when A < B -> less;
order(_, _) -> greater.

kind(Term) when is_number(Term) -> number;
kind(Term) when is_atom(Term) -> atom;
kind(Term) when is_binary(Term) -> text;
kind(Term) when is_tuple(Term) -> {tuple, [kind(Element) || Element <- tuple_to_list(Term)]};
kind([]) -> list;
kind(Term) when is_list(Term) ->
    case io_lib:printable_unicode_list(Term) of
        true -> text;
        false -> list
    end;
kind(_) -> other.

plain(text, Term) -> unicode:characters_to_binary(Term);
plain(_, Term) -> Term.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

convert_test_() ->
    [?_assertEqual({ok, 4194304.0}, convert({4, gib}, kib)), ?_assertEqual({ok, 4}, convert({4, gib}, gib)),
     ?_assertEqual({ok, 1596.0}, convert({1.596, ghz}, mhz)), ?_assertMatch({error, {other_dimension, gib, mhz}}, convert({4, gib}, mhz)),
     ?_assertMatch({error, {too_large, _}}, convert({1 bsl 1024, gib}, mib)), ?_assertMatch({error, {too_large, _}}, convert({1.0e308, minute}, s))].

is_measure_test_() ->
    [?_assertEqual({Term, Want}, {Term, is_measure(Term)})
     || {Want, Term} <- [{true, 7}, {true, -0.5}, {true, 1 bsl 64}, {false, 1 bsl 1024}, {false, -(1 bsl 1024)}, {false, 1.0e308}, {false, x}, {false, "7"}]].

compare_test_() ->
    [?_assertEqual(Want, compare(Value, Unit, Constant))
     || {Want, Value, Unit, Constant} <- [{{ok, less}, 1596.0, mhz, {2, ghz}}, {{ok, equal}, 4, none, 4.0}, {{ok, greater}, 5, kib, 4},
                                          {{ok, equal}, "Linux", none, <<"Linux">>}, {{ok, less}, {3, 11}, none, {3, 12}},
                                          {{ok, less}, "", none, "x"}, {{ok, greater}, <<"x">>, none, ""}, {{ok, equal}, "", none, <<>>}, {{ok, less}, [], none, [1]},
                                          {{error, {other_type, undefined, 5}}, undefined, none, 5},
                                          {{error, {other_type, "8", 8}}, "8", none, 8},
                                          {{error, {other_dimension, gib, mhz}}, 5, mhz, {1, gib}}]].

an_atom_is_not_greater_than_a_number_test() ->
    ?assertMatch({error, _}, compare(undefined, none, 5)),
    ?assert(undefined > 5).
-endif.
