%% SPDX-License-Identifier: Apache-2.0
%% @doc Splits a stream of bytes into packets, each of which is preceded by its four-byte length.
%%
%% All functions are pure. A packet is an iolist of the pieces in which it arrived, to avoid copying large ones.
-module(beamway_tls_packets).

-export([new/0, add/2]).
-export_type([state/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-opaque state() :: binary() | {Missing :: pos_integer(), Pieces :: [binary()]}.
%% Either fewer than four bytes of a length, or an incomplete packet, with its last piece first.

%% @doc Returns the state before the first byte.
-spec new() -> state().
new() -> <<>>.

%% @doc Returns the packets that are now complete, in order.
-spec add(binary(), state()) -> {[iodata()], state()}.
add(Data, {Missing, Pieces}) when byte_size(Data) < Missing ->
    {[], {Missing - byte_size(Data), [Data | Pieces]}};
add(Data, {Missing, Pieces}) ->
    <<Last:Missing/binary, Rest/binary>> = Data,
    {More, State} = split(Rest),
    {[lists:reverse(Pieces, [Last]) | More], State};
add(Data, Start) ->
    split(<<Start/binary, Data/binary>>).

split(<<Size:32, Packet:Size/binary, Rest/binary>>) ->
    {More, State} = split(Rest),
    {[Packet | More], State};
split(<<Size:32, Piece/binary>>) ->
    {[], {Size - byte_size(Piece), [Piece]}};
split(Start) ->
    {[], binary:copy(Start)}.

-ifdef(TEST).

any_cut_test_() ->
    Packets = [<<>>, <<1>>, <<"abc">>, binary:copy(<<7>>, 300), <<>>, <<0, 0, 0, 9>>],
    Stream = << <<(byte_size(P)):32, P/binary>> || P <- Packets >>,
    [?_assertEqual({Packets, new()}, feed(cut(Stream, Size), new())) || Size <- lists:seq(1, byte_size(Stream))].

the_rest_waits_test() ->
    {[], Begun} = add(<<5:32, "ab">>, new()),
    {[Packet], State} = add(<<"cde", 0, 0>>, Begun),
    ?assertEqual(<<"abcde">>, iolist_to_binary(Packet)),
    ?assertEqual({[<<"x">>], new()}, add(<<0, 1, "x">>, State)).

feed([], State) ->
    {[], State};
feed([Piece | Rest], State) ->
    {Whole, Next} = add(Piece, State),
    {More, Last} = feed(Rest, Next),
    {[iolist_to_binary(Packet) || Packet <- Whole] ++ More, Last}.

cut(Stream, Size) when byte_size(Stream) =< Size -> [Stream];
cut(<<Stream/binary>>, Size) ->
    <<Piece:Size/binary, Rest/binary>> = Stream,
    [Piece | cut(Rest, Size)].

-endif.
