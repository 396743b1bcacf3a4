%% SPDX-License-Identifier: Apache-2.0
%% @doc Assigns keys to nodes with weighted rendezvous hashing. All functions are pure.
%%
%% Every node computes the same hash for each pair of key and node, and the node with the highest value is chosen. So when
%% a node is added, only the keys for which it has the highest value move to it; when a node is removed, only its own keys
%% move. A node's share of the keys is proportional to its weight (D. G. Thaler and C. V. Ravishankar, "Using name-based
%% mappings to increase hit rates", IEEE/ACM Transactions on Networking 6, 1998; with the logarithm for weights,
%% J. Schindelhauer and G. Schomaker, "Weighted distributed hash tables", SPAA 2005).
-module(placement_rendezvous).

-export([ranked/2]).

%% @doc Returns the nodes for a key, best first. The nodes after the first can store copies, or take over when the
%% first is down. Nodes without a positive weight are left out, and so are nodes whose weight is too large for a float.
-spec ranked(Key :: term(), [{node(), Weight :: number()}]) -> [node()].
ranked(Key, Weighted) ->
    Scored = [{score(Key, Node, Weight), Node} || {Node, Weight} <- Weighted, Weight > 0, placement_unit:is_measure(Weight)],
    [Node || {_, Node} <- lists:reverse(lists:usort(Scored))].

score(Key, Node, Weight) ->
    <<Bits:52, _/bitstring>> = erlang:md5(bytes({Key, Node})),
    Weight / -math:log((Bits + 0.5) / (1 bsl 52)).

%% Returns bytes that are the same on every node and in every release: the external format with a fixed minor version, and
%% with map keys in term order. Since OTP 26, the order of map keys in memory depends on the order in which a node has
%% created its atoms.
bytes(Term) -> term_to_binary(Term, [{minor_version, 2}, deterministic]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

keys() -> lists:seq(1, 20000).

owners(Weighted) -> maps:from_list([{Key, hd(ranked(Key, Weighted))} || Key <- keys()]).

share(Node, Owners) -> length([x || Owner <- maps:values(Owners), Owner =:= Node]) / map_size(Owners).

shares_follow_weights_test() ->
    Owners = owners([{a, 1}, {b, 2}, {c, 5}, {d, 0}]),
    [?assert(abs(share(Node, Owners) - Want) < 0.02) || {Node, Want} <- [{a, 1 / 8}, {b, 2 / 8}, {c, 5 / 8}, {d, 0.0}]].

a_join_moves_to_the_new_node_only_test() ->
    Before = owners([{a, 1}, {b, 1}, {c, 1}]),
    After = owners([{d, 1}, {c, 1}, {b, 1}, {a, 1}]),
    Moved = [Owner || {Key, Owner} <- maps:to_list(After), maps:get(Key, Before) =/= Owner],
    ?assertEqual([d], lists:usort(Moved)),
    ?assert(abs(length(Moved) / map_size(After) - 0.25) < 0.02).

%% When a node is removed, each of its keys moves to the node that was second for that key.
a_leave_test() ->
    [?assertEqual(tl(ranked(Key, [{a, 1}, {b, 3}, {c, 1}])), ranked(Key, lists:keydelete(hd(ranked(Key, [{a, 1}, {b, 3}, {c, 1}])), 1, [{a, 1}, {b, 3}, {c, 1}])))
     || Key <- lists:seq(1, 200)].

left_out_test() -> ?assertEqual([c], ranked(key, [{a, 0}, {b, 1 bsl 1024}, {c, 1}])).

%% The atom that sorts last is created first.
atoms_in_another_order_test() ->
    Names = ["rendezvous_" ++ [C] || C <- "edcba"],
    Bytes = bytes(maps:from_list([{list_to_atom(Name), 1} || Name <- Names])),
    Found = [Place || Name <- lists:sort(Names), {Place, _} <- [binary:match(Bytes, list_to_binary(Name))]],
    ?assertEqual({5, lists:sort(Found)}, {length(Found), Found}).
-endif.
