%% SPDX-License-Identifier: Apache-2.0
%% @doc Encodes terms as the messages of a pool's connection, and decodes them. All functions are pure.
%%
%% A packet contains one or more messages, each preceded by its length. Decoding copies the binaries in a term, so
%% large binaries are sent outside of the encoded term: an atom replaces each one, and the receiver replaces the atom
%% with a part of the packet. Only binaries in tuples, lists and maps that are neither wide nor deeply nested are
%% found. All others stay in the term and are copied.
-module(teleport_pool_frame).

-export([encode/1, decode/1]).

-define(LARGE_BYTES, 65536).
-define(DEPTH, 6).
-define(WIDTH, 16).
-define(MAX_BESIDE, 255).
-define(HOLE, '$teleport_hole').

%% @doc Returns a message and its size on the wire. Pids, references and funs of this node keep their identity, as
%% over the distribution.
-spec encode(term()) -> {iodata(), Bytes :: pos_integer()}.
encode(Term) ->
    Encoded = erlang:term_to_iovec(Term),
    case lists:any(fun is_large/1, Encoded) andalso taken_out(Term) of
        {Rest, [_ | _] = Binaries} -> message(erlang:term_to_iovec(Rest), Binaries);
        _ -> message(Encoded, [])
    end.

message(Encoded, Binaries) ->
    Head = <<(length(Binaries)), << <<(byte_size(Binary)):32>> || Binary <- Binaries >>/binary>>,
    Bytes = byte_size(Head) + iolist_size(Encoded) + iolist_size(Binaries),
    {[<<Bytes:32>>, Head, Encoded | Binaries], Bytes + 4}.

is_large(Binary) -> byte_size(Binary) >= ?LARGE_BYTES.

%% If the term itself contains the atom, the binaries are left in it.
taken_out(Term) ->
    Take = fun(?HOLE, _) -> throw(ambiguous);
              (Binary, Taken) when is_binary(Binary), byte_size(Binary) >= ?LARGE_BYTES -> {?HOLE, [Binary | Taken]};
              (Other, Taken) -> {Other, Taken}
           end,
    try walk(Term, ?DEPTH, [], Take) of
        {Rest, Taken} when length(Taken) =< ?MAX_BESIDE -> {Rest, lists:reverse(Taken)};
        _ -> none
    catch throw:ambiguous -> none
    end.

%% @doc Returns the terms of a packet. Fails if the peer sent something that {@link encode/1} never produces.
-spec decode(binary()) -> [term()].
decode(<<Bytes:32, Message:Bytes/binary, Rest/binary>>) -> [term(Message) | decode(Rest)];
decode(<<>>) -> [].

term(<<0, Term/binary>>) ->
    binary_to_term(Term);
term(<<Count, Sizes:Count/binary-unit:32, Rest/binary>>) ->
    Lengths = [Length || <<Length:32>> <= Sizes],
    {Term, Beside} = split_binary(Rest, byte_size(Rest) - lists:sum(Lengths)),
    PutBack = fun(?HOLE, [Binary | Left]) -> {Binary, Left};
                 (Other, Left) -> {Other, Left}
              end,
    {Whole, []} = walk(binary_to_term(Term), ?DEPTH, cut(Lengths, Beside), PutBack),
    Whole.

cut([Length | Lengths], Binary) ->
    <<First:Length/binary, Rest/binary>> = Binary,
    [First | cut(Lengths, Rest)];
cut([], <<>>) -> [].

%% Both nodes visit the same places in the same order. The keys of a map are sorted, because the order in which a map
%% lists them may differ between nodes.
walk(Tuple, Depth, Acc, Visit) when is_tuple(Tuple), Depth > 0, tuple_size(Tuple) =< ?WIDTH ->
    {Elements, Next} = walk_each(tuple_to_list(Tuple), Depth - 1, Acc, Visit),
    {list_to_tuple(Elements), Next};
walk([Head | Tail], Depth, Acc, Visit) when Depth > 0 ->
    {NewHead, Acc1} = walk(Head, Depth - 1, Acc, Visit),
    {NewTail, Acc2} = walk(Tail, Depth - 1, Acc1, Visit),
    {[NewHead | NewTail], Acc2};
walk(Map, Depth, Acc, Visit) when is_map(Map), Depth > 0, map_size(Map) =< ?WIDTH ->
    Keys = lists:sort(maps:keys(Map)),
    {Values, Next} = walk_each([map_get(Key, Map) || Key <- Keys], Depth - 1, Acc, Visit),
    {maps:from_list(lists:zip(Keys, Values)), Next};
walk(Leaf, _, Acc, Visit) ->
    Visit(Leaf, Acc).

walk_each(Terms, Depth, Acc, Visit) ->
    lists:mapfoldl(fun(Term, Before) -> walk(Term, Depth, Before, Visit) end, Acc, Terms).
