%% SPDX-License-Identifier: Apache-2.0
%% @doc How large the rings of a new link may be, under the limits of the node. Pure; {@link beamway_links} keeps the reservations.
%%
%% Links over rdma have a limit of their own (`rdma_limit_bytes'), since their rings are locked memory; all others share
%% `ring_limit_bytes'. Rings that do not fit are halved. A link over the connection on which two nodes have met gets
%% the smallest rings even beyond the limit, because it has nothing to fall back to.
-module(beamway_budget).

-export([ring/4]).
-export_type([reservation/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(SMALLEST, 65536).

-type reservation() :: {beamway_kind:driven(), RingBytes :: pos_integer()}.

%% @doc The bytes of each of the two rings of a link of this kind. `{less, …}' names the limit that made them smaller.
-spec ring(beamway_kind:driven(), Wanted :: pos_integer(), [reservation()], beamway_config:config()) ->
          {ok, RingBytes :: pos_integer()} | {less, RingBytes :: pos_integer(), {Option :: atom(), Limit :: non_neg_integer()}}
              | {error, Reason :: binary()}.
ring(Kind, Wanted, Reserved, Config) ->
    {Option, Limit} = Known = limit(Kind, Config),
    Free = Limit - 2 * lists:sum([Bytes || {Of, Bytes} <- Reserved, limit(Of, Config) =:= Known]),
    case largest(Kind, Wanted, Free) of
        {ok, Wanted} -> {ok, Wanted};
        {ok, Bytes} -> {less, Bytes, Known};
        none -> {error, iolist_to_binary(io_lib:format("the ring memory of this node is used up (~ts)", [Option]))}
    end.

limit(Kind, Config) ->
    Option = beamway_kind:limit(Kind),
    {Option, maps:get(Option, Config)}.

%% Both rings of a link count.
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
    Ring = fun(Kind, Wanted, Reserved) -> ring(Kind, Wanted, Reserved, config()) end,
    [?_assertEqual({ok, 524288}, Ring(shm, 524288, [])),
     ?_assertEqual({less, 262144, {ring_limit_bytes, 1048576}}, Ring(shm, 524288, [{shm, 131072}])),
     ?_assertEqual({less, 65536, {ring_limit_bytes, 1048576}}, Ring(shm, 524288, [{shm, 262144}, {tcp, 196608}])),
     ?_assertEqual({error, <<"the ring memory of this node is used up (ring_limit_bytes)">>}, Ring(shm, 65536, [{shm, 524288}])),
     ?_assertEqual({ok, 65536}, Ring(tcp, 65536, [{shm, 524288}])),
     ?_assertEqual({less, 65536, {ring_limit_bytes, 1048576}}, Ring(tcp, 262144, [{shm, 524288}])),
     %% The limit of rdma is apart.
     ?_assertEqual({ok, 131072}, Ring(rdma, 131072, [{shm, 524288}])),
     ?_assertEqual({error, <<"the ring memory of this node is used up (rdma_limit_bytes)">>}, Ring(rdma, 131072, [{rdma, 131072}]))].

-endif.
