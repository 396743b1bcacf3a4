%% SPDX-License-Identifier: Apache-2.0
%% @doc The carrier `erl -proto_dist beamway_tls -ssl_dist_optfile FILE'.
%%
%% The wire is that of OTP's `inet_tls', so the two work together. The handshake, and between two
%% hosts everything else, travels over TLS; two nodes of one host and user that both allow it agree,
%% on that authenticated connection, on shared memory for the data. Options: {@link
%% beamway_tls_options}.
-module(beamway_tls_dist).

-define(FAMILY, inet_tcp).
-define(STREAM, beamway_stream_tls).
-include("beamway_dist.hrl").
