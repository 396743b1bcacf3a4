%% SPDX-License-Identifier: Apache-2.0
%% @doc Reads the subset of YAML that Slurm's `topology.yaml' uses: indented maps and lists, plain and quoted strings, lists
%% in brackets, and comments. All functions are pure.
%%
%% Anchors, tags, maps in braces, multi-line strings and multiple documents are rejected, with the line number.
-module(placement_yaml).

-export([decode/1, format_error/1]).

-export_type([yaml/0, error/0]).

-type yaml() :: string() | [yaml()] | #{string() => yaml()}.
%% All scalars are strings, and an empty value is "".
-type error() :: {yaml, Line :: pos_integer(), Why :: string()}.

%% @doc Parses a document and returns its value.
-spec decode(unicode:chardata()) -> {ok, yaml()} | {error, error()}.
decode(Text) ->
    try
        case numbered(string:split(unicode:characters_to_list(Text), "\n", all), 1) of
            [] -> {ok, ""};
            [{_, Indent, _} | _] = Lines ->
                {Value, Rest} = block(Lines, Indent),
                _ = [throw({Number, "this line is indented less than the first"}) || {Number, _, _} <- lists:sublist(Rest, 1)],
                {ok, Value}
        end
    catch
        throw:{Number, Why} -> {error, {yaml, Number, Why}}
    end.

%% Returns the number, the indentation and the content of each line that is not empty.
numbered([], _) -> [];
numbered([Line | Lines], Number) ->
    Content = string:trim(without_comment(Line, none, $\s), trailing),
    {Spaces, Words} = lists:splitwith(fun(C) -> C =:= $\s end, Content),
    case Words of
        [] -> numbered(Lines, Number + 1);
        "---" when Number < 10 -> numbered(Lines, Number + 1);
        "..." -> [];
        [$\t | _] -> throw({Number, "a tab at the start of a line; expected spaces"});
        _ -> [{Number, length(Spaces), Words} | numbered(Lines, Number + 1)]
    end.

%% A comment begins with `#' after a space, outside of quotes.
without_comment([], _, _) -> [];
without_comment([$# | _], none, Before) when Before =:= $\s; Before =:= $\t -> [];
without_comment([Quote | Rest], none, Before) when (Quote =:= $" orelse Quote =:= $'), (Before =:= $\s orelse Before =:= $[ orelse Before =:= $,) ->
    [Quote | without_comment(Rest, Quote, Quote)];
without_comment([Quote | Rest], Quote, _) -> [Quote | without_comment(Rest, none, Quote)];
without_comment([Char | Rest], Quote, _) -> [Char | without_comment(Rest, Quote, Char)].

block([{_, Indent, "-"} | _] = Lines, Indent) -> items(Lines, Indent, []);
block([{_, Indent, "- " ++ _} | _] = Lines, Indent) -> items(Lines, Indent, []);
block(Lines, Indent) -> entries(Lines, Indent, #{}).

items([{Number, Indent, "-" ++ More} | Lines], Indent, Items) when More =:= ""; hd(More) =:= $\s ->
    {Item, Rest} = item(string:trim(More, leading), length(More) - length(string:trim(More, leading)) + 1, Number, Indent, Lines),
    items(Rest, Indent, [Item | Items]);
items([{Number, Deeper, _} | _], Indent, _) when Deeper > Indent -> throw({Number, "this line is indented more than the list before it"});
items(Rest, _, Items) -> {lists:reverse(Items), Rest}.

%% The first entry of a map may follow the dash. The position of that entry is the indentation of the map.
item("", _, _, Indent, Lines) -> nested(Lines, Indent + 1);
item(Text, Offset, Number, Indent, Lines) ->
    case is_entry(Text) orelse lists:prefix("- ", Text) of
        true -> block([{Number, Indent + Offset, Text} | Lines], Indent + Offset);
        false -> {scalar(Text, Number), Lines}
    end.

nested([{_, Deeper, _} | _] = Lines, Least) when Deeper >= Least -> block(Lines, Deeper);
nested(Lines, _) -> {"", Lines}.

is_entry([Quote | _]) when Quote =:= $"; Quote =:= $'; Quote =:= $[ -> false;
is_entry(Text) -> lists:suffix(":", Text) orelse string:find(Text, ": ") =/= nomatch.

entries([{Number, Indent, Text} | Lines], Indent, Map) ->
    is_entry(Text) orelse throw({Number, "expected `name: value', not '" ++ Text ++ "'"}),
    [Key | Value] = string:split(Text, ":"),
    is_map_key(Key, Map) andalso throw({Number, "'" ++ Key ++ "' occurs twice here"}),
    {Result, Rest} = case string:trim(Value) of
                         "" -> below(Lines, Indent);
                         Given -> {scalar(Given, Number), Lines}
                     end,
    entries(Rest, Indent, Map#{Key => Result});
entries([{Number, Deeper, _} | _], Indent, _) when Deeper > Indent -> throw({Number, "this line is indented more than those before it"});
entries(Rest, _, Map) -> {Map, Rest}.

%% A list below a key may have the same indentation as the key.
below([{_, Indent, "-" ++ _} | _] = Lines, Indent) -> block(Lines, Indent);
below(Lines, Indent) -> nested(Lines, Indent + 1).

scalar([First | _], Number) when First =:= ${; First =:= $&; First =:= $*; First =:= $!; First =:= $|; First =:= $> ->
    throw({Number, "'" ++ [First] ++ "' starts something that is not understood here"});
scalar("[]", _) -> [];
scalar([Quote | _] = Text, Number) when Quote =:= $"; Quote =:= $' ->
    case length(Text) > 1 andalso lists:last(Text) =:= Quote of
        true -> lists:droplast(tl(Text));
        false -> throw({Number, "a quote is not closed"})
    end;
scalar([$[ | _] = Text, Number) ->
    lists:last(Text) =:= $] orelse throw({Number, "a bracket is not closed"}),
    [scalar(string:trim(Part), Number) || Part <- string:split(lists:droplast(tl(Text)), ",", all)];
scalar(Text, _) -> Text.

%% @doc Formats an error as text for users.
-spec format_error(error()) -> unicode:chardata().
format_error({yaml, Line, Why}) -> io_lib:format("line ~b: ~ts", [Line, Why]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

decode_test_() ->
    [?_assertEqual({ok, Want}, decode(Text))
     || {Want, Text} <- [{"", "# nothing\n"}, {#{"a" => "1", "b" => ["x", "y"]}, "---\na: 1 # one\nb: [x, 'y']\n"},
                         {[#{"t" => "n", "l" => ["1", "2"]}, "end"], "- t: n\n  l:\n    - 1\n    - 2\n- end\n"},
                         {#{"l" => [#{"a" => "1"}, #{"a" => "s[1-2]", "b" => ""}]}, "l:\n- a: 1\n- a: s[1-2]\n  b:\n"},
                         {#{"a" => #{"b" => #{"c" => "d # e"}}}, "a:\n  b:\n    c: \"d # e\"\n"},
                         {[["a"], "b"], "-\n  - a\n- b"}, {#{"a" => []}, "a: []"}]].

bad_input_test_() ->
    [?_assertEqual(Line, element(2, element(2, decode(Text))))
     || {Line, Text} <- [{2, "a: 1\n\tb: 2"}, {2, "a: 1\n   b: 2"}, {1, "just words"}, {2, "a: 1\na: 2"}, {1, "a: {b: c}"}, {1, "a: [b"},
                         {1, "a: 'b"}, {1, "a: &b c"}, {2, "  a: 1\n b: 2"}, {3, "- a\n- b\n  c: d"}]].
-endif.
