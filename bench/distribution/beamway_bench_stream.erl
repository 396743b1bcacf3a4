%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench stream': how fast can messages be sent in one direction, from one sender to one receiver? Small messages are measured in messages per
%% second, large ones in bytes per second. The receiver confirms the messages that it receives, and the time runs until the last message has been
%% confirmed.
-module(beamway_bench_stream).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1]).
%% Called by other benchmarks.
-export([measure/2, messages/3, large/2, key/1]).

%% Each entry has the size of a message in bytes, the number of messages between confirmations, and the number of messages that may be unconfirmed (1,
%% 8, 32 and 64 MB).
-define(SMALL, [{64, 1024, 16384}, {4096, 256, 2048}]).
-define(LARGE, [{1 bsl 20, 8, 32}, {16 bsl 20, 1, 4}]).

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()}.
prepare(_, quick) -> {ok, #{warm_ms => 30, window_ms => 150}};
prepare(_, full) -> {ok, #{warm_ms => 300, window_ms => 1500}}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(Settings) ->
    [#{nodes => 2, directions => [forward, reverse],
       contenders => beamway_bench_contender:and_rdma([tcp, tcp_tuned, tcp_mptcp, unix, tls, ktls, beamway, beamway_tcp, beamway_tls]),
       measure => fun(Cluster) -> measure(Cluster, ?SMALL ++ ?LARGE, Settings) end}].

%% @doc Returns the rates of 64 B and 4 KB messages per second, and the MB per second in 1 MB messages.
-spec measure(beamway_bench_nodes:cluster(), #{warm_ms := pos_integer(), window_ms := pos_integer(), _ => _}) -> beamway_bench_run:figures().
measure(Cluster, Settings) -> measure(Cluster, ?SMALL ++ [hd(?LARGE)], Settings).

%% @doc Returns only the MB per second in 1 MB messages.
-spec large(beamway_bench_nodes:cluster(), #{warm_ms := pos_integer(), window_ms := pos_integer(), _ => _}) -> beamway_bench_run:figures().
large(Cluster, Settings) -> measure(Cluster, [hd(?LARGE)], Settings).

measure(Cluster, Sizes, #{warm_ms := WarmMs, window_ms := Ms}) ->
    maps:from_list([begin
                        _ = stream(Cluster, Size, WarmMs),
                        figure(Size, stream(Cluster, Size, Ms))
                    end || Size <- Sizes]).

%% @doc Sends messages of 64 B, 4 KB, 1 MB or 16 MB for `Ms' milliseconds, and returns how many arrived.
-spec messages(beamway_bench_nodes:cluster(), Bytes :: pos_integer(), Ms :: pos_integer()) -> Count :: pos_integer().
messages(Cluster, Bytes, Ms) -> map_get(messages, stream(Cluster, lists:keyfind(Bytes, 1, ?SMALL ++ ?LARGE), Ms)).

%% The first node sends, whichever side opened the connection.
stream(#{members := [Sending | _]} = Cluster, {Bytes, Batch, Window}, Ms) ->
    [_, Receiving] = beamway_bench_nodes:names(Cluster),
    Stream = #{target => Receiving, bytes => Bytes, ms => Ms, batch => Batch, window => Window},
    beamway_bench_nodes:call(Sending, beamway_bench_load, stream, [Stream], Ms + 60000).

figure({Bytes, _, _}, #{messages := Messages, elapsed_ns := Elapsed}) ->
    {key(Bytes), Messages * unit_bytes(Bytes) * 1.0e9 / Elapsed}.

%% Large messages are measured in MB of 10^6 bytes, as is usual for networks.
unit_bytes(Bytes) when Bytes < 1 bsl 20 -> 1;
unit_bytes(Bytes) -> Bytes / 1.0e6.

%% @doc Returns the table row's label for messages of this size.
-spec key(Bytes :: pos_integer()) -> beamway_bench_run:key().
key(Bytes) -> unicode:characters_to_binary(["messages of ", beamway_bench_text:size_words(Bytes)]).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{}) ->
    [#{name => Name, unit => Unit, better => higher, key => key(Bytes), contender => Own, baselines => baselines(Own)}
     || {Name, Bytes, Unit, Own} <-
            [{<<"rate_64">>, 64, <<"messages/s">>, beamway}, {<<"rate_4k">>, 4096, <<"messages/s">>, beamway},
             {<<"tcp_link_rate_64">>, 64, <<"messages/s">>, beamway_tcp},
             {<<"tcp_link_rate_4k">>, 4096, <<"messages/s">>, beamway_tcp},
             {<<"tls_rate_64">>, 64, <<"messages/s">>, beamway_tls}, {<<"tls_bytes_1m">>, 1 bsl 20, <<"MB/s">>, beamway_tls},
             {<<"rate_64_rdma">>, 64, <<"messages/s">>, beamway_rdma}, {<<"rate_4k_rdma">>, 4096, <<"messages/s">>, beamway_rdma},
             {<<"bytes_1m_rdma">>, 1 bsl 20, <<"MB/s">>, beamway_rdma}, {<<"bytes_16m_rdma">>, 16 bsl 20, <<"MB/s">>, beamway_rdma},
             {<<"bytes_1m">>, 1 bsl 20, <<"MB/s">>, beamway}, {<<"bytes_16m">>, 16 bsl 20, <<"MB/s">>, beamway}]].

baselines(beamway_tls) -> [tls, ktls, beamway_tcp];
baselines(beamway_tcp) -> [tcp, tcp_tuned, tcp_mptcp];
baselines(_) -> [tcp, tcp_tuned, tcp_mptcp, unix].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

figure_test_() ->
    [?_assertEqual({<<"messages of 64 B">>, 2000.0}, figure({64, 1, 1}, #{messages => 1000, elapsed_ns => 500000000})),
     ?_assertEqual({<<"messages of 1 MB">>, 1048.576}, figure({1 bsl 20, 1, 1}, #{messages => 1000, elapsed_ns => 1000000000}))].

windows_hold_whole_batches_test() ->
    [?assertEqual(0, Window rem Batch) || {_, Batch, Window} <- ?SMALL ++ ?LARGE].
-endif.
