%% SPDX-License-Identifier: Apache-2.0
%% @doc Terms as the messages of a pool's connection, and back. Pure.
%%
%% A packet on the wire is one message or several, each behind its length. Decoding copies the binaries of a term, so the large ones travel beside it:
%% an atom that stands for a binary takes its place, and the receiver puts back a part of the packet. This finds binaries in tuples, lists and maps that
%% are neither wide nor deep. All others are copied, as if they were small.
-module(teleport_pool_frame).

-export([encode/1, decode/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(LARGE_BYTES, 65536).
-define(DEPTH, 6).
-define(WIDTH, 16).
-define(MAX_BESIDE, 255).
-define(HOLE, '$teleport_hole').

%% @doc A message, and its size on the wire. The encoding is that of the distribution: pids, references and funs of this node arrive as such.
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

%% Whoever sends the very atom gets no binaries beside the term.
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

%% @doc The terms of a packet. Fails with an error if the peer sent what {@link encode/1} never makes.
-spec decode(binary()) -> [term()].
decode(<<Bytes:32, Message:Bytes/binary, Rest/binary>>) -> [term(Message) | decode(Rest)];
decode(<<>>) -> [].

term(<<0, Term/binary>>) ->
    binary_to_term(Term);
term(<<Count, Sizes:Count/binary-unit:32, Rest/binary>>) ->
    Lengths = [Length || <<Length:32>> <= Sizes],
    {Term, Beside} = split_binary(Rest, byte_size(Rest) - lists:sum(Lengths)),
    {Whole, []} = walk(binary_to_term(Term), ?DEPTH, cut(Lengths, Beside), fun(?HOLE, [Binary | Left]) -> {Binary, Left}; (Other, Left) -> {Other, Left} end),
    Whole.

cut([Length | Lengths], Binary) ->
    <<First:Length/binary, Rest/binary>> = Binary,
    [First | cut(Lengths, Rest)];
cut([], <<>>) -> [].

%% Both nodes visit the same places in the same order. Only values of maps change, and a map's keys are sorted, since each node has an order of its own.
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

walk_each(Terms, Depth, Acc, Visit) -> lists:mapfoldl(fun(Term, Before) -> walk(Term, Depth, Before, Visit) end, Acc, Terms).

-ifdef(TEST).

again(Term) -> decode(packet([Term])).

packet(Terms) -> iolist_to_binary([element(1, encode(Term)) || Term <- Terms]).

large() -> binary:copy(<<"x">>, ?LARGE_BYTES).

terms() ->
    [ok, <<>>, self(), make_ref(), fun erlang:node/0, #{1 => a, 1.0 => b}, lists:seq(1, 100000), large(), {a, large(), [b, large() | tail]},
     #{k => large(), 1 => {m, large()}, 1.0 => large()}, [large() | large()], lists:duplicate(300, large()), list_to_tuple(lists:duplicate(15, lists:duplicate(4, #{a => large()}))),
     {?HOLE, large()}, ?HOLE, {large(), ?HOLE}, {{{{{{{{large()}}}}}}}}, maps:from_keys(lists:seq(1, 100), large()), <<(large())/binary, 1:3>>].

terms_come_back_test_() ->
    Terms = terms(),
    [?_assertEqual([Term], again(Term)) || Term <- Terms] ++ [?_assertEqual(Terms, decode(packet(Terms)))].

sizes_are_right_test_() ->
    [begin {Data, Bytes} = encode(Term), ?_assertEqual(iolist_size(Data), Bytes) end || Term <- terms()].

%% A part of the packet, not a copy of it.
large_binaries_are_not_copied_test() ->
    Packet = packet([{to, {put, #{k => large()}}}]),
    [{to, {put, #{k := Binary}}}] = decode(Packet),
    ?assertEqual(byte_size(Packet), binary:referenced_byte_size(Binary)).

what_no_peer_sends_fails_test_() ->
    [?_assertError(_, decode(Packet))
     || Packet <- [<<1>>, <<5:32, 0>>, <<1:32, 0>>, <<3:32, 0, 131, 255>>, <<2:32, 1, 0>>, <<5:32, 1, 9:32>>, <<8:32, 1, 0:32, 131, 97, 1>>, <<9:32, 1, 7:32, 131, 97, 1, 2>>]].

-endif.
