%% SPDX-License-Identifier: Apache-2.0
%% @doc Mnesia on three nodes over each carrier: transactions run on all of them while one node is separated from the
%% others, is stopped, or is killed, and then comes back.
%%
%% In the end all three nodes must have everything that was committed on the two nodes that stay together, and also
%% those earlier commits of the third node that had reached the others. In the group `inet_tcp' the cases show what
%% mnesia does over stock distribution; its events and its final state must be the same over Beamway.
-module(beamway_mnesia_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([parted_and_joined/1, stopped_and_continued/1, killed_and_returned/1]).
%% Called on a node.
-export([leave/1]).

%% A phase waits for this many transactions of each node.
-define(ENOUGH, 30).

suite() -> [{timetrap, {minutes, beamway_carrier:scale(3, 20)}}].

all() -> beamway_carrier:all().

groups() -> beamway_carrier:groups([parted_and_joined, stopped_and_continued, killed_and_returned]).

init_per_suite(Config) ->
    case code:lib_dir(mnesia) of
        {error, bad_name} -> {skip, "mnesia is not installed (erlang-mnesia)"};
        _ -> Config
    end.

end_per_suite(_Config) -> ok.

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

%% --- cases ---------------------------------------------------------------------------------------------

%% The connections of one node are closed and cannot be set up again, while all three nodes continue to run.
parted_and_joined(Config) ->
    rounds(Config, fun(_Majority, #{node := Node, peer := Peer}) ->
                           Others = beamway_peer:call(Peer, erlang, nodes, []),
                           ok = beamway_peer:call(Peer, ?MODULE, leave, [Others]),
                           fun() -> true = beamway_peer:call(Peer, erlang, set_cookie, [Node, beamway_test]), ok end
                   end).

%% Called on the node that is separated. A cut cable breaks all connections at the same moment. So global must not notice the first loss while it can
%% still report it to the other nodes, because these would then disconnect from each other.
leave(Others) ->
    Global = whereis(global_name_server),
    true = erlang:set_cookie(node(), another),
    ok = sys:suspend(Global),
    [true = erlang:disconnect_node(Other) || Other <- Others],
    sys:resume(Global).

%% The node is stopped for longer than net_ticktime, but keeps its sockets and its memory.
stopped_and_continued(Config) ->
    rounds(Config, fun(Majority, #{node := Node, peer := Peer}) ->
                           ok = beamway_peer:sigstop(Peer),
                           [ok = gone(Member, Node) || Member <- Majority],
                           [_ = commits(Member) || Member <- Majority],
                           ok = beamway_peer:sigcont(Peer),
                           fun() -> ok end
                   end).

rounds(Config, Part) ->
    {Majority, Minority} = cluster(Config),
    {Last, _} = lists:foldl(fun(_, State) -> part_and_join(Config, Part, State) end, {Minority, Majority},
                            lists:seq(1, beamway_carrier:scale(1, 5))),
    ok = quiet([Last | Majority]),
    beamway_peer:stop_all([Peer || #{peer := Peer} <- [Last | Majority]]).

part_and_join(Config, Part, {Minority, Majority}) ->
    All = [Minority | Majority],
    [ok = call(Member, listen, []) || Member <- All],
    [ok = start_load(Member) || Member <- All],
    [_ = commits(Member) || Member <- All],
    Known = known_to(Majority, Minority),
    Join = Part(Majority, Minority),
    [ok = gone(Minority, Node) || #{node := Node} <- Majority],
    [ok = gone(Member, maps:get(node, Minority)) || Member <- Majority],
    ok = together(Majority),
    %% Both sides continue independently; writes that need a majority succeed only on one side.
    [_ = commits(Member) || Member <- All],
    ok = without_majority(Minority),
    Lost = call(Minority, committed, [ledger]),
    ok = Join(),
    ok = connected(Config, All),
    [ok = inconsistent(Member, Minority) || Member <- Majority],
    [ok = inconsistent(Minority, Member) || Member <- Majority],
    %% The mnesia manual's procedure: the losing side reloads everything from the others.
    ok = stop_load(Minority),
    ok = restart_mnesia(Minority, Majority),
    [ok = stop_load(Member) || Member <- Majority],
    ok = same_everywhere(All),
    [ok = holds(Member, Kind, Keys) || Member <- All, {Kind, Keys} <- [Known | everything_of(Majority)]],
    %% The minority's own writes are lost. If they were not, the nodes would not have been separated.
    false = call(Minority, holds, [ledger, Lost]),
    ok = call(Minority, forget, []),
    {Minority, Majority}.

%% The disc copy of a killed node dates from when the node was killed. The node itself fetches the updates that it has missed.
killed_and_returned(Config) ->
    {Majority, Minority} = cluster(Config),
    [ok = call(Member, listen, []) || Member <- Majority],
    [ok = start_load(Member) || Member <- [Minority | Majority]],
    [_ = commits(Member) || Member <- [Minority | Majority]],
    Known = known_to(Majority, Minority),
    ok = beamway_peer:kill9(maps:get(peer, Minority)),
    [ok = gone(Member, maps:get(node, Minority)) || Member <- Majority],
    [_ = commits(Member) || Member <- Majority],
    Returned = start_member(Config, maps:get(name, Minority)),
    All = [Returned | Majority],
    ok = connected(Config, All),
    ok = start_mnesia(Returned),
    ok = start_load(Returned),
    [_ = commits(Member) || Member <- All],
    [ok = stop_load(Member) || Member <- All],
    ok = same_everywhere(All),
    [ok = holds(Member, Kind, Keys) || Member <- All, {Kind, Keys} <- [Known | everything_of(All)]],
    [] = [Event || Member <- Majority, Event <- call(Member, events, []), element(1, Event) =:= inconsistent_database],
    beamway_peer:stop_all([Peer || #{peer := Peer} <- All]).

%% --- the cluster ---------------------------------------------------------------------------------------

cluster(Config) ->
    Members = [start_member(Config, beamway_peer:unique_name("mnesia")) || _ <- lists:seq(1, 3)],
    ok = connected(Config, Members),
    Nodes = [Node || #{node := Node} <- Members],
    ok = beamway_peer:call(maps:get(peer, hd(Members)), mnesia, create_schema, [Nodes]),
    [ok = beamway_peer:call(Peer, mnesia, start, []) || #{peer := Peer} <- Members],
    ok = call(hd(Members), tables, [Nodes]),
    {lists:droplast(Members), lists:last(Members)}.

%% Nodes only reconnect when a case asks for it, because mnesia then checks whether their data has diverged.
start_member(Config, Name) ->
    Dir = filename:join(proplists:get_value(priv_dir, Config), Name),
    Args = ["-kernel", "net_ticktime", "4", "-kernel", "dist_auto_connect", "never", "-mnesia", "dir", "\"" ++ Dir ++ "\""],
    {ok, Peer, Node} = beamway_peer:start(beamway_carrier:carrier(Config), #{name => Name, args => Args}),
    #{name => Name, node => Node, peer => Peer}.

call(#{peer := Peer}, Function, Arguments) ->
    beamway_peer:call(Peer, beamway_mnesia_load, Function, Arguments).

%% Connects every node with every other and checks that they have the carrier's links.
connected(Config, Members) ->
    Kind = beamway_peer:link_kind(beamway_carrier:carrier(Config)),
    Pairs = [{Peer, Other} || #{peer := Peer, node := Node} <- Members, #{node := Other} <- Members, Other =/= Node],
    [_ = beamway_peer:wait_until(fun() -> beamway_peer:call(Peer, net_kernel, connect_node, [Other]) end, 20000)
     || {Peer, Other} <- Pairs],
    [ok = beamway_peer:assert_link(Peer, Other, Kind) || {Peer, Other} <- Pairs],
    ok.

together([#{peer := Peer}, #{node := Other}]) ->
    true = lists:member(Other, beamway_peer:call(Peer, erlang, nodes, [])),
    ok.

%% Waits until the node has lost the other, and its mnesia has noticed.
gone(#{peer := Peer} = Member, Node) ->
    _ = beamway_peer:wait_until(
          fun() ->
                  not lists:member(Node, beamway_peer:call(Peer, erlang, nodes, [])) andalso
                      lists:member({mnesia_down, Node}, call(Member, events, []))
          end, 30000),
    ok.

inconsistent(Member, #{node := Node}) ->
    Event = {inconsistent_database, running_partitioned_network, Node},
    _ = beamway_peer:wait_until(fun() -> lists:member(Event, call(Member, events, [])) end, 30000),
    ok.

restart_mnesia(#{peer := Peer} = Member, Majority) ->
    ok = beamway_peer:call(Peer, mnesia, set_master_nodes, [[Node || #{node := Node} <- Majority]]),
    stopped = beamway_peer:call(Peer, mnesia, stop, []),
    ok = start_mnesia(Member),
    beamway_peer:call(Peer, mnesia, set_master_nodes, [[]]).

start_mnesia(#{peer := Peer}) ->
    ok = beamway_peer:call(Peer, mnesia, start, []),
    beamway_peer:call(Peer, mnesia, wait_for_tables, [[ledger_ram, ledger_disc, counter, quorum], 60000]).

%% --- the load ------------------------------------------------------------------------------------------

start_load(Member) -> call(Member, start, []).

stop_load(Member) -> call(Member, stop, []).

%% Waits until the node has committed enough more transactions in the ledger.
commits(Member) ->
    Before = length(call(Member, committed, [ledger])),
    beamway_peer:wait_until(fun() -> length(call(Member, committed, [ledger])) >= Before + ?ENOUGH end, 60000).

%% Returns the transactions that the node has committed and that the others have also received, which therefore
%% survive the loss of the connection.
known_to(Others, Member) ->
    Keys = call(Member, committed, [ledger]),
    true = length(Keys) >= ?ENOUGH,
    [_ = beamway_peer:wait_until(fun() -> call(Other, holds, [ledger, Keys]) end, 30000) || Other <- Others],
    {ledger, Keys}.

everything_of(Members) ->
    [{Kind, call(Member, committed, [Kind])} || Member <- Members, Kind <- [ledger, quorum]].

holds(Member, Kind, Keys) ->
    true = call(Member, holds, [Kind, Keys]),
    ok.

%% The table that requires a majority rejects writes from a node without one.
without_majority(Member) ->
    Before = length(call(Member, committed, [quorum])),
    Refused = fun() -> lists:sum([Count || {quorum, Reason, Count} <- call(Member, refused, []), string:find(Reason, "no_majority") =/= nomatch]) end,
    Start = Refused(),
    _ = beamway_peer:wait_until(fun() -> Refused() >= Start + 5 end, 30000),
    Before = length(call(Member, committed, [quorum])),
    ok.

%% All tables are equal on all nodes, and each record of the ledger was counted.
same_everywhere(Members) ->
    [_ = beamway_peer:wait_until(fun() -> length(lists:usort([call(Member, content, [Table]) || Member <- Members])) =:= 1 end, 30000)
     || Table <- [ledger_ram, ledger_disc, counter, quorum]],
    [Ram, Disc, [{counter, all, Count}], _] = [call(hd(Members), content, [Table]) || Table <- [ledger_ram, ledger_disc, counter, quorum]],
    {Count, Count} = {length(Ram), length(Disc)},
    [] = [Key || {_, Key, Value} <- Ram ++ Disc, Value =/= erlang:phash2(Key)],
    ok.

%% Finally nothing is pending: no node waits for another.
quiet(Members) ->
    [[] = beamway_peer:call(Peer, mnesia, system_info, [held_locks]) || #{peer := Peer} <- Members],
    ok.
