%% SPDX-License-Identifier: Apache-2.0
%% @doc Peers that send garbage in the handshake, in the agreement, in the ring and as packets, and foreign processes that send commands to the
%% driver.
%%
%% Each case ends in the same way: the node logs one line about what is wrong and falls back to TCP where that is possible, and its other connections
%% are not affected. There is only one group, because shared memory is the only carrier that adds an input: the ring.
%% The suites beamway_options_SUITE and beamway_fallback_SUITE test how options and hosts affect a link.
-module(beamway_bad_input_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2,
         init_per_testcase/2, end_per_testcase/2]).
-export([garbage_for_a_handshake/1, gone_in_a_handshake/1, odd_extensions/1, wrong_cookie_with_extension/1, bad_offers/1,
         bad_answers/1, forged_ring_headers/1, forged_frames/1, bad_commands/1, packet_of_4_gb/1, packet_without_end/1]).

-import(beamway_friends, [under_test/1, has_line/2, problem_lines/1]).

-define(WAIT_MS, 20000).
%% From native/link/ring.h: each header begins with the ring's head, and the headers of the two rings follow one
%% another.
-define(RING_HEADER_BYTES, 320).
-define(RING_TAIL, 64).
-define(BADARG, {refused, badarg}).
%% This is shorter than any timeout of the handshake, because a peer must be rejected immediately.
-define(AT_ONCE_MS, 1500).

suite() -> [{timetrap, {minutes, 2}}].

all() -> beamway_carrier:all([beamway_shm]).

groups() ->
    beamway_carrier:groups(
      [beamway_shm],
      [garbage_for_a_handshake, gone_in_a_handshake, odd_extensions, wrong_cookie_with_extension, bad_offers, bad_answers,
       forged_ring_headers, forged_frames, bad_commands, packet_of_4_gb, packet_without_end]).

init_per_group(Carrier, Config) -> beamway_carrier:init_group(Carrier, Config).

end_per_group(_Carrier, _Config) -> ok.

init_per_testcase(Case, Config) when Case =:= forged_ring_headers; Case =:= forged_frames ->
    %% The kernel may not even allow the parent of a process to write to its memory.
    case file:open("/proc/" ++ os:getpid() ++ "/mem", [read, write, raw]) of
        {ok, Io} -> ok = file:close(Io), beamway_friends:begin_case(Config);
        {error, Reason} -> {skip, {rights, {"cannot write to the memory of a process", Reason}}}
    end;
init_per_testcase(_Case, Config) ->
    beamway_friends:begin_case(Config).

end_per_testcase(_Case, Config) -> beamway_friends:end_case(Config).

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
               rand:bytes(3000)],
    [begin
         Socket = beamway_raw_peer:call(Node, connected, #{}),
         ok = beamway_raw_peer:send_raw(Socket, Bytes),
         _ = gen_tcp:shutdown(Socket, write), % the node may already have closed the connection of a peer that it rejects
         true = is_integer(beamway_raw_peer:closed_within(Socket, ?AT_ONCE_MS))
     end || Bytes <- Garbage],
    ok = takes_new_connections(Node).

%% Other implementations may send anything here, so the node ignores what is not exactly our extension.
odd_extensions(Config) ->
    {Peer, Node} = under_test(Config),
    Valid = valid_extension(Peer),
    Odd = [binary:part(Valid, 0, Length) || Length <- lists:seq(1, byte_size(Valid) - 1)]
        ++ [<<0>>, <<"BWay">>, <<"BWay", 1, 65535:16>>, <<"BWay", 1, 0:16>>,
            <<"BWay", 2, 18:16, 0:144>>, <<"BWay", 0, 18:16, 0:144>>, <<"Other", Valid/binary>>,
            binary:copy(<<"BWay">>, 5000), rand:bytes(1000)],
    [begin
         Socket = beamway_raw_peer:call(Node, authenticated, #{extension => Extension}),
         %% The connection is up as with a stock node, so the next thing on the wire would be distribution data.
         ok = inet:setopts(Socket, [{packet, 4}]),
         ok = gen_tcp:close(Socket)
     end || Extension <- Odd],
    ok = takes_new_connections(Node).

valid_extension(Peer) ->
    %% This peer cannot resume a link, so the extension does not offer it.
    beamway_wire:encode_extension((beamway_peer:call(Peer, beamway_links, extension, [tcp]))#{resume_ms := 0}).

%% Nothing is agreed on before the cookie is checked: the socket closes, and nothing is read after the reply.
wrong_cookie_with_extension(Config) ->
    {Peer, Node} = under_test(Config),
    Socket = beamway_raw_peer:call(Node, challenge, #{extension => valid_extension(Peer)}),
    ok = beamway_raw_peer:send(Socket, <<$r, 4711:32, 0:128>>),
    ok = beamway_raw_peer:send(Socket, beamway_raw_peer:offer(#{})),
    {error, closed} = beamway_raw_peer:recv(Socket, ?AT_ONCE_MS),
    ok = logs(Config, "Invalid challenge reply"),
    ok = takes_new_connections(Node).

%% The driver does not create a link on a socket whose peer has disconnected. That is not the node's fault, so it logs
%% nothing.
gone_in_a_handshake(Config) ->
    {Peer, _} = under_test(Config),
    Log = proplists:get_value(log, Config),
    ok = beamway_peer:run(Peer, fun() ->
        {ok, Listener} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {active, false}]),
        {ok, Port} = inet:port(Listener),
        {ok, Gone} = gen_tcp:connect({127, 0, 0, 1}, Port, [{linger, {true, 0}}]),
        {ok, Stream} = gen_tcp:accept(Listener, ?WAIT_MS),
        ok = gen_tcp:close(Gone),
        _ = beamway_peer:wait_until(fun() -> beamway_stream:peer_text(Stream) =:= <<>> end, ?WAIT_MS),
        {ok, _, _} = beamway_stream_tcp:carry(Stream, accepting, none),
        ok = logger:warning("beamway: the end"),
        ok
    end),
    _ = beamway_peer:wait_until(fun() -> has_line([Log], ["the end"]) end, ?WAIT_MS),
    [_] = problem_lines([Log]),
    ok.

%% --- the agreement -------------------------------------------------------------------------------------

%% Sends each offer after a valid handshake. `tcp' means that the node replies with nack and falls back to TCP, `tcp_at_once' that it falls back to
%% TCP without a reply, and `closed' that it closes the connection.
bad_offers(Config) ->
    {Peer, Node} = under_test(Config),
    Extension = valid_extension(Peer),
    Offer = beamway_raw_peer:offer(#{}),
    Listener = fun beamway_raw_peer:open_listener/0,
    Bad = [{empty, closed, <<>>},
           {garbage, closed, <<"hello">>},
           {noise, closed, <<"~~", (rand:bytes(500))/binary>>},
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
         ok = another_hour(Peer),
         Before = length(problems(Config)),
         Socket = beamway_raw_peer:call(Node, authenticated, #{extension => Extension}),
         ok = beamway_raw_peer:send(Socket, Bytes),
         {Name, Expected} = {Name, outcome(Socket, Expected)},
         ok = gen_tcp:close(Socket),
         %% Each offer causes exactly one line in the log.
         _ = beamway_peer:wait_until(fun() -> length(problems(Config)) > Before end, ?WAIT_MS),
         {Name, 1} = {Name, length(problems(Config)) - Before}
     end || {Name, Expected, Bytes} <- Bad],
    %% Oversized rings are reduced to what the node itself allows.
    [begin
         Socket = beamway_raw_peer:call(Node, authenticated, #{extension => Extension}),
         ok = beamway_raw_peer:send(Socket, beamway_raw_peer:offer(#{ring_bytes => Huge, address => Listener()})),
         {ok, Ready} = beamway_raw_peer:recv(Socket, ?AT_ONCE_MS),
         {ok, ready} = beamway_wire:decode(Ready),
         ok = gen_tcp:close(Socket)
     end || Huge <- [1000000000000, 1 bsl 63, (1 bsl 64) - 1]],
    %% The node has joined. Instead of `ready' it receives another offer, or is told that no link is possible.
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
        {error, timeout} -> tcp;
        {ok, <<>>} -> tcp % the tick with which a link begins
    end.

outcome(Socket, tcp_at_once) ->
    case beamway_raw_peer:recv(Socket, 300) of
        {error, timeout} -> tcp_at_once;
        {ok, <<>>} -> tcp_at_once; % the tick with which a link begins
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

%% The node has called this peer and made an offer.
bad_answers(Config) ->
    {Peer, Node} = under_test(Config),
    Extension = valid_extension(Peer),
    [_, Host] = string:split(atom_to_list(Node), "@"),
    Hello = rand:bytes(32),
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
         ok = another_hour(Peer),
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

%% The test is not the peer, so it writes into the peer's memory from outside, where the peer itself would write.
%% Meanwhile the node under test is stopped, so that it does not overwrite these bytes with valid data.

%% Writes heads and tails that no correct peer writes. The reader detects a wrong head immediately; the writer detects a wrong tail when it next needs
%% room.
forged_ring_headers(Config) ->
    [ok = forge(Config, Room, fun(Memory, _) ->
                                  [ok = write_memory(Memory, Offset, <<Value:64/native>>) || Offset <- Offsets],
                                  ok
                              end)
     || {Offsets, Room} <- [{[0, ?RING_HEADER_BYTES], 1},
                             {[?RING_TAIL, ?RING_HEADER_BYTES + ?RING_TAIL], 20000000}],
        Value <- [16#ffffffffffffffff, 1 bsl 63, 1 bsl 32, 1 bsl 31]],
    ok.

%% Replaces the unread frames with frames that have a wrong magic word, kind or length.
forged_frames(Config) ->
    [ok = forge(Config, 1, fun(Memory, RingBytes) -> fill_with(Memory, RingBytes, Frame) end)
     || Frame <- [<<0:64>>, <<"garbage!">>,
                  <<16#ffffffff:32/native, 16#BEA3:16/native, 1:16/native>>,
                  <<100:32/native, 16#BEA3:16/native, 7:16/native>>,
                  <<0:32/native, 16#BEA3:16/native, 1:16/native>>,
                  <<8:32/native, 16#BEA3:16/native, 2:16/native>>]],
    ok.

%% In memory the headers come first, then the data of each ring, mapped twice.
fill_with(Memory, RingBytes, Frame) ->
    Block = binary:copy(Frame, 65536 div 8),
    [ok = write_memory(Memory, Start + Offset, Block)
     || Start <- [65536, 65536 + 2 * RingBytes], Offset <- lists:seq(0, RingBytes - 1, 65536)],
    ok.

%% `Room' is the number of bytes written after the forged value; the writer only notices the forged value if these bytes do not fit into the ring.
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

%% The reader is stopped, so the written bytes stay in the ring.
fill_ring(Peer, Node, Messages) ->
    beamway_peer:run(Peer, fun() ->
        {ok, #{frames_out := Before}} = beamway:info(Node),
        [{beamway_nobody, Node} ! Number || Number <- lists:seq(1, Messages)],
        _ = beamway_peer:wait_until(fun() ->
                {ok, #{frames_out := Now}} = beamway:info(Node), Now >= Before + Messages end, ?WAIT_MS),
        ok
    end).

%% The segment is mapped from the start of the memory file.
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

%% A stock peer uses the driver's TCP link and announces a length that no Erlang node sends.
packet_of_4_gb(Config) ->
    {_, Node} = under_test(Config),
    Socket = beamway_raw_peer:call(Node, authenticated, #{}),
    ok = beamway_raw_peer:send_raw(Socket, <<16#ffffffff:32, "no more">>),
    true = is_integer(beamway_raw_peer:closed_within(Socket, ?WAIT_MS)),
    Log = proplists:get_value(log, Config),
    _ = beamway_peer:wait_until(fun() -> has_line([Log], ["over tcp is down", "broke the distribution protocol"]) end, ?WAIT_MS),
    ok = gen_tcp:close(Socket),
    ok = takes_new_connections(Node).

%% An announced length does not cost any memory before the data arrives, and the part that has arrived is freed when the peer disconnects.
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

%% --- the driver's commands ----------------------------------------------------------------------------

%% A foreign process sends commands that only this application sends to its driver. The process gets badarg or a reason, and there is no other effect.
bad_commands(Config) ->
    {Peer, Node} = under_test(Config),
    ok = beamway_peer:run(Peer, fun() ->
        {ok, Listener} = beamway_port:open(),
        {ok, Peer2} = beamway_port:open(),
        [?BADARG = attempt(Listener, Command, Data)
         || {Command, Data} <- [{0, <<>>}, {11, <<>>}, {999, <<1:64>>},
                                {5, <<>>}, {5, <<0:128>>},             % activate without a link
                                {6, <<>>}, {8, <<>>}, {10, <<>>},      % tick, receive, look
                                {12, <<>>}, {13, <<0:72>>}, {14, <<>>}, % watch, answer, classes
                                {20, <<>>}, {20, <<"shm">>},           % use without a terminator
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

%% --- the expected end of every case ----------------------------------------------------------------------

takes_new_connections(Node) ->
    {ok, Peer, _} = beamway_peer:start(beamway_shm),
    ok = beamway_peer:connect(beamway_shm, Peer, Node),
    beamway_peer:stop(Peer).

logs(Config, Words) ->
    Log = proplists:get_value(log, Config),
    _ = beamway_peer:wait_until(
          fun() -> string:find(beamway_peer:log_text(Log), Words) =/= nomatch end, ?WAIT_MS),
    ok.

%% Drops the record of which messages were logged within the last hour, because the node does not repeat those.
another_hour(Peer) ->
    true = beamway_peer:call(Peer, ets, match_delete, [beamway_links, {{told, '_'}, '_', '_'}]),
    ok.

problems(Config) ->
    problem_lines([proplists:get_value(log, Config)]).
