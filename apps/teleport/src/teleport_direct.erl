%% SPDX-License-Identifier: Apache-2.0
%% @doc Calls by the distribution itself, without a monitor that crosses the network.
%%
%% `gen_server:call' sends three signals to the other node: monitor, request and demonitor. Here only the request goes there. The caller
%% monitors the server's stand-in on its own node ({@link teleport_watcher}), and the reply comes to an alias, as gen's own replies do.
%%
%% The stand-in's reason is the server's. If the stand-in itself is lost, killed or found too late, the caller monitors the server as
%% gen_server does. The alias lives through that, so a reply under way is not lost.
-module(teleport_direct).

-export([call/4]).

%% The tag of a reply, as gen makes it.
-dialyzer({no_improper_lists, [watched/5]}).

%% @doc As gen:call/4: the same replies, and exits with the same reasons.
-spec call(Server :: pid() | {Name :: atom(), node()}, Label :: term(), Request :: term(), timeout()) -> {ok, Reply :: term()}.
call(Server, Label, Request, Timeout) when is_pid(Server) ->
    case teleport_watcher:stand_in(Server) of
        none -> gen:call(Server, Label, Request, Timeout);
        StandIn -> watched(Server, StandIn, Label, Request, Timeout)
    end;
%% A name may move to another process while the one that a stand-in watches lives on. Only a monitor that goes with the request is of its process.
call(Server, Label, Request, Timeout) ->
    gen:call(Server, Label, Request, Timeout).

watched(Server, StandIn, Label, Request, Timeout) ->
    Deadline = teleport_deadline:in(Timeout),
    Ref = monitor(port, StandIn, [{alias, explicit_unalias}]),
    %% If the connection is lost, the stand-in hears of it. A new one is none that it watches.
    _ = erlang:send(Server, {Label, {self(), [alias | Ref]}, Request}, [noconnect]),
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
