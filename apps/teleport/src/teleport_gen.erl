%% SPDX-License-Identifier: Apache-2.0
%% @doc Calls and events for gen_event and gen_fsm processes on any node. The functions have the same names as in those
%% modules, but accept the destinations of {@link teleport}. For a gen_statem, use {@link teleport:call/2} and {@link
%% teleport:cast/2}.
-module(teleport_gen).

-export([notify/2, sync_notify/2, event_call/3, event_call/4, send_event/2, send_all_state_event/2]).
-export([sync_send_event/2, sync_send_event/3, sync_send_all_state_event/2, sync_send_all_state_event/3]).

-define(CALL_MS, 5000).

%% @doc Like gen_event:notify/2.
-spec notify(teleport:dest(), Event :: term()) -> ok | {error, teleport:reason()}.
notify(Dest, Event) -> teleport_message:send(Dest, {notify, Event}).

%% @doc Like gen_event:sync_notify/2.
-spec sync_notify(teleport:dest(), Event :: term()) -> ok.
sync_notify(Dest, Event) -> teleport_call:call(self(), Dest, {sync_notify, Event}, infinity, #{}).

%% @doc Like gen_event:call/3.
-spec event_call(teleport:dest(), Handler :: term(), Request :: term()) -> term().
event_call(Dest, Handler, Request) -> event_call(Dest, Handler, Request, ?CALL_MS).

%% @doc Like gen_event:call/4.
-spec event_call(teleport:dest(), Handler :: term(), Request :: term(), timeout()) -> term().
event_call(Dest, Handler, Request, Timeout) -> teleport_call:call(self(), Dest, {call, Handler, Request}, Timeout, #{}).

%% @doc Like gen_fsm:send_event/2.
-spec send_event(teleport:dest(), Event :: term()) -> ok | {error, teleport:reason()}.
send_event(Dest, Event) -> teleport_message:send(Dest, {'$gen_event', Event}).

%% @doc Like gen_fsm:send_all_state_event/2.
-spec send_all_state_event(teleport:dest(), Event :: term()) -> ok | {error, teleport:reason()}.
send_all_state_event(Dest, Event) -> teleport_message:send(Dest, {'$gen_all_state_event', Event}).

%% @doc Like gen_fsm:sync_send_event/2.
-spec sync_send_event(teleport:dest(), Event :: term()) -> term().
sync_send_event(Dest, Event) -> sync_send_event(Dest, Event, ?CALL_MS).

%% @doc Like gen_fsm:sync_send_event/3.
-spec sync_send_event(teleport:dest(), Event :: term(), timeout()) -> term().
sync_send_event(Dest, Event, Timeout) -> teleport_call:call('$gen_sync_event', Dest, Event, Timeout, #{}).

%% @doc Like gen_fsm:sync_send_all_state_event/2.
-spec sync_send_all_state_event(teleport:dest(), Event :: term()) -> term().
sync_send_all_state_event(Dest, Event) -> sync_send_all_state_event(Dest, Event, ?CALL_MS).

%% @doc Like gen_fsm:sync_send_all_state_event/3.
-spec sync_send_all_state_event(teleport:dest(), Event :: term(), timeout()) -> term().
sync_send_all_state_event(Dest, Event, Timeout) -> teleport_call:call('$gen_sync_all_state_event', Dest, Event, Timeout, #{}).
