%% SPDX-License-Identifier: Apache-2.0
%% @doc A histogram of durations that many processes can fill at the same time, without a lock and without producing garbage, because a garbage
%% collection in the measuring process would affect the 99th percentile.
%%
%% The width of a bucket is at most 1/128 of its value, so a percentile is accurate to 0.4 %. All durations longer than 36 minutes share the last
%% bucket.
-module(beamway_bench_hist).

-export([new/0, add/2, total/1, snapshot/1, between/2, count/1, percentile/2, rate_and_p99/1]).

-export_type([t/0, counts/0]).

-opaque t() :: counters:counters_ref().
-type counts() :: [{Bucket :: pos_integer(), Count :: pos_integer()}].
%% The non-empty buckets in ascending order. Unlike a `t()', they can be sent to another node.

-define(BUCKETS, 4480).

%% @doc Returns an empty histogram.
-spec new() -> t().
new() ->
    counters:new(?BUCKETS, [atomics]).

%% @doc Counts one duration.
-spec add(t(), Nanoseconds :: integer()) -> ok.
add(Hist, Nanoseconds) ->
    counters:add(Hist, bucket(Nanoseconds), 1).

%% @doc Returns the number of durations counted so far.
-spec total(t()) -> non_neg_integer().
total(Hist) ->
    count(snapshot(Hist)).

%% @doc Returns the current counts, reading each bucket once. Other processes may continue to count
%% in the meantime.
-spec snapshot(t()) -> counts().
snapshot(Hist) ->
    [{Bucket, Count} || Bucket <- lists:seq(1, ?BUCKETS),
                        (Count = counters:get(Hist, Bucket)) > 0].

%% @doc Returns the counts that were added between two snapshots.
-spec between(Earlier :: counts(), Later :: counts()) -> counts().
between(Earlier, Later) ->
    Old = maps:from_list(Earlier),
    [{Bucket, New} || {Bucket, Count} <- Later, (New = Count - maps:get(Bucket, Old, 0)) > 0].

%% @doc Returns the sum of several sets of counts.
-spec merge([counts()]) -> counts().
merge(Many) ->
    Sum = fun({Bucket, Count}, Acc) -> maps:update_with(Bucket, fun(C) -> C + Count end, Count, Acc) end,
    lists:sort(maps:to_list(lists:foldl(Sum, #{}, lists:append(Many)))).

%% @doc Returns the total number of durations in the counts.
-spec count(counts()) -> non_neg_integer().
count(Counts) ->
    lists:sum([Count || {_, Count} <- Counts]).

%% @doc Returns the P-th percentile in nanoseconds, or `none' if nothing was counted.
-spec percentile(P :: number(), counts()) -> number() | none.
percentile(_, []) ->
    none;
percentile(P, Counts) ->
    rank(max(1, ceil(P / 100 * count(Counts))), Counts).

rank(_, [{Bucket, _}]) -> middle(Bucket);
rank(Rank, [{Bucket, Count} | _]) when Rank =< Count -> middle(Bucket);
rank(Rank, [{_, Count} | Counts]) -> rank(Rank - Count, Counts).

%% @doc Returns the total calls per second of the callers on all nodes, and the 99th percentile of the calls' durations in microseconds.
-spec rate_and_p99([beamway_bench_load:window()]) -> {Rate :: float(), P99Us :: float()}.
rate_and_p99(Windows) ->
    Rate = lists:sum([count(Counts) * 1.0e9 / Elapsed
                      || #{counts := Counts, elapsed_ns := Elapsed} <- Windows]),
    case percentile(99, merge([Counts || #{counts := Counts} <- Windows])) of
        none -> error(no_call_ended);
        P99 -> {Rate, P99 / 1000}
    end.

%% Bucket 1 is for 0 ns. Up to 255 ns, each value has its own bucket; above that, there are 128 buckets per doubling.
bucket(Ns) when Ns < 0 -> 1;
bucket(Ns) when Ns < 256 -> Ns + 1;
bucket(Ns) ->
    Shift = bits(Ns, 0) - 8,
    min(?BUCKETS, (Shift bsl 7) + (Ns bsr Shift) + 1).

middle(Bucket) when Bucket =< 256 -> Bucket - 1;
middle(Bucket) ->
    Shift = ((Bucket - 1) bsr 7) - 1,
    (((Bucket - 1) - (Shift bsl 7)) bsl Shift) + (1 bsl Shift) / 2.

bits(N, Bits) when N >= 16#10000 -> bits(N bsr 16, Bits + 16);
bits(N, Bits) when N >= 16#100 -> bits(N bsr 8, Bits + 8);
bits(N, Bits) when N >= 16#10 -> bits(N bsr 4, Bits + 4);
bits(0, Bits) -> Bits;
bits(N, Bits) -> bits(N bsr 1, Bits + 1).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

bucket_is_close_test() ->
    Values = [0, 1, 2, 127, 128, 255, 256, 257, 511, 512, 1000, 65535, 65536, 123456789, 1 bsl 40],
    [?assert(abs(middle(bucket(V)) - V) =< V / 256 + 0.5, V) || V <- Values].

buckets_ascend_test() ->
    Edges = lists:usort(lists:append([[N - 1, N, N + 1] || P <- lists:seq(1, 41), N <- [1 bsl P]])),
    Buckets = [bucket(E) || E <- Edges],
    ?assertEqual(Buckets, lists:sort(Buckets)),
    ?assert(lists:max(Buckets) =< ?BUCKETS).

out_of_range_test_() ->
    [?_assertEqual(1, bucket(-5)), ?_assertEqual(?BUCKETS, bucket(1 bsl 60))].

percentile_test() ->
    Hist = new(),
    [add(Hist, N) || N <- lists:seq(1, 100)],
    Counts = snapshot(Hist),
    ?assertEqual(100, count(Counts)),
    ?assertEqual([1, 50, 99, 100], [percentile(P, Counts) || P <- [0, 50, 99, 100]]),
    ?assertEqual(none, percentile(50, [])).

rate_and_p99_test() ->
    Window = #{elapsed_ns => 500000000, counts => [{11, 100}]},
    ?assertEqual({400.0, 0.01}, rate_and_p99([Window, Window])),
    ?assertError(no_call_ended, rate_and_p99([#{elapsed_ns => 1, counts => []}])).

between_and_merge_test() ->
    Hist = new(),
    add(Hist, 10),
    Before = snapshot(Hist),
    add(Hist, 10), add(Hist, 20),
    New = between(Before, snapshot(Hist)),
    ?assertEqual(2, count(New)),
    ?assertEqual(3, total(Hist)),
    ?assertEqual(4, count(merge([New, New]))),
    ?assertEqual(snapshot(Hist), merge([Before, New])).
-endif.
