%% SPDX-License-Identifier: Apache-2.0
%% @doc Starts pairs of nodes with teleport, for its suites. There is a group for each kind of connection between them.
%%
%% `shm', `tcp' and `tls' are Beamway's links, and `stock' is OTP's own distribution over TCP. Cases run on the first node and use the second.
-module(teleport_nodes).

-export([all/1, groups/2, init_group/2, start/1, start/2, start_pair/1, stop_pair/1, on_first/2, connect/2]).
-export([first/1, second/1, second_node/1, kind/1, carrier/1, args/1]).
%% Functions that run on the nodes.
-export([wait_ms/0, echo/0, start_server/1, gate/0, open_gate/1]).

-behaviour(gen_server).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-type kind() :: shm | tcp | tls | stock.

-define(CASE_MS, 120000).

%% @doc Returns the groups, for all/0 of a suite.
-spec all([kind()]) -> [{group, kind()}].
all(Kinds) -> [{group, Kind} || Kind <- Kinds].

%% @doc Returns the definitions of the groups, for groups/0 of a suite. Every kind has the same cases.
-spec groups([kind()], [atom()]) -> [{kind(), [], [atom()]}].
groups(Kinds, Cases) -> [{Kind, [], Cases} || Kind <- Kinds].

%% @doc For init_per_group: stores the kind of connection, and prepares certificates for `tls'.
-spec init_group(kind(), list()) -> list().
init_group(tls, Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    [{kind, tls} | Config];
init_group(Kind, Config) ->
    [{kind, Kind} | Config].

%% @doc Returns a node with teleport, not connected to any other.
-spec start(kind()) -> {pid(), node()}.
start(Kind) -> start(Kind, #{}).

%% @doc Like {@link start/1}, but with options of {@link beamway_peer:start/2}; `teleport' contains the options of teleport.
-spec start(kind(), map()) -> {pid(), node()}.
start(Kind, Options) ->
    Args = args(maps:get(teleport, Options, #{})) ++ maps:get(args, Options, []),
    {ok, Peer, Node} = beamway_peer:start(carrier(Kind), (maps:remove(teleport, Options))#{args => Args}),
    {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [teleport]),
    {Peer, Node}.

%% @doc Returns what {@link beamway_peer} calls this kind of connection.
-spec carrier(kind()) -> beamway_peer:carrier().
carrier(shm) -> beamway_shm;
carrier(tcp) -> beamway_tcp;
carrier(tls) -> beamway_tls;
carrier(stock) -> inet_tcp.

%% @doc Returns the arguments of erl that set these options.
-spec args(map()) -> [string()].
args(Options) ->
    lists:append([["-teleport", atom_to_list(Name), lists:flatten(io_lib:format("~0p", [Value]))] || {Name, Value} <- maps:to_list(Options)]).

%% @doc Returns two connected nodes.
-spec start_pair(list()) -> list().
start_pair(Config) ->
    {PeerA, NodeA} = start(kind(Config)),
    {PeerB, NodeB} = start(kind(Config)),
    ok = connect(PeerA, NodeB),
    [{pair, {PeerA, NodeA, PeerB, NodeB}} | Config].

%% @doc Connects over the distribution.
-spec connect(pid(), node()) -> ok.
connect(Peer, Node) ->
    true = beamway_peer:call(Peer, net_kernel, connect_node, [Node]),
    ok.

%% @doc Stops both nodes.
-spec stop_pair(list()) -> ok.
stop_pair(Config) -> beamway_peer:stop_all([first(Config), second(Config)]).

%% @doc Returns the control process of the first node.
-spec first(list()) -> pid().
first(Config) -> element(1, proplists:get_value(pair, Config)).

%% @doc Returns the control process of the second node.
-spec second(list()) -> pid().
second(Config) -> element(3, proplists:get_value(pair, Config)).

%% @doc Returns the name of the second node.
-spec second_node(list()) -> node().
second_node(Config) -> element(4, proplists:get_value(pair, Config)).

%% @doc Returns the group's kind of connection.
-spec kind(list()) -> kind().
kind(Config) -> proplists:get_value(kind, Config).

%% @doc Runs the function on the first node, with the second node's name as its argument.
-spec on_first(list(), fun((node()) -> term())) -> ok.
on_first(Config, Body) -> on_first(Config, Body, ?CASE_MS).

%% Like on_first/2, but with a timeout in milliseconds.
-spec on_first(list(), fun((node()) -> term()), pos_integer()) -> ok.
on_first(Config, Body, TimeoutMs) ->
    Node = second_node(Config),
    beamway_peer:run(first(Config), fun() -> _ = Body(Node), ok end, TimeoutMs).

%% @doc Returns how long to wait for an event that must happen.
-spec wait_ms() -> pos_integer().
wait_ms() -> 100000 * beamway_runner:slowness().

%% @doc Echoes messages with teleport: `{From, Message}' is answered with `{echo, Message}'.
-spec echo() -> no_return().
echo() ->
    receive {From, Message} -> ok = teleport:send(From, {echo, Message}) end,
    echo().

%% @doc Creates a gate that delays a server's replies: a call `{behind, Gate, Reply}' is answered once {@link open_gate/1} has opened the gate.
-spec gate() -> pid().
gate() -> spawn(fun() -> receive open -> ok end end).

%% @doc Opens the gate.
-spec open_gate(pid()) -> ok.
open_gate(Gate) ->
    Gate ! open,
    ok.

%% @doc Starts a server on this node, registered under this name unless it is `none'.
-spec start_server(atom()) -> pid().
start_server(none) -> element(2, gen_server:start(?MODULE, [], []));
start_server(Name) -> element(2, gen_server:start({local, Name}, ?MODULE, [], [])).

%% @private
init([]) -> {ok, []}.

%% @private
handle_call({echo, Term}, _From, State) -> {reply, {echo, Term}, State};
handle_call(from, From, State) -> {reply, From, State};
handle_call(log, _From, State) -> {reply, lists:reverse(State), []};
handle_call(twice, From, State) -> gen_server:reply(From, once), {reply, twice, State};
handle_call({behind, Gate, Term}, From, State) ->
    _ = spawn(fun() ->
                      Monitor = monitor(process, Gate),
                      receive {'DOWN', Monitor, process, Gate, _} -> gen_server:reply(From, Term) end
              end),
    {noreply, State};
handle_call(never, _From, State) -> {noreply, State};
handle_call({reply_and_die, Term}, _From, State) -> {stop, shutdown, Term, State};
handle_call({die, Reason}, _From, State) -> {stop, Reason, State}.

%% @private
handle_cast(Request, State) -> {noreply, [{cast, Request} | State]}.

%% @private
handle_info(Message, State) -> {noreply, [Message | State]}.
