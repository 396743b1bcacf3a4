%% SPDX-License-Identifier: Apache-2.0
%% @doc A request, as handlers and middleware see it.
%%
%% All but the body is a plain value. The body is read from the connection: only by the process in which
%% yucan_handler's `handle' was called, and once; where it stands is kept there (yucan_body), so reading gives no new request.
-module(yucan_req).

-export([method/1, target/1, path/1, query/1, has_query/1, decoded_path/1, version/1, scheme/1, host/1, own_names/2, has_own_name/2, port/1, id/1, headers/1, header/2,
         header/3, peer/1, conn_peer/1, peer_socket/1, local/1, cookies/1, query_pairs/1, binding/2, bindings/1, assign/3, assigned/3, server/1,
         socket/1, tls_info/1, with_path/3, with_method/2, set_header/3, delete_header/2, has_body/1, body_length/1, body/1,
         body/2, read/1, read/2, gather/3, gather/4, trailers/1, body_error/1, pairs/1, pairs/2, cookie_pairs/1, bind/2]).
-export_type([req/0, address/0, body_error/0]).

-include("yucan_internal.hrl").

%% Of the process: its socket, and whose that is.
-define(PEER, '$yucan_peer').

%% Read it by the functions of this module: the record is private to the core.
-type req() :: #req{}.
-type address() :: {inet:ip_address(), inet:port_number()} | {local, binary()}.
-type body_error() :: too_large | timeout | closed | bad_chunk | trailers_too_long.

%% @doc The method as it was sent: methods are case-sensitive.
-spec method(req()) -> binary().
method(#req{method = Method}) -> Method.

%% @doc The target as it was sent, also after a rewrite.
-spec target(req()) -> binary().
target(#req{target = Target}) -> Target.

%% @doc The path, still encoded, in its one form: no dot segments, no empty ones, and escapes only where they are needed, in upper case.
-spec path(req()) -> binary().
path(#req{path = Path}) -> Path.

%% @doc What follows the first question mark, still encoded.
-spec query(req()) -> binary().
query(#req{query = none}) -> <<>>;
query(#req{query = Query}) -> Query.

%% @doc Is there a question mark?
-spec has_query(req()) -> boolean().
has_query(#req{query = Query}) -> Query =/= none.

%% @doc The path decoded once. An encoded slash and control bytes are refused.
-spec decoded_path(req()) -> {ok, binary()} | {error, bad_path}.
decoded_path(#req{path = Path}) -> yucan_path:decode(Path).

%% @doc HTTP/2, HTTP/1.1 or HTTP/1.0.
-spec version(req()) -> {1, 0 | 1} | {2, 0}.
version(#req{version = 11}) -> {1, 1};
version(#req{version = 10}) -> {1, 0};
version(#req{version = 20}) -> {2, 0}.

%% @doc From the connection, or from a trusted proxy if the option `forwarded' says so.
-spec scheme(req()) -> http | https.
scheme(#req{conn = Conn}) -> Conn#conn.scheme.

%% @doc Name of the host that was asked for, in lower case, without port and without a dot at its end; empty if none was named.
-spec host(req()) -> binary().
host(#req{host = Host}) -> Host.

%% @doc Which names a server at this address answers to, for has_own_name/2: any, or where only this host can connect its own and these. A page of any site can
%% send a browser there under a name of its own, if DNS says that this name is this host (DNS rebinding), and would read what is served.
-spec own_names(inet:ip_address(), More :: [binary()]) -> any | [binary()].
own_names(Ip, More) when element(1, Ip) =:= 127; Ip =:= {0, 0, 0, 0, 0, 0, 0, 1} ->
    {ok, Own} = inet:gethostname(),
    [yucan_header:lower(unicode:characters_to_binary(Name)) || Name <- [Own | More]];
own_names(_, _) -> any.

%% @doc Does the request name its host by an address, as localhost or by one of these names, or by no name?
-spec has_own_name(req(), Names :: any | [binary()]) -> boolean().
has_own_name(_, any) -> true;
has_own_name(#req{host = Host}, Names) ->
    lists:member(Host, [<<>>, <<"localhost">> | Names]) orelse yucan_router:is_match(<<"*.localhost">>, Host)
        orelse is_tuple(element(2, inet:parse_strict_address(string:trim(binary_to_list(Host), both, "[]")))).

%% @doc The port that the client named, else the one that it reached.
-spec port(req()) -> inet:port_number().
port(#req{port = undefined, conn = #conn{local = {_, Port}}}) when is_integer(Port) -> Port;
port(#req{port = undefined, conn = #conn{scheme = https}}) -> 443;
port(#req{port = undefined}) -> 80;
port(#req{port = Port}) -> Port.

%% @doc The id of the request, if the server has the option `request_id'.
-spec id(req()) -> none | binary().
id(#req{id = Id}) -> Id.

%% @doc All headers with lower-case names, in their order.
-spec headers(req()) -> [{Name :: binary(), Value :: binary()}].
headers(#req{headers = Headers}) -> lists:reverse(Headers).

%% @doc The header with this lower-case name; several lines are joined.
-spec header(Name :: binary(), req()) -> binary() | undefined.
header(Name, Req) -> header(Name, Req, undefined).

%% @doc The same with a default.
-spec header(Name :: binary(), req(), Default) -> binary() | Default.
header(Name, #req{headers = Headers}, Default) ->
    case values(Name, Headers, []) of
        [] -> Default;
        [Value] -> Value;
        Values -> iolist_to_binary(lists:join(separator(Name), Values))
    end.

values(Name, [{Name, Value} | Rest], Values) -> values(Name, Rest, [Value | Values]);
values(Name, [_ | Rest], Values) -> values(Name, Rest, Values);
values(_, [], Values) -> Values.

separator(<<"cookie">>) -> <<"; ">>;
separator(_) -> <<", ">>.

%% @doc The client: of the PROXY header, or of a header of `forwarded' if the peer of the socket is trusted.
-spec peer(req()) -> address().
peer(#req{peer = socket, conn = Conn}) -> conn_peer(Conn);
peer(#req{peer = Peer}) -> Peer.

%% @private The same of a connection, before there is a request.
-spec conn_peer(#conn{}) -> address().
conn_peer(#conn{proxied = none, socket = Socket}) -> socket_peer(Socket);
conn_peer(#conn{proxied = Peer}) -> Peer.

%% @doc The other end of the socket.
-spec peer_socket(req()) -> address().
peer_socket(#req{conn = #conn{socket = Socket}}) -> socket_peer(Socket).

socket_peer(Socket) ->
    %% It stays the same, and asking for it is a system call.
    case get(?PEER) of
        {Socket, Peer} -> Peer;
        _ ->
            Peer = yucan_transport:peer(Socket),
            _ = put(?PEER, {Socket, Peer}),
            Peer
    end.

%% @doc This end of the socket.
-spec local(req()) -> address().
local(#req{conn = #conn{local = Local}}) -> Local.

%% @doc Names and values of the Cookie header.
-spec cookies(req()) -> [{binary(), binary()}].
cookies(Req) -> [{Name, cookie(Value)} || {Name, Value} <- cookie_pairs(header(<<"cookie">>, Req, <<>>))].

%% @doc The same of any text in that form, with the quotes of values.
-spec cookie_pairs(binary()) -> [{binary(), binary()}].
cookie_pairs(Text) -> [split(Trimmed, <<>>) || Pair <- binary:split(Text, <<";">>, [global]), Trimmed <- [yucan_header:trim(Pair)], Trimmed =/= <<>>].

split(Pair, Default) ->
    case binary:split(Pair, <<"=">>) of
        [Name, Value] -> {Name, Value};
        [Name] -> {Name, Default}
    end.

cookie(<<$", Quoted/binary>>) when byte_size(Quoted) > 0 -> unquoted(Quoted);
cookie(Value) -> Value.

unquoted(Quoted) ->
    case binary:last(Quoted) of
        $" -> binary_part(Quoted, 0, byte_size(Quoted) - 1);
        _ -> <<$", Quoted/binary>>
    end.

%% @doc Names and values of the query, decoded. What cannot be decoded is left as it is.
-spec query_pairs(req()) -> [{binary(), binary()}].
query_pairs(Req) -> pairs(query(Req)).

%% @doc The same for any text in that form, such as a body of application/x-www-form-urlencoded.
-spec pairs(binary()) -> [{binary(), binary()}].
pairs(Text) -> pairs(Text, <<>>).

%% @doc The same with another value for a name that has none.
-spec pairs(binary(), Default) -> [{binary(), binary() | Default}].
pairs(Text, Default) ->
    [{yucan_path:unescape_form(Name), case Value of Default -> Default; _ -> yucan_path:unescape_form(Value) end}
     || Part <- binary:split(Text, <<"&">>, [global]), Part =/= <<>>, {Name, Value} <- [split(Part, Default)]].

%% @doc What a `:name' or `*name' of the route matched, decoded.
-spec binding(Name :: binary(), req()) -> binary() | undefined.
binding(Name, #req{bindings = Bindings}) -> maps:get(Name, Bindings, undefined).

%% @doc All of them.
-spec bindings(req()) -> #{binary() => binary()}.
bindings(#req{bindings = Bindings}) -> Bindings.

%% @private The router's.
-spec bind(#{binary() => binary()}, req()) -> req().
bind(Bindings, Req) -> Req#req{bindings = Bindings}.

%% @doc Notes something for those who get the request after this.
-spec assign(Key :: term(), Value :: term(), req()) -> req().
assign(Key, Value, #req{assigned = Assigned} = Req) -> Req#req{assigned = Assigned#{Key => Value}}.

%% @doc What assign/3 has noted.
-spec assigned(Key :: term(), req(), Default :: term()) -> term().
assigned(Key, #req{assigned = Assigned}, Default) -> maps:get(Key, Assigned, Default).

%% @doc Name of the server.
-spec server(req()) -> atom().
server(#req{conn = #conn{server = Server}}) -> Server.

%% @doc The connection, for yucan_transport.
-spec socket(req()) -> yucan_transport:socket().
socket(#req{conn = #conn{socket = Socket}}) -> Socket.

%% @doc Protocol and cipher of TLS.
-spec tls_info(req()) -> none | #{atom() => term()}.
tls_info(Req) -> yucan_transport:info(socket(Req)).

%% @doc The same request for another path; `none' is no query. target/1 stays. A path that would leave the root stays as it is: neither
%% files nor bindings are found by it.
-spec with_path(Path :: binary(), Query :: binary() | none, req()) -> req().
with_path(Path, Query, Req) ->
    case yucan_path:canonical(Path) of
        {ok, Canonical} -> Req#req{path = Canonical, query = Query};
        error -> Req#req{path = Path, query = Query}
    end.

%% @doc The same request with another method.
-spec with_method(binary(), req()) -> req().
with_method(Method, Req) -> Req#req{method = Method}.

%% @doc Sets a header, in place of all of this lower-case name.
-spec set_header(Name :: binary(), Value :: binary(), req()) -> req().
set_header(Name, Value, Req) ->
    #req{headers = Headers} = Cleared = delete_header(Name, Req),
    Cleared#req{headers = [{Name, Value} | Headers]}.

%% @doc Takes all headers of this lower-case name away.
-spec delete_header(Name :: binary(), req()) -> req().
delete_header(Name, #req{headers = Headers} = Req) ->
    Req#req{headers = [Header || {Other, _} = Header <- Headers, Other =/= Name]}.

%% @doc Does a body follow?
-spec has_body(req()) -> boolean().
has_body(#req{body = Body}) -> Body =/= none andalso Body =/= {length, 0}.

%% @doc What is known of its length.
-spec body_length(req()) -> non_neg_integer() | chunked.
body_length(#req{body = none}) -> 0;
body_length(#req{body = chunked}) -> chunked;
body_length(#req{body = {length, Length}}) -> Length.

%% @doc The whole body, at most `body_bytes' of the limits.
-spec body(req()) -> {ok, binary()} | {error, body_error()}.
body(#req{body = none}) -> {ok, <<>>};
body(_) -> yucan_body:all(default).

%% @doc The whole body, at most so many bytes.
-spec body(req(), MaxBytes :: non_neg_integer()) -> {ok, binary()} | {error, body_error()}.
body(#req{body = none}, _) -> {ok, <<>>};
body(_, Max) -> yucan_body:all(Max).

%% @doc The next part of the body, as it arrives: `more' may follow, `ok' is the last. Nothing is read ahead.
-spec read(req()) -> {more | ok, binary()} | {error, body_error()}.
read(Req) -> read(Req, #{}).

%% @doc The same; `max' in bytes (128 KB), `timeout' in ms (the limit read_ms).
-spec read(req(), #{max => pos_integer(), timeout => pos_integer()}) -> {more | ok, binary()} | {error, body_error()}.
read(#req{body = none}, _) -> {ok, <<>>};
read(_, Options) -> yucan_body:read(Options).

%% @doc Reads on behind `Before' until so many bytes are there (`more'), or all (`ok').
-spec gather(Enough :: pos_integer() | infinity, Before :: binary(), req()) -> {more | ok, binary()} | {error, body_error()}.
gather(Enough, Before, Req) -> gather(Enough, Before, #{}, Req).

%% @doc The same with the options of read/2; if `max' is among them, no byte beyond `Enough' is read.
-spec gather(Enough :: pos_integer() | infinity, Before :: binary(), #{max => pos_integer(), timeout => pos_integer()}, req()) ->
    {more | ok, binary()} | {error, body_error()}.
gather(_, Before, _, #req{body = none}) -> {ok, Before};
gather(Enough, Before, Options, _) -> yucan_body:gather(Enough, Before, Options).

%% @doc The trailers, known after the last part of the body.
-spec trailers(req()) -> [{binary(), binary()}].
trailers(#req{body = chunked}) -> yucan_body:trailers();
trailers(_) -> [].

%% @doc The answer to a body that could not be read.
-spec body_error(body_error()) -> yucan_handler:response().
body_error(closed) -> close;
body_error(too_large) -> yucan_error:page(413);
body_error(timeout) -> yucan_error:page(408);
body_error(trailers_too_long) -> yucan_error:page(431);
body_error(bad_chunk) -> yucan_error:page(400).
