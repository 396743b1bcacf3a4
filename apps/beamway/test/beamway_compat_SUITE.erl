%% SPDX-License-Identifier: Apache-2.0
%% @doc Names, epmd modules, kernel's options and net_kernel's functions work over each carrier.
%%
%% The same cases run over stock distribution, to show that the cases themselves are right, over Beamway on TCP, and over Beamway with its defaults.
%% beamway_foreign_SUITE tests against nodes that are not Erlang nodes of this OTP release. Where it makes a difference which side connects, each
%% side does so once.
-module(beamway_compat_SUITE).

-export([all/0, groups/0, suite/0]).
-export([short_names/1, long_names/1, ipv6/1, hidden_nodes/1, mixed_cluster/1, old_name_message/1,
         epmd_module/1, epmd_module_without_addresses/1, fixed_ports_without_epmd/1, one_port_without_epmd/1,
         dynamic_start/1, dynamic_start_ipv6/1, dynamic_node_names/1, dist_listen_false/1, two_families/1, check_ip/1,
         listen_port_range/1, use_interface/1, listen_options/1, connect_options/1,
         options_beat_defaults/1, options_of_both_carriers/1, little_in_the_kernel/1, setopts/1, setopts_for_new_connections/1,
         setuptime_connecting/1, setuptime_accepting/1,
         auto_connect_never/1, auto_connect_once/1, allow/1]).
%% Called on the nodes.
-export([listening_sockets/0]).

-import(beamway_compat_nodes, [start/2, exchange/3, connect/3, try_connect/2, disconnect/2,
                               is_connected/2, dist_port/1]).
-import(beamway_carrier, [carrier/1]).

suite() -> [{timetrap, {seconds, 60}}, {ct_hooks, [beamway_compat_nodes]}].

all() -> beamway_carrier:all().

groups() ->
    beamway_carrier:groups(
      [short_names, long_names, ipv6, hidden_nodes, mixed_cluster, old_name_message,
       epmd_module, epmd_module_without_addresses, fixed_ports_without_epmd, one_port_without_epmd,
       dynamic_start, dynamic_start_ipv6, dynamic_node_names, dist_listen_false, two_families, check_ip,
       listen_port_range, use_interface, listen_options, connect_options,
       options_beat_defaults, options_of_both_carriers, little_in_the_kernel, setopts, setopts_for_new_connections,
       setuptime_connecting, setuptime_accepting,
       auto_connect_never, auto_connect_once, allow]).

kind(Config) -> beamway_peer:link_kind(carrier(Config)).

start(Config, Args, Env) when is_list(Config) ->
    start(carrier(Config), #{args => Args, env => Env}).

%%% Names

short_names(Config) ->
    {PeerA, NodeA} = A = start(Config, [], []),
    B = start(Config, [], []),
    exchange(kind(Config), A, B),
    [NameA, _] = string:split(atom_to_list(NodeA), "@"),
    {ok, Names} = peer:call(PeerA, erl_epmd, names, []),
    {_, _} = lists:keyfind(NameA, 1, Names).

long_names(Config) ->
    A = start(carrier(Config), #{host => "127.0.0.1"}),
    B = start(carrier(Config), #{host => "127.0.0.1"}),
    exchange(kind(Config), A, B).

ipv6(Config) ->
    with_ipv6(
      fun() ->
              {PeerA, NodeA} = A = start(carrier(Config), #{host => "::1", family => inet6}),
              {PeerB, _} = B = start(carrier(Config), #{host => "::1", family => inet6}),
              exchange(kind(Config), A, B),
              %% The connection's own address, as net_kernel knows it, is an IPv6 one.
              connect(kind(Config), A, B),
              {net_address, {{_, _, _, _, _, _, _, _}, _}, _, tcp, inet6} = proplists:get_value(address, beamway_peer:node_info(PeerB, NodeA)),
              [{{_, _, _, _, _, _, _, _}, _}] = peer:call(PeerA, ?MODULE, listening_sockets, [])
      end).

with_ipv6(Test) ->
    case gen_tcp:listen(0, [inet6, {ip, {0, 0, 0, 0, 0, 0, 0, 1}}]) of
        {ok, Socket} ->
            ok = gen_tcp:close(Socket),
            Test();
        {error, Reason} ->
            {skip, io_lib:format("this host has no ::1 (~p)", [Reason])}
    end.

hidden_nodes(Config) ->
    {HiddenPeer, HiddenNode} = Hidden = start(Config, ["-hidden"], []),
    {PlainPeer, PlainNode} = Plain = start(Config, [], []),
    connect(kind(Config), Hidden, Plain),
    {[], [PlainNode]} = visible_and_hidden(HiddenPeer),
    {[], [HiddenNode]} = visible_and_hidden(PlainPeer),
    exchange(kind(Config), Hidden, Plain),
    connect(kind(Config), Plain, Hidden),
    {[], [PlainNode]} = visible_and_hidden(HiddenPeer),
    {[], [HiddenNode]} = visible_and_hidden(PlainPeer).

visible_and_hidden(Peer) ->
    {peer:call(Peer, erlang, nodes, [visible]), peer:call(Peer, erlang, nodes, [hidden])}.

%% One node is a stock node without Beamway's code; in the stock group both are.
mixed_cluster(Config) ->
    Ours = start(Config, [], []),
    Stock = start(inet_tcp, #{}),
    Link = case carrier(Config) of inet_tcp -> stock; _ -> tcp end,
    exchange(Link, Ours, Stock),
    exchange(Link, Stock, Ours).

%% A node of OTP 23 or 24 connects without having queried epmd. OTP releases differ in whether they accept such a connection; our node does if stock
%% distribution does.
old_name_message(Config) ->
    [Stock, Ours] = [authenticates_by_old_name(start(Carrier, #{})) || Carrier <- [inet_tcp, carrier(Config)]],
    ct:log("authenticated: ~w", [Stock]),
    Stock = Ours.

authenticates_by_old_name({_, Node}) ->
    try beamway_raw_peer:call(Node, authenticated, #{old_name => true, cookie => "beamway_compat"}) of
        Socket -> gen_tcp:close(Socket) =:= ok
    catch
        error:{badmatch, {error, closed}} -> false
    end.

%%% Without epmd

%% epmd cannot help, because nothing listens on the port given in the variable.
-define(NO_EPMD, [{"ERL_EPMD_PORT", "1"}]).

epmd_module(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), carrier(Config)),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    Args = ["-start_epmd", "false", "-epmd_module", "beamway_compat_epmd",
            "-compat_epmd", "directory", Folder],
    Options = #{host => "no-such-host.invalid", args => Args, env => ?NO_EPMD},
    {_, NodeA} = A = start(carrier(Config), Options),
    B = start(carrier(Config), Options),
    exchange(kind(Config), A, B),
    %% epmd modules only know OTP's own carriers. Releases differ in what they pass to these modules for those carriers.
    {_, NodeC} = start(inet_tcp, Options),
    Told = family_told(Folder, NodeC),
    Told = family_told(Folder, NodeA),
    ok.

family_told(Folder, Node) ->
    [Name, _] = string:split(atom_to_list(Node), "@"),
    {ok, Text} = file:read_file(filename:join(Folder, Name)),
    [_, <<"inet", _/binary>> = Family] = binary:split(Text, <<" ">>),
    Family.

%% An epmd module need not supply the addresses of hosts. If it does not, they are looked up as they are without the module.
epmd_module_without_addresses(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), lists:concat([carrier(Config), "_old"])),
    ok = filelib:ensure_dir(filename:join(Folder, "x")),
    Options = #{host => "127.0.0.1", env => ?NO_EPMD,
                args => ["-start_epmd", "false", "-epmd_module", "beamway_compat_epmd_old",
                         "-compat_epmd", "directory", Folder]},
    exchange(kind(Config), start(carrier(Config), Options), start(carrier(Config), Options)).

fixed_ports_without_epmd(Config) ->
    Args = ["-start_epmd", "false", "-epmd_module", "beamway_compat_epmd", "-compat_epmd", "ports"],
    [{A, PortA}, {B, PortB}] = [start_at_port(Config, Args, Port) || Port <- free_ports(2)],
    PortA = listening_port(A),
    PortB = listening_port(B),
    exchange(kind(Config), A, B).

start_at_port(Config, Args, Port) ->
    Name = lists:concat([beamway_peer:unique_name("fixed"), "_", Port]),
    {start(carrier(Config), #{name => Name, args => Args, env => ?NO_EPMD}), Port}.

%% Kernel itself can work without epmd: all nodes on a system listen on one agreed port.
one_port_without_epmd(Config) ->
    [Port] = free_ports(1),
    Args = ["-start_epmd", "false", "-erl_epmd_port", integer_to_list(Port)],
    {_, NodeA} = A = start(Config, Args, ?NO_EPMD),
    B = start(Config, ["-dist_listen", "false" | Args], ?NO_EPMD),
    Port = listening_port(A),
    connect(kind(Config), B, A),
    disconnect(B, A),
    true = try_connect(B, NodeA).

%%% Starting and stopping the distribution

dynamic_start(Config) ->
    {Peer, nonode@nohost} = start(carrier(Config), #{name => none}),
    {OtherPeer, OtherNode} = Other = start(Config, [], []),
    lists:foreach(
      fun(Round) ->
              Name = list_to_atom(beamway_peer:unique_name("dynamic")),
              {ok, _} = peer:call(Peer, net_kernel, start, net_kernel_start(Round, Name)),
              Node = peer:call(Peer, erlang, node, []),
              true = peer:call(Peer, erlang, set_cookie, [beamway_compat]),
              Port = dist_port({Peer, Node}),
              exchange(kind(Config), {Peer, Node}, Other),
              connect(kind(Config), Other, {Peer, Node}),
              ok = peer:call(Peer, net_kernel, stop, []),
              _ = beamway_peer:wait_until(fun() -> peer:call(Peer, erlang, node, []) =:= nonode@nohost end, 5000),
              _ = beamway_peer:wait_until(fun() -> not is_connected(OtherPeer, Node) end, 5000),
              _ = beamway_peer:wait_until(fun() -> is_refused(Port) end, 5000),
              false = try_connect(Other, Node)
      end,
      [1, 2, 3]),
    %% The rounds have not left anything behind that would affect another node.
    exchange(kind(Config), Other, start(Config, [], [])),
    true = is_atom(OtherNode).

dynamic_start_ipv6(Config) ->
    with_ipv6(
      fun() ->
              {Peer, nonode@nohost} = start(carrier(Config), #{name => none, family => inet6}),
              Other = start(carrier(Config), #{host => "::1", family => inet6}),
              Node = list_to_atom(beamway_peer:unique_name("dynamic") ++ "@::1"),
              {ok, _} = peer:call(Peer, net_kernel, start, [Node, #{name_domain => longnames}]),
              true = peer:call(Peer, erlang, set_cookie, [beamway_compat]),
              %% The listening socket accepts these options as well.
              ok = peer:call(Peer, net_kernel, setopts, [new, [{priority, 3}]]),
              exchange(kind(Config), {Peer, Node}, Other),
              [_] = peer:call(Peer, ?MODULE, listening_sockets, []),
              ok = peer:call(Peer, net_kernel, stop, []),
              _ = beamway_peer:wait_until(fun() -> peer:call(Peer, ?MODULE, listening_sockets, []) =:= [] end, 5000),
              false = try_connect(Other, Node)
      end).

%% Tests both arities, and the options that have flags on the command line.
net_kernel_start(1, Name) ->
    [Name, #{name_domain => shortnames}];
net_kernel_start(2, Name) ->
    [[Name, shortnames, 15000]];
net_kernel_start(3, Name) ->
    [Name, #{name_domain => shortnames, net_ticktime => 8, hidden => true}].

is_refused(Port) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, [], 1000) of
        {ok, Socket} -> gen_tcp:close(Socket) =/= ok;
        {error, econnrefused} -> true
    end.

dynamic_node_names(Config) ->
    {PeerA, _} = start(carrier(Config), #{name => none, args => ["-sname", "undefined"]}),
    {_, NodeB} = B = start(Config, [], []),
    nonode@nohost = peer:call(PeerA, erlang, node, []),
    #{name := undefined, name_type := dynamic} = peer:call(PeerA, net_kernel, get_state, []),
    lists:foreach(
      fun(_Round) ->
              true = peer:call(PeerA, net_kernel, connect_node, [NodeB]),
              NodeA = peer:call(PeerA, erlang, node, []),
              true = NodeA =/= nonode@nohost,
              beamway_peer:assert_link(PeerA, NodeB, kind(Config)),
              {PeerB, _} = B,
              beamway_peer:assert_link(PeerB, NodeA, kind(Config)),
              [NodeA] = peer:call(PeerB, erlang, nodes, [hidden]),
              NodeA = peer:call(PeerB, erpc, call, [NodeA, erlang, node, []]),
              NodeB = peer:call(PeerA, erpc, call, [NodeB, erlang, node, []]),
              disconnect({PeerA, NodeA}, B)
      end,
      [1, 2]).

dist_listen_false(Config) ->
    {PeerA, NodeA} = A = start(Config, ["-dist_listen", "false"], []),
    {PeerB, _} = B = start(Config, [], []),
    [] = peer:call(PeerA, ?MODULE, listening_sockets, []),
    connect(kind(Config), A, B),
    [NodeA] = peer:call(PeerB, erlang, nodes, [hidden]),
    NodeA = peer:call(PeerB, erpc, call, [NodeA, erlang, node, []]),
    disconnect(A, B),
    false = try_connect(B, NodeA),
    connect(kind(Config), A, B).

%% A node with both carriers reaches nodes of either family. (It cannot listen with both, because epmd accepts a name only once.)
two_families(Config) ->
    with_ipv6(
      fun() ->
              Other = case carrier(Config) of inet_tcp -> "inet6_tcp"; _ -> "beamway6" end,
              [_, First] = beamway_peer:flags(carrier(Config)),
              {Peer, nonode@nohost} = start(carrier(Config), #{name => none, protocols => [First, Other]}),
              Node = list_to_atom(beamway_peer:unique_name("both") ++ "@127.0.0.1"),
              {ok, _} = peer:call(Peer, net_kernel, start, [Node, #{name_domain => longnames, dist_listen => false}]),
              true = peer:call(Peer, erlang, set_cookie, [beamway_compat]),
              Four = start(carrier(Config), #{host => "127.0.0.1"}),
              Six = start(carrier(Config), #{host => "::1", family => inet6}),
              [begin
                   connect(kind(Config), {Peer, Node}, There),
                   Node = peer:call(TherePeer, erpc, call, [Node, erlang, node, []])
               end || {TherePeer, _} = There <- [Four, Six]],
              ok
      end).

%% Kernel's `check_ip' admits a peer from a network that this host is in. (beamway_hosts_SUITE tests a peer from a different network.)
check_ip(Config) ->
    Args = ["-kernel", "check_ip", "true"],
    exchange(kind(Config), start(Config, Args, []), start(Config, Args, [])).

%%% Kernel's inet_dist_* options

%% Another socket uses the first port of the range.
listen_port_range(Config) ->
    {Taken, First} = range_with_first_taken(20),
    Args = ["-kernel", "inet_dist_listen_min", integer_to_list(First),
            "inet_dist_listen_max", integer_to_list(First + 20)],
    A = start(Config, Args, []),
    B = start(Config, Args, []),
    PortA = listening_port(A),
    PortB = listening_port(B),
    true = PortA > First andalso PortA =< First + 20,
    true = PortB > PortA andalso PortB =< First + 20,
    exchange(kind(Config), A, B),
    ok = gen_tcp:close(Taken).

range_with_first_taken(Size) ->
    {ok, Socket} = gen_tcp:listen(0, []),
    case inet:port(Socket) of
        {ok, First} when First + Size < 65536 -> {Socket, First};
        {ok, _TooHigh} -> range_with_first_taken(Size)
    end.

use_interface(Config) ->
    {PeerA, _} = A = start(Config, ["-kernel", "inet_dist_use_interface", "{127,0,0,1}"], []),
    Port = dist_port(A),
    [{{127, 0, 0, 1}, Port}] = peer:call(PeerA, ?MODULE, listening_sockets, []),
    %% Only nodes with names that resolve to loopback can be reached on that interface.
    Options = #{host => "127.0.0.1", args => ["-kernel", "inet_dist_use_interface", "{127,0,0,1}"]},
    exchange(kind(Config), start(carrier(Config), Options), start(carrier(Config), Options)).

%% `linger' is not set by default, and the system reports the value that was set.
listen_options(Config) ->
    A = start(Config, ["-kernel", "inet_dist_listen_options", "[{linger,{true,7}}]"], []),
    B = start(Config, [], []),
    connect(kind(Config), B, A),
    {ok, [{linger, {true, 7}}]} = getopts(A, B, [linger]),
    {ok, [{linger, {false, 0}}]} = getopts(B, A, [linger]),
    disconnect(A, B),
    connect(kind(Config), A, B),
    {ok, [{linger, {false, 0}}]} = getopts(A, B, [linger]).

connect_options(Config) ->
    A = start(Config, ["-kernel", "inet_dist_connect_options", "[{linger,{true,9}}]"], []),
    B = start(Config, [], []),
    connect(kind(Config), A, B),
    {ok, [{linger, {true, 9}}]} = getopts(A, B, [linger]),
    {ok, [{linger, {false, 0}}]} = getopts(B, A, [linger]),
    disconnect(A, B),
    connect(kind(Config), B, A),
    {ok, [{linger, {false, 0}}]} = getopts(A, B, [linger]).

getopts({Peer, _}, {_, OtherNode}, Names) ->
    peer:call(Peer, net_kernel, getopts, [OtherNode, Names]).

%% Beamway tunes the socket of a TCP link, but the user's options win, whichever side connects.
options_beat_defaults(Config) ->
    Options = "[{delay_send,false},{buffer,20000}]",
    Args = ["-kernel", "inet_dist_connect_options", Options, "inet_dist_listen_options", Options,
            "dist_nodelay", "false"],
    A = start(Config, Args, []),
    B = start(Config, [], []),
    lists:foreach(
      fun({From, To}) ->
              connect(kind(Config), From, To),
              {ok, [{delay_send, false}, {buffer, 20000}, {nodelay, false}]} =
                  getopts(A, B, [delay_send, buffer, nodelay]),
              {ok, [{nodelay, true}]} = getopts(B, A, [nodelay]),
              disconnect(A, B)
      end,
      [{A, B}, {B, A}]).

%% The socket's options end up the same as with stock distribution, whether the driver or inet carries the data, and data is transferred.
options_of_both_carriers(Config) ->
    Options = "[{recbuf,200000},{sndbuf,190000},{keepalive,true},{tos,16},{priority,3},{high_watermark,50000},{low_watermark,20000},"
              "{delay_send,true},{send_timeout,5000},{send_timeout_close,true},{raw,6,18,<<7000:32/native>>},{raw,6,25,<<50000:32/native>>}]",
    Args = ["-kernel", "inet_dist_connect_options", Options, "inet_dist_listen_options", Options],
    [Stock, Ours] = [options_between(Carrier, Args) || Carrier <- [inet_tcp, carrier(Config)]],
    ct:log("~p", [Stock]),
    Stock = Ours.

options_between(Carrier, Args) ->
    {PeerA, _} = A = start(Carrier, #{args => Args}),
    {_, NodeB} = B = start(Carrier, #{args => Args}),
    connect(beamway_peer:link_kind(Carrier), A, B),
    [Size = byte_size(peer:call(PeerA, erpc, call, [NodeB, binary, copy, [<<1>>, Size]])) || Size <- [1, 100000]],
    Names = [recbuf, sndbuf, keepalive, tos, priority, high_watermark, low_watermark, delay_send, send_timeout, send_timeout_close,
             nodelay, {raw, 6, 18, 4}, {raw, 6, 25, 4}],
    [{ok, _} = getopts(From, To, Names) || {From, To} <- [{A, B}, {B, A}]].

%% Where the driver reads and writes the connection, the kernel buffers little: option 25 is TCP_NOTSENT_LOWAT, and option 72 is
%% SO_BUF_LOCK, whose value 2 means that the receive buffer does not grow. The same holds on a host with two addresses.
little_in_the_kernel(Config) ->
    A = start(carrier(Config), #{host => "127.0.0.1"}),
    [begin
         connect(kind(Config), A, B),
         [Bounds, Bounds] = [{Unsent, Lock band 2}
                             || {From, To} <- [{A, B}, {B, A}],
                                {ok, [{_, _, _, <<Unsent:32/native>>}, {_, _, _, <<Lock:32/native>>}]} <- [getopts(From, To, [{raw, 6, 25, 4}, {raw, 1, 72, 4}])]],
         Bounds = case kind(Config) of
                      tcp -> {262144, 2};
                      _ -> {0, 0}
                  end
     end || Host <- ["127.0.0.1", "127.0.0.2"], B <- [start(carrier(Config), #{host => Host})]],
    ok.

setopts(Config) ->
    {PeerA, _} = A = start(Config, [], []),
    {_, NodeB} = B = start(Config, [], []),
    connect(kind(Config), A, B),
    ok = peer:call(PeerA, net_kernel, setopts, [NodeB, [{linger, {true, 5}}]]),
    {ok, [{linger, {true, 5}}]} = getopts(A, B, [linger]),
    {ok, [{linger, {false, 0}}]} = getopts(B, A, [linger]),
    {error, _} = peer:call(PeerA, net_kernel, setopts, ['nobody@nowhere', [{linger, {true, 5}}]]),
    true = is_connected(PeerA, NodeB).

setopts_for_new_connections(Config) ->
    {PeerA, _} = A = start(Config, [], []),
    B = start(Config, [], []),
    ok = peer:call(PeerA, net_kernel, setopts, [new, [{linger, {true, 3}}]]),
    lists:foreach(
      fun({From, To}) ->
              connect(kind(Config), From, To),
              {ok, [{linger, {true, 3}}]} = getopts(A, B, [linger]),
              disconnect(A, B)
      end,
      [{A, B}, {B, A}]).

%%% Timers and permissions of net_kernel

%% The called port listens but never answers. With the default of seven seconds, the failure would come much later.
setuptime_connecting(Config) ->
    {ok, Silent} = gen_tcp:listen(0, []),
    {ok, Port} = inet:port(Silent),
    Args = ["-kernel", "net_setuptime", "1", "-start_epmd", "false", "-dist_listen", "false",
            "-erl_epmd_port", integer_to_list(Port)],
    {Peer, _} = A = start(Config, Args, []),
    Silenced = list_to_atom("silent@" ++ beamway_compat_nodes:host()),
    {Micros, false} = timer:tc(fun() -> try_connect(A, Silenced) end),
    true = Micros > 700000 andalso Micros < 5000000,
    false = is_connected(Peer, Silenced),
    ok = gen_tcp:close(Silent).

%% The caller connects and sends nothing.
setuptime_accepting(Config) ->
    A = start(Config, ["-kernel", "net_setuptime", "1"], []),
    B = start(Config, [], []),
    {ok, Socket} = gen_tcp:connect(beamway_compat_nodes:host(), dist_port(A), [{active, false}]),
    {Micros, {error, closed}} = timer:tc(fun() -> gen_tcp:recv(Socket, 0, 10000) end),
    true = Micros > 700000 andalso Micros < 5000000,
    connect(kind(Config), B, A).

auto_connect_never(Config) ->
    {PeerA, NodeA} = A = start(Config, ["-kernel", "dist_auto_connect", "never"], []),
    {PeerB, NodeB} = B = start(Config, [], []),
    noconnection = erpc_error(PeerA, NodeB),
    false = is_connected(PeerA, NodeB),
    connect(kind(Config), A, B),
    NodeB = peer:call(PeerA, erpc, call, [NodeB, erlang, node, []]),
    disconnect(A, B),
    NodeA = peer:call(PeerB, erpc, call, [NodeA, erlang, node, []]).

auto_connect_once(Config) ->
    {PeerA, _} = A = start(Config, ["-kernel", "dist_auto_connect", "once"], []),
    {_, NodeB} = B = start(Config, [], []),
    NodeB = peer:call(PeerA, erpc, call, [NodeB, erlang, node, []]),
    disconnect(B, A),
    noconnection = erpc_error(PeerA, NodeB),
    connect(kind(Config), A, B).

erpc_error(Peer, Node) ->
    try peer:call(Peer, erpc, call, [Node, erlang, node, []]) of
        Result -> {unexpected, Result}
    catch
        error:{erpc, Reason} -> Reason
    end.

allow(Config) ->
    {PeerA, NodeA} = A = start(Config, [], []),
    {_, NodeB} = B = start(Config, [], []),
    {_, NodeC} = C = start(Config, [], []),
    ok = peer:call(PeerA, net_kernel, allow, [[NodeB]]),
    {ok, [NodeB]} = peer:call(PeerA, net_kernel, allowed, []),
    false = try_connect(C, NodeA),
    false = try_connect(A, NodeC),
    exchange(kind(Config), A, B).

%%% Helpers

free_ports(Count) ->
    Sockets = [Socket || _ <- lists:seq(1, Count), {ok, Socket} <- [gen_tcp:listen(0, [])]],
    Ports = [Port || Socket <- Sockets, {ok, Port} <- [inet:port(Socket)]],
    [ok = gen_tcp:close(Socket) || Socket <- Sockets],
    Ports.

listening_port({Peer, _}) ->
    [{_, Port}] = peer:call(Peer, ?MODULE, listening_sockets, []),
    Port.

%% Returns the addresses on which this node listens. Sockets that have a peer are its connections to epmd and to other nodes.
listening_sockets() ->
    [Address || Port <- erlang:ports(),
                erlang:port_info(Port, name) =:= {name, "tcp_inet"},
                {error, enotconn} =:= inet:peername(Port),
                {ok, Address} <- [inet:sockname(Port)]].
