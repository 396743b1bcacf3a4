%% SPDX-License-Identifier: Apache-2.0
%% @doc Lanes between two nodes whose distribution is stock TCP; the same cases over each kind of link.
%%
%% `rdma' needs a device and must be asked for, as everywhere: `BEAMWAY_TEST_CARRIERS=beamway_rdma'.
-module(beamway_lane_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([frames_of_all_sizes/1, small_frames_in_order/1, both_ways_at_once/1, credit_bounds_the_mailbox/1, a_debt_is_paid/1,
         many_senders/1, writable_for_whoever_asks/1, stopped_peer/1, peer_killed/1, owner_killed/1, closed_in_order/1,
         closed_by_both/1, closed_to_a_stuck_peer/1, what_was_delivered/1, given_away/1, after_the_end/1, nothing_is_left/1,
         ring_limit/1]).

-import(beamway_lane_end, [join/3, do/2, await_data/2, await_closed/1, queued/1]).

-define(MANY, 1 bsl 40).
-define(WAIT_MS, 60000).
-define(KINDS, [shm, tcp, rdma]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [{group, Kind} || Kind <- ?KINDS, is_wanted(Kind)].

is_wanted(rdma) -> beamway_carrier:all([beamway_rdma]) =/= [];
is_wanted(_) -> beamway_carrier:all([beamway_shm, beamway_tcp]) =/= [].

groups() -> [{Kind, [], cases(Kind)} || Kind <- ?KINDS].

%% The limit of rdma is tested with the distribution.
cases(rdma) -> cases();
cases(_) -> cases() ++ [ring_limit].

cases() ->
    [frames_of_all_sizes, small_frames_in_order, both_ways_at_once, credit_bounds_the_mailbox, a_debt_is_paid, many_senders,
     writable_for_whoever_asks, stopped_peer, peer_killed, owner_killed, closed_in_order, closed_by_both,
     closed_to_a_stuck_peer, what_was_delivered, given_away, after_the_end, nothing_is_left].

init_per_group(Kind, Config) -> [{kind, Kind} | Config].

end_per_group(_Kind, _Config) -> ok.

init_per_testcase(ring_limit, Config) -> Config;
init_per_testcase(_Case, Config) ->
    start_pair(Config, []).

start_pair(Config, Environment) ->
    Rdma = [{"BEAMWAY_RDMA", "true"} || kind(Config) =:= rdma],
    Started = [beamway_peer:start(inet_tcp, #{env => Rdma ++ Environment}) || _ <- [one, other]],
    [{peers, list_to_tuple([Peer || {ok, Peer, _} <- Started])} | Config].

end_per_testcase(_Case, _Config) -> beamway_peer:stop_started().

kind(Config) -> proplists:get_value(kind, Config).

%% The smallest ring, so that frames stream through it, and that the kernel's own buffers are not all there is.
lane(Config) -> lane(Config, 65536).

lane(Config, RingBytes) ->
    {PeerA, PeerB} = proplists:get_value(peers, Config),
    Kind = kind(Config),
    {#{info := #{kind := Kind}}, #{info := #{kind := Kind}}} = join(PeerA, PeerB, #{kinds => [Kind], ring_bytes => RingBytes}).

grant(Side, Frames, Bytes) -> ok = do(Side, fun(Lane) -> beamway_lane:credit(Lane, Frames, Bytes) end).

grant_all(Side) -> grant(Side, ?MANY, ?MANY).

%% --- frames --------------------------------------------------------------------------------------------

%% Each arrives as it was sent. The largest is above all rings, and in one piece.
frames_of_all_sizes(Config) ->
    Largest = case beamway_runner:slowness() of 1 -> [67108865, 268435456]; _ -> [67108865] end,
    Sizes = [0, 1, 2, 7, 8, 9, 63, 64, 65, 255, 256, 4095, 4096, 4097, 0, 65519, 65520, 65521, 65528, 65535, 65536, 65537,
             131072, 262143, 262144, 262145, 0, 1048576, 16777216, 3 | Largest] ++ [0, 1],
    {One, Other} = lane(Config),
    ok = grant_all(Other),
    Sent = do(One, fun(Lane) ->
                           [begin Frame = contents(Size), ok = beamway_lane:send_wait(Lane, Frame), sum(Frame) end || Size <- Sizes]
                   end),
    Got = do(Other, fun(Lane) -> [sum(Frame) || _ <- Sizes, Frame <- await_data(Lane, 1)] end, 60000),
    Sent = Got,
    Untold = untold(Config),
    #{queue_bytes := 0, frames_out := Frames} =
        do(One, fun(Lane) -> settled(Lane, Untold), beamway_lane:stats(Lane) end),
    Frames = length(Sizes).

do(Side, Use, Ms) -> beamway_lane_end:do(Side, Use, Ms * beamway_runner:slowness()).

%% Every 8 bytes differ from the next.
contents(Size) when Size < 1024 -> << <<(N band 255)>> || N <- lists:seq(1, Size) >>;
contents(Size) ->
    Block = << <<(N * 7919):64>> || N <- lists:seq(1, 8192) >>,
    binary:part(binary:copy(Block, Size div byte_size(Block) + 1), 0, Size).

sum(Frame) -> {byte_size(Frame), erlang:crc32(Frame)}.

%% The peer has taken everything; of tcp that its kernel has; over rdma it need not say so of the last quarter of a ring.
settled(Lane, Untold) ->
    beamway_peer:wait_until(fun() -> maps:get(unreleased_bytes, beamway_lane:stats(Lane)) =< Untold end, ?WAIT_MS).

untold(Config) ->
    case kind(Config) of
        rdma -> 65536 div 4;
        _ -> 0
    end.

small_frames_in_order(Config) ->
    {One, Other} = lane(Config),
    ok = grant_all(Other),
    Count = 100000,
    ok = do(One, fun(Lane) ->
                         lists:foreach(fun(N) -> ok = beamway_lane:send_wait(Lane, numbered(N)) end, lists:seq(1, Count))
                 end),
    ok = do(Other, fun(Lane) -> expect_numbered(Lane, 1, Count) end).

numbered(N) -> [<<N:32>>, binary:copy(<<N>>, N rem 97)].

expect_numbered(_Lane, N, Last) when N > Last -> ok;
expect_numbered(Lane, N, Last) ->
    [Frame] = await_data(Lane, 1),
    Frame = iolist_to_binary(numbered(N)),
    expect_numbered(Lane, N + 1, Last).

%% Neither direction waits for the other to end.
both_ways_at_once(Config) ->
    {One, Other} = lane(Config),
    Sides = [One, Other],
    [ok = grant_all(Side) || Side <- Sides],
    Frames = [contents(Size) || Size <- [10, 100000, 0, 3000000, 1000, 700000]],
    Wanted = [sum(Frame) || Frame <- lists:append(lists:duplicate(5, Frames))],
    Senders = [begin
                   #{peer := Peer, lane := Lane} = Side,
                   beamway_peer:async(fun() ->
                       beamway_peer:run(Peer, fun() ->
                           [ok = beamway_lane:send_wait(Lane, Frame) || _ <- lists:seq(1, 5), Frame <- Frames], ok end)
                   end)
               end || Side <- Sides],
    [Wanted = do(Side, fun(Lane) -> [sum(Frame) || Frame <- await_data(Lane, length(Wanted))] end) || Side <- Sides],
    [ok = beamway_peer:await(Sender) || Sender <- Senders],
    ok.

%% --- credit --------------------------------------------------------------------------------------------

%% The mailbox holds what was granted and one word, whatever the peer sends; then the peer cannot send.
credit_bounds_the_mailbox(Config) ->
    {One, Other} = lane(Config),
    Frame = contents(1000),
    Flood = do(One, fun(Lane) -> flood(Lane, Frame, 0) end),
    0 = queued(Other),
    ok = grant(Other, 10, ?MANY),
    ok = mailbox_stays(Other, 11),
    {10, passive} = do(Other, fun(Lane) -> take_until_passive(Lane, 0) end),
    true = Flood > 65536 div 1008 - 1,
    {Two, Fourth} = lane(Config),
    More = do(Two, fun(Lane) -> flood(Lane, Frame, 0) end),
    ok = grant(Fourth, ?MANY, 2500),
    ok = mailbox_stays(Fourth, 4),
    {3, passive} = do(Fourth, fun(Lane) -> take_until_passive(Lane, 0) end),
    #{credit_bytes := -500} = do(Fourth, fun beamway_lane:stats/1),
    ok = grant(Fourth, 0, ?MANY),
    Rest = More - 3,
    Rest = do(Fourth, fun(Lane) -> length(await_data(Lane, Rest)) end),
    ok = mailbox_stays(Fourth, 0).

%% Sends until the lane is busy and stays so: how many were taken.
flood(Lane, Frame, Sent) ->
    case beamway_lane:send(Lane, Frame) of
        ok -> flood(Lane, Frame, Sent + 1);
        busy ->
            ok = beamway_lane:tell_when_writable(Lane),
            receive {Lane, writable} -> flood(Lane, Frame, Sent) after 300 -> Sent end
    end.

take_until_passive(Lane, Count) ->
    receive
        {Lane, {data, _}} -> take_until_passive(Lane, Count + 1);
        {Lane, passive} -> {Count, passive}
    after ?WAIT_MS -> {Count, nothing}
    end.

%% It gets so many messages, and no more while the peer is trying.
mailbox_stays(Side, Count) ->
    _ = beamway_peer:wait_until(fun() -> queued(Side) >= Count end, ?WAIT_MS),
    [Count = queued(Side) || _ <- lists:seq(1, 20)],
    ok.

%% A frame larger than the credit comes, and closes the lane until as much is granted again.
a_debt_is_paid(Config) ->
    {One, Other} = lane(Config),
    ok = grant(Other, 10, 1),
    Big = contents(1000000),
    ok = do(One, fun(Lane) -> ok = beamway_lane:send_wait(Lane, Big), beamway_lane:send_wait(Lane, <<"next">>) end),
    {1, passive} = do(Other, fun(Lane) -> take_until_passive(Lane, 0) end),
    ok = grant(Other, 0, 999999),
    #{credit_bytes := 0, credit_frames := 9} = do(Other, fun beamway_lane:stats/1),
    ok = mailbox_stays(Other, 0),
    ok = grant(Other, 0, 1),
    [<<"next">>] = do(Other, fun(Lane) -> await_data(Lane, 1) end).

%% --- senders -------------------------------------------------------------------------------------------

%% Any process may send; of each the frames keep their order, whether it waits or is told.
many_senders(Config) ->
    {#{peer := Peer, lane := Lane}, Other} = lane(Config),
    ok = grant_all(Other),
    Senders = 40, Each = 300,
    Pids = beamway_peer:run(Peer, fun() ->
        [element(1, spawn_monitor(fun() -> send_numbered(Lane, Sender, Each) end)) || Sender <- lists:seq(1, Senders)]
    end),
    Counts = do(Other, fun(L) -> per_sender(await_data(L, Senders * Each), #{}) end),
    true = Counts =:= maps:from_list([{Sender, Each} || Sender <- lists:seq(1, Senders)]),
    _ = beamway_peer:wait_until(fun() ->
            not lists:any(fun(Pid) -> beamway_peer:call(Peer, erlang, is_process_alive, [Pid]) end, Pids) end, ?WAIT_MS),
    ok.

send_numbered(Lane, Sender, Each) ->
    lists:foreach(fun(N) -> ok = send_either(Lane, Sender rem 2, [<<Sender:16, N:32>>, padding(N)]) end,
                  lists:seq(1, Each)).

padding(N) -> binary:copy(<<N>>, N * 7 rem 3000).

send_either(Lane, 0, Frame) -> beamway_lane:send_wait(Lane, Frame);
send_either(Lane, 1, Frame) ->
    case beamway_lane:send(Lane, Frame) of
        ok -> ok;
        busy ->
            ok = beamway_lane:tell_when_writable(Lane),
            receive {Lane, writable} -> send_either(Lane, 1, Frame) after ?WAIT_MS -> never_writable end
    end.

per_sender([], Counts) -> Counts;
per_sender([<<Sender:16, N:32, Rest/binary>> | More], Counts) ->
    Rest = padding(N),
    N = maps:get(Sender, Counts, 0) + 1,
    per_sender(More, Counts#{Sender => N}).

writable_for_whoever_asks(Config) ->
    {#{peer := Peer, lane := Lane} = One, Other} = lane(Config),
    ok = do(One, fun(L) -> ok = beamway_lane:tell_when_writable(L), receive {L, writable} -> ok after ?WAIT_MS -> never end end),
    _ = do(One, fun(L) -> flood(L, contents(5000), 0) end),
    ok = beamway_peer:run(Peer, fun() -> persistent_term:put(lane_asked, counters:new(1, [])) end),
    Askers = [beamway_peer:async(fun() -> beamway_peer:run(Peer, fun() ->
                  ok = beamway_lane:tell_when_writable(Lane),
                  ok = beamway_lane:tell_when_writable(Lane),
                  ok = counters:add(persistent_term:get(lane_asked), 1, 1),
                  receive {Lane, writable} -> once after ?WAIT_MS -> never end,
                  receive {Lane, writable} -> twice after 100 -> once end
              end) end) || _ <- lists:seq(1, 5)],
    %% They have asked before anything is read.
    _ = beamway_peer:wait_until(fun() -> beamway_peer:run(Peer, fun() -> counters:get(persistent_term:get(lane_asked), 1) end) =:= 5 end, ?WAIT_MS),
    busy = do(One, fun(L) -> beamway_lane:send(L, <<"x">>) end),
    ok = grant_all(Other),
    [once = beamway_peer:await(Asker) || Asker <- Askers],
    ok.

%% A peer that is stopped takes nothing more: senders wait, memory does not grow, and nothing is lost.
stopped_peer(Config) ->
    {#{peer := Peer, lane := Lane}, #{peer := Stopped} = Other} = lane(Config, 1048576),
    ok = grant_all(Other),
    OsPid = beamway_peer:os_pid(Peer),
    ok = beamway_peer:sigstop(Stopped),
    Before = beamway_peer:resident_bytes(OsPid),
    Frame = contents(65536), Senders = 16, Each = 1000, % 1 GB
    Pids = beamway_peer:run(Peer, fun() ->
        [spawn(fun() -> [ok = beamway_lane:send_wait(Lane, Frame) || _ <- lists:seq(1, Each)] end) || _ <- lists:seq(1, Senders)]
    end),
    Waiting = fun() -> lists:all(fun(Pid) ->
                           beamway_peer:call(Peer, erlang, process_info, [Pid, status]) =:= {status, suspended} end, Pids) end,
    _ = beamway_peer:wait_until(Waiting, ?WAIT_MS),
    busy = beamway_peer:run(Peer, fun() -> beamway_lane:send(Lane, <<"x">>) end),
    Grown = beamway_peer:resident_bytes(OsPid) - Before,
    ct:log("grown by ~b bytes", [Grown]),
    true = Grown < 32 * 1048576,
    ok = beamway_peer:sigcont(Stopped),
    ok = do(Other, fun(L) -> swallow(L, Senders * Each) end, 120000).

swallow(_Lane, 0) -> ok;
swallow(Lane, Count) ->
    receive {Lane, {data, _}} -> swallow(Lane, Count - 1)
    after ?WAIT_MS -> {missing, Count}
    end.

%% --- ends ----------------------------------------------------------------------------------------------

%% The survivor is told at once, senders that waited go on, and nothing of the lane is left.
peer_killed(Config) ->
    {PeerA, PeerB} = proplists:get_value(peers, Config),
    [{PeerA, Before}, _] = at_rest(Config),
    {#{lane := Lane} = One, _Other} = lane(Config),
    Waiting = beamway_peer:async(fun() -> beamway_peer:run(PeerA, fun() -> send_until_closed(Lane, contents(30000)) end) end),
    _ = beamway_peer:wait_until(fun() -> do(One, fun(L) -> beamway_lane:send(L, <<"x">>) end) =:= busy end, ?WAIT_MS),
    ok = beamway_peer:kill9(PeerB),
    {connection_closed, Unreleased} = await_closed(One),
    true = Unreleased > 0,
    closed = beamway_peer:await(Waiting),
    true = beamway_lane_end:is_owner_alive(One),
    ok = back_to(PeerA, Before).

send_until_closed(Lane, Frame) ->
    case beamway_lane:send_wait(Lane, Frame) of
        ok -> send_until_closed(Lane, Frame);
        Closed -> Closed
    end.

owner_killed(Config) ->
    {PeerA, _} = proplists:get_value(peers, Config),
    Before = at_rest(Config),
    {#{owner := Owner, lane := Lane} = One, Other} = lane(Config),
    ok = grant_all(Other),
    ok = do(One, fun(L) -> beamway_lane:send(L, <<"last words">>) end),
    [<<"last words">>] = do(Other, fun(L) -> await_data(L, 1) end),
    true = beamway_peer:call(PeerA, erlang, exit, [Owner, kill]),
    {connection_closed, 0} = await_closed(Other),
    closed = beamway_peer:run(PeerA, fun() -> beamway_lane:send(Lane, <<"to nobody">>) end),
    [ok = back_to(Peer, Rest) || {Peer, Rest} <- Before],
    ok.

%% What both nodes hold: descriptors and mappings. A node that has never had a lane opens a few things for the first, and a device for the first over rdma.
at_rest(Config) ->
    {PeerA, PeerB} = proplists:get_value(peers, Config),
    Peers = [PeerA, PeerB],
    [ok = beamway_peer:run(Peer, fun() -> {ok, _} = application:ensure_all_started(beamway), beamway_driver:loaded() end) || Peer <- Peers],
    _ = kind(Config) =:= rdma andalso come_and_go(Config),
    lists:zip(Peers, calm(kind(Config), Peers, none, 0)).

come_and_go(Config) ->
    {One, Other} = lane(Config),
    ok = do(One, fun beamway_lane:close/1),
    {local_close, 0} = await_closed(One),
    {closed, 0} = await_closed(Other).

%% The same at several looks, over rdma for two seconds: a link ends in the background there, within one.
calm(Kind, _, Held, Times) when Times =:= 20; Times =:= 3, Kind =/= rdma -> Held;
calm(Kind, Peers, Before, Times) ->
    case [held(Peer) || Peer <- Peers] of
        Before -> timer:sleep(100), calm(Kind, Peers, Before, Times + 1);
        Held -> calm(Kind, Peers, Held, 0)
    end.

held(Peer) ->
    OsPid = beamway_peer:os_pid(Peer),
    {length(beamway_peer:fds(OsPid)), length(beamway_peer:maps(OsPid))}.

back_to(Peer, {Descriptors, Maps}) ->
    OsPid = beamway_peer:os_pid(Peer),
    _ = beamway_peer:wait_until(fun() -> length(beamway_peer:fds(OsPid)) =< Descriptors
                                             andalso length(beamway_peer:maps(OsPid)) =< Maps end, ?WAIT_MS),
    ok.

%% Everything that was sent arrives before the end is told, and the closer knows it.
closed_in_order(Config) ->
    Before = at_rest(Config),
    {One, Other} = lane(Config),
    Frames = [contents(N * 131 rem 20000) || N <- lists:seq(1, 200)] ++ [contents(2000000)],
    ok = grant_all(Other),
    ok = do(One, fun(Lane) ->
                         [ok = beamway_lane:send_wait(Lane, Frame) || Frame <- Frames],
                         beamway_lane:close(Lane)
                 end),
    Frames = do(Other, fun(Lane) -> await_data(Lane, length(Frames)) end),
    {closed, 0} = await_closed(Other),
    {local_close, 0} = await_closed(One),
    [ok = back_to(Peer, Rest) || {Peer, Rest} <- Before],
    ok.

closed_by_both(Config) ->
    [begin
         {One, Other} = lane(Config),
         [ok = grant_all(Side) || Side <- [One, Other]],
         Closers = [beamway_peer:async(fun() -> do(Side, fun(Lane) -> _ = beamway_lane:send(Lane, <<"bye">>), beamway_lane:close(Lane) end) end)
                    || Side <- [One, Other]],
         [ok = beamway_peer:await(Closer) || Closer <- Closers],
         Reasons = [Reason || Side <- [One, Other], {Reason, _} <- [await_closed(Side)]],
         true = lists:member(local_close, Reasons),
         [] = Reasons -- [local_close, local_close, closed]
     end || _ <- lists:seq(1, 20)],
    ok.

%% The closer waits a second, not longer, and says what has not been taken.
closed_to_a_stuck_peer(Config) ->
    {One, Other} = lane(Config),
    Sent = do(One, fun(Lane) -> flood(Lane, contents(1000), 0) end),
    ok = do(One, fun beamway_lane:close/1),
    {local_close, Unreleased} = await_closed(One),
    true = Unreleased > 0,
    _ = kind(Config) =:= shm andalso begin true = Unreleased =:= Sent * beamway_lane:frame_bytes(1000) end,
    %% What the peer's ring holds is still its own.
    ok = grant_all(Other),
    {Reason, 0} = await_closed(Other),
    true = lists:member(Reason, [closed, connection_closed]).

%% The figure in the last message parts what was given to the owner from what was not.
what_was_delivered(Config) ->
    {One, #{peer := PeerB} = Other} = lane(Config),
    ok = grant(Other, 5, ?MANY),
    ok = do(One, fun(Lane) -> [ok = beamway_lane:send(Lane, contents(N)) || N <- lists:seq(1001, 1020)], ok end),
    {5, passive} = do(Other, fun(Lane) -> take_until_passive(Lane, 0) end),
    ok = beamway_peer:kill9(PeerB),
    {connection_closed, Unreleased} = await_closed(One),
    Exact = lists:sum([beamway_lane:frame_bytes(N) || N <- lists:seq(1006, 1020)]),
    case kind(Config) of
        shm -> Exact = Unreleased;
        rdma -> true = Unreleased >= Exact;
        tcp -> true = Unreleased =< Exact
    end.

%% --- owners --------------------------------------------------------------------------------------------

given_away(Config) ->
    {#{peer := Peer, lane := Lane} = One, Other} = lane(Config),
    Heir = beamway_peer:run(Peer, fun() -> spawn(fun() ->
        receive {Lane, {data, <<"for the heir">>}} -> ok end,
        ok = beamway_lane:send(Lane, <<"from the heir">>),
        receive stop -> ok end
    end) end),
    ok = do(One, fun(L) -> ok = beamway_lane:give(L, Heir), beamway_lane:credit(L, 10, 10000) end),
    ok = grant_all(Other),
    ok = do(Other, fun(L) -> beamway_lane:send(L, <<"for the heir">>) end),
    [<<"from the heir">>] = do(Other, fun(L) -> await_data(L, 1) end),
    #{owner := Former} = One,
    true = beamway_peer:call(Peer, erlang, exit, [Former, kill]),
    ok = do(Other, fun(L) -> beamway_lane:send(L, <<"still there">>) end),
    stop = beamway_peer:call(Peer, erlang, send, [Heir, stop]),
    {connection_closed, _} = await_closed(Other),
    ok.

%% Each function says so, none crashes.
after_the_end(Config) ->
    {One, Other} = lane(Config),
    ok = do(One, fun beamway_lane:close/1),
    {local_close, 0} = await_closed(One),
    {closed, 0} = await_closed(Other),
    [begin
         closed = do(Side, fun(L) -> beamway_lane:send(L, <<"x">>) end),
         closed = do(Side, fun(L) -> beamway_lane:send_wait(L, <<"x">>) end),
         closed = do(Side, fun beamway_lane:tell_when_writable/1),
         closed = do(Side, fun(L) -> beamway_lane:credit(L, 1, 1) end),
         closed = do(Side, fun beamway_lane:stats/1),
         closed = do(Side, fun(L) -> beamway_lane:give(L, self()) end),
         ok = do(Side, fun beamway_lane:close/1)
     end || Side <- [One, Other]],
    ok.

%% Lanes come and go, whichever way they end.
nothing_is_left(Config) ->
    {PeerA, _} = proplists:get_value(peers, Config),
    Before = at_rest(Config),
    [begin
         {#{owner := Owner} = One, Other} = lane(Config),
         ok = grant(Other, 1, 100000),
         ok = do(One, fun(Lane) -> beamway_lane:send_wait(Lane, contents(100000)) end),
         case N rem 3 of
             0 -> ok = do(One, fun beamway_lane:close/1);
             1 -> true = beamway_peer:call(PeerA, erlang, exit, [Owner, kill]);
             2 -> true = beamway_peer:run(PeerA, fun() -> exit(Owner, shutdown) end)
         end
     end || N <- lists:seq(1, 60)],
    [ok = back_to(Peer, Rest) || {Peer, Rest} <- Before],
    ok.

%% Lanes count against the node's limit as the distribution's rings do, and give back what they had. One over TCP is never refused for
%% that: it gets smaller rings, and takes the place of others.
ring_limit(Config) ->
    Limited = start_pair(Config, [{"BEAMWAY_RING_LIMIT_BYTES", "300000"}]),
    {PeerA, PeerB} = proplists:get_value(peers, Limited),
    Kind = kind(Config),
    Options = #{ring_bytes => 131072},
    {#{info := #{kind := Kind, ring_bytes := 131072}} = First, _} = join(PeerA, PeerB, Options#{kinds => [Kind]}),
    {#{info := #{kind := tcp, ring_bytes := 65536, reason := Reason}} = Second, _} = join(PeerA, PeerB, Options),
    {_, _} = binary:match(Reason, <<"ring_limit_bytes">>),
    [begin ok = do(Side, fun beamway_lane:close/1), {local_close, 0} = await_closed(Side) end || Side <- [First, Second]],
    _ = beamway_peer:wait_until(fun() ->
            {#{info := #{kind := Now, ring_bytes := Bytes}} = Third, _} = join(PeerA, PeerB, Options#{kinds => [Kind, tcp]}),
            ok = do(Third, fun beamway_lane:close/1),
            {local_close, 0} = await_closed(Third),
            {Now, Bytes} =:= {Kind, 131072}
        end, ?WAIT_MS),
    ok.
