%% SPDX-License-Identifier: Apache-2.0
%% @doc Connects two authenticated peers on the same kernel over shared memory; see {@link beamway_agreement}.
%%
%% The side that makes the offer listens, and the other side passes memory and descriptors to it before it answers. So no step here waits for the
%% peer.
-module(beamway_shm).
-behaviour(beamway_agreement).

-export([is_usable/2, offer/2, join/4]).

-import(beamway_result, [then/2]).

-define(CONNECT_MS, 1000).

%% @private
-spec is_usable(beamway_config:config(), StreamKind :: tcp | tls) -> true.
is_usable(_Config, _StreamKind) -> true.

%% @private
-spec offer(beamway_config:config(), RingBytes :: pos_integer()) ->
          {ok, port(), beamway_wire:packet()} | {error, Reason :: binary()}.
offer(#{socket_dir := Dir}, RingBytes) ->
    then(beamway_establish:listen(shm, beamway_socket_dir:bytes(Dir), RingBytes),
         fun(Port, #{token := Token, address := Address}) -> {ok, Port, {offer, #{address => Address, token => Token, ring_bytes => RingBytes}}} end).

%% @private
-spec join(beamway_wire:packet(), beamway_config:config(), RingBytes :: pos_integer(), Deadline :: integer()) ->
          {ok, port(), Device :: binary()} | {error, Reason :: binary()}.
join({offer, #{address := Address, token := Token, ring_bytes := Offered}}, #{socket_dir := Dir}, RingBytes, _Deadline) ->
    then(beamway_socket_dir:address(Address, Dir), fun(Here) -> beamway_establish:connect(shm, Here, Token, min(Offered, RingBytes), ?CONNECT_MS) end);
join(_Packet, _Config, _RingBytes, _Deadline) ->
    {error, <<"an offer of another kind of link">>}.
