%% SPDX-License-Identifier: Apache-2.0
%% @doc The problem that the ants solve, which is single-machine total weighted tardiness. Jobs have
%% a duration, a weight and a due date. A schedule is an order of the jobs, and its cost is the sum
%% of weight times lateness. All functions are pure.
%%
%% Instances follow the recipe that the OR-Library documents for its own instances (J. E. Beasley; Crauwels, Potts and Van Wassenhove 1998): durations
%% from 1 to 100, weights from 1 to 10, due dates uniform from `P(1-TF-RDD/2)' to `P(1-TF+RDD/2)', where P is the sum of the durations, TF the
%% tardiness factor and RDD the relative range of due dates.
-module(ml_aco_instance).

-export([make/2, make/4, cost/2, earliest_due_date/1, optimum/1]).

-export_type([instance/0, job/0, schedule/0]).

-type job() :: {Duration :: pos_integer(), Weight :: pos_integer(), Due :: number()}.
-type instance() :: tuple().
%% A job's number is its position in the instance, from 1.
-type schedule() :: [pos_integer()].

%% @doc Returns an instance with this many jobs and with both factors 0.6, which makes it hard.
-spec make(Jobs :: pos_integer(), Seed :: integer()) -> instance().
make(Jobs, Seed) -> make(Jobs, 0.6, 0.6, Seed).

%% @doc Returns an instance with the given factors.
-spec make(Jobs :: pos_integer(), Tardiness :: float(), Range :: float(), Seed :: integer()) -> instance().
make(Jobs, Tardiness, Range, Seed) ->
    {Sizes, Random} = lists:mapfoldl(fun(_, R0) ->
                                             {Duration, R1} = rand:uniform_s(100, R0),
                                             {Weight, R2} = rand:uniform_s(10, R1),
                                             {{Duration, Weight}, R2}
                                     end, rand:seed_s(exsss, {Seed, Jobs, 40}), lists:seq(1, Jobs)),
    Sum = lists:sum([Duration || {Duration, _} <- Sizes]),
    Low = max(0, round(Sum * (1 - Tardiness - Range / 2))),
    High = max(Low, round(Sum * (1 - Tardiness + Range / 2))),
    {Complete, _} = lists:mapfoldl(fun({Duration, Weight}, R0) ->
                                           {Offset, R} = rand:uniform_s(High - Low + 1, R0),
                                           {{Duration, Weight, Low + Offset - 1}, R}
                                   end, Random, Sizes),
    list_to_tuple(Complete).

%% @doc Returns the cost of a schedule.
-spec cost(instance(), schedule()) -> number().
cost(Instance, Schedule) ->
    {_, Cost} = lists:foldl(fun(Job, {Time, Sum}) ->
                                    {Duration, Weight, Due} = element(Job, Instance),
                                    {Time + Duration, Sum + Weight * max(0, Time + Duration - Due)}
                            end, {0, 0}, Schedule),
    Cost.

%% @doc Returns the jobs in the order of their due dates, as a first schedule.
-spec earliest_due_date(instance()) -> schedule().
earliest_due_date(Instance) ->
    [Job || {_, Job} <- lists:sort([{element(3, element(Job, Instance)), Job} || Job <- lists:seq(1, tuple_size(Instance))])].

%% @doc Returns the cost of the best schedule, by dynamic programming over all sets of jobs: for each set of jobs that are scheduled first, it finds
%% the cheapest choice of the last of them, whatever the order of the others. For up to 16 jobs.
-spec optimum(instance()) -> number().
optimum(Instance) when tuple_size(Instance) =< 16 ->
    Jobs = tuple_size(Instance),
    Best = lists:foldl(fun(Set, Known) -> Known#{Set => best_last(Set, Jobs, Instance, Known)} end, #{0 => 0}, lists:seq(1, (1 bsl Jobs) - 1)),
    maps:get((1 bsl Jobs) - 1, Best).

best_last(Set, Jobs, Instance, Known) ->
    Members = [Job || Job <- lists:seq(1, Jobs), Set band (1 bsl (Job - 1)) =/= 0],
    End = lists:sum([element(1, element(Job, Instance)) || Job <- Members]),
    lists:min([begin
                   {_, Weight, Due} = element(Job, Instance),
                   maps:get(Set bxor (1 bsl (Job - 1)), Known) + Weight * max(0, End - Due)
               end || Job <- Members]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

cost_test() ->
    Instance = {{3, 2, 4}, {2, 1, 2}},
    ?assertEqual(3, cost(Instance, [1, 2])),
    ?assertEqual(2, cost(Instance, [2, 1])),
    ?assertEqual(2, optimum(Instance)).

recipe_test() ->
    Instance = make(40, 7),
    ?assertEqual(Instance, make(40, 7)),
    ?assertNotEqual(Instance, make(40, 8)),
    Sum = lists:sum([P || {P, _, _} <- tuple_to_list(Instance)]),
    [?assert(P >= 1 andalso P =< 100 andalso W >= 1 andalso W =< 10 andalso Due >= 0.1 * Sum - 1 andalso Due =< 0.7 * Sum + 1) || {P, W, Due} <- tuple_to_list(Instance)].

%% The optimum computed over sets equals the minimum over all orders.
optimum_test() ->
    [begin
         Instance = make(6, Seed),
         ?assertEqual(lists:min([cost(Instance, Order) || Order <- orders(lists:seq(1, 6))]), optimum(Instance))
     end || Seed <- lists:seq(1, 5)].

orders([]) -> [[]];
orders(Jobs) -> [[Job | Order] || Job <- Jobs, Order <- orders(Jobs -- [Job])].
-endif.
