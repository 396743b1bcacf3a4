%% SPDX-License-Identifier: Apache-2.0
%% Checks which nodes get a broadcast while the nodes have different views of the groups. The model has three nodes,
%% each of which runs the real {@link teleport_interest} with its own table: members join and leave, messages are
%% delayed or are lost with their connection, connections become full, and servers crash. A broadcast may miss a node
%% with members only while the messages about them are in flight; when everything has arrived, it reaches exactly the
%% nodes with members.
-module(teleport_interest_tests).

-include_lib("proper/include/proper.hrl").
-include_lib("eunit/include/eunit.hrl").

-record(world, {servers :: #{node() => teleport_interest:state()},
                tables :: #{node() => ets:table()},
                %% For each connection that is up, the messages from the first node in the second
                %% node's mailbox.
                ways = #{} :: #{{node(), node()} => [term()]},
                connected = [] :: [{node(), node()}],
                full = [] :: [{node(), node()}],
                %% A server gets a new pid after a crash.
                lives = #{} :: #{node() => pid()},
                %% The first node's monitor of the second node's server, which has that pid.
                monitors = [] :: [{node(), reference(), node(), pid()}]}).

all_nodes() -> [a, b, c].
all_groups() -> [1, 2, 3].

%% ---- commands ----

command() ->
    Node = oneof(all_nodes()),
    Pair = ?SUCHTHAT({A, B}, {Node, oneof(all_nodes())}, A =/= B),
    frequency([{6, {join, Node, oneof(all_groups()), choose(1, 3)}},
               {5, {leave, Node, oneof(all_groups()), choose(1, 3)}},
               {6, {flush, Node}},
               {20, {deliver, Pair}},
               {3, {connect, Pair}},
               {1, {disconnect, Pair, choose(0, 5)}},
               {1, {fill, Pair}},
               {2, {make_room, Pair}},
               {1, {crash, Node}}]).

prop_views_differ() ->
    ?FORALL(Commands, list(command()),
            begin
                Tables = maps:from_list([{Node, ets:new(interest, [ordered_set])} || Node <- all_nodes()]),
                World = #world{servers = maps:map(fun(Node, Table) -> teleport_interest:new(Table, Node) end, Tables), tables = Tables,
                               lives = maps:from_list([{Node, pid()} || Node <- all_nodes()])},
                {End, Missed} = lists:foldl(fun(Command, {Before, Found}) -> After = run(Command, Before), {After, Found ++ missed(Command, After)} end, {World, []}, Commands),
                Wrong = wrong(quiet(End#world{full = []})),
                lists:foreach(fun ets:delete/1, maps:values(Tables)),
                ?WHENFAIL(io:format("missed ~p~nwrong in the end ~p~n", [Missed, Wrong]), {Missed, Wrong} =:= {[], []})
            end).

%% Pids only serve to distinguish the successive servers of a node; the processes exit immediately.
pid() -> spawn(fun() -> ok end).
member(Number) -> list_to_pid("<0." ++ integer_to_list(1000 + Number) ++ ".0>").

run({join, Node, Group, Number}, World) -> at(Node, fun(State) -> teleport_interest:join(Group, member(Number), State) end, World);
run({leave, Node, Group, Number}, World) -> at(Node, fun(State) -> teleport_interest:leave(Group, member(Number), State) end, World);
run({flush, Node}, World) -> element(2, sending(Node, fun(Send, State) -> {none, teleport_interest:flush(Send, State)} end, World));
run({deliver, {From, To} = Way}, #world{ways = Ways} = World) ->
    case Ways of
        #{Way := [Message | Rest]} -> handled(Message, To, From, World#world{ways = Ways#{Way := Rest}});
        #{} -> World
    end;
run({connect, {A, B}}, #world{connected = Connected} = World) ->
    case is_connected(A, B, World) of
        true -> World;
        false -> queued({B, A}, nodeup, queued({A, B}, nodeup, World#world{connected = [{A, B}, {B, A} | Connected]}))
    end;
%% The last messages in each direction are lost. Monitors report before or after nodedown.
run({disconnect, {A, B}, Lost}, #world{connected = Connected, monitors = Monitors} = World) ->
    case is_connected(A, B, World) of
        true ->
            Cut = lists:foldl(fun(Way, Acc) -> cut(Way, Lost, Acc) end, World, [{A, B}, {B, A}]),
            {Ended, Left} = lists:partition(fun({Of, _, At, _}) -> lists:member({Of, At}, [{A, B}, {B, A}]) end, Monitors),
            Told = case Lost rem 2 of
                       0 -> down(Ended, noconnection, queued({A, B}, nodedown, queued({B, A}, nodedown, Cut)));
                       1 -> queued({A, B}, nodedown, queued({B, A}, nodedown, down(Ended, noconnection, Cut)))
                   end,
            Told#world{connected = Connected -- [{A, B}, {B, A}], monitors = Left};
        false -> World
    end;
run({fill, Way}, #world{full = Full} = World) -> World#world{full = lists:usort([Way | Full])};
run({make_room, Way}, #world{full = Full} = World) -> World#world{full = lists:delete(Way, Full)};
%% Messages that the server has received are lost. The new server finds the table of members and asks all peers.
run({crash, Node}, #world{tables = Tables, servers = Servers, ways = Ways, lives = Lives, monitors = Monitors} = World) ->
    {Ended, Left} = lists:partition(fun({_, _, At, _}) -> At =:= Node end, [Monitor || {Of, _, _, _} = Monitor <- Monitors, Of =/= Node]),
    Lost = maps:map(fun({_, To}, _) when To =:= Node -> []; (_, Queue) -> Queue end, Ways),
    New = World#world{servers = Servers#{Node := teleport_interest:new(map_get(Node, Tables), Node)}, lives = Lives#{Node := pid()}, ways = Lost, monitors = Left},
    lists:foldl(fun(Peer, Acc) -> ask(Node, Peer, Acc) end, down(Ended, killed, New), [Peer || Peer <- all_nodes(), is_connected(Node, Peer, New)]).

cut(Way, Lost, #world{ways = Ways} = World) ->
    Queue = maps:get(Way, Ways, []),
    {Kept, Tail} = lists:split(max(0, length(Queue) - Lost), Queue),
    %% Drops only messages that were sent over the connection. Reports that the node itself
    %% generates stay in the mailbox.
    World#world{ways = Ways#{Way => Kept ++ [Message || Message <- Tail, not is_tuple(Message) orelse element(1, Message) =:= 'DOWN']}}.

down(Monitors, Reason, World) ->
    lists:foldl(fun({Of, Question, At, _}, Acc) -> queued({At, Of}, {'DOWN', Question, Reason}, Acc) end, World, Monitors).

is_connected(A, B, #world{connected = Connected}) -> lists:member({A, B}, Connected).

queued(Way, Message, #world{ways = Ways} = World) -> World#world{ways = maps:update_with(Way, fun(Queue) -> Queue ++ [Message] end, [Message], Ways)}.

%% ---- a server, as teleport_listeners has it ----

handled(nodeup, Node, Peer, World) -> ask(Node, Peer, World);
handled(nodedown, Node, Peer, World) -> at(Node, fun(State) -> teleport_interest:gone(Peer, State) end, World);
handled({ask, Pid, Question}, Node, Peer, World) ->
    asked_again(Node, Peer, sending(Node, fun(Send, State) -> teleport_interest:asked(Peer, Pid, Question, Send, State) end, World));
handled({'DOWN', Question, Reason}, Node, Peer, World) ->
    asked_again(Node, Peer, changing(Node, fun(State) -> teleport_interest:unanswered(Peer, Question, Reason, State) end, World));
handled({all, Peer, Question, Hashes}, Node, Peer, World) -> at(Node, fun(State) -> teleport_interest:all(Peer, Question, Hashes, State) end, World);
handled({change, Peer, Joined, Left}, Node, Peer, World) -> at(Node, fun(State) -> teleport_interest:change(Peer, Joined, Left, State) end, World).

asked_again(Node, Peer, {true, World}) -> ask(Node, Peer, World);
asked_again(_, _, {_, World}) -> World.

ask(Node, Peer, #world{lives = Lives, monitors = Monitors} = World) ->
    Question = make_ref(),
    Asking = at(Node, fun(State) -> teleport_interest:asking(Peer, Question, State) end, World),
    case is_connected(Node, Peer, World) of
        true ->
            Watched = Asking#world{monitors = [{Node, Question, Peer, map_get(Peer, Lives)} | Monitors]},
            queued({Node, Peer}, {ask, map_get(Node, Lives), Question}, Watched);
        false -> Asking
    end.

at(Node, Change, World) -> element(2, changing(Node, fun(State) -> {none, Change(State)} end, World)).

changing(Node, Change, World) -> sending(Node, fun(_, State) -> Change(State) end, World).

%% Messages go to the node's server with that pid, if there is room.
sending(Node, Change, #world{servers = Servers, lives = Lives, full = Full} = World) ->
    _ = put(sent, []),
    Send = fun(Pid, Message) ->
                   Peers = [Peer || {Peer, Life} <- maps:to_list(Lives), Life =:= Pid, is_connected(Node, Peer, World)],
                   HasRoom = not lists:any(fun(Peer) -> lists:member({Node, Peer}, Full) end, Peers),
                   _ = HasRoom andalso put(sent, [{{Node, Peer}, Message} || Peer <- Peers] ++ get(sent)),
                   HasRoom
           end,
    {Result, State} = Change(Send, map_get(Node, Servers)),
    {Result, lists:foldr(fun({To, Message}, Acc) -> queued(To, Message, Acc) end, World#world{servers = Servers#{Node := State}}, erase(sent))}.

%% ---- invariants ----

connected(Node, World) -> [Peer || Peer <- all_nodes(), is_connected(Node, Peer, World)].

members(Node, Group, #world{tables = Tables}) -> teleport_interest:members(map_get(Node, Tables), Group).

reached(Node, Group, #world{tables = Tables} = World) ->
    {With, Unsure} = teleport_interest:nodes(map_get(Node, Tables), Group, connected(Node, World)),
    {lists:sort(With), Unsure}.

%% A node with members may be missed only if it has not reported them yet, had no room to report them, or its report is
%% in flight.
missed(Command, World) ->
    [{Command, Node, Group, Peer} || Node <- all_nodes(), Group <- all_groups(), {With, Unsure} <- [reached(Node, Group, World)],
                                     Peer <- connected(Node, World) -- (With ++ Unsure), members(Peer, Group, World) =/= [],
                                     not is_news_of(Group, Peer, Node, World)].

is_news_of(Group, Peer, Node, #world{servers = Servers, ways = Ways}) ->
    Hash = erlang:phash2(Group, 1 bsl 32),
    Server = map_get(Peer, Servers),
    teleport_interest:is_changed(Server) orelse teleport_interest:is_behind(Server)
        orelse lists:any(fun({change, _, Joined, _}) -> lists:member(Hash, [H || <<H:32>> <= Joined]);
                            ({all, _, _, _}) -> true;
                            (What) -> lists:member(What, [nodeup, nodedown]) orelse element(1, What) =:= 'DOWN'
                         end, maps:get({Peer, Node}, Ways, [])).

%% Delivers all messages in flight.
quiet(#world{ways = Ways} = World) ->
    Flushed = lists:foldl(fun(Node, Acc) -> run({flush, Node}, Acc) end, World, all_nodes()),
    case [Way || {Way, [_ | _]} <- maps:to_list(Ways)] of
        [] when Flushed#world.ways =:= Ways -> Flushed;
        Waiting -> quiet(lists:foldl(fun(Way, Acc) -> run({deliver, Way}, Acc) end, Flushed, Waiting))
    end.

wrong(World) ->
    [{Node, Group, Reached, With} || Node <- all_nodes(), Group <- all_groups(), With <- [[Peer || Peer <- connected(Node, World), members(Peer, Group, World) =/= []]],
                                     Reached <- [reached(Node, Group, World)], Reached =/= {With, []}].

views_differ_test_() ->
    {timeout, 120, ?_assert(proper:quickcheck(prop_views_differ(), [quiet, {numtests, 1500}, {max_size, 80}, {to_file, user}]))}.

%% ---- single cases ----

%% A hash has four bytes, and a group's second member is not reported.
only_the_first_and_the_last_member_are_news_test() ->
    Table = ets:new(interest, [ordered_set]),
    Peer = pid(),
    Send = fun(Pid, Message) -> ?assertEqual(Peer, Pid), self() ! {sent, Message}, true end,
    Sent = fun Sent() -> receive {sent, Message} -> [Message | Sent()] after 0 -> [] end end,
    {true, Asked} = teleport_interest:asked(b, Peer, make_ref(), Send, teleport_interest:new(Table, a)),
    ?assertMatch([{all, a, _, <<>>}], Sent()),
    Join = fun(Number, State) -> teleport_interest:flush(Send, teleport_interest:join(group, member(Number), State)) end,
    Leave = fun(Number, State) -> teleport_interest:flush(Send, teleport_interest:leave(group, member(Number), State)) end,
    Joined = lists:foldl(Join, Asked, lists:seq(1, 1000) ++ [7, 7]),
    Hash = <<(erlang:phash2(group, 1 bsl 32)):32>>,
    ?assertEqual([{change, a, Hash, <<>>}], Sent()),
    ?assertEqual(1000, length(teleport_interest:members(Table, group))),
    _ = lists:foldl(Leave, Joined, [1001, 7, 7 | lists:seq(1, 1000)]),
    ?assertEqual([{change, a, <<>>, Hash}], Sent()),
    ?assertEqual([], teleport_interest:members(Table, group)).

%% Some groups look like ets patterns, and some are equal but not identical.
any_term_is_a_group_test() ->
    Table = ets:new(interest, [ordered_set]),
    Groups = ['_', '$1', {'_', '$2'}, 1, 1.0, <<>>, [], #{a => '_'}, {const, 1}],
    _ = lists:foldl(fun({Group, Number}, State) -> teleport_interest:join(Group, member(Number), State) end, teleport_interest:new(Table, a),
                    lists:zip(Groups, lists:seq(1, length(Groups)))),
    [?assertEqual([member(Number)], teleport_interest:members(Table, Group)) || {Group, Number} <- lists:zip(Groups, lists:seq(1, length(Groups)))].
