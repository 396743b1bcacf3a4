%% SPDX-License-Identifier: Apache-2.0
%% @doc Connects two authenticated peers over RDMA; see {@link beamway_agreement}.
%%
%% The side that makes the offer listens. The other side tries its addresses one after another, and may use half of the remaining time.
-module(beamway_rdma).
-behaviour(beamway_agreement).

-export([is_usable/2, offer/2, join/4, unused/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(CONNECT_MIN_MS, 500).

%% @private Looks for the devices each time, and checks the library until it has been loaded.
-spec is_usable(beamway_config:config(), StreamKind :: tcp | tls) -> boolean().
is_usable(#{rdma_plaintext := false}, tls) ->
    false;
is_usable(Config, _StreamKind) ->
    ports(Config) =/= [] andalso beamway_driver:has(rdma).

%% @doc Returns a log line for a node that has a device but may not use it. It looks for devices only if the node may not use them.
-spec unused(beamway_config:config()) -> [string()].
unused(#{links := Links} = Config) ->
    case Links =:= [inet] orelse lists:member(rdma, Links) of
        true -> [];
        false -> unused_ports(ports(Config))
    end.

unused_ports([]) ->
    [];
unused_ports(Ports) ->
    Devices = lists:usort([Device || #{device := Device} <- Ports]),
    ["this node does not use the RDMA device " ++ lists:append(lists:join(", ", Devices))
     ++ ", because rdma is off by default; set BEAMWAY_RDMA=true or -beamway rdma true to use it"].

ports(#{rdma_devices := Devices}) ->
    beamway_rdma_devices:usable(beamway_rdma_devices:named(Devices)).

%% @private
-spec offer(beamway_config:config(), RingBytes :: pos_integer()) ->
          {ok, port(), beamway_wire:packet()} | {error, Reason :: binary()}.
offer(#{rdma_ports := Range} = Config, RingBytes) ->
    case [Ip || #{addresses := Addresses} <- ports(Config), {Ip, _} <- Addresses] of
        [] ->
            {error, <<"no rdma device is active any more">>};
        Ips ->
            {First, Last} = Range,
            beamway_result:then(
              beamway_establish:listen(rdma, <<(address(any_of(Ips), 0))/binary, First:16, Last:16>>, RingBytes),
              fun(Port, #{address := <<CmPort:16>>, token := Token, device := Device}) ->
                      {ok, Port, {rdma_offer, #{device => Device, addresses => Ips, port => CmPort, token => Token, ring_bytes => RingBytes}}}
              end)
    end.

%% A listener on IPv6 accepts callers of both address families.
any_of(Ips) ->
    case lists:all(fun(Ip) -> tuple_size(Ip) =:= 4 end, Ips) of
        true -> {0, 0, 0, 0};
        false -> {0, 0, 0, 0, 0, 0, 0, 0}
    end.

%% The layout is defined in native/link/rdma/rdma.h. The fields between the address and the port are the scope.
address({A, B, C, D}, CmPort) ->
    <<4, A, B, C, D, 0:12/unit:8, 0:32, CmPort:16>>;
address({A, B, C, D, E, F, G, H}, CmPort) ->
    <<6, A:16, B:16, C:16, D:16, E:16, F:16, G:16, H:16, 0:32, CmPort:16>>.

%% @private
-spec join(beamway_wire:packet(), beamway_config:config(), RingBytes :: pos_integer(), Deadline :: integer()) ->
          {ok, port(), Device :: binary()} | {error, Reason :: binary()}.
join({rdma_offer, #{addresses := Addresses, ring_bytes := Offered} = Offer}, Config, RingBytes, Deadline) ->
    Half = deadline((Deadline - erlang:monotonic_time(millisecond)) div 2),
    case beamway_rdma_devices:routes(ports(Config), Addresses) of
        [] -> {error, iolist_to_binary(["no rdma device here reaches ", texts(Addresses)])};
        Routes -> join_one_of(Routes, Offer, min(Offered, RingBytes), Half, [])
    end;
join(_Packet, _Config, _RingBytes, _Deadline) ->
    {error, <<"an offer of another kind of link">>}.

%% Each address gets an equal share of the remaining time. Once that time is up, no further attempt is started, because the peer is waiting for our
%% answer.
join_one_of(Routes, Offer, RingBytes, Deadline, Reasons) ->
    Left = Deadline - erlang:monotonic_time(millisecond),
    case Routes of
        [Ip | More] when Left > 0; Reasons =:= [] ->
            case connect(Ip, Offer, RingBytes, max(?CONNECT_MIN_MS, Left div (1 + length(More)))) of
                {ok, Port, Device} -> {ok, Port, Device};
                {error, Reason} -> join_one_of(More, Offer, RingBytes, Deadline, [Reason | Reasons])
            end;
        _ ->
            {error, iolist_to_binary(lists:join("; ", lists:reverse(Reasons)))}
    end.

connect(Ip, #{port := CmPort, token := Token}, RingBytes, Ms) ->
    beamway_establish:connect(rdma, <<0:23/unit:8, (address(Ip, CmPort))/binary>>, Token, RingBytes, Ms).

deadline(Ms) -> erlang:monotonic_time(millisecond) + Ms.

texts(Addresses) -> lists:join(", ", [inet:ntoa(Ip) || Ip <- Addresses]).

-ifdef(TEST).

unused_device_test_() ->
    Port = #{device => "mlx5_0"},
    [?_assertEqual([], unused_ports([])),
     ?_assertEqual(["this node does not use the RDMA device mlx5_0, rxe0, because rdma is off by default; "
                    "set BEAMWAY_RDMA=true or -beamway rdma true to use it"], unused_ports([Port, #{device => "rxe0"}, Port])),
     ?_assertEqual([], unused(#{links => [inet]})), ?_assertEqual([], unused(#{links => [rdma, shm, tcp]}))].

no_time_is_left_test() ->
    ?assertEqual({error, <<"one; two">>}, join_one_of([{10, 0, 0, 1}], none, 65536, deadline(0), [<<"two">>, <<"one">>])).

-endif.
