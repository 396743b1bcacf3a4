%% SPDX-License-Identifier: Apache-2.0
%% @doc Puts the pieces of large messages together again. Pure.
%%
%% Bounded in three ways: how many messages may be unfinished, how large one may be, and how many bytes all unfinished ones of a
%% lane may announce together. Memory grows with the bytes that have come, not with what was announced.
-module(teleport_reassembly).

-export([new/2, announce/4, piece/3, bytes/1]).
-export_type([reassembly/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(MAX_OPEN, 64).

-record(open, {kind :: teleport_frame:kind(),
               sizes :: [non_neg_integer(), ...],    %% of the parts that are not whole, the first one's rest
               pieces = [] :: [binary()],            %% of the first of those, the newest first
               parts = [] :: [binary()],             %% whole ones, the newest first
               total :: non_neg_integer()}).
-record(reassembly, {max_message :: pos_integer(),
                      max_all :: pos_integer(),
                      announced = 0 :: non_neg_integer(),
                      open = #{} :: #{teleport_frame:stream() => #open{}}}).
-opaque reassembly() :: #reassembly{}.

%% @doc Nothing is open; the limits of one message and of all together, in bytes.
-spec new(MaxMessage :: pos_integer(), MaxAll :: pos_integer()) -> reassembly().
new(MaxMessage, MaxAll) -> #reassembly{max_message = MaxMessage, max_all = MaxAll}.

%% @doc A large message will come.
-spec announce(teleport_frame:stream(), teleport_frame:kind(), [non_neg_integer(), ...], reassembly()) ->
          {ok, reassembly()} | {error, Reason :: binary()}.
announce(Stream, Kind, Sizes, #reassembly{open = Open, announced = Announced, max_message = Max, max_all = MaxAll} = State) ->
    Total = lists:sum(Sizes),
    if
        is_map_key(Stream, Open) -> {error, <<"a message was announced twice">>};
        Total > Max -> refuse("a message of ~b bytes; at most ~b are allowed (max_message_bytes)", [Total, Max]);
        map_size(Open) >= ?MAX_OPEN -> refuse("more than ~b unfinished messages", [?MAX_OPEN]);
        Announced + Total > MaxAll -> refuse("unfinished messages of more than ~b bytes", [MaxAll]);
        true ->
            {ok, State#reassembly{announced = Announced + Total, open = Open#{Stream => #open{kind = Kind, sizes = Sizes, total = Total}}}}
    end.

refuse(Format, Args) -> {error, iolist_to_binary(io_lib:format(Format, Args))}.

%% @doc Some of its bytes have come; with the last ones the parts are whole.
-spec piece(teleport_frame:stream(), binary(), reassembly()) ->
          {more, reassembly()} | {whole, teleport_frame:kind(), [binary(), ...], reassembly()} | {error, Reason :: binary()}.
piece(Stream, Data, #reassembly{open = Open} = State) ->
    case Open of
        #{Stream := #open{sizes = [Size | _]}} when byte_size(Data) > Size ->
            {error, <<"more bytes than were announced">>};
        #{Stream := #open{sizes = [Size | Sizes], pieces = Pieces} = Message} ->
            added(Message#open{sizes = [Size - byte_size(Data) | Sizes], pieces = [Data | Pieces]}, Stream, State);
        #{} ->
            {error, <<"a piece of a message that was not announced">>}
    end.

added(#open{sizes = [0 | Sizes], pieces = Pieces, parts = Parts} = Message, Stream, #reassembly{open = Open} = State) ->
    Whole = [joined(Pieces) | Parts],
    case Sizes of
        [] ->
            #open{kind = Kind, total = Total} = Message,
            {whole, Kind, lists:reverse(Whole), State#reassembly{open = maps:remove(Stream, Open), announced = State#reassembly.announced - Total}};
        _ ->
            {more, State#reassembly{open = Open#{Stream := Message#open{sizes = Sizes, pieces = [], parts = Whole}}}}
    end;
added(Message, Stream, #reassembly{open = Open} = State) ->
    {more, State#reassembly{open = Open#{Stream := Message}}}.

joined([Only]) -> Only;
joined(Pieces) -> iolist_to_binary(lists:reverse(Pieces)).

%% @doc How many bytes the unfinished messages have announced.
-spec bytes(reassembly()) -> non_neg_integer().
bytes(#reassembly{announced = Announced}) -> Announced.

-ifdef(TEST).

mixed_messages_come_out_whole_test() ->
    {ok, G1} = announce(1, message, [3, 2], new(100, 200)),
    {ok, G2} = announce(2, reply, [4], G1),
    ?assertEqual(9, bytes(G2)),
    {more, G3} = piece(1, <<"ab">>, G2),
    {more, G4} = piece(2, <<"wxy">>, G3),
    {more, G5} = piece(1, <<"c">>, G4),
    {whole, reply, [<<"wxyz">>], G6} = piece(2, <<"z">>, G5),
    {whole, message, [<<"abc">>, <<"de">>], G7} = piece(1, <<"de">>, G6),
    ?assertEqual(0, bytes(G7)).

limits_test_() ->
    {ok, Open} = announce(1, message, [60], new(100, 150)),
    Full = lists:foldl(fun(N, G) -> {ok, Next} = announce(N, message, [0], G), Next end, new(100, 150), lists:seq(1, ?MAX_OPEN)),
    [?_assertMatch({error, _}, Result)
     || Result <- [announce(1, message, [1], Open), announce(2, message, [101], Open), announce(2, message, [100], Open),
                   announce(2, message, [1 bsl 40], Open), announce(2, message, [1 bsl 63, 1 bsl 63], Open), announce(999, message, [1], Full),
                   piece(2, <<"x">>, Open), piece(1, binary:copy(<<"x">>, 61), Open)]].

-endif.
