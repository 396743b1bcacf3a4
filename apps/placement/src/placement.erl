%% SPDX-License-Identifier: Apache-2.0
%% @doc Chooses nodes for processes, by the attributes, distances, groups and load of the nodes.
%%
%% ```
%% {ok, [Node], _} = placement:choose_nodes(all, #{require => [{mem_available, ge, {4, gib}}, {dist, near}], n => 1}).
%% {ok, Pid, _} = placement:spawn(#{require => [{gpu, true}]}, {my_worker, start, []}).
%% {ok, Reasons} = placement:why_not('b@host', [{loadavg5, lt, 0.5}]).
%% '''
%% A query is data ({@link placement_query:query()}, {@link placement_pred:predicate()}). If several nodes are suitable,
%% the default policy draws two of them, requests their current attributes and chooses the better one
%% ({@link placement_policy}). The chosen node itself decides whether to accept the process ({@link reserve/3}). The
%% application must run on this node and on every node that may be chosen; all attributes of a node without it are
%% unknown. {@link attr} has the API of the library from the RELEASE report.
-module(placement).

-compile({no_auto_import, [spawn/2, spawn/3]}).

-export([choose_nodes/2, choose_node/2, explain/2, why_not/2, why_not/3, format_error/1]).
-export([node_for/2, node_for/3, reserve/3, reserve_all/3, release/1, renew/2, hand_over/2, spawn/2, spawn/3]).
-export([drain/0, drain/1, drain/2, undrain/0, fence/1]).
-export([start_child/2, which_children/1, count_children/1, terminate_child/2]).
-export([child/3, delete_child/1, children/0, whereis_name/1, send/2, register_name/2, unregister_name/1]).
-export([own/1, own/2, disown/1, taint/1, insert/2, insert/3, update/2, delete/1, attributes/0, attributes/2]).
-export([follow/3, unfollow/1, topology/0, declared_topology/1, set_topology/1, set_topology/2, join/2, leave/1, epoch/0, site/1, advise/1, advise/2, observe/2]).
-export([probe/2, plan/2, map/3]).
-export([begun/3]).

-type lease() :: placement_lease:lease().

-export_type([lease/0]).

-define(TRIES, 3).
-define(SPAWN_MS, 5000).
-define(DRAIN_MS, 60000).
%% Two measured times belong to the same level if their logarithms differ by less than this.
-define(FLOOR, 0.15).
-define(PROBE_BATCHES, 5).
-define(PROBE_MESSAGES, 100).
-define(PROBE_MS, 5000).

%% @doc Returns the nodes that a query selects: all suitable nodes, in the order of the list, unless the query limits
%% their number.
-spec choose_nodes(placement_choose:nodes_spec(), placement_query:query()) -> {ok, [node(), ...], placement_choose:meta()} | {error, placement_choose:error()}.
choose_nodes(Nodes, Query) -> placement_choose:choose(Nodes, Query).

%% @doc Chooses one of the suitable nodes according to the query's policy.
-spec choose_node(placement_choose:nodes_spec(), placement_query:query()) -> {ok, node(), placement_choose:meta()} | {error, placement_choose:error()}.
choose_node(Nodes, Query) ->
    case choose_nodes(Nodes, with(Query, #{n => 1})) of
        {ok, [Node], Meta} -> {ok, Node, Meta};
        {error, _} = Error -> Error
    end.

with(Query, More) when is_map(Query) -> maps:merge(Query, More);
with(Predicate, More) -> More#{require => Predicate}.

%% @doc Returns whether each node satisfies each constraint, and the values on which this is based.
-spec explain(placement_choose:nodes_spec(), placement_query:query()) -> {ok, [placement_explain:report()]} | {error, placement_choose:error()}.
explain(Nodes, Query) ->
    Reports = fun(Plan, Found, _) -> {ok, placement_explain:reports(Plan, placement_choose:snapshot(Found, Plan#{n := all}))} end,
    placement_choose:with_plan(Nodes, Query, Reports).

%% @doc Returns every constraint that keeps the node from being chosen among all connected nodes.
-spec why_not(node(), placement_query:query()) -> {ok, [placement_explain:verdict()]} | {error, placement_choose:error()}.
why_not(Node, Query) -> why_not(Node, Query, all).

%% @doc Like {@link why_not/2}, but considers only the given nodes. This matters because keywords such as `low' compare
%% nodes with each other.
-spec why_not(node(), placement_query:query(), placement_choose:nodes_spec()) -> {ok, [placement_explain:verdict()]} | {error, placement_choose:error()}.
why_not(Node, Query, Among) ->
    case placement_choose:candidates(Among) of
        {error, Text} -> {error, {bad_nodes, Text}};
        {ok, Nodes} ->
            case explain(Nodes ++ [Node], Query) of
                {ok, Reports} -> {ok, placement_explain:why_not(Node, Reports)};
                {error, _} = Error -> Error
            end
    end.

%% @doc Formats an error from a choice as text for users.
-spec format_error(placement_choose:error() | term()) -> unicode:chardata().
format_error({unsatisfied, Conflict}) -> placement_explain:conflict_text(Conflict);
format_error({Kind, Text}) when Kind =:= bad_query; Kind =:= bad_nodes -> Text;
format_error({bad_option, {_, _}, _} = Error) -> placement_map:format_error(Error);
format_error({Kind, _, _} = Error) when Kind =:= bad_graph; Kind =:= no_room -> placement_map:format_error(Error);
format_error({does_not_fit, _} = Error) -> placement_map:format_error(Error);
format_error({bad_claim, Name, Amount}) ->
    io_lib:format("the claim ~0tP => ~0tP: expected the name of an attribute and a number, 0 or more: what is taken of it", [Name, 8, Amount, 12]);
format_error(no_nodes) -> placement_map:format_error(no_nodes);
format_error(busy) -> io_lib:format("the ~b best nodes all refused", [?TRIES]);
format_error(Reason) -> io_lib:format("~0tP", [Reason, 20]).

%% @doc Ranks the nodes for a key, best first. Every node is ranked first for an equal share of all keys
%% ({@link placement_rendezvous}). The ranking depends only on the key and the nodes, so all nodes compute the same one.
%% When a node is added or removed, only the keys assigned to that node move.
-spec node_for(Key :: term(), [node()]) -> [node()].
node_for(Key, Nodes) -> placement_rendezvous:ranked(Key, [{Node, 1} || Node <- placement_query:distinct(Nodes)]).

%% @doc Like {@link node_for/2}, but each node's share of the keys is proportional to a numeric attribute, such as
%% `mem_total'. Use an attribute whose value does not change. Nodes whose value is unknown are left out.
-spec node_for(Key :: term(), [node()], Weight :: placement_entry:name()) -> [node()].
node_for(Key, Nodes, Weight) ->
    Views = attributes(Nodes, [Weight]),
    placement_rendezvous:ranked(Key, [{Node, Value} || {Node, #{attributes := #{Weight := {ok, Value, _, _, _}}}} <- maps:to_list(Views), is_number(Value)]).

%%% Leases

%% @doc Requests a lease from a node, for the calling process. With the claims `#{slots => 1}', for example, all leases on
%% the node together may claim at most the value of its attribute `slots'. The node first checks the predicate `require'
%% with its own attributes. The lease ends after `ttl' (5000 ms), when the caller exits, or when it is released
%% ({@link release/1}). `timeout' (ms) limits how long the caller waits for the node; the default is the option `deadline'
%% of the application.
-spec reserve(node(), placement_lease:claims(), #{ttl => pos_integer(), timeout => pos_integer(), require => placement_pred:predicate()}) ->
          {ok, lease()} | {error, {bad_query, string()} | placement_lease:bad_claim() | {refused, placement_lease:refusal()} | nodedown | no_server | timeout}.
reserve(Node, Claims, Options) ->
    with_predicate(maps:get(require, Options, []), fun(Require) -> placement_lease:reserve(Node, Claims, Require, Options) end).

with_predicate(Predicate, Fun) ->
    case placement_pred:compile(Predicate) of
        {ok, Compiled} -> Fun(placement_pred:at_target(Compiled));
        {error, Text} -> {error, {bad_query, unicode:characters_to_list(Text)}}
    end.

%% @doc Requests leases from several nodes at once, each for its own claims, and gets either all of them or none: if one
%% node refuses, the leases from the others are released. The options are those of {@link reserve/3}.
-spec reserve_all([{node(), placement_lease:claims()}], placement_pred:predicate(), #{ttl => pos_integer(), timeout => pos_integer()}) ->
          {ok, [lease()]} | {error, {bad_query, string()} | placement_lease:bad_claim()
                                    | [{node(), placement_lease:bad_claim() | {refused, placement_lease:refusal()} | nodedown | no_server | timeout}]}.
reserve_all(Wanted, Require, Options) ->
    with_predicate(Require, fun(Checked) -> placement_lease:reserve_all(Wanted, Checked, Options) end).

%% @doc Releases a lease. It is not an error if the lease has already ended.
-spec release(lease()) -> ok.
release(Lease) -> placement_lease:release(Lease).

%% @doc Makes a lease expire this many milliseconds from now, unless it was handed over to a process.
-spec renew(lease(), pos_integer()) -> ok | {error, ended | nodedown | no_server | timeout}.
renew(Lease, TtlMs) -> placement_lease:renew(Lease, TtlMs).

%% @doc Hands a lease over to a process on the lease's node. The lease ends when the process does.
-spec hand_over(lease(), pid()) -> ok | {error, ended | nodedown | no_server | timeout}.
hand_over(Lease, Pid) -> placement_lease:hand_over(Lease, Pid).

%% @doc Chooses a connected node, reserves a lease on it, starts the process there and hands the lease to the process.
-spec spawn(placement_query:query(), {module(), atom(), [term()]}) -> {ok, pid(), #{node := node(), refused := [{node(), term()}]}} | {error, placement_choose:error() | placement_lease:bad_claim() | {busy, list()}}.
spawn(Query, Call) -> spawn(Query, Call, #{}).

%% @doc Like {@link spawn/2}, with the options `nodes' and `claims' ({@link placement_lease:claims()}). If a node refuses
%% the lease, for example because other callers have reserved its resources in the meantime, the next best node is tried,
%% up to three nodes in total. If all of them refuse, the error lists each node's reason. The process calls the given
%% function only after the lease has been handed over to it; if the handover fails, the process is killed
%% (`{no_lease, Why}').
-spec spawn(placement_query:query(), {module(), atom(), [term()]}, #{nodes => placement_choose:nodes_spec(), claims => placement_lease:claims()}) ->
          {ok, pid(), #{node := node(), refused := [{node(), term()}]}} | {error, placement_choose:error() | placement_lease:bad_claim() | {busy, [{node(), term()}]}}.
spawn(Query, {_, _, _} = Call, Options) ->
    Claims = maps:get(claims, Options, #{}),
    case placement_lease:bad_claim(Claims) =:= none andalso placement_choose:ranked(maps:get(nodes, Options, all), {Query, ?TRIES}) of
        false -> {error, placement_lease:bad_claim(Claims)};
        {ok, Nodes, Plan} -> try_spawn(Nodes, Call, Claims, Plan, []);
        {error, _} = Error -> Error
    end.

try_spawn([], _, _, _, Refused) -> {error, {busy, lists:reverse(Refused)}};
try_spawn([Node | Rest], Call, Claims, #{require := Require} = Plan, Refused) ->
    %% The placement is counted now, because other processes on this node may choose a node before the target answers.
    ok = placement_choose:placed([Node], Plan),
    case placement_lease:reserve(Node, Claims, placement_pred:at_target(Require), #{}) of
        {ok, Lease} ->
            case started(Node, Call, Lease) of
                {ok, Pid} -> {ok, Pid, #{node => Node, refused => lists:reverse(Refused)}};
                {error, Reason} -> try_spawn(Rest, Call, Claims, Plan, [{Node, Reason} | Refused])
            end;
        {error, Reason} -> try_spawn(Rest, Call, Claims, Plan, [{Node, Reason} | Refused])
    end.

started(Node, Call, Lease) ->
    try begun_at(Node, Call, Lease)
    catch
        error:{erpc, Reason} ->
            ok = release(Lease),
            {error, Reason}
    end.

%% If the node starts the process only after our timeout, the process does not get `go', because another node may have
%% started it in the meantime.
begun_at(Node, {Module, Function, Arguments} = Call, Lease) ->
    try erpc:call(Node, ?MODULE, begun, [self(), Lease, Call], ?SPAWN_MS) of
        {ok, Pid} ->
            Pid ! {self(), go},
            {ok, Pid};
        {error, _} = Error -> Error
    catch
        %% The node runs release 0.2.0 or older, in which a process that starts too late keeps running.
        error:{exception, undef, [{?MODULE, begun, _, _} | _]} -> with_lease(Lease, erpc:call(Node, erlang, spawn, [Module, Function, Arguments], ?SPAWN_MS))
    end.

%% @private Runs on the chosen node.
-spec begun(Caller :: pid(), lease(), {module(), atom(), [term()]}) -> {ok, pid()} | {error, {no_lease, ended | nodedown | no_server | timeout}}.
begun(Caller, Lease, Call) -> with_lease(Lease, erlang:spawn(fun() -> called(Caller, Call) end)).

%% The caller waits only for a limited time, so after twice that time it can no longer send a message.
called(Caller, {Module, Function, Arguments}) ->
    Monitor = monitor(process, Caller),
    receive
        {Caller, go} ->
            true = demonitor(Monitor, [flush]),
            apply(Module, Function, Arguments);
        {'DOWN', Monitor, process, Caller, _} -> ok
    after 2 * ?SPAWN_MS -> ok
    end.

with_lease(Lease, Pid) ->
    case hand_over(Lease, Pid) of
        ok -> {ok, Pid};
        {error, Reason} ->
            %% The process must not survive, because it would not be counted by any lease.
            true = exit(Pid, kill),
            ok = release(Lease),
            {error, {no_lease, Reason}}
    end.

%%% Processes that exist once

%% @doc Starts a process that exists only once in a set of nodes ({@link placement_child}). It runs on a node that
%% matches the query. It is restarted on another node when its node goes down, or when its node has not matched the
%% query for the grace period and another node does. `Call' must return `{ok, Pid}', like the start function of a
%% supervisor's child. Options: `name' (required; `{via, placement, Name}' finds the process on each of its nodes),
%% `nodes' (by default all nodes that are connected now and those that join later), `grace' (the grace period, 5000 ms),
%% `voters' (5; the child runs only while more than half of that many nodes are connected), `replace_after' (30000 ms:
%% how long a voter must be disconnected before another node replaces it), `settle' (30000 ms, or six times `grace' if
%% that is longer: how long both the old and the new voters are asked during such a replacement), `restart' (permanent)
%% and `shutdown' (5000), both as in a supervisor's child specification.
-spec child(placement_query:query(), {module(), atom(), [term()]}, placement_child:options()) ->
          {ok, pid()} | {error, {bad_option, atom(), term()} | {bad_query, string()} | {exists, pid()} | no_majority | not_started}.
child(Query, Call, Options) -> placement_child:start(Query, Call, Options).

%% @doc Starts a process that exists only once, as a child of a scope, which can be any term. The child specification
%% and the return values are those of a supervisor ({@link placement_scope:start_child/2}). The process is registered
%% as `{Scope, Id}'.
-spec start_child(Scope :: term(), placement_scope:child_spec()) ->
          {ok, pid()} | {error, {already_started, pid()} | {missing, id | start} | {bad_option, atom(), term()} | {bad_query, string()} | no_majority | not_started}.
start_child(Scope, Spec) -> placement_scope:start_child(Scope, Spec).

%% @doc Returns the children of a scope. Call this function on one of their nodes.
-spec which_children(Scope :: term()) -> [{Id :: term(), pid() | restarting, worker | supervisor, [module()] | dynamic}].
which_children(Scope) -> placement_scope:which_children(Scope).

%% @doc Counts the children of a scope, as `supervisor:count_children/1' does.
-spec count_children(Scope :: term()) -> [{specs | active | supervisors | workers, non_neg_integer()}].
count_children(Scope) -> placement_scope:count_children(Scope).

%% @doc Permanently terminates a child of a scope. Call this function on one of the child's nodes.
-spec terminate_child(Scope :: term(), Id :: term()) -> ok | {error, not_found | no_majority}.
terminate_child(Scope, Id) -> placement_scope:terminate_child(Scope, Id).

%% @doc Permanently terminates a child of {@link child/3}. Call this function on one of the child's nodes.
-spec delete_child(placement_child:name()) -> ok | {error, no_such_child | no_majority}.
delete_child(Name) -> placement_child:delete(Name).

%% @doc Returns the children that may run on this node, each with the node on which it runs and its process.
-spec children() -> [{placement_child:name(), node() | none, pid() | none}].
children() -> placement_child:children().

%% @doc Returns the process that is registered under a name, for `{via, placement, Name}'.
-spec whereis_name(placement_child:name()) -> pid() | undefined.
whereis_name(Name) -> placement_child:whereis_name(Name).

%% @doc Sends a message to the process that is registered under a name, for `{via, placement, Name}'.
-spec send(placement_child:name(), Message :: term()) -> pid().
send(Name, Message) ->
    case whereis_name(Name) of
        undefined -> exit({badarg, {Name, Message}});
        Pid ->
            Pid ! Message,
            Pid
    end.

%% @doc Always returns `no', because only {@link child/3} registers names.
-spec register_name(placement_child:name(), pid()) -> no.
register_name(_, _) -> no.

%% @doc Does nothing, because a name is unregistered when its process exits.
-spec unregister_name(placement_child:name()) -> ok.
unregister_name(_) -> ok.

%% @doc Returns the fencing number of a child that runs on this node ({@link placement_child:fence/1}). Pass it to the
%% storage that the child writes to, and let the storage reject lower numbers.
-spec fence(placement_child:name()) -> {ok, integer()} | none.
fence(Name) -> placement_child:fence(Name).

%%% Draining a node

%% @doc Drains this node, as {@link drain/2} does without options.
-spec drain() -> {ok, placement_drain:result()} | {error, already_draining}.
drain() -> placement_drain:run(#{}).

%% @doc Drains a node, as {@link drain/2} does without options.
-spec drain(node()) -> {ok, placement_drain:result()} | {error, already_draining | nodedown | no_placement | timeout | term()}.
drain(Node) -> drain(Node, #{}).

%% @doc Moves a node's processes to other nodes, with their states and queued messages ({@link placement_drain}).
%% It moves the children that were started with {@link child/3}, and every gen_server or gen_statem whose callback
%% module exports `placement_handoff/3'. The node accepts no new processes until {@link undrain/0} is called there.
%% Options: `at_once' (the number of concurrent moves, 8), `timeout' (ms, 60000; processes that have not moved by then
%% stay), and `tell' (a pid that receives progress reports).
-spec drain(node(), placement_drain:options()) -> {ok, placement_drain:result()} | {error, already_draining | nodedown | no_placement | timeout | {bad_option, atom(), term()} | term()}.
drain(Node, Options) ->
    Timeout = maps:get(timeout, Options, ?DRAIN_MS),
    try erpc:call(Node, placement_drain, run, [Options], if is_integer(Timeout), Timeout > 0 -> 2 * Timeout + ?SPAWN_MS; true -> ?SPAWN_MS end)
    catch
        error:{erpc, noconnection} -> {error, nodedown};
        error:{erpc, timeout} -> {error, timeout};
        error:{exception, undef, [{placement_drain, run, _, _} | _]} -> {error, no_placement};
        error:{exception, Reason, _} -> {error, Reason}
    end.

%% @doc Lets this node accept processes again after a drain.
-spec undrain() -> ok.
undrain() -> placement_drain:undo().

%%% Attributes of this node

%% @doc Makes the caller an owner of an attribute whose value is the number of owners that are alive.
-spec own(placement_entry:name()) -> ok | {error, term()}.
own(Name) -> placement_attr:own(Name, count, self()).

%% @doc Sets an attribute that is removed when the calling process exits. If several processes own the attribute, it has
%% the value that was set by the most recent owner that is still alive.
-spec own(placement_entry:name(), Value :: term()) -> ok | {error, term()}.
own(Name, Value) -> placement_attr:own(Name, {value, Value}, self()).

%% @doc Gives up the caller's ownership of an attribute.
-spec disown(placement_entry:name()) -> ok.
disown(Name) -> placement_attr:disown(Name, self()).

%% @doc Sets this node's taints, which can be any terms; `[]' removes them. The node is chosen, and grants leases,
%% only for queries that tolerate all of its taints (`{tolerates, Taints}').
-spec taint([Taint :: term()]) -> ok.
taint(Taints) when is_list(Taints) -> placement_builtin:taint(Taints).

%% @doc Adds an attribute. The entry has the same form as in a configuration file ({@link placement_entry}).
-spec insert(placement_entry:name(), Entry :: term()) -> ok | {error, unicode:chardata()}.
insert(Name, Entry) -> placement_attr:insert(Name, Entry).

%% @doc Adds a value with options, such as its unit.
-spec insert(placement_entry:name(), Value :: term(), placement_entry:options()) -> ok | {error, unicode:chardata()}.
insert(Name, Value, Options) -> placement_attr:insert(Name, {static, Value, Options}).

%% @doc Changes an existing attribute.
-spec update(placement_entry:name(), Entry :: term()) -> ok | {error, unicode:chardata()}.
update(Name, Entry) -> placement_attr:update(Name, Entry).

%% @doc Removes an attribute.
-spec delete(placement_entry:name()) -> ok.
delete(Name) -> placement_attr:delete(Name).

%% @doc Returns the names of this node's attributes.
-spec attributes() -> [placement_entry:name()].
attributes() -> placement_attr:names().

%% @doc Returns the value, age and unit of these attributes on each node, or the reason why a value is unknown.
-spec attributes([node()], [placement_entry:name()]) -> #{node() => placement_cache:view()}.
attributes(Nodes, Names) -> placement_cache:fetch(placement_query:distinct(Nodes), Names, #{}).

%% @doc Subscribes to these attributes of the nodes. Each node then checks them for changes every `EveryMs' milliseconds and
%% reports the changes, so this node need not send requests, and values are at most five intervals old. A new subscription
%% to a node replaces the earlier one.
-spec follow([node()], [placement_entry:name()], EveryMs :: pos_integer()) -> ok.
follow(Nodes, Names, EveryMs) -> placement_cache:follow(Nodes, Names, EveryMs).

%% @doc Cancels the subscriptions made with {@link follow/3}.
-spec unfollow([node()]) -> ok.
unfollow(Nodes) -> placement_cache:unfollow(Nodes).

%%% Topology

%% @doc Returns the tree that this node uses for its choices.
-spec topology() -> placement_tree:tree() | none.
topology() -> placement_topology:tree().

%% @doc Returns the epoch number of the tree in use, or 0 if there is no tree.
-spec epoch() -> non_neg_integer().
epoch() -> placement_topology:epoch().

%% @doc Returns which child of the tree's root contains the node, as a number starting with 1, or `undefined' if the
%% node is not in the tree. The option `sites' of teleport's broadcasts accepts `{placement, site}'.
-spec site(node()) -> Site :: pos_integer() | undefined.
site(Node) ->
    case placement_tree:branch(topology(), Node) of
        {ok, Site} -> Site;
        unknown -> undefined
    end.

%% @doc Sets the tree that this node uses for its choices from now on.
-spec set_topology(placement_tree:tree()) -> {ok, Epoch :: pos_integer()}.
set_topology(Tree) -> placement_topology:set(Tree).

%% @doc Sets the tree here and on other nodes. Returns the nodes that did not accept it or already have a newer tree.
-spec set_topology(placement_tree:tree(), [node()]) -> {ok, Epoch :: pos_integer(), Without :: [node()]}.
set_topology(Tree, Nodes) -> placement_topology:publish(Tree, Nodes).

%% @doc Builds a tree from the places that the nodes themselves report: their declared path, Slurm's, or region and
%% zone ({@link placement_place}).
-spec declared_topology([node(), ...]) -> {ok, placement_tree:tree()} | {error, {no_place, [node(), ...]} | placement_tree:error()}.
declared_topology(Nodes) -> placement_place:tree(placement_query:distinct(Nodes)).

%% @doc Adds a node to the tree, on this node and on all connected nodes of the tree. The node is inserted at the given
%% path. With `probe' its position is found by measuring round-trip times, from the root of the tree downwards, which
%% takes about a second for each group along the path.
-spec join(node(), placement_tree:path() | probe) -> {ok, Epoch :: pos_integer()} | {error, placement_tree:error() | no_topology | not_measured | too_many_changes}.
join(Node, probe) ->
    case topology() of
        none -> {error, no_topology};
        Tree ->
            case placement_topology:place(placement_tree:remove(Tree, Node), fun(Other) -> measured(Node, Other) end, ?FLOOR) of
                {ok, Path} -> placement_topology:join(Node, Path);
                unknown -> {error, not_measured}
            end
    end;
join(Node, Path) -> placement_topology:join(Node, Path).

%% Returns the time of the fastest batch, because other work on the machine can only make a batch slower.
measured(Node, Other) ->
    try erpc:call(Node, placement_probe_pair, run, [Other, ?PROBE_BATCHES, ?PROBE_MESSAGES, ?PROBE_MS, none], 2 * ?PROBE_MS) of
        Batches -> {ok, lists:min(Batches)}
    catch
        %% Times to a node that is down cannot be measured, so that node does not help to find the position.
        _:_ -> unknown
    end.

%% @doc Removes a node from the tree, on this node and on all connected nodes of the tree.
-spec leave(node()) -> {ok, Epoch :: non_neg_integer()} | {error, too_many_changes}.
leave(Node) -> placement_topology:leave(Node).

%%% Measuring and planning

%% @doc Measures the round-trip times between every pair of nodes ({@link placement_probe:measure/2}).
%% {@link placement_cluster} builds a tree from them.
-spec probe([node()], placement_probe:options()) ->
          {ok, placement_probe:measured()} | {error, {bad_option, atom(), term()} | no_pairs | {unreachable, [{node(), term()}]}}.
probe(Nodes, Options) -> placement_probe:measure(Nodes, Options).

%% @doc Plans a hierarchy of a master, submasters and workers that follows the tree of nodes
%% ({@link placement_plan:plan/2}). `workers' and `submasters' may also be queries, which select suitable nodes of the
%% tree.
-spec plan(placement_tree:tree() | none, #{workers => [node()] | placement_query:query(), submasters => [node()] | placement_query:query(),
                                    fan_out => pos_integer() | infinity, least => pos_integer()}) ->
          {ok, placement_plan:process()} | {error, no_workers | no_submasters | {bad_option, atom(), term()} | placement_choose:error()}.
plan(Tree, Options) ->
    try placement_plan:plan(Tree, maps:map(fun(Key, Value) -> plan_option(Key, Value, Tree) end, Options))
    catch throw:{no_nodes, Error} -> {error, Error}
    end.

plan_option(Key, Value, Tree) when Key =:= workers; Key =:= submasters ->
    case is_list(Value) andalso lists:all(fun is_atom/1, Value) of
        true -> Value;
        false ->
            case choose_nodes(placement_tree:nodes(Tree), with(Value, #{n => all})) of
                {ok, Nodes, _} -> Nodes;
                {error, Error} -> throw({no_nodes, Error})
            end
    end;
plan_option(_, Value, _) -> Value.

%% @doc Assigns processes to nodes, given how much the processes communicate with each other and how far apart the nodes
%% are ({@link placement_map:map/3}). It neither starts nor moves any process.
-spec map(placement_map:graph(), placement_tree:tree() | none, placement_map:options()) -> {ok, placement_map:mapping()} | {error, placement_map:error()}.
map(Graph, Tree, Options) -> placement_map:map(Graph, Tree, Options).

%% @doc Measures, for this many milliseconds and by sampling, how many bytes these processes send to each other
%% ({@link placement_observe}). Returns a graph for {@link map/3} and {@link advise/2}, and the processes that could not
%% be traced. Tracing ends when the call returns.
-spec observe([pid()], Ms :: pos_integer()) -> {ok, placement_map:graph(), placement_observe:seen()} | {error, {bad_pids | bad_ms, term()}}.
observe(Pids, Ms) -> placement_observe:observe(Pids, Ms).

%% @doc Suggests which processes of a graph should move to a different node of the current tree ({@link
%% placement_moves}), how much traffic each move would save, and on which link.
-spec advise(placement_map:graph(), placement_moves:options()) -> {ok, [placement_moves:move()]} | {error, no_topology | placement_map:error()}.
advise(Graph, Options) ->
    case topology() of
        none -> {error, no_topology};
        Tree -> placement_moves:moves(Graph, Tree, Options)
    end.

%% @doc Returns pairs of nodes that exchange a lot of data although they are far apart ({@link placement_advise}), and
%% the nodes whose traffic is unknown.
-spec advise(placement_choose:nodes_spec()) -> {ok, [placement_advise:advice()], Without :: [node()]} | {error, no_topology | {bad_nodes, string()}}.
advise(Nodes) ->
    case placement_choose:candidates(Nodes) of
        {ok, Found} -> placement_advise:advise(Found);
        {error, Text} -> {error, {bad_nodes, Text}}
    end.
