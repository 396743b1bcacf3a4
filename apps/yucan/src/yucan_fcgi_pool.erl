%% SPDX-License-Identifier: Apache-2.0
%% @doc Keeps connections to FastCGI applications for the next request.
%%
%% php-fpm gives a process to a connection as long as that is open. So a connection that is kept while another one waits for a process
%% would stop that one: as long as a request has had no answer on a new connection, what comes back is closed and not kept. One process
%% for a VM, since servers may share an application, under the supervisor of yucan. Should it crash, the kept connections end and
%% requests that are under way go on.
-module(yucan_fcgi_pool).
-behaviour(gen_server).

-export([start_link/0, checkout/1, checkin/2, answered/1, idle/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export_type([address/0, ticket/0]).

-define(KEEP_MS, 5000).
-define(KEEP_MAX, 16).
-define(CALL_MS, 5000).

-type address() :: {inet:hostname() | inet:ip_address(), inet:port_number()} | {local, file:filename()}.
-type ticket() :: reference().
%% Stands for a request that waits for its first answer on a new connection.

-record(state, {idle = [] :: [{address(), gen_tcp:socket(), Since :: integer()}],
                waiting = #{} :: #{ticket() => address()}}).

%% @doc Started by yucan_sup.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc A kept connection, now the caller's, or a ticket: then the caller connects, and says when it was answered. No ticket: there is no
%% pool at the moment.
-spec checkout(address()) -> {kept, gen_tcp:socket()} | {new, ticket() | none}.
checkout(Address) ->
    ok = there(),
    try gen_server:call(?MODULE, {checkout, Address, self()}, ?CALL_MS)
    catch exit:_ -> {new, none}
    end.

%% A server that a program of somebody's has started may run without the application.
there() ->
    case whereis(?MODULE) of
        undefined -> _ = application:ensure_all_started(yucan), ok;
        _ -> ok
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
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}} | {reply, term(), #state{}, timeout()}.
handle_call({checkout, Address, Owner}, _, #state{idle = Idle} = State) ->
    {Usable, Rest} = take(Address, Idle, []),
    case Usable of
        none ->
            Ticket = erlang:monitor(process, Owner),
            Waiting = (State#state.waiting)#{Ticket => Address},
            {reply, {new, Ticket}, State#state{idle = Rest, waiting = Waiting}, ?KEEP_MS};
        Socket ->
            {reply, give(Socket, Owner), State#state{idle = Rest}, ?KEEP_MS}
    end;
handle_call({idle, Address}, _, #state{idle = Idle} = State) ->
    {reply, length([S || {A, S, _} <- Idle, A =:= Address]), State, ?KEEP_MS}.

give(Socket, Owner) ->
    case gen_tcp:controlling_process(Socket, Owner) of
        ok -> {kept, Socket};
        {error, _} -> {kept, Socket}
    end.

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
-spec handle_cast(term(), #state{}) -> {noreply, #state{}, timeout()}.
handle_cast({checkin, Address, Socket}, #state{idle = Idle, waiting = Waiting} = State) ->
    case lists:member(Address, maps:values(Waiting)) orelse length(Idle) >= ?KEEP_MAX of
        true ->
            ok = gen_tcp:close(Socket),
            {noreply, State, ?KEEP_MS};
        false ->
            {noreply, State#state{idle = [{Address, Socket, erlang:monotonic_time(millisecond)} | Idle]}, ?KEEP_MS}
    end;
handle_cast({answered, Ticket}, #state{waiting = Waiting} = State) ->
    _ = erlang:demonitor(Ticket, [flush]),
    {noreply, State#state{waiting = maps:remove(Ticket, Waiting)}, ?KEEP_MS}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}, timeout()} | {stop, normal, #state{}}.
handle_info({'DOWN', Ticket, process, _, _}, #state{waiting = Waiting} = State) ->
    {noreply, State#state{waiting = maps:remove(Ticket, Waiting)}, ?KEEP_MS};
handle_info(_, #state{idle = Idle} = State) ->
    Limit = erlang:monotonic_time(millisecond) - ?KEEP_MS,
    {Keep, Old} = lists:partition(fun({_, _, Since}) -> Since > Limit end, Idle),
    [ok = gen_tcp:close(Socket) || {_, Socket, _} <- Old],
    {noreply, State#state{idle = Keep}, ?KEEP_MS}.
