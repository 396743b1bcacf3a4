%% SPDX-License-Identifier: Apache-2.0
%% @doc The transport over plain TCP and unix sockets, with functions to listen and accept. yucan_transport documents the callbacks.
-module(yucan_tcp).
-behaviour(yucan_transport).

-export([listen/3, accept/1, accepted/3]).
-export([peer/1, recv/3, recv_whole/4, read/2, send/2, send_large/2, send_file/6, setopts/2, arm/2, event/2, next/2, is_closed/1, close/1, info/1, tls/1]).
-export_type([accepting/0]).

-include_lib("kernel/include/file.hrl").

-opaque accepting() :: none | non_neg_integer().

-define(CONNECT_MS, 2000).

%% @doc Opens a listening socket. A unix socket that a killed server has left behind is removed, but no other file.
-spec listen(inet:ip_address() | {local, binary()}, inet:port_number(), list()) -> {ok, gen_tcp:socket()} | {error, system_limit | inet:posix()}.
listen({local, Path} = Where, Port, Options) ->
    ok = remove_stale(Path),
    gen_tcp:listen(Port, [{ifaddr, Where} | Options]);
listen(Ip, Port, Options) when tuple_size(Ip) =:= 8 -> gen_tcp:listen(Port, [inet6, {ip, Ip} | Options]);
listen(Ip, Port, Options) -> gen_tcp:listen(Port, [{ip, Ip} | Options]).

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

%% @doc Requests a connection, which accepted/3 returns. gen_tcp:accept would copy options one by one, with about ten
%% system calls, although they are already applied (`private_accept' in bench/results/http-private.json).
-spec accept(gen_tcp:socket()) -> {ok, accepting()} | {error, closed | system_limit | inet:posix()}.
accept(Listening) when is_port(Listening) ->
    case prim_inet:async_accept(Listening, -1) of
        {error, einval} -> {error, closed};
        Result -> Result
    end;
accept(_) -> {ok, none}.

%% @doc Waits for the requested connection. The function may be called again after a timeout, but not after an error, which ends the request.
-spec accepted(gen_tcp:socket(), accepting(), TimeoutMs :: pos_integer()) ->
    {ok, gen_tcp:socket()} | timeout | {error, closed | system_limit | inet:posix()}.
accepted(Listening, none, Timeout) ->
    case gen_tcp:accept(Listening, Timeout) of
        {error, timeout} -> timeout;
        Result -> Result
    end;
accepted(Listening, Reference, Timeout) ->
    receive
        {inet_async, Listening, Reference, {ok, Socket}} -> registered(inet_db:lookup_socket(Listening), Socket);
        {inet_async, Listening, Reference, Error} -> Error
    after Timeout -> timeout
    end.

registered({ok, Module}, Socket) ->
    true = inet_db:register_socket(Socket, Module),
    {ok, Socket};
%% The listening socket was closed in the meantime. The connection closes when this process exits.
registered({error, closed} = Closed, _) -> Closed.

-spec peer(gen_tcp:socket()) -> {ok, term()} | {error, inet:posix()}.
peer(Socket) -> inet:peername(Socket).

-spec recv(gen_tcp:socket(), non_neg_integer(), timeout()) -> {ok, binary()} | {error, yucan_transport:reason()}.
recv(Socket, Length, Timeout) -> gen_tcp:recv(Socket, Length, Timeout).

%% @doc Lets the driver read directly into the final binary, which saves joining parts and waking up for each
%% (`private_body' in bench/results/http-private.json). An undocumented function returns bytes to the driver.
-spec recv_whole(gen_tcp:socket(), binary(), pos_integer(), timeout()) -> {ok, binary()} | {partial, binary()} | {error, yucan_transport:reason()}.
recv_whole(Socket, Before, Length, Timeout) ->
    case unrecv(Socket, Before) of
        ok ->
            case gen_tcp:recv(Socket, Length, Timeout) of
                {error, timeout} -> partial(Socket, byte_size(Before));
                Result -> Result
            end;
        Error -> Error
    end.

unrecv(_, <<>>) -> ok;
unrecv(Socket, Data) -> gen_tcp:unrecv(Socket, Data).

%% Determines whether the client was silent or only slow.
partial(Socket, Before) ->
    case gen_tcp:recv(Socket, 0, 0) of
        {ok, Data} when byte_size(Data) > Before -> {partial, Data};
        {ok, _} -> {error, timeout};
        Error -> Error
    end.

-spec read(gen_tcp:socket(), timeout()) -> {ok, binary()} | {error, yucan_transport:reason()}.
read(Socket, Timeout) -> gen_tcp:recv(Socket, 0, Timeout).

-spec send(gen_tcp:socket(), iodata()) -> ok | {error, yucan_transport:reason()}.
send(Socket, Data) ->
    case gen_tcp:send(Socket, Data) of
        {error, {timeout, _}} -> {error, timeout};
        Result -> Result
    end.

%% @doc Sends data. Whatever the system does not accept at once goes to the driver's queue, which does not block the caller, but an empty send waits
%% for the queue. The driver's timeout applies to the whole queue, so the connection is closed only if the queue has not become shorter in that time.
-spec send_large(gen_tcp:socket(), iodata()) -> ok | {error, yucan_transport:reason()}.
send_large(Socket, Data) ->
    _ = inet:setopts(Socket, [{send_timeout_close, false}]),
    Sent = case send(Socket, Data) of
        ok -> shorter(send(Socket, []), Socket, infinity);
        Error -> shorter(Error, Socket, infinity)
    end,
    _ = inet:setopts(Socket, [{send_timeout_close, true}]),
    Sent.

%% When `Before' is `infinity', every queue size is smaller, because in Erlang's term order an atom is greater than any number.
shorter({error, timeout}, Socket, Before) ->
    case is_port(Socket) andalso erlang:port_info(Socket, queue_size) of
        {queue_size, Left} when Left < Before -> shorter(send(Socket, []), Socket, Left);
        _ ->
            _ = inet:setopts(Socket, [{linger, {true, 0}}]),
            {error, timeout}
    end;
shorter(Result, _, _) -> Result.

%% @doc Uses sendfile. The head is sent together with the first bytes of the file if the socket supports that.
-spec send_file(gen_tcp:socket(), iodata(), file:fd(), non_neg_integer(), pos_integer(), pos_integer()) ->
    {ok, non_neg_integer()} | {error, yucan_transport:reason()}.
send_file(Socket, Head, Handle, Offset, Length, SendMs) ->
    _ = inet:setopts(Socket, [{nopush, true}]),
    Sent = case send(Socket, Head) of
        ok -> guarded(Socket, SendMs, fun() -> file:sendfile(Handle, Socket, Offset, Length, []) end);
        Error -> Error
    end,
    _ = inet:setopts(Socket, [{nopush, false}]),
    Sent.

%% sendfile has no timeout of its own: it waits for a message from the driver that never arrives,
%% even if the socket is closed. So the calling process is killed, which closes the connection, if
%% the peer accepts nothing for this long. There is no limit if the system does not report how much
%% the peer has accepted, as with a unix socket.
guarded(Socket, Ms, Function) ->
    Owner = self(),
    {Guard, Monitor} = spawn_opt(fun() -> guard(Owner, Socket, Ms, taken(Socket)) end, [link, monitor]),
    try
        Function()
    after
        %% Otherwise the guard could kill the process during a later operation, or appear among its links.
        true = unlink(Guard),
        Guard ! done,
        receive {'DOWN', Monitor, process, Guard, _} -> ok end
    end.

guard(Owner, Socket, Ms, Before) ->
    receive
        done -> ok
    after Ms ->
        case taken(Socket) of
            Before when is_integer(Before) -> exit(Owner, {shutdown, send_timeout});
            Now -> guard(Owner, Socket, Ms, Now)
        end
    end.

%% In Linux's TCP_INFO, the number of acknowledged bytes is at offset 120.
taken(Socket) ->
    case inet:getopts(Socket, [{raw, 6, 11, 128}]) of
        {ok, [{raw, 6, 11, <<_:120/binary, Acknowledged:64/native>>}]} -> Acknowledged;
        _ -> unknown
    end.

-spec setopts(gen_tcp:socket(), list()) -> ok.
setopts(Socket, Options) -> _ = inet:setopts(Socket, Options), ok.

-spec arm(gen_tcp:socket(), pos_integer()) -> ok | {error, yucan_transport:reason()}.
arm(Socket, Count) -> inet:setopts(Socket, [{active, Count}]).

-spec event(term(), gen_tcp:socket()) -> {data, binary()} | passive | closed | other.
event({tcp, Socket, Data}, Socket) -> {data, Data};
event({tcp_passive, Socket}, Socket) -> passive;
event({tcp_closed, Socket}, Socket) -> closed;
event({tcp_error, Socket, _}, Socket) -> closed;
event(_, _) -> other.

-spec next(gen_tcp:socket(), timeout()) -> {data, binary()} | passive | closed | timeout.
next(Socket, Timeout) ->
    receive
        {tcp, Socket, Data} -> {data, Data};
        {tcp_passive, Socket} -> passive;
        {tcp_closed, Socket} -> closed;
        {tcp_error, Socket, _} -> closed
    after Timeout -> timeout
    end.

%% @doc Returns whether the peer has disconnected. In that case, the socket reports an error or has no peer address.
-spec is_closed(gen_tcp:socket()) -> boolean().
is_closed(Socket) ->
    case inet:peername(Socket) of
        {error, _} -> true;
        {ok, _} -> has_hung_up(Socket)
    end.

%% The first byte of TCP_INFO is the state: 1 is established; in the states 7 (close) and 8 (close_wait), the peer has closed the connection.
has_hung_up(Socket) ->
    case inet:getopts(Socket, [{raw, 6, 11, 1}]) of
        {ok, [{raw, 6, 11, <<State>>}]} -> State =/= 1;
        _ -> false
    end.

%% @doc Skips the wait of gen_tcp:close for the driver's queue if that is empty.
-spec close(gen_tcp:socket()) -> ok.
close(Socket) when is_port(Socket) ->
    case erlang:port_info(Socket, queue_size) of
        {queue_size, 0} -> try erlang:port_close(Socket), ok catch error:badarg -> ok end;
        _ -> gen_tcp:close(Socket)
    end;
close(Socket) -> gen_tcp:close(Socket).

-spec info(gen_tcp:socket()) -> none.
info(_) -> none.

-spec tls(gen_tcp:socket()) -> none.
tls(_) -> none.
