%% SPDX-License-Identifier: Apache-2.0
%% @doc What carries the frames of a lane: a lane of Beamway's driver (shm, rdma, tcp), or a TLS connection of OTP's ssl.
%%
%% Both speak alike: {@link send/2} never waits and says `busy' when nothing was taken; the owner gets `{Tag, {data, Frame}}' as far as it has
%% given credit (a lane of the driver puts pieces together before: {@link beamway_lane}), `{Tag, writable}' once after each {@link tell_when_writable/1}, and last `{Tag, closed, Reason, _}'.
-module(teleport_link).

-export([agree/4, send/2, tell_when_writable/1, credit/3, close/1, tag/1, attend/2, attended/2, stats/1]).
-export_type([link/0, kind/0, tag/0, socket/0]).

-type link() :: port() | teleport_tls_link:tls_link().
-type kind() :: beamway_kind:label().
-type tag() :: port() | pid().
-type socket() :: {gen_tcp, gen_tcp:socket()} | {ssl, ssl:sslsocket()}.
%% Authenticated, passive, raw.

%% @doc Both ends call it at the same time, with the same kind of socket. The socket is consumed. `Deadline' as in
%% erlang:monotonic_time(millisecond).
-spec agree(socket(), caller | acceptor, teleport_config:config(), Deadline :: integer()) ->
          {ok, link(), kind(), Why :: binary()} | {error, Reason :: binary()}.
agree({gen_tcp, Socket}, Role, #{kinds := Kinds, ring_bytes := RingBytes} = Config, Deadline) ->
    Options = #{kinds => Kinds, ring_bytes => RingBytes, max_frame_bytes => max_frame_bytes(Config),
                parts => {teleport_frame:mark(), maps:get(max_message_bytes, Config)}, deadline => Deadline},
    case beamway_lane:agree(Socket, Role, Options) of
        {ok, Lane, #{kind := Kind, reason := Why}} -> {ok, Lane, Kind, Why};
        {error, Reason} -> {error, Reason}
    end;
agree({ssl, Socket}, _Role, #{tls := Option} = Config, _Deadline) ->
    case teleport_tls_link:start(Socket, max_frame_bytes(Config)) of
        {ok, Tls} -> {ok, Tls, tls, case Option of auto -> <<"the distribution goes over TLS">>; _ -> <<"the option tls">> end};
        {error, Reason} -> {error, Reason}
    end.

%% Pieces are small, but a peer may have a larger chunk_bytes, and a small message may be as large as its chunk.
max_frame_bytes(_) -> (1 bsl 24) + 65536.

%% @doc Any process may send. `ok': taken.
-spec send(link(), iodata()) -> ok | busy | closed.
send(Lane, Frame) when is_port(Lane) -> beamway_lane:send(Lane, Frame);
send(Tls, Frame) -> teleport_tls_link:send(Tls, Frame).

%% @doc The caller gets one `writable' as soon as the link is not busy.
-spec tell_when_writable(link()) -> ok | closed.
tell_when_writable(Lane) when is_port(Lane) -> beamway_lane:tell_when_writable(Lane);
tell_when_writable(Tls) -> teleport_tls_link:tell_when_writable(Tls).

%% @doc So many frames and bytes more may come.
-spec credit(link(), Frames :: non_neg_integer(), Bytes :: non_neg_integer()) -> ok | closed.
credit(Lane, Frames, Bytes) when is_port(Lane) -> beamway_lane:credit(Lane, Frames, Bytes);
credit(Tls, Frames, Bytes) -> teleport_tls_link:credit(Tls, Frames, Bytes).

%% @doc Orderly, by the owner.
-spec close(link()) -> ok.
close(Lane) when is_port(Lane) -> beamway_lane:close(Lane);
close(Tls) -> teleport_tls_link:close(Tls).

%% @doc What the owner's messages begin with.
-spec tag(link()) -> tag().
tag(Lane) when is_port(Lane) -> Lane;
tag(Tls) -> teleport_tls_link:tag(Tls).

%% @doc The owner does what the link asks it for ({@link beamway_lane:attend/2}). `Looks': also look for frames instead of sleeping.
-spec attend(link(), Looks :: boolean()) -> ok | closed.
attend(Lane, Looks) when is_port(Lane) -> beamway_lane:attend(Lane, Looks);
attend(_Tls, _Looks) -> ok.

%% @doc The link has asked the owner to flush, or to look. `again': it wants to be looked at again.
-spec attended(link(), flush | look) -> ok | again | asleep | closed.
attended(Lane, flush) -> beamway_lane:flush(Lane);
attended(Lane, look) -> beamway_lane:look(Lane).

%% @doc The driver's counters; empty for TLS.
-spec stats(link()) -> map() | closed.
stats(Lane) when is_port(Lane) -> beamway_lane:stats(Lane);
stats(_Tls) -> #{}.
