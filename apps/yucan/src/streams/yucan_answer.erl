%% SPDX-License-Identifier: Apache-2.0
%% @doc An answer in steps while the handler runs, for handlers that cannot return one, such as the adapter for Elixir's Plug. All functions are
%% called in the process of the handler, which then returns `sent' and nothing else.
-module(yucan_answer).

-export([send/2, open/3, write/2, cut/0, inform/3]).

%% @doc Sends a complete answer. Raises `{bad_response, Why}' if the answer is not valid, or if one has already been sent.
-spec send(yucan_handler:response(), yucan_req:req()) -> ok.
send(Response, Req) -> yucan_reply:step(Response, Req).

%% @doc Sends the head of an answer whose body is written with write/2. The answer ends when the handler returns. Without Content-Length the body
%% is chunked.
-spec open(Status :: 200..999, yucan_handler:headers(), yucan_req:req()) -> ok.
open(Status, Headers, Req) -> yucan_reply:step({Status, Headers, {stream, open}}, Req).

%% @doc Writes a part of that body. `closed' means that the client has disconnected, and `timeout' that it has accepted no data for `send_ms'.
-spec write(iodata(), yucan_req:req()) -> ok | {error, closed | timeout}.
write(Data, Req) -> yucan_reply:write(Data, Req).

%% @doc For a handler that has failed. The rest of an open body is never sent, and the client can see that. `false' means that nothing was sent,
%% so the handler has to answer in another way. After `true' it returns `sent'.
-spec cut() -> boolean().
cut() -> yucan_reply:cut_short().

%% @doc Sends an informational answer before the final one, such as 103 with links to load early. HTTP/1.0 has no such answers.
-spec inform(Status :: 102..199, yucan_handler:headers(), yucan_req:req()) -> ok | {error, not_supported | closed | timeout}.
inform(Status, Headers, Req) -> yucan_reply:inform(Status, Headers, Req).
