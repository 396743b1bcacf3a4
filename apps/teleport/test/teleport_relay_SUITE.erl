%% SPDX-License-Identifier: Apache-2.0
%% @doc Broadcasts between two sites: what crosses, and that each member gets each one once and in order although relays and leaves fail.
%%
%% The pair of nodes is one site. Each case has three more, which are the other.
-module(teleport_relay_SUITE).

-export([all/0, groups/0, suite/0, init_per_group/2, end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([one_message_crosses/1, answers/1, relay_of_version_0_2_0/1, sites_of_the_configuration/1, large_messages/1, order_of_one_sender/1, relay_does_not_answer/1, relay_is_killed/1,
         leaf_does_not_answer/1, leaf_is_killed/1, relay_without_teleport/1, leaf_without_teleport/1, relay_passes_on_too_many/1, process_is_killed/1,
         sites_that_nobody_knows/1, lanes_are_late/1, relay_has_less_time/1]).
%% Used on the nodes.
-export([become_0_2_0/0, tell_times/1]).
-import(teleport_nodes, [wait_ms/0]).
-import(teleport_groups_SUITE, [got/1]).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [{group, shm}, {group, tcp}].

%% The last two cases wait 6 s and 1.5 s, and what they wait for has no kind of lane.
groups() ->
    Cases = [one_message_crosses, answers, relay_of_version_0_2_0, sites_of_the_configuration, large_messages, order_of_one_sender, relay_does_not_answer, relay_is_killed,
             leaf_does_not_answer, leaf_is_killed, relay_without_teleport, leaf_without_teleport, relay_passes_on_too_many, process_is_killed, sites_that_nobody_knows],
    teleport_nodes:groups([shm], Cases ++ [lanes_are_late, relay_has_less_time]) ++ teleport_nodes:groups([tcp], Cases).

init_per_group(Kind, Config) ->
    Pair = teleport_nodes:start_pair(teleport_nodes:init_group(Kind, Config)),
    [{ok, _} = beamway_peer:call(Peer, pg, start, [pg]) || Peer <- [teleport_nodes:first(Pair), teleport_nodes:second(Pair)]],
    Pair.

end_per_group(_Kind, Config) -> teleport_nodes:stop_pair(Config).

%% `sites': of all nodes. `relay', `leaves': of the other site, each `{Peer, Node}'.
init_per_testcase(Case, Config) ->
    ok = beamway_peer:call(teleport_nodes:first(Config), application, set_env, [teleport_relay_SUITE, group, Case]),
    [First, Second] = [beamway_peer:call(Peer, erlang, node, []) || Peer <- [teleport_nodes:first(Config), teleport_nodes:second(Config)]],
    Others = [teleport_nodes:start(teleport_nodes:kind(Config)) || _ <- [1, 2, 3]],
    [begin
         {ok, _} = beamway_peer:call(Peer, pg, start, [pg]),
         ok = teleport_nodes:connect(teleport_nodes:first(Config), Node)
     end || {Peer, Node} <- Others],
    [ok = teleport_nodes:connect(Peer, Node) || {Peer, Of} <- Others, {_, Node} <- Others, Of < Node],
    Sites = maps:from_list([{First, near}, {Second, near} | [{Node, far} || {_, Node} <- Others]]),
    {[], [{Relay, _}]} = teleport_sites:plan(First, [Node || {_, Node} <- Others], Sites, []),
    [{sites, Sites}, {relay, lists:keyfind(Relay, 2, Others)}, {leaves, lists:keydelete(Relay, 2, Others)} | Config].

end_per_testcase(_Case, Config) ->
    ok = beamway_peer:call(teleport_nodes:first(Config), teleport, configure, [all, #{sites => none}]),
    ok = beamway_peer:call(teleport_nodes:first(Config), sys, resume, [pg]),
    true = beamway_peer:call(teleport_nodes:first(Config), ets, delete_all_objects, [teleport_relay]),
    beamway_peer:stop_all(beamway_peer:started() -- [teleport_nodes:first(Config), teleport_nodes:second(Config)]).

%% ---- on the first node ----

on_first(Config, Body) ->
    Sites = proplists:get_value(sites, Config),
    {_, Relay} = proplists:get_value(relay, Config),
    Leaves = lists:sort([Node || {_, Node} <- proplists:get_value(leaves, Config)]),
    teleport_nodes:on_first(Config, fun(Near) -> Body(#{near => Near, relay => Relay, leaves => Leaves, sites => Sites}) end).

%% Each case has its own: the pair keeps its members.
group() ->
    {ok, Group} = application:get_env(?MODULE, group),
    Group.

%% Two members on each of these nodes.
members(Nodes) ->
    Members = lists:append([erpc:call(Node, teleport_groups_SUITE, joined, [pg, group(), 2]) || Node <- Nodes]),
    _ = beamway_peer:wait_until(fun() -> Members -- pg:get_members(group()) =:= [] end, wait_ms()),
    Members.

members_of(Node) -> [Pid || Pid <- pg:get_members(group()), node(Pid) =:= Node].

broadcast(Message, Options) -> teleport:broadcast(pg, group(), Message, maps:merge(#{timeout => wait_ms()}, Options)).

result(Given) -> maps:merge(#{sent => [], plain => [], skipped => [], failed => []}, Given).

await_got(Members, Messages) ->
    _ = beamway_peer:wait_until(fun() -> lists:all(fun(Member) -> got(Member) =:= Messages end, Members) end, wait_ms()),
    ok.

figures(Node) -> erpc:call(Node, teleport_relay, figures, []).

%% What the lanes of this class have carried to the node.
bytes(Node, Of) -> lists:sum([Bytes || #{opened_by := this_node, class := Class, sent_bytes := Bytes} <- teleport:lanes(Node), Class =:= Of]).

%% ---- cases ----

%% The first message finds no lane from the relay to its leaves.
one_message_crosses(Config) ->
    on_first(Config, fun(#{near := Near, relay := Relay, leaves := Leaves, sites := Sites}) ->
        Far = [Relay | Leaves],
        Members = members([node(), Near | Far]),
        Message = rand:bytes(50000),
        Expected = result(#{sent => lists:sort([node(), Near | Far])}),
        [begin
             Expected = broadcast({N, Message}, #{sites => Sites, class => control}),
             {N, true, true} = {N, bytes(Relay, control) > N * 50000, bytes(Relay, control) < N * 51000},
             [0 = bytes(Leaf, control) || Leaf <- Leaves]
         end || N <- lists:seq(1, 10)],
        All = [{N, Message} || N <- lists:seq(1, 10)],
        [All = got(Member) || Member <- Members],
        #{relayed := 10, delivered := 10, dropped := 0} = figures(Relay),
        [#{relayed := 0, delivered := 10, dropped := 0} = figures(Leaf) || Leaf <- [Near | Leaves]],
        %% Without sites it crosses once for each node.
        Expected = broadcast(last, #{class => control}),
        [true = bytes(Leaf, control) > 0 || Leaf <- Leaves]
    end).

%% A relay names the nodes that have not got it. A sender of an earlier version hears of all.
answers(Config) ->
    on_first(Config, fun(#{relay := Relay, leaves := [Leaf, Other]}) ->
        Members = members([Relay, Leaf]),
        Ask = fun(Message, More) ->
                      Broadcast = teleport_relay:broadcast(pg, group(), self(), {term_to_binary(Message), []}),
                      teleport:call({teleport_relay, Relay}, list_to_tuple([relay, 5000, normal, [Leaf, Other], Broadcast | More]))
              end,
        {but, [{Other, {error, no_members}}]} = Ask(one, [but]),
        [{Relay, ok}, {Leaf, ok}, {Other, {error, no_members}}] = lists:sort(fun({A, _}, {B, _}) -> A =:= Relay orelse (B =/= Relay andalso A =< B) end, Ask(two, [])),
        {error, badarg} = Ask(three, [else_that]),
        ok = await_got(Members, [one, two])
    end).

%% It is sent to as a leaf is, and is no relay for a while.
relay_of_version_0_2_0(Config) ->
    on_first(Config, fun(#{relay := Relay, leaves := Leaves, sites := Sites}) ->
        Members = members([Relay | Leaves]),
        true = erpc:call(Relay, ?MODULE, become_0_2_0, []),
        Expected = result(#{sent => lists:sort([Relay | Leaves])}),
        Expected = broadcast(one, #{sites => Sites}),
        [Relay] = teleport_relay:avoid(),
        Expected = broadcast(two, #{sites => Sites}),
        [[one, two] = got(Member) || Member <- Members]
    end).

%% @private From now on this node's relay answers `{error, badarg}' to what version 0.2.0 does not know.
become_0_2_0() ->
    in_front(fun({'$gen_call', From, Request}, _) when element(1, Request) =:= relay, tuple_size(Request) =/= 5 -> gen_server:reply(From, {error, badarg});
                (Message, Relay) -> Relay ! Message
             end).

%% @private From now on it tells how many milliseconds a request gives it.
tell_times(To) ->
    in_front(fun(Message, Relay) ->
                     _ = [To ! {time, Ms} || {'$gen_call', _, {relay, Ms, _, _, _, but}} <- [Message]],
                     Relay ! Message
             end).

in_front(Takes) ->
    Real = whereis(teleport_relay),
    true = unregister(teleport_relay),
    register(teleport_relay, spawn(fun() -> in_front_of(Real, Takes) end)).

in_front_of(Relay, Takes) ->
    receive Message -> Takes(Message, Relay) end,
    in_front_of(Relay, Takes).

sites_of_the_configuration(Config) ->
    on_first(Config, fun(#{near := Near, relay := Relay, leaves := Leaves, sites := Sites}) ->
        Members = members([Near, Relay | Leaves]),
        Expected = result(#{sent => lists:sort([Near, Relay | Leaves])}),
        ok = teleport:configure(all, #{sites => Sites}),
        Expected = teleport:broadcast(group(), one),
        #{relayed := 1} = figures(Relay),
        %% A broadcast that nobody confirms has no relays.
        Expected = broadcast(two, #{confirm => false}),
        ok = await_got(Members, [one, two]),
        #{relayed := 1} = figures(Relay)
    end).

large_messages(Config) ->
    on_first(Config, fun(#{relay := Relay, leaves := Leaves, sites := Sites}) ->
        Members = members([Relay | Leaves]),
        Binary = rand:bytes(5000000),
        Messages = [Binary, {x, [Binary], #{k => Binary}}, lists:seq(1, 200000), lists:duplicate(100, rand:bytes(70000))],
        Expected = result(#{sent => lists:sort([Relay | Leaves])}),
        [Expected = broadcast(Message, #{sites => Sites}) || Message <- Messages],
        [Messages = got(Member) || Member <- Members],
        #{relayed := 4} = figures(Relay)
    end).

order_of_one_sender(Config) ->
    on_first(Config, fun(#{relay := Relay, leaves := Leaves, sites := Sites}) ->
        Members = members([Relay | Leaves]),
        Send = fun(Sender, N) ->
                       %% The plan changes now and then.
                       SiteOf = case N rem 7 of 0 -> #{}; _ -> Sites end,
                       Payload = case N rem 20 of 0 -> rand:bytes(300000); _ -> small end,
                       #{failed := []} = broadcast({Sender, N, Payload}, #{sites => SiteOf})
               end,
        Senders = [beamway_peer:async(fun() -> [Send(Sender, N) || N <- lists:seq(1, 200)], ok end) || Sender <- [a, b]],
        [ok = beamway_peer:await(Sender) || Sender <- Senders],
        [true = lists:seq(1, 200) =:= [N || {Of, N, _} <- got(Member), Of =:= Sender] || Member <- Members, Sender <- [a, b]]
    end).

%% It passes on what it has got when it goes on, and the leaves have had that.
relay_does_not_answer(Config) ->
    {Peer, _} = proplists:get_value(relay, Config),
    on_first(Config, fun(#{relay := Relay, leaves := Leaves, sites := Sites}) ->
        _ = members([Relay | Leaves]),
        #{failed := []} = broadcast(one, #{sites => Sites}),
        ok = teleport:prime(Relay, wait_ms())
    end),
    ok = beamway_peer:sigstop(Peer),
    on_first(Config, fun(#{relay := Relay, leaves := Leaves, sites := Sites}) ->
        Expected = result(#{sent => Leaves, failed => [{Relay, timeout}]}),
        Expected = broadcast(two, #{sites => Sites, timeout => 2000}),
        %% The next one has another relay.
        [Other] = Leaves -- [lists:max(Leaves -- relays(Leaves, Sites))],
        Expected = broadcast(three, #{sites => Sites, timeout => 2000}),
        #{relayed := 1} = figures(Other),
        {messages, []} = process_info(self(), messages)
    end),
    ok = beamway_peer:sigcont(Peer),
    on_first(Config, fun(#{relay := Relay, leaves := Leaves}) ->
        ok = await_got(members_of(Relay), [one, two, three]),
        _ = beamway_peer:wait_until(fun() -> lists:all(fun(Leaf) -> maps:get(dropped, figures(Leaf)) =:= 1 end, Leaves) end, wait_ms()),
        [[one, two, three] = got(Member) || Leaf <- Leaves, Member <- members_of(Leaf)]
    end).

relays(Nodes, Sites) ->
    {[], [{Relay, _}]} = teleport_sites:plan(node(), Nodes, Sites, []),
    [Relay].

relay_is_killed(Config) ->
    {Peer, _} = proplists:get_value(relay, Config),
    on_first(Config, fun(#{relay := Relay, leaves := Leaves, sites := Sites}) ->
        _ = members([Relay | Leaves]),
        #{failed := []} = broadcast(one, #{sites => Sites}),
        ok = teleport:prime(Relay, wait_ms())
    end),
    ok = beamway_peer:sigstop(Peer),
    Sites = proplists:get_value(sites, Config),
    Call = beamway_peer:async(fun() -> beamway_peer:run(teleport_nodes:first(Config), fun() -> broadcast(two, #{sites => Sites}) end, wait_ms()) end),
    on_first(Config, fun(_) -> beamway_peer:wait_until(fun() -> ets:info(teleport_groups, size) =:= 1 end, wait_ms()) end),
    ok = beamway_peer:kill9(Peer),
    #{sent := Sent, failed := [{Relay, {nodedown, Relay}}]} = beamway_peer:await(Call),
    on_first(Config, fun(#{leaves := Leaves, relay := Killed}) ->
        {Sent, Killed} = {Leaves, Relay},
        [[one, two] = got(Member) || Leaf <- Leaves, Member <- members_of(Leaf)]
    end).

leaf_does_not_answer(Config) ->
    [{Peer, Stopped}, {_, Lives}] = proplists:get_value(leaves, Config),
    on_first(Config, fun(#{relay := Relay, leaves := Leaves, sites := Sites}) ->
        _ = members([Relay | Leaves]),
        #{failed := []} = broadcast(one, #{sites => Sites})
    end),
    ok = beamway_peer:sigstop(Peer),
    on_first(Config, fun(#{relay := Relay, sites := Sites}) ->
        Expected = result(#{sent => lists:sort([Relay, Lives]), failed => [{Stopped, timeout}]}),
        Expected = broadcast(two, #{sites => Sites, timeout => 1000}),
        [[one, two] = got(Member) || Node <- [Relay, Lives], Member <- members_of(Node)]
    end),
    ok = beamway_peer:sigcont(Peer),
    %% Both copies come, if the lanes were up; each member gets one.
    on_first(Config, fun(#{sites := Sites}) ->
        #{failed := []} = broadcast(three, #{sites => Sites}),
        [begin
             Got = got(Member),
             {true, one, three} = {length(Got) =:= length(lists:usort(Got)), hd(Got), lists:last(Got)}
         end || Member <- members_of(Stopped)]
    end).

leaf_is_killed(Config) ->
    [{Peer, Killed}, {_, Lives}] = proplists:get_value(leaves, Config),
    on_first(Config, fun(#{relay := Relay, leaves := Leaves, sites := Sites}) ->
        _ = members([Relay | Leaves]),
        #{failed := []} = broadcast(one, #{sites => Sites}),
        %% This node does not hear that the members are gone.
        ok = sys:suspend(pg)
    end),
    ok = beamway_peer:kill9(Peer),
    on_first(Config, fun(#{relay := Relay, sites := Sites}) ->
        #{sent := Sent, failed := [{Killed, _}]} = broadcast(two, #{sites => Sites}),
        Sent = lists:sort([Relay, Lives]),
        ok = sys:resume(pg),
        [[one, two] = got(Member) || Node <- [Relay, Lives], Member <- members_of(Node)]
    end).

relay_without_teleport(Config) ->
    on_first(Config, fun(#{relay := Relay, leaves := Leaves, sites := Sites}) ->
        Members = members([Relay | Leaves]),
        ok = erpc:call(Relay, application, stop, [teleport]),
        Expected = result(#{sent => Leaves, plain => [Relay]}),
        Expected = broadcast(one, #{sites => Sites}),
        [Relay] = teleport_relay:avoid(),
        Expected = broadcast(two, #{sites => Sites}),
        ok = await_got(Members, [one, two]),
        [1] = lists:usort([1 || Leaf <- Leaves, #{relayed := 1} <- [figures(Leaf)]])
    end).

leaf_without_teleport(Config) ->
    on_first(Config, fun(#{relay := Relay, leaves := [Without, With] = Leaves, sites := Sites}) ->
        Members = members([Relay | Leaves]),
        ok = erpc:call(Without, application, stop, [teleport]),
        Expected = result(#{sent => lists:sort([Relay, With]), plain => [Without]}),
        Expected = broadcast(one, #{sites => Sites}),
        Expected = broadcast(two, #{sites => Sites}),
        ok = await_got(Members, [one, two]),
        [] = teleport_relay:avoid()
    end).

%% The relay waits for a leaf and takes no other one meanwhile.
relay_passes_on_too_many(Config) ->
    [{Peer, Stopped}, {_, Lives}] = proplists:get_value(leaves, Config),
    on_first(Config, fun(#{relay := Relay, leaves := Leaves, sites := Sites}) ->
        _ = members([Relay | Leaves]),
        #{failed := []} = broadcast(one, #{sites => Sites}),
        ok = erpc:call(Relay, teleport, configure, [all, #{max_broadcasts => 1}])
    end),
    ok = beamway_peer:sigstop(Peer),
    on_first(Config, fun(#{relay := Relay, sites := Sites}) ->
        Waits = spawn(fun() -> broadcast(two, #{sites => Sites, timeout => infinity}) end),
        _ = beamway_peer:wait_until(fun() -> maps:get(relayed, figures(Relay)) =:= 2 end, wait_ms()),
        #{failed := [{Stopped, timeout}]} = broadcast(three, #{sites => Sites, timeout => 1000}),
        #{relayed := 2} = figures(Relay),
        %% Two senders: the relay passes on the second one by a lane that it may have to open first.
        [beamway_peer:wait_until(fun() -> lists:sort(got(Member)) =:= [one, three, two] end, wait_ms()) || Node <- [Relay, Lives], Member <- members_of(Node)],
        true = exit(Waits, kill)
    end).

%% A new process of the node does not remember. It serves as before.
process_is_killed(Config) ->
    on_first(Config, fun(#{relay := Relay, leaves := Leaves, sites := Sites}) ->
        Members = members([Relay | Leaves]),
        #{failed := []} = broadcast(one, #{sites => Sites}),
        [begin
             Pid = erpc:call(Node, erlang, whereis, [teleport_relay]),
             true = exit(Pid, kill),
             _ = beamway_peer:wait_until(fun() -> is_pid(New = erpc:call(Node, erlang, whereis, [teleport_relay])) andalso New =/= Pid end, wait_ms())
         end || Node <- [Relay, hd(Leaves)]],
        #{failed := []} = broadcast(two, #{sites => Sites}),
        [[one, two] = got(Member) || Member <- Members]
    end).

sites_that_nobody_knows(Config) ->
    on_first(Config, fun(#{near := Near, relay := Relay, leaves := Leaves}) ->
        Members = members([Near, Relay | Leaves]),
        Expected = result(#{sent => lists:sort([Near, Relay | Leaves])}),
        Given = [#{}, {no_such_module, site}, fun(_) -> error(unknown) end, fun(_) -> undefined end],
        [Expected = broadcast(N, #{sites => SiteOf}) || {N, SiteOf} <- lists:enumerate(Given)],
        [[1, 2, 3, 4] = got(Member) || Member <- Members],
        #{relayed := 0} = figures(Relay),
        [{'EXIT', {{bad_option, sites, Bad}, _}} = (catch broadcast(x, #{sites => Bad})) || Bad <- [site, [], fun() -> x end]]
    end).

%% Those to a direct node and to the relay come up when the time of the relays is over, which is 5 s.
lanes_are_late(Config) ->
    on_first(Config, fun(#{near := Near, relay := Relay, leaves := Leaves, sites := Sites}) ->
        Members = members([Near, Relay | Leaves]),
        Expected = result(#{sent => lists:sort([Near, Relay | Leaves])}),
        %% No other case has opened a lane of this class.
        [] = [Lane || Node <- [Near, Relay], #{opened_by := this_node, class := bulk} = Lane <- teleport:lanes(Node)],
        Listeners = [{teleport_listener, Node} || Node <- [Near, Relay]],
        [ok = sys:suspend(Listener) || Listener <- Listeners],
        try
            Call = beamway_peer:async(fun() -> broadcast(one, #{sites => Sites, class => bulk}) end),
            receive after 6000 -> ok end,
            [ok = sys:resume(Listener) || Listener <- Listeners],
            Expected = beamway_peer:await(Call)
        after
            [ok = sys:resume(Listener) || Listener <- Listeners]
        end,
        [[one] = got(Member) || Member <- Members]
    end).

%% Its lane comes up late. Three quarters of 5 s would be more than it has left.
relay_has_less_time(Config) ->
    on_first(Config, fun(#{relay := Relay, leaves := Leaves, sites := Sites}) ->
        _ = members([Relay | Leaves]),
        true = erpc:call(Relay, ?MODULE, tell_times, [self()]),
        ok = sys:suspend({teleport_listener, Relay}),
        Call = beamway_peer:async(fun() -> broadcast(one, #{sites => Sites}) end),
        receive after 1500 -> ok end,
        ok = sys:resume({teleport_listener, Relay}),
        #{failed := []} = beamway_peer:await(Call),
        receive {time, Ms} -> true = Ms < 3500 after wait_ms() -> error(no_request) end
    end).
