%% SPDX-License-Identifier: Apache-2.0
%% Tests the keeper of a real port over a TCP connection. The tests check when the keeper sleeps, because each link has a keeper and every needless
%% wake-up costs time, and what happens to the connection that accompanies a ring.
-module(beamway_keeper_tests).

-include_lib("eunit/include/eunit.hrl").

-define(LONG_MS, 1200). % longer than the keeper waits before it hibernates

rarely_woken_it_sleeps_at_once_test_() ->
    {timeout, 30, fun() -> with_port(fun(Port, Socket, _Peer) -> rarely_woken(started(Port, Socket)) end) end}.

rarely_woken(Keeper) ->
    ok = sleeps_within(Keeper, 5000),
    timer:sleep(?LONG_MS),
    ok = flushed(Keeper),
    ok = sleeps_within(Keeper, 500),
    %% The keeper stays awake while the port is used.
    ok = flushed(Keeper),
    ?assertNot(is_asleep(Keeper)),
    ok = sleeps_within(Keeper, 5000),
    stopped(Keeper).

%% The keeper still answers while it polls.
other_messages_are_not_kept_waiting_test_() ->
    {timeout, 30, fun() -> with_port(fun(Port, Socket, Peer) -> asked_while_it_polls(started(Port, Socket, 100000), Peer) end) end}.

asked_while_it_polls(Keeper, Peer) ->
    [begin
         ok = gen_tcp:send(Peer, <<0:32>>),
         Keeper ! {number, {self(), Number}},
         ?assertEqual({error, no_session}, receive {Number, Reply} -> Reply after 5000 -> nothing end)
     end || Number <- lists:seq(1, 100)],
    stopped(Keeper).

%% Another attempt was faster, so a late one must not touch the current connection.
a_late_attempt_leaves_the_stream_alone_test_() ->
    {timeout, 30, fun() -> with_port(fun(Port, _Socket, _Peer) -> with_pair(fun(Stream, Peer) -> late_attempt(started({ring, Port}, Stream), Peer) end) end) end}.

late_attempt(Keeper, Peer) ->
    Keeper ! {session, #{}},
    Keeper ! {detach, {self(), late}, 0, resume},
    ?assertEqual({error, superseded}, receive {late, Reply} -> Reply after 5000 -> nothing end),
    ?assertEqual({error, timeout}, gen_tcp:recv(Peer, 0, 100)),
    stopped(Keeper),
    ?assertEqual({error, closed}, gen_tcp:recv(Peer, 0, 5000)).

started(Link, Stream) -> started(Link, Stream, 0).

started(Link, Stream, PollUs) ->
    ok = beamway_keeper:start(Link, Stream, PollUs),
    beamway_keeper:of_this().

stopped(Keeper) ->
    unlink(Keeper),
    exit(Keeper, kill).

%% Waits until the keeper has run.
flushed(Keeper) ->
    {reductions, Before} = process_info(Keeper, reductions),
    Keeper ! flush,
    flushed(Keeper, Before, 5000).

flushed(_Keeper, _Before, Ms) when Ms =< 0 -> no_turn;
flushed(Keeper, Before, Ms) ->
    case process_info(Keeper, reductions) of
        {reductions, Before} -> timer:sleep(1), flushed(Keeper, Before, Ms - 1);
        {reductions, _} -> ok
    end.

with_pair(Test) ->
    {ok, Listener} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
    {ok, Number} = inet:port(Listener),
    {ok, Peer} = gen_tcp:connect({127, 0, 0, 1}, Number, [binary, {active, false}]),
    {ok, Socket} = gen_tcp:accept(Listener, 5000),
    try Test(Socket, Peer)
    after lists:foreach(fun gen_tcp:close/1, [Socket, Peer, Listener])
    end.

with_port(Test) ->
    ok = beamway_port:load(),
    with_pair(fun(Socket, Peer) ->
                      {ok, Fd} = prim_inet:getfd(Socket),
                      {ok, Port, _} = beamway_establish:connect(tcp, <<Fd:32>>, <<0:128>>, 65536, 5000),
                      try
                          ok = beamway_port:packets(Port, <<>>),
                          Test(Port, Socket, Peer)
                      after
                          beamway_port:close(Port)
                      end
              end).

is_asleep(Keeper) ->
    process_info(Keeper, current_function) =:= {current_function, {erlang, hibernate, 3}}.

sleeps_within(_Keeper, Ms) when Ms =< 0 -> not_in_time;
sleeps_within(Keeper, Ms) ->
    case is_asleep(Keeper) of
        true -> ok;
        false -> timer:sleep(20), sleeps_within(Keeper, Ms - 20)
    end.
