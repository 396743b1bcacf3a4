%% SPDX-License-Identifier: Apache-2.0
%% @doc The part of the nemesis that runs on a node under test. It starts senders and receivers, records when other nodes come up and go down,
%% and returns its records to the runner.
%%
%% {@link beamway_nemesis} calls it through standard input and output, and never over the carrier under test. Receivers are started before any
%% sender. Message numbers start again each time a node is restarted.
-module(beamway_nemesis_hub).
-behaviour(gen_server).

-export([start/1, go/0, finish/0, unfinished/0, flood/3, is_suspended/1, collect/1, stop/0]).
-export([cut/1, silence/2, resources/0, now_us/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([settings/0, collected/0]).

-type settings() :: #{me := beamway_nemesis_schedule:index(), life := pos_integer(),
                      peers := [{beamway_nemesis_schedule:index(), node()}], pace_ms := pos_integer()}.
-type collected() :: #{observed := beamway_nemesis_oracle:observed(),
                       flows := [{term(), beamway_nemesis_oracle:log()}],
                       words := [{term(), [beamway_nemesis_oracle:words()]}],
                       counts := #{term() => pos_integer()},
                       calls := #{answered | node_gone | too_late | wrong => non_neg_integer()},
                       spoken := non_neg_integer(),
                       crashed := [term()]}.

-define(KINDS, [small, mixed, flood, call, words]).
-define(CALL_MS, 30000).
%% When a node goes down, the hub's nodedown and the `noconnection' signals that end the words of
%% that node's processes arrive in either order, but at most this far apart.
-define(NEARLY_US, 5000000).
%% How often, and after what pause, to look again for a link's session.
-define(SESSION_TRIES, 25).
-define(SESSION_PAUSE_MS, 20).

-record(state, {settings :: settings(),
                events = [] :: [beamway_nemesis_oracle:event()],        %% newest first
                receivers = [] :: [{{beamway_nemesis_schedule:index(), atom()}, pid()}],
                senders = [] :: [{{beamway_nemesis_schedule:index(), atom()}, pid()}],
                unfinished = [] :: [pid()],
                calls :: counters:counters_ref(),
                crashed = [] :: [term()]}).

%% @doc Starts the hub and its receivers. All code is loaded first, because loading needs descriptors, which a fault may take away.
-spec start(settings()) -> ok.
start(Settings) ->
    ok = code:ensure_modules_loaded([beamway_nemesis_sender, beamway_nemesis_receiver, beamway_nemesis_oracle, gen_server, sys,
                                     proc_lib, gen_tcp, inet_tcp, rand, counters, lists, maps]),
    {ok, _} = gen_server:start({local, ?MODULE}, ?MODULE, Settings, []),
    ok.

%% @doc Makes all senders start sending.
-spec go() -> ok.
go() -> gen_server:call(?MODULE, go, ?CALL_MS).

%% @doc Tells all senders to stop, and to make sure that their last message has been received.
-spec finish() -> ok.
finish() -> gen_server:call(?MODULE, finish, ?CALL_MS).

%% @doc Returns the senders whose last message has not arrived, at the other node or at this one. (`words' senders exit silently, so their messages are
%% checked at the receiving node.)
-spec unfinished() -> [{beamway_nemesis_schedule:index(), Kind :: atom()}].
unfinished() -> gen_server:call(?MODULE, unfinished, ?CALL_MS).

%% @doc Starts a process that sends messages to a node without flow control, and returns its pid.
-spec flood(To :: beamway_nemesis_schedule:index(), Count :: pos_integer(), Size :: pos_integer()) -> pid().
flood(To, Count, Size) -> gen_server:call(?MODULE, {flood, To, Count, Size}, ?CALL_MS).

%% @doc Returns whether any process is suspended because its link is busy.
-spec is_suspended(pid()) -> boolean().
is_suspended(Pid) -> process_info(Pid, status) =:= {status, suspended}.

%% @doc Returns everything that this node has recorded so far. At the end of a run, no receiver may still be waiting for the exit of a process that has
%% sent it words.
-spec collect(so_far | in_the_end) -> collected().
collect(When) -> gen_server:call(?MODULE, {collect, When}, 2 * ?CALL_MS).

%% @doc Stops the hub and everything that it has started.
-spec stop() -> ok.
stop() -> gen_server:stop(?MODULE, normal, ?CALL_MS).

%% @doc Returns the time in microseconds of a clock that all nodes on this machine share and that is not affected when the time is set.
-spec now_us() -> integer().
now_us() -> erlang:convert_time_unit(os:perf_counter(), perf_counter, microsecond).

%% @doc Shuts down the TCP socket of a node's connection, as a broken middlebox would, but does not
%% affect a ring. Returns false if there is no such connection, and `paused' if the link survives.
-spec cut(node()) -> boolean() | paused.
cut(Node) ->
    Resumes = resuming(Node) =/= [],
    case cut_now(Node) of
        true when Resumes -> paused;
        Cut -> Cut
    end.

%% Returns the links to a node that can outlive their connections. A link that has just come up can do so a moment later.
resuming(Node) -> resuming(Node, ?SESSION_TRIES).

resuming(Node, Tries) ->
    Links = [Link || #{node := N} = Link <- links(), N =:= Node],
    case [Link || #{connection := Connection} = Link <- Links, ets:member(beamway_links, {session_of, Connection})] of
        [] when Links =/= [], Tries > 0 -> receive after ?SESSION_PAUSE_MS -> resuming(Node, Tries - 1) end;
        Resuming -> Resuming
    end.

%% @doc Makes the system drop all packets of the connection to a node as they arrive, or accept them again. The link must survive this. Returns
%% false if there is no such connection, or if the link cannot outlive it.
-spec silence(node(), drop | pass) -> boolean().
silence(Node, What) ->
    [] =/= [Socket || Link <- resuming(Node), Socket <- sockets(Link), {ok, Fd} <- [prim_inet:getfd(Socket)], socket_fault(Fd, What)].

socket_fault(Fd, What) ->
    {ok, Port} = beamway_port:open(),
    Done = beamway_port:socket_fault(Port, Fd, What),
    ok = beamway_port:close(Port),
    Done =:= ok.

cut_now(Node) ->
    case [Socket || #{node := N} = Link <- links(), N =:= Node, Socket <- sockets(Link)]
        ++ [Port || {N, Port} <- erlang:system_info(dist_ctrl), N =:= Node,
                    is_port(Port), erlang:port_info(Port, name) =:= {name, "tcp_inet"}] of
        [Socket | _] -> erlang:port_info(Socket) =/= undefined andalso shut(Socket);
        [] -> false
    end.

sockets(#{stream := Socket}) when is_port(Socket) -> [Socket];
%% The socket under TLS is identified by its peer.
sockets(#{address := Address}) ->
    [Port || Port <- erlang:ports(), {ok, {Ip, Number}} <- [peer_of(Port)],
             iolist_to_binary([inet:ntoa(Ip), $:, integer_to_list(Number)]) =:= Address].

peer_of(Port) ->
    case erlang:port_info(Port, name) of
        {name, "tcp_inet"} -> inet:peername(Port);
        _ -> none
    end.

%% The socket may be closed in the meantime, in which case there is nothing to cut.
shut(Socket) ->
    try gen_tcp:shutdown(Socket, read_write) =:= ok
    catch error:undef -> false
    end.

links() ->
    case whereis(beamway_links) of
        undefined -> [];
        _ -> beamway_links:all()
    end.

%% @doc Returns the resources that connections hold. Without connections, all of them must have been released.
-spec resources() -> #{atom() => non_neg_integer()}.
resources() ->
    #{ports => length(erlang:ports()),
      links => length(links()),
      granted => granted(),
      helpers => length([Pid || Pid <- processes(), {initial_call, {Module, init, _}} <- [process_info(Pid, initial_call)],
                                Module =:= beamway_keeper])}.

%% Returns the ring memory that the node still counts as used, and the processes that it still monitors because of that memory.
granted() ->
    case whereis(beamway_links) of
        undefined -> 0;
        _ ->
            #{reservations := Reservations, monitors := Monitors} = beamway_links:held(),
            Reservations + Monitors
    end.

%% ---- server ----

%% @private
-spec init(settings()) -> {ok, #state{}}.
init(#{me := Me, peers := Peers} = Settings) ->
    process_flag(trap_exit, true),
    ok = beamway_nemesis_sender:prepare_data(),
    Receivers = [{{Peer, Kind}, receiver(Peer, Me, Kind, Node)} || {Peer, Node} <- Peers, Kind <- ?KINDS],
    ok = net_kernel:monitor_nodes(true, [nodedown_reason]),
    Already = [{up, Peer, before, now_us()} || {Peer, Node} <- Peers, lists:member(Node, nodes())],
    {ok, #state{settings = Settings, receivers = Receivers, events = Already, calls = counters:new(4, [])}}.

receiver(From, To, Kind, Node) ->
    {ok, Pid} = beamway_nemesis_receiver:start_link(name(From, To, Kind), Kind, Node),
    Pid.

%% The names form a fixed set, so that no atoms are created at run time.
name(From, To, Kind) ->
    list_to_atom(lists:concat(["beamway_nemesis_", Kind, "_", From, "_", To])).

%% @private
-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, term(), #state{}}.
handle_call(go, _, #state{settings = #{peers := Peers}} = State) ->
    Senders = [{{Peer, Kind}, sender(Peer, Node, Kind, State)} || {Peer, Node} <- Peers, Kind <- ?KINDS],
    {reply, ok, State#state{senders = Senders}};
handle_call(finish, _, #state{senders = Senders} = State) ->
    Pids = [Pid || {_, Pid} <- Senders],
    _ = [Pid ! finish || Pid <- Pids],
    {reply, ok, State#state{unfinished = Pids}};
handle_call(unfinished, _, #state{senders = Senders, unfinished = Pids, receivers = Receivers} = State) ->
    Waiting = [Who || {{_, words} = Who, Pid} <- Receivers, is_process_alive(Pid), beamway_nemesis_receiver:is_waiting(Pid)],
    {reply, [Who || {Who, Pid} <- Senders, lists:member(Pid, Pids)] ++ Waiting, State};
handle_call({flood, To, Count, Size}, _, #state{senders = Senders} = State) ->
    {_, Pid} = lists:keyfind({To, flood}, 1, Senders),
    Pid ! {flood, Count, Size},
    {reply, Pid, State};
handle_call({collect, When}, _, State) ->
    {reply, collected(When, State), State}.

sender(Peer, Node, Kind, #state{settings = #{me := Me, life := Life, pace_ms := Pace}, calls = Calls}) ->
    beamway_nemesis_sender:start_link(Kind, #{kind => Kind, node => Node, to => name(Me, Peer, Kind), life => Life,
                                              pace_ms => Pace, counters => Calls}).

%% @private
-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) ->
    {noreply, State}.

%% @private
-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info({nodeup, Node, _}, State) ->
    {noreply, event(up, Node, none, State)};
handle_info({nodedown, Node, Info}, State) ->
    {noreply, event(down, Node, proplists:get_value(nodedown_reason, Info), State)};
handle_info({finished, Pid}, #state{unfinished = Pids} = State) ->
    {noreply, State#state{unfinished = lists:delete(Pid, Pids)}};
handle_info({'EXIT', Pid, Reason}, #state{crashed = Crashed} = State) ->
    {noreply, State#state{crashed = [{who(Pid, State), Reason} | Crashed]}};
handle_info(_, State) ->
    {noreply, State}.

event(What, Node, Reason, #state{settings = #{peers := Peers}, events = Events} = State) ->
    case lists:keyfind(Node, 2, Peers) of
        {Peer, _} -> State#state{events = [{What, Peer, Reason, now_us()} | Events]};
        false -> State
    end.

who(Pid, #state{receivers = Receivers, senders = Senders}) ->
    hd([Who || {Who, P} <- Receivers ++ Senders, P =:= Pid] ++ [unknown]).

collected(When, #state{settings = #{me := Me, life := Life}, events = Events, receivers = Receivers,
                        calls = Calls, crashed = Crashed}) ->
    Heard = [{{Peer, Me, Kind, Life}, beamway_nemesis_receiver:collect(Pid)}
             || {{Peer, Kind}, Pid} <- Receivers, is_process_alive(Pid)],
    [Answered, Gone, Late, Wrong] = [counters:get(Calls, I) || I <- [1, 2, 3, 4]],
    Words = [{Flow, [with_nodedown(Peer, One, Events) || One <- All, When =:= in_the_end orelse has_ended(One)]}
             || {{Peer, _, words, _} = Flow, #{words := All}} <- Heard],
    #{observed => #{node => Me, life => Life, until_us => now_us(), events => lists:reverse(Events)},
      flows => [{Flow, Log} || {{_, _, Kind, _} = Flow, #{log := Log}} <- Heard, Kind =/= words],
      words => Words,
      counts => lists:foldl(fun({_, #{counts := Counts}}, Sum) -> add(Counts, Sum) end, #{}, Heard),
      calls => #{answered => Answered, node_gone => Gone, too_late => Late, wrong => Wrong},
      spoken => lists:sum([length(All) || {_, All} <- Words]),
      crashed => Crashed}.

add(Counts, Sum) ->
    maps:fold(fun(Class, Count, Acc) -> maps:update_with(Class, fun(C) -> C + Count end, Count, Acc) end, Sum, Counts).

%% The nodedown that explains why the words ended may arrive right afterwards.
has_ended(#{exit := Exit, down := Down, to_us := To}) ->
    not lists:member(waiting, [Exit, Down])
        andalso (not lists:member(noconnection, [Exit, Down]) orelse To + ?NEARLY_US < now_us()).

with_nodedown(Peer, #{from_us := From, to_us := To} = Words, Events) ->
    Downs = [At || {down, P, _, At} <- Events, P =:= Peer, At >= From - ?NEARLY_US, At =< To + ?NEARLY_US],
    (maps:without([from_us, to_us], Words))#{nodedown => Downs =/= []}.

%% @private
-spec terminate(term(), #state{}) -> ok.
terminate(_, #state{receivers = Receivers, senders = Senders}) ->
    lists:foreach(fun({_, Pid}) -> unlink(Pid), exit(Pid, kill) end, Senders ++ Receivers).
