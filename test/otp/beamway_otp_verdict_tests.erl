%% SPDX-License-Identifier: Apache-2.0
%% The verdicts of `make test-otp' must not depend on what OTP's suites happen to do today.
-module(beamway_otp_verdict_tests).

-include_lib("eunit/include/eunit.hrl").

-define(FOREIGN, <<"the peer does not speak beamway">>).

result(Word) -> #{word => Word, shm => 2, tcp_links => #{}}.

stored(Tcp, Beamway) -> #{tcp => Tcp, beamway => Beamway, shm => 2, tcp_links => #{}}.

problems(Word, Tcp, Stored) -> beamway_otp_verdict:problems(result(Word), Tcp, Stored, true).

bad() -> [failed, died, skipped, not_run].

what_passes_is_no_problem_test_() ->
    [?_assertEqual([], problems(Word, Tcp, Stored))
     || Word <- [passed, flaky], Tcp <- [passed, failed, unknown],
        Stored <- [none, stored(passed, passed), stored(passed, failed), stored(failed, failed)]].

what_passed_once_must_pass_test_() ->
    [?_assertEqual([stored_as_passed], problems(Word, Tcp, stored(passed, Before)))
     || Word <- bad(), Tcp <- [passed, failed, unknown], Before <- [passed, flaky]].

a_new_case_must_pass_test_() ->
    [?_assertEqual([new_failure], problems(Word, passed, none)) || Word <- bad()]
        ++ [?_assertEqual([new_failure], problems(failed, failed, none)),
            ?_assertEqual([], problems(skipped, skipped, none))].

stock_tcp_is_the_oracle_test_() ->
    [?_assertEqual([passes_on_tcp], problems(failed, passed, stored(failed, failed))),
     ?_assertEqual([], problems(failed, failed, stored(failed, failed))),
     ?_assertEqual([], problems(failed, passed, stored(passed, failed)))].

links_over_tcp_need_a_known_reason_test_() ->
    Foreign = (result(passed))#{tcp_links => #{?FOREIGN => 1}},
    Refused = (result(passed))#{tcp_links => #{<<"no memory">> => 1}},
    Known = (stored(passed, passed))#{tcp_links => #{?FOREIGN => 3}},
    Judge = fun(Result, Stored) -> beamway_otp_verdict:problems(Result, passed, Stored, true) end,
    [?_assertEqual([], Judge(Foreign, none)),
     ?_assertEqual([], Judge(Foreign, Known)),
     ?_assertEqual([{fell_back, ?FOREIGN}], Judge(Foreign, stored(passed, passed))),
     ?_assertEqual([{fell_back, <<"no memory">>}], Judge(Refused, none)),
     ?_assertEqual([{fell_back, <<"no memory">>}], Judge(Refused, Known)),
     ?_assertEqual([], beamway_otp_verdict:problems(Refused, passed, Known, false))].

a_case_without_its_links_proves_nothing_test_() ->
    Without = (result(passed))#{shm => 0},
    [?_assertEqual([no_shared_memory], beamway_otp_verdict:problems(Without, passed, stored(passed, passed), true)),
     ?_assertEqual([], beamway_otp_verdict:problems(Without, passed, none, true)),
     ?_assertEqual([], beamway_otp_verdict:problems(Without, passed, (stored(passed, passed))#{shm => 1}, true)),
     ?_assertEqual([], beamway_otp_verdict:problems(Without, passed, stored(passed, passed), false))].

lists_test() ->
    Ids = #{passed => stored(passed, passed), differs => stored(flaky, failed), both => stored(failed, died),
            skipped => stored(skipped, skipped), unequal => stored(failed, skipped), better => stored(failed, passed)},
    ?assertEqual([differs], beamway_otp_verdict:differences(Ids)),
    ?assertEqual([both, unequal], beamway_otp_verdict:common_failures(Ids)).

every_problem_is_described_test_() ->
    [?_assertMatch(<<_, _/binary>>, unicode:characters_to_binary(beamway_otp_verdict:describe(Problem)))
     || Problem <- [stored_as_passed, passes_on_tcp, new_failure, no_shared_memory, {fell_back, <<"why">>}]].
