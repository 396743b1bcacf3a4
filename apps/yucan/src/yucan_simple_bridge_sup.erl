%% SPDX-License-Identifier: Apache-2.0
%% @doc What `simple_bridge:start(yucan)' starts: a server with yucan_simple_bridge_anchor, at the address and port that the environment of the
%% application simple_bridge names (`address', loopback by default; `port', 8000), under a supervisor.
-module(yucan_simple_bridge_sup).
-behaviour(supervisor).

-export([start_link/0, init/1]).

%% @doc The server's name is `simple_bridge', unless the environment has a `server_name'.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> supervisor:start_link({local, ?MODULE}, ?MODULE, []).

%% @private
-spec init([]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init([]) ->
    Get = fun(Key, Default) -> application:get_env(simple_bridge, Key, Default) end,
    Options = #{name => Get(server_name, simple_bridge), listen => [#{ip => ip(Get(address, {127, 0, 0, 1})), port => Get(port, 8000)}],
                handler => {yucan_simple_bridge_anchor, #{}}},
    {ok, {#{strategy => one_for_one, intensity => 5, period => 10}, [yucan:child_spec(Options)]}}.

ip(Address) when is_tuple(Address) -> Address;
ip(Address) ->
    {ok, Ip} = inet:parse_address(unicode:characters_to_list(Address)),
    Ip.
