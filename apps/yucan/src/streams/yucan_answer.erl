%% SPDX-License-Identifier: Apache-2.0
%% @doc Sends a response in steps while the handler runs, for handlers that cannot return a response, such as the adapter for Elixir's Plug. All
%% functions must be called in the handler's process. The handler must then return `sent'.
-module(yucan_answer).

-export([send/2, open/3, write/2, cut/0, inform/3]).

-include("yucan_internal.hrl").

%% @doc Sends a complete response. Raises `{bad_response, Why}' if the response is not valid, or if one has already been sent.
-spec send(yucan_handler:response(), yucan_req:req()) -> ok.
send(Response, Req) -> step(Response, Req).

%% @doc Sends the head of a response whose body is written with {@link write/2}. The response ends when the handler returns. Without a Content-Length,
%% the body is chunked.
-spec open(Status :: 200..999, yucan_handler:headers(), yucan_req:req()) -> ok.
open(Status, Headers, Req) -> step({Status, Headers, {stream, open}}, Req).

%% The result is stored until the handler returns `sent'.
step(Response, #req{conn = #conn{server = Server, writer = Writer}} = Req) ->
    yucan_progress:kept() =:= undefined andalso yucan_progress:written() =:= undefined orelse error({bad_response, already_sent}),
    Site = persistent_term:get({yucan, Server}),
    yucan_progress:keep(Writer:send(yucan_exchange:ready(Response, Req, Site), Req, Site)).

%% @doc Writes a part of the body. `closed' means that the client has disconnected, and `timeout' that it has not accepted any data for `send_ms'.
-spec write(iodata(), yucan_req:req()) -> ok | {error, closed | timeout}.
write(Data, #req{conn = #conn{socket = Socket}}) ->
    case yucan_progress:kept() of
        {open, Mode, _, _} -> yucan_stream:write(Data, Mode, Socket);
        %% The response is already complete, but the client may still be connected.
        {_, _, _} -> case yucan_transport:is_closed(Socket) of true -> {error, closed}; false -> ok end;
        undefined -> error({bad_response, {write, nothing_open}})
    end.

%% @doc Aborts the response of a handler that has failed. The rest of an open body is never sent, so the client can tell that it is incomplete.
%% `false' means that nothing was sent, so the handler must respond in a different way. After `true', the handler must return `sent'.
-spec cut() -> boolean().
cut() ->
    case yucan_stream:cut() of
        none -> false;
        Outcome -> ok = yucan_progress:keep(Outcome), true
    end.

%% @doc Sends an informational response before the final one, such as 103 with links to resources to load early. HTTP/1.0 has no such responses.
-spec inform(Status :: 102..199, yucan_handler:headers(), yucan_req:req()) -> ok | {error, not_supported | closed | timeout}.
inform(Status, _, #req{version = 10}) when Status =/= 101, Status > 100, Status < 200 -> {error, not_supported};
inform(Status, Headers, #req{conn = #conn{socket = Socket, writer = Writer}} = Req) when Status =/= 101, Status > 100, Status < 200 ->
    yucan_progress:has_begun() andalso error({bad_response, already_sent}),
    ok = yucan_transport:release(Socket),
    yucan_stream:sent(Writer:inform(Status, Headers, Req));
inform(Status, _, _) -> error({bad_response, {informational, Status}}).
