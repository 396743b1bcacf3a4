%% SPDX-License-Identifier: Apache-2.0
%% @doc Host and port: of a Host header and of an absolute target. Pure; yucan_head calls it.
-module(yucan_authority).

-export([parse/1, split/1]).

%% @doc Name in lower case and port. An absent or empty Host is an empty name (RFC 9110, 7.2).
-spec parse(undefined | binary()) -> {ok, Name :: binary(), undefined | inet:port_number()} | error.
parse(undefined) -> {ok, <<>>, undefined};
parse(<<>>) -> {ok, <<>>, undefined};
parse(<<"[", Rest/binary>> = Bin) -> literal(Rest, Bin);
parse(Bin) -> name(Bin, Bin, 0, false).

%% `Upper' says whether the name has to be copied in lower case.
name(<<C, Rest/bits>>, Bin, At, Upper) when C >= $a, C =< $z; C >= $0, C =< $9; C =:= $.; C =:= $-; C =:= $_ ->
    name(Rest, Bin, At + 1, Upper);
name(<<C, Rest/bits>>, Bin, At, _) when C >= $A, C =< $Z ->
    name(Rest, Bin, At + 1, true);
name(<<>>, Bin, _, Upper) -> {ok, lower(Bin, Upper), undefined};
name(<<$:, Port/binary>>, Bin, At, Upper) when At > 0 -> with_port(lower(binary_part(Bin, 0, At), Upper), Port);
name(_, _, _, _) -> error.

lower(Name, false) -> Name;
lower(Name, true) -> yucan_header:lower(Name).

with_port(Name, <<>>) -> {ok, Name, undefined};
with_port(Name, Port) when byte_size(Port) =< 5 -> port(Port, 0, Name);
with_port(_, _) -> error.

port(<<C, Rest/bits>>, Port, Name) when C >= $0, C =< $9 -> port(Rest, Port * 10 + C - $0, Name);
port(<<>>, Port, Name) when Port =< 65535 -> {ok, Name, Port};
port(_, _, _) -> error.

literal(Rest, Bin) ->
    case binary:split(Rest, <<"]">>) of
        [Address, End] ->
            case inet:parse_ipv6strict_address(binary_to_list(Address)) of
                {ok, _} -> after_literal(yucan_header:lower(binary_part(Bin, 0, byte_size(Address) + 2)), End);
                {error, _} -> error
            end;
        _ -> error
    end.

after_literal(Name, <<>>) -> {ok, Name, undefined};
after_literal(Name, <<":", Port/binary>>) -> with_port(Name, Port);
after_literal(_, _) -> error.

%% @doc Authority and path of an absolute target: `http://a.org/b' gives `a.org' and `/b'.
-spec split(binary()) -> {ok, Authority :: binary(), Path :: binary()} | error.
split(Target) ->
    case binary:split(Target, <<"://">>) of
        [Scheme, Rest] ->
            case yucan_header:lower(Scheme) of
                <<"http">> -> authority(Rest);
                <<"https">> -> authority(Rest);
                _ -> error
            end;
        _ -> error
    end.

authority(Rest) ->
    case binary:match(Rest, <<"/">>) of
        {At, 1} -> {ok, binary_part(Rest, 0, At), binary_part(Rest, At, byte_size(Rest) - At)};
        nomatch -> {ok, Rest, <<"/">>}
    end.
