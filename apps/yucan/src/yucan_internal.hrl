%% SPDX-License-Identifier: Apache-2.0
%% Records that the modules of the core share. Others use the accessors of yucan_req.

%% A character of a token (RFC 9110, 5.6.2): the one grammar of names.
-define(IS_TCHAR(C),
    (C >= $a andalso C =< $z orelse C >= $A andalso C =< $Z orelse C =:= $- orelse C >= $0 andalso C =< $9 orelse
     C =:= $_ orelse C =:= $. orelse C =:= $! orelse C >= $# andalso C =< $' orelse C =:= $* orelse C =:= $+ orelse
     C =:= $^ orelse C =:= $` orelse C =:= $| orelse C =:= $~)).

%% What is true for the whole life of a connection.
-record(conn, {
    socket :: yucan_transport:socket(),
    server :: atom(),
    scheme = http :: http | https,
    local :: yucan_req:address(),
    %% What the PROXY protocol said, where the listener expects it.
    proxied = none :: none | yucan_req:address(),
    %% The name that the client asked for in TLS.
    sni = undefined :: undefined | binary(),
    %% Which certificate it had to show there; `none': no TLS.
    asked = none :: none | yucan_tls:asked()
}).

%% The limits of a server, frozen. yucan_config:limits_table/0 documents each.
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

%% The header lines of a request as they came, and what they said.
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

%% One request. yucan_head fills it, from a template that holds `conn'.
-record(req, {
    conn :: #conn{} | undefined,
    method = <<>> :: binary(),
    target = <<>> :: binary(),
    path = <<>> :: binary(),
    query = none :: none | binary(),
    version = 11 :: 10 | 11 | 20,
    %% Lower-case names, last header first.
    headers = [] :: [{binary(), binary()}],
    host = undefined :: undefined | binary(),
    port = undefined :: undefined | inet:port_number(),
    %% A Host header and what it means: requests of one connection say the same, so only the first is looked into.
    authority = none :: none | {Said :: undefined | binary(), Name :: binary(), Port :: undefined | inet:port_number()},
    %% The same of all header lines: in a template those of the request before.
    lines = none :: none | #lines{},
    body = none :: none | chunked | {length, non_neg_integer()},
    %% false: the connection ends after the answer. It does as well if a client of HTTP/1.0 has left it unsaid.
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
    %% Which certificate its clients have to show.
    demands :: yucan_tls:demands(),
    %% Middleware, routes and handler.
    plan :: yucan_router:plan()
}).

%% The places of `counters': how many connections are open; 1 while the server drains: answers say `connection: close' then; 1 since the function for
%% events has failed.
-define(OPEN, 1).
-define(DRAINING, 2).
-define(EVENTS_FAIL, 3).

%% A server's configuration, compiled: one persistent term, replaced by a reload.
-record(site, {
    name :: atom(),
    limits :: #limits{},
    %% The names that need no pattern.
    exact = #{} :: #{binary() => #host{}},
    %% {Pattern, Host}, the longest first.
    patterns = [] :: [{binary(), #host{}}],
    default = none :: none | #host{},
    hosts = {} :: tuple(),
    select = none :: none | fun((binary(), #req{}) -> default | non_neg_integer()),
    server_header = <<>> :: binary(),
    trusted = [] :: [yucan_cidr:block()],
    %% Which headers of trusted proxies count, and the header of ids.
    forwarded = [] :: [binary()],
    request_id = none :: none | binary(),
    on_event = none :: none | yucan_events:handler(),
    quota :: undefined | yucan_quota:table(),
    %% Of each listening socket: its TLS, and whether the PROXY protocol comes first. New connections ask here, so a reload may change both.
    listeners = #{} :: #{gen_tcp:socket() => {none | yucan_tls:server(), ProxyProtocol :: boolean()}},
    http2 = true :: boolean(),
    log = none :: none | yucan_log:log(),
    metrics :: yucan_metrics:metrics(),
    counters :: atomics:atomics_ref()
}).

%% What the acceptors of a listener need.
-record(listener, {
    socket :: gen_tcp:socket(),
    server :: atom(),
    pool :: pid(),
    local :: yucan_req:address(),
    %% As in the site: open connections of the whole server.
    counters :: atomics:atomics_ref(),
    quota :: yucan_quota:table(),
    %% Of the pool: how many of its processes wait for a connection, and how many shall.
    waiting :: atomics:atomics_ref() | undefined,
    acceptors = 1 :: pos_integer(),
    %% Of one process: what it does (yucan_pool).
    doing :: atomics:atomics_ref() | undefined
}).
