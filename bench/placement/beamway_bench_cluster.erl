%% SPDX-License-Identifier: Apache-2.0
%% @doc The part of `bench placement' that measures clustering: how long it takes for 1024 nodes, how many of the planted trees it finds exactly, and
%% how well the RELEASE report's algorithm performs with the alpha that is best for each shape.
-module(beamway_bench_cluster).

-export([metrics/0, repeats/1, measure/2]).
%% Exported only because it is spawned.
-export([time_once/2]).

%% The shapes of more than 200 nodes, and the values of alpha to try; the RELEASE report uses 1.0 to 3.0.
-define(LARGE_SHAPES, [flat_256_noisy, athos_256, three_levels_216]).
-define(ALPHAS, [1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.5]).
%% Clusters of 32 nodes below two more levels, with slow nodes. This takes longest, because the tree is then built twice.
-define(LARGE, #{tree => {800, 0.10, lists:duplicate(8, {400, 0.10, lists:duplicate(4, {100, 0.15, [32]})})}, slow => 0.2}).

-spec metrics() -> [map()].
metrics() ->
    [#{name => <<"cluster_1024_s">>, unit => <<"s">>, better => lower, key => <<"clustering of 1024 nodes">>},
     #{name => <<"planted_exact">>, unit => <<"of 20 seeds">>, better => higher, key => <<"exact trees of the worst shape">>},
     #{name => <<"planted_exact_alpha">>, unit => <<"of 20 seeds">>, better => higher, key => <<"exact trees of the worst shape, alpha at its best">>},
     #{name => <<"planted_f1_worst">>, unit => <<"F1">>, better => higher, key => <<"clusters found, worst shape">>},
     #{name => <<"planted_f1_worst_alpha">>, unit => <<"F1">>, better => higher, key => <<"clusters found, worst shape, alpha at its best">>}]
        ++ lists:append([[#{name => shape_name("planted", Shape), unit => <<"of 20 seeds">>, better => higher, key => exact_key(Shape)},
                          #{name => shape_name("planted_alpha", Shape), unit => <<"F1">>, better => higher, key => alpha_key(Shape)}]
                         || {Shape, _} <- beamway_bench_planted:shapes()]).

shape_name(Prefix, Shape) -> text("~s_~s", [Prefix, Shape]).
exact_key(Shape) -> text("~s: exact trees", [Shape]).
alpha_key(Shape) -> text("~s: clusters found, alpha at its best", [Shape]).

text(Format, Arguments) -> iolist_to_binary(io_lib:format(Format, Arguments)).

%% @doc Returns the number of repeats, which is 1 because the seeds are always the same.
-spec repeats(full | quick) -> pos_integer().
repeats(_) -> 1.

%% @doc Measures everything once. A quick run uses 3 seeds and scales the number of exact trees to 20 seeds; it does not try alpha on shapes of more
%% than 200 nodes, because that is slow. A full run tries alpha with one seed on those shapes and with three seeds on the others.
-spec measure(full | quick, Repeat :: pos_integer()) -> #{binary() => number()}.
measure(Speed, _) ->
    Seeds = lists:seq(1, case Speed of full -> 20; quick -> 3 end),
    Seconds = large(),
    ok = beamway_bench_text:note("bench placement: 1024 nodes in ~.2f s", [Seconds]),
    Shapes = [shape(Shape, Seeds, alpha_tries(Speed, lists:member(Shape, ?LARGE_SHAPES))) || {Shape, _} <- beamway_bench_planted:shapes()],
    Tried = [Others || {_, _, {_, Others}} <- Shapes],
    Figures = [{exact_key(Shape), of_20(Own)} || {Shape, Own, _} <- Shapes] ++ [{alpha_key(Shape), mean(Others)} || {Shape, _, {_, Others}} <- Shapes],
    (maps:from_list(Figures))#{
      <<"clustering of 1024 nodes">> => Seconds,
      <<"exact trees of the worst shape">> => lists:min([of_20(Own) || {_, Own, _} <- Shapes]),
      <<"exact trees of the worst shape, alpha at its best">> => lists:min([of_20(Others) || Others <- Tried]),
      <<"clusters found, worst shape">> => lists:min([mean(Own) || {_, Own, _} <- Shapes]),
      <<"clusters found, worst shape, alpha at its best">> => lists:min([mean(Others) || Others <- Tried])}.

shape(Shape, Seeds, Tries) ->
    Own = scores(mdl, Shape, Seeds),
    Best = best_alpha(Shape, Tries),
    ok = beamway_bench_text:note("bench placement: ~-18s exact ~2b of ~b, F1 ~.2f~ts", [Shape, exact(Own), length(Own), mean(Own), alpha_text(Best)]),
    {Shape, Own, Best}.

alpha_text(none) -> "";
alpha_text({Alpha, Scores}) -> io_lib:format("; alpha ~.1f: exact ~b of ~b, F1 ~.2f", [Alpha, exact(Scores), length(Scores), mean(Scores)]).

of_20(Scores) -> 20 * exact(Scores) / length(Scores).

exact(Scores) -> length([Score || Score <- Scores, Score == 1]).

mean(Scores) -> lists:sum(Scores) / length(Scores).

scores(Method, Shape, Seeds) ->
    [begin
         {Matrix, Planted} = beamway_bench_planted:make(Shape, Seed),
         {ok, #{tree := Tree}} = placement_cluster:cluster(Matrix, Method),
         beamway_bench_planted:score(beamway_bench_planted:clusters(Tree), Planted)
     end || Seed <- Seeds].

%% Returns the seeds and the values of alpha to try.
alpha_tries(full, true) -> {[1], ?ALPHAS};
alpha_tries(full, false) -> {[1, 2, 3], ?ALPHAS};
alpha_tries(quick, true) -> none;
alpha_tries(quick, false) -> {[1], [1.3, 1.6, 2.0]}.

best_alpha(_, none) -> none;
best_alpha(Shape, {Seeds, Alphas}) ->
    {_, Alpha, Scores} = lists:max([{mean(Scores), Alpha, Scores} || Alpha <- Alphas, Scores <- [scores({alpha, Alpha}, Shape, Seeds)]]),
    {Alpha, Scores}.

%% Returns the best of nine runs. Each has its own process, because otherwise garbage from earlier work would be collected while the time is measured.
large() ->
    {Matrix, Planted} = beamway_bench_planted:make_spec(?LARGE, 1),
    lists:min([timed(Matrix, Planted) || _ <- lists:seq(1, 9)]).

timed(Matrix, Planted) ->
    {Pid, Monitor} = spawn_monitor(?MODULE, time_once, [Matrix, Planted]),
    receive
        {'DOWN', Monitor, process, Pid, {seconds, Seconds}} -> Seconds;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    after 120000 -> error(clustering_takes_two_minutes)
    end.

%% @private
-spec time_once(placement_matrix:matrix(), [[node()]]) -> no_return().
time_once(Matrix, Planted) ->
    {Us, #{tree := Tree}} = timer:tc(fun() -> placement_cluster:cluster(Matrix) end),
    1.0 = beamway_bench_planted:score(beamway_bench_planted:clusters(Tree), Planted),
    exit({seconds, Us / 1.0e6}).
