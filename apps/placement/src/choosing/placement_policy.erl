%% SPDX-License-Identifier: Apache-2.0
%% @doc Decides which of several suitable nodes is chosen. All functions are pure. `bench placement' also uses them.
%%
%% A choice has two steps: {@link draw/4} draws some candidates at random, and {@link best/4} picks those with the highest
%% scores. Among nodes with equal scores the choice is random. Nothing here depends on the order of the list, because
%% otherwise all nodes of a cluster would choose the same node. With the default, `two_choices', two candidates are drawn
%% for each wanted node, and their current attributes are requested before they are compared. This is nearly as good as
%% choosing with complete and current information about all nodes, whereas picking the best of all nodes from information
%% that is a few seconds old is worse than a random choice.
-module(placement_policy).

-export([draw/4, best/4, is_live/1, is_policy/1, words/0, scores/1, charged/3]).

-export_type([policy/0, scored/1, term_values/0]).

-type policy() :: two_choices | cached_two | {choices, pos_integer()} | sqrt_choices | random | {top, Fraction :: float()} | least | {module, module()}.
%% `two_choices' and `{choices, K}' draw two or `K' candidates for each wanted node and request their current attributes.
%% The others use cached values: `cached_two' draws two candidates; `sqrt_choices' draws the square root of the number of
%% candidates; `{top, 0.2}' chooses at random from the best fifth; `least' compares all candidates. `{module, M}' calls
%% `M:select(Scored, Count, Query)'.
-type scored(Node) :: {Node, Score :: number()}.
%% A higher score is better.
-type term_values() :: {Weight :: number(), min | max | truth, Tolerance :: number(), [unknown | number()]}.
%% A term of a preference, with its value for each candidate.

-callback select([scored(node())], Count :: pos_integer(), Query :: map()) -> [node()].

-define(NAMES, [two_choices, cached_two, sqrt_choices, random, least]).

%% @doc Returns whether a term is a policy.
-spec is_policy(term()) -> boolean().
is_policy({choices, K}) -> is_integer(K) andalso K > 0;
is_policy({top, Fraction}) -> is_number(Fraction) andalso Fraction > 0 andalso Fraction =< 1;
is_policy({module, Module}) -> is_atom(Module);
is_policy(Policy) -> lists:member(Policy, ?NAMES).

%% @doc Returns the keywords of policies.
-spec words() -> [atom()].
words() -> ?NAMES ++ [choices, top, module].

%% @doc Returns whether the current attributes of the drawn nodes must be requested.
-spec is_live(policy()) -> boolean().
is_live(two_choices) -> true;
is_live({choices, _}) -> true;
is_live(_) -> false.

%% @doc Returns the candidates that are to be compared, in random order.
-spec draw(policy(), [Node], Count :: pos_integer(), rand:state()) -> {[Node], rand:state()}.
draw(Policy, Candidates, Count, Seed) ->
    {Shuffled, Next} = shuffle(Candidates, Seed),
    {lists:sublist(Shuffled, drawn(Policy, length(Candidates), Count)), Next}.

drawn(two_choices, _, Count) -> 2 * Count;
drawn(cached_two, _, Count) -> 2 * Count;
drawn({choices, K}, _, Count) -> K * Count;
drawn(sqrt_choices, All, Count) -> max(Count, ceil(math:sqrt(All)) * Count);
drawn(random, _, Count) -> Count;
drawn(_, All, _) -> All.

%% @doc Returns the best of the drawn candidates, best first. Candidates with equal scores are in random order, and so are
%% all candidates in the best fraction for `{top, Fraction}'.
-spec best(policy(), [scored(Node)], Count :: pos_integer(), rand:state()) -> {[Node], rand:state()}.
best({top, Fraction}, Scored, Count, Seed) ->
    {Top, Rest} = lists:split(ceil(Fraction * length(Scored)), [Node || {Node, _} <- lists:reverse(lists:keysort(2, Scored))]),
    {Shuffled, Next} = shuffle(Top, Seed),
    {lists:sublist(Shuffled ++ Rest, Count), Next};
best(_, Scored, Count, Seed) ->
    {Shuffled, Next} = shuffle(Scored, Seed),
    %% keysort is stable, so the shuffled order decides among equally good candidates.
    {[Node || {Node, _} <- lists:sublist(lists:keysort(2, [{Node, -Score} || {Node, Score} <- Shuffled]), Count)], Next}.

-spec shuffle([Element], rand:state()) -> {[Element], rand:state()}.
shuffle(List, Seed) ->
    {Keyed, Next} = lists:mapfoldl(fun(Element, S) -> {Key, S1} = rand:uniform_s(S), {{Key, Element}, S1} end, Seed, List),
    {[Element || {_, Element} <- lists:sort(fun({A, _}, {B, _}) -> A =< B end, Keyed)], Next}.

%% @doc Returns the scores of all candidates. A score is the sum of the weighted terms. For a numeric term the best
%% candidate gets the full weight and the worst gets 0; if the values differ by no more than the tolerance, all candidates
%% get the full weight. A candidate whose value is unknown gets 0.
-spec scores([term_values()]) -> [float()].
scores([]) -> [];
scores(Terms) ->
    Columns = [[Weight * Share || Share <- shares(Kind, Tolerance, Values)] || {Weight, Kind, Tolerance, Values} <- Terms],
    lists:foldl(fun(Column, Sums) -> lists:zipwith(fun(A, B) -> A + B end, Column, Sums) end, [0.0 || _ <- hd(Columns)], Columns).

shares(truth, _, Values) -> [case Value of 1 -> 1.0; _ -> 0.0 end || Value <- Values];
shares(Kind, Tolerance, Values) ->
    case [Value || Value <- Values, is_number(Value)] of
        [] -> [0.0 || _ <- Values];
        Known -> [share(Kind, Value, lists:min(Known), lists:max(Known), Tolerance) || Value <- Values]
    end.

share(_, unknown, _, _, _) -> 0.0;
share(_, _, Min, Max, Tolerance) when Max - Min =< Tolerance -> 1.0;
share(min, Value, Min, Max, _) -> (Max - Value) / (Max - Min);
share(max, Value, Min, Max, _) -> (Value - Min) / (Max - Min).

%% @doc Increases a node's measured load by `Charge' for each placement that this node has made there since the measurement.
%% This is needed for policies that do not request current values.
-spec charged(Value :: unknown | number(), OwnPlacements :: non_neg_integer(), Charge :: number()) -> unknown | number().
charged(unknown, _, _) -> unknown;
charged(Value, Own, Charge) ->
    try Value + Own * Charge
    %% The result exceeds the range of a float.
    catch error:badarith -> Value
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

seed(N) -> rand:seed_s(exsss, N).

policies() -> [two_choices, cached_two, {choices, 3}, sqrt_choices, random, {top, 0.2}, least].

no_policy_takes_the_first_test_() ->
    [?_assert(is_fair(Policy)) || Policy <- policies()].

is_fair(Policy) ->
    Nodes = [a, b, c, d, e],
    {Taken, _} = lists:mapfoldl(fun(_, Seed) ->
                                        {Drawn, Next} = draw(Policy, Nodes, 1, Seed),
                                        {[One], Last} = best(Policy, [{Node, 1.0} || Node <- Drawn], 1, Next),
                                        {One, Last}
                                end, seed(7), lists:seq(1, 5000)),
    Counts = [length([T || T <- Taken, T =:= Node]) || Node <- Nodes],
    lists:min(Counts) > 850 andalso lists:max(Counts) < 1150.

drawn_test_() ->
    [?_assertEqual(Want, length(element(1, draw(Policy, lists:seq(1, 100), Count, seed(1)))))
     || {Want, Policy, Count} <- [{2, two_choices, 1}, {6, two_choices, 3}, {100, two_choices, 80}, {3, {choices, 3}, 1}, {10, sqrt_choices, 1},
                                  {1, random, 1}, {100, least, 1}, {100, {top, 0.2}, 1}]].

best_test_() ->
    Scored = [{a, 0.1}, {b, 0.9}, {c, 0.5}],
    [?_assertMatch({[b, c], _}, best(least, Scored, 2, seed(1))), ?_assertMatch({[b], _}, best({top, 0.2}, Scored, 1, seed(1))),
     %% All candidates are returned; those outside of the best fraction come last.
     ?_assertMatch({[b, c, a], _}, best({top, 0.2}, Scored, 3, seed(2))),
     ?_assertMatch({[b, c, a], _}, best(two_choices, Scored, 9, seed(1)))].

scores_test_() ->
    [?_assertEqual([1.0, 0.5, 0.0], scores([{1, min, 0, [1, 2, 3]}])), ?_assertEqual([0.0, 1.0, 2.0], scores([{2, max, 0, [1, 2, 3]}])),
     ?_assertEqual([1.0, 1.0, 0.0], scores([{1, min, 5, [1, 2, unknown]}])), ?_assertEqual([3.0, 1.0], scores([{1, min, 0, [5, 5]}, {2, truth, 0, [1, 0]}])),
     ?_assertEqual([0.0, 0.0], scores([{1, min, 0, [unknown, unknown]}])), ?_assertEqual([], scores([]))].

charged_test_() ->
    [?_assertEqual(Want, charged(Value, 3, Charge)) || {Want, Value, Charge} <- [{unknown, unknown, 1}, {10, 7, 1}, {8.5, 7, 0.5}, {1 bsl 1024, 1 bsl 1024, 0.5}]].

is_policy_test_() ->
    [?_assert(lists:all(fun is_policy/1, policies())), ?_assertNot(is_policy(first)), ?_assertNot(is_policy({choices, 0})), ?_assertNot(is_policy({top, 2}))].
-endif.
