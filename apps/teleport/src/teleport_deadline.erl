%% SPDX-License-Identifier: Apache-2.0
%% @doc One limit for several waits in a row: a time of `erlang:monotonic_time(millisecond)'.
-module(teleport_deadline).

-export([in/1, left/1, of_limit/1]).
-export_type([deadline/0, limit/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type deadline() :: integer() | infinity.
-type limit() :: timeout() | {abs, Ms :: integer()}.

%% @doc When so many milliseconds from now will have passed.
-spec in(timeout()) -> deadline().
in(infinity) -> infinity;
in(Ms) when is_integer(Ms), Ms >= 0 -> now_ms() + Ms.

%% @doc How many milliseconds are left: 0 from the deadline on.
-spec left(deadline()) -> timeout().
left(infinity) -> infinity;
left(Deadline) -> max(0, Deadline - now_ms()).

%% @doc How many milliseconds are left of a limit as OTP's functions for responses take it.
-spec of_limit(limit()) -> timeout().
of_limit({abs, Ms}) -> left(Ms);
of_limit(Timeout) -> Timeout.

now_ms() -> erlang:monotonic_time(millisecond).

-ifdef(TEST).

left_test_() ->
    [?_assertEqual(infinity, left(in(infinity))), ?_assertEqual(0, left(in(0))), ?_assertEqual(0, left(now_ms() - 1)),
     ?_assert(lists:member(left(in(60000)), lists:seq(59000, 60000))), ?_assertError(function_clause, in(-1))].

-endif.
