%% SPDX-License-Identifier: Apache-2.0
%% @doc One limit for several waits in a row: a time of `erlang:monotonic_time(millisecond)'.
-module(teleport_deadline).

-export([in/1, left/1]).
-export_type([deadline/0]).

-type deadline() :: integer() | infinity.

%% @doc When so many milliseconds from now will have passed.
-spec in(timeout()) -> deadline().
in(infinity) -> infinity;
in(Ms) when is_integer(Ms), Ms >= 0 -> now_ms() + Ms.

%% @doc How many milliseconds are left: 0 from the deadline on.
-spec left(deadline()) -> timeout().
left(infinity) -> infinity;
left(Deadline) -> max(0, Deadline - now_ms()).

now_ms() -> erlang:monotonic_time(millisecond).
