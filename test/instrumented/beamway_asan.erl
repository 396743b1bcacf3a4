%% SPDX-License-Identifier: Apache-2.0
%% @doc Exercises everything that a driver does during its lifetime, on two nodes. `scripts/test-asan' runs this with drivers that contain a
%% deliberate fault, and then checks that the sanitizer has found it.
-module(beamway_asan).

-export([live/1]).

-define(BYTES, 1000000).
-define(MESSAGES, 20). %% more than one, because old memory may still contain a leaked address

%% @doc Starts two nodes with the driver next to this `ebin'. The nodes connect, send messages that arrive in fragments, disconnect and exit.
%% A deliberate fault makes them exit earlier, but that is for the caller to judge.
-spec live(file:filename()) -> ok.
live(Ebin) ->
    Options = #{ebin => Ebin},
    try {beamway_peer:start(beamway_shm, Options), beamway_peer:start(beamway_shm, Options)} of
        {{ok, PeerA, NodeA}, {ok, PeerB, NodeB}} -> talk(PeerA, NodeA, PeerB, NodeB)
    catch
        Class:Reason -> io:format("~0tP~n", [{Class, Reason}, 20])
    end,
    beamway_peer:stop_started().

talk(PeerA, NodeA, PeerB, NodeB) ->
    try
        ok = beamway_peer:connect_both(beamway_shm, PeerA, PeerB),
        [?BYTES = beamway_peer:call(PeerA, erpc, call, [NodeB, erlang, byte_size, [binary:copy(<<"x">>, ?BYTES)]])
         || _ <- lists:seq(1, ?MESSAGES)],
        true = beamway_peer:call(PeerA, net_kernel, disconnect, [NodeB]),
        ok = beamway_peer:wait_disconnected(PeerB, NodeA)
    catch
        Class:Reason -> io:format("~0tP~n", [{Class, Reason}, 20])
    end.
