%% SPDX-License-Identifier: Apache-2.0
%% The callbacks that net_kernel calls. They are the same for all four carriers. A carrier defines
%% FAMILY   inet_tcp or inet6_tcp
%% STREAM   beamway_stream_tcp or beamway_stream_tls
%% and includes this file. Listening, epmd and addresses are handled by OTP's own code; only the connection processes are ours (see
%% beamway_dist_setup).

-export([childspecs/0, listen/2, address/0, accept/1, accept_connection/5, setup/5, close/1, select/1, setopts/2]).

-include_lib("kernel/include/net_address.hrl").

%% Returns the children that are started before net_kernel and run as long as the distribution. The child of each carrier has its own id, so that
%% a node can have several carriers; they share a single server, beamway_links.
-spec childspecs() -> {ok, [supervisor:child_spec()]}.
childspecs() ->
    {ok, [#{id => {beamway_holder, ?MODULE},
            start => {beamway_holder, start_link, []},
            restart => permanent,
            shutdown => 2000,
            type => worker,
            modules => [beamway_holder]}]}.

%% Opens the listening socket and registers with epmd. Kernel's `inet_dist_*' parameters determine ports, interface and options.
-spec listen(Name :: atom(), Host :: string()) ->
          {ok, {port(), #net_address{}, integer()}} | {error, term()}.
listen(Name, Host) -> ?STREAM:listen(?FAMILY, Name, Host).

%% Returns the host and the address family, for nodes that do not listen.
-spec address() -> #net_address{}.
address() ->
    inet_tcp_dist:gen_address(?FAMILY).

%% Starts the process that accepts connections and offers them to net_kernel.
-spec accept(Listen :: port()) -> pid().
accept(Listen) ->
    ?STREAM:accept_loop(?FAMILY, Listen).

%% Called when net_kernel has accepted a connection from the accepting process.
-spec accept_connection(pid(), port(), node(), Allowed :: [node() | string()], timeout()) -> pid().
accept_connection(AcceptPid, Socket, MyNode, Allowed, SetupTime) ->
    beamway_dist_setup:accept({?FAMILY, ?STREAM}, AcceptPid, Socket, MyNode, Allowed, SetupTime).

%% Called when net_kernel needs a connection to a node.
-spec setup(node(), normal | hidden, node(), longnames | shortnames, timeout()) -> pid().
setup(Node, Type, MyNode, LongOrShortNames, SetupTime) ->
    beamway_dist_setup:connect({?FAMILY, ?STREAM}, Node, Type, MyNode, LongOrShortNames, SetupTime).

-spec close(port()) -> ok.
close(Socket) ->
    inet_tcp_dist:close(Socket).

%% Returns whether this carrier can reach the node, because its host has an address of our family.
-spec select(node()) -> boolean().
select(Node) ->
    inet_tcp_dist:gen_select(?FAMILY, Node).

%% Sets options of a listening socket for net_kernel:setopts/2.
-spec setopts(port(), [inet:socket_setopt()]) -> ok | {error, term()}.
setopts(Socket, Options) ->
    inet_tcp_dist:setopts(Socket, Options).
