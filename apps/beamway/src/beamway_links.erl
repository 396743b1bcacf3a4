%% SPDX-License-Identifier: Apache-2.0
%% @doc The server behind all links of a node: it knows every link, keeps the reservations of ring memory ({@link beamway_budget}) and logs
%% each new link.
%%
%% net_kernel's supervisor starts it before net_kernel (see {@link beamway_dist:childspecs/0}), and the application starts it for its own users. It
%% belongs to neither, and terminates when its last user does ({@link beamway_sup}).
%%
%% Any process may read its table. A connection process writes its own row, and the server removes the row when that process exits. All state that
%% must outlive the server is in the table, which survives a crash, so the restarted server finds it there. If the server crashes repeatedly, the
%% distribution terminates, so nothing here may crash because of what a peer or a user does.
-module(beamway_links).
-behaviour(gen_server).

-include_lib("kernel/include/logger.hrl").

-export([start_link/0, prepare/0, hold/0, reload_driver/0, config/0, drives_tcp/0, extension/1, up/1, all/0]).
-export([reserve/1, reserve/2, release/0, held/0, level_of/1]).
-export([certificate_ends/2, certificates/0, listens/2, begin_session/3, session/1, sessions/0, resumed/2, connections/2, may_spread/1, stream/0, resume_refused/0, resumes_refused/0, driven/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
-export_type([link/0, session/0]).

%% The size of two rings in native/link/stripes.h.
-define(SPREAD_BYTES, 33554432).
-define(TABLE, ?MODULE).
-define(CALL_MS, 2000).
-define(USABLE_MS, 200).
%% How many logged reasons the server remembers, and for how long.
-define(TOLD, 256).
-define(TOLD_MS, 3600000).

-type link() :: #{node := node(),
                  link := beamway_kind:label(),
                  reason := binary(),
                  hidden := boolean(),
                  address := binary(),
                  family := beamway_stream:family(),
                  peer_port := inet:port_number(),
                  since := integer(),
                  resume_ms => non_neg_integer(),
                  key => binary(),
                  connection := pid(),
                  connections => non_neg_integer(),
                  resumes => pos_integer(),
                  last_resume => #{cause := atom(), ms := non_neg_integer()},
                  pauses => #{Cause :: atom() => {Count :: pos_integer(), Ms :: non_neg_integer()}},
                  controller := beamway_stream:controller(),
                  stream := beamway_stream:stream()}.
%% `since' is system time in seconds. `resume_ms' is how long the link may be without a connection. `pauses' counts the resumes by cause, with the
%% total time without a connection. `peer_port' is where the peer listens, or 0 if that is not known. With the option `encrypt', `key' identifies
%% the key of which both sides have proved possession. `hidden' means that the peer is not in `nodes()', as with a tool that connects for a moment.

%% Rows of the table: {{link, Pid}, link()}; {{holder, Pid}, true}; {config, beamway_config:config()};
%% {extension, beamway_wire:extension()}; {why_inet, Reason} on a node whose driver does not carry tcp;
%% {without_driver, beamway_config:config()}: the options of a node whose driver could not be loaded;
%% from beamway_driver, once it has tried to load them: {driver, ok | {error, Reason}}, {{library, Kind}, boolean()} and
%% {codec, boolean(), far | always};
%% {{usable, StreamKind}, [beamway_kind:ring()], At}: the rings that were usable then, in erlang:monotonic_time(millisecond);
%% {{listens, StreamKind}, Port}; {{session, Id}, session()} and {{session_of, Pid}, Id} for links that can outlive their connection;
%% {resumes_refused, Count};
%% the ring memory of a connection process: {{reserved, Pid}, beamway_budget:reservation()}, and the sum under each limit: {{used, Option}, Bytes};
%% {{told, Hash}, Reason, Ms}: when the reason was logged;
%% {{certificate, Role}, Seconds}; those of beamway_classes; and from beamway_encrypt: {{beamway_encrypt, Cookie}, Key}.

-type session() :: #{kind := tcp | tls | ring, ring_bytes := non_neg_integer(), key := <<_:256>>, encrypted := boolean(), keeper := pid()}.

-record(state, {config :: beamway_config:config(),
                holders = 0 :: non_neg_integer(),
                monitors = #{} :: #{pid() | port() => reference()}}).

%% @doc Called by {@link beamway_sup}.
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Creates what outlives the server but not the calling process, its supervisor: the table with the node's options, and the driver. A driver is
%% unloaded, and its ports are closed, when the process that loaded it exits.
-spec prepare() -> ok.
prepare() ->
    _ = application:load(beamway),
    ok = load_code(),
    ?TABLE = ets:new(?TABLE, [named_table, public, {read_concurrency, true}]),
    ok = beamway_half_open:prepare(),
    Options = valid_config(),
    _ = maps:get(links, Options) =:= [inet] orelse beamway_driver:load(),
    use(Options),
    lists:foreach(fun(Line) -> ?LOG_NOTICE("beamway: ~ts", [Line]) end, beamway_rdma:unused(config())),
    _ = maps:get(allow_faults, config()) andalso
        ?LOG_WARNING("beamway: allow_faults is set: every process of this cluster may slow down and cut links of this node (beamway:fault/2); it is for tests", []),
    beamway_socket_dir:prepare(config()).

%% @doc Registers the calling process as a user of the server until it exits; the server terminates with its last user.
-spec hold() -> ok | {error, Reason :: binary()}.
hold() ->
    call(hold).

%% @doc Makes the supervisor reload the driver ({@link beamway:reload_driver/0}). Peers reconnect immediately, because a connection that is being set
%% up waits for its reservation, and so for the new driver. No timeout is needed, because the server terminates with the supervisor that loads the
%% driver.
-spec reload_driver() -> ok.
reload_driver() ->
    gen_server:call(?MODULE, reload_driver, infinity).

%% @doc Returns the valid options of this node.
-spec config() -> beamway_config:config().
config() ->
    ets:lookup_element(?TABLE, config, 2).

%% @doc Returns whether our driver, rather than OTP's own port, carries the data between two nodes that have no ring, and if not, why.
-spec drives_tcp() -> true | {false, Reason :: binary()}.
drives_tcp() ->
    case lists:member(tcp, maps:get(links, config())) of
        true -> true;
        false -> {false, ets:lookup_element(?TABLE, why_inet, 2)}
    end.

%% @doc Returns the extension that this node currently sends in the handshake. It may differ in the next handshake, because devices come and go.
-spec extension(StreamKind :: tcp | tls) -> beamway_wire:extension().
extension(StreamKind) ->
    #{links := Links} = Extension = ets:lookup_element(?TABLE, extension, 2),
    TakesTls = StreamKind =:= tls andalso drives_tcp() =:= true andalso opens_ports() andalso beamway_driver:has(tls),
    {UsedUp, Usable} = lists:partition(fun(Kind) -> not beamway_budget:has_room(Kind, used(Kind), config()) end,
                                       usable(Links, StreamKind, erlang:monotonic_time(millisecond))),
    ResumeMs = resume_ms(TakesTls orelse (StreamKind =:= tcp andalso drives_tcp() =:= true)),
    Extension#{links := Usable, used_up := UsedUp,
               takes_tls_over => TakesTls, resume_ms => ResumeMs, compresses => ResumeMs > 0 andalso compresses(config(), StreamKind),
               connections => case ResumeMs of 0 -> none; _ -> maps:get(connections, config()) end,
               listens => case ets:lookup(?TABLE, {listens, StreamKind}) of [{_, Port}] -> Port; [] -> 0 end}.

%% The keys require the application crypto, which may not be installed.
resume_ms(_OverDriver = true) ->
    case maps:get(resume_ms, config()) =/= 0 andalso code:ensure_loaded(crypto) of
        {module, crypto} -> maps:get(resume_ms, config());
        _ -> 0
    end;
resume_ms(_OverDriver = false) ->
    0.

compresses(#{compress := never}, _StreamKind) -> false;
compresses(#{compress_encrypted := false}, tls) -> false;
compresses(#{compress := When}, _StreamKind) -> beamway_driver:has_codec(When).

%% The driver can only take over a socket that is a port. If kernel's `inet_backend' is `socket', the sockets of ssl are of a different kind.
opens_ports() -> application:get_env(kernel, inet_backend) =/= {ok, socket}.

%% The result is cached, because hundreds of handshakes a second take place while a mesh is being set up, and looking for devices takes time.
usable(Links, StreamKind, Now) ->
    case ets:lookup(?TABLE, {usable, StreamKind}) of
        [{_, Usable, At}] when Now - At < ?USABLE_MS ->
            Usable;
        _ ->
            Usable = [Kind || Kind <- Links, (beamway_kind:module(Kind)):is_usable(config(), StreamKind)],
            ets:insert(?TABLE, {{usable, StreamKind}, Usable, Now}),
            Usable
    end.

%% @doc Reserves ring memory, at most `ring_bytes' per direction, until the calling connection process exits. Returns the granted size.
-spec reserve(beamway_kind:ring()) -> {ok, pos_integer()} | {error, Reason :: binary()}.
reserve(Kind) ->
    reserve(Kind, maps:get(ring_bytes, config())).

%% @doc Like {@link reserve/1}, but with the given size for each direction instead of the option `ring_bytes'. A process has only one reservation at a time.
-spec reserve(beamway_kind:driven(), RingBytes :: pos_integer()) -> {ok, pos_integer()} | {error, Reason :: binary()}.
reserve(Kind, RingBytes) ->
    call({reserve, Kind, RingBytes}).

%% @doc Releases the calling process's reservation.
-spec release() -> ok.
release() ->
    gen_server:cast(?MODULE, {release, self()}).

%% @doc Returns the number of objects that the server holds: reservations of ring memory, and monitors of connection processes and of the server's users.
-spec held() -> #{reservations := non_neg_integer(), monitors := non_neg_integer()}.
held() ->
    gen_server:call(?MODULE, held, ?CALL_MS).

%% Waits for at most half of the time allowed for setting up the connection, because the peer needs this node's answer even if the server does not
%% reply.
call(Request) ->
    try
        gen_server:call(?MODULE, Request, min(?CALL_MS, net_kernel:connecttime() div 2))
    catch
        exit:_ -> {error, <<"the link server does not answer">>}
    end.

%% @doc Returns the level for a log line about a single link. It is lower if another line has already given the same reason, because a node may have
%% thousands of links that all lack the same thing. After an hour the reason is worth another warning.
-spec level_of(Reason :: binary()) -> warning | debug.
level_of(Reason) ->
    Now = erlang:monotonic_time(millisecond),
    Key = {told, erlang:phash2(Reason, ?TOLD)},
    case ets:lookup(?TABLE, Key) of
        [{_, Reason, At}] when Now - At < ?TOLD_MS -> debug;
        _ -> ets:insert(?TABLE, {Key, Reason, Now}), warning
    end.

%% @doc Registers the link of the calling connection process. When this returns, the link is in {@link all/0}.
-spec up(link()) -> ok.
up(#{connection := Pid} = Link) ->
    ets:insert(?TABLE, {{link, Pid}, Link}),
    gen_server:cast(?MODULE, {up, Link}).

%% @doc Records when the certificate of a side expires, for the metrics, which must not read files.
-spec certificate_ends(server | client, {ok, Seconds :: integer()} | none) -> ok.
certificate_ends(Role, {ok, Seconds}) -> ets:insert(?TABLE, {{certificate, Role}, Seconds}), ok;
certificate_ends(Role, none) -> ets:delete(?TABLE, {certificate, Role}), ok.

%% @doc Returns the times recorded with {@link certificate_ends/2}.
-spec certificates() -> [{server | client, Seconds :: integer()}].
certificates() ->
    try ets:select(?TABLE, [{{{certificate, '$1'}, '$2'}, [], [{{'$1', '$2'}}]}])
    catch error:badarg -> [] % the carrier is not running
    end.

%% @doc Records that this node accepts connections on that port.
-spec listens(StreamKind :: tcp | tls, inet:port_number()) -> ok.
listens(StreamKind, Port) ->
    true = ets:insert(?TABLE, {{listens, StreamKind}, Port}),
    ok.

%% @doc Stores what this node needs to continue the link of a connection process over a new connection. The row is removed when the process exits.
-spec begin_session(Id :: <<_:128>>, Connection :: pid(), session()) -> ok.
begin_session(Id, Connection, Known) ->
    ets:insert(?TABLE, [{{session, Id}, Known}, {{session_of, Connection}, Id}]),
    ok.

%% @doc Returns the session stored with {@link begin_session/3}.
-spec session(Id :: <<_:128>>) -> {ok, session()} | error.
session(Id) ->
    case ets:lookup(?TABLE, {session, Id}) of
        [{_, Known}] -> {ok, Known};
        [] -> error
    end.

%% @doc Returns all sessions.
-spec sessions() -> [session()].
sessions() -> ets:select(?TABLE, [{{{session, '_'}, '$1'}, [], ['$1']}]).

%% @doc Records that the link of that connection process has moved to a new connection.
-spec resumed(Connection :: pid(), #{cause := atom(), ms := non_neg_integer(), address := binary(), stream := beamway_stream:stream(), key => binary()}) ->
          {ok, link()} | error.
resumed(Connection, #{cause := Cause, ms := Ms} = Resumed) ->
    case ets:lookup(?TABLE, {link, Connection}) of
        [{Key, Link}] ->
            Changed = (maps:merge(maps:remove(connections, Link), maps:with([address, stream, key], Resumed)))
                #{resumes => maps:get(resumes, Link, 0) + 1, last_resume => #{cause => Cause, ms => Ms},
                  pauses => maps:update_with(Cause, fun({Count, TotalMs}) -> {Count + 1, TotalMs + Ms} end, {1, Ms}, maps:get(pauses, Link, #{}))},
            ets:update_element(?TABLE, Key, {2, Changed}),
            {ok, Changed};
        [] -> error
    end.

%% @doc Updates how many connections the link of that connection process has.
-spec connections(Connection :: pid(), #{connections := non_neg_integer(), address => binary(), stream => beamway_stream:stream(), key => binary()}) -> ok.
connections(Connection, Now) ->
    case ets:lookup(?TABLE, {link, Connection}) of
        [{Key, Link}] -> ets:update_element(?TABLE, Key, {2, maps:merge(Link, Now)});
        [] -> false
    end,
    ok.

%% @doc Returns whether a link with this many connections (0 if it has not spread) may have one more. Together, the links that have spread use at most
%% as much memory as all rings may use, and at most a quarter of the descriptors.
-spec may_spread({Connections :: non_neg_integer(), RttUs :: non_neg_integer()}) -> boolean().
may_spread({Connections, _RttUs}) ->
    Spread = [Count || #{connections := Count} <- all()],
    More = case Connections of 0 -> 1; _ -> 0 end,
    (length(Spread) + More) * ?SPREAD_BYTES =< maps:get(ring_limit_bytes, config()) andalso lists:sum(Spread) * 4 < max_fds().

max_fds() -> lists:max([Max || Set <- erlang:system_info(check_io), {max_fds, Max} <- Set]).

%% @doc Returns the stream of the calling connection process, which changes when its link gets a new connection.
-spec stream() -> {ok, beamway_stream:stream()} | error.
stream() ->
    try ets:lookup(?TABLE, {link, self()}) of
        [{_, #{stream := Stream}}] -> {ok, Stream};
        [] -> error
    catch
        error:badarg -> error % the carrier is no longer running
    end.

%% @doc Counts a rejected attempt to continue a link: the caller did not prove that it may do so.
-spec resume_refused() -> ok.
resume_refused() ->
    _ = ets:update_counter(?TABLE, resumes_refused, 1, {resumes_refused, 0}),
    ok.

%% @doc Returns the number of attempts counted with {@link resume_refused/0}, or `error' if this node does not run the carrier.
-spec resumes_refused() -> {ok, non_neg_integer()} | error.
resumes_refused() ->
    try ets:lookup(?TABLE, resumes_refused) of
        [{_, Refused}] -> {ok, Refused};
        [] -> {ok, 0}
    catch
        error:badarg -> error
    end.

%% @doc Returns all links that are up. The server may not yet have noticed that a connection process has exited.
-spec all() -> [link()].
all() ->
    try
        [Link || #{connection := Pid} = Link <- ets:select(?TABLE, [{{{link, '_'}, '$1'}, [], ['$1']}]), is_process_alive(Pid)]
    catch
        error:badarg -> []
    end.

%% @doc Returns the port of our driver that carries a link, or `none' if OTP's own port or processes of ssl carry it.
-spec driven(link()) -> {ok, port()} | none.
driven(#{controller := Controller, stream := Stream}) when is_port(Controller), Controller =/= Stream -> {ok, Controller};
driven(_Link) -> none.

%% @private
-spec init([]) -> {ok, #state{}}.
init([]) ->
    process_flag(trap_exit, true),
    Known = ets:tab2list(?TABLE),
    Reserved = [beamway_budget:bytes(Reservation) || {{reserved, _}, Reservation} <- Known],
    ets:insert(?TABLE, [{{used, Option}, lists:sum([Bytes || {Of, Bytes} <- Reserved, Of =:= Option])} || Option <- beamway_budget:limits()]),
    {ok, lists:foldl(fun watch/2, #state{config = config(), holders = length([Pid || {{holder, Pid}, _} <- Known])},
                     [Key || {{What, Key}, _} <- Known, lists:member(What, [link, reserved, holder])])}.

%% net_kernel itself calls the carrier and dist_util, so a module that cannot be loaded would crash it, and with it the node. This happens if a node
%% has run out of descriptors when it first calls a peer.
load_code() ->
    Own = case application:get_key(beamway, modules) of
              {ok, Modules} -> Modules;
              undefined -> []
          end,
    _ = code:ensure_modules_loaded([dist_util, inet_tcp_dist | Own]),
    ok.

%% Invalid options must not keep a node out of its cluster, so the node logs them and runs without the driver.
valid_config() ->
    lists:foreach(fun(Line) -> ?LOG_WARNING("beamway: ~ts", [Line]) end, beamway_config:without_effect()),
    case beamway_config:read() of
        {ok, Config} ->
            Config;
        {error, Problems} ->
            lists:foreach(fun(Problem) -> log_only_inet(beamway_config:describe(Problem)) end, Problems),
            {ok, Defaults} = beamway_config:read(fun(_) -> undefined end),
            only_inet(Defaults#{encrypt := beamway_config:wants_encryption()})
    end.

%% Uses the current driver. If there is none, the options are kept for a driver that is loaded later.
use(#{links := [inet]} = Options) ->
    use(Options, <<"tcp is off on this node">>);
use(Options) ->
    case beamway_driver:loaded() of
        ok ->
            use(Options, <<"tcp is off on this node">>);
        {error, Reason} ->
            log_only_inet(Reason),
            ets:insert(?TABLE, {without_driver, Options}),
            use(only_inet(Options), Reason)
    end.

use(Config, WhyInet) ->
    ets:insert(?TABLE, [{config, Config}, {extension, largest_extension(Config)}, {why_inet, WhyInet}]),
    ets:match_delete(?TABLE, {{usable, '_'}, '_', '_'}).

only_inet(Config) -> Config#{links := [inet]}.

log_only_inet(Reason) ->
    ?LOG_ERROR("beamway: ~ts; this node has no links but over inet, OTP's own port", [Reason]).

largest_extension(#{links := Links}) ->
    #{host => beamway_host:digest(), links => [Kind || Kind <- Links, beamway_kind:is_ring(Kind)], used_up => [], takes_tls_over => false,
      hears_load => true, compresses => false, renews => true, resume_ms => 0, listens => 0, connections => none}.

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call(hold, {Pid, _}, #state{holders = Holders} = State) ->
    New = case ets:insert_new(?TABLE, {{holder, Pid}, true}) of true -> 1; false -> 0 end,
    {reply, ok, watch(Pid, State#state{holders = Holders + New})};
handle_call({reserve, Kind, Wanted}, {Pid, _}, #state{config = Config} = State) ->
    ok = unreserve(Pid),
    case beamway_budget:ring(Kind, Wanted, used(Kind), Config) of
        {error, Reason} ->
            {reply, {error, Reason}, State};
        Ring ->
            Bytes = element(2, Ring),
            log_smaller(Ring, Wanted),
            ok = reserved(Pid, {Kind, Bytes}),
            {reply, {ok, Bytes}, watch(Pid, State)}
    end;
handle_call(held, _From, #state{monitors = Monitors} = State) ->
    {reply, #{reservations => ets:select_count(?TABLE, [{{{reserved, '_'}, '_'}, [], [true]}]), monitors => map_size(Monitors)}, State};
handle_call(reload_driver, _From, State) ->
    ok = beamway_driver:as_supervisor(reload),
    use(wanted(ets:lookup(?TABLE, without_driver))),
    {reply, ok, State};
handle_call(_Request, _From, State) ->
    {reply, {error, badarg}, State}.

wanted([{_, Options}]) -> Options;
wanted([]) -> config().

%% Returns the memory used by all links under the limit for this kind. Other processes also call this.
used(Kind) -> ets:lookup_element(?TABLE, {used, beamway_kind:limit(Kind)}, 2).

%% Only this server changes reservations and their sums.
reserved(Pid, Reservation) ->
    ets:insert(?TABLE, {{reserved, Pid}, Reservation}),
    count(1, Reservation).

unreserve(Pid) ->
    case ets:take(?TABLE, {reserved, Pid}) of
        [{_, Reservation}] -> count(-1, Reservation);
        [] -> ok
    end.

count(Sign, Reservation) ->
    {Option, Bytes} = beamway_budget:bytes(Reservation),
    _ = ets:update_counter(?TABLE, {used, Option}, Sign * Bytes),
    ok.

log_smaller({ok, _}, _Wanted) ->
    ok;
log_smaller({less, Bytes, {Option, Limit}}, Wanted) ->
    Text = io_lib:format("rings of ~b instead of ~b bytes: the limit of this node is ~b bytes (~ts)", [Bytes, Wanted, Limit, Option]),
    Level = level_of(iolist_to_binary(Text)),
    ?LOG(Level, "beamway: ~ts", [Text]).

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast({up, #{connection := Pid, node := Node, link := Kind, reason := Reason, hidden := Hidden, controller := Controller}}, State) ->
    ?LOG(level(Hidden), "beamway: link to ~ts is up over ~ts (~ts)", [Node, Kind, Reason]),
    case ets:lookup(?TABLE, {reserved, Pid}) of
        [{_, {Kind, _} = Reservation}] -> keep_reserved(Pid, Reservation, Controller);
        _ -> unreserve(Pid)
    end,
    {noreply, watch(Pid, State)};
handle_cast({release, Pid}, State) ->
    ok = unreserve(Pid),
    {noreply, State};
handle_cast(_Request, State) ->
    {noreply, State}.

%% Reserves only the size of the rings that were created, because the peer may have asked for smaller ones.
keep_reserved(Pid, {Kind, Granted}, Port) ->
    Bytes = try maps:get(ring_bytes, beamway_port:stats(Port))
            catch error:badarg -> Granted % the port has just closed, and the reservation will be released soon
            end,
    ok = unreserve(Pid),
    reserved(Pid, {Kind, Bytes}).

watch(Key, #state{monitors = Monitors} = State) when is_map_key(Key, Monitors) ->
    State;
watch(Pid, #state{monitors = Monitors} = State) ->
    State#state{monitors = Monitors#{Pid => monitor(process, Pid)}}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}} | {stop, normal, #state{}}.
handle_info({'DOWN', _Ref, _Type, Key, _Reason}, #state{monitors = Monitors} = State) ->
    ets:delete(?TABLE, {link, Key}),
    ok = unreserve(Key),
    _ = [ets:delete(?TABLE, {session, Id}) || {_, Id} <- ets:take(?TABLE, {session_of, Key})],
    after_user(ets:take(?TABLE, {holder, Key}), State#state{monitors = maps:remove(Key, Monitors)});
handle_info(_Info, State) ->
    {noreply, State}.

after_user([], State) -> {noreply, State};
after_user([_], #state{holders = 1} = State) -> {stop, normal, State};
after_user([_], #state{holders = Holders} = State) -> {noreply, State#state{holders = Holders - 1}}.

%% Each call of a tool such as ejabberdctl connects as a hidden node for about a second.
level(_Hidden = true) -> debug;
level(_Hidden = false) -> info.
