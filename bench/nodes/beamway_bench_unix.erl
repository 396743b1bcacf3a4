%% SPDX-License-Identifier: Apache-2.0
%% @doc Stock distribution over unix sockets, for the contender `unix', which is the fair rival if all nodes are on the same host.
%%
%% OTP does not have such a carrier, but the functions of its TCP carrier take the socket driver as an argument (`inet_tcp_dist:gen_listen/3' and so
%% on). This module is such a driver: it opens sockets in the abstract namespace, which do not leave files behind, and delegates everything else to
%% OTP's `local_tcp'. It is also the epmd module, because a node's name is the name of its socket. So the handshake, packets, buffers and ticks are
%% OTP's own. The name passed to `-proto_dist' is that of {@link beamway_bench_unix_dist}.
-module(beamway_bench_unix).

%% The callbacks of a socket driver.
-export([family/0, listen/2, accept/1, connect/3, send/2, send/3, recv/3, controlling_process/2, close/1, parse_address/1, mask/2]).
%% The callbacks of an epmd module.
-export([start_link/0, listen_port_please/2, register_node/3, address_please/3, port_please/2, names/1]).
%% Called by the carrier.
-export([listening_as/1]).

-define(NAME, {?MODULE, name}).
%% The distribution version that nodes from OTP 23 on publish through epmd.
-define(VERSION, 6).

%% @doc Sets the name of the next socket on which this process listens, because the driver does not get it as an argument.
-spec listening_as(Name :: atom()) -> ok.
listening_as(Name) ->
    _ = put(?NAME, Name),
    ok.

%% The port of the benchmark's epmd is part of the address, so that runs do not interfere with each other; epmd itself is not queried.
address(Name) ->
    {local, <<0, (unicode:characters_to_binary(lists:concat(["beamway-bench-", os:getenv("ERL_EPMD_PORT", "none"), "-", Name])))/binary>>}.

%% @private
family() -> inet.

%% @private
listen(_, Options) ->
    Kept = [Option || Option <- Options, not lists:member(Option, [{reuseaddr, true}]), not is_tuple(Option) orelse element(1, Option) =/= ip],
    gen_tcp:listen(0, [{ifaddr, address(get(?NAME))} | Kept]).

%% @private
accept(Listen) -> gen_tcp:accept(Listen).

%% @private
connect(Address, 0, Options) -> gen_tcp:connect(Address, 0, Options).

%% @private
send(Socket, Packet) -> local_tcp:send(Socket, Packet).

%% @private
send(Socket, Packet, Options) -> local_tcp:send(Socket, Packet, Options).

%% @private
recv(Socket, Length, Timeout) -> local_tcp:recv(Socket, Length, Timeout).

%% @private
controlling_process(Socket, Pid) -> gen_tcp:controlling_process(Socket, Pid).

%% @private
close(Socket) -> gen_tcp:close(Socket).

%% @private
parse_address(Host) -> inet:parse_address(Host).

%% @private
mask(_, Address) -> Address.

%% @private
start_link() -> ignore.

%% @private
listen_port_please(_, _) -> {ok, 0}.

%% @private
register_node(_, _, _) -> {ok, 4 + rand:uniform(16#FFFFFF00)}.

%% @private
address_please(Name, _, _) -> {ok, address(Name), 0, ?VERSION}.

%% @private
port_please(_, _) -> {port, 0, ?VERSION}.

%% @private
names(_) -> {ok, []}.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

%% Runs real nodes that are not connected over TCP: both ends of the connection are unix sockets.
real_nodes_test_() ->
    {timeout, 60, fun() ->
        Measure = fun(#{members := Members} = Cluster) ->
                          Controllers = [hd(beamway_bench_nodes:call(Member, erlang, system_info, [dist_ctrl])) || Member <- Members],
                          ?assertMatch([{ok, {local, _}}, {ok, {local, _}}],
                                       [beamway_bench_nodes:call(Member, inet, sockname, [Port]) || {Member, {_, Port}} <- lists:zip(Members, Controllers)]),
                          [_, Second] = beamway_bench_nodes:names(Cluster),
                          #{<<"sum">> => beamway_bench_nodes:call(hd(Members), rpc, call, [Second, lists, sum, [[1, 2]]])}
                  end,
        Group = #{nodes => 2, contenders => [unix], directions => [forward, reverse], measure => Measure},
        Options = #{repeats => 1, fresh => true, budget_ms => infinity, progress => fun(_, _) -> ok end,
                    contenders => beamway_bench_contender:all(beamway_bench_checkout:root(), 50)},
        ?assertEqual({ok, #{{unix, <<"sum">>} => #{forward => [3], reverse => [3]}}},
                     beamway_bench_run:in_a_process(fun() -> beamway_bench_run:run([Group], Options) end))
    end}.
-endif.
