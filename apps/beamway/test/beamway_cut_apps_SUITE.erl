%% SPDX-License-Identifier: Apache-2.0
%% @doc What programs notice when connections are cut for 4 and for 43 ms: mnesia, `global', and presences in the manner of Phoenix.Tracker.
%%
%% Two nodes share a host and the third runs on another, with a router between the hosts that resets connections and rejects new ones for a moment.
%% After each cut the nodes are connected again, as programs that discover the nodes of a cluster do. In the group `inet_tcp' each program must lose
%% something over stock distribution, because otherwise the case proves nothing; over Beamway it must lose nothing. Another case cuts the connections
%% of stock nodes, which the kernel carries over MPTCP. Needs root.
%%
%% BEAMWAY_TEST_CUTS is the number of cuts in each case over Beamway; the default is 6.
-module(beamway_cut_apps_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([mnesia_table/1, global_names/1, presences/1, stock_over_mptcp/1]).

-define(MOST_STOCK, 20).
-define(QUIET_MS, 300).
-define(WAIT_MS, 20000).
-define(TICKTIME_S, 8).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [{group, inet_tcp}, {group, beamway_tcp}, {group, mptcp}].

groups() -> [{mptcp, [], [stock_over_mptcp]} | [{Carrier, [], [mnesia_table, global_names, presences]} || Carrier <- [inet_tcp, beamway_tcp]]].

init_per_suite(Config) ->
    case {os:cmd("id -u"), code:lib_dir(mnesia)} of
        {"0\n", {error, bad_name}} -> {skip, "mnesia is not installed (erlang-mnesia)"};
        {"0\n", _} -> Config;
        {_, _} -> {skip, {rights, "needs root to make network namespaces and a router"}}
    end.

end_per_suite(_Config) -> ok.

init_per_group(mptcp, Config) ->
    case {file:read_file("/proc/sys/net/mptcp/enabled"), os:find_executable("mptcpize")} of
        {{ok, <<"1", _/binary>>}, [_ | _]} -> init_per_group(inet_tcp, Config);
        {{ok, <<"1", _/binary>>}, false} -> {skip, "mptcpize is not installed (mptcpize)"};
        {_, _} -> {skip, "the kernel has no MPTCP"}
    end;
init_per_group(Carrier, Config) ->
    case beamway_netns:firewalled("bwp", 600) of
        {ok, Net} -> [{net, Net}, {carrier, Carrier} | Config];
        {error, Why} -> {skip, {rights, Why}}
    end.

end_per_group(_Carrier, Config) -> beamway_netns:delete(proplists:get_value(net, Config)).

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

carrier(Config) -> proplists:get_value(carrier, Config).

%% ---- cases ----

%% Writes to a replicated table: on stock nodes its copies diverge.
mnesia_table(Config) ->
    Members = cluster(Config),
    Nodes = [Node || {_, Node} <- Members],
    ok = beamway_peer:call(element(1, hd(Members)), mnesia, create_schema, [Nodes]),
    [ok = call(Member, mnesia, start, []) || Member <- Members],
    ok = call(hd(Members), beamway_mnesia_load, tables, [Nodes]),
    [ok = call(Member, beamway_mnesia_load, Function, []) || Function <- [listen, start], Member <- Members],
    Committed = fun() -> [length(call(Member, beamway_mnesia_load, committed, [ledger])) || Member <- Members] end,
    Events = fun() -> lists:append([call(Member, beamway_mnesia_load, events, []) || Member <- Members]) end,
    ok = cut(Config, Members, fun() -> [Event || {inconsistent_database, _, _} = Event <- Events()] end),
    case carrier(Config) of
        inet_tcp -> ok;
        beamway_tcp ->
            [] = [Down || {mnesia_down, _} = Down <- Events()],
            Before = Committed(),
            _ = beamway_peer:wait_until(fun() -> lists:all(fun({Now, Old}) -> Now > Old + 30 end, lists:zip(Committed(), Before)) end, ?WAIT_MS),
            [ok = call(Member, beamway_mnesia_load, stop, []) || Member <- Members],
            [_ = beamway_peer:wait_until(fun() -> length(lists:usort([call(Member, beamway_mnesia_load, content, [Table]) || Member <- Members])) =:= 1 end, ?WAIT_MS)
             || Table <- [ledger_ram, ledger_disc, counter, quorum]],
            ok
    end.

%% Runs with prevent_overlapping_partitions, which is on by default.
global_names(Config) -> program(names, 3, Config).

presences(Config) -> program(presences, 300, Config).

program(Program, Known, Config) ->
    Members = cluster(Config),
    [ok = call(Member, beamway_cut_programs, start, [{Program, [Node || {_, Node} <- Members]}]) || Member <- Members],
    _ = beamway_peer:wait_until(fun() -> [Known] =:= lists:usort([call(Member, beamway_cut_programs, known, []) || Member <- Members]) end, ?WAIT_MS),
    Kind = case Program of names -> name; presences -> presences end,
    Gone = fun() -> lists:append([call(Member, beamway_cut_programs, gone, []) || Member <- Members]) end,
    ok = cut(Config, Members, fun() -> [One || {{What, _}, _} = One <- Gone(), What =:= Kind] end),
    case carrier(Config) of
        inet_tcp -> ok;
        beamway_tcp ->
            [] = Gone(),
            [Known] = lists:usort([call(Member, beamway_cut_programs, known, []) || Member <- Members]),
            ok
    end.

%% If an MPTCP connection loses its only subflow, the kernel keeps the connection but opens no other subflow, so the nodes lose each other as
%% well, only later.
stock_over_mptcp(Config) ->
    #{spaces := [SpaceA, SpaceB, Wall], addresses := [AddressA, AddressB]} = proplists:get_value(net, Config),
    [{One, _}, {_, Other}] = Members = [begin
                                            {ok, Peer, Node} = beamway_peer:start(inet_tcp, #{host => Address, wrapper => beamway_netns:host(Space) ++ ["mptcpize", "run"],
                                                                                              args => ["-kernel", "net_ticktime", integer_to_list(?TICKTIME_S)]}),
                                            {Peer, Node}
                                        end || {Space, Address} <- [{SpaceA, AddressA}, {SpaceB, AddressB}]],
    ok = connect(Members),
    Accepted = beamway_netns:in(SpaceB, "nstat -asz MPTcpExtMPCapableACKRX"),
    {match, _} = re:run(Accepted, "MPCapableACKRX +[1-9]"),
    Watcher = beamway_peer:watch_nodedown(One),
    _ = beamway_peer:run(One, fun() ->
                                      spawn(fun Loop() ->
                                                    _ = erlang:send({nobody, Other}, tick, [noconnect]),
                                                    receive after 1 -> Loop() end
                                            end)
                              end),
    BackUs = beamway_cut:during({Wall, "FORWARD"}, [beamway_cut:not_epmd("REJECT --reject-with tcp-reset")], 43),
    {Reason, AtMs} = beamway_peer:nodedown(One, Watcher, Other, 3000 * ?TICKTIME_S),
    beamway_runner:say("over MPTCP a cut of 43 ms is a lost node after ~b ms (~0tp), with a net_ticktime of ~b s", [AtMs - BackUs div 1000, Reason, ?TICKTIME_S]).

%% ---- the cluster ----

cluster(Config) ->
    #{spaces := [SpaceA, SpaceB, _], addresses := [AddressA, AddressB]} = proplists:get_value(net, Config),
    Members = [member(Config, Space, Address) || {Space, Address} <- [{SpaceA, AddressA}, {SpaceA, AddressA}, {SpaceB, AddressB}]],
    ok = connect(Members),
    Kind = beamway_peer:link_kind(carrier(Config)),
    [ok = beamway_peer:assert_link(Peer, Other, Kind) || {Peer, Node} <- Members, {_, Other} <- Members, Node =/= Other],
    Members.

member(Config, Space, Address) ->
    Name = beamway_peer:unique_name("cut"),
    Dir = filename:join(proplists:get_value(priv_dir, Config), Name),
    {ok, Peer, Node} = beamway_peer:start(carrier(Config), #{name => Name, host => Address, wrapper => beamway_netns:host(Space),
                                                             args => ["-mnesia", "dir", "\"" ++ Dir ++ "\""]}),
    {Peer, Node}.

connect(Members) ->
    [_ = beamway_peer:wait_until(fun() -> call(Member, net_kernel, connect_node, [Other]) end, ?WAIT_MS) || {_, Node} = Member <- Members, {_, Other} <- Members, Node =/= Other],
    ok.

call({Peer, _}, Module, Function, Arguments) -> beamway_peer:call(Peer, Module, Function, Arguments).

%% Over stock distribution, cuts the connections until something is lost.
cut(Config, Members, Lost) ->
    case carrier(Config) of
        inet_tcp ->
            Cuts = until_lost(1, Config, Members, Lost),
            beamway_runner:say("over stock distribution ~b cut(s) are enough: ~0tp", [Cuts, hd(Lost())]);
        beamway_tcp ->
            Cuts = list_to_integer(os:getenv("BEAMWAY_TEST_CUTS", "6")),
            [ok = cut_once(N, Config, Members) || N <- lists:seq(1, Cuts)],
            [] = Lost(),
            Resumes = lists:sum([maps:get(resumes, Link, 0) || Member <- Members, Link <- call(Member, beamway, links, [])]),
            true = Resumes > 0,
            beamway_runner:say("over Beamway ~b cuts, ~b resumes, and nothing is lost", [Cuts, Resumes])
    end.

until_lost(N, Config, Members, Lost) when N =< ?MOST_STOCK ->
    ok = cut_once(N, Config, Members),
    case Lost() of
        [] -> until_lost(N + 1, Config, Members, Lost);
        _ -> N
    end.

cut_once(N, Config, Members) ->
    #{spaces := [_, _, Wall]} = proplists:get_value(net, Config),
    _ = beamway_cut:during({Wall, "FORWARD"}, [beamway_cut:not_epmd("REJECT --reject-with tcp-reset")], case N rem 2 of 1 -> 4; 0 -> 43 end),
    receive after ?QUIET_MS -> ok end,
    ok = connect(Members),
    receive after ?QUIET_MS -> ok end.
