%% SPDX-License-Identifier: Apache-2.0
%% @doc Starts many real nodes with the application `placement', for its suites. The nodes are small, use stock TCP, are started in batches, and
%% do not connect to each other on their own (`-connect_all false').
-module(beamway_placement_nodes).

-compile({no_auto_import, [nodes/1]}).

-export([start/1, start/2, start_again/3, stop/1, nodes/1, peers/1, call/4, all/4, connect/2]).

-export_type([cluster/0]).

-type cluster() :: [{Name :: string(), Peer :: pid(), node()}].

-define(AT_ONCE, 8).
-define(START_MS, 120000).

%% @doc Starts nodes with these names, on which placement runs.
-spec start([string()]) -> cluster().
start(Names) ->
    start(Names, #{}).

%% @doc Like {@link start/1}, but with options: `run => false' leaves placement stopped, and `args' are added to the command line.
-spec start([string()], #{run => boolean(), args => [string()], env => [{string(), string()}]}) -> cluster().
start([], _) -> [];
start(Names, Options) ->
    {Now, Later} = lists:split(min(?AT_ONCE, length(Names)), Names),
    Calls = [beamway_peer:async(fun() -> start_one(Name, Options) end) || Name <- Now],
    Started = [beamway_peer:await(Call, ?START_MS * beamway_runner:slowness()) || Call <- Calls],
    Started ++ start(Later, Options).

%% @doc Restarts a node that has exited, under the same name.
-spec start_again(string(), node(), #{run => boolean(), args => [string()], env => [{string(), string()}]}) -> {Name :: string(), Peer :: pid(), node()}.
start_again(Name, Node, Options) ->
    [Short, "127.0.0.1"] = string:split(atom_to_list(Node), "@"),
    start_as(Name, Short, Options).

start_one(Name, Options) -> start_as(Name, beamway_peer:unique_name(Name), Options).

start_as(Name, Short, Options) ->
    %% The defaults are generous, because a busy machine must not cause a failure. A case that tests a deadline or a limit sets its own.
    Patience = ["-placement", "deadline", "20000", "-placement", "limit", "10000"],
    Args = Patience ++ ["-connect_all", "false", "-kernel", "prevent_overlapping_partitions", "false", "+S", "1", "+SDio", "1", "+A", "1", "-boot", "no_dot_erlang"],
    {ok, Peer, Node} = beamway_peer:start(inet_tcp, #{name => Short, host => "127.0.0.1",
                                                      args => Args ++ maps:get(args, Options, []), env => maps:get(env, Options, [])}),
    case maps:get(run, Options, true) of
        true -> {ok, _} = beamway_peer:call(Peer, application, ensure_all_started, [placement]), ok;
        false -> ok
    end,
    {Name, Peer, Node}.

%% @doc Stops all nodes, including suspended ones.
-spec stop(cluster()) -> ok.
stop(Cluster) ->
    Calls = [beamway_peer:async(fun() -> beamway_peer:stop(Peer) end) || {_, Peer, _} <- Cluster],
    lists:foreach(fun(Call) -> ok = beamway_peer:await(Call, ?START_MS) end, Calls).

%% @doc Returns the nodes, in the order in which their names were given.
-spec nodes(cluster()) -> [node()].
nodes(Cluster) -> [Node || {_, _, Node} <- Cluster].

%% @doc Returns the control processes of the nodes.
-spec peers(cluster()) -> [pid()].
peers(Cluster) -> [Peer || {_, Peer, _} <- Cluster].

%% @doc Calls a function on the node with this name.
-spec call(cluster(), string(), {module(), atom()}, [term()]) -> term().
call(Cluster, Name, {Module, Function}, Arguments) ->
    {_, Peer, _} = lists:keyfind(Name, 1, Cluster),
    beamway_peer:call(Peer, Module, Function, Arguments).

%% @doc Calls a function on all nodes.
-spec all(cluster(), module(), atom(), [term()]) -> [term()].
all(Cluster, Module, Function, Arguments) ->
    [beamway_peer:call(Peer, Module, Function, Arguments) || {_, Peer, _} <- Cluster].

%% @doc Connects one node to all others.
-spec connect(cluster(), string()) -> ok.
connect(Cluster, Name) ->
    {_, Peer, Own} = lists:keyfind(Name, 1, Cluster),
    [true = beamway_peer:call(Peer, net_kernel, connect_node, [Node]) || Node <- nodes(Cluster), Node =/= Own],
    ok.
