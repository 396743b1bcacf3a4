%% SPDX-License-Identifier: Apache-2.0
%% @doc The transport over TCP, plain, and over unix sockets, and how to listen and accept. What the callbacks do: yucan_transport.
-module(yucan_tcp).
-behaviour(yucan_transport).

-export([listen/3, name/2, sockname/1, accept/1, accepted/3]).
-export([peer/1, recv/3, recv_whole/4, send/2, send_large/2, send_file/6, setopts/2, arm/2, pause/2, event/2, next/2, is_closed/1, half_close/1, close/1, info/1]).
-export_type([accepting/0]).

-include_lib("kernel/include/file.hrl").

-opaque accepting() :: none | non_neg_integer().

%% To a unix socket of this host.
-define(CONNECT_MS, 2000).

%% @doc A listening socket with yucan_server's options and those of its kind. A server that was killed leaves a unix socket, at which nobody answers: it
%% is removed. Anything else of that name stays.
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

%% @doc Where it listens.
-spec name(inet:ip_address() | {local, binary()}, gen_tcp:socket()) -> {ok, yucan_req:address()} | {error, inet:posix()}.
name({local, _} = Where, _) -> {ok, Where};
name(_, Listening) -> inet:sockname(Listening).

%% @doc This end of a connection.
-spec sockname(gen_tcp:socket()) -> {ok, yucan_req:address()} | {error, inet:posix()}.
sockname(Socket) -> inet:sockname(Socket).

%% @doc Asks a listening socket for a connection; accepted/3 has it. gen_tcp:accept would copy options one by one, about ten system
%% calls; the driver and the kernel have passed all on that a listener of ours sets. What that buys: `private_accept' in
%% bench/results/http-private.json.
-spec accept(gen_tcp:socket()) -> {ok, accepting()} | {error, closed | system_limit | inet:posix()}.
accept(Listening) when is_port(Listening) ->
    case prim_inet:async_accept(Listening, -1) of
        {error, einval} -> {error, closed};
        Result -> Result
    end;
accept(_) ->
    {ok, none}.

%% @doc Waits for that connection; after a timeout it may be called again. An error ends the asking.
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
%% The listening socket was closed meanwhile. The connection ends with this process.
registered({error, closed} = Closed, _) -> Closed.

-spec peer(gen_tcp:socket()) -> {ok, term()} | {error, inet:posix()}.
peer(Socket) -> inet:peername(Socket).

-spec recv(gen_tcp:socket(), non_neg_integer(), timeout()) -> {ok, binary()} | {error, yucan_transport:reason()}.
recv(Socket, Length, Timeout) -> gen_tcp:recv(Socket, Length, Timeout).

%% @doc The driver reads into the place where the bytes stay: nothing is joined, and nobody is woken for parts of it. What was read before
%% goes back to the driver first, by a function that has no page in the manual. What that buys: `private_body' in bench/results/http-private.json.
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

%% Was it silence, or is the client slow?
partial(Socket, Before) ->
    case gen_tcp:recv(Socket, 0, 0) of
        {ok, Data} when byte_size(Data) > Before -> {partial, Data};
        {ok, _} -> {error, timeout};
        Error -> Error
    end.

-spec send(gen_tcp:socket(), iodata()) -> ok | {error, yucan_transport:reason()}.
send(Socket, Data) ->
    case gen_tcp:send(Socket, Data) of
        {error, {timeout, _}} -> {error, timeout};
        Result -> Result
    end.

%% @doc What the system does not take at once waits in the driver, and nobody waits for it; an empty send does. The driver's timeout is that of the
%% whole queue, so it ends the connection only if that has not become shorter.
-spec send_large(gen_tcp:socket(), iodata()) -> ok | {error, yucan_transport:reason()}.
send_large(Socket, Data) ->
    _ = inet:setopts(Socket, [{send_timeout_close, false}]),
    Sent = case send(Socket, Data) of
        ok -> shorter(send(Socket, []), Socket, infinity);
        Error -> shorter(Error, Socket, infinity)
    end,
    _ = inet:setopts(Socket, [{send_timeout_close, true}]),
    Sent.

%% An atom is more than any number.
shorter({error, timeout}, Socket, Before) ->
    case is_port(Socket) andalso erlang:port_info(Socket, queue_size) of
        {queue_size, Left} when Left < Before -> shorter(send(Socket, []), Socket, Left);
        _ ->
            _ = inet:setopts(Socket, [{linger, {true, 0}}]),
            {error, timeout}
    end;
shorter(Result, _, _) -> Result.

%% @doc The system copies the file itself, behind a head that waits for it where the socket knows such waiting.
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

%% sendfile has no limit of time of its own. If the other end takes nothing for so long the calling
%% process ends, and the connection with it: it waits for a message of the driver that does not come even if the socket is closed. Where the
%% system does not say what was taken, as for a unix socket, there is no limit.
guarded(Socket, Ms, Function) ->
    Owner = self(),
    {Guard, Monitor} = spawn_opt(fun() -> guard(Owner, Socket, Ms, taken(Socket)) end, [link, monitor]),
    try
        Function()
    after
        %% It is gone before the process goes on: it may neither end what comes next nor be found among the links.
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

%% TCP_INFO of Linux: how many bytes the other end has acknowledged, at byte 120.
taken(Socket) ->
    case inet:getopts(Socket, [{raw, 6, 11, 128}]) of
        {ok, [{raw, 6, 11, <<_:120/binary, Acknowledged:64/native>>}]} -> Acknowledged;
        _ -> unknown
    end.

-spec setopts(gen_tcp:socket(), list()) -> ok.
setopts(Socket, Options) -> _ = inet:setopts(Socket, Options), ok.

-spec arm(gen_tcp:socket(), pos_integer()) -> ok | {error, yucan_transport:reason()}.
arm(Socket, Count) -> inet:setopts(Socket, [{active, Count}]).

-spec pause(gen_tcp:socket(), binary()) -> binary().
pause(Socket, Buffer) ->
    _ = inet:setopts(Socket, [{active, false}]),
    flush(Socket, Buffer).

%% That the other end has closed is said once.
flush(Socket, Buffer) ->
    case next(Socket, 0) of
        {data, Data} -> flush(Socket, <<Buffer/binary, Data/binary>>);
        passive -> flush(Socket, Buffer);
        closed -> self() ! {tcp_closed, Socket}, Buffer;
        timeout -> Buffer
    end.

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

%% @doc A socket of which the other end is gone for good has an error, or no peer any more.
-spec is_closed(gen_tcp:socket()) -> boolean().
is_closed(Socket) ->
    case inet:peername(Socket) of
        {error, _} -> true;
        {ok, _} -> has_hung_up(Socket)
    end.

%% TCP_INFO's first byte is the state: established is 1; the peer has closed in 7 (close) and 8 (close_wait).
has_hung_up(Socket) ->
    case inet:getopts(Socket, [{raw, 6, 11, 1}]) of
        {ok, [{raw, 6, 11, <<State>>}]} -> State =/= 1;
        _ -> false
    end.

-spec half_close(gen_tcp:socket()) -> ok.
half_close(Socket) -> _ = gen_tcp:shutdown(Socket, write), ok.

%% @doc What gen_tcp:close does first is to wait until the driver has passed all on.
-spec close(gen_tcp:socket()) -> ok.
close(Socket) when is_port(Socket) ->
    case erlang:port_info(Socket, queue_size) of
        {queue_size, 0} -> try erlang:port_close(Socket), ok catch error:badarg -> ok end;
        _ -> gen_tcp:close(Socket)
    end;
close(Socket) -> gen_tcp:close(Socket).

-spec info(gen_tcp:socket()) -> none.
info(_) -> none.
