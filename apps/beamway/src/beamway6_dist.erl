%% SPDX-License-Identifier: Apache-2.0
%% @doc The carrier `erl -proto_dist beamway6': {@link beamway_dist} over IPv6.
-module(beamway6_dist).

-define(FAMILY, inet6_tcp).
-define(STREAM, beamway_stream_tcp).
-include("beamway_dist.hrl").
