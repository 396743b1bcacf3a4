%% SPDX-License-Identifier: Apache-2.0
%% Tests a single time limit for several waits.
-module(teleport_deadline_tests).

-include_lib("eunit/include/eunit.hrl").

left_of(Timeout) -> teleport_deadline:left(teleport_deadline:in(Timeout)).

left_test_() ->
    [?_assertEqual(infinity, left_of(infinity)), ?_assertEqual(0, left_of(0)), ?_assertEqual(0, teleport_deadline:left(erlang:monotonic_time(millisecond) - 1)),
     ?_assert(lists:member(left_of(60000), lists:seq(59000, 60000))), ?_assertError(function_clause, left_of(-1))].
