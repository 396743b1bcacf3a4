%% SPDX-License-Identifier: Apache-2.0
%% @doc Watches the servers on other nodes that are called over the distribution, with one monitor for each server, and
%% reports their exits to all callers.
%%
%% Each watched server has a stand-in here: a port that does nothing. Callers monitor the stand-in instead of the
%% server ({@link teleport_direct}), so their monitors do not cross the network. It is a port, because each monitor of
%% a process wakes that process, which costs a single caller more than the rest of its call. When the server exits, its
%% stand-in exits with `{shutdown, {teleport_watcher, Reason}}', where `Reason' is the one that a monitor of the server
%% reports. Any other exit reason says nothing about the server.
%%
%% A server gets its stand-in when it is called for the first time. Until then, and for servers beyond the limit, each call
%% sets up its own monitor, as gen_server does. An unused stand-in is removed in steps (`next/2'): first it is deleted from
%% the table, and later, when no process monitors it any more, it is closed.
%%
%% The table belongs to the supervisor, so callers find an empty table rather than none if this process is down.
-module(teleport_watcher).
-behaviour(gen_server).

%% ERTS supports `monitored_by' for ports, but its specs do not.
-dialyzer({nowarn_function, [looked_at/2, next/2]}).

-export([start_link/0, stand_in/1, remove/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-record(watch, {server :: pid(), stand_in :: port(), use = used :: used | idle | leaving}).

-define(TABLE, ?MODULE).
-define(MAX, 10000).
-define(LOOK_MS, 30000).

%% @doc Started by the supervisor.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Returns the stand-in of a server on another node, or requests one and returns `none'.
-spec stand_in(Server :: pid()) -> port() | none.
stand_in(Server) ->
    try ets:lookup_element(?TABLE, Server, 2)
    catch error:badarg ->
        %% Without the application the size is `undefined', which is not less than a number.
        _ = ets:info(?TABLE, size) < ?MAX andalso gen_server:cast(?MODULE, {watch, Server}),
        none
    end.

%% @doc Removes a stand-in from the table, so that callers no longer find it.
-spec remove(Server :: pid(), StandIn :: port()) -> ok.
remove(Server, StandIn) ->
    %% The application may have stopped.
    try ets:delete_object(?TABLE, {Server, StandIn}) of
        true -> ok
    catch error:badarg -> ok
    end.

%% @private
-spec init([]) -> {ok, #{reference() => #watch{}}}.
init([]) ->
    %% The stand-ins are linked to this process, so they are closed when it exits, but their exits must not kill it.
    false = process_flag(trap_exit, true),
    true = ets:delete_all_objects(?TABLE),
    {ok, look_later(#{})}.

look_later(Watches) ->
    _ = erlang:send_after(?LOOK_MS, self(), look),
    Watches.

%% @private
-spec handle_call(term(), gen_server:from(), Watches) -> {reply, {error, badarg}, Watches}.
handle_call(_Request, _From, Watches) -> {reply, {error, badarg}, Watches}.

%% @private Many callers may ask for a server before it has its stand-in. Setting up the monitor must not by itself open a connection.
-spec handle_cast(term(), Watches) -> {noreply, Watches}.
handle_cast({watch, Server}, Watches) ->
    case not ets:member(?TABLE, Server) andalso map_size(Watches) < ?MAX andalso lists:member(node(Server), nodes(connected)) of
        true -> {noreply, watch(Server, Watches)};
        false -> {noreply, Watches}
    end;
handle_cast(_Request, Watches) ->
    {noreply, Watches}.

%% The monitor is sent before a caller can find the stand-in, so it reaches the server's node before that caller's request.
watch(Server, Watches) ->
    try new_stand_in() of
        StandIn ->
            Monitor = monitor(process, Server),
            true = ets:insert(?TABLE, {Server, StandIn}),
            Watches#{Monitor => #watch{server = Server, stand_in = StandIn}}
    catch error:system_limit -> Watches
    end.

%% A port of Beamway's driver does nothing until it becomes a link. If that driver is not loaded, a port of inet is
%% used, which does nothing until a socket is opened in it, although tools list it as a closed socket. OTP's other
%% drivers have one lock for all their ports.
new_stand_in() ->
    case beamway_port:open() of
        {ok, Port} -> Port;
        {error, _} -> open_port({spawn_driver, "udp_inet"}, [])
    end.

%% @private
-spec handle_info(term(), Watches) -> {noreply, Watches}.
handle_info({'DOWN', Monitor, process, _, Reason}, Watches) ->
    case maps:take(Monitor, Watches) of
        {Watch, Rest} -> ended(Watch, Reason), {noreply, Rest};
        error -> {noreply, Watches}
    end;
handle_info(look, Watches) ->
    {noreply, look_later(maps:filtermap(fun looked_at/2, Watches))};
handle_info(_Info, Watches) ->
    {noreply, Watches}.

%% Later callers do not find the stand-in and monitor the server themselves.
ended(#watch{server = Server, stand_in = StandIn}, Reason) ->
    ok = remove(Server, StandIn),
    true = exit(StandIn, {shutdown, {?MODULE, Reason}}).

looked_at(Monitor, #watch{server = Server, stand_in = StandIn, use = Use} = Watch) ->
    case next(Use, erlang:port_info(StandIn, monitored_by)) of
        gone ->
            true = demonitor(Monitor, [flush]),
            ok = remove(Server, StandIn),
            true = exit(StandIn, idle),
            false;
        Next ->
            _ = Next =:= leaving andalso remove(Server, StandIn),
            {true, Watch#watch{use = Next}}
    end.

%% Another process may have closed the port, because it looks like an unused socket.
next(_, undefined) -> gone;
next(leaving, {monitored_by, []}) -> gone;
next(leaving, _) -> leaving;
next(idle, {monitored_by, []}) -> leaving;
next(used, {monitored_by, []}) -> idle;
next(_, _) -> used.

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").

next_test_() ->
    Looks = fun(Looks) -> lists:foldl(fun(Callers, Use) -> next(Use, {monitored_by, Callers}) end, used, Looks) end,
    Busy = [self()],
    [?_assertEqual(gone, Looks([[], [], []])), ?_assertEqual(used, Looks([[], Busy])), ?_assertEqual(idle, Looks([[], Busy, []])),
     ?_assertEqual(leaving, Looks([[], [], Busy, Busy])), ?_assertEqual(gone, Looks([[], [], Busy, []])), ?_assertEqual(gone, next(used, undefined))].
-endif.
