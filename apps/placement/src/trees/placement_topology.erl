%% SPDX-License-Identifier: Apache-2.0
%% @doc Stores the tree that this node uses for its choices: one tree at a time, with its epoch number.
%%
%% A choice reads the tree once and uses that version throughout, so it never sees an incomplete change. A node joins at a
%% declared path, or at a position found by measuring from the root downwards ({@link place/3}). Removing a node does not
%% affect the position of any other node. The other nodes of the tree are informed when a node joins or leaves. A new tree
%% is published only when it is complete. A tree with a higher epoch replaces one with a lower epoch. If two nodes publish
%% trees with the same epoch at the same time, the tree from the node with the greater name is kept, so all nodes end up
%% with the same tree.
-module(placement_topology).
-behaviour(gen_server).

-export([start_link/0, tree/0, epoch/0, current/0, set/1, publish/2, join/2, leave/1, place/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% The name of this module in the previous release. Nodes that run that release send their trees to it.
-define(SERVER, placement_epoch).
-define(KEY, {?MODULE, tree}).
-define(PUBLISH_MS, 5000).
-define(PUBLISH_TRIES, 3).
%% Any attempt may fail because another node makes a change at the same time.
-define(CHANGE_TRIES, 100).
-define(BACK_OFF_MS, 20).

%% Changes are applied one after another; `changing' is true while one is in progress.
-record(state, {changing = false :: boolean(), waiting = queue:new() :: queue:queue({gen_server:from(), change()})}).

-type change() :: {join, node(), placement_tree:path()} | {leave, node()}.
-type stamp() :: {Epoch :: non_neg_integer(), node() | none}.

%% @doc Starts the server.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?SERVER}, ?MODULE, [], []).

%% @doc Returns the current tree. It is stored in a persistent term, because it rarely changes and every choice reads it.
-spec tree() -> placement_tree:tree() | none.
tree() -> element(2, current()).

%% @doc Returns the epoch number of the current tree, or 0 if there is no tree.
-spec epoch() -> non_neg_integer().
epoch() -> element(1, current()).

%% @doc Returns the current tree together with its epoch number.
-spec current() -> {Epoch :: non_neg_integer(), placement_tree:tree() | none}.
current() ->
    {{Epoch, _}, Tree} = stamped(),
    {Epoch, Tree}.

-spec stamped() -> {stamp(), placement_tree:tree() | none}.
stamped() -> persistent_term:get(?KEY, {{0, none}, none}).

%% @doc Makes this node use a tree, with the next epoch number.
-spec set(placement_tree:tree()) -> {ok, Epoch :: pos_integer()}.
set(Tree) ->
    {Epoch, _} = gen_server:call(?SERVER, {set, Tree, 0}),
    {ok, Epoch}.

%% @doc Makes this node and other nodes use a tree. If a node rejects it because it has a newer tree, the tree is published
%% again with a higher epoch than that one. `Without' contains the nodes that did not accept the tree.
-spec publish(placement_tree:tree(), [node()]) -> {ok, Epoch :: pos_integer(), Without :: [node()]}.
publish(Tree, Nodes) -> publish(Tree, placement_query:distinct(Nodes) -- [node()], 0, ?PUBLISH_TRIES).

publish(Tree, Others, After, Tries) ->
    {Epoch, _} = Stamp = gen_server:call(?SERVER, {set, Tree, After}),
    {Replies, _} = gen_server:multi_call(Others, ?SERVER, {publish, Stamp, Tree}, ?PUBLISH_MS),
    case [Newer || {_, {error, {newer, Newer}}} <- Replies] of
        [_ | _] = Epochs when Tries > 1 -> publish(Tree, Others, lists:max(Epochs), Tries - 1);
        _ -> {ok, Epoch, Others -- [Node || {Node, ok} <- Replies]}
    end.

%% @doc Adds a node at a path, on this node and on all connected nodes of the tree. If one of them has a newer tree, that
%% tree is changed instead.
-spec join(node(), placement_tree:path()) -> {ok, Epoch :: pos_integer()} | {error, placement_tree:error() | too_many_changes}.
join(Node, Path) -> gen_server:call(?SERVER, {join, Node, Path}, infinity).

%% @doc Removes a node from the tree, on this node, on all connected nodes of the tree, and on the removed node.
-spec leave(node()) -> {ok, Epoch :: non_neg_integer()} | {error, too_many_changes}.
leave(Node) -> gen_server:call(?SERVER, {leave, Node}, infinity).

%% Runs in a separate process, so that this node can receive trees from other nodes in the meantime.
changed(Change, After, Tries) ->
    case gen_server:call(?SERVER, {change, Change, After}) of
        {changed, {Epoch, _} = Stamp, Tree, Concerned} ->
            Connected = maps:from_keys(nodes(connected), true),
            {Replies, _} = gen_server:multi_call([Node || Node <- Concerned, is_map_key(Node, Connected)], ?SERVER, {publish, Stamp, Tree}, ?PUBLISH_MS),
            case [{Newer, Node} || {Node, {error, {newer, Newer}}} <- Replies] of
                [] -> {ok, Epoch};
                Ahead when Tries > 1 ->
                    {Newest, Node} = lists:max(Ahead),
                    ok = take_from(Node),
                    receive after rand:uniform(?BACK_OFF_MS) -> changed(Change, Newest, Tries - 1) end;
                _ -> {error, too_many_changes}
            end;
        Unchanged -> Unchanged
    end.

%% Fetches the newer tree from a node. A node with an older release does not send its tree; in that case this node's tree is
%% changed, and gets a higher epoch than both trees.
take_from(Node) ->
    {Replies, _} = gen_server:multi_call([Node], ?SERVER, stamped, ?PUBLISH_MS),
    _ = [gen_server:call(?SERVER, {publish, Stamp, Tree}) || {_, {{_, _} = Stamp, Tree}} <- Replies],
    ok.

%% @doc Finds a position in the tree for a node that does not declare one. Starting at the root, it measures the time to
%% one node of each child and continues in the nearest child, as long as the new node is as near to that child as the
%% child's own nodes are to each other. This takes one measurement for each child of every group along the path. `Measure'
%% returns the time to a node in microseconds, or `unknown'. `Floor' is the largest difference between logarithms of times
%% on the same level (0.15).
-spec place(placement_tree:tree(), fun((node()) -> {ok, Us :: number()} | unknown), Floor :: number()) -> {ok, placement_tree:path()} | unknown.
place(Tree, Measure, Floor) ->
    case placement_tree:root(Tree) of
        {group, _, _, []} -> unknown;
        {group, _, _, Children} -> descend(Children, Measure, Floor, [])
    end.

descend(Children, Measure, Floor, Way) ->
    Measured = [{Us, Child} || Child <- Children, {ok, Us} <- [Measure(hd(placement_tree:members(Child)))]],
    case lists:keysort(1, Measured) of
        [] when Way =:= [] -> unknown;
        [{Us, {group, Name, Labels, Inner}} | _] ->
            case is_inside(Us, Labels, Inner, Floor) of
                true -> descend(Inner, Measure, Floor, [Name | Way]);
                false -> {ok, lists:reverse(Way)}
            end;
        _ -> {ok, lists:reverse(Way)}
    end.

is_inside(Us, #{median_us := Median}, _, Floor) -> math:log(max(Us, 0.001)) =< math:log(max(Median, 0.001)) + Floor;
%% No times are measured between the children of a group that has only one, so the times of that child are used.
is_inside(Us, _, [{group, _, Labels, Inner}], Floor) -> is_inside(Us, Labels, Inner, Floor);
is_inside(_, _, _, _) -> false.

%% @private
-spec init(term()) -> {ok, #state{}}.
init(_) -> {ok, #state{}}.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}} | {noreply, #state{}}.
handle_call({set, Tree, After}, _, State) ->
    {changed, Stamp, _, _} = used(Tree, After, []),
    {reply, Stamp, State};
handle_call({publish, {Epoch, Node} = Stamp, Tree}, _, State) when is_integer(Epoch), is_atom(Node) ->
    case stamped() of
        {Own, _} when Own < Stamp ->
            ok = persistent_term:put(?KEY, {Stamp, Tree}),
            {reply, ok, State};
        {Stamp, _} -> {reply, ok, State};
        {{Newer, _}, _} -> {reply, {error, {newer, Newer}}, State}
    end;
handle_call(stamped, _, State) -> {reply, stamped(), State};
handle_call({change, Change, After}, _, State) -> {reply, change(Change, After), State};
handle_call(Change, From, #state{waiting = Waiting} = State) when element(1, Change) =:= join; element(1, Change) =:= leave ->
    {noreply, next(State#state{waiting = queue:in({From, Change}, Waiting)})};
handle_call(Other, _, State) -> {reply, {error, {unknown_request, Other}}, State}.

next(#state{changing = true} = State) -> State;
next(#state{waiting = Waiting} = State) ->
    case queue:out(Waiting) of
        {empty, _} -> State;
        {{value, {From, Change}}, Rest} ->
            _ = spawn_link(fun() ->
                gen_server:reply(From, changed(Change, 0, ?CHANGE_TRIES)),
                gen_server:cast(?SERVER, changed)
            end),
            State#state{changing = true, waiting = Rest}
    end.

change({join, Node, Path}, After) ->
    Tree = case tree() of none -> placement_tree:empty(); Known -> Known end,
    case placement_tree:insert(Tree, Node, Path) of
        {ok, New} -> used(New, After, placement_tree:nodes(New));
        {error, _} = Error -> Error
    end;
change({leave, Node}, After) ->
    Tree = tree(),
    case placement_tree:is_member(Tree, Node) of
        true -> used(placement_tree:remove(Tree, Node), After, placement_tree:nodes(Tree));
        false -> {ok, epoch()}
    end.

used(Tree, After, Concerned) ->
    Stamp = {max(epoch(), After) + 1, node()},
    ok = persistent_term:put(?KEY, {Stamp, Tree}),
    {changed, Stamp, Tree, Concerned}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(changed, State) -> {noreply, next(State#state{changing = false})};
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(_, State) -> {noreply, State}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

measured_tree() ->
    {ok, Tree} = placement_tree:from_vertex(
                   {group, root, #{median_us => 800.0},
                    [{group, left, #{median_us => 100.0}, [{leaf, a}, {leaf, b}]},
                     {group, right, #{median_us => 400.0}, [{group, far, #{median_us => 90.0}, [{leaf, c}, {leaf, d}]}, {leaf, e}]}]}),
    Tree.

measure(Times) -> fun(Node) -> case Times of #{Node := Us} -> {ok, Us}; _ -> unknown end end.

place_test_() ->
    [?_assertEqual(Want, place(measured_tree(), measure(Times), 0.15))
     || {Want, Times} <- [{{ok, [left]}, #{a => 105, c => 810}}, {{ok, [right, far]}, #{a => 800, c => 95, e => 390}},
                          {{ok, [right]}, #{a => 800, c => 400, e => 410}}, {{ok, []}, #{a => 790, c => 820}}, {unknown, #{}}]].
-endif.
