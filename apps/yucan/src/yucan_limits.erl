%% SPDX-License-Identifier: Apache-2.0
%% @doc The limits of a server: their names, defaults and meanings, in one table. yucan_config checks what a
%% user gives and freezes it; `docs/guide/yucan.md' shows the same table.
-module(yucan_limits).

-export([defaults/0, table/0, freeze/1]).
-export_type([limits/0]).

-include("yucan_internal.hrl").

-type limits() :: #{atom() => pos_integer() | infinity}.

%% @doc All limits with their defaults. Names end in their unit.
-spec defaults() -> limits().
defaults() ->
    maps:from_list([{Name, Default} || {Name, Default, _} <- table()]).

%% @doc Name, default and meaning of each limit.
-spec table() -> [{atom(), pos_integer() | infinity, Meaning :: string()}].
table() ->
    [{request_line_bytes, 8192, "the request line; more: 414"},
     {header_line_bytes, 8192, "one header line; more: 431"},
     {header_block_bytes, 32768, "request line and headers together; more: 431"},
     {headers, 100, "number of headers; more: 431"},
     {body_bytes, 16 * 1024 * 1024, "a body that is read as a whole; more: 413"},
     {chunk_line_bytes, 256, "a chunk's size line with its extensions; more: 400"},
     {trailer_bytes, 8192, "trailers after a chunked body; more: 431"},
     {drain_bytes, 64 * 1024 * 1024, "what is read and thrown away of a body that the handler left; more: the connection closes"},
     {linger_ms, 30000, "after the last answer: a client that still sends is read and its bytes are dropped; more: the connection closes"},
     {header_ms, 10000, "from the first byte of a request to the end of its headers; more: 408"},
     {idle_ms, 60000, "between two requests; more: the connection closes"},
     {read_ms, 15000, "silence while a body is read; more: 408"},
     {min_body_rate, 256, "bytes a second that a body must have, measured after the first read_ms; less: 408"},
     {send_ms, 30000, "the client takes nothing of an answer; more: the connection closes"},
     {tls_ms, 10000, "the TLS handshake, and the PROXY header; more: the connection closes"},
     {requests, infinity, "requests on one connection; then it closes"},
     {connections, 16384, "open connections; more: 503"},
     {acceptors, 16, "processes that wait for a connection, for each listener"},
     {backlog, 1024, "connections that wait in the kernel, bounded by net.core.somaxconn too"},
     {ws_message_bytes, 1024 * 1024, "a WebSocket message, decompressed; more: close code 1009"},
     {ws_idle_ms, 60000, "silence on a WebSocket; more: it closes"},
     {log_queue, 10000, "lines that wait for the access log; more: they are counted and dropped"}].

%% @doc The record that the connections use. The limits have been checked.
-spec freeze(limits()) -> #limits{}.
freeze(Limits) ->
    All = maps:merge(defaults(), Limits),
    list_to_tuple([limits | [maps:get(Name, All) || Name <- record_info(fields, limits)]]).
