%% SPDX-License-Identifier: Apache-2.0
%% @doc The PROXY protocol, versions 1 and 2: who the client of a proxy is. yucan_conn reads it before anything else, where the
%% listener expects it.
%%
%% Reads are of exact size, so that nothing after the header is taken from what follows (TLS, say).
-module(yucan_proxy_protocol).

-export([read/2]).

-define(V2, 13, 10, 13, 10, 0, 13, 10, "QUIT", 10).
%% The longest line of version 1, with its line end.
-define(V1_BYTES, 107).

%% @doc Source address; `local' if the proxy speaks for itself.
-spec read(gen_tcp:socket(), TimeoutMs :: pos_integer()) ->
    {ok, local | yucan_req:address(), Rest :: binary()} | {error, bad_header | closed | timeout | inet:posix()}.
read(Socket, Timeout) ->
    Deadline = erlang:monotonic_time(millisecond) + Timeout,
    case recv(Socket, 13, Deadline) of
        {ok, <<?V2, 2:4, Command:4>>} when Command < 2 -> version2(Socket, Command, Deadline);
        {ok, <<"PROXY ", _/binary>> = Start} -> version1(Socket, Start, Deadline);
        {ok, _} -> {error, bad_header};
        {error, Reason} -> {error, Reason}
    end.

recv(Socket, Length, Deadline) ->
    gen_tcp:recv(Socket, Length, max(0, Deadline - erlang:monotonic_time(millisecond))).

%% The end of the line is found byte by byte; it is 107 at most, once a connection.
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
