%% SPDX-License-Identifier: Apache-2.0
%% @doc Starts and stops the nodes that the multi-node suites test, and examines them from outside.
%%
%% Each node is a separate operating system process, which {@link //stdlib/peer} starts over standard input and output. So control never runs
%% over the carrier under test, and continues to work while the distribution is broken or stopped. A node inherits the runner's code path outside
%% OTP, so {@link run/2} may send it any fun of a suite.
%%
%% The carriers are the following. `inet_tcp' is stock distribution, with which a test must pass as well, to show that the test itself is right.
%% `beamway_inet' is Beamway with its kill switch on. `beamway_tcp' uses Beamway's own link over TCP. `beamway_shm' is Beamway with default options,
%% and `beamway_small' differs from it only in having the smallest ring, which cannot hold a whole fragment. `beamway_rdma' forces rdma.
%% `beamway_encrypted' sets the option `encrypt', and `beamway_encrypted_shm' does so with default links. `beamway_tls' uses Beamway's own link over
%% TLS, `beamway_ssl' continues over ssl, and `inet_tls' is OTP's own carrier; these three need {@link beamway_certificates:prepare/1}.
%%
%% `BEAMWAY_TEST_WRAPPER' in the environment specifies a program that gets every node's `erl' command as its arguments and executes it, so that a
%% whole run can be examined, for example with a sanitizer. Nodes are then asked to exit rather than killed, because a sanitizer looks for leaks at
%% exit.
%%
%% If another OTP release is specified, every second node runs on it; see {@link beamway_other_otp}.
-module(beamway_peer).

-export([start/2, start/1, erl/0, unless_wrapped/2, stop/1, stop_all/1, started/0, stop_started/0, halt_node/1, halt_node/2, call/4, call/5, run/2, run/3, returned/1]).
-export([connect/3, connect_both/3, connected_pair/2, link_kind/1, node_info/2, assert_link/3, controller/2, own_controller/1, own_controller_driver/1]).
-export([os_pid/1, kill9/1, sigstop/1, sigcont/1, slow_down/1, full_speed/1, is_running/1, resident_bytes/1, fds/1, maps/1, resources/1, no_more/2, log_text/1]).
-export([watch_nodedown/1, nodedown/4, collector/3, collect/3, give/1, given/2]).
-export([echo/0, assert_reason/2, assert_reason/3]).
-export([wait_until/2, wait_disconnected/2, async/1, await/1, await/2, unique_name/1, new_folder/1, ebin/0, flags/1, environment/1]).

-export_type([carrier/0, options/0]).

-type carrier() :: inet_tcp | beamway_inet | beamway_tcp | beamway_shm | beamway_small | beamway_rdma
                 | beamway_encrypted | beamway_encrypted_shm | inet_tls | beamway_tls | beamway_ssl | beamway_tls_shm.
-type options() :: #{name => string(),          %% before the `@'; unique by default
                     host => string(),          %% after the `@'; if given, names are long
                     cookie => string(),
                     flags => [string()],       %% instead of the carrier's own
                     args => [string()],        %% added after those
                     env => [{string(), string() | false}],
                     before_exec => string(),   %% shell commands that run in the node's process first
                     otp => beamway_other_otp:otp(),
                     wrapper => [string()],     %% command that executes the rest of its arguments
                     ebin => file:name_all(),   %% a build of beamway other than the checkout's
                     log => file:name_all()}.   %% where the node's logger writes

-define(BOOT_MS, 30000).
%% Every deadline of wait_until/2 is at least this long, which is enough even if the machine is slow.
-define(LEAST_WAIT_MS, 15000).
-define(CALL_MS, 60000).
-define(WRAPPED_END_MS, 30000).
-define(GIVEN_MS, 50).

%% @doc Like {@link start/2}, without options.
-spec start(carrier()) -> {ok, pid(), node()} | {error, Reason :: term()}.
start(Carrier) ->
    start(Carrier, #{}).

%% @doc Starts a node with the carrier. The caller stops it with {@link stop/1}. The node also exits when the runner does, because its standard input
%% is closed.
-spec start(carrier(), options()) -> {ok, pid(), node()} | {error, Reason :: term()}.
start(Carrier, Given) ->
    Living = fun() -> length(started()) end,
    Options = Given#{otp => beamway_other_otp:choose(Given, Living)},
    Name = maps:get(name, Options, unique_name("bw")),
    Peer = #{name => Name,
             longnames => is_map_key(host, Options),
             connection => standard_io,
             wait_boot => ?BOOT_MS * beamway_runner:slowness(),
             exec => executable(Options),
             env => environment(Carrier) ++ maps:get(env, Options, []),
             args => arguments(Carrier, Options)},
    heard(fun() -> peer:start(maps:merge(Peer, maps:with([host], Options))) end).

%% The node's output goes to the runner's own output, where the reason for a failed boot can be seen. Otherwise it would appear only on Common
%% Test's page for the case.
heard(Start) ->
    Own = group_leader(),
    true = group_leader(whereis(user), self()),
    try Start() after group_leader(Own, self()) end.

%% @doc Stops a node immediately, whatever its state (even if it is suspended), and waits until it has exited.
-spec stop(pid()) -> ok.
stop(Peer) ->
    case {is_process_alive(Peer), wrapper()} of
        {true, []} -> kill9(Peer);
        {true, _} -> end_in_order(Peer);
        {false, _} -> ok
    end.

%% A node that does not exit is killed, because it may have been suspended while shutting down or have lost its terminal.
end_in_order(Peer) ->
    Monitor = monitor(process, Peer),
    ok = sigcont(Peer),
    ok = peer:cast(Peer, erlang, halt, [0, [{flush, false}]]),
    receive {'DOWN', Monitor, process, Peer, _} -> ok
    after ?WRAPPED_END_MS -> kill9(Peer)
    end.

%% @doc Makes a node call `halt()', as an operator would, and waits until it has exited.
-spec halt_node(pid()) -> ok.
halt_node(Peer) ->
    halt_node(Peer, []).

%% @doc Like {@link halt_node/1}, but with options of erlang:halt/2.
-spec halt_node(pid(), [{flush, boolean()}]) -> ok.
halt_node(Peer, Options) ->
    ended_by(fun(_) -> peer:cast(Peer, erlang, halt, [0, Options]) end, Peer, 30000).

ended_by(End, Peer, TimeoutMs) ->
    OsPid = os_pid(Peer),
    Monitor = monitor(process, Peer),
    _ = End(OsPid),
    receive {'DOWN', Monitor, process, Peer, _} -> ok
    after TimeoutMs -> error({still_running, OsPid})
    end,
    _ = wait_until(fun() -> not is_running(OsPid) end, 10000),
    ok.

%% @doc Stops every node that a test has started but not stopped. Suites whose cases start their own nodes call this in end_per_testcase, because a
%% case that fails halfway leaves nodes running.
-spec stop_started() -> ok.
stop_started() ->
    stop_all(started()).

%% @doc Returns the control processes of the nodes that this node has started.
-spec started() -> [pid()].
started() ->
    [Pid || Pid <- processes(), {dictionary, Dictionary} <- [process_info(Pid, dictionary)],
            proplists:get_value('$initial_call', Dictionary) =:= {peer, init, 1}].

%% @doc Stops several nodes.
-spec stop_all([pid()]) -> ok.
stop_all(Peers) ->
    lists:foreach(fun stop/1, Peers).

%% @doc Calls a function on the node, through standard input and output.
-spec call(pid(), module(), atom(), [term()]) -> term().
call(Peer, Module, Function, Arguments) ->
    call(Peer, Module, Function, Arguments, ?CALL_MS).

%% @doc Like {@link call/4}, but with a timeout in milliseconds, which is extended if everything runs slower ({@link beamway_runner:slowness/0}).
-spec call(pid(), module(), atom(), [term()], pos_integer()) -> term().
call(Peer, Module, Function, Arguments, TimeoutMs) ->
    peer:call(Peer, Module, Function, Arguments, TimeoutMs * beamway_runner:slowness()).

%% @doc Runs a fun on the node. Its exceptions are raised here.
-spec run(pid(), fun(() -> Result)) -> Result.
run(Peer, Fun) ->
    run(Peer, Fun, ?CALL_MS).

%% @doc Like {@link run/2}, but with a timeout in milliseconds, as for {@link call/5}. `peer:call/5' also returns `badarg' if the process on the node
%% is killed through a link and the exit reason is a pair, as when a test's helper fails. The fun's result is tagged, so that it cannot be mistaken
%% for that.
-spec run(pid(), fun(() -> Result), pos_integer()) -> Result.
run(Peer, Fun, TimeoutMs) ->
    case call(Peer, ?MODULE, returned, [Fun], TimeoutMs) of
        {returned, Result} -> Result;
        Other -> error({died_by_a_link, Other})
    end.

%% @private Called on the node.
-spec returned(fun(() -> Result)) -> {returned, Result}.
returned(Fun) -> {returned, Fun()}.

%% @doc Makes `Peer' connect to `Node', and checks that the carrier's link carries the connection. When this returns, the called node may not
%% have finished its side yet.
-spec connect(carrier(), pid(), node()) -> ok.
connect(Carrier, Peer, Node) ->
    true = call(Peer, net_kernel, connect_node, [Node]),
    assert_link(Peer, Node, link_kind(Carrier)).

%% @doc Like {@link connect/3}, but also waits until the called node has the connection. A case that closes the connection immediately needs this,
%% because the called node sees it slightly later.
-spec connect_both(carrier(), pid(), pid()) -> ok.
connect_both(Carrier, Caller, Called) ->
    ok = connect(Carrier, Caller, call(Called, erlang, node, [])),
    assert_link(Called, call(Caller, erlang, node, []), link_kind(Carrier)).

%% @doc Returns two new nodes with these options, of which the first has connected to the second.
-spec connected_pair(carrier(), options()) -> {pid(), node(), pid(), node()}.
connected_pair(Carrier, Options) ->
    {ok, PeerA, NodeA} = start(Carrier, Options),
    {ok, PeerB, NodeB} = start(Carrier, Options),
    ok = connect_both(Carrier, PeerA, PeerB),
    {PeerA, NodeA, PeerB, NodeB}.

%% @doc Returns the kind of link that two nodes with this carrier on the same host must agree on.
-spec link_kind(carrier()) -> stock | ssl | beamway_kind:label().
link_kind(inet_tcp) -> stock;
link_kind(inet_tls) -> stock;
link_kind(beamway_encrypted) -> tls;
link_kind(beamway_encrypted_shm) -> shm;
link_kind(beamway_tls) -> tls;
link_kind(beamway_ssl) -> ssl;
link_kind(beamway_tls_shm) -> shm;
link_kind(beamway_tcp) -> tcp;
link_kind(beamway_inet) -> inet;
link_kind(beamway_shm) -> shm;
link_kind(beamway_small) -> shm;
link_kind(beamway_rdma) -> rdma.

%% @doc Returns what net_kernel knows about the connection to `Node', once it is up. Waits for that, because the connection is up slightly later on
%% the called node.
-spec node_info(pid(), node()) -> [{atom(), term()}].
node_info(Peer, Node) ->
    wait_until(fun() ->
                       {ok, Info} = call(Peer, net_kernel, node_info, [Node]),
                       proplists:get_value(state, Info) =:= up andalso Info
               end, 5000).

%% @doc Waits until the node has a link of this kind to `Node', or fails and reports what it has. The kind is taken from `beamway:links/0' and,
%% independently, from the port that ERTS uses.
-spec assert_link(pid(), node(), stock | ssl | beamway_kind:label()) -> ok.
assert_link(Peer, Node, Kind) ->
    _ = wait_until(fun() -> controller(Peer, Node) =/= undefined end, 5000),
    {ok, Driver} = controller_driver(Peer, Node),
    case {Kind, Driver} of
        {shm, "beamway_drv"} -> assert_reported_link(Peer, Node, shm);
        {rdma, "beamway_drv"} -> assert_reported_link(Peer, Node, rdma);
        {tcp, "beamway_drv"} -> assert_reported_link(Peer, Node, tcp);
        {inet, "tcp_inet"} -> assert_reported_link(Peer, Node, inet);
        {tls, "beamway_drv"} -> assert_reported_link(Peer, Node, tls);
        {ssl, process} -> assert_reported_link(Peer, Node, tls);
        {stock, "tcp_inet"} -> ok;
        {stock, process} -> ok;
        _ -> error({wrong_link, #{expected => Kind, driver => Driver, node => Node,
                                  links => reported_links(Peer)}})
    end.

assert_reported_link(Peer, Node, Kind) ->
    Reported = fun() ->
                       [L || #{node := N} = L <- call(Peer, beamway, links, []), N =:= Node]
               end,
    [Link] = wait_until(fun() -> nonempty(Reported()) end, 5000),
    case Link of
        #{link := Kind} -> ok;
        _ -> error({wrong_link, #{expected => Kind, reported => Link}})
    end.

reported_links(Peer) ->
    try call(Peer, beamway, links, []) catch Class:Reason -> {Class, Reason} end.

nonempty([]) -> false;
nonempty(List) -> List.

%% @doc Returns a term that identifies the port or process through which the node is connected to `Node'. If a later call returns a different value,
%% the connection was lost in between.
-spec controller(pid(), node()) -> undefined | {string(), integer()}.
controller(Peer, Node) -> call(Peer, ?MODULE, own_controller, [Node]).

controller_driver(Peer, Node) -> call(Peer, ?MODULE, own_controller_driver, [Node]).

%% @private Called on the node itself. This is not a fun, because another OTP may have compiled this module there.
-spec own_controller(node()) -> {string(), non_neg_integer()} | undefined.
own_controller(Node) ->
    case lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)) of
        {_, Controller} -> {lists:flatten(io_lib:format("~p", [Controller])), erlang:system_info(creation)};
        false -> undefined
    end.

%% @private
-spec own_controller_driver(node()) -> {ok, process | string()}.
own_controller_driver(Node) ->
    case lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)) of
        {_, Pid} when is_pid(Pid) ->
            {ok, process};
        {_, Port} ->
            {name, Name} = erlang:port_info(Port, name),
            {ok, Name}
    end.

%% @doc Starts a process on the node that waits for the first nodedown, for {@link nodedown/4}.
-spec watch_nodedown(pid()) -> Watcher :: pid().
watch_nodedown(Peer) ->
    run(Peer, fun() ->
        Owner = self(),
        Pid = spawn(fun() ->
                            ok = net_kernel:monitor_nodes(true, [nodedown_reason]),
                            Owner ! {self(), watching},
                            receive
                                {nodedown, Node, Info} -> keep_nodedown({Node, proplists:get_value(nodedown_reason, Info),
                                                                         erlang:system_time(millisecond)})
                            end
                    end),
        receive {Pid, watching} -> Pid end
    end).

keep_nodedown(Down) ->
    receive {give, From} -> From ! {nodedown, Down} end.

%% @doc Returns the reason why that node went down, and the system time in milliseconds at which it did.
-spec nodedown(pid(), Watcher :: pid(), node(), TimeoutMs :: pos_integer()) -> {Reason :: term(), AtMs :: integer()}.
nodedown(Peer, Watcher, Node, TimeoutMs) ->
    run(Peer, fun() ->
        Watcher ! {give, self()},
        receive {nodedown, {Node, Reason, At}} -> {Reason, At} after TimeoutMs -> error({no_nodedown, Node}) end
    end).

%% @doc Starts a process on the node that collects the numbers of messages `{Number, Data}' until `Node' is down, for {@link given/2}. The fun
%% checks whether the data matches the number. `{have, Count, From}' is answered with `{Collector, Count}' once this many have arrived.
-spec collector(pid(), node(), fun((integer(), binary()) -> boolean())) -> Collector :: pid().
collector(Peer, Node, IsRight) ->
    run(Peer, fun() ->
        Pid = spawn(?MODULE, collect, [self(), Node, IsRight]),
        receive {Pid, ready} -> Pid end
    end).

%% @private
-spec collect(pid(), node(), fun((integer(), binary()) -> boolean())) -> no_return().
collect(Owner, Node, IsRight) ->
    true = monitor_node(Node, true),
    Owner ! {self(), ready},
    collected(Node, IsRight, []).

collected(Node, IsRight, Numbers) ->
    receive
        {nodedown, Node} -> give(lists:reverse(Numbers));
        {have, Count, From} when Count =:= length(Numbers) -> From ! {self(), Count}, collected(Node, IsRight, Numbers);
        {Number, Data} when is_integer(Number) -> true = IsRight(Number, Data), collected(Node, IsRight, [Number | Numbers])
    end.

%% @doc Answers every caller of {@link given/2}, even those that called too early and no longer wait. Called on the node.
-spec give(term()) -> no_return().
give(Answer) ->
    receive {give, From} -> From ! {given, Answer}, give(Answer) end.

%% @doc Returns the answer of a process on the node, or `false' if it does not have one yet.
-spec given(pid(), pid()) -> term().
given(Peer, Giver) ->
    run(Peer, fun() ->
        Giver ! {give, self()},
        receive {given, Answer} -> Answer after ?GIVEN_MS -> false end
    end).

%% @doc Returns the node's process ID. The ID is read from the runner's own port, so this works even if the node is stopped.
-spec os_pid(pid()) -> pos_integer().
os_pid(Peer) ->
    {links, Links} = process_info(Peer, links),
    [OsPid] = [P || Port <- Links, is_port(Port), {os_pid, P} <- [erlang:port_info(Port, os_pid)]],
    OsPid.

%% @doc Kills a node with SIGKILL, and waits until the process is gone. The node may already be exiting on its own.
-spec kill9(pid()) -> ok.
kill9(Peer) ->
    ended_by(fun(OsPid) -> os:cmd("kill -KILL " ++ integer_to_list(OsPid)) end, Peer, 10000).

%% @doc Suspends a node with SIGSTOP. It neither runs nor exits until {@link sigcont/1} is called.
-spec sigstop(pid()) -> ok.
sigstop(Peer) ->
    OsPid = os_pid(Peer),
    signal(OsPid, "STOP"),
    _ = wait_until(fun() -> all_threads_stopped(OsPid) end, 5000),
    ok.

%% @doc Lets a suspended node continue.
-spec sigcont(pid()) -> ok.
sigcont(Peer) ->
    signal(os_pid(Peer), "CONT").

%% @doc Slows a node down, so that it runs for only 10 ms out of every 50 until {@link full_speed/1} is called.
-spec slow_down(pid()) -> Brake :: {pid(), reference()}.
slow_down(Peer) -> spawn_monitor(fun() -> brake(Peer) end).

brake(Peer) ->
    ok = sigstop(Peer),
    Ends = receive stop -> true after 40 -> false end,
    ok = sigcont(Peer),
    Ends orelse receive stop -> true after 10 -> brake(Peer) end.

%% @doc Lets the node run at full speed again.
-spec full_speed(Brake :: {pid(), reference()}) -> ok.
full_speed({Brake, Monitor}) ->
    Brake ! stop,
    receive {'DOWN', Monitor, process, Brake, normal} -> ok end.

signal(OsPid, Name) ->
    [] = os:cmd("kill -" ++ Name ++ " " ++ integer_to_list(OsPid)),
    ok.

%% The threads stop one after another, and a test may continue only when none of them is running.
all_threads_stopped(OsPid) ->
    Stats = filelib:wildcard(proc(OsPid, "task/*/stat")),
    lists:all(fun(Stat) -> thread_state(Stat) =:= $T end, Stats).

thread_state(StatFile) ->
    case file:read_file(StatFile) of
        {ok, Stat} ->
            %% The name, in brackets, may contain spaces and brackets, so the search starts at its end.
            [_, <<" ", State, _/binary>>] = string:split(Stat, ")", trailing),
            State;
        {error, _} ->
            $T
    end.

%% @doc Returns whether an operating system process is running. (A zombie is not.)
-spec is_running(pos_integer()) -> boolean().
is_running(OsPid) ->
    case file:read_file(proc(OsPid, "stat")) of
        {ok, Stat} -> string:find(Stat, ") Z ") =:= nomatch;
        {error, _} -> false
    end.

%% @doc Returns the open descriptors of a process, each with its number and what it refers to.
-spec fds(pos_integer()) -> [{non_neg_integer(), string()}].
fds(OsPid) ->
    {ok, Names} = file:list_dir(proc(OsPid, "fd")),
    lists:sort([{list_to_integer(Name), Target}
                || Name <- Names,
                   {ok, Target} <- [file:read_link_all(proc(OsPid, "fd/" ++ Name))]]).

%% @doc Returns the physical memory of a process, including its rings.
-spec resident_bytes(pos_integer()) -> pos_integer().
resident_bytes(OsPid) ->
    {ok, Status} = read_proc_file(proc(OsPid, "status")),
    {match, [KiB]} = re:run(Status, "VmRSS:\\s*([0-9]+) kB", [{capture, all_but_first, binary}]),
    binary_to_integer(KiB) * 1024.

%% @doc Returns the mappings of a process that are Beamway rings, as lines of `maps'.
-spec maps(pos_integer()) -> [string()].
maps(OsPid) ->
    {ok, Maps} = read_proc_file(proc(OsPid, "maps")),
    [unicode:characters_to_list(Line)
     || Line <- binary:split(Maps, <<"\n">>, [global]),
        binary:match(Line, <<"memfd:beamway">>) =/= nomatch].

%% @doc Returns how many descriptors, ring mappings and Erlang ports a node has. Sockets are included, because each connection holds one, but their
%% descriptor numbers do not matter.
-spec resources(pid()) -> {Fds :: pos_integer(), Maps :: non_neg_integer(), Ports :: pos_integer()}.
resources(Peer) ->
    OsPid = os_pid(Peer),
    {length(fds(OsPid)), length(maps(OsPid)), length(call(Peer, erlang, ports, []))}.

%% @doc Returns whether a node has at most as many of each of these as before. It may have fewer, because the first count may include a socket that
%% was just being closed.
-spec no_more(Now :: tuple(), Before :: tuple()) -> boolean().
no_more({Fds, Maps, Ports}, {FdsBefore, MapsBefore, PortsBefore}) ->
    Fds =< FdsBefore andalso Maps =< MapsBefore andalso Ports =< PortsBefore.

%% Files in /proc report size 0, so file:read_file/1 would read large ones correctly only by luck.
read_proc_file(File) ->
    {ok, Io} = file:open(File, [read, raw, binary]),
    try {ok, iolist_to_binary(read_rest(Io))} after ok = file:close(Io) end.

read_rest(Io) ->
    case file:read(Io, 65536) of
        {ok, Data} -> [Data | read_rest(Io)];
        eof -> []
    end.

proc(OsPid, Entry) ->
    filename:join(["/proc", integer_to_list(OsPid), Entry]).

%% @doc Returns what a node has written to its log file so far.
-spec log_text(file:name_all()) -> string().
log_text(File) ->
    case file:read_file(File) of
        {ok, Text} -> unicode:characters_to_list(Text);
        {error, enoent} -> ""
    end.

%% @doc Runs in a process that answers each message `{From, Message}' with `{echo, Message}', and exits when it receives `{stop, Reason}'.
-spec echo() -> no_return().
echo() ->
    receive
        {stop, Reason} -> exit(Reason);
        {From, Message} -> From ! {echo, Message}, echo()
    end.

%% @doc Fails unless the node reports this text for its only link.
-spec assert_reason(pid(), string()) -> ok.
assert_reason(Peer, Words) ->
    [#{node := Node}] = call(Peer, beamway, links, []),
    assert_reason(Peer, Node, Words).

%% @doc Fails unless the node reports this text for its link to `Node'.
-spec assert_reason(pid(), node(), string()) -> ok.
assert_reason(Peer, Node, Words) ->
    [Reason] = [Reason || #{node := Name, reason := Reason} <- call(Peer, beamway, links, []), Name =:= Node],
    case string:find(Reason, Words) of
        nomatch -> error({reason, Reason, expected, Words});
        _ -> ok
    end.

%% @doc Polls until the fun returns something other than `false', and returns that, or fails at the deadline. The deadline is at least 15 s, and
%% later if everything runs slower ({@link beamway_runner:slowness/0}).
-spec wait_until(fun(() -> false | Result), non_neg_integer()) -> Result.
wait_until(Fun, DeadlineMs) ->
    Ms = max(DeadlineMs, ?LEAST_WAIT_MS) * beamway_runner:slowness(),
    wait_until_time(Fun, erlang:monotonic_time(millisecond) + Ms, Ms).

wait_until_time(Fun, EndMs, DeadlineMs) ->
    case Fun() of
        false ->
            case erlang:monotonic_time(millisecond) > EndMs of
                true ->
                    error({not_within_ms, DeadlineMs, Fun});
                false ->
                    receive after 5 -> ok end,
                    wait_until_time(Fun, EndMs, DeadlineMs)
            end;
        Result ->
            Result
    end.

%% @doc Waits until the node has no connection to `Node'.
-spec wait_disconnected(pid(), node()) -> ok.
wait_disconnected(Peer, Node) ->
    _ = wait_until(fun() -> not lists:member(Node, call(Peer, erlang, nodes, [connected])) end, 10000),
    ok.

%% The result is passed as the exit reason.
-dialyzer({nowarn_function, async/1}).
%% @doc Runs a fun in a separate process. {@link await/1} returns its result.
-spec async(fun(() -> term())) -> {pid(), reference()}.
async(Fun) ->
    spawn_monitor(fun() -> exit({result, Fun()}) end).

%% @doc Waits two minutes for the result of {@link async/1}. Fails if the fun failed.
-spec await({pid(), reference()}) -> term().
await(Call) ->
    await(Call, 120000).

%% @doc Like {@link await/1}, but with a timeout in milliseconds.
-spec await({pid(), reference()}, pos_integer()) -> term().
await({Pid, Monitor}, TimeoutMs) ->
    receive
        {'DOWN', Monitor, process, Pid, {result, Result}} -> Result;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    after TimeoutMs ->
            error({no_answer_within_ms, TimeoutMs})
    end.

%% @doc Returns a node name that no other run on the same machine is using.
-spec unique_name(string()) -> string().
unique_name(Prefix) ->
    lists:concat([Prefix, "-", os:getpid(), "-", erlang:unique_integer([positive])]).

%% @doc Returns a new directory with a name that is short enough for sockets. The caller deletes it. Process IDs are reused in other namespaces and
%% runs, so they do not make a file name unique.
-spec new_folder(string()) -> file:filename().
new_folder(Prefix) ->
    "/tmp/" ++ _ = string:trim(os:cmd("mktemp -d /tmp/" ++ Prefix ++ "-XXXXXX")).

%% @doc Returns the directory of the built carrier: on the runner's code path, or next to this application.
-spec ebin() -> file:filename().
ebin() ->
    case code:which(beamway_dist) of
        File when is_list(File) -> filename:dirname(File);
        _ -> filename:join([filename:dirname(filename:absname(code:which(?MODULE))),
                            "..", "..", "beamway", "ebin"])
    end.

%% @doc Returns the flags that select the carrier.
-spec flags(carrier()) -> [string()].
flags(inet_tcp) -> ["-proto_dist", "inet_tcp"];
flags(inet_tls) -> tls_flags("inet_tls");
flags(beamway_tls) -> tls_flags("beamway_tls");
flags(beamway_ssl) -> tls_flags("beamway_tls");
flags(beamway_tls_shm) -> tls_flags("beamway_tls");
flags(_Beamway) -> ["-proto_dist", "beamway"].

tls_flags(Carrier) -> ["-proto_dist", Carrier, "-ssl_dist_optfile", beamway_certificates:good()].

%% @doc Returns the environment that selects the carrier, without any options from the runner's environment.
-spec environment(carrier()) -> [{string(), string() | false}].
environment(Carrier) ->
    Options = ["BEAMWAY_" ++ string:uppercase(atom_to_list(element(1, Option))) || Option <- beamway_config:table()],
    Unset = maps:from_list([{Name, false} || Name <- ["ERL_FLAGS", "ERL_AFLAGS", "ERL_ZFLAGS" | Options]]),
    maps:to_list(maps:merge(Unset, carrier_environment(Carrier))).

carrier_environment(Carrier) when Carrier =:= beamway_tcp; Carrier =:= beamway_tls -> #{"BEAMWAY_LINKS" => "tcp"};
carrier_environment(Carrier) when Carrier =:= beamway_inet; Carrier =:= beamway_ssl -> #{"BEAMWAY_LINKS" => "inet"};
carrier_environment(beamway_encrypted) -> #{"BEAMWAY_LINKS" => "tcp", "BEAMWAY_ENCRYPT" => "true"};
carrier_environment(beamway_encrypted_shm) -> #{"BEAMWAY_ENCRYPT" => "true"};
carrier_environment(beamway_small) -> #{"BEAMWAY_RING_BYTES" => "65536"};
carrier_environment(beamway_rdma) -> #{"BEAMWAY_LINKS" => "rdma,tcp"};
carrier_environment(_) -> #{}.

arguments(Carrier, Options) ->
    ["-setcookie", maps:get(cookie, Options, "beamway_test"), "+sbwt", "none"]
        ++ code_path(tests_of(Options), beamway_of(Options))
        ++ carrier_flags(Carrier, Options)
        ++ log_flags(Options)
        ++ maps:get(args, Options, [])
        ++ patience(beamway_runner:slowness()).

tests_of(#{otp := other}) -> beamway_other_otp:tests();
tests_of(_) -> [].

beamway_of(#{ebin := Ebin}) -> Ebin;
beamway_of(#{otp := other}) -> beamway_other_otp:ebin();
beamway_of(_) -> ebin().

carrier_flags(_Carrier, #{flags := Flags}) -> Flags;
carrier_flags(Carrier, _Options) -> flags(Carrier).

%% OTP gives two nodes 7 s to connect. If a parameter is given twice, the first value takes effect, which is the test case's.
patience(1) -> [];
patience(Slowness) -> ["-kernel", "net_setuptime", integer_to_list(min(60, 7 * Slowness))].

%% If the node runs a different beamway from the runner's, that must be the only one on its path, because `-pa' puts its last directory first.
code_path([_ | _] = Tests, Ebin) -> ["-pa" | Tests ++ [Ebin]];
code_path([], Ebin) ->
    Root = code:root_dir(),
    Tests = filename:dirname(filename:absname(code:which(?MODULE))),
    Own = [Dir || Path <- code:get_path(), Path =/= ".", not lists:prefix(Root, Path),
                  Dir <- [filename:absname(Path)], Dir =/= Tests,
                  not filelib:is_file(filename:join(Dir, "beamway_dist.beam"))],
    ["-pa" | Own ++ [Tests, Ebin]].

log_flags(#{log := File}) ->
    %% Without delayed_write, a line is in the file even if the node is killed right after it.
    Handler = [{handler, default, logger_std_h,
                #{config => #{file => File, modes => [append, raw]},
                  formatter => {logger_formatter, #{single_line => true}}}}],
    ["-kernel", "logger", lists:flatten(io_lib:format("~p", [Handler]))];
log_flags(_) ->
    [].

%% `exec' keeps the process ID, so signals reach the node itself.
executable(Options) ->
    Command = maps:get(wrapper, Options, []) ++ erl_of(Options),
    case Options of
        #{before_exec := Script} ->
            {"/bin/sh", ["-c", Script ++ " exec \"$@\"", "sh" | Command]};
        _ ->
            {hd(Command), tl(Command)}
    end.

%% @doc Returns the command that starts a node: OTP's `erl', preceded by the wrapper if there is one.
-spec erl() -> [string(), ...].
erl() ->
    wrapper() ++ [filename:join([code:root_dir(), "bin", "erl"])].

%% @doc For init_per_suite and init_per_testcase: skips cases that cannot run under a wrapper.
-spec unless_wrapped(Why :: string(), Config) -> Config | {skip, string()}.
unless_wrapped(Why, Config) ->
    case wrapper() of
        [] -> Config;
        [Program] -> {skip, "under " ++ Program ++ ": " ++ Why}
    end.

wrapper() ->
    case os:getenv("BEAMWAY_TEST_WRAPPER", "") of
        "" -> [];
        Program -> [Program]
    end.

erl_of(#{otp := other}) -> beamway_other_otp:erl();
erl_of(_) -> erl().
