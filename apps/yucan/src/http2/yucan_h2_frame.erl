%% SPDX-License-Identifier: Apache-2.0
%% @doc Parses and encodes HTTP/2 frames (RFC 9113, 4 and 6). All functions are pure. This module determines which frames are well-formed;
%% yucan_h2_state determines what they mean.
-module(yucan_h2_frame).
-dialyzer(no_improper_lists).

-export([parse/2, data/3, headers/4, settings/1, settings_ack/0, ping_ack/1, reset/2, goaway/2, window_update/2]).
-export_type([frame/0, code/0, setting/0]).

-type id() :: non_neg_integer().
-type code() :: no_error | protocol_error | internal_error | flow_control_error | stream_closed | frame_size_error | refused_stream | cancel
    | compression_error | enhance_your_calm.
-type setting() :: {header_table_size | enable_push | max_concurrent_streams | initial_window_size | max_frame_size | max_header_list_size
    | enable_connect_protocol, non_neg_integer()}.
%% `Size' is the size of the payload including padding, because padding also counts for flow control.
-type frame() ::
    {data, id(), Fin :: boolean(), binary(), Size :: non_neg_integer()}
    | {headers, id(), Fin :: boolean(), Complete :: boolean(), Fragment :: binary()}
    | {continuation, id(), Complete :: boolean(), Fragment :: binary()}
    | {priority, id()} | {rst_stream, id()} | {settings, [setting()]} | settings_ack | {ping, binary()} | ping_ack | goaway
    | {window_update, id(), pos_integer()} | unknown.

-define(MAX_WINDOW, 16#7fffffff).

%% @doc Returns the next frame, or an error: a connection error closes the connection, and a stream error closes only the stream.
-spec parse(binary(), MaxBytes :: pos_integer()) ->
    {frame(), Rest :: binary()} | more | {connection_error, code()} | {stream_error, id(), code(), Rest :: binary()}.
parse(<<Length:24, _/binary>>, Max) when Length > Max -> {connection_error, frame_size_error};
parse(<<Length:24, Type, Flags, _:1, Id:31, Payload:Length/binary, Rest/binary>>, _) ->
    case frame(Type, Flags, Id, Payload) of
        {connection_error, _} = Error -> Error;
        {stream_error, Code} -> {stream_error, Id, Code, Rest};
        Frame -> {Frame, Rest}
    end;
parse(_, _) -> more.

-define(IS_SET(Flags, Flag), (Flags band Flag =/= 0)).
-define(END_STREAM, 1).
-define(ACK, 1).
-define(END_HEADERS, 4).
-define(PADDED, 8).
-define(PRIORITY, 16#20).

frame(0, _, 0, _) -> {connection_error, protocol_error};
frame(0, Flags, Id, Payload) ->
    case unpadded(Flags, Payload) of
        error -> {connection_error, protocol_error};
        Data -> {data, Id, ?IS_SET(Flags, ?END_STREAM), Data, byte_size(Payload)}
    end;
frame(1, _, 0, _) -> {connection_error, protocol_error};
frame(1, Flags, Id, Payload) ->
    case {unpadded(Flags, Payload), ?IS_SET(Flags, ?PRIORITY)} of
        {error, _} -> {connection_error, protocol_error};
        {Fragment, false} -> {headers, Id, ?IS_SET(Flags, ?END_STREAM), ?IS_SET(Flags, ?END_HEADERS), Fragment};
        %% A stream must not depend on itself. Apart from that, priorities are ignored (5.3.2).
        {<<_:1, Id:31, _, _/binary>>, true} -> {connection_error, protocol_error};
        {<<_:40, Fragment/binary>>, true} -> {headers, Id, ?IS_SET(Flags, ?END_STREAM), ?IS_SET(Flags, ?END_HEADERS), Fragment};
        {_, true} -> {connection_error, frame_size_error}
    end;
frame(2, _, 0, _) -> {connection_error, protocol_error};
frame(2, _, Id, <<_:1, Id:31, _>>) -> {stream_error, protocol_error};
frame(2, _, Id, <<_:40>>) -> {priority, Id};
frame(2, _, _, _) -> {stream_error, frame_size_error};
frame(3, _, 0, _) -> {connection_error, protocol_error};
frame(3, _, Id, <<_:32>>) -> {rst_stream, Id};
frame(3, _, _, _) -> {connection_error, frame_size_error};
frame(4, _, Id, _) when Id > 0 -> {connection_error, protocol_error};
frame(4, Flags, _, <<>>) when ?IS_SET(Flags, ?ACK) -> settings_ack;
frame(4, Flags, _, Payload) when ?IS_SET(Flags, ?ACK); byte_size(Payload) rem 6 =/= 0 -> {connection_error, frame_size_error};
frame(4, _, _, Payload) -> settings(Payload, []);
%% A client must not send PUSH_PROMISE.
frame(5, _, _, _) -> {connection_error, protocol_error};
frame(6, _, Id, _) when Id > 0 -> {connection_error, protocol_error};
frame(6, Flags, _, <<_:64>>) when ?IS_SET(Flags, ?ACK) -> ping_ack;
frame(6, _, _, <<_:64>> = Opaque) -> {ping, Opaque};
frame(6, _, _, _) -> {connection_error, frame_size_error};
frame(7, _, Id, _) when Id > 0 -> {connection_error, protocol_error};
frame(7, _, _, <<_:64, _/binary>>) -> goaway;
frame(7, _, _, _) -> {connection_error, frame_size_error};
frame(8, _, 0, <<_:1, 0:31>>) -> {connection_error, protocol_error};
frame(8, _, _, <<_:1, 0:31>>) -> {stream_error, protocol_error};
frame(8, _, Id, <<_:1, Increment:31>>) -> {window_update, Id, Increment};
frame(8, _, _, _) -> {connection_error, frame_size_error};
frame(9, _, 0, _) -> {connection_error, protocol_error};
frame(9, Flags, Id, Fragment) -> {continuation, Id, ?IS_SET(Flags, ?END_HEADERS), Fragment};
frame(_, _, _, _) -> unknown.

unpadded(Flags, Payload) when not ?IS_SET(Flags, ?PADDED) -> Payload;
unpadded(_, <<Padding, Rest/binary>>) when Padding =< byte_size(Rest) -> binary_part(Rest, 0, byte_size(Rest) - Padding);
unpadded(_, _) -> error.

%% The order of the settings matters, because a later value overrides an earlier one.
settings(<<1:16, Value:32, Rest/binary>>, Done) -> settings(Rest, [{header_table_size, Value} | Done]);
settings(<<2:16, Value:32, Rest/binary>>, Done) when Value =< 1 -> settings(Rest, [{enable_push, Value} | Done]);
settings(<<2:16, _/binary>>, _) -> {connection_error, protocol_error};
settings(<<4:16, Value:32, Rest/binary>>, Done) when Value =< ?MAX_WINDOW -> settings(Rest, [{initial_window_size, Value} | Done]);
settings(<<4:16, _/binary>>, _) -> {connection_error, flow_control_error};
settings(<<5:16, Value:32, Rest/binary>>, Done) when Value >= 16384, Value =< 16777215 -> settings(Rest, [{max_frame_size, Value} | Done]);
settings(<<5:16, _/binary>>, _) -> {connection_error, protocol_error};
settings(<<8:16, Value:32, Rest/binary>>, Done) when Value =< 1 -> settings(Rest, [{enable_connect_protocol, Value} | Done]);
settings(<<8:16, _/binary>>, _) -> {connection_error, protocol_error};
settings(<<_:48, Rest/binary>>, Done) -> settings(Rest, Done);
settings(<<>>, Done) -> {settings, lists:reverse(Done)}.

%% @doc Encodes a part of a body, which must fit into a single frame.
-spec data(id(), Fin :: boolean(), iodata()) -> iodata().
data(Id, Fin, Data) -> [<<(iolist_size(Data)):24, 0, (flag(Fin, ?END_STREAM)), Id:32>> | Data].

%% @doc Encodes a header block, in frames of at most `Max' bytes.
-spec headers(id(), Fin :: boolean(), Block :: iodata(), Max :: pos_integer()) -> iodata().
headers(Id, Fin, Block, Max) ->
    case iolist_size(Block) of
        Size when Size =< Max -> [<<Size:24, 1, (flag(Fin, ?END_STREAM) bor ?END_HEADERS), Id:32>> | Block];
        _ ->
            <<First:Max/binary, Rest/binary>> = iolist_to_binary(Block),
            [<<Max:24, 1, (flag(Fin, ?END_STREAM)), Id:32>>, First | continued(Id, Rest, Max)]
    end.

continued(Id, Block, Max) when byte_size(Block) =< Max -> [<<(byte_size(Block)):24, 9, ?END_HEADERS, Id:32>>, Block];
continued(Id, Block, Max) ->
    <<Part:Max/binary, Rest/binary>> = Block,
    [<<Max:24, 9, 0, Id:32>>, Part | continued(Id, Rest, Max)].

flag(true, Flag) -> Flag;
flag(false, _) -> 0.

%% @doc Encodes the server's settings.
-spec settings([setting()]) -> binary().
settings(Settings) ->
    Payload = << <<(setting(Name)):16, Value:32>> || {Name, Value} <- Settings >>,
    <<(byte_size(Payload)):24, 4, 0, 0:32, Payload/binary>>.

setting(header_table_size) -> 1;
setting(enable_push) -> 2;
setting(max_concurrent_streams) -> 3;
setting(initial_window_size) -> 4;
setting(max_frame_size) -> 5;
setting(max_header_list_size) -> 6;
setting(enable_connect_protocol) -> 8.

%% @doc Encodes the acknowledgement of the client's settings.
-spec settings_ack() -> binary().
settings_ack() -> <<0:24, 4, ?ACK, 0:32>>.

%% @doc Encodes the response to a ping.
-spec ping_ack(binary()) -> binary().
ping_ack(Opaque) -> <<8:24, 6, ?ACK, 0:32, Opaque/binary>>.

%% @doc Encodes the frame that resets a stream.
-spec reset(id(), code()) -> binary().
reset(Id, Code) -> <<4:24, 3, 0, Id:32, (number(Code)):32>>.

%% @doc Encodes the frame that tells the client that streams after `Last' will not be processed.
-spec goaway(Last :: id(), code()) -> binary().
goaway(Last, Code) -> <<8:24, 7, 0, 0:32, Last:32, (number(Code)):32>>.

%% @doc Encodes a window update: the client may send this many more bytes.
-spec window_update(id(), pos_integer()) -> binary().
window_update(Id, Increment) -> <<4:24, 8, 0, Id:32, Increment:32>>.

number(no_error) -> 0;
number(protocol_error) -> 1;
number(internal_error) -> 2;
number(flow_control_error) -> 3;
number(stream_closed) -> 5;
number(frame_size_error) -> 6;
number(refused_stream) -> 7;
number(cancel) -> 8;
number(compression_error) -> 9;
number(enhance_your_calm) -> 11.
