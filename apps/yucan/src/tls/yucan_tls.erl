%% SPDX-License-Identifier: Apache-2.0
%% @doc The transport over TLS, on top of another transport, and the TLS options of a listener: its own certificate, and the certificates of its
%% hosts, which are selected by the server name that the client requests. yucan_transport documents the callbacks.
-module(yucan_tls).

-behaviour(yucan_transport).
-dialyzer(no_improper_lists).

-export([look_at/2, server/3, anchor/0, open/2, by_name/2, handshake/3, protocol/1, demands/1, has_met/2]).
-export_type([server/0, demands/0, asked/0]).
-export([peer/1, recv/3, read/2, send/2, send_large/2, send_file/6, setopts/2, arm/2, event/2, next/2, is_closed/1, close/1, info/1, tls/1]).

-define(PART_BYTES, 65536).

%% A listener's TLS options, and the ssl socket that holds its session ticket key.
-opaque server() :: {[ssl:tls_server_option()], Tickets :: none | wanted | ssl:sslsocket()}.

-opaque demands() :: [ssl:tls_server_option()].
%% The listener's requirements, which apply to hosts without their own, and the requirements that
%% the client met in the handshake.
-opaque asked() :: {Listener :: demands(), Asked :: none | [term()]}.

-define(DEMANDS, [verify, fail_if_no_peer_cert, cacerts, cacertfile, depth, verify_fun, partial_chain, crl_check, crl_cache]).

%% @doc Checks whether a file contains what an ssl option needs, because ssl itself would notice an error only when the first client connects.
-spec look_at(certfile | keyfile | cacertfile, file:name_all()) -> ok | {error, Why :: unicode:chardata()}.
look_at(Key, File) ->
    case file:read_file(File) of
        {ok, Pem} ->
            Kinds = [Kind || {Kind, _, _} <- public_key:pem_decode(Pem)],
            case [Kind || Kind <- Kinds, is_for(Key, Kind)] of
                [] -> {error, ["it holds no ", what(Key), "; a PEM file is expected"]};
                _ -> ok
            end;
        {error, Reason} -> {error, file:format_error(Reason)}
    end.

is_for(keyfile, Kind) -> lists:member(Kind, ['PrivateKeyInfo', 'EncryptedPrivateKeyInfo', 'RSAPrivateKey', 'DSAPrivateKey', 'ECPrivateKey']);
is_for(_, Kind) -> Kind =:= 'Certificate'.

what(keyfile) -> "private key";
what(_) -> "certificate".

%% @doc Returns the TLS settings of a listening socket, for {@link open/2}. If the options have not changed, the previous settings are reused, so that
%% tickets stay valid after a reload. Throws `{cannot, Text}' if ssl rejects the options.
-spec server(Before :: none | server(), {[ssl:tls_server_option()], Hosts :: [map()]}, Http2 :: boolean()) -> server().
server(Before, {Own, Hosts}, Http2) ->
    case {options(Own, Hosts, Http2), Before} of
        {Options, {Options, _}} -> Before;
        {Options, _} ->
            ok = accepted(Options),
            {Options, case proplists:get_value(session_tickets, Options, disabled) of disabled -> none; _ -> wanted end}
    end.

%% If the options were wrong and not checked here, every handshake would fail silently.
accepted(Options) ->
    case listen(none, Options) of
        {error, no_socket} -> ok;
        {error, Reason} -> throw({cannot, ["ssl does not accept the tls option ", refused(Reason)]})
    end.

%% @doc Opens a port that belongs to the caller and only serves as the first argument of {@link
%% open/2}.
-spec anchor() -> port().
anchor() -> open_port({spawn_driver, "ram_file_drv"}, []).

%% @doc Lets connections use these settings from now on. ssl keeps the ticket key until the port is
%% closed. A listening socket could not replace the port, because a draining server closes it while
%% handshakes are still in progress, and TLS 1.3 issues a ticket at the end of each.
-spec open(Anchor :: port(), Tls) -> Tls when Tls :: none | server().
open(Anchor, {Options, wanted}) ->
    {ok, Tickets} = listen(Anchor, Options),
    {Options, Tickets};
open(_, Tls) -> Tls.

listen(Socket, Options) ->
    Below = [{cb_info, {yucan_tls_below, tcp, tcp_closed, tcp_error, tcp_passive}}, binary, {active, false}, {packet, raw}],
    yucan_tls_below:with(Socket, fun() -> ssl:listen(0, Below ++ Options) end).

%% The value is left out, because it may be a password.
refused({options, {Option, _}}) when is_atom(Option) -> atom_to_list(Option);
refused(Reason) -> io_lib:format("~0tp", [Reason]).

options(Own, Hosts, Http2) ->
    Named = [{Name, without_general(Tls)} || #{names := Names, tls := Tls} <- Hosts, Tls =/= none, Name <- Names],
    Defaults = [{alpn_preferred_protocols, [<<"h2">> || Http2] ++ [<<"http/1.1">>]}, {versions, ['tlsv1.3', 'tlsv1.2']}, {honor_cipher_order, true}]
        ++ [Default || speaks_older(Own), Default <- [{client_renegotiation, false}, {reuse_sessions, have_same_demands(Own, [Tls || {_, Tls} <- Named])}]]
        ++ [{session_tickets, stateless} || may_resume([Own | [Tls || {_, Tls} <- Named]])],
    Base = lists:foldl(fun({Key, _} = Default, All) -> case lists:keymember(Key, 1, Own) of true -> All; false -> [Default | All] end end, Own, Defaults),
    case Named of
        [] -> Base;
        _ -> [{sni_fun, fun(Name) -> ?MODULE:by_name(Name, Named) end} | Base]
    end.

%% ssl rejects options for older versions if only TLS 1.3 is used.
speaks_older(Own) -> lists:any(fun(Version) -> Version =/= 'tlsv1.3' end, proplists:get_value(versions, Own, ['tlsv1.2'])).

%% A ticket records neither the client's certificate nor the name for which it was issued, so a client could use it to bypass verify_peer.
may_resume([Own | _] = All) ->
    lists:member('tlsv1.3', proplists:get_value(versions, Own, ['tlsv1.3'])) andalso not lists:any(fun(Tls) -> proplists:get_value(verify, Tls) =:= verify_peer end, All).

%% ssl resumes a TLS 1.2 session by its session ID under any name. So a client with a certificate from one host's authority would be admitted to all
%% hosts.
have_same_demands(Own, Hosts) ->
    Listener = demands(Own),
    lists:all(fun(Host) -> asked(demands(Host), Listener) =:= asked([], Listener) end, Hosts).

%% @doc Returns the options that concern the client's certificate.
-spec demands([ssl:tls_server_option()]) -> demands().
demands(Options) -> [Option || {Key, _} = Option <- Options, lists:member(Key, ?DEMANDS)].

%% ssl adds a host's options to those of the listener.
asked(Host, Listener) ->
    All = Host ++ Listener,
    case proplists:get_value(verify, All) of
        verify_peer -> [proplists:get_value(Key, All) || Key <- ?DEMANDS];
        _ -> none
    end.

%% @doc Returns whether the client has presented the certificate that this host requires. The handshake may have been for a different host, because a
%% client need not name a host in TLS.
-spec has_met(none | asked(), Host :: demands()) -> boolean().
has_met(none, _) -> true;
has_met({Listener, Asked}, Host) ->
    case asked(Host, Listener) of
        none -> true;
        Wanted -> Wanted =:= Asked
    end.

without_general(Tls) -> [Option || {Key, _} = Option <- Tls, Key =/= versions, Key =/= alpn_preferred_protocols].

%% @doc Returns the certificate for a name. `undefined' stands for the listener's own certificate.
-spec by_name(string(), [{binary(), list()}]) -> undefined | list().
by_name(Name, Named) ->
    Lower = yucan_header:lower(iolist_to_binary(Name)),
    case [Tls || {Pattern, Tls} <- Named, yucan_hostname:is_match(Pattern, Lower)] of
        [Tls | _] -> Tls;
        [] -> undefined
    end.

%% @doc Starts TLS on a connection. Returns the server name that the client requested and the certificate requirements that it had to meet. `plain'
%% means that the connection begins with a letter, like an HTTP request, and not with byte 22, like TLS.
-spec handshake(yucan_transport:socket(), server(), TimeoutMs :: pos_integer()) ->
    {ok, yucan_transport:socket(), Sni :: undefined | binary(), asked()} | plain | error.
handshake({_, Below}, {Options, _} = Server, Timeout) ->
    case is_plain(Below, Timeout) of
        true -> plain;
        false ->
            case shake(Below, Server, Timeout) of
                {ok, Tls} -> Sni = sni(Tls), {ok, {?MODULE, Tls}, Sni, asked_of(Sni, Options)};
                _ -> error
            end;
        error -> error
    end.

shake(Below, {Options, Tickets}, Timeout) ->
    case yucan_acme_challenge:has_certificates() of
        true -> may_be_asked(Below, proplists:delete(session_tickets, Options), Timeout);
        false -> shake(Below, Options, Tickets, Timeout)
    end.

%% To verify a challenge, a certificate authority connects with the ALPN protocol acme-tls/1 and only looks at the certificate (RFC 8737).
may_be_asked(Below, Options, Timeout) ->
    %% The type of ssl:handshake/3 does not include this option.
    case ssl:handshake(Below, lists:keystore(handshake, 1, Options, {handshake, hello}), Timeout) of
        {ok, Hello, #{alpn := <<10, "acme-tls/1">>, sni := Name}} ->
            case yucan_acme_challenge:certificate(yucan_header:lower(iolist_to_binary(Name))) of
                none -> ssl:handshake_cancel(Hello);
                Own ->
                    case ssl:handshake_continue(Hello, [{alpn_preferred_protocols, [<<"acme-tls/1">>]}, {sni_fun, fun(_) -> Own end}], Timeout) of
                        {ok, Tls} -> ssl:close(Tls);
                        Error -> Error
                    end
            end;
        {ok, Hello, _} -> ssl:handshake_continue(Hello, Options, Timeout);
        Error -> Error
    end.

shake(Below, Options, none, Timeout) -> ssl:handshake(Below, Options, Timeout);
shake(Below, _, Tickets, Timeout) ->
    case yucan_tls_below:with(Below, fun() -> ssl:transport_accept(Tickets) end) of
        {ok, Accepted} -> ssl:handshake(Accepted, Timeout);
        Error -> Error
    end.

%% The byte that was read is put back. A client that sends nothing never reaches ssl, which would crash if the socket were closed.
is_plain(Socket, Timeout) when is_port(Socket) ->
    case gen_tcp:recv(Socket, 1, Timeout) of
        {ok, <<C>>} when C >= $A, C =< $Z -> true;
        {ok, Byte} -> _ = gen_tcp:unrecv(Socket, Byte), false;
        {error, _} -> error
    end;
is_plain(_, _) -> false.

%% @doc Returns the protocol that was negotiated with ALPN.
-spec protocol(yucan_transport:socket()) -> none | binary().
protocol({?MODULE, Tls}) ->
    case ssl:negotiated_protocol(Tls) of
        {ok, Protocol} -> Protocol;
        {error, _} -> none
    end.

sni(Tls) ->
    case ssl:connection_information(Tls, [sni_hostname]) of
        {ok, [{sni_hostname, Name}]} when is_list(Name) -> yucan_header:lower(iolist_to_binary(Name));
        _ -> undefined
    end.

asked_of(Sni, Options) ->
    Listener = demands(Options),
    ByName = proplists:get_value(sni_fun, Options),
    Host = case Sni =/= undefined andalso ByName =/= undefined andalso ByName(Sni) of
        Tls when is_list(Tls) -> demands(Tls);
        _ -> []
    end,
    {Listener, asked(Host, Listener)}.

-spec peer(ssl:sslsocket()) -> {ok, term()} | {error, term()}.
peer(Tls) -> ssl:peername(Tls).

-spec recv(ssl:sslsocket(), non_neg_integer(), timeout()) -> {ok, binary()} | {error, yucan_transport:reason()}.
recv(Tls, Length, Timeout) -> plain_reason(ssl:recv(Tls, Length, Timeout)).

plain_reason({error, Reason}) when not is_atom(Reason) -> {error, closed};
plain_reason(Result) -> Result.

-spec read(ssl:sslsocket(), timeout()) -> {ok, binary()} | {error, yucan_transport:reason()}.
read(Tls, Timeout) -> recv(Tls, 0, Timeout).

-spec send(ssl:sslsocket(), iodata()) -> ok | {error, yucan_transport:reason()}.
send(Tls, Data) -> plain_reason(ssl:send(Tls, Data)).

%% @doc Sends large data in parts, because ssl encrypts everything at once and buffers it, separately for each connection, until the peer has read it.
-spec send_large(ssl:sslsocket(), iodata()) -> ok | {error, yucan_transport:reason()}.
send_large(Tls, [Head | <<Part:?PART_BYTES/binary, Rest/binary>>]) ->
    case send(Tls, [Head | Part]) of
        ok -> send_large(Tls, [[] | Rest]);
        Error -> Error
    end;
send_large(Tls, [Head | Body]) when is_list(Body) -> send_large(Tls, [Head | iolist_to_binary(Body)]);
send_large(Tls, Data) -> send(Tls, Data).

-spec send_file(ssl:sslsocket(), iodata(), file:fd(), non_neg_integer(), pos_integer(), pos_integer()) ->
    {ok, non_neg_integer()} | {error, yucan_transport:reason()}.
send_file(Tls, Head, Handle, Offset, Length, _) ->
    case send(Tls, Head) of
        ok -> {ok, Length - yucan_transport:copy(fun(Data, _) -> send(Tls, Data) end, Handle, Offset, Length)};
        Error -> Error
    end.

-spec setopts(ssl:sslsocket(), list()) -> ok.
setopts(Tls, Options) -> _ = ssl:setopts(Tls, Options), ok.

%% @doc Requests one message per call, whatever the count.
-spec arm(ssl:sslsocket(), pos_integer()) -> ok | {error, yucan_transport:reason()}.
arm(Tls, _) -> plain_reason(ssl:setopts(Tls, [{active, once}])).

-spec event(term(), ssl:sslsocket()) -> {last, binary()} | closed | other.
event({ssl, Tls, Data}, Tls) -> {last, Data};
event({ssl_closed, Tls}, Tls) -> closed;
event({ssl_error, Tls, _}, Tls) -> closed;
event(_, _) -> other.

-spec next(ssl:sslsocket(), timeout()) -> {last, binary()} | closed | timeout.
next(Tls, Timeout) ->
    receive
        {ssl, Tls, Data} -> {last, Data};
        {ssl_closed, Tls} -> closed;
        {ssl_error, Tls, _} -> closed
    after Timeout -> timeout
    end.

-spec is_closed(ssl:sslsocket()) -> boolean().
is_closed(Tls) -> element(1, ssl:peername(Tls)) =:= error.

-spec close(ssl:sslsocket()) -> ok.
close(Tls) -> _ = ssl:close(Tls), ok.

-spec info(ssl:sslsocket()) -> #{atom() => term()}.
info(Tls) ->
    case ssl:connection_information(Tls, [protocol, selected_cipher_suite, sni_hostname]) of
        {ok, Info} -> maps:from_list(Info);
        {error, _} -> #{}
    end.

-spec tls(ssl:sslsocket()) -> ssl:sslsocket().
tls(Tls) -> Tls.
