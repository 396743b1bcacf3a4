%% SPDX-License-Identifier: Apache-2.0
%% @doc The nodes that `beamway topology measure' starts on this host: a given number, or one pinned to each core. They exit together with the
%% command, because it controls them through their standard input and output.
-module(beamway_cli_topology_nodes).

-export([start/1, start_per_core/0, draw_beside/2]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

-define(BOOT_MS, 60000).
-define(LSTOPO_MS, 30000).
-define(MOST, 512).
-define(AT_ONCE, 4).

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
        _ -> throw({failed, "this command may use one core only; there is nothing to measure between cores"})
    end.

%% Starts a few at a time, because a hundred VMs that start at once take longer than in sequence.
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
    %% Like this command itself, they must not load code from the current directory.
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

%% @doc Draws the tree that was measured between cores, and next to it the one reported by hwloc.
-spec draw_beside(file:filename(), placement_probe:measured()) -> ok.
draw_beside(File, #{nodes := Nodes} = Measured) ->
    Matrix = beamway_cli_topology_show:matrix(Measured, placement_measured:best_mode(Measured), median_us, #{}),
    #{tree := Tree} = placement_cluster:cluster(Matrix),
    beamway_cli_topology_show:draw(File, placement_draw:beside([{"measured", Tree}, {"hwloc", hwloc(Nodes)}])).

hwloc(Nodes) ->
    case os:find_executable("lstopo-no-graphics") of
        false -> throw({failed, "the drawing needs lstopo-no-graphics (Debian: apt-get install hwloc-nox)"});
        Program ->
            case placement_program:run(Program, ["--of", "xml", "-"], ?LSTOPO_MS) of
                {ok, Xml} -> of_xml(Xml, Nodes);
                {error, Reason} -> throw({failed, io_lib:format("lstopo-no-graphics: ~0tP", [Reason, 10])})
            end
    end.

%% Its leaves are named after processing units, like the nodes.
of_xml(Xml, Nodes) ->
    case placement_hwloc:from_xml(Xml) of
        {ok, Hosts} ->
            Known = maps:from_list([{hd(string:split(atom_to_list(Node), "_")), Node} || Node <- Nodes]),
            {ok, Tree} = placement_tree:from_vertex(vertex(Hosts, Known)),
            Tree;
        {error, Error} -> throw({failed, ["lstopo-no-graphics: ", placement_hwloc:format_error(Error)]})
    end.

vertex({host, Name}, Known) -> {leaf, maps:get(Name, Known, list_to_atom(Name))};
vertex({group, Name, Children}, Known) -> {group, Name, #{}, [vertex(Child, Known) || Child <- Children]}.

-ifdef(TEST).

nothing_to_draw_test() ->
    Apart = #{nodes => [a, b], pairs => #{}, failed => [{quiet, a, b, timeout}], messages => 100, seconds => 1.5},
    ?assertThrow({failed, _}, draw_beside("never.svg", Apart)).
-endif.
