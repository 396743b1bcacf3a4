%% SPDX-License-Identifier: Apache-2.0
%% @doc Attributes of real nodes: the bugs of the earlier library (one case each), misbehaving functions, owners, averages,
%% caches, and subscriptions.
%%
%% All cases use the same four nodes, and each case removes the attributes that it inserts. Cases that stop or kill nodes
%% start their own.
-module(placement_nodes_SUITE).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([built_in_attributes_are_documented/1, the_table_outlives_the_starter/1, any_process_may_change_attributes/1, any_atom_is_a_name/1, a_stopped_node_leaves_the_others/1, functions_that_misbehave/1,
         a_dead_node_costs_no_time/1, a_duplicate_is_one_node/1, units_and_failures/1, atoms_are_no_large_numbers/1, unknown_nodes_are_not_far/1,
         the_server_is_killed/1, an_owner_ends/1, owners_are_counted/1, averages_over_time/1, ages_and_caches/1, changes_are_pushed/1,
         a_node_comes_back_with_its_name/1, a_node_without_placement/1, configuration_files/1, strangers_write_to_the_server/1, many_ask_one_evaluation/1, more_than_run_at_once/1, an_answer_after_the_end/1,
         pairs_that_talk_much/1, bad_environment/1, asked_before_it_is_configured/1, automatic_and_slow/1, places_that_nodes_declare/1, a_stopped_node_is_waited_for_once/1, who_chooses_often_does_not_wait/1, an_attribute_is_defined_anew/1, a_new_version_hides_nothing/1, warnings_are_shown/1, a_vm_that_is_no_node/1]).
-export([held/0, slow_once/0, slow_sample/0, count_up/0, wrong/0, caught/1]).

suite() -> [{timetrap, {minutes, 2}}].

all() ->
    [built_in_attributes_are_documented, the_table_outlives_the_starter, any_process_may_change_attributes, any_atom_is_a_name, a_stopped_node_leaves_the_others, functions_that_misbehave,
     a_dead_node_costs_no_time, a_duplicate_is_one_node, units_and_failures, atoms_are_no_large_numbers, unknown_nodes_are_not_far,
     the_server_is_killed, an_owner_ends, owners_are_counted, averages_over_time, ages_and_caches, changes_are_pushed,
     a_node_comes_back_with_its_name, a_node_without_placement, configuration_files, strangers_write_to_the_server, many_ask_one_evaluation, more_than_run_at_once, an_answer_after_the_end,
     pairs_that_talk_much, bad_environment, asked_before_it_is_configured, automatic_and_slow, places_that_nodes_declare, a_stopped_node_is_waited_for_once, who_chooses_often_does_not_wait, an_attribute_is_defined_anew, a_new_version_hides_nothing, warnings_are_shown, a_vm_that_is_no_node].

init_per_suite(Config) ->
    Cluster = beamway_placement_nodes:start(["a", "b", "c", "d"]),
    ok = beamway_placement_nodes:connect(Cluster, "a"),
    [{cluster, Cluster} | Config].

end_per_suite(Config) -> beamway_placement_nodes:stop(proplists:get_value(cluster, Config)).

cluster(Config) -> proplists:get_value(cluster, Config).
on(Config, Name, Fun) -> beamway_peer:run(peer(Config, Name), Fun).
call(Config, Name, Module, Function, Arguments) -> beamway_placement_nodes:call(cluster(Config), Name, {Module, Function}, Arguments).
peer(Config, Name) -> element(2, lists:keyfind(Name, 1, cluster(Config))).
node_of(Config, Name) -> element(3, lists:keyfind(Name, 1, cluster(Config))).
nodes_of(Config) -> beamway_placement_nodes:nodes(cluster(Config)).

%% The guide's table lists exactly the built-in attributes.
built_in_attributes_are_documented(_) ->
    {ok, Guide} = file:read_file(filename:join([code:lib_dir(placement), "..", "..", "docs", "guide", "placement.md"])),
    [_, Behind] = binary:split(Guide, <<"\n| attributes | value |\n| --- | --- |\n">>),
    [Table, _] = binary:split(Behind, <<"\n\n">>),
    {match, Names} = re:run(Table, "(?m)(?:^\\||\\G,) `([a-z0-9_]+)`", [global, {capture, all_but_first, list}]),
    {Told, Defined} = {lists:append(Names), [atom_to_list(Name) || {Name, _} <- placement_builtin:definitions()]},
    ?assertEqual([{not_in_the_guide, []}, {no_such_attribute, []}], [{not_in_the_guide, Defined -- Told}, {no_such_attribute, Told -- Defined}]).

%% In the earlier library the table belonged to the process that called start/0, and disappeared when that process exited.
the_table_outlives_the_starter(Config) ->
    on(Config, "b", fun() ->
        {Pid, Monitor} = spawn_monitor(fun() -> ok = attr:start(), ok = attr:insert_attr(left_behind, 7) end),
        receive {'DOWN', Monitor, process, Pid, normal} -> ok end
    end),
    Node = node_of(Config, "b"),
    ?assertEqual([{Node, [{left_behind, 7}]}], call(Config, "a", attr, request_attrs, [[Node], [left_behind]])),
    ok = call(Config, "b", attr, delete_attr, [left_behind]).

%% In the earlier library the table's name was in the dictionary of the process that called start/0, so other processes
%% could not use the table.
any_process_may_change_attributes(Config) ->
    Node = node_of(Config, "b"),
    %% Each call to a peer runs in a separate process.
    ok = call(Config, "b", attr, insert_attr, [shared, 1]),
    ok = call(Config, "b", attr, update_attr, [shared, 2]),
    ?assertEqual([{Node, [{shared, 2}]}], call(Config, "a", attr, request_attrs, [[Node], [shared]])),
    ok = call(Config, "b", attr, delete_attr, [shared]),
    ?assertEqual([{Node, [{shared, undefined}]}], call(Config, "a", attr, request_attrs, [[Node], [shared]])),
    {error, _} = call(Config, "b", attr, update_attr, [shared, 3]),
    %% A plain value keeps the properties of the previous one.
    ok = call(Config, "b", placement, insert, [shared, 1, #{unit => gib, ttl => 7}]),
    ok = call(Config, "b", placement, update, [shared, 2]),
    ?assertMatch(#{value := 2, unit := gib, ttl := 7}, proplists:get_value(shared, call(Config, "b", placement_attr, definitions, []))),
    ok = call(Config, "b", placement, delete, [shared]).

%% Any atom is a valid name, even one that the server might use for its own data.
any_atom_is_a_name(Config) ->
    Node = node_of(Config, "b"),
    Server = call(Config, "b", erlang, whereis, [attr_server]),
    [begin
         ok = call(Config, "b", placement, insert, [Name, {dynamic, {erlang, abs, [-1]}, #{}}]),
         ?assertEqual([{Node, [{Name, 1}]}], call(Config, "a", attr, request_attrs, [[Node], [Name]])),
         ok = call(Config, "b", attr, delete_attr, [Name]),
         ?assertEqual([{Node, [{Name, undefined}]}], call(Config, "a", attr, request_attrs, [[Node], [Name]]))
     end || Name <- [changes, configured]],
    ?assertEqual(Server, call(Config, "b", erlang, whereis, [attr_server])).

%% In the earlier library a timeout put an atom in the list of results, which crashed choose_nodes.
a_stopped_node_leaves_the_others(Config) ->
    [{_, Peer, Stopped}] = Extra = beamway_placement_nodes:start(["stopped"]),
    true = call(Config, "a", net_kernel, connect_node, [Stopped]),
    ok = beamway_peer:sigstop(Peer),
    Nodes = nodes_of(Config),
    {Took, {ok, Chosen, Meta}} = on(Config, "a", fun() -> timer:tc(fun() ->
        placement:choose_nodes([Stopped | Nodes], #{require => {num_erlang_processes, gt, 0}, deadline => 3000}) end) end),
    ?assertEqual(Nodes, Chosen),
    ?assertMatch(#{unreachable := [{Stopped, timeout}], answered := 4}, Meta),
    %% The deadline is counted in whole milliseconds. Without a deadline the request would take 20 s here.
    ?assert(Took > 2998000 andalso Took < 15000000 * beamway_runner:slowness()),
    ?assertEqual(lists:sort(Nodes), lists:sort([Node || {Node, _} <- call(Config, "a", attr, request_attrs, [[Stopped | Nodes], [os_type]])])),
    ok = beamway_placement_nodes:stop(Extra).

%% The first choice waits until its deadline; later choices do not wait for the silent node. The node gets a request about
%% once a second, and is used again soon after it answers.
a_stopped_node_is_waited_for_once(Config) ->
    [{_, Peer, Stopped}] = Extra = beamway_placement_nodes:start(["stopped"]),
    true = call(Config, "a", net_kernel, connect_node, [Stopped]),
    Nodes = nodes_of(Config),
    Deadline = 4000 * beamway_runner:slowness(),
    Choose = fun(Among) -> placement:choose_nodes(Among, #{require => {num_erlang_processes, gt, 0}, max_age => 0, deadline => Deadline}) end,
    {ok, [Stopped | Nodes], _} = on(Config, "a", fun() -> Choose([Stopped | Nodes]) end),
    ok = beamway_peer:sigstop(Peer),
    {Times, Results} = on(Config, "a", fun() -> lists:unzip([timer:tc(fun() -> Choose([Stopped | Nodes]) end) || _ <- lists:seq(1, 12)]) end),
    ?assertEqual([{Nodes, [{Stopped, timeout}]}], lists:usort([{Chosen, Unreachable} || {ok, Chosen, #{unreachable := Unreachable}} <- Results])),
    ?assertMatch({[_], _}, {[Us || Us <- Times, Us >= Deadline * 1000], Times}),
    {Asked, Ms, Calls} = on(Config, "a", fun() ->
        Before = placement_cache:asked(),
        Start = erlang:monotonic_time(millisecond),
        Count = repeated(fun() -> Choose([Stopped]) end, Start + 6000, 0),
        {placement_cache:asked() - Before, erlang:monotonic_time(millisecond) - Start, Count}
    end),
    ?assert(Calls > Asked),
    ?assert(Asked >= 2 andalso Asked =< Ms div 1000 + 1),
    ok = beamway_peer:sigcont(Peer),
    _ = beamway_peer:wait_until(fun() -> {ok, [Stopped]} =:= on(Config, "a", fun() -> case Choose([Stopped]) of {ok, Chosen, _} -> {ok, Chosen}; _ -> none end end) end, 10000),
    ok = beamway_placement_nodes:stop(Extra).

%% The attribute's function is slow, but only the first choice waits for it.
who_chooses_often_does_not_wait(Config) ->
    Slow = 100 * beamway_runner:slowness(),
    Ttl = 10 * Slow,
    Nodes = nodes_of(Config),
    _ = [ok = call(Config, Name, placement, insert, [slow, {dynamic, {timer, sleep, [Slow]}, #{ttl => Ttl}}]) || Name <- ["b", "c"]],
    Choose = fun() -> placement:choose_nodes(Nodes, #{require => {slow, eq, ok}, deadline => 10 * Ttl}) end,
    Times = on(Config, "a", fun() -> End = erlang:monotonic_time(millisecond) + 3 * Ttl, times(Choose, End) end),
    _ = [ok = call(Config, Name, placement, delete, [slow]) || Name <- ["b", "c"]],
    ?assertMatch([_], [Us || Us <- Times, Us >= Slow * 1000]).

times(Fun, EndMs) ->
    {Us, {ok, [_, _], _}} = timer:tc(Fun),
    receive after 10 -> ok end,
    case erlang:monotonic_time(millisecond) < EndMs of
        true -> [Us | times(Fun, EndMs)];
        false -> [Us]
    end.

repeated(Fun, EndMs, Count) ->
    _ = Fun(),
    receive after 5 -> ok end,
    case erlang:monotonic_time(millisecond) < EndMs of
        true -> repeated(Fun, EndMs, Count + 1);
        false -> Count + 1
    end.

%% In the earlier library an exception killed the server, and an endless function locked it.
functions_that_misbehave(Config) ->
    Node = node_of(Config, "b"),
    Server = call(Config, "b", erlang, whereis, [attr_server]),
    Misbehaving = [{raises, {dynamic, {erlang, error, [on_purpose]}}}, {exits, {dynamic, {erlang, exit, [on_purpose]}}},
                   {endless, {dynamic, {timer, sleep, [infinity]}, #{limit => 100}}}, {missing_function, {dynamic, {no_such_module, f}}},
                   {huge_binary, {dynamic, {binary, copy, [<<0>>, 60000000]}, #{limit => 10000}}}, {huge_list, {dynamic, {lists, seq, [1, 100000000]}, #{limit => 10000}}},
                   {not_a_number, {dynamic, {?MODULE, wrong, []}, #{type => number}}}],
    [ok = call(Config, "b", placement, insert, [Name, Entry]) || {Name, Entry} <- Misbehaving],
    Names = [Name || {Name, _} <- Misbehaving],
    ?assertEqual([{Node, [{Name, undefined} || Name <- Names]}], asked(Config, Node, Names)),
    #{Node := #{attributes := Known}} = call(Config, "a", placement_cache, fetch, [[Node], Names, #{deadline => 20000}]),
    ?assertMatch(#{raises := {unknown, {raised, error, on_purpose}}, exits := {unknown, {raised, exit, on_purpose}}, endless := {unknown, timeout},
                   missing_function := {unknown, no_such_function}, huge_binary := {unknown, {too_large, _}}, huge_list := {unknown, too_much_memory},
                   not_a_number := {unknown, {wrong_type, {undefined, undefined}, number}}}, Known),
    %% The predicate is unknown, not false: neither the predicate nor its opposite is true.
    [?assertEqual([], call(Config, "a", attr, choose_nodes, [[Node], [{Name, Op, 0}]])) || Name <- Names, Op <- [gt, le]],
    ?assertEqual(Server, call(Config, "b", erlang, whereis, [attr_server])),
    ?assertMatch([{Node, [{num_erlang_processes, Number}]}] when is_integer(Number), asked(Config, Node, [num_erlang_processes])),
    [ok = call(Config, "b", attr, delete_attr, [Name]) || Name <- Names].

%% Retries, because attr leaves out a node that does not answer within five seconds, which can happen when a busy machine
%% frees a 64 MiB list.
asked(Config, Node, Names) ->
    {ok, Answer} = beamway_peer:wait_until(fun() ->
        case call(Config, "a", attr, request_attrs, [[Node], Names]) of
            [] -> false;
            Answer -> {ok, Answer}
        end
    end, 60000),
    Answer.

wrong() -> {undefined, undefined}.

caught(Nodes) -> catch placement:choose_nodes(Nodes, []).

%% The earlier library pinged nodes one after another, and a dead node aborted the query.
a_dead_node_costs_no_time(Config) ->
    Extra = beamway_placement_nodes:start(["dead1", "dead2"]),
    Dead = beamway_placement_nodes:nodes(Extra),
    [true = call(Config, "a", net_kernel, connect_node, [Node]) || Node <- Dead],
    ok = beamway_placement_nodes:stop(Extra),
    Nodes = nodes_of(Config),
    {ok, Chosen, #{unreachable := Unreachable}} = call(Config, "a", placement, choose_nodes, [Dead ++ ['never@127.0.0.1' | Nodes], #{require => {os_type, exists}, deadline => 20000}]),
    ?assertEqual(Nodes, Chosen),
    ?assertEqual(lists:sort([{Node, nodedown} || Node <- ['never@127.0.0.1' | Dead]]), lists:sort(Unreachable)).

%% The earlier library queried and returned a node twice if it was listed twice.
a_duplicate_is_one_node(Config) ->
    [B, C] = [node_of(Config, Name) || Name <- ["b", "c"]],
    ?assertEqual([C, B], call(Config, "a", attr, choose_nodes, [[C, B, C, C, B], [{vm_num_processors, ge, 1}]])),
    ?assertMatch([{C, _}, {B, _}], call(Config, "a", attr, request_attrs, [[C, B, C], [os_type]])),
    {ok, [C, B], _} = call(Config, "a", placement, choose_nodes, [[C, B, C], []]).

%% In the earlier library a failure was {undefined, undefined}, and the returned values were not in the documented units.
units_and_failures(Config) ->
    Node = node_of(Config, "b"),
    [{Node, Values}] = call(Config, "a", attr, request_attrs, [[Node], [mem_total, mem_free, loadavg1, otp_release, os_type, kernel_entities]]),
    Total = proplists:get_value(mem_total, Values),
    ?assert(is_integer(Total) andalso Total > proplists:get_value(mem_free, Values)),
    ?assert(is_float(proplists:get_value(loadavg1, Values))),
    ?assertEqual(erlang:system_info(otp_release), proplists:get_value(otp_release, Values)),
    ?assertEqual({unix, linux}, proplists:get_value(os_type, Values)),
    #{Node := #{attributes := #{mem_total := {ok, Total, _, kib, _}, cgroup_none := {unknown, missing}}}} = call(Config, "a", placement, attributes, [[Node], [mem_total, cgroup_none]]),
    Suits = fun(P) -> element(1, call(Config, "a", placement, choose_nodes, [[Node], P])) =:= ok end,
    ?assert(Suits({mem_total, eq, {Total * 1024, byte}})),
    ?assert(Suits({mem_total, ge, {1, mib}})),
    ?assertNot(Suits({mem_total, ge, {1000000, tib}})),
    %% With a different kind of unit the predicate is unknown, and so is its opposite.
    ?assertNot(Suits({mem_total, ge, {1, mhz}})),
    ?assertNot(Suits({'not', {mem_total, ge, {1, mhz}}})).

%% In Erlang's term order `undefined > 5' is true.
atoms_are_no_large_numbers(Config) ->
    Node = node_of(Config, "b"),
    ok = call(Config, "b", attr, insert_attr, [odd, undefined]),
    [?assertEqual([], call(Config, "a", attr, choose_nodes, [[Node], [{odd, Op, 5}]])) || Op <- [eq, ne, lt, le, gt, ge]],
    ?assertEqual([Node], call(Config, "a", attr, choose_nodes, [[Node], [{odd, eq, undefined}]])),
    ok = call(Config, "b", attr, delete_attr, [odd]).

%% In the earlier library {dist, gt, R} returned nodes that do not exist, and networks with a single member reduced
%% distances.
unknown_nodes_are_not_far(Config) ->
    [A, B, C, D] = nodes_of(Config),
    {ok, Tree} = placement_tree:from_network({network, top, [{network, one, [{network, host, [{node, A}, {node, B}]}]}, {network, two, [{node, C}]}]}),
    {ok, _} = call(Config, "a", placement, set_topology, [Tree]),
    Chosen = fun(P) -> case call(Config, "a", placement, choose_nodes, [[A, B, C, D, 'never@127.0.0.1'], P]) of {ok, Nodes, _} -> Nodes; {error, _} -> [] end end,
    ?assertEqual([C], Chosen({dist, gt, 0.5})),
    ?assertEqual([A, B], Chosen({dist, le, 0.5})),
    ?assertEqual([], Chosen([{dist, gt, 0.0}, {dist, le, 0.25}])),
    %% A node that is not known to be near is not far either.
    ?assertEqual([C], Chosen({'not', {dist, le, 0.5}})),
    ?assertEqual([1, 1, 2, undefined], [call(Config, "a", placement, site, [Node]) || Node <- [A, B, C, D]]).

%%% The server

the_server_is_killed(Config) ->
    Node = node_of(Config, "b"),
    ok = call(Config, "b", attr, insert_attr, [kept, 1]),
    Owner = on(Config, "b", fun() -> owner([{owned, 2}]) end),
    Dying = on(Config, "b", fun() -> owner([{lost, 3}]) end),
    Before = call(Config, "b", erlang, whereis, [attr_server]),
    %% One owner is killed while the server is not running, so the server cannot notice it.
    on(Config, "b", fun() ->
        true = erlang:suspend_process(whereis(placement_sup)),
        exit(whereis(attr_server), kill),
        exit(Dying, kill),
        true = erlang:resume_process(whereis(placement_sup))
    end),
    _ = beamway_peer:wait_until(fun() -> case call(Config, "b", erlang, whereis, [attr_server]) of undefined -> false; Before -> false; _ -> true end end, 10000),
    _ = beamway_peer:wait_until(fun() -> [{Node, [{lost, undefined}]}] =:= call(Config, "a", attr, request_attrs, [[Node], [lost]]) end, 10000),
    ?assertEqual([{Node, [{kept, 1}, {owned, 2}]}], call(Config, "a", attr, request_attrs, [[Node], [kept, owned]])),
    on(Config, "b", fun() -> exit(Owner, kill) end),
    _ = beamway_peer:wait_until(fun() -> [{Node, [{owned, undefined}]}] =:= call(Config, "a", attr, request_attrs, [[Node], [owned]]) end, 10000),
    ok = call(Config, "b", attr, delete_attr, [kept]).

%% Starts a process that owns attributes until it is killed.
owner(Attributes) ->
    Self = self(),
    Pid = spawn(fun() ->
        [ok = case Attribute of {Name, Value} -> placement:own(Name, Value); Name -> placement:own(Name) end || Attribute <- Attributes],
        Self ! {self(), owns},
        receive stop -> ok end
    end),
    receive {Pid, owns} -> Pid after 10000 -> error(no_owner) end.

an_owner_ends(Config) ->
    Node = node_of(Config, "c"),
    Shown = fun() -> [{Node, [{role, Value}]}] = call(Config, "a", attr, request_attrs, [[Node], [role]]), Value end,
    First = on(Config, "c", fun() -> owner([{role, reader}]) end),
    Second = on(Config, "c", fun() -> owner([{role, writer}]) end),
    ?assertEqual(writer, Shown()),
    on(Config, "c", fun() -> exit(Second, kill) end),
    _ = beamway_peer:wait_until(fun() -> Shown() =:= reader end, 10000),
    on(Config, "c", fun() -> First ! stop end),
    _ = beamway_peer:wait_until(fun() -> Shown() =:= undefined end, 10000),
    {error, {not_local, _}} = call(Config, "c", placement_attr, own, [role, count, self()]).

owners_are_counted(Config) ->
    Node = node_of(Config, "c"),
    Shown = fun() -> [{Node, [{workers, Value}]}] = call(Config, "a", attr, request_attrs, [[Node], [workers]]), Value end,
    [First | _] = [on(Config, "c", fun() -> owner([workers]) end) || _ <- [1, 2, 3]],
    ?assertEqual(3, Shown()),
    on(Config, "c", fun() -> exit(First, kill) end),
    _ = beamway_peer:wait_until(fun() -> Shown() =:= 2 end, 10000).

averages_over_time(Config) ->
    Node = node_of(Config, "d"),
    ok = call(Config, "d", placement, insert, [mean, {sampled, {?MODULE, count_up, []}, #{every => 20, over => 200000}}]),
    %% The samples are 1, 2, 3 …, so the average of the first n is (n + 1) / 2, which is far from the last one.
    Mean = beamway_peer:wait_until(fun() ->
        case call(Config, "a", attr, request_attrs, [[Node], [mean]]) of
            [{Node, [{mean, Value}]}] when is_number(Value), Value >= 5 -> Value;
            _ -> false
        end
    end, 20000),
    Count = call(Config, "d", persistent_term, get, [?MODULE]),
    ?assert(Count + 1 >= 2 * Mean),
    ok = call(Config, "d", attr, delete_attr, [mean]),
    %% A caller that requests the value before the first sample waits for that sample.
    ok = call(Config, "d", placement, insert, [mean, {sampled, {?MODULE, slow_sample, []}, #{every => 60000, over => 60000}}]),
    ?assertEqual([{Node, [{mean, 7.0}]}], call(Config, "a", attr, request_attrs, [[Node], [mean]])),
    ok = call(Config, "d", attr, delete_attr, [mean]),
    %% The average exceeds the range of a float.
    Server = call(Config, "d", erlang, whereis, [attr_server]),
    ok = call(Config, "d", placement, insert, [mean, {sampled, {erlang, 'bsl', [1, 1024]}, #{every => 60000, over => 60000}}]),
    ?assertEqual([{Node, [{mean, undefined}]}], call(Config, "a", attr, request_attrs, [[Node], [mean]])),
    ok = call(Config, "d", attr, delete_attr, [mean]),
    ?assertEqual(Server, call(Config, "d", erlang, whereis, [attr_server])),
    {error, _} = call(Config, "d", placement, insert, [mean, {sampled, {?MODULE, count_up, []}, #{every => 100, over => 10}}]).

slow_sample() -> receive after 100 -> 7 end.

count_up() ->
    Next = persistent_term:get(?MODULE, 0) + 1,
    ok = persistent_term:put(?MODULE, Next),
    Next.

%%% Attributes of other nodes

ages_and_caches(Config) ->
    Node = node_of(Config, "d"),
    ok = call(Config, "d", persistent_term, put, [?MODULE, 0]),
    ok = call(Config, "d", placement, insert, [counted, {dynamic, {?MODULE, count_up, []}, #{ttl => 60000}}]),
    Value = fun(Options) -> #{Node := #{attributes := #{counted := Known}}} = call(Config, "a", placement_cache, fetch, [[Node], [counted], Options]), Known end,
    {ok, 1, _, none, _} = Value(#{}),
    {ok, 1, Age, _, _} = Value(#{}),
    ?assert(Age >= 0),
    {ok, 2, _, _, _} = Value(#{max_age => 0}),
    {ok, 2, _, _, _} = Value(#{max_age => 60000}),
    {ok, 3, _, _, _} = Value(#{live => true}),
    %% attr does not use cached values.
    [{Node, [{counted, 4}]}] = call(Config, "a", attr, request_attrs, [[Node], [counted]]),
    {ok, 4, _, _, _} = Value(#{}),
    %% The function is called at most once in an interval, regardless of the number of requests.
    ok = call(Config, "d", placement, insert, [counted, {dynamic, {?MODULE, count_up, []}, #{min_interval => 60000}}]),
    [{ok, 5, _, _, _} = Value(#{live => true}) || _ <- [1, 2, 3]],
    ok = call(Config, "d", attr, delete_attr, [counted]).

%% Twenty callers send requests before the first evaluation ends, so there is only one evaluation.
many_ask_one_evaluation(Config) ->
    Node = node_of(Config, "d"),
    ok = call(Config, "d", persistent_term, put, [?MODULE, 0]),
    ok = call(Config, "d", placement, insert, [slow, {dynamic, {?MODULE, held, []}, #{limit => 60000}}]),
    Asker = on(Config, "a", fun() ->
        spawn(fun() ->
            Options = #{live => true, deadline => 60000},
            Asking = [spawn_monitor(fun() -> exit(placement_cache:fetch([Node], [slow], Options)) end) || _ <- lists:seq(1, 20)],
            %% All callers have sent their requests and wait for the answer.
            ok = waiting([Pid || {Pid, _} <- Asking]),
            %% When this call returns, the server has handled all earlier messages.
            _ = sys:get_state(placement_cache),
            receive {asked, From} -> From ! asked end,
            Answers = [receive {'DOWN', Monitor, process, _, #{Node := #{attributes := #{slow := Known}}}} -> element(2, Known) end || {_, Monitor} <- Asking],
            receive {answers, Reader} -> Reader ! {answers, Answers} end
        end)
    end),
    asked = on(Config, "a", fun() -> Asker ! {asked, self()}, receive asked -> asked after 30000 -> none end end),
    on(Config, "d", fun() -> release_held() end),
    {answers, Values} = on(Config, "a", fun() -> Asker ! {answers, self()}, receive {answers, _} = Answers -> Answers after 30000 -> none end end),
    ?assertEqual(lists:duplicate(20, 1), Values),
    ok = call(Config, "d", attr, delete_attr, [slow]).

%% Thirty-two evaluations run, and the last attribute waits behind others, which are deleted in the
%% meantime. The last attribute must still be evaluated.
more_than_run_at_once(Config) ->
    Named = fun(Letter, Count) -> [list_to_atom(lists:concat([Letter, N])) || N <- lists:seq(1, Count)] end,
    [Running, Deleted, [Last]] = Groups = [Named(a, 32), Named(b, 40), Named(c, 1)],
    Answered = on(Config, "d", fun() ->
        _ = [ok = placement:insert(Name, {dynamic, {timer, sleep, [1000]}, #{limit => 60000}}) || Name <- Running ++ Deleted],
        ok = placement:insert(Last, {dynamic, {erlang, node, []}}),
        Ask = make_ref(),
        attr_server ! {placement, self(), Ask, lists:append(Groups)},
        _ = [ok = placement:delete(Name) || Name <- Deleted],
        Answers = receive {placement, Ask, _, All} -> All after 30000 -> [] end,
        _ = [ok = placement:delete(Name) || Name <- [Last | Running]],
        [Answer || {Name, Answer} <- Answers, Name =:= Last]
    end),
    ?assertMatch([{ok, _, _, _, _, _}], Answered).

%% An attribute is redefined during an evaluation. The result of the old function must not become the value of the new
%% attribute.
an_attribute_is_defined_anew(Config) ->
    Node = node_of(Config, "d"),
    ok = call(Config, "d", persistent_term, put, [?MODULE, 0]),
    Held = {dynamic, {?MODULE, held, []}, #{limit => 60000, min_interval => 60000}},
    [begin
         ok = call(Config, "d", placement, insert, [anew, Held]),
         Asker = beamway_peer:async(fun() -> call(Config, "a", placement_cache, fetch, [[Node], [anew], #{live => true, deadline => 60000}]) end),
         _ = beamway_peer:wait_until(fun() -> is_pid(call(Config, "d", erlang, whereis, [held])) end, 30000),
         ok = Anew(),
         %% If the function is still running, this makes it return.
         _ = on(Config, "d", fun() -> catch held ! release end),
         #{Node := #{attributes := #{anew := Asked}}} = beamway_peer:await(Asker, 60000),
         #{Node := #{attributes := #{anew := Now}}} = call(Config, "a", placement_cache, fetch, [[Node], [anew], #{live => true, deadline => 60000}]),
         ?assertMatch({_, Expected, Expected}, {Way, result(Asked), result(Now)}),
         _ = beamway_peer:wait_until(fun() -> undefined =:= call(Config, "d", erlang, whereis, [held]) end, 30000),
         ok = call(Config, "d", placement, delete, [anew])
     end || {Way, Expected, Anew} <-
                [{function, {ok, node()}, fun() -> call(Config, "d", placement, insert, [anew, {dynamic, {erlang, hd, [[node()]]}, #{min_interval => 60000}}]) end},
                 {value, {ok, 42}, fun() -> call(Config, "d", placement, insert, [anew, 42]) end},
                 {gone, {unknown, missing}, fun() -> call(Config, "d", placement, delete, [anew]) end}]].

%% When the version of a node has changed, all of its values are dropped. A caller that needed only one of them must not
%% miss the others, which were still fresh when it asked.
a_new_version_hides_nothing(Config) ->
    Node = node_of(Config, "d"),
    Fetch = fun(Names) -> #{Node := #{attributes := Known}} = call(Config, "a", placement_cache, fetch, [[Node], Names, #{}]), maps:map(fun(_, One) -> result(One) end, Known) end,
    ok = call(Config, "d", placement, insert, [here, {dynamic, {erlang, node, []}, #{ttl => 60000}}]),
    ?assertEqual(#{here => {ok, Node}}, Fetch([here])),
    ok = call(Config, "d", placement, insert, [later, 7]),
    ?assertEqual(#{here => {ok, Node}, later => {ok, 7}}, Fetch([here, later])),
    [ok = call(Config, "d", placement, delete, [Name]) || Name <- [here, later]].

result({ok, Value, _, _, _}) -> {ok, Value};
result({unknown, _} = Unknown) -> Unknown.

waiting(Pids) ->
    case [Pid || Pid <- Pids, process_info(Pid, status) =/= {status, waiting}] of
        [] -> ok;
        _ -> erlang:yield(), waiting(Pids)
    end.

%% The function of an attribute on d; it waits until it is released.
held() ->
    true = register(held, self()),
    receive release -> count_up() end.

release_held() ->
    held_pid() ! release,
    ok.

held_pid() ->
    case whereis(held) of
        undefined -> receive after 10 -> held_pid() end;
        Pid -> Pid
    end.

changes_are_pushed(Config) ->
    [C, D] = Nodes = [node_of(Config, Name) || Name <- ["c", "d"]],
    [ok = call(Config, Name, placement, insert, [Attribute, 1]) || Name <- ["c", "d"], Attribute <- [pushed, beside]],
    ok = call(Config, "a", placement, follow, [Nodes, [pushed, beside], 20]),
    Shown = fun() -> #{C := #{attributes := #{pushed := KnownC}}, D := #{attributes := #{pushed := KnownD}}} = call(Config, "a", placement_cache, fetch, [Nodes, [pushed], #{max_age => 600000}]),
                     {element(2, KnownC), element(2, KnownD)} end,
    _ = beamway_peer:wait_until(fun() -> Shown() =:= {1, 1} end, 10000),
    Asked = call(Config, "a", placement_cache, asked, []),
    ok = call(Config, "d", placement, update, [pushed, 2]),
    _ = beamway_peer:wait_until(fun() -> Shown() =:= {1, 2} end, 10000),
    %% No request is sent for attributes that have not changed either.
    #{D := #{attributes := #{beside := {ok, 1, _, _, _}}}} = call(Config, "a", placement_cache, fetch, [[D], [beside], #{max_age => 600000}]),
    ?assertEqual(Asked, call(Config, "a", placement_cache, asked, [])),
    %% The publisher is killed, and the subscriber subscribes again when it has been restarted.
    true = on(Config, "d", fun() -> exit(whereis(placement_push), kill) end),
    ok = call(Config, "d", placement, update, [pushed, 3]),
    _ = beamway_peer:wait_until(fun() -> Shown() =:= {1, 3} end, 20000),
    ok = call(Config, "a", placement, unfollow, [Nodes]),
    [ok = call(Config, Name, attr, delete_attr, [Attribute]) || Name <- ["c", "d"], Attribute <- [pushed, beside]].

a_node_comes_back_with_its_name(Config) ->
    Name = beamway_peer:unique_name("again"),
    Start = fun(Value) ->
        {ok, Peer, Node} = beamway_peer:start(inet_tcp, #{name => Name, host => "127.0.0.1", args => ["-connect_all", "false"]}),
        ok = beamway_peer:call(Peer, attr, start, []),
        ok = beamway_peer:call(Peer, placement, insert, [incarnation, Value, #{ttl => 3600000}]),
        {Peer, Node}
    end,
    Shown = fun(Node) -> #{Node := #{attributes := #{incarnation := Known}}} = call(Config, "a", placement, attributes, [[Node], [incarnation]]), Known end,
    {First, Node} = Start(1),
    {ok, 1, _, _, _} = Shown(Node),
    ok = beamway_peer:stop(First),
    ok = beamway_peer:wait_disconnected(peer(Config, "a"), Node),
    {Second, Node} = Start(2),
    true = call(Config, "a", net_kernel, connect_node, [Node]),
    _ = beamway_peer:wait_until(fun() -> {ok, 2} =:= case Shown(Node) of {ok, Value, _, _, _} -> {ok, Value}; Other -> Other end end, 10000),
    ok = beamway_peer:stop(Second).

%% The process that sent the request is delayed and reads the answer only after the node has gone down. The answer must be
%% discarded.
an_answer_after_the_end(Config) ->
    [{_, Peer, Gone}] = Extra = beamway_placement_nodes:start(["gone"]),
    A = node_of(Config, "a"),
    true = call(Config, "a", net_kernel, connect_node, [Gone]),
    ok = beamway_peer:call(Peer, placement, insert, [slow, {dynamic, {?MODULE, held, []}, #{limit => 60000, min_interval => 60000, ttl => 60000}}]),
    Asker = beamway_peer:async(fun() -> call(Config, "a", placement_cache, fetch, [[Gone], [slow], #{live => true, deadline => 60000}]) end),
    _ = beamway_peer:wait_until(fun() -> is_pid(beamway_peer:call(Peer, erlang, whereis, [held])) end, 30000),
    Holder = on(Config, "a", fun() ->
        Self = self(),
        Pid = spawn(fun() ->
            [Question] = [Question || {Node, _, Question} <- maps:values(element(2, sys:get_state(placement_cache))), Node =:= Gone],
            true = erlang:suspend_process(Question),
            Self ! {self(), suspended},
            receive resume -> erlang:resume_process(Question) end
        end),
        receive {Pid, suspended} -> Pid after 30000 -> error(not_suspended) end
    end),
    ok = beamway_peer:run(Peer, fun() -> release_held() end),
    {ok, [{slow, {ok, _, _, _, _, _}}]} = beamway_peer:call(Peer, placement_attr, local, [[slow], 30000]),
    %% When this returns, all earlier messages from the node have also arrived.
    A = beamway_peer:run(Peer, fun() -> erpc:call(A, erlang, node, []) end),
    ok = beamway_placement_nodes:stop(Extra),
    _ = beamway_peer:wait_until(fun() -> case call(Config, "a", ets, lookup, [placement_known, {node, Gone}]) of [{_, nodedown, _, _}] -> true; _ -> false end end, 30000),
    on(Config, "a", fun() -> Holder ! resume end),
    ?assertMatch(#{Gone := #{status := nodedown, attributes := #{slow := {unknown, nodedown}}}}, beamway_peer:await(Asker, 60000)).

a_node_without_placement(Config) ->
    Extra = beamway_placement_nodes:start(["plain"], #{run => false}),
    [Plain] = beamway_placement_nodes:nodes(Extra),
    [A | _] = nodes_of(Config),
    {ok, [A], #{unreachable := [{Plain, no_server}]}} = call(Config, "a", placement, choose_nodes, [[Plain, A], {os_type, exists}]),
    {ok, Verdicts} = call(Config, "a", placement, why_not, [Plain, {os_type, exists}]),
    ?assertMatch([#{truth := unknown, details := [{_, unknown, {unknown, no_server}}]}], Verdicts),
    {'EXIT', {{not_running, _}, _}} = beamway_placement_nodes:call(Extra, "plain", {?MODULE, caught}, [[A]]),
    %% A node that does not run placement has not reported that the attribute is missing.
    {error, {unsatisfied, _}} = call(Config, "a", placement, choose_nodes, [[Plain], {os_type, missing}]),
    %% Once placement runs there, the next live request gets an answer.
    ok = beamway_placement_nodes:call(Extra, "plain", {attr, start}, []),
    ?assertEqual([Plain], call(Config, "a", attr, choose_nodes, [[Plain], [{os_type, eq, {unix, linux}}]])),
    ok = beamway_placement_nodes:stop(Extra).

%% The error contains the parameter and the expected value, and the application starts once the parameter is corrected.
bad_environment(_Config) ->
    Extra = [{_, Peer, _}] = beamway_placement_nodes:start(["wrong"], #{run => false}),
    Texts = beamway_peer:run(Peer, fun() ->
        _ = application:load(placement),
        Said = [begin
                    ok = application:set_env(placement, Name, Value),
                    {error, {placement, {Text, _}}} = application:ensure_all_started(placement),
                    ok = application:unset_env(placement, Name),
                    lists:flatten(Text)
                end || {Name, Value} <- [{deadlin, 1000}, {path, rack1}, {topology, mesh}, {deadline, soon}, {deadline, 1 bsl 31}, {limit, 1 bsl 32}, {group_memory, 1 bsl 64}]],
        ok = application:set_env(placement, path, "/site/rack1"),
        {ok, _} = application:ensure_all_started(placement),
        %% The node's place is the one that was configured as a string.
        {ok, Tree} = placement:declared_topology([node()]),
        ["/site/rack1"] = tl(string:lexemes(lists:flatten(placement_export:text(paths, Tree)), " \n")),
        Said
    end),
    ?assertMatch(["placement: the parameter deadlin is not known; expected one of builtins, attributes, path, " ++ _,
                  "placement: path = rack1 is not valid; expected a list of names, from the root down",
                  "placement: topology = mesh is not valid; expected none or declared",
                  "placement: deadline = soon is not valid; expected milliseconds, at most 2147483647",
                  "placement: deadline = 2147483648 is not valid; expected milliseconds, at most 2147483647",
                  "placement: limit = 4294967296 is not valid; expected milliseconds, at most 2147483647",
                  "placement: group_memory = 18446744073709551616 is not valid; expected milliseconds, at most 2147483647"], Texts),
    ok = beamway_placement_nodes:stop(Extra).

%% The server starts before the attributes are evaluated. It used to answer that they were missing, and the requesting node
%% cached that answer for a second.
asked_before_it_is_configured(Config) ->
    File = filename:join(proplists:get_value(priv_dir, Config), "held"),
    ok = file:write_file(File, "[{held, {automatic, {placement_nodes_SUITE, held, []}, #{limit => 60000}}}]."),
    Extra = [{_, Peer, _}] = beamway_placement_nodes:start(["early"], #{run => false}),
    {Early, Later} = beamway_peer:run(Peer, fun() ->
        _ = application:load(placement),
        ok = application:set_env(placement, attributes, File),
        Starter = spawn_link(fun() ->
            {ok, _} = application:ensure_all_started(placement),
            receive never -> ok end
        end),
        Held = held_pid(),
        Ask = make_ref(),
        attr_server ! {placement, self(), Ask, [mem_total, held]},
        _ = sys:get_state(attr_server),
        First = receive {placement, Ask, _, Answers} -> Answers after 0 -> not_yet end,
        Held ! release,
        Second = receive {placement, Ask, _, Later} -> Later after 20000 -> never end,
        true = unlink(Starter),
        {First, Second}
    end),
    ?assertMatch({not_yet, [{mem_total, {ok, _, 0, kib, _, _}}, {held, {ok, 1, 0, _, _, _}}]}, {Early, Later}),
    ok = beamway_placement_nodes:stop(Extra).

%% On a busy machine an automatic attribute may exceed its time limit at startup. In that case it used to be missing for as
%% long as the node ran.
automatic_and_slow(Config) ->
    File = filename:join(proplists:get_value(priv_dir, Config), "slow"),
    ok = file:write_file(File, "[{slow, {automatic, {placement_nodes_SUITE, slow_once, []}, #{limit => 50}}}]."),
    ok = call(Config, "d", attr, start, [File]),
    Node = node_of(Config, "d"),
    ?assertEqual([[{Node, [{slow, 2}]}] || _ <- [1, 2]], [asked(Config, Node, [slow]) || _ <- [1, 2]]),
    ok = call(Config, "d", attr, start, []).

%% Region and zone come from environment variables, or from a file in the format of Kubernetes' downward API.
places_that_nodes_declare(Config) ->
    Labels = filename:join(proplists:get_value(priv_dir, Config), "labels"),
    ok = file:write_file(Labels, "app=\"web\"\ntopology.kubernetes.io/region=\"eu\"\ntopology.kubernetes.io/zone=\"eu-b\"\n"),
    Extra = [{_, _, One}, {_, _, Two}, {_, _, Three}] =
        lists:append([beamway_placement_nodes:start([Name], #{env => Env}) || {Name, Env} <- [{"one", [{"PLACEMENT_REGION", "eu"}, {"PLACEMENT_ZONE", "eu-a"}]},
                                                                                             {"two", [{"PLACEMENT_LABELS", Labels}]},
                                                                                             {"three", [{"PLACEMENT_LABELS", Labels}]}]]),
    ok = beamway_placement_nodes:connect(Extra, "one"),
    {ok, Tree} = beamway_placement_nodes:call(Extra, "one", {placement, declared_topology}, [[One, Two, Three]]),
    ?assertEqual([{ok, 1.0}, {ok, 0.5}], [placement_tree:distance(Tree, Two, Node) || Node <- [One, Three]]),
    ?assertMatch({ok, [Two, Three], _}, beamway_placement_nodes:call(Extra, "one", {placement, choose_nodes}, [[One, Two, Three], [{region, eq, "eu"}, {zone, eq, "eu-b"}]])),
    ok = beamway_placement_nodes:stop([hd(Extra)]),
    ?assertEqual({error, {no_place, [One]}}, beamway_placement_nodes:call(Extra, "two", {placement, declared_topology}, [[One, Two]])),
    ok = beamway_placement_nodes:stop(tl(Extra)).

slow_once() ->
    _ = persistent_term:get(slow_once, first) =:= first andalso [persistent_term:put(slow_once, later), receive never -> ok end],
    2.

configuration_files(Config) ->
    File = fun(Name, Text) ->
        Path = filename:join(proplists:get_value(priv_dir, Config), Name),
        ok = file:write_file(Path, Text),
        Path
    end,
    Start = fun(Arguments) -> call(Config, "c", attr, start, Arguments) end,
    Wrong = [{"syntax", "[{a, 1},\n {b 2}].", ":2:5: "}, {"kind", "[{a, {periodic, {m, f, []}}}].", "periodic is not a kind of entry"},
             {"entry", "[{a, 1}, b].", ":1:10: "}, {"name", "[{\"a\", 1}].", ":1:2: "}, {"dot", "[{a, 1}]", "full stop"}, {"empty", "", "empty"},
             {"call", "[{a, {dynamic, {m, f, x}}}].", "is not a function"}],
    [begin
         {error, Message} = Start([File(Name, Text)]),
         {Name, true} = {Name, string:find(Message, Part) =/= nomatch}
     end || {Name, Text, Part} <- Wrong],
    {error, _} = Start(["/nowhere/at/all"]),
    {error, _} = Start([42]),
    Node = node_of(Config, "c"),
    Values = fun(Names) -> [{Node, Known}] = call(Config, "a", attr, request_attrs, [[Node], Names]), [V || {_, V} <- Known] end,
    Good = File("good", "[{num_cpus, 4}, {os, \"Linux\"}, {os_type, mine}, {procs, {dynamic, {erlang, system_info, [process_count]}}},\n"
                        " {host, {automatic, {net_adm, localhost, []}}}, {bad, {automatic, {erlang, error, [x]}}}, {gone, {dynamic, {no_such_module, f}}}]."),
    ok = Start([Good]),
    %% The file overrides the built-in attributes.
    [4, "Linux", mine, Procs, Host, undefined, undefined, Release] = Values([num_cpus, os, os_type, procs, host, bad, gone, otp_release]),
    ?assert(is_integer(Procs) andalso is_list(Host) andalso is_list(Release)),
    ok = Start([nobuiltins, Good]),
    [4, undefined] = Values([num_cpus, otp_release]),
    ok = Start([nobuiltins]),
    [undefined, undefined] = Values([num_cpus, otp_release]),
    ok = Start([]),
    [undefined, {unix, linux}] = Values([num_cpus, os_type]).

%% Warnings are shown by OTP's default logger handler.
warnings_are_shown(Config) ->
    File = filename:join(proplists:get_value(priv_dir, Config), "warned"),
    ok = file:write_file(File, "[{gone, {dynamic, {no_such_module, f}}}]."),
    Said = said(["-placement attributes '\"", File, "\"'"], "init:stop()."),
    ?assertMatch({match, _}, re:run(Said, "WARNING REPORT.*\n.*placement: attribute gone is not known on this node: its function does not exist")).

%% The VM's distribution may be started later. Until then the server tries to subscribe once a second, regardless of how
%% often follow is called, and even if its timer fires before it handles such a call.
a_vm_that_is_no_node(_) ->
    Said = said([], "Cache = whereis(placement_cache), Follow = fun() -> ok = placement:follow([x@y], [os_type], 100) end, _ = [Follow() || _ <- lists:seq(1, 50)], "
                    "ok = sys:suspend(Cache), _ = spawn(Follow), timer:sleep(1500), ok = sys:resume(Cache), Cache = whereis(placement_cache), "
                    "Start = erlang:monotonic_time(millisecond), ok = sys:statistics(Cache, true), timer:sleep(3500), {ok, Seen} = sys:statistics(Cache, get), "
                    "{_, Count} = lists:keyfind(messages_in, 1, Seen), true = Count =< (erlang:monotonic_time(millisecond) - Start) div 1000 + 1, "
                    "io:put_chars(\"goes on\"), init:stop()."),
    ?assertEqual("goes on", Said).

%% Evaluates expressions in a VM that only runs placement, and returns its output.
said(Words, Expressions) ->
    [Erl | Own] = beamway_peer:erl(),
    Line = [[" ", Word] || Word <- Own ++ ["-noinput", "-boot", "no_dot_erlang", "-pa", filename:dirname(code:which(placement)), Words]],
    os:cmd(lists:flatten([Erl, Line, " -eval '{ok, _} = application:ensure_all_started(placement), ", Expressions, "' 2>&1"])).

%% Any process on a connected node may send messages to the registered names.
strangers_write_to_the_server(Config) ->
    Node = node_of(Config, "b"),
    Pids = [call(Config, "b", erlang, whereis, [Name]) || Name <- [attr_server, placement_push, placement_cache, placement_group, placement_epoch, placement_lease]],
    on(Config, "a", fun() ->
        Garbage = [garbage, {self(), {report, make_ref(), improper}}, {self(), {report, key, [a | b]}}, {placement, self(), make_ref(), [1, "x"]},
                   {placement, notapid, 1, []}, {report, a}, {'DOWN', make_ref(), process, self(), x}, {subscribe, self(), make_ref(), foo, 0},
                   {'$gen_call', {self(), make_ref()}, nonsense}, {'$gen_cast', nonsense}, {ask, a, b, c, d}, {limit, a, self()}, {sample, x}, {look, x},
                   {'$gen_call', {self(), make_ref()}, {reserve, 1, 2, 3, 4}}, {self(), {report, key, lists:seq(1, 5000)}}],
        _ = [{Name, Node} ! Message || Name <- [attr_server, placement_push, placement_cache, placement_group, placement_epoch, placement_lease], Message <- Garbage]
    end),
    ?assertMatch([{Node, [{os_type, {unix, linux}}]}], call(Config, "a", attr, request_attrs, [[Node], [os_type]])),
    _ = [call(Config, "b", sys, get_state, [Name]) || Name <- [placement_push, placement_cache, placement_group, placement_epoch, placement_lease]],
    %% Timers do not accept these times.
    ?assertEqual(told, on(Config, "b", fun() ->
        Reference = make_ref(),
        ok = placement_push:subscribe(node(), self(), Reference, [os_type], 1 bsl 100),
        receive {placement_change, Reference, _, _, [_]} -> told after 20000 -> nothing end
    end)),
    ?assertMatch({error, {unknown_request, _}}, call(Config, "a", placement, reserve, [Node, #{}, #{ttl => 1 bsl 100}])),
    %% These arguments are not lists of nodes.
    [?assertError({bad_nodes, _}, on(Config, "b", Fun)) || Fun <- [fun() -> placement:follow(["b@host"], [os_type], 100) end, fun() -> placement:unfollow(foo) end]],
    ?assertMatch({error, _}, call(Config, "b", placement, insert, [huge, {sampled, {erlang, node, []}, #{every => 1 bsl 100, over => 1 bsl 100}}])),
    ?assertEqual(Pids, [call(Config, "b", erlang, whereis, [Name]) || Name <- [attr_server, placement_push, placement_cache, placement_group, placement_epoch, placement_lease]]).

%% Links of the Beamway carrier count their bytes, over shared memory and TCP. A node on stock distribution cannot
%% count them.
pairs_that_talk_much(_Config) ->
    [begin
         Peers = [started(Kind, Name) || {Kind, Name} <- [{Carrier, "near1"}, {Carrier, "near2"}, {Carrier, "far1"}, {Carrier, "far2"}, {inet_tcp, "stock"}]],
         [{First, A}, {_, B}, {_, C}, {Last, D}, {_, Stock}] = Peers,
         {ok, Tree} = placement_tree:from_paths([{A, "/s1"}, {B, "/s1"}, {C, "/s2"}, {D, "/s2"}, {Stock, "/s2"}]),
         {ok, _} = beamway_peer:call(First, placement, set_topology, [Tree]),
         [ok = beamway_peer:connect(Carrier, First, Node) || Node <- [B, C, D]],
         true = beamway_peer:call(First, net_kernel, connect_node, [Stock]),
         %% B is near and D is far. C is also far, but there is little traffic to it.
         [ok = beamway_peer:run(First, fun() -> ok = talked(Node, Count) end) || {Node, Count} <- [{B, 20}, {C, 1}, {D, 40}]],
         {ok, [#{pair := Pair, bytes := Bytes, share := Share, distance := 1.0}], [Stock]} = beamway_peer:call(First, placement, advise, [[A, B, C, D, Stock]]),
         ?assertEqual(lists:sort([A, D]), lists:sort(tuple_to_list(Pair))),
         ?assert(Bytes >= 4000000 andalso Share > 0.5 andalso Share < 1.0),
         %% The node at the other end of the link counts the same number of bytes.
         {ok, Counted} = beamway_peer:run(Last, fun() -> {ok, #{bytes_in := In}} = beamway:info(A), {ok, In} end),
         ?assert(Counted >= 4000000),
         ok = beamway_peer:stop_all([Peer || {Peer, _} <- Peers])
     end || Carrier <- [beamway_shm, beamway_tcp]].

started(Carrier, Name) ->
    {ok, Peer, Node} = beamway_peer:start(Carrier, #{name => beamway_peer:unique_name(Name), host => "127.0.0.1",
                                                     args => ["-connect_all", "false", "-placement", "deadline", "20000", "-placement", "limit", "10000"]}),
    ok = beamway_peer:call(Peer, attr, start, []),
    {Peer, Node}.

%% Sends this many 100 kB binaries, and returns when all of them have arrived.
talked(Node, Count) ->
    Binary = binary:copy(<<1>>, 100000),
    _ = [100000 = erpc:call(Node, erlang, byte_size, [Binary], 30000) || _ <- lists:seq(1, Count)],
    ok.
