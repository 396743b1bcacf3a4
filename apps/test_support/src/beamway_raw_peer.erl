%% SPDX-License-Identifier: Apache-2.0
%% @doc A peer that performs the distribution handshake by hand, up to a step that the test chooses, and then does what no real node would: it
%% stalls, sends garbage or disappears.
%%
%% It can take either role: {@link call/3} connects to a node, and {@link serve/3} registers a name
%% with epmd and waits for a node to connect. The `Step' argument says where to stop in the
%% handshake. Everything before that is correct, and includes Beamway's extension if the options
%% contain one. The caller then gets a passive socket in `{packet, 2}' mode, as in the handshake, on
%% which it can misbehave.
%%
%% It runs in the test's own process, which need not be on a distributed node.
-module(beamway_raw_peer).

-export([call_steps/1, serve_steps/1, call/3, serve/3, listen/1, close/1]).
-export([send/2, send_raw/2, recv/2, closed_within/2, offer/1, open_listener/0, tell/2]).

-export_type([call_step/0, serve_step/0, options/0, server/0]).

-type call_step() :: connected | half_name | named | status | challenge | half_reply
                   | authenticated | half_offer | offered | answered.
%% This is the last step that the caller has completed. At `named' it has sent its name, at `status' and `challenge' it has read the acceptor's
%% packet of that name, and at `authenticated' it has sent its reply and read the acknowledgement. At `offered' it has sent the offer of a link,
%% and at `answered' it has read the answer.

-type serve_step() :: accepted | named | half_status | status | challenged | replied | acknowledged
                    | offered.
%% This is the last step that the acceptor has completed. At `named' it has read the caller's name, at `status' and `challenged' it has sent
%% that packet, at `replied' it has read the reply, at `acknowledged' it has sent the acknowledgement, and at `offered' it has read the caller's
%% offer of a link.

-type options() :: #{name => string(), cookie => string(), extension => binary(),
                     old_name => boolean()}. %% use the form in which OTP 23 and 24 call a node of unknown version
-type server() :: #{name := string(), node := node(), listen := gen_tcp:socket(),
                    epmd := gen_tcp:socket()}.

-define(WAIT_MS, 20000).
-define(EPMD_PORT, 4369).
-define(COOKIE, "beamway_test").

%% @doc Returns the steps of a caller. The steps of the link agreement exist only with an extension.
-spec call_steps(plain | extended) -> [call_step()].
call_steps(plain) -> [connected, half_name, named, status, challenge, half_reply];
call_steps(extended) -> call_steps(plain) ++ [authenticated, half_offer, offered, answered].

%% @doc Returns the steps of an acceptor.
-spec serve_steps(plain | extended) -> [serve_step()].
serve_steps(plain) -> [accepted, named, half_status, status, challenged, replied];
serve_steps(extended) -> serve_steps(plain) ++ [acknowledged, offered].

%% ---- calling ----

%% @doc Connects to a node and performs the handshake up to `Step'.
-spec call(node(), call_step(), options()) -> gen_tcp:socket().
call(Node, Step, Options) ->
    [Name, Host] = string:split(atom_to_list(Node), "@"),
    {ok, Socket} = gen_tcp:connect("localhost", registered_port(Name),
                                   [binary, {active, false}, {packet, 2}], ?WAIT_MS),
    Own = maps:get(name, Options, beamway_peer:unique_name("raw")) ++ "@" ++ Host,
    call_step(connected, Step, #{socket => Socket, own => Own, options => Options}).

call_step(Done, Done, #{socket := Socket}) ->
    Socket;
call_step(connected, half_name, #{socket := Socket} = State) ->
    ok = send_half(Socket, name_packet(State)),
    Socket;
call_step(connected, Last, #{socket := Socket} = State) ->
    ok = send(Socket, name_packet(State)),
    call_step(named, Last, State);
call_step(named, Last, #{socket := Socket} = State) ->
    {ok, <<"s", Status/binary>>} = recv(Socket, ?WAIT_MS),
    <<"ok">> = Status,
    call_step(status, Last, State);
call_step(status, Last, #{socket := Socket} = State) ->
    {ok, <<$N, _Flags:64, Challenge:32, _Creation:32, Len:16, _Name:Len/binary, _/binary>>} =
        recv(Socket, ?WAIT_MS),
    ok = complement(State),
    call_step(challenge, Last, State#{challenge => Challenge});
call_step(challenge, half_reply, #{socket := Socket} = State) ->
    ok = send_half(Socket, reply_packet(State)),
    Socket;
call_step(challenge, Last, #{socket := Socket} = State) ->
    ok = send(Socket, reply_packet(State)),
    Expected = digest(State, 4711),
    {ok, <<$a, Expected:16/binary>>} = recv(Socket, ?WAIT_MS),
    call_step(authenticated, Last, State);
call_step(authenticated, half_offer, #{socket := Socket}) ->
    ok = send_half(Socket, offer(#{})),
    Socket;
call_step(authenticated, Last, #{socket := Socket} = State) ->
    ok = send(Socket, offer(#{address => open_listener()})),
    call_step(offered, Last, State);
call_step(offered, Last, #{socket := Socket} = State) ->
    {ok, Answer} = recv(Socket, ?WAIT_MS),
    {ok, ready} = beamway_wire:decode(Answer),
    call_step(answered, Last, State).

name_packet(#{own := Own, options := #{old_name := true}}) ->
    <<$n, 5:16, (flags()):32, (list_to_binary(Own))/binary>>;
name_packet(#{own := Own, options := Options}) ->
    <<$N, (flags()):64, 1:32, (length(Own)):16, (list_to_binary(Own))/binary,
      (maps:get(extension, Options, <<>>))/binary>>.

%% After the challenge, a caller that used the old form of the name packet sends the information that is missing from it.
complement(#{socket := Socket, options := #{old_name := true}}) ->
    send(Socket, <<$c, (flags() bsr 32):32, 1:32>>);
complement(_) ->
    ok.

reply_packet(#{challenge := Challenge} = State) ->
    <<$r, 4711:32, (digest(State, Challenge))/binary>>.

digest(#{options := Options}, Challenge) ->
    erlang:md5([maps:get(cookie, Options, ?COOKIE), integer_to_list(Challenge)]).

%% @doc Returns an encoded offer of a link, with the address of a socket that never accepts connections. `Changes' replace parts of the offer.
-spec offer(#{address | token => binary(), ring_bytes => non_neg_integer()}) -> binary().
offer(Changes) ->
    Offer = #{address => <<0, "beamway-nobody">>, token => <<7:128>>, ring_bytes => 1048576},
    beamway_wire:encode({offer, maps:merge(Offer, Changes)}).

%% @doc Listens on a unix socket but never accepts, although the node connects to it to pass its descriptors. The socket is closed when the
%% calling process exits. Returns its address.
-spec open_listener() -> binary().
open_listener() ->
    Address = <<0, (list_to_binary(beamway_peer:unique_name("beamway-raw")))/binary>>,
    {ok, Listener} = socket:open(local, seqpacket),
    ok = socket:bind(Listener, #{family => local, path => Address}),
    ok = socket:listen(Listener),
    Address.

%% @doc Connects to the listener named in a node's offer and sends bytes.
-spec tell(binary(), binary()) -> ok.
tell(Address, Bytes) ->
    {ok, Socket} = socket:open(local, seqpacket),
    ok = socket:connect(Socket, #{family => local, path => Address}),
    ok = socket:send(Socket, Bytes, ?WAIT_MS).

%% ---- being called ----

%% @doc Registers a name with epmd and listens. The caller must close it with {@link close/1}.
-spec listen(string()) -> server().
listen(Host) ->
    Name = beamway_peer:unique_name("raw"),
    {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {packet, 2}, {ip, {0, 0, 0, 0}},
                                      {backlog, 128}]),
    {ok, Port} = inet:port(Listen),
    #{name => Name, node => list_to_atom(Name ++ "@" ++ Host), listen => Listen,
      epmd => register_name(Name, Port)}.

%% @doc Accepts the next connection and performs the handshake up to `Step'.
-spec serve(server(), serve_step(), options()) -> gen_tcp:socket().
serve(#{listen := Listen, node := Node}, Step, Options) ->
    {ok, Socket} = gen_tcp:accept(Listen, ?WAIT_MS),
    serve_step(accepted, Step, #{socket => Socket, own => atom_to_list(Node), options => Options}).

serve_step(Done, Done, #{socket := Socket}) ->
    Socket;
serve_step(accepted, Last, #{socket := Socket} = State) ->
    {ok, <<$N, _/binary>>} = recv(Socket, ?WAIT_MS),
    serve_step(named, Last, State);
serve_step(named, half_status, #{socket := Socket}) ->
    ok = send_half(Socket, <<"sok">>),
    Socket;
serve_step(named, Last, #{socket := Socket} = State) ->
    ok = send(Socket, <<"sok">>),
    serve_step(status, Last, State);
serve_step(status, Last, #{socket := Socket, own := Own, options := Options} = State) ->
    ok = send(Socket, <<$N, (flags()):64, 4711:32, 1:32, (length(Own)):16,
                        (list_to_binary(Own))/binary, (maps:get(extension, Options, <<>>))/binary>>),
    serve_step(challenged, Last, State);
serve_step(challenged, Last, #{socket := Socket} = State) ->
    {ok, <<$r, Challenge:32, Digest:16/binary>>} = recv(Socket, ?WAIT_MS),
    Digest = digest(State, 4711),
    serve_step(replied, Last, State#{challenge => Challenge});
serve_step(replied, Last, #{socket := Socket, challenge := Challenge} = State) ->
    ok = send(Socket, <<$a, (digest(State, Challenge))/binary>>),
    serve_step(acknowledged, Last, State);
serve_step(acknowledged, Last, #{socket := Socket} = State) ->
    {ok, _Offer} = recv(Socket, ?WAIT_MS),
    serve_step(offered, Last, State).

%% @doc Closes a server. Closing its connection to epmd also removes its name.
-spec close(server()) -> ok.
close(#{listen := Listen, epmd := Epmd}) ->
    ok = gen_tcp:close(Listen),
    gen_tcp:close(Epmd).

%% ---- bytes ----

%% @doc Sends a handshake packet.
-spec send(gen_tcp:socket(), iodata()) -> ok | {error, term()}.
send(Socket, Packet) ->
    gen_tcp:send(Socket, Packet).

%% @doc Sends bytes without a length prefix.
-spec send_raw(gen_tcp:socket(), iodata()) -> ok | {error, term()}.
send_raw(Socket, Bytes) ->
    ok = inet:setopts(Socket, [{packet, raw}]),
    Sent = gen_tcp:send(Socket, Bytes),
    ok = inet:setopts(Socket, [{packet, 2}]),
    Sent.

send_half(Socket, Packet) ->
    send_raw(Socket, [<<(byte_size(Packet)):16>>,
                      binary:part(Packet, 0, max(1, byte_size(Packet) div 2))]).

%% @doc Reads a handshake packet.
-spec recv(gen_tcp:socket(), timeout()) -> {ok, binary()} | {error, term()}.
recv(Socket, TimeoutMs) ->
    gen_tcp:recv(Socket, 0, TimeoutMs).

%% @doc Waits until the node closes the connection, and returns how many milliseconds that took. Anything that the node sends before that is ignored.
-spec closed_within(gen_tcp:socket(), pos_integer()) -> non_neg_integer() | still_open.
closed_within(Socket, TimeoutMs) ->
    ok = inet:setopts(Socket, [{packet, raw}]),
    Start = erlang:monotonic_time(millisecond),
    read_to_end(Socket, Start, Start + TimeoutMs).

read_to_end(Socket, Start, EndMs) ->
    case gen_tcp:recv(Socket, 0, max(0, EndMs - erlang:monotonic_time(millisecond))) of
        {ok, _} -> read_to_end(Socket, Start, EndMs);
        {error, timeout} -> still_open;
        {error, _Closed} -> erlang:monotonic_time(millisecond) - Start
    end.

%% Returns the distribution flags of a node with this OTP release. The record is private to ERTS and dist_util.
flags() ->
    element(2, erts_internal:get_dflags()).

%% ---- epmd ----

registered_port(Name) ->
    {ok, Socket} = gen_tcp:connect("localhost", epmd_port(), [binary, {active, false}], ?WAIT_MS),
    ok = gen_tcp:send(Socket, <<(length(Name) + 1):16, $z, (list_to_binary(Name))/binary>>),
    {ok, <<$w, 0, Port:16, _/binary>>} = gen_tcp:recv(Socket, 0, ?WAIT_MS),
    ok = gen_tcp:close(Socket),
    Port.

register_name(Name, Port) ->
    {ok, Socket} = gen_tcp:connect("localhost", epmd_port(), [binary, {active, false}], ?WAIT_MS),
    Request = <<$x, Port:16, $M, 0, 6:16, 5:16, (length(Name)):16, (list_to_binary(Name))/binary, 0:16>>,
    ok = gen_tcp:send(Socket, <<(byte_size(Request)):16, Request/binary>>),
    {ok, <<Kind, 0, _/binary>>} = gen_tcp:recv(Socket, 0, ?WAIT_MS),
    true = lists:member(Kind, [$v, $y]),
    Socket.

epmd_port() ->
    case os:getenv("ERL_EPMD_PORT") of
        false -> ?EPMD_PORT;
        Port -> list_to_integer(Port)
    end.
