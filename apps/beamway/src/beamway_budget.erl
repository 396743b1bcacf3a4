%% SPDX-License-Identifier: Apache-2.0
%% @doc Decides how large the rings of a new link may be under the node's limits. All functions are pure; {@link beamway_links} keeps the reservations
%% and their sums.
%%
%% Links over RDMA have a separate limit (`rdma_limit_bytes'), because their rings are locked memory; all others share `ring_limit_bytes'. Rings that
%% do not fit are halved. A link over the distribution connection itself (TCP or TLS) gets the smallest rings even if that exceeds the limit, because
%% it has nothing to fall back to.
-module(beamway_budget).

-export([ring/4, limits/0, bytes/1, has_room/3, used_up/2]).
-export_type([reservation/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(SMALLEST, 65536).

-type reservation() :: {beamway_kind:driven(), RingBytes :: pos_integer()}.

%% @doc Returns the size in bytes of each of the two rings for a link of this kind. `{less, …}' names the limit that made the rings smaller. `Used' is
%% the memory already reserved by all links under the same limit.
-spec ring(beamway_kind:driven(), Wanted :: pos_integer(), Used :: non_neg_integer(), beamway_config:config()) ->
          {ok, RingBytes :: pos_integer()} | {less, RingBytes :: pos_integer(), {Option :: atom(), Limit :: non_neg_integer()}}
              | {error, Reason :: binary()}.
ring(Kind, Wanted, Used, Config) ->
    Option = beamway_kind:limit(Kind),
    Limit = maps:get(Option, Config),
    case largest(Kind, Wanted, Limit - Used) of
        {ok, Wanted} -> {ok, Wanted};
        {ok, Bytes} -> {less, Bytes, {Option, Limit}};
        none -> {error, iolist_to_binary(used_up(Kind, "this node"))}
    end.

%% @doc Returns the reason why a ring cannot be created: the ring memory of that node is used up.
-spec used_up(beamway_kind:ring(), Whose :: string()) -> iodata().
used_up(Kind, Whose) -> ["the ring memory of ", Whose, " is used up (", atom_to_binary(beamway_kind:limit(Kind)), $)].

%% @doc Returns whether a link of this kind would get rings.
-spec has_room(beamway_kind:ring(), Used :: non_neg_integer(), beamway_config:config()) -> boolean().
has_room(Kind, Used, Config) -> largest(Kind, ?SMALLEST, maps:get(beamway_kind:limit(Kind), Config) - Used) =/= none.

%% @doc Returns the options that are limits.
-spec limits() -> [atom(), ...].
limits() -> lists:usort([beamway_kind:limit(Kind) || Kind <- beamway_kind:all()]).

%% @doc Returns how much of its limit a reservation uses. A link has two rings, and both count.
-spec bytes(reservation()) -> {Option :: atom(), pos_integer()}.
bytes({Kind, RingBytes}) -> {beamway_kind:limit(Kind), 2 * RingBytes}.

largest(_Kind, Bytes, Free) when 2 * Bytes =< Free -> {ok, Bytes};
largest(Kind, Bytes, Free) when Bytes >= 2 * ?SMALLEST -> largest(Kind, Bytes div 2, Free);
largest(Kind, Bytes, _Free) ->
    case beamway_kind:is_ring(Kind) of
        true -> none;
        false -> {ok, Bytes}
    end.

-ifdef(TEST).

config() -> #{ring_limit_bytes => 1048576, rdma_limit_bytes => 262144}.

ring_test_() ->
    Ring = fun(Kind, Wanted, Used) -> ring(Kind, Wanted, Used, config()) end,
    [?_assertEqual({ok, 524288}, Ring(shm, 524288, 0)),
     ?_assertEqual({less, 262144, {ring_limit_bytes, 1048576}}, Ring(shm, 524288, 262144)),
     ?_assertEqual({less, 65536, {ring_limit_bytes, 1048576}}, Ring(shm, 524288, 917504)),
     ?_assertEqual({error, <<"the ring memory of this node is used up (ring_limit_bytes)">>}, Ring(shm, 65536, 1048576)),
     ?_assertEqual({ok, 65536}, Ring(tcp, 65536, 1048576)),
     ?_assertEqual({less, 65536, {ring_limit_bytes, 1048576}}, Ring(tcp, 262144, 1048576)),
     ?_assertEqual({ok, 131072}, Ring(rdma, 131072, 0)),
     ?_assertEqual({error, <<"the ring memory of this node is used up (rdma_limit_bytes)">>}, Ring(rdma, 131072, 262144))].

has_room_test_() ->
    [?_assertEqual(has_room(Kind, Used, config()), ring(Kind, 262144, Used, config()) =/= ring(Kind, 65536, 1 bsl 40, config()))
     || Kind <- [shm, rdma], Used <- [0, 131072, 131073, 917504, 917505, 1048576, 1 bsl 30]].

limits_test_() ->
    [?_assertEqual([rdma_limit_bytes, ring_limit_bytes], limits()), ?_assertEqual({ring_limit_bytes, 131072}, bytes({tcp, 65536})),
     ?_assertEqual({rdma_limit_bytes, 131072}, bytes({rdma, 65536}))].

-endif.
