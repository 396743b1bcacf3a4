%% SPDX-License-Identifier: Apache-2.0
%% @doc Connections that are cut while both nodes are alive: the link continues, nothing is lost, duplicated or late, and neither node reports
%% anything.
%%
%% The nodes are on two hosts with a router between them. The router resets connections, rejects new ones for a while, drops everything for a while,
%% or forgets all connections, or a host changes its address. Meanwhile beamway_cut_load runs in both directions. In one group the router is a NAT, so
%% only one of the nodes can call the other. In another group the link has several connections when it is cut.
%%
%% BEAMWAY_TEST_CUTS is the number of cuts in all groups together (`make test-cut' makes 1,000); without it each group makes one cut of each kind.
%% With `BEAMWAY_TEST_CUTS_STORE=yes' the pauses are stored in `bench/results/cut.json' if every case passes and no other work ran on the machine; `force'
%% stores them in any case and marks them as noisy. Needs root.
-module(beamway_cut_SUITE).

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([cut_again_and_again/1, killed/1, cannot_carry/1, restarted/1, resume_off/1, nobody_waits/1, given_up/1, given_up_sooner/1, epmd_restarted/1, stopped/1, stopped_for_a_moment/1, disconnected/1]).
-export([killed_without_stream/1, lost_at_birth/1, idle_and_forgotten/1, all_together/1]).

-define(WAIT_MS, 20000).
-define(QUIET_MS, 300).
%% In 1.5 s a node dials after 0, 2, 4, 8, 16 and 32 ms, and then every 50 ms. This series may begin twice if the link is silent first, or if the two
%% sides lose it at different times.
-define(MOST_ATTEMPTS, 45).
%% The router forgets a silent connection after this many seconds, which no case reaches.
-define(FORGET_S, 600).

suite() -> [{timetrap, {minutes, 120}}].

all() -> [{group, Group} || {Group, _, _} <- groups()].

groups() ->
    [{Carrier, [], [cut_again_and_again, lost_at_birth, killed, restarted, resume_off, nobody_waits, given_up, given_up_sooner, epmd_restarted, stopped, stopped_for_a_moment, disconnected]}
     || Carrier <- [beamway_tcp, beamway_tls, beamway_encrypted]]
        ++ [{several, [], [cut_again_and_again, given_up, disconnected]}, {nat, [], [cut_again_and_again, idle_and_forgotten]}, {without_ring, [], [cannot_carry]}]
        ++ [{Carrier, [], [cut_again_and_again, killed_without_stream, disconnected]} || Carrier <- [beamway_shm, beamway_encrypted_shm]]
        ++ [{together, [], [all_together]} || cuts() > 0].

init_per_suite(Config) ->
    case os:cmd("id -u") of
        "0\n" -> begun(store(), Config);
        _ -> {skip, {rights, "needs root to make network namespaces and a router"}}
    end.

%% The context of the result is recorded before the first case, because afterwards the load average would be that of the cases.
begun("no", Config) -> Config;
begun(Store, Config) ->
    {ok, Context} = beamway_bench_store:begun("cut", "make test-cut STORE=1", Store =:= "force"),
    [{context, Context} | Config].

store() -> os:getenv("BEAMWAY_TEST_CUTS_STORE", "no").

end_per_suite(_Config) -> ok.

init_per_group(together, Config) ->
    Config;
init_per_group(Group, Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    Made = case Group of
               nat -> beamway_netns:behind_nat("bwc", ?FORGET_S);
               _ -> beamway_netns:firewalled("bwc", ?FORGET_S)
           end,
    Carrier = case Group of
                  _ when Group =:= nat; Group =:= without_ring; Group =:= several -> beamway_tcp;
                  _ -> Group
              end,
    case Made of
        {ok, #{spaces := [_, _, Wall]} = Net} ->
            [{group, Group}, {net, Net}, {router, {Wall, "FORWARD"}}, {carrier, Carrier}, {dir, beamway_peer:new_folder("beamway-cut")} | Config];
        {error, Why} ->
            {skip, {rights, Why}}
    end.

end_per_group(together, _Config) ->
    ok;
end_per_group(_Group, Config) ->
    ok = file:del_dir_r(proplists:get_value(dir, Config)),
    beamway_netns:delete(proplists:get_value(net, Config)).

end_per_testcase(all_together, _Config) ->
    ok;
end_per_testcase(_Case, Config) ->
    ok = open(Config),
    beamway_peer:stop_started().

cuts() -> list_to_integer(os:getenv("BEAMWAY_TEST_CUTS", "0")).

pair(Config) -> pair(Config, [{"BEAMWAY_CONNECTIONS", "4"} || proplists:get_value(group, Config) =:= several]).

pair(Config, Environment) ->
    #{spaces := [SpaceA, SpaceB, _], addresses := [AddressA, AddressB]} = proplists:get_value(net, Config),
    Carrier = proplists:get_value(carrier, Config),
    [{One, OneNode}, {Other, OtherNode}] = [begin
                                                Name = beamway_peer:unique_name("cut"),
                                                node_at(Carrier, Space, Address, [{"BEAMWAY_SOCKET_DIR", proplists:get_value(dir, Config)} | Environment], #{name => Name, log => log(Name, Config)})
                                            end || {Space, Address} <- [{SpaceA, AddressA}, {SpaceB, AddressB}]],
    ok = beamway_peer:connect_both(Carrier, One, Other),
    {One, OneNode, Other, OtherNode}.

log(Name, Config) -> filename:join(proplists:get_value(priv_dir, Config), Name ++ ".log").

node_at(Carrier, Space, Address, Environment) -> node_at(Carrier, Space, Address, Environment, #{}).

node_at(Carrier, Space, Address, Environment, Options) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, Options#{host => Address, wrapper => beamway_netns:host(Space), env => Environment, args => ["-kernel", "logger_level", "info" | keepalive(Carrier)]}),
    {Peer, Node}.

%% With a ring only keepalive uses the connection, here once a second.
keepalive(Carrier) when Carrier =:= beamway_shm; Carrier =:= beamway_encrypted_shm -> ["-kernel", "net_ticktime", "60", "net_tickintensity", "60"];
keepalive(_Carrier) -> [].

%% ---- cuts ----

%% Returns the kinds of cuts in a group, which a long run repeats. The second host cannot change its address in a group in which only the first host
%% can call.
kinds(Ring) when Ring =:= beamway_shm; Ring =:= beamway_encrypted_shm ->
    [{reset, 0}];
kinds(several) ->
    [{reset, 43}, {silence, 1000}, {one_way, 2000}, {reset, 4}]; % other cuts take down one connection at a time, and the link does not notice
kinds(nat) ->
    Kinds = [{reset, 43}, forgotten, {moved, 1}, {silence, 1000}],
    case cuts() of 0 -> Kinds; _ -> [Kind || Kind <- long_kinds(), Kind =/= {moved, 2}] end;
kinds(_Carrier) ->
    case cuts() of 0 -> lists:usort(long_kinds()) -- [{silence, 20000}]; _ -> long_kinds() end.

long_kinds() ->
    [{reset, 0}, {reset, 4}, forgotten, {reset, 43}, {silence, 100}, {reset, 0}, {reset, 4}, {moved, 1}, {reset, 43}, {silence, 1000},
     {one_way, 2000}, {reset, 0}, {reset, 4}, forgotten, {reset, 43}, {silence, 5000}, {reset, 1000}, {moved, 2}, {silence, 100}, {silence, 20000}].

count(Group) ->
    case {Group, cuts()} of
        {Ring, 0} when Ring =:= beamway_shm; Ring =:= beamway_encrypted_shm -> 3;
        {_, 0} -> length(kinds(Group));
        {several, _} -> length(kinds(Group));
        {beamway_tcp, Cuts} -> Cuts - lists:sum([share(Other, Cuts) || Other <- [beamway_tls, beamway_encrypted, nat, beamway_shm, beamway_encrypted_shm]]);
        {_, Cuts} -> share(Group, Cuts)
    end.

share(Ring, Cuts) when Ring =:= beamway_shm; Ring =:= beamway_encrypted_shm -> Cuts div 20;
share(_Other, Cuts) -> Cuts div 5.

router(Config) -> proplists:get_value(router, Config).

open(Config) -> beamway_cut:open(router(Config)).

close(Config, Rules) -> beamway_cut:close(router(Config), Rules).

refuses_all() -> beamway_cut:not_epmd("REJECT --reject-with tcp-reset").

%% Returns the ports of the current connection.
ends({One, OneNode, Other, OtherNode}) ->
    [binary_to_list(lists:last(binary:split(Address, <<":">>, [global])))
     || {Peer, Node} <- [{Other, OneNode}, {One, OtherNode}], {ok, #{address := Address}} <- [beamway_peer:call(Peer, beamway, info, [Node])]].

%% Returns the time at which the path was restored, or at which the cut began if the path was never interrupted. `{reset, 0}' resets only this
%% connection; `{reset, Ms}' resets all connections, and rejects new ones for this time.
cut({reset, 0}, Pair, Config) ->
    resumed(fun() -> close(Config, beamway_cut:connection(ends(Pair), "REJECT --reject-with tcp-reset")) end, Pair, Config);
cut({reset, Ms}, _Pair, Config) ->
    beamway_cut:during(router(Config), [refuses_all()], Ms);
cut({silence, Ms}, _Pair, Config) ->
    beamway_cut:during(router(Config), ["-j DROP"], Ms);
cut({one_way, Ms}, _Pair, Config) ->
    #{addresses := [From, _]} = proplists:get_value(net, Config),
    beamway_cut:during(router(Config), ["--source " ++ From ++ " -j DROP"], Ms);
cut(forgotten, Pair, Config) ->
    {Wall, _} = router(Config),
    resumed(fun() -> beamway_cut:forget(Wall) end, Pair, Config);
%% The host moves to a new address and back, because the peer cannot know the new one.
cut({moved, Host}, Pair, Config) ->
    Net = proplists:get_value(net, Config),
    BeganUs = resumed(fun() -> beamway_netns:move(Net, Host, 3) end, Pair, Config),
    _ = resumed(fun() -> beamway_netns:move(Net, Host, 2) end, Pair, Config),
    BeganUs.

%% The path is never interrupted, so the link must continue over a new connection.
resumed(Cut, Pair, Config) ->
    Before = resumes(Pair),
    BeganUs = os:system_time(microsecond),
    ok = Cut(),
    _ = beamway_peer:wait_until(fun() -> resumes(Pair) > Before end, ?WAIT_MS),
    ok = open(Config),
    BeganUs.

resumes({One, _, _, OtherNode}) -> resumes(One, OtherNode).

resumes(Peer, Node) ->
    {ok, Info} = beamway_peer:call(Peer, beamway, info, [Node]),
    maps:get(resumes, Info, 0).

%% Counts the lines in a node's log that report a resumed link.
lines(Node, Config) ->
    [Name, _] = string:split(atom_to_list(Node), "@"),
    length(string:split(beamway_peer:log_text(log(Name, Config)), "goes on over a new connection", all)) - 1.

%% ---- cases ----

cut_again_and_again(Config) ->
    Group = proplists:get_value(group, Config),
    {One, OneNode, Other, OtherNode} = Pair = pair(Config),
    Group =:= nat andalso ({ok, #{address := <<"10.97.196.1:", _/binary>>}} = beamway_peer:call(Other, beamway, info, [OneNode])),
    Loads = [{One, OtherNode}, {Other, OneNode}],
    [ok = beamway_peer:call(Peer, beamway_cut_load, receive_all, []) || {Peer, _} <- Loads],
    [ok = beamway_peer:call(Peer, beamway_cut_load, send_all, [Node]) || {Peer, Node} <- Loads],
    Kinds = kinds(Group),
    Count = count(Group),
    Calm = [pause_of(none, Pair, Loads, Config) || _ <- lists:seq(0, Count div 10)],
    Pauses = [pause_of(lists:nth(1 + N rem length(Kinds), Kinds), Pair, Loads, Config) || N <- lists:seq(0, Count - 1)],
    [ok = beamway_peer:call(Peer, beamway_cut_load, stop, []) || {Peer, _} <- Loads],
    receive after ?QUIET_MS -> ok end,
    Results = [beamway_peer:call(Peer, beamway_cut_load, results, []) || {Peer, _} <- Loads],
    Checked = lists:sum([Each || #{checked := Each} <- Results]),
    ok = beamway_runner:say("~ts: ~b cuts, ~b resumes, ~b checked; p50, p99 and longest wait of a caller in ms:~n~ts",
                            [Group, Count, resumes(Pair), Checked, [row(Row) || Row <- rows(Calm ++ Pauses)]]),
    Errors = lists:append([Each || #{errors := Each} <- Results]),
    ok = keep(Group, #{cuts => Count, checked => Checked, resumes => resumes(Pair), pauses => Calm ++ Pauses, errors => Errors}, Config),
    [] = Errors,
    [true, true] = [Each > 10 * Count || #{checked := Each} <- Results],
    true = resumes(Pair) >= Count div 4,
    [_ = beamway_peer:wait_until(fun() -> lines(Own, Config) =:= resumes(Peer, To) end, ?WAIT_MS) || {Peer, Own, To} <- [{One, OneNode, OtherNode}, {Other, OtherNode, OneNode}]],
    ok.

%% Returns the longest time for which a caller waited after the path was restored.
pause_of(Kind, Pair, Loads, Config) ->
    _ = proplists:get_value(group, Config) =:= several andalso spread(Pair),
    BackUs = case Kind of none -> os:system_time(microsecond); _ -> cut(Kind, Pair, Config) end,
    UntilUs = os:system_time(microsecond),
    receive after ?QUIET_MS -> ok end,
    Waited = [beamway_peer:wait_until(fun() -> longest(beamway_peer:call(Peer, beamway_cut_load, waited, [BackUs, UntilUs])) end, ?WAIT_MS) || {Peer, _} <- Loads],
    {Kind, lists:max([Us || {longest, Us} <- Waited])}.

%% A link that loses its connections soon after it has spread waits longer each time before it spreads again.
spread({One, OneNode, Other, OtherNode}) ->
    beamway_peer:wait_until(fun() -> [4, 4] =:= [maps:get(connections, Info, 1) || {Peer, Node} <- [{One, OtherNode}, {Other, OneNode}],
                                                                                 {ok, Info} <- [beamway_peer:call(Peer, beamway, info, [Node])]] end, 2 * ?WAIT_MS).

longest(false) -> false;
longest(Us) -> {longest, Us}.

rows(Pauses) ->
    [begin
         Ms = [Us / 1000 || {K, Us} <- Pauses, K =:= Kind],
         #{kind => name(Kind), cuts => length(Ms), p50_ms => rounded(beamway_bench_stats:median(Ms)),
           p99_ms => rounded(beamway_bench_stats:percentile(99, Ms)), max_ms => rounded(lists:max(Ms))}
     end || Kind <- [none | lists:usort(long_kinds())], lists:keymember(Kind, 1, Pauses)].

rounded(Ms) -> round(Ms * 10) / 10.

row(#{kind := Name, cuts := Cuts, p50_ms := P50, p99_ms := P99, max_ms := Max}) ->
    io_lib:format("~5b ~-66ts ~8.1f ~8.1f ~8.1f~n", [Cuts, Name, P50, P99, Max]).

name(none) -> <<"no cut">>;
name({reset, 0}) -> <<"reset">>;
name({reset, Ms}) -> iolist_to_binary(io_lib:format("reset, and new connections refused for ~b ms", [Ms]));
name({silence, Ms}) -> iolist_to_binary(io_lib:format("no packets for ~.1f s", [Ms / 1000]));
name({one_way, Ms}) -> iolist_to_binary(io_lib:format("no packets in one direction for ~.1f s", [Ms / 1000]));
name(forgotten) -> <<"the router forgets all connections">>;
name({moved, 1}) -> <<"the address of the host that connected changes, and changes back">>;
name({moved, 2}) -> <<"the address of the other host changes, and changes back">>.

%% ---- all groups together ----

keep(What, Result, Config) -> file:write_file(kept(What, Config), term_to_binary(Result)).

kept(What, Config) -> filename:join(proplists:get_value(priv_dir, Config), atom_to_list(What)).

kept_result(What, Config) ->
    {ok, Kept} = file:read_file(kept(What, Config)),
    binary_to_term(Kept).

%% Checks the limits that `make test-cut' promises.
all_together(Config) ->
    Groups = [kept_result(Group, Config) || Group <- [beamway_tcp, beamway_tls, beamway_encrypted, nat, beamway_shm, beamway_encrypted_shm]],
    [Stock, Tcp, Tls] = [kept_result(Killed, Config) || Killed <- [killed_inet_tcp, killed_beamway_tcp, killed_beamway_tls]],
    Sum = fun(Key) -> lists:sum([maps:get(Key, Group) || Group <- Groups]) end,
    Rows = rows(lists:append([Pauses || #{pauses := Pauses} <- Groups])),
    Kills = [killed_row(Name, Ms) || {Name, Ms} <- [{"stock", Stock}, {"beamway", Tcp ++ Tls}]],
    {Downs, Wrong} = lists:partition(fun(Error) -> element(1, Error) =:= nodedown end, lists:append([Errors || #{errors := Errors} <- Groups])),
    ok = beamway_runner:say("~b cuts, ~b resumes, ~b checked, ~b nodedowns, ~b lost, doubled or reordered~n~tskill -9: ~0tp",
                            [Sum(cuts), Sum(resumes), Sum(checked), length(Downs), length(Wrong), [row(Row) || Row <- Rows], Kills]),
    {[], []} = {Downs, Wrong},
    [] = [{Row, Limit} || #{kind := Name, p99_ms := P99} = Row <- Rows, {Kind, Limit} <- limits(Rows), name(Kind) =:= Name, P99 > Limit],
    [#{p50_ms := StockMs}, #{p50_ms := OursMs}] = Kills,
    true = OursMs =< StockMs + 5 + 3,
    true = Sum(cuts) =:= cuts(),
    true = cuts() < 1000 orelse Sum(checked) >= 10000000,
    ok = stored(store(), Config, #{repeats => 1, cuts => Sum(cuts), resumes => Sum(resumes), checked => Sum(checked), wrong => length(Wrong), nodedowns => length(Downs),
                                   kinds => Rows, kills => Kills}).

killed_row(Name, Ms) ->
    #{carrier => list_to_binary(Name), kills => length(Ms), p50_ms => rounded(beamway_bench_stats:median(Ms)),
      p99_ms => rounded(beamway_bench_stats:percentile(99, Ms)), max_ms => rounded(lists:max(Ms))}.

%% `Calm' is the time of a call under this load without a cut.
limits([#{kind := <<"no cut">>, p99_ms := Calm} | _]) ->
    [{{reset, 0}, 3 * Calm + 10}] ++ [{{reset, Ms}, 3 * Calm + 10 + 50} || Ms <- [4, 43, 1000]]
        ++ [{Kind, Calm + 300} || Kind <- [{silence, 100}, {silence, 1000}, {silence, 5000}, {silence, 20000}, {one_way, 2000}]]
        ++ [{Kind, Calm + 2000} || Kind <- [forgotten, {moved, 1}, {moved, 2}]].

stored("no", _, _) -> ok;
stored(Store, Config, Own) -> beamway_bench_store:publish(beamway_bench_store:file("cut"), maps:merge(proplists:get_value(context, Config), Own), Store =:= "force").

%% Messages can arrive before the handshake is complete. A node loses its connection at that point, and its peer calls again.
lost_at_birth(Config) ->
    #{spaces := [SpaceA, SpaceB, _], addresses := [AddressA, AddressB]} = proplists:get_value(net, Config),
    Carrier = proplists:get_value(carrier, Config),
    {One, OneNode} = node_at(Carrier, SpaceA, AddressA, []),
    {Other, OtherNode} = node_at(Carrier, SpaceB, AddressB, []),
    Holder = connect_half(One, Other, OtherNode, 20),
    ok = close(Config, [refuses_all()]),
    ok = beamway_peer:run(One, fun() -> {nobody, OtherNode} ! hello, ok end),
    receive after 50 -> ok end,
    ok = open(Config),
    receive after ?QUIET_MS -> ok end,
    ok = beamway_peer:run(Other, fun() -> Holder ! go, ok end),
    OtherNode = beamway_peer:call(One, erpc, call, [OtherNode, erlang, node, []]),
    OneNode = beamway_peer:call(Other, erpc, call, [OneNode, erlang, node, []]),
    %% Both sides may dial, and then the link resumes twice.
    Resumes = resumes({One, OneNode, Other, OtherNode}),
    true = Resumes =:= 1 orelse Resumes =:= 2,
    ok.

%% Repeats until the called node is stopped at the right moment. The holder spins until then, so on a busy machine the handshake may time out.
connect_half(One, Other, OtherNode, Tries) when Tries > 0 ->
    Holder = beamway_peer:run(Other, fun() -> spawn(fun hold_accepted/0) end),
    IsUp = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
    receive after ?QUIET_MS -> ok end,
    case IsUp andalso beamway_peer:call(Other, ets, match, [beamway_links, {{session, '_'}, '_'}]) of
        [] -> Holder;
        _ ->
            %% When the holder exits, the process that it has suspended continues.
            true = beamway_peer:call(Other, erlang, exit, [Holder, kill]),
            _ = beamway_peer:call(One, erlang, disconnect_node, [OtherNode]),
            ok = beamway_peer:wait_disconnected(Other, beamway_peer:call(One, erlang, node, [])),
            connect_half(One, Other, OtherNode, Tries - 1)
    end.

hold_accepted() ->
    _ = process_flag(priority, max),
    Pid = accepted(),
    ok = spin(),
    true = erlang:suspend_process(Pid),
    receive go -> erlang:resume_process(Pid) end.

accepted() ->
    case [Pid || Pid <- processes(), process_info(Pid, initial_call) =:= {initial_call, {beamway_dist_setup, init_accept, 7}}] of
        [Pid] -> Pid;
        [] -> receive after 1 -> accepted() end
    end.

spin() ->
    case nodes(connected) of [] -> spin(); [_] -> ok end.

%% The peer notices a killed node as quickly as when links are not resumed.
killed(Config) ->
    Carrier = proplists:get_value(carrier, Config),
    Count = case cuts() of 0 -> 3; Cuts -> max(3, Cuts div 10) end,
    [kill_again_and_again(Killed, Kills, Config) || {Killed, Kills} <- [{Carrier, Count}] ++ [{inet_tcp, Count div 2} || cuts() > 0, Carrier =:= beamway_tcp]],
    ok.

kill_again_and_again(Carrier, Count, Config) ->
    #{spaces := [SpaceA, SpaceB, _], addresses := [AddressA, AddressB]} = proplists:get_value(net, Config),
    {One, _} = node_at(Carrier, SpaceA, AddressA, []),
    Times = [kill_one(One, node_at(Carrier, SpaceB, AddressB, []), Carrier) || _ <- lists:seq(1, Count)],
    ok = keep(list_to_atom("killed_" ++ atom_to_list(Carrier)), Times, Config),
    ok = beamway_runner:say("nodedown after kill -9, ~ts, ~b times: ~w ms", [Carrier, Count, Times]),
    true = lists:max(Times) < 1000.

kill_one(One, {Other, OtherNode}, Carrier) ->
    ok = beamway_peer:connect_both(Carrier, One, Other),
    Watcher = beamway_peer:watch_nodedown(One),
    KilledNs = list_to_integer(string:trim(os:cmd("date +%s%N; kill -KILL " ++ integer_to_list(beamway_peer:os_pid(Other))))),
    {connection_closed, At} = beamway_peer:nodedown(One, Watcher, OtherNode, ?WAIT_MS),
    _ = beamway_peer:wait_until(fun() -> not is_process_alive(Other) end, ?WAIT_MS),
    max(0, At - KilledNs div 1000000).

%% If the driver cannot carry a connection, OTP's own port does, which cannot resume links. Both sides know this before they begin.
cannot_carry(Config) ->
    #{spaces := [SpaceA, SpaceB, _], addresses := [AddressA, AddressB]} = proplists:get_value(net, Config),
    Carrier = proplists:get_value(carrier, Config),
    {One, _} = node_at(Carrier, SpaceA, AddressA, []),
    {Other, OtherNode} = node_at(Carrier, SpaceB, AddressB, [{"BEAMWAY_RING_LIMIT_BYTES", "0"},
                                                         {"ERL_FLAGS", "-kernel inet_dist_listen_options [{buffer,1048576}]"}]),
    Connections = fun() -> [Link || #{link := inet, connection := Link} <- beamway_peer:call(Other, beamway_links, all, [])] end,
    [Connection] = beamway_peer:wait_until(fun() ->
                                                   _ = beamway_peer:call(One, net_kernel, connect_node, [OtherNode]),
                                                   case Connections() of [] -> false; Some -> Some end
                                           end, ?WAIT_MS),
    receive after 1000 -> ok end,
    [Connection] = Connections(),
    ok.

%% The node is killed while nothing gets through, and then started again. The new node has a different creation, so it does not know the link, and its
%% first answer ends it.
restarted(Config) ->
    {One, _, Other, OtherNode} = pair(Config),
    #{spaces := [_, SpaceB, _], addresses := [_, AddressB]} = proplists:get_value(net, Config),
    Watcher = beamway_peer:watch_nodedown(One),
    ok = close(Config, ["-j DROP"]),
    ok = beamway_peer:kill9(Other),
    [Name, _] = string:split(atom_to_list(OtherNode), "@"),
    {ok, Again, OtherNode} = beamway_peer:start(proplists:get_value(carrier, Config), #{host => AddressB, name => Name, wrapper => beamway_netns:host(SpaceB)}),
    ok = open(Config),
    Opened = os:system_time(millisecond),
    beamway_peer:run(One, fun() -> {nobody, OtherNode} ! hello end),
    {connection_closed, At} = beamway_peer:nodedown(One, Watcher, OtherNode, ?WAIT_MS),
    true = At - Opened < 5000,
    ok = beamway_peer:connect_both(proplists:get_value(carrier, Config), One, Again).

%% While a link has no connection, a process that sends little does not have to wait.
nobody_waits(Config) ->
    {One, _, _, OtherNode} = Pair = pair(Config),
    Monitor = beamway_peer:run(One, fun() -> spawn(fun() -> _ = erlang:system_monitor(self(), [busy_dist_port]), busy([]) end) end),
    Sender = beamway_peer:run(One, fun() -> spawn(fun() -> send_again_and_again(OtherNode) end) end),
    [begin
         Before = resumes(Pair),
         _ = cut({reset, Ms}, Pair, Config),
         _ = beamway_peer:wait_until(fun() -> resumes(Pair) > Before end, ?WAIT_MS)
     end || Ms <- [43, 1000]],
    true = beamway_peer:call(One, erlang, exit, [Sender, kill]),
    [] = beamway_peer:wait_until(fun() -> beamway_peer:given(One, Monitor) end, ?WAIT_MS),
    ok.

send_again_and_again(Node) ->
    {nobody, Node} ! hello,
    receive after 5 -> send_again_and_again(Node) end.

busy(Pids) ->
    receive
        {monitor, Pid, busy_dist_port, _Port} -> busy([Pid | Pids]);
        {give, From} -> From ! {given, Pids}, busy(Pids)
    end.

%% One side does not resume links, so the nodes disconnect as with stock distribution.
resume_off(Config) ->
    {One, _, _, OtherNode} = Pair = pair(Config, [{"BEAMWAY_RESUME_MS", "0"}]),
    Watcher = beamway_peer:watch_nodedown(One),
    ok = close(Config, beamway_cut:connection(ends(Pair), "REJECT --reject-with tcp-reset")),
    _ = beamway_peer:async(fun() -> beamway_peer:run(One, fun() -> catch erpc:call(OtherNode, erlang, node, []) end) end),
    {connection_closed, _} = beamway_peer:nodedown(One, Watcher, OtherNode, ?WAIT_MS),
    ok.

%% The peer does not come back: both sides report nodedown after `resume_ms', and can connect again afterwards. Until then each of them has made a
%% bounded number of attempts.
given_up(Config) -> give_up([refuses_all()], [{"BEAMWAY_RESUME_MS", "1500"}], 1500, Config).

%% If the epmd on the peer's host refuses connections as well, they report it after `resume_refused_ms'.
given_up_sooner(Config) -> give_up(["-j REJECT --reject-with tcp-reset"], [{"BEAMWAY_RESUME_REFUSED_MS", "700"}], 700, Config).

give_up(Rules, Environment, AfterMs, Config) ->
    {One, OneNode, Other, OtherNode} = pair(Config, Environment),
    Watchers = [beamway_peer:watch_nodedown(Peer) || Peer <- [One, Other]],
    Counters = [{Peer, count_attempts(Peer)} || Peer <- [One, Other]],
    Began = os:system_time(millisecond),
    ok = close(Config, Rules),
    beamway_peer:run(One, fun() -> {nobody, OtherNode} ! hello end),
    beamway_peer:run(Other, fun() -> {nobody, OneNode} ! hello end),
    Downs = [beamway_peer:nodedown(Peer, Watcher, Node, ?WAIT_MS) || {Peer, Watcher, Node} <- lists:zip3([One, Other], Watchers, [OtherNode, OneNode])],
    Attempts = [beamway_peer:wait_until(fun() -> beamway_peer:given(Peer, Counter) end, ?WAIT_MS) || {Peer, Counter} <- Counters],
    io:format(user, "given up after ~w ms and ~w attempts", [[At - Began || {_, At} <- Downs], Attempts]),
    [] = [Down || {Reason, At} = Down <- Downs, Reason =/= connection_closed orelse At - Began < AfterMs orelse At - Began >= 5000],
    [] = [Made || Made <- Attempts, Made < 3 orelse Made > ?MOST_ATTEMPTS],
    ok = open(Config),
    ok = beamway_peer:connect_both(proplists:get_value(carrier, Config), One, Other).

%% An epmd that has just been started does not know a node that is still running, and the node's port cannot be reached. The link is not given up,
%% although it would be if epmd refused connections.
epmd_restarted(Config) ->
    {One, _, _, OtherNode} = Pair = pair(Config, [{"BEAMWAY_RESUME_REFUSED_MS", "500"}]),
    #{spaces := [_, SpaceB, _]} = proplists:get_value(net, Config),
    Link = beamway_peer:controller(One, OtherNode),
    ok = close(Config, [refuses_all()]),
    "" = os:cmd("for pid in $(ip netns pids " ++ SpaceB ++ "); do if grep -qx epmd /proc/$pid/comm; then kill -9 $pid; fi; done 2>/dev/null"),
    "" = beamway_netns:in(SpaceB, "epmd -daemon"),
    beamway_peer:run(One, fun() -> {nobody, OtherNode} ! hello end),
    [Name, _] = string:split(atom_to_list(OtherNode), "@"),
    _ = beamway_peer:wait_until(fun() -> string:find(beamway_netns:in(SpaceB, "epmd -names"), Name) =/= nomatch end, ?WAIT_MS),
    ok = open(Config),
    _ = beamway_peer:wait_until(fun() -> resumes(Pair) > 0 end, ?WAIT_MS),
    Link = beamway_peer:controller(One, OtherNode),
    ok.

%% Starts a process that counts the attempts of the node's dialers to connect.
count_attempts(Peer) ->
    beamway_peer:run(Peer, fun() ->
                                   Owner = self(),
                                   Counter = spawn(fun() ->
                                                           _ = erlang:trace_pattern({beamway_resume, attempt, 3}, true, [local]),
                                                           _ = erlang:trace(new_processes, true, [call]),
                                                           Owner ! {self(), counting},
                                                           attempts(0)
                                                   end),
                                   receive {Counter, counting} -> Counter end
                           end).

attempts(Count) ->
    receive
        {trace, _, call, _} -> attempts(Count + 1);
        {give, From} -> From ! {given, Count}, attempts(Count)
    end.

%% A node is stopped, and its peer gives up on it in the meantime. When the node continues, the messages that its kernel has received on the link are
%% not delivered.
stopped(Config) ->
    {One, OneNode, Other, OtherNode} = Pair = pair(Config, [{"BEAMWAY_RESUME_MS", "2000"}]),
    Collector = numbers_arrive(1, 10, Pair),
    [Watcher, OtherWatcher] = [beamway_peer:watch_nodedown(Peer) || Peer <- [One, Other]],
    ok = beamway_peer:sigstop(Other),
    send_numbers(One, Collector, 11, 20),
    receive after ?QUIET_MS -> ok end, % so that the messages reach the kernel on the other side
    ok = close(Config, [refuses_all()]),
    send_numbers(One, Collector, 21, 30),
    {connection_closed, _} = beamway_peer:nodedown(One, Watcher, OtherNode, ?WAIT_MS),
    ok = open(Config),
    ok = beamway_peer:sigcont(Other),
    %% The other node may be calling already.
    {Reason, _} = beamway_peer:nodedown(Other, OtherWatcher, OneNode, ?WAIT_MS),
    true = lists:member(Reason, [connection_closed, wait_pending]),
    10 = beamway_cut_load:last_number(Other, Collector),
    ok.

%% The node is stopped for slightly less time than the peer takes to give up, so everything arrives.
stopped_for_a_moment(Config) ->
    {One, _, Other, _} = Pair = pair(Config, [{"BEAMWAY_RESUME_MS", "6000"}]),
    Collector = numbers_arrive(1, 10, Pair),
    ok = beamway_peer:sigstop(Other),
    send_numbers(One, Collector, 11, 20),
    receive after 4500 -> ok end,
    ok = beamway_peer:sigcont(Other),
    _ = beamway_peer:wait_until(fun() -> beamway_cut_load:last_number(Other, Collector) =:= 20 end, ?WAIT_MS),
    true = resumes(Pair) >= 1, % an attempt whose last packet arrives late is followed by another
    send_numbers(One, Collector, 21, 30),
    _ = beamway_peer:wait_until(fun() -> beamway_cut_load:last_number(Other, Collector) =:= 30 end, ?WAIT_MS),
    ok.

%% The NAT forgets the connection while the node behind it is silent. The other node notices, but cannot call.
idle_and_forgotten(Config) ->
    {One, OneNode, Other, OtherNode} = Pair = pair(Config, [{"BEAMWAY_RESUME_MS", "6000"}]),
    Collector = numbers_arrive(1, 10, {Other, OtherNode, One, OneNode}),
    receive after 1000 -> ok end, % until nothing is in flight
    {Wall, _} = router(Config),
    ok = beamway_cut:forget(Wall),
    send_numbers(Other, Collector, 11, 20),
    _ = beamway_peer:wait_until(fun() -> beamway_cut_load:last_number(One, Collector) =:= 20 end, ?WAIT_MS),
    true = resumes(Pair) >= 1,
    ok.

numbers_arrive(From, To, {One, _, Other, _}) ->
    Collector = beamway_peer:run(Other, fun() -> spawn(fun() -> beamway_cut_load:numbers(0) end) end),
    send_numbers(One, Collector, From, To),
    _ = beamway_peer:wait_until(fun() -> beamway_cut_load:last_number(Other, Collector) =:= To end, ?WAIT_MS),
    Collector.

send_numbers(Peer, Collector, From, To) ->
    beamway_peer:run(Peer, fun() -> [Collector ! {number, N} || N <- lists:seq(From, To)] end).

%% A peer that exits is noticed immediately, even while a ring has no connection.
killed_without_stream(Config) ->
    {One, _, Other, OtherNode} = Pair = pair(Config),
    Watcher = beamway_peer:watch_nodedown(One),
    Ends = ends(Pair),
    ok = close(Config, [refuses_all()]),
    _ = beamway_peer:wait_until(fun() -> has_no_connection(One, Ends) end, ?WAIT_MS),
    Began = os:system_time(millisecond),
    ok = beamway_peer:kill9(Other),
    {connection_closed, At} = beamway_peer:nodedown(One, Watcher, OtherNode, ?WAIT_MS),
    true = At - Began < 1000,
    ok.

has_no_connection(Peer, Ends) ->
    beamway_peer:run(Peer, fun() ->
                                   [] =:= [Port || Port <- erlang:ports(), {ok, {_, Here}} <- [inet:sockname(Port)], {ok, {_, There}} <- [inet:peername(Port)],
                                                   lists:sort(Ends) =:= lists:sort([integer_to_list(Here), integer_to_list(There)])]
                           end).

%% A link that a node closes itself is not resumed.
disconnected(Config) ->
    {One, OneNode, Other, OtherNode} = pair(Config),
    Watcher = beamway_peer:watch_nodedown(Other),
    Began = os:system_time(millisecond),
    true = beamway_peer:call(One, erlang, disconnect_node, [OtherNode]),
    {connection_closed, At} = beamway_peer:nodedown(Other, Watcher, OneNode, ?WAIT_MS),
    true = At - Began < 1000,
    ok.
