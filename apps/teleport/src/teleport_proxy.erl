%% SPDX-License-Identifier: Apache-2.0
%% @doc Stands for a registered name of another node, so that what knows only local pids reaches it by a lane: `{via, teleport, {Name, Node}}'.
%%
%% Calls of gen_server, gen_statem and gen_event become requests over a lane, and their replies go to the callers. All other messages are
%% forwarded, those of sys as well. It ends with the server, and with the server's reason, so a monitor or link of it tells what one of the server would.
%%
%% One proxy serves the callers of one lane. So what it hears of the lane is in the order of the lane: replies that a server gave before its end
%% come before the end. A request that fails alone (`overload', `too_big', `timeout') lets the others be answered first.
%%
%% Whoever waits for a reply monitors this process. A caller that does not monitor it has given up or was killed, and its request is given up as well.
-module(teleport_proxy).

-include_lib("kernel/include/logger.hrl").

-export([start_link/2, init/2, loop/1]).

-record(proxy, {dest :: {Name :: atom(), node()},
                id :: teleport_via:id(),
                %% of whoever looked the name up first: a message tells nothing of its sender
                key :: {pid(), atom()},
                monitor :: reference(),
                calls = teleport_requests:new() :: teleport_requests:collection(),
                %% the last message could not be sent, and that was logged
                warned = false :: boolean(),
                %% messages since the last look
                busy = true :: boolean(),
                %% `retired': nobody new finds it. A term of `ends' is its exit reason.
                state = known :: known | retired | {ends, term()}}).

-define(LOOK_MS, 5000).

%% @doc Started by {@link teleport_via}.
-spec start_link(teleport_via:id(), Key :: {pid(), atom()}) -> {ok, pid()}.
start_link(Id, Key) -> {ok, spawn_link(?MODULE, init, [Id, Key])}.

%% @private
-spec init(teleport_via:id(), Key :: {pid(), atom()}) -> no_return().
init({Name, Node, _} = Id, Key) ->
    look_later(),
    ?MODULE:loop(#proxy{dest = {Name, Node}, id = Id, key = Key, monitor = monitor(process, {Name, Node})}).

look_later() -> erlang:send_after(?LOOK_MS, self(), {?MODULE, look}).

%% @private Left by the module's name, so new code ends no proxy. No timeout: `look' comes.
-spec loop(#proxy{}) -> no_return().
loop(Proxy) ->
    receive
        {?MODULE, look} -> look_later(), ?MODULE:loop(look(Proxy));
        Message -> ?MODULE:loop(rested(message(Message, Proxy#proxy{busy = true})))
    end.

message({'$gen_call', From, Request}, Proxy) -> call(call, From, Request, Proxy);
message({Label, {_, _} = From, Request}, Proxy) when Label =:= '$gen_sync_event'; Label =:= '$gen_sync_all_state_event' ->
    call({other_call, Label}, From, Request, Proxy);
message({Pid, {Pid, _} = From, Request}, Proxy) when is_pid(Pid) -> call(event_call, From, Request, Proxy);
message({'DOWN', Monitor, process, _, Reason}, #proxy{monitor = Monitor, dest = {_, Node}} = Proxy) ->
    ends(case Reason of noconnection -> {nodedown, Node}; _ -> Reason end, Proxy);
message(Message, #proxy{calls = Calls, dest = Dest, key = Key} = Proxy) ->
    case teleport_requests:check(Message, Calls, true) of
        {{reply, Reply}, From, Left} -> gen:reply(From, Reply), Proxy#proxy{calls = Left};
        {{error, {Reason, _}}, _, Left} -> failed(Reason, Proxy#proxy{calls = Left});
        _ -> sent(teleport:send(Dest, Message, #{key => Key}), Proxy)
    end.

%% Its sender cannot be told.
sent(ok, Proxy) -> Proxy#proxy{warned = false};
sent({error, Reason}, #proxy{dest = {Name, Node}, warned = Warned} = Proxy) ->
    ok = teleport_peers:count_dropped(Node),
    _ = Warned orelse ?LOG_WARNING("teleport: messages to ~tp on ~ts through {via, teleport, _} are lost: ~0tp", [Name, Node, Reason]),
    Proxy#proxy{warned = true}.

%% With the key of what the caller sends itself: behind it.
call(Kind, {Caller, _} = From, Request, #proxy{dest = {Name, _} = Dest, calls = Calls} = Proxy) ->
    Proxy#proxy{calls = teleport_requests:add(teleport_request:begin_call(Kind, Dest, Request, #{key => {Caller, Name}}), From, Calls)}.

failed({too_big, _} = Reason, Proxy) -> ends(Reason, Proxy);
failed(Reason, Proxy) when Reason =:= overload; Reason =:= timeout -> ends(Reason, Proxy);
%% It concerns all of them. Callers of gen_server know no lanes.
failed({lane_lost, Node}, _) -> exit({nodedown, Node});
failed(Reason, _) -> exit(Reason).

%% The answers that are under way come first.
ends(Reason, #proxy{id = Id, state = State} = Proxy) ->
    ok = teleport_via:retired(Id),
    Proxy#proxy{state = case State of {ends, _} -> State; _ -> {ends, Reason} end}.

rested(#proxy{state = {ends, Reason}, calls = Calls} = Proxy) ->
    case teleport_requests:size(Calls) of
        0 -> exit(Reason);
        _ -> Proxy
    end;
rested(Proxy) -> Proxy.

look(Proxy) ->
    {monitored_by, Watchers} = process_info(self(), monitored_by),
    idle(given_up(Watchers, Proxy), Watchers).

given_up(Watchers, #proxy{calls = Calls} = Proxy) ->
    Waiting = maps:from_keys(Watchers, []),
    Gone = [Id || {Id, {Caller, _}} <- teleport_requests:to_list(Calls), not is_map_key(Caller, Waiting)],
    rested(Proxy#proxy{calls = lists:foldl(fun teleport_requests:give_up/2, Calls, Gone)}).

%% A pid that was just looked up may be used a moment later: a retired proxy lives for one look more.
idle(#proxy{busy = true} = Proxy, _) -> Proxy#proxy{busy = false};
idle(#proxy{calls = Calls, id = Id, state = State} = Proxy, Watchers) ->
    case {teleport_requests:size(Calls), Watchers, process_info(self(), links)} of
        {0, [], {links, [_]}} when State =:= known -> ok = teleport_via:retired(Id), Proxy#proxy{state = retired};
        {0, [], {links, [_]}} -> exit(normal);
        _ -> Proxy
    end.
