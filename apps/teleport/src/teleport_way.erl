%% SPDX-License-Identifier: Apache-2.0
%% @doc Which way a message or a call takes: a lane, or the distribution itself. One rule for both, so what one process sends to another keeps its order.
%%
%% By the option `way' at `auto' what goes to a pid takes the distribution where Beamway carries it: there a small message overtakes large ones, and `!' is
%% the cheapest way. A registered name takes a lane: a call of it by distribution would need a monitor there, and callers of proxies ({@link teleport_proxy})
%% share lanes with them. An option that only lanes have takes a lane, too.
-module(teleport_way).

-export([is_direct/1, mark/3, forget/1, forget_all/0, choose/5]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% `true' for each node to which a pid's messages without options take the distribution. An atom alone may come and go: for any other term ERTS would search
%% all heaps of the node.
-define(KEY(Node), {?MODULE, Node}).

%% @doc Whether a message without options goes to this destination by the distribution: one look, since a message costs little more than that. What is not
%% so, or not known, is `false'; then {@link choose/5} finds out.
-spec is_direct(teleport:dest()) -> boolean().
is_direct(Pid) when is_pid(Pid) -> persistent_term:get(?KEY(node(Pid)), false);
is_direct(_) -> false.

%% @doc Tells {@link is_direct/1} of a node that is connected. Called by {@link teleport_peers} alone, as are the next two.
-spec mark(node(), IsCarried :: boolean(), teleport_config:config()) -> ok.
mark(Node, IsCarried, #{on_full := block, way := Way}) when IsCarried, Way =/= lane; Way =:= distribution -> persistent_term:put(?KEY(Node), true);
mark(Node, _, _) -> forget(Node).

%% @doc It is not connected.
-spec forget(node()) -> ok.
forget(Node) ->
    _ = persistent_term:erase(?KEY(Node)),
    ok.

%% @doc The application starts or stops.
-spec forget_all() -> ok.
forget_all() -> lists:foreach(fun forget/1, [Node || {?KEY(Node), _} <- persistent_term:get()]).

%% @doc How this goes. Waits for a node that is not connected until the deadline. If that fails it is a lane's task to say why.
-spec choose(node(), pid() | atom(), teleport:options(), teleport_config:config(), fun(() -> teleport_deadline:deadline())) -> lane | distribution.
choose(Node, Remote, Options, Config, Deadline) ->
    case rule(Remote, Options, Config) of
        where_carried ->
            case teleport_peers:is_carried(Node) of
                true -> distribution;
                false -> lane;
                unknown -> settled(teleport_peers:settle(Node, Deadline()))
            end;
        Way -> Way
    end.

settled(true) -> distribution;
settled(_) -> lane.

rule(_, #{way := Way}, _) -> Way;
rule(_, _, #{way := lane}) -> lane;
rule(Remote, Options, #{way := Way, on_full := OnFull}) ->
    case needs_lane(Options, OnFull) of
        true -> lane;
        false when Way =:= distribution -> distribution;
        false when is_pid(Remote) -> where_carried;
        false -> lane
    end.

%% Only lanes count what they drop.
needs_lane(Options, drop) when not is_map_key(on_full, Options) -> true;
needs_lane(Options, _) when map_size(Options) =:= 0 -> false;
needs_lane(#{key := _}, _) -> true;
needs_lane(#{class := Class}, _) when Class =/= normal -> true;
needs_lane(#{on_full := drop}, _) -> true;
needs_lane(#{unordered := true}, _) -> true;
needs_lane(#{confirm := true}, _) -> true;
needs_lane(_, _) -> false.

-ifdef(TEST).

rule_test_() ->
    Auto = #{way => auto, on_full => block},
    [?_assertEqual(Way, rule(Remote, Options, maps:merge(Auto, Config)))
     || {Way, Remote, Options, Config} <-
            [{where_carried, self(), #{}, #{}}, {lane, name, #{}, #{}}, {lane, self(), #{}, #{way => lane}}, {distribution, name, #{}, #{way => distribution}},
             {distribution, self(), #{way => distribution, key => 1}, #{way => lane}}, {lane, self(), #{way => lane}, #{way => distribution}},
             {where_carried, self(), #{timeout => 5, class => normal, unordered => false, confirm => false, on_full => error}, #{}},
             {lane, self(), #{key => undefined}, #{}}, {lane, self(), #{class => control}, #{way => distribution}}, {lane, self(), #{unordered => true}, #{}},
             {lane, self(), #{confirm => true}, #{}}, {lane, self(), #{on_full => drop}, #{}}, {lane, self(), #{timeout => 1}, #{on_full => drop}},
             {where_carried, self(), #{on_full => block}, #{on_full => drop}}]].

-endif.
