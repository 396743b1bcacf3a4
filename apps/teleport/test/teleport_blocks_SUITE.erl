%% SPDX-License-Identifier: Apache-2.0
%% @doc Binaries that lanes pass by reference: what arrives is what was sent, nothing is copied that need not be, and nothing stays when nobody uses it.
-module(teleport_blocks_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2]).
-export([passed_without_a_copy/1, files/1, within_terms/1, others_are_copied/1, sent_on/1, requests/1, more_than_can_be_under_way/1, no_room_there/1, switched_off/1,
         maker_is_killed/1, receiver_is_killed/1, lane_is_lost/1, nothing_stays/1, abandoned/1, new_code/1]).
-export([keep/0, forward/1]).
-import(teleport_nodes, [wait_ms/0]).

-define(BULK, #{class => bulk}).

suite() -> [{timetrap, {minutes, 3}}].

all() -> teleport_nodes:all([beamway, shm_on_stock, tcp]).

groups() ->
    Both = [within_terms, others_are_copied, requests],
    Blocks = [passed_without_a_copy, files, sent_on, more_than_can_be_under_way, no_room_there, switched_off, maker_is_killed, receiver_is_killed, lane_is_lost,
              nothing_stays, abandoned, new_code],
    teleport_nodes:groups([beamway, shm_on_stock], Both ++ Blocks) ++ teleport_nodes:groups([tcp], Both).

init_per_group(Kind, Config) -> teleport_nodes:init_group(Kind, Config).

end_per_group(_Kind, _Config) -> ok.

with_pair(Config, Options, Body) ->
    Pair = teleport_nodes:start_pair([{teleport, Options} | Config]),
    try Body(Pair)
    after teleport_nodes:stop_pair(Pair)
    end.

on_first(Config, Body) -> with_pair(Config, #{}, fun(Pair) -> teleport_nodes:on_first(Pair, Body) end).

bytes(Size) -> << <<(N bsr 3):32>> || N <- lists:seq(1, Size div 4) >>.

block(Size) ->
    Block = teleport:binary(bytes(Size)),
    true = beamway_block:is_block(Block),
    Block.

%% @private Keeps what comes; tells what it is.
keep() -> keep([]).

keep(Kept) ->
    receive
        {tell, To, Ref} -> To ! {Ref, [{erlang:md5(Binary), beamway_block:is_block(Binary)} || Binary <- lists:reverse(Kept)]}, keep(Kept);
        {give, To, Ref} -> To ! {Ref, lists:reverse(Kept)}, keep(Kept);
        forget -> true = erlang:garbage_collect(), keep([]);
        Binary -> keep([Binary | Kept])
    end.

%% @private Sends on what comes.
forward(To) ->
    receive Binary -> ok = teleport:send(To, Binary, ?BULK) end,
    forward(To).

%% So many have come.
kept(Keeper, Count) -> asked(tell, Keeper, Count).

asked(What, Keeper, Count) ->
    beamway_peer:wait_until(fun() ->
        Ref = make_ref(),
        Keeper ! {What, self(), Ref},
        receive {Ref, Kept} -> length(Kept) >= Count andalso Kept after wait_ms() -> error(no_answer) end
    end, wait_ms()).

received(Node) -> maps:get(received, erpc:call(Node, teleport, blocks, [])).

passed_without_a_copy(Config) ->
    on_first(Config, fun(Node) ->
        Block = block(10000000),
        Md5 = erlang:md5(Block),
        Keeper = spawn(Node, ?MODULE, keep, []),
        [ok = teleport:send(Keeper, Block, Options) || Options <- [?BULK, #{class => control}, #{way => lane}, #{key => 1}]],
        [{Md5, true}, {Md5, true}, {Md5, true}, {Md5, true}] = kept(Keeper, 4),
        4 = received(Node),
        %% One block in both nodes, whatever the number of names that it has.
        #{blocks := 1, made := 1} = teleport:blocks(),
        true = 1000000 > lists:sum([Bytes || #{link_stats := #{bytes_out := Bytes}, opened_by := this_node} <- teleport:lanes(Node)])
    end).

files(Config) ->
    on_first(Config, fun(Node) ->
        Folder = beamway_peer:new_folder("blocks"),
        Name = filename:join(Folder, "file"),
        ok = file:write_file(Name, bytes(1000000)),
        {ok, Block} = teleport:read_file(Name),
        ok = file:del_dir_r(Folder),
        true = beamway_block:is_block(Block) andalso Block =:= bytes(1000000),
        {error, enoent} = teleport:read_file(Name),
        Keeper = spawn(Node, ?MODULE, keep, []),
        ok = teleport:send(Keeper, Block, ?BULK),
        Md5 = erlang:md5(Block),
        [{Md5, true}] = kept(Keeper, 1)
    end).

within_terms(Config) ->
    on_first(Config, fun(Node) ->
        Blocks = [teleport:binary(bytes(Size)) || Size <- [100000, 65536, 3000000]],
        [A, B, C] = Blocks,
        Plain = bytes(200000),
        Terms = [{A, Plain, B}, [Plain, A, x | C], #{a => A, b => [B, {C, Plain}]}, {x, A}, {Plain, C}, [A, A, B, A], {lists:seq(1, 50000), B}, lists:duplicate(40, A), A],
        Keeper = spawn(Node, teleport_nodes, echo, []),
        [begin
             ok = teleport:send(Keeper, {self(), Term}, ?BULK),
             receive {echo, Echo} -> true = Echo =:= Term after wait_ms() -> error({no_echo, erlang:external_size(Term)}) end
         end || Term <- Terms]
    end).

others_are_copied(Config) ->
    on_first(Config, fun(Node) ->
        Block = teleport:binary(bytes(1000000)),
        Others = [bytes(1000000), binary:part(Block, 0, 500000), binary:part(Block, 1, 999999), teleport:binary(<<"few">>)],
        Keeper = spawn(Node, ?MODULE, keep, []),
        [ok = teleport:send(Keeper, Other, ?BULK) || Other <- Others],
        Expected = [{erlang:md5(Other), false} || Other <- Others],
        Expected = kept(Keeper, length(Others)),
        0 = received(Node)
    end).

%% What was received is passed on, to a third node and back.
sent_on(Config) ->
    with_pair(Config, #{}, fun(Pair) ->
        {Third, ThirdNode} = teleport_nodes:start(teleport_nodes:kind(Config)),
        teleport_nodes:on_first(Pair, fun(Node) ->
            Block = block(1000000),
            Md5 = erlang:md5(Block),
            Keeper = spawn(?MODULE, keep, []),
            Last = spawn(ThirdNode, ?MODULE, forward, [Keeper]),
            ok = teleport:send(spawn(Node, ?MODULE, forward, [Last]), Block, ?BULK),
            [{Md5, true}] = kept(Keeper, 1),
            [1, 1, 1] = [received(On) || On <- [Node, ThirdNode, node()]],
            %% It is the same memory: the kernel counts one, this node two blocks of it.
            Block = hd(asked(give, Keeper, 1))
        end),
        beamway_peer:stop_all([Third])
    end).

requests(Config) ->
    on_first(Config, fun(Node) ->
        Server = erpc:call(Node, teleport_nodes, start_server, [blocks_server]),
        Block = teleport:binary(bytes(1000000)),
        [{echo, Block} = teleport:call(To, {echo, Block}, wait_ms(), Options) || To <- [Server, {blocks_server, Node}], Options <- [#{}, ?BULK]],
        {reply, {echo, Block}} = teleport:receive_response(teleport:send_request(Server, {echo, Block}, ?BULK), wait_ms()),
        1000000 = teleport:erpc_call(Node, erlang, byte_size, [Block]),
        {ok, Ref} = teleport:send(spawn(Node, ?MODULE, keep, []), Block, #{confirm => true}),
        receive {teleport, Ref, Confirmed} -> confirmed = Confirmed after wait_ms() -> error(not_confirmed) end
    end).

%% The peer is stopped meanwhile: what cannot be passed is copied, and the order holds.
more_than_can_be_under_way(Config) ->
    with_pair(Config, #{}, fun(Pair) ->
        Second = teleport_nodes:second(Pair),
        Node = teleport_nodes:second_node(Pair),
        Sizes = [65536 + 4 * (N rem 7) || N <- lists:seq(1, 300)],
        Keeper = beamway_peer:run(teleport_nodes:first(Pair), fun() -> ok = teleport:prime(Node), spawn(Node, ?MODULE, keep, []) end),
        ok = beamway_peer:sigstop(Second),
        teleport_nodes:on_first(Pair, fun(_) -> [ok = teleport:send(Keeper, block(Size), (?BULK)#{key => 1}) || Size <- Sizes] end),
        ok = beamway_peer:sigcont(Second),
        teleport_nodes:on_first(Pair, fun(_) ->
            Kept = kept(Keeper, length(Sizes)),
            true = [erlang:md5(bytes(Size)) || Size <- Sizes] =:= [Md5 || {Md5, _} <- Kept],
            [_ | _] = [passed || {_, true} <- Kept],
            [_ | _] = [copied || {_, false} <- Kept]
        end)
    end).

no_room_there(Config) ->
    on_first(Config, fun(Node) ->
        {ok, ok} = {ok, erpc:call(Node, teleport, configure, [all, #{max_block_bytes => 2000000}])},
        Keeper = spawn(Node, ?MODULE, keep, []),
        Block = block(1500000),
        Md5 = erlang:md5(Block),
        Other = block(1500004),
        OtherMd5 = erlang:md5(Other),
        [ok = teleport:send(Keeper, B, (?BULK)#{key => 1}) || B <- [Block, Other]],
        [{Md5, true}, {OtherMd5, false}] = kept(Keeper, 2),
        #{refused := Refused} = erpc:call(Node, teleport, blocks, []),
        true = Refused > 0,
        ok = teleport:configure(all, #{max_block_bytes => 0}),
        false = beamway_block:is_block(teleport:binary(bytes(100000)))
    end).

%% At the receiver, for all senders or for this one. Each class has lanes that are opened with the options of that moment.
switched_off(Config) ->
    on_first(Config, fun(Node) ->
        Block = block(1000000),
        Md5 = erlang:md5(Block),
        Keeper = spawn(Node, ?MODULE, keep, []),
        [begin
             [ok = erpc:call(Node, teleport, configure, [Which, #{by_reference => Value}]) || {Which, Value} <- Changes],
             ok = teleport:send(Keeper, Block, #{class => Class, way => lane}),
             {N, {Md5, IsBlock}} = {N, lists:last(kept(Keeper, N))}
         end || {N, Class, Changes, IsBlock} <- [{1, control, [{all, false}], false}, {2, bulk, [{all, true}, {node(), false}], false},
                                                 {3, normal, [{all, false}, {node(), true}], true}]],
        1 = received(Node)
    end).

maker_is_killed(Config) ->
    with_pair(Config, #{}, fun(Pair) ->
        {First, Node} = {teleport_nodes:first(Pair), teleport_nodes:second_node(Pair)},
        Keeper = beamway_peer:run(First, fun() ->
            Keeper = spawn(Node, ?MODULE, keep, []),
            ok = teleport:send(Keeper, block(1000000), ?BULK),
            [{_, true}] = kept(Keeper, 1),
            Keeper
        end),
        ok = beamway_peer:kill9(First),
        teleport_nodes:on_second(Pair, fun() ->
            Md5 = erlang:md5(bytes(1000000)),
            [{Md5, true}] = kept(Keeper, 1),
            #{blocks := 1} = teleport:blocks(),
            Keeper ! forget,
            _ = beamway_peer:wait_until(fun() -> maps:get(blocks, teleport:blocks()) =:= 0 end, wait_ms())
        end)
    end).

%% With blocks that it has, and with some that it has not taken.
receiver_is_killed(Config) ->
    with_pair(Config, #{}, fun(Pair) ->
        {First, Second, Node} = {teleport_nodes:first(Pair), teleport_nodes:second(Pair), teleport_nodes:second_node(Pair)},
        Keeper = beamway_peer:run(First, fun() ->
            Keeper = spawn(Node, ?MODULE, keep, []),
            ok = teleport:send(Keeper, block(1000000), (?BULK)#{key => 1}),
            [{_, true}] = kept(Keeper, 1),
            Keeper
        end),
        ok = beamway_peer:sigstop(Second),
        ok = beamway_peer:run(First, fun() -> [ok = teleport:send(Keeper, block(100000), (?BULK)#{key => 1}) || _ <- lists:seq(1, 20)], ok end),
        ok = beamway_peer:kill9(Second),
        _ = beamway_peer:wait_until(fun() -> beamway_peer:run(First, fun() -> true = erlang:garbage_collect(), maps:get(blocks, teleport:blocks()) =:= 0 end) end, wait_ms())
    end).

lane_is_lost(Config) ->
    on_first(Config, fun(Node) ->
        Block = block(1000000),
        Md5 = erlang:md5(Block),
        Keeper = spawn(Node, ?MODULE, keep, []),
        [begin
             ok = teleport:send(Keeper, Block, (?BULK)#{key => 1}),
             true = lists:duplicate(N, {Md5, true}) =:= kept(Keeper, N),
             Links = [Tx || {out, {_, bulk, _}, Tx} <- teleport_peers:all()],
             [exit(teleport_sender:pid(Tx), kill) || Tx <- Links],
             _ = beamway_peer:wait_until(fun() -> [Tx || {out, _, Tx} <- teleport_peers:all(), lists:member(Tx, Links)] =:= [] end, wait_ms())
         end || N <- lists:seq(1, 5)]
    end).

nothing_stays(Config) ->
    with_pair(Config, #{}, fun(Pair) ->
        {First, Second} = {teleport_nodes:first(Pair), teleport_nodes:second(Pair)},
        Round = fun(Node) ->
            {Sender, Monitor} = spawn_monitor(fun() ->
                Keeper = spawn(Node, ?MODULE, keep, []),
                [ok = teleport:send(Keeper, block(70000), (?BULK)#{key => 1}) || _ <- lists:seq(1, 50)],
                _ = kept(Keeper, 50),
                exit(Keeper, kill)
            end),
            receive {'DOWN', Monitor, process, Sender, Reason} -> normal = Reason end
        end,
        teleport_nodes:on_first(Pair, Round),
        %% A lane whose state is read need not be silent for 5 s.
        Start = erlang:monotonic_time(millisecond),
        _ = [beamway_peer:call(Peer, teleport, lanes, []) || Peer <- [First, Second]],
        Empty = fun(Peer) -> beamway_peer:wait_until(fun() -> maps:get(blocks, beamway_peer:call(Peer, teleport, blocks, [])) =:= 0 end, wait_ms()) end,
        _ = [Empty(Peer) || Peer <- [First, Second]],
        true = erlang:monotonic_time(millisecond) - Start < 4000 * beamway_runner:slowness(),
        Before = [beamway_peer:resources(Peer) || Peer <- [First, Second]],
        [teleport_nodes:on_first(Pair, Round) || _ <- [1, 2, 3]],
        _ = [Empty(Peer) || Peer <- [First, Second]],
        true = lists:all(fun({Now, Then}) -> beamway_peer:no_more(Now, Then) end, lists:zip([beamway_peer:resources(Peer) || Peer <- [First, Second]], Before))
    end).

%% A sender may end between passing a block and sending the message with it. Another that is connected may wait.
abandoned(Config) ->
    on_first(Config, fun(Node) ->
        Channel = fun(Id) -> erpc:call(Node, teleport_blocks, channel, [Id]) end,
        {ok, {Address, Token}} = erpc:call(Node, teleport_blocks, offer, []),
        none = Channel(<<0:128>>),
        OsPid = list_to_integer(erpc:call(Node, os, getpid, [])),
        Before = length(beamway_peer:fds(OsPid)),
        {ok, Left} = beamway_block:connect(Address, Token, <<1:128>>),
        {ok, _} = beamway_block:pass(Left, block(100000)),
        {ok, Open} = beamway_block:connect(Address, Token, <<2:128>>),
        none = Channel(<<0:128>>),
        ok = beamway_block:close(Left),
        {teleport_blocks, Node} ! {close_abandoned, 50, []},
        _ = beamway_peer:wait_until(fun() -> length(beamway_peer:fds(OsPid)) =:= Before + 1 end, wait_ms()),
        true = beamway_block:is_open(Open),
        none = Channel(<<1:128>>),
        {ok, _} = Channel(<<2:128>>)
    end).

new_code(Config) ->
    on_first(Config, fun(Node) ->
        Block = block(100000),
        Keeper = spawn(Node, teleport_nodes, echo, []),
        Round = fun() -> ok = teleport:send(Keeper, {self(), Block}, ?BULK), receive {echo, Block} -> ok after wait_ms() -> error(no_echo) end end,
        ok = Round(),
        [begin
             _ = erpc:call(On, code, purge, [Module]),
             {module, Module} = erpc:call(On, code, load_file, [Module]),
             ok = Round()
         end || On <- [node(), Node], Module <- [teleport_blocks, teleport_references, teleport_references], _ <- [1, 2]]
    end).
