%% SPDX-License-Identifier: Apache-2.0
%% @doc An answer by steps while the handler runs, for a handler that cannot return one: the adapter for Elixir's Plug is one. All functions are
%% called in the process of the handler, which then returns `sent' and nothing else.
-module(yucan_answer).

-export([send/2, open/3, write/2, cut/0, inform/3]).

%% @doc Sends a whole answer. Raises `{bad_response, Why}' if it is none, or if there was one before.
-spec send(yucan_handler:response(), yucan_req:req()) -> ok.
send(Response, Req) -> yucan_reply:step(Response, Req).

%% @doc Sends the head of an answer whose body comes by write/2; it ends when the handler returns. Without Content-Length the body is chunked.
-spec open(Status :: 200..999, yucan_handler:headers(), yucan_req:req()) -> ok.
open(Status, Headers, Req) -> yucan_reply:step({Status, Headers, {stream, open}}, Req).

%% @doc A part of that body. `closed': the client has gone; `timeout': it has taken nothing for `send_ms'.
-spec write(iodata(), yucan_req:req()) -> ok | {error, closed | timeout}.
write(Data, Req) -> yucan_reply:write(Data, Req).

%% @doc For a handler that has failed: what is missing of an open body stays missing, and the client sees that. `false': nothing was sent, so
%% another answer is due. After `true' the handler returns `sent'.
-spec cut() -> boolean().
cut() -> yucan_reply:cut_short().

%% @doc An informational answer before the final one, such as 103 with links to load early. HTTP/1.0 has none.
-spec inform(Status :: 102..199, yucan_handler:headers(), yucan_req:req()) -> ok | {error, not_supported | closed | timeout}.
inform(Status, Headers, Req) -> yucan_reply:inform(Status, Headers, Req).
