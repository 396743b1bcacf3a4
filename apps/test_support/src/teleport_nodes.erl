%% SPDX-License-Identifier: Apache-2.0
%% @doc Pairs of nodes with lanes between them, for the suites of teleport: one group for each kind of lane.
%%
%% `tcp' and `tls' run under stock distribution, which shows that lanes need no other; `shm' runs under Beamway's, `shm_on_stock' under
%% stock, `shared_port' over TCP under Beamway's, `rdma' under stock where that is asked for (`BEAMWAY_TEST_CARRIERS=beamway_rdma'). Cases run on the first node and work on the second through lanes.
-module(teleport_nodes).

-export([kinds/0, all/1, groups/2, init_group/2, start/1, start/2, start_pair/1, stop_pair/1, on_first/2, on_first/3, on_second/2, connect/2]).
-export([first/1, second/1, second_node/1, kind/1, args/1]).
%% What runs on the nodes.
-export([wait_ms/0, echo/0, start_server/1, await_lanes/3, gate/0, open_gate/1]).

-behaviour(gen_server).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-type kind() :: shm | beamway | shm_on_stock | tcp | shared_port | tls | rdma.

-define(CASE_MS, 120000).

%% @doc All kinds that this machine can have.
-spec kinds() -> [kind()].
kinds() -> [Kind || Kind <- [shm, shm_on_stock, tcp, tls, rdma], is_wanted(Kind)].

is_wanted(rdma) -> beamway_carrier:all([beamway_rdma]) =/= [];
is_wanted(_) -> beamway_carrier:all([beamway_shm, beamway_tcp]) =/= [].

%% @doc For all/0 of a suite.
-spec all([kind()]) -> [{group, kind()}].
all(Kinds) -> [{group, Kind} || Kind <- Kinds].

%% @doc For groups/0: every kind has the same cases.
-spec groups([kind()], [atom()]) -> [{kind(), [], [atom()]}].
groups(Kinds, Cases) -> [{Kind, [], Cases} || Kind <- Kinds].

%% @doc For init_per_group.
-spec init_group(kind(), list()) -> list().
init_group(tls, Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    [{kind, tls} | Config];
init_group(Kind, Config) ->
    [{kind, Kind} | Config].

%% @doc A node with teleport, not connected to any other.
-spec start(kind()) -> {pid(), node()}.
start(Kind) -> start(Kind, #{}).

%% @doc The same with options of {@link beamway_peer:start/2}; `teleport' holds options of teleport.
-spec start(kind(), map()) -> {pid(), node()}.
start(Kind, Options) ->
    Carrier = case lists:member(Kind, [shm, beamway, shared_port]) of true -> beamway_shm; false -> inet_tcp end,
    Own = maps:merge(kind_options(Kind), maps:get(teleport, Options, #{})),
    Env = [{"BEAMWAY_RDMA", "true"} || Kind =:= rdma] ++ maps:get(env, Options, []),
    {ok, Peer, Node} = beamway_peer:start(Carrier, (maps:remove(teleport, Options))#{args => args(Own) ++ maps:get(args, Options, []), env => Env}),
    {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [teleport]),
    {Peer, Node}.

kind_options(shm) -> #{kinds => [shm], way => lane};
kind_options(beamway) -> #{kinds => [shm]};
kind_options(shm_on_stock) -> #{kinds => [shm]};
kind_options(rdma) -> #{kinds => [rdma]};
kind_options(Kind) when Kind =:= tcp; Kind =:= shared_port -> #{kinds => [tcp], way => lane};
kind_options(tls) ->
    Base = filename:rootname(beamway_certificates:good()),
    #{tls => [{certfile, Base ++ ".pem"}, {keyfile, Base ++ ".key"}, {cacertfile, Base ++ ".ca"}]}.

%% @doc The words of erl that set these options.
-spec args(map()) -> [string()].
args(Options) ->
    lists:append([["-teleport", atom_to_list(Name), lists:flatten(io_lib:format("~0p", [Value]))] || {Name, Value} <- maps:to_list(Options)]).

%% @doc Two nodes, connected; lanes open on demand.
-spec start_pair(list()) -> list().
start_pair(Config) ->
    {PeerA, NodeA} = start(kind(Config)),
    {PeerB, NodeB} = start(kind(Config)),
    ok = connect(PeerA, NodeB),
    [{pair, {PeerA, NodeA, PeerB, NodeB}} | Config].

%% @doc Connects by distribution.
-spec connect(pid(), node()) -> ok.
connect(Peer, Node) ->
    true = beamway_peer:call(Peer, net_kernel, connect_node, [Node]),
    ok.

%% @doc Ends both.
-spec stop_pair(list()) -> ok.
stop_pair(Config) -> beamway_peer:stop_all([first(Config), second(Config)]).

%% @doc The control process of the first node.
-spec first(list()) -> pid().
first(Config) -> element(1, proplists:get_value(pair, Config)).

%% @doc That of the second.
-spec second(list()) -> pid().
second(Config) -> element(3, proplists:get_value(pair, Config)).

%% @doc The second's name.
-spec second_node(list()) -> node().
second_node(Config) -> element(4, proplists:get_value(pair, Config)).

%% @doc The group's kind.
-spec kind(list()) -> kind().
kind(Config) -> proplists:get_value(kind, Config).

%% @doc Runs the body on the first node, with the second's name.
-spec on_first(list(), fun((node()) -> term())) -> ok.
on_first(Config, Body) -> on_first(Config, Body, ?CASE_MS).

%% @doc The same with a limit in milliseconds.
-spec on_first(list(), fun((node()) -> term()), pos_integer()) -> ok.
on_first(Config, Body, TimeoutMs) ->
    Node = second_node(Config),
    beamway_peer:run(first(Config), fun() -> _ = Body(Node), ok end, TimeoutMs).

%% @doc Runs the fun on the second node.
-spec on_second(list(), fun(() -> Result)) -> Result.
on_second(Config, Fun) -> beamway_peer:run(second(Config), Fun, ?CASE_MS).

%% @doc How long something may take that comes at all.
-spec wait_ms() -> pos_integer().
wait_ms() -> 100000 * beamway_runner:slowness().

%% @doc Sends back what it gets: `{From, Message}' as `{echo, Message}', by a lane.
-spec echo() -> no_return().
echo() ->
    receive {From, Message} -> ok = teleport:send(From, {echo, Message}) end,
    echo().

%% @doc Waits until there are so many lanes to the node, opened here.
-spec await_lanes(node(), Count :: non_neg_integer(), TimeoutMs :: pos_integer()) -> ok.
await_lanes(Node, Count, TimeoutMs) ->
    _ = beamway_peer:wait_until(fun() -> length([L || #{opened_by := this_node} = L <- teleport:lanes(Node)]) =:= Count end, TimeoutMs),
    ok.

%% @doc What a server's answer may wait for ({@link open_gate/1}): `{behind, Gate, Reply}' is answered when the gate is open.
-spec gate() -> pid().
gate() -> spawn(fun() -> receive open -> ok end end).

%% @doc Lets the answers go.
-spec open_gate(pid()) -> ok.
open_gate(Gate) ->
    Gate ! open,
    ok.

%% @doc A server of this name (`none': without one) on this node.
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
