%% SPDX-License-Identifier: Apache-2.0
%% @doc Turns samples into the result of a benchmark: metrics with their ratios, the JSON object that
%% is stored, the tables that people read, and the warnings. Pure but for {@link save/2}.
%%
%% A figure is the median of its repeats, of the direction of connecting in which it is worse.
-module(beamway_bench_report).

-export([result/4, to_json/1, to_text/1, table/1, number/1, save/2]).

-export_type([metric/0, result/0]).

-type metric() :: #{name := binary(), unit := binary(), better := beamway_bench_stats:better(),
                    %% what was measured; see beamway_bench_run:key()
                    key := beamway_bench_run:key(),
                    %% whose figure it is
                    contender := beamway_bench_contender:name(),
                    %% none: nothing else has such a figure
                    baselines := [beamway_bench_contender:name()]}.
-type figure() :: #{contender := atom(), key := binary(), unit := binary(), better := atom(),
                    median := float(), spread := float(), direction := atom(), samples := [number()]}.
-type entry() :: #{name := binary(), unit := binary(), beamway := float(), baseline := float() | null,
                   baseline_name := atom() | null, ratio := float() | null, samples := pos_integer(),
                   spread := float(), atom() => term()}.
-opaque result() :: #{bench := binary(), context := map(), figures := [figure()], metrics := [entry()],
                      warnings := [binary()]}.

-define(NOISY_SPREAD, 0.10).

%% @doc Everything that is to be said of a run. Metrics whose figures were not taken (a contender was
%% left out by the user) are left out. The context goes into the object as it is.
-spec result(Bench :: binary(), [metric()], beamway_bench_run:samples(), Context :: map()) -> result().
result(Bench, Metrics, Samples, Context) ->
    Figures = figures(Metrics, Samples),
    Index = maps:from_list([{{Name, Key}, Figure} || #{contender := Name, key := Key} = Figure <- Figures]),
    #{bench => Bench, context => Context, figures => Figures,
      metrics => lists:append([entries(Metric, Index) || Metric <- Metrics]),
      warnings => [unicode:characters_to_binary(W)
                   || W <- maps:get(warnings, Context, []) ++ noisy(Figures)]}.

%% In the order of the metrics, and of each what all contenders did.
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
      samples => Values}.

entries(#{contender := Own, key := Key, baselines := Baselines} = Metric, Index) ->
    case Index of
        #{{Own, Key} := Figure} when Baselines =:= [] -> [entry(Metric, Figure, none)];
        #{{Own, Key} := Figure} ->
            [entry(Metric, Figure, maps:get({Name, Key}, Index))
             || Name <- Baselines, is_map_key({Name, Key}, Index)];
        #{} -> []
    end.

entry(#{name := Name, unit := Unit, better := Better, contender := Own, key := Key},
      #{median := Median, spread := Spread, samples := Values, direction := Direction}, Baseline) ->
    maps:merge(#{name => Name, unit => Unit, contender => Own, key => Key, beamway => Median,
                 spread => Spread, samples => length(Values), direction => Direction, better => Better},
               compared(Better, Values, Baseline)).

compared(_, _, none) ->
    #{baseline => null, baseline_name => null, ratio => null, ratio_error => null, verdict => null};
compared(Better, Values, #{contender := Name, median := Median, spread := Spread, samples := Others}) ->
    Common = #{baseline => Median, baseline_name => Name, baseline_spread => Spread},
    case beamway_bench_stats:ratio(Values, Others) of
        none -> Common#{ratio => null, ratio_error => null, verdict => null};
        {Ratio, Error} ->
            Common#{ratio => Ratio, ratio_error => Error,
                    verdict => beamway_bench_stats:verdict(Better, Ratio, Error)}
    end.

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

%% @doc The object of the result, for jiffy.
-spec to_json(result()) -> map().
to_json(#{bench := Bench, context := Context, figures := Figures, metrics := Metrics, warnings := Warnings}) ->
    Context#{bench => Bench, metrics => [maps:map(fun rounded/2, Entry) || Entry <- Metrics],
             figures => [maps:map(fun rounded/2, Figure) || Figure <- Figures], warnings => Warnings}.

%% Five digits are more than any of these figures has.
rounded(_, Value) when is_float(Value), Value /= 0 ->
    Digits = 4 - trunc(math:floor(math:log10(abs(Value)))),
    case Digits =< 0 of
        true -> round(Value);
        false -> binary_to_float(float_to_binary(Value, [{decimals, min(Digits, 20)}]))
    end;
rounded(_, List) when is_list(List) -> [rounded(element, Value) || Value <- List];
rounded(_, Value) -> Value.

%% @doc The tables for people: what everybody did, then how Beamway compares.
-spec to_text(result()) -> unicode:chardata().
to_text(#{figures := Figures, metrics := Metrics, warnings := Warnings}) ->
    [table([["measured", "contender", "median", "unit", "spread", "worse when"]
            | [figure_row(Figure) || Figure <- Figures]]),
     case Metrics of
         [] -> "";
         _ -> ["\n", table([["metric", "Beamway", "baseline", "", "unit", "ratio", ""]
                            | [entry_row(Entry) || Entry <- Metrics]])]
     end,
     [["\nwarning: ", Warning, "\n"] || Warning <- Warnings]].

figure_row(#{key := Key, contender := Name, median := Median, unit := Unit, spread := Spread, direction := Direction}) ->
    [Key, atom_to_list(Name), {right, number(Median)}, Unit, {right, percent(Spread)}, direction(Direction)].

direction(forward) -> "it connected";
direction(reverse) -> "the other connected";
direction(none) -> "".

entry_row(#{name := Name, beamway := Median, baseline_name := null, unit := Unit}) ->
    [Name, {right, number(Median)}, "", "", Unit, "", ""];
entry_row(#{name := Name, beamway := Median, baseline := Base, baseline_name := Other, unit := Unit} = Entry) ->
    [Name, {right, number(Median)}, atom_to_list(Other), {right, number(Base)}, Unit, ratio(Entry), verdict(Entry)].

ratio(#{ratio := null}) -> "";
ratio(#{ratio := Ratio, ratio_error := unknown}) -> io_lib:format("~.2f", [Ratio]);
ratio(#{ratio := Ratio, ratio_error := Error}) -> io_lib:format("~.2f +-~.2f", [Ratio, Error]).

%% Where Beamway loses, the table says so.
verdict(#{verdict := loses}) -> "LOSES";
verdict(#{verdict := even}) -> "even";
verdict(#{verdict := unknown}) -> "one repeat: not sure";
verdict(#{verdict := _}) -> "".

percent(Share) -> io_lib:format("~b %", [round(100 * Share)]).

%% @doc A number as people read it: no more digits than it is worth.
-spec number(number()) -> string().
number(N) when N < 0 -> "-" ++ number(-N);
number(N) when N >= 999.5 -> thousands(integer_to_list(round(N)));
number(N) when N >= 99.95 -> integer_to_list(round(N));
number(N) when N >= 9.995 -> lists:flatten(io_lib:format("~.1f", [float(N)]));
number(N) -> lists:flatten(io_lib:format("~.2f", [float(N)])).

thousands(Digits) when length(Digits) =< 3 -> Digits;
thousands(Digits) ->
    {Front, Back} = lists:split(length(Digits) - 3, Digits),
    thousands(Front) ++ "," ++ Back.

%% @doc Lays rows out in columns; the first is the heading. `{right, Text}' stands at the right edge.
-spec table([[unicode:chardata() | {right, unicode:chardata()}]]) -> unicode:chardata().
table(Rows) ->
    Widths = widths(Rows),
    [[string:trim(lists:join("  ", lists:zipwith(fun cell/2, Row, Widths)), trailing), "\n"] || Row <- Rows].

widths([[] | _]) -> [];
widths(Rows) ->
    [lists:max([string:length(text(hd(Row))) || Row <- Rows]) | widths([tl(Row) || Row <- Rows])].

cell({right, Text}, Width) -> string:pad(Text, Width, leading);
cell(Text, Width) -> string:pad(Text, Width, trailing).

text({right, Text}) -> Text;
text(Text) -> Text.

%% @doc Stores the object, in one step, so that a reader never sees half a file.
-spec save(file:filename(), result()) -> ok | {error, file:posix()}.
save(File, Result) ->
    Json = [jiffy:encode(to_json(Result), [pretty, force_utf8]), "\n"],
    New = File ++ ".new",
    case {filelib:ensure_dir(File), file:write_file(New, Json)} of
        {ok, ok} -> file:rename(New, File);
        {ok, {error, Reason}} -> {error, Reason};
        {{error, Reason}, _} -> {error, Reason}
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

metrics() ->
    [#{name => <<"rate">>, unit => <<"calls/s">>, better => higher, key => <<"calls">>,
       contender => beamway, baselines => [tcp, tcp_tuned]},
     #{name => <<"bells">>, unit => <<"1/call">>, better => lower, key => <<"doorbells">>,
       contender => beamway, baselines => []}].

samples() ->
    #{{beamway, <<"calls">>} => #{forward => [200, 210, 220], reverse => [190, 200, 201]},
      {tcp, <<"calls">>} => #{forward => [100, 100, 100], reverse => [110, 110, 110]},
      {beamway, <<"doorbells">>} => #{forward => [0.5, 0.25, 0.75]}}.

the_worse_direction_counts_test() ->
    #{metrics := [Rate, Bells]} = result(<<"x">>, metrics(), samples(), #{}),
    ?assertMatch(#{name := <<"rate">>, beamway := 200.0, baseline := 100.0, baseline_name := tcp,
                   ratio := 2.0, samples := 3, direction := reverse, verdict := wins}, Rate),
    ?assertMatch(#{name := <<"bells">>, beamway := 0.5, baseline := null, ratio := null}, Bells).

left_out_contenders_leave_no_metric_test() ->
    Samples = maps:remove({beamway, <<"calls">>}, samples()),
    #{metrics := Metrics, figures := Figures} = result(<<"x">>, metrics(), Samples, #{}),
    ?assertMatch([#{name := <<"bells">>}], Metrics),
    ?assertMatch([#{contender := tcp}, #{contender := beamway}], Figures).

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
    Samples = #{{beamway, <<"calls">>} => #{forward => [50, 50, 50]}, {tcp, <<"calls">>} => #{forward => [100, 100, 100]}},
    Text = unicode:characters_to_binary(to_text(result(<<"x">>, metrics(), Samples, #{}))),
    ?assertNotEqual(nomatch, binary:match(Text, <<"0.50 +-0.00  LOSES">>)).

number_test_() ->
    [?_assertEqual(Want, number(N))
     || {Want, N} <- [{"1,234,568", 1234567.8}, {"1,000", 999.6}, {"999", 999.4}, {"100", 99.96}, {"99.9", 99.94},
                      {"10.0", 9.996}, {"0.50", 0.5}, {"0.00", 0}, {"-12.0", -12}]].

rounded_test_() ->
    [?_assertEqual(Want, rounded(x, N)) || {Want, N} <- [{1.2346, 1.23456}, {123456, 123456.4}, {0.00012346, 0.000123456},
                                                         {0.0, 0.0}, {7, 7}, {null, null}]].

table_test() ->
    ?assertEqual(<<"a    bb\nccc   1\n">>, unicode:characters_to_binary(table([["a", "bb"], ["ccc", {right, "1"}]]))).

save_test() ->
    File = filename:join(["/tmp", "beamway_bench_report-" ++ os:getpid(), "x.json"]),
    ok = save(File, result(<<"x">>, metrics(), samples(), #{})),
    {ok, Text} = file:read_file(File),
    ?assertMatch(#{<<"bench">> := <<"x">>}, jiffy:decode(Text, [return_maps])),
    ok = file:del_dir_r(filename:dirname(File)),
    ?assertMatch({error, _}, save("/proc/nowhere/x.json", result(<<"x">>, [], #{}, #{}))).
-endif.
