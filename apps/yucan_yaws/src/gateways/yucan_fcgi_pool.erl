%% SPDX-License-Identifier: Apache-2.0
%% @doc A pool of idle connections to FastCGI applications.
%%
%% Idle connections are stored in a public table, so a request can take one and return it without calling a process. The process that uses a
%% connection is linked to its socket, and receives its data as messages. The pool's process receives the messages of idle connections, so it notices
%% when an application closes one.
%%
%% php-fpm assigns a process to each connection for as long as the connection is open, so an idle connection can block a
%% new one that waits for a process. Therefore, for each request that has had no response on its new connection for
%% `WAIT_MS', the pool closes one connection, either an idle one or the next one that is returned. php-fpm decides which
%% connection gets the process, so the pool only counts closed connections and does not assign them to requests. A
%% closed connection stops counting when any new connection has received its response, or after `SOON_MS'. Until then
%% all other connections stay open, so if there are more requests than processes, only a few new connections are needed
%% instead of one per request. Returned connections pass through the pool's process only while a request is waiting.
%%
%% There is a single pool per VM, because several servers may use the same application.
-module(yucan_fcgi_pool).
-behaviour(gen_server).

-export([start_link/0, checkout/1, wait/1, checkin/3, answered/1, idle/1, close/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export_type([address/0, ticket/0]).

-define(KEEP_MS, 5000).
-define(KEEP_MAX, 64).
-define(WAIT_MS, 20).
-define(SOON_MS, 1000).
-define(CALL_MS, 5000).

-type address() :: {inet:hostname() | inet:ip_address(), inet:port_number()} | {local, file:filename_all()}.
%% The path of a Unix socket should be a binary, because keys that contain it are compared for each request.
-type ticket() :: reference().
%% A ticket identifies a request that waits for its first response on a new connection.

-record(state, {waiting = #{} :: #{ticket() => {address(), Since :: integer()}},
                %% The times at which connections were closed for waiting requests, latest first.
                closed = [] :: [{address(), At :: integer()}],
                %% Whether a message to this process is already on its way. `sweep' is sent while
                %% there are idle connections, and `let_in' while a request may be waiting for it.
                sweeps = false :: boolean(),
                lets_in = false :: boolean()}).

%% The table contains {{Address, Number}, Socket, Armed, Since}, ordered so that the most recently used connection is taken first, and {waiting,
%% Count}.
-define(TABLE, ?MODULE).
-define(ROW(Address), {{Address, '_'}, '_', '_', '_'}).

%% @doc Starts the process; called by yucan_yaws_sup.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Takes an idle connection, which then belongs to the caller, and returns it with the number of messages that may still arrive on it. If there
%% is no idle connection, returns a ticket: the caller opens a connection, and reports the first response on it with {@link answered/1}. If the pool
%% is not running, the ticket is `none'.
-spec checkout(address()) -> {kept, gen_tcp:socket(), Armed :: pos_integer()} | {new, ticket() | none}.
checkout(Address) ->
    _ = [yucan_yaws_app:ensure() || whereis(?MODULE) =:= undefined],
    try take(Address) of
        none -> {new, wait(Address)};
        Kept -> Kept
    catch _:_ -> {new, none}
    end.

%% @doc Returns a ticket for a new connection, even if there are idle connections.
-spec wait(address()) -> ticket() | none.
wait(Address) ->
    try gen_server:call(?MODULE, {wait, Address, self()}, ?CALL_MS)
    catch exit:_ -> none
    end.

take(Address) ->
    case ets:prev(?TABLE, {Address, last}) of
        {Address, _} = Key ->
            case ets:take(?TABLE, Key) of
                [{_, Socket, Armed, _}] -> mine(Address, Socket, Armed);
                [] -> take(Address)
            end;
        _ -> none
    end.

%% An application may close a connection at any time.
mine(Address, Socket, Armed) ->
    try erlang:port_connect(Socket, self()), is_open(Address, Socket) of
        true -> {kept, Socket, Armed};
        false ->
            close(Socket),
            take(Address)
    catch error:_ -> take(Address)
    end.

%% On a Unix socket, only the next send detects a closed connection.
is_open({local, _}, _) -> true;
is_open(_, Socket) -> not yucan_tcp:is_closed(Socket).

%% @doc Returns a connection to the pool; this many messages may still arrive on it.
-spec checkin(address(), gen_tcp:socket(), Armed :: pos_integer()) -> ok.
checkin(Address, Socket, Armed) ->
    try
        true = erlang:port_connect(Socket, whereis(?MODULE)),
        back(Address, Socket, Armed),
        %% The connection is inserted last, because a socket that is neither in the table nor linked would be lost if this process were killed.
        _ = unlink(Socket),
        ok
    catch error:_ -> close(Socket)
    end.

back(Address, Socket, Armed) ->
    case ets:lookup_element(?TABLE, waiting, 2) of
        0 -> keep(Address, Socket, Armed);
        _ -> gen_server:cast(?MODULE, {checkin, Address, Socket, Armed})
    end.

%% The first connection in an empty pool restarts the sweeps.
keep(Address, Socket, Armed) ->
    case ets:info(?TABLE, size) of
        Size when Size > ?KEEP_MAX -> gen_tcp:close(Socket);
        Size ->
            true = ets:insert(?TABLE, {{Address, erlang:unique_integer([monotonic])}, Socket, Armed, now_ms()}),
            _ = [gen_server:cast(?MODULE, sweep_later) || Size =:= 1],
            ok
    end.

%% @doc Closes a connection of the caller, and removes its messages from the caller's queue.
-spec close(gen_tcp:socket()) -> ok.
close(Socket) ->
    ok = gen_tcp:close(Socket),
    flush(Socket).

flush(Socket) ->
    receive
        {tcp, Socket, _} -> flush(Socket);
        {tcp_passive, Socket} -> flush(Socket);
        {tcp_closed, Socket} -> flush(Socket);
        {tcp_error, Socket, _} -> flush(Socket)
    after 0 -> ok
    end.

now_ms() -> erlang:monotonic_time(millisecond).

%% @doc Reports that the request with this ticket has received its first response or has failed.
-spec answered(ticket()) -> ok.
answered(Ticket) -> gen_server:cast(?MODULE, {answered, Ticket}).

%% @doc Returns the number of idle connections to an address.
-spec idle(address()) -> non_neg_integer().
idle(Address) -> gen_server:call(?MODULE, {idle, Address}, ?CALL_MS).

%% @private
-spec init([]) -> {ok, #state{}}.
init([]) ->
    %% This process traps exits, because a socket that is closed when its user exits may also be linked to this process.
    true = is_boolean(process_flag(trap_exit, true)),
    %% The table uses centralized counters, because each request reads its size.
    ?TABLE = ets:new(?TABLE, [named_table, public, ordered_set, {write_concurrency, true}, {decentralized_counters, false}]),
    {ok, counted(#state{})}.

counted(#state{waiting = Waiting} = State) ->
    true = ets:insert(?TABLE, {waiting, map_size(Waiting)}),
    State.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({idle, Address}, _, State) -> {reply, length(ets:match_object(?TABLE, ?ROW(Address))), State};
handle_call({wait, Address, Owner}, _, #state{waiting = Waiting} = State) ->
    Ticket = erlang:monitor(process, Owner),
    {reply, Ticket, let_in_later(counted(State#state{waiting = Waiting#{Ticket => {Address, now_ms()}}}))}.

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({checkin, Address, Socket, Armed}, State) ->
    Now = now_ms(),
    case is_wanted(Address, Now, State) of
        true ->
            ok = gen_tcp:close(Socket),
            {noreply, closed(Address, Now, State)};
        false ->
            ok = keep(Address, Socket, Armed),
            {noreply, State}
    end;
handle_cast(sweep_later, #state{sweeps = false} = State) ->
    _ = erlang:send_after(?KEEP_MS, self(), sweep),
    {noreply, State#state{sweeps = true}};
handle_cast(sweep_later, State) -> {noreply, State};
handle_cast({answered, Ticket}, State) ->
    _ = erlang:demonitor(Ticket, [flush]),
    {noreply, has_waited(Ticket, State)}.

%% Returns whether a request is waiting for a process and no connection has been closed for it.
is_wanted(_, _, #state{waiting = Waiting}) when map_size(Waiting) =:= 0 -> false;
is_wanted(Address, Now, #state{waiting = Waiting, closed = Closed}) ->
    Due = length([Of || {Of, Since} <- maps:values(Waiting), Of =:= Address, Since =< Now - ?WAIT_MS]),
    Due > length([Of || {Of, At} <- Closed, Of =:= Address, At > Now - ?SOON_MS]).

closed(Address, Now, #state{closed = Closed} = State) ->
    State#state{closed = [{Address, Now} | [Known || {_, At} = Known <- Closed, At > Now - ?SOON_MS]]}.

has_waited(Ticket, #state{waiting = Waiting, closed = Closed} = State) ->
    case maps:take(Ticket, Waiting) of
        {{Address, _}, Rest} -> counted(State#state{waiting = Rest, closed = lists:keydelete(Address, 1, Closed)});
        error -> State
    end.

let_in_later(#state{lets_in = false, waiting = Waiting} = State) when map_size(Waiting) > 0 ->
    _ = erlang:send_after(?WAIT_MS, self(), let_in),
    State#state{lets_in = true};
let_in_later(State) -> State.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({'DOWN', Ticket, process, _, _}, State) -> {noreply, has_waited(Ticket, State)};
handle_info(let_in, #state{waiting = Waiting} = State) ->
    Next = lists:foldl(fun let_in/2, State#state{lets_in = false}, lists:usort([Address || {Address, _} <- maps:values(Waiting)])),
    {noreply, let_in_later(Next)};
%% Data on an idle connection is a protocol violation, so the connection is closed.
handle_info({tcp, Socket, _}, State) ->
    ok = gen_tcp:close(Socket),
    {noreply, State};
handle_info(sweep, State) ->
    Limit = now_ms() - ?KEEP_MS,
    _ = [drop(Key) || [Key] <- ets:select(?TABLE, [{{'$1', '_', '_', '$2'}, [{'=<', '$2', Limit}], [['$1']]}])],
    case ets:info(?TABLE, size) of
        1 -> {noreply, State#state{sweeps = false}};
        _ -> handle_cast(sweep_later, State#state{sweeps = false})
    end;
handle_info(_, State) -> {noreply, State}.

%% Closes the least recently used idle connections.
let_in(Address, State) ->
    lists:foldl(fun({Key, _, _, _}, Before) ->
        Now = now_ms(),
        case is_wanted(Address, Now, Before) andalso drop(Key) of
            true -> closed(Address, Now, Before);
            false -> Before
        end
    end, State, ets:match_object(?TABLE, ?ROW(Address))).

%% A request may have taken the connection in the meantime.
drop(Key) ->
    case ets:take(?TABLE, Key) of
        [{_, Socket, _, _}] -> ok =:= gen_tcp:close(Socket);
        [] -> false
    end.
