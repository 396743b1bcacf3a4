%% SPDX-License-Identifier: Apache-2.0
%% @doc The table of lanes, and who opens them: each node that is sent to has one process ({@link teleport_peer}), found or started here.
%%
%% `{out, Node, Class, Index}' is the row of a lane that is up and was opened here: senders read it themselves. `{in, ...}' is a
%% lane that a peer has opened. `{peer, Node}' is the process of a node, `{count, Node, Class}' how many lanes of a class it has. `{lost, Node}'
%% counts what was never confirmed, `{proxy_dropped, Node}' what proxies could not send. `{carried, Node}' is whether Beamway carries the distribution to a node, as long as the node's process lives.
%% `{plain, Node}' is there while a node has no teleport: `open', or `closing' while messages to it change to lanes
%% ({@link teleport_fallback}); `{plain_count, Node}' has the counters of these messages. `{offered, Node}' is there once a node has asked where to connect.
%% These four outlive the process of their node, and go when the node has not been connected for an hour.
%%
%% `{late, Node}': somebody has waited in vain for a lane to a node that is connected, and until when nobody need wait again.
%%
%% The number of lanes decides over which lane a key goes. So a node keeps the numbers that were configured when its process was started: with other
%% ones a message could overtake an earlier one of its key on another lane.
%%
%% The table belongs to the supervisor. It is there as long as the application runs, so senders find it while the registry is restarted, and wait.
-module(teleport_peers).
-behaviour(gen_server).

-export([start_link/0, lane/5, next/5, peer/2, is_carried/1, settle/2, carried/2, configure/2, counts/2, not_up/1, up/2, down/1, offered/0, offered/1, incoming/3, lost/2, all/0, lost/0, count_dropped/1, proxy_dropped/0]).
-export([late/1, is_late/1, leave/2, plain/1, set_plain/2, count_plain/2, plain_all/0, plain_counts/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).
-export_type([plain_counts/0]).

-type plain_counts() :: #{sent := non_neg_integer(), dropped := non_neg_integer()}.

-define(TABLE, ?MODULE).
-define(PAUSE_MS, 10).
-define(TRIES, 3).
-define(FEW, 64).
-define(LATE_MS, 30000).
%% What is known of a node that is gone: how long it is kept, for who reads the counters, and how often nodes that are gone are looked for.
-define(KEEP_MS, 3600000).
-define(LOOK_MS, 600000).

-record(peers, {incoming = #{} :: #{pid() => teleport_lane:id()},
                %% a lane that waits until the one before it has ended
                waiting = #{} :: #{Old :: pid() => {gen_server:from(), teleport_lane:id(), teleport_sender:tx()}},
                %% lanes of a node's process that was killed, until they have ended
                left = #{} :: #{Lane :: pid() => {teleport_lane:id(), teleport_sender:tx(), Reason :: term()}},
                %% of the newest lane that came, also after its end
                turns = #{} :: #{teleport_lane:id() => integer()},
                %% nodes of rows that are kept, by when they were found to be gone
                gone = #{} :: #{node() => SinceMs :: integer()},
                %% with so many, those of nodes that are gone are looked for
                many = ?FEW :: pos_integer()}).

%% @doc Started by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc The lane of this key, opened if there is none: waits until the deadline. `Configured' is how many lanes of the class the options name: it is
%% the right number nearly always, and then one look at the table is enough.
-spec lane(node(), teleport_config:class(), Key :: non_neg_integer(), Configured :: pos_integer(), teleport_deadline:deadline()) ->
          {ok, teleport_sender:tx()} | {error, Reason :: term()}.
lane(Node, Class, Key, Configured, Deadline) ->
    case look({out, Node, Class, Key rem Configured}) of
        [{_, Tx, Configured}] -> {ok, Tx};
        _ -> settled(Node, Class, Key, Deadline)
    end.

settled(Node, Class, Key, Deadline) ->
    case [Up || {_, Count} <- look({count, Node, Class}), Up <- look({out, Node, Class, Key rem Count})] of
        [{_, Tx, _}] -> {ok, Tx};
        [] ->
            case plain(Node) of
                open -> {error, {no_teleport, Node}};
                _ -> next(Node, Class, Key, none, Deadline)
            end
    end.

%% @doc The lane of this key that comes after this one, which is lost. `prime': tried at once.
-spec next(node(), teleport_config:class(), Key :: non_neg_integer(), Lost :: none | prime | pid(), teleport_deadline:deadline()) ->
          {ok, teleport_sender:tx()} | {error, Reason :: term()}.
next(Node, Class, Key, Lost, Deadline) -> next(Node, Class, Key, Lost, Deadline, ?TRIES).

next(Node, _, _, _, _, 0) ->
    {error, {nodedown, Node}};
next(Node, Class, Key, Lost, Deadline, Tries) ->
    Again = fun() -> next(Node, Class, Key, Lost, Deadline, Tries - 1) end,
    case peer(Node, Deadline) of
        {ok, Peer} ->
            case look({count, Node, Class}) of
                [{_, Count}] -> asked(Peer, {lane, Class, Key rem Count, Lost, Deadline}, Deadline, Again);
                [] -> later(Deadline, Again)
            end;
        {error, Reason} -> {error, Reason}
    end.

asked(Peer, Request, Deadline, Again) ->
    try gen_server:call(Peer, Request, teleport_deadline:left(Deadline))
    catch
        exit:{timeout, _} -> {error, timeout};
        %% It ended with its node; if the node is back, another one is started.
        exit:_ -> later(Deadline, Again)
    end.

%% @doc The process of a node.
-spec peer(node(), teleport_deadline:deadline()) -> {ok, pid()} | {error, term()}.
peer(Node, Deadline) ->
    case look({peer, Node}) of
        [{_, Pid}] -> {ok, Pid};
        [] ->
            Again = fun() -> peer(Node, Deadline) end,
            case asked(?MODULE, {peer, Node}, Deadline, Again) of
                restarting -> later(Deadline, Again);
                Answer -> Answer
            end
    end.

%% @doc Whether Beamway carries the distribution to a node. `unknown' while nobody has sent to it, or it is not connected.
-spec is_carried(node()) -> boolean() | unknown.
is_carried(Node) ->
    case look({carried, Node}) of
        [{_, IsCarried}] -> IsCarried;
        [] -> unknown
    end.

%% @doc Connects to it, and waits until the deadline for what {@link is_carried/1} says then.
-spec settle(node(), teleport_deadline:deadline()) -> boolean() | {error, term()}.
settle(Node, Deadline) -> settle(Node, Deadline, ?TRIES).

settle(Node, _, 0) -> {error, {nodedown, Node}};
settle(Node, Deadline, Tries) ->
    case peer(Node, Deadline) of
        {ok, Peer} -> asked(Peer, is_carried, Deadline, fun() -> settle(Node, Deadline, Tries - 1) end);
        {error, Reason} -> {error, Reason}
    end.

%% @doc The node is connected. Called by its process.
-spec carried(node(), boolean()) -> ok.
carried(Node, IsCarried) -> gen_server:call(?MODULE, {carried, Node, IsCarried}, infinity).

%% @doc Changes options, one change after the other; what is sent from now on takes the new way.
-spec configure(all | node(), map()) -> ok | {error, [teleport_config:problem(), ...]}.
configure(Which, Options) ->
    _ = look(configure),
    gen_server:call(?MODULE, {configure, Which, Options}, infinity).

%% Something is being restarted, or was not yet noticed. Without the application the table is gone, and the next look fails.
later(Deadline, Again) ->
    case teleport_deadline:left(Deadline) of
        0 -> {error, timeout};
        _ -> receive after ?PAUSE_MS -> Again() end
    end.

look(Key) ->
    try ets:lookup(?TABLE, Key)
    catch error:badarg -> error({not_started, teleport})
    end.

%% @doc How many lanes there are, or will be, to this node.
-spec counts(node(), teleport_deadline:deadline()) -> {ok, #{teleport_config:class() => pos_integer()}} | {error, term()}.
counts(Node, Deadline) ->
    case peer(Node, Deadline) of
        {ok, _} ->
            case maps:from_list([{Class, Count} || Class <- [control, normal, bulk], {_, Count} <- look({count, Node, Class})]) of
                Counts when map_size(Counts) =:= 3 -> {ok, Counts};
                _ -> {error, {nodedown, Node}}
            end;
        {error, Reason} -> {error, Reason}
    end.

%% @doc The lanes that are not up although somebody has wanted them. A node that is going away has none.
-spec not_up(TimeoutMs :: pos_integer()) -> [#{node := node(), class := teleport_config:class(), index := non_neg_integer(), reason := term()}].
not_up(TimeoutMs) ->
    lists:append([try gen_server:call(Peer, not_up, TimeoutMs) catch exit:_ -> [] end || [Peer] <- ets:match(?TABLE, {{peer, '_'}, '$1'})]).

%% @doc A lane is up: senders find it from now on.
-spec up(teleport_lane:id(), teleport_sender:tx()) -> ok.
up({Node, Class, Index}, Tx) ->
    _ = [ets:insert(?TABLE, {{out, Node, Class, Index}, Tx, Count}) || {_, Count} <- ets:lookup(?TABLE, {count, Node, Class})],
    ok.

%% @doc It is lost.
-spec down(teleport_lane:id()) -> ok.
down({Node, Class, Index}) ->
    true = ets:delete(?TABLE, {out, Node, Class, Index}),
    ok.

%% @doc This node may open lanes to us from now on.
-spec offered(node()) -> ok.
offered(Node) ->
    true = ets:insert(?TABLE, {{offered, Node}}),
    ok.

%% @doc The connected nodes that may have lanes to us, open or not.
-spec offered() -> [node()].
offered() ->
    Connected = nodes(connected),
    [Node || [Node] <- ets:match(?TABLE, {{offered, '$1'}}), lists:member(Node, Connected)].

%% @doc A peer has opened this lane to us; the caller is its process. Returns when the lane that it replaces has ended. Lanes may come here in another
%% order than the peer has opened them in: `Turn' grows in that order. `superseded': a later one was here, so the peer has lost this one, and nothing of it may be delivered.
-spec incoming(teleport_lane:id(), teleport_sender:tx(), Turn :: integer()) -> ok | superseded.
incoming(Id, Tx, Turn) -> gen_server:call(?MODULE, {incoming, Id, Tx, Turn}, infinity).

%% @doc Somebody has waited in vain for a lane to this node. It is opened in the background all the same.
-spec late(node()) -> ok.
late(Node) ->
    _ = [ets:insert(?TABLE, {{late, Node}, teleport_deadline:in(?LATE_MS)}) || _ <- look({peer, Node})],
    ok.

%% @doc Whether that was a short while ago, and the node has not been disconnected since.
-spec is_late(node()) -> boolean().
is_late(Node) ->
    case look({late, Node}) of
        [{_, Until}] -> teleport_deadline:left(Until) > 0;
        [] -> false
    end.

%% @doc Counts messages to this node that were never confirmed.
-spec lost(node(), pos_integer()) -> ok.
lost(Node, Count) ->
    _ = ets:update_counter(?TABLE, {lost, Node}, Count, {{lost, Node}, 0}),
    ok.

%% @doc How many these are.
-spec lost() -> #{node() => pos_integer()}.
lost() -> maps:from_list([{Node, Count} || [Node, Count] <- ets:match(?TABLE, {{lost, '$1'}, '$2'})]).

%% @doc Counts a message of a proxy to this node that could not be sent.
-spec count_dropped(node()) -> ok.
count_dropped(Node) ->
    _ = ets:update_counter(?TABLE, {proxy_dropped, Node}, 1, {{proxy_dropped, Node}, 0}),
    ok.

%% @doc How many these are.
-spec proxy_dropped() -> #{node() => pos_integer()}.
proxy_dropped() -> maps:from_list([{Node, Count} || [Node, Count] <- ets:match(?TABLE, {{proxy_dropped, '$1'}, '$2'})]).

%% @doc Teleport is being stopped on this node. Waits until what was sent there by lanes is acknowledged.
-spec leave(node(), TimeoutMs :: pos_integer()) -> ok.
leave(Node, TimeoutMs) ->
    _ = [try gen_server:call(Peer, leave, TimeoutMs) catch exit:_ -> ok end || {_, Peer} <- look({peer, Node})],
    ok.

%% @doc Whether messages to this node go by distribution.
-spec plain(node()) -> open | closing | no.
plain(Node) ->
    case look({plain, Node}) of
        [{_, State}] -> State;
        [] -> no
    end.

%% @doc Called by the process of the node.
-spec set_plain(node(), open | closing | no) -> ok.
set_plain(Node, no) ->
    true = ets:delete(?TABLE, {plain, Node}),
    ok;
set_plain(Node, State) ->
    _ = ets:insert_new(?TABLE, {{plain_count, Node}, counters:new(2, [write_concurrency])}),
    true = ets:insert(?TABLE, {{plain, Node}, State}),
    ok.

%% @doc Counts a message that went by distribution, or was dropped.
-spec count_plain(node(), sent | dropped) -> ok.
count_plain(Node, What) ->
    _ = [counters:add(Counters, plain_index(What), 1) || {_, Counters} <- look({plain_count, Node})],
    ok.

plain_index(sent) -> 1;
plain_index(dropped) -> 2.

%% @doc The nodes to which messages go by distribution.
-spec plain_all() -> [node()].
plain_all() -> [Node || [Node] <- ets:match(?TABLE, {{plain, '$1'}, '_'})].

%% @doc What went by distribution since the start, also to nodes that have lanes now.
-spec plain_counts() -> #{node() => plain_counts()}.
plain_counts() ->
    maps:from_list([{Node, maps:from_list([{What, counters:get(Counters, plain_index(What))} || What <- [sent, dropped]])}
                    || [Node, Counters] <- ets:match(?TABLE, {{plain_count, '$1'}, '$2'})]).

%% @doc All lanes that are up.
-spec all() -> [{in | out, teleport_lane:id(), teleport_sender:tx()}].
all() ->
    try [{element(1, Key), {element(2, Key), element(3, Key), element(4, Key)}, element(2, Row)}
         || Row <- ets:tab2list(?TABLE), Key <- [element(1, Row)], tuple_size(Key) =:= 4]
    catch error:badarg -> []
    end.

%% @private
-spec init([]) -> {ok, #peers{}}.
init([]) ->
    process_flag(trap_exit, true),
    ok = teleport_way:forget_all(),
    %% What the one before has left. What was lost stays lost, and what was sent by distribution may still be under way.
    _ = ets:select_delete(?TABLE, [{{{Kept, '_'}, '_'}, [], [false]} || Kept <- [lost, proxy_dropped, plain, plain_count]] ++ [{'_', [], [true]}]),
    lists:foreach(fun unwatched/1, plain_all()),
    {ok, look_later(#peers{})}.

look_later(State) ->
    _ = erlang:send_after(?LOOK_MS, self(), look),
    State.

%% @private
-spec handle_call(term(), gen_server:from(), #peers{}) -> {reply, term(), #peers{}} | {noreply, #peers{}}.
handle_call({peer, Node}, _From, State) ->
    case ets:lookup(?TABLE, {peer, Node}) of
        [{_, Pid}] -> {reply, {ok, Pid}, State};
        [] -> {reply, started(Node), State}
    end;
handle_call({carried, Node, IsCarried}, {Pid, _}, State) ->
    case ets:lookup(?TABLE, {peer, Node}) of
        [{_, Pid}] ->
            true = ets:insert(?TABLE, {{carried, Node}, IsCarried}),
            ok = teleport_way:mark(Node, IsCarried, teleport_config:of_node(Node));
        _ -> ok
    end,
    {reply, ok, State};
handle_call({configure, Which, Options}, _From, State) ->
    Result = teleport_config:set(Which, Options),
    lists:foreach(fun([Node, IsCarried]) -> ok = teleport_way:mark(Node, IsCarried, teleport_config:of_node(Node)) end, ets:match(?TABLE, {{carried, '$1'}, '$2'})),
    {reply, Result, State};
handle_call({incoming, Id, _, Turn}, _, #peers{turns = Turns} = State) when is_map_key(Id, Turns), Turn < map_get(Id, Turns) ->
    {reply, superseded, State};
handle_call({incoming, {Node, Class, Index} = Id, Tx, Turn}, {Pid, _} = From, #peers{waiting = Waiting} = Before) ->
    _ = monitor(process, Pid),
    State = taken(Id, Turn, Before),
    case ets:lookup(?TABLE, {in, Node, Class, Index}) of
        [{_, OldTx}] ->
            Old = teleport_sender:pid(OldTx),
            Old ! {close, replaced},
            _ = given_up(Waiting, Old),
            {noreply, State#peers{waiting = Waiting#{Old => {From, Id, Tx}}}};
        [] ->
            {reply, ok, registered(Id, Tx, State)}
    end;
handle_call(_Request, _From, State) ->
    {reply, {error, badarg}, State}.

%% Nobody says that a node without lanes is gone.
taken(Id, Turn, #peers{turns = Turns, many = Many} = State) when map_size(Turns) < Many ->
    State#peers{turns = Turns#{Id => Turn}};
taken(Id, Turn, #peers{turns = Turns} = State) ->
    Connected = maps:from_keys(nodes(connected), []),
    Left = maps:filter(fun({Node, _, _}, _) -> is_map_key(Node, Connected) end, Turns),
    State#peers{turns = Left#{Id => Turn}, many = max(?FEW, 2 * map_size(Left) + 1)}.

%% The peer has opened yet another one meanwhile.
given_up(Waiting, Old) ->
    case Waiting of
        #{Old := {{Pid, _}, _, _}} -> exit(Pid, kill);
        #{} -> true
    end.

%% The peers' supervisor may be about to be started, too.
started(Node) when node() =:= nonode@nohost ->
    {error, {nodedown, Node}};
started(Node) ->
    #{lanes := Lanes} = teleport_config:of_node(Node),
    %% Before the process, which may open a lane at once: up/2 needs them.
    true = ets:insert(?TABLE, [{{count, Node, Class}, Count} || {Class, Count} <- maps:to_list(Lanes)]),
    try supervisor:start_child(teleport_peer_sup, [Node]) of
        {ok, Pid} ->
            _ = monitor(process, Pid),
            true = ets:insert(?TABLE, {{peer, Node}, Pid}),
            {ok, Pid};
        {error, Reason} ->
            {error, Reason}
    catch
        exit:_ -> restarting
    end.

registered({Node, Class, Index} = Id, Tx, #peers{incoming = Incoming} = State) ->
    true = ets:insert(?TABLE, {{in, Node, Class, Index}, Tx}),
    State#peers{incoming = Incoming#{teleport_sender:pid(Tx) => Id}}.

%% @private
-spec handle_cast(term(), #peers{}) -> {noreply, #peers{}}.
handle_cast(_Request, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #peers{}) -> {noreply, #peers{}}.
handle_info({'DOWN', _, process, Pid, Reason}, #peers{incoming = Incoming, left = Left} = State) ->
    case {Incoming, Left} of
        {#{Pid := {Node, Class, Index}}, _} ->
            true = ets:delete(?TABLE, {in, Node, Class, Index}),
            {noreply, replaced(Pid, State#peers{incoming = maps:remove(Pid, Incoming)})};
        {_, #{Pid := {Id, Tx, Why}}} ->
            ok = teleport_peer:finished(Tx, Id, Why),
            {noreply, State#peers{left = maps:remove(Pid, Left)}};
        {_, _} ->
            {noreply, lists:foldl(fun([Node], Before) -> peer_ended(Node, Reason, Before) end, State, ets:match(?TABLE, {{peer, '$1'}, Pid}))}
    end;
handle_info(look, State) ->
    {noreply, look_later(forget(?KEEP_MS, State))};
handle_info({forget, KeepMs}, State) ->
    {noreply, forget(KeepMs, State)};
handle_info(_Info, State) ->
    {noreply, State}.

%% Where nodes are named by address, those that are gone never return, and their rows and labels would grow with each deployment.
forget(KeepMs, #peers{gone = Gone} = State) ->
    Now = erlang:monotonic_time(millisecond),
    Here = maps:from_keys(nodes(connected) ++ lists:append(ets:match(?TABLE, {{peer, '$1'}, '_'})), []),
    Known = ets:match(?TABLE, {{offered, '$1'}}) ++ lists:append([ets:match(?TABLE, {{Row, '$1'}, '_'}) || Row <- [plain, plain_count, lost, proxy_dropped]]),
    Since = maps:from_list([{Node, maps:get(Node, Gone, Now)} || [Node] <- Known, not is_map_key(Node, Here)]),
    {Young, Old} = lists:partition(fun({_, At}) -> Now - At < KeepMs end, maps:to_list(Since)),
    _ = [ets:delete(?TABLE, {Row, Node}) || {Node, _} <- Old, Row <- [offered, plain, plain_count, lost, proxy_dropped]],
    State#peers{gone = maps:from_list(Young)}.

peer_ended(Node, Reason, State) ->
    true = ets:delete(?TABLE, {peer, Node}),
    ok = teleport_way:forget(Node),
    true = ets:delete(?TABLE, {carried, Node}),
    true = ets:delete(?TABLE, {late, Node}),
    true = ets:match_delete(?TABLE, {{count, Node, '_'}, '_'}),
    _ = [unwatched(Node) || plain(Node) =:= open],
    lists:foldl(fun([Class, Index, Tx], Before) -> left_behind({Node, Class, Index}, Tx, Reason, Before) end, State,
                ets:match(?TABLE, {{out, Node, '$1', '$2'}, '$3', '_'})).

%% A process that was killed has not taken its lanes out of the table, nor reported what they took along. They end with it. Until a lane has ended it takes
%% and delivers messages. If its senders found it closed before, they would send again what it delivers.
left_behind(Id, Tx, Reason, #peers{left = Left} = State) ->
    ok = down(Id),
    Pid = teleport_sender:pid(Tx),
    _ = monitor(process, Pid),
    State#peers{left = Left#{Pid => {Id, Tx, Reason}}}.

%% Nobody looks there for teleport now. Whoever sends next finds the way closed, and starts the process that opens it again and looks.
unwatched(Node) -> set_plain(Node, closing).

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

%% @private
-spec terminate(term(), #peers{}) -> ok.
terminate(_Reason, _State) -> teleport_way:forget_all().
