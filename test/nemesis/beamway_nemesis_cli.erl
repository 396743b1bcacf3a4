%% SPDX-License-Identifier: Apache-2.0
%% @doc `scripts/nemesis' runs one schedule after another until its time is up, each generated from a seed that it prints. If a schedule fails,
%% it is run again, run over stock distribution, shrunk, and printed as a term.
%%
%% `main/1' returns the exit status: 0 without findings, 1 with findings, 2 for a usage error. The last line is `N passed, N failed, N skipped',
%% counted in schedules.
-module(beamway_nemesis_cli).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-export([start/0, main/1]).

-define(RESULTS, "bench/results/").
%% The carriers whose results bench/figures.config lists.
-define(KEPT, ["shm", "encrypted"]).
%% How many smaller schedules to try after a failure.
-define(TRIALS, 12).

%% @doc For `erl -s', with the arguments after `-extra'.
-spec start() -> no_return().
start() ->
    halt(main(init:get_plain_arguments())).

options() ->
    [{minutes, undefined, "minutes", {integer, 1}, "begin no more schedules after this time"},
     {seed, undefined, "seed", integer, "of the first schedule; the next ones count on (random)"},
     {carrier, undefined, "carrier", {string, "shm"}, "shm, tcp, stock, encrypted, tls_shm, tls or stock_tls"},
     {nodes, undefined, "nodes", {integer, 6}, "at most so many nodes, 2 to 6"},
     {schedule, undefined, "schedule", string, "carry out the schedule in this file, once"},
     {store, undefined, "store", undefined, "keep the result of shm in " ?RESULTS "nemesis.json, or of encrypted in nemesis-encrypted.json, unless other work runs on the machine"},
     {force, undefined, "force", undefined, "keep it even then, and mark it as noisy"},
     {help, $h, "help", undefined, "this help"}].

%% @doc Runs with these command line arguments.
-spec main([string()]) -> 0..2.
main(Words) ->
    case getopt:parse(options(), Words) of
        {ok, {Given, []}} -> checked(Given, maps:from_list([G || {_, _} = G <- Given]), Words);
        {ok, {_, [Extra | _]}} -> usage("unexpected word '~ts'", [Extra]);
        {error, Error} -> usage("~ts", [getopt:format_error(options(), {error, Error})])
    end.

checked(Given, #{carrier := Carrier} = Options, Words) ->
    case {lists:member(help, Given), lists:member(Carrier, ["shm", "tcp", "stock", "encrypted", "tls_shm", "tls", "stock_tls"])} of
        {true, _} -> help(), 0;
        {_, false} -> usage("--carrier ~ts: no such carrier", [Carrier]);
        _ -> with_certificates(Carrier, fun() -> checked_more(Given, Options, Words) end)
    end.

with_certificates(Carrier, Do) ->
    case lists:member(Carrier, ["shm", "tcp", "stock"]) of
        true -> Do();
        false ->
            Dir = beamway_peer:new_folder("nemesis-certificates"),
            try
                ok = beamway_certificates:prepare(Dir),
                Do()
            after
                ok = file:del_dir_r(Dir)
            end
    end.

checked_more(Given, Options, Words) ->
    case Options of
        #{nodes := Nodes} when Nodes < 2; Nodes > 6 -> usage("--nodes ~b: expected 2 to 6", [Nodes]);
        #{minutes := Minutes} when Minutes =< 0 -> usage("--minutes ~w: expected more than 0", [Minutes]);
        #{schedule := File, carrier := Carrier} -> from_file(File, list_to_atom(Carrier));
        #{carrier := Carrier} ->
            case {lists:member(store, Given), lists:member(Carrier, ?KEPT)} of
                {true, false} -> usage("--carrier ~ts: --store keeps only results of ~ts", [Carrier, lists:join(" and ", ?KEPT)]);
                {Store, _} -> run(result_name(Carrier), Store, lists:member(force, Given), Options, Words)
            end
    end.

result_name("shm") -> "nemesis";
result_name(Carrier) -> "nemesis-" ++ Carrier.

run(Name, Store, Force, Options, Words) ->
    case beamway_bench_store:begun("nemesis", lists:join(" ", ["scripts/nemesis" | Words]), Force orelse not Store) of
        {ok, Context} -> from_seeds(Options, fun(Object) -> not Store orelse store(Name, maps:merge(Context, Object), Force) end);
        {error, Why} -> io:format(standard_error, "nemesis: ~ts~n", [Why]), 1
    end.

help() ->
    io:format("~ts~nFaults befall real nodes that talk to each other; an oracle counts their messages.~n~ts~n"
              "exit codes: 0 nothing found, 1 findings, 2 usage error~n",
              [getopt:usage_cmd_line("scripts/nemesis", options()), getopt:usage_options(options())]).

usage(Format, Arguments) ->
    io:format(standard_error, "nemesis: " ++ Format ++ "; see scripts/nemesis --help~n", Arguments),
    2.

%% ---- one schedule ----

from_file(File, Carrier) ->
    case beamway_nemesis_schedule:read(File) of
        {ok, Schedule} ->
            #{findings := Findings} = Result = beamway_nemesis:run(Schedule, Carrier),
            io:format("~ts: ~ts~n", [File, summary(Result)]),
            print_findings(Findings),
            ended([Result]);
        {error, Reason} ->
            usage("~ts: ~0tp", [File, Reason])
    end.

ended(Results) ->
    Failed = length([failed || #{findings := [_ | _]} <- Results]),
    io:format("~b passed, ~b failed, 0 skipped~n", [length(Results) - Failed, Failed]),
    min(1, Failed).

summary(#{findings := Findings, messages := Messages, calls := #{answered := Calls}, spoken := Spoken,
          paused := Paused, nodedowns := Downs, links := Links, seconds := Seconds}) ->
    io_lib:format("~b messages, ~b calls, ~b last words, ~b cuts outlived, ~b nodedowns, links in the end ~ts, ~.1f s: ~ts",
                  [lists:sum(maps:values(Messages)), Calls, Spoken, Paused, Downs,
                   lists:join(" ", [io_lib:format("~b ~ts", [Count, Kind]) || {Kind, Count} <- maps:to_list(Links)]), Seconds,
                   case Findings of [] -> "ok"; _ -> io_lib:format("FAILED, ~b findings", [length(Findings)]) end]).

print_findings(Findings) ->
    {Shown, More} = lists:split(min(12, length(Findings)), Findings),
    _ = [io:format("    ~0tP~n", [Finding, 60]) || Finding <- Shown],
    _ = [io:format("    and ~b more~n", [length(More)]) || More =/= []],
    ok.

%% ---- many ----

from_seeds(#{minutes := Minutes, carrier := Carrier, nodes := Nodes} = Options, Store) ->
    Seed = maps:get(seed, Options, erlang:system_time(second) rem 1000000 * 1000),
    Began = erlang:monotonic_time(millisecond),
    io:format("nemesis: ~ts, first seed ~b~n", [Carrier, Seed]),
    Until = Began + round(Minutes * 60000),
    Results = run_until(Until, Seed, list_to_atom(Carrier), Nodes),
    Took = (erlang:monotonic_time(millisecond) - Began) / 60000,
    Stored = Store(object(Results, #{seed => Seed, carrier => list_to_binary(Carrier), minutes => Took})),
    max(ended([Result || {_, _, Result} <- Results]), case Stored of true -> 0; false -> 1 end).

run_until(Until, Seed, Carrier, Nodes) ->
    #{nodes := Some, faults := Faults} = Schedule = beamway_nemesis_schedule:generate(Seed, #{max_nodes => Nodes}),
    #{findings := Findings} = Result = beamway_nemesis:run(Schedule, Carrier),
    io:format("seed ~b (~b nodes, ~b faults): ~ts~n", [Seed, length(Some), length([F || F <- Faults, element(1, F) =/= wait]), summary(Result)]),
    Findings =/= [] andalso explain(Schedule, Carrier, Findings),
    case erlang:monotonic_time(millisecond) < Until of
        true -> [{Seed, Schedule, Result} | run_until(Until, Seed + 1, Carrier, Nodes)];
        false -> [{Seed, Schedule, Result}]
    end.

%% Runs the schedule again, and then over stock distribution. Findings that also occur there are not the carrier's fault.
explain(Schedule, Carrier, Findings) ->
    print_findings(Findings),
    Wanted = kinds(Findings),
    Again = fails(Schedule, Carrier, Wanted),
    io:format("    again: ~ts; over stock: ~ts~n", [word(Again), word(fails(Schedule, control(Carrier), Wanted))]),
    Smallest = case Again of
                   true -> smallest(Schedule, Carrier, Wanted, ?TRIALS);
                   false -> Schedule
               end,
    io:format("~ts", [beamway_nemesis_schedule:print(Smallest)]).

control(Carrier) when Carrier =:= shm; Carrier =:= tcp; Carrier =:= encrypted; Carrier =:= stock -> stock;
control(_) -> stock_tls.

word(true) -> "found too";
word(false) -> "not found".

kinds(Findings) -> lists:usort([Kind || {Kind, _} <- Findings]).

fails(Schedule, Carrier, Wanted) ->
    #{findings := Findings} = beamway_nemesis:run(Schedule, Carrier),
    kinds(Findings) -- Wanted =/= kinds(Findings).

smallest(Schedule, Carrier, Wanted, Trials) ->
    smallest(beamway_nemesis_schedule:smaller(Schedule), Schedule, Carrier, Wanted, Trials).

smallest([Candidate | Rest], Best, Carrier, Wanted, Trials) when Trials > 0 ->
    case fails(Candidate, Carrier, Wanted) of
        true -> smallest(beamway_nemesis_schedule:smaller(Candidate), Candidate, Carrier, Wanted, Trials - 1);
        false -> smallest(Rest, Best, Carrier, Wanted, Trials - 1)
    end;
smallest(_, Best, _, _, _) ->
    Best.

%% ---- the result ----

object(Results, #{seed := Seed, carrier := Carrier, minutes := Minutes}) ->
    All = [Result || {_, _, Result} <- Results],
    #{repeats => 1, seed => Seed, carrier => Carrier, minutes => round(Minutes * 10) / 10,
      schedules => length(Results),
      passed => length([ok || #{findings := []} <- All]),
      failed => [#{seed => Failed, kinds => kinds(Findings)} || {Failed, _, #{findings := [_ | _] = Findings}} <- Results],
      nodes => counts([integer_to_binary(length(Nodes)) || {_, #{nodes := Nodes}, _} <- Results]),
      faults => counts([element(1, Fault) || #{faults := Faults} <- All, #{fault := Fault, effect := Effect} <- Faults, Effect =/= false]),
      faults_without_effect => counts([element(1, Fault) || #{faults := Faults} <- All, #{fault := Fault, effect := false} <- Faults]),
      messages => maps:fold(fun(Class, Count, Acc) -> Acc#{class(Class) => Count} end, #{}, sum([M || #{messages := M} <- All])),
      calls => sum([C || #{calls := C} <- All]),
      links_in_the_end => sum([L || #{links := L} <- All]),
      last_words => lists:sum([S || #{spoken := S} <- All]),
      cuts_outlived => lists:sum([P || #{paused := P} <- All]),
      nodedowns => lists:sum([D || #{nodedowns := D} <- All])}.

store(Name, Object, Force) ->
    File = ?RESULTS ++ Name ++ ".json",
    case beamway_bench_store:publish(File, Object, Force) of
        ok -> io:format("nemesis: kept in ~ts~n", [File]), true;
        {error, Why} -> io:format(standard_error, "nemesis: ~ts~n", [Why]), false
    end.

class(infinity) -> <<"over_1000000_bytes">>;
class(Limit) -> iolist_to_binary(["up_to_", integer_to_list(Limit), "_bytes"]).

counts(Items) ->
    sum([#{Item => 1} || Item <- Items]).

sum(Maps) ->
    lists:foldl(fun(Map, Sum) ->
                        maps:fold(fun(Key, N, Acc) -> maps:update_with(Key, fun(M) -> M + N end, N, Acc) end, Sum, Map)
                end, #{}, Maps).

-ifdef(TEST).
%% A result does not replace that of another carrier, and is not stored under a name that no page shows.
each_carrier_has_its_own_result_test_() ->
    Names = [result_name(Carrier) || Carrier <- ?KEPT],
    [?_assertEqual(["nemesis", "nemesis-encrypted"], Names), ?_assertEqual(2, main(["--carrier", "tcp", "--store"])), ?_assertEqual(2, main(["--store", "extra"]))].
-endif.
