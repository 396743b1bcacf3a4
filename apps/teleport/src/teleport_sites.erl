%% SPDX-License-Identifier: Apache-2.0
%% @doc Which nodes a broadcast goes to directly, and which ones a node of their site passes it on to. Pure; {@link teleport_groups} does it.
%%
%% Nodes of the sender's own site, nodes without a site, and a lone node of its site are direct. Of each other site one node is the relay
%% and the others are its leaves. Each sender's node ranks the relays of a site in another order, so the work is shared, and a node that
%% comes or goes changes few of these choices.
-module(teleport_sites).

-export([plan/3, is_site_of/1]).
-export_type([site_of/0, plan/0]).

-type site_of() :: none | #{node() => Site :: term()} | {module(), Function :: atom()} | fun((node()) -> Site :: term()).
%% `none': no sites. A node that the map lacks, whose site is `undefined', or for which the function fails, has no site.
-type plan() :: {Direct :: [node()], Relays :: [{Relay :: node(), Leaves :: [node(), ...]}]}.

%% @doc For a message of the node `Own' to these other nodes.
-spec plan(Own :: node(), Nodes :: [node()], site_of()) -> plan().
plan(_, Nodes, none) -> {Nodes, []};
plan(Own, Nodes, SiteOf) ->
    Sites = maps:to_list(maps:groups_from_list(fun(Node) -> site(Node, SiteOf) end, Nodes)),
    Near = [undefined, site(Own, SiteOf)],
    lists:foldr(fun({Site, Of}, {Direct, Relays}) ->
                        case lists:member(Site, Near) orelse tl(Of) =:= [] of
                            true -> {Of ++ Direct, Relays};
                            false ->
                                {_, Relay} = lists:min([{erlang:phash2({Own, Node}), Node} || Node <- Of]),
                                {Direct, [{Relay, lists:delete(Relay, Of)} | Relays]}
                        end
                end, {[], []}, Sites).

%% @doc Whether this tells the sites of nodes.
-spec is_site_of(term()) -> boolean().
is_site_of({Module, Function}) -> is_atom(Module) andalso is_atom(Function);
is_site_of(Other) -> Other =:= none orelse is_map(Other) orelse is_function(Other, 1).

%% A fault of the function must not stop messages that need no relay.
site(Node, Sites) when is_map(Sites) -> maps:get(Node, Sites, undefined);
site(Node, SiteOf) ->
    try ask(Node, SiteOf) catch _:_ -> undefined end.

ask(Node, {Module, Function}) -> Module:Function(Node);
ask(Node, Fun) -> Fun(Node).
