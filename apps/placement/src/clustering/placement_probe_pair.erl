%% SPDX-License-Identifier: Apache-2.0
%% @doc The part of the measurement that runs on the nodes themselves: one process sends, and one on the other node
%% replies.
%%
%% The module depends only on OTP and on no other module of this application, because {@link placement_probe} loads it
%% into nodes that do not have it. Each process exits when the other one does, or after a minute of silence.
-module(placement_probe_pair).

-export([run/5, echo/1]).

-define(SILENT_MS, 60000).
-define(GATE_MS, 20000).

%% @doc Measures batches of round trips between this node and another. Returns for each batch the mean time of one round
%% trip in microseconds. A first batch, which also opens the connection, is not counted. If there is a gate, the process
%% reports after that batch that it is ready and then waits, so that many pairs begin together; otherwise the first ones
%% would measure a network without load. Raises `{probe, Reason}' if the node cannot be reached, or if the first batch,
%% or all others together, take longer than the limit.
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

%% A suspended node accepts the request but does not answer.
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

%% The limit applies to each round trip and is reduced for the next batch, so the total time stays bounded.
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
echo(Partner) ->
    answer(Partner, monitor(process, Partner)).

answer(Partner, Monitor) ->
    receive
        {Partner, Count} -> Partner ! {self(), Count}, answer(Partner, Monitor);
        stop -> ok;
        {'DOWN', Monitor, process, Partner, _} -> ok
    after ?SILENT_MS -> ok
    end.
