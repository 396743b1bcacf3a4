%% SPDX-License-Identifier: Apache-2.0
%% @doc Runs ML-ACO in a Slurm job, with and without distances: the experiment that the RELEASE report plans.
%%
%% `srun beamway node --run ml_aco_job' calls {@link main/0} on the first node once all nodes are connected, measured and clustered. The tree of
%% processes either has the shape of the measured network (with distances) or is the same tree on nodes in random order (without); the two are run in
%% turn. The cost must be the same. A table is written to standard output, and all measurements to `ml-aco-JOB.json' in the current directory. The
%% environment variables ML_ACO_REPEATS (5), ML_ACO_ANTS (20), ML_ACO_JOBS (40) and ML_ACO_ROUNDS (6) change the numbers.
-module(ml_aco_job).

-export([main/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(SEED, 1).
-define(ITERATIONS, 2).

%% @doc Runs the experiment. Returns `ok', or prints a message and returns an exit status.
-spec main() -> ok | 1 | 2.
main() ->
    case {[{Variable, os:getenv(Variable)} || {Variable, _} <- settings(), not is_number_text(os:getenv(Variable))], placement:topology()} of
        {[{Variable, Text} | _], _} -> complain("~s is '~ts'; expected a number from 1", [Variable, Text]), 2;
        {[], none} -> complain("no distances are known here; start it by: srun beamway node --run ml_aco_job", []), 1;
        {[], Tree} -> compared(Tree)
    end.

settings() -> [{"ML_ACO_REPEATS", 5}, {"ML_ACO_ANTS", 20}, {"ML_ACO_JOBS", 40}, {"ML_ACO_ROUNDS", 6}].

is_number_text(false) -> true;
is_number_text(Text) -> re:run(Text, "^[1-9][0-9]{0,4}$") =/= nomatch.

setting(Variable) ->
    case os:getenv(Variable) of
        false -> proplists:get_value(Variable, settings());
        Text -> list_to_integer(Text)
    end.

complain(Format, Arguments) -> io:format(standard_error, "ml_aco: " ++ Format ++ "~n", Arguments).

compared(Tree) ->
    Instance = ml_aco_instance:make(setting("ML_ACO_JOBS"), ?SEED),
    Options = #{seed => ?SEED, ants => setting("ML_ACO_ANTS"), rounds => setting("ML_ACO_ROUNDS"), iterations => ?ITERATIONS},
    {ok, Plan} = placement_plan:plan(Tree, #{}),
    %% This run opens the connections and loads the code before any time is measured.
    _ = run(Plan, Instance, Options#{ants := 1}),
    Rows = [row(Repeat, Plan, Instance, Options) || Repeat <- lists:seq(1, setting("ML_ACO_REPEATS"))],
    ok = io:put_chars(to_text(Rows, placement_tree:size(Tree))),
    kept(Rows, Tree, Options).

%% The two trees take turns at being measured first.
row(Repeat, Plan, Instance, Options) ->
    Drawn = moved(Plan, Repeat),
    Order = case Repeat rem 2 of 1 -> [{with, Plan}, {without, Drawn}]; 0 -> [{without, Drawn}, {with, Plan}] end,
    Solved = maps:from_list([{Which, run(One, Instance, Options)} || {Which, One} <- Order]),
    #{with := {Cost, WithMs}, without := {Cost, WithoutMs}} = Solved,
    complain("repeat ~b: ~b ms with distances, ~b ms without", [Repeat, WithMs, WithoutMs]),
    #{repeat => Repeat, cost => Cost, with_ms => WithMs, without_ms => WithoutMs}.

run(Plan, Instance, Options) ->
    {ok, #{cost := Cost, ms := Ms}} = ml_aco_tree:run(Plan, Instance, Options),
    {Cost, Ms}.

%% Returns the same processes on different nodes. The colonies stay in order, so they keep their numbers.
moved(Plan, Repeat) ->
    Nodes = lists:usort([Node || {_, Node} <- placement_plan:to_list(Plan)]),
    {Drawn, _} = lists:mapfoldl(fun(Node, Random) -> {Key, Next} = rand:uniform_s(Random), {{Key, Node}, Next} end, rand:seed_s(exsss, {Repeat, 16, 7}), Nodes),
    renamed(Plan, maps:from_list(lists:zip(Nodes, [Node || {_, Node} <- lists:sort(Drawn)]))).

renamed({Role, Node, Children}, Names) -> {Role, maps:get(Node, Names), [renamed(Child, Names) || Child <- Children]}.

to_text(Rows, Nodes) ->
    [io_lib:format("ML-ACO on ~b nodes; the same cost, seconds:~n~nrepeat   cost   with distances   without   ratio~n", [Nodes]),
     [io_lib:format("~6b ~6b ~16.3f ~9.3f ~7.2f~n", [Repeat, Cost, With / 1000, Without / 1000, ratio(Without, With)])
      || #{repeat := Repeat, cost := Cost, with_ms := With, without_ms := Without} <- Rows],
     io_lib:format("median        ~16.3f ~9.3f ~7.2f~n", [median([W / 1000 || #{with_ms := W} <- Rows]), median([W / 1000 || #{without_ms := W} <- Rows]), median(ratios(Rows))])].

ratios(Rows) -> [ratio(Without, With) || #{with_ms := With, without_ms := Without} <- Rows].

%% A run of less than a millisecond counts as one.
ratio(Without, With) -> max(1, Without) / max(1, With).

median(Values) ->
    Sorted = lists:sort(Values),
    Count = length(Sorted),
    case Count rem 2 of
        1 -> float(lists:nth(Count div 2 + 1, Sorted));
        0 -> (lists:nth(Count div 2, Sorted) + lists:nth(Count div 2 + 1, Sorted)) / 2
    end.

kept(Rows, Tree, Options) ->
    File = "ml-aco-" ++ os:getenv("SLURM_JOB_ID", "none") ++ ".json",
    Own = #{nodes => placement_tree:nodes(Tree), depth => placement_tree:depth(Tree), options => Options, rows => Rows, ratio_median => median(ratios(Rows))},
    case stored(code:ensure_loaded(beamway_bench_report), File, Own) of
        ok -> io:format("stored: ~ts~n", [filename:absname(File)]);
        {error, Reason} -> complain("cannot write ~ts: ~ts", [filename:absname(File), Reason]), 1
    end.

%% In a checkout the benchmarks are next to the example, but they are missing if only the example was copied.
stored({module, Report}, File, #{rows := Rows} = Own) ->
    Context = beamway_bench_store:context("slurm-ml-aco", "make test-slurm RESULTS=bench/results"),
    Key = <<"ML-ACO on 8 nodes of two racks">>,
    Metric = #{name => <<"slurm_ml_aco">>, unit => <<"ms">>, better => lower, key => Key, contender => with_distances, baselines => [without_distances]},
    Samples = #{{with_distances, Key} => #{none => [max(1, Ms) || #{with_ms := Ms} <- Rows]},
                {without_distances, Key} => #{none => [max(1, Ms) || #{without_ms := Ms} <- Rows]}},
    %% The job's own nodes load the machine, so the result is always stored, and marked as noisy.
    Report:save(File, Report:result(<<"slurm-ml-aco">>, [Metric], Samples, maps:merge(Context, Own)), true);
stored({error, _}, File, Own) ->
    case file:write_file(File, [jiffy:encode(Own, [pretty]), $\n]) of
        ok -> ok;
        {error, Reason} -> {error, file:format_error(Reason)}
    end.

-ifdef(TEST).

text_test() ->
    Rows = [#{repeat => 1, cost => 12, with_ms => 500, without_ms => 1000}, #{repeat => 2, cost => 12, with_ms => 0, without_ms => 3}],
    Text = lists:flatten(to_text(Rows, 8)),
    ?assertNotEqual(nomatch, string:find(Text, "0.500     1.000    2.00")),
    ?assertEqual(2.5, median(ratios(Rows))).

moved_test() ->
    Plan = {master, a, [{submaster, b, [{worker, c, []}, {worker, d, []}]}]},
    Moved = moved(Plan, 1),
    ?assertEqual(lists:sort([a, b, c, d]), lists:sort([Node || {_, Node} <- placement_plan:to_list(Moved)])),
    ?assertEqual([master, submaster, worker, worker], [Role || {Role, _} <- placement_plan:to_list(Moved)]).

numbers_test_() -> [?_assert(is_number_text(false)), ?_assert(is_number_text("20")), ?_assertNot(is_number_text("0")), ?_assertNot(is_number_text("x"))].
-endif.
