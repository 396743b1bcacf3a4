%% SPDX-License-Identifier: Apache-2.0
%% Tests schedules of faults: a seed always yields the same schedule, which is valid, and shrinking a schedule
%% terminates.
-module(beamway_nemesis_schedule_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

-define(M, beamway_nemesis_schedule).

properties_test_() ->
    [{atom_to_list(Name), {timeout, 60, ?_assert(proper:quickcheck(Property, [quiet, {numtests, 500}]))}}
     || {Name, Property} <- [{generated_are_valid, generated_are_valid()}, {the_same_again, the_same_again()},
                             {smaller_are_valid, smaller_are_valid()}, {as_text_and_back, as_text_and_back()},
                             {limits_are_kept, limits_are_kept()}, {all_are_cut, all_are_cut()}]].

generated_are_valid() ->
    ?FORALL(Seed, integer(), ?M:validate(?M:generate(Seed)) =:= ok).

the_same_again() ->
    ?FORALL(Seed, integer(), ?M:generate(Seed) =:= ?M:generate(Seed)).

limits_are_kept() ->
    ?FORALL({Seed, Nodes, Faults}, {integer(), range(2, 6), range(3, 9)},
            begin
                #{nodes := Some} = Schedule = ?M:generate(Seed, #{max_nodes => Nodes, max_faults => Faults}),
                length(Some) =< Nodes andalso size_of(Schedule) > 0
            end).

all_are_cut() ->
    ?FORALL(Seed, integer(),
            begin
                #{faults := Faults} = ?M:generate(Seed),
                lists:keymember(cut_tcp, 1, lists:takewhile(fun ?M:is_calm/1, Faults))
            end).

smaller_are_valid() ->
    ?FORALL(Seed, integer(),
            begin
                Schedule = ?M:generate(Seed),
                lists:all(fun(Small) -> ?M:validate(Small) =:= ok andalso size_of(Small) < size_of(Schedule) end,
                          ?M:smaller(Schedule))
            end).

size_of(#{nodes := Nodes, faults := Faults}) ->
    length(Nodes) + lists:sum([1 || O <- Nodes, O =/= #{}]) + lists:sum([weight(F) || F <- Faults]).

weight({wait, Ms}) -> Ms + 1;
weight({restart, _, Options}) -> 2 + map_size(Options);
weight(_) -> 1.

as_text_and_back() ->
    ?FORALL(Seed, integer(),
            begin
                Schedule = ?M:generate(Seed),
                File = filename:join("/tmp", beamway_peer:unique_name("nemesis-schedule")),
                ok = file:write_file(File, ?M:print(Schedule)),
                Read = ?M:read(File),
                ok = file:delete(File),
                Read =:= {ok, Schedule}
            end).

every_kind_comes_from_some_seed_test() ->
    Schedules = [?M:generate(Seed) || Seed <- lists:seq(1, 300)],
    Kinds = lists:usort([element(1, Fault) || #{faults := Faults} <- Schedules, Fault <- Faults]),
    ?assertEqual(lists:sort(?M:kinds()), Kinds),
    ?assertEqual([2, 3, 4, 5, 6], lists:usort([length(Nodes) || #{nodes := Nodes} <- Schedules])).

nonsense_is_refused_test_() ->
    Two = #{nodes => [#{}, #{}], faults => []},
    [?_assertEqual(ok, ?M:validate(Two))]
        ++ [?_assertMatch({error, _}, ?M:validate(Two#{faults := [Fault]}))
            || Fault <- [{kill, 3}, {kill, 0}, {stop, 1, 8000}, {stop, 1, -1}, {cut_tcp, 1, 1}, {cut_tcp, 1, 3}, {silence, 1, 1, 100}, {silence, 1, 2, 0}, {silence, 1, 2, 3000}, {wait, 0}, nonsense,
                         {restart, 1, #{ring_bytes => 1000}}, {restart, 1, #{colour => red}}, {clock_jump, 1, 0.5}]]
        ++ [?_assertMatch({error, _}, ?M:validate(Bad))
            || Bad <- [nonsense, #{}, Two#{nodes := [#{}]}, Two#{nodes := lists:duplicate(7, #{})}, Two#{nodes := [#{}, 1]},
                       %% no more faults are applied to a dead node
                       Two#{faults := [{kill, 1}, {stop, 1, 10}]}, Two#{faults := [{kill, 1}, {kill, 1}]}]].

files_that_hold_no_schedule_test() ->
    ?assertEqual({error, enoent}, ?M:read("/nowhere/schedule")),
    ?assertMatch({error, {terms, _, _}}, ?M:read("/dev/null")).

what_ends_what_test_() ->
    [?_assert(?M:ends(Fault, {1, 2})) || Fault <- [{kill, 1}, {kill, 2}, {restart, 2, #{}}, {cut_tcp, 2, 1}, {stop, 1, 12000}]]
        ++ [?_assertNot(?M:ends(Fault, {1, 2}))
            || Fault <- [{kill, 3}, {cut_tcp, 1, 3}, {silence, 1, 2, 1500}, {stop, 1, 4000}, {fill_ring, 1, 2}, {no_descriptors, 1, 3000},
                         {slow_reader, 2, 3000}, {clock_jump, 1, -3600}, {wait, 1000}]].
