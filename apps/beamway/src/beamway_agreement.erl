%% SPDX-License-Identifier: Apache-2.0
%% @doc Two authenticated peers of one host agree on a shared memory link, or both go on over
%% their stream.
%%
%% The side that called offers, the other answers, the first confirms. A side uses the ring only when
%% it knows that the other will: the one that offered after it was told `ready', the other after
%% `ready' came back. `nack' from either side means the stream for both; it is the answer to an offer of another
%% version, too. Whatever else happens (silence
%% until the deadline, a closed socket, nonsense) ends the process, and with it the connection, so
%% that no two peers go on with different links. Checked by native/test/spin/agree.pml.
%%
%% Runs in the connection process, on the still passive stream.
-module(beamway_agreement).

-include_lib("kernel/include/logger.hrl").

-export([run/3]).

-type stream() :: beamway_stream:stream().

%% @doc Ends within `TimeoutMs', or ends the calling process. `stream': go on over it.
-spec run(connecting | accepting, stream(), TimeoutMs :: pos_integer()) ->
          {shm, port()} | {stream, Reason :: binary()}.
run(Role, Stream, TimeoutMs) ->
    Deadline = erlang:monotonic_time(millisecond) + TimeoutMs,
    #{ring_bytes := RingBytes} = Config = beamway_links:config(),
    Granted = beamway_links:grant(RingBytes),
    case agree(Role, Stream, Deadline, Config, Granted) of
        {shm, Port} ->
            {shm, Port};
        {stream, Reason} ->
            ?LOG_WARNING("beamway: no shared memory with ~ts, using ~ts: ~ts",
                         [beamway_stream:peer_text(Stream), beamway_stream:kind(Stream), Reason]),
            {stream, Reason}
    end.

agree(connecting, Stream, Deadline, #{socket_dir := Dir}, {ok, RingBytes}) ->
    case with_port(fun(Port) -> beamway_port:open_door(Port, Dir) end) of
        {ok, Port, {Token, Address}} ->
            send(Stream, {offer, #{address => Address, token => Token, ring_bytes => RingBytes}}),
            answered(recv(Stream, Deadline), Stream, Port, RingBytes);
        {error, Reason} ->
            nack(Stream, none, Reason)
    end;
agree(accepting, Stream, Deadline, #{socket_dir := Dir}, Granted) ->
    case {recv(Stream, Deadline), Granted} of
        {{offer, #{address := Address} = Offer}, {ok, RingBytes}} ->
            case beamway_socket_dir:address(Address, Dir) of
                {ok, Here} -> join(Stream, Deadline, Offer#{address := Here}, RingBytes);
                {error, Reason} -> nack(Stream, none, Reason)
            end;
        {{offer, _}, {error, Reason}} -> nack(Stream, none, Reason);
        {{offer_of_version, Version}, _} -> nack(Stream, none, beamway_wire:another_version(Version));
        {{nack, Reason}, _} -> refused(none, Reason);
        {ready, _} -> give_up(<<"ready without an offer">>)
    end;
agree(connecting, Stream, _Deadline, _Config, {error, Reason}) ->
    nack(Stream, none, Reason).

%% A new port, closed again if it cannot be used.
with_port(Use) ->
    case beamway_port:open() of
        {ok, Port} ->
            case Use(Port) of
                {ok, Result} ->
                    {ok, Port, Result};
                {error, Reason} ->
                    close(Port),
                    {error, Reason}
            end;
        {error, Reason} ->
            {error, Reason}
    end.

%% connecting: the peer has joined, or says why not
answered(ready, Stream, Port, RingBytes) ->
    case beamway_port:accept(Port, RingBytes) of
        ok ->
            send(Stream, ready),
            {shm, Port};
        {error, Reason} ->
            nack(Stream, Port, Reason)
    end;
answered({nack, Reason}, _Stream, Port, _RingBytes) ->
    refused(Port, Reason);
answered(_Offer, _Stream, _Port, _RingBytes) ->
    give_up(<<"an offer as answer to ours">>).

%% accepting: the smaller of both sizes
join(Stream, Deadline, #{ring_bytes := Offered} = Offer, RingBytes) ->
    Smaller = min(Offered, RingBytes),
    case with_port(fun(Port) -> beamway_port:join(Port, Smaller, Offer) end) of
        {ok, Port, joined} ->
            send(Stream, ready),
            confirmed(recv(Stream, Deadline), Port);
        {error, Reason} ->
            nack(Stream, none, Reason)
    end.

confirmed(ready, Port) ->
    {shm, Port};
confirmed({nack, Reason}, Port) ->
    refused(Port, Reason);
confirmed(_Offer, _Port) ->
    give_up(<<"two offers">>).

nack(Stream, Port, Reason) ->
    send(Stream, {nack, Reason}),
    close(Port),
    {stream, Reason}.

refused(Port, Reason) ->
    close(Port),
    {stream, <<"the peer says: ", Reason/binary>>}.

close(none) -> ok;
close(Port) -> beamway_port:close(Port).

send(Stream, Packet) ->
    case beamway_stream:send(Stream, beamway_wire:encode(Packet)) of
        ok -> ok;
        {error, Reason} -> give_up(Reason)
    end.

recv(Stream, Deadline) ->
    Left = max(0, Deadline - erlang:monotonic_time(millisecond)),
    case beamway_stream:recv(Stream, Left) of
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
