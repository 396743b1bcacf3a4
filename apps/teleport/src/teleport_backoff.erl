%% SPDX-License-Identifier: Apache-2.0
%% @doc How long to wait before the next attempt: twice as long each time up to a limit, with jitter, so that many nodes that lost the
%% same peer do not come back in the same moment. Pure but for the random number.
-module(teleport_backoff).

-export([pause_ms/2, pause_ms/3]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% @doc The pause after so many failures in a row (1 or more).
-spec pause_ms(Failures :: pos_integer(), {Shortest :: pos_integer(), Longest :: pos_integer()}) -> pos_integer().
pause_ms(Failures, Limits) ->
    pause_ms(Failures, Limits, rand:uniform()).

%% @doc The same with the random number, from 0.0 to 1.0: half of the pause is fixed.
-spec pause_ms(pos_integer(), {pos_integer(), pos_integer()}, float()) -> pos_integer().
pause_ms(Failures, {Shortest, Longest}, Random) ->
    Full = min(Longest, Shortest bsl min(Failures - 1, 30)),
    max(1, round(Full / 2 + Random * Full / 2)).

-ifdef(TEST).

pauses_test_() ->
    [?_assertEqual(Want, pause_ms(Failures, {100, 10000}, Random))
     || {Want, Failures, Random} <- [{100, 1, 1.0}, {50, 1, 0.0}, {200, 2, 1.0}, {10000, 100000, 1.0}, {5000, 20, 0.0}, {6400, 7, 1.0}]]
        ++ [?_assertEqual(1, pause_ms(1, {1, 1}, 0.0)),
            ?_assert(lists:all(fun(N) -> lists:member(pause_ms(N, {100, 1000}), lists:seq(50, 1000)) end, lists:seq(1, 50)))].

-endif.
