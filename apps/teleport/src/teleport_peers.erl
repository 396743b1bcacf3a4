%% SPDX-License-Identifier: Apache-2.0
%% @doc The table of lanes, and who opens them: each node that is sent to has one process ({@link teleport_peer}), found or started here.
%%
%% `{out, Node, Class, Index}' is the row of a lane that is up and was opened here: senders read it themselves. `{in, ...}' is a
%% lane that a peer has opened. `{peer, Node}' is the process of a node. `{lost, Node}' counts what was never confirmed.
-module(teleport_peers).
-behaviour(gen_server).

-export([start_link/0, lane/5, reopened/6, peer/1, up/2, down/1, incoming/2, lost/2, all/0, lost/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(TABLE, ?MODULE).
-define(CALL_MS, 10000).

-record(peers, {incoming = #{} :: #{pid() => teleport_lane:id()},
                %% a lane that waits until the one before it has ended
                waiting = #{} :: #{Old :: pid() => {gen_server:from(), teleport_lane:id(), teleport_tx:tx()}}}).

%% @doc Started by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc The lane, opened if there is none: waits until the deadline.
-spec lane(node(), teleport_config:class(), non_neg_integer(), Deadline :: integer() | infinity, Open :: boolean()) ->
          {ok, teleport_tx:tx()} | {error, Reason :: term()}.
lane(Node, Class, Index, Deadline, Open) ->
    try ets:lookup(?TABLE, {out, Node, Class, Index}) of
        [{_, Tx}] -> {ok, Tx};
        [] when Open -> reopened(Node, Class, Index, none, Deadline, 3);
        [] -> {error, no_lane}
    catch
        error:badarg -> error({not_started, teleport})
    end.

%% @doc The lane that comes after this one, which is lost.
-spec reopened(node(), teleport_config:class(), non_neg_integer(), Lost :: none | pid(), Deadline :: integer() | infinity, Tries :: non_neg_integer()) ->
          {ok, teleport_tx:tx()} | {error, Reason :: term()}.
reopened(Node, _, _, _, _, 0) ->
    {error, {nodedown, Node}};
reopened(Node, Class, Index, Lost, Deadline, Tries) ->
    case peer(Node) of
        {ok, Peer} ->
            try gen_server:call(Peer, {lane, Class, Index, Lost}, left(Deadline))
            catch
                exit:{timeout, _} -> {error, timeout};
                %% It ended with its node; if the node is back, another one is started.
                exit:_ -> reopened(Node, Class, Index, Lost, Deadline, Tries - 1)
            end;
        {error, Reason} -> {error, Reason}
    end.

left(infinity) -> infinity;
left(Deadline) -> max(0, Deadline - erlang:monotonic_time(millisecond)).

%% @doc The process of a node.
-spec peer(node()) -> {ok, pid()} | {error, term()}.
peer(Node) ->
    case ets:lookup(?TABLE, {peer, Node}) of
        [{_, Pid}] -> {ok, Pid};
        [] -> gen_server:call(?MODULE, {peer, Node}, ?CALL_MS)
    end.

%% @doc A lane is up: senders find it from now on.
-spec up(teleport_lane:id(), teleport_tx:tx()) -> ok.
up({Node, Class, Index}, Tx) ->
    true = ets:insert(?TABLE, {{out, Node, Class, Index}, Tx}),
    ok.

%% @doc It is lost.
-spec down(teleport_lane:id()) -> ok.
down({Node, Class, Index}) ->
    true = ets:delete(?TABLE, {out, Node, Class, Index}),
    ok.

%% @doc A peer has opened this lane to us; the caller is its process. Returns when the lane that it replaces has ended.
-spec incoming(teleport_lane:id(), teleport_tx:tx()) -> ok.
incoming(Id, Tx) -> gen_server:call(?MODULE, {incoming, Id, Tx}, infinity).

%% @doc Counts messages to this node that were never confirmed.
-spec lost(node(), pos_integer()) -> ok.
lost(Node, Count) ->
    _ = ets:update_counter(?TABLE, {lost, Node}, Count, {{lost, Node}, 0}),
    ok.

%% @doc How many these are.
-spec lost() -> #{node() => pos_integer()}.
lost() -> maps:from_list([{Node, Count} || [Node, Count] <- ets:match(?TABLE, {{lost, '$1'}, '$2'})]).

%% @doc All lanes that are up.
-spec all() -> [{in | out, teleport_lane:id(), teleport_tx:tx()}].
all() ->
    try [{Way, {Node, Class, Index}, Tx} || {{Way, Node, Class, Index}, Tx} <- ets:tab2list(?TABLE)]
    catch error:badarg -> []
    end.

%% @private
-spec init([]) -> {ok, #peers{}}.
init([]) ->
    ?TABLE = ets:new(?TABLE, [named_table, public, {read_concurrency, true}]),
    {ok, #peers{}}.

%% @private
-spec handle_call(term(), gen_server:from(), #peers{}) -> {reply, term(), #peers{}} | {noreply, #peers{}}.
handle_call({peer, Node}, _From, State) ->
    case ets:lookup(?TABLE, {peer, Node}) of
        [{_, Pid}] -> {reply, {ok, Pid}, State};
        [] -> {reply, started(Node), State}
    end;
handle_call({incoming, {Node, Class, Index} = Id, Tx}, {Pid, _} = From, #peers{waiting = Waiting} = State) ->
    _ = monitor(process, Pid),
    case ets:lookup(?TABLE, {in, Node, Class, Index}) of
        [{_, OldTx}] ->
            Old = teleport_tx:pid(OldTx),
            Old ! {close, replaced},
            _ = given_up(Waiting, Old),
            {noreply, State#peers{waiting = Waiting#{Old => {From, Id, Tx}}}};
        [] ->
            {reply, ok, registered(Id, Tx, State)}
    end;
handle_call(_Request, _From, State) ->
    {reply, {error, badarg}, State}.

%% The peer has opened yet another one meanwhile.
given_up(Waiting, Old) ->
    case Waiting of
        #{Old := {{Pid, _}, _, _}} -> exit(Pid, kill);
        #{} -> true
    end.

started(Node) ->
    case supervisor:start_child(teleport_peer_sup, [Node]) of
        {ok, Pid} ->
            _ = monitor(process, Pid),
            true = ets:insert(?TABLE, {{peer, Node}, Pid}),
            {ok, Pid};
        {error, Reason} ->
            {error, Reason}
    end.

registered({Node, Class, Index} = Id, Tx, #peers{incoming = Incoming} = State) ->
    true = ets:insert(?TABLE, {{in, Node, Class, Index}, Tx}),
    State#peers{incoming = Incoming#{teleport_tx:pid(Tx) => Id}}.

%% @private
-spec handle_cast(term(), #peers{}) -> {noreply, #peers{}}.
handle_cast(_Request, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #peers{}) -> {noreply, #peers{}}.
handle_info({'DOWN', _, process, Pid, _}, #peers{incoming = Incoming} = State) ->
    true = ets:match_delete(?TABLE, {{peer, '_'}, Pid}),
    case maps:take(Pid, Incoming) of
        {{Node, Class, Index}, Rest} ->
            true = ets:delete(?TABLE, {in, Node, Class, Index}),
            {noreply, replaced(Pid, State#peers{incoming = Rest})};
        error ->
            {noreply, State}
    end;
handle_info(_Info, State) ->
    {noreply, State}.

replaced(Old, #peers{waiting = Waiting} = State) ->
    case maps:take(Old, Waiting) of
        {{{Pid, _} = From, Id, Tx}, Rest} ->
            Next = State#peers{waiting = Rest},
            case is_process_alive(Pid) of
                true -> gen_server:reply(From, ok), registered(Id, Tx, Next);
                false -> Next
            end;
        error -> State
    end.
