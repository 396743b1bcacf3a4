%% SPDX-License-Identifier: Apache-2.0
%% @doc The supervisor that `simple_bridge:start(yucan)' starts. Its child is a server whose handler
%% is yucan_simple_bridge_anchor, at the address and port in the environment of the application
%% simple_bridge (`address', by default loopback; `port', by default 8000). The variable `yucan' in
%% that environment is a map with other options of yucan:start_link/1, such as `limits' and
%% `access_log'. Its keys `tls' and `proxy_protocol' are options of the listener.
%%
%% ```
%% {simple_bridge, [{backend, yucan}, {port, 8443}, {yucan, #{tls => #{certfile => "a.pem", keyfile => "a.key"}, limits => #{body_bytes => 50000000}}}]}
%% '''
%% A WebSocket message may be as large as the largest body that is read at once. Other backends have
%% no limit, and an application whose message is rejected would reconnect and send it again forever.
-module(yucan_simple_bridge_sup).
-behaviour(supervisor).

-export([start_link/0, init/1]).

%% @doc Starts the supervisor. The server's name is `simple_bridge' unless the environment contains a `server_name'.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> supervisor:start_link({local, ?MODULE}, ?MODULE, []).

%% @private
-spec init([]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init([]) ->
    Get = fun(Key, Default) -> application:get_env(simple_bridge, Key, Default) end,
    Further = further(Get(yucan, #{})),
    Listen = maps:merge(#{ip => ip(Get(address, {127, 0, 0, 1})), port => Get(port, 8000)}, maps:with([tls, proxy_protocol], Further)),
    Rest = maps:without([tls, proxy_protocol], Further),
    Options = maps:merge(Rest, #{name => Get(server_name, simple_bridge), listen => [Listen], limits => limits(maps:get(limits, Further, #{})),
                                 handler => {yucan_simple_bridge_anchor, #{}}}),
    {ok, {#{strategy => one_for_one, intensity => 5, period => 10}, [yucan:child_spec(Options)]}}.

ip(Address) when is_tuple(Address) -> Address;
ip(Address) ->
    {ok, Ip} = inet:parse_address(unicode:characters_to_list(Address)),
    Ip.

further(Options) when is_map(Options) -> Options;
further(Other) -> error({bad_options, lists:flatten(io_lib:format("the variable yucan of the application simple_bridge is ~0tp; a map is expected", [Other]))}).

limits(#{ws_message_bytes := _} = Limits) -> Limits;
limits(Limits) when is_map(Limits) ->
    #{body_bytes := Default} = yucan_config:default_limits(),
    Limits#{ws_message_bytes => maps:get(body_bytes, Limits, Default)};
%% The server itself reports what is wrong with these options.
limits(Other) -> Other.
