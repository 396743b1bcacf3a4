%% SPDX-License-Identifier: Apache-2.0
%% @doc Generates HTML from terms, for yaws_api:ehtml_expand/1 and for modules that return `{ehtml, Term}'. It is pure, apart from the
%% functions in the term.
-module(yucan_yaws_ehtml).

-export([expand/1]).

%% @doc See {@link yaws_api:ehtml_expand/1}.
-spec expand(term()) -> iodata().
expand(Byte) when is_integer(Byte), Byte >= 0, Byte =< 255 -> <<Byte>>;
%% If a character above 255 were truncated to its low byte, it could become `<', which the module would not have escaped.
expand(Character) when is_integer(Character) ->
    error({ehtml_takes_bytes, Character, "encode the text with unicode:characters_to_binary/1"});
expand(Text) when is_binary(Text) -> Text;
expand(Function) when is_function(Function, 0) -> expand(Function());
expand({pre_html, Html}) -> Html;
expand({Tag}) -> expand({Tag, []});
expand({Tag, Attributes}) ->
    case is_void(Tag) of
        true -> ["<", atom_to_list(Tag), attributes(Attributes), " />"];
        false -> expand({Tag, Attributes, []})
    end;
expand({Module, Function, Argument}) when is_atom(Function), is_list(Argument) -> expand(Module:Function(Argument));
expand({Tag, Attributes, Body}) ->
    ["<", atom_to_list(Tag), attributes(Attributes), ">", expand(Body), "</", atom_to_list(Tag), ">"];
expand(List) when is_list(List) -> [expand(Item) || Item <- List].

%% Returns whether an HTML element has no end tag. All other elements need an end tag, even if they are empty.
is_void(Tag) ->
    lists:member(Tag, [area, base, br, col, embed, hr, img, input, keygen, link, meta, param, source, track, wbr]).

attributes(Attributes) -> [[" ", attribute(Attribute)] || Attribute <- Attributes].

attribute({check, Name, Value}) -> attribute({Name, Value});
attribute({Name, Value}) -> [atom_to_list(Name), "=\"", value(Value), "\""];
attribute(Name) when is_atom(Name) -> atom_to_list(Name);
attribute(Text) -> Text.

value({Module, Function, Argument}) -> value(Module:Function(Argument));
value(Function) when is_function(Function, 0) -> value(Function());
value(Value) when is_atom(Value) -> atom_to_list(Value);
value(Value) when is_integer(Value) -> integer_to_list(Value);
value(Value) when is_float(Value) -> float_to_list(Value);
%% Escapes only quotes. Modules escape the other characters themselves, for example with yaws_api:htmlize/1.
value(Value) -> binary:replace(iolist_to_binary(Value), <<"\"">>, <<"&quot;">>, [global]).
