%% SPDX-License-Identifier: Apache-2.0
%% @doc The accepting end of a pool's connection: delivers messages and requests, and sends back the replies.
%%
%% {@link teleport_pool_connection} sends these terms, encoded by {@link teleport_pool_frame}:
%% <dl><dt>`{To, Message}'</dt><dd>a message to a pid or a registered name</dd>
%% <dt>`{To, Caller, Alias, Label, Request}'</dt><dd>a request; the server sees this process as its client</dd>
%% <dt>`[cancel | Alias]'</dt><dd>the caller has given up</dd>
%% <dt>`{traced, Context, Term}'</dt><dd>one of the above, with the sender's {@link teleport_trace}</dd>
%% <dt>`{marked, Marker, Term}'</dt><dd>one of the above, from a process that has sent over the distribution before.
%% It is delivered after `{'$teleport_marker', Marker}', which the same process has sent to this one over the distribution</dd></dl>
%% This end sends `{ready, self()}' first, then `{Alias, Reply}' and `{Alias, failed, Server, Reason}', and `leave' when it is
%% about to exit, so that the other end closes the connection cleanly. When the other end has sent its last message, this end
%% answers with `delivered'.
%%
%% Until the peer has proved that it knows the cookie, this process counts as unauthenticated
%% ({@link teleport_pool_listener}). After that its input is trusted like a node's. Sending a reply blocks until the
%% peer reads, which it always does. Meanwhile nothing is read here, so the peer's senders wait.
-module(teleport_pool_delivery).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, socket/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-record(delivery, {socket :: gen_tcp:socket() | undefined,
                   node :: node() | undefined,
                   calls = #{} :: #{Monitor :: reference() => call()},
                   %% Maps a request's alias, or the monitor of its caller, to the call.
                   calls_by = #{} :: #{AliasOrWatch :: reference() => Monitor :: reference()},
                   %% Markers that have arrived before their messages.
                   markers = #{} :: #{reference() => []},
                   ending = false :: boolean()}).

-type call() :: {Alias :: reference(), Caller :: pid(), SinceMs :: integer(), Watch :: reference() | none}.

-define(STRANGER_MS, 5000).
-define(END_MS, 5000).
-define(LOOK_MS, 5000).
%% This process waits this long for a marker, which arrives after everything that its process has sent before. The distribution
%% either delivers it or is closed within net_ticktime.
-define(MARKER_MS, 60000).
-define(ACTIVE, 16).
-define(PACKET_BYTES, 65536).
-dialyzer({no_improper_lists, [delivered/2]}).

%% @doc Started by the supervisor for {@link teleport_pool_listener}.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() -> gen_server:start_link(?MODULE, [], [{spawn_opt, [{fullsweep_after, 0}]}]).

%% @doc Hands over a socket that the process already owns. `Listener' gets `{known, Pid}' once the peer has proved that it
%% knows the cookie.
-spec socket(pid(), gen_tcp:socket(), Listener :: pid()) -> ok.
socket(Pid, Socket, Listener) -> gen_server:cast(Pid, {socket, Socket, Listener}).

%% @private
-spec init([]) -> {ok, #delivery{}, timeout()}.
init([]) ->
    process_flag(trap_exit, true),
    {ok, #delivery{}, ?STRANGER_MS}.

%% @private
-spec handle_call(term(), gen_server:from(), #delivery{}) -> {reply, {error, badarg}, #delivery{}}.
handle_call(_Request, _From, State) -> {reply, {error, badarg}, State}.

%% @private
-spec handle_cast(term(), #delivery{}) -> {noreply, #delivery{}} | {stop, term(), #delivery{}}.
handle_cast({socket, Socket, Listener}, State) ->
    Deadline = teleport_deadline:in(?STRANGER_MS),
    case teleport_pool_handshake:answer(Socket, Deadline) of
        {ok, Node} ->
            Listener ! {known, self()},
            true = monitor_node(Node, true),
            Options = [{packet_size, 0}, {exit_on_close, false}, {active, ?ACTIVE}],
            case say(Socket, {ready, self()}) =:= ok andalso inet:setopts(Socket, Options) of
                ok -> {noreply, State#delivery{socket = Socket, node = Node}};
                _ -> {stop, {shutdown, closed}, State}
            end;
        {error, Reason} ->
            ?LOG_NOTICE("teleport: refused a connection to the port of the pools: ~ts", [Reason]),
            {stop, {shutdown, Reason}, State}
    end;
handle_cast(_Request, State) -> {noreply, State}.

%% @private
-spec handle_info(term(), #delivery{}) ->
          {noreply, #delivery{}} | {noreply, #delivery{}, hibernate} | {stop, term(), #delivery{}}.
handle_info({tcp, Socket, Packet}, #delivery{socket = Socket, node = Node} = State) ->
    try teleport_pool_frame:decode(Packet) of
        Terms ->
            %% A server's reply may have set a trace context here, which messages from a port do not clear.
            _ = teleport_trace:set(none),
            teleport_pool_socket:handled(Packet, lists:foldl(fun delivered/2, State, Terms))
    catch
        error:Reason ->
            ?LOG_ERROR("teleport: closed a connection from ~ts, which has sent invalid data: ~0tP", [Node, Reason, 8]),
            {stop, {shutdown, Reason}, State}
    end;
handle_info({tcp_passive, Socket}, #delivery{socket = Socket} = State) ->
    _ = inet:setopts(Socket, [{active, ?ACTIVE}]),
    {noreply, State};
handle_info({[alias | Monitor], Reply}, State) ->
    answer(Monitor, {ok, Reply}, State);
handle_info({'$teleport_marker', Marker}, #delivery{markers = Markers} = State) ->
    {noreply, State#delivery{markers = Markers#{Marker => []}}};
handle_info({'DOWN', Monitor, process, Server, Reason}, #delivery{calls_by = CallsBy} = State) ->
    case CallsBy of
        #{Monitor := Call} -> ended(forgotten(Call, State));
        #{} -> answer(Monitor, {failed, Server, Reason}, State)
    end;
handle_info(look, State) ->
    {noreply, looked(State)};
handle_info({tcp_closed, Socket}, #delivery{socket = Socket} = State) ->
    _ = erlang:send_after(?END_MS, self(), too_late),
    _ = say(Socket, delivered),
    ended(State#delivery{ending = true});
handle_info({tcp_error, Socket, Reason}, #delivery{socket = Socket} = State) ->
    {stop, {shutdown, Reason}, State};
handle_info({nodedown, Node}, #delivery{node = Node} = State) ->
    {stop, {shutdown, {nodedown, Node}}, State};
handle_info(Late, State) when Late =:= too_late; Late =:= timeout ->
    {stop, {shutdown, too_late}, State};
handle_info(_Info, State) ->
    {noreply, State}.

%% The peer has stopped sending, but servers may still answer its requests.
ended(#delivery{ending = true, calls = Calls} = State) when map_size(Calls) =:= 0 -> {stop, {shutdown, closed}, State};
ended(State) -> {noreply, State}.

delivered({To, Message}, State) ->
    _ = try To ! Message catch error:badarg -> nobody end,
    State;
delivered({traced, Context, Term}, State) ->
    _ = teleport_trace:set(Context),
    Next = delivered(Term, State),
    _ = teleport_trace:set(none),
    Next;
delivered({marked, Marker, Term}, State) ->
    delivered(Term, behind(Marker, State));
delivered([cancel | Alias], #delivery{calls_by = CallsBy} = State) ->
    case CallsBy of
        #{Alias := Monitor} -> forgotten(Monitor, State);
        #{} -> State
    end;
delivered({To, Caller, Alias, Label, Request}, #delivery{calls = Calls, calls_by = CallsBy} = State) ->
    Server = server(To),
    Monitor = monitor(process, Server, [{alias, reply_demonitor}]),
    _ = map_size(Calls) =:= 0 andalso erlang:send_after(?LOOK_MS, self(), look),
    _ = try Server ! {Label, {self(), [alias | Monitor]}, Request} catch error:badarg -> nobody end,
    Call = {Alias, Caller, erlang:monotonic_time(millisecond), none},
    State#delivery{calls = Calls#{Monitor => Call}, calls_by = CallsBy#{Alias => Monitor}}.

%% Looks up a name once, so that the process that gets the request is the one that is monitored.
server(Pid) when is_pid(Pid) -> Pid;
server(Name) ->
    case whereis(Name) of
        Pid when is_pid(Pid) -> Pid;
        _ -> Name
    end.

behind(Marker, #delivery{markers = Markers, node = Node} = State) ->
    case maps:take(Marker, Markers) of
        {[], Rest} -> State#delivery{markers = Rest};
        error ->
            receive
                {'$teleport_marker', Marker} -> State;
                {nodedown, Node} -> exit({shutdown, {nodedown, Node}})
            after ?MARKER_MS ->
                ?LOG_ERROR("teleport: closed a connection from ~ts: its distribution has delivered no marker for ~b s",
                           [Node, ?MARKER_MS div 1000]),
                exit({shutdown, behind})
            end
    end.

answer(Monitor, Answer, #delivery{socket = Socket} = State) ->
    {Frames, Next} = answers(Monitor, Answer, State, [], 0),
    case gen_tcp:send(Socket, Frames) of
        ok -> ended(Next);
        {error, Reason} -> {stop, {shutdown, Reason}, Next}
    end.

%% Replies that have arrived in the meantime go into the same packet.
answers(Monitor, Answer, State, Before, Bytes) ->
    {{Frame, Size}, Next} = framed(Monitor, Answer, State),
    Frames = [Before | Frame],
    receive
        {[alias | Other], Reply} when Bytes + Size < ?PACKET_BYTES -> answers(Other, {ok, Reply}, Next, Frames, Bytes + Size)
    after 0 -> {Frames, Next}
    end.

%% The caller may have given up in the meantime.
framed(Monitor, Answer, #delivery{calls = Calls} = State) ->
    case Calls of
        #{Monitor := {Alias, _, _, _}} -> {frame(Alias, Answer), forgotten(Monitor, State)};
        #{} -> {{[], 0}, State}
    end.

frame(Alias, {failed, Server, Reason}) -> teleport_pool_frame:encode({Alias, failed, Server, Reason});
frame(Alias, {ok, Reply}) ->
    {_, Bytes} = Frame = teleport_pool_frame:encode({Alias, Reply}),
    case teleport_pool:is_too_big(Bytes) of
        true -> frame(Alias, {failed, undefined, {too_big, Bytes}});
        false -> Frame
    end.

say(Socket, Term) ->
    {Frame, _} = teleport_pool_frame:encode(Term),
    gen_tcp:send(Socket, Frame).

forgotten(Monitor, #delivery{calls = Calls, calls_by = CallsBy} = State) ->
    {{Alias, _, _, Watch}, Rest} = maps:take(Monitor, Calls),
    true = demonitor(Monitor, [flush]),
    _ = Watch =/= none andalso demonitor(Watch, [flush]),
    State#delivery{calls = Rest, calls_by = maps:without([Alias, Watch], CallsBy)}.

%% The pool protocol does not report that a caller was killed, so callers that wait for a long time are monitored over the
%% distribution.
looked(#delivery{calls = Calls} = State) when map_size(Calls) =:= 0 -> State;
looked(#delivery{calls = Calls} = State) ->
    _ = erlang:send_after(?LOOK_MS, self(), look),
    Old = erlang:monotonic_time(millisecond) - ?LOOK_MS,
    lists:foldl(fun watched/2, State, [Call || {_, {_, _, Since, none}} = Call <- maps:to_list(Calls), Since < Old]).

watched({Monitor, {Alias, Caller, Since, none}}, #delivery{calls = Calls, calls_by = CallsBy} = State) ->
    Watch = monitor(process, Caller),
    State#delivery{calls = Calls#{Monitor := {Alias, Caller, Since, Watch}}, calls_by = CallsBy#{Watch => Monitor}}.

%% @private
-spec terminate(term(), #delivery{}) -> ok.
terminate(_, #delivery{socket = undefined}) -> ok;
%% Keeps serving until the peer has sent everything in its queue and the servers have answered.
terminate(shutdown, #delivery{socket = Socket} = State) ->
    _ = say(Socket, leave),
    teleport_pool_socket:close(Socket, teleport_pool_socket:last(fun handle_info/2, State, teleport_deadline:in(?END_MS)));
terminate(Reason, #delivery{socket = Socket}) -> teleport_pool_socket:close(Socket, Reason).
