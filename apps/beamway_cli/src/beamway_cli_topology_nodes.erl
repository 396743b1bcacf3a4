%% SPDX-License-Identifier: Apache-2.0
%% @doc The nodes of `beamway topology'. Either the user names them, or `measure' starts them on this host: a given number of nodes, or one node
%% pinned to each core. Nodes that were started exit together with the command, because it controls them through their standard input and output.
-module(beamway_cli_topology_nodes).

-export([named/1, connected_with/1, start/1, start_per_core/0]).

-define(CALL_MS, 60000).
-define(BOOT_MS, 60000).
-define(MOST, 512).
-define(AT_ONCE, 4).

%% @doc Returns the nodes in a comma-separated list. A name without a host part means a node on this host.
-spec named(string()) -> [node()].
named(Text) ->
    [full_name(Name) || Name <- string:lexemes(Text, ", \n")].

full_name(Name) ->
    case string:split(Name, "@") of
        [[_ | _], [_ | _]] -> list_to_atom(Name);
        [[_ | _] = Short] when node() =/= nonode@nohost -> list_to_atom(Short ++ "@" ++ lists:last(string:split(atom_to_list(node()), "@")));
        [[_ | _] = Short] -> list_to_atom(Short);
        _ -> throw({usage, ["'", Name, "' is not a node name; expected name or name@host"]})
    end.

%% @doc Returns the given node and all nodes connected to it, except this command.
-spec connected_with(string()) -> [node()].
connected_with(Name) ->
    Node = full_name(Name),
    try erpc:call(Node, erlang, nodes, [], ?CALL_MS) of
        Others -> lists:usort([Node | Others]) -- [node()]
    catch
        error:{erpc, Reason} -> throw({failed, io_lib:format("cannot reach ~ts (~tp); is it up, and is the cookie right?", [Node, Reason])})
    end.

%% @doc Starts nodes. The returned fun stops them.
-spec start(pos_integer()) -> {[node()], fun(() -> ok)}.
start(Count) when Count >= 2, Count =< ?MOST ->
    started([{io_lib:format("t~3..0b", [N]), []} || N <- lists:seq(1, Count)]);
start(_) -> throw({usage, io_lib:format("--start: expected a number from 2 to ~b", [?MOST])}).

%% @doc Starts one node on each core, with taskset.
-spec start_per_core() -> {[node()], fun(() -> ok)}.
start_per_core() ->
    os:find_executable("taskset") =/= false orelse throw({failed, "--per-core needs the program taskset (Debian: util-linux)"}),
    case placement_place:allowed_units() of
        [_, _ | _] = Cores -> started([{"pu" ++ integer_to_list(Core), ["taskset", "--cpu-list", integer_to_list(Core)]} || Core <- Cores]);
        _ -> throw({failed, "this command may use only one core, so there is nothing to measure between cores"})
    end.

%% Starts a few at a time, because a hundred VMs that start at once take longer than if they start in sequence.
started(Named) ->
    beamway_cli_output:complain("starting ~b nodes", [length(Named)]),
    Peers = in_turns(Named),
    {[Node || {_, Node} <- Peers], fun() -> lists:foreach(fun({Peer, _}) -> stop(Peer) end, Peers) end}.

in_turns([]) -> [];
in_turns(Named) ->
    {Some, Rest} = lists:split(min(?AT_ONCE, length(Named)), Named),
    Starting = [peer_started(Name, Before) || {Name, Before} <- Some],
    [ready(Peer, Tag) || {Peer, Tag} <- Starting] ++ in_turns(Rest).

peer_started(Name, Before) ->
    Tag = make_ref(),
    %% Like this command itself, these nodes must not load code from the current directory.
    InRoot = {"/bin/sh", ["-c", "cd / && exec \"$@\"", "sh" | Before ++ [os:getenv("BEAMWAY_ERL", "erl")]]},
    Options = #{exec => InRoot, name => lists:flatten([Name, "_", os:getpid()]), connection => standard_io, wait_boot => {self(), Tag},
                args => ["+S", "1:1", "+SDio", "1", "+SDcpu", "1", "-connect_all", "false"]},
    case peer:start(Options) of
        {ok, Peer} -> {Peer, Tag};
        {ok, Peer, _} -> {Peer, Tag};
        {error, Reason} -> throw({failed, io_lib:format("a node did not start: ~0tP", [Reason, 10])})
    end.

ready(Peer, Tag) ->
    receive
        %% Anybody could read a cookie on the command line.
        {Tag, {started, Node, Peer}} -> true = peer:call(Peer, erlang, set_cookie, [erlang:get_cookie()]), {Peer, Node};
        {Tag, Other} -> throw({failed, io_lib:format("a node did not start: ~0tP", [Other, 10])})
    after ?BOOT_MS -> throw({failed, "a node did not start within a minute"})
    end.

stop(Peer) ->
    try peer:stop(Peer)
    catch exit:_ -> ok
    end.
