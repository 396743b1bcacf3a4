%% SPDX-License-Identifier: Apache-2.0
%% @doc Moves a link to a new connection when it has lost its current one, or when nothing arrives over that one.
%%
%% Three kinds of processes take part:
%% <dl>
%% <dt>The link's {@link beamway_keeper}</dt><dd>Only this process detaches a connection from the link or attaches a new one ({@link handle/2}), so
%% these steps are serialized. It lives as long as the link.</dd>
%% <dt>The dialer</dt><dd>It lives while the link has no connection, or only a silent one. It starts attempts until one succeeds, and decides when
%% the peer counts as dead.</dd>
%% <dt>An attempt</dt><dd>It owns one connection to the peer. Attempts may overlap until the peer has answered ({@link beamway_session}), so a lost
%% packet delays only its own attempt. From then on only one attempt at a time continues: it states how many bytes this side has read, and this side
%% gives up the connection that it still has, if any.</dd>
%% </dl>
%% The answering side is a connection process of net_kernel that receives `resume' instead of a handshake ({@link beamway_resumption}).
%%
%% If a link is to have several connections, there is one more process on the node that established the first connection, the {@link spreading/4.
%% spreader}. It replaces the single connection with the first of several, and then adds others until there are enough.
%%
%% If a node's certificates have changed, a process on that node ({@link renewing/4}) moves the link to a connection for which OTP's ssl checks the
%% certificates of both sides.
%%
%% Both nodes dial, because it may be that only one of them notices the loss, or that only one can reach the other. The connection with the higher
%% number wins.
-module(beamway_resume).

-include_lib("kernel/include/logger.hrl").

-export([begin_session/2, watch/1, exited/0, handle/2]).
-export([dial/3, dialing/1, attempt/3, look/3, spreading/4, renewing/4, ask_once/3]).
-export_type([link/0, info/0]).

-ifdef(TEST).
-include_lib("eunit/include/eunit.hrl").
-endif.

%% The first attempts are made in quick succession, because a peer whose process is exiting may still answer, or be listed by epmd, for a few
%% milliseconds.
-define(FIRST_PAUSE_MS, 2).
-define(PAUSE_MS, 50).
-define(QUICK_MS, 2000).
-define(LATER_PAUSE_MS, 200).
-define(START_MS, 4).
%% While another connection is being set up, the dialer waits this long before it dials again.
-define(MADE_MS, 300).
-define(CONNECT_MS, 2000).
-define(ANSWER_MS, 1500).
-define(CALL_MS, 5000).
-define(LOOK_MS, 500).
%% epmd may notice a moment later than the peers that a node has exited, so the first pauses between two questions are shorter: 5, 10 and 20 ms.
-define(FIRST_LOOK_PAUSE_MS, 5).
-define(LOOK_PAUSE_MS, 25).
-define(ATTEMPTS, 10).
-define(NO_PROCESS_MS, 20).
%% A spreader's first pause after a failed attempt. It doubles each time.
-define(SPREAD_PAUSE_MS, 100).
-define(SPREAD_PAUSE_MAX_MS, 5000).
%% The pause before a link that has lost its connection spreads again. It doubles if the link keeps losing its connection soon after it has spread.
-define(SPREAD_AGAIN_MS, 1000).
-define(SPREAD_AGAIN_MAX_MS, 300000).
-define(SPREAD_SOON_MS, 60000).
-define(SPREAD_LOOK_MS, 10000).
-define(FAR_US, 5000).
-define(FAR_CONNECTIONS, 8).
%% The first pause after an attempt to renew a connection has failed. It doubles each time.
-define(RENEW_PAUSE_MS, 1000).
-define(RENEW_PAUSE_MAX_MS, 300000).
%% The minimum ring size for an encrypted connection that accompanies a ring. That connection carries no data.
-define(RING_MIN_BYTES, 65536).

-type link() :: port() | {ring, port()}.
%% Either a port whose connection carries the data, or a port with a ring, whose connection only reports the peer's exit.

-type info() :: #{kind := tcp | tls | ring, ring_bytes := pos_integer(), key := <<_:256>>, id := <<_:128>>, node := node(), role := connecting | accepting, family := beamway_stream:family(),
                  address := undefined | address(), from := called | unknown | inet:ip_address(), resume_ms := pos_integer(), refused_ms := non_neg_integer(),
                  connections := auto | 1..8, encrypted := boolean(), renews := boolean(), connection := pid()}.
%% With `encrypted', each connection uses TLS from its first byte (beamway_stream_psk). `renews' means that the link may move to a new connection with
%% certificates. `address' is the address at which the peer listens, as far as this node knows. `from' is the address from which the peer called, or
%% `called' if this node called the peer.

-type address() :: {inet:ip_address() | string(), inet:port_number()}.

%% ---- the keeper ----

%% @doc Registers the link of the calling connection process as one that can outlive its connection.
-spec begin_session(pid(), info()) -> ok.
begin_session(Keeper, #{id := Id, connection := Connection} = Info) ->
    beamway_links:begin_session(Id, Connection, (maps:with([kind, ring_bytes, key, encrypted], Info))#{keeper => Keeper}),
    Keeper ! {session, Info},
    ok.

%% @doc Handles messages about the connection for the keeper, which stores the state in its process dictionary. `detached' means that the connection
%% has been given up, and `gave_up' that the link is closed.
-spec handle(term(), link()) -> ok | detached | gave_up | not_mine.
handle({session, Info}, Port) -> save(with_spreader(0, Port, #{info => Info, state => up, number => 0, dialer => none, cause => none}));
handle({lost, Reason}, Port) -> lost(Reason, Port, get(session));
handle(silent, Port) -> silent(Port, get(session));
handle(flows, _Port) -> flows(get(session));
handle({detach, From, Number, Kind}, Port) ->
    Detached = detach(Number, Kind, Port, get(session)),
    ok = reply(From, Detached),
    case Detached of {ok, _} -> detached; {error, _} -> ok end;
handle({attach, From, Number, Attach}, Port) -> reply(From, attach(Number, Attach, Port, get(session)));
handle({number, From}, _Port) -> reply(From, number(get(session)));
handle({expect, From, Cause, Ms}, _Port) -> reply(From, expect(Cause, Ms, get(session)));
handle({paths, From}, Port) -> reply(From, paths(Port, get(session)));
handle({join, From, Number, Join}, Port) -> reply(From, join(Number, Join, Port, get(session)));
handle({renew, AfterMs}, _Port) -> renew(AfterMs, get(session));
handle(thin, Port) -> thin(Port, get(session));
handle(look_for_thin, Port) -> save(with_spreader(0, Port, get(session)));
handle(without_dialer, _Port) -> without_dialer(get(session));
handle(gave_up, _Port) -> gave_up;
handle({'DOWN', Monitor, port, _, _}, _Port) -> socket_closed(Monitor, get(socket));
handle(_, _Port) -> not_mine.

save(Session) ->
    _ = put(session, Session),
    ok.

%% @doc Makes the calling process exit when that socket, which the keeper owns, is closed, just as if OTP's own port carried the connection.
-spec watch(port()) -> ok.
watch(Socket) ->
    _ = put(socket, {Socket, monitor(port, Socket)}),
    ok.

%% @doc Records that the peer's process no longer exists. Called by the keeper of a ring. Without a session, the recorder asks the peer's epmd instead.
-spec exited() -> ok.
exited() ->
    case get(session) of
        #{info := #{connection := Connection}} -> beamway_recorder:note(Connection, {gave_up, exited});
        undefined -> ok
    end.

socket_closed(Monitor, {_Socket, Monitor}) -> exit(connection_closed);
socket_closed(_Monitor, _Other) -> ok.

%% If the link had no session, the port would close and the driver would not report a loss. So the connection process must be about to begin the
%% session; the loss can be reported first because messages arrive even before the handshake is complete.
lost(Reason, Port, undefined) ->
    receive
        {session, _} = Begun -> ok = handle(Begun, Port), lost(Reason, Port, get(session))
    after ?CALL_MS ->
        exit(connection_closed)
    end;
lost(Reason, _Port, #{info := Info} = Session) ->
    forget_socket(get(socket)),
    case cause(Reason, Session, now_ms()) of
        Reason -> down(Reason, start_ms(Info), Session);
        Expected -> down(Expected, ?MADE_MS, Session)
    end.

%% The driver may report that the last connection has closed before the proof for the connection that replaces it arrives. The peer's kernel resets
%% the connection if it held data that the peer had not read.
cause(Reason, #{expected := {Cause, Until}}, Now) when Now < Until, Reason =:= connection_finished orelse Reason =:= connection_closed -> Cause;
cause(Reason, _Session, _Now) -> Reason.

%% A link that spreads, or moves to a connection with new certificates, has given up its connection on purpose.
down(Cause, StartMs, #{state := up} = Session) when Cause =:= spreads; Cause =:= certificates ->
    save(with_dialer(StartMs, (maps:remove(expected, Session))#{state := {down, now_ms()}, cause := Cause}));
down(Reason, StartMs, #{state := up, info := #{connection := Connection}} = Session) ->
    ok = beamway_recorder:note(Connection, {lost, Reason}),
    save(with_dialer(StartMs, Session#{state := {down, now_ms()}, cause := Reason}));
down(_Reason, StartMs, Session) ->
    save(with_dialer(StartMs, Session)).

%% The node that originally called dials first, so that the two nodes do not both set up a connection at the same time.
start_ms(#{role := connecting}) -> 0;
start_ms(#{role := accepting}) -> ?START_MS.

%% A link without a connection always has a dialer.
with_dialer(StartMs, #{dialer := none, info := Info, state := State, cause := Cause} = Session) ->
    case spawned(dial, [self(), Info, {State, Cause, StartMs}]) of
        none ->
            _ = erlang:send_after(?NO_PROCESS_MS, self(), without_dialer),
            Session;
        Dialer ->
            Session#{dialer := Dialer}
    end;
with_dialer(StartMs, #{dialer := Dialer, state := State, cause := Cause} = Session) ->
    Dialer ! {state, State, Cause, StartMs},
    Session.

spawned(Function, Args) ->
    try spawn_link(?MODULE, Function, Args)
    catch error:system_limit -> none
    end.

without_dialer(#{dialer := none, state := {down, _}} = Session) -> save(with_dialer(0, Session));
without_dialer(_Session) -> ok.

silent(_Port, #{state := up, info := #{connection := Connection}} = Session) ->
    ok = beamway_recorder:note(Connection, silent),
    save(with_dialer(0, Session#{cause := silent}));
silent(_Port, _Session) -> ok.

flows(#{state := up, info := #{connection := Connection}} = Session) ->
    ok = beamway_recorder:note(Connection, flows),
    save(stop_dialer(Session#{cause := none}));
flows(_Session) -> ok.

stop_dialer(#{dialer := none} = Session) ->
    Session;
stop_dialer(#{dialer := Dialer} = Session) ->
    unlink(Dialer),
    exit(Dialer, kill),
    Session#{dialer := none}.

number(#{number := Number}) -> {ok, Number};
number(undefined) -> {error, no_session}.

detach(_Number, _Kind, _Port, undefined) ->
    {error, no_session};
detach(_Number, spread, _Port, #{info := #{connections := 1}}) ->
    {error, one_connection};
detach(Number, Kind, Port, #{number := Last} = Before) when Number > Last ->
    Session = case Kind of spread -> Before#{spread_at => now_ms()}; _ -> Before end,
    beamway_result:then(detach_link(Port, Number),
                        fun(Position) ->
                                forget_socket(get(socket)),
                                Cause = case {Kind, Session} of
                                            {certificates, _} -> certificates;
                                            {resume, #{cause := none}} -> peer_dials;
                                            {spread, #{cause := none}} -> spreads;
                                            {_, #{cause := Known}} -> Known
                                        end,
                                ok = down(Cause, ?MADE_MS, Session#{number := Number}),
                                {ok, Position}
                        end);
detach(_Number, _Kind, _Port, _Session) ->
    {error, superseded}.

%% A ring has no position, because it never loses any data.
detach_link({ring, _Port}, _Number) -> {ok, 0};
detach_link(Port, Number) -> beamway_port:detach(Port, Number).

attach_link({ring, _Port}, _Kind, Socket, none, _Position, _Read) ->
    self() ! {stream, Socket},
    ok;
attach_link(Port, Kind, Socket, Offer, Position, Read) ->
    ok = watch(Socket),
    case Kind of
        resume -> beamway_port:attach(Port, Offer, Position, Read);
        spread -> beamway_port:spread(Port, Offer, Position, Read)
    end.

forget_socket(undefined) ->
    ok;
forget_socket({Socket, Monitor}) ->
    _ = erase(socket),
    demonitor(Monitor, [flush]),
    beamway_port:close(Socket).

%% The caller has already made this process the socket's owner.
attach(Number, {Kind, Socket, Offer, Position, Read, Secured}, Port, #{number := Number, state := {down, SinceMs}, cause := Cause, info := Info} = Session) ->
    case attach_link(Port, Kind, Socket, Offer, Position, Read) of
        ok ->
            tell(Info, Cause, now_ms() - SinceMs, Socket, Secured),
            AgainMs = again_ms(Kind, Session, now_ms()),
            save(with_spreader(AgainMs, Port, stop_dialer(Session#{state := up, cause := none, again_ms => AgainMs})));
        {error, Reason} ->
            ?LOG_ERROR("beamway: the link to ~ts cannot go on: ~ts", [maps:get(node, Info), Reason]),
            exit(connection_closed)
    end;
attach(_Number, {_Kind, Socket, _Offer, _Position, _Read, _Secured}, _Port, _Session) ->
    ok = beamway_port:close(Socket),
    {error, superseded}.

tell(#{connection := Connection}, spreads, _Ms, Socket, Secured) ->
    beamway_links:connections(Connection, Secured#{connections => 1, address => beamway_stream:peer_text(Socket), stream => Socket});
tell(#{node := Node, connection := Connection}, Cause, Ms, Socket, Secured) ->
    Address = beamway_stream:peer_text(Socket),
    ok = beamway_recorder:note(Connection, {resumed, Cause, Ms}),
    _ = [beamway_fault:link_is_up(Link) || {ok, Link} <- [beamway_links:resumed(Connection, Secured#{cause => Cause, ms => Ms, address => Address, stream => Socket})]],
    ?LOG_NOTICE("beamway: the link to ~ts goes on over a new connection to ~ts, ~b ms after the last one was lost (~ts)",
                [Node, Address, Ms, Cause]).

%% ---- several connections ----

%% If a link is to have more connections, there is a spreader on the node that established the first one. The spreader exits on its own, and the
%% keeper is not linked to it.
with_spreader(AfterMs, Port, #{info := #{role := connecting, connections := Wanted} = Info} = Session) when is_port(Port), Wanted =/= 1 ->
    Spreader = maps:get(spreader, Session, none),
    Lives = is_pid(Spreader) andalso is_process_alive(Spreader),
    case Lives orelse is_enough(Wanted, beamway_port:paths(Port)) of
        true -> Session;
        false -> Session#{spreader => spawn(?MODULE, spreading, [self(), Info, ?SPREAD_PAUSE_MS, AfterMs])}
    end;
with_spreader(_AfterMs, _Port, Session) ->
    Session.

%% A link that loses its connection soon after it has spread waits longer each time before it spreads again.
again_ms(spread, Session, _Now) -> maps:get(again_ms, Session, ?SPREAD_AGAIN_MS);
again_ms(resume, #{spread_at := At, again_ms := Ms}, Now) when Now - At < ?SPREAD_SOON_MS -> min(?SPREAD_AGAIN_MAX_MS, 2 * Ms);
again_ms(resume, _Session, _Now) -> ?SPREAD_AGAIN_MS.

is_enough(auto, {_Connections, RttUs}) when RttUs < ?FAR_US -> true;
is_enough(Wanted, {Connections, _RttUs}) -> Connections >= number_of(Wanted).

number_of(auto) -> ?FAR_CONNECTIONS;
number_of(Number) -> Number.

thin(Port, #{info := #{connection := Connection}} = Session) ->
    ok = count_paths(Connection, Port),
    ok = save(with_spreader(0, Port, Session)),
    look_again(get(session));
thin(_Port, undefined) -> ok.

count_paths(Connection, Port) ->
    {Connections, _RttUs} = beamway_port:paths(Port),
    beamway_links:connections(Connection, #{connections => Connections}).

%% The spreader that is still running may be about to exit, so this checks again later.
look_again(#{state := up, spreader := _}) ->
    _ = erlang:send_after(?SPREAD_LOOK_MS, self(), look_for_thin),
    ok;
look_again(_Session) -> ok.

%% The peer has announced that it will replace the connection.
expect(Cause, Ms, #{state := up, number := Number} = Session) ->
    ok = save(Session#{expected => {Cause, now_ms() + Ms}}),
    {ok, Number};
expect(_Cause, _Ms, Session) ->
    number(Session).

paths(Port, #{state := up, number := Number}) when is_port(Port) -> {ok, Number, beamway_port:paths(Port)};
paths(_Port, _Session) -> {error, down}.

%% The driver has its own descriptor for the connection, so the socket can be closed. A peer that has not yet noticed that it has lost some
%% connections may count more of them than this side.
join(Number, {Socket, Offer, Read}, Port, #{state := up, number := Number, info := #{connection := Connection}}) when is_port(Port) ->
    Joined = beamway_port:join(Port, Offer, Number, Read),
    ok = beamway_port:close(Socket),
    ok = count_paths(Connection, Port),
    Joined;
join(_Number, {Socket, _Offer, _Read}, _Port, _Session) ->
    ok = beamway_port:close(Socket),
    {error, superseded}.

%% @private Sets up one connection after another until there are enough or the link is down. When the link is up again, the keeper starts a new
%% spreader.
-spec spreading(pid(), info(), PauseMs :: pos_integer(), AfterMs :: non_neg_integer()) -> ok.
spreading(Keeper, #{connections := Wanted} = Info, PauseMs, AfterMs) ->
    receive after AfterMs -> ok end,
    case beamway_resumption:call(Keeper, paths) of
        {ok, _Number, Paths} ->
            case is_enough(Wanted, Paths) orelse not beamway_links:may_spread(Paths) of
                true -> ok;
                false -> spread_on(Keeper, Info, PauseMs, asked_once(case Paths of {0, _} -> spread; _ -> join end, Keeper, Info))
            end;
        {error, timeout} ->
            spread_on(Keeper, Info, PauseMs, {failed, timeout});
        {error, _} ->
            ok
    end.

spread_on(Keeper, Info, _PauseMs, ok) -> ?MODULE:spreading(Keeper, Info, ?SPREAD_PAUSE_MS, 0);
spread_on(Keeper, Info, PauseMs, {failed, _}) -> ?MODULE:spreading(Keeper, Info, min(?SPREAD_PAUSE_MAX_MS, 2 * PauseMs), PauseMs).

%% This runs in a separate process, whose exit closes the sockets that it has not handed over.
asked_once(Kind, Keeper, Info) ->
    {Attempt, Monitor} = spawn_monitor(?MODULE, ask_once, [Kind, Keeper, Info]),
    receive
        {'DOWN', Monitor, process, Attempt, ok} -> ok;
        {'DOWN', Monitor, process, Attempt, {failed, Why}} -> {failed, Why};
        {'DOWN', Monitor, process, Attempt, Why} -> {failed, Why}
    end.

%% @private The result is passed as the exit reason.
-spec ask_once(spread | join | renew, pid(), info()) -> no_return().
ask_once(Kind, Keeper, Info) -> exit(ask(Kind, Keeper, Info)).

ask(Kind, Keeper, #{address := Address} = Info) ->
    {Letter, Connected} = case Kind of
                              renew -> {resume, with_certificates(Info, Address)};
                              _ -> {Kind, connected(Info, Address)}
                          end,
    case Connected of
        {ok, Stream} -> beamway_resumption:ask(Letter, fun() -> ok end, Keeper, Info, Stream);
        {error, Reason} -> {failed, Reason}
    end.

%% ---- a connection with new certificates ----

%% The process that is killed here only waits, because each attempt runs in a separate process.
renew(AfterMs, #{info := #{renews := true} = Info} = Session) ->
    _ = [exit(Renewer, kill) || #{renewer := Renewer} <- [Session]],
    save(Session#{renewer => spawn(?MODULE, renewing, [self(), Info, ?RENEW_PAUSE_MS, AfterMs])});
renew(_AfterMs, _Session) -> ok.

%% @private Tries until an attempt succeeds or the link ends. Until then the link keeps its current connection.
-spec renewing(pid(), info(), PauseMs :: pos_integer(), AfterMs :: non_neg_integer()) -> ok.
renewing(Keeper, #{node := Node} = Info, PauseMs, AfterMs) ->
    receive after AfterMs -> ok end,
    case is_process_alive(Keeper) andalso asked_once(renew, Keeper, Info) of
        {failed, Why} ->
            ?LOG_WARNING("beamway: the link to ~ts has not moved to a connection with the current certificates (~0tp); this node tries again in ~b s",
                         [Node, Why, PauseMs div 1000]),
            ?MODULE:renewing(Keeper, Info, min(?RENEW_PAUSE_MAX_MS, 2 * PauseMs), PauseMs);
        _ ->
            ok
    end.

reply({Pid, Reference}, Reply) ->
    Pid ! {Reference, Reply},
    ok.

%% ---- the dialer ----

%% @private `State' is that of the keeper.
-spec dial(pid(), info(), {State :: term(), Cause :: atom(), StartMs :: non_neg_integer()}) -> no_return().
dial(Keeper, #{address := Address} = Info, {State, Cause, StartMs}) ->
    process_flag(trap_exit, true),
    Now = now_ms(),
    dialing(#{keeper => Keeper, info => Info, state => State, cause => Cause, began => Now, next => Now + StartMs, pause => ?FIRST_PAUSE_MS,
              address => Address, attempts => #{}, chosen => none, looking => none, look_at => Now, look_pause => ?FIRST_LOOK_PAUSE_MS, refuses => false,
              epmd => unknown, others => false, certain => false, missing_since => none, hurry_since => none}).

%% @private Always calls the newest code of this module, so that loading a new version does not close the link.
-spec dialing(map()) -> no_return().
dialing(Dialer) ->
    Begun = maybe_look(maybe_attempt(judged(Dialer))),
    receive
        Message -> ?MODULE:dialing(heard(Message, Begun))
    after max(0, until_next(Begun)) ->
        ?MODULE:dialing(Begun)
    end.

until_next(#{next := Next, look_at := LookAt} = Dialer) ->
    lists:min([Next | [LookAt || may_look(Dialer)] ++ [At || {ok, At} <- [grace_ends(Dialer)]]]) - now_ms().

grace_ends(#{state := up}) ->
    none;
grace_ends(#{state := {down, Since}, info := #{resume_ms := Ms, refused_ms := RefusedMs}, hurry_since := Hurry}) ->
    case Hurry of
        none -> {ok, Since + Ms};
        _ -> {ok, min(Since + Ms, Hurry + RefusedMs)}
    end.

judged(#{state := up} = Dialer) ->
    Dialer;
judged(Dialer) ->
    Now = now_ms(),
    Judged = hurrying(beamway_session:verdict(signs(Dialer, Now)), Now, Dialer),
    {ok, Ends} = grace_ends(Judged),
    _ = Now >= Ends andalso give_up(Judged, absent),
    Judged.

hurrying(dead, _Now, Dialer) -> give_up(Dialer, ended);
hurrying(hurry, Now, #{hurry_since := none} = Dialer) -> Dialer#{hurry_since := Now};
hurrying(hurry, _Now, Dialer) -> Dialer;
hurrying(wait, _Now, Dialer) -> Dialer#{hurry_since := none}.

signs(#{address := Address, refuses := Refuses, epmd := Epmd, others := Others, certain := Certain, cause := Cause, missing_since := Missing}, Now) ->
    #{port => case {Address, Refuses} of {undefined, _} -> none; {_, true} -> refuses; {_, false} -> unknown end, epmd => Epmd, others => Others, closed => Cause =:= connection_finished, certain => Certain,
      missing_ms => case Missing of none -> 0; Since -> Now - Since end}.

-spec give_up(map(), ended | forgotten | absent) -> no_return().
give_up(#{keeper := Keeper, info := #{connection := Connection}}, Why) ->
    ok = beamway_recorder:note(Connection, {gave_up, Why}),
    Keeper ! gave_up,
    %% This process is linked to the keeper, which must not exit because of it. So it traps exits, and exits only after the keeper.
    receive {'EXIT', Keeper, Reason} -> exit(Reason) end.

maybe_attempt(#{chosen := none, next := Next, attempts := Attempts} = Dialer) ->
    Now = now_ms(),
    case Now >= Next andalso map_size(Attempts) < ?ATTEMPTS of
        true -> begin_attempt(Now, Dialer);
        false when Now >= Next -> Dialer#{next := Now + ?PAUSE_MS};
        false -> Dialer
    end;
maybe_attempt(#{next := Next} = Dialer) ->
    Dialer#{next := max(Next, now_ms() + ?PAUSE_MS)}.

begin_attempt(Now, #{address := undefined} = Dialer) ->
    Dialer#{next := Now + ?PAUSE_MS};
begin_attempt(Now, #{info := Info, address := Address, keeper := Keeper, attempts := Attempts, pause := Pause} = Dialer) ->
    Attempt = spawned(attempt, [{self(), Keeper}, Info, Address]),
    Next = case is_slow(Now, Dialer) of true -> ?LATER_PAUSE_MS; false -> Pause end,
    Dialer#{attempts := case Attempt of none -> Attempts; _ -> Attempts#{Attempt => Address} end, next := Now + Next, pause := min(?PAUSE_MS, 2 * Pause)}.

is_slow(Now, #{state := State, began := Began}) -> State =:= up orelse Now - Began > ?QUICK_MS.

%% Asks epmd where the peer listens if that is unknown, and, if the peer may have exited, whether epmd still lists it.
maybe_look(#{look_at := At, info := Info, address := Address} = Dialer) ->
    case may_look(Dialer) andalso now_ms() >= At of
        true -> Dialer#{looking := spawned(look, [self(), Info, Address]), look_at := now_ms() + ?LOOK_PAUSE_MS};
        false -> Dialer
    end.

may_look(#{looking := none, address := Address, refuses := Refuses, cause := Cause}) -> Address =:= undefined orelse Refuses orelse Cause =:= connection_finished;
may_look(_Dialer) -> false.

heard({state, State, Cause, StartMs}, Dialer) ->
    Dialer#{state := State, cause := Cause, next := now_ms() + StartMs, pause := ?FIRST_PAUSE_MS, look_pause => ?FIRST_LOOK_PAUSE_MS, began := now_ms()};
%% From now on only this attempt continues, because it changes the state on both sides.
heard({ready, Attempt}, #{chosen := none, attempts := Attempts} = Dialer) when is_map_key(Attempt, Attempts) ->
    [begin unlink(Other), exit(Other, kill) end || Other <- maps:keys(Attempts), Other =/= Attempt],
    Attempt ! {go, self()},
    Dialer#{chosen := Attempt, attempts := maps:with([Attempt], Attempts)};
heard({'EXIT', Keeper, Reason}, #{keeper := Keeper}) ->
    exit(Reason);
heard({stop, Looker}, #{looking := Looker} = Dialer) ->
    exit(Looker, kill),
    Dialer;
heard({'EXIT', Looker, Result}, #{looking := Looker} = Dialer) ->
    PauseMs = maps:get(look_pause, Dialer, ?LOOK_PAUSE_MS), % an older version of this module may have started the dialer
    MaxMs = case is_slow(now_ms(), Dialer) of true -> ?LATER_PAUSE_MS; false -> ?LOOK_PAUSE_MS end,
    looked(Result, Dialer#{looking := none, look_at := now_ms() + PauseMs, look_pause => min(MaxMs, 2 * PauseMs)});
heard({'EXIT', Attempt, Result}, #{attempts := Attempts} = Dialer) when is_map_key(Attempt, Attempts) ->
    ended(Result, maps:get(Attempt, Attempts), without(Attempt, Dialer));
heard(_Other, Dialer) ->
    Dialer.

without(Attempt, #{attempts := Attempts, chosen := Chosen} = Dialer) ->
    Left = Dialer#{attempts := maps:remove(Attempt, Attempts)},
    case Chosen of
        Attempt -> Left#{chosen := none, next := now_ms() + ?PAUSE_MS};
        _ -> Left
    end.

ended(refused, _Address, Dialer) -> give_up(Dialer, forgotten);
%% The peer's host has closed the connection, and nothing listens on that port any more, so the peer has most likely exited, and the dialer asks epmd.
%% Attempts become less frequent, because many peers may have exited at once.
ended({failed, econnrefused}, Address, #{address := Address, cause := connection_finished, next := Next} = Dialer) ->
    Dialer#{refuses := true, pause := ?PAUSE_MS, next := max(Next, now_ms() + ?PAUSE_MS)};
ended({failed, econnrefused}, Address, #{address := Address} = Dialer) -> Dialer#{refuses := true};
ended({failed, _Reason}, Address, #{address := Address} = Dialer) -> Dialer#{refuses := false};
ended(_Other, _Address, Dialer) -> Dialer.

looked({looked, {listed, {_, Port}}}, #{address := {_, Port}} = Dialer) ->
    Dialer#{epmd := listed, missing_since := none};
looked({looked, {listed, Address}}, Dialer) ->
    Dialer#{epmd := listed, missing_since := none, address := Address, refuses := false, next := now_ms()};
looked({looked, {not_listed, Ip, Others}}, #{missing_since := Since, info := #{from := From}} = Dialer) ->
    Dialer#{epmd := not_listed, others := Others andalso not is_new(Dialer), certain := was_at(Ip, From), missing_since := case Since of none -> now_ms(); _ -> Since end};
looked({looked, {refuses, Ip}}, #{info := #{from := From}} = Dialer) ->
    Dialer#{epmd := refuses, certain := was_at(Ip, From), missing_since := none};
looked({looked, Other}, Dialer) ->
    Dialer#{epmd := Other, missing_since := none};
looked(_Failed, Dialer) ->
    Dialer#{epmd := unknown, missing_since := none}.

%% If epmd refused connections before, or did not list any node, then the nodes that it lists now have just registered again.
is_new(#{epmd := refuses}) -> true;
is_new(#{epmd := not_listed, others := Others}) -> not Others;
is_new(_Dialer) -> false.

was_at(_Ip, called) -> true;
was_at(Ip, Ip) -> true;
was_at({127, _, _, _}, {127, _, _, _}) -> true;
was_at(_Ip, _From) -> false.

%% @private The result is passed as the exit reason. The dialer kills this process if it takes too long.
-spec look(pid(), info(), undefined | address()) -> no_return().
look(Dialer, #{node := Node, family := Family}, Known) ->
    _ = erlang:send_after(?LOOK_MS, Dialer, {stop, self()}),
    exit({looked, beamway_epmd:of_node(Node, Family, Known)}).

%% @private Exits with the reason for a failure. After a success the keeper stops the dialer, and this process with it.
-spec attempt({pid(), pid()}, info(), address()) -> no_return().
attempt({Dialer, Keeper}, Info, Address) ->
    case connected(Info, Address) of
        {ok, Stream} -> exit(beamway_resumption:ask(resume, fun() -> chosen(Dialer) end, Keeper, Info, Stream));
        {error, Reason} -> exit({failed, Reason})
    end.

chosen(Dialer) ->
    Dialer ! {ready, self()},
    receive {go, Dialer} -> ok after ?ANSWER_MS -> exit({failed, not_chosen}) end.

connected(Info, Address) ->
    reached(Info, Address, fun(Ip, Port) -> connected(Info, Ip, Port) end).

connected(#{encrypted := true, node := Node, family := Family, ring_bytes := RingBytes}, Ip, Port) ->
    beamway_stream_psk:dial(Node, Family, Ip, Port, max(?RING_MIN_BYTES, RingBytes), ?CONNECT_MS);
connected(#{encrypted := false, family := Family}, Ip, Port) ->
    Family:connect(Ip, Port, beamway_stream_tcp:connect_options(), ?CONNECT_MS).

with_certificates(#{family := Family, node := Node} = Info, Address) ->
    {node, _Name, Host} = dist_util:split_node(Node),
    reached(Info, Address, fun(Ip, Port) -> beamway_stream_tls:connect(Family, Ip, Port, Host) end).

reached(_Info, undefined, _Connect) ->
    {error, no_address};
reached(#{family := Family, node := Node}, {Host, Port}, Connect) ->
    case {beamway_fault_path:pass(Node, ?CONNECT_MS), beamway_epmd:resolved(Family, Host)} of
        {ok, {ok, Ip}} -> Connect(Ip, Port);
        {ok, error} -> {error, no_address};
        {{error, Reason}, _} -> {error, Reason}
    end.

now_ms() -> erlang:monotonic_time(millisecond).

-ifdef(TEST).

the_dialer_wakes_up_for_epmd_test_() ->
    Now = now_ms(),
    Dialer = #{state => {down, Now}, info => #{resume_ms => 100000, refused_ms => 100000}, hurry_since => none, next => Now + 50000, look_at => Now + 5000,
               looking => none, address => {{127, 0, 0, 1}, 1}, refuses => false, cause => etimedout},
    [?_assert(Least =< until_next(maps:merge(Dialer, Changes)) + 1000 andalso until_next(maps:merge(Dialer, Changes)) =< Least)
     || {Least, Changes} <- [{50000, #{}}, {5000, #{refuses => true}}, {5000, #{cause => connection_finished}}, {5000, #{address => undefined}},
                             {50000, #{refuses => true, looking => self()}}, {2000, #{hurry_since => Now - 98000}}]].

a_new_epmd_proves_nothing_test_() ->
    Ip = {127, 0, 0, 1},
    Dialer = #{epmd => unknown, others => false, certain => false, missing_since => none, info => #{from => called}},
    [?_assertMatch(#{epmd := not_listed, others := Others, certain := true}, lists:foldl(fun(Said, Before) -> looked({looked, Said}, Before) end, Dialer, All))
     || {Others, All} <- [{true, [{not_listed, Ip, true}]}, {true, [unknown, {not_listed, Ip, true}, {not_listed, Ip, true}]},
                          {false, [{not_listed, Ip, false}]}, {false, [{not_listed, Ip, false}, {not_listed, Ip, true}, {not_listed, Ip, true}]},
                          {false, [{refuses, Ip}, {not_listed, Ip, true}]}]].

-endif.
