%% SPDX-License-Identifier: Apache-2.0
%% @doc A small, fast HTTP server that runs under your own supervisor.
%%
%% ```
%% {ok, _} = yucan:start_link(#{listen => [#{port => 8080}], handler => {hello, []}}).
%% '''
%% {@link yucan_config:options()} lists the options, and {@link yucan_handler} describes handlers. docs/options.md has the defaults and the effects of
%% all options and limits. A function that takes the name of a server exits with `{noproc, _}' if there is no such server. The default name is
%% `yucan'.
-module(yucan).

-export([start_link/1, child_spec/1, start/1, stop/1, port/1, reload/2, drain/2, info/1, metrics_text/1, figures/0]).

%% @doc Starts a server that is linked to the caller. `{bad_options, Text}' describes an invalid option; any other text describes a system error.
-spec start_link(yucan_config:options()) -> {ok, pid()} | {error, {bad_options, binary()} | term()}.
start_link(Options) ->
    case yucan_config:check(Options) of
        {ok, Checked} -> started(yucan_listener_sup:start_server(Checked));
        {error, Text} -> {error, {bad_options, Text}}
    end.

started({error, {shutdown, {failed_to_start_child, server, {shutdown, Text}}}}) when is_binary(Text) -> {error, Text};
started(Result) -> Result.

%% @doc Returns a child specification for a supervisor.
-spec child_spec(yucan_config:options()) -> supervisor:child_spec().
child_spec(Options) ->
    #{id => maps:get(name, Options, yucan), start => {?MODULE, start_link, [Options]}, type => supervisor, shutdown => infinity}.

%% @doc Starts a server under the supervisor of the application yucan, and starts the application if necessary.
-spec start(yucan_config:options()) -> {ok, pid()} | {error, term()}.
start(Options) ->
    case application:ensure_all_started(yucan) of
        {ok, _} -> yucan_app:start_server(child_spec(Options));
        {error, Reason} -> {error, Reason}
    end.

%% @doc Stops a server, and closes its connections immediately. If the server is under your own supervisor, its child specification determines whether
%% it is restarted.
-spec stop(Name :: atom()) -> ok.
stop(Name) ->
    Supervisor = gen_server:call(Name, supervisor, 10000),
    case yucan_app:stop_server(Supervisor) of
        ok -> ok;
        not_mine ->
            unlink(Supervisor),
            gen_server:stop(Supervisor, normal, 30000)
    end.

%% @doc Returns the port of the first listener.
-spec port(Name :: atom()) -> inet:port_number().
port(Name) -> gen_server:call(Name, port, 10000).

%% @doc Gives a running server a new configuration. No connection is lost. After an error, the old configuration stays in effect. A server that has
%% been drained accepts connections again.
-spec reload(Name :: atom(), yucan_config:options()) -> ok | {error, Text :: binary()}.
reload(Name, Options) -> gen_server:call(Name, {reload, Options}, 60000).

%% @doc Stops accepting connections, and waits until the open ones have closed. Idle connections are closed, and requests in progress get their
%% responses.
-spec drain(Name :: atom(), TimeoutMs :: non_neg_integer()) -> ok | {error, {still_open, pos_integer()}}.
drain(Name, Timeout) -> gen_server:call(Name, {drain, Timeout}, Timeout + 10000).

%% @doc Returns the addresses on which the server listens, and the server's metrics.
-spec info(Name :: atom()) -> #{atom() => term()}.
info(Name) -> gen_server:call(Name, info, 10000).

%% @doc Returns the metrics as Prometheus text.
-spec metrics_text(Name :: atom()) -> iodata().
metrics_text(Name) -> gen_server:call(Name, metrics_text, 10000).

%% @doc Returns the name, the metrics and a histogram of the response times of each server on this
%% node, without calling any process. `Count' is the number of responses in the slot `Place';
%% {@link yucan_metrics:bound_us/1} returns the upper bound of a slot.
-spec figures() -> [{Name :: atom(), #{atom() => integer()}, [{Place :: non_neg_integer(), Count :: pos_integer()}]}].
figures() -> yucan_server:figures().
