%% SPDX-License-Identifier: Apache-2.0
%% @doc Keeps connections to FastCGI applications for the next request.
%%
%% php-fpm gives a process to a connection as long as that is open. So a connection that is kept while another one waits for a process
%% stops that one. For each request that has had no answer on its new connection for `WAIT_MS' one connection is closed, when it comes back or
%% where it is kept. Who gets the process is php-fpm's affair, so closed connections are counted, not assigned: one is done with when any
%% new connection has its answer, or after `SOON_MS'. Until then connections are kept, so that more requests than processes cost a few new
%% connections and not one each. One process for a VM, since servers may share an application, under yucan_yaws_sup. Should it crash,
%% the kept connections end and requests that are under way go on.
-module(yucan_fcgi_pool).
-behaviour(gen_server).

-export([start_link/0, checkout/1, checkin/2, answered/1, idle/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export_type([address/0, ticket/0]).

-define(KEEP_MS, 5000).
-define(KEEP_MAX, 64).
-define(WAIT_MS, 20).
-define(SOON_MS, 1000).
-define(CALL_MS, 5000).

-type address() :: {inet:hostname() | inet:ip_address(), inet:port_number()} | {local, file:filename()}.
-type ticket() :: reference().
%% Stands for a request that waits for its first answer on a new connection.

-record(state, {idle = [] :: [{address(), gen_tcp:socket(), Since :: integer()}],
                waiting = #{} :: #{ticket() => {address(), Since :: integer()}},
                %% Closed for those who wait, the latest first.
                closed = [] :: [{address(), At :: integer()}],
                %% A message to myself is on its way: `sweep' while something is kept, `let_in' while somebody may wait for that.
                sweeps = false :: boolean(),
                lets_in = false :: boolean()}).

%% @doc Started by yucan_yaws_sup.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc A kept connection, now the caller's, or a ticket: then the caller connects, and says when it was answered. No ticket: there is no
%% pool at the moment.
-spec checkout(address()) -> {kept, gen_tcp:socket()} | {new, ticket() | none}.
checkout(Address) ->
    _ = [yucan_yaws_app:ensure() || whereis(?MODULE) =:= undefined],
    try gen_server:call(?MODULE, {checkout, Address, self()}, ?CALL_MS)
    catch exit:_ -> {new, none}
    end.

%% @doc Gives back a connection of the caller that is at rest. It is the pool's from then on, whatever becomes of it.
-spec checkin(address(), gen_tcp:socket()) -> ok.
checkin(Address, Socket) ->
    case whereis(?MODULE) of
        undefined -> gen_tcp:close(Socket);
        Pool ->
            case gen_tcp:controlling_process(Socket, Pool) of
                ok -> gen_server:cast(Pool, {checkin, Address, Socket});
                {error, _} -> gen_tcp:close(Socket)
            end
    end.

%% @doc The request of the ticket has got its first answer, or has failed.
-spec answered(ticket()) -> ok.
answered(Ticket) -> gen_server:cast(?MODULE, {answered, Ticket}).

%% @doc How many connections are kept for an address.
-spec idle(address()) -> non_neg_integer().
idle(Address) -> gen_server:call(?MODULE, {idle, Address}, ?CALL_MS).

%% @private
-spec init([]) -> {ok, #state{}}.
init([]) -> {ok, #state{}}.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call({checkout, Address, Owner}, _, #state{idle = Idle, waiting = Waiting} = State) ->
    case take(Address, Idle, []) of
        {none, Rest} ->
            Ticket = erlang:monitor(process, Owner),
            {reply, {new, Ticket}, State#state{idle = Rest, waiting = Waiting#{Ticket => {Address, now_ms()}}}};
        {Socket, Rest} ->
            _ = gen_tcp:controlling_process(Socket, Owner),
            {reply, {kept, Socket}, State#state{idle = Rest}}
    end;
handle_call({idle, Address}, _, #state{idle = Idle} = State) ->
    {reply, length([S || {A, S, _} <- Idle, A =:= Address]), State}.

now_ms() -> erlang:monotonic_time(millisecond).

%% The first one that is open and silent: an application closes when it likes.
take(_, [], Done) -> {none, lists:reverse(Done)};
take(Address, [{Address, Socket, _} | Rest], Done) ->
    case gen_tcp:recv(Socket, 0, 0) of
        {error, timeout} -> {Socket, lists:reverse(Done, Rest)};
        _ ->
            ok = gen_tcp:close(Socket),
            take(Address, Rest, Done)
    end;
take(Address, [Other | Rest], Done) -> take(Address, Rest, [Other | Done]).

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({checkin, Address, Socket}, #state{idle = Idle, waiting = Waiting} = State) ->
    Now = now_ms(),
    case {is_wanted(Address, Now, State), length(Idle) >= ?KEEP_MAX} of
        {true, _} ->
            ok = gen_tcp:close(Socket),
            {noreply, closed(Address, Now, State)};
        {false, true} ->
            ok = gen_tcp:close(Socket),
            {noreply, State};
        {false, false} ->
            Waits = lists:keymember(Address, 1, maps:values(Waiting)),
            {noreply, timers(Waits, State#state{idle = [{Address, Socket, Now} | Idle]})}
    end;
handle_cast({answered, Ticket}, State) ->
    _ = erlang:demonitor(Ticket, [flush]),
    {noreply, has_waited(Ticket, State)}.

%% Does somebody wait for a process, for whom no connection has been closed?
is_wanted(_, _, #state{waiting = Waiting}) when map_size(Waiting) =:= 0 -> false;
is_wanted(Address, Now, #state{waiting = Waiting, closed = Closed}) ->
    Due = length([Of || {Of, Since} <- maps:values(Waiting), Of =:= Address, Since =< Now - ?WAIT_MS]),
    Due > length([Of || {Of, At} <- Closed, Of =:= Address, At > Now - ?SOON_MS]).

closed(Address, Now, #state{closed = Closed} = State) ->
    State#state{closed = [{Address, Now} | [Known || {_, At} = Known <- Closed, At > Now - ?SOON_MS]]}.

has_waited(Ticket, #state{waiting = Waiting, closed = Closed} = State) ->
    case maps:take(Ticket, Waiting) of
        {{Address, _}, Rest} -> State#state{waiting = Rest, closed = lists:keydelete(Address, 1, Closed)};
        error -> State
    end.

timers(true, #state{lets_in = false} = State) ->
    _ = erlang:send_after(?WAIT_MS, self(), let_in),
    timers(false, State#state{lets_in = true});
timers(_, #state{sweeps = false} = State) ->
    _ = erlang:send_after(?KEEP_MS, self(), sweep),
    State#state{sweeps = true};
timers(_, State) ->
    State.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({'DOWN', Ticket, process, _, _}, State) ->
    {noreply, has_waited(Ticket, State)};
handle_info(let_in, #state{idle = Idle} = State) ->
    Next = lists:foldl(fun let_in/2, State#state{idle = [], lets_in = false}, lists:reverse(Idle)),
    Waited = [Address || {Address, _} <- maps:values(Next#state.waiting)],
    {noreply, timers(lists:any(fun({Address, _, _}) -> lists:member(Address, Waited) end, Next#state.idle), Next)};
handle_info(sweep, #state{idle = Idle} = State) ->
    Limit = now_ms() - ?KEEP_MS,
    {Keep, Old} = lists:partition(fun({_, _, Since}) -> Since > Limit end, Idle),
    [ok = gen_tcp:close(Socket) || {_, Socket, _} <- Old],
    Next = State#state{idle = Keep, sweeps = false},
    {noreply, case Keep of [] -> Next; _ -> timers(false, Next) end};
handle_info(_, State) ->
    {noreply, State}.

let_in({Address, Socket, _} = Kept, #state{idle = Idle} = State) ->
    Now = now_ms(),
    case is_wanted(Address, Now, State) of
        true ->
            ok = gen_tcp:close(Socket),
            closed(Address, Now, State);
        false -> State#state{idle = [Kept | Idle]}
    end.
