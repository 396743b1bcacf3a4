%% SPDX-License-Identifier: Apache-2.0
%% @doc Calls by the distribution itself, without a monitor that crosses the network.
%%
%% `gen_server:call' sends three signals to the other node: monitor, request and demonitor. Here only the request goes there. The caller
%% monitors the server's stand-in on its own node ({@link teleport_watcher}), and the reply comes to an alias, as gen's own replies do.
%%
%% The stand-in's reason is the server's. If the stand-in itself is lost, killed or found too late, the caller monitors the server as
%% gen_server does. The alias lives through that, so a reply under way is not lost.
-module(teleport_direct).

-export([call/5]).

%% The tag of a reply, as gen makes it.
-dialyzer({no_improper_lists, [sent/5, watched/6]}).

%% @doc As gen:call/4: the same replies, and exits with the same reasons. With `[nosuspend]' it exits with `overload' if the connection is full.
-spec call(Server :: pid() | {Name :: atom(), node()}, Label :: term(), Request :: term(), timeout(), [] | [nosuspend]) -> {ok, Reply :: term()}.
call(Server, Label, Request, Timeout, Suspend) when is_pid(Server) ->
    case teleport_watcher:stand_in(Server) of
        none -> unwatched(Server, Label, Request, Timeout, Suspend);
        StandIn -> watched(Server, StandIn, Label, Request, Timeout, Suspend)
    end;
%% A name may move to another process while the one that a stand-in watches lives on. Only a monitor that goes with the request is of its process.
call(Server, Label, Request, Timeout, Suspend) ->
    unwatched(Server, Label, Request, Timeout, Suspend).

%% A monitor waits for room, whatever is asked for. So a message that nobody needs looks for it first.
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
    %% If the connection is lost, the stand-in hears of it. A new one is none that it watches.
    ok = sent(Server, Label, Ref, Request, [noconnect | Suspend]),
    receive
        {[alias | Ref], Reply} ->
            %% In this order both take half the time: else ERTS makes an alias of its own of the monitor first.
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

%% The first look takes what has come to the alias, the second what has come before the alias ended. A reply that the server sent before
%% its end is here: it came to this node before the news of the end.
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
