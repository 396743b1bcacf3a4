%% SPDX-License-Identifier: Apache-2.0
%% @doc Creates the tables on the pages, including the verdicts of their comparisons.
-module(beamway_bench_tables).

-export([table/1, too_weak/0]).

-define(AGAIN, beamway_bench_published:again()).

%% @doc Returns a table in Markdown, followed by the results from which its numbers come.
-spec table(beamway_bench_published:table()) -> unicode:chardata().
table({metrics, Whose, Results}) ->
    Rows = lists:append([metric_rows(beamway_bench_published:shown(Name), Metrics) || {Name, Metrics} <- Results]),
    Heading = ["question", "metric", Whose, "compared with", "ratio [95 %]", "verdict"],
    {Shown, Columns} = case has_verdicts(Results) of
                           true -> {Rows, Heading};
                           false -> {[lists:droplast(Row) || Row <- Rows], lists:droplast(Heading)}
                       end,
    [markdown(Columns, Shown), sources([Name || {Name, _} <- Results])];
table({brief, All}) ->
    %% The first page has no room for rows without numbers.
    Rows = [Row || {Name, _, _} = Row <- All, filelib:is_regular(beamway_bench_store:file(Name))],
    [markdown(["", "stock TCP", "tuned TCP", "Beamway", "Beamway ÷ tuned TCP"], [brief(Question, Metric, beamway_bench_published:shown(Name)) || {Name, Metric, Question} <- Rows]),
     from([Name || {Name, _, _} <- Rows])];
table({pairs, Rows}) ->
    [markdown(["question", "this project", "compared with", "ratio"], [pair(Question, Metric, Rival, beamway_bench_published:shown(Name)) || {Name, Metric, Rival, Question} <- Rows]), from([Name || {Name, _, _, _} <- Rows])];
table({across, Places, Rows}) ->
    Results = unique([Name || {Name, _, _, _} <- Rows]),
    Shown = fun(Folder, Name) -> beamway_bench_published:shown(Folder ++ Name) end,
    [markdown(["question", "compared with" | [heading(Heading, [Shown(Folder, Name) || Name <- Results]) || {Heading, Folder} <- Places]],
              [[Question, title(Rival) | [across(pair(Question, Metric, Rival, Shown(Folder, Name))) || {_, Folder} <- Places]] || {Name, Metric, Rival, Question} <- Rows]),
     from([Folder ++ Name || {_, Folder} <- Places, Name <- Results])];
table({grid, Heading, Rows}) ->
    Names = lists:usort([Name || Row <- Rows, {Name, _} <- Row]),
    Shown = maps:from_list([{Name, beamway_bench_published:shown(Name)} || Name <- Names]),
    [markdown(Heading, [[grid_cell(Cell, Shown) || Cell <- Row] || Row <- Rows]), sources(Names)];
table({facts, Name, Facts}) ->
    Shown = beamway_bench_published:shown(Name),
    [markdown(["", ""], [[Label, fact(Path, Shown)] || {Label, Path} <- Facts]), sources([Name])];
table({list, Name, Path, Columns}) ->
    Rows = case beamway_bench_published:shown(Name) of
               {hidden, _} -> [[?AGAIN | ["" || _ <- tl(Columns)]]];
               {_, Stored} -> [[value(maps:get(list_to_binary(Field), Item, null)) || {_, Field} <- Columns] || Item <- at(Path, Stored)]
           end,
    [markdown([Heading || {Heading, _} <- Columns], Rows), sources([Name])].

markdown(Heading, Rows) ->
    [[["|", [[" ", Cell, " |"] || Cell <- Row], "\n"] || Row <- [Heading, ["---" || _ <- Heading] | Rows]], "\n"].

metric_rows({hidden, _}, all) -> [["all", "", ?AGAIN, "", "", ""]];
metric_rows({hidden, _}, Metrics) -> [[question(Metric, #{}), name(Metric), ?AGAIN, "", "", ""] || Metric <- Metrics];
metric_rows({_, #{<<"metrics">> := Entries}}, all) ->
    Asked = unique([{Name, Key, Contender} || #{<<"name">> := Name, <<"key">> := Key, <<"contender">> := Contender} <- Entries]),
    Keys = [Key || {Key, _} <- lists:usort([{Key, Contender} || {_, Key, Contender} <- Asked])],
    lists:append([metric_row(told_apart(binary_to_list(Name), Key, Contender, Keys), Entries) || {Name, Key, Contender} <- Asked]);
metric_rows({_, #{<<"metrics">> := Entries}}, Metrics) -> lists:append([metric_row(Metric, Entries) || Metric <- Metrics]).

%% If several contenders answer the same question, each contender's name is appended to the question.
told_apart(Name, Key, Contender, Keys) ->
    case lists:member(Key, Keys -- [Key]) of
        true -> {Name, [Key, ", ", title(binary_to_list(Contender))]};
        false -> Name
    end.

unique([]) -> [];
unique([First | Rest]) -> [First | unique([Name || Name <- Rest, Name =/= First])].

question({_, Question}, _) -> Question;
question(_, #{<<"key">> := Key}) -> Key;
question(Metric, #{}) -> Metric.

name({Metric, _}) -> name(Metric);
name(Metric) -> ["`", Metric, "`"].

%% Returns a row for each baseline. Beamway's own values are only in the first row, because all rows share them.
metric_row(Metric, Entries) ->
    case named(case Metric of {Text, _} -> Text; Text -> Text end, Entries) of
        [] -> [[question(Metric, #{}), name(Metric), ?AGAIN, "", "", ""]];
        [#{<<"beamway">> := Own, <<"unit">> := Unit} = First | Rest] ->
            [[question(Metric, First), name(Metric), quantity(Own, Unit) | compared(First)]
             | [["", "", "" | compared(Entry)] || Entry <- Rest]]
    end.

%% Returns a metric's entries, one for each of its baselines.
named(Metric, Entries) -> [Entry || #{<<"name">> := Name} = Entry <- Entries, Name =:= list_to_binary(Metric)].

against("best", Entries) -> lists:sublist(lists:sort(fun is_better/2, [Entry || #{<<"baseline">> := Value} = Entry <- Entries, is_number(Value)]), 1);
against(Rival, Entries) -> [Entry || #{<<"baseline_name">> := Name} = Entry <- Entries, Name =:= list_to_binary(Rival)].

is_better(#{<<"baseline">> := One, <<"better">> := Better}, #{<<"baseline">> := Other}) -> case Better of <<"lower">> -> One =< Other; <<"higher">> -> One >= Other end.

compared(#{<<"baseline_name">> := null}) -> ["", "", ""];
compared(#{<<"baseline_name">> := Name, <<"baseline">> := Value, <<"unit">> := Unit} = Entry) ->
    [[title(binary_to_list(Name)), " ", number(Value, Unit)], ratio(Entry),
     case judgement(Entry, significant()) of <<"loses">> -> "**loses**"; null -> ""; Verdict -> beamway_bench_text:verdict(Verdict) end].

ratio(#{<<"ratio">> := Ratio, <<"interval">> := Interval} = Entry) -> beamway_bench_text:ratio(Ratio, Interval, maps:get(<<"range">>, Entry, null)).

%% Summarizes a whole comparison in one row: rounded numbers, the two most important rivals, and a single ratio.
brief(Question, _, {hidden, _}) -> [Question, ?AGAIN, "", "", ""];
brief(Question, Metric, {_, #{<<"metrics">> := Entries}}) ->
    case named(Metric, Entries) of
        [] -> [Question, ?AGAIN, "", "", ""];
        [#{<<"beamway">> := Own, <<"unit">> := Unit} | _] = All ->
            [Stock, Tuned] = [against(Rival, All) || Rival <- ["tcp", "tcp_tuned"]],
            Value = fun(#{<<"baseline">> := Baseline}) -> whole(Baseline) end,
            [Question, or_dash(Value, Stock), or_dash(Value, Tuned), ["**", whole(Own), "** ", Unit], or_dash(fun ratio/1, Tuned)]
    end.

%% A rival that does not take part in a comparison has no entry.
or_dash(_, []) -> "-";
or_dash(Show, [Entry]) -> Show(Entry).

pair(Question, _, _, {hidden, _}) -> [Question, ?AGAIN, "", ""];
pair(Question, Metric, Rival, {_, #{<<"metrics">> := Entries}}) ->
    case against(Rival, named(Metric, Entries)) of
        [] -> [Question, ?AGAIN, "", ""];
        [#{<<"beamway">> := Own, <<"unit">> := Unit} = Entry | _] -> [Question, quantity(Own, Unit) | lists:sublist(compared(Entry), 2)]
    end.

across([_, Own, _, Ratio]) ->
    case Own =:= ?AGAIN of true -> Own; false -> [Own, ", ", Ratio] end.

%% The heading names the OTP release of the first result that has been measured.
heading(Heading, Shown) -> [Heading | [[", OTP ", Otp] || Otp <- lists:sublist([Of || {_, #{<<"versions">> := #{<<"otp">> := Of}}} <- Shown], 1)]].

from(Names) -> ["From ", lists:join(", ", [dated(Name, beamway_bench_published:shown(Name)) || Name <- unique(Names)]), ".\n"].

whole(Value) when Value < 1000 -> integer_to_list(round(Value));
whole(Value) -> beamway_bench_text:number(Value).

dated(Name, {hidden, Why}) -> ["`", Name, "` (", Why, ")"];
dated(Name, {Age, #{<<"measured_at">> := At, <<"repeats">> := Repeats} = Stored}) ->
    ["`", Name, "` (", lists:join(", ", [day(At), repeats(Repeats)] ++ ["**old**" || Age =:= old] ++ ["**noisy**" || beamway_bench_published:is_noisy(Stored)]), ")"].

repeats(1) -> "1 repeat";
repeats(Count) -> [integer_to_list(Count), " repeats"].

%% ---- verdicts

%% A table that lists its metrics answers a question, so it has verdicts; a table with all of a result's metrics only shows data.
has_verdicts(Results) -> lists:all(fun({_, Metrics}) -> is_list(Metrics) end, Results).

%% Open MPI and the other baselines listed here show the machine's own limit or are older versions. They are not rivals, so they get no verdict. The
%% others get the run's own verdict, but a win or loss counts as even unless it is significant among all comparisons, because with so many comparisons
%% some would differ by chance.
judgement(#{<<"contender">> := <<"lanes", _/binary>>}, _) -> null;
judgement(#{<<"baseline_name">> := Name}, _) when Name =:= <<"openmpi">>; Name =:= <<"lanes">>; Name =:= <<"lanes_tcp">>; Name =:= <<"lanes_copies">> -> null;
judgement(#{<<"verdict">> := Verdict} = Entry, Most) when Verdict =:= <<"wins">>; Verdict =:= <<"loses">> ->
    case maps:get(<<"p">>, Entry, null) of
        P when is_number(P), P =< Most -> Verdict;
        _ -> <<"even">>
    end;
judgement(#{<<"verdict">> := Verdict}, _) -> Verdict.

%% Returns the largest p that is significant, given all verdicts on all pages.
significant() ->
    case get(?MODULE) of
        undefined ->
            Most = beamway_bench_stats:significant([P || #{<<"p">> := P} <- verdicts(), is_number(P)]),
            _ = put(?MODULE, Most),
            Most;
        Most -> Most
    end.

verdicts() ->
    Asked = lists:usort([{Name, case Metric of {Text, _} -> Text; Text -> Text end}
                         || {table, _, {metrics, _, Results}} <- beamway_bench_published:config(), has_verdicts(Results), {Name, Metrics} <- Results, Metric <- Metrics]),
    [Entry || {Name, Metric} <- Asked, {_, #{<<"metrics">> := Entries}} <- [beamway_bench_published:shown(Name)], Entry <- named(Metric, Entries), judgement(Entry, 1.0) =/= null].

%% @doc Returns the results whose verdicts do not count, because they have too few repeats, or because other work ran on the machine at the same time.
-spec too_weak() -> [unicode:chardata()].
too_weak() ->
    Named = lists:usort([Name || {table, _, {metrics, _, Results}} <- beamway_bench_published:config(), has_verdicts(Results), {Name, _} <- Results]),
    [["bench/results/", Name, ".json: ", Why, ". Measure it again"] || Name <- Named, {_, Stored} <- [beamway_bench_published:shown(Name)],
     Why <- beamway_bench_gate:weak([Entry || Entry <- maps:get(<<"metrics">>, Stored), judgement(Entry, 1.0) =/= null], beamway_bench_published:is_noisy(Stored))].

quantity(Value, Unit) -> [number(Value, Unit), " ", unit(Unit)].

number(Value, <<"B/s">>) -> beamway_bench_text:number(Value / 1.0e6);
number(Value, _) -> beamway_bench_text:number(Value).

unit(<<"B/s">>) -> "MB/s";
unit(Unit) -> Unit.

title("tcp") -> "stock TCP";
title("tcp_tuned") -> "tuned TCP";
title("tcp_spin") -> "stock TCP, spinning";
title("tls") -> "stock TLS";
title("tcp_mptcp") -> "stock TCP over MPTCP";
title("ktls") -> "stock TLS in the kernel";
title("unix") -> "stock over a unix socket";
title("beamway") -> "Beamway's carrier";
title("beamway_tcp") -> "Beamway on TCP";
title("beamway_far") -> "compressed";
title("beamway_far_10") -> "compressed with `compress_percent=10`";
title("beamway_tls") -> "Beamway on TLS";
title("beamway_no_resume") -> "`resume_ms` 0";
title("beamway_tcp_no_resume") -> "`resume_ms` 0";
title("beamway_tls_no_resume") -> "`resume_ms` 0";
title("lanes_tcp") -> "lanes over TCP";
title("gen_rpc") -> "`gen_rpc:call`";
title("beamway_poll_off") -> "the same with `poll_us=0`";
title("default_buffer") -> "yucan with the VM's own buffer";
title("bare") -> "a bare loop in C";
title("minimal") -> "a bare loop in Erlang";
title("yucan2009") -> "yucan of 2009";
title("yucan_h1") -> "yucan over HTTP/1.1";
title("cat") -> "`cat \\| cat`";
title("rdcp_tls") -> "rdcp, encrypted";
title("tar_ssh") -> "tar over ssh";
title("rdpipe_one") -> "one hop or one stream";
title("without_distances") -> "without";
title(Name) -> lists:flatten(string:replace(Name, "_", " ", all)).

grid_cell({Name, Metric}, Shown) ->
    case maps:get(Name, Shown) of
        {hidden, _} -> ?AGAIN;
        {_, #{<<"metrics">> := Entries}} ->
            case named(Metric, Entries) of
                [#{<<"beamway">> := Value, <<"unit">> := Unit} | _] -> quantity(Value, Unit);
                [] -> ?AGAIN
            end
    end;
grid_cell(Text, _) -> Text.

fact(_, {hidden, _}) -> ?AGAIN;
fact(Path, {_, Stored}) -> value(at(Path, Stored)).

at([], Value) -> Value;
at([Key | Path], Map) when is_map(Map) -> at(Path, maps:get(list_to_binary(Key), Map, null));
at(_, _) -> null.

value(null) -> ?AGAIN;
value(true) -> "yes";
value(false) -> "**no**";
value(Number) when is_integer(Number), abs(Number) < 1000 -> integer_to_list(Number);
value(Number) when is_number(Number) -> beamway_bench_text:number(Number);
value(Text) when is_binary(Text) -> Text.

%% Lists the results from which the numbers come.
sources(Names) -> [["- ", source(Name, beamway_bench_published:shown(Name)), "\n"] || Name <- unique(Names)].

source(Name, {hidden, Why}) -> ["`", Name, ".json`: ", Why, "; to be measured again."];
source(Name, {Age, #{<<"commit">> := Commit, <<"measured_at">> := At, <<"machine">> := Machine, <<"repeats">> := Repeats, <<"command">> := Command} = Stored}) ->
    #{<<"processor">> := Processor, <<"processors">> := Count, <<"load_average">> := Load} = Machine,
    ["`", Name, ".json`: commit `", string:slice(Commit, 0, 12), "`, ", day(At), ", ", string:trim(Processor), ", ", integer_to_list(Count), " processors, load ",
     io_lib:format("~.1f", [float(Load)]), " before, ", repeats(Repeats),
     "; `", string:replace(effective(Command, Repeats), "`", "'", all), "`.",
     case Age of fresh -> ""; old -> " **Old**: what it measures has changed since; to be measured again." end,
     [" **Noisy**: other work ran on the machine." || beamway_bench_published:is_noisy(Stored)],
     [[" Left out: ", lists:join("; ", Names), "."] || #{<<"left_out">> := [_ | _] = Names} <- [Stored]]].

%% A benchmark that chooses its own number of repeats ignores the option, so the command is shown without it.
effective(Command, Repeats) ->
    Own = integer_to_list(Repeats),
    case re:run(Command, " --repeats ([0-9]+)", [{capture, all, list}]) of
        {match, [Option, Count]} when Count =/= Own -> string:replace(unicode:characters_to_list(Command), Option, "");
        _ -> Command
    end.

day(Seconds) ->
    {{Year, Month, Day}, _} = calendar:system_time_to_universal_time(Seconds, second),
    io_lib:format("~4..0b-~2..0b-~2..0b", [Year, Month, Day]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

so_many_verdicts_at_most_test() ->
    ?assert(length(verdicts()) =< 120).

the_first_page_has_few_rows_test() ->
    [Rows] = [Rows || {table, "readme", {brief, Rows}} <- beamway_bench_published:config()],
    ?assert(length(Rows) =< 6).

%% Among a hundred results, one is expected to look significant by chance.
a_verdict_needs_significance_test_() ->
    Entry = #{<<"verdict">> => <<"wins">>, <<"p">> => 0.004},
    [?_assertEqual(<<"wins">>, judgement(Entry, 0.03)), ?_assertEqual(<<"even">>, judgement(Entry, 0.0)), ?_assertEqual(<<"even">>, judgement(maps:remove(<<"p">>, Entry), 0.03)),
     ?_assertEqual(<<"unknown">>, judgement(Entry#{<<"verdict">> := <<"unknown">>}, 0.0)),
     %% Nobody can measure version 0.2.0 again, so it gets no verdict.
     ?_assertEqual(null, judgement(Entry#{<<"contender">> => <<"lanes_tcp">>}, 0.03))].

every_table_is_of_known_results_test() ->
    Named = lists:append([case Table of
                              {metrics, _, Results} -> [Name || {Name, _} <- Results];
                              {brief, Rows} -> [Name || {Name, _, _} <- Rows];
                              {pairs, Rows} -> [Name || {Name, _, _, _} <- Rows];
                              {across, Places, Rows} -> [Folder ++ Name || {_, Folder} <- Places, {Name, _, _, _} <- Rows];
                              {grid, _, Rows} -> [Name || Row <- Rows, {Name, _} <- Row];
                              {_, Name, _} -> [Name];
                              {_, Name, _, _} -> [Name]
                          end || {table, _, Table} <- beamway_bench_published:config()]),
    ?assertEqual([], lists:usort(Named) -- [Name || {Name, _} <- beamway_bench_published:results()]).

entry(Name, Baseline, Verdict) ->
    #{<<"name">> => Name, <<"key">> => <<"what">>, <<"contender">> => <<"beamway">>, <<"unit">> => <<"B/s">>, <<"beamway">> => 2.0e6, <<"baseline">> => 4.0e6, <<"baseline_name">> => Baseline,
      <<"ratio">> => 0.5, <<"interval">> => [0.4, 0.6], <<"verdict">> => Verdict, <<"p">> => 0.0}.

stored() ->
    #{<<"commit">> => <<"0123456789abcdef">>, <<"measured_at">> => 1795295805, <<"repeats">> => 9, <<"command">> => <<"x">>,
      <<"machine">> => #{<<"processor">> => <<"p">>, <<"processors">> => 2, <<"load_average">> => 0.5},
      <<"metrics">> => [entry(<<"a">>, <<"tcp">>, <<"loses">>), entry(<<"a">>, <<"socat">>, <<"even">>)]}.

text(Chars) -> unicode:characters_to_list(Chars).

losses_stand_beside_wins_test() ->
    ?assertEqual("| heading | x | y | z | r | v |\n| --- | --- | --- | --- | --- | --- |\n"
                 "| what | `a` | 2.00 MB/s | stock TCP 4.00 | 0.50 [0.40, 0.60] | **loses** |\n"
                 "|  |  |  | socat 4.00 | 0.50 [0.40, 0.60] | even |\n\n",
                 text(markdown(["heading", "x", "y", "z", "r", "v"], metric_rows({fresh, stored()}, all)))).

contenders_of_one_question_are_told_apart_test() ->
    Entries = [entry(<<"a">>, <<"tcp">>, <<"loses">>), (entry(<<"b">>, <<"tcp">>, <<"even">>))#{<<"contender">> := <<"lanes_tcp">>}],
    Questions = fun(All) -> [text(Question) || [Question | _] <- metric_rows({fresh, (stored())#{<<"metrics">> := All}}, all)] end,
    ?assertEqual(["what, Beamway's carrier", "what, lanes over TCP"], Questions(Entries)),
    %% A contender that is compared under several names still counts as a single contender.
    ?assertEqual(["what", "what"], Questions([entry(<<"a">>, <<"tcp">>, <<"loses">>), entry(<<"b">>, <<"unix">>, <<"even">>)])).

what_is_hidden_is_not_shown_test_() ->
    [?_assertEqual([["q", ["`", "a", "`"], ?AGAIN, "", "", ""]], metric_rows({hidden, "why"}, [{"a", "q"}])),
     ?_assertEqual([["q", ["`", "gone", "`"], ?AGAIN, "", "", ""]], metric_rows({fresh, stored()}, [{"gone", "q"}]))].

the_source_is_named_test_() ->
    [?_assertEqual("`n.json`: commit `0123456789ab`, 2026-11-21, p, 2 processors, load 0.5 before, 9 repeats; `x`.", text(source("n", {fresh, stored()}))),
     ?_assertEqual({"x --repeats 9 y", "x y"}, {text(effective(<<"x --repeats 9 y">>, 9)), text(effective(<<"x --repeats 5 y">>, 1))}),
     ?_assertNotEqual(nomatch, string:find(text(source("n", {old, stored()})), "**Old**")),
     ?_assertNotEqual(nomatch, string:find(text(source("n", {fresh, (stored())#{<<"left_out">> => [<<"ktls: why">>, <<"unix: no">>]}})), " Left out: ktls: why; unix: no.")),
     ?_assertEqual("`n.json`: why; to be measured again.", text(source("n", {hidden, "why"})))].

a_brief_row_has_whole_numbers_test() ->
    Tuned = (entry(<<"a">>, <<"tcp_tuned">>, <<"even">>))#{<<"unit">> := <<"us">>, <<"beamway">> := 4.24, <<"baseline">> := 74.5},
    Stored = (stored())#{<<"metrics">> := [Tuned#{<<"baseline_name">> := <<"tcp">>, <<"baseline">> := 1234567.8}, Tuned]},
    ?assertEqual(["q", "1,234,568", "75", "**4** us", "0.50 [0.40, 0.60]"], [text(Cell) || Cell <- brief("q", "a", {fresh, Stored})]),
    Alone = Stored#{<<"metrics">> := [Entry || #{<<"baseline_name">> := <<"tcp">>} = Entry <- maps:get(<<"metrics">>, Stored)]},
    ?assertEqual(["q", "1,234,568", "-", "**4** us", "-"], [text(Cell) || Cell <- brief("q", "a", {fresh, Alone})]),
    ?assertEqual("`n` (2026-11-21, 9 repeats, **old**)", text(dated("n", {old, Stored}))),
    ?assertEqual(["q", ?AGAIN, "", "", ""], brief("q", "gone", {fresh, Stored})).

a_pair_names_its_rival_test() ->
    ?assertEqual(["q", "2.00 MB/s", "socat 4.00", "0.50 [0.40, 0.60]"], [text(Cell) || Cell <- pair("q", "a", "socat", {fresh, stored()})]),
    ?assertEqual(["q", ?AGAIN, "", ""], pair("q", "a", "nobody", {fresh, stored()})).

releases_are_columns_test() ->
    Versions = #{<<"versions">> => #{<<"otp">> => <<"27.3.4">>}},
    ?assertEqual(["Debian 13, OTP 27.3.4", "Debian 13"], [text(heading("Debian 13", Shown)) || Shown <- [[{hidden, "why"}, {old, maps:merge(stored(), Versions)}], [{hidden, "why"}]]]),
    ?assertEqual(["2.00 MB/s, 0.50 [0.40, 0.60]", ?AGAIN], [text(across(pair("q", "a", Rival, {fresh, stored()}))) || Rival <- ["socat", "nobody"]]).

the_best_rival_depends_on_what_is_better_test() ->
    Entries = [(entry(<<"a">>, Name, <<"even">>))#{<<"baseline">> := Value} || {Name, Value} <- [{<<"x">>, 4}, {<<"y">>, 2}, {<<"z">>, 3}]],
    Best = fun(Better) -> [Name || #{<<"baseline_name">> := Name} <- against("best", [Entry#{<<"better">> => Better} || Entry <- Entries])] end,
    ?assertEqual({[<<"y">>], [<<"x">>]}, {Best(<<"lower">>), Best(<<"higher">>)}),
    ?assertEqual([], against("best", [(entry(<<"a">>, null, null))#{<<"baseline">> := null}])).
-endif.
