%% SPDX-License-Identifier: Apache-2.0
%% @doc Processes that exist only once in a set of nodes: they restart on another node, move with their state, and
%% never run twice during a partition. Uses four real nodes, three of which are voters.
-module(placement_child_SUITE).
-behaviour(gen_server).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_testcase/2, end_per_testcase/2]).
-export([restarted_elsewhere/1, moves_with_its_state/1, moves_to_a_node_that_was_chosen_before/1, only_the_majority_runs_it/1, a_node_that_was_restarted/1, wrong_options_and_the_end/1,
         a_new_child_waits_for_the_old_one/1, a_minority_changes_nothing/1, a_minority_deletes_nothing/1,
         started_anew_on_restarted_nodes/1, a_helper_of_the_start_ends/1, a_voter_that_missed_the_end/1, deleted_by_a_voter_that_missed_the_call/1, forgets_what_was_deleted/1, the_first_choice_does_not_start_it/1,
         the_first_choice_does_not_take_its_state/1, the_first_choice_hangs_over_its_state/1, the_first_voter_hangs/1, the_first_voter_knows_nothing/1, the_first_voter_comes_back/1,
         two_calls_at_once/1, a_call_beside_a_start/1, the_query_takes_long/1, apart_from_its_own_kind/1, near_to_another_kind/1, ends_with_its_tree_before_the_lease/1]).
%% The functions of the child, which run on the nodes.
-export([start_link/1, start_link_below/2, start_link_by_helper/1, start_link_but/2, start_link_behind_a_gate/1, init/1, handle_call/3, handle_cast/2, terminate/2, placement_handoff/1, placement_handoff/2, worker_after/1]).
%% Stores the log messages of the nodes.
-export([log/2]).

-define(GRACE_MS, 1500).

suite() -> [{timetrap, {minutes, 3}}].

all() -> [restarted_elsewhere, moves_with_its_state, moves_to_a_node_that_was_chosen_before, only_the_majority_runs_it, a_node_that_was_restarted, wrong_options_and_the_end,
         a_new_child_waits_for_the_old_one, a_minority_changes_nothing, a_minority_deletes_nothing,
         started_anew_on_restarted_nodes, a_helper_of_the_start_ends, a_voter_that_missed_the_end, deleted_by_a_voter_that_missed_the_call, forgets_what_was_deleted, the_first_choice_does_not_start_it,
         the_first_choice_does_not_take_its_state, the_first_choice_hangs_over_its_state, the_first_voter_hangs, the_first_voter_knows_nothing, the_first_voter_comes_back,
         two_calls_at_once, a_call_beside_a_start, the_query_takes_long, apart_from_its_own_kind, near_to_another_kind,
         ends_with_its_tree_before_the_lease].

init_per_testcase(_, Config) ->
    Cluster = beamway_placement_nodes:start(["a", "b", "c"], #{args => ["-pa" | [filename:absname(Path) || Path <- [filename:dirname(code:which(?MODULE))]]]}),
    [ok = beamway_placement_nodes:connect(Cluster, Name) || Name <- ["a", "b"]],
    [{cluster, Cluster} | Config].

end_per_testcase(_, Config) -> ok = beamway_placement_nodes:stop(proplists:get_value(cluster, Config)).

%%% The child, which stores a term

start_link(Kept) -> gen_server:start_link(?MODULE, Kept, []).

%% Starts the child below this many supervisors.
start_link_below(0, Kept) -> start_link(Kept);
start_link_below(Levels, Kept) -> supervisor:start_link(?MODULE, {above, Levels, Kept}).

%% Starts the child after starting a helper process.
start_link_by_helper(Kept) ->
    _ = spawn_link(fun() -> ok end),
    start_link(Kept).

start_link_but(Node, _) when Node =:= node() -> {error, not_here};
start_link_but(_, Kept) -> start_link(Kept).

%% Starts the child; the first start waits until a gate is opened.
start_link_behind_a_gate(Kept) ->
    case persistent_term:get(gate, closed) of
        open -> start_link(Kept);
        closed ->
            true = register(gate, self()),
            receive open -> ok = persistent_term:put(gate, open) end,
            start_link(Kept)
    end.

init({above, Levels, Kept}) -> {ok, {#{}, [#{id => below, start => {?MODULE, start_link_below, [Levels - 1, Kept]}}]}};
init(Kept) ->
    _ = process_flag(trap_exit, true),
    _ = [ok = placement:own(kind) || Kept =:= owns],
    _ = [ok = pg:join(kinds, all, self()) || Kept =:= joins],
    {ok, Kept}.

handle_call(get, _, Kept) -> {reply, Kept, Kept};
handle_call({put, New}, _, _) -> {reply, ok, New}.

handle_cast(end_now, Kept) -> {stop, normal, Kept}.

%% Terminates slowly, like a process that writes its state to disk.
terminate(_, {ends_in_ms, Ms}) -> receive after Ms -> ok end;
terminate(_, _) -> ok.

placement_handoff(Old) -> {ok, gen_server:call(Old, get)}.

placement_handoff(_, {raises_on, Node}) when Node =:= node() -> error(not_here);
placement_handoff(_, {hangs_on, Node}) when Node =:= node() -> receive never -> ok end;
placement_handoff(New, Given) -> gen_server:call(New, {put, Given}).

log(#{msg := {Format, Arguments}}, _) when is_list(Format) ->
    persistent_term:put({logged, make_ref()}, lists:flatten(io_lib:format(Format, Arguments)));
log(_, _) -> ok.

%%% Helpers

grace() -> ?GRACE_MS * beamway_runner:slowness().

cluster(Config) -> proplists:get_value(cluster, Config).

call(Config, Name, Function, Arguments) -> beamway_placement_nodes:call(cluster(Config), Name, {placement, Function}, Arguments).

name_of(Config, Node) -> element(1, lists:keyfind(Node, 3, cluster(Config))).

peer_of(Config, Node) -> element(2, lists:keyfind(Node, 3, cluster(Config))).

started(Config, Query, Kept) ->
    {ok, Pid} = child(Config, "a", Query, {?MODULE, start_link, [Kept]}),
    Pid.

child(Config, Name, Query, Call) ->
    call(Config, Name, child, [Query, Call, #{name => once, nodes => beamway_placement_nodes:nodes(cluster(Config)), grace => grace()}]).

%% Sets the attribute `role' on these nodes. With ttl 0 other nodes see changes immediately.
roles(Config, Values) -> [ok = call(Config, Name, insert, [role, {static, Value, [{ttl, 0}]}]) || {Name, Value} <- Values].

%% Returns the process if all of these nodes find the same one and it is alive.
found(Config, Names) ->
    case lists:usort([call(Config, Name, whereis_name, [once]) || Name <- Names]) of
        [Pid] when is_pid(Pid) ->
            case is_alive(Config, Pid) of
                true -> Pid;
                false -> none
            end;
        _ -> none
    end.

%% A killed node cannot answer, so its processes count as dead.
is_alive(Config, Pid) ->
    try beamway_placement_nodes:call(cluster(Config), name_of(Config, node(Pid)), {erlang, is_process_alive}, [Pid])
    catch exit:_ -> false
    end.

another(Config, Names, Old) ->
    true = beamway_peer:wait_until(fun() -> not lists:member(found(Config, Names), [none, Old]) end, 60000),
    found(Config, Names).

%% Returns whether the process stays on its node for this many grace periods.
stays(Config, Names, Pid, Times) -> stays_until(Config, Names, Pid, erlang:monotonic_time(millisecond) + Times * grace()).

stays_until(Config, Names, Pid, End) ->
    found(Config, Names) =:= Pid andalso (erlang:monotonic_time(millisecond) > End orelse stays_until(Config, Names, Pid, End)).

names_but(Config, Node) -> [Name || {Name, _, Other} <- cluster(Config), Other =/= Node].

%%% The cases

%% The child is restarted when it exits and when its node goes down, and each node finds it by its name.
restarted_elsewhere(Config) ->
    First = started(Config, [], kept),
    true = beamway_peer:wait_until(fun() -> found(Config, ["a", "b", "c"]) =:= First end, 30000),
    ?assertEqual(kept, beamway_placement_nodes:call(cluster(Config), "c", {gen_server, call}, [{via, placement, once}, get])),
    ok = beamway_placement_nodes:call(cluster(Config), "b", {gen_server, cast}, [{via, placement, once}, end_now]),
    Second = another(Config, ["a", "b", "c"], First),
    ok = beamway_peer:kill9(peer_of(Config, node(Second))),
    Left = names_but(Config, node(Second)),
    Third = another(Config, Left, Second),
    ?assertNotEqual(node(Second), node(Third)),
    ?assertEqual([[{once, node(Third), Third}]], lists:usort([call(Config, Name, children, []) || Name <- Left])).

%% When the child's node no longer matches the query, the child moves after the grace period to a node that does. It keeps
%% its state, and the old process exits.
moves_with_its_state(Config) ->
    roles(Config, [{"a", other}, {"b", worker}, {"c", other}]),
    Old = started(Config, {role, eq, worker}, fresh),
    ?assertEqual("b", name_of(Config, node(Old))),
    ok = beamway_placement_nodes:call(cluster(Config), "a", {gen_server, call}, [Old, {put, precious}]),
    ok = call(Config, "b", update, [role, {static, other, [{ttl, 0}]}]),
    %% The child stays, because no other node is suitable.
    ?assert(stays(Config, ["b"], Old, 2)),
    ok = call(Config, "c", update, [role, {static, worker, [{ttl, 0}]}]),
    New = another(Config, ["a", "b", "c"], Old),
    ?assertEqual("c", name_of(Config, node(New))),
    ?assertEqual(precious, beamway_placement_nodes:call(cluster(Config), "a", {gen_server, call}, [{via, placement, once}, get])),
    ?assertNot(is_alive(Config, Old)).

%% Another voter has also chosen `b', and the keeper there is still waiting for the voters' answers when the state arrives.
%% The keeper needs the answer of the voter on `b' itself, because `c' does not answer.
moves_to_a_node_that_was_chosen_before(Config) ->
    roles(Config, [{"a", worker}, {"b", other}, {"c", other}]),
    Old = started(Config, {role, eq, worker}, fresh),
    ok = beamway_placement_nodes:call(cluster(Config), "a", {gen_server, call}, [Old, {put, precious}]),
    [{_, Spec, _}] = beamway_placement_nodes:call(cluster(Config), "b", {ets, lookup}, [placement_children, once]),
    ok = voter(Config, "b", {sys, suspend}, []),
    ok = voter(Config, "b", {gen_server, cast}, [{try_start, Spec, none}]),
    [ok = call(Config, Name, update, [role, {static, Value, [{ttl, 0}]}]) || {Name, Value} <- [{"a", other}, {"b", worker}]],
    %% The old process has exited, and the promises and the state have been sent.
    true = beamway_peer:wait_until(fun() -> queued(Config, "b", Spec) end, 60000),
    ok = voter(Config, "c", {sys, suspend}, []),
    ok = voter(Config, "b", {sys, resume}, []),
    true = beamway_peer:wait_until(fun() -> is_pid(call(Config, "b", whereis_name, [once])) end, 30000),
    ok = voter(Config, "c", {sys, resume}, []),
    New = another(Config, ["a", "b", "c"], Old),
    ?assertEqual("b", name_of(Config, node(New))),
    ?assertEqual(precious, beamway_placement_nodes:call(cluster(Config), "a", {gen_server, call}, [New, get])).

queued(Config, Name, Spec) ->
    beamway_peer:run(peer_of(Config, node_of(Config, Name)), fun() ->
        {messages, Messages} = process_info(whereis(placement_child), messages),
        lists:member({'$gen_cast', {try_start, maps:remove(heard, Spec), {ok, precious}}}, Messages)
    end).

%% The child's node is cut off. The child is killed there before the other nodes start a new one, and there is still only
%% one child after the nodes have reconnected.
only_the_majority_runs_it(Config) ->
    Old = started(Config, [], kept),
    Alone = name_of(Config, node(Old)),
    Others = names_but(Config, node(Old)),
    ok = cut(Config, Alone, Others),
    %% The new process is checked first, so the test would detect it if both were alive at the same time.
    New = meanwhile(Config, Old, Others, erlang:monotonic_time(millisecond) + 60000),
    ?assertNotEqual(node(Old), node(New)),
    ?assertEqual(undefined, call(Config, Alone, whereis_name, [once])),
    ok = healed(Config, Alone, Others),
    true = beamway_peer:wait_until(fun() -> found(Config, ["a", "b", "c"]) =/= none end, 60000),
    ?assertEqual(New, found(Config, ["a", "b", "c"])).

meanwhile(Config, Old, Others, End) ->
    New = found(Config, Others),
    OldLives = is_alive(Config, Old),
    case New of
        Pid when is_pid(Pid), Pid =/= Old -> ?assertNot(OldLives), Pid;
        _ ->
            ?assert(erlang:monotonic_time(millisecond) < End),
            meanwhile(Config, Old, Others, End)
    end.

node_of(Config, Name) -> element(3, lists:keyfind(Name, 1, cluster(Config))).

cut(Config, Alone, Others) ->
    [true = beamway_placement_nodes:call(cluster(Config), One, {erlang, set_cookie}, [node_of(Config, Other), list_to_atom("cut_by_" ++ One)])
     || {One, Other} <- both_ways(Alone, Others)],
    [beamway_placement_nodes:call(cluster(Config), Alone, {erlang, disconnect_node}, [node_of(Config, Other)]) || Other <- Others],
    ok.

healed(Config, Alone, Others) ->
    Cookie = beamway_placement_nodes:call(cluster(Config), Alone, {erlang, get_cookie}, []),
    [true = beamway_placement_nodes:call(cluster(Config), One, {erlang, set_cookie}, [node_of(Config, Other), Cookie]) || {One, Other} <- both_ways(Alone, Others)],
    %% A connection attempt that started with the other cookie may still be in progress.
    Connects = fun(Other) -> beamway_placement_nodes:call(cluster(Config), Alone, {net_kernel, connect_node}, [node_of(Config, Other)]) end,
    true = beamway_peer:wait_until(fun() -> lists:all(Connects, Others) end, 30000),
    ok.

both_ways(Alone, Others) -> lists:append([[{Alone, Other}, {Other, Alone}] || Other <- Others]).

%% A restarted voter has lost its promises. It makes none during the grace period, and the child's holder informs it about
%% the child.
a_node_that_was_restarted(Config) ->
    Pid = started(Config, [], kept),
    [Name | _] = names_but(Config, node(Pid)),
    ok = restarted(Config, Name),
    true = beamway_peer:wait_until(fun() -> call(Config, Name, children, []) =/= [] end, 30000),
    true = beamway_peer:wait_until(fun() -> found(Config, ["a", "b", "c"]) =:= Pid end, 30000).

restarted(Config, Name) ->
    ok = beamway_placement_nodes:call(cluster(Config), Name, {application, stop}, [placement]),
    ok = beamway_placement_nodes:call(cluster(Config), Name, {application, start}, [placement]).

wrong_options_and_the_end(Config) ->
    Call = {?MODULE, start_link, [kept]},
    [?assertEqual({error, Want}, call(Config, "a", child, [[], Call, Options])) ||
        {Want, Options} <- [{{bad_option, name, missing}, #{}}, {{bad_option, grace, 1}, #{name => once, grace => 1}}, {{bad_option, colour, red}, #{name => once, colour => red}},
                            {{bad_option, nodes, []}, #{name => once, nodes => []}}, {no_majority, #{name => once, nodes => ['x@127.0.0.1', 'y@127.0.0.1']}}]],
    ?assertMatch({error, {bad_query, _}}, call(Config, "a", child, [[{a}], Call, #{name => once}])),
    Pid = started(Config, [], kept),
    ?assertEqual({error, {exists, Pid}}, call(Config, "a", child, [[], Call, #{name => once, grace => grace()}])),
    ?assertEqual({error, no_such_child}, call(Config, "a", delete_child, [another])),
    %% The server ignores the exit of a process that it does not monitor.
    Server = beamway_placement_nodes:call(cluster(Config), "a", {erlang, whereis}, [placement_child]),
    _ = beamway_placement_nodes:call(cluster(Config), "a", {erlang, send}, [Server, {'DOWN', make_ref(), process, self(), normal}]),
    _ = beamway_placement_nodes:call(cluster(Config), "a", {sys, get_state}, [Server]),
    ok = call(Config, "b", delete_child, [once]),
    true = beamway_peer:wait_until(fun() -> not is_alive(Config, Pid) end, 30000),
    ?assertEqual([[]], lists:usort([call(Config, Name, children, []) || Name <- ["a", "b", "c"]])).

%% A new child with the same name may run only on another node, but it is not started until the old process has exited.
a_new_child_waits_for_the_old_one(Config) ->
    roles(Config, [{"a", other}, {"b", other}, {"c", worker}]),
    Old = started(Config, {role, eq, worker}, {ends_in_ms, 2000}),
    ok = call(Config, "a", delete_child, [once]),
    New = started(Config, {role, eq, other}, kept),
    ?assertNot(is_alive(Config, Old)),
    ?assertNotEqual(node(Old), node(New)).

%% A voter that is cut off receives another call or a deletion. The caller gets an error, and the child is still running
%% after the nodes have reconnected.
a_minority_changes_nothing(Config) ->
    no_effect(Config, fun() -> child(Config, "a", [], {?MODULE, start_link, [another]}) end).

a_minority_deletes_nothing(Config) ->
    no_effect(Config, fun() -> call(Config, "a", delete_child, [once]) end).

%% `a' is the first of the voters, so it is the one that chooses a node.
no_effect(Config, Call) ->
    roles(Config, [{"a", other}, {"b", other}, {"c", worker}]),
    Pid = started(Config, {role, eq, worker}, kept),
    ok = cut(Config, "a", ["b", "c"]),
    true = beamway_peer:wait_until(fun() -> call(Config, "a", whereis_name, [once]) =:= undefined end, 30000),
    ?assertEqual({error, no_majority}, Call()),
    ok = healed(Config, "a", ["b", "c"]),
    ?assert(stays(Config, ["c"], Pid, 5)),
    true = beamway_peer:wait_until(fun() -> found(Config, ["a", "b", "c"]) =:= Pid end, 30000).

%% The majority of the voters was restarted and has lost its promises. The startup code of the restarted nodes starts the
%% child again while the old process, on a node that is cut off, still has its lease.
started_anew_on_restarted_nodes(Config) ->
    Old = started(Config, [], kept),
    [Name | _] = Others = names_but(Config, node(Old)),
    ok = cut(Config, name_of(Config, node(Old)), Others),
    [ok = restarted(Config, Other) || Other <- Others],
    {ok, New} = child(Config, Name, [], {?MODULE, start_link, [kept]}),
    ?assertNot(is_alive(Config, Old)),
    ?assertNotEqual(node(Old), node(New)).

a_helper_of_the_start_ends(Config) ->
    {ok, Pid} = child(Config, "a", [], {?MODULE, start_link_by_helper, [kept]}),
    ?assert(stays(Config, [name_of(Config, node(Pid))], Pid, 2)).

%% A voter that missed the deletion must not restart the child when the other voters no longer remember the deletion.
a_voter_that_missed_the_end(Config) ->
    roles(Config, [{"a", other}, {"b", other}, {"c", worker}]),
    Pid = started(Config, {role, eq, worker}, kept),
    ok = cut(Config, "a", ["b", "c"]),
    ok = call(Config, "b", delete_child, [once]),
    ?assertMatch([{once, _, _}], call(Config, "a", children, [])),
    ok = healed(Config, "a", ["b", "c"]),
    true = beamway_peer:wait_until(fun() -> call(Config, "a", children, []) =:= [] end, 30000),
    ?assertNot(is_alive(Config, Pid)).

%% The voter knows only an earlier call. It gets no request for a promise, because no node is suitable for the child.
deleted_by_a_voter_that_missed_the_call(Config) ->
    Spec = #{name => once, query => {role, eq, worker}, call => {?MODULE, start_link, [kept]}, nodes => lists:sort(beamway_placement_nodes:nodes(cluster(Config))), grace => grace()},
    [ok = voter(Config, Name, {gen_server, call}, [{put, Spec#{version => {Version, node()}}}]) || {Name, Version} <- [{"a", 1}, {"b", 2}, {"c", 2}]],
    ok = call(Config, "a", delete_child, [once]),
    ?assertEqual([[]], lists:usort([call(Config, Name, children, []) || Name <- ["a", "b", "c"]])).

%% Deleted children and failed calls are forgotten after an hour, even if the server was killed in the meantime.
forgets_what_was_deleted(Config) ->
    _ = started(Config, [], kept),
    ok = call(Config, "a", delete_child, [once]),
    Failed = #{name => failed, query => [], call => {?MODULE, start_link, [kept]}, nodes => [node_of(Config, "a"), 'x@127.0.0.1', 'y@127.0.0.1'], grace => grace(), version => {1, node()}},
    ok = voter(Config, "a", {gen_server, call}, [{put, Failed}]),
    ok = voter(Config, "a", {gen_server, cast}, [{withdraw, failed, Failed}]),
    Row = fun(Name) -> beamway_placement_nodes:call(cluster(Config), "a", {ets, lookup}, [placement_children, Name]) end,
    %% The child has exited, and its promise has been released.
    true = beamway_peer:wait_until(fun() -> [{_, {deleted, _}, {Holder, _, _}}] = Row(once), Holder =:= nobody end, 30000),
    true = beamway_peer:wait_until(fun() -> [{_, Spec, _}] = Row(failed), Spec =:= unknown end, 30000),
    Server = beamway_placement_nodes:call(cluster(Config), "a", {erlang, whereis}, [placement_child]),
    true = beamway_placement_nodes:call(cluster(Config), "a", {erlang, exit}, [Server, kill]),
    Restarted = fun() -> not lists:member(beamway_placement_nodes:call(cluster(Config), "a", {erlang, whereis}, [placement_child]), [Server, undefined]) end,
    true = beamway_peer:wait_until(Restarted, 30000),
    [begin
         [{_, _, {nobody, none, Until}}] = Row(Name),
         true = beamway_placement_nodes:call(cluster(Config), "a", {ets, update_element}, [placement_children, Name, {3, {nobody, none, Until - 3600000}}]),
         true = beamway_peer:wait_until(fun() -> Row(Name) =:= [] end, 30000)
     end || Name <- [once, failed]].

%% The node that was chosen first cannot start the child, so its state is passed on to the next node.
the_first_choice_does_not_start_it(Config) ->
    goes_on_from_c(Config, {?MODULE, start_link_but, [node_of(Config, "c"), fresh]}, precious).

the_first_choice_does_not_take_its_state(Config) ->
    ok = beamway_placement_nodes:call(cluster(Config), "c", {logger, add_handler}, [?MODULE, ?MODULE, #{level => warning}]),
    goes_on_from_c(Config, {?MODULE, start_link, [fresh]}, {raises_on, node_of(Config, "c")}),
    Logged = [Text || {{logged, _}, Text} <- beamway_placement_nodes:call(cluster(Config), "c", {persistent_term, get}, [])],
    ?assertMatch({[_], _}, {[Text || Text <- Logged, string:find(Text, "child once did not start: {placement_handoff,") =/= nomatch], Logged}).

the_first_choice_hangs_over_its_state(Config) ->
    goes_on_from_c(Config, {?MODULE, start_link, [fresh]}, {hangs_on, node_of(Config, "c")}).

%% The child moves away from `b', and `c' is the best of the suitable nodes.
goes_on_from_c(Config, Call, State) ->
    roles(Config, [{"a", other}, {"b", worker}, {"c", other}]),
    [ok = call(Config, Name, insert, [rank, {static, Rank, [{ttl, 0}]}]) || {Name, Rank} <- [{"a", 1}, {"b", 2}, {"c", 3}]],
    {ok, Old} = child(Config, "a", #{require => {role, eq, worker}, prefer => [{1, {rank, max}}]}, Call),
    ok = beamway_placement_nodes:call(cluster(Config), "a", {gen_server, call}, [Old, {put, State}]),
    [ok = call(Config, Name, update, [role, {static, Value, [{ttl, 0}]}]) || {Name, Value} <- [{"a", worker}, {"c", worker}, {"b", other}]],
    New = another(Config, ["a", "b", "c"], Old),
    ?assertEqual("a", name_of(Config, node(New))),
    ?assertEqual(State, beamway_placement_nodes:call(cluster(Config), "a", {gen_server, call}, [New, get])).

%% The first voter hangs. It would be the one to choose the next node, the child runs on its node,
%% and the other nodes stay connected to that node for about a minute.
the_first_voter_hangs(Config) ->
    roles(Config, [{"a", worker}, {"b", other}, {"c", other}]),
    {ok, Old} = child(Config, "a", #{require => {role, eq, worker}, deadline => 1000 * beamway_runner:slowness()}, {?MODULE, start_link, [kept]}),
    ok = call(Config, "c", update, [role, {static, worker, [{ttl, 0}]}]),
    ok = beamway_peer:sigstop(peer_of(Config, node(Old))),
    New = beamway_peer:wait_until(fun() ->
        case [call(Config, Name, whereis_name, [once]) || Name <- ["b", "c"]] of
            [Pid, Pid] when is_pid(Pid), Pid =/= Old -> Pid;
            _ -> false
        end
    end, 20000),
    ?assertEqual("c", name_of(Config, node(New))).

%% The first voter did not receive the call, and gets no request for a promise before the child runs.
the_first_voter_knows_nothing(Config) ->
    ok = beamway_placement_nodes:call(cluster(Config), "a", {application, stop}, [placement]),
    roles(Config, [{"b", worker}, {"c", other}]),
    {ok, Pid} = child(Config, "b", {role, eq, worker}, {?MODULE, start_link, [kept]}),
    ok = beamway_placement_nodes:call(cluster(Config), "a", {application, start}, [placement]),
    true = beamway_peer:wait_until(fun() -> found(Config, ["a", "b", "c"]) =:= Pid end, 30000).

%% The first voter was cut off together with the child until its promise had expired. So it chooses a node (its own) as
%% soon as it reaches the others again, and the majority rejects that node. The voter must still make a promise to the node
%% that runs the child, so that the child survives the loss of the third voter.
the_first_voter_comes_back(Config) ->
    roles(Config, [{"a", worker}, {"b", other}, {"c", other}]),
    [ok = call(Config, Name, insert, [rank, {static, Rank, [{ttl, 0}]}]) || {Name, Rank} <- [{"a", 3}, {"b", 2}, {"c", 1}]],
    {ok, Old} = child(Config, "a", #{require => {role, eq, worker}, prefer => [{1, {rank, max}}]}, {?MODULE, start_link, [kept]}),
    ok = call(Config, "b", update, [role, {static, worker, [{ttl, 0}]}]),
    ok = cut(Config, "a", ["b", "c"]),
    New = another(Config, ["b", "c"], Old),
    true = beamway_peer:wait_until(fun() -> call(Config, "a", whereis_name, [once]) =:= undefined end, 30000),
    true = beamway_peer:wait_until(fun() -> call(Config, "a", children, []) =:= [{once, none, none}] end, 30000),
    ok = healed(Config, "a", ["b", "c"]),
    true = beamway_peer:wait_until(fun() -> found(Config, ["a", "b", "c"]) =:= New end, 30000),
    ok = beamway_peer:kill9(peer_of(Config, node_of(Config, "c"))),
    ?assert(stays(Config, ["a", "b"], New, 5)).

%% Two voters receive the later call first, and the third receives the earlier call first. All of them keep the later call
%% and find its process.
two_calls_at_once(Config) ->
    Spec = #{name => once, query => [], nodes => lists:sort(beamway_placement_nodes:nodes(cluster(Config))), grace => grace()},
    [Earlier, Later] = [Spec#{call => {?MODULE, start_link, [Kept]}, version => {Version, node()}} || {Kept, Version} <- [{earlier, 1}, {later, 2}]],
    [ok = voter(Config, Name, {sys, suspend}, []) || Name <- ["a", "b", "c"]],
    [_ = beamway_peer:run(peer_of(Config, node_of(Config, Name)), fun() -> [gen_server:send_request(placement_child, {put, Told}) || Told <- Order] end)
     || {Name, Order} <- [{"a", [Later, Earlier]}, {"b", [Earlier, Later]}, {"c", [Later, Earlier]}]],
    [ok = voter(Config, Name, {sys, resume}, []) || Name <- ["a", "b", "c"]],
    Pid = another(Config, ["a", "b", "c"], none),
    ?assertEqual(later, beamway_placement_nodes:call(cluster(Config), "a", {gen_server, call}, [Pid, get])).

voter(Config, Name, Function, Arguments) -> beamway_placement_nodes:call(cluster(Config), Name, Function, [placement_child | Arguments]).

%% While the child starts, most voters receive another call. When this call reaches the child's node, the process is already
%% registered, so the call is withdrawn and the child continues to run.
a_call_beside_a_start(Config) ->
    roles(Config, [{"a", other}, {"b", other}, {"c", worker}]),
    Options = #{name => once, nodes => beamway_placement_nodes:nodes(cluster(Config)), grace => 4 * grace()},
    Call = beamway_peer:async(fun() -> call(Config, "a", child, [{role, eq, worker}, {?MODULE, start_link_behind_a_gate, [kept]}, Options]) end),
    true = beamway_peer:wait_until(fun() -> is_pid(beamway_placement_nodes:call(cluster(Config), "c", {erlang, whereis}, [gate])) end, 30000),
    [{_, #{version := {Time, Node}} = Spec, _}] = beamway_placement_nodes:call(cluster(Config), "c", {ets, lookup}, [placement_children, once]),
    Other = Spec#{call := {?MODULE, start_link, [another]}, version := {Time + 1, Node}},
    [ok = voter(Config, Name, {gen_server, call}, [{put, Other}]) || Name <- ["a", "b"]],
    [ok = voter(Config, Name, {sys, suspend}, []) || Name <- ["a", "b"]],
    open = beamway_placement_nodes:call(cluster(Config), "c", {erlang, send}, [gate, open]),
    true = beamway_peer:wait_until(fun() -> is_pid(call(Config, "c", whereis_name, [once])) end, 30000),
    {exists, _} = voter(Config, "c", {gen_server, call}, [{put, Other}]),
    [ok = voter(Config, Name, {gen_server, cast}, [{withdraw, once, Other}]) || Name <- ["a", "b", "c"]],
    [ok = voter(Config, Name, {sys, resume}, []) || Name <- ["a", "b"]],
    {ok, _} = beamway_peer:await(Call),
    true = beamway_peer:wait_until(fun() -> found(Config, ["a", "b", "c"]) =/= none end, 60000),
    ?assertEqual(kept, beamway_placement_nodes:call(cluster(Config), "a", {gen_server, call}, [{via, placement, once}, get])).

%% Evaluating an attribute of the node takes longer than the lease lasts. The process stays, and its lease is renewed.
the_query_takes_long(Config) ->
    roles(Config, [{"a", worker}, {"b", other}, {"c", other}]),
    Grace = 3 * grace(),
    Options = #{name => once, nodes => beamway_placement_nodes:nodes(cluster(Config)), grace => Grace},
    {ok, Pid} = call(Config, "a", child, [{role, eq, worker}, {?MODULE, start_link, [kept]}, Options]),
    ok = call(Config, "a", insert, [role, {dynamic, {?MODULE, worker_after, [2 * Grace]}, #{ttl => 0, limit => 60000}}]),
    ?assert(stays(Config, ["a"], Pid, 6)).

worker_after(Ms) -> receive after Ms -> worker end.

%% The child is one of the processes from which it must be apart. It does not move because of itself, but it does move
%% when another such process runs on its node.
apart_from_its_own_kind(Config) ->
    [{ok, _} = beamway_placement_nodes:call(cluster(Config), Name, {pg, start}, [kinds]) || Name <- ["a", "b", "c"]],
    [begin
         {ok, Old} = child(Config, "a", {affinity, What, apart}, Call),
         ?assertEqual({Call, true}, {Call, stays(Config, [name_of(Config, node(Old))], Old, 4)}),
         Other = beamway_peer:run(peer_of(Config, node(Old)), fun() -> {ok, Pid} = gen_server:start(?MODULE, lists:last(element(3, Call)), []), Pid end),
         New = another(Config, ["a", "b", "c"], Old),
         ?assertNotEqual(node(Old), node(New)),
         ok = beamway_placement_nodes:call(cluster(Config), "a", {gen_server, stop}, [Other]),
         ok = call(Config, "a", delete_child, [once]),
         true = beamway_peer:wait_until(fun() -> not is_alive(Config, New) end, 30000)
     end || {What, Call} <- [{kind, {?MODULE, start_link, [owns]}}, {kind, {?MODULE, start_link_below, [2, owns]}}, {{pg, kinds, all}, {?MODULE, start_link_below, [1, joins]}}]].

%% The child must be near a process that runs on another voter. The child's node is suitable as long as that process runs
%% there.
near_to_another_kind(Config) ->
    Nodes = beamway_placement_nodes:nodes(cluster(Config)),
    {ok, Rack} = placement_tree:from_paths([{Node, "/rack"} || Node <- Nodes]),
    {ok, _, []} = call(Config, "a", set_topology, [Rack, Nodes]),
    ok = call(Config, "c", insert, [db, 1]),
    {ok, Pid} = child(Config, "a", [{affinity, db, near}, {affinity, db, apart}], {?MODULE, start_link, [kept]}),
    ?assert(stays(Config, [name_of(Config, node(Pid))], Pid, 5)).

%% The child is a supervisor on a node that is cut off. It is dead before the promises of the other nodes expire, with a
%% margin for clocks that run at different rates, and so is a worker that would take half a minute to terminate. A process
%% that is linked to the worker but was not started by it survives.
ends_with_its_tree_before_the_lease(Config) ->
    Grace = 8000 * beamway_runner:slowness(),
    Options = #{name => once, nodes => beamway_placement_nodes:nodes(cluster(Config)), grace => Grace},
    {ok, Top} = call(Config, "a", child, [[], {?MODULE, start_link_below, [2, {ends_in_ms, 30000}]}, Options]),
    true = beamway_peer:wait_until(fun() -> found(Config, ["a", "b", "c"]) =:= Top end, 30000),
    {Family, Friend} = beamway_peer:run(peer_of(Config, node(Top)), fun() ->
        [{_, Middle, _, _}] = supervisor:which_children(Top),
        [{_, Worker, _, _}] = supervisor:which_children(Middle),
        Self = self(),
        Linked = spawn(fun() ->
            _ = process_flag(trap_exit, true),
            true = link(Worker),
            Self ! linked,
            receive stop -> ok end
        end),
        receive linked -> ok end,
        _ = spawn(fun() ->
            Monitors = [monitor(process, Pid) || Pid <- [Top, Middle, Worker]],
            persistent_term:put(ended_ms, [receive {'DOWN', Monitor, process, _, _} -> erlang:system_time(millisecond) end || Monitor <- Monitors])
        end),
        {[Top, Middle, Worker], Linked}
    end),
    ok = cut(Config, name_of(Config, node(Top)), names_but(Config, node(Top))),
    Promised = [beamway_peer:run(peer_of(Config, node_of(Config, Name)), fun() ->
        [{_, _, {Holder, _, Until}}] = ets:lookup(placement_children, once),
        {Holder, Until + erlang:time_offset(millisecond)}
    end) || Name <- names_but(Config, node(Top))],
    Ended = beamway_peer:wait_until(fun() ->
        beamway_placement_nodes:call(cluster(Config), name_of(Config, node(Top)), {persistent_term, get}, [ended_ms, false])
    end, 2 * Grace + 10000),
    ?assertEqual([node(Top)], lists:usort([Holder || {Holder, _} <- Promised])),
    Until = lists:min([Ms || {_, Ms} <- Promised]),
    ?assertEqual([{Pid, true} || Pid <- Family], [{Pid, At =< Until - Grace div 50} || {Pid, At} <- lists:zip(Family, Ended)], {Until, Ended}),
    ?assert(is_alive(Config, Friend)).
