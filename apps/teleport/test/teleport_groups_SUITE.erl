%% SPDX-License-Identifier: Apache-2.0
%% @doc Broadcasts to groups of pg: who gets them, how often and in which order, and what the sender is told.
-module(teleport_groups_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([all_members_once/1, sent_once_to_each_node/1, large_messages/1, order_of_one_sender/1, sender_without_members/1, members_elsewhere/1, nobody_to_send_to/1,
         members_that_end/1, node_is_killed/1, lane_cannot_be_opened/1, node_does_not_answer/1, too_many_under_way/1, full_lane/1, node_without_teleport/1, bad_input/1]).
%% Used on the nodes.
-export([member/1, got/1, joined/3]).
-import(teleport_nodes, [wait_ms/0]).

-define(SCOPE, tp_scope).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [{group, shm}, {group, tcp}].

groups() ->
    teleport_nodes:groups([shm, tcp],
                          [all_members_once, sent_once_to_each_node, large_messages, order_of_one_sender, sender_without_members, members_elsewhere, nobody_to_send_to,
                           members_that_end, node_is_killed, lane_cannot_be_opened, node_does_not_answer, too_many_under_way, full_lane, node_without_teleport, bad_input]).

init_per_group(Kind, Config) ->
    Pair = teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)),
    [{ok, _} = beamway_peer:call(Peer, pg, start, [Scope]) || Peer <- [teleport_nodes:first(Pair), teleport_nodes:second(Pair)], Scope <- [pg, ?SCOPE]],
    Pair.

end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

%% Each case has a group of its own.
init_per_testcase(Case, Config) -> [{group, Case} | Config].

%% A case that fails with a node of its own leaves it behind.
end_per_testcase(_Case, Config) ->
    beamway_peer:stop_all(beamway_peer:started() -- [teleport_nodes:first(Config), teleport_nodes:second(Config)]).

%% ---- on the nodes ----

%% @private Keeps what it gets.
member(Got) ->
    receive
        {give, From} -> From ! {self(), lists:reverse(Got)}, member(Got);
        Message -> member([Message | Got])
    end.

%% @private What it has got so far.
got(Member) ->
    Member ! {give, self()},
    receive {Member, Got} -> Got after wait_ms() -> error({member, Member}) end.

%% @private So many members on this node.
joined(Scope, Group, Count) ->
    Members = [spawn(?MODULE, member, [[]]) || _ <- lists:seq(1, Count)],
    ok = pg:join(Scope, Group, Members),
    Members.

members(Node, Group, Count) -> members(Node, ?SCOPE, Group, Count).

%% On this node or another; returns when this node knows them.
members(Node, Scope, Group, Count) ->
    Members = erpc:call(Node, ?MODULE, joined, [Scope, Group, Count]),
    _ = beamway_peer:wait_until(fun() -> Members -- pg:get_members(Scope, Group) =:= [] end, wait_ms()),
    Members.

broadcast(Group, Message) -> broadcast(Group, Message, #{}).

broadcast(Group, Message, Options) -> teleport:broadcast(?SCOPE, Group, Message, maps:merge(#{timeout => wait_ms()}, Options)).

result(Given) -> maps:merge(#{sent => [], plain => [], skipped => [], failed => []}, Given).

%% Those whose sender was not told that they have arrived.
await_got(Member, Messages) -> beamway_peer:wait_until(fun() -> got(Member) =:= Messages end, wait_ms()).

lane_figures(Node) ->
    [{Sent, Bytes}] = [{Sent, Bytes} || #{opened_by := this_node, class := control, sent := Sent, sent_bytes := Bytes} <- teleport:lanes(Node)],
    {Sent, Bytes}.

%% ---- cases ----

on_first(Config, Body) ->
    Group = proplists:get_value(group, Config),
    teleport_nodes:on_first(Config, fun(Node) -> Body(Node, Group) end).

third(Config) ->
    {Peer, Node} = teleport_nodes:start(teleport_nodes:kind(Config)),
    third(Config, Peer, Node).

third(Config, Peer, Node) ->
    [{ok, _} = beamway_peer:call(Peer, pg, start, [Scope]) || Scope <- [pg, ?SCOPE]],
    ok = teleport_nodes:connect(teleport_nodes:first(Config), Node),
    {Peer, Node}.

all_members_once(Config) ->
    {_, Third} = third(Config),
    on_first(Config, fun(Node, Group) ->
        Members = [Twice | _] = lists:append([members(On, Group, 3) || On <- [node(), Node, Third]]),
        ok = pg:join(?SCOPE, Group, Twice),
        Far = lists:last(Members),
        ok = erpc:call(Third, pg, join, [?SCOPE, Group, Far]),
        Terms = [[], 0, 1 bsl 400, 1.5, <<>>, <<1:3>>, #{a => [self()]}, make_ref(), Node, [1 | improper], fun lists:map/2, binary:copy(<<"b">>, 70000)],
        Expected = result(#{sent => lists:sort([node(), Node, Third])}),
        [Expected = broadcast(Group, Term) || Term <- Terms],
        [Terms = got(Member) || Member <- Members],
        %% Of the default scope, and of another group in it.
        Default = members(Node, pg, Group, 1) ++ members(node(), pg, Group, 1),
        [Other] = members(Node, pg, {other, Group}, 1),
        Both = result(#{sent => lists:sort([node(), Node])}),
        Both = teleport:broadcast(Group, default),
        [[default] = got(Member) || Member <- Default],
        [] = got(Other)
    end).

sent_once_to_each_node(Config) ->
    on_first(Config, fun(Node, Group) ->
        Members = members(Node, Group, 100),
        Message = rand:bytes(50000),
        Result = result(#{sent => [Node]}),
        Result = broadcast(Group, first, #{class => control}),
        {Sent, Bytes} = lane_figures(Node),
        Result = broadcast(Group, Message, #{class => control}),
        {SentThen, BytesThen} = lane_figures(Node),
        1 = SentThen - Sent,
        true = BytesThen - Bytes < 51000,
        [[first, Message] = got(Member) || Member <- Members]
    end).

large_messages(Config) ->
    on_first(Config, fun(Node, Group) ->
        [Own, Far] = [hd(members(On, Group, 1)) || On <- [node(), Node]],
        Binary = rand:bytes(10000000),
        Messages = [Binary, {x, Binary, #{k => [Binary]}}, lists:seq(1, 300000), lists:duplicate(100, rand:bytes(70000))],
        Expected = result(#{sent => lists:sort([node(), Node])}),
        [Expected = broadcast(Group, Message, Options) || Message <- Messages, Options <- [#{}, #{class => bulk, confirm => false}]],
        Twice = lists:append([[Message, Message] || Message <- Messages]),
        Twice = got(Own),
        %% Between two classes there is no order.
        _ = beamway_peer:wait_until(fun() -> lists:sort(got(Far)) =:= lists:sort(Twice) end, wait_ms()),
        TooBig = binary:copy(<<"b">>, 100000),
        ok = teleport:configure(Node, #{max_message_bytes => 65536}),
        #{failed := [{Node, {too_big, _}}]} = broadcast(Group, TooBig),
        ok = teleport:configure(Node, #{max_message_bytes => 2147483647})
    end).

%% Two senders at once, with and without confirmation, small and large messages.
order_of_one_sender(Config) ->
    on_first(Config, fun(Node, Group) ->
        Members = lists:append([members(On, Group, 2) || On <- [node(), Node]]),
        Large = rand:bytes(300000),
        Send = fun(Sender, N) ->
                       Payload = case N rem 50 of 0 -> Large; _ -> small end,
                       #{failed := []} = broadcast(Group, {Sender, N, Payload}, #{confirm => N rem 3 =:= 0})
               end,
        Senders = [beamway_peer:async(fun() -> [Send(Sender, N) || N <- lists:seq(1, 500)], ok end) || Sender <- [a, b]],
        [ok = beamway_peer:await(Sender) || Sender <- Senders],
        [begin
             _ = beamway_peer:wait_until(fun() -> length(got(Member)) =:= 1000 end, wait_ms()),
             Got = got(Member),
             [true = lists:seq(1, 500) =:= [N || {Of, N, _} <- Got, Of =:= Sender] || Sender <- [a, b]]
         end || Member <- Members]
    end).

sender_without_members(Config) ->
    {_, Third} = third(Config),
    on_first(Config, fun(Node, Group) ->
        Members = lists:append([members(On, Group, 2) || On <- [Node, Third]]),
        Expected = result(#{sent => lists:sort([Node, Third])}),
        Expected = broadcast(Group, one),
        Expected = broadcast(Group, two, #{confirm => false}),
        [await_got(Member, [one, two]) || Member <- Members]
    end).

nobody_to_send_to(Config) ->
    on_first(Config, fun(_, Group) ->
        Nobody = result(#{}),
        Nobody = broadcast(Group, x),
        Nobody = teleport:broadcast({unknown, Group}, x),
        {error, {no_scope, no_such_scope}} = teleport:broadcast(no_such_scope, Group, x, #{})
    end).

members_that_end(Config) ->
    on_first(Config, fun(Node, Group) ->
        [Ends, Stays] = members(Node, Group, 2),
        Expected = result(#{sent => [Node]}),
        Expected = broadcast(Group, one),
        [one] = got(Ends),
        true = exit(Ends, kill),
        Expected = broadcast(Group, two),
        [one, two] = got(Stays),
        %% The last one has left, and this node has not heard of it yet.
        ok = sys:suspend(?SCOPE),
        ok = erpc:call(Node, pg, leave, [?SCOPE, Group, Stays]),
        Skipped = result(#{skipped => [Node]}),
        Skipped = broadcast(Group, three),
        ok = sys:resume(?SCOPE),
        [one, two] = got(Stays)
    end).

%% It has the message and has not confirmed it when it is killed.
node_is_killed(Config) ->
    {Peer, Third} = third(Config),
    Group = proplists:get_value(group, Config),
    on_first(Config, fun(Node, _) ->
        Lives = members(Node, Group, 2),
        _ = members(Third, Group, 2),
        Expected = result(#{sent => lists:sort([Node, Third])}),
        Expected = broadcast(Group, one),
        ok = teleport:prime(Third, wait_ms()),
        true = register(tp_groups_members, spawn(fun() -> receive {which, From} -> From ! {members, Lives} end end))
    end),
    ok = beamway_peer:sigstop(Peer),
    Call = fun(Message, Options) ->
                   Broadcast = fun() -> broadcast(Group, Message, Options) end,
                   beamway_peer:async(fun() -> beamway_peer:run(teleport_nodes:first(Config), Broadcast, wait_ms()) end)
           end,
    Asked = Call(two, #{}),
    on_first(Config, fun(_, _) ->
        tp_groups_members ! {which, self()},
        Lives = receive {members, Some} -> Some after wait_ms() -> error(nobody) end,
        %% The stopped node holds up no other.
        [await_got(Member, [one, two]) || Member <- Lives]
    end),
    ok = beamway_peer:kill9(Peer),
    #{sent := [Second], failed := [{Third, {nodedown, Third}}]} = beamway_peer:await(Asked),
    Second = teleport_nodes:second_node(Config).

lane_cannot_be_opened(Config) ->
    {Peer, Third} = third(Config),
    on_first(Config, fun(Node, Group) ->
        _ = members(Node, Group, 1),
        _ = members(Third, Group, 1)
    end),
    ok = beamway_peer:sigstop(Peer),
    on_first(Config, fun(Node, Group) ->
        [Near] = [Pid || Pid <- pg:get_members(?SCOPE, Group), node(Pid) =:= Node],
        ok = teleport:prime(Node, wait_ms()),
        %% The other node does not wait for it.
        Call = beamway_peer:async(fun() -> broadcast(Group, one) end),
        await_got(Near, [one]),
        Expected = result(#{sent => [Node], failed => [{Third, timeout}]}),
        Expected = broadcast(Group, two, #{timeout => 300}),
        Expected = broadcast(Group, three, #{timeout => 300, confirm => false}),
        await_got(Near, [one, two, three]),
        {Pid, _} = Call,
        true = exit(Pid, kill),
        %% What is not confirmed has waited once for this lane, and does not wait again.
        {Us, Results} = timer:tc(fun() -> [broadcast(Group, four, #{confirm => false}) || _ <- lists:seq(1, 20)] end),
        Results = lists:duplicate(20, Expected),
        true = Us div 1000 < wait_ms()
    end),
    ok = beamway_peer:sigcont(Peer),
    on_first(Config, fun(Node, Group) ->
        %% It is opened in the background.
        Sent = result(#{sent => lists:sort([Node, Third])}),
        _ = beamway_peer:wait_until(fun() -> broadcast(Group, five, #{confirm => false}) =:= Sent end, wait_ms())
    end).

members_elsewhere(Config) ->
    on_first(Config, fun(Node, Group) ->
        [Own, Far] = [hd(members(On, Group, 1)) || On <- [node(), Node]],
        Expected = result(#{sent => [Node]}),
        Expected = broadcast(Group, one, #{local => false}),
        Both = result(#{sent => lists:sort([node(), Node])}),
        Both = broadcast(Group, two, #{local => true}),
        [one, two] = got(Far),
        [two] = got(Own)
    end).

node_does_not_answer(Config) ->
    {Peer, Third} = third(Config),
    on_first(Config, fun(Node, Group) ->
        _ = members(Node, Group, 1),
        _ = members(Third, Group, 1),
        #{failed := []} = broadcast(Group, one),
        ok = teleport:prime(Third, wait_ms())
    end),
    ok = beamway_peer:sigstop(Peer),
    on_first(Config, fun(Node, Group) ->
        Expected = result(#{sent => [Node], failed => [{Third, timeout}]}),
        Expected = broadcast(Group, two, #{timeout => 300}),
        %% Without confirmation it is enough that the lane has it.
        Accepted = result(#{sent => lists:sort([Node, Third])}),
        Accepted = broadcast(Group, three, #{confirm => false}),
        {messages, []} = process_info(self(), messages)
    end),
    ok = beamway_peer:sigcont(Peer),
    on_first(Config, fun(_, Group) ->
        [Far] = [Pid || Pid <- pg:get_members(?SCOPE, Group), node(Pid) =:= Third],
        await_got(Far, [one, two, three]),
        {messages, []} = process_info(self(), messages)
    end).

too_many_under_way(Config) ->
    {Peer, Third} = third(Config),
    on_first(Config, fun(_, Group) ->
        _ = members(Third, Group, 1),
        #{failed := []} = broadcast(Group, one),
        ok = teleport:configure(all, #{max_broadcasts => 2})
    end),
    ok = beamway_peer:sigstop(Peer),
    on_first(Config, fun(_, Group) ->
        Waiting = [spawn(fun() -> broadcast(Group, two) end) || _ <- [1, 2]],
        _ = beamway_peer:wait_until(fun() -> ets:info(teleport_groups, size) =:= 2 end, wait_ms()),
        {error, busy} = broadcast(Group, three),
        %% Who is killed makes room.
        true = exit(hd(Waiting), kill),
        #{failed := [{Third, timeout}]} = broadcast(Group, four, #{timeout => 100}),
        true = exit(lists:last(Waiting), kill),
        ok = teleport:configure(all, #{max_broadcasts => 1000})
    end).

full_lane(Config) ->
    {Peer, Third} = third(Config),
    on_first(Config, fun(_, Group) ->
        ok = teleport:configure(Third, #{max_queue_messages => 10, max_queue_bytes => 65536}),
        _ = members(Third, Group, 1),
        #{failed := []} = broadcast(Group, one),
        ok = teleport:prime(Third, wait_ms())
    end),
    ok = beamway_peer:sigstop(Peer),
    on_first(Config, fun(Node, Group) ->
        [Near] = members(Node, Group, 1),
        Large = rand:bytes(1000000),
        Results = [broadcast(Group, {N, Large}, #{confirm => false}) || N <- lists:seq(1, 50)],
        #{sent := [Node], failed := [{Third, overload}]} = lists:last(Results),
        _ = beamway_peer:wait_until(fun() -> length(got(Near)) =:= 50 end, wait_ms())
    end).

node_without_teleport(Config) ->
    Carrier = case teleport_nodes:kind(Config) of shm -> beamway_shm; tcp -> inet_tcp end,
    {ok, Peer, Name} = beamway_peer:start(Carrier),
    {_, Plain} = third(Config, Peer, Name),
    on_first(Config, fun(Node, Group) ->
        Members = lists:append([members(On, Group, 2) || On <- [Node, Plain]]),
        Expected = result(#{sent => [Node], plain => [Plain]}),
        Expected = broadcast(Group, one),
        Expected = broadcast(Group, two, #{confirm => false}),
        [await_got(Member, [one, two]) || Member <- Members]
    end).

bad_input(Config) ->
    on_first(Config, fun(Node, Group) ->
        [Member] = members(Node, Group, 1),
        [{'EXIT', {{bad_option, Name, Value}, _}} = (catch teleport:broadcast(?SCOPE, Group, x, Options))
         || {Name, Value, Options} <- [{class, fast, #{class => fast}}, {timeout, -1, #{timeout => -1}}, {confirm, yes, #{confirm => yes}}, {local, no, #{local => no}},
                                       {key, 1, #{key => 1}}, {options, [], []}]],
        %% A message to the name is no broadcast, and harms no lane.
        {ok, Ref} = teleport:send({teleport_groups, Node}, nonsense, #{confirm => true}),
        {unconfirmed, noproc} = receive {teleport, Ref, Said} -> Said after wait_ms() -> error(never_told) end,
        #{failed := []} = broadcast(Group, one),
        [one] = got(Member)
    end).
