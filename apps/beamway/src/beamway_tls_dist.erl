%% SPDX-License-Identifier: Apache-2.0
%% @doc The carrier `erl -proto_dist beamway_tls -ssl_dist_optfile FILE'.
%%
%% The wire protocol is that of OTP's `inet_tls', so the two work together. The handshake, and between two hosts everything else, uses TLS. If
%% two nodes of the same user on the same host both allow it, they agree on shared memory for the data over that authenticated connection. {@link
%% beamway_tls_options} has the options.
-module(beamway_tls_dist).

-define(FAMILY, inet_tcp).
-define(STREAM, beamway_stream_tls).
-include("beamway_dist.hrl").
