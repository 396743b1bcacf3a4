%% SPDX-License-Identifier: Apache-2.0
%% @doc The web console: what the nodes of a cluster do, in a browser.
%%
%% In a node of the cluster one line of configuration is enough (`sys.config'), and the application among those that are started:
%% ```
%% {beamway_console, [{port, 8090}]}'''
%% From a shell: `{ok, Url} = beamway_console:start(#{})'. On its own: the command `beamway console'. Options: {@link beamway_console_config}.
-module(beamway_console).

-export([start/1, stop/0, url/0]).

%% @doc Starts the application with these options in place of those of its environment, and gives the address to open.
-spec start(#{atom() => term()}) -> {ok, Url :: binary()} | {error, Text :: binary()}.
start(Options) ->
    _ = application:load(beamway_console),
    case beamway_console_config:read(maps:to_list(Options)) of
        {ok, _} ->
            ok = application:set_env(beamway_console, started_with, Options),
            started(application:ensure_all_started(beamway_console));
        {error, Text} -> {error, Text}
    end.

started({ok, _}) -> {ok, url()};
started({error, Reason}) -> {error, unicode:characters_to_binary(io_lib:format("~ts", [why(Reason)]))}.

%% What the web server says of its socket lies deep in what the supervisors say.
why(Reason) ->
    case text(Reason) of
        none -> io_lib:format("~0tP", [Reason, 20]);
        Text -> Text
    end.

text(Text) when is_binary(Text) -> Text;
text(Tuple) when is_tuple(Tuple) -> first([text(Element) || Element <- tuple_to_list(Tuple)]);
text(_) -> none.

first(Texts) ->
    case [Text || Text <- Texts, Text =/= none] of
        [Text | _] -> Text;
        [] -> none
    end.

%% @doc Stops it. Collectors on other nodes end by themselves.
-spec stop() -> ok | {error, term()}.
stop() -> application:stop(beamway_console).

%% @doc The address of a console that runs on this node.
-spec url() -> binary().
url() -> beamway_console_config:url(beamway_console_hub:config(), yucan:port(beamway_console_web:server())).
