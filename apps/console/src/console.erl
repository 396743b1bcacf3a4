%% SPDX-License-Identifier: Apache-2.0
%% @doc The web console: what the nodes of a cluster do, in a browser.
%%
%% In a node of the cluster one line of configuration is enough (`sys.config'), and the application among those that are started:
%% ```
%% {console, [{port, 8090}]}'''
%% From a shell: `{ok, Url} = console:start(#{})'. On its own: the command `beamway console'. Options: {@link console_config}.
-module(console).

-export([start/1, stop/0, url/0]).

%% @doc Starts the application with these options in place of those of its environment, and gives the address to open.
-spec start(#{atom() => term()}) -> {ok, Url :: binary()} | {error, Text :: binary()}.
start(Options) ->
    _ = application:load(console),
    case console_config:read(maps:to_list(Options)) of
        {ok, _} ->
            ok = lists:foreach(fun({Key, _}) -> application:unset_env(console, Key) end, application:get_all_env(console)),
            ok = maps:foreach(fun(Key, Value) -> application:set_env(console, Key, Value) end, Options),
            started(application:ensure_all_started(console));
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
stop() -> application:stop(console).

%% @doc The address of a console that runs on this node.
-spec url() -> binary().
url() -> console_config:url(console_hub:config(), yucan:port(console_web)).
