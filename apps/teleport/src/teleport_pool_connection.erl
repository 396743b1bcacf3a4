%% SPDX-License-Identifier: Apache-2.0
%% @doc The opening end of a pool's connection: reads the replies, and wakes waiting senders when there is room.
%%
%% Messages and requests are sent by its writer ({@link teleport_pool_writer}). The other end
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
                     writer :: pid() | undefined,
                     queue :: atomics:atomics_ref() | undefined,
                     %% aliases of senders that wait for room
                     waiting = #{} :: #{reference() => []},
                     stage = open :: open | closing | delivered}).
%% `delivered': everything in the queue has been delivered, but replies may still arrive.

-define(OPEN_MS, 7000).
%% This is longer than the other end waits for replies.
-define(CLOSE_MS, 7000).
-define(ACTIVE, 16).
-define(LARGE_BYTES, 1048576).
%% gen builds the tag of a reply to an alias as an improper list.
-dialyzer({no_improper_lists, [reply/1]}).

%% @doc The manager gets `{up, self(), Writer, Queue, Delivery}' as a cast when the connection is open.
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
-spec handle_continue(open | collect, #connection{}) -> {noreply, #connection{}} | {stop, term(), #connection{}}.
handle_continue(collect, State) ->
    true = erlang:garbage_collect(),
    {noreply, State};
handle_continue(open, #connection{node = Node, manager = Manager} = State) ->
    case opened(Node, teleport_deadline:in(?OPEN_MS)) of
        {ok, Socket, Delivery} ->
            true = monitor_node(Node, true),
            Queue = teleport_pool_queue:new(),
            {ok, Writer} = teleport_pool_writer:start_link(self(), Socket, Queue),
            gen_server:cast(Manager, {up, self(), Writer, Queue, Delivery}),
            {noreply, State#connection{socket = Socket, writer = Writer, queue = Queue}};
        {error, Reason} -> {stop, {shutdown, {not_open, Reason}}, State}
    end.

opened(Node, Deadline) ->
    case net_kernel:node_info(Node, address) of
        {ok, #net_address{protocol = tcp}} -> offered(offer(Node, Deadline), Node, Deadline);
        _ -> {error, <<"the distribution is encrypted, or is not over TCP">>}
    end.

offer(Node, Deadline) ->
    try erpc:call(Node, teleport_pool_listener, offer, [node()], teleport_deadline:left(Deadline))
    catch
        error:{erpc, noconnection} -> {error, <<"not connected">>};
        error:{erpc, notsup} -> {error, <<"it cannot run functions, so it is not an Erlang node">>};
        error:{erpc, timeout} -> {error, <<"it did not tell its port in time">>};
        error:{exception, undef, _} -> {error, <<"it has no teleport, or an older one">>};
        exit:{exception, {noproc, _}} -> {error, <<"teleport does not run there">>};
        _:_ -> {error, <<"it could not tell its port">>}
    end.

offered({ok, #{version := Version, ip := Ip, port := Port}}, Node, Deadline) ->
    case teleport_pool_handshake:version() of
        Version ->
            Options = teleport_pool_socket:options(Ip),
            Connected = gen_tcp:connect(Ip, Port, Options, teleport_deadline:left(Deadline)),
            connected(Connected, {Ip, Port}, Node, Deadline);
        Own -> {error, text("it speaks version ~p of the pools, this node version ~b", [Version, Own])}
    end;
offered({error, Reason}, _, _) when is_binary(Reason) -> {error, Reason};
offered(Other, _, _) -> {error, text("it told ~0tP instead of its port", [Other, 8])}.

connected({error, Reason}, {Ip, Port}, _, _) ->
    {error, text("~ts:~b: ~ts", [inet:ntoa(Ip), Port, teleport_pool_socket:text(Reason)])};
connected({ok, Socket}, _, Node, Deadline) ->
    case teleport_pool_handshake:call(Socket, Node, Deadline) of
        ok ->
            ok = inet:setopts(Socket, [{packet_size, 0}]),
            case gen_tcp:recv(Socket, 0, teleport_deadline:left(Deadline)) of
                {ok, Packet} ->
                    [{ready, Delivery}] = teleport_pool_frame:decode(Packet),
                    ok = inet:setopts(Socket, [{active, ?ACTIVE}]),
                    {ok, Socket, Delivery};
                {error, Reason} -> {error, text("closed after the handshake: ~ts", [teleport_pool_socket:text(Reason)])}
            end;
        {error, Reason} -> {error, Reason}
    end.

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
closing(#connection{queue = Queue, writer = Writer} = State) ->
    ok = teleport_pool_queue:close(Queue),
    ok = teleport_pool_writer:drain(Writer),
    _ = erlang:send_after(?CLOSE_MS, self(), too_late),
    State#connection{stage = closing}.

%% @private
-spec handle_info(term(), #connection{}) ->
          {noreply, #connection{}} | {noreply, #connection{}, {continue, collect}} | {stop, term(), #connection{}}.
handle_info({tcp, Socket, Packet}, #connection{socket = Socket} = State) ->
    %% A sender that asked for room may have brought a trace context, which messages from a port do not clear.
    _ = teleport_trace:set(none),
    Next = lists:foldl(fun replied/2, State, teleport_pool_frame:decode(Packet)),
    case byte_size(Packet) >= ?LARGE_BYTES of
        true -> {noreply, Next, {continue, collect}};
        false -> {noreply, Next}
    end;
handle_info({tcp_passive, Socket}, #connection{socket = Socket} = State) ->
    _ = inet:setopts(Socket, [{active, ?ACTIVE}]),
    {noreply, State};
handle_info(room, State) ->
    {noreply, woken(State)};
handle_info({room, Alias}, #connection{stage = delivered} = State) ->
    Alias ! {Alias, gone},
    {noreply, State};
handle_info({room, Alias}, #connection{waiting = Waiting, queue = Queue, writer = Writer} = State) ->
    ok = teleport_pool_queue:set_waiting(Queue, true),
    %% Makes a sleeping writer check whether a killed sender has left bytes in the count.
    _ = map_size(Waiting) =:= 0 andalso (Writer ! look),
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
handle_info({'EXIT', Writer, normal}, #connection{writer = Writer} = State) ->
    {noreply, State};
handle_info({'EXIT', Writer, Reason}, #connection{writer = Writer} = State) ->
    {stop, Reason, State};
handle_info(_Info, State) ->
    {noreply, State}.

%% Woken senders try again, and wait again if others were faster.
woken(#connection{waiting = Waiting, stage = open, queue = Queue} = State) when map_size(Waiting) > 0 ->
    case teleport_pool_queue:has_room(Queue) of
        true ->
            ok = teleport_pool_queue:set_waiting(Queue, false),
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
