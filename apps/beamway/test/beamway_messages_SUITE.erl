%% SPDX-License-Identifier: Apache-2.0
%% @doc Messages arrive as they were sent: of every size and type, in order, and from many processes at the same time.
%%
%% The sender passes a seed and a size, and the receiver generates the same term and compares. So
%% only the message passes over the carrier, and a lost, duplicated or moved byte is detected. The
%% block that payloads repeat has a prime length, so a misplaced fragment never looks right.
%%
%% The group `beamway_small' has a ring of 64 KB, which cannot hold a fragment of a larger message. With `BEAMWAY_TEST_LONG=1' in the environment
%% sizes around that of the ring are tried byte by byte, and there are more talkers; `BEAMWAY_TEST_HUGE=1' adds a 2.2 GB message, which needs about 12
%% GB of memory.
-module(beamway_messages_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2,
         init_per_testcase/2, end_per_testcase/2]).
-export([small_sizes/1, fragment_sizes/1, ring_sizes/1, large_sizes/1, huge_message/1,
         binaries/1, bitstrings/1, funs/1, maps/1, lists/1, atoms/1, numbers/1, process_terms/1,
         nested_terms/1, thousand_talkers/1, order/1, order_of_mixed_sizes/1, atom_cache_churn/1,
         large_terms_beside_churn/1, one_way_flood/1]).

-define(FRAGMENT_BYTES, 65536).
-define(RING_BYTES, #{beamway_small => 65536}).
-define(DEFAULT_RING_BYTES, 4194304).
-define(CARRIERS, [inet_tcp, beamway_tcp, beamway_shm, beamway_small, beamway_tls, beamway_encrypted, beamway_rdma]).

suite() -> [{timetrap, {minutes, 5}}].

all() -> beamway_carrier:all(?CARRIERS).

groups() ->
    beamway_carrier:only(
      [{huge_message, [Carrier || beamway_carrier:is_huge(), Carrier <- huge_carriers(os:getenv("BEAMWAY_TEST_CARRIERS", ""))]}],
      beamway_carrier:groups(
        ?CARRIERS,
        [small_sizes, fragment_sizes, ring_sizes, large_sizes, huge_message,
         binaries, bitstrings, funs, maps, lists, atoms, numbers, process_terms, nested_terms,
         thousand_talkers, order, order_of_mixed_sizes, atom_cache_churn,
         large_terms_beside_churn, one_way_flood])).

%% The case of huge messages takes a minute and 12 GB, so it runs over one carrier unless others are specified.
huge_carriers("") -> [beamway_shm];
huge_carriers(_Named) -> ?CARRIERS.

init_per_group(Carrier, Config) ->
    beamway_carrier:start_pair(beamway_carrier:init_group(Carrier, Config)).

end_per_group(_Carrier, Config) ->
    beamway_carrier:stop_pair(Config).

init_per_testcase(huge_message, Config) ->
    case free_bytes() div 1000000000 of
        Enough when Enough >= 12 -> beamway_carrier:begin_case(Config);
        Few -> {skip, lists:concat(["needs 12 GB of free memory; this machine has ", Few])}
    end;
init_per_testcase(_Case, Config) ->
    beamway_carrier:begin_case(Config).

end_per_testcase(_Case, Config) -> beamway_carrier:end_case(Config).

free_bytes() ->
    {ok, Text} = file:read_file("/proc/meminfo"),
    {match, [KiB]} = re:run(Text, "MemAvailable:\\s+([0-9]+) kB", [{capture, all_but_first, binary}]),
    binary_to_integer(KiB) * 1024.

%% --- sizes ---------------------------------------------------------------------------------------

small_sizes(Config) ->
    exchange_sizes(Config, lists:seq(0, 300) ++ lists:seq(1000, 1100) ++ lists:seq(4070, 4110)).

%% Tests the sizes at which a message becomes two fragments or three.
fragment_sizes(Config) ->
    Around = [Count * ?FRAGMENT_BYTES + Offset || Count <- [1, 2, 3, 16],
                                                  Offset <- lists:seq(-120, 8, 8) ++ [-1, 0, 1, 7, 9]],
    exchange_sizes(Config, Around).

%% The frame is somewhat larger than its payload. Sweeping the payload produces every case: a frame
%% that just fits, just does not fit, or ends at each of the 8 positions in a word.
ring_sizes(Config) ->
    Ring = maps:get(beamway_carrier:carrier(Config), ?RING_BYTES, ?DEFAULT_RING_BYTES),
    Step = case Ring =< 65536 orelse beamway_carrier:is_long() of true -> 1; false -> 17 end,
    Around = [Size + Offset || Size <- [Ring div 4, Ring div 2, Ring, 2 * Ring],
                               Offset <- lists:seq(-160, 16, Step)],
    exchange_sizes(Config, Around ++ [Ring - 1, Ring, Ring + 1, 3 * Ring, 5 * Ring + 3]).

large_sizes(Config) ->
    exchange_sizes(Config, [10000000, 33554432, 67108863, 268435456]).

huge_message(Config) ->
    {PeerA, _} = beamway_carrier:peers(Config),
    {_, NodeB} = beamway_carrier:nodes(Config),
    ok = send_all_sizes(PeerA, NodeB, [2362232013]).

%% Sends in both directions in turn, with one receiver on each node.
exchange_sizes(Config, Sizes) ->
    {PeerA, PeerB} = beamway_carrier:peers(Config),
    {NodeA, NodeB} = beamway_carrier:nodes(Config),
    ok = send_all_sizes(PeerA, NodeB, Sizes),
    ok = send_all_sizes(PeerB, NodeA, Sizes).

send_all_sizes(Peer, To, Sizes) ->
    beamway_peer:run(Peer, fun() ->
        ok = spawn_receiver(To, Sizes),
        send_sizes(To, Sizes)
    end, 240000).

spawn_receiver(Node, Sizes) ->
    Self = self(),
    _ = spawn(Node, fun() ->
                            true = register(beamway_receiver, self()),
                            Self ! registered,
                            receive_sizes(Sizes)
                    end),
    receive registered -> ok after 10000 -> error(no_receiver) end.

send_sizes(Node, Sizes) ->
    Monitor = monitor(process, {beamway_receiver, Node}),
    [{beamway_receiver, Node} ! {Size, payload(Size, Size)} || Size <- Sizes],
    receive {'DOWN', Monitor, process, _, Reason} -> all_received = Reason, ok end.

receive_sizes([]) ->
    exit(all_received);
receive_sizes([Size | Rest]) ->
    receive
        {Size, Payload} ->
            Payload =:= payload(Size, Size) orelse exit({differs, Size, byte_size(Payload)}),
            receive_sizes(Rest);
        {Other, _} ->
            exit({out_of_order, Other, Size})
    after 120000 ->
            exit({missing, Size})
    end.

%% The payload of a seed repeats a block of prime length.
payload(Seed, Size) ->
    Block = block(Seed rem 7),
    binary:part(binary:copy(Block, Size div byte_size(Block) + 1), 0, Size).

block(Seed) ->
    case get({block, Seed}) of
        undefined ->
            Words = << <<(erlang:phash2({Seed, N}, 1 bsl 32)):32>> || N <- lists:seq(1, 16385) >>,
            Block = binary:part(Words, 0, 65537),
            put({block, Seed}, Block),
            Block;
        Block ->
            Block
    end.

%% --- types ---------------------------------------------------------------------------------------

binaries(Config) ->
    echo_all(Config, fun() ->
        Shared = payload(1, 300000),
        Heap = payload(2, 60),
        [Heap,
         Shared,
         [Shared, Shared, Shared],
         {binary:part(Shared, 1, 64), binary:part(Shared, 65535, 65), binary:part(Shared, 0, 0)},
         [binary:part(Shared, Offset, Length) || Offset <- lists:seq(0, 200000, 9999),
                                                 Length <- [0, 1, 63, 64, 65, 70000]],
         [Heap, [Shared | binary:part(Shared, 12345, 100000)]],
         [payload(N, N * 100) || N <- lists:seq(1, 300)],
         <<Shared/binary, Heap/binary>>]
    end).

bitstrings(Config) ->
    echo_all(Config, fun() ->
        Shared = payload(3, 200000),
        Cut = [begin
                   <<_:Skip, Bits:Length/bitstring, _/bitstring>> = Shared,
                   Bits
               end || Skip <- [0, 1, 3, 7, 8, 65537], Length <- [0, 1, 7, 8, 9, 511, 513, 800001]],
        [<<1:1>>, <<0:7>>, <<Shared/binary, 5:3>>, Cut | Cut]
    end).

funs(Config) ->
    echo_all(Config, fun() ->
        Captured = payload(4, 100000),
        [{fun(X) -> {X, Captured} end, fun lists:reverse/1, fun() -> Captured end}]
    end),
    %% The funs also run on the other node.
    {PeerA, _} = beamway_carrier:peers(Config),
    {_, NodeB} = beamway_carrier:nodes(Config),
    ok = beamway_peer:run(PeerA, fun() ->
        Captured = payload(5, 100000),
        {2, Captured} = erpc:call(NodeB, fun() -> {2, Captured} end),
        ok
    end).

maps(Config) ->
    echo_all(Config, fun() ->
        Big = maps:from_list([{{key, N}, [N, integer_to_binary(N)]} || N <- lists:seq(1, 20000)]),
        [#{}, #{a => 1}, maps:from_list([{N, N} || N <- lists:seq(1, 32)]),
         maps:from_list([{N, N} || N <- lists:seq(1, 33)]), Big,
         #{Big => Big}, #{#{} => #{#{} => []}}]
    end).

lists(Config) ->
    echo_all(Config, fun() ->
        [[], [a | b], [1, 2, 3 | <<"tail">>], lists:seq(1, 100000),
         "latin1 åäö", [960, 8364], lists:duplicate(65535, $x),
         lists:duplicate(65536, $x), lists:duplicate(65537, $x),
         lists:foldl(fun(N, Tail) -> [N | Tail] end, improper, lists:seq(1, 70000))]
    end).

atoms(Config) ->
    echo_all(Config, fun() ->
        Long = binary_to_atom(binary:copy(<<"𝄞"/utf8>>, 255)),
        ['', a, 'åäö', 'π≈3', Long, [Long, Long], {Long, [Long | '']}, #{Long => Long}]
    end).

numbers(Config) ->
    echo_all(Config, fun() ->
        Edges = [Sign * ((1 bsl Bits) + Offset)
                 || Bits <- [7, 8, 16, 27, 28, 31, 32, 59, 60, 63, 64, 2039, 2040, 2041, 100000],
                    Offset <- [-1, 0, 1], Sign <- [-1, 1]],
        [Edges, 0.0, -0.0, 1.0e308, 5.0e-324, 3.14159 | Edges]
    end).

process_terms(Config) ->
    echo_all(Config, fun() ->
        Port = hd(erlang:ports()),
        [self(), make_ref(), alias(), Port, [make_ref() || _ <- lists:seq(1, 1000)],
         {self(), node(), Port}, node()]
    end).

nested_terms(Config) ->
    echo_all(Config, fun() ->
        Deep = lists:foldl(fun(N, Inner) -> {N, [Inner], #{N => <<N:32>>}} end, leaf,
                           lists:seq(1, 5000)),
        Wide = list_to_tuple(lists:seq(1, 300000)),
        Mixed = [#{N => {payload(N, N), [N | <<N:13>>],
                         list_to_atom("mixed_" ++ integer_to_list(N rem 50))}}
                 || N <- lists:seq(1, 2000)],
        [Deep, Wide, Mixed, {Wide, Mixed, Deep}]
    end).

%% The first node creates the terms, sends each to the second node and compares the echo.
echo_all(Config, MakeTerms) ->
    {PeerA, _} = beamway_carrier:peers(Config),
    {_, NodeB} = beamway_carrier:nodes(Config),
    ok = beamway_peer:run(PeerA, fun() -> echo_terms(NodeB, MakeTerms()) end).

echo_terms(Node, Terms) ->
    Echo = spawn(Node, fun beamway_peer:echo/0),
    Monitor = monitor(process, Echo),
    [begin
         Echo ! {self(), Term},
         receive
             {echo, Back} -> Back =:= Term orelse error({differs, Number});
             {'DOWN', Monitor, process, Echo, Reason} -> error({echo_lost, Number, Reason})
         after 30000 -> error({no_echo, Number})
         end
     end || {Number, Term} <- lists:zip(lists:seq(1, length(Terms)), Terms)],
    exit(Echo, kill),
    ok.

%% --- many at once ----------------------------------------------------------------------------------

%% 1,000 processes on each node each talk to one process on the other, both ways at the same time.
thousand_talkers(Config) ->
    {PeerA, _} = beamway_carrier:peers(Config),
    {_, NodeB} = beamway_carrier:nodes(Config),
    Count = beamway_carrier:rounds(20, 200),
    ok = beamway_peer:run(PeerA, fun() -> run_talkers(NodeB, 1000, Count) end, 200000).

run_talkers(Node, Pairs, Count) ->
    Monitors =
        [begin
             {Far, FarMonitor} = spawn_monitor(Node, fun() -> talk_to_partner(Count) end),
             {Near, NearMonitor} = spawn_monitor(fun() -> talk_to_partner(Count) end),
             Far ! {partner, Near},
             Near ! {partner, Far},
             [FarMonitor, NearMonitor]
         end || _ <- lists:seq(1, Pairs)],
    [receive {'DOWN', Monitor, process, _, Reason} -> normal = Reason
     after 180000 -> error(talkers_hang)
     end || Monitor <- lists:append(Monitors)],
    ok.

talk_to_partner(Count) ->
    receive {partner, Partner} -> talk(Partner, 1, Count) end.

talk(_Partner, Number, Count) when Number > Count ->
    ok;
talk(Partner, Number, Count) ->
    Partner ! {self(), Number, talk_payload(Number)},
    receive
        {Partner, Number, Payload} ->
            true = Payload =:= talk_payload(Number),
            talk(Partner, Number + 1, Count);
        {Partner, Other, _} ->
            exit({out_of_order, Other, Number})
    after 120000 ->
            exit({missing, Number})
    end.

talk_payload(Number) ->
    Size = element(Number rem 6 + 1, {0, 16, 64, 300, 4096, 9000}),
    binary:copy(<<Number:8>>, Size).

%% Each of 10 senders numbers its messages to each of 10 receivers.
order(Config) ->
    order_of(Config, 10, beamway_carrier:rounds(500, 10000), fun(_) -> 10 end).

%% A large message is cut into fragments and a small one is not; the order must still be kept.
order_of_mixed_sizes(Config) ->
    order_of(Config, 4, beamway_carrier:rounds(100, 2000),
             fun(Number) -> element(Number rem 5 + 1, {0, 200000, 3, 70000, 1000}) end).

order_of(Config, Processes, Count, SizeOf) ->
    {PeerA, _} = beamway_carrier:peers(Config),
    {_, NodeB} = beamway_carrier:nodes(Config),
    ok = beamway_peer:run(PeerA, fun() -> run_order(NodeB, Processes, Count, SizeOf) end, 200000).

run_order(Node, Processes, Count, SizeOf) ->
    Numbers = lists:seq(1, Processes),
    Receivers = [spawn_monitor(Node, fun() -> receive_in_order(#{}, Processes * Count, Count, SizeOf) end)
                 || _ <- Numbers],
    Pids = [Pid || {Pid, _} <- Receivers],
    [spawn_link(fun() -> send_in_order(Pids, Sender, Count, SizeOf) end) || Sender <- Numbers],
    [receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason
     after 180000 -> error(order_hangs)
     end || {Pid, Monitor} <- Receivers],
    ok.

send_in_order(Pids, Sender, Count, SizeOf) ->
    [[Pid ! {Sender, Number, payload(Number, SizeOf(Number))} || Pid <- Pids]
     || Number <- lists:seq(1, Count)],
    ok.

receive_in_order(_Seen, 0, _Count, _SizeOf) ->
    ok;
receive_in_order(Seen, Left, Count, SizeOf) ->
    receive
        {Sender, Number, Payload} ->
            Number = maps:get(Sender, Seen, 0) + 1,
            true = Payload =:= payload(Number, SizeOf(Number)),
            receive_in_order(Seen#{Sender => Number}, Left - 1, Count, SizeOf)
    after 120000 ->
            exit({missing, Left, Seen})
    end.

%% The atom cache holds 2,048 atoms and a header up to 255 of them, so new ones constantly displace old ones,
%% from several senders and in both directions at the same time.
atom_cache_churn(Config) ->
    {PeerA, _} = beamway_carrier:peers(Config),
    {NodeA, NodeB} = beamway_carrier:nodes(Config),
    Rounds = beamway_carrier:rounds(300, 3000),
    Churn = fun(To) -> fun() -> churn(To, Rounds) end end,
    ok = beamway_peer:run(PeerA, fun() ->
        Workers = [spawn_monitor(Churn(NodeB)) || _ <- [1, 2]]
            ++ [spawn_monitor(NodeB, Churn(NodeA)) || _ <- [1, 2]],
        [receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason
         after 60000 -> error(churn_hangs)
         end || {Pid, Monitor} <- Workers],
        ok
    end).

%% Large terms of all kinds go both ways while other processes replace the cache entries to which their headers refer.
large_terms_beside_churn(Config) ->
    {PeerA, _} = beamway_carrier:peers(Config),
    {NodeA, NodeB} = beamway_carrier:nodes(Config),
    Rounds = beamway_carrier:rounds(300, 3000),
    Work = fun(To) ->
                   [fun() -> [echo_terms(To, large_terms(Seed)) || _ <- [1, 2, 3]] end || Seed <- [1, 2, 3]]
                       ++ [fun() -> churn(To, Rounds) end || _ <- [1, 2]]
           end,
    ok = beamway_peer:run(PeerA, fun() ->
        Workers = [spawn_monitor(One) || One <- Work(NodeB)] ++ [spawn_monitor(NodeB, One) || One <- Work(NodeA)],
        [receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason
         after 120000 -> error(workers_hang)
         end || {Pid, Monitor} <- Workers],
        ok
    end, 200000).

large_terms(Seed) ->
    Atoms = [churn_atom(Seed * 50 + N) || N <- lists:seq(1, 40)],
    Payload = payload(Seed, 3000000),
    [{Atoms, Payload},
     {Seed, lists:append(lists:duplicate(3000, Atoms))},
     maps:from_list([{{churn_atom(Seed * 7 + N rem 90), N}, <<N:800>>} || N <- lists:seq(1, 2000)]),
     {fun() -> {Atoms, Payload} end, make_ref(), self(), list_to_tuple(lists:seq(1, 100000))},
     [{churn_atom(N), payload(N, N * 100)} || N <- lists:seq(1, 150)],
     {payload(Seed, 70000), hd(Atoms)}].

churn(Node, Rounds) ->
    Echo = spawn_link(Node, fun beamway_peer:echo/0),
    [begin
         Term = {Round, [churn_atom((Round * 37 + N * N) rem 6000) || N <- lists:seq(1, Round rem 300)]},
         Echo ! {self(), Term},
         receive {echo, Back} -> Term = Back after 30000 -> exit(no_echo) end
     end || Round <- lists:seq(1, Rounds)],
    unlink(Echo),
    exit(Echo, kill),
    ok.

churn_atom(N) when N rem 3 =:= 0 -> binary_to_atom(<<"чурн_"/utf8, (integer_to_binary(N))/binary>>);
churn_atom(N) -> list_to_atom("churn_" ++ integer_to_list(N)).

%% One sender sends as fast as it can: the queue fills and drains many times.
one_way_flood(Config) ->
    {PeerA, _} = beamway_carrier:peers(Config),
    {_, NodeB} = beamway_carrier:nodes(Config),
    Count = beamway_carrier:rounds(100000, 2000000),
    ok = beamway_peer:run(PeerA, fun() ->
        {Counter, Monitor} = spawn_monitor(NodeB, fun() -> count_up(1, Count) end),
        [Counter ! Number || Number <- lists:seq(1, Count)],
        receive {'DOWN', Monitor, process, Counter, Reason} -> complete = Reason, ok end
    end, 120000).

count_up(Number, Count) when Number > Count ->
    exit(complete);
count_up(Number, Count) ->
    receive
        Number -> count_up(Number + 1, Count);
        Other -> exit({expected, Number, Other})
    after 60000 ->
            exit({missing, Number})
    end.
