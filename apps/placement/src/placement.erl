%% SPDX-License-Identifier: Apache-2.0
%% @doc Chooses where to put processes, by the attributes, distances, groups and load of the nodes.
%%
%% ```
%% {ok, [Node], _} = placement:choose_nodes(all, #{require => [{mem_available, ge, {4, gib}}, {dist, near}], n => 1}).
%% {ok, Pid, _} = placement:spawn(#{require => [{gpu, true}]}, {my_worker, start, []}).
%% {ok, Reasons} = placement:why_not('b@host', [{loadavg5, lt, 0.5}]).
%% '''
%% A query is data ({@link placement_query:query()}, {@link placement_pred:predicate()}). If several nodes are suitable,
%% the default policy asks two of them again for their attributes and takes the better one ({@link placement_policy}).
%% The target itself decides whether to accept the process ({@link reserve/3}). The application must run on this node
%% and on the nodes to be chosen; a node without it counts as unknown. {@link attr} offers the calls of the RELEASE
%% report's library.
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
%% Measured times whose logarithms differ by less than this belong to the same level.
-define(FLOOR, 0.15).
-define(PROBE_BATCHES, 5).
-define(PROBE_MESSAGES, 100).
-define(PROBE_MS, 5000).

%% @doc Returns the nodes that a query asks for: all suitable ones, in the order of the list, unless the query limits
%% their number.
-spec choose_nodes(placement_choose:nodes_spec(), placement_query:query()) -> {ok, [node(), ...], placement_choose:meta()} | {error, placement_choose:error()}.
choose_nodes(Nodes, Query) -> placement_choose:choose(Nodes, Query).

%% @doc Chooses one node.
-spec choose_node(placement_choose:nodes_spec(), placement_query:query()) -> {ok, node(), placement_choose:meta()} | {error, placement_choose:error()}.
choose_node(Nodes, Query) ->
    case choose_nodes(Nodes, with(Query, #{n => 1})) of
        {ok, [Node], Meta} -> {ok, Node, Meta};
        {error, _} = Error -> Error
    end.

with(Query, More) when is_map(Query) -> maps:merge(Query, More);
with(Predicate, More) -> More#{require => Predicate}.

%% @doc Returns the verdict of every constraint on every node, and the values on which it is based.
-spec explain(placement_choose:nodes_spec(), placement_query:query()) -> {ok, [placement_explain:report()]} | {error, placement_choose:error()}.
explain(Nodes, Query) ->
    case {placement_query:compile(Query), placement_choose:candidates(Nodes)} of
        {{error, Text}, _} -> {error, {bad_query, unicode:characters_to_list(Text)}};
        {_, {error, Text}} -> {error, {bad_nodes, Text}};
        {_, {ok, []}} -> {error, {bad_nodes, "the list of nodes is empty"}};
        {{ok, Plan}, {ok, Found}} -> {ok, placement_explain:reports(Plan, placement_choose:snapshot(Found, Plan#{n := all}))}
    end.

%% @doc Returns every constraint that keeps the node from being chosen among all connected nodes, or an empty list if
%% the node is suitable.
-spec why_not(node(), placement_query:query()) -> {ok, [placement_explain:verdict()]} | {error, placement_choose:error()}.
why_not(Node, Query) -> why_not(Node, Query, all).

%% @doc Does the same, but only among the given nodes, which matters because words such as `low' compare nodes with each
%% other.
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

%% @doc Returns the nodes for a key, the best first. Each node comes first for an equal share of all keys
%% ({@link placement_rendezvous}). The result depends only on the key and the nodes, so every node computes the same
%% one, and when a node is added or removed, only the keys assigned to it move.
-spec node_for(Key :: term(), [node()]) -> [node()].
node_for(Key, Nodes) -> placement_rendezvous:ranked(Key, [{Node, 1} || Node <- placement_query:distinct(Nodes)]).

%% @doc Does the same, but each node's share of the keys is proportional to a numeric attribute, such as `mem_total'.
%% Nodes whose value is unknown are left out, so use an attribute that does not change.
-spec node_for(Key :: term(), [node()], Weight :: placement_entry:name()) -> [node()].
node_for(Key, Nodes, Weight) ->
    Views = attributes(Nodes, [Weight]),
    placement_rendezvous:ranked(Key, [{Node, Value} || {Node, #{attributes := #{Weight := {ok, Value, _, _, _}}}} <- maps:to_list(Views), is_number(Value)]).

%%% Leases

%% @doc Requests a lease from a node ({@link placement_lease:reserve/4}). The options are `ttl', `require' and
%% `timeout'.
-spec reserve(node(), placement_lease:claims(), #{ttl => pos_integer(), timeout => pos_integer(), require => placement_pred:predicate()}) ->
          {ok, lease()} | {error, {bad_query, string()} | placement_lease:bad_claim() | {refused, placement_lease:refusal()} | nodedown | no_server | timeout}.
reserve(Node, Claims, Options) ->
    case placement_pred:compile(maps:get(require, Options, [])) of
        {ok, Compiled} -> placement_lease:reserve(Node, Claims, placement_pred:at_target(Compiled), Options);
        {error, Text} -> {error, {bad_query, unicode:characters_to_list(Text)}}
    end.

%% @doc Requests leases from several nodes at once, each for its own claims, and gets either all of them or none
%% ({@link placement_lease:reserve_all/3}). The options are those of {@link reserve/3}.
-spec reserve_all([{node(), placement_lease:claims()}], placement_pred:predicate(), #{ttl => pos_integer(), timeout => pos_integer()}) ->
          {ok, [lease()]} | {error, {bad_query, string()} | placement_lease:bad_claim()
                                    | [{node(), placement_lease:bad_claim() | {refused, placement_lease:refusal()} | nodedown | no_server | timeout}]}.
reserve_all(Wanted, Require, Options) ->
    case placement_pred:compile(Require) of
        {ok, Compiled} -> placement_lease:reserve_all(Wanted, placement_pred:at_target(Compiled), Options);
        {error, Text} -> {error, {bad_query, unicode:characters_to_list(Text)}}
    end.

%% @doc Releases a lease.
-spec release(lease()) -> ok.
release(Lease) -> placement_lease:release(Lease).

%% @doc Makes a lease expire in this many milliseconds, counted from now. A lease that was handed over lives as long
%% as its process, so the time does not apply to it.
-spec renew(lease(), pos_integer()) -> ok | {error, ended | nodedown | no_server | timeout}.
renew(Lease, TtlMs) -> placement_lease:renew(Lease, TtlMs).

%% @doc Hands a lease over to a process on the lease's node. The lease ends when the process does.
-spec hand_over(lease(), pid()) -> ok | {error, ended | nodedown | no_server | timeout}.
hand_over(Lease, Pid) -> placement_lease:hand_over(Lease, Pid).

%% @doc Chooses among all connected nodes, reserves, starts the process there and hands the lease over to it.
-spec spawn(placement_query:query(), {module(), atom(), [term()]}) -> {ok, pid(), #{node := node(), refused := [{node(), term()}]}} | {error, placement_choose:error() | placement_lease:bad_claim() | {busy, list()}}.
spawn(Query, Call) -> spawn(Query, Call, #{}).

%% @doc Does the same with options: `nodes' and `claims' ({@link placement_lease:claims()}). If a node refuses because
%% other callers came first, the next best node is tried, up to three in total; if they all refuse, the error lists each
%% node's reason. The process calls the given function only after the lease has been handed over to it, and it is killed
%% if that fails (`{no_lease, Why}').
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
    %% The placement is counted now, because other processes on this node may choose before the target has answered.
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

%% If the node starts the process only after our timeout, that process never receives `go', because another node may
%% have started one in the meantime.
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

%% The caller waits only for a limited time, so after twice that time no message can arrive from it.
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

%% @doc Starts a process that exists once among some nodes ({@link placement_child}). It runs on a node that the query
%% chooses. It is started again on another node when its node goes down, or when its node has not suited the query for
%% the grace time and another node does. The function returns `{ok, Pid}', like the start function of a supervisor's
%% child. Options: `name' (required; `{via, placement, Name}' finds the process on each of its nodes), `nodes' (by
%% default all nodes that are connected now and those that join later), `grace' (ms, 5000), `voters' (5; the child runs
%% only while more than half of that many nodes are connected), `replace_after' (ms, 30000: how long a voter must be
%% disconnected before another node replaces it), `settle' (ms, 30000: for how long both the old and the new voters are
%% asked after that), `restart' (permanent) and `shutdown' (5000), both as in a supervisor's child specification.
-spec child(placement_query:query(), {module(), atom(), [term()]}, placement_child:options()) ->
          {ok, pid()} | {error, {bad_option, atom(), term()} | {bad_query, string()} | {exists, pid()} | no_majority | not_started}.
child(Query, Call, Options) -> placement_child:start(Query, Call, Options).

%% @doc Starts such a process as a child of a scope, which is any term. The specification and the results are those of
%% a supervisor's child ({@link placement_scope:start_child/2}). The process's name is `{Scope, Id}'.
-spec start_child(Scope :: term(), placement_scope:child_spec()) ->
          {ok, pid()} | {error, {already_started, pid()} | {missing, id | start} | {bad_option, atom(), term()} | {bad_query, string()} | no_majority | not_started}.
start_child(Scope, Spec) -> placement_scope:start_child(Scope, Spec).

%% @doc Returns the children of a scope. Call it on one of their nodes.
-spec which_children(Scope :: term()) -> [{Id :: term(), pid() | restarting, worker | supervisor, [module()] | dynamic}].
which_children(Scope) -> placement_scope:which_children(Scope).

%% @doc Counts the children of a scope, as `supervisor:count_children/1' does.
-spec count_children(Scope :: term()) -> [{specs | active | supervisors | workers, non_neg_integer()}].
count_children(Scope) -> placement_scope:count_children(Scope).

%% @doc Permanently terminates a child of a scope. Call it on one of the child's nodes.
-spec terminate_child(Scope :: term(), Id :: term()) -> ok | {error, not_found | no_majority}.
terminate_child(Scope, Id) -> placement_scope:terminate_child(Scope, Id).

%% @doc Permanently terminates such a process. Call it on one of its nodes.
-spec delete_child(placement_child:name()) -> ok | {error, no_such_child | no_majority}.
delete_child(Name) -> placement_child:delete(Name).

%% @doc Returns the processes that this node may run, and where they run.
-spec children() -> [{placement_child:name(), node() | none, pid() | none}].
children() -> placement_child:children().

%% @doc Returns the process of that name, for `{via, placement, Name}'.
-spec whereis_name(placement_child:name()) -> pid() | undefined.
whereis_name(Name) -> placement_child:whereis_name(Name).

%% @doc Sends a message to the process of that name, for `{via, placement, Name}'.
-spec send(placement_child:name(), Message :: term()) -> pid().
send(Name, Message) ->
    case whereis_name(Name) of
        undefined -> exit({badarg, {Name, Message}});
        Pid ->
            Pid ! Message,
            Pid
    end.

%% @doc Always refuses, because only {@link child/3} creates names.
-spec register_name(placement_child:name(), pid()) -> no.
register_name(_, _) -> no.

%% @doc Does nothing, because a name ends with its process.
-spec unregister_name(placement_child:name()) -> ok.
unregister_name(_) -> ok.

%% @doc Returns the fencing number of a child that runs on this node ({@link placement_child:fence/1}). Pass it to the
%% storage that the child writes to, and let the storage refuse lower numbers.
-spec fence(placement_child:name()) -> {ok, integer()} | none.
fence(Name) -> placement_child:fence(Name).

%%% Emptying a node

%% @doc Drains this node.
-spec drain() -> {ok, placement_drain:result()} | {error, already_draining}.
drain() -> placement_drain:run(#{}).

%% @doc Drains a node.
-spec drain(node()) -> {ok, placement_drain:result()} | {error, already_draining | nodedown | no_placement | timeout | term()}.
drain(Node) -> drain(Node, #{}).

%% @doc Moves the processes of a node to other nodes, with their states and queued messages ({@link placement_drain}).
%% It moves the children of {@link child/3}, and gen_servers and gen_statems that export `placement_handoff/3'. The node
%% accepts no new processes until {@link undrain/0} is called there. Options: `at_once' (concurrent moves, 8), `timeout'
%% (ms, 60000; processes that have not moved by then stay), and `tell', a pid that receives progress reports.
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

%% @doc Makes the caller an owner of an attribute whose value is the number of its living owners.
-spec own(placement_entry:name()) -> ok | {error, term()}.
own(Name) -> placement_attr:own(Name, count, self()).

%% @doc Sets an attribute that is removed when the calling process exits. If several processes own it, its value is the
%% one set by the newest living owner.
-spec own(placement_entry:name(), Value :: term()) -> ok | {error, term()}.
own(Name, Value) -> placement_attr:own(Name, {value, Value}, self()).

%% @doc Gives up the caller's ownership of an attribute.
-spec disown(placement_entry:name()) -> ok.
disown(Name) -> placement_attr:disown(Name, self()).

%% @doc Sets the taints of this node, which are any terms; `[]' removes them. The node is not chosen and grants no lease
%% unless the query tolerates all of its taints (`{tolerates, Taints}').
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

%% @doc Returns attributes of nodes: for each one its value, age and unit, or the reason why it is unknown.
-spec attributes([node()], [placement_entry:name()]) -> #{node() => placement_cache:view()}.
attributes(Nodes, Names) -> placement_cache:fetch(placement_query:distinct(Nodes), Names, #{}).

%% @doc Makes nodes report changes on their own, so that they need not be asked
%% ({@link placement_cache:follow/3}).
-spec follow([node()], [placement_entry:name()], EveryMs :: pos_integer()) -> ok.
follow(Nodes, Names, EveryMs) -> placement_cache:follow(Nodes, Names, EveryMs).

%% @doc Stops the reports requested with {@link follow/3}.
-spec unfollow([node()]) -> ok.
unfollow(Nodes) -> placement_cache:unfollow(Nodes).

%%% Topology

%% @doc Returns the tree that this node uses for its choices.
-spec topology() -> placement_tree:tree() | none.
topology() -> placement_topology:tree().

%% @doc Returns the epoch number of the tree in use, or 0 if there is no tree.
-spec epoch() -> non_neg_integer().
epoch() -> placement_topology:epoch().

%% @doc Returns the number of the root's child in the tree that contains the node, or `undefined' if the node is not in
%% the tree. `{placement, site}' can be used as the value of the option `sites' for teleport's broadcasts.
-spec site(node()) -> Site :: pos_integer() | undefined.
site(Node) ->
    case placement_tree:branch(topology(), Node) of
        {ok, Site} -> Site;
        unknown -> undefined
    end.

%% @doc Makes this node use this tree for its choices from now on.
-spec set_topology(placement_tree:tree()) -> {ok, Epoch :: pos_integer()}.
set_topology(Tree) -> placement_topology:set(Tree).

%% @doc Sets the tree here and on other nodes. Returns the nodes that did not accept it or already have a newer tree.
-spec set_topology(placement_tree:tree(), [node()]) -> {ok, Epoch :: pos_integer(), Without :: [node()]}.
set_topology(Tree, Nodes) -> placement_topology:publish(Tree, Nodes).

%% @doc Builds a tree from the places that the nodes themselves report: their declared path, Slurm's, or region and
%% zone ({@link placement_place}).
-spec declared_topology([node(), ...]) -> {ok, placement_tree:tree()} | {error, {no_place, [node(), ...]} | placement_tree:error()}.
declared_topology(Nodes) -> placement_place:tree(placement_query:distinct(Nodes)).

%% @doc Adds a node to the tree, on this node and on all connected nodes of the tree. The node is put at its declared
%% path. With `probe' it is put at a place found by measuring, from the root downwards, which takes about a second for
%% each group on the way.
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

%% Takes the fastest of several batches, because other work on the machine can only make a batch slower.
measured(Node, Other) ->
    try erpc:call(Node, placement_probe_pair, run, [Other, ?PROBE_BATCHES, ?PROBE_MESSAGES, ?PROBE_MS, none], 2 * ?PROBE_MS) of
        Batches -> {ok, lists:min(Batches)}
    catch
        %% A node that is down cannot be measured, so it cannot help to find the place.
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

%% @doc Plans a master, submasters and workers in the shape of the tree of nodes ({@link placement_plan:plan/2}).
%% `workers' and `submasters' may also be queries, which select suitable nodes of the tree.
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

%% @doc Samples for this many milliseconds how many bytes these processes send to each other
%% ({@link placement_observe}). Returns a graph for {@link map/3} and {@link advise/2}, and names the processes that
%% could not be traced. Tracing ends when the call returns.
-spec observe([pid()], Ms :: pos_integer()) -> {ok, placement_map:graph(), placement_observe:seen()} | {error, {bad_pids | bad_ms, term()}}.
observe(Pids, Ms) -> placement_observe:observe(Pids, Ms).

%% @doc Returns which processes of a graph should run on another node of the tree in use instead
%% ({@link placement_moves}), how much traffic each move saves, and over which link. It does not move them.
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
