%% SPDX-License-Identifier: Apache-2.0
%% @doc Explains a choice: the result of each constraint on each node and, if too few nodes are suitable, the reasons.
-module(placement_explain).

-export([reports/2, why_not/2, conflict/2, to_text/1, conflict_text/1]).

-export_type([report/0, verdict/0, conflict/0]).

-type verdict() :: #{constraint := placement_pred:predicate(), kind := require | order, truth := placement_pred:truth(),
                     details := [{placement_pred:predicate(), placement_pred:truth(), Detail :: term()}]}.
-type report() :: #{node := node(), status := placement_cache:status(), suitable := boolean(), constraints := [verdict()]}.
-type conflict() :: #{wanted := pos_integer(), candidates := non_neg_integer(), feasible := non_neg_integer(),
                      alone := [{placement_pred:predicate(), Nodes :: non_neg_integer(), Unknown :: non_neg_integer()}],
                      together := [{placement_pred:predicate(), placement_pred:predicate(), non_neg_integer()}],
                      largest := [placement_pred:predicate()], contradictions := [{placement_pred:predicate(), placement_pred:predicate()}],
                      relaxations := [{placement_pred:predicate(), placement_pred:predicate(), non_neg_integer()}],
                      unreachable := [{node(), placement_cache:status()}], oldest_ms := non_neg_integer(), spread => spread()}.
%% `alone': how many nodes satisfy each constraint, and on how many its result is unknown. `together': pairs of
%% constraints that too few nodes satisfy together, although enough nodes satisfy each of the two. `largest': the largest
%% set of constraints that enough nodes satisfy together. `relaxations': a constraint, a weaker one that could replace it,
%% and the number of nodes that would then be suitable. `spread': enough nodes satisfy the constraints, but a hard spread
%% over their places does not allow enough of them.
-type spread() :: #{by := non_neg_integer() | {attribute, placement_entry:name()}, max_skew := pos_integer(), most := non_neg_integer(),
                    places := [{{value, term()} | {with, node()} | unknown, Nodes :: pos_integer()}]}.
%% `most': how many nodes the spread allows. `places': the places of the nodes that satisfy the constraints, each with the
%% number of these nodes.

-define(EXACT_MAX, 12).
-define(SHOWN_PLACES, 8).

%% @doc Evaluates all constraints of a plan on all nodes of a snapshot.
-spec reports(placement_query:plan(), placement_choose:snapshot()) -> [report()].
reports(#{require := Require, order := Order} = Plan, #{contexts := Contexts}) ->
    Parts = parts(Plan, Contexts),
    Absolute = [P || P <- placement_pred:conjuncts(Require), not placement_pred:is_relative(P)],
    Suitable = [Context || Context <- Contexts, placement_pred:are_true(Absolute, Context)],
    Thresholds = lists:foldl(fun(P, Acc) -> maps:merge(placement_pred:thresholds(P, Suitable), Acc) end, #{}, [Require | Order]),
    [report(Context#{thresholds => Thresholds}, Parts) || Context <- Contexts].

%% The tolerance of taints is reported only if a node has taints that the query does not tolerate.
parts(#{require := Require, tolerance := Tolerance, order := Order}, Contexts) ->
    [{require, P} || P <- placement_pred:conjuncts(Require)]
        ++ [{require, P} || P <- Tolerance, [C || #{view := #{status := ok}} = C <- Contexts, placement_pred:evaluate(P, C) =/= true] =/= []]
        ++ [{order, P} || P <- Order].

report(#{node := Node, view := #{status := Status}} = Context, Parts) ->
    Constraints = [#{constraint => placement_pred:source(P), kind => Kind, truth => placement_pred:evaluate(P, Context), details => placement_pred:account(P, Context)}
                   || {Kind, P} <- Parts],
    #{node => Node, status => Status, constraints => Constraints,
      suitable => Status =:= ok andalso [] =:= [C || #{kind := require, truth := Truth} = C <- Constraints, Truth =/= true]}.

%% @doc Returns every constraint that keeps a node from being chosen. The optional ones, from `order', come last.
-spec why_not(node(), [report()]) -> [verdict()].
why_not(Node, Reports) -> [Constraint || #{node := N, constraints := All} <- Reports, N =:= Node, #{truth := Truth} = Constraint <- All, Truth =/= true].

%% @doc Explains why too few nodes are suitable.
-spec conflict(placement_query:plan(), placement_choose:snapshot()) -> conflict().
conflict(#{require := Require, min := Min, on_conflict := OnConflict} = Plan, #{contexts := Contexts} = Snapshot) ->
    Reports = reports(Plan, Snapshot),
    Counted = [[{C, Truth} || #{constraint := C, truth := Truth, kind := Kind} <- All, Kind =:= require orelse OnConflict =:= error] || #{constraints := All} <- Reports],
    Parts = [C || {C, _} <- hd(Counted)],
    Answering = [{mask(Truths), Report} || {Truths, #{status := Status} = Report} <- lists:zip(Counted, Reports), Status =:= ok orelse Status =:= unasked],
    Masks = [Mask || {Mask, _} <- Answering],
    Indexed = lists:enumerate(0, Parts),
    Largest = largest(length(Parts), Masks, Min),
    #{wanted => Min, candidates => length(Contexts), feasible => holding(1 bsl length(Parts) - 1, Masks),
      alone => [{P, holding(1 bsl I, Masks), unknowns(P, Counted)} || {I, P} <- Indexed],
      together => [{P, Q, Count} || {I, P} <- Indexed, {J, Q} <- Indexed, I < J, holding(1 bsl I, Masks) >= Min, holding(1 bsl J, Masks) >= Min,
                                    Count <- [holding((1 bsl I) bor (1 bsl J), Masks)], Count < Min],
      largest => [P || {I, P} <- Indexed, Largest band (1 bsl I) =/= 0],
      contradictions => placement_pred:contradictions(Require),
      relaxations => relaxations(Indexed, Answering, Min),
      unreachable => [{Node, Status} || #{node := Node, status := Status} <- Reports, Status =/= ok, Status =/= unasked],
      oldest_ms => lists:max([0 | [Age || #{constraints := All} <- Reports, #{details := Details} <- All, {_, _, {value, _, Age}} <- Details]])}.

%% Returns a bit mask of the constraints that are true, in which the lowest bit is the first
%% constraint.
mask(Truths) -> lists:sum([1 bsl I || {I, {_, true}} <- lists:enumerate(0, Truths)]).

holding(Bits, Masks) -> length([Mask || Mask <- Masks, Mask band Bits =:= Bits]).

unknowns(P, Counted) -> length([C || Truths <- Counted, {C, unknown} <- Truths, C =:= P]).

%% The result is exact for up to 12 constraints. With more, it is the largest set of constraints that any single node
%% satisfies.
largest(Count, Masks, Min) when Count =< ?EXACT_MAX ->
    {_, Best} = lists:max([{bits(Set), Set} || Set <- lists:seq(0, 1 bsl Count - 1), Set =:= 0 orelse holding(Set, Masks) >= Min]),
    Best;
largest(_, Masks, _) ->
    {_, Best} = lists:max([{bits(Mask), Mask} || Mask <- [0 | Masks]]),
    Best.

bits(0) -> 0;
bits(N) -> (N band 1) + bits(N bsr 1).

%% For each comparison of numbers, returns two changes to its constant: the smallest that makes one more node suitable, and
%% the smallest that makes enough nodes suitable, if all other constraints stay the same.
relaxations(Indexed, Answering, Min) ->
    All = 1 bsl length(Indexed) - 1,
    lists:append([relaxed(P, [Value || {Mask, #{constraints := Constraints}} <- Answering, Mask bor (1 bsl I) =:= All,
                                       #{constraint := C, details := [{_, _, {value, Value, _}}]} <- Constraints, C =:= P, is_number(Value)], Min)
                  || {I, P} <- Indexed]).

relaxed({Name, Op, Constant}, [_ | _] = Values, Min) when is_number(Constant), Op =:= lt orelse Op =:= le orelse Op =:= gt orelse Op =:= ge ->
    Ordered = case Op =:= lt orelse Op =:= le of true -> lists:sort(Values); false -> lists:reverse(lists:sort(Values)) end,
    Weaker = case Op of lt -> le; gt -> ge; _ -> Op end,
    [{{Name, Op, Constant}, {Name, Weaker, Bound}, length([Value || Value <- Values, holds(Weaker, Value, Bound)])}
     || Bound <- bounds([Value || Value <- Ordered, not holds(Op, Value, Constant)], Ordered, Min)];
relaxed(_, _, _) -> [].

bounds([], _, _) -> [];
bounds([Next | _] = Failing, Ordered, Min) when length(Ordered) >= Min ->
    case lists:nth(Min, Ordered) of
        Next -> [Next];
        Enough -> [Next | [Enough || lists:member(Enough, Failing)]]
    end;
bounds([Next | _], _, _) -> [Next].

holds(lt, Value, Bound) -> Value < Bound;
holds(le, Value, Bound) -> Value =< Bound;
holds(gt, Value, Bound) -> Value > Bound;
holds(ge, Value, Bound) -> Value >= Bound.

%% @doc Formats reports as text, one paragraph per node.
-spec to_text([report()]) -> unicode:chardata().
to_text(Reports) -> [report_text(Report) || Report <- Reports].

report_text(#{node := Node, status := ok, suitable := true} = Report) -> [io_lib:format("~ts: suitable~n", [Node]), failing(Report)];
report_text(#{node := Node, status := ok} = Report) -> [io_lib:format("~ts: not suitable~n", [Node]), failing(Report)];
report_text(#{node := Node, status := Status} = Report) -> [io_lib:format("~ts: ~ts~n", [Node, status_text(Status)]), failing(Report)].

status_text(nodedown) -> "cannot be reached";
status_text(no_server) -> "does not run placement";
status_text(timeout) -> "did not answer in time";
status_text(unasked) -> "was not asked";
status_text(ok) -> "answered".

failing(#{constraints := Constraints}) ->
    [io_lib:format("  ~ts~ts: ~ts~n", [case Kind of order -> "(may give way) "; require -> "" end, predicate_text(P), details_text(Truth, Details)])
     || #{constraint := P, kind := Kind, truth := Truth, details := Details} <- Constraints, Truth =/= true].

details_text(Truth, [{_, _, Detail}]) -> [truth_text(Truth), ", ", detail_text(Detail)];
details_text(Truth, Details) -> [truth_text(Truth), ", ", lists:join("; ", [[predicate_text(P), " is ", atom_to_list(T), ", ", detail_text(D)] || {P, T, D} <- Details])].

truth_text(false) -> "no";
truth_text(unknown) -> "unknown";
truth_text(true) -> "yes".

detail_text({value, Value, Age}) when Age < 1000 -> io_lib:format("it is ~0tP", [Value, 12]);
detail_text({value, Value, Age}) -> io_lib:format("it is ~0tP (~.1f s ago)", [Value, 12, Age / 1000]);
detail_text({unknown, missing}) -> "there is no such attribute";
detail_text({unknown, not_in_tree}) -> "the topology does not hold both nodes";
detail_text({unknown, not_measured}) -> "it was not measured";
detail_text({unknown, no_such_group}) -> "this node is not in that group";
detail_text({unknown, {too_old, Age}}) -> io_lib:format("its value is ~b ms old", [Age]);
detail_text({unknown, Status}) when Status =:= nodedown; Status =:= no_server; Status =:= timeout -> ["the node ", status_text(Status)];
detail_text({unknown, Reason}) -> io_lib:format("its function failed: ~0tP", [Reason, 12]);
detail_text({runs_on, []}) -> "it runs nowhere";
detail_text({runs_on, Hosts}) -> ["it runs on ", lists:join(", ", [atom_to_list(Host) || Host <- Hosts])];
detail_text({level, Rank, Levels}) -> io_lib:format("it is ~b of ~b levels away", [Rank, Levels]);
detail_text({distance, Distance}) -> io_lib:format("the distance is ~w", [Distance]);
detail_text({latency_us, Us}) -> io_lib:format("a round trip takes ~w us", [Us]);
detail_text(Other) -> io_lib:format("~0tP", [Other, 12]).

-spec predicate_text(placement_pred:predicate()) -> unicode:chardata().
predicate_text({Name, Op, Constant}) when Op =:= eq; Op =:= ne; Op =:= lt; Op =:= le; Op =:= gt; Op =:= ge ->
    Sign = maps:get(Op, #{eq => "=", ne => "/=", lt => "<", le => "=<", gt => ">", ge => ">="}),
    io_lib:format("~tp ~ts ~ts", [Name, Sign, constant_text(Constant)]);
predicate_text({affinity, What, near}) -> io_lib:format("near to ~0tp", [What]);
predicate_text({affinity, What, apart}) -> io_lib:format("apart from ~0tp", [What]);
predicate_text({tolerates, []}) -> "no taints";
predicate_text({tolerates, Taints}) -> io_lib:format("no taints but ~0tp", [Taints]);
predicate_text({'not', P}) -> ["not (", predicate_text(P), ")"];
predicate_text({Word, [_ | _] = List}) when Word =:= 'and'; Word =:= 'or' -> ["(", lists:join([" ", atom_to_list(Word), " "], [predicate_text(P) || P <- List]), ")"];
predicate_text({Name, Word}) when is_atom(Name), is_atom(Word) -> io_lib:format("~tp is ~tp", [Name, Word]);
predicate_text([_ | _] = List) -> predicate_text({'and', List});
predicate_text(P) -> io_lib:format("~0tP", [P, 15]).

constant_text({Number, Unit}) when is_number(Number), is_atom(Unit) -> io_lib:format("~w ~ts", [Number, Unit]);
constant_text(Constant) -> io_lib:format("~0tP", [Constant, 12]).

%% @doc Formats a conflict as text.
-spec conflict_text(conflict()) -> unicode:chardata().
conflict_text(#{wanted := Wanted, candidates := Candidates, feasible := Feasible, alone := Alone, together := Together, relaxations := Relaxations,
                contradictions := Contradictions, unreachable := Unreachable} = Conflict) ->
    [io_lib:format("~b of ~b nodes fulfil the query; wanted: ~b~n", [Feasible, Candidates, Wanted]),
     [io_lib:format("  ~ts: ~b nodes~ts~n", [predicate_text(P), Count, case Unknown of 0 -> ""; _ -> io_lib:format(", unknown on ~b", [Unknown]) end])
      || {P, Count, Unknown} <- Alone],
     [io_lib:format("  ~ts and ~ts together: ~b nodes~n", [predicate_text(P), predicate_text(Q), Count]) || {P, Q, Count} <- Together],
     [io_lib:format("  ~ts and ~ts contradict each other~n", [predicate_text(P), predicate_text(Q)]) || {P, Q} <- Contradictions],
     [io_lib:format("  with ~ts instead of ~ts: ~b nodes~n", [predicate_text(New), predicate_text(Old), Count]) || {Old, New, Count} <- Relaxations],
     [io_lib:format("  ~ts ~ts~n", [Node, status_text(Status)]) || {Node, Status} <- Unreachable],
     [spread_text(Spread) || #{spread := Spread} <- [Conflict]]].

spread_text(#{by := By, max_skew := MaxSkew, most := Most, places := Places}) ->
    io_lib:format("  the hard spread over ~ts (at most ~b more than in the least used place) allows ~b nodes; suitable nodes per place: ~ts~ts~n",
                  [case By of {attribute, Name} -> atom_to_list(Name); Level -> io_lib:format("level ~b", [Level]) end, MaxSkew, Most,
                   lists:join(", ", [io_lib:format("~ts ~b", [place_text(Place), Count]) || {Place, Count} <- lists:sublist(Places, ?SHOWN_PLACES)]),
                   case length(Places) > ?SHOWN_PLACES of true -> ", ..."; false -> "" end]).

place_text({value, Value}) -> io_lib:format("~0tP", [Value, 12]);
place_text({with, Node}) -> ["that of ", atom_to_list(Node)];
place_text(unknown) -> "unknown".
