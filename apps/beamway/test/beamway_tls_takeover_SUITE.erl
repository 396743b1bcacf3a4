%% SPDX-License-Identifier: Apache-2.0
%% @doc The driver takes over a connection from ssl ({@link beamway_tls_takeover}) while a relay on the path delays, merges, cuts or changes the
%% data. Both ends are processes on the same node; the relay runs on another.
-module(beamway_tls_takeover_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([both_take_over/1, however_bytes_arrive/1, another_conversation_is_refused/1, a_cut_ends_both/1, silence_ends_both/1, garbage_ends_both/1,
         ktls_in_the_options/1]).

-define(MS, 20000).
-define(SILENCE_MS, 700).
-define(CUT_MS, 2000). % ssl may have seen the cut before it was told to close, and then reports nothing

suite() -> [{timetrap, {minutes, 3}}].

all() ->
    [both_take_over, however_bytes_arrive, another_conversation_is_refused, a_cut_ends_both, silence_ends_both, garbage_ends_both,
     ktls_in_the_options].

init_per_suite(Config) ->
    ok = beamway_certificates:prepare(proplists:get_value(priv_dir, Config)),
    Config.

end_per_suite(_Config) -> ok.

end_per_testcase(_Case, _Config) ->
    beamway_peer:stop_started().

both_take_over(_Config) ->
    Peer = node_of_tls(),
    [{{taken, Cipher}, {taken, Cipher}, _} = meet(Peer, #{versions => Versions}) || Versions <- [['tlsv1.2'], ['tlsv1.3'], ['tlsv1.3', 'tlsv1.2']]].

%% ssl may have read beyond the end of its own part, however the bytes were merged on arrival.
however_bytes_arrive(_Config) ->
    Peer = node_of_tls(),
    [{{taken, _}, {taken, _}, _} = meet(Peer, #{pass => How})
     || How <- [{gather, 1}, {gather, 3}, {gather, 20}, {gather, 150}, each_byte], _ <- [1, 2, 3]].

%% Both sides have the same secrets but have exchanged different data before, as if an attacker had joined two connections.
another_conversation_is_refused(_Config) ->
    {shutdown, shutdown, _} = meet(node_of_tls(), #{said => [<<"one">>, <<"other">>], ms => ?SILENCE_MS}).

a_cut_ends_both(_Config) ->
    Peer = node_of_tls(),
    [ends(meet(Peer, #{pass => {cut, From, Bytes}, ms => ?CUT_MS}), Bytes) || {From, Bytes} <- steps(Peer, 12)].

silence_ends_both(_Config) -> each_step_ends_both(stall).

garbage_ends_both(_Config) -> each_step_ends_both(garbage).

%% All run in parallel, because each waits for its full timeout.
each_step_ends_both(What) ->
    Peer = node_of_tls(),
    Meetings = [beamway_peer:async(fun() -> ends(meet(Peer, #{pass => {What, From, Bytes}, ms => ?SILENCE_MS}), Bytes) end) || {From, Bytes} <- steps(Peer, 5)],
    [true = beamway_peer:await(Meeting) || Meeting <- Meetings].

%% With ktls ssl would give up the socket and wait for OTP's own carrier; OTP 25 does not know the option.
ktls_in_the_options(_Config) ->
    File = beamway_certificates:optfile("ktls", good, fun(#{certificate := Certificate, key := Key, authorities := Authorities}) ->
                                                              Options = [{certfile, Certificate}, {keyfile, Key}, {cacertfile, Authorities}, {ktls, true}],
                                                              [{server, Options}, {client, Options}]
                                                      end),
    Flags = ["-proto_dist", "beamway_tls", "-ssl_dist_optfile", File],
    {ok, One, _} = beamway_peer:start(beamway_tls, #{flags => Flags}),
    {ok, Other, _} = beamway_peer:start(beamway_tls, #{flags => Flags}),
    ok = beamway_peer:connect_both(beamway_tls, One, Other).

node_of_tls() ->
    {ok, Peer, _} = beamway_peer:start(beamway_tls),
    Peer.

%% A side may have finished before the cut; if no byte has passed, neither side has finished.
ends({Caller, Accepter, _}, Bytes) ->
    [true = Ended =:= shutdown orelse (Bytes > 0 andalso element(1, Ended) =:= taken) || Ended <- [Caller, Accepter]],
    true = lists:member(shutdown, [Caller, Accepter]).

%% Returns the numbers of bytes from one side after which the connection is cut; once all bytes have passed, the takeover is complete.
steps(Peer, Steps) ->
    {{taken, _}, {taken, _}, Passed} = meet(Peer, #{}),
    [{From, Most * Step div Steps} || {From, Most} <- maps:to_list(Passed), Step <- lists:seq(0, Steps - 2)].

%% ---- functions that run on the node ----

%% Returns how both sides exited, and how many bytes each has sent in the takeover.
meet(Peer, How) ->
    beamway_peer:run(Peer, fun() -> meet(How) end).

meet(How) ->
    [SaidByCaller, SaidByAccepter] = maps:get(said, How, [<<"said">>, <<"said">>]),
    Ms = maps:get(ms, How, ?MS),
    Versions = maps:get(versions, How, ['tlsv1.3']),
    {ok, _} = application:ensure_all_started(ssl),
    {ok, Listen} = ssl:listen(0, [{ip, {127, 0, 0, 1}}, {versions, Versions} | options(server)]),
    {ok, {_, Port}} = ssl:sockname(Listen),
    {Way, WayPort} = way(Port, maps:get(pass, How, all)),
    Test = self(),
    {_, Accepter} = spawn_monitor(fun() ->
                                          {ok, Tcp} = ssl:transport_accept(Listen, ?MS),
                                          {ok, Tls} = ssl:handshake(Tcp, ?MS),
                                          take_over(accepting, Tls, SaidByAccepter, Ms, Test)
                                  end),
    {_, Caller} = spawn_monitor(fun() ->
                                        {ok, Tls} = ssl:connect({127, 0, 0, 1}, WayPort, [{versions, Versions} | options(client)], ?MS),
                                        take_over(connecting, Tls, SaidByCaller, Ms, Test)
                                end),
    Both = [receive {ready, Process} -> Process end || _ <- [1, 2]],
    Way ! {begins, self()},
    receive {Way, begun} -> ok end,
    [Process ! go || Process <- Both],
    Ended = [receive {taken, Side, Cipher} -> {taken, Cipher};
                     {'DOWN', Ref, process, _, Reason} -> Reason
             end || {Ref, Side} <- [{Caller, connecting}, {Accepter, accepting}]],
    Way ! {ends, self()},
    Passed = receive {Way, Bytes} -> Bytes end,
    [exit(Process, kill) || Process <- Both],
    ok = ssl:close(Listen),
    list_to_tuple(Ended ++ [Passed]).

options(Role) ->
    {ok, Options} = beamway_tls_options:read(Role),
    [binary, {active, false}, {packet, 4}, {nodelay, true} | Options].

%% A connection that is taken over stays open until the test has seen both ends.
take_over(Role, Tls, Said, Ms, Test) ->
    Test ! {ready, self()},
    receive go -> ok end,
    {ok, _Socket, _Port, Cipher, _Secret} = beamway_tls_takeover:run(Role, Tls, Said, Ms),
    Test ! {taken, Role, Cipher},
    receive after infinity -> ok end.

%% ---- on the way ----

way(Port, How) ->
    Test = self(),
    Way = spawn_link(fun() ->
                             {ok, Listen} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, binary, {active, false}, {nodelay, true}]),
                             {ok, WayPort} = inet:port(Listen),
                             Test ! {self(), WayPort},
                             {ok, Caller} = gen_tcp:accept(Listen, ?MS),
                             {ok, Accepter} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, true}, {nodelay, true}]),
                             ok = inet:setopts(Caller, [{active, true}]),
                             pass(#{caller => Caller, accepter => Accepter, how => all, later => How, held => [], passed => #{caller => 0, accepter => 0}})
                     end),
    receive {Way, WayPort} -> {Way, WayPort} end.

pass(#{caller := Caller, accepter := Accepter} = State) ->
    receive
        {tcp, Caller, Bytes} -> pass(from(caller, Accepter, Bytes, State));
        {tcp, Accepter, Bytes} -> pass(from(accepter, Caller, Bytes, State));
        {tcp_closed, _} -> pass(State);
        {begins, Test} ->
            Test ! {self(), begun},
            pass(State#{how := maps:get(later, State), passed := #{caller => 0, accepter => 0}});
        {ends, Test} -> Test ! {self(), maps:get(passed, State)};
        let_go ->
            [gen_tcp:send(To, Bytes) || {To, Bytes} <- lists:reverse(maps:get(held, State))],
            pass(State#{held := []})
    end.

from(From, To, Bytes, #{how := How, held := Held, passed := Passed} = State) ->
    Before = maps:get(From, Passed),
    Counted = State#{passed := Passed#{From := Before + byte_size(Bytes)}},
    case How of
        all ->
            _ = gen_tcp:send(To, Bytes),
            Counted;
        nothing ->
            State;
        {gather, Ms} ->
            _ = Held =:= [] andalso erlang:send_after(Ms, self(), let_go),
            Counted#{held := gathered(To, Bytes, Held)};
        each_byte ->
            [gen_tcp:send(To, <<Byte>>) || <<Byte>> <= Bytes],
            Counted;
        {What, From, Most} when Before + byte_size(Bytes) >= Most ->
            _ = gen_tcp:send(To, binary:part(Bytes, 0, Most - Before)),
            stop(What, To, Counted);
        {_What, _From, _Most} ->
            _ = gen_tcp:send(To, Bytes),
            Counted
    end.

gathered(To, Bytes, Held) ->
    case lists:keytake(To, 1, Held) of
        {value, {To, Before}, Others} -> [{To, <<Before/binary, Bytes/binary>>} | Others];
        false -> [{To, Bytes} | Held]
    end.

stop(cut, _To, #{caller := Caller, accepter := Accepter} = State) ->
    ok = gen_tcp:close(Caller),
    ok = gen_tcp:close(Accepter),
    State#{how := nothing};
stop(stall, _To, State) ->
    State#{how := nothing};
stop(garbage, To, State) ->
    _ = gen_tcp:send(To, <<"GET / HTTP/1.1\r\n\r\n">>),
    State#{how := nothing}.
