%% SPDX-License-Identifier: Apache-2.0
%% @doc JSON (RFC 8259) for ACME, because OTP before 27 does not include it. Objects are maps with binary keys. All functions are pure.
-module(yucan_acme_json).

-export([encode/1, decode/1]).
-export_type([value/0]).

-type value() :: #{binary() => value()} | [value()] | binary() | number() | boolean() | null.

%% @doc Encodes a value as JSON text. Its binaries must not contain characters that need escaping.
-spec encode(value()) -> iodata().
encode(Map) when is_map(Map) -> [${, lists:join($,, [[encode(Key), $:, encode(Value)] || {Key, Value} <- lists:sort(maps:to_list(Map))]), $}];
encode(List) when is_list(List) -> [$[, lists:join($,, [encode(Value) || Value <- List]), $]];
encode(Atom) when is_atom(Atom) -> atom_to_binary(Atom);
encode(Number) when is_integer(Number) -> integer_to_binary(Number);
encode(Text) when is_binary(Text) ->
    nomatch = re:run(Text, "[\\x00-\\x1f\"\\\\]"),
    [$", Text, $"].

%% @doc Decodes JSON text. Returns `error' if it is invalid.
-spec decode(binary()) -> {ok, value()} | error.
decode(Text) ->
    try value(space(Text), 50) of
        {Value, Rest} -> case space(Rest) of <<>> -> {ok, Value}; _ -> error end
    catch
        error:_ -> error
    end.

space(<<C, Rest/binary>>) when C =:= $\s; C =:= $\n; C =:= $\r; C =:= $\t -> space(Rest);
space(Rest) -> Rest.

%% `Depth' is the number of further nesting levels that are allowed.
value(<<"{", Rest/binary>>, Depth) when Depth > 0 -> object(space(Rest), #{}, Depth - 1);
value(<<"[", Rest/binary>>, Depth) when Depth > 0 -> array(space(Rest), [], Depth - 1);
value(<<"\"", Rest/binary>>, _) -> string(Rest, <<>>);
value(<<"true", Rest/binary>>, _) -> {true, Rest};
value(<<"false", Rest/binary>>, _) -> {false, Rest};
value(<<"null", Rest/binary>>, _) -> {null, Rest};
value(Text, _) ->
    {match, [{0, Length}]} = re:run(Text, "^-?[0-9]+(\\.[0-9]+)?([eE][-+]?[0-9]+)?", [{capture, first}]),
    <<Number:Length/binary, Rest/binary>> = Text,
    {try binary_to_integer(Number) catch error:badarg -> binary_to_float(Number) end, Rest}.

object(<<"}", Rest/binary>>, Map, _) when map_size(Map) =:= 0 -> {Map, Rest};
object(<<"\"", Rest/binary>>, Map, Depth) ->
    {Key, Rest1} = string(Rest, <<>>),
    <<":", Rest2/binary>> = space(Rest1),
    {Value, Rest3} = value(space(Rest2), Depth),
    case space(Rest3) of
        <<",", Rest4/binary>> -> object(space(Rest4), Map#{Key => Value}, Depth);
        <<"}", Rest4/binary>> -> {Map#{Key => Value}, Rest4}
    end.

array(<<"]", Rest/binary>>, [], _) -> {[], Rest};
array(Text, Values, Depth) ->
    {Value, Rest} = value(Text, Depth),
    case space(Rest) of
        <<",", Rest1/binary>> -> array(space(Rest1), [Value | Values], Depth);
        <<"]", Rest1/binary>> -> {lists:reverse(Values, [Value]), Rest1}
    end.

string(<<"\"", Rest/binary>>, Done) -> {Done, Rest};
string(<<"\\u", Hex:4/binary, Rest/binary>>, Done) ->
    case {binary_to_integer(Hex, 16), Rest} of
        {High, <<"\\u", Hex2:4/binary, Rest1/binary>>} when High >= 16#D800, High < 16#DC00 ->
            C = 16#10000 + ((High band 16#3FF) bsl 10) + (binary_to_integer(Hex2, 16) band 16#3FF),
            string(Rest1, <<Done/binary, C/utf8>>);
        {C, _} -> string(Rest, <<Done/binary, C/utf8>>)
    end;
string(<<"\\", C, Rest/binary>>, Done) ->
    {C, Plain} = lists:keyfind(C, 1, [{$", $"}, {$\\, $\\}, {$/, $/}, {$b, $\b}, {$f, $\f}, {$n, $\n}, {$r, $\r}, {$t, $\t}]),
    string(Rest, <<Done/binary, Plain>>);
string(<<C, Rest/binary>>, Done) when C >= $\s -> string(Rest, <<Done/binary, C>>).
