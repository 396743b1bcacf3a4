%% SPDX-License-Identifier: Apache-2.0
%% @doc The web console, which shows in a browser what the nodes of a cluster are doing.
%%
%% On a node of the cluster, one line in `sys.config' is enough, provided that the release also starts the application:
%% ```
%% {beamway_console, [{port, 8090}]}'''
%% From a shell: `{ok, Url} = beamway_console:start(#{})'. The command `beamway console' runs it in a separate VM. {@link beamway_console_config}
%% lists the options.
-module(beamway_console).

-export([start/1, stop/0, url/0]).

%% @doc Starts the application with these options instead of those in its environment, and returns the address to open.
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

%% Finds the web server's error about its socket, which is buried in the supervisor reports.
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

%% @doc Stops the console. Collectors on other nodes exit on their own.
-spec stop() -> ok | {error, term()}.
stop() -> application:stop(beamway_console).

%% @doc Returns the address of the console running on this node.
-spec url() -> binary().
url() -> beamway_console_config:url(beamway_console_hub:config(), yucan:port(beamway_console_web:server())).
