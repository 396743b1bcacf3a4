%% SPDX-License-Identifier: Apache-2.0
%% @doc Checks a caller's query once and prepares it for evaluation. All functions are pure.
-module(placement_query).

-export([compile/1, distinct/1, names/1, words/0]).

-export_type([query/0, plan/0, preference/0, spread/0, counted/0]).

-type preference() :: {Weight :: number(), placement_pred:predicate() | {placement_entry:name(), min | max} | {score, {module(), atom()}, [placement_entry:name()]}}.
%% `{score, {M, F}, Names}': a user-defined score. The choosing node calls `M:F(Node, #{Name => Value})' for each node that
%% is compared. The map contains the known values of these attributes. The function returns a number (higher is better) or
%% `unknown'.
-type query() :: #{require => placement_pred:predicate(),    %% what must be true
                   order => [placement_pred:predicate()],    %% what should be true; dropped one by one, starting with the last, if too few nodes are suitable
                   prefer => [preference()],                 %% which suitable nodes are preferred; default: [{1, {load, min}}]
                   from => node(),                           %% the node from which distances are measured; default: the calling node
                   n => pos_integer() | all,                 %% how many nodes; default: all
                   min => pos_integer(),                     %% fewer suitable nodes than this are a conflict; default: n, or 1 if n is all
                   on_conflict => error | relax,             %% default: relax if there is an order, otherwise error
                   spread => spread(),
                   policy => placement_policy:policy(),      %% default: two_choices
                   charge => #{placement_entry:name() => number()}, %% what each placement in the last minute adds to a cached value
                   max_age => non_neg_integer(),             %% maximum age of a value in ms
                   deadline => pos_integer()}                %% ms for the whole choice; default: the option `deadline' of the application
               | placement_pred:predicate().
-type spread() :: none | {Level :: non_neg_integer() | {attribute, placement_entry:name()}, MaxSkew :: pos_integer(), soft | hard}
                | #{by := non_neg_integer() | {attribute, placement_entry:name()}, max_skew => pos_integer(), how => soft | hard, min_domains => pos_integer(), count => counted()}.
%% `max_skew' (default: 1): the maximum difference between a place's number of processes and that of the place with the
%% fewest. `how' (default: hard): whether a place that has no more suitable nodes still limits the others (`hard') or not
%% (`soft'). `count': processes that are already running are counted as well. `min_domains': if there are fewer places
%% than this, the missing ones count as places without processes.
-type counted() :: placement_entry:name() | {group, term()} | {pg, Scope :: atom(), term()} | {children, Scope :: term()}.
-type plan() :: #{require := placement_pred:compiled(), tolerance := [placement_pred:compiled()], order := [placement_pred:compiled()],
                  prefer := [{number(), min | max, placement_entry:name()} | {number(), truth, placement_pred:compiled()} |
                             {number(), {score, module(), atom()}, [placement_entry:name()]}],
                  from := node(), n := pos_integer() | all, min := pos_integer(), on_conflict := error | relax, spread := none | tuple(), min_domains => pos_integer(), count => counted(),
                  policy := placement_policy:policy(), charge := #{atom() => number()}, deadline := pos_integer(), max_age => non_neg_integer(), source := map(),
                  without => pid(), among => [node()]}.
%% `without' and `among' are described in {@link placement_choose:ranked/3}.

%% @doc Checks a query. The error text contains the key, the value and what was expected.
-spec compile(query()) -> {ok, plan()} | {error, Text :: unicode:chardata()}.
compile(Query) when is_map(Query) ->
    try
        _ = [bad("~0tP is not a key of a query; the keys are ~tp", [Key, 10, keys()]) || Key <- maps:keys(Query), not lists:member(Key, keys())],
        {ok, plan(Query)}
    catch
        throw:{bad, Text} -> {error, Text}
    end;
compile(Predicate) -> compile(#{require => Predicate}).

keys() -> [require, order, prefer, from, n, min, on_conflict, spread, policy, charge, max_age, deadline].

%% @doc Returns the keywords that a query may contain, apart from units and names that users choose.
-spec words() -> [atom()].
words() ->
    lists:usort(keys() ++ placement_pred:words() ++ placement_policy:words()
                ++ [max, score, error, relax, none, by, max_skew, how, soft, hard, min_domains, count, attribute, children]).

-spec bad(string(), [term()]) -> no_return().
bad(Format, Arguments) -> throw({bad, io_lib:format(Format, Arguments)}).

plan(Query) ->
    Order = [predicate(order, P) || P <- list(order, maps:get(order, Query, []))],
    Count = checked(n, fun(N) -> N =:= all orelse is_integer(N) andalso N > 0 end, "a positive number or all", Query, all),
    Require = predicate(require, maps:get(require, Query, [])),
    Spread = spread(maps:get(spread, Query, none)),
    Base = #{require => Require, tolerance => placement_pred:tolerance(Require), order => Order, prefer => prefer(maps:get(prefer, Query, [{1, {load, min}}])),
             from => checked(from, fun is_atom/1, "a node", Query, node()),
             n => Count,
             min => checked(min, fun(N) -> is_integer(N) andalso N > 0 end, "a positive number", Query, case Count of all -> 1; _ -> Count end),
             on_conflict => checked(on_conflict, fun(Word) -> Word =:= error orelse Word =:= relax end, "error or relax", Query,
                                    case Order of [] -> error; _ -> relax end),
             policy => checked(policy, fun placement_policy:is_policy/1, "a policy such as two_choices, random or least", Query, two_choices),
             charge => checked(charge, fun is_charge/1, "a map of attributes and numbers", Query, #{load => 1, run_queue => 1, leases => 1, num_erlang_processes => 1}),
             deadline => checked(deadline, fun(Ms) -> is_integer(Ms) andalso Ms > 0 andalso Ms =< 16#ffffffff end, "milliseconds, at most 4294967295", Query,
                                 placement_config:deadline_ms()),
             source => Query},
    Whole = maps:merge(Base, Spread),
    case Query of
        #{max_age := _} -> Whole#{max_age => checked(max_age, fun(Ms) -> is_integer(Ms) andalso Ms >= 0 end, "milliseconds", Query, 0)};
        _ -> Whole
    end.

checked(Key, Is, Expected, Query, Default) ->
    case Query of
        #{Key := Value} -> case Is(Value) of true -> Value; false -> bad("~tp => ~0tP: expected ~ts", [Key, Value, 12, Expected]) end;
        _ -> Default
    end.

%% The names are taken from Kubernetes' topology spread constraints wherever these have an
%% equivalent.
spread(none) -> #{spread => none};
spread({By, MaxSkew, How}) -> spread(#{by => By, max_skew => MaxSkew, how => How});
spread(#{by := By} = Given) ->
    #{max_skew := MaxSkew, how := How} = Full = maps:merge(#{max_skew => 1, how => hard}, Given),
    case [{Key, Value} || {Key, Value} <- maps:to_list(Full), not is_spread(Key, Value)] of
        [] when How =:= soft, is_map_key(min_domains, Full) -> bad("spread => ~0tP: min_domains needs how => hard", [Given, 12]);
        [] -> (maps:with([min_domains, count], Full))#{spread => {By, MaxSkew, How}};
        [{Key, Value} | _] -> bad("spread => ~0tP: ~tp => ~0tP: ~ts", [Given, 12, Key, Value, 12, expected_of_spread()])
    end;
spread(Other) -> bad("spread => ~0tP: ~ts", [Other, 12, expected_of_spread()]).

expected_of_spread() ->
    "expected {Level, MaxSkew, soft|hard}, {{attribute, Name}, MaxSkew, soft|hard}, or a map with by, max_skew, how, min_domains, "
    "and count: an attribute, {group, Name}, {pg, Scope, Group} or {children, Scope}".

is_spread(by, By) -> is_level(By);
is_spread(max_skew, Skew) -> is_integer(Skew) andalso Skew > 0;
is_spread(how, How) -> How =:= soft orelse How =:= hard;
is_spread(min_domains, Count) -> is_integer(Count) andalso Count > 0;
is_spread(count, {Kind, _}) -> Kind =:= group orelse Kind =:= children;
is_spread(count, {pg, Scope, _}) -> is_atom(Scope);
is_spread(count, Name) -> is_atom(Name);
is_spread(_, _) -> false.

is_level({attribute, Name}) -> is_atom(Name);
is_level(Level) -> is_integer(Level) andalso Level >= 0.

is_charge(Charge) -> is_map(Charge) andalso lists:all(fun({Name, Number}) -> is_atom(Name) andalso is_number(Number) end, maps:to_list(Charge)).

list(Key, List) ->
    case is_list(List) of true -> List; false -> bad("~tp => ~0tP: expected a list", [Key, List, 12]) end.

predicate(Key, P) ->
    case placement_pred:compile(P) of
        {ok, Compiled} -> Compiled;
        {error, Text} -> bad("~tp: ~ts", [Key, Text])
    end.

prefer(List) -> [preference(Term) || Term <- list(prefer, List)].

preference({Weight, _} = Term) when abs(Weight) > 1.0e300 -> bad("prefer: ~0tP: the weight is too large", [Term, 12]);
preference({Weight, {Name, Way}}) when is_number(Weight), is_atom(Name), Way =:= min orelse Way =:= max -> {Weight, Way, Name};
preference({Weight, {score, {M, F}, Names}} = Term) when is_number(Weight), is_atom(M), is_atom(F), is_list(Names) ->
    placement_eval:is_exported({M, F, [node, attributes]}) orelse bad("prefer: ~0tP: there is no function ~tp:~tp/2", [Term, 12, M, F]),
    lists:all(fun is_atom/1, Names) orelse bad("prefer: ~0tP: expected a list of attributes", [Term, 12]),
    {Weight, {score, M, F}, Names};
preference({Weight, P}) when is_number(Weight) -> {Weight, truth, predicate(prefer, P)};
preference(Other) -> bad("prefer: ~0tP: expected {Weight, Predicate}, {Weight, {Name, min}}, {Weight, {Name, max}} or {Weight, {score, {M, F}, Names}}", [Other, 12]).

%% @doc Returns the attributes that a plan needs from each node.
-spec names(plan()) -> [placement_entry:name()].
names(#{require := Require, tolerance := Tolerance, order := Order, prefer := Prefer, spread := Spread, n := Count} = Plan) ->
    Scored = case Count of all -> []; _ -> preferred(Prefer) end,
    lists:usort(lists:append([placement_pred:attributes(P) || P <- [Require | Order] ++ Tolerance]) ++ Scored
                ++ [Name || {{attribute, Name}, _, _} <- [Spread]] ++ [Name || #{count := Name} <- [Plan], is_atom(Name)]).

preferred(Prefer) -> lists:append([case Term of {_, truth, P} -> placement_pred:attributes(P); {_, {score, _, _}, Names} -> Names; {_, _, Name} -> [Name] end || Term <- Prefer]).

%% @doc Returns the nodes of a list in their order, without duplicates, or raises `bad_nodes'.
-spec distinct([node()]) -> [node()].
distinct(Nodes) ->
    case is_list(Nodes) andalso lists:all(fun is_atom/1, Nodes) of
        true -> lists:uniq(Nodes);
        false -> error({bad_nodes, lists:flatten(io_lib:format("~0tP: expected a list of nodes", [Nodes, 12]))})
    end.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

good_test_() ->
    [?_assertMatch({_, {ok, _}}, {Query, compile(Query)})
     || Query <- [[], {a, gt, 1}, #{}, #{require => [{a, gt, 1}], n => 2, spread => {1, 1, soft}}, #{prefer => [{2, {load, min}}, {1, {gpu, true}}]},
                  #{order => [{dist, near}, {a, low}], min => 2}, #{policy => {top, 0.2}, max_age => 100, deadline => 50},
                  #{spread => #{by => {attribute, zone}, max_skew => 2, how => hard, min_domains => 3, count => {children, workers}}}, #{spread => #{by => 0, count => workers}}]].

bad_test_() ->
    [?_assertMatch({_, {error, _}}, {Query, compile(Query)})
     || Query <- [foo, {a, about, 1}, #{requires => []}, #{n => 0}, #{n => -1}, #{min => 0}, #{policy => first}, #{deadline => 0}, #{deadline => 1 bsl 32}, #{spread => 1},
                  #{order => {a, gt, 1}}, #{prefer => [{a, min}]}, #{prefer => [{1 bsl 1024, {a, min}}]}, #{require => [{a, gt, fun() -> 1 end}]}, #{max_age => -1}, #{on_conflict => maybe_so},
                  {a, gt, {4, furlong}}, #{spread => #{max_skew => 1}}, #{spread => #{by => 1, skew => 1}}, #{spread => #{by => 1, min_domains => 0}}, #{spread => #{by => 1, count => {node, x}}},
                  #{spread => #{by => 1, how => soft, min_domains => 2}}, {a, gt, {1 bsl 1024, gib}}, {a, match, "("}, [{a, gt, 1} | b], #{charge => 1}, #{from => "a"}]].

defaults_test() ->
    {ok, Plan} = compile([]),
    ?assertMatch(#{n := all, min := 1, on_conflict := error, policy := two_choices}, Plan),
    {ok, Ordered} = compile(#{order => [{a, gt, 1}], n => 3}),
    ?assertMatch(#{n := 3, min := 3, on_conflict := relax}, Ordered).

distinct_test_() ->
    [?_assertEqual([b, a], distinct([b, a, b])), ?_assertError({bad_nodes, _}, distinct(foo)), ?_assertError({bad_nodes, _}, distinct(["a"]))].
-endif.
