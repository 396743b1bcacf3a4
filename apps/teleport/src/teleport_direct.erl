%% SPDX-License-Identifier: Apache-2.0
%% @doc Calls over the distribution itself, without a monitor that crosses the network.
%%
%% `gen_server:call' sends three signals to the other node: monitor, request and demonitor. Here only the request is
%% sent. The caller monitors the server's stand-in on its own node ({@link teleport_watcher}), and the reply arrives
%% at an alias, as gen's own replies do.
%%
%% The stand-in exits with the server's exit reason. If the stand-in itself is lost or killed, or the caller looks it up
%% too late, the caller monitors the server as gen_server does. The alias stays valid in the meantime, so a reply in flight is
%% not lost.
-module(teleport_direct).

-export([call/5]).

%% gen builds a reply's tag as an improper list.
-dialyzer({no_improper_lists, [sent/5, watched/6]}).

%% @doc Like gen:call/4, but with `[nosuspend]' it exits with `overload' if the connection is full.
-spec call(Server :: pid() | {Name :: atom(), node()}, Label :: term(), Request :: term(), timeout(), [] | [nosuspend]) -> {ok, Reply :: term()}.
call(Server, Label, Request, Timeout, Suspend) when is_pid(Server) ->
    case teleport_watcher:stand_in(Server) of
        none -> unwatched(Server, Label, Request, Timeout, Suspend);
        StandIn -> watched(Server, StandIn, Label, Request, Timeout, Suspend)
    end;
%% A name may be re-registered for another process while the process behind the stand-in is still alive. Only a monitor
%% that is sent with the request is certain to watch the process that receives the request.
call(Server, Label, Request, Timeout, Suspend) ->
    unwatched(Server, Label, Request, Timeout, Suspend).

%% Setting up a monitor blocks on a full connection even if the caller does not want to wait. So a dummy message is sent
%% first to find out whether there is room.
unwatched(Server, Label, Request, Timeout, Suspend) ->
    case Suspend =/= [] andalso erlang:send({teleport_server, node_of(Server)}, is_there_room, [noconnect | Suspend]) of
        nosuspend -> exit(overload);
        _ -> gen:call(Server, Label, Request, Timeout)
    end.

node_of({_, Node}) -> Node;
node_of(Pid) -> node(Pid).

sent(Server, Label, Ref, Request, How) ->
    case erlang:send(Server, {Label, {self(), [alias | Ref]}, Request}, How) of
        nosuspend ->
            true = unalias(Ref),
            true = demonitor(Ref, [flush]),
            exit(overload);
        _ -> ok
    end.

watched(Server, StandIn, Label, Request, Timeout, Suspend) ->
    Deadline = teleport_deadline:in(Timeout),
    Ref = monitor(port, StandIn, [{alias, explicit_unalias}]),
    %% If the connection is lost, the stand-in is closed. It does not watch the server over a new connection, so the
    %% request must not open one.
    ok = sent(Server, Label, Ref, Request, [noconnect | Suspend]),
    receive
        {[alias | Ref], Reply} ->
            %% In this order the two calls take half the time; otherwise ERTS first turns the monitor into an alias of
            %% its own.
            true = unalias(Ref),
            true = demonitor(Ref, [flush]),
            {ok, Reply};
        {'DOWN', Ref, _, _, {shutdown, {teleport_watcher, Reason}}} ->
            ended(Ref, reason(Reason, Server));
        {'DOWN', Ref, _, _, _} ->
            ok = teleport_watcher:remove(Server, StandIn),
            alone(Server, Ref, Deadline)
    after Timeout ->
        true = demonitor(Ref, [flush]),
        ended(Ref, timeout)
    end.

alone(Server, Ref, Deadline) ->
    Monitor = monitor(process, Server),
    receive
        {[alias | Ref], Reply} ->
            true = demonitor(Monitor, [flush]),
            true = unalias(Ref),
            {ok, Reply};
        {'DOWN', Monitor, process, _, Reason} ->
            ended(Ref, reason(Reason, Server))
    after teleport_deadline:left(Deadline) ->
        true = demonitor(Monitor, [flush]),
        ended(Ref, timeout)
    end.

%% The first receive finds a reply that has already arrived at the alias, the second a reply that arrived before the
%% alias was deactivated. A reply that the server sent before it exited is already here, because it reached this node
%% before the exit was reported.
ended(Ref, Reason) ->
    case come(Ref) of
        none ->
            true = unalias(Ref),
            case come(Ref) of
                none -> exit(Reason);
                Late -> Late
            end;
        Reply ->
            true = unalias(Ref),
            Reply
    end.

come(Ref) ->
    receive {[alias | Ref], Reply} -> {ok, Reply}
    after 0 -> none
    end.

reason(noconnection, Server) -> {nodedown, node(Server)};
reason(Reason, _) -> Reason.
