%% SPDX-License-Identifier: Apache-2.0
%% @doc The carrier `erl -proto_dist beamway'.
%%
%% To epmd and to every peer, a Beamway node looks like an inet_tcp node: it listens on TCP, and uses OTP's own code for listening, accepting and
%% finding peers. Only the connection processes are ours ({@link beamway_dist_setup}). {@link beamway6_dist} does the same over IPv6, and {@link
%% beamway_tls_dist} and {@link beamway6_tls_dist} over TLS.
-module(beamway_dist).

-define(FAMILY, inet_tcp).
-define(STREAM, beamway_stream_tcp).
-include("beamway_dist.hrl").
