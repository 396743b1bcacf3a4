%% SPDX-License-Identifier: Apache-2.0
%% @doc Checks and compiles the options of a server, including its limits. Afterwards the options are not checked again.
-module(yucan_config).

-export([check/1, site/4, default_limits/0, limits_table/0, table/0, freeze/1]).
-export_type([options/0, checked/0, host/0, listen/0, limits/0]).

-include("yucan_internal.hrl").

-type options() :: #{
    name => atom(),
    listen => [listen()],
    handler => {module(), term()},
    routes => [yucan_router:route()],
    hosts => [host()],
    default_host => first | none | non_neg_integer(),
    select_host => fun((binary(), yucan_req:req()) -> default | non_neg_integer()),
    middleware => [yucan_router:middleware()],
    limits => limits(),
    access_log => none | yucan_log:target() | {function, fun((yucan_log:entry()) -> term())},
    server_header => none | binary(),
    http2 => boolean(),
    trusted_proxies => [binary() | string()],
    forwarded => [binary()],
    request_id => boolean() | binary(),
    on_event => none | yucan_events:handler()
}.
%% docs/options.md describes them.
-type checked() :: #{atom() => term()}.
%% All options after they have been checked, including the defaults.
-type host() :: #{
    names => [binary() | string()],
    handler => {module(), term()},
    routes => [yucan_router:route()],
    middleware => [yucan_router:middleware()],
    tls => [ssl:tls_server_option()] | #{atom() => term()}
}.
%% One of several sites of a server, which is chosen by the host name in the request. A name may be a pattern such as `"*.example.org"'.
-type listen() :: #{
    ip => inet:ip_address() | {local, binary() | string()},
    port => inet:port_number(),
    tls => [ssl:tls_server_option()] | #{atom() => term()},
    proxy_protocol => boolean()
}.
%% By default, a server listens on port 8080 of 127.0.0.1.

-type limits() :: #{atom() => pos_integer() | infinity}.

%% @doc Returns the options, completed with defaults, or describes the first problem.
-spec check(options()) -> {ok, checked()} | {error, Text :: binary()}.
check(Options) when is_map(Options) ->
    try
        known(Options, [Name || {Name, _, _, _, _} <- table()], "the server's options"),
        {ok, checked(Options)}
    catch
        throw:{bad, Format, Arguments} -> {error, unicode:characters_to_binary(io_lib:format(Format, Arguments))}
    end;
check(Other) ->
    {error, unicode:characters_to_binary(io_lib:format("the options are ~0tp; a map is expected", [Other]))}.

-spec bad(io:format(), [term()]) -> no_return().
bad(Format, Arguments) -> throw({bad, Format, Arguments}).

good(Key, Value, IsGood, Expected) ->
    IsGood(Value) orelse bad("~ts is ~0tp; ~ts is expected", [Key, Value, Expected]),
    Value.

checked(Options) ->
    Name = good(name, maps:get(name, Options, yucan), fun is_atom/1, "an atom"),
    Listen = good(listen, maps:get(listen, Options, [#{}]), fun is_list/1, "a list of maps"),
    Hosts = hosts(Options),
    #{name => Name,
      listen => [listen(L) || L <- Listen],
      hosts => [host(H) || H <- Hosts],
      default_host => default(maps:get(default_host, Options, first), length(Hosts)),
      select_host => good(select_host, maps:get(select_host, Options, none), fun(F) -> F =:= none orelse is_function(F, 2) end,
                          "a function of name and request"),
      middleware => middleware(maps:get(middleware, Options, [])),
      limits => limits(maps:get(limits, Options, #{})),
      access_log => access_log(maps:get(access_log, Options, none)),
      http2 => good(http2, maps:get(http2, Options, true), fun is_boolean/1, "true or false"),
      server_header => server_header(maps:get(server_header, Options, <<"yucan">>)),
      trusted_proxies => [block(B) || B <- maps:get(trusted_proxies, Options, [])],
      forwarded => forwarded(maps:get(forwarded, Options, [<<"x-forwarded-for">>])),
      request_id => request_id(maps:get(request_id, Options, false)),
      on_event => good(on_event, maps:get(on_event, Options, none), fun is_handler/1,
                       "a function of name, measurements and metadata, {Module, Function} of one, or none")}.

is_handler({Module, Function}) -> is_atom(Module) andalso is_atom(Function);
is_handler(Handler) -> Handler =:= none orelse is_function(Handler, 3).

known(Map, Names, Where) ->
    case maps:keys(Map) -- Names of
        [] -> ok;
        [Unknown | _] -> bad("~ts: unknown option ~0tp; known are ~ts", [Where, Unknown, lists:join(", ", [atom_to_list(N) || N <- Names])])
    end.

hosts(#{hosts := Hosts} = Options) when is_list(Hosts), Hosts =/= [] ->
    [bad("~ts cannot be set together with hosts; set it in the host that it is meant for", [Key]) || Key <- [handler, routes], is_map_key(Key, Options)],
    Hosts;
hosts(#{hosts := Hosts}) -> bad("hosts is ~0tp; a list of at least one map is expected", [Hosts]);
hosts(Options) -> [maps:with([handler, routes], Options)].

listen(Listen) when is_map(Listen) ->
    known(Listen, [ip, port, tls, proxy_protocol], "listen"),
    Ip = ip(maps:get(ip, Listen, {127, 0, 0, 1})),
    Proxy = good(proxy_protocol, maps:get(proxy_protocol, Listen, false), fun is_boolean/1, "true or false"),
    #{ip => Ip, port => port(Ip, Listen), tls => tls(maps:get(tls, Listen, none)), proxy_protocol => Proxy};
listen(Other) -> bad("listen has ~0tp; a map is expected", [Other]).

port({local, _}, Listen) ->
    Port = maps:get(port, Listen, 0),
    Port =:= 0 orelse bad("port is ~0tp; 0 or none is expected beside {local, Path}", [Port]),
    0;
port(_, Listen) -> good(port, maps:get(port, Listen, 8080), fun(P) -> is_integer(P) andalso P >= 0 andalso P =< 65535 end, "0 to 65535").

ip({local, Path}) -> {local, unicode:characters_to_binary(Path)};
ip(Ip) -> good(ip, Ip, fun inet:is_ip_address/1, "an address as a tuple, or {local, Path},").

tls(none) -> none;
tls(Options) when is_map(Options) -> tls(maps:to_list(Options));
tls(Options) when is_list(Options) ->
    [case yucan_tls:look_at(Key, File) of
         ok -> ok;
         {error, Reason} -> bad("~ts is ~ts: ~ts", [Key, File, Reason])
     end || {Key, File} <- Options, lists:member(Key, [certfile, keyfile, cacertfile])],
    Options;
tls(Other) -> bad("tls is ~0tp; a map or list of options of ssl is expected", [Other]).

host(Host) when is_map(Host) ->
    known(Host, [names, handler, routes, middleware, tls], "a host"),
    Names = [name(N) || N <- maps:get(names, Host, [])],
    #{names => Names, what => what(Host), middleware => middleware(maps:get(middleware, Host, [])), tls => tls(maps:get(tls, Host, none))};
host(Other) -> bad("hosts has ~0tp; a map is expected", [Other]).

name(Name) ->
    case unicode:characters_to_binary(Name) of
        Bin when is_binary(Bin), Bin =/= <<>> -> yucan_header:lower(Bin);
        _ -> bad("a host is named ~0tp; a name such as <<\"example.org\">> or <<\"*.example.org\">> is expected", [Name])
    end.

what(#{handler := _, routes := _}) -> bad("both handler and routes are given; one of them is expected", []);
what(#{handler := {Module, _} = Handler}) -> loads(Module, Handler), {handler, Handler};
what(#{handler := Other}) -> bad("handler is ~0tp; {Module, Argument} is expected", [Other]);
what(#{routes := Routes}) when is_list(Routes) -> {routes, [route(R) || R <- Routes]};
what(#{routes := Routes}) -> bad("routes is ~0tp; a list is expected", [Routes]);
what(_) -> bad("nothing answers requests: handler or routes is expected", []).

route({Pattern, Module, _} = Route) -> loads(Module, Route), pattern(Pattern), Route;
route({Pattern, Methods, Module, _} = Route) when is_list(Methods) ->
    lists:all(fun is_binary/1, Methods) orelse bad("the methods of route ~0tp are ~0tp; binaries are expected", [Pattern, Methods]),
    loads(Module, Route),
    pattern(Pattern),
    Route;
route(Other) -> bad("a route is ~0tp; {Pattern, Module, Argument} or {Pattern, Methods, Module, Argument} is expected", [Other]).

pattern(Pattern) ->
    try yucan_router:parse_pattern(Pattern) of
        {ok, _} -> ok;
        {error, Why} -> bad("the pattern ~0tp is not valid: ~ts", [Pattern, Why])
    catch
        error:_ -> bad("the pattern ~0tp is not text", [Pattern])
    end.

loads(Module, What) ->
    is_atom(Module) orelse bad("~0tp names no module", [What]),
    case code:ensure_loaded(Module) of
        {module, _} -> erlang:function_exported(Module, handle, 2) orelse bad("the handler ~ts has no function handle/2", [Module]);
        {error, Reason} -> bad("the handler ~ts cannot be loaded: ~0tp", [Module, Reason])
    end.

default(first, _) -> 0;
default(none, _) -> none;
default(Index, Count) when is_integer(Index), Index >= 0, Index < Count -> Index;
default(Other, Count) -> bad("default_host is ~0tp; first, none or 0 to ~b is expected", [Other, Count - 1]).

middleware(Functions) ->
    [is_function(F, 2) orelse bad("middleware has ~0tp; a function of request and next is expected", [F])
     || F <- good(middleware, Functions, fun is_list/1, "a list of functions")],
    Functions.

limits(Limits) ->
    Defaults = default_limits(),
    known(good(limits, Limits, fun is_map/1, "a map"), maps:keys(Defaults), "limits"),
    maps:foreach(fun limit/2, Limits),
    maps:merge(Defaults, Limits).

limit(Name, infinity) when Name =:= requests; Name =:= address_connections; Name =:= address_requests -> ok;
limit(Name, 0) when Name =:= drain_bytes; Name =:= min_body_rate -> ok;
limit(_, Value) when is_integer(Value), Value > 0 -> ok;
limit(Name, Value) -> bad("the limit ~ts is ~0tp; a positive number is expected", [Name, Value]).

access_log(none) -> none;
access_log({function, Function}) when is_function(Function, 1) -> {function, Function};
access_log(File) when is_binary(File); is_list(File) -> {file, File};
access_log({json, File}) when is_binary(File); is_list(File) -> {file, {json, File}};
access_log(Other) -> bad("access_log is ~0tp; a file, {json, File}, none, or {function, Fun} is expected", [Other]).

server_header(none) -> <<>>;
server_header(Text) when is_binary(Text) ->
    case re:run(Text, "^[\\x20-\\x7e]+$", [{capture, none}, dollar_endonly]) of
        match -> <<"server: ", Text/binary, "\r\n">>;
        nomatch -> bad("server_header is ~0tp; printable characters are expected", [Text])
    end;
server_header(Other) -> bad("server_header is ~0tp; a binary or none is expected", [Other]).

%% If the proxy did not set this header itself, a client could send it.
forwarded(Names) ->
    case good(forwarded, Names, fun is_list/1, "a list of headers") -- yucan_forwarded:headers() of
        [] -> ok;
        [Other | _] -> bad("forwarded has ~0tp; known are ~ts", [Other, lists:join(", ", yucan_forwarded:headers())])
    end,
    lists:member(<<"forwarded">>, Names) andalso length(Names) > 1 andalso bad("forwarded is ~0tp; <<\"forwarded\">> must be the only one, because a proxy may leave the others as clients send them", [Names]),
    Names.

request_id(false) -> none;
request_id(true) -> <<"x-request-id">>;
request_id(Name) ->
    is_binary(Name) andalso yucan_header:known(Name) =:= {plain, Name} andalso yucan_header:is_token(Name)
        orelse bad("request_id is ~0tp; true, false or the name of a header in lower case is expected", [Name]),
    Name.

block(Text) ->
    try yucan_cidr:block(Text) of
        {ok, Block} -> Block;
        error -> bad("trusted_proxies has ~0tp; an address or a block such as <<\"10.0.0.0/8\">> is expected", [Text])
    catch
        error:_ -> bad("trusted_proxies has ~0tp; text is expected", [Text])
    end.

%% @doc Returns the configuration that connections use. Calls the `init' function of each handler.
-spec site(checked(), yucan_metrics:metrics(), #limits{}, atomics:atomics_ref()) -> #site{}.
site(#{name := Name, hosts := Hosts, default_host := Default} = Options, Metrics, Limits, Counters) ->
    Compiled = [compile(Host, maps:get(middleware, Options)) || Host <- Hosts],
    Named = [{N, Host} || #host{names = Names} = Host <- Compiled, N <- Names],
    {Patterns, Exact} = lists:partition(fun({N, _}) -> binary:match(N, [<<"*">>, <<"?">>]) =/= nomatch end, Named),
    #site{name = Name, limits = Limits, metrics = Metrics, counters = Counters, select = maps:get(select_host, Options),
          server_header = maps:get(server_header, Options), http2 = maps:get(http2, Options), trusted = maps:get(trusted_proxies, Options),
          forwarded = maps:get(forwarded, Options), request_id = maps:get(request_id, Options), on_event = maps:get(on_event, Options), hosts = list_to_tuple(Compiled),
          %% If two hosts have the same name, the first one is used.
          exact = maps:from_list(lists:reverse(Exact)),
          patterns = lists:sort(fun({A, _}, {B, _}) -> byte_size(A) >= byte_size(B) end, Patterns),
          default = case Default of none -> none; Index -> lists:nth(Index + 1, Compiled) end}.

compile(#{names := Names, what := What, middleware := Own, tls := Tls}, Common) ->
    #host{names = Names, demands = yucan_tls:demands(case Tls of none -> []; _ -> Tls end), plan = yucan_router:plan(What, Common ++ Own)}.

%% @doc Returns the table for the reference of all options (`scripts/options'): option, default, valid values, when a change takes effect, and effect.
-spec table() -> [{Option :: atom(), Default :: term(), Expected :: string(), TakesEffect :: string(), Effect :: string()}].
table() ->
    [{Name, Default, Expected, case Name of name -> "start of the server"; listen -> "reload, for sockets that stay"; _ -> "reload" end, Effect}
     || {Name, Default, Expected, Effect} <-
            [{name, yucan, "an atom", "Name of the server."},
             {listen, [#{}], "a list of maps with ip, port, tls, proxy_protocol", "Where the server listens: ip {127,0,0,1} or {local, Path}, port 8080, tls options of ssl, proxy_protocol false."},
             {handler, none, "{Module, Argument}", "The handler that answers every request. Either handler, routes or hosts is needed."},
             {routes, none, "a list of {Pattern, Module, Argument} or {Pattern, Methods, Module, Argument}", "The handlers that answer, by path."},
             {hosts, none, "a list of maps with names, handler or routes, middleware, tls", "Virtual hosts."},
             {default_host, first, "first, none, or a number from 0", "The host that answers requests for any other name."},
             {select_host, none, "a fun of host name and request", "A function that chooses the host."},
             {middleware, [], "a list of funs of request and next", "Functions around all handlers."},
             {limits, #{}, "a map of limits", "See the next table."},
             {access_log, none, "a file, {json, File}, none, or {function, Fun}", "Where a line for each request is written."},
             {server_header, <<"yucan">>, "printable characters, or none", "The value of the header server."},
             {http2, true, "true or false", "Whether HTTP/2 is offered."},
             {trusted_proxies, [], "a list of addresses or blocks such as 10.0.0.0/8", "Proxies whose forwarding headers are trusted."},
             {forwarded, [<<"x-forwarded-for">>], "x-forwarded-for, x-forwarded-proto and x-forwarded-host, or forwarded alone", "Headers that count if they come from these proxies."},
             {request_id, false, "true, false, or the name of a header", "A header with an id for each request. true means x-request-id."},
             {on_event, none, "a fun of three arguments, {Module, Function}, or none", "A function that gets events in telemetry's format."}]].

%% @doc Returns all limits with their defaults. Each name ends with its unit.
-spec default_limits() -> limits().
default_limits() -> maps:from_list([{Name, Default} || {Name, Default, _} <- limits_table()]).

%% @doc Returns the name, default and meaning of each limit. `docs/options.md' contains the same table.
-spec limits_table() -> [{atom(), pos_integer() | infinity, Meaning :: string()}].
limits_table() ->
    [{request_line_bytes, 8192, "the request line; more: 414"},
     {header_line_bytes, 8192, "one header line; more: 431"},
     {header_block_bytes, 32768, "the request line and headers together; more: 431"},
     {headers, 100, "the number of headers; more: 431"},
     {body_bytes, 16 * 1024 * 1024, "a body that is read as a whole; more: 413"},
     {chunk_line_bytes, 256, "a chunk's size line with its extensions; more: 400"},
     {trailer_bytes, 8192, "the trailers after a chunked body; more: 431"},
     {drain_bytes, 64 * 1024 * 1024, "the part of a body that is read and dropped because the handler did not read it; more: the connection closes"},
     {linger_ms, 30000, "how long the server reads and drops the bytes of a client that still sends after the last answer; more: the connection closes"},
     {header_ms, 10000, "the time from the first byte of a request to the end of its headers; more: 408"},
     {idle_ms, 60000, "the time between two requests; more: the connection closes"},
     {read_ms, 15000, "silence while a body is read; more: 408"},
     {min_body_rate, 256, "bytes per second of a body, measured after the first read_ms; less: 408"},
     {send_ms, 30000, "how long a client may take nothing of an answer; more: the connection closes"},
     {tls_ms, 10000, "the time for the TLS handshake and the PROXY header; more: the connection closes"},
     {requests, infinity, "requests on a connection, which then closes"},
     {connections, 16384, "open connections; more: 503, or closed at once over TLS"},
     {address_connections, infinity, "open connections of a single client address; more: 503, or closed at once over TLS"},
     {address_requests, infinity, "requests per second of a single client address, and the same number at once; more: 429"},
     {acceptors, 16, "processes that wait for a connection, for each listener"},
     {backlog, 1024, "connections that wait in the kernel, which net.core.somaxconn also limits"},
     {ws_message_bytes, 1024 * 1024, "a WebSocket message, decompressed; more: close code 1009"},
     {ws_idle_ms, 60000, "silence on a WebSocket; more: it closes"},
     {h2_streams, 100, "concurrent requests on an HTTP/2 connection; more are refused, and the client may try them again"},
     {log_queue, 10000, "lines that wait for the access log; more: they are counted and dropped"}].

%% @doc Returns the record that connections use. The limits must already have been checked.
-spec freeze(limits()) -> #limits{}.
freeze(Limits) ->
    All = maps:merge(default_limits(), Limits),
    list_to_tuple([limits | [maps:get(Name, All) || Name <- record_info(fields, limits)]]).
