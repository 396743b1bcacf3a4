%% SPDX-License-Identifier: Apache-2.0
%% @doc Properties of predicates: they have three truth values, their order does not matter, and their explanations agree
%% with the choices.
-module(placement_pred_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

-export([predicate/1, view/0]).

checked(Property, Count) ->
    {timeout, 120, fun() -> ?assert(proper:quickcheck(Property, [{numtests, Count}, quiet, {max_size, 12}])) end}.

laws_test_() ->
    [{Title, checked(Property, 1000)}
     || {Title, Property} <- [{"de morgan", prop_de_morgan()}, {"order", prop_order()}, {"double not", prop_double_not()},
                              {"unknown stays unknown", prop_unknown()}, {"adding a constraint never adds a node", prop_monotone()},
                              {"relative words do not depend on order", prop_relative_order()}]].

explain_test_() -> checked(prop_explain_agrees(), 500).

%% The list of keywords, which the console offers for completion, contains all keywords in the types.
all_words_test_() ->
    [?_assertEqual({Module, []}, {Module, lists:usort(lists:append([words_of(Type, Module) || Type <- Types])) -- placement_query:words()})
     || {Module, Types} <- [{placement_pred, [predicate, operator, affinity]}, {placement_query, [query, preference, spread, counted]}, {placement_policy, [policy]}]].

words_of(Type, Module) ->
    {ok, {_, [{abstract_code, {raw_abstract_v1, Forms}}]}} = beam_lib:chunks(code:which(Module), [abstract_code]),
    [Definition] = [Is || {attribute, _, type, {Name, Is, []}} <- Forms, Name =:= Type],
    atoms(Definition).

atoms({atom, _, Atom}) -> [Atom];
atoms({remote_type, _, [_Module, _Name, Arguments]}) -> atoms(Arguments);
atoms(Tuple) when is_tuple(Tuple) -> atoms(tuple_to_list(Tuple));
atoms([Part | Parts]) -> atoms(Part) ++ atoms(Parts);
atoms(_) -> [].

%%% Generators

name() -> elements([a, b, c]).

value() -> oneof([integer(0, 5), float(0.0, 5.0), elements([x, true, false, yes, undefined]), "text", {1, 2}]).

leaf() ->
    oneof([{name(), elements([eq, ne, lt, le, gt, ge]), value()}, {name(), elements([true, false, yes, no, exists, missing])},
           {name(), in, list(value())}, {name(), between, {integer(0, 5), integer(0, 5)}}, {name(), match, elements(["t", "^x$", "."])},
           {dist, elements([near, far, anywhere])}, {group, elements([g, h])}, {affinity, elements([a, {group, g}, {pg, s, p}]), elements([near, apart])},
           {tolerates, oneof([all, list(value())])}]).

predicate(0) -> leaf();
predicate(Size) ->
    Half = Size div 2,
    frequency([{2, leaf()}, {1, {'not', ?LAZY(predicate(Size - 1))}}, {1, {elements(['and', 'or']), list(?LAZY(predicate(Half div 2)))}}]).

predicate() -> ?SIZED(Size, predicate(Size)).

known() ->
    frequency([{6, ?LET({Value, Age}, {value(), integer(0, 5000)}, {ok, Value, Age, none, 0})}, {1, {unknown, missing}}, {1, {unknown, timeout}}]).

view() -> ?LET({A, B, C}, {known(), known(), known()}, #{status => ok, attributes => #{a => A, b => B, c => C}}).

context(View) -> #{node => n@h, view => View, groups => #{g => [n@h]}, affine => #{a => [m@h], {group, g} => [n@h]}}.

evaluated(P, Context) ->
    {ok, Compiled} = placement_pred:compile(P),
    placement_pred:evaluate(Compiled, Context).

%%% Properties

prop_de_morgan() ->
    ?FORALL({P, Q, View}, {predicate(), predicate(), view()},
            begin
                C = context(View),
                evaluated({'not', {'and', [P, Q]}}, C) =:= evaluated({'or', [{'not', P}, {'not', Q}]}, C)
                    andalso evaluated({'not', {'or', [P, Q]}}, C) =:= evaluated({'and', [{'not', P}, {'not', Q}]}, C)
            end).

prop_order() ->
    ?FORALL({Ps, View}, {list(predicate()), view()},
            begin
                C = context(View),
                lists:all(fun(Word) -> evaluated({Word, Ps}, C) =:= evaluated({Word, lists:reverse(Ps)}, C) end, ['and', 'or'])
                    andalso evaluated(Ps, C) =:= evaluated({'and', Ps}, C)
            end).

prop_double_not() ->
    ?FORALL({P, View}, {predicate(), view()}, evaluated({'not', {'not', P}}, context(View)) =:= evaluated(P, context(View))).

%% A comparison with an unknown value is neither true nor false, and neither is its opposite.
prop_unknown() ->
    ?FORALL({Op, Value}, {elements([eq, ne, lt, le, gt, ge]), value()},
            begin
                C = context(#{status => timeout, attributes => #{a => {unknown, timeout}}}),
                evaluated({a, Op, Value}, C) =:= unknown andalso evaluated({'not', {a, Op, Value}}, C) =:= unknown
            end).

prop_monotone() ->
    ?FORALL({P, Q, View}, {predicate(), predicate(), view()},
            not (evaluated([P, Q], context(View)) =:= true andalso evaluated(P, context(View)) =/= true)).

prop_relative_order() ->
    ?FORALL({What, Views}, {elements([low, high, lowest, highest]), non_empty(list(view()))},
            begin
                {ok, Compiled} = placement_pred:compile({a, What}),
                Contexts = [context(View) || View <- Views],
                placement_pred:thresholds(Compiled, Contexts) =:= placement_pred:thresholds(Compiled, lists:reverse(Contexts))
            end).

%% The chosen nodes are exactly those that the explanation calls suitable.
prop_explain_agrees() ->
    ?FORALL({Parts, Views}, {list(frequency([{4, predicate()}, {1, {name(), elements([low, high, lowest, highest])}}])), non_empty(list(view()))},
            begin
                {ok, Plan} = placement_query:compile(Parts),
                Nodes = [list_to_atom("n" ++ integer_to_list(N) ++ "@h") || N <- lists:seq(1, length(Views))],
                Snapshot = #{contexts => [#{node => Node, view => View, from => hd(Nodes), tree => none, groups => #{}} || {Node, View} <- lists:zip(Nodes, Views)],
                             tree => none, epoch => 0, end_ms => 0},
                Suitable = [Node || #{node := Node, suitable := true} <- placement_explain:reports(Plan, Snapshot)],
                case placement_choose:feasible(Plan, Snapshot) of
                    {ok, Contexts, []} -> Suitable =:= [Node || #{node := Node} <- Contexts];
                    {error, {unsatisfied, #{feasible := 0, candidates := Count}}} -> Suitable =:= [] andalso Count =:= length(Views)
                end
            end).

%%% Single cases

words_test_() ->
    [?_assertEqual({What, Want}, {What, passing(What, [5, 3, 1, 4, 2, 6, 7])})
     || {Want, What} <- [{[1, 2, 3], low}, {[5, 6, 7], high}, {[1], lowest}, {[7], highest}, {[6, 7], {top, 2}}, {[1, 2, 3, 4, 5, 6, 7], {bottom, 9}}]].

%% The differences of these values exceed the range of a float, so the values count as unknown in comparisons.
huge_values_test_() ->
    [?_assertEqual({What, Want}, {What, passing(What, [1, 2.5, 4, 1 bsl 1024, 1.0e308, -1.0e308])})
     || {Want, What} <- [{[1], low}, {[4], high}, {[1], lowest}, {[4], highest}, {[1, 2.5, 4], {top, 9}}]]
        ++ [?_assertEqual([], passing(high, [1 bsl 1024]))].

%% Returns the values that a keyword selects.
passing(What, Values) ->
    {ok, Compiled} = placement_pred:compile(case What of {Word, N} -> {a, Word, N}; _ -> {a, What} end),
    Contexts = [context(#{status => ok, attributes => #{a => {ok, Value, 0, none, 0}}}) || Value <- Values],
    Thresholds = placement_pred:thresholds(Compiled, Contexts),
    lists:sort([Value || #{view := #{attributes := #{a := {ok, Value, _, _, _}}}} = C <- Contexts,
                         placement_pred:evaluate(Compiled, C#{thresholds => Thresholds}) =:= true]).

contradictions_test_() ->
    [?_assertEqual(Want, begin {ok, Compiled} = placement_pred:compile(P), length(placement_pred:contradictions(Compiled)) end)
     || {Want, P} <- [{1, [{a, lt, 1}, {a, gt, 2}]}, {1, [{a, lt, 1}, {a, ge, 1}]}, {0, [{a, le, 1}, {a, ge, 1}]}, {1, [{a, eq, 1}, {a, eq, 2}]},
                      {1, [{a, lt, {1, gib}}, {a, gt, {2048, mib}}]}, {0, [{a, lt, 2000000}, {a, gt, {1, gib}}]},
                      {0, [{a, lt, 3}, {a, gt, 2}]}, {0, [{a, lt, 1}, {b, gt, 2}]}]].

%% The target node does not check predicates that only the choosing node can evaluate.
at_target_test() ->
    {ok, Compiled} = placement_pred:compile([{a, gt, 1}, {dist, near}, {'or', [{b, true}, {group, g}]}, {c, low}, {'not', {b, exists}}]),
    ?assertEqual([{a, gt, 1}, {'not', {b, exists}}], placement_pred:at_target(Compiled)),
    {ok, Apart} = placement_pred:compile([{affinity, d, apart}, {affinity, e, near}, {'not', {affinity, f, near}}, {affinity, {group, g}, apart}]),
    ?assertEqual([{'or', [{d, missing}, {d, le, 0}, {d, false}]}], placement_pred:at_target(Apart)).

deep_test() ->
    Deep = lists:foldl(fun(_, P) -> {'not', P} end, {a, true}, lists:seq(1, 100)),
    ?assertMatch({error, _}, placement_pred:compile(Deep)).
