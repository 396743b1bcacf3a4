%% SPDX-License-Identifier: Apache-2.0
%% @doc `-proto_dist beamway_bench_unix': OTP's TCP carrier with {@link beamway_bench_unix} as its socket driver.
-module(beamway_bench_unix_dist).

-export([listen/2, address/0, accept/1, accept_connection/5, setup/5, close/1, select/1, is_node_name/1, setopts/2, getopts/2]).

-define(DRIVER, beamway_bench_unix).

%% @private
listen(Name, Host) ->
    ok = ?DRIVER:listening_as(Name),
    inet_tcp_dist:gen_listen(?DRIVER, Name, Host).

%% @private
address() -> inet_tcp_dist:gen_address(?DRIVER).

%% @private
accept(Listen) -> inet_tcp_dist:gen_accept(?DRIVER, Listen).

%% @private
accept_connection(Acceptor, Socket, MyNode, Allowed, SetupTime) ->
    inet_tcp_dist:gen_accept_connection(?DRIVER, Acceptor, Socket, MyNode, Allowed, SetupTime).

%% @private
setup(Node, Type, MyNode, LongOrShort, SetupTime) -> inet_tcp_dist:gen_setup(?DRIVER, Node, Type, MyNode, LongOrShort, SetupTime).

%% @private
close(Socket) -> ?DRIVER:close(Socket).

%% @private
select(_) -> true.

%% @private
is_node_name(Node) -> inet_tcp_dist:is_node_name(Node).

%% @private
setopts(Socket, Options) -> inet_tcp_dist:setopts(Socket, Options).

%% @private
getopts(Socket, Options) -> inet_tcp_dist:getopts(Socket, Options).
