%% SPDX-License-Identifier: Apache-2.0
%% @doc The process that owns a server's listening sockets and configuration, which yucan calls by the server's name.
%% Requests do not pass through it.
-module(yucan_server).
-behaviour(gen_server).

-export([start_link/1, figures/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-include("yucan_internal.hrl").

-record(state, {
    name :: atom(),
    options :: yucan_config:checked(),
    metrics :: yucan_metrics:metrics(),
    counters :: atomics:atomics_ref(),
    quota = yucan_quota:new() :: yucan_quota:table(),
    anchor = yucan_tls:anchor() :: port(),
    log = none :: none | {file, atom(), atomics:atomics_ref()} | {function, fun((yucan_log:entry()) -> term())},
    %% For each listener: the user's options, the socket, its address, and its pool.
    listening = [] :: [{map(), gen_tcp:socket(), yucan_req:address(), pid()}],
    %% The callers that wait for a drain to finish.
    waiting = [] :: [{gen_server:from(), Deadline :: integer()}]
}).

-define(LOOK_MS, 20).
-define(SWEEP_MS, 5000).

%% @doc Starts the process; called by yucan_listener_sup with checked options.
-spec start_link(yucan_config:checked()) -> {ok, pid()} | {error, term()}.
start_link(#{name := Name} = Options) -> gen_server:start_link({local, Name}, ?MODULE, Options, []).

%% @doc Returns the name, metrics and latencies (see {@link yucan_metrics:latency/1}) of each server on this node, without calling any process.
-spec figures() -> [{Name :: atom(), #{atom() => integer()}, [{non_neg_integer(), pos_integer()}]}].
figures() ->
    lists:sort([{Name, yucan_metrics:to_map(Metrics, atomics:get(Counters, ?OPEN)), yucan_metrics:latency(Metrics)}
                || {{yucan, Name}, #site{metrics = Metrics, counters = Counters}} <- persistent_term:get()]).

%% @private
-spec init(yucan_config:checked()) -> {ok, #state{}} | {stop, {shutdown, binary()}}.
init(#{name := Name} = Options) ->
    process_flag(trap_exit, true),
    load_all(),
    ok = yucan_file_cache:open(Name),
    _ = erlang:send_after(?SWEEP_MS, self(), sweep),
    State = #state{name = Name, options = Options, metrics = yucan_metrics:new(), counters = atomics:new(3, [])},
    case start(Options, State) of
        {ok, State1} -> {ok, State1};
        {error, Text} -> {stop, {shutdown, Text}}
    end.

%% Loads the modules that may be needed later, because none can be loaded once no file descriptors are left.
load_all() ->
    Own = case application:get_key(yucan, modules) of {ok, Modules} -> Modules; undefined -> [] end,
    _ = code:ensure_modules_loaded([calendar, string, unicode_util, base64, binary, filename, re, zlib, maps, io_lib, io_lib_format, io_lib_pretty,
                                    logger_formatter, logger_h_common, logger_std_h, prim_file, file_io_server | Own]),
    ok.

%% Everything that can fail is done first, so after an error the old configuration stays in effect.
start(Options, State) ->
    try
        Limits = yucan_config:freeze(maps:get(limits, Options)),
        {Stay, Missing, Go} = stay(maps:get(listen, Options), State),
        New = sockets(Missing, Limits),
        {ok, change(Options, Limits, Stay, Go, New, State)}
    catch
        throw:{cannot, Text} -> {error, unicode:characters_to_binary(Text)}
    end.

%% A socket that already listens on a configured address is reused, so that a reload refuses no connection. Listeners
%% whose options have not changed are paired first, because several may have port 0.
stay(Wanted, #state{listening = Listening}) ->
    {Same, Others, Left} = paired(fun(Listen) -> Listen end, Wanted, Listening),
    {Changed, Missing, Go} = paired(fun(#{ip := Ip, port := Port}) -> {Ip, Port} end, Others, Left),
    {Same ++ Changed, Missing, Go}.

paired(Key, Wanted, Listening) ->
    lists:foldr(fun(Listen, {Stay, Missing, Left}) ->
        case lists:splitwith(fun({Old, _, _, _}) -> Key(Old) =/= Key(Listen) end, Left) of
            {Before, [{_, Socket, Local, Pool} | After]} -> {[{Listen, Socket, Local, Pool} | Stay], Missing, Before ++ After};
            {_, []} -> {Stay, [Listen | Missing], Left}
        end
    end, {[], [], Listening}, Wanted).

sockets(Wanted, Limits) ->
    lists:foldl(fun(Listen, Opened) -> [{Listen, socket(Listen, Limits, Opened)} | Opened] end, [], Wanted).

socket(#{ip := Ip, port := Port}, Limits, Opened) ->
    case yucan_tcp:listen(Ip, Port, socket_options(Limits)) of
        {ok, Socket} -> Socket;
        {error, Reason} ->
            close_all(Opened),
            throw({cannot, io_lib:format("cannot listen on ~ts: ~ts~ts", [where(Ip, Port), inet:format_error(Reason), advice(Reason)])})
    end.

advice(eaddrinuse) -> "; end the program that listens there, or choose another port";
advice(eaddrnotavail) -> "; choose an address of this host (`ip address' shows them)";
advice(eacces) -> "; choose a port from 1024 on, or give the right to use this one";
advice(_) -> "".

close_all(Opened) -> lists:foreach(fun({#{ip := Ip}, Socket}) -> close(Socket, Ip) end, Opened).

change(#{name := Name, listen := Wanted} = Options, Limits, Stay, Go, New, #state{metrics = Metrics, counters = Counters} = State) ->
    Sockets = [{Listen, Socket} || {Listen, Socket, _, _} <- Stay] ++ New,
    {Log, Site} = try
        Secured = [secured(L, Options, tls_before(Name)) || L <- Sockets],
        Made = yucan_config:site(Options, Metrics, Limits, Counters),
        Opened = log(maps:get(access_log, Options), State),
        %% ssl keeps processes for these settings until the server stops, so the reload must not fail after this point.
        Listeners = maps:from_list([{Socket, {yucan_tls:open(State#state.anchor, Tls), Proxy}} || {Socket, {Tls, Proxy}} <- Secured]),
        {Opened, Made#site{quota = State#state.quota, listeners = Listeners, log = yucan_log:open(Opened, Limits, Metrics)}}
    catch
        throw:{cannot, Text} -> close_all(New), throw({cannot, Text});
        Class:Reason:Stack ->
            close_all(New),
            throw({cannot, io_lib:format("the init of a handler failed: ~0tp ~0tP", [{Class, Reason}, Stack, 30])})
    end,
    persistent_term:put({yucan, Name}, Site),
    %% If the server has been drained, it now accepts requests again.
    ok = atomics:put(Counters, ?DRAINING, 0),
    %% New connections inherit the option from their listener.
    _ = [inet:setopts(Socket, [{send_timeout, Limits#limits.send_ms}]) || {_, Socket, _, _} <- Stay],
    Started = [listener(L, Options, State) || L <- New],
    lists:foreach(fun close/1, Go),
    _ = case Log of {file, _, _} -> ok; _ -> yucan_listener_sup:stop_log(Name) end,
    Order = fun({A, _, _, _}, {B, _, _, _}) -> place(A, Wanted) =< place(B, Wanted) end,
    State#state{options = Options, log = Log, listening = lists:sort(Order, Stay ++ Started)}.

place(Listen, Wanted) -> length(lists:takewhile(fun(L) -> L =/= Listen end, Wanted)).

%% The certificate's file may have been renewed, but ssl caches files for minutes.
secured({#{tls := none, proxy_protocol := Proxy}, Socket}, _, _) -> {Socket, {none, Proxy}};
secured({#{tls := Tls, proxy_protocol := Proxy}, Socket}, #{hosts := Hosts, http2 := Http2}, Before) ->
    _ = [ssl:clear_pem_cache() || whereis(ssl_pem_cache) =/= undefined],
    {Old, _} = maps:get(Socket, Before, {none, false}),
    {Socket, {yucan_tls:server(Old, {Tls, Hosts}, Http2), Proxy}}.

tls_before(Name) ->
    case persistent_term:get({yucan, Name}, none) of
        #site{listeners = Listeners} -> Listeners;
        none -> #{}
    end.

listener({#{ip := Ip} = Listen, Socket}, #{limits := #{acceptors := Acceptors}}, #state{name = Name, counters = Counters, quota = Quota}) ->
    {ok, Local} = case Ip of {local, _} -> {ok, Ip}; _ -> inet:sockname(Socket) end,
    Listener = #listener{socket = Socket, server = Name, pool = self(), local = Local, counters = Counters, quota = Quota},
    {ok, Pool} = yucan_listener_sup:start_pool(Name, Listener, Acceptors),
    {Listen, Socket, Local, Pool}.

%% Called last, so that a rejected reload does not affect the log.
log({file, File}, #state{log = {file, Process, Queued}}) -> {opened(yucan_log:move(Process, File), File), Process, Queued};
log({file, File}, #state{name = Name, metrics = Metrics}) ->
    Queued = atomics:new(1, []),
    Process = list_to_atom(atom_to_list(Name) ++ "_access_log"),
    {opened(yucan_listener_sup:start_log(Name, Process, File, Queued, Metrics), File), Process, Queued};
log(Other, _) -> Other.

opened(ok, _) -> file;
opened({error, Reason}, File) -> throw({cannot, io_lib:format("the access log ~ts cannot be opened: ~ts", [yucan_log:path(File), file:format_error(Reason)])}).

where({local, Path}, _) -> Path;
where(Ip, Port) -> io_lib:format("~ts port ~b", [inet:ntoa(Ip), Port]).

%% Because exit_on_close is false, a client that has closed its sending side still gets its response. `buffer' limits how much one read may return.
socket_options(#limits{backlog = Backlog, send_ms = Send}) ->
    [binary, {active, false}, {packet, raw}, {reuseaddr, true}, {backlog, Backlog}, {nodelay, true}, {exit_on_close, false},
     {send_timeout, Send}, {send_timeout_close, true}, {buffer, 8192}].

%% The pool stays alive until its connections have closed (see handle_info).
close({_, Socket, Local, Pool}) ->
    ok = close(Socket, Local),
    yucan_pool:drain(Pool).

%% Removes a unix socket's file before closing the socket, because another server may use that name as soon as the socket is closed.
close(Socket, Local) ->
    _ = case Local of {local, Path} -> file:delete(Path); _ -> ok end,
    gen_tcp:close(Socket).

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
handle_call({drain, Timeout}, From, #state{counters = Counters, listening = Listening, waiting = Waiting} = State) ->
    atomics:put(Counters, ?DRAINING, 1),
    lists:foreach(fun close/1, Listening),
    _ = [self() ! look || Waiting =:= []],
    {noreply, State#state{listening = [], waiting = [{From, erlang:monotonic_time(millisecond) + Timeout} | Waiting]}};
handle_call(info, _, #state{name = Name, listening = Listening, metrics = Metrics, counters = Counters} = State) ->
    {reply, #{name => Name, listen => [Local || {_, _, Local, _} <- Listening], schemes => [scheme(Listen) || {Listen, _, _, _} <- Listening], metrics => yucan_metrics:to_map(Metrics, atomics:get(Counters, ?OPEN))}, State};
handle_call(metrics_text, _, #state{name = Name, metrics = Metrics, counters = Counters} = State) ->
    {reply, yucan_metrics:text(yucan_metrics:families([{Name, yucan_metrics:to_map(Metrics, atomics:get(Counters, ?OPEN)), yucan_metrics:latency(Metrics)}])), State};
handle_call(supervisor, _, State) ->
    {reply, hd(get('$ancestors')), State}.

scheme(#{tls := none}) -> http;
scheme(_) -> https.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(look, #state{waiting = Waiting, counters = Counters} = State) ->
    Open = atomics:get(Counters, ?OPEN),
    Now = erlang:monotonic_time(millisecond),
    {Ended, Left} = lists:partition(fun({_, Deadline}) -> Open =:= 0 orelse Now >= Deadline end, Waiting),
    _ = [gen_server:reply(From, case Open of 0 -> ok; _ -> {error, {still_open, Open}} end) || {From, _} <- Ended],
    _ = [erlang:send_after(?LOOK_MS, self(), look) || Left =/= []],
    {noreply, State#state{waiting = Left}};
handle_info(sweep, #state{quota = Quota} = State) ->
    _ = erlang:send_after(?SWEEP_MS, self(), sweep),
    ok = yucan_quota:sweep(Quota),
    {noreply, State};
handle_info(_, State) -> {noreply, State}.

%% @private
-spec terminate(term(), #state{}) -> ok.
terminate(_, #state{name = Name, listening = Listening}) ->
    _ = [close(Socket, Local) || {_, Socket, Local, _} <- Listening],
    %% The pools are stopped before the configuration is removed, because every request reads the configuration.
    ok = yucan_listener_sup:stop_pools(Name),
    _ = persistent_term:erase({yucan, Name}),
    yucan_file_cache:close(Name).
