%% SPDX-License-Identifier: Apache-2.0
%% @doc What `make check' and `make release-check' require of the stored results as a whole. The functions return the problems as text, and except for
%% files/2 they are pure.
-module(beamway_bench_gate).

-export([files/2, weak/2, dead/2, dead_text/1]).

-export_type([mark/0]).

-type mark() :: {Result :: string(), Commit :: string(), old | not_here}.
%% An entry of `bench/stale'.

%% All results together; every clone downloads them.
-define(MOST_BYTES, 700000).

%% @doc Checks the size of all results together, and that one of the pages shows each picture. Files of quick runs are only for the user.
-spec files(Root :: file:filename(), Pages :: [binary()]) -> [unicode:chardata()].
files(Root, Pages) ->
    Kept = fun(Pattern) -> [File || File <- filelib:wildcard(Pattern, Root), string:find(File, "-quick.") =:= nomatch] end,
    too_heavy(lists:sum([filelib:file_size(filename:join(Root, File)) || File <- Kept("bench/results/**/*.json")]))
        ++ unused(Kept("docs/**/*.{svg,png}") ++ Kept("bench/results/**/*.{svg,png,csv}"), Pages).

too_heavy(Bytes) -> [io_lib:format("bench/results: ~b KB of JSON, at most ~b are kept. Run: scripts/figures compact", [Bytes div 1000, ?MOST_BYTES div 1000]) || Bytes > ?MOST_BYTES].

unused(Pictures, Pages) -> [[File, ": no page shows it. Delete it"] || File <- Pictures, not lists:any(fun(Page) -> string:find(Page, filename:basename(File)) =/= nomatch end, Pages)].

%% @doc Checks that the verdicts of a result count: it needs enough repeats, and no other work may have run meanwhile. `Entries' are its metrics with verdicts.
-spec weak(Entries :: [map()], IsNoisy :: boolean()) -> [unicode:chardata()].
weak([], _) -> [];
weak(Entries, IsNoisy) ->
    {Fewest, Least} = {lists:min([Count || #{<<"samples">> := Count} <- Entries]), beamway_bench_stats:least_repeats()},
    [io_lib:format("~b repeats, and a verdict needs ~b", [Fewest, Least]) || Fewest < Least] ++ ["measured while other work ran on the machine" || IsNoisy].

%% @doc Returns the marks whose result has been measured again, or is no longer stored.
-spec dead([mark()], Read :: fun((string()) -> {ok, beamway_bench_store:stored()} | {error, term()})) -> [mark()].
dead(Marks, Read) ->
    [Mark || {Name, Commit, _} = Mark <- Marks, case Read(Name) of {ok, #{<<"commit">> := Of}} -> Of =/= list_to_binary(Commit); {error, _} -> true end].

%% @doc Describes such a mark as a problem.
-spec dead_text(mark()) -> unicode:chardata().
dead_text({Name, Commit, _}) -> ["bench/stale: ", Name, ".json is no longer of commit ", Commit, ". Run: make figures"].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

texts(Problems) -> [unicode:characters_to_list(Problem) || Problem <- Problems].

too_heavy_test_() -> [?_assertEqual([], too_heavy(?MOST_BYTES)), ?_assertMatch([_], too_heavy(?MOST_BYTES + 1))].

unused_test() -> ?assertEqual(["docs/b.svg: no page shows it. Delete it"], texts(unused(["docs/a.svg", "docs/b.svg"], [<<"![a](a.svg)">>, <<"b.sv">>]))).

weak_test_() ->
    Of = fun(Counts, IsNoisy) -> texts(weak([#{<<"samples">> => Count} || Count <- Counts], IsNoisy)) end,
    [?_assertEqual([], Of([7, 9], false)), ?_assertEqual(["6 repeats, and a verdict needs 7"], Of([9, 6], false)),
     ?_assertEqual(["measured while other work ran on the machine"], Of([7], true)),
     %% Without verdicts nothing is required.
     ?_assertEqual([], Of([], true))].

dead_test_() ->
    Read = fun("a") -> {ok, #{<<"commit">> => <<"1234567">>}}; ("b") -> {error, "not measured"} end,
    Dead = dead([{"a", "1234567", old}, {"a", "7654321", old}, {"b", "1234567", old}], Read),
    [?_assertEqual([{"a", "7654321", old}, {"b", "1234567", old}], Dead), ?_assertMatch(["bench/stale: a.json is no longer of commit 7654321" ++ _ | _], texts(lists:map(fun dead_text/1, Dead)))].
-endif.
