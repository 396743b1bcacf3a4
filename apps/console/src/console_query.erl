%% SPDX-License-Identifier: Apache-2.0
%% @doc Text of a browser as an Erlang term for a query of placement. Pure.
%%
%% Every word of it must be known to this node already: a text can make no new atoms, of which a node has a limited number, and a typing error is told by its name.
-module(console_query).

-export([parse/1]).

-define(BYTES_MAX, 8192).

%% @doc The term; several with commas between them become a list. The full stop may be left out.
-spec parse(binary()) -> {ok, term()} | {error, Text :: unicode:chardata()}.
parse(Text) when byte_size(Text) > ?BYTES_MAX -> {error, io_lib:format("the query has ~b bytes, at most ~b are expected", [byte_size(Text), ?BYTES_MAX])};
parse(Text) ->
    case [Word || Word <- words(Text), not is_known(Word)] of
        [] -> term(string:trim(unicode:characters_to_list(Text), both, " .\n\t\r"));
        [Unknown | _] -> {error, ["unknown word '", Unknown, "': no attribute, operator or unit is called so"]}
    end.

%% Words, quoted or not, that stand in no string.
words(Text) ->
    NoStrings = re:replace(Text, <<"\"(?:[^\"\\\\]|\\\\.)*\"">>, <<"\"\"">>, [global, {return, binary}]),
    case re:run(NoStrings, <<"'((?:[^'\\\\]|\\\\.)*)'|(?<![A-Za-z0-9_@$#])([a-z][A-Za-z0-9_@]*)">>, [global, {capture, all_but_first, binary}]) of
        {match, Found} -> [lists:last(Parts) || Parts <- Found];
        nomatch -> []
    end.

is_known(Word) ->
    try is_atom(binary_to_existing_atom(Word))
    catch error:_ -> false
    end.

term("") -> {error, "the query is empty; expected a term such as {mem_available, ge, {4, gib}}"};
term(Text) ->
    case parsed(Text) of
        {ok, Term} -> {ok, Term};
        {error, Why} ->
            case parsed("[" ++ Text ++ "]") of
                {ok, Term} -> {ok, Term};
                {error, _} -> {error, Why}
            end
    end.

parsed(Text) ->
    case erl_scan:string(Text ++ " .", {1, 1}) of
        {ok, Tokens, _} ->
            case erl_parse:parse_term(Tokens) of
                {ok, Term} -> {ok, Term};
                {error, {Where, Module, What}} -> at(Where, Module:format_error(What))
            end;
        {error, {Where, Module, What}, _} -> at(Where, Module:format_error(What))
    end.

at({Line, Column}, What) -> {error, io_lib:format("~ts in line ~b at character ~b; expected a term such as {mem_available, ge, {4, gib}}", [What, Line, Column])}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

parse_test_() ->
    [?_assertEqual({ok, Term}, parse(Text)) || {Text, Term} <-
        [{<<"{size, ge, {4, byte}}">>, {size, ge, {4, byte}}}, {<<"{a, true}, {b, false}.">>, [{a, true}, {b, false}]}, {<<"#{n => 1}">>, #{n => 1}},
         {<<"{name, match, \"never_heard_of_it ' x\"}">>, {name, match, "never_heard_of_it ' x"}}, {<<"{'a', 16#ff}">>, {a, 255}}]].

bad_test_() ->
    [{Expected, fun() -> {error, Why} = parse(Text), ?assertNotEqual(nomatch, string:find(unicode:characters_to_list(Why), Expected)) end} || {Expected, Text} <-
        [{"'never_heard_of_this'", <<"{never_heard_of_this, 1}">>}, {"'never heard of that'", <<"{'never heard of that', 1}">>}, {"empty", <<" . ">>},
         {"line 1", <<"{a,">>}, {"line 1", <<"f(x)">>}, {"8192", binary:copy(<<"a">>, 9000)}, {"line 1", <<"fun() -> x end">>}]].

%% Whatever comes, there are no more atoms afterwards.
no_atoms_test() ->
    _ = parse(<<"{warm, up}">>),
    Before = erlang:system_info(atom_count),
    _ = [parse(<<"{fresh_", (integer_to_binary(N))/binary, ", 'odd \\' ", (integer_to_binary(N))/binary, "'}">>) || N <- lists:seq(1, 100)],
    ?assert(erlang:system_info(atom_count) - Before < 20).
-endif.
