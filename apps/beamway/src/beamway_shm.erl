%% SPDX-License-Identifier: Apache-2.0
%% @doc How two authenticated peers of one kernel meet for shared memory; see {@link beamway_agreement}.
%%
%% The one that offers opens a door; the other brings memory and descriptors to it before it answers. So no step
%% here waits for the peer.
-module(beamway_shm).
-behaviour(beamway_agreement).

-export([offer/2, join/4, accept/3, refused/2]).

-define(WHY, <<"same host">>).

%% @private
-spec offer(beamway_config:config(), RingBytes :: pos_integer()) ->
          {ok, port(), beamway_wire:packet()} | {error, Reason :: binary()}.
offer(#{socket_dir := Dir}, RingBytes) ->
    case beamway_port:opened(fun(Port) -> beamway_port:open_door(Port, Dir) end) of
        {ok, Port, {Token, Address}} ->
            {ok, Port, {offer, #{address => Address, token => Token, ring_bytes => RingBytes}}};
        {error, Reason} ->
            {error, Reason}
    end.

%% @private
-spec join(beamway_wire:packet(), beamway_config:config(), RingBytes :: pos_integer(), Deadline :: integer()) ->
          {ok, port(), Why :: binary()} | {error, Reason :: binary()}.
join({offer, #{address := Address, ring_bytes := Offered} = Offer}, #{socket_dir := Dir}, RingBytes, _Deadline) ->
    case beamway_socket_dir:address(Address, Dir) of
        {ok, Here} ->
            Smaller = min(Offered, RingBytes),
            case beamway_port:opened(fun(Port) -> beamway_port:join(Port, Smaller, Offer#{address := Here}) end) of
                {ok, Port, joined} -> {ok, Port, ?WHY};
                {error, Reason} -> {error, Reason}
            end;
        {error, Reason} ->
            {error, Reason}
    end;
join(_Packet, _Config, _RingBytes, _Deadline) ->
    {error, <<"an offer of another kind of link">>}.

%% @private
-spec accept(port(), RingBytes :: pos_integer(), Deadline :: integer()) ->
          {ok, Why :: binary()} | {error, Reason :: binary()}.
accept(Port, RingBytes, _Deadline) ->
    case beamway_port:accept(Port, RingBytes) of
        ok -> {ok, ?WHY};
        {error, Reason} -> {error, Reason}
    end.

%% @private
-spec refused(port(), PeerSays :: binary()) -> Reason :: binary().
refused(_Port, PeerSays) ->
    PeerSays.
