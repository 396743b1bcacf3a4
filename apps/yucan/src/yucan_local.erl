%% SPDX-License-Identifier: Apache-2.0
%% @doc The transport over unix sockets. What a socket of TCP can say of its other end, this one cannot. What the callbacks do: yucan_transport.
-module(yucan_local).
-behaviour(yucan_transport).

-export([listen/3, name/2]).
-export([peer/1, recv/3, recv_whole/4, send/2, send_file/6, setopts/2, arm/2, pause/2, event/2, next/2, is_closed/1, half_close/1, close/1, info/1]).

-include_lib("kernel/include/file.hrl").

%% To a unix socket of this host.
-define(CONNECT_MS, 2000).

%% @doc A listening socket. A server that was killed leaves one, at which nobody answers: it is removed. Anything else of that name stays.
-spec listen({local, binary()}, inet:port_number(), list()) -> {ok, gen_tcp:socket()} | {error, system_limit | inet:posix()}.
listen({local, Path} = Where, Port, Options) ->
    ok = remove_stale(Path),
    gen_tcp:listen(Port, [{ifaddr, Where} | Options]).

remove_stale(Path) ->
    case file:read_link_info(Path, [raw]) of
        {ok, #file_info{type = other}} ->
            case gen_tcp:connect({local, Path}, 0, [], ?CONNECT_MS) of
                {error, econnrefused} -> _ = file:delete(Path), ok;
                {ok, Socket} -> gen_tcp:close(Socket);
                {error, _} -> ok
            end;
        _ -> ok
    end.

%% @doc Where it listens.
-spec name({local, binary()}, gen_tcp:socket()) -> {ok, yucan_req:address()}.
name(Where, _) -> {ok, Where}.

-spec peer(gen_tcp:socket()) -> {ok, term()} | {error, inet:posix()}.
peer(Socket) -> yucan_tcp:peer(Socket).

-spec recv(gen_tcp:socket(), non_neg_integer(), timeout()) -> {ok, binary()} | {error, yucan_transport:reason()}.
recv(Socket, Length, Timeout) -> yucan_tcp:recv(Socket, Length, Timeout).

-spec recv_whole(gen_tcp:socket(), binary(), pos_integer(), timeout()) -> {ok, binary()} | {partial, binary()} | {error, yucan_transport:reason()}.
recv_whole(Socket, Before, Length, Timeout) -> yucan_tcp:recv_whole(Socket, Before, Length, Timeout).

-spec send(gen_tcp:socket(), iodata()) -> ok | {error, yucan_transport:reason()}.
send(Socket, Data) -> yucan_tcp:send(Socket, Data).

%% @doc Nobody knows what the other end has taken: without a limit of time.
-spec send_file(gen_tcp:socket(), iodata(), file:fd(), non_neg_integer(), pos_integer(), pos_integer()) ->
    {ok, non_neg_integer()} | {error, yucan_transport:reason()}.
send_file(Socket, Head, Handle, Offset, Length, _) ->
    case send(Socket, Head) of
        ok -> file:sendfile(Handle, Socket, Offset, Length, []);
        Error -> Error
    end.

-spec setopts(gen_tcp:socket(), list()) -> ok.
setopts(Socket, Options) -> yucan_tcp:setopts(Socket, Options).

-spec arm(gen_tcp:socket(), pos_integer()) -> ok | {error, yucan_transport:reason()}.
arm(Socket, Count) -> yucan_tcp:arm(Socket, Count).

-spec pause(gen_tcp:socket(), binary()) -> binary().
pause(Socket, Buffer) -> yucan_tcp:pause(Socket, Buffer).

-spec event(term(), gen_tcp:socket()) -> {data, binary()} | passive | closed | other.
event(Message, Socket) -> yucan_tcp:event(Message, Socket).

-spec next(gen_tcp:socket(), timeout()) -> {data, binary()} | passive | closed | timeout.
next(Socket, Timeout) -> yucan_tcp:next(Socket, Timeout).

-spec is_closed(gen_tcp:socket()) -> boolean().
is_closed(Socket) -> element(1, inet:peername(Socket)) =:= error.

-spec half_close(gen_tcp:socket()) -> ok.
half_close(Socket) -> yucan_tcp:half_close(Socket).

-spec close(gen_tcp:socket()) -> ok.
close(Socket) -> yucan_tcp:close(Socket).

-spec info(gen_tcp:socket()) -> none.
info(_) -> none.
