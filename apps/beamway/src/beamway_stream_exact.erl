%% SPDX-License-Identifier: Apache-2.0
%% @doc A TCP socket on which two sides agree on a lane, as stream of {@link beamway_stream}: `{beamway_stream_exact, Socket}'.
%%
%% Packets have a length of two bytes, and are read byte for byte: with inet's own packets the runtime reads ahead, and what it
%% had read would be lost when the connection leaves it. Only what {@link beamway_agreement} calls is here.
-module(beamway_stream_exact).

-export([kind/1, send/2, recv/2, peername/1]).

-type stream() :: {?MODULE, gen_tcp:socket()}.

%% @private
-spec kind(stream()) -> tcp.
kind(_Stream) -> tcp.

%% @private
-spec send(stream(), iodata()) -> ok | {error, inet:posix() | closed}.
send({_, Socket}, Packet) ->
    case gen_tcp:send(Socket, [<<(iolist_size(Packet)):16>>, Packet]) of
        ok -> ok;
        {error, {timeout, _}} -> {error, timeout};
        {error, Reason} -> {error, Reason}
    end.

%% @private Waits at most so many milliseconds for each of its two parts.
-spec recv(stream(), timeout()) -> {ok, string()} | {error, inet:posix() | closed | timeout}.
recv({_, Socket}, TimeoutMs) ->
    case gen_tcp:recv(Socket, 2, TimeoutMs) of
        {ok, <<0:16>>} -> {ok, ""};
        {ok, <<Size:16>>} -> body(gen_tcp:recv(Socket, Size, TimeoutMs));
        {error, Reason} -> {error, Reason}
    end.

body({ok, Packet}) -> {ok, binary_to_list(Packet)};
body({error, Reason}) -> {error, Reason}.

%% @private
-spec peername(stream()) -> {ok, {inet:ip_address(), inet:port_number()}} | {error, inet:posix()}.
peername({_, Socket}) -> inet:peername(Socket).
