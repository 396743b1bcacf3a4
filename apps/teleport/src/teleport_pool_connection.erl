%% SPDX-License-Identifier: Apache-2.0
%% @doc The opening end of a pool's connection: reads the replies, and wakes waiting senders when there is room.
%%
%% Messages and requests are sent through its queue ({@link teleport_pool_queue}). The other end
%% ({@link teleport_pool_delivery}, which describes the protocol) sends only replies. This process never waits for
%% another one, so replies are always read, and two nodes that send to each other at full speed cannot deadlock.
%%
%% Callers monitor this process. It exits when the connection is lost or the node goes down. When it is told to close,
%% or when its supervisor shuts it down, queued messages are written and delivered first.
-module(teleport_pool_connection).
-behaviour(gen_server).

-include_lib("kernel/include/net_address.hrl").

-export([start_link/2, close/1]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-record(connection, {node :: node(),
                     manager :: pid(),
                     socket :: gen_tcp:socket() | undefined,
                     queue :: teleport_pool_queue:queue() | undefined,
                     %% Aliases of the senders that wait for space in the queue.
                     waiting = #{} :: #{reference() => []},
                     stage = open :: open | closing | delivered}).
%% `delivered': everything in the queue has been delivered, but replies may still arrive.

-define(OPEN_MS, 7000).
%% This is longer than the other end waits for replies.
-define(CLOSE_MS, 7000).
-define(ACTIVE, 16).
%% gen builds the tag of a reply to an alias as an improper list.
-dialyzer({no_improper_lists, [reply/1]}).

%% @doc The manager gets `{up, self(), Queue, Delivery}' as a cast when the connection is open.
-spec start_link(node(), Manager :: pid()) -> {ok, pid()} | {error, term()}.
start_link(Node, Manager) -> gen_server:start_link(?MODULE, {Node, Manager}, [{spawn_opt, [{fullsweep_after, 0}]}]).

%% @doc Makes the connection stop accepting messages, deliver those that are queued, and close.
-spec close(pid()) -> ok.
close(Connection) -> gen_server:cast(Connection, close).

%% @private
-spec init({node(), pid()}) -> {ok, #connection{}, {continue, open}}.
init({Node, Manager}) ->
    process_flag(trap_exit, true),
    {ok, #connection{node = Node, manager = Manager}, {continue, open}}.

%% @private
-spec handle_continue(open, #connection{}) -> {noreply, #connection{}} | {stop, term(), #connection{}}.
handle_continue(open, #connection{node = Node, manager = Manager} = State) ->
    try opened(Node, teleport_deadline:in(?OPEN_MS)) of
        {Socket, Delivery} ->
            true = monitor_node(Node, true),
            Queue = teleport_pool_queue:start_link(self(), Socket),
            gen_server:cast(Manager, {up, self(), Queue, Delivery}),
            {noreply, State#connection{socket = Socket, queue = Queue}}
    catch throw:Reason -> {stop, {shutdown, {not_open, Reason}}, State}
    end.

opened(Node, Deadline) ->
    {Ip, Port} = offered(Node, Deadline),
    Socket = case gen_tcp:connect(Ip, Port, teleport_pool_socket:options(Ip), teleport_deadline:left(Deadline)) of
                 {ok, Connected} -> Connected;
                 {error, Why} -> throw(text("~ts:~b: ~ts", [inet:ntoa(Ip), Port, teleport_pool_socket:text(Why)]))
             end,
    _ = case teleport_pool_handshake:call(Socket, Node, Deadline) of
            ok -> ok = inet:setopts(Socket, [{packet_size, 0}]);
            {error, Refused} -> throw(Refused)
        end,
    case gen_tcp:recv(Socket, 0, teleport_deadline:left(Deadline)) of
        {ok, Packet} ->
            [{ready, Delivery}] = teleport_pool_frame:decode(Packet),
            ok = inet:setopts(Socket, [{active, ?ACTIVE}]),
            {Socket, Delivery};
        {error, Closed} -> throw(text("closed after the handshake: ~ts", [teleport_pool_socket:text(Closed)]))
    end.

offered(Node, Deadline) ->
    Own = teleport_pool_handshake:version(),
    case offer(net_kernel:node_info(Node, address), Node, Deadline) of
        {ok, #{version := Own, ip := Ip, port := Port}} -> {Ip, Port};
        {ok, #{version := Other}} -> throw(text("it speaks version ~p of the pools, this node version ~b", [Other, Own]));
        {error, Reason} when is_binary(Reason) -> throw(Reason);
        Other -> throw(text("it told ~0tP instead of its port", [Other, 8]))
    end.

offer({ok, #net_address{protocol = tcp}}, Node, Deadline) ->
    try erpc:call(Node, teleport_pool_listener, offer, [node()], teleport_deadline:left(Deadline))
    catch
        error:{erpc, noconnection} -> {error, <<"not connected">>};
        error:{erpc, notsup} -> {error, <<"it cannot run functions, so it is not an Erlang node">>};
        error:{erpc, timeout} -> {error, <<"it did not tell its port in time">>};
        error:{exception, undef, _} -> {error, <<"it has no teleport, or an older one">>};
        exit:{exception, {noproc, _}} -> {error, <<"teleport does not run there">>};
        _:_ -> {error, <<"it could not tell its port">>}
    end;
offer(_, _, _) -> {error, <<"the distribution is encrypted, or is not over TCP">>}.

text(Format, Values) -> iolist_to_binary(io_lib:format(Format, Values)).

%% @private
-spec handle_call(term(), gen_server:from(), #connection{}) -> {reply, {error, badarg}, #connection{}}.
handle_call(_Request, _From, State) -> {reply, {error, badarg}, State}.

%% @private
-spec handle_cast(term(), #connection{}) -> {noreply, #connection{}}.
handle_cast(close, State) -> {noreply, closing(State)};
handle_cast(_Request, State) -> {noreply, State}.

%% Senders find the queue closed and wait until this process exits, so what they then send over the distribution
%% arrives after the messages queued here.
closing(#connection{stage = Stage} = State) when Stage =/= open -> State;
closing(#connection{queue = Queue} = State) ->
    ok = teleport_pool_queue:close(Queue),
    _ = erlang:send_after(?CLOSE_MS, self(), too_late),
    State#connection{stage = closing}.

%% @private
-spec handle_info(term(), #connection{}) ->
          {noreply, #connection{}} | {noreply, #connection{}, hibernate} | {stop, term(), #connection{}}.
handle_info({tcp, Socket, Packet}, #connection{socket = Socket} = State) ->
    %% A sender's request for space may have set a trace context here, which messages from a port do not clear.
    _ = teleport_trace:set(none),
    teleport_pool_socket:handled(Packet, lists:foldl(fun replied/2, State, teleport_pool_frame:decode(Packet)));
handle_info({tcp_passive, Socket}, #connection{socket = Socket} = State) ->
    _ = inet:setopts(Socket, [{active, ?ACTIVE}]),
    {noreply, State};
handle_info(room, State) ->
    {noreply, woken(State)};
handle_info({room, Alias}, #connection{stage = delivered} = State) ->
    Alias ! {Alias, gone},
    {noreply, State};
handle_info({room, Alias}, #connection{waiting = Waiting} = State) ->
    {noreply, woken(State#connection{waiting = Waiting#{Alias => []}})};
handle_info({no_room, Alias}, #connection{waiting = Waiting} = State) ->
    {noreply, State#connection{waiting = maps:remove(Alias, Waiting)}};
handle_info({tcp_closed, Socket}, #connection{socket = Socket} = State) ->
    {stop, {shutdown, closed}, State};
handle_info({tcp_error, Socket, Reason}, #connection{socket = Socket} = State) ->
    {stop, {shutdown, Reason}, State};
handle_info({nodedown, Node}, #connection{node = Node} = State) ->
    {stop, {shutdown, {nodedown, Node}}, State};
handle_info(too_late, State) ->
    {stop, {shutdown, too_late}, State};
handle_info({'EXIT', Writer, Reason}, #connection{queue = {Writer, _}} = State) when Reason =/= normal ->
    {stop, Reason, State};
handle_info(_Info, State) ->
    {noreply, State}.

%% Woken senders try again, and wait again if others were faster.
woken(#connection{waiting = Waiting, stage = open, queue = Queue} = State) when map_size(Waiting) > 0 ->
    case teleport_pool_queue:has_room(Queue) of
        true ->
            _ = [Alias ! {Alias, room} || Alias <- maps:keys(Waiting)],
            State#connection{waiting = #{}};
        false -> State
    end;
woken(State) -> State.

replied(leave, State) -> closing(State);
replied(delivered, #connection{manager = Manager, waiting = Waiting} = State) ->
    gen_server:cast(Manager, {delivered, self()}),
    _ = [Alias ! {Alias, gone} || Alias <- maps:keys(Waiting)],
    State#connection{stage = delivered, waiting = #{}};
replied(Answer, State) -> ok = reply(Answer), State.

%% An alias is deactivated by its first message, or when its caller gives up.
reply({Alias, Reply}) -> Alias ! {[alias | Alias], Reply}, ok;
reply({Alias, failed, Server, Reason}) -> Alias ! {'DOWN', Alias, process, Server, Reason}, ok.

%% @private
-spec terminate(term(), #connection{}) -> ok.
terminate(_, #connection{socket = undefined}) -> ok;
terminate(shutdown, #connection{socket = Socket} = State) ->
    teleport_pool_socket:close(Socket, teleport_pool_socket:last(fun handle_info/2, closing(State), teleport_deadline:in(?CLOSE_MS)));
terminate(Reason, #connection{socket = Socket}) -> teleport_pool_socket:close(Socket, Reason).
