%% SPDX-License-Identifier: Apache-2.0
%% @doc The carrier `erl -proto_dist beamway6': {@link beamway_dist} over IPv6.
-module(beamway6_dist).

-export([childspecs/0, listen/1, listen/2, address/0, accept/1, accept_connection/5, setup/5,
         close/1, select/1, is_node_name/1, setopts/2, getopts/2]).

-define(FAMILY, inet6_tcp).

-include_lib("kernel/include/net_address.hrl").

%% @see beamway_dist:childspecs/0
-spec childspecs() -> {ok, [supervisor:child_spec()]}.
childspecs() ->
    beamway_dist:childspecs(?MODULE).

%% @see beamway_dist:listen/2
-spec listen(Name :: atom(), Host :: string()) ->
          {ok, {port(), #net_address{}, integer()}} | {error, term()}.
listen(Name, Host) ->
    inet_tcp_dist:gen_listen(?FAMILY, Name, Host).

%% @see beamway_dist:listen/1
-spec listen(Name :: atom()) -> {ok, {port(), #net_address{}, integer()}} | {error, term()}.
listen(Name) ->
    {ok, Host} = inet:gethostname(),
    listen(Name, Host).

%% @see beamway_dist:address/0
-spec address() -> #net_address{}.
address() ->
    inet_tcp_dist:gen_address(?FAMILY).

%% @see beamway_dist:accept/1
-spec accept(Listen :: port()) -> pid().
accept(Listen) ->
    inet_tcp_dist:gen_accept(?FAMILY, Listen).

%% @see beamway_dist:accept_connection/5
-spec accept_connection(pid(), port(), node(), Allowed :: [node() | string()], timeout()) -> pid().
accept_connection(AcceptPid, Socket, MyNode, Allowed, SetupTime) ->
    beamway_dist_setup:accept(?FAMILY, AcceptPid, Socket, MyNode, Allowed, SetupTime).

%% @see beamway_dist:setup/5
-spec setup(node(), normal | hidden, node(), longnames | shortnames, timeout()) -> pid().
setup(Node, Type, MyNode, LongOrShortNames, SetupTime) ->
    beamway_dist_setup:connect(?FAMILY, Node, Type, MyNode, LongOrShortNames, SetupTime).

%% @see beamway_dist:close/1
-spec close(port()) -> ok.
close(Socket) ->
    beamway_dist:close(Socket).

%% @see beamway_dist:select/1
-spec select(node()) -> boolean().
select(Node) ->
    inet_tcp_dist:gen_select(?FAMILY, Node).

%% @see beamway_dist:is_node_name/1
-spec is_node_name(node()) -> boolean().
is_node_name(Node) ->
    beamway_dist:is_node_name(Node).

%% @see beamway_dist:setopts/2
-spec setopts(port(), [inet:socket_setopt()]) -> ok | {error, term()}.
setopts(Socket, Options) ->
    beamway_dist:setopts(Socket, Options).

%% @see beamway_dist:getopts/2
-spec getopts(port(), [inet:socket_getopt()]) -> {ok, [inet:socket_setopt()]} | {error, term()}.
getopts(Socket, Options) ->
    beamway_dist:getopts(Socket, Options).
