%% SPDX-License-Identifier: Apache-2.0
%% @doc Accepts connections for the pools of other nodes. It opens no port until a node in the cluster asks for one over
%% the distribution.
%%
%% Nodes on the same host connect over the loopback interface. Other nodes connect to the address at which they have reached
%% this node over the distribution, or to `inet_dist_use_interface' of kernel if that is set.
%%
%% A connection whose peer has not yet proved that it knows the cookie is unauthenticated. Each port admits at most 64
%% such connections at a time, for 5 s each ({@link teleport_pool_delivery}).
-module(teleport_pool_listener).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, offer/1]).
-export([init/1, handle_call/3, handle_cast/2]).
-export([accept/2]).

-type open() :: #{inet:ip_address() => inet:port_number()}.

-define(MAX_STRANGERS, 64).
-define(OFFER_MS, 5000).
-define(ACCEPT_MS, 30000).
-define(PAUSE_MS, 100).

%% @doc Started by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Returns the address to which a node can connect, or the reason why it gets no pool. That
%% node calls this over the distribution.
-spec offer(node()) ->
          {ok, #{ip := inet:ip_address(), port := inet:port_number(), version := pos_integer()}} | {error, Reason :: binary()}.
offer(Node) ->
    case {teleport_config:get(pool), address(Node)} of
        {0, _} -> {error, <<"its option pool is 0">>};
        {_, {ok, Ip}} -> gen_server:call(?MODULE, {offer, Ip}, ?OFFER_MS);
        {_, {error, Reason}} -> {error, Reason}
    end.

address(Node) ->
    Connection = lists:keyfind(Node, 1, erlang:system_info(dist_ctrl)),
    case {application:get_env(kernel, inet_dist_use_interface), Connection} of
        {{ok, Ip}, _} when is_tuple(Ip), Ip =/= {0, 0, 0, 0}, Ip =/= {0, 0, 0, 0, 0, 0, 0, 0} -> {ok, Ip};
        {_, {Node, Socket}} when is_port(Socket) -> reached(inet:sockname(Socket), inet:peername(Socket));
        _ -> {error, <<"its distribution to this node is not over TCP">>}
    end.

reached({ok, {Ip, _}}, {ok, {Ip, _}}) when tuple_size(Ip) =:= 4 -> {ok, {127, 0, 0, 1}};
reached({ok, {Ip, _}}, {ok, {Ip, _}}) when tuple_size(Ip) =:= 8 -> {ok, {0, 0, 0, 0, 0, 0, 0, 1}};
reached({ok, {{127, _, _, _}, _}}, _) -> {ok, {127, 0, 0, 1}};
reached({ok, {Ip, _}}, {ok, _}) when is_tuple(Ip) -> {ok, Ip};
reached(_, _) -> {error, <<"the address of its distribution connection is not known">>}.

%% @private
-spec init([]) -> {ok, open()}.
init([]) -> {ok, #{}}.

%% @private
-spec handle_call(term(), gen_server:from(), open()) -> {reply, term(), open()}.
handle_call({offer, Ip}, _From, Open) when is_map_key(Ip, Open) -> {reply, offered(Ip, map_get(Ip, Open)), Open};
handle_call({offer, Ip}, _From, Open) ->
    {Low, High} = teleport_config:get(ports),
    case listen(Ip, Low, High) of
        {ok, Socket} ->
            {ok, Port} = inet:port(Socket),
            _ = spawn_link(?MODULE, accept, [Socket, #{}]),
            {reply, offered(Ip, Port), Open#{Ip => Port}};
        {error, Reason} ->
            Text = io_lib:format("it cannot listen at ~ts: ~ts", [inet:ntoa(Ip), teleport_pool_socket:text(Reason)]),
            {reply, {error, iolist_to_binary(Text)}, Open}
    end;
handle_call(_Request, _From, Open) -> {reply, {error, badarg}, Open}.

offered(Ip, Port) -> {ok, #{ip => Ip, port => Port, version => teleport_pool_handshake:version()}}.

listen(Ip, Low, High) ->
    case gen_tcp:listen(Low, teleport_pool_socket:options(Ip) ++ [{ip, Ip}, {reuseaddr, true}, {backlog, 256}]) of
        {error, eaddrinuse} when Low < High -> listen(Ip, Low + 1, High);
        Result -> Result
    end.

%% @private
-spec handle_cast(term(), open()) -> {noreply, open()}.
handle_cast(_Request, Open) -> {noreply, Open}.

%% @private Calls itself by the module's name at least twice a minute, so that it runs the newest code.
-spec accept(gen_tcp:socket(), #{Stranger :: pid() => []}) -> no_return().
accept(Listening, Strangers) ->
    case gen_tcp:accept(Listening, ?ACCEPT_MS) of
        {ok, Socket} -> ?MODULE:accept(Listening, admitted(Socket, still(Strangers)));
        {error, timeout} -> ?MODULE:accept(Listening, still(Strangers));
        {error, closed} -> exit(shutdown);
        {error, Reason} ->
            ?LOG_WARNING("teleport: a peer could not be accepted: ~ts", [teleport_pool_socket:text(Reason)]),
            receive after ?PAUSE_MS -> ?MODULE:accept(Listening, still(Strangers)) end
    end.

admitted(Socket, Strangers) when map_size(Strangers) >= ?MAX_STRANGERS ->
    ok = gen_tcp:close(Socket),
    Strangers;
admitted(Socket, Strangers) ->
    {ok, Pid} = supervisor:start_child(teleport_pool_delivery_sup, []),
    _ = case gen_tcp:controlling_process(Socket, Pid) of
            ok -> teleport_pool_delivery:socket(Pid, Socket, self());
            {error, _} -> gen_tcp:close(Socket)
        end,
    _ = monitor(process, Pid),
    Strangers#{Pid => []}.

still(Strangers) ->
    receive
        {known, Pid} -> still(maps:remove(Pid, Strangers));
        {'DOWN', _, process, Pid, _} -> still(maps:remove(Pid, Strangers))
    after 0 -> Strangers
    end.
