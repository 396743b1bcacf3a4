%% SPDX-License-Identifier: Apache-2.0
%% Tests the checks of teleport's options.
-module(teleport_config_tests).

-include_lib("eunit/include/eunit.hrl").

defaults_are_valid_test() ->
    ?assertEqual(ok, teleport_config:check(teleport_config:defaults())).

bad_values_are_told_test_() ->
    [{lists:flatten(io_lib:format("~0tp", [{Name, Bad}])),
      ?_assertMatch({error, [{Name, Bad, [_ | _]}]}, teleport_config:check(#{Name => Bad}))}
     || {Name, Values} <- [{sites, [site, {m, f, a}, [], fun() -> x end]}, {max_block_bytes, [-1, infinity]}, {speed, [fast]}], Bad <- Values].

every_problem_is_told_test() ->
    {error, Problems} = teleport_config:check(#{sites => no, max_block_bytes => no, nonsense => 1}),
    ?assertEqual(3, length(Problems)),
    [?assert(is_list(teleport_config:describe(Problem))) || Problem <- Problems],
    ?assertMatch({error, [{options, 5, _}]}, teleport_config:check(5)).
