%% SPDX-License-Identifier: Apache-2.0
%% Both sides must come to the same choice from the same two extensions.
-module(beamway_choice_tests).

-include_lib("eunit/include/eunit.hrl").

sides() ->
    [#{host => Host, links => Links, whole_messages => Whole}
     || Host <- [<<1:128>>, <<2:128>>], Links <- [[], [shm]], Whole <- [true, false]].

kind(shm) -> shm;
kind({stream, Reason}) when is_binary(Reason) -> stream.

both_sides_agree_test_() ->
    [?_assertEqual(kind(beamway_choice:choose(A, {ok, B})), kind(beamway_choice:choose(B, {ok, A})))
     || A <- sides(), B <- sides()].

shm_only_on_one_host_and_if_both_allow_it_test_() ->
    [?_assertEqual(HostA =:= HostB andalso LinksA =:= [shm] andalso LinksB =:= [shm],
                   beamway_choice:choose(A, {ok, B}) =:= shm)
     || #{host := HostA, links := LinksA} = A <- sides(),
        #{host := HostB, links := LinksB} = B <- sides()].

reasons_test() ->
    [_, _, Allows, _ | _] = sides(),
    Forbids = Allows#{links := []},
    ?assertEqual({stream, <<"the peer does not speak beamway">>}, beamway_choice:choose(Allows, none)),
    ?assertEqual({stream, <<"the peer speaks version 2 of beamway, this node version 1">>},
                 beamway_choice:choose(Allows, {other_version, 2})),
    ?assertEqual({stream, <<"another host">>},
                 beamway_choice:choose(Allows, {ok, Allows#{host := <<3:128>>}})),
    ?assertEqual({stream, <<"shared memory is off on this node">>},
                 beamway_choice:choose(Forbids, {ok, Allows})),
    ?assertEqual({stream, <<"shared memory is off on the peer">>},
                 beamway_choice:choose(Allows, {ok, Forbids})).

whole_messages_only_where_shm_is_likely_test_() ->
    [?_assertEqual((WholeA orelse WholeB) andalso beamway_choice:choose(A, {ok, B}) =:= shm,
                   beamway_choice:whole_messages(A, {ok, B}))
     || #{whole_messages := WholeA} = A <- sides(), #{whole_messages := WholeB} = B <- sides()]
        ++ [?_assertNot(beamway_choice:whole_messages(A, B)) || A <- sides(), B <- [none, {other_version, 2}]].
