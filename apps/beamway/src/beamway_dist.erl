%% SPDX-License-Identifier: Apache-2.0
%% @doc The carrier `erl -proto_dist beamway': the callbacks that net_kernel calls.
%%
%% To epmd and to every peer a Beamway node is an inet_tcp node: it listens on TCP, with OTP's own
%% code for listening, accepting and finding peers. Only the connection processes are ours, see
%% {@link beamway_dist_setup}. `beamway6' ({@link beamway6_dist}) is the same over IPv6.
-module(beamway_dist).

-export([childspecs/0, childspecs/1, listen/1, listen/2, address/0, accept/1, accept_connection/5, setup/5,
         close/1, select/1, is_node_name/1, setopts/2, getopts/2]).

-define(FAMILY, inet_tcp).

-include_lib("kernel/include/net_address.hrl").

%% @doc Started before net_kernel and kept as long as the distribution runs.
-spec childspecs() -> {ok, [supervisor:child_spec()]}.
childspecs() ->
    childspecs(?MODULE).

%% @doc The same under the name of another of our carriers, so that a node can have both.
-spec childspecs(Carrier :: module()) -> {ok, [supervisor:child_spec()]}.
childspecs(Carrier) ->
    {ok, [#{id => {beamway_links, Carrier},
            start => {beamway_links, start_link, []},
            restart => permanent,
            shutdown => 2000,
            type => worker,
            modules => [beamway_links]}]}.

%% @doc Opens the listening socket and tells epmd; ports, interface and options as kernel's
%% `inet_dist_*' parameters say.
-spec listen(Name :: atom(), Host :: string()) ->
          {ok, {port(), #net_address{}, integer()}} | {error, term()}.
listen(Name, Host) ->
    inet_tcp_dist:gen_listen(?FAMILY, Name, Host).

%% @doc As {@link listen/2} on this host.
-spec listen(Name :: atom()) -> {ok, {port(), #net_address{}, integer()}} | {error, term()}.
listen(Name) ->
    {ok, Host} = inet:gethostname(),
    listen(Name, Host).

%% @doc Host and address family, for nodes that do not listen.
-spec address() -> #net_address{}.
address() ->
    inet_tcp_dist:gen_address(?FAMILY).

%% @doc Starts the process that accepts connections and offers them to net_kernel.
-spec accept(Listen :: port()) -> pid().
accept(Listen) ->
    inet_tcp_dist:gen_accept(?FAMILY, Listen).

%% @doc net_kernel has taken a connection from the accepting process.
-spec accept_connection(pid(), port(), node(), Allowed :: [node() | string()], timeout()) -> pid().
accept_connection(AcceptPid, Socket, MyNode, Allowed, SetupTime) ->
    beamway_dist_setup:accept(?FAMILY, AcceptPid, Socket, MyNode, Allowed, SetupTime).

%% @doc net_kernel wants a connection to a node.
-spec setup(node(), normal | hidden, node(), longnames | shortnames, timeout()) -> pid().
setup(Node, Type, MyNode, LongOrShortNames, SetupTime) ->
    beamway_dist_setup:connect(?FAMILY, Node, Type, MyNode, LongOrShortNames, SetupTime).

%% @doc Closes a listening socket.
-spec close(port()) -> ok.
close(Socket) ->
    inet_tcp_dist:close(Socket).

%% @doc True if this carrier can reach the node: its host has an address of our family.
-spec select(node()) -> boolean().
select(Node) ->
    inet_tcp_dist:gen_select(?FAMILY, Node).

%% @doc True for an atom of the form name@host.
-spec is_node_name(node()) -> boolean().
is_node_name(Node) ->
    inet_tcp_dist:is_node_name(Node).

%% @doc For net_kernel:setopts/2 on listening sockets.
-spec setopts(port(), [inet:socket_setopt()]) -> ok | {error, term()}.
setopts(Socket, Options) ->
    inet_tcp_dist:setopts(Socket, Options).

%% @doc For net_kernel:getopts/2 on listening sockets.
-spec getopts(port(), [inet:socket_getopt()]) -> {ok, [inet:socket_setopt()]} | {error, term()}.
getopts(Socket, Options) ->
    inet_tcp_dist:getopts(Socket, Options).
