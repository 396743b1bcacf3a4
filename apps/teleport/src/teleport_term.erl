%% SPDX-License-Identifier: Apache-2.0
%% @doc Terms as the parts of a message, and back. Pure.
%%
%% The first part is the term in the external format. Decoding that copies each binary in it, so large binaries are taken out
%% before: they become parts of their own, and their places in the term (tuples, lists and values of maps, a few levels deep)
%% are told beside it. Then neither side copies them more than once. Binaries that lie deeper stay where they are.
-module(teleport_term).

-export([pack/1, pack/2, unpack/1, unpack/2]).
-export_type([parts/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type parts() :: [iodata(), ...].
%% The term, then the binaries.
-type path() :: [{e, pos_integer()} | h | t | {k, term()}].
%% From the root: an element of a tuple, the head or tail of a list, a key of a map.

-define(LARGE_BYTES, 65536).
-define(DEPTH, 6).
-define(VISITS, 64).
-define(MAX_OUT, 32).

%% @doc `{small, Iolist, Bytes}' for what needs no second part.
-spec pack(term()) -> {small, iodata(), Bytes :: non_neg_integer()} | {parts, parts(), Bytes :: non_neg_integer()}.
pack(Term) ->
    pack(Term, ?LARGE_BYTES).

%% @doc The same, with the size from which a binary is large.
-spec pack(term(), pos_integer()) -> {small, iodata(), Bytes :: non_neg_integer()} | {parts, parts(), Bytes :: non_neg_integer()}.
pack(Term, Large) ->
    Encoded = erlang:term_to_iovec(Term),
    case iolist_size(Encoded) of
        Size when Size < Large -> {small, Encoded, Size};
        Size -> taken_out(take_out(Term, Large), Encoded, Size)
    end.

taken_out({_, [], _}, Encoded, Size) ->
    {small, Encoded, Size};
taken_out({Rest, Out, _}, _, _) ->
    {Paths, Binaries} = lists:unzip(Out),
    Parts = [erlang:term_to_iovec([Paths | Rest]) | Binaries],
    {parts, Parts, iolist_size(Parts)}.

take_out(Term, Large) ->
    take_out(Term, [], ?DEPTH, Large, {[], ?VISITS}).

%% Gives the rest of the term, what was taken out and how many terms may still be looked at.
take_out(Binary, Path, _, Large, {Out, Visits}) when is_binary(Binary), byte_size(Binary) >= Large, length(Out) < ?MAX_OUT ->
    {<<>>, [{lists:reverse(Path), Binary} | Out], Visits};
take_out(Tuple, Path, Depth, Large, {Out, Visits}) when is_tuple(Tuple), Depth > 0, Visits > 0, tuple_size(Tuple) =< ?VISITS ->
    take_elements(tuple_size(Tuple), Tuple, Path, Depth, Large, {Out, Visits - 1});
take_out([Head | Tail], Path, Depth, Large, {Out, Visits}) when Depth > 0, Visits > 0 ->
    {NewHead, Out1, Visits1} = take_out(Head, [h | Path], Depth - 1, Large, {Out, Visits - 1}),
    {NewTail, Out2, Visits2} = take_out(Tail, [t | Path], Depth, Large, {Out1, Visits1}),
    {[NewHead | NewTail], Out2, Visits2};
take_out(Map, Path, Depth, Large, {Out, Visits}) when is_map(Map), Depth > 0, Visits > 0, map_size(Map) =< ?VISITS ->
    maps:fold(fun(Key, Value, {Acc, Out1, Visits1}) ->
                      {New, Out2, Visits2} = take_out(Value, [{k, Key} | Path], Depth - 1, Large, {Out1, Visits1}),
                      {case Out2 of Out1 -> Acc; _ -> Acc#{Key := New} end, Out2, Visits2}
              end, {Map, Out, Visits - 1}, Map);
take_out(Other, _, _, _, {Out, Visits}) ->
    {Other, Out, Visits}.

take_elements(0, Tuple, _, _, _, {Out, Visits}) ->
    {Tuple, Out, Visits};
take_elements(N, Tuple, Path, Depth, Large, {Out, Visits}) ->
    {New, Out1, Visits1} = take_out(element(N, Tuple), [{e, N} | Path], Depth - 1, Large, {Out, Visits}),
    Changed = case Out1 of Out -> Tuple; _ -> setelement(N, Tuple, New) end,
    take_elements(N - 1, Changed, Path, Depth, Large, {Out1, Visits1}).

%% @doc The term of a message without parts. Fails with `badarg' if the bytes are no term.
-spec unpack(binary()) -> term().
unpack(Term) -> binary_to_term(Term).

%% @doc The term of a message whose binaries came as parts. Fails if the peer sent what {@link pack/1} never makes.
-spec unpack(binary(), [binary()]) -> term().
unpack(Term, []) ->
    binary_to_term(Term);
unpack(Term, Binaries) ->
    [Paths | Rest] = binary_to_term(Term),
    lists:foldl(fun({Path, Binary}, Acc) -> put_back(Path, Binary, Acc) end, Rest, lists:zip(Paths, Binaries)).

-spec put_back(path(), binary(), term()) -> term().
put_back([], Binary, <<>>) -> Binary;
put_back([{e, N} | Path], Binary, Tuple) -> setelement(N, Tuple, put_back(Path, Binary, element(N, Tuple)));
put_back([h | Path], Binary, [Head | Tail]) -> [put_back(Path, Binary, Head) | Tail];
put_back([t | Path], Binary, [Head | Tail]) -> [Head | put_back(Path, Binary, Tail)];
put_back([{k, Key} | Path], Binary, Map) -> Map#{Key := put_back(Path, Binary, maps:get(Key, Map))}.

-ifdef(TEST).

again({small, Encoded, _}) -> unpack(iolist_to_binary(Encoded));
again({parts, [Term | Binaries], _}) -> unpack(iolist_to_binary(Term), Binaries).

large() -> binary:copy(<<"x">>, ?LARGE_BYTES).

small_terms_have_one_part_test_() ->
    [?_assertMatch({small, _, _}, pack(Term))
     || Term <- [ok, <<"x">>, {a, [b | c]}, #{k => v}, lists:seq(1, 10000), lists:seq(1, 100000)]].

large_binaries_are_taken_out_test_() ->
    [?_assertEqual(Term, again(pack(Term)))
     || Term <- [large(), {a, large(), [b, large() | tail]}, #{k => large(), l => {m, large()}}, [large() | large()], {<<>>, large(), <<>>},
                 lists:duplicate(100, large()), {{{{{{{{large()}}}}}}}}]]
        ++ [?_assertMatch({parts, [_, _, _], _}, pack({large(), [x, large()]}))].

what_no_peer_sends_fails_test_() ->
    Encoded = fun(Paths, Term) -> term_to_binary([Paths | Term]) end,
    [?_assertError(_, unpack(Term, [large()]))
     || Term <- [<<>>, <<131>>, term_to_binary(x), Encoded([[{e, 3}]], {a}), Encoded([[]], not_a_hole), Encoded([[h]], []),
                 Encoded([[], []], <<>>), Encoded(5, <<>>)]].

-endif.
