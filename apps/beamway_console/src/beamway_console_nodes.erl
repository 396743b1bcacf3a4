%% SPDX-License-Identifier: Apache-2.0
%% @doc Installs a collector on a node. {@link beamway_console_hub} calls this in a new process for each attempt, because a node may take a long
%% time or never answer.
-module(beamway_console_nodes).

-export([attach/3, detach/2]).

-define(CALL_MS, 8000).

%% @doc Connects to the node, sends the collector if the node has none, and attaches to it.
-spec attach(node(), Hub :: pid(), IntervalMs :: pos_integer()) -> {ok, pid(), beamway_console_collector:facts()} | {error, Text :: binary()}.
attach(Node, Hub, IntervalMs) ->
    try
        Node =:= node() orelse net_kernel:connect_node(Node) =:= true orelse throw("it cannot be reached, or has another cookie"),
        Sent = with_code(Node),
        case erpc:call(Node, beamway_console_collector, protocol, [], ?CALL_MS) =:= beamway_console_collector:protocol() of
            true -> ok;
            false -> throw("a collector of another version of Beamway runs there")
        end,
        case erpc:call(Node, beamway_console_collector, attach, [Hub, IntervalMs, Sent], ?CALL_MS) of
            {ok, Pid, Facts} -> {ok, Pid, Facts};
            {error, Reason} -> failed("its collector did not start: ~0tP", [Reason, 10])
        end
    catch
        throw:Text -> {error, unicode:characters_to_binary(Text)};
        error:{erpc, timeout} -> failed("it did not answer within ~b s", [?CALL_MS div 1000]);
        error:{erpc, noconnection} -> {error, <<"the connection ended">>};
        Class:Crash -> failed("~ts: ~0tP", [Class, Crash, 10])
    end.

failed(Format, Arguments) -> {error, unicode:characters_to_binary(io_lib:format(Format, Arguments))}.

%% If the module is in a node's code path, the node keeps it. On any other node it is only temporary.
with_code(Node) ->
    case Node =:= node() orelse is_list(erpc:call(Node, code, where_is_file, ["beamway_console_collector.beam"], ?CALL_MS)) of
        true -> false;
        false ->
            case erpc:call(Node, erlang, module_loaded, [beamway_console_collector], ?CALL_MS) of
                true -> true;
                false -> load(Node)
            end
    end.

load(Node) ->
    {beamway_console_collector, Binary, File} = code:get_object_code(beamway_console_collector),
    case erpc:call(Node, code, load_binary, [beamway_console_collector, File, Binary], ?CALL_MS) of
        {module, beamway_console_collector} -> true;
        {error, Reason} -> throw(io_lib:format("its code server refused the collector: ~0tP", [Reason, 10]))
    end.

%% @doc Tells a collector that this hub no longer needs it.
-spec detach(pid(), Hub :: pid()) -> ok.
detach(Collector, Hub) ->
    _ = erlang:send(Collector, {detach, Hub}, [nosuspend, noconnect]),
    ok.
