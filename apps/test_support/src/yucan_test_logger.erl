%% SPDX-License-Identifier: Apache-2.0
%% @doc A `logger' handler that forwards log events to a process.
-module(yucan_test_logger).

-export([log/2]).

%% @doc Passes on only what yucan logs.
-spec log(logger:log_event(), logger:handler_config()) -> term().
log(#{meta := #{mfa := {yucan_events, _, _}}} = Event, #{config := #{pid := Pid}}) -> Pid ! {logged, Event};
log(_, _) -> ok.
