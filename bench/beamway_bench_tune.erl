%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench tune-tcp': with which options does stock TCP distribution perform best? It tries all combinations of buffer sizes, delayed sending,
%% socket buffers and `+zdbbl', and compares each with stock within the same repeats.
%%
%% A candidate's score is the geometric mean of its ratios to stock for calls, a round trip and three streams. In all other benchmarks, the contender
%% `tcp_tuned' is the candidate with the best stored score, {@link best/0}; stock itself is also a candidate.
-module(beamway_bench_tune).
-behaviour(beamway_bench).

-export([prepare/2, groups/1, metrics/1, finish/2]).
-export([best/0, args/1]).

-define(STREAMS, [{64, 64, 65536}, {4096, 16, 4096}, {1 bsl 20, 1, 16}]).
-define(CALLERS, 100).

%% ---- the candidates

-type choice() :: {buffer | sockets | send | zdbbl, default | pos_integer() | delayed}.

candidates() ->
    [[{buffer, Buffer}, {send, Send}, {sockets, Sockets}, {zdbbl, Zdbbl}]
     || Buffer <- [default, 64, 256, 1024], Send <- [default, delayed], Sockets <- [default, 1024], Zdbbl <- [default, 32768]].

%% The values in the name are in KB.
-spec name([choice()]) -> atom().
name(Choices) ->
    case [lists:concat([What, "_", Value]) || {What, Value} <- Choices, Value =/= default] of
        [] -> tcp;
        Words -> list_to_atom("tcp_" ++ lists:append(lists:join("_", Words)))
    end.

%% @doc Returns the flags for the nodes of a candidate. The name comes from a stored result.
-spec args(Name :: atom()) -> [string()] | unknown.
args(Name) ->
    case [Choices || Choices <- candidates(), name(Choices) =:= Name] of
        [Choices] -> choices_args(Choices);
        [] -> unknown
    end.

choices_args(Choices) ->
    Socket = lists:append([option(Choice) || Choice <- Choices]),
    Text = lists:flatten(io_lib:format("~0p", [Socket])),
    lists:append([["-kernel", "inet_dist_listen_options", Text, "inet_dist_connect_options", Text] || Socket =/= []]
                 ++ [["+zdbbl", integer_to_list(Size)] || {zdbbl, Size} <- Choices, is_integer(Size)]).

option({buffer, KB}) when is_integer(KB) -> [{buffer, KB * 1024}];
option({sockets, KB}) when is_integer(KB) -> [{sndbuf, KB * 1024}, {recbuf, KB * 1024}];
option({send, delayed}) -> [{delay_send, true}, {nodelay, true}];
option(_) -> [].

%% ---- the measurement

%% @private
-spec prepare(Given :: proplists:proplist(), beamway_bench:speed()) -> {ok, map()}.
prepare(_, Speed) ->
    All = beamway_bench_contender:all(beamway_bench_nodes:root(), 200),
    #{tcp := Stock} = All,
    {Chosen, Times} = case Speed of
                          quick -> {lists:sublist(candidates(), 4), #{warm_ms => 50, window_ms => 150}};
                          full -> {candidates(), #{warm_ms => 200, window_ms => 600}}
                      end,
    Candidates = [Stock#{name := name(Choices), title := "stock TCP", args := choices_args(Choices)} || Choices <- Chosen],
    {ok, Times#{candidates => [Name || #{name := Name} <- Candidates],
                contenders => maps:merge(All, maps:from_list([{Name, Candidate} || #{name := Name} = Candidate <- Candidates]))}}.

%% @private
-spec groups(map()) -> [beamway_bench_run:group()].
groups(#{candidates := Names} = Settings) ->
    [#{nodes => 2, contenders => Names, directions => [forward], measure => fun(Cluster) -> measure(Cluster, Settings) end}].

measure(#{members := [One, _]} = Cluster, #{warm_ms := WarmMs, window_ms := Ms} = Settings) ->
    [First, Second] = beamway_bench_nodes:names(Cluster),
    Both = load(Cluster, [First, Second], ?CALLERS, rpc, 16, Settings),
    {Rate, _} = beamway_bench:rate_and_p99(Both),
    [#{counts := Counts}] = load(Cluster#{members := [One]}, [Second], 1, echo, 64, Settings),
    Streams = [begin
                   Stream = #{target => Second, bytes => Bytes, ms => Ms, batch => Batch, window => Window},
                   _ = beamway_bench_nodes:call(One, beamway_bench_load, stream, [Stream#{ms := WarmMs}], 60000),
                   #{messages := Messages, elapsed_ns := Ns} = beamway_bench_nodes:call(One, beamway_bench_load, stream, [Stream], 60000),
                   {key(Bytes), Messages * 1.0e9 / Ns}
               end || {Bytes, Batch, Window} <- ?STREAMS],
    maps:from_list([{key(calls), Rate}, {key(rtt), beamway_bench_hist:percentile(50, Counts) / 1000} | Streams]).

load(Cluster, Targets, Callers, Kind, Bytes, #{warm_ms := WarmMs, window_ms := Ms}) ->
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, start, [#{kind => Kind, callers => Callers, targets => Targets, bytes => Bytes}]),
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, window, [WarmMs], WarmMs + 30000),
    Windows = beamway_bench_nodes:all(Cluster, beamway_bench_load, window, [Ms], Ms + 30000),
    _ = beamway_bench_nodes:all(Cluster, beamway_bench_load, stop, []),
    Windows.

key(calls) -> <<"calls, 2 nodes">>;
key(rtt) -> <<"round trip 64 B">>;
key(Bytes) -> unicode:characters_to_binary(["messages of ", beamway_bench:size_words(Bytes)]).

%% @private
-spec metrics(map()) -> [beamway_bench_report:metric()].
metrics(#{candidates := Names}) ->
    [#{name => iolist_to_binary(["tune_", What, "_", atom_to_list(Name)]), unit => Unit, better => Better, key => key(Key), contender => Name, baselines => [tcp]}
     || Name <- Names, Name =/= tcp,
        {What, Key, Unit, Better} <- [{"calls", calls, <<"calls/s">>, higher}, {"rtt", rtt, <<"us">>, lower}
                                      | [{integer_to_list(Bytes), Bytes, <<"messages/s">>, higher} || {Bytes, _, _} <- ?STREAMS]]].

%% @private Prints the candidates, best first.
-spec finish(beamway_bench_report:result(), map()) -> ok.
finish(Result, #{json := false}) ->
    Object = jiffy:decode(jiffy:encode(beamway_bench_report:to_json(Result)), [return_maps]),
    io:format("~n~ts", [beamway_bench_report:table([["candidate", "score"] | [[Name, io_lib:format("~.3f", [Score])] || {Score, Name} <- scores(Object)]])]);
finish(_, _) -> ok.

%% ---- the best

%% @doc Returns the candidate with the best stored score, or `none' if no score is stored.
-spec best() -> atom().
best() ->
    case beamway_bench_store:read(beamway_bench_store:file("tune-tcp")) of
        {ok, Stored} -> [{_, Name} | _] = scores(Stored), binary_to_atom(Name);
        {error, _} -> none
    end.

%% Returns each candidate's score relative to stock, which is also a candidate.
-spec scores(beamway_bench_store:stored()) -> [{float(), binary()}].
scores(#{<<"metrics">> := Entries}) ->
    Logs = lists:foldl(fun(#{<<"contender">> := Name, <<"ratio">> := Ratio, <<"better">> := Better}, Acc) ->
                               Log = case Better of <<"higher">> -> math:log(Ratio); <<"lower">> -> -math:log(Ratio) end,
                               maps:update_with(Name, fun(Known) -> [Log | Known] end, [Log], Acc)
                       end, #{<<"tcp">> => [0.0]}, Entries),
    lists:reverse(lists:sort([{math:exp(lists:sum(All) / length(All)), Name} || {Name, All} <- maps:to_list(Logs)])).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

names_are_unique_test() ->
    Names = [name(Choices) || Choices <- candidates()],
    ?assertEqual(length(Names), length(lists:usort(Names))),
    ?assert(lists:member(tcp, Names)).

args_test_() ->
    [?_assertEqual([], args(tcp)), ?_assertEqual(unknown, args(tcp_nothing)),
     ?_assertEqual(["-kernel", "inet_dist_listen_options", "[{buffer,65536},{delay_send,true},{nodelay,true}]",
                    "inet_dist_connect_options", "[{buffer,65536},{delay_send,true},{nodelay,true}]", "+zdbbl", "32768"], args(tcp_buffer_64_send_delayed_zdbbl_32768))].

%% The number of repeats is the same for all benchmarks, as documented in --help.
repeats_test_() ->
    [?_assertNot(is_map_key(repeats, Settings)) || Speed <- [quick, full], {ok, Settings} <- [prepare([], Speed)]].

entry(Name, Ratio, Better) -> #{<<"contender">> => Name, <<"ratio">> => Ratio, <<"better">> => Better}.

scores_test_() ->
    Wins = [entry(<<"a">>, 2.0, <<"higher">>), entry(<<"a">>, 0.5, <<"lower">>), entry(<<"b">>, 4.0, <<"higher">>), entry(<<"b">>, 4.0, <<"lower">>)],
    [?_assertMatch([{_, <<"a">>}, _, _], scores(#{<<"metrics">> => Wins})),
     %% If nothing that was tried is better than stock, stock is the best candidate.
     ?_assertMatch([{1.0, <<"tcp">>}, {_, <<"a">>}], scores(#{<<"metrics">> => [entry(<<"a">>, 0.9, <<"higher">>)]}))].
-endif.
