%% SPDX-License-Identifier: Apache-2.0
%% @doc Terms survive encoding and decoding by {@link teleport_pool_frame}, and invalid input is rejected.
-module(teleport_pool_frame_tests).

-include_lib("eunit/include/eunit.hrl").

-define(LARGE_BYTES, 65536).

again(Term) -> teleport_pool_frame:decode(packet([Term])).

packet(Terms) -> iolist_to_binary([element(1, teleport_pool_frame:encode(Term)) || Term <- Terms]).

large() -> binary:copy(<<"x">>, ?LARGE_BYTES).

terms() ->
    [ok, <<>>, self(), make_ref(), fun erlang:node/0, #{1 => a, 1.0 => b}, lists:seq(1, 100000), large(), {a, large(), [b, large() | tail]},
     #{k => large(), 1 => {m, large()}, 1.0 => large()}, [large() | large()], lists:duplicate(300, large()), list_to_tuple(lists:duplicate(15, lists:duplicate(4, #{a => large()}))),
     {'$teleport_hole', large()}, '$teleport_hole', {large(), '$teleport_hole'}, {{{{{{{{large()}}}}}}}}, maps:from_keys(lists:seq(1, 100), large()), <<(large())/binary, 1:3>>].

terms_come_back_test_() ->
    Terms = terms(),
    [?_assertEqual([Term], again(Term)) || Term <- Terms] ++ [?_assertEqual(Terms, teleport_pool_frame:decode(packet(Terms)))].

sizes_are_right_test_() ->
    [begin {Data, Bytes} = teleport_pool_frame:encode(Term), ?_assertEqual(iolist_size(Data), Bytes) end || Term <- terms()].

%% The decoded binary is a part of the packet, not a copy of it.
large_binaries_are_not_copied_test() ->
    Packet = packet([{to, {put, #{k => large()}}}]),
    [{to, {put, #{k := Binary}}}] = teleport_pool_frame:decode(Packet),
    ?assertEqual(byte_size(Packet), binary:referenced_byte_size(Binary)).

what_no_peer_sends_fails_test_() ->
    [?_assertError(_, teleport_pool_frame:decode(Packet))
     || Packet <- [<<1>>, <<5:32, 0>>, <<1:32, 0>>, <<3:32, 0, 131, 255>>, <<2:32, 1, 0>>, <<5:32, 1, 9:32>>, <<8:32, 1, 0:32, 131, 97, 1>>, <<9:32, 1, 7:32, 131, 97, 1, 2>>]].
