%% SPDX-License-Identifier: Apache-2.0
%% Records that the modules of the core share. Other modules use the functions of yucan_req.

%% A character of a token (RFC 9110, 5.6.2), which is the grammar of all names.
-define(IS_TCHAR(C),
    (C >= $a andalso C =< $z orelse C >= $A andalso C =< $Z orelse C =:= $- orelse C >= $0 andalso C =< $9 orelse
     C =:= $_ orelse C =:= $. orelse C =:= $! orelse C >= $# andalso C =< $' orelse C =:= $* orelse C =:= $+ orelse
     C =:= $^ orelse C =:= $` orelse C =:= $| orelse C =:= $~)).

%% The data that does not change during a connection.
-record(conn, {
    socket :: yucan_transport:socket(),
    server :: atom(),
    scheme = http :: http | https,
    local :: yucan_req:address(),
    %% The address in the PROXY protocol, if the listener expects it.
    proxied = none :: none | yucan_req:address(),
    %% The host name that the client requested in TLS.
    sni = undefined :: undefined | binary(),
    %% The requirements for the client's certificate in that handshake; `none' without TLS.
    asked = none :: none | yucan_tls:asked()
}).

%% The limits of a server, compiled. yucan_config:limits_table/0 documents each of them.
-record(limits, {
    request_line_bytes :: pos_integer(),
    header_line_bytes :: pos_integer(),
    header_block_bytes :: pos_integer(),
    headers :: pos_integer(),
    body_bytes :: pos_integer(),
    chunk_line_bytes :: pos_integer(),
    trailer_bytes :: pos_integer(),
    drain_bytes :: non_neg_integer(),
    linger_ms :: pos_integer(),
    header_ms :: pos_integer(),
    idle_ms :: pos_integer(),
    read_ms :: pos_integer(),
    min_body_rate :: non_neg_integer(),
    send_ms :: pos_integer(),
    tls_ms :: pos_integer(),
    requests :: pos_integer() | infinity,
    connections :: pos_integer(),
    address_connections :: pos_integer() | infinity,
    address_requests :: pos_integer() | infinity,
    acceptors :: pos_integer(),
    backlog :: pos_integer(),
    ws_message_bytes :: pos_integer(),
    ws_idle_ms :: pos_integer(),
    h2_streams :: pos_integer(),
    log_queue :: pos_integer()
}).

%% The header lines of a request as they arrived, and what they mean.
-record(lines, {
    bytes :: binary(),
    limits :: #limits{},
    version :: 10 | 11 | 20,
    headers :: [{binary(), binary()}],
    host :: undefined | binary(),
    body :: none | chunked | {length, non_neg_integer()},
    keep :: boolean() | unsaid,
    expect :: boolean()
}).

%% A request. yucan_head fills it, starting from a template that has `conn'.
-record(req, {
    conn :: #conn{} | undefined,
    method = <<>> :: binary(),
    target = <<>> :: binary(),
    path = <<>> :: binary(),
    query = none :: none | binary(),
    version = 11 :: 10 | 11 | 20,
    %% With lower-case names, and the last header first.
    headers = [] :: [{binary(), binary()}],
    host = undefined :: undefined | binary(),
    port = undefined :: undefined | inet:port_number(),
    %% A Host header and its meaning. Requests on the same connection repeat the header, so only the first is parsed.
    authority = none :: none | {Said :: undefined | binary(), Name :: binary(), Port :: undefined | inet:port_number()},
    %% All header lines and their meaning. In a template these are the lines of the previous request.
    lines = none :: none | #lines{},
    body = none :: none | chunked | {length, non_neg_integer()},
    %% If this is false, the connection closes after the response. `unsaid' stands for an HTTP/1.0 client that sent no Connection header and is
    %% treated in the same way.
    keep = true :: boolean() | unsaid,
    expect = false :: boolean(),
    peer = socket :: socket | yucan_req:address(),
    bindings = #{} :: #{binary() => binary()},
    assigned = #{} :: #{term() => term()},
    id = none :: none | binary()
}).

%% A virtual host, compiled.
-record(host, {
    names = [] :: [binary()],
    %% The requirements for the certificates of its clients.
    demands :: yucan_tls:demands(),
    %% Middleware, routes and handler.
    plan :: yucan_router:plan()
}).

%% The positions in `counters': the number of open connections; 1 while the server drains, when responses contain `connection: close'; 1 once the
%% function for events has failed.
-define(OPEN, 1).
-define(DRAINING, 2).
-define(EVENTS_FAIL, 3).

%% The compiled configuration of a server. It is a persistent term, which a reload replaces.
-record(site, {
    name :: atom(),
    limits :: #limits{},
    %% The names without patterns.
    exact = #{} :: #{binary() => #host{}},
    %% {Pattern, Host}, the longest first.
    patterns = [] :: [{binary(), #host{}}],
    default = none :: none | #host{},
    hosts = {} :: tuple(),
    select = none :: none | fun((binary(), #req{}) -> default | non_neg_integer()),
    server_header = <<>> :: binary(),
    trusted = [] :: [yucan_cidr:block()],
    %% The headers of trusted proxies that are used, and the header for ids.
    forwarded = [] :: [binary()],
    request_id = none :: none | binary(),
    on_event = none :: none | yucan_events:handler(),
    quota :: undefined | yucan_quota:table(),
    %% For each listening socket: its TLS, and whether the PROXY protocol comes first. New connections read it, so a reload may change both.
    listeners = #{} :: #{gen_tcp:socket() => {none | yucan_tls:server(), ProxyProtocol :: boolean()}},
    http2 = true :: boolean(),
    log = none :: none | yucan_log:log(),
    metrics :: yucan_metrics:metrics(),
    counters :: atomics:atomics_ref()
}).

%% Data shared by the acceptors of a listener.
-record(listener, {
    socket :: gen_tcp:socket(),
    server :: atom(),
    pool :: pid(),
    local :: yucan_req:address(),
    %% The counter in the site: all open connections of the server.
    counters :: atomics:atomics_ref(),
    quota :: yucan_quota:table(),
    %% For a pool: how many of its processes are waiting for a connection, and how many should be.
    waiting :: atomics:atomics_ref() | undefined,
    acceptors = 1 :: pos_integer(),
    %% For a process: its state (yucan_pool).
    doing :: atomics:atomics_ref() | undefined
}).
