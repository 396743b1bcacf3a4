%% SPDX-License-Identifier: Apache-2.0
%% @doc Faults on demand (`beamway:fault/2'): what each does to a link over each carrier, that it affects all connections between the two nodes, and
%% that it is cleared.
-module(beamway_fault_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([slow/1, narrow/1, reset/1, reset_without_resume/1, cut/1, cut_one_way/1, cut_is_outlived/1, cut_of_new_connections/1, dies_within_a_cut/1,
         replaced_and_ended/1, later_links/1, server_ends/1, refused/1, not_driven/1, shown/1]).
-export([keep/1, round_trip_ms/1]).

-define(WAIT_MS, 20000).

suite() -> [{timetrap, {minutes, 5}}].

all() -> [{group, Carrier} || Carrier <- [beamway_tcp, beamway_shm, beamway_encrypted, beamway_tls, beamway_tls_shm]] ++ [{group, nodes}].

groups() ->
    Everywhere = [slow, reset, cut],
    [{beamway_tcp, [], Everywhere ++ [narrow, reset_without_resume, cut_one_way, cut_is_outlived, cut_of_new_connections, dies_within_a_cut]},
     {beamway_shm, [], Everywhere ++ [narrow, reset_without_resume, cut_one_way]},
     {beamway_encrypted, [], [reset, cut_of_new_connections]},
     {beamway_tls, [], Everywhere},
     {beamway_tls_shm, [], [reset, cut]},
     {nodes, [], [replaced_and_ended, later_links, server_ends, refused, not_driven, shown]}].

init_per_suite(Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    Config.

end_per_suite(_Config) -> ok.

init_per_group(nodes, Config) -> [{carrier, beamway_tcp} | Config];
init_per_group(Carrier, Config) -> [{carrier, Carrier} | Config].

end_per_group(_Carrier, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% ---- nodes ----

pair(Config) -> pair(Config, []).

%% Only the first node allows faults.
pair(Config, Env) ->
    Carrier = proplists:get_value(carrier, Config),
    [{One, OneNode}, {Other, OtherNode}] = [start(Carrier, Env ++ Allowed) || Allowed <- [[{"BEAMWAY_ALLOW_FAULTS", "true"}], []]],
    ok = beamway_peer:connect_both(Carrier, One, Other),
    {One, OneNode, Other, OtherNode}.

start(Carrier, Env) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, #{env => Env, args => ["-kernel", "net_ticktime", "2", "net_setuptime", "2", "logger_level", "info"]}),
    {Peer, Node}.

fault(Peer, Node, Fault) -> beamway_peer:call(Peer, beamway, fault, [Node, Fault]).

is_up(Peer, Node) -> lists:member(Node, beamway_peer:call(Peer, erlang, nodes, [])).

link_of(Peer, Node) ->
    {ok, Info} = beamway_peer:call(Peer, beamway, info, [Node]),
    Info.

resumes(Peer, Node) -> maps:get(resumes, link_of(Peer, Node), 0).

until(Holds) -> _ = beamway_peer:wait_until(Holds, ?WAIT_MS).

%% Starts a process that keeps the messages that it receives.
keeper(Peer) -> beamway_peer:run(Peer, fun() -> spawn(fun() -> ?MODULE:keep([]) end) end).

%% @doc The loop of that process.
-spec keep([term()]) -> no_return().
keep(Kept) ->
    receive
        {give, To} -> To ! {kept, lists:reverse(Kept)}, keep(Kept);
        Message -> keep([Message | Kept])
    end.

kept(Peer, Keeper) -> beamway_peer:run(Peer, fun() -> Keeper ! {give, self()}, receive {kept, Kept} -> Kept end end).

send(Peer, To, Messages) -> beamway_peer:run(Peer, fun() -> [To ! Message || Message <- Messages], ok end).

%% @doc Returns the time that a call takes.
-spec round_trip_ms(node()) -> non_neg_integer().
round_trip_ms(Node) ->
    {Us, Node} = timer:tc(erpc, call, [Node, erlang, node, []]),
    Us div 1000.

why(Peer, Node) ->
    Ended = fun() ->
                    case beamway_peer:call(Peer, beamway, why, [Node]) of
                        {ok, Links} -> [Link || #{ended := _} = Link <- Links];
                        {error, unknown} -> []
                    end
            end,
    until(fun() -> Ended() =/= [] end),
    hd(Ended()).

%% ---- the effect of each fault ----

%% Each direction is slower and keeps its order, and the link is back to normal when the fault has been cleared.
slow(Config) ->
    {One, _, Other, OtherNode} = pair(Config),
    Trip = fun() -> beamway_peer:run(One, fun() -> ?MODULE:round_trip_ms(OtherNode) end) end,
    _ = Trip(),
    ok = fault(One, OtherNode, #{delay_ms => 150, jitter_ms => 100}),
    ?assert(Trip() >= 300),
    Keeper = keeper(Other),
    Numbers = lists:seq(1, 300),
    ok = send(One, Keeper, [{N, binary:copy(<<N>>, N * 30)} || N <- Numbers]),
    until(fun() -> [N || {N, _} <- kept(Other, Keeper)] =:= Numbers end),
    ok = fault(One, OtherNode, none),
    until(fun() -> Trip() < 100 end).

%% Sends 600 KB at 200 KB per second; processes that send more wait in the meantime.
narrow(Config) ->
    {One, _, Other, OtherNode} = pair(Config),
    Keeper = keeper(Other),
    ok = fault(One, OtherNode, #{rate_bytes => 200000}),
    Begun = erlang:monotonic_time(millisecond),
    ok = send(One, Keeper, [{N, binary:copy(<<N>>, 60000)} || N <- lists:seq(1, 10)]),
    until(fun() -> length(kept(Other, Keeper)) =:= 10 end),
    ?assert(erlang:monotonic_time(millisecond) - Begun >= 2500),
    ok = fault(One, OtherNode, none).

%% A reset only causes a pause: every message arrives once.
reset(Config) ->
    {One, _, Other, OtherNode} = pair(Config),
    Keeper = keeper(Other),
    [begin
         ok = send(One, Keeper, [Round]),
         Before = resumes(One, OtherNode),
         ok = fault(One, OtherNode, #{disconnect => true}),
         until(fun() -> resumes(One, OtherNode) > Before end)
     end || Round <- lists:seq(1, 3)],
    until(fun() -> kept(Other, Keeper) =:= [1, 2, 3] end),
    ?assertEqual([], beamway_peer:call(One, beamway, faults, [])).

reset_without_resume(Config) ->
    {One, OneNode, Other, OtherNode} = pair(Config, [{"BEAMWAY_RESUME_MS", "0"}]),
    ok = fault(One, OtherNode, #{disconnect => true}),
    #{cause := fault} = why(One, OtherNode),
    #{cause := Cause} = why(Other, OneNode),
    ?assertNotEqual(fault, Cause).

%% The cut lasts longer than the tick time allows: both nodes lose each other, and find each other again when the fault has been cleared.
cut(Config) ->
    {One, OneNode, Other, OtherNode} = pair(Config),
    ok = fault(One, OtherNode, #{cut => both}),
    until(fun() -> not is_up(One, OtherNode) andalso not is_up(Other, OneNode) end),
    #{cause := fault, short := Short} = why(One, OtherNode),
    ?assertNotEqual(nomatch, string:find(Short, "cut both ways")),
    #{cause := Cause} = why(Other, OneNode),
    ?assertNotEqual(fault, Cause),
    ok = fault(One, OtherNode, none),
    until(fun() -> beamway_peer:call(One, net_kernel, connect_node, [OtherNode]) end).

%% Messages in the other direction arrive until the nodes notice.
cut_one_way(Config) ->
    {One, OneNode, Other, OtherNode} = pair(Config),
    {Here, There} = {keeper(One), keeper(Other)},
    ok = fault(One, OtherNode, #{cut => out}),
    ok = send(One, There, [lost]),
    ok = send(Other, Here, [heard]),
    until(fun() -> kept(One, Here) =:= [heard] end),
    ?assertEqual([], kept(Other, There)),
    until(fun() -> not is_up(One, OtherNode) andalso not is_up(Other, OneNode) end),
    ?assertEqual([], kept(Other, There)),
    ok = fault(One, OtherNode, none),
    until(fun() -> beamway_peer:call(One, net_kernel, connect_node, [OtherNode]) end),
    ok = fault(One, OtherNode, #{cut => in}),
    ok = send(Other, Here, [lost]),
    ok = send(One, There, [heard]),
    until(fun() -> kept(Other, There) =:= [heard] end),
    until(fun() -> not is_up(One, OtherNode) andalso not is_up(Other, OneNode) end),
    ?assertEqual([heard], kept(One, Here)).

%% The fault expires before either node gives up.
cut_is_outlived(Config) ->
    {One, OneNode, Other, OtherNode} = pair(Config),
    {Here, There} = {keeper(One), keeper(Other)},
    ok = fault(One, OtherNode, #{cut => both, for_ms => 1500}),
    ok = send(One, There, [1, 2]),
    ok = send(Other, Here, [1, 2]),
    ?assertEqual({[], []}, {kept(One, Here), kept(Other, There)}),
    until(fun() -> kept(One, Here) =:= [1, 2] andalso kept(Other, There) =:= [1, 2] end),
    ?assertEqual({[], error}, {beamway_peer:call(One, beamway, faults, []), maps:find(fault, link_of(One, OtherNode))}),
    ?assert(is_up(One, OtherNode) andalso is_up(Other, OneNode)),
    %% The other node's kernel has found the path silent, as in a real outage.
    {ok, [#{facts := Facts} | _]} = beamway_peer:call(Other, beamway, why, [OneNode]),
    ?assertMatch([_ | _], [Text || #{text := Text} <- Facts, string:find(Text, "nothing came back from the peer's host") =/= nomatch]).

%% Neither node can call the other as long as the fault lasts.
cut_of_new_connections(Config) ->
    {One, OneNode, Other, OtherNode} = pair(Config),
    ok = fault(One, OtherNode, #{cut => both}),
    true = beamway_peer:call(One, erlang, disconnect_node, [OtherNode]),
    true = beamway_peer:call(Other, erlang, disconnect_node, [OneNode]),
    Calls = [beamway_peer:async(fun() -> beamway_peer:call(Peer, net_kernel, connect_node, [Node]) end) || {Peer, Node} <- [{One, OtherNode}, {Other, OneNode}]],
    ?assertEqual([false, false], [beamway_peer:await(Call, ?WAIT_MS) || Call <- Calls]),
    ?assertMatch([{OtherNode, #{cut := both}}], beamway_peer:call(One, beamway, faults, [])),
    ok = fault(One, OtherNode, none),
    until(fun() -> beamway_peer:call(Other, net_kernel, connect_node, [OneNode]) end).

%% While the path is cut, a node does not notice that the peer's process has exited.
dies_within_a_cut(Config) ->
    {One, _, Other, OtherNode} = pair(Config, [{"BEAMWAY_RESUME_MS", "2000"}]),
    ok = fault(One, OtherNode, #{cut => both}),
    ok = beamway_peer:kill9(Other),
    receive after 1000 -> ok end,
    ?assert(is_up(One, OtherNode)),
    #{cause := fault} = why(One, OtherNode).

%% ---- setting faults ----

replaced_and_ended(Config) ->
    {One, _, _, OtherNode} = pair(Config),
    Known = fun() -> case link_of(One, OtherNode) of #{fault := Fault} -> maps:remove(left_ms, Fault); #{} -> none end end,
    ok = fault(One, OtherNode, #{delay_ms => 5, for_ms => 300}),
    ok = fault(One, OtherNode, #{rate_bytes => 1000000, jitter_ms => 0, for_ms => 3600000}),
    receive after 500 -> ok end,
    ?assertEqual(#{rate_bytes => 1000000}, Known()),
    ok = fault(One, OtherNode, #{delay_ms => 5, for_ms => 300}),
    ?assertEqual(#{delay_ms => 5}, Known()),
    until(fun() -> Known() =:= none end),
    ok = fault(One, OtherNode, none).

%% A fault applies to the path to a node, not to a connection, so the link's next connection and the next link are also affected.
later_links(Config) ->
    {One, _, _, OtherNode} = pair(Config),
    Trip = fun() -> beamway_peer:run(One, fun() -> ?MODULE:round_trip_ms(OtherNode) end) end,
    ok = fault(One, OtherNode, #{delay_ms => 100, disconnect => true}),
    until(fun() -> resumes(One, OtherNode) =:= 1 end),
    ?assert(Trip() >= 200),
    true = beamway_peer:call(One, erlang, disconnect_node, [OtherNode]),
    true = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
    ?assert(Trip() >= 200),
    ok = fault(One, OtherNode, none),
    until(fun() -> Trip() < 200 end).

%% A fault is cleared when the server that has set it exits.
server_ends(Config) ->
    {One, _, Other, OtherNode} = pair(Config),
    Keeper = keeper(Other),
    ok = fault(One, OtherNode, #{cut => both}),
    ok = send(One, Keeper, [1]),
    true = beamway_peer:run(One, fun() -> exit(whereis(beamway_fault), kill) end),
    until(fun() -> kept(Other, Keeper) =:= [1] end),
    ?assertEqual([], beamway_peer:call(One, beamway, faults, [])).

%% The other node does not allow faults, whichever node asks, and cannot be made to.
refused(Config) ->
    {One, OneNode, Other, OtherNode} = pair(Config),
    {error, {not_allowed, Text}} = fault(Other, OneNode, #{cut => both}),
    ?assertNotEqual(nomatch, string:find(Text, "BEAMWAY_ALLOW_FAULTS")),
    ok = beamway_peer:call(Other, application, set_env, [beamway, allow_faults, true]),
    true = beamway_peer:call(Other, os, putenv, ["BEAMWAY_ALLOW_FAULTS", "true"]),
    ignore = beamway_peer:call(Other, beamway_fault, start_link, []),
    ?assertMatch({error, {not_allowed, _}}, fault(Other, OneNode, #{cut => both})),
    ?assertMatch({error, {not_connected, _}}, fault(One, nobody@nowhere, #{cut => both})),
    ?assertEqual(ok, fault(One, nobody@nowhere, none)),
    ?assertMatch({badarg, {fault, {cut, sideways}, "expected in, out or both"}},
                 beamway_peer:run(One, fun() -> try beamway:fault(OtherNode, #{cut => sideways}) catch error:Reason -> Reason end end)),
    ?assertEqual([], beamway_peer:call(One, beamway, faults, [])).

not_driven(_Config) ->
    {One, _, _, OtherNode} = pair([{carrier, beamway_inet}]),
    {error, {not_driven, Text}} = fault(One, OtherNode, #{delay_ms => 1}),
    ?assertNotEqual(nomatch, string:find(Text, atom_to_list(OtherNode))).

shown(Config) ->
    {One, _, _, OtherNode} = pair(Config),
    ok = fault(One, OtherNode, #{delay_ms => 7, for_ms => 600000}),
    [#{fault := #{delay_ms := 7, left_ms := LeftMs}}] = beamway_peer:call(One, beamway, links, []),
    ?assert(LeftMs > 500000 andalso LeftMs =< 600000),
    Metrics = iolist_to_binary(beamway_peer:call(One, beamway, metrics, [])),
    ?assertNotEqual(nomatch, string:find(Metrics, ["\nbeamway_fault{peer=\"", atom_to_list(OtherNode), "\"} 1\n"])),
    {ok, [#{cause := up, facts := Facts}]} = beamway_peer:call(One, beamway, why, [OtherNode]),
    ?assertMatch([_], [Text || #{text := Text} <- Facts, string:find(Text, "a delay of 7 ms each way") =/= nomatch]).
