%% SPDX-License-Identifier: Apache-2.0
%% @doc Address blocks (CIDR), and the client's address in the PROXY protocol. All functions except `proxy_header/2' are pure.
-module(yucan_cidr).

-export([block/1, contains/2, format/1, address/1, proxy_header/2]).
-export_type([block/0]).

-define(V2, 13, 10, 13, 10, 0, 13, 10, "QUIT", 10).
%% The maximum length of a version 1 header, including its line end.
-define(V1_BYTES, 107).

-opaque block() :: {Bits :: 32 | 128, Network :: non_neg_integer(), Length :: 0..128}.

%% @doc Parses a block such as `10.0.0.0/8', `::1' or `192.168.0.1'.
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
                %% An IPv4 address in IPv6 form, with a prefix length for IPv6.
                _ when tuple_size(Ip) =:= 8, Length >= 96, Length =< 128 -> {ok, {Bits, Number bsr (128 - Length), Length - 96}};
                _ -> error
            end;
        {error, _} -> error
    end.

number({A, B, C, D}) -> {32, A bsl 24 bor (B bsl 16) bor (C bsl 8) bor D};
%% An IPv4 address in IPv6 form is treated as IPv4.
number({0, 0, 0, 0, 0, 16#ffff, A, B}) -> {32, A bsl 16 bor B};
number(Ip) -> {128, lists:foldl(fun(Part, Sum) -> Sum bsl 16 bor Part end, 0, tuple_to_list(Ip))}.

%% @doc Returns whether the address is in one of the blocks.
-spec contains([block()], inet:ip_address() | term()) -> boolean().
contains(Blocks, Ip) when is_tuple(Ip), tuple_size(Ip) =:= 4; is_tuple(Ip), tuple_size(Ip) =:= 8 ->
    {Bits, Number} = number(Ip),
    lists:any(fun({B, Network, Length}) -> B =:= Bits andalso Number bsr (Bits - Length) =:= Network end, Blocks);
contains(_, _) -> false.

%% @doc Parses an address. It may be followed by a port, because some proxies add one.
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
without_port(_) -> error.

%% @doc Formats an address as text, without its port.
-spec format(yucan_req:address()) -> string().
format({local, _}) -> "-";
format({Ip, _}) -> inet:ntoa(Ip).

%% @doc Reads a PROXY protocol header, version 1 or 2. Returns the source address, or `local' if the proxy connects on
%% its own behalf. Each read has an exact size, so none of the data that follows, such as TLS, is consumed.
-spec proxy_header(yucan_transport:socket(), TimeoutMs :: pos_integer()) ->
    {ok, local | yucan_req:address(), Rest :: binary()} | {error, bad_header | closed | timeout | inet:posix()}.
proxy_header(Socket, Timeout) ->
    Deadline = erlang:monotonic_time(millisecond) + Timeout,
    case recv(Socket, 13, Deadline) of
        {ok, <<?V2, 2:4, Command:4>>} when Command < 2 -> version2(Socket, Command, Deadline);
        {ok, <<"PROXY ", _/binary>> = Start} -> version1(Socket, Start, Deadline);
        {ok, _} -> {error, bad_header};
        {error, Reason} -> {error, Reason}
    end.

recv(Socket, Length, Deadline) ->
    yucan_transport:recv(Socket, Length, max(0, Deadline - erlang:monotonic_time(millisecond))).

%% Reads one byte at a time until the end of the line. This takes at most 107 reads, once per connection.
version1(Socket, Line, Deadline) ->
    case binary:match(Line, <<"\r\n">>) of
        {At, 2} -> line(binary:split(binary_part(Line, 0, At), <<" ">>, [global]));
        nomatch when byte_size(Line) >= ?V1_BYTES -> {error, bad_header};
        nomatch ->
            case recv(Socket, 1, Deadline) of
                {ok, Byte} -> version1(Socket, <<Line/binary, Byte/binary>>, Deadline);
                {error, Reason} -> {error, Reason}
            end
    end.

line([<<"PROXY">>, <<"UNKNOWN">> | _]) -> {ok, local, <<>>};
line([<<"PROXY">>, Family, Source, _, Port, _]) when Family =:= <<"TCP4">>; Family =:= <<"TCP6">> ->
    try {inet:parse_strict_address(binary_to_list(Source)), binary_to_integer(Port)} of
        {{ok, Ip}, Number} when Number >= 0, Number =< 65535 -> {ok, {Ip, Number}, <<>>};
        _ -> {error, bad_header}
    catch
        error:badarg -> {error, bad_header}
    end;
line(_) -> {error, bad_header}.

version2(Socket, Command, Deadline) ->
    case recv(Socket, 3, Deadline) of
        {ok, <<Family, Length:16>>} when Length =< 4096 -> addresses(Socket, Command, Family, Length, Deadline);
        {ok, _} -> {error, bad_header};
        {error, Reason} -> {error, Reason}
    end.

addresses(_, _, _, 0, _) -> {ok, local, <<>>};
addresses(Socket, Command, Family, Length, Deadline) ->
    case recv(Socket, Length, Deadline) of
        {ok, Data} -> source(Command, Family, Data);
        {error, Reason} -> {error, Reason}
    end.

source(0, _, _) -> {ok, local, <<>>};
source(1, 16#11, <<A, B, C, D, _:32, Port:16, _/binary>>) -> {ok, {{A, B, C, D}, Port}, <<>>};
source(1, 16#21, <<A:16, B:16, C:16, D:16, E:16, F:16, G:16, H:16, _:128, Port:16, _/binary>>) -> {ok, {{A, B, C, D, E, F, G, H}, Port}, <<>>};
source(1, Family, _) when Family =:= 16#11; Family =:= 16#21 -> {error, bad_header};
source(1, _, _) -> {ok, local, <<>>}.
