%% SPDX-License-Identifier: Apache-2.0
%% @doc Messages by the distribution itself ({@link teleport_way}), with the results that a lane gives.
%%
%% A sender that waits for room is suspended, as by `!', until the connection has room or ends. Only one with a limit of its own, the option `timeout', looks
%% for room itself: nothing ends the wait of a suspended process.
-module(teleport_distribution).

-export([send/5, address/2, connect/1]).

-define(LOOK_MS, 1).
-define(CONNECT_MS, 5000).
-define(TRIES, 3).

%% @doc What `!' takes.
-spec address(pid() | atom(), node()) -> pid() | {atom(), node()}.
address(Pid, _) when is_pid(Pid) -> Pid;
address(Name, Node) -> {Name, Node}.

%% @doc Sends a message. Connects if need be. Nobody counts what would be dropped: `drop' is as `error'.
-spec send(pid() | atom(), node(), Message :: term(), OnFull :: block | error | drop, teleport:options()) -> ok | {error, teleport:reason()}.
send(Remote, Node, Message, block, #{timeout := Timeout}) when Timeout =/= infinity ->
    within({address(Remote, Node), Node, Message}, teleport_deadline:in(Timeout));
send(Remote, Node, Message, block, _) ->
    Address = address(Remote, Node),
    case erlang:send(Address, Message, [noconnect]) of
        ok -> ok;
        noconnect -> connected({Address, Node, Message}, [noconnect], teleport_deadline:in(?CONNECT_MS), ?TRIES)
    end;
send(Remote, Node, Message, _, _) ->
    case sent({address(Remote, Node), Node, Message}, [noconnect, nosuspend], teleport_deadline:in(?CONNECT_MS), ?TRIES) of
        nosuspend -> {error, overload};
        Sent -> Sent
    end.

within(Sending, Deadline) ->
    case sent(Sending, [noconnect, nosuspend], Deadline, ?TRIES) of
        nosuspend ->
            case teleport_deadline:left(Deadline) of
                0 -> {error, timeout};
                _ -> receive after ?LOOK_MS -> within(Sending, Deadline) end
            end;
        Sent -> Sent
    end.

sent({_, Node, _}, _, _, 0) -> {error, {nodedown, Node}};
sent({Address, _, Message} = Sending, How, Deadline, Tries) ->
    case erlang:send(Address, Message, How) of
        noconnect -> connected(Sending, How, Deadline, Tries);
        Sent -> Sent
    end.

%% The exit reason is how the result travels.
-dialyzer({nowarn_function, connected/4}).
connected({_, Node, _} = Sending, How, Deadline, Tries) ->
    {Pid, Monitor} = spawn_monitor(fun() -> exit({connected, connect(Node)}) end),
    receive
        {'DOWN', Monitor, process, Pid, {connected, true}} -> sent(Sending, How, Deadline, Tries - 1);
        {'DOWN', Monitor, process, Pid, _} -> {error, {nodedown, Node}}
    after teleport_deadline:left(Deadline) ->
        true = demonitor(Monitor, [flush]),
        {error, timeout}
    end.

%% @doc Connects as a message by `!' does: not where the option dist_auto_connect of kernel forbids it, which net_kernel:connect_node/1 does not heed.
%% Returns whether the node is connected. For a process of its own: it goes on to monitor nodes. No timeout: net_kernel has one.
-spec connect(node()) -> boolean().
connect(Node) ->
    case application:get_env(kernel, dist_auto_connect) of
        {ok, Told} when Told =:= never; Told =:= once ->
            ok = net_kernel:monitor_nodes(true, [{node_type, all}]),
            true = erlang:monitor_node(Node, true),
            lists:member(Node, nodes(connected)) orelse
                receive
                    {nodeup, Node, _} -> true;
                    {nodedown, Node} -> false
                end;
        _ -> net_kernel:connect_node(Node) =:= true
    end.
