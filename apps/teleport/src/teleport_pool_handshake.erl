%% SPDX-License-Identifier: Apache-2.0
%% @doc Lets two nodes prove to each other, on a new connection of a pool, that they know the cookie.
%%
%% <ol><li>caller: HELLO with both node names and a fresh nonce</li>
%% <li>acceptor: CHALLENGE with its own fresh nonce</li>
%% <li>caller: PROOF, an HMAC-SHA256 over the string `caller', HELLO and both nonces, with the cookie as its key</li>
%% <li>acceptor: WELCOME, computed in the same way with the string `acceptor'; or REFUSED with a reason</li></ol>
%% The cookie is never sent. A proof cannot be replayed in another handshake, because it covers both nonces; nor for another node, because it covers
%% both names; nor with a different version, because HELLO begins with the version; nor can it be reflected to its sender, because it covers the
%% role. The acceptor sends its proof only to a caller that has proved that it knows the cookie. Before both proofs, no input is converted to an atom
%% or a term, and no packet exceeds 1 KB ({@link teleport_pool_socket:options/1}).
-module(teleport_pool_handshake).

-export([call/3, answer/2, version/0]).

-define(MAGIC, "BWTP").
-define(VERSION, 3).

%% @doc Returns the version of the handshake and of the protocol that follows. The lanes of 0.2.0 have version 2.
-spec version() -> pos_integer().
version() -> ?VERSION.

%% @doc Performs the caller's side of the handshake. The socket is passive.
-spec call(gen_tcp:socket(), node(), teleport_deadline:deadline()) -> ok | {error, Reason :: binary()}.
call(Socket, Node, Deadline) ->
    Hello = hello(atom_to_binary(node()), atom_to_binary(Node), nonce()),
    try
        say(Socket, Hello),
        <<?MAGIC, ?VERSION, $c, Nonce:32/binary>> = hear(Socket, Deadline),
        Said = {cookie(Node), Hello, Nonce},
        say(Socket, <<?MAGIC, ?VERSION, $p, (mac(caller, Said))/binary>>),
        <<?MAGIC, ?VERSION, $w, Mac:32/binary>> = hear(Socket, Deadline),
        check(acceptor, Mac, Said)
    catch
        throw:Reason -> {error, Reason};
        error:{badmatch, <<?MAGIC, ?VERSION, $r, Reason/binary>>} ->
            {error, <<"the peer refuses: ", (beamway_wire:printable(Reason))/binary>>};
        error:{badmatch, _} -> {error, <<"the peer does not speak this protocol">>}
    end.

%% @doc Performs the acceptor's side, on a passive socket. Only nodes connected over the distribution are admitted.
-spec answer(gen_tcp:socket(), teleport_deadline:deadline()) -> {ok, node()} | {error, Reason :: binary()}.
answer(Socket, Deadline) ->
    try
        {Hello, Node} = caller(hear(Socket, Deadline)),
        Nonce = nonce(),
        say(Socket, <<?MAGIC, ?VERSION, $c, Nonce/binary>>),
        <<?MAGIC, ?VERSION, $p, Mac:32/binary>> = hear(Socket, Deadline),
        Said = {cookie(Node), Hello, Nonce},
        ok = check(caller, Mac, Said),
        say(Socket, <<?MAGIC, ?VERSION, $w, (mac(acceptor, Said))/binary>>),
        {ok, Node}
    catch
        throw:Reason ->
            _ = gen_tcp:send(Socket, <<?MAGIC, ?VERSION, $r, Reason/binary>>),
            {error, Reason};
        error:{badmatch, _} -> {error, <<"it does not speak this protocol">>}
    end.

hello(Caller, Acceptor, Nonce) ->
    <<?MAGIC, ?VERSION, $h, (byte_size(Caller)):16, Caller/binary,
      (byte_size(Acceptor)):16, Acceptor/binary, Nonce:32/binary>>.

caller(<<?MAGIC, ?VERSION, $h, Length:16, Caller:Length/binary,
         Length2:16, Acceptor:Length2/binary, _:32/binary>> = Hello) ->
    Acceptor =:= atom_to_binary(node()) orelse throw(<<"another node was called">>),
    case [Node || Node <- nodes(connected), atom_to_binary(Node) =:= Caller] of
        [Node] -> {Hello, Node};
        [] -> throw(<<"not connected to this node">>)
    end;
caller(<<?MAGIC, Version, _/binary>>) when Version =/= ?VERSION ->
    throw(iolist_to_binary(io_lib:format("version ~b of this protocol, where ~b is spoken", [Version, ?VERSION])));
caller(Word) ->
    error({badmatch, Word}).

nonce() -> crypto:strong_rand_bytes(32).

cookie(Node) -> atom_to_binary(erlang:get_cookie(Node)).

mac(Role, {Cookie, Hello, Nonce}) ->
    crypto:mac(hmac, sha256, Cookie, [<<"beamway pool ", (atom_to_binary(Role))/binary, 0>>, Hello, Nonce]).

check(Role, Mac, Said) -> crypto:hash_equals(Mac, mac(Role, Said)) orelse throw(<<"another cookie">>), ok.

say(Socket, Word) ->
    case gen_tcp:send(Socket, Word) of
        ok -> ok;
        {error, Reason} -> throw(teleport_pool_socket:text(Reason))
    end.

hear(Socket, Deadline) ->
    case gen_tcp:recv(Socket, 0, teleport_deadline:left(Deadline)) of
        {ok, Word} -> Word;
        {error, Reason} -> throw(teleport_pool_socket:text(Reason))
    end.
