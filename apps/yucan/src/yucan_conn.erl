%% SPDX-License-Identifier: Apache-2.0
%% @doc A connection process: it waits for a connection, serves that connection until it closes, and then exits. yucan_pool starts one process per
%% connection; requests have no process of their own. A process never serves a second client, because a late message for the first client's handler
%% would then be handled for the second client.
%%
%% The first request is read with recv, which costs least if the connection has only one request. After that, data arrives as messages. The socket
%% sends a limited number of messages before it becomes passive (`{active, N}'), so it need not be armed for each read. Bodies are read with recv
%% again. Between requests the process waits in yucan_idle, so new code of this module takes effect at the next request, and no connection is closed
%% however often the module is loaded.
-module(yucan_conn).

-export([accept/1, wait/2, first/2, head/3, message/2, silence/1, wake/2, left/2]).

%% Functions that each request calls (see yucan_reply).
-compile({inline, [used/1, again/2, remember/2, last_one/2, answer/2]}).

-include("yucan_internal.hrl").

%% How many messages may arrive before the socket becomes passive. Each is at most as large as the socket's `buffer'.
-define(ARM, 100).
%% How long an idle connection keeps its heap.
-define(WARM_MS, 2000).
%% After waiting this long for a connection, a process hibernates, so that it holds no old code.
-define(ACCEPT_MS, 5000).
%% A VM without the allocator flags retains a lot of memory if it has this many open connections.
-define(MANY, 200).
%% If the limit on connections is exceeded, a surplus connection stays open for at most this long after its 503.
-define(REFUSED_MS, 2000).

-record(state, {
    conn :: #conn{},
    socket :: yucan_transport:socket(),
    template :: #req{},
    %% The previous request and its head, if no bytes had arrived after that head.
    last = none :: none | {Head :: binary(), #req{}},
    limits :: #limits{},
    %% The state of this process (yucan_pool), which the pool also reads.
    doing :: atomics:atomics_ref(),
    %% How many more messages may arrive. 0 means that data is read with recv.
    armed = 0 :: non_neg_integer(),
    served = 0 :: non_neg_integer(),
    %% When the connection will have been idle for too long, and how many requests had been served
    %% when that time was computed.
    idle_until = none :: none | {Served :: non_neg_integer(), Ms :: integer()}
}).

%% @doc Waits for a connection. Exits when the listening socket is closed.
-spec accept(#listener{}) -> no_return().
accept(#listener{socket = Listening} = Listener) ->
    case yucan_tcp:accept(Listening) of
        {ok, Reference} -> wait(Reference, Listener);
        {error, Reason} -> failed(Reason, Listener)
    end.

%% @private
-spec wait(yucan_tcp:accepting(), #listener{}) -> no_return().
wait(Reference, #listener{socket = Listening} = Listener) ->
    case yucan_tcp:accepted(Listening, Reference, ?ACCEPT_MS) of
        {ok, Socket} -> start({yucan_tcp, Socket}, yucan_pool:taken(Listener), Listener);
        timeout -> erlang:hibernate(?MODULE, wait, [Reference, Listener]);
        {error, Reason} -> failed(Reason, Listener)
    end.

failed(closed, _) -> exit({shutdown, listener_closed});
failed(Reason, #listener{pool = Pool} = Listener) ->
    refresh(Reason, Pool),
    ?MODULE:accept(Listener).

%% Accepting may fail because there are no free descriptors. Connections that close release some, so
%% retrying immediately would only waste CPU time.
refresh(econnaborted, _) -> ok;
refresh(Reason, Pool) ->
    Pool ! {accept_failed, Reason},
    receive after 100 -> ok end.

-spec start(yucan_transport:socket(), Count :: integer(), #listener{}) -> no_return().
start(Socket, Count, #listener{socket = Listening, server = Server} = Listener) ->
    Site = persistent_term:get({yucan, Server}),
    #site{limits = #limits{connections = Most}, metrics = Metrics} = Site,
    yucan_metrics:add(Metrics, connections),
    _ = [yucan_events:without_flags() || Count =:= ?MANY],
    case Count > Most of
        true ->
            _ = [yucan_events:turned_away(Site, connections, yucan_transport:peer(Socket)) || Site#site.on_event =/= none],
            turn_away(Socket, Listening, Site);
        false -> introduce(Socket, Listener, Site)
    end.

%% Over TLS, a 503 would need a handshake first, which costs more than the connection is worth, so the connection is closed without a response.
-spec turn_away(yucan_transport:socket(), Listening :: gen_tcp:socket(), #site{}) -> no_return().
turn_away(Socket, Listening, #site{listeners = Listeners, limits = #limits{connections = Most} = Limits, metrics = Metrics, counters = Counters} = Site) ->
    yucan_metrics:add(Metrics, refused_connections),
    case Listeners of
        #{Listening := {none, _}} ->
            yucan_reply:refuse(503, yucan_error:reason(503), Socket, any, Site),
            %% Surplus connections that stay open for a while use descriptors, so the number of open
            %% connections may exceed the limit by at most a quarter.
            _ = [done(Socket) || atomics:get(Counters, ?OPEN) > Most + Most div 4],
            yucan_transport:linger(Socket, min(?REFUSED_MS, Limits#limits.linger_ms), Limits#limits.min_body_rate),
            exit(normal);
        _ -> done(Socket)
    end.

introduce(Socket, #listener{socket = Listening, server = Server, local = Local, doing = Doing}, #site{listeners = Listeners, limits = Limits} = Site) ->
    case Listeners of
        #{Listening := {Tls, Proxy}} ->
            Conn = #conn{socket = Socket, server = Server, local = real_local(Local, Socket)},
            ok = yucan_pool:silent(Doing),
            secure(Tls, admitted(proxied(Proxy, Conn, Limits), Listening, Site), Limits, Doing);
        %% A reload has just removed the listener for this address.
        _ -> done(Socket)
    end.

real_local({{0, 0, 0, 0}, _}, Socket) -> sockname(Socket);
real_local({{0, 0, 0, 0, 0, 0, 0, 0}, _}, Socket) -> sockname(Socket);
real_local(Local, _) -> Local.

sockname({_, Raw} = Socket) ->
    case inet:sockname(Raw) of
        {ok, Local} -> Local;
        {error, _} -> done(Socket)
    end.

proxied(false, Conn, _) -> {Conn, <<>>};
proxied(true, #conn{socket = Socket} = Conn, #limits{tls_ms = Timeout}) ->
    case yucan_cidr:proxy_header(Socket, Timeout) of
        {ok, local, Rest} -> {Conn, Rest};
        {ok, Source, Rest} -> {Conn#conn{proxied = Source}, Rest};
        {error, _} -> done(Socket)
    end.

admitted(Met, _, #site{limits = #limits{address_connections = infinity}}) -> Met;
admitted({#conn{socket = Socket} = Conn, _} = Met, Listening, #site{limits = #limits{address_connections = Most}, quota = Quota} = Site) ->
    Peer = yucan_req:conn_peer(Conn),
    Key = yucan_quota:key(Peer, Site#site.trusted),
    case Key =:= none orelse yucan_quota:enter(Quota, Key, Most) of
        full ->
            yucan_events:turned_away(Site, address_connections, Peer),
            turn_away(Socket, Listening, Site);
        _ -> Met
    end.

secure(none, {Conn, Buffer}, Limits, Doing) -> first(Buffer, Conn, Limits, Doing);
secure(Options, {#conn{socket = Socket} = Conn, <<>>}, #limits{tls_ms = Timeout} = Limits, Doing) ->
    case yucan_tls:handshake(Socket, Options, Timeout) of
        {ok, Tls, Sni, Asked} -> spoken(yucan_tls:protocol(Tls), Conn#conn{socket = Tls, scheme = https, sni = Sni, asked = Asked}, Limits, Doing);
        plain -> refuse_plain(Conn, Limits);
        error -> done(Socket)
    end;
%% TLS cannot start, because reading the PROXY header has also returned bytes that follow it. Reads of an exact size prevent this.
secure(_, {#conn{socket = Socket}, _}, _, _) -> done(Socket).

spoken(<<"h2">>, #conn{socket = Socket} = Conn, Limits, Doing) ->
    yucan_pool:speaks(Doing) orelse done(Socket),
    yucan_h2:start(Conn, <<>>, Limits);
spoken(_, Conn, Limits, Doing) -> first(<<>>, Conn, Limits, Doing).

%% Rejects plain HTTP on a TLS listener, which usually means that the user has typed http: instead
%% of https:.
-spec refuse_plain(#conn{}, #limits{}) -> no_return().
refuse_plain(#conn{socket = Socket} = Conn, #limits{linger_ms = Ms, min_body_rate = Rate}) ->
    refused(400, plain_http_on_tls, "This port speaks TLS: the address begins with https:", any, Conn),
    yucan_transport:linger(Socket, Ms, Rate),
    exit(normal).

first(Buffer, #conn{socket = Socket} = Conn, #limits{header_ms = Timeout} = Limits, Doing) ->
    State = #state{conn = Conn, socket = Socket, template = #req{conn = Conn}, limits = Limits, doing = Doing},
    case Buffer of
        <<>> -> yucan_idle:first(?MODULE, State, Socket, Timeout);
        _ -> first({ok, Buffer}, State)
    end.

%% @doc Handles the first bytes of a new connection.
-spec first({ok, binary()} | {error, term()}, #state{}) -> no_return().
first({ok, Data}, #state{doing = Doing, socket = Socket} = State) ->
    yucan_pool:speaks(Doing) orelse done(Socket),
    head(Data, none, State);
first({error, _}, State) -> done(State#state.socket).

-spec done(yucan_transport:socket()) -> no_return().
done(Socket) ->
    yucan_transport:close(Socket),
    exit(normal).

%% @doc Handles bytes of a request's head. The deadline is set when the first of them arrive.
-spec head(binary(), Deadline :: none | integer(), #state{}) -> no_return().
head(Buffer, _, #state{last = {Buffer, Req}} = State) -> request(Req, <<>>, State);
head(Buffer, Deadline, #state{limits = Limits, template = Template} = State) ->
    case yucan_head:parse(Buffer, Limits, Template) of
        {ok, Req, <<>>} -> request(Req, <<>>, remember(Req, State#state{last = {Buffer, Req}}));
        {ok, Req, Rest} -> request(Req, Rest, remember(Req, State));
        more -> more(Buffer, deadline(Deadline, Limits), State);
        {error, Status, Reason} -> no_request(Status, Reason, Buffer, State)
    end.

%% The client may already know that the server supports HTTP/2 (RFC 9113, 3.3). Over TLS, client and
%% server negotiate HTTP/2 with ALPN instead.
no_request(505, Reason, <<"PRI * HTTP/2.0\r\n", _/binary>> = Buffer, #state{served = 0, conn = #conn{scheme = http, server = Server} = Conn} = State) ->
    case persistent_term:get({yucan, Server}) of
        #site{http2 = true} -> yucan_h2:start(Conn, Buffer, State#state.limits);
        _ -> refuse(505, Reason, Buffer, State)
    end;
no_request(Status, Reason, Buffer, State) -> refuse(Status, Reason, Buffer, State).

remember(#req{lines = Lines, authority = Authority}, #state{template = #req{lines = Lines, authority = Authority}} = State) -> State;
remember(#req{lines = Lines, authority = Authority}, #state{template = Template} = State) ->
    State#state{template = Template#req{lines = Lines, authority = Authority}}.

%% Cached header lines keep the entire binary in which they arrived alive, so they are dropped while
%% the connection is idle.
forget(#state{template = Template} = State) ->
    ok = yucan_reply:forget(),
    State#state{template = Template#req{lines = none}, last = none}.

deadline(none, #limits{header_ms = Ms}) -> erlang:monotonic_time(millisecond) + Ms;
deadline(Deadline, _) -> Deadline.

%% Parses again only when a line is complete, so a client that sends single bytes causes one parse per line.
more(Buffer, Deadline, #state{socket = Socket, limits = #limits{header_block_bytes = Max}} = State) ->
    ok = yucan_transport:release(Socket),
    case get_more(max(0, Deadline - erlang:monotonic_time(millisecond)), State) of
        {ok, Data, State1} ->
            All = <<Buffer/binary, Data/binary>>,
            case binary:match(Data, <<"\n">>) =/= nomatch orelse byte_size(All) > Max of
                true -> head(All, Deadline, State1);
                false -> more(All, Deadline, State1)
            end;
        timeout -> refuse(408, headers_too_slow, Buffer, State);
        closed -> done(State#state.socket)
    end.

get_more(Timeout, #state{armed = 0, socket = Socket} = State) ->
    case yucan_transport:recv(Socket, 0, Timeout) of
        {ok, Data} -> {ok, Data, State};
        {error, timeout} -> timeout;
        {error, _} -> closed
    end;
get_more(Timeout, #state{socket = Socket} = State) ->
    case yucan_transport:next(Socket, Timeout) of
        {data, Data} -> {ok, Data, used(State)};
        {last, Data} -> {ok, Data, State#state{armed = 0}};
        passive when State#state.armed > 1 -> get_more(Timeout, State);
        passive -> get_more(Timeout, State#state{armed = 0});
        Other -> Other
    end.

-spec refuse(400..505, atom(), binary(), #state{}) -> no_return().
refuse(Status, Reason, Buffer, #state{conn = Conn} = State) ->
    refused(Status, Reason, yucan_error:reason(Status), case Buffer of <<"HEAD ", _/binary>> -> method_was_head; _ -> any end, Conn),
    linger(State).

refused(Status, Reason, Text, Method, #conn{server = Server, socket = Socket} = Conn) ->
    #site{metrics = Metrics, log = Log} = Site = persistent_term:get({yucan, Server}),
    yucan_metrics:refused(Metrics, Status),
    yucan_events:refused(Status, Reason, Conn),
    yucan_reply:refuse(Status, Text, Socket, Method, Site),
    yucan_log:refused(Log, Conn, Status).

-spec linger(#state{}) -> no_return().
linger(#state{limits = #limits{linger_ms = Ms}} = State) -> linger(Ms, State).

-spec linger(Ms :: non_neg_integer(), #state{}) -> no_return().
linger(Ms, #state{socket = Socket, limits = #limits{min_body_rate = Rate}}) ->
    ok = yucan_transport:release(Socket),
    yucan_transport:linger(Socket, Ms, Rate),
    exit(normal).

request(#req{body = none} = Req, Rest, #state{conn = Conn} = State) ->
    _ = [yucan_transport:hold(Conn#conn.socket) || Rest =/= <<>>],
    Site = persistent_term:get({yucan, Conn#conn.server}),
    Began = yucan_exchange:began(Site),
    Start = yucan_metrics:start(State#state.served),
    Req1 = yucan_exchange:received(last_one(Req, State), Site),
    Outcome = answer(Req1, Site),
    yucan_exchange:account(Outcome, Req1, Began, Start, Site),
    case Outcome of
        {keep, _, _} -> next(Rest, ?ARM, State, Site);
        {close, _, _} -> finish(Rest, State);
        {upgrade, Function} -> upgrade(Function, Rest, State)
    end;
request(Req, Rest, #state{conn = Conn} = State) ->
    ok = yucan_transport:release(Conn#conn.socket),
    Site = persistent_term:get({yucan, Conn#conn.server}),
    Began = yucan_exchange:began(Site),
    Start = yucan_metrics:start(State#state.served),
    {Buffer, State1} = for_body(Req, Rest, State),
    ok = yucan_body:open(Req, Buffer, Site#site.limits),
    Req1 = yucan_exchange:received(last_one(Req, State), Site),
    Outcome = answer(Req1, Site),
    yucan_exchange:account(Outcome, Req1, Began, Start, Site),
    after_body(Outcome, State1, Site).

after_body({upgrade, Function}, State, _) ->
    case yucan_body:close(true) of
        {keep, Rest} -> upgrade(Function, Rest, State);
        {linger, _} -> finish(<<>>, State)
    end;
after_body({Connection, _, _}, State, Site) ->
    case yucan_body:close(Connection =:= close) of
        %% The next request may also have a body, and several messages with its data could arrive
        %% before this process switches to recv. So only one message is allowed.
        {keep, Rest} when Connection =:= keep -> next(Rest, 1, State, Site);
        {keep, Rest} -> finish(Rest, State);
        {linger, Ms} -> linger(Ms, State)
    end.

last_one(Req, #state{limits = #limits{requests = infinity}}) -> Req;
last_one(Req, #state{limits = #limits{requests = Max}, served = Served}) when Served + 1 < Max -> Req;
last_one(Req, _) -> Req#req{keep = false}.

for_body(#req{body = {length, Length}}, Rest, State) when byte_size(Rest) >= Length -> {Rest, State};
for_body(_, Rest, #state{armed = 0} = State) -> {Rest, State};
for_body(_, Rest, #state{socket = Socket} = State) -> {yucan_transport:pause(Socket, Rest), State#state{armed = 0}}.

answer(Req, Site) ->
    try
        yucan_reply:send(yucan_exchange:answer(Req, Site), Req, Site)
    catch
        Class:Reason:Stack -> yucan_reply:send(yucan_exchange:failed(Class, Reason, Stack, Req, Site), Req#req{keep = false}, Site)
    end.

-spec upgrade(fun((yucan_transport:socket(), binary()) -> term()), binary(), #state{}) -> no_return().
upgrade(Function, Rest, #state{socket = Socket} = State) ->
    ok = yucan_transport:release(Socket),
    yucan_idle:upgraded(?MODULE, forget(State), Function, {Socket, yucan_transport:pause(Socket, Rest)}).

%% @doc Called when the function that took over the connection has returned or crashed.
-spec left(ended | {crashed, error | exit | throw, term(), list()}, #state{}) -> no_return().
left({crashed, Class, Reason, Stack}, #state{socket = Socket, conn = Conn}) ->
    yucan_events:crash(Class, Reason, Stack, #req{conn = Conn, method = <<"upgraded">>}),
    done(Socket);
left(ended, #state{socket = Socket}) -> done(Socket).

%% Closes the connection. If the client has already sent more than this request, the connection
%% lingers, because an ordinary close would lose the response.
-spec finish(binary(), #state{}) -> no_return().
finish(<<>>, #state{armed = 0, socket = Socket}) ->
    ok = yucan_transport:release(Socket),
    done(Socket);
finish(Rest, #state{socket = Socket} = State) ->
    ok = yucan_transport:release(Socket),
    case Rest =:= <<>> andalso process_info(self(), message_queue_len) =:= {message_queue_len, 0} of
        true -> done(Socket);
        false -> linger(State)
    end.

%% An event stream (yucan_sse) may have let data arrive as messages. These bytes come before
%% everything that recv would return, so they are added to the buffer first.
next(Rest, Count, #state{armed = Armed, socket = Socket} = State, Site) ->
    ok = forget_user(get_keys()),
    case (Armed =:= 0 orelse Rest =/= <<>>) andalso yucan_progress:has_streamed() of
        true -> followed(yucan_transport:pause(Socket, Rest), Count, State#state{armed = 0}, Site);
        false -> followed(Rest, Count, State, Site)
    end.

-define(KEPT_KEYS, ['$yucan_date', '$yucan_checked', '$yucan_peer', '$yucan_streamed', '$yucan_held', '$ancestors', '$initial_call', rand_seed]).

%% Erases what a handler has stored in the process dictionary, because the next request that a proxy sends over this
%% connection may belong to a different user. HTTP/2 has a process for each request instead.
forget_user(Keys) ->
    _ = [erase(Key) || Key <- Keys, not lists:member(Key, ?KEPT_KEYS)],
    ok.

followed(<<>>, Count, #state{armed = Armed, socket = Socket} = State, Site) ->
    ok = yucan_transport:release(Socket),
    case Armed of
        0 -> arm(Count, again(State, Site));
        _ -> idle(again(State, Site))
    end;
followed(Rest, _, State, Site) -> ?MODULE:head(Rest, none, again(State, Site)).

arm(Count, #state{socket = Socket} = State) ->
    case yucan_transport:arm(Socket, Count) of
        ok -> idle(State#state{armed = Count});
        {error, _} -> done(State#state.socket)
    end.

used(#state{armed = Left, socket = Socket} = State) -> State#state{armed = yucan_transport:used(Socket, Left, ?ARM)}.

%% A reload may have changed the limits, and under the new limits the same bytes may not be a valid request.
again(#state{limits = Limits, served = Served} = State, #site{limits = Limits}) -> State#state{served = Served + 1};
again(#state{served = Served} = State, #site{limits = Limits}) -> State#state{served = Served + 1, limits = Limits, last = none}.

-spec idle(#state{}) -> no_return().
idle(#state{limits = #limits{idle_ms = Ms}} = State) -> yucan_idle:message(?MODULE, State, min(?WARM_MS, Ms)).

%% Counts the idle time from the first call, so the clock is never read while requests follow each other quickly.
idle_left(_, #state{idle_until = {Served, Until}, served = Served} = State) -> {max(0, Until - erlang:monotonic_time(millisecond)), State};
idle_left(Passed, #state{limits = #limits{idle_ms = Ms}, served = Served} = State) ->
    Left = max(0, Ms - Passed),
    {Left, State#state{idle_until = {Served, erlang:monotonic_time(millisecond) + Left}}}.

%% @doc Handles a message to an idle connection. Every request takes this code path, so it calls the transport module directly.
-spec message(term(), #state{}) -> no_return().
message(Message, #state{socket = {Transport, Raw} = Socket} = State) ->
    case Transport:event(Message, Raw) of
        {data, Data} -> ?MODULE:head(Data, none, used(State));
        {last, Data} -> ?MODULE:head(Data, none, State#state{armed = 0});
        passive when State#state.armed > 1 -> idle(State);
        passive -> arm(?ARM, State);
        closed -> done(Socket);
        other when Message =:= {yucan, drain} -> done(Socket);
        %% A late message for a handler must not extend the idle time.
        other ->
            case idle_left(0, State) of
                {0, _} -> done(Socket);
                {Left, State1} -> yucan_idle:message(?MODULE, State1, min(?WARM_MS, Left))
            end
    end.

%% @doc Called when nothing has arrived for a while.
-spec silence(#state{}) -> no_return().
silence(#state{socket = Socket} = State) ->
    case idle_left(?WARM_MS, State) of
        {0, _} -> done(Socket);
        {Left, State1} ->
            Timer = erlang:start_timer(Left, self(), idle),
            erlang:hibernate(?MODULE, wake, [forget(State1), Timer])
    end.

%% @doc Wakes up a hibernating connection when a message arrives.
-spec wake(#state{}, reference()) -> no_return().
wake(#state{socket = Socket} = State, Timer) ->
    receive
        {timeout, Timer, idle} -> done(Socket);
        Message ->
            _ = erlang:cancel_timer(Timer),
            message(Message, State)
    end.
