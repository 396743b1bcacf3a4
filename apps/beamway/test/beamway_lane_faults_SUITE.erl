%% SPDX-License-Identifier: Apache-2.0
%% @doc What a peer of a lane may do wrong, byte for byte: in the agreement, and afterwards on the connection that has become the
%% lane. The node ends that lane and says why; it keeps everything else, and nothing of the lane is left. The test itself is the
%% peer, so this is about lanes over TCP; what stands in shared memory is forged in native/fuzz and native/test. In the last cases the peer
%% is a node that is killed, or stopped and then killed, over both kinds.
-module(beamway_lane_faults_SUITE).

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2, end_per_testcase/2]).
-export([garbage_for_frames/1, half_a_frame/1, frames_above_the_limit/1, frames_that_never_come/1, a_reset/1, garbage_for_an_agreement/1,
         silence_in_the_agreement/1, another_version/1, an_offer_that_leads_nowhere/1, bad_arguments/1, unusable_sockets/1,
         no_driver/1, gone_in_each_state/1]).

-define(WAIT_MS, 60000).
-define(MAGIC, 16#BEA3).
-define(DATA, 1).
-define(TICK, 2).
-define(END, 3).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    case beamway_carrier:all([beamway_tcp]) of
        [] -> [];
        _ -> [garbage_for_frames, half_a_frame, frames_above_the_limit, frames_that_never_come, a_reset, garbage_for_an_agreement,
              silence_in_the_agreement, another_version, an_offer_that_leads_nowhere, bad_arguments, unusable_sockets, no_driver,
              gone_in_each_state]
    end.

%% The node under test has one lane that must outlast each case.
init_per_suite(Config) ->
    [{ok, Peer, _}, {ok, Friend, _}] = [beamway_peer:start(inet_tcp) || _ <- [peer, friend]],
    [{peer, Peer}, {friendship, beamway_lane_end:join(Friend, Peer, #{kinds => [tcp]})} | Config].

end_per_suite(_Config) -> beamway_peer:stop_started().

init_per_testcase(_Case, Config) ->
    OsPid = beamway_peer:os_pid(proplists:get_value(peer, Config)),
    [{at_rest, {length(beamway_peer:fds(OsPid)), length(beamway_peer:maps(OsPid))}} | Config].

end_per_testcase(_Case, Config) ->
    {One, Other} = proplists:get_value(friendship, Config),
    {Fds, Maps} = proplists:get_value(at_rest, Config),
    OsPid = beamway_peer:os_pid(proplists:get_value(peer, Config)),
    try
        ok = beamway_lane_end:do(Other, fun(Lane) -> beamway_lane:credit(Lane, 1, 10) end),
        ok = beamway_lane_end:do(One, fun(Lane) -> beamway_lane:send(Lane, <<"friend">>) end),
        [<<"friend">>] = beamway_lane_end:do(Other, fun(Lane) -> beamway_lane_end:await_data(Lane, 1) end),
        _ = beamway_peer:wait_until(fun() -> length(beamway_peer:fds(OsPid)) =< Fds
                                                 andalso length(beamway_peer:maps(OsPid)) =< Maps end, ?WAIT_MS),
        ok
    catch Class:Reason:Stack -> {fail, {friend_noticed, Class, Reason, Stack}}
    end.

%% --- the peer ------------------------------------------------------------------------------------------

%% An end on the node that waits in its agreement, and our socket to it.
call(Config, Options) ->
    Peer = proplists:get_value(peer, Config),
    {Owner, TcpPort} = beamway_peer:run(Peer, fun() -> beamway_lane_end:listen(Options) end),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, TcpPort, [binary, {active, false}]),
    {#{peer => Peer, owner => Owner}, Socket}.

hello() -> packet(beamway_wire:encode_extension(#{host => <<0:128>>, links => [], takes_tls_over => false})).

packet(Bytes) -> [<<(byte_size(Bytes)):16>>, Bytes].

%% The node's lane with us: nothing is agreed on but TCP.
lane(Config, Options) ->
    {Side, Socket} = call(Config, Options),
    ok = gen_tcp:send(Socket, hello()),
    {ok, <<Size:16>>} = gen_tcp:recv(Socket, 2, ?WAIT_MS),
    {ok, _} = gen_tcp:recv(Socket, Size, ?WAIT_MS),
    {ok, Lane, #{kind := tcp}} = result(Side),
    {Side#{lane => Lane, info => #{}}, Socket}.

result(#{peer := Peer, owner := Owner}) ->
    beamway_peer:run(Peer, fun() -> beamway_lane_end:result(Owner) end).

frame(Kind, Length, Bytes) -> <<Length:32/native, ?MAGIC:16/native, Kind:16/native, Bytes/binary>>.

%% What comes before is delivered, what comes after is not; the reason is told.
ends_with(Config, Options, Bytes, Reason, Close) ->
    {Side, Socket} = lane(Config, Options),
    ok = beamway_lane_end:do(Side, fun(Lane) -> beamway_lane:credit(Lane, 100, 1 bsl 40) end),
    ok = gen_tcp:send(Socket, [frame(?DATA, 8, <<"before..">>), frame(?TICK, 0, <<>>), Bytes]),
    ok = Close(Socket),
    [<<"before..">>, <<>>] = beamway_lane_end:do(Side, fun(Lane) -> beamway_lane_end:await_data(Lane, 2) end),
    {Reason, 0} = beamway_lane_end:await_closed(Side),
    true = beamway_lane_end:is_owner_alive(Side),
    0 = beamway_lane_end:queued(Side),
    _ = gen_tcp:close(Socket),
    ok.

stay(_Socket) -> ok.

%% --- frames --------------------------------------------------------------------------------------------

garbage_for_frames(Config) ->
    [ok = ends_with(Config, #{}, Garbage, beamway_link_corrupt, fun stay/1)
     || Garbage <- [<<0:64>>, <<-1:64>>, <<"GET / HTTP/1.1\r\n\r\n">>, frame(0, 8, <<0:64>>), frame(4, 0, <<>>), frame(?DATA, 0, <<>>),
                    frame(?TICK, 8, <<0:64>>), frame(?END, 1, <<0:64>>), frame(?DATA, 16#80000000, <<>>),
                    <<8:32/native, 0:16, ?DATA:16/native, 0:64>>, binary:copy(<<"noise">>, 100000)]],
    %% After the last word nothing is read.
    ok = ends_with(Config, #{}, [frame(?END, 0, <<>>), binary:copy(<<0>>, 100)], closed, fun stay/1).

%% However much of it has come.
half_a_frame(Config) ->
    [ok = ends_with(Config, #{}, binary:part(frame(?DATA, 1000000, binary:copy(<<1>>, 1000000)), 0, Part), connection_closed,
                    fun gen_tcp:close/1)
     || Part <- [1, 7, 8, 9, 1000, 5000, 70000, 300000, 1000007]].

%% A peer cannot make the node take more than its owner allows; exactly as much is fine.
frames_above_the_limit(Config) ->
    Options = #{max_frame_bytes => 1000},
    [ok = ends_with(Config, Options, frame(?DATA, Length, <<0:80>>), beamway_frame_too_large, fun stay/1)
     || Length <- [1001, 65536, 16#7fffffff]],
    {Side, Socket} = lane(Config, Options),
    ok = gen_tcp:send(Socket, frame(?DATA, 1000, binary:copy(<<7>>, 1000))),
    ok = beamway_lane_end:do(Side, fun(Lane) -> beamway_lane:credit(Lane, 2, 2000) end),
    1000 = beamway_lane_end:do(Side, fun(Lane) -> byte_size(hd(beamway_lane_end:await_data(Lane, 1))) end),
    ok = gen_tcp:close(Socket),
    {connection_closed, 0} = beamway_lane_end:await_closed(Side),
    ok.

%% Two gigabytes are announced and a little comes: what the node holds is what has come.
frames_that_never_come(Config) ->
    Peer = proplists:get_value(peer, Config),
    Before = beamway_peer:resident_bytes(beamway_peer:os_pid(Peer)),
    Lanes = [begin
                 {Side, Socket} = lane(Config, #{}),
                 ok = beamway_lane_end:do(Side, fun(Lane) -> beamway_lane:credit(Lane, 1, 1 bsl 40) end),
                 ok = gen_tcp:send(Socket, frame(?DATA, 16#7fffffff, binary:copy(<<1>>, 100000))),
                 _ = beamway_peer:wait_until(fun() -> beamway_lane_end:do(Side, fun(Lane) ->
                         maps:get(bytes_in, beamway_lane:stats(Lane)) >= 100000 end) end, ?WAIT_MS),
                 {Side, Socket}
             end || _ <- [1, 2]],
    true = beamway_peer:resident_bytes(beamway_peer:os_pid(Peer)) - Before < 64 * 1048576,
    [begin ok = gen_tcp:close(Socket), {connection_closed, 0} = beamway_lane_end:await_closed(Side) end || {Side, Socket} <- Lanes],
    ok.

%% With something unread on both sides, so that both kernels have cause to say so.
a_reset(Config) ->
    {Side, Socket} = lane(Config, #{}),
    ok = gen_tcp:send(Socket, frame(?DATA, 8, <<"unread..">>)),
    ok = beamway_lane_end:do(Side, fun(Lane) -> beamway_lane:send(Lane, binary:copy(<<1>>, 1000)) end),
    ok = inet:setopts(Socket, [{linger, {true, 0}}]),
    ok = gen_tcp:close(Socket),
    ok = beamway_lane_end:do(Side, fun(Lane) -> beamway_lane:credit(Lane, 100, 1000) end),
    {connection_closed, _} = beamway_lane_end:await_closed(Side),
    ok.

%% --- the agreement -------------------------------------------------------------------------------------

garbage_for_an_agreement(Config) ->
    [begin
         {Side, Socket} = call(Config, #{}),
         ok = gen_tcp:send(Socket, Bytes),
         ok = gen_tcp:shutdown(Socket, write),
         {Bytes, {error, Reason}} = {Bytes, result(Side)},
         true = is_binary(Reason),
         ok = gen_tcp:close(Socket)
     end || Bytes <- [<<>>, <<0>>, <<0, 0>>, <<255, 255, "half of it">>, <<0, 5, "hello">>, <<"GET / HTTP/1.1\r\n\r\n">>,
                      <<0, 4, "BWay">>, <<0, 7, "BWay", 1, 9:16>>, <<0, 9, "BWay", 1, 2:16, 0:16>>]].

%% The deadline counts for all of it.
silence_in_the_agreement(Config) ->
    Peer = proplists:get_value(peer, Config),
    [begin
         Deadline = beamway_peer:run(Peer, fun() -> erlang:monotonic_time(millisecond) + 500 end),
         {Side, Socket} = call(Config, #{deadline => Deadline}),
         %% A node that was late itself has hung up by now.
         _ = gen_tcp:send(Socket, Bytes),
         {error, <<"the peer has not answered in time">>} = result(Side),
         ok = gen_tcp:close(Socket)
     end || Bytes <- [<<>>, <<0>>, <<0, 30, "BWay">>, shm_hello(Peer)]].

%% One of this host, that allows shared memory: then the node waits for an offer.
shm_hello(Peer) ->
    packet(beamway_wire:encode_extension(beamway_peer:call(Peer, beamway_links, extension, [tcp]))).

%% Two versions have TCP in common.
another_version(Config) ->
    {Side, Socket} = call(Config, #{}),
    ok = gen_tcp:send(Socket, packet(<<"BWay", 9, 3:16, "new">>)),
    {ok, _Lane, #{kind := tcp, reason := Reason}} = result(Side),
    {_, _} = binary:match(Reason, <<"version 9">>),
    gen_tcp:close(Socket).

%% An offer of shared memory where nobody is: both go on over TCP, and the reason says why.
an_offer_that_leads_nowhere(Config) ->
    Peer = proplists:get_value(peer, Config),
    {Side, Socket} = call(Config, #{}),
    ok = gen_tcp:send(Socket, [shm_hello(Peer), packet(beamway_raw_peer:offer(#{}))]),
    {ok, _Lane, #{kind := tcp, reason := Reason}} = result(Side),
    {_, _} = binary:match(Reason, <<"unix socket">>),
    ok = gen_tcp:close(Socket),
    {Strict, Other} = call(Config, #{kinds => [shm]}),
    ok = gen_tcp:send(Other, [shm_hello(Peer), packet(beamway_raw_peer:offer(#{}))]),
    {error, _} = result(Strict),
    gen_tcp:close(Other).

%% --- the caller ----------------------------------------------------------------------------------------

%% A caller's mistake names the value and what was expected, and leaves the socket alone.
bad_arguments(Config) ->
    Peer = proplists:get_value(peer, Config),
    beamway_peer:run(Peer, fun() ->
        {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
        {ok, TcpPort} = inet:port(Listen),
        Connect = fun(Options) -> {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, TcpPort, Options), Socket end,
        Good = Connect([binary, {active, false}]),
        [begin
             {badarg, {Name, Value, "expected " ++ _}} = raised(fun() -> beamway_lane:agree(Good, caller, #{Name => Value}) end),
             {ok, _} = inet:port(Good)
         end || {Name, Value} <- [{kinds, []}, {kinds, [udp]}, {kinds, shm}, {ring_bytes, 65535}, {ring_bytes, 100000},
                                  {ring_bytes, 1 bsl 31}, {ring_bytes, "65536"}, {max_frame_bytes, 0}, {max_frame_bytes, 1 bsl 31}, {parts, 5}, {parts, {0, 1}}, {parts, {256, 1}}, {parts, {65, 0}},
                                  {deadline, infinity}, {colour, red}]],
        [{badarg, {socket, _, "expected " ++ _}} = raised(fun() -> beamway_lane:agree(Bad, caller, #{}) end)
         || Bad <- [Connect([list, {active, false}]), Connect([binary, {active, true}]),
                    Connect([binary, {active, false}, {packet, 4}]), self()]],
        function_clause = raised(fun() -> beamway_lane:agree(Good, both, #{}) end),
        ok = gen_tcp:close(Listen)
    end),
    {One, _} = proplists:get_value(friendship, Config),
    beamway_lane_end:do(One, fun(Lane) ->
        [{badarg, {no_frame, Bad, "expected " ++ _}} = raised(fun() -> beamway_lane:Send(Lane, Bad) end)
         || Send <- [send, send_wait], Bad <- [[atom], lists:duplicate(2200, binary:copy(<<0>>, 1000000))]],
        [function_clause = raised(fun() -> beamway_lane:credit(Lane, Frames, Bytes) end)
         || {Frames, Bytes} <- [{-1, 0}, {0, -1}, {1.0, 0}, {infinity, 0}]],
        ok
    end).

raised(Use) -> try Use(), nothing catch error:Reason -> Reason end.

%% Everything else is an error that the caller can go on from.
unusable_sockets(Config) ->
    Peer = proplists:get_value(peer, Config),
    beamway_peer:run(Peer, fun() ->
        {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
        {ok, TcpPort} = inet:port(Listen),
        {ok, Closed} = gen_tcp:connect({127, 0, 0, 1}, TcpPort, [binary, {active, false}]),
        ok = gen_tcp:close(Closed),
        {error, Reason} = beamway_lane:agree(Closed, caller, #{}),
        true = is_binary(Reason),
        ok = gen_tcp:close(Listen)
    end).

%% A node without the driver file has no lanes, and says what to do.
no_driver(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "beamway-without"),
    Ebin = filename:join(Folder, "ebin"),
    ok = filelib:ensure_dir(filename:join(Ebin, "x")),
    [{ok, _} = file:copy(File, filename:join(Ebin, filename:basename(File)))
     || File <- filelib:wildcard(filename:join(beamway_peer:ebin(), "*.{beam,app}"))],
    {ok, Peer, _} = beamway_peer:start(inet_tcp, #{ebin => Ebin}),
    {error, Reason} = beamway_peer:run(Peer, fun() ->
        {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
        {ok, TcpPort} = inet:port(Listen),
        {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, TcpPort, [binary, {active, false}]),
        beamway_lane:agree(Socket, caller, #{})
    end),
    {_, _} = binary:match(Reason, <<"make build">>),
    ok.

%% --- the peer's node -----------------------------------------------------------------------------------

%% Killed, or stopped for a while and then killed, with a lane in each state: a stopped peer is waited for, up to a limit where one was given;
%% one that is gone is told of at once, and what it had sent in part is not delivered.
gone_in_each_state(Config) ->
    [ok = gone(How, Kind, proplists:get_value(peer, Config)) || Kind <- [shm, tcp], How <- [killed, stopped]],
    ok.

gone(How, Kind, Peer) ->
    {ok, Victim, _} = beamway_peer:start(inet_tcp),
    Agreeing = agreeing(How, Kind, Peer, Victim),
    [Idle, Half, Full, Closing] = Lanes =
        [beamway_lane_end:join(Peer, Victim, #{kinds => [Kind], ring_bytes => 65536}) || _ <- [idle, half_a_frame, full, closing]],
    Ours = [One || {One, _} <- Lanes],
    %% More than rings and TCP's buffers take, to a side that has no credit for it.
    ok = beamway_lane_end:do(element(2, Half), fun(Lane) -> beamway_lane:send(Lane, binary:copy(<<1>>, 30000000)) end),
    [ok = beamway_lane_end:do(One, fun fill/1) || {One, _} <- [Full, Closing]],
    ok = strike(How, Victim),
    _ = [beamway_lane_end:do(One, fun(Lane) -> beamway_lane:credit(Lane, 1, 1) end) || One <- Ours],
    ok = beamway_lane_end:do(element(1, Closing), fun beamway_lane:close/1),
    ok = not_agreed(How, Agreeing),
    How =:= stopped andalso still_there(Victim, [element(1, Lane) || Lane <- [Idle, Half, Full]], element(1, Half)),
    [{Idle1, 0}, {Half1, 0}, {Full1, _}, {Closing1, _}] = Ends = [beamway_lane_end:await_closed(One) || One <- Ours],
    [connection_closed] = lists:usort([Idle1, Half1, Full1]),
    true = Closing1 =:= local_close orelse How =:= killed andalso Closing1 =:= connection_closed,
    [true = Unreleased > 0 || {_, Unreleased} <- lists:nthtail(2, Ends)],
    [0 = beamway_lane_end:queued(One) || One <- Ours],
    [true = beamway_lane_end:is_owner_alive(One) || One <- Ours],
    ok.

strike(killed, Victim) -> beamway_peer:kill9(Victim);
strike(stopped, Victim) -> beamway_peer:sigstop(Victim).

%% As long as the peer is only stopped; the large frame is begun then.
still_there(Victim, Ours, Half) ->
    _ = beamway_peer:wait_until(fun() -> frames_in(Half) =:= 1 end, ?WAIT_MS),
    [true = is_integer(frames_in(One)) || One <- Ours],
    [0 = beamway_lane_end:queued(One) || One <- Ours],
    beamway_peer:kill9(Victim).

frames_in(Side) -> beamway_lane_end:do(Side, fun(Lane) -> maps:get(frames_in, beamway_lane:stats(Lane)) end).

fill(Lane) ->
    case beamway_lane:send(Lane, binary:copy(<<1>>, 60000)) of
        ok -> fill(Lane);
        busy -> ok
    end.

%% The victim has a socket with us and says nothing.
agreeing(How, Kind, Peer, Victim) ->
    Limit = case How of killed -> 100000; stopped -> 500 end,
    TcpPort = beamway_peer:run(Victim, fun mute/0),
    Owner = beamway_peer:run(Peer, fun() ->
        beamway_lane_end:connect(TcpPort, #{kinds => [Kind], deadline => erlang:monotonic_time(millisecond) + Limit * beamway_runner:slowness()})
    end),
    ok = beamway_peer:run(Victim, fun() -> mute ! {accepted, self()}, receive accepted -> ok after ?WAIT_MS -> not_called end end),
    #{peer => Peer, owner => Owner}.

not_agreed(How, Agreeing) ->
    {error, Reason} = result(Agreeing),
    true = lists:member(Reason, case How of
                                    killed -> [<<"the peer has closed the connection">>, <<"econnreset">>];
                                    stopped -> [<<"the peer has not answered in time">>]
                                end),
    ok.

%% Listens and never agrees.
mute() ->
    Self = self(),
    Pid = spawn(fun() ->
        {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]),
        {ok, TcpPort} = inet:port(Listen),
        Self ! {self(), TcpPort},
        {ok, _Socket} = gen_tcp:accept(Listen, ?WAIT_MS),
        receive {accepted, From} -> From ! accepted end,
        receive never -> ok end
    end),
    true = register(mute, Pid),
    receive {Pid, TcpPort} -> TcpPort after ?WAIT_MS -> error(no_listener) end.
