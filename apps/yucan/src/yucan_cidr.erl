%% SPDX-License-Identifier: Apache-2.0
%% @doc Blocks of addresses, and which client stands behind trusted proxies. Pure.
-module(yucan_cidr).

-export([block/1, contains/2, client/3, format/1, address/1]).
-export_type([block/0]).

-opaque block() :: {Bits :: 32 | 128, Network :: non_neg_integer(), Length :: 0..128}.

%% @doc `10.0.0.0/8', `::1', `192.168.0.1'.
-spec block(binary() | string()) -> {ok, block()} | error.
block(Text) ->
    case binary:split(iolist_to_binary(Text), <<"/">>) of
        [Address] -> make(Address, all);
        [Address, Length] ->
            try make(Address, binary_to_integer(Length)) catch error:badarg -> error end
    end.

make(Address, Length) ->
    case inet:parse_strict_address(binary_to_list(Address)) of
        {ok, Ip} ->
            {Bits, Number} = number(Ip),
            case Length of
                all -> {ok, {Bits, Number, Bits}};
                _ when Length >= 0, Length =< Bits -> {ok, {Bits, Number bsr (Bits - Length), Length}};
                _ -> error
            end;
        {error, _} -> error
    end.

number({A, B, C, D}) -> {32, A bsl 24 bor (B bsl 16) bor (C bsl 8) bor D};
%% IPv4 in IPv6 is IPv4.
number({0, 0, 0, 0, 0, 16#ffff, A, B}) -> {32, A bsl 16 bor B};
number(Ip) -> {128, lists:foldl(fun(Part, Sum) -> Sum bsl 16 bor Part end, 0, tuple_to_list(Ip))}.

%% @doc Is the address in one of the blocks?
-spec contains([block()], inet:ip_address() | term()) -> boolean().
contains(Blocks, Ip) when is_tuple(Ip), tuple_size(Ip) =:= 4; is_tuple(Ip), tuple_size(Ip) =:= 8 ->
    {Bits, Number} = number(Ip),
    lists:any(fun({B, Network, Length}) -> B =:= Bits andalso Number bsr (Bits - Length) =:= Network end, Blocks);
contains(_, _) ->
    false.

%% @doc The last address of X-Forwarded-For that no trusted proxy has. Only what trusted proxies wrote counts.
-spec client([block()], yucan_req:address(), ForwardedFor :: binary()) -> yucan_req:address().
client(Trusted, Peer, Forwarded) ->
    behind(Trusted, Peer, lists:reverse(binary:split(Forwarded, <<",">>, [global]))).

behind(Trusted, {Ip, _} = Peer, [Last | Before]) ->
    case contains(Trusted, Ip) andalso address(yucan_header:trim(Last)) of
        {ok, Next} -> behind(Trusted, {Next, 0}, Before);
        _ -> Peer
    end;
behind(_, Peer, []) ->
    Peer.

%% @doc An address in text, also with a port as some proxies write it.
-spec address(binary()) -> {ok, inet:ip_address()} | error.
address(<<"[", Rest/binary>>) -> address(hd(binary:split(Rest, <<"]">>)));
address(Text) ->
    case inet:parse_strict_address(binary_to_list(Text)) of
        {ok, Ip} -> {ok, Ip};
        {error, _} -> without_port(binary:split(Text, <<":">>, [global]))
    end.

without_port([Address, _Port]) ->
    case inet:parse_ipv4strict_address(binary_to_list(Address)) of
        {ok, Ip} -> {ok, Ip};
        {error, _} -> error
    end;
without_port(_) ->
    error.

%% @doc An address as text, without port.
-spec format(yucan_req:address()) -> string().
format({local, _}) -> "-";
format({Ip, _}) -> inet:ntoa(Ip).
