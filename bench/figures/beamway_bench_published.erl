%% SPDX-License-Identifier: Apache-2.0
%% @doc Reads `bench/figures.config' and `bench/stale', and returns the stored results in the form
%% in which the pages show them.
-module(beamway_bench_published).

-export([config/0, results/0, read/1, stale/0, shown/1, is_noisy/1, again/0]).

-export_type([table/0, shown/0]).

-type config() :: [tuple()].
-type table() :: {metrics, Whose :: string(), [{Result :: string(), all | [string() | {string(), string()}]}]}
               | {brief, [{Result :: string(), Metric :: string(), Question :: string()}]}
               | {pairs, [{Result :: string(), Metric :: string(), Rival :: string(), Question :: string()}]}
               | {across, [{Heading :: string(), Folder :: string()}], [{Result :: string(), Metric :: string(), Rival :: string(), Question :: string()}]}
               | {grid, Heading :: [string()], [[string() | {Result :: string(), Metric :: string()}]]}
               | {facts, Result :: string(), [{Label :: string(), Path :: [string()]}]}
               | {list, Result :: string(), Path :: [string()], [{Heading :: string(), Field :: string()}]}.
-type shown() :: {fresh | old, beamway_bench_store:stored()} | {hidden, Why :: string()}.

%% @doc Returns the terms of `bench/figures.config'.
-spec config() -> config().
config() ->
    {ok, Terms} = file:consult(beamway_bench_checkout:path("bench/figures.config")),
    case twice(Terms) of
        [] -> Terms;
        [First | _] -> throw({config, io_lib:format("bench/figures.config has ~ts twice: delete one", [First])})
    end.

%% Returns the entries that occur more than once in the file. They are errors, because it would be
%% undefined which of them is measured or shown.
twice(Terms) ->
    Keys = [{element(1, Term), case Term of {_, _} -> none; _ -> element(2, Term) end} || Term <- Terms],
    [case Name of none -> atom_to_list(Kind); _ -> io_lib:format("~ts ~tp", [Kind, Name]) end
     || {Kind, Name} <- lists:usort(Keys -- lists:usort(Keys))].

%% @doc Returns each result's name, what it measures, and how to measure it again.
-spec results() -> [{Name :: string(), map()}].
results() -> [{Name, Result} || {result, Name, Result} <- config()].

%% @doc Returns a result as it is stored.
-spec read(Name :: string()) -> {ok, beamway_bench_store:stored()} | {error, unicode:chardata()}.
read(Name) -> beamway_bench_store:read(beamway_bench_store:file(Name)).

%% @doc Returns the entries of `bench/stale'.
-spec stale() -> [beamway_bench_gate:mark()].
stale() ->
    case file:consult(beamway_bench_checkout:path("bench/stale")) of
        {ok, Terms} -> Terms;
        {error, enoent} -> []
    end.

%% @doc Returns a stored result in the form in which the pages show it, or the reason why they do not show it.
-spec shown(Name :: string()) -> shown().
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

%% @doc Returns whether other work ran during the measurement or just before it. In old results only the load average shows this.
-spec is_noisy(beamway_bench_store:stored()) -> boolean().
is_noisy(#{<<"noisy">> := Why}) -> Why =/= [];
is_noisy(#{<<"machine">> := #{<<"load_average">> := Load}}) -> beamway_bench_machine:noise(Load) =/= [].

%% @doc Returns what a page says instead of a number that is missing.
-spec again() -> string().
again() -> "to be measured again".

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

noisy_test_() ->
    Load = fun(L) -> #{<<"machine">> => #{<<"load_average">> => L}} end,
    [?_assert(is_noisy(Load(1.5))), ?_assertNot(is_noisy(Load(0.2))), ?_assert(is_noisy((Load(0.2))#{<<"noisy">> => [<<"stolen">>]})),
     ?_assertNot(is_noisy((Load(0.4))#{<<"noisy">> => []}))].

what_stands_twice_is_refused_test_() ->
    [?_assertEqual([], twice([{paths, #{}}, {result, "a", #{}}, {table, "a", []}, {result, "b", #{}}])),
     ?_assertEqual(["result \"a\"", "table \"b\""],
                   [unicode:characters_to_list(One) || One <- twice([{result, "a", #{}}, {table, "b", []}, {result, "a", #{x => y}}, {table, "b", []}, {result, "c", #{}}])]),
     ?_assertEqual(["chart \"a\"", "paths"], [unicode:characters_to_list(One) || One <- twice([{chart, "a", "", [], []}, {paths, #{}}, {chart, "a", "", [], []}, {paths, #{}}])]),
     ?_assertEqual([], twice(config()))].

%% Every file in bench/results must be listed in bench/figures.config. An entry that does not list what it measures would immediately count as
%% outdated.
every_result_is_known_test() ->
    Files = [File || Pattern <- ["*.json", "*/*.json"], File <- filelib:wildcard(Pattern, beamway_bench_checkout:path("bench/results"))],
    Known = [Name ++ ".json" || {Name, _} <- results()],
    ?assertEqual([], [File || File <- Files, not lists:member(File, Known), string:find(File, "-quick") =:= nomatch]).

every_path_is_there_test() ->
    [Paths] = [Paths || {paths, Paths} <- config()],
    ?assertEqual([], [Path || Path <- lists:append(maps:values(Paths)), not filelib:is_file(beamway_bench_checkout:path(Path))]),
    ?assertEqual([], [Measure || {_, #{measures := Measures}} <- results(), Measure <- Measures, not is_map_key(Measure, Paths)]).

what_nobody_can_repeat_is_hidden_test_() ->
    [?_assertMatch({hidden, _}, judged(true, fresh, #{})), ?_assertMatch({hidden, _}, judged(false, not_here, #{})), ?_assertEqual({old, #{}}, judged(false, old, #{}))].
-endif.
