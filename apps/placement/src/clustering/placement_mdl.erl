%% SPDX-License-Identifier: Apache-2.0
%% @doc Clusters nodes without a threshold: finds the tree that gives the shortest description of the measured times. All
%% functions are pure.
%%
%% Average linkage ({@link placement_linkage}) builds a binary tree from the logarithms of the times. Then every group
%% is merged with its parent if that makes the whole description shorter. The description of a group has two costs, one
%% for the times between its children and one for the assignment of nodes to these children:
%%
%% - the times: the negative logarithm of their marginal likelihood, under the assumption that they are normally
%%   distributed. The prior of the mean is centred on the median of all times and is as wide as their range. The prior of
%%   the variance is an inverse gamma distribution around `floor^2' (the conjugate prior; K. P. Murphy, "Conjugate
%%   Bayesian analysis of the Gaussian distribution", 2007). Pairs that share a node are not independent, so m pairs
%%   count only as `m^0.75'. Outliers are clipped to within three times the interquartile range of the median.
%% - the names: the logarithm of the number of ways to divide the group's n nodes into s single nodes and sets as large as
%%   its other children. Without this cost, noise would split groups.
%%
%% The idea is from J. Rissanen, "Modeling by shortest data description", Automatica 14, 1978. The most similar published
%% method for times between pairs is C. Blundell and Y. W. Teh, "Bayesian hierarchical community discovery", NIPS 2013.
%%
%% Slow nodes would be separated from their groups, so all this is done twice. The first, coarse pass (`m^0.5') determines
%% by how much each node's times exceed the medians of its groups, and the second pass subtracts that excess.
%%
%% Pairs that were not measured provide no information. The binary tree is built with estimates for them
%% ({@link placement_gaps}), but the description counts only measured pairs. Nodes that no measured pair distinguishes
%% form a single group.
%%
%% The only constant is `floor' = 0.15, which merges levels that differ by less than 16 %. On generated trees 0.15 and
%% 0.20 give the same result, 0.10 creates groups from noise, and 0.25 misses levels that differ by a factor of 1.27.
-module(placement_mdl).

-export([cluster/1]).

-export_type([result/0]).

-type result() :: #{root := placement_tree:vertex(), slow := [{node(), Factor :: float()}], explained := float()}.
%% The tree with its labels, the nodes that are slower than their groups (slowest first), and the fraction of the variance
%% of the logarithms that the levels of the tree explain.

-define(FLOOR, 0.15).
-define(A0, 2.0).
%% The maximum number of passes that improve the estimates of missing pairs.
-define(REFINEMENTS, 4).
%% Logarithms are fixed-point integers here; 65536 means 1.0.
-define(UNIT, 65536).

-record(group, {parent :: none | pos_integer(),
                children :: [pos_integer()],        % group numbers
                leaves :: [pos_integer()],          % positions of nodes
                count :: pos_integer(),             % nodes below
                sizes = #{} :: #{pos_integer() => pos_integer()}, % number of nodes to the number of groups of that size among the children
                %% The times between its children, with outliers clipped.
                pairs = 0 :: non_neg_integer(), mean = 0.0 :: float(), squares = 0.0 :: float(),
                %% The same times without clipping, in units of 1/65536: sum, sum of squares,
                %% minimum, maximum.
                raw = none :: none | {integer(), integer(), integer(), integer()},
                %% The medians of the binary groups that were merged into this one, each with its
                %% number of pairs.
                medians = [] :: [{integer(), pos_integer()}],
                cost = 0.0 :: float()}).

%% @doc Returns the tree for a matrix of measured times.
-spec cluster(placement_matrix:matrix()) -> result().
cluster(Matrix) ->
    Names = list_to_tuple(placement_matrix:nodes(Matrix)),
    case tuple_size(Names) of
        1 -> #{root => {leaf, element(1, Names)}, slow => [], explained => 1.0};
        Count -> cluster(Matrix, Names, Count)
    end.

cluster(Matrix, Names, Count) ->
    Log = fun(Value) -> round(math:log(Value) * ?UNIT) end,
    Logs = placement_matrix:mapped(Log, Matrix),
    Full = case placement_matrix:gaps(Matrix) of
               0 -> Logs;
               _ -> refined(placement_matrix:mapped(Log, placement_matrix:filled(Matrix)), Logs, Count, ?REFINEMENTS)
           end,
    Binary = binary(Full, Logs, Count),
    Coarse = collapsed(Binary, Count, 0.5),
    Excess = excess(Coarse, Logs, Count),
    Slow = [{element(I, Names), math:exp(element(I, Excess) / ?UNIT)}
            || I <- lists:seq(1, Count), element(I, Excess) > ?FLOOR * ?UNIT],
    Fine = collapsed(without_excess(Slow, Excess, Binary, {Full, Logs}, Count), Count, 0.75),
    #{root => labelled(Fine, Names, Matrix, Logs), slow => lists:reverse(lists:keysort(2, Slow)), explained => explained(Fine)}.

refined(Full, _, _, 0) -> Full;
refined(Full, Logs, Count, Times) ->
    case placement_gaps:refined(linked(Full, Count), Full, Logs) of
        Full -> Full;
        Better -> refined(Better, Logs, Count, Times - 1)
    end.

%% If none of the nodes is slow, a correction would only add noise.
without_excess([], _, Binary, _, _) -> Binary;
without_excess(_, Excess, _, {Logs, Logs}, Count) -> Corrected = corrected(Logs, Excess), binary(Corrected, Corrected, Count);
without_excess(_, Excess, _, {Full, Logs}, Count) -> binary(corrected(Full, Excess), corrected(Logs, Excess), Count).

between([I | One], Other, Logs, Values) -> between(One, Other, Logs, of_row(Other, element(I, Logs), Values));
between([], _, _, Values) -> Values.

of_row([J | Other], Row, Values) ->
    case element(J, Row) of
        undefined -> of_row(Other, Row, Values);
        Value -> of_row(Other, Row, [Value | Values])
    end;
of_row([], _, Values) -> Values.

%% ---- the binary tree ----

%% Returns a map of groups; the root has number 1.
binary(Full, Logs, Count) ->
    {_, _, Groups, _} = groups(linked(Full, Count), none, #{}, 1, Logs),
    Groups.

linked(Full, Count) ->
    %% The values are shifted by 16 bits to reduce the rounding errors of averages.
    placement_linkage:link(average, list_to_tuple([list_to_tuple([Value bsl 16 || Value <- tuple_to_list(Row)]) || Row <- tuple_to_list(Full)]), Count).

groups({One, Other, _}, Parent, Groups, Number, Logs) ->
    {Kind1, Members1, Groups1, Next1} = groups(One, Number, Groups, Number + 1, Logs),
    {Kind2, Members2, Groups2, Next2} = groups(Other, Number, Groups1, Next1, Logs),
    Kinds = [Kind1, Kind2],
    Group = #group{parent = Parent, children = [N || {group, N} <- Kinds], leaves = [I || {leaf, I} <- Kinds], count = length(Members1) + length(Members2)},
    {{group, Number}, Members1 ++ Members2, Groups2#{Number => with_moments(between(Members1, Members2, Logs, []), Group)}, Next2};
groups(Leaf, _, Groups, Number, _) -> {{leaf, Leaf}, [Leaf], Groups, Number}.

with_moments([], Group) -> Group;
with_moments(Values, Group) ->
    {Pairs, RawSum, RawSquares, Least, Most} = Sums = placement_quantiles:sums(Values),
    [Low, Median, High] = placement_quantiles:quantiles([0.25, 0.5, 0.75], Values, Sums),
    {Sum, Squares} = clipped(Values, Median, 3 * max(High - Low, round(?FLOOR * ?UNIT)), Sums),
    Off = Sum / Pairs,
    Group#group{pairs = Pairs, raw = {RawSum, RawSquares, Least, Most}, medians = [{Median, Pairs}], mean = (Median + Off) / ?UNIT,
                squares = max(0.0, (Squares - Sum * Off) / ?UNIT / ?UNIT)}.

%% Returns the sum and the sum of squares of the differences from the median, each clipped to `Reach'.
clipped(_, Median, Reach, {Pairs, Sum, Squares, Least, Most}) when Median - Least =< Reach, Most - Median =< Reach ->
    {Sum - Pairs * Median, Squares - (2 * Sum - Pairs * Median) * Median};
clipped(Values, Median, Reach, _) ->
    lists:foldl(fun(Value, {Sum, Squares}) ->
                        Off = min(Reach, max(-Reach, Value - Median)),
                        {Sum + Off, Squares + Off * Off}
                end, {0, 0}, Values).

%% ---- the description ----

collapsed(Groups, Count, Power) ->
    All = maps:values(Groups),
    {Least, Most} = {lists:min([Low || #group{raw = {_, _, Low, _}} <- All]), lists:max([High || #group{raw = {_, _, _, High}} <- All])},
    Pairs = lists:sum([N || #group{pairs = N} <- All]),
    Weighing = #{power => Power, factorials => factorials(Count), range => max((Most - Least) / ?UNIT, ?FLOOR),
                 mean => lists:sum([N * Mean || #group{pairs = N, mean = Mean} <- All]) / Pairs},
    collapse(maps:map(fun(_, Group) -> with_cost(with_sizes(Group, Groups), Weighing) end, Groups), Weighing).

factorials(Count) ->
    {Logs, _} = lists:mapfoldl(fun(N, Sum) -> {Sum + math:log(N), Sum + math:log(N)} end, 0.0, lists:seq(1, Count)),
    list_to_tuple([0.0 | Logs]).

log_factorial(N, #{factorials := Factorials}) -> element(N + 1, Factorials).

with_sizes(#group{children = Children} = Group, Groups) ->
    Group#group{sizes = lists:foldl(fun(N, Sizes) -> added((maps:get(N, Groups))#group.count, 1, Sizes) end, #{}, Children)}.

added(Size, Times, Sizes) -> maps:update_with(Size, fun(Known) -> Known + Times end, Times, Sizes).

with_cost(Group, Weighing) -> Group#group{cost = times_cost(Group, Weighing) + names_cost(Group, Weighing)}.

%% Returns the logarithm of the number of partitions into sets of these sizes.
names_cost(#group{count = Count, leaves = Leaves, sizes = Sizes}, Weighing) ->
    maps:fold(fun(Size, Times, Cost) -> Cost - Times * log_factorial(Size, Weighing) - log_factorial(Times, Weighing) end,
              log_factorial(Count, Weighing) - log_factorial(length(Leaves), Weighing), Sizes).

times_cost(#group{pairs = 0}, _) -> 0.0;
times_cost(#group{pairs = Pairs, mean = Mean, squares = Squares}, #{power := Power, mean := Mean0, range := Range}) ->
    Weight = math:pow(Pairs, Power),
    K0 = ?FLOOR * ?FLOOR / (Range * Range),
    B0 = ?A0 * ?FLOOR * ?FLOOR,
    Kn = K0 + Weight,
    An = ?A0 + Weight / 2,
    Off = Mean - Mean0,
    Bn = B0 + Squares / Pairs * Weight / 2 + K0 * Weight * Off * Off / (2 * Kn),
    -(log_gamma(An) - log_gamma(?A0) + ?A0 * math:log(B0) - An * math:log(Bn)
      + math:log(K0 / Kn) / 2 - Weight / 2 * math:log(2 * math:pi())).

%% Uses Stirling's series for 8 and above, and the recurrence below that.
log_gamma(X) when X < 8 -> log_gamma(X + 1) - math:log(X);
log_gamma(X) ->
    Square = X * X,
    (X - 0.5) * math:log(X) - X + 0.5 * math:log(2 * math:pi())
        + (1 / 12 - (1 / 360 - 1 / 1260 / Square) / Square) / X.

collapse(Groups, Weighing) ->
    Edges = lists:sort([{Gain, Child} || {Child, #group{parent = Parent}} <- maps:to_list(Groups), Parent =/= none,
                                         {true, Gain, _} <- [gain(Child, Groups, Weighing)]]),
    case lists:foldl(fun({_, Child}, Acc) -> collapse_edge(Child, Acc, Weighing) end, Groups, Edges) of
        Groups -> Groups;
        Fewer -> collapse(Fewer, Weighing)
    end.

collapse_edge(Child, Groups, Weighing) ->
    case gain(Child, Groups, Weighing) of
        {true, _, Joined} ->
            #{Child := #group{parent = Parent, children = Children}} = Groups,
            Adopted = lists:foldl(fun(N, Acc) -> maps:update_with(N, fun(G) -> G#group{parent = Parent} end, Acc) end,
                                  maps:remove(Child, Groups), Children),
            Adopted#{Parent := Joined};
        false -> Groups
    end.

%% Groups are merged if that makes the whole description shorter, or if both are on the same level.
gain(Child, Groups, Weighing) ->
    #{Child := #group{parent = Parent, pairs = Pairs, mean = Low, cost = ChildCost} = Group} = Groups,
    #{Parent := #group{pairs = PairsAbove, mean = High, cost = ParentCost} = Above} = Groups,
    Joined = with_cost(joined(Child, Group, Above), Weighing),
    case Joined#group.cost - ChildCost - ParentCost of
        Gain when Gain < 0; High - Low < ?FLOOR; Pairs =:= 0; PairsAbove =:= 0 -> {true, Gain, Joined};
        _ -> false
    end.

joined(Number, #group{} = Child, #group{} = Above) ->
    Pairs = Child#group.pairs + Above#group.pairs,
    Divisor = max(1, Pairs),
    Apart = Child#group.mean - Above#group.mean,
    Above#group{children = Child#group.children ++ lists:delete(Number, Above#group.children),
                leaves = Child#group.leaves ++ Above#group.leaves,
                sizes = maps:fold(fun added/3, less(Child#group.count, Above#group.sizes), Child#group.sizes),
                pairs = Pairs, raw = joined(Child#group.raw, Above#group.raw), medians = Child#group.medians ++ Above#group.medians,
                mean = (Child#group.pairs * Child#group.mean + Above#group.pairs * Above#group.mean) / Divisor,
                squares = Child#group.squares + Above#group.squares
                    + Apart * Apart * Child#group.pairs * Above#group.pairs / Divisor}.

less(Size, Sizes) ->
    case Sizes of
        #{Size := 1} -> maps:remove(Size, Sizes);
        #{Size := Times} -> Sizes#{Size := Times - 1}
    end.

joined(none, Raw) -> Raw;
joined(Raw, none) -> Raw;
joined({Sum1, Squares1, Least1, Most1}, {Sum2, Squares2, Least2, Most2}) ->
    {Sum1 + Sum2, Squares1 + Squares2, min(Least1, Least2), max(Most1, Most2)}.

%% ---- slow nodes ----

%% Residuals are sorted into 512 steps of 1/128 around the group's median.
-define(STEPS, 512).
-define(STEP_BITS, 9).

%% Returns by how much each node's times exceed the medians of its groups (the median over the node's pairs, in units),
%% minus the median of this excess over all nodes.
excess(Groups, Logs, Count) ->
    Steps = counters:new(Count * ?STEPS, []),
    _ = tally_group(1, Groups, Logs, Steps),
    Medians = [median_step(Steps, (I - 1) * ?STEPS + 1, measured(element(I, Logs)) div 2, 0) bsl ?STEP_BITS || I <- lists:seq(1, Count)],
    Usual = placement_quantiles:median(Medians),
    list_to_tuple([max(0, Median - Usual) || Median <- Medians]).

%% The node itself counts as measured.
measured(Row) -> tuple_size(Row) - length([gap || undefined <- tuple_to_list(Row)]).

tally_group(Number, Groups, Logs, Steps) ->
    #{Number := #group{children = Children, leaves = Leaves, medians = Medians, pairs = Pairs}} = Groups,
    Lists = [tally_group(Child, Groups, Logs, Steps) || Child <- Children] ++ [[Leaf] || Leaf <- Leaves],
    Zero = weighted_median(lists:sort(Medians), Pairs div 2) - (?STEPS div 2 bsl ?STEP_BITS),
    ok = each_two(Lists, fun(One, Other) -> tally(One, Other, Zero, Logs, Steps) end),
    lists:append(Lists).

weighted_median([], _) -> 0;
weighted_median([{Median, Weight} | _], Half) when Weight >= Half -> Median;
weighted_median([{_, Weight} | Medians], Half) -> weighted_median(Medians, Half - Weight).

each_two([_], _) -> ok;
each_two([One | Others], Fun) ->
    ok = Fun(One, lists:append(Others)),
    each_two(Others, Fun).

tally([I | One], Other, Zero, Logs, Steps) ->
    ok = tally_row(Other, element(I, Logs), Zero, (I - 1) * ?STEPS + 1, Steps),
    tally(One, Other, Zero, Logs, Steps);
tally([], _, _, _, _) -> ok.

tally_row([J | Other], Row, Zero, Base, Steps) ->
    ok = tally_value(element(J, Row), J, Zero, Base, Steps),
    tally_row(Other, Row, Zero, Base, Steps);
tally_row([], _, _, _, _) -> ok.

tally_value(undefined, _, _, _, _) -> ok;
tally_value(Value, J, Zero, Base, Steps) ->
    Step = max(0, min(?STEPS - 1, (Value - Zero) bsr ?STEP_BITS)),
    ok = counters:add(Steps, Base + Step, 1),
    counters:add(Steps, (J - 1) * ?STEPS + 1 + Step, 1).

median_step(Steps, Index, Half, Step) ->
    case counters:get(Steps, Index + Step) of
        Few when Few < Half, Step < ?STEPS - 1 -> median_step(Steps, Index, Half - Few, Step + 1);
        _ -> Step
    end.

corrected(Logs, Excess) ->
    Over = tuple_to_list(Excess),
    list_to_tuple([list_to_tuple(lists:zipwith(fun(undefined, _) -> undefined; (Value, J) -> Value - max(I, J) end, tuple_to_list(Row), Over))
                   || {Row, I} <- lists:zip(tuple_to_list(Logs), Over)]).

explained(Groups) ->
    Raws = [{Pairs, Raw} || #group{pairs = Pairs, raw = Raw} <- maps:values(Groups), Pairs > 0],
    Within = lists:sum([Squares - Sum * Sum / Pairs || {Pairs, {Sum, Squares, _, _}} <- Raws]),
    {Sum, Squares, _, _} = lists:foldl(fun({_, Raw}, Acc) -> joined(Raw, Acc) end, {0, 0, 0, 0}, Raws),
    case Squares - Sum * Sum / lists:sum([Pairs || {Pairs, _} <- Raws]) of
        All when All =< ?UNIT -> 1.0;
        All -> max(0.0, min(1.0, 1 - Within / All))
    end.

%% Labels are computed from the measured values, including those of slow nodes.
labelled(Groups, Names, Matrix, Logs) ->
    {Vertex, _} = vertex(1, Groups, Names, placement_matrix:rows(Matrix), Logs),
    placement_labels:ordered(Vertex).

vertex(Number, Groups, Names, Rows, Logs) ->
    #{Number := #group{children = Children, leaves = Leaves}} = Groups,
    Below = [vertex(Child, Groups, Names, Rows, Logs) || Child <- Children],
    Lists = [Members || {_, Members} <- Below] ++ [[Leaf] || Leaf <- Leaves],
    Labels = case pairs_of(Lists, Logs) of
                 [] -> #{};
                 Values -> placement_labels:of_logs(Values, most(Lists, Rows, 0.0))
             end,
    {{group, cluster, Labels, [Vertex || {Vertex, _} <- Below] ++ [{leaf, element(Leaf, Names)} || Leaf <- Leaves]},
     lists:append(Lists)}.

pairs_of([_], _) -> [];
pairs_of([One | Others], Rows) -> between(One, lists:append(Others), Rows, pairs_of(Others, Rows)).

%% Returns the maximum over all pairs of members of different lists.
most([_], _, Most) -> Most;
most([One | Others], Rows, Most) ->
    Other = lists:append(Others),
    most(Others, Rows, lists:foldl(fun(I, Acc) -> most_of_row(Other, element(I, Rows), Acc) end, Most, One)).

most_of_row([J | Other], Row, Most) ->
    case element(J, Row) of
        Larger when is_float(Larger), Larger > Most -> most_of_row(Other, Row, Larger);
        _ -> most_of_row(Other, Row, Most)
    end;
most_of_row([], _, Most) -> Most.
