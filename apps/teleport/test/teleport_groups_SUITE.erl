%% SPDX-License-Identifier: Apache-2.0
%% @doc Broadcasts to groups of pg: which processes get them, how often and in which order, which result the sender gets,
%% and what the sender does not wait for.
-module(teleport_groups_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([all_members_once/1, sent_once_to_each_node/1, large_messages/1, order_of_one_sender/1, members_elsewhere/1, nobody_to_send_to/1, members_that_end/1,
         node_is_killed/1, a_hung_node/1, node_without_teleport/1, sites/1, a_relay_that_hangs/1, bad_input/1]).
%% Called on the nodes.
-export([member/1, got/1, joined/3, count_bytes/1]).
-import(teleport_nodes, [wait_ms/0]).

-define(SCOPE, tp_scope).
-define(CONFIRM, #{confirm => true, timeout => wait_ms()}).

suite() -> [{timetrap, {minutes, 3}}].

all() -> teleport_nodes:all([shm, stock, tls]).

groups() ->
    All = [all_members_once, sent_once_to_each_node, large_messages, order_of_one_sender, members_elsewhere, nobody_to_send_to, members_that_end, node_is_killed, a_hung_node,
           node_without_teleport, sites, a_relay_that_hangs, bad_input],
    teleport_nodes:groups([shm, stock], All) ++ teleport_nodes:groups([tls], [all_members_once, order_of_one_sender, a_hung_node]).

init_per_group(Kind, Config) ->
    Pair = teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)),
    [{ok, _} = beamway_peer:call(Peer, pg, start, [Scope]) || Peer <- [teleport_nodes:first(Pair), teleport_nodes:second(Pair)], Scope <- [pg, ?SCOPE]],
    Pair.

end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

%% Each case uses its own group.
init_per_testcase(Case, Config) -> [{group, Case} | Config].

end_per_testcase(_Case, Config) ->
    beamway_peer:stop_all(beamway_peer:started() -- [teleport_nodes:first(Config), teleport_nodes:second(Config)]).

%% ---- functions that run on the nodes ----

%% @private A group member that stores the messages it receives.
member(Got) ->
    receive
        {give, From} -> From ! {self(), lists:reverse(Got)}, member(Got);
        Message -> member([Message | Got])
    end.

%% @private Returns the messages that the member has received so far.
got(Member) ->
    Member ! {give, self()},
    receive {Member, Got} -> Got after wait_ms() -> error({member, Member}) end.

%% @private Starts this many members on this node.
joined(Scope, Group, Count) ->
    Members = [spawn(?MODULE, member, [[]]) || _ <- lists:seq(1, Count)],
    ok = pg:join(Scope, Group, Members),
    Members.

members(Node, Group, Count) -> members(Node, ?SCOPE, Group, Count).

%% Starts members on this node or another, and returns when this node knows them.
members(Node, Scope, Group, Count) ->
    Members = erpc:call(Node, ?MODULE, joined, [Scope, Group, Count]),
    _ = beamway_peer:wait_until(fun() -> Members -- pg:get_members(Scope, Group) =:= [] end, wait_ms()),
    Members.

broadcast(Group, Message) -> broadcast(Group, Message, ?CONFIRM).

broadcast(Group, Message, Options) -> teleport:broadcast(?SCOPE, Group, Message, Options).

result(Given) -> maps:merge(#{sent => [], plain => [], skipped => [], failed => []}, Given).

%% Waits for the messages, because their sender did not get a confirmation.
await_got(Member, Messages) -> beamway_peer:wait_until(fun() -> got(Member) =:= Messages end, wait_ms()).

%% @private Returns the number of bytes that this node has sent to another node since they connected.
count_bytes(Node) ->
    case beamway:info(Node) of
        {ok, #{bytes_out := Bytes}} -> Bytes;
        _ ->
            {_, Port} = lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)),
            {ok, [{send_oct, Bytes}]} = inet:getstat(Port, [send_oct]),
            Bytes
    end.

%% ---- cases ----

on_first(Config, Body) ->
    Group = proplists:get_value(group, Config),
    teleport_nodes:on_first(Config, fun(Node) -> Body(Node, Group) end).

third(Config) ->
    {Peer, Node} = teleport_nodes:start(teleport_nodes:kind(Config)),
    third(Config, Peer, Node).

%% Waits until the first node knows the other's server, or knows that it has none.
third(Config, Peer, Node) ->
    [{ok, _} = beamway_peer:call(Peer, pg, start, [Scope]) || Scope <- [pg, ?SCOPE]],
    [ok = teleport_nodes:connect(Of, Node) || Of <- [teleport_nodes:first(Config), teleport_nodes:second(Config)]],
    IsServed = is_pid(beamway_peer:call(Peer, erlang, whereis, [teleport_server])),
    _ = beamway_peer:wait_until(fun() -> beamway_peer:call(teleport_nodes:first(Config), teleport_server, is_at, [Node]) =:= IsServed end, wait_ms()),
    {Peer, Node}.

all_members_once(Config) ->
    {_, Third} = third(Config),
    on_first(Config, fun(Node, Group) ->
        _ = beamway_peer:wait_until(fun() -> teleport_server:is_at(Node) end, wait_ms()),
        Members = [Twice | _] = lists:append([members(On, Group, 3) || On <- [node(), Node, Third]]),
        ok = pg:join(?SCOPE, Group, Twice),
        Far = lists:last(Members),
        ok = erpc:call(Third, pg, join, [?SCOPE, Group, Far]),
        Terms = [[], 0, 1 bsl 400, 1.5, <<>>, <<1:3>>, #{a => [self()]}, make_ref(), Node, [1 | improper], fun lists:map/2, binary:copy(<<"b">>, 70000)],
        Expected = result(#{sent => lists:sort([node(), Node, Third])}),
        [Expected = broadcast(Group, Term, Options) || Term <- Terms, Options <- [?CONFIRM, #{}]],
        [_ = await_got(Member, lists:append([[Term, Term] || Term <- Terms])) || Member <- Members],
        %% Starts members in the default scope, and in another group there.
        Default = members(Node, pg, Group, 1) ++ members(node(), pg, Group, 1),
        [Other] = members(Node, pg, {other, Group}, 1),
        Both = result(#{sent => lists:sort([node(), Node])}),
        Both = teleport:broadcast(Group, default),
        [_ = await_got(Member, [default]) || Member <- Default],
        [] = got(Other),
        {messages, []} = process_info(self(), messages)
    end).

sent_once_to_each_node(Config) ->
    on_first(Config, fun(Node, Group) ->
        Members = members(Node, Group, 100),
        Message = rand:bytes(50000),
        Result = result(#{sent => [Node]}),
        Before = count_bytes(Node),
        Result = broadcast(Group, Message),
        true = count_bytes(Node) - Before < 60000,
        [[Message] = got(Member) || Member <- Members]
    end).

large_messages(Config) ->
    on_first(Config, fun(Node, Group) ->
        [Own, Far] = [hd(members(On, Group, 1)) || On <- [node(), Node]],
        Binary = rand:bytes(10000000),
        Messages = [Binary, {x, Binary, #{k => [Binary]}}, lists:seq(1, 300000), lists:duplicate(100, rand:bytes(70000))],
        Expected = result(#{sent => lists:sort([node(), Node])}),
        [Expected = broadcast(Group, Message) || Message <- Messages],
        Messages = got(Own),
        Messages = got(Far)
    end).

%% Two senders send at the same time, with and without confirmation, with small and large messages.
order_of_one_sender(Config) ->
    on_first(Config, fun(Node, Group) ->
        Members = lists:append([members(On, Group, 2) || On <- [node(), Node]]),
        Large = rand:bytes(300000),
        Send = fun(Sender, N) ->
                       Payload = case N rem 50 of 0 -> Large; _ -> small end,
                       #{failed := []} = broadcast(Group, {Sender, N, Payload}, #{confirm => N rem 3 =:= 0, timeout => wait_ms()})
               end,
        Senders = [beamway_peer:async(fun() -> [Send(Sender, N) || N <- lists:seq(1, 500)], ok end) || Sender <- [a, b]],
        [ok = beamway_peer:await(Sender) || Sender <- Senders],
        [begin
             _ = beamway_peer:wait_until(fun() -> length(got(Member)) =:= 1000 end, wait_ms()),
             Got = got(Member),
             [true = lists:seq(1, 500) =:= [N || {Of, N, _} <- Got, Of =:= Sender] || Sender <- [a, b]]
         end || Member <- Members]
    end).

members_elsewhere(Config) ->
    {_, Third} = third(Config),
    on_first(Config, fun(Node, Group) ->
        [Own, Far, Farther] = [hd(members(On, Group, 1)) || On <- [node(), Node, Third]],
        Others = result(#{sent => lists:sort([Node, Third])}),
        Others = broadcast(Group, one, (?CONFIRM)#{local => false}),
        Some = result(#{sent => [Node]}),
        Some = broadcast(Group, two, (?CONFIRM)#{nodes => [Node]}),
        Here = result(#{sent => [node()]}),
        Here = broadcast(Group, three, #{nodes => [node(), 'nobody@127.0.0.1']}),
        [[three], [one, two], [one]] = [got(Member) || Member <- [Own, Far, Farther]]
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
        %% The last member has left, but this node does not know that yet.
        ok = sys:suspend(?SCOPE),
        ok = erpc:call(Node, pg, leave, [?SCOPE, Group, Stays]),
        Skipped = result(#{skipped => [Node]}),
        Skipped = broadcast(Group, three),
        Expected = broadcast(Group, four, #{}),
        ok = sys:resume(?SCOPE),
        [one, two] = got(Stays)
    end).

%% The node is killed after it has received the message but before it confirms it. While it is suspended, it does not
%% delay the other nodes.
node_is_killed(Config) ->
    {Peer, Third} = third(Config),
    Group = proplists:get_value(group, Config),
    Lives = beamway_peer:run(teleport_nodes:first(Config), fun() -> _ = members(Third, Group, 2), members(teleport_nodes:second_node(Config), Group, 2) end),
    ok = beamway_peer:sigstop(Peer),
    Asked = beamway_peer:async(fun() -> beamway_peer:run(teleport_nodes:first(Config), fun() -> broadcast(Group, one) end, wait_ms()) end),
    on_first(Config, fun(_, _) -> [await_got(Member, [one]) || Member <- Lives] end),
    ok = beamway_peer:kill9(Peer),
    #{sent := [Second], failed := [{Third, {nodedown, Third}}]} = beamway_peer:await(Asked),
    Second = teleport_nodes:second_node(Config).

%% A sender waits for a hung node only if it asks for that, whether or not the connection is full.
a_hung_node(Config) ->
    {Peer, Third} = third(Config),
    Group = proplists:get_value(group, Config),
    [Near, Far] = beamway_peer:run(teleport_nodes:first(Config), fun() -> [hd(members(On, Group, 1)) || On <- [teleport_nodes:second_node(Config), Third]] end),
    ok = beamway_peer:sigstop(Peer),
    on_first(Config, fun(Node, _) ->
        Both = result(#{sent => lists:sort([Node, Third])}),
        Sent = [begin {Us, Both} = timer:tc(fun() -> broadcast(Group, {one, N}, #{}) end), Us end || N <- lists:seq(1, 5)],
        true = lists:min(Sent) < 50000 * beamway_runner:slowness(),
        Late = result(#{sent => [Node], failed => [{Third, timeout}]}),
        Late = broadcast(Group, two, #{confirm => true, timeout => 300}),
        %% The connection to the hung node becomes full.
        Full = result(#{sent => [Node], failed => [{Third, overload}]}),
        Data = rand:bytes(100000),
        ok = fill(Far, Data, 20),
        Timed = fun(Message, Options) -> {Took, Full} = timer:tc(fun() -> broadcast(Group, Message, Options) end), Took end,
        %% Only one broadcast waits for the full connection, and broadcasts to a node whose
        %% connection is not full are not delayed.
        true = Timed({three, Data}, #{timeout => 300}) > 290000,
        true = lists:min([Timed({N, Data}, Options) || N <- lists:seq(1, 5), Options <- [#{}, #{timeout => 300}]]) < 50000 * beamway_runner:slowness(),
        _ = beamway_peer:wait_until(fun() -> length(got(Near)) =:= 17 end, wait_ms()),
        {messages, []} = process_info(self(), messages),
        %% Nothing is remembered about a node that is no longer connected, because its name may never be used again.
        [_] = ets:lookup(teleport_server, {late, Third}),
        true = erlang:disconnect_node(Third),
        _ = beamway_peer:wait_until(fun() -> ets:lookup(teleport_server, {late, Third}) =:= [] end, wait_ms())
    end),
    ok = beamway_peer:sigcont(Peer).

%% Sends until the connection has been full this many times in a row.
fill(_, _, 0) -> ok;
fill(Pid, Data, Times) ->
    case erlang:send(Pid, Data, [nosuspend]) of
        nosuspend -> receive after 10 -> fill(Pid, Data, Times - 1) end;
        ok -> fill(Pid, Data, 20)
    end.

node_without_teleport(Config) ->
    {ok, Peer, Name} = beamway_peer:start(teleport_nodes:carrier(teleport_nodes:kind(Config))),
    {_, Plain} = third(Config, Peer, Name),
    on_first(Config, fun(Node, Group) ->
        Members = lists:append([members(On, Group, 2) || On <- [Node, Plain]]),
        Expected = result(#{sent => [Node], plain => [Plain]}),
        Expected = broadcast(Group, one),
        Expected = broadcast(Group, two, #{}),
        [await_got(Member, [one, two]) || Member <- Members],
        %% Teleport is started there while the same process keeps sending.
        {ok, _} = erpc:call(Plain, application, ensure_all_started, [teleport]),
        _ = beamway_peer:wait_until(fun() -> teleport_server:is_at(Plain) end, wait_ms()),
        Both = result(#{sent => lists:sort([Node, Plain])}),
        Both = broadcast(Group, three),
        [await_got(Member, [one, two, three]) || Member <- Members],
        ok = erpc:call(Plain, application, stop, [teleport]),
        _ = beamway_peer:wait_until(fun() -> not teleport_server:is_at(Plain) end, wait_ms()),
        Expected = broadcast(Group, four),
        [await_got(Member, [one, two, three, four]) || Member <- Members]
    end).

%% The message is sent only once over the long path to the two nodes of another site; naming the second node costs only a
%% header.
sites(Config) ->
    {_, Third} = third(Config),
    on_first(Config, fun(Node, Group) ->
        Members = lists:append([members(On, Group, 2) || On <- [node(), Node, Third]]),
        _ = beamway_peer:wait_until(fun() -> erpc:call(Node, teleport_server, is_at, [Third]) andalso erpc:call(Third, teleport_server, is_at, [Node]) end, wait_ms()),
        Sites = fun(Of) when Of =:= node() -> here; (_) -> there end,
        All = result(#{sent => lists:sort([node(), Node, Third])}),
        Data = rand:bytes(100000),
        Before = [count_bytes(To) || To <- [Node, Third]],
        All = broadcast(Group, Data, (?CONFIRM)#{sites => Sites}),
        [_, Most] = lists:sort([count_bytes(To) - Then || {To, Then} <- lists:zip([Node, Third], Before)]),
        true = lists:sum([count_bytes(To) - Then || {To, Then} <- lists:zip([Node, Third], Before)]) < Most + 5000,
        All = broadcast(Group, two, #{sites => #{node() => here, Node => there, Third => there}}),
        ok = teleport:configure(all, #{sites => {erlang, phash2}}),
        All = broadcast(Group, three),
        ok = teleport:configure(all, #{sites => none}),
        [_ = beamway_peer:wait_until(fun() -> lists:sort(got(Member)) =:= lists:sort([Data, two, three]) end, wait_ms()) || Member <- Members],
        2 = lists:sum([erpc:call(To, teleport_metrics, counted, [relayed]) || To <- [Node, Third]])
    end).

%% The leaves of a hung relay do not get the message through it. A relay whose connection is full is skipped.
a_relay_that_hangs(Config) ->
    {Peer, Third} = third(Config),
    {Peer4, Fourth} = third(Config),
    Group = proplists:get_value(group, Config),
    First = teleport_nodes:first(Config),
    {Relay, Leaf} = beamway_peer:run(First, fun() ->
        [_ = members(On, Group, 1) || On <- [Third, Fourth]],
        {[], [{Relay, [Leaf]}]} = teleport_sites:plan(node(), [Third, Fourth], #{node() => here, Third => there, Fourth => there}),
        {Relay, Leaf}
    end),
    ok = beamway_peer:sigstop(case Relay of Third -> Peer; Fourth -> Peer4 end),
    on_first(Config, fun(_, _) ->
        Options = #{sites => #{node() => here, Third => there, Fourth => there}},
        Failed = result(#{failed => lists:sort([{Relay, timeout}, {Leaf, timeout}])}),
        Failed = broadcast(Group, one, Options#{confirm => true, timeout => 300}),
        Data = rand:bytes(100000),
        Full = result(#{sent => [Leaf], failed => [{Relay, overload}]}),
        _ = beamway_peer:wait_until(fun() -> broadcast(Group, Data, Options) =:= Full end, wait_ms()),
        [Member] = [Pid || Pid <- pg:get_members(?SCOPE, Group), node(Pid) =:= Leaf],
        _ = await_got(Member, [Data])
    end),
    ok = beamway_peer:sigcont(case Relay of Third -> Peer; Fourth -> Peer4 end).

bad_input(Config) ->
    on_first(Config, fun(Node, Group) ->
        [Member] = members(Node, Group, 1),
        [{'EXIT', {{bad_option, Name, Value}, _}} = (catch teleport:broadcast(?SCOPE, Group, x, Options))
         || {Name, Value, Options} <- [{class, fast, #{class => fast}}, {timeout, -1, #{timeout => -1}}, {confirm, yes, #{confirm => yes}}, {local, no, #{local => no}},
                                       {nodes, [1], #{nodes => [1]}}, {sites, [], #{sites => []}}, {key, 1, #{key => 1}}, {options, [], []}]],
        #{failed := []} = broadcast(Group, one),
        [one] = got(Member)
    end).
