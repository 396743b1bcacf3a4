%% SPDX-License-Identifier: Apache-2.0
%% @doc Leases on real nodes, and processes to which they are handed over.
-module(placement_lease_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([leases_have_a_capacity/1, leases_end/1, leases_for_several_nodes/1, leases_are_judged_one_by_one/1, processes_take_their_lease/1,
         a_lease_that_is_gone/1, a_node_that_begins_late/1, a_node_of_the_version_before/1, nobody_has_room/1, preferred_by_what_is_known/1, claims_that_are_no_amounts/1, names_that_are_patterns/1, apart_at_the_target/1,
         a_reservation_that_came_too_late/1]).
-export([wait/0, waiting/0, ant/0]).

-import(placement_two_sites, [call/5, on/3, node_of/2, nodes_of/1]).

suite() -> [{timetrap, {minutes, 5}}].

all() ->
    [leases_have_a_capacity, leases_end, leases_for_several_nodes, leases_are_judged_one_by_one, processes_take_their_lease, a_lease_that_is_gone,
     a_node_that_begins_late, a_node_of_the_version_before, nobody_has_room, preferred_by_what_is_known, claims_that_are_no_amounts, names_that_are_patterns, apart_at_the_target,
     a_reservation_that_came_too_late].

init_per_suite(Config) -> placement_two_sites:start(Config).

end_per_suite(Config) -> placement_two_sites:stop(Config).

leases_have_a_capacity(Config) ->
    F = node_of(Config, "f"),
    %% Four nodes each request five leases of one slot at the same moment, but there are only two slots.
    Askers = ["a", "b", "c", "d"],
    [true = call(Config, Name, net_kernel, connect_node, [F]) || Name <- Askers],
    Holders = [{Name, on(Config, Name, fun() -> asker(F, 5) end)} || Name <- Askers],
    Results = lists:append([on(Config, Name, fun() -> Pid ! {self(), go}, receive {Pid, All} -> All after 20000 -> error(no_answer) end end) || {Name, Pid} <- Holders]),
    ?assertEqual(2, length([granted || {ok, _} <- Results])),
    ?assertEqual(18, length([refused || {error, {refused, {capacity, slots, 0}}} <- Results])),
    ?assertMatch([{F, [{leases, 2}]}], call(Config, "a", attr, request_attrs, [[F], [leases]])),
    [on(Config, Name, fun() -> exit(Pid, kill) end) || {Name, Pid} <- Holders],
    _ = beamway_peer:wait_until(fun() -> 0 =:= call(Config, "f", placement_lease, count, []) end, 10000),
    %% One claim is on an attribute that is not a number, and the other exceeds the capacity.
    {error, {refused, {capacity, zone, unknown}}} = call(Config, "a", placement, reserve, [F, #{zone => 1}, #{}]),
    {error, {refused, {capacity, slots, 2}}} = call(Config, "a", placement, reserve, [F, #{slots => 3}, #{}]).

asker(Node, Count) ->
    spawn(fun() ->
        receive {From, go} -> ok end,
        From ! {self(), [placement:reserve(Node, #{slots => 1}, #{ttl => 60000, timeout => 15000}) || _ <- lists:seq(1, Count)]},
        receive stop -> ok end
    end).

leases_end(Config) ->
    F = node_of(Config, "f"),
    Count = fun() -> call(Config, "f", placement_lease, count, []) end,
    on(Config, "a", fun() ->
        {ok, Lease} = placement:reserve(F, #{slots => 1}, #{require => [{size, eq, 6}, {dist, very_near}], ttl => 60000}),
        1 = erpc:call(F, placement_lease, count, []),
        ok = placement:release(Lease),
        {ok, Renewed} = placement:reserve(F, #{}, #{ttl => 30000}),
        ok = placement:renew(Renewed, 60000),
        [Left] = [Ms || {_, _, Ms} <- erpc:call(F, placement_lease, list, [])],
        true = Left > 30000,
        {error, {refused, {predicate, {size, eq, 5}, false}}} = placement:reserve(F, #{}, #{require => {size, eq, 5}}),
        {error, {refused, {predicate, {nothing, eq, 5}, unknown}}} = placement:reserve(F, #{}, #{require => {nothing, eq, 5}}),
        {error, nodedown} = placement:reserve('never@127.0.0.1', #{}, #{})
    end),
    %% The holder, which is the process that ran that call, has exited.
    _ = beamway_peer:wait_until(fun() -> Count() =:= 0 end, 10000),
    %% Leases survive if the server is killed, and a lease also expires on its own.
    Holder = on(Config, "a", fun() -> Self = self(), Pid = spawn(fun() -> holder(F, Self) end), receive ready -> Pid after 30000 -> error(no_lease) end end),
    1 = Count(),
    Before = call(Config, "f", erlang, whereis, [placement_lease]),
    true = on(Config, "f", fun() -> exit(whereis(placement_lease), kill) end),
    _ = beamway_peer:wait_until(fun() -> not lists:member(call(Config, "f", erlang, whereis, [placement_lease]), [undefined, Before]) end, 10000),
    1 = Count(),
    on(Config, "a", fun() -> Holder ! shorten end),
    _ = beamway_peer:wait_until(fun() -> Count() =:= 0 end, 20000),
    ?assert(on(Config, "a", fun() -> is_process_alive(Holder) end)),
    on(Config, "a", fun() -> Holder ! stop end).

%% Requests a lease that would outlast the case, then shortens it to 50 ms, so that it expires before its holder exits.
holder(Node, Starter) ->
    {ok, Lease} = placement:reserve(Node, #{}, #{ttl => 3600000}),
    Starter ! ready,
    receive shorten -> ok = placement:renew(Lease, 50) end,
    receive stop -> ok end.

%% Either all leases are granted or none: if one node does not have enough capacity, the leases on the others are released.
leases_for_several_nodes(Config) ->
    Nodes = [A, B, _] = [node_of(Config, Name) || Name <- ["a", "b", "f"]],
    [ok = call(Config, Name, placement, insert, [seats, 2]) || Name <- ["a", "b", "f"]],
    Counts = fun() -> [call(Config, Name, placement_lease, count, []) || Name <- ["a", "b", "f"]] end,
    {Got, Refused, Between, After, Wrong} = on(Config, "c", fun() ->
        One = fun(Node) -> {Node, #{seats => 1}} end,
        Count = fun() -> [erpc:call(Node, placement_lease, count, []) || Node <- Nodes] end,
        {ok, Leases} = placement:reserve_all([One(Node) || Node <- Nodes], [], #{ttl => 600000, timeout => 30000}),
        Full = placement:reserve_all([One(A), {B, #{seats => 2}}], [], #{ttl => 600000, timeout => 30000}),
        true = beamway_peer:wait_until(fun() -> Count() =:= [1, 1, 1] end, 10000),
        Now = Count(),
        ok = lists:foreach(fun placement:release/1, Leases),
        true = beamway_peer:wait_until(fun() -> Count() =:= [0, 0, 0] end, 10000),
        {length(Leases), Full, Now, Count(), {placement:reserve_all([One('no@node')], [], #{}), placement:reserve_all([One(A)], {a}, #{})}}
    end),
    ?assertEqual({3, {error, [{B, {refused, {capacity, seats, 1}}}]}, [1, 1, 1], [0, 0, 0]}, {Got, Refused, Between, After}),
    ?assertMatch({{error, [{'no@node', nodedown}]}, {error, {bad_query, _}}}, Wrong),
    [ok = call(Config, Name, placement, delete, [seats]) || Name <- ["a", "b", "f"]],
    ?assertEqual([0, 0, 0], Counts()),
    %% Every node assigns the same nodes to a key; a node with a share of 0 gets none.
    [Keyed] = lists:usort([call(Config, Name, placement, node_for, [key, Nodes]) || Name <- ["a", "b", "f"]]),
    ?assertEqual(lists:sort(Nodes), lists:sort(Keyed)),
    [ok = call(Config, Name, placement, insert, [share, Share]) || {Name, Share} <- [{"a", 0}, {"b", 1}]],
    ?assertEqual([B], call(Config, "f", placement, node_for, [key, Nodes, share])),
    [ok = call(Config, Name, placement, delete, [share]) || Name <- ["a", "b"]].

%% All callers send their requests at the same moment, but only some of them can be granted. A lease counts as soon as it
%% is granted.
leases_are_judged_one_by_one(Config) ->
    F = node_of(Config, "f"),
    [begin
         Results = on(Config, "a", fun() ->
             Self = self(),
             Asking = [spawn_link(fun() ->
                 receive go -> ok end,
                 Self ! {answer, placement:reserve(F, #{}, #{require => Require, ttl => 60000, timeout => 30000})},
                 receive stop -> ok end
             end) || _ <- lists:seq(1, 30)],
             _ = [Pid ! go || Pid <- Asking],
             Answers = [receive {answer, Answer} -> Answer after 40000 -> none end || _ <- Asking],
             _ = [Pid ! stop || Pid <- Asking],
             Answers
         end),
         ?assertEqual({Most, 30 - Most}, {length([granted || {ok, _} <- Results]), length([no || {error, {refused, {predicate, _, false}}} <- Results])}),
         _ = beamway_peer:wait_until(fun() -> 0 =:= call(Config, "f", placement_lease, count, []) end, 10000)
     end || {Most, Require} <- [{1, {leases, lt, 1}}, {4, [{size, eq, 6}, {leases, lt, 4}]}]].

processes_take_their_lease(Config) ->
    F = node_of(Config, "f"),
    Options = #{nodes => nodes_of(Config), claims => #{slots => 1}},
    {ok, Pid, #{node := F, refused := []}} = call(Config, "a", placement, spawn, [{size, eq, 6}, {?MODULE, wait, []}, Options]),
    ?assertEqual(F, node(Pid)),
    ?assertMatch([{Pid, #{slots := 1}, attached}], call(Config, "f", placement_lease, list, [])),
    %% Renewing the lease does not shorten it.
    [{Reference, _, _, _}] = call(Config, "f", ets, tab2list, [placement_leases]),
    ok = call(Config, "a", placement, renew, [{placement_lease, F, Reference}, 1]),
    ?assertMatch([{Pid, #{slots := 1}, attached}], call(Config, "f", placement_lease, list, [])),
    {ok, Second, _} = call(Config, "a", placement, spawn, [{size, eq, 6}, {?MODULE, wait, []}, Options]),
    {error, {busy, [{F, {refused, {capacity, slots, 0}}}]}} = call(Config, "a", placement, spawn, [{size, eq, 6}, {?MODULE, wait, []}, Options]),
    on(Config, "a", fun() -> Pid ! stop, Second ! stop end),
    _ = beamway_peer:wait_until(fun() -> [] =:= call(Config, "f", placement_lease, list, []) end, 10000),
    %% The process exits immediately, which also ends its lease.
    {ok, _, _} = call(Config, "a", placement, spawn, [{size, eq, 6}, {erlang, node, []}, Options]),
    _ = beamway_peer:wait_until(fun() -> [] =:= call(Config, "f", placement_lease, list, []) end, 10000).

%% The lease expires before it is handed over, so the process is killed and the next node is tried.
a_lease_that_is_gone(Config) ->
    [E, F] = [node_of(Config, Name) || Name <- ["e", "f"]],
    ok = on(Config, "f", fun() -> sys:install(placement_lease, {fun without_lease/3, none}) end),
    {ok, Pid, #{node := E, refused := [{F, {no_lease, ended}}]}} =
        call(Config, "a", placement, spawn, [#{require => {size, ge, 5}, prefer => [{1, {size, max}}], policy => {choices, 6}}, {?MODULE, wait, []}, #{nodes => [E, F]}]),
    ok = on(Config, "f", fun() -> sys:remove(placement_lease, fun without_lease/3) end),
    _ = beamway_peer:wait_until(fun() -> not on(Config, "f", fun() -> is_process_alive(persistent_term:get(handed_over)) end) end, 10000),
    on(Config, "a", fun() -> Pid ! stop end),
    _ = beamway_peer:wait_until(fun() -> {0, 0} =:= {call(Config, "e", placement_lease, count, []), call(Config, "f", placement_lease, count, [])} end, 10000).

%% Runs in the server, before it handles a message.
without_lease(State, {in, {'$gen_call', _, {hand_over, Reference, Pid}}}, _) ->
    true = ets:delete(placement_leases, Reference),
    ok = persistent_term:put(handed_over, Pid),
    State;
without_lease(State, _, _) -> State.

%% The node grants the lease and then handles no messages for longer than a start may take. The function is called only
%% on the next node.
a_node_that_begins_late(Config) ->
    [A, E, F] = [node_of(Config, Name) || Name <- ["a", "e", "f"]],
    Reads = fun(Active) -> inet:setopts(proplists:get_value(A, erlang:system_info(dist_ctrl)), [{active, Active}]) end,
    Deaf = fun(State, {in, {'DOWN', _, process, _, {placement_lease, {fits, _, _}}}}, _) -> ok = Reads(false), State;
              (State, _, _) -> State
           end,
    ok = on(Config, "f", fun() -> sys:install(placement_lease, {deaf, Deaf, none}) end),
    {ok, Pid, #{node := E, refused := [{F, timeout}]}} =
        call(Config, "a", placement, spawn, [#{require => {size, ge, 5}, prefer => [{1, {size, max}}], policy => {choices, 6}}, {?MODULE, wait, []}, #{nodes => [E, F]}]),
    ok = on(Config, "f", fun() -> ok = sys:remove(placement_lease, deaf), Reads(true) end),
    _ = beamway_peer:wait_until(fun() -> [Pid] =:= call(Config, "e", ?MODULE, waiting, []) end, 10000),
    %% This request arrives after the one that starts the process.
    ?assertEqual([], on(Config, "a", fun() -> erpc:call(F, ?MODULE, waiting, []) end)),
    on(Config, "a", fun() -> Pid ! stop end),
    _ = beamway_peer:wait_until(fun() -> {0, 0} =:= {call(Config, "e", placement_lease, count, []), call(Config, "f", placement_lease, count, [])} end, 10000),
    ?assertEqual([], call(Config, "f", ?MODULE, waiting, [])).

%% Returns the processes on a node that run wait/0.
waiting() -> [Pid || Pid <- processes(), {current_function, {?MODULE, wait, 0}} <- [process_info(Pid, current_function)]].

%% On the other node, `placement' does not export the function that this release calls there.
a_node_of_the_version_before(Config) ->
    F = node_of(Config, "f"),
    Before = fun() ->
        {ok, {_, [{abstract_code, {_, Forms}}]}} = beam_lib:chunks(code:which(placement), [abstract_code]),
        {ok, placement, Binary} = compile:forms([case Form of {attribute, At, export, Functions} -> {attribute, At, export, Functions -- [{begun, 3}]}; _ -> Form end || Form <- Forms]),
        {module, placement} = code:load_binary(placement, "the version before", Binary)
    end,
    {module, placement} = on(Config, "f", Before),
    {ok, Pid, #{node := F, refused := []}} = call(Config, "a", placement, spawn, [{size, eq, 6}, {?MODULE, wait, []}, #{nodes => nodes_of(Config)}]),
    ?assertMatch([{Pid, _, attached}], call(Config, "f", placement_lease, list, [])),
    _ = beamway_peer:wait_until(fun() -> [Pid] =:= call(Config, "f", ?MODULE, waiting, []) end, 10000),
    {module, placement} = on(Config, "f", fun() -> code:purge(placement), code:load_file(placement) end),
    on(Config, "a", fun() -> Pid ! stop end),
    _ = beamway_peer:wait_until(fun() -> 0 =:= call(Config, "f", placement_lease, count, []) end, 10000).

%% If the best node refuses the lease, the next best is tried. If all nodes refuse, the error contains all of them.
nobody_has_room(Config) ->
    Options = #{nodes => nodes_of(Config), claims => #{slots => 1}},
    Spawn = fun() -> call(Config, "a", placement, spawn, [{size, ge, 5}, {?MODULE, wait, []}, Options]) end,
    Started = [Spawn() || _ <- lists:seq(1, 4)],
    ?assertEqual([node_of(Config, "e"), node_of(Config, "e"), node_of(Config, "f"), node_of(Config, "f")], lists:sort([Node || {ok, _, #{node := Node}} <- Started])),
    {error, {busy, Refused}} = Spawn(),
    ?assertEqual([node_of(Config, "e"), node_of(Config, "f")], lists:sort([Node || {Node, {refused, _}} <- Refused])),
    on(Config, "a", fun() -> [Pid ! stop || {ok, Pid, _} <- Started] end),
    _ = beamway_peer:wait_until(fun() -> {0, 0} =:= {call(Config, "e", placement_lease, count, []), call(Config, "f", placement_lease, count, [])} end, 10000).

%% Uses a policy that relies on cached values, and a query that does not specify a number of nodes.
preferred_by_what_is_known(Config) ->
    F = node_of(Config, "f"),
    Query = #{policy => least, prefer => [{1, {size, max}}]},
    Started = [call(Config, "a", placement, spawn, [Query, {?MODULE, wait, []}, #{nodes => nodes_of(Config)}]) || _ <- lists:seq(1, 5)],
    ?assertEqual([F], lists:usort([Node || {ok, _, #{node := Node}} <- Started])),
    on(Config, "a", fun() -> [Pid ! stop || {ok, Pid, _} <- Started] end),
    _ = beamway_peer:wait_until(fun() -> 0 =:= call(Config, "f", placement_lease, count, []) end, 10000).

%% A negative claim would allow others to claim more than is available.
claims_that_are_no_amounts(Config) ->
    [E, F] = [node_of(Config, Name) || Name <- ["e", "f"]],
    [begin
         ?assertEqual({error, {bad_claim, Name, Amount}}, call(Config, "a", placement, reserve, [F, #{Name => Amount}, #{ttl => 60000}])),
         ?assertEqual({error, {bad_claim, Name, Amount}}, call(Config, "a", placement, reserve_all, [[{E, #{slots => 1}}, {F, #{Name => Amount}}], [], #{ttl => 60000}])),
         ?assertEqual({error, {bad_claim, Name, Amount}}, call(Config, "a", placement, spawn, [{size, ge, 5}, {?MODULE, wait, []}, #{claims => #{Name => Amount}}])),
         %% The node also rejects a request from a release that does not check claims.
         ?assertEqual({error, {bad_claim, Name, Amount}}, call(Config, "a", gen_server, call, [{placement_lease, F}, {reserve, whereis(init), #{Name => Amount}, [], 60000}])),
         Text = unicode:characters_to_list(placement:format_error({bad_claim, Name, Amount})),
         ?assertNotEqual(nomatch, string:find(Text, lists:flatten(io_lib:format("~0tp => ~0tp", [Name, Amount]))))
     end || {Name, Amount} <- [{slots, -10}, {slots, "1"}, {slots, -0.5}, {"slots", 1}]],
    ?assertEqual(0, call(Config, "f", placement_lease, count, [])),
    ?assertEqual(0, call(Config, "e", placement_lease, count, [])),
    on(Config, "a", fun() ->
        {ok, None} = placement:reserve(F, #{slots => 0}, #{}),
        {error, {refused, {capacity, slots, 2}}} = placement:reserve(F, #{slots => 3}, #{}),
        ok = placement:release(None)
    end),
    _ = beamway_peer:wait_until(fun() -> 0 =:= call(Config, "f", placement_lease, count, []) end, 10000).

%% These names act as wildcards in an ets pattern. They are used while there are a lease and an owned attribute, and
%% must be treated like all other names.
names_that_are_patterns(Config) ->
    F = node_of(Config, "f"),
    Server = call(Config, "f", erlang, whereis, [placement_lease]),
    Owner = on(Config, "f", fun() -> owner() end),
    on(Config, "a", fun() ->
        {ok, Lease} = placement:reserve(F, #{slots => 1}, #{ttl => 60000}),
        [begin
             ?assertEqual({error, {refused, {capacity, Name, unknown}}}, placement:reserve(F, #{Name => 1}, #{})),
             ?assertEqual([{F, [{Name, undefined}]}], attr:request_attrs([F], [Name]))
         end || Name <- ['_', '$1', '$_', '$$']],
        ok = placement:release(Lease)
    end),
    ?assertEqual(Server, call(Config, "f", erlang, whereis, [placement_lease])),
    true = on(Config, "f", fun() -> exit(Owner, kill) end),
    _ = beamway_peer:wait_until(fun() -> 0 =:= call(Config, "f", placement_lease, count, []) end, 10000).

owner() ->
    Self = self(),
    Pid = spawn(fun() ->
        ok = placement:own(owned_here, 5),
        Self ! owned,
        wait()
    end),
    receive owned -> Pid after 20000 -> error(not_owned) end.

%% The chooser uses outdated information, but the node itself rejects the request for a lease. A choice that requests
%% current values also notices the change.
apart_at_the_target(Config) ->
    F = node_of(Config, "f"),
    Apart = [{size, eq, 6}, {affinity, ants, apart}],
    Reserve = fun() -> call(Config, "a", placement, reserve, [F, #{}, #{require => Apart}]) end,
    {ok, First} = Reserve(),
    ok = call(Config, "a", placement, release, [First]),
    Spawn = fun(Policy) -> call(Config, "a", placement, spawn, [#{require => Apart, max_age => 60000, policy => Policy}, {?MODULE, ant, []}, #{nodes => [F]}]) end,
    {ok, Ant, _} = Spawn(two_choices),
    _ = beamway_peer:wait_until(fun() -> lists:member(ants, call(Config, "f", placement, attributes, [])) end, 10000),
    ?assertMatch({error, {refused, {predicate, {'or', [{ants, missing} | _]}, _}}}, Reserve()),
    ?assertMatch({error, {busy, [{F, {refused, {predicate, _, _}}}]}}, Spawn(random)),
    ?assertMatch({error, {unsatisfied, _}}, Spawn(two_choices)),
    on(Config, "a", fun() -> Ant ! stop end),
    _ = beamway_peer:wait_until(fun() -> not lists:member(ants, call(Config, "f", placement, attributes, [])) end, 10000),
    {ok, Again} = Reserve(),
    ok = call(Config, "a", placement, release, [Again]),
    %% The first values mean that no such process runs there, the others that one does.
    [begin
         ok = call(Config, "f", placement, insert, [ants, Value]),
         ?assertMatch({Value, Granted}, {Value, element(1, Reserve()) =:= ok})
     end || {Value, Granted} <- [{0, true}, {false, true}, {true, false}, {2, false}, {0.5, false}]],
    ok = call(Config, "f", placement, delete, [ants]),
    _ = beamway_peer:wait_until(fun() -> 0 =:= call(Config, "f", placement_lease, count, []) end, 10000).

ant() ->
    ok = placement:own(ants),
    wait().

%% The node receives the request after the caller's timeout. It must not keep a lease that the caller does not know about.
a_reservation_that_came_too_late(Config) ->
    F = node_of(Config, "f"),
    ok = on(Config, "f", fun() -> sys:suspend(placement_lease) end),
    Caller = on(Config, "a", fun() ->
        Self = self(),
        Pid = spawn(fun() ->
            One = placement:reserve(F, #{slots => 1}, #{ttl => 3600000, timeout => 50}),
            All = placement:reserve_all([{F, #{slots => 1}}], [], #{ttl => 3600000, timeout => 50}),
            Self ! {self(), One, All},
            receive stop -> ok end
        end),
        receive {Pid, {error, timeout}, {error, [{F, timeout}]}} -> Pid after 20000 -> error(no_answer) end
    end),
    ok = on(Config, "f", fun() -> ok = sys:install(placement_lease, {granted, fun count_granted/3, none}), sys:resume(placement_lease) end),
    %% Both leases were granted and released.
    true = beamway_peer:wait_until(fun() -> {2, 0} =:= {on(Config, "f", fun() -> persistent_term:get(granted, 0) end), call(Config, "f", placement_lease, count, [])} end, 20000),
    ok = on(Config, "f", fun() -> sys:remove(placement_lease, granted) end),
    ?assert(on(Config, "a", fun() -> is_process_alive(Caller) end)),
    on(Config, "a", fun() -> Caller ! stop end).

count_granted(State, {in, {'DOWN', _, process, _, {placement_lease, {fits, _, _}}}}, _) ->
    ok = persistent_term:put(granted, persistent_term:get(granted, 0) + 1),
    State;
count_granted(State, _, _) -> State.

wait() -> receive stop -> ok end.
