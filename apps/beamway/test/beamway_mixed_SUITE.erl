%% SPDX-License-Identifier: Apache-2.0
%% @doc A cluster of nodes on two OTP releases, each with Beamway built for its own release; either side may call.
%%
%% Needs an OTP other than the runner's ({@link beamway_other_otp} explains how to name it). `make test-otp27' provides one, and runs the other suites
%% with the same mixture. The group `inet_tcp' shows what stock distribution does between the two releases.
-module(beamway_mixed_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([two_releases/1, who_calls/1, options_of_one_side/1, four_nodes/1, nodes_leave_and_return/1,
         reconnects/1, flags/1]).

-define(CARRIERS, [inet_tcp, beamway_tcp, beamway_shm, beamway_small, beamway_rdma]).
-define(BY_HAND, ["-kernel", "dist_auto_connect", "never", "-kernel", "prevent_overlapping_partitions", "false"]).
%% Sizes around those of one and of several fragments, and sizes larger than a ring.
-define(SIZES, [0, 1, 100, 4096, 65400, 65536, 65600, 131072, 1000003, 12000017]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> beamway_carrier:all(?CARRIERS).

groups() ->
    beamway_carrier:groups(?CARRIERS, [two_releases, who_calls, options_of_one_side, four_nodes, nodes_leave_and_return,
                                       reconnects, flags]).

init_per_suite(Config) ->
    case beamway_other_otp:is_there() of
        true -> Config;
        false -> {skip, "needs another OTP; make test-otp27 has one"}
    end.

end_per_suite(_Config) -> ok.

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% --- two nodes -----------------------------------------------------------------------------------------

%% Proves that the cluster is mixed: there are two releases, each with its own beam files and driver.
two_releases(Config) ->
    [Own, Other] = [start(Config, Otp, #{}) || Otp <- [own, other]],
    {OwnRelease, OtherRelease} = {release(Own), release(Other)},
    ct:log("releases ~b and ~b", [OwnRelease, OtherRelease]),
    true = OwnRelease < OtherRelease,
    [Compiled, OtherCompiled] = [beamway_peer:run(Peer, fun() -> {code:which(beamway_dist), compiler(beamway_dist)} end)
                                 || {Peer, _} <- [Own, Other]],
    true = element(1, Compiled) =/= element(1, OtherCompiled),
    true = element(2, Compiled) =/= element(2, OtherCompiled),
    ok.

release({Peer, _}) ->
    list_to_integer(beamway_peer:call(Peer, erlang, system_info, [otp_release])).

compiler(Module) ->
    proplists:get_value(version, Module:module_info(compile)).

%% Each release calls the other; then either side sends, links and monitors.
who_calls(Config) ->
    [begin
         Pair = [start(Config, Otp, #{}) || Otp <- Order],
         ok = connect_all(Config, Pair),
         ok = talk(Pair),
         stop(Pair)
     end || Order <- [[own, other], [other, own]]],
    ok.

%% An option that only one side has set applies to the link, here the smaller ring.
options_of_one_side(Config) ->
    Set = [{"BEAMWAY_RING_BYTES", "131072"}],
    [begin
         Pair = [start(Config, Otp, #{env => Env}) || {Otp, Env} <- Sides],
         ok = connect_all(Config, Pair),
         ok = talk(Pair),
         stop(Pair)
     end || Sides <- [[{own, Set}, {other, []}], [{own, []}, {other, Set}], [{other, Set}, {own, []}],
                      [{other, []}, {own, Set}]]],
    ok.

%% The number of descriptors stays the same on both releases.
reconnects(Config) ->
    Pair = [{PeerA, NodeA}, {PeerB, NodeB}] = [start(Config, Otp, #{args => ?BY_HAND}) || Otp <- [own, other]],
    Carrier = beamway_carrier:carrier(Config),
    Round = fun({Caller, Called, CalledNode}) ->
                    ok = beamway_peer:connect_both(Carrier, Caller, Called),
                    true = beamway_peer:call(Caller, erlang, disconnect_node, [CalledNode]),
                    ok = beamway_peer:wait_disconnected(PeerA, NodeB),
                    ok = beamway_peer:wait_disconnected(PeerB, NodeA)
            end,
    Ways = [{PeerA, PeerB, NodeB}, {PeerB, PeerA, NodeA}],
    lists:foreach(Round, Ways),
    Before = [beamway_peer:resources(Peer) || {Peer, _} <- Pair],
    [lists:foreach(Round, Ways) || _ <- lists:seq(1, beamway_carrier:scale(20, 300))],
    [_ = beamway_peer:wait_until(fun() -> beamway_peer:no_more(beamway_peer:resources(Peer), Was) end, 5000)
     || {{Peer, _}, Was} <- lists:zip(Pair, Before)],
    ok.

%% The carrier relies on flags that are the same in both: fragments that can be rejected, handshake version 6 with
%% creations, and the atom cache, whose messages must stay in order. (docs/dev/otp-releases.md)
flags(Config) ->
    [Own, Other] = [beamway_peer:call(Peer, erts_internal, get_dflags, [])
                    || {Peer, _} <- [start(Config, Otp, #{}) || Otp <- [own, other]]],
    [begin
         {erts_dflags, Default, Mandatory, _Addable, Rejectable, StrictOrder} = Flags,
         {16#800000, 16#800000} = {Default band 16#800000, Rejectable band 16#800000},
         0 = Mandatory band 16#800000,
         16#1000000 = Default band 16#1000000,
         16#2000 = StrictOrder
     end || Flags <- [Own, Other]],
    %% Each release has every flag that the other requires.
    [Missing, Missing] = [element(3, Asking) band bnot element(2, Asked) || {Asking, Asked} <- [{Own, Other}, {Other, Own}]],
    0 = Missing,
    ok.

%% --- four nodes ----------------------------------------------------------------------------------------

%% Every pair of the four, on the same release or not, has the carrier's link, and every node gets the messages of all others.
four_nodes(Config) ->
    Cluster = [start(Config, Otp, #{}) || Otp <- [own, other, own, other]],
    ok = connect_all(Config, Cluster),
    ok = talk(Cluster),
    ok = same_names_everywhere(Cluster).

%% Each node registers a name with global and joins a process to a group; all four nodes see all of them.
same_names_everywhere(Cluster) ->
    Nodes = [Node || {_, Node} <- Cluster],
    [beamway_peer:run(Peer, fun() -> ok = global:sync(), join() end) || {Peer, _} <- Cluster],
    [begin
         _ = beamway_peer:wait_until(fun() -> beamway_peer:run(Peer, fun() -> sees_all(Nodes) end) end, 20000)
     end || {Peer, _} <- Cluster],
    ok.

join() ->
    Pid = spawn(fun() ->
                        {ok, Scope} = pg:start_link(beamway_mixed),
                        yes = global:register_name({beamway_mixed, node()}, self()),
                        ok = pg:join(beamway_mixed, everyone, self()),
                        receive {stop, Scope} -> ok end
                end),
    _ = beamway_peer:wait_until(fun() -> global:whereis_name({beamway_mixed, node()}) =:= Pid end, 10000),
    ok.

sees_all(Nodes) ->
    Named = [global:whereis_name({beamway_mixed, Node}) || Node <- Nodes],
    lists:all(fun is_pid/1, Named) andalso
        lists:sort([node(Pid) || Pid <- Named]) =:= lists:sort(Nodes) andalso
        lists:sort(pg:get_members(beamway_mixed, everyone)) =:= lists:sort(Named).

%% One node on each release is killed in turn and returns under its name: the others get the reason, keep their
%% connections, and talk to the returned node.
nodes_leave_and_return(Config) ->
    Otps = [own, other, own, other],
    Cluster = [start(Config, Otp, #{args => ?BY_HAND}) || Otp <- Otps],
    ok = connect_all(Config, Cluster),
    _ = lists:foldl(fun(Index, Now) -> leave_and_return(Config, Index, lists:nth(Index, Otps), Now) end, Cluster, [2, 1, 3, 4]),
    ok.

leave_and_return(Config, Index, Otp, Cluster) ->
    {Peer, Node} = Leaving = lists:nth(Index, Cluster),
    Rest = lists:delete(Leaving, Cluster),
    Before = connections(Rest),
    Watchers = [{Watching, beamway_peer:watch_nodedown(Watching)} || {Watching, _} <- Rest],
    case Index of
        4 -> ok = beamway_peer:halt_node(Peer);
        _ -> ok = beamway_peer:kill9(Peer)
    end,
    [{connection_closed, _} = beamway_peer:nodedown(Watching, Watcher, Node, 10000) || {Watching, Watcher} <- Watchers],
    Before = connections(Rest),
    [Name, _] = string:split(atom_to_list(Node), "@"),
    Returned = start(Config, Otp, #{name => Name, args => ?BY_HAND}),
    %% The returned node calls one node, and the others call it.
    ok = connect_all(Config, lists:sublist(Rest, 1) ++ [Returned]),
    [ok = beamway_peer:connect_both(beamway_carrier:carrier(Config), element(1, Returned), Called)
     || {Called, _} <- lists:nthtail(1, Rest)],
    ok = talk([Returned | Rest]),
    lists:sublist(Cluster, Index - 1) ++ [Returned] ++ lists:nthtail(Index, Cluster).

connections(Cluster) ->
    [beamway_peer:controller(Peer, Node) || {Peer, Own} <- Cluster, {_, Node} <- Cluster, Node =/= Own].

%% --- helpers -------------------------------------------------------------------------------------------

start(Config, Otp, Options) ->
    {ok, Peer, Node} = beamway_peer:start(beamway_carrier:carrier(Config), Options#{otp => Otp}),
    {Peer, Node}.

stop(Cluster) ->
    beamway_peer:stop_all([Peer || {Peer, _} <- Cluster]).

%% Each node calls those after it; the kind of link is checked on both sides.
connect_all(Config, [{Peer, _} | Rest]) ->
    [ok = beamway_peer:connect_both(beamway_carrier:carrier(Config), Peer, Called) || {Called, _} <- Rest],
    connect_all(Config, Rest);
connect_all(_Config, []) ->
    ok.

%% All nodes talk to all others at the same time: messages of all sizes there and back, calls, and the final signals of links and monitors.
talk(Cluster) ->
    Talks = [beamway_peer:async(fun() -> beamway_peer:run(Peer, fun() -> talk_to(Node) end, 120000) end)
             || {Peer, Own} <- Cluster, {_, Node} <- Cluster, Node =/= Own],
    [ok = beamway_peer:await(Talk) || Talk <- Talks],
    ok.

talk_to(Node) ->
    process_flag(trap_exit, true),
    Echo = spawn_link(Node, fun beamway_peer:echo/0),
    [begin
         Term = {Size, make_ref(), payload(Size), #{self() => [Size | Node]}},
         Echo ! {self(), Term},
         receive {echo, Back} -> Back =:= Term orelse error({differs, Size})
         after 60000 -> error({no_echo, Size})
         end
     end || Size <- ?SIZES],
    Node = erpc:call(Node, erlang, node, [], 60000),
    Reason = {last_words, payload(300000)},
    Monitor = monitor(process, Echo),
    Echo ! {stop, Reason},
    receive {'DOWN', Monitor, process, Echo, Reason} -> ok after 60000 -> error(no_down) end,
    receive {'EXIT', Echo, Reason} -> ok after 60000 -> error(no_exit) end.

%% The block has a prime length, so a misplaced fragment never looks right.
payload(Size) ->
    Block = << <<(erlang:phash2({Size, N}, 1 bsl 32)):32>> || N <- lists:seq(1, 257) >>,
    binary:part(binary:copy(<<Block/binary, 7>>, Size div 1029 + 1), 0, Size).
