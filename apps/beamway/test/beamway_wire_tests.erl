%% SPDX-License-Identifier: Apache-2.0
%% Tests the bytes of the handshake extension and of the link agreement: round trips, every kind of damage, and what a later version may send.
-module(beamway_wire_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

-define(NAME_HEAD, $N, 16#d07df7fbd:64, 1700000000:32, 8:16, "a@host.b").

extension() ->
    ?LET({Host, Links, UsedUp, Takes, Hears, Compresses, Renews, Ms, Port, Connections},
         {binary(16), oneof([[], [shm], [rdma], [shm, rdma]]), oneof([[], [shm], [rdma], [shm, rdma]]), boolean(), boolean(), boolean(), boolean(), range(0, 1 bsl 32 - 1), range(0, 65535), oneof([none, auto, range(1, 8)])},
         #{host => Host, links => Links, used_up => UsedUp, takes_tls_over => Takes, hears_load => Hears, compresses => Compresses, renews => Renews, resume_ms => Ms, listens => Port, connections => Connections}).

packet() ->
    oneof([ready, resumes,
           {secret, binary(32)},
           {nack, ?LET(Text, list(range($\s, $~)), iolist_to_binary(lists:sublist(Text, 200)))},
           {offer, ?LET({Address, Token, Ring}, {non_empty(binary()), binary(16), pos_integer()},
                        #{address => Address, token => Token, ring_bytes => Ring})},
           {rdma_offer, ?LET({Device, Addresses, Port, Token, Ring},
                             {list(range($a, $z)), ?LET(Count, range(1, 16), vector(Count, address())), range(1, 65535), binary(16),
                              pos_integer()},
                             #{device => list_to_binary(Device), addresses => Addresses, port => Port, token => Token,
                               ring_bytes => Ring})}]).

address() ->
    oneof([{byte(), byte(), byte(), byte()},
           ?LET(Parts, vector(8, range(0, 65535)), list_to_tuple(Parts))]).

prop_extension_round_trip() ->
    ?FORALL(Extension, extension(),
            beamway_wire:find_extension(
              name, [<<?NAME_HEAD>>, beamway_wire:encode_extension(Extension)])
                =:= {ok, Extension}).

prop_packet_round_trip() ->
    ?FORALL(Packet, packet(), beamway_wire:decode(beamway_wire:encode(Packet)) =:= {ok, Packet}).

prop_nothing_crashes() ->
    ?FORALL({Kind, Bytes}, {oneof([name, challenge]), binary()},
            begin
                _ = beamway_wire:find_extension(Kind, Bytes),
                case beamway_wire:decode(Bytes) of
                    {ok, _} -> true;
                    {error, Reason} -> is_binary(Reason)
                end
            end).

%% Generates the bytes that a peer sends, and the damage to them: some bytes are changed, left out, duplicated or added.
sent() ->
    oneof([?LET(Extension, extension(), {name, <<?NAME_HEAD, (beamway_wire:encode_extension(Extension))/binary>>}),
           ?LET(Extension, extension(),
                {challenge, <<$N, 0:64, 4711:32, 1:32, 8:16, "a@host.b", (beamway_wire:encode_extension(Extension))/binary>>}),
           ?LET(Packet, packet(), {packet, beamway_wire:encode(Packet)})]).

damage() -> {oneof([change, leave_out, double, add]), range(0, 60), byte()}.

damaged(Bytes, []) -> Bytes;
damaged(Bytes, [{Kind, Offset, Byte} | More]) ->
    At = min(Offset, byte_size(Bytes)),
    <<Before:At/binary, After/binary>> = Bytes,
    damaged(damaged(Kind, Before, After, Byte), More).

damaged(change, Before, <<_, After/binary>>, Byte) -> <<Before/binary, Byte, After/binary>>;
damaged(leave_out, Before, <<_, After/binary>>, _) -> <<Before/binary, After/binary>>;
damaged(double, Before, After, _) -> <<Before/binary, Before/binary, After/binary>>;
damaged(_, Before, After, Byte) -> <<Before/binary, Byte, After/binary>>.

%% Every decoder returns one of its defined answers, and a message that it accepts keeps its meaning when it is encoded again.
prop_damage_is_refused_or_means_something() ->
    ?FORALL({{Kind, Bytes}, Damage}, {sent(), list(damage())},
            begin
                Damaged = damaged(Bytes, Damage),
                lists:all(fun(Judge) -> Judge(Damaged) end, [fun name_is_judged/1, fun packet_is_judged/1])
                    andalso lists:all(fun(As) -> extension_is_judged(As, Damaged) end, [name, challenge])
                    andalso (Damage =/= [] orelse is_good(Kind, Damaged))
            end).

is_good(packet, Bytes) -> element(1, beamway_wire:decode(Bytes)) =:= ok;
is_good(Kind, Bytes) -> element(1, beamway_wire:find_extension(Kind, Bytes)) =:= ok.

name_is_judged(Bytes) ->
    case beamway_wire:check_name(Bytes) of
        ok -> Length = name_length(Bytes), Length > 0 andalso Length =< 255;
        {error, Reason} -> is_binary(Reason)
    end.

name_length(<<$N, _:64, _:32, Length:16, _:Length/binary, _/binary>>) -> Length;
name_length(<<$n, _:48, Name/binary>>) -> byte_size(Name).

packet_is_judged(Bytes) ->
    case beamway_wire:decode(Bytes) of
        {ok, {offer_of_version, Version}} -> is_integer(Version);
        {ok, Packet} -> beamway_wire:decode(beamway_wire:encode(Packet)) =:= {ok, Packet};
        {error, Reason} -> is_binary(Reason)
    end.

extension_is_judged(Kind, Bytes) ->
    case beamway_wire:find_extension(Kind, Bytes) of
        {ok, Extension} ->
            beamway_wire:find_extension(name, <<?NAME_HEAD, (beamway_wire:encode_extension(Extension))/binary>>) =:= {ok, Extension};
        {other_version, Version} -> is_integer(Version);
        none -> true
    end.

properties_test_() ->
    [{atom_to_list(Name),
      {timeout, 60, ?_assert(proper:quickcheck(Property, [quiet, {numtests, 500}]))}}
     || {Name, Property} <- [{extension_round_trip, prop_extension_round_trip()},
                             {packet_round_trip, prop_packet_round_trip()},
                             {nothing_crashes, prop_nothing_crashes()}]]
        ++ [{"damage_is_refused_or_means_something",
             {timeout, 120, ?_assert(proper:quickcheck(prop_damage_is_refused_or_means_something(), [quiet, {numtests, 5000}]))}}].

sample() ->
    #{host => <<1:128>>, links => [shm], used_up => [rdma], takes_tls_over => true, hears_load => true, compresses => true, renews => true, resume_ms => 15000, listens => 4711, connections => 4}.

stock_peer_test() ->
    ?assertEqual(none, beamway_wire:find_extension(name, <<?NAME_HEAD>>)).

challenge_has_its_own_layout_test() ->
    Challenge = <<$N, 0:64, 4711:32, 1:32, 8:16, "a@host.b",
                  (beamway_wire:encode_extension(sample()))/binary>>,
    ?assertEqual({ok, sample()}, beamway_wire:find_extension(challenge, Challenge)),
    ?assertEqual(none, beamway_wire:find_extension(name, Challenge)).

half_an_extension_test_() ->
    Whole = <<?NAME_HEAD, (beamway_wire:encode_extension(sample()))/binary>>,
    Head = byte_size(<<?NAME_HEAD>>),
    [?_assertEqual(none, beamway_wire:find_extension(name, binary:part(Whole, 0, Length)))
     || Length <- lists:seq(Head, byte_size(Whole) - 1)].

%% Older versions do not send the number of connections, and no version sends these values.
connections_are_none_unless_said_test_() ->
    <<Magic:5/binary, Length:16, Body/binary>> = beamway_wire:encode_extension(sample()),
    Older = Length - 1,
    Without = <<Magic/binary, Older:16, Body:Older/binary>>,
    [?_assertEqual({ok, (sample())#{connections := none}}, beamway_wire:find_extension(name, <<?NAME_HEAD, Said/binary>>))
     || Said <- [Without | [<<Magic/binary, Length:16, Body:Older/binary, Number>> || Number <- [0, 9, 16, 254]]]].

later_fields_are_ignored_test() ->
    <<Magic:5/binary, Length:16, Body/binary>> = beamway_wire:encode_extension(sample()),
    Later = <<Magic/binary, (Length + 3):16, Body/binary, 1, 2, 3, "and more">>,
    ?assertEqual({ok, sample()}, beamway_wire:find_extension(name, [<<?NAME_HEAD>>, Later])).

another_version_is_told_test() ->
    <<Magic:4/binary, Version, Rest/binary>> = beamway_wire:encode_extension(sample()),
    [?assertEqual({other_version, Other},
                  beamway_wire:find_extension(name, <<?NAME_HEAD, Magic/binary, Other, Rest/binary>>))
     || Other <- [0, 2, 255], Other =/= Version],
    ?assertEqual({other_version, 2}, beamway_wire:find_extension(name, <<?NAME_HEAD, Magic/binary, 2, 0:16>>)),
    ?assertEqual(none, beamway_wire:find_extension(name, <<?NAME_HEAD, Magic/binary, 2, 1:16>>)).

%% This lets every version answer every other.
an_offer_and_a_nack_of_another_version_are_known_test() ->
    ?assertEqual({ok, {offer_of_version, 2}}, beamway_wire:decode(<<2, $o>>)),
    ?assertEqual({ok, {offer_of_version, 9}}, beamway_wire:decode(<<9, $o, "whatever it holds">>)),
    ?assertEqual({ok, {offer_of_version, 9}}, beamway_wire:decode(<<9, $d, "whatever it holds">>)),
    ?assertEqual({ok, {nack, <<"because">>}}, beamway_wire:decode(<<9, $n, "because">>)).

bad_packets_test_() ->
    [{lists:flatten(io_lib:format("~0p", [Bytes])),
      ?_assertMatch({error, _}, beamway_wire:decode(Bytes))}
     || Bytes <- [<<>>, <<1>>, <<2, $r>>, <<1, $r, 0>>, <<1, $x>>, <<1, $o>>,
                  <<1, $o, 65536:64, 0:128>>, <<1, $o, 0:64, 0:128, "address">>,
                  <<1, $o, 65536:64, 0:120>>,
                  <<1, $d>>, <<1, $d, 65536:64, 0:128, 1:16, 0>>, <<1, $d, 0:64, 0:128, 1:16, 0, 4, 1, 2, 3, 4>>,
                  <<1, $d, 65536:64, 0:128, 0:16, 0, 4, 1, 2, 3, 4>>, <<1, $d, 65536:64, 0:128, 1:16, 9, 4, 1, 2, 3, 4>>,
                  <<1, $d, 65536:64, 0:128, 1:16, 0, 4, 1, 2, 3>>, <<1, $d, 65536:64, 0:128, 1:16, 0, 5, 1, 2, 3, 4>>,
                  <<1, $d, 65536:64, 0:128, 1:16, 0, (binary:copy(<<4, 1, 2, 3, 4>>, 17))/binary>>]].

the_peer_cannot_forge_log_lines_test() ->
    {ok, {nack, Reason}} = beamway_wire:decode([<<1, $n>>, "a\nb\e[31m", lists:duplicate(1000, $x)]),
    ?assertEqual(200, byte_size(Reason)),
    ?assertMatch(<<"a?b?[31m", _/binary>>, Reason).

first_packets_that_otp_must_not_see_test_() ->
    Name = fun(Flags, Length, Bytes) -> <<$N, Flags:64, 1:32, Length:16, Bytes/binary>> end,
    Old = fun(Bytes) -> <<$n, 6:16, 0:32, Bytes/binary>> end,
    Long = binary:copy(<<"h">>, 300),
    [?_assertMatch({error, _}, beamway_wire:check_name(Packet))
     || Packet <- [<<>>, <<"n">>, <<$n, 6:16, 0:24>>, Old(<<>>), Old(Long), <<"GET / HTTP/1.1">>, <<$N>>, <<$N, 0:64>>,
                   Name(0, 9, <<"a@host.b">>), Name(0, 65535, <<"a@host.b">>), Name(0, 0, <<>>),
                   Name(0, 256, Long), Name(16#200000000, 242, Long)]]
        ++ [?_assertEqual(ok, beamway_wire:check_name(Packet))
            || Packet <- [Old(<<"a@host.b">>), Name(0, 8, <<"a@host.b">>), Name(0, 255, Long),
                          Name(16#200000000, 241, Long), Name(0, 8, <<"a@host.b and more">>)]].
