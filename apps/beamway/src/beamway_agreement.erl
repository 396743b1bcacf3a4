%% SPDX-License-Identifier: Apache-2.0
%% @doc Lets two authenticated peers agree on a ring, over shared memory or RDMA, or continue over their stream.
%%
%% The calling side makes an offer, the other side answers, and the calling side confirms. A side uses the ring only once it knows that the other side
%% will: the calling side after it has received `ready', and the other side after the calling side has confirmed with its own `ready'. `nack' from
%% either side means that both use the stream; it is also the answer to an offer in a different version. Anything else (silence until the deadline, a
%% closed socket, garbage) terminates the process and with it the connection, so two peers can never continue with different links.
%% native/test/spin/agree.pml verifies this.
%%
%% How the two sides connect to set up a ring depends on the kind: see {@link beamway_shm} and {@link beamway_rdma}. All of this runs in the
%% connection process of the distribution, on the stream, which is still passive.
-module(beamway_agreement).

-include_lib("kernel/include/logger.hrl").

-export([run/4, tell_without/3]).
-export([send/2, recv/2, give_up_connection/1]).

-import(beamway_result, [then/2]).

-type stream() :: beamway_stream:stream().

-callback is_usable(beamway_config:config(), StreamKind :: tcp | tls) -> boolean().

%% In the other callbacks, deadlines are in erlang:monotonic_time(millisecond), and an error must not leave anything open.

%% The calling side opens a port to which the peer can connect.
-callback offer(beamway_config:config(), RingBytes :: pos_integer()) ->
    {ok, port(), beamway_wire:packet()} | {error, Reason :: binary()}.
%% The answering side connects to that port, with rings of at most `RingBytes'. Any packet that is not an offer of this kind is an error.
-callback join(beamway_wire:packet(), beamway_config:config(), RingBytes :: pos_integer(), Deadline :: integer()) ->
    {ok, port(), Device :: binary()} | {error, Reason :: binary()}.

%% @doc Returns within `TimeoutMs', or terminates the calling process. `stream' means that both sides continue over the stream.
-spec run(beamway_kind:ring(), connecting | accepting, stream(), TimeoutMs :: pos_integer()) ->
          {ring, port(), Why :: binary()} | {stream, Reason :: binary()}.
run(Kind, Role, Stream, TimeoutMs) ->
    Deadline = erlang:monotonic_time(millisecond) + TimeoutMs,
    try agree(Role, Kind, Stream, Deadline, beamway_links:config(), beamway_links:reserve(Kind)) of
        {ring, Port, Device} ->
            {ring, Port, beamway_kind:why(Kind, Device)};
        {stream, Reason} ->
            %% The link that now carries the data makes its own reservation.
            ok = beamway_links:release(),
            ok = tell_without(Kind, Stream, Reason),
            {stream, Reason}
    catch
        throw:{no_agreement, Reason} -> give_up_connection(Reason)
    end.

%% @doc Logs that the two nodes continue without that ring, and why.
-spec tell_without(beamway_kind:ring(), stream(), Reason :: binary()) -> ok.
tell_without(Kind, Stream, Reason) ->
    Level = beamway_links:level_of(Reason),
    ?LOG(Level, "beamway: no ~ts with ~ts, using ~ts: ~ts",
         [beamway_kind:name(Kind), beamway_stream:peer_text(Stream), beamway_stream:kind(Stream), Reason]).

%% @private Closes the connection; net_kernel is notified by this process's exit.
-spec give_up_connection(term()) -> no_return().
give_up_connection(closed) ->
    exit(shutdown);
give_up_connection(Reason) ->
    ?LOG_ERROR("beamway: no agreement on a link with the peer, connection closed: ~0tp", [Reason]),
    exit(shutdown).

agree(connecting, Kind, Stream, Deadline, Config, Granted) ->
    case then(Granted, fun(RingBytes) -> (beamway_kind:module(Kind)):offer(Config, RingBytes) end) of
        {ok, Port, Offer} ->
            or_close(Port, fun() ->
                                   send(Stream, Offer),
                                   answered(recv(Stream, Deadline), Stream, Deadline, Kind, Port)
                           end);
        {error, Reason} ->
            nack(Stream, none, Reason)
    end;
agree(accepting, Kind, Stream, Deadline, Config, Granted) ->
    case recv(Stream, Deadline) of
        {nack, Reason} -> refused(none, Reason);
        ready -> give_up(<<"ready without an offer">>);
        {offer_of_version, Version} -> nack(Stream, none, beamway_wire:another_version(Version));
        Offer -> joined(Stream, Deadline, then(Granted, fun(RingBytes) -> (beamway_kind:module(Kind)):join(Offer, Config, RingBytes, Deadline) end))
    end.

answered(ready, Stream, Deadline, Kind, Port) ->
    case beamway_establish:accept(Kind, Port, Deadline) of
        {ok, Device} ->
            send(Stream, ready),
            {ring, Port, Device};
        {error, Reason} ->
            nack(Stream, Port, Reason)
    end;
answered({nack, Reason}, _Stream, _Deadline, _Kind, Port) ->
    Known = beamway_establish:known(Port, peer_says(Reason)),
    close(Port),
    {stream, Known};
answered(_Offer, _Stream, _Deadline, _Kind, _Port) ->
    give_up(<<"an offer as answer to ours">>).

joined(Stream, Deadline, {ok, Port, Device}) ->
    or_close(Port, fun() ->
                           send(Stream, ready),
                           confirmed(recv(Stream, Deadline), Port, Device)
                   end);
joined(Stream, _Deadline, {error, Reason}) ->
    nack(Stream, none, Reason).

confirmed(ready, Port, Device) ->
    {ring, Port, Device};
confirmed({nack, Reason}, Port, _Device) ->
    refused(Port, Reason);
confirmed(_Offer, _Port, _Device) ->
    give_up(<<"two offers">>).

nack(Stream, Port, Reason) ->
    send(Stream, {nack, Reason}),
    close(Port),
    {stream, Reason}.

refused(Port, Reason) ->
    close(Port),
    {stream, peer_says(Reason)}.

peer_says(Reason) -> <<"the peer says: ", Reason/binary>>.

close(none) -> ok;
close(Port) -> beamway_port:close(Port).

%% @private Errors are thrown as `{no_agreement, Reason}', here and below.
-spec send(stream(), beamway_wire:packet()) -> ok.
send(Stream, Packet) ->
    case beamway_stream:send(Stream, beamway_wire:encode(Packet)) of
        ok -> ok;
        {error, Reason} -> give_up(Reason)
    end.

%% @private
-spec recv(stream(), Deadline :: integer()) -> beamway_wire:packet().
recv(Stream, Deadline) ->
    Left = max(0, Deadline - erlang:monotonic_time(millisecond)),
    case then(beamway_stream:recv(Stream, Left), fun beamway_wire:decode/1) of
        {ok, Packet} -> Packet;
        {error, Reason} -> give_up(Reason)
    end.

or_close(Port, Use) ->
    try
        Use()
    catch
        throw:{no_agreement, Reason} ->
            close(Port),
            give_up(Reason)
    end.

-spec give_up(term()) -> no_return().
give_up(Reason) ->
    throw({no_agreement, Reason}).
