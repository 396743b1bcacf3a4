%% SPDX-License-Identifier: Apache-2.0
%% @doc The behaviour of request handlers. `handle/2' is called for each request, in the process of the connection or, over HTTP/2, of the request. If
%% it raises an exception, the client gets the status 500, and no other connection is affected.
%%
%% ```
%% -module(hello).
%% -behaviour(yucan_handler).
%% -export([handle/2]).
%% handle(_Req, _State) -> {200, [{<<"content-type">>, <<"text/plain">>}], <<"hello world\n">>}.
%% '''
-module(yucan_handler).

-export_type([response/0, headers/0, write/0]).

-type headers() :: [{Name :: binary() | string() | atom(), Value :: iodata() | integer()}].
%% The server itself sets Content-Length, Transfer-Encoding, Connection and Date.
-type write() :: fun((iodata()) -> ok | {error, closed | timeout}).
%% Writes a part of a body, and returns when the system has accepted the data, so a slow client slows the handler down.
-type response() ::
    {Status :: 200..999, headers(), iodata()}
    | {Status :: 200..999, headers(), {file, file:name_all()}}
    %% A complete file whose size is already known.
    | {Status :: 200..999, headers(), {file, file:name_all(), Size :: non_neg_integer()}}
    | {Status :: 200..999, headers(), {file, file:name_all(), Offset :: non_neg_integer(), Length :: non_neg_integer()}}
    | {Status :: 200..999, headers(), {stream, fun((write()) -> term())}}
    | {Status :: 101..999, headers(), {upgrade, fun((yucan_transport:socket(), Buffered :: binary()) -> term())}}
    | {websocket, module(), term(), yucan_ws:options()}
    %% The handler has sent its response through yucan_answer.
    | sent
    | close.

%% Called in the server's process each time the configuration is loaded. If it is not exported, the argument itself is the state.
-callback init(Arg :: term()) -> State :: term().
-callback handle(yucan_req:req(), State :: term()) -> response().
-optional_callbacks([init/1]).
