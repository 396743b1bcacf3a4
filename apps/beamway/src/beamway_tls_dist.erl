%% SPDX-License-Identifier: Apache-2.0
%% @doc The carrier `erl -proto_dist beamway_tls -ssl_dist_optfile FILE'.
%%
%% The wire protocol is that of OTP's `inet_tls', so the two interoperate. The handshake uses TLS, and between two hosts so does everything else. If
%% two nodes of the same user on the same host both allow it, they agree over that authenticated connection to use shared memory for the data.
%% {@link beamway_tls_options} describes the options.
-module(beamway_tls_dist).

-define(FAMILY, inet_tcp).
-define(STREAM, beamway_stream_tls).
-include("beamway_dist.hrl").
