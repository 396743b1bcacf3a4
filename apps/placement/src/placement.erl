%% SPDX-License-Identifier: Apache-2.0
%% @doc Where to put processes: nodes by their attributes, their distances, their groups and their load.
%%
%% ```
%% {ok, [Node], _} = placement:choose_nodes(all, #{require => [{mem_available, ge, {4, gib}}, {dist, near}], n => 1}).
%% {ok, Pid, _} = placement:spawn(#{require => [{gpu, true}]}, {my_worker, start, []}).
%% {ok, Reasons} = placement:why_not('b@host', [{loadavg5, lt, 0.5}]).
%% '''
%% A query is data ({@link placement_query:query()}, {@link placement_pred:predicate()}). Of several suitable nodes one is taken by a policy that asks two of them
%% anew ({@link placement_policy}); the target itself decides who may come ({@link reserve/3}). The application must run here and on the nodes that are to be
%% chosen; nodes without it are unknown. {@link attr} is the library of the RELEASE report with its own calls.
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
%% Logarithms that differ by less are one level.
-define(FLOOR, 0.15).
-define(PROBE_BATCHES, 5).
-define(PROBE_MESSAGES, 100).
-define(PROBE_MS, 5000).

%% @doc The nodes that a query asks for; all suitable ones, in the order of the list, unless it says how many.
-spec choose_nodes(placement_choose:nodes_spec(), placement_query:query()) -> {ok, [node(), ...], placement_choose:meta()} | {error, placement_choose:error()}.
choose_nodes(Nodes, Query) -> placement_choose:choose(Nodes, Query).

%% @doc One node.
-spec choose_node(placement_choose:nodes_spec(), placement_query:query()) -> {ok, node(), placement_choose:meta()} | {error, placement_choose:error()}.
choose_node(Nodes, Query) ->
    case choose_nodes(Nodes, with(Query, #{n => 1})) of
        {ok, [Node], Meta} -> {ok, Node, Meta};
        {error, _} = Error -> Error
    end.

with(Query, More) when is_map(Query) -> maps:merge(Query, More);
with(Predicate, More) -> More#{require => Predicate}.

%% @doc Every constraint on every node, and what it was judged from.
-spec explain(placement_choose:nodes_spec(), placement_query:query()) -> {ok, [placement_explain:report()]} | {error, placement_choose:error()}.
explain(Nodes, Query) ->
    case {placement_query:compile(Query), placement_choose:candidates(Nodes)} of
        {{error, Text}, _} -> {error, {bad_query, unicode:characters_to_list(Text)}};
        {_, {error, Text}} -> {error, {bad_nodes, Text}};
        {_, {ok, []}} -> {error, {bad_nodes, "the list of nodes is empty"}};
        {{ok, Plan}, {ok, Found}} -> {ok, placement_explain:reports(Plan, placement_choose:snapshot(Found, Plan#{n := all}))}
    end.

%% @doc Every constraint that keeps a node from being chosen among all connected nodes; none if it is suitable.
-spec why_not(node(), placement_query:query()) -> {ok, [placement_explain:verdict()]} | {error, placement_choose:error()}.
why_not(Node, Query) -> why_not(Node, Query, all).

%% @doc The same among other nodes: words such as `low' compare nodes with each other.
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

%% @doc An error of a choice in words.
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

%% @doc The nodes for a key, the best first, each with the same share of all keys ({@link placement_rendezvous}). The answer depends on the key and the nodes alone,
%% so every node gives the same; a node more or less moves only the keys that it gets or had.
-spec node_for(Key :: term(), [node()]) -> [node()].
node_for(Key, Nodes) -> placement_rendezvous:ranked(Key, [{Node, 1} || Node <- placement_query:distinct(Nodes)]).

%% @doc The same with shares in proportion to a number that nodes have, such as `mem_total'. Nodes of which it is not known are left out: use an attribute that does not change.
-spec node_for(Key :: term(), [node()], Weight :: placement_entry:name()) -> [node()].
node_for(Key, Nodes, Weight) ->
    Views = attributes(Nodes, [Weight]),
    placement_rendezvous:ranked(Key, [{Node, Value} || {Node, #{attributes := #{Weight := {ok, Value, _, _, _}}}} <- maps:to_list(Views), is_number(Value)]).

%%% Leases

%% @doc Asks a node for a lease ({@link placement_lease:reserve/4}); its options are `ttl', `require' and `timeout'.
-spec reserve(node(), placement_lease:claims(), #{ttl => pos_integer(), timeout => pos_integer(), require => placement_pred:predicate()}) ->
          {ok, lease()} | {error, {bad_query, string()} | placement_lease:bad_claim() | {refused, placement_lease:refusal()} | nodedown | no_server | timeout}.
reserve(Node, Claims, Options) ->
    case placement_pred:compile(maps:get(require, Options, [])) of
        {ok, Compiled} -> placement_lease:reserve(Node, Claims, placement_pred:at_target(Compiled), Options);
        {error, Text} -> {error, {bad_query, unicode:characters_to_list(Text)}}
    end.

%% @doc Asks several nodes at once, each for its claims: all leases or none ({@link placement_lease:reserve_all/3}). Options as of {@link reserve/3}.
-spec reserve_all([{node(), placement_lease:claims()}], placement_pred:predicate(), #{ttl => pos_integer(), timeout => pos_integer()}) ->
          {ok, [lease()]} | {error, {bad_query, string()} | placement_lease:bad_claim()
                                    | [{node(), placement_lease:bad_claim() | {refused, placement_lease:refusal()} | nodedown | no_server | timeout}]}.
reserve_all(Wanted, Require, Options) ->
    case placement_pred:compile(Require) of
        {ok, Compiled} -> placement_lease:reserve_all(Wanted, placement_pred:at_target(Compiled), Options);
        {error, Text} -> {error, {bad_query, unicode:characters_to_list(Text)}}
    end.

%% @doc Gives a lease back.
-spec release(lease()) -> ok.
release(Lease) -> placement_lease:release(Lease).

%% @doc Lets a lease live for so many milliseconds from now. One that was handed over lives as long as its process, whatever this says.
-spec renew(lease(), pos_integer()) -> ok | {error, ended | nodedown | no_server | timeout}.
renew(Lease, TtlMs) -> placement_lease:renew(Lease, TtlMs).

%% @doc Hands a lease over to a process of its node, with which it ends.
-spec hand_over(lease(), pid()) -> ok | {error, ended | nodedown | no_server | timeout}.
hand_over(Lease, Pid) -> placement_lease:hand_over(Lease, Pid).

%% @doc Chooses among all connected nodes, reserves, starts the process there and hands the lease over to it.
-spec spawn(placement_query:query(), {module(), atom(), [term()]}) -> {ok, pid(), #{node := node(), refused := [{node(), term()}]}} | {error, placement_choose:error() | placement_lease:bad_claim() | {busy, list()}}.
spawn(Query, Call) -> spawn(Query, Call, #{}).

%% @doc The same; options are `nodes' and `claims' ({@link placement_lease:claims()}). A node that refuses, because others came first, makes room for the next
%% best, three in all; then the error names what each said. The process calls nothing before its lease was handed over to it; if that fails it is killed (`{no_lease, Why}').
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
    %% Others of this node may choose before that node has answered.
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

%% A node that begins later than we wait makes a process that never hears `go': meanwhile another node may have begun.
begun_at(Node, {Module, Function, Arguments} = Call, Lease) ->
    try erpc:call(Node, ?MODULE, begun, [self(), Lease, Call], ?SPAWN_MS) of
        {ok, Pid} ->
            Pid ! {self(), go},
            {ok, Pid};
        {error, _} = Error -> Error
    catch
        %% A node of 0.2.0 or before: what it begins too late stays.
        error:{exception, undef, [{?MODULE, begun, _, _} | _]} -> with_lease(Lease, erpc:call(Node, erlang, spawn, [Module, Function, Arguments], ?SPAWN_MS))
    end.

%% @private On the chosen node.
-spec begun(Caller :: pid(), lease(), {module(), atom(), [term()]}) -> {ok, pid()} | {error, {no_lease, ended | nodedown | no_server | timeout}}.
begun(Caller, Lease, Call) -> with_lease(Lease, erlang:spawn(fun() -> called(Caller, Call) end)).

%% The caller waits for the process, so after twice that time it says nothing any more.
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
            %% Nothing would count it: it must not stay.
            true = exit(Pid, kill),
            ok = release(Lease),
            {error, {no_lease, Reason}}
    end.

%%% Processes that exist once

%% @doc Starts a process that exists once among some nodes ({@link placement_child}): where the query says, again on another node when its node goes, or when the node has not
%% suited the query for the grace time and another does. The function returns `{ok, Pid}' as one of a supervisor does. Options: `name' (needed; `{via, placement, Name}' finds it on
%% each of its nodes), `nodes' (by default all that are connected now, and those that come later), `grace' (ms, 5000), `voters' (5): more than half of so many of the nodes must be connected for it to run,
%% `replace_after' and `settle' (ms, 30000 each): when a voter that is away loses its vote to another node, and how long both are asked then; `restart' (permanent) and `shutdown' (5000) as of a supervisor's child.
-spec child(placement_query:query(), {module(), atom(), [term()]}, placement_child:options()) ->
          {ok, pid()} | {error, {bad_option, atom(), term()} | {bad_query, string()} | {exists, pid()} | no_majority | not_started}.
child(Query, Call, Options) -> placement_child:start(Query, Call, Options).

%% @doc Starts such a process as a child of a scope, any term, with the specification and the results of a supervisor's child ({@link placement_scope:start_child/2}). Its name is `{Scope, Id}'.
-spec start_child(Scope :: term(), placement_scope:child_spec()) ->
          {ok, pid()} | {error, {already_started, pid()} | {missing, id | start} | {bad_option, atom(), term()} | {bad_query, string()} | no_majority | not_started}.
start_child(Scope, Spec) -> placement_scope:start_child(Scope, Spec).

%% @doc The children of a scope. Called on one of their nodes.
-spec which_children(Scope :: term()) -> [{Id :: term(), pid() | restarting, worker | supervisor, [module()] | dynamic}].
which_children(Scope) -> placement_scope:which_children(Scope).

%% @doc How many children a scope has.
-spec count_children(Scope :: term()) -> [{specs | active | supervisors | workers, non_neg_integer()}].
count_children(Scope) -> placement_scope:count_children(Scope).

%% @doc Ends a child of a scope for good. Called on one of its nodes.
-spec terminate_child(Scope :: term(), Id :: term()) -> ok | {error, not_found | no_majority}.
terminate_child(Scope, Id) -> placement_scope:terminate_child(Scope, Id).

%% @doc Ends such a process for good. Called on one of its nodes.
-spec delete_child(placement_child:name()) -> ok | {error, no_such_child | no_majority}.
delete_child(Name) -> placement_child:delete(Name).

%% @doc The processes that this node may run, and where they run.
-spec children() -> [{placement_child:name(), node() | none, pid() | none}].
children() -> placement_child:children().

%% @doc For `{via, placement, Name}': the process of that name.
-spec whereis_name(placement_child:name()) -> pid() | undefined.
whereis_name(Name) -> placement_child:whereis_name(Name).

%% @doc For `{via, placement, Name}'.
-spec send(placement_child:name(), Message :: term()) -> pid().
send(Name, Message) ->
    case whereis_name(Name) of
        undefined -> exit({badarg, {Name, Message}});
        Pid ->
            Pid ! Message,
            Pid
    end.

%% @doc Names are those of {@link child/3} alone.
-spec register_name(placement_child:name(), pid()) -> no.
register_name(_, _) -> no.

%% @doc Does nothing: a name ends with its process.
-spec unregister_name(placement_child:name()) -> ok.
unregister_name(_) -> ok.

%% @doc The fencing number of a child that runs on this node ({@link placement_child:fence/1}): give it to what the child writes to, and let that refuse lower ones.
-spec fence(placement_child:name()) -> {ok, integer()} | none.
fence(Name) -> placement_child:fence(Name).

%%% Emptying a node

%% @doc Empties this node.
-spec drain() -> {ok, placement_drain:result()} | {error, already_draining}.
drain() -> placement_drain:run(#{}).

%% @doc Empties a node.
-spec drain(node()) -> {ok, placement_drain:result()} | {error, already_draining | nodedown | no_placement | timeout | term()}.
drain(Node) -> drain(Node, #{}).

%% @doc Moves each willing process of a node to another one, with its state and the messages that wait for it ({@link placement_drain}): the children of {@link child/3}, and gen_servers and
%% gen_statems that export `placement_handoff/3'. Nothing new comes to the node after ({@link undrain/0} there). Options: `at_once' (moves under way, 8), `timeout' (ms, 60000), after which what has
%% not moved stays, and `tell', a pid that hears how far it is.
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

%% @doc Lets processes come to this node again, after a drain.
-spec undrain() -> ok.
undrain() -> placement_drain:undo().

%%% Attributes of this node

%% @doc An attribute that counts its living owners, of which the caller is one from now on.
-spec own(placement_entry:name()) -> ok | {error, term()}.
own(Name) -> placement_attr:own(Name, count, self()).

%% @doc An attribute that vanishes with the calling process. Of several owners the newest living one's value counts.
-spec own(placement_entry:name(), Value :: term()) -> ok | {error, term()}.
own(Name, Value) -> placement_attr:own(Name, {value, Value}, self()).

%% @doc Takes it back.
-spec disown(placement_entry:name()) -> ok.
disown(Name) -> placement_attr:disown(Name, self()).

%% @doc Sets the taints of this node, any terms; none with `[]'. It refuses every choice and lease that does not tolerate them all (`{tolerates, Taints}').
-spec taint([Taint :: term()]) -> ok.
taint(Taints) when is_list(Taints) -> ok = placement_attr:insert(taints, placement_builtin:taints(Taints)).

%% @doc Adds an attribute; the entry is as in a configuration file ({@link placement_entry}).
-spec insert(placement_entry:name(), Entry :: term()) -> ok | {error, unicode:chardata()}.
insert(Name, Entry) -> placement_attr:insert(Name, Entry).

%% @doc Adds a value with options, such as its unit.
-spec insert(placement_entry:name(), Value :: term(), placement_entry:options()) -> ok | {error, unicode:chardata()}.
insert(Name, Value, Options) -> placement_attr:insert(Name, {static, Value, Options}).

%% @doc Changes an attribute that is there.
-spec update(placement_entry:name(), Entry :: term()) -> ok | {error, unicode:chardata()}.
update(Name, Entry) -> placement_attr:update(Name, Entry).

%% @doc Removes an attribute.
-spec delete(placement_entry:name()) -> ok.
delete(Name) -> placement_attr:delete(Name).

%% @doc The names of this node's attributes.
-spec attributes() -> [placement_entry:name()].
attributes() -> placement_attr:names().

%% @doc Attributes of nodes, with the age and the unit of each, or why it is unknown.
-spec attributes([node()], [placement_entry:name()]) -> #{node() => placement_cache:view()}.
attributes(Nodes, Names) -> placement_cache:fetch(placement_query:distinct(Nodes), Names, #{}).

%% @doc Lets nodes tell of changes instead of asking them ({@link placement_cache:follow/3}).
-spec follow([node()], [placement_entry:name()], EveryMs :: pos_integer()) -> ok.
follow(Nodes, Names, EveryMs) -> placement_cache:follow(Nodes, Names, EveryMs).

%% @doc Ends that.
-spec unfollow([node()]) -> ok.
unfollow(Nodes) -> placement_cache:unfollow(Nodes).

%%% Topology

%% @doc The tree that this node chooses by.
-spec topology() -> placement_tree:tree() | none.
topology() -> placement_topology:tree().

%% @doc Its number; 0 without one.
-spec epoch() -> non_neg_integer().
epoch() -> placement_topology:epoch().

%% @doc The part of the tree in which a node is, of those into which the tree first divides; `undefined' for a node that it does not hold. As `{placement, site}' it is
%% a value of the option `sites' of teleport's broadcasts.
-spec site(node()) -> Site :: pos_integer() | undefined.
site(Node) ->
    case placement_tree:branch(topology(), Node) of
        {ok, Site} -> Site;
        unknown -> undefined
    end.

%% @doc Chooses by this tree from now on.
-spec set_topology(placement_tree:tree()) -> {ok, Epoch :: pos_integer()}.
set_topology(Tree) -> placement_topology:set(Tree).

%% @doc The same on other nodes, too; those that did not take it, or have a newer one already, are named.
-spec set_topology(placement_tree:tree(), [node()]) -> {ok, Epoch :: pos_integer(), Without :: [node()]}.
set_topology(Tree, Nodes) -> placement_topology:publish(Tree, Nodes).

%% @doc The tree of what the nodes themselves say of their places: their declared path, Slurm's, or region and zone ({@link placement_place}).
-spec declared_topology([node(), ...]) -> {ok, placement_tree:tree()} | {error, {no_place, [node(), ...]} | placement_tree:error()}.
declared_topology(Nodes) -> placement_place:tree(placement_query:distinct(Nodes)).

%% @doc Adds a node to the tree, here and on all nodes of the tree that are connected, at its declared path; or, with `probe', where it belongs by what it measures on its way down from the root, which takes about a second for each
%% group on that way.
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

%% The shortest of some batches: what else runs there makes the others longer.
measured(Node, Other) ->
    try erpc:call(Node, placement_probe_pair, run, [Other, ?PROBE_BATCHES, ?PROBE_MESSAGES, ?PROBE_MS, none], 2 * ?PROBE_MS) of
        Batches -> {ok, lists:min(Batches)}
    catch
        %% A node that is down is not on the way.
        _:_ -> unknown
    end.

%% @doc Removes a node from the tree, here and on all nodes of the tree that are connected.
-spec leave(node()) -> {ok, Epoch :: non_neg_integer()} | {error, too_many_changes}.
leave(Node) -> placement_topology:leave(Node).

%%% Measuring and planning

%% @doc Measures the round-trip times of every pair of nodes ({@link placement_probe:measure/2}); {@link placement_cluster} makes a tree of them.
-spec probe([node()], placement_probe:options()) ->
          {ok, placement_probe:measured()} | {error, {bad_option, atom(), term()} | no_pairs | {unreachable, [{node(), term()}]}}.
probe(Nodes, Options) -> placement_probe:measure(Nodes, Options).

%% @doc Master, submasters and workers shaped like the tree of nodes ({@link placement_plan:plan/2}). `workers' and `submasters' may be queries, too: then those
%% nodes of the tree are taken that suit.
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

%% @doc Which process goes to which node, given who talks to whom and how far the nodes are from each other ({@link placement_map:map/3}). It starts and moves nothing.
-spec map(placement_map:graph(), placement_tree:tree() | none, placement_map:options()) -> {ok, placement_map:mapping()} | {error, placement_map:error()}.
map(Graph, Tree, Options) -> placement_map:map(Graph, Tree, Options).

%% @doc Samples for so many milliseconds how many bytes these processes send to each other ({@link placement_observe}): a graph for {@link map/3} and {@link advise/2}, and which
%% of them could not be traced. Nothing is traced before or after.
-spec observe([pid()], Ms :: pos_integer()) -> {ok, placement_map:graph(), placement_observe:seen()} | {error, {bad_pids | bad_ms, term()}}.
observe(Pids, Ms) -> placement_observe:observe(Pids, Ms).

%% @doc Which of the processes of a graph would better run on another node of the tree in use ({@link placement_moves}): what each move saves, and over which link. It moves nothing.
-spec advise(placement_map:graph(), placement_moves:options()) -> {ok, [placement_moves:move()]} | {error, no_topology | placement_map:error()}.
advise(Graph, Options) ->
    case topology() of
        none -> {error, no_topology};
        Tree -> placement_moves:moves(Graph, Tree, Options)
    end.

%% @doc Pairs of nodes that talk much and sit far apart ({@link placement_advise}), and the nodes of which that is not known.
-spec advise(placement_choose:nodes_spec()) -> {ok, [placement_advise:advice()], Without :: [node()]} | {error, no_topology | {bad_nodes, string()}}.
advise(Nodes) ->
    case placement_choose:candidates(Nodes) of
        {ok, Found} -> placement_advise:advise(Found);
        {error, Text} -> {error, {bad_nodes, Text}}
    end.
