%% SPDX-License-Identifier: Apache-2.0
%% @doc A request, as handlers and middleware see it.
%%
%% Everything except the body is a plain value. The body is read from the connection, only once, and only by the process in which the `handle'
%% callback of yucan_handler was called. That process keeps the read position (yucan_body), so reading does not return a new request.
-module(yucan_req).

-export([method/1, target/1, path/1, query/1, has_query/1, decoded_path/1, version/1, scheme/1, host/1, own_names/2, has_own_name/2, port/1, id/1, headers/1, header/2,
         header/3, peer/1, conn_peer/1, peer_socket/1, local/1, cookies/1, query_pairs/1, binding/2, bindings/1, assign/3, assigned/3, server/1,
         socket/1, tls_info/1, with_path/3, with_method/2, set_header/3, delete_header/2, has_body/1, body_length/1, body/1,
         body/2, read/1, read/2, gather/3, gather/4, trailers/1, body_error/1, pairs/1, pairs/2, cookie_pairs/1]).
-export_type([req/0, address/0, body_error/0]).

-include("yucan_internal.hrl").

%% The process dictionary's key for the peer address of this process's socket.
-define(PEER, '$yucan_peer').

-type req() :: #req{}.
%% The record is private to the core, so use the functions of this module.
-type address() :: {inet:ip_address(), inet:port_number()} | {local, binary()}.
%% `local' is the address of a unix socket.
-type body_error() :: too_large | timeout | closed | bad_chunk | trailers_too_long.
%% Why a body could not be read. {@link body_error/1} returns the response to the client.

%% @doc Returns the method as it was sent. Methods are case-sensitive.
-spec method(req()) -> binary().
method(#req{method = Method}) -> Method.

%% @doc Returns the target as it was sent, even after a rewrite.
-spec target(req()) -> binary().
target(#req{target = Target}) -> Target.

%% @doc Returns the path in canonical form, still percent-encoded. It has no dot segments or empty segments. Only
%% characters that have to be escaped are escaped, with upper-case hexadecimal digits.
-spec path(req()) -> binary().
path(#req{path = Path}) -> Path.

%% @doc Returns the query: the part after the first question mark, still encoded.
-spec query(req()) -> binary().
query(#req{query = none}) -> <<>>;
query(#req{query = Query}) -> Query.

%% @doc Returns whether the target has a question mark, even if no query follows it.
-spec has_query(req()) -> boolean().
has_query(#req{query = Query}) -> Query =/= none.

%% @doc Returns the decoded path. It is decoded only once; encoded slashes and control characters are rejected.
-spec decoded_path(req()) -> {ok, binary()} | {error, bad_path}.
decoded_path(#req{path = Path}) -> yucan_path:decode(Path).

%% @doc Returns the protocol version: HTTP/2, HTTP/1.1 or HTTP/1.0.
-spec version(req()) -> {1, 0 | 1} | {2, 0}.
version(#req{version = 11}) -> {1, 1};
version(#req{version = 10}) -> {1, 0};
version(#req{version = 20}) -> {2, 0}.

%% @doc Returns the scheme of the connection, or the scheme from a trusted proxy's header if the option `forwarded' specifies that header.
-spec scheme(req()) -> http | https.
scheme(#req{conn = Conn}) -> Conn#conn.scheme.

%% @doc Returns the requested host name in lower case, without port and trailing dot. It is empty if the request does not contain one.
-spec host(req()) -> binary().
host(#req{host = Host}) -> Host.

%% @doc Returns the host names for which a server at this address responds, for {@link has_own_name/2}. The result is `any' unless only this host can
%% connect; then it is the host's own names and `More'. The check prevents DNS rebinding: without it, a site whose name resolves to this host could
%% make a browser on this host send requests under that name, and read the responses.
-spec own_names(inet:ip_address(), More :: [binary()]) -> any | [binary()].
own_names(Ip, More) when element(1, Ip) =:= 127; Ip =:= {0, 0, 0, 0, 0, 0, 0, 1} ->
    {ok, Own} = inet:gethostname(),
    [yucan_header:lower(unicode:characters_to_binary(Name)) || Name <- [Own | More]];
own_names(_, _) -> any.

%% @doc Returns whether the request's host is an IP address, localhost or one of these names, or is missing.
-spec has_own_name(req(), Names :: any | [binary()]) -> boolean().
has_own_name(_, any) -> true;
has_own_name(#req{host = Host}, Names) ->
    lists:member(Host, [<<>>, <<"localhost">> | Names]) orelse yucan_hostname:is_match(<<"*.localhost">>, Host)
        orelse is_tuple(element(2, inet:parse_strict_address(string:trim(binary_to_list(Host), both, "[]")))).

%% @doc Returns the port that the client specified, or otherwise the port to which it connected.
-spec port(req()) -> inet:port_number().
port(#req{port = undefined, conn = #conn{local = {_, Port}}}) when is_integer(Port) -> Port;
port(#req{port = undefined, conn = #conn{scheme = https}}) -> 443;
port(#req{port = undefined}) -> 80;
port(#req{port = Port}) -> Port.

%% @doc Returns the request ID, if the server has the option `request_id'.
-spec id(req()) -> none | binary().
id(#req{id = Id}) -> Id.

%% @doc Returns all headers in order, with lower-case names.
-spec headers(req()) -> [{Name :: binary(), Value :: binary()}].
headers(#req{headers = Headers}) -> lists:reverse(Headers).

%% @doc Returns the value of the header with this lower-case name. If the header occurs several times, its values are joined.
-spec header(Name :: binary(), req()) -> binary() | undefined.
header(Name, Req) -> header(Name, Req, undefined).

%% @doc Like {@link header/2}, but returns a default if there is no such header.
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

%% @doc Returns the client's address. It comes from the PROXY header or, if the socket's peer is trusted, from a header specified by `forwarded';
%% otherwise it is the address of the socket's peer.
-spec peer(req()) -> address().
peer(#req{peer = socket, conn = Conn}) -> conn_peer(Conn);
peer(#req{peer = Peer}) -> Peer.

%% @private Like {@link peer/1}, for a connection that has not received a request yet.
-spec conn_peer(#conn{}) -> address().
conn_peer(#conn{proxied = none, socket = Socket}) -> socket_peer(Socket);
conn_peer(#conn{proxied = Peer}) -> Peer.

%% @doc Returns the remote address of the socket.
-spec peer_socket(req()) -> address().
peer_socket(#req{conn = #conn{socket = Socket}}) -> socket_peer(Socket).

socket_peer(Socket) ->
    %% The address is cached, because it never changes and looking it up takes a system call.
    case get(?PEER) of
        {Socket, Peer} -> Peer;
        _ ->
            Peer = yucan_transport:peer(Socket),
            _ = put(?PEER, {Socket, Peer}),
            Peer
    end.

%% @doc Returns the local address of the socket.
-spec local(req()) -> address().
local(#req{conn = #conn{local = Local}}) -> Local.

%% @doc Returns the names and values in the Cookie header.
-spec cookies(req()) -> [{binary(), binary()}].
cookies(Req) -> [{Name, cookie(Value)} || {Name, Value} <- cookie_pairs(header(<<"cookie">>, Req, <<>>))].

%% @doc Parses any text in the format of a Cookie header; values keep their quotes.
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

%% @doc Returns the decoded names and values in the query. Parts that cannot be decoded are returned unchanged.
-spec query_pairs(req()) -> [{binary(), binary()}].
query_pairs(Req) -> pairs(query(Req)).

%% @doc Like {@link query_pairs/1}, but for any text in the same format, such as a body of type application/x-www-form-urlencoded.
-spec pairs(binary()) -> [{binary(), binary()}].
pairs(Text) -> pairs(Text, <<>>).

%% @doc Like {@link pairs/1}, but with a different default for names without a value.
-spec pairs(binary(), Default) -> [{binary(), binary() | Default}].
pairs(Text, Default) ->
    [{yucan_path:unescape_form(Name), case Value of Default -> Default; _ -> yucan_path:unescape_form(Value) end}
     || Part <- binary:split(Text, <<"&">>, [global]), Part =/= <<>>, {Name, Value} <- [split(Part, Default)]].

%% @doc Returns the decoded value that the route's `:Name' or `*Name' matched.
-spec binding(Name :: binary(), req()) -> binary() | undefined.
binding(Name, #req{bindings = Bindings}) -> maps:get(Name, Bindings, undefined).

%% @doc Returns the bindings of all names in the route.
-spec bindings(req()) -> #{binary() => binary()}.
bindings(#req{bindings = Bindings}) -> Bindings.

%% @doc Stores a value for the middleware and handlers that process the request later.
-spec assign(Key :: term(), Value :: term(), req()) -> req().
assign(Key, Value, #req{assigned = Assigned} = Req) -> Req#req{assigned = Assigned#{Key => Value}}.

%% @doc Returns the value that {@link assign/3} stored, or the default.
-spec assigned(Key :: term(), req(), Default :: term()) -> term().
assigned(Key, #req{assigned = Assigned}, Default) -> maps:get(Key, Assigned, Default).

%% @doc Returns the name of the server.
-spec server(req()) -> atom().
server(#req{conn = #conn{server = Server}}) -> Server.

%% @doc Returns the connection, for use with yucan_transport.
-spec socket(req()) -> yucan_transport:socket().
socket(#req{conn = #conn{socket = Socket}}) -> Socket.

%% @doc Returns the TLS protocol and cipher.
-spec tls_info(req()) -> none | #{atom() => term()}.
tls_info(Req) -> yucan_transport:info(socket(Req)).

%% @doc Returns the request with a different path; `none' means no query. The result of {@link target/1} does not change. A path that would lead outside
%% the root is not normalized, so it matches neither files nor bindings.
-spec with_path(Path :: binary(), Query :: binary() | none, req()) -> req().
with_path(Path, Query, Req) ->
    case yucan_path:canonical(Path) of
        {ok, Canonical} -> Req#req{path = Canonical, query = Query};
        error -> Req#req{path = Path, query = Query}
    end.

%% @doc Returns the request with a different method.
-spec with_method(binary(), req()) -> req().
with_method(Method, Req) -> Req#req{method = Method}.

%% @doc Sets a header, replacing all headers with this lower-case name.
-spec set_header(Name :: binary(), Value :: binary(), req()) -> req().
set_header(Name, Value, Req) ->
    #req{headers = Headers} = Cleared = delete_header(Name, Req),
    Cleared#req{headers = [{Name, Value} | Headers]}.

%% @doc Removes all headers with this lower-case name.
-spec delete_header(Name :: binary(), req()) -> req().
delete_header(Name, #req{headers = Headers} = Req) ->
    Req#req{headers = [Header || {Other, _} = Header <- Headers, Other =/= Name]}.

%% @doc Returns whether a body follows.
-spec has_body(req()) -> boolean().
has_body(#req{body = Body}) -> Body =/= none andalso Body =/= {length, 0}.

%% @doc Returns the length of the body, if known.
-spec body_length(req()) -> non_neg_integer() | chunked.
body_length(#req{body = none}) -> 0;
body_length(#req{body = chunked}) -> chunked;
body_length(#req{body = {length, Length}}) -> Length.

%% @doc Reads the entire body, up to the limit `body_bytes'.
-spec body(req()) -> {ok, binary()} | {error, body_error()}.
body(#req{body = none}) -> {ok, <<>>};
body(_) -> yucan_body:all(default).

%% @doc Reads the entire body, up to this many bytes.
-spec body(req(), MaxBytes :: non_neg_integer()) -> {ok, binary()} | {error, body_error()}.
body(#req{body = none}, _) -> {ok, <<>>};
body(_, Max) -> yucan_body:all(Max).

%% @doc Returns the next part of the body once it has arrived. After `more' there may be further parts; `ok' marks the last one. Nothing is read
%% ahead.
-spec read(req()) -> {more | ok, binary()} | {error, body_error()}.
read(Req) -> read(Req, #{}).

%% @doc Like {@link read/1}, but with options: `max' in bytes (default 128 KB) and `timeout' in ms (default: the limit `read_ms').
-spec read(req(), #{max => pos_integer(), timeout => pos_integer()}) -> {more | ok, binary()} | {error, body_error()}.
read(#req{body = none}, _) -> {ok, <<>>};
read(_, Options) -> yucan_body:read(Options).

%% @doc Reads data and appends it to `Before' until there are at least `Enough' bytes (`more') or the body ends (`ok').
-spec gather(Enough :: pos_integer() | infinity, Before :: binary(), req()) -> {more | ok, binary()} | {error, body_error()}.
gather(Enough, Before, Req) -> gather(Enough, Before, #{}, Req).

%% @doc Like {@link gather/3}, but with the options of {@link read/2}. If `max' is one of them, no byte beyond `Enough' is read.
-spec gather(Enough :: pos_integer() | infinity, Before :: binary(), #{max => pos_integer(), timeout => pos_integer()}, req()) ->
    {more | ok, binary()} | {error, body_error()}.
gather(_, Before, _, #req{body = none}) -> {ok, Before};
gather(Enough, Before, Options, _) -> yucan_body:gather(Enough, Before, Options).

%% @doc Returns the trailers, which are available after the last part of the body has been read.
-spec trailers(req()) -> [{binary(), binary()}].
trailers(#req{body = chunked}) -> yucan_body:trailers();
trailers(_) -> [].

%% @doc Returns the response for a body that could not be read.
-spec body_error(body_error()) -> yucan_handler:response().
body_error(closed) -> close;
body_error(too_large) -> yucan_error:page(413);
body_error(timeout) -> yucan_error:page(408);
body_error(trailers_too_long) -> yucan_error:page(431);
body_error(bad_chunk) -> yucan_error:page(400).
