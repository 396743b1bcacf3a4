%% SPDX-License-Identifier: Apache-2.0
%% Both sides must make the same choice from the same two extensions.
-module(beamway_choice_tests).

-include_lib("eunit/include/eunit.hrl").

sides() ->
    [#{host => Host, links => Links, used_up => UsedUp, takes_tls_over => Takes, hears_load => true, compresses => false, renews => true, resume_ms => 0, listens => 0, connections => none}
     || Host <- [<<1:128>>, <<2:128>>], {Links, UsedUp} <- [{[], []}, {[shm], []}, {[rdma], []}, {[shm, rdma], []}, {[], [shm]}, {[rdma], [shm]}, {[shm], [rdma]}], Takes <- [true, false]].

kind(Ring) when Ring =:= shm; Ring =:= rdma -> Ring;
kind({stream, Reason}) when is_binary(Reason) -> stream.

both_sides_agree_test_() ->
    [?_assertEqual(kind(beamway_choice:choose(A, {ok, B})), kind(beamway_choice:choose(B, {ok, A})))
     || A <- sides(), B <- sides()].

shm_only_on_one_host_and_if_both_allow_it_test_() ->
    [?_assertEqual(HostA =:= HostB andalso both(shm, LinksA, LinksB), beamway_choice:choose(A, {ok, B}) =:= shm)
     || #{host := HostA, links := LinksA} = A <- sides(),
        #{host := HostB, links := LinksB} = B <- sides()].

rdma_where_both_allow_it_and_shm_is_not_to_be_had_test_() ->
    [?_assertEqual(both(rdma, LinksA, LinksB) andalso not (HostA =:= HostB andalso both(shm, LinksA, LinksB)),
                   beamway_choice:choose(A, {ok, B}) =:= rdma)
     || #{host := HostA, links := LinksA} = A <- sides(),
        #{host := HostB, links := LinksB} = B <- sides()].

both(Link, LinksA, LinksB) -> lists:member(Link, LinksA) andalso lists:member(Link, LinksB).

the_smaller_number_of_connections_test_() ->
    [[?_assertEqual(Wanted, beamway_choice:connections(#{connections => Ours}, {ok, #{connections => Theirs}})) || {Ours, Theirs} <- [{A, B}, {B, A}]]
     || {A, B, Wanted} <- [{auto, auto, auto}, {auto, 4, 4}, {auto, 1, 1}, {8, 3, 3}, {none, auto, 1}, {none, 8, 1}]]
        ++ [?_assertEqual(1, beamway_choice:connections(#{connections => auto}, none))].

only_if_both_compress_test_() ->
    [?_assertEqual(Ours andalso Theirs, beamway_choice:compresses(#{compresses => Ours}, {ok, #{compresses => Theirs}})) || Ours <- [true, false], Theirs <- [true, false]]
        ++ [?_assertNot(beamway_choice:compresses(#{compresses => true}, Peer)) || Peer <- [none, {other_version, 2}]].

only_a_peer_that_can_answer_is_asked_to_renew_test_() ->
    [?_assertEqual(Renews, beamway_choice:renews({ok, #{renews => Renews}})) || Renews <- [true, false]]
        ++ [?_assertNot(beamway_choice:renews(Peer)) || Peer <- [none, {other_version, 2}]].

reasons_test() ->
    Allows = #{host => <<1:128>>, links => [shm], used_up => [], takes_tls_over => false, hears_load => true, compresses => false, renews => true, resume_ms => 0, listens => 0, connections => none},
    Forbids = Allows#{links := []},
    Elsewhere = Allows#{host := <<3:128>>},
    ?assertEqual({stream, <<"the peer does not speak beamway">>}, beamway_choice:choose(Allows, none)),
    ?assertEqual({stream, <<"the peer speaks version 2 of beamway, this node version 1">>},
                 beamway_choice:choose(Allows, {other_version, 2})),
    ?assertEqual({stream, <<"another host">>}, beamway_choice:choose(Allows, {ok, Elsewhere})),
    ?assertEqual({stream, <<"another host, and the peer offers no rdma">>},
                 beamway_choice:choose(Allows#{links := [shm, rdma]}, {ok, Elsewhere})),
    ?assertEqual({stream, <<"another host, and this node has no rdma to offer">>},
                 beamway_choice:choose(Allows, {ok, Elsewhere#{links := [rdma]}})),
    ?assertEqual({stream, <<"shared memory is off on this node">>},
                 beamway_choice:choose(Forbids, {ok, Allows})),
    ?assertEqual({stream, <<"shared memory is off on this node, and the peer offers no rdma">>},
                 beamway_choice:choose(Forbids#{links := [rdma]}, {ok, Allows})),
    ?assertEqual({stream, <<"shared memory is off on the peer">>},
                 beamway_choice:choose(Allows, {ok, Forbids})).

%% Both sides report the same reason, except for whose memory is used up. The reason is not reported if the link could not be used anyway.
ring_memory_is_used_up_test_() ->
    Has = #{host => <<1:128>>, links => [shm, rdma], used_up => [], takes_tls_over => false, hears_load => true, compresses => false, renews => true, resume_ms => 0, listens => 0},
    Full = Has#{links := [], used_up := [shm, rdma]},
    Off = Has#{links := []},
    [?_assertEqual({{stream, Reason}, Missed}, {beamway_choice:choose(Ours, {ok, Theirs}), beamway_choice:missed(Ours, {ok, Theirs})})
     || {Ours, Theirs, Reason, Missed} <-
            [{Full, Has, <<"the ring memory of this node is used up (ring_limit_bytes), and the ring memory of this node is used up (rdma_limit_bytes)">>, [shm, rdma]},
             {Has, Full, <<"the ring memory of the peer is used up (ring_limit_bytes), and the ring memory of the peer is used up (rdma_limit_bytes)">>, []},
             {Full#{used_up := [shm]}, Has, <<"the ring memory of this node is used up (ring_limit_bytes), and this node has no rdma to offer">>, [shm]},
             {Full#{used_up := [shm]}, Full#{used_up := [shm]}, <<"the ring memory of this node is used up (ring_limit_bytes)">>, [shm]},
             {Full#{used_up := [shm]}, Off, <<"shared memory is off on the peer">>, []},
             {Off, Full#{used_up := [shm]}, <<"shared memory is off on this node">>, []},
             {Full#{used_up := [shm]}, Has#{host := <<2:128>>, links := [shm]}, <<"another host">>, []}]]
        ++ [?_assertEqual([], beamway_choice:missed(Full, Peer)) || Peer <- [none, {other_version, 2}]]
        ++ [?_assertEqual(rdma, beamway_choice:choose(Full#{links := [rdma], used_up := [shm]}, {ok, Has}))].

tls_is_taken_over_by_both_or_by_none_test_() ->
    Says = fun(true) -> true; ({false, Reason}) when is_binary(Reason) -> false end,
    [?_assertEqual(maps:get(takes_tls_over, A) andalso maps:get(takes_tls_over, B), Says(beamway_choice:takes_tls_over(A, {ok, B})))
     || A <- sides(), B <- sides()]
        ++ [?_assertMatch({false, _}, beamway_choice:takes_tls_over(A, Peer)) || A <- sides(), Peer <- [none, {other_version, 2}]].

the_less_patient_decides_test_() ->
    With = fun(Ms) -> (hd(sides()))#{resume_ms := Ms} end,
    [?_assertEqual(Ms, beamway_choice:resume_ms(With(A), {ok, With(B)})) || {Ms, A, B} <- [{0, 0, 5}, {0, 5, 0}, {3, 3, 5}, {3, 5, 3}]]
        ++ [?_assertEqual(0, beamway_choice:resume_ms(With(5), Peer)) || Peer <- [none, {other_version, 2}]].
