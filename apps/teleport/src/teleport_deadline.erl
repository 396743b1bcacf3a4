%% SPDX-License-Identifier: Apache-2.0
%% @doc A time limit shared by several consecutive waits. It is stored as a value of `erlang:monotonic_time(millisecond)'.
-module(teleport_deadline).

-export([in/1, left/1]).
-export_type([deadline/0]).

-type deadline() :: integer() | infinity.

%% @doc Returns the deadline that is this many milliseconds from now.
-spec in(timeout()) -> deadline().
in(infinity) -> infinity;
in(Ms) when is_integer(Ms), Ms >= 0 -> now_ms() + Ms.

%% @doc Returns how many milliseconds remain; 0 once the deadline has passed.
-spec left(deadline()) -> timeout().
left(infinity) -> infinity;
left(Deadline) -> max(0, Deadline - now_ms()).

now_ms() -> erlang:monotonic_time(millisecond).
