%% SPDX-License-Identifier: Apache-2.0
%% @doc The transport beneath OTP's ssl on listeners that issue session tickets, for sockets that yucan has already
%% accepted. ssl keeps the ticket key with its own listening socket, and has no key for a connection that was accepted
%% elsewhere. Through the option `cb_info', ssl therefore calls `listen' and `accept' in this module, which return the
%% existing socket. The other functions only call gen_tcp and inet.
-module(yucan_tls_below).

-export([with/2]).
-export([listen/2, accept/2, controlling_process/2, setopts/2, getopts/2, send/2, recv/2, recv/3, close/1, shutdown/2, port/1, peername/1, sockname/1, getstat/2]).

-define(KEY, '$yucan_tls_below').

%% @doc Calls an ssl function that listens or accepts, and makes it use this socket. Without a
%% socket, ssl checks its options and then gets an error.
-spec with(none | gen_tcp:socket(), fun(() -> Result)) -> Result.
with(Socket, Function) ->
    _ = put(?KEY, Socket),
    try Function() after erase(?KEY) end.

%% @private
-spec listen(term(), list()) -> {ok, gen_tcp:socket()} | {error, no_socket}.
listen(_, _) ->
    case get(?KEY) of
        none -> {error, no_socket};
        Socket -> {ok, Socket}
    end.

%% @private
-spec accept(gen_tcp:socket(), timeout()) -> {ok, gen_tcp:socket()}.
accept(_, _) -> {ok, get(?KEY)}.

%% @private
-spec controlling_process(gen_tcp:socket(), pid()) -> ok | {error, term()}.
controlling_process(Socket, Pid) -> gen_tcp:controlling_process(Socket, Pid).

%% @private
-spec setopts(gen_tcp:socket(), list()) -> ok | {error, inet:posix()}.
setopts(Socket, Options) -> inet:setopts(Socket, Options).

%% @private
-spec getopts(gen_tcp:socket(), list()) -> {ok, list()} | {error, inet:posix()}.
getopts(Socket, Options) -> inet:getopts(Socket, Options).

%% @private
-spec send(gen_tcp:socket(), iodata()) -> ok | {error, term()}.
send(Socket, Data) -> gen_tcp:send(Socket, Data).

%% @private
-spec recv(gen_tcp:socket(), non_neg_integer()) -> {ok, term()} | {error, term()}.
recv(Socket, Length) -> gen_tcp:recv(Socket, Length).

%% @private
-spec recv(gen_tcp:socket(), non_neg_integer(), timeout()) -> {ok, term()} | {error, term()}.
recv(Socket, Length, Timeout) -> gen_tcp:recv(Socket, Length, Timeout).

%% @private
-spec close(gen_tcp:socket()) -> ok.
close(Socket) -> gen_tcp:close(Socket).

%% @private
-spec shutdown(gen_tcp:socket(), read | write | read_write) -> ok | {error, inet:posix()}.
shutdown(Socket, How) -> gen_tcp:shutdown(Socket, How).

%% @private
-spec port(gen_tcp:socket()) -> {ok, term()} | {error, term()}.
port(Socket) -> inet:port(Socket).

%% @private
-spec peername(gen_tcp:socket()) -> {ok, term()} | {error, inet:posix()}.
peername(Socket) -> inet:peername(Socket).

%% @private
-spec sockname(gen_tcp:socket()) -> {ok, term()} | {error, inet:posix()}.
sockname(Socket) -> inet:sockname(Socket).

%% @private
-spec getstat(gen_tcp:socket(), list()) -> {ok, list()} | {error, inet:posix()}.
getstat(Socket, Options) -> inet:getstat(Socket, Options).
