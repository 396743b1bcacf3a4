%% SPDX-License-Identifier: Apache-2.0
%% @doc Finds out what the epmd on a peer's host currently reports about the peer, and where a peer listens according to the node's
%% epmd module.
-module(beamway_epmd).

-export([peer_of/4, of_node/3, resolved/2]).
-export_type([said/0]).

-define(LOOK_MS, 500).

-type said() :: {listed, {inet:ip_address(), inet:port_number()}} | {not_listed, inet:ip_address(), OthersAre :: boolean()}
              | {refuses, inet:ip_address()} | unknown.
%% `refuses' means that nothing listens on epmd's port, and `unknown' that epmd does not answer or is not used.

%% @doc Returns where a node listens according to the epmd module, and the node's version of the distribution protocol.
-spec peer_of(module(), beamway_stream:family(), string(), string()) -> {inet:ip_address(), inet:port_number(), integer()} | error.
peer_of(Epmd, Family, Name, Host) ->
    case call_epmd(Epmd, address_please, [Name, Host, Family:family()]) of
        {ok, Ip, TcpPort, Version} ->
            {Ip, TcpPort, Version};
        {ok, Ip} ->
            case Epmd:port_please(Name, Ip) of
                {port, TcpPort, Version} -> {Ip, TcpPort, Version};
                _ -> error
            end;
        _ ->
            error
    end.

%% A custom epmd module need not implement every function.
call_epmd(Module, Function, Args) ->
    case erlang:function_exported(Module, Function, length(Args)) of
        true -> apply(Module, Function, Args);
        false -> apply(erl_epmd, Function, Args)
    end.

%% @doc Queries epmd. `Known' is the address at which the peer is known to listen. This takes as long as the system needs to connect to a host.
-spec of_node(node(), beamway_stream:family(), Known :: undefined | {inet:ip_address() | string(), inet:port_number()}) -> said().
of_node(Node, Family, Known) ->
    case beamway_fault_path:is_cut(Node) of
        true -> unknown;
        false -> asked(Node, Family, Known)
    end.

asked(Node, Family, Known) ->
    {node, Name, Host} = dist_util:split_node(Node),
    case {net_kernel:epmd_module(), init:get_argument(erl_epmd_port)} of
        {erl_epmd, error} -> ask_epmd(Family, Name, Host, Known);
        {erl_epmd, _} -> unknown; % nodes that agree on a port do not register
        {Module, _} -> ask(Module, Family, Name, Host)
    end.

ask_epmd(Family, Name, Host, Known) ->
    case address(Family, Host, Known) of
        {ok, Ip} ->
            case erl_epmd:names(Ip) of
                {ok, Names} -> listed(Name, Ip, Names);
                {error, _} -> why_silent(Ip, Family:connect(Ip, epmd_port(), [{active, false}], ?LOOK_MS))
            end;
        error ->
            unknown
    end.

listed(Name, Ip, Names) ->
    case lists:keyfind(Name, 1, Names) of
        {Name, Port} -> {listed, {Ip, Port}};
        false -> {not_listed, Ip, Names =/= []}
    end.

why_silent(Ip, {error, econnrefused}) -> {refuses, Ip};
why_silent(_Ip, _Other) -> unknown.

address(Family, Host, undefined) -> resolved(Family, Host);
address(Family, _Host, {Known, _Port}) -> resolved(Family, Known).

%% @doc Returns the address of a host given by name or address.
-spec resolved(beamway_stream:family(), inet:ip_address() | string()) -> {ok, inet:ip_address()} | error.
resolved(_Family, Ip) when is_tuple(Ip) -> {ok, Ip};
resolved(Family, Host) ->
    case Family:getaddr(Host, ?LOOK_MS) of
        {ok, Ip} -> {ok, Ip};
        {error, _} -> error
    end.

epmd_port() ->
    case init:get_argument(epmd_port) of
        {ok, [[Port | _] | _]} -> list_to_integer(Port);
        _ -> 4369
    end.

%% Modules other than OTP's may not know the node, which proves nothing.
ask(Module, Family, Name, Host) ->
    case peer_of(Module, Family, Name, Host) of
        {Ip, Port, _Version} -> {listed, {Ip, Port}};
        error -> unknown
    end.
