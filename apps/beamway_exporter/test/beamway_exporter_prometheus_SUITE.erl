%% SPDX-License-Identifier: Apache-2.0
%% @doc The exporter with a real Prometheus, as part of `make test-rest'. The cases are in `test/system/metrics'.
-module(beamway_exporter_prometheus_SUITE).

-export([all/0, suite/0]).
-export([prometheus/1]).

suite() -> [{timetrap, {minutes, 8}}].

all() -> [prometheus].

prometheus(_) -> test_support_system:run("metrics").
