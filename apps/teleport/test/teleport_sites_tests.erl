%% SPDX-License-Identifier: Apache-2.0
%% Checks which nodes get a broadcast directly, and which get it through a relay.
-module(teleport_sites_tests).

-include_lib("eunit/include/eunit.hrl").

sites() -> #{a => x, b => x, c => y, d => y, e => y, f => z, g => z, lone => v}.

plan_test_() ->
    [?_assertEqual({[b], []}, teleport_sites:plan(a, [b], sites())),
     ?_assertEqual({[b, lone, stranger], []}, sorted(teleport_sites:plan(a, [b, lone, stranger], sites()))),
     ?_assertEqual({[c, d, f], []}, sorted(teleport_sites:plan(a, [c, d, f], none))),
     ?_assertMatch({[b], [{_, [_, _]}, {_, [_]}]}, teleport_sites:plan(a, [b, c, d, e, f, g], sites())),
     %% A sender without a site also uses relays.
     ?_assertMatch({[], [{_, [_, _]}]}, teleport_sites:plan(stranger, [c, d, e], sites()))].

sorted({Direct, Relays}) -> {lists:sort(Direct), Relays}.

all_kinds_of_functions_test() ->
    Nodes = [b, c, d, e, f, g, lone],
    Plan = teleport_sites:plan(a, Nodes, sites()),
    ?assertEqual(Plan, teleport_sites:plan(a, Nodes, fun(Node) -> maps:get(Node, sites()) end)),
    %% The function fails only for strangers.
    ?assertEqual({[stranger], element(2, Plan)}, teleport_sites:plan(a, [c, d, e, f, g, stranger], fun(Node) -> maps:get(Node, sites()) end)),
    ?assertEqual({[c, d], []}, sorted(teleport_sites:plan(a, [c, d], {no_such_module, site}))).

%% Each node gets the message once, and relays of a site differ between senders.
each_once_test() ->
    Name = fun(N) -> list_to_atom("n" ++ integer_to_list(N)) end,
    Nodes = [Name(N) || N <- lists:seq(1, 60)],
    SiteOf = fun(Node) -> erlang:phash2(Node, 7) end,
    Plans = [teleport_sites:plan(Own, lists:delete(Own, Nodes), SiteOf) || Own <- Nodes],
    [?assertEqual(lists:sort(lists:delete(Own, Nodes)), lists:sort(Direct ++ lists:append([[Relay | Leaves] || {Relay, Leaves} <- Relays])))
     || {Own, {Direct, Relays}} <- lists:zip(Nodes, Plans)],
    ?assert(length(lists:usort([Relay || {_, Relays} <- Plans, {Relay, _} <- Relays])) > 14).

%% When one of ten nodes leaves a site, only those plans change in which it was the relay.
stable_test() ->
    Nodes = [list_to_atom("n" ++ integer_to_list(N)) || N <- lists:seq(1, 10)],
    SiteOf = fun(own) -> here; (_) -> there end,
    {[], [{Relay, Leaves}]} = teleport_sites:plan(own, Nodes, SiteOf),
    [?assertMatch({[], [{Relay, _}]}, teleport_sites:plan(own, lists:delete(Leaf, Nodes), SiteOf)) || Leaf <- Leaves].
