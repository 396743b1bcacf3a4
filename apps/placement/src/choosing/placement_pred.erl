%% SPDX-License-Identifier: Apache-2.0
%% @doc Predicates over nodes. They are data, never funs, so that they can be checked, explained and sent to other nodes. All
%% functions are pure.
%%
%% A predicate is `true', `false' or `unknown'. It is unknown if its attribute is missing, has a different type from the
%% constant, is too old, or belongs to a node that does not answer, or if it uses the distance to a node that is not in the
%% tree. The negation of unknown is unknown, and only nodes for which the predicate is true are chosen. This module is
%% called by {@link placement_choose}, {@link attr} and {@link placement_lease}, which checks a predicate again on the
%% target node.
-module(placement_pred).

-export([compile/1, attributes/1, evaluate/2, are_true/2, conjuncts/1, source/1, is_relative/1, thresholds/2, account/2, at_target/1, contradictions/1,
         groups/1, affinities/1, neighbours/1, tolerance/1, words/0]).

-export_type([predicate/0, compiled/0, truth/0, context/0, thresholds/0, affinity/0]).

-type operator() :: eq | ne | lt | le | gt | ge.
-type predicate() :: {placement_entry:name(), operator(), Constant :: term()} | {placement_entry:name(), true | false | yes | no}
                   | {placement_entry:name(), in, [term()]} | {placement_entry:name(), between, {term(), term()}} | {placement_entry:name(), match, Regex :: string()}
                   | {placement_entry:name(), exists | missing | low | high | lowest | highest} | {placement_entry:name(), top | bottom, pos_integer()}
                   | {dist, operator(), number()} | {dist, very_near | near | far | very_far | anywhere} | {dist, same, Level :: non_neg_integer()}
                   | {latency, operator(), Us :: number() | placement_unit:quantity()} | {group, Name :: term()}
                   | {affinity, affinity(), near | apart} | {tolerates, [Taint :: term()] | all}
                   | {'and', [predicate()]} | {'or', [predicate()]} | {'not', predicate()} | [predicate()].
%% A list means `and'. A constant with a unit is written `{4, gib}'. `tolerates' is true if the node's attribute `taints'
%% contains only taints that are listed.
-type affinity() :: placement_entry:name() | {group, Name :: term()} | {pg, Scope :: atom(), Group :: term()}.
%% What a node must be near to, or apart from. A name means the nodes whose attribute is `true' or above 0 (`placement:own/1'
%% counts processes). A group means the nodes of the processes that have names in a group of {@link placement_group}, or that
%% are members of a `pg' group.
-type truth() :: true | false | unknown.
-type context() :: #{node := node(), view := placement_cache:view(), from => node(), tree => placement_tree:tree() | none,
                     groups => #{term() => [node()]}, thresholds => thresholds(),
                     affine => #{affinity() => [node()]}}.
-opaque compiled() :: {'and' | 'or', predicate(), [compiled()]} | {'not', predicate(), compiled()} | {leaf, predicate(), leaf()}.
-type leaf() :: {compare, atom(), operator(), term()} | {truth, atom(), boolean()} | {in, atom(), [term()]} | {between, atom(), term(), term()}
              | {match, atom(), term()} | {exists | missing, atom()} | {relative, atom(), relative()} | {dist, operator(), number()} | {dist, atom()}
              | {same, non_neg_integer()} | {latency, operator(), number()} | {group, term()}
              | {affinity, affinity(), near | apart} | {tolerates, taints, [term()] | all}.
-type relative() :: low | high | lowest | highest | {top | bottom, pos_integer()}.
-type thresholds() :: #{{atom(), relative()} => {le | ge, number()} | everybody | nobody}.

-define(OPERATORS, [eq, ne, lt, le, gt, ge]).
-define(DEPTH_MAX, 50).

%% @doc Returns the keywords of predicates.
-spec words() -> [atom()].
words() ->
    ?OPERATORS ++ [true, false, yes, no, in, between, match, exists, missing, low, high, lowest, highest, top, bottom, dist, same, very_near, near, far,
                   very_far, anywhere, latency, group, pg, affinity, apart, tolerates, all, 'and', 'or', 'not'].

%% @doc Checks and prepares a predicate. The error text says what is wrong and what was expected.
-spec compile(predicate()) -> {ok, compiled()} | {error, Text :: unicode:chardata()}.
compile(Predicate) ->
    try {ok, compiled(Predicate, 0)}
    catch throw:{bad, Format, Arguments} -> {error, io_lib:format(Format, Arguments)}
    end.

compiled(_, Depth) when Depth > ?DEPTH_MAX -> throw({bad, "a predicate has more than ~b levels", [?DEPTH_MAX]});
compiled(List, Depth) when is_list(List) -> {'and', List, several(List, List, Depth)};
compiled({'and', List} = P, Depth) -> {'and', P, several(List, P, Depth)};
compiled({'or', List} = P, Depth) -> {'or', P, several(List, P, Depth)};
compiled({'not', Inner} = P, Depth) -> {'not', P, compiled(Inner, Depth + 1)};
compiled(P, _) -> {leaf, P, leaf(P)}.

several(List, _, Depth) when length(List) >= 0 -> [compiled(Inner, Depth + 1) || Inner <- List];
several(_, P, _) -> throw({bad, "~0tP: expected a list of predicates", [P, 12]}).

leaf({dist, same, Level}) when is_integer(Level), Level >= 0 -> {same, Level};
leaf({dist, Word}) when Word =:= very_near; Word =:= near; Word =:= far; Word =:= very_far; Word =:= anywhere -> {dist, Word};
leaf({dist, Op, Number} = P) when is_number(Number) -> {dist, operator(Op, P), Number};
leaf({latency, Op, Us} = P) when is_number(Us) -> {latency, operator(Op, P), Us};
leaf({latency, Op, Quantity} = P) ->
    case placement_unit:is_quantity(Quantity) andalso placement_unit:convert(Quantity, us) of
        {ok, Us} -> {latency, operator(Op, P), Us};
        _ -> bad(P)
    end;
leaf({group, Name}) -> {group, Name};
leaf({affinity, What, Way} = P) when Way =:= near; Way =:= apart ->
    case is_affinity(What) of true -> {affinity, What, Way}; false -> bad(P) end;
leaf({tolerates, Taints}) when is_list(Taints); Taints =:= all -> {tolerates, taints, Taints};
leaf({tolerates, _} = P) -> bad(P);
leaf({Word, _} = P) when Word =:= dist; Word =:= latency -> bad(P);
leaf({Word, _, _} = P) when Word =:= dist; Word =:= group; Word =:= 'and'; Word =:= 'or'; Word =:= 'not' -> bad(P);
leaf({Name, Word}) when is_atom(Name), Word =:= true orelse Word =:= yes -> {truth, Name, true};
leaf({Name, Word}) when is_atom(Name), Word =:= false orelse Word =:= no -> {truth, Name, false};
leaf({Name, Word}) when is_atom(Name), Word =:= exists orelse Word =:= missing -> {Word, Name};
leaf({Name, Word}) when is_atom(Name), Word =:= low orelse Word =:= high orelse Word =:= lowest orelse Word =:= highest -> {relative, Name, Word};
leaf({Name, Word, Count}) when is_atom(Name), Word =:= top orelse Word =:= bottom, is_integer(Count), Count > 0 -> {relative, Name, {Word, Count}};
leaf({Name, in, List} = P) when is_atom(Name), is_list(List) -> {in, Name, [constant(Constant, P) || Constant <- List]};
leaf({Name, between, {Low, High}} = P) when is_atom(Name) -> {between, Name, constant(Low, P), constant(High, P)};
leaf({Name, match, Regex} = P) when is_atom(Name) -> {match, Name, regex(Regex, P)};
leaf({Name, Op, Constant} = P) when is_atom(Name) -> {compare, Name, operator(Op, P), constant(Constant, P)};
leaf(P) -> bad(P).

is_affinity({group, _}) -> true;
is_affinity({pg, Scope, _}) -> is_atom(Scope);
is_affinity(What) -> is_atom(What) andalso not lists:member(What, ?OPERATORS).

-spec bad(term()) -> no_return().
bad(P) ->
    throw({bad, "~0tP is not a predicate; expected {Name, eq|ne|lt|le|gt|ge, Value}, {Name, true|false|exists|missing|low|high|lowest|highest}, "
                "{Name, in, List}, {Name, between, {Low, High}}, {Name, match, Regex}, {Name, top|bottom, N}, {dist, Op, Number}, "
                "{dist, very_near|near|far|very_far|anywhere}, {dist, same, Level}, {latency, Op, Us}, {group, Name}, {affinity, Name|{group, G}|{pg, Scope, G}, near|apart}, {tolerates, Taints|all}, or 'and', 'or', 'not' of such", [P, 15]}).

operator(Op, P) -> case lists:member(Op, ?OPERATORS) of true -> Op; false -> bad(P) end.

constant(Fun, P) when is_function(Fun) -> bad(P);
constant({Number, Word} = Quantity, P) when is_number(Number), is_atom(Word) ->
    _ = placement_unit:is_unit(Word) orelse throw({bad, "~0tP: ~tp is not a unit; the units are ~0tp", [P, 15, Word, placement_unit:names()]}),
    _ = is_number(plain(Quantity)) orelse throw({bad, "~0tP: the number is too large", [P, 15]}),
    Quantity;
constant(Constant, _) -> Constant.

regex(Regex, P) ->
    try re:compile(Regex, [unicode]) of
        {ok, Compiled} -> Compiled;
        {error, {What, At}} -> throw({bad, "~0tP: ~ts at character ~b of the regular expression", [P, 15, What, At]})
    catch error:badarg -> bad(P)
    end.

%% @doc Returns the predicate that was compiled.
-spec source(compiled()) -> predicate().
source({_, P, _}) -> P.

%% @doc Returns the attributes that a predicate needs.
-spec attributes(compiled()) -> [placement_entry:name()].
attributes(Compiled) ->
    lists:usort([element(2, Leaf) || Leaf <- leaves(Compiled), is_of_attribute(Leaf)] ++ [Name || Name <- affinities(Compiled), is_atom(Name)]).

is_of_attribute(Leaf) -> not lists:member(element(1, Leaf), [dist, same, latency, group, affinity]).

leaves({leaf, _, Leaf}) -> [Leaf];
leaves({'not', _, Inner}) -> leaves(Inner);
leaves({_, _, List}) -> lists:append([leaves(Inner) || Inner <- List]).

%% @doc Returns the groups that a predicate needs.
-spec groups(compiled()) -> [term()].
groups(Compiled) -> lists:usort([Name || {group, Name} <- leaves(Compiled)]).

%% @doc Returns everything that a predicate requires a node to be near to or apart from.
-spec affinities(compiled()) -> [affinity()].
affinities(Compiled) -> lists:usort([What || {affinity, What, _} <- leaves(Compiled)]).

%% @doc Returns the attributes that name what a node must be near, according to the predicate.
-spec neighbours(compiled()) -> [placement_entry:name()].
neighbours(Compiled) -> lists:usort([Name || {affinity, Name, near} <- leaves(Compiled), is_atom(Name)]).

%% @doc Returns the additional condition that applies to a predicate without `tolerates': the node must not have taints.
-spec tolerance(compiled()) -> [compiled()].
tolerance(Compiled) ->
    case lists:any(fun(Leaf) -> element(1, Leaf) =:= tolerates end, leaves(Compiled)) of
        true -> [];
        false -> [compiled({tolerates, []}, 0)]
    end.

%% @doc Returns the parts of a predicate that must all be true.
-spec conjuncts(compiled()) -> [compiled()].
conjuncts({'and', _, List}) -> lists:append([conjuncts(Inner) || Inner <- List]);
conjuncts(Other) -> [Other].

%% @doc Returns whether a predicate compares candidates with each other, and so needs all of them.
-spec is_relative(compiled()) -> boolean().
is_relative(Compiled) -> lists:any(fun(Leaf) -> element(1, Leaf) =:= relative end, leaves(Compiled)).

%% @doc Returns the parts of a predicate that a node can check with its own attributes.
-spec at_target(compiled()) -> [predicate()].
at_target(Compiled) -> lists:append([of_target(Part) || Part <- conjuncts(Compiled)]).

%% Rewrites a predicate in a form that nodes with older releases can also evaluate.
of_target({leaf, _, {affinity, Name, apart}}) when is_atom(Name) -> [{'or', [{Name, missing}, {Name, le, 0}, {Name, false}]}];
of_target(Part) -> [source(Part) || lists:all(fun(Leaf) -> is_of_attribute(Leaf) andalso element(1, Leaf) =/= relative end, leaves(Part))].

%% @doc Evaluates the predicate for the context's node.
-spec evaluate(compiled(), context()) -> truth().
evaluate({'and', _, List}, Context) -> all([evaluate(Inner, Context) || Inner <- List]);
evaluate({'or', _, List}, Context) -> any([evaluate(Inner, Context) || Inner <- List]);
evaluate({'not', _, Inner}, Context) -> negated(evaluate(Inner, Context));
evaluate({leaf, _, Leaf}, Context) -> element(1, judged(Leaf, Context)).

%% @doc Returns whether all of these predicates are true for the context's node.
-spec are_true([compiled()], context()) -> boolean().
are_true(Predicates, Context) -> lists:all(fun(P) -> evaluate(P, Context) =:= true end, Predicates).

all(Truths) ->
    case {lists:member(false, Truths), lists:member(unknown, Truths)} of
        {true, _} -> false;
        {false, true} -> unknown;
        {false, false} -> true
    end.

any(Truths) -> negated(all([negated(Truth) || Truth <- Truths])).

negated(true) -> false;
negated(false) -> true;
negated(unknown) -> unknown.

%% @doc Returns each leaf with its truth value and the reason for it, such as `{value, V, AgeMs}' or `{unknown, Why}'.
-spec account(compiled(), context()) -> [{predicate(), truth(), Detail :: term()}].
account({leaf, P, Leaf}, Context) ->
    {Truth, Detail} = judged(Leaf, Context),
    [{P, Truth, Detail}];
account({'not', _, Inner}, Context) -> account(Inner, Context);
account({_, _, List}, Context) -> lists:append([account(Inner, Context) || Inner <- List]).

judged({dist, anywhere}, _) -> {true, any_distance};
judged({dist, Word}, Context) -> by_rank(Word, in_tree(rank, Context));
judged({dist, Op, Number}, Context) ->
    case in_tree(distance, Context) of
        {ok, Distance} -> {holds(Op, placement_unit:compare(Distance, none, Number)), {distance, Distance}};
        unknown -> {unknown, {unknown, not_in_tree}}
    end;
judged({same, Level}, Context) ->
    case in_tree(shared, Context) of
        {ok, same} -> {true, same_node};
        {ok, Shared} -> {Shared >= Level, {shared_levels, Shared}};
        unknown -> {unknown, {unknown, not_in_tree}}
    end;
judged({latency, Op, Us}, Context) ->
    case latency(Context) of
        {ok, Measured} -> {holds(Op, placement_unit:compare(Measured, us, Us)), {latency_us, Measured}};
        unknown -> {unknown, {unknown, not_measured}}
    end;
judged({group, Name}, #{node := Node} = Context) ->
    case maps:get(groups, Context, #{}) of
        #{Name := Members} -> {lists:member(Node, Members), {group, Name}};
        _ -> {unknown, {unknown, no_such_group}}
    end;
judged({affinity, What, Way}, #{node := Node} = Context) ->
    case maps:get(affine, Context, #{}) of
        #{What := Hosts} -> {case Way of apart -> not lists:member(Node, Hosts); near -> is_near(Node, Hosts, maps:get(tree, Context, none)) end, {runs_on, Hosts}};
        _ -> {unknown, {unknown, no_such_group}}
    end;
judged(Leaf, #{view := #{attributes := Attributes}} = Context) ->
    Known = maps:get(element(2, Leaf), Attributes, {unknown, missing}),
    {of_attribute(Leaf, Known, Context), detail(Known)}.

%% Returns whether the node is one of the hosts, or is in the smallest group of the tree around one of them. The result is
%% `unknown' if neither is known to be true and the distance to one of the hosts is unknown.
is_near(Node, Hosts, Tree) ->
    any([lists:member(Node, Hosts) | [case placement_tree:rank(Tree, Host, Node) of {ok, Rank, _} -> Rank =< 1; unknown -> unknown end || Host <- Hosts]]).

detail({ok, Value, Age, _, _}) -> {value, Value, Age};
detail({unknown, _} = Unknown) -> Unknown.

of_attribute({exists, _}, {ok, _, _, _, _}, _) -> true;
of_attribute({exists, _}, {unknown, missing}, _) -> false;
of_attribute({missing, _}, Known, Context) -> negated(of_attribute({exists, any}, Known, Context));
of_attribute({tolerates, _, _}, {unknown, missing}, _) -> true;
of_attribute(_, {unknown, _}, _) -> unknown;
of_attribute({tolerates, _, all}, _, _) -> true;
of_attribute({tolerates, _, Tolerated}, {ok, Taints, _, _, _}, _) when is_list(Taints) -> Taints -- Tolerated =:= [];
of_attribute({compare, _, Op, Constant}, {ok, Value, _, Unit, _}, _) -> holds(Op, placement_unit:compare(Value, Unit, Constant));
of_attribute({truth, _, Wanted}, {ok, Value, _, _, _}, _) -> truth(Wanted, Value);
of_attribute({between, _, Low, High}, {ok, Value, _, Unit, _}, _) ->
    all([holds(ge, placement_unit:compare(Value, Unit, Low)), holds(le, placement_unit:compare(Value, Unit, High))]);
of_attribute({in, _, List}, {ok, Value, _, Unit, _}, _) -> any_equal([placement_unit:compare(Value, Unit, Constant) || Constant <- List]);
of_attribute({match, _, Regex}, {ok, Value, _, _, _}, _) -> matches(Value, Regex);
of_attribute({relative, Name, What}, {ok, Value, _, _, _}, Context) ->
    case placement_unit:is_measure(Value) of
        true -> by_threshold(Value, maps:get({Name, What}, maps:get(thresholds, Context, #{}), unknown));
        false -> unknown
    end;
of_attribute(_, _, _) -> unknown.

holds(_, {error, _}) -> unknown;
holds(eq, {ok, Order}) -> Order =:= equal;
holds(ne, {ok, Order}) -> Order =/= equal;
holds(lt, {ok, Order}) -> Order =:= less;
holds(le, {ok, Order}) -> Order =/= greater;
holds(gt, {ok, Order}) -> Order =:= greater;
holds(ge, {ok, Order}) -> Order =/= less.

truth(Wanted, Value) when Value =:= true; Value =:= yes -> Wanted;
truth(Wanted, Value) when Value =:= false; Value =:= no -> not Wanted;
truth(_, _) -> unknown.

any_equal([]) -> false;
any_equal(Comparisons) ->
    case {lists:member({ok, equal}, Comparisons), [C || {ok, _} = C <- Comparisons]} of
        {true, _} -> true;
        {false, []} -> unknown;
        {false, _} -> false
    end.

matches(Value, Regex) when is_list(Value); is_binary(Value); is_atom(Value) ->
    Text = case is_atom(Value) of true -> atom_to_binary(Value); false -> Value end,
    try re:run(Text, Regex, [{capture, none}, {match_limit, 100000}, report_errors]) of
        match -> true;
        nomatch -> false;
        {error, _} -> unknown
    catch error:badarg -> unknown
    end;
matches(_, _) -> unknown.

by_threshold(_, Threshold) when Threshold =:= unknown; Threshold =:= nobody -> unknown;
by_threshold(_, everybody) -> true;
by_threshold(Value, {le, Bound}) -> Value =< Bound;
by_threshold(Value, {ge, Bound}) -> Value >= Bound.

in_tree(Function, #{node := Node} = Context) ->
    case Context of
        #{from := From, tree := Tree} when Tree =/= none -> apply(placement_tree, Function, [Tree, From, Node]);
        _ -> unknown
    end.

by_rank(_, unknown) -> {unknown, {unknown, not_in_tree}};
by_rank(Word, {ok, Rank, Levels}) ->
    Half = (Levels + 1) div 2,
    {case Word of
         very_near -> Rank =< 1;
         near -> Rank =< Half;
         far -> Rank > Half;
         very_far -> Rank > 0 andalso Rank =:= Levels
     end, {level, Rank, Levels}}.

%% Returns the time that was measured for the smallest group that contains both nodes. If there is none and the distance
%% is from this node, returns the time of the node's fastest reply so far.
latency(#{node := Node, view := View} = Context) ->
    case in_tree(latency, Context) of
        {ok, #{median_us := Us}} -> {ok, Us};
        _ when node() =:= Node -> {ok, 0};
        _ ->
            case {View, maps:get(from, Context, node()) =:= node()} of
                {#{rtt_us := Us}, true} -> {ok, Us};
                _ -> unknown
            end
    end.

%% @doc Returns the thresholds for `low', `highest', `top' … among these candidates, whose order does not matter.
-spec thresholds(compiled(), [context()]) -> thresholds().
thresholds(Compiled, Candidates) ->
    maps:from_list([{{Name, What}, threshold(What, [Known || #{view := #{attributes := #{Name := {ok, Value, _, _, _} = Known}}} <- Candidates, placement_unit:is_measure(Value)])}
                    || {relative, Name, What} <- lists:usort(leaves(Compiled))]).

threshold(_, []) -> nobody;
threshold(What, Known) ->
    Values = lists:sort([Value || {ok, Value, _, _, _} <- Known]),
    Tolerance = lists:max([T || {ok, _, _, _, T} <- Known]),
    Count = length(Values),
    case lists:last(Values) - hd(Values) =< Tolerance of
        true -> everybody;
        false -> bound(What, Values, Count, Tolerance)
    end.

bound(low, Values, Count, _) -> {le, lists:nth((Count + 2) div 3, Values)};
bound(high, Values, Count, _) -> {ge, lists:nth(Count + 1 - (Count + 2) div 3, Values)};
bound(lowest, Values, _, Tolerance) -> {le, hd(Values) + Tolerance};
bound(highest, Values, _, Tolerance) -> {ge, lists:last(Values) - Tolerance};
bound({bottom, N}, Values, Count, _) -> {le, lists:nth(min(N, Count), Values)};
bound({top, N}, Values, Count, _) -> {ge, lists:nth(max(1, Count + 1 - N), Values)}.

%% @doc Returns pairs of parts that contradict each other, because no value of their attribute satisfies both.
-spec contradictions(compiled()) -> [{predicate(), predicate()}].
contradictions(Compiled) ->
    Parts = [{P, Leaf} || {leaf, P, {compare, _, _, _} = Leaf} <- conjuncts(Compiled)],
    [{P1, P2} || {P1, {compare, Name, Op1, K1}} <- Parts, {P2, {compare, Other, Op2, K2}} <- Parts, Name =:= Other,
                 %% A bare number has the attribute's own unit, which is not known here.
                 placement_unit:is_quantity(K1) =:= placement_unit:is_quantity(K2), excludes(Op1, Op2, placement_unit:compare(plain(K1), none, plain(K2)))].

plain({Number, Unit} = Quantity) when is_number(Number), is_atom(Unit) ->
    hd([Converted || To <- [byte, hz, us, ratio, none], {ok, Converted} <- [placement_unit:convert(Quantity, To)]] ++ [too_large]);
plain(Constant) -> Constant.

excludes(Op1, Op2, {ok, less}) -> lists:member(Op1, [lt, le, eq]) andalso lists:member(Op2, [gt, ge, eq]);
excludes(Op1, Op2, {ok, equal}) -> lists:member({Op1, Op2}, [{lt, gt}, {lt, ge}, {le, gt}, {lt, eq}, {eq, gt}, {eq, ne}]);
excludes(_, _, _) -> false.
