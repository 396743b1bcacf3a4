%% SPDX-License-Identifier: Apache-2.0
%% @doc What goes out over a lane: which frame is next, and when to stop. Pure: {@link teleport_lane} asks {@link next/1}, does that, and says
%% what came of it.
-module(teleport_outbound).

-export([new/1, new/2, message/5, next/1, begin_next/1, sent/2, writable/1, paused/1, resumed/1, idle/3, keys/1]).
-export_type([outbound/0]).

-type queued() :: {Messages :: non_neg_integer(), Bytes :: non_neg_integer()}.
-record(outbound, {schedule :: teleport_schedule:schedule(),
                   %% frames that the link has not taken, and what is through with them
                   unsent = [] :: [iodata()],
                   through = none :: none | {Messages :: pos_integer(), Bytes :: non_neg_integer()},
                   %% the link tells when it has room
                   blocked = false :: boolean(),
                   %% others have their turn first
                   paused = false :: boolean(),
                   %% what the senders have counted, and since when, while no message came
                   counted = none :: none | {queued(), SinceMs :: integer()}}).
-opaque outbound() :: #outbound{}.

%% No sender takes so long from counting a message to giving it away, unless it was killed.
-define(DEAD_MS, 4000).

%% @doc Nothing waits. Larger messages are cut into pieces of so many bytes.
-spec new(ChunkBytes :: pos_integer()) -> outbound().
new(ChunkBytes) -> new(ChunkBytes, false).

%% @doc The same. `Batches': the peer takes frames with several small messages.
-spec new(ChunkBytes :: pos_integer(), Batches :: boolean()) -> outbound().
new(ChunkBytes, Batches) -> #outbound{schedule = teleport_schedule:new(ChunkBytes, Batches)}.

%% @doc A message for the queue of its key.
-spec message(Key :: term(), teleport_frame:kind(), teleport_term:parts(), Bytes :: non_neg_integer(), outbound()) -> outbound().
message(Key, Kind, Parts, Bytes, #outbound{schedule = Schedule} = Out) ->
    Out#outbound{schedule = teleport_schedule:in(Key, Kind, Parts, Bytes, Schedule), counted = none}.

%% @doc What to do now. `send': give the frame to the link, then {@link sent/2}. `through': the link has all of so many messages, of so many bytes together.
%% `turn': ask whether it is this lane's turn, then {@link begin_next/1} or {@link paused/1}. `rest': nothing until something comes.
-spec next(outbound()) -> {send, iodata()} | {through, Messages :: pos_integer(), Bytes :: non_neg_integer(), outbound()} | {turn, IsEmpty :: boolean()} | rest.
next(#outbound{blocked = true}) -> rest;
next(#outbound{paused = true}) -> rest;
next(#outbound{unsent = [Frame | _]}) -> {send, Frame};
next(#outbound{through = none, schedule = Schedule}) -> {turn, teleport_schedule:is_empty(Schedule)};
next(#outbound{through = {Messages, Bytes}} = Out) -> {through, Messages, Bytes, Out#outbound{through = none}}.

%% @doc The frames of the next small messages, or piece of a large one: {@link next/1} gives them out.
-spec begin_next(outbound()) -> {[iodata(), ...], outbound()} | empty.
begin_next(#outbound{schedule = Schedule} = Out) ->
    case teleport_schedule:out(Schedule) of
        {Frames, Through, Rest} -> {Frames, Out#outbound{unsent = Frames, through = Through, schedule = Rest}};
        empty -> empty
    end.

%% @doc Whether the link has taken the frame. After `closed' its last word is on its way.
-spec sent(ok | busy | closed, outbound()) -> outbound().
sent(ok, #outbound{unsent = [_ | Frames]} = Out) -> Out#outbound{unsent = Frames};
sent(_, Out) -> Out#outbound{blocked = true}.

%% @doc The link has room again.
-spec writable(outbound()) -> outbound().
writable(Out) -> Out#outbound{blocked = false}.

%% @doc Nothing goes out until {@link resumed/1}.
-spec paused(outbound()) -> outbound().
paused(Out) -> Out#outbound{paused = true}.

%% @doc The pause is over.
-spec resumed(outbound()) -> outbound().
resumed(Out) -> Out#outbound{paused = false}.

%% @doc A look at what the senders have counted now. What is the same after four seconds, and neither here nor on its way,
%% was counted by a sender that was killed: it is to be taken off.
-spec idle(queued(), NowMs :: integer(), outbound()) -> {none | {take_off, queued()}, outbound()}.
idle(Counted, NowMs, #outbound{unsent = [], through = none, schedule = Schedule, counted = Before} = Out) ->
    case {teleport_schedule:is_empty(Schedule), Counted, Before} of
        {false, _, _} -> {none, Out};
        {true, {0, _}, _} -> {none, Out#outbound{counted = none}};
        {true, _, {Counted, SinceMs}} when NowMs - SinceMs >= ?DEAD_MS -> {{take_off, Counted}, Out#outbound{counted = none}};
        {true, _, {Counted, _}} -> {none, Out};
        {true, _, _} -> {none, Out#outbound{counted = {Counted, NowMs}}}
    end;
idle(_, _, Out) ->
    {none, Out}.

%% @doc How many order keys have something that waits.
-spec keys(outbound()) -> non_neg_integer().
keys(#outbound{schedule = Schedule}) -> teleport_schedule:keys(Schedule).
