%% SPDX-License-Identifier: Apache-2.0
%% @doc Peers that send nonsense, options that make none, hosts that refuse what a ring needs.
%%
%% Each case ends in the same way: the node says what is wrong in a line of its log, goes on over TCP
%% where that is possible, and its other connections have not noticed. Only shared memory has input
%% of its own; there is one group.
-module(beamway_bad_input_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2,
         init_per_testcase/2, end_per_testcase/2]).
-export([garbage_for_a_handshake/1, odd_extensions/1, wrong_cookie_with_extension/1, bad_offers/1,
         bad_answers/1, forged_ring_headers/1, forged_frames/1, invalid_options/1, unknown_parameter/1, driver_missing/1,
         driver_damaged/1, driver_of_another_version/1, driver_comes_later/1, file_size_limit/1, descriptor_limit/1,
         address_space_limit/1, no_memfd/1, no_eventfd/1, bad_commands/1, application_without_its_name/1, ring_limit/1, ring_limit_of_small_rings/1,
         port_limit/1, link_server_hangs/1, link_server_hangs_in_a_hurry/1, socket_dir_not_usable/1, socket_dir_in_another_locale/1, the_best_of_links/1, no_ring_memory_for_tcp/1, packet_of_4_gb/1,
         packet_without_end/1]).

-define(WAIT_MS, 20000).
%% Of native/link/ring.h: the head comes first, the next ring's header follows.
-define(RING_HEADER_BYTES, 320).
-define(RING_TAIL, 64).
%% Larger than a file of the VM itself, which needs 64 MiB for its code in OTP 27.
-define(LARGE_RINGS, [{"BEAMWAY_RING_BYTES", "67108864"}]).
-define(BADARG, {refused, badarg}).
%% Shorter than any timeout of the handshake: who is refused is refused at once.
-define(AT_ONCE_MS, 1500).

suite() -> [{timetrap, {minutes, 2}}].

all() -> beamway_carrier:all([beamway_shm]).

groups() ->
    beamway_carrier:groups(
      [beamway_shm],
      [garbage_for_a_handshake, odd_extensions, wrong_cookie_with_extension, bad_offers, bad_answers,
       forged_ring_headers, forged_frames, invalid_options, unknown_parameter, driver_missing, driver_damaged,
       driver_of_another_version, driver_comes_later, file_size_limit, descriptor_limit, address_space_limit, no_memfd,
       no_eventfd, bad_commands, application_without_its_name, ring_limit, ring_limit_of_small_rings, port_limit, link_server_hangs, link_server_hangs_in_a_hurry,
       socket_dir_not_usable, socket_dir_in_another_locale, the_best_of_links, no_ring_memory_for_tcp, packet_of_4_gb, packet_without_end]).

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

init_per_testcase(Case, Config) when Case =:= forged_ring_headers; Case =:= forged_frames ->
    %% The kernel may forbid even the parent of a process to write to its memory.
    case file:open("/proc/" ++ os:getpid() ++ "/mem", [read, write, raw]) of
        {ok, Io} -> ok = file:close(Io), start_friends(Config);
        {error, Reason} -> {skip, {rights, {"cannot write to the memory of a process", Reason}}}
    end;
init_per_testcase(_Case, Config) ->
    start_friends(Config).

%% Every case has a node under test and a friend with a link to it, which must outlast the case.
start_friends(Config) ->
    Log = log_file(Config),
    {ok, Peer, Node} = beamway_peer:start(beamway_shm, #{log => Log}),
    {ok, Friend, _} = beamway_peer:start(beamway_shm),
    ok = beamway_peer:connect_both(beamway_shm, Friend, Peer),
    Connection = beamway_peer:controller(Friend, Node),
    [{log, Log}, {under_test, {Peer, Node}}, {friend, Friend}, {friendship, Connection} | Config].

end_per_testcase(_Case, Config) ->
    {Peer, Node} = under_test(Config),
    Friend = proplists:get_value(friend, Config),
    Friendship = proplists:get_value(friendship, Config),
    Result = try
                 Friendship = beamway_peer:controller(Friend, Node),
                 Node = beamway_peer:call(Friend, erpc, call, [Node, erlang, node, []]),
                 true = is_process_alive(Peer),
                 ok
             catch Class:Reason -> {fail, {friend_noticed, Class, Reason}}
             end,
    ok = beamway_peer:stop_started(),
    Result.

under_test(Config) -> proplists:get_value(under_test, Config).

log_file(Config) ->
    filename:join(proplists:get_value(priv_dir, Config), beamway_peer:unique_name("node") ++ ".log").

%% --- the handshake -------------------------------------------------------------------------------------

garbage_for_a_handshake(Config) ->
    {Peer, Node} = under_test(Config),
    Extension = valid_extension(Peer),
    Garbage = [<<>>, <<0>>, <<255, 255>>, <<255, 255, "half of it">>, <<0, 0>>, <<0, 1, $N>>,
               <<0, 5, "Nabcd">>, <<0, 3, "sok">>, <<"GET / HTTP/1.1\r\n\r\n">>,
               <<0, 40, $N, 0:64, 0:32, 65535:16, (binary:copy(<<$x>>, 25))/binary>>,
               <<65535:16, (binary:copy(<<$N>>, 65535))/binary>>,
               <<0, 15, $N, 16#ffffffffffffffff:64, 1:32, 0:16>>,
               <<(byte_size(Extension)):16, Extension/binary>>,
               crypto_free_noise(3000)],
    [begin
         Socket = beamway_raw_peer:call(Node, connected, #{}),
         ok = beamway_raw_peer:send_raw(Socket, Bytes),
         ok = gen_tcp:shutdown(Socket, write),
         true = is_integer(beamway_raw_peer:closed_within(Socket, ?AT_ONCE_MS))
     end || Bytes <- Garbage],
    ok = takes_new_connections(Node).

crypto_free_noise(Size) ->
    << <<(rand:uniform(256) - 1)>> || _ <- lists:seq(1, Size) >>.

%% What is not exactly the extension is what any other implementation may put there: no extension.
odd_extensions(Config) ->
    {Peer, Node} = under_test(Config),
    Valid = valid_extension(Peer),
    Odd = [binary:part(Valid, 0, Length) || Length <- lists:seq(1, byte_size(Valid) - 1)]
        ++ [<<0>>, <<"BWay">>, <<"BWay", 1, 65535:16>>, <<"BWay", 1, 0:16>>,
            <<"BWay", 2, 18:16, 0:144>>, <<"BWay", 0, 18:16, 0:144>>, <<"Other", Valid/binary>>,
            binary:copy(<<"BWay">>, 5000), crypto_free_noise(1000)],
    [begin
         Socket = beamway_raw_peer:call(Node, authenticated, #{extension => Extension}),
         %% It is up as a stock node is: the next thing on the wire would be distribution data.
         ok = inet:setopts(Socket, [{packet, 4}]),
         ok = gen_tcp:close(Socket)
     end || Extension <- Odd],
    ok = takes_new_connections(Node).

valid_extension(Peer) ->
    beamway_wire:encode_extension(beamway_peer:call(Peer, beamway_links, extension, [tcp])).

%% No agreement before the cookie: the socket closes, nothing is read after the reply.
wrong_cookie_with_extension(Config) ->
    {Peer, Node} = under_test(Config),
    Socket = beamway_raw_peer:call(Node, challenge, #{extension => valid_extension(Peer)}),
    ok = beamway_raw_peer:send(Socket, <<$r, 4711:32, 0:128>>),
    ok = beamway_raw_peer:send(Socket, beamway_raw_peer:offer(#{})),
    {error, closed} = beamway_raw_peer:recv(Socket, ?AT_ONCE_MS),
    ok = logs(Config, "Invalid challenge reply"),
    ok = takes_new_connections(Node).

%% --- the agreement -------------------------------------------------------------------------------------

%% After a valid handshake. `tcp': the node says nack and goes on over TCP; `closed': it ends this.
bad_offers(Config) ->
    {Peer, Node} = under_test(Config),
    Extension = valid_extension(Peer),
    Offer = beamway_raw_peer:offer(#{}),
    Listener = fun beamway_raw_peer:open_listener/0,
    Bad = [{empty, closed, <<>>},
           {garbage, closed, <<"hello">>},
           {noise, closed, <<"~~", (crypto_free_noise(500))/binary>>},
           {another_version, tcp, <<9, (binary:part(Offer, 1, byte_size(Offer) - 1))/binary>>},
           {wrong_kind, closed, <<1, $x>>},
           {half, closed, binary:part(Offer, 0, 20)},
           {no_address, closed, binary:part(Offer, 0, 26)},
           {ready_without_offer, closed, beamway_wire:encode(ready)},
           {ring_of_0, closed, <<1, $o, 0:64, 0:128, "x">>},
           {odd_ring, tcp, beamway_raw_peer:offer(#{ring_bytes => 100000, address => Listener()})},
           {ring_of_1, tcp, beamway_raw_peer:offer(#{ring_bytes => 1, address => Listener()})},
           {long_address, tcp, beamway_raw_peer:offer(#{address => binary:copy(<<"a">>, 60000)})},
           {nobody_there, tcp, Offer},
           {a_path, tcp, beamway_raw_peer:offer(#{address => <<"/etc/passwd">>})},
           {nack, tcp_at_once, beamway_wire:encode({nack, <<"no\nlines\0", 200>>})},
           {long_nack, tcp_at_once, beamway_wire:encode({nack, binary:copy(<<"n">>, 60000)})}],
    [begin
         Before = length(problems(Config)),
         Socket = beamway_raw_peer:call(Node, authenticated, #{extension => Extension}),
         ok = beamway_raw_peer:send(Socket, Bytes),
         {Name, Expected} = {Name, outcome(Socket, Expected)},
         ok = gen_tcp:close(Socket),
         %% One line each, not more.
         _ = beamway_peer:wait_until(fun() -> length(problems(Config)) > Before end, ?WAIT_MS),
         {Name, 1} = {Name, length(problems(Config)) - Before}
     end || {Name, Expected, Bytes} <- Bad],
    %% Huge rings are cut to what the node itself allows.
    [begin
         Socket = beamway_raw_peer:call(Node, authenticated, #{extension => Extension}),
         ok = beamway_raw_peer:send(Socket, beamway_raw_peer:offer(#{ring_bytes => Huge, address => Listener()})),
         {ok, Ready} = beamway_raw_peer:recv(Socket, ?AT_ONCE_MS),
         {ok, ready} = beamway_wire:decode(Ready),
         ok = gen_tcp:close(Socket)
     end || Huge <- [1000000000000, 1 bsl 63, (1 bsl 64) - 1]],
    %% The node has joined, and is offered another link instead of being told `ready', or is told that there is none.
    [begin
         Socket = beamway_raw_peer:call(Node, answered, #{extension => Extension}),
         ok = beamway_raw_peer:send(Socket, Second),
         {Expected, Expected} = {Expected, second_outcome(Socket)},
         ok = gen_tcp:close(Socket)
     end || {Second, Expected} <- [{Offer, closed}, {beamway_wire:encode({nack, <<"changed my mind">>}), tcp}]],
    ok = takes_new_connections(Node).

second_outcome(Socket) ->
    case beamway_raw_peer:recv(Socket, 300) of
        {error, closed} -> closed;
        {error, timeout} -> tcp
    end.

outcome(Socket, tcp_at_once) ->
    case beamway_raw_peer:recv(Socket, 300) of
        {error, timeout} -> tcp_at_once;
        Other -> Other
    end;
outcome(Socket, _) ->
    case beamway_raw_peer:recv(Socket, ?AT_ONCE_MS) of
        {error, closed} -> closed;
        {ok, Answer} ->
            case beamway_wire:decode(Answer) of
                {ok, {nack, _}} -> tcp;
                Other -> Other
            end;
        Other -> Other
    end.

%% The node has called us and made an offer.
bad_answers(Config) ->
    {Peer, Node} = under_test(Config),
    Extension = valid_extension(Peer),
    [_, Host] = string:split(atom_to_list(Node), "@"),
    Hello = crypto_free_noise(32),
    Bad = [{empty, false, fun(_) -> <<>> end},
           {garbage, false, fun(_) -> <<"hello">> end},
           {version, false, fun(_) -> <<2, $r>> end},
           {offer, false, fun(_) -> beamway_raw_peer:offer(#{}) end},
           {nack, true, fun(_) -> beamway_wire:encode({nack, <<"because">>}) end},
           {ready_but_nobody_came, true, fun(_) -> beamway_wire:encode(ready) end},
           {connected_with_nonsense, true, fun(#{address := Address}) ->
                ok = beamway_raw_peer:tell(Address, Hello), beamway_wire:encode(ready) end},
           {connected_without_descriptors, true, fun(#{address := Address, token := Token}) ->
                ok = beamway_raw_peer:tell(Address, <<Token/binary, 1:32/native, 0:32, 1048576:64/native>>),
                beamway_wire:encode(ready) end}],
    [begin
         Before = length(problems(Config)),
         #{node := Raw} = Server = beamway_raw_peer:listen(Host),
         Call = beamway_peer:async(fun() -> beamway_peer:call(Peer, net_kernel, connect_node, [Raw]) end),
         Socket = beamway_raw_peer:serve(Server, acknowledged, #{extension => Extension}),
         {ok, Packet} = beamway_raw_peer:recv(Socket, ?WAIT_MS),
         {ok, {offer, Offer}} = beamway_wire:decode(Packet),
         ok = beamway_raw_peer:send(Socket, Answer(Offer)),
         {Name, Connected} = {Name, beamway_peer:await(Call)},
         ok = gen_tcp:close(Socket),
         ok = beamway_raw_peer:close(Server),
         _ = beamway_peer:wait_until(fun() -> length(problems(Config)) > Before end, ?WAIT_MS),
         {Name, 1} = {Name, length(problems(Config)) - Before}
     end || {Name, Connected, Answer} <- Bad],
    ok = takes_new_connections(Node).

%% --- the ring ------------------------------------------------------------------------------------------

%% The test is not the peer, so it writes where the peer would: into the peer's memory, from outside.
%% The node under test is stopped meanwhile, so that nothing valid is written over it.

%% Heads and tails that no correct peer writes. The reader finds a wrong head, the writer a wrong
%% tail as soon as it needs room.
forged_ring_headers(Config) ->
    [ok = forge(Config, Room, fun(Memory, _) ->
                                  [ok = write_memory(Memory, Offset, <<Value:64/native>>) || Offset <- Offsets],
                                  ok
                              end)
     || {Offsets, Room} <- [{[0, ?RING_HEADER_BYTES], 1},
                             {[?RING_TAIL, ?RING_HEADER_BYTES + ?RING_TAIL], 20000000}],
        Value <- [16#ffffffffffffffff, 1 bsl 63, 1 bsl 32, 1 bsl 31]],
    ok.

%% Frames with a wrong magic word, kind or length, in place of all that waits to be read.
forged_frames(Config) ->
    [ok = forge(Config, 1, fun(Memory, RingBytes) -> fill_with(Memory, RingBytes, Frame) end)
     || Frame <- [<<0:64>>, <<"garbage!">>,
                  <<16#ffffffff:32/native, 16#BEA3:16/native, 1:16/native>>,
                  <<100:32/native, 16#BEA3:16/native, 7:16/native>>,
                  <<0:32/native, 16#BEA3:16/native, 1:16/native>>,
                  <<8:32/native, 16#BEA3:16/native, 2:16/native>>]],
    ok.

%% In memory the headers come first, then the data of each ring twice.
fill_with(Memory, RingBytes, Frame) ->
    Block = binary:copy(Frame, 65536 div 8),
    [ok = write_memory(Memory, Start + Offset, Block)
     || Start <- [65536, 65536 + 2 * RingBytes], Offset <- lists:seq(0, RingBytes - 1, 65536)],
    ok.

%% `Room': how much is written after the forgery; where it is more than the ring, the writer finds it.
forge(Config, Room, Write) ->
    {Peer, Node} = under_test(Config),
    Options = #{args => ["-hidden", "-kernel", "dist_auto_connect", "never"]},
    {ok, Victim, VictimNode} = beamway_peer:start(beamway_shm, Options),
    ok = beamway_peer:connect_both(beamway_shm, Victim, Peer),
    Before = length(problems(Config)),
    Connection = beamway_peer:controller(Victim, Node),
    {ok, #{ring_bytes := RingBytes}} = beamway_peer:call(Victim, beamway, info, [Node]),
    Memory = open_memory(Victim),
    ok = beamway_peer:sigstop(Peer),
    ok = fill_ring(Victim, Node, 100),
    ok = Write(Memory, RingBytes),
    Flood = beamway_peer:run(Victim, fun() ->
        spawn(fun() -> [{beamway_nobody, Node} ! binary:copy(<<1>>, 100000)
                        || _ <- lists:seq(1, Room div 100000)] end)
    end),
    IsDown = fun() -> beamway_peer:controller(Victim, Node) =/= Connection end,
    _ = Room > 1 andalso beamway_peer:wait_until(IsDown, 10000),
    ok = beamway_peer:sigcont(Peer),
    ok = close_memory(Memory),
    _ = beamway_peer:wait_until(IsDown, 10000),
    _ = beamway_peer:wait_until(
          fun() -> not lists:member(VictimNode, beamway_peer:call(Peer, erlang, nodes, [connected])) end,
          10000),
    true = length(problems(Config)) - Before =< 1,
    true = beamway_peer:call(Victim, erlang, exit, [Flood, kill]),
    ok = beamway_peer:connect_both(beamway_shm, Victim, Peer),
    beamway_peer:stop(Victim).

%% The reader is stopped: what is written stays there.
fill_ring(Peer, Node, Messages) ->
    beamway_peer:run(Peer, fun() ->
        {ok, #{frames_out := Before}} = beamway:info(Node),
        [{beamway_nobody, Node} ! Number || Number <- lists:seq(1, Messages)],
        _ = beamway_peer:wait_until(fun() ->
                {ok, #{frames_out := Now}} = beamway:info(Node), Now >= Before + Messages end, ?WAIT_MS),
        ok
    end).

%% The segment is the mapping of the start of the memory file.
open_memory(Peer) ->
    OsPid = beamway_peer:os_pid(Peer),
    [Start] = [list_to_integer(From, 16)
               || Line <- beamway_peer:maps(OsPid),
                  [Range, _, "00000000" | _] <- [string:lexemes(Line, " ")],
                  [From, _To] <- [string:lexemes(Range, "-")]],
    File = filename:join(["/proc", integer_to_list(OsPid), "mem"]),
    {ok, Io} = file:open(File, [read, write, raw, binary]),
    {Io, Start}.

write_memory({Io, Start}, Offset, Bytes) ->
    file:pwrite(Io, Start + Offset, Bytes).

close_memory({Io, _Start}) ->
    file:close(Io).

%% A stock peer has the driver's link over TCP, and announces what no Erlang node sends.
packet_of_4_gb(Config) ->
    {_, Node} = under_test(Config),
    Socket = beamway_raw_peer:call(Node, authenticated, #{}),
    ok = beamway_raw_peer:send_raw(Socket, <<16#ffffffff:32, "no more">>),
    true = is_integer(beamway_raw_peer:closed_within(Socket, ?WAIT_MS)),
    Log = proplists:get_value(log, Config),
    _ = beamway_peer:wait_until(fun() -> has_line([Log], ["over tcp is down", "broke the distribution protocol"]) end, ?WAIT_MS),
    ok = gen_tcp:close(Socket),
    ok = takes_new_connections(Node).

%% What is announced costs nothing before it comes, and what has come goes back when the peer goes.
packet_without_end(Config) ->
    {Peer, Node} = under_test(Config),
    Before = held(Peer),
    Socket = beamway_raw_peer:call(Node, authenticated, #{}),
    [ok = beamway_raw_peer:send_raw(Socket, <<Byte>>) || <<Byte>> <= <<16#7fffffff:32>>],
    [ok = beamway_raw_peer:send_raw(Socket, binary:copy(<<131>>, 1 bsl 20)) || _ <- lists:seq(1, 20)],
    true = beamway_peer:wait_until(fun() -> held(Peer) > Before + (8 bsl 20) end, ?WAIT_MS),
    true = held(Peer) < Before + (100 bsl 20),
    ok = gen_tcp:close(Socket),
    true = beamway_peer:wait_until(fun() -> held(Peer) < Before + (4 bsl 20) end, ?WAIT_MS),
    ok = takes_new_connections(Node).

held(Peer) -> beamway_peer:call(Peer, erlang, memory, [binary]).

%% --- options -------------------------------------------------------------------------------------------

%% A node with a wrong option says so once and is in its cluster all the same, without the driver.
invalid_options(Config) ->
    [ok = falls_back(Config, #{env => [{Variable, Value}]}, inet, [Option, Value])
     || {Variable, Option, Value} <- [{"BEAMWAY_RING_BYTES", "ring_bytes", "0"},
                                      {"BEAMWAY_RING_BYTES", "ring_bytes", "-1"},
                                      {"BEAMWAY_RING_BYTES", "ring_bytes", "1000000000000"},
                                      {"BEAMWAY_RING_BYTES", "ring_bytes", "4MB"},
                                      {"BEAMWAY_LINKS", "links", "warp"},
                                      {"BEAMWAY_LINKS", "links", ","},
                                      {"BEAMWAY_WHOLE_MESSAGES", "whole_messages", "maybe"},
                                      {"BEAMWAY_POLL_US", "poll_us", "-5"},
                                      {"BEAMWAY_RING_LIMIT_BYTES", "ring_limit_bytes", "lots"},
                                      {"BEAMWAY_SOCKET_DIR", "socket_dir", "relative/dir"}]],
    ok.

%% Nothing is wrong with the others, so they hold.
unknown_parameter(Config) ->
    Log = log_file(Config),
    {ok, Peer, _} = beamway_peer:start(beamway_shm, #{log => Log, args => ["-hidden", "-beamway", "ringbytes", "1", "-beamway", "ring_bytes", "65536"]}),
    _ = beamway_peer:wait_until(fun() -> has_line([Log], ["the parameter ringbytes is not known and has no effect", "links, ring_bytes"]) end, ?WAIT_MS),
    [_] = problem_lines([Log]),
    #{ring_bytes := 65536, links := [_, _ | _]} = beamway_peer:call(Peer, beamway_links, config, []),
    ok = beamway_peer:stop(Peer).

%% Of the kinds that are named the best one carries; OTP's own port needs no naming and contradicts nothing.
the_best_of_links(Config) ->
    {Peer, Node} = under_test(Config),
    {ok, _, StockNode} = beamway_peer:start(inet_tcp, #{args => ["-hidden"]}),
    Shm = fun(Why) -> "shared memory is off on this node" ++ Why end,
    Stock = "the peer does not speak beamway",
    Off = "; OTP's own port: tcp is off on this node",
    [begin
         {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{env => [{"BEAMWAY_LINKS", Links}], args => ["-hidden"]}),
         [begin
              true = beamway_peer:call(Odd, net_kernel, connect_node, [To]),
              ok = beamway_peer:assert_link(Odd, To, Kind),
              ok = beamway_peer:assert_reason(Odd, To, Reason),
              To = beamway_peer:call(Odd, erpc, call, [To, erlang, node, []]),
              Labels = iolist_to_binary(["beamway_link_bytes_out_total{peer=\"", atom_to_list(To), "\",link=\"", atom_to_list(Kind), "\"} "]),
              {match, _} = re:run(beamway_peer:call(Odd, beamway, metrics, []), ["(?m)^\\Q", Labels, "\\E[1-9]"])
          end || {To, {Kind, Reason}} <- [{Node, Ours}, {StockNode, Theirs}]],
         %% What this node may not use itself is no concern of the other's.
         ok = beamway_peer:assert_link(Peer, OddNode, case Best of inet -> tcp; _ -> Best end),
         ok = beamway_peer:stop(Odd)
     end || {Links, {Best, _} = Ours, Theirs} <-
                [{"shm,rdma,tcp", {shm, "same host"}, {tcp, Stock}}, {"inet,tcp,shm", {shm, "same host"}, {tcp, Stock}},
                 {"tcp", {tcp, Shm("")}, {tcp, Stock}}, {"inet, tcp", {tcp, Shm("")}, {tcp, Stock}},
                 {"shm", {shm, "same host"}, {inet, Stock ++ Off}}, {"inet", {inet, Shm(Off)}, {inet, Stock ++ Off}}]],
    ok.

%% A link over tcp has small rings where memory is short; what the socket's port may have read ahead must fit into them.
no_ring_memory_for_tcp(Config) ->
    Short = [{"BEAMWAY_RING_LIMIT_BYTES", "0"}],
    ok = falls_back(Config, #{env => Short}, tcp, ["rings of 65536 instead of 262144 bytes"]),
    Buffer = "[{buffer,1000000}]",
    ok = falls_back(Config, #{env => Short, args => ["-kernel", "inet_dist_connect_options", Buffer, "inet_dist_listen_options", Buffer]},
                    inet, ["no link of the driver with", "using OTP's own port: no ring memory for the socket's option buffer"]).

%% The limit holds one link and a half: the second is smaller, the third has none, until one ends.
ring_limit(Config) ->
    {_, Node} = under_test(Config),
    Ring = 1048576,
    Env = [{"BEAMWAY_RING_BYTES", integer_to_list(Ring)}, {"BEAMWAY_RING_LIMIT_BYTES", integer_to_list(3 * Ring)}],
    [begin
         Log = log_file(Config),
         Starts = [beamway_peer:async(fun() -> beamway_peer:start(beamway_shm, Options#{args => ["-hidden"]}) end)
                   || Options <- [#{log => Log, env => Env}, #{}, #{}, #{}]],
         [{ok, Odd, OddNode} | Started] = [beamway_peer:await(Start) || Start <- Starts],
         Others = [{Peer, Name} || {ok, Peer, Name} <- Started],
         Connect = fun({Peer, Name}) ->
                           true = case Caller of
                                      odd -> beamway_peer:call(Odd, net_kernel, connect_node, [Name]);
                                      other -> beamway_peer:call(Peer, net_kernel, connect_node, [OddNode])
                                  end,
                           _ = beamway_peer:wait_until(fun() -> beamway_peer:controller(Odd, Name) =/= undefined end, ?WAIT_MS),
                           beamway_peer:call(Odd, beamway, info, [Name])
                   end,
         [First, {SecondPeer, Second} = SecondOne, Third] = Others,
         {ok, #{link := shm, ring_bytes := Ring}} = Connect(First),
         {ok, #{link := shm, ring_bytes := 524288}} = Connect(SecondOne),
         _ = beamway_peer:wait_until(fun() -> has_line([Log], ["rings of 524288 instead of 1048576 bytes", "ring_limit_bytes"]) end, ?WAIT_MS),
         {ok, #{link := tcp, reason := <<"the ring memory of this node is used up (ring_limit_bytes)">>}} = Connect(Third),
         {ThirdPeer, ThirdNode} = Third,
         _ = beamway_peer:wait_until(fun() -> has_line([Log], ["no shared memory with", "used up"]) end, ?WAIT_MS),
         true = beamway_peer:call(SecondPeer, erlang, disconnect_node, [OddNode]),
         true = beamway_peer:call(ThirdPeer, erlang, disconnect_node, [OddNode]),
         [ok = beamway_peer:wait_disconnected(Odd, Gone) || Gone <- [Second, ThirdNode]],
         {ok, #{link := shm, ring_bytes := 524288}} = Connect(Third),
         Node = beamway_peer:call(ThirdPeer, erpc, call, [OddNode, erpc, call, [Node, erlang, node, []]]),
         ok = beamway_peer:stop_all([Odd | [Peer || {Peer, _} <- Others]])
     end || Caller <- [odd, other]],
    ok.

%% What counts is the rings that were made, by the smaller of both nodes' values: here 128 KB for each link.
ring_limit_of_small_rings(_Config) ->
    {ok, Odd, _} = beamway_peer:start(beamway_shm, #{args => ["-hidden"],
                                                     env => [{"BEAMWAY_RING_BYTES", "1048576"}, {"BEAMWAY_RING_LIMIT_BYTES", "3145728"}]}),
    [begin
         {ok, _, Node} = beamway_peer:start(beamway_shm, #{args => ["-hidden"], env => [{"BEAMWAY_RING_BYTES", "65536"}]}),
         true = beamway_peer:call(Odd, net_kernel, connect_node, [Node]),
         {ok, #{link := shm, ring_bytes := 65536}} = beamway_peer:call(Odd, beamway, info, [Node])
     end || _ <- lists:seq(1, 4)],
    ok.

%% Not usable when the node starts: it says so, and again for each link that it offers in vain.
socket_dir_not_usable(Config) ->
    [ok = falls_back(Config, #{env => [{"BEAMWAY_SOCKET_DIR", Dir}]}, tcp, Words, [odd])
     || {Dir, Why} <- [{"/nowhere/at/all", "No such file"}, {"/dev/null", "Not a directory"}],
        Words <- [["links use tcp as long as socket_dir", Dir, Why], ["no shared memory with", "socket_dir: " ++ Why]]],
    ok.

%% One node reads the name as UTF-8, the other byte by byte, as where no locale is set.
socket_dir_in_another_locale(_Config) ->
    Folder = beamway_peer:new_folder("beamway-locale"),
    Dir = filename:join(Folder, "gr\x{f6}\x{df}e"),
    ok = file:make_dir(Dir),
    Options = #{args => ["-hidden"], env => [{"BEAMWAY_SOCKET_DIR", Dir}]},
    try
        {ok, One, OneNode} = beamway_peer:start(beamway_shm, Options),
        {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, Options#{args := ["-hidden", "+fnl"]}),
        latin1 = beamway_peer:call(Odd, file, native_name_encoding, []),
        [begin
             ok = beamway_peer:connect_both(beamway_shm, Caller, Called),
             true = beamway_peer:call(One, erlang, disconnect_node, [OddNode]),
             ok = beamway_peer:wait_disconnected(One, OddNode),
             ok = beamway_peer:wait_disconnected(Odd, OneNode)
         end || {Caller, Called} <- [{One, Odd}, {Odd, One}]],
        Left = filename:join(Dir, "beamway-0123456789abcdef"),
        [begin
             ok = leave_socket(Left),
             1 = beamway_peer:call(Each, beamway_socket_dir, sweep, [maps:get(socket_dir, beamway_peer:call(Each, beamway_links, config, []))])
         end || Each <- [One, Odd]]
    after
        file:del_dir_r(Folder)
    end,
    ok.

%% As a killed node leaves it: an old name of nobody.
leave_socket(Path) ->
    {ok, Socket} = gen_tcp:listen(0, [local, {ifaddr, {local, beamway_socket_dir:bytes(Path)}}]),
    ok = gen_tcp:close(Socket),
    file:change_time(Path, {{2020, 1, 1}, {0, 0, 0}}).

%% The server that grants memory does not answer in time.
link_server_hangs(Config) ->
    {Peer, Node} = under_test(Config),
    {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{args => ["-hidden"]}),
    [begin
         ok = beamway_peer:call(Odd, sys, suspend, [beamway_links]),
         true = beamway_peer:call(Caller, net_kernel, connect_node, [Called]),
         {ok, #{link := inet, reason := <<"the link server does not answer", _/binary>>}} =
             beamway_peer:wait_until(fun() -> is_known(beamway_peer:call(Odd, beamway, info, [Node])) end, ?WAIT_MS),
         ok = beamway_peer:call(Odd, sys, resume, [beamway_links]),
         true = beamway_peer:call(Odd, erlang, disconnect_node, [Node]),
         ok = beamway_peer:wait_disconnected(Peer, OddNode),
         ok = beamway_peer:connect(beamway_shm, Caller, Called),
         true = beamway_peer:call(Odd, erlang, disconnect_node, [Node]),
         ok = beamway_peer:wait_disconnected(Peer, OddNode)
     end || {Caller, Called} <- [{Odd, Node}, {Peer, OddNode}]],
    ok.

%% The same where a connection has less time than that server has otherwise.
link_server_hangs_in_a_hurry(_Config) ->
    Hurry = #{args => ["-hidden", "-kernel", "net_setuptime", "1.9"]},
    [{One, OneNode}, {Odd, OddNode}] = [{Peer, Node} || _ <- [one, odd], {ok, Peer, Node} <- [beamway_peer:start(beamway_shm, Hurry)]],
    ok = beamway_peer:call(Odd, sys, suspend, [beamway_links]),
    [begin
         true = beamway_peer:call(Caller, net_kernel, connect_node, [Called]),
         ok = beamway_peer:assert_link(Odd, OneNode, inet),
         true = beamway_peer:call(Odd, erlang, disconnect_node, [OneNode]),
         ok = beamway_peer:wait_disconnected(Odd, OneNode),
         ok = beamway_peer:wait_disconnected(One, OddNode)
     end || {Caller, Called} <- [{Odd, OneNode}, {One, OddNode}]],
    ok.

is_known({ok, _} = Info) -> Info;
is_known({error, not_connected}) -> false.

%% --- the driver ----------------------------------------------------------------------------------------

driver_missing(Config) ->
    with_copy(Config, fun(Driver) -> ok = file:delete(Driver) end, ["beamway_drv.so"]).

driver_damaged(Config) ->
    with_copy(Config, fun(Driver) -> ok = file:write_file(Driver, crypto_free_noise(5000)) end,
              ["beamway_drv.so"]).

driver_of_another_version(Config) ->
    Include = filename:join([code:root_dir(), "usr", "include"]),
    with_copy(Config, fun(Driver) ->
        ok = file:delete(Driver),
        ok = compile_c("old_driver.c", ["-shared", "-fPIC", "-I", Include, "-o", Driver])
    end, ["version 999"]).

%% What is missing at the start can be loaded in the running node, as often as it comes and goes.
driver_comes_later(Config) ->
    {Peer, Node} = under_test(Config),
    Root = copy(Config, "beamway"),
    [Driver, Away] = [filename:join([Root, "beamway", "priv", Name]) || Name <- ["beamway_drv.so", "away"]],
    ok = file:rename(Driver, Away),
    {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{ebin => filename:join([Root, "beamway", "ebin"]), args => ["-hidden"]}),
    ConnectsBy = fun(Kind) ->
                         true = beamway_peer:call(Odd, net_kernel, connect_node, [Node]),
                         ok = beamway_peer:assert_link(Odd, Node, Kind),
                         true = beamway_peer:call(Odd, erlang, disconnect_node, [Node]),
                         ok = beamway_peer:wait_disconnected(Odd, Node),
                         beamway_peer:wait_disconnected(Peer, OddNode)
                 end,
    ok = ConnectsBy(inet),
    [begin
         ok = file:rename(Away, Driver),
         ok = beamway_peer:call(Odd, beamway, reload_driver, []),
         ok = ConnectsBy(shm),
         ok = file:rename(Driver, Away),
         {error, Reason} = beamway_peer:call(Odd, beamway, reload_driver, []),
         {_, _} = binary:match(Reason, <<"make build">>),
         ok = ConnectsBy(inet)
     end || _ <- [first, second]],
    ok.

%% In a directory of any name and without a file of the application, a node has its links all the same.
application_without_its_name(Config) ->
    {Peer, Node} = under_test(Config),
    Root = copy(Config, "carrier"),
    ok = file:delete(filename:join([Root, "carrier", "ebin", "beamway.app"])),
    {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{ebin => filename:join([Root, "carrier", "ebin"])}),
    ok = beamway_peer:connect(beamway_shm, Odd, Node),
    ok = beamway_peer:assert_link(Peer, OddNode, shm).

%% What only this application sends to its driver, sent by somebody else: a badarg or a reason, nothing more.
bad_commands(Config) ->
    {Peer, Node} = under_test(Config),
    ok = beamway_peer:run(Peer, fun() ->
        {ok, Listener} = beamway_port:open(),
        {ok, Peer2} = beamway_port:open(),
        [?BADARG = attempt(Listener, Command, Data)
         || {Command, Data} <- [{0, <<>>}, {11, <<>>}, {999, <<1:64>>},
                                {5, <<>>}, {5, <<0:64>>},              % activate without link
                                {6, <<>>}, {8, <<>>}, {10, <<>>},      % tick, receive, look
                                {20, <<>>}, {20, <<"shm">>},           % use without an end
                                {21, <<65536:64>>},                    % listen, connect, step, probe without a carrier
                                {22, <<65536:64, 0:160>>}, {23, <<>>}, {24, <<65536:64>>}]],
        {error, <<"the driver has no such carrier">>} =
            case attempt(Listener, 20, <<"carrier pigeon", 0>>) of <<1, Why/binary>> -> {error, Why} end,
        [ok = beamway_port:use(Port, shm) || Port <- [Listener, Peer2]],
        [?BADARG = attempt(Listener, Command, Data)
         || {Command, Data} <- [{21, <<1:32>>}, {22, <<65536:64>>}, {24, <<1:32>>}, {23, <<>>}]],
        {error, <<"socket_dir is too long for a unix socket">>} = beamway_port:listen(Listener, binary:copy(<<"x">>, 300), 65536),
        {error, _} = beamway_port:probe(shm, 1000),
        #{bytes_in := 0, ring_bytes := 0} = beamway_port:stats(Listener),
        true = port_command(Listener, <<"to nobody">>),
        ok = beamway_port:listen(Listener, <<>>, 65536),
        {listening, #{token := Token, address := Address, text := <<"nobody came to the unix socket", _/binary>>}} =
            beamway_port:step(Listener),
        ?BADARG = attempt(Listener, 23, <<1:8>>),
        ?BADARG = attempt(Listener, 21, <<65536:64>>),
        ok = beamway_port:connect(Peer2, Address, Token, 65536, 1000),
        [{linked, <<>>} = beamway_port:step(Port) || Port <- [Peer2, Listener]],
        ?BADARG = attempt(Listener, 23, <<>>),
        ?BADARG = attempt(Peer2, 22, <<65536:64, Token/binary, 0:32, Address/binary>>),
        #{bytes_out := 0, ring_bytes := 65536} = beamway_port:stats(Listener),
        [begin ok = beamway_port:close(Port), ok = beamway_port:close(Port), ?BADARG = attempt(Port, 7, <<>>) end
         || Port <- [Listener, Peer2]],
        ok
    end),
    ok = takes_new_connections(Node).

attempt(Port, Command, Data) ->
    try erlang:port_control(Port, Command, Data) of
        Answer -> Answer
    catch
        error:badarg -> ?BADARG
    end.

%% A node that runs from a copy of the application in which something is wrong.
with_copy(Config, Damage, Words) ->
    Root = copy(Config, "beamway"),
    ok = Damage(filename:join([Root, "beamway", "priv", "beamway_drv.so"])),
    falls_back(Config, #{ebin => filename:join([Root, "beamway", "ebin"])}, inet, Words).

copy(Config, Name) ->
    Root = filename:join(proplists:get_value(priv_dir, Config), beamway_peer:unique_name("copy")),
    Source = filename:dirname(filename:absname(beamway_peer:ebin())),
    [begin
         To = filename:join([Root, Name, Dir]),
         ok = filelib:ensure_path(To),
         [{ok, _} = file:copy(File, filename:join(To, filename:basename(File)))
          || File <- filelib:wildcard(filename:join([Source, Dir, "*"]))]
     end || Dir <- ["ebin", "priv"]],
    Root.

compile_c(Source, Arguments) ->
    File = test_support:file(filename:join("apps/test_support/c_src", Source)),
    Command = lists:join(" ", ["cc", "-std=c11", "-O1", File | Arguments]),
    case os:cmd(lists:flatten(Command) ++ " 2>&1 && echo compiled") of
        "compiled\n" -> ok;
        Output -> error({cannot_compile, Source, Output})
    end.

%% --- limits of the host --------------------------------------------------------------------------------

%% The node that is called makes the memory: where that cannot be, it says so and TCP it is. A node
%% that cannot make memory but calls may use what the other made.

%% 32 MB are enough for the VM's own memory files and for a log, not for two rings of that size.
file_size_limit(Config) ->
    %% In blocks of 512 bytes.
    falls_back(with_large_rings(Config), #{env => ?LARGE_RINGS, before_exec => "ulimit -f 196608;"}, tcp,
               ["file size limit"], [healthy]).

%% The other side must want them too: the smaller size is taken.
with_large_rings(Config) ->
    {ok, Peer, Node} = beamway_peer:start(beamway_shm, #{env => ?LARGE_RINGS}),
    [{under_test, {Peer, Node}} | Config].

%% The VM cannot even boot without a good number of descriptors; so it boots, and then has only those
%% left that a TCP connection takes.
descriptor_limit(Config) ->
    {Peer, Node} = under_test(Config),
    [begin
         %% Hidden: else global, in the middle of its exchange, connects again after the disconnect below.
         {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{log => Log, args => ["-hidden"],
                                                                before_exec => "ulimit -n 150;"}),
         Own = sockets(Odd),
         %% The programs that resolve names are started, the log is open.
         ok = beamway_peer:connect(beamway_shm, Odd, Node),
         true = beamway_peer:call(Odd, erlang, disconnect_node, [Node]),
         ok = beamway_peer:wait_disconnected(Peer, OddNode),
         _ = beamway_peer:wait_until(fun() -> has_no_doorbells(Odd) andalso sockets(Odd) =< Own end, ?WAIT_MS),
         Holder = beamway_peer:run(Odd, fun() -> take_descriptors(2) end),
         {Caller, true} = case Caller of
                              odd -> {odd, beamway_peer:call(Odd, net_kernel, connect_node, [Node])};
                              healthy -> {healthy, beamway_peer:call(Peer, net_kernel, connect_node, [OddNode])}
                          end,
         ok = beamway_peer:assert_link(Odd, Node, inet),
         ok = beamway_peer:assert_link(Peer, OddNode, tcp),
         true = beamway_peer:call(Odd, erlang, exit, [Holder, kill]),
         _ = beamway_peer:wait_until(fun() -> has_line([Log], ["Too many open files"]) end, ?WAIT_MS),
         ok = beamway_peer:stop(Odd)
     end || {Caller, Log} <- [{odd, log_file(Config)}, {healthy, log_file(Config)}]],
    ok.

%% A port closes its descriptors when no poller looks at them any more: later than the link goes.
has_no_doorbells(Peer) ->
    [] =:= [Fd || {Fd, "anon_inode:[eventfd]"} <- beamway_peer:fds(beamway_peer:os_pid(Peer))].

%% The peer may know of a disconnect before this node has closed its own socket.
sockets(Peer) ->
    length([Fd || {Fd, "socket:" ++ _} <- beamway_peer:fds(beamway_peer:os_pid(Peer))]).

%% Opens files until there are none left, then gives some back.
take_descriptors(Free) ->
    Self = self(),
    Holder = spawn(fun() ->
                       Files = open_files([]),
                       [ok = file:close(File) || File <- lists:sublist(Files, Free)],
                       Self ! {self(), taken},
                       receive after infinity -> Files end
                   end),
    receive {Holder, taken} -> Holder end.

open_files(Files) ->
    case file:open("/dev/null", [read, raw]) of
        {ok, File} -> open_files([File | Files]);
        {error, emfile} -> Files
    end.

%% All ports of the VM are taken but one, which the socket of the connection takes.
port_limit(Config) ->
    {Peer, Node} = under_test(Config),
    [begin
         {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, #{log => Log, args => ["-hidden", "+Q", "1024"]}),
         %% What the first connection opens for good is there.
         ok = beamway_peer:connect(beamway_shm, Odd, Node),
         true = beamway_peer:call(Odd, erlang, disconnect_node, [Node]),
         ok = beamway_peer:wait_disconnected(Peer, OddNode),
         _ = beamway_peer:wait_until(fun() -> has_no_doorbells(Odd) end, ?WAIT_MS),
         Holder = beamway_peer:run(Odd, fun() -> take_ports(1) end),
         true = case Caller of
                    odd -> beamway_peer:call(Odd, net_kernel, connect_node, [Node]);
                    healthy -> beamway_peer:call(Peer, net_kernel, connect_node, [OddNode])
                end,
         ok = beamway_peer:assert_link(Odd, Node, inet),
         ok = beamway_peer:assert_link(Peer, OddNode, tcp),
         true = beamway_peer:call(Odd, erlang, exit, [Holder, kill]),
         _ = beamway_peer:wait_until(fun() -> has_line([Log], ["cannot open a port of the driver", "system_limit"]) end, ?WAIT_MS),
         ok = beamway_peer:stop(Odd)
     end || {Caller, Log} <- [{odd, log_file(Config)}, {healthy, log_file(Config)}]],
    ok.

%% Opens ports until there are none left, then gives some back.
take_ports(Free) ->
    Self = self(),
    Holder = spawn(fun() ->
                       Ports = open_ports([]),
                       [true = port_close(Port) || Port <- lists:sublist(Ports, Free)],
                       Self ! {self(), taken},
                       receive after infinity -> Ports end
                   end),
    receive {Holder, taken} -> Holder end.

open_ports(Ports) ->
    try open_port({spawn_driver, "beamway_drv"}, []) of
        Port -> open_ports([Port | Ports])
    catch
        error:system_limit -> Ports
    end.

%% What a node without a ring takes, and half of what the rings take in the address space.
address_space_limit(Config) ->
    {ok, Probe, _} = beamway_peer:start(beamway_tcp),
    {ok, Status} = file:read_file(filename:join(["/proc", integer_to_list(beamway_peer:os_pid(Probe)),
                                                 "status"])),
    {match, [KiB]} = re:run(Status, "VmPeak:\\s+(\\d+) kB", [{capture, all_but_first, list}]),
    ok = beamway_peer:stop(Probe),
    Limit = "ulimit -v " ++ integer_to_list(list_to_integer(KiB) + 65536) ++ ";",
    falls_back(with_large_rings(Config), #{env => ?LARGE_RINGS, before_exec => Limit}, tcp,
               ["Cannot allocate memory"]).

no_memfd(Config) ->
    falls_back(Config, #{wrapper => [refuser(Config), "memfd_create"]}, inet, ["memfd_create"], [healthy]).

no_eventfd(Config) ->
    falls_back(Config, #{wrapper => [refuser(Config), "eventfd2"]}, inet, ["eventfd"], [healthy]).

refuser(Config) ->
    Program = filename:join(proplists:get_value(priv_dir, Config), "refuse"),
    ok = compile_c("refuse.c", ["-o", Program]),
    Program.

%% --- what every case ends in -----------------------------------------------------------------------------

%% A node started with these options has links of that kind to a node that has tcp, in both directions of calling, says why in a
%% line that has all the words, and messages of all sizes pass.
falls_back(Config, Options, Kind, Words) ->
    falls_back(Config, Options, Kind, Words, [odd, healthy]).

falls_back(Config, Options, Kind, Words, Callers) ->
    {Peer, Node} = under_test(Config),
    [begin
         {ok, Odd, OddNode} = beamway_peer:start(beamway_shm, Options#{log => Log}),
         case Caller of
             odd -> true = beamway_peer:call(Odd, net_kernel, connect_node, [Node]);
             healthy -> true = beamway_peer:call(Peer, net_kernel, connect_node, [OddNode])
         end,
         ct:log("caller ~p, options ~0p", [Caller, Options]),
         ok = beamway_peer:assert_link(Odd, Node, Kind),
         ok = beamway_peer:assert_link(Peer, OddNode, tcp),
         ok = beamway_peer:run(Odd, fun() ->
             [Size = byte_size(erpc:call(Node, binary, copy, [<<1>>, Size])) || Size <- [1, 100000, 3000000]],
             ok
         end),
         _ = beamway_peer:wait_until(
               fun() -> has_line([Log, proplists:get_value(log, Config)], Words) end, ?WAIT_MS),
         ok = beamway_peer:stop(Odd)
     end || Caller <- Callers, Log <- [log_file(Config)]],
    ok.

has_line(Logs, Words) ->
    [] =/= [Line || Line <- problem_lines(Logs),
                    lists:all(fun(Word) -> string:find(Line, Word) =/= nomatch end, Words)].

takes_new_connections(Node) ->
    {ok, Peer, _} = beamway_peer:start(beamway_shm),
    ok = beamway_peer:connect(beamway_shm, Peer, Node),
    beamway_peer:stop(Peer).

logs(Config, Words) ->
    Log = proplists:get_value(log, Config),
    _ = beamway_peer:wait_until(
          fun() -> string:find(beamway_peer:log_text(Log), Words) =/= nomatch end, ?WAIT_MS),
    ok.

%% The lines of the node's log that tell a problem of Beamway.
problems(Config) ->
    problem_lines([proplists:get_value(log, Config)]).

problem_lines(Logs) ->
    [Line || Log <- Logs, Line <- string:lexemes(beamway_peer:log_text(Log), "\n"),
             string:find(Line, "beamway: ") =/= nomatch,
             string:find(Line, " error: ") =/= nomatch orelse string:find(Line, " warning: ") =/= nomatch].
