%% SPDX-License-Identifier: Apache-2.0
%% @doc The part of `bench placement' that answers: what does it cost to choose with outdated information?
%%
%% A simulation runs the actual {@link placement_policy} with 64 servers that have one queue each, exponential service times with mean 1, and load
%% 0.9. Each of 16 choosers has a snapshot of all queues, which it refreshes every `T' service times; a live policy queries the sampled servers
%% instead. `herd_ratio' is the mean response time (waiting and service) of the default policy with a snapshot that is 20 service times old, divided
%% by that of the same policy with a fresh snapshot. If the policy really queries the servers, stale snapshots do not matter, so the ratio is 1. The
%% simulation also measures the other policies, and an ideal policy with complete and current knowledge (`herd_best_possible').
-module(beamway_bench_herd).

-export([metrics/0, repeats/1, measure/2, mean_response/5]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(SERVERS, 64).
-define(CHOOSERS, 16).
-define(LOAD, 0.9).
-define(OLD, 20.0).

-spec metrics() -> [map()].
metrics() ->
    [#{name => <<"herd_ratio">>, unit => <<"x">>, better => lower, key => <<"herd: default policy, information 20 service times old over fresh">>},
     #{name => <<"herd_best_possible">>, unit => <<"service times">>, better => lower, key => <<"herd: mean response, fresh knowledge of all">>}
     | [#{name => <<"herd_", Name/binary>>, unit => <<"service times">>, better => lower, key => key(Name)} || {Name, _} <- policies()]].

policies() ->
    [{<<"two_choices">>, two_choices}, {<<"eight_choices">>, {choices, 8}}, {<<"cached_two">>, cached_two}, {<<"sqrt">>, sqrt_choices}, {<<"top_fifth">>, {top, 0.2}},
     {<<"least">>, least}, {<<"random">>, random}].

key(Name) -> <<"herd: mean response, information 20 service times old, ", Name/binary>>.

%% @doc Returns the number of repeats, which is 1 because the random numbers are always the same.
-spec repeats(full | quick) -> pos_integer().
repeats(_) -> 1.

%% @doc Simulates all policies.
-spec measure(full | quick, Repeat :: pos_integer()) -> #{binary() => number()}.
measure(Speed, Repeat) ->
    Tasks = case Speed of full -> 150000; quick -> 40000 end,
    Old = maps:from_list([{Name, simulated(Name, Policy, ?OLD, Tasks, Repeat)} || {Name, Policy} <- policies()]),
    Fresh = mean_response(two_choices, 0.0, Tasks, Repeat),
    Means = maps:from_list([{key(Name), Mean} || {Name, Mean} <- maps:to_list(Old)]),
    [#{key := Ratio}, #{key := Best} | _] = metrics(),
    Means#{Ratio => maps:get(<<"two_choices">>, Old) / Fresh, Best => mean_response(least, 0.0, Tasks div 4, Repeat)}.

simulated(Name, Policy, Age, Tasks, Seed) ->
    Mean = mean_response(Policy, Age, Tasks, Seed),
    ok = beamway_bench_text:note("bench placement: herd: ~ts: mean response ~.2f", [Name, Mean]),
    Mean.

%% @doc Returns the mean response time of one policy, in service times, not counting the first tenth of the tasks.
-spec mean_response(placement_policy:policy(), AgeOfInformation :: float(), Tasks :: pos_integer(), Seed :: integer()) -> float().
mean_response(Policy, Age, Tasks, Seed) -> mean_response(Policy, Age, Tasks, Seed, {?SERVERS, ?CHOOSERS}).

%% @doc Like {@link mean_response/4}, but with the given numbers of servers and choosers.
-spec mean_response(placement_policy:policy(), AgeOfInformation :: float(), Tasks :: pos_integer(), Seed :: integer(), {Servers :: pos_integer(), Choosers :: pos_integer()}) -> float().
mean_response(Policy, Age, Tasks, Seed, {ServerCount, ChooserCount}) ->
    Servers = maps:from_list([{Server, {queue:new(), 0.0}} || Server <- lists:seq(1, ServerCount)]),
    %% The choosers refresh their snapshots at different times.
    Pictures = maps:from_list([{Chooser, {Age * Chooser / ChooserCount - Age, #{}}} || Chooser <- lists:seq(1, ChooserCount)]),
    State = #{now => 0.0, servers => Servers, pictures => Pictures, seed => rand:seed_s(exsss, Seed), policy => Policy, age => Age},
    {Sum, Count} = arrivals(Tasks, Tasks - Tasks div 10, State, 0.0, 0),
    Sum / Count.

arrivals(0, _, _, Sum, Count) -> {Sum, Count};
arrivals(Left, From, #{now := Now, servers := Servers, pictures := Pictures, seed := Seed0} = State, Sum, Count) ->
    {Gap, Seed1} = exponential(?LOAD * map_size(Servers), Seed0),
    {Chooser, Seed2} = rand:uniform_s(map_size(Pictures), Seed1),
    {Service, Seed3} = exponential(1.0, Seed2),
    Renewed = renewed(Chooser, State#{now := Now + Gap, seed := Seed3}),
    {Server, Chosen} = choice(Chooser, Renewed),
    {Response, Next} = served(Server, Service, Chosen),
    case Left =< From of
        true -> arrivals(Left - 1, From, noted(Chooser, Server, Next), Sum + Response, Count + 1);
        false -> arrivals(Left - 1, From, noted(Chooser, Server, Next), Sum, Count)
    end.

exponential(Rate, Seed) ->
    {Uniform, Next} = rand:uniform_s(Seed),
    {-math:log(1.0 - Uniform) / Rate, Next}.

%% Returns the chooser's snapshot. If it is too old, it is replaced with the queues as they were at the most recent refresh time. Doing this lazily is
%% safe, because no choice has used the snapshot since then.
renewed(Chooser, #{now := Now, age := Age, pictures := Pictures, servers := Servers} = State) ->
    #{Chooser := {At, _}} = Pictures,
    case Age == 0.0 orelse Now - At >= Age of
        false -> State;
        true ->
            Moment = case Age == 0.0 of true -> Now; false -> At + Age * float(floor((Now - At) / Age)) end,
            Picture = maps:map(fun(_, Queue) -> length_at(Moment, Queue) end, Servers),
            State#{pictures := Pictures#{Chooser := {Moment, Picture}}}
    end.

%% Departed tasks stay in the queue until they are older than any snapshot that may still need them.
length_at(Moment, {Departures, _}) -> length([D || D <- queue:to_list(Departures), D > Moment]).

choice(Chooser, #{policy := Policy, servers := Servers, pictures := Pictures, now := Now, seed := Seed} = State) ->
    {Drawn, Seed1} = placement_policy:draw(Policy, maps:keys(Servers), 1, Seed),
    Known = case placement_policy:is_live(Policy) of
                true -> [length_at(Now, maps:get(Server, Servers)) || Server <- Drawn];
                false -> #{Chooser := {_, Picture}} = Pictures, [maps:get(Server, Picture, 0) || Server <- Drawn]
            end,
    Scores = placement_policy:scores([{1, min, 0, Known}]),
    {[Best], Seed2} = placement_policy:best(Policy, lists:zip(Drawn, Scores), 1, Seed1),
    {Best, State#{seed := Seed2}}.

served(Server, Service, #{now := Now, servers := Servers, age := Age} = State) ->
    #{Server := {Departures, Last}} = Servers,
    Departure = max(Now, Last) + Service,
    Kept = without_past(Now - Age, Departures),
    {Departure - Now, State#{servers := Servers#{Server := {queue:in(Departure, Kept), Departure}}}}.

without_past(Moment, Departures) ->
    case queue:peek(Departures) of
        {value, D} when D =< Moment -> without_past(Moment, queue:drop(Departures));
        _ -> Departures
    end.

%% The chooser adds the tasks that it has placed to its own snapshot.
noted(Chooser, Server, #{pictures := Pictures} = State) ->
    #{Chooser := {At, Picture}} = Pictures,
    Charged = maps:update_with(Server, fun(Length) -> placement_policy:charged(Length, 1, 1) end, 1, Picture),
    State#{pictures := Pictures#{Chooser := {At, Charged}}}.

-ifdef(TEST).

%% Random choice makes each server an M/M/1 queue with a mean response time of 1 / (1 - 0.9) = 10. If two servers are queried, it is far shorter.
random_is_a_queue_test_() ->
    {timeout, 60, fun() ->
        Random = mean_response(random, 0.0, 60000, 7),
        ?assert(Random > 7.5 andalso Random < 13.0),
        ?assert(mean_response(two_choices, 20.0, 20000, 7) < 0.5 * Random)
    end}.

%% With outdated information, choosing the best of all servers is far worse than querying two servers.
herd_test_() ->
    {timeout, 60, fun() ->
        Two = mean_response(two_choices, 20.0, 20000, 3),
        ?assert(mean_response(least, 20.0, 20000, 3) > 1.5 * Two),
        ?assert(Two < 1.2 * mean_response(two_choices, 0.0, 20000, 3))
    end}.
-endif.
