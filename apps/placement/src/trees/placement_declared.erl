%% SPDX-License-Identifier: Apache-2.0
%% @doc Keeps the tree up to date while nodes come and go, if the option `topology' is `declared'.
%%
%% Each node on which this server runs sends its declared place ({@link placement_place:own_path/0}) to every node that
%% connects to it. A moment after a change, the node with the smallest name publishes a tree of all these nodes, so a
%% cluster whose nodes all start at the same time gets only a few trees. In a partition each side has its own tree, and
%% when the sides are connected again, they get a common tree.
-module(placement_declared).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2]).

%% How long changes are collected before a tree is published.
-define(SETTLE_MS, 500).

%% `others' contains the places of the connected nodes that run this server.
-record(state, {path = [] :: placement_tree:path(), others = #{} :: #{node() => placement_tree:path()}, timer = none :: none | reference()}).

%% @doc Starts the server.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @private
-spec init(term()) -> {ok, #state{}, {continue, start}}.
init(_) ->
    ok = net_kernel:monitor_nodes(true),
    {ok, #state{}, {continue, start}}.

%% @private Determining the place may take a while, because an external program may have to run.
-spec handle_continue(start, #state{}) -> {noreply, #state{}} | {stop, normal, #state{}}.
handle_continue(start, State) ->
    Path = placement_place:own_path(),
    case placement_tree:from_paths([{node(), Path}]) of
        {ok, _} ->
            Started = State#state{path = Path},
            _ = [announce(Node, Started) || Node <- nodes()],
            {noreply, changed(Started)};
        {error, Error} ->
            ?LOG_ERROR("placement: this node is not in the declared tree: ~ts", [placement_tree:format_error(Error)]),
            {stop, normal, State}
    end.

announce(Node, #state{path = Path}) -> gen_server:cast({?MODULE, Node}, {announce, node(), Path}).

changed(#state{timer = none} = State) -> State#state{timer = erlang:start_timer(?SETTLE_MS, self(), publish)};
changed(State) -> State.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call(Other, _, State) -> {reply, {error, {unknown_request, Other}}, State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({announce, Node, Path}, #state{path = Own} = State) when is_atom(Node) ->
    %% The other node may have started this server after the nodes were connected, and needs an answer.
    ok = gen_server:cast({?MODULE, Node}, {place, node(), Own}),
    {noreply, placed(Node, Path, State)};
handle_cast({place, Node, Path}, State) when is_atom(Node) -> {noreply, placed(Node, Path, State)};
handle_cast(_, State) -> {noreply, State}.

placed(Node, Path, #state{others = Others} = State) ->
    case {placement_tree:from_paths([{Node, Path}]), lists:member(Node, nodes())} of
        {{ok, _}, true} -> changed(State#state{others = Others#{Node => Path}});
        %% The connection was lost in the meantime.
        {{ok, _}, false} -> State;
        {{error, Error}, _} ->
            ?LOG_WARNING("placement: ~tp is not in the declared tree: ~ts", [Node, placement_tree:format_error(Error)]),
            State
    end.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({nodeup, Node}, State) ->
    ok = announce(Node, State),
    {noreply, State};
handle_info({nodedown, Node}, #state{others = Others} = State) ->
    case Others of
        #{Node := _} -> {noreply, changed(State#state{others = maps:remove(Node, Others)})};
        #{} -> {noreply, State}
    end;
handle_info({timeout, Timer, publish}, #state{timer = Timer} = State) -> {noreply, published(State#state{timer = none})};
handle_info(_, State) -> {noreply, State}.

published(#state{path = Path, others = Others} = State) ->
    Places = lists:sort(maps:to_list(Others#{node() => Path})),
    case Places of
        [{Node, _} | _] when Node =:= node() ->
            {ok, Tree} = placement_tree:from_paths(Places),
            case placement_topology:publish(Tree, [Each || {Each, _} <- Places]) of
                {ok, _, []} -> State;
                {ok, _, _} -> changed(State)
            end;
        _ -> State
    end.
