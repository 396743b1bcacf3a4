%% SPDX-License-Identifier: Apache-2.0
%% @doc Provides what the two compatibility suites share: a private epmd, and nodes with any form of name.
%%
%% The suites test how nodes are named, found and started, so they need more freedom than {@link beamway_peer:start/2} gives: long names, IPv6, no
%% name at all, or a program other than `erl'. The private epmd keeps these nodes apart from other nodes on the machine, and the suites can rely on
%% nothing else being registered in it. They control the nodes over standard input and output.
%%
%% It is also the Common Test hook of both: for a suite that names it in `ct_hooks' it starts the private epmd,
%% puts the carrier of the group into the configuration, and stops all nodes after each case.
-module(beamway_compat_nodes).

-export([init/2, pre_init_per_suite/3, pre_init_per_group/4, post_end_per_testcase/5, terminate/1]).
-export([start/2, host/0]).
-export([exchange/3, connect/3, try_connect/2, disconnect/2, is_connected/2, flags/2, dist_port/1]).
-export([start_program/3, stop_program/1, expect_line/2]).

-export_type([options/0, member/0]).

-type options() :: #{name => string() | none,       %% none: not distributed; unique by default
                     host => string(),              %% if given, the name is a long one
                     family => inet | inet6,
                     protocols => [string()],       %% instead of that of the carrier and family
                     args => [string()],
                     env => [{string(), string() | false}],
                     exec => file:name_all()}.
%% The control process and the name of a node under test.
-type member() :: {Peer :: pid(), node()}.

-define(COOKIE, "beamway_compat").
-define(BOOT_MS, 30000).
-define(LINE_MS, 30000).

%%% Hook

%% @private
-spec init(term(), term()) -> {ok, no_epmd}.
init(_Id, _Options) ->
    {ok, no_epmd}.

%% @private
-spec pre_init_per_suite(module(), Config, no_epmd) -> {Config, OsPid :: pos_integer()}.
pre_init_per_suite(_Suite, Config, no_epmd) ->
    {Config, start_epmd()}.

%% @private
-spec pre_init_per_group(module(), beamway_peer:carrier(), Config, State) -> {Config, State}.
pre_init_per_group(_Suite, Carrier, Config, State) ->
    {beamway_carrier:init_group(Carrier, Config), State}.

%% @private
-spec post_end_per_testcase(module(), atom(), term(), Return, State) -> {Return, State}.
post_end_per_testcase(_Suite, _Case, _Config, Return, State) ->
    ok = beamway_peer:stop_started(),
    {Return, State}.

%% @private Called after the suite, even if its init_per_suite failed.
-spec terminate(no_epmd | pos_integer()) -> ok.
terminate(no_epmd) -> ok;
terminate(OsPid) -> stop_epmd(OsPid).

%% Starts an epmd on a free port and makes everything that this VM starts use it. The program's port
%% closes with the hook's process, but the program itself keeps running.
start_epmd() ->
    {ok, Socket} = gen_tcp:listen(0, []),
    {ok, PortNumber} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Text = integer_to_list(PortNumber),
    true = os:putenv("ERL_EPMD_PORT", Text),
    Program = start_program(os:find_executable("epmd"), ["-port", Text], []),
    {os_pid, OsPid} = erlang:port_info(Program, os_pid),
    _ = beamway_peer:wait_until(fun() -> answers(PortNumber) end, 5000),
    OsPid.

answers(PortNumber) ->
    case gen_tcp:connect({127, 0, 0, 1}, PortNumber, []) of
        {ok, Socket} -> gen_tcp:close(Socket) =:= ok;
        {error, _} -> false
    end.

stop_epmd(OsPid) ->
    true = os:unsetenv("ERL_EPMD_PORT"),
    kill(OsPid).

kill(OsPid) ->
    _ = os:cmd("kill -9 " ++ integer_to_list(OsPid)),
    _ = beamway_peer:wait_until(fun() -> not beamway_peer:is_running(OsPid) end, 5000),
    ok.

%%% Nodes

%% @doc Starts a node with the carrier.
-spec start(beamway_peer:carrier(), options()) -> member().
start(Carrier, Options) ->
    Base = #{connection => standard_io,
             wait_boot => ?BOOT_MS,
             exec => maps:get(exec, Options, {hd(beamway_peer:erl()), tl(beamway_peer:erl())}),
             env => beamway_peer:environment(Carrier) ++ maps:get(env, Options, []),
             args => ["-setcookie", ?COOKIE] ++ flags(Carrier, Options)
                 ++ maps:get(args, Options, [])},
    {ok, Peer, Node} = peer:start(maps:merge(Base, name_options(Options))),
    {Peer, Node}.

name_options(#{name := none}) ->
    #{};
name_options(Options) ->
    Name = maps:get(name, Options, beamway_peer:unique_name("compat")),
    case Options of
        #{host := Host} -> #{name => Name, host => Host, longnames => true};
        _ -> #{name => Name, longnames => false}
    end.

%% @doc Returns the flags that select the carrier and set the code paths of the carrier and the suites. They do not contain a cookie, because erl ignores a
%% cookie that is given twice.
-spec flags(beamway_peer:carrier(), options()) -> [string()].
flags(Carrier, Options) ->
    Tests = [filename:dirname(filename:absname(code:which(Module))) || Module <- [?MODULE, beamway_peer]],
    ["+sbwt", "none", "-pa" | Tests] ++ code_path(Carrier)
        ++ protocol(Carrier, Options).

%% The stock node must not even be able to find Beamway.
code_path(inet_tcp) -> [];
code_path(_Beamway) -> ["-pa", filename:absname(beamway_peer:ebin())].

protocol(_Carrier, #{protocols := Protocols}) -> ["-proto_dist" | Protocols];
protocol(inet_tcp, #{family := inet6}) -> ["-proto_dist", "inet6_tcp"];
protocol(_Beamway, #{family := inet6}) -> ["-proto_dist", "beamway6"];
protocol(Carrier, _Options) -> beamway_peer:flags(Carrier).

%% @doc Returns the host part of short names.
-spec host() -> string().
host() ->
    {ok, Host} = inet:gethostname(),
    Host.

%% @doc Checks two connections, one set up by the first node and one by the second.
-spec exchange(stock | tcp | shm, member(), member()) -> ok.
exchange(Link, MemberA, MemberB) ->
    ok = connect(Link, MemberA, MemberB),
    ok = call_both_ways(MemberA, MemberB),
    ok = disconnect(MemberA, MemberB),
    ok = connect(Link, MemberB, MemberA),
    ok = call_both_ways(MemberA, MemberB),
    disconnect(MemberA, MemberB).

%% @doc Makes the first node connect to the second, and checks the link at both ends.
-spec connect(stock | tcp | shm, member(), member()) -> ok.
connect(Link, {PeerA, NodeA} = MemberA, {PeerB, NodeB}) ->
    true = try_connect(MemberA, NodeB),
    ok = beamway_peer:assert_link(PeerA, NodeB, side_of(Link, PeerA)),
    ok = beamway_peer:assert_link(PeerB, NodeA, side_of(Link, PeerB)).

%% In a mixed pair, one node does not have Beamway and cannot be queried.
side_of(Link, Peer) ->
    case peer:call(Peer, init, get_argument, [proto_dist]) of
        {ok, [["beamway" ++ _ | _]]} -> Link;
        {ok, [["inet" ++ _ | _]]} -> stock
    end.

%% @doc Makes the node connect to a node of this name.
-spec try_connect(member(), node()) -> boolean() | ignored.
try_connect({Peer, _}, OtherNode) ->
    peer:call(Peer, net_kernel, connect_node, [OtherNode], 20000).

%% Sends payloads below and above the size at which messages are split into fragments.
call_both_ways({PeerA, NodeA}, {PeerB, NodeB}) ->
    lists:foreach(
      fun(Bytes) ->
              Payload = payload(Bytes),
              Payload = peer:call(PeerA, erpc, call, [NodeB, lists, last, [[Payload]], 10000]),
              Payload = peer:call(PeerB, erpc, call, [NodeA, lists, last, [[Payload]], 10000])
      end,
      [0, 100, 200000]).

payload(Bytes) ->
    << <<(I * 7 + I div 251)>> || I <- lists:seq(1, Bytes) >>.

%% @doc Closes the connection and waits until both nodes have noticed. If one of them still had a message for the other (kernel's `global' sends
%% some when nodes have just met), it may reconnect them, even over stock TCP, so the connection is then closed again.
-spec disconnect(member(), member()) -> ok.
disconnect({PeerA, NodeA}, {PeerB, NodeB}) ->
    _ = beamway_peer:wait_until(
          fun() ->
                  _ = peer:call(PeerA, net_kernel, disconnect, [NodeB]),
                  not is_connected(PeerA, NodeB) andalso not is_connected(PeerB, NodeA)
          end, 10000),
    ok.

%% @doc Returns whether the node is connected to a node of this name, visible or hidden.
-spec is_connected(pid(), node()) -> boolean().
is_connected(Peer, Node) ->
    lists:member(Node, peer:call(Peer, erlang, nodes, [connected])).

%% @doc Returns the port that epmd reports for a node.
-spec dist_port(member()) -> inet:port_number().
dist_port({Peer, Node}) ->
    [Name, Host] = string:split(atom_to_list(Node), "@"),
    {port, PortNumber, _} = peer:call(Peer, erl_epmd, port_please, [Name, Host, 5000]),
    PortNumber.

%% @doc Starts a program that is not an Erlang node; its lines of output arrive as messages.
-spec start_program(string(), [string()], [{string(), string() | false}]) -> port().
start_program(Executable, Args, Env) ->
    open_port({spawn_executable, Executable},
              [{args, Args}, {env, Env}, {line, 4096}, exit_status, stderr_to_stdout, use_stdio]).

%% @doc Stops the program unless it has already exited, and waits until it has.
-spec stop_program(port()) -> ok.
stop_program(Program) ->
    case erlang:port_info(Program, os_pid) of
        {os_pid, OsPid} -> kill(OsPid);
        undefined -> ok
    end.

%% @doc Waits until the program has printed the line; if it never does, the failure shows the other lines.
-spec expect_line(port(), string()) -> ok.
expect_line(Program, Line) ->
    [] = test_support:until_line(Program, ["^\\Q", Line, "\\E$"], ?LINE_MS),
    ok.
