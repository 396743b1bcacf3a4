%% SPDX-License-Identifier: Apache-2.0
%% Records that the core modules share. Other modules use the functions of yucan_req.

%% The characters of a token (RFC 9110, 5.6.2), which all names consist of.
-define(IS_TCHAR(C),
    (C >= $a andalso C =< $z orelse C >= $A andalso C =< $Z orelse C =:= $- orelse C >= $0 andalso C =< $9 orelse
     C =:= $_ orelse C =:= $. orelse C =:= $! orelse C >= $# andalso C =< $' orelse C =:= $* orelse C =:= $+ orelse
     C =:= $^ orelse C =:= $` orelse C =:= $| orelse C =:= $~)).

%% The data of a connection that does not change.
-record(conn, {
    socket :: yucan_transport:socket(),
    server :: atom(),
    scheme = http :: http | https,
    local :: yucan_req:address(),
    %% The client's address from the PROXY header, if the listener expects one.
    proxied = none :: none | yucan_req:address(),
    sni = undefined :: undefined | binary(),
    %% The requirements that the client's certificate had to meet in the TLS handshake; `none' without TLS.
    asked = none :: none | yucan_tls:asked(),
    %% The module that writes a response if the handler sends it in steps (yucan_answer). It has the functions send/3 and inform/3 of yucan_reply.
    writer = yucan_reply :: module()
}).

%% A server's limits in compiled form. yucan_config:limits_table/0 documents each of them.
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

%% A request. yucan_head fills it in, starting from a template in which `conn' is set.
-record(req, {
    conn :: #conn{} | undefined,
    method = <<>> :: binary(),
    target = <<>> :: binary(),
    path = <<>> :: binary(),
    query = none :: none | binary(),
    version = 11 :: 10 | 11 | 20,
    %% Headers have lower-case names and are stored in reverse order.
    headers = [] :: [{binary(), binary()}],
    host = undefined :: undefined | binary(),
    port = undefined :: undefined | inet:port_number(),
    %% A Host header and the name and port parsed from it. Requests on the same connection usually repeat it, so it is parsed only once.
    authority = none :: none | {Said :: undefined | binary(), Name :: binary(), Port :: undefined | inet:port_number()},
    %% All header lines and the values parsed from them. In a template they are those of the previous request.
    lines = none :: none | #lines{},
    body = none :: none | chunked | {length, non_neg_integer()},
    %% False closes the connection after the response, and so does `unsaid' (HTTP/1.0 without a Connection header).
    keep = true :: boolean() | unsaid,
    expect = false :: boolean(),
    peer = socket :: socket | yucan_req:address(),
    bindings = #{} :: #{binary() => binary()},
    assigned = #{} :: #{term() => term()},
    id = none :: none | binary()
}).

%% A virtual host in compiled form.
-record(host, {
    names = [] :: [binary()],
    demands :: yucan_tls:demands(),
    plan :: yucan_router:plan()
}).

%% The positions in `counters': the number of open connections; 1 while the server drains and its
%% responses contain `connection: close'; 1 after the function for events has failed.
-define(OPEN, 1).
-define(DRAINING, 2).
-define(EVENTS_FAIL, 3).

%% A server's configuration in compiled form. It is stored as a persistent term, which a reload replaces.
-record(site, {
    name :: atom(),
    limits :: #limits{},
    exact = #{} :: #{binary() => #host{}},
    %% {Pattern, Host}, longest pattern first.
    patterns = [] :: [{binary(), #host{}}],
    default = none :: none | #host{},
    hosts = {} :: tuple(),
    select = none :: none | fun((binary(), #req{}) -> default | non_neg_integer()),
    server_header = <<>> :: binary(),
    trusted = [] :: [yucan_cidr:block()],
    %% The headers that are used if they come from a trusted proxy, and the header for request IDs.
    forwarded = [] :: [binary()],
    request_id = none :: none | binary(),
    on_event = none :: none | yucan_events:handler(),
    quota :: undefined | yucan_quota:table(),
    %% For each listening socket: its TLS settings, and whether clients send a PROXY header first.
    listeners = #{} :: #{gen_tcp:socket() => {none | yucan_tls:server(), ProxyProtocol :: boolean()}},
    http2 = true :: boolean(),
    log = none :: none | yucan_log:log(),
    metrics :: yucan_metrics:metrics(),
    counters :: atomics:atomics_ref()
}).

%% Data that the acceptors of a listener share.
-record(listener, {
    socket :: gen_tcp:socket(),
    server :: atom(),
    pool :: pid(),
    local :: yucan_req:address(),
    counters :: atomics:atomics_ref(),
    quota :: yucan_quota:table(),
    %% For the pool: how many of its processes are waiting for a connection, and how many should be
    %% waiting.
    waiting :: atomics:atomics_ref() | undefined,
    acceptors = 1 :: pos_integer(),
    %% For a connection process: its state (see yucan_pool).
    doing :: atomics:atomics_ref() | undefined
}).
