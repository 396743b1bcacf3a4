%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench references': how much is saved if nodes on the same host share a large binary?
%%
%% A node repeatedly sends a binary to a second node. The second node reads 4 KB of it, or all of it, or forwards it to a third node. The last node to
%% receive it answers. `teleport' sends a handle of the shared binary, while `beamway' sends the binary with plain `!' over shared memory.
-module(beamway_bench_references).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1]).
%% Called on the nodes.
-export([start/1, rounds/4]).

-define(SIZES, [262144, 10485760]).
-define(USES, [forward, part, whole]).
-define(PART_BYTES, 4096).
-define(ANSWER_MS, 30000).

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()}.
prepare(_, quick) -> {ok, #{warm_ms => 50, window_ms => 250}};
prepare(_, full) -> {ok, #{warm_ms => 200, window_ms => 1500}}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(Settings) ->
    [#{nodes => 3, contenders => [beamway, teleport], directions => [forward], measure => fun(Cluster) -> measure(Cluster, Settings) end}].

measure(#{members := [One | _]} = Cluster, #{warm_ms := WarmMs, window_ms := Ms}) ->
    [_, Second, Third] = Names = beamway_bench_nodes:names(Cluster),
    Way = beamway_bench_messages:open(Cluster, Names),
    _ = beamway_bench_nodes:all(Cluster, ?MODULE, start, [Way]),
    maps:from_list([{key(Use, Bytes), beamway_bench_nodes:call(One, ?MODULE, rounds, [Way, {Second, Third}, {Use, Bytes}, {WarmMs, Ms}], WarmMs + Ms + 2 * ?ANSWER_MS)}
                    || Bytes <- ?SIZES, Use <- ?USES]).

key(Use, Bytes) -> iolist_to_binary([words(Use), ", ", beamway_bench_text:size_words(Bytes)]).

words(forward) -> "sent on to a third node";
words(part) -> "4 KB of it read";
words(whole) -> "all of it read".

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{}) ->
    [#{name => iolist_to_binary(["references_", atom_to_list(Use), "_", beamway_bench_text:size_text(Bytes)]), unit => <<"us">>, better => lower, key => key(Use, Bytes),
       contender => teleport, baselines => [beamway]} || Bytes <- ?SIZES, Use <- ?USES].

%% ---- functions that run on the nodes ----

%% @doc Starts the process that uses the binaries it receives.
-spec start(beamway_bench_messages:way()) -> ok.
start(Way) ->
    whereis(?MODULE) =/= undefined orelse register(?MODULE, spawn(fun() -> user(Way) end)),
    ok.

user(Way) ->
    receive
        {{forward, Third}, From, Binary} -> send(Way, {?MODULE, Third}, {part, From, Binary});
        {Use, From, Binary} -> send(Way, From, {used, used(Use, opened(Binary))})
    end,
    user(Way).

opened(Binary) when is_binary(Binary) -> Binary;
opened(Handle) ->
    {ok, Binary} = teleport:open(Handle),
    Binary.

used(part, Binary) -> erlang:crc32(binary:part(Binary, byte_size(Binary) div 2, ?PART_BYTES));
used(whole, Binary) -> erlang:crc32(Binary).

send(stock, To, Message) -> To ! Message, ok;
send(teleport, To, Message) -> ok = teleport:send(To, Message, #{timeout => ?ANSWER_MS}).

%% @doc Returns the average time in microseconds from sending a binary to receiving the answer.
-spec rounds(beamway_bench_messages:way(), {node(), node()}, {forward | part | whole, Bytes :: pos_integer()}, {WarmMs :: pos_integer(), Ms :: pos_integer()}) -> float().
rounds(Way, {Second, Third}, {Use, Bytes}, {WarmMs, Ms}) ->
    Plain = rand:bytes(Bytes),
    Binary = case Way of teleport -> teleport:share(Plain); stock -> Plain end,
    {Asked, Last} = case Use of forward -> {{forward, Third}, part}; _ -> {Use, Use} end,
    Round = fun() ->
                    ok = send(Way, {?MODULE, Second}, {Asked, self(), Binary}),
                    receive {used, Used} -> Used after ?ANSWER_MS -> error({no_answer, Second}) end
            end,
    true = Round() =:= used(Last, Plain),
    _ = repeated(Round, WarmMs),
    repeated(Round, Ms).

repeated(Round, Ms) ->
    Began = erlang:monotonic_time(microsecond),
    repeated(Round, Began, Began + Ms * 1000, 0).

repeated(Round, Began, Until, Count) ->
    _ = Round(),
    case erlang:monotonic_time(microsecond) of
        Now when Now >= Until -> (Now - Began) / (Count + 1);
        _ -> repeated(Round, Began, Until, Count + 1)
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics_test() ->
    ?assertEqual([], [<<"references_forward_10m">>, <<"references_part_256k">>, <<"references_whole_10m">>] -- [Name || #{name := Name} <- metrics(#{})]).

repeated_test() ->
    ?assert(repeated(fun() -> receive after 5 -> ok end end, 20) >= 5000).
-endif.
