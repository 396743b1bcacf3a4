%% SPDX-License-Identifier: Apache-2.0
%% @doc Turns text from a browser into an Erlang term for a placement query. All functions are pure.
%%
%% This node must already know every word in the text as an atom. Text from a browser therefore cannot create atoms,
%% whose number is limited on a node, and a misspelled word is named in the error message. OTP's scanner would create an
%% atom for every word and variable, so this module scans the text itself.
-module(beamway_console_query).

-export([parse/1, calls_code/1]).

-define(BYTES_MAX, 8192).
-define(EXAMPLE, "expected a term such as {mem_available, ge, {4, gib}}").

-type place() :: {Line :: pos_integer(), Column :: pos_integer()}.

%% @doc Returns the term. Several comma-separated terms become a list. The full stop is optional.
-spec parse(binary()) -> {ok, term()} | {error, Text :: unicode:chardata()}.
parse(Text) when byte_size(Text) > ?BYTES_MAX -> {error, io_lib:format("the query has ~b bytes, at most ~b are expected", [byte_size(Text), ?BYTES_MAX])};
parse(Text) ->
    try term(tokens(Text))
    catch throw:{?MODULE, Why} -> {error, Why}
    end.

-spec wrong(unicode:chardata()) -> no_return().
wrong(Why) -> throw({?MODULE, Why}).

-spec wrong(unicode:chardata(), place()) -> no_return().
wrong(What, {Line, Column}) -> wrong(io_lib:format("~ts in line ~b at character ~b; " ?EXAMPLE, [What, Line, Column])).

%%% Tokens

%% The kinds of tokens and their patterns. If two match, the first one is used. The last kind matches everything else.
-define(KINDS, [{space, "(?:\\s|%[^\n]*)+"}, {string, "\"(?:[^\"\\\\]++|\\\\.)*+\""}, {quoted, "'(?:[^'\\\\]++|\\\\.)*+'"}, {character, "\\$(?:\\\\.|[^\\\\])"},
                {word, "[a-z\\x{df}-\\x{f6}\\x{f8}-\\x{ff}]" ?INSIDE}, {variable, "[A-Z_\\x{c0}-\\x{d6}\\x{d8}-\\x{de}]" ?INSIDE},
                {float, "[0-9]+\\.[0-9]+(?:[eE][-+]?[0-9]+)?"}, {based, "[0-9]+#[0-9A-Za-z]+"}, {integer, "[0-9]+"}, {sign, "=>|<<|>>|[][{}(),|#:/+-]"}, {other, "."}]).
-define(INSIDE, "[A-Za-z0-9_@\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{ff}]*").

tokens(Text) ->
    case unicode:characters_to_list(Text) of
        Characters when is_list(Characters) ->
            Pattern = lists:join("|", [["(", Looks, ")"] || {_, Looks} <- ?KINDS]),
            tokens(re:run(string:trim(Characters, trailing, " .\n\t\r"), Pattern, [global, unicode, dotall, {capture, all_but_first, list}]), {1, 1});
        _ -> wrong("the query is not valid UTF-8")
    end.

tokens(nomatch, _) -> [];
tokens({match, Found}, Start) ->
    %% Groups after the one that matches are missing from the result.
    {Tokens, _} = lists:mapfoldl(fun(Groups, Place) -> token(element(1, lists:nth(length(Groups), ?KINDS)), lists:last(Groups), Place) end, Start, Found),
    lists:append(Tokens).

token(Kind, Text, Place) -> {made(Kind, Text, Place), lists:foldl(fun after_character/2, Place, Text)}.

after_character($\n, {Line, _}) -> {Line + 1, 1};
after_character(_, {Line, Column}) -> {Line, Column + 1}.

made(space, _, _) -> [];
made(string, Text, Place) -> [{string, Place, unescaped(inside(Text), Place)}];
made(quoted, Text, Place) -> [{atom, Place, known(unescaped(inside(Text), Place))}];
made(character, [$$ | Text], Place) -> [{char, Place, hd(unescaped(Text, Place))}];
made(word, Text, Place) ->
    Word = known(Text),
    [case erl_scan:reserved_word(Word) of true -> {Word, Place}; false -> {atom, Place, Word} end];
made(variable, Text, Place) -> wrong(["the variable ", Text, " has no value"], Place);
made(float, Text, Place) ->
    try [{float, Place, list_to_float(Text)}] catch error:badarg -> wrong(["the number ", Text, " is too large"], Place) end;
made(based, Text, Place) ->
    [Base, Digits] = string:split(Text, "#"),
    try [{integer, Place, list_to_integer(Digits, list_to_integer(Base))}] catch error:badarg -> wrong(["the number ", Text, " is not one of its base"], Place) end;
made(integer, Text, Place) -> [{integer, Place, list_to_integer(Text)}];
made(sign, Text, Place) -> [{list_to_existing_atom(Text), Place}];
made(other, Text, Place) -> wrong(["'", Text, "' is not expected"], Place).

inside(Text) -> lists:droplast(tl(Text)).

unescaped([$\\, Character | Rest], Place) -> [escaped(Character, Place) | unescaped(Rest, Place)];
unescaped([Character | Rest], Place) -> [Character | unescaped(Rest, Place)];
unescaped([], _) -> [].

escaped($n, _) -> $\n;
escaped($t, _) -> $\t;
escaped($r, _) -> $\r;
escaped($s, _) -> $\s;
escaped(Character, _) when Character < $0; Character =:= $\\ -> Character;
escaped(Character, Place) -> wrong(["'\\", Character, "' is not known (\\n, \\t, \\r, \\s, \\\\, \\\" and \\' are)"], Place).

known(Word) ->
    try list_to_existing_atom(Word)
    catch error:_ -> wrong(["unknown word '", Word, "': no attribute, operator or unit is called so"])
    end.

%%% Terms

term([]) -> {error, "the query is empty; " ?EXAMPLE};
term(Tokens) ->
    End = element(2, lists:last(Tokens)),
    case erl_parse:parse_term(Tokens ++ [{dot, End}]) of
        {ok, Term} -> {ok, Term};
        {error, {Where, Module, What}} ->
            case erl_parse:parse_term([{'[', {1, 1}} | Tokens] ++ [{']', End}, {dot, End}]) of
                {ok, Term} -> {ok, Term};
                {error, _} -> wrong(Module:format_error(What), Where)
            end
    end.

%% @doc Returns whether the node would call a function named in the query: the user's own score, or a module as policy.
-spec calls_code(Query :: term()) -> boolean().
calls_code(#{policy := {module, _}}) -> true;
calls_code(#{prefer := [{_, {score, _, _}} | _]}) -> true;
calls_code(#{prefer := [_ | Rest]} = Query) -> calls_code(Query#{prefer := Rest});
calls_code(_) -> false.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

calls_code_test_() ->
    Score = {1, {score, {m, f}, []}},
    [?_assert(calls_code(Query)) || Query <- [#{prefer => [Score]}, #{prefer => [{1, {load, min}}, Score]}, #{prefer => [Score | x]}, #{policy => {module, m}, prefer => []}]]
        ++ [?_assertNot(calls_code(Query)) || Query <- [[], {score, eq, 1}, #{require => {score, eq, 1}, policy => {choices, 3}}, #{prefer => [{1, {load, min}} | x]}, #{prefer => x}]].

parse_test_() ->
    [?_assertEqual({ok, Term}, parse(Text)) || {Text, Term} <-
        [{<<"{size, ge, {4, byte}}">>, {size, ge, {4, byte}}}, {<<"{a, true}, {b, false}.">>, [{a, true}, {b, false}]}, {<<"#{n => 1}">>, #{n => 1}},
         {<<"{name, match, \"never_heard_of_it ' x\"}">>, {name, match, "never_heard_of_it ' x"}}, {<<"{'a', 16#ff}">>, {a, 255}},
         {<<"[{a, -1.5e3}, {b, $\\n, $x, $\"} | []] % and so on">>, [{a, -1500.0}, {b, $\n, $x, $"}]}, {<<"{a, match, \"^\\\\d+\\\"é\"}"/utf8>>, {a, match, "^\\d+\"é"}},
         {<<"<<\"ab\">>\n">>, <<"ab">>}, {<<"{'not', {a, eq, 'odd \\' one'}}">>, {'not', {a, eq, 'odd \' one'}}}, {<<"\"a\" \"b\"">>, "ab"}]].

bad_test_() ->
    [{Expected, fun() -> {error, Why} = parse(Text), ?assertNotEqual(nomatch, string:find(unicode:characters_to_list(Why), Expected)) end} || {Expected, Text} <-
        [{"'never_heard_of_this'", <<"{never_heard_of_this, 1}">>}, {"'never heard of that'", <<"{'never heard of that', 1}">>}, {"empty", <<" . ">>}, {"empty", <<>>},
         {"line 1", <<"{a,">>}, {"line 1", <<"self(x)">>}, {"8192", binary:copy(<<"a">>, 9000)}, {"line 1", <<"fun() -> x end">>}, {"too large", <<"1.0e999">>},
         {"the variable Above has no value in line 2 at character 3", <<"{a,\n  Above}">>}, {"base", <<"2#9">>}, {"'\"' is not expected", <<"{a, \"open}">>},
         {"UTF-8", <<"{a, ", 255, "}">>}, {"'\\q' is not known", <<"\"\\q\"">>}, {"';' is not expected", <<"{a; b}">>}]].

%% The number of atoms must not grow, whatever the text.
no_atoms_test() ->
    Texts = fun(N) ->
        New = integer_to_binary(N),
        [<<"{fresh_", New/binary, ", 'odd \\' ", New/binary, "'}">>, <<"{a, Fresh_", New/binary, "}">>, <<"{a, _fresh_", New/binary, "}">>, <<"{a, öde_"/utf8, New/binary, "}">>,
         <<"{a, Öde_"/utf8, New/binary, "}">>, <<"{a, $\", fresh_", New/binary, ", $\"}">>, <<"{a, $', fresh_", New/binary, ", $'}">>, <<"{a, $\\\", fresh_", New/binary, "}">>,
         <<"{a, \"\\^\\\" fresh_", New/binary, "\"}">>, <<"#fresh_", New/binary, "{}">>, <<"\"\"\"fresh_", New/binary, "\"\"\"">>, <<"% \"\nfresh_", New/binary, " % \"">>,
         <<"a@fresh_", New/binary>>, <<"1fresh_", New/binary>>, <<"#{fresh_", New/binary, " => 1}">>, <<"~s\"fresh_", New/binary, "\"">>, <<"?fresh_", New/binary>>]
    end,
    _ = [parse(Text) || Text <- Texts(0)],
    Before = erlang:system_info(atom_count),
    _ = [parse(Text) || N <- lists:seq(1, 100), Text <- Texts(N)],
    ?assertEqual(0, erlang:system_info(atom_count) - Before).
-endif.
