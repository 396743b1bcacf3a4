%% SPDX-License-Identifier: Apache-2.0
%% @doc `bench report': answers ten questions about this machine in a quarter of an hour, on one page that users can compare with ours or send to us.
%%
%% Each question is answered by a quick run of a benchmark, with seven interleaved repeats if there is enough time for them. A row compares Beamway
%% with the rival that performs best on this machine, and shows the published ratio to the same rival. The page lists what could not be measured, with
%% the reason. It is printed on standard output, as Markdown or JSON, and both forms are stored.
-module(beamway_bench_page).

-export([main/1]).

-define(REPEATS, 7).
-define(BUDGET_MS, 95000).

-type question() :: {Text :: string(), {Bench :: string(), Words :: [string()]}, Metric :: binary()}.
-type row() :: #{question := binary(), metric := binary(), unit := binary(), beamway := number(), rival := binary(), rival_value := number(), ratio := number(),
                 better := higher | lower, interval := [number()] | null, range := [number()] | null, verdict := atom(), repeats := pos_integer(), published := number() | null}.

%% Questions that share a measurement are adjacent.
-spec questions() -> [question()].
questions() ->
    Calls = {"rpc", ["--nodes", "2", "--only", "tcp,tcp_tuned,unix,tls,beamway,beamway_tcp,beamway_tls"]},
    Stream = {"stream", ["--only", "tcp,tcp_tuned,unix,beamway"]},
    [{"remote calls between two nodes of one host, 100 callers on each", Calls, <<"rpc_n2">>},
     {"the same calls over the TCP link", Calls, <<"tcp_link_rpc">>},
     {"the same calls over TLS", Calls, <<"tls_rpc">>},
     {"a round trip of 64 bytes, one caller", {"pingpong", ["--no-mpi", "--only", "tcp,tcp_tuned,unix,beamway"]}, <<"rtt_64">>},
     {"messages of 64 bytes, one sender", Stream, <<"rate_64">>},
     {"messages of 1 MB, one sender", Stream, <<"bytes_1m">>},
     {"a call while messages of 10 MB pass it, 99th percentile", {"heartbeat", ["--only", "tcp,beamway"]}, <<"heartbeat_p99">>},
     {"binaries of 10 MB round a ring of six nodes", {"ring", ["--only", "tcp,unix,beamway"]}, <<"ring_w6">>},
     {"processor time of a call, at 100 calls a second", {"paced", ["--only", "tcp,tcp_tuned,beamway"]}, <<"paced_cpu_100">>},
     {"a UNIX pipe over TCP", {"pipe", []}, <<"pipe_tcp_iperf3">>}].

options() ->
    [{json, undefined, "json", undefined, "print the JSON object instead of the page"},
     {out, undefined, "out", {string, "build"}, "the folder for bench-report.md and bench-report.json"},
     {help, $h, "help", undefined, "this help"}].

%% @doc Returns the exit status: 0 if the page was written, 1 if nothing could be measured or written, 2 for a usage error.
-spec main(Words :: [string()]) -> 0..2.
main(Words) ->
    case beamway_cli_help:parse(options(), Words) of
        {ok, #{help := true}, []} -> help(), 0;
        {ok, Given, []} -> report(Given);
        {ok, _, [Extra | _]} -> usage(io_lib:format("unexpected word '~ts'", [Extra]));
        {error, Why} -> usage(Why)
    end.

help() ->
    io:format("~ts~nAnswers ten questions about this machine in about a quarter of an hour and writes one page.~n~ts~nexit status: 0 written, 1 nothing was measured, 2 usage error~n",
              [getopt:usage_cmd_line("beamway bench report", options()), getopt:usage_options(options())]).

usage(Why) ->
    beamway_bench_text:note("bench report: ~ts; see: beamway bench report --help", [Why]),
    2.

report(#{out := Out} = Given) ->
    Context = beamway_bench_store:context("report", "bin/beamway bench report"),
    {Rows, Left} = lists:unzip([answered(Run) || Run <- runs(questions())]),
    Report = (beamway_bench_store:ended(Context))#{rows => lists:append(Rows), left_out => lists:append(Left)},
    written(Report, Out, is_map_key(json, Given)).

%% Lists each measurement once, with all the questions that it answers.
runs(Questions) ->
    [{Run, [{Text, Metric} || {Text, Of, Metric} <- Questions, Of =:= Run]} || Run <- lists:uniq([Run || {_, Run, _} <- Questions])].

answered({{Bench, Words}, Questions}) ->
    [beamway_bench_text:note("bench report: ~ts", [Text]) || {Text, _} <- Questions],
    Progress = fun(Format, Args) -> beamway_bench_text:note("bench ~ts: " ++ Format, [Bench | Args]) end,
    case beamway_bench:measure(Bench, Words, #{repeats => ?REPEATS, budget_ms => ?BUDGET_MS, progress => Progress}) of
        {ok, Result} ->
            #{metrics := Entries} = beamway_bench_report:to_json(Result),
            Published = published(Bench),
            Found = [{Text, Metric, row(Text, Metric, Entries, Published)} || {Text, Metric} <- Questions],
            {[Row || {_, _, #{} = Row} <- Found], [left(Text, "the measurement has no figure for it here") || {Text, _, none} <- Found]};
        {error, Why} ->
            beamway_bench_text:note("bench ~ts: ~ts", [Bench, Why]),
            {[], [left(Text, Why) || {Text, _} <- Questions]}
    end.

left(Text, Why) -> #{question => unicode:characters_to_binary(Text), why => unicode:characters_to_binary(Why)}.

published(Bench) ->
    case beamway_bench_store:read(beamway_bench_store:file(Bench)) of
        {ok, #{<<"metrics">> := Entries}} ->
            maps:from_list([{{Name, Rival}, Ratio} || #{<<"name">> := Name, <<"baseline_name">> := Rival, <<"ratio">> := Ratio} <- Entries, is_number(Ratio)]);
        _ -> #{}
    end.

%% Compares Beamway with its best rival. Beamway's own links are not rivals of each other.
-spec row(string(), binary(), [map()], #{{binary(), binary()} => number()}) -> row() | none.
row(Text, Metric, Entries, Published) ->
    Compared = [Entry || #{name := Name, baseline_name := Rival, ratio := Ratio} = Entry <- Entries, Name =:= Metric, is_number(Ratio), not is_ours(Rival)],
    case lists:sort(fun(#{ratio := A, better := Better}, #{ratio := B}) -> case Better of higher -> A =< B; lower -> A >= B end end, Compared) of
        [] -> none;
        [#{baseline_name := Rival, baseline := Value, samples := Repeats} = Hardest | _] ->
            RivalName = atom_to_binary(Rival),
            (maps:with([unit, beamway, ratio, better, interval, range, verdict], Hardest))
                #{question => unicode:characters_to_binary(Text), metric => Metric, rival => RivalName, rival_value => Value, repeats => Repeats,
                  published => maps:get({Metric, RivalName}, Published, null)}
    end.

is_ours(Name) -> lists:prefix("beamway", atom_to_list(Name)) orelse lists:prefix("rdpipe", atom_to_list(Name)).

written(#{rows := []}, _, _) ->
    beamway_bench_text:note("bench report: nothing could be measured; the reasons stand above", []),
    1;
written(Report, Folder, IsJson) ->
    Page = page(Report),
    Json = [jiffy:encode(Report, [pretty, force_utf8]), $\n],
    Files = [{filename:join(Folder, "bench-report.md"), Page}, {filename:join(Folder, "bench-report.json"), Json}],
    io:format("~ts", [case IsJson of true -> Json; false -> Page end]),
    case [Why || {File, Text} <- Files, {error, Why} <- [beamway_bench_store:write_text(File, Text)]] of
        [] -> beamway_bench_text:note("wrote ~ts", [lists:join(" and ", [File || {File, _} <- Files])]), 0;
        [Why | _] -> beamway_bench_text:note("bench report: ~ts", [Why]), 1
    end.

%% @doc Returns the page in Markdown. The ratio is Beamway's value divided by the rival's.
page(#{rows := Rows, left_out := Left, machine := Machine, versions := Versions, commit := Commit, measured_at := At, noisy := Noisy}) ->
    #{processor := Processor, processors := Count, memory_mb := Mb, kernel := Kernel, system := System} = Machine,
    #{beamway := Version, otp := Otp} = Versions,
    ["# Beamway on this machine\n\n",
     io_lib:format("Beamway ~ts (commit ~ts) on OTP ~ts; ~b x ~ts, ~b MB of memory, ~ts, Linux ~ts; ~ts.\n\n",
                   [Version, Commit, Otp, Count, Processor, Mb, System, Kernel, calendar:system_time_to_rfc3339(At, [{offset, "Z"}])]),
     [["**Noisy:** ", Why, ".\n\n"] || Why <- Noisy],
     "Each row compares Beamway with the rival that does best here. A ratio is Beamway's figure divided by the rival's, with its 95 % interval, or with the range "
     "where there were fewer than seven repeats; \"published\" is the same ratio in Beamway's documents.\n\n",
     "| question | Beamway | the best rival | ratio | verdict | published |\n| --- | --- | --- | --- | --- | --- |\n",
     [line(Row) || Row <- Rows],
     case Left of
         [] -> "";
         _ -> ["\nNot measured:\n\n", [["- ", Text, ": ", Why, "\n"] || #{question := Text, why := Why} <- Left]]
     end].

line(#{question := Text, unit := Unit, beamway := Value, rival := Rival, rival_value := Other, ratio := Ratio, interval := Interval, range := Range,
       verdict := Verdict, better := Better, repeats := Repeats, published := Published}) ->
    Good = case Better of higher -> "more is better"; lower -> "less is better" end,
    ["| ", Text, " (", Good, ", ", integer_to_list(Repeats), " repeats) | ", beamway_bench_text:number(Value), " ", Unit, " | ", Rival, ": ", beamway_bench_text:number(Other),
     " | ", beamway_bench_text:ratio(Ratio, Interval, Range), " | ", beamway_bench_text:verdict(Verdict), " | ",
     case Published of null -> "none"; _ -> beamway_bench_text:number(Published) end, " |\n"].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% The benchmarks accept these arguments and have these metrics. The pipe is only measured if its rivals are installed.
questions_can_be_answered_test_() ->
    [{Text, fun() ->
                    Module = beamway_bench:module(Bench),
                    case beamway_bench:quick_settings(Module, Words) of
                        {ok, Settings} -> ?assert(lists:member(Metric, [Name || #{name := Name} <- Module:metrics(Settings)]));
                        {error, _} -> ?assertEqual("pipe", Bench)
                    end
            end} || {Text, {Bench, Words}, Metric} <- questions()].

ten_test() -> ?assertEqual({10, 7}, {length(questions()), length(runs(questions()))}).

entry(Rival, Ratio, Better) ->
    #{name => <<"m">>, baseline_name => Rival, ratio => Ratio, better => Better, unit => <<"us">>, beamway => 10.0, baseline => 20.0, samples => 7,
      interval => [Ratio - 0.1, Ratio + 0.1], range => null, verdict => wins}.

hardest_rival_test_() ->
    Row = fun(Entries) -> row("q", <<"m">>, Entries, #{{<<"m">>, <<"unix">>} => 1.2}) end,
    [?_assertMatch(#{rival := <<"unix">>, published := 1.2}, Row([entry(tcp, 2.0, higher), entry(unix, 1.1, higher), entry(beamway_tcp, 0.9, higher)])),
     ?_assertMatch(#{rival := <<"tcp">>, published := null}, Row([entry(tcp, 0.9, lower), entry(unix, 0.5, lower)])),
     ?_assertEqual(none, Row([entry(beamway, 0.9, lower)])),
     ?_assertEqual(none, row("q", <<"other">>, [entry(tcp, 0.9, lower)], #{}))].

page_test() ->
    Report = #{rows => [row("a question", <<"m">>, [entry(tcp, 0.5, lower)], #{})], left_out => [left("a pipe", "no root")], commit => <<"abc1234">>, measured_at => 1, noisy => [],
               machine => #{processor => <<"x">>, processors => 2, memory_mb => 3, kernel => <<"6">>, system => <<"Debian">>}, versions => #{beamway => <<"0">>, otp => <<"25">>}},
    Page = unicode:characters_to_list(page(Report)),
    [?assertNotEqual(nomatch, string:find(Page, Text))
     || Text <- ["| a question (less is better, 7 repeats) | 10.0 us | tcp: 20.0 | 0.50 [0.40, 0.60] | wins | none |", "- a pipe: no root"]].

usage_test_() ->
    [?_assertEqual(2, main(["--what"])), ?_assertEqual(2, main(["what"]))].
-endif.
