%% SPDX-License-Identifier: Apache-2.0
%% @doc The exchange of packets ({@link beamway_session}) over a connection to which a link moves, on the calling and on the answering side, and the
%% handover of the connection to the link's keeper.
%%
%% Each of these functions runs in a process that owns the connection, and whose exit closes a connection that it has not handed over:
%% an attempt of {@link beamway_resume}, or a connection process of net_kernel.
-module(beamway_resumption).

-export([ask/5, asked/1, answer/2, call/2]).

-import(beamway_result, [then/2]).

-define(ANSWER_MS, 1500).
-define(CALL_MS, 5000).
-define(CONNECT_MS, 2000).
%% The answering node waits at most this long for a connected peer's session to be registered.
-define(BEGIN_MS, 1000).
-define(BEGIN_PAUSE_MS, 5).
%% The lowest first byte of a TLS record. Our packets begin with the high byte of their length.
-define(TLS_FIRST, 20).
%% How long the driver may take to move a connection from ssl's processes to itself.
-define(MOVE_MS, 5000).

-type info() :: beamway_resume:info().

%% @doc Asks the link's keeper.
-spec call(pid(), Request :: term()) -> term().
call(Keeper, Request) ->
    Monitor = monitor(process, Keeper),
    Keeper ! request({self(), Monitor}, Request),
    receive
        {Monitor, Reply} ->
            demonitor(Monitor, [flush]),
            Reply;
        {'DOWN', Monitor, process, _, _} ->
            {error, no_session}
    after ?CALL_MS ->
        demonitor(Monitor, [flush]),
        {error, timeout}
    end.

request(From, Name) when is_atom(Name) -> {Name, From};
request(From, Request) -> erlang:insert_element(2, Request, From).

%% ---- the calling side ----

%% @doc Asks the peer to move the link to this connection. `GoOn' returns once this attempt may change the state on both sides.
-spec ask(beamway_session:kind(), GoOn :: fun(() -> ok), Keeper :: pid(), info(), beamway_stream:stream()) -> ok | refused | {failed, Reason :: term()}.
ask(Kind, GoOn, Keeper, #{key := Key, id := Id, node := Node} = Info, Socket) ->
    Caller = beamway_session:random(),
    Talk = #{kind => Kind, key => Key, id => Id, node => Node, caller => Caller},
    case exchange(Socket, beamway_session:resume(Kind, auth:get_cookie(Node), Id, Caller, node())) of
        {ok, {challenge, Callee, Number, _} = Challenge} ->
            case beamway_session:challenge_holds(Talk, Challenge) of
                true -> failed(agreed(GoOn, Keeper, Info, Socket, Talk#{callee => Callee}, Number));
                false -> {failed, challenge}
            end;
        {ok, {refuse, _} = Refusal} ->
            case beamway_session:refuse_holds(auth:get_cookie(Node), {Id, Caller}, Refusal) of
                true -> refused;
                false -> {failed, refusal}
            end;
        _ ->
            {failed, no_answer}
    end.

failed(ok) -> ok;
failed({error, Reason}) -> {failed, Reason}.

agreed(GoOn, Keeper, Info, Stream, Talk, Number) ->
    then(in_driver(connecting, Info, Stream, Talk), fun(Moved) -> challenged(GoOn(), Keeper, Info, Moved, Talk, Number) end).

%% If ssl has authenticated both sides, the driver takes the connection over before either of them gives up the old one. The key depends on that of the
%% link, so a third party with a valid certificate cannot sit between the two. No connection has the number 0.
in_driver(Role, #{ring_bytes := RingBytes}, {beamway_stream_tls, Tls}, Talk) ->
    case beamway_tls_takeover:take_over(Role, Tls, beamway_session:tls_key(Talk#{number => 0}), RingBytes, now_ms() + ?MOVE_MS) of
        {ok, Socket, Port, Cipher} -> {ok, beamway_stream_psk:of_link(Socket, Port, Cipher)};
        {error, Reason} -> {error, Reason}
    end;
in_driver(_Role, _Link, Stream, _Talk) ->
    {ok, Stream}.

gives_up(#{encrypted := false}, {beamway_stream_psk, _}, _Kind) -> certificates;
gives_up(_Link, _Stream, Kind) -> Kind.

%% A connection that joins others has the same number as they do.
challenged(ok, Keeper, Info, Socket, #{kind := join} = Talk, Number) ->
    case call(Keeper, number) of
        {ok, Number} -> prove(Keeper, Info, Socket, Talk#{number => Number}, 0);
        {ok, _} -> {error, superseded};
        {error, Reason} -> {error, Reason}
    end;
challenged(ok, Keeper, #{role := Role} = Info, Socket, #{kind := Kind} = Talk, Theirs) ->
    then(call(Keeper, number),
         fun(Ours) ->
                 Number = beamway_session:number_after(Role, max(Ours, Theirs)),
                 then(call(Keeper, {detach, Number, gives_up(Info, Socket, Kind)}),
                      fun(Position) -> prove(Keeper, Info, Socket, Talk#{number => Number}, Position) end)
         end).

%% The previous connection has been given up by now.
prove(Keeper, Info, Socket, #{number := Number} = Talk, Position) ->
    case exchange(Socket, beamway_session:proof(Talk, Number, Position)) of
        {ok, {accept, Theirs, _} = Accept} ->
            case beamway_session:accept_holds(Talk#{position => Position}, Accept) of
                true -> go_on(Keeper, Info, Talk, Socket, connecting, Theirs);
                false -> {error, accept}
            end;
        _ ->
            {error, no_answer}
    end.

exchange(Stream, Packet) -> then(beamway_stream:send(Stream, Packet), fun() -> received(Stream) end).

received(Stream) -> then(beamway_stream:recv(Stream, ?ANSWER_MS), fun beamway_session:decode/1).

%% The socket's port may have read bytes beyond the last packet. When another connection succeeds, the keeper stops the dialer, and with it this
%% process. That must not happen between the handover of the socket and the report of the handover, because then no process would close the socket.
go_on(Keeper, Link, Talk, Socket, Role, Position) ->
    _ = process_flag(trap_exit, true),
    go_on_with(Keeper, Link, Talk, Socket, Role, Position).

go_on_with(Keeper, #{kind := Kind}, Talk, {beamway_stream_psk, #{socket := Socket, port := Port} = Known} = Stream, Role, Position) ->
    Made = case Kind of
               ring -> then(beamway_stream:keep(Stream), fun() -> {ok, none, <<>>} end);
               tls -> ok = beamway_stream_tcp:bound(Socket, Role), {ok, Port, <<>>}
           end,
    offered(Keeper, Talk#{secured => maps:with([key], Known)}, Socket, Position, Made);
go_on_with(Keeper, #{kind := ring}, Talk, Socket, _Role, Position) ->
    Made = then(inet:setopts(Socket, [binary, {packet, 4} | beamway_stream_tcp:keepalive_options()]), fun() -> {ok, none, <<>>} end),
    offered(Keeper, Talk, Socket, Position, Made);
go_on_with(Keeper, Link, Talk, Socket, Role, Position) ->
    case {beamway_stream_tcp:let_go(Socket), prim_inet:getfd(Socket)} of
        {{ok, Read}, {ok, Fd}} ->
            Made = make_link(Link, Role, Talk, Fd, Read),
            ok = beamway_stream_tcp:bound(Socket, Role),
            offered(Keeper, Talk, Socket, Position, Made);
        {_, _} ->
            {error, closed}
    end.

%% The link is created in a separate port, which then hands it over to the link's own port.
make_link(#{kind := tcp, ring_bytes := RingBytes}, _Role, _Talk, Fd, Read) ->
    then(beamway_establish:connect(tcp, <<Fd:32>>, <<0:128>>, RingBytes, 1), fun(Port, _Device) -> {ok, Port, Read} end);
make_link(#{kind := tls, ring_bytes := RingBytes}, Role, Talk, Fd, Read) ->
    Place = beamway_encrypt:place(Fd, [{<<0:64>>, beamway_session:tls_key(Talk)}], Read),
    then(over_tls(Role, Place, RingBytes, now_ms() + ?ANSWER_MS), fun(Port, _Cipher) -> {ok, Port, <<>>} end).

over_tls(connecting, Place, RingBytes, Deadline) -> beamway_establish:connect(tls, Place, <<0:128>>, RingBytes, max(1, Deadline - now_ms()));
over_tls(accepting, Place, RingBytes, Deadline) -> beamway_tls_takeover:accept(Place, RingBytes, Deadline).

offered(Keeper, Talk, Socket, Position, Made) ->
    Offered = then(Made, fun(Port, Read) -> then(offer(Port), fun(Offer) -> {ok, Offer, Read} end) end),
    then(Offered, fun(Offer, Read) -> attach(Keeper, Socket, attaching(Talk, Socket, Offer, Position, Read)) end).

%% The keeper must own the socket before it attaches the connection.
attach(Keeper, Socket, Request) -> then(inet_tcp:controlling_process(Socket, Keeper), fun() -> call(Keeper, Request) end).

attaching(#{kind := join, number := Number}, Socket, Offer, _Position, Read) -> {join, Number, {Socket, Offer, Read}};
attaching(#{kind := Kind, number := Number} = Talk, Socket, Offer, Position, Read) -> {attach, Number, {Kind, Socket, Offer, Position, Read, maps:get(secured, Talk, #{})}}.

offer(none) -> {ok, none};
offer(Port) -> beamway_port:offer(Port).

%% ---- the answering side ----

%% @doc Returns the packet `resume' if it is the first data on an accepted connection. The connection may instead begin with a TLS handshake, whose
%% first byte is left unread. If a caller sends nothing, the handshake's timeout applies.
-spec asked(port()) -> {ok, iodata()} | no.
asked(Socket) ->
    Unpacked = inet:setopts(Socket, [{packet, raw}]),
    case Unpacked =:= ok andalso inet_tcp:recv(Socket, 1, infinity) of
        {ok, First} ->
            <<Byte>> = iolist_to_binary(First),
            asked(Byte, First, Socket);
        _ ->
            no
    end.

asked(Byte, First, Socket) when Byte >= ?TLS_FIRST ->
    _ = inet_tcp:unrecv(Socket, First),
    no;
asked(Byte, _First, Socket) ->
    case inet_tcp:recv(Socket, 1, ?ANSWER_MS) of
        {ok, Second} ->
            <<Low>> = iolist_to_binary(Second),
            packet(inet_tcp:recv(Socket, max(1, Byte * 256 + Low), ?ANSWER_MS), Socket);
        {error, _} ->
            exit(shutdown)
    end.

packet({ok, Packet}, Socket) ->
    ok = inet:setopts(Socket, [{packet, 2}]),
    {ok, Packet};
packet({error, _}, _Socket) ->
    exit(shutdown).

%% @doc Answers a connection that began with `resume'. The calling connection process always exits afterwards.
-spec answer(beamway_stream:stream(), iodata()) -> no_return().
answer(Socket, Packet) ->
    case beamway_session:decode(Packet) of
        {ok, {resume, Kind, Id, Caller, Name, _Mac} = Resume} ->
            _ = beamway_fault_path:pass_by_name(Name, ?CONNECT_MS) =:= ok orelse exit(shutdown),
            answer(beamway_links:session(Id), Socket, #{kind => Kind, id => Id, node => node(), caller => Caller}, Resume);
        {error, _} ->
            beamway_links:resume_refused(),
            exit(shutdown)
    end.

-spec answer({ok, beamway_links:session()} | error, beamway_stream:stream(), map(), beamway_session:packet()) -> no_return().
answer({ok, #{key := Key, keeper := Keeper} = Link}, Stream, #{kind := Kind} = Asked, {resume, _, _, _, Name, _} = Resume) ->
    fits(Link, Stream, Kind) orelse refuse(),
    Callee = beamway_session:random(),
    Talk = Asked#{key => Key, callee => Callee},
    Request = case beamway_session:resume_holds(cookie(Name), Resume) of
                  true -> announced(Stream, Kind);
                  false -> number
              end,
    Challenged = then(call(Keeper, Request), fun(Last) -> beamway_stream:send(Stream, beamway_session:challenge(Talk, Callee, Last)) end),
    InDriver = then(Challenged, fun() -> in_driver(accepting, Link, Stream, Talk) end),
    _ = then(InDriver, fun(Moved) -> await_proof(Keeper, Link, Moved, Talk) end),
    exit(shutdown);
answer(error, Socket, #{id := Id, caller := Caller} = Asked, {resume, _, _, _, Name, _} = Resume) ->
    Cookie = cookie(Name),
    Holds = beamway_session:resume_holds(Cookie, Resume),
    case Holds andalso begun(Id, Name, now_ms() + ?BEGIN_MS) of
        {ok, _} = Link ->
            answer(Link, Socket, Asked, Resume);
        _ ->
            _ = Holds andalso beamway_stream:send(Socket, beamway_session:refuse(Cookie, {Id, Caller})),
            refuse()
    end.

-spec refuse() -> no_return().
refuse() ->
    beamway_links:resume_refused(),
    exit(shutdown).

%% An encrypted link does not accept a connection in clear text, and vice versa. Over a connection with certificates, a link can only be resumed.
fits(#{encrypted := true}, {beamway_stream_psk, _}, _Kind) -> true;
fits(#{encrypted := false}, Socket, _Kind) when is_port(Socket) -> true;
fits(#{encrypted := false, kind := tls}, {beamway_stream_tls, _}, resume) -> true;
fits(_Link, _Stream, _Kind) -> false.

%% The peer is about to give up the connection on purpose, so its end must not count as a loss.
announced({beamway_stream_tls, _}, _Kind) -> {expect, certificates, ?MOVE_MS + ?ANSWER_MS};
announced(_Stream, spread) -> {expect, spreads, ?ANSWER_MS};
announced(_Stream, _Kind) -> number.

%% The peer may have lost the connection before this side completed the handshake. So if the peer is connected but its session is not registered yet,
%% this waits for the session.
begun(Id, Name, Until) ->
    case beamway_links:session(Id) of
        {ok, Link} -> {ok, Link};
        error ->
            Begins = now_ms() < Until andalso lists:member(Name, [atom_to_binary(Node) || Node <- nodes(connected)]),
            Begins andalso receive after ?BEGIN_PAUSE_MS -> begun(Id, Name, Until) end
    end.

%% Does not create an atom for a name, because anybody may send one.
cookie(Node) ->
    try auth:get_cookie(binary_to_existing_atom(Node))
    catch error:_ -> erlang:get_cookie()
    end.

await_proof(Keeper, Link, Stream, Talk) ->
    then(received(Stream), fun(Proof) -> proved(Keeper, Link, Stream, Talk, Proof) end).

proved(Keeper, Link, Socket, #{kind := Kind} = Asked, {proof, Number, Position, _} = Proof) ->
    Talk = Asked#{number => Number},
    case beamway_session:proof_holds(Asked, Proof) andalso ready(Keeper, Number, gives_up(Link, Socket, Kind)) of
        {ok, Own} ->
            then(beamway_stream:send(Socket, beamway_session:accept(Talk, Position, Own)), fun() -> go_on(Keeper, Link, Talk, Socket, accepting, Position) end);
        _ -> refuse()
    end;
proved(_Keeper, _Link, _Socket, _Talk, _Other) -> ok.

%% Returns the number of bytes that this side has read, if it can accept the connection.
ready(Keeper, Number, join) ->
    case call(Keeper, paths) of
        {ok, Number, {Connections, _RttUs}} when Connections > 0 -> {ok, 0};
        {ok, _, _} -> {error, superseded};
        {error, Reason} -> {error, Reason}
    end;
ready(Keeper, Number, Kind) ->
    call(Keeper, {detach, Number, Kind}).

now_ms() -> erlang:monotonic_time(millisecond).
