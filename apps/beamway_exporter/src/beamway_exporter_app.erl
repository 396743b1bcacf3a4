%% SPDX-License-Identifier: Apache-2.0
%% @private The application. Where the library prometheus.erl runs, it registers a collector with it, and the node's own endpoint shows the figures.
%% Elsewhere a server of yucan answers `GET /metrics'.
%%
%% <ul><li>`port' (9464; 0: any free one): naming it means a server also beside prometheus.erl</li>
%% <li>`ip' (`{127,0,0,1}'): where the server listens. The figures name nodes and attributes, and nobody is asked for a secret</li></ul>
-module(beamway_exporter_app).
-behaviour(application).
-behaviour(supervisor).

-export([start/2, stop/1, init/1]).

-define(PORT, 9464).

%% @private
-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_, _) ->
    case server(application:get_env(beamway_exporter, port), application:get_env(beamway_exporter, ip, {127, 0, 0, 1}), has_library()) of
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

server(undefined, _, true) -> {ok, []};
server(undefined, Ip, false) -> server({ok, ?PORT}, Ip, false);
server({ok, Port}, _, _) when not is_integer(Port); Port < 0; Port > 65535 -> bad("port is ~0tP; 0 to 65535 is expected", [Port, 12]);
server({ok, Port}, Ip, _) ->
    case inet:is_ip_address(Ip) of
        true -> {ok, [yucan:child_spec(#{name => beamway_exporter, listen => [#{ip => Ip, port => Port}], routes => [{"/metrics", beamway_exporter_handler, none}]})]};
        false -> bad("ip is ~0tP; an address as a tuple is expected", [Ip, 12])
    end.

bad(Format, Arguments) -> {error, unicode:characters_to_binary(io_lib:format(Format, Arguments))}.

%% The library must run before: without its tables it takes no collector.
has_library() -> whereis(prometheus_sup) =/= undefined.

register_collector(true) -> library(prometheus_registry, register_collector, [beamway_exporter_collector]);
register_collector(false) -> ok.

%% It is no dependency, so nothing but the running node knows its modules.
library(Module, Function, Arguments) ->
    ok = apply(Module, Function, Arguments),
    ok.

%% @private
-spec init([supervisor:child_spec()]) -> {ok, {supervisor:sup_flags(), [supervisor:child_spec()]}}.
init(Servers) -> {ok, {#{strategy => one_for_one, intensity => 5, period => 10}, Servers}}.
