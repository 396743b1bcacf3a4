%% SPDX-License-Identifier: Apache-2.0
%% @doc The words with which two nodes prove to each other, before there is a lane, that they know the cookie. Pure.
%%
%% <ol><li>caller: HELLO, who it is, whom it calls, which lane, a fresh nonce</li>
%% <li>acceptor: CHALLENGE, a fresh nonce of its own</li>
%% <li>caller: PROOF, HMAC-SHA256 with the cookie as key over everything that was said, beginning with the word `caller'</li>
%% <li>acceptor: WELCOME, the same beginning with the word `acceptor'; or REFUSED and why</li></ol>
%% The cookie is never sent. A proof is of no use in another conversation (both nonces), for another node (both names), for another lane, or
%% sent back (the roles). The acceptor proves nothing to a caller that has not. Names are binaries here: nothing that a stranger says
%% becomes an atom or a term, and no word is longer than 1 KB.
-module(teleport_handshake).

-export([tls_follows/0, hello/1, challenge/1, proof/3, welcome/3, refused/1, decode/1, is_proof/4, nonce/0, version/0, other_version/1]).
-export_type([hello/0, word/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type hello() :: #{caller := binary(), acceptor := binary(), class := teleport_config:class(), index := 0..255, nonce := <<_:256>>,
                   max_message_bytes => pos_integer()}.
%% `max_message_bytes': what the caller takes and sends at most. Only for an acceptor that has told its own limit: an older one knows no such word.
-type word() :: {hello, hello()} | {challenge, <<_:256>>} | {proof, <<_:256>>} | {welcome, <<_:256>>} | {refused, binary()}.
-type role() :: caller | acceptor.

-define(MAGIC, "BWTP").
-define(VERSION, 2).

%% @doc Of these words.
-spec version() -> pos_integer().
version() -> ?VERSION.

%% @doc What to say of a peer that speaks another one.
-spec other_version(non_neg_integer()) -> Reason :: binary().
other_version(Version) ->
    iolist_to_binary(io_lib:format("the other side speaks version ~b of the lanes, this node version ~b", [Version, ?VERSION])).

%% @doc 32 bytes that nobody can foresee.
-spec nonce() -> <<_:256>>.
nonce() -> crypto:strong_rand_bytes(32).

%% @doc What a caller says before it begins TLS on the port of the distribution ({@link beamway_shared_port}). It proves nothing.
-spec tls_follows() -> binary().
tls_follows() -> <<?MAGIC, ?VERSION, $t>>.

%% @doc The first word, the caller's.
-spec hello(hello()) -> binary().
hello(#{caller := Caller, acceptor := Acceptor, class := Class, index := Index, nonce := <<Nonce:32/binary>>} = Hello) ->
    Limit = case Hello of #{max_message_bytes := Max} -> <<Max:64>>; _ -> <<>> end,
    <<?MAGIC, ?VERSION, $h, (class_code(Class)), Index, (byte_size(Caller)):16, Caller/binary,
      (byte_size(Acceptor)):16, Acceptor/binary, Nonce/binary, Limit/binary>>.

%% @doc The acceptor's answer.
-spec challenge(<<_:256>>) -> binary().
challenge(<<Nonce:32/binary>>) -> <<?MAGIC, ?VERSION, $c, Nonce/binary>>.

%% @doc The caller's proof.
-spec proof(Cookie :: binary(), hello(), <<_:256>>) -> binary().
proof(Cookie, Hello, Nonce) -> <<?MAGIC, ?VERSION, $p, (mac(Cookie, caller, Hello, Nonce))/binary>>.

%% @doc The acceptor's proof, and the end.
-spec welcome(Cookie :: binary(), hello(), <<_:256>>) -> binary().
welcome(Cookie, Hello, Nonce) -> <<?MAGIC, ?VERSION, $w, (mac(Cookie, acceptor, Hello, Nonce))/binary>>.

%% @doc The acceptor does not go on. The reason says nothing that a stranger may not know.
-spec refused(Reason :: binary()) -> binary().
refused(Reason) -> <<?MAGIC, ?VERSION, $r, Reason/binary>>.

%% @doc Reads a word of the other side.
-spec decode(binary()) -> {ok, word()} | {error, Reason :: binary()}.
decode(<<?MAGIC, ?VERSION, $h, Code, Index, Length:16, Caller:Length/binary, Length2:16, Acceptor:Length2/binary, Nonce:32/binary, Limit/binary>>)
  when Length > 0, Length < 256, Length2 > 0, Length2 < 256, Code >= 1, Code =< 3, byte_size(Limit) =:= 0 orelse byte_size(Limit) =:= 8, Limit =/= <<0:64>> ->
    Hello = #{caller => Caller, acceptor => Acceptor, class => class(Code), index => Index, nonce => Nonce},
    {ok, {hello, case Limit of <<Max:64>> -> Hello#{max_message_bytes => Max}; <<>> -> Hello end}};
decode(<<?MAGIC, ?VERSION, $c, Nonce:32/binary>>) -> {ok, {challenge, Nonce}};
decode(<<?MAGIC, ?VERSION, $p, Mac:32/binary>>) -> {ok, {proof, Mac}};
decode(<<?MAGIC, ?VERSION, $w, Mac:32/binary>>) -> {ok, {welcome, Mac}};
decode(<<?MAGIC, _Version, $r, Reason/binary>>) -> {ok, {refused, beamway_wire:printable(Reason)}};
decode(<<?MAGIC, Version, _/binary>>) when Version =/= ?VERSION ->
    {error, other_version(Version)};
decode(_) ->
    {error, <<"the other side does not speak the protocol of the lanes">>}.

%% @doc Whether the other side, in this role, knows the cookie. Takes as long whatever is wrong.
-spec is_proof(Mac :: binary(), role(), {Cookie :: binary(), hello()}, <<_:256>>) -> boolean().
is_proof(Mac, Role, {Cookie, Hello}, Nonce) ->
    crypto:hash_equals(Mac, mac(Cookie, Role, Hello, Nonce)).

mac(Cookie, Role, Hello, Nonce) ->
    crypto:mac(hmac, sha256, Cookie, [<<"beamway lane ", (atom_to_binary(Role))/binary, 0>>, hello(Hello), Nonce]).

class_code(control) -> 1;
class_code(normal) -> 2;
class_code(bulk) -> 3.

class(1) -> control;
class(2) -> normal;
class(3) -> bulk.

-ifdef(TEST).

sample() ->
    #{caller => <<"a@host">>, acceptor => <<"b@host">>, class => bulk, index => 3, nonce => nonce()}.

words_test_() ->
    Hello = sample(),
    Nonce = nonce(),
    Limited = Hello#{max_message_bytes => 65536},
    [?_assertEqual({ok, {hello, Hello}}, decode(hello(Hello))), ?_assertEqual({ok, {hello, Limited}}, decode(hello(Limited))), ?_assertEqual({ok, {challenge, Nonce}}, decode(challenge(Nonce))),
     ?_assertMatch({ok, {proof, _}}, decode(proof(<<"c">>, Hello, Nonce))),
     ?_assertMatch({ok, {welcome, _}}, decode(welcome(<<"c">>, Hello, Nonce))),
     ?_assertEqual({ok, {refused, <<"no?no">>}}, decode(refused(<<"no\nno">>)))].

who_knows_the_cookie_test_() ->
    #{nonce := Mine} = Hello = sample(),
    Nonce = nonce(),
    {ok, {proof, Mac}} = decode(proof(<<"cookie">>, Hello, Nonce)),
    {ok, {welcome, Welcome}} = decode(welcome(<<"cookie">>, Hello, Nonce)),
    [?_assert(is_proof(Mac, caller, {<<"cookie">>, Hello}, Nonce)), ?_assert(is_proof(Welcome, acceptor, {<<"cookie">>, Hello}, Nonce))]
        ++ [?_assertNot(is_proof(M, Role, {Cookie, H}, N))
            || {M, Role, Cookie, H, N} <- [{Mac, caller, <<"cookies">>, Hello, Nonce}, {Mac, caller, <<"cookie">>, Hello, nonce()},
                                           {Mac, acceptor, <<"cookie">>, Hello, Nonce}, {Welcome, caller, <<"cookie">>, Hello, Nonce},
                                           {Mac, caller, <<"cookie">>, Hello#{nonce := nonce()}, Nonce},
                                           {Mac, caller, <<"cookie">>, Hello#{caller := <<"c@host">>}, Nonce},
                                           {Mac, caller, <<"cookie">>, Hello#{acceptor := <<"c@host">>}, Nonce},
                                           {Mac, caller, <<"cookie">>, Hello#{class := control}, Nonce},
                                           {Mac, caller, <<"cookie">>, Hello#{max_message_bytes => 1}, Nonce},
                                           {Mac, caller, <<"cookie">>, Hello#{nonce := Nonce}, Mine}]].

nonsense_test_() ->
    Good = hello(sample()),
    [?_assertMatch({error, _}, decode(Bytes))
     || Bytes <- [<<>>, <<"GET / HTTP/1.1">>, <<?MAGIC, 3, $h, 0>>, <<Good/binary, 0>>, <<Good/binary, 0:64>>, <<Good/binary, 1:72>>, binary:part(Good, 0, byte_size(Good) - 1),
                  <<?MAGIC, ?VERSION, $h, 0, 0, 1:16, $a, 1:16, $b, 0:256>>, <<?MAGIC, ?VERSION, $h, 1, 0, 0:16, 1:16, $b, 0:256>>,
                  <<?MAGIC, ?VERSION, $c, 0:248>>, <<?MAGIC, ?VERSION, $x>>]].

-endif.
