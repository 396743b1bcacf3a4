%% SPDX-License-Identifier: Apache-2.0
%% @doc Which bytes of a lane go next. Pure.
%%
%% Messages wait in one queue for each order key. The keys have their turn one after the other; a turn is one small message or one
%% piece of a large one, so a small message waits for at most one piece of every other key. Within a key the order is kept: a
%% message begins when the one before it has ended. At most so many large messages, and bytes of them, are under way at a time that the
%% peer's memory for unfinished ones stays bounded; a key whose turn it is waits until one of those is done.
%%
%% If the peer takes batches, turns that are small messages and follow each other are one frame: what comes out has the same order.
%% And while no key waits, small messages stand in one line, as many as one frame takes. It goes out before all that comes later, so nobody need know their keys.
-module(teleport_schedule).

-export([new/1, new/2, in/5, out/1, is_empty/1, keys/1]).
-export_type([schedule/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(MAX_OPEN, 16).
%% A peer takes no more of all unfinished messages: {@link teleport_inbound}, and the driver of each lane.
-define(MAX_OPEN_BYTES, 1 bsl 32).

%% Of one frame with several messages. It is no larger than a piece, for whatever comes meanwhile waits for it.
-define(BATCH_MESSAGES, 64).
-define(BATCH_BYTES, 65536).

-record(big, {stream :: teleport_frame:stream(),
              sizes :: [non_neg_integer(), ...],    %% of the parts that are left, each as a whole
              parts :: teleport_term:parts(),   %% the rest of them
              bytes :: non_neg_integer()}).     %% of the whole message, for the account
-type small() :: {small, teleport_frame:kind(), iodata(), Bytes :: non_neg_integer()}.
-type item() :: small() | {large, teleport_frame:kind(), teleport_term:parts(), Bytes :: non_neg_integer()}.
-type through() :: {Messages :: pos_integer(), Bytes :: non_neg_integer()}.
-record(schedule, {chunk :: pos_integer(),
                   %% so many bytes of several small messages may be one frame; 0: each is a frame of its own
                   batch_bytes :: non_neg_integer(),
                   %% what came while no key waited, the newest first
                   line = {0, 0, []} :: {Messages :: non_neg_integer(), Bytes :: non_neg_integer(), [{Key :: term(), small()}]},
                   %% each key that waits, once
                   ring = queue:new() :: queue:queue(Key :: term()),
                   %% of each of these: what is under way, what follows
                   keys = #{} :: #{Key :: term() => {none | #big{}, queue:queue(item())}},
                   open = 0 :: non_neg_integer(),
                   open_bytes = 0 :: non_neg_integer(),
                   stream = 0 :: teleport_frame:stream()}).
-opaque schedule() :: #schedule{}.

%% @doc An empty one, for pieces of at most so many bytes.
-spec new(ChunkBytes :: pos_integer()) -> schedule().
new(ChunkBytes) -> new(ChunkBytes, false).

%% @doc The same. `Batches': the peer takes frames with several small messages.
-spec new(ChunkBytes :: pos_integer(), Batches :: boolean()) -> schedule().
new(ChunkBytes, Batches) -> #schedule{chunk = ChunkBytes, batch_bytes = case Batches of true -> min(?BATCH_BYTES, ChunkBytes); false -> 0 end}.

%% @doc Adds a message to the queue of its key. A single part that is no larger than a piece is sent as a small message.
-spec in(Key :: term(), teleport_frame:kind(), teleport_term:parts(), Bytes :: non_neg_integer(), schedule()) -> schedule().
in(Key, Kind, [Term], Bytes, #schedule{batch_bytes = Most, keys = Keys, line = {Count, Sum, Line}} = Schedule)
  when map_size(Keys) =:= 0, Count < ?BATCH_MESSAGES, Sum + Bytes =< Most ->
    Schedule#schedule{line = {Count + 1, Sum + Bytes, [{Key, {small, Kind, Term, Bytes}} | Line]}};
in(Key, Kind, Parts, Bytes, #schedule{chunk = Chunk, ring = Ring, keys = Keys} = Schedule) ->
    Item = case Parts of
               [Term] when Bytes =< Chunk -> {small, Kind, Term, Bytes};
               _ -> {large, Kind, Parts, Bytes}
           end,
    case Keys of
        #{Key := {Begun, Queue}} ->
            Schedule#schedule{keys = Keys#{Key := {Begun, queue:in(Item, Queue)}}};
        #{} ->
            Schedule#schedule{ring = queue:in(Key, Ring), keys = Keys#{Key => {none, queue:from_list([Item])}}}
    end.

%% @doc The next frames, and the messages that are through with them.
-spec out(schedule()) -> empty | {[iodata(), ...], none | through(), schedule()}.
out(#schedule{line = {Count, Sum, [_ | _] = Line}} = Schedule) ->
    {[small_frame([Small || {_, Small} <- Line])], {Count, Sum}, Schedule#schedule{line = {0, 0, []}}};
out(#schedule{keys = Keys} = Schedule) ->
    case out(map_size(Keys), Schedule) of
        {{small, _, _, Bytes} = Small, Next} -> batch([Small], 1, Bytes, Next);
        Other -> Other
    end.

batch(Smalls, Count, Sum, #schedule{batch_bytes = Most} = Schedule) ->
    case Count < ?BATCH_MESSAGES andalso Sum < Most andalso is_small_next(Most - Sum, Schedule) of
        true ->
            {{small, _, _, Bytes} = Small, Next} = out(1, Schedule),
            batch([Small | Smalls], Count + 1, Sum + Bytes, Next);
        false ->
            {[small_frame(Smalls)], {Count, Sum}, Schedule}
    end.

is_small_next(Room, #schedule{ring = Ring, keys = Keys}) ->
    case queue:peek(Ring) of
        {value, Key} -> is_small(map_get(Key, Keys), Room);
        empty -> false
    end.

is_small({none, Queue}, Room) ->
    case queue:get(Queue) of
        {small, _, _, Bytes} -> Bytes =< Room;
        _ -> false
    end;
is_small(_, _) -> false.

small_frame([{small, Kind, Term, _}]) -> teleport_frame:small(Kind, Term);
small_frame(Smalls) -> teleport_frame:batch([{Kind, Term, Bytes} || {small, Kind, Term, Bytes} <- lists:reverse(Smalls)]).

out(0, _) ->
    empty;
out(Tries, #schedule{ring = Ring, keys = Keys} = Schedule) ->
    {{value, Key}, Rest} = queue:out(Ring),
    case next(maps:get(Key, Keys), Schedule) of
        wait -> out(Tries - 1, Schedule#schedule{ring = queue:in(Key, Rest)});
        {Begun, Queue} -> turn(Begun, Queue, Key, Schedule#schedule{ring = Rest})
    end.

%% Some large message is always under way when another has to wait, so a whole round without a turn cannot be.
next({none, Queue}, #schedule{open = Open, open_bytes = OpenBytes}) ->
    case queue:peek(Queue) of
        {value, {large, _, _, Bytes}} when Open >= ?MAX_OPEN; OpenBytes + Bytes > ?MAX_OPEN_BYTES -> wait;
        {value, Item} -> {Item, queue:drop(Queue)}
    end;
next({Big, Queue}, _) ->
    {Big, Queue}.

turn({small, _, _, _} = Small, Queue, Key, Schedule) ->
    {Small, later(none, Queue, Key, Schedule)};
turn({large, Kind, Parts, Bytes}, Queue, Key, #schedule{stream = Stream, open = Open, open_bytes = OpenBytes} = Schedule) ->
    Sizes = [iolist_size(Part) || Part <- Parts],
    Announced = teleport_frame:announce(Stream, Kind, Sizes),
    Big = #big{stream = Stream, sizes = Sizes, parts = [erlang:iolist_to_iovec(Part) || Part <- Parts], bytes = Bytes},
    Begun = Schedule#schedule{stream = (Stream + 1) band 16#ffffffff, open = Open + 1, open_bytes = OpenBytes + Bytes},
    {Frames, Done, Next} = turn(Big, Queue, Key, Begun),
    {[Announced | Frames], Done, Next};
turn(#big{stream = Stream, sizes = [Size | Sizes], parts = [Part | Parts], bytes = Bytes} = Big, Queue, Key, Schedule) ->
    #schedule{chunk = Chunk, open = Open, open_bytes = OpenBytes} = Schedule,
    {Piece, Rest} = cut(Part, Chunk),
    Frames = [teleport_frame:piece(Stream, Size, Piece)],
    case {Rest, Parts} of
        {[], []} -> {Frames, {1, Bytes}, later(none, Queue, Key, Schedule#schedule{open = Open - 1, open_bytes = OpenBytes - Bytes})};
        {[], _} -> {Frames, none, later(Big#big{sizes = Sizes, parts = Parts}, Queue, Key, Schedule)};
        _ -> {Frames, none, later(Big#big{parts = [Rest | Parts]}, Queue, Key, Schedule)}
    end.

%% The key goes to the end of the ring, or leaves.
later(Begun, Queue, Key, #schedule{ring = Ring, keys = Keys} = Schedule) ->
    case Begun =:= none andalso queue:is_empty(Queue) of
        true -> Schedule#schedule{keys = maps:remove(Key, Keys)};
        false -> Schedule#schedule{ring = queue:in(Key, Ring), keys = Keys#{Key := {Begun, Queue}}}
    end.

%% The first bytes of an iovec, and the rest of it. Binaries are divided without a copy.
cut(Iovec, Bytes) -> cut(Iovec, Bytes, []).

cut([Binary | Rest], Bytes, Acc) when byte_size(Binary) =< Bytes ->
    cut(Rest, Bytes - byte_size(Binary), [Binary | Acc]);
cut([Binary | Rest], Bytes, Acc) when Bytes > 0 ->
    <<First:Bytes/binary, Later/binary>> = Binary,
    {lists:reverse(Acc, [First]), [Later | Rest]};
cut(Rest, _, Acc) ->
    {lists:reverse(Acc), Rest}.

%% @doc Whether nothing waits.
-spec is_empty(schedule()) -> boolean().
is_empty(#schedule{keys = Keys, line = {Count, _, _}}) -> Count + map_size(Keys) =:= 0.

%% @doc How many order keys have something that waits.
-spec keys(schedule()) -> non_neg_integer().
keys(#schedule{keys = Keys, line = {_, _, Line}}) -> map_size(Keys) + length(lists:usort([Key || {Key, _} <- Line, not is_map_key(Key, Keys)])).

-ifdef(TEST).

frames(Schedule) ->
    case out(Schedule) of
        empty -> [];
        {Frames, _, Next} -> [decoded(Frame) || Frame <- Frames] ++ frames(Next)
    end.

decoded(Frame) ->
    {ok, Decoded} = teleport_frame:decode(iolist_to_binary(Frame)),
    Decoded.

a_small_one_does_not_wait_behind_a_large_one_test() ->
    Big = in(a, message, [binary:copy(<<"b">>, 1000)], 1000, new(100)),
    {_, none, Begun} = out(Big),
    Frames = frames(in(b, message, [<<"s">>], 1, Begun)),
    ?assertMatch([{piece, 0, _}, {small, message, <<"s">>}, {piece, 0, _} | _], Frames).

the_order_of_a_key_is_kept_test() ->
    Both = in(a, message, [<<"s">>], 1, in(a, message, [binary:copy(<<"b">>, 250)], 250, new(100))),
    ?assertMatch([{announce, 0, message, [250]}, {piece, 0, <<_:100/binary>>}, {piece, 0, <<_:100/binary>>}, {piece, 0, <<_:50/binary>>},
                  {small, message, <<"s">>}], frames(Both)).

few_large_ones_are_open_at_a_time_test() ->
    Many = lists:foldl(fun(Key, S) -> in(Key, message, [binary:copy(<<"b">>, 1000)], 1000, S) end, new(100), lists:seq(1, 100)),
    Open = lists:foldl(fun({announce, Stream, _, _}, {Now, Max}) -> {Now#{Stream => 0}, max(Max, map_size(Now) + 1)};
                          ({piece, Stream, Data}, {Now, Max}) ->
                               case maps:get(Stream, Now) + byte_size(Data) of
                                   1000 -> {maps:remove(Stream, Now), Max};
                                   So -> {Now#{Stream := So}, Max}
                               end
                       end, {#{}, 0}, frames(Many)),
    ?assertEqual({#{}, ?MAX_OPEN}, Open).

small_ones_go_together_test() ->
    Four = fun(Before) -> lists:foldl(fun({Key, N}, S) -> in(Key, message, [<<N>>], 1, S) end, Before, [{a, 1}, {a, 2}, {b, 3}, {c, 4}]) end,
    Line = Four(new(100, true)),
    ?assertEqual({3, false}, {keys(Line), is_empty(Line)}),
    ?assertEqual(4, keys(in(d, message, [binary:copy(<<"b">>, 250)], 250, in(a, message, [binary:copy(<<"b">>, 250)], 250, Line)))),
    {[Frame], {4, 4}, Rest} = out(Line),
    ?assertEqual({batch, [{message, <<N>>} || N <- [1, 2, 3, 4]]}, decoded(Frame)),
    ?assertEqual({empty, true}, {out(Rest), is_empty(Rest)}),
    %% By turns where a key waits.
    ?assertMatch([{announce, 0, message, [250]}, {piece, 0, _}, {batch, [{message, <<1>>}, {message, <<3>>}, {message, <<4>>}]}, {piece, 0, _},
                  {small, message, <<2>>}, {piece, 0, _}], frames(Four(in(z, message, [binary:copy(<<"b">>, 250)], 250, new(100, true))))),
    Mixed = in(c, message, [<<2>>], 1, in(b, message, [binary:copy(<<"b">>, 250)], 250, in(a, message, [<<1>>], 1, new(100, true)))),
    ?assertMatch([{small, message, <<1>>}, {announce, 0, message, [250]}, {piece, 0, _}, {small, message, <<2>>}, {piece, 0, _}, {piece, 0, _}], frames(Mixed)).

few_go_together_test_() ->
    Many = fun(Bytes, New) -> lists:foldl(fun(_, S) -> in(a, message, [binary:copy(<<"s">>, Bytes)], Bytes, S) end, New, lists:seq(1, 100)) end,
    %% In the line, and by turns behind it.
    Both = fun(Bytes, New) -> {_, First, Rest} = out(Many(Bytes, New)), {_, Second, _} = out(Rest), [First, Second] end,
    [?_assertEqual([Through, Through], Both(Bytes, new(Chunk, Batches)))
     || {Bytes, Chunk, Batches, Through} <- [{20000, 1 bsl 20, true, {3, 60000}}, {?BATCH_BYTES, 1 bsl 20, true, {1, ?BATCH_BYTES}}, {100000, 1 bsl 20, true, {1, 100000}},
                                             {1000, 4096, true, {4, 4000}}, {1000, 4096, false, {1, 1000}}]]
        ++ [?_assertMatch({[_], {?BATCH_MESSAGES, ?BATCH_MESSAGES}, _}, out(Many(1, new(1 bsl 20, true))))].

%% The same megabyte makes all of them: what counts is what is announced before the first one is through.
few_bytes_are_open_at_a_time_test() ->
    Part = lists:duplicate(300, binary:copy(<<"b">>, 1 bsl 20)),
    Many = lists:foldl(fun(Key, S) -> in(Key, message, [Part], 300 bsl 20, S) end, new(1 bsl 24), lists:seq(1, 16)),
    ?assertEqual((1 bsl 32) div (300 bsl 20), begun(Many)).

begun(Schedule) ->
    case out(Schedule) of
        {Frames, none, Next} -> length(Frames) - 1 + begun(Next);
        {_, _, _} -> 0
    end.

an_empty_part_is_a_piece_test() ->
    ?assertMatch([{announce, 0, message, [0, 3]}, {piece, 0, <<>>}, {piece, 0, <<"abc">>}],
                 frames(in(k, message, [[], <<"abc">>], 3, new(100)))).

-endif.
