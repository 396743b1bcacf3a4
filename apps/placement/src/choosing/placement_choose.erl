%% SPDX-License-Identifier: Apache-2.0
%% @doc Chooses nodes: collects the values that a query needs, filters the nodes, drops optional constraints if too few
%% nodes are suitable, and picks nodes from the remaining ones according to a policy.
%%
%% Called by {@link placement}. A choice is based on one snapshot: the answers of the nodes and the tree of one epoch.
%% All nodes are asked in parallel. At its deadline the choice uses the answers that have arrived by then. Nodes that did
%% not answer count as unknown, not as unsuitable.
-module(placement_choose).

-export([choose/2, ranked/2, ranked/3, with_plan/3, placed/2, snapshot/2, feasible/2, candidates/1]).

-export_type([nodes_spec/0, meta/0, snapshot/0, error/0]).

-type nodes_spec() :: [node()] | all | {group, term()} | {level, Level :: non_neg_integer(), From :: node()}.
%% `all': this node and all connected nodes, including hidden ones. `{level, L, From}': the nodes that share `L' levels
%% of the tree with the node `From'.
-type snapshot() :: #{contexts := [placement_pred:context()], running => #{node() => number()}, tree := placement_tree:tree() | none, epoch := non_neg_integer(), end_ms := integer()}.
-type meta() :: #{epoch := non_neg_integer(), policy := placement_policy:policy(), candidates := non_neg_integer(), feasible := non_neg_integer(),
                  dropped := [placement_pred:predicate()], unreachable := [{node(), placement_cache:status()}], answered := non_neg_integer(),
                  oldest_ms := non_neg_integer(), took_us := non_neg_integer()}.
%% `dropped': the parts of the query's `order' that were dropped. `oldest_ms': the age of the oldest value that was
%% used.
-type error() :: {bad_query, Text :: string()} | {bad_nodes, Text :: string()} | {unsatisfied, placement_explain:conflict()}.

-define(LIVE_ROUNDS, 3).

%% @doc Chooses nodes for a query.
-spec choose(nodes_spec(), placement_query:query()) -> {ok, [node(), ...], meta()} | {error, error()}.
choose(Nodes, Query) -> with_plan(Nodes, Query, fun(Plan, Found, Began) -> decided(Plan, snapshot(Found, Plan), Began) end).

%% @doc Returns up to `Count' nodes in the order in which they should be tried, for {@link placement:spawn/2}. A caller
%% that starts a process on one of them must call {@link placed/2}.
-spec ranked(nodes_spec(), {placement_query:query(), Count :: pos_integer()}) -> {ok, [node(), ...], placement_query:plan()} | {error, error()}.
ranked(Nodes, Wanted) -> ranked(Nodes, Wanted, #{}).

%% @doc Like {@link ranked/2}, for a process that may already be running. `without': the process's node is evaluated as
%% if the process, and the processes that it has started, were not running. `among': nodes that are not candidates, but
%% whose processes count if the query asks for a node near something. The other keys override those of the query.
-spec ranked(nodes_spec(), {placement_query:query(), Count :: pos_integer()},
             #{without => pid(), among => [node()], max_age => non_neg_integer(), policy => placement_policy:policy(), prefer => [], spread => none}) ->
          {ok, [node(), ...], placement_query:plan()} | {error, error()}.
ranked(Nodes, {Query, Count}, Running) ->
    with_plan(Nodes, Query, fun(Plan, Found, _) ->
        %% The caller needs only one node, whatever the query's `n' is, so the attributes in `prefer' are needed.
        One = maps:merge(Plan#{n := 1, min := 1}, Running),
        Snapshot = snapshot(Found, One),
        case feasible(One, Snapshot) of
            {ok, Feasible, _} ->
                case taken(One#{n := Count}, Feasible, Snapshot) of
                    [] -> {error, {unsatisfied, why_none(One, Snapshot)}};
                    Taken -> {ok, Taken, One}
                end;
            {error, _} = Error -> Error
        end
    end).

%% @doc Calls the function with the plan of a query, the candidates, and the time in microseconds.
-spec with_plan(nodes_spec(), placement_query:query(), fun((placement_query:plan(), [node(), ...], Us :: integer()) -> Result)) -> Result | {error, error()}.
with_plan(Spec, Query, Fun) ->
    Began = erlang:monotonic_time(microsecond),
    case placement_query:compile(Query) of
        {error, Text} -> {error, {bad_query, unicode:characters_to_list(Text)}};
        {ok, Plan} ->
            case candidates(Spec) of
                {ok, []} -> {error, {bad_nodes, "the list of nodes is empty"}};
                {ok, Nodes} -> Fun(Plan, Nodes, Began);
                {error, Text} -> {error, {bad_nodes, Text}}
            end
    end.

%% @doc Returns the nodes that a specification stands for, without duplicates.
-spec candidates(nodes_spec()) -> {ok, [node()]} | {error, Text :: string()}.
candidates(all) -> {ok, [node() | nodes(connected)]};
candidates({group, Group}) ->
    case placement_group:members(Group) of
        {ok, Nodes} -> {ok, Nodes};
        {error, no_such_group} -> {error, text("this node is in no group ~0tP", [Group, 10])}
    end;
candidates({level, Level, From}) when is_integer(Level), Level >= 0 ->
    case placement_topology:tree() of
        none -> {error, "there is no topology (placement:set_topology/1)"};
        Tree ->
            case placement_tree:disc(Tree, From, math:pow(2, -Level)) of
                {ok, Nodes} -> {ok, Nodes};
                unknown -> {error, text("the topology does not hold ~0tp", [From])}
            end
    end;
candidates(Nodes) ->
    try {ok, placement_query:distinct(Nodes)}
    catch
        error:{bad_nodes, Text} -> {error, Text};
        error:_ -> {error, text("~0tP: expected a list of nodes, all, {group, Name} or {level, Level, Node}", [Nodes, 12])}
    end.

text(Format, Arguments) -> lists:flatten(io_lib:format(Format, Arguments)).

%% @doc Requests the attributes that the plan needs from the nodes.
-spec snapshot([node()], placement_query:plan()) -> snapshot().
snapshot(Nodes, #{from := From, deadline := Deadline} = Plan) ->
    End = erlang:monotonic_time(millisecond) + Deadline,
    Views = fetched(Nodes ++ neighbours(Plan), first_names(Plan), maps:with([max_age, deadline], Plan), Plan),
    {Epoch, Tree} = placement_topology:current(),
    Groups = maps:from_list([{Group, Members} || Group <- groups(Plan), {ok, Members} <- [placement_group:members(Group)]]),
    Affine = maps:from_list([{What, Hosts} || P <- predicates(Plan), What <- placement_pred:affinities(P), {ok, Hosts} <- [hosts(What, Views, Plan)]]),
    Contexts = [#{node => Node, view => maps:get(Node, Views), from => From, tree => Tree, groups => Groups, affine => Affine} || Node <- Nodes],
    #{contexts => Contexts, running => running(Plan, Views), tree => Tree, epoch => Epoch, end_ms => End}.

predicates(#{require := Require, order := Order, prefer := Prefer}) -> [Require | Order] ++ [P || {_, truth, P} <- Prefer].

groups(Plan) -> lists:append([placement_pred:groups(P) || P <- predicates(Plan)]).

%% Returns the nodes that may run a process that the query asks to be near. These nodes need not be
%% candidates themselves.
neighbours(#{among := Among} = Plan) ->
    case lists:append([placement_pred:neighbours(P) || P <- predicates(Plan)]) of
        [] -> [];
        _ -> Among
    end;
neighbours(_) -> [].

fetched(Nodes, Names, Options, Plan) ->
    Views = placement_cache:fetch(Nodes, Names, Options),
    case {Plan, Views} of
        {#{without := Pid}, #{node() := #{attributes := Known} = View}} ->
            Views#{node() := View#{attributes := maps:map(fun(Name, Value) -> without(placement_attr:without(Name, Pid), Value) end, Known)}};
        _ -> Views
    end.

without(same, Known) -> Known;
without({ok, Value, Age, Unit, _, Tolerance}, _) -> {ok, Value, Age, Unit, Tolerance};
without({unknown, _} = Unknown, _) -> Unknown.

%% Returns the nodes on which processes of a group run, or, for the name of an attribute, the nodes on which the attribute
%% is `true' or above 0.
hosts(Name, Views, _) when is_atom(Name) -> {ok, [Node || {Node, _} <- counted_by(Name, Views)]};
hosts(Group, _, Plan) ->
    case nodes_of_group(Group, Plan) of
        {ok, Nodes} -> {ok, lists:usort(Nodes)};
        {error, no_such_group} = Error -> Error
    end.

counted_by(Name, Views) ->
    [{Node, case Value of true -> 1; _ -> Value end} || {Node, #{attributes := #{Name := {ok, Value, _, _, _}}}} <- maps:to_list(Views),
                                                        Value =:= true orelse is_number(Value) andalso Value > 0].

%% Returns the node of each process of a group.
nodes_of_group({group, Group}, Plan) ->
    case placement_group:members(Group) of
        {ok, _} -> {ok, nodes_of_pids([Pid || Name <- placement_group:names(Group), Pid <- [placement_group:whereis_name(Group, Name)], is_pid(Pid)], Plan)};
        {error, no_such_group} = Error -> Error
    end;
nodes_of_group({pg, Scope, Group}, Plan) ->
    case whereis(Scope) of
        undefined -> {error, no_such_group};
        _ -> {ok, nodes_of_pids(pg:get_members(Scope, Group), Plan)}
    end.

nodes_of_pids(Pids, #{without := Without}) -> [node(Pid) || Pid <- Pids, not placement_family:is_in(Pid, Without)];
nodes_of_pids(Pids, _) -> [node(Pid) || Pid <- Pids].

%% Returns how many of the processes that the spread counts are already running on each node.
running(#{spread := none}, _) -> #{};
running(#{count := {children, Scope}} = Plan, Views) ->
    Counts = placement_child:count(Scope, maps:keys(Views)),
    %% A child that is being moved does not count on its current node.
    case Plan of
        #{without := Pid} ->
            case [x || {#{scope := {Of, _, _, _}}, _, Its} <- placement_child:known(), Its =:= Pid, Of =:= Scope] of
                [_] when is_map_key(node(Pid), Counts) -> maps:update_with(node(Pid), fun(Count) -> Count - 1 end, Counts);
                _ -> Counts
            end;
        #{} -> Counts
    end;
running(#{count := Name}, Views) when is_atom(Name) -> maps:from_list(counted_by(Name, Views));
running(#{count := Group} = Plan, _) ->
    case nodes_of_group(Group, Plan) of
        {ok, Nodes} -> lists:foldl(fun counted/2, #{}, Nodes);
        {error, no_such_group} -> #{}
    end;
running(_, _) -> #{}.

%% Attributes that only rank suitable nodes are requested later, and only from the drawn nodes. If no node gets a later
%% request, each node must answer at least one request now, because a node that is down must not be chosen.
first_names(Plan) ->
    case {is_asked_later(Plan), placement_query:names(Plan#{n := all}), placement_query:names(Plan)} of
        %% The answers of all nodes are needed to decide whether a node is near something.
        {true, Names, _} -> Names ++ [Name || {_, truth, P} <- maps:get(prefer, Plan), Name <- placement_pred:affinities(P), is_atom(Name)];
        {false, _, []} -> [otp_release];
        {false, _, Names} -> Names
    end.

is_asked_later(#{n := all}) -> false;
is_asked_later(#{policy := Policy}) -> placement_policy:is_live(Policy).

%%% Filter

%% @doc Returns the suitable nodes, and the predicates in the query's `order' that had to be dropped.
-spec feasible(placement_query:plan(), snapshot()) ->
          {ok, [placement_pred:context()], Dropped :: [placement_pred:predicate()]} | {error, {unsatisfied, placement_explain:conflict()}}.
feasible(#{require := Require, tolerance := Tolerance, order := Order, min := Min, on_conflict := OnConflict} = Plan, #{contexts := Contexts} = Snapshot) ->
    Suitable = fulfilling(Require, [Context || #{view := #{status := Status}} = Context <- Contexts, Status =:= ok orelse is_asked_later(Plan),
                                               placement_pred:are_true(Tolerance, Context)]),
    Steps = lists:reverse(steps(Order, [{Suitable, Order}])),
    Enough = [Step || {Nodes, _} = Step <- Steps, length(Nodes) >= Min],
    case {Enough, OnConflict} of
        {[{Nodes, []} | _], _} -> {ok, Nodes, []};
        {[{Nodes, Left} | _], relax} -> {ok, Nodes, [placement_pred:source(P) || P <- Left]};
        _ -> {error, {unsatisfied, placement_explain:conflict(Plan, Snapshot)}}
    end.

%% Each step holds the remaining nodes and the predicates of `order' that are still to be applied,
%% and applies one predicate more than the step before it.
steps([], Steps) -> lists:reverse(Steps);
steps([P | Rest], [{Nodes, _} | _] = Steps) -> steps(Rest, [{fulfilling(P, Nodes), Rest} | Steps]).

%% Keywords such as `low' compare the nodes that satisfy all other predicates.
fulfilling(Compiled, Contexts) ->
    {Relative, Absolute} = lists:partition(fun placement_pred:is_relative/1, placement_pred:conjuncts(Compiled)),
    Candidates = [Context || Context <- Contexts, placement_pred:are_true(Absolute, Context)],
    case Relative of
        [] -> Candidates;
        _ ->
            Thresholds = placement_pred:thresholds(Compiled, Candidates),
            [Context || Context <- Candidates, placement_pred:are_true(Relative, Context#{thresholds => Thresholds})]
    end.

%%% Picking

decided(#{policy := Policy} = Plan, #{contexts := Contexts, epoch := Epoch} = Snapshot, Began) ->
    case feasible(Plan, Snapshot) of
        {ok, Feasible, Dropped} ->
            case taken(Plan, Feasible, Snapshot) of
                [] -> {error, {unsatisfied, why_none(Plan, Snapshot)}};
                Nodes ->
                    ok = placed(Nodes, Plan),
                    Unreachable = [{Node, Status} || #{node := Node, view := #{status := Status}} <- Contexts, Status =/= ok, Status =/= unasked],
                    {ok, Nodes, #{epoch => Epoch, policy => Policy, candidates => length(Contexts), feasible => length(Feasible), dropped => Dropped,
                                  unreachable => Unreachable, answered => length([C || #{view := #{status := ok}} = C <- Contexts]), oldest_ms => oldest(Feasible),
                                  took_us => erlang:monotonic_time(microsecond) - Began}}
            end;
        {error, _} = Error -> Error
    end.

%% The first request may have left the values of the drawn nodes unknown, so all nodes are asked now.
why_none(Plan, #{contexts := Contexts}) ->
    Snapshot = snapshot(nodes_of(Contexts), Plan#{n := all}),
    maps:merge(placement_explain:conflict(Plan, Snapshot), too_narrow(Plan, Snapshot)).

%% Explains the case in which there are enough suitable nodes, but a hard spread does not allow that many to be chosen.
too_narrow(#{spread := {By, MaxSkew, hard}, n := Count} = Plan, Snapshot) ->
    case feasible(Plan, Snapshot) of
        {ok, Feasible, _} ->
            Places = places(Plan#{n := length(Feasible)}, Feasible, Snapshot),
            Most = length(spread(Plan#{n := case Count of all -> length(Feasible); _ -> Count end}, nodes_of(Feasible), place_of(Places, []), in_places(Plan, Snapshot))),
            #{spread => #{by => By, max_skew => MaxSkew, most => Most, places => [{named(Place, There), length(There)} || {Place, _, There} <- Places]}};
        {error, _} -> #{}
    end;
too_narrow(_, _) -> #{}.

named({way, _}, [#{node := Node} | _]) -> {with, Node};
named(Place, _) -> Place.

oldest(Contexts) -> lists:max([0 | [Age || #{view := #{attributes := Attributes}} <- Contexts, {ok, _, Age, _, _} <- maps:values(Attributes)]]).

taken(#{n := all, spread := none}, Feasible, _) -> nodes_of(Feasible);
%% With `n => all' the attributes in `prefer' were not requested, so if a spread does not allow all nodes, they are
%% picked at random.
taken(#{n := all} = Plan, Feasible, Snapshot) -> taken(Plan#{n := length(Feasible), policy := random, prefer := []}, Feasible, Snapshot);
taken(#{policy := {module, Module}, n := Count, source := Query} = Plan, Feasible, _) -> enough(Module:select(scored(Plan, Feasible), Count, Query), Plan);
taken(Plan, Feasible, Snapshot) ->
    Places = places(Plan, Feasible, Snapshot),
    Before = in_places(Plan, Snapshot),
    Open = open_places(Plan, Places, Before),
    case {taken(Open, Places, Before, Plan, Snapshot), Plan} of
        %% A soft spread gives way if the open places have no suitable node.
        {[], #{spread := {_, _, soft}}} when Open =/= Places -> taken(Places, Places, Before, Plan, Snapshot);
        {Taken, _} -> Taken
    end.

%% Picks nodes only from the open places, but the spread counts all places.
taken(Open, Places, Before, #{policy := Policy} = Plan, Snapshot) ->
    Spread = fun(Nodes, Unfit) -> spread(Plan, Nodes, place_of(Places, Unfit), Before) end,
    {Drawn, Unfit} = case placement_policy:is_live(Policy) of
                         true -> live(Plan, Open, Snapshot, Spread, ?LIVE_ROUNDS, {[], []});
                         false -> {charged(drawn(Plan, Open), Plan), []}
                     end,
    {Best, _} = placement_policy:best(Policy, scored(Plan, Drawn), length(Drawn), seed()),
    enough(Spread(Best, Unfit), Plan).

enough(Chosen, #{n := Count, min := Min}) ->
    case length(Chosen) >= min(Min, Count) of
        true -> Chosen;
        false -> []
    end.

seed() -> rand:seed_s(exsss).

%% Draws some of the places, if there are many, and as many nodes from each as the spread may need.
drawn(#{policy := Policy, n := Count}, Places) ->
    {Chosen, _} = placement_policy:draw(Policy, Places, Count, seed()),
    lists:append([element(1, placement_policy:draw(Policy, Contexts, Wanted, seed())) || {_, Wanted, Contexts} <- Chosen]).

%% Draws nodes and requests their current attributes, and draws others if some are no longer
%% suitable. Returns the nodes that are suitable, and those that are not.
live(_, [], _, _, _, Found) -> Found;
live(_, _, _, _, 0, Found) -> Found;
live(#{n := Count} = Plan, Places, #{end_ms := End} = Snapshot, Spread, Rounds, {Before, UnfitBefore}) ->
    Drawn = drawn(Plan, Places),
    Left = max(10, End - erlang:monotonic_time(millisecond)),
    Views = fetched(nodes_of(Drawn), placement_query:names(Plan), #{live => true, deadline => Left}, Plan),
    {Suitable, Others} = lists:partition(fun(#{view := #{status := Status}} = Context) -> Status =:= ok andalso is_still(Plan, Context) end,
                                         [renewed(Context, maps:get(Node, Views), Plan) || #{node := Node} = Context <- Drawn]),
    {Found, Unfit} = {Before ++ Suitable, UnfitBefore ++ nodes_of(Others)},
    Fit = maps:from_keys(nodes_of(Suitable), true),
    Open = [{length(Undrawn) < length(Contexts), {Place, Missing, Undrawn}}
            || {Place, Wanted, Contexts} <- Places, Missing <- [Wanted - length([x || #{node := Node} <- Contexts, is_map_key(Node, Fit)])], Missing > 0,
               [_ | _] = Undrawn <- [[Context || #{node := Node} = Context <- Contexts, not is_map_key(Node, Views)]]],
    %% Every place that was drawn must provide its full share, because otherwise the spread would be as uneven as the draw.
    case not lists:keymember(true, 1, Open) andalso length(Spread(nodes_of(Found), Unfit)) >= Count of
        true -> {Found, Unfit};
        false -> live(Plan, [Place || {_, Place} <- Open], Snapshot, Spread, Rounds - 1, {Found, Unfit})
    end.

%% The new answer of a node also contains what is running there now, so that information is updated as well.
renewed(#{node := Node, affine := Affine} = Context, View, Plan) ->
    Context#{view := View, affine := maps:map(fun(Name, Hosts) when is_atom(Name) ->
                                                      {ok, Now} = hosts(Name, #{Node => View}, Plan),
                                                      Now ++ lists:delete(Node, Hosts);
                                                 (_, Hosts) -> Hosts
                                              end, Affine)}.

nodes_of(Contexts) -> [Node || #{node := Node} <- Contexts].

%% Predicates that compare nodes with each other are not evaluated again; all others must still be true.
is_still(#{require := Require, tolerance := Tolerance}, Context) ->
    placement_pred:are_true(Tolerance ++ [P || P <- placement_pred:conjuncts(Require), not placement_pred:is_relative(P)], Context).

scored(#{prefer := Prefer}, Contexts) ->
    Scores = placement_policy:scores([term_values(Term, Contexts) || Term <- Prefer]),
    case Scores of
        [] -> [{Node, 0.0} || Node <- nodes_of(Contexts)];
        _ -> lists:zip(nodes_of(Contexts), Scores)
    end.

term_values({Weight, truth, P}, Contexts) ->
    Thresholds = placement_pred:thresholds(P, Contexts),
    {Weight, truth, 0, [case placement_pred:evaluate(P, Context#{thresholds => Thresholds}) of true -> 1; _ -> 0 end || Context <- Contexts]};
term_values({Weight, {score, M, F}, Names}, Contexts) ->
    {Weight, max, 0, [score(M, F, Node, maps:from_list([{Name, Value} || {Name, {ok, Value, _, _, _}} <- maps:to_list(maps:with(Names, Attributes))]))
                      || #{node := Node, view := #{attributes := Attributes}} <- Contexts]};
term_values({Weight, Way, Name}, Contexts) ->
    Known = [maps:get(Name, Attributes, {unknown, missing}) || #{view := #{attributes := Attributes}} <- Contexts],
    Tolerance = lists:max([0 | [T || {ok, _, _, _, T} <- Known]]),
    {Weight, Way, Tolerance, [case K of {ok, Value, _, _, _} -> measured(Value); _ -> unknown end || K <- Known]}.

measured(Value) -> case placement_unit:is_measure(Value) of true -> Value; false -> unknown end.

score(M, F, Node, Known) ->
    Score = M:F(Node, Known),
    _ = Score =:= unknown orelse placement_unit:is_measure(Score) orelse error({bad_score, {M, F}, Score}),
    Score.

%%% Placements by this node, for policies that do not request current attributes

-define(OWN, placement_own). %% {Node, AtMs} for each placement by this node

%% @doc Counts a placement on each of these nodes, for choices in the next minute, unless the choice has `n => all'.
-spec placed([node()], placement_query:plan()) -> ok.
placed(_, #{n := all}) -> ok;
placed(_, #{policy := {module, _}}) -> ok;
placed(Nodes, #{policy := Policy}) ->
    _ = placement_policy:is_live(Policy) orelse note(Nodes),
    ok.

note(Nodes) ->
    Now = erlang:monotonic_time(millisecond),
    true = ets:insert(?OWN, [{Node, Now, make_ref()} || Node <- Nodes]),
    _ = ets:select_delete(?OWN, [{{'_', '$1', '_'}, [{'<', '$1', Now - 60000}], [true]}]),
    ok.

%% Increases each value by the charge for the placements that were made after it was measured. Because the time of the
%% measurement is used, it does not matter how long this choice was delayed.
charged(Contexts, #{charge := Charge}) ->
    [Context#{view := View#{attributes := maps:map(fun(Name, Known) -> charge(Known, maps:get(Name, Charge, 0), Node, Seen) end, Attributes)}}
     || #{node := Node, view := #{attributes := Attributes, at_ms := Seen} = View} = Context <- Contexts].

charge({ok, Value, Age, Unit, Tolerance}, Charge, Node, Seen) when is_number(Value), Charge =/= 0 ->
    Own = length([At || {_, At, _} <- ets:lookup(?OWN, Node), At >= Seen - Age]),
    {ok, placement_policy:charged(Value, Own, Charge), Age, Unit, Tolerance};
charge(Known, _, _, _) -> Known.

%%% Spread

%% Returns the places of the suitable nodes, each with the number of nodes that it may have to provide, and its nodes.
places(#{spread := none, n := Count}, Feasible, _) -> [{everywhere, Count, Feasible}];
places(#{spread := {By, MaxSkew, _}, n := Count} = Plan, Feasible, #{tree := Tree}) ->
    Places = maps:to_list(maps:groups_from_list(fun(Context) -> place(By, Context, Tree) end, Feasible)),
    places(Plan, Places, Count, MaxSkew).

%% If the spread counts running processes, any single place may have to provide all nodes, because places that already run
%% more processes receive fewer new ones.
places(#{count := _}, Places, Count, _) -> [{Place, min(length(Contexts), Count), Contexts} || {Place, Contexts} <- Places];
places(_, Places, Count, MaxSkew) ->
    Level = level(1, Count, [length(Contexts) || {_, Contexts} <- Places]),
    [{Place, min(length(Contexts), Level + MaxSkew - 1), Contexts} || {Place, Contexts} <- Places].

%% Counts the processes that are already running in each place, including those on nodes that are no longer suitable.
in_places(#{spread := {By, _, _}, count := _}, #{contexts := Contexts, running := Running, tree := Tree}) ->
    lists:foldl(fun(#{node := Node} = Context, Sums) ->
                        case Running of
                            #{Node := Runs} -> maps:update_with(place(By, Context, Tree), fun(Sum) -> Sum + Runs end, Runs, Sums);
                            #{} -> Sums
                        end
                end, #{}, Contexts);
in_places(_, _) -> #{}.

%% Returns the places that may receive one more process, so that nodes are drawn only from these.
open_places(#{spread := {_, MaxSkew, _}, count := _, n := Count} = Plan, [_ | _] = Places, Before) ->
    Counts = maps:from_list([{Place, maps:get(Place, Before, 0)} || {Place, _, _} <- Places]),
    Most = least(Counts, Plan) + MaxSkew - 1 + Count - 1,
    [Open || {Place, _, _} = Open <- Places, map_get(Place, Counts) =< Most];
open_places(_, Places, _) -> Places.

%% Returns the lowest number of processes in a place. If there are fewer places than `min_domains',
%% the missing ones count as empty.
least(Counts, Plan) ->
    case map_size(Counts) < maps:get(min_domains, Plan, 1) of
        true -> 0;
        false -> lists:min(maps:values(Counts))
    end.

%% Returns the smallest number of nodes per place that is enough. A place with fewer nodes provides all of them.
level(Level, Count, Sizes) ->
    case lists:sum([min(Size, Level) || Size <- Sizes]) >= Count orelse Level >= lists:max(Sizes) of
        true -> Level;
        false -> level(Level + 1, Count, Sizes)
    end.

place({attribute, Name}, #{view := #{attributes := Attributes}}, _) ->
    case Attributes of #{Name := {ok, Value, _, _, _}} -> {value, Value}; _ -> unknown end;
place(_, _, none) -> unknown;
place(Level, #{node := Node}, Tree) ->
    case placement_tree:way(Tree, Node, Level) of
        {ok, Way} -> {way, Way};
        unknown -> unknown
    end.

%% A place counts unless all of its nodes turned out to be unsuitable.
place_of(Places, Unfit) -> maps:without(Unfit, maps:from_list([{Node, Place} || {Place, _, Contexts} <- Places, #{node := Node} <- Contexts])).

spread(#{spread := none, n := Count}, Best, _, _) -> lists:sublist(Best, Count);
spread(#{n := Count} = Plan, Best, PlaceOf, Before) ->
    Places = maps:from_keys(maps:values(PlaceOf), 0),
    pick([{maps:get(Node, PlaceOf), Node} || Node <- Best], Count, maps:merge(Places, maps:with(maps:keys(Places), Before)), Plan, []).

pick(_, 0, _, _, Chosen) -> lists:reverse(Chosen);
pick([], _, _, _, Chosen) -> lists:reverse(Chosen);
pick(Left, Count, Counts, #{spread := {_, MaxSkew, How}} = Plan, Chosen) ->
    %% A place without remaining nodes still limits the others with a hard spread, but not with a soft one.
    Counting = case How of hard -> Counts; soft -> maps:with([Place || {Place, _} <- Left], Counts) end,
    Most = least(Counting, Plan) + MaxSkew - 1,
    case [Placed || {Place, _} = Placed <- Left, maps:get(Place, Counts) =< Most] of
        [{Place, Node} = Placed | _] -> pick(lists:delete(Placed, Left), Count - 1, counted(Place, Counts), Plan, [Node | Chosen]);
        [] -> lists:reverse(Chosen)
    end.

counted(Place, Counts) -> maps:update_with(Place, fun(N) -> N + 1 end, Counts).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% The process was delayed for five seconds between reading the values and choosing.
held_up_test() ->
    ?OWN = ets:new(?OWN, [named_table, duplicate_bag]),
    Seen = erlang:monotonic_time(millisecond) - 5000,
    true = ets:insert(?OWN, [{n, Seen + Ms, make_ref()} || Ms <- [-50, -10, 0, 1000]]),
    Context = #{node => n, view => #{status => ok, at_ms => Seen, attributes => #{tasks => {ok, 7, 10, none, 0}, other => {ok, 7, 10, none, 0}}}},
    [#{view := #{attributes := Charged}}] = charged([Context], #{charge => #{tasks => 1}}),
    true = ets:delete(?OWN),
    ?assertEqual(#{tasks => {ok, 10, 10, none, 0}, other => {ok, 7, 10, none, 0}}, Charged).

%% The differences and shares of these values exceed the range of a float, so they count as unknown.
huge_values_test_() ->
    Contexts = fun(Values) -> [#{node => Node, view => #{attributes => #{size => {ok, Value, 0, none, 0}}}} || {Node, Value} <- Values] end,
    [?_assertEqual(Want, scored(#{prefer => [{2, Way, size}]}, Contexts(Values)))
     || {Want, Way, Values} <- [{[{a, 2.0}, {b, 0.0}, {c, 0.0}], min, [{a, 1}, {b, 2.5}, {c, 1 bsl 1024}]}, {[{a, 0.0}, {b, 2.0}, {c, 0.0}], max, [{a, 1}, {b, 2.5}, {c, 1 bsl 1024}]},
                                {[{a, 0.0}, {b, 0.0}], min, [{a, 1.0e308}, {b, -1.0e308}]}]].

own_placements_test_() ->
    Contexts = [#{node => Node, view => #{status => ok, at_ms => 0, attributes => #{zone => {ok, Zone, 0, none, 0}}}} || {Node, Zone} <- [{a, x}, {b, x}, {c, x}, {d, y}]],
    [fun() ->
             {ok, Plan} = placement_query:compile(Query),
             ?OWN = ets:new(?OWN, [named_table, duplicate_bag]),
             {ok, Nodes, _} = decided(Plan, #{contexts => Contexts, tree => none, epoch => 0}, 0),
             Noted = [Node || {Node, _, _} <- ets:tab2list(?OWN)],
             true = ets:delete(?OWN),
             ?assertEqual({Query, Count, case Query of #{n := _} -> lists:sort(Nodes); _ -> [] end}, {Query, length(Nodes), lists:sort(Noted)}),
             ?assert(Count =:= 1 orelse lists:member(d, Nodes))
     end || {Count, Query} <- [{4, #{}}, {4, #{spread => {{attribute, zone}, 1, soft}}}, {3, #{spread => {{attribute, zone}, 1, hard}}},
                               {1, #{n => 1, policy => least}}]].

%% Processes that are already running count. Place x has two, one of them on node b, which is not suitable. Place y has
%% one, and z has none.
spread_over_what_runs_test_() ->
    Context = fun(Node, Zone) -> #{node => Node, view => #{attributes => #{zone => {ok, Zone, 0, none, 0}}}} end,
    Suit = [Context(a, x), Context(c, y), Context(d, y), Context(e, z)],
    Snapshot = #{contexts => [Context(b, x) | Suit], running => #{a => 1, b => 1, c => 1}, tree => none},
    [fun() ->
             {ok, Plan} = placement_query:compile(#{n => Count, spread => Spread#{by => {attribute, zone}, count => workers}}),
             Before = in_places(Plan, Snapshot),
             Places = places(Plan, Suit, Snapshot),
             ?assertEqual({Spread, Want}, {Spread, spread(Plan, [a, c, d, e], place_of(Places, []), Before)}),
             %% Only open places are chosen, whichever of their nodes are drawn.
             Open = [Place || {{value, Place}, _, _} <- open_places(Plan, Places, Before)],
             ?assertEqual([], [Node || Node <- Want, {N, Zone} <- [{a, x}, {c, y}, {d, y}, {e, z}], N =:= Node, not lists:member(Zone, Open)])
     end || {Count, Spread, Want} <- [{1, #{}, [e]}, {2, #{}, [e, c]}, {4, #{}, [e, c]}, {1, #{max_skew => 2}, [c]}, {3, #{max_skew => 2}, [c, e, a]}, {1, #{max_skew => 3}, [a]},
                                      {1, #{min_domains => 3}, [e]}, {1, #{min_domains => 4}, [e]}, {2, #{min_domains => 4}, [e]}, {1, #{min_domains => 4, max_skew => 2}, [c]},
                                      {4, #{how => soft}, [e, c, a, d]}]].

%% Each node's place is looked up only once; looking it up at each step of the choice takes a hundred times as long.
spread_over_many_places_test() ->
    Names = [list_to_atom("n" ++ integer_to_list(N)) || N <- lists:seq(1, 200)],
    {ok, Tree} = placement_tree:from_paths([{Name, [{rack, N rem 20}]} || {N, Name} <- lists:zip(lists:seq(1, 200), Names)]),
    {reductions, Before} = process_info(self(), reductions),
    Plan = #{spread => {1, 1, hard}, n => 100},
    Chosen = spread(Plan, Names, place_of(places(Plan, [#{node => Name} || Name <- Names], #{tree => Tree}), []), #{}),
    {reductions, After} = process_info(self(), reductions),
    ?assertEqual(lists:sublist(Names, 100), Chosen),
    ?assertEqual({true, After - Before}, {After - Before < 20000000, After - Before}).
-endif.
