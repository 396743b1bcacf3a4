%% SPDX-License-Identifier: Apache-2.0
%% @doc How two authenticated peers meet over RDMA; see {@link beamway_agreement}.
%%
%% The one that offers listens; the other connects to one of its addresses after the other, and has half of what time
%% is left. The driver works in the background and tells the process that asked it by `{rdma, Port}' when there is news.
-module(beamway_rdma).
-behaviour(beamway_agreement).

-export([is_usable/2, offer/2, join/4, accept/3, refused/2]).

-define(LISTEN_MS, 2000).
-define(CONNECT_MIN_MS, 500).

%% @doc Whether a link over RDMA can be offered now, beside a stream of that kind: the devices are looked at each time, the
%% library is tried once.
-spec is_usable(beamway_config:config(), StreamKind :: tcp | tls) -> boolean().
is_usable(#{rdma_plaintext := false}, tls) ->
    false;
is_usable(Config, _StreamKind) ->
    ports(Config) =/= [] andalso beamway_driver:has_rdma().

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
            case beamway_port:opened(fun(Port) -> listen(Port, any_of(Ips), Range, RingBytes) end) of
                {ok, Port, {CmPort, Token, Device}} ->
                    {ok, Port, {rdma_offer, #{device => Device, addresses => Ips, port => CmPort, token => Token,
                                              ring_bytes => RingBytes}}};
                {error, Reason} ->
                    {error, Reason}
            end
    end.

%% A listener of IPv6 takes callers of both.
any_of(Ips) ->
    case lists:all(fun(Ip) -> tuple_size(Ip) =:= 4 end, Ips) of
        true -> {0, 0, 0, 0};
        false -> {0, 0, 0, 0, 0, 0, 0, 0}
    end.

listen(Port, Ip, Range, RingBytes) ->
    case beamway_port:rdma_listen(Port, Ip, Range, RingBytes) of
        ok ->
            case await(Port, deadline(?LISTEN_MS)) of
                {listening, CmPort, Token, Device} -> {ok, {CmPort, Token, Device}};
                {failed, Reason} -> {error, Reason}
            end;
        {error, Reason} ->
            {error, Reason}
    end.

%% @private
-spec join(beamway_wire:packet(), beamway_config:config(), RingBytes :: pos_integer(), Deadline :: integer()) ->
          {ok, port(), Why :: binary()} | {error, Reason :: binary()}.
join({rdma_offer, #{addresses := Addresses, ring_bytes := Offered} = Offer}, Config, RingBytes, Deadline) ->
    Half = deadline((Deadline - erlang:monotonic_time(millisecond)) div 2),
    case beamway_rdma_devices:routes(ports(Config), Addresses) of
        [] -> {error, iolist_to_binary(["no rdma device here reaches ", texts(Addresses)])};
        Routes -> join_one_of(Routes, Offer, min(Offered, RingBytes), Half, [])
    end;
join(_Packet, _Config, _RingBytes, _Deadline) ->
    {error, <<"an offer of another kind of link">>}.

%% Each gets an equal part of the time that is left.
join_one_of([], _Offer, _RingBytes, _Deadline, Reasons) ->
    {error, iolist_to_binary(lists:join("; ", lists:reverse(Reasons)))};
join_one_of([Ip | More], Offer, RingBytes, Deadline, Reasons) ->
    Ms = max(?CONNECT_MIN_MS, (Deadline - erlang:monotonic_time(millisecond)) div (1 + length(More))),
    case beamway_port:opened(fun(Port) -> connect(Port, Ip, Offer, RingBytes, Ms) end) of
        {ok, Port, Device} -> {ok, Port, why(Device)};
        {error, Reason} -> join_one_of(More, Offer, RingBytes, Deadline, [Reason | Reasons])
    end.

connect(Port, Ip, #{port := CmPort, token := Token}, RingBytes, Ms) ->
    case beamway_port:rdma_connect(Port, Ip, CmPort, Token, RingBytes, Ms) of
        ok -> linked(Port, await(Port, deadline(Ms)));
        {error, Reason} -> {error, Reason}
    end.

%% @private
-spec accept(port(), RingBytes :: pos_integer(), Deadline :: integer()) ->
          {ok, Why :: binary()} | {error, Reason :: binary()}.
accept(Port, _RingBytes, Deadline) ->
    case linked(Port, await_more(Port, Deadline)) of
        {ok, Device} -> {ok, why(Device)};
        {error, Reason} -> {error, Reason}
    end.

%% @private What failed on this side the peer sees only as a refusal.
-spec refused(port(), PeerSays :: binary()) -> Reason :: binary().
refused(Port, PeerSays) ->
    case beamway_port:rdma_status(Port) of
        {failed, Reason} -> Reason;
        _ -> PeerSays
    end.

%% What else the driver has said is of no interest to the process's next life as a ticker.
linked(Port, {linked, Device}) ->
    receive {rdma, Port} -> linked(Port, {linked, Device}) after 0 -> {ok, Device} end;
linked(_Port, {failed, Reason}) ->
    {error, Reason};
linked(_Port, {listening, _, _, _}) ->
    {error, <<"nobody came to the rdma listener in time">>}.

%% The first news.
await(Port, Deadline) ->
    case beamway_port:rdma_status(Port) of
        working ->
            case has_news(Port, Deadline) of
                true -> await(Port, Deadline);
                false -> {failed, <<"rdma: no answer in time">>}
            end;
        News ->
            News
    end.

%% The next ones, of a port that listens.
await_more(Port, Deadline) ->
    case await(Port, Deadline) of
        {listening, _, _, _} = Listening ->
            case has_news(Port, Deadline) of
                true -> await_more(Port, Deadline);
                false -> Listening
            end;
        News ->
            News
    end.

%% Of a failed port comes an exit signal too: this process ends with it, as with any link.
has_news(Port, Deadline) ->
    receive
        {rdma, Port} -> true
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        false
    end.

deadline(Ms) -> erlang:monotonic_time(millisecond) + Ms.

why(Device) -> <<"rdma device ", Device/binary>>.

texts(Addresses) -> lists:join(", ", [text(Ip) || Ip <- Addresses]).

text(Ip) -> inet:ntoa(Ip).
