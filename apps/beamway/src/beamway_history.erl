%% SPDX-License-Identifier: Apache-2.0
%% @doc Recent values of a set of metrics: one-second steps for the last few minutes, ten-second steps for the last hour. All functions are pure.
%%
%% Runs of equal steps are stored once, with their length, and each step only stores the metrics that are not 0. Each minute of steps is compressed.
%% As a result, the history of an idle link takes less than 2 KB, and that of a busy one less than 64 KB.
-module(beamway_history).

-export([new/2, add/2, add/3, seconds/1, tens/1]).
-export_type([history/0, field/0, step/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% Steps are stored and discarded in chunks of this size.
-define(CHUNK, 60).
-define(TENS, 360).

-type field() :: {Name :: atom(), sum | max}.
%% The second element determines how a ten-second step is computed from one-second steps.

-type step() :: #{Name :: atom() => non_neg_integer()}.

-record(track, {most :: non_neg_integer(),
                run = {0, []} :: {Count :: non_neg_integer(), [non_neg_integer()]},
                steps = 0 :: non_neg_integer(),
                chunk = <<>> :: binary(),
                chunks = [] :: [binary()]}).

-record(history, {fields :: [field()],
                  seconds :: #track{},
                  tens :: #track{},
                  sum = none :: none | [non_neg_integer()],
                  summed = 0 :: 0..9}).

-opaque history() :: #history{}.

%% @doc Returns an empty history that keeps one-second steps for at least `Seconds'.
-spec new([field(), ...], Seconds :: non_neg_integer()) -> history().
new(Fields, Seconds) ->
    #history{fields = Fields, seconds = #track{most = Seconds}, tens = #track{most = min(?TENS, Seconds)}}.

%% @doc Adds the metrics of one second, in the order of the fields.
-spec add([non_neg_integer()], history()) -> history().
add(Values, #history{seconds = Seconds} = History) ->
    summed(Values, History#history{seconds = add_values(Values, Seconds)}).

%% @doc Adds this many seconds with equal metrics, but no more than a history can keep.
-spec add(Seconds :: non_neg_integer(), [non_neg_integer()], history()) -> history().
add(Seconds, Values, History) ->
    lists:foldl(fun(_, Added) -> add(Values, Added) end, History, lists:seq(1, min(Seconds, 10 * ?TENS + ?CHUNK))).

summed(Values, #history{fields = Fields, sum = Sum, summed = 9, tens = Tens} = History) ->
    History#history{sum = none, summed = 0, tens = add_values(combined(Fields, Sum, Values), Tens)};
summed(Values, #history{fields = Fields, sum = Sum, summed = Summed} = History) ->
    History#history{sum = combined(Fields, Sum, Values), summed = Summed + 1}.

combined(_Fields, none, Values) -> Values;
combined([], [], []) -> [];
combined([{_, sum} | Fields], [A | As], [B | Bs]) -> [A + B | combined(Fields, As, Bs)];
combined([{_, max} | Fields], [A | As], [B | Bs]) -> [max(A, B) | combined(Fields, As, Bs)].

add_values(_Values, #track{most = 0} = Track) ->
    Track;
add_values(Values, #track{run = {Count, Values}, steps = Steps} = Track) ->
    full(Track#track{run = {Count + 1, Values}, steps = Steps + 1});
add_values(Values, #track{steps = Steps} = Track) ->
    full((written(Track))#track{run = {1, Values}, steps = Steps + 1}).

written(#track{run = {0, _}} = Track) -> Track;
written(#track{run = Run, chunk = Chunk} = Track) -> Track#track{run = {0, []}, chunk = <<Chunk/binary, (encoded(Run))/binary>>}.

%% Complete chunks are compressed, because ticks make them repetitive.
full(#track{steps = ?CHUNK, most = Most} = Track) ->
    #track{chunk = Chunk, chunks = Chunks} = Written = written(Track),
    Written#track{steps = 0, chunk = <<>>, chunks = lists:sublist([zlib:zip(Chunk) | Chunks], (Most + ?CHUNK - 1) div ?CHUNK)};
full(Track) ->
    Track.

encoded({Count, Values}) ->
    Mask = << <<(case Value of 0 -> 0; _ -> 1 end):1>> || Value <- Values >>,
    Padding = -bit_size(Mask) band 7,
    iolist_to_binary([number(Count), <<Mask/bits, 0:Padding>>, [number(Value) || Value <- Values, Value =/= 0]]).

%% Encodes a number with seven bits per byte, the lowest first (LEB128).
number(Value) when Value < 128 -> <<Value>>;
number(Value) -> <<1:1, Value:7, (number(Value bsr 7))/binary>>.

%% @doc Returns the one-second steps as runs, newest first, each with the number of seconds for which the metrics did not change.
-spec seconds(history()) -> [{Seconds :: pos_integer(), step()}].
seconds(#history{fields = Fields, seconds = Track}) -> steps(Fields, Track).

%% @doc Like {@link seconds/1}, but in steps of ten seconds.
-spec tens(history()) -> [{Steps :: pos_integer(), step()}].
tens(#history{fields = Fields, tens = Track}) -> steps(Fields, Track).

steps(Fields, Track) ->
    #track{chunk = Chunk, chunks = Chunks} = written(Track),
    lists:append([lists:reverse(decoded(Fields, Bytes)) || Bytes <- [Chunk | [zlib:unzip(Zipped) || Zipped <- Chunks]]]).

decoded(_Fields, <<>>) ->
    [];
decoded(Fields, Bytes) ->
    {Count, AfterCount} = number_of(Bytes),
    MaskBytes = (length(Fields) + 7) div 8,
    <<Mask:MaskBytes/binary, AfterMask/binary>> = AfterCount,
    {Step, Rest} = values(Fields, Mask, AfterMask, #{}),
    [{Count, Step} | decoded(Fields, Rest)].

values([], _, Rest, Step) ->
    {Step, Rest};
values([{Name, _} | Fields], <<0:1, Mask/bits>>, Bytes, Step) ->
    values(Fields, Mask, Bytes, Step#{Name => 0});
values([{Name, _} | Fields], <<1:1, Mask/bits>>, Bytes, Step) ->
    {Value, Rest} = number_of(Bytes),
    values(Fields, Mask, Rest, Step#{Name => Value}).

number_of(<<0:1, Value:7, Rest/binary>>) -> {Value, Rest};
number_of(<<1:1, Low:7, Rest/binary>>) ->
    {High, After} = number_of(Rest),
    {High bsl 7 bor Low, After}.

-ifdef(TEST).

fields() -> [{bytes, sum}, {queue, max}].

equal_steps_are_one_test() ->
    History = lists:foldl(fun add/2, new(fields(), 600), [[B, 3] || B <- [1, 1, 1, 300, 300, 1]]),
    ?assertEqual([{1, #{bytes => 1, queue => 3}}, {2, #{bytes => 300, queue => 3}}, {3, #{bytes => 1, queue => 3}}], seconds(History)),
    ?assertEqual([], tens(History)).

seconds_are_added_at_once_test() ->
    History = add(3, [5, 0], add([1, 0], new(fields(), 600))),
    ?assertEqual(History, add(0, [9, 9], History)),
    ?assertEqual([{3, #{bytes => 5, queue => 0}}, {1, #{bytes => 1, queue => 0}}], seconds(History)),
    ?assert(lists:sum([Count || {Count, _} <- tens(add(1 bsl 40, [0, 0], History))]) < 500).

ten_seconds_are_a_step_test() ->
    History = lists:foldl(fun add/2, new(fields(), 600), [[N, N rem 7] || N <- lists:seq(1, 25)]),
    ?assertEqual([{1, #{bytes => 155, queue => 6}}, {1, #{bytes => 55, queue => 6}}], tens(History)),
    ?assertEqual(25, length(seconds(History))).

old_steps_go_test() ->
    History = lists:foldl(fun add/2, new(fields(), 600), [[N bsl 30, 0] || N <- lists:seq(1, 5000)]),
    Seconds = seconds(History),
    ?assertEqual(600 + 5000 rem 60, length(Seconds)),
    ?assertEqual([{1, #{bytes => N bsl 30, queue => 0}} || N <- lists:seq(5000, 5000 - length(Seconds) + 1, -1)], Seconds),
    ?assert(length(tens(History)) >= 360).

nothing_is_kept_test() ->
    History = lists:foldl(fun add/2, new(fields(), 0), [[N, 0] || N <- lists:seq(1, 100)]),
    ?assertEqual({[], []}, {seconds(History), tens(History)}).

%% All histories share the same list of fields, so it is not counted.
bytes_of(History) ->
    erts_debug:flat_size(History#history{fields = []}) * erlang:system_info(wordsize) + lists:sum([byte_size(Chunk) || Chunk <- binaries(History), byte_size(Chunk) > 64]). % smaller ones are in the heap

binaries(Term) when is_binary(Term) -> [Term];
binaries(Term) when is_tuple(Term) -> binaries(tuple_to_list(Term));
binaries([Head | Tail]) -> binaries(Head) ++ binaries(Tail);
binaries(_) -> [].

%% The test uses 16 metrics, as many as a link has. Idle means one tick every 15 s, and busy means that all metrics change every second, as with 4 GB
%% and a million messages.
it_is_small_test() ->
    Fields = [{list_to_atom("figure" ++ integer_to_list(N)), sum} || N <- lists:seq(1, 16)],
    Most = [1 bsl 32, 1 bsl 32, 1 bsl 20, 1 bsl 20 | lists:duplicate(12, 10000)],
    Busy = fun(N) -> [Max - N || Max <- Most] end,
    Idle = fun(N) when N rem 15 =:= 0 -> [9, 0, 1 | lists:duplicate(13, 0)]; (_) -> lists:duplicate(16, 0) end,
    [?assert(bytes_of(lists:foldl(fun(N, History) -> add(Figures(N), History) end, new(Fields, 600), lists:seq(1, 4000))) =< Bytes)
     || {Figures, Bytes} <- [{Idle, 2048}, {Busy, 65536}]].
-endif.
