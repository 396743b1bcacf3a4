%% SPDX-License-Identifier: Apache-2.0
%% @doc Prepares the nodes of a job for placement: measures the times between them, builds a tree, and publishes it to all
%% of them.
%%
%% Called on one node (`beamway node' does so on the first node of a Slurm job). Placement must run on all nodes of
%% the job.
-module(placement_job).

-export([prepare/2, await/2, summary/1]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-export_type([prepared/0]).

-type prepared() :: #{nodes := pos_integer(), tree := placement_tree:tree(), mode := placement_probe:mode() | none, explained := float() | none,
                      verdict := placement_cluster:verdict() | none, seconds := float(), measured => placement_probe:measured()}.

-define(POLL_MS, 100).
-define(BATCHES, 5).
-define(PUBLISH_TRIES, 10).

%% @doc Measures the times between these nodes in the given modes, builds the tree and publishes it. With a single node, or
%% without a mode, nothing is measured, and the tree is built from the places that the nodes report
%% ({@link placement_place}).
-spec prepare([node(), ...], [placement_probe:mode()]) -> {ok, prepared()} | {error, unicode:chardata()}.
prepare(Nodes, Modes) when tl(Nodes) =:= []; Modes =:= [] ->
    case placement_place:tree(Nodes) of
        {ok, Tree} -> published(Nodes, #{tree => Tree, mode => none, explained => none, verdict => none, seconds => 0.0});
        {error, {no_place, [Node | _]}} -> {error, io_lib:format("node ~ts did not report its place", [Node])};
        {error, Error} -> {error, io_lib:format("the places of the nodes make no tree: ~0tP", [Error, 12])}
    end;
prepare(Nodes, Modes) ->
    case placement_probe:measure(Nodes, #{modes => Modes, batches => ?BATCHES}) of
        {ok, Measured} -> clustered(Nodes, Measured);
        {error, Reason} -> {error, io_lib:format("measuring failed: ~0tP", [Reason, 12])}
    end.

%% The times of pairs that were not measured are estimated, provided that the measured pairs connect all nodes.
clustered(Nodes, #{seconds := Seconds, failed := Failed} = Measured) ->
    Mode = placement_measured:best_mode(Measured),
    case placement_measured:matrix(Measured, Mode, median_us) of
        {ok, Matrix} ->
            #{tree := Tree, explained := Explained, verdict := Verdict} = placement_cluster:cluster(Matrix),
            published(Nodes, #{tree => Tree, mode => Mode, explained => Explained, verdict => Verdict, seconds => Seconds, measured => Measured});
        {error, Error} -> {error, [placement_matrix:format_error(Error), [io_lib:format("; ~b pairs were not measured; the first (~s): ~ts", [length(Failed), What, pair_text(Pair)])
                                                                          || [{What, _, _, _} = Pair | _] <- [Failed]]]}
    end.

pair_text({_, A, B, Reason}) -> io_lib:format("~ts to ~ts: ~0tP", [A, B, Reason, 8]).

published(Nodes, Prepared) -> published(Nodes, Prepared, ?PUBLISH_TRIES).

%% Retries, because connections may be lost and opened again while the nodes of a job connect to each other.
published(Nodes, #{tree := Tree} = Prepared, Tries) ->
    case placement:set_topology(Tree, Nodes) of
        {ok, _, []} -> {ok, Prepared#{nodes => length(Nodes)}};
        {ok, _, [_ | _]} when Tries > 1 -> receive after 5 * ?POLL_MS -> published(Nodes, Prepared, Tries - 1) end;
        {ok, _, [Without | _]} -> {error, io_lib:format("node ~ts did not take the tree; does placement run there?", [Without])}
    end.

%% @doc Waits until this node has a tree that contains it. `Gone' returns whether the nodes that could send such a tree have
%% gone down.
-spec await(Ms :: non_neg_integer(), Gone :: fun(() -> boolean())) -> ok | {error, timeout | gone}.
await(Ms, Gone) -> awaited(erlang:monotonic_time(millisecond) + Ms, Gone).

awaited(End, Gone) ->
    case placement_tree:is_member(placement:topology(), node()) of
        true -> ok;
        false ->
            case {Gone(), erlang:monotonic_time(millisecond) > End} of
                {true, _} -> {error, gone};
                {_, true} -> {error, timeout};
                _ -> receive after ?POLL_MS -> awaited(End, Gone) end
            end
    end.

%% @doc Formats a one-line summary of the result.
-spec summary(prepared()) -> unicode:chardata().
summary(#{nodes := Nodes, tree := Tree, mode := none}) ->
    case placement_tree:depth(Tree) of
        Flat when Flat =< 1 -> io_lib:format("~b nodes, not measured: all equally far", [Nodes]);
        Depth -> io_lib:format("~b nodes, not measured: a tree of depth ~b by what Slurm says", [Nodes, Depth])
    end;
summary(#{nodes := Nodes, tree := Tree, mode := Mode, explained := Explained, verdict := Verdict, seconds := Seconds, measured := #{failed := Failed}}) ->
    [io_lib:format("~b nodes, ~s times measured in ~.1f s, a tree of depth ~b that explains ~b % of them (~s)",
                   [Nodes, Mode, Seconds, placement_tree:depth(Tree), round(Explained * 100), Verdict]),
     estimated([Pair || {What, _, _, _} = Pair <- Failed, What =:= Mode])].

estimated([]) -> "";
estimated([Pair]) -> ["; 1 pair was not measured and is estimated: ", pair_text(Pair)];
estimated([Pair | _] = Pairs) -> [io_lib:format("; ~b pairs were not measured and are estimated, the first: ", [length(Pairs)]), pair_text(Pair)].

-ifdef(TEST).

summary_test() ->
    {ok, Tree} = placement_tree:from_paths([{a, "/top/s0/n1"}, {b, "/top/s0/n1"}, {c, "/top/s0/n2"}, {d, "/top/s1/n3"}]),
    ?assertEqual("4 nodes, not measured: a tree of depth 3 by what Slurm says", lists:flatten(summary(#{nodes => 4, tree => Tree, mode => none}))).
-endif.
