%% SPDX-License-Identifier: Apache-2.0
%% @private The application. If the library prometheus.erl is running, the application registers a collector with it, so the node's own endpoint
%% serves the metrics. Otherwise a yucan server answers `GET /metrics'.
-module(beamway_exporter_app).
-behaviour(application).
-behaviour(supervisor).

-export([start/2, stop/1, init/1, table/0]).

-define(PORT, 9464).
-define(IP, {127, 0, 0, 1}).
-define(PORT_EXPECTED, "0 to 65535").
-define(IP_EXPECTED, "an address as a tuple").
-define(HOSTS_EXPECTED, "a list of names as binaries").

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_, _) ->
    case server([Name || {Name, _} <- application:get_all_env(beamway_exporter), not lists:member(Name, [port, ip, hosts, included_applications])]) of
        {ok, Servers} ->
            ok = register_collector(has_library()),
            case supervisor:start_link({local, beamway_exporter_sup}, ?MODULE, Servers) of
                {ok, Pid} -> {ok, Pid};
                {error, Reason} -> {error, Reason}
            end;
        {error, Text} -> {error, {bad_options, Text}}
    end.

%% @private
-spec stop(term()) -> ok.
stop(_) ->
    case has_library() of
        true -> library(prometheus_registry, deregister_collector, [beamway_exporter_collector]);
        false -> ok
    end.

server([Unknown | _]) -> bad("unknown parameter ~ts; known are port, ip, hosts", [Unknown]);
server([]) ->
    Hosts = application:get_env(beamway_exporter, hosts, []),
    case is_list(Hosts) andalso lists:all(fun is_binary/1, Hosts) of
        true -> server(application:get_env(beamway_exporter, port), application:get_env(beamway_exporter, ip, ?IP), has_library());
        false -> bad("hosts is ~0tP; ~ts is expected", [Hosts, 12, ?HOSTS_EXPECTED])
    end.

server(undefined, _, true) -> {ok, []};
server(undefined, Ip, false) -> server({ok, ?PORT}, Ip, false);
server({ok, Port}, _, _) when not is_integer(Port); Port < 0; Port > 65535 -> bad("port is ~0tP; ~ts is expected", [Port, 12, ?PORT_EXPECTED]);
server({ok, Port}, Ip, _) ->
    case inet:is_ip_address(Ip) of
        true -> {ok, [yucan:child_spec(#{name => beamway_exporter, listen => [#{ip => Ip, port => Port}],
                                           routes => [{"/metrics", beamway_exporter_handler, yucan_req:own_names(Ip, application:get_env(beamway_exporter, hosts, []))}]})]};
        false -> bad("ip is ~0tP; ~ts is expected", [Ip, 12, ?IP_EXPECTED])
    end.

%% @doc Returns the rows of the reference of all options (`scripts/options').
-spec table() -> [{Option :: atom(), Default :: term(), Expected :: string(), TakesEffect :: string(), Effect :: string()}].
table() ->
    [{port, ?PORT, ?PORT_EXPECTED, "start of the application", "Port of the server. 0 takes any free port. If prometheus.erl runs, there is a server only if this is set."},
     {ip, ?IP, ?IP_EXPECTED, "start of the application", "Address of the server. It requires no secret, although the metrics name nodes and attributes."},
     {hosts, [], ?HOSTS_EXPECTED, "start of the application", "Names to which a server on a loopback address also answers, in addition to localhost, addresses and the host's own name."}].

bad(Format, Arguments) -> {error, unicode:characters_to_binary(io_lib:format(Format, Arguments))}.

%% The library must already be running, because it cannot accept a collector before its tables exist.
has_library() -> whereis(prometheus_sup) =/= undefined.

register_collector(true) -> library(prometheus_registry, register_collector, [beamway_exporter_collector]);
register_collector(false) -> ok.

%% The library is not a dependency, so its modules are known only on the running node.
library(Module, Function, Arguments) ->
    ok = apply(Module, Function, Arguments),
    ok.

%% @private
-spec init([supervisor:child_spec()]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(Servers) -> {ok, {#{strategy => one_for_one, intensity => 5, period => 10}, Servers}}.
