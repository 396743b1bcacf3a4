%% SPDX-License-Identifier: Apache-2.0
%% @doc The frames of a lane: what each byte means. Pure.
%%
%% A frame is a kind and its body. Small messages are one frame, `<<Kind, Term>>'; a large one is announced with the sizes of its
%% parts (first the term, then the binaries that were taken out of it, see {@link teleport_term}) and follows in pieces, which may be
%% mixed with those of other messages. Small ones that go out one behind the other may be one frame. All that a peer says is checked here before anything is done for it: a length is compared
%% with the limits when its header is read, before a byte of it has come.
-module(teleport_frame).

-export([small/2, batch/1, announce/3, piece/3, mark/0, ack/1, decode/1, is_request/1, is_answer/1]).
-export_type([kind/0, frame/0, stream/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-type kind() :: message | call | event_call | other_call | apply | apply_cast | confirmed | cancel | reply | failed | {referring, kind()}.
%% Caller to acceptor: all but the last two. `call': a gen call; `event_call': one of gen_event; `other_call': one with another label.
%% `confirmed': a message whose delivery is answered. `cancel': nobody waits for the answer any more.
%% `referring': some of its parts were passed by reference ({@link teleport_references}); only to an acceptor that offers that.
-type stream() :: 0..16#ffffffff.
-type frame() :: {small, kind(), Term :: binary()}
               | {batch, [{kind(), Term :: binary()}, ...]}
               | {announce, stream(), kind(), Sizes :: [non_neg_integer(), ...]}
               | {piece, stream(), binary()}
               | {ack, Messages :: non_neg_integer()}.

-define(MAX_PARTS, 1024).
-define(MAX_BATCH, 1024).
-define(ANNOUNCE, 64).
-define(PIECE, 65).
-define(ACK, 66).
-define(BATCH, 67).
%% A bit of a kind's code.
-define(REFERRING, 128).

%% @doc A whole message in one frame; `Term' in the external format.
-spec small(kind(), iodata()) -> iodata().
small(Kind, Term) -> [code(Kind) | Term].

%% @doc Several whole messages in one frame, in their order. Only to an acceptor that offers to take that.
-spec batch([{kind(), Term :: iodata(), Bytes :: non_neg_integer()}, ...]) -> iodata().
batch(Messages) -> [?BATCH | [[<<Bytes:32, (code(Kind))>> | Term] || {Kind, Term, Bytes} <- Messages]].

%% @doc Says which parts will follow in pieces.
-spec announce(stream(), kind(), Sizes :: [non_neg_integer(), ...]) -> iodata().
announce(Stream, Kind, Sizes) when length(Sizes) =< ?MAX_PARTS ->
    <<?ANNOUNCE, Stream:32, (code(Kind)), (length(Sizes)):16, << <<Size:64>> || Size <- Sizes >>/binary>>.

%% @doc The next bytes of an announced message; `Size' is that of the whole part. The driver reads this, too ({@link mark/0}).
-spec piece(stream(), Size :: non_neg_integer(), iodata()) -> iodata().
piece(Stream, Size, Data) -> [<<?PIECE, Stream:32, Size:64>> | Data].

%% @doc By which pieces are known ({@link beamway_lane}, option `parts').
-spec mark() -> 1..255.
mark() -> ?PIECE.

%% @doc How many messages of this lane have been delivered, all in all.
-spec ack(non_neg_integer()) -> iodata().
ack(Count) -> <<?ACK, Count:64>>.

%% @doc Reads what a peer has sent.
-spec decode(binary()) -> {ok, frame()} | {error, Reason :: binary()}.
decode(<<?PIECE, Stream:32, _:64, Data/binary>>) -> {ok, {piece, Stream, Data}};
decode(<<?ACK, Count:64>>) -> {ok, {ack, Count}};
decode(<<?BATCH, Messages/binary>>) when Messages =/= <<>> -> batch(Messages, [], ?MAX_BATCH);
decode(<<?ANNOUNCE, Stream:32, Code, Parts:16, Sizes:Parts/binary-unit:64>>) when Parts > 0, Parts =< ?MAX_PARTS ->
    case kind(Code) of
        unknown -> {error, <<"a message of an unknown kind">>};
        Kind -> {ok, {announce, Stream, Kind, [Size || <<Size:64>> <= Sizes]}}
    end;
decode(<<Code, Term/binary>>) ->
    case kind(Code) of
        unknown -> {error, <<"a frame of an unknown kind">>};
        Kind -> {ok, {small, Kind, Term}}
    end;
decode(_) ->
    {error, <<"an empty frame">>}.

%% What refers to something is never small.
batch(<<Bytes:32, Code, Term:Bytes/binary, Rest/binary>>, Messages, Left) when Left > 0, Code band ?REFERRING =:= 0 ->
    case kind(Code) of
        unknown -> {error, <<"a message of an unknown kind">>};
        Kind -> batch(Rest, [{Kind, Term} | Messages], Left - 1)
    end;
batch(<<>>, Messages, _) ->
    {ok, {batch, lists:reverse(Messages)}};
batch(_, _, _) ->
    {error, <<"a frame of several messages that is none">>}.

code({referring, Kind}) -> ?REFERRING bor code(Kind);
code(message) -> 1;
code(call) -> 2;
code(event_call) -> 3;
code(other_call) -> 4;
code(apply) -> 5;
code(apply_cast) -> 6;
code(confirmed) -> 7;
code(cancel) -> 8;
code(reply) -> 16;
code(failed) -> 17.

kind(Code) when Code band ?REFERRING =/= 0 ->
    case kind(Code band bnot ?REFERRING) of
        unknown -> unknown;
        Kind -> {referring, Kind}
    end;
kind(1) -> message;
kind(2) -> call;
kind(3) -> event_call;
kind(4) -> other_call;
kind(5) -> apply;
kind(6) -> apply_cast;
kind(7) -> confirmed;
kind(8) -> cancel;
kind(16) -> reply;
kind(17) -> failed;
kind(_) -> unknown.

%% @doc What only the caller's side may send.
-spec is_request(kind()) -> boolean().
is_request(Kind) -> not is_answer(Kind).

%% @doc What only the acceptor's side may send.
-spec is_answer(kind()) -> boolean().
is_answer(Kind) -> Kind =:= reply orelse Kind =:= failed.

-ifdef(TEST).

round_trip_test_() ->
    [?_assertEqual({ok, Frame}, decode(iolist_to_binary(Bytes)))
     || {Frame, Bytes} <- [{{small, call, <<"x">>}, small(call, <<"x">>)}, {{ack, 1 bsl 40}, ack(1 bsl 40)},
                           {{batch, [{call, <<"x">>}, {message, <<>>}]}, batch([{call, <<"x">>, 1}, {message, [], 0}])},
                           {{announce, 7, message, [1, 0, 1 bsl 40]}, announce(7, message, [1, 0, 1 bsl 40])},
                           {{piece, 16#ffffffff, <<"data">>}, piece(16#ffffffff, 4, ["da", <<"ta">>])},
                           {{piece, 0, <<>>}, piece(0, 0, [])}]].

nonsense_test_() ->
    [?_assertMatch({error, _}, decode(Bytes))
     || Bytes <- [<<>>, <<0>>, <<9, 1>>, <<255, 1, 2>>, <<?ANNOUNCE, 0:32, 1, 0:16>>, <<?ANNOUNCE, 0:32, 99, 1:16, 5:64>>,
                  <<?ANNOUNCE, 0:32, 1, 2:16, 5:64>>, <<?ANNOUNCE, 0:32, 1, 1:16, 5:64, 0>>, <<?ACK, 1:32>>, <<?PIECE, 1:24>>, <<?PIECE, 1:32, 1:32>>,
                  <<?ANNOUNCE, 0:32, 1, 2000:16, 0:(2000 * 64)>>, <<?BATCH>>, <<?BATCH, 1:24>>, <<?BATCH, 2:32, 1, $x>>, <<?BATCH, 1:32, 1, $x, 0>>,
                  <<?BATCH, 1:32, 99, $x>>, <<?BATCH, 1:32, (?REFERRING bor 1), $x>>,
                  <<?BATCH, (binary:copy(<<0:32, 1>>, ?MAX_BATCH + 1))/binary>>]].

directions_test() ->
    ?assert(is_request(call) andalso is_request(cancel) andalso not is_request(reply)),
    ?assert(is_answer(failed) andalso not is_answer(message)).

-endif.
