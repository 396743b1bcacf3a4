%% SPDX-License-Identifier: Apache-2.0
%% @doc Shared binaries: an opened binary equals the shared one, nothing is copied unnecessarily, and memory that is no
%% longer used is freed.
-module(teleport_blocks_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, end_per_testcase/2]).
-export([in_any_message/1, opened_without_a_copy/1, sent_on/1, files/1, few_bytes/1, no_room/1, kept_as_long_as_told/1, maker_is_killed/1, opener_is_killed/1, former_life/1,
         cannot_be_opened/1, nothing_stays/1, many_at_once/1, abandoned/1, bad_input/1]).
-export([holder/0]).
-import(teleport_nodes, [wait_ms/0]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> teleport_nodes:all([shm, stock]).

groups() ->
    All = [in_any_message, opened_without_a_copy, sent_on, files, few_bytes, no_room, kept_as_long_as_told, maker_is_killed, opener_is_killed, former_life, cannot_be_opened,
           nothing_stays, many_at_once, abandoned, bad_input],
    teleport_nodes:groups([shm], All) ++ teleport_nodes:groups([stock], [in_any_message, opened_without_a_copy, sent_on]).

init_per_group(Kind, Config) -> teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)).

end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

end_per_testcase(_Case, Config) ->
    beamway_peer:stop_all(beamway_peer:started() -- [teleport_nodes:first(Config), teleport_nodes:second(Config)]).

%% Runs the body in a separate process. When that process exits, its shares and the holders that it has started are gone.
on_first(Config, Body) ->
    teleport_nodes:on_first(Config, fun(Node) ->
        {Pid, Monitor} = spawn_monitor(fun() -> Body(Node), exit(shutdown) end),
        receive {'DOWN', Monitor, process, Pid, Reason} -> shutdown = Reason after 2 * wait_ms() -> error(too_long) end
    end).

bytes(Size) -> << <<(N bsr 3):32>> || N <- lists:seq(1, Size div 4) >>.

%% @private Opens the handles that it receives, and keeps the binaries.
holder() -> holder([]).

holder(Held) ->
    receive
        {open, From, Handle} ->
            case teleport:open(Handle) of
                {ok, Binary} -> From ! {self(), {erlang:md5(Binary), beamway_block:is_block(Binary)}}, holder([Binary | Held]);
                Error -> From ! {self(), Error}, holder(Held)
            end;
        {share, From} -> From ! {self(), teleport:share(hd(Held))}, holder(Held);
        {held, From} -> From ! {self(), [erlang:md5(Binary) || Binary <- Held]}, holder(Held);
        forget -> true = erlang:garbage_collect(), holder([])
    end.

ask(Holder, Question) ->
    Holder ! Question,
    receive {Holder, Answer} -> Answer after wait_ms() -> error({no_answer, Question}) end.

opens(Holder, Handle) -> ask(Holder, {open, self(), Handle}).

await_blocks(Node, Count) ->
    _ = beamway_peer:wait_until(fun() ->
        _ = [erpc:call(Node, erlang, garbage_collect, [Pid]) || Pid <- erpc:call(Node, erlang, processes, [])],
        maps:get(blocks, erpc:call(Node, teleport, blocks, [])) =:= Count
    end, 15000 * beamway_runner:slowness()).

%% Handles can be part of a message sent with `!', a call, its reply, and a state.
in_any_message(Config) ->
    on_first(Config, fun(Node) ->
        Data = bytes(1000000),
        Handle = teleport:share(Data),
        true = erlang:external_size(Handle) < 100,
        Holder = spawn_link(Node, ?MODULE, holder, []),
        Md5 = erlang:md5(Data),
        {Md5, true} = opens(Holder, Handle),
        Server = erpc:call(Node, teleport_nodes, start_server, [blocks_server]),
        {echo, Handle} = teleport:call(Server, {echo, Handle}),
        ok = gen_server:cast(Server, {keep, Handle}),
        [{cast, {keep, Handle}}] = gen_server:call({blocks_server, Node}, log),
        {ok, Data} = teleport:open(Handle),
        {ok, Data} = teleport:open(binary_to_term(term_to_binary(Handle))),
        %% A reply may contain a handle from the other node.
        Back = ask(Holder, {share, self()}),
        {ok, Data} = teleport:open(Back),
        ok
    end).

opened_without_a_copy(Config) ->
    on_first(Config, fun(Node) ->
        Block = teleport:binary(bytes(10000000)),
        true = beamway_block:is_block(Block),
        Md5 = erlang:md5(Block),
        #{made := Made} = teleport:blocks(),
        #{received := Received} = erpc:call(Node, teleport, blocks, []),
        Handle = teleport:share(Block),
        Before = teleport_groups_SUITE:count_bytes(Node),
        Holders = [spawn_link(Node, ?MODULE, holder, []) || _ <- [1, 2, 3]],
        [{Md5, true} = opens(Holder, Handle) || Holder <- Holders],
        true = teleport_groups_SUITE:count_bytes(Node) - Before < 10000,
        #{made := Made} = teleport:blocks(),
        3 = maps:get(received, erpc:call(Node, teleport, blocks, [])) - Received,
                ok = teleport:unshare(Handle)
    end).

%% A handle is sent to a third node and back. If any of the nodes goes down, the others keep the memory.
sent_on(Config) ->
    {Third, ThirdNode} = teleport_nodes:start(teleport_nodes:kind(Config)),
    ok = teleport_nodes:connect(teleport_nodes:first(Config), ThirdNode),
    on_first(Config, fun(Node) ->
        Data = bytes(1000000),
        Md5 = erlang:md5(Data),
        Holder = spawn_link(Node, ?MODULE, holder, []),
        {Md5, true} = opens(Holder, teleport:share(Data)),
        Last = spawn_link(ThirdNode, ?MODULE, holder, []),
        {Md5, true} = opens(Last, ask(Holder, {share, self()})),
        {ok, Data} = teleport:open(ask(Last, {share, self()})),
        unlink(Holder), exit(Holder, kill),
        [Md5] = ask(Last, {held, self()})
    end),
    beamway_peer:stop(Third).

files(Config) ->
    on_first(Config, fun(Node) ->
        Folder = beamway_peer:new_folder("blocks"),
        Name = filename:join(Folder, "file"),
        ok = file:write_file(Name, bytes(1000000)),
        {ok, Block} = teleport:read_file(Name),
        ok = file:del_dir_r(Folder),
        true = beamway_block:is_block(Block) andalso Block =:= bytes(1000000),
        {error, enoent} = teleport:read_file(Name),
        {Md5, true} = opens(spawn_link(Node, ?MODULE, holder, []), teleport:share(Block)),
        Md5 = erlang:md5(Block)
    end).

%% Small binaries are part of the handle itself.
few_bytes(Config) ->
    on_first(Config, fun(Node) ->
        Handle = teleport:share(<<"few">>),
        {ok, <<"few">>} = teleport:open(Handle),
        {_, false} = opens(spawn_link(Node, ?MODULE, holder, []), Handle),
        ok = teleport:unshare(Handle),
        {ok, <<"few">>} = teleport:open(Handle)
    end).

%% A node that has no room for a block copies the bytes when it opens the handle. If the sharing node has no room, the handle contains the bytes.
no_room(Config) ->
    on_first(Config, fun(Node) ->
        Data = bytes(1000000),
        Md5 = erlang:md5(Data),
        Handle = teleport:share(Data),
        ok = erpc:call(Node, teleport, configure, [all, #{max_block_bytes => 0}]),
        {Md5, false} = opens(spawn_link(Node, ?MODULE, holder, []), Handle),
        ok = erpc:call(Node, teleport, configure, [all, #{max_block_bytes => 1 bsl 30}]),
        ok = teleport:configure(all, #{max_block_bytes => 0}),
        Whole = teleport:share(bytes(1000000)),
        ok = teleport:configure(all, #{max_block_bytes => 1 bsl 30}),
        true = erlang:external_size(Whole) > 1000000,
        {Md5, _} = opens(spawn_link(Node, ?MODULE, holder, []), Whole)
    end).

kept_as_long_as_told(Config) ->
    on_first(Config, fun(Node) ->
        Holder = spawn_link(Node, ?MODULE, holder, []),
        Self = self(),
        %% The first binary is shared until the process that shared it exits.
        {Owner, Monitor} = spawn_monitor(fun() -> Self ! {handle, teleport:share(bytes(100000)), teleport:share(bytes(100004), 60000)}, receive stop -> ok end end),
        {Handle, Long} = receive {handle, Some, Other} -> {Some, Other} after wait_ms() -> error(nothing) end,
        {_, true} = opens(Holder, Handle),
        Owner ! stop,
        receive {'DOWN', Monitor, process, _, normal} -> ok end,
        _ = beamway_peer:wait_until(fun() -> {error, ended} =:= teleport:open(Handle) end, wait_ms()),
        {error, ended} = opens(Holder, Handle),
        {_, true} = opens(Holder, Long),
        %% The second one is shared until some process unshares it.
        ok = erpc:call(Node, teleport, unshare, [Long]),
        _ = beamway_peer:wait_until(fun() -> {error, ended} =:= opens(Holder, Long) end, wait_ms()),
        %% The third binary is shared until its time expires.
        Short = teleport:share(bytes(100008), 50),
        _ = beamway_peer:wait_until(fun() -> {error, ended} =:= opens(Holder, Short) end, wait_ms()),
        %% Binaries that have been opened remain valid.
        true = length(ask(Holder, {held, self()})) >= 2,
        0 = maps:get(shared, teleport:blocks()),
        unlink(Holder), exit(Holder, kill)
    end).

maker_is_killed(Config) ->
    {Third, ThirdNode} = teleport_nodes:start(teleport_nodes:kind(Config)),
    ok = teleport_nodes:connect(teleport_nodes:first(Config), ThirdNode),
    Handle = beamway_peer:run(Third, fun() -> teleport:share(bytes(1000000), 600000) end),
    Holder = beamway_peer:run(teleport_nodes:first(Config), fun() ->
        await_blocks(node(), 0),
        Holder = spawn(?MODULE, holder, []),
        {_, true} = opens(Holder, Handle),
        Holder
    end),
    ok = beamway_peer:kill9(Third),
    on_first(Config, fun(_) ->
        Md5 = erlang:md5(bytes(1000000)),
        [Md5] = ask(Holder, {held, self()}),
        {error, {nodedown, ThirdNode}} = teleport:open(Handle),
        exit(Holder, kill),
        await_blocks(node(), 0)
    end).

opener_is_killed(Config) ->
    {Third, ThirdNode} = teleport_nodes:start(teleport_nodes:kind(Config)),
    ok = teleport_nodes:connect(teleport_nodes:first(Config), ThirdNode),
    on_first(Config, fun(_) ->
        Handle = teleport:share(bytes(1000000), 600000),
        {_, true} = opens(spawn(ThirdNode, ?MODULE, holder, []), Handle),
        true = register(blocks_handle, spawn(fun() -> receive {give, From} -> From ! {handle, Handle} end end))
    end),
    ok = beamway_peer:kill9(Third),
    on_first(Config, fun(_) ->
        blocks_handle ! {give, self()},
        Handle = receive {handle, Of} -> Of after wait_ms() -> error(nothing) end,
        {ok, _} = teleport:open(Handle),
        ok = teleport:unshare(Handle),
        await_blocks(node(), 0)
    end).

%% A new node has the same name as one that shared something and went down, or teleport was restarted on the sharing node.
former_life(Config) ->
    Kind = teleport_nodes:kind(Config),
    {Third, ThirdNode} = teleport_nodes:start(Kind),
    Share = fun(Peer) -> beamway_peer:run(Peer, fun() -> teleport:share(bytes(100000), 600000) end) end,
    Handle = Share(Third),
    beamway_peer:stop(Third),
    {Fourth, ThirdNode} = teleport_nodes:start(Kind, #{name => hd(string:split(atom_to_list(ThirdNode), "@"))}),
    Newer = Share(Fourth),
    on_first(Config, fun(_) ->
        [{error, former_life} = teleport:open(Handle) || _ <- [1, 2]],
        {ok, _} = teleport:open(Newer),
        ok = teleport:unshare(Handle),
        {ok, _} = teleport:open(Newer),
        ok = erpc:call(ThirdNode, application, stop, [teleport]),
        {error, {no_teleport, ThirdNode}} = teleport:open(Newer),
        ok = erpc:call(ThirdNode, application, start, [teleport]),
        {error, former_life} = teleport:open(Newer)
    end).

%% Tests a handle from another host, and a node that hangs.
cannot_be_opened(Config) ->
    {Third, ThirdNode} = teleport_nodes:start(teleport_nodes:kind(Config)),
    ok = teleport_nodes:connect(teleport_nodes:first(Config), ThirdNode),
    Handle = beamway_peer:run(Third, fun() -> teleport:share(bytes(100000), 600000) end),
    on_first(Config, fun(_) ->
        true = erpc:call(ThirdNode, ets, insert, [teleport_blocks, {host, {ok, <<"another">>}}]),
        {error, other_host} = teleport:open(Handle),
        true = erpc:call(ThirdNode, ets, insert, [teleport_blocks, {host, beamway_host:boot_id()}]),
        {ok, _} = teleport:open(Handle),
        %% The kernel is the same, but the socket cannot be reached.
        {ok, Address} = {ok, ets:lookup_element(teleport_blocks, address, 2)},
        true = ets:insert(teleport_blocks, {address, {<<0, "nobody listens here">>, <<0:128>>}}),
        {error, {unreachable, <<_/binary>>}} = teleport:open(Handle),
        true = ets:insert(teleport_blocks, {address, Address}),
        {error, {nodedown, 'nobody@127.0.0.1'}} = teleport:open(setelement(2, Handle, 'nobody@127.0.0.1'))
    end),
    ok = beamway_peer:sigstop(Third),
    on_first(Config, fun(_) -> {error, timeout} = teleport:open(Handle) end),
    ok = beamway_peer:sigcont(Third).

nothing_stays(Config) ->
    {First, Second} = {teleport_nodes:first(Config), teleport_nodes:second(Config)},
    Round = fun(Node) ->
        {Sender, Monitor} = spawn_monitor(fun() ->
            Holder = spawn_link(Node, ?MODULE, holder, []),
            [{_, true} = opens(Holder, teleport:share(bytes(70000))) || _ <- lists:seq(1, 50)],
            unlink(Holder), exit(Holder, kill)
        end),
        receive {'DOWN', Monitor, process, Sender, Reason} -> normal = Reason end
    end,
    Rest = fun() -> on_first(Config, fun(Node) -> [await_blocks(On, 0) || On <- [node(), Node]] end), [beamway_peer:resources(Peer) || Peer <- [First, Second]] end,
    on_first(Config, Round),
    Before = Rest(),
    [on_first(Config, Round) || _ <- [1, 2, 3]],
    After = Rest(),
    true = lists:all(fun({Now, Then}) -> beamway_peer:no_more(Now, Then) end, lists:zip(After, Before)).

many_at_once(Config) ->
    on_first(Config, fun(Node) ->
        Handles = [teleport:share(bytes(70000 + 4 * N)) || N <- lists:seq(1, 20)],
        Openers = [beamway_peer:async(fun() -> [{_, true} = opens(Holder, Handle) || Holder <- [spawn_link(Node, ?MODULE, holder, [])], Handle <- Handles], ok end) || _ <- lists:seq(1, 20)],
        [ok = beamway_peer:await(Opener) || Opener <- Openers],
        [ok = teleport:unshare(Handle) || Handle <- Handles]
    end).

%% A process exits after it has asked for a block but before it fetches it.
abandoned(Config) ->
    on_first(Config, fun(Node) ->
        {ok, {Address, Token}} = gen_server:call({teleport_blocks, Node}, listen),
        OsPid = list_to_integer(erpc:call(Node, os, getpid, [])),
        Before = length(beamway_peer:fds(OsPid)),
        {ok, Left} = beamway_block:connect(Address, Token, <<1:128>>),
        {ok, _} = beamway_block:pass(Left, teleport:binary(bytes(100000))),
        none = gen_server:call({teleport_blocks, Node}, {channel, <<0:128>>}),
        true = length(beamway_peer:fds(OsPid)) > Before,
        {teleport_blocks, Node} ! {look, [<<1:128>>]},
        _ = beamway_peer:wait_until(fun() -> length(beamway_peer:fds(OsPid)) =< Before end, wait_ms()),
        none = gen_server:call({teleport_blocks, Node}, {channel, <<1:128>>}),
        ok = beamway_block:close(Left)
    end).

bad_input(Config) ->
    on_first(Config, fun(Node) ->
        [{'EXIT', {{bad_handle, Bad, "expected " ++ _}, _}} = (catch teleport:Function(Bad)) || Function <- [open, unshare], Bad <- [x, <<>>, {teleport_blocks, 1}, make_ref()]],
        {'EXIT', {{bad_binary, "text", "expected " ++ _}, _}} = (catch teleport:share("text")),
        [{'EXIT', {{bad_limit, Bad, "expected " ++ _}, _}} = (catch teleport:share(<<>>, Bad)) || Bad <- [0, -1, infinity, 1 bsl 32]],
        Handle = teleport:share(bytes(100000)),
        {error, ended} = teleport:open(setelement(4, Handle, 1000000)),
        %% The handle contains a size that differs from the block's.
        {error, {unreachable, _}} = erpc:call(Node, teleport, open, [setelement(5, Handle, 5)]),
        {_, true} = opens(spawn_link(Node, ?MODULE, holder, []), Handle),
        [{teleport_blocks, Node} ! Rogue || Rogue <- [x, {look, []}, {over, x}]],
        {error, badarg} = gen_server:call({teleport_blocks, Node}, x)
    end).
