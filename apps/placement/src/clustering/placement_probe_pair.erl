%% SPDX-License-Identifier: Apache-2.0
%% @doc The part of the measurement that runs on the measured nodes: one process sends messages, and a process on the other
%% node replies.
%%
%% The module depends only on OTP, not on other modules of this application, because {@link placement_probe} loads it into
%% nodes that do not have it. Each process exits when the other one does, or after a minute without a message.
-module(placement_probe_pair).

-export([run/5, echo/1]).

-define(SILENT_MS, 60000).
-define(GATE_MS, 20000).

%% @doc Measures batches of round trips between this node and another. Returns the mean round-trip time of each batch in
%% microseconds. The first batch, during which the nodes connect, does not count. If there is a gate, the process reports after
%% that batch that it is ready and waits, so that all pairs begin at the same time; otherwise the first pairs would measure a
%% network without load. Raises `{probe, Reason}' if the node cannot be reached, or if a round trip takes longer than the
%% remaining time. The time limit applies once to the first batch and once to all the others together.
-spec run(node(), Batches :: pos_integer(), Messages :: pos_integer(), LimitMs :: pos_integer(), Gate :: none | {Keeper :: reference(), term()}) -> [float(), ...].
run(Node, Batches, Messages, LimitMs, Gate) ->
    {Echo, Monitor} = started(Node, LimitMs),
    try
        _ = batch(Echo, Monitor, Messages, erlang:monotonic_time(millisecond) + LimitMs),
        ok = wait(Gate),
        End = erlang:monotonic_time(millisecond) + LimitMs,
        [batch(Echo, Monitor, Messages, End) || _ <- lists:seq(1, Batches)]
    after
        true = demonitor(Monitor, [flush]),
        Echo ! stop
    end.

%% Uses a time limit, because a suspended node accepts the request but does not answer.
started(Node, LimitMs) ->
    Request = spawn_request(Node, ?MODULE, echo, [self()], [monitor]),
    receive
        {spawn_reply, Request, ok, Echo} -> {Echo, Request};
        {spawn_reply, Request, error, Reason} -> exit({probe, Reason})
    after LimitMs ->
        _ = spawn_request_abandon(Request),
        exit({probe, timeout})
    end.

wait(none) -> ok;
wait({Keeper, Gate}) ->
    Keeper ! {Gate, self()},
    receive
        {Gate, go} -> ok
    after ?GATE_MS -> ok
    end.

batch(Echo, Monitor, Messages, End) ->
    Left = max(0, End - erlang:monotonic_time(millisecond)),
    Start = erlang:monotonic_time(),
    ok = round_trips(Messages, Echo, Monitor, Left),
    erlang:convert_time_unit(erlang:monotonic_time() - Start, native, nanosecond) / 1000 / Messages.

%% The remaining time limits each round trip and gets shorter from batch to batch, so the total time is bounded.
round_trips(0, _, _, _) -> ok;
round_trips(Count, Echo, Monitor, Left) ->
    Echo ! {self(), Count},
    receive
        {Echo, Count} -> round_trips(Count - 1, Echo, Monitor, Left);
        {'DOWN', Monitor, process, Echo, Reason} -> exit({probe, Reason})
    after Left -> exit({probe, timeout})
    end.

%% @doc Replies to each message until its partner exits.
-spec echo(pid()) -> ok.
echo(Partner) -> answer(Partner, monitor(process, Partner)).

answer(Partner, Monitor) ->
    receive
        {Partner, Count} -> Partner ! {self(), Count}, answer(Partner, Monitor);
        stop -> ok;
        {'DOWN', Monitor, process, Partner, _} -> ok
    after ?SILENT_MS -> ok
    end.
