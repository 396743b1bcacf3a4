%% SPDX-License-Identifier: Apache-2.0
%% When the flusher of a real port over a TCP connection sleeps: one process for each link, so each turn that it takes for nothing counts.
-module(beamway_flusher_tests).

-include_lib("eunit/include/eunit.hrl").

-define(LONG_MS, 1200). % longer than the flusher waits awake

rarely_woken_it_sleeps_at_once_test_() ->
    {timeout, 30, fun() -> with_flusher(fun rarely_woken/1) end}.

rarely_woken(Flusher) ->
    ok = sleeps_within(Flusher, 5000),
    timer:sleep(?LONG_MS),
    ok = flushed(Flusher),
    ok = sleeps_within(Flusher, 500),
    %% in use it stays awake
    ok = flushed(Flusher),
    ?assertNot(is_asleep(Flusher)),
    ok = sleeps_within(Flusher, 5000).

%% Until it has had its turn.
flushed(Flusher) ->
    {reductions, Before} = process_info(Flusher, reductions),
    Flusher ! flush,
    flushed(Flusher, Before, 5000).

flushed(_Flusher, _Before, Ms) when Ms =< 0 -> no_turn;
flushed(Flusher, Before, Ms) ->
    case process_info(Flusher, reductions) of
        {reductions, Before} -> timer:sleep(1), flushed(Flusher, Before, Ms - 1);
        {reductions, _} -> ok
    end.

with_flusher(Test) ->
    ok = beamway_port:load(),
    {ok, Listener} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
    {ok, Number} = inet:port(Listener),
    {ok, Peer} = gen_tcp:connect({127, 0, 0, 1}, Number, [binary, {active, false}]),
    {ok, Socket} = gen_tcp:accept(Listener, 5000),
    {ok, Fd} = prim_inet:getfd(Socket),
    {ok, Port, _} = beamway_establish:connect(tcp, <<Fd:32>>, <<0:128>>, 65536, 5000),
    try
        ok = beamway_port:packets(Port, <<>>),
        {ok, Flusher} = beamway_flusher:start(Port),
        Test(Flusher),
        unlink(Flusher),
        exit(Flusher, kill)
    after
        beamway_port:close(Port),
        lists:foreach(fun gen_tcp:close/1, [Socket, Peer, Listener])
    end.

is_asleep(Flusher) ->
    process_info(Flusher, current_function) =:= {current_function, {erlang, hibernate, 3}}.

sleeps_within(_Flusher, Ms) when Ms =< 0 -> not_in_time;
sleeps_within(Flusher, Ms) ->
    case is_asleep(Flusher) of
        true -> ok;
        false -> timer:sleep(20), sleeps_within(Flusher, Ms - 20)
    end.
