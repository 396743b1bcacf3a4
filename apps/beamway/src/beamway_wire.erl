%% SPDX-License-Identifier: Apache-2.0
%% @doc The bytes that two Beamway nodes send each other on the TCP socket.
%%
%% First comes the extension: a few bytes after the node name in the two `N' messages of the ordinary distribution handshake, which every other
%% implementation ignores. Once both nodes are authenticated, they agree on a link with three packets: an offer, `ready' or `nack' as its answer,
%% and `ready' or `nack' from the side that made the offer.
%%
%% The functions are pure. All data decoded here comes from the peer, so anything that is not exactly right results in `none' or `{error, Reason}',
%% never in an exception.
-module(beamway_wire).

-export([encode_extension/1, find_extension/2, check_name/1, name/1, encode/1, decode/1]).
-export([another_version/1, another_extension/1, printable/1]).
-include_lib("kernel/include/dist.hrl").

-export_type([extension/0, found/0, packet/0, offer/0, rdma_offer/0]).

-define(EXTENSION_MAGIC, "BWay").
-define(EXTENSION_VERSION, 1).
-define(PACKET_VERSION, 1).
-define(TAKES_TLS_OVER, 8).
-define(HEARS_LOAD, 16).
-define(COMPRESSES, 128).
-define(RENEWS, 256).
-define(ADDRESSES_MAX, 16).
-define(CONNECTIONS_AUTO, 255).

-type extension() :: #{host := <<_:128>>,
                       links := [beamway_kind:ring()],
                       used_up := [beamway_kind:ring()],
                       takes_tls_over := boolean(),
                       hears_load := boolean(),
                       compresses := boolean(),
                       renews := boolean(),
                       resume_ms := non_neg_integer(),
                       listens := inet:port_number(),
                       connections := none | auto | 1..8}.
%% `host' is a digest that is the same for two nodes only if they run under the same kernel. `links' are the links that the node allows in addition to
%% its stream; `rdma' is among them only if the node has a device that can be used now. `used_up' are the links that the node would also allow if its
%% ring memory for them were not used up. If a node's version does not report this, the shortage is discovered only while the nodes agree on a link.
%% `takes_tls_over' means that the node's driver can carry a connection over TLS, and `hears_load' that its driver understands frames with a peer's
%% load. `compresses' means that the node accepts compressed packets over this connection, and wants them. `renews' means that the node can answer a
%% peer that moves their link to a new connection with certificates. `resume_ms' is how long its links wait for a new connection after losing theirs;
%% 0, which is also assumed for versions that do not send it, means that they do not wait. `listens' is the port on which the node accepts connections
%% from other nodes; 0 means that it accepts none. `connections' is how many connections a link may have; it is `none' for versions that do not send
%% it, and without `resume_ms'.

-type found() :: {ok, extension()} | {other_version, byte()} | none.
%% The extension after a peer's name; `none' means that the peer does not run Beamway.

-type offer() :: #{address := binary(), token := <<_:128>>, ring_bytes := pos_integer()}.

-type rdma_offer() :: #{device := binary(),
                        addresses := [inet:ip_address(), ...],
                        port := inet:port_number(),
                        token := <<_:128>>,
                        ring_bytes := pos_integer()}.
%% `port' is from librdmacm's port space, not from TCP's. `device' is only shown to people.

-type packet() :: {offer, offer()} | {rdma_offer, rdma_offer()} | {offer_of_version, byte()} | ready | resumes | {secret, <<_:256>>}
                | {nack, Reason :: binary()}.
%% `resumes' means that this side's link over the stream can outlive its connection; like `nack', it has the same format in every version. `secret' is
%% one half of the key with which TLS continues in the driver; each side contributes a half. `offer_of_version' is an offer in a version other than
%% ours, which must be answered with `nack'.

%% @doc Returns the bytes that follow the node name. A later version may append fields without increasing the version number. A version with a new
%% number may change everything except the magic, the position of the number, and the length.
-spec encode_extension(extension()) -> binary().
encode_extension(#{host := Host, links := Links, used_up := UsedUp, takes_tls_over := Takes, hears_load := Hears, compresses := Compresses, renews := Renews, resume_ms := ResumeMs, listens := Port, connections := Connections}) ->
    Flags = beamway_kind:to_flags(flag, Links) bor beamway_kind:to_flags(used_up_flag, UsedUp) bor flag(Takes, ?TAKES_TLS_OVER)
        bor flag(Hears, ?HEARS_LOAD) bor flag(Compresses, ?COMPRESSES) bor flag(Renews, ?RENEWS),
    Body = <<Host:16/binary, Flags:16, ResumeMs:32, Port:16, (connections_to_byte(Connections))>>,
    <<?EXTENSION_MAGIC, ?EXTENSION_VERSION, (byte_size(Body)):16, Body/binary>>.

resume(<<Ms:32, Port:16, Connections, _Later/binary>>) -> {Ms, Port, connections_of_byte(Connections)};
resume(<<Ms:32, Port:16>>) -> {Ms, Port, none};
resume(_) -> {0, 0, none}.

connections_to_byte(none) -> 0;
connections_to_byte(auto) -> ?CONNECTIONS_AUTO;
connections_to_byte(Number) -> Number.

connections_of_byte(?CONNECTIONS_AUTO) -> auto;
connections_of_byte(Number) when Number >= 1, Number =< 8 -> Number;
connections_of_byte(_) -> none.

flag(true, Bit) -> Bit;
flag(false, _Bit) -> 0.

%% @doc Looks for the extension in a whole `N' message: `name' is the caller's, `challenge' the acceptor's.
-spec find_extension(name | challenge, iodata()) -> found().
find_extension(Kind, Message) ->
    case {Kind, iolist_to_binary(Message)} of
        {name, <<$N, _Flags:64, _Creation:32, Len:16, _Name:Len/binary, Rest/binary>>} ->
            decode_extension(Rest);
        {challenge, <<$N, _Flags:64, _Challenge:32, _Creation:32, Len:16, _Name:Len/binary,
                      Rest/binary>>} ->
            decode_extension(Rest);
        _ ->
            none
    end.

decode_extension(<<?EXTENSION_MAGIC, ?EXTENSION_VERSION, Len:16, Body:Len/binary, _/binary>>) ->
    case Body of
        <<Host:16/binary, Flags:16, Later/binary>> ->
            {ResumeMs, Port, Connections} = resume(Later),
            {ok, #{host => Host,
                   links => beamway_kind:from_flags(flag, Flags),
                   used_up => beamway_kind:from_flags(used_up_flag, Flags),
                   takes_tls_over => Flags band ?TAKES_TLS_OVER =/= 0,
                   hears_load => Flags band ?HEARS_LOAD =/= 0,
                   compresses => Flags band ?COMPRESSES =/= 0,
                   renews => Flags band ?RENEWS =/= 0,
                   resume_ms => ResumeMs,
                   listens => Port,
                   connections => Connections}};
        _ ->
            none
    end;
decode_extension(<<?EXTENSION_MAGIC, Version, Len:16, _Body:Len/binary, _/binary>>)
  when Version =/= ?EXTENSION_VERSION ->
    {other_version, Version};
decode_extension(_) ->
    none.

%% @doc Returns whether this can be passed to OTP's handshake as a caller's first packet. OTP trusts the lengths in it, and a host name that is too
%% long for an atom crashes net_kernel, and with it every connection. dist_util of OTP 25.3 and later supports the old message `n', which nodes of
%% OTP 23 and 24 send to a node whose version epmd did not report; 25.0 to 25.2 close the connection.
-spec check_name(iodata()) -> ok | {error, Reason :: binary()}.
check_name(Packet) ->
    case iolist_to_binary(Packet) of
        <<$N, Flags:64, _Creation:32, Len:16, _Name:Len/binary, _/binary>> ->
            check_length(Len, Flags band ?DFLAG_NAME_ME =/= 0);
        <<$n, _Version:16, _LowFlags:32, Name/binary>> ->
            check_length(byte_size(Name), false);
        <<$N, _/binary>> ->
            {error, <<"the name is longer than the packet">>};
        <<Tag, _/binary>> ->
            {error, iolist_to_binary(io_lib:format("tag ~b instead of ~b", [Tag, $N]))};
        <<>> ->
            {error, <<"an empty packet">>}
    end.

%% @doc Returns the name that the caller claims in a packet that {@link check_name/1} has accepted. It is empty if the caller requests a name.
-spec name(iodata()) -> binary().
name(Packet) ->
    case iolist_to_binary(Packet) of
        <<$N, Flags:64, _Creation:32, Len:16, Name:Len/binary, _/binary>> when Flags band ?DFLAG_NAME_ME =:= 0 -> Name;
        <<$n, _Version:16, _LowFlags:32, Name/binary>> -> Name;
        _ -> <<>>
    end.

%% An atom has at most 255 characters; a node that requests a name gets one of up to 13 characters and `@'.
check_length(Len, _NameMe = false) when Len > 0, Len =< 255 -> ok;
check_length(Len, _NameMe = true) when Len > 0, Len =< 241 -> ok;
check_length(Len, _) -> {error, iolist_to_binary(io_lib:format("a name of ~b bytes", [Len]))}.

%% @doc Encodes one packet of the agreement. In every version an offer begins with its number and `o' or `d', and a `nack' has this format, so two
%% versions can always agree on TCP.
-spec encode({offer, offer()} | {rdma_offer, rdma_offer()} | ready | resumes | {secret, <<_:256>>} | {nack, Reason :: binary()}) -> binary().
encode({offer, #{address := Address, token := Token, ring_bytes := RingBytes}}) ->
    <<?PACKET_VERSION, $o, RingBytes:64, Token:16/binary, Address/binary>>;
encode({rdma_offer, #{device := Device, addresses := Addresses, port := Port, token := Token, ring_bytes := RingBytes}}) ->
    Offered = << <<(encode_address(Ip))/binary>> || Ip <- lists:sublist(Addresses, ?ADDRESSES_MAX) >>,
    <<?PACKET_VERSION, $d, RingBytes:64, Token:16/binary, Port:16, (byte_size(Device)), Device/binary, Offered/binary>>;
encode(ready) ->
    <<?PACKET_VERSION, $r>>;
encode(resumes) ->
    <<?PACKET_VERSION, $y>>;
encode({secret, Secret}) ->
    <<?PACKET_VERSION, $s, Secret:32/binary>>;
encode({nack, Reason}) ->
    <<?PACKET_VERSION, $n, Reason/binary>>.

encode_address({A, B, C, D}) -> <<4, A, B, C, D>>;
encode_address({A, B, C, D, E, F, G, H}) -> <<6, A:16, B:16, C:16, D:16, E:16, F:16, G:16, H:16>>.

%% @doc Decodes one packet of the agreement. The reason in an error is meant for the log.
-spec decode(iodata()) -> {ok, packet()} | {error, Reason :: binary()}.
decode(Packet) ->
    case iolist_to_binary(Packet) of
        <<?PACKET_VERSION, $o, RingBytes:64, Token:16/binary, Address/binary>>
          when RingBytes > 0, Address =/= <<>> ->
            {ok, {offer, #{address => Address, token => Token, ring_bytes => RingBytes}}};
        <<?PACKET_VERSION, $d, RingBytes:64, Token:16/binary, Port:16, Size, Device:Size/binary, Offered/binary>>
          when RingBytes > 0, Port > 0 ->
            rdma_offer(decode_addresses(Offered, []),
                       #{device => printable(Device), port => Port, token => Token, ring_bytes => RingBytes});
        <<?PACKET_VERSION, $r>> ->
            {ok, ready};
        <<?PACKET_VERSION, $s, Secret:32/binary>> ->
            {ok, {secret, Secret}};
        <<_AnyVersion, $y>> ->
            {ok, resumes};
        <<_AnyVersion, $n, Reason/binary>> ->
            {ok, {nack, printable(Reason)}};
        <<?PACKET_VERSION, _/binary>> ->
            {error, <<"not a packet of the link agreement">>};
        <<Version, Offer, _/binary>> when Offer =:= $o; Offer =:= $d ->
            {ok, {offer_of_version, Version}};
        <<Version, _/binary>> ->
            {error, another_version(Version)};
        <<>> ->
            {error, <<"an empty packet in the link agreement">>}
    end.

rdma_offer([_ | _] = Addresses, Offer) when length(Addresses) =< ?ADDRESSES_MAX ->
    {ok, {rdma_offer, Offer#{addresses => Addresses}}};
rdma_offer(_, _Offer) ->
    {error, <<"an offer of rdma without valid addresses">>}.

decode_addresses(<<4, A, B, C, D, More/binary>>, Read) ->
    decode_addresses(More, [{A, B, C, D} | Read]);
decode_addresses(<<6, A:16, B:16, C:16, D:16, E:16, F:16, G:16, H:16, More/binary>>, Read) ->
    decode_addresses(More, [{A, B, C, D, E, F, G, H} | Read]);
decode_addresses(<<>>, Read) ->
    lists:reverse(Read);
decode_addresses(_, _Read) ->
    [].

%% @doc Returns the reason why no link is possible with a peer whose offer or answer has this version number.
-spec another_version(byte()) -> Reason :: binary().
another_version(Version) ->
    iolist_to_binary(io_lib:format("version ~b of the link agreement, expected ~b",
                                   [Version, ?PACKET_VERSION])).

%% @doc Returns the reason why no link is possible with a peer whose extension has this version number.
-spec another_extension(byte()) -> Reason :: binary().
another_extension(Version) ->
    iolist_to_binary(io_lib:format("the peer speaks version ~b of beamway, this node version ~b",
                                   [Version, ?EXTENSION_VERSION])).

%% @doc Returns a peer's text in the form in which it may be logged: at most one line of plain characters.
-spec printable(binary()) -> binary().
printable(Reason) ->
    << <<(if C >= 32, C < 127 -> C; true -> $? end)>>
       || <<C>> <= binary:part(Reason, 0, min(200, byte_size(Reason))) >>.
