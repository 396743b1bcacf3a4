%% SPDX-License-Identifier: Apache-2.0
%% @doc Judges a soak, and formats the result as text, as JSON and as a plot. The functions are pure.
-module(beamway_soak_report).

-export([result/3, risen_at_rest/2, progress/2, to_text/1, to_object/1, to_svg/1]).

-export_type([outcome/0, result/0]).

-type outcome() :: #{samples := [{TimeS :: float(), [beamway_soak_sample:sample()]}],
                     rest := {[beamway_soak_sample:raw()], [beamway_soak_sample:raw()]},
                     events := #{atom() => non_neg_integer()},
                     work := [beamway_soak_load:counts()],
                     errors := [term()]}.
-type result() :: map().

-define(PLOTTED_POINTS, 150).

%% @doc Judges a run.
-spec result(outcome(), Settings :: map(), Context :: map()) -> result().
result(#{samples := Samples, rest := {Before, After}, events := Events, work := Work, errors := Errors}, Settings, Context) ->
    #{minutes := Minutes, nodes := Nodes, link := Link, seed := Seed, pace := Pace, events := EventsS, command := Command} = Settings,
    {LastS, _} = lists:last(Samples),
    WarmUpS = beamway_soak_verdict:warm_up_s(LastS),
    Findings = [finding(Figure, Node, Samples, WarmUpS)
                || Figure <- beamway_soak_sample:figures(), Node <- lists:seq(1, Nodes)],
    Risen = risen_at_rest(Before, After),
    Context#{bench => <<"soak">>, command => Command, minutes => Minutes, nodes => Nodes, link => list_to_binary(Link),
             seed => Seed, pace_ms => Pace, seconds_between_events => EventsS, warm_up_s => WarmUpS,
             sample_count => length(Samples), events => Events, work => summed(Work),
             errors => [text(io_lib:format("~0tp", [Error])) || Error <- Errors],
             findings => Findings, risen_at_rest => Risen, new_at_rest => new_at_rest(Risen, Before, After),
             rest => #{before => without_who(Before), 'after' => without_who(After)}, samples => Samples,
             well => Errors =:= [] andalso Risen =:= [] andalso maps:get(errors, summed(Work)) =:= 0
                 andalso [grows || #{verdict := grows} <- Findings] =:= []}.

finding(#{key := Key, limit := none}, Node, Samples, WarmUpS) ->
    Judged = beamway_soak_verdict:judge(points(Key, Node, Samples), WarmUpS, {0, 0, 0}),
    Judged#{figure => Key, node => Node, verdict := shown};
finding(#{key := Key, limit := Limit}, Node, Samples, WarmUpS) ->
    Judged = beamway_soak_verdict:judge(points(Key, Node, Samples), WarmUpS, Limit),
    Judged#{figure => Key, node => Node}.

points(Key, Node, Samples) ->
    [{TimeS, maps:get(Key, lists:nth(Node, OfNodes))} || {TimeS, OfNodes} <- Samples].

summed([First | _] = Work) ->
    maps:map(fun(Name, _) -> lists:sum([maps:get(Name, OfNode) || OfNode <- Work]) end, First).

%% @doc Returns, for each node, the values at rest that have risen during the run by more than is allowed.
-spec risen_at_rest([beamway_soak_sample:raw()], [beamway_soak_sample:raw()]) ->
          [#{node := pos_integer(), figure := atom(), before := number(), 'after' := number()}].
risen_at_rest(Before, After) ->
    [#{node => Node, figure => Key, before => Old, 'after' => New}
     || {Node, OldOfNode, NewOfNode} <- lists:zip3(lists:seq(1, length(Before)), Before, After),
        {Key, Allowed} <- lists:sort(maps:to_list(beamway_soak_sample:rest_limits())),
        {Old, New} <- [{maps:get(Key, OldOfNode), maps:get(Key, NewOfNode)}], New > Old + Allowed].

%% New resources are listed only for nodes on which some value has risen.
new_at_rest(Risen, Before, After) ->
    [#{node => Node, new => maps:get(who, NewOfNode, []) -- maps:get(who, OldOfNode, [])}
     || {Node, OldOfNode, NewOfNode} <- lists:zip3(lists:seq(1, length(Before)), Before, After),
        [] =/= [risen || #{node := N} <- Risen, N =:= Node]].

without_who(Rest) -> [maps:remove(who, OfNode) || OfNode <- Rest].

%% @doc Returns the progress of a run as a single line.
-spec progress(Settings :: map(), {TimeS :: float(), [beamway_soak_sample:sample()]}) -> unicode:chardata().
progress(#{minutes := Minutes}, {TimeS, OfNodes}) ->
    [clock(TimeS), " of ", clock(Minutes * 60)
     | [io_lib:format(" | node ~b: ~b MB, ~b descriptors, ~b processes, ~b frames/s, rings ~b KB",
                      [N, round(maps:get(rss, S) / 1048576), maps:get(descriptors, S), maps:get(processes, S),
                       round(maps:get(frames, S)), maps:get(ring_fill, S) div 1024])
        || {N, S} <- lists:zip(lists:seq(1, length(OfNodes)), OfNodes)]].

clock(Seconds) ->
    io_lib:format("~b:~2..0b", [trunc(Seconds) div 60, trunc(Seconds) rem 60]).

%% @doc Returns the result as human-readable text.
-spec to_text(result()) -> unicode:chardata().
to_text(#{findings := Findings, events := #{cuts := Cuts, stops := Stops}} = Result) ->
    Head = [{right, Cell} || Cell <- ["median", "change", "95 % interval", "limit"]],
    [io_lib:format("soak: ~ts~nseed ~b: ~b connections cut, ~b nodes stopped for a moment~n~n",
                   [what(Result), maps:get(seed, Result), Cuts, Stops]),
     beamway_bench_text:table([["figure", "node" | Head] ++ ["verdict"] | [row(Finding) || Finding <- Findings]]),
     "\n", at_rest_text(Result), errors_text(Result), verdict_text(Result)].

what(#{minutes := Minutes, nodes := Nodes, link := Link, work := Work}) ->
    io_lib:format("~ts minutes, ~b nodes over ~ts; ~ts calls, ~ts messages, ~ts ends of processes, ~ts GB",
                  [short(Minutes), Nodes, Link | [beamway_bench_text:number(maps:get(Key, Work)) || Key <- [calls, messages, exits]]]
                  ++ [short(maps:get(bytes, Work) / 1.0e9)]).

row(#{figure := Key, node := Node, verdict := Verdict, median := Median, growth := Growth, low := Low, high := High, limit := Limit}) ->
    #{title := Title, unit := Unit, divisor := Divisor} = figure(Key),
    Show = fun(Number) -> [short(Number / Divisor), [[" ", Unit] || Unit =/= ""]] end,
    [Title, integer_to_list(Node), {right, Show(Median)}, {right, Show(Growth)},
     {right, [short(Low / Divisor), " to ", short(High / Divisor)]},
     {right, case Verdict of shown -> "-"; _ -> Show(Limit) end}, verdict_word(Verdict)].

figure(Key) ->
    hd([Figure || #{key := K} = Figure <- beamway_soak_sample:figures(), K =:= Key]).

verdict_word(flat) -> "flat";
verdict_word(grows) -> "GROWS";
verdict_word(too_short) -> "too short a run to say";
verdict_word(shown) -> "not judged".

at_rest_text(#{risen_at_rest := []}) -> "with all links down again: nothing more than before the run\n";
at_rest_text(#{risen_at_rest := Risen, new_at_rest := News}) ->
    [[io_lib:format("with all links down again: node ~b has ~b ~ts, before the run ~b~n", [Node, New, Key, Old])
      || #{node := Node, figure := Key, before := Old, 'after' := New} <- Risen],
     [io_lib:format("  new on node ~b: ~ts~n", [Node, Line]) || #{node := Node, new := Lines} <- News, Line <- Lines]].

errors_text(#{errors := [], work := #{errors := 0}}) -> "no wrong answer, no message lost, damaged or out of order\n";
errors_text(#{errors := Errors, work := #{errors := Count}}) ->
    [io_lib:format("~b errors of the load, the first of them:~n", [Count]) | [["  ", Error, "\n"] || Error <- Errors]].

verdict_text(#{well := true}) -> "verdict: flat\n";
verdict_text(#{well := false}) -> "verdict: NOT WELL\n".

short(Number) when abs(Number) >= 100 -> integer_to_list(round(Number));
short(Number) when abs(Number) < 0.05 -> "0";
short(Number) -> float_to_list(float(Number), [{decimals, 1}, compact]).

%% @doc Returns the object that is stored. The samples are only plotted.
-spec to_object(result()) -> map().
to_object(Result) -> (rounded(maps:remove(samples, Result)))#{repeats => 1}.

rounded(Map) when is_map(Map) -> maps:map(fun(_, Value) -> rounded(Value) end, Map);
rounded(List) when is_list(List) -> [rounded(Item) || Item <- List];
rounded(Number) when is_float(Number), abs(Number) >= 1000 -> round(Number);
rounded(Number) when is_float(Number) -> round(Number * 1000) / 1000;
rounded(Other) -> Other.

%% @doc Returns the result as a plot.
-spec to_svg(result()) -> unicode:chardata().
to_svg(#{samples := Samples, nodes := Nodes, warm_up_s := WarmUpS, events := #{cuts := Cuts, stops := Stops}} = Result) ->
    {LastS, _} = lists:last(Samples),
    #{machine := #{processor := Processor, processors := Count}, versions := #{otp := Otp}, commit := Commit} = Result,
    beamway_bench_panels:draw(
      #{title => ["Soak: ", what_short(Result)],
        subtitle => [what(Result),
                     io_lib:format("~b connections cut, ~b nodes stopped for a moment; OTP ~ts, ~b processors (~ts), commit ~ts",
                                   [Cuts, Stops, Otp, Count, Processor, Commit])],
        x => #{scale => linear, from => 0, to => LastS / 60, unit => "min"}, spread => {bands, "lowest to highest"}, shaded => {WarmUpS / 60, "warm-up, not judged"},
        legend => [["node ", integer_to_list(Node)] || Node <- lists:seq(1, Nodes)],
        panels => [panel(Figure, Result) || Figure <- beamway_soak_sample:figures()]}).

what_short(#{well := true}) -> "flat";
what_short(#{well := false}) -> "not well".

panel(#{key := Key, title := Title, unit := Unit, divisor := Divisor}, #{findings := Findings, samples := Samples, nodes := Nodes}) ->
    Own = [Finding || #{figure := K} = Finding <- Findings, K =:= Key],
    #{title => [Title, [[", ", Unit] || Unit =/= ""]], note => panel_note(Own, Divisor, Unit),
      alarm => [grows || #{verdict := grows} <- Own] =/= [],
      lines => [plotted([{TimeS / 60, Value / Divisor} || {TimeS, Value} <- points(Key, Node, Samples)])
                || Node <- lists:seq(1, Nodes)]}.

%% The note is about the node whose value has risen most.
panel_note(Findings, Divisor, Unit) ->
    {_, #{verdict := Verdict, growth := Growth, limit := Limit}} =
        lists:max([{Growth, Finding} || #{growth := Growth} = Finding <- Findings]),
    Change = [[$+ || Growth > 0], short(Growth / Divisor), [[" ", Unit] || Unit =/= ""]],
    case Verdict of
        shown -> "not judged";
        too_short -> "too short a run to say";
        _ -> [verdict_word(Verdict), ": ", Change, ", limit ", short(Limit / Divisor)]
    end.

%% Returns the median, lowest and highest value of each interval.
plotted(Points) ->
    Size = max(1, (length(Points) + ?PLOTTED_POINTS - 1) div ?PLOTTED_POINTS),
    [begin
         Values = [Value || {_, Value} <- Some],
         {beamway_bench_stats:median([Minute || {Minute, _} <- Some]), lists:min(Values),
          beamway_bench_stats:median(Values), lists:max(Values)}
     end || Some <- pieces(Points, Size)].

pieces(Points, Size) when length(Points) =< Size -> [Points];
pieces(Points, Size) ->
    {Some, Others} = lists:split(Size, Points),
    [Some | pieces(Others, Size)].

text(Chars) -> unicode:characters_to_binary(Chars).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Returns a ten-minute run with one sample per second. `Change' modifies node 2's values.
outcome(Change) ->
    Base = maps:from_list([{Key, 1000} || #{key := Key} <- beamway_soak_sample:figures()]),
    Raw = maps:from_list([{Key, 10} || Key <- maps:keys(beamway_soak_sample:rest_limits())]),
    #{samples => [{float(T), [Base, Change(T, Base)]} || T <- lists:seq(1, 600)], rest => {[Raw, Raw], [Raw, Raw]},
      events => #{cuts => 1, stops => 2}, errors => [],
      work => [#{calls => 1, messages => 2, bytes => 3, exits => 4, processes => 5, errors => 0}]}.

judged(Outcome) ->
    result(Outcome, #{minutes => 10.0, nodes => 2, link => "shm", seed => 1, pace => 5, events => 20.0, command => <<"x">>},
           #{machine => #{processor => <<"p">>, processors => 2}, versions => #{otp => <<"25">>}, commit => <<"c">>}).

flat() -> outcome(fun(_, Base) -> Base end).

a_flat_run_is_well_test() ->
    ?assertMatch(#{well := true}, judged(flat())).

whatever_is_wrong_is_not_well_test_() ->
    #{rest := {Before, [Rest | _]}, work := [Work]} = Flat = flat(),
    [{Name, ?_assertMatch(#{well := false}, judged(Outcome))}
     || {Name, Outcome} <-
            [{"a descriptor a minute", outcome(fun(T, Base) -> Base#{descriptors := 1000 + T div 60} end)},
             {"memory", outcome(fun(T, Base) -> Base#{rss := 1.0e8 + T * 50000} end)},
             {"a port that stays", Flat#{rest := {Before, [Rest, Rest#{ports := 11}]}}},
             {"an error that was told", Flat#{errors := [oops]}},
             {"errors that were counted", Flat#{work := [Work#{errors := 1}]}}]].

the_node_and_figure_are_named_test() ->
    Text = text(to_text(judged(outcome(fun(T, Base) -> Base#{descriptors := 1000 + T div 60} end)))),
    ?assertMatch({match, _}, re:run(Text, "(?m)^open descriptors +2 .* GROWS$")),
    ?assertMatch({match, _}, re:run(Text, "(?m)^open descriptors +1 .* flat$")).

the_object_has_the_findings_test() ->
    #{<<"findings">> := Findings} = Object = jiffy:decode(jiffy:encode(to_object(judged(flat()))), [return_maps]),
    ?assertEqual(2 * length(beamway_soak_sample:figures()), length(Findings)),
    ?assertNot(is_map_key(<<"samples">>, Object)).

svg_shows_alarm_only_when_there_is_one_test_() ->
    Alarms = fun(Outcome) -> length(binary:matches(text(to_svg(judged(Outcome))), <<"class=\"alarm">>)) end,
    [?_assertEqual(0, Alarms(flat())),
     ?_assertEqual(1, Alarms(outcome(fun(T, Base) -> Base#{ports := 1000 + T div 60} end)))].

short_test_() ->
    [?_assertEqual(Want, short(N)) || {Want, N} <- [{"0", 0}, {"0", 0.01}, {"1.5", 1.5}, {"123", 123.4}, {"-2.0", -2}]].
-endif.
