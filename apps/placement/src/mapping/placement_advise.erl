%% SPDX-License-Identifier: Apache-2.0
%% @doc Finds pairs of nodes that exchange a lot of data although they are far apart. It does not move anything, because
%% the owner of a process decides where it runs.
%%
%% The traffic is taken from the attribute `link_bytes', which only nodes with the Beamway carrier have, and distances are
%% taken from the current tree. Called by {@link placement:advise/1}.
-module(placement_advise).

-export([advise/1]).

-export_type([advice/0]).

-type advice() :: #{pair := {node(), node()}, bytes := pos_integer(), share := float(), distance := float()}.
%% `share' is the pair's fraction of all bytes that the nodes have reported.

%% @doc Returns the pairs, starting with the one that would gain most from being closer, and the nodes whose traffic is
%% unknown (`Without').
-spec advise([node()]) -> {ok, [advice()], Without :: [node()]} | {error, no_topology}.
advise(Nodes) ->
    case placement_topology:tree() of
        none -> {error, no_topology};
        Tree ->
            Views = placement_cache:fetch(Nodes, [link_bytes], #{}),
            Known = [{Node, Bytes} || {Node, #{attributes := #{link_bytes := {ok, Bytes, _, _, _}}}} <- maps:to_list(Views)],
            {ok, pairs(Tree, Known), lists:sort(maps:keys(Views) -- [Node || {Node, _} <- Known])}
    end.

%% This function is pure. `Known' contains the traffic that each node reports for each peer. A pair is included if its
%% smallest common group is more than half of the way up to the root, and if it exchanged at least as many bytes as the
%% average pair.
-spec pairs(placement_tree:tree(), [{node(), [{node(), Bytes :: non_neg_integer()}]}]) -> [advice()].
pairs(Tree, Known) ->
    Talk = lists:foldl(fun({Pair, Bytes}, Acc) -> maps:update_with(Pair, fun(Before) -> max(Before, Bytes) end, Bytes, Acc) end, #{},
                       %% Both nodes of a pair count the same bytes.
                       [{{min(Node, Peer), max(Node, Peer)}, Bytes} || {Node, Peers} <- Known, {Peer, Bytes} <- Peers, Bytes > 0]),
    Total = lists:sum(maps:values(Talk)),
    Far = [#{pair => {A, B}, bytes => Bytes, share => Bytes / Total, distance => Distance}
           || {{A, B}, Bytes} <- maps:to_list(Talk), Bytes * map_size(Talk) >= Total, {ok, Distance} <- [placement_tree:distance(Tree, A, B)], is_far(Tree, A, B)],
    lists:sort(fun(#{bytes := B1, distance := D1}, #{bytes := B2, distance := D2}) -> B1 * D1 >= B2 * D2 end, Far).

is_far(Tree, A, B) ->
    {ok, Rank, Levels} = placement_tree:rank(Tree, A, B),
    %% In a tree with a single level all nodes are equally far apart.
    Levels > 1 andalso Rank > (Levels + 1) div 2.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

pairs_test() ->
    {ok, Tree} = placement_tree:from_paths([{a, "/s1/r1/a"}, {b, "/s1/r1/b"}, {c, "/s2/r2/c"}, {d, "/s2/r2/d"}]),
    Known = [{a, [{b, 900}, {c, 1000}, {d, 1}]}, {c, [{a, 1010}, {d, 800}]}],
    ?assertMatch([#{pair := {a, c}, bytes := 1010, distance := 1.0}], pairs(Tree, Known)),
    ?assertEqual([], pairs(Tree, [])),
    ?assertEqual([], pairs(Tree, [{a, [{b, 900}, {unheard_of, 5000}]}])),
    {ok, Flat} = placement_tree:from_paths([{a, "/x"}, {c, "/x"}]),
    ?assertEqual([], pairs(Flat, Known)).
-endif.
