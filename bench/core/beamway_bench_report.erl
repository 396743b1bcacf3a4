%% SPDX-License-Identifier: Apache-2.0
%% @doc Turns samples into the result of a benchmark: metrics with their ratios, the JSON object that is stored, the tables for people to read, and
%% the warnings. All functions except {@link save/3} are pure.
%%
%% A value is the median of its repeats, for the direction of connecting in which it is worse. A metric compares the contenders within each repeat, in
%% the direction in which Beamway's value is worse, because choosing the direction separately for each contender would favour the one whose repeats
%% vary less.
-module(beamway_bench_report).

-export([result/4, to_json/1, to_text/1, paired/3, save/3]).

-export_type([metric/0, result/0]).

-type metric() :: #{name := binary(), unit := binary(), better := beamway_bench_stats:better(),
                    %% what was measured; see beamway_bench_run:key()
                    key := beamway_bench_run:key(),
                    %% the contender whose value is compared with the baselines
                    contender := beamway_bench_contender:name(),
                    %% empty if no other contender has such a value
                    baselines := [beamway_bench_contender:name()]}.
-type figure() :: #{contender := atom(), key := binary(), unit := binary(), better := atom(),
                    median := float(), spread := float(), direction := atom(), samples := [number()],
                   %% all measured values, oldest first
                   directions := #{atom() => [number()]}}.
-type entry() :: #{name := binary(), unit := binary(), beamway := float(), baseline := float() | null,
                   baseline_name := atom() | null, ratio := float() | null, samples := pos_integer(),
                   spread := float(), atom() => term()}.
-opaque result() :: #{bench := binary(), context := map(), figures := [figure()], metrics := [entry()],
                      warnings := [binary()]}.

-define(NOISY_SPREAD, 0.10).

%% @doc Returns the complete result of a run. Metrics that were not measured, because the user left out a contender, are omitted. The context is
%% copied into the result unchanged.
-spec result(Bench :: binary(), [metric()], beamway_bench_run:samples(), Context :: map()) -> result().
result(Bench, Metrics, Samples, Context) ->
    Figures = figures(Metrics, Samples),
    Index = maps:from_list([{{Name, Key}, Figure} || #{contender := Name, key := Key} = Figure <- Figures]),
    #{bench => Bench, context => Context, figures => Figures,
      metrics => lists:append([entries(Metric, Index) || Metric <- Metrics]),
      warnings => [unicode:characters_to_binary(W)
                   || W <- maps:get(warnings, Context, []) ++ noisy(Figures)]}.

%% Returns the figures in the order of the metrics. Each figure has the values of all contenders.
figures(Metrics, Samples) ->
    Wanted = unique([{Key, Name, Metric} || #{key := Key, contender := Own, baselines := Others} = Metric <- Metrics,
                                            Name <- Others ++ [Own]]),
    Keys = unique([{Key, Key, Key} || {Key, _, _} <- Wanted]),
    [figure(Name, Metric, maps:get({Name, Key}, Samples))
     || {Key, _, _} <- Keys, {K, Name, Metric} <- Wanted, K =:= Key, is_map_key({Name, Key}, Samples)].

unique(List) ->
    unique(List, #{}).

unique([], _) -> [];
unique([{A, B, _} = First | Rest], Seen) when not is_map_key({A, B}, Seen) ->
    [First | unique(Rest, Seen#{{A, B} => true})];
unique([_ | Rest], Seen) -> unique(Rest, Seen).

figure(Name, #{key := Key, unit := Unit, better := Better}, Directions) ->
    {Direction, Values} = beamway_bench_stats:worse(Better, maps:to_list(Directions)),
    #{contender => Name, key => Key, unit => Unit, better => Better, direction => Direction,
      median => beamway_bench_stats:median(Values), spread => beamway_bench_stats:spread(Values),
      samples => Values, directions => Directions}.

entries(#{contender := Own, key := Key, baselines := Baselines} = Metric, Index) ->
    case Index of
        #{{Own, Key} := Figure} when Baselines =:= [] -> [entry(Metric, Figure, none)];
        #{{Own, Key} := Figure} ->
            [entry(Metric, Figure, maps:get({Name, Key}, Index))
             || Name <- Baselines, is_map_key({Name, Key}, Index)];
        #{} -> []
    end.

entry(#{name := Name, unit := Unit, better := Better, contender := Own, key := Key},
      #{median := Median, spread := Spread, samples := Values, direction := Direction} = Figure, Baseline) ->
    maps:merge(#{name => Name, unit => Unit, contender => Own, key => Key, beamway => Median,
                 spread => Spread, samples => length(Values), direction => Direction, better => Better},
               compared(Better, Figure, Baseline)).

compared(_, _, none) ->
    #{baseline => null, baseline_name => null, ratio => null, interval => null, range => null, verdict => null, p => null};
compared(Better, #{direction := Direction, samples := Values}, #{contender := Name} = Baseline) ->
    Others = same_direction(Direction, Baseline),
    Common = #{baseline => beamway_bench_stats:median(Others), baseline_name => Name,
               baseline_spread => beamway_bench_stats:spread(Others)},
    case beamway_bench_stats:ratio(Values, Others) of
        none -> Common#{ratio => null, interval => null, range => null, verdict => null, p => null};
        {Ratio, Interval} ->
            {Sure, Range} = case Interval of
                                unknown -> {null, null};
                                {range, Least, Most} -> {null, [Least, Most]};
                                {Low, High} -> {[Low, High], null}
                            end,
            Common#{ratio => Ratio, interval => Sure, range => Range, verdict => beamway_bench_stats:verdict(Better, Interval),
                    p => case beamway_bench_stats:sign(Values, Others) of none -> null; P -> P end}
    end.

%% Only nodes have a direction; the samples of other programs are used as they are.
same_direction(Direction, #{directions := Directions, samples := Own}) ->
    maps:get(Direction, Directions, Own).

noisy(Figures) ->
    case [io_lib:format("~ts of ~ts (~ts)", [Key, Name, percent(Spread)])
          || #{contender := Name, key := Key, spread := Spread} <- Figures, Spread > ?NOISY_SPREAD] of
        [] -> [];
        Noisy -> [["repeats differ by more than ", percent(?NOISY_SPREAD), ": ", lists:join(", ", shortened(Noisy)),
                   ". Run it again on a quiet machine before you trust these"]]
    end.

shortened([One, Two, Three, _, _ | _] = All) ->
    [One, Two, Three, io_lib:format("and ~b more", [length(All) - 3])];
shortened(All) -> All.

%% @doc Returns the result as an object for jiffy.
-spec to_json(result()) -> map().
to_json(#{bench := Bench, context := Context, figures := Figures, metrics := Metrics, warnings := Warnings}) ->
    Repeats = lists:max([1 | [length(Samples) || #{directions := Directions} <- Figures, Samples <- maps:values(Directions)]]),
    Context#{bench => Bench, repeats => Repeats, metrics => [maps:map(fun rounded/2, Entry) || Entry <- Metrics],
             figures => [maps:map(fun rounded/2, Figure) || Figure <- Figures], warnings => Warnings}.

%% Five digits exceed the precision of any of these values.
rounded(_, Value) when is_float(Value), Value /= 0 ->
    Digits = 4 - trunc(math:floor(math:log10(abs(Value)))),
    case Digits =< 0 of
        true -> round(Value);
        false -> binary_to_float(float_to_binary(Value, [{decimals, min(Digits, 20)}]))
    end;
rounded(_, Map) when is_map(Map) -> maps:map(fun rounded/2, Map);
rounded(_, List) when is_list(List) -> [rounded(element, Value) || Value <- List];
rounded(_, Value) -> Value.

%% @doc Returns the human-readable tables: first the values of every contender, and then how Beamway compares with them.
-spec to_text(result()) -> unicode:chardata().
to_text(#{figures := Figures, metrics := Metrics, warnings := Warnings}) ->
    [beamway_bench_text:table([["measured", "contender", "median", "unit", "spread", "worse when"] | [figure_row(Figure) || Figure <- Figures]]),
     case Metrics of
         [] -> "";
         _ -> ["\n", beamway_bench_text:table([["metric", "Beamway", "baseline", "", "unit", "ratio", ""] | [entry_row(Entry) || Entry <- Metrics]])]
     end,
     [["\nwarning: ", Warning, "\n"] || Warning <- Warnings]].

figure_row(#{key := Key, contender := Name, median := Median, unit := Unit, spread := Spread, direction := Direction}) ->
    [Key, atom_to_list(Name), {right, beamway_bench_text:number(Median)}, Unit, {right, percent(Spread)}, direction(Direction)].

direction(forward) -> "it connected";
direction(reverse) -> "the other connected";
direction(none) -> "".

entry_row(#{name := Name, beamway := Median, baseline_name := null, unit := Unit}) ->
    [Name, {right, beamway_bench_text:number(Median)}, "", "", Unit, "", ""];
entry_row(#{name := Name, beamway := Median, baseline := Base, baseline_name := Other, unit := Unit} = Entry) ->
    [Name, {right, beamway_bench_text:number(Median)}, atom_to_list(Other), {right, beamway_bench_text:number(Base)}, Unit,
     beamway_bench_text:ratio(maps:get(ratio, Entry), maps:get(interval, Entry), maps:get(range, Entry)), beamway_bench_text:verdict(maps:get(verdict, Entry))].

%% @doc Returns the ratio of rounds that were measured in pairs, or "even" if the difference is within the noise.
-spec paired(beamway_bench_stats:better(), Values :: [number(), ...], Baseline :: [number(), ...]) -> string().
paired(Better, Values, Baseline) ->
    {Ratio, Interval} = beamway_bench_stats:ratio(Values, Baseline),
    case beamway_bench_stats:verdict(Better, Interval) of
        even -> "even";
        _ -> beamway_bench_text:number(Ratio)
    end.

percent(Share) -> io_lib:format("~b %", [round(100 * Share)]).

%% @doc Stores the result as a JSON object; see beamway_bench_store:publish/3.
-spec save(file:filename(), result(), Force :: boolean()) -> ok | {error, unicode:chardata()}.
save(File, Result, Force) ->
    beamway_bench_store:publish(File, to_json(Result), Force).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics() ->
    [#{name => <<"rate">>, unit => <<"calls/s">>, better => higher, key => <<"calls">>,
       contender => beamway, baselines => [tcp, tcp_tuned]},
     #{name => <<"bells">>, unit => <<"1/call">>, better => lower, key => <<"doorbells">>,
       contender => beamway, baselines => []}].

samples() ->
    #{{beamway, <<"calls">>} => #{forward => seven(200, 210, 220), reverse => seven(190, 200, 201)},
      {tcp, <<"calls">>} => #{forward => seven(100, 100, 100), reverse => seven(110, 110, 110)},
      {beamway, <<"doorbells">>} => #{forward => [0.5, 0.25, 0.75]}}.

seven(First, Second, Others) -> [First, Second | lists:duplicate(5, Others)].

the_worse_direction_counts_test() ->
    #{metrics := [Rate, Bells]} = result(<<"x">>, metrics(), samples(), #{}),
    ?assertMatch(#{name := <<"rate">>, beamway := 201.0, baseline := 110.0, baseline_name := tcp,
                   ratio := 1.8272727272727274, samples := 7, direction := reverse, verdict := wins}, Rate),
    ?assertMatch(#{name := <<"bells">>, beamway := 0.5, baseline := null, ratio := null}, Bells).

%% Beamway is worse in the direction in which stock is better. Both are compared in that direction, rather than each in its own worse direction.
one_direction_is_compared_test() ->
    Samples = (samples())#{{tcp, <<"calls">>} => #{forward => seven(100, 100, 100), reverse => seven(150, 160, 160)}},
    #{metrics := [Rate | _]} = result(<<"x">>, metrics(), Samples, #{}),
    ?assertMatch(#{direction := reverse, beamway := 201.0, baseline := 160.0, ratio := 1.25625, verdict := wins}, Rate).

%% The machine was twice as fast in the second repeat, so the ratio of the medians would be 4.
repeats_are_compared_one_by_one_test() ->
    Samples = #{{beamway, <<"calls">>} => #{forward => [200, 400, 400]}, {tcp, <<"calls">>} => #{forward => [100, 200, 100]}},
    #{metrics := [Rate]} = result(<<"x">>, metrics(), Samples, #{}),
    ?assertMatch(#{ratio := 2.0, interval := null, range := [2.0, 4.0], verdict := unknown}, Rate).

left_out_contenders_leave_no_metric_test() ->
    Samples = maps:remove({beamway, <<"calls">>}, samples()),
    #{metrics := Metrics, figures := Figures} = result(<<"x">>, metrics(), Samples, #{}),
    ?assertMatch([#{name := <<"bells">>}], Metrics),
    ?assertMatch([#{contender := tcp}, #{contender := beamway}], Figures).

paired_test_() ->
    [?_assertEqual(Want, paired(higher, Values, lists:duplicate(7, 100)))
     || {Want, Values} <- [{"2.00", lists:duplicate(7, 200)}, {"even", [60, 150, 70, 140, 98, 130, 90]}, {"0.50", lists:duplicate(7, 50)}]].

a_noisy_figure_is_named_test() ->
    #{warnings := [Warning]} = result(<<"x">>, metrics(), samples(), #{}),
    ?assertNotEqual(nomatch, binary:match(Warning, <<"doorbells of beamway (50 %)">>)),
    Quiet = maps:remove({beamway, <<"doorbells">>}, samples()),
    ?assertMatch(#{warnings := [<<"load">>]}, result(<<"x">>, metrics(), Quiet, #{warnings => ["load"]})).

json_has_the_agreed_fields_test() ->
    Context = #{machine => #{}, versions => #{}, commit => <<"c">>, command => <<"d">>},
    Text = jiffy:encode(to_json(result(<<"x">>, metrics(), samples(), Context))),
    #{<<"metrics">> := [Metric | _]} = Object = jiffy:decode(Text, [return_maps]),
    ?assertEqual([], [<<"bench">>, <<"commit">>, <<"machine">>, <<"versions">>, <<"command">>] -- maps:keys(Object)),
    ?assertEqual([], [<<"name">>, <<"unit">>, <<"beamway">>, <<"baseline">>, <<"baseline_name">>, <<"ratio">>,
                      <<"samples">>, <<"spread">>] -- maps:keys(Metric)).

a_loss_is_shown_test() ->
    Samples = #{{beamway, <<"calls">>} => #{forward => seven(50, 50, 50)}, {tcp, <<"calls">>} => #{forward => seven(100, 100, 100)}},
    Text = unicode:characters_to_binary(to_text(result(<<"x">>, metrics(), Samples, #{}))),
    ?assertNotEqual(nomatch, binary:match(Text, <<"0.50 [0.50, 0.50]  LOSES">>)).

rounded_test_() ->
    [?_assertEqual(Want, rounded(x, N)) || {Want, N} <- [{1.2346, 1.23456}, {123456, 123456.4}, {0.00012346, 0.000123456},
                                                         {0.0, 0.0}, {7, 7}, {null, null}]].
-endif.
