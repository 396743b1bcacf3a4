%% SPDX-License-Identifier: Apache-2.0
%% @doc Plans which nodes get a broadcast directly, and which get it from a node of their site. All functions are
%% pure; {@link teleport_groups} sends the messages.
%%
%% Nodes of the sender's own site, nodes without a site, and nodes that are alone in their site get
%% the message directly. In every other site one node is the relay and the others are its leaves.
%% Each sending node ranks the relays of a site in a different order, so the relays share the work,
%% and few of these choices change when a node joins or leaves.
-module(teleport_sites).

-export([plan/3, is_site_of/1]).
-export_type([site_of/0, plan/0]).

-type site_of() :: none | #{node() => Site :: term()} | {module(), Function :: atom()} | fun((node()) -> Site :: term()).
%% `none': there are no sites. A node has no site if the map lacks it, if its site is `undefined', or if the function
%% fails.
-type plan() :: {Direct :: [node()], Relays :: [{Relay :: node(), Leaves :: [node(), ...]}]}.

%% @doc Returns the plan for a message from the node `Own' to these other nodes.
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

%% @doc Returns whether this term maps nodes to sites.
-spec is_site_of(term()) -> boolean().
is_site_of({Module, Function}) -> is_atom(Module) andalso is_atom(Function);
is_site_of(Other) -> Other =:= none orelse is_map(Other) orelse is_function(Other, 1).

site(Node, Sites) when is_map(Sites) -> maps:get(Node, Sites, undefined);
site(Node, {Module, Function}) -> site(Node, fun Module:Function/1);
%% A bug in the user's function must not prevent broadcasts to nodes that need no relay.
site(Node, SiteOf) ->
    try SiteOf(Node) catch _:_ -> undefined end.
