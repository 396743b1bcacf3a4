%% SPDX-License-Identifier: Apache-2.0
%% @doc Determines how old the results are, and which of them to measure again. A result's age is
%% the number of later commits that have changed what it measures, or how it is measured; {@link
%% beamway_bench_history} counts them.
-module(beamway_bench_ages).

-export([unknown_commits/0, too_old/0, marks/0, plan/1]).

-define(MOST_COMMITS, 40).

%% @doc Returns the results that were measured at commits that this branch does not have.
-spec unknown_commits() -> [unicode:chardata()].
unknown_commits() ->
    case beamway_bench_history:known() of
        {false, Why} -> io:format("skipped: whether the results' commits are here; ~ts~n", [Why]), [];
        true ->
            [["bench/results/", Name, ".json is of commit ", Commit, ", which this branch does not have. Measure it again, or run: make figures MARK=1"]
             || {Name, _} <- beamway_bench_published:results(), {Age, #{<<"commit">> := Commit}} <- [beamway_bench_published:shown(Name)], Age =/= hidden, not beamway_bench_history:has(Commit)]
    end.

%% @doc Returns the results that are so old that they block a release.
-spec too_old() -> [unicode:chardata()].
too_old() ->
    case beamway_bench_history:known() of
        {false, Why} -> io:format("skipped: how old the results are; ~ts~n", [Why]), [];
        true -> [["bench/results/", Name, ".json: ", Why, ". Measure it again: ", command(Result)] || {Name, Result} <- beamway_bench_published:results(), Why <- age(Name, Result)]
    end.

age(Name, Result) ->
    case beamway_bench_published:shown(Name) of
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
            [Known] = [Paths || {paths, Paths} <- beamway_bench_published:config()],
            beamway_bench_history:touching(Commit, bench(Result) ++ lists:append([maps:get(Measure, Known) || Measure <- Measures]));
        false -> not_here
    end.

%% Returns the source file of the benchmark module that measures this result, if there is one.
bench(Result) ->
    case re:run(command(Result), "(?:beamway bench |bench-(?:rdma|otp) N=)([a-z0-9-]+)", [{capture, all_but_first, list}]) of
        {match, [Name]} -> [beamway_bench_checkout:source(atom_to_list(beamway_bench:module(Name)) ++ ".erl")];
        nomatch -> []
    end.

%% @doc Returns the entries that `bench/stale' should have today, for the results that the pages
%% must mark as old or must not show.
-spec marks() -> [beamway_bench_gate:mark()].
marks() ->
    [{Name, binary_to_list(Commit), Why}
     || {Name, Result} <- beamway_bench_published:results(), {ok, #{<<"commit">> := Commit} = Stored} <- [beamway_bench_published:read(Name)],
        not beamway_bench_store:changed_tree(Stored), Why <- mark(Commit, Result)].

mark(Commit, Result) ->
    case behind(Commit, Result) of
        not_here -> [not_here];
        Count -> [old || Count > ?MOST_COMMITS]
    end.

%% ---- measuring again

command(#{run := {bench, Words}}) -> "bin/beamway bench " ++ Words;
command(#{run := {make, Words}}) -> "make " ++ Words;
command(#{run := {sh, Command}}) -> Command.

%% @doc Prints lines for scripts/bench: the results that were not measured on the current tree, in the order in which to measure them, with the minutes
%% that each is expected to take. The command of a result that needs root is empty unless this process runs as root.
-spec plan(Words :: [string()]) -> ok | {error, unicode:chardata()}.
plan(Words) ->
    {Repeats, Names} = case Words of ["--repeats", Count | Rest] -> {list_to_integer(Count), Rest}; _ -> {default, Words} end,
    case lists:usort(Names) -- [Name || {Name, _} <- beamway_bench_published:results()] of
        [] -> planned(Repeats, Names);
        Unknown -> {error, ["bench/figures.config has no result ", lists:join(", ", Unknown)]}
    end.

planned(Repeats, Names) ->
    Root = os:cmd("id -u") =:= "0\n",
    Command = fun(Name, Result) -> case Root orelse maps:get(needs, Result, none) =/= root of true -> command(Name, Result, Repeats); false -> "" end end,
    lists:foreach(fun({Name, Result}) -> io:format("~ts|~b|~ts~n", [Name, minutes(Name, Result, Repeats), Command(Name, Result)]) end,
                  [Planned || {Name, Result} = Planned <- beamway_bench_published:results(), Names =:= [] orelse lists:member(Name, Names), not is_of_today(Name, Result)]).

command(_, Result, default) -> command(Result);
command(Name, #{run := {bench, Words}}, Repeats) -> lists:concat(["bin/beamway bench ", Words, " --repeats ", Repeats, " --save bench/results/", Name, ".json"]);
command(_, Result, _) -> command(Result).

%% Only `bin/beamway bench' accepts --repeats, so for other programs the number of repeats is ignored.
minutes(Name, #{run := {Program, _}} = Result, Repeats) when Program =/= bench, Repeats =/= default -> minutes(Name, Result, default);
minutes(Name, #{minutes := Guess}, Repeats) ->
    {Minutes, Wanted, Took} =
        case beamway_bench_published:read(Name) of
            {ok, #{<<"seconds">> := Seconds, <<"repeats">> := Before}} when Repeats =/= default, Before > 1 -> {Seconds / 60, Repeats, Before};
            %% The stored run may have had fewer repeats than are planned now, and some programs always make only one repeat.
            {ok, #{<<"seconds">> := Seconds}} -> {max(Guess, Seconds / 60), 1, 1};
            _ when Repeats =:= default -> {Guess, 1, 1};
            _ -> {Guess, min(9, Repeats), 9}
        end,
    max(1, ceil(Minutes * Wanted / Took)).

is_of_today(Name, Result) ->
    case beamway_bench_published:read(Name) of
        {ok, #{<<"commit">> := Commit} = Stored} ->
            not beamway_bench_store:changed_tree(Stored) andalso beamway_bench_history:known() =:= true andalso behind(Commit, Result) =:= 0;
        {error, _} -> false
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

a_result_that_nobody_knows_is_not_planned_test_() ->
    [?_assertMatch({error, _}, plan(["--repeats", "1", "rpc", "no_result"])), ?_assertEqual(ok, plan(["rpc", "rpc"]))].

%% Tests a benchmark that makes one repeat, and a benchmark whose stored run may have had fewer than the default nine repeats.
a_run_gets_no_less_time_than_the_guess_test_() ->
    [?_assertEqual(100000, minutes("http-2009", #{minutes => 100000}, 5)), ?_assertEqual(100000, minutes("hosts", #{minutes => 100000}, default))].

the_repeats_count_only_where_they_are_taken_test_() ->
    [?_assertEqual(Want, minutes("no_result", #{minutes => 36, run => {Program, "x"}}, 1)) || {Want, Program} <- [{4, bench}, {36, make}, {36, sh}]].

how_it_is_measured_counts_test_() ->
    [?_assertEqual(Want, bench(#{run => Run}))
     || {Want, Run} <- [{["bench/distribution/beamway_bench_tune.erl"], {bench, "tune-tcp"}}, {["bench/placement/beamway_bench_placement.erl"], {bench, "placement --part herd"}},
                        {["bench/distribution/beamway_bench_rpc.erl"], {make, "bench-rdma N=rpc"}},
                        {["bench/distribution/beamway_bench_stream.erl"], {make, "bench-otp N=stream DEBIAN=sid"}}, {["bench/pipe/beamway_bench_pipe.erl"], {sh, "x -- bin/beamway bench pipe --part y"}},
                        {[], {make, "soak MIN=22"}}]]
        ++ [?_assert(filelib:is_regular(beamway_bench_checkout:path(File))) || {_, Result} <- beamway_bench_published:results(), File <- bench(Result)].
-endif.
