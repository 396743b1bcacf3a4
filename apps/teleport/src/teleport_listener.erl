%% SPDX-License-Identifier: Apache-2.0
%% @doc Where peers connect: at the port of the distribution where that is Beamway's ({@link beamway_shared_port}) and the options `ip' and `ports' say nothing else.
%% Otherwise at one port for nodes of this host, on the loopback interface, and one more for each address at which another host
%% reached this node over distribution. None is open before somebody asks for it.
%%
%% A caller has `stranger_ms' to prove that it knows the cookie, and only `max_strangers' may be at it at a time for each port; the
%% next ones are turned away at once.
-module(teleport_listener).
-behaviour(gen_server).

-include_lib("kernel/include/net_address.hrl").
-include_lib("kernel/include/logger.hrl").

-export([start_link/0, offer/2, offer/3, leaving/1, leave/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export([accept_link/2, accept/3, accepted/2]).

-record(listener, {host :: binary(),
                   open = #{} :: #{inet:ip_address() => {gen_tcp:socket(), inet:port_number(), Acceptor :: pid()}},
                   %% Those that came to the port of the distribution, and have proved nothing yet.
                   strangers = #{} :: strangers()}).

-type strangers() :: #{Lane :: pid() => reference()}.

-define(CALL_MS, 5000).
-define(PAUSE_MS, 100).
%% How long peers may take to send by distribution, and servers to answer, while teleport is being stopped.
-define(LEAVE_MS, 2000).
-define(ANSWER_MS, 5000).
-define(LOOK_MS, 10).

%% @doc Started by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Called by a node of the cluster, over distribution: where may it connect?
-spec offer(node(), HostId :: binary(), Announces :: boolean()) ->
          {ok, #{ip := inet:ip_address(), port := inet:port_number(), boot := binary(), version := pos_integer(), announce := boolean(),
                 tls := boolean(), guarded := boolean(), takes_tls := boolean(), max_message_bytes := pos_integer(), batches := boolean(), leaders := boolean(), blocks => teleport_blocks:address()}}
          | {error, Reason :: binary()}.
offer(Node, HostId, Announces) -> gen_server:call(?MODULE, {offer, Node, HostId, Announces}, ?CALL_MS).

%% @doc The same for an older version, which does not announce its TLS.
-spec offer(node(), HostId :: binary()) -> {ok, map()} | {error, Reason :: binary()}.
offer(Node, HostId) -> offer(Node, HostId, false).

%% @doc Called by a node of the cluster, over distribution, on which teleport is being stopped: returns when all that was sent there by lanes is acknowledged.
-spec leaving(node()) -> ok.
leaving(Node) -> teleport_peers:leave(Node, ?LEAVE_MS).

%% @doc Before teleport stops here: no lane comes any more, peers send by distribution from now on, and servers may still answer what they were asked.
-spec leave() -> ok.
leave() ->
    ok = supervisor:terminate_child(teleport_sup, ?MODULE),
    %% Their lanes may be open, or are just being opened.
    Peers = teleport_peers:offered(),
    %% One of another version, or that is held up, hears of a lost lane.
    _ = teleport_each:run(Peers, fun(Node) -> catch erpc:call(Node, ?MODULE, leaving, [node()], 2 * ?LEAVE_MS) end),
    answered(teleport_deadline:in(?ANSWER_MS)).

answered(Deadline) ->
    Looked = teleport_each:run([Tx || {in, _, Tx} <- teleport_peers:all()], fun(Tx) -> is_answered(Tx, teleport_deadline:left(Deadline)) end),
    case lists:all(fun({_, Ended}) -> Ended =:= {ok, true} end, Looked) orelse teleport_deadline:left(Deadline) =:= 0 of
        true -> ok;
        false -> receive after ?LOOK_MS -> answered(Deadline) end
    end.

is_answered(Tx, LeftMs) ->
    case teleport_lane:info(teleport_sender:pid(Tx), LeftMs) of
        #{pending_calls := Calls} -> Calls =:= 0 andalso teleport_sender:queued(Tx) =:= {0, 0};
        timeout -> false
    end.

%% @private
-spec init([]) -> {ok, #listener{}}.
init([]) ->
    ok = beamway_shared_port:take(),
    {ok, #listener{host = teleport_connect:host_id()}}.

%% @private
-spec handle_call(term(), gen_server:from(), #listener{}) -> {reply, term(), #listener{}}.
handle_call({offer, Node, HostId, Announces}, _From, #listener{host = Host} = State) ->
    Config = teleport_config:of_node(node()),
    #{max_message_bytes := Max, by_reference := ByReference} = Own = teleport_config:of_caller(Node),
    IsSameHost = HostId =:= Host,
    Shared = shared(Announces, Config),
    case {teleport_ways:to_offer(teleport_ways:of_node(Node, Own)), address(Shared, Node, IsSameHost, Config)} of
        {{error, Reason}, _} -> {reply, {error, Reason}, State};
        {_, {error, Reason}} -> {reply, {error, Reason}, State};
        {{ok, Ways}, {ok, At}} ->
            ok = teleport_peers:offered(Node),
            Offer = maps:merge(#{max_message_bytes => Max, batches => true, leaders => true}, blocks(IsSameHost andalso ByReference)),
            offered(open(Shared, At, State), At, maps:merge(Ways#{announce => Shared =/= none}, Offer))
    end;
handle_call(_Request, _From, State) ->
    {reply, {error, badarg}, State}.

%% Who has said where lanes shall come gets it.
shared(_Announces = true, #{ip := auto, ports := {0, 0}}) -> beamway_shared_port:address();
shared(_, _) -> none.

address(_, _, _, #{ip := Configured}) when Configured =/= auto -> {ok, Configured};
address({ok, {Ip, _}}, _, _, _) when Ip =/= {0, 0, 0, 0}, Ip =/= {0, 0, 0, 0, 0, 0, 0, 0} -> {ok, Ip};
address({ok, {Ip, _}}, _, _IsSameHost = true, _) when tuple_size(Ip) =:= 8 -> {ok, {0, 0, 0, 0, 0, 0, 0, 1}};
address(_, _, _IsSameHost = true, _) -> {ok, {127, 0, 0, 1}};
address(_, Node, _, _) -> reached_by(Node).

%% An older caller does not look at this.
blocks(_MayPass = true) ->
    case teleport_blocks:offer() of
        {ok, Address} -> #{blocks => Address};
        none -> #{}
    end;
blocks(_) -> #{}.

offered({ok, Port, State}, Ip, Offer) ->
    {reply, {ok, Offer#{ip => Ip, port => Port, boot => teleport_connect:boot_id(), version => teleport_handshake:version()}}, State};
offered({error, Reason, State}, Ip, _) ->
    Text = io_lib:format("the peer cannot listen at ~ts: ~ts", [inet:ntoa(Ip), inet:format_error(Reason)]),
    {reply, {error, iolist_to_binary(Text)}, State}.

%% Our address of the connection to that node: of its socket, or the one from which its address is reached.
reached_by(Node) ->
    case lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)) of
        {_, Port} when is_port(Port) ->
            case inet:sockname(Port) of
                {ok, {Ip, _}} when is_tuple(Ip) -> {ok, Ip};
                _ -> route(Node)
            end;
        _ -> route(Node)
    end.

route(Node) ->
    case net_kernel:node_info(Node, address) of
        {ok, #net_address{address = {Ip, _}}} when is_tuple(Ip) -> route_to(Ip);
        _ -> {error, <<"the address of the distribution connection is not known: set the option ip">>}
    end.

route_to(Peer) ->
    Family = case tuple_size(Peer) of 4 -> inet; 8 -> inet6 end,
    {ok, Socket} = gen_udp:open(0, [Family]),
    Found = case gen_udp:connect(Socket, Peer, 9) of
                ok -> inet:sockname(Socket);
                Error -> Error
            end,
    ok = gen_udp:close(Socket),
    case Found of
        {ok, {Ip, _}} -> {ok, Ip};
        {error, Reason} -> {error, iolist_to_binary(io_lib:format("no way back to the caller: ~ts", [inet:format_error(Reason)]))}
    end.

open({ok, {_, Port}}, _, State) ->
    {ok, Port, State};
open(none, Ip, #listener{open = Open} = State) ->
    case Open of
        #{Ip := {_, Port, _}} -> {ok, Port, State};
        #{} -> opened(try_ports(Ip, maps:get(ports, teleport_config:of_node(node()))), Ip, State)
    end.

try_ports(Ip, {Low, High}) ->
    Family = case tuple_size(Ip) of 4 -> inet; 8 -> inet6 end,
    %% As for those that call.
    Options = [{inet_backend, inet}, Family, {ip, Ip}, binary, {active, false}, {packet, raw}, {nodelay, true}, {keepalive, true}, {reuseaddr, true},
               {backlog, 256}, {send_timeout, 5000}],
    case gen_tcp:listen(Low, Options) of
        {error, eaddrinuse} when Low < High -> try_ports(Ip, {Low + 1, High});
        Other -> Other
    end.

opened({ok, Socket}, Ip, #listener{open = Open} = State) ->
    {ok, {_, Port}} = inet:sockname(Socket),
    {ok, Acceptor} = supervisor:start_child(teleport_acceptor_sup, [Socket, max_strangers()]),
    _ = monitor(process, Acceptor),
    {ok, Port, State#listener{open = Open#{Ip => {Socket, Port, Acceptor}}}};
opened({error, Reason}, _, State) ->
    {error, Reason, State}.

max_strangers() -> maps:get(max_strangers, teleport_config:of_node(node())).

%% @private
-spec handle_cast(term(), #listener{}) -> {noreply, #listener{}}.
handle_cast(_Request, State) -> {noreply, State}.

%% @private Its port is closed with the acceptor; the next who asks gets another one.
-spec handle_info(term(), #listener{}) -> {noreply, #listener{}}.
handle_info({lane_comes, Ref}, #listener{strangers = Strangers} = State) ->
    case admitted(max_strangers(), Strangers) of
        full -> ok = beamway_shared_port:admit(Ref, full), {noreply, State};
        {Lane, More} -> ok = beamway_shared_port:admit(Ref, {ok, Lane}), {noreply, State#listener{strangers = More}}
    end;
handle_info({known, Lane}, #listener{strangers = Strangers} = State) ->
    {noreply, State#listener{strangers = no_stranger(Lane, Strangers)}};
handle_info({'DOWN', _, process, Pid, _}, #listener{strangers = Strangers} = State) when is_map_key(Pid, Strangers) ->
    {noreply, State#listener{strangers = maps:remove(Pid, Strangers)}};
handle_info({'DOWN', _, process, Pid, _}, #listener{open = Open} = State) ->
    _ = [gen_tcp:close(Socket) || {Socket, _, Acceptor} <- maps:values(Open), Acceptor =:= Pid],
    {noreply, State#listener{open = maps:filter(fun(_, {_, _, Acceptor}) -> Acceptor =/= Pid end, Open)}};
handle_info(_Info, State) ->
    {noreply, State}.

%% ---- acceptors ----

%% @private
-spec accept_link(gen_tcp:socket(), MaxStrangers :: pos_integer()) -> {ok, pid()}.
accept_link(Socket, Max) -> {ok, proc_lib:spawn_link(?MODULE, accept, [Socket, Max, #{}])}.

%% @private
-spec accept(gen_tcp:socket(), pos_integer(), strangers()) -> term().
accept(Listening, Max, Strangers) -> teleport_wait:accept(?MODULE, {Listening, Max, Strangers}, Listening).

%% @private
-spec accepted({ok, gen_tcp:socket()} | {error, term()}, {gen_tcp:socket(), pos_integer(), strangers()}) -> term().
accepted({ok, Socket}, {Listening, Max, Strangers}) ->
    accept(Listening, Max, admit(Socket, Max, still_strangers(Strangers)));
accepted({error, closed}, _) ->
    ok;
accepted({error, Reason}, {Listening, Max, Strangers}) ->
    ?LOG_WARNING("teleport: a peer could not be accepted: ~ts", [inet:format_error(Reason)]),
    receive after ?PAUSE_MS -> ok end,
    accept(Listening, Max, still_strangers(Strangers)).

admit(Socket, Max, Strangers) ->
    case admitted(Max, Strangers) of
        full ->
            ok = gen_tcp:close(Socket),
            Strangers;
        {Lane, More} ->
            case gen_tcp:controlling_process(Socket, Lane) of
                ok -> Lane ! {socket, Socket, none, self()}, ok;
                {error, _} -> ok
            end,
            More
    end.

admitted(Max, Strangers) when map_size(Strangers) >= Max -> full;
admitted(_, Strangers) ->
    {ok, Lane} = supervisor:start_child(teleport_lane_sup, [acceptor]),
    {Lane, Strangers#{Lane => monitor(process, Lane)}}.

still_strangers(Strangers) ->
    receive
        {known, Lane} -> still_strangers(no_stranger(Lane, Strangers));
        {'DOWN', _, process, Lane, _} -> still_strangers(maps:remove(Lane, Strangers))
    after 0 -> Strangers
    end.

no_stranger(Lane, Strangers) ->
    case maps:take(Lane, Strangers) of
        {Monitor, Rest} -> true = demonitor(Monitor, [flush]), Rest;
        error -> Strangers
    end.
