%% SPDX-License-Identifier: Apache-2.0
%% @doc The packets with which two nodes move a link to a new connection, and the rule for when a peer counts as dead.
%%
%% Four packets replace the handshake of the distribution: `resume' names the link, `challenge' shows that the other side knows it, `proof' states how
%% many bytes the calling side has read, and `accept' how many the other side has read. Both sides have a key for each link, and each packet except
%% the first proves possession of that key with HMAC-SHA-256 (RFC 2104, FIPS 180-4) over everything exchanged so far. This includes random numbers
%% from both sides, so replaying an old packet is useless. `refuse' is the answer if the link is unknown. It proves possession of the cookie, and is
%% only sent to a caller that has proved the same in `resume', because an answer that anybody could get would allow an offline search for the cookie.
%%
%% The number of a connection is higher than those of all earlier ones: the node that originally called uses even numbers, and the other node odd
%% numbers. docs/dev/session.md describes the whole protocol.
%%
%% All functions are pure, except for those that generate random numbers. All data decoded here comes from the peer, so anything that is not exactly
%% right results in `error'.
-module(beamway_session).

-export([key/2, id/1, tls_key/1, random/0, number_after/2]).
-export([resume/5, challenge/3, proof/3, accept/3, refuse/2, decode/1]).
-export([resume_holds/2, challenge_holds/2, proof_holds/2, accept_holds/2, refuse_holds/3]).
-export([verdict/1]).
-export_type([kind/0, talk/0, packet/0, signs/0, verdict/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(VERSION, 1).
-define(KEY_TEXT, <<"beamway session 1">>).
%% Nodes register again 2 s after epmd has been restarted, or a little later if their machine is busy.
-define(EPMD_RETURNS_MS, 2500).

-type key() :: <<_:256>>.
-type random() :: <<_:128>>.
-type kind() :: resume | spread | join.
%% The role of the new connection: it replaces the last one; it replaces the last one and is the first of several; or it joins the existing ones.

-type talk() :: #{kind := kind(), key := key(), id := random(), node := node(), caller := random(), callee => random(), number => non_neg_integer(), position => non_neg_integer()}.
%% The exchange over a connection: the answering node, the random numbers of the calling and of the answering side, the number of the connection,
%% and how many bytes the calling side has read.

-type packet() :: {resume, kind(), Id :: random(), Caller :: random(), Node :: binary(), Mac :: binary()}
                | {challenge, Callee :: random(), Number :: non_neg_integer(), Mac :: binary()}
                | {proof, Number :: non_neg_integer(), Position :: non_neg_integer(), Mac :: binary()}
                | {accept, Position :: non_neg_integer(), Mac :: binary()}
                | {refuse, Mac :: binary()}.

%% @doc Returns the key of a link, derived from the cookie and everything that both sides have exchanged in the handshake.
-spec key(atom(), iodata()) -> key().
key(Cookie, Said) ->
    mac(atom_to_binary(Cookie), [?KEY_TEXT, crypto:hash(sha256, Said)]).

%% @doc Returns the identifier that both sides use for the link. It reveals nothing about the key.
-spec id(key()) -> random().
id(Key) ->
    binary:part(mac(Key, <<"id">>), 0, 16).

%% @doc Returns the key for TLS on the next connection; it is different each time.
-spec tls_key(talk()) -> key().
tls_key(#{key := Key, id := Id, caller := Caller, callee := Callee, number := Number}) ->
    mac(Key, [<<"tls">>, Id, Caller, Callee, <<Number:64>>]).

%% @doc Returns a random number that cannot be guessed.
-spec random() -> random().
random() -> crypto:strong_rand_bytes(16).

%% @doc Returns the number of the next connection, given the number of the last one.
-spec number_after(connecting | accepting, non_neg_integer()) -> pos_integer().
number_after(connecting, Last) -> (Last div 2 + 1) * 2;
number_after(accepting, Last) -> (Last + 1) div 2 * 2 + 1.

%% ---- packets ----

%% @doc Returns the packet that asks the peer to resume the link. `Node' is the name of the calling node, which may have its own cookie.
-spec resume(kind(), Cookie :: atom(), random(), random(), node()) -> iodata().
resume(Kind, Cookie, Id, Caller, Node) ->
    Name = atom_to_binary(Node),
    [letter(Kind), ?VERSION, Id, Caller, resume_mac(Kind, Cookie, Id, Caller, Name), Name].

letter(resume) -> $R;
letter(spread) -> $S;
letter(join) -> $J.

%% @doc Returns a challenge. `Number' is the number of the last connection.
-spec challenge(talk(), random(), non_neg_integer()) -> iodata().
challenge(Talk, Callee, Number) -> [<<$C, Callee/binary, Number:64>>, challenge_mac(Talk, Callee, Number)].

%% @doc Returns the caller's answer to a challenge. `Position' is the number of bytes that the caller has received.
-spec proof(talk(), Number :: pos_integer(), Position :: non_neg_integer()) -> iodata().
proof(Talk, Number, Position) -> [<<$P, Number:64, Position:64>>, proof_mac(Talk, Number, Position)].

%% @doc Returns the callee's answer to a proof. `Position' is the caller's position, and `Own' is the callee's.
-spec accept(talk(), Position :: non_neg_integer(), Own :: non_neg_integer()) -> iodata().
accept(Talk, Position, Own) -> [<<$A, Own:64>>, accept_mac(Talk, Position, Own)].

%% @doc Returns the answer of a node that has the cookie but does not know the link.
-spec refuse(atom(), {random(), random()}) -> iodata().
refuse(Cookie, {Id, Caller}) -> [$X, refuse_mac(Cookie, Id, Caller)].

%% @doc Decodes a whole packet. Nothing has been proved at this point.
-spec decode(iodata()) -> {ok, packet()} | {error, {version, byte()} | packet}.
decode(Packet) ->
    case iolist_to_binary(Packet) of
        <<Letter, ?VERSION, Id:16/binary, Caller:16/binary, Mac:32/binary, Node/binary>>
          when Letter =:= $R orelse Letter =:= $S orelse Letter =:= $J, Node =/= <<>>, byte_size(Node) =< 1020 ->
            {ok, {resume, kind(Letter), Id, Caller, Node, Mac}};
        <<$C, Callee:16/binary, Number:64, Mac:32/binary>> -> {ok, {challenge, Callee, Number, Mac}};
        <<$P, Number:64, Position:64, Mac:32/binary>> -> {ok, {proof, Number, Position, Mac}};
        <<$A, Position:64, Mac:32/binary>> -> {ok, {accept, Position, Mac}};
        <<$X, Mac:32/binary>> -> {ok, {refuse, Mac}};
        <<$R, Version, _/binary>> when Version =/= ?VERSION -> {error, {version, Version}};
        _ -> {error, packet}
    end.

kind($R) -> resume;
kind($S) -> spread;
kind($J) -> join.

%% @doc Returns whether the caller has the cookie.
-spec resume_holds(Cookie :: atom(), packet()) -> boolean().
resume_holds(Cookie, {resume, Kind, Id, Caller, Node, Mac}) -> crypto:hash_equals(Mac, resume_mac(Kind, Cookie, Id, Caller, Node)).

%% @doc Returns whether the packet proves that its sender has the key.
-spec challenge_holds(talk(), packet()) -> boolean().
challenge_holds(Talk, {challenge, Callee, Number, Mac}) -> crypto:hash_equals(Mac, challenge_mac(Talk, Callee, Number));
challenge_holds(_Talk, _Other) -> false.

%% @doc Returns whether the packet is the proof for this challenge.
-spec proof_holds(talk(), packet()) -> boolean().
proof_holds(Talk, {proof, Number, Position, Mac}) -> crypto:hash_equals(Mac, proof_mac(Talk, Number, Position));
proof_holds(_Talk, _Other) -> false.

%% @doc Returns whether the packet accepts this node's proof.
-spec accept_holds(talk(), packet()) -> boolean().
accept_holds(#{position := Position} = Talk, {accept, Own, Mac}) -> crypto:hash_equals(Mac, accept_mac(Talk, Position, Own));
accept_holds(_Talk, _Other) -> false.

%% @doc Returns whether the peer has the cookie, in which case its claim not to know the link can be trusted.
-spec refuse_holds(atom(), {random(), random()}, packet()) -> boolean().
refuse_holds(Cookie, {Id, Caller}, {refuse, Mac}) -> crypto:hash_equals(Mac, refuse_mac(Cookie, Id, Caller));
refuse_holds(_Cookie, _Talk, _Other) -> false.

%% Includes the name of the answering node, because a node with a wrong address for its peer may call itself.
challenge_mac(#{kind := Kind, key := Key, id := Id, node := Node, caller := Caller}, Callee, Number) ->
    mac(Key, [<<"challenge">>, of_kind(Kind), Id, Caller, Callee, <<Number:64>>, atom_to_binary(Node)]).

proof_mac(#{kind := Kind, key := Key, id := Id, caller := Caller, callee := Callee}, Number, Position) ->
    mac(Key, [<<"proof">>, of_kind(Kind), Id, Caller, Callee, <<Number:64, Position:64>>]).

accept_mac(#{kind := Kind, key := Key, id := Id, caller := Caller, callee := Callee, number := Number}, Position, Own) ->
    mac(Key, [<<"accept">>, of_kind(Kind), Id, Caller, Callee, <<Number:64, Position:64, Own:64>>]).

resume_mac(Kind, Cookie, Id, Caller, Node) ->
    mac(atom_to_binary(Cookie), [<<"beamway resumes 1">>, of_kind(Kind), Id, Caller, Node]).

%% A resumption adds nothing to the input of the MACs, so they are the same as in versions that support no other kind of connection.
of_kind(resume) -> <<>>;
of_kind(spread) -> <<" spread">>;
of_kind(join) -> <<" join">>.

refuse_mac(Cookie, Id, Caller) ->
    mac(atom_to_binary(Cookie), [<<"beamway refuses 1">>, Id, Caller]).

mac(Key, Text) -> crypto:mac(hmac, sha256, Key, Text).

%% ---- when a peer counts as dead ----

-type signs() :: #{port := refuses | none | unknown,
                   epmd := not_listed | refuses | listed | unknown,
                   others := boolean(),
                   closed := boolean(),
                   certain := boolean(),
                   missing_ms := non_neg_integer()}.
%% The result of one check. `port' is `refuses' if the peer's distribution port refuses connections, and `none' if this node does not know that
%% port. `epmd' is what the epmd on the peer's host reports about the peer, and `others' is true if it lists other nodes. `closed' is true if the
%% peer's host has closed the last connection normally. `certain' is true if the peer was at this address when the link was set up. `missing_ms' is
%% how long the node has been missing from epmd.

-type verdict() :: dead | hurry | wait.
%% `hurry' means to wait no longer than the option `resume_refused_ms'.

%% @doc Decides whether a peer that cannot be reached counts as dead.
%%
%% A firewall may also refuse connections, so a refusal alone proves nothing. epmd drops a node when its process exits, but an epmd that has just
%% been restarted does not know any nodes. Its answer is trusted immediately if it lists other nodes, or if the peer's host closed the connection
%% normally without a last message, as happens when a process is killed. None of this counts if the peer may never have been at that address: the
%% called node resolves the host in the caller's name, and behind a router, or among containers, a different host may answer.
-spec verdict(signs()) -> verdict().
verdict(#{port := none, closed := true}) -> hurry; % such a peer cannot be called, but if it is alive it calls again immediately
verdict(#{certain := false}) -> wait;
verdict(#{port := refuses, epmd := not_listed, others := Others, closed := Closed, missing_ms := Ms}) ->
    case Others orelse Closed orelse Ms >= ?EPMD_RETURNS_MS of
        true -> dead;
        false -> wait
    end;
verdict(#{port := refuses, epmd := refuses}) -> hurry;
verdict(#{}) -> wait.

-ifdef(TEST).

talk() ->
    Key = key('a cookie', [<<"N...">>, "N..."]),
    #{kind => resume, key => Key, id => id(Key), caller => random(), callee => random(), number => 4, position => 1 bsl 40, node => 'b@host'}.

sent(Packet) -> {ok, Decoded} = decode(Packet), Decoded.

packets_prove_what_was_said_test() ->
    #{callee := Callee} = Talk = talk(),
    ?assert(resume_holds(c, sent(resume(resume, c, Callee, Callee, 'a@b')))),
    ?assertNot(resume_holds(d, sent(resume(resume, c, Callee, Callee, 'a@b')))),
    ?assert(challenge_holds(Talk, sent(challenge(Talk, Callee, 3)))),
    ?assert(proof_holds(Talk, sent(proof(Talk, 4, 1 bsl 40)))),
    ?assert(accept_holds(Talk, sent(accept(Talk, 1 bsl 40, 7)))),
    ?assert(refuse_holds(c, {Callee, Callee}, sent(refuse(c, {Callee, Callee})))),
    [?assertNot(Holds) || Holds <- [challenge_holds(Talk, sent(challenge(Talk#{node := 'a@host'}, Callee, 3))), % a node that has called itself
                                    refuse_holds(d, {Callee, Callee}, sent(refuse(c, {Callee, Callee}))),
                                    accept_holds(Talk, sent(accept(Talk, 5, 7))),
                                    proof_holds(Talk, sent(accept(Talk, 1 bsl 40, 7)))]].

each_kind_has_proofs_of_its_own_test() ->
    #{callee := Callee, id := Id, caller := Caller} = Talk = talk(),
    [begin
         Ours = Talk#{kind := Kind},
         Theirs = Talk#{kind := Other},
         {resume, Kind, Id, Caller, Node, Mac} = sent(resume(Kind, c, Id, Caller, 'a@b')),
         Same = Kind =:= Other,
         ?assertEqual(Same, resume_holds(c, {resume, Other, Id, Caller, Node, Mac})),
         ?assertEqual(Same, challenge_holds(Theirs, sent(challenge(Ours, Callee, 3)))),
         ?assertEqual(Same, proof_holds(Theirs, sent(proof(Ours, 4, 5)))),
         ?assertEqual(Same, accept_holds(Theirs#{position := 5}, sent(accept(Ours, 5, 7))))
     end || Kind <- [resume, spread, join], Other <- [resume, spread, join]].

%% Each field counts: flipping a single bit of a packet, or of what was exchanged before, invalidates it. So the MACs protect both random numbers,
%% both positions and the number of the connection.
each_bit_counts_test() ->
    #{callee := Callee, position := Position} = Talk = talk(),
    [begin
         Bytes = iolist_to_binary(Packet),
         ?assert(Holds(Talk, sent(Bytes))),
         [?assertNot(Holds(Talk, sent(flipped(Bytes, Bit)))) || Bit <- lists:seq(8, bit_size(Bytes) - 1)],
         [?assertNot(Holds(Talk#{Field := flipped(maps:get(Field, Talk), 0)}, sent(Bytes))) || Field <- Fields],
         [?assertNot(Holds(Talk#{Field := maps:get(Field, Talk) + 1}, sent(Bytes))) || Field <- Numbers]
     end || {Holds, Packet, Fields, Numbers} <- [{fun challenge_holds/2, challenge(Talk, Callee, 3), [key, id, caller], []},
                                                 {fun proof_holds/2, proof(Talk, 4, 5), [key, id, caller, callee], []},
                                                 {fun accept_holds/2, accept(Talk, Position, 5), [key, id, caller, callee], [number, position]}]].

flipped(Bytes, Bit) ->
    <<Before:Bit, One:1, After/bits>> = Bytes,
    <<Before:Bit, (1 - One):1, After/bits>>.

nonsense_is_no_packet_test_() ->
    Random = random(),
    [?_assertEqual({error, Why}, decode(Bytes))
     || {Why, Bytes} <- [{packet, <<>>}, {packet, <<"N">>}, {packet, [$R, 1, Random]}, {{version, 9}, [$R, 9, Random, Random, "a@b"]},
                         {packet, [$R, 1, Random, Random, "a@b"]}, {packet, [$R, 1, Random, Random, Random, Random]},
                         {packet, [$R, 1, Random, Random, Random, Random, binary:copy(<<"a">>, 1021)]},
                         {packet, [$C, Random]}, {packet, [$P, Random, Random]}, {packet, <<$A, 1:64>>}, {packet, [$X, Random]}]].

numbers_grow_and_are_never_the_same_test_() ->
    [?_assertEqual({Even, Odd}, {number_after(connecting, Last), number_after(accepting, Last)})
     || {Last, Even, Odd} <- [{0, 2, 1}, {1, 2, 3}, {2, 4, 3}, {3, 4, 5}, {10, 12, 11}, {11, 12, 13}]].

verdict_test_() ->
    Signs = #{port => refuses, epmd => not_listed, others => true, closed => false, certain => true, missing_ms => 0},
    [?_assertEqual(Verdict, verdict(maps:merge(Signs, More)))
     || {Verdict, More} <- [{dead, #{}}, {dead, #{others => false, closed => true}}, {wait, #{others => false}},
                            {wait, #{others => false, missing_ms => 2499}}, {dead, #{others => false, missing_ms => 2500}},
                            {wait, #{port => unknown}}, {wait, #{certain => false}}, {wait, #{port => none}}, {hurry, #{port => none, certain => false, closed => true}}, {wait, #{certain => false, epmd => refuses}}, {wait, #{epmd => listed}}, {wait, #{epmd => unknown}},
                            {hurry, #{epmd => refuses}}, {wait, #{epmd => refuses, port => unknown}}]].

-endif.
