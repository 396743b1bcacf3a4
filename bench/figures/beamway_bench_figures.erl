%% SPDX-License-Identifier: Apache-2.0
%% @doc Writes the numbers in the documents. `bench/figures.config' specifies which stored results each table is made from.
%%
%% A page has `<!-- figures: NAME -->' and `<!-- end -->' on their own lines, and the table of that name is inserted between them. Under each table,
%% the page lists the results that the table is based on, with commit, day, machine, repeats and command. A result that was measured on a modified
%% tree, or at a commit that is missing from the repository, is not shown. `bench/stale' lists the stored results that are older than the code that
%% they measure, which the pages mark as old; {@link beamway_bench_history} determines their age.
%%
%% `scripts/figures' calls `main/0' and documents its arguments.
-module(beamway_bench_figures).

-export([main/0]).

-type config() :: [tuple()].
-type table() :: {metrics, Whose :: string(), [{Result :: string(), all | [string() | {string(), string()}]}]}
               | {brief, [{Result :: string(), Metric :: string(), Question :: string()}]}
               | {pairs, [{Result :: string(), Metric :: string(), Rival :: string(), Question :: string()}]}
               | {grid, Heading :: [string()], [[string() | {Result :: string(), Metric :: string()}]]}
               | {facts, Result :: string(), [{Label :: string(), Path :: [string()]}]}
               | {list, Result :: string(), Path :: [string()], [{Heading :: string(), Field :: string()}]}.
-type picture() :: {file:filename(), Data :: unicode:chardata(), {svg, unicode:chardata()} | Script :: unicode:chardata()}.
%% The data are also embedded in the picture.

-define(MOST_COMMITS, 40).
-define(AGAIN, "to be measured again").

%% @doc The entry point of `scripts/figures'.
-spec main() -> no_return().
main() ->
    halt(try words(init:get_plain_arguments())
         catch throw:{config, Why} -> complain("~ts", [Why]), 2
         end).

words(Arguments) ->
    case Arguments of
        ["write"] -> write();
        ["check"] -> verdict("check", problems());
        ["release"] -> verdict("release-check", problems() ++ too_old() ++ too_weak());
        ["mark"] -> mark();
        ["plan" | Words] -> plan(Words);
        ["compact" | Names] -> ended(beamway_bench_scripted:compact(case Names of [] -> [Name || {Name, _} <- results()]; _ -> Names end));
        ["begin", "--force", Name, Command] -> ended(beamway_bench_scripted:begun(Name, Command, true));
        ["begin", Name, Command] -> ended(beamway_bench_scripted:begun(Name, Command, false));
        ["store", "--force", File] -> ended(beamway_bench_scripted:store(File, true));
        ["store", File] -> ended(beamway_bench_scripted:store(File, false));
        ["commit"] -> io:format("~ts~n", [beamway_bench_machine:commit()]), 0;
        _ -> complain("expected write, check, release, mark, plan, compact, begin, store or commit", []), 2
    end.

ended(ok) -> 0;
ended({error, Why}) -> complain("~ts", [Why]), 1.

complain(Format, Args) -> io:format(standard_error, "figures: " ++ Format ++ "~n", Args).

verdict(_, []) -> 0;
verdict(What, Problems) ->
    _ = [io:format("~ts~n", [Problem]) || Problem <- Problems],
    io:format("~ts: ~b problems~n", [What, length(Problems)]),
    1.

problems() -> of_files() ++ unknown_commits().

of_files() ->
    pages() ++ outdated(pictures()) ++ schema()
        ++ beamway_bench_gate:files(beamway_bench_checkout:root(), [Text || {_, Text} <- markdown_files()]) ++ [beamway_bench_gate:dead_text(Entry) || Entry <- dead()].

dead() -> beamway_bench_gate:dead(stale(), fun read/1).

%% ---- results and pages

-spec config() -> config().
config() ->
    {ok, Terms} = file:consult(path("bench/figures.config")),
    case twice(Terms) of
        [] -> Terms;
        [First | _] -> throw({config, io_lib:format("bench/figures.config has ~ts twice: delete one", [First])})
    end.

%% Returns the entries that occur more than once in the file, because it would be undefined which of them is measured or shown.
twice(Terms) ->
    Keys = [{element(1, Term), case Term of {_, _} -> none; _ -> element(2, Term) end} || Term <- Terms],
    [case Name of none -> atom_to_list(Kind); _ -> io_lib:format("~ts ~tp", [Kind, Name]) end
     || {Kind, Name} <- lists:usort(Keys -- lists:usort(Keys))].

path(File) -> filename:join(beamway_bench_checkout:root(), File).

results() -> [{Name, Result} || {result, Name, Result} <- config()].

read(Name) -> beamway_bench_store:read(beamway_bench_store:file(Name)).

-spec stale() -> [beamway_bench_gate:mark()].
stale() ->
    case file:consult(path("bench/stale")) of
        {ok, Terms} -> Terms;
        {error, enoent} -> []
    end.

%% Returns a stored result in the form in which the pages show it, or the reason why they do not show it.
shown(Name) ->
    case read(Name) of
        {ok, Stored} -> judged(beamway_bench_store:changed_tree(Stored), is_stale(Name, Stored), Stored);
        {error, _} -> {hidden, "not measured yet"}
    end.

judged(true, _, _) -> {hidden, "stored of a tree that no commit holds"};
judged(false, not_here, _) -> {hidden, "stored of a commit that this repository does not have"};
judged(false, Age, Stored) -> {Age, Stored}.

%% A `bench/stale' entry applies to one stored result, so it does not apply to a newer result measured at a different commit.
is_stale(Name, #{<<"commit">> := Commit}) ->
    case [Why || {N, C, Why} <- stale(), N =:= Name, C =:= binary_to_list(Commit)] of
        [Why | _] -> Why;
        [] -> fresh
    end.

%% ---- tables

-spec table(table()) -> unicode:chardata().
table({metrics, Whose, Results}) ->
    Rows = lists:append([metric_rows(shown(Name), Metrics) || {Name, Metrics} <- Results]),
    Heading = ["question", "metric", Whose, "compared with", "ratio [95 %]", "verdict"],
    {Shown, Columns} = case has_verdicts(Results) of
                           true -> {Rows, Heading};
                           false -> {[lists:droplast(Row) || Row <- Rows], lists:droplast(Heading)}
                       end,
    [markdown(Columns, Shown), sources([Name || {Name, _} <- Results])];
table({brief, Rows}) ->
    [markdown(["", "stock TCP", "tuned TCP", "Beamway", "Beamway ÷ tuned TCP"], [brief(Question, Metric, shown(Name)) || {Name, Metric, Question} <- Rows]),
     from([Name || {Name, _, _} <- Rows])];
table({pairs, Rows}) ->
    [markdown(["question", "this project", "compared with", "ratio"], [pair(Question, Metric, Rival, shown(Name)) || {Name, Metric, Rival, Question} <- Rows]), from([Name || {Name, _, _, _} <- Rows])];
table({grid, Heading, Rows}) ->
    Names = lists:usort([Name || Row <- Rows, {Name, _} <- Row]),
    Shown = maps:from_list([{Name, shown(Name)} || Name <- Names]),
    [markdown(Heading, [[grid_cell(Cell, Shown) || Cell <- Row] || Row <- Rows]), sources(Names)];
table({facts, Name, Facts}) ->
    Shown = shown(Name),
    [markdown(["", ""], [[Label, fact(Path, Shown)] || {Label, Path} <- Facts]), sources([Name])];
table({list, Name, Path, Columns}) ->
    Rows = case shown(Name) of
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

from(Names) -> ["From ", lists:join(", ", [dated(Name, shown(Name)) || Name <- unique(Names)]), ".\n"].

whole(Value) when Value < 1000 -> integer_to_list(round(Value));
whole(Value) -> beamway_bench_text:number(Value).

dated(Name, {hidden, Why}) -> ["`", Name, "` (", Why, ")"];
dated(Name, {Age, #{<<"measured_at">> := At, <<"repeats">> := Repeats} = Stored}) ->
    ["`", Name, "` (", lists:join(", ", [day(At), repeats(Repeats)] ++ ["**old**" || Age =:= old] ++ ["**noisy**" || is_noisy(Stored)]), ")"].

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
                         || {table, _, {metrics, _, Results}} <- config(), has_verdicts(Results), {Name, Metrics} <- Results, Metric <- Metrics]),
    [Entry || {Name, Metric} <- Asked, {_, #{<<"metrics">> := Entries}} <- [shown(Name)], Entry <- named(Metric, Entries), judgement(Entry, 1.0) =/= null].

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
sources(Names) -> [["- ", source(Name, shown(Name)), "\n"] || Name <- unique(Names)].

source(Name, {hidden, Why}) -> ["`", Name, ".json`: ", Why, "; to be measured again."];
source(Name, {Age, #{<<"commit">> := Commit, <<"measured_at">> := At, <<"machine">> := Machine, <<"repeats">> := Repeats, <<"command">> := Command} = Stored}) ->
    #{<<"processor">> := Processor, <<"processors">> := Count, <<"load_average">> := Load} = Machine,
    ["`", Name, ".json`: commit `", string:slice(Commit, 0, 12), "`, ", day(At), ", ", string:trim(Processor), ", ", integer_to_list(Count), " processors, load ",
     io_lib:format("~.1f", [float(Load)]), " before, ", repeats(Repeats),
     "; `", string:replace(effective(Command, Repeats), "`", "'", all), "`.",
     case Age of fresh -> ""; old -> " **Old**: what it measures has changed since; to be measured again." end,
     [" **Noisy**: other work ran on the machine." || is_noisy(Stored)],
     [[" Left out: ", lists:join("; ", Names), "."] || #{<<"left_out">> := [_ | _] = Names} <- [Stored]]].

%% Returns whether other work ran during the measurement or just before it. In old results only the load average shows this.
is_noisy(#{<<"noisy">> := Why}) -> Why =/= [];
is_noisy(#{<<"machine">> := #{<<"load_average">> := Load}}) -> beamway_bench_machine:noise(Load) =/= [].

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

%% ---- pages

%% Returns all pages that contain results, each with its current text and the text that it should have.
-spec both() -> [{file:filename(), Is :: binary(), Should :: binary()}].
both() ->
    Tables = maps:from_list([{Name, Table} || {table, Name, Table} <- config()]),
    [{File, Text, iolist_to_binary(filled(Text, Tables))} || {File, Text} <- markdown_files(), binary:match(Text, <<"<!-- figures: ">>) =/= nomatch].

markdown_files() ->
    [{path(File), Text} || Pattern <- ["*.md", "*/*.md", "*/*/*.md"], File <- lists:sort(filelib:wildcard(Pattern, beamway_bench_checkout:root())), hd(filename:split(File)) =/= "build",
                           {ok, Text} <- [file:read_file(path(File))]].

filled(Text, Tables) ->
    case re:run(Text, "^(.*?<!-- figures: ([a-z0-9-]+) -->\n).*?(<!-- end -->\n.*)$", [dotall, {capture, all_but_first, binary}]) of
        {match, [Before, Name, Rest]} ->
            Table = case Tables of #{Name := Known} -> Known; _ -> maps:get(binary_to_list(Name), Tables) end,
            <<"<!-- end -->\n", After/binary>> = Rest,
            [Before, "\n", unicode:characters_to_binary(table(Table)), "\n<!-- end -->\n", filled(After, Tables)];
        nomatch -> Text
    end.

write() ->
    Dead = dead(),
    ok = case Dead of [] -> ok; _ -> write_stale(stale() -- Dead) end,
    _ = [begin ok = beamway_bench_store:write_text(File, Should), io:format("written: ~ts~n", [File]) end || {File, Is, Should} <- both(), Is =/= Should],
    lists:max([0 | [draw(Picture) || Picture <- pictures(), outdated([Picture]) =/= []]]).

pages() ->
    [[string:prefix(File, beamway_bench_checkout:root() ++ "/"), ": its figures are not those of bench/results. Run: make figures"] || {File, Is, Should} <- both(), Is =/= Should].

schema() -> [Why || {Name, _} <- results(), {error, Why} <- [present(Name)]].

%% A result that has not been measured yet is not an error here.
present(Name) ->
    case filelib:is_regular(beamway_bench_store:file(Name)) of
        true -> read(Name);
        false -> missing
    end.

%% Returns the results whose verdicts do not count, because they have too few repeats, or because other work ran on the machine meanwhile.
too_weak() ->
    Named = lists:usort([Name || {table, _, {metrics, _, Results}} <- config(), has_verdicts(Results), {Name, _} <- Results]),
    [["bench/results/", Name, ".json: ", Why, ". Measure it again"] || Name <- Named, {_, Stored} <- [shown(Name)],
     Why <- beamway_bench_gate:weak([Entry || Entry <- maps:get(<<"metrics">>, Stored), judgement(Entry, 1.0) =/= null], is_noisy(Stored))].

%% ---- pictures

-spec pictures() -> [picture()].
pictures() -> charts() ++ ants().

%% What gnuplot draws depends on its version, so only the data in its pictures are compared. Our own charts must be identical.
outdated(Pictures) -> [[File, " is not the one of bench/results. Run: make figures"] || {File, Data, How} <- Pictures, not is_drawn(file:read_file(File), Data, How)].

is_drawn({ok, Drawn}, Data, {svg, Svg}) -> Drawn =:= unicode:characters_to_binary([Svg, embedded(Data)]);
is_drawn(Read, Data, _) -> holds(Read, Data).

holds({ok, Svg}, Data) -> string:find(Svg, embedded(Data)) =/= nomatch;
holds({error, _}, _) -> false.

embedded(Data) -> unicode:characters_to_binary(["<!-- of bench/results:\n", Data, "-->\n"]).

draw({File, Data, How}) ->
    case drawn(File, How) of
        {ok, Svg} ->
            ok = beamway_bench_store:write_text(File, [Svg, embedded(Data)]),
            io:format("written: ~ts~n", [File]),
            0;
        {error, Why} -> complain("~ts", [Why]), 1
    end.

drawn(_, {svg, Svg}) -> {ok, Svg};
drawn(File, Script) ->
    case beamway_bench_chart:plot(File, Script) of
        ok -> {ok, _} = file:read_file(File);
        {error, Why} -> {error, Why}
    end.

%% Returns the pictures for the guide to placement.
ants() -> [ants(Kind, picture_file(lists:concat(["mlaco-", Kind])), Figures) || Kind <- [attributes, distances], {_, #{<<"figures">> := Figures}} <- [shown(lists:concat(["placement-", Kind]))]].

ants(Kind, File, Figures) ->
    Data = beamway_bench_ants:data(Kind, Figures),
    {File, Data, beamway_bench_ants:script(Kind, File, Data)}.

picture_file(Name) -> path("docs/guide/pictures/" ++ Name ++ ".svg").

%% Returns the pages' charts, which plot the ratios from the tables and their intervals. To the right of 1, Beamway is better.
charts() -> [chart(Name, Title, Series, Rows) || {chart, Name, Title, Series, Rows} <- config()].

chart(Name, Title, Series, Rows) ->
    Points = [{labelled(Label, Stored), points(Stored, Metrics, Series)} || {Result, Metrics, Label} <- Rows, Stored <- [shown(Result)]],
    Shown = [One || {Rival, _} = One <- Series, lists:any(fun({_, Dots}) -> lists:keymember(Rival, 1, Dots) end, Points)],
    Drawn = [{Label, [{place(Rival, Shown), Ratio, Low, High} || {Rival, Ratio, Low, High} <- Dots]} || {Label, Dots} <- Points],
    {picture_file(Name), [Title, "\n", [line(Row) || Row <- Drawn]], {svg, beamway_bench_dots:svg(Title, [Legend || {_, Legend} <- Shown], Drawn)}}.

labelled(Label, {hidden, _}) -> Label ++ ": " ++ ?AGAIN;
labelled(Label, {old, _}) -> Label ++ " (old)";
labelled(Label, {fresh, _}) -> Label.

%% Returns a point for each rival that has been measured.
points({hidden, _}, _, _) -> [];
points({_, #{<<"metrics">> := Entries}}, Metrics, Series) ->
    [list_to_tuple([Rival | oriented(Better, Ratio, bounds(Entry))])
     || {Rival, _} <- Series, #{<<"name">> := Name, <<"baseline_name">> := Baseline, <<"ratio">> := Ratio, <<"better">> := Better} = Entry <- Entries,
        Baseline =:= list_to_binary(Rival), lists:member(binary_to_list(Name), Metrics), is_number(Ratio), Ratio > 0].

bounds(#{<<"interval">> := [Low, High]}) -> [Low, High];
bounds(#{<<"range">> := [Low, High]}) -> [Low, High];
bounds(#{<<"ratio">> := Ratio}) -> [Ratio, Ratio].

oriented(<<"higher">>, Ratio, [Low, High]) -> [float(N) || N <- [Ratio, Low, High]];
oriented(<<"lower">>, Ratio, [Low, High]) -> [1 / N || N <- [Ratio, High, Low]].

place(Rival, [{Rival, _} | _]) -> 1;
place(Rival, [_ | Others]) -> 1 + place(Rival, Others).

line({Label, Dots}) -> [Label, [io_lib:format(" ~b ~.3f ~.3f ~.3f", tuple_to_list(Dot)) || Dot <- Dots], "\n"].

%% ---- commits

unknown_commits() ->
    case beamway_bench_history:known() of
        {false, Why} -> io:format("skipped: whether the results' commits are here; ~ts~n", [Why]), [];
        true ->
            [["bench/results/", Name, ".json is of commit ", Commit, ", which this branch does not have. Measure it again, or run: make figures MARK=1"]
             || {Name, _} <- results(), {Age, #{<<"commit">> := Commit}} <- [shown(Name)], Age =/= hidden, not beamway_bench_history:has(Commit)]
    end.

%% Returns the results that are so old that they block a release.
too_old() ->
    case beamway_bench_history:known() of
        {false, Why} -> io:format("skipped: how old the results are; ~ts~n", [Why]), [];
        true -> [["bench/results/", Name, ".json: ", Why, ". Measure it again: ", command(Result)] || {Name, Result} <- results(), Why <- age(Name, Result)]
    end.

age(Name, Result) ->
    case shown(Name) of
        {hidden, Why} -> [Why];
        {_, #{<<"commit">> := Commit}} ->
            case behind(Commit, Result) of
                not_here -> ["of a commit that this branch does not have"];
                Count when Count > ?MOST_COMMITS -> [io_lib:format("~b commits since its own have touched what it measures, or how (at most ~b may)", [Count, ?MOST_COMMITS])];
                _ -> []
            end
    end.

%% Returns how many commits since the result's own commit have changed what it measures or how it is measured.
behind(Commit, #{measures := Measures} = Result) ->
    case beamway_bench_history:has(Commit) of
        true ->
            [Known] = [Paths || {paths, Paths} <- config()],
            beamway_bench_history:touching(Commit, bench(Result) ++ lists:append([maps:get(Measure, Known) || Measure <- Measures]));
        false -> not_here
    end.

%% Returns the source file of the benchmark module that measures this result, if there is one.
bench(Result) ->
    case re:run(command(Result), "(?:beamway bench |bench-rdma N=)([a-z0-9-]+)", [{capture, all_but_first, list}]) of
        {match, [Name]} -> [beamway_bench_checkout:source(atom_to_list(beamway_bench:module(Name)) ++ ".erl")];
        nomatch -> []
    end.

write_stale(Entries) ->
    ok = beamway_bench_store:write_text(path("bench/stale"), ["%% Written by `make figures MARK=1': stored results that are older than what they measure.\n",
                                                              [io_lib:format("{~p, ~p, ~p}.~n", tuple_to_list(Entry)) || Entry <- Entries]]).

%% Records which results the pages must mark as old or must not show.
mark() ->
    case beamway_bench_history:known() of
        {false, Why} -> complain("~ts", [Why]), 1;
        true ->
            ok = write_stale([{Name, binary_to_list(Commit), Why}
                              || {Name, Result} <- results(), {ok, #{<<"commit">> := Commit} = Stored} <- [read(Name)],
                                 not beamway_bench_store:changed_tree(Stored), Why <- mark(Commit, Result)]),
            write()
    end.

mark(Commit, Result) ->
    case behind(Commit, Result) of
        not_here -> [not_here];
        Count -> [old || Count > ?MOST_COMMITS]
    end.

%% ---- measuring again

command(#{run := {bench, Words}}) -> "bin/beamway bench " ++ Words;
command(#{run := {make, Words}}) -> "make " ++ Words;
command(#{run := {sh, Command}}) -> Command.

%% Prints lines for scripts/bench: the results that were not measured on the current tree, in the order in which to measure them, with the minutes
%% that each is expected to take. The command of a result that needs root is empty unless this process runs as root.
plan(Words) ->
    {Repeats, Names} = case Words of ["--repeats", Count | Rest] -> {list_to_integer(Count), Rest}; _ -> {default, Words} end,
    case lists:usort(Names) -- [Name || {Name, _} <- results()] of
        [] -> planned(Repeats, Names);
        Unknown -> complain("bench/figures.config has no result ~ts", [lists:join(", ", Unknown)]), 2
    end.

planned(Repeats, Names) ->
    Root = os:cmd("id -u") =:= "0\n",
    Command = fun(Name, Result) -> case Root orelse maps:get(needs, Result, none) =/= root of true -> command(Name, Result, Repeats); false -> "" end end,
    _ = [io:format("~ts|~b|~ts~n", [Name, minutes(Name, Result, Repeats), Command(Name, Result)])
         || {Name, Result} <- results(), Names =:= [] orelse lists:member(Name, Names), not is_of_today(Name, Result)],
    0.

command(_, Result, default) -> command(Result);
command(Name, #{run := {bench, Words}}, Repeats) -> lists:concat(["bin/beamway bench ", Words, " --repeats ", Repeats, " --save bench/results/", Name, ".json"]);
command(_, Result, _) -> command(Result).

%% Only `bin/beamway bench' accepts --repeats, so for other programs the number of repeats is ignored.
minutes(Name, #{run := {Program, _}} = Result, Repeats) when Program =/= bench, Repeats =/= default -> minutes(Name, Result, default);
minutes(Name, #{minutes := Guess}, Repeats) ->
    {Minutes, Wanted, Took} =
        case read(Name) of
            {ok, #{<<"seconds">> := Seconds, <<"repeats">> := Before}} when Repeats =/= default, Before > 1 -> {Seconds / 60, Repeats, Before};
            %% The stored run may have had fewer repeats than are planned now, and some programs always make only one.
            {ok, #{<<"seconds">> := Seconds}} -> {max(Guess, Seconds / 60), 1, 1};
            _ when Repeats =:= default -> {Guess, 1, 1};
            _ -> {Guess, min(9, Repeats), 9}
        end,
    max(1, ceil(Minutes * Wanted / Took)).

is_of_today(Name, Result) ->
    case read(Name) of
        {ok, #{<<"commit">> := Commit} = Stored} ->
            not beamway_bench_store:changed_tree(Stored) andalso beamway_bench_history:known() =:= true andalso behind(Commit, Result) =:= 0;
        {error, _} -> false
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Fails if somebody edited a number on a page, or stored a result without running `make figures'.
the_pages_have_the_figures_of_the_results_test_() ->
    {timeout, 120, ?_assertEqual([], of_files())}.

so_many_verdicts_at_most_test() ->
    ?assert(length(verdicts()) =< 120).

%% Among a hundred results, one is expected to look significant by chance.
a_verdict_needs_significance_test_() ->
    Entry = #{<<"verdict">> => <<"wins">>, <<"p">> => 0.004},
    [?_assertEqual(<<"wins">>, judgement(Entry, 0.03)), ?_assertEqual(<<"even">>, judgement(Entry, 0.0)), ?_assertEqual(<<"even">>, judgement(maps:remove(<<"p">>, Entry), 0.03)),
     ?_assertEqual(<<"unknown">>, judgement(Entry#{<<"verdict">> := <<"unknown">>}, 0.0)),
     %% Nobody can measure version 0.2.0 again, so it gets no verdict.
     ?_assertEqual(null, judgement(Entry#{<<"contender">> => <<"lanes_tcp">>}, 0.03))].

noisy_test_() ->
    Load = fun(L) -> #{<<"machine">> => #{<<"load_average">> => L}} end,
    [?_assert(is_noisy(Load(1.5))), ?_assertNot(is_noisy(Load(0.2))), ?_assert(is_noisy((Load(0.2))#{<<"noisy">> => [<<"stolen">>]})),
     ?_assertNot(is_noisy((Load(0.4))#{<<"noisy">> => []}))].

a_picture_of_other_data_is_outdated_test_() ->
    [?_assertMatch([_], outdated([{"/nowhere/a.svg", "a 1\n", ""}])), ?_assertNot(is_drawn({ok, <<"<svg/>">>}, "a 1\n", {svg, "<svg/>"})),
     ?_assert(is_drawn({ok, <<"<svg/>", (embedded("a 1\n"))/binary>>}, "a 1\n", {svg, "<svg/>"})), ?_assertNot(is_drawn({ok, <<"<g/>", (embedded("a 1\n"))/binary>>}, "a 1\n", {svg, "<svg/>"})), ?_assert(holds({ok, <<"<svg/>", (embedded("a 1\n"))/binary>>}, "a 1\n")),
     ?_assertNot(holds({ok, <<"<svg/>", (embedded("a 1\n"))/binary>>}, "a 2\n")),
     %% Three blocks of five points.
     [?_assertEqual(3 * 7, length(string:lexemes(text(Data), "\n"))) || {_, Data, _} <- ants()]].

what_stands_twice_is_refused_test_() ->
    [?_assertEqual([], twice([{paths, #{}}, {result, "a", #{}}, {table, "a", []}, {result, "b", #{}}])),
     ?_assertEqual(["result \"a\"", "table \"b\""],
                   [text(One) || One <- twice([{result, "a", #{}}, {table, "b", []}, {result, "a", #{x => y}}, {table, "b", []}, {result, "c", #{}}])]),
     ?_assertEqual(["chart \"a\"", "paths"], [text(One) || One <- twice([{chart, "a", "", [], []}, {paths, #{}}, {chart, "a", "", [], []}, {paths, #{}}])]),
     ?_assertEqual([], twice(config()))].

%% Every file in bench/results must be in the plan. An entry that does not list what it measures would immediately count as outdated.
every_result_is_known_test() ->
    Files = [File || Pattern <- ["*.json", "soft-roce/*.json"], File <- filelib:wildcard(Pattern, path("bench/results"))],
    Known = [Name ++ ".json" || {Name, _} <- results()],
    ?assertEqual([], [File || File <- Files, not lists:member(File, Known), string:find(File, "-quick") =:= nomatch]).

a_result_that_nobody_knows_is_not_planned_test_() ->
    [?_assertEqual(2, plan(["--repeats", "1", "rpc", "no_result"])), ?_assertEqual(0, plan(["rpc", "rpc"]))].

%% Tests a benchmark that makes one repeat, and a benchmark whose stored run may have had fewer than the default nine repeats.
a_run_gets_no_less_time_than_the_guess_test_() ->
    [?_assertEqual(100000, minutes("http-2009", #{minutes => 100000}, 5)), ?_assertEqual(100000, minutes("hosts", #{minutes => 100000}, default))].

the_repeats_count_only_where_they_are_taken_test_() ->
    [?_assertEqual(Want, minutes("no_result", #{minutes => 36, run => {Program, "x"}}, 1)) || {Want, Program} <- [{4, bench}, {36, make}, {36, sh}]].

every_path_is_there_test() ->
    [Paths] = [Paths || {paths, Paths} <- config()],
    ?assertEqual([], [Path || Path <- lists:append(maps:values(Paths)), not filelib:is_file(path(Path))]),
    ?assertEqual([], [Measure || {_, #{measures := Measures}} <- results(), Measure <- Measures, not is_map_key(Measure, Paths)]).

every_table_is_of_known_results_test() ->
    Named = lists:append([case Table of
                              {metrics, _, Results} -> [Name || {Name, _} <- Results];
                              {brief, Rows} -> [Name || {Name, _, _} <- Rows];
                              {pairs, Rows} -> [Name || {Name, _, _, _} <- Rows];
                              {grid, _, Rows} -> [Name || Row <- Rows, {Name, _} <- Row];
                              {_, Name, _} -> [Name];
                              {_, Name, _, _} -> [Name]
                          end || {table, _, Table} <- config()]),
    ?assertEqual([], lists:usort(Named) -- [Name || {Name, _} <- results()]).

entry(Name, Baseline, Verdict) ->
    #{<<"name">> => Name, <<"key">> => <<"what">>, <<"contender">> => <<"beamway">>, <<"unit">> => <<"B/s">>, <<"beamway">> => 2.0e6, <<"baseline">> => 4.0e6, <<"baseline_name">> => Baseline,
      <<"ratio">> => 0.5, <<"interval">> => [0.4, 0.6], <<"verdict">> => Verdict, <<"p">> => 0.0}.

stored() ->
    #{<<"commit">> => <<"0123456789abcdef">>, <<"measured_at">> => 1795295805, <<"repeats">> => 9, <<"command">> => <<"x">>,
      <<"machine">> => #{<<"processor">> => <<"p">>, <<"processors">> => 2, <<"load_average">> => 0.5},
      <<"metrics">> => [entry(<<"a">>, <<"tcp">>, <<"loses">>), entry(<<"a">>, <<"socat">>, <<"even">>)]}.

text(Chars) -> unicode:characters_to_list(Chars).

how_it_is_measured_counts_test_() ->
    [?_assertEqual(Want, bench(#{run => Run}))
     || {Want, Run} <- [{["bench/distribution/beamway_bench_tune.erl"], {bench, "tune-tcp"}}, {["bench/placement/beamway_bench_placement.erl"], {bench, "placement --part herd"}},
                        {["bench/distribution/beamway_bench_rpc.erl"], {make, "bench-rdma N=rpc"}}, {["bench/pipe/beamway_bench_pipe.erl"], {sh, "x -- bin/beamway bench pipe --part y"}},
                        {[], {make, "soak MIN=22"}}]]
        ++ [?_assert(filelib:is_regular(path(File))) || {_, Result} <- results(), File <- bench(Result)].

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

what_nobody_can_repeat_is_not_shown_test_() ->
    [?_assertEqual([["q", ["`", "a", "`"], ?AGAIN, "", "", ""]], metric_rows({hidden, "why"}, [{"a", "q"}])),
     ?_assertEqual([["q", ["`", "gone", "`"], ?AGAIN, "", "", ""]], metric_rows({fresh, stored()}, [{"gone", "q"}])),
     ?_assertMatch({hidden, _}, judged(true, fresh, #{})), ?_assertMatch({hidden, _}, judged(false, not_here, #{})), ?_assertEqual({old, #{}}, judged(false, old, #{}))].

the_source_is_named_test_() ->
    [?_assertEqual("`n.json`: commit `0123456789ab`, 2026-11-21, p, 2 processors, load 0.5 before, 9 repeats; `x`.", text(source("n", {fresh, stored()}))),
     ?_assertEqual({"x --repeats 9 y", "x y"}, {text(effective(<<"x --repeats 9 y">>, 9)), text(effective(<<"x --repeats 5 y">>, 1))}),
     ?_assertNotEqual(nomatch, string:find(text(source("n", {old, stored()})), "**Old**")),
     ?_assertNotEqual(nomatch, string:find(text(source("n", {fresh, (stored())#{<<"left_out">> => [<<"ktls: why">>, <<"unix: no">>]}})), " Left out: ktls: why; unix: no.")),
     ?_assertEqual("`n.json`: why; to be measured again.", text(source("n", {hidden, "why"})))].

a_chart_has_the_ratios_of_the_tables_test() ->
    Entry = #{<<"name">> => <<"m">>, <<"baseline_name">> => <<"tcp">>, <<"better">> => <<"lower">>, <<"ratio">> => 0.5, <<"interval">> => [0.25, 1.0]},
    Stored = #{<<"metrics">> => [Entry, Entry#{<<"baseline_name">> := <<"unix">>, <<"better">> := <<"higher">>, <<"interval">> := null, <<"range">> => [0.25, 1.0]}, Entry#{<<"name">> := <<"n">>}]},
    Series = [{"unix", "a socket"}, {"tcp", "stock"}],
    ?assertEqual([{"unix", 0.5, 0.25, 1.0}, {"tcp", 2.0, 1.0, 4.0}], points({fresh, Stored}, ["m"], Series)),
    ?assertEqual([], points({hidden, "why"}, ["m"], Series)),
    ?assertEqual([2, 1], [place(Rival, Series) || Rival <- ["tcp", "unix"]]),
    ?assertEqual(["l", "l (old)", "l: " ++ ?AGAIN], [labelled("l", Shown) || Shown <- [{fresh, Stored}, {old, Stored}, {hidden, "why"}]]),
    ?assertEqual("l 1 2.000 1.000 4.000\n", text(line({"l", [{1, 2.0, 1.0, 4.0}]}))).

every_chart_is_of_known_results_test() ->
    Named = [{Name, Metric} || {chart, _, _, _, Rows} <- config(), {Name, Metrics, _} <- Rows, Metric <- Metrics],
    ?assertEqual([], lists:usort([Name || {Name, _} <- Named]) -- [Name || {Name, _} <- results()]),
    ?assertEqual([], [{Name, Metric} || {Name, Metric} <- Named, {_, #{<<"metrics">> := Entries}} <- [shown(Name)],
                                        not lists:any(fun(#{<<"name">> := N}) -> N =:= list_to_binary(Metric) end, Entries)]).

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

the_best_rival_depends_on_what_is_better_test() ->
    Entries = [(entry(<<"a">>, Name, <<"even">>))#{<<"baseline">> := Value} || {Name, Value} <- [{<<"x">>, 4}, {<<"y">>, 2}, {<<"z">>, 3}]],
    Best = fun(Better) -> [Name || #{<<"baseline_name">> := Name} <- against("best", [Entry#{<<"better">> => Better} || Entry <- Entries])] end,
    ?assertEqual({[<<"y">>], [<<"x">>]}, {Best(<<"lower">>), Best(<<"higher">>)}),
    ?assertEqual([], against("best", [(entry(<<"a">>, null, null))#{<<"baseline">> := null}])).

filled_test() ->
    Text = <<"a\n<!-- figures: t -->\nold\n<!-- end -->\nb\n<!-- figures: t -->\n<!-- end -->\n">>,
    Tables = #{"t" => {grid, ["h"], [["c"]]}},
    Once = iolist_to_binary(filled(Text, Tables)),
    ?assertEqual(<<"a\n<!-- figures: t -->\n\n| h |\n| --- |\n| c |\n\n\n<!-- end -->\nb\n<!-- figures: t -->\n\n| h |\n| --- |\n| c |\n\n\n<!-- end -->\n">>, Once),
    ?assertEqual(Once, iolist_to_binary(filled(Once, Tables))),
    ?assertError(_, filled(<<"<!-- figures: nothing -->\n<!-- end -->\n">>, Tables)).
-endif.
