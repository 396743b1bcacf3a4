%% SPDX-License-Identifier: Apache-2.0
%% @doc Builds the tree of a network from measured times, and reports how well the tree fits them and what to do if it does
%% not. All functions are pure.
%%
%% The default algorithm, `mdl', needs no parameter ({@link placement_mdl}); `{alpha, A}' is the algorithm of the report
%% ({@link placement_alpha}). The fit is the fraction of the variance of the logarithms that the levels of the tree explain.
%% With a fit of 0.8 or more, the tree can be trusted. Below 0.6 the network is not a hierarchy (a torus has about 0.3,
%% points on a plane have 0.5), and the times themselves are more useful. A tree that explains most of the variance may
%% still be too coarse inside its smallest groups. {@link placement_refine} measures how much nearer to each other some
%% nodes in such a group are, and splits such groups. With a regret of 1.5 or more, the verdict on the tree is no longer
%% `good'.
-module(placement_cluster).

-export([cluster/1, cluster/2, format_error/1]).

-export_type([method/0, result/0, verdict/0]).

-type method() :: mdl | {alpha, number()}.
-type verdict() :: one_cluster | good | fair | poor.
-type result() :: #{tree := placement_tree:tree(), method := method(), explained := float(), regret := float(), verdict := verdict(),
                    advice := unicode:chardata(), slow := [{node(), Factor :: float()}]}.
%% `slow': the nodes whose times are longer than those of their groups, slowest first, each with the factor by which
%% they are longer.

-define(GOOD, 0.8).
-define(FAIR, 0.6).
-define(COARSE, 1.5).

%% @doc Returns the tree that the default algorithm builds.
-spec cluster(placement_matrix:matrix()) -> result().
cluster(Matrix) ->
    {ok, Result} = cluster(Matrix, mdl),
    Result.

%% @doc Returns the tree that the given algorithm builds.
-spec cluster(placement_matrix:matrix(), method()) -> {ok, result()} | {error, {bad_method, term()}}.
cluster(Matrix, mdl) ->
    #{root := Root, slow := Slow, explained := Explained} = placement_mdl:cluster(Matrix),
    case placement_refine:refined(Root, Matrix) of
        Root -> {ok, result(mdl, Root, Slow, Explained, Matrix)};
        Finer -> {ok, result(mdl, Finer, Slow, explained(Finer, Matrix), Matrix)}
    end;
cluster(Matrix, {alpha, Alpha}) when is_number(Alpha), Alpha >= 1 ->
    Root = placement_alpha:cluster(Matrix, Alpha),
    {ok, result({alpha, Alpha}, Root, [], explained(Root, Matrix), Matrix)};
cluster(_, Other) -> {error, {bad_method, Other}}.

result(Method, Root, Slow, Explained, Matrix) ->
    {ok, Tree} = placement_tree:from_vertex(Root),
    Regret = placement_refine:regret(Tree, Matrix),
    Verdict = verdict(placement_tree:depth(Tree), Explained, Regret),
    #{tree => Tree, method => Method, explained => Explained, regret => Regret, verdict => Verdict, advice => advice(Verdict, Explained, Regret, Slow), slow => Slow}.

verdict(Depth, _, Regret) when Depth =< 1, Regret < ?COARSE -> one_cluster;
verdict(Depth, _, _) when Depth =< 1 -> poor;
verdict(_, Explained, Regret) when Explained >= ?GOOD, Regret < ?COARSE -> good;
verdict(_, Explained, _) when Explained >= ?FAIR -> fair;
verdict(_, _, _) -> poor.

advice(Verdict, Explained, Regret, Slow) ->
    Text = case Verdict =:= fair andalso Explained >= ?GOOD of
               true -> "The tree explains the times well, but it is coarse.";
               false -> advice(Verdict)
           end,
    Coarse = [io_lib:format(" Inside the smallest groups there are nodes ~.1f times nearer than the others, which the tree does not tell apart:"
                            " choose by times there.", [Regret]) || Regret >= ?COARSE],
    [Text, Coarse, [[" Slow nodes: ", lists:join(", ", [io_lib:format("~ts (~.2f times)", [Node, Factor]) || {Node, Factor} <- Slow]), "."]
                       || Slow =/= []]].

advice(one_cluster) -> "All nodes are equally far from each other, as far as these times show: choose nodes by attributes alone."
                       " Where you know better, measure under load or with more batches.";
advice(good) -> "The tree explains the times well: distances can be used.";
advice(fair) -> "The tree explains most of the times. Measure again, longer and under load, and see whether the same groups come out.";
advice(poor) -> "The network is hardly a hierarchy: do not rely on distances, use {latency, le, Micros} or measure again on a quieter network.".

explained(Root, Matrix) ->
    {ok, Tree} = placement_tree:from_vertex(Root),
    Logs = [{Name, math:log(Time)} || {A, B, Time} <- placement_matrix:pairs(Matrix), {group, Name, _, _} <- [placement_tree:common(Tree, A, B)]],
    Levels = lists:foldl(fun({Level, Log}, Acc) -> maps:update_with(Level, fun(L) -> [Log | L] end, [Log], Acc) end, #{}, Logs),
    Within = lists:sum([deviation(Values) || Values <- maps:values(Levels)]),
    case deviation([Log || {_, Log} <- Logs]) of
        All when All < 1.0e-9 -> 1.0;
        All -> max(0.0, 1 - Within / All)
    end.

deviation([]) -> 0.0;
deviation(Values) ->
    Mean = lists:sum(Values) / length(Values),
    lists:sum([(Value - Mean) * (Value - Mean) || Value <- Values]).

%% @doc Formats an error as text for users.
-spec format_error({bad_method, term()}) -> unicode:chardata().
format_error({bad_method, Method}) ->
    io_lib:format("~tp is not an algorithm; expected mdl or {alpha, A} with A from 1.0, such as {alpha, 1.6}", [Method]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

matrix(Time) ->
    Nodes = [list_to_atom([C]) || C <- lists:seq($a, $h)],
    Places = lists:seq(0, 7),
    {ok, Matrix} = placement_matrix:from_rows(Nodes, [[Time(I, J) || J <- Places] || I <- Places]),
    Matrix.

two_racks_test_() ->
    Matrix = matrix(fun(I, J) when I div 4 =:= J div 4 -> 50; (_, _) -> 200 end),
    [fun() ->
             {ok, #{tree := Tree, verdict := good, explained := Explained}} = cluster(Matrix, Method),
             ?assert(Explained > 0.99),
             ?assertEqual({ok, 0.5}, placement_tree:distance(Tree, a, d)),
             ?assertEqual({ok, 1.0}, placement_tree:distance(Tree, a, e))
     end || Method <- [mdl, {alpha, 1.6}]].

all_equal_test() ->
    #{tree := Tree, verdict := one_cluster, slow := []} = cluster(matrix(fun(_, _) -> 80 end)),
    ?assertEqual({ok, 1.0}, placement_tree:distance(Tree, a, h)).

one_node_test() ->
    {ok, Matrix} = placement_matrix:from_rows([a], [[0]]),
    [?assertMatch({ok, #{verdict := one_cluster}}, cluster(Matrix, Method)) || Method <- [mdl, {alpha, 2}]].

a_slow_node_is_named_test() ->
    Own = fun(I, J) when I div 8 =:= J div 8 -> 50; (_, _) -> 200 end,
    Time = fun(I, J) when I =:= 15; J =:= 15 -> 1.5 * Own(I, J); (I, J) -> Own(I, J) end,
    Nodes = [list_to_atom([C]) || C <- lists:seq($a, $p)],
    {ok, Matrix} = placement_matrix:from_rows(Nodes, [[Time(I, J) || J <- lists:seq(0, 15)] || I <- lists:seq(0, 15)]),
    #{tree := Tree, slow := [{p, Factor}], advice := Advice} = cluster(Matrix),
    ?assert(abs(Factor - 1.5) < 0.05),
    ?assertEqual({ok, 0.5}, placement_tree:distance(Tree, o, p)),
    ?assertNotEqual(nomatch, string:find(unicode:characters_to_list(Advice), "p (1.")).

a_ring_fits_badly_test() ->
    Nodes = [list_to_atom("n" ++ integer_to_list(N)) || N <- lists:seq(0, 23)],
    Apart = fun(I, J) -> 10 * min(abs(I - J), 24 - abs(I - J)) end,
    {ok, Matrix} = placement_matrix:from_rows(Nodes, [[Apart(I, J) || J <- lists:seq(0, 23)] || I <- lists:seq(0, 23)]),
    #{explained := Explained} = cluster(Matrix),
    ?assert(Explained < 0.8).

bad_method_test() ->
    Matrix = matrix(fun(_, _) -> 1 end),
    [?assertEqual({error, {bad_method, Bad}}, cluster(Matrix, Bad)) || Bad <- [best, {alpha, 0.9}, {alpha, x}]],
    ?assertNotEqual("", unicode:characters_to_list(format_error({bad_method, best}))).
-endif.
