%% SPDX-License-Identifier: Apache-2.0
%% @doc A pool is a few TCP connections of teleport's own to a node, in addition to stock distribution, so that large
%% messages delay neither the node's ticks nor each other.
%%
%% A pool is opened in the background when a process first needs it, and is closed together with the distribution connection. No
%% pool is opened if Beamway carries the node's distribution, if its distribution is encrypted, if the node does not run this
%% version of teleport, or if its port cannot be reached. In that case messages use the distribution, the reason is logged once,
%% and teleport tries again after a delay. Each node opens its own pools: a connection carries the messages and requests of the
%% node that opened it, and the replies to those requests.
%%
%% <b>Order.</b> Each key is assigned to one connection. Messages of a process that has sent over the distribution before
%% ({@link note/1}) do not overtake its earlier ones: the process sends a marker over the distribution and then its first message
%% on a connection, and the other end delivers that message only after the marker has arrived. When a pool is shut down cleanly,
%% its senders wait until everything in it has been delivered before they get `gone'. When a pool is lost, this is logged, and
%% messages in flight may be lost or arrive late.
%%
%% Only this process opens and closes pools. `persistent_term' contains the number of connections to each node,
%% `carried' if the distribution alone carries everything, or `none'. All of these are immediate terms, because with
%% any other term ERTS would scan all heaps on the node whenever a pool is closed. The connections themselves are in
%% the table.
-module(teleport_pool).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, lookup/1, note/1, send/5, owner/2, request/6, cancel/3, is_too_big/1, count/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).
-export_type([pool/0, refusal/0]).

-opaque pool() :: {node(), Size :: pos_integer()}.
-type refusal() :: gone | {error, overload | timeout | {too_big, Bytes :: pos_integer()}}.

-record(connection, {key :: {node(), Index :: pos_integer()},
                     pid :: pid(),
                     queue :: teleport_pool_queue:queue(),
                     delivery :: pid()}).

-record(peer, {stage = idle :: idle | opening | open | closing | paused | carried,
               %% The processes of the connections that are being opened or are open.
               pids = [] :: [pid()],
               up = [] :: [#connection{}],
               failures = 0 :: non_neg_integer(),
               opened_ms = 0 :: integer(),
               reason = <<>> :: binary()}).

-define(TABLE, ?MODULE).
-define(MARK(Node), {?MODULE, Node}).
-define(PAUSE_MS, 1000).
-define(PAUSE_MAX_MS, 60000).
-define(STABLE_MS, 60000).
-define(LOOK_MS, 1).

%% @doc Started by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% ---- senders ----

%% @doc Returns the node's pool. With `none', the caller must send over the distribution, which this function has already
%% noted where that matters ({@link note/1}). Never waits: a pool that does not exist yet is opened in the background if possible.
-spec lookup(node()) -> none | pool().
lookup(Node) ->
    case persistent_term:get(?MARK(Node), unknown) of
        carried -> none;
        Size when is_integer(Size) -> {Node, Size};
        Closed ->
            _ = [gen_server:cast(?MODULE, {want, Node}) || Closed =:= unknown, lists:member(Node, nodes(connected))],
            ok = note(Node),
            none
    end.

%% @doc Notes that the calling process is about to send over the distribution, so that messages that it later sends through a pool
%% arrive after those.
-spec note(node()) -> ok.
note(Node) ->
    _ = put(?MARK(Node), []),
    ok.

noted({Node, _}, gone) -> ok = note(Node), gone;
noted(_, Result) -> Result.

%% @doc Sends to a process on the node, and waits up to `Wait' for room. Messages with the same key keep their order.
%% `gone' means that the pool has been closed: send over the distribution instead.
-spec send(pool(), To :: pid() | atom(), Key :: term(), Message :: term(), Wait :: timeout()) -> ok | refusal().
send(Pool, To, Key, Message, Wait) ->
    noted(Pool, post(connection(Pool, Key), {To, Message}, Wait)).

%% @doc Returns the process that serves the connection for this key. Once that process has exited, messages that have not
%% arrived are lost.
-spec owner(pool(), Key :: term()) -> pid() | gone.
owner(Pool, Key) ->
    case connection(Pool, Key) of
        gone -> gone;
        #connection{pid = Pid} -> Pid
    end.

%% @doc Calls a server on the node. `Ref' is a monitor of a local process, with an alias. The caller gets exactly one
%% message: `{[alias | Ref], Reply}'; `{'DOWN', Ref, process, Server, Reason}', where `Reason' is what a monitor of the
%% server would report; or, if the connection is lost, `{'DOWN', Ref, process, _, _}'. A caller that gives up calls
%% `demonitor(Ref, [flush])' and {@link cancel/3}.
-spec request(pool(), To :: pid() | atom(), Key :: term(), Label :: term(), Request :: term(), Wait :: timeout()) ->
          {ok, Ref :: reference()} | refusal().
request(Pool, To, Key, Label, Request, Wait) ->
    noted(Pool, case connection(Pool, Key) of
                    gone -> gone;
                    #connection{pid = Pid} = Connection ->
                        Ref = monitor(process, Pid, [{alias, reply_demonitor}]),
                        case post(Connection, {To, self(), Ref, Label, Request}, Wait) of
                            ok -> {ok, Ref};
                            Refusal ->
                                true = demonitor(Ref, [flush]),
                                Refusal
                        end
                end).

%% @doc Informs the node that the caller no longer waits for this reply, unless the connection is full.
-spec cancel(pool(), Key :: term(), Ref :: reference()) -> ok.
-dialyzer({no_improper_lists, [cancel/3]}).
cancel(Pool, Key, Ref) ->
    _ = post(connection(Pool, Key), [cancel | Ref], 0),
    ok.

connection({Node, Size}, Key) ->
    try ets:lookup(?TABLE, {Node, erlang:phash2(Key, Size) + 1}) of
        [Connection] -> Connection;
        [] -> gone
    catch error:badarg -> gone
    end.

post(gone, _, _) -> gone;
post(#connection{key = {Node, _}, pid = Pid} = Connection, Bare, Wait) ->
    Term = case teleport_trace:current() of {ok, Context} -> {traced, Context, Bare}; none -> Bare end,
    Marked = get(?MARK(Node)),
    case Marked =:= undefined orelse lists:member(Pid, Marked) of
        true -> queue(Connection, teleport_pool_frame:encode(Term), none, Wait);
        false ->
            Marker = make_ref(),
            queue(Connection, teleport_pool_frame:encode({marked, Marker, Term}), Marker, Wait)
    end.

queue(#connection{queue = Queue} = Connection, {Frame, Bytes}, Marker, Wait) ->
    case not is_too_big(Bytes) andalso admitted(Connection, Bytes, Wait) of
        false -> {error, {too_big, Bytes}};
        ok ->
            case Marker =:= none orelse marked(Marker, Connection, Wait) of
                true -> teleport_pool_queue:put(Queue, Bytes, Frame);
                Refusal ->
                    ok = teleport_pool_queue:remove(Queue, Bytes),
                    Refusal
            end;
        Refusal -> Refusal
    end.

admitted(#connection{queue = Queue} = Connection, Bytes, Wait) ->
    case teleport_pool_queue:add(Queue, Bytes) of
        true -> ok;
        false -> full(Connection, Bytes, Wait)
    end.

%% The queue is full or closed. A closed queue never has room, so its sender waits until the connection's process exits.
full(#connection{pid = Pid}, _, 0) ->
    case is_process_alive(Pid) of
        true -> {error, overload};
        false -> gone
    end;
full(#connection{pid = Pid} = Connection, Bytes, Wait) ->
    Deadline = teleport_deadline:in(Wait),
    Ref = monitor(process, Pid, [{alias, reply_demonitor}]),
    Pid ! {room, Ref},
    receive
        {Ref, room} -> admitted(Connection, Bytes, max(1, teleport_deadline:left(Deadline)));
        {Ref, gone} -> gone;
        {'DOWN', Ref, process, _, _} -> gone
    after Wait ->
        true = demonitor(Ref, [flush]),
        receive {Ref, _} -> ok after 0 -> ok end,
        Pid ! {no_room, Ref},
        {error, timeout}
    end.

%% The distribution keeps the order of everything that a process sends to a node, so the marker arrives after all of
%% it. The queue has admitted the message by now, so no marker is sent without its message.
marked(Marker, #connection{key = {Node, _}, pid = Pid, delivery = Delivery} = Connection, Wait) ->
    case erlang:send(Delivery, {'$teleport_marker', Marker}, [noconnect | [nosuspend || Wait =/= infinity]]) of
        ok ->
            _ = put(?MARK(Node), [Pid | get(?MARK(Node))]),
            true;
        noconnect -> gone;
        nosuspend when Wait =:= 0 -> {error, overload};
        nosuspend when Wait < ?LOOK_MS + 1 -> {error, timeout};
        nosuspend -> receive after ?LOOK_MS -> marked(Marker, Connection, Wait - ?LOOK_MS) end
    end.

%% @private Returns whether a message or a reply is too large for a pool.
-spec is_too_big(Bytes :: pos_integer()) -> boolean().
is_too_big(Bytes) when Bytes < 65536 -> false;
is_too_big(Bytes) -> Bytes > teleport_config:get(max_message_bytes).

%% @doc Returns the number of nodes to which this node has a pool. Does not ask any process.
-spec count() -> non_neg_integer().
count() -> length([Node || {?MARK(Node), Size} <- persistent_term:get(), is_integer(Size)]).

%% ---- the process ----

%% @private
-spec init([]) -> {ok, #{node() => #peer{}}}.
init([]) ->
    process_flag(trap_exit, true),
    ok = forget_all(),
    ok = net_kernel:monitor_nodes(true, [{node_type, all}]),
    {ok, #{}}.

forget_all() ->
    true = ets:delete_all_objects(?TABLE),
    lists:foreach(fun unmark/1, [Node || {?MARK(Node), _} <- persistent_term:get()]).

mark(Node, What) -> persistent_term:put(?MARK(Node), What).

unmark(Node) ->
    _ = persistent_term:erase(?MARK(Node)),
    ok.

%% @private
-spec handle_call(term(), gen_server:from(), Peers) -> {reply, {error, badarg}, Peers}.
handle_call(_Request, _From, Peers) -> {reply, {error, badarg}, Peers}.

%% @private
-spec handle_cast(term(), Peers) -> {noreply, Peers}.
handle_cast({want, Node}, Peers) ->
    Before = maps:get(Node, Peers, #peer{}),
    case Before#peer.stage =:= idle andalso lists:member(Node, nodes(connected)) of
        true -> {noreply, Peers#{Node => wanted(Node, Before, teleport_config:get(pool))}};
        false -> {noreply, Peers}
    end;
handle_cast({up, Pid, Queue, Delivery}, Peers) ->
    {noreply, at(Pid, Peers, fun(Node, Peer) -> up(Node, Pid, Queue, Delivery, Peer) end)};
handle_cast({delivered, Pid}, Peers) ->
    {noreply, at(Pid, Peers, fun(_, Peer) -> without(Pid, Peer) end)};
handle_cast(_Request, Peers) -> {noreply, Peers}.

%% @private
-spec handle_info(term(), Peers) -> {noreply, Peers}.
handle_info({'DOWN', _, process, Pid, Reason}, Peers) ->
    {noreply, at(Pid, Peers, fun(Node, Peer) -> down(Node, Pid, Reason, Peer) end)};
handle_info({retry, Node}, Peers) ->
    case Peers of
        #{Node := #peer{stage = paused} = Peer} ->
            ok = unmark(Node),
            {noreply, Peers#{Node := Peer#peer{stage = idle}}};
        #{} -> {noreply, Peers}
    end;
handle_info({nodedown, Node, _}, Peers) ->
    {noreply, gone(Node, Peers)};
handle_info(_Info, Peers) ->
    {noreply, Peers}.

%% @private
-spec terminate(term(), Peers :: map()) -> ok.
terminate(_Reason, _Peers) -> forget_all().

at(Pid, Peers, Change) ->
    case [Node || {Node, #peer{pids = Pids}} <- maps:to_list(Peers), lists:member(Pid, Pids)] of
        [Node] -> Peers#{Node := Change(Node, map_get(Node, Peers))};
        [] -> Peers
    end.

wanted(Node, Peer, Size) ->
    case Size > 0 andalso is_stock(Node) of
        true ->
            ok = mark(Node, none),
            Peer#peer{stage = opening, pids = [started(Node) || _ <- lists:seq(1, Size)], up = []};
        %% Only the distribution is used until the connection to the node is closed.
        false ->
            ok = mark(Node, carried),
            Peer#peer{stage = carried}
    end.

%% A pool requires that the distribution uses one of OTP's own sockets. Encryption is checked when a connection is
%% opened.
is_stock(Node) ->
    case lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)) of
        {Node, Port} when is_port(Port) -> erlang:port_info(Port, name) =:= {name, "tcp_inet"};
        _ -> false
    end.

started(Node) ->
    {ok, Pid} = supervisor:start_child(teleport_pool_connection_sup, [Node, self()]),
    _ = monitor(process, Pid),
    Pid.

up(Node, Pid, Queue, Delivery, #peer{stage = opening, pids = Pids, up = Before} = Peer) ->
    Size = length(Before) + 1,
    Up = [#connection{key = {Node, Size}, pid = Pid, queue = Queue, delivery = Delivery} | Before],
    case length(Pids) of
        Size ->
            true = ets:insert(?TABLE, Up),
            ok = mark(Node, Size),
            ?LOG_INFO("teleport: a pool of ~b connections to ~ts is open", [Size, Node]),
            Peer#peer{stage = open, up = Up, opened_ms = now_ms(), reason = <<>>};
        _ -> Peer#peer{up = Up}
    end;
up(_, _, _, _, Peer) -> Peer.

without(Pid, #peer{up = Up} = Peer) ->
    {Gone, Left} = lists:partition(fun(#connection{pid = Of}) -> Of =:= Pid end, Up),
    _ = [ets:delete(?TABLE, Key) || #connection{key = Key} <- Gone],
    Peer#peer{up = Left}.

down(Node, Pid, Reason, #peer{pids = Pids, stage = Stage} = Peer) ->
    Others = lists:delete(Pid, Pids),
    lists:foreach(fun teleport_pool_connection:close/1, Others),
    Left = (without(Pid, Peer))#peer{pids = Others},
    case Stage of
        opening -> not_open(Node, why(Reason), Left);
        open ->
            ok = lost(Node, Reason),
            closed(Node, Left#peer{stage = closing, reason = why(Reason)});
        closing -> closed(Node, Left)
    end.

closed(Node, #peer{pids = [], opened_ms = OpenedMs} = Peer) ->
    Failures = case now_ms() - OpenedMs > ?STABLE_MS of true -> 0; false -> Peer#peer.failures end,
    paused(Node, Peer#peer{failures = Failures + 1});
closed(_, Peer) -> Peer.

not_open(Node, Reason, #peer{failures = Failures, reason = Before} = Peer) ->
    _ = Reason =/= Before andalso
        ?LOG_NOTICE("teleport: messages to ~ts go over its distribution: no pool of connections: ~ts", [Node, Reason]),
    paused(Node, Peer#peer{pids = [], up = [], failures = Failures + 1, reason = Reason}).

paused(Node, #peer{failures = Failures} = Peer) ->
    ok = mark(Node, none),
    _ = erlang:send_after(pause_ms(Failures), self(), {retry, Node}),
    Peer#peer{stage = paused}.

%% Half of the pause is random, so that nodes that lost the same peer do not reconnect at the same moment.
pause_ms(Failures) ->
    Full = min(?PAUSE_MAX_MS, ?PAUSE_MS bsl min(Failures - 1, 20)),
    Full div 2 + rand:uniform(Full div 2).

%% Connections close on their own. A sender that still uses one gets `gone'.
gone(Node, Peers) ->
    ok = unmark(Node),
    #peer{up = Up} = maps:get(Node, Peers, #peer{}),
    _ = [ets:delete(?TABLE, Key) || #connection{key = Key} <- Up],
    maps:remove(Node, Peers).

lost(Node, {shutdown, closed}) ->
    ?LOG_INFO("teleport: ~ts has closed the pool of connections to it", [Node]);
lost(Node, {shutdown, {nodedown, _}}) ->
    ?LOG_INFO("teleport: the pool of connections to ~ts has ended with its distribution", [Node]);
lost(Node, Reason) ->
    ?LOG_WARNING("teleport: a connection of the pool to ~ts is lost with the messages that were under way: ~ts",
                 [Node, why(Reason)]).

why({shutdown, {not_open, Reason}}) -> Reason;
why({shutdown, Reason}) -> why(Reason);
why(Reason) when is_atom(Reason) -> teleport_pool_socket:text(Reason);
why(Reason) -> iolist_to_binary(io_lib:format("~0tP", [Reason, 8])).

now_ms() -> erlang:monotonic_time(millisecond).
