%% SPDX-License-Identifier: Apache-2.0
%% @doc What two Beamway nodes say to each other on the TCP socket, as bytes.
%%
%% First the extension: a few bytes after the node name in the two `N' messages of the ordinary
%% distribution handshake. Every other implementation ignores what stands there. Then, once both
%% are authenticated, three packets that agree on a link: an offer, `ready' or `nack' as its answer,
%% and `ready' or `nack' from the side that offered.
%%
%% Pure; used by {@link beamway_dist_setup}. All that is decoded here comes from the peer: whatever
%% is not exactly right gives `none' or `{error, Reason}', never an exception.
-module(beamway_wire).

-export([encode_extension/1, find_extension/2, check_name/1, encode/1, decode/1]).
-include_lib("kernel/include/dist.hrl").

-export_type([extension/0, packet/0, offer/0]).

-define(EXTENSION_MAGIC, "BWay").
-define(EXTENSION_VERSION, 1).
-define(PACKET_VERSION, 1).
-define(HAS_SHM, 1).
-define(WANTS_WHOLE_MESSAGES, 2).

-type extension() :: #{host := <<_:128>>,
                       links := [shm],
                       whole_messages := boolean()}.
%% `host': a digest that is the same for two nodes only if they run under the same kernel.
%% `links': what the node allows besides TCP.

-type offer() :: #{address := binary(), token := <<_:128>>, ring_bytes := pos_integer()}.

-type packet() :: {offer, offer()} | ready | {nack, Reason :: binary()}.

%% @doc The bytes that follow the node name. A later version may append fields, not change these.
-spec encode_extension(extension()) -> binary().
encode_extension(#{host := Host, links := Links, whole_messages := Whole}) ->
    Flags = flag(lists:member(shm, Links), ?HAS_SHM) bor flag(Whole, ?WANTS_WHOLE_MESSAGES),
    Body = <<Host:16/binary, Flags:16>>,
    <<?EXTENSION_MAGIC, ?EXTENSION_VERSION, (byte_size(Body)):16, Body/binary>>.

flag(true, Bit) -> Bit;
flag(false, _Bit) -> 0.

%% @doc Looks for the extension in a whole `N' message: `name' is the caller's, `challenge' the
%% acceptor's.
-spec find_extension(name | challenge, iodata()) -> {ok, extension()} | none.
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
        <<Host:16/binary, Flags:16, _Later/binary>> ->
            {ok, #{host => Host,
                   links => [shm || Flags band ?HAS_SHM =/= 0],
                   whole_messages => Flags band ?WANTS_WHOLE_MESSAGES =/= 0}};
        _ ->
            none
    end;
decode_extension(_) ->
    none.

%% @doc Can this be given to OTP's handshake as a caller's first packet? OTP trusts its lengths, and a
%% host name that is too long for an atom ends net_kernel, and with it every connection.
-spec check_name(iodata()) -> ok | {error, Reason :: binary()}.
check_name(Packet) ->
    case iolist_to_binary(Packet) of
        <<$N, Flags:64, _Creation:32, Len:16, _Name:Len/binary, _/binary>> ->
            check_length(Len, Flags band ?DFLAG_NAME_ME =/= 0);
        <<$N, _/binary>> ->
            {error, <<"the name is longer than the packet">>};
        <<Tag, _/binary>> ->
            {error, iolist_to_binary(io_lib:format("tag ~b instead of ~b", [Tag, $N]))};
        <<>> ->
            {error, <<"an empty packet">>}
    end.

%% An atom has at most 255 characters; a node that asks for a name gets one of up to 13 and `@'.
check_length(Len, _NameMe = false) when Len > 0, Len =< 255 -> ok;
check_length(Len, _NameMe = true) when Len > 0, Len =< 241 -> ok;
check_length(Len, _) -> {error, iolist_to_binary(io_lib:format("a name of ~b bytes", [Len]))}.

%% @doc One packet of the agreement.
-spec encode(packet()) -> binary().
encode({offer, #{address := Address, token := Token, ring_bytes := RingBytes}}) ->
    <<?PACKET_VERSION, $o, RingBytes:64, Token:16/binary, Address/binary>>;
encode(ready) ->
    <<?PACKET_VERSION, $r>>;
encode({nack, Reason}) ->
    <<?PACKET_VERSION, $n, Reason/binary>>.

%% @doc The reason of an error is for the log.
-spec decode(iodata()) -> {ok, packet()} | {error, Reason :: binary()}.
decode(Packet) ->
    case iolist_to_binary(Packet) of
        <<?PACKET_VERSION, $o, RingBytes:64, Token:16/binary, Address/binary>>
          when RingBytes > 0, Address =/= <<>> ->
            {ok, {offer, #{address => Address, token => Token, ring_bytes => RingBytes}}};
        <<?PACKET_VERSION, $r>> ->
            {ok, ready};
        <<?PACKET_VERSION, $n, Reason/binary>> ->
            {ok, {nack, printable(Reason)}};
        <<?PACKET_VERSION, _/binary>> ->
            {error, <<"not a packet of the link agreement">>};
        <<Version, _/binary>> ->
            {error, iolist_to_binary(io_lib:format("version ~b of the link agreement, expected ~b",
                                                   [Version, ?PACKET_VERSION]))};
        <<>> ->
            {error, <<"an empty packet in the link agreement">>}
    end.

%% The peer's words go to our log: at most a line of plain characters.
printable(Reason) ->
    << <<(if C >= 32, C < 127 -> C; true -> $? end)>>
       || <<C>> <= binary:part(Reason, 0, min(200, byte_size(Reason))) >>.
