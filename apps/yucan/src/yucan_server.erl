%% SPDX-License-Identifier: Apache-2.0
%% @doc Owner of one server: its listening sockets, its configuration, its end. No request passes through it.
-module(yucan_server).
-behaviour(gen_server).

-export([start_link/1, port/1, reload/2, drain/2, info/1, supervisor/1, metrics_text/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-include("yucan_internal.hrl").

-record(state, {
    name :: atom(),
    options :: yucan_config:options(),
    metrics :: yucan_metrics:metrics(),
    open :: atomics:atomics_ref(),
    log = none :: none | {file, atom(), atomics:atomics_ref()} | {function, fun()},
    %% What the user asked for, the socket, where it listens, its pool.
    listening = [] :: [{map(), gen_tcp:socket(), yucan_req:address(), pid()}],
    waiting = none :: none | {gen_server:from(), Deadline :: integer()}
}).

-define(LOOK_MS, 20).

%% @doc Started by yucan_server_sup, with checked options.
-spec start_link(yucan_config:options()) -> {ok, pid()} | {error, term()}.
start_link(#{name := Name} = Options) ->
    gen_server:start_link({local, Name}, ?MODULE, Options, []).

%% @doc Port of the first listener.
-spec port(atom()) -> inet:port_number().
port(Name) -> gen_server:call(Name, port, 10000).

%% @doc Another configuration; requests that are under way end under the old one.
-spec reload(atom(), yucan_config:options()) -> ok | {error, Text :: binary()}.
reload(Name, Options) -> gen_server:call(Name, {reload, Options}, 60000).

%% @doc No new connections; waits until those that are open have ended.
-spec drain(atom(), TimeoutMs :: non_neg_integer()) -> ok | {error, {still_open, pos_integer()}}.
drain(Name, Timeout) -> gen_server:call(Name, {drain, Timeout}, Timeout + 10000).

%% @doc Addresses and figures.
-spec info(atom()) -> #{atom() => term()}.
info(Name) -> gen_server:call(Name, info, 10000).

%% @doc The same figures as Prometheus text.
-spec metrics_text(atom()) -> iodata().
metrics_text(Name) -> gen_server:call(Name, metrics_text, 10000).

%% @doc The supervisor of the server.
-spec supervisor(atom()) -> pid().
supervisor(Name) -> gen_server:call(Name, supervisor, 10000).

%% @private
-spec init(yucan_config:options()) -> {ok, #state{}} | {stop, {shutdown, binary()}}.
init(#{name := Name} = Options) ->
    process_flag(trap_exit, true),
    State = #state{name = Name, options = Options, metrics = yucan_metrics:new(), open = atomics:new(1, [])},
    case start(Options, State) of
        {ok, State1} -> {ok, State1};
        {error, Text} -> {stop, {shutdown, Text}}
    end.

start(Options, State) ->
    try
        State1 = configure(Options, State),
        {ok, listen(Options, State1)}
    catch
        throw:{cannot, Text} -> {error, unicode:characters_to_binary(Text)}
    end.

configure(#{name := Name} = Options, #state{metrics = Metrics} = State) ->
    Limits = yucan_limits:freeze(maps:get(limits, Options)),
    Log = log(maps:get(access_log, Options), State),
    Site = try
        yucan_config:site(Options, yucan_log:open(Log, Limits, Metrics), Metrics, Limits)
    catch
        Class:Reason:Stack -> throw({cannot, io_lib:format("the init of a handler failed: ~0tp ~0tP", [{Class, Reason}, Stack, 30])})
    end,
    persistent_term:put({yucan, Name}, Site),
    State#state{options = Options, log = Log}.

log({file, File}, #state{options = #{access_log := {file, File}}, log = {file, _, _} = Log}) -> Log;
log({file, File}, #state{name = Name, metrics = Metrics}) ->
    yucan_parts_sup:stop_log(Name),
    Queued = atomics:new(1, []),
    Process = list_to_atom(atom_to_list(Name) ++ "_access_log"),
    case yucan_parts_sup:start_log(Name, Process, File, Queued, Metrics) of
        ok -> {file, Process, Queued};
        {error, Reason} -> throw({cannot, io_lib:format("the access log ~ts cannot be opened: ~0tp", [File, Reason])})
    end;
log(Other, _) -> Other.

%% Listeners that stay are not touched, so that no connection is refused meanwhile.
listen(#{listen := Wanted} = Options, #state{listening = Before} = State) ->
    Limits = yucan_limits:freeze(maps:get(limits, Options)),
    Kept = [{Key, Old} || {Key, Old} <- pair([socket_key(L) || L <- Wanted], Before)],
    {Stay, Go} = lists:partition(fun(Old) -> lists:keymember(Old, 2, Kept) end, Before),
    New = [open(L, Stay, Limits, Options, State) || L <- Wanted],
    lists:foreach(fun close/1, Go),
    State#state{listening = New}.

pair(Keys, Before) -> [{Key, Old} || Key <- Keys, Old <- Before, socket_key(element(1, Old)) =:= Key].

%% TLS options are in the acceptors: another set needs another listener.
socket_key(#{ip := Ip, port := Port, tls := Tls, proxy_protocol := Proxy}) -> {Ip, Port, Tls, Proxy}.

open(Listen, Stay, Limits, Options, State) ->
    case [Old || {Other, _, _, _} = Old <- Stay, socket_key(Other) =:= socket_key(Listen)] of
        [Old | _] -> Old;
        [] -> open(Listen, Limits, Options, State)
    end.

open(#{ip := Ip, port := Port, tls := Tls, proxy_protocol := Proxy} = Listen, Limits, #{hosts := Hosts}, #state{name = Name, open = Open}) ->
    case gen_tcp:listen(Port, socket_options(Ip, Limits)) of
        {ok, Socket} ->
            {ok, Local} = local(Ip, Socket),
            Listener = #listener{socket = Socket, server = Name, pool = self(), local = Local, proxy_protocol = Proxy, open = Open,
                                 tls = yucan_tls:options(Tls, Hosts)},
            {ok, Pool} = yucan_parts_sup:start_pool(Name, Listener, Limits#limits.acceptors),
            {Listen, Socket, Local, Pool};
        {error, Reason} ->
            throw({cannot, io_lib:format("cannot listen on ~ts: ~ts", [where(Ip, Port), inet:format_error(Reason)])})
    end.

where({local, Path}, _) -> Path;
where(Ip, Port) -> io_lib:format("~ts port ~b", [inet:ntoa(Ip), Port]).

local({local, Path}, _) -> {ok, {local, Path}};
local(_, Socket) -> inet:sockname(Socket).

%% exit_on_close false: a client that has closed its side still gets its answer. buffer: what one read may bring.
socket_options(Ip, #limits{backlog = Backlog, send_ms = Send}) ->
    family(Ip) ++ [binary, {active, false}, {packet, raw}, {reuseaddr, true}, {backlog, Backlog}, {nodelay, true}, {exit_on_close, false},
        {send_timeout, Send}, {send_timeout_close, true}, {buffer, 8192}].

family({local, _} = Local) -> [{ifaddr, Local}];
family(Ip) when tuple_size(Ip) =:= 8 -> [inet6, {ip, Ip}];
family(Ip) -> [{ip, Ip}].

%% The pool stays until its connections have ended (see handle_info).
close({_, Socket, _, Pool}) ->
    _ = gen_tcp:close(Socket),
    yucan_pool:drain(Pool).

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}} | {noreply, #state{}}.
handle_call(port, _, #state{listening = [{_, _, {_, Port}, _} | _]} = State) ->
    {reply, Port, State};
handle_call(port, _, State) ->
    {reply, 0, State};
handle_call({reload, Options}, _, #state{name = Name} = State) ->
    case yucan_config:check(maps:merge(#{name => Name}, Options)) of
        {ok, #{name := Name} = Checked} ->
            case start(Checked, State) of
                {ok, State1} -> {reply, ok, State1};
                {error, Text} -> {reply, {error, Text}, State}
            end;
        {ok, #{name := Other}} ->
            {reply, {error, unicode:characters_to_binary(io_lib:format("name is ~ts; a reload keeps ~ts", [Other, Name]))}, State};
        {error, Text} ->
            {reply, {error, Text}, State}
    end;
handle_call({drain, Timeout}, From, #state{name = Name, listening = Listening} = State) ->
    persistent_term:put({yucan, Name}, (persistent_term:get({yucan, Name}))#site{draining = true}),
    lists:foreach(fun close/1, Listening),
    self() ! look,
    {noreply, State#state{listening = [], waiting = {From, erlang:monotonic_time(millisecond) + Timeout}}};
handle_call(info, _, #state{name = Name, listening = Listening, metrics = Metrics, open = Open} = State) ->
    {reply, #{name => Name, listen => [Local || {_, _, Local, _} <- Listening], metrics => yucan_metrics:to_map(Metrics, atomics:get(Open, 1))}, State};
handle_call(metrics_text, _, #state{name = Name, metrics = Metrics, open = Open} = State) ->
    {reply, yucan_metrics:to_text(Name, Metrics, atomics:get(Open, 1)), State};
handle_call(supervisor, _, State) ->
    {reply, hd(get('$ancestors')), State}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) ->
    {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(look, #state{waiting = {From, Deadline}, open = Open} = State) ->
    case {atomics:get(Open, 1), erlang:monotonic_time(millisecond) >= Deadline} of
        {0, _} -> gen_server:reply(From, ok), {noreply, State#state{waiting = none}};
        {Left, true} -> gen_server:reply(From, {error, {still_open, Left}}), {noreply, State#state{waiting = none}};
        _ -> _ = erlang:send_after(?LOOK_MS, self(), look), {noreply, State}
    end;
handle_info(_, State) ->
    {noreply, State}.

%% @private
-spec terminate(term(), #state{}) -> ok.
terminate(_, #state{name = Name, listening = Listening}) ->
    _ = [gen_tcp:close(Socket) || {_, Socket, _, _} <- Listening],
    _ = [file:delete(Path) || {_, _, {local, Path}, _} <- Listening],
    _ = persistent_term:erase({yucan, Name}),
    ok.
