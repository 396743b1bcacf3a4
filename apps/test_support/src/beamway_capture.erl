%% SPDX-License-Identifier: Apache-2.0
%% @doc Captures the traffic on the host's network interfaces, for tests that search it for data that must not be readable there. Needs
%% permission to open a packet socket.
-module(beamway_capture).

-export([during/1]).

-define(AF_PACKET, 17).
-define(SOCK_RAW, 3).
-define(EVERY_PROTOCOL, 16#0300).
-define(BUFFER_BYTES, 16777216).
-define(LARGEST, 262144).

%% @doc Runs the body, and returns its result together with all bytes captured meanwhile. They include everything that the body sent and that
%% was received before it returned.
-spec during(fun(() -> Result)) -> {Result, Bytes :: binary()} | {skip, Reason :: string()}.
during(Body) ->
    case socket:open(?AF_PACKET, ?SOCK_RAW, ?EVERY_PROTOCOL) of
        {ok, Socket} ->
            ok = socket:setopt(Socket, socket, rcvbuf, ?BUFFER_BYTES),
            Result = Body(),
            Bytes = iolist_to_binary(packets(Socket)),
            ok = socket:close(Socket),
            {Result, Bytes};
        {error, Reason} ->
            {skip, lists:flatten(io_lib:format("no packet socket: ~0tp", [Reason]))}
    end.

packets(Socket) ->
    case socket:recv(Socket, ?LARGEST, [], nowait) of
        {ok, Packet} -> [Packet | packets(Socket)];
        {select, Info} -> _ = socket:cancel(Socket, Info), []
    end.
