%% SPDX-License-Identifier: Apache-2.0
%% @doc Two authenticated peers of one host agree on a shared memory link, or both go on over TCP.
%%
%% The side that called offers, the other answers, the first confirms. A side uses the ring only when
%% it knows that the other will: the one that offered after it was told `ready', the other after
%% `ready' came back. `nack' from either side means TCP for both; it is the answer to an offer of another
%% version, too. Whatever else happens (silence
%% until the deadline, a closed socket, nonsense) ends the process, and with it the connection, so
%% that no two peers go on with different links. Checked by native/test/spin/agree.pml.
%%
%% Runs in the connection process, on the still passive socket with its packets of 2-byte length.
-module(beamway_agreement).

-include_lib("kernel/include/logger.hrl").

-export([run/3]).

-type link() :: {shm, port(), Reason :: binary()} | {tcp, Socket :: port(), Reason :: binary()}.

%% @doc Ends within `TimeoutMs', or ends the calling process.
-spec run(connecting | accepting, Socket :: port(), TimeoutMs :: pos_integer()) -> link().
run(Role, Socket, TimeoutMs) ->
    Deadline = erlang:monotonic_time(millisecond) + TimeoutMs,
    #{ring_bytes := RingBytes} = Config = beamway_links:config(),
    Granted = beamway_links:grant(RingBytes),
    case agree(Role, Socket, Deadline, Config, Granted) of
        {shm, Port} ->
            {shm, Port, <<"same host">>};
        {tcp, Reason} ->
            ?LOG_WARNING("beamway: no shared memory with ~ts, using tcp: ~ts",
                         [peer_text(Socket), Reason]),
            {tcp, Socket, Reason}
    end.

agree(connecting, Socket, Deadline, #{socket_dir := Dir}, {ok, RingBytes}) ->
    case open_door(Dir) of
        {ok, Port, Token, Address} ->
            send(Socket, {offer, #{address => Address, token => Token, ring_bytes => RingBytes}}),
            answered(recv(Socket, Deadline), Socket, Port, RingBytes);
        {error, Reason} ->
            nack(Socket, none, Reason)
    end;
agree(accepting, Socket, Deadline, #{socket_dir := Dir}, Granted) ->
    case {recv(Socket, Deadline), Granted} of
        {{offer, #{address := Address} = Offer}, {ok, RingBytes}} ->
            case beamway_socket_dir:address(Address, Dir) of
                {ok, Here} -> join(Socket, Deadline, Offer#{address := Here}, RingBytes);
                {error, Reason} -> nack(Socket, none, Reason)
            end;
        {{offer, _}, {error, Reason}} -> nack(Socket, none, Reason);
        {{offer_of_version, Version}, _} -> nack(Socket, none, beamway_wire:another_version(Version));
        {{nack, Reason}, _} -> refused(none, Reason);
        {ready, _} -> give_up(<<"ready without an offer">>)
    end;
agree(connecting, Socket, _Deadline, _Config, {error, Reason}) ->
    nack(Socket, none, Reason).

open_door(Dir) ->
    case beamway_port:open() of
        {ok, Port} ->
            case beamway_port:open_door(Port, Dir) of
                {ok, Token, Address} ->
                    {ok, Port, Token, Address};
                {error, Reason} ->
                    close(Port),
                    {error, Reason}
            end;
        {error, Reason} ->
            {error, Reason}
    end.

%% connecting: the peer has joined, or says why not
answered(ready, Socket, Port, RingBytes) ->
    case beamway_port:accept(Port, RingBytes) of
        ok ->
            send(Socket, ready),
            {shm, Port};
        {error, Reason} ->
            nack(Socket, Port, Reason)
    end;
answered({nack, Reason}, _Socket, Port, _RingBytes) ->
    refused(Port, Reason);
answered(_Offer, _Socket, _Port, _RingBytes) ->
    give_up(<<"an offer as answer to ours">>).

%% accepting: the smaller of both sizes
join(Socket, Deadline, #{ring_bytes := Offered} = Offer, RingBytes) ->
    case open_joined(Offer, min(Offered, RingBytes)) of
        {ok, Port} ->
            send(Socket, ready),
            confirmed(recv(Socket, Deadline), Port);
        {error, Reason} ->
            nack(Socket, none, Reason)
    end.

open_joined(Offer, RingBytes) ->
    case beamway_port:open() of
        {ok, Port} ->
            case beamway_port:join(Port, RingBytes, Offer) of
                ok ->
                    {ok, Port};
                {error, Reason} ->
                    close(Port),
                    {error, Reason}
            end;
        {error, Reason} ->
            {error, Reason}
    end.

confirmed(ready, Port) ->
    {shm, Port};
confirmed({nack, Reason}, Port) ->
    refused(Port, Reason);
confirmed(_Offer, _Port) ->
    give_up(<<"two offers">>).

nack(Socket, Port, Reason) ->
    send(Socket, {nack, Reason}),
    close(Port),
    {tcp, Reason}.

refused(Port, Reason) ->
    close(Port),
    {tcp, <<"the peer says: ", Reason/binary>>}.

close(none) -> ok;
close(Port) -> beamway_port:close(Port).

send(Socket, Packet) ->
    case inet_tcp:send(Socket, beamway_wire:encode(Packet)) of
        ok -> ok;
        {error, Reason} -> give_up(Reason)
    end.

recv(Socket, Deadline) ->
    Left = max(0, Deadline - erlang:monotonic_time(millisecond)),
    case inet_tcp:recv(Socket, 0, Left) of
        {ok, Bytes} ->
            case beamway_wire:decode(Bytes) of
                {ok, Packet} -> Packet;
                {error, Reason} -> give_up(Reason)
            end;
        {error, Reason} ->
            give_up(Reason)
    end.

%% The connection ends; net_kernel hears of it by our exit.
-spec give_up(term()) -> no_return().
give_up(closed) ->
    exit(shutdown);
give_up(Reason) ->
    ?LOG_ERROR("beamway: no agreement on a link with the peer, connection closed: ~0tp", [Reason]),
    exit(shutdown).

peer_text(Socket) ->
    case inet:peername(Socket) of
        {ok, {Ip, Port}} -> [inet:ntoa(Ip), $:, integer_to_list(Port)];
        {error, _} -> "the peer"
    end.
