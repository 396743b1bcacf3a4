%% SPDX-License-Identifier: Apache-2.0
%% @doc Why did the node go down? Each cause is produced for real, and `beamway:why/1' on the remaining node must name it, as must
%% the single line in its log.
-module(beamway_why_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([killed/1, halted/1, restarted/1, asked_at_once/1, disconnected/1, disconnected_by_the_peer/1, without_epmd/1, epmd_restarted/1, epmd_hangs/1, peer_stopped/1, stopped_here/1, paused_here/1, driver_reloaded/1, ended_at_once/1, busy_here/1,
         reset_without_resume/1, clock/1, clock_while_down/1, peer_out_of_memory/1, no_memory/1, ticks_off/1, ticks_differ/1, peer_blocked/1, peer_burns/1, outlived/1, unreachable/1, congested/1, no_record/1, corrupt/1, without_recorder/1, at_rest/1, tool/1, senders/1, a_late_sender/1, senders_that_wait/1]).
-export([send_all/3]).
-export([why_at_once/1, drop_node/1, end_at_once/1, of_resume/0, burn/0, burn_and_send/1, block/1]).

-define(WAIT_MS, 20000).

suite() -> [{timetrap, {minutes, 10}}].

all() -> [{group, Carrier} || Carrier <- [beamway_tcp, beamway_shm, beamway_tls, beamway_inet, path]].

groups() ->
    Everywhere = [killed, halted, disconnected, disconnected_by_the_peer],
    Driven = [senders, senders_that_wait],
    [{beamway_tcp, [], Everywhere ++ Driven ++ [a_late_sender, restarted, asked_at_once, without_epmd, epmd_restarted, peer_stopped, stopped_here, paused_here, driver_reloaded, busy_here, reset_without_resume, clock, clock_while_down, peer_out_of_memory, no_memory, peer_blocked, peer_burns, outlived, unreachable, no_record, corrupt, ended_at_once, without_recorder, at_rest, tool]},
     {beamway_shm, [], Everywhere ++ Driven ++ [restarted, epmd_hangs, peer_stopped, stopped_here, driver_reloaded, ticks_off, ticks_differ, corrupt]},
     {beamway_tls, [], Everywhere ++ Driven ++ [peer_stopped]},
     {beamway_inet, [], Everywhere ++ [peer_stopped]},
     {path, [], [congested]}].

init_per_suite(Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    Config.

end_per_suite(_Config) -> ok.

init_per_group(path, Config) ->
    case os:cmd("id -u") of
        "0\n" ->
            case beamway_netns:firewalled("bwy", 600) of
                {ok, Net} -> [{net, Net}, {carrier, beamway_tcp} | Config];
                {error, Why} -> {skip, {rights, Why}}
            end;
        _ -> {skip, {rights, "needs root to make network namespaces and a router"}}
    end;
init_per_group(Carrier, Config) ->
    [{carrier, Carrier} | Config].

end_per_group(path, Config) -> beamway_netns:delete(proplists:get_value(net, Config));
end_per_group(_Carrier, _Config) -> ok.

end_per_testcase(_Case, Config) ->
    _ = [open(Config) || proplists:get_value(net, Config) =/= undefined],
    beamway_peer:stop_started().

%% ---- nodes ----

%% The suite reads the first node's log.
pair(Config) -> pair(Config, []).

pair(Config, Options) ->
    Carrier = proplists:get_value(carrier, Config),
    [{One, OneNode}, {Other, OtherNode}] = [start(Carrier, Options ++ At) || At <- places(Config)],
    ok = beamway_peer:connect_both(Carrier, One, Other),
    {One, OneNode, Other, OtherNode}.

places(Config) ->
    case proplists:get_value(net, Config) of
        undefined -> [[], []];
        #{spaces := [SpaceA, SpaceB, _], addresses := [AddressA, AddressB]} ->
            [[{host, Address}, {wrapper, beamway_netns:host(Space)}] || {Space, Address} <- [{SpaceA, AddressA}, {SpaceB, AddressB}]]
    end.

start(Carrier, Options) ->
    Args = [{args, ["-kernel", "logger_level", "info" | proplists:get_value(args, Options, [])]}],
    {ok, Peer, Node} = beamway_peer:start(Carrier, maps:from_list(Args ++ proplists:delete(args, Options))),
    {Peer, Node}.

%% Returns what the first node reports about its last link to the other once that link has ended.
why({One, _, _, OtherNode}) ->
    ended(One, OtherNode).

ended(Peer, Node) ->
    Ended = fun() ->
                    case beamway_peer:call(Peer, beamway, why, [Node]) of
                        {ok, Links} -> case [Link || #{ended := _} = Link <- Links] of [First | _] -> First; [] -> false end;
                        {error, unknown} -> false
                    end
            end,
    _ = beamway_peer:wait_until(fun() -> Ended() =/= false end, 4 * ?WAIT_MS),
    Ended().

has_fact(#{facts := Facts}, Wanted) ->
    ?assertMatch([_ | _], [Text || #{text := Text} <- Facts, string:find(Text, Wanted) =/= nomatch], {Wanted, Facts}).

%% Makes the node tick once a second, which is four times in four seconds instead of four times in sixty.
quick_ticks() -> [{args, ["-kernel", "net_ticktime", "4"]}].

%% ---- cases ----

killed(Config) ->
    {One, _, Other, _} = Pair = pair(Config),
    ok = beamway_peer:kill9(Other),
    #{cause := peer_ended, short := Short, ended := #{reason := _}} = Link = why(Pair),
    ?assertMatch({_, _}, binary:match(Short, <<"ended">>)),
    has_fact(Link, <<"the link came up">>),
    %% Nothing of the link remains, such as the process that looked for another connection.
    true = beamway_peer:wait_until(fun() -> beamway_peer:run(One, fun() -> ?MODULE:of_resume() end) =:= [] end, ?WAIT_MS).

%% @doc Returns the processes that this node has for links without a connection.
of_resume() -> [Pid || Pid <- processes(), {initial_call, {beamway_resume, _, _}} <- [process_info(Pid, initial_call)]].

halted(Config) ->
    {_, _, Other, _} = Pair = pair(Config),
    ok = beamway_peer:halt_node(Other),
    ?assertMatch(#{cause := peer_ended}, why(Pair)).

%% The new node is up before the verdict is read.
restarted(Config) ->
    {One, _, Other, OtherNode} = pair(Config),
    [Name, _] = string:split(atom_to_list(OtherNode), "@"),
    ok = beamway_peer:sigstop(One),
    ok = beamway_peer:kill9(Other),
    {_, OtherNode} = start(proplists:get_value(carrier, Config), [{name, Name}]),
    ok = beamway_peer:sigcont(One),
    ?assertMatch(#{cause := Cause} when Cause =:= peer_restarted; Cause =:= peer_ended, ended(One, OtherNode)).

%% A process that asks as soon as it receives `nodedown' gets the verdict, although the peer's epmd is queried first.
asked_at_once(Config) ->
    {One, _, Other, OtherNode} = pair(Config),
    Parent = self(),
    _ = spawn_link(fun() -> Parent ! {why, beamway_peer:run(One, fun() -> ?MODULE:why_at_once(OtherNode) end)} end),
    true = beamway_peer:wait_until(fun() -> is_pid(beamway_peer:call(One, erlang, whereis, [why_at_once])) end, ?WAIT_MS),
    ok = beamway_peer:kill9(Other),
    receive {why, Why} -> ?assertMatch({ok, [#{cause := peer_ended}]}, Why)
    after ?WAIT_MS -> error(timeout)
    end.

%% @doc Returns why the link to the node ended, as soon as it has.
-spec why_at_once(node()) -> term().
why_at_once(Node) ->
    true = erlang:monitor_node(Node, true),
    true = register(why_at_once, self()),
    receive {nodedown, Node} -> beamway:why(Node) end.

disconnected(Config) ->
    {One, _, _, OtherNode} = Pair = pair(Config),
    true = beamway_peer:run(One, fun() -> ?MODULE:drop_node(OtherNode) end),
    #{cause := disconnected, short := Short} = why(Pair),
    ?assertMatch({_, _}, binary:match(Short, <<"the_operator">>), Short).

%% @doc Disconnects the node from a registered process that lives slightly longer, because once a process has exited, only its pid is known.
drop_node(Node) ->
    true = register(the_operator, self()),
    true = erlang:disconnect_node(Node),
    receive after 500 -> true end.

disconnected_by_the_peer(Config) ->
    {_, OneNode, Other, _} = Pair = pair(Config),
    true = beamway_peer:call(Other, erlang, disconnect_node, [OneNode]),
    ?assertMatch(#{cause := peer_closed}, why(Pair)).

%% The peer's epmd has exited, but the peer has not.
without_epmd(Config) ->
    {{_, OneNode, Other, _} = Pair, _, Epmd} = pair_with_epmd(Config),
    ok = end_epmd(Epmd),
    true = beamway_peer:call(Other, erlang, disconnect_node, [OneNode]),
    #{cause := peer_closed} = Link = why(Pair),
    has_fact(Link, <<"no epmd listens on the peer's host">>),
    has_fact(Link, <<"the peer's port is open">>).

%% The peer's epmd has been restarted, and the peer has not registered with it again. It would do so within two seconds.
epmd_restarted(Config) ->
    {{_, OneNode, Other, _} = Pair, Port, Epmd} = pair_with_epmd(Config),
    ok = beamway_peer:call(Other, sys, suspend, [erl_epmd]),
    ok = end_epmd(Epmd),
    "" = os:cmd("epmd -daemon -address 127.0.0.1 -port " ++ integer_to_list(Port)),
    true = beamway_peer:wait_until(fun() -> listeners(Port) =/= [] end, ?WAIT_MS),
    try
        true = beamway_peer:call(Other, erlang, disconnect_node, [OneNode]),
        #{cause := peer_closed} = Link = why(Pair),
        has_fact(Link, <<"the peer's epmd does not list it">>),
        has_fact(Link, <<"the peer's port is open">>)
    after
        ok = beamway_peer:call(Other, sys, resume, [erl_epmd]),
        signal("TERM", Port)
    end.

%% The peer's process exits while its epmd accepts connections but does not answer.
epmd_hangs(Config) ->
    [begin
         {{_, _, Other, _} = Pair, Port, Epmd} = pair_with_epmd(Config),
         ok = signal("STOP", Port),
         ok = End(Other),
         #{cause := Cause, short := Short} = Link = why(Pair),
         ok = signal("CONT", Port),
         ok = end_epmd(Epmd),
         ?assertEqual(peer_ended, Cause, Link),
         ?assertMatch({_, _}, binary:match(Short, Words), Short)
     end || {End, Words} <- [{fun beamway_peer:kill9/1, <<"no longer exists on this host">>}, {fun beamway_peer:halt_node/1, <<"the peer's process ended">>}]],
    ok.

%% Returns a pair whose nodes register with an epmd of their own, its port, and the epmd.
pair_with_epmd(Config) ->
    Epmd = beamway_bench_nodes:start_epmd(),
    Port = beamway_bench_nodes:epmd_port(Epmd),
    {pair(Config, [{env, [{"ERL_EPMD_PORT", integer_to_list(Port)}]}]), Port, Epmd}.

end_epmd(Epmd) ->
    Port = beamway_bench_nodes:epmd_port(Epmd),
    ok = beamway_bench_nodes:stop_epmd(Epmd),
    true = beamway_peer:wait_until(fun() -> gen_tcp:connect({127, 0, 0, 1}, Port, []) =:= {error, econnrefused} end, ?WAIT_MS),
    ok.

%% Returns the processes that listen on this port.
listeners(Port) ->
    case re:run(os:cmd("ss -Hltnp sport = :" ++ integer_to_list(Port)), "pid=([0-9]+)", [global, {capture, all_but_first, list}]) of
        {match, Found} -> lists:usort([OsPid || [OsPid] <- Found]);
        nomatch -> []
    end.

signal(Name, Port) ->
    [OsPid] = listeners(Port),
    "" = os:cmd("kill -" ++ Name ++ " " ++ OsPid),
    ok.

%% The peer's kernel keeps acknowledging what arrives.
peer_stopped(Config) ->
    {_, _, Other, _} = Pair = pair(Config, quick_ticks()),
    ok = beamway_peer:sigstop(Other),
    #{cause := peer_hung} = Link = why(Pair),
    has_fact(Link, <<"the last bytes came from the peer">>).

%% The other node receives nothing and closes the link; this node notices when it runs again.
stopped_here(Config) ->
    {One, OneNode, Other, _} = Pair = pair(Config, quick_ticks()),
    ok = beamway_peer:sigstop(One),
    ok = beamway_peer:wait_disconnected(Other, OneNode),
    ok = beamway_peer:sigcont(One),
    #{cause := this_node_stopped} = Link = why(Pair),
    has_fact(Link, <<"this node did not run for">>).

%% The link outlives a short stop of this node, and the record says when the stop was, even if the record is read later.
paused_here(Config) ->
    {One, _, _, OtherNode} = pair(Config),
    {Stop, Read, Later} = {6000, 3000, 9000},
    ok = beamway_peer:sigstop(One),
    receive after Stop -> ok end,
    ok = beamway_peer:sigcont(One),
    Resumed = erlang:monotonic_time(millisecond),
    [begin
         receive after max(0, Resumed + AfterMs - erlang:monotonic_time(millisecond)) -> ok end,
         {ok, [#{cause := up, facts := Facts}]} = beamway_peer:call(One, beamway, why, [OtherNode]),
         PassedMs = erlang:monotonic_time(millisecond) - Resumed,
         Stops = [{AgoMs, Text} || #{ago_ms := AgoMs, text := <<"this node did not run for ", Text/binary>>} <- Facts],
         ?assertMatch([{AgoMs, _}] when abs(PassedMs - AgoMs) =< 1500, Stops, {PassedMs, Facts})
     end || AfterMs <- [Read, Later]].

driver_reloaded(Config) ->
    {One, _, _, _} = Pair = pair(Config),
    ok = beamway_peer:call(One, beamway, reload_driver, []),
    #{cause := disconnected, short := Short} = why(Pair),
    ?assertMatch({_, _}, binary:match(Short, <<"beamway:reload_driver/0">>), Short).

%% Far more processes are runnable than can run.
busy_here(Config) ->
    {One, _, Other, _} = Pair = pair(Config, [{args, ["-kernel", "net_ticktime", "8", "+S", "1"]}]),
    ok = beamway_peer:sigstop(Other),
    ok = beamway_peer:run(One, fun() -> ?MODULE:burn() end),
    #{cause := this_node_busy} = Link = why(Pair),
    has_fact(Link, <<"this node's processors were busy">>).

%% @doc Keeps the node's schedulers busy until it stops.
burn() ->
    Burner = fun Loop() -> _ = lists:sum(lists:seq(1, 1000)), Loop() end,
    _ = [spawn(Burner) || _ <- lists:seq(1, 4 * erlang:system_info(schedulers))],
    ok.

%% As between stock nodes, a reset of the connection closes the link although the peer is alive.
reset_without_resume(Config) ->
    {One, _, _, OtherNode} = Pair = pair(Config, [{env, [{"BEAMWAY_RESUME_MS", "0"}]}]),
    ok = beamway_peer:run(One, fun() -> [exit(Connection, kill) || #{node := Of, connection := Connection} <- beamway_links:all(), Of =:= OtherNode], ok end),
    ?assertMatch(#{cause := this_node_ended}, why(Pair)).

%% A reset is only a pause, and the record shows that.
outlived(Config) ->
    {One, _, _, OtherNode} = pair(Config, faults()),
    ok = beamway_peer:call(One, beamway, fault, [OtherNode, #{disconnect => true, cut => both, for_ms => 300}]),
    _ = beamway_peer:wait_until(fun() -> {ok, Link} = beamway_peer:call(One, beamway, info, [OtherNode]), is_map_key(resumes, Link) end, ?WAIT_MS),
    {ok, [#{cause := up, short := Short} = Link]} = beamway_peer:call(One, beamway, why, [OtherNode]),
    ?assertMatch({_, _}, binary:match(Short, <<"outlived its connection">>)),
    has_fact(Link, <<"the connection was lost">>),
    has_fact(Link, <<"went on over another connection">>).

%% The peer's system drops what this node sends, as a cut path would.
unreachable(Config) ->
    {One, OneNode, Other, OtherNode} = Pair = pair(Config, faults() ++ quick_ticks()),
    ok = beamway_peer:call(Other, beamway, fault, [OneNode, #{cut => both}]),
    ok = beamway_peer:run(One, fun() -> {rex, OtherNode} ! hello, ok end),
    #{cause := unreachable} = Link = why(Pair),
    has_fact(Link, <<"retransmissions in a row were not answered">>).

faults() -> [{env, [{"BEAMWAY_ALLOW_FAULTS", "true"}]}].

%% The clock is set an hour forward and two back: no link depends on it, and the record mentions that it was set.
clock(Config) ->
    Clock = filename:join(proplists:get_value(priv_dir, Config), "clock"),
    ok = beamway_nemesis_faults:new_clock(Clock, 0),
    {One, _, _, OtherNode} = pair(Config, quick_ticks() ++ [{env, beamway_nemesis_faults:environment(Clock)}]),
    Told = fun(Wanted) ->
                   {ok, [#{cause := up, facts := Facts}]} = beamway_peer:call(One, beamway, why, [OtherNode]),
                   [] =/= [Text || #{text := Text} <- Facts, string:find(Text, Wanted) =/= nomatch]
           end,
    true = beamway_nemesis_faults:jump(#{peer => One}, Clock, 3600),
    _ = beamway_peer:wait_until(fun() -> Told("was set forward by 3600.") end, ?WAIT_MS),
    true = beamway_nemesis_faults:jump(#{peer => One}, Clock, -3600),
    _ = beamway_peer:wait_until(fun() -> Told("was set back by 7200.") end, ?WAIT_MS),
    receive after 5000 -> ok end,
    {ok, #{losses := 0} = Link} = beamway_peer:call(One, beamway, info, [OtherNode]),
    ?assertNot(is_map_key(resumes, Link)),
    ?assertEqual(OtherNode, beamway_peer:call(One, erpc, call, [OtherNode, erlang, node, []])).

%% A link without a connection does not depend on the clock either: it is set a day forward and back, which is longer than `resume_ms'.
clock_while_down(Config) ->
    Clock = filename:join(proplists:get_value(priv_dir, Config), "clock_while_down"),
    ok = beamway_nemesis_faults:new_clock(Clock, 0),
    {One, _, _, OtherNode} = pair(Config, [{env, [{"BEAMWAY_ALLOW_FAULTS", "true"}, {"BEAMWAY_RESUME_MS", "50000"} | beamway_nemesis_faults:environment(Clock)]}]),
    Link = beamway_peer:controller(One, OtherNode),
    Info = fun() -> {ok, Now} = beamway_peer:call(One, beamway, info, [OtherNode]), Now end,
    ok = beamway_peer:call(One, beamway, fault, [OtherNode, #{disconnect => true, cut => both}]),
    [true = beamway_nemesis_faults:jump(#{peer => One}, Clock, Seconds) || Seconds <- [86400, 0]],
    #{losses := 1} = Down = Info(),
    ?assertNot(is_map_key(resumes, Down)),
    ok = beamway_peer:call(One, beamway, fault, [OtherNode, none]),
    #{last_resume := #{ms := Ms}} = beamway_peer:wait_until(fun() -> case Info() of #{resumes := _} = Up -> Up; _ -> false end end, ?WAIT_MS),
    ?assert(Ms < 50000),
    ?assertEqual(Link, beamway_peer:controller(One, OtherNode)),
    ?assertEqual(OtherNode, beamway_peer:call(One, erpc, call, [OtherNode, erlang, node, []])).

%% The peer's VM exits when the system denies it memory. To this node it looks as if the process had been killed.
peer_out_of_memory(Config) ->
    {_, _, Other, _} = Pair = pair(Config, [{env, [{"ERL_CRASH_DUMP_SECONDS", "0"}]}]),
    ok = limit_memory(Other, 50),
    _ = beamway_peer:async(fun() -> beamway_peer:call(Other, lists, seq, [1, 100000000]) end),
    ?assertMatch(#{cause := peer_ended}, why(Pair)).

%% Limits how much the process's memory may grow from now on.
limit_memory(Peer, Mb) ->
    OsPid = beamway_peer:os_pid(Peer),
    {ok, Status} = file:read_file(lists:concat(["/proc/", OsPid, "/status"])),
    {match, [Kb]} = re:run(Status, "VmSize:\\s+(\\d+)", [{capture, all_but_first, list}]),
    "" = os:cmd(lists:concat(["prlimit --pid ", OsPid, " --as=", (list_to_integer(Kb) + 1024 * Mb) * 1024])),
    ok.

%% A message arrives but there is no memory for it: the link is closed, and the node continues.
no_memory(Config) ->
    {One, OneNode, Other, OtherNode} = Pair = pair(Config, [{env, [{"BEAMWAY_RESUME_MS", "0"}]}]),
    ok = limit_memory(One, 60),
    ok = beamway_peer:run(Other, fun() -> {rex, OneNode} ! binary:copy(<<1>>, 200000000), ok end),
    #{cause := no_memory} = why(Pair),
    ?assertEqual(pong, beamway_peer:call(One, net_adm, ping, [OtherNode])).

%% The peer is alive, but its net_kernel sends no ticks. Over a socket, the driver's acknowledgements also prove that it is alive.
ticks_off(Config) ->
    {_, _, Other, _} = Pair = pair(Config, quick_ticks()),
    ok = beamway_peer:call(Other, sys, suspend, [net_kernel]),
    #{cause := peer_hung, short := Short} = why(Pair),
    ?assertMatch({_, _}, binary:match(Short, <<"or it sends ticks more seldom">>), Short).

%% This node expects a tick each second, but the peer sends one every fifteen seconds.
ticks_differ(Config) ->
    Carrier = proplists:get_value(carrier, Config),
    [{One, _}, {Other, OtherNode}] = [start(Carrier, Options) || Options <- [quick_ticks(), []]],
    ok = beamway_peer:connect_both(Carrier, One, Other),
    #{cause := peer_hung, short := Short} = ended(One, OtherNode),
    ?assertMatch({_, _}, binary:match(Short, <<"(net_ticktime)">>), Short).

%% The peer's schedulers are blocked in native code.
peer_blocked(Config) ->
    {_, _, Other, _} = Pair = pair(Config, quick_ticks()),
    ok = beamway_peer:run(Other, fun() -> _ = spawn(fun() -> ?MODULE:block(15000) end), ok end),
    #{cause := peer_hung} = Link = why(Pair),
    has_fact(Link, <<"the last bytes came from the peer">>).

%% @doc Blocks all schedulers of the node.
block(Ms) ->
    receive after 300 -> ok end, % lets the caller continue first
    _ = erts_debug:set_internal_state(available_internal_state, true),
    erts_debug:set_internal_state(block, Ms).

%% Processes that compute do not keep a node from ticking, however many there are. The record shows how late the link's own process ran after it was
%% asked to send: many processes send bursts here, so that its work is queued.
peer_burns(Config) ->
    {One, OneNode, Other, OtherNode} = pair(Config, [{args, ["-kernel", "net_ticktime", "2", "+S", "1"]}]),
    ok = beamway_peer:run(Other, fun() -> ?MODULE:burn_and_send(OneNode) end),
    receive after 5000 -> ok end,
    {ok, [#{cause := up}]} = beamway_peer:call(One, beamway, why, [OtherNode]),
    Delayed = fun() ->
                      {ok, [#{cause := up, facts := Facts}]} = beamway_peer:call(Other, beamway, why, [OneNode]),
                      [Text || #{text := Text} <- Facts, string:find(Text, "the link's own process waited up to") =/= nomatch] =/= []
              end,
    true = beamway_peer:wait_until(Delayed, ?WAIT_MS).

%% @doc Starts thousands of processes that compute, each for a few microseconds at a time, and occasionally send something.
burn_and_send(Node) ->
    Loop = fun Loop() ->
                   _ = [lists:sum(lists:seq(1, 1000)) || _ <- lists:seq(1, 10)],
                   {nobody_there, Node} ! busy,
                   Loop()
           end,
    _ = [spawn(Loop) || _ <- lists:seq(1, 10000)],
    ok.

%% Even without recorded samples, the events and the verdict are available.
no_record(Config) ->
    {_, _, Other, _} = Pair = pair(Config, [{env, [{"BEAMWAY_RECORD_S", "0"}]}]),
    ok = beamway_peer:kill9(Other),
    ?assertMatch(#{cause := peer_ended, seconds := [], tens := []}, why(Pair)).

corrupt(Config) ->
    {One, _, _, OtherNode} = Pair = pair(Config),
    ok = beamway_peer:run(One, fun() -> [exit(Connection, beamway_link_corrupt) || #{node := Of, connection := Connection} <- beamway_links:all(), Of =:= OtherNode], ok end),
    ?assertMatch(#{cause := protocol}, why(Pair)).

%% The reason is known even if the link ends before the recorder has handled the message that it is up.
ended_at_once(Config) ->
    {One, _, _, OtherNode} = Pair = pair(Config),
    ok = beamway_peer:run(One, fun() -> ?MODULE:end_at_once(OtherNode) end),
    ?assertMatch(#{cause := protocol}, why(Pair)).

%% @doc Ends a second link to the node while the recorder has not yet handled the message that the link is up.
end_at_once(Node) ->
    [Link] = [Link || #{node := Of} = Link <- beamway_links:all(), Of =:= Node],
    Recorder = whereis(beamway_recorder),
    true = erlang:suspend_process(Recorder),
    {_, Monitor} = spawn_monitor(fun() -> ok = beamway_recorder:up(Link#{connection := self()}), exit(beamway_link_corrupt) end),
    receive {'DOWN', Monitor, process, _, _} -> ok after 200 -> ok end,
    true = erlang:resume_process(Recorder),
    ok.

%% A recorder that crashes is restarted and finds the links. If it crashes repeatedly, it is not restarted any more, and the links continue.
without_recorder(Config) ->
    {One, _, _, OtherNode} = pair(Config),
    Kill = fun() -> beamway_peer:run(One, fun() ->
                                                  case whereis(beamway_recorder) of
                                                      undefined -> given_up;
                                                      Recorder ->
                                                          Monitor = monitor(process, Recorder),
                                                          exit(Recorder, kill),
                                                          receive {'DOWN', Monitor, process, _, _} -> killed end
                                                  end
                                          end) end,
    Why = fun() -> beamway_peer:call(One, beamway, why, [OtherNode]) end,
    ?assertEqual(killed, Kill()),
    true = beamway_peer:wait_until(fun() -> case Why() of {ok, [#{cause := up}]} -> true; {error, unknown} -> false end end, ?WAIT_MS),
    true = beamway_peer:wait_until(fun() -> Kill() =:= given_up andalso beamway_peer:call(One, erlang, whereis, [beamway_recorder]) =:= undefined end, ?WAIT_MS),
    ?assertEqual({error, unknown}, Why()),
    ?assertMatch([#{node := OtherNode}], beamway_peer:call(One, beamway, links, [])),
    ?assertEqual(OtherNode, beamway_peer:call(One, erpc, call, [OtherNode, erlang, node, []])).

%% The recorder of an idle node runs every five seconds, and every second once there is something to record.
at_rest(Config) ->
    {One, _, _, OtherNode} = pair(Config),
    true = beamway_peer:wait_until(fun() -> beamway_peer:run(One, fun() -> runs(11000) end) =< 4 end, 3 * ?WAIT_MS),
    ok = beamway_peer:run(One, fun() -> _ = spawn(fun Send() -> {x, OtherNode} ! lists:seq(1, 100), receive after 10 -> Send() end end), ok end),
    true = beamway_peer:wait_until(fun() -> beamway_peer:run(One, fun() -> runs(6000) end) >= 4 end, 2 * ?WAIT_MS).

%% Returns how often the recorder ran within this time.
runs(Ms) ->
    Recorder = whereis(beamway_recorder),
    1 = erlang:trace(Recorder, true, [running]),
    receive after Ms -> ok end,
    1 = erlang:trace(Recorder, false, [running]),
    runs_seen(0).

runs_seen(Runs) ->
    receive
        {trace, _, in, _} -> runs_seen(Runs + 1);
        {trace, _, out, _} -> runs_seen(Runs)
    after 0 -> Runs
    end.

%% A hidden node that connects only briefly leaves no record.
tool(Config) ->
    {One, _, _, OtherNode} = pair(Config),
    {Tool, ToolNode} = start(proplists:get_value(carrier, Config), [{args, ["-hidden"]}]),
    true = beamway_peer:call(Tool, net_kernel, connect_node, [beamway_peer:call(One, erlang, node, [])]),
    Known = fun() -> lists:usort([Node || #{node := Node} <- beamway_peer:call(One, beamway, why, [])]) end,
    true = beamway_peer:wait_until(fun() -> lists:member(ToolNode, Known()) end, ?WAIT_MS),
    ok = beamway_peer:kill9(Tool),
    true = beamway_peer:wait_until(fun() -> Known() =:= [OtherNode] end, ?WAIT_MS).

%% ---- processes that fill the link ----

%% Three processes send 100 bytes, 2 KB and 100 KB, each at its own rate: with headers about 650, 2,000 and 4,000 KB per second.
senders(Config) ->
    {One, _, _, OtherNode} = pair(Config),
    ok = beamway_peer:run(One, fun() ->
        _ = [?MODULE:send_all(Name, OtherNode, Load) || {Name, Load} <- [{small, {100, 40}}, {middle, {2000, 10}}, {large, {100000, 0.4}}]],
        _ = beamway_classes:set(whereis(large), bulk),
        ok
    end),
    receive after 500 -> ok end,
    {ok, Senders} = beamway_peer:call(One, beamway, senders, [OtherNode, 2000]),
    ct:pal("~tp", [Senders]),
    Named = [Sender || #{name := Name} = Sender <- Senders, lists:member(Name, [small, middle, large])],
    [#{name := large, class := bulk, bytes_per_s := Large, initial_call := {erlang, apply, 2}}, #{name := middle, class := normal, bytes_per_s := Middle}, #{name := small, bytes_per_s := Small}] = Named,
    %% The rates depend on the load of the machine, but their ratios do not.
    ?assert(Large > 1.3 * Middle, Named),
    ?assert(Middle > 1.3 * Small, Named),
    ?assertEqual({error, not_connected}, beamway_peer:call(One, beamway, senders, [nobody@nowhere])).

%% Sixteen processes have each sent more than the current sender ever will, and send no more. The sender has a label where OTP supports labels.
a_late_sender(Config) ->
    {One, _, _, OtherNode} = pair(Config),
    ok = beamway_peer:run(One, fun() ->
        Sent = [spawn_monitor(fun() -> {nobody_there, OtherNode} ! binary:copy(<<1>>, 3000000) end) || _ <- lists:seq(1, 16)],
        _ = [receive {'DOWN', Monitor, process, Pid, normal} -> ok end || {Pid, Monitor} <- Sent],
        ok
    end),
    Sent = fun() -> {ok, All} = beamway_peer:call(One, beamway, senders, [OtherNode]), All end,
    ?assertMatch([_ | _], [Bytes || #{sent := Bytes} <- Sent(), Bytes >= 3000000]),
    true = beamway_peer:wait_until(fun() -> Sent() =:= [] end, ?WAIT_MS),
    ok = beamway_peer:run(One, fun() ->
        _ = spawn(fun() ->
            _ = put('$process_label', {late, <<"one">>}),
            _ = [begin {nobody_there, OtherNode} ! binary:copy(<<1>>, 100000), receive after 200 -> ok end end || _ <- lists:seq(1, 10)],
            receive after ?WAIT_MS -> ok end
        end),
        ok
    end),
    true = beamway_peer:wait_until(fun() -> case Sent() of
                                                [#{label := <<"{late,<<\"one\">>}">>, sent := Bytes}] -> Bytes >= 1000000 andalso Bytes < 1100000;
                                                _ -> false
                                            end end, ?WAIT_MS),
    [#{class := normal, bytes_per_s := PerSecond, waiting := 0, initial_call := {erlang, apply, 2}}] = Sent(),
    ?assert(PerSecond > 60000),
    #{OtherNode := [#{label := _}]} = beamway_peer:call(One, beamway, senders, []),
    %% Ten seconds later it no longer counts as a recent sender.
    true = beamway_peer:wait_until(fun() -> Sent() =:= [] end, ?WAIT_MS).

%% @doc Starts a process with that name. Every ten milliseconds it sends this many messages of this many bytes; if the number is less than one, it
%% sends a single message at correspondingly longer intervals.
send_all(Name, Node, {Bytes, Times}) ->
    Data = binary:copy(<<"x">>, Bytes),
    PauseMs = max(10, round(10 / Times)),
    spawn(fun() ->
                  true = register(Name, self()),
                  (fun Loop() ->
                           _ = [{nobody_there, Node} ! Data || _ <- lists:seq(1, max(1, round(Times)))],
                           receive after PauseMs -> Loop() end
                   end)()
          end),
    _ = beamway_peer:wait_until(fun() -> whereis(Name) =/= undefined end, ?WAIT_MS).

%% The peer does not read, so both `senders/2' and the record name the processes whose messages are queued.
senders_that_wait(Config) ->
    {One, _, Other, OtherNode} = pair(Config),
    ok = beamway_peer:sigstop(Other),
    ok = beamway_peer:run(One, fun() -> ?MODULE:send_all(filler, OtherNode, {4000000, 1}), ok end),
    Waiting = fun() -> {ok, Senders} = beamway_peer:call(One, beamway, senders, [OtherNode, 0]), [Sender || #{name := filler, waiting := Bytes} = Sender <- Senders, Bytes > 1000000] end,
    true = beamway_peer:wait_until(fun() -> Waiting() =/= [] end, ?WAIT_MS),
    Told = fun() -> {ok, [#{facts := Facts} | _]} = beamway_peer:call(One, beamway, why, [OtherNode]),
                    lists:any(fun(#{text := Text}) -> string:find(Text, "the link was full; most waited of: ") =/= nomatch andalso string:find(Text, "filler") =/= nomatch end, Facts) end,
    true = beamway_peer:wait_until(Told, ?WAIT_MS),
    ok = beamway_peer:sigcont(Other).

%% ---- links over a path ----

router(Config) ->
    #{spaces := [_, _, Wall]} = proplists:get_value(net, Config),
    {Wall, "FORWARD"}.

close(Config, Rule) -> beamway_cut:close(router(Config), [Rule]).

open(Config) -> beamway_cut:open(router(Config)).

%% A fifth of the packets are lost while the node sends; then the peer is killed.
congested(Config) ->
    {One, _, Other, OtherNode} = Pair = pair(Config),
    ok = close(Config, "-m statistic --mode random --probability 0.2 -j DROP"),
    ok = beamway_peer:run(One, fun() -> Data = binary:copy(<<1>>, 4000),
                                        [begin {rex, OtherNode} ! Data, receive after 1 -> ok end end || _ <- lists:seq(1, 3000)], ok end),
    ok = open(Config),
    ok = beamway_peer:kill9(Other),
    has_fact(why(Pair), <<"the path was congested">>).
