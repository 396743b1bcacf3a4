%% SPDX-License-Identifier: Apache-2.0
%% @doc A colony of ants (M. den Besten, T. Stuetzle, M. Dorigo 2000, for this problem). Each ant builds a schedule job by job. It draws each job with
%% a probability that depends on pheromone and on the job's urgency (the modified due date). The best schedule so far is reinforced with pheromone.
%%
%% With `local', {@link ml_aco_local} improves each ant's schedule before it is compared with others. If a colony has found no better schedule for
%% some iterations, it discards its pheromone and begins again, but still knows the best schedule that it has found.
%%
%% All random choices depend only on the seed, the colony's number, the iteration and the ant's number, and in a tie the smaller schedule wins. So a
%% colony finds the same result wherever it runs, and in whatever order its ants finish. Each ant is a process.
-module(ml_aco_colony).

-export([new/4, run/3, best/1, speed/1]).
%% This function runs in an ant's process.
-export([search/2]).

-export_type([colony/0, found/0]).

-type found() :: {Cost :: number(), ml_aco_instance:schedule()}.
-opaque colony() :: #{instance := ml_aco_instance:instance(), number := pos_integer(), seed := integer(), ants := pos_integer(), local := boolean(),
                      iteration := non_neg_integer(), pheromone := tuple(), first := float(), best := found(),
                      current := found(), still := non_neg_integer()}.
%% `pheromone' contains a row for each position, with a value for each job. `current' is the best schedule since the pheromone was last discarded, and
%% `still' is the number of iterations without a better one.

-define(RHO, 0.1).
-define(BETA, 2).
-define(ANT_MS, 600000).
%% The number of iterations without a better schedule before the colony begins again.
-define(PATIENCE, 12).

%% @doc Returns a colony that knows only the order of due dates.
-spec new(ml_aco_instance:instance(), Number :: pos_integer(), Seed :: integer(), Ants :: pos_integer() | {pos_integer(), local}) -> colony().
new(Instance, Number, Seed, {Ants, local}) -> (new(Instance, Number, Seed, Ants))#{local := true};
new(Instance, Number, Seed, Ants) ->
    Start = ml_aco_instance:earliest_due_date(Instance),
    Cost = ml_aco_instance:cost(Instance, Start),
    First = 1 / (Ants * max(1, Cost)),
    Jobs = tuple_size(Instance),
    #{instance => Instance, number => Number, seed => Seed, ants => Ants, local => false, iteration => 0, first => First,
      pheromone => even(Jobs, First), best => {Cost, Start}, current => {Cost, Start}, still => 0}.

even(Jobs, First) -> erlang:make_tuple(Jobs, erlang:make_tuple(Jobs, First)).

%% @doc Runs this many iterations, after learning the best schedule that others have found.
-spec run(colony(), found(), Iterations :: non_neg_integer()) -> colony().
run(#{best := Own, current := Current} = Colony, Heard, Iterations) ->
    %% An old schedule from others would lead each colony that has begun again back to where it was.
    Known = case Heard < Own of
                true -> Colony#{best := Heard, current := min(Current, Heard), still := 0};
                false -> Colony
            end,
    lists:foldl(fun(_, Acc) -> iterate(Acc) end, Known, lists:seq(1, Iterations)).

%% @doc Returns the best schedule that the colony knows.
-spec best(colony()) -> found().
best(#{best := Best}) -> Best.

iterate(#{ants := Ants, iteration := Iteration, best := Best, current := Current, pheromone := Pheromone, still := Still} = Colony) ->
    Next = Colony#{iteration := Iteration + 1},
    Running = [spawn_monitor(?MODULE, search, [Next, Ant]) || Ant <- lists:seq(1, Ants)],
    Found = lists:min([Current | [result(Pid, Monitor) || {Pid, Monitor} <- Running]]),
    case Found < Current of
        false when Still >= ?PATIENCE -> begun_again(Next);
        false -> Next#{pheromone := reinforced(Pheromone, Found), still := Still + 1};
        true -> Next#{best := min(Best, Found), current := Found, pheromone := reinforced(Pheromone, Found), still := 0}
    end.

begun_again(#{instance := Instance, first := First} = Colony) ->
    Colony#{pheromone := even(tuple_size(Instance), First), current := {infinity, []}, still := 0}.

%% @private
-spec search(colony(), Ant :: pos_integer()) -> no_return().
search(Colony, Ant) -> exit({found, ant(Colony, Ant)}).

result(Pid, Monitor) ->
    receive
        {'DOWN', Monitor, process, Pid, {found, Found}} -> Found;
        {'DOWN', Monitor, process, Pid, Reason} -> exit({ant, Reason})
    after ?ANT_MS -> exit({ant, timeout})
    end.

%% Reinforces the best schedule: pheromone evaporates, and the schedule gets pheromone in proportion to how good it is.
reinforced(Pheromone, {Cost, Schedule}) ->
    list_to_tuple([begin
                       Old = element(Job, Row),
                       setelement(Job, Row, (1 - ?RHO) * Old + ?RHO / max(1, Cost))
                   end || {Row, Job} <- lists:zip(tuple_to_list(Pheromone), Schedule)]).

ant(#{instance := Instance, number := Number, seed := Seed, local := Local, iteration := Iteration, pheromone := Pheromone}, Ant) ->
    Random = rand:seed_s(exsss, {Seed * 1000003 + Number, Iteration, Ant}),
    Schedule = build(tuple_to_list(Pheromone), lists:seq(1, tuple_size(Instance)), {0, greed(Number)}, Instance, Random, []),
    case Local of
        true -> ml_aco_local:improved(Instance, Schedule);
        false -> {ml_aco_instance:cost(Instance, Schedule), Schedule}
    end.

build([], [], _, _, _, Schedule) -> lists:reverse(Schedule);
build([Row | Rows], Jobs, {Time, Greed}, Instance, Random0, Schedule) ->
    Drawn = [{element(Job, Row) * math:pow(urgency(element(Job, Instance), Time), ?BETA), Job} || Job <- Jobs],
    {Job, Random} = chosen(Drawn, Greed, Random0),
    build(Rows, lists:delete(Job, Jobs), {Time + element(1, element(Job, Instance)), Greed}, Instance, Random, [Job | Schedule]).

%% Returns the job's weight divided by the time until its modified due date.
urgency({Duration, Weight, Due}, Time) -> Weight / (max(Time + Duration, Due) - Time).

%% Returns how often an ant takes the best job instead of drawing one. Every second colony explores,
%% because the other colonies find good schedules early but find narrow optima late.
greed(Number) when Number rem 2 =:= 1 -> 0.9;
greed(_) -> 0.0.

chosen(Drawn, Greed, Random0) ->
    {Chance, Random1} = rand:uniform_s(Random0),
    case Chance < Greed of
        true -> {element(2, lists:max(Drawn)), Random1};
        false ->
            {Share, Random} = rand:uniform_s(Random1),
            {pick(Drawn, Share * lists:sum([Weight || {Weight, _} <- Drawn])), Random}
    end.

pick([{_, Job}], _) -> Job;
pick([{Weight, Job} | _], Left) when Left =< Weight -> Job;
pick([{Weight, _} | Rest], Left) -> pick(Rest, Left - Weight).

%% @doc Returns how many ants per second this node can run, measured for this many milliseconds. The result is used as an attribute for choosing
%% nodes.
-spec speed(Ms :: pos_integer()) -> float().
speed(Ms) ->
    Colony = new(ml_aco_instance:make(20, 1), 1, 1, 1),
    Start = erlang:monotonic_time(millisecond),
    ants_until(Colony, Start, Start + Ms, 1).

ants_until(Colony, Start, End, Count) ->
    _ = ant(Colony, Count),
    case erlang:monotonic_time(millisecond) of
        Now when Now >= End -> 1000 * Count / (Now - Start);
        _ -> ants_until(Colony, Start, End, Count + 1)
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% A small instance is solved to its proven optimum.
optimum_test_() ->
    {timeout, 120, fun() ->
        [begin
             Instance = ml_aco_instance:make(10, Seed),
             Found = [element(1, best(run(new(Instance, Number, 1, 20), {infinity, []}, 40))) || Number <- [1, 2, 3, 4]],
             ?assertEqual(ml_aco_instance:optimum(Instance), lists:min(Found))
         end || Seed <- [1, 2, 3]]
    end}.

same_seed_same_schedule_test() ->
    Instance = ml_aco_instance:make(20, 3),
    Run = fun(Seed) -> best(run(new(Instance, 1, Seed, 5), {infinity, []}, 5)) end,
    ?assertEqual(Run(1), Run(1)),
    {Cost, Schedule} = Run(1),
    ?assertEqual(Cost, ml_aco_instance:cost(Instance, Schedule)),
    ?assertEqual(lists:seq(1, 20), lists:sort(Schedule)).

%% Long after it could have stopped at its first result, a colony still finds better results, because it has begun again in between.
begins_again_test() ->
    Colony = run(new(ml_aco_instance:make(8, 1), 1, 1, 4), {infinity, []}, 80),
    #{iteration := 80, still := Still, best := Best, current := Current} = Colony,
    ?assert(Still < 80 - ?PATIENCE),
    ?assert(Best =< Current).

speed_test() -> ?assert(speed(20) > 0).
-endif.
