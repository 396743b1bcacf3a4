%% SPDX-License-Identifier: Apache-2.0
%% @doc For tests of programs that run on several nodes: starts such nodes and breaks the network between them, without root. Works with Common
%% Test, EUnit and, through `Beamway.Faults', ExUnit.
%%
%% ```
%% partition(_Config) ->
%%     {A, NodeA} = beamway_ct:start("a"),
%%     {B, NodeB} = beamway_ct:start("b"),
%%     true = peer:call(A, net_kernel, connect_node, [NodeB]),
%%     ok = beamway_ct:partition(A, B),
%%     ...                                   % what does the program do now?
%%     ok = beamway_ct:heal(A).
%% '''
%% Identify a node by the process that {@link start/2} returns, or by its name if this node is connected to it. The process is the better choice: it
%% communicates through the node's standard input and output, so it works whatever happens to the network, and this node does not become part of the
%% cluster.
%%
%% The node named first must allow faults, as nodes from {@link start/2} do, but the other one need not. If something cannot be done, the test fails
%% with an error that says why.
-module(beamway_ct).

-export([start/1, start/2, stop/1, partition/2, slow/3, disconnect/2, fault/3, heal/1]).
-export_type([named/0]).

-define(LONGEST_MS, 3600000).
-define(CALL_MS, 20000).

-type named() :: pid() | node().

%% @doc Like {@link start/2}, without options.
-spec start(Name :: string()) -> {pid(), node()}.
start(Name) -> start(Name, []).

%% @doc Starts a local node on Beamway's carrier that allows faults and has the code path of this node. `Options' are arguments of `erl' and `{env,
%% Name, Value}', which sets an environment variable. The node's name begins with `Name'. The node gives up on a silent peer after three to five
%% seconds instead of 45 to 75 (`net_ticktime' 4), and a connection attempt after two seconds instead of seven (`net_setuptime' 2). Arguments in
%% `Options' override these. The node stops when the calling process exits.
-spec start(Name :: string(), Options :: [string() | {env, string(), string()}]) -> {pid(), node()}.
start(Name, Options) ->
    Paths = lists:append([["-pa", Path] || Path <- code:get_path(), filename:pathtype(Path) =:= absolute]),
    Started = peer:start_link(#{name => peer:random_name(Name), connection => standard_io,
                                args => Paths ++ ["-proto_dist", "beamway", "-kernel", "net_ticktime", "4", "net_setuptime", "2"] ++ [Word || Word <- Options, is_list(Word)],
                                env => [{"BEAMWAY_ALLOW_FAULTS", "true"} | [{Variable, Value} || {env, Variable, Value} <- Options]]}),
    case Started of
        {ok, Peer, Node} -> {Peer, Node};
        {error, Reason} -> error({no_node, Name, Reason})
    end.

%% @doc Stops a node started with {@link start/2}.
-spec stop(pid()) -> ok.
stop(Peer) -> peer:stop(Peer).

%% @doc Stops all packets between two nodes, or between each node in one list and each node in the other. This lasts until {@link heal/1} is called for
%% the nodes named first, but for an hour at most. Both sides report `nodedown' when they have missed each other's ticks.
-spec partition(named() | [named()], named() | [named()]) -> ok.
partition(Ones, Others) ->
    _ = [fault(One, Other, #{cut => both, for_ms => ?LONGEST_MS}) || One <- several(Ones), Other <- several(Others)],
    ok.

several(Names) when is_list(Names) -> Names;
several(Name) -> [Name].

%% @doc Delays each byte between the two nodes by this many milliseconds, in each direction.
-spec slow(named(), named(), DelayMs :: 0..10000) -> ok.
slow(One, Other, DelayMs) -> fault(One, Other, #{delay_ms => DelayMs, for_ms => ?LONGEST_MS}).

%% @doc Resets the connection between the two nodes. The link continues over a new connection, unless the option `resume_ms' is 0.
-spec disconnect(named(), named()) -> ok.
disconnect(One, Other) -> fault(One, Other, #{disconnect => true}).

%% @doc Sets any fault supported by {@link beamway:fault/2} on the first node.
-spec fault(named(), named(), beamway:fault() | none) -> ok.
fault(One, Other, Fault) ->
    Node = name(Other),
    case call(One, beamway, fault, [Node, Fault]) of
        ok -> ok;
        {error, {Why, Text}} -> error({Why, name(One), Node, unicode:characters_to_list(Text)})
    end.

%% @doc Clears all faults that were set on a node.
-spec heal(named()) -> ok.
heal(One) ->
    _ = [ok = call(One, beamway, fault, [Node, none]) || {Node, _} <- call(One, beamway, faults, [])],
    ok.

name(Peer) when is_pid(Peer) -> call(Peer, erlang, node, []);
name(Node) -> Node.

call(Peer, Module, Function, Args) when is_pid(Peer) -> peer:call(Peer, Module, Function, Args, ?CALL_MS);
call(Node, Module, Function, Args) -> erpc:call(Node, Module, Function, Args, ?CALL_MS).
