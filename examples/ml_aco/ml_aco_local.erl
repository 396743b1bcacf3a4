%% SPDX-License-Identifier: Apache-2.0
%% @doc Local search on schedules: as long as this makes the schedule cheaper, a job is moved to a
%% different position, or two jobs are swapped. Of all such changes, the best is made first. All
%% functions are pure. Called by {@link ml_aco_colony}.
-module(ml_aco_local).

-export([improved/2]).

%% @doc Returns a schedule that no such change makes cheaper, with its cost.
-spec improved(ml_aco_instance:instance(), ml_aco_instance:schedule()) -> {Cost :: number(), ml_aco_instance:schedule()}.
improved(Instance, Schedule) ->
    Jobs = timed(Instance, Schedule),
    Count = tuple_size(Jobs),
    case lists:min([best_move(Jobs, Count), best_swap(Jobs, Count)]) of
        {Change, How, From, To} when Change < 0 -> improved(Instance, changed(How, From, To, Schedule));
        _ -> {ml_aco_instance:cost(Instance, Schedule), Schedule}
    end.

%% Returns the duration, the weight, the due date and the end of the job at each position.
timed(Instance, Schedule) ->
    {Jobs, _} = lists:mapfoldl(fun(Job, Time) ->
                                       {Duration, Weight, Due} = element(Job, Instance),
                                       {{Duration, Weight, Due, Time + Duration}, Time + Duration}
                               end, 0, Schedule),
    list_to_tuple(Jobs).

late(Weight, Due, End) when End > Due -> Weight * (End - Due);
late(_, _, _) -> 0.

best_move(Jobs, Count) ->
    lists:min([{0, none, 0, 0} | [Found || From <- lists:seq(1, Count),
                                           Found <- [later(From + 1, Count, element(From, Jobs), From, Jobs, 0, {0, none, 0, 0}),
                                                     earlier(From - 1, element(From, Jobs), From, Jobs, 0, {0, none, 0, 0})]]]).

%% The jobs that the moved job passes end earlier.
later(Place, Count, _, _, _, _, Best) when Place > Count -> Best;
later(Place, Count, {Own, OwnWeight, OwnDue, OwnEnd} = Job, From, Jobs, Sum, Best) ->
    {_, Weight, Due, End} = element(Place, Jobs),
    Passed = Sum + late(Weight, Due, End - Own) - late(Weight, Due, End),
    Change = Passed + late(OwnWeight, OwnDue, End) - late(OwnWeight, OwnDue, OwnEnd),
    later(Place + 1, Count, Job, From, Jobs, Passed, min(Best, {Change, move, From, Place})).

earlier(0, _, _, _, _, Best) -> Best;
earlier(Place, {Own, OwnWeight, OwnDue, OwnEnd} = Job, From, Jobs, Sum, Best) ->
    {Duration, Weight, Due, End} = element(Place, Jobs),
    Passed = Sum + late(Weight, Due, End + Own) - late(Weight, Due, End),
    Change = Passed + late(OwnWeight, OwnDue, End - Duration + Own) - late(OwnWeight, OwnDue, OwnEnd),
    earlier(Place - 1, Job, From, Jobs, Passed, min(Best, {Change, move, From, Place})).

best_swap(Jobs, Count) ->
    lists:foldl(fun({From, To}, Best) -> min(Best, {swap(element(From, Jobs), element(To, Jobs), From + 1, To, Jobs), swap, From, To}) end, {0, none, 0, 0},
                [{From, To} || From <- lists:seq(1, Count - 1), To <- lists:seq(From + 1, Count)]).

swap({One, OneWeight, OneDue, OneEnd}, {Two, TwoWeight, TwoDue, TwoEnd}, First, To, Jobs) ->
    Ends = late(OneWeight, OneDue, TwoEnd) - late(OneWeight, OneDue, OneEnd) + late(TwoWeight, TwoDue, OneEnd - One + Two) - late(TwoWeight, TwoDue, TwoEnd),
    between(First, To, Two - One, Jobs, Ends).

between(To, To, _, _, Sum) -> Sum;
between(Place, To, Shift, Jobs, Sum) ->
    {_, Weight, Due, End} = element(Place, Jobs),
    between(Place + 1, To, Shift, Jobs, Sum + late(Weight, Due, End + Shift) - late(Weight, Due, End)).

changed(move, From, To, Schedule) ->
    {Before, [Job | After]} = lists:split(From - 1, Schedule),
    {First, Last} = lists:split(To - 1, Before ++ After),
    First ++ [Job | Last];
changed(swap, From, To, Schedule) ->
    {Before, [One | Rest]} = lists:split(From - 1, Schedule),
    {Middle, [Two | After]} = lists:split(To - From - 1, Rest),
    Before ++ [Two | Middle] ++ [One | After].

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% The computed saving of a change equals its real saving, so no move or swap makes the result cheaper.
local_optimum_test() ->
    [begin
         Instance = ml_aco_instance:make(12, 0.6, 0.6, Seed),
         {Cost, Schedule} = improved(Instance, lists:seq(1, 12)),
         ?assertEqual(Cost, ml_aco_instance:cost(Instance, Schedule)),
         [?assert(ml_aco_instance:cost(Instance, changed(How, From, To, Schedule)) >= Cost)
          || How <- [move, swap], From <- lists:seq(1, 12), To <- lists:seq(1, 12), How =:= move orelse From < To]
     end || Seed <- lists:seq(1, 10)].
-endif.
