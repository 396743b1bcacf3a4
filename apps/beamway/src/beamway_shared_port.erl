%% SPDX-License-Identifier: Apache-2.0
%% @doc Lanes come to the port on which this node's distribution listens: one port to open in a firewall, one listener.
%%
%% The first packet of a lane is a word that begins with "BWTP", behind a length of two bytes as the first packet of the distribution has it. Where the
%% distribution goes over TLS, a lane's word comes before TLS, and TLS begins with another byte. So the process of the connection can tell
%% them apart ({@link before_tls/1}, {@link is_lane/1}), and hands a lane over ({@link hand_over/2}).
%%
%% Whoever takes lanes calls {@link take/0}. For each that comes it gets `{lane_comes, Ref}', and answers by {@link admit/2} with the process
%% that shall own the connection. That one gets `{socket, Socket, Word, Taker}': a passive, raw TCP socket from which only the word was read.
%% The caller has proved nothing yet. The owner demands the proof, within a time limit of its own.
-module(beamway_shared_port).

-export([listens/1, address/0, take/0, admit/2]).
%% for beamway_dist_setup
-export([before_tls/1, is_lane/1, hand_over/2]).

-define(LISTENS, {?MODULE, listens}).
-define(TAKER, {?MODULE, taker}).
-define(MAGIC, "BWTP").
-define(MAX_WORD, 1024).
-define(ADMIT_MS, 5000).
-define(SOCKET_OPTIONS, [binary, {active, false}, {packet, raw}, {nodelay, true}, {keepalive, true}, {send_timeout, 5000}]).

%% @private The distribution listens there. Of several carriers the first one counts.
-spec listens(gen_tcp:socket()) -> ok.
listens(Socket) ->
    case address() of
        {ok, _} -> ok;
        none -> persistent_term:put(?LISTENS, Socket)
    end.

%% @doc Where lanes may come, if the node's carrier is Beamway's and listens. An unspecified address stands for all of this host.
-spec address() -> {ok, {inet:ip_address(), inet:port_number()}} | none.
address() ->
    case persistent_term:get(?LISTENS, none) of
        none -> none;
        Socket ->
            case inet:sockname(Socket) of
                {ok, Address} -> {ok, Address};
                {error, _} -> none
            end
    end.

%% @doc The calling process takes lanes until it ends, or another one calls this.
-spec take() -> ok.
take() -> persistent_term:put(?TAKER, self()).

%% @doc The taker's answer to `{lane_comes, Ref}'. `full': the connection is closed.
-spec admit(reference(), {ok, Owner :: pid()} | full) -> ok.
admit(Ref, Answer) ->
    Ref ! {Ref, Answer},
    ok.

%% ---- in the process of the connection, which owns the socket ----

%% @private Of a connection on which TLS is expected. The socket is raw from now on. Whatever is no lane is given back, for ssl to say what it is.
%% No timeout: dist_util's timer ends this process.
-spec before_tls(gen_tcp:socket()) -> tls | {lane, Word :: binary()} | {error, Reason :: term()}.
before_tls(Socket) ->
    _ = inet:setopts(Socket, [binary, {packet, raw}]), % a socket that the peer has closed says so at the first read
    case gen_tcp:recv(Socket, 1) of
        {ok, <<High>>} when High =< ?MAX_WORD bsr 8 -> word(<<High>>, Socket);
        {ok, Other} -> given_back(Socket, Other);
        {error, Reason} -> {error, Reason}
    end.

word(High, Socket) ->
    case gen_tcp:recv(Socket, 1 + length(?MAGIC)) of
        {ok, <<Low, ?MAGIC>>} ->
            <<Size:16>> = <<High/binary, Low>>,
            rest(gen_tcp:recv(Socket, max(1, Size - length(?MAGIC))));
        {ok, Other} -> given_back(Socket, <<High/binary, Other/binary>>);
        {error, Reason} -> {error, Reason}
    end.

rest({ok, Rest}) -> {lane, <<?MAGIC, Rest/binary>>};
rest({error, Reason}) -> {error, Reason}.

given_back(Socket, Bytes) ->
    ok = gen_tcp:unrecv(Socket, Bytes),
    tls.

%% @private Whether the first packet of a connection without TLS begins a lane.
-spec is_lane(string()) -> boolean().
is_lane(Packet) -> lists:prefix(?MAGIC, Packet) andalso length(Packet) =< ?MAX_WORD.

%% @private The caller is done with the socket. Where teleport does not run nobody takes the lane, and it ends with the caller.
-spec hand_over(gen_tcp:socket(), Word :: binary()) -> ok.
hand_over(Socket, Word) ->
    case persistent_term:get(?TAKER, none) of
        none -> ok;
        Taker ->
            Ref = monitor(process, Taker, [{alias, reply_demonitor}]),
            Taker ! {lane_comes, Ref},
            receive
                {Ref, {ok, Owner}} -> give(Socket, Word, Owner, Taker);
                {Ref, full} -> ok;
                {'DOWN', Ref, process, Taker, _} -> ok
            after ?ADMIT_MS -> ok
            end
    end.

give(Socket, Word, Owner, Taker) ->
    case inet:setopts(Socket, ?SOCKET_OPTIONS) =:= ok andalso gen_tcp:controlling_process(Socket, Owner) of
        ok -> Owner ! {socket, Socket, Word, Taker}, ok;
        _ -> ok
    end.
