%% SPDX-License-Identifier: Apache-2.0
%% @doc The carrier `erl -proto_dist beamway6_tls': {@link beamway_tls_dist} over IPv6.
-module(beamway6_tls_dist).

-define(FAMILY, inet6_tcp).
-define(STREAM, beamway_stream_tls).
-include("beamway_dist.hrl").
